//! What is led somewhere that has not answered is said to be so: nothing shows that it arrives.

use std::time::Duration;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::event::{Doubt, Event};
use crate::base::op::PeerId;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::flow::peers::Away;

/// How long a peer may leave unanswered what it is asked until that is told.
const TOLD_AFTER: Duration = Duration::from_secs(5);

impl BindingLayer {
    /// What makes it doubtful that flows with a peer arrive where they are led, and since when: it does not answer.
    /// `None`: it does, or nothing is sent to it.
    pub(crate) fn doubt(&self, id: PeerId, base: &Base) -> Option<(Doubt, Time)> {
        let peer = bound!(self, &id)?;
        if base.is_suspended() || peer.path.attachment().is_none() || peer.flow.away() == Some(Away::Announced) {
            return None;
        }
        let update = peer.binding.update.as_ref().filter(|update| !update.absent && update.meanwhile.is_none());
        let update = update.map(|update| (Doubt::Moved, update.started));
        let announced = peer.path.announced_at().map(|since| (Doubt::PeerMoved, since));
        let silent = peer.path.silent_since().map(|since| (Doubt::Silent, since));
        // Where this host has moved, that is what the peer has to know before it can answer anything else.
        update.or(announced).or(silent)
    }

    /// Something was asked of a peer: where it stays unanswered that is told in time.
    pub(crate) fn await_answer(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let since = self.doubt(id, base).map(|(_, since)| since);
        let told = self.peers.get(&id).and_then(|peer| peer.doubt_told);
        if told.is_none() || told != since {
            base.set_timer_earlier(Timer::Unanswered(id), (since.unwrap_or(now) + TOLD_AFTER).max(now));
        }
    }

    /// A peer that owes an answer is heard, or a network of this host may be back: it is asked again now, and not when
    /// a row of questions without an answer has it so (P-34).
    pub(crate) fn ask_in_doubt(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some((doubt, _)) = self.doubt(id, base) else { return };
        let Some(peer) = bound_mut!(self, &id) else { return };
        match doubt {
            Doubt::Moved => {
                let first = peer.path.repeat_after(1);
                if let Some(update) = peer.binding.update.as_mut() {
                    let due = update.sent + update.prompts.prompt(first);
                    base.set_timer_earlier(Timer::Update(id), due.max(now));
                }
            }
            Doubt::Silent => {
                if let Some(due) = peer.path.prompt_check() {
                    base.set_timer_earlier(Timer::Keepalive(id), due.max(now));
                }
            }
            // Each update that comes from there has it challenged again (P-18).
            Doubt::PeerMoved => {}
        }
    }

    /// The same where a datagram has come by the path in use: one that comes by another says nothing of this one.
    pub(crate) fn hear_in_doubt(&mut self, now: Time, id: PeerId, arrival: &Arrival, base: &mut Base) {
        if self.flow.path().paths(&id).is_some_and(|paths| paths.is_by_path_in_use(arrival)) {
            self.ask_in_doubt(now, id, base);
        }
    }

    /// It is time to tell that a peer does not answer, if that is so still.
    pub(crate) fn tell_doubt(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some((doubt, since)) = self.doubt(id, base) else { return };
        if since + TOLD_AFTER > now {
            base.set_timer(Timer::Unanswered(id), since + TOLD_AFTER);
            return;
        }
        let flows = self.living(id);
        let Some(peer) = bound_mut!(self, &id).filter(|peer| flows > 0 && peer.binding.doubt_told != Some(since))
        else {
            return;
        };
        peer.binding.doubt_told = Some(since);
        let (remote, from) = (peer.path.heading(), peer.path.source());
        let (heard, unanswered) = (now.since(peer.last_heard()), now.since(since));
        let behind_nat = doubt == Doubt::Moved && peer.is_mapped();
        base.event(Event::NotConfirmed { peer: id, remote, from, doubt, unanswered, heard, behind_nat, flows });
    }

    /// A peer has answered, which something else tells.
    pub(crate) fn end_doubt(&mut self, id: PeerId, base: &mut Base) {
        if self.doubt(id, base).is_none() {
            base.stop_timer(Timer::Unanswered(id));
            if let Some(peer) = self.peers.get_mut(&id) {
                (peer.doubt_told, peer.back_untold) = (None, false);
            }
        }
    }

    /// A peer has answered, and nothing else tells it: it is told where it was told that it did not.
    pub(crate) fn tell_confirmed(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = self.peers.get(&id).filter(|_| self.doubt(id, base).is_none()) else { return };
        let (back, doubted) = (peer.back_untold, peer.doubt_told.is_some());
        self.end_doubt(id, base);
        let (flows, carried) = (self.living(id), self.carried(id));
        if back && flows > 0 {
            base.event(Event::PeerBack { peer: id, answers: true, flows, carried });
        } else if doubted && let Some(paths) = self.flow.path().paths(&id) {
            let (remote, round_trip) = (paths.remote(), paths.round_trip());
            base.event(Event::PathConfirmed { peer: id, remote, round_trip, carried });
        }
    }
}
