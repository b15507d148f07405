//! Real programs from Debian, each with one session that is carried through moves of the client, of the server, and a
//! sleep.
//!
//! A program is a row of a table: how its server and its client are started, by what is seen that its session lives,
//! and how its outcome is checked. One body, [`Program::run`], does the same with each. `./setup programs` installs
//! what they need.

mod databases;
mod datagrams;
mod files;
mod mail;
mod media;
mod remote;
mod session;
mod web;

use std::time::Duration;

use whimbrel_ipc::Away;

use self::session::{Session, Sign, versions};
use super::Scenario;
use super::absence::{Unprotected, wait_away};
use super::world::{LONG, World, all_run, site, step};
use crate::{Cut, Direction, Gateway, Join, Lab, Leave, Result, Shape, Site, SiteSpec, Whimbrel, wait_for, wait_until};

/// The scenarios of all families, the most used programs first.
pub(super) fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [
        databases::SCENARIOS,
        files::SCENARIOS,
        web::SCENARIOS,
        mail::SCENARIOS,
        remote::SCENARIOS,
        media::SCENARIOS,
        datagrams::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// Mbit/s of the networks while hosts move: what is transferred is not done before.
const SLOW: u64 = 8;
/// Mbit/s after the last move.
const FAST: u64 = 400;
/// Time for the rest of a transfer.
const REST: Duration = Duration::from_secs(90);

/// Datagrams after which it is the session that comes by an interface, and not a daemon that looks for others.
const DATAGRAMS: u64 = 100;

/// What happens to a session.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// The laptop moves to another network; its old address vanishes.
    Client,
    /// The same of the server.
    Server,
    /// The laptop moves to a network behind a NAT and a firewall.
    Nat,
    /// The laptop joins another network with a second interface, and leaves the first when datagrams of the session
    /// come by the other.
    Overlap,
    /// The laptop is suspended, and its network passes nothing until the server's TCP would have given up; then the
    /// same of the server's.
    Outage,
    /// The laptop is suspended, leaves, is away for longer than the server's TCP would wait, and wakes behind a NAT and
    /// a firewall.
    Sleep,
}

impl Move {
    const ALL: &'static [Self] = &[Self::Client, Self::Server, Self::Sleep];
    /// Without the sleep, which is longer than what is sent over UDP is repeated.
    const AWAKE: &'static [Self] = &[Self::Client, Self::Server, Self::Nat];
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The client ends when all is there.
    Itself,
    /// The client is told so by this line.
    Line(&'static str),
    /// The client would go on for ever; it is killed.
    Killed,
}

/// A program, its server and its client, as scripts for sh(1) with `set -eu`. Variables of all of them:
///
/// | name | what |
/// |---|---|
/// | `DIR` | a directory of this session; everything belongs there |
/// | `FILES`, `OUT` | directories below it: what the server has; what arrives, whose growth is a sign of life |
/// | `HOME` | an empty home directory below it |
/// | `ADDRESS`, `PORT` | where the server listens |
/// | `NEXT` | another port, the next one |
/// | `CLIENT` | the laptop's address at the beginning |
#[derive(Clone, Copy, Debug)]
struct Program {
    /// Name of the scenario.
    name: &'static str,
    /// What its session is.
    description: &'static str,
    /// Debian's packages of server and client; `./setup programs` installs them.
    packages: &'static [&'static str],
    /// What the first two networks of the laptop are behind.
    gateway: Gateway,
    /// Configuration of both daemons.
    policy: &'static str,
    /// Files in `DIR` by name; the variables are put in for `$NAME`.
    configuration: &'static [(&'static str, &'static str)],
    /// Run to its end on the server before anything else.
    prepare: &'static str,
    /// Runs on the server from then on; empty: there is none but the feed.
    server: &'static str,
    /// Runs on the server once that listens: what has news for the clients of a server that has none itself.
    feed: &'static str,
    /// Runs on the laptop.
    client: &'static str,
    /// How life is seen.
    sign: Sign,
    /// How many of its connections both daemons have to know before anything moves.
    connections: usize,
    /// Whether the client is asked for something just before each move.
    begun: bool,
    /// Each question is a connection of its own, and there is one for each move. It is in the hands of both daemons
    /// then, and `DIR/hold` exists from before that until the move is over: the server is to answer nothing meanwhile.
    one_each: bool,
    /// What happens, in order.
    moves: &'static [Move],
    /// How the client ends.
    end: End,
    /// Run on the laptop after that, again and again until it succeeds: the outcome is right.
    verify: &'static str,
}

impl Program {
    /// What most have in common.
    const USUAL: Self = Self {
        name: "",
        description: "",
        packages: &[],
        gateway: Gateway::Router,
        policy: "",
        configuration: &[],
        prepare: "",
        server: "",
        feed: "",
        client: "",
        sign: Sign::Grows,
        connections: 1,
        begun: true,
        one_each: false,
        moves: Move::ALL,
        end: End::Itself,
        verify: "",
    };

    /// Starts a session, carries it through all moves, and checks its outcome.
    fn run(&self, lab: &mut Lab) -> Result<()> {
        step(&versions(self.packages));
        let mut world = World::new(lab, slow("a").behind(self.gateway), slow("b").behind(self.gateway))?;
        let elsewhere = world.add(lab, SiteSpec::named("t"))?;
        let awake = world.add(lab, slow("c").behind(Gateway::NatFirewall))?;
        for host in [&world.laptop, &world.server] {
            // Gives up after 4 s instead of a quarter of an hour.
            host.sysctl("net.ipv4.tcp_retries2", "3")?;
        }
        let mut client = world.laptop.whimbrel_with(self.policy)?;
        let mut server = world.server.whimbrel_with(self.policy)?;
        let mut session = Session::start(self, &world)?;
        session.goes_on()?;
        if !self.one_each {
            introduced([&client, &server], &format!("all of {}", self.name), |known| known >= self.connections)?;
        }
        world.forget_resets();
        for happens in self.moves {
            if self.one_each {
                introduced([&client, &server], "nothing of what is answered", |known| known == 0)?;
                session.hold()?;
            }
            if self.begun {
                session.begin()?;
            }
            if self.one_each {
                introduced([&client, &server], "what was asked", |known| known > 0)?;
            }
            match happens {
                Move::Client => {
                    step("the client moves");
                    let b = world.b.clone();
                    world.roam(&b)?;
                }
                Move::Server => {
                    step("the server moves");
                    world.roam_server(&elsewhere)?;
                }
                Move::Nat => {
                    step("the client moves behind a NAT");
                    world.roam(&awake)?;
                }
                Move::Overlap => overlap(&mut world)?,
                Move::Outage => {
                    step("the client is suspended, and its network fails");
                    client.cli(&["suspend"])?;
                    let site = world.a.clone();
                    outage(lab, &mut world, &site, "bystander")?;
                    client.cli(&["resume"])?;
                    session.goes_on()?;
                    step("the server's network fails");
                    let site = world.s.clone();
                    outage(lab, &mut world, &site, "onlooker")?;
                }
                Move::Sleep => sleep(lab, &mut world, [&client, &server], &awake)?,
            }
            if self.one_each {
                introduced([&client, &server], "what was asked, still", |known| known > 0)?;
                session.release()?;
            }
            session.goes_on()?;
        }
        world.no_resets()?;
        for site in [&world.a, &world.b, &awake] {
            site.link()?.set_both(&Shape::delay_rate(20, FAST));
        }
        session.finish()?;
        all_run(&mut [&mut client, &mut server])?;
        lab.check_links()
    }
}

/// Waits until as much is introduced at both ends as there should be.
fn introduced(daemons: [&Whimbrel; 2], what: &str, enough: impl Fn(usize) -> bool) -> Result<()> {
    wait_for(LONG, &format!("{what} is introduced"), || {
        let known = [daemons[0].status()?, daemons[1].status()?].map(|status| status.counts.introduced);
        Ok(known.into_iter().all(&enough).then_some(()))
    })
}

/// A network of the laptop in which a transfer takes its time.
fn slow(name: &str) -> SiteSpec {
    site(name).uplink(Shape::delay_rate(20, SLOW))
}

/// For sessions that move by themselves where they see another network.
fn overlap(world: &mut World) -> Result<()> {
    step("the client joins another network");
    let arrive = world.b.link()?.count(|direction, packet| direction == Direction::Down && packet.udp().is_some());
    let second = world.laptop.join(&world.b.network, &Join::by("eth0").metric(50))?;
    wait_until(LONG, "the session has moved by itself", || arrive.get() >= DATAGRAMS)?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    world.at = second;
    Ok(())
}

/// Nothing passes the network of one end for as long as a server's TCP would wait for a laptop that vanished.
fn outage(lab: &mut Lab, world: &mut World, site: &Site, who: &str) -> Result<()> {
    let unprotected = Unprotected::named(who, lab, world)?;
    unprotected.vanish()?;
    site.link()?.cut(Cut::Silent)?;
    unprotected.wait_dead(world)?;
    site.link()?.restore()?;
    step("the network is back");
    Ok(())
}

/// The laptop sleeps, and wakes at `to`.
fn sleep(lab: &mut Lab, world: &mut World, daemons: [&Whimbrel; 2], to: &Site) -> Result<()> {
    let [client, server] = daemons;
    let unprotected = Unprotected::new(lab, world)?;
    step("the client sleeps");
    client.cli(&["suspend"])?;
    wait_away(server, Some(Away::Announced))?;
    unprotected.vanish()?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    unprotected.wait_dead(world)?;
    world.at = world.laptop.join(&to.network, &Join::default())?;
    client.cli(&["resume"])?;
    step("the client is awake");
    Ok(())
}

/// The table of a family: its programs as scenarios.
macro_rules! table {
    ($($program:ident),* $(,)?) => {
        pub(super) const SCENARIOS: &[crate::scenarios::Scenario] =
            &[$(crate::scenarios::scenario($program.name, $program.description, |lab| $program.run(lab))),*];

        #[cfg(test)]
        pub(super) const PROGRAMS: &[super::Program] = &[$($program),*];
    };
}
use table;

#[cfg(test)]
mod tests {
    use super::*;

    /// What installs the packages.
    const SETUP: &str = include_str!("../../../../setup");

    #[test]
    fn what_a_program_needs_is_installed() {
        let rows = [
            databases::PROGRAMS,
            files::PROGRAMS,
            web::PROGRAMS,
            mail::PROGRAMS,
            remote::PROGRAMS,
            media::PROGRAMS,
            datagrams::PROGRAMS,
        ];
        for program in rows.into_iter().flatten() {
            for package in program.packages {
                let named = SETUP.split(|c: char| c.is_whitespace() || "'\"=".contains(c)).any(|word| word == *package);
                assert!(named, "./setup does not install {package} for {}", program.name);
            }
        }
    }
}
