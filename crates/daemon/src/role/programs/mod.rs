//! Sockets that programs ask for, and what they are called: what libwhimbrel stands on (decision 0018).

mod listing;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use whimbrel_ipc::{Code, Failure, MadeSocket, Process, Reply, WantedAnchor};
use whimbrel_kernel::process;
use whimbrel_protocol::Time;

use crate::api::Answer;
use crate::api::access::User;
use crate::api::desk::Desk;
use crate::api::server::ClientId;
use crate::api::sockets::WantedSocket;
use crate::clock;
use crate::closing::Received;
use crate::events::told;
pub(crate) use listing::sockets;

/// How long the migrator may take for an answer.
const MIGRATOR_WAIT: Duration = Duration::from_secs(2);

/// Questions to the migrator at a time.
const QUESTIONS: usize = 64;

/// What the daemon knows of programs that use their sockets' names.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Who is asked where sockets are to be anchored.
    migrator: Option<ClientId>,
    questions: HashMap<u64, Question>,
    last_question: u64,
}

/// Who waits for an answer of the migrator, and for what.
#[derive(Debug)]
struct Question {
    client: ClientId,
    wanted: WantedSocket,
    until: Time,
}

/// A socket that is to have the address of another host, or may be.
pub(crate) struct Anchored {
    pub(crate) client: ClientId,
    pub(crate) wanted: WantedSocket,
    pub(crate) anchor: String,
}

impl Programs {
    /// [`Request::Socket`](whimbrel_ipc::Request::Socket). `None`: the client is answered, now or later.
    pub(crate) fn make_socket(
        &mut self,
        desk: &mut Desk,
        id: ClientId,
        wanted: WantedSocket,
        anchor: &str,
    ) -> Result<Option<Anchored>, Failure> {
        match anchor.strip_prefix("policy:").map(str::parse) {
            None => make_anchored(desk, id, wanted, anchor),
            // SOCKMAND: policy 0 is the host itself.
            Some(Ok(0)) => make_anchored(desk, id, wanted, "self"),
            Some(Ok(policy)) => self.ask_migrator(desk, id, wanted, policy).map(|()| None),
            Some(Err(_)) => Err(Failure::new("a policy is a number").on(anchor).code(Code::Unknown)),
        }
    }

    /// [`Request::Migrator`](whimbrel_ipc::Request::Migrator). Its answers are requests, so it is heard on.
    pub(crate) fn be_migrator(&mut self, id: ClientId) -> Answer {
        if self.migrator.is_some_and(|other| other != id) {
            return Err(Failure::new("there is a migrator already").code(Code::InUse));
        }
        self.migrator = Some(id);
        Ok(Some(Reply::Migrator { wait_ms: u64::try_from(MIGRATOR_WAIT.as_millis()).unwrap_or(u64::MAX) }))
    }

    fn ask_migrator(
        &mut self,
        desk: &mut Desk,
        id: ClientId,
        wanted: WantedSocket,
        policy: u32,
    ) -> Result<(), Failure> {
        let Some(migrator) = self.migrator else {
            return Err(Failure::new("there is no migrator that knows this policy")
                .on(format!("policy:{policy}"))
                .code(Code::Unavailable)
                .hint("A program that decides where sockets are anchored says so (whimbrel(3), wb_migrator_open)."));
        };
        if self.questions.len() >= QUESTIONS {
            return Err(Failure::new("too many questions wait for the migrator").code(Code::TooMany));
        }
        self.last_question += 1;
        let question = self.last_question;
        let pid = desk.server.credentials(id).map_or(0, |who| who.pid);
        let process = Process { pid, name: process::name_of(pid) };
        let said =
            desk.server.say(migrator, &Reply::WantedAnchor(WantedAnchor { question, policy, process }), Vec::new());
        if !said {
            return Err(Failure::new("the migrator does not answer").code(Code::Unavailable));
        }
        let until = clock::now() + MIGRATOR_WAIT;
        self.questions.insert(question, Question { client: id, wanted, until });
        desk.server.answer_later(id);
        Ok(())
    }

    /// [`Request::Anchor`](whimbrel_ipc::Request::Anchor). What nobody has asked, or asks any more, is passed over.
    pub(crate) fn take_anchor(
        &mut self,
        desk: &mut Desk,
        id: ClientId,
        question: u64,
        anchor: Option<&str>,
    ) -> Option<Anchored> {
        let asked = if self.migrator == Some(id) { self.questions.remove(&question)? } else { return None };
        let none = || Failure::new("the migrator has no anchor for this policy").code(Code::Unavailable);
        let made = anchor.ok_or_else(none).and_then(|anchor| make_anchored(desk, asked.client, asked.wanted, anchor));
        made.unwrap_or_else(|failure| {
            desk.reply(asked.client, Err(failure));
            None
        })
    }

    /// Of clients that may have asked for any of this, or be the migrator.
    pub(crate) fn clients_gone(&mut self, desk: &mut Desk, clients: &[ClientId]) {
        self.questions.retain(|_, question| !clients.contains(&question.client));
        if self.migrator.is_some_and(|migrator| clients.contains(&migrator)) {
            self.migrator = None;
            for (_, question) in self.questions.drain() {
                refuse(desk, question.client, "the migrator has gone");
            }
        }
    }

    /// Gives up what has waited for too long.
    pub(crate) fn handle_timeout(&mut self, desk: &mut Desk, now: Time) {
        for (_, question) in self.questions.extract_if(|_, question| question.until <= now) {
            refuse(desk, question.client, "the migrator has not answered in time");
        }
        for _ in desk.kept.expire(now) {
            desk.tell(told!(SocketLapsed {}, "a socket that had waited for its program for too long was closed"));
        }
    }
}

fn make_anchored(
    desk: &mut Desk,
    client: ClientId,
    wanted: WantedSocket,
    anchor: &str,
) -> Result<Option<Anchored>, Failure> {
    match anchor {
        "self" if wanted.hidden => {
            let failure = Failure::new("this host cannot hide a socket behind itself").on(anchor);
            Err(failure.code(Code::Unavailable))
        }
        "self" => desk.make_own_socket(client, wanted).map(|_| None),
        // Where such a socket is, its anchor alone is told.
        _ => Ok(Some(Anchored { client, wanted, anchor: anchor.to_owned() })),
    }
}

fn refuse(desk: &mut Desk, client: ClientId, what: &str) {
    desk.reply(client, Err(Failure::new(what).code(Code::Unavailable)));
}

/// [`Request::Export`](whimbrel_ipc::Request::Export).
pub(crate) fn export_socket(desk: &mut Desk, id: ClientId, socket: Received) -> Answer {
    let uuid = desk.names.of(socket.as_fd())?;
    let user = User::of(desk.server.credentials(id));
    let wait = desk.kept.keep(clock::now(), uuid, socket, user)?;
    Ok(Some(Reply::Exported { uuid, wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) }))
}

/// [`Request::Rebuild`](whimbrel_ipc::Request::Rebuild).
pub(crate) fn rebuild_socket(desk: &mut Desk, id: ClientId, name: &str) -> Answer {
    let (uuid, socket) = desk.kept.take(name, User::of(desk.server.credentials(id)))?;
    let reply = Reply::Socket(MadeSocket { uuid, anchor: "self".to_owned() });
    desk.server.reply_with(id, &reply, vec![socket.into_inner()]);
    Ok(None)
}
