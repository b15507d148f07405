//! Socket addresses and ancillary data as the kernel lays them out (ip(7), ipv6(7), cmsg(3)), written and read as
//! bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{ErrorOrigin, ErrorReport, Received};

const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
const PKTINFO4: usize = size_of::<libc::in_pktinfo>();
const PKTINFO6: usize = size_of::<libc::in6_pktinfo>();
const EXTENDED_ERROR: usize = size_of::<libc::sock_extended_err>();

/// A `sockaddr_in` or `sockaddr_in6`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(pub(super) [u8; Self::LEN]);

impl Name {
    pub(super) const LEN: usize = size_of::<libc::sockaddr_in6>();
    const LEN4: usize = size_of::<libc::sockaddr_in>();
    pub(super) const EMPTY: Self = Self([0; Self::LEN]);

    /// The address for a socket of the given family, IPv4 in mapped form on IPv6 sockets, and its length.
    pub(super) fn encode(address: SocketAddr, v6: bool) -> (Self, u32) {
        let mut name = Self::EMPTY;
        let bytes = &mut name.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match (address, v6) {
            (SocketAddr::V4(v4), false) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                return (name, Self::LEN4 as u32);
            }
            // Without IPv6 the kernel refuses the family: EAFNOSUPPORT.
            (SocketAddr::V6(v6), _) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
            (SocketAddr::V4(v4), true) => bytes[8..24].copy_from_slice(&v4.ip().to_ipv6_mapped().octets()),
        }
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        (name, Self::LEN as u32)
    }

    /// The address, IPv4 if it is a mapped one.
    pub(super) fn decode(&self) -> Option<SocketAddr> {
        decode_address(&self.0)
    }
}

fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(at(bytes, 0)?));
    let port = u16::from_be_bytes(at(bytes, 2)?);
    match family {
        libc::AF_INET => Some(SocketAddr::new(Ipv4Addr::from(at::<4>(bytes, 4)?).into(), port)),
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(at::<16>(bytes, 8)?);
            let scope = u32::from_ne_bytes(at(bytes, 24)?);
            Some(match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::new(v4.into(), port),
                None => SocketAddrV6::new(ip, port, 0, scope).into(),
            })
        }
        _ => None,
    }
}

/// Ancillary data of one message.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    pub(super) bytes: [u8; Self::CAPACITY],
    pub(super) len: usize,
}

impl Control {
    /// Room for both kinds of packet information, a segment size and an error report with its sender.
    pub(super) const CAPACITY: usize = 256;
    pub(super) const EMPTY: Self = Self { bytes: [0; Self::CAPACITY], len: 0 };

    /// Chooses the source address and the interface: IP_PKTINFO or IPV6_PKTINFO, by the destination's family. An
    /// interface of 0 leaves the choice of route to the address.
    pub(super) fn push_source(&mut self, source: IpAddr, interface: u32, destination: SocketAddr, v6_socket: bool) {
        match (source, destination.is_ipv4()) {
            (IpAddr::V4(source), true) => {
                let mut info = [0; PKTINFO4];
                // ipi_ifindex, ipi_spec_dst
                info[..4].copy_from_slice(&interface.to_ne_bytes());
                info[4..8].copy_from_slice(&source.octets());
                self.push(libc::SOL_IP, libc::IP_PKTINFO, &info);
            }
            (IpAddr::V6(source), false) if v6_socket => {
                let mut info = [0; PKTINFO6];
                info[..16].copy_from_slice(&source.octets());
                info[16..20].copy_from_slice(&interface.to_ne_bytes());
                self.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
            }
            // A source of another family cannot be meant: the kernel chooses.
            _ => {}
        }
    }

    pub(super) fn push_segment_size(&mut self, size: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }

    /// Adds what the kernel told about a received message.
    pub(super) fn describe(&self, received: &mut Received) {
        for (level, kind, data) in self.messages() {
            match (level, kind) {
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    // ipi_spec_dst is the local address even for a broadcast; ipi_addr what the header said.
                    if let (Some(index), Some(address)) = (at(data, 0), at::<4>(data, 4)) {
                        received.interface = Some(u32::from_ne_bytes(index));
                        received.destination = Some(Ipv4Addr::from(address).into());
                    }
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    if let (Some(address), Some(index)) = (at::<16>(data, 0), at(data, 16)) {
                        received.interface = Some(u32::from_ne_bytes(index));
                        received.destination = Some(IpAddr::from(address).to_canonical());
                    }
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    if let Some(stride) = at(data, 0).and_then(|size| usize::try_from(i32::from_ne_bytes(size)).ok()) {
                        received.stride = stride.clamp(1, received.len);
                    }
                }
                _ => {}
            }
        }
    }

    /// The error that this is a report of.
    pub(super) fn error_report(&self, destination: SocketAddr) -> Option<ErrorReport> {
        self.messages().find_map(|(level, kind, data)| {
            if !matches!((level, kind), (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)) {
                return None;
            }
            let errno = i32::from_ne_bytes(at(data, 0)?);
            let [origin, kind, code, _] = at(data, 4)?;
            let info = u32::from_ne_bytes(at(data, 8)?);
            let origin = match origin {
                libc::SO_EE_ORIGIN_LOCAL => ErrorOrigin::Local,
                libc::SO_EE_ORIGIN_ICMP => ErrorOrigin::Icmp,
                libc::SO_EE_ORIGIN_ICMP6 => ErrorOrigin::Icmp6,
                _ => return None,
            };
            let reporter = data.get(EXTENDED_ERROR..).and_then(decode_address).map(|address| address.ip());
            let mtu = (errno == libc::EMSGSIZE).then_some(info);
            Some(ErrorReport { destination, reporter, origin, kind, code, errno, mtu, quoted: None })
        })
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = HEADER + data.len();
        let room = &mut self.bytes[self.len..];
        room[..ALIGN].copy_from_slice(&len.to_ne_bytes());
        room[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        room[ALIGN + 4..ALIGN + 8].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(data);
        self.len += len.next_multiple_of(ALIGN);
    }

    fn messages(&self) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.bytes[..self.len.min(Self::CAPACITY)];
        std::iter::from_fn(move || {
            let len = usize::from_ne_bytes(at(rest, 0)?);
            let (level, kind) = (i32::from_ne_bytes(at(rest, ALIGN)?), i32::from_ne_bytes(at(rest, ALIGN + 4)?));
            let data = rest.get(HEADER..len)?;
            rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
            Some((level, kind, data))
        })
    }
}

fn at<const N: usize>(bytes: &[u8], start: usize) -> Option<[u8; N]> {
    bytes.get(start..)?.first_chunk().copied()
}
