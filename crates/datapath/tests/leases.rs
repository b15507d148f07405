//! What programs may bind in namespaces of which only some ports are theirs.

mod support;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;

use support::is_root;
use support::pair::Pair;
use whimbrel_datapath::{Datapath, LeasedPorts, features};

/// What another process than this one gets of bind(2), in the namespace that the thread is in.
fn bind(tcp: bool, at: &str) -> io::Result<()> {
    let at: SocketAddr = at.parse().expect("an address");
    let mut command = Command::new("true");
    let bound = move || if tcp { TcpListener::bind(at).map(drop) } else { UdpSocket::bind(at).map(drop) };
    // SAFETY: the closure does nothing but system calls, on values of its own.
    unsafe { command.pre_exec(bound) };
    command.status().map(drop)
}

fn cookie() -> u64 {
    whimbrel_kernel::namespace::cookie().expect("SO_NETNS_COOKIE")
}

fn is_taken(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[test]
fn a_port_that_is_not_on_lease_is_taken() {
    if !is_root() {
        return;
    }
    assert!(features().leases, "this kernel keeps nobody to leases");
    let pair = Pair::new();
    pair.near.enter();
    let leased = LeasedPorts::from([(cookie(), vec![80..=80, 40000..=40127, 65535..=65535])]);
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.attach_leases(&leased).expect("attach");
    let look = |lends: bool| {
        for (tcp, host) in [true, false]
            .into_iter()
            .flat_map(|tcp| ["10.0.0.1", "0.0.0.0", "[fd00::1]", "[::]", "[::ffff:10.0.0.1]"].map(|host| (tcp, host)))
        {
            for port in [80, 40000, 40063, 40064, 40127, 65535] {
                bind(tcp, &format!("{host}:{port}")).unwrap_or_else(|error| panic!("{host}:{port}: {error}"));
            }
            for port in [1, 79, 81, 8080, 39999, 40128, 65534] {
                let bound = bind(tcp, &format!("{host}:{port}"));
                assert!(if lends { is_taken(bound) } else { bound.is_ok() }, "{host}:{port}");
            }
        }
    };
    look(true);
    // What stays on the host is nobody's business, and what the kernel draws is drawn from what it was told.
    for local in ["127.0.0.1:8080", "127.8.9.1:8080", "[::1]:8080", "[::ffff:127.0.0.1]:8080"] {
        bind(true, local).and_then(|()| bind(false, local)).unwrap_or_else(|error| panic!("{local}: {error}"));
    }
    pair.near.sysctl("net.ipv4.ip_local_port_range", "40000 40127");
    bind(true, "10.0.0.1:0").and_then(|()| bind(false, "[::]:0")).expect("ports that the kernel draws");

    // Whoever rebuilds sockets is not kept to it, and neither are other namespaces.
    TcpListener::bind("10.0.0.1:8080").expect("the process that attached them");
    pair.far.enter();
    bind(true, "10.0.0.2:8080").expect("another namespace");
    pair.near.enter();

    // The programs outlive the process; another takes them over, with other leases.
    drop(datapath);
    look(true);
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open again");
    let other = LeasedPorts::from([(cookie(), vec![8080..=8080]), (cookie() + 1, vec![0..=u16::MAX])]);
    datapath.attach_leases(&other).expect("attach again");
    bind(true, "10.0.0.1:8080").expect("a port that is on lease now");
    assert!(is_taken(bind(true, "10.0.0.1:80")), "a lease that is over");
    datapath.attach_leases(&LeasedPorts::from([(cookie(), vec![0..=u16::MAX])])).expect("set");
    look(false);
    datapath.attach_leases(&LeasedPorts::from([(cookie(), Vec::new())])).expect("set");
    assert!(is_taken(bind(false, "[::]:80")), "nothing is on lease");
    datapath.detach_leases().expect("detach");
    look(false);
    datapath.unload().expect("unload");
}

/// A connection draws its port without bind(2): nobody is asked for that.
#[test]
fn connections_are_made_from_ports_that_are_drawn() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.enter();
    let server = TcpListener::bind("10.0.0.2:0").expect("bind");
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.attach_leases(&LeasedPorts::from([(cookie(), Vec::new())])).expect("attach");
    TcpStream::connect(server.local_addr().expect("local")).expect("connect");
    datapath.unload().expect("unload");
}
