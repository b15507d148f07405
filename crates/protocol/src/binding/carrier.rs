//! What carries moved flows: how it is chosen, and the probes that find out whether rewritten packets pass (P-19,
//! P-20).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{BindingId, BindingOp, Carrier, NOWHERE, PeerId, TunnelOp, TunnelPath};
use crate::base::output::{Asked, OpId, State};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::CarrierProbe;
use crate::flow::introduction::PROBE_BIT;
use crate::path::challenge::Path;

/// Carrier probes in one round, and the pause between rounds at first (P-20).
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_secs(30);
const PROBE_PAUSE_LONGEST: Duration = Duration::from_secs(1920);
/// After the network of a host that stays where it is has changed. Some change many times a second.
const PROBE_PAUSE_CHANGED: Duration = Duration::from_secs(5);

impl BindingLayer {
    /// How moved flows go at first, before any probe (P-19, P-20).
    pub(crate) fn choose_carrier(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.claim_pair(now, id, base);
        let carriers = base.config().carriers;
        let Some(peer) = bound_mut!(self, &id) else { return };
        let unconfirmed = peer.path.is_unconfirmed();
        peer.binding.carrier = if peer.flow.places().local == NOWHERE || peer.flow.is_held_away() {
            // P-21, P-44
            Carrier::Hold
        } else if carriers.tunnel {
            Carrier::Tunnel
        } else if carriers.rewrite && peer.binding.pair.is_some() && !peer.binding.peer_refuses_rewrite && !unconfirmed
        {
            Carrier::Rewrite
        } else {
            // Nothing counts what goes out rewritten, so it waits for the path to be confirmed (P-18).
            Carrier::Hold
        };
    }

    /// Tells the tunnel where the peer is.
    pub(crate) fn set_tunnel_path(&mut self, id: PeerId, base: &mut Base) {
        self.sides_changed(id);
        let sealed = base.config().tunnel_sealed;
        let Some(peer) = bound_mut!(self, &id) else { return };
        let remote = peer.path.heading();
        let held = peer.flow.places().local == NOWHERE && peer.meanwhile().is_none();
        let source = peer.meanwhile().map_or(peer.path.source(), |meanwhile| meanwhile.binding.source);
        let Some(slot) = peer.session() else { return };
        let (send_index, receive_index) = (slot.remote_index(), slot.local_index());
        let candidate = peer.path.candidate_mut().filter(|candidate| candidate.is_announced());
        let allowance = candidate.map(Path::take_allowance);
        let unconfirmed = allowance.is_some();
        // P-21: what is sealed needs no acknowledgement, if the peer is where it was last confirmed.
        let early = sealed && !unconfirmed && source.is_some_and(|source| source.is_ipv4() == remote.is_ipv4());
        let allowance = if held && !early { Some(0) } else { allowance };
        let path = TunnelPath { send_index, source, link: None, remote, allowance, sealed, second: None };
        let id = BindingId::first(id);
        let op = TunnelOp::SetPath { id, receive_index, path };
        base.ask(op, Asked::State("leading the tunnel", State::Path(id)));
    }

    /// Both ends want it, no NAT is known on the way, both locators are of one family, and the tunnel goes first
    /// (P-19).
    pub(crate) fn rewrite_possible(&self, id: PeerId, base: &Base) -> bool {
        let Some(peer) = bound!(self, &id) else { return false };
        base.config().carriers.rewrite
            && !peer.binding.peer_refuses_rewrite
            && !peer.binding.only_tunnel
            && peer.binding.pair.is_some()
    }

    /// Sends a carrier probe: the moving end begins, the other answers with one of its own (P-20).
    pub(crate) fn probe_carrier(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if !self.rewrite_possible(id, base) {
            return;
        }
        let nonce = base.random().u64() | PROBE_BIT;
        let port = 32768 + (base.random().u32() % 28000) as u16;
        // As the flows go: a firewall on the way may let through the service's port alone, and theirs is another
        // (P-16).
        let Some(theirs) = self.flow.entry_with(id).map(|entry| entry.wire_remote_port) else { return };
        let Some(peer) = bound_mut!(self, &id) else { return };
        let (Some(source), false) = (peer.path.source(), peer.binding.probe.forward) else { return };
        let leading = FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new(source, port),
            remote: SocketAddr::new(peer.path.remote().ip(), theirs),
        };
        // The other end answers on the tuple that it was probed on, which the first probe has opened.
        let answering = peer.binding.probe.wire.filter(|_| !peer.binding.probe.leading);
        let Some(wire) = answering.or(peer.binding.probe.leading.then_some(leading)) else { return };
        peer.binding.probe.nonce = nonce;
        peer.binding.probe.wire = Some(wire);
        peer.binding.probe.tries += 1;
        let round = (peer.binding.probe.tries - 1) / PROBES;
        let pause = if peer.binding.probe.tries % PROBES == 0 {
            (PROBE_PAUSE * 2u32.pow(round.min(6))).min(PROBE_PAUSE_LONGEST)
        } else {
            peer.path.round_trip() * 2 + Duration::from_millis(20)
        };
        let Some(index) = peer.session().map(|slot| slot.remote_index()) else { return };
        base.set_timer(Timer::Probe(id), now + pause);
        base.ask(BindingOp::Probe { wire, index, nonce }, Asked::Effect("probing the carrier"));
    }

    /// The network that this host stays in has changed, and with it perhaps what keeps rewritten packets from passing:
    /// where probes have failed, they begin anew (P-20).
    pub(crate) fn probe_anew(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id).filter(|_| base.has_timer(Timer::Probe(id))) else { return };
        let tries = &mut peer.binding.probe.tries;
        if *tries > 0 && tries.is_multiple_of(PROBES) {
            *tries = 0;
            base.set_timer_earlier(Timer::Probe(id), now + PROBE_PAUSE_CHANGED);
        }
    }

    /// A probe of the peer's arrived on `wire`.
    pub(crate) fn handle_probe(&mut self, now: Time, id: PeerId, wire: FlowTuple, nonce: u64, base: &mut Base) {
        let possible = self.rewrite_possible(id, base);
        let unable = self.failed.contains(&State::Binding(BindingId::first(id)));
        let Some(peer) = bound_mut!(self, &id) else { return };
        if peer.binding.binding_asked.is_some() {
            // The peer may send as soon as it has the answer.
            peer.binding.probed_early = Some((wire, nonce));
            return;
        }
        if peer.binding.pair != Some((wire.local.ip(), wire.remote.ip())) || unable || peer.binding.only_tunnel {
            // What came rewritten would not be taken for that. The peer has other ideas of the way, or asks again.
            return;
        }
        let respond = possible && !peer.binding.probe.leading && !peer.binding.probe.forward;
        if respond {
            peer.binding.probe.wire = Some(wire);
            peer.binding.probe.tries = 0;
        }
        self.flow.path_mut().send(id, &[Message::ProbeSeen { token: nonce }], base);
        if respond {
            self.probe_carrier(now, id, base);
        }
    }

    /// See [`Node::handle_wire_port_taken`](crate::Node::handle_wire_port_taken).
    pub(crate) fn handle_wire_port_taken(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let tunnel = base.config().carriers.tunnel;
        let Some(peer) = bound_mut!(self, &id).filter(|peer| tunnel && !peer.binding.only_tunnel) else {
            return;
        };
        peer.binding.only_tunnel = true;
        peer.binding.probe = CarrierProbe::default();
        base.stop_timer(Timer::Probe(id));
        if matches!(peer.binding.carrier, Carrier::Rewrite | Carrier::FollowRewrite) {
            peer.binding.carrier = Carrier::Tunnel;
            base.event(Event::CarrierChanged { peer: id, carrier: Carrier::Tunnel });
        }
        self.apply_binding(now, id, base);
        self.announce_again(now, id, base);
    }

    /// An op that was to put a peer's binding in force has come to its end.
    pub(crate) fn on_binding_done(&mut self, now: Time, id: PeerId, op: OpId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id).filter(|peer| peer.binding.binding_asked == Some(op)) else {
            return;
        };
        peer.binding.binding_asked = None;
        if let Some((wire, nonce)) = peer.binding.probed_early.take() {
            self.handle_probe(now, id, wire, nonce, base);
        }
    }

    /// The peer saw our probe: we may rewrite.
    pub(crate) fn handle_probe_seen(&mut self, now: Time, id: PeerId, nonce: u64, base: &mut Base) {
        if !self.rewrite_possible(id, base) {
            return;
        }
        let Some(peer) = bound_mut!(self, &id) else { return };
        if peer.binding.probe.nonce != nonce || peer.binding.probe.forward || peer.flow.places().local == NOWHERE {
            return;
        }
        peer.binding.probe.forward = true;
        // P-24
        peer.binding.carrier = if peer.binding.probe.leading { Carrier::Rewrite } else { Carrier::FollowRewrite };
        let carrier = peer.binding.carrier;
        base.stop_timer(Timer::Probe(id));
        self.apply_binding(now, id, base);
        self.refresh_sets(base);
        base.event(Event::CarrierChanged { peer: id, carrier });
    }
}
