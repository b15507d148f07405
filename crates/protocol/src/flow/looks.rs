//! What peers can have this host do at all its sockets, or with every message, and how often that is (P-143). Keys are
//! free, so what each may is not enough: all together may so much, and who waits is served with the others that wait.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Time;
use crate::base::Base;
use crate::base::bucket::Bucket;
use crate::base::op::{BindingOp, PeerId};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;

/// Moves of a peer that are followed in a row, and when there is another.
const MOVES: f64 = 20.0;
const MOVES_PAUSE: Duration = Duration::from_millis(200);
/// Looks at the sockets for senders to be woken that peers may cause in a row, all together, and the pause after.
const WAKES: f64 = 16.0;
const WAKES_PAUSE: Duration = Duration::from_millis(25);
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

    /// Takes those whose turn it is.
    fn take_to_find(&mut self) -> Vec<PeerId> {
        let room = FOUND_AT_ONCE - FOR_STRANGERS.min(self.strangers.len());
        let mut turn: Vec<PeerId> = self.known.drain(..room.min(self.known.len())).collect();
        let room = FOUND_AT_ONCE - turn.len();
        turn.extend(self.strangers.drain(..room.min(self.strangers.len())));
        turn
    }
}

impl FlowLayer {
    /// Something that a peer has said lets its flows go on: their senders are woken, at once where that is not asked
    /// too often.
    pub(crate) fn wake_senders(&mut self, now: Time, id: PeerId, lost: bool, base: &mut Base) {
        *self.looks.to_wake.entry(id).or_default() |= lost;
        self.search_for_senders(now, base);
    }

    /// The sockets of a peer are to be looked for, with its claims or this host's own.
    pub(crate) fn search_for(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let known = peer!(self, &id).is_some_and(|peer| !peer.flow.flows.is_empty());
        let looks = &mut self.looks;
        if looks.known.contains(&id) || looks.strangers.contains(&id) {
            return;
        }
        if known { &mut looks.known } else { &mut looks.strangers }.push_back(id);
        self.search_for_connections(now, base);
    }

    /// There may be looks again.
    pub(crate) fn continue_looks(&mut self, now: Time, base: &mut Base) {
        self.search_for_senders(now, base);
        self.search_for_connections(now, base);
    }

    fn search_for_senders(&mut self, now: Time, base: &mut Base) {
        if self.looks.to_wake.is_empty() {
            return;
        }
        if !self.looks.wakes.take(now) {
            return base.set_timer_earlier(Timer::Looks, now + WAKES_PAUSE);
        }
        for (peer, lost) in std::mem::take(&mut self.looks.to_wake) {
            base.ask(BindingOp::Kick { peer, lost }, Asked::Effect("waking senders"));
        }
    }

    fn search_for_connections(&mut self, now: Time, base: &mut Base) {
        if self.looks.known.is_empty() && self.looks.strangers.is_empty() {
            return;
        }
        if !self.looks.finds.take(now) {
            return base.set_timer_earlier(Timer::Looks, now + FINDS_PAUSE);
        }
        for id in self.looks.take_to_find() {
            self.find_sockets_of(id, base);
        }
        self.search_for_connections(now, base);
    }
}
