//! Sockets without another end (decision 0022): those that listen, and those of UDP that are not connected.
//!
//! The latter rest as connected ones do. The former are at rest by nothing being asked of them. So their programs need
//! not stand still, and connections go on coming to them until those go to the other host; they wait in the accept
//! queue, which is emptied behind the socket. Where their address is an anchor's that knows connections by flows alone,
//! what opens new ones waits meanwhile (P-116).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use whimbrel_kernel::sock_diag::TcpState;
use whimbrel_protocol::{LocalEnd, MoveName, OpFailed, Refusal};
use whimbrel_wire::FlowTuple;

use super::Relocation;
use super::donor::{Duplicated, Given, freeze};
use crate::host::refusal::unmovable;
use crate::host::{Failure, Host};

/// Connections that are taken out of a queue at a time, at the most.
const MOST: usize = 256;

impl Relocation {
    /// As [`Host::freeze`].
    pub(crate) fn freeze_listening(
        &mut self,
        host: &mut Host,
        name: MoveName,
        flow: FlowTuple,
        duplicated: Duplicated,
    ) -> Result<(), OpFailed> {
        let Duplicated { socket, metadata, .. } = duplicated;
        let checkpoint = match freeze(socket) {
            Ok(checkpoint) => checkpoint,
            Err(why) => {
                self.let_new_in(host, &flow);
                return Err(unmovable(&why, Refusal::Unmovable));
            }
        };
        self.given.insert(name, Given { flow, checkpoint, processes: Vec::new(), metadata });
        Ok(())
    }

    /// What opens new connections of a socket that listens waits from now on.
    pub(crate) fn keep_new(&mut self, host: &mut Host, socket: &FlowTuple) -> Result<(), Failure> {
        host.forget_late(socket);
        self.kept_new.insert(*socket);
        host.set_aside(socket).inspect_err(|_| self.let_new_in(host, socket))
    }

    /// What comes for a socket from now on is no connection of one that listens that waits for where it goes. Whether
    /// it was.
    pub(crate) fn forget_new(&mut self, socket: &FlowTuple) -> bool {
        self.kept_new.remove(socket)
    }

    /// Has a socket go on with what was set aside for it.
    pub(crate) fn give_aside_back(&mut self, host: &mut Host, socket: &FlowTuple) {
        self.forget_new(socket);
        host.give_aside_back(socket);
    }

    /// It comes to the socket.
    pub(crate) fn let_new_in(&mut self, host: &mut Host, socket: &FlowTuple) {
        if self.kept_new.remove(socket) {
            host.give_aside_back(socket);
        }
    }

    /// Connections that wait to be accepted at a socket that is another host's.
    pub(crate) fn take_queued(&mut self, name: &MoveName) -> Vec<OwnedFd> {
        let mut queued = self.left_queued.remove(name).unwrap_or_default();
        let Some(Given { checkpoint, .. }) = self.retiring.get(name) else { return queued };
        let socket = checkpoint.as_fd();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while queued.len() < MOST {
            // It may be a blocking one, and that is its program's own business.
            let mut polled = [PollFd::new(&socket, PollFlags::IN)];
            if !poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
                break;
            }
            match accept_with(socket, SocketFlags::CLOEXEC) {
                Ok(connection) => queued.push(connection),
                Err(error) => {
                    tracing::debug!(%error, "a connection of a socket that has moved was not accepted");
                    break;
                }
            }
        }
        queued
    }

    /// Whether connections of a socket that is another host's are being opened, as far as that can be told.
    pub(crate) fn is_being_opened(&mut self, host: &mut Host, name: &MoveName) -> bool {
        let Some(flow) = self.retiring.get(name).map(Given::flow) else { return false };
        let opening = host.sockets_beside(&flow).tcp(&[TcpState::SynReceived]);
        opening.map_or(true, |opening| opening.iter().any(|connection| connection.tuple.local == flow.local))
    }

    /// A socket that listens comes back to where it was: what is left of it there makes way. Connections that wait at
    /// that would be reset with it; they go where they were to go ([`Host::take_queued`]).
    pub(crate) fn make_way_for_listener(&mut self, host: &mut Host, flow: &FlowTuple) {
        let left: Vec<MoveName> =
            self.retiring.iter().filter(|(_, of)| of.flow == *flow).map(|(name, _)| *name).collect();
        for name in left {
            let queued = self.take_queued(&name);
            self.end_retired(host, &name);
            if !queued.is_empty() {
                self.left_queued.insert(name, queued);
            }
        }
    }

    /// Nothing comes to such a socket any more.
    pub(crate) fn end_retired(&mut self, host: &mut Host, name: &MoveName) {
        let Some(Given { flow, checkpoint, .. }) = self.retiring.remove(name) else { return };
        if let Err(error) = checkpoint.destroy(host.sockets_beside(&flow)) {
            tracing::warn!(%flow, %error, "a socket that has moved is still there for its program");
        }
        // Connections that were claimed while they were being opened, and have not come about.
        let flows = host.flows.all().iter();
        let of_it = flows.filter(|(of, entry)| entry.end == LocalEnd::Endpoint && of.local == flow.local);
        let of_it: Vec<FlowTuple> = of_it.map(|(of, _)| *of).collect();
        for flow in of_it {
            if matches!(host.socket_of(&flow), Ok(None)) {
                host.doubted.insert(flow);
            }
        }
        host.settle_ports();
    }
}
