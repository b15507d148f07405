//! `whimbrel why`: what becomes of a connection at a move, in sentences.

use std::net::{IpAddr, SocketAddr};

use whimbrel_ipc::{Carrier, Connection, ConnectionState, Greeting, Peer, Transport, Why};

/// Whether `name` names a connection: an address of either end, where that is now or was when it was opened, with or
/// without its port, its process (`pid:4711`), or what `move` calls a socket that waits for clients.
pub(crate) fn is_named(connection: &Connection, name: &str) -> bool {
    let all = std::iter::once(&connection.flow).chain(&connection.present);
    let ends: Vec<SocketAddr> = all.flat_map(|flow| [flow.local, flow.remote]).collect();
    if let Some(pid) = name.strip_prefix("pid:") {
        return connection.process.as_ref().is_some_and(|process| process.pid.to_string() == pid);
    }
    name.parse().is_ok_and(|end: SocketAddr| ends.contains(&end))
        || name.parse().is_ok_and(|address: IpAddr| ends.iter().any(|end| end.ip() == address))
        || connection.name.as_deref() == Some(name)
}

/// What is said of a connection, whose peer is among these.
pub(crate) fn why(connection: &Connection, peers: &[Peer]) -> Why {
    let with = connection.peer.as_ref();
    let peer = with.and_then(|with| peers.iter().find(|peer| peer.key == with.key));
    let (how, survives, advice) = stands(connection, peer);
    let present = connection.present.map(|now| {
        format!("Its ends are where {now} says now, which programs are shown that are to see it (`view = \"real\"`).")
    });
    let greeting = connection.greeting.map(greeted);
    let sentences = std::iter::once(what(connection)).chain(how).chain(present).chain(greeting).collect();
    Why { flow: connection.flow, state: connection.state, survives, sentences, advice }
}

/// What its other end has said of itself as it was opened.
fn greeted(greeting: Greeting) -> String {
    let nat = match (greeting.near_translated, greeting.far_translated) {
        (false, false) => "no NAT is in between",
        (true, false) => "a NAT is before this host",
        (false, true) => "a NAT is before the other end",
        (true, true) => "a NAT is before each of the two",
    };
    format!("In its handshake the other end said that it runs Whimbrel, and {nat}.")
}

/// What it is.
fn what(connection: &Connection) -> String {
    let flow = match connection.state {
        ConnectionState::Server => connection.flow.called(),
        _ => connection.flow.to_string(),
    };
    let of = connection.process.as_ref().map(|of| format!(" of {} (process {})", of.name, of.pid));
    let kind = match (connection.state, connection.passed_on) {
        (ConnectionState::Server, _) => "a socket that waits for clients",
        (_, true) => "a connection that this host passes on for another",
        _ if connection.unconnected => "a flow of an unconnected socket",
        _ => "a connection",
    };
    let with = connection.peer.as_ref().map(|peer| format!(", with {peer}"));
    format!("{flow} is {kind}{}{}.", of.unwrap_or_default(), with.unwrap_or_default())
}

type Said = (Vec<String>, Option<bool>, Option<String>);

/// How it stands, whether it would survive a move, and what can be done.
fn stands(connection: &Connection, peer: Option<&Peer>) -> Said {
    let reason = connection.reason.as_deref().unwrap_or("nothing more is known of it");
    let said = |text: &str| vec![text.to_owned()];
    match connection.state {
        ConnectionState::Server => (
            said(match connection.flow.transport {
                Transport::Udp => {
                    "It is no flow itself: each remote that it talks with is listed by itself, and survives or not."
                }
                _ => {
                    "It is no connection itself: those that it has accepted are listed by themselves, and survive or \
                     not."
                }
            }),
            None,
            Some("`whimbrel move` gives it to another host by this name.".to_owned()),
        ),
        ConnectionState::Native => {
            let mut how = said("Both ends know it, and its packets go as they would without Whimbrel.");
            let (would, survives, advice) = lasts(peer);
            how.push(would);
            (how, survives, advice)
        }
        ConnectionState::Moved => {
            let carrier = match connection.carrier {
                Some(Carrier::Tunnel) if connection.by_tcp => {
                    "over TCP, through the tunnel, since UDP gets no answer: slower"
                }
                Some(Carrier::Tunnel) => "in UDP, through the tunnel",
                _ => "with the addresses in its packets replaced",
            };
            let nat = if connection.translated == Some(true) { ", by way of a NAT" } else { "" };
            let mut how = match &connection.network {
                Some(network) if connection.second_network.is_some() => vec![format!(
                    "Each of its packets goes {}, since the network is in doubt by which it goes and an end wants that \
                     (`duplicate` in a `[[prefer]]`): {carrier}{nat}. What comes first counts.",
                    match connection.second_network.as_deref() {
                        Some(second) if second != network => format!("by {network} and by {second}"),
                        _ => format!("by {network} to two networks of the peer's"),
                    }
                )],
                Some(network) => vec![format!(
                    "It goes by {network}, apart from the others with this peer, as an end wants it (`[[prefer]]`): \
                     {carrier}{nat}."
                )],
                None => vec![format!("An end has moved since it was opened, and it is carried {carrier}{nat}.")],
            };
            if connection.network.is_none() {
                how.extend(goes(connection, peer));
            }
            let (would, survives, advice) = lasts(peer);
            how.push(would);
            (how, survives, advice)
        }
        ConnectionState::NotConfirmed if connection.carrier.is_none() => (
            vec![
                format!(
                    "Its packets go as they would without Whimbrel, but nothing shows that it would survive: {reason}."
                ),
                "Were a host to move now, it would wait until the peer answers.".to_owned(),
            ],
            None,
            Some("See there that the daemon runs and lets UDP in; `whimbrel ping` asks it again.".to_owned()),
        ),
        ConnectionState::NotConfirmed => (
            vec![
                format!(
                    "It is carried to where the ends are taken to be, but nothing shows that it arrives: {reason}."
                ),
                "It goes on once the peer answers; whether that comes to be is not known.".to_owned(),
            ],
            None,
            Some(
                "See whether this network lets UDP to the control port out and its answers in: `whimbrel ping` the \
                 peer, and `whimbrel events`."
                    .to_owned(),
            ),
        ),
        ConnectionState::Held => {
            let advice = match reason {
                _ if reason.contains("here and by the peer") => {
                    "`whimbrel resume` at both hosts has it go on: each has it wait."
                }
                _ if reason.contains("suspended by the peer") => "`whimbrel resume` at the other host has it go on.",
                _ if reason.contains("suspended") => "`whimbrel resume` has it go on.",
                _ if reason.contains("no network") => {
                    "An interface has to be up, with an address and a route to the peer (`ip address`, `ip route`)."
                }
                _ => "Nothing: it goes on by itself when the peer is there again.",
            };
            let how = vec![
                format!("Both ends know it, and nothing is sent for it now: {reason}."),
                "It survives, as long as it is to wait for.".to_owned(),
            ];
            (how, Some(true), Some(advice.to_owned()))
        }
        ConnectionState::Pending => (
            said(
                "It is not known yet whether the other host runs Whimbrel, or the two are just agreeing on it: until \
                 then a move of this host would end it.",
            ),
            Some(false),
            Some("Nothing: ask again in a few seconds.".to_owned()),
        ),
        ConnectionState::Lost => (
            said(&format!("A move has ended it, whether or not its program has noticed: {reason}.")),
            Some(false),
            Some("Its program has to open another.".to_owned()),
        ),
        ConnectionState::Unprotected => (
            said(&format!("A move of this host would end it: {reason}.")),
            Some(false),
            unprotected(connection, reason),
        ),
    }
}

/// Between which endpoints its packets go now, where that is known.
fn goes(connection: &Connection, peer: Option<&Peer>) -> Option<String> {
    match (connection.carrier, &connection.wire, peer) {
        (Some(Carrier::Rewrite), Some(wire), _) => Some(format!("Its packets go as {wire} now.")),
        (Some(Carrier::Tunnel), _, Some(peer)) => Some(format!("The tunnel leads to {} now.", peer.address)),
        _ => None,
    }
}

/// Whether what both ends know would survive a move now.
fn lasts(peer: Option<&Peer>) -> Lasts {
    match peer {
        Some(Peer { session: None, .. }) => (
            "There is no session with the peer at the moment, without which it would not survive a move.".to_owned(),
            None,
            Some("See there that the daemon runs and lets UDP in (`whimbrel doctor`).".to_owned()),
        ),
        Some(Peer { unanswered_ms: Some(_), .. }) => (
            "The peer does not answer at the moment, without which it would not survive a move.".to_owned(),
            None,
            Some("`whimbrel ping` asks it again; see there that the daemon runs.".to_owned()),
        ),
        _ => ("It would survive a move of either host.".to_owned(), Some(true), None),
    }
}

type Lasts = (String, Option<bool>, Option<String>);

/// What can be done for one that is not protected.
fn unprotected(connection: &Connection, reason: &str) -> Option<String> {
    let remote = connection.flow.remote.ip();
    let advice = match reason {
        _ if reason.starts_with("asked, silent") => format!(
            "If {remote} is one of your hosts: run `whimbrel up` there and let UDP to the control port in (`whimbrel \
             doctor` there); then `whimbrel ping {remote}` asks it again."
        ),
        _ if reason.starts_with("policy at line") => {
            "Change that line of the configuration, and reload it (`systemctl reload whimbrel`).".to_owned()
        }
        _ if reason.starts_with("the other host has forgotten it") => {
            format!("Run `whimbrel up` at {remote}: the next connection between the two has this one protected again.")
        }
        _ if reason.starts_with("the other end opened it") => {
            format!("Whoever opens a connection asks for it: run Whimbrel at {remote}.")
        }
        _ if reason.starts_with("`ask` or `trust`") => {
            "Let `ask` in the configuration permit that address, or name its key where `trust` is `pinned`.".to_owned()
        }
        _ => return None,
    };
    Some(advice)
}

/// For people.
pub(crate) fn sentences(all: &[Why]) -> String {
    let width = crate::table::width();
    let one = |why: &Why| {
        let advice = why.advice.iter().map(|advice| format!("What to do: {advice}"));
        let lines = why.sentences.iter().cloned().chain(advice);
        lines.map(|line| crate::table::wrap(&line, width, 0) + "\n").collect::<String>()
    };
    all.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{Flow, PeerName, Process};

    fn connection(state: ConnectionState, reason: Option<&str>) -> Connection {
        let (local, remote) = ("192.0.2.10:51514".parse().unwrap(), "203.0.113.5:443".parse().unwrap());
        Connection {
            reason: reason.map(str::to_owned),
            process: Some(Process { pid: 812, name: "curl".into() }),
            ..Connection::bare(Flow { transport: Transport::Tcp, local, remote }, state)
        }
    }

    #[test]
    fn what_the_other_end_said_of_itself_is_told() {
        for (ends, says) in [
            ((false, false), "no NAT is in between"),
            ((true, false), "before this host"),
            ((false, true), "before the other end"),
            ((true, true), "before each of the two"),
        ] {
            let greeting = Some(Greeting { near_translated: ends.0, far_translated: ends.1 });
            let said = why(&Connection { greeting, ..connection(ConnectionState::Pending, None) }, &[]);
            assert!(said.sentences.iter().any(|sentence| sentence.contains(says)), "{said:?}");
        }
        let said = why(&connection(ConnectionState::Pending, None), &[]);
        assert!(!said.sentences.iter().any(|sentence| sentence.contains("handshake")), "{said:?}");
    }

    #[test]
    fn each_state_says_whether_it_survives_and_what_to_do() {
        use ConnectionState as S;
        for (state, reason, survives, says, advises) in [
            (S::Native, None, Some(true), "would survive a move", None),
            (S::Moved, None, Some(true), "addresses in its packets replaced", None),
            (
                S::NotConfirmed,
                Some("the peer does not answer"),
                None,
                "nothing shows that it arrives",
                Some("control port"),
            ),
            (S::Held, Some("suspended by hand"), Some(true), "suspended by hand", Some("`whimbrel resume` has")),
            (S::Held, Some("suspended by the peer"), Some(true), "by the peer", Some("at the other host")),
            (
                S::Held,
                Some("suspended by hand, here and by the peer"),
                Some(true),
                "here and by the peer",
                Some("at both hosts"),
            ),
            (S::Held, Some("the peer is not heard"), Some(true), "is not heard", Some("by itself")),
            (S::Pending, None, Some(false), "not known yet", Some("a few seconds")),
            (
                S::Unprotected,
                Some("asked, silent until noon"),
                Some(false),
                "silent",
                Some("whimbrel ping 203.0.113.5"),
            ),
            (S::Unprotected, Some("policy at line 3"), Some(false), "line 3", Some("configuration")),
            (
                S::Unprotected,
                Some("the other host has forgotten it: `whimbrel clean` was run there"),
                Some(false),
                "forgotten it",
                Some("`whimbrel up` at 203.0.113.5"),
            ),
            (S::Unprotected, Some("SCTP is not moved"), Some(false), "SCTP", None),
            (S::Lost, Some("its address is gone"), Some(false), "has ended it", Some("open another")),
        ] {
            let carrier = (state == S::NotConfirmed).then_some(Carrier::Tunnel);
            let said = why(&Connection { carrier, ..connection(state, reason) }, &[]);
            let text = sentences(std::slice::from_ref(&said)).replace('\n', " ");
            assert_eq!(said.survives, survives, "{text}");
            assert!(text.starts_with("tcp 192.0.2.10:51514 -> 203.0.113.5:443 is a connection of curl (process 812)"));
            assert!(text.contains(says), "{text}");
            assert!(advises.is_none_or(|advises| text.contains(advises)), "{text}");
            assert_eq!(said.advice.is_some(), advises.is_some(), "{text}");
        }
        let native = why(&connection(S::NotConfirmed, Some("the peer does not answer")), &[]);
        assert!(native.sentences[1].contains("as they would without Whimbrel") && native.survives.is_none());
    }

    #[test]
    fn a_flow_of_an_unconnected_socket_is_called_one() {
        let one = connection(ConnectionState::Native, None);
        let of_socket = Connection { unconnected: true, ..one.clone() };
        let [one, of_socket] = [one, of_socket].map(|one| why(&one, &[]).sentences.swap_remove(0));
        assert!(one.contains(" is a connection of ") && of_socket.contains(" is a flow of an unconnected socket of "));
    }

    #[test]
    fn a_server_of_datagrams_accepts_nothing() {
        let tcp = connection(ConnectionState::Server, None);
        let mut udp = tcp.clone();
        udp.flow.transport = Transport::Udp;
        let [tcp, udp] = [tcp, udp].map(|one| why(&one, &[]).sentences.swap_remove(1));
        assert!(tcp.contains("accepted") && !udp.contains("accepted") && udp.contains("each remote"), "{tcp} {udp}");
    }

    fn peer() -> Peer {
        serde_json::from_value(serde_json::json!({
            "id": 3, "key": "key", "address": "203.0.113.5:2031", "trust": "tofu", "remembered": [], "session": null,
            "sequence": {"sent": 0, "accepted": 0}, "places": {"local": 0, "peer": 0}, "locators": [], "carrier": null,
            "flows": {"introduced": 1, "moved": 0}, "away": null
        }))
        .unwrap()
    }

    #[test]
    fn what_has_moved_says_where_it_goes() {
        let named = PeerName { id: 3, key: "key".into(), name: None };
        let moved = Connection { peer: Some(named), ..connection(ConnectionState::Moved, None) };
        let (local, remote) = ("192.0.2.77:28042".parse().unwrap(), "203.0.113.5:2731".parse().unwrap());
        let wire = Some(Flow { transport: Transport::Tcp, local, remote });
        let rewritten = Connection { wire, carrier: Some(Carrier::Rewrite), ..moved.clone() };
        let tunnelled = Connection { carrier: Some(Carrier::Tunnel), ..moved };
        let [rewritten, tunnelled] =
            [rewritten, tunnelled].map(|one| sentences(&[why(&one, &[peer()])]).replace('\n', " "));
        assert!(rewritten.contains("go as tcp 192.0.2.77:28042 -> 203.0.113.5:2731 now"), "{rewritten}");
        assert!(tunnelled.contains("The tunnel leads to 203.0.113.5:2031 now"), "{tunnelled}");
    }

    #[test]
    fn without_a_session_nothing_is_promised() {
        let mut native = connection(ConnectionState::Native, None);
        native.peer = Some(PeerName { id: 3, key: "key".into(), name: Some("desk".into()) });
        let said = why(&native, &[peer()]);
        assert!(said.survives.is_none() && said.sentences[0].ends_with(", with desk."), "{said:?}");
    }

    #[test]
    fn they_are_named_by_either_end_or_their_process() {
        let one = connection(ConnectionState::Native, None);
        for name in ["192.0.2.10:51514", "203.0.113.5:443", "203.0.113.5", "pid:812"] {
            assert!(is_named(&one, name), "{name}");
        }
        let others = ["192.0.2.10:443", "203.0.113.6", "203.0.113.6:443", "pid:81", "curl"];
        assert!(!others.iter().any(|name| is_named(&one, name)));
        // And by where the peer is now.
        let (local, remote) = (one.flow.local, "203.0.113.6:443".parse().unwrap());
        let moved = Connection { present: Some(Flow { transport: Transport::Tcp, local, remote }), ..one };
        for name in ["203.0.113.5:443", "203.0.113.6", "203.0.113.6:443"] {
            assert!(is_named(&moved, name), "{name}");
        }
        let said = sentences(&[why(&moved, &[])]).replace('\n', " ");
        assert!(said.contains("where tcp 192.0.2.10:51514 -> 203.0.113.6:443 says now"), "{said}");
    }
}
