//! Flows of hosts that this one is the gateway of live on when it is started anew. So it keeps them, and its peers, in the
//! state directory as well. What it names its memory by there it tells its peers, which find out by it whether it was lost
//! (protocol.md P-123).

use std::path::Path;

use whimbrel_protocol::{FlowEntry, LocalEnd};

use super::peers::{Flows, Peers};
use super::{Restored, Store};
use crate::store::{Change, Found, Log, StoreError, read, table};

table! {
    /// What names the memory of flows of hosts behind this one.
    Memory = "memory": () => u64
}

/// Whether a flow goes on when this host is started anew: its socket is another host's, which is reached through this one.
pub(super) fn outlives(entry: &FlowEntry) -> bool {
    entry.end == LocalEnd::Passing
}

impl Store {
    /// Keeps peers, and flows of hosts behind this one, at `path` as well from now on, where they outlive this host's own
    /// life, and gives what names that memory: `fresh` where there was none, or not all of it can be read. Where this store
    /// holds no peers (the host was started anew, or the run directory removed) `restored` gets what was there.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(crate) fn keep_lasting(&mut self, path: &Path, fresh: u64, restored: &mut Restored) -> Result<u64, StoreError> {
        let text = read(path)?;
        let mut found = Found::parse(path, &text)?;
        let kept = Restored::of(&mut found);
        let memory = found.rows::<Memory>().first().map(|(_, memory)| *memory);
        let memory = memory.filter(|_| found.skipped() == 0).unwrap_or(fresh);
        let peer = |(id, peer)| Change::default().put::<Peers>(id, peer);
        let flow = |(flow, entry)| Change::default().put::<Flows>(flow, entry);
        if restored.peers.is_empty() {
            (restored.peers, restored.flows) = (kept.peers, kept.flows);
            restored.peers.iter().map(peer).chain(restored.flows.iter().map(flow)).for_each(|row| self.log.append(row));
        }
        // That of the run directory has been written in the same life, and is at least as new.
        let flows = restored.flows.iter().filter(|(_, entry)| outlives(entry)).map(flow);
        let memory_row = Change::default().put::<Memory>(&(), &memory);
        let rows: Vec<Change> = restored.peers.iter().map(peer).chain(flows).chain([memory_row]).collect();
        self.lasting = Some(Log::create(path, &rows)?);
        self.flush()?;
        Ok(memory)
    }
}
