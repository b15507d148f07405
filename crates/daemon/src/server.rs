//! The local API's socket: clients, their half-read requests and half-written answers.
//!
//! Nothing here blocks and nothing grows without bound: a client whose request is too long, or that does not read what
//! it asked for, is dropped; it is served its next request only when it has read the last answer, and nothing is read from
//! it while its answer is being found.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use whimbrel_ipc::{
    EventRecord, Failure, MAX_REQUEST_LINE, Reply, Request, SchemaError, reply_to_line, request_from_line,
};

/// Clients at a time.
const CLIENTS: usize = 64;

/// Unread bytes at which a client that follows events is dropped.
const BACKLOG: usize = 4 << 20;

/// Names a client; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// The socket and who is connected.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: HashMap<ClientId, Client>,
    next: u64,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    follows: bool,
    /// Its answer takes a while, and comes with the next [`Server::reply`].
    waits: bool,
    /// It will send no more; to be dropped when its answers are written.
    finished: bool,
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
        Ok(Self { path: path.to_owned(), listener, clients: HashMap::new(), next: 0 })
    }

    /// Gives the socket other permission bits.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_mode(&self, mode: u32) -> Result<(), ServerError> {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(mode))
            .map_err(|source| ServerError { path: self.path.clone(), source })
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
        let writable = !client.output.is_empty();
        let readable = !client.finished && !client.waits && (client.follows || !writable);
        Some(Interest { readable, writable })
    }

    /// Takes in whoever waits.
    pub fn accept(&mut self) -> Vec<ClientId> {
        let mut fresh = Vec::new();
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if self.clients.len() < CLIENTS && stream.set_nonblocking(true).is_ok() => {
                    let id = ClientId(self.next);
                    self.next += 1;
                    let (input, output) = (Vec::new(), Vec::new());
                    let client = Client { stream, input, output, follows: false, waits: false, finished: false };
                    self.clients.insert(id, client);
                    fresh.push(id);
                }
                Ok(_) => tracing::warn!("refused a client of the control socket: {CLIENTS} are connected already"),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody left, or no descriptors left: whoever waits is taken in later.
                Err(_) => return fresh,
            }
        }
    }

    /// Reads from a client what it has sent.
    pub fn read(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut chunk = [0; 4096];
        while client.input.len() <= MAX_REQUEST_LINE {
            match client.stream.read(&mut chunk) {
                Ok(0) => {
                    client.finished = true;
                    break;
                }
                Ok(count) => client.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.clients.remove(&id);
                    return;
                }
            }
        }
        // A follower's requests are not served any more, so there is nothing to keep.
        if client.follows {
            client.input.clear();
            if client.finished {
                self.clients.remove(&id);
            }
        }
    }

    /// The next whole request of a client that has read its last answer.
    pub fn request(&mut self, id: ClientId) -> Option<Result<Request, SchemaError>> {
        let client = self.clients.get_mut(&id)?;
        if client.follows || client.waits || !client.output.is_empty() {
            return None;
        }
        let Some(end) = client.input.iter().position(|byte| *byte == b'\n') else {
            if client.finished {
                self.clients.remove(&id);
            } else if client.input.len() > MAX_REQUEST_LINE {
                client.input.clear();
                client.finished = true;
                self.reply(id, &Reply::Error(Failure::new("the request is too long")));
            }
            return None;
        };
        let line: Vec<u8> = client.input.drain(..=end).collect();
        Some(request_from_line(&String::from_utf8_lossy(&line)))
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
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.waits = false;
        for reply in replies {
            match reply_to_line(reply) {
                Ok(line) => client.output.extend_from_slice(line.as_bytes()),
                Err(error) => tracing::error!(%error, "cannot write an answer as JSON"),
            }
        }
        self.write(id);
    }

    /// From now on the client is told each event.
    pub fn follow(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.follows = true;
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
            self.reply(*id, &reply);
            if self.clients.get(id).is_some_and(|client| client.output.len() > BACKLOG) {
                tracing::warn!("dropped a client that follows events without reading them");
                self.clients.remove(id);
            }
        }
        followers
    }

    /// Writes to a client what it takes.
    pub fn write(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut written = 0;
        while written < client.output.len() {
            match client.stream.write(&client.output[written..]) {
                Ok(count) if count > 0 => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                _ => {
                    self.clients.remove(&id);
                    return;
                }
            }
        }
        client.output.drain(..written);
        if client.output.is_empty() && !client.waits && client.finished && client.input.is_empty() {
            self.clients.remove(&id);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use whimbrel_ipc::{EventsQuery, reply_from_line, request_to_line};

    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("whimbrel-server-{name}-{}.sock", std::process::id()))
    }

    fn connect(server: &mut Server) -> (UnixStream, ClientId) {
        let stream = UnixStream::connect(&server.path).expect("connect");
        let id = server.accept()[0];
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
        assert_eq!(server.request(id).expect("whole").expect("valid"), Request::Status);
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
        assert_eq!(server.request(id).expect("whole").expect("valid"), Request::Connections);
        server.answer_later(id);
        assert!(server.request(id).is_none(), "asked for the next before the answer was there");
        server.write(id);
        assert_eq!(server.interest(id), Some(Interest { readable: false, writable: false }));
        server.reply(id, &Reply::Connections(Vec::new()));
        assert_eq!(server.request(id).expect("whole").expect("valid"), Request::Status);
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
        stream.write_all(&vec![b'x'; MAX_REQUEST_LINE + 4096]).expect("write");
        server.read(id);
        assert!(server.request(id).is_none());
        assert_eq!(server.interest(id), None);
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("read");
        assert!(matches!(reply_from_line(&answer).expect("reply"), Reply::Error(_)));
    }

    #[test]
    fn a_follower_that_does_not_read_is_dropped() {
        let mut server = Server::bind(&socket("follow"), 0o600).expect("bind");
        let (mut stream, id) = connect(&mut server);
        let follow = Request::Events(EventsQuery { follow: true, ..Default::default() });
        stream.write_all(request_to_line(&follow).expect("line").as_bytes()).expect("write");
        server.read(id);
        assert_eq!(server.request(id).expect("whole").expect("valid"), follow);
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
