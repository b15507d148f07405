//! Taking over what a daemon before this one knew.

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId, SavedPeer};
use crate::base::output::Asked;
use crate::base::pace::{IDLE, LOOK_PAUSE};
use crate::base::timer::Timer;
use crate::binding::absence::VANISHED;
use crate::flow::known::Flow;
use crate::node::Node;

impl Node {
    /// Takes over what a daemon before this one knew. Call it once, before anything else; sessions are made anew with
    /// each peer that has flows.
    pub fn restore(&mut self, now: Time, peers: Vec<SavedPeer>, flows: Vec<(FlowTuple, FlowEntry)>) {
        for saved in peers {
            self.binding.session_mut().restore(saved.id, saved.key, now);
            self.binding.restore(&saved, now);
        }
        self.binding.session_mut().restore_answers();
        for (flow, entry) in flows {
            let spoken_for = entry.end != LocalEnd::Passing || self.base.attachments().is_behind(flow.local.ip());
            let Some(mut peer) = self.binding.peer_mut(&entry.peer).filter(|_| spoken_for) else {
                self.base.ask(FlowOp::Remove { flow }, Asked::Effect("removing a flow of nobody"));
                continue;
            };
            peer.restore_flow(flow, &entry);
            self.binding.flow_mut().flows_mut().put(flow, Flow::introduced(entry, now));
            self.binding.flow_mut().doubt(now, flow, &entry, &mut self.base);
        }
        let ids: Vec<PeerId> = self.binding.session().ids();
        for id in ids {
            if !self.binding.flow().held(id).flows {
                self.base.set_timer(Timer::Idle(id), now + IDLE);
            } else {
                if self.binding.held(id).away {
                    self.base.set_timer(Timer::Keepalive(id), now + LOOK_PAUSE);
                }
                // Before the peer is saved, with the numbers of these words.
                self.binding.flow_mut().send_paused_again(id, &mut self.base);
                self.binding.apply_binding(now, id, &mut self.base);
                self.binding.accept_former(now, id, &mut self.base);
                self.binding.session_mut().reach_again(now, id, &mut self.base);
                self.base.set_timer(Timer::Vanished(id), now + VANISHED);
            }
        }
        self.binding.refresh_sets(&mut self.base);
        self.roles.rendezvous.meet_later(now, &mut self.base);
    }
}
