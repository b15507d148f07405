//! Flows that stand still while the peer answers go by the tunnel (P-49).

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::CarrierProbe;

impl BindingLayer {
    /// See [`Node::handle_flow_stalled`](crate::Node::handle_flow_stalled).
    pub(crate) fn handle_flow_stalled(&mut self, now: Time, flow: FlowTuple, attempts: u32, base: &mut Base) {
        let Some(entry) = self.flow.flows().entry(&flow).copied() else { return };
        let id = entry.peer;
        if entry.side != 0 && self.check_side(now, id, entry.side, base) {
            return;
        }
        let Some(peer) = bound_mut!(self, &id) else { return };
        let waits = entry.waits.any() || peer.binding.carrier == Carrier::Hold && peer.moved_flows() > 0;
        if waits || !peer.carries() {
            return;
        }
        base.signal(Signal::Overdue(id));
        // What never left home fares as without Whimbrel.
        let native = entry.home == peer.current_places();
        let otherwise = if native { peer.has_moved() } else { peer.binding.carrier != Carrier::Tunnel };
        let able = base.config().carriers.tunnel && peer.has_session();
        if peer.flow.stalls().record(now, flow, attempts) && otherwise && able {
            peer.flow.stalls().suspect(now);
        }
        if peer.flow.is_stalled() {
            return;
        }
        peer.flow.set_stalled(true);
        if !peer.path.is_checked() {
            let due = peer.flow.stalls().next_check(now);
            base.set_timer(Timer::Keepalive(id), due);
        } else {
            // One is under way, and may be repeated at long intervals.
            let due = now + peer.path.repeat_after(1);
            base.set_timer_earlier(Timer::Keepalive(id), due);
        }
    }

    /// The peer answers, and flows with it that go as themselves or rewritten do not: something on the way has
    /// forgotten them. They go by the tunnel from now on, both ways (P-49).
    pub(crate) fn fall_back(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id).filter(|peer| peer.carries()) else { return };
        peer.flow.forget_stalls();
        peer.flow.set_stalled(false);
        peer.binding.only_tunnel = true;
        peer.binding.probe = CarrierProbe::default();
        base.stop_timer(Timer::Probe(id));
        self.uproot_all(now, id, true, base);
        base.event(Event::CarrierChanged { peer: id, carrier: Carrier::Tunnel });
    }
}
