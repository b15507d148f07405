//! Tables of peers, and of flows with them; and what is found of the others when a daemon starts.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    FlowEntry, FlowName, LeaseName, LocalEnd, MoveName, PeerId, SavedAcceptance, SavedDonation, SavedHeld, SavedLease,
    SavedPeer, SavedTenancy,
};
use whimbrel_wire::FlowTuple;

use crate::Options;
use crate::store::{Change, Found, Store, Table, read, table};

table! {
    /// Peers, by the numbers that they have at this host.
    Peers = "peer": PeerId => SavedPeer
}

table! {
    /// Flows that were introduced.
    Flows = "flow": FlowTuple => FlowEntry
}

table! {
    /// There where this host is suspended.
    Suspended = "suspended": () => bool
}

table! {
    /// Where the daemon has its key from and its configuration: what is said to its peers once it has ended is said in
    /// its name.
    Home = "home": () => SavedHome
}

table! {
    /// Addresses that this host has had and has no more, and whether it was told what was left behind there: what is
    /// lost at a move is shown so by the daemons to come.
    Gone = "gone": IpAddr => bool
}

/// How a daemon was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedHome {
    /// Its state directory.
    pub(crate) state_dir: PathBuf,
    /// The file of its configuration, if one was named.
    pub(crate) config: Option<PathBuf>,
}

impl SavedHome {
    /// Of these directories and files, wherever this process is.
    pub(crate) fn of(options: &Options) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { state_dir: absolute(&options.state_dir), config: options.config.as_deref().map(absolute) }
    }
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
    /// Endpoints that others have on lease, and whether the address was of a subnet of this host's links when it was
    /// lent.
    pub(crate) leases: BTreeMap<LeaseName, (SavedLease, bool)>,
    /// Whether nothing new is lent.
    pub(crate) lending_stopped: bool,
    /// Endpoints of others, by what they and this host call the leases, with the namespaces that programs have brought
    /// along for them.
    pub(crate) tenancies: BTreeMap<FlowName, (SavedTenancy, Option<SavedNamespace>)>,
}

/// A network namespace that a program has brought along for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedNamespace {
    /// SO_NETNS_COOKIE.
    pub(crate) cookie: u64,
    /// Far ends are not to learn where it is.
    pub(crate) hidden: bool,
}

/// What names a row of which a host and a number are the name.
pub(crate) type Name = (PublicKey, u64);

/// Whether a flow goes on when this host is started anew: its socket is another host's, which is reached through this
/// one.
pub(crate) fn outlives(entry: &FlowEntry) -> bool {
    entry.end == LocalEnd::Passing
}

/// The peers that a store tells of.
pub(crate) fn peers(found: &mut Found<'_>) -> BTreeMap<PeerId, SavedPeer> {
    found.rows::<Peers>().into_iter().collect()
}

/// The flows of these peers. A flow whose peer is gone cannot be moved any more, and its number may be another peer's
/// later.
pub(crate) fn flows_of<T: Table<Key = FlowTuple, Row = FlowEntry>>(
    found: &mut Found<'_>,
    peers: &BTreeMap<PeerId, SavedPeer>,
) -> HashMap<FlowTuple, FlowEntry> {
    let is_gone = |(_, entry): &(FlowTuple, FlowEntry)| !peers.contains_key(&entry.peer);
    let (gone, kept): (Vec<_>, Vec<_>) = found.rows::<T>().into_iter().partition(is_gone);
    gone.iter().for_each(|(flow, _)| found.drop::<T>(flow));
    kept.into_iter().collect()
}

/// Whether the store at `path`, which stays as it is, tells of any flow. One that cannot be read may do so.
pub(crate) fn has_flows(path: &Path) -> bool {
    let Ok(text) = read(path) else { return true };
    let found = Found::parse(path, &text);
    found.map_or(true, |mut found| !found.rows::<Flows>().is_empty() || found.skipped() > 0)
}

impl Store {
    /// Keeps what is known of a peer.
    pub(crate) fn save_peer(&mut self, peer: &SavedPeer) {
        self.append(Change::default().put::<Peers>(&peer.id, peer));
        if let Some(lasting) = self.lasting() {
            lasting.append(Change::default().put::<Peers>(&peer.id, peer));
        }
    }

    /// Drops a peer, and flows with it.
    pub(crate) fn forget_peer(&mut self, peer: PeerId, flows: &[FlowTuple]) {
        let change = || {
            let change = Change::default().remove::<Peers>(&peer);
            flows.iter().fold(change, |change, flow| change.remove::<Flows>(flow))
        };
        self.append(change());
        if let Some(lasting) = self.lasting() {
            lasting.append(change());
        }
    }

    /// Keeps a flow. `before`: as it was until now.
    pub(crate) fn save_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry, before: Option<&FlowEntry>) {
        self.append(Change::default().put::<Flows>(flow, entry));
        if let Some(lasting) = self.lasting() {
            if outlives(entry) {
                lasting.append(Change::default().put::<Flows>(flow, entry));
            } else if before.is_some_and(outlives) {
                lasting.append(Change::default().remove::<Flows>(flow));
            }
        }
    }

    /// Drops a flow.
    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        self.append(Change::default().remove::<Flows>(flow));
        if let Some(lasting) = self.lasting().filter(|_| outlives(entry)) {
            lasting.append(Change::default().remove::<Flows>(flow));
        }
    }

    /// Keeps whether it was told what was left behind at an address that is gone; `None`: it is not gone any more.
    pub(crate) fn save_gone(&mut self, address: IpAddr, told: Option<bool>) {
        match told {
            Some(told) => self.put::<Gone>(&address, &told),
            None => self.remove::<Gone>(&address),
        }
    }

    /// Keeps whether this host is suspended.
    pub(crate) fn save_suspended(&mut self, suspended: bool) {
        match suspended {
            true => self.put::<Suspended>(&(), &true),
            false => self.remove::<Suspended>(&()),
        }
    }
}
