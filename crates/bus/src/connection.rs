//! A connection with a bus: one socket, never waited for longer than is said.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Serialize;
use zbus::wire::Type;

use crate::BusError;
use crate::address::Address;
use crate::message::{self, Body, Call, FIXED, Kind, MOST, Message};

/// The bus itself, as a service.
pub(crate) const BUS: &str = "org.freedesktop.DBus";

/// A line of the handshake.
const LINE: usize = 4096;
const AT_ONCE: usize = 16 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// What has come and is not read yet.
    come: Vec<u8>,
    /// So much of what comes next is left out.
    unread: usize,
    serial: u32,
}

/// What waiting came to.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message),
    /// It is time.
    Due,
    /// Whoever waits is to stop.
    Stopped,
}

impl Connection {
    /// Opens one, and says hello.
    ///
    /// # Errors
    /// When no bus answers there in time, or refuses this user.
    pub fn open(address: &Address, within: Duration) -> Result<Self, BusError> {
        let until = Instant::now() + within;
        let mut failed = BusError::Address(address.as_str().to_owned());
        for socket in address.sockets() {
            match socket.and_then(|place| connected(&place)) {
                Ok(socket) => {
                    let mut connection = Self { socket, come: Vec::new(), unread: 0, serial: 0 };
                    connection.authenticate(until)?;
                    connection.call_within(&bus("Hello"), &(), until)?.read::<String>()?;
                    return Ok(connection);
                }
                Err(errno) => failed = BusError::call("connect", address.as_str())(errno),
            }
        }
        Err(failed)
    }

    /// By the number of this user, which the kernel tells the bus.
    fn authenticate(&mut self, until: Instant) -> Result<(), BusError> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let digits: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.write(format!("\0AUTH EXTERNAL {digits}\r\n").as_bytes(), until)?;
        let answer = loop {
            if let Some(end) = self.come.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.come.drain(..end + 2).collect::<Vec<_>>();
                break String::from_utf8_lossy(&line[..end]).into_owned();
            }
            if self.come.len() > LINE {
                return Err(BusError::Nonsense("a line without an end".to_owned()));
            }
            self.read(until)?;
        };
        match answer.starts_with("OK ") {
            true => self.write(b"BEGIN\r\n", until),
            false => Err(BusError::Refused(answer.chars().filter(|letter| !letter.is_control()).take(80).collect())),
        }
    }

    /// Asks, and gives the question's number.
    pub(crate) fn send<T: Serialize + Type>(
        &mut self,
        call: &Call<'_>,
        body: &T,
        within: Duration,
    ) -> Result<u32, BusError> {
        self.serial = self.serial.checked_add(1).unwrap_or(1);
        let bytes = call.encode(self.serial, body)?;
        self.write(&bytes, Instant::now() + within)?;
        Ok(self.serial)
    }

    /// Asks, and waits for the answer. What else comes meanwhile is not heard.
    pub(crate) fn call<T: Serialize + Type>(
        &mut self,
        call: &Call<'_>,
        body: &T,
        within: Duration,
    ) -> Result<Body, BusError> {
        self.call_within(call, body, Instant::now() + within)
    }

    fn call_within<T: Serialize + Type>(
        &mut self,
        call: &Call<'_>,
        body: &T,
        until: Instant,
    ) -> Result<Body, BusError> {
        let asked = self.send(call, body, until.saturating_duration_since(Instant::now()))?;
        loop {
            match self.receive(until, None)? {
                Received::Message(Message { kind: Kind::Return(serial), body, .. }) if serial == asked => {
                    return Ok(body);
                }
                Received::Message(Message { kind: Kind::Error(serial, name), .. }) if serial == asked => {
                    return Err(BusError::Error(name));
                }
                Received::Message(_) => {}
                Received::Due | Received::Stopped => return Err(BusError::Silent("it")),
            }
        }
    }

    /// Waits for a message until then, or until `stop` is readable. Anybody may send anything by the bus: what is too
    /// long, or cannot be read, is left out, and ends nothing.
    pub(crate) fn receive(&mut self, until: Instant, stop: Option<BorrowedFd<'_>>) -> Result<Received, BusError> {
        loop {
            let unread = self.unread.min(self.come.len());
            self.come.drain(..unread);
            self.unread -= unread;
            if let Some(begin) = self.come.first_chunk::<FIXED>() {
                let length = message::length(begin)?;
                if length > MOST {
                    self.unread = length;
                    continue;
                }
                if self.come.len() >= length {
                    let rest = self.come.split_off(length);
                    match message::decode(std::mem::replace(&mut self.come, rest)) {
                        Ok(message) => return Ok(Received::Message(message)),
                        Err(error) => tracing::debug!(%error, "a message is left out"),
                    }
                    continue;
                }
            }
            match wait(self.socket.as_fd(), PollFlags::IN, until, stop)? {
                Waited::Ready => self.take()?,
                Waited::Due => return Ok(Received::Due),
                Waited::Stopped => return Ok(Received::Stopped),
            }
        }
    }

    fn read(&mut self, until: Instant) -> Result<(), BusError> {
        match wait(self.socket.as_fd(), PollFlags::IN, until, None)? {
            Waited::Ready => self.take(),
            _ => Err(BusError::Silent("the bus")),
        }
    }

    /// Takes what is there.
    fn take(&mut self) -> Result<(), BusError> {
        let mut buffer = [0; AT_ONCE];
        match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => Err(BusError::Closed),
            Ok((count, _)) => {
                self.come.extend_from_slice(&buffer[..count.min(AT_ONCE)]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(BusError::call("recv", "from the bus")(errno)),
        }
    }

    fn write(&self, mut bytes: &[u8], until: Instant) -> Result<(), BusError> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match wait(self.socket.as_fd(), PollFlags::OUT, until, None)? {
                    Waited::Ready => {}
                    _ => return Err(BusError::Silent("the bus")),
                },
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(BusError::Closed),
                Err(errno) => return Err(BusError::call("send", "to the bus")(errno)),
            }
        }
        Ok(())
    }
}

/// The bus's own question.
pub(crate) fn bus(member: &str) -> Call<'_> {
    Call { destination: BUS, path: "/org/freedesktop/DBus", interface: BUS, member, starts: false }
}

/// Where the bus's queue is full the kernel says so at once.
fn connected(place: &rustix::net::SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, place)?;
    Ok(socket)
}

/// What came first.
pub(crate) enum Waited {
    Ready,
    Due,
    Stopped,
}

pub(crate) fn wait(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    until: Instant,
    stop: Option<BorrowedFd<'_>>,
) -> Result<Waited, BusError> {
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let within = Timespec::try_from(rest).ok();
        let mut fds = [PollFd::new(&fd, events), PollFd::from_borrowed_fd(stop.unwrap_or(fd), PollFlags::IN)];
        let watched = if stop.is_some() { &mut fds[..] } else { &mut fds[..1] };
        match poll(watched, within.as_ref()) {
            Ok(0) => return Ok(Waited::Due),
            Ok(_) if watched.get(1).is_some_and(|stop| !stop.revents().is_empty()) => return Ok(Waited::Stopped),
            Ok(_) => return Ok(Waited::Ready),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(BusError::call("poll", "the bus")(errno)),
        }
    }
}
