//! Single roles, with words that an honest host would not say, or not then.

mod acceptor;
mod alike;
mod bounds;
mod donor;
mod endpoints;
mod entrusted;
mod holder;
mod leases;
mod liars;
mod loads;
mod names;
mod together;

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
        self.relocation.holder_mut().lend(flow, far);
    }

    fn is_ending(&self, flow: &FlowName) -> bool {
        self.relocation.holder().is_ending(flow)
    }

    fn end_flow(&mut self, flow: FlowName) {
        let at = At { now: Time::default(), around: &Known };
        self.act(at, |relocation, _, below| relocation.holder_mut().end_flow(below, flow));
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
        self.act(at, |_, role, below| role.tenant_mut().rent(below, number, anchor, anchor_at, ends));
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
        self.act(at, |_, anchor, below| anchor.lessor_mut().on_unreached(below, addresses));
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
