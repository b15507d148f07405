//! Flows that were answered on in their peer's name: what was put into the peer's stream is made up for in every
//! number.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use support::packet::{Packet, TCP, UDP};
use support::pair::{Pair, entry, find, flow, wait};
use support::{Bpffs, NEXT, Namespace, Outcome, REDIRECT, SHOT, is_root, run, tun};
use whimbrel_datapath::{
    Binding, Carrier, Datapath, Delivery, Event, FlowEntry, HelpedFlow, HelpedPhase, LocatorPair, Most, Role, TUNNELLED,
};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(3));
const OVER: HelpedFlow = HelpedFlow { phase: HelpedPhase::Over, offset: 0, acknowledged: 0, delivered: 0 };

struct Fixture {
    datapath: Datapath,
    own: [SocketAddr; 2],
    wire: [SocketAddr; 2],
    _bpffs: Bpffs,
    _namespace: Namespace,
}

impl Fixture {
    fn new([own, wire]: [[&str; 2]; 2]) -> Self {
        let [own, wire] = [own, wire].map(|names| names.map(|name| name.parse().expect("an endpoint")));
        let bpffs = Bpffs::new();
        let namespace = Namespace::new();
        namespace.enter();
        let mut datapath = Datapath::open(&bpffs.pins("helped")).expect("open");
        datapath.set_tunnel(1, 0x57, 0xff).expect("settings");
        let this = Self { datapath, own, wire, _bpffs: bpffs, _namespace: namespace };
        let entry = FlowEntry {
            binding: BINDING,
            home_local_place: 4,
            home_peer_place: 5,
            wire_local_port: wire[0].port(),
            wire_remote_port: wire[1].port(),
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
        this.datapath.insert_flows(&[(this.flow(), entry)]).expect("insert");
        this.bind(Carrier::Rewrite);
        this
    }

    fn flow(&self) -> FlowTuple {
        FlowTuple { transport: Transport::Tcp, local: self.own[0], remote: self.own[1] }
    }

    fn bind(&self, carrier: Carrier) {
        let [local, peer] = self.wire.map(|end| end.ip());
        let binding = Binding {
            local_place: 6,
            peer_place: 5,
            carrier,
            local,
            peer,
            interface: 1,
            arrival: 0,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept: false,
            accepted: vec![LocatorPair { local, peer }],
        };
        self.datapath.set_binding(BINDING, &binding).expect("bind");
    }

    fn help(&self, helped: HelpedFlow) {
        self.datapath.set_helped(&self.flow(), &helped).expect("set");
    }

    fn egress(&self, packet: &Packet) -> Outcome {
        run(self.datapath.program("egress_l2").expect("program"), &packet.bytes())
    }

    fn ingress(&self, packet: &Packet) -> Outcome {
        run(self.datapath.program("ingress_l2").expect("program"), &packet.bytes())
    }

    fn reports(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.datapath.drain_events(Most::ALL, |event| events.push(event)).expect("drain");
        events
    }

    #[track_caller]
    fn counted(&self, name: &str, times: u64) {
        let counters = self.datapath.counters().expect("counters");
        assert_eq!(counters.iter().find(|(known, _)| *known == name), Some(&(name, times)), "{counters:?}");
    }
}

/// A segment with numbers of its own, between these ends.
fn segment([from, to]: [SocketAddr; 2], sequence: u32, acknowledgement: u32, options: &[u8]) -> Packet {
    Packet { sequence, acknowledgement, tcp_options: options.to_vec(), ..Packet::new(TCP, from, to) }
}

fn reversed([from, to]: [SocketAddr; 2]) -> [SocketAddr; 2] {
    [to, from]
}

fn blocks(edges: &[[u32; 2]]) -> Vec<u8> {
    let mut option = vec![1, 1, 5, (2 + 8 * edges.len()) as u8];
    option.extend(edges.as_flattened().iter().flat_map(|edge| edge.to_be_bytes()));
    option
}

fn with_timestamps(rest: &[u8]) -> Vec<u8> {
    [&[1, 1, 8, 10, 0xaa, 0xbb, 0xcc, 0xdd, 0x01, 0x02, 0x03, 0x04], rest].concat()
}

fn on_both_families(test: impl Fn(Fixture) + Copy + Send + 'static) {
    if !is_root() {
        return;
    }
    let families = [
        [["10.1.0.2:40000", "192.0.2.9:443"], ["172.16.5.2:40001", "198.51.100.77:444"]],
        [["[2001:db8:1::2]:40000", "[2001:db8:9::9]:443"], ["[2001:db8:5::2]:40001", "[2001:db8:77::1:77]:444"]],
    ];
    for names in families {
        // The fixture changes the thread's namespaces.
        std::thread::spawn(move || test(Fixture::new(names))).join().expect("the test holds");
    }
}

/// Numbers that the offset takes across 2^32 among them.
const OFFSETS: [u32; 4] = [1, 12, 70_000, u32::MAX - 4];
const NUMBERS: [u32; 5] = [0, 5, 0x7fff_ffff, 0xffff_fff8, u32::MAX];

#[test]
fn numbers_are_translated_whatever_carries_the_flow() {
    on_both_families(|fixture| {
        for (number, offset) in NUMBERS.into_iter().flat_map(|number| OFFSETS.map(|offset| (number, offset))) {
            fixture.help(HelpedFlow { offset, ..OVER });
            let lowered = number.wrapping_sub(offset);
            let raised = number.wrapping_add(offset);
            for (carrier, out, verdict) in [
                (Carrier::Rewrite, fixture.wire, REDIRECT),
                // The fixture's TUN device is the one that test runs pretend to be on.
                (Carrier::Tunnel, fixture.own, NEXT),
                (Carrier::Native, fixture.own, NEXT),
            ] {
                fixture.bind(carrier);
                let outcome = fixture.egress(&segment(fixture.own, 77, number, &[]));
                assert_eq!((outcome.verdict, outcome.packet), (verdict, segment(out, 77, lowered, &[]).bytes()));
            }
            fixture.bind(Carrier::Rewrite);
            for names in [fixture.wire, fixture.own] {
                let outcome = fixture.ingress(&segment(reversed(names), number, 77, &[]));
                let whole = segment(reversed(fixture.own), raised, 77, &[]).bytes();
                assert_eq!((outcome.verdict, outcome.packet), (NEXT, whole));
            }
        }
        // A flow that is known to nobody else any more goes on all the same.
        fixture.help(HelpedFlow { offset: 12, ..OVER });
        fixture.datapath.remove_flows(&[fixture.flow()]).expect("remove");
        let outcome = fixture.egress(&segment(fixture.own, 77, 100, &[]));
        assert_eq!((outcome.verdict, outcome.packet), (NEXT, segment(fixture.own, 77, 88, &[]).bytes()));
        let outcome = fixture.ingress(&segment(reversed(fixture.own), 100, 77, &[]));
        assert_eq!((outcome.verdict, outcome.packet), (NEXT, segment(reversed(fixture.own), 112, 77, &[]).bytes()));
        fixture.datapath.remove_helped(&fixture.flow()).expect("remove");
        let packet = segment(fixture.own, 77, 100, &[]);
        assert_eq!(fixture.egress(&packet).packet, packet.bytes());
    });
}

#[test]
fn what_is_acknowledged_out_of_order_is_translated_as_well() {
    on_both_families(|fixture| {
        let offset = 12;
        fixture.help(HelpedFlow { offset, ..OVER });
        let edges = [[10, 20], [5, 0xffff_fff0], [100, 200], [0, 12]];
        let lowered = edges.map(|block| block.map(|edge: u32| edge.wrapping_sub(offset)));
        for count in 0..=4 {
            let (before, after) = (blocks(&edges[..count]), blocks(&lowered[..count]));
            let outcome = fixture.egress(&segment(fixture.own, 77, 100, &before));
            assert_eq!(outcome.packet, segment(fixture.wire, 77, 88, &after).bytes(), "{count} blocks");
            if count < 4 {
                let outcome = fixture.egress(&segment(fixture.own, 77, 100, &with_timestamps(&before)));
                assert_eq!(outcome.packet, segment(fixture.wire, 77, 88, &with_timestamps(&after)).bytes());
            }
        }
        // Not what merely looks like it, and nothing that is cut off is read beyond its end.
        for options in [vec![0, 5, 10, 0, 1, 1, 1, 1, 2, 2, 2, 2], vec![8, 10, 5, 10, 0, 0, 0, 0, 0, 0, 1, 1]] {
            let outcome = fixture.egress(&segment(fixture.own, 77, 100, &options));
            assert_eq!(outcome.packet, segment(fixture.wire, 77, 88, &options).bytes());
        }
        let cut = fixture.egress(&segment(fixture.own, 77, 100, &[1, 1, 5, 34, 0, 0, 0, 9]));
        assert_eq!(cut.verdict, SHOT);
        fixture.counted("dropped_renumber", 1);
        // A reset may have no acknowledgement.
        let reset = |acknowledgement| Packet { tcp_flags: 4, ..segment(fixture.own, 77, acknowledgement, &[]) };
        let bare = Packet { source: fixture.wire[0], destination: fixture.wire[1], ..reset(0) };
        assert_eq!(fixture.egress(&reset(0)).packet, bare.bytes());
    });
}

#[test]
fn the_programs_are_busy_as_long_as_a_flow_is_helped() {
    on_both_families(|fixture| {
        let raised = || {
            let outcome = fixture.ingress(&segment(reversed(fixture.own), 100, 77, &[]));
            outcome.packet == segment(reversed(fixture.own), 112, 77, &[]).bytes()
        };
        fixture.datapath.set_busy(false, false, false).expect("set");
        fixture.help(HelpedFlow { offset: 12, ..OVER });
        assert!(raised(), "nobody said that they are busy");
        fixture.datapath.set_busy(false, false, false).expect("set");
        assert!(raised(), "somebody said that they are idle");
        fixture.datapath.remove_helped(&fixture.flow()).expect("remove");
        fixture.datapath.set_busy(false, false, false).expect("set");
        assert!(!raised());
    });
}

#[test]
fn nothing_of_the_peer_gets_in_while_it_is_helped_out_for() {
    on_both_families(|mut fixture| {
        fixture.bind(Carrier::Listen);
        let (wire, own) = (reversed(fixture.wire), reversed(fixture.own));
        for phase in [HelpedPhase::Kept, HelpedPhase::Held] {
            fixture.help(HelpedFlow { phase, ..OVER });
            for names in [wire, own] {
                assert_eq!(fixture.ingress(&segment(names, 1, 2, &[])).verdict, SHOT);
            }
        }
        fixture.counted("held_in", 4);
        // That it is there is told all the same (P-39).
        assert_eq!(fixture.reports(), [Event::HeardNatively { flow: fixture.flow() }]);
        // What has nothing to do with it passes.
        let other = Packet::new(UDP, own[0], own[1]);
        assert_eq!(fixture.ingress(&other).verdict, NEXT);
    });
}

#[test]
fn what_comes_for_a_socket_that_rests_goes_to_the_daemon() {
    on_both_families(|fixture| {
        let (wire, own) = (reversed(fixture.wire), reversed(fixture.own));
        let rests = HelpedFlow { phase: HelpedPhase::Rests, ..OVER };
        let datagrams = FlowTuple { transport: Transport::Udp, ..fixture.flow() };
        for (flow, protocol) in [(fixture.flow(), TCP), (datagrams, UDP)] {
            fixture.datapath.set_helped(&flow, &rests).expect("set");
            let came = Packet::new(protocol, own[0], own[1]);
            let outcome = fixture.ingress(&came);
            assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, came.bytes()), "as it came");
            for piece in came.fragments(48) {
                let outcome = run(fixture.datapath.program("ingress_l2").expect("program"), &piece);
                assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, piece));
            }
            // Others' pass.
            let other = Packet::new(protocol, own[0], SocketAddr::new(own[1].ip(), 9));
            assert_eq!(fixture.ingress(&other).verdict, NEXT);
            fixture.datapath.remove_helped(&flow).expect("remove");
            assert_eq!(fixture.ingress(&came).verdict, NEXT);
        }
        // Under other names, which are put back first.
        fixture.help(rests);
        let outcome = fixture.ingress(&segment(wire, 1, 2, &[]));
        assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, segment(own, 1, 2, &[]).bytes()));
        // What its stack would say about a segment of a socket that has just gone, nobody is to hear.
        fixture.datapath.remove_flows(&[fixture.flow()]).expect("remove");
        let between = segment(wire, 1, 2, &[]);
        assert_eq!(fixture.ingress(&between).verdict, NEXT, "no flow of these names");
        let reset = Packet { tcp_flags: 0x04, ..Packet::new(TCP, fixture.wire[0], fixture.wire[1]) };
        assert_eq!(fixture.egress(&reset).verdict, SHOT);
        let now = FlowTuple { transport: Transport::Tcp, local: fixture.wire[0], remote: fixture.wire[1] };
        fixture.datapath.set_helped(&now, &rests).expect("set");
        assert_eq!(fixture.ingress(&between).verdict, REDIRECT);
    });
}

#[test]
fn a_flow_goes_by_the_tunnel_until_its_new_end_is_known_there() {
    on_both_families(|fixture| {
        let sent = segment(fixture.own, 1, 2, &[]);
        let entry = fixture.datapath.flows().expect("flows")[0].1;
        fixture.datapath.insert_flows(&[(fixture.flow(), FlowEntry { tunnelled: true, ..entry })]).expect("insert");
        for carrier in [Carrier::Rewrite, Carrier::Follow, Carrier::Tunnel] {
            fixture.bind(carrier);
            let outcome = fixture.egress(&sent);
            assert_eq!(outcome.packet, sent.bytes(), "under its own names");
        }
        fixture.counted("tunnelled_out", 3);
        // Anybody can send a packet of the right names: it does not lead the flow to an end that may not know it yet.
        fixture.bind(Carrier::Rewrite);
        fixture.ingress(&segment([fixture.wire[1], fixture.wire[0]], 2, 1, &[]));
        assert_eq!(fixture.egress(&sent).packet, sent.bytes(), "led out of the tunnel by anybody");
        // It ends by itself, though no daemon be there any more.
        let begun = std::time::Instant::now();
        let rewritten = segment(fixture.wire, 1, 2, &[]).bytes();
        while fixture.egress(&sent).packet != rewritten {
            assert!(begun.elapsed() < 20 * TUNNELLED, "it stays in the tunnel");
        }
        fixture.datapath.insert_flows(&[(fixture.flow(), FlowEntry { tunnelled: true, ..entry })]).expect("insert");
        assert_eq!(fixture.egress(&sent).packet, sent.bytes());
        fixture.datapath.insert_flows(&[(fixture.flow(), entry)]).expect("insert");
        fixture.bind(Carrier::Rewrite);
        assert_eq!(fixture.egress(&sent).packet, segment(fixture.wire, 1, 2, &[]).bytes());
    });
}

#[test]
fn the_peer_is_listened_to_while_it_gets_what_was_kept() {
    if !is_root() {
        return;
    }
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        thread::spawn(move || is_listened_to(to)).join().expect("the test holds");
    }
}

fn is_listened_to(to: &str) {
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.set_tunnel(1, 0x57, 0xff).expect("settings");
    let (near, _far) = pair.connect(to);
    let own = flow(&near);
    let ends = [own.remote, own.local];
    // As the peer counts, which knows nothing of what was put in.
    let next = find(&datapath, &near).rcv_nxt.wrapping_sub(12);
    let helped = HelpedFlow { phase: HelpedPhase::Delivered, offset: 12, acknowledged: 3, delivered: 0xffff_fff0 };
    datapath.set_helped(&own, &helped).expect("set");
    let come = |datapath: &Datapath, sequence: u32, acknowledgement| {
        let program = datapath.program("ingress_l2").expect("program");
        run(program, &segment(ends, sequence, acknowledgement, &[]).bytes()).packet
    };
    let delivered = |datapath: &Datapath| datapath.helped().expect("read")[0].1.delivered;
    let reports = |datapath: &mut Datapath| {
        let mut events = Vec::new();
        datapath.drain_events(Most::ALL, |event| events.push(event)).expect("drain");
        events.retain(|event| matches!(event, Event::Acknowledged { .. }));
        events
    };
    // To the socket everything was acknowledged, so it hears of a window that is closed.
    let closed = |sequence: u32| Packet { window: 0, ..segment(ends, sequence.wrapping_add(12), 3, &[]) }.bytes();
    let whole = |acknowledgement| segment(ends, next.wrapping_add(12), acknowledgement, &[]).bytes();

    // Who only knows the names of the connection is not believed, whatever it acknowledges.
    for off in [1 << 21, 1 << 30, 1 << 31, 0xffe0_0000_u32] {
        let sequence = next.wrapping_add(off);
        assert_eq!(come(&datapath, sequence, 0xffff_fff8), closed(sequence));
        come(&datapath, sequence, 3);
        come(&datapath, sequence, 0x7000_0000);
    }
    assert_eq!((delivered(&datapath), reports(&mut datapath)), (0xffff_fff0, Vec::new()));

    assert_eq!(come(&datapath, next, 0xffff_fff8), closed(next));
    assert_eq!(come(&datapath, next, 0xffff_fff4), closed(next));
    assert_eq!(delivered(&datapath), 0xffff_fff8);
    // What was sent before, and what is ahead.
    let around = [next.wrapping_sub(1000), next.wrapping_add(100_000)];
    for sequence in around {
        assert_eq!(come(&datapath, sequence, 0xffff_fff8), closed(sequence));
    }
    assert_eq!(come(&datapath, next, 3), whole(3));
    assert_eq!(delivered(&datapath), 3);
    // More than was kept it may have had before; that is for the daemon and the socket to judge.
    assert_eq!(come(&datapath, next, 40), whole(40));
    assert_eq!(come(&datapath, next, 0x7000_0000), whole(0x7000_0000));
    assert_eq!(delivered(&datapath), 3);
    let told = [0xffff_fff8, 0xffff_fff4, 0xffff_fff8, 0xffff_fff8, 3, 40, 0x7000_0000];
    assert_eq!(reports(&mut datapath), told.map(|next| Event::Acknowledged { flow: own, next, window: 0x2000 }));
}

/// Bytes that a stream is tried with: enough for segments of all sizes, and losses.
const BLOCK: usize = 4 << 20;

fn pattern(seed: u32) -> Vec<u8> {
    (0..BLOCK as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Sends a block each way at the same time, and looks whether it comes out whole.
fn exchange(one: &TcpStream, other: &TcpStream) {
    thread::scope(|scope| {
        for (stream, seed) in [(one, 1), (other, 2)] {
            let mut stream = stream.try_clone().expect("dup");
            scope.spawn(move || stream.write_all(&pattern(seed)).expect("write"));
        }
        for (stream, seed) in [(one, 2), (other, 1)] {
            let mut stream = stream.try_clone().expect("dup");
            scope.spawn(move || {
                let mut received = vec![0; BLOCK];
                stream.read_exact(&mut received).expect("read");
                assert!(received == pattern(seed), "the block came changed");
            });
        }
    });
}

/// With super-segments, partial checksums, losses and selective acknowledgements, at home and over IPv4 and IPv6.
#[test]
fn a_stream_goes_on_behind_what_was_put_in() {
    if !is_root() {
        return;
    }
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        thread::spawn(move || goes_on(to)).join().expect("the test holds");
    }
}

fn goes_on(to: &str) {
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let mut device = tun("tun");
    pair.near.run("ip link set tun up");
    // SAFETY: terminated strings.
    let [wire, tunnel] = [c"v", c"tun"].map(|name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    datapath.set_tunnel(tunnel, 0x57, 0xff).expect("settings");
    datapath.attach(wire, Role::Wire).expect("attach");
    datapath.attach(tunnel, Role::Tunnel).expect("attach");
    let (mut near, mut far) = pair.connect(to);
    far.write_all(b"before").expect("write");
    near.read_exact(&mut [0; 6]).expect("read");
    datapath.insert_flows(&[entry(&near, BINDING, false)]).expect("insert");

    // The peer is away, and what the socket sends goes to the TUN device.
    pair.cut();
    let own = flow(&near);
    let helped = HelpedFlow { phase: HelpedPhase::Kept, ..OVER };
    datapath.set_helped(&own, &helped).expect("set");
    near.write_all(b"PING").expect("write");
    let mut kept = [0; 2000];
    let length = loop {
        let length = device.read(&mut kept).expect("read");
        if kept[..length].ends_with(b"PING") {
            break length;
        }
    };
    assert!(length < 120, "{length} bytes");
    assert!(datapath.counters().expect("counters").contains(&("helped", 1)));
    // Somebody answers, as nobody else may now, and takes what came.
    let socket = find(&datapath, &near);
    let held = HelpedFlow { phase: HelpedPhase::Over, ..OVER };
    datapath.set_helped(&own, &held).expect("set");
    let answer = Packet {
        sequence: socket.rcv_nxt,
        acknowledgement: socket.snd_una.wrapping_add(4),
        window: 500,
        payload: b"PONG!".to_vec(),
        ..Packet::new(TCP, own.remote, own.local)
    };
    device.write_all(&answer.ip()).expect("write");
    let mut heard = [0; 5];
    near.read_exact(&mut heard).expect("read");
    assert_eq!(&heard, b"PONG!");
    let answered = find(&datapath, &near);
    assert_eq!((answered.snd_una, answered.rcv_nxt), (socket.snd_una + 4, socket.rcv_nxt + 5));

    // The peer is back. It gets what was kept, from the daemon; then everything else.
    datapath.set_helped(&own, &HelpedFlow { offset: 5, ..OVER }).expect("set");
    pair.mend();
    let missing = Packet {
        sequence: socket.snd_una,
        acknowledgement: answered.rcv_nxt,
        payload: b"PING".to_vec(),
        ..Packet::new(TCP, own.local, own.remote)
    };
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], if own.local.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] }];
    send_frame(wire, &[&frame.concat()[..], &missing.ip()].concat());
    let mut heard = [0; 4];
    far.read_exact(&mut heard).expect("read");
    assert_eq!(&heard, b"PING");
    exchange(&near, &far);

    for namespace in [&pair.near, &pair.far] {
        namespace.run("nft add table inet loss");
        namespace.run("nft add chain inet loss input { type filter hook input priority 0 ; }");
        namespace.run("nft add rule inet loss input meta l4proto tcp numgen random mod 50 0 drop");
    }
    exchange(&near, &far);
    for namespace in [&pair.near, &pair.far] {
        namespace.run("nft delete table inet loss");
    }
    assert!(datapath.counters().expect("counters").contains(&("dropped_renumber", 0)));
    // Both ends close as ever.
    drop(near);
    assert_eq!(far.read(&mut [0; 1]).expect("the end"), 0);
    drop(far);
    wait(|| support::pair::look(&datapath, &own).is_none());
}

/// Sends a frame by a device, as nobody's socket.
fn send_frame(interface: u32, frame: &[u8]) {
    // SAFETY: takes numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: plain data, for which zero is a value.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = interface.cast_signed();
    to.sll_halen = 6;
    // SAFETY: an open socket, a frame and an address with their lengths.
    let sent = unsafe {
        libc::sendto(
            socket,
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    };
    assert_eq!(usize::try_from(sent).ok(), Some(frame.len()), "{}", std::io::Error::last_os_error());
    // SAFETY: opened above, and used by nobody else.
    unsafe { libc::close(socket) };
}
