//! The sockets of endpoint namespaces are woken after an outage, and kept while their peer is away, as the host's own are.

use std::os::fd::{AsFd, OwnedFd};

use whimbrel_kernel::inject::Injector;
use whimbrel_protocol::LocalEnd;
use whimbrel_wire::FlowTuple;

use super::Relocation;
use crate::effects::introductions::Snapshot;
use crate::effects::{Effects, Failure};

impl Relocation {
    /// What injects into a connection of a leased or borrowed end. `None`: there is no namespace for it.
    pub(in crate::effects) fn injector_of(&self, flow: &FlowTuple) -> Option<&Injector> {
        self.endpoints.injector(flow)
    }
}

impl Effects {
    /// Looks the TCP sockets of flows up, of the host's own and of endpoint namespaces. `lapsed`: the flows go on after a lapse.
    pub(in crate::effects) fn look_up(
        &self,
        flows: &[FlowTuple],
        lapsed: bool,
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        let mut look = |flows: &[FlowTuple]| -> Result<(), Failure> {
            if lapsed {
                let found = self.datapath.note_lapse(flows)?;
                snapshot.take(flows, found);
            } else {
                snapshot.look_up(&self.datapath, flows)?;
            }
            Ok(())
        };
        let entries = self.flows.all();
        let inside = |flow: &FlowTuple| entries.get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint);
        let (inside, own): (Vec<FlowTuple>, Vec<FlowTuple>) = flows.iter().partition(|flow| inside(flow));
        if !own.is_empty() {
            look(&own)?;
        }
        for (place, flows) in self.relocation.endpoints.by_place(inside) {
            let _inside = place.endpoint.enter()?;
            look(&flows)?;
        }
        Ok(())
    }

    /// The endpoint namespaces whose sockets are to fit what has become of their flows. A look at each takes as long as one at all sockets
    /// of the machine, so there are none where none waits, nor has waited at the last one.
    pub(in crate::effects) fn namespaces_to_fit(&self, waits: bool) -> Vec<OwnedFd> {
        if !self.fitting.looks_inside(waits) {
            return Vec::new();
        }
        let places = self.relocation.endpoints.in_use();
        let named = places.map(|place| place.endpoint.as_fd().try_clone_to_owned());
        let cannot = |error| tracing::warn!(%error, "connections of an endpoint namespace that wait may give up");
        named.filter_map(|descriptor| descriptor.map_err(cannot).ok()).collect()
    }
}
