//! The programs on single packets, by BPF_PROG_TEST_RUN: a translated packet is the one that a host with the other
//! names would have sent, byte by byte.

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use support::packet::{ETHERNET, Packet, TCP, UDP, icmp};
use support::{Bpffs, NEXT, Namespace, Outcome, REDIRECT, SHOT, is_root, run};
use whimbrel_datapath::{Binding, Carrier, Datapath, Delivery, Event, FlowEntry, LocatorPair, Most};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(3));
const MARK: u32 = 0x57;

/// Names of one flow: own tuple and wire tuple.
#[derive(Clone, Copy)]
struct Names {
    own_local: SocketAddr,
    own_remote: SocketAddr,
    wire_local: SocketAddr,
    wire_remote: SocketAddr,
}

fn names(own_local: &str, own_remote: &str, wire_local: &str, wire_remote: &str) -> Names {
    let [own_local, own_remote, wire_local, wire_remote] =
        [own_local, own_remote, wire_local, wire_remote].map(|name| name.parse().expect("an endpoint"));
    Names { own_local, own_remote, wire_local, wire_remote }
}

fn both_families() -> [Names; 2] {
    [
        names("10.1.0.2:40000", "192.0.2.9:443", "172.16.5.2:40001", "198.51.100.77:444"),
        names("[2001:db8:1::2]:40000", "[2001:db8:9::9]:443", "[2001:db8:ffff:5::2]:40001", "[2001:db8:77::1:77]:444"),
    ]
}

struct Fixture {
    datapath: Datapath,
    names: Names,
    bpffs: Bpffs,
    _namespace: Namespace,
}

impl Fixture {
    fn new(names: Names) -> Self {
        let bpffs = Bpffs::new();
        let namespace = Namespace::new();
        namespace.enter();
        let mut datapath = Datapath::open(&bpffs.pins("packets")).expect("open");
        datapath.set_tunnel(1, MARK, 0xff).expect("settings");
        let fixture = Self { datapath, names, bpffs, _namespace: namespace };
        fixture.insert(false);
        fixture.bind(Carrier::Rewrite, None);
        fixture
    }

    fn insert(&self, held: bool) {
        let names = self.names;
        let flows = [Transport::Tcp, Transport::Udp].map(|transport| {
            let entry = FlowEntry {
                binding: BINDING,
                home_local_place: 4,
                home_peer_place: 5,
                wire_local_port: names.wire_local.port(),
                wire_remote_port: names.wire_remote.port(),
                held,
                real_view: false,
                gives_way: false,
                tunnelled: false,
                hidden: false,
                beyond: false,
                unconnected: false,
                late: false,
                delivery: Delivery::Stack,
            };
            (FlowTuple { transport, local: names.own_local, remote: names.own_remote }, entry)
        });
        self.datapath.insert_flows(&flows).expect("insert");
    }

    fn binding(&self) -> Binding {
        let (local, peer) = (self.names.wire_local.ip(), self.names.wire_remote.ip());
        Binding {
            local_place: 6,
            peer_place: 5,
            carrier: Carrier::Rewrite,
            local,
            peer,
            interface: 1,
            arrival: 1,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept: false,
            accepted: vec![
                LocatorPair { local, peer },
                LocatorPair { local: self.names.own_local.ip(), peer: self.names.own_remote.ip() },
            ],
        }
    }

    fn bind(&self, carrier: Carrier, allowance: Option<u64>) {
        self.datapath.set_binding(BINDING, &Binding { carrier, allowance, ..self.binding() }).expect("bind");
    }

    fn egress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("egress_l2").expect("program"), packet)
    }

    fn ingress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("ingress_l2").expect("program"), packet)
    }

    #[track_caller]
    fn counted(&self, name: &str, times: u64) {
        let counters = self.datapath.counters().expect("counters");
        assert_eq!(counters.iter().find(|(known, _)| *known == name), Some(&(name, times)), "{counters:?}");
    }

    fn own_out(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.names.own_local, self.names.own_remote)
    }

    fn wire_out(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.names.wire_local, self.names.wire_remote)
    }

    fn wire_in(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.names.wire_remote, self.names.wire_local)
    }

    fn own_in(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.names.own_remote, self.names.own_local)
    }

    /// `change` makes the variant of the packets; both directions are tried.
    #[track_caller]
    fn assert_translates(&self, protocol: u8, change: impl Fn(&mut Packet)) {
        let made = |mut packet: Packet| {
            change(&mut packet);
            packet.bytes()
        };
        let out = self.egress(&made(self.own_out(protocol)));
        assert_eq!(out.verdict, REDIRECT);
        assert_eq!(out.packet, made(self.wire_out(protocol)), "egress of protocol {protocol}");
        let into = self.ingress(&made(self.wire_in(protocol)));
        assert_eq!((into.verdict, into.mark), (NEXT, MARK));
        assert_eq!(into.packet, made(self.own_in(protocol)), "ingress of protocol {protocol}");
    }

    #[track_caller]
    fn assert_untouched(&self, packet: &[u8]) {
        for outcome in [self.egress(packet), self.ingress(packet)] {
            assert_eq!(outcome, Outcome { verdict: NEXT, packet: packet.to_vec(), mark: 0 });
        }
    }
}

fn on_both_families(test: impl Fn(Fixture) + Copy + Send + 'static) {
    if !is_root() {
        return;
    }
    for names in both_families() {
        // The fixture changes the thread's namespaces.
        std::thread::spawn(move || test(Fixture::new(names))).join().expect("the test holds");
    }
}

#[test]
fn moved_flows_are_translated_both_ways() {
    on_both_families(|fixture| {
        for protocol in [TCP, UDP] {
            fixture.assert_translates(protocol, |_| {});
            fixture.assert_translates(protocol, |packet| packet.payload.clear());
        }
        fixture.counted("rewritten_out", 4);
        fixture.counted("rewritten_in", 4);
    });
}

#[test]
fn checksums_hold_for_any_payload() {
    on_both_families(|fixture| {
        for word in 0..=0xffff_u16 {
            // Some of them are plenty once around zero has been seen.
            if word % 61 != 0 && word > 64 && word < 0xffc0 {
                continue;
            }
            let mut packet = fixture.own_out(UDP);
            packet.payload = word.to_be_bytes().to_vec();
            let mut expected = fixture.wire_out(UDP);
            expected.payload.clone_from(&packet.payload);
            assert_eq!(fixture.egress(&packet.bytes()).packet, expected.bytes(), "payload {word:#06x}");
        }
    });
}

#[test]
fn udp_without_checksum_stays_without() {
    on_both_families(|fixture| fixture.assert_translates(UDP, |packet| packet.no_checksum = true));
}

#[test]
fn udp_checksum_never_becomes_none() {
    on_both_families(|fixture| {
        // The payload for which the translated datagram's checksum comes out as zero, which is sent as all ones.
        let mut expected = fixture.wire_out(UDP);
        expected.payload = vec![0, 0];
        let segment = expected.segment();
        let checksum = u16::from_be_bytes([segment[6], segment[7]]);
        expected.payload = checksum.to_be_bytes().to_vec();
        assert_eq!(expected.segment()[6..8], [0xff, 0xff]);
        let mut packet = fixture.own_out(UDP);
        packet.payload.clone_from(&expected.payload);
        assert_eq!(fixture.egress(&packet.bytes()).packet, expected.bytes());
    });
}

#[test]
fn ipv4_options_are_kept() {
    on_both_families(|fixture| {
        if fixture.names.own_local.is_ipv4() {
            for words in 1..=10 {
                for protocol in [TCP, UDP] {
                    fixture.assert_translates(protocol, |packet| packet.ip_options = vec![1; words * 4]);
                }
            }
        }
    });
}

#[test]
fn ipv6_extension_headers_are_skipped_up_to_a_bound() {
    on_both_families(|fixture| {
        if fixture.names.own_local.is_ipv4() {
            return;
        }
        let hop_by_hop = (0, vec![0, 0, 1, 4, 0, 0, 0, 0]);
        let destination = (60, [vec![0, 1, 1, 12], vec![0; 12]].concat());
        let atomic_fragment = (44, vec![0, 0, 0, 0, 1, 2, 3, 4]);
        for protocol in [TCP, UDP] {
            fixture.assert_translates(protocol, |packet| {
                packet.extensions = vec![hop_by_hop.clone(), destination.clone(), atomic_fragment.clone()];
            });
        }
        let mut too_many = fixture.own_out(TCP);
        too_many.extensions = vec![destination.clone(); 7];
        fixture.assert_untouched(&too_many.bytes());
        let mut routed = fixture.own_out(TCP);
        routed.extensions = vec![(43, vec![0, 0, 0, 0, 0, 0, 0, 0])];
        fixture.assert_untouched(&routed.bytes());
    });
}

#[test]
fn native_and_unknown_flows_are_untouched() {
    on_both_families(|fixture| {
        let own = fixture.own_out(TCP).bytes();
        let places = |local_place, peer_place| {
            let binding = Binding { local_place, peer_place, ..fixture.binding() };
            fixture.datapath.set_binding(BINDING, &binding).expect("bind");
        };
        places(4, 5);
        fixture.assert_untouched(&own);
        fixture.counted("native_out", 1);
        places(4, 6);
        assert_eq!(fixture.egress(&own).verdict, REDIRECT);
        fixture.bind(Carrier::Native, None);
        fixture.assert_untouched(&own);
        fixture.bind(Carrier::Rewrite, None);
        let mut other = fixture.own_out(TCP);
        other.source.set_port(1);
        fixture.assert_untouched(&other.bytes());
        // Between the locators, of no flow and no socket: it is not reset, but a new connection is answered as ever
        // (P-43).
        let mut other = fixture.wire_in(TCP);
        other.source.set_port(1);
        fixture.assert_untouched(&other.bytes());
        let answer = |tcp_flags| {
            let (source, destination) = (other.destination, other.source);
            fixture.egress(&Packet { source, destination, tcp_flags, ..other.clone() }.bytes()).verdict
        };
        assert_eq!(answer(0x04), SHOT);
        fixture.counted("dropped_unknown", 1);
        for tcp_flags in [0x14, 0x12, 0x10] {
            assert_eq!(answer(tcp_flags), NEXT);
        }
        let mut other = fixture.wire_in(UDP);
        other.source.set_port(1);
        fixture.assert_untouched(&other.bytes());
        fixture.datapath.remove_binding(BINDING).expect("remove");
        fixture.assert_untouched(&own);
        fixture.assert_untouched(&fixture.wire_in(TCP).bytes());
    });
}

#[test]
fn held_flows_send_nothing_wherever_they_are() {
    on_both_families(|fixture| {
        let whole = [TCP, UDP].map(|protocol| fixture.own_out(protocol).bytes());
        let packets = whole.into_iter().chain(fixture.own_out(UDP).fragments(48)).collect::<Vec<_>>();
        let mut held = 0;
        let mut assert_held = || {
            for packet in &packets {
                let outcome = fixture.egress(packet);
                assert_eq!(outcome, Outcome { verdict: REDIRECT, packet: packet.clone(), mark: 0 });
                held += 1;
                fixture.counted("held", held);
            }
        };
        fixture.insert(true);
        for carrier in [Carrier::Native, Carrier::Rewrite, Carrier::Tunnel, Carrier::Hold, Carrier::Follow] {
            fixture.bind(carrier, None);
            assert_held();
            let home = Binding { local_place: 4, peer_place: 5, carrier, ..fixture.binding() };
            fixture.datapath.set_binding(BINDING, &home).expect("bind");
            assert_held();
        }
        fixture.datapath.remove_binding(BINDING).expect("remove");
        assert_held();
        assert!(fixture.datapath.flows().expect("flows").iter().all(|(_, entry)| entry.held));
        // What comes in is as welcome as ever.
        fixture.bind(Carrier::Rewrite, None);
        assert_eq!(fixture.ingress(&fixture.wire_in(TCP).bytes()).packet, fixture.own_in(TCP).bytes());
        fixture.insert(false);
        fixture.assert_translates(TCP, |_| {});
        fixture.datapath.remove_binding(BINDING).expect("remove");
        fixture.assert_untouched(&packets[0]);
    });
}

#[test]
fn malformed_packets_are_untouched() {
    on_both_families(|fixture| {
        let whole = fixture.own_out(TCP).bytes();
        let network = if fixture.names.own_local.is_ipv4() { 20 } else { 40 };
        // The kernel refuses to test-run anything shorter.
        for length in [ETHERNET + network, ETHERNET + network + 3] {
            fixture.assert_untouched(&whole[..length]);
        }
        let mut version = whole.clone();
        version[ETHERNET] ^= 0xf0;
        fixture.assert_untouched(&version);
    });
}

#[test]
fn the_old_path_is_marked_and_nothing_else() {
    on_both_families(|fixture| {
        let mut names = fixture.names;
        // The flow that kept its ports comes in under its own names on the old path.
        names.own_local.set_port(names.wire_local.port());
        names.own_remote.set_port(names.wire_remote.port());
        let tuple = FlowTuple { transport: Transport::Tcp, local: names.own_local, remote: names.own_remote };
        let entry = FlowEntry {
            binding: BINDING,
            home_local_place: 4,
            home_peer_place: 5,
            wire_local_port: names.wire_local.port(),
            wire_remote_port: names.wire_remote.port(),
            held: false,
            real_view: false,
            gives_way: false,
            tunnelled: false,
            hidden: false,
            beyond: false,
            unconnected: false,
            late: false,
            delivery: Delivery::Stack,
        };
        fixture.datapath.insert_flows(&[(tuple, entry)]).expect("insert");
        let packet = Packet::new(TCP, names.own_remote, names.own_local).bytes();
        assert_eq!(fixture.ingress(&packet), Outcome { verdict: NEXT, packet, mark: MARK });
        fixture.counted("home_in", 1);
    });
}

#[test]
fn what_a_strict_filter_would_drop_gets_no_mark() {
    on_both_families(|fixture| {
        let names = fixture.names;
        let router: IpAddr =
            if names.own_local.is_ipv4() { "203.0.113.1" } else { "2001:db8:aaaa::1" }.parse().expect("address");
        let (kind, code, rest) = errors(router)[0];
        let mut packets: Vec<_> = [TCP, UDP].map(|protocol| fixture.wire_in(protocol).bytes()).into();
        packets.push(icmp(router, names.wire_local.ip(), kind, code, rest, &fixture.wire_out(TCP).ip()));
        let fragments = fixture.wire_in(UDP).fragments(48);
        let marks = |fixture: &Fixture| packets.iter().map(|packet| fixture.ingress(packet).mark).collect::<Vec<_>>();

        // The peer's packets are to come by another device, and whoever filters loosely takes them from anywhere.
        fixture.datapath.set_binding(BINDING, &Binding { arrival: 9, ..fixture.binding() }).expect("bind");
        assert_eq!(marks(&fixture), [MARK; 3]);
        assert!(fragments.iter().all(|fragment| fixture.ingress(fragment).mark == MARK));
        fixture.datapath.set_strict(true).expect("strict");
        for packet in packets.iter().chain(&fragments) {
            // For another link-layer address: a device on top of this one may be the right one.
            assert_eq!(fixture.ingress(packet), Outcome { verdict: NEXT, packet: packet.clone(), mark: 0 });
            // That of the loopback device.
            let here = [&[0; 6][..], &packet[6..]].concat();
            let outcome = fixture.ingress(&here);
            assert_eq!((outcome.verdict, outcome.mark), (SHOT, 0));
        }
        fixture.counted("dropped_astray", packets.len() as u64 + fragments.len() as u64);
        // By a path that was left they come by the device of that, and what is of no moved flow is judged by the filter
        // itself.
        let left = |fixture: &Fixture, arrival| {
            for (arrival, peer) in [(arrival, names.wire_remote.ip()), (5, names.own_remote.ip())] {
                fixture.datapath.set_binding(BINDING, &Binding { arrival, peer, ..fixture.binding() }).expect("bind");
            }
        };
        left(&fixture, 9);
        assert_eq!(marks(&fixture), [0; 3]);
        left(&fixture, 1);
        assert_eq!(marks(&fixture), [MARK; 3]);
        fixture.datapath.set_binding(BINDING, &Binding { arrival: 9, ..fixture.binding() }).expect("bind");
        let mut other = fixture.wire_in(UDP);
        other.source.set_port(1);
        fixture.assert_untouched(&other.bytes());
        fixture.bind(Carrier::Rewrite, None);
        assert_eq!(marks(&fixture), [MARK; 3]);
        fixture.datapath.set_strict(false).expect("loose");
    });
}

#[test]
fn what_peers_say_where_they_are_heard_is_marked_and_nothing_else() {
    const CONTROL: u16 = 2031;
    on_both_families(|fixture| {
        // As through a NAT: no pair of locators.
        fixture.datapath.set_binding(BINDING, &Binding { accepted: Vec::new(), ..fixture.binding() }).expect("bind");
        let names = fixture.names;
        let pair = LocatorPair { local: names.wire_local.ip(), peer: names.wire_remote.ip() };
        let mut word = fixture.wire_in(UDP);
        word.source.set_port(40_000);
        word.destination.set_port(CONTROL);
        fixture.assert_untouched(&word.bytes());
        fixture.datapath.set_paths(&[(pair, 1)].into(), CONTROL).expect("paths");
        let fragments = word.fragments(48);
        for packet in fragments.iter().chain([&word.bytes()]) {
            let marked = Outcome { verdict: NEXT, packet: packet.clone(), mark: MARK };
            assert_eq!(fixture.ingress(packet), marked);
        }
        let mut others = [TCP, UDP, UDP, UDP].map(|protocol| fixture.wire_in(protocol));
        others.iter_mut().for_each(|other| other.destination.set_port(CONTROL));
        others[1].destination.set_port(CONTROL + 1);
        others[2].source.set_ip(names.own_remote.ip());
        others[3].destination.set_ip(names.own_local.ip());
        for other in others {
            fixture.assert_untouched(&other.bytes());
        }
        // A strict filter would drop it.
        fixture.datapath.set_paths(&[(pair, 9)].into(), CONTROL).expect("paths");
        fixture.assert_untouched(&word.bytes());
        fixture.datapath.set_paths(&[(pair, 1)].into(), CONTROL).expect("paths");
        assert_eq!(fixture.ingress(&word.bytes()).mark, MARK);
        fixture.datapath.set_paths(&[].into(), CONTROL).expect("paths");
        fixture.assert_untouched(&word.bytes());
    });
}

#[test]
fn whoever_is_still_where_a_late_flow_came_from_is_told_of() {
    // P-206
    on_both_families(|mut fixture| {
        let names = fixture.names;
        let own = FlowTuple { transport: Transport::Tcp, local: names.own_local, remote: names.own_remote };
        let packet = fixture.own_in(TCP).bytes();
        fixture.datapath.set_busy(true, false, true).expect("busy");
        assert_eq!(fixture.ingress(&packet).verdict, NEXT);
        fixture.datapath.drain_events(Most::ALL, |event| panic!("{event:?}")).expect("drain");
        let (_, entry) =
            fixture.datapath.flows().expect("flows").into_iter().find(|(flow, _)| *flow == own).expect("it");
        fixture.datapath.insert_flows(&[(own, FlowEntry { late: true, ..entry })]).expect("insert");
        // Its socket gets it.
        for _ in 0..2 {
            assert_eq!(fixture.ingress(&packet).verdict, NEXT);
        }
        let mut told = Vec::new();
        fixture.datapath.drain_events(Most::ALL, |event| told.push(event)).expect("drain");
        assert_eq!(told, [Event::StillThere(own)], "said once");
        // A SYN, which anybody may send, is another matter, and hides nobody.
        fixture.datapath.insert_flows(&[(own, FlowEntry { late: true, ..entry })]).expect("insert");
        let mut syn = fixture.own_in(TCP);
        (syn.tcp_flags, syn.acknowledgement) = (0x02, 0);
        fixture.ingress(&syn.bytes());
        fixture.ingress(&packet);
        let mut told = Vec::new();
        fixture.datapath.drain_events(Most::ALL, |event| told.push(event)).expect("drain");
        assert_eq!(told, [Event::Claimed(own), Event::StillThere(own)]);
        // What comes from its peer, under the names that it has on the wire, is its peer's.
        fixture.datapath.insert_flows(&[(own, FlowEntry { late: true, ..entry })]).expect("insert");
        let wire = fixture.wire_in(TCP).bytes();
        fixture.ingress(&wire);
        fixture.datapath.drain_events(Most::ALL, |event| panic!("{event:?}")).expect("drain");
    });
}

#[test]
fn whoever_opens_a_connection_under_the_names_of_a_moved_one_is_refused() {
    on_both_families(|mut fixture| {
        let names = fixture.names;
        let own = FlowTuple { transport: Transport::Tcp, local: names.own_local, remote: names.own_remote };
        let mut syn = fixture.own_in(TCP);
        // MSS, SACK permitted, timestamps, nothing, window scale: as Linux sends them.
        syn.tcp_options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7];
        (syn.tcp_flags, syn.acknowledgement) = (0x02, 0);
        for data in [0, 7] {
            syn.payload = (0..data).collect();
            let asked = syn.bytes();
            let mut reset = syn_answer(&syn);
            reset.acknowledgement = syn.sequence + 1 + u32::from(data);
            let mut wanted = reset.bytes();
            // Back to whoever sent it.
            let (to, from) = asked[..12].split_at(6);
            wanted[..12].copy_from_slice(&[from, to].concat());
            let out = fixture.ingress(&asked);
            assert_eq!(out.verdict, REDIRECT);
            assert_eq!(out.packet, wanted);
        }
        fixture.counted("claimed", 2);
        let mut told = Vec::new();
        fixture.datapath.drain_events(Most::ALL, |event| told.push(event)).expect("drain");
        assert_eq!(told, [Event::Claimed(own)], "said once");

        // A word of parting, an answer or a duplicate of long ago is not one.
        for flags in [0x10, 0x11, 0x12] {
            syn.tcp_flags = flags;
            assert_eq!(fixture.ingress(&syn.bytes()).verdict, NEXT, "{flags:#x}");
        }
        syn.tcp_flags = 0x02;
        // While a silent peer is listened for, a stranger's SYN does not show that it is at home.
        fixture.bind(Carrier::Listen, None);
        fixture.datapath.set_busy(true, false, true).expect("busy");
        assert_eq!(fixture.ingress(&syn.bytes()).verdict, REDIRECT);
        fixture.datapath.drain_events(Most::ALL, |event| panic!("{event:?}")).expect("drain");
        fixture.bind(Carrier::Rewrite, None);

        // Where it gives way the newcomer is to come again.
        let (_, entry) =
            fixture.datapath.flows().expect("flows").into_iter().find(|(flow, _)| *flow == own).expect("it");
        fixture.datapath.insert_flows(&[(own, FlowEntry { gives_way: true, ..entry })]).expect("insert");
        assert_eq!(fixture.ingress(&syn.bytes()).verdict, SHOT);
        fixture.datapath.drain_events(Most::ALL, |event| assert_eq!(event, Event::Claimed(own))).expect("drain");
        fixture.datapath.remove_flows(&[own]).expect("remove");
        assert_eq!(fixture.ingress(&syn.bytes()).verdict, NEXT);

        // At home it is the stack's business.
        fixture.insert(false);
        fixture.datapath.set_binding(BINDING, &Binding { local_place: 4, ..fixture.binding() }).expect("bind");
        assert_eq!(fixture.ingress(&syn.bytes()).verdict, NEXT);
    });
}

/// The reset that a SYN is answered with where nobody listens, options and data in place.
fn syn_answer(syn: &Packet) -> Packet {
    let mut reset = Packet::new(TCP, syn.destination, syn.source);
    reset.tcp_options = vec![1; syn.tcp_options.len()];
    (reset.tcp_flags, reset.sequence, reset.window) = (0x14, 0, 0);
    reset.payload.clone_from(&syn.payload);
    reset
}

#[test]
fn a_reset_that_comes_by_another_way_than_the_flow_is_dropped() {
    on_both_families(|fixture| {
        let mut reset = fixture.own_in(TCP);
        reset.tcp_flags = 0x14;
        let reset = reset.bytes();
        // Moved: neither rewritten nor from the tunnel.
        assert_eq!(fixture.ingress(&reset).verdict, SHOT);
        fixture.counted("dropped_reset", 1);
        assert_eq!(fixture.ingress(&fixture.own_in(TCP).bytes()).verdict, NEXT);
        let mut rewritten = fixture.wire_in(TCP);
        rewritten.tcp_flags = 0x14;
        assert_eq!(fixture.ingress(&rewritten.bytes()).verdict, NEXT);
        // Not moved: by another interface than the flow's (test runs are on interface 1), and by its own.
        let home = Binding { local_place: 4, peer_place: 5, arrival: 77, ..fixture.binding() };
        fixture.datapath.set_binding(BINDING, &home).expect("bind");
        assert_eq!(fixture.ingress(&reset).verdict, SHOT);
        fixture.datapath.set_binding(BINDING, &Binding { arrival: 1, ..home }).expect("bind");
        assert_eq!(fixture.ingress(&reset).verdict, NEXT);
        // Somebody else's.
        let mut other = fixture.own_in(TCP);
        other.source.set_port(1);
        other.tcp_flags = 0x14;
        assert_eq!(fixture.ingress(&other.bytes()).verdict, NEXT);
        fixture.counted("dropped_reset", 2);
    });
}

#[test]
fn what_is_heard_natively_on_a_held_flow_is_told_once() {
    on_both_families(|mut fixture| {
        let own = fixture.own_in(TCP).bytes();
        let events = |fixture: &mut Fixture| {
            let mut events = Vec::new();
            fixture.datapath.drain_events(Most::ALL, |event| events.push(event)).expect("drain");
            events
        };
        fixture.datapath.set_busy(true, false, true).expect("settings");
        fixture.bind(Carrier::Hold, None);
        assert_eq!(fixture.ingress(&own).verdict, NEXT);
        assert_eq!(events(&mut fixture), []);
        fixture.bind(Carrier::Listen, None);
        // It holds.
        assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
        fixture.counted("held", 1);
        let mut reset = fixture.own_in(TCP);
        reset.tcp_flags = 0x04;
        assert_eq!(fixture.ingress(&reset.bytes()).verdict, SHOT);
        assert_eq!(events(&mut fixture), []);
        for _ in 0..2 {
            assert_eq!(fixture.ingress(&own), Outcome { verdict: NEXT, packet: own.clone(), mark: 0 });
        }
        let (local, remote) = (fixture.names.own_local, fixture.names.own_remote);
        let flow = FlowTuple { transport: Transport::Tcp, local, remote };
        assert_eq!(events(&mut fixture), [Event::HeardNatively { flow }]);
    });
}

#[test]
fn held_packets_disappear_without_an_error() {
    on_both_families(|fixture| {
        fixture.bind(Carrier::Hold, None);
        // Redirected to no device: freed, and a success to the sender.
        assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
        fixture.counted("held", 1);
        fixture.counted("rewritten_out", 0);
    });
}

#[test]
fn a_single_flow_goes_by_a_binding_of_its_own_and_is_known_by_its_names_still() {
    on_both_families(|mut fixture| {
        // All are at home.
        let home = Binding { local_place: 4, ..fixture.binding() };
        fixture.datapath.set_binding(BINDING, &home).expect("bind");
        fixture.datapath.set_tunnel(2, MARK, 0xff).expect("settings");
        let side = BindingId::side(BINDING.peer(), 1);
        let nowhere = u32::MAX;
        let (carrier, accepted) = (Carrier::Tunnel, Vec::new());
        let binding = Binding { local_place: nowhere, peer_place: nowhere, carrier, accepted, ..fixture.binding() };
        fixture.datapath.set_binding(side, &binding).expect("bind");
        let known = fixture.datapath.flows().expect("flows");
        let of_tcp = |led: BindingId| {
            let known = known.iter().filter(|(flow, _)| flow.transport == Transport::Tcp);
            known.map(|(flow, entry)| (*flow, FlowEntry { binding: led, ..*entry })).collect::<Vec<_>>()
        };
        fixture.datapath.insert_flows(&of_tcp(side)).expect("insert");
        let [tcp, udp] = [TCP, UDP].map(|protocol| fixture.own_out(protocol).bytes());
        assert_eq!(fixture.egress(&tcp), Outcome { verdict: REDIRECT, packet: tcp.clone(), mark: 0 });
        assert_eq!(
            fixture.egress(&udp),
            Outcome { verdict: NEXT, packet: udp.clone(), mark: 0 },
            "the other one stays"
        );
        fixture.counted("tunnelled_out", 1);
        // What the peer has sent before it was told comes rewritten.
        let arrived = fixture.ingress(&fixture.wire_in(TCP).bytes());
        assert_eq!((arrived.verdict, arrived.mark), (NEXT, MARK));
        fixture.counted("rewritten_in", 1);
        // The binding is gone before the flow is led back: it is not moved, rather than lost.
        fixture.datapath.remove_binding(side).expect("remove");
        assert_eq!(fixture.egress(&tcp).verdict, NEXT);
        fixture.datapath.insert_flows(&of_tcp(BINDING)).expect("insert");
        assert_eq!(fixture.egress(&tcp), Outcome { verdict: NEXT, packet: tcp.clone(), mark: 0 });
        fixture.counted("native_out", 3);
        assert_eq!(fixture.ingress(&fixture.wire_in(TCP).bytes()).mark, MARK);
    });
}

#[test]
fn tunnelled_packets_keep_their_own_tuple() {
    on_both_families(|fixture| {
        fixture
            .datapath
            .set_binding(BINDING, &Binding { carrier: Carrier::Tunnel, ..fixture.binding() })
            .expect("bind");
        let packet = fixture.own_out(UDP).bytes();
        // The fixture's TUN device is the loopback that test runs pretend to be on.
        assert_eq!(fixture.egress(&packet), Outcome { verdict: NEXT, packet: packet.clone(), mark: 0 });
        let mut fixture = fixture;
        fixture.datapath.set_tunnel(2, MARK, 0xff).expect("settings");
        assert_eq!(fixture.egress(&packet), Outcome { verdict: REDIRECT, packet: packet.clone(), mark: 0 });
        fixture.counted("tunnelled_out", 2);
        fixture.datapath.set_tunnel(0, MARK, 0xff).expect("settings");
        assert_eq!(fixture.egress(&packet).verdict, REDIRECT);
        fixture.counted("held_no_tunnel", 1);
    });
}

#[test]
fn allowance_is_counted_in_ip_bytes() {
    on_both_families(|fixture| {
        let packet = fixture.own_out(TCP).bytes();
        let length = (packet.len() - ETHERNET) as u64;
        fixture.bind(Carrier::Rewrite, Some(2 * length + 10));
        let left = || fixture.datapath.bindings().expect("bindings")[0].1.allowance;
        for expected in [Some(length + 10), Some(10), Some(10)] {
            fixture.egress(&packet);
            assert_eq!(left(), expected);
        }
        fixture.counted("rewritten_out", 2);
        fixture.counted("held_allowance", 1);
    });
}

#[test]
fn locators_of_another_family_are_not_rewritten_to() {
    on_both_families(|mut fixture| {
        let [v4, v6] = both_families();
        let other = if fixture.names.own_local.is_ipv4() { v6 } else { v4 };
        let (local, peer) = (other.wire_local.ip(), other.wire_remote.ip());
        let binding = Binding { local, peer, accepted: vec![LocatorPair { local, peer }], ..fixture.binding() };
        fixture.datapath.set_binding(BINDING, &binding).expect("bind");
        fixture.datapath.set_tunnel(2, MARK, 0xff).expect("settings");
        let packet = fixture.own_out(TCP).bytes();
        assert_eq!(fixture.egress(&packet), Outcome { verdict: REDIRECT, packet, mark: 0 });
        fixture.counted("tunnelled_out", 1);
        fixture.datapath.set_tunnel(0, MARK, 0xff).expect("settings");
        assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
        fixture.counted("held_family", 1);
        let packet = Packet::new(TCP, other.wire_remote, other.wire_local).bytes();
        assert_eq!(fixture.ingress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
    });
}

#[test]
fn fragments_follow_their_first() {
    on_both_families(|fixture| {
        let wire = fixture.wire_out(UDP).fragments(48);
        let own = fixture.own_out(UDP).fragments(48);
        // Without the first nobody knows.
        assert_eq!(fixture.egress(&own[1]).packet, own[1]);
        for (own, wire) in own.iter().zip(&wire) {
            assert_eq!(fixture.egress(own), Outcome { verdict: REDIRECT, packet: wire.clone(), mark: 0 });
        }
        let wire = fixture.wire_in(UDP).fragments(48);
        let own = fixture.own_in(UDP).fragments(48);
        assert_eq!(fixture.ingress(&wire[1]).packet, wire[1]);
        fixture.counted("fragment_unmatched", 1);
        for (wire, own) in wire.iter().zip(&own) {
            assert_eq!(fixture.ingress(wire), Outcome { verdict: NEXT, packet: own.clone(), mark: MARK });
        }
    });
}

/// Kinds, codes and the word after the checksum of the errors that matter for a family.
fn errors(address: IpAddr) -> Vec<(u8, u8, [u8; 4])> {
    if address.is_ipv4() {
        vec![(3, 4, [0, 0, 0x05, 0x14]), (3, 1, [0; 4]), (11, 0, [0; 4]), (12, 0, [9, 0, 0, 0])]
    } else {
        vec![(2, 0, [0, 0, 0x05, 0x14]), (1, 0, [0; 4]), (3, 0, [0; 4]), (4, 1, [0, 0, 0, 40])]
    }
}

#[test]
fn icmp_errors_come_back_to_the_socket() {
    on_both_families(|fixture| {
        let names = fixture.names;
        let router: IpAddr =
            if names.own_local.is_ipv4() { "203.0.113.1" } else { "2001:db8:aaaa::1" }.parse().expect("address");
        let header = if names.own_local.is_ipv4() { 20 } else { 40 };
        for protocol in [TCP, UDP] {
            // RFC 792 asks for 8 bytes of the quoted segment, RFC 1812 for more.
            for quoted in [8, 16, 18, usize::MAX] {
                let cut = |packet: &Packet| {
                    let mut bytes = packet.ip();
                    bytes.truncate(quoted.saturating_add(header).min(bytes.len()));
                    bytes
                };
                let wire = cut(&fixture.wire_out(protocol));
                let own = cut(&fixture.own_out(protocol));
                for (kind, code, rest) in errors(router) {
                    for (from, seen_from) in [(router, router), (names.wire_remote.ip(), names.own_remote.ip())] {
                        let packet = icmp(from, names.wire_local.ip(), kind, code, rest, &wire);
                        let expected = icmp(seen_from, names.own_local.ip(), kind, code, rest, &own);
                        let outcome = fixture.ingress(&packet);
                        assert_eq!(outcome, Outcome { verdict: NEXT, packet: expected, mark: MARK });
                    }
                }
            }
        }
        // About somebody else's packet, and one that is no error.
        let mut other = fixture.wire_out(TCP);
        other.source.set_port(1);
        fixture.assert_untouched(&icmp(router, names.wire_local.ip(), 3, 1, [0; 4], &other.ip()));
        let echo = if names.own_local.is_ipv4() { 8 } else { 128 };
        fixture.assert_untouched(&icmp(router, names.wire_local.ip(), echo, 0, [0; 4], &fixture.wire_out(TCP).ip()));
    });
}

#[test]
fn icmp_errors_of_this_host_reach_the_peer() {
    on_both_families(|fixture| {
        let names = fixture.names;
        for protocol in [TCP, UDP] {
            for (kind, code, rest) in errors(names.own_local.ip()) {
                let own = fixture.own_in(protocol).ip();
                let wire = fixture.wire_in(protocol).ip();
                let packet = icmp(names.own_local.ip(), names.own_remote.ip(), kind, code, rest, &own);
                let expected = icmp(names.wire_local.ip(), names.wire_remote.ip(), kind, code, rest, &wire);
                assert_eq!(fixture.egress(&packet), Outcome { verdict: REDIRECT, packet: expected, mark: 0 });
            }
        }
        fixture.bind(Carrier::Hold, None);
        let (kind, code, rest) = errors(names.own_local.ip())[0];
        let own = fixture.own_in(TCP).ip();
        let packet = icmp(names.own_local.ip(), names.own_remote.ip(), kind, code, rest, &own);
        assert_eq!(fixture.egress(&packet).verdict, REDIRECT);
        fixture.counted("dropped_icmp_out", 1);
    });
}

const INDEX: u32 = 0xfeed_0001;
const NONCE: u64 = 0x0123_4567_89ab_cdef;

fn carrying_introduction(packet: Packet) -> Packet {
    let body = [INDEX.to_be_bytes().to_vec(), NONCE.to_be_bytes().to_vec()].concat();
    if packet.protocol == TCP {
        let option = [vec![253, 16, 0x57, 0x42], body].concat();
        Packet { tcp_options: option, tcp_flags: 0x10, payload: Vec::new(), ..packet }
    } else {
        Packet { payload: [b"\xffWBintro".to_vec(), body].concat(), ..packet }
    }
}

#[test]
fn introductions_for_sessions_of_the_process_before_are_consumed() {
    on_both_families(|fixture| {
        fixture.datapath.listen_introductions(INDEX).expect("listen");
        let next = Datapath::open(&fixture.bpffs.pins("packets")).expect("open again");
        assert_eq!(next.introduction_indices().expect("indices"), [INDEX]);
        let packet = carrying_introduction(fixture.own_in(UDP)).bytes();
        let verdict = || run(next.program("introductions_l2").expect("program"), &packet).verdict;
        assert_eq!(verdict(), SHOT);
        next.ignore_introductions(INDEX).expect("ignore");
        assert_eq!(verdict(), NEXT);
    });
}

#[test]
fn introductions_are_consumed_and_reported() {
    on_both_families(|mut fixture| {
        for protocol in [TCP, UDP] {
            for tuple in [fixture.own_in(protocol), fixture.wire_in(protocol)] {
                let packet = carrying_introduction(tuple).bytes();
                let introductions_only =
                    |fixture: &Fixture| run(fixture.datapath.program("introductions_l2").expect("program"), &packet);
                // Somebody else's.
                let untouched = Outcome { verdict: NEXT, packet: packet.clone(), mark: 0 };
                assert_eq!(introductions_only(&fixture), untouched);
                fixture.datapath.listen_introductions(INDEX).expect("listen");
                assert_eq!(introductions_only(&fixture).verdict, SHOT);
                assert_eq!(fixture.ingress(&packet).verdict, SHOT);
                let mut seen = Vec::new();
                fixture.datapath.drain_events(Most::ALL, |event| seen.push(event)).expect("drain");
                assert_eq!(seen.len(), 2);
                for event in seen {
                    let Event::Introduction(introduction) = event else { panic!("{event:?}") };
                    assert_eq!((introduction.index, introduction.nonce), (INDEX, NONCE));
                    if protocol == TCP {
                        assert_eq!(introduction.sequence, 0x0102_0304);
                        assert_eq!(introduction.acknowledgement, 0x0506_0708);
                    }
                    assert_eq!(introduction.seen.transport.protocol(), protocol);
                    let tuple = Packet::new(protocol, introduction.seen.remote, introduction.seen.local);
                    // What comes rewritten is reported as of its flow (P-87).
                    let own = carrying_introduction(fixture.own_in(protocol)).bytes();
                    assert_eq!(carrying_introduction(tuple).bytes(), own);
                }
                fixture.datapath.ignore_introductions(INDEX).expect("ignore");
                assert_eq!(introductions_only(&fixture), untouched);
            }
        }
    });
}

/// The packet for another index.
fn asking_for(index: u32, mut packet: Vec<u8>) -> Vec<u8> {
    let at = packet.windows(4).rposition(|bytes| bytes == INDEX.to_be_bytes()).expect("an introduction");
    packet[at..at + 4].copy_from_slice(&index.to_be_bytes());
    packet
}

#[test]
fn an_index_brings_no_more_than_its_share() {
    // P-142: of each index in a quarter of a second, and of each while more waits than is read.
    const SHARE: usize = 1024;
    const FEW: usize = 16;
    const PERIOD: Duration = Duration::from_millis(250);
    on_both_families(|mut fixture| {
        let packet = carrying_introduction(fixture.own_in(TCP)).bytes();
        let flood = |fixture: &Fixture, index: u32, times: usize| {
            let packet = asking_for(index, packet.clone());
            let program = fixture.datapath.program("introductions_l2").expect("program");
            for _ in 0..times {
                // Whatever is not reported goes no further either.
                assert_eq!(run(program, &packet).verdict, SHOT);
            }
        };
        let brought = |fixture: &mut Fixture, most| {
            let mut brought = BTreeMap::<u32, usize>::new();
            let more = fixture.datapath.drain_events(most, |event| {
                let Event::Introduction(introduction) = event else { panic!("{event:?}") };
                *brought.entry(introduction.index).or_default() += 1;
            });
            (brought, more.expect("drain"))
        };
        let others = INDEX + 1..INDEX + 7;
        for index in [INDEX].into_iter().chain(others.clone()) {
            fixture.datapath.listen_introductions(index).expect("listen");
        }
        let began = Instant::now();
        flood(&fixture, INDEX, 4 * SHARE);
        flood(&fixture, INDEX + 1, 1);
        let periods = 1 + began.elapsed().div_duration_f32(PERIOD) as usize;
        let (seen, more) = brought(&mut fixture, Most { sockets: 7, arrivals: 100 });
        assert_eq!((seen[&INDEX], more), (100, true), "no more than was asked for");
        let (seen, more) = brought(&mut fixture, Most::ALL);
        assert!(!more);
        assert!((SHARE..=SHARE * periods).contains(&(seen[&INDEX] + 100)), "{seen:?} in {periods} periods");
        assert_eq!(seen[&(INDEX + 1)], 1);

        // Nobody reads, and many have a share each: who says little is still heard.
        for index in others.clone() {
            flood(&fixture, index, SHARE);
        }
        let (waiting, _) = brought(&mut fixture, Most { sockets: 0, arrivals: 0 });
        assert!(waiting.is_empty());
        fixture.datapath.ignore_introductions(INDEX).expect("ignore");
        fixture.datapath.listen_introductions(INDEX).expect("listen");
        let began = Instant::now();
        flood(&fixture, INDEX, SHARE);
        let periods = 1 + began.elapsed().div_duration_f32(PERIOD) as usize;
        let (seen, _) = brought(&mut fixture, Most::ALL);
        assert!((FEW..=FEW * periods).contains(&seen[&INDEX]), "{seen:?} in {periods} periods");
        let counters = fixture.datapath.counters().expect("counters");
        assert!(counters.contains(&("introduction_lost", 0)), "{counters:?}");
    });
}

#[test]
fn what_only_looks_like_an_introduction_is_passed() {
    on_both_families(|fixture| {
        fixture.datapath.listen_introductions(INDEX).expect("listen");
        let consumed = |packet: &Packet| {
            run(fixture.datapath.program("introductions_l2").expect("program"), &packet.bytes()).verdict == SHOT
        };
        let good = carrying_introduction(fixture.own_in(TCP));
        assert!(consumed(&good));
        let padded = [vec![1, 1, 1, 1], good.tcp_options.clone()].concat();
        assert!(consumed(&Packet { tcp_options: padded, ..good.clone() }));
        let stamped = [vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], good.tcp_options.clone()].concat();
        assert!(consumed(&Packet { tcp_options: stamped, ..good.clone() }));
        assert!(!consumed(&Packet { payload: vec![0], ..good.clone() }));
        for flags in [0x11, 0x12, 0x14, 0x00] {
            assert!(!consumed(&Packet { tcp_flags: flags, ..good.clone() }));
        }
        for at in 0..4 {
            let mut options = good.tcp_options.clone();
            options[at] ^= 1;
            assert!(!consumed(&Packet { tcp_options: options, ..good.clone() }));
        }
        let ended = [vec![0, 0, 0, 0], good.tcp_options.clone()].concat();
        assert!(!consumed(&Packet { tcp_options: ended, ..good.clone() }));
        let good = carrying_introduction(fixture.own_in(UDP));
        let longer = [good.payload.clone(), vec![0]].concat();
        assert!(!consumed(&Packet { payload: longer, ..good.clone() }));
        assert!(!consumed(&Packet { payload: good.payload[..19].to_vec(), ..good }));
    });
}

#[test]
fn maps_hold_what_was_put_in() {
    on_both_families(|fixture| {
        let names = fixture.names;
        let flows: Vec<_> = (1..=20_000_u16)
            .map(|port| {
                let local = SocketAddr::new(names.own_local.ip(), port);
                let entry = FlowEntry {
                    binding: BINDING,
                    home_local_place: 4,
                    home_peer_place: 5,
                    wire_local_port: port,
                    wire_remote_port: 9,
                    held: false,
                    real_view: false,
                    gives_way: false,
                    tunnelled: false,
                    hidden: false,
                    beyond: false,
                    unconnected: false,
                    late: false,
                    delivery: Delivery::Stack,
                };
                (FlowTuple { transport: Transport::Tcp, local, remote: names.own_remote }, entry)
            })
            .collect();
        fixture.datapath.insert_flows(&flows).expect("insert");
        let mut read = fixture.datapath.flows().expect("flows");
        read.retain(|(tuple, _)| tuple.local.port() <= 20_000);
        read.sort_by_key(|(tuple, _)| tuple.local.port());
        assert_eq!(read, flows);
        assert_eq!(fixture.datapath.bindings().expect("bindings"), [(BINDING, fixture.binding())]);

        // A flow that changes its wire port leaves nothing at the old one.
        let (tuple, entry) = flows[0];
        let packet = |port| {
            let local = SocketAddr::new(names.wire_local.ip(), port);
            Packet::new(TCP, SocketAddr::new(names.wire_remote.ip(), 9), local).bytes()
        };
        assert_eq!(fixture.ingress(&packet(1)).mark, MARK);
        fixture.datapath.insert_flows(&[(tuple, FlowEntry { wire_local_port: 60_000, ..entry })]).expect("insert");
        assert_eq!(fixture.ingress(&packet(1)).mark, 0);
        assert_eq!(fixture.ingress(&packet(60_000)).mark, MARK);

        let tuples: Vec<_> = flows.iter().map(|(tuple, _)| *tuple).collect();
        fixture.datapath.remove_flows(&tuples).expect("remove");
        fixture.datapath.remove_flows(&tuples).expect("remove again");
        assert_eq!(fixture.datapath.flows().expect("flows").len(), 2);
        assert_eq!(fixture.ingress(&packet(60_000)).mark, 0);
        assert_eq!(fixture.ingress(&packet(2)).mark, 0);
    });
}

#[test]
fn a_locator_pair_belongs_to_the_last_that_claimed_it() {
    on_both_families(|fixture| {
        let packet = fixture.wire_in(TCP).bytes();
        let other = BindingId::first(PeerId(4));
        fixture.datapath.set_binding(other, &fixture.binding()).expect("bind");
        assert_eq!(fixture.ingress(&packet).mark, 0);
        fixture.bind(Carrier::Rewrite, None);
        fixture.datapath.remove_binding(other).expect("remove");
        assert_eq!(fixture.ingress(&packet).mark, MARK);
        fixture.datapath.set_binding(BINDING, &Binding { accepted: Vec::new(), ..fixture.binding() }).expect("bind");
        assert_eq!(fixture.ingress(&packet).mark, 0);
    });
}
