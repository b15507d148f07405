//! Flows whose address is one host's, and whose socket is another's (`docs/protocol.md` §11).
//!
//! ```text
//! lessor.rs    lending endpoints
//! tenant.rs    having some of another host's
//! choice.rs    which anchor, where a program leaves that to a policy
//! search.rs    which is asked next
//! returns.rs   what is given back, and who waits for that
//! referral.rs  far ends that run Whimbrel talk to the socket's host directly
//! ```

mod choice;
mod lessor;
pub(crate) mod referral;
mod returns;
mod search;
mod tenant;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::Record;

use crate::Time;
use crate::base::Base;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{LeaseName, SavedLease, SavedTenancy};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::binding::transfer::{Below, Change};
use crate::role::At;
use crate::role::Role;
use crate::session::pins::Pin;

use lessor::Lessor;
use tenant::Tenant;

pub use choice::{Candidate, Experience, Policy};
pub use returns::{Awaited, Returns};
pub use search::{Refused, Search, Then};

/// Endpoints that are lent, to others and by others.
#[derive(Debug, Default)]
pub(crate) struct Anchor {
    lessor: Lessor,
    tenant: Tenant,
}

impl Role for Anchor {
    fn new(_: &Base) -> Self {
        Self::default()
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        match signal {
            Signal::SessionUp(id) => {
                let Some(with) = at.low.session().key_of(*id) else { return };
                self.act(at, |anchor, below| anchor.handle_session(below, with));
            }
            signal => {
                self.act(at, |anchor, below| anchor.hear(below, signal));
            }
        }
    }

    fn asked(asked: &MoveAsked) -> bool {
        matches!(asked, MoveAsked::Lease(_) | MoveAsked::Tenancy(_))
    }

    fn handle_done(&mut self, asked: MoveAsked, result: Result<OpDone, OpFailed>, at: &mut At<'_>) {
        self.act(at, |anchor, below| anchor.conclude(below, asked, result));
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.lessor.deadline().into_iter().chain(self.tenant.deadline()).min()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        self.act(at, Self::continue_all);
    }

    fn entries(&self) -> usize {
        self.lessor.entries() + self.tenant.entries()
    }
}

impl Anchor {
    /// Does something, and writes below who depends on this host now, and on whom it does.
    pub(crate) fn act<T>(&mut self, at: &mut At<'_>, act: impl FnOnce(&mut Self, &mut Below<'_>) -> T) -> Option<T> {
        at.low.transfer(at.now, at.base, |below| {
            let done = act(self, below);
            self.write_down(below);
            done
        })
    }

    /// Something has happened.
    pub(super) fn hear(&mut self, below: &mut Below<'_>, signal: &Signal) {
        match signal {
            Signal::Said { from, record } => self.handle_record(below, *from, record),
            Signal::Forgotten(by) => self.tenant.send_again(below, *by),
            Signal::Adopted { name, result } => self.tenant.handle_adopted(below, *name, result),
            Signal::EndpointLed { flow, far } => self.lessor.lend_moved(below, *flow, *far),
            Signal::EndpointComes { name, flow, tuple } => self.tenant.rent_moved(below, *name, *flow, *tuple),
            Signal::EndpointGone(lease) => self.tenant.part(below, *lease),
            Signal::LeaseOver(name) => self.lessor.end_lease(below, *name),
            Signal::Members { .. } => self.lessor.end_forbidden(below),
            _ => {}
        }
    }

    /// There is a session with a host.
    pub(super) fn handle_session(&mut self, below: &mut Below<'_>, with: PublicKey) {
        self.lessor.send_all_reached(below, with);
    }

    /// The result of an op that was for a lease.
    pub(super) fn conclude(&mut self, below: &mut Below<'_>, asked: MoveAsked, result: Result<OpDone, OpFailed>) {
        match asked {
            MoveAsked::Lease(name) => self.lessor.handle_lent(below, name, result),
            MoveAsked::Tenancy(lease) => self.tenant.handle_occupied(below, lease, result),
            _ => {}
        }
    }

    /// What is due happens.
    pub(super) fn continue_all(&mut self, below: &mut Below<'_>) {
        self.lessor.handle_timeout(below);
        self.tenant.handle_timeout(below);
    }

    /// Writes below who depends on this host now, and on whom it does.
    pub(super) fn write_down(&mut self, below: &mut Below<'_>) {
        if let Some(tenants) = self.lessor.take_tenants() {
            below.change(Change::Pin(Pin::Lent, tenants));
        }
        if let Some(lessors) = self.tenant.take_lessors() {
            below.change(Change::Pin(Pin::Rented, lessors));
            below.set_rented(self.tenant.rented().collect());
        }
    }

    /// A host says something about a lease.
    fn handle_record(&mut self, below: &mut Below<'_>, from: PublicKey, record: &Record) {
        // Whatever a host calls a flow is one of its own (P-132).
        let flow_of = |value| FlowName::new(from, value);
        let lease_of = |number| LeaseName { tenant: from, number };
        match record {
            Record::Lease { number, ends } => self.lessor.handle_lease(below, lease_of(*number), *ends),
            Record::Return { number } => self.lessor.end_lease(below, lease_of(*number)),
            Record::Claim { flow, tuple, wire_port, hidden } => {
                let (flow, tuple, wire_port, hidden) = (flow_of(*flow), *tuple, *wire_port, *hidden);
                let leased = self.lessor.lends(from, &tuple);
                below.signal(Signal::Claimed { flow, tuple, wire_port, hidden, leased });
            }
            Record::Leased { number, outcome } => self.tenant.handle_leased(below, flow_of(*number), *outcome),
            Record::Offer { number, ports } => self.tenant.handle_offer(flow_of(*number), ports.clone()),
            Record::Reached { number, reached } => self.tenant.handle_reached(below, flow_of(*number), *reached),
            Record::Verdict { name, outcome } => self.tenant.handle_verdict(below, *name, from, *outcome),
            _ => {}
        }
    }

    /// Takes over leases of a daemon before this one.
    pub(crate) fn restore(&mut self, below: &mut Below<'_>, lent: &[SavedLease], rented: &[SavedTenancy]) {
        self.lessor.restore(below, lent);
        self.tenant.restore(below, rented);
    }

    /// What this host lends.
    pub(crate) fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    pub(crate) fn lessor_mut(&mut self) -> &mut Lessor {
        &mut self.lessor
    }

    /// What it has of others.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    pub(crate) fn tenant_mut(&mut self) -> &mut Tenant {
        &mut self.tenant
    }
}

#[cfg(test)]
impl Anchor {
    pub(crate) fn leases(&self) -> Vec<LeaseName> {
        self.lessor.names()
    }

    pub(crate) fn tenancies(&self) -> Vec<FlowName> {
        self.tenant.names()
    }

    /// Deadlines of what is had, of whatever.
    pub(crate) fn limits(&self) -> usize {
        self.tenant.limits()
    }
}
