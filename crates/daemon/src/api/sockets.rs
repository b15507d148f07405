//! Sockets that programs ask for.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use whimbrel_ipc::{Code, Failure, Family, MadeSocket, Reply, SocketKind};
use whimbrel_kernel::owner::Owner;

use super::Answer;
use super::desk::Desk;
use super::server::{ClientId, Credentials};

/// A socket that a program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedSocket {
    pub(crate) family: Family,
    pub(crate) kind: SocketKind,
    pub(crate) hidden: bool,
}

/// Ports below this one are given to root alone (`net.ipv4.ip_unprivileged_port_start`, as it is unless it was
/// changed).
const UNPRIVILEGED: u16 = 1024;

impl Desk {
    /// Hands a client a socket of this host's own address.
    pub(crate) fn make_own_socket(&mut self, id: ClientId, wanted: WantedSocket) -> Answer {
        let socket = plain_socket(wanted, self.server.credentials(id))?;
        self.hand_socket(id, socket, "self".to_owned())
    }

    /// Hands a client the socket that was made for it.
    pub(crate) fn hand_socket(&mut self, id: ClientId, socket: OwnedFd, anchor: String) -> Answer {
        let uuid = self.names.of(socket.as_fd())?;
        self.server.reply_with(id, &Reply::Socket(MadeSocket { uuid, anchor }), vec![socket]);
        Ok(None)
    }

    /// Binds a client's socket to an address of this host's.
    pub(crate) fn bind_own_socket(&self, id: ClientId, socket: BorrowedFd<'_>, address: SocketAddr) -> Answer {
        // This process may do what the client may not.
        let is_root = self.server.credentials(id).is_some_and(|who| who.uid == 0);
        if address.port() != 0 && address.port() < UNPRIVILEGED && !is_root {
            return Err(Failure::new("only root may have this port").on(address).code(Code::Denied));
        }
        bind(socket, address)
    }
}

/// A socket that is its client's, as if that had made it.
pub(crate) fn plain_socket(wanted: WantedSocket, client: Option<Credentials>) -> Result<OwnedFd, Failure> {
    let Some(client) = client else {
        return Err(Failure::new("the system does not say whose the socket is to be").code(Code::Denied));
    };
    let family = match wanted.family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    let (kind, protocol) = match wanted.kind {
        SocketKind::Stream => (SocketType::STREAM, ipproto::TCP),
        SocketKind::Datagram => (SocketType::DGRAM, ipproto::UDP),
    };
    let made = Owner::from(client).make(|| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol)));
    made.map_err(|error| Failure::new(error.to_string()))?.map_err(|error| failed("no socket can be made", error))
}

/// What the system said, for programs too.
pub(crate) fn failed(what: &str, error: Errno) -> Failure {
    let failure = Failure::new(format!("{what}: {error}"));
    match error {
        Errno::ADDRINUSE => failure.code(Code::InUse),
        Errno::ACCESS | Errno::PERM => failure.code(Code::Denied),
        Errno::MFILE | Errno::NFILE => failure.code(Code::TooMany),
        Errno::NOTSOCK => failure.code(Code::NotASocket),
        _ => failure,
    }
}

/// As bind(2).
pub(crate) fn bind(socket: BorrowedFd<'_>, address: SocketAddr) -> Answer {
    rustix::net::bind(socket, &address).map_err(|error| failed("it cannot be bound", error).on(address))?;
    let bound = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
    Ok(Some(Reply::Bound { address: bound.unwrap_or(address) }))
}
