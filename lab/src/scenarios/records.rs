//! What a daemon leaves for later: its log of events, what is drawn of it, and figures for monitoring.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;

use whimbrel_ipc::{Carrier, Reply, reply_from_line};

use super::world::{LONG, SOME, World, all_run, carried_by, site, step};
use super::{Scenario, scenario};
use crate::{Error, Host, Lab, Result, Side, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "records",
        "events are written to a file through moves, a suspension and the death of the daemon, and drawn of it",
        records,
    ),
    scenario("metrics", "figures are served by HTTP, and rise with what happens", metrics),
];

/// Where figures are served, in the laptop's own network namespace.
const LISTEN: &str = "127.0.0.1:9203";

fn records(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel_with("event_log = \"events.jsonl\"\n")?;
    let mut server = world.server.whimbrel()?;
    let mut pairs = [world.stream()?, world.stream()?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let home = world.at.ipv4()?;
    let b = world.b.clone();
    world.roam(&b)?;
    for pair in &mut pairs {
        world.goes_on(pair)?;
        carried_by(&client, Side::Client, pair, Carrier::Rewrite)?;
    }
    let away = world.at.ipv4()?;

    step("a suspension, and one connection that waits");
    client.cli(&["suspend"])?;
    client.cli(&["resume"])?;
    pairs[0].wait_progress(SOME, LONG)?;
    let one = pairs[0].local().to_string();
    client.cli(&["suspend", &one])?;
    let since = client.status()?.newest_event;
    client.cli(&["resume", &one])?;
    client.wait_event("flows-go-on", since, LONG)?;
    pairs[0].wait_progress(SOME, LONG)?;

    step("the log has what the daemon tells");
    let log = client.state_dir().join("events.jsonl");
    let path = log.display().to_string();
    let told = client.cli(&["events", "--since", "0", "--json"])?;
    let told: Vec<&str> = told.lines().collect();
    // It is written a moment later.
    wait_for(LONG, "all events are in the log", || {
        let written = fs::read_to_string(&log).unwrap_or_default();
        Ok(written.lines().take(told.len()).eq(told.iter().copied()).then_some(()))
    })?;

    step("a daemon that was killed is followed by another");
    client.kill()?;
    client.restart()?;
    pairs[0].wait_progress(SOME, LONG)?;
    server.wait_event("peer-reached", 0, LONG)?;
    let started = wait_for(LONG, "the second daemon is in the log", || {
        let written = fs::read_to_string(&log).unwrap_or_default();
        let kinds = written.lines().filter_map(|line| match reply_from_line(line) {
            Ok(Reply::Event(event)) => Some(event.kind),
            _ => None,
        });
        let started = kinds.filter(|kind| kind == "started").count();
        Ok((started > 1).then_some(started))
    })?;
    expect!(started == 2, "{started} daemons are in the log");

    step("time lines");
    let drawn = client.cli(&["events", "--from", &path, "--plot", "-"])?;
    for wanted in [
        &format!("this host moved from {home} to {away}"),
        "this host was suspended",
        "single connections wait: somebody here asked for it",
        "the daemon was started anew",
        &format!("tcp {} → ", pairs[1].local().port()),
    ] {
        expect!(drawn.contains(wanted), "{wanted:?} is not in the drawing:\n{drawn}");
    }
    let file = client.state_dir().join("moves.svg");
    for daemon in [&client, &server] {
        let said = daemon.cli(&["events", "--plot", &file.display().to_string()])?;
        expect!(said.starts_with("Drew "), "{said}");
        let drawn = fs::read_to_string(&file).unwrap_or_default();
        expect!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
    }
    let text = client.cli(&["events", "--from", &path, "--last", "1000"])?;
    expect!(text.contains("this host goes away"), "{text}");

    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

fn metrics(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel_with(&format!("[metrics]\nlisten = \"{LISTEN}\"\n"))?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;

    let before = served(&world.laptop)?;
    let of = |figures: &Figures, name: &str| figures.get(name).copied();
    expect!(of(&before, "whimbrel_connections{state=\"native\"}") == Some(1.0), "{before:?}");
    expect!(of(&before, "whimbrel_handoffs_total{end=\"local\",outcome=\"moved\"}") == Some(0.0), "{before:?}");

    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    pair.wait_progress(SOME, LONG)?;
    let after = served(&world.laptop)?;
    for (name, value) in [
        ("whimbrel_connections{state=\"native\"}", 0.0),
        ("whimbrel_connections{state=\"moved\"}", 1.0),
        ("whimbrel_carried_connections{carrier=\"rewrite\"}", 1.0),
        ("whimbrel_handoffs_total{end=\"local\",outcome=\"moved\"}", 1.0),
        ("whimbrel_handoff_duration_seconds_count", 1.0),
        ("whimbrel_events_total{kind=\"moved\"}", 1.0),
        ("whimbrel_peers{session=\"up\"}", 1.0),
    ] {
        expect!(of(&after, name) == Some(value), "{name} is {:?}, not {value}", of(&after, name));
    }
    let rewritten = of(&after, "whimbrel_datapath_packets_total{verdict=\"rewritten_out\"}");
    expect!(rewritten.is_some_and(|packets| packets > 0.0), "{rewritten:?} packets were rewritten");
    // The same figures by the command, at either end.
    let printed = figures(&client.cli(&["metrics"])?)?;
    expect!(printed.keys().eq(after.keys()), "{printed:?}");
    let peers = figures(&server.cli(&["metrics"])?)?;
    expect!(of(&peers, "whimbrel_handoffs_total{end=\"peer\",outcome=\"moved\"}") == Some(1.0), "{peers:?}");

    // A client that says nothing holds up nobody but other clients of the same.
    let silent = world.laptop.enter(|| TcpStream::connect(LISTEN))?;
    let silent = silent.map_err(|error| Error::call("connect", LISTEN, error))?;
    pair.wait_progress(SOME, LONG)?;
    client.status()?;
    drop(silent);
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

pub(super) type Figures = BTreeMap<String, f64>;

/// The figures that a host serves.
fn served(host: &Host) -> Result<Figures> {
    let url = format!("http://{LISTEN}/metrics");
    figures(&host.command("curl").args(["--silent", "--show-error", "--fail", &url]).run()?)
}

/// Figures by name and labels.
pub(super) fn figures(text: &str) -> Result<Figures> {
    let figure = |line: &str| {
        let figure = line.rsplit_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        figure.ok_or_else(|| Error::Output {
            program: "whimbrel metrics".to_owned(),
            expected: "a figure",
            got: line.to_owned(),
        })
    };
    text.lines().filter(|line| !line.starts_with('#')).map(figure).collect()
}
