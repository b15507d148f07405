//! Hosts in network namespaces, emulated links, and scenarios with real programs on the real kernel.
//!
//! A [`Lab`] holds [`Host`]s, [`Link`]s and [`Network`]s; hosts [`join`](Host::join), [`leave`](Host::leave) and
//! [`roam`](Host::roam) between networks while programs run in them. Dropping the lab removes everything; so do a panic,
//! SIGINT and SIGTERM, and [`clean`] does for runs that were killed.

mod campus;
mod clock;
mod error;
mod host;
mod lab;
mod link;
mod netns;
mod network;
mod process;
mod random;
mod run;
mod sys;
mod wait;

pub use campus::{Campus, Gateway, Site, SiteSpec};
pub use clock::MonoTime;
pub use error::{Error, Result};
pub use host::Host;
pub use lab::{Lab, Options, Transfer, Wire};
pub use link::{Counters, Cut, Direction, Frame, Link, Packet, PacketCount, Segment, Shape, Verdict, tcp_flags};
pub use netns::Netns;
pub use network::{Attachment, Join, Leave, Network, NetworkSpec};
pub use process::{Cmd, Process, cpu_seconds};
pub use random::Random;
pub use run::{Leftover, clean};
pub use sys::TcpInfo;
pub use wait::{wait_for, wait_until};
