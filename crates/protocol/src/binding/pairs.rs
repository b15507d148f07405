//! Pairs of locators that rewritten packets are taken between: a peer's alone, and of none that other hosts are seen at
//! (P-40, P-136).

use std::net::{IpAddr, SocketAddr};

use crate::Time;
use crate::base::Base;
use crate::base::op::{Binding, Carrier, KnownPlace, PeerId};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::BoundRef;
use crate::path::fallback::stands_in;
use crate::path::paths::Paths;
use crate::path::shared::SHARED;

impl Binding {
    /// Whether rewritten packets are taken from an address.
    fn is_at(&self, address: IpAddr) -> bool {
        let present = !self.local_locator.is_unspecified() && self.peer_locator == address;
        present || self.former.iter().any(|(_, peer)| *peer == address)
    }

    /// As it is where nothing is taken rewritten from an address any more. `otherwise`: how moved flows go that were
    /// rewritten to it.
    fn without(&self, address: IpAddr, otherwise: Carrier) -> Self {
        let former = self.former.iter().filter(|(_, peer)| *peer != address).copied().collect();
        if self.peer_locator != address {
            return Self { former, ..self.clone() };
        }
        let local_locator = match self.local_locator {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        let rewritten = matches!(self.carrier, Carrier::Rewrite | Carrier::FollowRewrite);
        let carrier = if rewritten { otherwise } else { self.carrier };
        Self { former, local_locator, carrier, ..self.clone() }
    }
}

impl BindingLayer {
    /// A peer has shown that it is at an endpoint: what was sent there alone has come back in its session. Nothing that
    /// a datagram's source says by itself counts (P-136).
    pub(crate) fn record_sighting(&mut self, now: Time, id: PeerId, at: Option<SocketAddr>, base: &mut Base) {
        let (Some(peer), Some(at)) = (bound!(self, &id), at) else { return };
        // The port of an endpoint that stands for a connection says nothing of a NAT (P-253).
        let elsewhere = |place: &&KnownPlace| place.observed == at && place.claimed.ip() != at.ip();
        let translated = match at {
            at if stands_in(at) => peer.binding.known_places.iter().any(|place| elsewhere(&place)),
            at if at == peer.path.remote() => peer.is_mapped(),
            at => at.port() != base.config().port,
        };
        let key = peer.key();
        if let Some(peer) = self.flow.peer_mut(&id) {
            peer.path.shown().record(now, at.ip());
        }
        if !self.flow.path_mut().sightings_mut().record(now, at.ip(), key, translated) {
            return;
        }
        base.set_timer_earlier(Timer::Shared, now + SHARED);
        // Nothing is taken from there for a peer's own any more, at once.
        let there = |pair: &(IpAddr, IpAddr)| pair.1 == at.ip();
        let in_force = |peer: &BoundRef<'_>| peer.meanwhile().is_some_and(|meanwhile| meanwhile.binding.is_at(at.ip()));
        let peers = self.each();
        let peers =
            peers.filter(|peer| peer.binding.pair.iter().chain(&peer.binding.former).any(there) || in_force(peer));
        let tunnel = base.config().carriers.tunnel;
        for other in peers.map(|peer| peer.id()).collect::<Vec<_>>() {
            if let Some(peer) = bound_mut!(self, &other) {
                peer.binding.former.retain(|pair| !there(pair));
                // What stays in force until an update of ours is answered does so without them.
                let meanwhile = peer.binding.update.as_mut().and_then(|update| update.meanwhile.as_mut());
                if let Some(meanwhile) = meanwhile {
                    let otherwise = if tunnel { Carrier::Tunnel } else { Carrier::Hold };
                    meanwhile.binding = meanwhile.binding.without(at.ip(), otherwise);
                }
            }
            self.apply_binding(now, other, base);
        }
        self.refresh_sets(base);
    }

    /// Addresses count as shared no more: who is there alone may have what goes between it and this host.
    pub(crate) fn regain_pairs(&mut self, now: Time, base: &mut Base) {
        let (over, next) = self.flow.path_mut().sightings_mut().take_over(now);
        if let Some(next) = next {
            base.set_timer(Timer::Shared, next);
        }
        let peers = self.each().filter(|peer| !peer.flow.flows().is_empty() && over.contains(&peer.path.remote().ip()));
        for id in peers.map(|peer| peer.id()).collect::<Vec<_>>() {
            self.apply_binding(now, id, base);
            if bound!(self, &id).is_some_and(|peer| peer.binding.probe.leading && peer.moved_flows() > 0) {
                self.probe_carrier(now, id, base);
            }
        }
    }

    /// Lets the peer have the pair of locators that it is at now, if nobody else has it (P-40), and gives up the one
    /// that it had.
    pub(crate) fn claim_pair(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(remote) = self.flow.path().paths(&id).map(Paths::remote) else { return };
        let shared = self.flow.path().sightings().is_shared(now, remote.ip());
        let Some(peer) = bound_mut!(self, &id) else { return };
        if peer.meanwhile().is_some() {
            return;
        }
        // A gateway does not see what is bound at a host behind it (P-137). A daemon that was started a moment ago does
        // not know its own addresses yet: what came rewritten before it came to one of them, and nobody may answer it
        // with a reset meanwhile.
        let attachments = base.attachments();
        let goes_on =
            attachments.is_empty() && matches!(peer.binding.carrier, Carrier::Rewrite | Carrier::FollowRewrite);
        let speaks = |source: &IpAddr| !goes_on && attachments.is_behind(*source);
        let wanted = peer.wanted_pair(shared).filter(|(source, _)| !speaks(source));
        if peer.binding.pair == wanted {
            return;
        }
        if let Some(before) = peer.binding.pair.take() {
            self.pairs.remove(&before);
        }
        let Some(pair) = wanted.filter(|pair| !self.pairs.contains_key(pair)) else {
            if matches!(peer.binding.carrier, Carrier::Rewrite | Carrier::FollowRewrite) {
                peer.binding.carrier = if base.config().carriers.tunnel { Carrier::Tunnel } else { Carrier::Hold };
                peer.binding.probe.forward = false;
            }
            return;
        };
        peer.binding.pair = Some(pair);
        self.pairs.insert(pair, id);
        // Whoever was there before accepts nothing from there any more.
        let others = self.each().filter(|other| other.id() != id && other.binding.former.contains(&pair));
        for other in others.map(|other| other.id()).collect::<Vec<_>>() {
            self.apply_binding(now, other, base);
        }
    }
}
