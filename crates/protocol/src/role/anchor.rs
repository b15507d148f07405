//! Flows whose address is one host's, and whose socket is another's (`docs/protocol.md` §11).
//!
//! ```text
//! lessor.rs    lending endpoints
//! tenant.rs    having some of another host's
//! choice.rs    which anchor, where a program leaves that to a policy
//! search.rs    which is asked next
//! returns.rs   what is given back, and who waits for that
//! referral.rs  far ends that run Whimbrel talk to the socket's host directly
//! ```

mod choice;
pub(crate) mod lessor;
pub(crate) mod referral;
mod returns;
mod search;
pub(crate) mod tenant;

pub use choice::{Candidate, Experience, Policy};
pub use returns::{Awaited, Returns};
pub use search::{Refused, Search, Then};
