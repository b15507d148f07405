//! `whimbrel community`.

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_ipc::{CommunityStanding, DrawnCode, EventRecord, Purpose, Roster};

use super::{duration, short_key};
use crate::table::{elastic, number, render, text};

/// What is said to who has left one.
pub(crate) const LEFT: &str =
    "This host has left its community, and belongs to none. Its stewards go on to count it until one revokes it.\n";

pub(crate) fn roster(roster: &Roster) -> String {
    let mut out = match (&roster.community, roster.standing) {
        (None, _) => {
            "No community: `whimbrel community init` founds one, `whimbrel community join CODE HOST` joins one.\n"
                .to_owned()
        }
        (Some(_), Some(CommunityStanding::Revoked) | None) => {
            "This host was revoked: it belongs to no community.\n".to_owned()
        }
        (Some(_), Some(_)) => hosts(roster),
    };
    if !roster.codes.is_empty() {
        let row = |open: &whimbrel_ipc::Open| [open.number.to_string(), purpose(&open.purpose), left(open.left_s)];
        out.push('\n');
        out.push_str(&render(
            [number("CODE"), elastic("FOR"), text("LEFT")],
            &roster.codes.iter().map(row).collect::<Vec<_>>(),
        ));
    }
    if !roster.grants.is_empty() {
        let row = |grant: &whimbrel_ipc::Grant| {
            let what = match (grant.local, grant.remote) {
                (Some(local), Some(remote)) => format!("{local} - {remote} to"),
                _ => "one connection from".to_owned(),
            };
            [grant.number.to_string(), what, short_key(&grant.key), left(grant.left_s)]
        };
        out.push('\n');
        out.push_str(&render(
            [number("GRANT"), elastic("OF"), text("KEY"), text("LEFT")],
            &roster.grants.iter().map(row).collect::<Vec<_>>(),
        ));
    }
    out
}

fn hosts(roster: &Roster) -> String {
    let rows: Vec<_> = roster
        .hosts
        .iter()
        .map(|host| {
            let known = match (host.here, host.standing, host.knows) {
                (true, _, _) => "this host",
                (false, CommunityStanding::Revoked, _) => "",
                (false, _, true) => "yes",
                (false, _, false) => "not yet",
            };
            [
                host.name.clone(),
                short_key(&host.key),
                standing(host.standing).to_owned(),
                host.at.filter(|_| !host.here).map(|at| at.to_string()).unwrap_or_default(),
                known.to_owned(),
            ]
        })
        .collect();
    let mut out = render([elastic("NAME"), text("KEY"), text("STANDING"), text("ADDRESS"), text("KNOWS ALL")], &rows);
    for name in shared_names(roster) {
        out.push_str(&format!(
            "Several hosts are called {name}: they were let in by stewards that knew nothing of one another. A key names one \
             alone. Revoke one by its key, and have it join anew under another --name.\n"
        ));
    }
    out
}

/// Names that several hosts have, of those that belong to the community.
fn shared_names(roster: &Roster) -> Vec<String> {
    let belongs = |host: &&whimbrel_ipc::Host| host.standing != CommunityStanding::Revoked;
    let mut names: Vec<String> = roster.hosts.iter().filter(belongs).map(|host| host.name.to_lowercase()).collect();
    names.sort_unstable();
    let shared: BTreeSet<String> = names.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0].clone()).collect();
    shared.into_iter().collect()
}

fn standing(of: CommunityStanding) -> &'static str {
    match of {
        CommunityStanding::Member => "member",
        CommunityStanding::Steward => "steward",
        CommunityStanding::Revoked => "revoked",
    }
}

fn purpose(of: &Purpose) -> String {
    match of {
        Purpose::Member => "joining".to_owned(),
        Purpose::Steward => "joining as a steward".to_owned(),
        Purpose::Connection { local, remote } => format!("{local} - {remote}"),
    }
}

fn left(seconds: u64) -> String {
    duration(Duration::from_secs(seconds))
}

/// What has become of a code that was used.
pub(crate) fn outcome(event: &EventRecord) -> String {
    let mut letters = event.sentence.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.\n", letters.as_str())
}

pub(crate) fn code(code: &DrawnCode) -> String {
    let word = if matches!(code.open.purpose, Purpose::Connection { .. }) { "accept" } else { "join" };
    let host = code.addresses.first().map_or_else(|| "HOST".to_owned(), ToString::to_string);
    let good = left(code.open.left_s);
    let named = match word {
        "join" => {
            " It joins under its host name unless\n--name gives it another; no two hosts of a community have one name."
        }
        _ => "",
    };
    format!(
        "{}\n\nAt the other host, within {good}:\n  whimbrel community {word} {} {host}\n\nThe code is good for one try. Tell it \
         by voice, or by what nobody else reads.{named}\n",
        code.code, code.code
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{Grant, Host, Open};

    fn host(name: &str, standing: CommunityStanding, here: bool) -> Host {
        let key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=".to_owned();
        Host { name: name.into(), key, standing, here, at: "192.0.2.7:2031".parse().ok(), session: true, knows: here }
    }

    #[test]
    fn a_roster_says_who_belongs_to_it() {
        assert!(roster(&Roster::default()).contains("community init"));
        let mut of = Roster {
            community: Some("key".into()),
            standing: Some(CommunityStanding::Steward),
            hosts: vec![
                host("desk", CommunityStanding::Steward, true),
                host("laptop", CommunityStanding::Member, false),
                host("old", CommunityStanding::Revoked, false),
            ],
            codes: vec![Open { number: 7, purpose: Purpose::Member, left_s: 599 }],
            grants: vec![Grant { number: 8, key: "hSDwCYkwp1R0".into(), local: None, remote: None, left_s: 3599 }],
        };
        let told = roster(&of);
        for part in [
            "desk",
            "this host",
            "192.0.2.7:2031",
            "not yet",
            "revoked",
            "joining",
            "9 min 59 s",
            "one connection from",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("Several hosts"), "{told}");
        of.hosts.push(host("Laptop", CommunityStanding::Member, false));
        of.hosts.push(host("old", CommunityStanding::Member, false));
        let told = roster(&of);
        assert!(told.contains("Several hosts are called laptop:"), "{told}");
        assert!(!told.contains("called old"), "one that was revoked has no name any more: {told}");
        of.standing = Some(CommunityStanding::Revoked);
        assert!(roster(&of).contains("was revoked"));
    }

    #[test]
    fn what_becomes_of_a_code_is_told_as_a_sentence() {
        let event = EventRecord {
            number: 12,
            time: "2026-01-31T23:59:58.007Z".into(),
            monotonic_ms: 0,
            kind: "community-joined".into(),
            sentence: "this host belongs to the community from now on".into(),
            fields: serde_json::Map::new(),
        };
        assert_eq!(outcome(&event), "This host belongs to the community from now on.\n");
    }

    #[test]
    fn a_code_is_told_with_what_to_do() {
        let open = Open { number: 7, purpose: Purpose::Member, left_s: 600 };
        let drawn = DrawnCode {
            code: "7-crossover-clockwork-tolerance".into(),
            open,
            addresses: vec!["192.0.2.7".parse().unwrap()],
            port: 2031,
        };
        assert!(code(&drawn).contains("whimbrel community join 7-crossover-clockwork-tolerance 192.0.2.7"));
    }
}
