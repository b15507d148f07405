//! A flow as the world knows it, which is more than any host knows.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_protocol::Time;
use whimbrel_wire::{FlowTuple, Transport};

use super::World;
use crate::host::HostId;

/// A flow's number, the same at both ends: the truth that no host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub usize);

/// A flow between two hosts. End 0 opened it.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Who has it.
    pub hosts: [HostId; 2],
    /// As each end's socket has it.
    pub tuples: [FlowTuple; 2],
    /// Whether the end's socket is there.
    pub open: [bool; 2],
    /// Segments that each end's socket made.
    pub sent: [u64; 2],
    /// Segments that came to it.
    pub received: [u64; 2],
    /// When each end last received something.
    pub arrived: [Option<Time>; 2],
    /// How that came.
    pub carried: [Option<Carried>; 2],
    /// A reset reached it.
    pub broken: bool,
    /// Whether each end's socket is frozen, as while it changes hosts: it neither sends nor takes in.
    pub frozen: [bool; 2],
}

/// How an end of a flow answers a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answering {
    /// Not at all.
    Never,
    /// After this time.
    After(Duration),
    /// Each of so many.
    Each(u64),
}

/// How a segment came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// As its socket made it.
    Native,
    /// With other names.
    Rewritten,
    /// In UDP.
    Tunnelled,
}

impl World {
    /// Has a host take datagrams here from everybody: its ends of flows of UDP that are opened from now on are that
    /// socket's.
    pub fn bind(&mut self, host: HostId, endpoint: &str) {
        self.hosts[host.0].unconnected.insert(endpoint.parse().expect("an endpoint"));
    }

    /// Closes a socket that takes datagrams from everybody, which ends the flows that its host has by it.
    pub fn unbind(&mut self, host: HostId, endpoint: &str) {
        let endpoint: SocketAddr = endpoint.parse().expect("an endpoint");
        let of = &mut self.hosts[host.0];
        of.unconnected.remove(&endpoint);
        let flows: Vec<_> = of.sockets.iter().filter(|(tuple, _)| tuple.local == endpoint).map(|(_, of)| *of).collect();
        flows.into_iter().for_each(|(flow, end)| self.close_end(flow, end));
    }

    /// Whether an end of a flow is a socket that takes datagrams from everybody.
    pub(crate) fn is_unconnected(&self, flow: FlowId, end: usize) -> bool {
        let Flow { hosts, tuples, .. } = &self.flows[flow.0];
        let tuple = &tuples[end];
        tuple.transport == Transport::Udp && self.hosts[hosts[end].0].unconnected.contains(&tuple.local)
    }
}
