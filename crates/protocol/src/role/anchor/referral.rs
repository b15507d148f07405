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
use crate::flow::known::{Flow, Origin};
use crate::role::{At, Came, Role};
use crate::session::pins::Pin;

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

    fn handle_message(&mut self, came: &mut Came<'_>, message: Message, at: &mut At<'_>) -> Option<Message> {
        let id = came.from;
        match message {
            Message::Referral { nonce, key, at: place } => {
                at.low.flow_mut().handle_referral(at.now, id, nonce, PublicKey::from(key), place, at.base);
            }
            Message::Sought { name, key, at: place } => {
                self.handle_sought(id, name, PublicKey::from(key), place, at);
            }
            Message::IntroduceMe { tuple } => at.low.flow_mut().handle_introduce_me(at.now, id, &tuple, at.base),
            Message::Seen { nonce } => at.low.flow_mut().handle_seen(at.now, id, nonce, at.base),
            other => return Some(other),
        }
        None
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        if let Signal::Direct { flow, former } = signal {
            self.note_direct(*flow, *former, at);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        self.leave_holders(at);
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
        at: &mut At<'_>,
    ) -> bool {
        let Some(entry) =
            at.low.flow().flows().get(&flow.mirrored()).filter(|known| !known.is_closed()).and_then(Flow::entry)
        else {
            return false;
        };
        if entry.end != LocalEnd::Behind || entry.peer == id {
            return false;
        }
        let (name, owner) = (entry.name, entry.peer);
        let (Some(far), Some(near)) = (at.low.flow().peer(&id), at.low.flow().peer(&owner)) else { return false };
        let place = flow.remote.ip();
        let there = far.path.remote().ip() == place || far.has_answered_at(&place);
        if !there || at.low.flow().name_of(entry).is_none_or(|name| hides(&name)) || !near.has_session() {
            at.low.flow_mut().refuse_introduction(id, nonce, IntroductionRefusal::Declined, at.base);
            return true;
        }
        let elsewhere = Message::Referral { nonce, key: *near.key().as_bytes(), at: near.path.remote() };
        let sought = Message::Sought { name, key: *far.key().as_bytes(), at: far.path.remote() };
        at.low.path_mut().send(id, &[elsewhere], at.base);
        at.low.path_mut().send(owner, &[sought], at.base);
        true
    }

    // ---- the owner

    /// The far end of a flow that is passed on for this host runs Whimbrel. It may be behind a NAT, or this host may,
    /// so both ask.
    fn handle_sought(&mut self, id: PeerId, name: u64, key: PublicKey, place: SocketAddr, at: &mut At<'_>) {
        let passed_on = |flow: FlowTuple| at.low.flow().passed_on(&flow).is_some_and(|entry| entry.peer == id);
        let known = at.low.flow().peer(&id).and_then(|peer| peer.flow.named(name)).is_some_and(passed_on);
        if !known || key == at.base.public_key() {
            return;
        }
        at.low.session_mut().add_referred(at.now, id, key, place, at.base);
        if at.low.session().met(&key).is_none() {
            at.low.session_mut().ask_referred(at.now, key, at.base);
        }
    }

    /// See [`Node::seek_far_end`](crate::Node::seek_far_end).
    pub(crate) fn seek_far_end(&mut self, flow: FlowTuple, at: &mut At<'_>) {
        if at.low.flow().passed_on(&flow).is_some() {
            at.low.flow_mut().want_introduction(at.now, flow, at.base);
        }
    }

    // ---- both

    /// A flow goes from end to end from now on, that another host, the `former`, has passed on.
    pub(crate) fn note_direct(&mut self, flow: FlowTuple, former: Option<FlowEntry>, at: &mut At<'_>) {
        if let Some(former) = former {
            self.left.insert(flow, Left { due: at.now + PARTING, former });
            self.pin_left(at.low);
            self.save_left(flow, Some(former), at.base);
        } else if let Some(left) = self.left.get_mut(&flow) {
            // The far end has not had our answer, or has forgotten it.
            left.due = at.now + PARTING;
        }
        if !self.left.is_empty() {
            self.due.get_or_insert(at.now + PARTING);
        }
    }

    /// Those that have passed flows on are looked for until they have been told that they need not any more.
    fn pin_left(&mut self, low: &mut BindingLayer) {
        let hosts = self.left.values().filter_map(|left| Some(low.session().peer(&left.former.peer)?.key())).collect();
        low.session_mut().pins_mut().set(Pin::Sought, hosts);
    }

    /// The far end does not take the flow after all: who has passed it on still does. Tells whether there is such a
    /// one.
    pub(crate) fn return_to_former(&mut self, flow: &FlowTuple, at: &mut At<'_>) -> bool {
        let Some(Left { former, .. }) = self.left.remove(flow) else { return false };
        self.pin_left(at.low);
        at.low.install_moved(at.now, *flow, former, Origin::Restored, Asked::Install(*flow), at.base);
        self.save_left(*flow, None, at.base);
        true
    }

    fn save_left(&mut self, flow: FlowTuple, former: Option<FlowEntry>, base: &mut Base) {
        base.ask(StoreOp::SaveLeft { flow, former }, Asked::Effect("keeping who has passed a flow on"));
    }

    /// See [`Node::restore_left`](crate::Node::restore_left).
    pub(crate) fn restore_left(&mut self, left: Vec<(FlowTuple, FlowEntry)>, at: &mut At<'_>) {
        for (flow, former) in left {
            let is_so = at.low.flow().flows().entry(&flow).is_some_and(|entry| entry.peer == former.peer);
            if is_so || at.low.session().peer(&former.peer).is_none() {
                self.save_left(flow, None, at.base);
                continue;
            }
            self.left.insert(flow, Left { due: at.now + PARTING, former });
            self.pin_left(at.low);
            self.due.get_or_insert(at.now + PARTING);
            at.low.session_mut().reach_again(at.now, former.peer, at.base);
        }
    }

    /// Those that have passed flows on are told that they need not any more.
    pub(crate) fn leave_holders(&mut self, at: &mut At<'_>) {
        let due: Vec<FlowTuple> =
            self.left.iter().filter(|(_, left)| left.due <= at.now).map(|(flow, _)| *flow).collect();
        for flow in due {
            if let Some(Left { former, .. }) = self.left.remove(&flow) {
                at.low.flow_mut().send_ended(at.now, former.peer, former.name, at.base);
                self.save_left(flow, None, at.base);
            }
        }
        self.pin_left(at.low);
        self.due = self.left.values().map(|left| left.due).min();
    }
}
