//! The ports of this host that are in use, so that a moved flow is called by one that is not (`docs/protocol.md` §4, P-16).

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use whimbrel_wire::FlowTuple;

use crate::config::Config;
use crate::flow::Flow;
use crate::node::Node;

const FIRST_UNPRIVILEGED: u16 = 1024;

/// The ports that this host uses, or may come to use by itself.
#[derive(Debug)]
pub(crate) struct Ports {
    /// What its kernel gives to connections by itself.
    drawn: RangeInclusive<u16>,
    /// What daemons talk by.
    control: u16,
    /// What sockets are bound to that take what anybody sends.
    bound: BTreeSet<u16>,
    /// Local ports of flows that are known, and of how many.
    flows: HashMap<u16, usize>,
}

impl Ports {
    pub(crate) fn new(config: &Config) -> Self {
        Self { drawn: config.drawn_ports.clone(), control: config.port, bound: BTreeSet::new(), flows: HashMap::new() }
    }

    fn is_used(&self, port: u16) -> bool {
        port == self.control || self.bound.contains(&port) || self.flows.contains_key(&port)
    }

    pub(crate) fn note_flow(&mut self, port: u16) {
        *self.flows.entry(port).or_default() += 1;
    }

    pub(crate) fn forget_flow(&mut self, port: u16) {
        if let Some(count) = self.flows.get_mut(&port) {
            *count -= 1;
            if *count == 0 {
                self.flows.remove(&port);
            }
        }
    }

    /// Entries of its tables.
    pub(crate) fn entries(&self) -> usize {
        self.bound.len() + self.flows.len()
    }

    /// A wire port for a socket's port `own` that nothing native bears: no socket has it, and the kernel gives it to none by itself (P-16).
    /// `free` tells which are left beside those of other flows.
    pub(crate) fn wire_port(&self, own: u16, free: impl Fn(u16) -> bool) -> u16 {
        let unused = |port: &u16| free(*port) && !self.is_used(*port);
        let kept = |port: &u16| !self.drawn.contains(port) && unused(port);
        // Apart from each other, so that those that are picked at once seldom meet.
        let place = if self.drawn.contains(&own) { own - self.drawn.start() } else { own };
        let first = FIRST_UNPRIVILEGED.saturating_add(place);
        let unprivileged = (first..=u16::MAX).chain(FIRST_UNPRIVILEGED..first);
        let first = own % (FIRST_UNPRIVILEGED - 1) + 1;
        let privileged = (first..FIRST_UNPRIVILEGED).chain(1..first);
        let mut all = unprivileged.chain(privileged).filter(kept);
        // Where the kernel draws from nearly all ports nothing else is left; what it draws later P-138 sees to.
        let any = || (own..=u16::MAX).chain(1..own);
        all.next().or_else(|| any().find(unused)).or_else(|| any().find(|port| free(*port))).unwrap_or(own)
    }
}

impl Node {
    /// These are the ports of this host that sockets are bound to which take what anybody sends: TCP's that listen, UDP's that are
    /// connected to nobody. Flows that are introduced from now on are called by none of them, nor by the port of a flow that the node
    /// was told of ([`Node::handle_flow_opened`]). Call it with all of them, first and whenever they change.
    pub fn handle_bound_ports(&mut self, bound: BTreeSet<u16>) {
        self.ports.bound = bound;
    }

    /// Knows a flow from now on, or knows something else of it.
    pub(crate) fn put_flow(&mut self, flow: FlowTuple, known: Flow) {
        if self.flows.insert(flow, known).is_none() {
            self.ports.note_flow(flow.local.port());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ports(drawn: RangeInclusive<u16>) -> Ports {
        Ports::new(&Config { drawn_ports: drawn, ..Config::default() })
    }

    #[test]
    fn a_wire_port_is_none_that_anything_native_bears() {
        // P-16
        let usual = ports(32_768..=60_999);
        assert_eq!(usual.wire_port(22, |_| true), 1046);
        assert_eq!(usual.wire_port(32_768, |_| true), 1024);
        assert_eq!(usual.wire_port(1007, |_| true), 2032, "not where daemons talk");
        for drawn in [32_768..=60_999, 1024..=65_535, 10_000..=65_535, 1024..=40_000] {
            let ports = Ports { bound: BTreeSet::from([1, 22, 443, 1100, 8080]), ..ports(drawn.clone()) };
            let mut had = HashSet::new();
            for own in drawn.clone().take(500) {
                let port = ports.wire_port(own, |port| !had.contains(&port));
                assert!(port != 0 && !drawn.contains(&port), "{own} as {port} of {drawn:?}");
                assert!(!ports.bound.contains(&port), "{port} is bound");
                assert!(had.insert(port), "{port} twice");
            }
        }
    }

    #[test]
    fn ports_of_flows_are_passed_over_until_the_last_of_them_is_gone() {
        let mut ports = ports(32_768..=60_999);
        ports.note_flow(1046);
        ports.note_flow(1046);
        assert_eq!(ports.wire_port(22, |_| true), 1047);
        ports.forget_flow(1046);
        assert_eq!(ports.wire_port(22, |_| true), 1047);
        ports.forget_flow(1046);
        assert_eq!((ports.wire_port(22, |_| true), ports.entries()), (1046, 0));
    }

    #[test]
    fn where_the_kernel_draws_from_all_ports_none_is_taken_twice() {
        let ports = Ports { bound: BTreeSet::from([5000]), ..ports(1..=65_535) };
        let mut had = HashSet::new();
        for own in [5000, 5000, 65_535, 65_535] {
            let port = ports.wire_port(own, |port| !had.contains(&port));
            assert!(port != 0 && port != 5000 && had.insert(port), "{port} twice");
        }
    }
}
