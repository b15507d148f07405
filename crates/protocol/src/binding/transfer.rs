//! What the roles have below them that have flows go from host to host: what they may ask, and what they write.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Received, Record, Stretch, Terms};

use crate::Time;
use crate::base::Base;
use crate::base::config::Config;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::PeerId;
use crate::base::op::relocation::{MoveOp, Moving, Rented};
use crate::base::output::MoveAsked;
use crate::base::pace::KEEPALIVE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::base::watched::Watched;
use crate::binding::BindingLayer;
use crate::session::permits::Permits;
use crate::session::pins::Pin;
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

/// What a role writes below it.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Holder: the flow is one with its owner. It is answered.
    Lead(Lead),
    /// Acceptor: the flow is one with the holder. It is answered.
    Adopt(Adopt),
    /// Donor: it has nothing to do with the flow any more.
    Release { tuple: FlowTuple },
    /// Holder: the flow that it passes on is over, and its owner is to know that.
    End { tuple: FlowTuple },
    /// Donor and acceptor: the flow's socket is on its way, from here or to here, or no more. No flow goes both ways at
    /// once.
    Reserve { tuple: FlowTuple, reserved: bool },
    /// Anchor and tenant: a lease depends on this host, so that it is to be known over a restart.
    Remember { key: PublicKey },
    /// These are the hosts that a role pins so.
    Pin(Pin, BTreeSet<PublicKey>),
}

/// A flow that a holder leads to the host of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    pub(super) flow: FlowName,
    /// As it may be called still.
    pub(super) from: FlowName,
    pub(super) wire_port: u16,
    /// As its far end has it, where that runs nothing.
    pub(super) lent: Option<FlowTuple>,
    /// A daemon before this one has done so.
    pub(super) restored: bool,
}

/// A flow whose socket was moved here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adopt {
    pub(super) name: MoveName,
    pub(super) tuple: FlowTuple,
    pub(super) flow: FlowName,
    pub(super) wire_port: u16,
    pub(super) terms: Terms,
}

impl Lead {
    pub(crate) const fn new(
        flow: FlowName,
        from: FlowName,
        wire_port: u16,
        lent: Option<FlowTuple>,
        restored: bool,
    ) -> Self {
        Self { flow, from, wire_port, lent, restored }
    }
}

impl Adopt {
    pub(crate) const fn new(name: MoveName, tuple: FlowTuple, flow: FlowName, wire_port: u16, terms: Terms) -> Self {
        Self { name, tuple, flow, wire_port, terms }
    }
}

/// What such roles have below them alone, and share.
pub(crate) struct Transfer {
    config: Moving,
    records: Watched<Records>,
    permits: Permits,
    /// What was written, and is not so yet.
    changes: VecDeque<Change>,
    /// Ops that nothing waits for, which have failed and are asked for again, and when.
    failed: Vec<(&'static str, MoveOp)>,
    again: Option<Time>,
    /// The endpoints of others that this host has.
    rented: Vec<Rented>,
}

impl Transfer {
    /// That of a host, if it is to take part in any move.
    pub(crate) fn of(me: PublicKey, config: &Config) -> Option<Box<Self>> {
        let Config { moving, wall_clock_at_zero, .. } = config;
        moving.enabled.then(|| {
            Box::new(Self {
                config: moving.clone(),
                records: Watched::from(Records::new(me, *wall_clock_at_zero)),
                permits: Permits::new(moving.accept_from.clone()),
                changes: VecDeque::new(),
                failed: Vec::new(),
                again: None,
                rented: Vec::new(),
            })
        })
    }

    /// A host says something.
    pub(crate) fn handle_stretch(&mut self, now: Time, from: PublicKey, stretch: Stretch, base: &mut Base) {
        let expected = self.permits.expects(now, &from);
        for record in self.records.handle_stretch(now, from, stretch, expected) {
            base.signal(Signal::Said { from, record });
        }
    }

    /// A host has heard something.
    pub(crate) fn handle_received(&mut self, now: Time, from: PublicKey, received: &Received, base: &mut Base) {
        if self.records.handle_received(now, from, received) {
            base.signal(Signal::Forgotten(from));
        }
    }

    /// There is a session with a host, a new one or at last.
    pub(crate) fn handle_session(&mut self, with: &PublicKey) {
        self.records.handle_session(with);
    }

    /// Something that nothing waits for has failed.
    pub(crate) fn handle_failed(&mut self, now: Time, what: &'static str, op: MoveOp, error: String, base: &mut Base) {
        self.failed.push((what, op));
        base.set_timer_earlier(Timer::Records, *self.again.get_or_insert(now + AGAIN));
        base.event(MoveEvent::OpFailed { what, error });
    }

    /// What is due is said or asked for again.
    pub(crate) fn handle_timeout(&mut self, now: Time, base: &mut Base) {
        if self.again.take_if(|again| *again <= now).is_some() {
            for (what, op) in std::mem::take(&mut self.failed) {
                base.ask_for_move(op.clone(), MoveAsked::Effect(what, Box::new(op)));
            }
        }
        self.records.handle_timeout(now);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn deadline(&self, now: Time, has_session: impl Fn(&PublicKey) -> bool) -> Option<Time> {
        self.records.deadline(now, has_session).into_iter().chain(self.again).min()
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.records.entries() + self.failed.len()
    }
}

/// What a role has below it at one moment.
pub(crate) struct Below<'a> {
    now: Time,
    around: &'a dyn Around,
    transfer: &'a mut Transfer,
    base: &'a mut Base,
}

impl<'a> Below<'a> {
    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    pub(crate) const fn around(&self) -> &'a dyn Around {
        self.around
    }

    pub(crate) const fn config(&self) -> &Moving {
        &self.transfer.config
    }

    /// This host.
    pub(crate) fn me(&self) -> PublicKey {
        self.transfer.records.me()
    }

    /// A move of this host's own.
    pub(crate) fn own(&self, number: u64) -> MoveName {
        MoveName { donor: *self.me().as_bytes(), number }
    }

    /// Who may hand over what.
    pub(crate) fn permits(&mut self) -> &mut Permits {
        &mut self.transfer.permits
    }

    /// Says something to a host, be it this one.
    pub(crate) fn send(&mut self, to: PublicKey, record: Record) {
        if to == self.me() {
            self.signal(Signal::Said { from: to, record });
        } else {
            self.transfer.records.send(self.now, to, &record);
        }
    }

    /// Of those that something waited for a word of, and those that it waits for now.
    pub(crate) fn wait(&mut self, before: &[PublicKey], after: &[PublicKey]) {
        if before != after {
            self.transfer.records.wait(self.now, before, after);
        }
    }

    /// Where a host is to be asked for, should no peer be known of it.
    pub(crate) fn hint(&mut self, host: PublicKey, at: Option<SocketAddr>) {
        self.transfer.records.hint(host, at);
    }

    /// How much of what is said to a host it has acknowledged, in bytes.
    pub(crate) fn heard(&self, host: &PublicKey) -> u64 {
        self.transfer.records.heard(host)
    }

    pub(crate) fn ask(&mut self, op: MoveOp, asked: MoveAsked) {
        self.base.ask_for_move(op, asked);
    }

    /// Asks for something that nothing waits for, until it succeeds.
    pub(crate) fn effect(&mut self, what: &'static str, op: MoveOp) {
        self.ask(op.clone(), MoveAsked::Effect(what, Box::new(op)));
    }

    pub(crate) fn event(&mut self, event: MoveEvent) {
        self.base.event(event);
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.base.signal(signal);
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.transfer.changes.push_back(change);
    }

    /// These are the endpoints of others that this host has.
    pub(crate) fn set_rented(&mut self, rented: Vec<Rented>) {
        self.transfer.rented = rented;
    }

    /// The anchor that lends an endpoint to this host.
    pub(crate) fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        self.transfer.rented.iter().find(|of| of.ends.contain(end)).map(|of| of.anchor)
    }
}

impl BindingLayer {
    /// Has a role do something with what it has below it, and makes so what it writes there. `None`: this host takes no
    /// part in moves.
    pub(crate) fn transfer<T>(
        &mut self,
        now: Time,
        base: &mut Base,
        act: impl FnOnce(&mut Below<'_>) -> T,
    ) -> Option<T> {
        let mut transfer = self.transfer.take()?;
        let done = act(&mut Below { now, around: self, transfer: &mut transfer, base });
        // What becomes of flows by that is not told to those who have asked for it.
        let told = base.hold_signals();
        while let Some(change) = transfer.changes.pop_front() {
            self.carry_out(now, change, base);
        }
        base.release_signals(told, |signal| !matches!(signal, Signal::FlowEnded(_)));
        self.transfer = Some(transfer);
        self.wake_rebound(now, base);
        Some(done)
    }

    fn carry_out(&mut self, now: Time, change: Change, base: &mut Base) {
        match change {
            Change::Lead(lead) => {
                if let Some(result) = self.lead_flow(now, &lead, base) {
                    base.signal(Signal::Led { flow: lead.flow, result });
                }
            }
            Change::Adopt(adopt) => {
                if let Some(result) = self.adopt_flow(now, &adopt, base) {
                    base.signal(Signal::Adopted { name: adopt.name, result });
                }
            }
            // That of a socket without another end is none.
            Change::Release { tuple } if tuple.is_unconnected() || tuple.mirrored().is_unconnected() => {}
            Change::Release { tuple } => self.release_flow(now, &tuple, base),
            Change::End { tuple } => self.end_passed_on(now, &tuple, base),
            Change::Reserve { tuple, reserved } => self.flow.flows_mut().reserve(tuple, reserved),
            Change::Remember { key } => {
                if let Some(id) = self.flow.session().with_key(&key) {
                    self.apply_binding(now, id, base);
                    base.set_timer_earlier(Timer::Keepalive(id), now + KEEPALIVE);
                }
            }
            Change::Pin(pin, hosts) => self.flow.session_mut().pins_mut().set(pin, hosts),
        }
    }

    /// A peer says, or has heard, something about moves; or there is a session with it. Where this host takes part in
    /// any: its key, and who sees to that.
    pub(super) fn transfer_with(&mut self, id: PeerId) -> Option<(PublicKey, &mut Transfer)> {
        let key = self.flow.session().peer(&id)?.key();
        Some((key, self.transfer.as_deref_mut()?))
    }

    /// Sends what may be sent now, and sees that there are sessions where they are needed. Tells whether that may have
    /// been other than the last time.
    pub(crate) fn send_records(&mut self, now: Time, base: &mut Base) -> bool {
        let Some(mut transfer) = self.transfer.take_if(|transfer| transfer.records.take_touched()) else {
            return false;
        };
        let records = &mut transfer.records;
        for key in records.hosts() {
            let known = self.flow.peer_with(&key);
            let known = known.map(|peer| (peer.id(), peer.has_session(), peer.path.check_tries()));
            match known {
                Some((id, true, checks)) => {
                    while let Some(message) = records.poll(now, &key) {
                        self.flow.path_mut().send(id, &[message], base);
                    }
                    let checked = checks > 0 && base.has_timer(Timer::Keepalive(id));
                    if records.doubts(&key) && !checked {
                        // It may have started anew, or be elsewhere. What the check finds out goes on by itself.
                        base.set_timer_earlier(Timer::Keepalive(id), now);
                    }
                }
                Some((id, false, _)) if records.wants(&key) => self.flow.session_mut().reach_again(now, id, base),
                None if records.wants(&key) => {
                    // Where it is a donor may have said, of a host that there is not.
                    let session = self.flow.session_mut();
                    if let Some(to) = records.hinted(now, &key).filter(|_| session.contacts_mut().may_ask_another(now))
                    {
                        session.initiate_with_key(now, Knowledge::Known(key), to, key, base);
                    }
                }
                Some(_) | None => {}
            }
        }
        self.flow.session_mut().pins_mut().set(Pin::Moving, records.wanted().collect());
        records.take_touched();
        match transfer.deadline(now, |key| self.has_session(key)) {
            Some(due) => base.set_timer(Timer::Records, due),
            None => base.stop_timer(Timer::Records),
        }
        self.transfer = Some(transfer);
        true
    }

    /// An op of a move that nothing waits for has failed.
    pub(crate) fn handle_failed(&mut self, now: Time, what: &'static str, op: MoveOp, error: String, base: &mut Base) {
        if let Some(transfer) = &mut self.transfer {
            transfer.handle_failed(now, what, op, error, base);
        }
    }

    /// Who may hand over what, where this host takes part in moves.
    pub(crate) fn permits(&self) -> Option<&Permits> {
        self.transfer.as_ref().map(|transfer| &transfer.permits)
    }

    /// The same, to be changed.
    pub(crate) fn permits_mut(&mut self) -> Option<&mut Permits> {
        self.transfer.as_mut().map(|transfer| &mut transfer.permits)
    }

    /// Entries of all tables of what is said between hosts.
    pub(crate) fn transfer_entries(&self) -> usize {
        self.transfer.as_ref().map_or(0, |transfer| transfer.entries())
    }
}

#[cfg(test)]
impl Transfer {
    pub(crate) fn below<'a>(&'a mut self, now: Time, around: &'a dyn Around, base: &'a mut Base) -> Below<'a> {
        Below { now, around, transfer: self, base }
    }

    pub(crate) fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    pub(crate) fn records(&mut self) -> &mut Records {
        &mut self.records
    }

    pub(crate) fn permits_mut(&mut self) -> &mut Permits {
        &mut self.permits
    }

    pub(crate) fn config(&mut self) -> &mut Moving {
        &mut self.config
    }
}

#[cfg(test)]
impl Lead {
    pub(crate) const fn flow(&self) -> FlowName {
        self.flow
    }

    pub(crate) const fn wire_port(&self) -> u16 {
        self.wire_port
    }
}

#[cfg(test)]
impl Adopt {
    pub(crate) const fn name(&self) -> MoveName {
        self.name
    }
}
