//! Hosts in network namespaces, emulated links, and scenarios with real programs on the real kernel.
//!
//! A [`Lab`] holds [`Host`]s, [`Link`]s and [`Network`]s; hosts [`join`](Host::join), [`leave`](Host::leave) and
//! [`roam`](Host::roam) between networks while programs run in them. Dropping the lab removes everything; so do a
//! panic, SIGINT and SIGTERM, and [`clean`] does for runs that were killed.

pub mod bench_link;
mod campus;
mod clock;
mod daemon;
pub mod demo;
mod error;
mod flood;
mod host;
mod lab;
mod link;
mod nat;
mod netns;
mod network;
mod process;
mod programs;
mod random;
mod run;
pub mod scenarios;
mod shower;
mod sys;
pub mod traffic;
mod wait;

use std::path::PathBuf;

pub use campus::{Campus, Gateway, Site, SiteSpec};
pub use clock::MonoTime;
pub use daemon::{Lame, Whimbrel};
pub use error::{Error, Result};
pub use flood::{Flood, Rates, SeenIndex};
pub use host::Host;
pub use lab::{Lab, Options, Transfer, Wire};
pub use link::{Counters, Cut, Direction, Frame, Link, Packet, PacketCount, Segment, Shape, Verdict, tcp_flags};
pub use nat::NatKind;
pub use netns::Netns;
pub use network::{Attachment, Join, Leave, Network, NetworkSpec};
pub use process::{Cmd, Process, cpu_seconds};
pub use programs::{
    AccessPoint, Bind, Bus, DhcpServer, Download, EchoServer, FlowPair, Iperf, IperfServer, Lease, Many, Metadata,
    Nginx, PairOptions, Radio, Side, SshServer, SshSession, Station, Ticker, TickerFar, UdpRelay, Walker, WalkerReport,
    ZONE, criu_lacks, criu_starts_within, criu_tracks_memory,
};
pub(crate) use programs::{checksum, lab_binary};
pub use random::Random;
pub use run::{Leftover, clean};
pub use sys::TcpInfo;
pub use wait::{patience, wait_for, wait_until};

/// A program in the directory of this one, or one above (test programs lie in a directory of their own).
fn beside_this_program(name: &str) -> Option<PathBuf> {
    let me = std::env::current_exe().ok()?;
    me.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file())
}
