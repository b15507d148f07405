//! Sockets that change hosts: what programs ask for, and what they are told of it.

mod left_over;
mod listening;
mod prepared;
mod processes;
mod receivers;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use whimbrel_datapath::Most;
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure, Kept, Moved, PeerName, Received, Reply, State, Uuid, WAITS_FOR};
use whimbrel_protocol::{
    Gift, HostView, MoveEvent, MoveName, MoveOp, Node, NotGiven, OpFailed, OpId, Refusal, Rented, Retiring, Settling,
    Time,
};
use whimbrel_wire::community::MemberStanding;
use whimbrel_wire::snapshot::{Family, Metadata};
use whimbrel_wire::{FlowTuple, Transport};

use crate::api::server::ClientId;
use crate::api::{Answer, views};
use crate::event_loop::{EventLoop, FLOW_TICK};
use crate::events::{Causer, Kind, Report, told};
use crate::host::inventory::flows::why_bound_to_host;
use crate::host::inventory::servers;
use crate::host::own_addresses;
use crate::host::refusal::sentence;
use crate::reactor::LoopError;
use crate::role::anchor::api::reason_of;
use crate::role::relocation::executor::{Arrived, Known, NotDuplicated};
use crate::{clock, closing};
use listening::Followed;
use prepared::Prepared;
use processes::ProcessJob;
use receivers::Receiver;

/// What the control socket's clients wait for.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Moves that were asked for here.
    jobs: HashMap<MoveName, Job>,
    /// Moves that are to be when their programs say so.
    prepared: HashMap<MoveName, Prepared>,
    /// Clients that asked for several, with how many are not decided.
    open: HashMap<ClientId, usize>,
    receivers: HashMap<ClientId, Receiver>,
    /// Processes that are to be moved, by the numbers of their first.
    processes: HashMap<u32, ProcessJob>,
    /// Sockets that listen and have gone.
    retiring: Retiring<Followed>,
    /// Sockets that have gone, and of which nothing has been heard since.
    unheard: left_over::Unheard,
    /// Sockets that have come and were not told of yet.
    come: HashMap<MoveName, Come>,
    /// Sockets without another end that are to rest.
    settling: Settling<(OpId, MoveOp)>,
}

/// A socket that has come.
#[derive(Clone, Copy, Debug)]
struct Come {
    flow: FlowTuple,
    /// For the program that asks for it by its name.
    waits: bool,
}

impl Come {
    /// What becomes of it here, for people.
    fn sentence(&self) -> String {
        if !self.waits {
            return "goes on here".to_owned();
        }
        // Which is not told: who may follow events need not be whose it is.
        format!("waits here, for {} minutes, for the program that takes it by its name", WAITS_FOR.as_secs() / 60)
    }
}

/// What somebody wants to become of a socket.
#[derive(Clone, Debug)]
pub(crate) struct MoveRequest {
    client: ClientId,
    family: Family,
    acceptor: PublicKey,
    receiver: Option<String>,
    /// The numbers of the options that the socket has.
    options: Vec<u16>,
    /// It is to go when that is said, and not now.
    prepares: bool,
}

impl MoveRequest {
    /// Of a socket whose options are not known yet, and which is to go now.
    fn new(client: ClientId, family: Family, acceptor: PublicKey, receiver: Option<String>) -> Self {
        Self { client, family, acceptor, receiver, options: Vec::new(), prepares: false }
    }
}

/// A move that somebody asked for.
#[derive(Clone, Debug)]
struct Job {
    client: ClientId,
    flow: FlowTuple,
    uuid: Uuid,
    receiver: Option<String>,
    /// What the kernel said of its socket, where that could not be written down.
    unmovable: Option<String>,
}

/// Waits for processes and namespaces.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    this.reactor.on(this.effects.processes.wake(), |this| this.handle_processes(clock::now()))?;
    this.reactor.on(this.effects.namespaces_wake(), |this| this.handle_namespaces(clock::now()))?;
    this.reactor.every(clock::now(), FLOW_TICK, |this, now| {
        this.handle_processes(now);
        this.retire_listeners(now);
    });
    Ok(())
}

impl EventLoop {
    /// Namespaces that a thread has made, and what waited for them.
    pub(crate) fn handle_namespaces(&mut self, now: Time) {
        let Self { effects, node, .. } = self;
        for (id, answer) in effects.handle_namespaces(now, |key| known(node, key)) {
            node.handle_done(now, id, answer);
        }
    }

    /// [`Request::Move`](whimbrel_ipc::Request::Move): an answer for each socket as it is decided
    /// ([`Server::say`](crate::api::server::Server::say)), then the end
    /// ([`Server::reply`](crate::api::server::Server::reply)).
    pub(crate) fn move_sockets(
        &mut self,
        id: ClientId,
        connections: &[String],
        to: &str,
        receiver: Option<String>,
    ) -> Answer {
        // Those that were opened this instant count.
        self.handle_datapath_events(clock::now(), Most::OF_SOCKETS);
        self.handle_udp(clock::now());
        let acceptor = self.host(to)?;
        let flows = self.sockets_named(connections)?;
        self.server.answer_later(id);
        let now = clock::now();
        let names = &self.programs.names;
        let name = |socket: BorrowedFd<'_>| names.of(socket).map_or([0; 16], |uuid| *uuid.as_bytes());
        let duplicated =
            self.effects.relocation.borrow_sockets(&self.effects.helping, &mut self.effects.host, now, &flows, name);
        self.moves.open.insert(id, flows.len());
        for flow in flows {
            match duplicated.get(&flow) {
                Some(Ok(family)) => {
                    let move_request = MoveRequest::new(id, *family, acceptor, receiver.clone());
                    self.give_duplicated(flow, move_request);
                }
                Some(Err(why)) => self.reply_kept(id, flow, [0; 16], &why.to_string()),
                None => self.reply_kept(id, flow, [0; 16], "its socket was not found"),
            }
        }
        Ok(None)
    }

    /// [`Request::Give`](whimbrel_ipc::Request::Give): `socket` may be anything.
    pub(crate) fn give_socket(
        &mut self,
        id: ClientId,
        socket: closing::Received,
        to: &str,
        receiver: Option<String>,
        state: State,
    ) -> Answer {
        let acceptor = self.host(to)?;
        let uuid = self.programs.names.of(socket.as_fd())?;
        let flow = self.flow_given(&socket)?;
        self.server.answer_later(id);
        let metadata = Metadata { uuid: *uuid.as_bytes(), state: state.into_bytes() };
        let family = self.effects.relocation.take_given(&mut self.effects.host, clock::now(), flow, socket, metadata);
        self.give_duplicated(flow, MoveRequest::new(id, family, acceptor, receiver));
        Ok(None)
    }

    /// The connection that a descriptor is one end of, or the socket without another end that it is: one that has all
    /// addresses goes with that by which `whimbrel connections` names it.
    fn flow_given(&mut self, socket: &OwnedFd) -> Result<FlowTuple, Failure> {
        let mut flow = flow_of(socket)?;
        if flow.is_unconnected() && flow.local.ip().is_unspecified() {
            let inside = self.effects.host.namespace_with(socket.as_fd()).map(|(address, _)| address);
            let met = inside.or_else(|| servers::met_at(flow.local.ip(), &self.met_at()).first().copied());
            let Some(address) = met else {
                let why = "the socket has all addresses of this host, which has none now that it could be met at";
                return Err(Failure::new(why).code(Code::Unavailable));
            };
            flow = FlowTuple::unconnected(flow.transport, SocketAddr::new(address, flow.local.port()));
        }
        if self.effects.host.shares_its_end(&flow) {
            return Err(Failure::new(NotDuplicated::Shared.to_string()).on(flow.local).code(Code::NotSupported));
        }
        match self.effects.host.has_flow(&flow, socket.as_fd()) {
            Ok(true) => Ok(flow),
            Ok(false) => Err(Failure::new(NOT_ITS_OWN).on(views::flow(flow).called()).code(Code::NotSupported)),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    /// Nothing goes from here any more that can be called back, as this daemon stops.
    pub(crate) fn call_moves_back(&mut self) {
        let now = clock::now();
        let names: Vec<MoveName> = self.moves.jobs.keys().chain(self.moves.prepared.keys()).copied().collect();
        names.into_iter().for_each(|name| self.node.cancel_move(now, name));
        self.call_processes_back(now);
    }

    /// Of clients that may have asked for any of this. What they wait for is not told.
    pub(crate) fn clients_gone(&mut self, clients: &[ClientId]) {
        for client in clients {
            self.forget_receiver(*client);
            self.moves.open.remove(client);
        }
    }

    /// The same once it is known which options the socket has: one that cannot go stays before anything is done with
    /// it.
    fn give_duplicated(&mut self, flow: FlowTuple, move_request: MoveRequest) {
        match self.effects.relocation.options_of_duplicated(&mut self.effects.host, &flow) {
            Ok(options) => self.give(flow, MoveRequest { options, ..move_request }),
            Err(failed) => {
                let uuid = self.effects.relocation.uuid_of(&flow).unwrap_or_default();
                self.return_requested(clock::now(), &flow, &move_request);
                self.reply_kept(move_request.client, flow, uuid, &failed.sentence);
            }
        }
    }

    /// Has the node give a socket away that the effects have.
    fn give(&mut self, flow: FlowTuple, move_request: MoveRequest) {
        if let Some(why) = self.why_bound_here(&flow) {
            let uuid = self.effects.relocation.uuid_of(&flow).unwrap_or_default();
            self.return_requested(clock::now(), &flow, &move_request);
            return self.reply_kept(move_request.client, flow, uuid, &why);
        }
        let came = flow.is_unconnected() && self.has_endpoint(&flow);
        if let Some(move_request) = if came { Some(move_request) } else { self.claim_first(flow, move_request) } {
            self.fulfil(flow, move_request);
        }
    }

    /// Why a socket would be of no use on another host, if it is so.
    fn why_bound_here(&self, flow: &FlowTuple) -> Option<String> {
        let own = own_addresses(&self.effects.host.network);
        why_bound_to_host(flow, &|address| own.contains(&address))
    }

    /// Whether the endpoint of a socket without another end came here with it by a move, or was claimed.
    fn has_endpoint(&self, flow: &FlowTuple) -> bool {
        self.node.rented().any(|of: Rented| of.ends.contain(flow.local) && of.moved == Some(flow.transport))
    }

    /// A connection that was waited for is a flow of its anchor's, or cannot be.
    pub(crate) fn go_on_with(&mut self, flow: FlowTuple, move_request: MoveRequest, claimed: Result<(), Refusal>) {
        match claimed {
            Ok(()) => self.fulfil(flow, move_request),
            Err(why) => {
                let uuid = self.effects.relocation.uuid_of(&flow).unwrap_or_default();
                self.return_requested(clock::now(), &flow, &move_request);
                self.reply_kept(move_request.client, flow, uuid, sentence(why));
            }
        }
    }

    fn fulfil(&mut self, flow: FlowTuple, move_request: MoveRequest) {
        let now = clock::now();
        let uuid = self.effects.relocation.uuid_of(&flow).unwrap_or_default();
        if self.is_stopping() {
            self.return_requested(now, &flow, &move_request);
            return self.reply_kept(move_request.client, flow, uuid, STOPPING);
        }
        let begun = match self.take_prepared(now, &flow, &move_request) {
            Some(name) => Ok(name),
            None => self.begin_move(now, flow, &move_request),
        };
        match begun {
            Ok(name) if move_request.prepares => self.on_preparing(name, flow, move_request),
            Ok(name) => {
                let MoveRequest { client, receiver, .. } = move_request;
                self.moves
                    .jobs
                    .insert(name, Job { client, flow, uuid: Uuid::from_bytes(uuid), receiver, unmovable: None });
            }
            Err(why) => {
                self.return_requested(now, &flow, &move_request);
                self.reply_kept(move_request.client, flow, uuid, &not_given(why, &flow));
            }
        }
    }

    fn begin_move(&mut self, now: Time, flow: FlowTuple, move_request: &MoveRequest) -> Result<MoveName, NotGiven> {
        let (name, holder_at) = self.node.holder_of(&flow);
        let gift = Gift {
            tuple: flow,
            family: move_request.family,
            size: SNAPSHOT_USUAL,
            options: move_request.options.clone(),
            receiver: move_request.receiver.as_deref().unwrap_or(WAITING_ROOM).as_bytes().to_vec(),
            flow: name,
            holder_at,
            acceptor: move_request.acceptor,
            acceptor_at: None,
            after: None,
        };
        match move_request.prepares {
            true => self.node.prepare_socket(now, gift),
            false => self.node.give_socket(now, gift),
        }
    }

    /// A socket is not to go, or not to be prepared, after all.
    fn return_requested(&mut self, now: Time, flow: &FlowTuple, move_request: &MoveRequest) {
        match move_request.prepares {
            true => self.effects.relocation.forget_gift(&mut self.effects.host, now, flow),
            false => self.effects.relocation.return_socket(&mut self.effects.host, now, flow),
        }
    }

    /// Sockets that have come are handed to their programs.
    pub(crate) fn hand_over(&mut self) {
        for Arrived { name, receiver, flow, socket, metadata } in self.effects.relocation.take_arrived() {
            let called = Uuid::from_bytes(metadata.uuid);
            let is_taken = self.programs.kept.has_other(&called, socket.as_fd());
            if !is_taken {
                self.programs.names.learn(socket.as_fd(), called);
            }
            // By the name that it has here, where its own is that of another socket which waits.
            let uuid = self.programs.names.of(socket.as_fd()).unwrap_or(called);
            self.moves.come.insert(name, Come { flow, waits: receiver.is_empty() });
            if is_taken {
                let sentence = "is called otherwise than where it comes from: another one waits by its name";
                self.tell(Report::of_socket(Kind::SocketRenamed, Some(flow), sentence.to_owned()));
            }
            if receiver.is_empty() {
                // A program asks for it by its name.
                if self.programs.kept.put(clock::now(), uuid, socket.into()).is_err() {
                    tracing::warn!(%flow, "a socket that has come is closed: another one waits by its name");
                }
                self.on_waiting_room();
                continue;
            }
            let client = self.moves.receivers.iter().find(|(_, of)| of.is_called(&receiver));
            let Some((client, name_here)) = client.map(|(client, of)| (*client, of.name().to_owned())) else {
                continue;
            };
            let received = Received {
                name: name_here,
                from: self.peer_name(&PublicKey::from(name.donor)),
                flow: views::flow(flow),
                uuid,
                state: State::new(metadata.state).unwrap_or_default(),
            };
            // Of a program that has gone meanwhile the socket is closed, as its own would be.
            self.server.hand(client, &Reply::Received(Box::new(received)), vec![socket]);
            self.watch_client(client);
            self.on_backlog(client);
        }
    }

    /// Sockets may have come to wait for their programs, or have gone.
    pub(crate) fn on_waiting_room(&mut self) {
        self.effects.relocation.set_full(WAITING_ROOM.as_bytes(), self.programs.kept.is_full());
    }

    /// A socket could not be frozen, or not be written down. The node knows of it by a number only.
    pub(crate) fn on_unmovable(&mut self, name: &MoveName, failed: &OpFailed) {
        if let Some(job) = self.moves.jobs.get_mut(name) {
            job.unmovable.get_or_insert_with(|| failed.sentence.clone());
        }
    }

    /// What has become of a move.
    pub(crate) fn on_move(&mut self, event: MoveEvent) {
        let now = clock::now();
        match event {
            MoveEvent::Loaded { name, bytes } => return self.effects.processes.prepare(name, bytes),
            MoveEvent::LoadAnswered { from, number, standing, sentence } => {
                return self.on_load_answered(from, number, standing, sentence);
            }
            _ => {}
        }
        if self.on_move_of_process(&event) {
            return;
        }
        let told = match &event {
            MoveEvent::Given { name, to } => {
                let job = self.moves.jobs.remove(name);
                let (key, to) = (*to, self.peer_name(to));
                let flow = job.as_ref().map(|job| job.flow);
                self.retire(now, *name, key, job.as_ref());
                if let Some(Job { client, flow, uuid, .. }) = job {
                    // What was kept of it for its program is of no use any more.
                    self.programs.kept.forget(&uuid);
                    let moved = Moved { flow: views::flow(flow), uuid, to: to.clone() };
                    self.reply_decided(client, &Reply::Moved(moved));
                }
                Report::of_socket(Kind::SocketGiven, flow, format!("is with {to} now"))
            }
            MoveEvent::Prepared { name } => match self.on_prepared(name) {
                Some(told) => told,
                None => return,
            },
            MoveEvent::Kept { name, why } if self.moves.prepared.contains_key(name) => {
                match self.on_unprepared(now, name, *why) {
                    Some(told) => told,
                    None => return,
                }
            }
            MoveEvent::Kept { name, why } => {
                let job = self.moves.jobs.remove(name);
                let flow = job.as_ref().map(|job| job.flow);
                let unmovable = job.as_ref().and_then(|job| job.unmovable.clone());
                let reason = unmovable.unwrap_or_else(|| sentence(*why).to_owned());
                if let Some(Job { client, flow, uuid, .. }) = job {
                    self.effects.relocation.return_socket(&mut self.effects.host, now, &flow);
                    self.reply_kept(client, flow, *uuid.as_bytes(), &reason);
                }
                Report::of_socket(Kind::SocketKept, flow, format!("stays here: {reason}"))
            }
            MoveEvent::LostThere { name, to, why, snapshot } => self.on_lost_there(now, name, to, *why, snapshot),
            MoveEvent::HeardOf { name, to, outcome } => self.on_heard_of(name, to, *outcome),
            MoveEvent::Undecided { name, holder } => {
                let flow = self.moves.jobs.get(name).map(|job| job.flow);
                let who = self.called(holder);
                Report::of_socket(Kind::SocketUndecided, flow, format!("rests, since {who} does not say whose it is"))
            }
            MoveEvent::Taken { name } => {
                let come = self.moves.come.remove(name);
                let flow = come.map(|come| come.flow).or_else(|| self.effects.relocation.flow_of(name));
                let sentence = come.map_or_else(|| "goes on here".to_owned(), |come| come.sentence());
                Report::of_socket(Kind::SocketTaken, flow, sentence)
            }
            MoveEvent::NotTaken { name, why } => {
                let flow = self.effects.relocation.flow_of(name);
                let sentence = format!("does not come here: {}", sentence_here(*why));
                Report::of_socket(Kind::SocketNotTaken, flow, sentence).by(Causer::Host(name.donor.into()))
            }
            MoveEvent::Rebound { flow, far } => {
                if flow.peer() == self.node.public_key() {
                    // What is at home again need not be held: another move of it has another name.
                    self.node.end_held_flow(now, *flow);
                }
                let sentence = format!("has its other end with {} now", self.called(&flow.peer()));
                Report::of_socket(Kind::FlowRebound, *far, sentence).by(Causer::Host(flow.peer()))
            }
            MoveEvent::Lost { name } => {
                let job = self.moves.jobs.remove(name);
                let flow = job.as_ref().map(|job| job.flow).or_else(|| self.effects.relocation.flow_of(name));
                if let Some(Job { client, flow, uuid, .. }) = job {
                    self.reply_lost(client, flow, uuid, "its host has lost it, and the connection is over", false);
                }
                Report::of_socket(Kind::SocketLost, flow, "is lost, and its connection over".to_owned())
            }
            // Taken in above.
            MoveEvent::Loaded { .. } | MoveEvent::LoadAnswered { .. } => return,
            MoveEvent::Lent { to, ends } => {
                let count = match ends.count {
                    0 => "all of it".to_owned(),
                    count => format!("{count} from port {}", ends.first.port()),
                };
                let (address, called) = (ends.first.ip(), self.called(to));
                told!(Lent { tenant: to, ends: ends.first }, "{address} is lent to {called}: {count}")
                    .by(Causer::Host(*to))
            }
            MoveEvent::LeaseOver { to } => {
                told!(LeaseOver { tenant: to }, "{} has one lease less", self.called(to)).by(Causer::Host(*to))
            }
            MoveEvent::Leased { number, anchor, ends } => self.on_leased(*number, *anchor, *ends),
            MoveEvent::NotLeased { number, anchor, ends, why, offered } => {
                match self.on_not_leased(*number, *anchor, *why, &reason_of(*why, ends, offered)) {
                    Some(told) => told,
                    None => return,
                }
            }
            MoveEvent::Reached { anchor, ends, reached } => {
                self.on_reached(*anchor, *ends, *reached).by(Causer::Host(*anchor))
            }
            MoveEvent::Returned { number, anchor } => self.on_returned(*number, *anchor),
            MoveEvent::Claimed { tuple, outcome } => match self.on_claimed(*tuple, *outcome) {
                Some(told) => told,
                None => return,
            },
            // Whoever can have it fail can have it fail again.
            MoveEvent::OpFailed { what, error } => {
                told!(OpFailed { what, error }, "{what} failed: {error}").by(Causer::Strangers)
            }
        };
        self.tell_restrained(now, told);
    }

    /// A socket has gone to a host where it does not go on, or does not say so (P-145). What was in it is kept here.
    fn on_lost_there(&mut self, now: Time, name: &MoveName, to: &PublicKey, why: Refusal, snapshot: &[u8]) -> Report {
        let job = self.moves.jobs.remove(name);
        self.retire(now, *name, *to, job.as_ref());
        let uuid = job.as_ref().map_or(Uuid::from_bytes([0; 16]), |job| job.uuid);
        let flow = job.as_ref().map(|job| job.flow);
        let kept = left_over::keep(&self.settings.state_dir, &uuid, snapshot);
        let unheard = why == Refusal::AcceptorUnreached;
        if unheard {
            self.moves.unheard.add(*name, flow, kept.as_deref().unwrap_or_default());
        }
        let left = left_over::sentence(kept);
        let to = self.called(to);
        let reason = match unheard {
            true => format!("it is with {to}, which has not said that it goes on there; {left}"),
            false => format!("{to} could not let it go on (its log says why), and it is over at both ends; {left}"),
        };
        if let Some(Job { client, flow, uuid, .. }) = job {
            self.programs.kept.forget(&uuid);
            self.reply_lost(client, flow, uuid, &reason, unheard);
        }
        let becomes = if unheard { "may be lost" } else { "is lost" };
        Report::of_socket(Kind::SocketLost, flow, format!("{becomes}: {reason}"))
    }

    /// A host says after all what has become of a socket. What was kept of one that goes on is of no use any more.
    fn on_heard_of(&mut self, name: &MoveName, to: &PublicKey, outcome: Result<(), Refusal>) -> Report {
        let (flow, files) = self.moves.unheard.take(name);
        let to = self.called(to);
        match outcome {
            Ok(()) => {
                left_over::remove(&files);
                Report::of_socket(Kind::SocketGiven, flow, format!("goes on with {to}, which says so only now"))
            }
            Err(_) => {
                let left = left_over::sentence(Ok(files));
                Report::of_socket(Kind::SocketLost, flow, format!("is lost: {to} says so only now; {left}"))
            }
        }
    }

    /// What is left of a socket that listened goes as soon as nothing comes to it any more.
    fn retire(&mut self, now: Time, name: MoveName, to: PublicKey, job: Option<&Job>) {
        if job.is_none_or(|job| job.flow.listens()) {
            // Of a move that a daemon before this one began it is not known for whom it was.
            let receiver = job.and_then(|job| job.receiver.clone());
            self.moves.retire(now, name, to, receiver);
            self.retire_listeners(now);
        }
    }

    fn reply_kept(&mut self, id: ClientId, flow: FlowTuple, uuid: [u8; 16], reason: &str) {
        let reason = reason.to_owned();
        let kept = Kept { flow: views::flow(flow), uuid: Uuid::from_bytes(uuid), reason, lost: false, unheard: false };
        self.reply_decided(id, &Reply::Kept(kept));
    }

    fn reply_lost(&mut self, id: ClientId, flow: FlowTuple, uuid: Uuid, reason: &str, unheard: bool) {
        let kept = Kept { flow: views::flow(flow), uuid, reason: reason.to_owned(), lost: true, unheard };
        self.reply_decided(id, &Reply::Kept(kept));
    }

    /// One of the sockets that a client asked for is decided. It is answered whole once all are.
    fn reply_decided(&mut self, id: ClientId, reply: &Reply) {
        match self.moves.open.get_mut(&id) {
            Some(open) => {
                *open -= 1;
                let over = *open == 0;
                self.server.say(id, reply, Vec::new());
                if over {
                    self.moves.open.remove(&id);
                    self.server.reply(id, &Reply::End { newest: self.events.newest() });
                }
            }
            None => self.server.reply(id, reply),
        }
        self.serve(id);
    }

    /// The host that this names.
    pub(crate) fn host(&self, wanted: &str) -> Result<PublicKey, Failure> {
        let peers = self.node.peers().filter(|view| views::names(view, wanted)).map(|view| view.key);
        let mut found: Vec<PublicKey> = peers.collect();
        let community = self.node.community(clock::now());
        found.extend(community.called(wanted).into_iter().map(|host| host.key));
        found.sort_unstable();
        found.dedup();
        match found[..] {
            [key] => Ok(key),
            [] if community.standing == Some(MemberStanding::Revoked) => {
                Err(Failure::new("no host is known by this: this one was revoked from its community")
                    .on(wanted)
                    .code(Code::Unknown)
                    .hint("`whimbrel community join` takes it back, with a new code."))
            }
            [] => Err(Failure::new("no host is known by this")
                .on(wanted)
                .code(Code::Unknown)
                .hint("A peer's number, key or address, or its name in the community: `whimbrel peers` and `whimbrel community list`.")),
            _ => Err(Failure::new("this names several hosts")
                .on(wanted)
                .hint("The number or key of one names it alone: `whimbrel peers` and `whimbrel community list`.")),
        }
    }

    /// A host, as it is named to clients.
    pub(crate) fn peer_name(&self, key: &PublicKey) -> PeerName {
        let known = self.node.peers().find(|view| view.key == *key);
        let mut found =
            known.map_or_else(|| PeerName { id: 0, key: key.to_string(), name: None }, |view| views::name(&view));
        found.name = self.node.name_of_member(key).map(str::to_owned);
        found
    }

    /// A host, as people name it.
    pub(crate) fn called(&self, key: &PublicKey) -> String {
        self.peer_name(key).to_string()
    }

    /// What hosts of the community are called, by their keys.
    pub(crate) fn names_of_members(&self) -> HashMap<String, String> {
        let hosts = self.node.community(clock::now()).hosts;
        let named = |host: &HostView| Some((host.key.to_string(), self.node.name_of_member(&host.key)?.to_owned()));
        hosts.iter().filter_map(named).collect()
    }
}

/// Where a socket goes that no program has been named for.
const WAITING_ROOM: &str = "";
/// Room that an acceptor is asked for, in bytes: what most sockets need. It makes more where one needs more.
const SNAPSHOT_USUAL: u32 = 16 * 1024;

/// The connection that a descriptor is one end of, or the socket without another end, by what it is bound to.
/// What the carrying out of a move's ops has to know of the peer with a key.
pub(crate) fn known(node: &Node, key: &PublicKey) -> Option<Known> {
    node.peer_with(key).map(|(peer, round_trip)| Known { peer, round_trip })
}

fn flow_of(socket: &OwnedFd) -> Result<FlowTuple, Failure> {
    use rustix::net::{SocketType, getpeername, getsockname, sockopt};
    let refused = |what: &str, code| Failure::new(what.to_owned()).code(code);
    let kind =
        sockopt::socket_type(socket.as_fd()).map_err(|_| refused("the descriptor is no socket", Code::NotASocket))?;
    let transport = match kind {
        SocketType::STREAM => Transport::Tcp,
        SocketType::DGRAM => Transport::Udp,
        _ => return Err(refused("only sockets of TCP and UDP can be moved", Code::NotSupported)),
    };
    let endpoint = |name: Result<rustix::net::SocketAddrAny, rustix::io::Errno>| -> io::Result<SocketAddr> {
        let name = SocketAddr::try_from(name?).map_err(io::Error::from)?;
        // An IPv6 socket that talks IPv4 has a flow of IPv4.
        Ok(SocketAddr::new(name.ip().to_canonical(), name.port()))
    };
    let local = endpoint(getsockname(socket))
        .map_err(|_| refused("only sockets of TCP and UDP can be moved", Code::NotSupported))?;
    let remote = getpeername(socket).and_then(|name| name.ok_or(rustix::io::Errno::NOTCONN));
    let waits = || transport == Transport::Udp || sockopt::socket_acceptconn(socket.as_fd()).unwrap_or(false);
    if remote == Err(rustix::io::Errno::NOTCONN) && local.port() != 0 && waits() {
        return Ok(FlowTuple::unconnected(transport, local));
    }
    let remote = endpoint(remote).map_err(|_| refused("the socket is not connected", Code::NotSupported))?;
    Ok(FlowTuple { transport, local, remote })
}

/// Why this host does not give a socket, for people.
fn not_given(why: NotGiven, flow: &FlowTuple) -> String {
    match why {
        NotGiven::Stranger if flow.is_unconnected() => format!("{why}: {INVITE}"),
        NotGiven::Stranger => {
            let FlowTuple { local, remote, .. } = flow;
            format!(
                "{why}: {INVITE}, `whimbrel community grant {local}`, or `grant {remote}` where other connections have that end too, lets it \
                 have this one"
            )
        }
        _ => why.to_string(),
    }
}

/// Why a socket is not taken from its program.
const NOT_ITS_OWN: &str = "the socket is not the one that has this on this host: it is in a network namespace that is neither the host's nor \
     Whimbrel's, or bound to an interface";
/// Why nothing goes from here.
const STOPPING: &str = "the daemon was asked to stop";
/// What makes a stranger a host that sockets can be given to.
pub(crate) const INVITE: &str = "`whimbrel community invite` has it join";

/// Why this host does not do its part as the one that a socket was to come to, for its own people.
fn sentence_here(why: Refusal) -> &'static str {
    match why {
        Refusal::NotAllowed => {
            "this host takes no sockets from that one: the two are of no community, and no grant says otherwise (`whimbrel community`)"
        }
        Refusal::NoRoom => "this host has no room for it",
        Refusal::NoFamily => "this host does not have its address family",
        Refusal::NoRights => "this host may not rebuild sockets: its daemon lacks a right (`whimbrel doctor`)",
        Refusal::NoOption => {
            "this host does not set an option that it has, as one that needs a privilege (`privileged_options`): its log says which"
        }
        Refusal::Taken => "its address and port are taken on this host",
        Refusal::NobodyReceives => {
            "no program on this host receives it under this name (`whimbrel receive`, or one with libwhimbrel; names of other users than root \
             begin with theirs: `USER/NAME`)"
        }
        Refusal::BadSnapshot => "this host could not read it",
        Refusal::NotRestored => "this host could not rebuild it: its log says why",
        Refusal::NotWoken => "this host could not let it go on",
        Refusal::FarEnd => "its far end is on this host itself",
        why => sentence(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_have_a_connection_may_be_granted_it_by_either_end() {
        let [local, remote] = ["192.0.2.1:40000", "10.51.4.7:7000"].map(|end| end.parse().expect("endpoint"));
        let said = not_given(NotGiven::Stranger, &FlowTuple { transport: Transport::Tcp, local, remote });
        assert!(said.contains("grant 192.0.2.1:40000`, or `grant 10.51.4.7:7000`"), "{said}");
        let said = not_given(NotGiven::Stranger, &FlowTuple::unconnected(Transport::Tcp, local));
        assert!(said.contains("community invite") && !said.contains("grant "), "a server is not granted: {said}");
    }

    #[test]
    fn who_is_to_have_a_socket_speaks_of_itself() {
        let here = [
            Refusal::NotAllowed,
            Refusal::NoRoom,
            Refusal::NoFamily,
            Refusal::NoRights,
            Refusal::NoOption,
            Refusal::Taken,
            Refusal::NobodyReceives,
            Refusal::BadSnapshot,
            Refusal::NotRestored,
            Refusal::NotWoken,
            Refusal::FarEnd,
        ];
        for why in here {
            assert!(sentence_here(why).contains("this host"), "{why:?}: {}", sentence_here(why));
            assert!(!sentence_here(why).contains("other host"), "{why:?}: {}", sentence_here(why));
        }
        assert!(sentence(Refusal::NobodyReceives).contains("no program on the other host"));
    }
}
