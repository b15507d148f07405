//! Two tunnels between two network namespaces, with real sockets on both ends. The two ends know each flow under
//! different addresses and ports. Needs root; without it the tests say that they skip.

mod agreed;
mod chains;
mod hosts;
#[path = "../../../transform/tests/support/pairs.rs"]
mod pairs;
mod twice;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use hosts::{Host, Inner, Outer, Pair, is_root};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use whimbrel_tunnel::{Counter, Lease, LeasedEnd, Received, TunnelFlow};
use whimbrel_wire::{PeerId, Transport};

const PATIENCE: Duration = Duration::from_secs(20);

fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn connect_from(local: SocketAddr, remote: SocketAddr) -> TcpStream {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket(family, SocketType::STREAM, None).unwrap();
    bind(&fd, &local).unwrap();
    connect(&fd, &remote).unwrap();
    TcpStream::from(fd)
}

/// Bytes that do not repeat within a segment or window.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Sends `len` bytes from A to B and the same back, and checks every one.
fn exchange_tcp(pair: &Pair, len: usize) {
    let flow = pair.flow(Transport::Tcp);
    let listener = pair.b.enter(|| TcpListener::bind(flow.b.local).unwrap());
    // The listener's backlog completes the connection.
    let client = pair.a.enter(|| connect_from(flow.a.local, flow.a.remote));
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(from, flow.b.remote, "the server sees the peer under its own name for it");
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = pattern(len);
    let mut back = client.try_clone().unwrap();
    back.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn({
            let (mut client, sent) = (&client, &sent);
            move || client.write_all(sent).unwrap()
        });
        let echo = scope.spawn(move || {
            let mut received = vec![0; len];
            server.read_exact(&mut received).unwrap();
            server.write_all(&received).unwrap();
            received
        });
        let mut returned = vec![0; len];
        back.read_exact(&mut returned).unwrap();
        writer.join().unwrap();
        assert!(echo.join().unwrap() == sent, "what B received differs");
        assert!(returned == sent, "what came back differs");
    });
}

#[test]
fn tcp_is_byte_exact_in_all_kinds_of_tunnels() {
    if !is_root() {
        return;
    }
    for inner in [Inner::V4, Inner::V6] {
        for outer in [Outer::V4, Outer::V6] {
            for sealed in [false, true] {
                let pair = Pair::new(inner, outer, sealed, 1500);
                exchange_tcp(&pair, 8 << 20);
                for host in [&pair.a, &pair.b] {
                    let counters = host.tunnel.counters();
                    assert!(counters.get(Counter::BytesReceived) > 8 << 20);
                    for bad in [Counter::SendFailed, Counter::Malformed, Counter::ForeignFlow, Counter::WriteFailed] {
                        assert_eq!(counters.get(bad), 0, "{bad:?} {inner:?} {outer:?} {sealed}");
                    }
                }
            }
        }
    }
}

#[test]
fn segments_made_for_a_larger_path_go_in_fragments() {
    if !is_root() {
        return;
    }
    for sealed in [false, true] {
        let pair = Pair::new(Inner::V4, Outer::V4, sealed, 1500);
        // The device still cuts for 1500, the path carries 1400.
        for host in [&pair.a, &pair.b] {
            host.tunnel.device().set_mtu(1500).unwrap();
            host.ip(&["link", "set", "veth", "mtu", "1400"]);
        }
        exchange_tcp(&pair, 2 << 20);
        assert_eq!(pair.a.tunnel.counters().get(Counter::SendFailed), 0);
    }
}

#[test]
fn datagrams_pass_whole_and_fragmented() {
    if !is_root() {
        return;
    }
    for inner in [Inner::V4, Inner::V6] {
        let pair = Pair::new(inner, Outer::V4, true, 1500);
        let flow = pair.flow(Transport::Udp);
        let a = pair.a.enter(|| UdpSocket::bind(flow.a.local).unwrap());
        let b = pair.b.enter(|| UdpSocket::bind(flow.b.local).unwrap());
        for socket in [&a, &b] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        for len in [0, 1, 1200, 1472, 9000, 60_000] {
            let sent = pattern(len);
            a.send_to(&sent, flow.a.remote).unwrap();
            let mut received = vec![0; 65_536];
            let (count, from) = b.recv_from(&mut received).unwrap();
            assert!((&received[..count], from) == (&sent[..], flow.b.remote), "{len} bytes");
            b.send_to(&received[..count], from).unwrap();
            let (count, from) = a.recv_from(&mut received).unwrap();
            assert!((&received[..count], from) == (&sent[..], flow.a.remote), "{len} bytes back");
        }
    }
}

#[test]
fn what_is_forged_or_foreign_is_dropped_and_counted() {
    // P-1, P-23
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    let stranger = pair.a.enter(|| UdpSocket::bind((pair.a.outer_address, 0)).unwrap());
    let to = SocketAddr::new(pair.b.outer_address, hosts::PORT);
    let count = |counter| pair.b.tunnel.counters().get(counter);
    let attempt = |bytes: &[u8], counter| {
        let before = count(counter);
        stranger.send_to(bytes, to).unwrap();
        until(&format!("{counter:?} to rise"), || (count(counter) > before).then_some(()));
    };
    let inner = hosts::udp_packet(pair.flow(Transport::Udp).b);
    let foreign = hosts::udp_packet(pair.flow(Transport::Udp).b.mirrored());
    attempt(&[0x20; 3], Counter::Malformed);
    attempt(&hosts::sealed(&pair.b, 99, 1, &inner, 0), Counter::UnknownIndex);
    attempt(&hosts::sealed(&pair.b, pair.b.receive_index, 1, &inner, 1), Counter::BadTag);
    assert!(pair.b.tunnel.heard().is_empty(), "whoever forges is not the peer");
    attempt(&hosts::sealed(&pair.b, pair.b.receive_index, 7, &foreign, 0), Counter::ForeignFlow);
    let (own_error, foreign_error) = (hosts::error_about(&foreign), hosts::error_about(&inner));
    attempt(&hosts::sealed(&pair.b, pair.b.receive_index, 8, &foreign_error, 0), Counter::ForeignFlow);
    let heard = pair.b.tunnel.heard();
    assert_eq!(heard.len(), 1, "what the peer has sealed is of the peer, whatever it is");
    attempt(&hosts::sealed(&pair.b, pair.b.receive_index, 7, &inner, 0), Counter::Replayed);
    assert_eq!(pair.b.tunnel.heard(), heard, "what is sent again says nothing");
    attempt(&hosts::plain(&pair.b, 0, &inner), Counter::BadToken);
    pair.b.set_path(|path| path.accept_plain = true);
    attempt(&hosts::plain(&pair.b, 1, &inner), Counter::BadToken);
    attempt(&hosts::plain(&pair.b, 0, &inner), Counter::BadSource);
    assert_eq!(count(Counter::PacketsReceived), 0);
    pair.b.set_path(|path| path.former = vec![stranger.local_addr().unwrap()]);
    attempt(&hosts::plain(&pair.b, 0, &inner), Counter::PacketsReceived);
    attempt(&hosts::plain(&pair.b, 0, &own_error), Counter::PacketsReceived);
    assert_eq!(pair.b.tunnel.receive_control(), None);
}

/// P-110
#[test]
fn an_error_about_a_flow_reaches_its_socket_under_the_names_that_it_has() {
    if !is_root() {
        return;
    }
    for inner in [Inner::V4, Inner::V6] {
        let pair = Pair::new(inner, Outer::V4, true, 1500);
        let names = pair.flow(Transport::Udp);
        for (host, own) in [(&pair.a, names.a), (&pair.b, names.b)] {
            let socket = host.enter(|| UdpSocket::bind(own.local).unwrap());
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            socket.connect(own.remote).unwrap();
            // A tunnel that had no processor for a second drops what waited.
            let deadline = Instant::now() + PATIENCE;
            let told = loop {
                let told = socket.send(&[0]).and_then(|_| socket.recv(&mut [0])).expect_err("nobody is there");
                if told.kind() != ErrorKind::WouldBlock || Instant::now() > deadline {
                    break told;
                }
            };
            assert_eq!(told.kind(), ErrorKind::ConnectionRefused, "{told}");
        }
    }
}

/// P-111
#[test]
fn whoever_sends_by_the_tunnel_from_elsewhere_is_told_what_fits_it() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V6, Outer::V4, true, 1400);
    let names = pair.flow(Transport::Udp);
    let receiver = pair.b.enter(|| UdpSocket::bind(names.b.local).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = pair.a.enter(|| UdpSocket::bind(names.a.local).unwrap());
    sender.connect(names.a.remote).unwrap();
    let written = |host: &Host| host.tunnel.counters().get(Counter::PacketsReceived);
    let sent = pattern(1380);
    let mut received = vec![0; 2000];
    let arrives = |received: &mut [u8]| receiver.recv(received).map(|count| received[..count] == sent[..]);
    // This host's own sockets go by its routes.
    sender.send(&sent).unwrap();
    assert!(arrives(&mut received).unwrap());
    assert_eq!(written(&pair.a), 0);
    pair.a.tunnel.set_flow(TunnelFlow { own: names.a, binding: hosts::BINDING, peer_tuple: names.b, elsewhere: true });
    sender.send(&sent).unwrap();
    assert!(arrives(&mut received).unwrap(), "it goes in fragments of the tunnel's");
    // Once the kernel knows, it cuts itself.
    until("the kernel knows what fits", || {
        sender.send(&sent).unwrap();
        assert!(arrives(&mut vec![0; 2000]).unwrap());
        let known = pair.a.enter(|| hosts::known_mtu(&sender));
        (known < 1380).then_some(())
    });
}

#[test]
fn without_flow_path_or_allowance_nothing_is_sent() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    let flow = pair.flow(Transport::Udp).a;
    let socket = pair.a.enter(|| UdpSocket::bind(flow.local).unwrap());
    let count = |counter| pair.a.tunnel.counters().get(counter);
    let attempt = |counter| {
        let before = count(counter);
        socket.send_to(&[1; 100], flow.remote).unwrap();
        until(&format!("{counter:?} to rise"), || (count(counter) > before).then_some(()));
    };
    attempt(Counter::PacketsSent);
    // Each datagram is 100 + 28 inside and 18 + 16 around: one is allowed, two are not.
    pair.a.set_path(|path| path.allowance = Some(200));
    attempt(Counter::PacketsSent);
    attempt(Counter::Unconfirmed);
    // What had to wait goes when the path is confirmed.
    let before = count(Counter::PacketsSent);
    pair.a.set_path(|path| path.allowance = None);
    assert_eq!(count(Counter::PacketsSent), before + 1);
    pair.a.tunnel.remove_path(hosts::BINDING);
    attempt(Counter::NoPath);
    pair.a.tunnel.remove_flow(&flow);
    attempt(Counter::NoFlow);
}

#[test]
fn what_is_of_no_flow_is_carried_for_a_lease() {
    if !is_root() {
        return;
    }
    // a has its end from b.
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    let names = pair.flow(Transport::Udp);
    pair.a.tunnel.remove_flow(&names.a);
    let (node, beyond) = (names.a.local, names.a.remote);
    pair.b.ip(&["addr", "add", &beyond.ip().to_string(), "dev", "lo"]);
    pair.b.ip(&["route", "add", &node.ip().to_string(), "dev", "whimbrel"]);
    let a = pair.a.enter(|| UdpSocket::bind(node).unwrap());
    let b = pair.b.enter(|| UdpSocket::bind(beyond).unwrap());
    for socket in [&a, &b] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let rises = |host: &hosts::Host, counter, before| {
        until(&format!("{counter:?} to rise"), || (host.tunnel.counters().get(counter) > before).then_some(()));
    };
    a.send_to(&[0], beyond).unwrap();
    rises(&pair.a, Counter::NoFlow, 0);
    let end = LeasedEnd { transport: Transport::Udp, address: node.ip(), port: node.port() };
    pair.a.tunnel.set_lease(end, Lease::From(hosts::PEER));
    // Whoever says to have it has to have it.
    let before = pair.b.tunnel.counters().get(Counter::ForeignFlow);
    a.send_to(&[1], beyond).unwrap();
    rises(&pair.b, Counter::ForeignFlow, before);
    // The whole address; ports by themselves go before it.
    let address = LeasedEnd { port: 0, ..end };
    pair.b.tunnel.set_lease(address, Lease::To(hosts::PEER));
    for len in [2, 9000] {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let sent = pattern(len);
            from.send_to(&sent, to.local_addr().unwrap()).unwrap();
            let mut received = vec![0; 65_536];
            let (count, sender) = to.recv_from(&mut received).unwrap();
            assert!((&received[..count], sender) == (&sent[..], from.local_addr().unwrap()), "{len} bytes");
        }
    }
    pair.b.tunnel.set_lease(end, Lease::To(PeerId(8)));
    let before = pair.b.tunnel.counters().get(Counter::ForeignFlow);
    a.send_to(&[3], beyond).unwrap();
    rises(&pair.b, Counter::ForeignFlow, before);
    pair.b.tunnel.remove_lease(&end);
    a.send_to(&[4], beyond).unwrap();
    let mut received = [0; 8];
    assert_eq!(b.recv(&mut received).unwrap(), 1);
    assert_eq!(received[0], 4);
    // Without it nothing goes.
    pair.a.tunnel.remove_lease(&end);
    let before = pair.a.tunnel.counters().get(Counter::NoFlow);
    a.send_to(&[5], beyond).unwrap();
    rises(&pair.a, Counter::NoFlow, before);
}

/// Fewer than wait at the most.
const INITIATIONS: usize = 100;

#[test]
fn control_datagrams_and_errors_reach_the_control_thread() {
    if !is_root() {
        return;
    }
    for outer in [Outer::V4, Outer::V6] {
        let pair = Pair::new(Inner::V4, outer, true, 1500);
        let (a, b) = (&pair.a, &pair.b);
        let to = SocketAddr::new(b.outer_address, hosts::PORT);
        a.tunnel.send_control(Some(a.outer_address), None, to, b"\x10control").unwrap();
        b.wait_woken(PATIENCE);
        let received = until("the datagram", || b.tunnel.receive_control());
        let Received::Datagram { source, destination, bytes, .. } = received else { panic!("{received:?}") };
        assert_eq!(source, SocketAddr::new(a.outer_address, hosts::PORT));
        assert_eq!((destination, bytes.as_slice()), (Some(b.outer_address), &b"\x10control"[..]));

        // What anybody may send waits by itself, however much of it there is.
        for _ in 0..INITIATIONS {
            a.tunnel.send_control(Some(a.outer_address), None, to, b"\x01anyone").unwrap();
        }
        a.tunnel.send_control(Some(a.outer_address), None, to, b"\x10after them").unwrap();
        let received = until("the datagram behind them", || b.tunnel.receive_control());
        assert!(matches!(&received, Received::Datagram { bytes, .. } if bytes == b"\x10after them"), "{received:?}");
        let initiations = std::iter::from_fn(|| b.tunnel.receive_initiation()).collect::<Vec<_>>();
        assert_eq!(initiations.len(), INITIATIONS);
        assert!(initiations.iter().all(|of| matches!(of, Received::Datagram { bytes, .. } if bytes == b"\x01anyone")));

        let closed = SocketAddr::new(b.outer_address, 9);
        a.tunnel.send_control(None, None, closed, b"\x01anyone").unwrap();
        a.wait_woken(PATIENCE);
        let received = until("the report", || a.tunnel.receive_control());
        let Received::Error(report) = received else { panic!("{received:?}") };
        assert!(report.is_port_unreachable() && report.destination == closed, "{report:?}");
        assert_eq!(report.reporter, Some(b.outer_address));
    }
}

#[test]
fn the_control_thread_learns_that_the_device_is_gone() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    assert!(pair.a.tunnel.is_running());
    pair.a.ip(&["link", "del", pair.a.tunnel.device().name()]);
    pair.a.wait_woken(PATIENCE);
    until("the pump to end", || (!pair.a.tunnel.is_running()).then_some(()));
}

#[test]
fn a_source_that_is_gone_fails_and_its_return_mends() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    let flow = pair.flow(Transport::Udp);
    let a = pair.a.enter(|| UdpSocket::bind(flow.a.local).unwrap());
    let b = pair.b.enter(|| UdpSocket::bind(flow.b.local).unwrap());
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = format!("{}/24", pair.a.outer_address);
    pair.a.ip(&["addr", "del", &address, "dev", "veth"]);
    pair.a.ip(&["addr", "add", "192.0.2.200/24", "dev", "veth"]);
    a.send_to(b"lost", flow.a.remote).unwrap();
    until("the failure", || (pair.a.tunnel.counters().get(Counter::SendFailed) > 0).then_some(()));
    pair.a.set_path(|path| path.source = Some("192.0.2.200".parse().unwrap()));
    a.send_to(b"found", flow.a.remote).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (5, flow.b.remote));
}

#[test]
fn the_device_outlives_its_daemon() {
    if !is_root() {
        return;
    }
    let mut pair = Pair::new(Inner::V4, Outer::V4, false, 1500);
    exchange_tcp(&pair, 1 << 16);
    let index = pair.a.tunnel.device().index();
    pair.a = pair.a.restart();
    assert_eq!(pair.a.tunnel.device().index(), index);
    let flow = pair.flow(Transport::Udp);
    let socket = pair.a.enter(|| UdpSocket::bind(flow.a.local).unwrap());
    let peer = pair.b.enter(|| UdpSocket::bind(flow.b.local).unwrap());
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    // The route through the device is still there: nobody set it again.
    socket.send_to(b"again", flow.a.remote).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(peer.recv_from(&mut buffer).unwrap(), (5, flow.b.remote));
    let _: &Host = &pair.a;
}
