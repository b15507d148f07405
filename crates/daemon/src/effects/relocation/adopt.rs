//! What a daemon before this one has left in the middle of moves.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use whimbrel_handshake::PublicKey;
use whimbrel_kernel::borrowed::Halted;
use whimbrel_kernel::frozen::Frozen;
use whimbrel_kernel::{endpoint, whole};
use whimbrel_protocol::process::Place;
use whimbrel_protocol::{
    FlowEntry, Found, LocalEnd, SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedTenancy, Time,
};
use whimbrel_wire::{FlowTuple, Transport};

use super::Relocation;
use super::donor::Given;
use crate::effects::Effects;
use crate::journal::{Journal, SavedMoves};

/// Moves in the middle, and what is found of their sockets.
pub(crate) struct FoundMoves {
    pub(crate) donations: Vec<(SavedDonation, Found)>,
    pub(crate) acceptances: Vec<(SavedAcceptance, Found)>,
    /// Flows whose far ends are held for others.
    pub(crate) held: Vec<SavedHeld>,
    /// Endpoints that others have on lease.
    pub(crate) leases: Vec<SavedLease>,
    /// Endpoints of others, whether or not programs of this host still use them.
    pub(crate) tenancies: Vec<SavedTenancy>,
}

impl Effects {
    /// Takes over namespaces and sockets of moves. To be called before anything else is adopted: what is at rest must not be let
    /// have its packets. `own`: this host's key.
    pub(crate) fn adopt_moves(
        &mut self,
        now: Time,
        own: &PublicKey,
        flows: &HashMap<FlowTuple, FlowEntry>,
        moves: &SavedMoves,
    ) -> FoundMoves {
        // By the cookies of namespaces that programs have brought along: one of the leases that these are for.
        let mut brought: HashMap<u64, (u64, bool)> = HashMap::new();
        // First the leases that they were asked for: what has come with a socket since is of such a one, under a number that others have drawn.
        let (asked_for, moved): (Vec<_>, Vec<_>) =
            moves.tenancies.values().partition(|(saved, _)| saved.moved.is_none());
        for (saved, namespace) in asked_for.into_iter().chain(moved) {
            let place = namespace.map(|of| brought.entry(of.cookie).or_insert((saved.number, of.hidden)).0);
            self.relocation.endpoints.note_leased(saved.lease(), place, saved.ends, saved.moved.is_some());
        }
        let inside = || flows.iter().filter(|(_, entry)| entry.end == LocalEnd::Endpoint).map(|(flow, _)| flow);
        let rented = || moves.tenancies.values().map(|(saved, _)| saved.ends.first);
        let users = inside().map(|flow| flow.local.ip()).chain(rented().map(|end| end.ip()));
        let of_moves = moves.donations.values().map(|saved| saved.tuple);
        let of_moves = of_moves.chain(moves.acceptances.values().map(|saved| saved.request.tuple));
        let wanted: HashSet<IpAddr> = users.chain(of_moves.map(|flow| flow.local.ip())).collect();
        if !wanted.is_empty() {
            let known = self.datapath.endpoints().unwrap_or_default();
            let cookies = self.datapath.followed_namespaces().unwrap_or_default();
            let found = endpoint::find(&cookies).unwrap_or_else(|error| {
                tracing::error!(%error, "namespaces of a daemon before this one are not found");
                Vec::new()
            });
            for found in found {
                // There may be several of one address: the pair tells which is whose.
                let outer = found.endpoint.outer().index;
                let known = known.iter().find(|(index, _)| *index == outer).map(|(_, known)| known.address);
                let Some(address) = known.filter(|address| wanted.contains(address)) else { continue };
                let (lease, hidden) = brought.get(&found.cookie).copied().unzip();
                let hidden = hidden.unwrap_or(false);
                if let Err(error) = self.relocation.endpoints.adopt(address, lease, hidden, found) {
                    tracing::error!(%address, %error, "a namespace of a daemon before this one cannot be used");
                }
            }
        }
        let endpoints = &mut self.relocation.endpoints;
        let mut lost: HashSet<IpAddr> = HashSet::new();
        lost.extend(inside().filter(|flow| !endpoints.adopt_flow(flow)).map(|flow| flow.local.ip()));
        for end in rented() {
            let name = endpoints.name_of(end);
            lost.extend((!endpoints.adopt_user(name)).then_some(end.ip()));
        }
        for address in lost {
            tracing::warn!(%address, "no program has a socket any more in the namespace of an address whose connections were moved here");
        }
        self.adopt_leaving();
        let tenancies: Vec<_> = moves.tenancies.values().copied().collect();
        self.adopt_tenancies(now, &tenancies);
        let leases: Vec<_> = moves.leases.values().copied().collect();
        self.adopt_leases(&leases);
        if let Err(error) = self.end_stray_leases(own, moves) {
            tracing::warn!(%error, "what comes for endpoints that are lent to nobody may be lost");
        }
        let leases = leases.into_iter().map(|(saved, _)| saved).collect();
        let donations = moves.donations.values().map(|saved| (saved.clone(), self.find_given(now, saved))).collect();
        self.let_halted_run();
        self.let_undecided_go_on(now);
        if let Err(error) = self.make_ready(now) {
            tracing::warn!(%error, "what comes for sockets at rest may be lost");
        }
        let found = |saved: &SavedAcceptance, this: &mut Self| {
            this.find_place(saved);
            let first_saved = |load| {
                let places = moves.acceptances.values().filter_map(|of| Place::of(&of.request.receiver));
                places.into_iter().any(|place| place.load == load && place.index == 0)
            };
            this.find_taken_of_whole(saved, first_saved).unwrap_or_else(|| match this.socket_of(&saved.request.tuple) {
                Ok(Some(_)) => Found::Awake,
                // What was rebuilt and not handed on went with that daemon.
                _ => Found::Gone,
            })
        };
        let acceptances = moves.acceptances.values().map(|saved| (saved.clone(), found(saved, self))).collect();
        self.end_unknown_wholes();
        self.keep_to_leases();
        let tenancies = tenancies.into_iter().map(|(saved, _)| saved).collect();
        FoundMoves { donations, acceptances, held: moves.held.values().cloned().collect(), leases, tenancies }
    }

    /// Processes that a daemon before this one has stopped, or was about to, go on unless a socket of theirs rests.
    fn let_halted_run(&mut self) {
        for (pid, started) in self.journal.halted().clone() {
            if !self.relocation.halted.contains_key(&pid) {
                go_on(pid, started);
                self.journal.forget_halted(pid);
            }
        }
    }

    /// A socket that was being given away.
    fn find_given(&mut self, now: Time, saved: &SavedDonation) -> Found {
        if let Some(found) = self.find_given_of_whole(saved) {
            return found;
        }
        let found = self.borrow_sockets(now, &[saved.tuple], |_| [0; 16]);
        if !found.get(&saved.tuple).is_some_and(Result::is_ok) {
            return Found::Gone;
        }
        let Some(borrowed) = self.relocation.borrowed.remove(&saved.tuple) else { return Found::Gone };
        // Nothing tells of a UDP socket, or of one that listens, whether it rests: its holder knows whose it is.
        let tells = saved.tuple.transport == Transport::Tcp && !saved.tuple.is_unconnected();
        if tells && !Frozen::is_at_rest(borrowed.socket().as_fd()) {
            return Found::Awake;
        }
        match Given::adopt(saved.tuple, borrowed) {
            Ok(given) => {
                self.relocation.halt_adopted(given.processes(), self.journal.halted());
                if !saved.tuple.listens() {
                    self.tunnel.set_aside(&saved.tuple);
                } else if self.relocation.endpoints.at(&saved.tuple).is_some()
                    && let Err(error) = self.keep_new(&saved.tuple)
                {
                    tracing::warn!(flow = %saved.tuple, %error, "connections that are opened now may be lost");
                }
                self.relocation.given.insert(saved.name, given);
                Found::Frozen
            }
            Err(error) => {
                tracing::error!(flow = %saved.tuple, %error, "a socket that rests cannot be woken");
                Found::Gone
            }
        }
    }

    /// Connections whose sockets are at rest, so that nothing may come to them.
    pub(in crate::effects) fn at_rest(&self) -> HashSet<FlowTuple> {
        self.relocation.given.values().map(Given::flow).chain(self.flows_of_leaving()).collect()
    }

    /// Flows whose sockets, in namespaces of their own, are gone: UDP ones, of which nothing else tells, and those that were
    /// [said to be](Self::is_closed) closed while they were there.
    pub(crate) fn ended_flows(&mut self) -> Vec<FlowTuple> {
        if self.relocation.endpoints.is_empty() {
            return Vec::new();
        }
        let doubted = std::mem::take(&mut self.relocation.doubted);
        let flows = self.journal.flows().iter();
        let inside = flows.filter(|(flow, entry)| {
            entry.end == LocalEnd::Endpoint && (flow.transport == Transport::Udp || doubted.contains(flow))
        });
        let flows: Vec<FlowTuple> = inside.map(|(flow, _)| *flow).collect();
        flows.into_iter().filter(|flow| self.has_ended(flow)).collect()
    }

    /// Whether a connection is closed of which that is said. Root of a namespace that a program has brought along can have a connection
    /// of any name in there, and close it: what has its socket in another one does not end by that.
    pub(crate) fn is_closed(&mut self, flow: &FlowTuple) -> bool {
        let closed = self.has_ended(flow);
        if !closed {
            // It is said a moment before: it is looked again.
            self.relocation.doubted.insert(*flow);
        }
        closed
    }

    /// Whether no process has the socket of a flow. What it leaves in the kernel ends by itself, or waits for what is on the way (TIME_WAIT).
    fn has_ended(&mut self, flow: &FlowTuple) -> bool {
        matches!(self.socket_of(flow), Ok(None | Some(0)))
    }

    /// Whether a flow whose end is not in this host's own namespace is still there.
    pub(crate) fn is_elsewhere(&mut self, flow: &FlowTuple) -> bool {
        match self.journal.flows().get(flow).map(|entry| entry.end) {
            Some(LocalEnd::Behind | LocalEnd::Passing) => true,
            Some(LocalEnd::Endpoint) => matches!(self.socket_of(flow), Ok(Some(_))),
            Some(LocalEnd::Here) | None => false,
        }
    }
}

/// Continues a process, unless its number is another's by now.
fn go_on(pid: u32, started: u64) {
    // Looked at with the descriptor in hand, which stays that process's.
    match Halted::adopt(pid) {
        Ok(halted) if whole::started(pid) != Some(started) => halted.leave(),
        Ok(_) | Err(_) => {}
    }
}

/// Continues what a daemon that is gone has stopped for moves, as its journal has it. No socket of theirs [rests](Journal::resting_in).
pub(crate) fn continue_halted(journal: &Path) {
    Journal::resting_in(journal).0.into_iter().for_each(|(pid, started)| go_on(pid, started));
}

impl Relocation {
    /// Processes that a daemon before this one has stopped, which are `noted` with the time that each was started, go on when their sockets do. What somebody
    /// else has stopped stays so.
    fn halt_adopted(&mut self, processes: &[u32], noted: &BTreeMap<u32, u64>) {
        for pid in processes {
            if let Some((_, count)) = self.halted.get_mut(pid) {
                *count += 1;
                continue;
            }
            let is_noted = noted.get(pid).is_some_and(|started| whole::started(*pid) == Some(*started));
            match if is_noted { Halted::adopt(*pid) } else { Halted::stop(*pid) } {
                Ok(halted) => drop(self.halted.insert(*pid, (halted, 1))),
                Err(error) => tracing::warn!(%error, "a process whose socket rests may not stand still"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};
    use whimbrel_kernel::borrowed::stands_still;

    use super::*;

    /// A process that somebody has stopped.
    fn stopped() -> Child {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        kill_process(Pid::from_child(&child), Signal::STOP).expect("a signal");
        while stands_still(child.id()) == Some(false) {}
        child
    }

    #[test]
    fn what_a_daemon_before_this_one_has_stopped_goes_on_and_nothing_else() {
        // Stopped by that daemon, by its user, and by its user under a number that was another's before.
        let mut children = [stopped(), stopped(), stopped()];
        let [mine, users, other] = children.each_ref().map(Child::id);
        let started = |pid| whole::started(pid).expect("its start");
        let noted = BTreeMap::from([(mine, started(mine)), (other, started(other) + 1)]);
        let mut relocation = Relocation::default();
        relocation.halt_adopted(&[mine, users, other], &noted);
        relocation.halt_adopted(&[mine], &noted);
        assert_eq!(relocation.halted.values().map(|(_, count)| *count).sum::<usize>(), 4);
        assert_eq!([mine, users, other].map(stands_still), [Some(true); 3]);
        relocation.halted.clear();
        while stands_still(mine) == Some(true) {}
        assert_eq!([users, other].map(stands_still), [Some(true); 2]);
        [mine, other].into_iter().for_each(|pid| go_on(pid, started(pid) + 1));
        assert_eq!(stands_still(other), Some(true), "its number is another's by now");
        go_on(other, started(other));
        while stands_still(other) == Some(true) {}
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).expect("its end");
        }
    }
}
