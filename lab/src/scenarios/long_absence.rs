//! Days of absence: in the terms of a TCP that waits a fraction of a second, and for real, for as long as somebody lets
//! it run.

use std::time::Duration;

use whimbrel_ipc::Away;

use super::absence::{Unprotected, wait_away};
use super::world::{LONG, RATE, SOME, World, all_run, goes_on_since, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, FlowPair, Host, Join, Lab, Leave, MonoTime, PacketCount, PairOptions, Result, Side, Whimbrel, expect,
};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "absence-72h",
    "two laptops, one suspended and one that vanished, are away for as many times as long as TCP waits as 72 hours are",
    scaled,
)];

/// What TCP waits for by Linux's default, `tcp_retries2` = 15 (ip-sysctl.rst: 924.6 s).
const USUAL: Duration = Duration::from_millis(924_600);
/// What it waits for with `tcp_retries2` = 1: the smallest timer and its double.
const SHORT: Duration = Duration::from_millis(600);
const WEEKEND: Duration = Duration::from_secs(72 * 3600);
/// Between two looks at what should not change.
const LOOK: Duration = Duration::from_secs(10);
/// Share of a processor that a daemon may take while everybody is away, and what each look at it may cost.
const IDLE_SHARE: f64 = 0.002;
const IDLE_LOOK: f64 = 0.05;
/// Datagrams in an hour to a host that vanished, which is looked for every five minutes at each of two addresses
/// (P-45), and what the first minutes take more.
const LOOKED_FOR: u64 = 60;

fn scaled(lab: &mut Lab) -> Result<()> {
    absent(lab, SHORT.mul_f64(WEEKEND.as_secs_f64() / USUAL.as_secs_f64()), true)
}

/// Has hosts be away for so long, with the kernel's own timers.
pub fn soak(lab: &mut Lab, lasting: Duration) -> Result<()> {
    absent(lab, lasting, false)
}

/// A laptop with a stream both ways, and with a connection on which nothing is said but keepalives.
struct Sleeper {
    host: Host,
    at: Attachment,
    daemon: Whimbrel,
    stream: FlowPair,
    quiet: FlowPair,
}

impl Sleeper {
    fn new(host: &Host, at: &Attachment, world: &World) -> Result<Self> {
        let daemon = host.whimbrel()?;
        let to = world.at_server.ipv4()?;
        let mut stream = FlowPair::tcp(host, &world.server, to, &PairOptions::rate(RATE))?;
        stream.wait_progress(SOME / 10, LONG)?;
        let quiet = PairOptions { keepalive: true, ..PairOptions::rate(0) };
        let quiet = FlowPair::tcp(host, &world.server, to, &quiet)?;
        for pair in [&stream, &quiet] {
            daemon.wait_introduced(pair, LONG)?;
        }
        Ok(Self { host: host.clone(), at: at.clone(), daemon, stream, quiet })
    }

    /// It is in a network again: both connections go on.
    fn goes_on(&mut self, at: Attachment) -> Result<()> {
        self.at = at;
        goes_on_since(&mut self.stream, &self.at)?;
        for side in [Side::Client, Side::Server] {
            self.quiet.set_rate(side, Some(RATE))?;
        }
        self.quiet.wait_progress(SOME / 10, LONG)
    }
}

fn absent(lab: &mut Lab, lasting: Duration, short: bool) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let second = lab.host("second")?;
    let at_second = second.join(&world.a.network, &Join::default())?;
    let hosts = [world.laptop.clone(), second.clone(), world.server.clone()];
    if short {
        for host in &hosts {
            // As many retransmissions as in hours. Linux has it from 6.15 on; before, they are rarer.
            let _ = host.sysctl("net.ipv4.tcp_rto_max_ms", "1000");
        }
    }
    let mut server = world.server.whimbrel()?;
    let mut suspended = Sleeper::new(&world.laptop, &world.at, &world)?;
    let mut vanished = Sleeper::new(&second, &at_second, &world)?;
    let unprotected = Unprotected::new(lab, &world)?;

    suspended.daemon.cli(&["suspend"])?;
    wait_away_of(&server, &suspended, Some(Away::Announced))?;
    let begun = MonoTime::now();
    for left in [&suspended, &vanished] {
        left.host.leave(&left.at, Leave::Orderly)?;
    }
    unprotected.vanish()?;
    wait_away_of(&server, &vanished, Some(Away::Silent))?;
    step(&format!("who vanished was missed after {:.1} s", MonoTime::now().since(begun).as_secs_f64()));
    if short {
        for host in &hosts {
            host.sysctl("net.ipv4.tcp_retries2", "1")?;
        }
    }
    let to_suspended = sent_to(&world, &suspended)?;
    let to_vanished = sent_to(&world, &vanished)?;
    let (mut looks, mut processor) = (0, server.process().cpu_seconds()?);
    let before = processor;
    step(&format!("both are away, for {:.1} hours", lasting.as_secs_f64() / 3600.0));
    while MonoTime::now().since(begun) < lasting {
        let rest = lasting.saturating_sub(MonoTime::now().since(begun));
        // It is time itself that is tried here.
        std::thread::sleep(rest.min(if short { LOOK } else { 6 * LOOK }));
        looks += 1;
        for away in [&mut suspended, &mut vanished] {
            for pair in [&mut away.stream, &mut away.quiet] {
                pair.check()?;
            }
        }
        processor = server.process().cpu_seconds()?;
        if looks % 10 == 0 {
            let away = MonoTime::now().since(begun).as_secs_f64() / 60.0;
            let spent = processor - before;
            step(&format!("{away:.0} minutes: all connections are there; the server's daemon has used {spent:.2} s"));
        }
    }
    let hours = lasting.as_secs_f64() / 3600.0;
    let spent = processor - before;
    let allowed = lasting.as_secs_f64() * IDLE_SHARE + f64::from(looks) * IDLE_LOOK;
    expect!(spent <= allowed, "the server's daemon has used {spent:.1} s of {:.0}", lasting.as_secs_f64());
    expect!(to_suspended.get() == 0, "{} packets were sent to who said that it goes", to_suspended.get());
    let most = LOOKED_FOR + (hours * LOOKED_FOR as f64) as u64;
    expect!(to_vanished.get() <= most, "{} packets were sent to who vanished", to_vanished.get());
    step(&format!(
        "packets to who was suspended: 0, to who vanished: {}; the server's daemon used {spent:.2} s",
        to_vanished.get()
    ));
    if short || lasting > USUAL + 2 * LONG {
        unprotected.wait_dead(&world)?;
    }
    if short {
        for host in &hosts {
            host.sysctl("net.ipv4.tcp_retries2", "3")?;
        }
    }

    let back = MonoTime::now();
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    suspended.daemon.cli(&["resume"])?;
    let at = world.at.clone();
    suspended.goes_on(at)?;
    let at = second.join(&world.a.network, &Join::default())?;
    vanished.goes_on(at)?;
    step(&format!("all go on {:.0} ms after the first was back", ms(Some(MonoTime::now() - back))));
    let mut daemons = Vec::new();
    for Sleeper { daemon, stream, quiet, .. } in [suspended, vanished] {
        world.finish(stream)?;
        world.finish(quiet)?;
        daemons.push(daemon);
    }
    wait_away(&server, None)?;
    all_run(&mut daemons.iter_mut().chain([&mut server]).collect::<Vec<_>>())
}

fn wait_away_of(server: &Whimbrel, of: &Sleeper, how: Option<Away>) -> Result<()> {
    let key = of.daemon.status()?.public_key;
    crate::wait_until(3 * LONG, &format!("{} is {how:?}", of.host.name()), || {
        server.peers().is_ok_and(|peers| peers.iter().any(|peer| peer.key == key && peer.away == how))
    })
}

/// Packets that leave the server for where a host was.
fn sent_to(world: &World, of: &Sleeper) -> Result<PacketCount> {
    let address = of.at.ipv4()?;
    Ok(world
        .s
        .link()?
        .count(move |direction, packet| direction == crate::Direction::Up && packet.destination == address))
}
