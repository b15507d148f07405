//! Wire ports of UDP flows that may come rewritten, kept from other sockets of this host (P-160).
//!
//! What comes under wire names is left to a native socket that would take it (P-140), and one of UDP takes what anybody
//! sends: who binds the wire port of another's flow would be given its datagrams, and would send in its name. So this
//! process has such a port meanwhile. Its socket is connected to nobody's, so that the data plane finds no socket under
//! the flow's names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use whimbrel_kernel::udp::keep_port;
use whimbrel_protocol::{Binding, FlowEntry, PeerId, Places};
use whimbrel_wire::{FlowTuple, Transport};

/// Ports that are kept at the most, a descriptor each (`LimitNOFILE` of the unit is 65,536). Peers with more flows are
/// told not to rewrite.
const HELD_MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct WirePorts {
    /// The UDP flows that are known: their wire ports, and where they are at home.
    flows: HashMap<PeerId, HashMap<FlowTuple, (u16, Places)>>,
    held: HashMap<SocketAddr, Held>,
    /// Peers with a flow whose wire port somebody else has, which the node is to know of.
    taken: BTreeSet<PeerId>,
}

#[derive(Debug)]
struct Held {
    _socket: OwnedFd,
    users: HashSet<PeerId>,
}

impl WirePorts {
    /// Knows a flow from now on, or knows something else of it. `binding`: that of its peer, as it is in force. Returns
    /// whether its wire port is kept wherever it may come rewritten.
    pub(crate) fn record_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry, binding: Option<&Binding>) -> bool {
        if flow.transport != Transport::Udp {
            return true;
        }
        let (port, home) = (entry.wire_local_port, entry.home);
        self.flows.entry(entry.peer).or_default().insert(*flow, (port, home));
        let Some(binding) = binding else { return true };
        let wanted: Vec<_> = addresses(binding, home).map(|local| SocketAddr::new(local, port)).collect();
        wanted.iter().for_each(|at| self.want(entry.peer, *at, binding));
        wanted.iter().all(|at| self.held.contains_key(at))
    }

    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple, peer: PeerId) {
        let Some(flows) = self.flows.get_mut(&peer) else { return };
        let Some((port, _)) = flows.remove(flow) else { return };
        let another = flows.values().any(|(other, _)| *other == port);
        if flows.is_empty() {
            self.flows.remove(&peer);
        }
        if !another {
            self.let_go(peer, |at| at.port() != port);
        }
    }

    /// Keeps the wire ports at the addresses that a binding takes rewritten packets at, and no others of this peer's.
    /// One that is new is kept before the binding is in force.
    pub(crate) fn keep(&mut self, peer: PeerId, binding: &Binding) {
        let flows = self.flows.get(&peer).into_iter().flat_map(HashMap::values);
        let at = |(port, home): &(u16, Places)| {
            let port = *port;
            addresses(binding, *home).map(move |local| SocketAddr::new(local, port))
        };
        let wanted: HashSet<SocketAddr> = flows.flat_map(at).collect();
        self.let_go(peer, |at| wanted.contains(at));
        for at in wanted {
            self.want(peer, at, binding);
        }
    }

    /// Whether the wire ports of all UDP flows of a peer that have moved are kept at an address of this host.
    pub(crate) fn keeps_all(&self, peer: PeerId, binding: &Binding, local: IpAddr) -> bool {
        let mut flows = self.flows.get(&peer).into_iter().flat_map(HashMap::values);
        flows.all(|(port, home)| *home == binding.places || self.held.contains_key(&SocketAddr::new(local, *port)))
    }

    fn want(&mut self, peer: PeerId, at: SocketAddr, binding: &Binding) {
        if let Some(held) = self.held.get_mut(&at) {
            held.users.insert(peer);
            return;
        }
        let room = self.held.len() < HELD_MOST;
        match if room { keep_port(at) } else { Err(Errno::MFILE) } {
            Ok(socket) => {
                self.held.insert(at, Held { _socket: socket, users: HashSet::from([peer]) });
            }
            // One below 1024 neither this process may have, nor who has no rights.
            Err(Errno::ACCESS) => {}
            // What is still under way to a place that was left is all that can be had there.
            Err(_) if at.ip() != binding.local_locator => {}
            Err(error) => {
                tracing::warn!(%peer, %at, %error, "the wire port of a moved UDP flow is not to be had");
                self.taken.insert(peer);
            }
        }
    }

    /// Lets a peer have no others than these.
    fn let_go(&mut self, peer: PeerId, stays: impl Fn(&SocketAddr) -> bool) {
        self.held.retain(|at, held| {
            if !stays(at) {
                held.users.remove(&peer);
            }
            !held.users.is_empty()
        });
    }

    /// The peer has no binding any more.
    pub(crate) fn release(&mut self, peer: PeerId) {
        self.let_go(peer, |_| false);
    }

    /// Takes the peers that are not to rewrite, as somebody else has the wire port of a flow with them.
    pub(crate) fn take_taken(&mut self) -> BTreeSet<PeerId> {
        std::mem::take(&mut self.taken)
    }
}

/// The addresses of this host at which a flow with this home may come rewritten.
fn addresses(binding: &Binding, home: Places) -> impl Iterator<Item = IpAddr> {
    let former: BTreeSet<IpAddr> = binding.former.iter().map(|(local, _)| *local).collect();
    // At home it is called by its own names.
    let moved = home != binding.places && !binding.local_locator.is_unspecified();
    let present = Some(binding.local_locator).filter(|local| moved && !former.contains(local));
    former.into_iter().chain(present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use whimbrel_protocol::{Carrier, LocalEnd, Manner, Waits};

    const PEER: PeerId = PeerId(3);
    const HOME: Places = Places { local: 4, peer: 5 };

    fn binding(local: &str, places: Places, former: &[&str]) -> Binding {
        let [local_locator, peer_locator] = [local, "192.0.2.9"].map(|address| address.parse().expect("an address"));
        let former = former.iter().map(|local| (local.parse().expect("an address"), peer_locator)).collect();
        Binding {
            places,
            carrier: Carrier::Tunnel,
            local_locator,
            peer_locator,
            proven: None,
            source: None,
            former,
            listens: false,
            parked: false,
        }
    }

    fn note(ports: &mut WirePorts, peer: PeerId, port: u16, of: u16, binding: Option<&Binding>) -> FlowTuple {
        let local = SocketAddr::from(([198, 51, 100, 1], of));
        let remote = "192.0.2.1:443".parse().expect("an endpoint");
        let flow = FlowTuple { transport: Transport::Udp, local, remote };
        let entry = FlowEntry {
            peer,
            name: u64::from(of),
            home: HOME,
            side: 0,
            waits: Waits::default(),
            manner: Manner::default(),
            peer_tuple: flow.mirrored(),
            wire_local_port: port,
            wire_remote_port: 9,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        };
        ports.record_flow(&flow, &entry, binding);
        flow
    }

    fn is_free(at: &str, port: u16) -> bool {
        UdpSocket::bind((at, port)).is_ok()
    }

    fn free_port() -> u16 {
        UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.local_addr()).expect("a port").port()
    }

    #[test]
    fn nobody_else_has_the_wire_port_of_a_udp_flow_that_may_come_rewritten() {
        let port = free_port();
        let (mut ports, away) = (WirePorts::default(), Places { local: 6, peer: 5 });
        let first = note(&mut ports, PEER, port, 1, None);
        ports.keep(PEER, &binding("127.0.0.1", HOME, &[]));
        assert!(is_free("127.0.0.1", port), "it is at home");
        ports.keep(PEER, &binding("127.0.0.1", away, &[]));
        assert!(!is_free("127.0.0.1", port) && !is_free("0.0.0.0", port));
        assert!(ports.take_taken().is_empty());
        let [here, elsewhere] = ["127.0.0.1", "127.0.0.2"].map(|at| at.parse().expect("an address"));
        let moved = binding("127.0.0.1", away, &[]);
        assert!(ports.keeps_all(PEER, &moved, here) && !ports.keeps_all(PEER, &moved, elsewhere));
        // What was sent before a move back is under way still, and to an address that the host has no more.
        ports.keep(PEER, &binding("127.0.0.2", HOME, &["127.0.0.1", "203.0.113.7"]));
        assert!(!is_free("127.0.0.1", port) && is_free("127.0.0.2", port));
        if rustix::process::geteuid().is_root() {
            assert!(ports.held.contains_key(&SocketAddr::from(([203, 0, 113, 7], port))));
        }
        // Another flow's, of another peer.
        let other = PeerId(4);
        note(&mut ports, other, port, 2, Some(&moved));
        ports.forget_flow(&first, PEER);
        assert!(!is_free("127.0.0.1", port));
        ports.release(other);
        assert!(is_free("127.0.0.1", port) && ports.held.is_empty());
    }

    #[test]
    fn whoever_has_it_already_keeps_it_and_the_node_is_told() {
        for at in ["127.0.0.1", "0.0.0.0"] {
            let somebodys = UdpSocket::bind((at, 0)).expect("bind");
            let port = somebodys.local_addr().expect("an endpoint").port();
            let mut ports = WirePorts::default();
            note(&mut ports, PEER, port, 1, None);
            ports.keep(PEER, &binding("127.0.0.2", HOME, &["127.0.0.1"]));
            assert!(ports.take_taken().is_empty(), "a place that was left");
            ports.keep(PEER, &binding("127.0.0.1", Places { local: 6, peer: 5 }, &[]));
            assert_eq!(ports.take_taken(), BTreeSet::from([PEER]));
            assert!(ports.take_taken().is_empty());
            // Known since the move.
            let (late, moved) = (PeerId(4), binding("127.0.0.1", Places { local: 6, peer: 5 }, &[]));
            let here = moved.local_locator;
            assert!(!ports.keeps_all(PEER, &moved, here) && ports.keeps_all(late, &moved, here));
            note(&mut ports, late, port, 2, Some(&moved));
            assert!(!ports.keeps_all(late, &moved, here));
        }
    }
}
