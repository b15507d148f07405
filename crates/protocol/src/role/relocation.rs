//! The transaction that moves a socket from one host to another (`docs/protocol.md` §9, decision 0015).
//!
//! ```text
//! donor.rs      having a socket, and giving it away
//! entrusted.rs  until its new host has said that it goes on
//! acceptor.rs   getting it
//! holder.rs     saying whose it is: the one point of no return
//! load.rs       what goes ahead of a process
//! tickets.rs    what lets an acceptor have a move committed
//! ```
//!
//! All three roles may be one host's, or two of them: what a host has to say to itself goes the same way as what it
//! says to others. None of them knows another; what one is to know of another is given to it here.

mod acceptor;
mod donor;
mod entrusted;
mod holder;
#[cfg(test)]
mod inspected;
mod listening;
mod load;
pub mod process;
mod tickets;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{LoadStanding, MoveName, Record};

use crate::Time;
use crate::base::Base;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{Found, Gift, NotGiven, SavedAcceptance, SavedDonation, SavedHeld};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::binding::transfer::Below;
use crate::role::At;
use crate::role::Role;

use acceptor::Acceptor;
use donor::Donor;
pub use donor::READY_FOR;
use holder::{Claim, Holder};
pub use listening::{Retired, Retiring, Settling};
use load::Loads;
use tickets::Tickets;

/// All moves that a host takes part in.
#[derive(Debug)]
pub(crate) struct Relocation {
    donor: Donor,
    acceptor: Acceptor,
    holder: Holder,
    loads: Loads,
}

impl Role for Relocation {
    fn new(base: &Base) -> Self {
        let tickets = || Tickets::new(base.key().clone());
        Self {
            donor: Donor::new(tickets()),
            acceptor: Acceptor::default(),
            holder: Holder::new(tickets()),
            loads: Loads::default(),
        }
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        match signal {
            Signal::SessionUp(id) => {
                let Some(with) = at.low.session().key_of(*id) else { return };
                self.act(at, |relocation, below| relocation.handle_session(below, &with));
            }
            signal => {
                self.act(at, |relocation, below| relocation.hear(below, signal));
            }
        }
    }

    fn asked(asked: &MoveAsked) -> bool {
        use MoveAsked::{Acceptance, Donation, Held, Keep};
        matches!(asked, Donation(_) | Acceptance(_) | Keep(_) | Held { .. })
    }

    fn handle_done(&mut self, asked: MoveAsked, result: Result<OpDone, OpFailed>, at: &mut At<'_>) {
        self.act(at, |relocation, below| relocation.conclude(below, asked, result));
    }

    fn poll_timeout(&self) -> Option<Time> {
        let all = [self.donor.deadline(), self.acceptor.deadline(), self.holder.deadline(), self.loads.deadline()];
        all.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        self.act(at, Self::continue_all);
    }

    /// With a byte of what is sent and was not heard yet each.
    fn entries(&self) -> usize {
        self.donor.entries() + self.acceptor.entries() + self.holder.entries() + self.loads.entries()
    }
}

impl Relocation {
    /// Does something.
    pub(crate) fn act<T>(&mut self, at: &mut At<'_>, act: impl FnOnce(&mut Self, &mut Below<'_>) -> T) -> Option<T> {
        at.low.transfer(at.now, at.base, |below| act(self, below))
    }

    // ---- what the caller wants

    /// Begins to give a socket away. `number` is drawn by lot. `waits`: it goes once that is [said](Self::go_on) and no
    /// sooner.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub(crate) fn give(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        gift: Gift,
        waits: bool,
    ) -> Result<MoveName, NotGiven> {
        let (tuple, flow) = (gift.tuple, gift.flow);
        let name = self.donor.give(below, number, gift, waits, self.acceptor.is_moving(&tuple))?;
        if flow.peer() == below.me() && !self.holder.contains(&flow) {
            // Nobody else is there to hold the far end.
            self.holder.lend(flow, tuple.mirrored());
        }
        Ok(name)
    }

    /// A socket whose move [waits](Self::give) is to go. `false`: it does not wait, or is not being moved any more.
    pub(crate) fn go_on(&mut self, below: &mut Below<'_>, number: u64) -> bool {
        self.donor.go_on(below, number)
    }

    /// Whoever asked for a move wants it no more.
    pub(crate) fn cancel(&mut self, below: &mut Below<'_>, number: u64) {
        self.donor.cancel(below, number);
        self.settle(below);
    }

    /// The socket of a move is gone, though nobody was asked to destroy it: of one that this host gives away, or else
    /// takes.
    pub(crate) fn handle_gone(&mut self, below: &mut Below<'_>, name: MoveName) {
        if name.donor == *below.me().as_bytes() {
            self.donor.handle_gone(below, name.number);
        } else {
            self.acceptor.handle_gone(below, name);
        }
        self.settle(below);
    }

    /// Sends what a process needs ahead of its connections. `false`: this host may not give that host anything.
    pub(crate) fn send_load(&mut self, below: &mut Below<'_>, number: u64, to: PublicKey, bytes: Vec<u8>) -> bool {
        let may = below.permits().may_go_to(&to);
        if may {
            self.loads.send(below, number, to, bytes);
        }
        may
    }

    /// Tells the donor of a process how it stands here.
    pub(crate) fn answer_load(&self, below: &mut Below<'_>, name: MoveName, standing: LoadStanding, sentence: &str) {
        load::answer_load(below, name, standing, sentence);
    }

    /// Takes over what a daemon before this one left in the middle of: what was not decided is asked for.
    pub(crate) fn restore(
        &mut self,
        below: &mut Below<'_>,
        donations: &[(SavedDonation, Found)],
        acceptances: &[(SavedAcceptance, Found)],
        held: &[SavedHeld],
    ) {
        // First whose the sockets are: this host may ask itself.
        held.iter().for_each(|saved| self.holder.restore(below, saved));
        self.holder.end_revoked(below);
        donations.iter().for_each(|(saved, found)| self.donor.restore(below, saved, *found));
        for (saved, found) in acceptances {
            if *found == Found::Awake {
                self.holder.take_woken(below, &saved.ticket);
            }
            self.acceptor.restore(below, saved, *found);
        }
    }

    /// Others may take part than before: ends what is under way with those who may not, as far as it is not decided.
    pub(crate) fn end_unpermitted(&mut self, below: &mut Below<'_>) {
        self.acceptor.end_unpermitted(below);
        self.donor.end_unpermitted(below);
        self.settle(below);
    }

    // ---- what comes in

    /// Something has happened.
    pub(super) fn hear(&mut self, below: &mut Below<'_>, signal: &Signal) {
        match signal {
            Signal::Said { from, record } => self.handle_record(below, *from, record),
            Signal::Forgotten(by) => self.send_again(below, *by),
            Signal::Led { flow, result } => self.holder.handle_led(below, *flow, result.clone()),
            Signal::Adopted { name, result } => self.acceptor.handle_adopted(below, *name, result.clone()),
            Signal::EndpointReturned(flow) if self.holder.moved_endpoint(flow).is_none() => {}
            Signal::EndpointReturned(flow) => self.holder.end_flow(below, *flow),
            Signal::Claimed { flow, tuple, wire_port, hidden, leased } => {
                self.holder.handle_claim(below, &Claim::new(*flow, *tuple, *wire_port, *hidden), *leased);
            }
            Signal::FlowEnded(flow) => self.holder.end_flow(below, *flow),
            Signal::Closing(flow) => holder::send_ending(below, *flow),
            Signal::Members { .. } => {
                self.holder.end_revoked(below);
                self.end_unpermitted(below);
            }
            _ => {}
        }
    }

    /// A host says something about a move.
    fn handle_record(&mut self, below: &mut Below<'_>, from: PublicKey, record: &Record) {
        let name = |number| MoveName { donor: *from.as_bytes(), number };
        // Whatever a host calls a flow is one of its own (P-132).
        let flow_of = |value| FlowName::new(from, value);
        match *record {
            Record::Ask { number, ref request } => {
                let goes = self.donor.is_moving(&request.tuple);
                self.acceptor.handle_ask(below, name(number), from, request, goes);
            }
            Record::Part { number, total, offset, ref bytes } => {
                self.acceptor.handle_part(below, name(number), total, offset, bytes);
            }
            Record::Ticket(ticket) => self.acceptor.handle_ticket(below, from, ticket),
            Record::Cancel { number } => self.acceptor.handle_cancel(below, name(number)),
            Record::Verdict { name, outcome } => self.acceptor.handle_verdict(below, name, from, outcome),
            Record::Answer { number, standing, refusal } => {
                self.donor.handle_answer(below, number, from, standing, refusal);
            }
            Record::Announced { number, sequence, lifetime, refusal } => {
                self.donor.handle_announced(below, number, from, sequence, lifetime, refusal);
            }
            Record::Decided { number, decision } => self.donor.handle_decided(below, number, from, decision),
            Record::Announce { number, flow, lifetime, acceptor } => {
                self.holder.handle_announce(below, number, flow_of(flow), lifetime, PublicKey::from(acceptor));
            }
            Record::Belongs { number, flow, first } => self.holder.handle_belongs(name(number), flow_of(flow), first),
            Record::Present { ticket, wire_port } => self.holder.handle_presented(below, from, ticket, wire_port),
            Record::Recall { number, flow, gone } => self.holder.handle_recall(below, number, flow_of(flow), gone),
            Record::Settled { number } => self.holder.handle_settled(below, name(number)),
            Record::Surrender(ticket) => self.holder.handle_surrender(below, from, ticket),
            Record::Ending { flow } => self.holder.handle_ending(below, flow_of(flow)),
            Record::Load { number, total, offset, ref bytes } => {
                self.loads.handle_load(below, name(number), total, offset, bytes);
            }
            Record::Loaded { number, standing, ref sentence } => {
                self.loads.handle_loaded(below, from, number, standing, sentence);
            }
            // They are about leases.
            Record::Lease { .. }
            | Record::Leased { .. }
            | Record::Return { .. }
            | Record::Claim { .. }
            | Record::Offer { .. }
            | Record::Reached { .. } => {}
        }
        self.settle(below);
    }

    /// A host has forgotten what it was told: all that it is to answer is said anew.
    fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        self.loads.send_again(below, to);
        self.donor.send_again(below, to);
        self.acceptor.send_again(below, to);
        self.holder.send_again(below, to);
    }

    /// There is a session with a host.
    pub(super) fn handle_session(&mut self, below: &mut Below<'_>, with: &PublicKey) {
        self.acceptor.handle_session(below, with);
        self.holder.lead_waiting(below, with);
    }

    /// The result of an op that was for a move.
    pub(super) fn conclude(&mut self, below: &mut Below<'_>, asked: MoveAsked, result: Result<OpDone, OpFailed>) {
        match asked {
            MoveAsked::Donation(number) => self.donor.handle_done(below, number, result),
            MoveAsked::Acceptance(name) => self.acceptor.handle_done(below, name, result),
            MoveAsked::Keep(flows) => {
                for flow in flows {
                    if let Some(number) = self.holder.handle_kept(below, flow, result.clone()) {
                        self.donor.on_not_kept(number);
                    }
                }
            }
            MoveAsked::Held { flow, kept } => self.holder.handle_held(below, flow, kept, result),
            MoveAsked::Lease(_) | MoveAsked::Tenancy(_) | MoveAsked::Effect(..) => {}
        }
        self.settle(below);
    }

    /// What is due happens.
    pub(super) fn continue_all(&mut self, below: &mut Below<'_>) {
        self.donor.handle_timeout(below);
        self.acceptor.handle_timeout(below);
        self.holder.handle_timeout(below);
        self.loads.handle_timeout(below);
        self.settle(below);
    }

    /// What this host has lent to itself for moves that are over is its own again.
    fn settle(&mut self, below: &mut Below<'_>) {
        while let Some(flow) = self.donor.poll_over() {
            self.holder.handle_unmoved(below, flow);
        }
    }

    /// The flows whose far ends this host holds.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    pub(crate) fn holder_mut(&mut self) -> &mut Holder {
        &mut self.holder
    }
}
