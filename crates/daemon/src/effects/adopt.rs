//! What a daemon before this one has left.

use std::collections::HashMap;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::process::Place;
use whimbrel_protocol::{FlowEntry, Found, SavedAcceptance, SavedDonation, Time};
use whimbrel_wire::FlowTuple;

use super::Effects;
use crate::host::table::SavedMoves;
use crate::host::{Failure, Host};
use crate::role::relocation::executor::adopt::FoundMoves;
use crate::role::relocation::process::executor::Around;

impl Effects {
    /// Takes over namespaces and sockets of moves. To be called before anything else is adopted: what is at rest must
    /// not be let have its packets. `own`: this host's key.
    pub(crate) fn adopt_moves(
        &mut self,
        host: &mut Host,
        now: Time,
        own: &PublicKey,
        flows: &HashMap<FlowTuple, FlowEntry>,
        moves: &SavedMoves,
    ) -> FoundMoves {
        host.adopt_namespaces(flows, moves);
        self.relocation.adopt_noted(&moves.halted);
        self.lender.adopt_stopped(moves.lending_stopped);
        self.processes.adopt_leaving();
        let tenancies: Vec<_> = moves.tenancies.values().copied().collect();
        self.tenant.adopt_tenancies(host, now, &tenancies);
        let leases: Vec<_> = moves.leases.values().copied().collect();
        self.lender.adopt_leases(host, own, &leases, moves);
        if let Err(error) = self.lender.end_stray_leases(host, own, moves) {
            tracing::warn!(%error, "what comes for endpoints that are lent to nobody may be lost");
        }
        let leases = leases.into_iter().map(|(saved, _)| saved).collect();
        let given = |saved: &SavedDonation| {
            let Self { relocation, helpers, processes, .. } = &mut *self;
            let of_whole = processes.find_given_of_process(host, saved);
            (
                saved.clone(),
                of_whole.unwrap_or_else(|| relocation.find_given(&|flow| helpers.has_answered(flow), host, now, saved)),
            )
        };
        let donations = moves.donations.values().map(given).collect();
        self.relocation.let_halted_run(host);
        let (processes, mut around) = self.around_wholes(host);
        processes.let_undecided_go_on(&mut around, now);
        let Self { relocation, lender, tenant, processes, .. } = &mut *self;
        let ready = relocation.make_ready(host, now).and(processes.make_ready(host, now));
        if let Err(error) = ready.and(lender.make_ready(host, now)).and(tenant.make_ready(host, now)) {
            tracing::warn!(%error, "what comes for sockets at rest may be lost");
        }
        let taken = |saved: &SavedAcceptance| {
            relocation.find_place(host, saved);
            let first_saved = |load| {
                let mut places = moves.acceptances.values().filter_map(|of| Place::of(&of.request.receiver));
                places.any(|place| place.load == load && place.index == 0)
            };
            let mut around = Around { relocation: &mut *relocation, host: &mut *host };
            let of_whole = processes.find_taken_of_process(&mut around, saved, first_saved);
            let found = of_whole.unwrap_or_else(|| match host.socket_of(&saved.request.tuple) {
                Ok(Some(_)) => Found::Awake,
                // What was rebuilt and not handed on went with that daemon.
                _ => Found::Gone,
            });
            (saved.clone(), found)
        };
        let acceptances = moves.acceptances.values().map(taken).collect();
        self.processes.end_unknown_processes();
        host.keep_to_leases();
        let tenancies = tenancies.into_iter().map(|(saved, _)| saved).collect();
        FoundMoves { donations, acceptances, held: moves.held.values().cloned().collect(), leases, tenancies }
    }

    /// Takes over flows that a daemon before this one had introduced: those that the data plane has and the store does
    /// not know are removed, those that are missing there are put back. What is moved stays so until the node says
    /// otherwise.
    pub(crate) fn adopt(
        &mut self,
        host: &mut Host,
        now: Time,
        flows: &HashMap<FlowTuple, FlowEntry>,
    ) -> Result<(), Failure> {
        let present: HashMap<_, _> = host.datapath.flows()?.into_iter().collect();
        let mut strangers = Vec::new();
        for (flow, entry) in present.iter().filter(|(flow, _)| !flows.contains_key(flow)) {
            if !host.adopt_home(flow, entry) {
                strangers.push(*flow);
            }
        }
        host.adopt_flows(now, flows, &present, &strangers)?;
        let at_rest = self.at_rest();
        self.helpers.adopt_helped(host, now, flows, &at_rest);
        Ok(())
    }
}
