//! What TCP had to a peer on the networks where they have met, and what senders come back to (P-246 to P-248).
//!
//! The sender's host keeps it, for each pair of networks as it knows them itself: nothing is asked of the peer, and
//! nothing that it says decides more than which of this host's own observations is taken up.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;
use crate::base::op::windows::{Comeback, Left, Networks, SendWindows};

/// Pairs of networks that are remembered of a peer, as many as places are (P-25).
const REMEMBERED: usize = 8;

/// A shorter stay tells nothing: the window is still that of the network before (P-246).
const STAY_LEAST: Duration = Duration::from_secs(1);
/// Nor does one of fewer round trips.
const STAY_ROUND_TRIPS: u32 = 5;

/// What is remembered counts half as much after each such time, since others may have come to share the path, and
/// nothing after [`LIFETIME`] (P-248; RFC 9959 asks for a limit and leaves it open).
const HALVED_AFTER: Duration = Duration::from_secs(10 * 60);
const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// What is remembered of a peer.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Where flows are, and since when, where that is known.
    here: Option<(Networks, Option<Time>)>,
    /// What senders had elsewhere and when, the last left last.
    known: VecDeque<(Networks, SendWindows, Time)>,
}

impl Windows {
    /// The first flows are here.
    pub(crate) fn settle(&mut self, networks: Option<Networks>) {
        self.here = networks.map(|networks| (networks, None));
    }

    /// Flows are there now. Gives what they have left, unless that is where they were.
    pub(super) fn turn(&mut self, now: Time, networks: Networks) -> Option<Left> {
        if self.here.is_some_and(|(here, _)| here == networks) {
            return None;
        }
        let (left, since) = self.here.replace((networks, Some(now)))?;
        Some(Left { networks: left, stayed: since.map(|since| now.since(since)) })
    }

    /// What senders had where they were.
    pub(super) fn record(&mut self, now: Time, left: Left, had: SendWindows) {
        let least = STAY_LEAST.max(had.smoothed * STAY_ROUND_TRIPS);
        if had.smoothed.is_zero() || left.stayed.is_some_and(|stayed| stayed < least) {
            return;
        }
        self.known.retain(|(networks, ..)| *networks != left.networks);
        if self.known.len() >= REMEMBERED {
            self.known.pop_front();
        }
        self.known.push_back((left.networks, had, now));
    }

    /// What senders come back to here.
    pub(super) fn comeback(&self, now: Time) -> Option<Comeback> {
        let (here, _) = self.here?;
        let (_, had, at) = self.known.iter().find(|(networks, ..)| *networks == here)?;
        let age = now.since(*at);
        if age >= LIFETIME {
            return None;
        }
        let halvings = age.as_secs() / HALVED_AFTER.as_secs();
        let had = SendWindows { window: had.window >> halvings, ..*had };
        // P-247: RFC 9959 jumps to half of what was saved.
        Some(Comeback { begin: had.window / 2, had })
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::base::id::LinkId;

    fn at(n: u8) -> Networks {
        let address = IpAddr::from([192, 0, 2, n]);
        Networks { link: LinkId(1), source: address, claimed: address, observed: address }
    }

    fn after(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    fn had(window: u64, milliseconds: u64) -> SendWindows {
        let smoothed = Duration::from_millis(milliseconds);
        SendWindows { window, threshold: Some(window), least: smoothed / 2, smoothed }
    }

    /// Goes there at that moment, with what is had where it leaves.
    fn go(windows: &mut Windows, seconds: u64, to: u8, leaving: Option<SendWindows>) -> Option<Comeback> {
        let left = windows.turn(after(seconds), at(to))?;
        let comeback = windows.comeback(after(seconds));
        leaving.into_iter().for_each(|had| windows.record(after(seconds), left, had));
        comeback
    }

    fn begun() -> Windows {
        let mut windows = Windows::default();
        windows.settle(Some(at(1)));
        windows
    }

    #[test]
    fn who_comes_back_goes_on_with_half_of_what_it_had() {
        let mut windows = begun();
        assert_eq!(go(&mut windows, 100, 2, Some(had(80_000, 20))), None, "it was never there");
        assert_eq!(windows.turn(after(110), at(2)), None, "it is there");
        let comeback = go(&mut windows, 200, 1, Some(had(6_000, 300))).expect("it was here");
        assert_eq!(comeback, Comeback { begin: 40_000, had: had(80_000, 20) });
        assert_eq!(go(&mut windows, 300, 2, None).expect("and there").begin, 3_000);
        // Nothing was sent there, which says nothing of it.
        assert_eq!(go(&mut windows, 400, 1, None).expect("as before").begin, 40_000);
    }

    #[test]
    fn a_stay_of_a_few_round_trips_tells_nothing() {
        let mut windows = begun();
        go(&mut windows, 100, 2, Some(had(80_000, 20)));
        go(&mut windows, 102, 1, Some(had(80_000, 600)));
        assert_eq!(go(&mut windows, 200, 2, None), None, "two seconds are three round trips");
        go(&mut windows, 300, 1, Some(had(9_000, 600)));
        assert!(go(&mut windows, 400, 2, None).is_some());
        // Nothing has been measured.
        go(&mut windows, 500, 3, Some(had(9_000, 600)));
        go(&mut windows, 600, 1, Some(had(9_000, 0)));
        assert_eq!(go(&mut windows, 700, 3, None), None);
    }

    #[test]
    fn what_is_old_counts_less_and_then_nothing() {
        let minutes = |minutes: u64| {
            let mut windows = begun();
            go(&mut windows, 0, 2, Some(had(80_000, 20)));
            go(&mut windows, minutes * 60, 1, None).map(|comeback| comeback.begin)
        };
        assert_eq!((minutes(9), minutes(10), minutes(25)), (Some(40_000), Some(20_000), Some(10_000)));
        assert!(minutes(59).is_some_and(|begin| begin > 0) && minutes(60).is_none());
    }

    #[test]
    fn new_flows_begin_where_their_peer_is() {
        let mut windows = begun();
        go(&mut windows, 100, 2, Some(had(80_000, 20)));
        windows.settle(Some(at(3)));
        assert_eq!(windows.turn(after(200), at(3)), None);
        windows.settle(None);
        assert_eq!(windows.turn(after(300), at(4)), None, "nobody knows what is left");
        assert_eq!(go(&mut windows, 400, 1, None).expect("remembered").begin, 40_000);
    }

    proptest! {
        /// Never more than half of what was last had just there.
        #[test]
        fn nothing_is_made_up(moves in prop::collection::vec((1u64..2_000, 1u8..20, 1u64..1 << 40, 1u64..900), 1..60)) {
            let (mut windows, mut now, mut here) = (begun(), 0, 1);
            let mut last = std::collections::HashMap::new();
            for (pause, to, window, milliseconds) in moves {
                now += pause;
                let leaving = had(window, milliseconds);
                let comeback = go(&mut windows, now, to, Some(leaving));
                if let Some(comeback) = comeback {
                    let (known, when) = last.get(&to).copied().expect("it was there");
                    let known: SendWindows = known;
                    prop_assert!(comeback.begin <= known.window / 2 && comeback.had.window <= known.window);
                    prop_assert!(now - when < LIFETIME.as_secs());
                    prop_assert_eq!(comeback.had.smoothed, known.smoothed);
                }
                if to != here {
                    let remembered = windows.known.iter().find(|(networks, ..)| *networks == at(here));
                    if let Some((_, known, _)) = remembered.filter(|(.., when)| *when == after(now)) {
                        last.insert(here, (*known, now));
                    }
                    here = to;
                }
                prop_assert!(windows.entries() <= REMEMBERED);
            }
        }
    }
}
