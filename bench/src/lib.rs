//! Measurements, each beside its baseline in the same interleaved run, and the report that all of them end in.

pub mod anchor;
mod bed;
pub mod beside;
mod chart;
mod course;
pub mod flood;
pub mod idle;
pub mod links;
pub mod machine;
pub mod nat;
pub mod process;
pub mod reach;
pub mod relocation;
pub mod report;
pub mod roam;
mod sleep;
mod stream;
pub mod tunnel;
pub mod vnat;

/// What a measurement gives, or why it could not be made.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
