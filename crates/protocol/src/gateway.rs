//! Gateways (`docs/protocol.md` §12): a router that speaks for hosts behind it, which run nothing. Peers ask at the address of such
//! a host, and are answered in its name; what they introduce there are flows of this host's like any other, whose sockets it
//! does not see.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::config::Prefix;
use crate::flow::{Flow, Stage};
use crate::introduction::is_introducers;
use crate::node::Node;
use crate::op::{Event, FlowEntry, KernelOp, LocalEnd, PeerId};
use crate::outcome::Asked;
use crate::peer::Attachment;

/// How long a peer that is not heard keeps its flows with hosts behind this one (P-103): what the kernel's connection tracking
/// gives a connection of TCP (`nf_conntrack_tcp_timeout_established`).
const FORGOTTEN: Duration = Duration::from_secs(5 * 86_400);
/// Flows of hosts behind that somebody has begun to introduce and nobody has shown to sit on, at the most.
const UNSHOWN_MOST: usize = 4096;

/// What this host is attached by where it is reached at `address`: by its own, or by that of a host behind it, which stays as long
/// as the configuration says so.
pub(crate) fn attached(own: &BTreeMap<IpAddr, Attachment>, behind: &[Prefix], address: IpAddr) -> Option<Attachment> {
    let foreign =
        || behind.iter().any(|prefix| prefix.contains(address)).then_some(Attachment { address, generation: 0 });
    own.get(&address).copied().or_else(foreign)
}

impl Node {
    /// Whether an address is that of a host behind this one (P-100).
    #[must_use]
    pub fn is_behind(&self, address: IpAddr) -> bool {
        !self.attachments.contains_key(&address) && self.speaks_at(address)
    }

    /// Whether peers may ask at an address for hosts behind this one, or for what else they take for one: its own there.
    pub(crate) fn speaks_at(&self, address: IpAddr) -> bool {
        self.config.behind.iter().any(|prefix| prefix.contains(address))
    }

    pub(crate) fn attachment_at(&self, address: IpAddr) -> Option<Attachment> {
        attached(&self.attachments, &self.config.behind, address)
    }

    /// Where this host's end of a flow is that its peer introduces.
    pub(crate) fn end_of(&self, flow: &FlowTuple) -> LocalEnd {
        if self.is_behind(flow.local.ip()) { LocalEnd::Passing } else { LocalEnd::Here }
    }

    /// An introduction has come for a host behind this one: the flow is taken for one that is there, as its socket is not seen
    /// (P-101). The introduction, which has this nonce, is to be told after.
    pub fn handle_flow_passing(&mut self, now: Time, flow: FlowTuple, nonce: u64) {
        let between = self.is_behind(flow.local.ip()) && self.attachment_at(flow.remote.ip()).is_none();
        if !is_introducers(nonce) || !between || self.has_flow(&flow) || self.unshown.len() >= UNSHOWN_MOST {
            return;
        }
        self.handle_flow_opened(now, flow, true);
        self.doubt(now, &flow);
    }

    /// Nobody has shown to sit on a flow yet; unless that changes soon it is forgotten.
    pub(crate) fn doubt(&mut self, now: Time, flow: &FlowTuple) {
        if self.is_behind(flow.local.ip()) {
            self.unshown.insert(*flow);
            self.sweep_later(now);
        }
    }

    /// Forgets flows of hosts behind that nobody introduces any more. Tells whether any is left.
    pub(crate) fn sweep_passing(&mut self) -> bool {
        if self.unshown.is_empty() {
            return false;
        }
        let peers = self.peers.values();
        let answered: HashSet<FlowTuple> =
            peers.flat_map(|peer| peer.introductions.responding.keys().copied()).collect();
        for flow in std::mem::take(&mut self.unshown) {
            match self.flows.get(&flow) {
                None | Some(Flow { stage: Stage::Introduced { .. }, .. }) => {}
                Some(_) if answered.contains(&flow) => drop(self.unshown.insert(flow)),
                Some(_) => self.forget_flow(&flow),
            }
        }
        !self.unshown.is_empty()
    }

    /// Forgets what a peer that has not been heard for very long has with hosts behind this one (P-103).
    pub(crate) fn forget_unheard(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.last_heard + FORGOTTEN <= now) else { return };
        let passing = |flow: &&FlowTuple| {
            self.flows.get(flow).and_then(Flow::entry).is_some_and(|entry| entry.end == LocalEnd::Passing)
        };
        let flows: Vec<FlowTuple> = peer.flows.iter().filter(passing).copied().collect();
        if flows.is_empty() {
            return;
        }
        for flow in flows {
            self.forget_flow(&flow);
        }
        self.idle_later(now, id);
        self.put_binding_in_force(now, id);
        self.refresh_sets();
    }

    /// Somebody sends, from where the peer of a datagram flow with a host behind this one was: after a while that is not the peer any
    /// more, and what he is answered is his (P-104).
    pub(crate) fn handle_datagram_claim(&mut self, now: Time, flow: FlowTuple, entry: &FlowEntry) {
        let id = entry.peer;
        if self.peers.get(&id).is_some_and(|peer| !peer.former.is_empty()) {
            // It may have been on the way. That is told once, until the flow is installed anew.
            self.claimed.insert(flow);
            return;
        }
        self.event(Event::Claimed { flow, peer: id, given_up: true });
        self.forget_flow(&flow);
        self.tell_ended(now, id, entry.name);
        self.idle_later(now, id);
        self.refresh_sets();
    }

    /// What was on the way to a peer's former place when it moved has arrived by now: who sends from there from now on is told of.
    pub(crate) fn look_for_claims_again(&mut self, id: PeerId) {
        for flow in std::mem::take(&mut self.claimed) {
            match self.flows.get(&flow).and_then(Flow::entry).copied() {
                Some(entry) if entry.peer == id => {
                    self.op(
                        KernelOp::InstallFlow { flow, entry },
                        Some(Asked::Effect("looking for who has an address")),
                    );
                }
                Some(_) => drop(self.claimed.insert(flow)),
                None => {}
            }
        }
    }

    /// Whether a peer is to be told when a flow of TCP with it is over, since it does not see its end (P-103).
    pub(crate) fn sees_no_ends(&self, id: PeerId) -> bool {
        let sessions = self.peers.get(&id).map(|peer| peer.sessions.as_slice()).unwrap_or_default();
        sessions.iter().any(|slot| slot.capabilities.contains(Capabilities::GATEWAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::node::Routes;
    use whimbrel_handshake::StaticKey;
    use whimbrel_wire::Transport;

    struct Nowhere;

    impl Routes for Nowhere {
        fn source_for(&self, _: IpAddr) -> Option<IpAddr> {
            None
        }

        fn still_reaches(&self, _: IpAddr, _: IpAddr) -> bool {
            false
        }
    }

    fn router() -> Node {
        let prefix = Prefix { address: "192.0.2.0".parse().expect("an address"), length: 24 };
        let config = Config { behind: vec![prefix], ..Config::default() };
        let mut node = Node::new(config, StaticKey::from_bytes([3; 32]), [4; 32]);
        let own = Attachment { address: "192.0.2.1".parse().expect("an address"), generation: 1 };
        node.handle_network(Time::default(), &[own], &Nowhere);
        node
    }

    fn flow(local: &str, remote: &str) -> FlowTuple {
        let end = |text: &str| text.parse().expect("an endpoint");
        FlowTuple { transport: Transport::Tcp, local: end(local), remote: end(remote) }
    }

    #[test]
    fn a_router_speaks_for_those_behind_it_and_nobody_else() {
        // P-100, P-101
        let mut node = router();
        let far = "198.51.100.9:5000";
        let good = flow("192.0.2.7:80", far);
        let others = [
            // Its own, somebody else's, and within the network.
            flow("192.0.2.1:80", far),
            flow("203.0.113.1:80", far),
            flow("192.0.2.7:80", "192.0.2.9:5000"),
            flow("192.0.2.7:80", "192.0.2.1:5000"),
        ];
        for other in others {
            node.handle_flow_passing(Time::default(), other, 7);
            assert!(!node.has_flow(&other), "{other}");
        }
        // A carrier probe, and an answer to a nonce that nobody sent.
        for nonce in [1 << 63, 1 << 62] {
            node.handle_flow_passing(Time::default(), good, nonce);
            assert!(!node.has_flow(&good));
        }
        node.handle_flow_passing(Time::default(), good, 7);
        assert!(node.has_flow(&good) && node.end_of(&good) == LocalEnd::Passing);
        assert_eq!(node.end_of(&flow("192.0.2.1:80", far)), LocalEnd::Here);
        assert!(node.attachment_at("192.0.2.7".parse().expect("an address")).is_some());
    }

    #[test]
    fn what_nobody_shows_to_sit_on_is_forgotten_and_bounded() {
        // P-101
        let mut node = router();
        for port in 1..=u16::try_from(UNSHOWN_MOST).expect("a port") + 10 {
            node.handle_flow_passing(Time::default(), flow("192.0.2.7:80", &format!("198.51.100.9:{port}")), 7);
        }
        assert_eq!(node.flows.len(), UNSHOWN_MOST);
        let due = node.poll_timeout().expect("a timer");
        node.handle_timeout(due);
        assert!(node.flows.is_empty() && node.unshown.is_empty());
    }
}
