//! Sockets without another end: those that listen (decision 0022).
//!
//! They are at rest by nothing being asked of them. So their programs need not stand still, and connections go on coming to them until
//! those go to the other host; they wait in the accept queue, which is emptied behind the socket.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use whimbrel_kernel::frozen::Frozen;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{MoveFailed, MoveName, Refusal};
use whimbrel_wire::FlowTuple;

use super::donor::{Borrowed, Given};
use super::unmovable;
use crate::effects::Effects;

/// Connections that are taken out of a queue at a time, at the most.
const MOST: usize = 256;

impl Effects {
    /// As [`Effects::freeze`].
    pub(super) fn freeze_listening(
        &mut self,
        name: MoveName,
        flow: FlowTuple,
        borrowed: Borrowed,
    ) -> Result<(), MoveFailed> {
        let Borrowed { socket, luggage, .. } = borrowed;
        let frozen = Frozen::freeze(socket).map_err(|why| unmovable(&why, Refusal::Unmovable))?;
        self.relocation.given.insert(name, Given { flow, frozen, processes: Vec::new(), luggage });
        Ok(())
    }

    /// Connections that wait to be accepted at a socket that is another host's.
    pub(crate) fn take_queued(&mut self, name: &MoveName) -> Vec<OwnedFd> {
        let mut queued = Vec::new();
        let Some(Given { frozen, .. }) = self.relocation.retiring.get(name) else { return queued };
        let socket = frozen.as_fd();
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

    /// Nothing comes to such a socket any more.
    pub(crate) fn end_retired(&mut self, name: &MoveName) {
        if let Some(Given { flow, frozen, .. }) = self.relocation.retiring.remove(name)
            && let Err(error) = frozen.destroy()
        {
            tracing::warn!(%flow, %error, "a socket that has moved is still there for its program");
        }
        self.settle_ports();
    }
}

/// The inode of the socket that listens there, or everywhere.
pub(super) fn find(listeners: &mut SockDiag, flow: &FlowTuple) -> Result<Option<u32>, whimbrel_kernel::Error> {
    let wanted = flow.local;
    let all = listeners.listeners()?;
    let at_port = || all.iter().filter(|listener| listener.address.port() == wanted.port());
    let there = at_port().find(|listener| listener.address.ip().to_canonical() == wanted.ip());
    let everywhere = |listener: &&whimbrel_kernel::sock_diag::Listener| {
        // One of IPv6 may accept IPv4 as well.
        listener.address.ip().is_unspecified() && (listener.address.is_ipv6() || wanted.is_ipv4())
    };
    Ok(there.or_else(|| at_port().find(everywhere)).map(|listener| listener.inode))
}
