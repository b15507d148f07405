//! Between which addresses peers and this host talk, in the tunnel and beside it, and which way natively.

use std::collections::{BTreeMap, BTreeSet};

use super::Datapath;
use crate::abi::{HOME_SEVERAL, Home, LocatorPair, RawAddress, RawHome, RawLocatorPair, RawPath};
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

    /// Sets where what is sent natively between these addresses leaves. What the routes lead out by another interface,
    /// and is of a flow that has not moved, is sent there all the same. Where all have one interface, what leaves by
    /// that is not looked at. What is so already is not written.
    ///
    /// # Errors
    /// When the kernel refuses; some may have been set, and the same call may be made again.
    pub fn set_homes(&self, homes: &BTreeMap<LocatorPair, Home>) -> Result<(), Error> {
        let raw =
            |home: &Home| RawHome { next_hop: RawAddress::new(home.next_hop), interface: home.interface, zero: 0 };
        let mut there = BTreeSet::new();
        for (key, home) in self.homes.entries()? {
            let pair = key.pair();
            match homes.get(&pair) {
                None => drop(self.homes.remove(&key)?),
                Some(wanted) if raw(wanted) == home => drop(there.insert(pair)),
                Some(_) => {}
            }
        }
        for (pair, home) in homes.iter().filter(|(pair, _)| !there.contains(pair)) {
            self.homes.insert(&RawLocatorPair::new(pair), &raw(home))?;
        }
        let interfaces: BTreeSet<u32> = homes.values().map(|home| home.interface).collect();
        let all = match interfaces.first() {
            Some(first) if interfaces.len() == 1 => *first,
            Some(_) => HOME_SEVERAL,
            None => 0,
        };
        self.change_settings(|settings| settings.home = all)
    }
}
