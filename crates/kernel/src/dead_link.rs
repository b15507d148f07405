//! Interfaces without a carrier whose routes the kernel would go on using.
//!
//! When a cable is out and nobody takes the addresses and routes of its interface away, the kernel still prefers them
//! (`RTNH_F_LINKDOWN`), though another interface has a way. It can be told to pass over such routes, interface by
//! interface (`ignore_routes_with_linkdown`, in Linux since 4.1).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use crate::error::Error;
use crate::route::{MAIN_TABLE, Prefix, RouteKind, RouteSocket, TableRoute};
use crate::saved_sysctl::SavedSysctls;
use crate::sysctl;

const RECORD: &str = "dead-links";
/// Of the block that exists to be dropped (RFC 6666).
const NOWHERE: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));

/// Has the kernel pass over routes by interfaces without a carrier, in the network namespace of the thread that opened
/// it.
#[derive(Debug)]
pub struct DeadLinks {
    route: RouteSocket,
    saved: SavedSysctls,
    passed_over: BTreeMap<u32, String>,
}

impl DeadLinks {
    /// Opens it, and puts back what a killed daemon has left switched on. `run_dir` is where that is remembered.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        let mut saved = SavedSysctls::open(&run_dir.join(RECORD))?;
        saved.restore()?;
        Ok(Self { route: RouteSocket::open()?, saved, passed_over: BTreeMap::new() })
    }

    /// Routes by these interfaces (index and name) are passed over while they have no carrier, in both families, and by
    /// no others that were before. What waits there for a neighbour to answer is given up: TCP sends nothing again that
    /// still waits in this host (`skb_still_in_host_queue`), which takes three seconds. Tells whether that is a change.
    ///
    /// # Errors
    /// [`Error::Call`]; none is passed over then, and it can be called again.
    pub fn pass_over(&mut self, links: BTreeMap<u32, String>) -> Result<bool, Error> {
        // Where a setting could not be put back it is tried again.
        let left = links.is_empty() && !self.saved.is_empty();
        if links == self.passed_over && !left {
            return Ok(false);
        }
        self.passed_over.clear();
        self.saved.restore()?;
        if let Err(error) = self.begin(&links) {
            // The first error is the one to tell.
            let _ = self.saved.restore();
            return Err(error);
        }
        self.passed_over = links;
        Ok(true)
    }

    fn begin(&mut self, links: &BTreeMap<u32, String>) -> Result<(), Error> {
        for (name, family) in links.values().flat_map(|name| [(name, "ipv4"), (name, "ipv6")]) {
            match self.saved.set(&format!("net/{family}/conf/{name}/ignore_routes_with_linkdown"), "1") {
                // The family is switched off, or the interface is gone by now.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                set => drop(set?),
            }
        }
        self.forget_ways()?;
        self.route.give_up_unanswered(|interface, _| links.contains_key(&interface)).map(drop)
    }

    /// Has sockets look for their ways anew: they had done so when the carrier was lost, and keep what they found as
    /// long as nothing in the table has changed above it (IPv6: `rt6_check`, `fib6_update_sernum_upto_root`).
    fn forget_ways(&mut self) -> Result<(), Error> {
        match sysctl::set("net/ipv4/route/flush", "1") {
            // Of a user namespace that has none: routes that come and go with the hand-off have the same effect.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            flushed => flushed?,
        }
        let nowhere = TableRoute::new(Prefix::host(NOWHERE), MAIN_TABLE, RouteKind::Unreachable, Vec::new());
        match self.route.set_route(&nowhere) {
            // IPv6 is switched off.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EACCES)) => Ok(()),
            set => set.and_then(|()| self.route.delete_route(&nowhere)).map(drop),
        }
    }
}
