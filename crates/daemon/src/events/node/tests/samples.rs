//! Each event of the node's, so that what is told of it can be compared with what was.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    Carried, Carrier, CommunityEvent, Doubt, Event, JoinFailure, LinkDoubt, LinkFault, NeighbourProxyStatus, PeerId,
};
use whimbrel_wire::{FlowTuple, Transport};

fn flow(port: u16) -> FlowTuple {
    let remote = ([203, 0, 113, 5], 22).into();
    FlowTuple { transport: Transport::Tcp, local: ([192, 0, 2, 1], port).into(), remote }
}

/// One or more of each.
pub(super) fn all() -> Vec<Event> {
    let (peer, key, other) = (PeerId(3), PublicKey::from([7; 32]), PublicKey::from([8; 32]));
    let (address, to) = ("192.0.2.9".parse().expect("address"), "2001:db8::9".parse().expect("address"));
    let remote = "[2001:db8::7]:2031".parse().expect("endpoint");
    let took = Duration::from_micros(41_250);
    let carried = |flows, carrier| Carried { flows, carrier };
    let not_confirmed = |doubt, behind_nat| Event::NotConfirmed {
        peer,
        remote,
        from: Some(to),
        doubt,
        unanswered: Duration::from_secs(5),
        heard: Duration::from_secs(28),
        behind_nat,
        flows: if behind_nat { 1 } else { 2 },
    };
    let mute = Event::NotConfirmed {
        peer,
        remote,
        from: Some(to),
        doubt: Doubt::Silent,
        unanswered: Duration::from_secs(5),
        heard: Duration::from_millis(300),
        behind_nat: false,
        flows: 2,
    };
    let carriers = [Carrier::Hold, Carrier::Tunnel, Carrier::FollowRewrite, Carrier::Rewrite];
    let statuses = [
        NeighbourProxyStatus::Accepted,
        NeighbourProxyStatus::Unproven,
        NeighbourProxyStatus::OffLink,
        NeighbourProxyStatus::Taken,
        NeighbourProxyStatus::Refused,
        NeighbourProxyStatus::Other(9),
    ];
    let mut all = vec![
        Event::PeerReached { peer, key, remote, took },
        Event::PeerReached { peer, key, remote, took: Duration::ZERO },
        Event::NobodyThere { address, again_in: Duration::from_secs(1) },
        Event::NobodyThere { address, again_in: Duration::from_secs(600) },
        Event::NobodyThere { address, again_in: Duration::from_secs(10_000) },
        Event::KeyMismatch { address, expected: key, found: Some(other) },
        Event::KeyMismatch { address, expected: key, found: None },
        Event::FlowIntroduced { flow: flow(1), peer, translated: true },
        Event::FlowIntroduced { flow: flow(1), peer, translated: false },
        Event::IntroductionFailed { flow: flow(1), reason: "a test" },
        Event::FlowGone { flow: flow(1), peer, goes_on: false },
        Event::FlowGone { flow: flow(1), peer, goes_on: true },
        Event::Moving { peer, from: Some(address), to: None, flows: 2, kept: false },
        Event::Moving { peer, from: None, to: Some(to), flows: 1, kept: true },
        Event::Moving { peer, from: Some(to), to: Some(to), flows: 0, kept: true },
        Event::Moving { peer, from: Some(address), to: Some(to), flows: 3, kept: true },
        Event::Moved {
            peer,
            to,
            translated: true,
            masked: false,
            took,
            flows: 1,
            carried: carried(1, Carrier::Tunnel),
        },
        Event::Moved { peer, to, translated: false, masked: true, took, flows: 2, carried: carried(0, Carrier::Hold) },
        Event::NotMoved { peer, at: Some(address), flows: 2, carried: carried(2, Carrier::Hold) },
        Event::NotMoved { peer, at: None, flows: 1, carried: carried(0, Carrier::Hold) },
        Event::PeerAway { peer, announced: true, held: true, flows: 1 },
        Event::PeerAway { peer, announced: false, held: true, flows: 2 },
        Event::PeerAway { peer, announced: false, held: false, flows: 1 },
        Event::PeerRestarted { peer, flows: 2 },
        Event::PeerCleaned { peer, flows: 1 },
        Event::PeerCleaned { peer, flows: 2 },
        Event::PeerBack { peer, answers: true, flows: 1, carried: carried(1, Carrier::Rewrite) },
        Event::PeerBack { peer, answers: false, flows: 1, carried: carried(0, Carrier::Rewrite) },
        Event::PeerBack { peer, answers: false, flows: 2, carried: carried(0, Carrier::Rewrite) },
        Event::Suspended { flows: 1 },
        Event::Suspended { flows: 2 },
        Event::Resumed,
        Event::NetworkSilent { peer, from: address, to, silent: Duration::from_millis(48), flows: 2 },
        Event::NetworkBack { peer, from: to, to: address, flows: 1 },
        Event::NetworkPreferred { peer, from: address, to, line: 12, flows: 1 },
        Event::FlowsPlaced { peer, from: address, to, line: 12, flows: 2 },
        Event::FlowsDuplicated { peer, from: address, to, line: 12, why: LinkDoubt::Overdue, flows: 2 },
        Event::FlowsDuplicated { peer, from: address, to, line: 12, why: LinkDoubt::Link, flows: 1 },
        Event::FlowsDuplicated {
            peer,
            from: address,
            to,
            line: 12,
            why: LinkDoubt::Fault(LinkFault::Leaving),
            flows: 1,
        },
        Event::FlowsAlone { peer, from: address, line: 12, lasted: Duration::from_millis(7300), flows: 2 },
        Event::FlowsNotPlaced { peer, to, line: 12, flows: 3 },
        Event::NetworkUnfit { peer, from: address, to, fault: Some(LinkFault::Leaving), flows: 1 },
        Event::NetworkUnfit { peer, from: address, to, fault: Some(LinkFault::Captive), flows: 2 },
        Event::NetworkUnfit { peer, from: to, to: address, fault: None, flows: 1 },
        Event::TakenBack { peer, from: address, flows: 1 },
        Event::Transport { peer, remote: address, by_tcp: true, flows: 1 },
        Event::Transport { peer, remote: address, by_tcp: false, flows: 2 },
        Event::PeerMoved { peer, to: remote, translated: true, flows: 1, carried: carried(1, Carrier::FollowRewrite) },
        Event::PeerMoved { peer, to: remote, translated: false, flows: 0, carried: carried(0, Carrier::Tunnel) },
        Event::PathConfirmed { peer, remote, round_trip: took, carried: carried(4, Carrier::Tunnel) },
        Event::PeerFound { peer, remote, rendezvous: Some(PeerId(4)) },
        Event::PeerFound { peer, remote, rendezvous: None },
        not_confirmed(Doubt::Moved, true),
        not_confirmed(Doubt::Moved, false),
        not_confirmed(Doubt::PeerMoved, false),
        not_confirmed(Doubt::Silent, false),
        mute,
        Event::StandsIn { peer, address },
        Event::Claimed { flow: flow(1), peer, given_up: true },
        Event::Claimed { flow: flow(1), peer, given_up: false },
        Event::Refused { peer, reason: "a test" },
        Event::HandshakeRefused { remote, reason: "a test" },
        Event::PeerSilent { peer, remote, flows: 1 },
        Event::OpFailed { what: "a test".to_owned(), error: "no \"room\"".to_owned() },
    ];
    all.extend(carriers.map(|carrier| Event::CarrierChanged { peer, carrier }));
    for (wait, by_peer, count) in [(true, true, 1), (true, false, 20), (false, true, 20), (false, false, 1)] {
        let flows = (1..=count).map(flow).collect();
        all.push(Event::Paused { peer, wait, by_peer, flows, waiting: 21 });
    }
    for status in statuses {
        all.push(Event::StoodAside { peer, address, reason: status });
        all.push(Event::StoodInFor { by: peer, address, status });
    }
    let name = || "living room".to_owned();
    let community = [
        CommunityEvent::Joined { community: [7; 32], by: other },
        CommunityEvent::JoinFailed { number: 7, why: JoinFailure::Silent },
        CommunityEvent::JoinFailed { number: 7, why: JoinFailure::WrongCode },
        CommunityEvent::HostJoined { host: key, name: name(), steward: true },
        CommunityEvent::HostJoined { host: key, name: name(), steward: false },
        CommunityEvent::HostRevoked { host: key, name: name() },
        CommunityEvent::Revoked,
        CommunityEvent::WrongCode { number: 7, host: key, remote },
        CommunityEvent::NameTaken { number: 7, host: key, name: name() },
        CommunityEvent::Granted { number: 7, host: key, flow: flow(1) },
        CommunityEvent::OtherKeyKnown { address, known: key, proven: other },
        CommunityEvent::MayReceive { number: 7, host: key },
    ];
    all.extend(community.map(Event::Community));
    all
}
