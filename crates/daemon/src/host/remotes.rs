//! Which peers are at the other end of each address that flows have as their remote one, and between which addresses
//! this host's own sockets talk.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use whimbrel_datapath::LocatorPair;
use whimbrel_protocol::{BindingId, FlowEntry, LocalEnd, PeerId};
use whimbrel_wire::FlowTuple;

/// How many flows each binding leads to each remote address.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    counts: HashMap<IpAddr, BTreeMap<BindingId, usize>>,
    /// How many flows of this host's own sockets go between two addresses.
    between: BTreeMap<LocatorPair, usize>,
}

fn between(flow: &FlowTuple, entry: &FlowEntry) -> Option<LocatorPair> {
    let pair = LocatorPair { local: flow.local.ip(), peer: flow.remote.ip() };
    (entry.end == LocalEnd::Here).then_some(pair)
}

impl Remotes {
    /// A flow is introduced. Returns whether it is the first of this host's own between its addresses.
    pub(crate) fn add(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> bool {
        let count = between(flow, entry).map(|pair| self.between.entry(pair).or_default());
        let first = count.is_some_and(|count| std::mem::replace(count, *count + 1) == 0);
        *self.counts.entry(flow.remote.ip()).or_default().entry(entry.binding()).or_default() += 1;
        first
    }

    /// It is no longer. Returns whether it was the last of this host's own between its addresses.
    pub(crate) fn remove(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> bool {
        let pair = between(flow, entry);
        let count = pair.and_then(|pair| self.between.get_mut(&pair));
        let last = count.is_some_and(|count| {
            *count -= 1;
            *count == 0
        });
        if let Some(pair) = pair.filter(|_| last) {
            self.between.remove(&pair);
        }
        let address = flow.remote.ip();
        let Some(bindings) = self.counts.get_mut(&address) else { return last };
        if let Some(count) = bindings.get_mut(&entry.binding()) {
            *count -= 1;
            if *count == 0 {
                bindings.remove(&entry.binding());
            }
        }
        if bindings.is_empty() {
            self.counts.remove(&address);
        }
        last
    }

    /// Between which addresses this host's own sockets talk.
    pub(crate) fn between(&self) -> impl Iterator<Item = LocatorPair> {
        self.between.keys().copied()
    }

    /// How many flows a peer has.
    pub(crate) fn flows_of(&self, peer: PeerId) -> usize {
        self.counts.values().flatten().filter(|(id, _)| id.peer() == peer).map(|(_, count)| count).sum()
    }

    /// The addresses that packets of less than `usual` bytes are to go to, with the longest. `longest` is that of a
    /// binding.
    pub(crate) fn smaller(&self, usual: u32, longest: impl Fn(BindingId) -> Option<u32>) -> BTreeMap<IpAddr, u32> {
        let least = |bindings: &BTreeMap<BindingId, usize>| bindings.keys().filter_map(|id| longest(*id)).min();
        let all = self.counts.iter().filter_map(|(address, bindings)| Some((*address, least(bindings)?)));
        all.filter(|(_, least)| *least < usual).collect()
    }

    /// The addresses to which all flows go one way, with it. `way` is that of a binding.
    pub(crate) fn one_way<W: PartialEq>(&self, way: impl Fn(BindingId) -> Option<W>) -> BTreeMap<IpAddr, W> {
        let common = |bindings: &BTreeMap<BindingId, usize>| {
            let mut ways = bindings.keys().map(|id| way(*id));
            let first = ways.next()??;
            ways.all(|other| other.as_ref() == Some(&first)).then_some(first)
        };
        self.counts.iter().filter_map(|(address, bindings)| Some((*address, common(bindings)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_protocol::{LocalEnd, Places};
    use whimbrel_wire::Transport;

    fn flow(remote: &str, port: u16, peer: u32) -> (FlowTuple, FlowEntry) {
        let tuple = FlowTuple {
            transport: Transport::Tcp,
            local: ([192, 0, 2, 1], port).into(),
            remote: (remote.parse::<IpAddr>().expect("address"), 22).into(),
        };
        let entry = FlowEntry {
            peer: PeerId(peer),
            name: 7,
            side: 0,
            waits: whimbrel_protocol::Waits::default(),
            manner: whimbrel_protocol::Manner::default(),
            home: Places::default(),
            peer_tuple: tuple,
            wire_local_port: port,
            wire_remote_port: 22,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        };
        (tuple, entry)
    }

    #[test]
    fn a_small_path_concerns_its_own_peer_only() {
        let mut remotes = Remotes::default();
        // Peers 2 and 3 are behind one NAT.
        let flows = [flow("198.51.100.1", 1, 1), flow("203.0.113.1", 2, 2), flow("203.0.113.1", 3, 3)];
        for (tuple, entry) in &flows {
            assert!(remotes.add(tuple, entry) == (tuple.local.port() < 3), "the first between its addresses");
        }
        let longest = |id: BindingId| [None, Some(1440), Some(1440), Some(1280)][id.peer().0 as usize];
        let nat: IpAddr = "203.0.113.1".parse().expect("address");
        assert_eq!(remotes.smaller(1440, longest), BTreeMap::from([(nat, 1280)]));
        assert_eq!([1, 2, 4].map(|peer| remotes.flows_of(PeerId(peer))), [1, 1, 0]);
        let way = |id: BindingId| [None, Some('a'), Some('a'), None][id.peer().0 as usize];
        let one = "198.51.100.1".parse().expect("address");
        assert_eq!(remotes.one_way(way), BTreeMap::from([(one, 'a')]));
        assert_eq!(remotes.one_way(|id| way(id).or(Some('b'))), BTreeMap::from([(one, 'a')]));
        assert_eq!(remotes.one_way(|_| Some('a')), BTreeMap::from([(one, 'a'), (nat, 'a')]));
        remotes.remove(&flows[2].0, &flows[2].1);
        assert!(remotes.smaller(1440, longest).is_empty());
        for (tuple, entry) in &flows[..2] {
            remotes.remove(tuple, entry);
        }
        assert!(remotes.counts.is_empty() && remotes.between().next().is_none());
    }
}
