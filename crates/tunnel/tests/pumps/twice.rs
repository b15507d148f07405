//! Datagrams that go by two ways: what comes first counts (P-262).

use std::net::UdpSocket;

use whimbrel_tunnel::{Counter, SecondWay};
use whimbrel_wire::Transport;

use crate::hosts::{Host, Inner, Outer, PORT, Pair, is_root};
use crate::{PATIENCE, exchange_tcp, until};

/// A second address at each end, by which everything goes as well.
const SECOND: [&str; 2] = ["198.18.0.1", "198.18.0.2"];

/// Both ends send all by both ways.
fn both(mtu: u32) -> Pair {
    let pair = Pair::new(Inner::V4, Outer::V4, true, mtu);
    for (host, [own, other]) in [(&pair.a, SECOND), (&pair.b, [SECOND[1], SECOND[0]])] {
        host.ip(&["addr", "add", &format!("{own}/24"), "dev", "veth"]);
        let remote = (other.parse::<std::net::IpAddr>().unwrap(), PORT).into();
        let second = SecondWay { source: Some(own.parse().unwrap()), interface: None, remote };
        host.set_path(|path| path.second = Some(second));
    }
    pair
}

fn counted(host: &Host, counter: Counter) -> u64 {
    host.tunnel.counters().get(counter)
}

#[test]
fn all_goes_twice_and_comes_once() {
    if !is_root() {
        return;
    }
    let pair = both(1500);
    exchange_tcp(&pair, 4 << 20);
    for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        let sent = counted(from, Counter::DuplicatesSent);
        assert_eq!(sent, counted(from, Counter::PacketsSent), "each by both ways");
        until("what goes by the second way", || (counted(to, Counter::Replayed) >= sent / 2).then_some(()));
        assert!(counted(to, Counter::PacketsReceived) <= sent, "what comes again is not delivered");
        for bad in [Counter::SendFailed, Counter::Malformed, Counter::BadTag, Counter::WriteFailed] {
            assert_eq!(counted(to, bad), 0, "{bad:?}");
        }
    }
}

#[test]
fn either_way_is_enough() {
    if !is_root() {
        return;
    }
    for gone in ["192.0.2.2/24", "198.18.0.2/24"] {
        let pair = both(1500);
        // Nobody answers for it any more, and the other end knows nothing of that.
        pair.b.ip(&["addr", "del", gone, "dev", "veth"]);
        let back = pair.b.enter(|| UdpSocket::bind(pair.flow(Transport::Udp).b.local).unwrap());
        let there = pair.a.enter(|| UdpSocket::bind(pair.flow(Transport::Udp).a.local).unwrap());
        back.set_read_timeout(Some(PATIENCE)).unwrap();
        for number in 0..100u8 {
            there.send_to(&[number; 32], pair.flow(Transport::Udp).a.remote).unwrap();
            let mut buffer = [0; 64];
            assert_eq!(back.recv(&mut buffer).unwrap(), 32, "without {gone}");
            assert_eq!(buffer[..32], [number; 32], "without {gone}");
        }
        if gone.starts_with("192") {
            continue;
        }
        // That the second way is gone is no failure of the first.
        assert_eq!(counted(&pair.a, Counter::SendFailed), 0);
    }
}

#[test]
fn what_is_plain_goes_by_one_way_alone() {
    if !is_root() {
        return;
    }
    let pair = both(1500);
    pair.a.set_path(|path| (path.sealed, path.accept_plain) = (false, true));
    pair.b.set_path(|path| (path.sealed, path.accept_plain) = (false, true));
    let before = counted(&pair.a, Counter::DuplicatesSent);
    exchange_tcp(&pair, 1 << 20);
    assert_eq!(counted(&pair.a, Counter::DuplicatesSent), before);
}

#[test]
fn a_second_way_that_carries_less_decides_how_long_a_packet_may_be() {
    let path = |second: Option<&str>, remote: &str| whimbrel_tunnel::TunnelPath {
        send_index: 1,
        sealed: true,
        accept_plain: false,
        former: Vec::new(),
        source: None,
        interface: None,
        remote: remote.parse().unwrap(),
        second: second.map(|remote| SecondWay { source: None, interface: None, remote: remote.parse().unwrap() }),
        allowance: None,
        path_mtu: 1500,
        chain: None,
    };
    let (v4, v6) = ("192.0.2.2:2031", "[2001:db8::2]:2031");
    assert_eq!(path(Some(v4), v4).inner_mtu(), path(None, v4).inner_mtu());
    assert_eq!(path(Some(v6), v4).inner_mtu(), path(None, v6).inner_mtu());
    assert_eq!(path(Some(v4), v6).inner_mtu(), path(None, v6).inner_mtu());
}
