//! Connections of TCP that carry datagrams (P-250). Nothing is lost in them but with the network.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::{PeerId, Routes, STAND_IN_PORTS, SavedPeer, WantedConnection};
use whimbrel_wire::Transport;

use super::World;
use super::due::What;
use crate::host::HostId;
use crate::nat::Filter;
use crate::network::{Access, NetworkId};
use crate::packet::{Body, Packet};

/// What the handshake of a connection takes.
const CONNECTING: Duration = Duration::from_millis(40);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    host: HostId,
    own: SocketAddr,
    far: SocketAddr,
    /// What stands for it at this end.
    endpoint: SocketAddr,
    /// Whom this end has opened it to.
    peer: Option<PeerId>,
}

impl World {
    /// Connections that hosts have opened to others and that there are still.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.streams.iter().filter(|end| end.peer.is_some()).count()
    }

    /// What a host's daemon has saved of its peers.
    #[must_use]
    pub fn saved(&self, host: HostId) -> Vec<SavedPeer> {
        self.hosts[host.0].saved.values().cloned().collect()
    }

    /// A host's node wants a connection, or none any more.
    pub(super) fn connect_stream(&mut self, host: HostId, peer: PeerId, wanted: Option<WantedConnection>) {
        // What the far end has sent by the one before still arrives.
        self.streams
            .iter_mut()
            .filter(|end| end.host == host && end.peer == Some(peer))
            .for_each(|end| end.peer = None);
        if let Some(WantedConnection { from, link, to }) = wanted {
            // Without a link it goes where the routes lead, and does not come back from there.
            let leaves = link.is_some() || self.hosts[host.0].routes().source_for(to.ip()) == Some(from);
            let to = if leaves { to } else { SocketAddr::new(to.ip(), 0) };
            self.later(CONNECTING, What::Connected(host, peer, from, to));
        }
    }

    pub(super) fn on_stream_connected(&mut self, host: HostId, peer: PeerId, from: IpAddr, to: SocketAddr) {
        let own = SocketAddr::new(from, 30_000 + self.streams.len() as u16);
        let takes = |world: &Self| {
            let attached = world.hosts[host.0].attached_with(from)?;
            let far = *world.global.get(&to.ip())?;
            let listens = world.networks[far.0].hosts.get(&to.ip()).map(|listens| &world.hosts[listens.0])?;
            let passes = !world.networks[attached.network.0].cut && !world.networks[far.0].cut && to.port() != 0;
            (passes && listens.node.is_some() && listens.config.tcp_port == to.port()).then_some(())
        };
        let endpoint = takes(self).map(|()| self.add_stream(host, own, to, Some(peer)));
        self.trace(|w| format!("{} is connected to {to}: {endpoint:?}", w.hosts[host.0].name));
        let now = self.now;
        self.with_node(host, |node| node.handle_connection(now, peer, endpoint));
    }

    fn add_stream(&mut self, host: HostId, own: SocketAddr, far: SocketAddr, peer: Option<PeerId>) -> SocketAddr {
        let number = STAND_IN_PORTS.start() + (self.streams.len() % STAND_IN_PORTS.len()) as u16;
        let endpoint = SocketAddr::new(far.ip(), number);
        self.streams.push(End { host, own, far, endpoint, peer });
        endpoint
    }

    /// What goes to an endpoint that stands for a connection goes by that. Tells whether it does; `None`: it is gone.
    pub(super) fn by_stream(&self, host: HostId, mut packet: Packet) -> Option<Packet> {
        let end = self.streams.iter().rfind(|end| end.host == host && end.endpoint == packet.destination);
        if let Some(end) = end {
            (packet.transport, packet.source, packet.destination) = (Transport::Tcp, end.own, end.far);
            self.hosts[host.0].attached_with(end.own.ip())?;
        }
        Some(packet)
    }

    /// Something has come to a host: by a connection it has the source that stands for that.
    pub(super) fn out_of_stream(&mut self, host: HostId, packet: &Packet) -> Option<Packet> {
        if packet.transport != Transport::Tcp || !matches!(packet.body, Body::Control(_) | Body::Tunnel { .. }) {
            return Some(packet.clone());
        }
        let is_it = |end: &&End| end.host == host && end.own == packet.destination && end.far == packet.source;
        let known = self.streams.iter().find(is_it).map(|end| end.endpoint);
        let listens = &self.hosts[host.0];
        let accepts = listens.node.is_some() && listens.config.tcp_port == packet.destination.port();
        let source = match known {
            Some(endpoint) => endpoint,
            None if accepts => self.add_stream(host, packet.destination, packet.source, None),
            None => return None,
        };
        Some(Packet { source, ..packet.clone() })
    }

    /// A host's daemon has ended, and its connections with it: the far ends hear of it.
    pub(super) fn end_streams(&mut self, host: HostId) {
        let own: Vec<SocketAddr> = self.streams.iter().filter(|end| end.host == host).map(|end| end.own).collect();
        self.streams.retain(|end| end.host != host);
        let ended = self.streams.iter().filter(|end| own.contains(&end.far));
        let ended: Vec<_> = ended.filter_map(|end| Some((end.host, end.peer?, end.own))).collect();
        for (far, peer, at) in ended {
            self.streams.retain(|end| end.own != at);
            let nobody = SocketAddr::new(at.ip(), 0);
            self.later(CONNECTING, What::Connected(far, peer, at.ip(), nobody));
        }
    }

    /// UDP does not pass the border of a network any more, or does again: what cafés do.
    pub fn set_udp(&mut self, network: NetworkId, passes: bool) {
        let mut filter = Filter::new();
        filter.no_control = true;
        *self.access(network) = if passes { Access::Open } else { Access::Filtered(filter) };
    }
}
