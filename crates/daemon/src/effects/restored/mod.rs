//! What a daemon finds that one before it has left.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;

use whimbrel_protocol::{FlowEntry, PeerId, SavedPeer};
use whimbrel_wire::FlowTuple;

use crate::host::table::{Flows, Gone, SavedMoves, Suspended, flows_of, peers};
use crate::role::anchor::table::{Leases, Left, LendingStopped, Tenancies};
use crate::role::relocation::table::{Acceptances, Donations, Halted, Held};
use crate::store::{Found, Log, Store, StoreError, read};

/// All that a daemon before this one has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Peers, by number.
    pub(crate) peers: BTreeMap<PeerId, SavedPeer>,
    /// Flows that were introduced.
    pub(crate) flows: HashMap<FlowTuple, FlowEntry>,
    /// Flows that have become direct, as they were before: who has passed them on was not told yet.
    pub(crate) left: HashMap<FlowTuple, FlowEntry>,
    /// Whether this host is suspended.
    pub(crate) suspended: bool,
    /// Addresses that this host has no more, and whether it was told what was left behind there.
    pub(crate) gone: BTreeMap<IpAddr, bool>,
    /// Moves of sockets that were in the middle, and flows that are held for others.
    pub(crate) moves: SavedMoves,
}

impl Restored {
    /// Opens the store at `path`, creates it where there is none, and gives what it holds.
    ///
    /// # Errors
    /// When the file cannot be read or created, or a later release has written it.
    pub(crate) fn open(path: &Path) -> Result<(Store, Self), StoreError> {
        let text = read(path)?;
        let mut found = Found::parse(path, &text)?;
        let restored = Self::of(&mut found);
        Ok((Store::new(Log::open(path, &found)?), restored))
    }

    fn of(found: &mut Found<'_>) -> Self {
        let peers = peers(found);
        let moves = SavedMoves {
            donations: found.rows::<Donations>().into_iter().map(|(_, saved)| (saved.name, saved)).collect(),
            halted: found.rows::<Halted>().into_iter().collect(),
            acceptances: found.rows::<Acceptances>().into_iter().map(|(_, saved)| (saved.ticket.name, saved)).collect(),
            held: found.rows::<Held>().into_iter().map(|(_, saved)| (saved.flow, saved)).collect(),
            leases: found.rows::<Leases>().into_iter().map(|(_, saved)| (saved.0.name, saved)).collect(),
            lending_stopped: !found.rows::<LendingStopped>().is_empty(),
            tenancies: found.rows::<Tenancies>().into_iter().map(|(_, saved)| (saved.0.lease(), saved)).collect(),
        };
        Self {
            flows: flows_of::<Flows>(found, &peers),
            left: flows_of::<Left>(found, &peers),
            gone: found.rows::<Gone>().into_iter().collect(),
            suspended: !found.rows::<Suspended>().is_empty(),
            moves,
            peers,
        }
    }
}
