//! Flows that stand still while the peer answers go by the tunnel (P-49).

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId};
use crate::base::timer::Timer;
use crate::flow::stall::Stalls;
use crate::node::Node;
use crate::session::peer::CarrierProbe;

impl Node {
    /// A flow has sent the same for the third time and more, and nobody answers. The checks of the path show whether its
    /// peer is there (P-45).
    pub fn handle_flow_stalled(&mut self, now: Time, flow: FlowTuple) {
        let Some(entry) = self.flows.get(&flow).and_then(|known| known.entry()).copied() else { return };
        let id = entry.peer;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let waits = entry.waits.any() || peer.carrier == Carrier::Hold && peer.moved_flows() > 0;
        if waits || !peer.carries() {
            return;
        }
        // What never left home fares as without Whimbrel.
        let native = entry.home == peer.places_in_force();
        let otherwise = if native { peer.has_moved() } else { peer.carrier != Carrier::Tunnel };
        let able = self.base.config().carriers.tunnel && peer.has_session();
        if peer.stalls.note(now, flow) && otherwise && able {
            peer.stalls.suspect(now);
        }
        if peer.stalled {
            return;
        }
        peer.stalled = true;
        if peer.check.is_none() {
            let due = peer.stalls.next_check(now);
            self.base.set_timer(Timer::Keepalive(id), due);
        } else {
            // One is under way, and may be repeated at long intervals.
            let due = now + peer.repeat_after(1);
            self.base.set_timer_earlier(Timer::Keepalive(id), due);
        }
    }

    /// The peer answers, and flows with it that go as themselves or rewritten do not: something on the way has forgotten
    /// them. They go by the tunnel from now on, both ways (P-49).
    pub(crate) fn fall_back(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.carries()) else { return };
        peer.stalls = Stalls::default();
        peer.stalled = false;
        peer.only_tunnel = true;
        peer.probe = CarrierProbe::default();
        self.base.stop_timer(Timer::Probe(id));
        self.uproot_all(now, id, true);
        self.base.event(Event::CarrierChanged { peer: id, carrier: Carrier::Tunnel });
    }
}
