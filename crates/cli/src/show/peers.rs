//! `whimbrel peers` and `whimbrel paths`.

use std::time::Duration;

use whimbrel_ipc::{Away, Path, Peer, Reply};

use super::{count, duration, milliseconds, short_key};
use crate::table::{elastic, number, render, render_in, text, width, wrap};

pub(crate) fn peers(peers: &[Peer]) -> String {
    peers_in(width(), peers)
}

/// The same on a screen of this width.
pub(crate) fn peers_in(most: usize, peers: &[Peer]) -> String {
    if peers.is_empty() {
        let none = "No peers: none of the hosts that this one has connections with runs Whimbrel, as far as is known.";
        return wrap(none, most, 0) + "\n";
    }
    let rows: Vec<_> = peers
        .iter()
        .map(|peer| {
            let session = peer.session.as_ref();
            [
                format!("#{}", peer.id),
                peer.name.clone().unwrap_or_default(),
                short_key(&peer.key),
                peer.address.to_string(),
                peer.trust.to_string(),
                session.map_or("none".into(), |session| duration(Duration::from_millis(session.age_ms))),
                round_trip(peer),
                peer.flows.introduced.to_string(),
                peer.flows.moved.to_string(),
                peer.carrier.map(|carrier| carrier.to_string()).unwrap_or_default(),
                away(peer),
            ]
        })
        .collect();
    let mut out = render_in(
        most,
        [
            text("PEER"),
            elastic("NAME"),
            text("KEY").spare(4),
            text("ADDRESS"),
            text("TRUST").spare(5),
            text("SESSION").spare(3),
            number("RTT ms").spare(1),
            number("CONNS"),
            number("MOVED"),
            text("VIA").spare(2),
            text("AWAY"),
        ],
        &rows,
    );
    let waits = |peer: &&Peer| peer.session.is_none() && peer.away.is_none() && peer.flows.introduced > 0;
    if peers.iter().any(|peer| waits(&peer)) {
        let note = "Connections of a peer without a session survive a move only once one comes up (`whimbrel doctor`).";
        out.push_str(&wrap(note, most, 0));
        out.push('\n');
    }
    out
}

/// What was measured, unless it does not answer.
fn round_trip(peer: &Peer) -> String {
    let session = peer.session.as_ref().filter(|_| peer.unanswered_ms.is_none());
    session.map(|session| milliseconds(session.round_trip_ms)).unwrap_or_default()
}

/// How it is away, so that its connections wait for it, or how long it has not been heard and does not answer.
fn away(peer: &Peer) -> String {
    let heard = peer.session.as_ref().and_then(|session| session.heard_ms);
    match (peer.away, peer.unanswered_ms.and(heard)) {
        (Some(Away::Announced), _) => "said so".to_owned(),
        (_, Some(ago)) => format!("heard {} ago", duration(Duration::from_millis(ago))),
        (Some(Away::Silent), None) => "silent".to_owned(),
        (None, None) => String::new(),
    }
}

/// What a host had that is forgotten.
pub(crate) fn forgotten(reply: &Reply) -> String {
    let Reply::Forgotten { address, key, remembered, peer, flows } = reply else { return String::new() };
    let at: Vec<String> = remembered.iter().map(ToString::to_string).collect();
    let mut out = match at.is_empty() {
        true => format!("Forgot host {key}, last at {address}."),
        false => format!("Forgot key {key} of {}.", at.join(", ")),
    };
    if *peer {
        let had = count(flows.introduced, "connection");
        out.push_str(&match (flows.introduced, flows.moved) {
            (0, _) => " No connection depended on it.".to_owned(),
            (_, 0) => format!(" It had {had}, not protected any more."),
            (_, moved) => format!(" It had {had}, of which {moved} had moved, which ends those of TCP."),
        });
    }
    out.push_str(match at.is_empty() {
        true => " Its key was remembered for no address.",
        false => {
            " The next key that answers there will be remembered instead, unless the configuration (`[[peers]]`) or \
             the community names one."
        }
    });
    wrap(&out, width(), 0) + "\n"
}

pub(crate) fn paths(paths: &[Path]) -> String {
    if paths.is_empty() {
        return "No paths: there is no session with any peer.\n".into();
    }
    let rows: Vec<_> = paths
        .iter()
        .map(|path| {
            let state = match (path.active, path.confirmed) {
                // Where the peer was last, which nothing leads to now.
                (true, _) if path.local.is_none() => "no way",
                (true, true) => "in use",
                (true, false) => "not confirmed",
                (false, true) => "confirmed",
                (false, false) => "possible",
            };
            let heard = path.heard_ms.map(|ago| format!("{} ago", duration(Duration::from_millis(ago))));
            [
                path.peer.name.clone().unwrap_or_else(|| format!("#{}", path.peer.id)),
                path.local.map(|local| local.to_string()).unwrap_or_default(),
                path.remote.to_string(),
                state.to_owned(),
                heard.unwrap_or_default(),
                path.carrier.map(|carrier| format!("{carrier}{}", by_tcp(path.by_tcp))).unwrap_or_default(),
                path.translated.map(|nat| if nat { "yes" } else { "no" }.to_owned()).unwrap_or_default(),
                milliseconds(path.round_trip_ms),
                path.mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
            ]
        })
        .collect();
    let table = render(
        [
            elastic("PEER"),
            elastic("LOCAL"),
            elastic("REMOTE"),
            text("STATE"),
            text("HEARD"),
            text("VIA"),
            text("NAT"),
            number("RTT ms"),
            number("MTU"),
        ],
        &rows,
    );
    table + slower(paths.iter().any(|path| path.by_tcp))
}

/// What stands behind a carrier that goes over TCP.
pub(super) fn by_tcp(by_tcp: bool) -> &'static str {
    if by_tcp { "/tcp" } else { "" }
}

/// What is said below where something goes so.
pub(super) fn slower(by_tcp: bool) -> &'static str {
    if by_tcp {
        "What goes by tunnel/tcp goes over TCP, since UDP gets no answer there: it is slower. UDP is tried again from \
         time to time.\n"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_says_what_it_had() {
        let told = |remembered: &[&str], peer, introduced, moved| {
            forgotten(&Reply::Forgotten {
                address: "203.0.113.5".parse().unwrap(),
                key: KEY.into(),
                remembered: remembered.iter().map(|address| address.parse().unwrap()).collect(),
                peer,
                flows: PeerFlows { introduced, moved },
            })
            .replace('\n', " ")
        };
        let next = "The next key that answers there will be remembered instead, unless the configuration (`[[peers]]`) \
                    or the community names one. ";
        assert_eq!(told(&["203.0.113.5"], false, 0, 0), format!("Forgot key {KEY} of 203.0.113.5. {next}"));
        let whole = told(&["203.0.113.5", "203.0.113.6"], true, 3, 1);
        let had = "of 203.0.113.5, 203.0.113.6. It had 3 connections, of which 1 had moved, which ends those of TCP.";
        assert_eq!(whole, format!("Forgot key {KEY} {had} {next}"));
        let had = "last at 203.0.113.5. It had 1 connection, not protected any more. Its key was remembered for";
        assert_eq!(told(&[], true, 1, 0), format!("Forgot host {KEY}, {had} no address. "));
    }
    use crate::table::WIDTH;
    use whimbrel_ipc::{Carrier, PeerFlows, PeerName, Places, Sequence, Session, Trust};

    const KEY: &str = "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo";

    fn peer(address: &str) -> Peer {
        Peer {
            id: 3,
            key: KEY.into(),
            name: None,
            address: address.parse().unwrap(),
            trust: Trust::Tofu,
            remembered: Vec::new(),
            session: Some(Session {
                age_ms: 61_000,
                round_trip_ms: Some(40.52),
                heard_ms: None,
                version: 1,
                capabilities: Vec::new(),
            }),
            sequence: Sequence::default(),
            places: Places::default(),
            locators: Vec::new(),
            carrier: Some(Carrier::Rewrite),
            flows: PeerFlows { introduced: 12, moved: 2 },
            away: None,
            unanswered_ms: None,
        }
    }

    #[test]
    fn a_peer() {
        assert_eq!(
            peers(&[peer("203.0.113.5:2031")]),
            "\
PEER  KEY         ADDRESS           TRUST  SESSION    RTT ms  CONNS  MOVED  VIA
#3    uM5ahVGHtd  203.0.113.5:2031  tofu   1 min 1 s      41     12      2  rewrite
"
        );
    }

    #[test]
    fn a_member_of_the_community_has_a_name() {
        let text = peers(&[Peer { name: Some("desk".into()), ..peer("203.0.113.5:2031") }]);
        assert!(text.starts_with("PEER  NAME  KEY ") && text.contains("#3    desk  uM5a"), "{text}");
    }

    #[test]
    fn a_peer_without_a_session_promises_nothing() {
        let silent = Peer { session: None, ..peer("203.0.113.5:2031") };
        assert!(peers(&[silent]).ends_with("only once one comes up (`whimbrel doctor`).\n"));
    }

    #[test]
    fn a_peer_that_is_away_is_told() {
        for (how, word) in [(Away::Announced, "said so"), (Away::Silent, "silent")] {
            let text = peers(&[Peer { away: Some(how), session: None, ..peer("203.0.113.5:2031") }]);
            assert!(text.lines().next().is_some_and(|line| line.ends_with("AWAY")), "{text}");
            assert!(text.lines().nth(1).is_some_and(|line| line.ends_with(word)), "{text}");
        }
    }

    #[test]
    fn paths_fit_the_width() {
        let path = Path {
            peer: PeerName { id: 12, key: KEY.into(), name: None },
            local: Some("2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap()),
            remote: "[2001:db8:1111:2222:3333:4444:5555:7777]:2031".parse().unwrap(),
            active: true,
            confirmed: false,
            by_tcp: false,
            carrier: Some(Carrier::Tunnel),
            translated: Some(true),
            round_trip_ms: Some(1.25),
            mtu: Some(1500),
            heard_ms: None,
        };
        let text = paths(std::slice::from_ref(&path));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("  not confirmed  ") && !text.contains("in use"), "{text}");
        let silent = Path { heard_ms: Some(28_040), ..path.clone() };
        let text = paths(&[Path { remote: "203.0.113.5:2031".parse().unwrap(), ..silent }]);
        assert!(text.contains("not confirmed  28 s ago"), "{text}");
        let text = paths(&[Path { local: None, ..path }]);
        assert!(text.contains("no way") && !text.contains("in use"), "{text}");
    }
}
