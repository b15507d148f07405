//! When sockets are to be made to fit what has become of their flows.

use std::time::Duration;

use whimbrel_protocol::Time;

/// Pauses between looks at sockets whose options cannot be put back yet, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);

/// For how long what comes in is looked at for stale echoes once flows go on: several round trips of the longest paths.
const ECHOES: Duration = Duration::from_secs(10);

/// For how long packets of flows that go another way from now on may still come in by the former one: several round trips. A
/// socket that is bound to a device takes none that come by another, and the kernel would reset its connection.
const STRAGGLERS: Duration = Duration::from_secs(3);

/// A pass takes one part in so many of the daemon's time at the most: peers can make one due with each move (P-143).
const SHARE: u32 = 4;

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
    /// No socket in an endpoint namespace waits, nor is any to be put back. A daemon before this one may have left such.
    none_inside: bool,
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
    pub(crate) fn note_ways(&mut self, now: Time) {
        self.want();
        self.bind_from = Some(now + STRAGGLERS);
    }

    /// Whether a pass is to be made now; it is taken as made.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        if self.not_before.is_some_and(|until| until > now) {
            return false;
        }
        self.not_before = None;
        let settled = self.bind_from.take_if(|from| *from <= now).is_some();
        std::mem::take(&mut self.wanted) || settled || self.again.is_some_and(|(_, due)| due <= now)
    }

    /// A pass took so long.
    pub(crate) fn rest(&mut self, now: Time, took: Duration) {
        self.not_before = Some(now + SHARE * took);
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
    pub(crate) fn note_inside(&mut self, waits: bool) {
        self.none_inside = !waits;
    }

    /// A pass has left this many sockets to come back to.
    pub(crate) fn note_waiting(&mut self, now: Time, waiting: usize) {
        let passes = self.again.map_or(0, |(passes, _)| passes);
        let pause = (PAUSE * 2u32.pow(passes.min(10))).min(PAUSE_LONGEST);
        self.again = (waiting > 0).then_some((passes + 1, now + pause));
    }

    /// Flows wait, or go on after a lapse.
    pub(crate) fn note_lapse(&mut self, now: Time) {
        self.lapsed_until = Some(now + ECHOES);
    }

    /// Whether the last lapse is long enough ago; that is said once.
    pub(crate) fn take_lapse(&mut self, now: Time) -> bool {
        self.lapsed_until.take_if(|until| *until <= now).is_some()
    }

    /// When there is something to do, where nothing happens before.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let put_off = self.not_before.filter(|_| self.wanted);
        let pass = self.again.map(|(_, due)| due).into_iter().chain(self.bind_from).chain(put_off).min();
        let pass = pass.map(|due| self.not_before.map_or(due, |until| due.max(until)));
        pass.into_iter().chain(self.lapsed_until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_come_back_to_less_and_less_often() {
        let (mut fitting, mut now) = (Fitting::default(), Time::default());
        assert!(!fitting.take(now) && fitting.timeout().is_none());
        fitting.want();
        assert!(fitting.take(now) && !fitting.take(now));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            fitting.note_waiting(now, 3);
            let due = fitting.timeout().expect("another pass");
            assert!(!fitting.take(now));
            pauses.push(due.since(now));
            now = due;
            assert!(fitting.take(now));
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSE && pauses[9] == PAUSE_LONGEST, "{pauses:?}");
        // Others need not wait so long.
        fitting.want();
        assert!(fitting.take(now));
        fitting.note_waiting(now, 4);
        assert_eq!(fitting.timeout().map(|due| due.since(now)), Some(PAUSE));
        fitting.note_waiting(now, 0);
        assert!(fitting.timeout().is_none());
    }

    #[test]
    fn endpoint_namespaces_are_looked_into_once_more_after_the_last_has_waited() {
        let mut fitting = Fitting::default();
        assert!(fitting.looks_inside(false), "of a daemon before this one");
        fitting.note_inside(false);
        assert!(!fitting.looks_inside(false) && fitting.looks_inside(true));
        fitting.note_inside(true);
        assert!(fitting.looks_inside(false));
        fitting.note_inside(false);
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
                fitting.rest(moment, took);
                fitting.want();
            }
            assert!(fitting.timeout().is_some_and(|due| due > moment && due <= moment + SHARE * took));
        }
        assert_eq!(passes, 5);
        fitting.rested();
        assert!(fitting.take(now + Duration::from_secs(1)));
    }

    #[test]
    fn nothing_is_bound_before_the_last_straggler_is_in() {
        let (mut fitting, now) = (Fitting::default(), Time::default());
        assert!(fitting.binds());
        fitting.note_ways(now);
        assert!(fitting.take(now) && !fitting.binds());
        let again = now + STRAGGLERS / 2;
        fitting.note_ways(again);
        assert!(fitting.take(now + STRAGGLERS) && !fitting.binds());
        let due = fitting.timeout().expect("another pass");
        assert_eq!(due, again + STRAGGLERS);
        assert!(!fitting.take(now + STRAGGLERS) && fitting.take(due) && fitting.binds());
        assert!(fitting.timeout().is_none());
    }

    #[test]
    fn echoes_are_looked_for_until_some_time_after_the_last_lapse() {
        let (mut fitting, now) = (Fitting::default(), Time::default());
        fitting.note_lapse(now);
        fitting.note_lapse(now + ECHOES / 2);
        assert!(!fitting.take_lapse(now + ECHOES));
        let end = fitting.timeout().expect("its end");
        assert_eq!(end, now + ECHOES / 2 + ECHOES);
        assert!(fitting.take_lapse(end) && !fitting.take_lapse(end) && fitting.timeout().is_none());
    }
}
