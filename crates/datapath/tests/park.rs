//! The sockets of parked flows do not give up, and have what their programs set when that is over.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use support::pair::{Pair, binding, entry, find, flow, get, look, set, wait};
use support::{is_root, tun};
use whimbrel_datapath::{Carrier, Datapath, Fitted, Role};
use whimbrel_wire::{BindingId, PeerId};

const BINDING: BindingId = BindingId::first(PeerId(7));
/// `PARKED_TIMEOUT` of bpf/lib/park.h.
const PARKED: (i32, i32) = (1_728_000_000, 0);

fn introduce(datapath: &Datapath, streams: &[&TcpStream], held: bool) {
    let flows: Vec<_> = streams.iter().map(|stream| entry(stream, BINDING, held)).collect();
    datapath.insert_flows(&flows).expect("insert");
}

fn bind(datapath: &Datapath, parked: bool) {
    bind_at(datapath, 0, Carrier::Native, parked);
}

fn bind_at(datapath: &Datapath, local_place: u32, carrier: Carrier, parked: bool) {
    datapath.set_binding(BINDING, &binding(local_place, carrier, parked)).expect("bind");
}

fn fit(datapath: &Datapath) -> Fitted {
    datapath.fit_sockets(&[]).expect("fit")
}

fn fitted(changed: usize, waiting: usize) -> Fitted {
    Fitted { changed, waiting }
}

/// TCP_USER_TIMEOUT in milliseconds and SO_KEEPALIVE.
fn options(stream: &TcpStream) -> (i32, i32) {
    (get(stream, libc::SOL_TCP, libc::TCP_USER_TIMEOUT), get(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE))
}

fn set_options(stream: &TcpStream, (timeout, keepalive): (i32, i32)) {
    set(stream, libc::SOL_TCP, libc::TCP_USER_TIMEOUT, timeout);
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, keepalive);
}

#[test]
fn options_are_put_back_exactly() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let pins = pair.bpffs.pins("near");
    let mut datapath = Datapath::open(&pins).expect("open");
    let connections: Vec<_> = (0..5).map(|i| pair.connect(["10.0.0.2:0", "[fd00::2]:0"][i % 2])).collect();
    let near: Vec<_> = connections.iter().map(|(near, _)| near).collect();
    let original = [(0, 0), (12_345, 0), (0, 1), (54_321, 1), (1_000, 1)];
    for (stream, options) in near.iter().zip(original) {
        set_options(stream, options);
    }
    // The last is of no flow that is known.
    let [known @ .., _stranger] = &near[..] else { panic!("there are five") };
    let all = || near.iter().map(|stream| options(stream)).collect::<Vec<_>>();
    let parked = [PARKED, PARKED, PARKED, PARKED, original[4]];
    introduce(&datapath, known, false);
    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(0, 0));
    assert_eq!(all(), original);

    // By the binding.
    bind(&datapath, true);
    assert_eq!(fit(&datapath), fitted(4, 0));
    assert_eq!(all(), parked);
    assert_eq!(fit(&datapath), fitted(0, 0));
    // By another daemon.
    drop(datapath);
    datapath = Datapath::open(&pins).expect("open again");
    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(4, 0));
    assert_eq!(all(), original);
    assert_eq!(fit(&datapath), fitted(0, 0));

    // By the flow, and by a binding that goes while the flow is held.
    introduce(&datapath, known, true);
    assert_eq!(fit(&datapath), fitted(4, 0));
    datapath.remove_binding(BINDING).expect("remove");
    assert_eq!(fit(&datapath), fitted(0, 0));
    assert_eq!(all(), parked);
    // A flow that is forgotten is not parked.
    datapath.remove_flows(&known.iter().map(|stream| flow(stream)).collect::<Vec<_>>()).expect("remove");
    assert_eq!(fit(&datapath), fitted(4, 0));
    assert_eq!(all(), original);

    // What a program sets meanwhile stays.
    introduce(&datapath, known, true);
    assert_eq!(fit(&datapath), fitted(4, 0));
    set_options(known[1], (777, 1));
    set_options(known[3], (888, 1));
    assert_eq!(fit(&datapath), fitted(0, 0));
    introduce(&datapath, known, false);
    assert_eq!(fit(&datapath), fitted(2, 0));
    assert_eq!(all(), [original[0], (777, 1), original[2], (888, 1), original[4]]);
    datapath.unload().expect("unload");
}

/// Nobody would put them back later.
#[test]
fn options_are_put_back_when_the_data_plane_goes() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let pins = pair.bpffs.pins("near");
    let datapath = Datapath::open(&pins).expect("open");
    let (mut parked, _far) = pair.connect("10.0.0.2:0");
    let (mut waiting, _its_far) = pair.connect("[fd00::2]:0");
    for stream in [&parked, &waiting] {
        set_options(stream, (60_000, 1));
    }
    introduce(&datapath, &[&parked, &waiting], true);
    pair.cut();
    for stream in [&mut parked, &mut waiting] {
        stream.write_all(&[1; 10]).expect("write");
    }
    assert_eq!(fit(&datapath), fitted(2, 0));
    introduce(&datapath, &[&waiting], false);
    assert_eq!(fit(&datapath), fitted(0, 1));
    // By another daemon, which has not looked at sockets yet.
    drop(datapath);
    Datapath::open(&pins).expect("open again").unload().expect("unload");
    assert_eq!([&parked, &waiting].map(options), [(60_000, 1); 2]);
}

#[test]
fn options_are_put_back_once_something_new_is_acknowledged() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    set_options(&near, (1_500, 1));
    introduce(&datapath, &[&near], false);
    pair.cut();
    near.write_all(&[1; 10]).expect("write");
    wait(|| find(&datapath, &near).retransmits > 0);
    bind(&datapath, true);
    assert_eq!(fit(&datapath), fitted(1, 0));
    // Longer than it would have lived.
    wait(|| find(&datapath, &near).retransmits > 3);
    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(0, 1));
    assert_eq!(options(&near), PARKED);
    // Away again before anything came of it.
    bind(&datapath, true);
    assert_eq!(fit(&datapath), fitted(0, 0));
    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(0, 1));
    pair.mend();
    far.read_exact(&mut [0; 10]).expect("read");
    wait(|| fit(&datapath).waiting == 0);
    assert_eq!(options(&near), (1_500, 1));
    near.write_all(&[1; 10]).expect("write");
    far.read_exact(&mut [0; 10]).expect("read");
    datapath.unload().expect("unload");
}

/// With keepalive probes unanswered from before, the kernel would end it at the next if it had its time limit back.
#[test]
fn the_time_limit_is_put_back_once_keepalives_are_answered() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let (mut near, mut far) = pair.connect("[fd00::2]:0");
    set(&near, libc::SOL_TCP, libc::TCP_KEEPIDLE, 1);
    set(&near, libc::SOL_TCP, libc::TCP_KEEPINTVL, 1);
    set_options(&near, (3_000, 1));
    introduce(&datapath, &[&near], false);
    pair.cut();
    let probed = Instant::now();
    wait(|| probed.elapsed() > Duration::from_millis(1_500));
    bind(&datapath, true);
    assert_eq!(fit(&datapath), fitted(1, 0));
    wait(|| probed.elapsed() > Duration::from_secs(5));
    pair.mend();
    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(1, 1));
    assert_eq!(options(&near), (PARKED.0, 1));
    wait(|| fit(&datapath).waiting == 0);
    assert_eq!(options(&near), (3_000, 1));
    near.write_all(&[1; 10]).expect("write");
    far.read_exact(&mut [0; 10]).expect("read");
    datapath.unload().expect("unload");
}

/// Whether the connection was given up for want of an answer.
fn timed_out(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("O_NONBLOCK");
    match stream.peek(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) if error.kind() == ErrorKind::TimedOut => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn parked_sockets_outlive_what_kills_others() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.sysctl("net.ipv4.tcp_retries2", "2");
    pair.near.sysctl("net.ipv4.tcp_orphan_retries", "2");
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    // With data in flight, with a time limit, with keepalives, and closed by its program.
    let four = || -> [(TcpStream, TcpStream); 4] {
        let four = [(); 4].map(|()| pair.connect("10.0.0.2:0"));
        set(&four[1].0, libc::SOL_TCP, libc::TCP_USER_TIMEOUT, 500);
        for (name, value) in [(libc::TCP_KEEPIDLE, 1), (libc::TCP_KEEPINTVL, 1), (libc::TCP_KEEPCNT, 2)] {
            set(&four[2].0, libc::SOL_TCP, name, value);
        }
        set(&four[2].0, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        four
    };
    let (mut parked, mut others) = (four(), four());
    introduce(&datapath, &parked.each_ref().map(|(near, _)| near), false);
    bind(&datapath, true);
    pair.cut();
    for four in [&mut parked, &mut others] {
        for at in [0, 1, 3] {
            four[at].0.write_all(&[at as u8; 1000]).expect("write");
        }
    }
    let [mut one, mut two, mut three, (four, mut fours_far)] = parked;
    let fours_flow = flow(&four);
    drop(four);
    assert_eq!(fit(&datapath), fitted(4, 0));
    let [other_one, other_two, other_three, (other_four, _others_far)] = others;
    let others_flow = flow(&other_four);
    drop(other_four);
    wait(|| {
        look(&datapath, &others_flow).is_none()
            && [&other_one, &other_two, &other_three].iter().all(|(near, _)| timed_out(near))
    });
    // And as long again.
    wait(|| find(&datapath, &one.0).retransmits >= 5);
    for (near, _) in [&one, &two, &three] {
        assert!(!timed_out(near));
        near.set_nonblocking(false).expect("O_NONBLOCK");
    }
    assert!(look(&datapath, &fours_flow).is_some());

    bind(&datapath, false);
    assert_eq!(fit(&datapath), fitted(1, 3));
    assert_eq!(options(&three.0), (0, 1));
    pair.mend();
    three.0.write_all(&[2; 1000]).expect("write");
    for (at, far) in [(0, &mut one.1), (1, &mut two.1), (2, &mut three.1), (3, &mut fours_far)] {
        let mut received = [9; 1000];
        far.read_exact(&mut received).expect("read");
        assert_eq!(received, [at; 1000]);
    }
    assert_eq!(fours_far.read(&mut [0]).expect("read"), 0);
    wait(|| fit(&datapath).waiting == 0);
    assert_eq!([&one.0, &two.0, &three.0].map(options), [(0, 0), (500, 0), (0, 1)]);
    datapath.unload().expect("unload");
}

/// Writes until the other end's window is closed, and gives how much that was.
fn fill(datapath: &Datapath, stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).expect("O_NONBLOCK");
    let mut written = 0;
    wait(|| {
        loop {
            match stream.write(&[7; 65_536]) {
                Ok(more) => written += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let socket = find(datapath, stream);
        socket.snd_wnd == 0 && socket.snd_una == socket.snd_nxt && socket.write_seq != socket.snd_nxt
    });
    written
}

fn probes_are_answered(to: &str) {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.sysctl("net.ipv4.tcp_retries2", "3");
    pair.near.sysctl("net.ipv4.tcp_wmem", "4096 16384 65536");
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let _tun = tun("tun");
    pair.near.run("ip link set tun up");
    // SAFETY: terminated strings.
    let [wire, tunnel] = [c"v", c"tun"].map(|name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    datapath.set_tunnel(tunnel, 0x57, 0xff).expect("settings");
    datapath.attach(wire, Role::Wire).expect("attach");
    datapath.attach(tunnel, Role::Tunnel).expect("attach");
    // One in front of a closed window, one that is idle and held by itself, and a stranger like the first.
    let [mut full, mut idle, mut stranger] = [(); 3].map(|()| pair.connect(to));
    let written = fill(&datapath, &mut full.0);
    fill(&datapath, &mut stranger.0);
    introduce(&datapath, &[&full.0], false);
    introduce(&datapath, &[&idle.0], true);
    for (name, value) in [(libc::TCP_KEEPIDLE, 1), (libc::TCP_KEEPINTVL, 1), (libc::TCP_KEEPCNT, 2)] {
        set(&idle.0, libc::SOL_TCP, name, value);
    }
    bind_at(&datapath, 1, Carrier::Hold, true);
    assert_eq!(fit(&datapath).waiting, 0);
    // Those of the idle one stay on: by its answers alone it lives.
    set(&idle.0, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    let before = [&full.0, &idle.0].map(|stream| find(&datapath, stream));
    pair.cut();
    let answered = || {
        let counters = datapath.counters().expect("counters");
        counters.iter().find(|(name, _)| *name == "answered").expect("a counter").1
    };
    wait(|| answered() >= 14 && timed_out(&stranger.0));
    for (stream, before) in [&full.0, &idle.0].into_iter().zip(before) {
        assert!(!timed_out(stream));
        let now = find(&datapath, stream);
        assert_eq!((now.snd_una, now.rcv_nxt), (before.snd_una, before.rcv_nxt), "nothing new was said");
    }
    assert_eq!(full.1.peek(&mut [0]).expect("peek"), 1);
    idle.1.set_nonblocking(true).expect("O_NONBLOCK");
    assert_eq!(idle.1.read(&mut [0]).expect_err("nothing came").kind(), ErrorKind::WouldBlock);

    pair.mend();
    bind(&datapath, false);
    introduce(&datapath, &[&idle.0], false);
    full.1.read_exact(&mut vec![0; written]).expect("all of it");
    wait(|| fit(&datapath).waiting == 0);
    assert_eq!([&full.0, &idle.0].map(options), [(0, 0), (0, 1)]);
    for (near, far) in [&mut full, &mut idle] {
        near.set_nonblocking(false).expect("O_NONBLOCK");
        far.set_nonblocking(false).expect("O_NONBLOCK");
        near.write_all(&[8; 100]).expect("write");
        far.read_exact(&mut [0; 100]).expect("read");
        far.write_all(&[9; 100]).expect("write");
        near.read_exact(&mut [0; 100]).expect("read");
    }
    datapath.unload().expect("unload");
}

#[test]
fn probes_are_answered_with_a_closed_window() {
    probes_are_answered("10.0.0.2:0");
}

#[test]
fn probes_are_answered_over_ipv6() {
    probes_are_answered("[fd00::2]:0");
}
