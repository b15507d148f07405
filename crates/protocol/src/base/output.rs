//! What a node gives out: datagrams, effects and events, in one order.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::chain::ChainStatus;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{MoveName, Refusal};
use whimbrel_wire::{ChainNumber, FlowTuple};

use crate::base::event::Event;
use crate::base::flow_name::FlowName;
use crate::base::id::LinkId;
use crate::base::op::relocation::{LeaseName, MoveOp};
use crate::base::op::windows::{Left, SendWindows};
use crate::base::op::{Between, BindingId, Op, PeerId};

/// One thing that a node asks of its caller, or tells it.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A datagram to send, before any op that is given out later: what a peer is told is there before what the kernel
    /// sends it. It may overtake ops that were given out earlier.
    Transmit(Transmit),
    /// An effect to carry out, in order with the others; answered by [`Node::handle_done`](crate::Node::handle_done).
    Op(OpId, Op),
    /// Something that happened. It may be told behind ops that were given out later.
    Event(Event),
}

/// A datagram to send from the control port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The source address to use; the kernel's choice where `None`.
    pub source: Option<IpAddr>,
    /// The link to send it by; that which the routes say where `None`.
    pub link: Option<LinkId>,
    /// The source address and port that it bears in place of this host's own (P-239).
    pub mask: Option<SocketAddr>,
    /// Where to.
    pub destination: SocketAddr,
    /// The whole UDP payload.
    pub payload: Vec<u8>,
}

/// Names one [`Op`], so that its result finds its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// What an op that succeeded came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpDone {
    /// It is done.
    Done,
    /// [`MoveOp::Dump`]: the snapshot (docs/snapshot.md).
    Dumped(Vec<u8>),
    /// [`FlowOp::LookAtUse`](crate::FlowOp::LookAtUse): how long ago; `None`: longer than anybody remembers.
    Used(Option<Duration>),
    /// [`BindingOp::LookAtTraffic`](crate::BindingOp::LookAtTraffic): how long ago; `None`: nothing has come yet.
    Heard(Option<Duration>),
    /// [`BindingOp::Windows`](crate::BindingOp::Windows): what there was; `None`: no sender had anything to send.
    Windows(Option<SendWindows>),
    /// [`MoveOp::Lend`]: the endpoints, definite.
    Lent(Ends),
    /// A chain is not made so, and nothing has changed.
    ChainRefused {
        /// Why, as the peer is told if it asked.
        status: ChainStatus,
        /// Which of its transforms that is about, counted from 0.
        stage: u8,
    },
}

/// What an op that failed came to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct OpFailed {
    /// What another host is told, where the op is done for one. Where it is not said: [`Refusal::NotKept`].
    pub refusal: Option<Refusal>,
    /// What failed, for people at this host.
    pub sentence: String,
}

impl OpFailed {
    /// What another host is told of it.
    pub(crate) fn told(&self) -> Refusal {
        self.refusal.unwrap_or(Refusal::NotKept)
    }
}

/// What an op was for, where its result matters.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// The answer to a peer's introduction.
    Answer(PeerId, FlowTuple),
    FindSockets(PeerId),
    /// Whether a flow is in use.
    Use(FlowTuple),
    /// When something last came from a peer, by these addresses.
    Traffic(PeerId, Between),
    /// What senders had on networks that were left.
    Windows(PeerId, Left),
    Install(FlowTuple),
    /// A flow that this host holds is one with its owner.
    Lead(FlowName),
    /// A flow that was moved here is one with its holder.
    Adopt(MoveName),
    Effect(&'static str),
    /// What a peer is told once it is saved: from, to, and what.
    Say(PeerId, Option<IpAddr>, SocketAddr, Vec<Message>),
    /// Without it flows stand still.
    State(&'static str, State),
    /// Making a chain of a peer's packets.
    Chain(PeerId, ChainNumber),
    /// Something about a move or a lease.
    Move(MoveAsked),
}

/// What an op of a move or a lease was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveAsked {
    Donation(u64),
    Acceptance(MoveName),
    /// Commits, which are decided together, of flows that are called so till then.
    Keep(Vec<FlowName>),
    /// What is known of a flow is kept, or forgotten.
    Held {
        flow: FlowName,
        kept: bool,
    },
    Lease(LeaseName),
    Tenancy(FlowName),
    /// Nothing waits for it, and it is asked for again where it fails.
    Effect(&'static str, Box<MoveOp>),
}

/// State of the kernel that an op could not make so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Keys(PeerId),
    Path(BindingId),
    Binding(BindingId),
    /// What the data plane knows of a flow that was introduced.
    Entry(FlowTuple),
    Sets,
    Listening,
}

/// What the caller has not taken yet, and the ops that it has not answered.
///
/// Effects and events come in the order in which they were written. Datagrams come before them, since others wait for
/// them; one that has to wait for an effect is written when that is answered ([`Asked::Say`]). Ops of moves come
/// behind, whatever was written before the caller asks again: a socket that wakes finds its way there.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    datagrams: VecDeque<Transmit>,
    queue: VecDeque<Output>,
    /// Ops of moves.
    behind: VecDeque<Output>,
    ops: u64,
    asked: HashMap<OpId, Asked>,
}

impl Outputs {
    pub(crate) fn transmit(&mut self, transmit: Transmit) {
        self.datagrams.push_back(transmit);
    }

    pub(crate) fn event(&mut self, event: impl Into<Event>) {
        self.queue.push_back(Output::Event(event.into()));
    }

    /// Asks for an effect of which no result matters.
    pub(crate) fn op(&mut self, op: impl Into<Op>) {
        let id = self.next_id();
        self.queue.push_back(Output::Op(id, op.into()));
    }

    /// Asks for an effect whose result is for something.
    pub(crate) fn ask(&mut self, op: impl Into<Op>, asked: Asked) -> OpId {
        let id = self.next_id();
        self.asked.insert(id, asked);
        self.queue.push_back(Output::Op(id, op.into()));
        id
    }

    /// Asks for an effect of a move, behind all else.
    pub(crate) fn ask_for_move(&mut self, op: MoveOp, asked: MoveAsked) {
        let id = self.next_id();
        self.asked.insert(id, Asked::Move(asked));
        self.behind.push_back(Output::Op(id, op.into()));
    }

    /// An op was answered: what it was for.
    pub(crate) fn answered(&mut self, id: OpId) -> Option<Asked> {
        self.asked.remove(&id)
    }

    /// Ops whose results matter and are awaited.
    pub(crate) fn awaited(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn poll(&mut self) -> Option<Output> {
        let datagram = self.datagrams.pop_front().map(Output::Transmit);
        datagram.or_else(|| self.queue.pop_front()).or_else(|| self.behind.pop_front())
    }

    fn next_id(&mut self) -> OpId {
        self.ops += 1;
        OpId(self.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::op::BindingOp;

    #[test]
    fn datagrams_come_first_and_ops_of_moves_behind_the_effects_that_they_rely_on() {
        let mut outputs = Outputs::default();
        let name = MoveName { donor: [1; 32], number: 1 };
        outputs.ask_for_move(MoveOp::Thaw { name }, MoveAsked::Donation(7));
        outputs.op(BindingOp::Remove { id: BindingId::first(PeerId(1)) });
        outputs.transmit(Transmit {
            source: None,
            link: None,
            mask: None,
            destination: ([127, 0, 0, 1], 1).into(),
            payload: Vec::new(),
        });
        assert!(matches!(outputs.poll(), Some(Output::Transmit(_))));
        assert!(matches!(outputs.poll(), Some(Output::Op(_, Op::Binding(_)))));
        let Some(Output::Op(id, Op::Move(MoveOp::Thaw { .. }))) = outputs.poll() else { panic!("no move") };
        assert!(
            matches!(outputs.answered(id), Some(Asked::Move(MoveAsked::Donation(7)))) && outputs.answered(id).is_none()
        );
        assert_eq!((outputs.poll(), outputs.awaited()), (None, 0));
    }
}
