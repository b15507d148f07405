//! Making the namespaces of addresses, and taking them down, in threads of their own: the kernel takes tens of milliseconds for each, and very many
//! may be asked for at once. An op that needs one that is not there waits for it, and is carried out when it is.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use whimbrel_datapath::Guard;
use whimbrel_handshake::PublicKey;
use whimbrel_kernel::Error;
use whimbrel_kernel::endpoint::{self, Brought};
use whimbrel_kernel::error::Effect;
use whimbrel_protocol::{FlowName, MoveOp, OpDone, OpFailed, OpId, Refusal, Request, Time};

use super::endpoints::{Endpoints, New, Place, PlaceName, take_down};
use super::{Known, Relocation, failed, refused};
use crate::host::{Effects, Failure, own_addresses};
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
enum Done {
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
        let work = Work::new().map_err(|errno| Error::Call {
            call: "eventfd",
            object: "for namespaces that are made".to_owned(),
            source: errno.into(),
            effect: Effect::None,
        })?;
        Ok(Self { work, guard, orders: VecDeque::new(), answers: Vec::new() })
    }

    /// Readable when there is something to take in.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.work.wake()
    }

    fn order(&mut self, name: PlaceName, brought: Option<Brought>, id: OpId, op: MoveOp) {
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
    fn give_up(&mut self, is_over: impl Fn(&MoveOp) -> bool) {
        for order in &mut self.orders {
            for (id, _) in order.waiting.extract_if(.., |(_, op)| is_over(op)) {
                self.answers.push((id, Err(failed(Refusal::Cancelled, &"it is over"))));
                self.work.stir();
            }
        }
    }
}

fn no_thread(detail: String) -> Error {
    Error::Answer { call: "clone", object: "a thread for a network namespace".to_owned(), detail }
}

impl Effects {
    /// Has an op wait for the namespace that it needs. An op that need not wait is given back.
    pub(crate) fn wait_for_namespace(&mut self, id: OpId, op: MoveOp) -> Option<MoveOp> {
        match &op {
            MoveOp::ForgetAcceptance { name } => {
                self.making.give_up(|op| matches!(op, MoveOp::Admit { name: of, .. } if of == name));
            }
            MoveOp::Vacate { lease } => {
                let is_of = |number: &u64, anchor: &PublicKey| FlowName::new(*anchor, *number) == *lease;
                self.making.give_up(|op| matches!(op, MoveOp::Occupy { number, anchor, .. } if is_of(number, anchor)));
            }
            _ => {}
        }
        let Some(name) = self.namespace_to_make(&op) else { return Some(op) };
        let brought = match &op {
            MoveOp::Occupy { number, anchor, moved: None, .. } => {
                self.relocation.take_brought(FlowName::new(*anchor, *number))
            }
            _ => None,
        };
        self.making.order(name, brought, id, op);
        None
    }

    /// The namespace that an op needs and that is not there. None: it needs none, or is to be refused.
    fn namespace_to_make(&self, op: &MoveOp) -> Option<PlaceName> {
        let is_own = |address: &IpAddr| own_addresses(&self.network).contains(address);
        let Relocation { endpoints, .. } = &self.relocation;
        let name = match op {
            MoveOp::Admit { request: Request { tuple, .. }, .. } if is_own(&tuple.local.ip()) => return None,
            MoveOp::Admit { request, .. } => {
                self.is_admissible(request).ok()?;
                endpoints.name_of(request.tuple.local)
            }
            MoveOp::Occupy { number, anchor, ends, moved, fresh: true, .. } => {
                if moved.is_none() {
                    self.is_foreign(ends).ok()?;
                }
                self.relocation.place_of_lease(FlowName::new(*anchor, *number), ends, moved.is_some())
            }
            _ => return None,
        };
        (!endpoints.has(name)).then_some(name)
    }

    /// Takes in a namespace that was made, and carries out what waited for it; gives what came of that. `peer` tells which peer has a key.
    pub(crate) fn take_in_namespaces(
        &mut self,
        now: Time,
        peer: impl Fn(&PublicKey) -> Option<Known> + Copy,
    ) -> Vec<(OpId, Answer)> {
        for done in self.making.work.take() {
            let new = match done {
                Done::Made(new) => *new,
                Done::TakenDown(gone) => {
                    self.forget_interfaces(gone);
                    continue;
                }
            };
            let Some(Order { name, waiting, .. }) = self.making.orders.pop_front() else { continue };
            self.making.begin();
            let Self { relocation: Relocation { endpoints, .. }, datapath, .. } = self;
            let made = new.and_then(|new| endpoints.install(now, name, new, datapath));
            for (id, op) in waiting {
                let answer = match (&made, &op) {
                    (Ok(()), _) => self.carry_out_move(now, id, op, peer),
                    (Err(failure), MoveOp::Occupy { .. }) => Some(Err(failed(Refusal::NoRights, failure))),
                    (Err(Failure::Kernel(error)), _) => Some(Err(refused(error, Refusal::NotRestored))),
                    (Err(failure), _) => Some(Err(failed(Refusal::NotRestored, failure))),
                };
                self.making.answers.extend(answer.map(|answer| (id, answer)));
            }
        }
        std::mem::take(&mut self.making.answers)
    }

    /// Interfaces of namespaces are gone, or are not.
    fn forget_interfaces(&mut self, gone: Vec<(u32, Result<(), Error>)>) {
        for (interface, gone) in gone {
            // One that could not be taken down is watched over as before: nothing gets through it.
            let forgotten = gone.map_err(Failure::from).and_then(|()| Ok(self.datapath.forget(interface)?));
            if let Err(failure) = forgotten {
                tracing::warn!(interface, %failure, "what is left of a namespace stays");
            }
        }
    }

    /// Waits until no thread makes namespaces or takes some down any more, and takes all of them down.
    ///
    /// # Errors
    /// The first; all is tried.
    pub(crate) fn end_namespaces(&mut self) -> Result<(), Failure> {
        self.making.orders.clear();
        self.making.work.finish();
        self.relocation.endpoints = Endpoints::default();
        endpoint::remove_all()?;
        Ok(())
    }
}
