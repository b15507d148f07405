//! The thread that passes on what comes by connections, and goes by them.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use whimbrel_wire::{FlowTuple, PeerId, Transport};

use super::connection::{Connection, Ended, Worth, begin, go_on, stand_in};
use super::table::Table;
use super::{ACCEPTED_MOST, LED_TO_OF_ONE, Streams, Times, Told, UNLED_OF_ONE};
use crate::signal;

/// Connections that are accepted at a time.
const AT_ONCE: usize = 16;
/// Where none can be, since there are no descriptors, say, it is tried again when one ends, and after this.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Command {
    Listen(TcpListener),
    Connect { peer: PeerId, from: IpAddr, interface: Option<u32>, to: SocketAddr },
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
    /// None can be accepted before then.
    refused_until: Option<Instant>,
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
            refused_until: None,
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
            let (first, of_connections) = ready[1..].split_at(1);
            let mut ended = Vec::new();
            for (index, flags) in of_connections.chunks_exact(2).enumerate() {
                if let Err(why) = self.serve(index, now, [flags[0], flags[1]]) {
                    ended.push((index, why));
                }
            }
            for (index, why) in ended.into_iter().rev() {
                self.end(index, &why);
            }
            if !first[0].is_empty() {
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
        let now = Instant::now();
        let accepts = self.refused_until.is_none_or(|until| until <= now);
        // Without a listener, and while none can be accepted, the first stands for it.
        let listener = self.listener.as_ref().filter(|_| accepts);
        let listening = listener.map_or_else(
            || PollFd::new(&*self.woken, PollFlags::empty()),
            |listener| PollFd::new(listener, PollFlags::IN),
        );
        let mut fds = vec![PollFd::new(&*self.woken, PollFlags::IN), listening];
        let mut until = self.refused_until.filter(|_| !accepts);
        for connection in &self.connections {
            let write = if connection.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            let may_receive = connection.may_receive();
            let read = if may_receive { PollFlags::IN } else { PollFlags::empty() };
            fds.push(PollFd::new(&connection.stream, read | write));
            fds.push(PollFd::new(&connection.socket, PollFlags::IN));
            let own = if may_receive && connection.has_more() { now } else { connection.until(&self.times) };
            until = Some(until.map_or(own, |until| until.min(own)));
        }
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
            made = connection.on_writable(now)?;
        }
        let more = connection.may_receive() && (connection.has_more() || stream.contains(PollFlags::IN));
        if !connection.connecting && (more || stream.intersects(broken)) {
            connection.on_readable(now, &mut self.buffer)?;
        }
        if !socket.is_empty() {
            connection.on_datagrams(now, &mut self.buffer)?;
        }
        if connection.until(&self.times) <= now {
            return Err(if connection.is_closing() { Ended::Closed } else { Ended::TimedOut });
        }
        let told = (connection.peer, self.table.endpoint(connection.number));
        if let (true, (Some(peer), Some(endpoint))) = (made && !connection.is_closing(), told) {
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
        // What was missing for another may be there now.
        self.refused_until = None;
        tracing::debug!(far = %connection.far, %why, "a connection of TCP that carries datagrams ends");
        if let Some(peer) = connection.peer.filter(|_| !connection.is_closing()) {
            self.tell(peer, None);
        }
    }

    /// Takes connections that have come, as many as there may be.
    fn accept(&mut self, now: Instant) {
        self.refused_until = None;
        for _ in 0..AT_ONCE {
            let (stream, far) = match self.listener.as_ref().map(TcpListener::accept) {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                    tracing::debug!(%error, "cannot take a connection of TCP");
                    self.refused_until = Some(now + ACCEPT_AGAIN);
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
            if let Err(error) = self.add(None, tuple, stream, now) {
                tracing::debug!(%far, %error, "cannot take a connection of TCP");
            }
        }
    }

    /// Whether one more may come from there. Where there are too many one goes that no path leads to: one that was of
    /// no use yet, of whom there are most from one source, the oldest.
    fn make_room(&mut self, far: SocketAddr) -> bool {
        let new = source(far.ip());
        let accepted = self.connections.iter().enumerate().filter(|(_, connection)| connection.peer.is_none());
        let accepted: Vec<_> =
            accepted.map(|(index, connection)| (index, source(connection.far), connection.worth())).collect();
        let led_to = |worth: Worth| worth == Worth::LedTo;
        let mut of_source = HashMap::<IpAddr, usize>::new();
        accepted.iter().for_each(|(_, source, _)| *of_source.entry(*source).or_default() += 1);
        let of_new = accepted.iter().filter(|(_, source, _)| *source == new);
        let unled = of_new.clone().filter(|(.., worth)| !led_to(*worth)).count();
        let full_of_new = unled >= UNLED_OF_ONE || of_new.count() >= LED_TO_OF_ONE;
        if !full_of_new && accepted.len() < ACCEPTED_MOST {
            return true;
        }
        let may_go = accepted.iter().filter(|(_, source, worth)| !led_to(*worth) && (!full_of_new || *source == new));
        let goes = may_go.min_by_key(|(index, source, worth)| (*worth, usize::MAX - of_source[source], *index));
        let goes = goes.map(|(index, ..)| *index);
        goes.into_iter().for_each(|index| self.end(index, &Ended::NoRoom));
        goes.is_some()
    }

    /// Does what the thread is told. Tells whether it goes on.
    fn obey(&mut self, now: Instant) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Listen(listener)) => self.listener = Some(listener),
                Ok(Command::Connect { peer, from, interface, to }) => {
                    self.close(peer, now);
                    if let Err(error) = self.connect(peer, from, interface, to, now) {
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
        of_peer.for_each(|connection| connection.close(now));
    }

    fn connect(
        &mut self,
        peer: PeerId,
        from: IpAddr,
        interface: Option<u32>,
        to: SocketAddr,
        now: Instant,
    ) -> io::Result<()> {
        let (stream, tuple) = begin(from, interface, to)?;
        let again = stream.try_clone()?;
        self.add(Some(peer), tuple, stream, now)?;
        // It is known as this module's before its first segment leaves.
        let begun = go_on(&again, to);
        if begun.is_err()
            && let Some(connection) = self.connections.pop()
        {
            self.table.end(connection.number);
        }
        begun
    }

    fn add(&mut self, peer: Option<PeerId>, tuple: FlowTuple, stream: TcpStream, now: Instant) -> io::Result<()> {
        let (socket, at) = stand_in(tuple.local.ip())?;
        let socket = Arc::new(socket);
        let added = self.table.add(tuple, Arc::clone(&socket), at);
        let (number, leading) = added.ok_or_else(|| io::Error::other("there are too many"))?;
        match Connection::new(number, peer, &tuple, stream, socket, self.port, leading, now) {
            Ok(connection) => self.connections.push(connection),
            Err(error) => {
                self.table.end(number);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Who an address is of, as far as that can be told: of IPv6 a host has a whole network of 64 bits.
pub(super) fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}
