//! What the next daemon is to know: the tables of the store, each in the file of its owner, and what they hold when a
//! daemon starts.

pub(crate) mod anchor;
pub(crate) mod gateway;
pub(crate) mod peers;
pub(crate) mod relocation;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    FlowEntry, FlowName, LeaseName, MoveName, PeerId, SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedPeer,
    SavedTenancy,
};
use whimbrel_wire::FlowTuple;

use crate::store::{Change, Found, Log, StoreError, Table, read};
use anchor::{Leases, Left, LendingStopped, SavedNamespace, Tenancies};
use peers::{Flows, Peers, Suspended};
use relocation::{Acceptances, Donations, Halted, Held};

/// What names a row of which a host and a number are the name.
type Name = (PublicKey, u64);

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
    /// Moves of sockets that were in the middle, and flows that are held for others.
    pub(crate) moves: SavedMoves,
}

/// What is kept of moves of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedMoves {
    /// Of sockets that were being given away.
    pub(crate) donations: BTreeMap<MoveName, SavedDonation>,
    /// Processes that may stand still for these: their numbers, and when they were started.
    pub(crate) halted: BTreeMap<u32, u64>,
    /// Of sockets that were being taken.
    pub(crate) acceptances: BTreeMap<MoveName, SavedAcceptance>,
    /// Of flows whose far ends this host holds, by their names.
    pub(crate) held: BTreeMap<FlowName, SavedHeld>,
    /// Endpoints that others have on lease, and whether the address was of a subnet of this host's links when it was lent.
    pub(crate) leases: BTreeMap<LeaseName, (SavedLease, bool)>,
    /// Whether nothing new is lent.
    pub(crate) lending_stopped: bool,
    /// Endpoints of others, by what they and this host call the leases, with the namespaces that programs have brought
    /// along for them.
    pub(crate) tenancies: BTreeMap<FlowName, (SavedTenancy, Option<SavedNamespace>)>,
}

impl Restored {
    fn of(found: &mut Found<'_>) -> Self {
        let peers: BTreeMap<PeerId, SavedPeer> = found.rows::<Peers>().into_iter().collect();
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
            flows: of_peers::<Flows>(found, &peers),
            left: of_peers::<Left>(found, &peers),
            suspended: !found.rows::<Suspended>().is_empty(),
            moves,
            peers,
        }
    }
}

/// A flow whose peer is gone cannot be moved any more, and its number may be another peer's later.
fn of_peers<T: Table<Key = FlowTuple, Row = FlowEntry>>(
    found: &mut Found<'_>,
    peers: &BTreeMap<PeerId, SavedPeer>,
) -> HashMap<FlowTuple, FlowEntry> {
    let is_gone = |(_, entry): &(FlowTuple, FlowEntry)| !peers.contains_key(&entry.peer);
    let (gone, kept): (Vec<_>, Vec<_>) = found.rows::<T>().into_iter().partition(is_gone);
    gone.iter().for_each(|(flow, _)| found.drop::<T>(flow));
    kept.into_iter().collect()
}

/// The store of a running daemon.
#[derive(Debug)]
pub(crate) struct Store {
    log: Log,
    /// Of hosts behind this one alone: it outlives this host's own life ([`gateway`]).
    lasting: Option<Log>,
}

impl Store {
    /// Opens the store at `path`, creates it where there is none, and gives what it holds.
    ///
    /// # Errors
    /// When the file cannot be read or created, or a later release has written it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Restored), StoreError> {
        let text = read(path)?;
        let mut found = Found::parse(path, &text)?;
        let restored = Restored::of(&mut found);
        Ok((Self { log: Log::open(path, &found)?, lasting: None }, restored))
    }

    /// Keeps a row.
    pub(crate) fn put<T: Table>(&mut self, key: &T::Key, row: &T::Row) {
        self.log.append(Change::default().put::<T>(key, row));
    }

    /// Drops a row.
    pub(crate) fn remove<T: Table>(&mut self, key: &T::Key) {
        self.log.append(Change::default().remove::<T>(key));
    }

    /// Keeps decisions: see [`Log::keep`].
    ///
    /// # Errors
    /// When the file cannot be written. Then none is kept.
    pub(crate) fn keep(&mut self, decisions: Vec<Change>) -> Result<(), StoreError> {
        self.log.keep(decisions)
    }

    /// Hands all that was said since the last call to the system: see [`Log::flush`].
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        let lasting = self.lasting.as_mut().map_or(Ok(()), Log::flush);
        self.log.flush().and(lasting)
    }
}

/// Whether the store at `path`, which stays as it is, tells of any flow. One that cannot be read may do so.
pub(crate) fn has_flows(path: &Path) -> bool {
    let Ok(text) = read(path) else { return true };
    let found = Found::parse(path, &text);
    found.map_or(true, |mut found| !found.rows::<Flows>().is_empty() || found.skipped() > 0)
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
