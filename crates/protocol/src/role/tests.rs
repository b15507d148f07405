//! Single roles, with words that an honest host would not say, or not then.

mod alike;
mod bounds;
mod endpoints;
mod entrusted;

mod leases;
mod loads;
mod names;
mod together;

mod liars;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{PublicKey, StaticKey};
use whimbrel_wire::lending::Ends;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{
    AcceptorStanding, Decision, LoadStanding, MAX_PART, MoveName, Received, Record, Refusal, Request, Stretch, Terms,
    Ticket,
};
use whimbrel_wire::snapshot::Family;
use whimbrel_wire::{FlowTuple, Transport};

use super::Role;
use super::anchor::Anchor;
use super::relocation::Relocation;
use crate::Time;
use crate::base::Base;
use crate::base::config::Config;
use crate::base::event::Event;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{Gift, LeaseName, MoveOp, Moving, NotGiven, SavedHeld, SavedLease, SavedTenancy};
use crate::base::op::{Op, PeerId};
use crate::base::output::{Asked, MoveAsked, OpDone, OpFailed, OpId, Output};
use crate::base::random::Random;
use crate::base::signal::Signal;
use crate::binding::transfer::{Around, Below, Change, Transfer};
use crate::session::permits::Permits;
use crate::session::records::Records;

const FLOW: u64 = 77;
const NUMBER: u64 = 5;
const DONOR: usize = 0;
const ACCEPTOR: usize = 1;
const HOLDER: usize = 2;
const THIEF: usize = 3;

fn secret(of: usize) -> StaticKey {
    StaticKey::from_bytes([8 * (of as u8 + 1); 32])
}

fn key(of: usize) -> PublicKey {
    secret(of).public()
}

/// What a flow is called with one of them.
fn with(of: usize, flow: u64) -> FlowName {
    FlowName::new(key(of), flow)
}

fn name(number: u64) -> MoveName {
    MoveName { donor: *key(DONOR).as_bytes(), number }
}

/// Everybody has a session with everybody.
struct Known;

/// The same, where every flow is known already.
struct Occupied;

impl Around for Occupied {
    fn has_session(&self, with: &PublicKey) -> bool {
        Known.has_session(with)
    }
    fn flow(&self, name: &FlowName) -> Option<FlowTuple> {
        Known.flow(name)
    }
    fn is_known(&self, _: &FlowTuple) -> bool {
        true
    }
    fn partner(&self, _: &FlowTuple) -> Option<PublicKey> {
        Some(key(THIEF))
    }
    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16> {
        Known.wire_port(with, flow)
    }
    fn peer(&self, of: &PublicKey) -> Option<PeerId> {
        Known.peer(of)
    }
    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr> {
        Known.whereabouts(of)
    }
}

impl Around for Known {
    fn has_session(&self, _: &PublicKey) -> bool {
        true
    }
    fn flow(&self, _: &FlowName) -> Option<FlowTuple> {
        None
    }
    fn is_known(&self, _: &FlowTuple) -> bool {
        false
    }
    fn partner(&self, _: &FlowTuple) -> Option<PublicKey> {
        None
    }
    fn wire_port(&self, _: &PublicKey, flow: &FlowTuple) -> Option<u16> {
        Some(flow.local.port())
    }
    fn peer(&self, of: &PublicKey) -> Option<PeerId> {
        Some(PeerId(u32::from(of.as_bytes()[0])))
    }
    fn whereabouts(&self, _: &PublicKey) -> Option<SocketAddr> {
        None
    }
}

/// The moment of an input, and what is around it.
#[derive(Clone, Copy)]
struct At<'a> {
    now: Time,
    around: &'a dyn Around,
}

/// Those roles of a host that have flows change hosts, without a table of flows below them.
struct Moves {
    base: Base,
    transfer: Box<Transfer>,
    relocation: Relocation,
    anchor: Anchor,
    ops: VecDeque<(OpId, MoveOp)>,
    events: VecDeque<MoveEvent>,
}

impl Moves {
    fn new(key: StaticKey, moving: Moving) -> Self {
        let config = Config { moving, ..Config::default() };
        let transfer = Transfer::of(key.public(), &config).expect("it takes part");
        let base = Base::new(config, key, Random::new([0; 32]));
        let (relocation, anchor) = (Relocation::new(&base), Anchor::new(&base));
        Self { base, transfer, relocation, anchor, ops: VecDeque::new(), events: VecDeque::new() }
    }

    /// Does something, and tells the roles what they tell one another.
    fn act<T>(&mut self, at: At<'_>, act: impl FnOnce(&mut Relocation, &mut Anchor, &mut Below<'_>) -> T) -> T {
        let mut below = self.transfer.below(at.now, at.around, &mut self.base);
        let done = act(&mut self.relocation, &mut self.anchor, &mut below);
        self.anchor.write_down(&mut below);
        while let Some(signal) = self.base.poll_signal() {
            let mut below = self.transfer.below(at.now, at.around, &mut self.base);
            self.relocation.hear(&mut below, &signal);
            self.anchor.hear(&mut below, &signal);
            self.anchor.write_down(&mut below);
        }
        done
    }

    fn tell(&mut self, at: At<'_>, signal: Signal) {
        self.base.signal(signal);
        self.act(at, |_, _, _| ());
    }

    /// Takes what it gives out.
    fn take_output(&mut self) {
        while let Some(output) = self.base.poll() {
            match output {
                Output::Op(id, Op::Move(op)) => self.ops.push_back((id, op)),
                Output::Event(Event::Move(event)) => self.events.push_back(event),
                other => panic!("{other:?}"),
            }
        }
    }

    fn poll_op(&mut self) -> Option<(OpId, MoveOp)> {
        self.take_output();
        self.ops.pop_front()
    }

    fn poll_event(&mut self) -> Option<MoveEvent> {
        self.take_output();
        self.events.pop_front()
    }

    fn poll_change(&mut self) -> Option<Change> {
        self.transfer.poll_change()
    }

    fn records(&mut self) -> &mut Records {
        self.transfer.records()
    }

    fn config(&mut self) -> &mut Moving {
        self.transfer.config()
    }

    fn accept_from(&mut self, donor: PublicKey) {
        self.config().accept_from.push(donor);
        *self.transfer.permits_mut() = Permits::new(self.config().accept_from.clone());
    }

    fn accept_nobody(&mut self) {
        self.config().accept_from.clear();
        *self.transfer.permits_mut() = Permits::new(Vec::new());
    }

    fn hear(&mut self, at: At<'_>, from: PublicKey, record: Record) {
        self.tell(at, Signal::Said { from, record });
    }

    fn handle_stretch(&mut self, at: At<'_>, from: PublicKey, stretch: Stretch) {
        self.transfer.handle_stretch(at.now, from, stretch, &mut self.base);
        self.act(at, |_, _, _| ());
    }

    fn handle_received(&mut self, at: At<'_>, from: PublicKey, received: &Received) {
        self.transfer.handle_received(at.now, from, received, &mut self.base);
        self.act(at, |_, _, _| ());
    }

    fn handle_session(&mut self, at: At<'_>, with: PublicKey) {
        self.transfer.handle_session(&with);
        self.act(at, |relocation, anchor, below| {
            relocation.handle_session(below, &with);
            anchor.handle_session(below, with);
        });
    }

    fn handle_done(&mut self, at: At<'_>, id: OpId, result: Result<OpDone, OpFailed>) {
        let Some(Asked::Move(asked)) = self.base.answered(id) else { return };
        match (asked, result) {
            (MoveAsked::Effect(what, op), Err(failed)) => {
                self.transfer.handle_failed(at.now, what, *op, failed.sentence, &mut self.base);
            }
            (asked, result) => self.act(at, |relocation, anchor, below| {
                if Relocation::asked(&asked) {
                    relocation.conclude(below, asked, result);
                } else {
                    anchor.conclude(below, asked, result);
                }
            }),
        }
    }

    fn handle_timeout(&mut self, at: At<'_>) {
        self.act(at, |relocation, anchor, below| {
            relocation.continue_all(below);
            anchor.continue_all(below);
        });
        self.transfer.handle_timeout(at.now, &mut self.base);
    }

    fn deadline(&self, at: At<'_>) -> Option<Time> {
        let transfer = self.transfer.deadline(at.now, |key| at.around.has_session(key));
        [self.relocation.poll_timeout(), self.anchor.poll_timeout(), transfer].into_iter().flatten().min()
    }

    fn entries(&self) -> usize {
        self.relocation.entries() + self.anchor.entries() + self.transfer.entries() + self.base.awaited()
    }

    fn give(&mut self, at: At<'_>, number: u64, gift: Gift, waits: bool) -> Result<MoveName, NotGiven> {
        self.act(at, |relocation, _, below| relocation.give(below, number, gift, waits))
    }

    fn go_on(&mut self, at: At<'_>, number: u64) -> bool {
        self.act(at, |relocation, _, below| relocation.go_on(below, number))
    }

    fn cancel(&mut self, at: At<'_>, number: u64) {
        self.act(at, |relocation, _, below| relocation.cancel(below, number));
    }

    fn lend(&mut self, flow: FlowName, far: FlowTuple) {
        self.relocation.lend(flow, far);
    }

    fn is_ending(&self, flow: &FlowName) -> bool {
        self.relocation.is_ending(flow)
    }

    fn end_flow(&mut self, flow: FlowName) {
        let at = At { now: Time::default(), around: &Known };
        self.act(at, |relocation, _, below| relocation.end_flow(below, flow));
    }

    fn restore_held(&mut self, at: At<'_>, saved: &SavedHeld) {
        self.act(at, |relocation, _, below| relocation.restore(below, &[], &[], std::slice::from_ref(saved)));
    }

    fn restore_leases(&mut self, at: At<'_>, saved: &[SavedLease]) {
        self.act(at, |_, anchor, below| anchor.restore(below, saved, &[]));
    }

    fn restore_tenancies(&mut self, at: At<'_>, saved: &[SavedTenancy]) {
        self.act(at, |_, anchor, below| anchor.restore(below, &[], saved));
    }

    fn rent(&mut self, at: At<'_>, number: u64, anchor: PublicKey, anchor_at: Option<SocketAddr>, ends: Ends) {
        self.act(at, |_, role, below| role.rent(below, number, anchor, anchor_at, ends));
    }

    /// What comes of it at once.
    fn rent_moved(&mut self, at: At<'_>, flow: FlowName, tuple: FlowTuple) -> Option<Result<(), String>> {
        let mut below = self.transfer.below(at.now, at.around, &mut self.base);
        self.anchor.hear(&mut below, &Signal::EndpointComes { name: name(0), flow, tuple });
        self.anchor.write_down(&mut below);
        match self.base.poll_signal() {
            Some(Signal::Adopted { result, .. }) => Some(result),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    fn part(&mut self, at: At<'_>, lease: FlowName) {
        self.tell(at, Signal::EndpointGone(lease));
    }

    fn on_unreached(&mut self, at: At<'_>, addresses: BTreeSet<IpAddr>) {
        self.act(at, |_, anchor, below| anchor.on_unreached(below, addresses));
    }

    fn set_members(&mut self, at: At<'_>, members: BTreeSet<PublicKey>, revoked: BTreeSet<PublicKey>, limited: bool) {
        self.transfer.permits_mut().set_members(members.clone(), revoked.clone(), limited);
        self.tell(at, Signal::Members { members, revoked, limited });
    }

    fn send_load(&mut self, at: At<'_>, number: u64, to: PublicKey, bytes: Vec<u8>) {
        self.act(at, |relocation, _, below| relocation.send_load(below, number, to, bytes));
    }
}

/// One host, whom others are made to speak to.
struct Host {
    moves: Moves,
    now: Time,
    /// What it has said to each so far, that was not read.
    unread: BTreeMap<PublicKey, Vec<u8>>,
    /// To whom it has led flows, by which of their ports.
    led: Vec<(PublicKey, u16)>,
    /// Flows that it has nothing to do with any more.
    released: Vec<FlowTuple>,
    /// Flows that it has passed on, and whose owners it tells that they are over.
    ended: Vec<FlowTuple>,
}

impl Host {
    fn new(of: usize) -> Self {
        let accept_from = vec![key(DONOR)];
        let config = Moving { enabled: true, accept_from, most: 4, bytes: 100_000, processes: true, lending: None };
        Self {
            moves: Moves::new(secret(of), config),
            now: Time::from_micros(1_000_000),
            unread: BTreeMap::new(),
            led: Vec::new(),
            released: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn hear(&mut self, from: usize, record: Record) {
        let at = At { now: self.now, around: &Known };
        self.moves.hear(at, key(from), record);
    }

    /// As [`Self::hear`], while the flow that it is about is known.
    fn hear_where_known(&mut self, from: usize, record: Record) {
        let at = At { now: self.now, around: &Occupied };
        self.moves.hear(at, key(from), record);
    }

    /// Its table of flows says what it is to say.
    fn change_flows(&mut self) {
        let at = At { now: self.now, around: &Known };
        while let Some(change) = self.moves.poll_change() {
            match change {
                Change::Lead(lead) => {
                    self.led.push((lead.flow().peer(), lead.wire_port()));
                    self.moves.tell(at, Signal::Led { flow: lead.flow(), result: Ok(terms()) });
                }
                Change::Adopt(adopt) => self.moves.tell(at, Signal::Adopted { name: adopt.name(), result: Ok(()) }),
                Change::Release { tuple } => self.released.push(tuple),
                Change::End { tuple } => self.ended.push(tuple),
                Change::Reserve { .. } | Change::Remember { .. } | Change::Pin(..) => {}
            }
        }
    }

    /// What it has said to somebody since the last time.
    fn said(&mut self, to: usize) -> Vec<Record> {
        self.change_flows();
        let to = key(to);
        let bytes = self.unread.entry(to).or_default();
        while let Some(message) = self.moves.records().poll(self.now, &to) {
            if let Message::Stream(Stretch { stream, offset, bytes: some, .. }) = message {
                bytes.extend_from_slice(&some);
                let before = offset + some.len() as u64;
                let received = whimbrel_wire::moving::Received {
                    stream,
                    standing: whimbrel_wire::moving::StreamStanding::Taken,
                    before,
                    limit: before + 100_000,
                    ranges: Vec::new(),
                };
                self.moves.handle_received(At { now: self.now, around: &Known }, to, &received);
            }
        }
        let mut records = Vec::new();
        while let Ok(Some((record, length))) = Record::decode(bytes) {
            records.extend(record);
            bytes.drain(..length);
        }
        records
    }

    fn ops(&mut self) -> Vec<(OpId, MoveOp)> {
        self.change_flows();
        std::iter::from_fn(|| self.moves.poll_op()).collect()
    }

    /// The only op that it asks for.
    fn op(&mut self) -> (OpId, MoveOp) {
        let mut ops = self.ops();
        assert_eq!(ops.len(), 1, "{ops:?}");
        ops.remove(0)
    }

    fn done(&mut self, id: OpId) {
        self.moves.handle_done(At { now: self.now, around: &Known }, id, Ok(OpDone::Done));
    }

    fn failed(&mut self, id: OpId) {
        let failed = OpFailed { refusal: Some(Refusal::NotKept), sentence: "on purpose".to_owned() };
        self.moves.handle_done(At { now: self.now, around: &Known }, id, Err(failed));
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.moves.handle_timeout(At { now: self.now, around: &Known });
    }

    /// Carries out all that it asks for.
    fn carry_out(&mut self) -> Vec<MoveOp> {
        let mut all = Vec::new();
        loop {
            let ops = self.ops();
            if ops.is_empty() {
                return all;
            }
            for (id, op) in ops {
                all.push(op);
                self.done(id);
            }
        }
    }
}

/// The flow as its far end has it.
fn far() -> FlowTuple {
    request(1, 0).tuple.mirrored()
}

fn terms() -> Terms {
    Terms { far: far(), wire_port: 1024, home: None, passed_on: true, hidden: false }
}

/// As an acceptor presents a ticket.
fn present(ticket: Ticket) -> Record {
    Record::Present { ticket, wire_port: 2048 }
}

/// A holder that has lent the flow to the donor, which has announced a move, and the ticket for it.
fn announced(number: u64) -> (Host, Ticket) {
    let mut holder = Host::new(HOLDER);
    holder.moves.lend(with(DONOR, FLOW), far());
    let ticket = announce(&mut holder, number);
    (holder, ticket)
}

fn announce(holder: &mut Host, number: u64) -> Ticket {
    let acceptor = *key(ACCEPTOR).as_bytes();
    holder.hear(DONOR, Record::Announce { number, flow: FLOW, lifetime: 60, acceptor });
    let said = holder.said(DONOR);
    let Some(Record::Announced { sequence, lifetime, refusal: None, .. }) = said.last() else { panic!("{said:?}") };
    ticket(number, ACCEPTOR, *sequence, *lifetime)
}

fn ticket(number: u64, acceptor: usize, sequence: u32, lifetime: u32) -> Ticket {
    let acceptor = *key(acceptor).as_bytes();
    let mut ticket = Ticket { name: name(number), flow: FLOW, acceptor, sequence, lifetime, mac: [0; 16] };
    let mut donor = Host::new(DONOR);
    assert!(donor.moves.relocation.sign(&mut ticket, key(HOLDER)));
    ticket
}

fn verdict(holder: &mut Host, to: usize) -> Option<Refusal> {
    let said = holder.said(to);
    let [Record::Verdict { outcome, .. }] = said[..] else { panic!("{said:?}") };
    outcome.err()
}

fn refused(holder: &mut Host, from: usize, ticket: Ticket, why: Refusal) {
    holder.hear(from, present(ticket));
    assert!(holder.ops().is_empty(), "{why:?}");
    assert_eq!(verdict(holder, from), Some(why));
}

#[test]
fn only_the_right_ticket_from_the_right_host_commits() {
    // P-74
    let (mut holder, right) = announced(NUMBER);
    refused(&mut holder, THIEF, right, Refusal::NotYours);
    for byte in 0..16 {
        let mut forged = right;
        forged.mac[byte] ^= 1;
        refused(&mut holder, ACCEPTOR, forged, Refusal::Forged);
    }
    // The thief puts itself in, and cannot sign that.
    refused(&mut holder, THIEF, Ticket { acceptor: *key(THIEF).as_bytes(), ..right }, Refusal::NotYours);
    refused(&mut holder, ACCEPTOR, Ticket { sequence: right.sequence + 1, ..right }, Refusal::Forged);
    // What the donor itself signs wrongly.
    refused(&mut holder, ACCEPTOR, ticket(NUMBER, ACCEPTOR, right.sequence + 1, 60), Refusal::OtherSequence);
    refused(&mut holder, ACCEPTOR, ticket(NUMBER + 1, ACCEPTOR, right.sequence, 60), Refusal::NotAnnounced);
    refused(&mut holder, ACCEPTOR, ticket(NUMBER, THIEF, right.sequence, 60), Refusal::NotYours);
    // After all that the right one is good.
    holder.hear(ACCEPTOR, present(right));
    let ops = holder.carry_out();
    let saved = SavedHeld {
        flow: with(ACCEPTOR, FLOW),
        far: Some(far()),
        wire_port: 2048,
        sequence: right.sequence,
        last: name(NUMBER),
        unsettled: vec![(name(NUMBER), None)],
        hidden: false,
        ending: false,
    };
    assert_eq!(ops, [MoveOp::SaveHeld(vec![saved])]);
    assert_eq!(holder.led, [(key(ACCEPTOR), 2048)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    assert_eq!(holder.said(DONOR), [Record::Decided { number: NUMBER, decision: Decision::Committed }]);
}

#[test]
fn a_ticket_that_is_presented_again_is_answered_and_changes_nothing() {
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    // Again, before it is kept.
    holder.hear(ACCEPTOR, present(ticket));
    holder.carry_out();
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    holder.hear(ACCEPTOR, present(ticket));
    assert!(holder.ops().is_empty());
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    refused(&mut holder, THIEF, ticket, Refusal::NotAnnounced);
    // The flow moved on meanwhile, to the thief: the ticket is worth nothing any more.
    let acceptor = *key(THIEF).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut next = Ticket { sequence: ticket.sequence + 1, acceptor, ..ticket };
    next.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut next, key(HOLDER)));
    holder.hear(THIEF, present(next));
    holder.carry_out();
    holder.said(ACCEPTOR);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn an_expired_ticket_is_worth_nothing() {
    let (mut holder, ticket) = announced(NUMBER);
    // Late by the holder's clock, before it has looked.
    holder.now = holder.now + Duration::from_secs(60);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::Expired);
    holder.pass(0);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
    // Nor is it when the donor announces another move, which has another number.
    let next = announce(&mut holder, NUMBER + 1);
    assert!(next.sequence > ticket.sequence);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn what_is_recalled_is_never_committed_and_what_is_committed_is_never_recalled() {
    // P-75
    let recall = Record::Recall { number: NUMBER, flow: FLOW, gone: false };
    let decided = |decision| Record::Decided { number: NUMBER, decision };
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(DONOR, recall.clone());
    assert_eq!(holder.said(DONOR), [decided(Decision::Revoked)]);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
    // Somebody else may not recall it.
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(THIEF, recall.clone());
    assert_eq!(holder.said(THIEF), [decided(Decision::NoSuchFlow)]);
    // While it is being kept nobody knows.
    holder.hear(ACCEPTOR, present(ticket));
    let (keep, _) = holder.op();
    holder.hear(DONOR, recall.clone());
    assert!(holder.said(DONOR).is_empty());
    holder.done(keep);
    holder.carry_out();
    assert_eq!(holder.said(DONOR), [decided(Decision::Committed)]);
    holder.hear(DONOR, recall.clone());
    assert_eq!(holder.said(DONOR), [decided(Decision::Committed)]);
    // It could not be kept.
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    let (keep, _) = holder.op();
    holder.hear(DONOR, recall);
    holder.failed(keep);
    assert_eq!(holder.said(DONOR), [decided(Decision::Revoked)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::NotKept));
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn a_commit_is_not_overwritten_by_what_was_before_it() {
    let (mut holder, first) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(first));
    holder.carry_out();
    // The acceptor gives it back before the donor has said that it knows.
    let acceptor = *key(DONOR).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut back = Ticket { sequence: first.sequence + 1, acceptor, ..first };
    back.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut back, key(HOLDER)));
    holder.hear(DONOR, present(back));
    let (keep, op) = holder.op();
    assert!(matches!(op, MoveOp::SaveHeld(saved) if saved[0].flow.peer() == key(DONOR)));
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    assert!(holder.ops().is_empty(), "nothing older is saved behind it");
    holder.done(keep);
    holder.carry_out();
    holder.hear(ACCEPTOR, Record::Settled { number: 9 });
    let (id, op) = holder.op();
    let MoveOp::SaveHeld(saved) = &op else { panic!("{op:?}") };
    assert_eq!((saved[0].flow.peer(), saved[0].unsettled.len()), (key(DONOR), 0));
    // It fails, and is asked for again, as it is by then.
    holder.failed(id);
    holder.pass(1);
    assert_eq!(holder.op().1, op);
}

#[test]
fn a_lost_copy_closes_the_far_end_and_only_its_acceptor_may_say_so() {
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    holder.carry_out();
    holder.said(ACCEPTOR);
    let mut forged = ticket;
    forged.mac[3] ^= 4;
    for (from, ticket) in [(THIEF, ticket), (ACCEPTOR, forged)] {
        holder.hear(from, Record::Surrender(ticket));
        assert_eq!(verdict(&mut holder, from), Some(Refusal::NotAnnounced));
        assert!(holder.ops().is_empty());
    }
    assert_eq!(holder.released, []);
    holder.hear(ACCEPTOR, Record::Surrender(ticket));
    assert_eq!(holder.carry_out(), [MoveOp::CloseFarEnd { flow: with(ACCEPTOR, FLOW) }]);
    assert_eq!(holder.released, [far()], "its packets would go to where the socket was");
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::Cancelled));
    // The donor still learns that it has the socket no more; then nothing is left.
    holder.hear(DONOR, Record::Recall { number: NUMBER, flow: FLOW, gone: false });
    assert!(holder.said(DONOR).contains(&Record::Decided { number: NUMBER, decision: Decision::Committed }));
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    assert_eq!(holder.carry_out(), [MoveOp::ForgetHeld { flow: with(ACCEPTOR, FLOW) }]);
    assert!(holder.moves.relocation.held().is_empty());
}

fn request(port: u16, size: u32) -> Request {
    let local = SocketAddr::new("192.0.2.1".parse().unwrap(), port);
    let remote = "198.51.100.7:40000".parse().unwrap();
    Request {
        holder: *key(HOLDER).as_bytes(),
        holder_at: "203.0.113.5:2031".parse().unwrap(),
        flow: FLOW,
        tuple: FlowTuple { transport: Transport::Tcp, local, remote },
        family: Family::Ipv4,
        size,
        options: Vec::new(),
        receiver: Vec::new(),
    }
}

fn answers(said: Vec<Record>) -> Vec<(u64, AcceptorStanding, Option<Refusal>)> {
    let of = |record| match record {
        Record::Answer { number, standing, refusal } => (number, standing, refusal),
        other => panic!("{other:?}"),
    };
    said.into_iter().map(of).collect()
}

/// An acceptor that is ready for a snapshot of 1000 bytes.
fn ready() -> Host {
    let mut acceptor = Host::new(ACCEPTOR);
    acceptor.hear(DONOR, Record::Ask { number: NUMBER, request: request(1, 1000) });
    let (admit, op) = acceptor.op();
    assert!(matches!(op, MoveOp::Admit { .. }));
    acceptor.done(admit);
    assert_eq!(answers(acceptor.said(DONOR)), [(NUMBER, AcceptorStanding::Ready, None)]);
    acceptor
}

#[test]
fn an_acceptor_bounds_what_it_takes() {
    // P-72
    let mut acceptor = ready();
    acceptor.hear(THIEF, Record::Ask { number: 1, request: request(2, 1000) });
    assert_eq!(answers(acceptor.said(THIEF)), [(1, AcceptorStanding::Refused, Some(Refusal::NotAllowed))]);
    let no_room = |number| (number, AcceptorStanding::Refused, Some(Refusal::NoRoom));
    acceptor.hear(DONOR, Record::Ask { number: 6, request: request(3, 99_000) });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(6)]);
    acceptor.moves.accept_from(key(THIEF));
    acceptor.hear(THIEF, Record::Ask { number: 7, request: request(1, 10) });
    assert_eq!(answers(acceptor.said(THIEF)), [(7, AcceptorStanding::Refused, Some(Refusal::Busy))]);
    for number in 10..13 {
        acceptor.hear(DONOR, Record::Ask { number, request: Request { flow: number, ..request(number as u16, 10) } });
    }
    acceptor.hear(DONOR, Record::Ask { number: 13, request: Request { flow: 13, ..request(13, 10) } });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(13)]);
    // A snapshot that turns out longer than there is room.
    acceptor.hear(DONOR, Record::Part { number: NUMBER, total: 98_000, offset: 0, bytes: vec![1; 10] });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(NUMBER)]);
    (10..13).for_each(|number| acceptor.hear(DONOR, Record::Cancel { number }));
    assert!(acceptor.ops().iter().all(|(_, op)| matches!(op, MoveOp::Admit { .. } | MoveOp::ForgetAcceptance { .. })));
    assert_eq!((acceptor.moves.relocation.reserved(), acceptor.moves.relocation.under_way().1), (0, 0));
}

#[test]
fn a_donor_that_asks_anew_is_not_kept_from_it_by_what_it_asked_before() {
    // P-72. How far the former move is: admitted, sent in part, being restored, presented.
    let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
    let part = |total| Record::Part { number: NUMBER, total, offset: 0, bytes: vec![7; 1000] };
    for step in 0..4 {
        let mut acceptor = ready();
        if step > 0 {
            acceptor.hear(DONOR, part(if step == 1 { 2000 } else { 1000 }));
        }
        if step > 1 {
            acceptor.hear(DONOR, Record::Ticket(signed));
        }
        if step > 2 {
            acceptor.carry_out();
        }
        acceptor.ops();
        acceptor.hear(DONOR, Record::Ask { number: 7, request: request(1, 1000) });
        let admitted = acceptor.ops().iter().any(|(_, op)| matches!(op, MoveOp::Admit { .. }));
        assert_eq!(admitted, step < 2, "{step}");
        let busy = answers(acceptor.said(DONOR)).contains(&(7, AcceptorStanding::Refused, Some(Refusal::Busy)));
        // Of a copy that is there already the holder decides.
        assert_eq!(busy, step >= 2, "{step}");
    }
}

#[test]
fn a_snapshot_that_does_not_fit_together_is_refused() {
    let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
    let part = |total, offset: usize, length| Record::Part {
        number: NUMBER,
        total,
        offset: offset as u32,
        bytes: vec![7; length],
    };
    let bad: [Vec<Record>; 5] = [
        vec![part(1000, 0, 500), part(1000, 600, 100)],
        vec![part(1000, 0, 500), part(1001, 500, 100)],
        vec![part(1000, 0, 500), Record::Ticket(signed)],
        vec![Record::Ticket(signed)],
        vec![part(1000, 0, 1000), Record::Ticket(ticket(NUMBER, THIEF, 1, 60))],
    ];
    for records in bad {
        let mut acceptor = ready();
        records.iter().for_each(|record| acceptor.hear(DONOR, record.clone()));
        let refused = (NUMBER, AcceptorStanding::Refused, Some(Refusal::BadSnapshot));
        assert_eq!(answers(acceptor.said(DONOR)), [refused], "{records:?}");
        assert!(!acceptor.ops().iter().any(|(_, op)| matches!(op, MoveOp::Restore { .. })));
        assert_eq!(acceptor.moves.relocation.reserved(), 0);
    }
    // From its beginning again, as when the words had to be said anew.
    let mut acceptor = ready();
    for record in [part(1000, 0, 500), part(1000, 0, 500), part(1000, 500, 500), Record::Ticket(signed)] {
        acceptor.hear(DONOR, record);
    }
    let (_, op) = acceptor.op();
    assert!(matches!(op, MoveOp::Restore { snapshot, .. } if snapshot == vec![7; 1000]));
    // Somebody else's parts and ticket are about another move.
    let mut acceptor = ready();
    acceptor.hear(THIEF, part(1000, 0, 1000));
    assert_eq!(answers(acceptor.said(THIEF)), [(NUMBER, AcceptorStanding::Unknown, None)]);
}

#[test]
fn who_asks_and_does_not_listen_is_not_answered_for_ever() {
    let mut acceptor = Host::new(ACCEPTOR);
    let mut offset = 0;
    let mut bytes = Vec::new();
    (0..10).for_each(|number| Record::Ask { number, request: request(1, 10) }.encode(&mut bytes));
    for _ in 0..40_000 {
        let stretch = Stretch { stream: 1, fresh: true, offset, bytes: bytes.clone() };
        let at = At { now: acceptor.now, around: &Known };
        acceptor.moves.handle_stretch(at, key(THIEF), stretch);
        let limit = acceptor.moves.records().poll(acceptor.now, &key(THIEF));
        offset += bytes.len() as u64;
        drop(limit);
    }
    let entries = acceptor.moves.entries();
    assert!(entries < 2 << 20, "{entries}");
    assert!(acceptor.moves.relocation.keys() == 0 && acceptor.ops().is_empty());
}

#[test]
fn a_part_is_no_longer_than_a_record_may_be() {
    let mut bytes = Vec::new();
    Record::Part { number: 1, total: MAX_PART as u32, offset: 0, bytes: vec![0; MAX_PART] }.encode(&mut bytes);
    assert!(Record::decode(&bytes).is_ok_and(|record| record.is_some()));
}

/// Three hosts that hear one another at once, and do what they are asked.
struct Three {
    hosts: [Host; 3],
    datagrams: usize,
}

impl Three {
    /// Says, hears and does whatever there is; whether there was anything.
    fn step(&mut self) -> bool {
        let mut any = false;
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                while let Some(message) = self.hosts[from].moves.records().poll(self.hosts[from].now, &key(to)) {
                    (any, self.datagrams) = (true, self.datagrams + 1);
                    let at = At { now: self.hosts[to].now, around: &Known };
                    match message {
                        Message::Stream(stretch) => self.hosts[to].moves.handle_stretch(at, key(from), stretch),
                        Message::Received(received) => self.hosts[to].moves.handle_received(at, key(from), &received),
                        other => panic!("{other:?}"),
                    }
                }
            }
            for (id, op) in self.hosts[from].ops() {
                any = true;
                let dumped = matches!(op, MoveOp::Dump { .. });
                let done = if dumped { OpDone::Dumped(vec![7; 600]) } else { OpDone::Done };
                let at = At { now: self.hosts[from].now, around: &Known };
                self.hosts[from].moves.handle_done(at, id, Ok(done));
            }
        }
        any
    }

    /// Lets time pass until something is due.
    fn pass(&mut self) {
        let at = At { now: self.hosts[0].now, around: &Known };
        let due = self.hosts.iter().filter_map(|host| host.moves.deadline(at)).min();
        let now = due.expect("something is due").max(self.hosts[0].now);
        for host in &mut self.hosts {
            host.now = now;
            host.moves.handle_timeout(At { now, around: &Known });
        }
    }
}

#[test]
fn thousands_move_at_once() {
    let count: u64 = if cfg!(debug_assertions) { 500 } else { 4000 };
    let mut three = Three { hosts: [DONOR, ACCEPTOR, HOLDER].map(Host::new), datagrams: 0 };
    for host in &mut three.hosts {
        host.moves.config().most = count as usize;
        host.moves.config().bytes = 1 << 30;
    }
    let start = three.hosts[DONOR].now;
    let at = At { now: start, around: &Known };
    for flow in 0..count {
        three.hosts[HOLDER].moves.lend(with(DONOR, flow), far());
        let Request { tuple, family, .. } = request(1, 600);
        let remote = SocketAddr::new([10, 0, (flow >> 8) as u8, flow as u8].into(), 9);
        let gift = Gift {
            tuple: FlowTuple { remote, ..tuple },
            family,
            size: 600,
            options: Vec::new(),
            receiver: Vec::new(),
            flow: with(HOLDER, flow),
            holder_at: None,
            acceptor: key(ACCEPTOR),
            acceptor_at: None,
            after: None,
        };
        assert!(three.hosts[DONOR].moves.give(at, 1_000_000 + flow, gift, false).is_ok());
    }
    let taken =
        |three: &Three| three.hosts[HOLDER].moves.relocation.held().iter().all(|flow| flow.peer() == key(ACCEPTOR));
    let busy = |three: &Three| three.hosts.iter().any(|host| host.moves.relocation.under_way() != (0, 0));
    while busy(&three) {
        if !three.step() {
            three.pass();
        }
    }
    assert!(taken(&three));
    let took = three.hosts[DONOR].now.since(start);
    // Nothing but pacing and acknowledgements that wait takes time here.
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Of about 1 KB for each move; what is said together goes together.
    assert!(three.datagrams < 3 * count as usize, "{}", three.datagrams);
}

/// A donor that has begun to give a socket away.
fn giving(waits: bool) -> Host {
    let mut donor = Host::new(DONOR);
    let Request { tuple, family, .. } = request(1, 600);
    let gift = Gift {
        tuple,
        family,
        size: 600,
        options: Vec::new(),
        receiver: Vec::new(),
        flow: with(HOLDER, FLOW),
        holder_at: None,
        acceptor: key(ACCEPTOR),
        acceptor_at: None,
        after: None,
    };
    let at = At { now: donor.now, around: &Known };
    assert!(donor.moves.give(at, NUMBER, gift, waits).is_ok());
    donor
}

fn is_announced(donor: &mut Host) {
    donor.hear(HOLDER, Record::Announced { number: NUMBER, sequence: 1, lifetime: 60, refusal: None });
}

fn is_answered(donor: &mut Host, standing: AcceptorStanding, refusal: Option<Refusal>) {
    donor.hear(ACCEPTOR, Record::Answer { number: NUMBER, standing, refusal });
}

fn events(host: &mut Host) -> Vec<MoveEvent> {
    std::iter::from_fn(|| host.moves.poll_event()).collect()
}

#[test]
fn a_host_that_does_not_answer_is_not_said_to_have_no_program() {
    for announced in [false, true] {
        let mut donor = giving(false);
        donor.carry_out();
        if announced {
            is_announced(&mut donor);
        }
        donor.pass(60);
        donor.carry_out();
        let why = events(&mut donor).into_iter().find_map(|event| match event {
            MoveEvent::Kept { why, .. } => Some(why),
            _ => None,
        });
        let silent = if announced { Refusal::AcceptorUnreached } else { Refusal::HolderUnreached };
        assert_eq!(why, Some(silent));
    }
}

#[test]
fn an_acceptor_that_has_much_to_do_is_waited_for_as_long_as_it_answers() {
    const SLOW: u64 = 100;
    let mut donor = giving(false);
    (donor.moves.config().most, donor.moves.config().bytes) = (64, 1 << 20);
    let Request { tuple, family, .. } = request(2, 600);
    let mut give = |number: u64, port: u16| {
        let mut remote = tuple.remote;
        remote.set_port(port);
        let gift = Gift {
            tuple: FlowTuple { remote, ..tuple },
            family,
            size: 600,
            options: Vec::new(),
            receiver: Vec::new(),
            flow: with(HOLDER, number),
            holder_at: None,
            acceptor: key(ACCEPTOR),
            acceptor_at: None,
            after: None,
        };
        assert!(donor.moves.give(At { now: donor.now, around: &Known }, number, gift, true).is_ok());
        donor.hear(HOLDER, Record::Announced { number, sequence: 1, lifetime: 60, refusal: None });
    };
    (SLOW..SLOW + 20).zip(7_000..).for_each(|(number, port)| give(number, port));
    let kept = |donor: &mut Host| {
        donor.carry_out();
        let is_slow = |event: &MoveEvent| matches!(event, MoveEvent::Kept { name, .. } if name.number == SLOW);
        events(donor).iter().any(is_slow)
    };
    // It says of the others that it is ready, one after the other; nothing of the first.
    let mut seconds = 0;
    for number in SLOW + 1..SLOW + 20 {
        if seconds >= 60 {
            break;
        }
        assert!(!kept(&mut donor), "given up after {seconds} s");
        donor.hear(ACCEPTOR, Record::Answer { number, standing: AcceptorStanding::Ready, refusal: None });
        donor.pass(5);
        seconds += 5;
    }
    assert!(seconds >= 60 && kept(&mut donor), "not for ever");
    // Who says nothing of anything is not waited for so long.
    let mut donor = giving(false);
    is_announced(&mut donor);
    donor.pass(11);
    donor.carry_out();
    assert!(events(&mut donor).iter().any(|event| matches!(event, MoveEvent::Kept { .. })));
}

#[test]
fn a_socket_that_waits_goes_when_that_is_said_and_not_before() {
    let go_on = |donor: &mut Host| {
        let at = At { now: donor.now, around: &Known };
        donor.moves.go_on(at, NUMBER)
    };
    let prepared = || {
        let mut donor = giving(true);
        is_announced(&mut donor);
        is_answered(&mut donor, AcceptorStanding::Ready, None);
        assert!(donor.ops().is_empty(), "nothing is done to it");
        assert_eq!(events(&mut donor), [MoveEvent::Prepared { name: name(NUMBER) }]);
        donor
    };
    let stays = |mut donor: Host, why| {
        assert!(donor.ops().is_empty());
        assert_eq!(events(&mut donor), [MoveEvent::Kept { name: name(NUMBER), why }]);
        assert_eq!(donor.said(ACCEPTOR).last(), Some(&Record::Cancel { number: NUMBER }));
        assert_eq!(donor.said(HOLDER).last(), Some(&Record::Recall { number: NUMBER, flow: FLOW, gone: false }));
        assert!(!go_on(&mut donor));
    };
    let mut donor = prepared();
    is_answered(&mut donor, AcceptorStanding::Ready, None);
    donor.pass(29);
    assert!(donor.ops().is_empty() && events(&mut donor).is_empty());
    assert!(go_on(&mut donor));
    assert!(matches!(donor.op().1, MoveOp::SaveDonation(_)));
    assert!(!go_on(&mut donor), "it is under way");

    // It is said before they are ready.
    let mut donor = giving(true);
    assert!(go_on(&mut donor));
    is_announced(&mut donor);
    is_answered(&mut donor, AcceptorStanding::Ready, None);
    assert!(matches!(donor.op().1, MoveOp::SaveDonation(_)));

    let mut donor = prepared();
    donor.pass(30);
    stays(donor, Refusal::Cancelled);
    let mut donor = prepared();
    is_answered(&mut donor, AcceptorStanding::Refused, Some(Refusal::NoRoom));
    stays(donor, Refusal::NoRoom);
    let mut donor = prepared();
    let at = At { now: donor.now, around: &Known };
    donor.moves.cancel(at, NUMBER);
    stays(donor, Refusal::Cancelled);

    // One that waits for nothing is not hurried.
    assert!(!go_on(&mut giving(false)));
}

/// A host that takes sockets of the donor since that belongs to its community, and not otherwise.
fn of_one_community(of: usize) -> Host {
    let mut host = Host::new(of);
    host.moves.accept_nobody();
    set_members(&mut host, &[DONOR, ACCEPTOR]);
    host
}

fn set_members(host: &mut Host, members: &[usize]) {
    let at = At { now: host.now, around: &Known };
    let revoked = [DONOR, ACCEPTOR].iter().filter(|of| !members.contains(of));
    let revoked = revoked.map(|of| key(*of)).collect();
    host.moves.set_members(at, members.iter().map(|of| key(*of)).collect(), revoked, true);
}

#[test]
fn a_donor_that_is_revoked_hands_nothing_over_that_is_not_decided() {
    // P-83. So many steps before it is revoked: asked, admitted, sent, restored, saved.
    for steps in 1..=5 {
        let mut acceptor = of_one_community(ACCEPTOR);
        let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
        acceptor.hear(DONOR, Record::Ask { number: NUMBER, request: request(1, 10) });
        let mut ops = acceptor.ops();
        for step in 1..steps {
            if step == 2 {
                acceptor.hear(DONOR, Record::Part { number: NUMBER, total: 4, offset: 0, bytes: vec![7; 4] });
                acceptor.hear(DONOR, Record::Ticket(signed));
            } else {
                ops.drain(..).for_each(|(id, _)| acceptor.done(id));
            }
            ops.extend(acceptor.ops());
        }
        acceptor.said(DONOR);
        set_members(&mut acceptor, &[]);
        ops.into_iter().for_each(|(id, _)| acceptor.done(id));
        let after = acceptor.carry_out();
        let presented = acceptor.said(HOLDER).iter().any(|record| matches!(record, Record::Present { .. }));
        assert_eq!(presented, steps == 5, "after {steps} steps");
        if steps < 5 {
            let refused = (NUMBER, AcceptorStanding::Refused, Some(Refusal::NotAllowed));
            assert!(answers(acceptor.said(DONOR)).contains(&refused), "after {steps} steps");
            assert!(!after.iter().any(|op| matches!(op, MoveOp::Thaw { .. })));
            assert_eq!((acceptor.moves.relocation.reserved(), acceptor.moves.relocation.under_way().1), (0, 0));
        } else {
            // The holder alone decides.
            assert_eq!(acceptor.moves.relocation.under_way().1, 1);
        }
        acceptor.hear(DONOR, Record::Ask { number: NUMBER + 1, request: request(9, 10) });
        let refused = (NUMBER + 1, AcceptorStanding::Refused, Some(Refusal::NotAllowed));
        assert!(answers(acceptor.said(DONOR)).contains(&refused));
    }
}
