//! The local API's socket: clients, their half-read requests and half-written answers.
//!
//! Nothing here blocks and nothing grows without bound: a client whose request is too long is dropped; it is served its
//! next request only when it has read the last answer, and nothing is read from it while its answer is being found or a
//! request waits. Of each user one request is served before everything else has its turn. One user's clients do not
//! keep others out: each has a share, and root places of its own; where there is no room, the one of whoever has most
//! gives way that has been idle for longest, or has not read its answer for a while. Descriptors that come with a
//! request that takes none are closed, by a thread, which may take a while.

mod output;
mod room;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use whimbrel_ipc::{
    About, Code, EventRecord, Failure, Lines, MAX_GIVE_LINE, MAX_REQUEST_LINE, ReceivedLine, Reply, Request,
    reply_to_line, request_from_line,
};
pub use whimbrel_kernel::client::Credentials;

use crate::closing::{ClosedApart, Received};
use output::Output;
use room::{CLIENTS, Place, STAYING};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Clients that wait to be accepted: as many as the system lets.
const WAITING: i32 = i32::MAX;

/// How long a client may take to ask for the first time.
const SILENT: Duration = Duration::from_secs(60);

/// Reads from a client before everything else has its turn, of 16 KiB each.
const READS: usize = 4;

/// Unread bytes at which a client that is told things without asking for each is dropped.
const BACKLOG: usize = 4 << 20;

/// The listener's number among the clients'.
const LISTENER: ClientId = ClientId(u64::MAX);

/// Clients that are looked at before everything else has its turn.
const READY: usize = 64;

/// Names a client; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// Where nobody waits for an answer.
    pub(crate) const NOBODY: Self = Self(u64::MAX);
}

/// A request with what came with it: as many descriptors as it takes.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What is asked.
    pub(crate) request: Request,
    /// Nothing is known of them but that they are open, and of a kind that fits.
    pub(crate) descriptors: Vec<Received>,
}

/// The socket and who is connected.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    epoll: OwnedFd,
    clients: HashMap<ClientId, Client>,
    gone: Vec<ClientId>,
    /// Those of which it may have changed what they are watched for.
    touched: Vec<ClientId>,
    /// Those that have asked for something, in that order.
    turns: VecDeque<ClientId>,
    next: u64,
    most_staying: usize,
    /// No descriptor was left for who waits.
    deaf: bool,
}

#[derive(Debug)]
struct Client {
    /// What it has sent and nobody has read may hold descriptors.
    stream: ClosedApart<UnixStream>,
    credentials: Option<Credentials>,
    connected: whimbrel_protocol::Time,
    /// When it was heard or answered last, in the order of the server's numbers.
    used: u64,
    /// It has asked for something.
    asked: bool,
    input: Lines<Received>,
    output: Output,
    watched: Interest,
    /// Since when it has something to read, as of the last look.
    unread_since: Option<whimbrel_protocol::Time>,
    /// It is told each event.
    follows: bool,
    /// It is told things without asking, and asks nothing more.
    stays: bool,
    /// Its answer takes a while, and comes with the next [`Server::reply`].
    waits: bool,
    /// It will send no more; to be dropped when its answers are written.
    finished: bool,
    /// There was no room for it when it came: whatever it asks for, it hears that.
    refused: bool,
}

impl Client {
    fn uid(&self) -> Option<u32> {
        self.credentials.map(|who| who.uid)
    }

    /// How long its line may be.
    fn longest_line(&self) -> usize {
        if self.input.has_descriptors() { MAX_GIVE_LINE } else { MAX_REQUEST_LINE }
    }

    /// Whether it may be served, and there is something to be done for it.
    fn has_turn(&self) -> bool {
        let something = self.input.has_line() || self.finished || self.input.len() > self.longest_line();
        !self.stays && !self.waits && self.output.is_empty() && something
    }
}

/// What a client is watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interest {
    /// Bytes may be read.
    readable: bool,
    /// Bytes wait to be written.
    writable: bool,
}

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {path}: {source}")]
pub struct ServerError {
    path: PathBuf,
    source: io::Error,
}

impl Server {
    /// Listens at `path` with permission bits `mode`. Whoever holds the run directory's lock owns the path, so a socket
    /// that a killed daemon left there is removed.
    ///
    /// # Errors
    /// When the socket cannot be made there.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ServerError> {
        let bound = (|| {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
            // Closed to all until the mode is set, as the socket's own mode is until then: connect(2) asks for write
            // permission. (The umask would be that of all threads.)
            fchmod(&listener, Mode::empty())?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
            rustix::net::listen(&listener, WAITING)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            let listener = UnixListener::from(listener);
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &listener, EventData::new_u64(LISTENER.0), EventFlags::IN)?;
            Ok((listener, epoll))
        })();
        let (listener, epoll) = bound.map_err(|source| ServerError { path: path.to_owned(), source })?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            epoll,
            clients: HashMap::new(),
            gone: Vec::new(),
            touched: Vec::new(),
            turns: VecDeque::new(),
            next: 0,
            most_staying: STAYING,
            deaf: false,
        })
    }

    /// Where the socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when there is something to [handle](Self::handle_ready).
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes in who connects; writes to clients what they take, and reads what they ask. Gives these.
    pub fn handle_ready(&mut self, now: whimbrel_protocol::Time) -> Vec<ClientId> {
        let mut ready = Vec::with_capacity(READY);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Err(error) = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&at_once)) {
            tracing::warn!(%error, "cannot look at the clients of the control socket");
        }
        let mut ready: Vec<_> = ready.iter().map(|event| ClientId(event.data.u64())).collect();
        if ready.contains(&LISTENER) {
            self.accept(now);
            ready.retain(|id| *id != LISTENER);
        }
        for id in &ready {
            self.write(*id);
            self.read(*id);
        }
        ready
    }

    /// Has clients wait for their turns, and watched for what is fitting now. To be called before anything is waited
    /// for.
    pub fn settle(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            self.line_up(id);
            let interest = self.interest(id);
            let Some((client, interest)) = self.clients.get_mut(&id).zip(interest) else { continue };
            if client.watched != interest {
                client.watched = interest;
                let mut flags = EventFlags::empty();
                flags.set(EventFlags::IN, interest.readable);
                flags.set(EventFlags::OUT, interest.writable);
                watch(&self.epoll, &*client.stream, id, flags);
            }
        }
    }

    /// A client about which something may change.
    fn touch(&mut self, id: ClientId) -> Option<&mut Client> {
        let client = self.clients.get_mut(&id)?;
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
        Some(client)
    }

    /// What to wait for on a client's descriptor; `None`: it is gone.
    fn interest(&self, id: ClientId) -> Option<Interest> {
        let client = self.clients.get(&id)?;
        let writable = !client.output.is_empty();
        let asks = !client.waits && !writable && !client.input.has_line();
        let readable = !client.finished && (client.stays || asks);
        Some(Interest { readable, writable })
    }

    /// Takes in whoever waits, as many as there is room for at the most.
    fn accept(&mut self, now: whimbrel_protocol::Time) -> Vec<ClientId> {
        let mut fresh = Vec::new();
        // Whoever connects again and again is not to keep this thread here.
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    let credentials = credentials(&stream);
                    let user = credentials.map(|who| who.uid);
                    let stream = ClosedApart::of(user, stream);
                    let place = self.place_for(user, now);
                    if place == Place::None {
                        tracing::warn!("refused a client of the control socket: as many are connected as may be");
                        turn_away(stream);
                        continue;
                    }
                    let id = ClientId(self.stamp());
                    let client = Client {
                        stream,
                        credentials,
                        connected: now,
                        used: id.0,
                        asked: false,
                        input: Lines::default(),
                        output: Output::default(),
                        watched: Interest::default(),
                        unread_since: None,
                        follows: false,
                        stays: false,
                        waits: false,
                        finished: false,
                        refused: place == Place::Refused,
                    };
                    self.clients.insert(id, client);
                    self.touched.push(id);
                    fresh.push(id);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return fresh,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.deaf, true) {
                        tracing::warn!(%error, "cannot take in a client of the control socket");
                        // It is readable, and stays so.
                        watch(&self.epoll, &self.listener, LISTENER, EventFlags::empty());
                    }
                    return fresh;
                }
            }
        }
        fresh
    }

    /// Takes in who waits where nobody could be, and ends clients that have not asked for anything in time. To be
    /// called several times a second.
    pub fn check_again(&mut self, now: whimbrel_protocol::Time) {
        self.expire(now, SILENT);
        if std::mem::take(&mut self.deaf) {
            watch(&self.epoll, &self.listener, LISTENER, EventFlags::IN);
            self.accept(now);
        }
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Who a client is; `None` where it is gone.
    #[must_use]
    pub fn credentials(&self, id: ClientId) -> Option<Credentials> {
        self.clients.get(&id)?.credentials
    }

    /// Reads from a client what it has sent, up to a whole request and no more than some.
    fn read(&mut self, id: ClientId) {
        let Some(client) = self.touch(id) else { return };
        let user = client.uid();
        for _ in 0..READS {
            if !client.stays && (client.input.has_line() || client.input.len() > client.longest_line()) {
                break;
            }
            match client.input.read_with(&*client.stream, |descriptor| ClosedApart::of(user, descriptor)) {
                Ok(0) => {
                    client.finished = true;
                    break;
                }
                // Its requests are not served any more, so there is nothing to keep.
                Ok(_) if client.stays => client.input.clear(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.remove(id);
                    return;
                }
            }
        }
        if client.stays && client.finished {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: ClientId) {
        if let Some(client) = self.clients.remove(&id) {
            watch(&self.epoll, &*client.stream, id, EventFlags::empty());
            self.gone.push(id);
        }
    }

    /// Those that are gone since this was asked last.
    pub fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// Has a client wait for its turn, if it has asked for something and may be served.
    fn line_up(&mut self, id: ClientId) {
        if self.clients.get(&id).is_some_and(Client::has_turn) && !self.turns.contains(&id) {
            self.turns.push_back(id);
        }
    }

    /// Whether any wait for their turns.
    #[must_use]
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Those whose turn it is: one of each user, however many it has.
    pub fn take_turns(&mut self) -> Vec<ClientId> {
        let mut users = BTreeSet::new();
        let (mut now, mut later) = (Vec::new(), VecDeque::new());
        for id in std::mem::take(&mut self.turns) {
            match self.clients.get(&id) {
                Some(client) if users.insert(client.uid()) => now.push(id),
                Some(_) => later.push_back(id),
                None => {}
            }
        }
        self.turns = later;
        now
    }

    /// The next whole request of a client that has read its last answer.
    pub(crate) fn request(&mut self, id: ClientId) -> Option<Result<Asked, Failure>> {
        let client = self.touch(id)?;
        if client.stays || client.waits || !client.output.is_empty() {
            return None;
        }
        let longest = client.longest_line();
        let line = client.input.take();
        let length = line.as_ref().map_or(client.input.len(), |line| line.text.len());
        if length > longest {
            client.input.clear();
            client.finished = true;
            self.reply(id, &Reply::Error(Failure::new("the request is too long")));
            return None;
        }
        let Some(line) = line else {
            if client.finished {
                self.remove(id);
            }
            return None;
        };
        if client.refused {
            client.input.clear();
            client.finished = true;
            let failure = Failure::new(format!("{CLIENTS} programs ask the daemon for something already"))
                .code(Code::TooMany)
                .hint("Ask again in a moment.");
            self.reply(id, &Reply::Error(failure));
            return None;
        }
        client.asked = true;
        let used = self.stamp();
        if let Some(client) = self.clients.get_mut(&id) {
            client.used = used;
        }
        let asked = asked(line);
        let looks = asked.as_ref().is_ok_and(|asked| asked.request.about() == About::Look);
        // Who reads no answer has asked for nothing.
        if looks && self.clients.get(&id).is_some_and(|client| has_hung_up(&client.stream)) {
            self.remove(id);
            return None;
        }
        Some(asked)
    }

    /// The answer to a client's last request comes later. Until then it is asked for no other, however many it has sent
    /// already: each would cost as much, and its answer could come first.
    pub fn answer_later(&mut self, id: ClientId) {
        if let Some(client) = self.touch(id) {
            client.waits = true;
        }
    }

    /// Answers a client.
    pub fn reply(&mut self, id: ClientId, reply: &Reply) {
        self.replies(id, [reply]);
    }

    /// Answers a client in several lines.
    pub fn replies<'a>(&mut self, id: ClientId, replies: impl IntoIterator<Item = &'a Reply>) {
        for reply in replies {
            self.push(id, reply, Vec::new());
        }
        self.answered(id);
    }

    /// Answers a client with descriptors, of which a line may have [`MAX_DESCRIPTORS`](whimbrel_ipc::MAX_DESCRIPTORS).
    pub fn reply_with(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) {
        self.push(id, reply, descriptors);
        self.answered(id);
    }

    /// As [`Self::say`], of what must not be lost: the client is not dropped, however much it does not read. The caller
    /// bounds it by [`Self::is_behind`].
    pub fn hand(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        self.push(id, reply, descriptors);
        self.write(id);
        self.clients.contains_key(&id)
    }

    /// Whether a client has so much to read that it should be told no more.
    #[must_use]
    pub fn is_behind(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.output.len() > BACKLOG)
    }

    /// Tells a client something that is not its answer, or not all of it. Whether it could be told: it is dropped where
    /// it does not read what it is told. The descriptors are closed if not, and it may still never read them.
    pub fn say(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        self.hand(id, reply, descriptors);
        if self.is_behind(id) {
            tracing::warn!("dropped a client of the control socket that does not read what it is told");
            self.remove(id);
        }
        self.clients.contains_key(&id)
    }

    fn push(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) {
        let Some(client) = self.touch(id) else { return };
        let user = client.uid();
        let descriptors = descriptors.into_iter().map(|descriptor| ClosedApart::of(user, descriptor)).collect();
        match reply_to_line(reply) {
            Ok(line) => client.output.push(&line, descriptors),
            Err(error) => tracing::error!(%error, "cannot write an answer as JSON"),
        }
    }

    fn answered(&mut self, id: ClientId) {
        let used = self.stamp();
        if let Some(client) = self.touch(id) {
            (client.waits, client.used) = (false, used);
        }
        self.write(id);
    }

    /// From now on the client is told each event.
    pub fn follow(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.follows = true;
        }
        self.stay(id);
    }

    /// From now on the client is told things by [`Self::say`], and what it sends is not looked at.
    pub fn stay(&mut self, id: ClientId) {
        if let Some(client) = self.touch(id) {
            client.stays = true;
            client.input.clear();
        }
    }

    /// Tells an event to all that follow.
    pub fn tell(&mut self, record: &EventRecord) {
        let followers: Vec<_> = self.clients.iter().filter(|(_, client)| client.follows).map(|(id, _)| *id).collect();
        if followers.is_empty() {
            return;
        }
        let reply = Reply::Event(record.clone());
        for id in followers {
            self.say(id, &reply, Vec::new());
        }
    }

    /// Writes to a client what it takes.
    pub fn write(&mut self, id: ClientId) {
        let Some(client) = self.touch(id) else { return };
        if client.output.write(&client.stream).is_err() {
            self.remove(id);
            return;
        }
        if client.output.is_empty() {
            client.unread_since = None;
            if !client.waits && client.finished && client.input.is_empty() {
                self.remove(id);
            }
        }
    }
}

/// Has a descriptor watched for this; for nothing, it is not.
fn watch(epoll: &OwnedFd, fd: impl AsFd, id: ClientId, flags: EventFlags) {
    let result = match flags.is_empty() {
        // Whoever hangs up would wake us again and again, whatever is asked for (epoll_ctl(2)).
        true => epoll::delete(epoll, fd),
        false => match epoll::modify(epoll, &fd, EventData::new_u64(id.0), flags) {
            Err(Errno::NOENT) => epoll::add(epoll, &fd, EventData::new_u64(id.0), flags),
            result => result,
        },
    };
    if let Err(error) = result.or_else(|error| if error == Errno::NOENT { Ok(()) } else { Err(error) }) {
        tracing::warn!(%error, "cannot watch a client of the control socket");
    }
}

/// A line's request, if it has as many descriptors as that takes.
fn asked(line: ReceivedLine<Received>) -> Result<Asked, Failure> {
    let request = request_from_line(&line.text)?;
    if line.text.len() > MAX_REQUEST_LINE && !matches!(request, Request::Give { .. }) {
        return Err(Failure::new("the request is too long"));
    }
    let (wanted, found) = (request.descriptors(), line.descriptors.len());
    if line.truncated || wanted != found {
        let what = match wanted {
            0 => "descriptors came with a request that takes none".to_owned(),
            1 => format!("this request takes one descriptor, and {found} came with it"),
            _ => format!("this request takes {wanted} descriptors, and {found} came with it"),
        };
        return Err(Failure::new(what).code(Code::Descriptors).hint("docs/json.md tells how they are sent."));
    }
    if matches!(request, Request::Namespace { .. }) && !line.descriptors.iter().all(is_network_namespace) {
        return Err(Failure::new("the descriptor is no network namespace").code(Code::Denied));
    }
    Ok(Asked { request, descriptors: line.descriptors })
}

/// Whether a descriptor is a network namespace. Nothing is asked of the file itself: it may be of a file system that
/// does not answer.
fn is_network_namespace(descriptor: &Received) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    fs::read_link(link).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"net:["))
}

/// Hangs up on who finds no room. What it has sent may take a while to close, and nothing of a client's that has sent
/// nothing does.
fn turn_away(stream: ClosedApart<UnixStream>) {
    let _ = stream.shutdown(std::net::Shutdown::Both);
    if rustix::io::ioctl_fionread(&*stream).is_ok_and(|unread| unread == 0) {
        drop(stream.into_inner());
    }
}

/// Whether a client has gone, and not only said that it asks nothing more.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut watched, Some(&now)).is_ok() && watched[0].revents().contains(PollFlags::HUP)
}

fn credentials(stream: &UnixStream) -> Option<Credentials> {
    whimbrel_kernel::client::credentials(stream.as_fd()).ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests;
