//! Sockets that change hosts in every state that is worth it, and those that cannot.

use std::net::{IpAddr, SocketAddr};

use whimbrel_ipc::{Connection, ConnectionState};

use super::library::Program;
use super::relocation::Three;
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{Error, Lab, Result, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-states",
        "connections of IPv4, IPv6 and IPv4 in an IPv6 socket move in every state, with all that was not sent or not read; their far end runs nothing",
        |lab| states(lab, false),
    ),
    scenario("moved-states-direct", "the same with a far end that runs Whimbrel", |lab| states(lab, true)),
    scenario(
        "moved-datagrams",
        "connected UDP sockets of IPv4, IPv6 and IPv4 in an IPv6 socket move with what was not read, and back; their far end runs nothing",
        |lab| datagrams(lab, false),
    ),
    scenario("moved-datagrams-direct", "the same with a far end that runs Whimbrel", |lab| datagrams(lab, true)),
    scenario(
        "moved-listener",
        "a socket that listens goes to another host with the connections that wait in its queue, and back; new ones that come to its address reach it there",
        |lab| listener(lab, false),
    ),
    scenario("moved-listener-direct", "the same with a far end that runs Whimbrel", |lab| listener(lab, true)),
    scenario(
        "moved-and-lost",
        "a host that has taken a connection cannot let it go on: `move` fails and says so, and what was in it is kept for people",
        lost,
    ),
    scenario(
        "unmovable",
        "connections that cannot move, and hosts that do not take them: each stays, says why, and goes on",
        unmovable,
    ),
];

pub(super) const PROGRAM: &str = include_str!("states/program.py");

/// What both ends do before a connection moves and after it: `near` is what moves. `$` is what `near` has said by then.
struct Case {
    what: &'static str,
    before: &'static [&'static str],
    after: &'static [&'static str],
}

/// States are those of include/net/tcp_states.h.
const CASES: &[Case] = &[
    Case {
        what: "established, with data unsent, unacknowledged and unread",
        before: &["far say 20000", "near waiting", "near fill", "near state 1"],
        after: &["near hear 20000", "far hear $", "near say 3000", "far say 70000", "near hear 90000", "near finish"],
    },
    Case {
        what: "this end has finished (FIN-WAIT-2)",
        before: &["near say 1000", "near finish", "far hear 1000", "far over", "near state 5"],
        after: &["far say 70000", "near hear 70000"],
    },
    Case {
        what: "this end has finished, with data unsent (FIN-WAIT-1)",
        before: &["near fill", "near finish", "near state 4"],
        after: &["far hear $", "far over", "far say 20000", "near hear 20000"],
    },
    Case {
        what: "the far end has finished, with data unread (CLOSE-WAIT)",
        before: &["far say 20000", "far finish", "near state 8"],
        after: &["near hear 20000", "near over", "near say 70000", "far hear 70000", "near finish"],
    },
    Case {
        what: "the far end has finished, with data unsent and unread (CLOSE-WAIT)",
        before: &["near fill", "far say 20000", "far finish", "near state 8"],
        after: &["near hear 20000", "near over", "far hear $", "near say 3000", "near finish"],
    },
    Case {
        what: "both have finished, the far end first, with data unsent (LAST-ACK)",
        before: &["far say 1000", "far finish", "near state 8", "near fill", "near finish", "near state 9"],
        after: &["near hear 1000", "near over"],
    },
    Case {
        what: "both have finished, this end first, with data unsent (CLOSING)",
        before: &["near fill", "near finish", "far say 1000", "far finish", "near state 11"],
        after: &["near hear 1000", "near over"],
    },
];

/// The programs of the three hosts.
pub(super) struct Ends {
    pub(super) near: Program,
    pub(super) far: Program,
    pub(super) next: Program,
}

impl Ends {
    pub(super) fn start(three: &Three) -> Result<Self> {
        let Three { world, donor_daemon, acceptor_daemon, acceptor, .. } = three;
        let near = Program::run(&world.server, PROGRAM, &donor_daemon.run_dir())?;
        let far = Program::run(&world.laptop, PROGRAM, &donor_daemon.run_dir())?;
        let mut next = Program::run(acceptor, PROGRAM, &acceptor_daemon.run_dir())?;
        next.does("receive states")?;
        Ok(Self { near, far, next })
    }

    /// Carries out orders about the connection `name`.
    fn play(&mut self, orders: &[&str], name: &str, moved: bool) -> Result<()> {
        for order in orders {
            let mut words = order.split(' ');
            let who = words.next().unwrap_or_default();
            let what = words.next().unwrap_or_default();
            let mut rest = words.next().unwrap_or_default().to_owned();
            if rest == "$" {
                let at = self.near(moved).does(&format!("at {name}"))?;
                at.split(' ').next().unwrap_or_default().clone_into(&mut rest);
            }
            let program = if who == "near" { self.near(moved) } else { &mut self.far };
            program.does(&format!("{what} {name} {rest}"))?;
        }
        Ok(())
    }

    fn near(&mut self, moved: bool) -> &mut Program {
        if moved { &mut self.next } else { &mut self.near }
    }

    /// Moves a connection, named by its far end.
    fn moves(&mut self, three: &Three, name: &str) -> Result<()> {
        let at = self.near.does(&format!("at {name}"))?;
        let far = self.far.does(&format!("name {name}"))?;
        let said = three.donor_daemon.cli(&["move", &far, "--to", "guest", "--process", "states"])?;
        expect!(said.lines().count() == 1 && said.contains("is with"), "{said}");
        self.next.does(&format!("take {name} {at}")).map(drop)
    }
}

/// Where a server of the donor's listens, and where the far end connects to.
pub(super) fn families(three: &Three) -> Result<[(&'static str, String, IpAddr); 3]> {
    let at = &three.world.at_server;
    let (v4, v6) = (at.ipv4()?, at.ipv6()?);
    Ok([("v4", v4.to_string(), v4), ("v6", v6.to_string(), v6), ("mapped", "::".to_owned(), v4)])
}

/// Waits until the daemons of both ends, where the far one has one, know who is at the other end of a connection.
fn introduced(three: &Three, ends: &mut Ends, name: &str) -> Result<()> {
    let Some(daemon) = &three.far_daemon else { return Ok(()) };
    let far = ends.far.does(&format!("name {name}"))?;
    let native = |daemon: &Whimbrel| -> Result<bool> {
        let has = |c: &Connection| [c.flow.local, c.flow.remote].iter().any(|end| end.to_string() == far);
        Ok(daemon.connections()?.iter().any(|c| has(c) && c.state == ConnectionState::Native))
    };
    let what = format!("the connection from {far} is introduced");
    wait_for(LONG, &what, || Ok((native(daemon)? && native(&three.donor_daemon)?).then_some(())))
}

fn states(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let mut ends = Ends::start(&three)?;
    for (family, listen, to) in families(&three)? {
        let port = ends.near.does(&format!("listen {listen}"))?;
        for (number, case) in CASES.iter().enumerate() {
            step(&format!("{family}: {}", case.what));
            let name = format!("{family}-{number}");
            ends.far.does(&format!("connect {name} {to} {port}"))?;
            ends.near.does(&format!("accept {name}"))?;
            introduced(&three, &mut ends, &name)?;
            ends.play(case.before, &name, false)?;
            ends.moves(&three, &name)?;
            ends.play(case.after, &name, true)?;
            if !case.before.contains(&"far over") && !case.after.contains(&"far over") {
                ends.play(&["far hear $", "far over"], &name, true)?;
            }
            if !case.before.contains(&"far finish") {
                ends.play(&["far finish", "near over"], &name, true)?;
            }
            ends.play(&["near close", "far close"], &name, true)?;
            ends.near.does(&format!("close {name}"))?;
        }
    }
    three.world.no_resets()
}

/// A command that moves a connection is told why that stays.
pub(super) fn stays(daemon: &Whimbrel, command: &[&str], why: &str) -> Result<()> {
    let output =
        daemon.host().command(daemon.binary()).arg("--run-dir").arg(daemon.run_dir()).args(command).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    expect!(!output.status.success() && told.contains("stays here") && told.contains(why), "not `{why}`: {told}");
    Ok(())
}

fn datagrams(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let mut ends = Ends::start(&three)?;
    ends.near.does("receive home")?;
    for (name, listen, to) in families(&three)? {
        step(name);
        let at = &three.world.at;
        let from = if to.is_ipv4() { at.ipv4()? } else { at.ipv6()? };
        // One whose program has chosen its port.
        let chosen = name == "v4";
        let port = ends.near.does(&format!("bind {name} {listen} {}", if chosen { 5004 } else { 0 }))?;
        let far_port = ends.far.does(&format!("bind {name} {from}"))?;
        ends.near.does(&format!("aim {name} {from} {far_port}"))?;
        ends.far.does(&format!("aim {name} {to} {port}"))?;
        ends.play(&["far say 2", "near hear 2", "near say 2", "far hear 2"], name, false)?;
        introduced(&three, &mut ends, name)?;
        ends.play(&["far say 5", "near waiting"], name, false)?;
        ends.moves(&three, name)?;
        ends.near.does(&format!("aborted {name}"))?;
        ends.play(&["near hear 7", "near say 5", "far hear 7", "far say 5", "near hear 12"], name, true)?;
        step("and back");
        let far = ends.far.does(&format!("name {name}"))?;
        let back = ["move", &far, "--to", "desk", "--process", "home"];
        if chosen {
            // It is the other program's as long as that has what is left of its own socket.
            stays(&three.acceptor_daemon, &back, "taken on the other host")?;
            ends.near.does(&format!("close {name}"))?;
        }
        ends.play(&["far say 5", "near waiting"], name, true)?;
        let at = ends.next.does(&format!("at {name}"))?;
        three.acceptor_daemon.cli(&back)?;
        ends.near.does(&format!("take {name} {at}"))?;
        ends.play(&["near hear 17", "near say 5", "far hear 12", "far say 5", "near hear 22"], name, false)?;
        ends.play(&["near close", "far close"], name, false)?;
        ends.next.does(&format!("close {name}"))?;
    }
    Ok(())
}

fn listener(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::new(lab, far_runs)?;
    let mut ends = Ends::start(&three)?;
    ends.near.does("receive home")?;
    for (family, listen, to) in families(&three)? {
        step(&format!("{family}: two connections wait to be accepted, and one was"));
        let port = ends.near.does(&format!("listen {listen}"))?;
        let end = SocketAddr::new(to, port.parse().unwrap_or_default());
        let [stays, first, second, later] =
            ["stays", "first", "second", "later"].map(|name| format!("{family}-{name}"));
        ends.far.does(&format!("connect {stays} {to} {port}"))?;
        ends.near.does(&format!("accept {stays}"))?;
        ends.far.does(&format!("connect {first} {to} {port}"))?;
        ends.far.does(&format!("say {first} 3000"))?;
        ends.far.does(&format!("connect {second} {to} {port}"))?;
        ends.near.does("pending 2")?;
        let named = format!("listener:{end}");
        let said = three.donor_daemon.cli(&["move", &named, "--to", "guest", "--process", "states"])?;
        expect!(said.lines().count() == 1 && said.contains("is with"), "{said}");
        let at = ends.next.does("serve")?;
        expect!(at == port, "it was at {port}, and is at {at}");

        step("they follow, and one that comes later reaches it there");
        ends.far.does(&format!("connect {later} {to} {port}"))?;
        ends.next.does(&format!("accept {later}"))?;
        let both = ["near say 3000", "far hear 3000", "far say 3000", "near hear 3000"];
        ends.play(&both, &later, true)?;
        ends.next.does("collect 2")?;
        for name in [&first, &second] {
            let far = ends.far.does(&format!("name {name}"))?;
            let far_port = far.rsplit(':').next().unwrap_or_default();
            ends.next.does(&format!("called {far_port} {name}"))?;
        }
        ends.play(&["near hear 3000", "near say 3000", "far hear 3000"], &first, true)?;
        ends.play(&both, &second, true)?;
        ends.play(&both, &stays, false)?;

        if family == "v4" {
            step("both daemons are killed");
            three.acceptor_daemon.kill()?;
            three.donor_daemon.kill()?;
            three.acceptor_daemon.restart()?;
            three.donor_daemon.restart()?;
            ends.near.does("receive home")?;
            ends.next.does("receive states")?;
            let anew = format!("{family}-anew");
            ends.far.does(&format!("connect {anew} {to} {port}"))?;
            ends.next.does(&format!("accept {anew}"))?;
            for name in [&anew, &first, &second, &later] {
                ends.play(&["near say 100", "far hear $"], name, true)?;
            }
        }

        step("and back");
        // While its former program has open what is left of it.
        let back = ["move", &named, "--to", "desk", "--process", "home"];
        three.acceptor_daemon.cli(&back)?;
        ends.near.does("serve")?;
        let again = format!("{family}-again");
        ends.far.does(&format!("connect {again} {to} {port}"))?;
        ends.near.does(&format!("accept {again}"))?;
        ends.play(&both, &again, false)?;
        for (name, moved) in [(&stays, false), (&first, true), (&second, true), (&later, true), (&again, false)] {
            ends.play(&["near say 1000", "near finish", "far finish", "near over"], name, moved)?;
            ends.play(&["far hear $", "far over", "near close", "far close"], name, moved)?;
        }
        ends.near.does("leave")?;
        ends.next.does("leave")?;
    }
    three.world.no_resets()
}

/// A firewall at the acceptor keeps the host's own word from a socket of its.
fn lost(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let mut ends = Ends::start(&three)?;
    let to = three.world.at_server.ipv6()?;
    // With the address its own, the acceptor takes the socket to where its firewall is. The hosts meet by IPv4.
    let address = format!("{to}/128");
    three.acceptor.command("ip").args(["addr", "add", &address, "dev", "lo", "nodad"]).run()?;
    three.acceptor.nft(
        "table inet strict { chain out { type filter hook output priority 0; oifname lo meta l4proto tcp drop; }; }",
    )?;
    let port = ends.near.does(&format!("listen {to}"))?;
    ends.far.does(&format!("connect lost {to} {port}"))?;
    ends.near.does("accept lost")?;
    ends.play(&["near say 500", "far hear 500", "far say 1000", "far finish", "near state 8"], "lost", false)?;
    let far = ends.far.does("name lost")?;
    let daemon = &three.donor_daemon;
    let command = daemon.host().command(daemon.binary()).arg("--run-dir").arg(daemon.run_dir());
    let output = command.args(["move", &far, "--to", "guest", "--process", "states"]).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    let is_told = told.contains("is lost") && told.contains("could not let it go on");
    expect!(!output.status.success() && is_told, "{told}");
    let kept = told.split_whitespace().map(|word| word.trim_end_matches(',')).find(|word| word.ends_with(".unread"));
    let Some(kept) = kept else { return Err(Error::Expectation(format!("nothing was kept: {told}"))) };
    let bytes = std::fs::read(kept).map_err(|error| Error::call("read", kept, error))?;
    expect!(bytes.len() == 1000, "{} bytes were kept", bytes.len());
    Ok(())
}

/// Multipath TCP (linux/in.h).
const MPTCP: &str = "262";

fn unmovable(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let mut ends = Ends::start(&three)?;
    let to = three.world.at_server.ipv4()?;
    let port = ends.near.does(&format!("listen {to}"))?;
    let open = |ends: &mut Ends, name: &str, port: &str, protocol: &str| -> Result<String> {
        ends.far.does(&format!("connect {name} {to} {port} {protocol}"))?;
        ends.near.does(&format!("accept {name}"))?;
        ends.far.does(&format!("name {name}"))
    };
    let to_guest = |far: &str| ["move", far, "--to", "guest", "--process", "states"].map(str::to_owned);
    let refused = |far: &str, why: &str| {
        let command = to_guest(far);
        stays(&three.donor_daemon, &command.each_ref().map(String::as_str), why)
    };

    step("urgent data that was not read; it moves once that is");
    let far = open(&mut ends, "urgent", &port, "0")?;
    ends.play(&["far say 1000", "near hear 1000", "far urge"], "urgent", false)?;
    wait_for(LONG, "the urgent data is there", || Ok(refused(&far, "urgent data").is_ok().then_some(())))?;
    ends.play(&["near urged", "near say 1000", "far hear 1000"], "urgent", false)?;
    ends.moves(&three, "urgent")?;
    ends.play(&["near say 1000", "far hear 2000", "far say 1000", "near hear 2000"], "urgent", true)?;

    step("urgent data that it has sent and that is not acknowledged; it moves once that is");
    let far = open(&mut ends, "urging", &port, "0")?;
    ends.play(&["near say 1000", "far hear 1000"], "urging", false)?;
    three.world.laptop.nft("table inet deaf { chain in { type filter hook prerouting priority 0; policy drop; }; }")?;
    ends.play(&["near urge", "near say 1000"], "urging", false)?;
    refused(&far, "urgent data (MSG_OOB)")?;
    three.world.laptop.nft("delete table inet deaf")?;
    wait_for(LONG, "it moves", || Ok(ends.moves(&three, "urging").is_ok().then_some(())))?;
    ends.play(&["far urged", "far hear 2000", "near say 1000", "far hear 3000"], "urging", true)?;

    step("one that its program has closed, with data unsent");
    let far = open(&mut ends, "closed", &port, "0")?;
    ends.play(&["near fill"], "closed", false)?;
    let said = ends.near.does("at closed")?;
    let said = said.split(' ').next().unwrap_or_default();
    ends.play(&["near close"], "closed", false)?;
    refused(&far, "no process of this host has it open any more")?;
    ends.far.does(&format!("hear closed {said}"))?;
    ends.play(&["far over", "far close"], "closed", false)?;

    step("Multipath TCP");
    let many = ends.near.does(&format!("listen {to} 0 16 {MPTCP}"))?;
    let far = open(&mut ends, "multipath", &many, MPTCP)?;
    ends.play(&["far say 1000", "near hear 1000"], "multipath", false)?;
    refused(&far, "Multipath TCP")?;
    let told = ends.near.fails("give multipath guest")?;
    expect!(told.starts_with("EPROTONOSUPPORT"), "{told}");
    ends.play(&["near say 1000", "far hear 1000", "near finish", "far over", "far finish"], "multipath", false)?;

    step("what is no socket, or none of a connection");
    for (what, why) in [("pipe", "ENOTSOCK"), ("unix", "EPROTONOSUPPORT"), ("raw", "EPROTONOSUPPORT")] {
        let told = ends.near.fails(&format!("give {what} guest"))?;
        expect!(told.starts_with(why), "{what}: {told}");
    }

    step("servers that this host alone meets");
    let own = [("listen", "listener", "127.0.0.1"), ("listen", "listener", "::1"), ("bind local", "udp", "127.0.0.1")];
    for (does, kind, at) in own {
        let port = ends.near.does(&format!("{does} {at}"))?;
        let at: IpAddr = at.parse().map_err(|_| Error::Usage(format!("{at} is no address")))?;
        let named = format!("{kind}:{}", SocketAddr::new(at, port.parse().unwrap_or_default()));
        refused(&named, "is met from this host alone")?;
    }

    step("what waits in a server's queue and has both ends on this host ends when that goes; the others follow");
    let port = ends.near.does("listen 0.0.0.0")?;
    let clients = [("loopback", "127.0.0.1".to_owned()), ("own", to.to_string())];
    for (name, at) in &clients {
        ends.near.does(&format!("connect {name} {at} {port}"))?;
    }
    ends.far.does(&format!("connect follows {to} {port}"))?;
    ends.near.does("pending 3")?;
    let named = format!("listener:{to}:{port}");
    three.donor_daemon.cli(&["move", &named, "--to", "guest", "--process", "states"])?;
    ends.next.does("serve")?;
    ends.next.does("collect 1")?;
    let far = ends.far.does("name follows")?;
    ends.next.does(&format!("called {} follows", far.rsplit(':').next().unwrap_or_default()))?;
    ends.play(&["far say 1000", "near hear 1000", "near say 1000", "far hear 1000"], "follows", true)?;
    for (name, _) in &clients {
        ends.near.does(&format!("refused {name}"))?;
        ends.near.does(&format!("close {name}"))?;
    }

    step("hosts that are strangers, and who was a friend");
    let name = "stranger";
    let port = ends.near.does(&format!("listen {to}"))?;
    let far = open(&mut ends, name, &port, "0")?;
    three.world.no_resets()?;
    three.donor_daemon.cli(&["community", "revoke", "guest"])?;
    refused(&far, "does not belong to this host's community")?;
    ends.play(&["near say 1000", "far hear 1000", "far say 1000", "near hear 1000"], name, false)?;

    step("what had moved to it ends, at either end (docs/protocol.md P-105)");
    for moved in ["urgent", "urging", "follows"] {
        let told = ends.next.fails(&format!("waiting {moved}"))?;
        expect!(told.starts_with("ECONNABORTED"), "the one that moved is told {told}");
        ends.play(&["far say 1", "far refused"], moved, true)?;
    }
    ends.play(&["near say 1000", "far hear 2000"], name, false)
}
