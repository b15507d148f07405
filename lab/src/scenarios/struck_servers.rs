//! Servers that change hosts as whole processes, when something fails in the middle: each is at one place afterwards,
//! and has lost nobody.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::processes::{Ended, Three, ask, give_with, needs_criu, refusal_with};
use super::server_processes::{Clients, Detached, FEW, SERVER};
use super::world::step;
use super::{Scenario, scenario};
use crate::{Cut, Error, Lab, Lame, Random, Result, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "kept-process-server-refused",
        "a server does not go since CRIU fails at either host, at any step: it stays, and no datagram and no connection is lost by that",
        refused,
    ),
    scenario(
        "moved-process-server-struck",
        "a server goes to and fro, and daemons die and networks are gone at moments of chance: it is at one place, and goes on",
        struck,
    ),
];

/// A host lacks its network for so long.
const WHILE: Duration = Duration::from_millis(700);
/// Until a host that has lost its memory is found out, and asked again and again (P-71).
const SETTLED: Duration = Duration::from_secs(60);
/// Blows of each kind.
const ROUNDS: usize = 2;

/// Where the server is met.
fn at(three: &Three) -> Result<SocketAddr> {
    Ok(SocketAddr::new(three.world.at_server.ipv4()?, three.world.server.next_port()))
}

fn refused(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let mut three = Three::lame(lab)?;
    let at = at(&three)?;
    let server = Detached::server(&three.world.server, at, SERVER)?;
    let mut clients = Clients::start(&three, at)?;
    clients.0.does(&format!("begin {} {}", at.ip(), at.port()))?;
    clients.go_on("the clients are served")?;
    let to = three.at_acceptor.to_string();
    for (what, donor, acceptor, why) in [
        ("the other host has no CRIU that works", Lame::Nothing, Lame::Useless, "does not take it"),
        ("the process cannot be written down", Lame::NeverDumps, Lame::Nothing, "CRIU"),
        ("it cannot be rebuilt", Lame::Nothing, Lame::NeverRestores, "could not rebuild it"),
    ] {
        step(what);
        three.donor.set_lame(donor)?;
        three.acceptor.set_lame(acceptor)?;
        let said = refusal_with(&three.donor, server.pid(), &[], &to)?;
        expect!(said.contains(why), "{said}");
        clients.go_on(what)?;
        expect!(server.everywhere() == [server.pid()], "it is at {:?}", server.everywhere());
    }
    clients.end(0)
}

/// What strikes.
#[derive(Clone, Copy, Debug)]
enum Blow {
    DonorDies,
    AcceptorDies,
    DonorCutOff,
    AcceptorCutOff,
}

impl Blow {
    const ALL: [Self; 4] = [Self::DonorDies, Self::AcceptorDies, Self::DonorCutOff, Self::AcceptorCutOff];
}

/// Which of the two hosts, the first or the other.
const NAMES: [&str; 2] = ["desk", "guest"];

struct Stage {
    three: Three,
    server: Detached,
    clients: Clients,
    /// Which host has the server, and which process it is there.
    owner: usize,
    pid: u32,
    /// Datagrams that were sent while a blow had not settled yet. What waits for the server then is in the memory of
    /// the daemon that dies, or on its way to a host without a network, and nobody sends datagrams again. All others
    /// are answered. Of TCP nothing is lost: the clients check that.
    may_be_lost: u64,
}

fn struck(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let seed = lab.seed();
    println!("    seed {seed:#x}");
    let mut random = Random::new(seed);
    let three = Three::new(lab, false, false)?;
    let at = at(&three)?;
    let server = Detached::server(&three.world.server, at, SERVER)?;
    let mut clients = Clients::start(&three, at)?;
    clients.0.does(&format!("begin {} {}", at.ip(), at.port()))?;
    clients.go_on("the clients are served")?;
    let pid = server.pid();
    let mut stage = Stage { three, server, clients, owner: 0, pid, may_be_lost: 0 };
    let begun = Instant::now();
    let there = give_with(stage.daemon(0), pid, &[], NAMES[1])?;
    let typical = begun.elapsed();
    (stage.owner, stage.pid) = (1, there.pid_there.unwrap_or_default());
    for number in 0..ROUNDS * Blow::ALL.len() {
        let blow = Blow::ALL[number % Blow::ALL.len()];
        let after = typical.mul_f64(1.1 * random.fraction());
        let from = stage.owner;
        let settled = stage
            .strike(blow, after)
            .map_err(|error| Error::Expectation(format!("{blow:?} after {after:?}: {error}")))?;
        let became = if stage.owner == from { "stayed" } else { "moved" };
        println!(
            "    {blow:?} {:.0} of {:.0} ms on: {became}, settled after {:.1} s",
            after.as_secs_f64() * 1e3,
            typical.as_secs_f64() * 1e3,
            settled.as_secs_f64()
        );
    }
    println!("    {} datagrams may be lost", stage.may_be_lost);
    let may_be_lost = stage.may_be_lost + FEW;
    stage.clients.end(may_be_lost)
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.server.everywhere().into_iter().map(Ended).for_each(drop);
    }
}

impl Stage {
    fn daemon(&mut self, host: usize) -> &mut Whimbrel {
        if host == 0 { &mut self.three.donor } else { &mut self.three.acceptor }
    }

    fn cut(&self, host: usize) -> Result<()> {
        let site = if host == 0 { &self.three.world.s } else { &self.three.network };
        site.link()?.cut(Cut::Silent)?;
        std::thread::sleep(WHILE);
        site.link()?.restore()
    }

    /// Has the server move, and strikes so long after it was asked to, which was drawn by lot. How long it took until
    /// it was at one place.
    fn strike(&mut self, blow: Blow, after: Duration) -> Result<Duration> {
        let (from, to, pid) = (self.owner, 1 - self.owner, self.pid);
        let sent_before = self.clients.fare()?.asked;
        let mut asked = ask(self.daemon(from), pid, NAMES[to])?;
        std::thread::sleep(after);
        let since = Instant::now();
        match blow {
            Blow::DonorDies => die(self.daemon(from))?,
            Blow::AcceptorDies => die(self.daemon(to))?,
            Blow::DonorCutOff => self.cut(from)?,
            Blow::AcceptorCutOff => self.cut(to)?,
        }
        // Until it is decided both may have it, and one of them at rest.
        let before = self.clients.fare()?;
        let one = wait_for(SETTLED, "it is at one place, and goes on", || {
            let places = self.server.everywhere();
            let fare = self.clients.fare()?;
            let goes_on = fare.opened >= before.opened + 10
                && fare.exchanged >= before.exchanged + 10
                && fare.answered >= before.answered + 10;
            Ok(places.first().copied().filter(|_| goes_on && places.len() == 1))
        })?;
        asked.kill()?;
        if one != pid {
            (self.owner, self.pid) = (to, one);
        }
        let settled = since.elapsed();
        self.may_be_lost += self.clients.fare()?.asked - sent_before;
        self.clients.go_on("all of the clients are served")?;
        Ok(settled)
    }
}

fn die(daemon: &mut Whimbrel) -> Result<()> {
    daemon.kill()?;
    daemon.restart()
}
