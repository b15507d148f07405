//! What the node wants of the data plane and the kernel, told where it has changed: bindings, and sets of addresses and
//! sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::Time;
use crate::base::op::{AddressOp, BindingOp, Carrier, FlowOp, PeerId, StoreOp};
use crate::base::output::{Asked, State};
use crate::node::Node;

impl Node {
    /// Lets the peer have the pair of locators that it is at now, if nobody else has it (P-40), and gives up the one that it
    /// had.
    pub(crate) fn claim_pair(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.meanwhile().is_some() {
            return;
        }
        // A gateway does not see what is bound at a host behind it (P-137). A daemon that was started a moment ago does not know its own
        // addresses yet: what came rewritten before it came to one of them, and nobody may answer it with a reset meanwhile.
        let attachments = self.base.attachments();
        let goes_on = attachments.is_empty() && matches!(peer.carrier, Carrier::Rewrite | Carrier::FollowRewrite);
        let speaks = |source: &IpAddr| !goes_on && attachments.is_behind(*source);
        let shared = self.sightings.is_shared(now, peer.remote.ip());
        let wanted = peer.wanted_pair(shared).filter(|(source, _)| !speaks(source));
        if peer.pair == wanted {
            return;
        }
        if let Some(before) = peer.pair.take() {
            self.pairs.remove(&before);
        }
        let Some(pair) = wanted.filter(|pair| !self.pairs.contains_key(pair)) else {
            if matches!(peer.carrier, Carrier::Rewrite | Carrier::FollowRewrite) {
                peer.carrier = if self.base.config().carriers.tunnel { Carrier::Tunnel } else { Carrier::Hold };
                peer.probe.forward = false;
            }
            return;
        };
        peer.pair = Some(pair);
        self.pairs.insert(pair, id);
        // Whoever was there before accepts nothing from there any more.
        let others = self.peers.values().filter(|other| other.id != id && other.former.contains(&pair));
        for other in others.map(|other| other.id).collect::<Vec<_>>() {
            self.put_binding_in_force(now, other);
        }
    }

    /// Tells the data plane the binding of a peer as it is now.
    pub(crate) fn put_binding_in_force(&mut self, now: Time, id: PeerId) {
        self.claim_pair(now, id);
        self.park_in_time(now, id);
        let Some(peer) = self.peers.get(&id) else { return };
        // While a move is under way what comes by the wrong path is to be seen, and what comes by the new one to be taken.
        let moving = peer.meanwhile().is_some() || peer.may_come_anew();
        let moved = peer.moved_flows() > 0 || peer.waiting.flows > 0 || moving;
        let mut binding = peer.binding();
        binding.former.retain(|pair| self.pairs.get(pair).is_none_or(|holder| *holder == id));
        let op = BindingOp::Set { peer: id, binding, moved };
        let asked = self.base.ask(op, Asked::State("putting a binding in force", State::Binding(id)));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.binding_asked = Some(asked);
        let saved = peer.saved();
        self.base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
    }

    /// Tells the caller the sets of addresses that moved flows need, where they changed.
    pub(crate) fn refresh_sets(&mut self) {
        let mut keep: BTreeSet<IpAddr> = BTreeSet::new();
        let mut leave: BTreeSet<IpAddr> = BTreeSet::new();
        let mut reach: BTreeMap<IpAddr, bool> = BTreeMap::new();
        for peer in self.peers.values() {
            keep.extend(peer.local_addresses());
            if peer.has_gone() {
                let former = peer.former.iter().map(|(local, _)| *local);
                leave.extend(peer.local_addresses().chain(former).chain(peer.source));
            }
            if peer.has_left() {
                let tunnelled = peer.needs_small_segments();
                for address in peer.remote_addresses() {
                    *reach.entry(address).or_default() |= tunnelled;
                }
            }
        }
        let keep: Vec<IpAddr> = keep.into_iter().collect();
        if keep != self.keeping {
            self.keeping = keep;
            self.keep_addresses();
        }
        let leave: Vec<IpAddr> = leave.into_iter().collect();
        if leave != self.leaving {
            self.leaving = leave;
            self.leave_from();
        }
        let reach: Vec<(IpAddr, bool)> = reach.into_iter().collect();
        if reach != self.reaching {
            self.reaching = reach;
            self.reach_peers();
        }
    }

    pub(crate) fn keep_addresses(&mut self) {
        let asked = Asked::State("keeping old addresses", State::Sets);
        self.base.ask(AddressOp::Keep { addresses: self.keeping.clone() }, asked);
    }

    fn leave_from(&mut self) {
        let asked = Asked::State("leading packets out of the network that is left", State::Sets);
        self.base.ask(AddressOp::LeaveFrom { addresses: self.leaving.clone() }, asked);
    }

    pub(crate) fn reach_peers(&mut self) {
        let asked = Asked::State("reaching moved peers", State::Sets);
        self.base.ask(AddressOp::Reach { addresses: self.reaching.clone() }, asked);
    }

    /// Tells the caller the sets again.
    pub(crate) fn put_sets_in_force(&mut self) {
        self.keep_addresses();
        self.leave_from();
        self.reach_peers();
    }

    /// Tells the caller again which sessions introductions may come for.
    pub(crate) fn put_listening_in_force(&mut self) {
        let asked = Asked::State("looking for introductions", State::Listening);
        self.base.ask(FlowOp::ListenForIntroductions { indices: self.listening.clone() }, asked);
    }

    /// Tells the caller which sessions introductions may come for, where that changed.
    pub(crate) fn refresh_listening(&mut self, now: Time) {
        let mut indices: Vec<u32> = Vec::new();
        for peer in self.peers.values() {
            if peer.is_listened_for(now) {
                indices.extend(peer.sessions.iter().map(|slot| slot.session.local_index()));
            }
        }
        indices.sort_unstable();
        if indices != self.listening {
            self.listening = indices;
            self.put_listening_in_force();
        }
    }
}
