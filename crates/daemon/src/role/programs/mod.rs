//! Sockets that programs ask for, and what they are called: what libwhimbrel stands on (decision 0018).

mod kept;
mod listing;
mod names;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use whimbrel_ipc::{Code, Failure, Family, MadeSocket, Process, Reply, SocketKind, WantedAnchor};
use whimbrel_kernel::owner::Owner;
use whimbrel_kernel::process;
use whimbrel_protocol::Time;

use crate::api::Answer;
use crate::api::access::User;
use crate::api::server::{ClientId, Credentials};
use crate::clock;
use crate::closing::Received;
use crate::event_loop::{EventLoop, FLOW_TICK};
use crate::events::told;
use crate::reactor::LoopError;
pub(crate) use kept::KeptSockets;
pub(crate) use names::SocketNames;

/// How long the migrator may take for an answer.
const MIGRATOR_WAIT: Duration = Duration::from_secs(2);

/// Questions to the migrator at a time.
const QUESTIONS: usize = 64;

/// Ports below this one are given to root alone (`net.ipv4.ip_unprivileged_port_start`, as it is unless it was
/// changed).
const UNPRIVILEGED: u16 = 1024;

/// What the daemon knows of programs that use their sockets' names.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) names: SocketNames,
    pub(crate) kept: KeptSockets,
    /// Who is asked where sockets are to be anchored.
    migrator: Option<ClientId>,
    questions: HashMap<u64, Question>,
    next_question: u64,
}

/// Who waits for an answer of the migrator, and for what.
#[derive(Debug)]
struct Question {
    client: ClientId,
    wanted: WantedSocket,
    until: Time,
}

/// A socket that a program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedSocket {
    pub(crate) family: Family,
    pub(crate) kind: SocketKind,
    pub(crate) hidden: bool,
}

impl Programs {
    pub(crate) fn new(names: SocketNames) -> Self {
        let (kept, questions) = (KeptSockets::default(), HashMap::new());
        Self { names, kept, migrator: None, questions, next_question: 1 }
    }
}

/// Looks after sockets that are kept for programs.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    this.reactor.every(clock::now(), FLOW_TICK, EventLoop::programs_due);
    Ok(())
}

impl EventLoop {
    /// [`Request::Socket`](whimbrel_ipc::Request::Socket). The caller serves the client on.
    pub(crate) fn make_socket(&mut self, id: ClientId, wanted: WantedSocket, anchor: &str) -> Answer {
        match anchor.strip_prefix("policy:").map(str::parse) {
            None => self.make_anchored(id, wanted, anchor),
            // SOCKMAND: policy 0 is the host itself.
            Some(Ok(0)) => self.make_anchored(id, wanted, "self"),
            Some(Ok(policy)) => self.ask_migrator(id, wanted, policy),
            Some(Err(_)) => Err(Failure::new("a policy is a number").on(anchor).code(Code::Unknown)),
        }
    }

    fn make_anchored(&mut self, id: ClientId, wanted: WantedSocket, anchor: &str) -> Answer {
        match anchor {
            "self" if wanted.hidden => {
                let failure = Failure::new("this host cannot hide a socket behind itself").on(anchor);
                Err(failure.code(Code::Unavailable))
            }
            "self" => self.make_own(id, wanted),
            // Where such a socket is, its anchor alone is told.
            _ => self.want_socket(id, wanted, anchor),
        }
    }

    /// A socket of this host's own address.
    pub(crate) fn make_own(&mut self, id: ClientId, wanted: WantedSocket) -> Answer {
        let socket = plain_socket(wanted, self.server.credentials(id))?;
        self.hand_socket(id, socket, "self".to_owned())
    }

    /// Hands a client the socket that was made for it.
    pub(crate) fn hand_socket(&mut self, id: ClientId, socket: OwnedFd, anchor: String) -> Answer {
        let uuid = self.programs.names.of(socket.as_fd())?;
        self.server.reply_with(id, &Reply::Socket(MadeSocket { uuid, anchor }), vec![socket]);
        Ok(None)
    }

    /// [`Request::Uuid`](whimbrel_ipc::Request::Uuid).
    pub(crate) fn name_socket(&self, socket: BorrowedFd<'_>) -> Answer {
        Ok(Some(Reply::Uuid { uuid: self.programs.names.of(socket)? }))
    }

    /// [`Request::Bind`](whimbrel_ipc::Request::Bind).
    pub(crate) fn bind_socket(&mut self, id: ClientId, socket: BorrowedFd<'_>, address: SocketAddr) -> Answer {
        self.programs.names.of(socket)?;
        if let Some(done) = self.bind_anchored(id, socket, address, None) {
            return done;
        }
        // This process may do what the client may not.
        let is_root = self.server.credentials(id).is_some_and(|who| who.uid == 0);
        if address.port() != 0 && address.port() < UNPRIVILEGED && !is_root {
            return Err(Failure::new("only root may have this port").on(address).code(Code::Denied));
        }
        bind(socket, address)
    }

    /// [`Request::Export`](whimbrel_ipc::Request::Export).
    pub(crate) fn export_socket(&mut self, id: ClientId, socket: Received) -> Answer {
        let uuid = self.programs.names.of(socket.as_fd())?;
        let user = User::of(self.server.credentials(id));
        let wait = self.programs.kept.keep(clock::now(), uuid, socket, user)?;
        Ok(Some(Reply::Exported { uuid, wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) }))
    }

    /// [`Request::Rebuild`](whimbrel_ipc::Request::Rebuild).
    pub(crate) fn rebuild_socket(&mut self, id: ClientId, name: &str) -> Answer {
        let (uuid, socket) = self.programs.kept.take(name, User::of(self.server.credentials(id)))?;
        let reply = Reply::Socket(MadeSocket { uuid, anchor: "self".to_owned() });
        self.server.reply_with(id, &reply, vec![socket.into_inner()]);
        Ok(None)
    }

    /// [`Request::Sockets`](whimbrel_ipc::Request::Sockets), which takes a while.
    pub(crate) fn list_sockets(&mut self, id: ClientId, pid: u32) -> Answer {
        let names = self.programs.names.clone();
        self.find_answer(id, move || listing::sockets(&names, pid).map_or_else(Reply::Error, Reply::Sockets))
    }

    /// [`Request::Migrator`](whimbrel_ipc::Request::Migrator). Its answers are requests, so it is heard on.
    pub(crate) fn be_migrator(&mut self, id: ClientId) -> Answer {
        if self.programs.migrator.is_some_and(|other| other != id) {
            return Err(Failure::new("there is a migrator already").code(Code::InUse));
        }
        self.programs.migrator = Some(id);
        Ok(Some(Reply::Migrator { wait_ms: u64::try_from(MIGRATOR_WAIT.as_millis()).unwrap_or(u64::MAX) }))
    }

    fn ask_migrator(&mut self, id: ClientId, wanted: WantedSocket, policy: u32) -> Answer {
        let Some(migrator) = self.programs.migrator else {
            return Err(Failure::new("there is no migrator that knows this policy")
                .on(format!("policy:{policy}"))
                .code(Code::Unavailable)
                .hint("A program that decides where sockets are anchored says so (whimbrel(3), wb_migrator_open)."));
        };
        if self.programs.questions.len() >= QUESTIONS {
            return Err(Failure::new("too many questions wait for the migrator").code(Code::TooMany));
        }
        let question = self.programs.next_question;
        self.programs.next_question += 1;
        let pid = self.server.credentials(id).map_or(0, |who| who.pid);
        let process = Process { pid, name: process::name_of(pid) };
        let said =
            self.server.say(migrator, &Reply::WantedAnchor(WantedAnchor { question, policy, process }), Vec::new());
        if !said {
            return Err(Failure::new("the migrator does not answer").code(Code::Unavailable));
        }
        self.watch_client(migrator);
        let until = clock::now() + MIGRATOR_WAIT;
        self.programs.questions.insert(question, Question { client: id, wanted, until });
        self.server.answer_later(id);
        Ok(None)
    }

    /// [`Request::Anchor`](whimbrel_ipc::Request::Anchor). What nobody has asked, or asks any more, is passed over.
    pub(crate) fn take_anchor(&mut self, id: ClientId, question: u64, anchor: Option<&str>) -> Answer {
        let asked = (self.programs.migrator == Some(id)).then(|| self.programs.questions.remove(&question)).flatten();
        let Some(asked) = asked else { return Ok(None) };
        match anchor {
            Some(anchor) => {
                let answer = self.make_anchored(asked.client, asked.wanted, anchor);
                self.reply(asked.client, answer);
                self.serve(asked.client);
            }
            None => self.refuse_question(asked.client, "the migrator has no anchor for this policy"),
        }
        Ok(None)
    }

    fn refuse_question(&mut self, client: ClientId, what: &str) {
        self.reply(client, Err(Failure::new(what).code(Code::Unavailable)));
        self.serve(client);
    }

    /// Of clients that may have asked for any of this, or be the migrator.
    pub(crate) fn programs_gone(&mut self, clients: &[ClientId]) {
        self.programs.questions.retain(|_, question| !clients.contains(&question.client));
        if self.programs.migrator.is_some_and(|migrator| clients.contains(&migrator)) {
            self.programs.migrator = None;
            let open: Vec<_> = self.programs.questions.drain().map(|(_, question)| question.client).collect();
            for client in open {
                self.refuse_question(client, "the migrator has gone");
            }
        }
    }

    /// Gives up what has waited for too long.
    pub(crate) fn programs_due(&mut self, now: Time) {
        self.on_waiting_room();
        let late = self.programs.questions.extract_if(|_, question| question.until <= now);
        for client in late.map(|(_, question)| question.client).collect::<Vec<_>>() {
            self.refuse_question(client, "the migrator has not answered in time");
        }
        for _ in self.programs.kept.expire(now) {
            self.tell(told!(SocketLapsed {}, "a socket that had waited for its program for too long was closed"));
        }
    }
}

/// A socket that is its client's, as if that had made it.
pub(crate) fn plain_socket(wanted: WantedSocket, client: Option<Credentials>) -> Result<OwnedFd, Failure> {
    let Some(client) = client else {
        return Err(Failure::new("the system does not say whose the socket is to be").code(Code::Denied));
    };
    let family = match wanted.family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    let (kind, protocol) = match wanted.kind {
        SocketKind::Stream => (SocketType::STREAM, ipproto::TCP),
        SocketKind::Datagram => (SocketType::DGRAM, ipproto::UDP),
    };
    let made = Owner::from(client).make(|| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol)));
    made.map_err(|error| Failure::new(error.to_string()))?.map_err(|error| failed("no socket can be made", error))
}

/// As bind(2).
pub(crate) fn bind(socket: BorrowedFd<'_>, address: SocketAddr) -> Answer {
    rustix::net::bind(socket, &address).map_err(|error| failed("it cannot be bound", error).on(address))?;
    let bound = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
    Ok(Some(Reply::Bound { address: bound.unwrap_or(address) }))
}

/// What the system said, for programs too.
fn failed(what: &str, error: Errno) -> Failure {
    let failure = Failure::new(format!("{what}: {error}"));
    match error {
        Errno::ADDRINUSE => failure.code(Code::InUse),
        Errno::ACCESS | Errno::PERM => failure.code(Code::Denied),
        Errno::MFILE | Errno::NFILE => failure.code(Code::TooMany),
        Errno::NOTSOCK => failure.code(Code::NotASocket),
        _ => failure,
    }
}
