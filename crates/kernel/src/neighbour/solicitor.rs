//! Asking for a neighbour before the kernel asks again.
//!
//! The kernel asks once for the link-layer address of a next hop, and again after a second (`retrans_time_ms`). Where
//! that one question is lost, as by a port of a bridge or an access point that is up a moment later, all that is to go
//! there waits as long. To ask by netlink sends nothing while an entry is incomplete. An answer resolves the entry
//! whoever has asked (`arp_process`, `ndisc_recv_na`; IPv6 takes none for an entry that has failed), so that questions
//! of a packet socket's own do.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::packet;
use super::socket::{bind, own_address, packet_socket, send};
use crate::error::Error;
use crate::kept_address::Mark;
use crate::peer_route::PeerRoutes;
use crate::route::{NeighbourState, RouteKind, RouteSocket};

/// A neighbour that packets wait for, or may in a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop {
    /// The index of the interface.
    pub interface: u32,
    /// Its address.
    pub address: IpAddr,
    /// The address of this host that it is asked for from.
    pub source: IpAddr,
}

/// Asks, in the namespace of the thread that has opened it.
#[derive(Debug)]
pub struct Solicitor {
    /// It takes in nothing: the kernel itself hears the answers.
    socket: OwnedFd,
    routes: PeerRoutes,
    table: RouteSocket,
}

impl Solicitor {
    /// Opens it. `mark` is that of moved flows. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(mark: Mark) -> Result<Self, Error> {
        Ok(Self { socket: packet_socket()?, routes: PeerRoutes::open(mark)?, table: RouteSocket::open()? })
    }

    /// The neighbour that a packet of our own from `source` to `destination` goes to first; none where there is no way,
    /// or it stays on this host.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the two are not of one family.
    pub fn next_hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Option<NextHop>, Error> {
        let route = match self.routes.under(destination, Some(source)) {
            Ok(route) => route,
            Err(Error::Unreachable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let address = route.gateway.unwrap_or(destination);
        // A gateway of the other family (RFC 5549) is asked for from addresses of its own.
        let here = route.kind == RouteKind::Unicast && address.is_ipv4() == source.is_ipv4();
        Ok(here.then_some(NextHop { interface: route.interface, address, source }))
    }

    /// Which of these the kernel has asked for and heard nothing of.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn unanswered(&mut self, of: &[NextHop]) -> Result<Vec<NextHop>, Error> {
        let waits = |state| matches!(state, NeighbourState::Incomplete | NeighbourState::Failed);
        let neighbours = self.table.neighbours()?;
        let is_waited_for = |hop: &&NextHop| {
            let entry = neighbours.iter().find(|one| (one.interface, one.address) == (hop.interface, hop.address));
            entry.is_some_and(|entry| waits(entry.state))
        };
        Ok(of.iter().filter(is_waited_for).copied().collect())
    }

    /// Asks all on the link for a neighbour, once.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the link is no Ethernet.
    pub fn ask(&mut self, hop: NextHop) -> Result<(), Error> {
        bind(&self.socket, hop.interface, 0)?;
        let own = own_address(&self.socket, hop.interface)?;
        let Some(asker) = self.asker(hop)? else { return Ok(()) };
        match packet::question(own, asker, hop.address) {
            Some(frame) => send(&self.socket, hop.interface, &frame),
            None => Ok(()),
        }
    }

    /// In whose name it is asked: not in that of an address which may be another host's yet (RFC 4429 §3.2), but in the
    /// link's own.
    fn asker(&mut self, hop: NextHop) -> Result<Option<IpAddr>, Error> {
        if hop.source.is_ipv4() {
            return Ok(Some(hop.source));
        }
        let addresses = self.table.addresses()?;
        let here = || addresses.iter().filter(|one| one.interface == hop.interface && !one.tentative && !one.duplicate);
        if !here().any(|one| one.prefix.address == hop.source && one.optimistic) {
            return Ok(Some(hop.source));
        }
        let mut others = here().filter(|one| !one.optimistic).map(|one| one.prefix.address);
        Ok(others.find(|address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())))
    }
}
