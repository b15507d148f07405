//! Helpers are told how connections stand, and get what the data plane has for them.

use std::collections::{BTreeSet, HashMap, HashSet};

use whimbrel_protocol::{Binding, Carrier, FlowEntry, PeerId, Time};
use whimbrel_wire::FlowTuple;

use crate::host::Host;
use crate::role::helpers::{Helpers, Situation, Standing};

impl Helpers {
    /// The binding of a peer may be another.
    pub(crate) fn record_peer(&mut self, peer: PeerId) {
        self.changed_peers.insert(peer);
    }

    /// A flow may wait, or go on.
    pub(crate) fn record_flow(&mut self, flow: FlowTuple) {
        self.changed_flows.insert(flow);
    }

    fn standing(&self, entry: &FlowEntry, binding: Option<&Binding>) -> Standing {
        let parked = binding.is_some_and(|binding| binding.parked);
        let held = binding.is_some_and(|of| of.carrier == Carrier::Hold && of.places != entry.home);
        if (parked || entry.waits.there) && !entry.waits.here && !self.suspended {
            Standing::Away
        } else if parked || held || entry.waits.any() {
            Standing::Waits
        } else {
            Standing::Here
        }
    }

    /// Whether this host itself is to wait, so that nobody is to be helped out for.
    pub(crate) fn set_suspended(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// Tells the helpers what has become of connections.
    pub(crate) fn help(&mut self, host: &mut Host, now: Time) {
        let (peers, flows) = (std::mem::take(&mut self.changed_peers), std::mem::take(&mut self.changed_flows));
        if self.is_idle() || peers.is_empty() && flows.is_empty() {
            return;
        }
        let known = host.flows.all();
        let concerned = known.iter().filter(|(flow, entry)| peers.contains(&entry.peer) || flows.contains(flow));
        let situations: Vec<Situation> = concerned
            .map(|(flow, entry)| Situation {
                flow: *flow,
                entry: *entry,
                key: host.flows.key_of(entry.peer),
                standing: self.standing(entry, host.bindings.get(&entry.binding())),
            })
            .collect();
        let away: BTreeSet<FlowTuple> = known
            .iter()
            .filter(|(_, entry)| self.standing(entry, host.bindings.get(&entry.binding())) == Standing::Away)
            .map(|(flow, _)| *flow)
            .collect();
        self.update(now, &mut host.means(), &situations, &|flow| away.contains(flow));
        self.helped(host, now);
    }

    /// After anything that helpers did: what they need, and whom they let go on.
    fn helped(&mut self, host: &mut Host, now: Time) {
        if host.hooks.set_helped(self.translates())
            && let Err(failure) = host.apply_hooks()
        {
            tracing::warn!(%failure, "cannot attach the programs to every interface");
        }
        let released = self.take_released();
        host.wake_senders_of(now, &released);
    }

    /// Takes in what live ends sent while their peers are away, `most` packets of it; whether there may be more.
    pub(crate) fn handle_kept(&mut self, host: &mut Host, now: Time, most: usize) -> bool {
        let mut taken = 0;
        while taken < most
            && let Some(packet) = host.tunnel.receive_kept()
        {
            taken += 1;
            self.handle_packet(now, &mut host.means(), &packet);
        }
        self.helped(host, now);
        taken == most
    }

    /// Peers have told what they have of what was kept for them.
    pub(crate) fn handle_words(&mut self, host: &mut Host, now: Time, words: &[(FlowTuple, u32, u16)]) {
        for (flow, next, window) in words {
            self.handle_acknowledged(now, &mut host.means(), *flow, *next, *window);
        }
        if !words.is_empty() {
            self.helped(host, now);
        }
    }

    /// Connections were opened (true) and have ended.
    pub(crate) fn handle_flows(&mut self, host: &mut Host, now: Time, flows: &[(FlowTuple, bool)]) {
        if self.is_idle() {
            return;
        }
        for (flow, opened) in flows {
            if *opened {
                self.handle_opened(flow);
            } else {
                self.handle_closed(now, &mut host.means(), *flow);
            }
        }
        self.helped(host, now);
    }

    /// Some connections may have ended without a word of it.
    pub(crate) fn check_helped(&mut self, host: &mut Host, now: Time) {
        if !self.is_idle() {
            self.check_for_ended(now, &mut host.means());
            self.helped(host, now);
        }
    }

    /// Helper programs have something to say.
    pub(crate) fn handle_helpers(&mut self, host: &mut Host, now: Time) {
        self.handle_ready(now, &mut host.means());
        self.helped(host, now);
    }

    pub(crate) fn handle_helpers_timeout(&mut self, host: &mut Host, now: Time) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.handle_timeout(now, &mut host.means());
            self.helped(host, now);
        }
    }

    pub(crate) fn adopt_helped(
        &mut self,
        host: &mut Host,
        now: Time,
        flows: &HashMap<FlowTuple, FlowEntry>,
        at_rest: &HashSet<FlowTuple>,
    ) {
        self.adopt(now, &mut host.means(), flows, at_rest);
        host.hooks.set_helped(self.translates());
    }
}
