//! Gateways (`docs/protocol.md` §12): a router that speaks for hosts behind it, which run nothing. Peers ask at the
//! address of such a host, and are answered in its name; what they introduce there are flows of this host's like any
//! other, whose sockets it does not see.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId};
use crate::base::output::Asked;
use crate::base::timer::Timers;
use crate::flow::introduction::is_introducers;
use crate::role::gateway::opened::OpenedBehind;
use crate::role::{At, Came, Role};

pub(crate) mod opened;

/// How long a peer that is not heard keeps its flows with hosts behind this one (P-103): what the kernel's connection
/// tracking gives a connection of TCP (`nf_conntrack_tcp_timeout_established`).
const FORGOTTEN: Duration = Duration::from_secs(5 * 86_400);
/// Flows of hosts behind that somebody has begun to introduce and nobody has shown to sit on, at the most, and of one
/// peer.
const UNVERIFIED_MOST: usize = 4096;
const UNVERIFIED_OF_PEER: usize = 1024;

/// What this host does for hosts behind it.
#[derive(Default)]
pub(crate) struct GatewayRole {
    /// Flows of hosts behind this one that nobody has shown to sit on yet.
    unverified: Unverified,
    /// Connections that hosts behind this one have opened.
    opened: OpenedBehind,
    /// Datagram flows of theirs that somebody has sent in from where their peers were, a moment after these had moved,
    /// and when that is looked for again.
    claimed: BTreeMap<FlowTuple, Time>,
    timers: Timers<Due>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Due {
    /// Ask where connections lead to that hosts behind this one have opened.
    Opened,
    /// Look again whether somebody sends from where the peers of datagram flows were.
    Claims,
}

/// Flows of hosts behind that a peer has begun to introduce, and has not shown yet to sit on.
#[derive(Debug, Default)]
pub(crate) struct Unverified {
    flows: BTreeMap<FlowTuple, PeerId>,
    by_peer: BTreeMap<PeerId, BTreeSet<FlowTuple>>,
}

impl Unverified {
    fn insert(&mut self, flow: FlowTuple, id: PeerId) {
        self.remove(&flow);
        self.flows.insert(flow, id);
        self.by_peer.entry(id).or_default().insert(flow);
    }

    fn remove(&mut self, flow: &FlowTuple) {
        let Some(id) = self.flows.remove(flow) else { return };
        if let Some(flows) = self.by_peer.get_mut(&id) {
            flows.remove(flow);
            if flows.is_empty() {
                self.by_peer.remove(&id);
            }
        }
    }

    fn of(&self, id: PeerId) -> usize {
        self.by_peer.get(&id).map_or(0, BTreeSet::len)
    }

    /// Whether a peer may have one more, and the flow that gives way for it: one of the peer's that has most, so that
    /// nobody can keep the others from beginning (P-101).
    fn room(&self, id: PeerId) -> Option<Option<FlowTuple>> {
        let own = self.of(id);
        if own >= UNVERIFIED_OF_PEER {
            return None;
        }
        if self.flows.len() < UNVERIFIED_MOST {
            return Some(None);
        }
        let most = self.by_peer.values().max_by_key(|flows| flows.len()).filter(|flows| flows.len() > own + 1);
        most.map(|flows| flows.last().copied())
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }
}

impl Role for GatewayRole {
    fn new(_: &Base) -> Self {
        Self::default()
    }

    fn handle_message(&mut self, came: &mut Came<'_>, message: Message, at: &mut At<'_>) -> Option<Message> {
        match message {
            Message::AskHere { tuple } => at.low.flow_mut().handle_ask_here(at.now, came.from, &tuple, at.base),
            Message::Passing { nonce } => at.low.flow_mut().handle_passing(came.from, nonce, at.base),
            other => return Some(other),
        }
        None
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        match self.timers.take_due(at.now) {
            Some(Due::Opened) => self.continue_opened(at),
            Some(Due::Claims) => self.search_for_claims_again(at),
            None => {}
        }
    }
}

impl GatewayRole {
    /// See [`Node::handle_flow_passing`](crate::Node::handle_flow_passing).
    pub(crate) fn handle_flow_passing(&mut self, flow: FlowTuple, index: u32, nonce: u64, at: &mut At<'_>) {
        let between =
            at.base.attachments().is_behind(flow.local.ip()) && at.base.attachments().at(flow.remote.ip()).is_none();
        if !is_introducers(nonce) || !between || at.low.flow().has_flow(&flow) {
            return;
        }
        let Some(id) = at.low.session().with_index(index) else { return };
        let Some(gives_way) = self.unverified.room(id) else { return };
        if let Some(other) = gives_way {
            self.unverified.remove(&other);
            at.low.flow_mut().forget_flow(&other, at.base);
        }
        at.low.flow_mut().handle_flow_opened(at.now, flow, true, at.base);
        self.doubt(at.now, &flow, id, at.base);
    }

    /// This peer has not shown to sit on a flow yet; unless that changes soon it is forgotten.
    pub(crate) fn doubt(&mut self, now: Time, flow: &FlowTuple, id: PeerId, base: &mut Base) {
        if base.attachments().is_behind(flow.local.ip()) {
            self.unverified.insert(*flow, id);
            base.sweep_later(now);
        }
    }

    /// Forgets flows of hosts behind that nobody introduces any more. Tells whether any is left.
    pub(crate) fn sweep_passing(&mut self, at: &mut At<'_>) -> bool {
        if self.unverified.len() == 0 {
            return false;
        }
        let answered: HashSet<FlowTuple> = at.low.flow().answered().collect();
        for (flow, id) in std::mem::take(&mut self.unverified).flows {
            match at.low.flow().flows().get(&flow) {
                None => {}
                Some(known) if known.entry().is_some() => {}
                Some(_) if answered.contains(&flow) => self.unverified.insert(flow, id),
                Some(_) => at.low.flow_mut().forget_flow(&flow, at.base),
            }
        }
        self.unverified.len() > 0
    }

    /// Forgets what a peer that has not been heard for very long has with hosts behind this one (P-103).
    pub(crate) fn forget_unheard(&mut self, id: PeerId, at: &mut At<'_>) {
        if at.low.session().peer(&id).is_none_or(|peer| peer.last_heard() + FORGOTTEN > at.now) {
            return;
        }
        let flows = at.low.flow().flows_with(id, |_, entry| entry.end == LocalEnd::Passing);
        if flows.is_empty() {
            return;
        }
        for flow in flows {
            at.low.flow_mut().forget_flow(&flow, at.base);
        }
        at.low.flow_mut().idle_later(at.now, id, at.base);
        at.low.apply_binding(at.now, id, at.base);
        at.low.refresh_sets(at.base);
    }

    /// Somebody sends, from where the peer of a datagram flow with a host behind this one was: after a while that is
    /// not the peer any more, and what he is answered is his (P-104).
    pub(crate) fn handle_datagram_claim(&mut self, flow: FlowTuple, entry: &FlowEntry, at: &mut At<'_>) {
        let id = entry.peer;
        let Some(peer) = at.low.peer(&id) else { return };
        if peer.current_places() == entry.home {
            return;
        }
        if let Some(until) = peer.under_way_until(at.now, entry.home.peer) {
            // It may have been on the way. That is told once, until the flow is installed anew.
            self.claimed.insert(flow, until);
            self.timers.set_earlier(Due::Claims, until);
            return;
        }
        self.claimed.remove(&flow);
        at.base.event(Event::Claimed { flow, peer: id, given_up: true });
        at.low.flow_mut().forget_flow(&flow, at.base);
        at.low.flow_mut().send_ended(at.now, id, entry.name, at.base);
        at.low.flow_mut().idle_later(at.now, id, at.base);
        at.low.refresh_sets(at.base);
    }

    /// What was on the way to peers' former places when they moved has arrived by now: who sends from there from now on
    /// is told of.
    pub(crate) fn search_for_claims_again(&mut self, at: &mut At<'_>) {
        let due = self.claimed.iter().filter(|(_, until)| **until <= at.now).map(|(flow, _)| *flow);
        for flow in due.collect::<Vec<_>>() {
            self.claimed.remove(&flow);
            if let Some(entry) = at.low.flow().flows().entry(&flow).copied() {
                let asked = Asked::Effect("looking for who has an address");
                at.base.ask(FlowOp::Install { flow, entry }, asked);
            }
        }
        if let Some(next) = self.claimed.values().min() {
            self.timers.set(Due::Claims, *next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::attachments::Attachment;
    use crate::base::config::Config;
    use crate::base::config::Prefix;
    use crate::base::id::LinkId;
    use crate::role::Alone;
    use whimbrel_wire::Transport;

    fn router() -> Alone<GatewayRole> {
        let prefix = Prefix { address: "192.0.2.0".parse().expect("an address"), length: 24 };
        let config = Config { behind: vec![prefix], ..Config::default() };
        let mut node = Alone::new(config, 4);
        let own = Attachment { address: "192.0.2.1".parse().expect("an address"), link: LinkId(1), generation: 1 };
        node.base.attachments_mut().set(&[own]);
        node.base.attachments_mut().settle();
        // Sessions with peers of these numbers.
        (1..=6).for_each(|index| node.low.session_mut().set_index(index, PeerId(index)));
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
            node.act(Time::default(), |role, at| role.handle_flow_passing(other, 1, 7, at));
            assert!(!node.low.flow().has_flow(&other), "{other}");
        }
        // A carrier probe, and an answer to a nonce that nobody sent.
        for nonce in [1 << 63, 1 << 62] {
            node.act(Time::default(), |role, at| role.handle_flow_passing(good, 1, nonce, at));
            assert!(!node.low.flow().has_flow(&good));
        }
        // In nobody's session.
        node.act(Time::default(), |role, at| role.handle_flow_passing(good, 77, 7, at));
        assert!(!node.low.flow().has_flow(&good));
        node.act(Time::default(), |role, at| role.handle_flow_passing(good, 1, 7, at));
        assert!(node.low.flow().has_flow(&good) && node.base.attachments().end_of(&good) == LocalEnd::Passing);
        assert_eq!(node.base.attachments().end_of(&flow("192.0.2.1:80", far)), LocalEnd::Here);
        assert!(node.base.attachments().at("192.0.2.7".parse().expect("an address")).is_some());
    }

    #[test]
    fn what_nobody_shows_to_sit_on_is_forgotten_and_bounded() {
        // P-101
        let mut node = router();
        let begin = |node: &mut Alone<GatewayRole>, index: u32, count: usize| {
            for port in 1..=u16::try_from(count).expect("a port") {
                let flow = flow("192.0.2.7:80", &format!("198.51.100.{index}:{port}"));
                node.act(Time::default(), |role, at| role.handle_flow_passing(flow, index, 7, at));
            }
        };
        // Nobody gets it all, and all together do not keep one out who comes later.
        begin(&mut node, 1, UNVERIFIED_OF_PEER + 10);
        assert_eq!(
            (node.low.flow().flows().len(), node.role.unverified.of(PeerId(1))),
            (UNVERIFIED_OF_PEER, UNVERIFIED_OF_PEER)
        );
        (2..=4).for_each(|index| begin(&mut node, index, UNVERIFIED_OF_PEER + 10));
        assert_eq!(node.low.flow().flows().len(), UNVERIFIED_MOST);
        begin(&mut node, 5, 600);
        assert_eq!((node.low.flow().flows().len(), node.role.unverified.of(PeerId(5))), (UNVERIFIED_MOST, 600));
        // Nor does the one who comes later push out others with fewer.
        begin(&mut node, 6, UNVERIFIED_OF_PEER);
        let held: Vec<usize> = (1..=6).map(|id| node.role.unverified.of(PeerId(id))).collect();
        assert!(held.iter().all(|held| (600..=UNVERIFIED_MOST / 6 + 90).contains(held)), "{held:?}");
        assert!(!node.act(Time::default(), |role, at| role.sweep_passing(at)));
        assert!(node.low.flow().flows().len() == 0 && node.role.unverified.len() == 0);
    }
}
