//! Ops of moves and leases. Some wait for a namespace, which takes the kernel tens of milliseconds.

use std::net::IpAddr;
use std::ops::ControlFlow;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{FlowName, MoveOp, OpDone, OpFailed, OpId, Refusal, SavedTenancy, Time};

use super::Effects;
use crate::host::refusal::{failed, not_kept, refused};
use crate::host::{Failure, Host, PlaceName, own_addresses};
use crate::role::relocation::executor::Known;
use crate::role::relocation::executor::making::Done;

/// What came of an op.
type Answer = Result<OpDone, OpFailed>;

impl Effects {
    /// Carries out one op of a move. What fails has changed nothing, unless it is said otherwise there. `None`: the
    /// answer comes later. `peer` tells which peer has a key.
    pub(crate) fn carry_out_move(
        &mut self,
        host: &mut Host,
        now: Time,
        id: OpId,
        op: MoveOp,
        peer: impl Fn(&PublicKey) -> Option<Known>,
    ) -> Option<Answer> {
        let op = self.wait_for_namespace(host, id, op)?;
        let (processes, mut around) = self.around_wholes(host);
        let op = match processes.carry_out(&mut around, now, id, op, &peer) {
            ControlFlow::Continue(op) => op,
            ControlFlow::Break(answer) => return answer,
        };
        let Self { relocation, lender, tenant, .. } = self;
        let done = match op {
            MoveOp::Admit { name, request } => relocation.admit(host, now, name, request),
            MoveOp::Freeze { name, flow } => relocation.freeze(host, name, flow),
            MoveOp::Dump { name } => return Some(relocation.dump(host, &name).map(OpDone::Dumped)),
            MoveOp::Restore { name, request, snapshot } => {
                let peers = [name.donor, request.holder].map(|key| peer(&PublicKey::from(key)));
                relocation.rebuild(host, name, &request, &snapshot, peers)
            }
            MoveOp::Thaw { name } if relocation.has_given(&name) => relocation.let_go_on(host, &name),
            MoveOp::Thaw { name } => relocation.wake(host, &name),
            MoveOp::Destroy { name, forward } if relocation.has_given(&name) => {
                let to = forward.as_ref().and_then(peer).map(|to| to.peer);
                relocation.end_given(host, now, &name, to)
            }
            MoveOp::Destroy { name, .. } => relocation.drop_taken(host, &name),
            MoveOp::CloseFarEnd { flow } => relocation.close_far_end(host, &flow, peer),
            MoveOp::SaveDonation(saved) => relocation.save_given(host, saved).map_err(not_kept),
            MoveOp::ForgetDonation { name } => relocation.forget_given(host, now, &name),
            MoveOp::SaveAcceptance(saved) => host.store.save_acceptance(&saved).map_err(not_kept),
            MoveOp::ForgetAcceptance { name } => relocation.forget_taken(host, now, &name),
            MoveOp::SaveHeld(saved) => host.store.save_held(&saved).map_err(not_kept),
            MoveOp::ForgetHeld { flow } => {
                host.store.forget_held(flow);
                Ok(())
            }
            MoveOp::Lend { name, peer, ends, moved } => {
                let lent = lender.lend(host, now, name, peer, ends, moved);
                return Some(lent.map(OpDone::Lent));
            }
            MoveOp::TakeBack { name } => lender.take_back(host, now, name),
            MoveOp::Occupy { number, anchor, anchor_at, peer, ends, moved, fresh } => tenant.occupy(
                host,
                now,
                SavedTenancy { number, anchor, anchor_at, ends, moved, parts: false },
                peer,
                fresh,
            ),
            MoveOp::SaveTenancy(saved) => tenant.keep(host, saved),
            MoveOp::Vacate { lease } => tenant.vacate(host, now, lease),
        };
        Some(done.map(|()| {
            host.write_store();
            OpDone::Done
        }))
    }

    /// Has an op wait for the namespace that it needs. An op that need not wait is given back.
    fn wait_for_namespace(&mut self, host: &mut Host, id: OpId, op: MoveOp) -> Option<MoveOp> {
        let Self { relocation, tenant, making, .. } = self;
        let is_own = |address: &IpAddr| own_addresses(&host.network).contains(address);
        let (name, brought): (PlaceName, _) = match &op {
            MoveOp::Admit { request, .. } => {
                let local = request.tuple.local;
                if is_own(&local.ip()) || relocation.is_admissible(request).is_err() {
                    return Some(op);
                }
                (host.endpoints.name_of(local), None)
            }
            MoveOp::Occupy { number, anchor, ends, moved, fresh: true, .. } => {
                if moved.is_none() && tenant.is_foreign(host, ends).is_err() {
                    return Some(op);
                }
                let lease = FlowName::new(*anchor, *number);
                let name = tenant.place_of_lease(host, lease, ends, moved.is_some());
                if host.endpoints.has(name) {
                    return Some(op);
                }
                (name, if moved.is_none() { tenant.take_brought(lease) } else { None })
            }
            MoveOp::ForgetAcceptance { name } => {
                making.give_up(|op| matches!(op, MoveOp::Admit { name: of, .. } if of == name));
                return Some(op);
            }
            MoveOp::Vacate { lease } => {
                let is_of = |number: &u64, anchor: &PublicKey| FlowName::new(*anchor, *number) == *lease;
                making.give_up(|op| matches!(op, MoveOp::Occupy { number, anchor, .. } if is_of(number, anchor)));
                return Some(op);
            }
            _ => return Some(op),
        };
        if host.endpoints.has(name) {
            return Some(op);
        }
        making.order(name, brought, id, op);
        None
    }

    /// Takes in a namespace that was made, and carries out what waited for it; gives what came of that. `peer` tells
    /// which peer has a key.
    pub(crate) fn handle_namespaces(
        &mut self,
        host: &mut Host,
        now: Time,
        peer: impl Fn(&PublicKey) -> Option<Known> + Copy,
    ) -> Vec<(OpId, Answer)> {
        for done in self.making.take() {
            let new = match done {
                Done::Made(new) => *new,
                Done::TakenDown(gone) => {
                    host.forget_interfaces(gone);
                    continue;
                }
            };
            let Some((name, waiting)) = self.making.take_order() else { continue };
            let made = new.and_then(|new| host.endpoints.install(now, name, new, &mut host.datapath));
            for (id, op) in waiting {
                let answer = match (&made, &op) {
                    (Ok(()), _) => self.carry_out_move(host, now, id, op, peer),
                    (Err(failure), MoveOp::Occupy { .. }) => Some(Err(failed(Refusal::NoRights, failure))),
                    (Err(Failure::Kernel(error)), _) => Some(Err(refused(error, Refusal::NotRestored))),
                    (Err(failure), _) => Some(Err(failed(Refusal::NotRestored, failure))),
                };
                self.making.answer(id, answer);
            }
        }
        self.making.take_answers()
    }
}
