//! Sockets that change hosts: what programs ask for.

use std::os::fd::OwnedFd;

use whimbrel_ipc::{Code, Failure, Reply, State};

use crate::event_loop::EventLoop;
use crate::server::ClientId;

impl EventLoop {
    /// [`Request::Move`](whimbrel_ipc::Request::Move): an answer for each socket as it is decided
    /// ([`Server::say`](crate::server::Server::say)), then the end ([`Server::reply`](crate::server::Server::reply)).
    pub(crate) fn move_sockets(&mut self, id: ClientId, _connections: &[String], to: &str, _receiver: Option<&str>) {
        self.refuse(id, to);
    }

    /// [`Request::Receive`](whimbrel_ipc::Request::Receive): the client stays ([`Server::stay`](crate::server::Server::stay))
    /// until it is among those that are gone ([`Server::take_gone`](crate::server::Server::take_gone)).
    pub(crate) fn receive_sockets(&mut self, id: ClientId, name: &str) {
        self.refuse(id, name);
    }

    /// [`Request::Give`](whimbrel_ipc::Request::Give): `descriptors` is one, of anything.
    pub(crate) fn give_socket(
        &mut self,
        id: ClientId,
        _descriptors: Vec<OwnedFd>,
        to: &str,
        _receiver: Option<&str>,
        _state: State,
    ) {
        self.refuse(id, to);
    }

    /// Of clients that may have asked for any of this. What they wait for is not told.
    pub(crate) fn clients_gone(&mut self, _clients: &[ClientId]) {}

    fn refuse(&mut self, id: ClientId, object: &str) {
        let failure = Failure::new("sockets cannot be moved yet").on(object).code(Code::Unavailable);
        self.server.reply(id, &Reply::Error(failure));
    }
}
