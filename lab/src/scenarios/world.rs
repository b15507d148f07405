//! What most scenarios share: a laptop, a server, two networks for the laptop, daemons on both, and what must be so
//! after every move.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_ipc::{Carrier, ConnectionState};

use crate::{
    Attachment, Campus, Direction, FlowPair, Host, Join, Lab, MonoTime, PairOptions, Result, Shape, Side, Site,
    SiteSpec, Whimbrel, expect, patience, tcp_flags, wait_for,
};

/// Time for anything that takes a few round trips, on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(20);
/// Time until a path is rewritten on which segments pass: a busy machine may be too slow for the first three probes,
/// and the next is sent after half a minute (P-20).
pub(super) const REWRITTEN_WITHIN: Duration = Duration::from_secs(50);
/// Time in which a stalled connection has to go on after a move: a second is the first RTO that a missed kick would
/// cost.
pub(super) const PROMPT: Duration = Duration::from_secs(1);
/// Rate of streams in each direction, bits a second.
pub(super) const RATE: u64 = 4_000_000;
/// Bytes that must arrive in both directions before and after a move.
pub(super) const SOME: u64 = 200_000;
/// More than any retransmission timeout of a path of the lab's.
const RETRANSMIT_SOON: Duration = Duration::from_secs(3);

/// A network of the laptop: 20 ms beyond the gateway, 100 Mbit/s.
pub(super) fn site(name: &str) -> SiteSpec {
    SiteSpec::named(name).uplink(Shape::delay_rate(20, 100))
}

pub(super) struct World {
    pub(super) campus: Campus,
    pub(super) a: Site,
    pub(super) b: Site,
    pub(super) s: Site,
    pub(super) laptop: Host,
    pub(super) server: Host,
    /// Where the laptop is.
    pub(super) at: Attachment,
    /// Where the server is.
    pub(super) at_server: Attachment,
    /// Resets that passed the server's or the laptop's uplink, as they are shown to people.
    resets: Arc<Mutex<Vec<Reset>>>,
    /// Names that routers have given to connections of hosts that have left them, and since when. Linux resets what it
    /// takes for invalid there: an acknowledgement of what went by another way already, as the tunnel delivers it
    /// before the daemon has taken the update that came with it. Who has moved does not hear that (`ingress_native` in
    /// bpf/lib/ingress.h).
    left_behind: BTreeMap<SocketAddr, MonoTime>,
}

struct Reset {
    seen: MonoTime,
    /// Who sent it.
    from: Option<SocketAddr>,
    /// How it is shown to people.
    shown: String,
}

impl World {
    /// The laptop in `a`, the server in `s`.
    pub(super) fn new(lab: &mut Lab, a: SiteSpec, b: SiteSpec) -> Result<Self> {
        let mut campus = Campus::new(lab)?;
        let a = campus.add(lab, a)?;
        let b = campus.add(lab, b)?;
        let s = campus.add(lab, SiteSpec::named("s"))?;
        let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
        let at_server = server.join(&s.network, &Join::by("eth0"))?;
        let at = laptop.join(&a.network, &Join::default())?;
        let mut world = Self {
            campus,
            a,
            b,
            s,
            laptop,
            server,
            at,
            at_server,
            resets: Arc::default(),
            left_behind: BTreeMap::new(),
        };
        for site in [world.a.clone(), world.b.clone(), world.s.clone()] {
            world.watch_resets(&site)?;
        }
        Ok(world)
    }

    /// Adds another network.
    pub(super) fn add(&mut self, lab: &mut Lab, spec: SiteSpec) -> Result<Site> {
        let site = self.campus.add(lab, spec)?;
        self.watch_resets(&site)?;
        Ok(site)
    }

    fn watch_resets(&mut self, site: &Site) -> Result<()> {
        let (seen, at) = (Arc::clone(&self.resets), site.network.name().to_owned());
        site.link()?.observe(move |direction, frame| {
            let Some(packet) = frame.ip() else { return };
            let Some(tcp) = packet.tcp().filter(|tcp| tcp.has(tcp_flags::RST)) else { return };
            let ends = packet.endpoints();
            let way = ends.map_or_else(String::new, |(from, to)| format!("{from} -> {to}"));
            let (sequence, acknowledgement) = (tcp.sequence, tcp.acknowledgement);
            // As in the daemons' logs, which tell what went before.
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() % 60_000_000;
            let second = format!("{:02}.{:06}", time / 1_000_000, time % 1_000_000);
            let shown = format!("{way} {direction:?} at {at} in second {second}, {sequence} {acknowledgement}");
            let reset = Reset { seen: MonoTime::now(), from: ends.map(|(from, _)| from), shown };
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(reset);
        });
        Ok(())
    }

    /// Starts both daemons: the laptop's and the server's.
    pub(super) fn daemons(&self) -> Result<(Whimbrel, Whimbrel)> {
        Ok((self.laptop.whimbrel()?, self.server.whimbrel()?))
    }

    /// A stream from laptop to server over IPv4 that runs.
    pub(super) fn stream(&self) -> Result<FlowPair> {
        self.stream_to(self.at_server.ipv4()?)
    }

    /// The same, as soon as it is open.
    pub(super) fn stream_unproven(&self) -> Result<FlowPair> {
        FlowPair::tcp(&self.laptop, &self.server, self.at_server.ipv4()?, &PairOptions::rate(RATE))
    }

    pub(super) fn stream_to(&self, address: IpAddr) -> Result<FlowPair> {
        let mut pair = FlowPair::tcp(&self.laptop, &self.server, address, &PairOptions::rate(RATE))?;
        pair.wait_progress(SOME / 10, LONG)?;
        Ok(pair)
    }

    /// The laptop moves to another network with the same interface; its old address vanishes.
    pub(super) fn roam(&mut self, to: &Site) -> Result<()> {
        self.at = self.laptop.roam(&self.at, &to.network, &Join::default())?;
        Ok(())
    }

    /// The server moves.
    pub(super) fn roam_server(&mut self, to: &Site) -> Result<()> {
        self.at_server = self.server.roam(&self.at_server, &to.network, &Join::by("eth0"))?;
        Ok(())
    }

    /// The stream goes on after the last move of the laptop; says how long each direction took.
    pub(super) fn goes_on(&self, pair: &mut FlowPair) -> Result<()> {
        goes_on_since(pair, &self.at)
    }

    /// Ends a stream: every byte has arrived, and nobody has reset anything.
    pub(super) fn finish(&self, pair: FlowPair) -> Result<()> {
        pair.finish(LONG)?;
        self.no_resets()
    }

    /// Resets until now do not count: programs may give up what they opened on speculation.
    pub(super) fn forget_resets(&self) {
        self.seen_resets().clear();
    }

    /// The host of a connection leaves now the router that has given it another name, if any has.
    pub(super) fn leaves_router(&mut self, pair: &FlowPair) {
        if pair.seen_by_server() != pair.local() {
            self.left_behind.insert(pair.seen_by_server(), MonoTime::now());
        }
    }

    /// Nobody has sent a reset so far.
    pub(super) fn no_resets(&self) -> Result<()> {
        let resets = self.seen_resets();
        let of_router = |reset: &Reset| {
            reset.from.and_then(|from| self.left_behind.get(&from)).is_some_and(|since| reset.seen > *since)
        };
        let sent: Vec<&str> = resets.iter().filter(|reset| !of_router(reset)).map(|reset| &*reset.shown).collect();
        expect!(sent.is_empty(), "resets were sent: {}", sent.join("; "));
        Ok(())
    }

    fn seen_resets(&self) -> MutexGuard<'_, Vec<Reset>> {
        self.resets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream goes on promptly after a host has joined at `at`, in both directions.
pub(super) fn goes_on_since(pair: &mut FlowPair, at: &Attachment) -> Result<()> {
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, at.usable_at)?;
        println!("    {side:?} received nothing for {:.1} ms once the address was there", ms(took));
        expect!(took.is_some_and(|t| t < PROMPT * patience()), "{side:?} received nothing for {took:?}");
        // The time away is no round trip: whatever is lost next would wait for a multiple of it.
        let timeout = pair.status(side)?.tcp.map(|info| Duration::from_micros(info.rto_us.into()));
        expect!(timeout.is_none_or(|t| t < RETRANSMIT_SOON), "{side:?} sends again after {timeout:?} only");
    }
    Ok(())
}

/// Waits until an end's TCP waits for `wanted` at least before it sends again. When its timer runs out, at the
/// earliest: the bounds of what is to come before that are parts of it, so they hold on machines of any speed.
pub(super) fn backed_off(pair: &mut FlowPair, sender: Side, wanted: Duration) -> Result<MonoTime> {
    let mut looked = MonoTime::now();
    wait_for(LONG * 2, &format!("the {sender:?}'s sender backs off"), || {
        let before = std::mem::replace(&mut looked, MonoTime::now());
        let timer = pair.status(sender)?.tcp.map_or(0, |tcp| tcp.rto_us);
        let timer = Duration::from_micros(u64::from(timer));
        // It was set after the look before this one.
        Ok((timer >= wanted).then_some(before + timer))
    })
}

/// Says what comes next, so that a failure can be placed.
pub(super) fn step(text: &str) {
    println!("    {text}");
}

pub(super) fn ms(d: Option<Duration>) -> f64 {
    d.map_or(f64::NAN, |d| d.as_secs_f64() * 1e3)
}

/// The pair's connection is carried so, as the daemon at this end tells. It is the end that moved who chooses: the
/// other one answers as it is spoken to.
pub(super) fn carried_by(daemon: &Whimbrel, end: Side, pair: &FlowPair, carrier: Carrier) -> Result<()> {
    let what = format!("moved and carried by {carrier}");
    wait_state(daemon, end, pair, &what, |c| c.state == ConnectionState::Moved && c.carrier == Some(carrier))
}

/// The pair's connection is where it was made: nothing carries it.
pub(super) fn is_native(daemon: &Whimbrel, end: Side, pair: &FlowPair) -> Result<()> {
    wait_state(daemon, end, pair, "native", |c| c.state == ConnectionState::Native)
}

/// The same where the peer's daemon does not answer: that is shown once it has been asked.
pub(super) fn is_not_carried(daemon: &Whimbrel, end: Side, pair: &FlowPair) -> Result<()> {
    wait_state(daemon, end, pair, "carried by nothing", |c| {
        matches!(c.state, ConnectionState::Native | ConnectionState::NotConfirmed) && c.carrier.is_none()
    })
}

/// The names of the pair's connection as an end has them.
pub(super) fn names(end: Side, pair: &FlowPair) -> (SocketAddr, SocketAddr) {
    match end {
        Side::Client => (pair.local(), pair.peer()),
        Side::Server => (pair.peer(), pair.seen_by_server()),
    }
}

fn wait_state(
    daemon: &Whimbrel,
    end: Side,
    pair: &FlowPair,
    what: &str,
    good: impl Fn(&whimbrel_ipc::Connection) -> bool,
) -> Result<()> {
    let (local, remote) = names(end, pair);
    daemon.wait_connection(local, remote, REWRITTEN_WITHIN, what, good).map(drop)
}

/// Only bare TCP, and in both directions, goes over the site's uplink while the pair makes progress.
pub(super) fn is_bare(site: &Site, pair: &mut FlowPair) -> Result<()> {
    let bare =
        Direction::BOTH.map(|direction| site.link().map(|l| l.count(move |d, p| d == direction && p.tcp().is_some())));
    let tunnelled =
        site.link()?.count(|_, p| p.udp().is_some_and(|u| u.first().is_some_and(|kind| *kind & 0xf0 == 0x20)));
    pair.wait_progress(SOME, LONG)?;
    for count in bare {
        expect!(count?.get() > 0, "no bare TCP in one direction on {}", site.network.name());
    }
    expect!(tunnelled.get() == 0, "{} packets of the tunnel on {}", tunnelled.get(), site.network.name());
    Ok(())
}

/// Gives a daemon that was started with a configuration another one, and waits until it uses that.
pub(super) fn reconfigure(daemon: &mut Whimbrel, config: &str) -> Result<()> {
    let since = daemon.status()?.newest_event;
    daemon.reconfigure(config)?;
    daemon.wait_event("reloaded", since, LONG).map(drop)
}

/// None of the daemons has crashed.
pub(super) fn all_run(daemons: &mut [&mut Whimbrel]) -> Result<()> {
    for daemon in daemons {
        let name = daemon.host().name().to_owned();
        expect!(daemon.process().is_running(), "the daemon on {name} has ended: {}", daemon.process().stderr());
    }
    Ok(())
}
