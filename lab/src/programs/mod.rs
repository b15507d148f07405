//! Real programs inside hosts: the lab's own traffic programs, and nginx, curl, BIND, OpenSSH, iperf3, busybox for
//! DHCP.

mod bind;
mod bus;
mod criu;
mod dhcp;
mod http;
mod iperf;
mod ssh;
mod traffic;
mod wifi;

pub use self::bind::{Bind, ZONE};
pub use self::bus::Bus;
pub use self::criu::{criu_lacks, criu_starts_within, criu_tracks_memory};
pub use self::dhcp::{DhcpServer, Lease};
pub(crate) use self::http::checksum;
pub use self::http::{Download, Nginx};
pub use self::iperf::{Iperf, IperfServer};
pub use self::ssh::{SshServer, SshSession};
pub(crate) use self::traffic::lab_binary;
pub use self::traffic::{
    EchoServer, FlowPair, Many, Metadata, PairOptions, Side, Ticker, TickerFar, UdpRelay, Walker, WalkerReport,
};
pub use self::wifi::{AccessPoint, Radio, Station};
