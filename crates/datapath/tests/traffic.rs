//! What goes between two hosts: when something was last heard, and when an answer is overdue.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use support::pair::{Pair, binding, entry, wait};
use support::{index, is_root};
use whimbrel_datapath::{Carrier, Datapath, Event, LocatorPair, Most, Role};
use whimbrel_wire::{BindingId, PeerId};

const PORT: u16 = 2031;
const ANSWER: Duration = Duration::from_millis(20);
/// Longer than it takes until something would be overdue that took no time before.
const LONG: Duration = Duration::from_millis(200);

fn between(pair: (&str, &str)) -> LocatorPair {
    let [local, peer] = [pair.0, pair.1].map(|address| address.parse::<IpAddr>().expect("an address"));
    LocatorPair { local, peer }
}

/// The near end, where nothing has moved.
fn watching(pair: &Pair, watched: &LocatorPair) -> Datapath {
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.attach(index("v"), Role::Wire).expect("attach");
    datapath.set_busy(false, false, false).expect("idle");
    datapath.watch_traffic(watched, ANSWER, PORT).expect("watch");
    datapath
}

/// What is overdue by now, and for how long it is.
fn overdue(datapath: &mut Datapath, watched: &LocatorPair) -> Vec<Duration> {
    let mut found = Vec::new();
    let drained = datapath.drain_events(Most::ALL, |event| {
        if let Event::Overdue { between, lasts } = event {
            assert_eq!(between, *watched);
            found.push(lasts);
        }
    });
    drained.expect("events");
    found
}

fn exchange(near: &mut TcpStream, far: &mut TcpStream, rounds: usize) {
    let mut byte = [0];
    for _ in 0..rounds {
        near.write_all(b"?").expect("ask");
        far.read_exact(&mut byte).expect("asked");
        far.write_all(b"!").expect("answer");
        near.read_exact(&mut byte).expect("answered");
    }
}

#[test]
fn what_is_usually_answered_is_told_where_it_is_not() {
    if !is_root() {
        return;
    }
    for (watched, to) in [(("10.0.0.1", "10.0.0.2"), "10.0.0.2:0"), (("fd00::1", "fd00::2"), "[fd00::2]:0")] {
        let (pair, watched) = (Pair::new(), between(watched));
        let (mut near, mut far) = pair.connect(to);
        near.set_nodelay(true).expect("nodelay");
        let mut datapath = watching(&pair, &watched);
        assert_eq!(datapath.traffic(&watched).expect("traffic").and_then(|known| known.heard), None);
        exchange(&mut near, &mut far, 100);
        let known = datapath.traffic(&watched).expect("traffic").expect("watched");
        assert!(known.heard.expect("heard") < Duration::from_secs(1), "{known:?}");
        assert_eq!(overdue(&mut datapath, &watched), [], "all was answered");
        // The last acknowledgement is not answered, which is as it should be.
        std::thread::sleep(LONG);
        assert_eq!(overdue(&mut datapath, &watched), []);
        assert_eq!(datapath.traffic(&watched).expect("traffic").and_then(|known| known.asked), None);
        pair.mute();
        let mut late = Vec::new();
        for _ in 0..5 {
            let asked = Instant::now();
            pair.near.enter();
            near.write_all(b"?").expect("ask");
            let mut found = Vec::new();
            while found.is_empty() && asked.elapsed() < Duration::from_secs(20) {
                found = overdue(&mut datapath, &watched);
            }
            let took = asked.elapsed();
            assert_eq!(found.len(), 1, "it is said once");
            assert!(found[0] >= ANSWER && took >= ANSWER, "{found:?}, {took:?}: before it is due");
            late.push((found[0], took));
            // Heard again, it is watched again.
            pair.unmute();
            let mut byte = [0];
            far.read_exact(&mut byte).expect("asked");
            far.write_all(b"!").expect("answer");
            near.read_exact(&mut byte).expect("answered");
            exchange(&mut near, &mut far, 100);
            assert_eq!(overdue(&mut datapath, &watched), [], "nothing is overdue");
            pair.mute();
        }
        eprintln!("overdue after, and known after: {late:?}");
        pair.unmute();
        datapath.forget_traffic(&watched).expect("forget");
        assert_eq!(datapath.traffic(&watched).expect("traffic"), None);
    }
}

fn datagrams(pair: &Pair, near: (&str, u16), far: &str) -> (UdpSocket, UdpSocket) {
    pair.far.enter();
    let there = UdpSocket::bind(far).expect("bind");
    pair.near.enter();
    let here = UdpSocket::bind(near).expect("bind");
    here.connect(there.local_addr().expect("address")).expect("connect");
    there.connect(here.local_addr().expect("address")).expect("connect");
    there.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    here.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    (here, there)
}

#[test]
fn what_nobody_answers_is_waited_for_by_nobody() {
    if !is_root() {
        return;
    }
    let (pair, watched) = (Pair::new(), between(("10.0.0.1", "10.0.0.2")));
    let mut datapath = watching(&pair, &watched);
    let (here, there) = datagrams(&pair, ("10.0.0.1", 0), "10.0.0.2:0");
    for _ in 0..500 {
        here.send(b"up").expect("send");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(overdue(&mut datapath, &watched), [], "it goes one way");
    // An answer to each hundredth, none of which takes less than a tenth of a second: that is what is usual.
    let mut buffer = [0; 16];
    for number in 0..20 * 100 {
        here.send(b"up").expect("send");
        there.recv(&mut buffer).expect("received");
        std::thread::sleep(Duration::from_millis(1));
        if number % 100 == 99 {
            there.send(b"report").expect("send");
            here.recv(&mut buffer).expect("received");
        }
    }
    assert_eq!(overdue(&mut datapath, &watched), [], "it takes as long as it does");
}

/// Two processors that hear something at the same moment.
#[test]
fn what_comes_by_two_processors_is_one_answer() {
    if !is_root() {
        return;
    }
    let (pair, watched) = (Pair::new(), between(("10.0.0.1", "10.0.0.2")));
    let datapath = watching(&pair, &watched);
    let flows: Vec<_> = (0..2).map(|_| datagrams(&pair, ("10.0.0.1", 0), "10.0.0.2:0")).collect();
    let until = Instant::now() + Duration::from_secs(3);
    let most = std::thread::scope(|scope| {
        for (here, there) in &flows {
            scope.spawn(move || {
                while Instant::now() < until {
                    here.send(b"?").expect("send");
                    there.send(b"!").expect("send");
                }
            });
        }
        let mut most = Duration::ZERO;
        while Instant::now() < until {
            most = most.max(datapath.traffic(&watched).expect("traffic").expect("watched").usual);
        }
        most
    });
    assert!(most < Duration::from_secs(3), "an answer took {most:?} of a test that takes less");
}

#[test]
fn what_daemons_say_is_no_traffic_and_what_a_tunnel_carries_is() {
    if !is_root() {
        return;
    }
    let (pair, watched) = (Pair::new(), between(("10.0.0.1", "10.0.0.2")));
    let datapath = watching(&pair, &watched);
    let (here, there) = datagrams(&pair, ("10.0.0.1", PORT), "10.0.0.2:0");
    let known = || datapath.traffic(&watched).expect("traffic").expect("watched");
    let mut buffer = [0; 16];
    for (first, counts) in [(0x01, false), (0x10, false), (0x20, true), (0x21, true)] {
        datapath.forget_traffic(&watched).expect("forget");
        datapath.watch_traffic(&watched, ANSWER, PORT).expect("watch");
        here.send(&[first; 16]).expect("send");
        there.recv(&mut buffer).expect("received");
        assert_eq!(known().asked.is_some(), counts, "{first:x}");
        there.send(&[first; 16]).expect("send");
        here.recv(&mut buffer).expect("received");
        assert_eq!(known().heard.is_some(), counts, "{first:x}");
        assert_eq!(known().asked, None, "{first:x}");
    }
}

/// Rewritten packets count under the names that they have on the wire.
#[test]
fn what_is_rewritten_counts_where_it_goes() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    pair.near.run("ip addr add 10.0.0.7/24 dev v");
    let moved = between(("10.0.0.7", "10.0.0.2"));
    let mut datapath = watching(&pair, &moved);
    let id = BindingId::first(PeerId(7));
    let accepted = vec![moved];
    let to = whimbrel_datapath::Binding { local: moved.local, accepted, ..binding(1, Carrier::Rewrite, false) };
    datapath.set_binding(id, &to).expect("bind");
    let (own, entry) = entry(&near, id, false);
    datapath.insert_flows(&[(own, entry)]).expect("insert");
    datapath.set_busy(true, false, false).expect("busy");
    // Nobody there knows the flow under these names, and would say so at once.
    pair.far.run("ip route add blackhole 10.0.0.7/32");
    near.write_all(b"?").expect("ask");
    wait(|| datapath.traffic(&moved).expect("traffic").is_some_and(|known| known.asked.is_some()));
    // What comes between the addresses is heard all the same.
    pair.far.run("ip route del blackhole 10.0.0.7/32");
    wait(|| datapath.traffic(&moved).expect("traffic").is_some_and(|known| known.heard.is_some()));
    datapath.watch_traffic(&moved, ANSWER * 2, PORT).expect("watch");
    let known = datapath.traffic(&moved).expect("traffic").expect("watched");
    assert!(known.heard.is_some(), "what is known stays: {known:?}");
    drop((far.write_all(b"!"), overdue(&mut datapath, &moved)));
}
