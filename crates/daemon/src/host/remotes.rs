//! Which peers are at the other end of each address that flows have as their remote one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use whimbrel_protocol::{FlowEntry, PeerId};
use whimbrel_wire::FlowTuple;

/// How many flows each peer has at each remote address.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    counts: HashMap<IpAddr, BTreeMap<PeerId, usize>>,
}

impl Remotes {
    /// A flow is introduced.
    pub(crate) fn add(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        *self.counts.entry(flow.remote.ip()).or_default().entry(entry.peer).or_default() += 1;
    }

    /// It is no longer.
    pub(crate) fn remove(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        let address = flow.remote.ip();
        let Some(peers) = self.counts.get_mut(&address) else { return };
        if let Some(count) = peers.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&entry.peer);
            }
        }
        if peers.is_empty() {
            self.counts.remove(&address);
        }
    }

    /// How many flows a peer has.
    pub(crate) fn flows_of(&self, peer: PeerId) -> usize {
        self.counts.values().filter_map(|peers| peers.get(&peer)).sum()
    }

    /// The addresses that packets of less than `usual` bytes are to go to, with the longest. `longest` is that of a
    /// peer.
    pub(crate) fn smaller(&self, usual: u32, longest: impl Fn(PeerId) -> Option<u32>) -> BTreeMap<IpAddr, u32> {
        let least = |peers: &BTreeMap<PeerId, usize>| peers.keys().filter_map(|peer| longest(*peer)).min();
        let all = self.counts.iter().filter_map(|(address, peers)| Some((*address, least(peers)?)));
        all.filter(|(_, least)| *least < usual).collect()
    }

    /// The addresses to which all flows go one way, with it. `way` is that of a peer.
    pub(crate) fn one_way<W: PartialEq>(&self, way: impl Fn(PeerId) -> Option<W>) -> BTreeMap<IpAddr, W> {
        let common = |peers: &BTreeMap<PeerId, usize>| {
            let mut ways = peers.keys().map(|peer| way(*peer));
            let first = ways.next()??;
            ways.all(|other| other.as_ref() == Some(&first)).then_some(first)
        };
        self.counts.iter().filter_map(|(address, peers)| Some((*address, common(peers)?))).collect()
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
        };
        (tuple, entry)
    }

    #[test]
    fn a_small_path_concerns_its_own_peer_only() {
        let mut remotes = Remotes::default();
        // Peers 2 and 3 are behind one NAT.
        let flows = [flow("198.51.100.1", 1, 1), flow("203.0.113.1", 2, 2), flow("203.0.113.1", 3, 3)];
        for (tuple, entry) in &flows {
            remotes.add(tuple, entry);
        }
        let longest = |peer: PeerId| [None, Some(1440), Some(1440), Some(1280)][peer.0 as usize];
        let nat: IpAddr = "203.0.113.1".parse().expect("address");
        assert_eq!(remotes.smaller(1440, longest), BTreeMap::from([(nat, 1280)]));
        assert_eq!([1, 2, 4].map(|peer| remotes.flows_of(PeerId(peer))), [1, 1, 0]);
        let way = |peer: PeerId| [None, Some('a'), Some('a'), None][peer.0 as usize];
        let one = "198.51.100.1".parse().expect("address");
        assert_eq!(remotes.one_way(way), BTreeMap::from([(one, 'a')]));
        assert_eq!(remotes.one_way(|peer| way(peer).or(Some('b'))), BTreeMap::from([(one, 'a')]));
        assert_eq!(remotes.one_way(|_| Some('a')), BTreeMap::from([(one, 'a'), (nat, 'a')]));
        remotes.remove(&flows[2].0, &flows[2].1);
        assert!(remotes.smaller(1440, longest).is_empty());
        for (tuple, entry) in &flows[..2] {
            remotes.remove(tuple, entry);
        }
        assert!(remotes.counts.is_empty());
    }
}
