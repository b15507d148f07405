//! Flows, and the bindings that lead them.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use whimbrel_wire::{BindingId, FlowTuple};

use super::Datapath;
use crate::abi::{
    Binding, CONFLICT_NATIVE, FlowEntry, HELD_UNCONNECTED, LocatorPair, RawBinding, RawFlowEntry, RawLocator,
    RawLocatorPair, RawTuple, RawWireFlow, TUNNELLED,
};
use crate::error::Error;

/// A name on the wire that a flow had, with a peer that it is not with any more.
#[derive(Clone, Copy, Debug)]
pub struct FormerName {
    wire: RawWireFlow,
    own: RawTuple,
}

impl Datapath {
    /// Makes flows known, or changes what is known of them. Wire tuples are the caller's to keep apart: of two flows
    /// with the same binding, transport and wire ports the last inserted gets what comes in.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full; some may have been inserted.
    pub fn insert_flows(&self, flows: &[(FlowTuple, FlowEntry)]) -> Result<(), Error> {
        for former in self.bind_flows(flows)? {
            self.forget_name(&former)?;
        }
        Ok(())
    }

    /// Has a flow be another peer's, and takes what comes for it as from the former one as well until that name is
    /// [forgotten](Self::forget_name). `None`: it was not known, or has the same name.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rebind_flow(&self, flow: FlowTuple, entry: FlowEntry) -> Result<Option<FormerName>, Error> {
        Ok(self.bind_flows(&[(flow, entry)])?.pop())
    }

    /// What comes under a name that a flow had is not the flow's any more, unless it has that name again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_name(&self, former: &FormerName) -> Result<(), Error> {
        let in_force = self.flows.get(&former.own)?.map(|entry| entry.wire_flow(former.own.transport));
        if in_force.as_ref() == Some(&former.wire) { Ok(()) } else { self.remove_wire(&former.wire, &former.own) }
    }

    /// Inserts flows, and tells the names that some of them had.
    fn bind_flows(&self, flows: &[(FlowTuple, FlowEntry)]) -> Result<Vec<FormerName>, Error> {
        let mut names = Vec::new();
        let mut tuples = Vec::with_capacity(flows.len());
        let mut entries = Vec::with_capacity(flows.len());
        let mut wires = Vec::with_capacity(flows.len());
        let mut moves = Vec::with_capacity(flows.len());
        for (tuple, entry) in flows {
            let tuple = RawTuple::new(tuple);
            let mut entry = RawFlowEntry { tunnelled_until: tunnelled_until(entry), ..RawFlowEntry::new(entry) };
            let wire = entry.wire_flow(tuple.transport);
            let former = self.flows.get(&tuple)?;
            moves.push((former, entry));
            if let Some(former) = former {
                (entry.lapsed, entry.echoes_from, entry.clock) = (former.lapsed, former.echoes_from, former.clock);
                entry.sent = former.sent;
                if entry.held & former.held & HELD_UNCONNECTED != 0 {
                    entry.conflict |= former.conflict & CONFLICT_NATIVE;
                }
                let before = former.wire_flow(tuple.transport);
                if before != wire {
                    names.push(FormerName { wire: before, own: tuple });
                } else if former.binding == entry.binding {
                    // It is with the same peer, under the same names: what was heard of it holds, as far as the places
                    // are still those (P-24).
                    entry.heard_local_place = former.heard_local_place;
                    entry.heard_peer_place = former.heard_peer_place;
                }
            }
            tuples.push(tuple);
            entries.push(entry);
            wires.push(wire);
        }
        // What comes in has to find its way before anything goes out that may be answered.
        self.wire_flows.insert_all(&wires, &tuples)?;
        self.flows.insert_all(&tuples, &entries)?;
        let unconnected = |entry: &RawFlowEntry| entry.held & HELD_UNCONNECTED != 0;
        let of_unconnected = tuples.iter().zip(&moves).filter(|(_, (_, entry))| unconnected(entry));
        let (keys, addresses): (Vec<_>, Vec<_>) =
            of_unconnected.map(|(tuple, _)| (tuple.without_address(), tuple.local)).unzip();
        self.unconnected.insert_all(&keys, &addresses)?;
        for (tuple, (former, entry)) in tuples.iter().zip(&moves) {
            if former.as_ref().is_some_and(unconnected) && !unconnected(entry) {
                self.forget_unconnected(tuple)?;
            }
        }
        self.update_deliveries(|deliveries| {
            moves.iter().for_each(|(from, to)| deliveries.change(from.as_ref(), Some(to)));
        })?;
        Ok(names)
    }

    /// Forgets flows; those not known are none the worse.
    ///
    /// # Errors
    /// When the kernel refuses; some may have been removed.
    pub fn remove_flows(&self, flows: &[FlowTuple]) -> Result<(), Error> {
        for flow in flows {
            if let Some(name) = self.leave_flow(flow)? {
                self.remove_wire(&name.wire, &name.own)?;
            }
        }
        Ok(())
    }

    /// Forgets a flow, but goes on taking what comes for it from its peer under its name on the wire until that is
    /// [forgotten](Self::forget_name): it is of no flow then, under its own names. `None`: it was not known.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn leave_flow(&self, flow: &FlowTuple) -> Result<Option<FormerName>, Error> {
        let own = RawTuple::new(flow);
        let Some(entry) = self.flows.get(&own)? else { return Ok(None) };
        self.flows.remove(&own)?;
        if entry.held & HELD_UNCONNECTED != 0 {
            self.forget_unconnected(&own)?;
        }
        self.update_deliveries(|deliveries| deliveries.change(Some(&entry), None))?;
        Ok(Some(FormerName { wire: entry.wire_flow(own.transport), own }))
    }

    /// What a socket without an address sends is not of this flow any more, unless it is of another by now.
    fn forget_unconnected(&self, own: &RawTuple) -> Result<(), Error> {
        let key = own.without_address();
        if self.unconnected.get(&key)? == Some(own.local) {
            self.unconnected.remove(&key)?;
        }
        Ok(())
    }

    /// Removes a wire tuple if it is still that of `own`.
    fn remove_wire(&self, wire: &RawWireFlow, own: &RawTuple) -> Result<(), Error> {
        if self.wire_flows.get(wire)?.as_ref() == Some(own) {
            self.wire_flows.remove(wire)?;
        }
        Ok(())
    }

    /// All flows.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn flows(&self) -> Result<Vec<(FlowTuple, FlowEntry)>, Error> {
        let entries = self.flows.entries()?;
        Ok(entries.iter().filter_map(|(tuple, entry)| Some((tuple.tuple()?, entry.entry()))).collect())
    }

    /// The flows that were heard rewritten since the binding of their peer is what it is: those that a binding with
    /// [`Carrier::Follow`](crate::Carrier::Follow) answers rewritten (P-24).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heard_rewritten(&self) -> Result<HashSet<FlowTuple>, Error> {
        let places: HashMap<BindingId, (u32, u32)> =
            self.bindings.entries()?.iter().map(|(id, at)| (*id, (at.local_place, at.peer_place))).collect();
        let heard = |entry: &RawFlowEntry| {
            places.get(&entry.binding) == Some(&(entry.heard_local_place, entry.heard_peer_place))
        };
        let entries = self.flows.entries()?;
        Ok(entries.iter().filter(|(_, entry)| heard(entry)).filter_map(|(tuple, _)| tuple.tuple()).collect())
    }

    /// Sets a binding: the one write that moves all its flows. New pairs are accepted before the binding changes, old
    /// ones until after.
    ///
    /// # Errors
    /// When the kernel refuses; some of it may have been done, and the same call may be made again.
    pub fn set_binding(&self, id: BindingId, binding: &Binding) -> Result<(), Error> {
        let mut accepted = self.accepted();
        let current = accepted.entry(id).or_default();
        for pair in &binding.accepted {
            let (key, present) = (RawLocatorPair::new(pair), (pair.local, pair.peer) == (binding.local, binding.peer));
            // What is still under way between others comes by the device that it came by.
            let before = if present { None } else { self.locators.get(&key)?.filter(|before| before.binding == id) };
            let arrival = before.map_or(if present { binding.arrival } else { 0 }, |before| before.arrival);
            self.locators.insert(&key, &RawLocator { binding: id, arrival })?;
            if !current.contains(pair) {
                current.push(*pair);
            }
        }
        let before = self.bindings.get(&id)?;
        self.bindings.insert(&id, &RawBinding::new(binding, before.as_ref(), now_ms()))?;
        while let Some(at) = current.iter().position(|pair| !binding.accepted.contains(pair)) {
            self.remove_locators(id, &current[at])?;
            current.swap_remove(at);
        }
        Ok(())
    }

    /// Removes a binding. Its flows, if there still are any, are native then.
    ///
    /// # Errors
    /// When the kernel refuses; the same call may be made again.
    pub fn remove_binding(&self, id: BindingId) -> Result<(), Error> {
        let mut accepted = self.accepted();
        self.bindings.remove(&id)?;
        if let Some(pairs) = accepted.get(&id) {
            for pair in pairs {
                self.remove_locators(id, pair)?;
            }
        }
        accepted.remove(&id);
        Ok(())
    }

    /// Two peers may have been seen at one locator (behind one NAT, or one after the other): the last one has it.
    fn remove_locators(&self, id: BindingId, pair: &LocatorPair) -> Result<(), Error> {
        let pair = RawLocatorPair::new(pair);
        if self.locators.get(&pair)?.is_some_and(|locator| locator.binding == id) {
            self.locators.remove(&pair)?;
        }
        Ok(())
    }

    pub(super) fn accepted(&self) -> MutexGuard<'_, HashMap<BindingId, Vec<LocatorPair>>> {
        // It mirrors the map entry by entry, so a panic elsewhere has not left it wrong.
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All bindings by id, with what is left of their allowances.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bindings(&self) -> Result<Vec<(BindingId, Binding)>, Error> {
        let accepted = self.accepted();
        let entries = self.bindings.entries()?;
        let pairs = |id: &BindingId| accepted.get(id).cloned().unwrap_or_default();
        Ok(entries.iter().filter_map(|(id, binding)| Some((*id, binding.binding(pairs(id))?))).collect())
    }
}

/// Until when a flow goes by the tunnel that begins to do so now, as the programs have it; 0 where it does not.
fn tunnelled_until(entry: &FlowEntry) -> u32 {
    if !entry.tunnelled {
        return 0;
    }
    now_ms().wrapping_add(TUNNELLED.as_millis() as u32)
}

/// CLOCK_MONOTONIC in milliseconds, which wraps around, here as in the programs.
fn now_ms() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time. A clock that every kernel has does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.wrapping_mul(1000).wrapping_add(now.tv_nsec / 1_000_000) as u32
}
