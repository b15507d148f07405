//! A process that goes to another host, at the donor.

use std::collections::{BTreeMap, VecDeque};

use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Refusal};

use super::{Answer, failed};
use crate::base::output::{OpDone, OpId};

/// What waits for those that do not move is told.
const ANOTHER_STAYS: &str = "another of its connections does not move";
/// The same of what is asked for too late.
const WITHOUT_IT: &str = "its process is with the other host, without it";

/// A process on its way from here.
#[derive(Debug, Default)]
pub struct Departure {
    /// Its connections and sockets without another end, that which decides first; none before they are to be given.
    parts: Vec<FlowTuple>,
    /// The moves of these that nothing was told of yet.
    open: Vec<(MoveName, FlowTuple)>,
    /// Those whose sockets are, or are about to be, at rest.
    moves: BTreeMap<MoveName, FlowTuple>,
    stage: Stage,
    restored: bool,
    /// It does not go any more: what is still asked of it for that fails.
    called_back: bool,
    /// The first has gone, as far as the node has told.
    decided: bool,
    gone: usize,
    lost: Vec<FlowTuple>,
    /// Ops that wait until all have come as far.
    freezing: Vec<OpId>,
    dumping: Vec<OpId>,
    thawing: Vec<OpId>,
    ending: Vec<OpId>,
    steps: VecDeque<DepartureStep>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Exits: all are to be frozen (`Stopping`).
    #[default]
    Running,
    /// The caller has it stand still. Exits: `Still`; it fails (`Running`, called back).
    Stopping,
    /// Exits: the first is to be written down (`Writing`), is another host's (`Gone`) or stays (`Kept`).
    Still,
    /// The caller writes the process down. Exits: `Written`; it fails (`Still`, called back).
    Writing,
    /// Exits: the first is another host's (`Gone`) or stays (`Kept`).
    Written,
    /// It goes on here.
    Kept,
    /// It is another host's.
    Gone,
}

/// What is to be done for a process that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DepartureStep {
    /// An op is answered.
    Answer(OpId, Answer),
    /// What comes for its connections waits, and it is to stand still: [`Departure::handle_stopped`].
    Stop,
    /// It is written down: [`Departure::handle_written`].
    Write,
    /// What has come for its connections comes to them, and it goes on: [`Departure::handle_woken`].
    Wake,
    /// It is another host's and ends here, whatever becomes of this daemon: [`Departure::handle_ended`].
    End,
    /// The same for one connection of a process that goes on.
    LetIn(FlowTuple),
    /// What has come for a connection goes to where it is now.
    PartWith(FlowTuple),
    /// What has come for a connection is dropped: nobody has it any more.
    Leave(FlowTuple),
    /// The move of one of its connections is to be called off.
    Cancel(MoveName),
}

/// What has become of one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is with the other host.
    Given,
    /// It stays.
    Kept,
    /// It is lost.
    Lost,
}

impl Departure {
    /// One of which nothing has been done yet. `parts`: its connections, that which decides first.
    #[must_use]
    pub fn new(parts: Vec<FlowTuple>) -> Self {
        Self { parts, ..Self::default() }
    }

    /// One that a daemon before this one has begun, which stands still: it does not go any more, unless it has gone.
    #[must_use]
    pub fn restored(parts: Vec<FlowTuple>) -> Self {
        Self { stage: Stage::Still, restored: true, called_back: true, ..Self::new(parts) }
    }

    /// The move of one of its connections is found again.
    pub fn restore_move(&mut self, name: MoveName, flow: FlowTuple) {
        self.moves.insert(name, flow);
    }

    /// All that was found is told. A process goes on whose first connection is in no move: nobody has begun to move it,
    /// or it stays. It decides for all, and so nothing else would tell what becomes of them, whichever others are in
    /// the middle of theirs.
    pub fn end_restoring(&mut self) {
        let decided = self.parts.first().is_some_and(|first| self.moves.values().any(|flow| flow == first));
        if !decided {
            self.keep();
        }
    }

    /// One of its connections is being given, by this move.
    pub fn give(&mut self, name: MoveName, flow: FlowTuple) {
        self.open.push((name, flow));
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<DepartureStep> {
        self.steps.pop_front()
    }

    // ---- what others want to know

    /// Whether ops of this connection's moves are its business.
    #[must_use]
    pub fn takes(&self, flow: &FlowTuple) -> bool {
        !self.is_decided() && self.parts.contains(flow)
    }

    /// Whether a move is one of its.
    #[must_use]
    pub fn has_move(&self, name: &MoveName) -> bool {
        self.moves.contains_key(name)
    }

    /// Its connections, that which decides first.
    #[must_use]
    pub fn parts(&self) -> &[FlowTuple] {
        &self.parts
    }

    /// Whether it is known whose it is.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Kept | Stage::Gone)
    }

    /// Whether it has come to its end, and nothing of it is under way.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_decided() && self.moves.is_empty() && self.open.is_empty()
    }

    /// Whether it was told of all of its connections what has become of them.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether it has been told that the process is the other host's.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.decided
    }

    /// Whether a daemon before this one has begun it: nobody here waits to hear of it.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// How many connections have gone with it.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.gone
    }

    /// The connections that it has lost on its way.
    #[must_use]
    pub fn lost(&self) -> &[FlowTuple] {
        &self.lost
    }

    fn leads(&self, flow: &FlowTuple) -> bool {
        self.parts.first() == Some(flow)
    }

    // ---- ops of its moves

    /// [`MoveOp::Freeze`](crate::MoveOp::Freeze) of one of its connections.
    pub fn freeze(&mut self, id: OpId, name: MoveName, flow: FlowTuple) {
        if self.called_back || self.stage != Stage::Running {
            self.answer(id, failed(Refusal::Cancelled, ANOTHER_STAYS));
            return;
        }
        self.moves.insert(name, flow);
        self.freezing.push(id);
        if self.freezing.len() == self.parts.len() {
            self.stage = Stage::Stopping;
            self.steps.push_back(DepartureStep::Stop);
        }
    }

    /// It stands still, and what comes for its connections waits; or neither.
    pub fn handle_stopped(&mut self, result: Result<(), String>) {
        if self.stage != Stage::Stopping {
            return;
        }
        let waiting = std::mem::take(&mut self.freezing);
        match result {
            Ok(()) => {
                self.stage = Stage::Still;
                self.answer_all(waiting, || Ok(OpDone::Done));
            }
            Err(why) => {
                self.stage = Stage::Running;
                self.moves.clear();
                self.answer_all(waiting, || failed(Refusal::Unmovable, why.clone()));
                self.call_back();
            }
        }
    }

    /// [`MoveOp::Dump`](crate::MoveOp::Dump): the snapshot of the first is the process, those of the others say
    /// nothing.
    pub fn dump(&mut self, id: OpId, name: &MoveName) {
        let Some(flow) = self.moves.get(name).copied() else {
            return self.answer(id, failed(Refusal::Unmovable, "it was given up"));
        };
        match self.stage {
            Stage::Still | Stage::Writing if !self.called_back => {
                if self.leads(&flow) {
                    self.stage = Stage::Writing;
                    self.dumping.insert(0, id);
                    self.steps.push_back(DepartureStep::Write);
                } else {
                    self.dumping.push(id);
                }
            }
            Stage::Written if !self.called_back => self.answer(id, Ok(OpDone::Dumped(vec![0]))),
            _ => self.answer(id, failed(Refusal::Cancelled, ANOTHER_STAYS)),
        }
    }

    /// Its images, or why there are none.
    pub fn handle_written(&mut self, images: Result<Vec<u8>, String>) {
        if self.stage != Stage::Writing {
            return;
        }
        let waiting = std::mem::take(&mut self.dumping);
        match images {
            Ok(images) => {
                self.stage = Stage::Written;
                let snapshots = std::iter::once(images).chain(std::iter::repeat(vec![0]));
                let answers = waiting.into_iter().zip(snapshots);
                self.steps.extend(answers.map(|(id, bytes)| DepartureStep::Answer(id, Ok(OpDone::Dumped(bytes)))));
            }
            Err(why) => {
                self.stage = Stage::Still;
                self.answer_all(waiting, || failed(Refusal::Unmovable, why.clone()));
                self.call_back();
            }
        }
    }

    /// [`MoveOp::Thaw`](crate::MoveOp::Thaw): a connection stays. Whether the process does is for the first to say.
    pub fn thaw(&mut self, id: OpId, name: &MoveName) {
        let Some(flow) = self.moves.get(name).copied() else { return self.answer(id, Ok(OpDone::Done)) };
        match self.stage {
            Stage::Kept => {
                self.steps.push_back(DepartureStep::LetIn(flow));
                self.answer(id, Ok(OpDone::Done));
            }
            Stage::Gone => {
                self.steps.push_back(DepartureStep::Leave(flow));
                self.answer(id, failed(Refusal::NotWoken, WITHOUT_IT));
            }
            _ => {
                self.thawing.push(id);
                if self.leads(&flow) {
                    self.keep();
                } else {
                    self.call_back();
                }
            }
        }
    }

    /// It goes on here, from the first connection's word on.
    fn keep(&mut self) {
        self.stage = Stage::Kept;
        self.called_back = true;
        let waiting: Vec<OpId> = self.freezing.drain(..).chain(self.dumping.drain(..)).collect();
        self.steps.push_back(DepartureStep::Wake);
        self.answer_all(waiting, || failed(Refusal::Cancelled, ANOTHER_STAYS));
    }

    /// It goes on, or is lost.
    pub fn handle_woken(&mut self, result: Result<(), String>) {
        let waiting = std::mem::take(&mut self.thawing);
        self.answer_all(waiting, || match &result {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => failed(Refusal::NotWoken, why.clone()),
        });
    }

    /// [`MoveOp::Destroy`](crate::MoveOp::Destroy): a connection is another host's, and so is the process.
    pub fn destroy(&mut self, id: OpId, name: &MoveName) {
        let Some(flow) = self.moves.get(name).copied() else { return self.answer(id, Ok(OpDone::Done)) };
        if self.is_decided() {
            self.steps.push_back(DepartureStep::PartWith(flow));
            self.answer(id, Ok(OpDone::Done));
            return;
        }
        self.stage = Stage::Gone;
        self.ending.push(id);
        self.steps.push_back(DepartureStep::End);
        self.steps.push_back(DepartureStep::PartWith(flow));
        let waiting: Vec<OpId> = self.thawing.drain(..).chain(self.dumping.drain(..)).collect();
        self.answer_all(waiting, || failed(Refusal::NotWoken, WITHOUT_IT));
    }

    /// It has ended, or goes on standing still for ever.
    pub fn handle_ended(&mut self, result: Result<(), String>) {
        let waiting = std::mem::take(&mut self.ending);
        self.answer_all(waiting, || match &result {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => failed(Refusal::NotKept, why.clone()),
        });
    }

    /// [`MoveOp::ForgetDonation`](crate::MoveOp::ForgetDonation).
    pub fn forget(&mut self, name: &MoveName) {
        self.moves.remove(name);
    }

    // ---- what becomes of it

    /// It is not to go: what waits is told so, and its moves are called off. Those that are decided are not touched by
    /// that.
    pub fn call_back(&mut self) {
        if std::mem::replace(&mut self.called_back, true) {
            return;
        }
        if self.stage != Stage::Stopping {
            let waiting = std::mem::take(&mut self.freezing);
            self.answer_all(waiting, || failed(Refusal::Cancelled, ANOTHER_STAYS));
        }
        self.steps.extend(self.open.iter().map(|(name, _)| DepartureStep::Cancel(*name)));
    }

    /// What has become of one of its connections. `None`: it is none of its. Else the connection, and whether the
    /// process stays by that.
    pub fn handle_outcome(&mut self, name: &MoveName, outcome: Outcome) -> Option<(FlowTuple, bool)> {
        let at = self.open.iter().position(|(open, _)| open == name)?;
        let (_, flow) = self.open.swap_remove(at);
        let mut stays = false;
        match outcome {
            Outcome::Given => {
                self.decided = true;
                self.gone += usize::from(!flow.is_unconnected());
            }
            Outcome::Kept if !self.decided => {
                stays = true;
                self.call_back();
            }
            Outcome::Kept | Outcome::Lost => self.lost.push(flow),
        }
        Some((flow, stays))
    }

    fn answer(&mut self, id: OpId, answer: Answer) {
        self.steps.push_back(DepartureStep::Answer(id, answer));
    }

    fn answer_all(&mut self, ids: Vec<OpId>, answer: impl Fn() -> Answer) {
        self.steps.extend(ids.into_iter().map(|id| DepartureStep::Answer(id, answer())));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use whimbrel_wire::Transport;

    use super::*;

    fn flow(port: u16) -> FlowTuple {
        let end = |port| SocketAddr::from(([192, 0, 2, 1], port));
        FlowTuple { transport: Transport::Tcp, local: end(22), remote: end(port) }
    }

    #[test]
    fn processes_that_are_found_wait_for_their_first_connection_and_no_other() {
        let name = |number| MoveName { donor: [1; 32], number };
        let found = |moves: &[u16]| {
            let mut departure = Departure::restored(vec![flow(1), flow(2)]);
            moves.iter().for_each(|port| departure.restore_move(name(u64::from(*port)), flow(*port)));
            departure.end_restoring();
            departure
        };
        let mut both = found(&[1, 2]);
        assert!(!both.is_decided() && both.poll().is_none(), "its first connection tells");
        let mut other = found(&[2]);
        assert!(other.is_decided() && other.poll() == Some(DepartureStep::Wake), "nothing else would ever tell");
        assert!(!other.is_over() && found(&[]).is_over());
    }
}
