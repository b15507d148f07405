//! A network that comes and takes the routes: flows that have not moved go on by their own, before anybody knows.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use support::pair::{binding, entry, wait};
use support::{Bpffs, Namespace, counter, index, is_root, veth};
use whimbrel_datapath::{Binding, Carrier, Datapath, Home, LocatorPair, Role};
use whimbrel_wire::{BindingId, FlowTuple, PeerId};

const BINDING: BindingId = BindingId::first(PeerId(7));
/// Routers of the second network reset what does not come from an address of theirs, and count it.
const RESETS: &str = "table inet t { counter astray {}; chain f { type filter hook forward priority 0; \
     iifname \"n2\" ip saddr 10.1.0.2 counter name astray goto r; \
     iifname \"n2\" ip6 saddr fd00:1::2 counter name astray goto r; }; \
     chain r { meta l4proto tcp reject with tcp reset; drop; }; }";

struct Net {
    laptop: Namespace,
    router: Namespace,
    server: Namespace,
}

impl Net {
    /// The laptop is at the first network, and the interface of the second is there.
    fn new() -> Self {
        let net = Self { laptop: Namespace::new(), router: Namespace::new(), server: Namespace::new() };
        net.router.sysctl("net.ipv4.ip_forward", "1");
        net.router.sysctl("net.ipv6.conf.all.forwarding", "1");
        for (n, host, name) in [(1, &net.laptop, "wifi"), (2, &net.laptop, "lte"), (9, &net.server, "eth")] {
            veth(host, name, &net.router, &format!("n{n}"));
            for (at, device, end) in [(&net.router, format!("n{n}"), 1), (host, name.to_owned(), 2)] {
                at.wait_link_local(&device);
                at.run(&format!("ip addr add 10.{n}.0.{end}/24 dev {device}"));
                at.run(&format!("ip addr add fd00:{n}::{end}/64 dev {device} nodad"));
            }
            if n != 2 {
                host.run(&format!("ip route add default via 10.{n}.0.1 dev {name} metric 100"));
                host.run(&format!("ip route add default via fd00:{n}::1 dev {name} metric 100"));
            }
        }
        net.router.run(&format!("nft {RESETS}"));
        net
    }

    fn prefer_second(&self) {
        self.laptop.run("ip route add default via 10.2.0.1 dev lte metric 50");
        self.laptop.run("ip route add default via fd00:2::1 dev lte metric 50");
    }

    fn astray(&self) -> bool {
        !self.router.run("nft list counters").contains("packets 0 ")
    }
}

/// One byte there and one back.
fn exchange(near: &mut TcpStream, far: &mut TcpStream) -> std::io::Result<()> {
    let mut byte = [0];
    near.write_all(b"a")?;
    far.read_exact(&mut byte)?;
    far.write_all(b"b")?;
    near.read_exact(&mut byte)
}

/// A connection of the laptop's, and what is known of it.
struct Known {
    near: TcpStream,
    far: TcpStream,
    own: FlowTuple,
}

impl Known {
    fn new(net: &Net, server: IpAddr, datapath: &Datapath) -> Self {
        net.server.enter();
        let listener = TcpListener::bind((server, 0)).expect("listen");
        net.laptop.enter();
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let far = listener.accept().expect("accept").0;
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
        }
        let (own, known) = entry(&near, BINDING, false);
        datapath.insert_flows(&[(own, known)]).expect("insert");
        let native = Binding { local: own.local.ip(), peer: own.remote.ip(), ..binding(0, Carrier::Rewrite, false) };
        datapath.set_binding(BINDING, &native).expect("bind");
        Self { near, far, own }
    }

    fn home(&self) -> (LocatorPair, Home) {
        let first: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
        let next_hop = first[usize::from(self.own.local.is_ipv6())].parse().expect("an address");
        let between = LocatorPair { local: self.own.local.ip(), peer: self.own.remote.ip() };
        (between, Home { interface: index("wifi"), next_hop })
    }
}

fn opened(net: &Net, bpffs: &Bpffs, busy: bool) -> Datapath {
    net.laptop.enter();
    let mut datapath = Datapath::open(&bpffs.pins("laptop")).expect("open");
    for device in ["wifi", "lte"] {
        datapath.attach(index(device), Role::Wire).expect("attach");
    }
    datapath.set_busy(busy, false, false).expect("busy");
    datapath
}

#[test]
fn what_has_not_moved_goes_on_by_its_own_network() {
    if !is_root() {
        return;
    }
    for (server, busy) in [("10.9.0.2", false), ("10.9.0.2", true), ("fd00:9::2", false), ("fd00:9::2", true)] {
        let (net, bpffs) = (Net::new(), Bpffs::new());
        let datapath = opened(&net, &bpffs, busy);
        let mut known = Known::new(&net, server.parse().expect("an address"), &datapath);
        datapath.set_homes(&[known.home()].into()).expect("homes");
        exchange(&mut known.near, &mut known.far).expect("by the first network");
        assert_eq!(counter(&datapath, "led_home"), 0);

        net.prefer_second();
        for _ in 0..20 {
            exchange(&mut known.near, &mut known.far).expect("by the first network still");
        }
        assert!(counter(&datapath, "led_home") >= 20);
        assert!(!net.astray(), "the second network has seen something");

        // Another home beside it: what leaves by either is looked at.
        let local: IpAddr = if known.own.local.is_ipv4() { [10, 2, 0, 2].into() } else { "fd00:2::2".parse().unwrap() };
        let between = LocatorPair { local, peer: known.own.remote.ip() };
        let other = (between, Home { interface: index("lte"), next_hop: local });
        datapath.set_homes(&[known.home(), other].into()).expect("homes");
        exchange(&mut known.near, &mut known.far).expect("by the first network still");
        assert!(!net.astray(), "the second network has seen something");

        // Of no flow: it goes as the routes have it.
        let before = counter(&datapath, "led_home");
        let socket = UdpSocket::bind((known.own.local.ip(), 0)).expect("bind");
        socket.send_to(b"x", SocketAddr::new(known.own.remote.ip(), 9)).expect("send");
        wait(|| net.astray());
        assert_eq!(counter(&datapath, "led_home"), before);

        // Nothing is known of where it is at home.
        datapath.set_homes(&[].into()).expect("homes");
        known.near.write_all(b"a").expect("write");
        let error = known.near.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        datapath.unload().expect("unload");
    }
}

/// What leaves by an interface that is made of another leaves by that as well.
#[test]
fn a_device_beneath_is_no_other_network() {
    if !is_root() {
        return;
    }
    let (net, bpffs) = (Net::new(), Bpffs::new());
    net.laptop.run("ip addr flush dev wifi scope global");
    net.laptop.run("ip link add m0 link wifi type macvlan mode bridge");
    net.laptop.run("ip link set m0 up");
    net.laptop.run("ip addr add 10.1.0.3/24 dev m0");
    net.laptop.run("ip route replace default via 10.1.0.1 dev m0 metric 100");
    let mut datapath = opened(&net, &bpffs, false);
    datapath.attach(index("m0"), Role::Wire).expect("attach");
    let mut known = Known::new(&net, [10, 9, 0, 2].into(), &datapath);
    let (between, home) = known.home();
    datapath.set_homes(&[(between, Home { interface: index("m0"), ..home })].into()).expect("homes");
    for _ in 0..20 {
        exchange(&mut known.near, &mut known.far).expect("there and back");
    }
    datapath.unload().expect("unload");
}
