//! What comes of the ops that the caller carries out. What failed and matters is tried again.

use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::{IntroductionRefusal, Message};

use crate::Time;
use crate::flow::{Flow, Origin, Stage};
use crate::node::Node;
use crate::op::{Event, KernelOp, OpFailed, OpId, PeerId};
use crate::timer::Timer;

/// Pause before failed ops are asked for again, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_DOUBLINGS: u32 = 7;

/// What an op was for, where its failure matters.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Introduce(FlowTuple),
    Install(FlowTuple),
    Effect(&'static str),
    /// Without it flows stand still.
    State(&'static str, State),
}

/// State of the kernel that an op could not make so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Keys(PeerId),
    Path(PeerId),
    Binding(PeerId),
    Sets,
    Listening,
}

impl Node {
    /// The result of an op.
    pub fn handle_done(&mut self, now: Time, id: OpId, result: Result<(), OpFailed>) {
        let Some(asked) = self.asked.remove(&id) else { return };
        let Err(error) = result else {
            if let Asked::Install(flow) = asked {
                self.confirm_installed(&flow);
            }
            return;
        };
        match asked {
            Asked::Introduce(flow) => {
                // It may be the last of several tries; the timer knows.
                self.note_not_injected(&flow);
            }
            Asked::Install(flow) => {
                self.undo_installed(now, &flow);
                self.event(Event::OpFailed { what: format!("making {flow} movable"), error: error.sentence });
            }
            Asked::Effect(what) => self.event(Event::OpFailed { what: what.to_owned(), error: error.sentence }),
            Asked::State(what, state) => {
                self.failed.insert(state);
                self.timers.set_earlier(Timer::Mend, now + PAUSE * 2u32.pow(self.mended.min(PAUSE_DOUBLINGS)));
                self.event(Event::OpFailed { what: what.to_owned(), error: error.sentence });
            }
        }
    }

    /// Asks again for what failed.
    pub(crate) fn mend(&mut self, now: Time) {
        let failed = std::mem::take(&mut self.failed);
        self.mended = self.mended.saturating_add(1);
        for state in failed {
            match state {
                State::Keys(id) => self.add_keys(id),
                State::Path(id) => self.set_tunnel_path(id),
                State::Binding(id) => self.put_binding_in_force(id),
                State::Sets => self.put_sets_in_force(),
                State::Listening => self.put_listening_in_force(),
            }
        }
        // Once they have succeeded for long enough, the next failure is the first one.
        self.timers.set_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
    }

    /// Nothing has failed for a while.
    pub(crate) fn rest_mending(&mut self, now: Time) {
        if self.failed.is_empty() {
            self.mended = 0;
        } else {
            self.timers.set_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
        }
    }

    fn add_keys(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let sessions = peer.sessions.iter();
        let all: Vec<_> =
            sessions.map(|slot| (slot.session.local_index(), slot.session.tunnel_keys().clone(), slot.aes)).collect();
        for (receive_index, keys, aes) in all {
            let asked = Asked::State("adding tunnel keys", State::Keys(id));
            self.op(KernelOp::AddTunnelKeys { peer: id, receive_index, keys, aes }, Some(asked));
        }
        self.set_tunnel_path(id);
    }

    /// A responder's introduction could not be injected: the introducer's next try begins it anew.
    fn note_not_injected(&mut self, flow: &FlowTuple) {
        let Some(known) = self.flows.get_mut(flow) else { return };
        if let Stage::Responding { nonce, .. } = known.stage {
            known.stage = Stage::Open;
            self.nonces.remove(&nonce);
            if !known.seen {
                self.forget_flow(flow);
            }
        }
    }

    /// A flow could not be installed. The other end must not take it as movable.
    fn undo_installed(&mut self, now: Time, flow: &FlowTuple) {
        let Some(known) = self.flows.get_mut(flow) else { return };
        let Stage::Introduced { entry, origin, .. } = known.stage else { return };
        let before = std::mem::replace(&mut known.stage, Stage::Open);
        for nonce in before.own_nonces() {
            self.nonces.remove(&nonce);
        }
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.remove_flow(flow, &entry);
        }
        match origin {
            Origin::Answered(nonce, _) => {
                let outcome = Err(IntroductionRefusal::Busy);
                self.send(entry.peer, &[Message::IntroductionDone { nonce, outcome }]);
            }
            Origin::Introduced(nonce) => {
                self.send(entry.peer, &[Message::FlowClosed(vec![nonce])]);
                self.introduce_again(now, flow);
            }
            Origin::Restored => {}
        }
        self.idle_later(now, entry.peer);
        self.refresh_sets();
    }

    /// The peer, which introduced these flows, could not install them.
    pub(crate) fn handle_flows_closed(&mut self, now: Time, id: PeerId, nonces: &[u64]) {
        let named = |stage: &Stage| match stage {
            Stage::Introduced { entry, origin: Origin::Answered(nonce, _), .. } => {
                entry.peer == id && nonces.contains(nonce)
            }
            _ => false,
        };
        let closed: Vec<FlowTuple> =
            self.flows.iter().filter(|(_, known)| named(&known.stage)).map(|(flow, _)| *flow).collect();
        for flow in closed {
            let Some(known) = self.flows.get(&flow).cloned() else { continue };
            // Its socket is still there, and may be introduced again.
            self.forget_flow(&flow);
            if known.seen && !known.closed {
                let stage = Stage::Open;
                self.flows.insert(flow, Flow { stage, ..known });
            }
        }
        self.idle_later(now, id);
        self.refresh_sets();
    }
}
