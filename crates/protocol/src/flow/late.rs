//! Late introduction (P-204 to P-206): at a hand-off the mover names its flows of the last seconds that were not
//! introduced, by the proofs that pairing has. The other end takes one only where nobody answers any more where it came
//! from, and nobody else names it.

use std::time::Duration;

use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::config::LateIntroductions;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, NOWHERE, PeerId, Places, SocketNumbers};
use crate::base::signal::Signal;
use crate::flow::FlowLayer;
use crate::flow::askings::Late;
use crate::flow::failure::Failure;
use crate::flow::introduction::introducers;
use crate::flow::known::{Flow, Origin, Stage};
use crate::flow::policy::Ruled;
use crate::flow::table::YOUNG;

/// Flows that are named at one hand-off.
pub(super) const NAMED: usize = 1024;
/// How long after a connection was opened whoever else has it may be heard of, where a peer has named it late.
const DOUBTED: Duration = Duration::from_secs(60);
/// What users are told of a peer that names a flow whose former far end is still there.
const STILL_THERE: &str = "it names a connection whose other end is still where it was";
/// The same where another names it as well.
const CONTESTED: &str = "it names a connection that another host names as well, and neither of them gets it";

impl FlowLayer {
    /// This host has left an address, and `home` with it: its young flows from there are named to the peer, which may
    /// look for them among its sockets.
    pub(crate) fn claim_late(&mut self, now: Time, id: PeerId, home: Places, base: &mut Base) {
        if home.local == NOWHERE || home.peer == NOWHERE || base.config().late == LateIntroductions::Never {
            return;
        }
        // What is under way is claimed under the places that it was begun at, or ended as P-202 says.
        let named = |known: &Flow| match known.stage {
            Stage::Echoing { .. } | Stage::Pairing { late: true, .. } => true,
            Stage::Failed(reason) => reason == Failure::Lost,
            _ => false,
        };
        let young = |known: &Flow| known.is_young(now, id) && !named(known);
        let named = self.flows.opened().filter(|(flow, known)| {
            let left = base.attachments().is_gone(flow.local.ip()) && !base.attachments().is_behind(flow.local.ip());
            young(known) && left && self.leads_to(flow, id) && !self.flows.is_reserved(flow)
        });
        let mut named: Vec<FlowTuple> = named.map(|(flow, _)| *flow).collect();
        named.sort_unstable();
        named.dedup();
        let mut any = false;
        for flow in named.into_iter().take(NAMED) {
            if !matches!(self.ruled(&flow, id), Ruled::Free) {
                continue;
            }
            any = true;
            if let Some(Stage::Pairing { late, since, next, .. }) =
                self.flows.get_mut(&flow).map(|known| &mut known.stage)
            {
                (*late, *since, *next) = (true, now, now);
                continue;
            }
            let nonce = introducers(base.random().u64());
            let Some(peer) = peer!(self, &id) else { return };
            let Some(wire_port) = peer.flow.free_wire_port(flow.remote.port(), self.flows.ports()) else { continue };
            let (numbers, session) = (None, None);
            let stage = Stage::Pairing {
                peer: id,
                nonce,
                home,
                late: true,
                wire_port,
                numbers,
                session,
                since: now,
                tries: 0,
                next: now,
            };
            self.leave_stage(&flow, stage);
            self.flows.add_nonce(nonce, flow);
            let Some(peer) = self.peers.get_mut(&id) else { return };
            peer.introductions.active.insert(flow);
            peer.introductions.begun.insert(flow);
        }
        if any {
            self.find_sockets(now, id, base);
        }
    }

    /// A peer is about to introduce flows: it is asked where it is, unless it has shown that of late, since it may name
    /// some of them after it has left (P-205).
    pub(crate) fn ask_where(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let fresh = base.random().u64();
        let Some(peer) = peer_mut!(self, &id) else { return };
        let at = peer.path.remote().ip();
        if let Some(token) = peer.path.shown().ask_in_time(now, at, fresh) {
            self.path.send(id, &[Message::PathChallenge { token }], base);
        }
    }

    /// Whether a flow of TCP goes to a peer, as far as this host can tell.
    fn leads_to(&self, flow: &FlowTuple, id: PeerId) -> bool {
        let address = flow.remote.ip();
        let at = self.path.paths(&id).is_some_and(|paths| paths.remote().ip() == address);
        flow.transport == Transport::Tcp && (at || self.path.session().contacts().is_known(address, id))
    }

    /// Whether a peer may claim a socket late (P-205). One that nobody has told of yet may be as young as that.
    pub(super) fn is_claimable(&self, now: Time, id: PeerId, flow: &FlowTuple, base: &Base) -> bool {
        let address = flow.remote.ip();
        let wanted = match base.config().late {
            LateIntroductions::Everywhere => true,
            LateIntroductions::Alone => !self.path.sightings().is_shared(now, address),
            LateIntroductions::Never => false,
        };
        wanted
            && base.attachments().has(&flow.local.ip())
            && self.path.paths(&id).is_some_and(|paths| paths.has_answered_at(now, address))
            && (self.askings.is_contested(flow)
                || self.flows.get(flow).is_none_or(|known| known.is_young(now, id) || known.is_doubted(now, id)))
            && !self.flows.is_reserved(flow)
    }

    /// Whether a flow is one that this peer has claimed late.
    pub(super) fn was_claimed(&self, id: PeerId, flow: &FlowTuple) -> bool {
        match self.flows.get(flow).map(Flow::stage) {
            // It claims it again, if the answer was lost, also once it is not doubted any more.
            Some(Stage::Introduced { entry, origin }) => {
                entry.peer == id && (entry.late || matches!(origin, Origin::Paired { .. }))
            }
            _ => false,
        }
    }

    /// A peer has named a socket late. Whoever else names it with a proof may as well be the one who has it: it is
    /// neither's then (P-206), and no lie of either. Tells whether the claim is to be refused.
    pub(super) fn is_refused(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) -> bool {
        let Some(peer) = self.peers.get(&id) else { return true };
        if peer.introductions.refused.contains_key(&flow) {
            return true;
        }
        let is_had = self.flows.get(&flow).is_some_and(|known| known.is_doubted(now, id));
        if is_had {
            self.undo_late(now, flow, (Failure::Contested, CONTESTED), base);
        }
        if is_had || self.askings.is_anothers(&flow, id) && !self.askings.is_contested(&flow) {
            self.askings.contest(now, flow);
            base.sweep_later(now);
            base.event(Event::Refused { peer: id, reason: CONTESTED });
        }
        self.askings.is_contested(&flow)
    }

    /// A peer may have a socket that it has named: its far end is asked whether it is still there.
    pub(super) fn ask_former(
        &mut self,
        now: Time,
        id: PeerId,
        &SocketNumbers { flow, heard, round_trip, .. }: &SocketNumbers,
        base: &mut Base,
    ) -> Late {
        let late = self.askings.ask(now, flow, id, heard, round_trip);
        match late {
            Late::Ask => {
                base.sweep_later(now);
                // Twice: whoever is there is not to lose it by one segment that is lost.
                for _ in 0..2 {
                    base.op(FlowOp::AskNatively { flow });
                }
            }
            Late::There => {
                // Another key may be that of who was there, and has left now.
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.introductions.pairings.count_miss(now);
                    peer.introductions.refused.insert(flow, now + DOUBTED);
                    base.sweep_later(now);
                }
                base.event(Event::Refused { peer: id, reason: STILL_THERE });
            }
            Late::Awaited | Late::Left => {}
        }
        late
    }

    /// A flow is introduced: where its peer has named it late, whoever else has it may be heard of for a while.
    pub(crate) fn doubt(&mut self, now: Time, flow: FlowTuple, entry: &FlowEntry, base: &mut Base) {
        if entry.late {
            self.doubted.insert(flow);
            base.sweep_later(now);
        }
    }

    /// What was named late is as any other once it was native with its peer again, whose packets come natively then and
    /// may do so still after its next move; or once whoever else has it had long enough. Tells whether any are left.
    pub(crate) fn end_doubts(&mut self, now: Time, base: &mut Base) -> bool {
        let is_over = |flow: &FlowTuple| match self.flows.get(flow).map(|known| (known.opened, known.entry())) {
            Some((opened, Some(entry))) if entry.late => {
                opened + DOUBTED <= now || self.peers.get(&entry.peer).is_none_or(|peer| peer.places() == entry.home)
            }
            _ => true,
        };
        let over: Vec<FlowTuple> = self.doubted.iter().filter(|flow| is_over(flow)).copied().collect();
        for flow in over {
            self.doubted.remove(&flow);
            let what = "noting that a connection is its peer's";
            self.change_entry(&flow, what, |entry| entry.late = false, base);
        }
        !self.doubted.is_empty()
    }

    /// Somebody is natively at the far end of a flow that a peer has claimed late: it never was that peer's (P-206).
    pub(crate) fn disown(&mut self, now: Time, flow: FlowTuple, base: &mut Base) {
        let Some(entry) = self.flows.entry(&flow).copied().filter(|entry| entry.late) else { return };
        self.undo_late(now, flow, (Failure::StillThere, STILL_THERE), base);
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.introductions.pairings.count_miss(now);
        }
    }

    /// A flow that a peer has claimed late is its no more.
    fn undo_late(&mut self, now: Time, flow: FlowTuple, (failure, reason): (Failure, &'static str), base: &mut Base) {
        let Some(known) = self.flows.get(&flow).cloned() else { return };
        let Some(entry) = known.entry().copied() else { return };
        self.forget_flow(&flow, base);
        self.flows.put(flow, Flow { stage: Stage::Failed(failure), ..known });
        base.event(Event::Refused { peer: entry.peer, reason });
        self.send_ended(now, entry.peer, entry.name, base);
        self.idle_later(now, entry.peer, base);
        base.signal(Signal::FlowsGone);
    }
}

impl Flow {
    /// Whether another peer has it by a late claim, and it may yet turn out to be somebody else's: also where that one
    /// was at home again, which it may choose to be.
    fn is_doubted(&self, now: Time, id: PeerId) -> bool {
        let Stage::Introduced { entry, origin } = &self.stage else { return false };
        let late = entry.late || matches!(origin, Origin::Paired { late: true, .. });
        late && entry.peer != id && !self.closed && self.opened + DOUBTED > now
    }

    /// Whether it is so young, and so unknown, that it may be introduced late with this peer, if policy wants it.
    pub(super) fn is_young(&self, now: Time, id: PeerId) -> bool {
        let its = match &self.stage {
            Stage::Open | Stage::Failed(_) | Stage::Excluded(_) => true,
            Stage::Introducing { peer, .. } | Stage::Echoing { peer, .. } | Stage::Pairing { peer, .. } => *peer == id,
            Stage::Introduced { .. } => false,
        };
        its && !self.closed && !self.settled && self.opened + YOUNG > now
    }
}
