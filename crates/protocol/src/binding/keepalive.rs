//! Checks of a path: they keep a NAT's mapping, and show whether the peer is there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::pace::{KEEPALIVE, LOOK_PAUSE_LONGEST, REFRESH};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::flow::peers::Away;
use crate::session::contact::handshake::SHOWN_EVERY;
use crate::session::peer::Peer;

/// Unanswered checks of a path after which another handshake is begun.
const CHECKS: u32 = 3;
/// So often a check is repeated at short intervals though nothing is waited for: some two minutes long.
const SOON: u32 = 8;

impl BindingLayer {
    /// Checks the path: that keeps a NAT's mapping, and shows whether the peer still knows us.
    pub(crate) fn keep_alive(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let token = base.random().u64();
        let keeps = self.flow.session().keeps(id);
        let Some(peer) = bound_mut!(self, &id) else { return };
        let unneeded = peer.flow.flows().is_empty() && !keeps;
        if unneeded
            || peer.path.attachment().is_none()
            || peer.flow.away() == Some(Away::Announced)
            || base.is_suspended()
        {
            return;
        }
        if peer.binding.update.is_some() {
            // It finds out the same.
            base.set_timer(Timer::Keepalive(id), now + KEEPALIVE);
            return;
        }
        let locators: Vec<IpAddr> = base.attachments().addresses().copied().collect();
        let prompted = peer.path.is_check_prompted();
        let tries = peer.path.begin_check(now, token, locators.clone());
        // Where a flow has stalled, programs may give up soon; a rendezvous is checked while one is needed.
        let (least, doublings, longest) = match (peer.flow.flows().is_empty(), peer.flow.is_stalled()) {
            (true, _) => (300, 10, REFRESH),
            (false, true) => (300, 5, KEEPALIVE),
            (false, false) if tries <= SOON => (1000, 5, KEEPALIVE),
            // Nothing waits for it, and it may sleep for days.
            (false, false) => (1000, 10, LOOK_PAUSE_LONGEST),
        };
        let pause = peer.path.repeat_after(1).max(Duration::from_millis(least)) * 2u32.pow(tries.min(doublings));
        let silent_since = peer.path.silent_since();
        if tries > 0 {
            peer.flow.stalls().on_missed();
            base.signal(Signal::Overdue(id));
        }
        if let Some(since) = silent_since {
            self.fall_back_in_time(since, id, base);
        }
        let pause = self.miss(now, id, tries, base).unwrap_or(pause.min(longest));
        base.set_timer(Timer::Keepalive(id), now + pause);
        if pause > KEEPALIVE {
            self.keep_mapping(now, id, base);
        }
        self.flow.path_mut().send(id, &[Message::PathChallenge { token }, Message::Locators(locators)], base);
        self.await_answer(now, id, base);
        let beyond = tries.checked_sub(CHECKS).filter(|_| !prompted);
        if let (Some(beyond), Some(peer)) = (beyond, bound!(self, &id)) {
            // It may have started anew and not know where we are, or be elsewhere.
            let whereabouts = peer.whereabouts(base.config().port, true);
            self.flow.path_mut().start_handshake_at(now, id, whereabouts[beyond as usize % whereabouts.len()], base);
        }
    }

    /// The path is checked now, and not when its turn comes, unless that is under way, or no flow depends on it.
    pub(crate) fn check_soon(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if bound!(self, &id).is_some_and(|peer| peer.moved_flows() > 0 && !peer.path.is_checked()) {
            base.set_timer_earlier(Timer::Keepalive(id), now);
        }
    }

    /// The peer has shown that it holds the keys of a new session, which it has `asked` for or this host has, and where
    /// it was `met`; or that it is where it was said to be. A check of before says no more whether it answers: one that
    /// goes out now does, at once if it has `asked`.
    pub(crate) fn check_anew(&mut self, now: Time, id: PeerId, met: Option<SocketAddr>, asked: bool, base: &mut Base) {
        let Some(peer) = self.flow.peer_mut(&id) else { return };
        if (peer.path.check_tries() > 0 || peer.path.silent_since().is_some()) && met == Some(peer.path.remote()) {
            peer.path.forget_tries(now, true);
            if asked {
                base.set_timer(Timer::Keepalive(id), now);
            }
        }
    }

    /// Sets the next check of a path that has just shown that it works, and keeps the others ready.
    pub(crate) fn check_later(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.keep_ready(now, id, base);
        let Some(peer) = bound!(self, &id) else { return };
        let keeps = self.flow.session().keeps(id);
        let needed = keeps || !peer.flow.flows().is_empty();
        if needed && (peer.translated() || peer.moved_flows() > 0) {
            base.set_timer(Timer::Keepalive(id), now + KEEPALIVE);
        } else if keeps {
            base.set_timer(Timer::Keepalive(id), now + REFRESH);
        } else {
            base.stop_timer(Timer::Keepalive(id));
        }
    }

    /// Says from time to time in which session this end sends, as long as the peer may send in another (P-8).
    pub(crate) fn show_session_later(&self, now: Time, id: PeerId, base: &mut Base) {
        if self.flow.session().peer(&id).is_some_and(Peer::has_former) {
            base.set_timer_earlier(Timer::Show(id), now + SHOWN_EVERY);
        }
    }

    /// It is time to say so.
    pub(super) fn show_session(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound!(self, &id).filter(|peer| peer.has_former()) else { return };
        let silent = peer.flow.away() == Some(Away::Announced) || base.is_suspended();
        if !silent && peer.path.attachment().is_some() {
            self.flow.path_mut().send(id, &[Message::Padding { length: 0 }], base);
        }
        base.set_timer(Timer::Show(id), now + SHOWN_EVERY);
    }
}
