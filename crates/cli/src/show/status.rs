//! `whimbrel status`.

use std::time::Duration;

use whimbrel_ipc::{NameServer, NameServerState, RendezvousBy, RendezvousState, Status, moment_to_the_second};

use super::{count, duration};
use crate::table::{width, wrap};

const INDENT: usize = 13;

pub(crate) fn status(status: &Status) -> String {
    let counts = status.counts;
    let ready = match (status.ready, status.suspended) {
        (false, _) => "starting",
        (true, false) => "ready",
        (true, true) => "suspended (`whimbrel resume`)",
    };
    let mut lines = vec![
        (
            "daemon",
            format!("{ready}, version {}, process {}, up {}", status.version, status.pid, {
                duration(Duration::from_millis(status.uptime_ms))
            }),
        ),
        ("public key", status.public_key.clone()),
        ("listens on", format!("UDP port {}, trust {}", status.port, status.trust)),
        ("addresses", list(status.addresses.iter().map(|local| format!("{} ({})", local.address, local.interface)))),
    ];
    if !status.kept_addresses.is_empty() {
        lines.push(("kept", list(status.kept_addresses.iter().map(ToString::to_string))));
    }
    lines.push(("peers", format!("{}, {} with a session", count(counts.peers, "peer"), counts.sessions)));
    for rendezvous in &status.rendezvous {
        let stands = match rendezvous.state {
            RendezvousState::Unneeded => "is not needed now".to_owned(),
            RendezvousState::Unanswered => "does not answer".to_owned(),
            RendezvousState::Registered => {
                format!("answers, {} can meet this host there", count(rendezvous.peers, "peer"))
            }
            RendezvousState::Full => {
                format!("has room for no more than {}", count(rendezvous.peers, "peer"))
            }
            RendezvousState::Refused if rendezvous.by == RendezvousBy::Community => {
                "refuses: `community_rendezvous` is false there".to_owned()
            }
            RendezvousState::Refused => "refuses: `serve_rendezvous` is not set there".to_owned(),
        };
        let by = match rendezvous.by {
            RendezvousBy::Configured => "",
            RendezvousBy::Named => " (a peer of the configuration)",
            RendezvousBy::Community => " (of the community)",
        };
        lines.push(("rendezvous", format!("{}{by} {stands}", rendezvous.address)));
    }
    if let Some(meetings) = status.meetings {
        let (hosts, pairs) = (count(meetings.hosts, "host"), count(meetings.pairs, "pair"));
        lines.push(("meetings", format!("{hosts} can be met here, {pairs} by one another")));
    }
    if let Some(server) = &status.name_server {
        lines.push(("name server", name_server(server)));
    }
    lines.push((
        "connections",
        format!(
            "{}: {} would survive a move{}, {} moved, {} held{}{}",
            count(counts.connections, "connection"),
            counts.introduced.saturating_sub(counts.not_confirmed),
            if counts.introduced > 0 && counts.sessions == 0 { " once a session comes up" } else { "" },
            counts.moved,
            counts.held,
            some(counts.not_confirmed, "not confirmed"),
            some(counts.lost, "lost at the move"),
        ),
    ));
    let by_hand = [(counts.suspended, "by hand (`whimbrel resume`)"), (counts.suspended_by_peers, "by their peers")];
    let by_hand = by_hand.iter().filter(|(waiting, _)| *waiting > 0);
    let by_hand: Vec<String> =
        by_hand.map(|(waiting, whose)| format!("{} {whose}", count(*waiting, "connection"))).collect();
    if !by_hand.is_empty() {
        lines.push(("suspended", by_hand.join(", ")));
    }
    if let Some(tunnel) = &status.tunnel {
        lines.push((
            "tunnel",
            format!(
                "{}, MTU {}, {} packets sent, {} received",
                tunnel.device, tunnel.mtu, tunnel.packets_sent, tunnel.packets_received
            ),
        ));
    }
    let attached = match status.attached.is_empty() {
        true => "nothing: no packet is touched".to_owned(),
        false => list(status.attached.iter().map(|at| format!("{} {} ({})", at.interface, at.program, at.hook))),
    };
    lines.push(("attached", attached));

    let mut out = String::new();
    for (name, text) in lines {
        out.push_str(&format!("{name:INDENT$}{}\n", wrap(&text, width(), INDENT)));
    }
    out
}

/// What the name server was told, and what it has answered.
fn name_server(of: &NameServer) -> String {
    let since = of.since.as_ref().map(|since| format!(" ({})", moment_to_the_second(since))).unwrap_or_default();
    match (&of.sentence, of.state) {
        (_, NameServerState::Asked) => format!("{} is being told where {} is", of.server, of.name),
        (Some(sentence), _) => format!("{sentence}{since}"),
        (None, _) => format!(
            "{} is not told where {} is: it has no address, or private ones alone, which take `dns.private`",
            of.server, of.name
        ),
    }
}

/// That there are so many of a kind, if there are any.
fn some(count: usize, kind: &str) -> String {
    if count > 0 { format!(", {count} {kind}") } else { String::new() }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::WIDTH;
    use whimbrel_ipc::{Attachment, Counts, LocalAddress, Meetings, Rendezvous, Trust, Tunnel};

    fn example() -> Status {
        Status {
            ready: true,
            version: "0.1.0".into(),
            pid: 4711,
            uptime_ms: 90_000,
            public_key: "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo".into(),
            port: 2031,
            trust: Trust::Tofu,
            run_dir: "/run/whimbrel".into(),
            state_dir: "/var/lib/whimbrel".into(),
            place: 2,
            addresses: vec![LocalAddress { address: "198.51.100.7".parse().unwrap(), interface: "wlan0".into() }],
            kept_addresses: Vec::new(),
            suspended: false,
            rendezvous: Vec::new(),
            meetings: None,
            name_server: None,
            counts: Counts { peers: 1, sessions: 1, connections: 5, introduced: 2, ..Counts::default() },
            attached: Vec::new(),
            tunnel: None,
            newest_event: 17,
        }
    }

    #[test]
    fn of_a_host_at_home() {
        assert_eq!(
            status(&example()),
            "\
daemon       ready, version 0.1.0, process 4711, up 1 min 30 s
public key   uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo
listens on   UDP port 2031, trust tofu
addresses    198.51.100.7 (wlan0)
peers        1 peer, 1 with a session
connections  5 connections: 2 would survive a move, 0 moved, 0 held
attached     nothing: no packet is touched
"
        );
    }

    #[test]
    fn of_a_host_that_has_and_is_a_rendezvous() {
        let mut known = example();
        let at = |address: &str, by, state| Rendezvous { address: address.parse().unwrap(), by, state, peers: 1 };
        known.rendezvous = vec![
            at("192.0.2.53", RendezvousBy::Configured, RendezvousState::Registered),
            at("192.0.2.54", RendezvousBy::Configured, RendezvousState::Refused),
            at("192.0.2.55", RendezvousBy::Community, RendezvousState::Registered),
        ];
        known.meetings = Some(Meetings { hosts: 3, pairs: 1 });
        let text = status(&known);
        for line in [
            "rendezvous   192.0.2.53 answers, 1 peer can meet this host there",
            "rendezvous   192.0.2.54 refuses: `serve_rendezvous` is not set there",
            "rendezvous   192.0.2.55 (of the community) answers, 1 peer can meet this host there",
            "meetings     3 hosts can be met here, 1 pair by one another",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn of_a_host_that_tells_a_name_server() {
        let mut told = example();
        let server = NameServer {
            name: "laptop.roam.test".into(),
            server: "192.0.2.53:53".parse().unwrap(),
            state: NameServerState::Refused,
            addresses: Vec::new(),
            since: Some("2026-01-31T23:59:58.007Z".into()),
            sentence: Some("it does not take it (BADSIG)".into()),
        };
        told.name_server = Some(server.clone());
        let line = "name server  it does not take it (BADSIG) (2026-01-31 23:59:58 UTC)";
        assert!(status(&told).lines().any(|found| found == line), "{}", status(&told));
        told.name_server = Some(NameServer { state: NameServerState::Asked, ..server.clone() });
        assert!(status(&told).contains("name server  192.0.2.53:53 is being told where laptop.roam.test is\n"));
        told.name_server = Some(NameServer { state: NameServerState::Withheld, sentence: None, ..server });
        assert!(status(&told).contains("is not told where laptop.roam.test is: it has no address"));
    }

    #[test]
    fn single_connections_that_are_suspended_are_told_of() {
        let mut some = example();
        (some.counts.suspended, some.counts.suspended_by_peers) = (1, 2);
        let by_hand = "1 connection by hand (`whimbrel resume`), 2 connections by their peers";
        let text = status(&some);
        assert!(text.contains(&format!("\nsuspended    {by_hand}\n")), "{text}");
        some.counts.suspended = 0;
        assert!(status(&some).contains("\nsuspended    2 connections by their peers"));
        assert!(!status(&example()).contains("suspended"));
    }

    #[test]
    fn without_a_session_nothing_is_promised() {
        let mut alone = example();
        alone.counts.sessions = 0;
        assert!(status(&alone).contains("2 would survive a move once a session comes up, 0 moved"));
    }

    #[test]
    fn of_a_host_that_moved_fits_the_width() {
        let mut moved = example();
        moved.kept_addresses = vec!["2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff".parse().unwrap(); 4];
        moved.tunnel =
            Some(Tunnel { device: "whimbrel0".into(), mtu: 1428, packets_sent: u64::MAX, packets_received: u64::MAX });
        moved.attached =
            vec![Attachment { interface: "enp0s31f6".into(), program: "ingress".into(), hook: "clsact".into() }; 6];
        let text = status(&moved);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("kept") && text.contains("tunnel"));
    }
}
