//! Two namespaces with a link, connections between them, and what the kernel says of their sockets.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use whimbrel_datapath::{Datapath, Event, TcpSocket};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Bpffs, Namespace, veth};

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
        self.neighbour(0x99);
    }

    pub(crate) fn mend(&self) {
        self.neighbour(2);
    }

    fn neighbour(&self, n: u8) {
        for address in ["10.0.0.2", "fd00::2"] {
            let to = Self::hardware_address(n);
            self.near.run(&format!("ip neigh replace {address} lladdr {to} dev v nud permanent"));
        }
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

pub(crate) fn events(datapath: &mut Datapath) -> Vec<Event> {
    let mut events = Vec::new();
    datapath.drain_events(|event| events.push(event)).expect("drain");
    events
}

pub(crate) fn list(datapath: &Datapath) -> Vec<TcpSocket> {
    let mut sockets = Vec::new();
    datapath.tcp_sockets(|socket| sockets.push(*socket)).expect("list");
    sockets
}

/// None if its connection is gone.
pub(crate) fn look(datapath: &Datapath, own: &FlowTuple) -> Option<TcpSocket> {
    list(datapath).into_iter().find(|socket| socket.flow == *own)
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
