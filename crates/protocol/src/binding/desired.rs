//! What the node wants of the data plane and the kernel, told where it has changed: bindings, and sets of addresses and
//! sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::Time;
use crate::base::Base;
use crate::base::op::{AddressOp, BindingId, BindingOp, FlowOp, Led, PeerId, StoreOp};
use crate::base::output::{Asked, State};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;

/// With so many sessions that introductions are looked for of, what is added is told together with what else is in this
/// time.
const LISTENING_FEW: usize = 256;
const LISTENING_PAUSE: Duration = Duration::from_millis(10);

impl BindingLayer {
    /// There is another session with a peer, or might be. It may be one that introductions are looked for of.
    pub(crate) fn listen_in_new_session(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if bound!(self, &id).is_some_and(|peer| peer.is_listened_for(now)) {
            self.listen_also(now, base);
        }
    }

    /// Tells the data plane the binding of a peer as it is now.
    pub(crate) fn apply_binding(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.claim_pair(now, id, base);
        self.park_in_time(now, id, base);
        let Some(peer) = bound!(self, &id) else { return };
        // While a move is under way what comes by the wrong path is to be seen, and what comes by the new one to be
        // taken.
        let moving = peer.meanwhile().is_some() || peer.path.may_come_anew();
        let moved = peer.moved_flows() > 0 || peer.flow.waiting().flows() > 0 || moving;
        let mut binding = peer.binding();
        binding.former.retain(|pair| self.pairs.get(pair).is_none_or(|holder| *holder == id));
        let first = BindingId::first(id);
        let op = BindingOp::Set { id: first, binding, moved };
        let asked = base.ask(op, Asked::State("putting a binding in force", State::Binding(first)));
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.binding.binding_asked = Some(asked);
        let saved = peer.saved();
        base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
    }

    /// Tells the caller the sets of addresses that moved flows need, where they changed.
    pub(crate) fn refresh_sets(&mut self, base: &mut Base) {
        let mut keep: BTreeSet<IpAddr> = BTreeSet::new();
        let mut leave: BTreeSet<IpAddr> = BTreeSet::new();
        let mut reach: BTreeMap<IpAddr, bool> = BTreeMap::new();
        let mut led: BTreeMap<IpAddr, Led> = BTreeMap::new();
        for peer in self.each() {
            keep.extend(peer.flow.local_addresses());
            if peer.has_gone() {
                let former = peer.binding.former.iter().map(|(local, _)| *local);
                leave.extend(peer.flow.local_addresses().chain(former).chain(peer.path.source()));
            }
            if peer.has_left() {
                let tunnelled = peer.needs_small_segments();
                for address in peer.flow.remote_addresses() {
                    *reach.entry(address).or_default() |= tunnelled;
                }
            }
        }
        // While the path that is left still carries the flows, all is to go there (P-38).
        for peer in self.each().filter(|peer| peer.path.strays() && peer.meanwhile().is_none()) {
            let (Some(by), all) = (peer.path.source(), peer.path.is_led()) else { continue };
            let at = peer.flow.remote_addresses().chain([peer.path.remote().ip()]);
            // Flows of the other family reach the tunnel by their own routes, unless nothing that goes there arrives.
            for to in at.filter(|to| all || to.is_ipv4() == by.is_ipv4()) {
                let way = Led { to, by, all };
                let said = led.entry(to).or_insert(way);
                // Several may be behind one address.
                if all {
                    *said = way;
                }
            }
        }
        let keep: Vec<IpAddr> = keep.into_iter().collect();
        if keep != self.keeping {
            self.keeping = keep;
            self.keep_addresses(base);
        }
        let leave: Vec<IpAddr> = leave.into_iter().collect();
        if leave != self.leaving {
            self.leaving = leave;
            self.leave_from(base);
        }
        let led: Vec<Led> = led.into_values().collect();
        if led != self.led {
            self.led = led;
            self.lead_peers(base);
        }
        let reach: Vec<(IpAddr, bool)> = reach.into_iter().collect();
        if reach != self.reaching {
            self.reaching = reach;
            self.reach_peers(base);
        }
    }

    pub(crate) fn keep_addresses(&mut self, base: &mut Base) {
        let asked = Asked::State("keeping old addresses", State::Sets);
        base.ask(AddressOp::Keep { addresses: self.keeping.clone() }, asked);
    }

    fn leave_from(&mut self, base: &mut Base) {
        let asked = Asked::State("leading packets out of the network that is left", State::Sets);
        base.ask(AddressOp::LeaveFrom { addresses: self.leaving.clone() }, asked);
    }

    fn lead_peers(&mut self, base: &mut Base) {
        let asked = Asked::State("leading peers by another network", State::Sets);
        base.ask(AddressOp::Lead { ways: self.led.clone() }, asked);
    }

    pub(crate) fn reach_peers(&mut self, base: &mut Base) {
        let asked = Asked::State("reaching moved peers", State::Sets);
        base.ask(AddressOp::Reach { addresses: self.reaching.clone() }, asked);
    }

    /// Tells the caller the sets again.
    pub(crate) fn apply_sets(&mut self, base: &mut Base) {
        self.keep_addresses(base);
        self.leave_from(base);
        if !self.led.is_empty() {
            self.lead_peers(base);
        }
        self.reach_peers(base);
    }

    /// What the sets ask for may have been undone by a change of the network: it is said again where it is as before.
    pub(crate) fn refresh_sets_anew(&mut self, base: &mut Base) {
        let keeping = std::mem::take(&mut self.keeping);
        let reaching = std::mem::take(&mut self.reaching);
        self.refresh_sets(base);
        if !keeping.is_empty() && self.keeping.is_empty() {
            self.keep_addresses(base);
        }
        if !reaching.is_empty() && self.reaching.is_empty() {
            self.reach_peers(base);
        }
    }

    /// Tells the caller again which sessions introductions may come for.
    pub(crate) fn apply_listening(&mut self, base: &mut Base) {
        let asked = Asked::State("looking for introductions", State::Listening);
        base.ask(FlowOp::ListenForIntroductions { indices: self.listening.clone() }, asked);
    }

    /// Tells the caller which sessions introductions may come for, where that changed.
    pub(crate) fn refresh_listening(&mut self, now: Time, base: &mut Base) {
        let mut indices: Vec<u32> = Vec::new();
        for peer in self.each() {
            if peer.is_listened_for(now) {
                indices.extend(peer.slots().map(|slot| slot.local_index()));
            }
        }
        indices.sort_unstable();
        if indices != self.listening {
            self.listening = indices;
            self.apply_listening(base);
        }
    }

    /// Introductions may come for another session. With many already, this and others are told of together: the caller
    /// gets all of them each time, and who has keys made on the spot can ask as often as it likes.
    pub(crate) fn listen_also(&mut self, now: Time, base: &mut Base) {
        if self.listening.len() < LISTENING_FEW {
            self.refresh_listening(now, base);
        } else {
            base.set_timer_earlier(Timer::Listening, now + LISTENING_PAUSE);
        }
    }
}
