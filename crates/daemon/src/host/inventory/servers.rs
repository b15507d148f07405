//! Sockets without another end, as `whimbrel connections` names them for `whimbrel move` (decision 0022).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use whimbrel_ipc as ipc;
use whimbrel_kernel::sock_diag::{Connection, Listener, MOVABLE, SockDiag};
use whimbrel_kernel::{Error, process};
use whimbrel_wire::{FlowTuple, Transport};

use crate::host::inventory::flows::ephemeral_ports;

/// Sockets of one network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inhabitants {
    /// What they are met at, the preferred ones first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Those that listen.
    pub(crate) tcp: Vec<Listener>,
    /// Those that are bound and not connected.
    pub(crate) udp: Vec<Listener>,
    /// Those that are connected.
    pub(crate) connected: Vec<Connection>,
    /// Ports that the kernel draws for clients there, where that is known.
    pub(crate) drawn: Option<RangeInclusive<u16>>,
}

impl Inhabitants {
    /// Those of the namespace that `sockets` is in.
    pub(crate) fn look(sockets: &mut SockDiag, addresses: Vec<IpAddr>) -> Option<Self> {
        let mut look = || -> Result<Self, Error> {
            let mut connected = sockets.tcp(&MOVABLE)?;
            connected.extend(sockets.udp()?);
            let (tcp, udp) = (sockets.listeners()?, sockets.unconnected()?);
            Ok(Self { addresses: addresses.clone(), tcp, udp, connected, drawn: None })
        };
        look().inspect_err(|error| tracing::warn!(%error, "cannot look up which sockets there are")).ok()
    }

    /// All of the namespace that the calling thread is in.
    pub(crate) fn here(addresses: Vec<IpAddr>) -> Self {
        match SockDiag::open() {
            Ok(mut sockets) => {
                Self { drawn: Some(ephemeral_ports()), ..Self::look(&mut sockets, addresses).unwrap_or_default() }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot look up which sockets there are");
                Self::default()
            }
        }
    }

    /// The sockets of UDP that are not connected, except for those that have a port as the kernel gives it to clients:
    /// they ask others, and wait for no client.
    fn served(&self) -> Vec<Listener> {
        let of_client = |socket: &&Listener| {
            let drawn = self.drawn.as_ref().is_some_and(|drawn| drawn.contains(&socket.address.port()));
            drawn && socket.address.ip().to_canonical().is_unspecified()
        };
        self.udp.iter().filter(|socket| !of_client(socket)).copied().collect()
    }

    /// Whether none is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.udp.is_empty() && self.connected.is_empty()
    }
}

/// Why a socket cannot be moved that shares its endpoint.
const SHARED: &str = "several sockets share this endpoint";

/// They as `whimbrel connections` shows them: each once, by the first address at which it is met; except for the
/// daemon's own.
pub(crate) fn shown(places: &[Inhabitants], since: &str) -> Vec<ipc::Connection> {
    let mut found: BTreeMap<(Transport, SocketAddr), Vec<u32>> = BTreeMap::new();
    for place in places {
        for (transport, all) in [(Transport::Tcp, &place.tcp), (Transport::Udp, &place.served())] {
            for (end, inodes) in ends(all, &place.addresses) {
                found.entry((transport, end)).or_insert(inodes);
            }
        }
    }
    let inodes: HashSet<u32> = found.values().flatten().copied().collect();
    let owners = if inodes.is_empty() { HashMap::default() } else { process::owners(&inodes) };
    let shown = found.into_iter().filter_map(|((transport, end), inodes)| {
        let owner = inodes.iter().find_map(|inode| owners.get(inode));
        if owner.is_some_and(|owner| owner.pid == std::process::id()) {
            return None;
        }
        let reason = match inodes.len() {
            1 => None,
            _ => Some(SHARED.to_owned()),
        };
        let flow = crate::shown::flow(FlowTuple::unconnected(transport, end));
        Some(ipc::Connection {
            name: Some(flow.called()),
            process: owner.map(|owner| ipc::Process { pid: owner.pid, name: owner.name.clone() }),
            since: since.to_owned(),
            reason,
            ..ipc::Connection::bare(flow, ipc::ConnectionState::Server)
        })
    });
    shown.collect()
}

/// The addresses at which a socket is met that is bound to this one: of all, those of its own family come first.
pub(crate) fn met_at(bound: IpAddr, addresses: &[IpAddr]) -> Vec<IpAddr> {
    if !bound.is_unspecified() {
        return addresses.iter().copied().filter(|own| *own == bound).collect();
    }
    let mut met = addresses.to_vec();
    met.sort_by_key(|own| own.is_ipv4() != bound.is_ipv4());
    met
}

/// The endpoints at which sockets are met, with those of each: of every socket the first, in the order of addresses.
/// One that is bound to all addresses is met at one of its own family, if there is any.
fn ends(all: &[Listener], addresses: &[IpAddr]) -> Vec<(SocketAddr, Vec<u32>)> {
    let mut seen: HashSet<u32> = HashSet::new();
    let mut ends = Vec::new();
    for listener in all {
        let bound = listener.address.ip().to_canonical();
        let port = listener.address.port();
        let candidates =
            met_at(bound, addresses).into_iter().map(|own| SocketAddr::new(own, port)).map(|end| (end, at(all, end)));
        let mine = |(_, inodes): &(SocketAddr, Vec<u32>)| inodes.contains(&listener.inode);
        if let Some((end, inodes)) = candidates.into_iter().find(mine)
            && inodes.iter().all(|inode| !seen.contains(inode))
        {
            seen.extend(&inodes);
            ends.push((end, inodes));
        }
    }
    ends
}

/// The sockets without another end that have this one: those of the endpoint itself, else of all addresses of its
/// family, else those of IPv6 that take IPv4 as well.
pub(crate) fn find(sockets: &mut SockDiag, flow: &FlowTuple) -> Result<Vec<Listener>, whimbrel_kernel::Error> {
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

/// The cookies of those among `all` that take what comes to this endpoint.
pub(crate) fn takers(all: &[Listener], end: SocketAddr) -> Vec<u64> {
    among(all, end).into_iter().map(|of| of.cookie).collect()
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

    fn socket(address: &str, inode: u32) -> Listener {
        Listener { address: address.parse().expect("an endpoint"), inode, cookie: u64::from(inode) }
    }

    fn named(all: &[Listener], addresses: &[&str]) -> Vec<String> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().expect("an address")).collect();
        let place = Inhabitants { addresses, tcp: all.to_vec(), ..Inhabitants::default() };
        let shown = shown(&[place], "now");
        shown.into_iter().map(|one| one.name.unwrap_or_default() + one.reason.as_deref().unwrap_or("")).collect()
    }

    #[test]
    fn each_socket_is_named_once_by_where_it_is_met() {
        // Inodes that no process has: nobody's are this process's.
        let all = [
            socket("0.0.0.0:22", 1),
            socket("[::]:80", 2),
            socket("127.0.0.1:25", 3),
            socket("192.0.2.8:53", 4),
            socket("[::]:53", 5),
        ];
        let own = ["192.0.2.7", "192.0.2.8", "2001:db8::7"];
        assert_eq!(
            named(&all, &own),
            [
                "listener:192.0.2.7:22",
                "listener:192.0.2.8:53",
                "listener:[2001:db8::7]:53",
                "listener:[2001:db8::7]:80",
            ]
        );
        // Without IPv6 one that takes both is met by IPv4.
        assert_eq!(named(&all[1..2], &own[..1]), ["listener:192.0.2.7:80"]);
        assert!(named(&all, &[]).is_empty(), "a host that is nowhere is met nowhere");
        let several = [socket("0.0.0.0:443", 6), socket("0.0.0.0:443", 7)];
        assert_eq!(named(&several, &own), [format!("listener:192.0.2.7:443{SHARED}")]);
    }

    #[test]
    fn ports_of_clients_are_no_servers() {
        let udp = vec![socket("0.0.0.0:53", 1), socket("0.0.0.0:40000", 2), socket("192.0.2.7:40001", 3)];
        let addresses = vec!["192.0.2.7".parse().expect("an address")];
        let place = Inhabitants { addresses, udp, drawn: Some(32768..=60999), ..Inhabitants::default() };
        let names = |place: Inhabitants| -> Vec<String> {
            shown(&[place], "now").into_iter().filter_map(|one| one.name).collect()
        };
        assert_eq!(names(place.clone()), ["udp:192.0.2.7:53", "udp:192.0.2.7:40001"]);
        // In an endpoint namespace all ports are drawn from what is lent.
        assert_eq!(names(Inhabitants { drawn: None, ..place }).len(), 3);
    }

    #[test]
    fn the_socket_that_takes_what_comes_is_the_one_that_the_kernel_would_take() {
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
