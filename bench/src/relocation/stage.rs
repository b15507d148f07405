//! Two hosts that give each other sockets, and the far end of these, on links without delay.
//!
//! ```text
//!  far ──(veth)── router ──┐
//!  desk ─(veth)── router ──┼── core        desk: where connections are made
//!  guest (veth)── router ──┘
//! ```

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::{Client, ConnectionState, Reply, Request};
use whimbrel_lab::{Campus, Host, Join, Lab, MonoTime, SiteSpec, Whimbrel, wait_for};

use crate::Result;
use crate::roam::Options;

pub(super) const LONG: Duration = Duration::from_secs(60);

/// What the far end runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Far {
    /// Nothing: the host that the connection was made to passes packets on.
    Plain,
    /// Whimbrel: it is led to the other host itself.
    Whimbrel,
}

impl Far {
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Whimbrel];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "far_plain",
            Self::Whimbrel => "far_whimbrel",
        }
    }
}

pub(super) struct Stage {
    pub(super) far: Host,
    pub(super) far_daemon: Option<Whimbrel>,
    /// The two that give each other sockets.
    pub(super) daemons: [Whimbrel; 2],
    /// Their addresses.
    pub(super) addresses: [IpAddr; 2],
    // Last: the others live in it.
    pub(super) lab: Lab,
}

/// A host's name in the community, by its place in [`Stage::daemons`].
pub(super) const NAMES: [&str; 2] = ["desk", "guest"];

impl Stage {
    /// `log`: what the daemons log; otherwise as it was asked for.
    pub(super) fn build(options: &Options, far: Far, log: Option<&str>) -> Result<Self> {
        Self::build_on(options, far, log, SiteSpec::fast)
    }

    /// As [`Self::build`], with other links: `links` changes the networks that they are in.
    pub(super) fn build_on(
        options: &Options,
        far: Far,
        log: Option<&str>,
        links: impl Fn(SiteSpec) -> SiteSpec,
    ) -> Result<Self> {
        let mut lab_options = options.setup.lab_options();
        lab_options.log_level = log.map(str::to_owned).or(lab_options.log_level);
        let mut lab = Lab::new(lab_options)?;
        let mut campus = Campus::new(&mut lab)?;
        let mut host = |name: &str, site: &str| -> Result<(Host, IpAddr)> {
            let site = campus.add(&mut lab, links(SiteSpec::named(site)))?;
            let host = lab.host(name)?;
            let address = host.join(&site.network, &Join::by("eth0"))?.ipv4()?;
            Ok((host, address))
        };
        let (far_host, _) = host("far", "a")?;
        let (desk, at_desk) = host(NAMES[0], "s")?;
        let (guest, at_guest) = host(NAMES[1], "t")?;
        let far_daemon = if far == Far::Whimbrel { Some(far_host.whimbrel()?) } else { None };
        let daemons = [desk.whimbrel()?, guest.whimbrel()?];
        daemons[0].befriend(&daemons[1], at_desk)?;
        Ok(Self { far: far_host, far_daemon, daemons, addresses: [at_desk, at_guest], lab })
    }

    /// Waits until so many connections are introduced, where the far end runs Whimbrel.
    pub(super) fn wait_introduced(&self, count: usize) -> Result<()> {
        let Some(daemon) = &self.far_daemon else { return Ok(()) };
        wait_for(LONG, "the connections are introduced", || {
            std::thread::sleep(Duration::from_millis(20));
            let all = daemon.connections()?;
            let native = all.iter().filter(|found| found.state == ConnectionState::Native).count();
            Ok((native >= count).then_some(()))
        })?;
        Ok(())
    }

    /// Moves the connections that `from` names from one of the two hosts to the other. When it was asked for, when all
    /// was decided, and how many moved; fails where one stayed.
    pub(super) fn give(&self, donor: usize, from: &str, receiver: &str) -> Result<(MonoTime, MonoTime, usize)> {
        give(&self.daemons[donor], from, NAMES[1 - donor], receiver)
    }
}

/// The same from any host to any other. `to`: its name in the community.
pub(super) fn give(donor: &Whimbrel, from: &str, to: &str, receiver: &str) -> Result<(MonoTime, MonoTime, usize)> {
    let mut client = Client::connect(&donor.run_dir())?;
    let request =
        Request::Move { connections: vec![from.to_owned()], to: to.to_owned(), receiver: Some(receiver.to_owned()) };
    let asked = MonoTime::now();
    client.start(&request)?;
    let (mut moved, mut kept) = (0, Vec::new());
    loop {
        match client.next_reply(Some(LONG))?.0 {
            Reply::Moved(_) => moved += 1,
            Reply::Kept(one) => kept.push(one.reason),
            Reply::End { .. } => break,
            other => return Err(format!("a move was answered by {other:?}").into()),
        }
    }
    let decided = MonoTime::now();
    if let Some(why) = kept.first() {
        return Err(
            format!("{} of {} connections stayed, the first since {why}", kept.len(), kept.len() + moved).into()
        );
    }
    Ok((asked, decided, moved))
}
