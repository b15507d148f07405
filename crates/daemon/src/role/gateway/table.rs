//! Flows of hosts that this one is the gateway of live on when it is started anew. So it keeps them, and its peers, in
//! the state directory as well. What it names its memory by there it tells its peers, which find out by it whether it
//! was lost (protocol.md P-123).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use whimbrel_protocol::{FlowEntry, PeerId, SavedPeer};
use whimbrel_wire::FlowTuple;

use crate::host::table::{Flows, Peers, flows_of, outlives, peers};
use crate::store::{Change, Found, Log, Store, StoreError, read, table};

table! {
    /// What names the memory of flows of hosts behind this one.
    Memory = "memory": () => u64
}

/// Keeps peers, and flows of hosts behind this one, at `path` as well from now on, where they outlive this host's own
/// life, and gives what names that memory: `fresh` where there was none, or not all of it can be read. Where the store
/// of this life holds no peers (the host was started anew, or the run directory removed) they, and `flows`, are what
/// was there.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn keep_lasting(
    store: &mut Store,
    path: &Path,
    fresh: u64,
    of_store: &mut BTreeMap<PeerId, SavedPeer>,
    flows: &mut HashMap<FlowTuple, FlowEntry>,
) -> Result<u64, StoreError> {
    let text = read(path)?;
    let mut found = Found::parse(path, &text)?;
    let kept = peers(&mut found);
    let kept_flows = flows_of::<Flows>(&mut found, &kept);
    let memory = found.rows::<Memory>().first().map(|(_, memory)| *memory);
    let memory = memory.filter(|_| found.skipped() == 0).unwrap_or(fresh);
    let peer = |(id, peer)| Change::default().put::<Peers>(id, peer);
    let flow = |(flow, entry)| Change::default().put::<Flows>(flow, entry);
    if of_store.is_empty() {
        (*of_store, *flows) = (kept, kept_flows);
        of_store.iter().map(peer).chain(flows.iter().map(flow)).for_each(|row| store.append(row));
    }
    // What the store of this life has was written in it, and is at least as new.
    let lasting = flows.iter().filter(|(_, entry)| outlives(entry)).map(flow);
    let memory_row = Change::default().put::<Memory>(&(), &memory);
    let rows: Vec<Change> = of_store.iter().map(peer).chain(lasting).chain([memory_row]).collect();
    store.set_lasting(Log::create(path, &rows)?);
    store.flush()?;
    Ok(memory)
}
