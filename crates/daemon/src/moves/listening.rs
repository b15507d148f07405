//! Sockets that listen: how they are named, and what becomes of the connections that had not been accepted (decision 0022).

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::Failure;
use whimbrel_protocol::{MoveName, Time};
use whimbrel_wire::snapshot::Luggage;
use whimbrel_wire::{FlowTuple, Transport};

use super::flow_of;
use crate::event_loop::EventLoop;
use crate::server::ClientId;

/// They are named by this and an address and port.
const LISTENER: &str = "listener:";
/// How long connections come to such a socket that were being opened when it went: a lost word of TCP's is sent again twice meanwhile.
const LINGER: Duration = Duration::from_secs(3);
/// Who waits for what becomes of the connections that follow: nobody does.
const NOBODY: ClientId = ClientId(u64::MAX);

/// A socket that listens and has gone to another host.
#[derive(Debug)]
pub(super) struct Retiring {
    name: MoveName,
    to: PublicKey,
    receiver: Option<String>,
    until: Time,
}

impl Retiring {
    pub(super) fn begin(now: Time, name: MoveName, to: PublicKey, receiver: Option<String>) -> Self {
        Self { name, to, receiver, until: now + LINGER }
    }
}

impl EventLoop {
    /// What these name: connections, and sockets that listen.
    pub(super) fn sockets_named(&self, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        let (listening, connections): (Vec<String>, Vec<String>) =
            names.iter().cloned().partition(|name| name.starts_with(LISTENER));
        let mut flows = Vec::new();
        if listening.is_empty() || !connections.is_empty() {
            flows = self.open_connections(&connections)?;
        }
        for name in listening {
            let end = name.strip_prefix(LISTENER).and_then(|end| end.parse().ok());
            let end: SocketAddr = end.filter(|end: &SocketAddr| !end.ip().is_unspecified()).ok_or_else(|| {
                Failure::new("this names no socket that listens").on(&name).hint(
                    "listener:ADDRESS:PORT, with the address at which it is met, also where it listens at all of this host's.",
                )
            })?;
            flows.push(FlowTuple::unconnected(Transport::Tcp, end));
        }
        flows.sort_unstable();
        flows.dedup();
        Ok(flows)
    }

    /// Connections that were not accepted follow their sockets, which end when none can come any more.
    pub(crate) fn retire_listeners(&mut self, now: Time) {
        for retiring in std::mem::take(&mut self.moves.retiring) {
            for socket in self.effects.take_queued(&retiring.name) {
                let named = flow_of(&socket).and_then(|flow| Ok((flow, self.programs.names.of(socket.as_fd())?)));
                let Ok((flow, uuid)) = named else { continue };
                let luggage = Luggage { uuid: *uuid.as_bytes(), state: Vec::new() };
                let family = self.effects.take_given(now, flow, socket, luggage);
                self.give(NOBODY, flow, family, retiring.to, retiring.receiver.as_deref());
            }
            if retiring.until <= now {
                self.effects.end_retired(&retiring.name);
            } else {
                self.moves.retiring.push(retiring);
            }
        }
    }
}
