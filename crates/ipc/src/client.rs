//! A blocking client.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use crate::{
    Configuration, Connection, EventRecord, EventsQuery, Explained, Failure, HandoffStarted, Lines, Metric, OpenSocket,
    Path, Peer, Pinged, ReceivedLine, Reply, Request, SchemaError, Status, Suspended, Uuid, WrittenPreference,
    reply_from_line, request_to_line, send_line,
};

/// How long a daemon may take for an answer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a hand-off may take to be under way.
pub const HANDOFF_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the daemon of a run directory listens.
#[must_use]
pub fn socket_path(run_dir: &FilePath) -> PathBuf {
    run_dir.join("whimbrel.sock")
}

/// Why a daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens at the socket.
    #[error("no daemon answers at {}: {source}", .socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// The daemon did not answer in time.
    #[error("the daemon at {} did not answer within {} s", .socket.display(), .after.as_secs())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// How long was waited.
        after: Duration,
    },
    /// Sending or receiving failed.
    #[error("the connection with the daemon at {} broke: {source}", .socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What read(2) or write(2) said.
        source: io::Error,
    },
    /// The daemon closed the connection before it had answered.
    #[error("the daemon at {} closed the connection before it had answered", .socket.display())]
    Closed {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon stopped while its events were followed.
    #[error("the daemon at {} has stopped: no more events come", .socket.display())]
    Stopped {
        /// The socket.
        socket: PathBuf,
    },
    /// The answer makes no sense.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The daemon answered another question.
    #[error("the daemon answered something else than what was asked")]
    Unexpected,
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] Failure),
}

impl ClientError {
    /// Whether a daemon listens and this user may not ask it.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// A connection with a daemon; any number of requests may be made on it, one after the other.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: UnixStream,
    lines: Lines,
}

impl Client {
    /// Connects to the daemon of a run directory.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when none listens there, or the caller may not ask it.
    pub fn connect(run_dir: &FilePath) -> Result<Self, ClientError> {
        let socket = socket_path(run_dir);
        match UnixStream::connect(&socket) {
            Ok(stream) => Ok(Self { socket, stream, lines: Lines::default() }),
            Err(source) => Err(ClientError::Connect { socket, source }),
        }
    }

    /// How the daemon is.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(*status),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The connections that it knows.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn connections(&mut self) -> Result<Vec<Connection>, ClientError> {
        match self.ask(&Request::Connections)? {
            Reply::Connections(connections) => Ok(connections),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The daemons that it has or had sessions with.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn peers(&mut self) -> Result<Vec<Peer>, ClientError> {
        match self.ask(&Request::Peers)? {
            Reply::Peers(peers) => Ok(peers),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Asks another host whether it answers, see [`Request::Ping`].
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn ping(&mut self, host: String) -> Result<Pinged, ClientError> {
        match self.ask(&Request::Ping { host })? {
            Reply::Pinged(pinged) => Ok(*pinged),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The ways to them.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn paths(&mut self) -> Result<Vec<Path>, ClientError> {
        match self.ask(&Request::Paths)? {
            Reply::Paths(paths) => Ok(paths),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// By which networks they are reached, and why; see [`Request::ExplainPaths`].
    ///
    /// # Errors
    /// When it does not answer, or refuses: a daemon of an older release does not know the question.
    pub fn explain_paths(&mut self, prefer: Option<Vec<WrittenPreference>>) -> Result<Explained, ClientError> {
        match self.ask(&Request::ExplainPaths { prefer })? {
            Reply::Explained(explained) => Ok(explained),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Whether the configuration file says what is in force.
    ///
    /// # Errors
    /// When it does not answer, or refuses: a daemon of an older release does not know the question.
    pub fn configuration(&mut self) -> Result<Configuration, ClientError> {
        match self.ask(&Request::Configuration)? {
            Reply::Configuration(configuration) => Ok(configuration),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Figures for monitoring.
    ///
    /// # Errors
    /// When it does not answer, or refuses: a daemon of an older release does not know the question.
    pub fn metrics(&mut self) -> Result<Vec<Metric>, ClientError> {
        match self.ask(&Request::Metrics)? {
            Reply::Metrics(metrics) => Ok(metrics),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Has this host go away, see [`Request::Suspend`].
    ///
    /// # Errors
    /// As [`Self::status`].
    pub fn suspend(&mut self, connections: Vec<String>) -> Result<Suspended, ClientError> {
        match self.ask(&Request::Suspend { connections })? {
            Reply::Suspended(suspended) => Ok(suspended),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Has this host be back, see [`Request::Resume`]. Returns how many connections go on, and whether the
    /// host itself was suspended.
    ///
    /// # Errors
    /// As [`Self::status`]; the daemon's own where this host is not suspended.
    pub fn resume(&mut self, connections: Vec<String>) -> Result<(usize, bool), ClientError> {
        match self.ask(&Request::Resume { connections })? {
            Reply::Resumed { flows, host } => Ok((flows, host)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Moves now, see [`Request::Handoff`].
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn handoff(&mut self, to: Option<IpAddr>, peer: Option<String>) -> Result<HandoffStarted, ClientError> {
        match self.ask(&Request::Handoff { to, peer })? {
            Reply::Handoff(started) => Ok(started),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Has connections go from another address, see [`Request::Place`]. Returns how many.
    ///
    /// # Errors
    /// As [`Self::status`]; the daemon's own where one cannot be placed.
    pub fn place(&mut self, connections: Vec<String>, from: Option<IpAddr>) -> Result<usize, ClientError> {
        match self.ask(&Request::Place { connections, from })? {
            Reply::Placed { flows } => Ok(flows),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// What happened, oldest first. Uses the connection up, since a daemon that follows answers nothing else.
    ///
    /// # Errors
    /// When the request cannot be sent; what comes later is told by the iterator.
    pub fn events(mut self, query: EventsQuery) -> Result<Events, ClientError> {
        let follow = query.follow;
        let timeout = if follow { None } else { Some(REPLY_TIMEOUT) };
        self.send(&Request::Events(query), &[], timeout)?;
        Ok(Events { client: self, timeout, follow, ended: false })
    }

    /// Makes one request and waits for one reply line, which is given as it came: for tools that pass JSON on.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub fn ask_for_line(&mut self, request: &Request) -> Result<(String, Reply), ClientError> {
        let timeout = Some(if matches!(request, Request::Handoff { .. }) { HANDOFF_TIMEOUT } else { REPLY_TIMEOUT });
        self.send(request, &[], timeout)?;
        let line = self.receive(timeout)?.ok_or_else(|| ClientError::Closed { socket: self.socket.clone() })?;
        match reply_from_line(&line.text)? {
            Reply::Error(failure) => Err(failure.into()),
            reply => Ok((line.text + "\n", reply)),
        }
    }

    /// Makes one request, with as many descriptors as it takes ([`Request::descriptors`]), and waits for one reply with
    /// the descriptors that come with it. `timeout`: how long; without bound where absent, as is fitting for
    /// [`Request::Give`].
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub fn exchange(
        &mut self,
        request: &Request,
        with: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.send(request, with, timeout)?;
        self.next_reply(timeout)
    }

    /// Makes one request whose replies [`Self::next_reply`] gives, or that has none.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn start(&mut self, request: &Request) -> Result<(), ClientError> {
        self.send(request, &[], Some(REPLY_TIMEOUT))
    }

    /// The next reply, with the descriptors that come with it: to requests that have several. `timeout`: how long it is
    /// waited for.
    ///
    /// # Errors
    /// When none comes: [`ClientError::Timeout`], after which the next may still come; or the daemon refuses.
    pub fn next_reply(&mut self, timeout: Option<Duration>) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        self.set_timeout(timeout)?;
        let line = self.receive(timeout)?.ok_or_else(|| ClientError::Closed { socket: self.socket.clone() })?;
        match reply_from_line(&line.text)? {
            Reply::Error(failure) => Err(failure.into()),
            reply => Ok((reply, line.descriptors)),
        }
    }

    /// Whether something of the next reply was read already, so that its descriptor may not become readable.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The name of a socket.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses: [`Code::NotASocket`](crate::Code::NotASocket), for one.
    pub fn uuid(&mut self, socket: impl AsFd) -> Result<Uuid, ClientError> {
        match self.exchange(&Request::Uuid, &[socket.as_fd()], Some(REPLY_TIMEOUT))?.0 {
            Reply::Uuid { uuid } => Ok(uuid),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Binds a socket, see [`Request::Bind`].
    ///
    /// # Errors
    /// As for [`Self::uuid`]; [`Code::InUse`](crate::Code::InUse) where the port is taken.
    pub fn bind(&mut self, socket: impl AsFd, address: SocketAddr) -> Result<SocketAddr, ClientError> {
        match self.exchange(&Request::Bind { address }, &[socket.as_fd()], Some(REPLY_TIMEOUT))?.0 {
            Reply::Bound { address } => Ok(address),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The sockets of a process.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub fn sockets(&mut self, pid: u32) -> Result<Vec<OpenSocket>, ClientError> {
        match self.ask(&Request::Sockets { pid })? {
            Reply::Sockets(sockets) => Ok(sockets),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.ask_for_line(request).map(|(_, reply)| reply)
    }

    fn send(
        &mut self,
        request: &Request,
        with: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<(), ClientError> {
        let line = request_to_line(request)?;
        self.set_timeout(timeout)?;
        let write = || {
            self.stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
            let mut sent = send_line(&self.stream, line.as_bytes(), with)?;
            while sent < line.len() {
                sent += send_line(&self.stream, &line.as_bytes()[sent..], &[])?;
            }
            Ok(())
        };
        write().map_err(|source| self.broken(source, REPLY_TIMEOUT))
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ClientError> {
        // A socket that is not to wait at all is not what `set_read_timeout` takes zero for.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        self.stream.set_read_timeout(timeout).map_err(|source| self.broken(source, Duration::ZERO))
    }

    /// The next line; `None` at the end of the stream.
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Option<ReceivedLine>, ClientError> {
        loop {
            if let Some(line) = self.lines.take() {
                return Ok(Some(line));
            }
            match self.lines.read(&self.stream) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(source) => return Err(self.broken(source, timeout.unwrap_or_default())),
            }
        }
    }

    fn broken(&self, source: io::Error, after: Duration) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Timeout { socket, after },
            _ => ClientError::Io { socket, source },
        }
    }
}

/// Events as they come. Ends when the daemon has told all that were asked for; while it follows, never but with an
/// error: [`ClientError::Stopped`] when the daemon stops.
#[derive(Debug)]
pub struct Events {
    client: Client,
    timeout: Option<Duration>,
    follow: bool,
    ended: bool,
}

impl AsFd for Client {
    /// Readable when a reply comes, or the daemon has gone. One that has come with the last stays behind it and is not
    /// told: [`Client::has_more`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Events {
    /// From now on, fail with [`ClientError::Timeout`] where no event comes for so long.
    ///
    /// # Errors
    /// When the socket does not take it.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.timeout = timeout;
        self.client.set_timeout(timeout)
    }
}

impl Iterator for Events {
    type Item = Result<EventRecord, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = match self.client.receive(self.timeout) {
            Err(error) => Err(error),
            Ok(None) if self.follow => Err(ClientError::Stopped { socket: self.client.socket.clone() }),
            Ok(None) => Err(ClientError::Closed { socket: self.client.socket.clone() }),
            Ok(Some(line)) => match reply_from_line(&line.text) {
                Ok(Reply::Event(event)) => return Some(Ok(event)),
                Ok(Reply::End { .. }) => {
                    self.ended = true;
                    return None;
                }
                Ok(Reply::Error(failure)) => Err(failure.into()),
                Ok(_) => Err(ClientError::Unexpected),
                Err(error) => Err(error.into()),
            },
        };
        self.ended = true;
        Some(item)
    }
}
