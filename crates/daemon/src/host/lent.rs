//! Endpoints of this host that others have: what comes for them is led there, except for what is of a socket that has
//! come here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use whimbrel_datapath::{Delivery, FlowEntry, Lent, LentEnd};
use whimbrel_protocol::{BindingId, LeaseName, OpFailed, PeerId, Refusal};
use whimbrel_tunnel::{Lease, LeasedEnd};
use whimbrel_wire::lending::Ends;
use whimbrel_wire::{FlowTuple, Transport};

use super::ports::User;
use super::refusal::failed;
use super::{Failure, Host};

/// What of this host is led to whom.
#[derive(Debug, Default)]
pub(crate) struct LentEnds {
    lent: BTreeMap<LeaseName, LentOut>,
    /// Connections of lent endpoints whose sockets have come here, and sockets without another end: what comes for
    /// these, and these alone, is for this host itself.
    here: BTreeSet<FlowTuple>,
}

/// Endpoints that a peer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LentOut {
    pub(crate) ends: Ends,
    /// They came with a socket that has moved, and are of this transport alone.
    pub(crate) moved: Option<Transport>,
    /// To whom.
    pub(crate) peer: PeerId,
    /// It was of a subnet of this host's links when it was lent.
    pub(crate) on_link: bool,
}

/// The data plane's entry of a connection whose socket has come here: of no peer, and so as it is.
const OF_NOBODY: FlowEntry = FlowEntry {
    binding: BindingId::NONE,
    home_local_place: 0,
    home_peer_place: 0,
    wire_local_port: 0,
    wire_remote_port: 0,
    held: false,
    real_view: false,
    gives_way: false,
    delivery: Delivery::Stack,
    tunnelled: false,
    hidden: false,
    beyond: false,
    unconnected: false,
    late: false,
};

/// The ends one by one, of each transport, or of that alone which they came with; with a whole address also those of
/// ICMP: echoes are answered by who has it (P-112).
pub(crate) fn each(ends: Ends, moved: Option<Transport>) -> impl Iterator<Item = LentEnd> {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    let transports =
        [Transport::Tcp, Transport::Udp].into_iter().filter(move |of| moved.is_none_or(|only| only == *of));
    let icmp = (ends.count == 0).then_some(if ends.first.is_ipv4() { ICMP } else { ICMPV6 });
    let protocols: Vec<u8> = transports.map(Transport::protocol).chain(icmp).collect();
    let address = ends.first.ip();
    let of_port = move |port| protocols.clone().into_iter().map(move |protocol| LentEnd { address, port, protocol });
    ends.ports().flat_map(of_port)
}

impl LentEnds {
    pub(crate) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    pub(crate) fn get(&self, name: &LeaseName) -> Option<&LentOut> {
        self.lent.get(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &LentOut> {
        self.lent.values()
    }

    /// Endpoints that have gone on with sockets without another end.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &LentOut> {
        self.all().filter(|lent| lent.moved.is_some())
    }

    /// Whether an endpoint is not with who has it on lease, as a socket without another end has gone elsewhere with it.
    fn is_apart(&self, end: &LentEnd) -> bool {
        let Some(transport) = Transport::from_protocol(end.protocol) else { return false };
        let at = SocketAddr::new(end.address, end.port);
        let elsewhere = self.parts().any(|part| part.moved == Some(transport) && part.ends.first == at);
        elsewhere || self.here.contains(&FlowTuple::unconnected(transport, at))
    }
}

impl Host {
    pub(crate) fn lent(&self) -> &LentEnds {
        &self.lent
    }

    /// Has what comes for one end go there, and what is sent from it by the tunnel be taken.
    pub(crate) fn lead(&mut self, end: LentEnd, to: Lent, lease: Lease) -> Result<(), Failure> {
        self.datapath.set_lent(&end, to)?;
        if let Some(leased) = leased(&end) {
            self.tunnel.set_lease(leased, lease);
        }
        Ok(())
    }

    /// Has what comes for one end be this host's again.
    pub(crate) fn end_lead(&mut self, end: &LentEnd) {
        if let Err(error) = self.datapath.remove_lent(end) {
            tracing::warn!(address = %end.address, port = end.port, %error, "an endpoint stays lent");
        }
        leased(end).into_iter().for_each(|leased| self.tunnel.remove_lease(&leased));
    }

    /// What comes for the endpoints goes to their tenant, and what it sends from them goes on; except for those that
    /// have gone on with a socket without another end.
    pub(crate) fn lend(&mut self, name: LeaseName, lent: LentOut) -> Result<(), Failure> {
        self.lent.lent.insert(name, lent);
        let LentOut { ends, moved, peer, .. } = lent;
        let binding = BindingId::first(peer);
        let to = if moved.is_some() { Lent::Shared(binding) } else { Lent::Leased(binding) };
        for end in each(ends, moved) {
            if moved.is_some() || !self.lent.is_apart(&end) {
                self.lead(end, to, Lease::To(peer))?;
            }
        }
        Ok(())
    }

    /// What comes for an endpoint goes to who has it on lease, if anybody has: the socket that had gone elsewhere with
    /// it is no more.
    fn lead_back(&mut self, transport: Transport, at: SocketAddr) -> Result<(), Failure> {
        let end = LentEnd { address: at.ip(), port: at.port(), protocol: transport.protocol() };
        let to = self.lent.all().find(|lent| lent.moved.is_none() && lent.ends.contain(at)).map(|lent| lent.peer);
        match to.filter(|_| !self.lent.is_apart(&end)) {
            Some(peer) => self.lead(end, Lent::Leased(BindingId::first(peer)), Lease::To(peer)),
            None => Ok(()),
        }
    }

    /// Takes the endpoints of a lease, or of a socket that had moved, back. Absent: there is none of this name.
    pub(crate) fn take_lent_back(&mut self, name: &LeaseName) -> Option<LentOut> {
        let lent = self.lent.lent.remove(name)?;
        let LentOut { ends, moved, .. } = lent;
        if moved.is_some() && self.lent.all().any(|other| (other.ends, other.moved) == (ends, moved)) {
            // It has moved on, and goes there already.
            return Some(lent);
        }
        for end in each(ends, moved) {
            // Another host has what is apart, with its socket.
            if moved.is_some() || !self.lent.is_apart(&end) {
                self.end_lead(&end);
            }
        }
        for at in ends.ports().map(|port| SocketAddr::new(ends.first.ip(), port)) {
            match moved {
                Some(transport) => {
                    self.ports.release(transport, at, User::Endpoint);
                    if let Err(error) = self.lead_back(transport, at) {
                        tracing::warn!(%at, %error, "an endpoint does not go back to who has it on lease");
                    }
                }
                None if ends.count > 0 => self.ports.give_back(at),
                None => {}
            }
        }
        Some(lent)
    }

    /// The socket of a connection has come to this host, whose address it has.
    pub(crate) fn take_home(&mut self, flow: &FlowTuple) -> Result<(), OpFailed> {
        if self.lent.all().any(|lent| lent.moved.is_none() && lent.ends.contain(flow.local)) {
            // What comes for a socket without another end does so once nobody else has its endpoint.
            if !flow.is_unconnected() {
                let inserted = self.datapath.insert_flows(&[(*flow, OF_NOBODY)]);
                inserted.map_err(|error| failed(Refusal::NotRestored, &error))?;
            }
            self.lent.here.insert(*flow);
        }
        Ok(())
    }

    /// It is elsewhere, or over.
    pub(crate) fn leave_home(&mut self, flow: &FlowTuple) {
        if !self.lent.here.remove(flow) {
            return;
        }
        let left = match flow.is_unconnected() {
            true => self.lead_back(flow.transport, flow.local),
            false => self.datapath.remove_flows(&[*flow]).map_err(Failure::from),
        };
        if let Err(error) = left {
            tracing::warn!(%flow, %error, "a connection of a lent endpoint stays this host's own");
        }
    }

    /// Connections of lent endpoints that were here may be over. `rebuilds`: which have sockets that are still to come,
    /// with a whole process, which takes as long as its memory is large.
    pub(crate) fn check_for_left(&mut self, rebuilds: impl Fn(&FlowTuple) -> bool) {
        for flow in self.lent.here.iter().copied().collect::<Vec<FlowTuple>>() {
            if !rebuilds(&flow) && self.is_nobodys(&flow) {
                self.leave_home(&flow);
            }
        }
    }

    /// Takes over endpoints that a daemon before this one had lent: they are as they were.
    pub(crate) fn adopt_lent(&mut self, name: LeaseName, lent: LentOut) {
        self.lent.lent.insert(name, lent);
    }

    /// Whether the data plane has a flow on account of its socket, which is here; as a daemon before this one has left
    /// it.
    pub(crate) fn adopt_home(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> bool {
        let here = entry.binding == OF_NOBODY.binding && matches!(self.socket_of(flow), Ok(Some(_)));
        if here {
            self.lent.here.insert(*flow);
        }
        here
    }

    /// Sockets without another end that have come to this host, whose endpoints are on lease: nothing else of its own
    /// can have them.
    pub(crate) fn find_home(&mut self) {
        let listening = self.connections.listeners().map(|all| (Transport::Tcp, all));
        let unconnected = self.connections.unconnected().map(|all| (Transport::Udp, all));
        let LentEnds { lent, here } = &mut self.lent;
        for (transport, all) in [listening, unconnected].into_iter().filter_map(Result::ok) {
            let ends = all.into_iter().map(|of| SocketAddr::new(of.address.ip().to_canonical(), of.address.port()));
            let leased = ends.filter(|end| lent.values().any(|lent| lent.ends.count > 0 && lent.ends.contain(*end)));
            here.extend(leased.map(|end| FlowTuple::unconnected(transport, end)));
        }
    }

    /// What leads to others though nothing says so is this host's own again. `is_lent`: what is to lead there, the
    /// second where a socket without another end seems to have come home.
    pub(crate) fn end_stray_leads(&mut self, is_lent: impl Fn(&LentEnd, bool) -> bool) -> Result<(), Failure> {
        for (end, _) in self.datapath.lent()? {
            if !is_lent(&end, self.lent.is_apart(&end)) {
                tracing::info!(address = %end.address, port = end.port, "an endpoint is lent to nobody any more");
                self.datapath.remove_lent(&end)?;
            }
        }
        Ok(())
    }
}

/// The tunnel's name of an end that has a transport.
fn leased(end: &LentEnd) -> Option<LeasedEnd> {
    let transport = Transport::from_protocol(end.protocol)?;
    Some(LeasedEnd { transport, address: end.address, port: end.port })
}
