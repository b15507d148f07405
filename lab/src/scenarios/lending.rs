//! What an anchor says of what it lends, and what it lends no more.

use std::net::{SocketAddr, TcpListener};

use whimbrel_ipc::Carrier;

use super::anchor::{Four, LENDS, PORT};
use super::world::{LONG, REWRITTEN_WITHIN, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Lab, Many, Result, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "anchor-restarted",
        "the anchor's daemon is stopped and started again, then the tenant's, while nothing is claimed: connections and leases go on",
        restarted,
    ),
    scenario(
        "anchor-stopped",
        "an anchor that lends nothing new does so over a restart, until it is told otherwise; connections that were opened just before its daemon went depend on it once it is back",
        stopped,
    ),
    scenario(
        "anchor-met-by-ipv6",
        "an anchor that was met by its IPv6 address takes nobody to be behind a NAT: connections by IPv6 go as by IPv4, without the daemons",
        met_by_ipv6,
    ),
    scenario(
        "anchor-offers",
        "an anchor says what it lends, of several ranges and prefixes, and how much of it is lent; and what of it cannot be lent, and what to do",
        offers,
    ),
    scenario(
        "anchor-lent-and-gone",
        "an address goes that an anchor has lent of, while its daemon runs and while it does not: who has it on lease is told, and again when it is back",
        lent_and_gone,
    ),
];

/// Two ranges with room for one program each.
const RANGES: &str = "[anchor]\nports = [\"8000-8127\", \"9000-9130\"]\naddresses = [\"198.18.5.64/28\"]\n";
/// Lets the control port in and out, and nothing else.
const STRICT: &str = "table inet strict {
  chain input { type filter hook input priority 0; policy drop; iif lo accept; udp dport 2031 accept; meta l4proto ipv6-icmp accept; }
  chain forward { type filter hook forward priority 0; policy drop; }
  chain output { type filter hook output priority 0; policy drop; oif lo accept; udp sport 2031 accept; meta l4proto ipv6-icmp accept; }
}";

/// Lets no control datagram in (kind 0x10), but those of tunnels.
const DEAF: &str = "table inet deaf {
  chain input { type filter hook input priority 0; udp dport 2031 @th,64,8 0x10 drop; }
}";

/// An address that the anchor does not have, and some that its subnet does.
const CANNOT: &str = "[anchor]\nports = \"8000-8999\"\nown = [\"198.18.5.9\"]\naddresses = [\"192.0.2.0/24\"]\n";

/// An address that comes and goes, with a subnet that does.
const COMES: &str = "[anchor]\nports = \"8000-8999\"\nown = [\"198.18.5.9\"]\naddresses = [\"198.18.6.0/28\"]\n";

/// Connections that open just before the anchor's daemon goes.
const COUNT: usize = 3;

/// What a program that is run ends with, and what the command says.
fn ends_with(daemon: &Whimbrel, args: &[&str]) -> Result<String> {
    let script = "\"$0\" --run-dir \"$@\" 2>&1; echo \"status $?\"";
    let command = daemon.host().command("sh").args(["-c", script]).arg(daemon.binary()).arg(daemon.run_dir());
    command.args(args).run()
}

fn restarted(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv4()?, PORT);
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    for tenants in [false, true] {
        let whose = if tenants { "the tenant's" } else { "the anchor's" };
        step(&format!("{whose} daemon is stopped before anything is claimed, and started again"));
        four.world.server.nft(DEAF)?;
        let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
        many.all_answer(LONG, "as they are opened, so that both ends have them")?;
        let daemon = if tenants { &mut four.guest } else { &mut four.anchor };
        daemon.stop()?;
        four.world.server.nft("delete table inet deaf")?;
        daemon.restart()?;
        many.all_answer(LONG, "opened before")?;
        Many::open(&four.world.laptop, &server, 1)?.all_answer(LONG, "opened since")?;
        let events = four.guest.events(0)?;
        let lost =
            events.iter().find(|event| ["lease-returned", "lease-lost", "lease-over"].contains(&event.kind.as_str()));
        expect!(lost.is_none(), "{lost:?}");
    }
    four.world.no_resets()?;

    step("a tenant's daemon is killed when a program has just ended: what that had on lease is lent again");
    let run = ["run", "--anchor", "desk", "--"];
    let mut stays = four.third.spawn_cli(&[&run[..], &["sleep", "600"]].concat())?;
    let rented = || four.third.anchors().is_ok_and(|all| !all.rented.is_empty());
    wait_until(LONG, "one program has something on lease", rented)?;
    four.third.cli(&[&run[..], &["true"]].concat())?;
    four.third.kill()?;
    four.third.restart()?;
    four.third.wait_event("lease-returned", 0, LONG)?;
    for _ in 0..2 {
        four.third.cli(&[&run[..], &["true"]].concat())?;
    }
    stays.kill()
}

fn stopped(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv4()?, PORT);
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    step("connections are opened, and the anchor's daemon is gone before it has heard of claims");
    four.world.server.nft(DEAF)?;
    let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
    many.all_answer(LONG, "as they are opened, so that both ends have them")?;
    four.anchor.kill()?;
    let refused = four.guest.wait_event("claim-refused", 0, LONG)?;
    expect!(refused.sentence.contains("does not answer"), "{}", refused.sentence);
    step("it comes back");
    four.world.server.nft("delete table inet deaf")?;
    four.anchor.restart()?;
    let passed_on = || four.anchor.anchors().is_ok_and(|all| all.passed_on.len() == COUNT);
    wait_until(LONG, "they are claimed", passed_on)?;
    four.guest.wait_event("claimed-again", refused.number, LONG)?;
    many.all_answer(LONG, "claimed again")?;

    step("it is told to lend nothing new");
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    let told = |kind: &str| four.anchor.events(0).map(|all| all.iter().filter(|event| event.kind == kind).count());
    expect!(told("lending-stopped")? == 1, "it is told once");
    four.anchor.kill()?;
    four.anchor.restart()?;
    expect!(four.anchor.anchors()?.stopping, "another daemon lends again");
    four.anchor.wait_event("lending-stopped", 0, LONG)?;
    let refused = four.third.cli(&["run", "--anchor", "desk", "--", "true"]);
    expect!(refused.is_err_and(|error| error.to_string().contains("about to stop lending")), "it lends on");
    many.all_answer(LONG, "while it lends nothing new")?;
    step("who waits until nothing depends on it does so over a restart");
    let mut waits = four.anchor.spawn_cli(&["anchor", "stop", "--within", "60"])?;
    waits.wait_line(LONG, "it waits", |line| line.starts_with("Waiting for these").then_some(()))?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    drop((many, server));
    waits.wait_success(LONG)?;
    four.anchor.cli(&["anchor", "start"])?;
    four.anchor.wait_event("lending-started", 0, LONG)?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    expect!(!four.anchor.anchors()?.stopping, "another daemon lends nothing");
    four.third.cli(&["run", "--anchor", "desk", "--", "true"])?;
    step("a start without `[anchor]` does not have it lend again");
    wait_until(LONG, "nothing is lent", || four.anchor.anchors().is_ok_and(|all| all.lent.is_empty()))?;
    four.anchor.cli(&["anchor", "stop"])?;
    for config in ["control_mode = \"0600\"\n", LENDS] {
        four.anchor.reconfigure(config)?;
        four.anchor.kill()?;
        four.anchor.restart()?;
    }
    expect!(four.anchor.anchors()?.stopping, "it was told to lend nothing new");
    Ok(())
}

fn met_by_ipv6(lab: &mut Lab) -> Result<()> {
    let mut four = Four::met_by_ipv6(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv6()?, PORT);
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
    many.all_answer(LONG, "opened")?;
    let rewritten = |four: &Four| {
        let all = four.guest.connections().unwrap_or_default();
        all.iter().filter(|c| c.flow.local == at && c.carrier == Some(Carrier::Rewrite)).count()
    };
    wait_until(REWRITTEN_WITHIN, "they are rewritten", || rewritten(&four) == COUNT)?;
    // What is answered rewritten once is sent so from then on (P-24).
    many.all_answer(LONG, "rewritten")?;
    step("the anchor's daemon is killed");
    four.anchor.kill()?;
    many.all_answer(LONG, "without a daemon")?;
    four.anchor.restart()?;
    many.all_answer(LONG, "with another daemon")?;
    expect!(rewritten(&four) == COUNT, "with another daemon they go by the tunnel");
    Ok(())
}

fn offers(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, RANGES)?;
    let at_anchor = four.world.at_server.ipv4()?;
    let says = |four: &Four, right: &str| -> Result<()> {
        let said = four.anchor.cli(&["anchor"])?;
        expect!(said.contains(right), "`whimbrel anchor` says {said} and not {right}");
        Ok(())
    };
    let lease = format!("for lease: {at_anchor} ports 8000 to 8127, 9000 to 9130; ");
    says(&four, &format!("{lease}nothing of it is lent, room for 2 programs\n"))?;
    says(&four, "for lease: 198.18.5.64/28, as a whole; nothing of it is lent\n")?;
    step("a listener of the host itself is in the midst of one of them");
    let own = four.world.server.enter(|| TcpListener::bind(("0.0.0.0", 8064)))?;
    let own = own.map_err(|error| crate::Error::call("bind", "port 8064".to_owned(), error))?;
    says(
        &four,
        &format!("{lease}nothing of it is lent, room for 1 program\nused by this host itself: {at_anchor} port 8064\n"),
    )?;
    drop(own);
    let room = || says(&four, &format!("{lease}nothing of it is lent, room for 2 programs\n")).is_ok();
    wait_until(LONG, "the port is free again", room)?;
    step("three programs, of which two have room");
    let servers =
        [9001, 9002].map(|port| EchoServer::start_behind(&four.guest, "desk", SocketAddr::new(at_anchor, port)));
    let [first, second] = servers;
    let servers = [first?, second?];
    says(&four, &format!("{lease}258 of 259 lent, no room for a program\n"))?;
    for block in [8000, 9003] {
        says(&four, &format!("lent to guest: {at_anchor} ports {block} to {}\n", block + 127))?;
    }
    let refused = four.third.cli(&["run", "--anchor", "desk", "--", "true"]);
    expect!(refused.is_err_and(|error| error.to_string().contains("no room")), "a third program has room");
    step("nothing of it passes the anchor's own packet filter");
    four.world.server.nft(STRICT)?;
    let mut many = Vec::new();
    for server in &servers {
        let mut of_one = Many::open(&four.world.laptop, server, COUNT)?;
        of_one.all_answer(LONG, "past the packet filter")?;
        many.push(of_one);
    }
    step("how it is shown");
    let passed_on = || four.anchor.anchors().is_ok_and(|all| all.passed_on.len() == 2 * COUNT);
    wait_until(LONG, "they are claimed", passed_on)?;
    let shown = four.anchor.cli(&["connections"])?;
    let table = shown.split("Connections of others that this host passes on:\n").nth(1).unwrap_or_default();
    let rows = |port: u16| table.lines().filter(|row| row.starts_with(&format!("tcp    {at_anchor}:{port} "))).count();
    expect!((rows(9001), rows(9002)) == (COUNT, COUNT), "`whimbrel connections` of the anchor: {shown}");
    for many in &mut many {
        many.all_answer(LONG, "as flows")?;
    }
    let offer = four.anchor.anchors()?.offer;
    let told = offer.map(|offer| (offer.ports, offer.of.iter().map(|of| of.lent).sum::<u32>(), offer.addresses.len()));
    expect!(told == Some((vec![(8000, 8127), (9000, 9130)], 258, 1)), "the offer in JSON: {told:?}");
    drop((many, servers));
    step("ports that are not to be had");
    wait_until(LONG, "nothing is on lease", || four.anchor.anchors().is_ok_and(|all| all.lent.is_empty()))?;
    let has_one = EchoServer::start_behind(&four.guest, "desk", SocketAddr::new(at_anchor, 9001))?;
    for (port, right) in [
        ("9500", "port 9500 is none of those that it lends (8000-8127, 9000-9130)"),
        ("9001", "port 9001 is taken there"),
    ] {
        let of_guest = || four.anchor.anchors().is_ok_and(|all| all.lent.len() == 2);
        wait_until(LONG, "the third has nothing on lease", of_guest)?;
        let refused = four.third.cli(&["run", "--anchor", "desk", "--port", port, "--", "true"]);
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        expect!(said.contains(right), "--port {port} is told {said} and not {right}");
    }
    drop(has_one);
    step("programs one after the other, each with what the one before it had a moment ago");
    wait_until(LONG, "nothing is on lease", || four.anchor.anchors().is_ok_and(|all| all.lent.is_empty()))?;
    for wanted in [["--port", "9001"], ["--address", "198.18.5.70"]] {
        for _ in 0..4 {
            four.guest.cli(&[&["run", "--anchor", "desk"], &wanted[..], &["--", "true"]].concat())?;
        }
    }
    step("programs that cannot be run, and this host itself as anchor");
    let run = ["run", "--anchor", "desk", "--"];
    let own = ["run", "--anchor", "self"];
    for (args, right) in [
        ([&run[..], &["sh", "-c", "exit 7"]].concat(), "status 7"),
        ([&run[..], &["/nowhere/at-all"]].concat(), "/nowhere/at-all: there is no such program.\nstatus 127"),
        (
            [&run[..], &["/etc/passwd"]].concat(),
            "/etc/passwd: cannot be run: Permission denied (os error 13).\nstatus 126",
        ),
        ([&own[..], &["--", "sh", "-c", "echo own; exit 7"]].concat(), "own\nstatus 7"),
        ([&own[..], &["--port", "80", "--", "true"]].concat(), "self: --port is for an anchor that is another host."),
    ] {
        wait_until(LONG, "nothing is on lease", || four.anchor.anchors().is_ok_and(|all| all.lent.is_empty()))?;
        let said = ends_with(&four.third, &args)?;
        expect!(said.contains(right), "{args:?}: {said} and not {right}");
    }

    step("what cannot be lent");
    // `[anchor]` is read at the start.
    four.anchor.reconfigure(CANNOT)?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    let told = four.anchor.wait_event("cannot-lend", 0, LONG)?;
    let faults = [
        "`own` names 198.18.5.9, which is no address of this host".to_owned(),
        format!("`addresses` names 192.0.2.0/24, which has {at_anchor} in it, this host's own"),
    ];
    let script = "\"$0\" --run-dir \"$1\" doctor || true";
    let doctor = four.anchor.host().command("sh").args(["-c", script]).arg(four.anchor.binary());
    let doctor = doctor.arg(four.anchor.run_dir()).run()?;
    for fault in faults {
        expect!(told.sentence.contains(&fault), "the event says {} and not {fault}", told.sentence);
        expect!(doctor.contains(&fault), "doctor says {doctor} and not {fault}");
        says(&four, &format!("cannot be lent: {fault}"))?;
    }
    let said = four.anchor.cli(&["anchor"])?;
    expect!(!said.contains("for lease: 198.18.5.9"), "what cannot be lent is for lease too: {said}");
    for port in [&[][..], &["--port", "8001"]] {
        let refused = four.third.cli(&[&["run", "--anchor", "desk"], port, &["--", "true"]].concat());
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        expect!(
            said.contains("offers none, or not this one"),
            "ports of an address are lent that the anchor does not have: {said}"
        );
    }
    // The router is the first of the prefix.
    let router = "192.0.2.1";
    for kept in [router.to_owned(), at_anchor.to_string()] {
        let refused = four.third.cli(&["run", "--anchor", "desk", "--address", &kept, "--", "true"]);
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        expect!(said.contains("or its own, or its router's"), "who asks for {kept} is told {said}");
    }
    step("the address comes");
    let address = ["address", "add", "198.18.5.9/32", "dev", "eth0"];
    four.world.server.command("ip").args(address).run()?;
    let named = |told: &whimbrel_ipc::EventRecord| !told.sentence.contains("198.18.5.9");
    let mended =
        || Ok(four.anchor.events(told.number)?.into_iter().find(|told| told.kind == "cannot-lend" && named(told)));
    let mended = crate::wait_for(LONG, "the address is not missed any more", mended)?;
    step("and goes while a program has ports of it");
    let on_lease = EchoServer::start_behind(&four.guest, "desk", "198.18.5.9:8001".parse().expect("an endpoint"))?;
    let address = ["address", "del", "198.18.5.9/32", "dev", "eth0"];
    four.world.server.command("ip").args(address).run()?;
    let fault = "ports of 198.18.5.9 are lent, and this host does not have that address any more";
    let gone = four.anchor.wait_event("cannot-lend", mended.number, LONG)?;
    expect!(gone.sentence.contains(fault), "the event says {} and not {fault}", gone.sentence);
    says(&four, &format!("not reached: {fault}"))?;
    four.guest.wait_event("lease-unreached", 0, LONG)?;
    drop(on_lease);
    Ok(())
}

/// What the anchor has and lends of may go, and come back.
fn lent_and_gone(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let addresses = ["198.18.5.9/32", "198.18.6.1/28"];
    let change = |four: &Four, word: &str| -> Result<()> {
        addresses.iter().try_for_each(|address| {
            four.world.server.command("ip").args(["address", word, address, "dev", "eth0"]).run().map(drop)
        })
    };
    change(&four, "add")?;
    // `[anchor]` is read at the start.
    four.anchor.reconfigure(COMES)?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    let _ports = EchoServer::start_behind(&four.guest, "desk", "198.18.5.9:8001".parse().expect("an endpoint"))?;
    let whole = ["run", "--anchor", "desk", "--address", "198.18.6.9", "--", "sleep", "600"];
    let mut program = four.guest.spawn_cli(&whole)?;
    let lent = || four.anchor.anchors().is_ok_and(|all| all.lent.iter().any(|of| of.count == 0));
    wait_until(LONG, "both are on lease", lent)?;
    let faults = [
        "ports of 198.18.5.9 are lent, and this host does not have that address any more",
        "198.18.6.9 is lent, and of no subnet any more that this host is in",
    ];
    let mut last = four.guest.events(0)?.last().map_or(0, |told| told.number);
    for daemon_runs in [true, false] {
        step(if daemon_runs { "they go" } else { "they go while the daemon is not there" });
        if !daemon_runs {
            four.anchor.kill()?;
        }
        change(&four, "del")?;
        if !daemon_runs {
            four.anchor.restart()?;
        }
        for kind in ["lease-unreached", "lease-reached"] {
            let all = || {
                let told: Vec<_> = four.guest.events(last)?.into_iter().filter(|told| told.kind == kind).collect();
                Ok((told.len() >= 3).then_some(told))
            };
            let told = crate::wait_for(LONG, &format!("{kind} of all"), all)?;
            // Of the address with ports there are two leases: the kernel draws from one.
            expect!(told.len() == 3, "each is told once: {told:?}");
            last = told.iter().map(|told| told.number).max().unwrap_or(last);
            if kind == "lease-unreached" {
                let said = four.anchor.cli(&["anchor"])?;
                let missing = faults.iter().find(|fault| !said.contains(&format!("not reached: {fault}")));
                expect!(missing.is_none(), "`whimbrel anchor` says {said} and not {missing:?}");
                // What is beside it there is not reached either.
                let refused = four.third.cli(&["run", "--anchor", "desk", "--address", "198.18.6.8", "--", "true"]);
                expect!(refused.is_err(), "an address is lent of a subnet that is gone");
                change(&four, "add")?;
            }
        }
    }
    four.third.cli(&["run", "--anchor", "desk", "--address", "198.18.6.8", "--", "true"])?;
    program.kill()
}
