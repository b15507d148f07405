//! What the role asks of the kernel.
//!
//! ```text
//! lender.rs     endpoints of this host that others have on lease
//! tenant.rs     endpoints of others that this host has
//! young.rs      connections of those that may end soon
//! ```

pub(crate) mod lender;
pub(crate) mod tenant;
pub(crate) mod young;
