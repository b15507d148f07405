//! Next hops that have not answered the kernel's one question for their link-layer address are asked again by us.
//!
//! The kernel asks again after a second, and all that is to go there waits as long
//! ([`whimbrel_kernel::neighbour::solicitor`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_kernel::neighbour::solicitor::{NextHop, Solicitor};
use whimbrel_protocol::Time;

use super::addresses::MARK;

/// When it is asked again first, after the kernel has asked, and when last: the kernel's own next question follows.
const FIRST: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_millis(640);
/// Ways that are looked at together. Of a host with more peers some have asked for the same next hops.
const WAYS_MOST: usize = 64;

/// What is asked for, and when next.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    /// Opened when there is a way to look at first; none: it cannot be.
    solicitor: Option<Solicitor>,
    /// Ways that something was sent on just now, from an address of this host's to another.
    ways: BTreeSet<(IpAddr, IpAddr)>,
    /// Those that have not answered, each with when its way was taken.
    unanswered: BTreeMap<NextHop, Time>,
    due: Option<Time>,
}

impl NextHops {
    /// Something is sent to `destination` from now on, which was not before, or not this way.
    pub(crate) fn on_way(&mut self, now: Time, source: Option<IpAddr>, destination: IpAddr) {
        let Some(source) = source.filter(|source| source.is_ipv4() == destination.is_ipv4()) else { return };
        if self.ways.len() < WAYS_MOST && self.ways.insert((source, destination)) {
            self.due_at(now + FIRST);
        }
    }

    fn due_at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When [`NextHops::handle_timeout`] is to be called.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.due
    }

    /// Asks those that have not answered.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        if self.solicitor.is_none() {
            match Solicitor::open(MARK) {
                Ok(solicitor) => self.solicitor = Some(solicitor),
                Err(error) => {
                    tracing::debug!(%error, "next hops that do not answer are left to the kernel");
                    (self.ways, self.unanswered) = Default::default();
                    return;
                }
            }
        }
        let Some(solicitor) = &mut self.solicitor else { return };
        for (source, destination) in std::mem::take(&mut self.ways) {
            match solicitor.next_hop(source, destination) {
                Ok(hop) => self.unanswered.extend(hop.map(|hop| (hop, now))),
                Err(error) => tracing::debug!(%error, %destination, "its next hop is not known"),
            }
        }
        if self.unanswered.is_empty() {
            return;
        }
        let wanted: Vec<NextHop> = self.unanswered.keys().copied().collect();
        let waiting = solicitor.unanswered(&wanted).unwrap_or_else(|error| {
            tracing::debug!(%error, "whether next hops have answered is not known");
            Vec::new()
        });
        self.unanswered.retain(|hop, _| waiting.contains(hop));
        let mut next = None;
        self.unanswered.retain(|hop, since| {
            let again = pause(now.since(*since));
            let asked = solicitor.ask(*hop).inspect_err(|error| tracing::debug!(%error, ?hop, "it cannot be asked"));
            next = next.into_iter().chain(again).min();
            asked.is_ok() && again.is_some()
        });
        next.into_iter().for_each(|pause| self.due_at(now + pause));
    }
}

/// How long after a question the next one follows, where its way was taken so long before: 20, 40, 80 ms and so on
/// after the kernel's.
fn pause(since: Duration) -> Option<Duration> {
    let waited = since + FIRST;
    (waited < LAST).then_some(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_follow_one_another_ever_later_until_the_kernel_asks() {
        let (mut since, mut at) = (Duration::ZERO, vec![FIRST]);
        while let Some(pause) = pause(since) {
            since += pause;
            at.push(since + FIRST);
        }
        let millis: Vec<u128> = at.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [20, 40, 80, 160, 320, 640]);
    }

    #[test]
    fn ways_are_looked_at_together_and_are_bounded() {
        let (mut hops, now) = (NextHops::default(), Time::default() + Duration::from_secs(9));
        let here = IpAddr::from([10, 0, 0, 1]);
        hops.on_way(now, None, IpAddr::from([10, 0, 0, 2]));
        hops.on_way(now, Some(here), "2001:db8::1".parse().unwrap());
        assert_eq!(hops.timeout(), None, "no way at all");
        for last in 0..=255 {
            hops.on_way(now + Duration::from_millis(last.into()), Some(here), IpAddr::from([10, 0, 1, last]));
        }
        assert_eq!((hops.ways.len(), hops.timeout()), (WAYS_MOST, Some(now + FIRST)));
    }
}
