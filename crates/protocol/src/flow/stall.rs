//! Flows that get no answer: their peer may be away (`docs/protocol.md` §6, P-45), or their own packets do not pass though
//! those of the control port do (§5, P-49).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId};
use crate::base::timer::Timer;
use crate::node::Node;
use crate::session::peer::CarrierProbe;

/// Flows whose stalls are remembered of one peer, and for how long.
const STALLS: usize = 16;
const STALLS_FOR: Duration = Duration::from_secs(120);
/// Two reports of one stall are at least so far apart.
const STALLS_APART: Duration = Duration::from_secs(1);
/// The path has to answer so soon after a report for that to count: else it may be there again, and the flow with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two checks of a path for flows that stall.
const CHECKS_APART: Duration = Duration::from_millis(300);

/// Flows of a peer that have stalled of late, by when that was told last.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    flows: BTreeMap<FlowTuple, Time>,
    /// When a check of the path was last answered.
    answered: Option<Time>,
    /// When a flow was found to stand still though the path was answered.
    suspected: Option<Time>,
}

impl Stalls {
    /// A flow stalls. Tells whether it was sent again in vain after the path was answered.
    ///
    /// The kernel tells of the second, fourth, eighth … time that it sends the same, at pauses that double: after a third of
    /// the time between two reports it has been sent once more at the least.
    fn note(&mut self, now: Time, flow: FlowTuple) -> bool {
        self.flows.retain(|_, last| *last + STALLS_FOR > now);
        let room = self.flows.len() < STALLS;
        let Some(last) = self.flows.get_mut(&flow) else {
            if room {
                self.flows.insert(flow, now);
            }
            return false;
        };
        let before = std::mem::replace(last, now);
        let in_vain = before..=before + now.since(before) / 3;
        now >= before + STALLS_APART && self.answered.is_some_and(|answered| in_vain.contains(&answered))
    }

    /// A check of the path was answered. Tells whether that shows that a flow alone stands still.
    pub(crate) fn note_answer(&mut self, now: Time) -> bool {
        self.answered = Some(now);
        self.suspected.take().is_some_and(|suspected| now <= suspected + ANSWER_WITHIN)
    }

    pub(crate) fn entries(&self) -> usize {
        self.flows.len()
    }
}

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
            peer.stalls.suspected = Some(now);
        }
        if peer.stalled {
            return;
        }
        peer.stalled = true;
        if peer.check.is_none() {
            let last = peer.stalls.answered.filter(|_| peer.stalls.suspected.is_none());
            let due = last.map_or(now, |answered| (answered + CHECKS_APART).max(now));
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
