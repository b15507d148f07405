//! A host is about to forget all that it has agreed on with its peers, and to remove what leads moved flows (P-227).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::message::{MAX_FORGOTTEN, Message};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::attachments::Routes;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, LocalEnd, NOWHERE, PeerId};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::BoundRef;
use crate::binding::untold::{Forgotten, LastWords, Standing};
use crate::flow::known::Flow;

/// Between two handshakes with a peer that is to be told.
const ASKED_EVERY: Duration = Duration::from_millis(400);

impl BindingLayer {
    /// See [`Node::forget_all`](crate::Node::forget_all).
    pub(crate) fn forget_all(
        &mut self,
        now: Time,
        configured: &BTreeSet<IpAddr>,
        routes: &dyn Routes,
        base: &mut Base,
    ) {
        // No peer is to follow this host anywhere any more.
        base.set_suspended(true);
        for id in self.flow.session().ids() {
            let Some(peer) = bound!(self, &id) else { continue };
            let way = self.choose(id, peer.path, None, routes, base).found;
            let untold = self.to_be_forgotten(id, &peer, configured, base);
            let Some(peer) = bound_mut!(self, &id).filter(|_| !untold.is_empty()) else { continue };
            let standing = if way.is_some() { Standing::Told } else { Standing::NoWay };
            peer.binding.forgotten = Forgotten::new(untold, standing);
            base.stop_timer(Timer::Reach(id));
            if let Some(attachment) = way {
                peer.path.answer_from(attachment);
                base.set_timer(Timer::Forgotten(id), now);
            }
        }
    }

    /// What a peer is to be told.
    fn to_be_forgotten(
        &self,
        id: PeerId,
        peer: &BoundRef<'_>,
        configured: &BTreeSet<IpAddr>,
        base: &Base,
    ) -> BTreeMap<u32, (bool, Vec<u64>)> {
        let is_lost = |flow: &FlowTuple, entry: &FlowEntry| match entry.end {
            LocalEnd::Here => !goes_on(peer, flow, entry, configured, base),
            LocalEnd::Endpoint | LocalEnd::Behind => true,
            // They live on with the gateway's memory (P-123).
            LocalEnd::Passing => false,
        };
        let mut words = Vec::new();
        for lost in [true, false] {
            let flows =
                self.flow.flows_with(id, |flow, entry| entry.end != LocalEnd::Passing && is_lost(flow, entry) == lost);
            let names: Vec<u64> = flows.iter().filter_map(|flow| Some(self.flow.flows().entry(flow)?.name)).collect();
            words.extend(names.chunks(MAX_FORGOTTEN).map(|names| (lost, names.to_vec())));
        }
        (1..).zip(words).collect()
    }

    /// See [`Node::last_words`](crate::Node::last_words).
    pub(crate) fn last_words(&self) -> LastWords {
        let mut words = LastWords::default();
        for peer in self.peers.values() {
            match peer.forgotten.standing {
                Standing::Nothing => {}
                _ if peer.forgotten.untold.is_empty() => words.heard += 1,
                Standing::NoWay => words.unreachable += 1,
                Standing::Told => words.awaited += 1,
            }
        }
        words
    }

    /// Tells a peer what it has not answered, once there is a session.
    pub(super) fn say_forgotten(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        if peer.binding.forgotten.standing != Standing::Told || peer.binding.forgotten.untold.is_empty() {
            return;
        }
        if !peer.peer.has_session() {
            self.flow.path_mut().start_handshake_with(now, id, base);
            base.set_timer(Timer::Forgotten(id), now + ASKED_EVERY);
            return;
        }
        peer.binding.forgotten.tries += 1;
        let pause = peer.path.repeat_after(peer.binding.forgotten.tries);
        for word in peer.binding.forgotten.words().collect::<Vec<_>>() {
            // Each in a datagram of its own (P-37).
            self.flow.path_mut().send(id, &[word], base);
        }
        base.set_timer(Timer::Forgotten(id), now + pause);
    }

    /// A peer says where it is to a host that is about to forget its flows: that is what it is told, there, and not
    /// that its flows are led there. Tells whether that is so.
    pub(super) fn answer_with_forgotten(&mut self, id: PeerId, arrival: &Arrival, base: &mut Base) -> bool {
        let Some(peer) = bound_mut!(self, &id).filter(|peer| peer.binding.forgotten.is_meant()) else { return false };
        if let Some(word) = peer.binding.forgotten.take_for_elsewhere() {
            self.flow.path_mut().send_to(id, arrival.destination, arrival.source, &[word], base);
        }
        true
    }

    /// The peer has answered one of these words.
    pub(super) fn handle_forgotten_seen(&mut self, id: PeerId, number: u32, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let untold = &mut peer.binding.forgotten.untold;
        if untold.remove(&number).is_some() && untold.is_empty() {
            base.stop_timer(Timer::Forgotten(id));
        }
    }

    /// See [`Node::forget_peer`](crate::Node::forget_peer). The peer is told, once: its session goes with the rest.
    pub(crate) fn forget_with(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let own: BTreeSet<IpAddr> = base.attachments().addresses().copied().collect();
        let Some(peer) = bound!(self, &id) else { return };
        for (number, (lost, names)) in self.to_be_forgotten(id, &peer, &own, base) {
            let word = Message::Forgotten { number, lost, names: names.clone() };
            self.flow.path_mut().send(id, &[word], base);
            self.forget_named(now, id, lost, &names, false, base);
        }
        for flow in self.flow.flows_with(id, |_, _| true) {
            self.flow.forget_flow(&flow, base);
        }
    }

    /// A peer forgets these flows with it, which goes for this end as well: what is `lost` nobody leads any more.
    pub(super) fn handle_forgotten(&mut self, now: Time, id: PeerId, lost: bool, names: &[u64], base: &mut Base) {
        self.forget_named(now, id, lost, names, true, base);
    }

    /// `by_peer`: it was the peer that has forgotten them.
    fn forget_named(&mut self, now: Time, id: PeerId, lost: bool, names: &[u64], by_peer: bool, base: &mut Base) {
        let Some(peer) = bound!(self, &id) else { return };
        let named = names.iter().filter_map(|name| peer.flow.named(*name));
        let of = |flow: FlowTuple| Some((flow, self.flow.flows().get(&flow)?.clone()));
        // Each once, however often it is named.
        let flows: BTreeMap<FlowTuple, Flow> = named.filter_map(of).collect();
        if flows.is_empty() {
            return;
        }
        let end = |known: &Flow| known.entry().map(|entry| entry.end);
        // What is led to an end of another kind leads nowhere without its entry.
        let plain = |known: &Flow| matches!(end(known), Some(LocalEnd::Here | LocalEnd::Passing));
        let is_over = |flow: &FlowTuple| flows.get(flow).is_some_and(|known| lost || plain(known));
        let nothing_waits = peer.flow.flows().iter().all(is_over);
        if let Some(peer) = bound_mut!(self, &id).filter(|_| nothing_waits) {
            peer.flow.set_away(None);
            peer.binding.listens = false;
        }
        if lost {
            // A host behind has no socket here that could be reset. What it sends is led nowhere for a minute yet, as
            // that of a flow that is over (P-103), and not to whoever has the peer's former address now.
            let passes = |flow: &FlowTuple, known: &Flow| is_tcp(flow) && end(known) == Some(LocalEnd::Passing);
            let lives = |known: &Flow| !known.is_closed();
            let (passing, ended): (Vec<_>, Vec<_>) = flows.iter().partition(|(flow, known)| passes(flow, known));
            for (flow, _) in passing.into_iter().filter(|(_, known)| lives(known)) {
                self.flow.flows_mut().close(now, *flow);
            }
            let count = ended.iter().filter(|(flow, known)| is_tcp(flow) && lives(known)).count();
            let ended: Vec<FlowTuple> = ended.into_iter().map(|(flow, _)| *flow).collect();
            let told = (count > 0 && by_peer).then_some(Event::PeerCleaned { peer: id, flows: count });
            self.end_flows(now, id, &ended, told, base);
        } else {
            for (flow, known) in flows.iter().filter(|(_, known)| plain(known)) {
                match end(known) == Some(LocalEnd::Here) && !known.is_closed() {
                    true => self.flow.forget_agreement(flow, base),
                    false => self.flow.forget_flow(flow, base),
                }
            }
            self.apply_binding(now, id, base);
            self.refresh_sets(base);
            self.flow.idle_later(now, id, base);
        }
        // Their sockets are there, and under their own names they go on: of UDP also what is lost.
        let goes_on = |flow: &FlowTuple, known: &Flow| {
            end(known) == Some(LocalEnd::Here) && !known.is_closed() && (!lost || !is_tcp(flow))
        };
        for (flow, known) in flows.into_iter().filter(|(flow, known)| goes_on(flow, known)) {
            self.flow.reopen_forgotten(now, flow, known);
        }
    }
}

fn is_tcp(flow: &FlowTuple) -> bool {
    flow.transport == Transport::Tcp
}

/// Whether a flow of a socket of this host's goes on natively once both ends have forgotten it. `configured`: all
/// addresses of this host.
fn goes_on(
    peer: &BoundRef<'_>,
    flow: &FlowTuple,
    entry: &FlowEntry,
    configured: &BTreeSet<IpAddr>,
    base: &Base,
) -> bool {
    let (places, local) = (peer.flow.places(), flow.local.ip());
    // A cable that is out or an address that is being checked is no move: TCP waits for these by itself.
    let has = configured.contains(&local);
    if entry.home == places {
        return has;
    }
    // Where this host is has no number while it is suspended, without a network or not answered. The address says it.
    let unnumbered = places.local == NOWHERE && peer.binding.own_places.get(&entry.home.local) == Some(&local);
    // It may be home again since its daemon ended. A NAT on the way may have forgotten the flow meanwhile (P-123).
    let returned = base.attachments().has(&local) && entry.peer_tuple.mirrored() == *flow;
    entry.home.peer == places.peer && ((unnumbered && has) || returned)
}
