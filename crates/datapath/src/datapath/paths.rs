//! Between which addresses peers and this host talk, in the tunnel and beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::Datapath;
use crate::abi::{LocatorPair, RawLocatorPair, RawPath};
use crate::error::Error;

impl Datapath {
    /// Sets between which addresses peers and this host talk, each with the index of the interface that what peers send
    /// there arrives on. What comes there for this UDP port gets the mark while the programs translate, as packets of
    /// moved flows do ([`Datapath::set_tunnel`]). What is so already is not written.
    ///
    /// # Errors
    /// When the kernel refuses; some may have been set, and the same call may be made again.
    pub fn set_paths(&self, paths: &BTreeMap<LocatorPair, u32>, port: u16) -> Result<(), Error> {
        let mut there = BTreeSet::new();
        for (raw, path) in self.paths.entries()? {
            let pair = raw.pair();
            match paths.get(&pair) {
                None => drop(self.paths.remove(&raw)?),
                Some(interface) if (path.arrival, path.port) == (*interface, port.into()) => drop(there.insert(pair)),
                Some(_) => {}
            }
        }
        for (pair, interface) in paths.iter().filter(|(pair, _)| !there.contains(pair)) {
            self.paths.insert(&RawLocatorPair::new(pair), &RawPath { arrival: *interface, port: port.into() })?;
        }
        Ok(())
    }
}
