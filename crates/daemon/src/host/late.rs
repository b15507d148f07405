//! What still comes after a move, on ways that lead where the socket was.
//!
//! Packets wait in queues on the way while the words that decide a move overtake them. So a donor hands on what comes for a socket that it
//! has given away, and a holder leads a flow to its new owner by the tunnel, where that takes it before it knows under which names it
//! would come otherwise. Both end by themselves.

use std::collections::{HashMap, VecDeque};

use whimbrel_datapath::{FlowEntry, FormerName, TUNNELLED};
use whimbrel_protocol::{PeerId, Time};
use whimbrel_tunnel::{LATE, Peer};
use whimbrel_wire::FlowTuple;

use super::Host;

/// What ends by itself, soonest first.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// What comes for these is handed on, until then.
    resting: HashMap<FlowTuple, Time>,
    /// When it ends, also for those that it has ended for already: they may have been forgotten, or have moved again since.
    ends: VecDeque<(Time, FlowTuple)>,
    /// These go by the tunnel.
    tunnelled: VecDeque<(Time, FlowTuple)>,
    /// What comes under these names is taken.
    names: VecDeque<(Time, FormerName)>,
}

impl Late {
    pub(crate) fn is_empty(&self) -> bool {
        self.resting.is_empty()
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        let flows = [&self.ends, &self.tunnelled].into_iter().filter_map(|queue| queue.front().map(|(due, _)| *due));
        flows.chain(self.names.front().map(|(due, _)| *due)).min()
    }

    fn note_resting(&mut self, until: Time, flow: FlowTuple) {
        self.resting.insert(flow, until);
        self.ends.push_back((until, flow));
    }

    /// Those for which nothing is handed on any more.
    fn take_rested(&mut self, now: Time) -> Vec<FlowTuple> {
        let mut rested = take_due(&mut self.ends, now);
        rested.retain(|flow| {
            let over = self.resting.get(flow).is_some_and(|until| *until <= now);
            over && self.resting.remove(flow).is_some()
        });
        rested
    }
}

fn take_due<T>(queue: &mut VecDeque<(Time, T)>, now: Time) -> Vec<T> {
    let due = queue.partition_point(|(due, _)| *due <= now);
    queue.drain(..due).map(|(_, what)| what).collect()
}

impl Host {
    /// A socket has gone: what came for it meanwhile goes to who has it now, and for a while what still comes. `None`: nobody has it.
    pub(crate) fn part_with(&mut self, now: Time, flow: FlowTuple, to: Option<PeerId>) {
        if to.is_some() {
            self.tunnel.hand_on(&flow, to.map(|peer| Peer(peer.0)));
            self.late.note_resting(now + LATE, flow);
        } else {
            self.let_in(&flow);
            self.tunnel.forget_aside(&flow);
        }
    }

    /// A flow has another owner, which gets it by the tunnel at first.
    pub(crate) fn tunnel_first(&mut self, now: Time, flow: FlowTuple) {
        self.late.tunnelled.push_back((now + TUNNELLED, flow));
    }

    /// A flow goes to its far end directly from now on, or its socket has gone: what is on its way from who has passed it on, or to the
    /// socket, is taken for a while.
    pub(crate) fn forget_name_later(&mut self, now: Time, name: Option<FormerName>) {
        self.late.names.extend(name.map(|name| (now + LATE, name)));
    }

    /// A socket comes to where one of its name has been.
    pub(crate) fn forget_late(&mut self, flow: &FlowTuple) {
        if self.late.resting.remove(flow).is_some() {
            self.let_in(flow);
            self.tunnel.forget_aside(flow);
        }
    }

    pub(crate) fn end_late(&mut self, now: Time) {
        for flow in self.late.take_rested(now) {
            self.let_in(&flow);
            self.tunnel.forget_aside(&flow);
        }
        for name in take_due(&mut self.late.names, now) {
            if let Err(error) = self.datapath.forget_name(&name) {
                tracing::warn!(%error, "a connection is taken under a name that it has no more");
            }
        }
        let due = take_due(&mut self.late.tunnelled, now);
        if due.is_empty() {
            return;
        }
        let mut entries: Vec<(FlowTuple, FlowEntry)> = Vec::with_capacity(due.len());
        for flow in due {
            if let Some(entry) = self.flows.get(&flow).copied() {
                entries.push((flow, self.data_plane_entry(&flow, &entry)));
            }
        }
        if let Err(error) = self.datapath.insert_flows(&entries) {
            tracing::warn!(%error, "connections that have moved stay in the tunnel");
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_wire::Transport;

    use super::*;

    #[test]
    fn a_flow_that_has_gone_again_rests_anew() {
        let end = |port| std::net::SocketAddr::from(([192, 0, 2, 1], port));
        let flow = |port| FlowTuple { transport: Transport::Tcp, local: end(port), remote: end(9) };
        let (mut late, now) = (Late::default(), Time::default());
        late.note_resting(now + LATE, flow(1));
        late.note_resting(now + LATE, flow(2));
        // It comes back, and goes again.
        assert!(late.resting.remove(&flow(1)).is_some());
        late.note_resting(now + LATE * 2, flow(1));
        assert_eq!(late.timeout(), Some(now + LATE));
        assert_eq!(late.take_rested(now + LATE), [flow(2)]);
        assert!(!late.is_empty() && late.timeout() == Some(now + LATE * 2));
        assert_eq!(late.take_rested(now + LATE * 2), [flow(1)]);
        assert!(late.is_empty() && late.timeout().is_none());
    }
}
