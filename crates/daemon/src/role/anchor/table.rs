//! Tables of endpoints that are lent.

use whimbrel_protocol::{FlowEntry, FlowName, LeaseName, SavedLease, SavedTenancy};
use whimbrel_wire::FlowTuple;

use crate::host::table::{Name, SavedNamespace};
use crate::store::{Change, Store, StoreError, table};

table! {
    /// What others have on lease, by tenant and number; and whether the address was of a subnet of this host's links
    /// when it was lent.
    Leases = "lease": Name => (SavedLease, bool)
}

table! {
    /// There where nothing new is lent (`whimbrel anchor stop`).
    LendingStopped = "lending-stopped": () => bool
}

table! {
    /// What this host has on lease, by anchor and number, with the namespaces that programs have brought along for it.
    Tenancies = "tenancy": Name => (SavedTenancy, Option<SavedNamespace>)
}

table! {
    /// Flows as they were before they became direct, of which who has passed them on is to be told.
    Left = "left": FlowTuple => FlowEntry
}

impl Store {
    /// Keeps whether this host lends nothing new.
    ///
    /// # Errors
    /// When the file cannot be written. Then nothing is kept, here and with those below.
    pub(crate) fn save_lending_stopped(&mut self, stopped: bool) -> Result<(), StoreError> {
        let change = Change::default();
        self.keep(vec![match stopped {
            true => change.put::<LendingStopped>(&(), &true),
            false => change.remove::<LendingStopped>(&()),
        }])
    }

    /// Keeps what another host has on lease. `on_link`: the address was of a subnet of this host's links when it was
    /// lent.
    ///
    /// # Errors
    /// As [`Self::save_lending_stopped`].
    pub(crate) fn save_lease(&mut self, saved: SavedLease, on_link: bool) -> Result<(), StoreError> {
        let name = (saved.name.tenant, saved.name.number);
        self.keep(vec![Change::default().put::<Leases>(&name, &(saved, on_link))])
    }

    /// It has it no more.
    pub(crate) fn forget_lease(&mut self, name: LeaseName) {
        self.remove::<Leases>(&(name.tenant, name.number));
    }

    /// Keeps what this host has on lease, with the namespace that a program has brought along for it.
    ///
    /// # Errors
    /// As [`Self::save_lending_stopped`].
    pub(crate) fn save_tenancy(&mut self, saved: SavedTenancy, of: Option<SavedNamespace>) -> Result<(), StoreError> {
        self.keep(vec![Change::default().put::<Tenancies>(&(saved.anchor, saved.number), &(saved, of))])
    }

    /// It has it no more.
    pub(crate) fn forget_tenancy(&mut self, lease: FlowName) {
        self.remove::<Tenancies>(&(lease.peer(), lease.value()));
    }

    /// Keeps how a flow was before it became direct, until who has passed it on was told: `None`.
    pub(crate) fn save_left(&mut self, flow: &FlowTuple, former: Option<FlowEntry>) {
        match former {
            Some(entry) => self.put::<Left>(flow, &entry),
            None => self.remove::<Left>(flow),
        }
    }
}
