//! Tables of sockets that change hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{FlowName, MoveName, SavedAcceptance, SavedDonation, SavedHeld};
use whimbrel_wire::FlowTuple;

use crate::host::table::Name;
use crate::store::{Change, Found, Store, StoreError, read, table};

table! {
    /// Sockets that are being given away, by donor and number of the move.
    Donations = "donation": Name => SavedDonation
}

table! {
    /// Processes that stand still for moves, and when they were started
    /// ([`started`](whimbrel_kernel::process_tree::started)).
    Halted = "halted": u32 => u64
}

table! {
    /// Sockets that come here, by donor and number of the move.
    Acceptances = "acceptance": Name => SavedAcceptance
}

table! {
    /// Whose the flows are whose far ends this host holds, by owner and number.
    Held = "held": Name => SavedHeld
}

fn of_move(name: MoveName) -> Name {
    (PublicKey::from(name.donor), name.number)
}

fn of_flow(name: FlowName) -> Name {
    (name.peer(), name.value())
}

impl Store {
    /// Keeps a move of a socket that is given away, with the processes that are about to be stopped for it.
    ///
    /// # Errors
    /// When the file cannot be written. Then nothing is kept, here and with those below.
    pub(crate) fn save_donation(&mut self, saved: &SavedDonation, halting: &[(u32, u64)]) -> Result<(), StoreError> {
        let halting = halting.iter().fold(Change::default(), |all, (pid, at)| all.put::<Halted>(pid, at));
        self.keep(vec![halting.put::<Donations>(&of_move(saved.name), saved)])
    }

    /// It is over.
    pub(crate) fn forget_donation(&mut self, name: MoveName) {
        self.remove::<Donations>(&of_move(name));
    }

    /// A process stands still for no move any more.
    pub(crate) fn forget_halted(&mut self, pid: u32) {
        self.remove::<Halted>(&pid);
    }

    /// Keeps a move of a socket that comes here.
    ///
    /// # Errors
    /// As [`Self::save_donation`].
    pub(crate) fn save_acceptance(&mut self, saved: &SavedAcceptance) -> Result<(), StoreError> {
        self.keep(vec![Change::default().put::<Acceptances>(&of_move(saved.ticket.name), saved)])
    }

    /// It is over.
    pub(crate) fn forget_acceptance(&mut self, name: MoveName) {
        self.remove::<Acceptances>(&of_move(name));
    }

    /// Keeps whose some flows are whose far ends this host holds, in one write. Where that is cut short the first of
    /// them are kept.
    ///
    /// # Errors
    /// As [`Self::save_donation`]: then none is kept.
    pub(crate) fn save_held(&mut self, saved: &[SavedHeld]) -> Result<(), StoreError> {
        let change = |saved: &SavedHeld| {
            let formerly = Change::default().remove::<Held>(&of_flow(saved.formerly()));
            formerly.put::<Held>(&of_flow(saved.flow), saved)
        };
        self.keep(saved.iter().map(change).collect())
    }

    /// It is nobody's any more.
    pub(crate) fn forget_held(&mut self, flow: FlowName) {
        self.remove::<Held>(&of_flow(flow));
    }
}

/// What the store at `path`, which stays as it is, says of processes that stand still, with the times when they were
/// started, and of sockets that were being given away. Of one that cannot be read, nothing.
///
/// # Errors
/// When a later release has written it.
pub(crate) fn resting_in(path: &Path) -> Result<(BTreeMap<u32, u64>, BTreeSet<FlowTuple>), StoreError> {
    let text = read(path).unwrap_or_default();
    let mut found = Found::parse(path, &text)?;
    let donations = found.rows::<Donations>().into_iter().map(|(_, saved)| saved.tuple).collect();
    Ok((found.rows::<Halted>().into_iter().collect(), donations))
}
