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
use table::Table;
use whimbrel_wire::{FlowTuple, PeerId};

use crate::signal;

/// How many connections others may have here at a time, and how many of one address.
const ACCEPTED_MOST: usize = 256;
const ACCEPTED_OF_ONE: usize = 16;

/// Times that connections are given, which tests shorten.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// To be made.
    connecting: Duration,
    /// To be of use for the first time: an accepted one when this host has sent something by it, one that this host has
    /// opened when something has come.
    unproven: Duration,
    /// To be so again. The control protocol asks every 25 seconds.
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

    /// Takes connections there from now on. Gives the port.
    ///
    /// # Errors
    /// The kernel's reason: another program has the port, or no address of this host is that one.
    pub fn listen(&mut self, at: SocketAddr) -> io::Result<u16> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.table.listen(port);
        self.command(Command::Listen(listener))?;
        Ok(port)
    }

    /// Opens a connection to a peer, instead of whichever there is. What becomes of it is
    /// [told](Self::take_told).
    pub fn connect(&mut self, peer: PeerId, from: IpAddr, to: SocketAddr) {
        if let Err(error) = self.command(Command::Connect { peer, from, to }) {
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

impl Drop for Streams {
    fn drop(&mut self) {
        if let Some(Thread { commands, wake, handle }) = self.thread.take() {
            drop(commands);
            signal(&wake);
            let _ = handle.join();
        }
    }
}
