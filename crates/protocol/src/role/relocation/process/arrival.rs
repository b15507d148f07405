//! A process that comes from another host, at the acceptor.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Refusal};

use super::{Answer, Place, failed};
use crate::Time;
use crate::base::op::relocation::{Found, SavedAcceptance};
use crate::base::output::{OpDone, OpFailed, OpId};

/// How long a process whose fate is decided waits for the last of its connections.
const LAST_WITHIN: Duration = Duration::from_secs(3);
/// How long the connections of a process may take to be announced whose images are here.
const EXPECTED_WITHIN: Duration = Duration::from_secs(60);
/// What is told of ops of a process that is not wanted any more.
const GONE: &str = "its process does not come any more";

/// A process on its way here.
#[derive(Debug)]
pub struct Arrival {
    /// Its connections and sockets without another end that are announced, by their places, and how many there are to
    /// be.
    parts: BTreeMap<u32, FlowTuple>,
    count: Option<u32>,
    moves: BTreeMap<MoveName, Part>,
    stage: Stage,
    fate: Fate,
    /// The first may be presented: from then on its holder decides.
    presented: bool,
    /// What is to be saved of the first, once the others are: that it is found means that all were.
    first: Option<(OpId, SavedAcceptance)>,
    /// Ops that wait until all have come as far.
    rebuilding: Vec<OpId>,
    saving: Vec<OpId>,
    waking: Vec<OpId>,
    steps: VecDeque<ArrivalStep>,
}

/// One of its connections.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: u32,
    flow: FlowTuple,
    standing: Standing,
    saved: bool,
    /// It is not this host's, which its program does not know yet.
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    OnItsWay,
    /// It waits for the process to go on.
    There,
    Over,
}

/// Of the process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its connections are awaited until then.
    Expected(Time),
    Rebuilding,
    /// It is here, at rest.
    Rebuilt,
    Failed,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    /// Its first connection is this host's, and so it is. The others are waited for until then.
    Decided(Time),
    Resuming,
    Running,
    Lost,
    /// Nobody wants it here any more.
    Dropped,
}

/// What is to be done for a process that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "each is carried out at once, and none is kept")]
pub enum ArrivalStep {
    /// An op is answered.
    Answer(OpId, Answer),
    /// What is to be known of a move over a restart is saved: [`Arrival::handle_saved`].
    Save(OpId, SavedAcceptance),
    /// All that it needs is here: it is rebuilt, at rest: [`Arrival::handle_rebuilt`].
    Rebuild,
    /// It goes on: [`Arrival::handle_resumed`].
    Resume,
    /// What was rebuilt ends without a word.
    Discard,
    /// What comes for a connection comes to its socket from now on.
    LetIn(FlowTuple),
    /// A connection of a process that goes on here is not this host's: its program is to know.
    Abort(FlowTuple),
    /// Nothing of it is under way any more. What was rebuilt and waits still, if anything, ends.
    Over,
}

/// What a restarted daemon finds of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It is there, at rest.
    Waits,
    /// It goes on.
    GoesOn,
    /// It is not there.
    Gone,
}

impl Part {
    const fn new(index: u32, flow: FlowTuple) -> Self {
        Self { index, flow, standing: Standing::OnItsWay, saved: false, lost: false }
    }
}

impl Arrival {
    /// What has gone ahead of it is here.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            parts: BTreeMap::new(),
            count: None,
            moves: BTreeMap::new(),
            stage: Stage::Expected(now + EXPECTED_WITHIN),
            fate: Fate::Open,
            presented: false,
            first: None,
            rebuilding: Vec::new(),
            saving: Vec::new(),
            waking: Vec::new(),
            steps: VecDeque::new(),
        }
    }

    /// A daemon before this one has rebuilt it. `presented`: its first connection is among those that were saved. Else
    /// nobody has it but the donor, and it ends.
    #[must_use]
    pub fn restored(presented: bool) -> Self {
        let mut arrival = Self { stage: Stage::Rebuilt, presented, ..Self::new(Time::default()) };
        if !presented {
            arrival.drop_it();
        }
        arrival
    }

    /// The move of one of its connections is found again: what is found of its socket.
    pub fn restore_move(&mut self, name: MoveName, place: Place, flow: FlowTuple, left: Left) -> Found {
        self.add(place, flow);
        self.moves.insert(name, Part { saved: true, ..Part::new(place.index, flow) });
        match left {
            Left::Waits if self.fate == Fate::Dropped => Found::Gone,
            Left::Waits if place.index == 0 => Found::Frozen,
            Left::Waits => Found::Waiting,
            Left::GoesOn => Found::Awake,
            Left::Gone => Found::Gone,
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<ArrivalStep> {
        self.steps.pop_front()
    }

    // ---- what others want to know

    /// Whether a move is one of its.
    #[must_use]
    pub fn has_move(&self, name: &MoveName) -> bool {
        self.moves.get(name).is_some_and(|part| part.standing != Standing::Over)
    }

    /// The connection of one of its moves, and whether that decides for all.
    #[must_use]
    pub fn part(&self, name: &MoveName) -> Option<(FlowTuple, bool)> {
        self.moves.get(name).map(|part| (part.flow, part.index == 0))
    }

    /// Whether this connection comes with it: its socket may not be there yet.
    #[must_use]
    pub fn awaits(&self, flow: &FlowTuple) -> bool {
        self.moves.values().any(|part| part.standing != Standing::Over && part.flow == *flow)
    }

    /// Its connections that are announced, in their order.
    pub fn parts(&self) -> impl Iterator<Item = FlowTuple> {
        self.parts.values().copied()
    }

    /// Whether nobody wants it here any more.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.fate == Fate::Dropped
    }

    /// Whether it is this host's, as far as that is known here.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        !matches!(self.fate, Fate::Open | Fate::Dropped)
    }

    // ---- ops of its moves

    /// [`MoveOp::Admit`](crate::MoveOp::Admit). `false`: it does not fit to the others, or comes too late.
    pub fn admit(&mut self, name: MoveName, place: Place, flow: FlowTuple) -> bool {
        let expected = matches!(self.stage, Stage::Expected(_)) && self.fate == Fate::Open;
        let admitted = expected && self.add(place, flow);
        if admitted {
            self.moves.insert(name, Part::new(place.index, flow));
        }
        admitted
    }

    fn add(&mut self, place: Place, flow: FlowTuple) -> bool {
        let fits = self.count.is_none_or(|count| count == place.count)
            && self.parts.get(&place.index).is_none_or(|there| *there == flow)
            && self.parts.iter().all(|(index, there)| *index == place.index || *there != flow);
        if fits {
            self.count = Some(place.count);
            self.parts.insert(place.index, flow);
        }
        fits
    }

    /// [`MoveOp::Restore`](crate::MoveOp::Restore), with what came in the snapshot kept.
    pub fn restore(&mut self, id: OpId, name: &MoveName) {
        if !self.has_move(name) || self.fate == Fate::Dropped {
            return self.answer(id, failed(Refusal::NotRestored, GONE));
        }
        self.rebuilding.push(id);
        let complete = self.count.is_some_and(|count| self.parts.len() == count as usize);
        if complete && self.rebuilding.len() == self.parts.len() {
            self.stage = Stage::Rebuilding;
            self.steps.push_back(ArrivalStep::Rebuild);
        }
    }

    /// It is there, at rest; or it is not.
    pub fn handle_rebuilt(&mut self, result: Result<(), String>) {
        self.stage = if result.is_ok() { Stage::Rebuilt } else { Stage::Failed };
        if self.fate == Fate::Dropped {
            self.steps.push_back(ArrivalStep::Discard);
        }
        let waiting = std::mem::take(&mut self.rebuilding);
        self.answer_all(waiting, || match &result {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => failed(Refusal::NotRestored, why.clone()),
        });
    }

    /// [`MoveOp::SaveAcceptance`](crate::MoveOp::SaveAcceptance). The first is saved, and presented, once all others
    /// are saved. Those are presented once the first is this host's: then nobody can revoke them on account of the
    /// process.
    pub fn save(&mut self, id: OpId, saved: SavedAcceptance) {
        match self.moves.get(&saved.ticket.name) {
            Some(part) if self.fate != Fate::Dropped => {
                if part.index == 0 {
                    self.first = Some((id, saved));
                    self.save_first_where_all_are_saved();
                } else {
                    self.steps.push_back(ArrivalStep::Save(id, saved));
                }
            }
            _ => self.answer(id, failed(Refusal::NotRestored, GONE)),
        }
    }

    fn save_first_where_all_are_saved(&mut self) {
        if self.moves.values().all(|part| part.saved || part.index == 0)
            && let Some((id, saved)) = self.first.take()
        {
            self.steps.push_back(ArrivalStep::Save(id, saved));
        }
    }

    /// That is saved, or cannot be.
    pub fn handle_saved(&mut self, id: OpId, name: &MoveName, result: Result<(), OpFailed>) {
        let Some(part) = self.moves.get_mut(name) else {
            return self.answer(id, failed(Refusal::NotRestored, GONE));
        };
        if self.fate == Fate::Dropped {
            return self.answer(id, failed(Refusal::NotRestored, GONE));
        }
        if let Err(failed) = result {
            return self.answer(id, Err(failed));
        }
        part.saved = true;
        if part.index == 0 {
            self.presented = true;
            self.answer(id, Ok(OpDone::Done));
        } else if self.is_decided() {
            self.answer(id, Ok(OpDone::Done));
        } else {
            self.saving.push(id);
            self.save_first_where_all_are_saved();
        }
    }

    /// [`MoveOp::Thaw`](crate::MoveOp::Thaw): a connection is this host's. Where it is the first, so is the process.
    pub fn thaw(&mut self, now: Time, id: OpId, name: &MoveName) {
        let Some(part) = self.moves.get_mut(name) else {
            return self.answer(id, failed(Refusal::NotRestored, GONE));
        };
        let Part { index, flow, .. } = *part;
        match self.fate {
            Fate::Running => {
                self.steps.push_back(ArrivalStep::LetIn(flow));
                self.answer(id, Ok(OpDone::Done));
            }
            Fate::Lost | Fate::Dropped => self.answer(id, failed(Refusal::NotWoken, GONE)),
            Fate::Open | Fate::Decided(_) | Fate::Resuming => {
                part.standing = Standing::There;
                self.waking.push(id);
                // Its socket rests still, and takes what comes.
                self.steps.push_back(ArrivalStep::LetIn(flow));
                if index == 0 {
                    self.fate = Fate::Decided(now + LAST_WITHIN);
                    let lost = self.moves.values().filter(|part| part.lost && !part.flow.is_unconnected());
                    self.steps.extend(lost.map(|part| ArrivalStep::Abort(part.flow)));
                    let waiting = std::mem::take(&mut self.saving);
                    self.answer_all(waiting, || Ok(OpDone::Done));
                }
                self.resume_where_all_are_there();
            }
        }
    }

    fn resume_where_all_are_there(&mut self) {
        let awaited = self.moves.values().any(|part| part.standing == Standing::OnItsWay);
        if matches!(self.fate, Fate::Decided(_)) && !awaited {
            self.resume();
        }
    }

    fn resume(&mut self) {
        self.fate = Fate::Resuming;
        self.steps.push_back(ArrivalStep::Resume);
    }

    /// It goes on, or is lost.
    pub fn handle_resumed(&mut self, result: Result<(), String>) {
        self.fate = if result.is_ok() { Fate::Running } else { Fate::Lost };
        let waiting = std::mem::take(&mut self.waking);
        self.answer_all(waiting, || match &result {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => failed(Refusal::NotWoken, why.clone()),
        });
    }

    /// [`MoveOp::Destroy`](crate::MoveOp::Destroy): a connection is not this host's. Where it is the first, or that is
    /// not presented yet, neither is the process.
    pub fn destroy(&mut self, id: OpId, name: &MoveName) {
        let decided = self.is_decided();
        if let Some(part) = self.moves.get_mut(name) {
            part.lost = true;
            let Part { index, flow, .. } = *part;
            if index == 0 || !self.presented {
                self.drop_it();
            } else if decided && !flow.is_unconnected() {
                self.steps.push_back(ArrivalStep::Abort(flow));
            }
        }
        self.answer(id, Ok(OpDone::Done));
    }

    fn drop_it(&mut self) {
        if self.fate != Fate::Open {
            return;
        }
        self.fate = Fate::Dropped;
        if self.stage == Stage::Rebuilt {
            self.steps.push_back(ArrivalStep::Discard);
        }
        let first = self.first.take().map(|(id, _)| id);
        let waiting: Vec<OpId> = self.rebuilding.drain(..).chain(self.saving.drain(..)).chain(first).collect();
        self.answer_all(waiting, || failed(Refusal::NotRestored, GONE));
    }

    /// [`MoveOp::ForgetAcceptance`](crate::MoveOp::ForgetAcceptance).
    pub fn forget(&mut self, name: &MoveName) {
        let Some(part) = self.moves.get_mut(name) else { return };
        part.standing = Standing::Over;
        // Without the first there is no process. Until that is presented nothing is lost yet, and nothing is to be.
        if part.index == 0 || !self.presented {
            self.drop_it();
        }
        self.resume_where_all_are_there();
        if self.moves.values().all(|part| part.standing == Standing::Over) {
            self.steps.push_back(ArrivalStep::Over);
        }
    }

    /// A process does not wait for ever for the last of its connections, and is not waited for for ever.
    pub fn handle_timeout(&mut self, now: Time) {
        match (self.fate, self.stage) {
            (Fate::Decided(until), _) if until <= now => self.resume(),
            (_, Stage::Expected(until)) if until <= now && self.moves.is_empty() => {
                self.steps.push_back(ArrivalStep::Over);
            }
            _ => {}
        }
    }

    /// When something of that is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.fate, self.stage) {
            (Fate::Decided(until), _) => Some(until),
            (_, Stage::Expected(until)) if self.moves.is_empty() => Some(until),
            _ => None,
        }
    }

    fn answer(&mut self, id: OpId, answer: Answer) {
        self.steps.push_back(ArrivalStep::Answer(id, answer));
    }

    fn answer_all(&mut self, ids: Vec<OpId>, answer: impl Fn() -> Answer) {
        self.steps.extend(ids.into_iter().map(|id| ArrivalStep::Answer(id, answer())));
    }
}
