//! One connection: what comes goes to the pumps as datagrams of a socket on loopback, and back.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use whimbrel_wire::{FlowTuple, PeerId, Transport};

use super::Times;
use super::frame::{LONGEST, Reader, Writer};

/// What waits for TCP to take it, in bytes; and what the kernel takes beyond what is under way.
const WAITING: usize = 256 << 10;
const SEND_BUFFER: usize = 512 << 10;
/// A burst of the tunnel's.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Datagrams that are taken at a time.
const DATAGRAMS: usize = 64;
/// A far end that says nothing is asked after so long, so often, at these intervals.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 3;
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(5);
/// In milliseconds: how long what was sent may go unacknowledged.
const USER_TIMEOUT: u32 = 20_000;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the far end has closed it")]
    Closed,
    #[error("what came is not framed: that is no daemon")]
    NotFramed,
    #[error("nothing that counts has come in time")]
    TimedOut,
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
    pub(super) socket: UdpSocket,
    /// Where the pumps take in what comes.
    pumps: SocketAddr,
    reader: Reader,
    writer: Writer,
    /// It is being made.
    pub(super) connecting: bool,
    /// It was of use.
    pub(super) proven: bool,
    /// It ends then at the latest.
    pub(super) until: Instant,
    /// Nothing more is to go by it.
    pub(super) closing: bool,
}

/// A socket that stands for a connection, and where it is.
pub(super) fn stand_in(like: IpAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let loopback: IpAddr = if like.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind(SocketAddr::new(loopback, 0))?;
    socket.set_nonblocking(true)?;
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    let at = socket.local_addr()?;
    Ok((socket, at))
}

/// Begins to connect from an address of this host's.
pub(super) fn begin(from: IpAddr, to: SocketAddr) -> io::Result<(TcpStream, FlowTuple)> {
    let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
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
    set_socket_send_buffer_size(stream, SEND_BUFFER)?;
    Ok(())
}

impl Connection {
    pub(super) fn new(
        number: u16,
        peer: Option<PeerId>,
        tuple: &FlowTuple,
        stream: TcpStream,
        socket: UdpSocket,
        port: u16,
        until: Instant,
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
            writer: Writer::new(WAITING),
            connecting: peer.is_some(),
            proven: false,
            until,
            closing: false,
        })
    }

    /// Whether something waits for TCP to take it.
    pub(super) fn wants_to_write(&self) -> bool {
        self.connecting || !self.writer.is_empty()
    }

    /// It can be written to. Tells whether it has just been made.
    pub(super) fn on_writable(&mut self, now: Instant, times: &Times) -> Result<bool, Ended> {
        if self.connecting {
            if let Some(error) = self.stream.take_error()? {
                return Err(error.into());
            }
            (self.connecting, self.until) = (false, now + times.unproven);
            return Ok(true);
        }
        self.writer.write(&mut self.stream)?;
        Ok(false)
    }

    /// Something has come by TCP.
    pub(super) fn on_readable(&mut self, now: Instant, times: &Times) -> Result<(), Ended> {
        let goes_on = match self.reader.read(&mut self.stream) {
            Ok(goes_on) => goes_on,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        loop {
            match self.reader.next() {
                // A full buffer drops it, as a router would; so does an address that this host has left.
                Ok(Some(datagram)) => drop(self.socket.send_to(datagram, self.pumps)),
                Ok(None) => break,
                Err(_) => return Err(Ended::NotFramed),
            }
            if self.peer.is_some() {
                self.prove(now, times);
            }
        }
        if goes_on { Ok(()) } else { Err(Ended::Closed) }
    }

    /// The pumps have sent something.
    pub(super) fn on_datagrams(&mut self, now: Instant, times: &Times, buffer: &mut [u8]) -> Result<(), Ended> {
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
                self.writer.push(&buffer[..length]);
            }
            if self.peer.is_none() {
                self.prove(now, times);
            }
        }
        if !self.connecting {
            self.writer.write(&mut self.stream)?;
        }
        Ok(())
    }

    fn prove(&mut self, now: Instant, times: &Times) {
        self.proven = true;
        if !self.closing {
            self.until = now + times.idle;
        }
    }

    /// Nothing more is to go by it.
    pub(super) fn close(&mut self, now: Instant, times: &Times) {
        if !self.closing {
            (self.closing, self.until) = (true, now + times.closing);
        }
    }
}
