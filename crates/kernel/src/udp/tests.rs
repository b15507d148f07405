//! On loopback, with ports that the kernel chooses.

use super::*;

fn wait_readable(socket: &UdpSocket) {
    let mut fd = libc::pollfd { fd: socket.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 5000) }, 1, "nothing arrived in 5 s");
}

fn receive_all(socket: &UdpSocket, datagrams: usize) -> Vec<(Received, Vec<u8>)> {
    let mut batch = ReceiveBatch::new();
    let mut all = Vec::new();
    while all.len() < datagrams {
        wait_readable(socket);
        socket.receive(&mut batch).unwrap();
        let (buffer, received) = batch.parts();
        for message in received {
            let bytes = &buffer[message.start..message.start + message.len];
            all.extend(bytes.chunks(message.stride).map(|datagram| (*message, datagram.to_vec())));
        }
    }
    all
}

fn local(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

#[test]
fn trains_arrive_as_their_datagrams_in_both_families() {
    let (a, b) = (UdpSocket::bind(0).unwrap(), UdpSocket::bind(0).unwrap());
    for address in ["127.0.0.1", "::1"] {
        if address == "::1" && !a.is_dual_stack() {
            continue;
        }
        let contents: Vec<u8> = (0..150_000u32).map(|i| (i / 7) as u8).collect();
        let destination = local(address, b.port());
        let report = a.send(&[Transmit {
            destination,
            source: Some(destination.ip()),
            interface: None,
            contents: &contents,
            segment_size: Some(1400),
        }]);
        let count = contents.len().div_ceil(1400);
        assert_eq!((report.sent, report.dropped), (count, 0), "{:?}", report.error);
        let all = receive_all(&b, count);
        assert_eq!(all.iter().map(|(_, datagram)| datagram.len()).max(), Some(1400));
        assert!(all.iter().all(|(received, _)| received.source == local(address, a.port())));
        assert!(all.iter().all(|(received, _)| received.destination == Some(destination.ip())));
        assert!(all.iter().all(|(received, _)| received.interface.is_some_and(|index| index > 0)));
        assert_eq!(all.into_iter().flat_map(|(_, datagram)| datagram).collect::<Vec<_>>(), contents);
    }
}

#[test]
fn many_destinations_in_one_call() {
    let sender = UdpSocket::bind(0).unwrap();
    let receivers: Vec<_> = (0..40).map(|_| UdpSocket::bind(0).unwrap()).collect();
    let transmits: Vec<_> = receivers
        .iter()
        .map(|receiver| Transmit {
            destination: local("127.0.0.1", receiver.port()),
            source: None,
            interface: None,
            contents: b"hello",
            segment_size: None,
        })
        .collect();
    assert_eq!(sender.send(&transmits).sent, 40);
    for receiver in &receivers {
        assert_eq!(receive_all(receiver, 1)[0].1, b"hello");
    }
}

#[test]
fn a_source_of_choice_is_seen_by_the_receiver() {
    let (a, b) = (UdpSocket::bind(0).unwrap(), UdpSocket::bind(0).unwrap());
    let transmit = Transmit {
        destination: local("127.0.0.1", b.port()),
        source: Some("127.0.0.77".parse().unwrap()),
        interface: None,
        contents: b"x",
        segment_size: None,
    };
    assert_eq!(a.send(&[transmit]).sent, 1);
    assert_eq!(receive_all(&b, 1)[0].0.source, local("127.0.0.77", a.port()));
}

#[test]
fn an_interface_of_choice_is_gone_by_or_not_at_all() {
    let (a, b) = (UdpSocket::bind(0).unwrap(), UdpSocket::bind(0).unwrap());
    for address in ["127.0.0.1", "::1"] {
        if address == "::1" && !a.is_dual_stack() {
            continue;
        }
        let destination = local(address, b.port());
        let by = |interface| Transmit {
            destination,
            source: Some(destination.ip()),
            interface: Some(interface),
            contents: b"x",
            segment_size: None,
        };
        // Loopback is 1 in every namespace, and no interface has the highest number.
        assert_eq!(a.send(&[by(1)]).sent, 1);
        assert_eq!(receive_all(&b, 1)[0].0.interface, Some(1));
        assert_eq!(a.send(&[by(i32::MAX as u32)]).sent, 0);
    }
}

#[test]
fn a_closed_port_is_reported_and_does_not_spoil_the_next_send() {
    let socket = UdpSocket::bind(0).unwrap();
    let addresses = if socket.is_dual_stack() { &["127.0.0.1", "::1"][..] } else { &["127.0.0.1"] };
    for address in addresses {
        let closed = local(address, UdpSocket::bind(0).unwrap().port());
        let transmit =
            Transmit { destination: closed, source: None, interface: None, contents: b"anyone?!?", segment_size: None };
        assert_eq!(socket.send(&[transmit]).sent, 1);
        wait_readable(&socket);
        let receiver = UdpSocket::bind(0).unwrap();
        let transmit = Transmit { destination: local(address, receiver.port()), ..transmit };
        assert_eq!(socket.send(&[transmit]).sent, 1);
        assert_eq!(receive_all(&receiver, 1).len(), 1);
        let report = socket.receive_error().unwrap().unwrap();
        assert!(report.is_port_unreachable(), "{report:?}");
        assert_eq!((report.destination, report.reporter), (closed, Some(closed.ip())));
        assert_eq!(report.quoted.as_ref(), b"anyone?!".first_chunk());
        assert_eq!(socket.receive_error().unwrap(), None);
        assert_eq!(socket.receive(&mut ReceiveBatch::new()).unwrap(), 0);
    }
}

#[test]
fn errors_about_datagrams_never_end_a_receive() {
    let refused = || io::Error::from_raw_os_error(libc::ECONNREFUSED);
    // As fast as they are taken.
    assert_eq!(past_stale_errors(|| Err(refused())).unwrap(), 0);
    let mut results = vec![Ok(3), Err(refused())];
    assert_eq!(past_stale_errors(|| results.pop().unwrap()).unwrap(), 3);
    assert!(past_stale_errors(|| Err(io::Error::from_raw_os_error(libc::EBADF))).is_err());
}
