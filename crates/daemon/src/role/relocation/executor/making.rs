//! Making the namespaces of addresses, and taking them down, in threads of their own: the kernel takes tens of
//! milliseconds for each, and very many may be asked for at once. An op that needs one that is not there waits for it,
//! and is carried out when it is.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use whimbrel_datapath::Guard;
use whimbrel_kernel::Error;
use whimbrel_kernel::endpoint::Brought;
use whimbrel_protocol::{MoveOp, OpDone, OpFailed, OpId, Refusal};

use crate::host::Failure;
use crate::host::endpoints::{New, Place, PlaceName, take_down};
use crate::host::refusal::failed;
use crate::work::Work;

/// What came of an op.
type Answer = Result<OpDone, OpFailed>;

/// One that is to be made.
#[derive(Debug)]
struct Order {
    name: PlaceName,
    /// A program has brought it along.
    brought: Option<Brought>,
    /// The ops that need it, in the order in which they came. None: they are over.
    waiting: Vec<(OpId, MoveOp)>,
}

/// What a thread has done.
#[derive(Debug)]
pub(crate) enum Done {
    /// Made one, or not.
    Made(Box<Result<New, Failure>>),
    /// Taken some down; by the indices of their interfaces.
    TakenDown(Vec<(u32, Result<(), Error>)>),
}

/// Namespaces that are being made.
#[derive(Debug)]
pub(crate) struct Making {
    work: Work<Done>,
    guard: Guard,
    /// The first is under way: the kernel makes one after the other.
    orders: VecDeque<Order>,
    answers: Vec<(OpId, Answer)>,
}

impl Making {
    /// # Errors
    /// [`Error::Call`].
    pub(crate) fn new(guard: Guard) -> Result<Self, Error> {
        Ok(Self { work: Work::new()?, guard, orders: VecDeque::new(), answers: Vec::new() })
    }

    /// Readable when there is something to take in.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.work.wake()
    }

    /// Has one be made, for an op.
    pub(crate) fn order(&mut self, name: PlaceName, brought: Option<Brought>, id: OpId, op: MoveOp) {
        if let Some(order) = self.orders.iter_mut().find(|order| order.name == name) {
            order.waiting.push((id, op));
            return;
        }
        self.orders.push_back(Order { name, brought, waiting: vec![(id, op)] });
        if self.orders.len() == 1 {
            self.begin();
        }
    }

    /// Has the thread make the first of those that anybody waits for.
    fn begin(&mut self) {
        while self.orders.front().is_some_and(|order| order.waiting.is_empty()) {
            self.orders.pop_front();
        }
        let Some(Order { name, brought, .. }) = self.orders.front_mut() else { return };
        let (address, brought, guard) = (name.address, brought.take(), self.guard.clone());
        let make = move || Done::Made(Box::new(New::make(address, brought, &guard)));
        self.work.begin(make, |detail| Done::Made(Box::new(Err(no_thread(detail).into()))));
    }

    /// Has a thread take some down.
    pub(crate) fn take_down(&mut self, places: Vec<Place>) {
        let indices: Vec<u32> = places.iter().map(|place| place.interface).collect();
        let fail = move |detail: String| {
            Done::TakenDown(indices.into_iter().map(|index| (index, Err(no_thread(detail.clone())))).collect())
        };
        self.work.begin(move || Done::TakenDown(take_down(places)), fail);
    }

    /// The ops of a move or lease that is over need no answer but that it is.
    pub(crate) fn give_up(&mut self, is_over: impl Fn(&MoveOp) -> bool) {
        for order in &mut self.orders {
            for (id, _) in order.waiting.extract_if(.., |(_, op)| is_over(op)) {
                self.answers.push((id, Err(failed(Refusal::Cancelled, &"it is over"))));
                self.work.stir();
            }
        }
    }

    /// Takes what threads have done. One that [was made](Done::Made) is that of the next [order](Self::take_order).
    pub(crate) fn take(&mut self) -> Vec<Done> {
        self.work.take()
    }

    /// Takes which one was made, and the ops that wait for it; the next is begun.
    pub(crate) fn take_order(&mut self) -> Option<(PlaceName, Vec<(OpId, MoveOp)>)> {
        let Order { name, waiting, .. } = self.orders.pop_front()?;
        self.begin();
        Some((name, waiting))
    }

    /// What came of an op that has waited, where it is known already.
    pub(crate) fn answer(&mut self, id: OpId, answer: Option<Answer>) {
        self.answers.extend(answer.map(|answer| (id, answer)));
    }

    /// Takes the answers to ops.
    pub(crate) fn take_answers(&mut self) -> Vec<(OpId, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// Waits until no thread makes any or takes some down.
    pub(crate) fn end(&mut self) {
        self.orders.clear();
        self.work.finish();
    }
}

fn no_thread(detail: String) -> Error {
    Error::Answer { call: "clone", object: "a thread for a network namespace".to_owned(), detail }
}
