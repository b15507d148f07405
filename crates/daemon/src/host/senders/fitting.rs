//! When sockets are to be made to fit what has become of their flows.
//!
//! A pass goes through all sockets and waits for each that is busy, and any user can keep one busy for as long as it
//! likes: by sending from memory whose file system does not answer. So a thread makes it, and nothing waits for that.
//! Where a pass is late the next is begun beside it, since it may be kept by an endpoint namespace's socket, to which
//! it comes last.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use whimbrel_datapath::{Fitted, SocketsApart};
use whimbrel_kernel::namespace::Entered;
use whimbrel_protocol::{PeerId, Time};

use crate::host::Failure;

/// Pauses between looks at sockets whose options cannot be put back yet, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);

/// For how long what comes in is looked at for stale echoes once flows go on: several round trips of the longest paths.
const ECHOES: Duration = Duration::from_secs(10);

/// For how long packets of flows that go another way from now on may still come in by the former one: several round
/// trips. A socket that is bound to a device takes none that come by another, and the kernel would reset its
/// connection.
const STRAGGLERS: Duration = Duration::from_secs(3);

/// A pass takes one part in so many of the time at the most: peers can make one due with each move (P-143).
const SHARE: u32 = 4;

/// A pass that takes longer is late, and the next does not wait for it.
const LATE: Duration = Duration::from_secs(1);

/// Passes that may be late at a time.
const MOST_LATE: usize = 4;

/// What a thread has come to that has made a pass.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Which one it was.
    pub(crate) number: u64,
    pub(crate) fitted: Result<Fitted, Failure>,
    /// How long it took.
    pub(crate) took: Duration,
    /// Peers whose senders are to be woken once more, as some of their sockets were bound to devices, and whether what
    /// they had in flight is lost.
    pub(crate) wake: Vec<(PeerId, bool)>,
    /// How many sockets of endpoint namespaces wait to be put back, where these were gone through.
    pub(crate) inside: Option<usize>,
}

impl Passed {
    /// Nothing came of it.
    pub(crate) fn failed(number: u64, why: Failure) -> Self {
        Self { number, fitted: Err(why), took: Duration::ZERO, wake: Vec::new(), inside: None }
    }
}

/// Makes a pass over the sockets of the calling thread's network namespace, and then of those that are `inside`, where
/// no device is theirs to be bound to.
pub(crate) fn pass(
    number: u64,
    sockets: &SocketsApart,
    interfaces: &[u32],
    inside: &[OwnedFd],
    wake: Vec<(PeerId, bool)>,
) -> Passed {
    let begun = Instant::now();
    let all = || -> Result<(Fitted, usize), Failure> {
        let (mut all, mut waiting) = (sockets.fit(interfaces)?, 0);
        for namespace in inside {
            let _inside = Entered::descriptor(namespace.as_fd())?;
            let fitted = sockets.fit(&[])?;
            all = Fitted { changed: all.changed + fitted.changed, waiting: all.waiting + fitted.waiting };
            waiting += fitted.waiting;
        }
        Ok((all, waiting))
    };
    let (fitted, waiting) = match all() {
        Ok((all, waiting)) => (Ok(all), Some(waiting)),
        Err(failure) => (Err(failure), None),
    };
    Passed { number, fitted, took: begun.elapsed(), wake, inside: waiting.filter(|_| !inside.is_empty()) }
}

/// Whether a pass over the sockets is due.
#[derive(Debug, Default)]
pub(crate) struct Fitting {
    /// Flows may be moved, parked or native that were not at the last pass.
    wanted: bool,
    /// Some could not be made to fit, in so many passes in a row; the next is due then.
    again: Option<(u32, Time)>,
    /// From when on sockets of flows that are home again may be bound to their devices again.
    bind_from: Option<Time>,
    /// No other pass before that; what is wanted meanwhile is served by it.
    not_before: Option<Time>,
    /// No socket in an endpoint namespace waits, nor is any to be put back. A daemon before this one may have left
    /// such.
    none_inside: bool,
    /// How many passes were begun, and the newest that is over.
    passes: u64,
    newest: u64,
    /// Passes that are being made, and when the last of them was begun.
    out: usize,
    begun: Time,
    /// Until when echoes of what was sent before a lapse may come in.
    lapsed_until: Option<Time>,
}

impl Fitting {
    /// Something has become of flows. Those that could not be made to fit before are looked at as often as these.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
        self.again = self.again.map(|(_, due)| (0, due));
    }

    /// Flows go another way from now on.
    pub(crate) fn on_routes_changed(&mut self, now: Time) {
        self.want();
        self.bind_from = Some(now + STRAGGLERS);
    }

    /// Whether a pass is to be made now; it is taken as begun.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        if self.held_until().is_none_or(|until| until > now) {
            return false;
        }
        self.not_before = None;
        let settled = self.bind_from.take_if(|from| *from <= now).is_some();
        let due = std::mem::take(&mut self.wanted) || settled || self.again.is_some_and(|(_, due)| due <= now);
        if due {
            if self.out > 0 {
                tracing::warn!(
                    late = self.out,
                    "some program keeps a socket of its own busy: until it lets go of it, connections that are bound to a device \
                     may stand still, and those that wait may give up"
                );
            }
            self.out += 1;
            self.passes += 1;
            self.begun = now;
        }
        due
    }

    /// No pass is begun before that; `None`: before one is over.
    fn held_until(&self) -> Option<Time> {
        let late = match self.out {
            0 => Time::default(),
            1..=MOST_LATE => self.begun + LATE,
            _ => return None,
        };
        Some(self.not_before.map_or(late, |until| until.max(late)))
    }

    /// The number of the pass that was begun last.
    pub(crate) fn number(&self) -> u64 {
        self.passes
    }

    /// A pass is over, and took so long. Whether it is the newest that is: one that was late says how things were.
    pub(crate) fn rest(&mut self, now: Time, number: u64, took: Duration) -> bool {
        let is_newest = number >= self.newest;
        self.newest = self.newest.max(number);
        self.out = self.out.saturating_sub(1);
        // One that was kept waiting has taken nothing but time.
        self.not_before = Some(now + SHARE * took.min(LATE));
        is_newest
    }

    /// Whether any pass is being made.
    pub(crate) fn is_out(&self) -> bool {
        self.out > 0
    }

    /// The next pass is made whenever the last one was.
    pub(crate) fn rested(&mut self) {
        self.not_before = None;
    }

    /// Whether this pass may bind sockets to devices.
    pub(crate) fn binds(&self) -> bool {
        self.bind_from.is_none()
    }

    /// Whether a pass goes through endpoint namespaces. `wanted`: there may be something to do.
    pub(crate) fn looks_inside(&self, wanted: bool) -> bool {
        wanted || !self.none_inside
    }

    /// A pass has gone through these. `waits`: sockets in them may wait, or are to be put back.
    pub(crate) fn set_inside(&mut self, waits: bool) {
        self.none_inside = !waits;
    }

    /// A pass has left this many sockets to come back to.
    pub(crate) fn set_waiting(&mut self, now: Time, waiting: usize) {
        let passes = self.again.map_or(0, |(passes, _)| passes);
        let pause = (PAUSE * 2u32.pow(passes.min(10))).min(PAUSE_LONGEST);
        self.again = (waiting > 0).then_some((passes + 1, now + pause));
    }

    /// Flows wait, or go on after a lapse.
    pub(crate) fn on_lapse(&mut self, now: Time) {
        self.lapsed_until = Some(now + ECHOES);
    }

    /// Whether the last lapse is long enough ago; that is said once.
    pub(crate) fn take_lapse(&mut self, now: Time) -> bool {
        self.lapsed_until.take_if(|until| *until <= now).is_some()
    }

    /// When there is something to do, where nothing happens before.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let held = self.held_until();
        let waits = held.filter(|_| self.wanted && (self.not_before.is_some() || self.out > 0));
        let pass = self.again.map(|(_, due)| due).into_iter().chain(self.bind_from).chain(waits).min();
        let pass = pass.and_then(|due| held.map(|until| due.max(until)));
        pass.into_iter().chain(self.lapsed_until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a pass if one is due, and ends it at once.
    fn passes(fitting: &mut Fitting, now: Time) -> bool {
        let due = fitting.take(now);
        if due {
            fitting.rest(now, fitting.number(), Duration::ZERO);
            fitting.rested();
        }
        due
    }

    #[test]
    fn what_waits_is_come_back_to_less_and_less_often() {
        let (mut fitting, mut now) = (Fitting::default(), Time::default());
        assert!(!passes(&mut fitting, now) && fitting.timeout().is_none());
        fitting.want();
        assert!(passes(&mut fitting, now) && !passes(&mut fitting, now));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            fitting.set_waiting(now, 3);
            let due = fitting.timeout().expect("another pass");
            assert!(!passes(&mut fitting, now));
            pauses.push(due.since(now));
            now = due;
            assert!(passes(&mut fitting, now));
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSE && pauses[9] == PAUSE_LONGEST, "{pauses:?}");
        // Others need not wait so long.
        fitting.want();
        assert!(passes(&mut fitting, now));
        fitting.set_waiting(now, 4);
        assert_eq!(fitting.timeout().map(|due| due.since(now)), Some(PAUSE));
        fitting.set_waiting(now, 0);
        assert!(fitting.timeout().is_none());
    }

    #[test]
    fn endpoint_namespaces_are_looked_into_once_more_after_the_last_has_waited() {
        let mut fitting = Fitting::default();
        assert!(fitting.looks_inside(false), "of a daemon before this one");
        fitting.set_inside(false);
        assert!(!fitting.looks_inside(false) && fitting.looks_inside(true));
        fitting.set_inside(true);
        assert!(fitting.looks_inside(false));
        fitting.set_inside(false);
        assert!(!fitting.looks_inside(false));
    }

    #[test]
    fn passes_leave_time_for_everything_else() {
        let (mut fitting, now) = (Fitting::default(), Time::default());
        let took = Duration::from_millis(50);
        let mut passes = 0;
        // Something is wanted every millisecond.
        for moment in (0..1000).map(|millisecond| now + Duration::from_millis(millisecond)) {
            fitting.want();
            if fitting.take(moment) {
                passes += 1;
                fitting.rest(moment, fitting.number(), took);
                fitting.want();
            }
            assert!(fitting.timeout().is_some_and(|due| due > moment && due <= moment + SHARE * took));
        }
        assert_eq!(passes, 5);
        fitting.rested();
        assert!(fitting.take(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_pass_that_is_late_holds_the_next_up_no_longer_than_a_moment() {
        let (mut fitting, mut now) = (Fitting::default(), Time::default());
        for late in 1..=MOST_LATE + 1 {
            fitting.want();
            assert!(fitting.take(now), "{late}");
            fitting.want();
            assert!(!fitting.take(now) && !fitting.take(now + LATE / 2));
            let next = (late <= MOST_LATE).then_some(now + LATE);
            assert_eq!(fitting.timeout(), next);
            now = now + LATE;
        }
        assert!(!fitting.take(now + 10 * LATE), "as many as may be are late");
        let last = fitting.number();
        assert!(
            fitting.rest(now, last, 10 * LATE) && !fitting.rest(now, last - 1, 10 * LATE),
            "an older one ends last"
        );
        let due = fitting.timeout().expect("another one");
        assert!(due <= now + SHARE * LATE && fitting.take(due) && fitting.is_out());
    }

    #[test]
    fn nothing_is_bound_before_the_last_straggler_is_in() {
        let (mut fitting, now) = (Fitting::default(), Time::default());
        assert!(fitting.binds());
        fitting.on_routes_changed(now);
        assert!(passes(&mut fitting, now) && !fitting.binds());
        let again = now + STRAGGLERS / 2;
        fitting.on_routes_changed(again);
        assert!(passes(&mut fitting, now + STRAGGLERS) && !fitting.binds());
        let due = fitting.timeout().expect("another pass");
        assert_eq!(due, again + STRAGGLERS);
        assert!(!passes(&mut fitting, now + STRAGGLERS) && passes(&mut fitting, due) && fitting.binds());
        assert!(fitting.timeout().is_none());
    }

    #[test]
    fn echoes_are_looked_for_until_some_time_after_the_last_lapse() {
        let (mut fitting, now) = (Fitting::default(), Time::default());
        fitting.on_lapse(now);
        fitting.on_lapse(now + ECHOES / 2);
        assert!(!fitting.take_lapse(now + ECHOES));
        let end = fitting.timeout().expect("its end");
        assert_eq!(end, now + ECHOES / 2 + ECHOES);
        assert!(fitting.take_lapse(end) && !fitting.take_lapse(end) && fitting.timeout().is_none());
    }
}
