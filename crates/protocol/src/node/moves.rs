//! Moves of sockets and leases of endpoints: which role hears what, and what the sessions and the table of flows have
//! to do with it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::{Contact as Knowledge, PublicKey, StaticKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{LoadStanding, MoveName, Received, Record, Stretch, Terms};

use crate::Time;
use crate::base::config::Config;
use crate::base::flow_name::FlowName;
use crate::base::grant::Grant;
use crate::base::op::PeerId;
use crate::base::op::relocation::{
    Dependents, Found, Gift, LeaseName, Moving, NotGiven, Rented, SavedAcceptance, SavedDonation, SavedHeld,
    SavedLease, SavedTenancy,
};
use crate::base::output::{OpDone, OpFailed};
use crate::base::pace::KEEPALIVE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::transfer::{Around, Asked, Below, FlowChange, MoveOpId, Outbox};
use crate::flow::Flow;
use crate::node::Node;
use crate::role::anchor::lessor::Lessor;
use crate::role::anchor::tenant::Tenant;
use crate::role::relocation::{Claim, Claimed, Relocation};
use crate::session::permits::Permits;
use crate::session::pins::Pin;
use crate::session::records::Records;

/// The moment of an input, and what is around it.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    now: Time,
    around: &'a dyn Around,
}

/// The roles that have flows go from host to host, and what they have below them alone.
pub(crate) struct Moves {
    config: Moving,
    records: Records,
    permits: Permits,
    outbox: Outbox,
    relocation: Relocation,
    lessor: Lessor,
    tenant: Tenant,
}

/// The roles, and what is below them at a moment.
struct Roles<'a> {
    below: Below<'a>,
    relocation: &'a mut Relocation,
    lessor: &'a mut Lessor,
    tenant: &'a mut Tenant,
}

/// What the flow of a lease would be called, if its endpoint had gone with a socket.
const fn flow_of(lease: &LeaseName) -> FlowName {
    FlowName::new(lease.tenant, lease.number)
}

impl Roles<'_> {
    /// A lease is over, and where its endpoint went with a socket the flow that is held for that.
    fn end_lease(&mut self, name: LeaseName) {
        if self.lessor.contains(&name) && self.relocation.moved_endpoint(&flow_of(&name)).is_some() {
            self.relocation.end_flow(self.below.outbox(), flow_of(&name));
        }
        self.lessor.end_lease(&mut self.below, name);
    }

    /// Ends the leases of hosts that had a socket before. Only once what comes for it goes elsewhere: at no moment may
    /// this host itself answer that nobody is there.
    fn end_former_leases(&mut self, flow: FlowName) {
        for tenant in self.relocation.former_owners(&flow) {
            self.end_lease(LeaseName { tenant, number: flow.value() });
        }
    }

    /// A tenant names a connection of an endpoint that is lent to it, or the endpoint itself.
    fn handle_claim(&mut self, claim: &Claim) {
        let (tenant, tuple) = (claim.flow().peer(), claim.tuple());
        let leased = self.lessor.lending(tenant, tuple.local).any(|name| {
            let moved = self.relocation.moved_endpoint(&flow_of(name));
            moved.is_none_or(|far| far.transport == tuple.transport)
        });
        let claimed = self.relocation.judge_claim(&self.below, claim, leased);
        if let Claimed::Granted { before: Some(before) } = claimed {
            self.relocation.end_flow(self.below.outbox(), before);
            // That of an endpoint is a lease.
            self.end_lease(LeaseName { tenant, number: before.value() });
        }
        self.relocation.settle_claim(&mut self.below, claim, claimed);
    }

    /// Hosts may take part no more: what is under way with them ends, as far as it is not decided.
    fn end_forbidden(&mut self) {
        let Self { below, relocation, lessor, .. } = self;
        let forbidden = lessor.forbidden(below, |name| relocation.moved_endpoint(&flow_of(name)).is_some());
        for name in forbidden {
            self.lessor.forbid(&mut self.below, name);
            self.end_lease(name);
        }
        self.relocation.end_revoked(&mut self.below);
        self.relocation.end_unpermitted(&mut self.below);
    }

    /// A socket of this host's own without another end is with another host now, or is back (P-96). `None`: the result
    /// comes later.
    fn lend_moved(&mut self, flow: FlowName, far: FlowTuple) -> Option<Result<Terms, String>> {
        if flow.peer() != self.below.me() {
            return self.lessor.lend_moved(&mut self.below, flow, far);
        }
        self.end_former_leases(flow);
        Some(Ok(Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false }))
    }

    /// The same, with what comes of it.
    fn handle_endpoint_led(&mut self, flow: FlowName, far: FlowTuple) {
        let Some(done) = self.lend_moved(flow, far) else { return };
        let back = flow.peer() == self.below.me() && done.is_ok();
        self.relocation.handle_led(&mut self.below, flow, done);
        if back {
            // There is nobody any more whom this host would have to tell where it is.
            self.relocation.end_flow(self.below.outbox(), flow);
        }
    }

    fn handle_adopted(&mut self, name: MoveName, result: Result<(), String>) {
        if !self.tenant.handle_adopted(&mut self.below, name, &result) {
            self.relocation.handle_adopted(&mut self.below, name, result);
        }
    }

    /// A host says something.
    fn hear(&mut self, from: PublicKey, record: Record) {
        let below = &mut self.below;
        // Whatever a host calls a flow is one of its own (P-132).
        let flow_of = |value| FlowName::new(from, value);
        match record {
            Record::Lease { number, ends } => {
                let moved = self.relocation.moved_endpoint(&flow_of(number)).is_some();
                if !self.lessor.handle_lease(below, from, number, ends, moved) {
                    self.end_lease(LeaseName { tenant: from, number });
                }
            }
            Record::Return { number } => self.end_lease(LeaseName { tenant: from, number }),
            Record::Claim { flow, tuple, wire_port, hidden } => {
                self.handle_claim(&Claim::new(flow_of(flow), tuple, wire_port, hidden));
            }
            Record::Leased { number, outcome } => self.tenant.handle_leased(below, flow_of(number), outcome),
            Record::Offer { number, ports } => self.tenant.handle_offer(flow_of(number), ports),
            Record::Reached { number, reached } => self.tenant.handle_reached(below, flow_of(number), reached),
            Record::Verdict { name, outcome } if self.tenant.handle_verdict(below, name, from, outcome) => {}
            record => {
                let lessor = match &record {
                    Record::Ask { request, .. } => self.tenant.lessor_of(request.tuple.local),
                    _ => None,
                };
                self.relocation.handle_record(below, from, record, lessor);
            }
        }
    }

    /// The result of an op.
    fn handle_done(&mut self, asked: Asked, result: Result<OpDone, OpFailed>) {
        let below = &mut self.below;
        match asked {
            Asked::Lease(name) => {
                let moved = self.relocation.moved_endpoint(&flow_of(&name));
                let Some(led) = self.lessor.handle_lent(below, name, result, moved) else { return };
                if led.is_ok() {
                    self.end_former_leases(flow_of(&name));
                }
                self.relocation.handle_led(&mut self.below, flow_of(&name), led);
            }
            Asked::Tenancy(lease) => {
                let claimed = self.tenant.claimed_endpoint(below, &lease);
                let comes = claimed.or_else(|| self.relocation.coming_with(&lease));
                let done = self.tenant.handle_occupied(below, lease, result, comes.is_some());
                if let Some((name, done)) = comes.zip(done) {
                    self.handle_adopted(name, done);
                }
            }
            asked => self.relocation.handle_done(below, asked, result),
        }
    }
}

impl Moves {
    /// Those of a host, if it is to take part in any.
    pub(crate) fn of(key: &StaticKey, config: &Config) -> Option<Box<Self>> {
        let taking_part = config.moving.enabled;
        taking_part.then(|| Box::new(Self::new(key, config.moving.clone(), config.wall_clock_at_zero)))
    }

    fn new(key: &StaticKey, config: Moving, wall_clock_at_zero: u64) -> Self {
        Self {
            records: Records::new(key.public(), wall_clock_at_zero),
            permits: Permits::new(config.accept_from.clone()),
            config,
            outbox: Outbox::default(),
            relocation: Relocation::new(key),
            lessor: Lessor::default(),
            tenant: Tenant::default(),
        }
    }

    fn roles<'a>(&'a mut self, at: At<'a>) -> Roles<'a> {
        let Self { config, records, permits, outbox, relocation, lessor, tenant } = self;
        let below = Below::new(at.now, at.around, config, records, permits, outbox);
        Roles { below, relocation, lessor, tenant }
    }

    fn act<T>(&mut self, at: At<'_>, act: impl FnOnce(&mut Roles<'_>) -> T) -> T {
        act(&mut self.roles(at))
    }

    /// What this host has said to itself is heard.
    fn hear_own(&mut self, at: At<'_>) {
        let me = self.records.me();
        while let Some(record) = self.records.poll_own() {
            self.roles(at).hear(me, record);
        }
    }

    fn handle_stretch(&mut self, at: At<'_>, from: PublicKey, stretch: Stretch) {
        let expected = self.permits.expects(&from);
        for record in self.records.handle_stretch(at.now, from, stretch, expected) {
            self.roles(at).hear(from, record);
            self.hear_own(at);
        }
    }

    fn handle_received(&mut self, at: At<'_>, from: PublicKey, received: &Received) {
        if self.records.handle_received(at.now, from, received) {
            let Roles { mut below, relocation, tenant, .. } = self.roles(at);
            relocation.send_again(&mut below, from);
            tenant.send_again(&mut below, from);
        }
    }

    /// There is a session with a host.
    fn handle_session(&mut self, at: At<'_>, with: PublicKey) {
        self.records.handle_session(&with);
        let Roles { mut below, relocation, lessor, .. } = self.roles(at);
        lessor.send_all_reached(&mut below, with);
        relocation.handle_session(&mut below, &with);
    }

    pub(crate) fn handle_done(&mut self, at: At<'_>, id: MoveOpId, result: Result<OpDone, OpFailed>) {
        match (self.outbox.answered(id), result) {
            (Some(Asked::Effect(what, op)), Err(failed)) => self.outbox.fail(at.now, what, *op, failed.sentence),
            (Some(asked), result) => self.roles(at).handle_done(asked, result),
            (None, _) => {}
        }
        self.hear_own(at);
    }

    fn handle_timeout(&mut self, at: At<'_>) {
        let mut roles = self.roles(at);
        roles.relocation.handle_timeout(&mut roles.below);
        while let Some(name) = roles.lessor.handle_timeout(&mut roles.below) {
            roles.end_lease(name);
        }
        roles.tenant.handle_timeout(&mut roles.below);
        for (what, op) in self.outbox.take_failed(at.now) {
            if let Some(op) = self.relocation.anew(op) {
                self.outbox.effect(what, op);
            }
        }
        self.hear_own(at);
        self.records.handle_timeout(at.now);
    }

    fn deadline(&self, at: At<'_>) -> Option<Time> {
        let records = self.records.deadline(at.now, |key| at.around.has_session(key));
        let roles = [self.relocation.deadline(), self.lessor.deadline(), self.tenant.deadline()];
        roles.into_iter().chain([records, self.outbox.deadline()]).flatten().min()
    }

    /// Whether the socket of a flow that this host passes on has ended.
    pub(crate) fn is_ending(&self, flow: &FlowName) -> bool {
        self.relocation.is_ending(flow)
    }

    /// Whether the far end of a flow that this host passes on for another is not to learn where its socket is.
    pub(crate) fn hides(&self, flow: &FlowName) -> bool {
        self.relocation.hides(flow)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let roles = self.relocation.entries() + self.lessor.entries() + self.tenant.entries();
        roles + self.records.entries() + self.outbox.entries()
    }
}

impl Node {
    /// Does something with the moves, and what follows from it.
    fn with_moves<T>(&mut self, now: Time, act: impl FnOnce(&mut Moves, At<'_>) -> T) -> Option<T> {
        let mut moves = self.moves.take()?;
        let at = At { now, around: &self.binding };
        let done = act(&mut moves, at);
        moves.hear_own(at);
        // What moves do to flows is not told to them.
        let told = self.base.hold_signals();
        self.change_flows(now, &mut moves);
        self.base.release_signals(told, |signal| !matches!(signal, Signal::FlowEnded(_)));
        self.moves = Some(moves);
        self.binding.wake_rebound(now, &mut self.base);
        self.carry_moves(now);
        self.give_out_moves();
        Some(done)
    }

    /// The same with the roles.
    fn with_roles<T>(&mut self, now: Time, act: impl FnOnce(&mut Roles<'_>) -> T) -> Option<T> {
        self.with_moves(now, |moves, at| moves.act(at, act))
    }

    /// Writes down below what moves need there, and passes on what they ask of the caller and tell it.
    fn give_out_moves(&mut self) {
        let Some(moves) = &mut self.moves else { return };
        for (flow, reserved) in moves.outbox.take_reservations() {
            self.binding.flow.flows.reserve(flow, reserved);
        }
        let pins = &mut self.binding.flow.path.session.contacts.pins;
        pins.set(Pin::Moving, moves.records.wanted().collect());
        if let Some(tenants) = moves.lessor.take_tenants() {
            pins.set(Pin::Lent, tenants);
        }
        if let Some(lessors) = moves.tenant.take_lessors() {
            pins.set(Pin::Rented, lessors);
        }
        self.community.set_grants(moves.permits.grants().copied().collect());
        while let Some((number, op)) = moves.outbox.poll_op() {
            self.base.ask_for_move(op, number);
        }
        while let Some(event) = moves.outbox.poll_event() {
            self.base.event(event);
        }
    }

    /// Does what moves ask of the table of flows, and what follows from it.
    fn change_flows(&mut self, now: Time, moves: &mut Moves) {
        while let Some(change) = moves.outbox.poll_change() {
            match change {
                FlowChange::Lead { flow, lent: Some(far), .. } if far.mirrored().is_unconnected() => {
                    moves.act(At { now, around: &self.binding }, |roles| roles.handle_endpoint_led(flow, far));
                }
                FlowChange::Adopt { name, tuple, flow, .. } if tuple.is_unconnected() => {
                    moves.act(At { now, around: &self.binding }, |roles| {
                        if let Some(done) = roles.tenant.rent_moved(&mut roles.below, flow, tuple) {
                            roles.handle_adopted(name, done);
                        }
                    });
                }
                FlowChange::Release { tuple } if tuple.is_unconnected() || tuple.mirrored().is_unconnected() => {}
                FlowChange::Part { lease } => {
                    let at = At { now, around: &self.binding };
                    moves.act(at, |roles| roles.tenant.part(&mut roles.below, lease));
                }
                FlowChange::Lead { flow, from, wire_port, lent, restored } => {
                    if lent.is_none()
                        && self.binding.flow_named(&flow).or_else(|| self.binding.flow_named(&from)).is_none()
                    {
                        // It ended between announcement and commit. Whoever has rebuilt the socket is not to wait for a
                        // way to nobody.
                        moves.relocation.end_flow(&mut moves.outbox, flow);
                    }
                    let hidden = moves.relocation.hides(&flow);
                    let (low, base) = (&mut self.binding, &mut self.base);
                    if let Some(done) = low.lead_flow(now, flow, from, wire_port, lent, restored, hidden, base) {
                        let at = At { now, around: &self.binding };
                        moves.act(at, |roles| roles.relocation.handle_led(&mut roles.below, flow, done));
                    }
                }
                FlowChange::Adopt { name, tuple, flow, wire_port, terms } => {
                    let (low, base) = (&mut self.binding, &mut self.base);
                    if let Some(done) = low.adopt_flow(now, name, tuple, flow, wire_port, &terms, base) {
                        let at = At { now, around: &self.binding };
                        moves.act(at, |roles| roles.handle_adopted(name, done));
                    }
                }
                FlowChange::Release { tuple } => self.binding.release_flow(now, &tuple, &mut self.base),
                FlowChange::End { tuple } => self.binding.end_passed_on(now, &tuple, &mut self.base),
                FlowChange::Remember { key } => {
                    if let Some(id) = self.binding.flow.path.session.by_key.get(&key).copied() {
                        self.binding.apply_binding(now, id, &mut self.base);
                        self.base.set_timer_earlier(Timer::Keepalive(id), now + KEEPALIVE);
                    }
                }
            }
            moves.hear_own(At { now, around: &self.binding });
        }
    }

    /// The data plane knows a flow that this host holds, or could not be told.
    pub(crate) fn handle_led(&mut self, now: Time, flow: FlowName, result: Result<(), String>) {
        let hidden = self.moves.as_ref().is_none_or(|moves| moves.hides(&flow));
        let terms = self.binding.terms_of(&flow, hidden);
        if result.is_ok() {
            // Where the former place was lost with its host, senders wait. The new owner hears first.
            let led_to = self.binding.led_to(&flow);
            self.binding.flow.rebound.extend(led_to);
        }
        self.with_roles(now, |roles| {
            let result = result.and_then(|()| terms.ok_or_else(|| "the flow is over".to_owned()));
            roles.relocation.handle_led(&mut roles.below, flow, result);
        });
    }

    /// The data plane knows a flow that was moved here, or could not be told.
    pub(crate) fn handle_adopted(&mut self, now: Time, name: MoveName, result: Result<(), String>) {
        self.with_roles(now, |roles| roles.handle_adopted(name, result));
    }

    /// The result of an op of a move or a lease.
    pub(crate) fn handle_move_done(&mut self, now: Time, number: MoveOpId, result: Result<OpDone, OpFailed>) {
        self.with_moves(now, |moves, at| moves.handle_done(at, number, result));
    }

    /// Begins to give a socket away (`docs/protocol.md` §9). What becomes of it is told by events.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn give_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, false)
    }

    /// As [`Node::give_socket`], but the others only get ready, which
    /// [`MoveEvent::Prepared`](crate::MoveEvent::Prepared) tells. Nothing happens to the socket before
    /// [`Node::give_prepared`]; where that does not come for half a minute, or the move is [called
    /// off](Node::cancel_move), it stays.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn prepare_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, true)
    }

    /// A socket that is [prepared](Node::prepare_socket), or about to be, goes. `false`: it is not, or not any more.
    pub fn give_prepared(&mut self, now: Time, name: MoveName) -> bool {
        let own = name.donor == *self.base.public_key().as_bytes();
        own && self.with_roles(now, |roles| roles.relocation.go_on(&mut roles.below, name.number)).unwrap_or(false)
    }

    fn give(&mut self, now: Time, gift: Gift, waits: bool) -> Result<MoveName, NotGiven> {
        let number = self.base.random().u64();
        let given = self.with_roles(now, |roles| roles.relocation.give(&mut roles.below, number, gift, waits));
        given.unwrap_or(Err(NotGiven::Disabled))
    }

    /// Whoever asked for a move wants it no more. It may be too late for that: an event tells.
    pub fn cancel_move(&mut self, now: Time, name: MoveName) {
        if name.donor == *self.base.public_key().as_bytes() {
            self.with_roles(now, |roles| roles.relocation.cancel(&mut roles.below, name.number));
        }
    }

    /// The socket of a move is gone from this host, though nobody was asked to destroy it: its program ended, or who
    /// was to receive it.
    pub fn handle_move_socket_gone(&mut self, now: Time, name: MoveName) {
        self.with_roles(now, |roles| roles.relocation.handle_gone(&mut roles.below, name));
    }

    /// Sends what a process needs ahead of its connections, whose host will be `to`. What comes of it is told by
    /// [`LoadAnswered`](crate::MoveEvent::LoadAnswered) under the number that is given back. `None`: this host takes no
    /// part in moves, or may not give that host anything.
    pub fn send_load(&mut self, now: Time, to: PublicKey, bytes: Vec<u8>) -> Option<u64> {
        let number = self.base.random().u64();
        let sent = self.with_roles(now, |roles| roles.relocation.send_load(&mut roles.below, number, to, bytes));
        sent.unwrap_or(false).then_some(number)
    }

    /// Tells the donor of a process how it stands here.
    pub fn answer_load(&mut self, now: Time, name: MoveName, standing: LoadStanding, sentence: &str) {
        self.with_roles(now, |roles| roles.relocation.answer_load(&mut roles.below, name, standing, sentence));
    }

    /// This host holds the far end of a flow for another host, as an anchor does. To be said again after a restart,
    /// behind [`Node::restore_moves`]: what was moved since is known from there.
    ///
    /// `far` is the flow as its far end has it, which runs nothing.
    pub fn lend_flow(&mut self, flow: FlowName, far: FlowTuple) {
        if let Some(moves) = &mut self.moves {
            moves.relocation.lend(flow, far);
        }
    }

    /// A flow that this host holds for others is over at its far end, or its lease has run out.
    pub fn end_held_flow(&mut self, now: Time, flow: FlowName) {
        self.with_roles(now, |roles| roles.relocation.end_flow(roles.below.outbox(), flow));
    }

    /// An end's socket of a flow is gone: whoever has the other end, it moves no more.
    pub(super) fn end_moved_flow(&mut self, name: FlowName) {
        if let Some(moves) = &mut self.moves {
            moves.relocation.end_flow(&mut moves.outbox, name);
        }
        self.give_out_moves();
    }

    /// The socket of a flow whose far end another host holds has ended here.
    pub(crate) fn send_ending(&mut self, now: Time, name: FlowName) {
        self.with_roles(now, |roles| roles.relocation.send_ending(&mut roles.below, name));
    }

    /// Takes over what a daemon before this one left in the middle of. To be called once, behind [`Node::restore`] and
    /// with the network told: what was not decided is asked for.
    pub fn restore_moves(
        &mut self,
        now: Time,
        donations: &[(SavedDonation, Found)],
        acceptances: &[(SavedAcceptance, Found)],
        held: &[SavedHeld],
    ) {
        self.with_roles(now, |roles| roles.relocation.restore(&mut roles.below, donations, acceptances, held));
    }

    /// Takes over leases of a daemon before this one. To be called once, behind [`Node::restore_moves`].
    pub fn restore_leases(&mut self, now: Time, lent: &[SavedLease], rented: &[SavedTenancy]) {
        self.with_roles(now, |roles| {
            let Roles { below, relocation, lessor, tenant } = roles;
            // What went with a socket is led there already, as all that has moved.
            let is_moved = |saved: &&SavedLease| relocation.moved_endpoint(&flow_of(&saved.name)).is_some();
            let lent: Vec<SavedLease> = lent.iter().filter(|saved| !is_moved(saved)).copied().collect();
            lessor.restore(below, &lent);
            tenant.restore(below, rented);
        });
    }

    /// Asks an anchor for endpoints: [`Leased`](crate::MoveEvent::Leased) or [`NotLeased`](crate::MoveEvent::NotLeased)
    /// tell what comes of it, under the name that is given. `anchor_at`: where it is, if no peer has this key yet.
    /// Endpoints that are not definite are the anchor's to choose.
    pub fn lease(
        &mut self,
        now: Time,
        anchor: PublicKey,
        anchor_at: Option<SocketAddr>,
        ends: Ends,
    ) -> Option<FlowName> {
        let number = self.base.random().u64();
        self.with_roles(now, |roles| {
            roles.tenant.rent(&mut roles.below, number, anchor, anchor_at, ends);
            FlowName::new(anchor, number)
        })
    }

    /// The endpoints of a lease are not needed any more.
    pub fn return_lease(&mut self, now: Time, lease: FlowName) {
        self.with_roles(now, |roles| roles.tenant.give_up_lease(&mut roles.below, lease));
    }

    /// Has a connection of a leased endpoint be a flow of this host and its anchor:
    /// [`Claimed`](crate::MoveEvent::Claimed) tells what comes of it. `hidden`: the far end is not to learn where this
    /// host is (P-87). `false`: its local end is not leased.
    pub fn claim_flow(&mut self, now: Time, tuple: FlowTuple, hidden: bool) -> bool {
        let flow = self.base.random().u64();
        self.with_roles(now, |roles| roles.tenant.claim(&mut roles.below, flow, tuple, hidden)).unwrap_or(false)
    }

    /// The anchor that lends an endpoint to this host.
    #[must_use]
    pub fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        self.moves.as_ref()?.tenant.lessor_of(end)
    }

    /// Lends nothing new from now on, or does again. What is lent stays so until its end.
    pub fn stop_lending(&mut self, stopping: bool) {
        if let Some(moves) = &mut self.moves {
            moves.lessor.stop_lending(stopping);
        }
    }

    /// These are all addresses of endpoints that this host lends at which it is not reached any more, since it does not
    /// have them: their tenants are told.
    pub fn on_unreached(&mut self, now: Time, addresses: BTreeSet<IpAddr>) {
        self.with_roles(now, |roles| roles.lessor.on_unreached(&mut roles.below, addresses));
    }

    /// What this host lends to whom, and the flows that it passes on for others, as their far ends have them, by who
    /// has the sockets.
    #[must_use]
    pub fn dependents(&self) -> Dependents {
        let Some(moves) = &self.moves else { return Dependents::default() };
        let passed_on = moves.relocation.passed_on(self.base.public_key()).collect();
        Dependents { lent: moves.lessor.lent().collect(), passed_on }
    }

    /// The endpoints of others that this host has.
    pub fn rented(&self) -> impl Iterator<Item = Rented> {
        self.moves.as_ref().into_iter().flat_map(|moves| moves.tenant.rented())
    }

    /// Entries of all tables of moves together, with one for each flow that is held for others.
    #[must_use]
    pub fn move_entries(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.entries())
    }

    /// Who holds the far end of a connection of this host's, with what the two call it, and where that is: the peer
    /// that it is one with; else this host itself, which lends its address, under a name that is drawn now.
    pub fn holder_of(&mut self, flow: &FlowTuple) -> (FlowName, Option<SocketAddr>) {
        let own = FlowName::new(self.base.public_key(), self.base.random().u64());
        if flow.is_unconnected() {
            let came = |rented: &Rented| rented.moved == Some(flow.transport) && rented.ends.contain(flow.local);
            let lease = self.rented().find(came);
            return match lease {
                Some(Rented { number, anchor, .. }) => {
                    (FlowName::new(anchor, number), self.binding.whereabouts(&anchor))
                }
                None => (own, None),
            };
        }
        let entry = self.binding.flow.flows.get(flow).filter(|known| !known.closed).and_then(Flow::entry);
        let peer = entry.and_then(|entry| Some((entry, peer!(self.binding.flow, &entry.peer)?)));
        match peer {
            Some((entry, peer)) => (FlowName::new(peer.key, entry.name), Some(peer.path.remote())),
            None => (own, None),
        }
    }

    /// A peer says something about moves.
    pub(crate) fn handle_move_message(&mut self, now: Time, id: PeerId, message: Message) {
        let Some(key) = self.binding.flow.path.session.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| match message {
            Message::Stream(stretch) => moves.handle_stretch(at, key, stretch),
            Message::Received(received) => moves.handle_received(at, key, &received),
            _ => {}
        });
    }

    /// There is a new session with a peer.
    pub(crate) fn on_move_session(&mut self, now: Time, id: PeerId) {
        let Some(key) = self.binding.flow.path.session.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| moves.handle_session(at, key));
    }

    /// Something is due.
    pub(crate) fn continue_moves(&mut self, now: Time) {
        self.with_moves(now, Moves::handle_timeout);
    }

    /// Sends what may be sent now, and sees that there are sessions where they are needed.
    fn carry_moves(&mut self, now: Time) {
        let Some(mut moves) = self.moves.take() else { return };
        let records = &mut moves.records;
        for key in records.hosts() {
            let id = self.binding.flow.path.session.by_key.get(&key);
            let known = id.and_then(|id| peer!(self.binding.flow, id));
            let known = known.map(|peer| (peer.id, peer.has_session(), peer.path.check_tries()));
            let session = &mut self.binding.flow.path.session;
            match known {
                Some((id, true, checks)) => {
                    while let Some(message) = records.poll(now, &key) {
                        self.binding.flow.path.send(id, &[message], &mut self.base);
                    }
                    let checked = checks > 0 && self.base.has_timer(Timer::Keepalive(id));
                    if records.doubts(&key) && !checked {
                        // It may have started anew, or be elsewhere. What the check finds out goes on by itself.
                        self.base.set_timer_earlier(Timer::Keepalive(id), now);
                    }
                }
                Some((id, false, _)) if records.wants(&key) => session.reach_again(now, id, &mut self.base),
                None if records.wants(&key) => {
                    // Where it is a donor may have said, of a host that there is not.
                    if let Some(to) = records.hinted(now, &key).filter(|_| session.contacts.may_ask_another(now)) {
                        session.initiate_with_key(now, Knowledge::Known(key), to, key, &mut self.base);
                    }
                }
                Some(_) | None => {}
            }
        }
        let due = moves.deadline(At { now, around: &self.binding });
        match due {
            Some(due) => self.base.set_timer(Timer::Moves, due),
            None => self.base.stop_timer(Timer::Moves),
        }
        self.moves = Some(moves);
    }

    // ---- whom sockets may go to

    /// The hosts of the community are these, beside this one, and others were `revoked`. What is under way with others
    /// comes to nothing.
    pub(crate) fn set_permitted(
        &mut self,
        now: Time,
        members: BTreeSet<PublicKey>,
        revoked: BTreeSet<PublicKey>,
        limited: bool,
    ) {
        self.with_roles(now, |roles| {
            roles.below.permits().set_members(members, revoked, limited);
            roles.end_forbidden();
        });
    }

    /// A stranger may be given a connection, or this host one of a stranger's, once.
    pub(crate) fn grant(&mut self, grant: Grant) {
        if let Some(moves) = &mut self.moves {
            moves.permits.grant(grant);
        }
        self.give_out_moves();
    }

    /// Takes a grant back. Tells whether there was one.
    pub(crate) fn withdraw_grant(&mut self, now: Time, number: u16) -> bool {
        let withdrawn = self.with_roles(now, |roles| {
            let withdrawn = roles.below.permits().withdraw(number);
            roles.relocation.end_unpermitted(&mut roles.below);
            withdrawn
        });
        withdrawn.unwrap_or(false)
    }

    /// Whether a connection of this host's may be given to another.
    #[must_use]
    pub fn may_give(&self, now: Time, to: &PublicKey, flow: &FlowTuple) -> bool {
        self.moves.as_ref().is_some_and(|moves| moves.permits.may_give(now, to, flow))
    }
}
