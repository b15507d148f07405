//! Connections of leased endpoints that are to be claimed: those that may end soon, and those that were not claimed
//! when that was tried.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use whimbrel_protocol::Time;
use whimbrel_wire::FlowTuple;

/// What a connection has to last before its anchor is asked to make a flow of it (P-86): most last less (as P-15).
const MATURE: Duration = Duration::from_millis(750);
/// Pause before its anchor is asked again, at first and at the longest (P-128).
const AGAIN: Duration = Duration::from_secs(4);
const AGAIN_LONGEST: Duration = Duration::from_secs(60);

/// A connection of a leased endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Young {
    pub(crate) flow: FlowTuple,
    /// Its far end has opened it.
    pub(crate) accepted: bool,
    /// Its far end is not to learn where it is.
    pub(crate) hidden: bool,
    /// How often its anchor was asked in vain.
    pub(crate) tries: u32,
}

/// Those that are not to be claimed yet.
#[derive(Debug, Default)]
pub(crate) struct Ripening {
    all: HashMap<FlowTuple, (Time, Young)>,
    /// When they are to be claimed. Some of them may have ended.
    order: BTreeSet<(Time, FlowTuple)>,
}

impl Ripening {
    pub(crate) fn record(&mut self, now: Time, young: Young) {
        let pause = match young.tries.checked_sub(1) {
            None => MATURE,
            Some(doublings) => (AGAIN * 2u32.pow(doublings.min(8))).min(AGAIN_LONGEST),
        };
        self.note_due(now + pause, young);
    }

    /// A connection that was there before this daemon: it has lasted.
    pub(super) fn note_old(&mut self, now: Time, young: Young) {
        self.note_due(now, young);
    }

    fn note_due(&mut self, due: Time, young: Young) {
        if let Some((before, _)) = self.all.insert(young.flow, (due, young)) {
            self.order.remove(&(before, young.flow));
        }
        self.order.insert((due, young.flow));
    }

    /// It has ended, whatever of it the kernel still keeps for its far end.
    pub(crate) fn forget(&mut self, flow: &FlowTuple) {
        if let Some((due, _)) = self.all.remove(flow) {
            self.order.remove(&(due, *flow));
        }
    }

    /// One that has lasted, or has waited for long enough to be claimed again.
    pub(crate) fn take(&mut self, now: Time) -> Option<Young> {
        self.order.first().filter(|(due, _)| *due <= now)?;
        let (_, flow) = self.order.pop_first()?;
        self.all.remove(&flow).map(|(_, young)| young)
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_wire::Transport;

    use super::*;

    #[test]
    fn what_has_ended_is_not_claimed_and_what_is_opened_anew_has_to_last_by_itself() {
        let of = |port: u16| {
            let [local, remote] = [([192, 0, 2, 1], port).into(), ([192, 0, 2, 2], 7).into()];
            let flow = FlowTuple { transport: Transport::Tcp, local, remote };
            Young { flow, accepted: true, hidden: false, tries: 0 }
        };
        let (lasts, ends, again) = (of(1), of(2), of(3));
        let (mut ripening, mut now) = (Ripening::default(), Time::default());
        for young in [again, lasts, ends] {
            ripening.record(now, young);
        }
        ripening.forget(&ends.flow);
        ripening.forget(&again.flow);
        assert_eq!(ripening.take(now), None);
        now = now + MATURE / 2;
        ripening.record(now, again);
        now = now + MATURE / 2;
        assert_eq!([ripening.take(now), ripening.take(now)], [Some(lasts), None]);
        now = now + MATURE / 2;
        assert_eq!([ripening.take(now), ripening.take(now)], [Some(again), None]);
        ripening.note_old(now, lasts);
        assert_eq!([ripening.take(now), ripening.take(now)], [Some(lasts), None], "it has lasted");
        assert!(ripening.all.is_empty() && ripening.order.is_empty());
        // P-128: what was not claimed waits, longer each time, and holds up nothing that is younger.
        for (tries, pause) in [(1, AGAIN), (2, AGAIN * 2), (9, AGAIN_LONGEST)] {
            let vain = Young { tries, ..lasts };
            ripening.record(now, vain);
            ripening.record(now, again);
            assert_eq!([ripening.take(now + MATURE), ripening.take(now + MATURE)], [Some(again), None]);
            assert_eq!([ripening.take(now + pause), ripening.take(now + pause)], [Some(vain), None]);
        }
    }
}
