//! Whether somebody is still at the far ends of flows that a peer claims late (P-206), or may never have accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::flow::table::YOUNG;

/// How long nothing may come from where the flow came from, once its socket has been asked there, beside two round
/// trips.
const QUIET: Duration = Duration::from_millis(250);
/// A round trip that TCP has not measured yet (RFC 6298 §2.1).
const UNMEASURED: Duration = Duration::from_secs(1);
/// Flows of a peer that are asked for at a time.
const ASKED_MOST: usize = 1024;

/// What is known of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// The socket's far end is to be asked, now and again while the claim is made again.
    Ask,
    /// Others are asked before.
    Awaited,
    /// Nobody is there any more.
    Left,
    /// Somebody is.
    There,
}

/// A flow's former far end is being asked whether it is still there.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// Of the claim.
    nonce: u64,
    /// What the socket had heard when its far end was asked.
    heard: u32,
    since: Time,
}

/// What a peer may never have accepted (P-203).
#[derive(Clone, Copy, Debug)]
pub(super) struct Unaccepted {
    pub(super) flow: FlowTuple,
    /// When that is taken for certain.
    pub(super) due: Time,
    /// Whoever is still where the peer was has been asked.
    pub(super) asked: bool,
}

/// The flows that a peer claims late, and whose far ends are asked.
#[derive(Debug, Default)]
pub(super) struct Askings(BTreeMap<FlowTuple, Asking>);

impl Askings {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, flow: &FlowTuple) -> bool {
        self.0.contains_key(flow)
    }

    /// Forgets what is claimed no more. Tells whether any are left.
    pub(super) fn sweep(&mut self, now: Time) -> bool {
        self.0.retain(|_, asking| asking.since + YOUNG > now);
        !self.0.is_empty()
    }

    /// A flow is claimed by this nonce, whose socket has heard so many segments. `round_trip`: the socket's, which is
    /// that of its far end, and not of the peer, who is elsewhere.
    pub(super) fn ask(&mut self, now: Time, flow: FlowTuple, nonce: u64, heard: u32, round_trip: Duration) -> Late {
        let round_trip = if round_trip.is_zero() { UNMEASURED } else { round_trip };
        match self.0.get(&flow).copied().filter(|asking| asking.nonce == nonce) {
            Some(asking) if asking.heard != heard => Late::There,
            Some(asking) if asking.since + QUIET + 2 * round_trip <= now => {
                self.0.remove(&flow);
                Late::Left
            }
            Some(_) => Late::Ask,
            None if self.0.len() >= ASKED_MOST => Late::Awaited,
            None => {
                self.0.insert(flow, Asking { nonce, heard, since: now });
                Late::Ask
            }
        }
    }
}
