//! Flows become ones with a peer, at home where both are or nowhere: the table of flows, the binding that they need,
//! and what both ends then do.

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{ASTRAY, FlowEntry, FlowOp, LocalEnd, PeerId, SocketNumbers};
use crate::base::output::Asked;
use crate::base::pace::KEEPALIVE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::absence::VANISHED;
use crate::binding::peers::CarrierProbe;
use crate::flow::introduction::Proven;
use crate::flow::known::{Origin, Stage};
use crate::flow::pairing::Claimed;

impl BindingLayer {
    /// The end of a flow that moved finds out how it goes.
    pub(crate) fn find_carrier(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let settled = peer.path.candidate().is_none() && peer.binding.update.is_none();
        if peer.moved_flows() > 0 && settled && !peer.binding.probe.forward && !peer.binding.probe.leading {
            peer.binding.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
            self.probe_carrier(now, id, base);
        }
    }

    /// Makes a flow one with a peer, whatever it was before.
    pub(crate) fn install_moved(
        &mut self,
        now: Time,
        flow: FlowTuple,
        entry: FlowEntry,
        origin: Origin,
        asked: Asked,
        base: &mut Base,
    ) {
        let id = entry.peer;
        // Before this flow is taken from whose it was: that may be the same peer, as after a restart.
        let known = bound!(self, &id).map(|peer| (peer.flow.flows().is_empty(), peer.moved_flows() == 0));
        let Some((first, unmoved)) = known else { return };
        self.flow.take_over(now, flow, entry, origin, base);
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        peer.add_flow(flow, &entry);
        let begins = unmoved && peer.moved_flows() > 0;
        base.stop_timer(Timer::Idle(id));
        if entry.end == LocalEnd::Behind {
            base.set_timer_earlier(Timer::Vanished(id), now + VANISHED);
        }
        if begins {
            // Nothing of the peer's was carried until now: what was found out before may not be so any more.
            peer.binding.probe = CarrierProbe::default();
            self.lead_flows(now, id, base);
        } else if first {
            self.apply_binding(now, id, base);
        }
        if first || begins {
            base.set_timer_earlier(Timer::Keepalive(id), now + KEEPALIVE);
        }
        base.ask(FlowOp::Install { flow, entry }, asked);
        self.rename_placed(id, &flow, None, entry.name, base);
        self.refresh_sets(base);
        if first {
            self.send_locators(now, id, base);
            self.keep_ready(now, id, base);
            base.signal(Signal::FlowsBegun);
        }
    }

    /// The sockets whose remote address is the peer's, as [`FlowOp::FindSockets`] asked for them.
    pub(crate) fn take_claims(&mut self, now: Time, id: PeerId, sockets: &[SocketNumbers], base: &mut Base) {
        let Some(mut claims) = self.flow.take_sockets(now, id, sockets, base) else { return };
        let mut answers = Vec::new();
        while let Some(claimed) = self.flow.take_claim(now, id, &mut claims, base) {
            match claimed {
                Claimed::Nothing => {}
                Claimed::Answer(answer) => answers.push(answer),
                Claimed::Proven(proven) => self.install(now, proven, base),
            }
        }
        self.flow.path_mut().send(id, &answers, base);
    }

    /// Both ends have proven that they sit on a flow.
    pub(crate) fn install(&mut self, now: Time, proven: Proven, base: &mut Base) {
        let Proven { flow, mut entry, origin } = proven;
        let Some(known) = self.flow.flows().get(&flow) else { return };
        // The peer may have forgotten it, and with it that it waits here (P-48).
        entry.waits.here = known.entry().is_some_and(|former| former.waits.here);
        let renamed = known.entry().filter(|former| former.peer == entry.peer).map(|former| former.name);
        let key = self.flow.session().key_of(entry.peer);
        entry.manner = key.and_then(|key| known.rule(&key)).map_or(entry.manner, |rule| rule.manner);
        // What was restored has nothing else.
        entry.manner = known.entry().map_or(entry.manner, |former| former.manner);
        entry.unconnected = known.is_unconnected();
        entry.begun = entry.unconnected && !known.is_accepted();
        if entry.end == LocalEnd::Passing {
            // P-64: a gateway cannot end the host's socket, and what that still sends would go to whoever has the
            // address now.
            entry.manner.gives_way = false;
        }
        self.flow.keep_unconnected(now, &flow);
        if entry.home.peer == ASTRAY {
            return self.install_direct(now, flow, entry, origin, base);
        }
        let Some(before) = self.flow.flows_mut().set_stage(&flow, Stage::Introduced { entry, origin }) else { return };
        if let Origin::Answered { nonce, .. } = origin {
            self.flow.flows_mut().add_nonce(nonce, flow);
        }
        let id = entry.peer;
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        if let Stage::Introduced { entry: former, .. } = &before {
            peer.flow.remove_flow(&flow, former);
        }
        peer.flow.end_introduction(&flow);
        let (first, unmoved) = (peer.flow.flows().is_empty(), peer.moved_flows() == 0);
        peer.add_flow(flow, &entry);
        // P-202: an end has moved since they proved it to each other.
        let moved = entry.home != peer.flow.places();
        let begins = moved && unmoved && peer.moved_flows() > 0;
        let translated = entry.peer_tuple.mirrored() != flow;
        base.stop_timer(Timer::Idle(id));
        if begins {
            let leading = peer.has_gone();
            peer.binding.probe = CarrierProbe { leading, ..CarrierProbe::default() };
            self.lead_flows(now, id, base);
        } else if first {
            // The data plane needs the places before the flow: without a binding a flow is native in any case.
            self.apply_binding(now, id, base);
        }
        if first {
            base.set_timer_earlier(Timer::Keepalive(id), now + KEEPALIVE);
        }
        base.ask(FlowOp::Install { flow, entry }, Asked::Install(flow));
        self.flow.doubt(now, flow, &entry, base);
        // It goes by the first binding until both ends say again, by its name of now, that it does not (P-187).
        self.rename_placed(id, &flow, renamed, entry.name, base);
        if entry.waits.here {
            self.flow.on_pause(id, entry.name, true, base);
            self.flow.send_paused_soon(now, id, base);
        }
        self.flow.session_mut().remember_key(id, &flow, base);
        base.event(Event::FlowIntroduced { flow, peer: id, translated });
        self.refresh_sets(base);
        if first {
            // Should it have to find us by another family than the one that it asked by.
            self.send_locators(now, id, base);
            self.keep_ready(now, id, base);
            base.signal(Signal::FlowsBegun);
        }
        self.uproot(now, id, base);
        if begins {
            self.find_carrier(now, id, base);
        }
        if moved && !self.holds(id) {
            self.flow.wake_senders(now, id, true, base);
        }
    }

    /// A flow goes from end to end from now on, that another host has passed on. It is at home nowhere.
    fn install_direct(&mut self, now: Time, flow: FlowTuple, entry: FlowEntry, origin: Origin, base: &mut Base) {
        let former = self.flow.passed_on(&flow).copied();
        let translated = entry.peer_tuple.mirrored() != flow;
        self.install_moved(now, flow, entry, origin, Asked::Install(flow), base);
        if let Origin::Answered { nonce, .. } = origin {
            self.flow.flows_mut().add_nonce(nonce, flow);
        }
        base.event(Event::FlowIntroduced { flow, peer: entry.peer, translated });
        if former.is_some() {
            self.find_carrier(now, entry.peer, base);
        }
        base.signal(Signal::Direct { flow, former });
    }
}
