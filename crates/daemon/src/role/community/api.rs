//! What clients ask about the community.

use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{
    CommunityReply, CommunityRequest, CommunityStanding, DrawnCode, Failure, Grant, Host, Open, Purpose, Roster,
};
use whimbrel_protocol::{
    CODE_LIFETIME, CommunityRefused, CommunityView, GrantView, HostView, OfferView, Offered, OneTimeCode, Time,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::MemberStanding;

use crate::api::desk::Desk;
use crate::clock;

/// [`Request::Community`](whimbrel_ipc::Request::Community). `port`: that of this host's daemon, which others have too.
pub(crate) fn answer(desk: &mut Desk, request: CommunityRequest, port: u16) -> Result<CommunityReply, Failure> {
    let now = clock::now();
    match request {
        CommunityRequest::List => {}
        CommunityRequest::Init { name } => {
            let name = name.unwrap_or_else(host_name);
            nameable(&name)?;
            desk.node.found_community(now, &name).map_err(refused)?;
        }
        CommunityRequest::Invite { steward } => {
            let code = desk.node.invite(now, steward).map_err(refused)?;
            let purpose = if steward { Purpose::Steward } else { Purpose::Member };
            return Ok(drawn(desk, port, code, purpose));
        }
        CommunityRequest::Grant { connection } => {
            let flow = connection_named(desk, &connection)?;
            let code = desk.node.offer_connection(now, flow).map_err(refused)?;
            return Ok(drawn(desk, port, code, Purpose::Connection { local: flow.local, remote: flow.remote }));
        }
        CommunityRequest::Join { code, hosts, port: asked, name } => {
            let name = name.unwrap_or_else(host_name);
            nameable(&name)?;
            let (code, hosts) = where_to_ask(&code, hosts, asked.unwrap_or(port))?;
            let since = desk.newest();
            desk.node.join_community(now, code, hosts, &name).map_err(refused)?;
            return Ok(CommunityReply::Asking { since });
        }
        CommunityRequest::Accept { code, hosts, port: asked } => {
            let (code, hosts) = where_to_ask(&code, hosts, asked.unwrap_or(port))?;
            let since = desk.newest();
            desk.node.accept_connection(now, code, hosts).map_err(refused)?;
            return Ok(CommunityReply::Asking { since });
        }
        CommunityRequest::Revoke { what } => revoke(desk, now, &what)?,
        CommunityRequest::Leave => desk.node.leave_community(now).map_err(refused)?,
    }
    Ok(CommunityReply::Roster(roster(&desk.node.community(now))))
}

fn where_to_ask(code: &str, hosts: Vec<IpAddr>, port: u16) -> Result<(OneTimeCode, Vec<SocketAddr>), Failure> {
    let code = code.parse().map_err(|error: whimbrel_protocol::InvalidCode| {
        Failure::new(error.to_string()).hint("`whimbrel community invite` at the other host prints one.")
    })?;
    if hosts.is_empty() {
        return Err(Failure::new("no address is given of the host that has drawn the code"));
    }
    Ok((code, hosts.into_iter().map(|host| SocketAddr::new(host, port)).collect()))
}

fn drawn(desk: &Desk, port: u16, code: OneTimeCode, purpose: Purpose) -> CommunityReply {
    let addresses = desk.met_at();
    let open = Open { number: code.number(), purpose, left_s: CODE_LIFETIME.as_secs() };
    CommunityReply::Code(DrawnCode { code: code.to_string(), open, addresses, port })
}

/// The connection that has this at either end.
fn connection_named(desk: &Desk, name: &str) -> Result<FlowTuple, Failure> {
    let wanted: SocketAddr = name.parse().map_err(|_| {
        Failure::new("this names no connection")
            .on(name)
            .hint("An address and port of either end does (192.0.2.1:22, [2001:db8::1]:22).")
    })?;
    let ends = |flow: &FlowTuple| [flow.local, flow.remote].contains(&wanted);
    let named: Vec<FlowTuple> = desk.node.flows().map(|view| view.tuple).filter(ends).collect();
    match named[..] {
        [flow] => Ok(flow),
        [] => Err(Failure::new("there is no such connection").on(name).hint("`whimbrel connections` shows them.")),
        _ => Err(Failure::new("this names several connections")
            .on(name)
            .hint("The address and port of the other end may name one alone.")),
    }
}

/// Revokes a host, or takes back what has this number.
fn revoke(desk: &mut Desk, now: Time, what: &str) -> Result<(), Failure> {
    let view = desk.node.community(now);
    let belongs = |host: &&HostView| host.standing != MemberStanding::Revoked;
    let called = view.called_exactly(what);
    let belonging: Vec<PublicKey> = called.iter().copied().filter(belongs).map(|host| host.key).collect();
    match (belonging.as_slice(), what.parse::<u16>()) {
        ([host], _) => desk.node.revoke(now, host).map_err(refused),
        ([], Ok(number)) if desk.node.withdraw(now, number) => Ok(()),
        ([], _) if !called.is_empty() => Err(Failure::new("it was revoked already")
            .on(what)
            .hint("`whimbrel community list` shows the hosts, each as its name is written.")),
        ([], _) => Err(Failure::new("neither a host of the community nor an open code or grant is called this")
            .on(what)
            .hint("`whimbrel community list` shows them.")),
        _ => Err(Failure::new("several hosts of the community are called this").on(what).hint(
            "The key of one, or its beginning, names it alone: `whimbrel community list --json` shows the keys.",
        )),
    }
}

/// What this host is called where nobody says otherwise.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().take(63).collect();
    if whimbrel_wire::community::is_name(&name) { name } else { "unnamed".to_owned() }
}

/// Whether a host may be called so: it would not be found by a name that means something else where hosts are named.
fn nameable(name: &str) -> Result<(), Failure> {
    let lower = name.to_lowercase();
    let bare = lower.trim_start_matches('[').trim_end_matches(']');
    let why = if ["self", "nearest", "stable", "auto", "any", "none"].contains(&lower.as_str())
        || lower.starts_with("policy:")
    {
        "it says how an anchor is chosen"
    } else if lower.trim_start_matches('#').parse::<u64>().is_ok() {
        "numbers name peers, codes and grants"
    } else if lower.starts_with('#') {
        "`#` begins the number of a peer"
    } else if bare.parse::<IpAddr>().is_ok() || lower.parse::<SocketAddr>().is_ok() {
        "it is an address"
    } else {
        return Ok(());
    };
    Err(Failure::new(format!("a host cannot be called this: {why}")).on(name).hint("Name it otherwise, with --name."))
}

fn refused(error: CommunityRefused) -> Failure {
    let failure = Failure::new(error.to_string());
    let hint = match error {
        CommunityRefused::NotIn => {
            "`whimbrel community init` founds one, and `whimbrel community join CODE HOST` joins another's."
        }
        CommunityRefused::AlreadyIn => "`whimbrel community leave` has it belong to none.",
        CommunityRefused::NotSteward => {
            "`whimbrel community list` shows the stewards; `invite --steward` at one of them makes others."
        }
        CommunityRefused::NoSuchHost => "`whimbrel community list` shows its hosts.",
        CommunityRefused::Itself => "`whimbrel community leave` has this host belong to none.",
        CommunityRefused::TooMany => {
            "`whimbrel community list` shows them; `whimbrel community revoke NUMBER` takes one back."
        }
        CommunityRefused::Joining => "It is over within 20 seconds.",
        CommunityRefused::Spent => {
            "Have another one drawn by `whimbrel community invite` or `grant` at the other host."
        }
        CommunityRefused::Pinned => {
            "Set `trust` to \"tofu\" or \"psk\" while a host joins; those that have joined are trusted."
        }
        CommunityRefused::NoName => "Name it with --name.",
        CommunityRefused::NoMoves => return failure,
        CommunityRefused::NoSuchConnection => "`whimbrel connections` shows them.",
        CommunityRefused::Forged => return failure,
    };
    failure.hint(hint)
}

fn standing(of: MemberStanding) -> CommunityStanding {
    match of {
        MemberStanding::Member => CommunityStanding::Member,
        MemberStanding::Steward => CommunityStanding::Steward,
        // What this version does not know has no rights here.
        MemberStanding::Revoked | MemberStanding::Other(_) => CommunityStanding::Revoked,
    }
}

fn roster(view: &CommunityView) -> Roster {
    let host = |host: &HostView| Host {
        name: host.name.clone(),
        key: host.key.to_string(),
        standing: standing(host.standing),
        here: host.here,
        at: host.at,
        session: host.session,
        knows: host.knows,
    };
    let open = |offer: &OfferView| Open {
        number: offer.number,
        purpose: match offer.what {
            Offered::Membership { steward: true } => Purpose::Steward,
            Offered::Membership { steward: false } => Purpose::Member,
            Offered::Connection { flow } => Purpose::Connection { local: flow.local, remote: flow.remote },
        },
        left_s: offer.left.as_secs(),
    };
    let grant = |grant: &GrantView| Grant {
        number: grant.number,
        key: grant.host.to_string(),
        local: grant.flow.map(|flow| flow.local),
        remote: grant.flow.map(|flow| flow.remote),
        left_s: grant.left.as_secs(),
    };
    let mut hosts: Vec<Host> = view.hosts.iter().map(host).collect();
    hosts.sort_by(|one, other| {
        (one.standing == CommunityStanding::Revoked, &one.name, &one.key).cmp(&(
            other.standing == CommunityStanding::Revoked,
            &other.name,
            &other.key,
        ))
    });
    Roster {
        community: view.community.map(|key| PublicKey::from(key).to_string()),
        standing: view.standing.map(standing),
        hosts,
        codes: view.offers.iter().map(open).collect(),
        grants: view.grants.iter().map(grant).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_is_called_what_means_something_else() {
        for name in [
            "#3",
            "3",
            "#desk",
            "10.51.1.7",
            "2001:db8::7",
            "[2001:db8::7]",
            "10.51.1.7:22",
            "self",
            "Self",
            "nearest",
            "STABLE",
            "auto",
            "any",
            "none",
            "policy:7",
        ] {
            let refused = nameable(name).err().map(|failure| failure.to_string());
            assert!(refused.as_ref().is_some_and(|why| why.contains("--name")), "{name}: {refused:?}");
        }
        for name in ["desk", "tablet-3", "3rd", "automatic", "living room", "fe", "10.51.1.7.example.org"] {
            assert!(nameable(name).is_ok(), "{name}");
        }
    }
}
