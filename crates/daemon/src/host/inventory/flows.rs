//! Which connections this host has: listed when the daemon starts, followed by the data plane after.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use whimbrel_kernel::Error;
use whimbrel_kernel::sock_diag::{Listener, MOVABLE, SockDiag};
use whimbrel_kernel::sysctl;
use whimbrel_wire::FlowTuple;

/// A connection and which end opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) flow: FlowTuple,
    /// The other end opened it: its local port is listened on.
    pub(crate) accepted: bool,
    /// The user whose socket it is.
    pub(crate) user: u32,
}

/// All TCP connections that can be moved.
pub(crate) fn list_tcp(diag: &mut SockDiag, own: &impl Fn(IpAddr) -> bool) -> Result<Vec<Found>, Error> {
    let listeners: HashSet<u16> = diag.listeners()?.iter().map(|listener| listener.address.port()).collect();
    let found = diag.tcp(&MOVABLE)?.into_iter().filter(|socket| is_movable(&socket.tuple, own));
    let accepted = |flow: &FlowTuple| listeners.contains(&flow.local.port());
    Ok(found.map(|of| Found { flow: of.tuple, accepted: accepted(&of.tuple), user: of.uid }).collect())
}

/// The ports of sockets that take what anybody sends, of both protocols.
/// `unconnected`: those of UDP.
pub(crate) fn bound_ports(diag: &mut SockDiag, unconnected: &[Listener]) -> Result<BTreeSet<u16>, Error> {
    Ok(diag.listeners()?.iter().chain(unconnected).map(|listener| listener.address.port()).collect())
}

/// The connected UDP sockets, as far as they were listed, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct UdpFlows(HashMap<FlowTuple, u32>);

impl UdpFlows {
    /// Lists them again; gives those that are new and those that are gone. `known`: flows of such sockets, as the other
    /// end may have introduced before any listing had them.
    pub(crate) fn update(
        &mut self,
        diag: &mut SockDiag,
        own: &impl Fn(IpAddr) -> bool,
        known: impl Iterator<Item = FlowTuple>,
    ) -> Result<(Vec<Found>, Vec<FlowTuple>), Error> {
        let movable = diag.udp()?.into_iter().filter(|socket| is_movable(&socket.tuple, own));
        let now: HashMap<FlowTuple, u32> = movable.map(|socket| (socket.tuple, socket.uid)).collect();
        let ephemeral = ephemeral_ports();
        let opened = now
            .iter()
            .filter(|(flow, _)| !self.0.contains_key(flow))
            .map(|(flow, user)| Found { flow: *flow, accepted: was_asked(flow, &ephemeral), user: *user })
            .collect();
        let known: HashSet<FlowTuple> = self.0.keys().copied().chain(known).collect();
        let closed = known.into_iter().filter(|flow| !now.contains_key(flow)).collect();
        self.0 = now;
        Ok((opened, closed))
    }

    /// A socket was connected so since the last listing.
    pub(crate) fn record(&mut self, flow: FlowTuple, user: u32) {
        self.0.insert(flow, user);
    }

    /// Whether a flow was there at the last listing.
    pub(crate) fn contains(&self, flow: &FlowTuple) -> bool {
        self.0.contains_key(flow)
    }
}

/// UDP does not say who began. Whoever sits on a port of choice, facing one that was drawn, was asked.
pub(crate) fn was_asked(flow: &FlowTuple, ephemeral: &RangeInclusive<u16>) -> bool {
    !ephemeral.contains(&flow.local.port()) && ephemeral.contains(&flow.remote.port())
}

/// The same of a socket that is not connected, as those of servers are: resolvers and NATs draw from all ports but the
/// lowest.
pub(crate) fn may_have_been_asked(flow: &FlowTuple, ephemeral: &RangeInclusive<u16>) -> bool {
    let (local, remote) = (flow.local.port(), flow.remote.port());
    !ephemeral.contains(&local) && remote >= 1024 && remote != local
}

/// The ports that the kernel draws from.
pub(crate) fn ephemeral_ports() -> RangeInclusive<u16> {
    let range = sysctl::get("net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = range.split_whitespace().map_while(|bound| bound.parse().ok());
    match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) => first..=last,
        // What the kernel starts with (ip-sysctl).
        _ => 32768..=60999,
    }
}

/// Whether an address means something beyond one link.
pub(crate) fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()),
    }
}

/// Whether what is sent to an address is for all hosts of a link: it is the first or the last of a subnet of this
/// host's. `own`: its addresses and the lengths of their prefixes.
pub(crate) fn is_broadcast(remote: IpAddr, mut own: impl Iterator<Item = (IpAddr, u8)>) -> bool {
    let IpAddr::V4(remote) = remote else { return false };
    own.any(|(address, length)| {
        let (IpAddr::V4(address), 1..=30) = (address, length) else { return false };
        let hosts = u32::MAX >> length;
        (remote.to_bits() ^ address.to_bits()) & !hosts == 0 && [0, hosts].contains(&(remote.to_bits() & hosts))
    })
}

/// Whether a flow can be moved at all: between two hosts, by addresses that mean something beyond one link. `own` tells
/// this host's addresses.
pub(crate) fn is_movable(flow: &FlowTuple, own: &impl Fn(IpAddr) -> bool) -> bool {
    is_global(flow.local.ip()) && is_global(flow.remote.ip()) && !own(flow.remote.ip())
}

/// Why a socket is of use on this host alone, if it is: others would not meet it at its address, or its other end is
/// here. `own` tells this host's addresses.
pub(crate) fn why_bound_to_host(flow: &FlowTuple, own: &impl Fn(IpAddr) -> bool) -> Option<String> {
    let FlowTuple { local, remote, .. } = flow;
    let at = local.ip();
    if flow.is_unconnected() {
        return match at {
            _ if is_global(at) || at.is_unspecified() => None,
            _ if at.is_loopback() => Some(format!(
                "{at} is met from this host alone, so nobody would reach it there (one that has all addresses is named by another of them)"
            )),
            _ => Some(format!("{at} means nothing beyond this host's link, so nobody would reach it there")),
        };
    }
    let local_to_host = [at, remote.ip()].iter().any(IpAddr::is_loopback) || own(at) && own(remote.ip());
    if local_to_host {
        return Some("both of its ends are on this host".to_owned());
    }
    let beyond = is_global(at) && is_global(remote.ip());
    (!beyond).then(|| "its addresses mean nothing beyond this host's link".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::Transport;

    #[test]
    fn what_only_this_host_meets_is_not_given_away() {
        let own = |address: IpAddr| address == IpAddr::from([192, 0, 2, 1]) || address == IpAddr::from([127, 0, 0, 1]);
        let of = |transport, local: &str, remote: &str| FlowTuple {
            transport,
            local: local.parse().expect("endpoint"),
            remote: remote.parse().expect("endpoint"),
        };
        let why = |flow: &FlowTuple| why_bound_to_host(flow, &own);
        for transport in [Transport::Tcp, Transport::Udp] {
            let waits = |at: &str| FlowTuple::unconnected(transport, at.parse().expect("endpoint"));
            for at in ["127.0.0.1:8111", "127.3.0.1:8111", "[::1]:8111"] {
                assert!(why(&waits(at)).is_some_and(|why| why.contains("from this host alone")), "{at}");
            }
            for at in ["169.254.0.1:8111", "[fe80::1]:8111"] {
                assert!(why(&waits(at)).is_some_and(|why| why.contains("link")), "{at}");
            }
            for at in ["192.0.2.1:8111", "[2001:db8::1]:8111", "198.51.100.9:8111"] {
                assert_eq!(why(&waits(at)), None, "{at}");
            }
            for (local, remote) in [
                ("127.0.0.1:1", "127.0.0.1:2"),
                ("[::1]:1", "[::1]:2"),
                ("192.0.2.1:1", "192.0.2.1:2"),
                ("192.0.2.1:1", "127.0.0.1:2"),
            ] {
                let why = why(&of(transport, local, remote));
                assert!(why.is_some_and(|why| why.contains("both of its ends are on this host")), "{local} {remote}");
            }
            assert!(why(&of(transport, "[fe80::1]:1", "[fe80::2]:2")).is_some_and(|why| why.contains("link")));
            assert_eq!(why(&of(transport, "192.0.2.1:1", "198.51.100.1:2")), None);
            // An address on lease, of whose connection this host has the other end.
            assert_eq!(why(&of(transport, "203.0.113.9:1", "192.0.2.1:2")), None);
        }
    }

    #[test]
    fn servers_do_not_introduce_what_they_answer() {
        let flow = |local, remote| FlowTuple {
            transport: Transport::Udp,
            local: ([192, 0, 2, 1], local).into(),
            remote: ([198, 51, 100, 1], remote).into(),
        };
        let asked = |local, remote| may_have_been_asked(&flow(local, remote), &(32768..=60999));
        for remote in [1024, 20000, 40000, 65535] {
            assert!(asked(53, remote) && !asked(40000, remote), "{remote}");
        }
        assert!(!asked(53, 443) && !asked(5000, 5000) && !asked(40000, 53));
    }

    #[test]
    fn a_broadcast_is_sent_to_nobody() {
        let to = |remote: &str, prefix_length| {
            let own = [("192.0.2.9".parse().expect("one"), prefix_length)];
            is_broadcast(remote.parse().expect("an address"), own.into_iter())
        };
        assert!(to("192.0.2.255", 24) && to("192.0.2.0", 24) && to("192.0.2.11", 30) && to("192.0.3.255", 23));
        assert!(!to("192.0.2.255", 23) && !to("192.0.2.8", 31) && !to("192.0.2.9", 32) && !to("198.51.100.255", 24));
        assert!(!to("2001:db8::", 24));
    }

    #[test]
    fn only_flows_between_hosts_can_be_moved() {
        let own = |address: IpAddr| address == IpAddr::from([192, 0, 2, 1]);
        let flow = |local: &str, remote: &str| FlowTuple {
            transport: Transport::Tcp,
            local: local.parse().expect("endpoint"),
            remote: remote.parse().expect("endpoint"),
        };
        assert!(is_movable(&flow("192.0.2.1:1", "198.51.100.1:2"), &own));
        assert!(is_movable(&flow("[2001:db8::1]:1", "[2001:db8::2]:2"), &own));
        for (local, remote) in [
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("192.0.2.1:1", "192.0.2.1:2"),
            ("169.254.1.1:1", "169.254.1.2:2"),
            ("[fe80::1]:1", "[fe80::2]:2"),
            ("192.0.2.1:1", "224.0.0.1:2"),
        ] {
            assert!(!is_movable(&flow(local, remote), &own), "{local} {remote}");
        }
    }
}
