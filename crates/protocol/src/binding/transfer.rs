//! What the roles have below them that have flows go from host to host: what they may ask, and what they write.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Record, Terms};

use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::PeerId;
use crate::base::op::relocation::{LeaseName, MoveOp, Moving};
use crate::session::permits::Permits;
use crate::session::records::Records;

/// Pause before something that failed is asked for again.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);

/// The sessions and the table of flows of a host, as far as they matter here.
pub(crate) trait Around {
    /// Whether there is a session with a host.
    fn has_session(&self, with: &PublicKey) -> bool;
    /// The flow of this name, as this host has it.
    fn flow(&self, name: &FlowName) -> Option<FlowTuple>;
    /// Whether a flow is known by these names.
    fn is_known(&self, flow: &FlowTuple) -> bool;
    /// The host that a flow is with, by these names, where it is introduced.
    fn partner(&self, flow: &FlowTuple) -> Option<PublicKey>;
    /// This host's port in rewritten packets of a flow that it takes over, if one is left.
    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16>;
    /// The peer that a host is.
    fn peer(&self, of: &PublicKey) -> Option<PeerId>;
    /// Where a host is, if it is known.
    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr>;
}

/// Something that the table of flows is to say.
#[derive(Clone, Debug)]
pub(crate) enum FlowChange {
    /// Holder: the flow is one with its owner. It is answered.
    /// `from`: as it may be called still. `restored`: a daemon before this one has done so.
    Lead { flow: FlowName, from: FlowName, wire_port: u16, lent: Option<FlowTuple>, restored: bool },
    /// Acceptor: the flow is one with the holder. It is answered.
    Adopt { name: MoveName, tuple: FlowTuple, flow: FlowName, wire_port: u16, terms: Terms },
    /// Donor: it has nothing to do with the flow any more.
    Release { tuple: FlowTuple },
    /// Donor: a socket without another end is gone, and its endpoint with it (P-115).
    Part { lease: FlowName },
    /// Holder: the flow that it passes on is over, and its owner is to know that.
    End { tuple: FlowTuple },
    /// Anchor and tenant: a lease depends on this host, so that it is to be known over a restart.
    Remember { key: PublicKey },
}

/// Names one op, so that its result finds its way back.
pub(crate) type MoveOpId = u64;

/// What an op was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Donation(u64),
    Acceptance(MoveName),
    /// Commits, which are decided together, of flows that are called so till then.
    Keep(Vec<FlowName>),
    Lease(LeaseName),
    Tenancy(FlowName),
    /// Nothing waits for it, and it is asked for again where it fails.
    Effect(&'static str, Box<MoveOp>),
}

/// What was written, and was not given out yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    ops: VecDeque<(MoveOpId, MoveOp)>,
    asked: HashMap<MoveOpId, Asked>,
    next_op: u64,
    /// What failed and is asked for again, and when.
    failed: Vec<(&'static str, MoveOp)>,
    again: Option<Time>,
    events: VecDeque<MoveEvent>,
    changes: VecDeque<FlowChange>,
    /// Flows whose sockets are on their way from here or to here, or no more.
    reservations: Vec<(FlowTuple, bool)>,
}

impl Outbox {
    pub(crate) fn ask(&mut self, op: MoveOp, asked: Asked) {
        self.next_op += 1;
        self.asked.insert(self.next_op, asked);
        self.ops.push_back((self.next_op, op));
    }

    /// Asks for something that nothing waits for.
    pub(crate) fn effect(&mut self, what: &'static str, op: MoveOp) {
        self.ask(op.clone(), Asked::Effect(what, Box::new(op)));
    }

    pub(crate) fn event(&mut self, event: MoveEvent) {
        self.events.push_back(event);
    }

    /// An op was answered: what it was for.
    pub(crate) fn answered(&mut self, id: MoveOpId) -> Option<Asked> {
        self.asked.remove(&id)
    }

    /// Something that nothing waits for has failed.
    pub(crate) fn fail(&mut self, now: Time, what: &'static str, op: MoveOp, error: String) {
        self.failed.push((what, op));
        self.again.get_or_insert(now + AGAIN);
        self.event(MoveEvent::OpFailed { what, error });
    }

    /// What failed and is to be asked for again now.
    pub(crate) fn take_failed(&mut self, now: Time) -> Vec<(&'static str, MoveOp)> {
        let due = self.again.take_if(|again| *again <= now).is_some();
        if due { std::mem::take(&mut self.failed) } else { Vec::new() }
    }

    /// When [`Self::take_failed`] is due.
    pub(crate) const fn deadline(&self) -> Option<Time> {
        self.again
    }

    pub(crate) fn poll_op(&mut self) -> Option<(MoveOpId, MoveOp)> {
        self.ops.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<MoveEvent> {
        self.events.pop_front()
    }

    pub(crate) fn poll_change(&mut self) -> Option<FlowChange> {
        self.changes.pop_front()
    }

    /// What was written of flows: whether their sockets are on their way.
    pub(crate) fn take_reservations(&mut self) -> Vec<(FlowTuple, bool)> {
        std::mem::take(&mut self.reservations)
    }

    /// Ops whose results are awaited, and those that failed.
    pub(crate) fn entries(&self) -> usize {
        self.asked.len() + self.failed.len()
    }
}

/// What a role has below it at one moment.
pub(crate) struct Below<'a> {
    now: Time,
    around: &'a dyn Around,
    config: &'a Moving,
    records: &'a mut Records,
    permits: &'a mut Permits,
    outbox: &'a mut Outbox,
}

impl<'a> Below<'a> {
    pub(crate) fn new(
        now: Time,
        around: &'a dyn Around,
        config: &'a Moving,
        records: &'a mut Records,
        permits: &'a mut Permits,
        outbox: &'a mut Outbox,
    ) -> Self {
        Self { now, around, config, records, permits, outbox }
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    pub(crate) const fn around(&self) -> &'a dyn Around {
        self.around
    }

    pub(crate) const fn config(&self) -> &'a Moving {
        self.config
    }

    /// This host.
    pub(crate) const fn me(&self) -> PublicKey {
        self.records.me()
    }

    /// A move of this host's own.
    pub(crate) fn own(&self, number: u64) -> MoveName {
        MoveName { donor: *self.me().as_bytes(), number }
    }

    /// Who may hand over what.
    pub(crate) fn permits(&mut self) -> &mut Permits {
        self.permits
    }

    /// Says something to a host, be it this one.
    pub(crate) fn send(&mut self, to: PublicKey, record: Record) {
        self.records.send(self.now, to, record);
    }

    /// Of those that something waited for a word of, and those that it waits for now.
    pub(crate) fn wait(&mut self, before: &[PublicKey], after: &[PublicKey]) {
        self.records.wait(self.now, before, after);
    }

    /// Where a host is to be asked for, should no peer be known of it.
    pub(crate) fn hint(&mut self, host: PublicKey, at: Option<SocketAddr>) {
        self.records.hint(host, at);
    }

    /// How much of what is said to a host it has acknowledged, in bytes.
    pub(crate) fn heard(&self, host: &PublicKey) -> u64 {
        self.records.heard(host)
    }

    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        self.outbox
    }

    pub(crate) fn ask(&mut self, op: MoveOp, asked: Asked) {
        self.outbox.ask(op, asked);
    }

    /// Asks for something that nothing waits for, until it succeeds.
    pub(crate) fn effect(&mut self, what: &'static str, op: MoveOp) {
        self.outbox.effect(what, op);
    }

    pub(crate) fn event(&mut self, event: MoveEvent) {
        self.outbox.event(event);
    }

    pub(crate) fn change(&mut self, change: FlowChange) {
        self.outbox.changes.push_back(change);
    }

    /// A flow's socket is on its way, from here or to here, or no more. No flow goes both ways at once.
    pub(crate) fn reserve(&mut self, flow: FlowTuple, reserved: bool) {
        self.outbox.reservations.push((flow, reserved));
    }
}
