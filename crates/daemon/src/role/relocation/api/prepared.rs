//! Sockets for which other hosts stand ready, until their programs give them away: so that a program need not be silent meanwhile.

use std::os::fd::AsFd;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure, Reply};
use whimbrel_protocol::{MoveName, READY_FOR, Refusal, Time};
use whimbrel_wire::FlowTuple;

use super::Wish;
use crate::api::server::ClientId;
use crate::clock;
use crate::closing::Received;
use crate::event_loop::EventLoop;
use crate::events::Told;
use crate::host::refusal::sentence;

/// One of them.
#[derive(Debug)]
pub(crate) struct Prepared {
    flow: FlowTuple,
    acceptor: PublicKey,
    receiver: Option<String>,
    /// Who waits to be told that all are ready.
    client: Option<ClientId>,
}

impl EventLoop {
    /// [`Request::Prepare`](whimbrel_ipc::Request::Prepare): `descriptors` is one, of anything.
    pub(crate) fn prepare_socket(
        &mut self,
        id: ClientId,
        descriptors: Vec<Received>,
        to: &str,
        receiver: Option<&str>,
    ) {
        let Some(socket) = descriptors.into_iter().next() else { return };
        let asked = self.host(to).and_then(|acceptor| {
            let uuid = self.programs.names.of(socket.as_fd())?;
            Ok((acceptor, self.flow_given(&socket)?, uuid))
        });
        let connected = |flow: &FlowTuple| match flow.is_unconnected() {
            true => Err(Failure::new("only a connected socket can be prepared").code(Code::NotSupported)),
            false => Ok(()),
        };
        let (acceptor, flow, uuid) = match asked.and_then(|asked| connected(&asked.1).map(|()| asked)) {
            Ok(asked) => asked,
            Err(failure) => return self.server.reply(id, &Reply::Error(failure)),
        };
        self.server.answer_later(id);
        let family =
            self.effects.relocation.expect_gift(&mut self.effects.host, clock::now(), flow, &socket, *uuid.as_bytes());
        let receiver = receiver.map(str::to_owned);
        let wish = Wish { client: id, family, acceptor, receiver, options: Vec::new(), prepares: true };
        match self.effects.host.options_of(&flow, socket.as_fd()) {
            Ok(options) => self.give(flow, Wish { options, ..wish }),
            Err(failed) => {
                self.return_wished(clock::now(), &flow, &wish);
                self.say_kept(id, flow, *uuid.as_bytes(), &failed.sentence);
            }
        }
    }

    /// The others are asked to stand ready.
    pub(crate) fn note_preparing(&mut self, name: MoveName, flow: FlowTuple, wish: Wish) {
        let Wish { client, acceptor, receiver, .. } = wish;
        self.moves.prepared.insert(name, Prepared { flow, acceptor, receiver, client: Some(client) });
    }

    /// The move of a socket that goes now and is prepared, if it is so for just this.
    pub(crate) fn take_prepared(&mut self, now: Time, flow: &FlowTuple, wish: &Wish) -> Option<MoveName> {
        let of_it = self.moves.prepared.iter().filter(|(_, prepared)| prepared.flow == *flow);
        let names: Vec<(MoveName, bool)> = of_it
            .map(|(name, of)| (*name, !wish.prepares && of.acceptor == wish.acceptor && of.receiver == wish.receiver))
            .collect();
        for (name, fits) in names {
            if fits && self.node.give_prepared(now, name) {
                self.say_prepared(&name);
                self.forget_prepared(now, &name);
                return Some(name);
            }
            // What becomes of that is told by an event.
            self.node.cancel_move(now, name);
        }
        None
    }

    /// These go otherwise.
    pub(crate) fn call_prepared_off(&mut self, now: Time, flows: &[FlowTuple]) {
        let of_them = self.moves.prepared.iter().filter(|(_, prepared)| flows.contains(&prepared.flow));
        let names: Vec<MoveName> = of_them.map(|(name, _)| *name).collect();
        names.into_iter().for_each(|name| self.node.cancel_move(now, name));
    }

    /// All are ready.
    pub(crate) fn note_prepared(&mut self, name: &MoveName) -> Option<Told> {
        let prepared = self.moves.prepared.get(name)?;
        let (flow, to) = (prepared.flow, self.called(&prepared.acceptor));
        self.say_prepared(name);
        Some(Told::of_socket("socket-prepared", Some(flow), format!("may go to {to}, where all is ready for it")))
    }

    /// It comes to nothing. `None`: nobody need be told, or it is no such move.
    pub(crate) fn note_unprepared(&mut self, now: Time, name: &MoveName, why: Refusal) -> Option<Told> {
        let prepared = self.moves.prepared.get(name)?;
        let (flow, client) = (prepared.flow, prepared.client);
        let uuid = self.effects.relocation.uuid_of(&flow).unwrap_or_default();
        self.forget_prepared(now, name);
        // Who was told that all are ready learns of it where it gives the socket away.
        let client = client?;
        self.say_kept(client, flow, uuid, sentence(why));
        Some(Told::of_socket("socket-kept", Some(flow), format!("stays here: {}", sentence(why))))
    }

    fn say_prepared(&mut self, name: &MoveName) {
        let client = self.moves.prepared.get_mut(name).and_then(|prepared| prepared.client.take());
        if let Some(client) = client {
            self.say_decided(client, &Reply::Prepared { lasts_ms: READY_FOR.as_millis() as u64 });
        }
    }

    fn forget_prepared(&mut self, now: Time, name: &MoveName) {
        let Some(Prepared { flow, .. }) = self.moves.prepared.remove(name) else { return };
        if self.moves.prepared.values().all(|other| other.flow != flow) {
            self.effects.relocation.forget_gift(&mut self.effects.host, now, &flow);
        }
    }
}
