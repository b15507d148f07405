//! Which remotes sockets of UDP send to.

use whimbrel_wire::FlowTuple;

use super::Datapath;
use crate::abi::{HELD_UNCONNECTED, IDLE_DATAGRAMS, RawTuple};
use crate::error::Error;

/// A remote that a socket of UDP sends to, as [`Event::DatagramSent`](crate::Event::DatagramSent) told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Own tuple, with the address that the datagrams leave from.
    pub flow: FlowTuple,
    /// The user whose socket it is.
    pub user: u32,
    /// SO_COOKIE of the socket.
    pub cookie: u64,
    /// When it last did, within about a second: milliseconds of CLOCK_MONOTONIC, which wrap around.
    pub at: u32,
}

impl Datapath {
    /// Report ([`Event::DatagramSent`](crate::Event::DatagramSent)) which remotes sockets of UDP send to, connected or
    /// not, or do so no more. Seen is what leaves by interfaces with [`Role::Datagrams`](crate::Role::Datagrams),
    /// [`Role::Wire`](crate::Role::Wire) or [`Role::Tunnel`](crate::Role::Tunnel). Of flows that are known the time is
    /// noted ([`Datapath::last_used`]). A new instance does not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow_datagrams(&self, enabled: bool) -> Result<(), Error> {
        let bit = if enabled { 0 } else { IDLE_DATAGRAMS };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_DATAGRAMS | bit)
    }

    /// The remotes that were reported and are of no flow that was known when they were last sent to: so many as there
    /// is room for, which is 8,192, the latest.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn datagrams(&self) -> Result<Vec<Sent>, Error> {
        let sent = self.sent.entries()?.into_iter();
        let sent = sent.filter_map(|(own, sent)| {
            Some(Sent { flow: own.tuple()?, user: sent.user, cookie: sent.cookie, at: sent.at })
        });
        Ok(sent.collect())
    }

    /// When a flow of an [unconnected](crate::FlowEntry::unconnected) socket was last used, as far as it was seen: a
    /// datagram left, while it had moved or datagrams are [followed](Datapath::follow_datagrams), then within about a
    /// second; or one came from its peer while it had moved. Milliseconds of CLOCK_MONOTONIC, which wrap around. 0: not
    /// since it was inserted. `None`: no such flow is known.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn last_used(&self, flow: &FlowTuple) -> Result<Option<u32>, Error> {
        let entry = self.flows.get(&RawTuple::new(flow))?.filter(|entry| entry.held & HELD_UNCONNECTED != 0);
        Ok(entry.map(|entry| entry.sent))
    }
}
