//! What the maps hold, from and to the types of the public interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use whimbrel_wire::{BindingId, FlowTuple, Transport};

use super::{
    Binding, CONFLICT_GIVES_WAY, Carrier, Delivery, Endpoint, FlowEntry, HELD_BACK, HELD_BEYOND, HELD_HIDDEN,
    HELD_LATE, HELD_TUNNELLED, HELD_UNCONNECTED, HelpedFlow, HelpedPhase, LENT_SHARED, Lent, LentEnd, LocatorPair,
    PLACE_NEVER, RawAddress, RawBinding, RawEndpoint, RawFlowEntry, RawHelpedFlow, RawLent, RawLentKey, RawLocatorPair,
    RawTuple, RawWireFlow, UNKNOWN_DROPPED, UNKNOWN_ROUTED, UNKNOWN_TUNNELLED, UNLIMITED, Unknown,
};

impl RawAddress {
    pub(crate) fn new(address: IpAddr) -> Self {
        let octets = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(octets.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        Self { words }
    }

    pub(crate) fn address(self) -> IpAddr {
        let mut octets = [0; 16];
        for (bytes, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(self.words) {
            *bytes = word.to_ne_bytes();
        }
        Ipv6Addr::from(octets).to_canonical()
    }
}

impl RawTuple {
    pub(crate) fn new(tuple: &FlowTuple) -> Self {
        Self {
            local: RawAddress::new(tuple.local.ip()),
            remote: RawAddress::new(tuple.remote.ip()),
            local_port: tuple.local.port().to_be(),
            remote_port: tuple.remote.port().to_be(),
            transport: tuple.transport.protocol(),
            zero: [0; 3],
        }
    }

    /// None if the transport is none of ours.
    pub(crate) fn tuple(&self) -> Option<FlowTuple> {
        Some(FlowTuple {
            transport: Transport::from_protocol(self.transport)?,
            local: SocketAddr::new(self.local.address(), u16::from_be(self.local_port)),
            remote: SocketAddr::new(self.remote.address(), u16::from_be(self.remote_port)),
        })
    }

    /// The same of a socket that is bound to no address: the key of the map `unconnected`.
    pub(crate) fn without_address(mut self) -> Self {
        let unspecified = match self.local.address() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.local = RawAddress::new(unspecified);
        self
    }
}

impl RawFlowEntry {
    pub(crate) fn new(entry: &FlowEntry) -> Self {
        Self {
            binding: entry.binding,
            home_local_place: entry.home_local_place,
            home_peer_place: entry.home_peer_place,
            wire_local_port: entry.wire_local_port.to_be(),
            wire_remote_port: entry.wire_remote_port.to_be(),
            heard_local_place: PLACE_NEVER,
            heard_peer_place: PLACE_NEVER,
            held: if entry.held { HELD_BACK } else { 0 }
                | if entry.tunnelled { HELD_TUNNELLED } else { 0 }
                | if entry.hidden { HELD_HIDDEN } else { 0 }
                | if entry.beyond { HELD_BEYOND } else { 0 }
                | if entry.late { HELD_LATE } else { 0 }
                | if entry.unconnected { HELD_UNCONNECTED } else { 0 },
            lapsed: 0,
            real_view: entry.real_view.into(),
            conflict: if entry.gives_way { CONFLICT_GIVES_WAY } else { 0 },
            echoes_from: 0,
            clock: 0,
            delivery: entry.delivery.raw(),
            sent: 0,
            tunnelled_until: 0,
            free_at: 0,
            free_between: 0,
            zero: [0; 2],
        }
    }

    pub(crate) fn entry(&self) -> FlowEntry {
        FlowEntry {
            binding: self.binding,
            home_local_place: self.home_local_place,
            home_peer_place: self.home_peer_place,
            wire_local_port: u16::from_be(self.wire_local_port),
            wire_remote_port: u16::from_be(self.wire_remote_port),
            held: self.held & HELD_BACK != 0,
            tunnelled: self.held & HELD_TUNNELLED != 0,
            hidden: self.held & HELD_HIDDEN != 0,
            beyond: self.held & HELD_BEYOND != 0,
            unconnected: self.held & HELD_UNCONNECTED != 0,
            late: self.held & HELD_LATE != 0,
            real_view: self.real_view != 0,
            gives_way: self.conflict & CONFLICT_GIVES_WAY != 0,
            delivery: Delivery::from_raw(self.delivery),
        }
    }

    /// Its name on the wire: between the locators of its peer's first binding, whichever leads it.
    pub(crate) fn wire_flow(&self, transport: u8) -> RawWireFlow {
        RawWireFlow {
            binding: BindingId::first(self.binding.peer()),
            local_port: self.wire_local_port,
            remote_port: self.wire_remote_port,
            transport,
            zero: [0; 3],
        }
    }
}

impl RawLentKey {
    pub(crate) fn new(end: &LentEnd) -> Self {
        Self { address: RawAddress::new(end.address), port: end.port.to_be(), transport: end.protocol, zero: [0; 5] }
    }

    pub(crate) fn end(&self) -> LentEnd {
        LentEnd { address: self.address.address(), port: u16::from_be(self.port), protocol: self.transport }
    }
}

impl RawLent {
    pub(crate) fn new(lent: Lent) -> Self {
        match lent {
            Lent::Endpoint(delivery) => Self { delivery, binding: BindingId::NONE },
            Lent::Leased(binding) => Self { delivery: 0, binding },
            Lent::Shared(binding) => Self { delivery: LENT_SHARED, binding },
        }
    }

    pub(crate) fn lent(&self) -> Lent {
        match self.delivery {
            0 => Lent::Leased(self.binding),
            LENT_SHARED => Lent::Shared(self.binding),
            delivery => Lent::Endpoint(delivery),
        }
    }
}

impl RawEndpoint {
    /// `namespace`: its id, or [`NAMESPACE_UNKNOWN`].
    pub(crate) fn new(endpoint: &Endpoint, namespace: u32) -> Self {
        let (unknown, binding) = match endpoint.unknown {
            Unknown::Dropped => (UNKNOWN_DROPPED, BindingId::NONE),
            Unknown::Routed => (UNKNOWN_ROUTED, BindingId::NONE),
            Unknown::Tunnelled(binding) => (UNKNOWN_TUNNELLED, binding),
        };
        Self { address: RawAddress::new(endpoint.address), binding, namespace, unknown, zero: [0; 7] }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let unknown = match self.unknown {
            UNKNOWN_ROUTED => Unknown::Routed,
            UNKNOWN_TUNNELLED => Unknown::Tunnelled(self.binding),
            _ => Unknown::Dropped,
        };
        Endpoint { address: self.address.address(), unknown }
    }
}

impl RawHelpedFlow {
    pub(crate) fn new(flow: &HelpedFlow) -> Self {
        let HelpedFlow { phase, offset, acknowledged, delivered } = *flow;
        Self { offset, acknowledged, delivered, phase: phase as u8, zero: [0; 3] }
    }

    /// None if the phase is none that this version knows.
    pub(crate) fn flow(&self) -> Option<HelpedFlow> {
        let Self { offset, acknowledged, delivered, phase, .. } = *self;
        Some(HelpedFlow { phase: HelpedPhase::from_raw(phase)?, offset, acknowledged, delivered })
    }
}

impl RawBinding {
    /// `before`: what is in force. `now`: CLOCK_MONOTONIC in ms, which wraps around.
    pub(crate) fn new(binding: &Binding, before: Option<&Self>, now: u32) -> Self {
        let (local, peer) = (RawAddress::new(binding.local), RawAddress::new(binding.peer));
        let locators = before
            .map_or(0, |before| before.locators.wrapping_add(((before.local, before.peer) != (local, peer)).into()));
        let before = before.filter(|before| before.peer_place == binding.peer_place);
        Self {
            local,
            peer,
            local_place: binding.local_place,
            peer_place: binding.peer_place,
            interface: binding.interface,
            // The programs find it out.
            neighbour_interface: 0,
            neighbour_until: 0,
            allowance: binding.allowance.unwrap_or(UNLIMITED),
            neighbour: [0; 6],
            carrier: binding.carrier as u8,
            parked: binding.parked.into(),
            arrival: binding.arrival,
            mtu: binding.mtu,
            peer_since: before.map_or(now, |before| before.peer_since),
            names_kept: binding.names_kept.into(),
            zero: 0,
            locators,
        }
    }

    /// None if the carrier is none that this version knows.
    pub(crate) fn binding(&self, accepted: Vec<LocatorPair>) -> Option<Binding> {
        Some(Binding {
            local_place: self.local_place,
            peer_place: self.peer_place,
            carrier: Carrier::from_raw(self.carrier)?,
            local: self.local.address(),
            peer: self.peer.address(),
            interface: self.interface,
            arrival: self.arrival,
            mtu: self.mtu,
            allowance: (self.allowance != UNLIMITED).then_some(self.allowance),
            parked: self.parked != 0,
            names_kept: self.names_kept != 0,
            accepted,
        })
    }
}

impl RawLocatorPair {
    pub(crate) fn new(pair: &LocatorPair) -> Self {
        Self { peer: RawAddress::new(pair.peer), local: RawAddress::new(pair.local) }
    }

    pub(crate) fn pair(&self) -> LocatorPair {
        LocatorPair { local: self.local.address(), peer: self.peer.address() }
    }
}
