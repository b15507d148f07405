//! Datagrams over TCP, for networks that let no UDP through (decision 0110).
//!
//! ```text
//! pumps and control thread -- UDP on loopback -- [this thread] -- TCP -- the far end's
//! ```
//!
//! To all others a connection is an endpoint of the peer: its address, and a port of a range that no datagram comes
//! from. What goes to that endpoint goes to a socket on loopback ([`Streams::way_to`]), and what comes from that socket
//! came from that endpoint ([`Streams::named`]). Nothing here knows who is at the far end, or what is in a datagram.
//!
//! ```text
//! frame.rs       datagrams in a stream
//! table.rs       which endpoint stands for which connection
//! connection.rs  one connection
//! pump.rs        the thread
//! ```

mod connection;
mod frame;
mod pump;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use pump::{Command, Pump};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use table::{Listening, Table};
use whimbrel_wire::{FlowTuple, PeerId};

use crate::signal;

/// How many connections others may have here at a time. How many of one address or network, and how many of these that
/// no path leads to.
const ACCEPTED_MOST: usize = 256;
const LED_TO_OF_ONE: usize = 64;
const UNLED_OF_ONE: usize = 16;

/// Connections that wait for the thread, which takes them at once.
const BACKLOG: i32 = 128;

/// Times that connections are given, which tests shorten.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// To be made.
    connecting: Duration,
    /// To be of use: an accepted one when this host has sent something by it, one that this host has opened when
    /// something has come for the first time.
    unproven: Duration,
    /// To be so again, where a path leads there or this host has opened it. The control protocol asks every 25 seconds.
    idle: Duration,
    /// For what is under way, once nothing more is to go by it.
    closing: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let [connecting, unproven, idle, closing] = [10, 10, 120, 3].map(Duration::from_secs);
        Self { connecting, unproven, idle, closing }
    }
}

/// Knows the connections that carry datagrams.
#[derive(Clone, Debug)]
pub struct Own(Arc<Table>);

impl Own {
    /// Whether this is one of them.
    #[must_use]
    pub fn has(&self, tuple: &FlowTuple) -> bool {
        self.0.is_own(tuple)
    }
}

/// What has become of a connection that was asked for: the endpoint that stands for it, or `None`: it could not be had,
/// or has ended.
pub type Told = (PeerId, Option<SocketAddr>);

/// All connections that carry datagrams. There is a thread once there is something to do.
#[derive(Debug)]
pub struct Streams {
    table: Arc<Table>,
    /// Where the pumps receive.
    port: u16,
    times: Times,
    wake: Arc<OwnedFd>,
    told: (Sender<Told>, Receiver<Told>),
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    handle: JoinHandle<()>,
}

impl Streams {
    /// `port`: that of the tunnel's socket; `numbers`: ports of the endpoints.
    ///
    /// # Errors
    /// An eventfd could not be made.
    pub fn new(port: u16, numbers: RangeInclusive<u16>) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let table = Arc::new(Table::new(numbers));
        Ok(Self { table, port, times: Times::default(), wake, told: channel(), thread: None })
    }

    /// Takes connections there from now on. Gives the port. An address may be one that this host gets later.
    ///
    /// # Errors
    /// The kernel's reason: another program has the port, say.
    pub fn listen(&mut self, at: SocketAddr) -> io::Result<u16> {
        let listener = listener(at)?;
        let at = listener.local_addr()?;
        let both = at.is_ipv6() && !sockopt::ipv6_v6only(&listener)?;
        self.table.listen(Listening { at, both });
        self.command(Command::Listen(listener))?;
        Ok(at.port())
    }

    /// Opens a connection to a peer, instead of whichever there is, by an interface of choice. What becomes of it is
    /// [told](Self::take_told).
    pub fn connect(&mut self, peer: PeerId, from: IpAddr, interface: Option<u32>, to: SocketAddr) {
        if let Err(error) = self.command(Command::Connect { peer, from, interface, to }) {
            tracing::error!(%peer, %to, %error, "cannot connect by TCP");
            let _ = self.told.0.send((peer, None));
            signal(&self.wake);
        }
    }

    /// The connection to a peer is not needed any more. What is under way still arrives.
    pub fn close(&mut self, peer: PeerId) {
        // A thread that is not there has none.
        let _ = self.thread.is_some().then(|| self.command(Command::Close(peer)));
    }

    /// Readable when [`Streams::take_told`] has something.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes what is next to be told.
    #[must_use]
    pub fn take_told(&self) -> Option<Told> {
        self.told.1.try_recv().ok()
    }

    /// Where a datagram to an endpoint is to be sent, if that stands for a connection.
    #[must_use]
    pub fn way_to(&self, endpoint: SocketAddr) -> Option<SocketAddr> {
        self.table.way_to(endpoint)
    }

    /// A path of the tunnel leads to an endpoint from now on, and no longer to another. What stands for connections
    /// counts alone: one that a path leads to is kept before others.
    pub fn lead(&self, to: Option<SocketAddr>, before: Option<SocketAddr>) {
        self.table.lead(to, before);
    }

    /// The endpoint that a datagram has come from which came from this address.
    #[must_use]
    pub fn named(&self, source: SocketAddr) -> Option<SocketAddr> {
        self.table.named(source)
    }

    /// The far end of the connection that an endpoint stands for.
    #[must_use]
    pub fn far_end(&self, endpoint: SocketAddr) -> Option<SocketAddr> {
        self.table.far_end(endpoint)
    }

    /// Knows these connections, which are nobody else's business.
    #[must_use]
    pub fn own(&self) -> Own {
        Own(Arc::clone(&self.table))
    }

    fn command(&mut self, command: Command) -> io::Result<()> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => self.start()?,
        };
        let sent = thread.commands.send(command);
        signal(&thread.wake);
        self.thread = Some(thread);
        sent.map_err(|_| io::Error::other("its thread has ended"))
    }

    fn start(&self) -> io::Result<Thread> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, received) = channel();
        let pump = Pump::new(self, received, Arc::clone(&wake));
        let handle = std::thread::Builder::new().name("tunnel-tcp".to_owned()).spawn(move || pump.run())?;
        Ok(Thread { commands, wake, handle })
    }
}

/// A socket that takes connections.
fn listener(at: SocketAddr) -> io::Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Connections of the daemon before may be there still.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match at {
        SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    bind(&socket, &at)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

impl Drop for Streams {
    fn drop(&mut self) {
        if let Some(Thread { commands, wake, handle }) = self.thread.take() {
            drop(commands);
            signal(&wake);
            let _ = handle.join();
        }
    }
}
