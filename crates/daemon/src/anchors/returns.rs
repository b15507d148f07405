//! Leases that nobody needs any more: they go back to their anchors, and who wants what one of them has meanwhile waits for that.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Time;

use super::Asked;
use crate::clock;
use crate::event_loop::EventLoop;
use crate::server::ClientId;

/// Pause before it is looked again whether anything uses what a program has left, at first and at the longest.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_LONGEST: Duration = Duration::from_secs(10);

/// Who wants what a program has left waits for no longer than this from the end of the program.
const WAITED: Duration = Duration::from_secs(3);

/// What may be returned, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// To be looked at then.
    left: Vec<Left>,
    /// When something was returned last, by anchors.
    last: HashMap<PublicKey, Time>,
    waiting: Vec<Waiting>,
}

/// A lease that may be in nobody's use.
#[derive(Clone, Copy, Debug)]
struct Left {
    lease: u64,
    /// When the program that it was for has ended, which may have started others that go on; `None` where there is no such program.
    ended: Option<Time>,
    due: Time,
    pause: Duration,
}

/// What is asked for again once nothing is in its way.
#[derive(Debug)]
struct Waiting {
    anchor: PublicKey,
    /// `None`: any of the anchor's.
    end: Option<SocketAddr>,
    asked: Asked,
}

impl EventLoop {
    /// The program that a namespace was for has ended, but perhaps not all that it has started.
    pub(super) fn leave_namespace(&mut self, client: ClientId) {
        let (now, leases) = (clock::now(), self.anchors.namespaces.remove(&client).unwrap_or_default());
        let left = |lease| Left { lease, ended: Some(now), due: now, pause: LOOK };
        self.anchors.returns.left.extend(leases.into_iter().map(left));
    }

    /// Leases of a daemon before this one, whose programs are not this one's clients.
    pub(crate) fn look_after_leases(&mut self, leases: impl Iterator<Item = u64>) {
        let now = clock::now();
        let left = |lease| Left { lease, ended: None, due: now, pause: LOOK };
        self.anchors.returns.left.extend(leases.map(left));
    }

    /// Returns what nobody uses, and goes on with what has waited for that.
    pub(super) fn return_leases(&mut self, now: Time) {
        self.look_after_idle_leases(now);
        let due: Vec<_> = self.anchors.returns.left.extract_if(.., |left| left.due <= now).collect();
        for left in due {
            if self.effects.is_lease_used(left.lease) {
                let pause = (2 * left.pause).min(LOOK_LONGEST);
                self.anchors.returns.left.push(Left { due: now + left.pause, pause, ..left });
            } else {
                self.node.return_lease(now, left.lease);
            }
        }
        for waiting in std::mem::take(&mut self.anchors.returns.waiting) {
            if self.is_about_to_return(now, waiting.anchor, waiting.end) {
                self.anchors.returns.waiting.push(waiting);
            } else {
                self.ask_again(waiting.asked);
            }
        }
    }

    /// Programs do not say that they need no socket of a lease any more. But for those that came with a namespace, and are their program's as
    /// long as that runs, it is looked at now and then: an anchor that is to be switched off waits for it.
    fn look_after_idle_leases(&mut self, now: Time) {
        let anchors = &mut self.anchors;
        for lease in self.node.rented().map(|of| of.number) {
            let known = anchors.returns.left.iter().any(|left| left.lease == lease)
                || anchors.asked.contains_key(&lease)
                || anchors.namespaces.values().flatten().any(|of| *of == lease);
            if !known {
                let left = Left { lease, ended: None, due: now + LOOK_LONGEST, pause: LOOK_LONGEST };
                anchors.returns.left.push(left);
            }
        }
    }

    /// Whether a program of this host that had `end`, or any endpoint of an anchor's, has just ended, so that it will be free in a moment.
    pub(super) fn is_about_to_return(&self, now: Time, anchor: PublicKey, end: Option<SocketAddr>) -> bool {
        let just_ended = |left: &Left| left.ended.is_some_and(|ended| now < ended + WAITED);
        let of = |lease| self.node.rented().find(|of| of.number == lease);
        let has = |lease| of(lease).is_some_and(|of| of.anchor == anchor && end.is_none_or(|end| of.ends.contain(end)));
        self.anchors.returns.left.iter().any(|left| just_ended(left) && has(left.lease))
    }

    /// Whether this host has less of an anchor than it had then, or will in a moment.
    pub(super) fn has_less_since(&self, then: Time, anchor: PublicKey) -> bool {
        let returned = self.anchors.returns.last.get(&anchor).is_some_and(|at| *at >= then);
        returned || self.is_about_to_return(clock::now(), anchor, None)
    }

    /// Something was returned to an anchor.
    pub(super) fn note_return(&mut self, anchor: PublicKey) {
        self.anchors.returns.last.insert(anchor, clock::now());
    }

    /// Asks again when nothing of that is about to be returned.
    pub(super) fn wait_for_return(&mut self, anchor: PublicKey, end: Option<SocketAddr>, asked: Asked) {
        self.anchors.returns.waiting.push(Waiting { anchor, end, asked });
    }

    /// Of clients that may wait.
    pub(super) fn forget_waiting(&mut self, clients: &[ClientId]) {
        for waiting in &mut self.anchors.returns.waiting {
            waiting.asked.wanted.retain(|wanted| !clients.contains(&wanted.client()));
        }
        self.anchors.returns.waiting.retain(|waiting| !waiting.asked.wanted.is_empty());
    }
}
