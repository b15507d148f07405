//! Flows whose address is one host's, and whose socket is another's (`docs/protocol.md` §11).
//!
//! ```text
//! lessor.rs    lending endpoints
//! tenant.rs    having some of another host's
//! referral.rs  far ends that run Whimbrel talk to the socket's host directly
//! ```

pub(crate) mod lessor;
pub(crate) mod referral;
pub(crate) mod tenant;
