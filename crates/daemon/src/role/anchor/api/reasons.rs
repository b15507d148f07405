//! Why an anchor does not lend, for people.

use whimbrel_protocol::Refusal;
use whimbrel_wire::lending::Ends;

use crate::host::refusal::sentence;

/// Whether an anchor may take a claim later that it does not take now (P-128).
pub(crate) fn may_pass(why: Refusal) -> bool {
    // One that was started anew lends nothing for a moment.
    matches!(why, Refusal::HolderUnreached | Refusal::NotKept | Refusal::NoRoom | Refusal::NotLent | Refusal::Busy)
}

/// Why an anchor does not lend, for people.
pub(crate) fn reason(why: Refusal) -> &'static str {
    match why {
        Refusal::NotAllowed => {
            "it lends nothing to this host: the two are of no community (`whimbrel community`), and `to` in its `[anchor]` does not name this one"
        }
        Refusal::NotLent => "`[anchor]` in its configuration offers none, or not this one",
        Refusal::Stopping => "it is about to stop lending (`whimbrel anchor start` there has it lend again)",
        Refusal::NoRoom => "it has no room for another lease",
        Refusal::Taken => "the port is taken there",
        Refusal::NoFamily => "it has no address of that family",
        Refusal::HolderUnreached => "it does not answer",
        Refusal::Expired => "it has run out",
        other => sentence(other),
    }
}

/// Why it does not lend these, where it has said what it lends (P-129).
pub(crate) fn reason_of(why: Refusal, ends: &Ends, offered: &[(u16, u16)]) -> String {
    let port = ends.first.port();
    let has = |(first, last): &(u16, u16)| (*first..=*last).contains(&port);
    match why {
        Refusal::NotLent if ends.count == 0 && ends.first.ip().is_unspecified() => {
            "it lends no address as a whole: `addresses` in its `[anchor]` would say which".to_owned()
        }
        _ if ends.count == 0 => reason_process(why).to_owned(),
        // It may refuse a port that it lends too: of another address, or while it does not have the address.
        Refusal::NotLent if port != 0 && !offered.is_empty() && !offered.iter().any(has) => {
            let ranges: Vec<String> = offered.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            format!("port {port} is none of those that it lends ({})", ranges.join(", "))
        }
        Refusal::Taken if port != 0 => format!("port {port} is taken there"),
        _ => reason(why).to_owned(),
    }
}

/// The same of an address as a whole.
fn reason_process(why: Refusal) -> &'static str {
    match why {
        Refusal::NoRoom => "all addresses that it lends are taken, or this host has as many leases of it as it may",
        Refusal::Taken => "it is lent already, or another host has connections of it",
        Refusal::NotLent => {
            "it is none that it lends as a whole (`addresses` in its `[anchor]`), or its own, or its router's, or the first or last of a subnet"
        }
        Refusal::NoFamily => "it lends none of that family as a whole",
        other => reason(other),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_port_is_said_not_to_be_lent_only_where_it_is_not() {
        // P-129
        let ends = |port, count| Ends { first: SocketAddr::new([192, 0, 2, 1].into(), port), count };
        let offered = [(8000, 8127), (40_000, 44_999)];
        for port in [7999, 8128, 39_999, 45_000] {
            let right = format!("port {port} is none of those that it lends (8000-8127, 40000-44999)");
            assert_eq!(reason_of(Refusal::NotLent, &ends(port, 1), &offered), right);
        }
        for port in [0, 8000, 8127, 40_000, 44_999] {
            assert_eq!(reason_of(Refusal::NotLent, &ends(port, 1), &offered), reason(Refusal::NotLent), "{port}");
        }
        assert_eq!(reason_of(Refusal::NotLent, &ends(7999, 1), &[]), reason(Refusal::NotLent));
        assert_eq!(reason_of(Refusal::NotLent, &ends(0, 0), &offered), reason_process(Refusal::NotLent));
        let any = Ends { first: SocketAddr::new([0; 4].into(), 0), count: 0 };
        assert!(reason_of(Refusal::NotLent, &any, &[]).starts_with("it lends no address"));
    }
}
