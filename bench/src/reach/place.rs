//! A laptop that goes to and fro between two networks, and a server, in one family.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_lab::{Attachment, Campus, Host, Join, Lab, Leave, MonoTime, Shape, Site, SiteSpec};

use crate::Result;
use crate::roam::Setup;
use crate::roam::moment::{Change, Changes};

pub(super) struct Place {
    pub(super) sites: [Site; 2],
    /// Which of the two the laptop is in.
    there: usize,
    pub(super) laptop: Host,
    pub(super) server: Host,
    /// The server's.
    pub(super) address: IpAddr,
    at: Attachment,
    changes: Changes,
    // Last: the others live in it.
    lab: Lab,
}

impl Place {
    /// `round_trip`: of the uplinks of both networks, in milliseconds.
    pub(super) fn build(setup: &Setup, ipv4: bool, round_trip: u64) -> Result<Self> {
        let mut lab = Lab::new(setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let delay = Shape { delay: Duration::from_micros(round_trip * 500), ..Shape::default() };
        let uplink = Shape { rate: Some(1_000_000_000), ..delay };
        let family = |spec: SiteSpec| if ipv4 { spec.v4_only() } else { spec.v6_only() };
        let mut site = |name: &str| campus.add(&mut lab, family(SiteSpec::named(name).uplink(uplink.clone())));
        let sites = [site("a")?, site("b")?];
        let home = campus.add(&mut lab, family(SiteSpec::named("s").fast()))?;
        let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
        let at_server = server.join(&home.network, &Join::by("eth0"))?;
        let address = if ipv4 { at_server.ipv4()? } else { at_server.ipv6()? };
        let at = laptop.join(&sites[0].network, &Join::default())?;
        let changes = Changes::watch(&laptop, ipv4)?;
        Ok(Self { sites, there: 0, laptop, server, address, at, changes, lab })
    }

    /// The network that the laptop goes to next.
    pub(super) fn next(&self) -> &Site {
        &self.sites[1 - self.there]
    }

    /// Goes to the other network; gives when its default route was there.
    pub(super) fn travel(&mut self, outage: Duration) -> Result<MonoTime> {
        self.there = 1 - self.there;
        let (to, join) = (&self.sites[self.there], Join::default());
        self.at = if outage.is_zero() {
            self.laptop.roam(&self.at, &to.network, &join)?
        } else {
            self.laptop.leave(&self.at, Leave::Orderly)?;
            std::thread::sleep(outage);
            self.laptop.join(&to.network, &join)?
        };
        self.changes.first(self.at.started_at, Change::Route { default: true }, Duration::from_secs(1))
    }

    /// Keeps what its hosts have written, if that is asked for.
    pub(super) fn keep(&self, setup: &Setup, name: &str) -> Result<()> {
        setup.keep(name, &self.lab)
    }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
