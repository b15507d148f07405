//! Networks of given rates, delays and queues, and a laptop that roams between two of them while a server sends to it
//! as fast as it goes.
//!
//! ```text
//!  laptop ──(net a)── ra ── link A ── core ──(net s)── server
//!         ──(net b)── rb ── link B ── core
//! ```
//!
//! Its old address vanishes as the new one appears, so what is under way is lost.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use whimbrel_lab::{Attachment, Campus, Host, Join, Lab, MonoTime, Shape, Site, SiteSpec, Whimbrel, Wire};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Result;
use crate::roam::Options;
use crate::stream::{Heard, Sender};

const SECOND: Duration = Duration::from_secs(1);
/// After a hand-off, ms.
pub(super) const SPANS: [u64; 3] = [200, 1_000, 5_000];
/// Of Ethernet frames, bytes.
const FRAME: u64 = 1514;
/// Round trips that a stay has at the least, so that TCP knows the network when it is left.
const STAY_ROUND_TRIPS: u32 = 30;
/// Of TCP's buffers at both ends, bytes: a satellite's path holds more than the usual 6 MB.
const BUFFERS: &str = "4096 131072 67108864";

/// A network to be on. The VHF report gives neither delays nor queues of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    pub(super) name: &'static str,
    /// One way, microseconds.
    delay: u64,
    /// Bits a second.
    pub(super) rate: u64,
    /// Frames that wait.
    queue: usize,
    /// The spans that count for what is gone to, ms.
    pub(super) counts: &'static [u64],
}

/// The report's.
pub(super) const LAN: Net = Net { name: "lan", delay: 500, rate: 100_000_000, queue: 100, counts: &[200] };
pub(super) const WLAN: Net = Net { name: "wlan", delay: 5_000, rate: 5_000_000, queue: 50, counts: &[1_000] };
pub(super) const WCDMA: Net = Net { name: "wcdma", delay: 75_000, rate: 384_000, queue: 30, counts: &[5_000] };
/// Today's.
pub(super) const GIGABIT: Net = Net { name: "gigabit", delay: 500, rate: 1_000_000_000, queue: 1_000, counts: &SPANS };
pub(super) const WIFI: Net = Net { name: "wifi", delay: 2_500, rate: 200_000_000, queue: 250, counts: &SPANS };
pub(super) const LTE: Net = Net { name: "lte", delay: 25_000, rate: 40_000_000, queue: 250, counts: &SPANS };
/// Its queue is half of what is under way.
pub(super) const SATELLITE: Net =
    Net { name: "satellite", delay: 300_000, rate: 100_000_000, queue: 2_500, counts: &SPANS };

impl Net {
    pub(super) fn shape(self) -> Shape {
        Shape { rate: Some(self.rate), queue_packets: self.queue, ..Shape::delay(Duration::from_micros(self.delay)) }
    }

    /// Frames under way and waiting, at the most.
    pub(super) fn holds(self) -> u64 {
        2 * self.delay * self.rate / 8 / 1_000_000 / FRAME + self.queue as u64
    }

    pub(super) fn round_trip(self) -> Duration {
        Duration::from_micros(2 * self.delay)
    }

    /// At least so long, and as many round trips as a stay has.
    pub(super) fn stay(self, least: Duration) -> Duration {
        least.max(self.round_trip() * STAY_ROUND_TRIPS)
    }

    pub(super) fn describe(self) -> String {
        let Self { name, rate, queue, .. } = self;
        let (round_trip, rate) = (self.round_trip().as_millis(), rate / 1000);
        format!("{name}: {rate} kbit/s, round trip {round_trip} ms, {queue} frames wait, holds {} frames", self.holds())
    }
}

/// What TCP begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    AsLeft,
    SlowStart,
    Restored,
}

impl Begins {
    pub(super) const ALL: [Self; 3] = [Self::AsLeft, Self::SlowStart, Self::Restored];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AsLeft => "as_left",
            Self::SlowStart => "slow_start",
            Self::Restored => "restored",
        }
    }
}

/// The hosts and networks.
pub(super) struct Place {
    pub(super) sites: [Site; 2],
    pub(super) laptop: Host,
    pub(super) server: Server,
    /// Another server, without a daemon.
    pub(super) plain: Server,
    at: Attachment,
    _daemons: [Whimbrel; 2],
    // Last: the others live in it.
    pub(super) lab: Lab,
}

impl Place {
    /// `control`: the servers' congestion control.
    pub(super) fn build(options: &Options, pair: [Net; 2], control: &str, begins: Begins) -> Result<Self> {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let mut site = |name: &str, net: Net| -> Result<Site> {
            let spec = SiteSpec { access: Wire::Veth, ..SiteSpec::named(name).v4_only() };
            Ok(campus.add(&mut lab, spec.uplink(net.shape()))?)
        };
        let sites = [site("a", pair[0])?, site("b", pair[1])?];
        let home = campus.add(&mut lab, SiteSpec::named("s").v4_only().fast())?;
        let laptop = client(&mut lab, "laptop")?;
        let mut server = |name: &str| -> Result<Server> {
            let host = lab.host(name)?;
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            host.sysctl("net.ipv4.tcp_wmem", BUFFERS)?;
            let join = Join { congestion: control.into(), ..Join::by("eth0") };
            let address = host.join(&home.network, &join)?.ipv4()?;
            Ok(Server { host, address })
        };
        let (server, plain) = (server("server")?, server("plain")?);
        let at = laptop.join(&sites[0].network, &Join::default())?;
        let config = if begins == Begins::Restored { "windows = true\n" } else { "windows = false\n" };
        let daemons = [laptop.whimbrel_with(config)?, server.host.whimbrel_with(config)?];
        Ok(Self { sites, laptop, server, plain, at, _daemons: daemons, lab })
    }

    /// The laptop moves there; gives when it could use its new address.
    pub(super) fn go(&mut self, to: usize) -> Result<MonoTime> {
        self.at = self.laptop.roam(&self.at, &self.sites[to].network, &Join::default())?;
        Ok(self.at.usable_at)
    }
}

/// A host that downloads.
pub(super) fn client(lab: &mut Lab, name: &str) -> Result<Host> {
    let host = lab.host(name)?;
    host.sysctl("net.ipv4.tcp_rmem", BUFFERS)?;
    Ok(host)
}

/// A host that sends, and its address.
pub(super) struct Server {
    pub(super) host: Host,
    pub(super) address: IpAddr,
}

impl Server {
    /// Sends to that host as fast as it goes, from now on.
    pub(super) fn download(&self, client: &Host) -> Result<Download> {
        let listener = self.host.enter(|| TcpListener::bind((self.address, 0)))??;
        let to = listener.local_addr()?;
        let heard = Heard::begin(client.enter(|| TcpStream::connect_timeout(&to, SECOND * 10))??);
        let (near, _) = listener.accept()?;
        let sender = Sender::begin(near.try_clone()?)?;
        Ok(Download { heard, sender, near })
    }
}

/// One connection, at both ends.
pub(super) struct Download {
    pub(super) heard: Heard,
    sender: Sender,
    pub(super) near: TcpStream,
}

impl Download {
    pub(super) fn flow(&self) -> Result<FlowTuple> {
        let (local, remote) = (self.near.local_addr()?, self.near.peer_addr()?);
        Ok(FlowTuple { transport: Transport::Tcp, local, remote })
    }

    /// Nothing more of it is sent: who does not listen any more resets it.
    pub(super) fn end(self) -> Result<()> {
        drop(self.heard);
        self.sender.end().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_holds_is_what_is_under_way_and_what_waits() {
        assert_eq!(LTE.holds(), 165 + 250);
        assert_eq!(SATELLITE.holds(), 4953 + 2500);
    }

    #[test]
    fn a_stay_is_long_enough_to_know_the_network() {
        assert_eq!([LTE, SATELLITE].map(|net| net.stay(SECOND * 6)), [SECOND * 6, SECOND * 18]);
    }
}
