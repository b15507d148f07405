//! Flows of UDP sockets that are not connected: whose each was when it was found, since they end with that (P-220).

use std::collections::HashMap;
use std::net::SocketAddr;

use whimbrel_kernel::sock_diag::Listener;
use whimbrel_wire::FlowTuple;

use super::servers::takers;

/// The sockets of flows, by their cookies.
#[derive(Debug, Default)]
pub(crate) struct UnconnectedFlows(HashMap<FlowTuple, u64>);

impl UnconnectedFlows {
    /// The socket with this cookie takes what comes under the names of this flow.
    pub(crate) fn record(&mut self, flow: FlowTuple, cookie: u64) {
        self.0.insert(flow, cookie);
    }

    /// Those of `flows` whose socket is gone, or whose port is another's. `all`: the sockets that are not connected.
    /// What a daemon before this one has left is whose it is now.
    pub(crate) fn update(&mut self, flows: &[FlowTuple], all: &[Listener]) -> Vec<FlowTuple> {
        let mut taken: HashMap<SocketAddr, Vec<u64>> = HashMap::new();
        let mut known = HashMap::with_capacity(flows.len());
        let mut gone = Vec::new();
        for flow in flows {
            let takers = taken.entry(flow.local).or_insert_with(|| takers(all, flow.local));
            match self.0.get(flow).or(takers.first()) {
                Some(cookie) if takers.contains(cookie) => {
                    known.insert(*flow, *cookie);
                }
                _ => gone.push(*flow),
            }
        }
        self.0 = known;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::Transport;

    #[test]
    fn a_flow_ends_with_the_socket_that_it_was_found_with() {
        let socket = |address: &str, cookie| Listener { address: address.parse().expect("one"), inode: 1, cookie };
        let flow = |port| FlowTuple {
            transport: Transport::Udp,
            local: "192.0.2.1:53".parse().expect("an endpoint"),
            remote: ([198, 51, 100, 1], port).into(),
        };
        let (all, mut flows) = ([socket("0.0.0.0:53", 7)], UnconnectedFlows::default());
        flows.record(flow(1), 7);
        assert!(flows.update(&[flow(1), flow(2)], &all).is_empty());
        // The port is another's.
        let other = [socket("192.0.2.1:53", 8)];
        assert_eq!(flows.update(&[flow(1), flow(2), flow(3)], &other), [flow(1), flow(2)]);
        assert_eq!(flows.update(&[flow(3)], &[socket("192.0.2.9:53", 8)]), [flow(3)]);
        assert!(flows.0.is_empty());
    }
}
