//! Leases that nobody needs any more: they go back to their anchors, and who wants what one of them has meanwhile waits
//! for that.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use super::search::Search;
use crate::Time;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::Rented;

/// Pause before it is looked again whether anything uses what a program has left, at first and at the longest.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_LONGEST: Duration = Duration::from_secs(10);

/// What a program has left is waited for as long from its end.
const EXPECTED: Duration = Duration::from_secs(5);

/// What may be returned, and who waits for that: what somebody wants is a `T`.
#[derive(Debug)]
pub struct Returns<T> {
    /// To be looked at then.
    left: Vec<Left>,
    /// When something was returned last, by anchors.
    last: HashMap<PublicKey, Time>,
    waiting: Vec<Waiting<T>>,
}

/// A lease that may be in nobody's use.
#[derive(Clone, Copy, Debug)]
struct Left {
    lease: FlowName,
    /// When the program that it was for has ended, which may have started others that go on; `None` where there is no
    /// such program.
    ended: Option<Time>,
    due: Time,
    pause: Duration,
}

/// What is asked for again once something is returned.
#[derive(Debug)]
struct Waiting<T> {
    what: Awaited,
    search: Search,
    wanted: T,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// This one of an anchor's.
    End(PublicKey, SocketAddr),
    /// Any of these anchors'.
    Any(Vec<PublicKey>),
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Self { left: Vec::new(), last: HashMap::new(), waiting: Vec::new() }
    }
}

impl<T> Returns<T> {
    /// The program that a lease was for has ended, or may have, but perhaps not all that it has started.
    pub fn leave(&mut self, now: Time, lease: FlowName) {
        self.left.push(Left { lease, ended: Some(now), due: now, pause: LOOK });
    }

    /// A lease is looked at now and then that is no program's: those do not say that they need no socket of it any
    /// more, and an anchor that is to be switched off waits for it.
    pub fn expire(&mut self, now: Time, lease: FlowName) {
        if !self.left.iter().any(|left| left.lease == lease) {
            self.left.push(Left { lease, ended: None, due: now + LOOK_LONGEST, pause: LOOK_LONGEST });
        }
    }

    /// The leases that are to go back, since nothing uses them. Those that something uses are looked at later. They
    /// count as returned from now on: what their anchor has refused meanwhile may be told before that they were.
    pub fn take_unused(&mut self, now: Time, mut is_used: impl FnMut(FlowName) -> bool) -> Vec<FlowName> {
        let due: Vec<Left> = self.left.extract_if(.., |left| left.due <= now).collect();
        let (used, unused): (Vec<Left>, Vec<Left>) = due.into_iter().partition(|left| is_used(left.lease));
        let later = |left: Left| Left { due: now + left.pause, pause: (2 * left.pause).min(LOOK_LONGEST), ..left };
        self.left.extend(used.into_iter().map(later));
        self.last.extend(unused.iter().map(|left| (left.lease.peer(), now)));
        unused.into_iter().map(|left| left.lease).collect()
    }

    /// Whether a program has just ended that had any of this: it will be free in a moment. `rented`: what this host has
    /// on lease.
    #[must_use]
    pub fn is_about_to_return(&self, now: Time, rented: &[Rented], what: &Awaited) -> bool {
        let is_of = |of: &Rented| match what {
            Awaited::End(anchor, end) => of.anchor == *anchor && of.ends.contain(*end),
            Awaited::Any(anchors) => anchors.contains(&of.anchor),
        };
        let just_ended = |left: &&Left| left.ended.is_some_and(|ended| now < ended + EXPECTED);
        let had = |left: &Left| rented.iter().any(|of| of.lease() == left.lease && is_of(of));
        self.left.iter().filter(just_ended).any(had)
    }

    /// Something was returned to an anchor.
    pub fn on_returned(&mut self, now: Time, anchor: PublicKey) {
        self.last.insert(anchor, now);
    }

    /// Whether something was returned to an anchor since then.
    #[must_use]
    pub fn has_returned(&self, since: Time, anchor: &PublicKey) -> bool {
        self.last.get(anchor).is_some_and(|at| *at >= since)
    }

    /// Something waits until what another program had is free, or has not become so in time.
    pub fn wait(&mut self, now: Time, what: Awaited, mut search: Search, wanted: T) {
        search.wait(now);
        self.waiting.push(Waiting { what, search, wanted });
    }

    /// Takes what is to be asked for again: something was returned, or nothing is about to be, or it has waited for
    /// long enough.
    pub fn take_ready(&mut self, now: Time, rented: &[Rented]) -> Vec<(Search, T)> {
        let waiting = std::mem::take(&mut self.waiting);
        let is_ready = |of: &Waiting<T>| {
            let returned = match &of.what {
                Awaited::End(..) => false,
                Awaited::Any(anchors) => anchors.iter().any(|anchor| self.has_returned(of.search.asked(), anchor)),
            };
            returned || !of.search.may_wait(now) || !self.is_about_to_return(now, rented, &of.what)
        };
        let (ready, waiting) = waiting.into_iter().partition(is_ready);
        self.waiting = waiting;
        ready.into_iter().map(|of: Waiting<T>| (of.search, of.wanted)).collect()
    }

    /// Keeps of what waits what somebody wants still.
    pub fn retain_waiting(&mut self, mut keeps: impl FnMut(&mut T) -> bool) {
        self.waiting.retain_mut(|waiting| keeps(&mut waiting.wanted));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use whimbrel_wire::lending::Ends;

    use super::*;
    use crate::role::anchor::search::WAITED;

    fn anchor(byte: u8) -> PublicKey {
        PublicKey::from([byte; 32])
    }

    fn at(milliseconds: u64) -> Time {
        Time::from_micros(1_000_000_000 + 1000 * milliseconds)
    }

    fn end(port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::from([192, 0, 2, 1]), port)
    }

    /// Something that was refused at the beginning.
    fn asked(milliseconds: u64) -> Search {
        let mut search = Search::default();
        search.note_asked(at(milliseconds));
        search
    }

    /// A lease of an anchor's, of as many ports from this one on.
    fn rented(number: u64, of: u8, port: u16) -> Rented {
        Rented { number, anchor: anchor(of), ends: Ends { first: end(port), count: 10 }, moved: None }
    }

    /// The program of a lease has ended.
    fn leave(returns: &mut Returns<()>, number: u64, ended: u64) {
        let lease = FlowName::new(anchor(1), number);
        returns.leave(at(ended), lease);
    }

    /// What is asked for again.
    fn ready(returns: &mut Returns<()>, now: u64, rented: &[Rented]) -> Vec<Search> {
        returns.take_ready(at(now), rented).into_iter().map(|(search, ())| search).collect()
    }

    #[test]
    fn who_waits_for_any_asks_again_at_the_first_return() {
        let (mut returns, rented) = (Returns::<()>::default(), [rented(1, 1, 8000), rented(2, 1, 8100)]);
        leave(&mut returns, 1, 0);
        leave(&mut returns, 2, 0);
        returns.wait(at(100), Awaited::Any(vec![anchor(1), anchor(2)]), asked(0), ());
        assert_eq!(ready(&mut returns, 200, &rented).len(), 0);
        // Before it was refused, or of another anchor.
        let before = Time::from_micros(at(0).as_micros() - 1);
        returns.last.extend([(anchor(1), before), (anchor(3), at(300))]);
        assert_eq!(ready(&mut returns, 300, &rented).len(), 0);
        returns.last.insert(anchor(2), at(350));
        assert_eq!(ready(&mut returns, 400, &rented).len(), 1, "the other program goes on");
        assert!(returns.waiting.is_empty());
    }

    #[test]
    fn who_waits_for_one_endpoint_does_until_it_is_free() {
        let (mut returns, all) = (Returns::<()>::default(), [rented(1, 1, 8000), rented(2, 1, 8100)]);
        leave(&mut returns, 1, 0);
        leave(&mut returns, 2, 0);
        returns.wait(at(0), Awaited::End(anchor(1), end(8005)), asked(0), ());
        returns.last.insert(anchor(1), at(100));
        assert_eq!(ready(&mut returns, 200, &all).len(), 0, "another was returned");
        assert_eq!(ready(&mut returns, 300, &all[1..]).len(), 1);
    }

    #[test]
    fn nobody_waits_for_longer_than_said_whatever_ends_meanwhile() {
        let (mut returns, rented) = (Returns::<()>::default(), [rented(1, 1, 8000)]);
        for what in [Awaited::Any(vec![anchor(1)]), Awaited::End(anchor(1), end(8000))] {
            let mut next = Some(asked(0));
            for now in (0..WAITED.as_millis() as u64).step_by(100) {
                // One after the other; and each time something was returned it is asked for again, and refused.
                returns.left.clear();
                leave(&mut returns, 1, now);
                if now % 500 == 0 {
                    returns.last.insert(anchor(1), at(now));
                }
                if let Some(mut search) = next.take() {
                    assert!(search.may_wait(at(now)), "{what:?} {now}");
                    search.note_asked(at(now + 1));
                    returns.wait(at(now), what.clone(), search, ());
                }
                next = ready(&mut returns, now, &rented).pop();
                assert!(next.is_none() || now % 500 == 0, "{what:?} {now}");
            }
            let last = WAITED.as_millis() as u64;
            let ready =
                next.or_else(|| ready(&mut returns, last, &rented).pop()).expect("it has waited for long enough");
            assert!(!ready.may_wait(at(last)), "it may wait once more");
        }
    }

    #[test]
    fn what_goes_back_counts_as_returned_at_once() {
        let mut returns = Returns::<()>::default();
        leave(&mut returns, 1, 0);
        leave(&mut returns, 2, 0);
        assert_eq!(returns.take_unused(at(10), |lease| lease.value() == 2), [FlowName::new(anchor(1), 1)]);
        // Asked just before it was known that nothing uses it, and refused before it is told that it was returned.
        assert!(returns.has_returned(at(9), &anchor(1)) && returns.has_returned(at(10), &anchor(1)));
        assert!(!returns.has_returned(at(11), &anchor(1)) && !returns.has_returned(at(9), &anchor(2)));
        assert!(returns.take_unused(at(1000), |_| true).is_empty(), "it is used still");
        assert!(!returns.has_returned(at(11), &anchor(1)));
    }

    #[test]
    fn what_is_left_for_long_is_not_waited_for() {
        let (mut returns, rented) = (Returns::<()>::default(), [rented(1, 1, 8000)]);
        leave(&mut returns, 1, 0);
        let awaited = |now: u64, what: Awaited| returns.is_about_to_return(at(now), &rented, &what);
        let long = EXPECTED.as_millis() as u64;
        assert!(awaited(long - 1, Awaited::Any(vec![anchor(1)])) && !awaited(long, Awaited::Any(vec![anchor(1)])));
        assert!(awaited(0, Awaited::End(anchor(1), end(8009))) && !awaited(0, Awaited::End(anchor(1), end(8010))));
        assert!(!awaited(0, Awaited::Any(vec![anchor(2)])) && !awaited(0, Awaited::End(anchor(2), end(8000))));
        // Whose program runs on.
        returns.left[0].ended = None;
        assert!(!returns.is_about_to_return(at(0), &rented, &Awaited::Any(vec![anchor(1)])));
    }
}
