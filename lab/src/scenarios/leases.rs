//! What anchors lend comes to its end: leases run out, hosts are revoked, anchors start anew in the middle.

use std::net::SocketAddr;
use std::time::Duration;

use super::anchor::{Four, LENDS, PORT, carried};
use super::world::{LONG, REWRITTEN_WITHIN, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Lab, Many, Random, Result, Ticker, TickerFar, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "anchor-leases",
        "a lease runs out, and what was claimed goes on, also with another daemon; the port is lent again to nobody else; then the tenant is revoked",
        leases,
    ),
    scenario(
        "anchor-forgot",
        "an anchor's daemon dies before it has noted what it lends: its host has that itself once it is back",
        forgot,
    ),
    scenario(
        "anchored-faults",
        "the anchor's daemon dies at moments of chance while a connection with its address moves: it is at one place and goes on",
        faults,
    ),
];

/// Connections that have the anchor's address.
const COUNT: usize = 3;

fn leases(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, &format!("{LENDS}lifetime = 4\n"))?;
    let at_anchor = four.world.at_server.ipv4()?;
    let at = SocketAddr::new(at_anchor, PORT);
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
    let passed_on = |four: &Four| {
        let said = four.anchor.cli(&["anchor"]).unwrap_or_default();
        said.lines().filter(|line| line.contains("passed on to")).count()
    };
    wait_until(LONG, "the connections are claimed", || passed_on(&four) == COUNT)?;
    many.all_answer(LONG, "claimed")?;

    step("the lease runs out, since its tenant's daemon is not there, and nothing is lent any more when it is back");
    four.guest.kill()?;
    let over = || four.anchor.cli(&["anchor"]).is_ok_and(|said| !said.contains("lent to"));
    wait_until(LONG, "the leases are over", over)?;
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    four.guest.restart()?;
    four.guest.wait_event("lease-lost", 0, LONG)?;
    many.all_answer(LONG, "without the lease")?;
    wait_until(REWRITTEN_WITHIN, "they are rewritten", || carried(&four.guest, at) == COUNT)?;
    // What is answered rewritten once is sent so from then on (P-24).
    many.all_answer(LONG, "rewritten")?;
    step("the tenant's daemon is started anew");
    four.guest.kill()?;
    many.all_answer(LONG, "without a daemon")?;
    four.guest.restart()?;
    many.all_answer(LONG, "with another daemon")?;

    step("the port is lent again, to the host alone that has connections of it");
    four.anchor.cli(&["anchor", "start"])?;
    let port = PORT.to_string();
    let run = ["run", "--anchor", "desk", "--port", &port, "--", "true"];
    let refused = four.third.cli(&run);
    expect!(refused.is_err_and(|error| error.to_string().contains("taken there")), "it is lent to another host");
    four.guest.cli(&run)?;
    many.all_answer(LONG, "beside a new lease")?;

    step("the tenant is revoked");
    four.anchor.cli(&["community", "revoke", "guest"])?;
    wait_until(LONG, "nothing is passed on for it", || passed_on(&four) == 0)?;
    let report = many.echo(LONG)?;
    expect!(report.closed == COUNT, "{} of {COUNT} connections were told that they are over", report.closed);
    four.third.cli(&run)?;
    Ok(())
}

fn forgot(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv4()?, PORT);
    let other = EchoServer::start_behind(&four.third, "desk", SocketAddr::new(at.ip(), PORT + 1))?;
    let mut others = Many::open(&four.world.laptop, &other, COUNT)?;
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    Many::open(&four.world.laptop, &server, 1)?.all_answer(LONG, "behind the anchor")?;
    drop(server);
    step("tenant and anchor die, and the anchor's daemon had not noted this lease");
    four.guest.kill()?;
    four.anchor.kill()?;
    let journal = four.anchor.run_dir().join("journal");
    let failed = |call| move |error| crate::Error::call(call, "the anchor's journal", error);
    let noted = std::fs::read_to_string(&journal).map_err(failed("read"))?;
    let (of_it, rest): (Vec<&str>, Vec<&str>) = noted.lines().partition(|line| line.contains(&format!("\"{at}\"")));
    expect!(!of_it.is_empty(), "nothing is noted of it: {noted}");
    std::fs::write(&journal, rest.join("\n") + "\n").map_err(failed("write"))?;
    four.anchor.restart()?;
    others.all_answer(LONG, "of the lease that is noted")?;
    step("a program of the anchor's host has the port");
    let server = EchoServer::start_at(&four.world.server, at)?;
    Many::open(&four.world.laptop, &server, COUNT)?.all_answer(LONG, "at the anchor itself")?;
    others.all_answer(LONG, "of the lease that is noted")?;
    Ok(())
}

/// How often the anchor's daemon dies.
const ROUNDS: usize = 6;
const EVERY: Duration = Duration::from_millis(1);

fn faults(lab: &mut Lab) -> Result<()> {
    let seed = lab.seed();
    println!("    seed {seed:#x}");
    let mut random = Random::new(seed);
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv4()?, PORT);
    let mut tickers = [
        Ticker::start_behind(&four.guest, "desk", at, "guest", EVERY)?,
        Ticker::start(&four.third, four.at_third.ipv4()?, "third", EVERY)?,
    ];
    let mut far = TickerFar::connect(&four.world.laptop, at)?;
    far.wait_progress(1000, LONG)?;
    let (mut owner, mut moved) = (0, 0);
    for round in 0..ROUNDS {
        let (daemon, to) = if owner == 0 { (&four.guest, "third") } else { (&four.third, "guest") };
        let mut asked = daemon.spawn_cli(&["move", &far.local().to_string(), "--to", to, "--process", to])?;
        std::thread::sleep(Duration::from_millis((300.0 * random.fraction()) as u64));
        four.anchor.kill()?;
        four.anchor.restart()?;
        let done = asked.wait(Duration::from_secs(120))?;
        println!("    {round}: {}", asked.stdout().trim().lines().last().unwrap_or_default());
        far.wait_progress(500, LONG)?;
        if done.success() {
            tickers[owner].ticked()?;
            owner = 1 - owner;
            moved += 1;
        }
        expect!(!far.heard()?.1, "the far end was told that the connection is over");
    }
    println!("    {moved} of {ROUNDS} moves came about");
    // And nothing is left of it that would hinder the next.
    let (daemon, to) = if owner == 0 { (&four.guest, "third") } else { (&four.third, "guest") };
    let said = daemon.cli(&["move", &far.local().to_string(), "--to", to, "--process", to])?;
    expect!(said.contains("is with"), "{said}");
    tickers[owner].ticked()?;
    far.wait_progress(500, LONG)?;
    four.world.no_resets()
}
