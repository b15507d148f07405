//! What still comes after a move, on ways that lead where the socket was.
//!
//! Packets wait in queues on the way while the words that decide a move overtake them. So a donor hands on what comes
//! for a socket that it has given away, and a holder leads a flow to its new owner by the tunnel, where that takes it
//! before it knows under which names it would come otherwise. Both end by themselves.

use std::collections::{HashMap, VecDeque};

use whimbrel_datapath::FormerName;
use whimbrel_protocol::Time;
use whimbrel_wire::FlowTuple;

/// What ends by itself, soonest first.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// What comes for these is handed on, until then.
    pub(super) resting: HashMap<FlowTuple, Time>,
    /// When it ends, also for those that it has ended for already: they may have been forgotten, or have moved again
    /// since.
    pub(super) ends: VecDeque<(Time, FlowTuple)>,
    /// These go by the tunnel.
    pub(super) tunnelled: VecDeque<(Time, FlowTuple)>,
    /// What comes under these names is taken.
    pub(super) names: VecDeque<(Time, FormerName)>,
}

impl Late {
    pub(crate) fn is_empty(&self) -> bool {
        self.resting.is_empty()
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        let flows = [&self.ends, &self.tunnelled].into_iter().filter_map(|queue| queue.front().map(|(due, _)| *due));
        flows.chain(self.names.front().map(|(due, _)| *due)).min()
    }

    pub(super) fn set_resting(&mut self, until: Time, flow: FlowTuple) {
        self.resting.insert(flow, until);
        self.ends.push_back((until, flow));
    }

    /// Those for which nothing is handed on any more.
    pub(super) fn take_rested(&mut self, now: Time) -> Vec<FlowTuple> {
        let mut rested = take_due(&mut self.ends, now);
        rested.retain(|flow| {
            let over = self.resting.get(flow).is_some_and(|until| *until <= now);
            over && self.resting.remove(flow).is_some()
        });
        rested
    }
}

pub(super) fn take_due<T>(queue: &mut VecDeque<(Time, T)>, now: Time) -> Vec<T> {
    let due = queue.partition_point(|(due, _)| *due <= now);
    queue.drain(..due).map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use whimbrel_tunnel::LATE;

    use whimbrel_wire::Transport;

    use super::*;

    #[test]
    fn a_flow_that_has_gone_again_rests_anew() {
        let end = |port| std::net::SocketAddr::from(([192, 0, 2, 1], port));
        let flow = |port| FlowTuple { transport: Transport::Tcp, local: end(port), remote: end(9) };
        let (mut late, now) = (Late::default(), Time::default());
        late.set_resting(now + LATE, flow(1));
        late.set_resting(now + LATE, flow(2));
        // It comes back, and goes again.
        assert!(late.resting.remove(&flow(1)).is_some());
        late.set_resting(now + LATE * 2, flow(1));
        assert_eq!(late.timeout(), Some(now + LATE));
        assert_eq!(late.take_rested(now + LATE), [flow(2)]);
        assert!(!late.is_empty() && late.timeout() == Some(now + LATE * 2));
        assert_eq!(late.take_rested(now + LATE * 2), [flow(1)]);
        assert!(late.is_empty() && late.timeout().is_none());
    }
}
