//! The hosts that a hand-off is measured on: a laptop, the network that it is in, the one that it moves to, a server.
//!
//! ```text
//!  laptop ~~(net a)~~ ra ===half a round trip=== core ---(net s)--- server
//!         ~~(net b)~~ rb ===half a round trip=== core        rb may be a NAT
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_lab::{
    Attachment, Campus, Gateway, Host, Join, Lab, Leave, MonoTime, Options, Shape, Site, SiteSpec, Whimbrel, Wire,
};

use super::Setup;
use super::moment::{Change, Changes};
use super::turns::Turn;
use crate::Result;

/// Rate of the emulated uplinks, Mbit/s.
const UPLINK: u64 = 1000;
/// For how long both networks are there in [`Move::Overlap`].
const OVERLAP: Duration = Duration::from_secs(1);

/// The network that is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// It has public addresses.
    Public,
    /// It is behind a NAT.
    Nat,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Nat => "nat",
        }
    }
}

/// How the laptop moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// The old address vanishes as the new one appears.
    AtOnce,
    /// There is no network for so many seconds.
    Outage(u64),
    /// Both are there for a second, the new one preferred.
    Overlap,
}

impl Move {
    pub(crate) fn name(self) -> String {
        match self {
            Self::AtOnce => "at_once".into(),
            Self::Outage(seconds) => format!("outage_{seconds}s"),
            Self::Overlap => "overlap".into(),
        }
    }
}

/// The times of a move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Before anything was changed.
    pub(crate) began: MonoTime,
    /// When the new address was not tentative and its route was there.
    pub(crate) usable: MonoTime,
    /// When the old address had gone.
    pub(crate) left: MonoTime,
}

/// What links between hosts and routers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Emulated, without delay.
    Emulated,
    /// veth pairs, so that a packet crosses only one emulated link.
    Veth,
}

/// Hosts and networks. Without daemons.
pub(crate) struct Stage {
    pub(crate) laptop: Host,
    pub(crate) server: Host,
    /// The server's address.
    pub(crate) address: IpAddr,
    /// Where the laptop moves to.
    to: Site,
    /// Where it is.
    at: Attachment,
    changes: Arc<Changes>,
    // Last: the others live in it.
    pub(crate) lab: Lab,
}

impl Stage {
    /// `name`: of this run among those whose files are kept.
    pub(crate) fn build(
        setup: &Setup,
        name: &str,
        round_trip: Duration,
        target: Target,
        access: Access,
    ) -> Result<Self> {
        let mut lab = Lab::new(Options { captures: setup.directory(name), ..setup.lab_options() })?;
        let mut campus = Campus::new(&mut lab)?;
        let uplink = Shape { rate: Some(UPLINK * 1_000_000), ..Shape::delay(round_trip / 2) };
        let access = |spec: SiteSpec| match access {
            Access::Emulated => spec,
            Access::Veth => SiteSpec { access: Wire::Veth, ..spec },
        };
        let from = campus.add(&mut lab, access(SiteSpec::named("a").uplink(uplink.clone())))?;
        let spec = SiteSpec::named("b").uplink(uplink);
        let to = campus.add(
            &mut lab,
            access(match target {
                Target::Public => spec,
                Target::Nat => spec.behind(Gateway::Nat { random_ports: false }),
            }),
        )?;
        let at_server = campus.add(&mut lab, SiteSpec::named("s").fast())?;
        let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
        for host in [&laptop, &server] {
            // What one connection learned about the path must not be the next one's start.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        }
        let address = server.join(&at_server.network, &Join::by("eth0"))?.ipv4()?;
        let at = laptop.join(&from.network, &Join::default())?;
        let changes = Arc::new(Changes::watch(&laptop, true)?);
        Ok(Self { laptop, server, address, to, at, changes, lab })
    }

    /// Starts a daemon on both hosts.
    pub(crate) fn daemons(&self, config: &str) -> Result<[Whimbrel; 2]> {
        Ok([self.laptop.whimbrel_with(config)?, self.server.whimbrel_with(config)?])
    }

    /// Moves the laptop. The machine is left to others during an outage.
    pub(crate) fn go(&mut self, how: Move, turn: &mut Turn<'_>) -> Result<Moved> {
        let began = MonoTime::now();
        let join = Join::default();
        let (at, left) = match how {
            Move::AtOnce => (self.laptop.roam(&self.at, &self.to.network, &join)?, None),
            Move::Outage(seconds) => {
                let due = Instant::now() + Duration::from_secs(seconds);
                self.laptop.leave(&self.at, Leave::Orderly)?;
                if seconds >= LONG_OUTAGE {
                    turn.pause_until(due);
                } else {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                (self.laptop.join(&self.to.network, &join)?, None)
            }
            Move::Overlap => {
                let at = self.laptop.join(&self.to.network, &Join::by("wwan0").metric(50))?;
                std::thread::sleep(OVERLAP);
                self.laptop.leave(&self.at, Leave::Orderly)?;
                (at, Some(MonoTime::now()))
            }
        };
        let from = at.started_at;
        self.at = at;
        let route = Change::Route { default: true };
        let usable = self.changes.first(from, route, Duration::from_secs(1))?;
        Ok(Moved { began, usable, left: left.unwrap_or(usable) })
    }

    /// For programs that are told of the new route.
    pub(crate) fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    /// The link that stands for the distance, in the network that is moved to.
    pub(crate) fn uplink(&self) -> Result<&whimbrel_lab::Link> {
        Ok(self.to.link()?)
    }
}

/// From so many seconds on others use the machine during an outage.
const LONG_OUTAGE: u64 = 10;
