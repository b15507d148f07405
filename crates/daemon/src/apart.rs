//! What `whimbrel run` does before its program: it goes where the daemon can give it an address of an anchor's.

use std::os::fd::OwnedFd;

/// Moves the calling process, which must have one thread, into a network namespace of its own, and gives a descriptor
/// of that. Root stays root; others get a user namespace besides, as whom they are.
///
/// # Errors
/// The system does not allow it.
pub fn leave_network() -> Result<OwnedFd, whimbrel_kernel::Error> {
    whimbrel_kernel::namespace::leave()
}
