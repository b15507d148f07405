//! What peers can have this host do at all its sockets, or with every message, and how often that is (P-143). Keys are
//! free, so what each may is not enough: all together may so much, and who waits is served with the others that wait.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::op::PeerId;

/// Moves of a peer that are followed in a row, and when there is another.
const MOVES: f64 = 20.0;
const MOVES_PAUSE: Duration = Duration::from_millis(200);
/// Looks at the sockets for senders to be woken that peers may cause in a row, all together, and the pause after.
const WAKES: f64 = 16.0;
const WAKES_PAUSE: Duration = Duration::from_millis(25);
/// Likewise for sockets that connect to where a peer was, or this host (P-203).
const ENDS: f64 = 4.0;
const ENDS_PAUSE: Duration = Duration::from_millis(50);
/// Likewise for connections that peers name by their numbers (P-52).
const FINDS: f64 = 4.0;
const FINDS_PAUSE: Duration = Duration::from_millis(50);
/// Peers that such a look is for at the most; so many places are kept for those without flows.
const FOUND_AT_ONCE: usize = 16;
const FOR_STRANGERS: usize = 4;
/// Proofs that cost as much as a look.
const PROOFS: f64 = 4096.0;

/// What peers have caused of late, and what waits.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Of peers that have moved of late.
    moves: BTreeMap<PeerId, Bucket>,
    wakes: Bucket,
    /// Whose senders the next look is for, and whether all that they had in flight is lost.
    to_wake: BTreeMap<PeerId, bool>,
    ends: Bucket,
    /// Addresses that nothing is to go on connecting to: whether from addresses alone that this host has left.
    to_end: BTreeMap<IpAddr, bool>,
    finds: Bucket,
    /// Peers with flows that connections are to be looked for of, and others; first come, first served.
    known: VecDeque<PeerId>,
    strangers: VecDeque<PeerId>,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            moves: BTreeMap::new(),
            wakes: Bucket::of(WAKES, WAKES_PAUSE),
            to_wake: BTreeMap::new(),
            ends: Bucket::of(ENDS, ENDS_PAUSE),
            to_end: BTreeMap::new(),
            finds: Bucket::of(FINDS, FINDS_PAUSE),
            known: VecDeque::new(),
            strangers: VecDeque::new(),
        }
    }
}

impl Looks {
    /// Whether another move of a peer is followed now.
    pub(crate) fn follows(&mut self, now: Time, id: PeerId) -> bool {
        self.moves.retain(|_, moves| !moves.is_full(now));
        self.moves.entry(id).or_insert_with(|| Bucket::of(MOVES, MOVES_PAUSE)).take(now)
    }

    /// Forgets a peer.
    pub(crate) fn forget(&mut self, id: PeerId) {
        self.moves.remove(&id);
        self.to_wake.remove(&id);
        self.known.retain(|waiting| *waiting != id);
        self.strangers.retain(|waiting| *waiting != id);
    }

    /// So many proofs are made to see which connections a peer means: whoever has opened many is not to have all of
    /// them made without end. Gives how long all wait for it.
    pub(crate) fn charge_proofs(&mut self, proofs: usize) -> Duration {
        let looks = proofs as f64 / PROOFS;
        self.finds.spend(looks);
        FINDS_PAUSE.mul_f64(looks)
    }

    /// The senders of a peer are to be woken. `lost`: all that they had in flight is lost.
    pub(super) fn want_wake(&mut self, id: PeerId, lost: bool) {
        *self.to_wake.entry(id).or_default() |= lost;
    }

    /// Takes those whose senders are to be woken, or until when they wait.
    pub(super) fn take_to_wake(&mut self, now: Time) -> Result<BTreeMap<PeerId, bool>, Time> {
        if self.to_wake.is_empty() || self.wakes.take(now) {
            return Ok(std::mem::take(&mut self.to_wake));
        }
        Err(now + WAKES_PAUSE)
    }

    /// Nothing is to go on connecting to an address. `left`: from addresses alone that this host has left.
    pub(super) fn want_end(&mut self, remote: IpAddr, left: bool) {
        *self.to_end.entry(remote).or_insert(left) &= left;
    }

    /// Takes the addresses that nothing is to go on connecting to, or until when they wait.
    pub(super) fn take_to_end(&mut self, now: Time) -> Result<BTreeMap<IpAddr, bool>, Time> {
        if self.to_end.is_empty() || self.ends.take(now) {
            return Ok(std::mem::take(&mut self.to_end));
        }
        Err(now + ENDS_PAUSE)
    }

    /// Whether some that no peer has accepted may be ended now.
    pub(super) fn may_end(&mut self, now: Time) -> Result<(), Time> {
        if self.ends.take(now) { Ok(()) } else { Err(now + ENDS_PAUSE) }
    }

    /// Connections are to be looked for of a peer. `known`: that there are flows with.
    pub(super) fn want_find(&mut self, id: PeerId, known: bool) {
        if !self.known.contains(&id) && !self.strangers.contains(&id) {
            if known { &mut self.known } else { &mut self.strangers }.push_back(id);
        }
    }

    /// Takes those whose turn it is to be looked for, or until when they wait.
    pub(super) fn take_to_find(&mut self, now: Time) -> Result<Vec<PeerId>, Time> {
        if self.known.is_empty() && self.strangers.is_empty() {
            return Ok(Vec::new());
        }
        if !self.finds.take(now) {
            return Err(now + FINDS_PAUSE);
        }
        let room = FOUND_AT_ONCE - FOR_STRANGERS.min(self.strangers.len());
        let mut turn: Vec<PeerId> = self.known.drain(..room.min(self.known.len())).collect();
        let room = FOUND_AT_ONCE - turn.len();
        turn.extend(self.strangers.drain(..room.min(self.strangers.len())));
        Ok(turn)
    }
}
