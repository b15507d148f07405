//! What happened, for people and programs at this host.

pub(crate) mod community;
pub(crate) mod relocation;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::NeighbourProxyStatus;

use crate::base::link_facts::{LinkDoubt, LinkFault};
use crate::base::op::{Carrier, PeerId};
use community::CommunityEvent;
use relocation::MoveEvent;

/// Something that happened, for `whimbrel events`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A session with a peer is there.
    PeerReached {
        /// Whose.
        peer: PeerId,
        /// Its key.
        key: PublicKey,
        /// Where.
        remote: SocketAddr,
        /// How long the handshake took.
        took: Duration,
    },
    /// Nobody answered at an address: it runs nothing, or something in between drops UDP 2031.
    NobodyThere {
        /// The address.
        address: IpAddr,
        /// When it is asked again.
        again_in: Duration,
    },
    /// Another key than the remembered one answered; the peer is not trusted.
    KeyMismatch {
        /// The address.
        address: IpAddr,
        /// What was remembered or configured.
        expected: PublicKey,
        /// What answered, where it is known.
        found: Option<PublicKey>,
    },
    /// A flow can be moved from now on.
    FlowIntroduced {
        /// The flow.
        flow: FlowTuple,
        /// With whom.
        peer: PeerId,
        /// Whether something on the way translates it.
        translated: bool,
    },
    /// A flow could not be introduced.
    IntroductionFailed {
        /// The flow.
        flow: FlowTuple,
        /// Why.
        reason: &'static str,
    },
    /// A flow ended or was forgotten.
    FlowGone {
        /// The flow.
        flow: FlowTuple,
        /// With whom.
        peer: PeerId,
        /// It was forgotten alone: its socket goes on, and is not protected.
        goes_on: bool,
    },
    /// Single flows wait by request, or go on (P-48).
    Paused {
        /// The peer.
        peer: PeerId,
        /// Whether they wait from now on, or go on.
        wait: bool,
        /// Whether the peer has asked for it, or somebody at this host.
        by_peer: bool,
        /// Those that this is about.
        flows: Vec<FlowTuple>,
        /// Flows of this peer that wait now, all together.
        waiting: usize,
    },
    /// This host's address towards a peer changed, or is gone (`to` = `None`).
    Moving {
        /// The peer.
        peer: PeerId,
        /// Address before.
        from: Option<IpAddr>,
        /// Address now.
        to: Option<IpAddr>,
        /// Flows that move.
        flows: usize,
        /// Whether the path that is being left carries them until the peer has answered (P-38).
        kept: bool,
    },
    /// The peer acknowledged our move.
    Moved {
        /// The peer.
        peer: PeerId,
        /// Our address.
        to: IpAddr,
        /// Whether a NAT is on the way.
        translated: bool,
        /// Whether the peer had answered a masked update before (P-239).
        masked: bool,
        /// Since the move was noticed.
        took: Duration,
        /// Flows that moved.
        flows: usize,
        /// How they go now.
        carried: Carried,
    },
    /// The peer does not answer, but what comes in shows that this host is where its flows are at home: they go on as
    /// if nothing had been noticed.
    NotMoved {
        /// The peer.
        peer: PeerId,
        /// Our address.
        at: Option<IpAddr>,
        /// Flows that go on.
        flows: usize,
        /// How they go now.
        carried: Carried,
    },
    /// A peer went away: it said so, or is not heard any more.
    PeerAway {
        /// The peer.
        peer: PeerId,
        /// Whether it said so.
        announced: bool,
        /// Whether its flows wait for it; else they are sent to where it was, and nothing shows that they arrive.
        held: bool,
        /// Its flows.
        flows: usize,
    },
    /// A peer's host was started anew: its ends of the flows are gone, and so are ours.
    PeerRestarted {
        /// The peer.
        peer: PeerId,
        /// Flows that ended.
        flows: usize,
    },
    /// A peer has removed what led moved flows with it: they are over.
    PeerCleaned {
        /// The peer.
        peer: PeerId,
        /// Flows of TCP whose sockets were here and ended, at least one.
        flows: usize,
    },
    /// A peer that was not heard is there again, where it was.
    PeerBack {
        /// The peer.
        peer: PeerId,
        /// Whether it has answered as well, as it has where flows are carried; else its flows go as themselves again.
        answers: bool,
        /// Flows that go on.
        flows: usize,
        /// How they go now.
        carried: Carried,
    },
    /// This host told its peers that it goes away; flows wait from now on.
    Suspended {
        /// Flows that wait.
        flows: usize,
    },
    /// This host is back.
    Resumed,
    /// Nothing of a peer comes by the network in use any more, and it answers by another: its flows move there.
    NetworkSilent {
        /// The peer.
        peer: PeerId,
        /// Our address there.
        from: IpAddr,
        /// The one that is taken instead.
        to: IpAddr,
        /// For how long nothing came.
        silent: Duration,
        /// Flows that move.
        flows: usize,
    },
    /// The network that was silent answers again, long enough to be come back to.
    NetworkBack {
        /// The peer.
        peer: PeerId,
        /// Our address where the flows were meanwhile.
        from: IpAddr,
        /// The one that they are come back to.
        to: IpAddr,
        /// Flows that move.
        flows: usize,
    },
    /// The user's file selects another network for a peer than the one in use.
    NetworkPreferred {
        /// The peer.
        peer: PeerId,
        /// Our address where the flows were.
        from: IpAddr,
        /// The one that is selected.
        to: IpAddr,
        /// The line of the section that does, from 1.
        line: u32,
        /// Flows that move.
        flows: usize,
    },
    /// The user's file selects another network for single flows than the one that they go by.
    FlowsPlaced {
        /// The peer.
        peer: PeerId,
        /// Our address where they went from.
        from: IpAddr,
        /// The one that is selected.
        to: IpAddr,
        /// The line of the section that means them, from 1.
        line: u32,
        /// How many they are.
        flows: usize,
    },
    /// The network is in doubt that single flows go by, and a section has them go by another one as well.
    FlowsDuplicated {
        /// The peer.
        peer: PeerId,
        /// Our address on the network in doubt.
        from: IpAddr,
        /// On the other one.
        to: IpAddr,
        /// The line of the section that means them, from 1.
        line: u32,
        /// What speaks against the network.
        why: LinkDoubt,
        /// How many they are.
        flows: usize,
    },
    /// The doubt is over that was told of, or its network was left: single flows go by one network again.
    FlowsAlone {
        /// The peer.
        peer: PeerId,
        /// Our address on the network that they are to go by.
        from: IpAddr,
        /// The line of the section that means them, from 1.
        line: u32,
        /// For how long they went by two.
        lasted: Duration,
        /// How many they are.
        flows: usize,
    },
    /// There is no room for more single flows on the network that is selected for them, or for more networks: they go
    /// with the others.
    FlowsNotPlaced {
        /// The peer.
        peer: PeerId,
        /// Our address on the network that is selected.
        to: IpAddr,
        /// The line of the section that means them, from 1.
        line: u32,
        /// How many they are.
        flows: usize,
    },
    /// What is known of the network in use has a peer reached by another one, or no longer so.
    NetworkUnfit {
        /// The peer.
        peer: PeerId,
        /// Our address where the flows were.
        from: IpAddr,
        /// The one that is taken.
        to: IpAddr,
        /// What speaks against the network in use; `None`: nothing speaks against that which the routes lead to.
        fault: Option<LinkFault>,
        /// Flows that move.
        flows: usize,
    },
    /// The peer does not answer a hand-off by hand: its flows stay on the path that they have.
    TakenBack {
        /// The peer.
        peer: PeerId,
        /// Our address that was tried.
        from: IpAddr,
        /// Flows that stay.
        flows: usize,
    },
    /// All that goes to a peer goes over TCP from now on, or by UDP again.
    Transport {
        /// The peer.
        peer: PeerId,
        /// Its address.
        remote: IpAddr,
        /// Which of the two.
        by_tcp: bool,
        /// Flows that it carries.
        flows: usize,
    },
    /// A peer moved.
    PeerMoved {
        /// The peer.
        peer: PeerId,
        /// Where it is now.
        to: SocketAddr,
        /// Whether a NAT is on the way.
        translated: bool,
        /// Flows that moved with it.
        flows: usize,
        /// How they go now.
        carried: Carried,
    },
    /// A peer with flows has not answered for a while: nothing shows that they arrive.
    NotConfirmed {
        /// The peer.
        peer: PeerId,
        /// Where it is taken to be.
        remote: SocketAddr,
        /// Our address towards it.
        from: Option<IpAddr>,
        /// What it does not answer.
        doubt: Doubt,
        /// For how long.
        unanswered: Duration,
        /// How long ago it was last heard, wherever the ends were then.
        heard: Duration,
        /// This host has moved, and the peer is behind a NAT.
        behind_nat: bool,
        /// Flows that this is about.
        flows: usize,
    },
    /// The path to a peer's new place was confirmed, or the peer answers again.
    PathConfirmed {
        /// The peer.
        peer: PeerId,
        /// Where.
        remote: SocketAddr,
        /// The round trip.
        round_trip: Duration,
        /// How its flows go now.
        carried: Carried,
    },
    /// A peer was heard from where a rendezvous, or a name server, said that it is.
    PeerFound {
        /// The peer.
        peer: PeerId,
        /// Where.
        remote: SocketAddr,
        /// The rendezvous that said so; `None`: a name server.
        rendezvous: Option<PeerId>,
    },
    /// This host stands in for a peer that has left one of its links.
    StandsIn {
        /// The peer.
        peer: PeerId,
        /// The address that it has left.
        address: IpAddr,
    },
    /// This host does not stand in for an address any more.
    StoodAside {
        /// The peer that had it.
        peer: PeerId,
        /// The address.
        address: IpAddr,
        /// Why.
        reason: NeighbourProxyStatus,
    },
    /// A rendezvous has answered whether it stands in for an address that this host has left.
    StoodInFor {
        /// The rendezvous.
        by: PeerId,
        /// The address.
        address: IpAddr,
        /// What becomes of it.
        status: NeighbourProxyStatus,
    },
    /// Moved flows are carried another way from now on.
    CarrierChanged {
        /// The peer.
        peer: PeerId,
        /// How.
        carrier: Carrier,
    },
    /// Whoever has the former address of a peer now opened a connection under the very names of a flow that has moved.
    Claimed {
        /// The flow.
        flow: FlowTuple,
        /// Whose it is.
        peer: PeerId,
        /// It was given up for that; else the newcomer is refused.
        given_up: bool,
    },
    /// A peer's request was refused.
    Refused {
        /// The peer.
        peer: PeerId,
        /// What and why.
        reason: &'static str,
    },
    /// A handshake came to nothing at this end: the other one is never told why.
    HandshakeRefused {
        /// Who asked or answered, as far as an address shows.
        remote: SocketAddr,
        /// Why.
        reason: &'static str,
    },
    /// A peer with flows has not answered several handshakes in a row: they survive a move once it does.
    PeerSilent {
        /// The peer.
        peer: PeerId,
        /// Where it was asked.
        remote: SocketAddr,
        /// Flows that depend on it.
        flows: usize,
    },
    /// Something about the community.
    Community(CommunityEvent),
    /// Something about a socket that changes hosts, or an endpoint that is lent.
    Move(MoveEvent),
    /// An op of ours failed.
    OpFailed {
        /// What was asked, for people.
        what: String,
        /// What came of it.
        error: String,
    },
}

/// What makes it doubtful that a peer's flows arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// This host has moved, and the peer has not acknowledged that.
    Moved,
    /// The peer says that it has moved, and does not answer where it is then.
    PeerMoved,
    /// It does not answer where it was.
    Silent,
}

/// How a peer's flows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Of its flows, how many are not where they are at home.
    pub flows: usize,
    /// What carries these.
    pub carrier: Carrier,
}

impl From<CommunityEvent> for Event {
    fn from(event: CommunityEvent) -> Self {
        Self::Community(event)
    }
}

impl From<MoveEvent> for Event {
    fn from(event: MoveEvent) -> Self {
        Self::Move(event)
    }
}
