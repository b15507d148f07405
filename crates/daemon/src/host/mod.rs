//! What is done on this host, one file for each concern. Nothing in here knows of a role.
//!
//! ```text
//! executors.rs  all of them, and what several do together; failure.rs, refusal.rs: why something does not come about
//! data plane    flows.rs, bindings.rs, hooks.rs, tunnels.rs, wire_ports.rs, remotes.rs, names.rs, path_mtus.rs,
//!               late.rs
//! addresses     addresses.rs, settling.rs, homes.rs, ports.rs
//! senders       senders/, waking.rs
//! sockets       sockets.rs, introductions.rs, inventory/
//! namespaces    namespaces.rs, endpoints.rs, expected.rs
//! ```

pub(crate) mod addresses;
mod bindings;
mod chains;
pub(crate) mod endpoints;
mod executors;
mod expected;
mod failure;
mod flows;
mod homes;
pub(crate) mod hooks;
pub(crate) mod introductions;
pub(crate) mod inventory;
mod late;
pub(crate) mod lent;
mod names;
mod namespaces;
mod next_hops;
mod path_mtus;
pub(crate) mod ports;
pub(crate) mod refusal;
mod remotes;
pub(crate) mod senders;
mod settling;
pub(crate) mod sockets;
pub(crate) mod table;
mod tunnels;
mod waking;
mod wire_ports;

pub(crate) use addresses::{Addresses, MARK, PAST_THE_HOLD, own_addresses, source_routes};
pub(crate) use endpoints::PlaceName;
pub(crate) use executors::{Host, Means};
pub(crate) use failure::Failure;
pub(crate) use hooks::Mover;
pub(crate) use tunnels::DEFAULT_MTU;
