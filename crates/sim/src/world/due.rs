//! What is to happen, in the order of time.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Between, PeerId, Time};

use crate::host::HostId;
use crate::network::NetworkId;
use crate::packet::Packet;
use crate::relocation::{ConnectionId, Words};
use crate::world::FlowId;

#[derive(Debug)]
pub(super) enum What {
    /// A packet comes out of the core before an access network.
    Enter(NetworkId, Packet),
    /// A packet comes to a host.
    Land(NetworkId, HostId, Packet),
    /// A node's timeout may be due.
    Timeout(HostId),
    /// Something that left between these addresses may be overdue.
    Overdue(HostId, Between),
    /// An end of a flow answers.
    Answer(FlowId, usize),
    /// All flows send.
    Beat,
    /// Those who have a connection whose socket may move talk.
    Converse,
    /// What was said there arrives, at a host that has or had the socket, or at the far end.
    Said(ConnectionId, Option<HostId>, Words),
    /// Something of a process that comes may be due.
    Process(usize),
    /// A daemon starts again.
    Boot(HostId),
    /// A name server answers a host that has asked for the name of the host with this key.
    Named(HostId, PublicKey),
    /// A host is connected to another by TCP, from this address to that endpoint, or is not.
    Connected(HostId, PeerId, IpAddr, SocketAddr),
    /// The op that has been under way for longest is done.
    Done(HostId),
}

#[derive(Debug)]
pub(super) struct Due {
    pub(super) at: Time,
    pub(super) order: u64,
    pub(super) what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
