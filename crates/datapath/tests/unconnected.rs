//! Flows of sockets of UDP that are not connected: each remote is answered by the way its last datagram came (P-221),
//! and what leaves under an address that the kernel chose after a move is of its flow (P-222).

mod support;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use support::packet::{Packet, TCP, UDP, icmp};
use support::pair::wait;
use support::{Bpffs, NEXT, Namespace, Outcome, REDIRECT, is_root, run, tun};
use whimbrel_datapath::{Binding, Carrier, Datapath, Delivery, FlowEntry, LocatorPair, Role};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(3));
const MARK: u32 = 0x57;
/// As bpf/lib/ingress.h has it.
const LATE_NATIVE: Duration = Duration::from_secs(2);
/// Test runs are on the loopback device; this one is none.
const TUNNEL: u32 = 2;

/// A host with one flow of UDP that is at home at the places 4 and 5.
struct Fixture {
    datapath: Datapath,
    own: (SocketAddr, SocketAddr),
    wire: (SocketAddr, SocketAddr),
    namespace: Namespace,
    _bpffs: Bpffs,
}

impl Fixture {
    fn new(names: [&str; 4]) -> Self {
        let [own_local, own_remote, wire_local, wire_remote] =
            names.map(|name| name.parse::<SocketAddr>().expect("an endpoint"));
        let bpffs = Bpffs::new();
        let namespace = Namespace::new();
        namespace.enter();
        let mut datapath = Datapath::open(&bpffs.pins("unconnected")).expect("open");
        datapath.set_tunnel(TUNNEL, MARK, 0xff).expect("settings");
        let (own, wire) = ((own_local, own_remote), (wire_local, wire_remote));
        let fixture = Self { datapath, own, wire, namespace, _bpffs: bpffs };
        fixture.know(true);
        fixture
    }

    fn flow(&self) -> FlowTuple {
        FlowTuple { transport: Transport::Udp, local: self.own.0, remote: self.own.1 }
    }

    fn entry(&self, unconnected: bool) -> FlowEntry {
        FlowEntry {
            binding: BINDING,
            home_local_place: 4,
            home_peer_place: 5,
            wire_local_port: self.wire.0.port(),
            wire_remote_port: self.wire.1.port(),
            held: false,
            real_view: false,
            gives_way: false,
            tunnelled: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected,
            delivery: Delivery::Stack,
        }
    }

    fn know(&self, unconnected: bool) {
        self.datapath.insert_flows(&[(self.flow(), self.entry(unconnected))]).expect("insert");
    }

    fn bind(&self, (local_place, peer_place): (u32, u32), carrier: Carrier) {
        let (local, peer) = (self.wire.0.ip(), self.wire.1.ip());
        let binding = Binding {
            local_place,
            peer_place,
            carrier,
            local,
            peer,
            interface: 1,
            arrival: 0,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept: false,
            // Where the flow began as well, as it is after a move.
            accepted: vec![LocatorPair { local, peer }, LocatorPair { local: self.own.0.ip(), peer: self.own.1.ip() }],
        };
        self.datapath.set_binding(BINDING, &binding).expect("bind");
    }

    /// What comes natively is not one that the peer sent before it left any more.
    fn outlast_late_ones(&self) {
        std::thread::sleep(LATE_NATIVE + Duration::from_millis(20));
    }

    fn egress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("egress_l2").expect("program"), packet)
    }

    fn ingress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("ingress_l2").expect("program"), packet)
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.datapath.counters().expect("counters");
        counters.iter().find(|(known, _)| *known == name).expect("a known counter").1
    }

    fn own_out(&self) -> Packet {
        Packet::new(UDP, self.own.0, self.own.1)
    }

    fn own_in(&self) -> Packet {
        Packet::new(UDP, self.own.1, self.own.0)
    }

    /// As the socket sends it once the host is where its wire names are of: the kernel has chosen another address.
    fn chosen_out(&self) -> Packet {
        Packet::new(UDP, SocketAddr::new(self.wire.0.ip(), self.own.0.port()), self.own.1)
    }

    fn wire_out(&self) -> Packet {
        Packet::new(UDP, self.wire.0, self.wire.1)
    }

    /// What the socket sends passes as it is.
    #[track_caller]
    fn answers_natively(&self) {
        let before = self.count("native_out");
        let packet = self.own_out().bytes();
        assert_eq!(self.egress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
        assert_eq!(self.count("native_out"), before + 1);
        for packet in self.own_out().fragments(48) {
            assert_eq!(self.egress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
        }
        let error = self.error_out();
        assert_eq!(self.egress(&error), Outcome { verdict: NEXT, packet: error, mark: 0 });
    }

    #[track_caller]
    fn answers_rewritten(&self) {
        let packet = self.wire_out().bytes();
        assert_eq!(self.egress(&self.own_out().bytes()), Outcome { verdict: REDIRECT, packet, mark: 0 });
        assert_eq!(self.egress(&self.error_out()).verdict, REDIRECT);
    }

    #[track_caller]
    fn answers_tunnelled(&self) {
        let (packet, before) = (self.own_out().bytes(), self.count("tunnelled_out"));
        assert_eq!(self.egress(&packet), Outcome { verdict: REDIRECT, packet, mark: 0 });
        assert_eq!(self.count("tunnelled_out"), before + 1);
    }

    /// What this host says about something that came natively.
    fn error_out(&self) -> Vec<u8> {
        let (kind, code) = if self.own.0.is_ipv4() { (3, 3) } else { (1, 4) };
        icmp(self.own.0.ip(), self.own.1.ip(), kind, code, [0; 4], &self.own_in().ip())
    }

    #[track_caller]
    fn hears_natively(&self) {
        let packet = self.own_in().bytes();
        assert_eq!(self.ingress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
    }

    #[track_caller]
    fn hears_rewritten(&self) {
        let packet = self.own_in().bytes();
        let came = Packet::new(UDP, self.wire.1, self.wire.0).bytes();
        assert_eq!(self.ingress(&came), Outcome { verdict: NEXT, packet, mark: MARK });
    }
}

fn on_both_families(test: impl Fn(Fixture) + Copy + Send + 'static) {
    if !is_root() {
        return;
    }
    for names in [
        ["10.1.0.2:40000", "192.0.2.9:443", "172.16.5.2:40001", "198.51.100.77:444"],
        ["[2001:db8:1::2]:40000", "[2001:db8:9::9]:443", "[2001:db8:ffff:5::2]:40001", "[2001:db8:77::1:77]:444"],
    ] {
        // The fixture changes the thread's namespaces.
        std::thread::spawn(move || test(Fixture::new(names))).join().expect("the test holds");
    }
}

#[test]
fn a_remote_is_answered_by_the_way_its_last_datagram_came() {
    on_both_families(|fixture| {
        fixture.bind((4, 6), Carrier::Rewrite);
        fixture.answers_rewritten();
        // What the peer sent before it left.
        fixture.hears_natively();
        fixture.answers_rewritten();
        fixture.outlast_late_ones();
        for _ in 0..2 {
            fixture.hears_natively();
            fixture.answers_natively();
            fixture.hears_rewritten();
            fixture.answers_rewritten();
        }
        // A fragment that says whose it is counts as well.
        let [first, later] = fixture.own_in().fragments(48);
        assert_eq!(fixture.ingress(&later).verdict, NEXT);
        fixture.answers_rewritten();
        assert_eq!(fixture.ingress(&first).verdict, NEXT);
        fixture.answers_natively();
        let [first, later] = Packet::new(UDP, fixture.wire.1, fixture.wire.0).fragments(48);
        assert_eq!((fixture.ingress(&first).mark, fixture.ingress(&later).mark), (MARK, MARK));
        fixture.answers_rewritten();
        // The peer goes on to somewhere else.
        fixture.hears_natively();
        fixture.bind((4, 7), Carrier::Rewrite);
        fixture.answers_natively();
        // This host leaves as well: nobody hears it where it was.
        fixture.bind((6, 7), Carrier::Rewrite);
        fixture.answers_rewritten();
        fixture.bind((4, 7), Carrier::Rewrite);
        fixture.answers_natively();
        fixture.hears_rewritten();
        fixture.answers_rewritten();
    });
}

#[test]
fn the_tunnel_is_a_way_of_the_peers_too() {
    on_both_families(|mut fixture| {
        let mut device = tun("tun");
        fixture.namespace.run("ip link set tun up");
        // SAFETY: a terminated string.
        let index = unsafe { libc::if_nametoindex(c"tun".as_ptr()) };
        fixture.datapath.set_tunnel(index, MARK, 0xff).expect("settings");
        fixture.datapath.attach(index, Role::Tunnel).expect("attach");
        for carrier in [Carrier::Tunnel, Carrier::Follow] {
            fixture.bind((4, 6), carrier);
            fixture.answers_tunnelled();
            fixture.outlast_late_ones();
            fixture.hears_natively();
            fixture.answers_natively();
            let before = fixture.count("tunnel_in");
            device.write_all(&fixture.own_in().ip()).expect("write");
            wait(|| fixture.count("tunnel_in") > before);
            fixture.answers_tunnelled();
        }
        // What came rewritten is answered so, where the binding follows.
        fixture.hears_natively();
        fixture.hears_rewritten();
        fixture.answers_rewritten();
    });
}

#[test]
fn only_whoever_is_where_an_absent_peer_was_is_answered_there() {
    on_both_families(|fixture| {
        // A connected socket hears nobody but its remote, whose flow it is.
        fixture.know(false);
        fixture.bind((4, 6), Carrier::Rewrite);
        fixture.outlast_late_ones();
        fixture.hears_natively();
        fixture.answers_rewritten();
        fixture.know(true);
        fixture.answers_rewritten();
        // From elsewhere.
        let changes: [fn(&mut Packet); 4] = [
            |packet| packet.source.set_port(442),
            |packet| packet.source.set_ip(packet.destination.ip()),
            |packet| packet.destination.set_port(40_002),
            |packet| packet.protocol = TCP,
        ];
        for change in changes {
            let mut other = fixture.own_in();
            change(&mut other);
            assert_eq!(fixture.ingress(&other.bytes()).verdict, NEXT);
            fixture.answers_rewritten();
        }
        // At home it is the peer, and where this host alone has moved as well.
        for places in [(4, 5), (6, 5)] {
            fixture.bind(places, Carrier::Rewrite);
            fixture.hears_natively();
            fixture.bind((6, 5), Carrier::Rewrite);
            fixture.answers_rewritten();
            fixture.bind((4, 6), Carrier::Rewrite);
            fixture.answers_rewritten();
        }
        fixture.outlast_late_ones();
        // Back home, the peer is heard natively, and has gone again.
        fixture.hears_natively();
        fixture.answers_natively();
        fixture.bind((4, 5), Carrier::Rewrite);
        fixture.hears_natively();
        fixture.bind((4, 7), Carrier::Rewrite);
        fixture.answers_rewritten();
    });
}

#[test]
fn what_was_heard_last_is_known_as_long_as_the_flow() {
    on_both_families(|fixture| {
        fixture.bind((4, 6), Carrier::Rewrite);
        fixture.outlast_late_ones();
        fixture.hears_natively();
        fixture.know(true);
        fixture.answers_natively();
        // Nothing of it leaves, wherever it is.
        fixture
            .datapath
            .insert_flows(&[(fixture.flow(), FlowEntry { held: true, ..fixture.entry(true) })])
            .expect("held");
        assert_eq!(fixture.egress(&fixture.own_out().bytes()).verdict, REDIRECT);
        assert_eq!(fixture.count("held"), 1);
        fixture.know(false);
        fixture.know(true);
        fixture.answers_rewritten();
        fixture.hears_natively();
        fixture.datapath.remove_flows(&[fixture.flow()]).expect("remove");
        fixture.know(true);
        fixture.answers_rewritten();
    });
}

#[test]
fn what_an_unconnected_socket_sends_after_a_move_is_of_its_flow() {
    on_both_families(|mut fixture| {
        fixture.bind((6, 5), Carrier::Rewrite);
        let changes: [fn(&mut Packet); 3] =
            [|_| {}, |packet| packet.no_checksum = true, |packet| packet.payload.clear()];
        for change in changes {
            let [mut sent, mut own, mut wire] = [fixture.chosen_out(), fixture.own_out(), fixture.wire_out()];
            [&mut sent, &mut own, &mut wire].into_iter().for_each(change);
            fixture.bind((6, 5), Carrier::Rewrite);
            let rewritten = Outcome { verdict: REDIRECT, packet: wire.bytes(), mark: 0 };
            assert_eq!(fixture.egress(&sent.bytes()), rewritten);
            assert_eq!(fixture.egress(&own.bytes()), rewritten, "bound to the address");
            fixture.bind((6, 5), Carrier::Tunnel);
            let tunnelled = Outcome { verdict: REDIRECT, packet: own.bytes(), mark: 0 };
            assert_eq!(fixture.egress(&sent.bytes()), tunnelled);
            assert_eq!(fixture.egress(&own.bytes()), tunnelled);
            // As a route leads it there, on the TUN device itself.
            fixture.datapath.set_tunnel(1, MARK, 0xff).expect("settings");
            let led = Outcome { verdict: NEXT, packet: own.bytes(), mark: 0 };
            assert_eq!(fixture.egress(&sent.bytes()), led);
            fixture.datapath.set_tunnel(TUNNEL, MARK, 0xff).expect("settings");
        }
        for (carrier, expected) in [(Carrier::Rewrite, fixture.wire_out()), (Carrier::Tunnel, fixture.own_out())] {
            fixture.bind((6, 5), carrier);
            for (sent, packet) in fixture.chosen_out().fragments(48).iter().zip(expected.fragments(48)) {
                assert_eq!(fixture.egress(sent), Outcome { verdict: REDIRECT, packet, mark: 0 });
            }
        }
        fixture.bind((6, 5), Carrier::Hold);
        let packet = fixture.chosen_out().bytes();
        assert_eq!(fixture.egress(&packet), Outcome { verdict: REDIRECT, packet: packet.clone(), mark: 0 });
        assert_eq!(fixture.count("held"), 1);
    });
}

#[test]
fn what_is_sent_from_another_address_and_is_of_no_moved_flow_stays_as_it_is() {
    on_both_families(|fixture| {
        let untouched = |packet: Packet| {
            let packet = packet.bytes();
            assert_eq!(fixture.egress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
        };
        // At home; where only the peer has moved; and where nothing is led.
        for (places, carrier) in [
            ((4, 5), Carrier::Rewrite),
            ((4, 6), Carrier::Rewrite),
            ((4, 6), Carrier::Tunnel),
            ((6, 5), Carrier::Native),
        ] {
            fixture.bind(places, carrier);
            untouched(fixture.chosen_out());
        }
        fixture.bind((6, 5), Carrier::Rewrite);
        let changes: [fn(&mut Packet); 4] = [
            |packet| packet.source.set_port(40_002),
            |packet| packet.destination.set_port(442),
            |packet| packet.destination.set_ip(packet.source.ip()),
            |packet| packet.protocol = TCP,
        ];
        for change in changes {
            let mut other = fixture.chosen_out();
            change(&mut other);
            untouched(other);
        }
        // The last fragment of something that is not known.
        let later = fixture.chosen_out().fragments(48)[1].clone();
        assert_eq!(fixture.egress(&later), Outcome { verdict: NEXT, packet: later.clone(), mark: 0 });

        // A socket has another flow with the same remote, under another address of this host: it is the later one's,
        // and stays that when the former goes.
        let former = fixture.flow();
        let other: IpAddr = if former.local.is_ipv4() { "10.1.0.3" } else { "2001:db8:1::3" }.parse().expect("address");
        let later = FlowTuple { local: SocketAddr::new(other, former.local.port()), ..former };
        let entry = FlowEntry { wire_local_port: 50_000, ..fixture.entry(true) };
        fixture.datapath.insert_flows(&[(later, entry)]).expect("insert");
        fixture.datapath.remove_flows(&[former]).expect("remove");
        let mut expected = fixture.wire_out();
        expected.source.set_port(50_000);
        assert_eq!(fixture.egress(&fixture.chosen_out().bytes()).packet, expected.bytes());
        // Of a socket that is connected by now, and of none.
        fixture.datapath.insert_flows(&[(later, FlowEntry { unconnected: false, ..entry })]).expect("insert");
        untouched(fixture.chosen_out());
        fixture.datapath.insert_flows(&[(later, entry)]).expect("insert");
        assert_eq!(fixture.egress(&fixture.chosen_out().bytes()).verdict, REDIRECT);
        fixture.datapath.remove_flows(&[later]).expect("remove");
        untouched(fixture.chosen_out());
    });
}

#[test]
fn it_is_noted_when_a_moved_flow_was_used() {
    on_both_families(|fixture| {
        let noted = || fixture.datapath.last_used(&fixture.flow()).expect("look");
        assert_eq!(noted(), Some(0));
        fixture.bind((4, 6), Carrier::Rewrite);
        // Somebody else's.
        fixture.hears_natively();
        assert_eq!(noted(), Some(0));
        fixture.hears_rewritten();
        let heard = noted().expect("it is known");
        assert_ne!(heard, 0);
        std::thread::sleep(Duration::from_millis(20));
        fixture.answers_rewritten();
        assert!(noted().expect("it is known").wrapping_sub(heard) >= 10);
        fixture.know(true);
        assert_ne!(noted(), Some(0), "it is the same flow");
        fixture.datapath.remove_flows(&[fixture.flow()]).expect("remove");
        assert_eq!(noted(), None);
    });
}
