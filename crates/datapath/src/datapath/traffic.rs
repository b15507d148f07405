//! What goes between this host and peers: when something last came, and what is overdue (`bpf/lib/traffic.h`).

use std::time::Duration;

use super::Datapath;
use crate::abi::{IDLE_TRAFFIC, LocatorPair, RawLocatorPair, RawTraffic};
use crate::error::Error;
use crate::windows::monotonic;

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// How long ago something last came, within a tick of the kernel's coarse clock; `None`: nothing has yet.
    pub heard: Option<Duration>,
    /// How long ago the first thing left since then; `None`: nothing has.
    pub asked: Option<Duration>,
    /// How long that took of late, smoothed, until something came then.
    pub usual: Duration,
}

impl Datapath {
    /// Watches what goes between these addresses from now on, except for what daemons say to each other from and to
    /// this port. [`Event::Overdue`](crate::Event::Overdue) tells where something is not answered that usually is:
    /// `answer` is granted in any case, and more where answers take longer as a rule. What is known stays where this is
    /// said again.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full.
    pub fn watch_traffic(&self, between: &LocatorPair, answer: Duration, port: u16) -> Result<(), Error> {
        let key = RawLocatorPair::new(between);
        let unknown = RawTraffic {
            timer: [0; 2],
            heard: 0,
            asked: 0,
            usual: 0,
            varies: 0,
            answer: 0,
            port,
            answers: 0,
            ready: 0,
            armed: 0,
            told: 0,
            zero: [0; 3],
        };
        let known = self.traffic.get(&key)?.unwrap_or(unknown);
        let answer = u32::try_from(answer.as_micros()).unwrap_or(u32::MAX);
        // The kernel puts another value in the place of this one, whose timer is not set.
        let RawTraffic { heard, usual, varies, answers, .. } = known;
        self.traffic.insert(&key, &RawTraffic { heard, usual, varies, answers, answer, port, ..unknown })?;
        self.change_settings(|settings| settings.idle &= !IDLE_TRAFFIC)
    }

    /// Watches it no more; what is not watched is none the worse.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_traffic(&self, between: &LocatorPair) -> Result<(), Error> {
        self.traffic.remove(&RawLocatorPair::new(between))?;
        let bit = if self.traffic.is_empty()? { IDLE_TRAFFIC } else { 0 };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_TRAFFIC | bit)
    }

    /// What is known of what goes between these addresses; `None`: it is not watched.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn traffic(&self, between: &LocatorPair) -> Result<Option<Traffic>, Error> {
        let clock = |source| Error::call("clock_gettime", "CLOCK_MONOTONIC", source);
        let now = u64::try_from(monotonic().map_err(clock)?.as_nanos()).unwrap_or(u64::MAX);
        let ago = |at: u64| (at != 0).then(|| Duration::from_nanos(now.saturating_sub(at)));
        let found = self.traffic.get(&RawLocatorPair::new(between))?;
        Ok(found.map(|found| {
            let usual = Duration::from_micros(found.usual.into());
            Traffic { heard: ago(found.heard), asked: ago(found.asked), usual }
        }))
    }
}
