//! Address translation as Linux does it (masquerade), and stateful filtering as in conntrack.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::Time;
use whimbrel_wire::Transport;

use crate::random::Random;

/// How a NAT chooses the outer port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatPorts {
    /// The inner one where it is free towards that remote endpoint, else the next that is.
    Preserving,
    /// Any (`masquerade random`), out of so few that they meet other hosts' ports often.
    Random,
}

/// What is done about a packet from outside that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsolicited {
    /// The NAT's own stack takes it: a reset for TCP, ICMP port unreachable for UDP.
    Reset,
    /// Dropped.
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inside {
    transport: Transport,
    inner: SocketAddr,
    remote: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outside {
    transport: Transport,
    port: u16,
    remote: SocketAddr,
}

/// A masquerading router: mapping and filtering depend on address and port (RFC 4787's symmetric NAT, where ports are
/// random).
#[derive(Clone, Debug)]
pub struct Nat {
    /// Its address outside.
    pub external: IpAddr,
    /// How it chooses ports.
    pub ports: NatPorts,
    /// What it answers.
    pub unsolicited: Unsolicited,
    /// How long an unused UDP mapping lives; 30 s in Linux for one without an answer, 120 s with.
    pub udp_expiry: Duration,
    /// How long an unused TCP mapping lives.
    pub tcp_expiry: Duration,
    /// Whether a UDP socket has the same outer port towards everybody (RFC 4787's endpoint-independent mapping). What
    /// comes in is filtered by address and port all the same.
    pub same_for_all: bool,
    /// Whether TCP in mid-stream gets a mapping (`nf_conntrack_tcp_loose`).
    pub loose: bool,
    /// The host inside that everything goes to which nobody has asked for, under the port that it came to.
    pub exposed: Option<IpAddr>,
    inside: HashMap<Inside, (u16, Time)>,
    outside: HashMap<Outside, SocketAddr>,
}

/// What becomes of a packet from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbound {
    /// It goes to this inner endpoint.
    To(SocketAddr),
    /// The NAT resets it.
    Reset,
    /// Nothing comes of it.
    Drop,
}

impl Nat {
    /// A NAT as Debian would make it, with this outer address.
    #[must_use]
    pub fn new(external: IpAddr, ports: NatPorts) -> Self {
        Self {
            external,
            ports,
            unsolicited: Unsolicited::Reset,
            udp_expiry: Duration::from_secs(120),
            tcp_expiry: Duration::from_secs(7200),
            same_for_all: false,
            loose: true,
            exposed: None,
            inside: HashMap::new(),
            outside: HashMap::new(),
        }
    }

    fn expiry(&self, transport: Transport) -> Duration {
        match transport {
            Transport::Tcp => self.tcp_expiry,
            Transport::Udp => self.udp_expiry,
        }
    }

    /// The outer source of a packet; makes a mapping where there is none. `opens`: it is a connection's first packet.
    pub(crate) fn outbound(
        &mut self,
        now: Time,
        random: &mut Random,
        transport: Transport,
        inner: SocketAddr,
        remote: SocketAddr,
        opens: bool,
    ) -> Option<SocketAddr> {
        let expiry = self.expiry(transport);
        let key = Inside { transport, inner, remote };
        if let Some((port, used)) = self.inside.get_mut(&key) {
            if *used + expiry > now {
                *used = now;
                return Some(SocketAddr::new(self.external, *port));
            }
            let port = *port;
            self.forget(key, port);
        }
        if transport == Transport::Tcp && !opens && !self.loose {
            return None;
        }
        self.sweep(now);
        let same = self.same_for_all && transport == Transport::Udp;
        let kept = self.inside.iter().find(|(key, _)| same && (key.transport, key.inner) == (transport, inner));
        let wanted = match (kept, self.ports) {
            (Some((_, (port, _))), _) => *port,
            (None, NatPorts::Preserving) => inner.port(),
            (None, NatPorts::Random) => 40_000 + random.below(24) as u16,
        };
        let free = |port: &u16| match same {
            true => {
                self.outside.iter().all(|(key, of)| key.port != *port || key.transport != transport || *of == inner)
            }
            false => !self.outside.contains_key(&Outside { transport, port: *port, remote }),
        };
        let port = (0..u16::MAX).map(|step| wanted.wrapping_add(step)).find(|port| *port >= 1024 && free(port))?;
        self.inside.insert(key, (port, now));
        self.outside.insert(Outside { transport, port, remote }, inner);
        Some(SocketAddr::new(self.external, port))
    }

    pub(crate) fn inbound(&mut self, now: Time, transport: Transport, port: u16, remote: SocketAddr) -> Inbound {
        let expiry = self.expiry(transport);
        let outside = Outside { transport, port, remote };
        if let Some(&inner) = self.outside.get(&outside) {
            let key = Inside { transport, inner, remote };
            if let Some((_, used)) = self.inside.get_mut(&key)
                && *used + expiry > now
            {
                *used = now;
                return Inbound::To(inner);
            }
            self.forget(key, port);
        }
        if let Some(exposed) = self.exposed.map(|host| SocketAddr::new(host, port)) {
            self.inside.insert(Inside { transport, inner: exposed, remote }, (port, now));
            self.outside.insert(outside, exposed);
            return Inbound::To(exposed);
        }
        match self.unsolicited {
            Unsolicited::Reset => Inbound::Reset,
            Unsolicited::Drop => Inbound::Drop,
        }
    }

    fn forget(&mut self, key: Inside, port: u16) {
        self.inside.remove(&key);
        self.outside.remove(&Outside { transport: key.transport, port, remote: key.remote });
    }

    fn sweep(&mut self, now: Time) {
        let (tcp, udp) = (self.tcp_expiry, self.udp_expiry);
        let over = |transport, used: Time| match transport {
            Transport::Tcp => used + tcp <= now,
            Transport::Udp => used + udp <= now,
        };
        let old: Vec<(Inside, u16)> = self
            .inside
            .iter()
            .filter(|(key, (_, used))| over(key.transport, *used))
            .map(|(key, (port, _))| (*key, *port))
            .collect();
        for (key, port) in old {
            self.forget(key, port);
        }
    }

    /// Forgets all mappings, as after a restart of the router: the next packets get new ones.
    pub fn reboot(&mut self) {
        self.inside.clear();
        self.outside.clear();
    }

    /// Forgets the mappings of UDP, so that the next datagram comes from another port.
    pub fn rebind_udp(&mut self) {
        let old: Vec<(Inside, u16)> = self
            .inside
            .iter()
            .filter(|(key, _)| key.transport == Transport::Udp)
            .map(|(key, (port, _))| (*key, *port))
            .collect();
        for (key, port) in old {
            self.forget(key, port);
        }
    }
}

/// A stateful firewall before an access network.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// TCP in mid-stream is dropped in both directions where its beginning was not seen.
    pub strict: bool,
    /// UDP 2031 is dropped, both ways.
    pub no_control: bool,
    /// Nothing comes in, though everything goes out: as by strict reverse path filtering of a way that is not the
    /// route's.
    pub deaf: bool,
    seen: HashMap<(Transport, SocketAddr, SocketAddr), Time>,
}

/// How long a firewall remembers.
const FILTER_EXPIRY: Duration = Duration::from_secs(600);

impl Filter {
    /// One that lets out everything, and in what answers it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that drops TCP in mid-stream.
    #[must_use]
    pub fn strict() -> Self {
        Self { strict: true, ..Self::default() }
    }

    /// One that lets nothing in.
    #[must_use]
    pub fn deaf() -> Self {
        Self { deaf: true, ..Self::default() }
    }

    pub(crate) fn outbound(
        &mut self,
        now: Time,
        transport: Transport,
        inner: SocketAddr,
        remote: SocketAddr,
        opens: bool,
    ) -> bool {
        if self.no_control && transport == Transport::Udp && (inner.port() == 2031 || remote.port() == 2031) {
            return false;
        }
        let key = (transport, inner, remote);
        let known = self.seen.get(&key).is_some_and(|used| *used + FILTER_EXPIRY > now);
        if !known && self.strict && transport == Transport::Tcp && !opens {
            return false;
        }
        self.seen.retain(|_, used| *used + FILTER_EXPIRY > now);
        self.seen.insert(key, now);
        true
    }

    pub(crate) fn inbound(&mut self, now: Time, transport: Transport, inner: SocketAddr, remote: SocketAddr) -> bool {
        match self.seen.get_mut(&(transport, inner, remote)).filter(|_| !self.deaf) {
            Some(used) if *used + FILTER_EXPIRY > now => {
                *used = now;
                true
            }
            _ => false,
        }
    }
}
