//! After a lapse no echo of what was sent before it is measured as a round trip.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::packet::{ETHERNET, Packet, TCP};
use support::pair::{Pair, entry, find, flow, get, timer, wait};
use support::{NEXT, is_root, run};
use whimbrel_datapath::{Binding, Carrier, Datapath, FlowEntry, LocatorPair, Role};
use whimbrel_wire::{BindingId, PeerId};

const BINDING: BindingId = BindingId::first(PeerId(7));
/// `linux/tcp.h`
const TCP_TIMESTAMP: i32 = 24;

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
    datapath.insert_flows(&[entry(near, BINDING, false)]).expect("insert");
    let [local, peer] = [locators.0, locators.1].map(|address| address.parse().expect("an address"));
    let binding = Binding {
        local_place: 1,
        peer_place: 0,
        carrier: Carrier::Rewrite,
        local,
        peer,
        interface: 0,
        arrival: 0,
        mtu: 0,
        allowance: None,
        parked: false,
        names_kept: false,
        accepted: vec![LocatorPair { local, peer }],
    };
    datapath.set_binding(BINDING, &binding).expect("bind");
    datapath.set_busy(true, false, false).expect("busy");
    datapath
}

#[test]
fn stale_echoes_are_renewed_until_there_is_a_fresh_one() {
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
        // The echo is the last word of the options, in front of the payload.
        let renewed = |packet: &[u8]| {
            let at = ETHERNET + if own_names.0.contains(':') { 40 } else { 20 } + 20 + 8;
            let echo = u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
            let clock = get(&near, libc::IPPROTO_TCP, TCP_TIMESTAMP).cast_unsigned();
            let age = clock.wrapping_sub(echo);
            assert!((90..5_000).contains(&age), "the echo of {age} ms ago");
            assert_eq!(packet, whole(echo));
        };
        let before = counted();

        datapath.set_lapses(true).expect("lapses");
        assert_eq!(arrive(locators, stale), whole(stale), "nothing has lapsed");
        datapath.fit_sockets(&[]).expect("fit");
        assert_eq!(arrive(locators, stale), whole(stale), "others have");

        datapath.on_lapse(&[flow(&near)]).expect("note");
        for names in [locators, own_names] {
            renewed(&arrive(names, stale));
        }
        assert_eq!(counted(), before + 2);
        // What is known of the flow otherwise may change meanwhile.
        let [(own, entry)] = datapath.flows().expect("flows")[..] else { panic!("one flow") };
        datapath.insert_flows(&[(own, FlowEntry { held: true, ..entry })]).expect("insert");
        renewed(&arrive(locators, stale));
        assert_eq!(arrive(locators, fresh), whole(fresh));
        assert_eq!(arrive(locators, stale), whole(stale), "it is over");

        datapath.on_lapse(&[flow(&near)]).expect("note");
        datapath.set_lapses(false).expect("no lapses");
        assert_eq!(arrive(locators, stale), whole(stale), "it is long ago");
        datapath.unload().expect("unload");
    }
}

/// The peer has had what was sent last, and says so when it is back; nobody has said yet that the flow goes on.
#[test]
fn the_time_that_a_flow_waits_is_no_round_trip() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    // SAFETY: a terminated string.
    datapath.attach(unsafe { libc::if_nametoindex(c"v".as_ptr()) }, Role::Wire).expect("attach");
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        let (mut near, mut far) = pair.connect(to);
        near.write_all(&[0; 100]).expect("write");
        far.read_exact(&mut [0; 100]).expect("read");
        wait(|| find(&datapath, &near).snd_una == find(&datapath, &near).snd_nxt);
        datapath.insert_flows(&[entry(&near, BINDING, true)]).expect("insert");
        datapath.set_lapses(true).expect("lapses");

        // The first is heard, and the answer to it is not. As long as they may be, so that they are not sent again as
        // one.
        let mut segment = vec![0; find(&datapath, &near).mss_cache as usize];
        pair.mute();
        datapath.set_busy(false, false, false).expect("not held yet");
        near.write_all(&segment).expect("write");
        far.read_exact(&mut segment).expect("read");
        datapath.set_busy(true, false, false).expect("held");
        near.write_all(&segment).expect("write");
        wait(|| find(&datapath, &near).retransmits > 0);
        datapath.fit_sockets(&[]).expect("fit");
        let long = Duration::from_secs(2);
        wait(|| timer(&near) > long);

        pair.unmute();
        let before = find(&datapath, &near).snd_una;
        far.write_all(&[0; 100]).expect("write");
        near.read_exact(&mut [0; 100]).expect("read");
        assert_eq!(find(&datapath, &near).snd_una, before.wrapping_add(segment.len() as u32));
        assert!(timer(&near) < long / 2, "the timer is at {:?}", timer(&near));
    }
    datapath.unload().expect("unload");
}
