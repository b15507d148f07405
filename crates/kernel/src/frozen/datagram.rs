//! UDP sockets, with what waits in their queues.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net::RecvFlags;
use whimbrel_wire::snapshot::{Datagrams, Queued, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use super::{SO_RCVBUFFORCE, Unmovable, bind, canonical, connect, make_room};
use crate::error::Error;
use crate::inject::Injector;
use crate::sockopt::{Name, get_int, set};

const SO_PEEK_OFF: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_PEEK_OFF, text: "SO_PEEK_OFF" };
/// Room for what comes before the program that takes the socket begins to read, in bytes with the kernel's own for each datagram.
const UNTIL_READ: usize = 512 << 10;
const LONGEST: usize = 65_535;

pub(super) fn dump(fd: BorrowedFd<'_>, remote: Option<SocketAddr>) -> Result<Datagrams, Unmovable> {
    let before = get_int(fd, SO_PEEK_OFF)?;
    // Each look goes on where the last one ended, and takes nothing away. Only an empty datagram that somebody has looked at before
    // is passed over (`__skb_try_recv_from_queue`).
    set(fd, SO_PEEK_OFF, &0i32)?;
    let queue = queued(fd);
    set(fd, SO_PEEK_OFF, &before)?;
    Ok(Datagrams { remote, queue: queue? })
}

fn queued(fd: BorrowedFd<'_>) -> Result<Vec<Queued>, Error> {
    let mut queue = Vec::new();
    let mut bytes = vec![0; LONGEST];
    loop {
        match rustix::net::recvfrom(fd, bytes.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, length, Some(from))) => {
                let from = canonical("recvfrom", from)?;
                queue.push(Queued { from, bytes: bytes[..length].to_vec() });
            }
            Ok((_, _, None)) | Err(rustix::io::Errno::AGAIN) => return Ok(queue),
            // An ICMP error that the program was to be told of is told to nobody.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNREFUSED | rustix::io::Errno::HOSTUNREACH) => {}
            Err(error) => return Err(Error::call("recvfrom", "the queue of a UDP socket", error)),
        }
    }
}

pub(super) fn restore(
    fd: BorrowedFd<'_>,
    snapshot: &Snapshot,
    datagrams: &Datagrams,
    injector: &Injector,
) -> Result<(), Unmovable> {
    let queued: usize = datagrams.queue.iter().map(|datagram| datagram.bytes.len() + 1024).sum();
    make_room(fd, SO_RCVBUFFORCE, queued + UNTIL_READ)?;
    let (family, local) = (snapshot.family, snapshot.local);
    bind(fd, family, local)?;
    if let Some(remote) = datagrams.remote {
        connect(fd, family, remote)?;
    }
    refill(local, datagrams, injector)
}

/// Puts datagrams into the queue of a socket that is there.
pub(super) fn refill(local: SocketAddr, datagrams: &Datagrams, injector: &Injector) -> Result<(), Unmovable> {
    for Queued { from, bytes } in &datagrams.queue {
        let to = match (local.ip().is_unspecified(), from.is_ipv4()) {
            (false, _) => local.ip(),
            (true, true) => std::net::Ipv4Addr::LOCALHOST.into(),
            (true, false) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        let tuple = FlowTuple { transport: Transport::Udp, local: SocketAddr::new(to, local.port()), remote: *from };
        injector.deliver_udp(&tuple, bytes)?;
    }
    Ok(())
}
