//! Late introduction (P-204 to P-206): at a hand-off the mover names its flows of the last seconds that were not
//! introduced, by the proofs that pairing has. The other end takes one only where nobody answers any more where it came
//! from.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::config::LateIntroductions;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, NOWHERE, PeerId, Places, SocketNumbers};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::askings::{Late, Unaccepted};
use crate::flow::introduction::introducers;
use crate::flow::known::{Flow, Origin, Stage};
use crate::flow::policy::Ruled;
use crate::flow::table::YOUNG;

/// Flows that are named at one hand-off.
const NAMED: usize = 1024;
/// How long what a peer may never have accepted is asked for where the peer was, before it is ended.
const ASKED_FOR: Duration = Duration::from_secs(1);
/// How long after a connection was opened whoever else has it may be heard of, where a peer has named it late.
const DOUBTED: Duration = Duration::from_secs(60);
/// What users are told of one that the other end did not take.
pub(super) const LOST: &str = "an end moved before it was introduced, and the other end cannot tell whose it is";
/// What users are told where somebody is still at a flow's former far end.
const STILL_THERE: &str = "it names a connection whose other end is still where it was";

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
            Stage::Failed(reason) => reason == LOST,
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
            && self.flows.get(flow).is_none_or(|known| known.is_young(now, id))
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

    /// A peer has named a socket that it may claim: its far end is asked whether it is still there.
    pub(super) fn ask_former(
        &mut self,
        now: Time,
        id: PeerId,
        nonce: u64,
        &SocketNumbers { flow, heard, round_trip, .. }: &SocketNumbers,
        base: &mut Base,
    ) -> Late {
        let Some(peer) = peer_mut!(self, &id) else { return Late::There };
        let late = peer.flow.introductions.askings.ask(now, flow, nonce, heard, round_trip);
        match late {
            Late::Ask => {
                base.sweep_later(now);
                // Twice: whoever is there is not to lose it by one segment that is lost.
                for _ in 0..2 {
                    base.op(FlowOp::AskNatively { flow });
                }
            }
            Late::There => {
                peer.flow.introductions.pairings.count_miss(now);
                // It is not asked about again, lest who claims chooses when.
                if let Some(known) = self.flows.get_mut(&flow) {
                    known.settled = true;
                }
                base.event(Event::Refused { peer: id, reason: STILL_THERE });
            }
            Late::Awaited | Late::Left => {}
        }
        late
    }

    /// A peer has left an address, and names what is young from there. What it does not name it may never have
    /// accepted.
    pub(super) fn await_claims(&mut self, now: Time, id: PeerId, left: IpAddr, base: &mut Base) {
        let young = self.flows.opened().filter(|(flow, known)| {
            let its = flow.remote.ip() == left && flow.transport == Transport::Tcp;
            its && !known.accepted && known.is_young(now, id)
        });
        let mut young: Vec<FlowTuple> = young.map(|(flow, _)| *flow).collect();
        young.sort_unstable();
        young.dedup();
        young.truncate(NAMED);
        // Until then it may name them (P-204).
        self.expect_unaccepted(id, &young, now + YOUNG, false, base);
    }

    /// The peer has not accepted these, as it seems: they are ended then. `asked`: nobody needs to be asked any more
    /// where the peer was.
    pub(super) fn expect_unaccepted(
        &mut self,
        id: PeerId,
        flows: &[FlowTuple],
        due: Time,
        asked: bool,
        base: &mut Base,
    ) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !flows.is_empty()) else { return };
        let unaccepted = &mut peer.unaccepted;
        unaccepted.retain(|of| !flows.contains(&of.flow));
        unaccepted.extend(flows.iter().map(|flow| Unaccepted { flow: *flow, due, asked }));
        unaccepted.truncate(NAMED);
        base.set_timer_earlier(Timer::Unaccepted(id), due);
    }

    /// Ends what a peer has never accepted. Whoever is still where it was is asked before: the effect ends nothing in
    /// which he has answered.
    pub(crate) fn end_unaccepted(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Err(until) = self.looks.may_end(now) {
            return base.set_timer(Timer::Unaccepted(id), until);
        }
        let Some(peer) = peer_mut!(self, &id) else { return };
        let at = peer.path.remote().ip();
        let unaccepted = std::mem::take(&mut peer.flow.unaccepted);
        let (due, later): (Vec<_>, Vec<_>) = unaccepted.into_iter().partition(|of| of.due <= now);
        if let Some(next) = later.iter().map(|of| of.due).min() {
            base.set_timer(Timer::Unaccepted(id), next);
        }
        let askings = &peer.flow.introductions.askings;
        let is_lost = |flow: &FlowTuple| {
            let native = flow.remote.ip() == at && base.attachments().has(&flow.local.ip());
            let open = self.flows.get(flow).is_some_and(|known| !known.closed && known.entry().is_none());
            open && !native && !askings.has(flow)
        };
        let (asked, unasked): (Vec<_>, Vec<_>) =
            due.into_iter().filter(|of| is_lost(&of.flow)).partition(|of| of.asked);
        let (flows, unasked) = (tuples(asked), tuples(unasked));
        peer.flow.unaccepted = later;
        if !unasked.is_empty() {
            self.expect_unaccepted(id, &unasked, now + ASKED_FOR, true, base);
            base.op(FlowOp::AskUnaccepted { flows: unasked });
        }
        if !flows.is_empty() {
            base.ask(FlowOp::EndUnaccepted { flows }, Asked::Effect("ending connections that nobody has accepted"));
        }
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
        let Some(known) = self.flows.get(&flow).cloned() else { return };
        let Some(entry) = known.entry().copied().filter(|entry| entry.late) else { return };
        self.forget_flow(&flow, base);
        self.flows.put(flow, Flow { stage: Stage::Failed(STILL_THERE), ..known });
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.introductions.pairings.count_miss(now);
        }
        base.event(Event::Refused { peer: entry.peer, reason: STILL_THERE });
        self.send_ended(now, entry.peer, entry.name, base);
        self.idle_later(now, entry.peer, base);
        base.signal(Signal::FlowsGone);
    }
}

fn tuples(unaccepted: Vec<Unaccepted>) -> Vec<FlowTuple> {
    unaccepted.into_iter().map(|of| of.flow).collect()
}

impl Flow {
    /// Whether it is so young, and so unknown, that it may be introduced late with this peer.
    fn is_young(&self, now: Time, id: PeerId) -> bool {
        let its = match &self.stage {
            Stage::Open | Stage::Failed(_) => true,
            Stage::Introducing { peer, .. } | Stage::Echoing { peer, .. } | Stage::Pairing { peer, .. } => *peer == id,
            Stage::Introduced { .. } | Stage::Excluded(_) => false,
        };
        its && !self.closed && !self.settled && self.opened + YOUNG > now
    }
}
