//! D-Bus: what NetworkManager, systemd-networkd and ModemManager say of this host's links, and desktop notifications.
//!
//! The lowest first: [`address`] says where a bus is, `message` what its bytes mean, [`connection`] speaks with it,
//! [`services`] know what each service says, [`watch`] listens to them in a thread of its own, [`notification`] shows
//! something to a user. Nothing here is needed by anything: a bus that is absent, hangs, or says what makes no sense
//! costs what it would have told (decision 0115).
#![forbid(unsafe_code)]

pub mod address;
pub mod connection;
mod failure;
mod message;
pub mod notification;
pub mod services;
pub mod watch;

pub use failure::BusError;
pub use services::{Connectivity, LinkReport, ServiceState};
pub use watch::{Heard, Watch};
