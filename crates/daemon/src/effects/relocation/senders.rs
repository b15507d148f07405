//! The sockets of endpoint namespaces are woken after an outage, and kept while their peer is away, as the host's own are.

use whimbrel_datapath::Fitted;
use whimbrel_kernel::inject::Injector;
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
    /// Adds the TCP sockets of endpoint namespaces to those of the host's own.
    pub(in crate::effects) fn look_in_endpoints(&mut self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        if self.relocation.endpoints.is_empty() {
            return Ok(());
        }
        snapshot.sockets(&mut self.datapath)?;
        for place in self.relocation.endpoints.in_use() {
            let _inside = place.endpoint.enter()?;
            self.datapath.tcp_sockets(|socket| snapshot.add(*socket))?;
        }
        Ok(())
    }

    /// Makes the sockets of endpoint namespaces fit what has become of their flows, beside those of the host's own. No device is theirs to
    /// be bound to.
    ///
    /// A look at each takes as long as one at all sockets of the machine, so none is taken where none waits, nor has waited at the last one, and
    /// nothing has lapsed.
    pub(in crate::effects) fn fit_in_endpoints(&mut self, lapsed: &[u32], own: Fitted) -> Result<Fitted, Failure> {
        let mut all = own;
        let waits = self.any_waits();
        if !self.fitting.looks_inside(waits || !lapsed.is_empty()) {
            return Ok(all);
        }
        let mut inside = 0;
        for place in self.relocation.endpoints.in_use() {
            let _inside = place.endpoint.enter()?;
            let fitted = self.datapath.fit_sockets(&[], lapsed)?;
            all = Fitted { changed: all.changed + fitted.changed, waiting: all.waiting + fitted.waiting };
            inside += fitted.waiting;
        }
        self.fitting.note_inside(waits || inside > 0);
        Ok(all)
    }
}
