//! Between which addresses peers and this host talk, so that no filter by reverse paths drops what they say while
//! routes change.

use std::collections::BTreeMap;

use whimbrel_datapath::LocatorPair;

use super::{Effects, Failure};

impl Effects {
    /// Tells the data plane by which interface each peer is heard.
    pub(crate) fn tell_paths(&mut self) -> Result<(), Failure> {
        let paths = self.paths_of_peers();
        if self.paths != paths {
            self.datapath.set_paths(&paths, self.tunnel.socket().port())?;
            self.paths = paths;
        }
        Ok(())
    }

    /// The interface that has this host's address, where what is sent to the peer leaves by it, too: a strict filter takes
    /// packets from nowhere else.
    fn paths_of_peers(&self) -> BTreeMap<LocatorPair, u32> {
        let of = self.bindings.iter().filter_map(|(peer, binding)| {
            let (local, peer_at) = (binding.source?, binding.peer_locator);
            let holder = self
                .holder(Some(local))
                .filter(|holder| Some(*holder) == self.ways_out.get(peer).map(|way| way.interface))?;
            (local.is_ipv4() == peer_at.is_ipv4()).then_some((LocatorPair { local, peer: peer_at }, holder))
        });
        of.collect()
    }
}
