//! Which transforms the packets of a tunnel go through, as both ends agree on it (P-170 to P-177).
//!
//! What is agreed on is soft: it holds for the session that it was said in. So an end that has forgotten everything is
//! sent packets without transforms until it is asked again, and never such that it cannot read. Within a session a
//! chain is sent by only once the other end is known to have it, in this order: install, ask, answer, send.
//!
//! ```text
//!            ask: a chain is made here        it is made        the peer has it
//!   Empty ------------------> Installing ---------------> Asked ---------------> InForce
//!                                                                                   | ask
//!     ^                                             all stays as it was <-- Replacing
//!     '-- by the empty chain, which needs no making; a session begins (and asks again)
//! ```
//!
//! A request that is refused leaves what was in force. Whoever's chain it was, the last one asked for is in force;
//! where both ask at once, that of the lower key.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use whimbrel_wire::BindingNumber;
use whimbrel_wire::chain::{ChainAnswer, ChainRequest, ChainStatus, NamedChain};
use whimbrel_wire::message::Message;
use whimbrel_wire::{ChainNumber, ChainSpec};

use crate::Time;
use crate::base::op::PeerId;
use crate::base::op::chain::ChainOp;

/// Chains that a binding has at the most, those included that are on their way out (P-174).
const CHAINS: usize = 4;
/// Transforms of a chain at the most.
const STAGES: usize = 4;
/// Chains that all peers together have this host make at the most.
const CHAINS_OF_PEERS: usize = 1024;
/// How long a chain is received by once the peer sends by it no longer (P-173).
const FORMER: Duration = Duration::from_secs(60);
/// How long a request to replace a chain may stay without an answer until that is not sent by any more: less than the
/// peer receives by it (P-173).
const LAPSE: Duration = Duration::from_secs(30);
/// Tries before a request is repeated seldom, and the pauses between them.
const TRIES: u32 = 12;
const LEAST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const SELDOM: Duration = Duration::from_secs(30);
/// How often a chain is made anew in one session since the peer's idea of its number is another.
const ANEW: u32 = 3;
const ACCEPTED: (ChainStatus, u8) = (ChainStatus::InForce, 0);

/// How far an end has come with the chain of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPhase {
    /// Packets go without transforms, and nobody wants it otherwise.
    Empty,
    /// Nothing is in force; a chain that is wanted is being made here, or waits for a session that knows of chains.
    Installing,
    /// Nothing is in force; the peer was asked.
    Asked,
    /// A chain is in force.
    InForce,
    /// A chain is in force, and another one, or other parameters, were asked for.
    Replacing,
}

/// What is to be known of the chain of a binding from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainView {
    /// How far it is.
    pub phase: ChainPhase,
    /// The chain in force.
    pub in_force: Option<(ChainNumber, ChainSpec)>,
    /// By which chain packets go to the peer.
    pub sending: Option<ChainNumber>,
    /// Chains that are received by.
    pub known: usize,
    /// What became of the last request of this end, where it came to nothing: the reason, and the transform that it is
    /// about. [`ChainStatus::Crossed`]: the peer's went first.
    pub refused: Option<(ChainStatus, u8)>,
}

/// A chain has more transforms than a binding may have. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a chain has at most {STAGES} transforms")]
pub struct ChainTooLong;

/// A session has taken the place of those before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainSession {
    /// The peer has said that it may be asked.
    speaks: bool,
    /// This host's key is the lower one.
    lower: bool,
    /// To the peer and back.
    round_trip: Duration,
}

impl ChainSession {
    /// `speaks`: the peer has said that it may be asked. `lower`: this host's key is the lower one. `round_trip`: to
    /// the peer and back.
    pub(crate) fn new(speaks: bool, lower: bool, round_trip: Duration) -> Self {
        Self { speaks, lower, round_trip }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChainAction {
    /// Say this to the peer in the session that is sent with.
    Send(PeerId, Message),
    /// Carry this out, and tell [`Chains::handle_done`] of this chain what came of it.
    Await(PeerId, ChainNumber, ChainOp),
    /// Carry this out.
    Do(ChainOp),
}

/// The chains of all peers.
#[derive(Debug)]
pub(crate) struct Chains {
    peers: BTreeMap<PeerId, Agreement>,
    due: BTreeSet<(Time, PeerId)>,
    out: Out,
    /// Whether this host has a tunnel at all.
    offers: bool,
    /// Where numbers of chains begin.
    lot: u8,
}

#[derive(Debug, Default)]
struct Out {
    actions: VecDeque<ChainAction>,
    /// Chains that peers have had made.
    of_peers: usize,
}

/// Whose request a chain comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

/// A chain that this end has made, or is making.
#[derive(Debug)]
struct Known {
    spec: ChainSpec,
    side: Side,
    installed: bool,
    /// When it goes; `None`: it is in force, or the peer may be sending by it.
    until: Option<Time>,
}

/// A request of this end that is not settled.
#[derive(Clone, Debug)]
struct Request {
    /// The chain that is wanted.
    wanted: Option<ChainSpec>,
    /// Its number, once it has one.
    chain: Option<ChainNumber>,
    /// The peer is taken to know it.
    known: bool,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// For a session, for room, or for the peer's request to be done.
    Waiting,
    /// The chain is being made here.
    Installing,
    /// The peer has been asked so often, under this number, and is asked again then.
    Asked { number: u32, tries: u32, again: Time },
}

/// A request of the peer's that is being done here.
#[derive(Clone, Debug)]
struct Doing {
    number: u32,
    chain: NamedChain,
}

/// The newest request of the peer's in this session.
#[derive(Clone, Copy, Debug)]
struct Heard {
    number: u32,
    /// What it was answered for good.
    answer: Option<(ChainStatus, u8)>,
}

/// What is agreed on with one peer.
#[derive(Debug)]
struct Agreement {
    peer: PeerId,
    session: Option<ChainSession>,
    known: BTreeMap<ChainNumber, Known>,
    in_force: Option<ChainNumber>,
    sending: Option<ChainNumber>,
    ours: Option<Request>,
    /// What is wanted once that is settled.
    next: Option<Option<ChainSpec>>,
    theirs: Option<Doing>,
    heard: Option<Heard>,
    /// Number of the last request of this end.
    number: u32,
    /// The last number of a chain that this end gave.
    last: u8,
    /// Since when the peer may have replaced the chain that is sent by.
    unanswered: Option<Time>,
    made_anew: u32,
    refused: Option<(ChainStatus, u8)>,
}

impl Chains {
    /// `offers`: this host has a tunnel. `lot`: drawn at each start.
    pub(crate) fn new(offers: bool, lot: u8) -> Self {
        Self { peers: BTreeMap::new(), due: BTreeSet::new(), out: Out::default(), offers, lot }
    }

    /// A session with this peer is sent with from now on: nothing is agreed on in it yet (P-172). To be called before
    /// the tunnel is led by it.
    pub(crate) fn on_session(&mut self, now: Time, peer: PeerId, session: ChainSession) {
        let lot = self.lot;
        self.peers.entry(peer).or_insert_with(|| Agreement::new(peer, lot));
        self.with(peer, |of, out| of.begin_session(now, session, out));
    }

    /// There is no session with this peer any more.
    pub(crate) fn on_no_session(&mut self, peer: PeerId) {
        self.with(peer, |of, out| {
            of.session = None;
            of.send_by(None, out);
        });
    }

    /// The peer is forgotten, and all chains with it.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.with(peer, |of, out| {
            of.send_by(None, out);
            for chain in of.known.keys().copied().collect::<Vec<_>>() {
                of.remove(chain, out);
            }
        });
        if let Some(due) = self.peers.remove(&peer).and_then(|of| of.due()) {
            self.due.remove(&(due, peer));
        }
    }

    /// The binding's packets are to go through these transforms, both ways; `None`: through none. What was asked for
    /// before, and is not settled, is so no longer.
    ///
    /// # Errors
    /// [`ChainTooLong`].
    pub(crate) fn ask(&mut self, now: Time, peer: PeerId, wanted: Option<ChainSpec>) -> Result<(), ChainTooLong> {
        if wanted.as_ref().is_some_and(|wanted| wanted.stages().len() > STAGES) {
            return Err(ChainTooLong);
        }
        let lot = self.lot;
        self.peers.entry(peer).or_insert_with(|| Agreement::new(peer, lot));
        self.with(peer, |of, out| of.want(now, wanted, out));
        Ok(())
    }

    /// The peer asks for a chain. `current`: in the session that this end sends with, too. Only in that do requests and
    /// answers count, since the peer may have been another daemon in others.
    pub(crate) fn handle_chain(&mut self, now: Time, peer: PeerId, current: bool, request: ChainRequest) {
        let offers = self.offers;
        if current {
            self.with(peer, |of, out| of.hear(now, offers, request, out));
        }
    }

    /// The peer answers.
    pub(crate) fn handle_chain_seen(&mut self, now: Time, peer: PeerId, current: bool, answer: &ChainAnswer) {
        if current {
            self.with(peer, |of, out| of.hear_answer(now, answer, out));
        }
    }

    /// What came of an op: why it was not done, and at which transform.
    pub(crate) fn handle_done(
        &mut self,
        now: Time,
        peer: PeerId,
        chain: ChainNumber,
        result: Result<(), (ChainStatus, u8)>,
    ) {
        self.with(peer, |of, out| of.take_result(now, chain, result, out));
    }

    /// When [`Chains::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whatever is due happens.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        while let Some((_, peer)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.with(peer, |of, out| of.handle_timeout(now, out));
        }
    }

    /// What is to be done next.
    pub(crate) fn poll(&mut self) -> Option<ChainAction> {
        self.out.actions.pop_front()
    }

    /// How things are with a peer.
    pub(crate) fn view(&self, peer: PeerId) -> Option<ChainView> {
        self.peers.get(&peer).map(Agreement::view)
    }

    fn with(&mut self, peer: PeerId, work: impl FnOnce(&mut Agreement, &mut Out)) {
        let Some(of) = self.peers.get_mut(&peer) else { return };
        let before = of.due();
        work(of, &mut self.out);
        let after = of.due();
        if before != after {
            before.map(|due| self.due.remove(&(due, peer)));
            after.map(|due| self.due.insert((due, peer)));
        }
    }
}

impl Agreement {
    fn new(peer: PeerId, lot: u8) -> Self {
        Self {
            peer,
            session: None,
            known: BTreeMap::new(),
            in_force: None,
            sending: None,
            ours: None,
            next: None,
            theirs: None,
            heard: None,
            number: 0,
            last: lot,
            unanswered: None,
            made_anew: 0,
            refused: None,
        }
    }

    fn view(&self) -> ChainView {
        let asked = |request: &Request| matches!(request.step, Step::Asked { .. });
        let phase = match (self.in_force, &self.ours) {
            (None, None) => ChainPhase::Empty,
            (None, Some(request)) if asked(request) => ChainPhase::Asked,
            (None, Some(_)) => ChainPhase::Installing,
            (Some(_), None) => ChainPhase::InForce,
            (Some(_), Some(_)) => ChainPhase::Replacing,
        };
        let in_force = self.in_force.and_then(|number| Some((number, self.known.get(&number)?.spec.clone())));
        ChainView { phase, in_force, sending: self.sending, known: self.known.len(), refused: self.refused }
    }

    fn due(&self) -> Option<Time> {
        let again = match self.ours.as_ref().map(|request| request.step) {
            Some(Step::Asked { again, .. }) => Some(again),
            _ => None,
        };
        let former = self.known.values().filter(|known| known.installed).filter_map(|known| known.until).min();
        let lapse = self.unanswered.map(|since| since + LAPSE);
        [again, former, lapse].into_iter().flatten().min()
    }

    // ---- what this end wants

    fn want(&mut self, now: Time, wanted: Option<ChainSpec>, out: &mut Out) {
        self.refused = None;
        self.made_anew = 0;
        if wanted.is_none() {
            // That is always possible, whatever the peer does.
            self.send_by(None, out);
        }
        if let Some(request) = self.ours.take_if(|request| request.step == Step::Waiting) {
            self.retire(now, request.chain);
        }
        self.next = Some(wanted);
        self.begin(now, out);
    }

    /// Goes on with a request that has waited, where it can.
    fn begin(&mut self, now: Time, out: &mut Out) {
        if self.session.is_none() {
            return;
        }
        if self.ours.is_none() {
            let in_force = self.in_force.and_then(|number| self.known.get(&number));
            let in_force = in_force.map(|known| &known.spec);
            let Some(wanted) = self.next.take().filter(|wanted| in_force != wanted.as_ref()) else {
                // The empty chain may have been wanted for a moment.
                return self.send_by(self.in_force, out);
            };
            self.ours = Some(Request { wanted, chain: None, known: false, step: Step::Waiting });
        }
        let able = self.session.is_some_and(|session| session.speaks) && self.theirs.is_none();
        let Some(request) = self.ours.as_mut().filter(|request| able && request.step == Step::Waiting) else { return };
        let Some(wanted) = request.wanted.clone() else {
            // What the peer sends meanwhile still comes by the other one.
            self.send_by(None, out);
            return self.ask(now, out);
        };
        if request.chain.is_some() {
            return self.ask(now, out);
        }
        let in_force = self.in_force.filter(|number| {
            self.known.get(number).is_some_and(|known| known.installed && known.spec.is_alike(&wanted))
        });
        if in_force.is_some() {
            (request.chain, request.known) = (in_force, true);
            return self.ask(now, out);
        }
        if self.known.len() >= CHAINS {
            return;
        }
        let Some(number) = self.next_number() else { return };
        if let Some(request) = &mut self.ours {
            (request.chain, request.known, request.step) = (Some(number), false, Step::Installing);
        }
        self.install(number, wanted, Side::Ours, out);
    }

    /// The lower key's numbers are odd, the higher one's even (P-171).
    fn next_number(&mut self) -> Option<ChainNumber> {
        let lower = self.session?.lower;
        let turns = (1..=u8::MAX).map(|step| self.last.wrapping_add(step)).filter_map(ChainNumber::new);
        let number = turns.filter(|number| is_of(*number, lower)).find(|number| !self.known.contains_key(number))?;
        self.last = number.get();
        Some(number)
    }

    fn ask(&mut self, now: Time, out: &mut Out) {
        self.number += 1;
        let number = self.number;
        // Whoever answers sends by the new one, and receives by the former for so long (P-173).
        let replaces = self.ours.as_ref().is_some_and(|request| request.chain != self.sending);
        if replaces && self.sending.is_some() {
            self.unanswered.get_or_insert(now);
        }
        self.send(now, number, 0, out);
    }

    fn send(&mut self, now: Time, number: u32, tries: u32, out: &mut Out) {
        let (Some(session), Some(request)) = (self.session, self.ours.as_mut()) else { return };
        let first = (session.round_trip * 3 / 2).max(LEAST_PAUSE);
        let pause = if tries < TRIES { (first * 2u32.pow(tries.min(8))).min(LONGEST_PAUSE) } else { SELDOM };
        request.step = Step::Asked { number, tries: tries + 1, again: now + pause };
        let named = request.chain.zip(request.wanted.clone());
        let chain = named.map(|(number, spec)| NamedChain { number, known: request.known, spec });
        let request = ChainRequest { number, binding: BindingNumber::FIRST, chain };
        out.actions.push_back(ChainAction::Send(self.peer, Message::Chain(request)));
    }

    fn hear_answer(&mut self, now: Time, answer: &ChainAnswer, out: &mut Out) {
        let behind = |heard: Heard| (heard.number, heard.answer.is_some()) < (answer.settled, true);
        if answer.settled > 0 && self.theirs.is_none() && self.heard.is_none_or(behind) {
            // A request that was withdrawn may still be on its way (P-171).
            self.heard = Some(Heard { number: answer.settled, answer: Some((ChainStatus::NotNewer, 0)) });
        }
        let Some(request) = self.ours.clone() else { return };
        if !matches!(request.step, Step::Asked { number, .. } if number == answer.number)
            || answer.binding != BindingNumber::FIRST
        {
            return;
        }
        match answer.status {
            ChainStatus::InForce if answer.in_force == request.chain => {
                self.ours = None;
                self.apply(now, request.chain, out);
                self.give(request.chain, Side::Ours, out);
                let known = request.chain.and_then(|chain| self.known.get_mut(&chain));
                if let (Some(known), Some(chain), Some(spec)) = (known, request.chain, request.wanted)
                    && known.spec != spec
                {
                    known.spec = spec.clone();
                    let op = ChainOp::SetParameters { peer: self.peer, chain, spec };
                    out.actions.push_back(ChainAction::Do(op));
                }
            }
            // The peer has not done it yet, and may at the next repetition.
            ChainStatus::Crossed | ChainStatus::NoRoom if answer.stage == 0 => {
                self.unanswered = self.unanswered.map(|_| now);
            }
            // One that says so of another chain means nothing, and what is not newer is answered already.
            ChainStatus::InForce | ChainStatus::NotNewer => {}
            ChainStatus::OtherChain if self.made_anew < ANEW && request.wanted.is_some() => {
                self.made_anew += 1;
                self.retire(now, request.chain);
                self.in_force = self.in_force.filter(|in_force| Some(*in_force) != request.chain);
                self.ours = Some(Request { chain: None, known: false, step: Step::Waiting, ..request });
            }
            status => {
                self.ours = None;
                self.refused = Some((status, answer.stage));
                // The answer to an earlier request may have been lost: what the peer has in force counts. But it may
                // not know yet that a request of its own was accepted here.
                let accepted = |heard: Heard| heard.number > answer.settled && heard.answer == Some(ACCEPTED);
                let ahead = self.heard.is_some_and(accepted);
                let there = |number: &ChainNumber| self.known.get(number).is_some_and(|known| known.installed);
                let in_force = if ahead { self.in_force } else { answer.in_force.filter(there) };
                self.apply(now, in_force, out);
                if !ahead && in_force != answer.in_force && self.made_anew < ANEW {
                    // It sends by what nobody here can read.
                    self.made_anew += 1;
                    self.ours = Some(Request { wanted: None, chain: None, known: false, step: Step::Waiting });
                }
            }
        }
        self.begin(now, out);
    }

    /// A chain is received by for what is on its way, and then no longer.
    fn retire(&mut self, now: Time, chain: Option<ChainNumber>) {
        if let Some(known) = chain.and_then(|chain| self.known.get_mut(&chain)) {
            known.until.get_or_insert(now + FORMER);
        }
    }

    // ---- what the peer wants

    fn hear(&mut self, now: Time, offers: bool, request: ChainRequest, out: &mut Out) {
        let number = request.number;
        match self.heard {
            Some(heard) if number < heard.number => return self.answer(number, (ChainStatus::NotNewer, 0), out),
            Some(Heard { number: last, answer: Some(answer) }) if number == last => {
                return self.answer(number, answer, out);
            }
            // It is being done; what is newer than that is said again.
            _ if self.theirs.is_some() => return,
            _ => {}
        }
        self.heard = Some(Heard { number, answer: None });
        let lower = self.session.is_some_and(|session| session.lower);
        if lower && self.ours.as_ref().is_some_and(|ours| ours.step != Step::Waiting) {
            // P-171. It is looked at again when it is said again, and this end's is settled.
            return self.answer(number, (ChainStatus::Crossed, 0), out);
        }
        if !offers || request.binding != BindingNumber::FIRST {
            return self.settle(number, (ChainStatus::Refused, 0), out);
        }
        let Some(chain) = request.chain else { return self.agree(now, number, None, out) };
        if chain.spec.stages().len() > STAGES {
            return self.settle(number, (ChainStatus::NoRoom, STAGES as u8), out);
        }
        match self.known.get_mut(&chain.number) {
            Some(known) if chain.known && known.installed && known.spec == chain.spec => {
                self.agree(now, number, Some(chain.number), out);
            }
            Some(known) if chain.known && known.installed && known.spec.is_alike(&chain.spec) => {
                let (peer, spec) = (self.peer, chain.spec.clone());
                let op = ChainOp::SetParameters { peer, chain: chain.number, spec };
                out.actions.push_back(ChainAction::Await(peer, chain.number, op));
                known.until = None;
                self.theirs = Some(Doing { number, chain });
            }
            None if !chain.known && is_of(chain.number, !lower) => {
                if self.known.len() >= CHAINS || out.of_peers >= CHAINS_OF_PEERS {
                    // There may be when it is said again.
                    return self.answer(number, (ChainStatus::NoRoom, 0), out);
                }
                self.install(chain.number, chain.spec.clone(), Side::Theirs, out);
                self.theirs = Some(Doing { number, chain });
            }
            _ => self.settle(number, (ChainStatus::OtherChain, 0), out),
        }
    }

    /// The peer's request is done: its chain is in force here. A request of this end's that crossed it is none any more
    /// (P-171): this end's key is the higher one.
    fn agree(&mut self, now: Time, number: u32, chain: Option<ChainNumber>, out: &mut Out) {
        if self.ours.take_if(|ours| ours.step != Step::Waiting).is_some() {
            self.refused = Some((ChainStatus::Crossed, 0));
        }
        self.apply(now, chain, out);
        self.give(chain, Side::Theirs, out);
        self.settle(number, ACCEPTED, out);
    }

    /// Whoever has asked for a chain last asks again in the next session.
    fn give(&mut self, chain: Option<ChainNumber>, side: Side, out: &mut Out) {
        let Some(known) = chain.and_then(|chain| self.known.get_mut(&chain)) else { return };
        match (known.side, side) {
            (Side::Ours, Side::Theirs) => out.of_peers += 1,
            (Side::Theirs, Side::Ours) => out.of_peers -= 1,
            (Side::Ours, Side::Ours) | (Side::Theirs, Side::Theirs) => {}
        }
        known.side = side;
    }

    fn settle(&mut self, number: u32, answer: (ChainStatus, u8), out: &mut Out) {
        if let Some(heard) = self.heard.as_mut().filter(|heard| heard.number == number) {
            heard.answer = Some(answer);
        }
        self.answer(number, answer, out);
    }

    fn answer(&mut self, number: u32, (status, stage): (ChainStatus, u8), out: &mut Out) {
        let open = self.ours.as_ref().is_some_and(|ours| matches!(ours.step, Step::Asked { .. }));
        let settled = self.number - u32::from(open);
        let answer =
            ChainAnswer { number, binding: BindingNumber::FIRST, settled, in_force: self.in_force, status, stage };
        out.actions.push_back(ChainAction::Send(self.peer, Message::ChainSeen(answer)));
    }

    // ---- what is made here

    fn install(&mut self, number: ChainNumber, spec: ChainSpec, side: Side, out: &mut Out) {
        let op = ChainOp::Set { peer: self.peer, chain: number, spec: spec.clone() };
        out.actions.push_back(ChainAction::Await(self.peer, number, op));
        out.of_peers += usize::from(side == Side::Theirs);
        self.known.insert(number, Known { spec, side, installed: false, until: None });
    }

    fn take_result(&mut self, now: Time, chain: ChainNumber, result: Result<(), (ChainStatus, u8)>, out: &mut Out) {
        let Some(known) = self.known.get_mut(&chain) else { return };
        let made = !std::mem::replace(&mut known.installed, true);
        if made && result.is_err() {
            self.forget_chain(chain, out);
        }
        if let Some(doing) = self.theirs.take_if(|doing| doing.chain.number == chain) {
            match result {
                Ok(()) => {
                    if let Some(known) = self.known.get_mut(&chain) {
                        known.spec = doing.chain.spec;
                    }
                    self.agree(now, doing.number, Some(chain), out);
                }
                Err(why) => {
                    if self.in_force != Some(chain) {
                        self.retire(now, Some(chain));
                    }
                    self.settle(doing.number, why, out);
                }
            }
            return self.begin(now, out);
        }
        let installing = |request: &&mut Request| request.step == Step::Installing && request.chain == Some(chain);
        if self.ours.as_mut().filter(installing).is_none() {
            return;
        }
        match result {
            Ok(()) => {
                if self.session.is_some_and(|session| session.speaks) {
                    self.ask(now, out);
                } else if let Some(request) = &mut self.ours {
                    request.step = Step::Waiting;
                }
            }
            Err(why) => {
                self.ours = None;
                self.refused = Some(why);
                self.begin(now, out);
            }
        }
    }

    /// Both ends have this chain, and send by it. Any other one is received by for a while (P-173).
    fn apply(&mut self, now: Time, chain: Option<ChainNumber>, out: &mut Out) {
        let kept = self.ours.as_ref().and_then(|request| request.chain);
        for (number, known) in &mut self.known {
            if Some(*number) == chain {
                known.until = None;
            } else if Some(*number) != kept {
                known.until.get_or_insert(now + FORMER);
            }
        }
        self.in_force = chain;
        self.unanswered = None;
        self.send_by(chain, out);
    }

    fn send_by(&mut self, chain: Option<ChainNumber>, out: &mut Out) {
        if self.sending != chain {
            self.sending = chain;
            out.actions.push_back(ChainAction::Do(ChainOp::SendThrough { peer: self.peer, chain }));
        }
    }

    fn remove(&mut self, chain: ChainNumber, out: &mut Out) {
        out.actions.push_back(ChainAction::Do(ChainOp::Remove { peer: self.peer, chain }));
        self.forget_chain(chain, out);
    }

    fn forget_chain(&mut self, chain: ChainNumber, out: &mut Out) {
        let removed = self.known.remove(&chain);
        out.of_peers -= usize::from(removed.is_some_and(|known| known.side == Side::Theirs));
    }

    // ---- sessions and time

    fn begin_session(&mut self, now: Time, session: ChainSession, out: &mut Out) {
        self.session = Some(session);
        self.send_by(None, out);
        (self.heard, self.unanswered, self.made_anew) = (None, None, 0);
        // What is being done for the session before is answered in none.
        self.theirs = None;
        let before = self.in_force.take();
        let spec = before.and_then(|number| self.known.get(&number)).filter(|known| known.side == Side::Ours);
        if let (None, Some(known)) = (&self.ours, spec) {
            let wanted = Some(known.spec.clone());
            self.ours = Some(Request { wanted, chain: before, known: true, step: Step::Waiting });
        }
        if let Some(request) = self.ours.as_mut().filter(|request| request.step != Step::Installing) {
            request.step = Step::Waiting;
            // The peer may have led packets through it already, and be another daemon now.
            request.chain = request.chain.filter(|_| request.known);
        }
        let wanted = self.ours.as_ref().and_then(|request| request.chain);
        for (number, known) in &mut self.known {
            if Some(*number) != wanted {
                known.until.get_or_insert(now + FORMER);
            }
        }
        self.begin(now, out);
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Out) {
        if self.unanswered.is_some_and(|since| since + LAPSE <= now) {
            self.unanswered = None;
            self.send_by(None, out);
        }
        let over = |known: &Known| known.installed && known.until.is_some_and(|until| until <= now);
        let over: Vec<_> = self.known.iter().filter(|(_, known)| over(known)).map(|(number, _)| *number).collect();
        for chain in over {
            self.remove(chain, out);
        }
        if let Some(Step::Asked { number, tries, again }) = self.ours.as_ref().map(|request| request.step)
            && again <= now
        {
            self.send(now, number, tries, out);
            if self.session.is_none()
                && let Some(request) = &mut self.ours
            {
                request.step = Step::Waiting;
            }
        }
        self.begin(now, out);
    }
}

fn is_of(number: ChainNumber, lower: bool) -> bool {
    (number.get() % 2 == 1) == lower
}
