//! Connections of TCP that carry datagrams where the process has no descriptors left. The limit is the process's, so
//! this is the only test here.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whimbrel_tunnel::tcp::Streams;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);
const ROUNDS: u32 = 500;

fn round(daemon: &UdpSocket, streams: &Streams, stream: &mut TcpStream) {
    let mut buffer = [0; 64];
    stream.write_all(b"\0\x05hello").expect("write");
    let (_, source) = daemon.recv_from(&mut buffer).expect("a datagram");
    let endpoint = streams.named(source).expect("that of a connection");
    daemon.send_to(b"world", streams.way_to(endpoint).expect("a way")).expect("sending");
    stream.read_exact(&mut buffer[..7]).expect("an answer");
}

#[test]
fn who_cannot_be_accepted_holds_up_nobody_and_is_accepted_later() {
    let daemon = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    daemon.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut streams = Streams::new(daemon.local_addr().expect("a name").port(), 512..=1023).expect("streams");
    let port = streams.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("listen");
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let connect = || {
        let stream = TcpStream::connect(at).expect("connect");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream
    };
    let mut there = connect();
    round(&daemon, &streams, &mut there);
    let began = Instant::now();
    (0..ROUNDS).for_each(|_| round(&daemon, &streams, &mut there));
    let usual = began.elapsed();

    let former = getrlimit(Resource::Nofile);
    let mut waiting = connect();
    round(&daemon, &streams, &mut waiting);
    let next = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(std::os::fd::OwnedFd::from).expect("bind");
    let most = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&next)).expect("a descriptor") + 1;
    // One more for this end, and none for the other.
    setrlimit(Resource::Nofile, Rlimit { current: Some(most + 1), ..former }).expect("setrlimit");
    let mut late = connect();
    late.write_all(b"\0\x04late").expect("write");
    let began = Instant::now();
    (0..ROUNDS).for_each(|_| round(&daemon, &streams, &mut there));
    let meanwhile = began.elapsed();
    assert!(meanwhile < usual * 3 + Duration::from_secs(1), "{meanwhile:?}, and {usual:?} before");

    setrlimit(Resource::Nofile, former).expect("setrlimit");
    let mut buffer = [0; 64];
    let (length, _) = daemon.recv_from(&mut buffer).expect("a datagram");
    assert_eq!(&buffer[..length], b"late");
}
