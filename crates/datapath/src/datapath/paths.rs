//! Between which addresses peers and this host talk, in the tunnel and beside it.

use std::collections::BTreeMap;

use super::Datapath;
use crate::abi::{LocatorPair, RawLocatorPair, RawPath};
use crate::error::Error;

impl Datapath {
    /// Sets between which addresses peers and this host talk, each with the index of the interface that what peers send
    /// there arrives on. What comes there for this UDP port gets the mark while the programs translate, as packets of
    /// moved flows do ([`Datapath::set_tunnel`]).
    ///
    /// # Errors
    /// When the kernel refuses; some may have been set, and the same call may be made again.
    pub fn set_paths(&self, paths: &BTreeMap<LocatorPair, u32>, port: u16) -> Result<(), Error> {
        for (pair, _) in self.paths.entries()?.iter().filter(|(pair, _)| !paths.contains_key(&pair.pair())) {
            self.paths.remove(pair)?;
        }
        for (pair, interface) in paths {
            self.paths.insert(&RawLocatorPair::new(pair), &RawPath { arrival: *interface, port: port.into() })?;
        }
        Ok(())
    }
}
