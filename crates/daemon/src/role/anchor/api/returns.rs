//! Leases that nobody needs any more go back to their anchors, and what waits for that is asked for again.

use std::net::SocketAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Awaited, FlowName, Rented, Time};

use super::super::executor::tenant::Tenant;
use super::{Anchors, Asked};
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::clock;

impl Anchors {
    /// The program that a namespace was for has ended, but perhaps not all that it has started.
    pub(crate) fn leave_namespace(&mut self, client: ClientId) {
        let leases = self.namespaces.remove(&client).unwrap_or_default();
        self.check_leases(leases.into_iter());
    }

    /// Leases of a daemon before this one, whose programs are not this one's clients. Which of these programs have
    /// ended is not known: any may have, just now.
    pub(crate) fn check_leases(&mut self, leases: impl Iterator<Item = FlowName>) {
        let now = clock::now();
        leases.for_each(|lease| self.returns.leave(now, lease));
    }

    /// Returns what nobody uses, and goes on with what has waited for that.
    pub(crate) fn return_leases(&mut self, with: &mut With<'_, Tenant>, now: Time) {
        let rented: Vec<Rented> = with.desk.node.rented().collect();
        // Those that came with a namespace are their program's as long as that runs.
        for lease in rented.iter().map(Rented::lease) {
            let of_program = self.namespaces.values().flatten().any(|of| *of == lease);
            if !of_program && !self.asked.contains_key(&lease) {
                self.returns.expire(now, lease);
            }
        }
        for lease in self.returns.take_unused(now, |lease| with.own.is_lease_used(&mut with.desk.host, lease)) {
            with.desk.node.return_lease(now, lease);
        }
        let rented: Vec<Rented> = with.desk.node.rented().collect();
        for (search, wanted) in self.returns.take_ready(now, &rented) {
            self.ask_again(with, Asked { wanted, search });
        }
    }

    /// Whether a program of this host that had any of this has just ended, so that it will be free in a moment.
    pub(crate) fn is_about_to_return(&self, desk: &Desk, now: Time, what: &Awaited) -> bool {
        let rented: Vec<Rented> = desk.node.rented().collect();
        self.returns.is_about_to_return(now, &rented, what)
    }

    /// Whether this host has less of an anchor than it had then, or will in a moment.
    pub(crate) fn has_less_since(&self, desk: &Desk, then: Time, anchor: PublicKey) -> bool {
        let returned = self.returns.has_returned(then, &anchor);
        returned || self.is_about_to_return(desk, clock::now(), &Awaited::Any(vec![anchor]))
    }

    /// Asks again when an endpoint that another program had is free, or has not become so in time.
    pub(crate) fn wait_for_end(&mut self, anchor: PublicKey, end: SocketAddr, asked: Asked) {
        let Asked { wanted, search } = asked;
        self.returns.wait(clock::now(), Awaited::End(anchor, end), search, wanted);
    }

    /// Asks the anchors again that are to have something back, in their order and before others, when one of them has.
    pub(crate) fn wait_for_any(&mut self, asked: Asked) {
        let Asked { wanted, mut search } = asked;
        let anchors = search.ask_late_again();
        self.returns.wait(clock::now(), Awaited::Any(anchors), search, wanted);
    }

    /// Of clients that may wait.
    pub(crate) fn forget_waiting(&mut self, clients: &[ClientId]) {
        self.returns.retain_waiting(|all| {
            all.retain(|wanted| !clients.contains(&wanted.client()));
            !all.is_empty()
        });
    }
}
