//! What is told of each event of the node's.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{duration, measured};
use whimbrel_protocol::{Carrier, Doubt, Event, LinkDoubt, LinkFault, NeighbourProxyStatus, PeerId};

use super::{Causer, reports};
use crate::shown::is_heard;

reports! {
    /// What people are told of an event of the node's. Of what moves the loop knows more, and of a community its role:
    /// they tell it themselves.
    fn report(Event, except Event::Community(_) | Event::Move(_));

    // A zero duration: it asked, in one message.
    Event::PeerReached { peer, key, remote, took: Duration::ZERO }, by Causer::Strangers =>
        PeerReached { peer, key, remote, took_ms: Duration::ZERO }
        "peer {peer} at {remote} runs Whimbrel too: it asked for a session, which is up";
    Event::PeerReached { peer, key, remote, took }, by Causer::Strangers =>
        PeerReached { peer, key, remote, took_ms: took }
        "peer {peer} at {remote} runs Whimbrel too: a session is up after {}", measured(*took);
    // A crawler asks a score of hosts in a second, all day long.
    Event::NobodyThere { address, again_in }, by Causer::Strangers =>
        NobodyThere { address, again_in_ms: again_in }
        "{address} did not answer: it runs no Whimbrel, or UDP is dropped on the way, or its `trust` is another; \
         asked again in {}", measured(*again_in);
    Event::KeyMismatch { address, expected, found: None } =>
        KeyMismatch { address, expected, found: None::<PublicKey> }
        "{address} does not have the key {expected} that is known for it: not trusted";
    Event::KeyMismatch { address, expected, found: Some(found) } =>
        KeyMismatch { address, expected, found }
        "{address} answered with the key {found}, but {expected} is known for it: not trusted. Where the host was set \
         up anew, `whimbrel peers forget {address}` drops the old key";
    Event::FlowIntroduced { flow, peer, translated } =>
        FlowIntroduced { flow, peer, translated }
        "{flow} will outlive a move: both ends agree on it{}", if *translated { ", through a NAT" } else { "" };
    Event::IntroductionFailed { flow, reason } =>
        IntroductionFailed { flow, reason }
        "{flow} will not outlive a move: {reason}";
    Event::FlowGone { flow, peer, goes_on: false } =>
        FlowGone { flow, peer, goes_on: false }
        "{flow} has ended";
    Event::FlowGone { flow, peer, goes_on: true } =>
        FlowGone { flow, peer, goes_on: true }
        "{flow} goes on, and will not outlive a move any more: what the two hosts had agreed on is forgotten";
    Event::Paused { peer, wait: true, by_peer, flows: named, waiting }, by by_peer.then_some(Causer::Peer(*peer)) =>
        FlowsWait { peer, by: by(*by_peer), flows: named.len(), waiting, named }
        "{} of peer {peer} {}: {} asked for that", connections(named.len()), verb(named.len(), "wait"), who(*by_peer);
    Event::Paused { peer, wait: false, by_peer, flows: named, waiting }, by by_peer.then_some(Causer::Peer(*peer)) =>
        FlowsGoOn { peer, by: by(*by_peer), flows: named.len(), waiting, named }
        "{} of peer {peer} {} on: {} asked for that", connections(named.len()), verb(named.len(), "go"), who(*by_peer);
    Event::Moving { peer, from, to: to @ None, flows, kept } =>
        Moving { peer, from, to, flows, kept }
        "no way to peer {peer} any more: {} on hold", connections(*flows);
    Event::Moving { peer, from: from @ None, to: Some(to), flows, kept } =>
        Moving { peer, from, to, flows, kept }
        "there is a way to peer {peer} from {to}: {} to move", connections(*flows);
    Event::Moving { peer, from: Some(from), to: Some(to), flows, kept } if from == to =>
        Moving { peer, from, to, flows, kept }
        "announcing {to} once more to peer {peer}: {}", connections(*flows);
    Event::Moving { peer, from: Some(from), to: Some(to), flows, kept } =>
        Moving { peer, from, to, flows, kept }
        "moving from {from} to {to} towards peer {peer}: {}", connections(*flows);
    Event::Moved { peer, to, translated, masked, took, flows, carried } =>
        Moved { peer, to, translated, masked, took_ms: took, flows, carried }
        "moved to {to}{}{} towards peer {peer} in {}: {}",
        behind_a_nat(*translated), by_a_mask(*masked), measured(*took), connections(*flows);
    Event::NotMoved { peer, at: Some(at), flows, carried } =>
        NotMoved { peer, at, flows, carried }
        "peer {peer} does not answer, but this network is the old one: {} as before", connections(*flows);
    Event::NotMoved { peer, at: None, flows, carried } =>
        NotMoved { peer, flows, carried }
        "peer {peer} does not answer, but this network is the old one: {} as before", connections(*flows);
    Event::PeerAway { peer, announced, held: false, flows }, by Causer::Peer(*peer) =>
        PeerAway { peer, announced, held: false, flows }
        "peer {peer} does not answer any more: {} {} not confirmed until it does", connections(*flows), are(*flows);
    Event::PeerAway { peer, announced, held: true, flows }, by Causer::Peer(*peer) =>
        PeerAway { peer, announced, held: true, flows }
        "peer {peer} {}: {} {} for it", if *announced { "goes away" } else { "is not heard any more" },
        connections(*flows), verb(*flows, "wait");
    Event::PeerRestarted { peer, flows } =>
        PeerRestarted { peer, flows }
        "the host of peer {peer} was started anew: {} ended with it", connections(*flows);
    Event::PeerCleaned { peer, flows }, by Causer::Peer(*peer) =>
        PeerCleaned { peer, flows }
        "`whimbrel clean` was run on the host of peer {peer}: {flows} moved connection{} ended",
        if *flows == 1 { "" } else { "s" };
    Event::PeerBack { peer, answers: false, flows, carried }, by Causer::Peer(*peer) =>
        PeerBack { peer, flows, carried }
        "peer {peer} is heard again: {} {} as without a move", connections(*flows), verb(*flows, "go");
    Event::PeerBack { peer, answers: true, flows, carried }, by Causer::Peer(*peer) =>
        PeerBack { peer, flows, carried }
        "peer {peer} answers again: {} {} on", connections(*flows), verb(*flows, "go");
    Event::Suspended { flows } =>
        Suspended { flows }
        "this host goes away: {} {} until it is back", connections(*flows), verb(*flows, "wait");
    Event::Resumed =>
        Resumed {}
        "this host is back";
    Event::PeerFound { peer, remote, rendezvous: None } =>
        PeerFound { peer, remote, rendezvous: None::<PeerId> }
        "peer {peer} was found at {remote}, as its name says";
    Event::PeerFound { peer, remote, rendezvous: Some(rendezvous) }, by Causer::Strangers =>
        PeerFound { peer, remote, rendezvous }
        "peer {peer} was found at {remote}, as the rendezvous (peer {rendezvous}) said";
    Event::StandsIn { peer, address }, by Causer::Strangers =>
        StandsIn { peer, address }
        "peer {peer} has left {address}, and what is said to it there is passed on to it";
    Event::StoodAside { peer, address, reason }, by Causer::Strangers =>
        StoodAside { peer, address, reason: not_stood_in(*reason) }
        "{address}, which peer {peer} has left, is not stood in for: {}", not_stood_in(*reason);
    Event::StoodInFor { by: peer, address, status: NeighbourProxyStatus::Accepted } =>
        StoodInFor { peer, address, reason: None::<bool> }
        "peer {peer} passes on what is said to this host at {address}, which it has left";
    Event::StoodInFor { by: peer, address, status } =>
        NotStoodInFor { peer, address, reason: not_stood_in(*status) }
        "peer {peer} does not stand in for this host at {address}: {}", not_stood_in(*status);
    Event::NetworkSilent { peer, from, to, silent, flows } =>
        NetworkSilent { peer, from, to, silent_ms: silent, flows }
        "nothing of peer {peer} has come by the network of {from} for {}, and it answers by that of {to}: {} to move",
        measured(*silent), connections(*flows);
    Event::NetworkBack { peer, from, to, flows } =>
        NetworkBack { peer, from, to, flows }
        "peer {peer} answers again by the network of {to}: {} to go back there from {from}", connections(*flows);
    Event::NetworkPreferred { peer, from, to, line, flows } =>
        NetworkPreferred { peer, from, to, line, flows }
        "line {line} of the configuration selects the network of {to} for peer {peer}: {} to go there from {from}",
        connections(*flows);
    Event::FlowsPlaced { peer, from, to, line, flows } =>
        ConnectionsPlaced { peer, from, to, line, flows }
        "line {line} of the configuration selects the network of {to} for {} with peer {peer}: to go there from that \
         of {from}", connections(*flows);
    Event::FlowsDuplicated { peer, from, to, line, why, flows } =>
        ConnectionsDuplicated { peer, from, to, line, because: of_link(*why).0, flows }
        "the network of {from} is in doubt, since {}: line {line} of the configuration has {} with peer {peer} go by \
         that of {to} as well", of_link(*why).1, connections(*flows);
    Event::FlowsAlone { peer, from, line, lasted, flows } =>
        ConnectionsAlone { peer, from, line, lasted_ms: lasted, flows }
        "{} with peer {peer} that line {line} of the configuration means: to go by one network again after {}",
        connections(*flows), measured(*lasted);
    Event::FlowsNotPlaced { peer, to, line, flows } =>
        ConnectionsNotPlaced { peer, to, line, flows }
        "{} with peer {peer} that line {line} of the configuration means cannot go by the network of {to} as well: \
         there is room for 128 on each of four networks, and they go with the others", connections(*flows);
    Event::NetworkUnfit { peer, from, to, fault: Some(LinkFault::Leaving), flows } =>
        NetworkUnfit { peer, from, to, because: "leaving", flows }
        "the network of {from} is about to be taken down: {} to go from it to that of {to}, for peer {peer}",
        connections(*flows);
    Event::NetworkUnfit { peer, from, to, fault: Some(LinkFault::Captive), flows } =>
        NetworkUnfit { peer, from, to, because: "captive", flows }
        "behind the network of {from} is a login page, or no Internet: {} to go from it to that of {to}, for peer {peer}",
        connections(*flows);
    Event::NetworkUnfit { peer, from, to, fault: None, flows } =>
        NetworkFit { peer, from, to, flows }
        "the routes lead to the network of {to} for peer {peer}: {} to go there from {from}", connections(*flows);
    Event::TakenBack { peer, from, flows } =>
        TakenBack { peer, from, flows }
        "no answer of peer {peer} arrives at {from}: {} as before", connections(*flows);
    Event::Transport { peer, remote, by_tcp: true, flows } =>
        Transport { peer, remote, by_tcp: true, flows }
        "UDP gets no answer from peer {peer} at {remote}: {} {} over TCP, which is slower", connections(*flows),
        verb(*flows, "go");
    Event::Transport { peer, remote, by_tcp: false, flows } =>
        Transport { peer, remote, by_tcp: false, flows }
        "UDP is answered by peer {peer} at {remote} again: {} {} by that, and over TCP no more", connections(*flows),
        verb(*flows, "go");
    Event::PeerMoved { peer, to, translated, flows, carried },
        by if *flows == 0 { Causer::Strangers } else { Causer::Peer(*peer) } =>
        PeerMoved { peer, to, translated, flows, carried }
        "peer {peer} moved to {to}{}: {}", behind_a_nat(*translated), connections(*flows);
    Event::NotConfirmed { peer, remote, from, doubt, unanswered, heard, behind_nat, flows } =>
        NotConfirmed {
            peer, remote, from, because: because(*doubt), unanswered_ms: unanswered, heard_ms: heard, flows,
            advice: advice(*doubt, *behind_nat, is_heard(*heard, *unanswered), remote.port())
        }
        "no answer from peer {peer} at {remote}, last heard {} ago: {} {} not confirmed. {}", duration(*heard),
        connections(*flows), are(*flows), advice(*doubt, *behind_nat, is_heard(*heard, *unanswered), remote.port());
    Event::PathConfirmed { peer, remote, round_trip, carried }, by Causer::Peer(*peer) =>
        PathConfirmed { peer, remote, round_trip_ms: round_trip, carried }
        "the path to peer {peer} at {remote} is confirmed, round trip {}", measured(*round_trip);
    Event::CarrierChanged { peer, carrier }, by Causer::Peer(*peer) =>
        CarrierChanged { peer, carrier }
        "moved connections of peer {peer} {} from now on", carried_by(*carrier);
    Event::Claimed { flow, peer, given_up }, by Causer::Strangers =>
        AddressConflict { flow, peer, outcome: if *given_up { "aborted" } else { "refused" } }
        "whoever is at {} now, which peer {peer} has left, opens a connection under the very names of {flow}: {}",
        flow.remote.ip(),
        if *given_up { "this one is aborted for it" } else { "it is refused as long as this one is open" };
    Event::Refused { peer, reason }, by Causer::Strangers =>
        Refused { peer, reason }
        "refused what peer {peer} asked for: {reason}";
    Event::HandshakeRefused { remote, reason }, by Causer::Strangers =>
        HandshakeRefused { remote, reason }
        "no session with {remote}: {reason}. `trust` and `psk_file` have to be the same at both ends";
    Event::PeerSilent { peer, remote, flows } =>
        PeerSilent { peer, remote, flows }
        "peer {peer} at {remote} does not answer: {} would not survive a move before it does. Whether it runs, lets UDP \
         in and has the same `trust` is to be seen there (`whimbrel doctor`, `whimbrel events`)", connections(*flows);
    Event::OpFailed { what, error } =>
        OpFailed { what, error }
        "{what} failed: {error}";
}

/// Why a network is in doubt: a word for programs, and what people are told.
fn of_link(doubt: LinkDoubt) -> (&'static str, &'static str) {
    match doubt {
        LinkDoubt::Overdue => ("overdue", "answers are overdue"),
        LinkDoubt::Link => ("link", "the link itself doubts that anything passes"),
        LinkDoubt::Fault(LinkFault::Leaving) => ("leaving", "it is about to be taken down"),
        LinkDoubt::Fault(LinkFault::Captive) => ("captive", "behind it is a login page, or no Internet"),
    }
}

fn because(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::Moved => "moved",
        Doubt::PeerMoved => "peer-moved",
        Doubt::Silent => "silent",
    }
}

/// What to look for where a peer does not answer. `behind_nat`: it is. `is_heard`: since it was asked.
fn advice(doubt: Doubt, behind_nat: bool, is_heard: bool, port: u16) -> String {
    match doubt {
        Doubt::Moved if behind_nat => format!(
            "Does this network let UDP {port} out? The peer is behind a NAT, which may let nothing in from where this \
             host is now: a rendezvous that both know helps there"
        ),
        Doubt::Moved => format!(
            "Does this network let UDP {port} out? If the peer has moved as well, somebody has to tell where it is: a \
             third host of a community, a rendezvous, or a name server (`name` under `[[peers]]`)"
        ),
        Doubt::PeerMoved => "Does the network that it has moved to let its UDP out, and answers in?".to_owned(),
        Doubt::Silent if is_heard => {
            format!(
                "It is heard, and does not hear this host: does a network on the way drop UDP {port} that goes to it?"
            )
        }
        Doubt::Silent => format!(
            "Does it run, has it moved to where it cannot be heard, or does a network on the way drop UDP {port}?"
        ),
    }
}

/// Why nobody stands in for an address.
fn not_stood_in(status: NeighbourProxyStatus) -> &'static str {
    match status {
        NeighbourProxyStatus::Accepted => "it is",
        NeighbourProxyStatus::Unproven => "this host was not met there",
        NeighbourProxyStatus::OffLink => "it is on none of its links",
        NeighbourProxyStatus::Taken => "somebody has it",
        NeighbourProxyStatus::Refused => "`stand_in` is not set there, or there are too many",
        NeighbourProxyStatus::Other(_) => "for a reason that this version does not know",
    }
}

fn carried_by(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Hold => "are held",
        Carrier::Tunnel => "go through the tunnel",
        Carrier::FollowRewrite => "are answered as they come, rewritten or through the tunnel,",
        Carrier::Rewrite => "are rewritten",
    }
}

fn by(peer: bool) -> &'static str {
    if peer { "peer" } else { "this-host" }
}

fn who(peer: bool) -> &'static str {
    if peer { "the peer" } else { "a command on this host" }
}

fn behind_a_nat(translated: bool) -> &'static str {
    if translated { " (behind a NAT)" } else { "" }
}

fn by_a_mask(masked: bool) -> &'static str {
    if masked { " after a masked update" } else { "" }
}

fn connections(count: usize) -> String {
    match count {
        1 => "1 connection".into(),
        _ => format!("{count} connections"),
    }
}

/// What so many are.
fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// What so many do.
fn verb(count: usize, verb: &str) -> String {
    match (count, verb) {
        (1, "go") => "goes".into(),
        (1, verb) => format!("{verb}s"),
        (_, verb) => verb.into(),
    }
}

#[cfg(test)]
mod tests {
    mod samples;

    use serde_json::Value;
    use whimbrel_protocol::{Carried, PeerId};
    use whimbrel_wire::FlowTuple;

    use super::super::report::NAMED;
    use super::super::{Kind, Report};
    use super::*;

    fn of(event: &Event) -> Report {
        report(event).expect("it is told")
    }

    /// What is told of each event stays as it was, to the byte: other programs read it.
    #[test]
    fn what_is_told_of_each_event_stays_as_it_was() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/events.jsonl");
        let text: String = samples::all()
            .iter()
            .filter_map(crate::event_loop::tellers::report)
            .map(|told| {
                let fields = Value::Object(told.fields).to_string();
                format!("[\"{}\",{},{fields}]\n", told.kind.word(), Value::from(told.sentence))
            })
            .collect();
        if std::env::var_os("WHIMBREL_WRITE_DATA").is_some() {
            std::fs::write(&file, &text).expect("write");
        }
        let then = std::fs::read_to_string(&file).expect("the file");
        then.lines().zip(text.lines()).for_each(|(then, now)| assert_eq!(now, then));
        assert_eq!(text.lines().count(), then.lines().count());
    }

    #[test]
    fn a_move_to_the_same_address_is_not_called_one() {
        let here = "192.0.2.9".parse().ok();
        let told = |to| of(&Event::Moving { peer: PeerId(3), from: here, to, flows: 1, kept: true }).sentence;
        assert_eq!(told(here), "announcing 192.0.2.9 once more to peer #3: 1 connection");
        assert_eq!(
            told("192.0.2.10".parse().ok()),
            "moving from 192.0.2.9 to 192.0.2.10 towards peer #3: 1 connection"
        );
    }

    #[test]
    fn sentences_are_for_people_and_fields_for_programs() {
        let told = of(&Event::Moved {
            peer: PeerId(3),
            to: "192.0.2.9".parse().expect("address"),
            translated: true,
            masked: false,
            took: Duration::from_micros(41_250),
            flows: 1,
            carried: Carried { flows: 1, carrier: Carrier::Tunnel },
        });
        assert_eq!(told.sentence, "moved to 192.0.2.9 (behind a NAT) towards peer #3 in 41 ms: 1 connection");
        assert_eq!(told.fields["took_ms"], 41.25);
        assert_eq!(told.fields["peer"], 3);
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&1.into(), &"tunnel".into()));
    }

    #[test]
    fn what_is_at_home_is_carried_by_nothing() {
        let carried = Carried { flows: 0, carrier: Carrier::Tunnel };
        let told = of(&Event::PeerBack { peer: PeerId(3), answers: true, flows: 2, carried });
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&0.into(), &Value::Null));
    }

    #[test]
    fn connections_that_wait_are_named_up_to_a_number() {
        let flow = |port| FlowTuple {
            transport: whimbrel_wire::Transport::Tcp,
            local: ([192, 0, 2, 1], port).into(),
            remote: ([203, 0, 113, 5], 22).into(),
        };
        let flows = (1..=100).map(flow).collect();
        let told = of(&Event::Paused { peer: PeerId(3), wait: true, by_peer: false, flows, waiting: 101 });
        assert_eq!((told.kind, &told.fields["by"]), (Kind::FlowsWait, &"this-host".into()));
        assert_eq!(told.sentence, "100 connections of peer #3 wait: a command on this host asked for that");
        assert_eq!((&told.fields["flows"], &told.fields["waiting"]), (&100.into(), &101.into()));
        assert_eq!(told.fields["named"].as_array().map(Vec::len), Some(NAMED));
        assert_eq!(told.fields["named"][0], "tcp 192.0.2.1:1 -> 203.0.113.5:22");
        let one = Event::Paused { peer: PeerId(3), wait: false, by_peer: true, flows: vec![flow(1)], waiting: 0 };
        assert_eq!(of(&one).sentence, "1 connection of peer #3 goes on: the peer asked for that");
    }
}
