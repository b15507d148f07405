//! Sockets without another end (decision 0022): those that listen, and those of UDP that are not connected.
//!
//! The latter rest as connected ones do. The former are at rest by nothing being asked of them. So their programs need not stand still, and connections go on coming to them until
//! those go to the other host; they wait in the accept queue, which is emptied behind the socket. Where their address is an anchor's that knows connections by flows alone, what opens new
//! ones waits meanwhile (P-116).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use whimbrel_datapath::{HelpedFlow, HelpedPhase};
use whimbrel_kernel::sock_diag::{Listener, SockDiag, TcpState};
use whimbrel_protocol::{LocalEnd, MoveName, OpFailed, Refusal};
use whimbrel_wire::{FlowTuple, Transport};

use super::donor::{Borrowed, Given, freeze};
use super::unmovable;
use crate::effects::{Effects, Failure};
use crate::servers::Inhabitants;

/// Connections that are taken out of a queue at a time, at the most.
const MOST: usize = 256;

impl Effects {
    /// As [`Effects::freeze`].
    pub(super) fn freeze_listening(
        &mut self,
        name: MoveName,
        flow: FlowTuple,
        borrowed: Borrowed,
    ) -> Result<(), OpFailed> {
        let Borrowed { socket, luggage, .. } = borrowed;
        let frozen = match freeze(socket) {
            Ok(frozen) => frozen,
            Err(why) => {
                self.let_new_in(&flow);
                return Err(unmovable(&why, Refusal::Unmovable));
            }
        };
        self.relocation.given.insert(name, Given { flow, frozen, processes: Vec::new(), luggage });
        Ok(())
    }

    /// What opens new connections of a socket that listens waits from now on.
    pub(in crate::effects) fn keep_new(&mut self, socket: &FlowTuple) -> Result<(), Failure> {
        let rests = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };
        self.forget_late(socket);
        self.tunnel.set_aside(socket);
        self.relocation.kept_new.insert(*socket);
        if let Err(error) = self.datapath.set_helped(socket, &rests) {
            self.let_new_in(socket);
            return Err(error.into());
        }
        Ok(())
    }

    /// It comes to the socket.
    pub(crate) fn let_new_in(&mut self, socket: &FlowTuple) {
        if self.relocation.kept_new.remove(socket) {
            self.let_in(socket);
            self.tunnel.hand_on(socket, None);
        }
    }

    /// Connections that wait to be accepted at a socket that is another host's.
    pub(crate) fn take_queued(&mut self, name: &MoveName) -> Vec<OwnedFd> {
        let mut queued = self.relocation.left_queued.remove(name).unwrap_or_default();
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

    /// Whether connections of a socket that is another host's are being opened, as far as that can be told.
    pub(crate) fn is_being_opened(&mut self, name: &MoveName) -> bool {
        let Some(flow) = self.relocation.retiring.get(name).map(Given::flow) else { return false };
        let opening = self.sockets_beside(&flow).tcp(&[TcpState::SynReceived]);
        opening.map_or(true, |opening| opening.iter().any(|connection| connection.tuple.local == flow.local))
    }

    /// A socket that listens comes back to where it was: what is left of it there makes way. Connections that wait at that would be reset with it;
    /// they go where they were to go ([`Effects::take_queued`]).
    pub(super) fn make_way_for_listener(&mut self, flow: &FlowTuple) {
        let left: Vec<MoveName> =
            self.relocation.retiring.iter().filter(|(_, of)| of.flow == *flow).map(|(name, _)| *name).collect();
        for name in left {
            let queued = self.take_queued(&name);
            self.end_retired(&name);
            if !queued.is_empty() {
                self.relocation.left_queued.insert(name, queued);
            }
        }
    }

    /// Those that are in endpoint namespaces.
    pub(crate) fn inhabitants_elsewhere(&mut self) -> Vec<Inhabitants> {
        self.relocation.endpoints.inhabitants()
    }

    /// Nothing comes to such a socket any more.
    pub(crate) fn end_retired(&mut self, name: &MoveName) {
        let Some(Given { flow, frozen, .. }) = self.relocation.retiring.remove(name) else { return };
        if let Err(error) = frozen.destroy(self.sockets_beside(&flow)) {
            tracing::warn!(%flow, %error, "a socket that has moved is still there for its program");
        }
        // Connections that were claimed while they were being opened, and have not come about.
        let flows = self.flows.all().iter();
        let of_it = flows.filter(|(of, entry)| entry.end == LocalEnd::Endpoint && of.local == flow.local);
        let of_it: Vec<FlowTuple> = of_it.map(|(of, _)| *of).collect();
        for flow in of_it {
            if matches!(self.socket_of(&flow), Ok(None)) {
                self.relocation.doubted.insert(flow);
            }
        }
        self.settle_ports();
    }
}

/// The sockets without another end that have this one: those of the endpoint itself, else of all addresses of its family, else those of
/// IPv6 that take IPv4 as well.
pub(super) fn find(sockets: &mut SockDiag, flow: &FlowTuple) -> Result<Vec<Listener>, whimbrel_kernel::Error> {
    let all = match flow.transport {
        Transport::Tcp => sockets.listeners()?,
        Transport::Udp => sockets.unconnected()?,
    };
    Ok(among(&all, flow.local).into_iter().copied().collect())
}

/// The inodes of those among `all` that take what comes to this endpoint.
pub(crate) fn at(all: &[Listener], end: SocketAddr) -> Vec<u32> {
    among(all, end).into_iter().map(|of| of.inode).collect()
}

fn among(all: &[Listener], end: SocketAddr) -> Vec<&Listener> {
    let among = |is: &dyn Fn(IpAddr) -> bool| -> Vec<&Listener> {
        all.iter().filter(|of| of.address.port() == end.port() && is(of.address.ip().to_canonical())).collect()
    };
    let everywhere = |v4: bool| move |ip: IpAddr| ip.is_unspecified() && ip.is_ipv4() == v4;
    let mut found = among(&|ip| ip == end.ip());
    for v4 in [end.is_ipv4(), false] {
        if found.is_empty() {
            found = among(&everywhere(v4));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_that_takes_what_comes_is_the_one_that_the_kernel_would_take() {
        let socket = |address: &str, inode| {
            let address = address.parse().expect("an endpoint");
            Listener { address, inode, cookie: u64::from(inode) }
        };
        let found = |all: &[Listener], end: &str| at(all, end.parse().expect("an endpoint"));
        let all = [
            socket("[::]:53", 1),
            socket("0.0.0.0:53", 2),
            socket("192.0.2.1:53", 3),
            socket("192.0.2.1:54", 4),
            socket("[fd00::1]:53", 5),
        ];
        assert_eq!(found(&all, "192.0.2.1:53"), [3]);
        assert_eq!(found(&all, "192.0.2.2:53"), [2]);
        assert_eq!(found(&all[..1], "192.0.2.2:53"), [1]);
        assert_eq!(found(&all, "[fd00::1]:53"), [5]);
        assert_eq!(found(&all, "[fd00::2]:53"), [1]);
        assert!(found(&all[1..], "[fd00::2]:53").is_empty(), "one of IPv4 takes no IPv6");
        assert!(found(&all, "192.0.2.2:54").is_empty());
        let several = [socket("0.0.0.0:53", 6), socket("0.0.0.0:53", 7)];
        assert_eq!(found(&several, "192.0.2.1:53"), [6, 7]);
    }
}
