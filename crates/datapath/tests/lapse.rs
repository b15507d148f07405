//! After a lapse no echo of what was sent before it is measured as a round trip.

mod support;

use std::net::TcpStream;

use support::packet::{Packet, TCP};
use support::pair::{Pair, flow, get};
use support::{NEXT, is_root, run};
use whimbrel_datapath::{Binding, Carrier, Datapath, FlowEntry, LocatorPair};

const PEER: u32 = 7;
/// `linux/tcp.h`
const TCP_TIMESTAMP: i32 = 24;
const NOPS: [u8; 12] = [1; 12];

/// A segment of the far end's, with the options that Linux would put there.
fn segment(near: &TcpStream, names: (&str, &str), echo: u32) -> Packet {
    let own = flow(near);
    let endpoint = |address: &str, port| std::net::SocketAddr::new(address.parse().expect("an address"), port);
    let (from, to) = (endpoint(names.1, own.remote.port()), endpoint(names.0, own.local.port()));
    let mut packet = Packet::new(TCP, from, to);
    packet.tcp_options = [&[1, 1, 8, 10, 0xaa, 0xbb, 0xcc, 0xdd][..], &echo.to_be_bytes()].concat();
    packet
}

fn open(pair: &Pair, near: &TcpStream, locators: (&str, &str)) -> Datapath {
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let own = flow(near);
    let entry = FlowEntry {
        binding: PEER,
        home_local_place: 0,
        home_peer_place: 0,
        wire_local_port: own.local.port(),
        wire_remote_port: own.remote.port(),
        held: false,
    };
    datapath.insert_flows(&[(own, entry)]).expect("insert");
    let [local, peer] = [locators.0, locators.1].map(|address| address.parse().expect("an address"));
    let binding = Binding {
        local_place: 1,
        peer_place: 0,
        carrier: Carrier::Rewrite,
        local,
        peer,
        interface: 0,
        arrival: 0,
        allowance: None,
        parked: false,
        accepted: vec![LocatorPair { local, peer }],
    };
    datapath.set_binding(PEER, &binding).expect("bind");
    datapath.set_busy(true, false, false).expect("busy");
    datapath
}

#[test]
fn stale_echoes_are_taken_out_until_there_is_a_fresh_one() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    // As it comes rewritten, and under its own names.
    let cases = [
        (("10.0.0.1", "10.0.0.2"), ("10.9.9.1", "10.9.9.2"), "10.0.0.2:0"),
        (("fd00::1", "fd00::2"), ("fd09::1", "fd09::2"), "[fd00::2]:0"),
    ];
    for (own_names, locators, to) in cases {
        let (near, _far) = pair.connect(to);
        let datapath = open(&pair, &near, locators);
        let now = get(&near, libc::IPPROTO_TCP, TCP_TIMESTAMP).cast_unsigned();
        let (stale, fresh) = (now.wrapping_sub(30_000), now.wrapping_add(60_000));
        let counted = || {
            let counters = datapath.counters().expect("counters");
            counters.iter().find(|(name, _)| *name == "stale_echo").expect("a counter").1
        };
        let arrive = |names, echo| {
            let outcome = run(datapath.program("ingress_l2").expect("program"), &segment(&near, names, echo).bytes());
            assert_eq!(outcome.verdict, NEXT);
            outcome.packet
        };
        let whole = |echo| segment(&near, own_names, echo).bytes();
        let mut without = segment(&near, own_names, 0);
        without.tcp_options = NOPS.to_vec();
        let without = without.bytes();
        let before = counted();

        datapath.set_lapses(true).expect("lapses");
        assert_eq!(arrive(locators, stale), whole(stale), "nothing has lapsed");
        datapath.fit_sockets(&[], Some(PEER + 1)).expect("fit");
        assert_eq!(arrive(locators, stale), whole(stale), "another peer's have");

        datapath.fit_sockets(&[], Some(PEER)).expect("fit");
        for names in [locators, own_names] {
            assert_eq!(arrive(names, stale), without);
        }
        assert_eq!(counted(), before + 2);
        // What is known of the flow otherwise may change meanwhile.
        let [(own, entry)] = datapath.flows().expect("flows")[..] else { panic!("one flow") };
        datapath.insert_flows(&[(own, FlowEntry { held: true, ..entry })]).expect("insert");
        assert_eq!(arrive(locators, stale), without);
        assert_eq!(arrive(locators, fresh), whole(fresh));
        assert_eq!(arrive(locators, stale), whole(stale), "it is over");

        datapath.fit_sockets(&[], Some(PEER)).expect("fit");
        datapath.set_lapses(false).expect("no lapses");
        assert_eq!(arrive(locators, stale), whole(stale), "it is long ago");
        datapath.unload().expect("unload");
    }
}
