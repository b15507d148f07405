//! One connection: what comes goes to the pumps as datagrams of a socket on loopback, and back.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_tcp_keepcnt,
    set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use whimbrel_kernel::sockopt::{bind_to_interface, set_not_sent_low_water};
use whimbrel_wire::{FlowTuple, PeerId, Transport};

use super::Times;
use super::frame::{LONGEST, Reader, Writer};

/// What waits for TCP to take it, in bytes, and how long it does: what is older was sent again already by whoever waits
/// for an answer. And what the kernel takes beyond what is under way.
const WAITING: usize = 256 << 10;
const WAITING_LONGEST: Duration = Duration::from_millis(500);
const NOT_SENT: u32 = 128 << 10;
/// A burst of the tunnel's.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Datagrams that are passed on at a time, so that others get their turn.
const DATAGRAMS: usize = 64;
/// Datagrams that the daemon gets by a connection that it has not answered on since, and that no path leads to.
const UNANSWERED: u32 = 64;
/// A far end that says nothing is asked after so long, so often, at these intervals.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 3;
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(5);
/// In milliseconds: how long what was sent may go unacknowledged.
const USER_TIMEOUT: u32 = 10_000;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the far end has closed it")]
    Closed,
    #[error("what came is not framed: that is no daemon")]
    NotFramed,
    #[error("nothing that counts has come in time")]
    TimedOut,
    #[error("there is no room for it")]
    NoRoom,
    #[error(transparent)]
    Failed(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct Connection {
    /// The number of its entry in the table.
    pub(super) number: u16,
    /// Whom this host has opened it to.
    pub(super) peer: Option<PeerId>,
    pub(super) far: IpAddr,
    pub(super) stream: TcpStream,
    pub(super) socket: Arc<UdpSocket>,
    /// Where the pumps take in what comes.
    pumps: SocketAddr,
    reader: Reader,
    writer: Writer,
    /// The far end sends nothing more.
    finished: bool,
    /// Datagrams that have come since the daemon last sent one.
    unanswered: u32,
    /// Paths of the tunnel that lead here.
    leading: Arc<AtomicU32>,
    /// It is being made.
    pub(super) connecting: bool,
    /// It was of use.
    proven: bool,
    /// When it was of use last, or began.
    since: Instant,
    /// Nothing more is to go by it: when that was said.
    closing: Option<Instant>,
}

/// What a connection is worth, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// The daemon has sent nothing by it.
    Unanswered,
    /// It has, and does so for anybody who begins a handshake.
    Answered,
    /// A path of the tunnel leads there: its peer has shown who it is, and has flows here.
    LedTo,
}

/// A socket that stands for a connection, and where it is.
pub(super) fn stand_in(like: IpAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let loopback: IpAddr = if like.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind(SocketAddr::new(loopback, 0))?;
    socket.set_nonblocking(true)?;
    // As much as may be where more is not for this process.
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
        .or_else(|_| set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER))?;
    let at = socket.local_addr()?;
    Ok((socket, at))
}

/// Begins to connect from an address of this host's, by an interface of choice.
pub(super) fn begin(from: IpAddr, interface: Option<u32>, to: SocketAddr) -> io::Result<(TcpStream, FlowTuple)> {
    let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
    interface.map_or(Ok(()), |index| bind_to_interface(socket.as_fd(), index)).map_err(io::Error::other)?;
    bind(&socket, &SocketAddr::new(from, 0))?;
    let stream = TcpStream::from(socket);
    let local = stream.local_addr()?;
    Ok((stream, FlowTuple { transport: Transport::Tcp, local, remote: to }))
}

/// The second half, once it is known whose the connection is.
pub(super) fn go_on(stream: &TcpStream, to: SocketAddr) -> io::Result<()> {
    match connect(stream, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    set_tcp_nodelay(stream, true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PAUSE)?;
    set_tcp_keepcnt(stream, KEEPALIVES)?;
    set_tcp_user_timeout(stream, USER_TIMEOUT)?;
    set_not_sent_low_water(stream.as_fd(), NOT_SENT).map_err(io::Error::other)
}

impl Connection {
    pub(super) fn new(
        number: u16,
        peer: Option<PeerId>,
        tuple: &FlowTuple,
        stream: TcpStream,
        socket: Arc<UdpSocket>,
        port: u16,
        leading: Arc<AtomicU32>,
        now: Instant,
    ) -> io::Result<Self> {
        set_options(&stream)?;
        Ok(Self {
            number,
            peer,
            far: tuple.remote.ip(),
            stream,
            socket,
            pumps: SocketAddr::new(tuple.local.ip(), port),
            reader: Reader::default(),
            writer: Writer::new(WAITING, WAITING_LONGEST),
            finished: false,
            unanswered: 0,
            leading,
            connecting: peer.is_some(),
            proven: false,
            since: now,
            closing: None,
        })
    }

    /// Whether something waits for TCP to take it.
    pub(super) fn wants_to_write(&self) -> bool {
        self.connecting || !self.writer.is_empty()
    }

    pub(super) fn worth(&self) -> Worth {
        match self.leading.load(Ordering::Relaxed) {
            1.. => Worth::LedTo,
            0 if self.proven => Worth::Answered,
            0 => Worth::Unanswered,
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// It ends then at the latest.
    pub(super) fn until(&self, times: &Times) -> Instant {
        match (self.closing, self.worth()) {
            (Some(since), _) => since + times.closing,
            _ if self.connecting => self.since + times.connecting,
            (None, Worth::LedTo) => self.since + times.idle,
            // What the daemon itself has opened to a peer has brought something.
            (None, Worth::Answered) if self.peer.is_some() => self.since + times.idle,
            (None, _) => self.since + times.unproven,
        }
    }

    /// Whether the daemon may get more of what has come.
    pub(super) fn may_receive(&self) -> bool {
        let trusted = self.peer.is_some() || self.worth() == Worth::LedTo;
        !self.connecting && (trusted || self.unanswered < UNANSWERED)
    }

    /// Whether something has come that is not passed on yet.
    pub(super) fn has_more(&self) -> bool {
        self.finished || self.reader.has_next()
    }

    /// It can be written to. Tells whether it has just been made.
    pub(super) fn on_writable(&mut self, now: Instant) -> Result<bool, Ended> {
        if self.connecting {
            if let Some(error) = self.stream.take_error()? {
                return Err(error.into());
            }
            (self.connecting, self.since) = (false, now);
            return Ok(true);
        }
        self.writer.write(&mut self.stream, now)?;
        Ok(false)
    }

    /// Something has come by TCP, or has before.
    pub(super) fn on_readable(&mut self, now: Instant, buffer: &mut [u8]) -> Result<(), Ended> {
        if !self.has_more() {
            match self.reader.read(&mut self.stream, buffer) {
                Ok(goes_on) => self.finished = !goes_on,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        for _ in 0..DATAGRAMS {
            match self.reader.next() {
                // A full buffer drops it, as a router would; so does an address that this host has left.
                Ok(Some(datagram)) => drop(self.socket.send_to(datagram, self.pumps)),
                Ok(None) if self.finished => return Err(Ended::Closed),
                Ok(None) => break,
                Err(_) => return Err(Ended::NotFramed),
            }
            self.unanswered = self.unanswered.saturating_add(1);
            if self.peer.is_some() {
                (self.proven, self.since) = (true, now);
            }
        }
        Ok(())
    }

    /// The pumps have sent something.
    pub(super) fn on_datagrams(&mut self, now: Instant, buffer: &mut [u8]) -> Result<(), Ended> {
        for _ in 0..DATAGRAMS {
            let (length, source) = match self.socket.recv_from(buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // About one that was sent before.
                Err(_) => continue,
            };
            // Any program of this host may send here; the daemon alone has its port.
            if source.port() != self.pumps.port() || length > LONGEST {
                continue;
            }
            if !self.connecting {
                self.writer.push(&buffer[..length], now);
            }
            self.unanswered = 0;
            if self.peer.is_none() {
                (self.proven, self.since) = (true, now);
            }
        }
        if !self.connecting {
            self.writer.write(&mut self.stream, now)?;
        }
        Ok(())
    }

    /// Nothing more is to go by it.
    pub(super) fn close(&mut self, now: Instant) {
        self.closing.get_or_insert(now);
    }
}
