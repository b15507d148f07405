//! Who is asked to have a flow introduced: whoever is at its remote address, or was named as the owner of the socket
//! there.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::{FlowEntry, FlowOp, PeerId};
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::known::{Flow, Stage};
use crate::flow::policy::Ruled;
use crate::session::contact::Contact;

/// How often an owner asks the far end to introduce a flow.
const REQUESTS: u8 = 3;
/// What users are told where the host that an address leads to passes a flow on for one that cannot be reached.
pub(crate) const NOT_FOUND: &str = "its other end is on another host, which is not to be found";

impl FlowLayer {
    /// Introduces a flow to whoever was named as the owner of the socket at its other end, once there is a session.
    pub(crate) fn introduce_referred(&mut self, now: Time, flow: FlowTuple, key: PublicKey, base: &mut Base) {
        let owner = self
            .path
            .session
            .by_key
            .get(&key)
            .and_then(|id| self.path.session.peers.get(id))
            .filter(|peer| peer.has_session());
        if let Some(id) = owner.map(|peer| peer.id) {
            self.queue_introduction(now, id, flow, base);
            return;
        }
        if !self.path.session.ask_referred(now, key, base) {
            self.fail_introduction(now, &flow, NOT_FOUND, base);
            return;
        }
        self.flows.put_off(now, flow);
    }

    /// The far end of a flow that is passed on for this host is known.
    pub(crate) fn ask_to_be_introduced(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) {
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.referrals < REQUESTS) else { return };
        if self.path.session.peers.get(&id).is_some_and(|peer| peer.has_session()) {
            known.referrals += 1;
            self.path.send(id, &[Message::IntroduceMe { tuple: flow }], base);
        }
        self.flows.put_off(now, flow);
    }

    /// Whether a flow may be introduced: nobody has, or another host passes it on.
    pub(crate) fn is_introducible(&self, flow: &FlowTuple) -> bool {
        let open = |known: &Flow| !known.closed && matches!(known.stage, Stage::Open);
        self.flows.get(flow).is_some_and(open) || self.passed_on(flow).is_some()
    }

    /// A flow that another host passes on for this one.
    pub(crate) fn passed_on(&self, flow: &FlowTuple) -> Option<&FlowEntry> {
        self.flows.get(flow).filter(|known| !known.closed).and_then(Flow::entry).filter(|entry| entry.passed_on)
    }

    /// Whether a peer was named as the owner of the socket at a flow's other end.
    pub(crate) fn is_referred(&self, flow: &FlowTuple, id: PeerId) -> bool {
        let key = self.path.session.peers.get(&id).map(|peer| peer.key);
        key.is_some() && self.flows.get(flow).is_some_and(|known| known.referred == key)
    }

    /// An introduction to whoever was named as the owner comes to nothing: the flow is as it was, and who opened it
    /// asks again where the address leads, since the socket may be elsewhere by now. Tells whether it was one.
    pub(crate) fn end_referral(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) -> bool {
        let Some(known) = self.flows.get_mut(flow) else { return false };
        if known.referred.take().is_none() {
            return false;
        }
        let (unchanged, asks) = (known.clone(), !known.accepted);
        known.stage = Stage::Open;
        self.abandon_introduction(flow, &unchanged);
        base.op(FlowOp::Expect { flow: *flow, from: None });
        if asks {
            self.flows.put_off(now, *flow);
        }
        true
    }

    /// A flow that this host opened is old enough: its remote address is asked, or the peer there is known.
    pub(crate) fn want_introduction(&mut self, now: Time, flow: FlowTuple, base: &mut Base) {
        if let Some(key) = self.flows.get(&flow).and_then(|known| known.referred) {
            self.introduce_referred(now, flow, key, base);
            return;
        }
        let address = flow.remote.ip();
        let user = self.flows.get(&flow).and_then(|known| known.user);
        match self.path.session.contacts.addresses.get(&address) {
            Some(Contact::Known(id)) if self.path.session.peers.contains_key(id) => {
                let id = *id;
                if !self.path.session.peers[&id].has_session() {
                    self.path.session.reach_again(now, id, base);
                }
                self.queue_introduction(now, id, flow, base);
            }
            Some(&contact @ (Contact::Asking { .. } | Contact::Silent { .. })) => {
                self.path.session.contacts.await_answer(address, flow, user);
                if matches!(contact, Contact::Silent { until, .. } if until <= now) {
                    self.path.session.continue_contact(now, address, base);
                }
            }
            _ if !self.path.session.may_ask(address, base) => {}
            _ => {
                self.path.session.contacts.await_answer(address, flow, user);
                let source = Some(flow.local.ip());
                self.path.session.contacts.addresses.insert(address, Contact::Asking { tries: 0, source });
                self.path.session.continue_contact(now, address, base);
            }
        }
    }

    /// Flows that are old enough are introduced, or their remote address is asked whether it runs Whimbrel.
    pub(crate) fn mature_flows(&mut self, now: Time, base: &mut Base) {
        while let Some(flow) = self.flows.take_mature(now) {
            if self.passed_on(&flow).is_some() {
                self.want_introduction(now, flow, base);
            } else if self.is_introducible(&flow) {
                match self.ruled_beforehand(&flow) {
                    Ruled::Free => self.want_introduction(now, flow, base),
                    Ruled::Excluded(rule) => self.exclude_flow(&flow, rule),
                    // It has its turn when that is there.
                    Ruled::Awaited => {}
                }
            }
        }
    }

    /// Queues a flow with the peer at its remote address, if that is known by now.
    pub(crate) fn queue_introduction(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) {
        if self.passed_on(&flow).is_some() {
            self.ask_to_be_introduced(now, id, flow, base);
            return;
        }
        if self.flows.is_reserved(&flow) {
            // Introduced now, the two would call it otherwise than those who decide whose it is. A move that comes to
            // nothing leaves it here.
            self.flows.put_off(now, flow);
            return;
        }
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.introductions.active.insert(flow) {
            peer.flow.introductions.queue.push_back(flow);
            base.set_timer_earlier(Timer::Introductions(id), now);
        }
    }

    /// See [`Node::record_user`](crate::Node::record_user).
    pub(crate) fn record_user(&mut self, flow: &FlowTuple, user: u32) {
        if let Some(known) = self.flows.get_mut(flow).filter(|known| !known.closed) {
            known.user = Some(user);
            self.path.session.contacts.record_user(flow, user);
        }
    }
}
