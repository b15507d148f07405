//! Sockets for which other hosts stand ready, until their programs give them away: so that a program need not be silent
//! meanwhile.

use std::os::fd::AsFd;

use whimbrel_ipc::{Code, Failure, Reply};
use whimbrel_protocol::{MoveName, READY_FOR, Refusal, Time};
use whimbrel_wire::FlowTuple;

use super::{MoveRequest, Moves, Prepared};
use crate::api::Answer;
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::clock;
use crate::closing::Received;
use crate::effects::Effects;
use crate::events::{Kind, Report};
use crate::host::refusal::sentence;

impl Moves {
    /// [`Request::Prepare`](whimbrel_ipc::Request::Prepare): `socket` may be anything.
    pub(crate) fn prepare_socket(
        &mut self,
        with: &mut With<'_, Effects>,
        id: ClientId,
        socket: &Received,
        to: &str,
        receiver: Option<String>,
    ) -> Answer {
        let acceptor = with.desk.host_named(to)?;
        let uuid = with.desk.names.of(socket.as_fd())?;
        let flow = self.flow_given(with.desk, socket)?;
        if flow.is_unconnected() {
            return Err(Failure::new("only a connected socket can be prepared").code(Code::NotSupported));
        }
        with.desk.server.answer_later(id);
        let family = with.own.relocation.expect_gift(&mut with.desk.host, clock::now(), flow, socket, *uuid.as_bytes());
        let move_request = MoveRequest { prepares: true, ..MoveRequest::new(id, family, acceptor, receiver) };
        match with.desk.host.options_of(&flow, socket.as_fd()) {
            Ok(options) => self.give(with, flow, MoveRequest { options, ..move_request }),
            Err(failed) => {
                self.return_requested(with, clock::now(), &flow, &move_request);
                self.reply_kept(with.desk, id, flow, *uuid.as_bytes(), &failed.sentence);
            }
        }
        Ok(None)
    }

    /// The others are asked to stand ready.
    pub(crate) fn on_preparing(&mut self, name: MoveName, flow: FlowTuple, move_request: MoveRequest) {
        let MoveRequest { client, acceptor, receiver, .. } = move_request;
        self.prepared.insert(name, Prepared { flow, acceptor, receiver, client: Some(client) });
    }

    /// The move of a socket that goes now and is prepared, if it is so for just this.
    pub(crate) fn take_prepared(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        flow: &FlowTuple,
        move_request: &MoveRequest,
    ) -> Option<MoveName> {
        let of_it = self.prepared.iter().filter(|(_, prepared)| prepared.flow == *flow);
        let names: Vec<(MoveName, bool)> = of_it
            .map(|(name, of)| {
                (
                    *name,
                    !move_request.prepares
                        && of.acceptor == move_request.acceptor
                        && of.receiver == move_request.receiver,
                )
            })
            .collect();
        for (name, fits) in names {
            if fits && with.desk.node.give_prepared(now, name) {
                self.reply_prepared(with.desk, &name);
                self.forget_prepared(with, now, &name);
                return Some(name);
            }
            // What becomes of that is told by an event.
            with.desk.node.cancel_move(now, name);
        }
        None
    }

    /// These go otherwise.
    pub(crate) fn call_prepared_off(&mut self, desk: &mut Desk, now: Time, flows: &[FlowTuple]) {
        let of_them = self.prepared.iter().filter(|(_, prepared)| flows.contains(&prepared.flow));
        let names: Vec<MoveName> = of_them.map(|(name, _)| *name).collect();
        names.into_iter().for_each(|name| desk.node.cancel_move(now, name));
    }

    /// All are ready.
    pub(crate) fn on_prepared(&mut self, desk: &mut Desk, name: &MoveName) -> Option<Report> {
        let prepared = self.prepared.get(name)?;
        let (flow, to) = (prepared.flow, desk.called(&prepared.acceptor));
        self.reply_prepared(desk, name);
        Some(Report::of_socket(Kind::SocketPrepared, Some(flow), format!("may go to {to}, where all is ready for it")))
    }

    /// It comes to nothing. `None`: nobody need be told, or it is no such move.
    pub(crate) fn on_unprepared(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        name: &MoveName,
        why: Refusal,
    ) -> Option<Report> {
        let prepared = self.prepared.get(name)?;
        let (flow, client) = (prepared.flow, prepared.client);
        let uuid = with.own.relocation.uuid_of(&flow).unwrap_or_default();
        self.forget_prepared(with, now, name);
        // Who was told that all are ready learns of it where it gives the socket away.
        let client = client?;
        self.reply_kept(with.desk, client, flow, uuid, sentence(why));
        Some(Report::of_socket(Kind::SocketKept, Some(flow), format!("stays here: {}", sentence(why))))
    }

    fn reply_prepared(&mut self, desk: &mut Desk, name: &MoveName) {
        let client = self.prepared.get_mut(name).and_then(|prepared| prepared.client.take());
        if let Some(client) = client {
            self.reply_decided(desk, client, &Reply::Prepared { lasts_ms: READY_FOR.as_millis() as u64 });
        }
    }

    fn forget_prepared(&mut self, with: &mut With<'_, Effects>, now: Time, name: &MoveName) {
        let Some(Prepared { flow, .. }) = self.prepared.remove(name) else { return };
        if self.prepared.values().all(|other| other.flow != flow) {
            with.own.relocation.forget_gift(&mut with.desk.host, now, &flow);
        }
    }
}
