//! Deadlines in tables: one of the layers, and one of each role that needs more than the earliest of its own.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use crate::Time;
use crate::base::id::PathId;
use crate::base::op::PeerId;

/// What is due in the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Ask an address again, or give it up.
    Contact(IpAddr),
    /// Look at sockets for peers that have waited for it.
    Looks,
    /// Go on with the introductions of a peer.
    Introductions(PeerId),
    /// Tell the caller which sessions introductions may come for.
    Listening,
    /// Tell a peer of datagram flows that ended.
    Closed(PeerId),
    /// Look for the flows that a peer names by their numbers.
    Pairings(PeerId),
    /// End what a peer has never accepted, since an end has moved.
    Unaccepted(PeerId),
    /// Repeat a binding update.
    Update(PeerId),
    /// Repeat a path challenge.
    Challenge(PeerId),
    /// Challenge a path that is kept ready.
    Path(PeerId, PathId),
    /// Reach a peer by TCP, or by UDP again.
    Fallback(PeerId),
    /// Repeat a carrier probe.
    Probe(PeerId),
    /// Keep the UDP mapping of a NAT, and see that the peer is there.
    Keepalive(PeerId),
    /// Keep that mapping for a peer that is away.
    Mapping(PeerId),
    /// Say in which session this end sends.
    Show(PeerId),
    /// Tell that what was asked of a peer is unanswered.
    Unanswered(PeerId),
    /// Renew the session.
    Renew(PeerId),
    /// Begin another handshake with a peer that has no session.
    Reach(PeerId),
    /// Former paths of a peer are no longer accepted.
    Former(PeerId),
    /// Tell a peer again which flows wait.
    Paused(PeerId),
    /// Tell a peer again which flows go by bindings of their own.
    Placed(PeerId),
    /// Wake the senders of single flows that go on.
    Wake(PeerId),
    /// Flows have waited so long that their sockets are kept from giving up.
    Park(PeerId),
    /// Say again what hosts have not heard, and ask again for what failed.
    Records,
    /// Forget a peer that has no flows.
    Idle(PeerId),
    /// End the flows of a peer that this host passes on and that has not been heard for very long.
    Vanished(PeerId),
    /// Tell a peer again which flows this host forgets for good.
    Forgotten(PeerId),
    /// Look again at addresses that several hosts shared.
    Shared,
    /// Drop former sessions, unfinished handshakes and unanswered introductions.
    Sweep,
    /// Ask again for ops that failed.
    Mend,
    /// See that none has failed for a while.
    Mended,
}

impl Timer {
    /// Whom it is about.
    fn peer(self) -> Option<PeerId> {
        match self {
            Self::Introductions(id)
            | Self::Closed(id)
            | Self::Pairings(id)
            | Self::Unaccepted(id)
            | Self::Update(id)
            | Self::Challenge(id)
            | Self::Path(id, _)
            | Self::Probe(id)
            | Self::Keepalive(id)
            | Self::Mapping(id)
            | Self::Unanswered(id)
            | Self::Show(id)
            | Self::Fallback(id)
            | Self::Renew(id)
            | Self::Reach(id)
            | Self::Former(id)
            | Self::Paused(id)
            | Self::Placed(id)
            | Self::Wake(id)
            | Self::Park(id)
            | Self::Idle(id)
            | Self::Vanished(id)
            | Self::Forgotten(id) => Some(id),
            Self::Contact(_)
            | Self::Looks
            | Self::Listening
            | Self::Records
            | Self::Shared
            | Self::Sweep
            | Self::Mend
            | Self::Mended => None,
        }
    }
}

impl Timers {
    /// Stops all that are about a peer.
    pub(crate) fn stop_all_of(&mut self, id: PeerId) {
        let of: Vec<Timer> = self.at.keys().filter(|timer| timer.peer() == Some(id)).copied().collect();
        of.into_iter().for_each(|timer| self.stop(timer));
    }
}

/// A table of deadlines. There is one for each key; setting it again moves it.
#[derive(Debug)]
pub(crate) struct Timers<K = Timer> {
    queue: BTreeSet<(Time, K)>,
    at: HashMap<K, Time>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { queue: BTreeSet::new(), at: HashMap::new() }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// Sets `timer` to go off at `when`, wherever it stood before.
    pub(crate) fn set(&mut self, timer: K, when: Time) {
        if let Some(old) = self.at.insert(timer, when) {
            self.queue.remove(&(old, timer));
        }
        self.queue.insert((when, timer));
    }

    /// Sets `timer` unless it is set to an earlier moment already.
    pub(crate) fn set_earlier(&mut self, timer: K, when: Time) {
        if self.at.get(&timer).is_none_or(|&old| old > when) {
            self.set(timer, when);
        }
    }

    /// Stops `timer`; no effect if it is not set.
    pub(crate) fn stop(&mut self, timer: K) {
        if let Some(old) = self.at.remove(&timer) {
            self.queue.remove(&(old, timer));
        }
    }

    /// Whether `timer` is set.
    pub(crate) fn is_set(&self, timer: K) -> bool {
        self.at.contains_key(&timer)
    }

    /// How many are set.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.first().map(|&(when, _)| when)
    }

    /// Takes the earliest timer that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<K> {
        let &(when, timer) = self.queue.first()?;
        if when > now {
            return None;
        }
        self.queue.remove(&(when, timer));
        self.at.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_deadline_for_each_key_in_order_of_time() {
        let mut timers = Timers::default();
        timers.set(Timer::Mend, Time::from_micros(20));
        timers.set(Timer::Sweep, Time::from_micros(10));
        timers.set(Timer::Mend, Time::from_micros(5));
        timers.set_earlier(Timer::Mend, Time::from_micros(7));
        assert_eq!(timers.next(), Some(Time::from_micros(5)));
        assert_eq!(timers.take_due(Time::from_micros(4)), None);
        assert_eq!(timers.take_due(Time::from_micros(30)), Some(Timer::Mend));
        timers.stop(Timer::Sweep);
        assert_eq!(timers.take_due(Time::from_micros(30)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn those_of_one_peer_stop_together() {
        let (of, other) = (PeerId(1), PeerId(2));
        let own = |id| [Timer::Update(id), Timer::Placed(id), Timer::Path(id, PathId(3)), Timer::Path(id, PathId(4))];
        let mut timers = Timers::default();
        for (timer, at) in own(of).into_iter().chain(own(other)).chain([Timer::Sweep]).zip(1..) {
            timers.set(timer, Time::from_micros(at));
        }
        timers.stop_all_of(of);
        let left: Vec<Timer> = std::iter::from_fn(|| timers.take_due(Time::from_micros(99))).collect();
        assert_eq!(left, own(other).into_iter().chain([Timer::Sweep]).collect::<Vec<_>>());
    }
}
