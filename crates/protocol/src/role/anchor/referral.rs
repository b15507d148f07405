//! Flows whose address is one host's and whose socket is another's (`docs/protocol.md` §11, P-87): the far end, where
//! it runs Whimbrel, introduces them to whoever has the socket, and they go there directly from then on.
//!
//! Three hosts take part. The *far end* finds the host that passes the flow on when it introduces the flow there. That
//! one *refers* it to the *owner* of the socket, and tells the owner. An owner that has opened the connection itself
//! asks the far end to begin.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::{IntroductionRefusal, Message};

use crate::Time;
use crate::base::Base;
use crate::base::flow_name::FlowName;
use crate::base::op::{FlowEntry, LocalEnd, PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::binding::BindingLayer;
use crate::flow::asking::NOT_FOUND;
use crate::flow::policy::Ruled;
use crate::flow::{Flow, Origin, Stage};
use crate::role::{Came, Role};
use crate::session::pins::Pin;

/// How often a flow's introduction is begun anew because somebody names an owner.
const REFERRALS: u8 = 6;
/// After that time the far end either leads a flow to its owner or has begun anew: its echoes are repeated for six
/// seconds.
const PARTING: Duration = Duration::from_secs(8);

/// Who has passed a flow on that has become direct: it goes on with that until the far end is certain to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    due: Time,
    former: FlowEntry,
}

/// Flows that go from end to end instead of by way of a third host.
#[derive(Default)]
pub(crate) struct ReferralRole {
    /// Flows that have become direct a moment ago.
    left: BTreeMap<FlowTuple, Left>,
    /// When it is to be looked whether those who have passed flows on are to be told that these are direct.
    due: Option<Time>,
}

impl Role for ReferralRole {
    fn new(_: &Base) -> Self {
        Self::default()
    }

    fn takes(message: &Message) -> bool {
        matches!(
            message,
            Message::Referral { .. } | Message::Sought { .. } | Message::IntroduceMe { .. } | Message::Seen { .. }
        )
    }

    fn handle_message(&mut self, now: Time, came: Came<'_>, message: Message, low: &mut BindingLayer, base: &mut Base) {
        let id = came.from;
        match message {
            Message::Referral { nonce, key, at } => {
                self.handle_referral(now, id, nonce, PublicKey::from(key), at, low, base);
            }
            Message::Sought { name, key, at } => {
                self.handle_sought(now, id, name, PublicKey::from(key), at, low, base);
            }
            Message::IntroduceMe { tuple } => self.handle_introduce_me(now, id, &tuple, low, base),
            Message::Seen { nonce } => self.handle_seen(now, id, nonce, low, base),
            _ => {}
        }
    }

    fn handle_signal(&mut self, now: Time, signal: &Signal, low: &mut BindingLayer, base: &mut Base) {
        if let Signal::Direct { flow, former } = signal {
            self.note_direct(now, *flow, *former, low, base);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    fn handle_timeout(&mut self, now: Time, low: &mut BindingLayer, base: &mut Base) {
        self.leave_holders(now, low, base);
    }
}

impl ReferralRole {
    // ---- the host that passes a flow on

    /// A peer has put its nonce into a flow that this host passes on for another: the two are told of each other,
    /// unless the socket is hidden, or the peer is not where the flow's far end is: anybody may put a nonce into a flow
    /// whose ports he guesses. Tells whether it is such a flow.
    pub(crate) fn refer(
        &mut self,
        id: PeerId,
        flow: &FlowTuple,
        nonce: u64,
        hides: impl Fn(&FlowName) -> bool,
        low: &mut BindingLayer,
        base: &mut Base,
    ) -> bool {
        let Some(entry) = low.flow.flows.get(&flow.mirrored()).filter(|known| !known.closed).and_then(Flow::entry)
        else {
            return false;
        };
        if entry.end != LocalEnd::Behind || entry.peer == id {
            return false;
        }
        let (name, owner) = (entry.name, entry.peer);
        let (Some(far), Some(near)) = (peer!(low.flow, &id), peer!(low.flow, &owner)) else { return false };
        let at = flow.remote.ip();
        let there = far.path.remote().ip() == at || far.answers_at.contains(&at);
        if !there || low.flow.name_of(entry).is_none_or(|name| hides(&name)) || !near.has_session() {
            low.flow.refuse_introduction(id, nonce, IntroductionRefusal::Declined, base);
            return true;
        }
        let elsewhere = Message::Referral { nonce, key: *near.key.as_bytes(), at: near.path.remote() };
        let sought = Message::Sought { name, key: *far.key.as_bytes(), at: far.path.remote() };
        low.flow.path.send(id, &[elsewhere], base);
        low.flow.path.send(owner, &[sought], base);
        true
    }

    // ---- the far end

    /// The host that a flow leads to passes it on for another, with which it is to be introduced.
    fn handle_referral(
        &mut self,
        now: Time,
        id: PeerId,
        nonce: u64,
        key: PublicKey,
        at: SocketAddr,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
        let Some(flow) = low.flow.flows.with_nonce(nonce) else { return };
        let Some(known) = low.flow.flows.get_mut(&flow).filter(|known| !known.closed) else { return };
        let introducing =
            matches!(known.stage, Stage::Introducing { peer, nonce: own, .. } if (peer, own) == (id, nonce));
        if !introducing || known.referred.is_some() || key == base.public_key() {
            return;
        }
        let unchanged = known.clone();
        known.stage = Stage::Open;
        low.flow.abandon_introduction(&flow, &unchanged);
        low.flow.path.session.add_referred(now, id, key, at, base);
        self.refer_to(now, flow, key, low, base);
    }

    /// The owner of the socket at the other end of a connection, which has opened it and is not at the address that
    /// this host knows it by, has itself introduced. It may be anybody who says so: he proves it by what travels in the
    /// flow.
    fn handle_introduce_me(
        &mut self,
        now: Time,
        id: PeerId,
        tuple: &FlowTuple,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
        let flow = tuple.mirrored();
        let Some(key) = low.flow.path.session.peers.get(&id).map(|peer| peer.key) else { return };
        let Some(known) = low.flow.flows.get(&flow).filter(|known| !known.closed && known.accepted) else { return };
        if matches!(known.stage, Stage::Open | Stage::Failed(_)) && matches!(low.flow.ruled(&flow, id), Ruled::Free) {
            self.refer_to(now, flow, key, low, base);
        }
    }

    /// Has a flow introduced to whoever was named as the owner of the socket at its other end.
    fn refer_to(&mut self, now: Time, flow: FlowTuple, key: PublicKey, low: &mut BindingLayer, base: &mut Base) {
        let Some(known) = low.flow.flows.get_mut(&flow) else { return };
        if known.referrals >= REFERRALS {
            low.flow.fail_introduction(now, &flow, NOT_FOUND, base);
            return;
        }
        known.referrals += 1;
        known.stage = Stage::Open;
        (known.referred, known.seen, known.early) = (Some(key), false, None);
        low.flow.introduce_referred(now, flow, key, base);
    }

    /// The owner has our nonce, which nobody else could tell it: what it puts into the flow is an answer.
    fn handle_seen(&mut self, now: Time, id: PeerId, nonce: u64, low: &mut BindingLayer, base: &mut Base) {
        let Some(flow) = low.flow.flows.with_nonce(nonce) else { return };
        let Some(known) = low.flow.flows.get_mut(&flow).filter(|known| known.referred.is_some()) else { return };
        if !matches!(known.stage, Stage::Introducing { peer, nonce: own, .. } if (peer, own) == (id, nonce)) {
            return;
        }
        known.seen = true;
        if let Some(early) = low.flow.flows.get_mut(&flow).and_then(|known| known.early.take()) {
            low.flow.take_nonce(now, id, flow, early, base);
        }
    }

    // ---- the owner

    /// The far end of a flow that is passed on for this host runs Whimbrel. It may be behind a NAT, or this host may,
    /// so both ask.
    fn handle_sought(
        &mut self,
        now: Time,
        id: PeerId,
        name: u64,
        key: PublicKey,
        at: SocketAddr,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
        let passed_on = |flow: &FlowTuple| low.flow.passed_on(flow).is_some_and(|entry| entry.peer == id);
        let known = peer!(low.flow, &id).and_then(|peer| peer.flow.named.get(&name)).is_some_and(passed_on);
        if !known || key == base.public_key() {
            return;
        }
        low.flow.path.session.add_referred(now, id, key, at, base);
        if !low
            .flow
            .path
            .session
            .by_key
            .get(&key)
            .and_then(|id| low.flow.path.session.peers.get(id))
            .is_some_and(|peer| peer.has_session())
        {
            low.flow.path.session.ask_referred(now, key, base);
        }
    }

    /// See [`Node::seek_far_end`](crate::Node::seek_far_end).
    pub(crate) fn seek_far_end(&mut self, now: Time, flow: FlowTuple, low: &mut BindingLayer, base: &mut Base) {
        if low.flow.passed_on(&flow).is_some() {
            low.flow.want_introduction(now, flow, base);
        }
    }

    // ---- both

    /// A flow goes from end to end from now on, that another host, the `former`, has passed on.
    pub(crate) fn note_direct(
        &mut self,
        now: Time,
        flow: FlowTuple,
        former: Option<FlowEntry>,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
        if let Some(former) = former {
            self.left.insert(flow, Left { due: now + PARTING, former });
            self.pin_left(low);
            self.save_left(flow, Some(former), base);
        } else if let Some(left) = self.left.get_mut(&flow) {
            // The far end has not had our answer, or has forgotten it.
            left.due = now + PARTING;
        }
        if !self.left.is_empty() {
            self.due.get_or_insert(now + PARTING);
        }
    }

    /// Those that have passed flows on are looked for until they have been told that they need not any more.
    fn pin_left(&mut self, low: &mut BindingLayer) {
        let hosts = self
            .left
            .values()
            .filter_map(|left| Some(low.flow.path.session.peers.get(&left.former.peer)?.key))
            .collect();
        low.flow.path.session.contacts.pins.set(Pin::Sought, hosts);
    }

    /// The far end does not take the flow after all: who has passed it on still does. Tells whether there is such a
    /// one.
    pub(crate) fn return_to_former(
        &mut self,
        now: Time,
        flow: &FlowTuple,
        low: &mut BindingLayer,
        base: &mut Base,
    ) -> bool {
        let Some(Left { former, .. }) = self.left.remove(flow) else { return false };
        self.pin_left(low);
        low.install_moved(now, *flow, former, Origin::Restored, Asked::Install(*flow), base);
        self.save_left(*flow, None, base);
        true
    }

    fn save_left(&mut self, flow: FlowTuple, former: Option<FlowEntry>, base: &mut Base) {
        base.ask(StoreOp::SaveLeft { flow, former }, Asked::Effect("keeping who has passed a flow on"));
    }

    /// See [`Node::restore_left`](crate::Node::restore_left).
    pub(crate) fn restore_left(
        &mut self,
        now: Time,
        left: Vec<(FlowTuple, FlowEntry)>,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
        for (flow, former) in left {
            let is_so = low.flow.flows.get(&flow).and_then(Flow::entry).is_some_and(|entry| entry.peer == former.peer);
            if is_so || !low.flow.path.session.peers.contains_key(&former.peer) {
                self.save_left(flow, None, base);
                continue;
            }
            self.left.insert(flow, Left { due: now + PARTING, former });
            self.pin_left(low);
            self.due.get_or_insert(now + PARTING);
            low.flow.path.session.reach_again(now, former.peer, base);
        }
    }

    /// Those that have passed flows on are told that they need not any more.
    pub(crate) fn leave_holders(&mut self, now: Time, low: &mut BindingLayer, base: &mut Base) {
        let due: Vec<FlowTuple> = self.left.iter().filter(|(_, left)| left.due <= now).map(|(flow, _)| *flow).collect();
        for flow in due {
            if let Some(Left { former, .. }) = self.left.remove(&flow) {
                low.flow.send_ended(now, former.peer, former.name, base);
                self.save_left(flow, None, base);
            }
        }
        self.pin_left(low);
        self.due = self.left.values().map(|left| left.due).min();
    }
}
