//! The thread that passes on what comes by connections, and goes by them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use whimbrel_wire::{FlowTuple, PeerId, Transport};

use super::connection::{Connection, Ended, begin, go_on, stand_in};
use super::table::Table;
use super::{ACCEPTED_MOST, ACCEPTED_OF_ONE, Streams, Times, Told};
use crate::signal;

/// Connections that are accepted at a time, and the pause where none can be.
const AT_ONCE: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Command {
    Listen(TcpListener),
    Connect { peer: PeerId, from: IpAddr, to: SocketAddr },
    Close(PeerId),
}

pub(super) struct Pump {
    table: Arc<Table>,
    port: u16,
    times: Times,
    commands: Receiver<Command>,
    woken: Arc<OwnedFd>,
    told: Sender<Told>,
    wake: Arc<OwnedFd>,
    listener: Option<TcpListener>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl Pump {
    pub(super) fn new(streams: &Streams, commands: Receiver<Command>, woken: Arc<OwnedFd>) -> Self {
        Self {
            table: Arc::clone(&streams.table),
            port: streams.port,
            times: streams.times,
            commands,
            woken,
            told: streams.told.0.clone(),
            wake: Arc::clone(&streams.wake),
            listener: None,
            connections: Vec::new(),
            buffer: vec![0; 1 << 16],
        }
    }

    /// Runs until the other end of the commands is gone.
    pub(super) fn run(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "cannot wait for connections of TCP");
                    break;
                }
            };
            let now = Instant::now();
            if !ready[0].is_empty() {
                let mut number = [0; 8];
                let _ = rustix::io::read(&*self.woken, &mut number);
            }
            let listening = usize::from(self.listener.is_some());
            let of_connections = &ready[1 + listening..];
            let mut ended = Vec::new();
            for (index, flags) in of_connections.chunks_exact(2).enumerate() {
                if let Err(why) = self.serve(index, now, [flags[0], flags[1]]) {
                    ended.push((index, why));
                }
            }
            for (index, why) in ended.into_iter().rev() {
                self.end(index, &why);
            }
            if listening == 1 && !ready[1].is_empty() {
                self.accept(now);
            }
            if !self.obey(now) {
                break;
            }
        }
        while !self.connections.is_empty() {
            self.end(0, &Ended::Closed);
        }
    }

    /// Waits for any of it: the flags of what wakes this thread, of the listener, and of both sockets of each
    /// connection.
    fn wait(&self) -> rustix::io::Result<Vec<PollFlags>> {
        let mut fds = vec![PollFd::new(&*self.woken, PollFlags::IN)];
        fds.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        for connection in &self.connections {
            let write = if connection.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            let read = if connection.connecting { PollFlags::empty() } else { PollFlags::IN };
            fds.push(PollFd::new(&connection.stream, read | write));
            fds.push(PollFd::new(&connection.socket, PollFlags::IN));
        }
        let now = Instant::now();
        let until = self.connections.iter().map(|connection| connection.until).min();
        let left = until.map(|until| until.saturating_duration_since(now));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(fds.iter().map(PollFd::revents).collect()),
            Err(error) => Err(error),
        }
    }

    fn serve(&mut self, index: usize, now: Instant, [stream, socket]: [PollFlags; 2]) -> Result<(), Ended> {
        let connection = &mut self.connections[index];
        let broken = PollFlags::HUP | PollFlags::ERR;
        let mut made = false;
        if stream.intersects(PollFlags::OUT | broken) {
            made = connection.on_writable(now, &self.times)?;
        }
        if !connection.connecting && stream.intersects(PollFlags::IN | broken) {
            connection.on_readable(now, &self.times)?;
        }
        if !socket.is_empty() {
            connection.on_datagrams(now, &self.times, &mut self.buffer)?;
        }
        if connection.until <= now {
            return Err(if connection.closing { Ended::Closed } else { Ended::TimedOut });
        }
        let told = (connection.peer, self.table.endpoint(connection.number));
        if let (true, (Some(peer), Some(endpoint))) = (made && !connection.closing, told) {
            self.tell(peer, Some(endpoint));
        }
        Ok(())
    }

    fn tell(&self, peer: PeerId, endpoint: Option<SocketAddr>) {
        let _ = self.told.send((peer, endpoint));
        signal(&self.wake);
    }

    fn end(&mut self, index: usize, why: &Ended) {
        let connection = self.connections.remove(index);
        self.table.end(connection.number);
        tracing::debug!(far = %connection.far, %why, "a connection of TCP that carries datagrams ends");
        if let Some(peer) = connection.peer.filter(|_| !connection.closing) {
            self.tell(peer, None);
        }
    }

    /// Takes connections that have come, as many as there may be.
    fn accept(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            let (stream, far) = match self.listener.as_ref().map(TcpListener::accept) {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                    // No descriptors, say: it would be told of again at once.
                    tracing::debug!(%error, "cannot take a connection of TCP");
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
                _ => return,
            };
            let far = SocketAddr::new(far.ip().to_canonical(), far.port());
            if !self.make_room(far) {
                continue;
            }
            let Ok(local) = stream.local_addr() else { continue };
            let local = SocketAddr::new(local.ip().to_canonical(), local.port());
            let tuple = FlowTuple { transport: Transport::Tcp, local, remote: far };
            if let Err(error) = self.add(None, tuple, stream, now + self.times.unproven) {
                tracing::debug!(%far, %error, "cannot take a connection of TCP");
            }
        }
    }

    /// Whether one more may come from there. Where there are too many, the oldest goes that was of no use yet.
    fn make_room(&mut self, far: SocketAddr) -> bool {
        let accepted = self.connections.iter().filter(|connection| connection.peer.is_none());
        let of_one = accepted.clone().filter(|connection| connection.far == far.ip()).count();
        let (full, full_of_one) = (accepted.count() >= ACCEPTED_MOST, of_one >= ACCEPTED_OF_ONE);
        if !full && !full_of_one {
            return true;
        }
        let oldest = self.connections.iter().position(|connection| {
            let counts = !full_of_one || connection.far == far.ip();
            connection.peer.is_none() && !connection.proven && counts
        });
        oldest.into_iter().for_each(|index| self.end(index, &Ended::TimedOut));
        oldest.is_some()
    }

    /// Does what the thread is told. Tells whether it goes on.
    fn obey(&mut self, now: Instant) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Listen(listener)) => self.listener = Some(listener),
                Ok(Command::Connect { peer, from, to }) => {
                    self.close(peer, now);
                    if let Err(error) = self.connect(peer, from, to, now) {
                        tracing::info!(%peer, %to, %error, "cannot connect by TCP");
                        self.tell(peer, None);
                    }
                }
                Ok(Command::Close(peer)) => self.close(peer, now),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn close(&mut self, peer: PeerId, now: Instant) {
        let of_peer = self.connections.iter_mut().filter(|connection| connection.peer == Some(peer));
        of_peer.for_each(|connection| connection.close(now, &self.times));
    }

    fn connect(&mut self, peer: PeerId, from: IpAddr, to: SocketAddr, now: Instant) -> io::Result<()> {
        let (stream, tuple) = begin(from, to)?;
        let again = stream.try_clone()?;
        self.add(Some(peer), tuple, stream, now + self.times.connecting)?;
        // It is known as this module's before its first segment leaves.
        let begun = go_on(&again, to);
        if begun.is_err()
            && let Some(connection) = self.connections.pop()
        {
            self.table.end(connection.number);
        }
        begun
    }

    fn add(&mut self, peer: Option<PeerId>, tuple: FlowTuple, stream: TcpStream, until: Instant) -> io::Result<()> {
        let (socket, at) = stand_in(tuple.local.ip())?;
        let again = socket.try_clone()?;
        let number = self.table.add(tuple, again, at).ok_or_else(|| io::Error::other("there are too many"))?;
        match Connection::new(number, peer, &tuple, stream, socket, self.port, until) {
            Ok(connection) => self.connections.push(connection),
            Err(error) => {
                self.table.end(number);
                return Err(error);
            }
        }
        Ok(())
    }
}
