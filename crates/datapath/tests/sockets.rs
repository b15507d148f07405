//! Sockets are followed and listed, in one namespace and no other.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use support::{Bpffs, Namespace, is_root, veth};
use whimbrel_datapath::{Datapath, Event, Origin, TcpSocket};
use whimbrel_wire::{FlowTuple, Transport};

struct Pair {
    near: Namespace,
    far: Namespace,
    bpffs: Bpffs,
}

impl Pair {
    fn new() -> Self {
        let pair = Self { near: Namespace::new(), far: Namespace::new(), bpffs: Bpffs::new() };
        veth(&pair.near, "v", &pair.far, "v");
        for (namespace, n) in [(&pair.near, 1), (&pair.far, 2)] {
            namespace.run(&format!("ip addr add 10.0.0.{n}/24 dev v"));
            namespace.run(&format!("ip addr add fd00::{n}/64 dev v nodad"));
        }
        pair
    }

    fn connect(&self, to: &str) -> (TcpStream, TcpStream) {
        self.far.enter();
        let listener = TcpListener::bind(to).expect("listen");
        self.near.enter();
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        (near, listener.accept().expect("accept").0)
    }
}

fn flow(stream: &TcpStream) -> FlowTuple {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    FlowTuple {
        transport: Transport::Tcp,
        local: canonical(stream.local_addr().expect("local")),
        remote: canonical(stream.peer_addr().expect("remote")),
    }
}

fn events(datapath: &mut Datapath) -> Vec<Event> {
    let mut events = Vec::new();
    datapath.drain_events(|event| events.push(event)).expect("drain");
    events
}

/// Drains until `count` events have come.
fn wait(datapath: &mut Datapath, count: usize) -> Vec<Event> {
    let mut seen = Vec::new();
    while seen.len() < count {
        seen.extend(events(datapath));
        std::thread::yield_now();
    }
    assert_eq!(seen.len(), count);
    seen
}

#[test]
fn connections_are_followed_in_their_own_namespace() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut near_datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    near_datapath.track(true).expect("track");
    pair.far.enter();
    let mut far_datapath = Datapath::open(&pair.bpffs.pins("far")).expect("open");
    far_datapath.track(true).expect("track");
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        let (near, far) = pair.connect(to);
        let opened = Event::FlowOpened { flow: flow(&near), origin: Origin::Connected };
        assert_eq!(wait(&mut near_datapath, 1), [opened]);
        let accepted = Event::FlowOpened { flow: flow(&far), origin: Origin::Accepted };
        assert_eq!(wait(&mut far_datapath, 1), [accepted]);
        let (near_flow, far_flow) = (flow(&near), flow(&far));
        drop((near, far));
        assert_eq!(wait(&mut near_datapath, 1), [Event::FlowClosed { flow: near_flow }]);
        assert_eq!(wait(&mut far_datapath, 1), [Event::FlowClosed { flow: far_flow }]);
    }

    // IPv4 on an IPv6 socket, refused connections and loopback.
    let (near, far) = pair.connect("[::ffff:10.0.0.2]:0");
    assert_eq!(wait(&mut near_datapath, 1), [Event::FlowOpened { flow: flow(&near), origin: Origin::Connected }]);
    let accepted = Event::FlowOpened { flow: flow(&far), origin: Origin::Accepted };
    assert_eq!(wait(&mut far_datapath, 1), [accepted]);
    assert!(flow(&far).local.is_ipv4());
    TcpStream::connect("10.0.0.2:1").expect_err("nobody listens");
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).expect("listen");
    drop(TcpStream::connect(listener.local_addr().expect("address")).expect("connect"));
    assert_eq!(events(&mut near_datapath), []);

    near_datapath.track(false).expect("track no more");
    drop((near, far));
    assert_eq!(wait(&mut far_datapath, 1).len(), 1);
    assert_eq!(events(&mut near_datapath), []);
    near_datapath.unload().expect("unload");
    far_datapath.unload().expect("unload");
}

fn list(datapath: &Datapath) -> Vec<TcpSocket> {
    let mut sockets = Vec::new();
    datapath.tcp_sockets(|socket| sockets.push(*socket)).expect("list");
    sockets
}

#[test]
fn sockets_are_listed_with_their_state() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let streams: Vec<_> = (0..200).map(|i| pair.connect(["10.0.0.2:0", "[fd00::2]:0"][i % 2])).collect();
    let sockets = list(&datapath);
    assert_eq!(sockets.len(), streams.len());
    for (near, _) in &streams {
        let socket = sockets.iter().find(|socket| socket.flow == flow(near)).expect("every socket is there");
        assert_eq!(socket.state, 1);
        assert_eq!(socket.snd_una, socket.snd_nxt);
        assert_ne!(socket.cookie, 0);
        let expected = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(near)));
        assert_eq!(socket.inode, std::os::unix::fs::MetadataExt::ino(&expected.expect("stat")));
        assert_eq!((socket.backoff, socket.retransmits, socket.bound_interface, socket.uid), (0, 0, 0, 0));
        assert_eq!(socket.pmtu_cookie, 1500);
        assert!(socket.mss_cache > 1400 && socket.mss_cache < 1460);
    }
    let (mut near, mut far) = streams.into_iter().next().expect("there are some");
    let of = |stream: &TcpStream, sockets: &[TcpSocket]| {
        *sockets.iter().find(|socket| socket.flow == flow(stream)).expect("it is there")
    };
    let before = of(&near, &list(&datapath));
    near.write_all(&[0; 100]).expect("write");
    far.read_exact(&mut [0; 100]).expect("read");
    let after = of(&near, &list(&datapath));
    assert_eq!(after.snd_nxt, before.snd_nxt.wrapping_add(100));
    assert_eq!((after.cookie, after.inode), (before.cookie, before.inode));

    // With nobody to acknowledge, the timer backs off.
    pair.far.run("ip addr flush dev v");
    near.write_all(&[0; 100]).expect("write");
    loop {
        let socket = of(&near, &list(&datapath));
        assert_eq!(socket.snd_nxt.wrapping_sub(socket.snd_una), 100);
        if socket.backoff >= 2 && socket.retransmits >= 2 {
            break;
        }
    }
    datapath.unload().expect("unload");
}
