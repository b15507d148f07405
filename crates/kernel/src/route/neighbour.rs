//! Neighbours: link-layer addresses of hosts on the link.

use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState as NetlinkState,
};
use netlink_packet_route::route::RouteType;

use super::table::deleted;
use super::{RouteSocket, family};
use crate::error::Error;

/// What the kernel knows about a neighbour (`NUD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NeighbourState {
    /// Asked for, and has not answered yet.
    Incomplete,
    /// Has answered lately.
    Reachable,
    /// Has answered some time ago.
    Stale,
    /// Is being used or asked again after some time.
    Probed,
    /// Did not answer.
    Failed,
    /// Was entered by hand and is never asked.
    Permanent,
    /// Needs no asking, or another state.
    Other,
}

/// An entry of the neighbour table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the interface.
    pub interface: u32,
    /// Its IP address.
    pub address: IpAddr,
    /// Its link-layer address; empty where that is not known.
    pub link_address: Vec<u8>,
    /// What is known about it.
    pub state: NeighbourState,
    /// The longer of the times since that was changed last and since it was confirmed last, to a hundredth of a second.
    pub age: Duration,
}

impl RouteSocket {
    /// Enters a neighbour that is never asked for, or changes the entry that is there.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_permanent_neighbour(
        &mut self,
        interface: u32,
        address: IpAddr,
        link_address: &[u8],
    ) -> Result<(), Error> {
        let mut message = encode(interface, address);
        message.header.state = NetlinkState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(link_address.to_vec()));
        self.change(&RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| e.of("RTM_NEWNEIGH", object(interface, address)))
    }

    /// Deletes the entry of a neighbour; returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_neighbour(&mut self, interface: u32, address: IpAddr) -> Result<bool, Error> {
        deleted(self.change(&RouteNetlinkMessage::DelNeighbour(encode(interface, address)), 0))
            .map_err(|e| e.of("RTM_DELNEIGH", object(interface, address)))
    }

    /// Gives up those neighbours that were asked for and have not answered, and of which `which(interface, address)`
    /// says so; returns how many. What waits for their answer is dropped at once and not after three seconds. TCP sends
    /// nothing again that still waits so (`skb_still_in_host_queue`): a connection that is sent another way would stand
    /// still as long.
    ///
    /// # Errors
    /// [`Error::Call`], the first; all is tried.
    pub fn give_up_unanswered(&mut self, which: impl Fn(u32, IpAddr) -> bool) -> Result<usize, Error> {
        let waiting = self.neighbours()?.into_iter().filter(|neighbour| neighbour.state == NeighbourState::Incomplete);
        let (mut given_up, mut outcome) = (0, Ok(()));
        for Neighbour { interface, address, .. } in waiting.filter(|one| which(one.interface, one.address)) {
            match self.delete_neighbour(interface, address) {
                Ok(found) => given_up += usize::from(found),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| given_up)
    }

    /// All neighbours of both families.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        let parts = self.dump("RTM_GETNEIGH", &RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()))?;
        Ok(parts
            .iter()
            .filter_map(|part| match part {
                RouteNetlinkMessage::NewNeighbour(message) => decode(message),
                _ => None,
            })
            .collect())
    }
}

fn object(interface: u32, address: IpAddr) -> String {
    format!("{address} on interface {interface}")
}

fn encode(interface: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = interface;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    }));
    message
}

fn decode(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut address, mut link_address, mut age) = (None, Vec::new(), 0);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => link_address.clone_from(bytes),
            // Either alone says too little: connections confirm it with what they send before anything is answered
            // (since their packets were acknowledged on the network before), and the kernel's own doubts are updates.
            NeighbourAttribute::CacheInfo(times) => age = times.confirmed.max(times.updated),
            _ => {}
        }
    }
    Some(Neighbour {
        interface: message.header.ifindex,
        address: address?,
        link_address,
        state: match message.header.state {
            NetlinkState::Incomplete => NeighbourState::Incomplete,
            NetlinkState::Reachable => NeighbourState::Reachable,
            NetlinkState::Stale => NeighbourState::Stale,
            NetlinkState::Delay | NetlinkState::Probe => NeighbourState::Probed,
            NetlinkState::Failed => NeighbourState::Failed,
            NetlinkState::Permanent => NeighbourState::Permanent,
            _ => NeighbourState::Other,
        },
        // In USER_HZ, which is 100 on every architecture that this is built for.
        age: Duration::from_millis(u64::from(age) * 10),
    })
}
