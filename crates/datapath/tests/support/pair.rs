//! Two namespaces with a link, connections between them, and what the kernel says of their sockets.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_datapath::{Binding, Carrier, Datapath, Delivery, Event, FlowEntry, Most, TcpSocket};
use whimbrel_wire::{BindingId, FlowTuple, Transport};

use super::{Bpffs, Namespace, veth};

/// How long a condition is waited for before a test fails: TCP's timers are among them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "this takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) struct Pair {
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    pub(crate) bpffs: Bpffs,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let pair = Self { near: Namespace::new(), far: Namespace::new(), bpffs: Bpffs::new() };
        veth(&pair.near, "v", &pair.far, "v");
        for (namespace, n) in [(&pair.near, 1), (&pair.far, 2)] {
            namespace.run(&format!("ip link set v address {}", Self::hardware_address(n)));
            namespace.run(&format!("ip addr add 10.0.0.{n}/24 dev v"));
            namespace.run(&format!("ip addr add fd00::{n}/64 dev v nodad"));
        }
        pair
    }

    fn hardware_address(n: u8) -> String {
        format!("02:00:00:00:00:{n:02x}")
    }

    pub(crate) fn connect(&self, to: &str) -> (TcpStream, TcpStream) {
        self.far.enter();
        let listener = TcpListener::bind(to).expect("listen");
        self.near.enter();
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        (near, listener.accept().expect("accept").0)
    }

    /// From now on nothing that the near end sends arrives, and nobody tells it.
    pub(crate) fn cut(&self) {
        Self::neighbour(&self.near, 2, 0x99);
    }

    pub(crate) fn mend(&self) {
        Self::neighbour(&self.near, 2, 2);
    }

    /// The same for the far end.
    pub(crate) fn mute(&self) {
        Self::neighbour(&self.far, 1, 0x98);
    }

    pub(crate) fn unmute(&self) {
        Self::neighbour(&self.far, 1, 1);
    }

    fn neighbour(of: &Namespace, n: u8, hardware: u8) {
        for address in [format!("10.0.0.{n}"), format!("fd00::{n}")] {
            let to = Self::hardware_address(hardware);
            of.run(&format!("ip neigh replace {address} lladdr {to} dev v nud permanent"));
        }
    }
}

/// What the data plane is told of a flow that is at home at the places 0 and 0.
pub(crate) fn entry(stream: &TcpStream, binding: BindingId, held: bool) -> (FlowTuple, FlowEntry) {
    let own = flow(stream);
    let entry = FlowEntry {
        binding,
        home_local_place: 0,
        home_peer_place: 0,
        wire_local_port: own.local.port(),
        wire_remote_port: own.remote.port(),
        held,
        real_view: false,
        gives_way: false,
        tunnelled: false,
        hidden: false,
        beyond: false,
        unconnected: false,
        late: false,
        delivery: Delivery::Stack,
    };
    (own, entry)
}

/// A binding of the pair's own addresses.
pub(crate) fn binding(local_place: u32, carrier: Carrier, parked: bool) -> Binding {
    Binding {
        local_place,
        peer_place: 0,
        carrier,
        local: "10.0.0.1".parse().expect("address"),
        peer: "10.0.0.2".parse().expect("address"),
        interface: 0,
        arrival: 0,
        mtu: 0,
        allowance: None,
        parked,
        names_kept: false,
        accepted: Vec::new(),
    }
}

pub(crate) fn flow(stream: &TcpStream) -> FlowTuple {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    FlowTuple {
        transport: Transport::Tcp,
        local: canonical(stream.local_addr().expect("local")),
        remote: canonical(stream.peer_addr().expect("remote")),
    }
}

/// What was reported, but for connections that were only begun.
pub(crate) fn events(datapath: &mut Datapath) -> Vec<Event> {
    let mut events = all_events(datapath);
    events.retain(|event| !matches!(event, Event::FlowOpening { .. }));
    events
}

pub(crate) fn all_events(datapath: &mut Datapath) -> Vec<Event> {
    let mut events = Vec::new();
    datapath.drain_events(Most::ALL, |event| events.push(event)).expect("drain");
    events
}

/// None if its connection is gone.
pub(crate) fn look(datapath: &Datapath, own: &FlowTuple) -> Option<TcpSocket> {
    datapath.look_up(&[*own]).expect("look").first().copied()
}

pub(crate) fn find(datapath: &Datapath, stream: &TcpStream) -> TcpSocket {
    look(datapath, &flow(stream)).expect("it is there")
}

pub(crate) fn set(stream: &TcpStream, level: i32, name: i32, value: i32) {
    // SAFETY: an open socket, and a value that lives through the call, with its size.
    let result = unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), size_of_val(&value) as u32)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

pub(crate) fn get(stream: &TcpStream, level: i32, name: i32) -> i32 {
    let mut value = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: an open socket, and room for the value and its length.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut value).cast::<libc::c_void>(), &raw mut length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    value
}

/// The retransmission timeout, back-off and all.
pub(crate) fn timer(stream: &TcpStream) -> Duration {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: an open socket, and room for what the kernel tells and its length.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    Duration::from_micros(info.tcpi_rto.into())
}
