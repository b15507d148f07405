//! Leases that nobody needs any more: they go back to their anchors, and who wants what one of them has meanwhile waits for that.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{FlowName, Rented, Time};

use super::Asked;
use crate::api::server::ClientId;
use crate::clock;
use crate::event_loop::EventLoop;

/// Pause before it is looked again whether anything uses what a program has left, at first and at the longest.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_LONGEST: Duration = Duration::from_secs(10);

/// What a program has left is waited for as long from its end.
const EXPECTED: Duration = Duration::from_secs(5);

/// Who wants what programs have left waits for no longer than this, whatever others end meanwhile: less than programs wait for an answer.
const WAITED: Duration = Duration::from_secs(5);

/// What may be returned, and who waits for that.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    /// To be looked at then.
    left: Vec<Left>,
    /// When something was returned last, by anchors.
    last: HashMap<PublicKey, Time>,
    waiting: Vec<Waiting>,
}

/// A lease that may be in nobody's use.
#[derive(Clone, Copy, Debug)]
struct Left {
    lease: FlowName,
    /// When the program that it was for has ended, which may have started others that go on; `None` where there is no such program.
    ended: Option<Time>,
    due: Time,
    pause: Duration,
}

/// What is asked for again once something is returned.
#[derive(Debug)]
struct Waiting {
    what: Awaited,
    asked: Asked,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// This one of an anchor's.
    End(PublicKey, SocketAddr),
    /// Any of these anchors'.
    Any(Vec<PublicKey>),
}

impl Returns {
    /// Whether a program has just ended to which any of the leases was given that `is_of` is about: what it had will be free in a moment.
    fn is_about_to_return(&self, now: Time, is_of: impl Fn(FlowName) -> bool) -> bool {
        let just_ended = |left: &&Left| left.ended.is_some_and(|ended| now < ended + EXPECTED);
        self.left.iter().filter(just_ended).any(|left| is_of(left.lease))
    }

    fn has_returned(&self, since: Time, anchor: &PublicKey) -> bool {
        self.last.get(anchor).is_some_and(|at| *at >= since)
    }

    fn wait(&mut self, now: Time, what: Awaited, mut asked: Asked) {
        asked.wait_until(now);
        self.waiting.push(Waiting { what, asked });
    }

    /// Takes what is to be asked for again: something was returned, or nothing is about to be, or it has waited for long enough.
    fn take_ready(&mut self, now: Time, is_about_to_return: impl Fn(&Self, &Awaited) -> bool) -> Vec<Asked> {
        let waiting = std::mem::take(&mut self.waiting);
        let is_ready = |of: &Waiting| {
            let returned = match &of.what {
                Awaited::End(..) => false,
                Awaited::Any(anchors) => anchors.iter().any(|anchor| self.has_returned(of.asked.at, anchor)),
            };
            returned || !of.asked.may_wait(now) || !is_about_to_return(self, &of.what)
        };
        let (ready, waiting) = waiting.into_iter().partition(is_ready);
        self.waiting = waiting;
        ready.into_iter().map(|of: Waiting| of.asked).collect()
    }
}

impl Asked {
    /// Whether it may wait for what is about to be returned: it has not done so for long enough.
    pub(crate) fn may_wait(&self, now: Time) -> bool {
        self.waits_until.is_none_or(|until| now < until)
    }

    /// It waits from now on, or did before.
    pub(crate) fn wait_until(&mut self, now: Time) {
        self.waits_until.get_or_insert(now + WAITED);
    }
}

impl EventLoop {
    /// The program that a namespace was for has ended, but perhaps not all that it has started.
    pub(crate) fn leave_namespace(&mut self, client: ClientId) {
        let (now, leases) = (clock::now(), self.anchors.namespaces.remove(&client).unwrap_or_default());
        let left = |lease| Left { lease, ended: Some(now), due: now, pause: LOOK };
        self.anchors.returns.left.extend(leases.into_iter().map(left));
    }

    /// Leases of a daemon before this one, whose programs are not this one's clients.
    pub(crate) fn look_after_leases(&mut self, leases: impl Iterator<Item = FlowName>) {
        let now = clock::now();
        // Which of these programs have ended is not known: any may have, just now.
        let left = |lease| Left { lease, ended: Some(now), due: now, pause: LOOK };
        self.anchors.returns.left.extend(leases.map(left));
    }

    /// Returns what nobody uses, and goes on with what has waited for that.
    pub(crate) fn return_leases(&mut self, now: Time) {
        self.look_after_idle_leases(now);
        let due: Vec<_> = self.anchors.returns.left.extract_if(.., |left| left.due <= now).collect();
        for left in due {
            if self.effects.tenant.is_lease_used(&mut self.effects.host, left.lease) {
                let pause = (2 * left.pause).min(LOOK_LONGEST);
                self.anchors.returns.left.push(Left { due: now + left.pause, pause, ..left });
            } else {
                self.node.return_lease(now, left.lease);
            }
        }
        let rented: Vec<Rented> = self.node.rented().collect();
        let about_to = |returns: &Returns, what: &Awaited| is_awaited(returns, now, &rented, what);
        let ready = self.anchors.returns.take_ready(now, about_to);
        ready.into_iter().for_each(|asked| self.ask_again(asked));
    }

    /// Programs do not say that they need no socket of a lease any more. But for those that came with a namespace, and are their program's as
    /// long as that runs, it is looked at now and then: an anchor that is to be switched off waits for it.
    fn look_after_idle_leases(&mut self, now: Time) {
        let anchors = &mut self.anchors;
        for lease in self.node.rented().map(|of| of.lease()) {
            let known = anchors.returns.left.iter().any(|left| left.lease == lease)
                || anchors.asked.contains_key(&lease)
                || anchors.namespaces.values().flatten().any(|of| *of == lease);
            if !known {
                let left = Left { lease, ended: None, due: now + LOOK_LONGEST, pause: LOOK_LONGEST };
                anchors.returns.left.push(left);
            }
        }
    }

    /// Whether a program of this host that had any of this has just ended, so that it will be free in a moment.
    pub(crate) fn is_about_to_return(&self, now: Time, what: &Awaited) -> bool {
        let rented: Vec<Rented> = self.node.rented().collect();
        is_awaited(&self.anchors.returns, now, &rented, what)
    }

    /// Whether this host has less of an anchor than it had then, or will in a moment.
    pub(crate) fn has_less_since(&self, then: Time, anchor: PublicKey) -> bool {
        let returned = self.anchors.returns.has_returned(then, &anchor);
        returned || self.is_about_to_return(clock::now(), &Awaited::Any(vec![anchor]))
    }

    /// Something was returned to an anchor.
    pub(crate) fn note_return(&mut self, anchor: PublicKey) {
        self.anchors.returns.last.insert(anchor, clock::now());
    }

    /// Asks again when an endpoint that another program had is free, or has not become so in time.
    pub(crate) fn wait_for_end(&mut self, anchor: PublicKey, end: SocketAddr, asked: Asked) {
        self.anchors.returns.wait(clock::now(), Awaited::End(anchor, end), asked);
    }

    /// Asks the anchors again that are to have something back, in their order and before others, when one of them has.
    pub(crate) fn wait_for_any(&mut self, mut asked: Asked) {
        let anchors = std::mem::take(&mut asked.late);
        anchors.iter().rev().for_each(|anchor| asked.others.push_front(Some(*anchor)));
        self.anchors.returns.wait(clock::now(), Awaited::Any(anchors), asked);
    }

    /// Of clients that may wait.
    pub(crate) fn forget_waiting(&mut self, clients: &[ClientId]) {
        for waiting in &mut self.anchors.returns.waiting {
            waiting.asked.wanted.retain(|wanted| !clients.contains(&wanted.client()));
        }
        self.anchors.returns.waiting.retain(|waiting| !waiting.asked.wanted.is_empty());
    }
}

/// Whether a program has just ended that had any of this.
fn is_awaited(returns: &Returns, now: Time, rented: &[Rented], what: &Awaited) -> bool {
    let is_of = |of: &Rented| match what {
        Awaited::End(anchor, end) => of.anchor == *anchor && of.ends.contain(*end),
        Awaited::Any(anchors) => anchors.contains(&of.anchor),
    };
    returns.is_about_to_return(now, |lease| rented.iter().any(|of| of.lease() == lease && is_of(of)))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use whimbrel_wire::lending::Ends;

    use super::*;
    use crate::role::anchor::api::Wanted;

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
    fn asked() -> Asked {
        Asked { at: at(0), ..Asked::of(Wanted::Process { address: end(0).ip() }) }
    }

    /// A lease of an anchor's, of as many ports from this one on.
    fn rented(number: u64, of: u8, port: u16) -> Rented {
        Rented { number, anchor: anchor(of), ends: Ends { first: end(port), count: 10 }, moved: None }
    }

    /// The program of a lease has ended.
    fn leave(returns: &mut Returns, number: u64, ended: u64) {
        let lease = FlowName::new(anchor(1), number);
        returns.left.push(Left { lease, ended: Some(at(ended)), due: at(ended), pause: LOOK });
    }

    /// What is asked for again.
    fn ready(returns: &mut Returns, now: u64, rented: &[Rented]) -> Vec<Asked> {
        returns.take_ready(at(now), |returns, what| is_awaited(returns, at(now), rented, what))
    }

    #[test]
    fn who_waits_for_any_asks_again_at_the_first_return() {
        let (mut returns, rented) = (Returns::default(), [rented(1, 1, 8000), rented(2, 1, 8100)]);
        leave(&mut returns, 1, 0);
        leave(&mut returns, 2, 0);
        returns.wait(at(100), Awaited::Any(vec![anchor(1), anchor(2)]), asked());
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
        let (mut returns, all) = (Returns::default(), [rented(1, 1, 8000), rented(2, 1, 8100)]);
        leave(&mut returns, 1, 0);
        leave(&mut returns, 2, 0);
        returns.wait(at(0), Awaited::End(anchor(1), end(8005)), asked());
        returns.last.insert(anchor(1), at(100));
        assert_eq!(ready(&mut returns, 200, &all).len(), 0, "another was returned");
        assert_eq!(ready(&mut returns, 300, &all[1..]).len(), 1);
    }

    #[test]
    fn nobody_waits_for_longer_than_said_whatever_ends_meanwhile() {
        let (mut returns, rented) = (Returns::default(), [rented(1, 1, 8000)]);
        for what in [Awaited::Any(vec![anchor(1)]), Awaited::End(anchor(1), end(8000))] {
            let mut next = Some(asked());
            for now in (0..WAITED.as_millis() as u64).step_by(100) {
                // One after the other; and each time something was returned it is asked for again, and refused.
                returns.left.clear();
                leave(&mut returns, 1, now);
                if now % 500 == 0 {
                    returns.last.insert(anchor(1), at(now));
                }
                if let Some(asked) = next.take() {
                    assert!(asked.may_wait(at(now)), "{what:?} {now}");
                    returns.wait(at(now), what.clone(), Asked { at: at(now + 1), ..asked });
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
    fn what_is_left_for_long_is_not_waited_for() {
        let (mut returns, rented) = (Returns::default(), [rented(1, 1, 8000)]);
        leave(&mut returns, 1, 0);
        let awaited = |now: u64, what: Awaited| is_awaited(&returns, at(now), &rented, &what);
        let long = EXPECTED.as_millis() as u64;
        assert!(awaited(long - 1, Awaited::Any(vec![anchor(1)])) && !awaited(long, Awaited::Any(vec![anchor(1)])));
        assert!(awaited(0, Awaited::End(anchor(1), end(8009))) && !awaited(0, Awaited::End(anchor(1), end(8010))));
        assert!(!awaited(0, Awaited::Any(vec![anchor(2)])) && !awaited(0, Awaited::End(anchor(2), end(8000))));
        // Whose program runs on.
        returns.left[0].ended = None;
        assert!(!is_awaited(&returns, at(0), &rented, &Awaited::Any(vec![anchor(1)])));
    }
}
