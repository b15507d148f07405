//! Chains of transforms between two hosts.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::num::NonZeroU8;
use std::time::Duration;

use whimbrel_transform::{Chain, Direction, DropReason, StageCounters, Traffic};
use whimbrel_tunnel::{Counter, PathError};
use whimbrel_wire::Transport;

use super::hosts::{self, BINDING, Host, Inner, Outer, PEER, Pair, is_root};
use super::pairs::Pairs;
use super::{PATIENCE, exchange_tcp, until};

const NUMBER: NonZeroU8 = NonZeroU8::MIN;
/// Longer than anything is waited for.
const NEVER: Duration = Duration::from_secs(600);

fn chain(delay: Duration) -> Chain {
    Chain::new(vec![Box::new(Pairs::new(delay))])
}

fn lead_through(pair: &Pair, delay: Duration) {
    for host in [&pair.a, &pair.b] {
        host.tunnel.set_chain(PEER, NUMBER, chain(delay));
    }
    for host in [&pair.a, &pair.b] {
        host.set_path(|path| path.chain = Some(NUMBER));
    }
}

fn held(host: &Host) -> usize {
    host.tunnel.with_chain(PEER, NUMBER, |chain| chain.held()).unwrap()
}

#[test]
fn tcp_is_byte_exact_through_chains() {
    if !is_root() {
        return;
    }
    for (inner, outer) in [(Inner::V4, Outer::V6), (Inner::V6, Outer::V4)] {
        for sealed in [false, true] {
            let pair = Pair::new(inner, outer, sealed, 1500);
            lead_through(&pair, Duration::from_millis(1));
            exchange_tcp(&pair, 2 << 20);
            for host in [&pair.a, &pair.b] {
                for bad in [Counter::SendFailed, Counter::Malformed, Counter::ForeignFlow, Counter::WriteFailed] {
                    assert_eq!(host.tunnel.counters().get(bad), 0, "{bad:?} {inner:?} {outer:?} {sealed}");
                }
                let counters = host.tunnel.with_chain(PEER, NUMBER, |chain| *chain.counters().next().unwrap().1);
                let counters = counters.unwrap();
                for direction in Direction::ALL {
                    let (entered, left) = (counters.entered(direction), counters.left(direction));
                    assert!(entered.bytes > 2 << 20 && left.bytes > 2 << 20, "{direction:?}: {counters:?}");
                }
                assert!(DropReason::ALL.iter().all(|reason| counters.dropped.of(*reason) == 0), "{counters:?}");
            }
        }
    }
}

#[test]
fn what_is_kept_goes_at_its_deadline_which_may_change() {
    if !is_root() {
        return;
    }
    for sealed in [false, true] {
        let pair = Pair::new(Inner::V4, Outer::V4, sealed, 1500);
        lead_through(&pair, NEVER);
        let names = pair.flow(Transport::Udp);
        let a = pair.a.enter(|| UdpSocket::bind(names.a.local).unwrap());
        let b = pair.b.enter(|| UdpSocket::bind(names.b.local).unwrap());
        b.set_read_timeout(Some(PATIENCE)).unwrap();
        let receive = || {
            let mut buffer = [0; 64];
            // A process that is stopped for a moment is interrupted in a call that has a timeout.
            let receive = || match b.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => None,
                received => Some(received),
            };
            let len = until("a packet", receive).unwrap();
            buffer[..len].to_vec()
        };
        // Nobody confirms, so all but the first wait.
        pair.b.tunnel.remove_path(BINDING);
        a.send_to(b"first", names.a.remote).unwrap();
        assert_eq!(receive(), b"first");
        a.send_to(b"second", names.a.remote).unwrap();
        until("it is kept", || (held(&pair.a) == 1).then_some(()));
        let set = |delay| pair.a.tunnel.with_chain(PEER, NUMBER, |chain| chain.set_parameter(0, "delay_us", delay));
        set(1000).unwrap().unwrap();
        assert_eq!(receive(), b"second");
        assert_eq!(held(&pair.a), 0);
        // The pump sleeps until then.
        set(50_000).unwrap().unwrap();
        a.send_to(b"third", names.a.remote).unwrap();
        assert_eq!(receive(), b"third");

        // On an answer, which the inbound pump takes: what comes second waits until the first is confirmed.
        lead_through(&pair, NEVER);
        for round in 0..50u8 {
            for packet in [[round, 0], [round, 1]] {
                a.send_to(&packet, names.a.remote).unwrap();
            }
            assert_eq!([receive(), receive()], [[round, 0], [round, 1]]);
        }
        let packets = |host: &Host, of: fn(&StageCounters) -> Traffic| {
            host.tunnel.with_chain(PEER, NUMBER, |chain| of(chain.counters().next().unwrap().1).packets).unwrap()
        };
        until("all is confirmed", || {
            let said = packets(&pair.b, |counters| counters.left(Direction::Outbound));
            (packets(&pair.a, |counters| counters.entered(Direction::Inbound)) == said).then_some(())
        });

        // When it is asked for, and when the chain goes.
        pair.b.tunnel.remove_path(BINDING);
        a.send_to(b"first", names.a.remote).unwrap();
        assert_eq!(receive(), b"first");
        a.send_to(b"second", names.a.remote).unwrap();
        until("it is kept", || (held(&pair.a) == 1).then_some(()));
        pair.a.tunnel.release_chain(PEER, NUMBER);
        assert_eq!((held(&pair.a), receive()), (0, b"second".to_vec()));
        a.send_to(b"last", names.a.remote).unwrap();
        until("it is kept", || (held(&pair.a) == 1).then_some(()));
        pair.a.set_path(|path| path.chain = None);
        pair.a.tunnel.remove_chain(PEER, NUMBER);
        a.send_to(b"without", names.a.remote).unwrap();
        assert_eq!([receive(), receive()], [b"last".to_vec(), b"without".to_vec()]);
    }
}

#[test]
fn what_comes_through_a_chain_is_checked_like_all_else() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, false, 1500);
    let count = |counter| pair.b.tunnel.counters().get(counter);
    let to = std::net::SocketAddr::new(pair.b.outer_address, hosts::PORT);
    let send = |number: u8, packet: &[u8]| {
        let mut datagram = hosts::plain(&pair.b, 0, packet);
        datagram[1] = number;
        pair.a.tunnel.send_control(Some(pair.a.outer_address), None, to, &datagram).unwrap();
    };
    let mut own = pair.flow(Transport::Udp).b;
    let rises = |counter, before| until(&format!("{counter:?}"), || (count(counter) > before).then_some(()));
    // No chain is known.
    let encoded = |packet: Vec<u8>| [&[1][..], &packet].concat();
    send(1, &encoded(hosts::udp_packet(own)));
    rises(Counter::Malformed, 0);
    pair.b.tunnel.set_chain(PEER, NUMBER, chain(NEVER));
    // Another one, and one of another peer.
    send(2, &encoded(hosts::udp_packet(own)));
    rises(Counter::Malformed, 1);
    send(1, &encoded(hosts::udp_packet(own)));
    rises(Counter::PacketsReceived, 0);
    // P-23.
    own.local.set_port(1);
    send(1, &encoded(hosts::udp_packet(own)));
    rises(Counter::ForeignFlow, 0);
    // What it makes of it may be no packet.
    send(1, &encoded(vec![7; 30]));
    rises(Counter::Malformed, 2);
    // It is malformed for the transform.
    send(1, &[9, 9, 9]);
    let malformed = || {
        let dropped = pair.b.tunnel.with_chain(PEER, NUMBER, |chain| chain.counters().next().unwrap().1.dropped);
        (dropped.unwrap().of(DropReason::Malformed) == 1).then_some(())
    };
    until("the transform drops it", malformed);
}

/// P-18
#[test]
fn what_is_allowed_and_what_waits_go_along_when_another_chain_is_taken() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    for host in [&pair.a, &pair.b] {
        host.tunnel.set_chain(PEER, NUMBER, chain(NEVER));
    }
    let names = pair.flow(Transport::Udp);
    let a = pair.a.enter(|| UdpSocket::bind(names.a.local).unwrap());
    let b = pair.b.enter(|| UdpSocket::bind(names.b.local).unwrap());
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    let count = |counter| pair.a.tunnel.counters().get(counter);
    let send = |byte, counter| {
        let before = count(counter);
        a.send_to(&[byte; 100], names.a.remote).unwrap();
        until(&format!("{counter:?} to rise"), || (count(counter) > before).then_some(()));
    };
    let receive = || {
        let mut buffer = [0; 200];
        let len = until("a packet", || b.recv(&mut buffer).ok());
        (len, buffer[0])
    };
    // Two datagrams of 162 bytes, or 163 with what the chain adds, and not three.
    pair.a.set_path(|path| path.allowance = Some(330));
    send(1, Counter::PacketsSent);
    pair.a.tunnel.send_through(PEER, Some(NUMBER)).unwrap();
    send(2, Counter::PacketsSent);
    pair.a.tunnel.send_through(PEER, None).unwrap();
    send(3, Counter::Unconfirmed);
    pair.a.tunnel.send_through(PEER, Some(NUMBER)).unwrap();
    assert_eq!([receive(), receive()], [(100, 1), (100, 2)]);
    let before = count(Counter::PacketsSent);
    pair.a.set_path(|path| (path.allowance, path.chain) = (None, Some(NUMBER)));
    assert_eq!((count(Counter::PacketsSent), receive()), (before + 1, (100, 3)));
    let unknown = NonZeroU8::MAX;
    let refused = pair.a.tunnel.send_through(PEER, Some(unknown));
    assert_eq!(refused, Err(PathError::UnknownChain { peer: PEER, number: unknown }));
}

#[test]
fn a_path_through_an_unknown_chain_is_refused() {
    if !is_root() {
        return;
    }
    let pair = Pair::new(Inner::V4, Outer::V4, true, 1500);
    let refused = pair.a.try_set_path(|path| path.chain = Some(NUMBER));
    assert_eq!(refused, Err(PathError::UnknownChain { peer: PEER, number: NUMBER }));
    exchange_tcp(&pair, 1 << 16);
}
