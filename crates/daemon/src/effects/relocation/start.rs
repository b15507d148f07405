//! What a connection begins with on the path that it comes to (docs/decisions/0021).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_kernel::frozen;
use whimbrel_kernel::inject::Injector;
use whimbrel_protocol::PeerId;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::PathState;

/// What Linux begins with, in segments (RFC 6928).
const USUAL: u32 = 10;
/// Segments that may go out at once, before anything of the path has been felt: what queues of routers take.
const MOST: u32 = 256;

/// Pairs of addresses, in each namespace, of which a round trip is said beforehand.
const MOST_EXPECTED: usize = 1024;

/// From here on the kernel waits no longer for a path of which it knows nothing (`TCP_TIMEOUT_FALLBACK`, three times this).
const LONGEST_EXPECTED: Duration = Duration::from_secs(1);

/// A peer of a move, and how far it is, where that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The peer.
    pub(crate) peer: PeerId,
    /// As the daemons' words have shown.
    pub(crate) round_trip: Option<Duration>,
}

/// The congestion window to begin with, in segments, from what is known of the path where the socket was, and of the way to the holder of
/// its far end; `None` for what any connection begins with. `by_donor`: the holder is the donor, which passes packets on, so the path
/// from there is a part of the new one.
///
/// Half of the former window is begun with, as careful resumption does (draft-ietf-tsvwg-careful-resume), and up to all of it where a
/// round trip takes longer now. A shorter one takes nothing off: what a sender that fills its path measures is its own queue as well. Slow
/// start goes on from there, since the slow start threshold is forgotten.
#[must_use]
pub fn first_window(path: &PathState, to_holder: Option<Duration>, by_donor: bool) -> Option<u32> {
    let former = Duration::from_micros(path.round_trip.into());
    let way = to_holder?;
    let now = if by_donor { way + former } else { way };
    let (now, former) = (now.as_micros(), former.as_micros());
    let window = (u128::from(path.congestion_window) * now.clamp(former, 2 * former)).checked_div(2 * former)?;
    let window = u32::try_from(window).unwrap_or(MOST).min(MOST);
    (window > USUAL).then_some(window)
}

/// How long a round trip may take on the new path, for the first timeout; `None` where too little is known. The far end is the holder's own or
/// lies behind the holder, no farther than it was from where the socket was: too long is better than too short, which would have all sent
/// twice.
#[must_use]
pub fn longest_round_trip(path: &PathState, to_holder: Option<Duration>) -> Option<Duration> {
    let former = Duration::from_micros(path.round_trip.into());
    to_holder.filter(|_| !former.is_zero()).map(|way| way + former)
}

/// The round trips that connections of one namespace were made to reckon with at first.
#[derive(Debug, Default)]
pub(super) struct Expected(HashMap<(IpAddr, IpAddr), Duration>);

impl Expected {
    /// Connections between the addresses of `flow` that are rebuilt next send again what is lost as soon as suits this round trip. The calling
    /// thread is to be in the namespace, whose `injector` it is.
    pub(super) fn say(&mut self, flow: &FlowTuple, round_trip: Duration, injector: &Injector) {
        let ends = (flow.local.ip(), flow.remote.ip());
        // What is measured is never quite the same. And where sockets of very many hosts come at once, they are to come soon.
        if self.0.get(&ends).is_some_and(|before| *before >= round_trip) || self.0.len() >= MOST_EXPECTED {
            return;
        }
        let with_margin = round_trip + round_trip / 4 + Duration::from_millis(1);
        if with_margin >= LONGEST_EXPECTED {
            return;
        }
        // What fails once is not tried for each connection.
        self.0.insert(ends, with_margin);
        if let Err(error) = frozen::expect_round_trip(ends.0, ends.1, with_margin, injector) {
            tracing::debug!(%flow, %error, "what is lost first on a new path is sent again late");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(congestion_window: u32, former: u32) -> PathState {
        PathState {
            congestion_control: "cubic".to_owned(),
            congestion_window,
            slow_start_threshold: 7,
            round_trip: former * 1000,
            variation: 0,
            mtu: 1500,
        }
    }

    fn begins(congestion_window: u32, former: u32, way: u64, by_donor: bool) -> Option<u32> {
        first_window(&path(congestion_window, former), Some(Duration::from_millis(way)), by_donor)
    }

    #[test]
    fn the_far_end_is_no_farther_than_the_way_to_its_holder_and_what_it_was() {
        let way = Some(Duration::from_millis(30));
        assert_eq!(longest_round_trip(&path(10, 40), way), Some(Duration::from_millis(70)));
        assert_eq!(longest_round_trip(&path(10, 0), way), None, "it may be anywhere behind the holder");
        assert_eq!(longest_round_trip(&path(10, 40), None), None);
    }

    #[test]
    fn half_the_former_window_is_begun_with() {
        assert_eq!(begins(100, 40, 40, false), Some(50));
        assert_eq!(begins(100, 40, 20, false), Some(50));
        assert_eq!(begins(100, 40, 60, false), Some(75));
        assert_eq!(begins(100, 40, 400, false), Some(100), "no more than there was");
        assert_eq!(begins(100, 40, 20, true), Some(75), "by way of the donor");
        assert_eq!(begins(u32::MAX, 1, 5_000_000, false), Some(MOST));
    }

    #[test]
    fn the_usual_is_begun_with_where_little_is_known() {
        assert_eq!(begins(100, 0, 40, false), None, "nothing was measured");
        assert_eq!(begins(20, 40, 40, false), None, "it was not more that was sent");
    }
}
