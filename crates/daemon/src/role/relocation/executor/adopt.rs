//! What a daemon before this one has left in the middle of moves.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use whimbrel_kernel::checkpoint::Checkpoint;
use whimbrel_kernel::duplicated::Halted;
use whimbrel_kernel::process_tree;
use whimbrel_protocol::{Found, SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedTenancy, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::Relocation;
use super::donor::Given;
use crate::host::Host;
use crate::role::relocation::table::resting_in;

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

impl Relocation {
    /// Takes over of which processes a daemon before this one has noted that they may stand still.
    pub(crate) fn adopt_noted(&mut self, halted: &BTreeMap<u32, u64>) {
        self.noted.clone_from(halted);
    }

    /// Processes that a daemon before this one has stopped, or was about to, go on unless a socket of theirs rests.
    pub(crate) fn let_halted_run(&mut self, host: &mut Host) {
        for (pid, started) in self.noted.clone() {
            if !self.halted.contains_key(&pid) {
                go_on(pid, started);
                self.forget_noted(host, pid);
            }
        }
    }

    /// A socket that was being given away.
    pub(crate) fn find_given(
        &mut self,
        is_helped: &dyn Fn(&FlowTuple) -> bool,
        host: &mut Host,
        now: Time,
        saved: &SavedDonation,
    ) -> Found {
        let found = self.borrow_sockets(is_helped, host, now, &[saved.tuple], |_| [0; 16]);
        if !found.get(&saved.tuple).is_some_and(Result::is_ok) {
            return Found::Gone;
        }
        let Some(duplicated) = self.duplicated.remove(&saved.tuple) else { return Found::Gone };
        // Nothing tells of a UDP socket, or of one that listens, whether it rests: its holder knows whose it is.
        let tells = saved.tuple.transport == Transport::Tcp && !saved.tuple.is_unconnected();
        if tells && !Checkpoint::is_at_rest(duplicated.socket().as_fd()) {
            return Found::Awake;
        }
        match Given::adopt(saved.tuple, duplicated) {
            Ok(given) => {
                let noted = self.noted.clone();
                self.halt_adopted(given.processes(), &noted);
                if !saved.tuple.listens() {
                    host.tunnel.set_aside(&saved.tuple);
                } else if host.endpoints.at(&saved.tuple).is_some()
                    && let Err(error) = self.keep_new(host, &saved.tuple)
                {
                    tracing::warn!(flow = %saved.tuple, %error, "connections that are opened now may be lost");
                }
                self.given.insert(saved.name, given);
                Found::Frozen
            }
            Err(error) => {
                tracing::error!(flow = %saved.tuple, %error, "a socket that rests cannot be woken");
                Found::Gone
            }
        }
    }
}

/// Continues a process, unless its number is another's by now.
fn go_on(pid: u32, started: u64) {
    // Looked at with the descriptor in hand, which stays that process's.
    match Halted::adopt(pid) {
        Ok(halted) if process_tree::started(pid) != Some(started) => halted.leave(),
        Ok(_) | Err(_) => {}
    }
}

/// Continues what a daemon that is gone has stopped for moves, as its store has it. No socket of theirs
/// [rests](resting_in).
pub(crate) fn continue_halted(store: &Path) {
    resting_in(store).unwrap_or_default().0.into_iter().for_each(|(pid, started)| go_on(pid, started));
}

impl Relocation {
    /// Processes that a daemon before this one has stopped, which are `noted` with the time that each was started, go
    /// on when their sockets do. What somebody else has stopped stays so.
    fn halt_adopted(&mut self, processes: &[u32], noted: &BTreeMap<u32, u64>) {
        for pid in processes {
            if let Some((_, count)) = self.halted.get_mut(pid) {
                *count += 1;
                continue;
            }
            let is_noted = noted.get(pid).is_some_and(|started| process_tree::started(*pid) == Some(*started));
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
    use whimbrel_kernel::duplicated::stands_still;

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
        let started = |pid| process_tree::started(pid).expect("its start");
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
