//! Servers with the address of an anchor go from host to host, and whoever comes to that address reaches them where
//! they are.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_ipc::EventRecord;

use super::anchor::{Four, LENDS, PORT, address};
use super::library::Program;
use super::states::PROGRAM;
use super::udp_server::all_came;
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{Lab, Result, Whimbrel, expect, patience, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "anchored-listener",
        "a socket that listens at an anchor's port goes to a third host, to the anchor itself and back while clients come without a pause: none waits or is refused, and what was open stays",
        |lab| listener(lab, false),
    ),
    scenario("anchored-listener-ipv6", "the same over IPv6", |lab| listener(lab, true)),
    scenario(
        "anchored-udp-server",
        "a UDP server at an anchor's port goes to a third host and back while clients ask without a pause: nothing is lost or answered twice; then to the anchor itself",
        udp_server,
    ),
];

/// Clients that come at the same time, over and over.
const CALLERS: usize = 6;
/// How many are to reach a socket where it has come to.
const SOME: usize = 20;
/// How long one of them may wait: a lost first segment is sent again after a second.
const SOON: Duration = Duration::from_secs(1);

/// A program on each host, and the far end's.
struct Programs {
    guest: Program,
    third: Program,
    desk: Program,
    far: Program,
}

impl Programs {
    fn start(four: &Four, ipv6: bool) -> Result<Self> {
        let guest = Program::run_behind(&four.guest, PROGRAM, "desk", PORT, ipv6)?;
        let third = Program::run(four.third.host(), PROGRAM, &four.third.run_dir())?;
        let desk = Program::run(&four.world.server, PROGRAM, &four.anchor.run_dir())?;
        let far = Program::run(&four.world.laptop, PROGRAM, &four.anchor.run_dir())?;
        Ok(Self { guest, third, desk, far })
    }

    fn all(&mut self) -> [(&mut Program, &'static str); 3] {
        [(&mut self.guest, "guest"), (&mut self.third, "third"), (&mut self.desk, "desk")]
    }

    fn receive(&mut self) -> Result<()> {
        self.all().into_iter().try_for_each(|(program, name)| program.does(&format!("receive {name}")).map(drop))
    }

    fn on(&mut self, host: &str) -> &mut Program {
        match host {
            "guest" => &mut self.guest,
            "third" => &mut self.third,
            _ => &mut self.desk,
        }
    }
}

fn daemon<'a>(four: &'a Four, host: &str) -> &'a Whimbrel {
    match host {
        "guest" => &four.guest,
        "third" => &four.third,
        _ => &four.anchor,
    }
}

fn gives(four: &Four, from: &str, what: &str, to: &str) -> Result<()> {
    let said = daemon(four, from).cli(&["move", what, "--to", to, "--process", to])?;
    expect!(said.lines().count() == 1 && said.contains("is with"), "{said}");
    Ok(())
}

fn listener(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(address(&four.world.at_server, ipv6)?, PORT);
    let mut programs = Programs::start(&four, ipv6)?;
    let echoed = |programs: &mut Programs, name: &str| -> Result<()> {
        let said = programs.far.does(&format!("say {name} 3000"))?;
        programs.far.does(&format!("hear {name} {said}")).map(drop)
    };
    let attend = |programs: &mut Programs| -> Result<()> {
        programs.receive()?;
        programs.all().into_iter().try_for_each(|(program, _)| program.does("attend_received").map(drop))
    };
    attend(&mut programs)?;
    programs.guest.does(&format!("listen {} {PORT}", at.ip()))?;
    programs.guest.does("attend")?;
    programs.far.does(&format!("connect old {} {PORT}", at.ip()))?;
    echoed(&mut programs, "old")?;
    let passed_on = || four.anchor.cli(&["anchor"]).is_ok_and(|said| said.contains("passed on to"));
    wait_until(LONG, "the first connection is claimed", passed_on)?;

    let mut open = vec!["old".to_owned()];
    let legs = [("guest", "third"), ("third", "desk"), ("desk", "guest"), ("guest", "third"), ("third", "guest")];
    for (number, (from, to)) in legs.into_iter().enumerate() {
        step(&format!("it goes from {from} to {to}"));
        programs.far.does(&format!("keep_calling {} {PORT} {CALLERS}", at.ip()))?;
        programs.on(from).does(&format!("attended {SOME}"))?;
        let young = format!("young-{number}");
        programs.far.does(&format!("connect {young} {} {PORT}", at.ip()))?;
        open.push(young);
        // Where it was before its port is another's until what is left of it there has ended.
        let moved = || Ok(gives(&four, from, &format!("listener:{at}"), to).is_ok().then_some(()));
        wait_for(LONG, "it is moved", moved)?;
        programs.on(to).does(&format!("attended {SOME}"))?;
        let told = programs.far.does("stop_calling")?;
        println!("    {told} ms: calls, and the longest");
        programs.on(from).does("left")?;
        let longest: u64 = told.split(' ').nth(1).and_then(|longest| longest.parse().ok()).unwrap_or(u64::MAX);
        expect!(Duration::from_millis(longest) < SOON * patience(), "a client waited for {longest} ms");
        for name in &open {
            echoed(&mut programs, name)?;
        }
        if number == 0 || number == 2 {
            step("all daemons are killed");
            let mut daemons = [&mut four.anchor, &mut four.guest, &mut four.third];
            daemons.iter_mut().try_for_each(|daemon| daemon.kill())?;
            daemons.iter_mut().try_for_each(|daemon| daemon.restart())?;
            attend(&mut programs)?;
            let anew = format!("anew-{number}");
            programs.far.does(&format!("connect {anew} {} {PORT}", at.ip()))?;
            open.push(anew);
            for name in &open {
                echoed(&mut programs, name)?;
            }
        }
    }
    // Who was started anew does not ask for an endpoint that had gone on from it.
    let refused = |event: &EventRecord| event.sentence.contains("lending endpoints");
    let refused: Vec<EventRecord> = four.anchor.events(0)?.into_iter().filter(refused).collect();
    expect!(refused.is_empty(), "{refused:?}");
    step("its program ends, and others may have the port");
    for name in &open {
        programs.far.does(&format!("close {name}"))?;
    }
    for (program, _) in programs.all() {
        program.process.kill()?;
    }
    let returned = || four.anchor.cli(&["anchor"]).is_ok_and(|said| !said.contains("lent to"));
    // Resets are not counted: who acknowledges the end of a call twice hears one, as of any server that has closed.
    wait_until(LONG, "the leases are returned", returned)
}

fn udp_server(lab: &mut Lab) -> Result<()> {
    let four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(address(&four.world.at_server, false)?, PORT);
    let mut programs = Programs::start(&four, false)?;
    programs.receive()?;
    programs.guest.does(&format!("bind server {} {PORT}", at.ip()))?;
    programs.guest.does("serve_on server")?;
    let clients = ["one", "other"];
    for name in clients {
        client(&four, &mut programs, name, at.ip())?;
        programs.far.does(&format!("ask {name} 3"))?;
        programs.far.does(&format!("answered {name} 3"))?;
    }
    for (number, (from, to)) in [("guest", "third"), ("third", "guest")].into_iter().enumerate() {
        step(&format!("it goes from {from} to {to} while clients ask without a pause"));
        for name in clients {
            programs.far.does(&format!("keep_asking {name}"))?;
        }
        programs.on(from).does("has_served 20")?;
        gives(&four, from, &format!("udp:{at}"), to)?;
        programs.on(to).does("take server 0 0")?;
        programs.on(to).does("serve_on server")?;
        let late = format!("late-{number}");
        client(&four, &mut programs, &late, at.ip())?;
        programs.far.does(&format!("keep_asking {late}"))?;
        programs.on(to).does("has_served 100")?;
        for name in clients.into_iter().chain([late.as_str()]) {
            let asked = programs.far.does(&format!("stop_asking {name}"))?;
            all_came(name, &asked, |port| {
                [from, to].map(|host| programs.on(host).does(&format!("served {port}"))).into_iter().collect()
            })?;
        }
        for program in [from, to] {
            programs.on(program).does("serve_no_more")?;
        }
        programs.on(from).does("close server")?;
    }
    for (from, to) in [("guest", "desk"), ("desk", "third")] {
        step(&format!("it goes from {from} to {to}"));
        gives(&four, from, &format!("udp:{at}"), to)?;
        programs.on(to).does("take server 0 0")?;
        programs.on(to).does("serve_on server")?;
        let new = format!("new-{to}");
        client(&four, &mut programs, &new, at.ip())?;
        programs.far.does(&format!("ask {new} 5"))?;
        programs.far.does(&format!("answered {new} 5"))?;
        programs.on(from).does("close server")?;
    }
    Ok(())
}

/// A client of the server there.
fn client(four: &Four, programs: &mut Programs, name: &str, to: IpAddr) -> Result<()> {
    programs.far.does(&format!("bind {name} {}", four.world.at.ipv4()?))?;
    programs.far.does(&format!("aim {name} {to} {PORT}")).map(drop)
}
