use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::thread::sleep;

use whimbrel_wire::Transport;

use super::*;

const PEER: PeerId = PeerId(7);
const NUMBERS: RangeInclusive<u16> = 512..=1023;
/// Longer than anything here takes, on a machine that has much else to do.
const LONG: Duration = Duration::from_secs(20);

fn times() -> Times {
    let [unproven, closing] = [400, 200].map(Duration::from_millis);
    Times { unproven, closing, ..Times::default() }
}

/// A daemon's socket, and its connections.
struct Host {
    daemon: UdpSocket,
    streams: Streams,
}

impl Host {
    fn new(times: Times) -> Self {
        let daemon = UdpSocket::bind("127.0.0.1:0").expect("bind");
        daemon.set_read_timeout(Some(LONG)).expect("a timeout");
        let port = daemon.local_addr().expect("a name").port();
        let mut streams = Streams::new(port, NUMBERS).expect("streams");
        streams.times = times;
        Self { daemon, streams }
    }

    fn listening(times: Times) -> (Self, SocketAddr) {
        let mut host = Self::new(times);
        let port = host.streams.listen("127.0.0.1:0".parse().expect("an endpoint")).expect("listen");
        (host, SocketAddr::new([127, 0, 0, 1].into(), port))
    }

    fn told(&self) -> Told {
        wait_for(|| self.streams.take_told())
    }

    fn connect(&mut self, to: SocketAddr) -> SocketAddr {
        self.streams.connect(PEER, to.ip(), None, to);
        let (peer, endpoint) = self.told();
        assert_eq!(peer, PEER);
        endpoint.expect("a connection")
    }

    /// Receives a datagram, and tells which endpoint it is from.
    fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = vec![0; 1 << 16];
        let (length, source) = self.daemon.recv_from(&mut buffer).expect("a datagram");
        buffer.truncate(length);
        (buffer, self.streams.named(source).expect("that of a connection"))
    }

    fn send(&self, endpoint: SocketAddr, datagram: &[u8]) {
        let way = self.streams.way_to(endpoint).expect("a connection");
        self.daemon.send_to(datagram, way).expect("sending");
    }
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let until = std::time::Instant::now() + LONG;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(std::time::Instant::now() < until, "it never comes");
        sleep(Duration::from_millis(2));
    }
}

/// Datagrams that are there within a moment.
fn drain(daemon: &UdpSocket, moment: Duration) -> usize {
    daemon.set_read_timeout(Some(moment)).expect("a timeout");
    let count = std::iter::from_fn(|| daemon.recv_from(&mut [0; 64]).ok()).count();
    daemon.set_read_timeout(Some(LONG)).expect("a timeout");
    count
}

/// Somebody who says something, and is answered.
fn answered(server: &Host, at: SocketAddr) -> (TcpStream, SocketAddr) {
    let mut stream = TcpStream::connect(at).expect("connect");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream.write_all(b"\0\x05hello").expect("write");
    let (_, seen) = server.receive();
    server.send(seen, b"hello");
    stream.read_exact(&mut [0; 7]).expect("an answer");
    (stream, seen)
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn datagrams_go_both_ways_and_the_ends_are_named() {
    let (server, at) = Host::listening(Times::default());
    let mut client = Host::new(Times::default());
    let endpoint = client.connect(at);
    assert_eq!((endpoint.ip(), NUMBERS.contains(&endpoint.port())), (at.ip(), true));
    assert_eq!(client.streams.far_end(endpoint), Some(at));
    for length in [1, 1200, 9000, 40_000] {
        let datagram: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        client.send(endpoint, &datagram);
        let (got, seen) = server.receive();
        assert!(got == datagram && NUMBERS.contains(&seen.port()));
        server.send(seen, &got);
        assert_eq!(client.receive(), (datagram, endpoint));
    }
    // Another program of this host sends what it likes: nothing of that goes on.
    let other = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let way = client.streams.way_to(endpoint).expect("a way");
    other.send_to(b"mine", way).expect("sending");
    client.send(endpoint, b"own");
    assert_eq!(server.receive().0, b"own");
    assert_eq!(client.streams.named(other.local_addr().expect("a name")), None);
}

#[test]
fn the_end_of_a_connection_is_told_and_its_endpoint_goes_nowhere_else() {
    let (mut server, at) = Host::listening(times());
    let mut client = Host::new(times());
    let endpoint = client.connect(at);
    client.send(endpoint, b"first");
    let (_, seen) = server.receive();
    server.send(seen, b"answer");
    client.receive();
    let way = client.streams.way_to(endpoint);
    drop(std::mem::replace(&mut server.streams, Streams::new(1, NUMBERS).expect("streams")));
    assert_eq!(client.told(), (PEER, None));
    assert_eq!((client.streams.way_to(endpoint), client.streams.named(way.expect("a way"))), (way, None));
    assert!(UdpSocket::bind(way.expect("a way")).is_err(), "nobody else gets what is sent there");
    // Nobody listens there now.
    client.streams.connect(PEER, at.ip(), None, at);
    assert_eq!(client.told(), (PEER, None));
}

#[test]
fn a_connection_leaves_by_the_interface_that_is_named() {
    let (_server, at) = Host::listening(times());
    let mut client = Host::new(times());
    // The first interface of each namespace is the loopback one.
    for (interface, connects) in [(Some(1), true), (Some(999_999), false)] {
        client.streams.connect(PEER, at.ip(), interface, at);
        assert_eq!(client.told().1.is_some(), connects);
    }
}

#[test]
fn what_is_not_needed_any_more_ends_and_is_not_told() {
    let (server, at) = Host::listening(times());
    let mut client = Host::new(times());
    let endpoint = client.connect(at);
    client.send(endpoint, b"last");
    client.streams.close(PEER);
    assert_eq!(server.receive().0, b"last", "what is under way still arrives");
    wait_for(|| client.streams.named(client.streams.way_to(endpoint)?).is_none().then_some(()));
    assert_eq!(client.streams.take_told(), None);
    // One takes the place of the other.
    let one = client.connect(at);
    let other = client.connect(at);
    assert_ne!(one, other);
    wait_for(|| client.streams.named(client.streams.way_to(one)?).is_none().then_some(()));
    client.send(other, b"by the other");
    assert_eq!(server.receive().0, b"by the other");
    assert_eq!(client.streams.take_told(), None);
}

#[test]
fn who_says_nothing_or_nonsense_is_let_go() {
    let (server, at) = Host::listening(times());
    let began = std::time::Instant::now();
    let mut silent = TcpStream::connect(at).expect("connect");
    let mut half = TcpStream::connect(at).expect("connect");
    half.write_all(&[0, 9, 1, 2]).expect("write");
    for nonsense in [&[0, 0][..], &[0xff, 0xff, 1], b"\xff\xfeGET / HTTP/1.1\r\n"] {
        let mut stream = TcpStream::connect(at).expect("connect");
        stream.write_all(nonsense).expect("write");
        assert!(is_closed(&mut stream));
    }
    assert!(is_closed(&mut silent) && is_closed(&mut half));
    assert!(began.elapsed() >= times().unproven, "not before its time");
    // What looks like datagrams is passed on, and proves nothing as long as the daemon does not answer.
    let mut talks = TcpStream::connect(at).expect("connect");
    let stranger = std::thread::spawn(move || {
        let mut sent = 0;
        while talks.write_all(b"\0\x05hello").is_ok() {
            sent += 1;
            sleep(Duration::from_millis(20));
        }
        sent
    });
    assert_eq!(server.receive().0, b"hello");
    assert!(stranger.join().expect("the stranger") > 1);
}

#[test]
fn many_connections_leave_room_for_one_that_counts() {
    let times = Times { unproven: LONG * 10, ..Times::default() };
    let (server, at) = Host::listening(times);
    let mut client = Host::new(times);
    let endpoint = client.connect(at);
    client.send(endpoint, b"one");
    let (_, seen) = server.receive();
    server.send(seen, b"two");
    client.receive();
    let mut many: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(at).expect("connect")).collect();
    assert!(is_closed(&mut many[0]), "the oldest goes");
    client.send(endpoint, b"three");
    assert_eq!(server.receive().0, b"three", "who was of use stays before who was of none");
    let accepted = |streams: &Streams| {
        let there = NUMBERS.filter_map(|port| streams.way_to(SocketAddr::new(at.ip(), port)));
        there.filter(|way| streams.named(*way).is_some()).count()
    };
    wait_for(|| (accepted(&server.streams) == UNLED_OF_ONE).then_some(()));
}

#[test]
fn a_full_connection_drops_and_blocks_nobody() {
    let (host, at) = Host::listening(Times::default());
    let mut stream = TcpStream::connect(at).expect("connect");
    stream.write_all(b"\0\x05hello").expect("write");
    let (_, seen) = host.receive();
    // The far end reads nothing meanwhile.
    let datagram = [0x5a; 8000];
    for _ in 0..4000 {
        host.send(seen, &datagram);
    }
    stream.write_all(b"\0\x05again").expect("write");
    assert_eq!(host.receive().0, b"again");
    // What it gets then is whole.
    stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        got.extend_from_slice(&buffer[..read]);
    }
    let frames = got.chunks_exact(8002);
    assert!(frames.len() > 10 && frames.len() < 4000 && frames.remainder().is_empty(), "{}", frames.len());
    assert!(frames.into_iter().all(|frame| frame[..2] == 8000_u16.to_be_bytes() && frame[2..] == datagram));
}

#[test]
fn strangers_that_are_answered_keep_no_room_from_others() {
    let times = Times { unproven: LONG * 10, ..Times::default() };
    let (server, at) = Host::listening(times);
    let (mut honest, endpoint) = answered(&server, at);
    server.streams.lead(Some(endpoint), None);
    // As many as there may be, and each has begun a handshake, say.
    let mut strangers: Vec<_> = (0..UNLED_OF_ONE).map(|_| answered(&server, at)).collect();
    let (mut new, _) = answered(&server, at);
    assert!(is_closed(&mut strangers[0].0), "the oldest goes");
    for stream in [&mut honest, &mut new] {
        stream.write_all(b"\0\x05again").expect("write");
        assert_eq!(server.receive().0, b"again");
    }
    // What a path leads to stays, and is as much as others once none does.
    let more: Vec<_> = (0..UNLED_OF_ONE).map(|_| answered(&server, at)).collect();
    honest.write_all(b"\0\x05still").expect("write");
    assert_eq!(server.receive().0, b"still");
    server.streams.lead(None, Some(endpoint));
    let (_, _) = answered(&server, at);
    assert!(is_closed(&mut honest), "the oldest of them");
    drop(more);
}

#[test]
fn a_network_of_ipv6_counts_as_one() {
    let of = |address: &str| pump::source(address.parse().expect("an address"));
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}

#[test]
fn who_is_answered_once_is_not_kept_for_that() {
    let (server, at) = Host::listening(times());
    let (mut led_to, endpoint) = answered(&server, at);
    server.streams.lead(Some(endpoint), None);
    let (mut stranger, _) = answered(&server, at);
    assert!(is_closed(&mut stranger));
    led_to.write_all(b"\0\x05still").expect("write");
    assert_eq!(server.receive().0, b"still");
}

#[test]
fn a_stranger_gets_no_more_in_than_is_answered() {
    // As many as a socket's buffer takes that nobody reads.
    const SENT: usize = 250;
    let (server, at) = Host::listening(Times { unproven: LONG * 10, ..Times::default() });
    let mut stranger = TcpStream::connect(at).expect("connect");
    stranger.write_all(&b"\0\x01x".repeat(SENT)).expect("write");
    let (_, seen) = server.receive();
    let first = 1 + drain(&server.daemon, Duration::from_millis(300));
    assert_eq!(first, 64);
    server.send(seen, b"so?");
    let second = drain(&server.daemon, Duration::from_millis(300));
    assert!((1..=128).contains(&second), "{second}");
    // Once a path leads there all of it comes.
    server.streams.lead(Some(seen), None);
    server.send(seen, b"go on");
    (first + second..SENT).for_each(|_| drop(server.receive()));
}

#[test]
fn what_has_ended_leaves_its_name_to_others_last() {
    let table = Table::new(NUMBERS);
    let tuple = |port: u16| FlowTuple {
        transport: Transport::Tcp,
        local: ([127, 0, 0, 1], 443).into(),
        remote: ([127, 0, 0, 1], port).into(),
    };
    let add = |port| {
        let (socket, at) = connection::stand_in(Ipv4Addr::LOCALHOST.into()).expect("a socket");
        (table.add(tuple(port), Arc::new(socket), at).expect("a number").0, at)
    };
    let (number, at) = add(1);
    let endpoint = table.endpoint(number).expect("an endpoint");
    assert_eq!(table.way_to(endpoint), Some(at));
    table.end(number);
    // Many others come and go, which nothing was sent to.
    for port in 2..1500 {
        let (number, at) = add(port);
        table.end(number);
        assert!(UdpSocket::bind(at).is_ok(), "nothing is kept of it");
    }
    assert_eq!(table.way_to(endpoint), Some(at), "what was sent there still goes nowhere else");
    // Where there is no other number it is given.
    let others: Vec<_> = (0..NUMBERS.len() as u16).map(|port| add(2000 + port)).collect();
    assert_eq!(others.last().map(|(number, _)| *number), Some(number));
}

#[test]
fn connections_to_other_addresses_are_others() {
    let mut host = Host::new(Times::default());
    let flow = |local: &str| FlowTuple {
        transport: Transport::Tcp,
        local: local.parse().expect("an endpoint"),
        remote: "[2001:db8::1]:50000".parse().expect("an endpoint"),
    };
    let port = host.streams.listen("127.0.0.7:0".parse().expect("an endpoint")).expect("listen");
    assert!(host.streams.own().has(&flow(&format!("127.0.0.7:{port}"))));
    assert!(!host.streams.own().has(&flow(&format!("127.0.0.8:{port}"))), "a web server's, say");
    let port = host.streams.listen("0.0.0.0:0".parse().expect("an endpoint")).expect("listen");
    assert!(host.streams.own().has(&flow(&format!("127.0.0.8:{port}"))));
    assert!(!host.streams.own().has(&flow(&format!("[::1]:{port}"))));
    let port = host.streams.listen("[::]:0".parse().expect("an endpoint")).expect("listen");
    assert!(host.streams.own().has(&flow(&format!("127.0.0.8:{port}"))));
    assert!(host.streams.own().has(&flow(&format!("[::1]:{port}"))));
    // An address that is not there yet, as when a host starts.
    assert!(host.streams.listen("192.0.2.77:0".parse().expect("an endpoint")).is_ok());
}

#[test]
fn own_connections_are_known() {
    let (server, at) = Host::listening(Times::default());
    let mut client = Host::new(Times::default());
    assert!(!client.streams.own().has(&FlowTuple { transport: Transport::Tcp, local: at, remote: at }));
    let endpoint = client.connect(at);
    client.send(endpoint, b"one");
    let (_, seen) = server.receive();
    let local = server.streams.far_end(seen).expect("a connection");
    assert!(client.streams.own().has(&FlowTuple { transport: Transport::Tcp, local, remote: at }));
    assert!(server.streams.own().has(&FlowTuple { transport: Transport::Tcp, local: at, remote: local }));
    assert!(!client.streams.own().has(&FlowTuple { transport: Transport::Tcp, local: at, remote: local }));
}
