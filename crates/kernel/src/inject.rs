//! Packets that no socket would send: introductions inside flows, and ICMP errors that make this host's own TCP go on.
//!
//! **Kick.** After an outage TCP sits in its back-off. An ICMP "host unreachable" that quotes its oldest unacknowledged
//! segment undoes one step of the back-off (RFC 6069, `tcp_ld_RTO_revert`), and the timer of the step before has mostly
//! run out. Before the first timeout there is nothing to undo; a "packet too big" just below the MTU has everything
//! resent that is in flight instead (`tcp_simple_retransmit`).
//!
//! These errors bear the flow's local address as source and destination, but are **routed to the loopback address**:
//! with IP_HDRINCL the kernel routes by what sendmsg is given and not by the header, and on `lo` it keeps that route.
//! So they arrive whatever has happened to the socket's own address, its local route and rp_filter; they cannot get to
//! the wire; and connection tracking finds them *related* to the flow, so that firewalls let them pass. A socket that
//! is bound to a device is not found.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with, sockopt};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

use crate::error::Error;
use crate::packet;

/// The numbers in a TCP segment. In a segment shaped like a keepalive: `snd_una - 1`, `rcv_nxt`, and the window as the
/// socket would announce it (already scaled down).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// As in the header, without the scale.
    pub window: u16,
}

/// A TCP segment that is put into a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its numbers.
    pub numbers: Numbers,
    /// The timestamps option (RFC 7323): TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// Bytes of the stream, at most what one packet carries.
    pub payload: &'a [u8],
}

/// Which way an injected packet goes, where the ordinary one will not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The firewall mark that it is routed with and bears.
    pub mark: Option<u32>,
    /// The index of the only interface that it may leave by.
    pub interface: Option<u32>,
}

/// Raw sockets, opened once, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct Injector {
    v4: OwnedFd,
    /// None where the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

impl Injector {
    /// Opens them. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Self, Error> {
        let raw = Protocol::from_raw(rustix::net::RawProtocol::new(libc::IPPROTO_RAW as u32).expect("is not zero"));
        let open = |family| socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(raw));
        // IPPROTO_RAW implies IP_HDRINCL.
        let v4 = open(AddressFamily::INET).map_err(|e| Error::call("socket", "raw IPv4", e))?;
        // To be routed as from an address that is ours only in part (DESIGN: old addresses).
        set_option(&v4, libc::SOL_IP, libc::IP_TRANSPARENT)
            .map_err(|e| Error::call("setsockopt", "IP_TRANSPARENT", e))?;
        let v6 = match open(AddressFamily::INET6) {
            Ok(socket) => {
                set_option(&socket, libc::SOL_IPV6, libc::IPV6_HDRINCL)
                    .map_err(|e| Error::call("setsockopt", "IPV6_HDRINCL", e))?;
                sockopt::set_ipv6_freebind(&socket, true).map_err(|e| Error::call("setsockopt", "IPV6_FREEBIND", e))?;
                Some(socket)
            }
            Err(rustix::io::Errno::AFNOSUPPORT) => None,
            Err(error) => return Err(Error::call("socket", "raw IPv6", error)),
        };
        Ok(Self { v4, v6 })
    }

    /// Sends an introduction or carrier probe on a TCP flow: a segment without data that bears the option. It is routed
    /// as from `tuple.local` and passes the egress programs like the flow's own segments.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the tuple is not TCP or mixes families.
    pub fn introduce_tcp(
        &self,
        tuple: &FlowTuple,
        numbers: Numbers,
        introduction: Introduction,
        way: Way,
    ) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        let segment = packet::tcp_segment(tuple, numbers, &introduction.tcp_option())?;
        self.send(&segment, tuple, way)
    }

    /// Has the other end of a TCP flow say what it has, by a keepalive whose one byte it has already (RFC 1122
    /// §4.2.3.6). A stack answers each of these; of those without a byte Linux answers two a second
    /// (`tcp_oow_rate_limited`).
    ///
    /// # Errors
    /// As [`introduce_tcp`](Self::introduce_tcp).
    pub fn ask_tcp(&self, tuple: &FlowTuple, numbers: Numbers, way: Way) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        let segment = packet::tcp_data(tuple, &Segment { numbers, timestamps: None, payload: &[0] })?;
        self.send(&segment, tuple, way)
    }

    /// Sends an introduction or carrier probe on a UDP flow: a datagram of its own.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the tuple is not UDP or mixes families.
    pub fn introduce_udp(&self, tuple: &FlowTuple, introduction: Introduction, way: Way) -> Result<(), Error> {
        check(tuple, Transport::Udp)?;
        let datagram = packet::udp_datagram(tuple, &introduction.udp_payload())?;
        self.send(&datagram, tuple, way)
    }

    /// Sends a datagram of this host's own that bears the source `tuple.local`, which may be any: it is routed as from
    /// `from`. Whoever is in between may drop it.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the tuple is not UDP, mixes families, or the payload is too long.
    pub fn send_masked(&self, tuple: &FlowTuple, from: IpAddr, payload: &[u8], way: Way) -> Result<(), Error> {
        check(tuple, Transport::Udp)?;
        let datagram = packet::udp_datagram(tuple, payload)?;
        self.send(&datagram, &FlowTuple { local: SocketAddr::new(from, tuple.local.port()), ..*tuple }, way)
    }

    /// Kicks the socket of a TCP flow: an ICMP error that quotes its oldest unacknowledged segment, delivered on this
    /// host.
    ///
    /// `snd_una` must be exact. Undoes one step of the back-off: repeat until a retransmission is seen, or the back-off
    /// is at 0. It makes the timeout no shorter than it is without back-off (some 200 ms, more on long paths), counted
    /// from the last transmission: so soon after one, only [`shrink`](Self::shrink) has it resend at once. A socket
    /// with IP_RECVERR reports the error to its program.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the tuple is not TCP or mixes families. It is no error if there is no
    /// such socket.
    pub fn kick(&self, tuple: &FlowTuple, snd_una: u32) -> Result<(), Error> {
        self.report(tuple, snd_una, packet::IcmpError::HostUnreachable)
    }

    /// Makes the socket of a TCP flow believe that packets larger than `mtu` bytes do not get through: it resends at
    /// once whatever is larger, in back-off too, as far as its congestion window allows. Delivered on this host.
    ///
    /// A segment at the end of the flight that is smaller already is not resent. Where the route's MTU is larger, the
    /// kernel remembers `mtu` for the destination: see
    /// [`RouteSocket::forget_path_mtu`](crate::route::RouteSocket::forget_path_mtu). Where the route's MTU has been
    /// lowered since the socket last sent, give one byte more than that MTU: nothing is left behind then
    /// (`__ip_rt_update_pmtu`, `__ip6_rt_update_pmtu`).
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn shrink(&self, tuple: &FlowTuple, snd_una: u32, mtu: u16) -> Result<(), Error> {
        self.report(tuple, snd_una, packet::IcmpError::TooBig { mtu })
    }

    /// As [`kick`](Self::kick), of a TCP flow of another host's, which this one is the router of: `tuple` is as that
    /// host has it. The error is sent there, as any router may (RFC 6069).
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn kick_host(&self, tuple: &FlowTuple, snd_una: u32) -> Result<(), Error> {
        self.report_to_host(tuple, snd_una, packet::IcmpError::HostUnreachable)
    }

    /// As [`shrink`](Self::shrink), of a TCP flow of another host's, as [`kick_host`](Self::kick_host) is. That host
    /// remembers `mtu` for the destination, for as long as it does (ten minutes on Linux).
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn shrink_host(&self, tuple: &FlowTuple, snd_una: u32, mtu: u16) -> Result<(), Error> {
        self.report_to_host(tuple, snd_una, packet::IcmpError::TooBig { mtu })
    }

    fn report_to_host(&self, tuple: &FlowTuple, snd_una: u32, kind: packet::IcmpError) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        // From where what it is about went to: no address of this host's need be of any meaning there.
        let error = packet::icmp_error(tuple.remote.ip(), tuple, snd_una, kind)?;
        self.send(&error, &tuple.mirrored(), Way::default())
    }

    /// Ends the socket of a TCP flow: a reset as from the other end, delivered on this host. `rcv_nxt` must be exact
    /// (RFC 5961 §3.2).
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn reset(&self, tuple: &FlowTuple, rcv_nxt: u32) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        self.deliver(&packet::tcp_reset(&tuple.mirrored(), rcv_nxt)?, tuple)
    }

    /// Ends what the other end of a TCP flow has to say: a FIN as from there, delivered on this host. `numbers` are
    /// those of the other end: what the socket expects next, and what it has sent of late.
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn finish(&self, tuple: &FlowTuple, numbers: Numbers) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        self.deliver(&packet::tcp_finish(&tuple.mirrored(), numbers)?, tuple)
    }

    /// Gives the socket of a UDP flow a datagram as from the other end, delivered on this host.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Argument`] where the tuple is not UDP, mixes families, or the payload is too long.
    pub fn deliver_udp(&self, tuple: &FlowTuple, payload: &[u8]) -> Result<(), Error> {
        check(tuple, Transport::Udp)?;
        self.deliver(&packet::udp_datagram(&tuple.mirrored(), payload)?, tuple)
    }

    /// Puts a segment into a TCP flow as from the other end, delivered on this host.
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn answer(&self, tuple: &FlowTuple, segment: &Segment<'_>) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        self.deliver(&packet::tcp_data(&tuple.mirrored(), segment)?, tuple)
    }

    /// Has the socket of a TCP flow say what it has: an empty segment as from the other end, of long ago, delivered on
    /// this host, which it acknowledges (RFC 9293 §3.10.7.4), twice a second at most (`tcp_oow_rate_limited`).
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn provoke_acknowledgement(&self, tuple: &FlowTuple, snd_una: u32, rcv_nxt: u32) -> Result<(), Error> {
        // Before all that it has not acknowledged yet, or it would be taken for one in its turn (`tcp_sequence`).
        let sequence = rcv_nxt.wrapping_sub(1 << 30);
        let numbers = Numbers { sequence, acknowledgement: snd_una, window: 0 };
        self.answer(tuple, &Segment { numbers, timestamps: None, payload: &[] })
    }

    /// Puts a segment into a TCP flow as from this end. It is routed as from `tuple.local` and passes the egress
    /// programs like the flow's own segments.
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub fn send_segment(&self, tuple: &FlowTuple, segment: &Segment<'_>) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        self.send(&packet::tcp_data(tuple, segment)?, tuple, Way::default())
    }

    fn report(&self, tuple: &FlowTuple, snd_una: u32, kind: packet::IcmpError) -> Result<(), Error> {
        check(tuple, Transport::Tcp)?;
        self.deliver(&packet::icmp_error(tuple.local.ip(), tuple, snd_una, kind)?, tuple)
    }

    /// Sends a packet to this host itself, for the socket of `tuple`.
    fn deliver(&self, packet: &[u8], tuple: &FlowTuple) -> Result<(), Error> {
        // Where it is routed to, not what its header says.
        let here: IpAddr = if tuple.local.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let outside =
            FlowTuple { transport: Transport::Tcp, local: SocketAddr::new(here, 0), remote: SocketAddr::new(here, 0) };
        self.send(packet, &outside, Way::default())
    }

    /// Sends a packet with its IP header, routed from `ends.local` to `ends.remote`.
    fn send(&self, packet: &[u8], ends: &FlowTuple, way: Way) -> Result<(), Error> {
        let object = || format!("{} bytes on {ends}", packet.len());
        let socket = if ends.local.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
        let socket =
            socket.ok_or_else(|| Error::call("sendmsg", object(), io::Error::from_raw_os_error(libc::EAFNOSUPPORT)))?;
        match send_message(socket, packet, ends, way) {
            Ok(length) if length == packet.len() => Ok(()),
            Ok(_) => Err(Error::call("sendmsg", object(), io::Error::from(io::ErrorKind::WriteZero))),
            Err(error) => Err(Error::call("sendmsg", object(), error)),
        }
    }
}

fn check(tuple: &FlowTuple, transport: Transport) -> Result<(), Error> {
    if tuple.transport != transport {
        return Err(Error::Argument { object: tuple.to_string(), detail: "has the wrong transport for this packet" });
    }
    if tuple.local.is_ipv4() != tuple.remote.is_ipv4() {
        return Err(Error::Argument { object: tuple.to_string(), detail: "mixes address families" });
    }
    Ok(())
}

fn set_option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is valid for reads of its own size for the duration of the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the two control messages that are sent, aligned as they have to be.
#[repr(C, align(8))]
struct Control {
    bytes: [u8; 128],
    used: usize,
}

impl Control {
    /// Appends a control message. `T` is plain data without padding.
    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, data: T) {
        let size = size_of::<T>() as u32;
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, length) = unsafe { (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size) as usize) };
        assert!(self.used + space <= self.bytes.len(), "two control messages fit");
        let header = libc::cmsghdr { cmsg_len: length as _, cmsg_level: level, cmsg_type: kind };
        let at = self.bytes[self.used..].as_mut_ptr();
        // SAFETY: `at` has `space` writable bytes behind it (asserted above); `used` is a multiple of the alignment of
        // cmsghdr, since CMSG_SPACE is and the buffer is aligned to 8; the data is written unaligned.
        unsafe {
            at.cast::<libc::cmsghdr>().write(header);
            libc::CMSG_DATA(at.cast()).cast::<T>().write_unaligned(data);
        }
        self.used += space;
    }
}

fn send_message(socket: &OwnedFd, packet: &[u8], ends: &FlowTuple, way: Way) -> io::Result<usize> {
    let mut control = Control { bytes: [0; 128], used: 0 };
    let interface = way.interface.unwrap_or(0);
    match ends.local.ip() {
        IpAddr::V4(source) => {
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
            let info = libc::in_pktinfo {
                ipi_ifindex: interface as libc::c_int,
                ipi_spec_dst: source,
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            control.push(libc::SOL_IP, libc::IP_PKTINFO, info);
        }
        IpAddr::V6(source) => {
            let source = libc::in6_addr { s6_addr: source.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: interface };
            control.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    if let Some(mark) = way.mark {
        control.push(libc::SOL_SOCKET, libc::SO_MARK, mark);
    }

    let (name, name_length) = destination(ends.remote);
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: all zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw const name).cast_mut().cast();
    message.msg_namelen = name_length;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.as_mut_ptr().cast();
    message.msg_controllen = control.used as _;
    // SAFETY: every pointer in `message` is to a value that outlives the call, with its true length; sendmsg only
    // reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The destination as the kernel wants it. A raw socket's port is the protocol, or 0.
fn destination(remote: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    match remote {
        SocketAddr::V4(to) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is as large and aligned as any socket address.
            unsafe { at.cast::<libc::sockaddr_in>().write(name) };
            (storage, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(to) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<libc::sockaddr_in6>().write(name) };
            (storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}
