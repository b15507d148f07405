//! What a connection begins with on the path that it comes to (docs/decisions/0021).

use core::time::Duration;

use super::PathState;

/// What Linux begins with, in segments (RFC 6928).
const USUAL: u32 = 10;
/// Segments that may go out at once, before anything of the path has been felt: what queues of routers take.
const MOST: u32 = 256;

impl PathState {
    /// The congestion window to begin with, in segments, from what is known of the path where the socket was, and of
    /// the way to the holder of its far end; `None` for what any connection begins with. `by_donor`: the holder is the
    /// donor, which passes packets on, so the path from there is a part of the new one.
    ///
    /// Half of the former window is begun with, as careful resumption does (draft-ietf-tsvwg-careful-resume), and up to
    /// all of it where a round trip takes longer now. A shorter one takes nothing off: what a sender that fills its
    /// path measures is its own queue as well. Slow start goes on from there, since the slow start threshold is
    /// forgotten.
    #[must_use]
    pub fn first_window(&self, to_holder: Option<Duration>, by_donor: bool) -> Option<u32> {
        let former = Duration::from_micros(self.round_trip.into());
        let way = to_holder?;
        let now = if by_donor { way + former } else { way };
        let (now, former) = (now.as_micros(), former.as_micros());
        let window = (u128::from(self.congestion_window) * now.clamp(former, 2 * former)).checked_div(2 * former)?;
        let window = u32::try_from(window).unwrap_or(MOST).min(MOST);
        (window > USUAL).then_some(window)
    }

    /// How long a round trip may take on the new path, for the first timeout; `None` where too little is known. The far
    /// end is the holder's own or lies behind the holder, no farther than it was from where the socket was: too long is
    /// better than too short, which would have all sent twice.
    #[must_use]
    pub fn longest_round_trip(&self, to_holder: Option<Duration>) -> Option<Duration> {
        let former = Duration::from_micros(self.round_trip.into());
        to_holder.filter(|_| !former.is_zero()).map(|way| way + former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;

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
        path(congestion_window, former).first_window(Some(Duration::from_millis(way)), by_donor)
    }

    #[test]
    fn the_far_end_is_no_farther_than_the_way_to_its_holder_and_what_it_was() {
        let way = Some(Duration::from_millis(30));
        assert_eq!(path(10, 40).longest_round_trip(way), Some(Duration::from_millis(70)));
        assert_eq!(path(10, 0).longest_round_trip(way), None, "it may be anywhere behind the holder");
        assert_eq!(path(10, 40).longest_round_trip(None), None);
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
