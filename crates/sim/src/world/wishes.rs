//! What hosts want of the networks that their peers are reached by.

use whimbrel_protocol::{LinkChoice, LinkFacts, LinkId, LinkWish, PeerId, Placement};

use super::{Flow, FlowId, World};
use crate::host::HostId;
use crate::network::NetworkId;

impl World {
    /// Has the daemon at an end of a flow lead it from this address of its host, or with the others. Nothing happens
    /// where it has not introduced the flow.
    pub fn place(&mut self, flow: FlowId, end: usize, from: Option<&str>) {
        self.place_as(flow, end, from, false);
    }

    /// The same, by the path in use as well.
    pub fn duplicate(&mut self, flow: FlowId, end: usize, from: &str) {
        self.place_as(flow, end, Some(from), true);
    }

    fn place_as(&mut self, flow: FlowId, end: usize, from: Option<&str>, duplicated: bool) {
        let (now, Flow { hosts, tuples, .. }) = (self.now, &self.flows[flow.0]);
        let (host, tuple) = (hosts[end], tuples[end]);
        let at = |from: &str| Placement { from: from.parse().expect("an address"), duplicated };
        let to = from.map(at);
        self.with_node(host, |node| {
            let _ = node.place_flow(now, &tuple, to);
        });
    }

    /// Has a host's daemon reach peers as somebody wants it.
    pub fn set_link_wishes(&mut self, host: HostId, wishes: Vec<LinkWish>) {
        let now = self.now;
        self.with_node(host, |node| node.set_link_wishes(now, wishes));
    }

    /// The daemon at an end of a flow is told which sections have conditions that the flow meets.
    pub fn meet_conditions(&mut self, flow: FlowId, end: usize, met: &[u32]) {
        let (now, of) = (self.now, self.flow(flow));
        let (host, tuple) = (of.hosts[end], of.tuples[end]);
        self.with_node(host, |node| node.handle_conditions_met(now, tuple, met.to_vec()));
    }

    /// What detectors at a host know of its links: all of it.
    pub fn set_link_facts(&mut self, host: HostId, facts: &[(NetworkId, LinkFacts)]) {
        let now = self.now;
        let facts: Vec<(LinkId, LinkFacts)> =
            facts.iter().map(|(network, facts)| (Self::link_to(*network), *facts)).collect();
        self.with_node(host, |node| node.handle_link_facts(now, &facts));
    }

    /// How a host's daemon reaches its peers, and why.
    pub fn explain_links(&mut self, host: HostId) -> Vec<(PeerId, LinkChoice)> {
        let now = self.now;
        let mut all = Vec::new();
        self.with_node(host, |node| all = node.explain_links(now, None));
        all
    }

    /// How hosts number the link to a network.
    #[must_use]
    pub fn link_to(network: NetworkId) -> LinkId {
        LinkId(network.0 as u32 + 2)
    }
}
