//! What programs are shown of moved flows, and where addresses of before lead them.

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use support::is_root;
use support::pair::{Pair, binding, entry, flow};
use whimbrel_datapath::{Alias, AliasUse, Binding, Carrier, Datapath, Delivery, FlowEntry, features};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(7));

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Where the two ends of a pair are said to be: nothing is sent there.
fn away() -> Binding {
    Binding { local: address("192.0.2.1"), peer: address("192.0.2.2"), ..binding(1, Carrier::Tunnel, false) }
}

/// As the kernel names the calling thread.
fn myself() -> [u8; 16] {
    let comm = std::fs::read("/proc/thread-self/comm").expect("comm");
    let mut name = [0; 16];
    name[..comm.len() - 1].copy_from_slice(&comm[..comm.len() - 1]);
    name
}

fn shown(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    (canonical(stream.local_addr().expect("local")), canonical(stream.peer_addr().expect("peer")))
}

#[test]
fn a_moved_connection_shows_where_it_is_if_it_is_to() {
    if !is_root() {
        return;
    }
    assert!(features().names, "this kernel does not show names");
    let pair = Pair::new();
    for to in ["10.0.0.2:0", "[fd00::2]:0", "[::ffff:10.0.0.2]:0"] {
        let (near, _far) = pair.connect(to);
        let (other, _its_far) = pair.connect(to);
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
        datapath.attach_names(&BTreeMap::new()).expect("attach");
        let (own, of) = entry(&near, BINDING, false);
        datapath
            .insert_flows(&[(own, FlowEntry { real_view: true, ..of }), entry(&other, BINDING, false)])
            .expect("insert");
        let here = (own.local, own.remote);
        datapath.set_binding(BINDING, &binding(0, Carrier::Tunnel, false)).expect("set");
        assert_eq!(shown(&near), here, "it has not moved");
        datapath.set_binding(BINDING, &away()).expect("set");
        // A socket of IPv6 that is to be shown an IPv4 address has it mapped.
        let there = (
            SocketAddr::new(address("192.0.2.1"), here.0.port()),
            SocketAddr::new(address("192.0.2.2"), here.1.port()),
        );
        assert_eq!(shown(&near), there);
        assert_eq!(shown(&other), (flow(&other).local, flow(&other).remote), "nobody wanted that");

        // The programs outlive the process, and another takes them over.
        drop(datapath);
        assert_eq!(shown(&near), there);
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open again");
        datapath.attach_names(&BTreeMap::new()).expect("attach again");
        assert_eq!(shown(&near), there);
        pair.far.enter();
        assert_eq!(shown(&near), there, "it is the socket's namespace that counts");
        pair.near.enter();
        datapath.detach_names().expect("detach");
        assert_eq!(shown(&near), here);
        datapath.unload().expect("unload");
    }
}

#[test]
fn another_namespace_is_not_looked_at() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let (near, far) = pair.connect("10.0.0.2:0");
    // The far end's own tuple, known to the near end's instance.
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.attach_names(&BTreeMap::new()).expect("attach");
    let (own, of) = entry(&far, BINDING, false);
    datapath.insert_flows(&[(own, FlowEntry { real_view: true, ..of })]).expect("insert");
    datapath.set_binding(BINDING, &away()).expect("set");
    assert_eq!(shown(&far), (own.local, own.remote));
    drop(near);
    datapath.unload().expect("unload");
}

/// The entry of a flow of UDP whose sockets are to be shown where it is.
fn of_datagrams(own: FlowTuple, binding: BindingId, unconnected: bool) -> FlowEntry {
    FlowEntry {
        binding,
        home_local_place: 0,
        home_peer_place: 0,
        wire_local_port: own.local.port(),
        wire_remote_port: own.remote.port(),
        held: false,
        real_view: true,
        gives_way: false,
        tunnelled: false,
        hidden: false,
        beyond: false,
        unconnected,
        late: false,
        delivery: Delivery::Stack,
    }
}

#[test]
fn a_connected_datagram_socket_hears_from_where_its_peer_is_and_sends_there() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    for (near_at, far_at) in [("10.0.0.1:0", "10.0.0.2:0"), ("[fd00::1]:0", "[fd00::2]:0")] {
        pair.far.enter();
        let far = UdpSocket::bind(far_at).expect("bind");
        pair.near.enter();
        let near = UdpSocket::bind(near_at).expect("bind");
        near.connect(far.local_addr().expect("local")).expect("connect");
        far.connect(near.local_addr().expect("local")).expect("connect");
        let own = FlowTuple {
            transport: Transport::Udp,
            local: near.local_addr().expect("local"),
            remote: near.peer_addr().expect("peer"),
        };
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
        datapath.attach_names(&BTreeMap::new()).expect("attach");
        let of = of_datagrams(own, BINDING, false);
        datapath.insert_flows(&[(own, of)]).expect("insert");
        let peer = if own.local.is_ipv4() { "192.0.2.2" } else { "2001:db8::2" };
        let local = if own.local.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
        let binding = Binding { local: address(local), peer: address(peer), ..away() };
        datapath.set_binding(BINDING, &binding).expect("set");

        let there = SocketAddr::new(address(peer), own.remote.port());
        let mut data = [0; 8];
        far.send(b"question").expect("send");
        assert_eq!(near.recv_from(&mut data).expect("receive"), (8, there));
        assert_eq!(near.peer_addr().expect("peer"), there);
        // No program on tc carries it: it goes to the peer under the names that the sockets have.
        near.send_to(b"an answer", there).expect("send");
        assert_eq!(far.recv(&mut data).expect("receive"), 8);
        datapath.detach_names().expect("detach");
        far.send(b"question").expect("send");
        assert_eq!(near.recv_from(&mut data).expect("receive"), (8, own.remote));
        datapath.unload().expect("unload");
    }
}

/// So long has nobody sent natively from a name that is shown of somebody else.
fn outlast_natives(pin: &std::path::Path) {
    let map = MapHandle::from_pinned_path(pin).expect("the map");
    for key in map.keys().collect::<Vec<_>>() {
        let mut meant = map.lookup(&key, MapFlags::ANY).expect("look up").expect("a value");
        meant[16..24].fill(0);
        map.update(&key, &meant, MapFlags::ANY).expect("update");
    }
}

#[test]
fn a_socket_that_is_not_connected_hears_from_where_its_peers_are_and_sends_there() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let elsewhere = BindingId::first(PeerId(8));
    for (n, command) in ["ip addr add 10.0.0.3/24 dev v", "ip addr add 10.0.0.4/24 dev v"].into_iter().enumerate() {
        pair.far.run(command);
        pair.far.run(&format!("ip addr add fd00::{}/64 dev v nodad", n + 3));
    }
    let ends =
        [("10.0.0.1:0", false), ("0.0.0.0:0", false), ("[::]:0", false), ("[fd00::1]:0", true), ("[::]:0", true)];
    for (near_at, six) in ends {
        let [was_near, was_far, is_far, second] = if six {
            ["fd00::1", "fd00::2", "fd00::3", "fd00::4"]
        } else {
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        }
        .map(address);
        pair.far.enter();
        let far = UdpSocket::bind((was_far, 0)).expect("bind");
        let port = far.local_addr().expect("local").port();
        let [stranger, second] = [is_far, second].map(|at| UdpSocket::bind((at, port)).expect("bind"));
        pair.near.enter();
        let near = UdpSocket::bind(near_at).expect("bind");
        let to_near = SocketAddr::new(was_near, near.local_addr().expect("local").port());
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
        datapath.attach_names(&BTreeMap::new()).expect("attach");
        let own = |far: &UdpSocket| FlowTuple {
            transport: Transport::Udp,
            local: to_near,
            remote: far.local_addr().expect("local"),
        };
        let entries =
            [(&far, BINDING), (&second, elsewhere)].map(|(far, of)| (own(far), of_datagrams(own(far), of, true)));
        datapath.insert_flows(&entries).expect("insert");
        let mut data = [0; 8];
        let mut hears = |far: &UdpSocket| {
            far.send_to(b"question", to_near).expect("send");
            let (length, from) = near.recv_from(&mut data).expect("receive");
            assert_eq!(&data[..length], b"question");
            SocketAddr::new(from.ip().to_canonical(), from.port())
        };
        let answers = |to: SocketAddr, far: &UdpSocket| {
            let mapped = |ip: std::net::Ipv4Addr| IpAddr::V6(ip.to_ipv6_mapped());
            let to = match to.ip() {
                IpAddr::V4(ip) if near_at.starts_with('[') => SocketAddr::new(mapped(ip), to.port()),
                _ => to,
            };
            near.send_to(b"answer", to).expect("send");
            let (length, _) = far.recv_from(&mut [0; 8]).expect("receive");
            assert_eq!(length, 6);
        };
        for socket in [&far, &stranger, &second, &near] {
            socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("timeout");
        }
        let [at_first, at_stranger, at_second] =
            [was_far, is_far, own(&second).remote.ip()].map(|ip| SocketAddr::new(ip, port));

        for of in [BINDING, elsewhere] {
            datapath.set_binding(of, &binding(0, Carrier::Tunnel, false)).expect("set");
        }
        assert_eq!(hears(&far), at_first, "it has not moved");
        // No program on tc carries it: it goes to the peer under the names that it began with.
        let moved = Binding { local: was_near, peer: is_far, ..binding(1, Carrier::Tunnel, false) };
        for of in [BINDING, elsewhere] {
            datapath.set_binding(of, &moved).expect("set");
        }
        assert_eq!(hears(&far), at_stranger);
        answers(at_stranger, &far);
        // One that would be shown where the first is, is shown where it was.
        assert_eq!(hears(&second), at_second);
        answers(at_second, &second);
        answers(at_stranger, &far);
        // A daemon after this one knows as much of what was shown.
        drop(datapath);
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open again");
        datapath.attach_names(&BTreeMap::new()).expect("attach again");
        answers(at_stranger, &far);
        // The peer has come back, and says nothing: what it was shown as is still its name.
        datapath.set_binding(BINDING, &binding(0, Carrier::Tunnel, false)).expect("set");
        answers(at_stranger, &far);
        assert_eq!(hears(&far), at_first);
        datapath.set_binding(BINDING, &moved).expect("set");
        // Its flow is over, and the other has the name.
        datapath.remove_flows(&[own(&far)]).expect("remove");
        assert_eq!(hears(&second), at_stranger);
        answers(at_stranger, &second);
        datapath.insert_flows(&entries[..1]).expect("insert");
        assert_eq!(hears(&far), at_first);
        answers(at_first, &far);
        // Somebody is there: for a while that name is theirs.
        assert_eq!(hears(&stranger), at_stranger);
        answers(at_stranger, &stranger);
        assert_eq!(hears(&second), at_second);
        answers(at_second, &second);
        outlast_natives(&pair.bpffs.pins("near").join("shown"));
        assert_eq!(hears(&second), at_stranger);
        answers(at_stranger, &second);
        datapath.unload().expect("unload");
    }
}

#[test]
fn addresses_of_before_lead_programs_of_one_name_to_where_the_ends_are() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    for (was_near, was_far, near_at, far_at) in
        [("192.0.2.1", "192.0.2.2", "10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2", "fd00::1", "fd00::2")]
    {
        let [was_near, was_far, near_at, far_at] = [was_near, was_far, near_at, far_at].map(address);
        pair.far.enter();
        let listener = TcpListener::bind((far_at, 0)).expect("listen");
        let port = listener.local_addr().expect("address").port();
        pair.near.enter();
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
        let aliases_of = |program: [u8; 16]| {
            let alias = |used, meant| (Alias { program, used }, meant);
            BTreeMap::from([
                alias(AliasUse::Reach(was_far), far_at),
                alias(AliasUse::Bind(was_near), near_at),
                alias(AliasUse::ShowPeer(far_at), was_far),
                alias(AliasUse::ShowOwn(near_at, far_at), was_near),
            ])
        };
        datapath.attach_names(&aliases_of(*b"somebody-else\0\0\0")).expect("attach");
        let refused = TcpListener::bind((was_near, 0)).expect_err("another program's");
        assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable);
        datapath.attach_names(&aliases_of(myself())).expect("set");

        // It connects to the peer's former address, and sees both ends as they were.
        let near = TcpStream::connect((was_far, port)).expect("connect");
        let far = listener.accept().expect("accept").0;
        assert_eq!(near.peer_addr().expect("peer"), SocketAddr::new(was_far, port));
        assert_eq!(near.local_addr().expect("local").ip(), was_near);
        assert_eq!(far.peer_addr().expect("peer").ip(), near_at, "in another namespace nothing is changed");

        // It listens at its own former address, which it is shown, and accepts from the peer's.
        let own = TcpListener::bind((was_near, 0)).expect("bind");
        let listening = own.local_addr().expect("local");
        assert_eq!(listening.ip(), was_near);
        pair.far.enter();
        let theirs = TcpStream::connect((near_at, listening.port())).expect("connect");
        pair.near.enter();
        let (accepted, from) = own.accept().expect("accept");
        assert_eq!(from, SocketAddr::new(was_far, theirs.local_addr().expect("local").port()));
        assert_eq!(accepted.local_addr().expect("local").ip(), was_near);

        // Who comes to any other socket is whoever is at that address now, and nobody of before.
        let reached_by = |own: &TcpListener| {
            pair.far.enter();
            let theirs = TcpStream::connect((near_at, own.local_addr().expect("local").port())).expect("connect");
            pair.near.enter();
            let (accepted, from) = own.accept().expect("accept");
            assert_eq!(accepted.peer_addr().expect("peer"), from);
            drop(theirs);
            (from.ip(), accepted.local_addr().expect("local").ip())
        };
        let unspecified = if near_at.is_ipv4() { "0.0.0.0" } else { "::" };
        for bound in [near_at, address(unspecified)] {
            assert_eq!(reached_by(&TcpListener::bind((bound, 0)).expect("bind")), (far_at, near_at));
        }
        let direct = TcpStream::connect((far_at, port)).expect("connect");
        assert_eq!(
            (direct.peer_addr().expect("peer").ip(), direct.local_addr().expect("local").ip()),
            (far_at, near_at)
        );
        // It is awaited at an address that this host still has, where the aliases say so, and at no service's port.
        let mut aliases = aliases_of(myself());
        aliases.insert(Alias { program: myself(), used: AliasUse::Bind(near_at) }, near_at);
        datapath.attach_names(&aliases).expect("set");
        let awaiting = TcpListener::bind((near_at, 0)).expect("bind");
        assert_eq!(reached_by(&awaiting), (was_far, near_at));
        assert_eq!(reached_by(&TcpListener::bind((near_at, 21)).expect("bind")), (far_at, near_at));

        // What was opened by an alias keeps its names; what comes when there is none any more is as it is.
        datapath.attach_names(&BTreeMap::new()).expect("set");
        assert_eq!((near.peer_addr().expect("peer").ip(), own.local_addr().expect("local").ip()), (was_far, was_near));
        assert_eq!(reached_by(&awaiting), (far_at, near_at));
        datapath.detach_names().expect("detach");
        assert_eq!(near.peer_addr().expect("peer").ip(), far_at);
        assert_eq!(accepted.local_addr().expect("local").ip(), near_at);
        datapath.unload().expect("unload");
    }
}
