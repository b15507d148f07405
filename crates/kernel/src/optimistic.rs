//! IPv6 addresses that are used while duplicate address detection is under way (RFC 4429).
//!
//! It takes one to two seconds (RFC 4862 §5.4), in which the kernel neither sends from an address nor takes in what
//! comes for it. Where an interface allows it (`optimistic_dad`), an address that waits can be made optimistic: what
//! names it as its source is sent, and the kernel answers for it without having neighbours forget whom they know there.
//! What the kernel does only where detection begins or ends is done here: the route that has it take in what comes.
//!
//! Only addresses with a lifetime are: those that routers and DHCP give are hardly ever another host's, what somebody
//! has entered by hand may be (RFC 4429 §3.1).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use crate::error::Error;
use crate::route::{LOCAL_TABLE, LOOPBACK, NextHop, Prefix, RouteKind, RouteSocket, TableRoute, Tentative};
use crate::saved_sysctl::SavedSysctls;

/// How long what comes for such an address is taken in by a route of ours at the most, in seconds, should nobody be
/// there to take it away: longer than detection takes, also with several questions (`dad_transmits`). Then the kernel
/// has its own, or the address is gone.
const TAKEN_IN_FOR: u32 = 10;
const RECORD: &str = "optimistic";

/// Makes addresses optimistic, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct OptimisticAddresses {
    route: RouteSocket,
    saved: SavedSysctls,
    /// For which there is a route of ours.
    begun: BTreeSet<IpAddr>,
}

impl OptimisticAddresses {
    /// Opens it, and puts back what a killed daemon has left switched on. `run_dir` is where that is remembered.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        let mut saved = SavedSysctls::open(&run_dir.join(RECORD))?;
        saved.restore()?;
        Ok(Self { route: RouteSocket::open()?, saved, begun: BTreeSet::new() })
    }

    /// Has those used that wait for duplicate address detection; returns them. None where this kernel does not allow
    /// it. To be called again whenever addresses have changed.
    ///
    /// # Errors
    /// [`Error::Call`], the first; all were tried.
    pub fn begin(&mut self) -> Result<Vec<IpAddr>, Error> {
        self.end()?;
        let (waiting, mut begun, mut all) = (self.route.tentative()?, Vec::new(), Ok(()));
        let links = if waiting.is_empty() { Vec::new() } else { self.route.links()? };
        for one in waiting {
            // Without a carrier detection does not begin.
            let Some(link) = links.iter().find(|link| link.index == one.interface && link.carrier) else { continue };
            let allowed = match self.saved.set(&format!("net/ipv6/conf/{}/optimistic_dad", link.name), "1") {
                // The kernel does not know it, or the link is gone by now.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                allowed => allowed,
            };
            let used = allowed.and_then(|_| self.use_now(&one));
            // Others are not to wait because this one does.
            match used.and(self.saved.restore()) {
                Ok(()) => begun.push(one.address),
                failed => all = all.and(failed),
            }
        }
        all.map(|()| begun)
    }

    /// The route first: where the address cannot be used after all, it ends by itself.
    fn use_now(&mut self, one: &Tentative) -> Result<(), Error> {
        self.route.set_route_for(&taken_in(one.address), TAKEN_IN_FOR)?;
        self.begun.insert(one.address);
        self.route.set_optimistic(one)
    }

    /// Takes the routes away of those that are the kernel's affair by now.
    fn end(&mut self) -> Result<(), Error> {
        if self.begun.is_empty() {
            return Ok(());
        }
        let all = self.route.addresses()?;
        let under_way = |address: &IpAddr| all.iter().any(|one| one.optimistic && one.prefix.address == *address);
        for address in self.begun.iter().copied().filter(|address| !under_way(address)).collect::<Vec<_>>() {
            self.route.delete_route(&taken_in(address))?;
            self.begun.remove(&address);
        }
        Ok(())
    }
}

fn taken_in(address: IpAddr) -> TableRoute {
    TableRoute::new(Prefix::host(address), LOCAL_TABLE, RouteKind::Local, vec![NextHop::interface(LOOPBACK)])
}
