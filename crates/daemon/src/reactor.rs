//! Waits for descriptors and for moments. Whoever has something to wait for registers it, with what is to be done then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use whimbrel_protocol::Time;

/// The loop cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct LoopError {
    call: &'static str,
    source: io::Error,
}

impl LoopError {
    pub(crate) fn new<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |error| Self { call, source: error.into() }
    }
}

/// What is done when a descriptor is readable.
type OnReady<S> = fn(&mut S);

/// What is done at a moment.
type OnDue<S> = fn(&mut S, Time);

/// When it is.
#[derive(Debug)]
enum When<S> {
    /// When this says so.
    At(fn(&S) -> Option<Time>),
    /// So often, and next then.
    Every(Duration, Time),
}

/// The kernel's timer.
const TIMER: u64 = 0;
/// Sources and moments of a state.
#[derive(Debug)]
pub(crate) struct Reactor<S> {
    epoll: OwnedFd,
    timer: OwnedFd,
    sources: Vec<OnReady<S>>,
    moments: Vec<(When<S>, OnDue<S>)>,
}

impl<S> Reactor<S> {
    /// # Errors
    /// When the kernel has no room.
    pub(crate) fn new() -> Result<Self, LoopError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(LoopError::new("epoll_create1"))?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(LoopError::new("timerfd_create"))?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(LoopError::new("epoll_ctl"))?;
        Ok(Self { epoll, timer, sources: Vec::new(), moments: Vec::new() })
    }

    /// Calls `handle` whenever `fd` is readable. Those that are ready together come in the order in which they were
    /// registered.
    ///
    /// # Errors
    /// When the kernel has no room.
    pub(crate) fn on(&mut self, fd: impl AsFd, handle: OnReady<S>) -> Result<(), LoopError> {
        self.sources.push(handle);
        let data = EventData::new_u64(self.sources.len() as u64);
        epoll::add(&self.epoll, fd, data, EventFlags::IN).map_err(LoopError::new("epoll_ctl"))
    }

    /// Calls `handle` at the moment that `due` names. Moments that are due together come in the order in which they
    /// were registered.
    pub(crate) fn at(&mut self, due: fn(&S) -> Option<Time>, handle: OnDue<S>) {
        self.moments.push((When::At(due), handle));
    }

    /// Calls `handle` so often.
    pub(crate) fn every(&mut self, now: Time, period: Duration, handle: OnDue<S>) {
        self.moments.push((When::Every(period, now + period), handle));
    }

    /// Waits until a descriptor is ready, or a moment of `state` has come. Gives what is to be called for descriptors.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub(crate) fn wait(&self, state: &S) -> Result<Vec<OnReady<S>>, LoopError> {
        let due = self.moments.iter().filter_map(|(when, _)| when.next(state)).min();
        // The clock starts at boot, so no moment that is meant is zero, which would stop the timer.
        let micros = due.map_or(0, |due| due.as_micros().max(1));
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(micros % 1_000_000 * 1000).unwrap_or(0),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value).map_err(LoopError::new("timerfd_settime"))?;
        let mut ready = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LoopError::new("epoll_wait")(errno)),
        }
        ready.sort_unstable_by_key(|event| event.data.u64());
        Ok(ready.iter().filter_map(|event| self.meant_by(event.data.u64())).collect())
    }

    fn meant_by(&self, token: u64) -> Option<OnReady<S>> {
        if token == TIMER {
            clear(&self.timer);
        }
        self.sources.get(usize::try_from(token.checked_sub(1)?).ok()?).copied()
    }

    /// What is due, in the order in which it was registered. What is done so often is due again after its time.
    pub(crate) fn due(&self, state: &S, now: Time) -> Vec<OnDue<S>> {
        let due = self.moments.iter().filter(|(when, _)| when.next(state).is_some_and(|due| due <= now));
        due.map(|(_, handle)| *handle).collect()
    }

    /// All that is [due](Self::due) is being done.
    pub(crate) fn renew(&mut self, now: Time) {
        for (when, _) in &mut self.moments {
            if let When::Every(period, next) = when
                && *next <= now
            {
                *next = now + *period;
            }
        }
    }
}

impl<S> When<S> {
    fn next(&self, state: &S) -> Option<Time> {
        match self {
            Self::At(due) => due(state),
            Self::Every(_, next) => Some(*next),
        }
    }
}

/// Takes the count out of an eventfd or timerfd; what it stands for is looked at in any case.
pub(crate) fn clear(fd: impl AsFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::clock;

    #[derive(Default)]
    struct Seen {
        due: Option<Time>,
        said: Vec<&'static str>,
    }

    #[test]
    fn sources_and_moments_are_served_in_the_order_in_which_they_were_registered() {
        let (mut reactor, now) = (Reactor::<Seen>::new().expect("a reactor"), clock::now());
        let [source, second] = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"));
        reactor.on(&source, |seen| seen.said.push("source")).expect("room");
        reactor.on(&second, |seen| seen.said.push("second")).expect("room");
        reactor.every(now, Duration::from_millis(1), |seen, _| seen.said.push("often"));
        reactor.at(|seen| seen.due, |seen, _| seen.said.push("once"));
        let mut seen = Seen { due: Some(now), said: Vec::new() };
        assert!(reactor.wait(&seen).expect("waited").is_empty(), "a moment has come, and nothing else");
        let later = now + Duration::from_millis(1);
        for handle in reactor.due(&seen, later) {
            handle(&mut seen, later);
        }
        reactor.renew(later);
        assert_eq!(seen.said, ["often", "once"]);
        assert_eq!(reactor.due(&seen, later).len(), 1, "what is done so often is not due again yet");
        // Whichever was ready first.
        for source in [&second, &source] {
            rustix::io::write(source, &1u64.to_ne_bytes()).expect("written");
        }
        for handle in reactor.wait(&seen).expect("waited") {
            handle(&mut seen);
        }
        assert_eq!(seen.said, ["often", "once", "source", "second"]);
    }
}
