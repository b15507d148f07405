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
use std::path::PathBuf;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure, Kept, Moved, Received, Reply, State, Uuid, WAITS_FOR};
use whimbrel_protocol::{
    Gift, MoveEvent, MoveName, MoveOp, Node, NotGiven, OpFailed, OpId, Refusal, Rented, Retiring, Settling, Time,
};
use whimbrel_wire::snapshot::{Family, Metadata};
use whimbrel_wire::{FlowTuple, Transport};

use super::executor::{Arrived, Known, NotDuplicated};
use crate::api::Answer;
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::api::views;
use crate::effects::Effects;
use crate::events::{Causer, Kind, Report, told};
use crate::host::inventory::flows::why_bound_to_host;
use crate::host::inventory::servers;
use crate::host::refusal::sentence;
use crate::{clock, closing};
use processes::{Asked, ProcessJob};
use receivers::Receiver;

/// What the control socket's clients wait for.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Where what was in sockets that are lost is kept.
    state_dir: PathBuf,
    /// Nothing is begun any more.
    stopping: bool,
    /// Moves that were asked for here.
    jobs: HashMap<MoveName, Job>,
    /// Moves that are to be when their programs say so.
    prepared: HashMap<MoveName, Prepared>,
    /// Clients that asked for several, with how many are not decided.
    open: HashMap<ClientId, usize>,
    receivers: HashMap<ClientId, Receiver>,
    /// Moves that wait for their connections to be flows of their anchors'.
    claiming: HashMap<FlowTuple, MoveRequest>,
    /// Processes that are looked at since somebody wants to have them moved.
    asked: HashMap<u32, Asked>,
    /// Processes that are to be moved, by the numbers of their first.
    processes: HashMap<u32, ProcessJob>,
    /// Those of them whose connections are to be named now.
    quiet: Vec<u32>,
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

/// One of them.
#[derive(Debug)]
struct Prepared {
    flow: FlowTuple,
    acceptor: PublicKey,
    receiver: Option<String>,
    /// Who waits to be told that all are ready.
    client: Option<ClientId>,
}

/// To whom those go that nobody has accepted, and under which name.
#[derive(Debug)]
struct Followed {
    to: PublicKey,
    receiver: Option<String>,
}

impl Moves {
    pub(crate) fn new(state_dir: PathBuf) -> Self {
        Self { state_dir, ..Self::default() }
    }

    /// [`Request::Move`](whimbrel_ipc::Request::Move): an answer for each socket as it is decided
    /// ([`Server::say`](crate::api::server::Server::say)), then the end
    /// ([`Server::reply`](crate::api::server::Server::reply)).
    pub(crate) fn move_sockets(
        &mut self,
        with: &mut With<'_, Effects>,
        id: ClientId,
        connections: &[String],
        to: &str,
        receiver: Option<String>,
    ) -> Answer {
        let acceptor = with.desk.host_named(to)?;
        let flows = self.sockets_named(with.desk, connections)?;
        with.desk.server.answer_later(id);
        let now = clock::now();
        let Desk { names, host, .. } = with.desk;
        let name = |socket: BorrowedFd<'_>| names.of(socket).map_or([0; 16], |uuid| *uuid.as_bytes());
        let duplicated =
            with.own.relocation.borrow_sockets(&|flow| with.own.helpers.has_answered(flow), host, now, &flows, name);
        self.open.insert(id, flows.len());
        for flow in flows {
            match duplicated.get(&flow) {
                Some(Ok(family)) => {
                    let move_request = MoveRequest::new(id, *family, acceptor, receiver.clone());
                    self.give_duplicated(with, flow, move_request);
                }
                Some(Err(why)) => self.reply_kept(with.desk, id, flow, [0; 16], &why.to_string()),
                None => self.reply_kept(with.desk, id, flow, [0; 16], "its socket was not found"),
            }
        }
        Ok(None)
    }

    /// [`Request::Give`](whimbrel_ipc::Request::Give): `socket` may be anything.
    pub(crate) fn give_socket(
        &mut self,
        with: &mut With<'_, Effects>,
        id: ClientId,
        socket: closing::Received,
        to: &str,
        receiver: Option<String>,
        state: State,
    ) -> Answer {
        let acceptor = with.desk.host_named(to)?;
        let uuid = with.desk.names.of(socket.as_fd())?;
        let flow = self.flow_given(with.desk, &socket)?;
        with.desk.server.answer_later(id);
        let metadata = Metadata { uuid: *uuid.as_bytes(), state: state.into_bytes() };
        let family = with.own.relocation.take_given(&mut with.desk.host, clock::now(), flow, socket, metadata);
        self.give_duplicated(with, flow, MoveRequest::new(id, family, acceptor, receiver));
        Ok(None)
    }

    /// The connection that a descriptor is one end of, or the socket without another end that it is: one that has all
    /// addresses goes with that by which `whimbrel connections` names it.
    fn flow_given(&mut self, desk: &mut Desk, socket: &OwnedFd) -> Result<FlowTuple, Failure> {
        let mut flow = flow_of(socket)?;
        if flow.is_unconnected() && flow.local.ip().is_unspecified() {
            let inside = desk.host.namespace_with(socket.as_fd()).map(|(address, _)| address);
            let met = inside.or_else(|| servers::met_at(flow.local.ip(), &desk.met_at()).first().copied());
            let Some(address) = met else {
                let why = "the socket has all addresses of this host, which has none now that it could be met at";
                return Err(Failure::new(why).code(Code::Unavailable));
            };
            flow = FlowTuple::unconnected(flow.transport, SocketAddr::new(address, flow.local.port()));
        }
        if desk.host.shares_its_end(&flow) {
            return Err(Failure::new(NotDuplicated::Shared.to_string()).on(flow.local).code(Code::NotSupported));
        }
        match desk.host.has_flow(&flow, socket.as_fd()) {
            Ok(true) => Ok(flow),
            Ok(false) => Err(Failure::new(NOT_ITS_OWN).on(views::flow(flow).called()).code(Code::NotSupported)),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    /// Nothing goes from here any more that can be called back, as this daemon stops.
    pub(crate) fn call_back(&mut self, with: &mut With<'_, Effects>) {
        self.stopping = true;
        let now = clock::now();
        let names: Vec<MoveName> = self.jobs.keys().chain(self.prepared.keys()).copied().collect();
        names.into_iter().for_each(|name| with.desk.node.cancel_move(now, name));
        self.call_processes_back(with, now);
    }

    /// Of clients that may have asked for any of this. What they wait for is not told.
    pub(crate) fn clients_gone(&mut self, effects: &mut Effects, clients: &[ClientId]) {
        for client in clients {
            self.forget_receiver(effects, *client);
            self.open.remove(client);
        }
    }

    /// The same once it is known which options the socket has: one that cannot go stays before anything is done with
    /// it.
    fn give_duplicated(&mut self, with: &mut With<'_, Effects>, flow: FlowTuple, move_request: MoveRequest) {
        match with.own.relocation.options_of_duplicated(&mut with.desk.host, &flow) {
            Ok(options) => self.give(with, flow, MoveRequest { options, ..move_request }),
            Err(failed) => {
                let uuid = with.own.relocation.uuid_of(&flow).unwrap_or_default();
                self.return_requested(with, clock::now(), &flow, &move_request);
                self.reply_kept(with.desk, move_request.client, flow, uuid, &failed.sentence);
            }
        }
    }

    /// Has the node give a socket away that the effects have.
    fn give(&mut self, with: &mut With<'_, Effects>, flow: FlowTuple, move_request: MoveRequest) {
        if let Some(why) = self.why_bound_here(with.desk, &flow) {
            let uuid = with.own.relocation.uuid_of(&flow).unwrap_or_default();
            self.return_requested(with, clock::now(), &flow, &move_request);
            return self.reply_kept(with.desk, move_request.client, flow, uuid, &why);
        }
        let came = flow.is_unconnected() && self.has_endpoint(with.desk, &flow);
        let ready = if came { Some(move_request) } else { self.claim_first(with.desk, flow, move_request) };
        if let Some(move_request) = ready {
            self.fulfil(with, flow, move_request);
        }
    }

    /// Why a socket would be of no use on another host, if it is so.
    fn why_bound_here(&self, desk: &Desk, flow: &FlowTuple) -> Option<String> {
        let own = desk.own_addresses();
        why_bound_to_host(flow, &|address| own.contains(&address))
    }

    /// Whether the endpoint of a socket without another end came here with it by a move, or was claimed.
    fn has_endpoint(&self, desk: &Desk, flow: &FlowTuple) -> bool {
        desk.node.rented().any(|of: Rented| of.ends.contain(flow.local) && of.moved == Some(flow.transport))
    }

    /// A connection of an anchor's endpoint is to be moved and is no flow of the anchor's yet: it is made one first,
    /// and of an endpoint itself a lease of its own. `None`: the move goes on when that is done.
    fn claim_first(&mut self, desk: &mut Desk, flow: FlowTuple, move_request: MoveRequest) -> Option<MoveRequest> {
        if desk.node.has_flow(&flow) || desk.node.lessor_of(flow.local).is_none() {
            return Some(move_request);
        }
        if self.claiming.contains_key(&flow) {
            // The node says that it is being moved already.
            return Some(move_request);
        }
        self.claiming.insert(flow, move_request);
        let hidden = !flow.is_unconnected() && desk.host.is_hidden(&flow);
        desk.node.claim_flow(clock::now(), flow, hidden);
        None
    }

    /// A connection is a flow of its anchor's, or cannot be: what has waited for that goes on.
    fn on_claimed(&mut self, with: &mut With<'_, Effects>, flow: FlowTuple, outcome: Result<(), Refusal>) {
        self.settling.on_claimed(&flow, outcome);
        let Some(move_request) = self.claiming.remove(&flow) else { return };
        match outcome {
            Ok(()) => self.fulfil(with, flow, move_request),
            Err(why) => {
                let uuid = with.own.relocation.uuid_of(&flow).unwrap_or_default();
                self.return_requested(with, clock::now(), &flow, &move_request);
                self.reply_kept(with.desk, move_request.client, flow, uuid, sentence(why));
            }
        }
    }

    fn fulfil(&mut self, with: &mut With<'_, Effects>, flow: FlowTuple, move_request: MoveRequest) {
        let now = clock::now();
        let uuid = with.own.relocation.uuid_of(&flow).unwrap_or_default();
        if self.stopping {
            self.return_requested(with, now, &flow, &move_request);
            return self.reply_kept(with.desk, move_request.client, flow, uuid, STOPPING);
        }
        let begun = match self.take_prepared(with, now, &flow, &move_request) {
            Some(name) => Ok(name),
            None => self.begin_move(with.desk, now, flow, &move_request),
        };
        match begun {
            Ok(name) if move_request.prepares => self.on_preparing(name, flow, move_request),
            Ok(name) => {
                let MoveRequest { client, receiver, .. } = move_request;
                let uuid = Uuid::from_bytes(uuid);
                self.jobs.insert(name, Job { client, flow, uuid, receiver, unmovable: None });
            }
            Err(why) => {
                self.return_requested(with, now, &flow, &move_request);
                self.reply_kept(with.desk, move_request.client, flow, uuid, &not_given(why, &flow));
            }
        }
    }

    fn begin_move(
        &mut self,
        desk: &mut Desk,
        now: Time,
        flow: FlowTuple,
        move_request: &MoveRequest,
    ) -> Result<MoveName, NotGiven> {
        let (name, holder_at) = desk.node.holder_of(&flow);
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
            true => desk.node.prepare_socket(now, gift),
            false => desk.node.give_socket(now, gift),
        }
    }

    /// A socket is not to go, or not to be prepared, after all.
    fn return_requested(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        flow: &FlowTuple,
        move_request: &MoveRequest,
    ) {
        match move_request.prepares {
            true => with.own.relocation.forget_gift(&mut with.desk.host, now, flow),
            false => with.own.relocation.return_socket(&mut with.desk.host, now, flow),
        }
    }

    /// Sockets that have come are handed to their programs.
    pub(crate) fn hand_over(&mut self, with: &mut With<'_, Effects>) {
        for Arrived { name, receiver, flow, socket, metadata } in with.own.relocation.take_arrived() {
            let called = Uuid::from_bytes(metadata.uuid);
            let is_taken = with.desk.kept.has_other(&called, socket.as_fd());
            if !is_taken {
                with.desk.names.learn(socket.as_fd(), called);
            }
            // By the name that it has here, where its own is that of another socket which waits.
            let uuid = with.desk.names.of(socket.as_fd()).unwrap_or(called);
            self.come.insert(name, Come { flow, waits: receiver.is_empty() });
            if is_taken {
                let sentence = "is called otherwise than where it comes from: another one waits by its name";
                with.desk.tell(Report::of_socket(Kind::SocketRenamed, Some(flow), sentence.to_owned()));
            }
            if receiver.is_empty() {
                // A program asks for it by its name.
                if with.desk.kept.put(clock::now(), uuid, socket.into()).is_err() {
                    tracing::warn!(%flow, "a socket that has come is closed: another one waits by its name");
                }
                self.on_waiting_room(with.desk, with.own);
                continue;
            }
            let client = self.receivers.iter().find(|(_, of)| of.is_called(&receiver));
            let Some((client, name_here)) = client.map(|(client, of)| (*client, of.name().to_owned())) else {
                continue;
            };
            let received = Received {
                name: name_here,
                from: with.desk.peer_name(&PublicKey::from(name.donor)),
                flow: views::flow(flow),
                uuid,
                state: State::new(metadata.state).unwrap_or_default(),
            };
            // Of a program that has gone meanwhile the socket is closed, as its own would be.
            with.desk.server.hand(client, &Reply::Received(Box::new(received)), vec![socket]);
            self.on_backlog(with.desk, with.own, client);
        }
    }

    /// Sockets may have come to wait for their programs, or have gone.
    pub(crate) fn on_waiting_room(&self, desk: &Desk, effects: &mut Effects) {
        effects.relocation.set_full(WAITING_ROOM.as_bytes(), desk.kept.is_full());
    }

    /// A socket could not be frozen, or not be written down. The node knows of it by a number only.
    pub(crate) fn on_unmovable(&mut self, name: &MoveName, failed: &OpFailed) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.unmovable.get_or_insert_with(|| failed.sentence.clone());
        }
    }

    /// What has become of a move, if it is something to tell.
    pub(crate) fn on_event(&mut self, with: &mut With<'_, Effects>, event: &MoveEvent) -> Option<Report> {
        let now = clock::now();
        if self.on_move_of_process(with, event) {
            return None;
        }
        let told = match event {
            MoveEvent::Given { name, to } => {
                let job = self.jobs.remove(name);
                let (key, to) = (*to, with.desk.peer_name(to));
                let flow = job.as_ref().map(|job| job.flow);
                self.retire(with, now, *name, key, job.as_ref());
                if let Some(Job { client, flow, uuid, .. }) = job {
                    // What was kept of it for its program is of no use any more.
                    with.desk.kept.forget(&uuid);
                    let moved = Moved { flow: views::flow(flow), uuid, to: to.clone() };
                    self.reply_decided(with.desk, client, &Reply::Moved(moved));
                }
                Report::of_socket(Kind::SocketGiven, flow, format!("is with {to} now"))
            }
            MoveEvent::Prepared { name } => return self.on_prepared(with.desk, name),
            MoveEvent::Kept { name, why } if self.prepared.contains_key(name) => {
                return self.on_unprepared(with, now, name, *why);
            }
            MoveEvent::Kept { name, why } => {
                let job = self.jobs.remove(name);
                let flow = job.as_ref().map(|job| job.flow);
                let unmovable = job.as_ref().and_then(|job| job.unmovable.clone());
                let reason = unmovable.unwrap_or_else(|| sentence(*why).to_owned());
                if let Some(Job { client, flow, uuid, .. }) = job {
                    with.own.relocation.return_socket(&mut with.desk.host, now, &flow);
                    self.reply_kept(with.desk, client, flow, *uuid.as_bytes(), &reason);
                }
                Report::of_socket(Kind::SocketKept, flow, format!("stays here: {reason}"))
            }
            MoveEvent::LostThere { name, to, why, snapshot } => self.on_lost_there(with, now, name, to, *why, snapshot),
            MoveEvent::HeardOf { name, to, outcome } => self.on_heard_of(with.desk, name, to, *outcome),
            MoveEvent::Undecided { name, holder } => {
                let flow = self.jobs.get(name).map(|job| job.flow);
                let who = with.desk.called(holder);
                Report::of_socket(Kind::SocketUndecided, flow, format!("rests, since {who} does not say whose it is"))
            }
            MoveEvent::Taken { name } => {
                let come = self.come.remove(name);
                let flow = come.map(|come| come.flow).or_else(|| with.own.relocation.flow_of(name));
                let sentence = come.map_or_else(|| "goes on here".to_owned(), |come| come.sentence());
                Report::of_socket(Kind::SocketTaken, flow, sentence)
            }
            MoveEvent::NotTaken { name, why } => {
                let flow = with.own.relocation.flow_of(name);
                let sentence = format!("does not come here: {}", sentence_here(*why));
                Report::of_socket(Kind::SocketNotTaken, flow, sentence).by(Causer::Host(name.donor.into()))
            }
            MoveEvent::Rebound { flow, far } => {
                if flow.peer() == with.desk.node.public_key() {
                    // What is at home again need not be held: another move of it has another name.
                    with.desk.node.end_held_flow(now, *flow);
                }
                let sentence = format!("has its other end with {} now", with.desk.called(&flow.peer()));
                Report::of_socket(Kind::FlowRebound, *far, sentence).by(Causer::Host(flow.peer()))
            }
            MoveEvent::Lost { name } => {
                let job = self.jobs.remove(name);
                let flow = job.as_ref().map(|job| job.flow).or_else(|| with.own.relocation.flow_of(name));
                if let Some(Job { client, flow, uuid, .. }) = job {
                    self.reply_lost(
                        with.desk,
                        client,
                        flow,
                        uuid,
                        "its host has lost it, and the connection is over",
                        false,
                    );
                }
                Report::of_socket(Kind::SocketLost, flow, "is lost, and its connection over".to_owned())
            }
            MoveEvent::LoadAnswered { from, number, standing, sentence } => {
                self.on_load_answered(with, *from, *number, *standing, sentence.clone());
                return None;
            }
            MoveEvent::Claimed { tuple, outcome } => {
                self.on_claimed(with, *tuple, *outcome);
                return None;
            }
            // Whoever can have it fail can have it fail again.
            MoveEvent::OpFailed { what, error } => {
                told!(OpFailed { what, error }, "{what} failed: {error}").by(Causer::Strangers)
            }
            // Of leases, and what is taken in as it comes.
            _ => return None,
        };
        Some(told)
    }

    /// A socket has gone to a host where it does not go on, or does not say so (P-145). What was in it is kept here.
    fn on_lost_there(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        name: &MoveName,
        to: &PublicKey,
        why: Refusal,
        snapshot: &[u8],
    ) -> Report {
        let job = self.jobs.remove(name);
        self.retire(with, now, *name, *to, job.as_ref());
        let uuid = job.as_ref().map_or(Uuid::from_bytes([0; 16]), |job| job.uuid);
        let flow = job.as_ref().map(|job| job.flow);
        let kept = left_over::keep(&self.state_dir, &uuid, snapshot);
        let unheard = why == Refusal::AcceptorUnreached;
        if unheard {
            self.unheard.add(*name, flow, kept.as_deref().unwrap_or_default());
        }
        let left = left_over::sentence(kept);
        let to = with.desk.called(to);
        let reason = match unheard {
            true => format!("it is with {to}, which has not said that it goes on there; {left}"),
            false => format!("{to} could not let it go on (its log says why), and it is over at both ends; {left}"),
        };
        if let Some(Job { client, flow, uuid, .. }) = job {
            with.desk.kept.forget(&uuid);
            self.reply_lost(with.desk, client, flow, uuid, &reason, unheard);
        }
        let becomes = if unheard { "may be lost" } else { "is lost" };
        Report::of_socket(Kind::SocketLost, flow, format!("{becomes}: {reason}"))
    }

    /// A host says after all what has become of a socket. What was kept of one that goes on is of no use any more.
    fn on_heard_of(
        &mut self,
        desk: &mut Desk,
        name: &MoveName,
        to: &PublicKey,
        outcome: Result<(), Refusal>,
    ) -> Report {
        let (flow, files) = self.unheard.take(name);
        let to = desk.called(to);
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

    fn reply_kept(&mut self, desk: &mut Desk, id: ClientId, flow: FlowTuple, uuid: [u8; 16], reason: &str) {
        let reason = reason.to_owned();
        let kept = Kept { flow: views::flow(flow), uuid: Uuid::from_bytes(uuid), reason, lost: false, unheard: false };
        self.reply_decided(desk, id, &Reply::Kept(kept));
    }

    fn reply_lost(&mut self, desk: &mut Desk, id: ClientId, flow: FlowTuple, uuid: Uuid, reason: &str, unheard: bool) {
        let kept = Kept { flow: views::flow(flow), uuid, reason: reason.to_owned(), lost: true, unheard };
        self.reply_decided(desk, id, &Reply::Kept(kept));
    }

    /// One of the sockets that a client asked for is decided. It is answered whole once all are.
    fn reply_decided(&mut self, desk: &mut Desk, id: ClientId, reply: &Reply) {
        match self.open.get_mut(&id) {
            Some(open) => {
                *open -= 1;
                let over = *open == 0;
                desk.server.say(id, reply, Vec::new());
                if over {
                    self.open.remove(&id);
                    desk.server.reply(id, &Reply::End { newest: desk.newest() });
                }
            }
            None => desk.server.reply(id, reply),
        }
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
