//! The host that stays sends to the address of a peer that has left the link.

mod hosts;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;

use hosts::{Host, PLANS, Plan, exchange, wait};
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::peer_route::{PeerRoutes, PeerWay};
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::tun::{MAX_PACKET, Tun, VNET_LEN};

const MARK: Mark = Mark { value: 0x100, mask: 0xff00 };

fn state(host: &Host) -> String {
    let text = host.sh("for f in -4 -6; do ip $f rule; ip $f route show table all | grep -v fe80 | grep -v ff00; done");
    text.replace("linkdown ", "")
}

fn a_peer_left_the_link(plan: &Plan) {
    let (peer, host) = plan.build();
    let tun = host.on(|| Tun::open("wbt", 1400).unwrap());
    // On the link, and not by way of a gateway.
    let to = (plan.router.parse::<IpAddr>().unwrap(), 0).into();
    let (mut far, mut near) = peer.connect(&host, to);
    exchange(&mut near, &mut far);
    let gone: IpAddr = plan.client.parse().unwrap();
    let before = state(&host);

    let mut routes = host.on(|| PeerRoutes::open(MARK).unwrap());
    plan.roam(&peer);
    host.sh(&format!("{} neigh flush dev p0", plan.ip));
    let source = near.local_addr().unwrap().ip();
    let way = PeerWay { interface: tun.index(), gateway: None, otherwise: None, source: Some(source), mtu: Some(1400) };
    let wanted = BTreeMap::from([(gone, way)]);
    assert!(routes.apply(&wanted).unwrap());
    assert!(!routes.apply(&wanted).unwrap());
    assert_eq!(routes.routed().unwrap().into_iter().collect::<Vec<_>>(), [gone]);
    assert_eq!(routes.under(gone, None).unwrap().interface, host.index("p0"));

    near.write_all(b"x").unwrap();
    let mut packet = vec![0; VNET_LEN + MAX_PACKET];
    let port = near.local_addr().unwrap().port().to_be_bytes();
    wait("the segment comes out of the TUN device", || {
        let length = tun.read(&mut [std::io::IoSliceMut::new(&mut packet)]).unwrap().unwrap_or(0);
        let header = if plan.ipv4 { 20 } else { 40 };
        packet[..length].get(VNET_LEN + header..).is_some_and(|segment| segment.starts_with(&port))
    });

    // By another interface to where the peer is, and by the TUN device when that is gone.
    host.sh("ip link add other type veth peer name end; ip link set other up; ip link set end up");
    let next_hop = if plan.ipv4 { "10.77.0.1" } else { "fd77::1" }.parse().unwrap();
    let straight =
        PeerWay { interface: host.index("other"), gateway: Some(next_hop), otherwise: Some(tun.index()), ..way };
    assert!(routes.apply(&BTreeMap::from([(gone, straight)])).unwrap());
    assert!(!routes.apply(&BTreeMap::from([(gone, straight)])).unwrap());
    let mut lookup = host.on(|| RouteSocket::open().unwrap());
    let way_out = lookup.route_to(gone, Some(source), None).unwrap();
    assert_eq!((way_out.interface, way_out.gateway, way_out.mtu), (straight.interface, Some(next_hop), Some(1400)));
    host.sh("ip link del other");
    assert_eq!(lookup.route_to(gone, Some(source), None).unwrap().interface, tun.index());
    assert!(routes.apply(&wanted).unwrap());

    // A new process takes over, and removes everything.
    drop(routes);
    let mut next = host.on(|| PeerRoutes::open(MARK).unwrap());
    assert_eq!(next.routed().unwrap().len(), 1);
    next.release().unwrap();
    assert_eq!(state(&host), before);

    // A step that fails leaves nothing.
    let wrong = PeerWay { interface: 9999, ..way };
    let error = next.apply(&BTreeMap::from([("10.0.0.1".parse().unwrap(), way), (gone, wrong)])).unwrap_err();
    assert_eq!(error.effect(), whimbrel_kernel::Effect::None, "{error}");
    assert_eq!(state(&host), before);
}

#[test]
#[ignore = "needs root"]
fn segments_reach_the_tun_device() {
    for plan in &PLANS {
        a_peer_left_the_link(plan);
    }
}

/// A tunnelled peer: the same next hop, with a smaller MTU.
#[test]
#[ignore = "needs root"]
fn a_smaller_mtu_makes_smaller_segments_without_an_error() {
    for plan in &PLANS {
        let (host, peer) = plan.build();
        let (mut near, mut far) = host.connect(&peer, plan.server_socket());
        exchange(&mut near, &mut far);
        let peer_address: IpAddr = plan.server.parse().unwrap();
        let mut lookup = host.on(|| RouteSocket::open().unwrap());
        let under = lookup.route_to(peer_address, None, None).unwrap();
        // Loss probes do not count: a busy machine may cause some.
        let counted = |name: &str| -> u32 {
            let table = host.sh(&format!("nstat -asz {name}"));
            table.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap().parse().unwrap()
        };
        let before_counts = [counted("TcpRetransSegs") - counted("TcpExtTCPLossProbes"), counted("IpFragCreates")];
        let before = segment_size(&near);
        let mut routes = host.on(|| PeerRoutes::open(MARK).unwrap());
        let way = PeerWay {
            interface: under.interface,
            gateway: under.gateway,
            otherwise: None,
            source: under.source,
            mtu: Some(1300),
        };
        routes.apply(&BTreeMap::from([(peer_address, way)])).unwrap();
        assert_eq!(lookup.route_to(peer_address, None, None).unwrap().mtu, Some(1300));
        assert_eq!(routes.under(peer_address, None).unwrap().mtu, None);
        let mut bulk = vec![1; 20_000];
        let mut send = || {
            near.write_all(&bulk).unwrap();
            far.read_exact(&mut bulk).unwrap();
            segment_size(&near)
        };
        // The socket looks its route up again when it sends, and at the route's MTU before (tcp_current_mss): the first
        // flight may still have the old size.
        let mut settled = || {
            send();
            send()
        };
        assert_eq!(settled(), before - 200);
        routes.release().unwrap();
        assert_eq!(settled(), before);
        let after = [counted("TcpRetransSegs") - counted("TcpExtTCPLossProbes"), counted("IpFragCreates")];
        assert_eq!(after, before_counts);
    }
}

/// Bytes of data in a segment now.
fn segment_size(stream: &std::net::TcpStream) -> u32 {
    use std::os::fd::AsRawFd;
    let (mut info, mut length) = ([0u32; 60], 240 as libc::socklen_t);
    // SAFETY: `info` and `length` are valid for writes, and `length` is not more than the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    info[4]
}
