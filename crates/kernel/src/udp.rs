//! The UDP socket of control datagrams and tunnels: one for both address families, in batches.
//!
//! A send carries a train of equal datagrams that the kernel (or the card) cuts (UDP_SEGMENT), a receive one that was
//! merged on the way up (UDP_GRO); several of either go in one system call. Addresses are always the plain ones:
//! IPv4-mapped IPv6 never leaves this module. Everything is non-blocking; wait with `poll` on the descriptor.

mod control;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use control::{Control, Name};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::error::Error;
use crate::sockopt;

/// The most bytes that one send takes: what fits an IPv4 packet.
pub const MAX_TRAIN: usize = 65_507;
/// UDP_MAX_SEGMENTS of include/linux/udp.h before Linux 6.9; 128 since.
const MAX_SEGMENTS: usize = 64;
/// Messages in one sendmmsg or recvmmsg.
const MESSAGES: usize = 16;
/// Room for the longest datagram or train.
const SLOT: usize = 65_536;
/// Asked of SO_RCVBUFFORCE: a few milliseconds at 10 Gbit/s, as a burst has to wait while the thread sleeps.
const RECEIVE_BUFFER: i32 = 8 << 20;
const SEND_BUFFER: i32 = 4 << 20;
/// How many errors about earlier datagrams are passed over in one receive.
const STALE_ERRORS: usize = 8;
/// How long a send waits for a full socket buffer before it drops, in milliseconds.
const SEND_PATIENCE_MS: i32 = 100;

/// The socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    v6: bool,
    port: u16,
    segmentation: AtomicBool,
}

/// Datagrams to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Where to.
    pub destination: SocketAddr,
    /// From which of this host's addresses; the kernel chooses if none is given.
    pub source: Option<IpAddr>,
    /// By which interface, whatever others the routes prefer. Counts only with a source of the destination's family.
    pub interface: Option<u32>,
    /// The datagrams, side by side. Any length: what does not fit one send is sent in several.
    pub contents: &'a [u8],
    /// Length of each datagram but the last, which may be shorter. None: `contents` is a single datagram.
    pub segment_size: Option<u16>,
}

/// What became of a send.
#[derive(Debug, Default)]
pub struct SendReport {
    /// Datagrams that the kernel took.
    pub sent: usize,
    /// Datagrams that it did not take.
    pub dropped: usize,
    /// Why, for the last of those.
    pub error: Option<io::Error>,
}

/// A datagram, or a train of datagrams of one sender, that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender.
    pub source: SocketAddr,
    /// The address of this host that it was sent to, if the kernel told.
    pub destination: Option<IpAddr>,
    /// Index of the interface that it came in by, if the kernel told.
    pub interface: Option<u32>,
    /// Where its bytes begin in the batch's buffer.
    pub start: usize,
    /// How many bytes it has.
    pub len: usize,
    /// Length of each datagram but the last, which may be shorter; equal to `len` for a single one.
    pub stride: usize,
}

/// Memory for one receive: [`ReceiveBatch::parts`] gives what is in it.
#[derive(Debug)]
pub struct ReceiveBatch {
    buffer: Vec<u8>,
    received: Vec<Received>,
}

/// Who made an error known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// This host.
    Local,
    /// An ICMP message (RFC 792).
    Icmp,
    /// An ICMPv6 message (RFC 4443).
    Icmp6,
}

/// An error about a datagram that was sent earlier (IP_RECVERR, ip(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// Where the datagram was to go.
    pub destination: SocketAddr,
    /// Who reported it: the host itself or a router on the way.
    pub reporter: Option<IpAddr>,
    /// Local or ICMP.
    pub origin: ErrorOrigin,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// The error number that the kernel makes of it.
    pub errno: i32,
    /// The path MTU in bytes, if that is what it is about.
    pub mtu: Option<u32>,
    /// How the datagram began, where the report quotes so much of it. Who forges a report has to know it.
    pub quoted: Option<[u8; 8]>,
}

impl ErrorReport {
    /// Whether nobody listens at the destination: ICMP type 3 code 3, ICMPv6 type 1 code 4.
    #[must_use]
    pub fn is_port_unreachable(&self) -> bool {
        matches!((self.origin, self.kind, self.code), (ErrorOrigin::Icmp, 3, 3) | (ErrorOrigin::Icmp6, 1, 4))
    }
}

impl ReceiveBatch {
    /// Room for one receive.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: vec![0; MESSAGES * SLOT], received: Vec::with_capacity(MESSAGES) }
    }

    /// The buffer and what lies in it, in order of arrival.
    pub fn parts(&mut self) -> (&mut [u8], &[Received]) {
        (&mut self.buffer, &self.received)
    }
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl UdpSocket {
    /// Opens the socket on `port` (0: any) of all addresses, IPv6 and IPv4 or, where the kernel has no IPv6, IPv4.
    ///
    /// # Errors
    /// [`Error::Call`] with the port as object; EADDRINUSE if another program has it.
    pub fn bind(port: u16) -> Result<Self, Error> {
        match Self::bind_family(port, true) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
                Self::bind_family(port, false)
            }
            result => result,
        }
    }

    /// The local port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether IPv6 can be used too.
    #[must_use]
    pub fn is_dual_stack(&self) -> bool {
        self.v6
    }

    /// Whether datagrams are sent with don't-fragment set. Off at first: what is too long for the path goes in
    /// fragments. It holds for the whole socket from the next send on; while it is on, what is too long for the known
    /// path MTU fails with EMSGSIZE and what a router found too long comes back as an [`ErrorReport`].
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn set_dont_fragment(&self, on: bool) -> Result<(), Error> {
        let (v4, v6) = if on {
            (libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO)
        } else {
            (libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT)
        };
        self.set(libc::SOL_IP, libc::IP_MTU_DISCOVER, v4, "setsockopt IP_MTU_DISCOVER")?;
        if self.v6 {
            self.set(libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, v6, "setsockopt IPV6_MTU_DISCOVER")?;
        }
        Ok(())
    }

    /// Lets datagrams be sent from addresses that are other hosts', which this one speaks for (IP_TRANSPARENT, ip(7)).
    /// Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn speak_for_others(&self) -> Result<(), Error> {
        // The kernel keeps one bit for both.
        if self.v6 {
            self.set(libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1, "setsockopt IPV6_TRANSPARENT")
        } else {
            self.set(libc::SOL_IP, libc::IP_TRANSPARENT, 1, "setsockopt IP_TRANSPARENT")
        }
    }

    /// Sends everything, each train cut by the kernel where it can be. A train whose datagrams do not fit the path is
    /// sent datagram by datagram, in fragments. A full socket buffer is waited for, 100 ms at most.
    pub fn send(&self, transmits: &[Transmit<'_>]) -> SendReport {
        self.send_all(transmits, true)
    }

    /// As [`UdpSocket::send`], but that what the kernel has no room for is dropped at once.
    pub fn send_now(&self, transmits: &[Transmit<'_>]) -> SendReport {
        self.send_all(transmits, false)
    }

    fn send_all(&self, transmits: &[Transmit<'_>], waits: bool) -> SendReport {
        let mut report = SendReport::default();
        let mut pending = Pending::new(waits);
        for transmit in transmits {
            let size = transmit.segment_size.map_or(transmit.contents.len(), usize::from).max(1);
            let train = self.train_length(size);
            let mut rest = transmit.contents;
            loop {
                let (piece, after) = rest.split_at(train.min(rest.len()));
                if pending.len == MESSAGES {
                    self.flush(&mut pending, &mut report);
                }
                pending.add(self.v6, Transmit { contents: piece, ..*transmit }, size);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
        }
        self.flush(&mut pending, &mut report);
        report
    }

    /// Receives what is there, and returns how many messages; 0 if nothing is. An ICMP error that was pending on the
    /// socket is passed over: [`UdpSocket::receive_error`] has it.
    ///
    /// # Errors
    /// The error of recvmmsg(2), if it is about the socket and not about an earlier datagram.
    pub fn receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        batch.received.clear();
        let mut names = [const { Name::EMPTY }; MESSAGES];
        let mut controls = [const { Control::EMPTY }; MESSAGES];
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGES];
        let mut headers = [EMPTY_MESSAGE; MESSAGES];
        for (index, slot) in batch.buffer.chunks_exact_mut(SLOT).take(MESSAGES).enumerate() {
            vectors[index] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let header = &mut headers[index].msg_hdr;
            header.msg_name = names[index].0.as_mut_ptr().cast();
            header.msg_namelen = Name::LEN as u32;
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].bytes.as_mut_ptr().cast();
            header.msg_controllen = Control::CAPACITY;
        }
        let count = past_stale_errors(|| {
            // SAFETY: the first MESSAGES headers are initialised and point to names, vectors and control buffers that
            // live until the end of this function, each with its true length.
            let result = unsafe {
                libc::recvmmsg(
                    self.fd.as_raw_fd(),
                    headers.as_mut_ptr(),
                    MESSAGES as u32,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                )
            };
            usize::try_from(result).map_err(|_| io::Error::last_os_error())
        })?;
        for (index, header) in headers[..count].iter().enumerate() {
            let Some(source) = names[index].decode() else { continue };
            let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let len = header.msg_len as usize;
            if len == 0 || truncated {
                continue;
            }
            let mut received =
                Received { source, destination: None, interface: None, start: index * SLOT, len, stride: len };
            controls[index].len = header.msg_hdr.msg_controllen;
            controls[index].describe(&mut received);
            batch.received.push(received);
        }
        Ok(batch.received.len())
    }

    /// Takes the next error report, if there is one. `poll` shows POLLERR while there are some.
    ///
    /// # Errors
    /// The error of recvmsg(2).
    pub fn receive_error(&self) -> io::Result<Option<ErrorReport>> {
        loop {
            let (mut name, mut control) = (Name::EMPTY, Control::EMPTY);
            let mut quoted = [0; 8];
            let mut vector = libc::iovec { iov_base: quoted.as_mut_ptr().cast(), iov_len: quoted.len() };
            let mut header = EMPTY_MESSAGE.msg_hdr;
            header.msg_name = name.0.as_mut_ptr().cast();
            header.msg_namelen = Name::LEN as u32;
            header.msg_iov = &raw mut vector;
            header.msg_iovlen = 1;
            header.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_controllen = Control::CAPACITY;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: name, data vector and control buffer outlive the call and their lengths are true.
            let result = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, flags) };
            if result < 0 {
                let error = io::Error::last_os_error();
                return if error.raw_os_error() == Some(libc::EAGAIN) { Ok(None) } else { Err(error) };
            }
            control.len = header.msg_controllen;
            if let Some(report) = name.decode().and_then(|destination| control.error_report(destination)) {
                let quoted = (result >= quoted.len() as isize).then_some(quoted);
                return Ok(Some(ErrorReport { quoted, ..report }));
            }
        }
    }

    fn bind_family(port: u16, v6: bool) -> Result<Self, Error> {
        let object = || format!("udp port {port}");
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: no pointers.
        let raw = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
        if raw < 0 {
            return Err(Error::call("socket", object(), io::Error::last_os_error()));
        }
        // SAFETY: the kernel just gave this descriptor to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut socket = Self { fd, v6, port, segmentation: AtomicBool::new(true) };
        if v6 {
            socket.set(libc::SOL_IPV6, libc::IPV6_V6ONLY, 0, "setsockopt IPV6_V6ONLY")?;
            socket.set(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1, "setsockopt IPV6_RECVPKTINFO")?;
            socket.set(libc::SOL_IPV6, libc::IPV6_RECVERR, 1, "setsockopt IPV6_RECVERR")?;
        }
        socket.set(libc::SOL_IP, libc::IP_PKTINFO, 1, "setsockopt IP_PKTINFO")?;
        socket.set(libc::SOL_IP, libc::IP_RECVERR, 1, "setsockopt IP_RECVERR")?;
        socket.set_dont_fragment(false)?;
        // The forced sizes need CAP_NET_ADMIN; without it the limit of net.core.{r,w}mem_max holds.
        for (forced, plain, bytes) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER),
        ] {
            if socket.set(libc::SOL_SOCKET, forced, bytes, "setsockopt SO_xBUFFORCE").is_err() {
                socket.set(libc::SOL_SOCKET, plain, bytes, "setsockopt SO_xBUF")?;
            }
        }
        socket.set(libc::SOL_UDP, libc::UDP_GRO, 1, "setsockopt UDP_GRO")?;
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let (name, len) = Name::encode(SocketAddr::new(any, port), v6);
        // SAFETY: the name holds a socket address of `len` bytes.
        if unsafe { libc::bind(socket.fd.as_raw_fd(), name.0.as_ptr().cast(), len) } < 0 {
            return Err(Error::call("bind", object(), io::Error::last_os_error()));
        }
        let (mut name, mut len) = (Name::EMPTY, Name::LEN as u32);
        // SAFETY: the name has room for `len` bytes.
        if unsafe { libc::getsockname(socket.fd.as_raw_fd(), name.0.as_mut_ptr().cast(), &raw mut len) } < 0 {
            return Err(Error::call("getsockname", object(), io::Error::last_os_error()));
        }
        socket.port = name.decode().map_or(port, |address| address.port());
        Ok(socket)
    }

    fn set(&self, level: i32, option: i32, value: i32, call: &'static str) -> Result<(), Error> {
        // SAFETY: the option value is an int that outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(Error::call(call, format!("udp port {}", self.port), io::Error::last_os_error()));
        }
        Ok(())
    }

    /// How many bytes of datagrams of `size` bytes go in one message.
    fn train_length(&self, size: usize) -> usize {
        if self.segmentation.load(Ordering::Relaxed) { size * (MAX_TRAIN / size).clamp(1, MAX_SEGMENTS) } else { size }
    }

    fn flush(&self, pending: &mut Pending<'_>, report: &mut SendReport) {
        let mut done = 0;
        while done < pending.len {
            match self.send_messages(pending, done) {
                Ok(count) => {
                    report.sent += pending.datagrams(done..done + count);
                    done += count;
                }
                Err(error) => {
                    self.send_failed(pending, done, error, report);
                    done += 1;
                }
            }
        }
        pending.len = 0;
    }

    /// Sends the messages from `first` on; the error is that of message `first`.
    fn send_messages(&self, pending: &mut Pending<'_>, first: usize) -> io::Result<usize> {
        let mut headers = [EMPTY_MESSAGE; MESSAGES];
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGES];
        let count = pending.len - first;
        for index in 0..count {
            let message = &mut pending.messages[first + index];
            vectors[index] =
                libc::iovec { iov_base: message.contents.as_ptr().cast_mut().cast(), iov_len: message.contents.len() };
            let header = &mut headers[index].msg_hdr;
            header.msg_name = message.name.0.as_mut_ptr().cast();
            header.msg_namelen = message.name_len;
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            if message.control.len > 0 {
                header.msg_control = message.control.bytes.as_mut_ptr().cast();
                header.msg_controllen = message.control.len;
            }
        }
        let mut stale_errors = 0;
        loop {
            // SAFETY: the first `count` headers are initialised and point to names, vectors, contents and control
            // buffers that outlive the call, each with its true length; the kernel only reads the contents.
            let result =
                unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
            if let Ok(sent) = usize::try_from(result) {
                return Ok(sent);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) if pending.waits && self.wait_writable() => {}
                // Such an error may be one that an earlier datagram left behind on the socket, and is gone then.
                Some(number) if stale_errors < 2 && is_about_a_datagram(number) => stale_errors += 1,
                _ => return Err(error),
            }
        }
    }

    fn send_failed(&self, pending: &mut Pending<'_>, index: usize, error: io::Error, report: &mut SendReport) {
        let message = &pending.messages[index];
        let (contents, size) = (message.contents, message.size);
        let train = contents.len() > size;
        match error.raw_os_error() {
            // EIO: the device cannot form checksums, so nothing can be cut; that does not change. EINVAL, EMSGSIZE:
            // a datagram is longer than the path MTU, and only a single one can be sent in fragments.
            Some(number @ (libc::EIO | libc::EINVAL | libc::EMSGSIZE)) if train => {
                if number == libc::EIO {
                    self.segmentation.store(false, Ordering::Relaxed);
                }
                let template = message.transmit();
                let mut datagrams = contents.chunks(size);
                while let Some(datagram) = datagrams.next() {
                    let mut single = Pending::new(pending.waits);
                    single.add(self.v6, Transmit { contents: datagram, ..template }, datagram.len());
                    match self.send_messages(&mut single, 0) {
                        Ok(_) => report.sent += 1,
                        Err(error) => {
                            // It was not the cutting, then (a source that is no address of this host, say): the others
                            // would fail alike.
                            report.dropped += 1 + datagrams.len();
                            report.error = Some(error);
                            break;
                        }
                    }
                }
            }
            _ => {
                report.dropped += pending.datagrams(index..index + 1);
                report.error = Some(error);
            }
        }
    }

    fn wait_writable(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, which outlives the call.
        unsafe { libc::poll(&raw mut fd, 1, SEND_PATIENCE_MS) > 0 }
    }
}

/// Tries to receive until it is not an error about an earlier datagram that comes back. Such errors can come faster
/// than they are taken, as anybody can send ICMP messages; after a few it is as if nothing were there, and the caller
/// waits for the socket, which is readable as long as something is.
fn past_stale_errors(mut receive: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    for _ in 0..STALE_ERRORS {
        match receive() {
            Ok(count) => return Ok(count),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(0),
                Some(number) if is_about_a_datagram(number) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(0)
}

/// Whether an error number can stem from an ICMP message about an earlier datagram (net/ipv4/icmp.c
/// `icmp_err_convert`).
fn is_about_a_datagram(number: i32) -> bool {
    matches!(
        number,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EMSGSIZE
            | libc::EPROTO
            | libc::EACCES
            | libc::EINTR
    )
}

/// Messages of one sendmmsg.
struct Pending<'a> {
    messages: Vec<Message<'a>>,
    len: usize,
    /// For room in the socket's buffer.
    waits: bool,
}

struct Message<'a> {
    name: Name,
    name_len: u32,
    control: Control,
    contents: &'a [u8],
    size: usize,
    destination: SocketAddr,
    source: Option<IpAddr>,
    interface: Option<u32>,
}

impl<'a> Message<'a> {
    fn transmit(&self) -> Transmit<'a> {
        let Self { destination, source, interface, contents, .. } = *self;
        Transmit { destination, source, interface, contents, segment_size: None }
    }
}

impl<'a> Pending<'a> {
    fn new(waits: bool) -> Self {
        Self { messages: Vec::new(), len: 0, waits }
    }

    fn add(&mut self, v6: bool, transmit: Transmit<'a>, size: usize) {
        let Transmit { destination, source, interface, contents, .. } = transmit;
        let (name, name_len) = Name::encode(destination, v6);
        let mut control = Control::EMPTY;
        if let Some(source) = source {
            control.push_source(source, interface.unwrap_or(0), destination, v6);
        }
        if contents.len() > size {
            control.push_segment_size(u16::try_from(size).unwrap_or(u16::MAX));
        }
        self.messages.truncate(self.len);
        self.messages.push(Message { name, name_len, control, contents, size, destination, source, interface });
        self.len += 1;
    }

    fn datagrams(&self, range: std::ops::Range<usize>) -> usize {
        self.messages[range].iter().map(|message| message.contents.len().div_ceil(message.size).max(1)).sum()
    }
}

const EMPTY_MESSAGE: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: std::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

/// A socket that has a port, so that no other gets it, and takes nothing: it is connected to nobody's. The address may
/// be one that this host has no longer, for which CAP_NET_ADMIN is needed.
///
/// # Errors
/// Of socket(2), bind(2) and connect(2).
pub fn keep_port(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let (family, nobody, transparent) = if at.is_ipv4() {
        let name = sockopt::Name { level: libc::SOL_IP, name: libc::IP_TRANSPARENT, text: "IP_TRANSPARENT" };
        (AddressFamily::INET, IpAddr::V4(Ipv4Addr::LOCALHOST), name)
    } else {
        let name = sockopt::Name { level: libc::SOL_IPV6, name: libc::IPV6_TRANSPARENT, text: "IPV6_TRANSPARENT" };
        (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::LOCALHOST), name)
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Without the right to it an address of this host's own will do.
    let _ = sockopt::set(socket.as_fd(), transparent, &1i32);
    bind(&socket, &at)?;
    connect(&socket, &SocketAddr::new(nobody, at.port()))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
