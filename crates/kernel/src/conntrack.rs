//! What connection tracking knows of connections that others have and this host forwards (nf_conntrack, by ctnetlink):
//! that they have been answered, and have not begun to end. It tells where a rule of the packet filter asks for it, as
//! those of nearly every router do; else it knows of none.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::NLM_F_DUMP;
use netlink_sys::Socket;
use whimbrel_wire::{FlowTuple, Transport};

use crate::error::Error;
use crate::netlink::Netlink;

// From linux/netlink.h, linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h and nf_conntrack_common.h.
const NETLINK_NETFILTER: isize = 12;
const NEW: u16 = 1 << 8;
const GET: u16 = (1 << 8) | 1;
const GROUP_UPDATE: u32 = 2;
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const TUPLE_ORIGINAL: u16 = 1;
const STATUS: u16 = 3;
const PROTOCOL_STATE: u16 = 4;
const OF_TCP: u16 = 1;
const STATE_OF_TCP: u16 = 1;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;
const IPV6_SOURCE: u16 = 3;
const IPV6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const ESTABLISHED: u8 = 3;
const ASSURED: u32 = 1 << 2;
const TRANSLATED: u32 = (1 << 4) | (1 << 5);
const TYPE_MASK: u16 = 0x3fff;

/// Reports that are read in one go: on a router there may be many thousands a second.
const AT_ONCE: usize = 1024;

/// Reports of connection tracking, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Tracking {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Tracking {
    /// Opens it, and gives those that are there already and `wanted`: of all a router may know a million.
    ///
    /// # Errors
    /// [`Error::Call`]: this kernel has no connection tracking, or it may not be asked.
    pub fn open(wanted: impl Fn(&FlowTuple) -> bool) -> Result<(Self, Vec<FlowTuple>), Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.add_membership(GROUP_UPDATE)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|error: io::Error| Error::call("socket", "connection tracking", error))?;
        let mut found = Vec::new();
        // Of both families, as version 0 of the format has it.
        Netlink::open(NETLINK_NETFILTER, "connection tracking")?
            .request(GET, NLM_F_DUMP, &[0; GENERIC_HEADER], &mut found, Vec::clear, |found, kind, payload| {
                found.extend(read(kind, payload).filter(&wanted));
            })
            .map_err(|refusal| refusal.of("dump", "connection tracking"))?;
        Ok((Self { socket, buffer: vec![0; 1 << 16] }, found))
    }

    /// Gives the connections of TCP that were reported as answered since, as who opened them has them: those that are
    /// not translated, and not all where there are very many. What was too much for the kernel to keep is lost.
    pub fn take(&mut self, mut each: impl FnMut(FlowTuple)) {
        for _ in 0..AT_ONCE {
            match self.socket.recv(&mut &mut self.buffer[..], 0) {
                Ok(length) => {
                    let mut rest = self.buffer.get(..length).unwrap_or_default();
                    while let Some((kind, payload, after)) = next_message(rest) {
                        read(kind, payload).into_iter().for_each(&mut each);
                        rest = after;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Tracking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket's own descriptor, which lives as long as it.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}

fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let header = bytes.get(..HEADER)?;
    let length = u32::from_ne_bytes(header[..4].try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(header[4..6].try_into().ok()?);
    let payload = bytes.get(HEADER..length)?;
    Some((kind, payload, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Attributes: length with its header, type, padding to four bytes (linux/netlink.h).
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let header = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// A connection of TCP that has been answered, is not translated, and goes on. What is told of a change need not say
/// the state: it is told of as answered as it is established.
fn read(kind: u16, payload: &[u8]) -> Option<FlowTuple> {
    let attributes = payload.get(GENERIC_HEADER..).filter(|_| kind == NEW)?;
    let status = u32::from_be_bytes(attribute(attributes, STATUS)?.try_into().ok()?);
    if status & ASSURED == 0 || status & TRANSLATED != 0 {
        return None;
    }
    let state = attribute(attributes, PROTOCOL_STATE).and_then(|state| attribute(state, OF_TCP));
    let state = state.and_then(|state| attribute(state, STATE_OF_TCP)?.first());
    if state.is_some_and(|state| *state != ESTABLISHED) {
        return None;
    }
    let tuple = attribute(attributes, TUPLE_ORIGINAL)?;
    let (addresses, protocol) = (attribute(tuple, TUPLE_IP)?, attribute(tuple, TUPLE_PROTOCOL)?);
    let transport = Transport::from_protocol(*attribute(protocol, PROTOCOL_NUMBER)?.first()?)?;
    let port = |which| Some(u16::from_be_bytes(attribute(protocol, which)?.try_into().ok()?));
    let address = |v4: u16, v6: u16| -> Option<IpAddr> {
        let of_v4 = attribute(addresses, v4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let of_v6 = || attribute(addresses, v6).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        of_v4.map(|bytes| Ipv4Addr::from(bytes).into()).or_else(|| of_v6().map(|bytes| Ipv6Addr::from(bytes).into()))
    };
    let local = SocketAddr::new(address(IPV4_SOURCE, IPV6_SOURCE)?, port(SOURCE_PORT)?);
    let remote = SocketAddr::new(address(IPV4_DESTINATION, IPV6_DESTINATION)?, port(DESTINATION_PORT)?);
    (transport == Transport::Tcp).then_some(FlowTuple { transport, local, remote })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nest(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(value.len() + 4).expect("short").to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn report(status: u32, protocol: u8) -> Vec<u8> {
        let addresses = [nest(IPV4_SOURCE, &[192, 0, 2, 7]), nest(IPV4_DESTINATION, &[198, 51, 100, 9])].concat();
        let ports = [
            nest(PROTOCOL_NUMBER, &[protocol]),
            nest(SOURCE_PORT, &40_000_u16.to_be_bytes()),
            nest(DESTINATION_PORT, &22_u16.to_be_bytes()),
        ]
        .concat();
        // Nested ones are flagged.
        let tuple = [nest(TUPLE_IP | 0x8000, &addresses), nest(TUPLE_PROTOCOL | 0x8000, &ports)].concat();
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(nest(TUPLE_ORIGINAL | 0x8000, &tuple));
        bytes.extend(nest(STATUS, &status.to_be_bytes()));
        bytes
    }

    #[test]
    fn what_is_answered_and_not_translated_is_told() {
        let told = read(NEW, &report(ASSURED | 2, 6)).expect("a connection");
        assert_eq!(told.local, "192.0.2.7:40000".parse().expect("an endpoint"));
        assert_eq!(told.remote, "198.51.100.9:22".parse().expect("an endpoint"));
        assert_eq!(read(NEW, &report(2, 6)), None);
        assert_eq!(read(NEW, &report(ASSURED | (1 << 4), 6)), None);
        assert_eq!(read(NEW, &report(ASSURED, 17)), None);
        assert_eq!(read(NEW + 2, &report(ASSURED, 6)), None);
    }

    #[test]
    fn what_ends_is_not_told() {
        for (state, told) in [(ESTABLISHED, true), (ESTABLISHED + 1, false)] {
            let state = nest(OF_TCP | 0x8000, &nest(STATE_OF_TCP, &[state]));
            let bytes = [report(ASSURED, 6), nest(PROTOCOL_STATE | 0x8000, &state)].concat();
            assert_eq!(read(NEW, &bytes).is_some(), told);
        }
    }

    #[test]
    fn what_is_cut_short_is_nothing() {
        let process_tree = report(ASSURED, 6);
        for length in 0..process_tree.len() {
            let cut = read(NEW, &process_tree[..length]);
            assert!(cut.is_none() || length == process_tree.len(), "{length}");
        }
        // A length of zero ends it.
        assert_eq!(attribute(&[0; 64], 1), None);
        assert!(next_message(&[0; 64]).is_none());
    }
}
