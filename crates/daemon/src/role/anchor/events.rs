//! What is told of endpoints that are lent and on lease.

use crate::events::kinds;

kinds! {
    /// All that `[anchor]` names can be lent now, and all that is lent is reached.
    CanLend = "can-lend" ();
    /// `faults`: sentences about what `[anchor]` names and this host cannot lend with the addresses that it has, or has
    /// lent and is not reached at any more.
    CannotLend = "cannot-lend" (faults) failure;
    /// The connection goes by its anchor's lease, and cannot be moved.
    ClaimRefused = "claim-refused" (flow);
    /// The connection can be moved after all, once its anchor was asked again.
    ClaimedAgain = "claimed-again" (flow);
    /// `ends`: endpoints of an anchor that this host has on lease.
    Lease = "lease" (anchor, ends);
    /// The lease is over, and programs that have it are not reached any more.
    LeaseLost = "lease-lost" (anchor);
    /// An anchor has one lease less.
    LeaseOver = "lease-over" (tenant);
    /// The anchor has the address again.
    LeaseReached = "lease-reached" (anchor, ends);
    /// The anchor lends nothing.
    LeaseRefused = "lease-refused" (anchor);
    /// Nobody here needs it any more.
    LeaseReturned = "lease-returned" (anchor);
    /// The anchor does not have the address any more.
    LeaseUnreached = "lease-unreached" (anchor, ends);
    /// `whimbrel anchor start`.
    LendingStarted = "lending-started" ();
    /// `whimbrel anchor stop`. With `restored` where a daemon before this one was told so.
    LendingStopped = "lending-stopped" (restored);
    /// As an anchor, this host lends `ends`.
    Lent = "lent" (tenant, ends);
}
