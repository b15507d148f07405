//! Connections of leased endpoints that may end soon.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use whimbrel_protocol::Time;
use whimbrel_wire::FlowTuple;

/// What a connection has to last before its anchor is asked to make a flow of it (P-86): most last less (as P-15).
const MATURE: Duration = Duration::from_millis(750);

/// A connection of a leased endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Young {
    pub(crate) flow: FlowTuple,
    /// Its far end has opened it.
    pub(crate) accepted: bool,
    /// Its far end is not to learn where it is.
    pub(crate) hidden: bool,
}

/// Those that have not lasted yet.
#[derive(Debug, Default)]
pub(super) struct Ripening {
    all: HashMap<FlowTuple, (Time, Young)>,
    /// When they have lasted, in the order in which they opened. Some of them may have ended.
    order: VecDeque<(Time, FlowTuple)>,
}

impl Ripening {
    pub(super) fn note(&mut self, now: Time, young: Young) {
        let due = now + MATURE;
        self.all.insert(young.flow, (due, young));
        self.order.push_back((due, young.flow));
    }

    /// It has ended, whatever of it the kernel still keeps for its far end.
    pub(super) fn forget(&mut self, flow: &FlowTuple) {
        self.all.remove(flow);
    }

    /// One that has lasted.
    pub(super) fn take(&mut self, now: Time) -> Option<Young> {
        while self.order.front().is_some_and(|(due, _)| *due <= now) {
            let (due, flow) = self.order.pop_front()?;
            // One that has ended may have been opened anew since then.
            if self.all.get(&flow).is_some_and(|(since, _)| *since == due) {
                return self.all.remove(&flow).map(|(_, young)| young);
            }
        }
        None
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
            Young { flow: FlowTuple { transport: Transport::Tcp, local, remote }, accepted: true, hidden: false }
        };
        let (lasts, ends, again) = (of(1), of(2), of(3));
        let (mut ripening, mut now) = (Ripening::default(), Time::default());
        for young in [again, lasts, ends] {
            ripening.note(now, young);
        }
        ripening.forget(&ends.flow);
        ripening.forget(&again.flow);
        assert_eq!(ripening.take(now), None);
        now = now + MATURE / 2;
        ripening.note(now, again);
        now = now + MATURE / 2;
        assert_eq!([ripening.take(now), ripening.take(now)], [Some(lasts), None]);
        now = now + MATURE / 2;
        assert_eq!([ripening.take(now), ripening.take(now)], [Some(again), None]);
        assert!(ripening.all.is_empty() && ripening.order.is_empty());
    }
}
