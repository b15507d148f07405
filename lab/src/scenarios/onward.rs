//! Sockets that have changed hosts, and whose new host then roams, sleeps, or gives them on: each time the far end, or
//! who passes packets on for it, is led to where they are, and no host that they have left is needed.

use std::time::Duration;

use whimbrel_ipc::{Away, ConnectionState};

use super::relocation::{Three, straight};
use super::world::{LONG, site, step};
use super::{Scenario, scenario};
use crate::{Join, Lab, Leave, Result, Ticker, TickerFar, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-then-roams",
        "a connection goes to another host, which goes to another network; then it comes back, and goes there again",
        |lab| roams(lab, false),
    ),
    scenario(
        "moved-then-roams-direct",
        "the same with a far end that runs Whimbrel, and does at last without the host that the connection was made to",
        |lab| roams(lab, true),
    ),
    scenario(
        "moved-then-sleeps",
        "a connection goes to another host, which sleeps, and wakes in another network; then it comes back",
        |lab| sleeps(lab, false),
    ),
    scenario("moved-then-sleeps-direct", "the same with a far end that runs Whimbrel", |lab| sleeps(lab, true)),
    scenario("moved-on", "a connection goes to a second host and on to a third; then the second one vanishes", |lab| {
        on(lab, false)
    }),
    scenario(
        "moved-on-direct",
        "the same with a far end that runs Whimbrel; then both of the hosts vanish that had it before",
        |lab| on(lab, true),
    ),
];

/// Bytes that show that a connection goes on.
const SOME: u64 = 100;
const EVERY: Duration = Duration::from_millis(1);

/// A connection that has gone from one host to another.
struct Moved {
    three: Three,
    tickers: [Ticker; 2],
    far: TickerFar,
    /// Up to which byte it has been sent when it moved last.
    until: u64,
}

impl Moved {
    fn new(lab: &mut Lab, far_runs: bool) -> Result<Self> {
        let three = Three::new(lab, far_runs)?;
        let tickers = [
            Ticker::start(&three.donor_daemon, three.world.at_server.ipv4()?, "desk", EVERY)?,
            Ticker::start(&three.acceptor_daemon, three.at_acceptor, "guest", EVERY)?,
        ];
        let mut far = TickerFar::connect(&three.world.laptop, tickers[0].address())?;
        far.wait_progress(SOME, LONG)?;
        if let Some(daemon) = &three.far_daemon {
            let native =
                || daemon.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
            wait_until(LONG, "the connection is introduced", native)?;
        }
        let mut moved = Self { three, tickers, far, until: 0 };
        moved.to("guest")?;
        Ok(moved)
    }

    /// Moves it between the two.
    fn to(&mut self, name: &str) -> Result<()> {
        step(&format!("it goes to {name}"));
        let Three { donor_daemon, acceptor_daemon, .. } = &self.three;
        let (from, daemon) = if name == "guest" { (0, donor_daemon) } else { (1, acceptor_daemon) };
        give(daemon, &self.far, name)?;
        self.went_on(from)
    }

    /// All that was sent at the last place was sent once, and it goes on.
    fn went_on(&mut self, from: usize) -> Result<()> {
        let (begun, end) = self.tickers[from].ticked()?;
        expect!(begun == self.until, "a sender began with byte {begun} after byte {}", self.until);
        self.until = end;
        self.far.wait_progress(SOME, LONG)
    }

    /// Whoever leads the far end's packets to the acceptor does so straight.
    fn is_straight(&self) -> Result<()> {
        let Three { donor_daemon, acceptor_daemon, far_daemon, at, .. } = &self.three;
        let address = at.ipv4()?;
        if let Some(far) = far_daemon {
            straight(far, acceptor_daemon)?;
        }
        let holder = far_daemon.as_ref().unwrap_or(donor_daemon);
        let key = acceptor_daemon.status()?.public_key;
        let led =
            || holder.peers().is_ok_and(|all| all.iter().any(|peer| peer.key == key && peer.address.ip() == address));
        wait_until(LONG, "the binding points to where the socket's host is", led)
    }
}

fn give(from: &Whimbrel, far: &TickerFar, to: &str) -> Result<()> {
    let said = from.cli(&["move", &far.local().to_string(), "--to", to, "--process", to])?;
    expect!(said.contains("is with"), "{said}");
    Ok(())
}

fn roams(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut moved = Moved::new(lab, far_runs)?;
    step("its host roams");
    let elsewhere = moved.three.world.b.clone();
    moved.three.at = moved.three.acceptor.roam(&moved.three.at, &elsewhere.network, &Join::by("eth0"))?;
    moved.far.wait_progress(SOME, LONG)?;
    moved.is_straight()?;
    moved.to("desk")?;
    moved.to("guest")?;
    moved.is_straight()?;
    step("its host roams back");
    let network = moved.three.network.clone();
    moved.three.at = moved.three.acceptor.roam(&moved.three.at, &network.network, &Join::by("eth0"))?;
    moved.far.wait_progress(SOME, LONG)?;
    moved.is_straight()?;
    if far_runs {
        step("the host that it was made to vanishes");
        moved.three.world.server.leave(&moved.three.world.at_server, Leave::Orderly)?;
        moved.far.wait_progress(SOME, LONG)?;
    }
    moved.three.world.no_resets()
}

fn sleeps(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut moved = Moved::new(lab, far_runs)?;
    step("its host sleeps");
    let key = moved.three.acceptor_daemon.status()?.public_key;
    moved.three.acceptor_daemon.cli(&["suspend"])?;
    let holder = moved.three.far_daemon.as_ref().unwrap_or(&moved.three.donor_daemon);
    let away = || {
        let of =
            |all: Vec<whimbrel_ipc::Peer>| all.iter().any(|peer| peer.key == key && peer.away == Some(Away::Announced));
        holder.peers().is_ok_and(of)
    };
    wait_until(LONG, "it is known to be away", away)?;
    moved.three.acceptor.leave(&moved.three.at, Leave::Orderly)?;
    let (asleep, over) = moved.far.heard()?;
    expect!(!over, "the connection has ended");
    moved.three.at = moved.three.acceptor.join(&moved.three.world.b.network, &Join::by("eth0"))?;
    moved.three.acceptor_daemon.cli(&["resume"])?;
    moved.far.wait_progress(SOME, LONG)?;
    expect!(moved.far.heard()?.0 > asleep, "nothing has come");
    moved.is_straight()?;
    moved.to("desk")?;
    moved.three.world.no_resets()
}

fn on(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut moved = Moved::new(lab, far_runs)?;
    let network = moved.three.world.add(lab, site("t"))?;
    let third = lab.host("third")?;
    let at_third = third.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let third_daemon = third.whimbrel()?;
    moved.three.donor_daemon.invite(&third_daemon, moved.three.world.at_server.ipv4()?, "third")?;
    let knows = || {
        let said = moved.three.acceptor_daemon.cli(&["community", "list"]);
        said.is_ok_and(|said| said.contains("third"))
    };
    wait_until(LONG, "the second host has heard of the third", knows)?;
    let _ticker = Ticker::start(&third_daemon, at_third, "third", EVERY)?;
    step("it goes to a third host");
    give(&moved.three.acceptor_daemon, &moved.far, "third")?;
    moved.went_on(1)?;
    if let Some(far) = &moved.three.far_daemon {
        straight(far, &third_daemon)?;
    }
    step("the second vanishes");
    moved.three.acceptor.leave(&moved.three.at, Leave::Orderly)?;
    moved.far.wait_progress(SOME, LONG)?;
    if far_runs {
        step("the first vanishes");
        moved.three.world.server.leave(&moved.three.world.at_server, Leave::Orderly)?;
        moved.far.wait_progress(SOME, LONG)?;
    }
    moved.three.world.no_resets()
}
