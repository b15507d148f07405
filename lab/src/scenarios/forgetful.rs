//! The servers are behind NATs and a firewall that forget what is not used, and the laptop is away for longer.

use std::net::UdpSocket;

use whimbrel_ipc::Away;

use super::absence::wait_away;
use super::world::{LONG, RATE, SOME, all_run, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, Campus, Error, FlowPair, Gateway, Host, Join, Lab, Leave, NatKind, PairOptions, Result, Site, SiteSpec,
    Whimbrel, expect, wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "nat-sleep",
    "the laptop sleeps until the servers' NATs and firewall have forgotten whatever is not used, and wakes where none \
     of them knows it: masked updates get in all the same",
    sleep,
)];

pub(super) const LONG_SCENARIOS: &[Scenario] = &[scenario(
    "nat-vanish",
    "the same where the laptop vanishes without a word for three minutes, with data under way",
    vanish,
)];

/// They forget UDP after 30 s, as those of `Gateway::OfKind` do, and TCP after days.
const FORGETS: &str = "30";
/// To here goes what is not used again.
const UNUSED: u16 = 9;

/// A server that has opened a connection to the laptop.
struct Fixed {
    site: Site,
    host: Host,
    daemon: Whimbrel,
    pair: FlowPair,
}

struct World {
    away: Site,
    laptop: Host,
    at: Attachment,
    client: Whimbrel,
    fixed: Vec<Fixed>,
}

impl World {
    fn new(lab: &mut Lab) -> Result<Self> {
        let mut campus = Campus::new(lab)?;
        let (home, away) = (campus.add(lab, site("a").v4_only())?, campus.add(lab, site("b").v4_only())?);
        let laptop = lab.host("laptop")?;
        let at = laptop.join(&home.network, &Join::default())?;
        let client = laptop.whimbrel()?;
        let mut fixed = Vec::new();
        let of = |kind| Gateway::OfKind { kind, rewrites: true };
        for (network, gateway) in [
            ("s", Gateway::Firewall),
            ("u", of(NatKind::Restricted)),
            ("v", of(NatKind::PortRestricted)),
            ("w", of(NatKind::Symmetric)),
        ] {
            let site = campus.add(lab, SiteSpec::named(network).behind(gateway).v4_only())?;
            for name in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
                site.router.sysctl(&format!("net.netfilter.{name}"), FORGETS)?;
            }
            let host = lab.host(&format!("server-{network}"))?;
            host.join(&site.network, &Join::by("eth0"))?;
            let daemon = host.whimbrel()?;
            let mut pair = FlowPair::tcp(&host, &laptop, at.ipv4()?, &PairOptions::rate(RATE / 10))?;
            pair.wait_progress(SOME / 10, LONG)?;
            daemon.wait_introduced(&pair, LONG)?;
            fixed.push(Fixed { site, host, daemon, pair });
        }
        Ok(Self { away, laptop, at, client, fixed })
    }

    /// Waits until what was sent once, now, is forgotten everywhere.
    fn outlast_mappings(&self) -> Result<()> {
        for Fixed { site, host, .. } in &self.fixed {
            let sent = host.enter(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"once", (self.away.outside, UNUSED)))?;
            sent.map_err(|e| Error::call("sendto", format!("{} from {}", self.away.outside, host.name()), e))?;
            wait_for(LONG, "a NAT remembers what was sent", || Ok(remembers(&site.router)?.then_some(())))?;
        }
        for Fixed { site, .. } in &self.fixed {
            wait_for(LONG * 4, "a NAT forgets what is not used", || Ok((!remembers(&site.router)?).then_some(())))?;
        }
        Ok(())
    }

    /// It is back, and everything goes on, by what was told as from where it was.
    fn goes_on(mut self, since: u64) -> Result<()> {
        for Fixed { pair, .. } in &mut self.fixed {
            pair.wait_progress(SOME / 10, LONG)?;
        }
        let events = self.client.events(since)?;
        let masked = events.iter().filter(|event| event.fields.get("masked").is_some_and(|masked| *masked == true));
        let count = masked.count();
        step(&format!("{count} of {} by masked updates", self.fixed.len()));
        expect!(count == self.fixed.len(), "{count} of {} moves were told by masked updates", self.fixed.len());
        for Fixed { pair, mut daemon, .. } in self.fixed {
            pair.finish(LONG)?;
            all_run(&mut [&mut daemon])?;
        }
        all_run(&mut [&mut self.client])
    }
}

/// Whether a router tracks something that goes to the unused port.
fn remembers(router: &Host) -> Result<bool> {
    const TRACKED: &str = "/proc/thread-self/net/nf_conntrack";
    let tracked = router.enter(|| std::fs::read_to_string(TRACKED))?;
    let tracked = tracked.map_err(|e| Error::call("read", format!("{TRACKED} on {}", router.name()), e))?;
    Ok(tracked.lines().any(|line| line.contains(&format!("dport={UNUSED} "))))
}

fn sleep(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab)?;
    let since = world.client.status()?.newest_event;
    world.client.cli(&["suspend"])?;
    for Fixed { daemon, .. } in &world.fixed {
        wait_away(daemon, Some(Away::Announced))?;
    }
    world.laptop.leave(&world.at, Leave::Orderly)?;
    world.outlast_mappings()?;
    world.at = world.laptop.join(&world.away.network, &Join::default())?;
    world.client.cli(&["resume"])?;
    world.goes_on(since)
}

fn vanish(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab)?;
    let since = world.client.status()?.newest_event;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    for Fixed { daemon, .. } in &world.fixed {
        wait_away(daemon, Some(Away::Silent))?;
    }
    // By then a server looks for it at longer pauses than any NAT here remembers.
    for _ in 0..6 {
        world.outlast_mappings()?;
    }
    world.at = world.laptop.join(&world.away.network, &Join::default())?;
    world.goes_on(since)
}
