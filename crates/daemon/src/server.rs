//! The local API's socket: clients, their half-read requests and half-written answers.
//!
//! Nothing here blocks and nothing grows without bound: a client whose request is too long, or that does not read what
//! it asked for, is dropped; it is served its next request only when it has read the last answer, and nothing is read from
//! it while its answer is being found. One user's clients do not keep others out: where there is no room, the one of whoever has most
//! gives way that has been idle for longest. Descriptors that come with a request that takes none are closed.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_ipc::{
    Code, EventRecord, Failure, Lines, MAX_REQUEST_LINE, ReceivedLine, Reply, Request, reply_to_line,
    request_from_line, send_line,
};
pub use whimbrel_kernel::client::Credentials;

/// Clients that may ask something, at a time.
const CLIENTS: usize = 64;

/// Those beyond that hear that there is no room.
const REFUSED: usize = 64;

/// Clients that stay: programs behind anchors, those that receive sockets, and those that follow events. They ask nothing more, so they take no
/// room of those that do.
const STAYING: usize = 1024;

/// How long a client may take to ask for the first time.
const SILENT: Duration = Duration::from_secs(60);

/// Unread bytes at which a client that is told things without asking for each is dropped.
const BACKLOG: usize = 4 << 20;

/// Names a client; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// Where nobody waits for an answer.
    pub(crate) const NOBODY: Self = Self(u64::MAX);
}

/// A request with what came with it: as many descriptors as it takes.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Nothing is known of them but that they are open.
    pub descriptors: Vec<OwnedFd>,
}

/// The socket and who is connected.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: HashMap<ClientId, Client>,
    gone: Vec<ClientId>,
    next: u64,
    most_staying: usize,
    /// No descriptor was left for who waits.
    deaf: bool,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    credentials: Option<Credentials>,
    connected: whimbrel_protocol::Time,
    /// When it was heard or answered last, in the order of the server's numbers.
    used: u64,
    /// It has asked for something.
    asked: bool,
    input: Lines,
    output: Output,
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

/// Lines that were not written yet.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    /// What goes with lines: each with the place of its line's first byte, and of its end.
    descriptors: VecDeque<(usize, usize, Vec<OwnedFd>)>,
}

impl Client {
    fn uid(&self) -> Option<u32> {
        self.credentials.map(|who| who.uid)
    }

    /// Nothing of what it asked for is left to be done.
    fn is_idle(&self) -> bool {
        !self.stays && !self.waits && self.output.bytes.is_empty()
    }
}

impl Output {
    fn push(&mut self, line: &str, descriptors: Vec<OwnedFd>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(line.as_bytes());
        if !descriptors.is_empty() {
            self.descriptors.push_back((start, self.bytes.len(), descriptors));
        }
    }

    /// Writes what the client takes.
    fn write(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.bytes.len() {
                break Ok(());
            }
            // A line with descriptors goes by itself, as its reader expects.
            let sent = match self.descriptors.front() {
                Some((start, end, with)) if *start == written => {
                    let with: Vec<_> = with.iter().map(AsFd::as_fd).collect();
                    send_line(stream, &self.bytes[written..*end], &with)
                }
                Some((start, ..)) => send_line(stream, &self.bytes[written..*start], &[]),
                None => send_line(stream, &self.bytes[written..], &[]),
            };
            match sent {
                Ok(count) => {
                    if count > 0 && self.descriptors.front().is_some_and(|(start, ..)| *start == written) {
                        self.descriptors.pop_front();
                    }
                    written += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.bytes.drain(..written);
        for (start, end, _) in &mut self.descriptors {
            *start -= written;
            *end -= written;
        }
        result
    }
}

/// What a client wants of the event loop's epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Bytes may be read.
    pub readable: bool,
    /// Bytes wait to be written.
    pub writable: bool,
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
            // Closed to all until the mode is set: connect(2) asks for write permission.
            let former = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
            let listener = UnixListener::bind(path);
            rustix::process::umask(former);
            let listener = listener?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })();
        let listener = bound.map_err(|source| ServerError { path: path.to_owned(), source })?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            clients: HashMap::new(),
            gone: Vec::new(),
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

    /// Readable when somebody connects.
    #[must_use]
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// A client's descriptor, for the epoll set.
    #[must_use]
    pub fn client(&self, id: ClientId) -> Option<BorrowedFd<'_>> {
        self.clients.get(&id).map(|client| client.stream.as_fd())
    }

    /// What to wait for on a client's descriptor; `None`: it is gone.
    #[must_use]
    pub fn interest(&self, id: ClientId) -> Option<Interest> {
        let client = self.clients.get(&id)?;
        let writable = !client.output.bytes.is_empty();
        let readable = !client.finished && (client.stays || !client.waits && !writable);
        Some(Interest { readable, writable })
    }

    /// Takes in whoever waits, as many as there is room for at the most.
    pub fn accept(&mut self, now: whimbrel_protocol::Time) -> Vec<ClientId> {
        let mut fresh = Vec::new();
        // Whoever connects again and again is not to keep this thread here.
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    let credentials = credentials(&stream);
                    let room = self.asking() < CLIENTS || self.make_room(credentials.map(|who| who.uid));
                    if !room && self.asking() >= CLIENTS + REFUSED {
                        tracing::warn!("refused a client of the control socket: {CLIENTS} are connected already");
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
                        follows: false,
                        stays: false,
                        waits: false,
                        finished: false,
                        refused: !room,
                    };
                    self.clients.insert(id, client);
                    fresh.push(id);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return fresh,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.deaf, true) {
                        tracing::warn!(%error, "cannot take in a client of the control socket");
                    }
                    return fresh;
                }
            }
        }
        fresh
    }

    /// Whether nobody can be taken in: the listener is readable and stays so, and is not to be waited for.
    #[must_use]
    pub fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// Takes in who waits where nobody could be, and ends clients that have not asked for anything in time.
    pub fn look_again(&mut self, now: whimbrel_protocol::Time) -> Vec<ClientId> {
        let silent = |client: &Client| !client.asked && client.is_idle() && client.connected + SILENT <= now;
        let silent: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| silent(client)).map(|(id, _)| *id).collect();
        silent.into_iter().for_each(|id| self.remove(id));
        if std::mem::take(&mut self.deaf) { self.accept(now) } else { Vec::new() }
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn asking(&self) -> usize {
        self.clients.values().filter(|client| !client.stays).count()
    }

    /// Has a client give way to one of this user's: of the user who has most, which is this one where several have as many, the one
    /// that has been idle for longest. Whether there was one.
    fn make_room(&mut self, uid: Option<u32>) -> bool {
        let mut shares: HashMap<Option<u32>, usize> = HashMap::new();
        for client in self.clients.values().filter(|client| !client.stays) {
            *shares.entry(client.uid()).or_default() += 1;
        }
        let own = shares.get(&uid).copied().unwrap_or_default();
        let most = shares.into_iter().max_by_key(|(of, count)| (*count, *of == uid));
        let Some((most, _)) = most.filter(|(of, count)| *of == uid || *count > own) else { return false };
        let idle = self.clients.iter().filter(|(_, client)| client.uid() == most && client.is_idle());
        let Some(oldest) = idle.min_by_key(|(_, client)| client.used).map(|(id, _)| *id) else { return false };
        self.remove(oldest);
        true
    }

    /// Whether there is room for this client to [stay](Self::stay). Users other than root have half of it each at the most.
    ///
    /// # Errors
    /// [`Code::TooMany`], for the client.
    pub fn may_stay(&self, id: ClientId) -> Result<(), Failure> {
        let uid = self.clients.get(&id).and_then(Client::uid);
        let of_user = |client: &&Client| client.stays && client.uid() == uid;
        let share = if uid == Some(0) { self.most_staying } else { self.most_staying / 2 };
        let of_user = self.clients.values().filter(of_user).count();
        let most = if of_user < share { self.most_staying } else { share };
        if of_user < share && self.clients.len() - self.asking() < most {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{most} programs stay connected with the daemon already, which are as many as may be"
        ))
        .code(Code::TooMany)
        .hint("Each program of `whimbrel run` is one, and each that receives sockets or follows events."))
    }

    /// Who a client is; `None` where it is gone.
    #[must_use]
    pub fn credentials(&self, id: ClientId) -> Option<Credentials> {
        self.clients.get(&id)?.credentials
    }

    /// Reads from a client what it has sent.
    pub fn read(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        while client.input.len() <= MAX_REQUEST_LINE {
            match client.input.read(&client.stream) {
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
        if self.clients.remove(&id).is_some() {
            self.gone.push(id);
        }
    }

    /// Those that are gone since this was asked last.
    pub fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// The next whole request of a client that has read its last answer.
    pub fn request(&mut self, id: ClientId) -> Option<Result<Asked, Failure>> {
        let client = self.clients.get_mut(&id)?;
        if client.stays || client.waits || !client.output.bytes.is_empty() {
            return None;
        }
        let Some(line) = client.input.take() else {
            if client.finished {
                self.remove(id);
            } else if client.input.len() > MAX_REQUEST_LINE {
                client.input.clear();
                client.finished = true;
                self.reply(id, &Reply::Error(Failure::new("the request is too long")));
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
        Some(asked(line))
    }

    /// The answer to a client's last request comes later. Until then it is asked for no other, however many it has sent
    /// already: each would cost as much, and its answer could come first.
    pub fn answer_later(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
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

    /// As [`Self::say`], of what must not be lost: the client is not dropped, however much it does not read. The caller bounds it by
    /// [`Self::is_behind`].
    pub fn hand(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        self.push(id, reply, descriptors);
        self.write(id);
        self.clients.contains_key(&id)
    }

    /// Whether a client has so much to read that it should be told no more.
    #[must_use]
    pub fn is_behind(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.output.bytes.len() > BACKLOG)
    }

    /// Tells a client something that is not its answer, or not all of it. Whether it could be told: it is dropped where it does
    /// not read what it is told. The descriptors are closed if not, and it may still never read them. The caller watches it anew.
    pub fn say(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        self.hand(id, reply, descriptors);
        if self.is_behind(id) {
            tracing::warn!("dropped a client of the control socket that does not read what it is told");
            self.remove(id);
        }
        self.clients.contains_key(&id)
    }

    fn push(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match reply_to_line(reply) {
            Ok(line) => client.output.push(&line, descriptors),
            Err(error) => tracing::error!(%error, "cannot write an answer as JSON"),
        }
    }

    fn answered(&mut self, id: ClientId) {
        let used = self.stamp();
        if let Some(client) = self.clients.get_mut(&id) {
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
        if let Some(client) = self.clients.get_mut(&id) {
            client.stays = true;
            client.input.clear();
        }
    }

    /// Tells an event to all that follow; gives those whose interest may have changed.
    pub fn tell(&mut self, record: &EventRecord) -> Vec<ClientId> {
        let followers: Vec<_> = self.clients.iter().filter(|(_, client)| client.follows).map(|(id, _)| *id).collect();
        if followers.is_empty() {
            return followers;
        }
        let reply = Reply::Event(record.clone());
        for id in &followers {
            self.say(*id, &reply, Vec::new());
        }
        followers
    }

    /// Writes to a client what it takes.
    pub fn write(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.output.write(&client.stream).is_err() {
            self.remove(id);
            return;
        }
        if client.output.bytes.is_empty() && !client.waits && client.finished && client.input.is_empty() {
            self.remove(id);
        }
    }
}

/// A line's request, if it has as many descriptors as that takes.
fn asked(line: ReceivedLine) -> Result<Asked, Failure> {
    let request = request_from_line(&line.text)?;
    let (wanted, found) = (request.descriptors(), line.descriptors.len());
    if line.truncated || wanted != found {
        let what = match wanted {
            0 => "descriptors came with a request that takes none".to_owned(),
            1 => format!("this request takes one descriptor, and {found} came with it"),
            _ => format!("this request takes {wanted} descriptors, and {found} came with it"),
        };
        return Err(Failure::new(what).code(Code::Descriptors).hint("docs/json.md tells how they are sent."));
    }
    Ok(Asked { request, descriptors: line.descriptors })
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
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read, Write};
    use whimbrel_ipc::{EventsQuery, reply_from_line, request_to_line};
    use whimbrel_protocol::Time;

    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("whimbrel-server-{name}-{}.sock", std::process::id()))
    }

    fn connect(server: &mut Server) -> (UnixStream, ClientId) {
        let stream = UnixStream::connect(&server.path).expect("connect");
        let id = server.accept(Time::default())[0];
        (stream, id)
    }

    #[test]
    fn requests_may_come_in_pieces_and_many_at_once() {
        let mut server = Server::bind(&socket("pieces"), 0o600).expect("bind");
        assert_eq!(fs::metadata(&server.path).expect("stat").permissions().mode() & 0o777, 0o600);
        let (mut stream, id) = connect(&mut server);
        let line = request_to_line(&Request::Status).expect("line");
        stream.write_all(&line.as_bytes()[..5]).expect("write");
        server.read(id);
        assert!(server.request(id).is_none());
        stream.write_all(&line.as_bytes()[5..]).expect("write");
        stream.write_all(b"nonsense\n").expect("write");
        server.read(id);
        assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Status);
        server.reply(id, &Reply::End { newest: 7 });
        assert!(server.request(id).expect("whole").is_err());
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("read");
        assert_eq!(reply_from_line(&answer).expect("reply"), Reply::End { newest: 7 });
    }

    #[test]
    fn an_answer_that_takes_a_while_is_waited_for() {
        let mut server = Server::bind(&socket("late"), 0o600).expect("bind");
        let (mut stream, id) = connect(&mut server);
        let lines = [Request::Connections, Request::Status].map(|request| request_to_line(&request).expect("line"));
        stream.write_all(lines.concat().as_bytes()).expect("write");
        // It says all that it has to say at once, as `nc -N` does.
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        server.read(id);
        assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Connections);
        server.answer_later(id);
        assert!(server.request(id).is_none(), "asked for the next before the answer was there");
        server.write(id);
        assert_eq!(server.interest(id), Some(Interest { readable: false, writable: false }));
        server.reply(id, &Reply::Connections(Vec::new()));
        assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Status);
        server.reply(id, &Reply::End { newest: 7 });
        assert!(server.request(id).is_none());
        assert_eq!(server.interest(id), None, "it has sent all and was answered all");
        let answers: Vec<_> = BufReader::new(stream).lines().map(|line| line.expect("read")).collect();
        assert_eq!(answers.len(), 2, "{answers:?}");
        assert_eq!(reply_from_line(&answers[0]).expect("reply"), Reply::Connections(Vec::new()));
        assert_eq!(reply_from_line(&answers[1]).expect("reply"), Reply::End { newest: 7 });
    }

    #[test]
    fn a_request_without_end_ends_the_client() {
        let mut server = Server::bind(&socket("long"), 0o600).expect("bind");
        let (mut stream, id) = connect(&mut server);
        let chunk = [b'x'; 16 * 1024];
        for _ in 0..=MAX_REQUEST_LINE / chunk.len() {
            stream.write_all(&chunk).expect("write");
            server.read(id);
        }
        assert!(server.request(id).is_none());
        assert_eq!(server.interest(id), None);
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("read");
        assert!(matches!(reply_from_line(&answer).expect("reply"), Reply::Error(_)));
    }

    #[test]
    fn descriptors_come_with_requests_that_take_them_and_no_others() {
        let mut server = Server::bind(&socket("descriptors"), 0o600).expect("bind");
        let (stream, id) = connect(&mut server);
        let send = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
            send_line(&stream, request_to_line(request).expect("line").as_bytes(), descriptors).expect("sent");
        };
        // One end is handed over; the other one is told when nobody has it any more.
        let (kept, given) = UnixStream::pair().expect("pair");
        let ended = |mut kept: UnixStream| kept.read(&mut [0]).expect("read") == 0;
        send(&Request::Uuid, &[given.as_fd()]);
        send(&Request::Uuid, &[]);
        drop(given);
        server.read(id);
        let asked = server.request(id).expect("whole").expect("valid");
        assert_eq!((asked.request, asked.descriptors.len()), (Request::Uuid, 1));
        drop(asked.descriptors);
        assert!(ended(kept));
        let refused = server.request(id).expect("whole").expect_err("none came with it");
        assert_eq!(refused.code, Some(Code::Descriptors));

        let (kept, given) = UnixStream::pair().expect("pair");
        send(&Request::Status, &[given.as_fd()]);
        send(&Request::Peers, &[]);
        drop(given);
        server.read(id);
        let refused = server.request(id).expect("whole").expect_err("it takes none");
        assert_eq!(refused.code, Some(Code::Descriptors));
        assert!(ended(kept));
        assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Peers);
    }

    #[test]
    fn answers_with_descriptors_wait_like_others() {
        let mut server = Server::bind(&socket("with"), 0o600).expect("bind");
        let (stream, id) = connect(&mut server);
        assert_eq!(server.credentials(id).map(|who| who.pid), Some(std::process::id()));
        server.stay(id);
        // More than the socket takes at once, so that the descriptors wait in the middle of it.
        let long = Reply::Error(Failure::new("x".repeat(1 << 20)));
        let (mut inside, given) = UnixStream::pair().expect("pair");
        inside.write_all(b"hello").expect("write");
        drop(inside);
        assert!(server.say(id, &long, Vec::new()));
        assert!(server.say(id, &Reply::End { newest: 1 }, vec![given.into()]));
        assert!(server.say(id, &Reply::End { newest: 2 }, Vec::new()));
        let (mut lines, mut got) = (Lines::default(), Vec::new());
        while got.len() < 3 {
            lines.read(&stream).expect("read");
            server.write(id);
            got.extend(std::iter::from_fn(|| lines.take()));
        }
        assert_eq!(got.iter().map(|line| line.descriptors.len()).collect::<Vec<_>>(), [0, 1, 0]);
        let mut text = String::new();
        let with = got.swap_remove(1).descriptors.remove(0);
        File::from(with).read_to_string(&mut text).expect("read");
        assert_eq!(text, "hello");
        drop(stream);
        server.read(id);
        assert_eq!(server.take_gone(), [id]);
        assert!(server.take_gone().is_empty());
    }

    #[test]
    fn what_must_not_be_lost_is_kept_for_who_does_not_read() {
        let mut server = Server::bind(&socket("hand"), 0o600).expect("bind");
        let (stream, id) = connect(&mut server);
        server.stay(id);
        assert!(!server.is_behind(id));
        let long = Reply::Error(Failure::new("x".repeat(1 << 20)));
        for _ in 0..6 {
            assert!(server.hand(id, &long, vec![stream.try_clone().expect("dup").into()]));
        }
        assert!(server.is_behind(id));
        let (mut lines, mut descriptors) = (Lines::default(), 0);
        while descriptors < 6 {
            lines.read(&stream).expect("read");
            server.write(id);
            descriptors += std::iter::from_fn(|| lines.take()).map(|line| line.descriptors.len()).sum::<usize>();
        }
        assert!(!server.is_behind(id));
    }

    #[test]
    fn those_that_stay_take_no_room_of_those_that_ask_and_who_finds_none_hears_so() {
        let mut server = Server::bind(&socket("room"), 0o600).expect("bind");
        let status = request_to_line(&Request::Status).expect("line");
        let refusal = |server: &mut Server| -> Option<Failure> {
            let (mut stream, id) = connect(server);
            stream.write_all(status.as_bytes()).expect("write");
            server.read(id);
            if server.request(id).is_some() {
                return None;
            }
            assert_eq!(server.interest(id), None, "it stays");
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).expect("read");
            match reply_from_line(&answer).expect("reply") {
                Reply::Error(failure) => Some(failure),
                other => panic!("{other:?}"),
            }
        };
        server.most_staying = CLIENTS + 1;
        let mut staying = Vec::new();
        let full = loop {
            let (stream, id) = connect(&mut server);
            server.clients.get_mut(&id).expect("it").credentials = Some(Credentials { pid: 1, uid: 0, gid: 0 });
            if let Err(full) = server.may_stay(id) {
                server.remove(id);
                break full;
            }
            server.stay(id);
            staying.push(stream);
        };
        assert_eq!(staying.len(), CLIENTS + 1);
        assert_eq!(full.code, Some(Code::TooMany));
        assert_eq!(refusal(&mut server), None, "they take the room of who asks");
        let mut asking = Vec::new();
        // The one that was served is idle now, and gives way.
        while asking.len() < CLIENTS {
            asking.push(connect(&mut server));
            // What they ask for takes a while; who is idle would give way.
            server.answer_later(asking[asking.len() - 1].1);
        }
        assert_eq!(refusal(&mut server).expect("full").code, Some(Code::TooMany));
        assert_eq!(refusal(&mut server).expect("full").code, Some(Code::TooMany));
        let (stream, id) = asking.remove(0);
        server.reply(id, &Reply::End { newest: 1 });
        drop(stream);
        server.read(id);
        assert!(server.request(id).is_none());
        assert_eq!(refusal(&mut server), None, "there is room again");
    }

    /// Connects as if for this user.
    fn connect_as(server: &mut Server, uid: u32) -> (UnixStream, ClientId) {
        let (stream, id) = connect(server);
        server.clients.get_mut(&id).expect("it").credentials = Some(Credentials { pid: 1, uid, gid: uid });
        (stream, id)
    }

    #[test]
    fn idle_clients_of_one_user_do_not_keep_others_out() {
        let mut server = Server::bind(&socket("idle"), 0o600).expect("bind");
        // All clients are of who runs this test; these are taken to be of others.
        let me = rustix::process::geteuid().as_raw();
        let (crowd, other) = (me + 1, me + 2);
        let (_quiet, quiet) = connect_as(&mut server, other);
        let mut idle: Vec<_> = (1..CLIENTS).map(|_| connect_as(&mut server, crowd)).collect();
        // One of them is used; the others are idle for longer.
        let (stream, used) = &mut idle[0];
        stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
        server.read(*used);
        assert!(server.request(*used).is_some());
        server.reply(*used, &Reply::End { newest: 1 });
        let (mut stream, mine) = connect(&mut server);
        assert_eq!(server.take_gone(), [idle[1].1], "of who has most, the one that is idle for longest");
        stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
        server.read(mine);
        assert!(server.request(mine).expect("whole").is_ok(), "it is served");
        // Whoever comes again and again takes the place of its own.
        server.make_room(Some(crowd));
        assert_eq!(server.take_gone(), [idle[2].1]);
        assert!(server.interest(quiet).is_some());
        // Nobody gives way to who has more.
        for (_, id) in &idle[3..] {
            server.answer_later(*id);
        }
        server.answer_later(idle[0].1);
        assert!(!server.make_room(Some(crowd)));
    }

    #[test]
    fn who_asks_nothing_is_dropped_after_a_while() {
        let mut server = Server::bind(&socket("silent"), 0o600).expect("bind");
        let (_silent, silent) = connect(&mut server);
        let (mut stream, asked) = connect(&mut server);
        stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
        server.read(asked);
        assert!(server.request(asked).is_some());
        server.reply(asked, &Reply::End { newest: 1 });
        server.look_again(Time::default() + SILENT / 2);
        assert!(server.take_gone().is_empty());
        server.look_again(Time::default() + SILENT);
        assert_eq!(server.take_gone(), [silent]);
    }

    #[test]
    fn one_user_has_half_of_the_room_for_those_that_stay() {
        let mut server = Server::bind(&socket("staying"), 0o600).expect("bind");
        server.most_staying = 10;
        let mut staying = Vec::new();
        let mut room_of = |server: &mut Server, uid: u32| {
            (0..).find(|_| {
                let (stream, id) = connect_as(server, uid);
                let full = server.may_stay(id).is_err();
                if full {
                    server.remove(id)
                } else {
                    server.stay(id)
                }
                staying.push(stream);
                full
            })
        };
        assert_eq!(
            (room_of(&mut server, 1000), room_of(&mut server, 1001), room_of(&mut server, 0)),
            (Some(5), Some(5), Some(0))
        );
    }

    #[test]
    fn a_follower_that_does_not_read_is_dropped() {
        let mut server = Server::bind(&socket("follow"), 0o600).expect("bind");
        let (mut stream, id) = connect(&mut server);
        let follow = Request::Events(EventsQuery { follow: true, ..Default::default() });
        stream.write_all(request_to_line(&follow).expect("line").as_bytes()).expect("write");
        server.read(id);
        assert_eq!(server.request(id).expect("whole").expect("valid").request, follow);
        server.follow(id);
        let record = EventRecord {
            number: 1,
            time: String::new(),
            monotonic_ms: 0,
            kind: "test".into(),
            sentence: "x".repeat(1 << 20),
            fields: serde_json::Map::new(),
        };
        for _ in 0..6 {
            server.tell(&record);
        }
        assert_eq!(server.interest(id), None);
    }
}
