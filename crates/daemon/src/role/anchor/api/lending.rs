//! What this host lends, as programs ask and are told.

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Anchors as View, Code, Failure, LentEnds, PassedOn, Reply};
use whimbrel_protocol::Dependents;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;

use super::super::executor::lender::Lender;
use super::super::offer::{About, Fault};
use super::Anchors;
use crate::api::desk::Desk;
use crate::api::{Answer, views};
use crate::clock;
use crate::events::told;

impl Anchors {
    fn stop_lending(&mut self, desk: &mut Desk, stop: bool) {
        desk.node.stop_lending(stop);
        self.stopping = stop;
    }

    /// A daemon before this one was told to lend nothing new: nobody has taken that back.
    pub(crate) fn keep_from_lending(&mut self, desk: &mut Desk) {
        if self.lends {
            self.stop_lending(desk, true);
            let before = "as it was told before its daemon was started anew";
            desk.tell(told!(LendingStopped { restored: true }, "this host lends nothing new, {before}"));
        }
    }

    /// [`Request::Lending`](whimbrel_ipc::Request::Lending).
    pub(crate) fn set_lending(&mut self, desk: &mut Desk, lender: &mut Lender, stop: bool) -> Answer {
        if !self.lends {
            return Err(Failure::new("this host lends nothing")
                .code(Code::Unavailable)
                .hint("`[anchor]` in the configuration makes it lend ports or addresses."));
        }
        lender.save_lending_stopped(&mut desk.host, stop).map_err(|error| Failure::new(error.to_string()))?;
        if stop != self.stopping {
            self.stop_lending(desk, stop);
            let told = match stop {
                true => told!(LendingStopped {}, "this host lends nothing new"),
                false => told!(LendingStarted {}, "this host lends again"),
            };
            desk.tell(told);
        }
        Ok(Some(Reply::Anchors(self.anchors_view(desk, lender, stop))))
    }

    /// [`Request::Anchors`](whimbrel_ipc::Request::Anchors). `brief`: without what it offers.
    pub(crate) fn anchors_view(&self, desk: &mut Desk, lender: &mut Lender, brief: bool) -> View {
        let Dependents { lent, passed_on } = desk.node.dependents();
        let ends = |key: &PublicKey, ends: &Ends| LentEnds {
            host: desk.peer_name(key),
            address: ends.first.ip(),
            port: ends.first.port(),
            count: ends.count,
        };
        let lent = lent.iter().map(|(tenant, of)| ends(tenant, of)).collect();
        let rented = desk.node.rented().map(|of| ends(&of.anchor, &of.ends)).collect();
        let passed = |(owner, far): (PublicKey, FlowTuple)| PassedOn {
            host: desk.peer_name(&owner),
            flow: views::flow(far.mirrored()),
        };
        let passed_on = passed_on.into_iter().map(passed).collect();
        let offer = if brief { None } else { lender.offer(&mut desk.host) };
        View { lends: self.lends, stopping: self.stopping, offer, lent, passed_on, rented }
    }

    /// Tells what of the configuration cannot be lent, where that is not as it was.
    pub(crate) fn check_offer(&mut self, desk: &mut Desk, lender: &mut Lender) {
        let Some(faults) = lender.new_lending_faults(&desk.host, &self.faults) else {
            return;
        };
        let told = if faults.is_empty() {
            told!(CanLend {}, "all that `[anchor]` names can be lent now, and all that is lent is reached")
        } else {
            let one = |fault: &Fault| format!("{}, so {}: {}", fault.sentence, fault.lost, fault.mend);
            let sentences: Vec<String> = faults.iter().map(one).collect();
            let named: Vec<&str> = faults.iter().map(|fault| fault.sentence.as_str()).collect();
            told!(CannotLend { faults: named }, "`[anchor]`: {}", sentences.join("; "))
        };
        let unreached = |fault: &Fault| match fault.about {
            About::Lent(address) => Some(address),
            _ => None,
        };
        desk.node.on_unreached(clock::now(), faults.iter().filter_map(unreached).collect());
        self.faults = faults;
        desk.tell(told);
    }
}
