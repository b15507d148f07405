//! Whole processes that change hosts with their connections: what CRIU does, and what outlives a daemon of it.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_protocol::process::{Answer, Arrival, ArrivalStep, Departure, DepartureStep, Left, Outcome, Place};
use whimbrel_protocol::{
    FlowName, Found, Gift, LoadStanding, MoveEvent, MoveName, MoveOp, OpDone, OpFailed, OpId, Refusal, SavedAcceptance,
    SavedDonation,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::Family;

use super::World;
use super::due::What;
use crate::host::HostId;
use crate::ledger::Kind;
use crate::relocation::{ConnectionId, Copy, Counts};

/// Length of what is written down of a connection.
const PART: usize = 24;

/// A process, and how far it is on its way.
#[derive(Debug)]
pub struct Process {
    parts: Vec<ConnectionId>,
    /// Where there is something of it.
    pub copies: BTreeMap<HostId, Standing>,
    to: HostId,
    /// What has gone ahead of it.
    load: Option<u64>,
    departure: Option<(HostId, Departure)>,
    arrival: Option<(HostId, Arrival)>,
    /// Where it is written down that it leaves.
    leaves: Option<HostId>,
    /// Where its images are.
    images: BTreeMap<HostId, Vec<u8>>,
    /// Its connections there whose packets come to their sockets.
    let_in: BTreeSet<FlowTuple>,
}

/// How a process is on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It goes on.
    Runs,
    /// It stands still.
    Still,
    /// It never goes on, though it has not ended.
    Relic,
}

#[expect(clippy::large_enum_variant, reason = "each is carried out at once, and none is kept")]
enum Step {
    Departure(DepartureStep),
    Arrival(ArrivalStep),
}

impl World {
    /// A process on a host with connections, the first of which decides.
    pub fn process(&mut self, host: HostId, parts: Vec<ConnectionId>) -> usize {
        self.processes.push(Process {
            parts,
            copies: [(host, Standing::Runs)].into(),
            to: host,
            load: None,
            departure: None,
            arrival: None,
            leaves: None,
            images: BTreeMap::new(),
            let_in: BTreeSet::new(),
        });
        self.processes.len() - 1
    }

    /// How a process is, and where.
    #[must_use]
    pub fn at_process(&self, process: usize) -> &Process {
        &self.processes[process]
    }

    /// Begins to give a process to another host.
    ///
    /// # Panics
    /// The host may not give it anything.
    pub fn give_process(&mut self, process: usize, from: HostId, to: HostId) {
        let (now, key) = (self.now, self.hosts[to.0].public_key());
        self.processes[process].to = to;
        let mut load = None;
        self.with_node(from, |node| load = node.send_load(now, key, vec![7; 100]));
        self.processes[process].load = Some(load.expect("it may be given"));
    }

    /// Whether nothing of a process is on its way any more.
    #[must_use]
    pub fn is_at_rest(&self, process: usize) -> bool {
        let of = &self.processes[process];
        of.departure.is_none() && of.arrival.is_none()
    }

    fn tuples(&self, process: usize) -> Vec<FlowTuple> {
        self.processes[process].parts.iter().map(|part| self.connections[part.0].tuple).collect()
    }

    /// A node tells something of a move that may be one of a process's.
    pub(super) fn note_process_event(&mut self, host: HostId, event: &MoveEvent) {
        let now = self.now;
        match event {
            MoveEvent::Loaded { name, .. } => {
                let Some(of) = self.processes.iter_mut().find(|of| of.load == Some(name.number)) else { return };
                of.arrival = Some((host, Arrival::new(now)));
                of.images.insert(host, Vec::new());
                if let Some(node) = self.hosts[host.0].node.as_mut() {
                    node.answer_load(now, *name, LoadStanding::Ready, "");
                }
            }
            MoveEvent::LoadAnswered { number, standing: LoadStanding::Ready, .. } => {
                let at = self.processes.iter().position(|of| of.load == Some(*number) && of.departure.is_none());
                if let Some(at) = at {
                    self.give_parts(at, host, *number);
                }
            }
            MoveEvent::Given { name, .. } => self.note_outcome(host, name, Outcome::Given),
            MoveEvent::Kept { name, .. } => self.note_outcome(host, name, Outcome::Kept),
            MoveEvent::Lost { name } => self.note_outcome(host, name, Outcome::Lost),
            _ => {}
        }
    }

    fn give_parts(&mut self, at: usize, host: HostId, load: u64) {
        let (now, tuples, to) = (self.now, self.tuples(at), self.processes[at].to);
        if self.processes[at].copies.get(&host) != Some(&Standing::Runs) {
            return;
        }
        let mut departure = Departure::new(tuples.clone());
        self.processes[at].leaves = Some(host);
        let mut first = None;
        for (index, tuple) in (0..).zip(&tuples) {
            let of = self.connections[self.processes[at].parts[index as usize].0].clone();
            let gift = Gift {
                tuple: *tuple,
                family: Family::Ipv4,
                size: 600,
                options: Vec::new(),
                receiver: Place { load, index, count: tuples.len() as u32 }.receiver(),
                flow: FlowName::new(self.hosts[of.holder.0].public_key(), of.name),
                holder_at: self.endpoint_of(of.holder),
                acceptor: self.hosts[to.0].public_key(),
                acceptor_at: self.endpoint_of(to),
                after: first,
            };
            let Some(node) = self.hosts[host.0].node.as_mut() else { return };
            match node.give_socket(now, gift) {
                Ok(name) => {
                    first.get_or_insert(name.number);
                    departure.give(name, *tuple);
                }
                Err(_) => departure.call_back(),
            }
        }
        self.processes[at].departure = Some((host, departure));
        self.take_steps(at, host);
    }

    fn note_outcome(&mut self, host: HostId, name: &MoveName, outcome: Outcome) {
        for at in 0..self.processes.len() {
            let Some((of, departure)) = &mut self.processes[at].departure else { continue };
            if *of != host || departure.handle_outcome(name, outcome).is_none() {
                continue;
            }
            self.take_steps(at, host);
            self.end_departure(at);
        }
    }

    /// Nobody waits to hear more of a process that leaves.
    fn end_departure(&mut self, at: usize) {
        let of = &mut self.processes[at];
        let told = of.departure.as_ref().is_some_and(|(_, departure)| departure.is_told());
        let restored = of.departure.as_ref().is_some_and(|(_, departure)| departure.is_restored());
        let over = of.departure.as_ref().is_some_and(|(_, departure)| departure.is_over());
        if if restored { over } else { told } {
            (of.departure, of.leaves) = (None, None);
        }
    }

    /// Which process an op of a move is about, and whether it is at the donor.
    pub(super) fn process_of(&self, host: HostId, op: &MoveOp) -> Option<(usize, bool)> {
        let leaving = |is_it: &dyn Fn(&Departure) -> bool| {
            let is_it = |of: &Process| of.departure.as_ref().is_some_and(|(at, of)| *at == host && is_it(of));
            self.processes.iter().position(is_it).map(|at| (at, true))
        };
        let coming = |is_it: &dyn Fn(&Arrival) -> bool| {
            let is_it = |of: &Process| of.arrival.as_ref().is_some_and(|(at, of)| *at == host && is_it(of));
            self.processes.iter().position(is_it).map(|at| (at, false))
        };
        match op {
            MoveOp::Freeze { flow, .. } => leaving(&|of| of.takes(flow)),
            MoveOp::Dump { name } | MoveOp::ForgetDonation { name } => leaving(&|of| of.has_move(name)),
            MoveOp::Thaw { name } | MoveOp::Destroy { name, .. } => {
                leaving(&|of| of.has_move(name)).or_else(|| coming(&|of| of.has_move(name)))
            }
            MoveOp::Admit { request, .. } => {
                let place = Place::of(&request.receiver)?;
                let at = self.processes.iter().position(|of| of.load == Some(place.load))?;
                Some((at, false))
            }
            MoveOp::Restore { name, .. } | MoveOp::ForgetAcceptance { name } => coming(&|of| of.has_move(name)),
            MoveOp::SaveAcceptance(saved) => coming(&|of| of.has_move(&saved.ticket.name)),
            _ => None,
        }
    }

    /// Carries out an op of a move of a process; whether the daemon lived to do it.
    pub(super) fn act_on_process(
        &mut self,
        host: HostId,
        id: OpId,
        op: MoveOp,
        (at, leaves): (usize, bool),
        fails: bool,
    ) -> bool {
        let now = self.now;
        let label = format!("{op:?}");
        let label = &label[..label.len().min(160)];
        self.trace(|w| {
            format!("{} does of a process, {}: {label}", w.hosts[host.0].name, if fails { "in vain" } else { "well" })
        });
        // What lets a socket go on, or ends it, fails with the process and not before.
        let fails = fails && !matches!(op, MoveOp::Thaw { .. } | MoveOp::Destroy { .. });
        let answer = if fails {
            Some(failed("it fails on purpose"))
        } else {
            self.carry_out_of_process(host, id, op, at, leaves)
        };
        if let Some(answer) = answer
            && let Some(node) = self.hosts[host.0].node.as_mut()
        {
            node.handle_done(now, id, answer);
        }
        let lives = self.take_steps(at, host);
        if leaves && lives {
            self.end_departure(at);
        }
        lives
    }

    fn carry_out_of_process(&mut self, host: HostId, id: OpId, op: MoveOp, at: usize, leaves: bool) -> Option<Answer> {
        let now = self.now;
        let saved_moves = &mut self.hosts[host.0].saved_moves;
        let of = &mut self.processes[at];
        let departure = of.departure.as_mut().filter(|_| leaves).map(|(_, departure)| departure);
        let arrival = of.arrival.as_mut().filter(|(there, _)| !leaves && *there == host).map(|(_, arrival)| arrival);
        match (op, departure, arrival) {
            (MoveOp::Freeze { name, flow }, Some(departure), _) => departure.freeze(id, name, flow),
            (MoveOp::Dump { name }, Some(departure), _) => departure.dump(id, &name),
            (MoveOp::Thaw { name }, Some(departure), _) => departure.thaw(id, &name),
            (MoveOp::Destroy { name, .. }, Some(departure), _) => departure.destroy(id, &name),
            (MoveOp::ForgetDonation { name }, Some(departure), _) => {
                saved_moves.donations.remove(&name);
                departure.forget(&name);
                return Some(Ok(OpDone::Done));
            }
            (MoveOp::Admit { name, request }, _, Some(arrival)) => {
                let place = Place::of(&request.receiver)?;
                let admitted = arrival.admit(name, place, request.tuple);
                return Some(if admitted { Ok(OpDone::Done) } else { failed("it is not expected") });
            }
            (MoveOp::Restore { name, snapshot, .. }, _, Some(arrival)) => {
                if arrival.part(&name).is_some_and(|(_, first)| first) {
                    of.images.insert(host, snapshot);
                }
                arrival.restore(id, &name);
            }
            (MoveOp::SaveAcceptance(saved), _, Some(arrival)) => arrival.save(id, saved),
            (MoveOp::Thaw { name }, _, Some(arrival)) => arrival.thaw(now, id, &name),
            (MoveOp::Destroy { name, .. }, _, Some(arrival)) => arrival.destroy(id, &name),
            (MoveOp::ForgetAcceptance { name }, _, Some(arrival)) => {
                saved_moves.acceptances.remove(&name);
                arrival.forget(&name);
                return Some(Ok(OpDone::Done));
            }
            _ => return Some(failed("no such process is expected")),
        }
        None
    }

    /// Takes all steps of a process on a host that can be taken; whether the daemon lived to.
    fn take_steps(&mut self, at: usize, host: HostId) -> bool {
        loop {
            let of = &mut self.processes[at];
            let leaves = of.departure.as_mut().filter(|(there, _)| *there == host);
            let step = leaves.and_then(|(_, departure)| departure.poll()).map(Step::Departure);
            let comes = of.arrival.as_mut().filter(|(there, _)| *there == host);
            let step = step.or_else(|| comes.and_then(|(_, arrival)| arrival.poll()).map(Step::Arrival));
            let Some(step) = step else { break };
            let lives = match step {
                Step::Departure(step) => self.take_departure_step(at, host, step),
                Step::Arrival(step) => self.take_arrival_step(at, host, step),
            };
            if !lives {
                return false;
            }
            self.check_process(at);
        }
        if let Some((_, arrival)) = &self.processes[at].arrival
            && let Some(due) = arrival.poll_timeout()
        {
            self.schedule(due.max(self.now), What::Process(at));
        }
        true
    }

    /// Something of a process that comes is due.
    pub(super) fn hasten_process(&mut self, at: usize) {
        let now = self.now;
        let Some((host, arrival)) = &mut self.processes[at].arrival else { return };
        if arrival.poll_timeout().is_some_and(|due| due <= now) {
            let host = *host;
            arrival.handle_timeout(now);
            self.take_steps(at, host);
            self.with_node(host, |_| {});
        }
    }

    fn check_process(&mut self, at: usize) {
        let running = self.processes[at].copies.values().filter(|standing| **standing == Standing::Runs).count();
        if running > 1 {
            self.ledger.violation(Kind::Torn, self.now, format!("process {at} goes on at {running} hosts at once"));
        }
    }

    /// Whether this step fails on purpose. `None`: the daemon dies before it.
    fn next_step(&mut self, host: HostId, what: &dyn std::fmt::Debug) -> Option<bool> {
        if !self.next_effect(host) {
            return None;
        }
        let fails = self.faults.fail == Some(self.ops);
        self.ops += 1;
        self.trace(|w| format!("{}: {what:?}{}", w.hosts[host.0].name, if fails { " fails" } else { "" }));
        Some(fails)
    }

    fn answer_op(&mut self, host: HostId, id: OpId, answer: Answer) {
        let now = self.now;
        if let Some(node) = self.hosts[host.0].node.as_mut() {
            node.handle_done(now, id, answer);
        }
    }

    /// Has the sockets of a process be as it is.
    fn set_copies(&mut self, at: usize, host: HostId, change: impl Fn(&mut crate::Connection)) {
        for part in self.processes[at].parts.clone() {
            let of = &mut self.connections[part.0];
            change(of);
            if of.copies.values().filter(|copy| copy.awake).count() > 1 {
                let what = format!("{part:?} goes on at two hosts at once, one of them {host:?}");
                self.ledger.violation(Kind::Torn, self.now, what);
            }
        }
    }

    fn take_departure_step(&mut self, at: usize, host: HostId, step: DepartureStep) -> bool {
        let fails = match &step {
            DepartureStep::Stop | DepartureStep::Write | DepartureStep::Wake | DepartureStep::End => {
                let Some(fails) = self.next_step(host, &step) else { return false };
                fails
            }
            _ => false,
        };
        let result = if fails { Err("it fails on purpose".to_owned()) } else { Ok(()) };
        match step {
            DepartureStep::Answer(id, answer) => self.answer_op(host, id, answer),
            DepartureStep::Cancel(name) => {
                let now = self.now;
                if let Some(node) = self.hosts[host.0].node.as_mut() {
                    node.cancel_move(now, name);
                }
            }
            DepartureStep::Stop => {
                if !fails {
                    self.processes[at].copies.insert(host, Standing::Still);
                    self.set_copies(at, host, |of| set_awake(of, host, false));
                }
                self.departure(at, |departure| departure.handle_stopped(result));
            }
            DepartureStep::Write => {
                let images = self.write_images(at, host);
                self.departure(at, |departure| departure.handle_written(result.and(images)));
            }
            DepartureStep::Wake if fails => {
                self.processes[at].copies.remove(&host);
                self.set_copies(at, host, |of| lose(of, host));
                self.departure(at, |departure| departure.handle_woken(result));
            }
            DepartureStep::Wake => {
                self.processes[at].copies.insert(host, Standing::Runs);
                self.set_copies(at, host, |of| set_awake(of, host, true));
                self.departure(at, |departure| departure.handle_woken(result));
            }
            DepartureStep::End => {
                let before = self.processes[at].copies.insert(host, Standing::Relic);
                if before == Some(Standing::Runs) {
                    self.ledger.violation(Kind::Torn, self.now, format!("process {at} is ended that goes on"));
                }
                // That it is another host's is written down first.
                self.processes[at].leaves = None;
                self.set_copies(at, host, |of| {
                    of.left.insert(host);
                    // What is not decided of it may be lost from now on.
                    of.died = true;
                    if let Some(copy) = of.copies.get_mut(&host) {
                        copy.relic = true;
                    }
                });
                if !fails {
                    self.processes[at].copies.remove(&host);
                    self.set_copies(at, host, |of| {
                        of.copies.remove(&host);
                    });
                }
                self.departure(at, |departure| departure.handle_ended(result));
            }
            DepartureStep::LetIn(_) | DepartureStep::PartWith(_) => {}
            DepartureStep::Leave(flow) => {
                if let Some(of) = self.connections.iter_mut().find(|of| of.tuple == flow) {
                    of.died = true;
                }
            }
        }
        true
    }

    fn departure(&mut self, at: usize, act: impl FnOnce(&mut Departure)) {
        if let Some((_, departure)) = &mut self.processes[at].departure {
            act(departure);
        }
    }

    fn arrival(&mut self, at: usize, act: impl FnOnce(&mut Arrival)) {
        if let Some((_, arrival)) = &mut self.processes[at].arrival {
            act(arrival);
        }
    }

    fn write_images(&self, at: usize, host: HostId) -> Result<Vec<u8>, String> {
        if self.processes[at].copies.get(&host) != Some(&Standing::Still) {
            return Err("it does not stand still".to_owned());
        }
        let parts = self.processes[at].parts.iter();
        let counts = parts.map(|part| self.connections[part.0].copies.get(&host).map(|copy| copy.counts));
        let counts: Option<Vec<Counts>> = counts.collect();
        let counts = counts.ok_or("one of its sockets is not there")?;
        Ok(counts.into_iter().flat_map(|counts| counts.write(PART)).collect())
    }

    fn take_arrival_step(&mut self, at: usize, host: HostId, step: ArrivalStep) -> bool {
        let fails = match &step {
            ArrivalStep::Rebuild | ArrivalStep::Resume => {
                let Some(fails) = self.next_step(host, &step) else { return false };
                fails
            }
            _ => false,
        };
        let result = if fails { Err("it fails on purpose".to_owned()) } else { Ok(()) };
        match step {
            ArrivalStep::Answer(id, answer) => self.answer_op(host, id, answer),
            ArrivalStep::Save(id, saved) => {
                let name = saved.ticket.name;
                self.hosts[host.0].saved_moves.acceptances.insert(name, saved);
                self.arrival(at, |arrival| arrival.handle_saved(id, &name, Ok(())));
            }
            ArrivalStep::Rebuild => {
                let result = result.and_then(|()| self.rebuild(at, host));
                self.arrival(at, |arrival| arrival.handle_rebuilt(result));
            }
            ArrivalStep::Resume if fails => {
                self.processes[at].copies.remove(&host);
                self.set_copies(at, host, |of| lose(of, host));
                self.arrival(at, |arrival| arrival.handle_resumed(result));
            }
            ArrivalStep::Resume => {
                self.processes[at].copies.insert(host, Standing::Runs);
                let let_in = self.processes[at].let_in.clone();
                self.set_copies(at, host, |of| set_awake(of, host, let_in.contains(&of.tuple)));
                self.arrival(at, |arrival| arrival.handle_resumed(result));
            }
            ArrivalStep::Discard => self.discard(at, host),
            ArrivalStep::LetIn(flow) => {
                self.processes[at].let_in.insert(flow);
                if self.processes[at].copies.get(&host) == Some(&Standing::Runs) {
                    self.set_copies(at, host, |of| {
                        if of.tuple == flow {
                            set_awake(of, host, true);
                        }
                    });
                }
            }
            ArrivalStep::Abort(flow) => self.set_copies(at, host, |of| {
                if of.tuple == flow {
                    of.left.insert(host);
                    lose(of, host);
                }
            }),
            ArrivalStep::Over => {
                self.discard(at, host);
                self.processes[at].arrival = None;
                self.processes[at].images.remove(&host);
            }
        }
        true
    }

    fn rebuild(&mut self, at: usize, host: HostId) -> Result<(), String> {
        let images = self.processes[at].images.get(&host).cloned().unwrap_or_default();
        let parts = self.processes[at].parts.clone();
        if images.len() != parts.len() * PART || self.processes[at].copies.contains_key(&host) {
            return Err("there are no images, or the process is there".to_owned());
        }
        for (part, image) in parts.iter().zip(images.chunks(PART)) {
            let counts = Counts::read(image).ok_or("malformed images")?;
            let copy = Copy { awake: false, in_program: true, relic: false, counts };
            self.connections[part.0].copies.insert(host, copy);
        }
        self.processes[at].let_in.clear();
        self.processes[at].copies.insert(host, Standing::Still);
        Ok(())
    }

    /// What was rebuilt in vain ends.
    fn discard(&mut self, at: usize, host: HostId) {
        if self.processes[at].copies.get(&host) == Some(&Standing::Still) {
            self.processes[at].copies.remove(&host);
            self.set_copies(at, host, |of| {
                of.copies.remove(&host);
            });
        }
    }

    /// A daemon is gone, and what it alone knew.
    pub(super) fn lose_processes(&mut self, host: HostId) {
        for of in &mut self.processes {
            of.departure.take_if(|(at, _)| *at == host);
            of.arrival.take_if(|(at, _)| *at == host);
        }
    }

    /// A daemon is there again: what it finds of processes.
    pub(super) fn restore_departures(&mut self, host: HostId, saved: &[SavedDonation]) -> BTreeMap<MoveName, Found> {
        let mut found = BTreeMap::new();
        for at in 0..self.processes.len() {
            let parts = self.tuples(at);
            let of_it: Vec<&SavedDonation> = saved.iter().filter(|saved| parts.contains(&saved.tuple)).collect();
            if self.processes[at].leaves != Some(host) {
                let gone = self.processes[at].copies.get(&host) != Some(&Standing::Runs);
                let of_it = of_it.iter().filter(|_| gone);
                found.extend(of_it.map(|saved| (saved.name, Found::Gone)));
                continue;
            }
            let mut departure = Departure::restored(parts);
            for saved in of_it {
                departure.restore_move(saved.name, saved.tuple);
                found.insert(saved.name, Found::Frozen);
            }
            departure.end_restoring();
            self.processes[at].departure = Some((host, departure));
            self.take_steps(at, host);
            self.end_departure(at);
        }
        found
    }

    /// The same of those that were on their way here.
    pub(super) fn restore_arrivals(&mut self, host: HostId, saved: &[SavedAcceptance]) -> BTreeMap<MoveName, Found> {
        let mut found = BTreeMap::new();
        for at in 0..self.processes.len() {
            let load = self.processes[at].load;
            let left = match self.processes[at].copies.get(&host) {
                Some(Standing::Still) => Left::Waits,
                Some(Standing::Runs) => Left::GoesOn,
                Some(Standing::Relic) | None => Left::Gone,
            };
            let of_it =
                |saved: &&SavedAcceptance| Place::of(&saved.request.receiver).filter(|place| Some(place.load) == load);
            let all: Vec<(&SavedAcceptance, Place)> =
                saved.iter().filter_map(|saved| Some((saved, of_it(&saved)?))).collect();
            let presented = all.iter().any(|(_, place)| place.index == 0);
            let mut arrival = (!all.is_empty()).then(|| Arrival::restored(presented || left != Left::Waits));
            for (saved, place) in all {
                let Some(arrival) = &mut arrival else { continue };
                let of = arrival.restore_move(saved.ticket.name, place, saved.request.tuple, left);
                found.insert(saved.ticket.name, of);
            }
            let is_leaving = self.processes[at].leaves == Some(host);
            match arrival {
                Some(arrival) => {
                    self.processes[at].arrival = Some((host, arrival));
                    self.take_steps(at, host);
                }
                // Nothing is known of it.
                None if !is_leaving => self.discard(at, host),
                None => {}
            }
        }
        found
    }
}

fn set_awake(of: &mut crate::Connection, host: HostId, awake: bool) {
    if let Some(copy) = of.copies.get_mut(&host) {
        copy.awake = awake;
        if awake {
            of.left.remove(&host);
        }
    }
}

/// The only copy of a socket is lost.
fn lose(of: &mut crate::Connection, host: HostId) {
    of.copies.remove(&host);
    of.died = true;
}

fn failed(sentence: &str) -> Result<OpDone, OpFailed> {
    Err(OpFailed { refusal: Some(Refusal::NotRestored), sentence: sentence.to_owned() })
}
