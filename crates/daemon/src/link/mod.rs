//! The networks that this host is attached to, and what is known of each by itself.

pub(crate) mod attachments;
mod detector;
mod detectors;
mod ethernet;
pub(crate) mod route_lookup;
#[cfg(feature = "dbus")]
mod services;
mod wifi;

pub(crate) use detectors::Detectors;
