//! A UDP server, which takes what anybody sends, changes hosts.

use std::net::IpAddr;

use super::library::Program;
use super::relocation::Three;
use super::states::{Ends, PROGRAM, families, stays};
use super::world::{LONG, site, step};
use super::{Scenario, scenario};
use crate::{Error, Join, Lab, Result, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-udp-server",
        "a UDP socket that is not connected goes to another host with the datagrams of several senders, on to a third, where nothing that is sent meanwhile is lost, and home",
        |lab| server(lab, false),
    ),
    scenario("moved-udp-server-direct", "the same with senders that run Whimbrel", |lab| server(lab, true)),
    scenario("unmovable-udp-server", "UDP sockets that cannot move stay, and say why", unmovable),
];

fn server(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::new(lab, far_runs)?;
    let network = three.world.add(lab, site("t"))?;
    let third = lab.host("third")?;
    third.join(&network.network, &Join::by("eth0"))?;
    let mut third_daemon = third.whimbrel()?;
    three.donor_daemon.invite(&third_daemon, three.world.at_server.ipv4()?, "third")?;
    let knows = || {
        let said = three.acceptor_daemon.cli(&["community", "list"]);
        said.is_ok_and(|said| said.contains("third"))
    };
    wait_until(LONG, "the second host has heard of the third", knows)?;
    let mut ends = Ends::start(&three)?;
    let mut last = Program::run(&third, PROGRAM, &third_daemon.run_dir())?;
    last.does("receive third")?;
    ends.near.does("receive home")?;
    for (family, listen, to) in families(&three)? {
        step(&format!("{family}: two clients have been served, and have asked again"));
        let port = ends.near.does(&format!("bind server {listen}"))?;
        let [one, other, new, steady, late, back] =
            ["one", "other", "new", "steady", "late", "back"].map(|name| format!("{family}-{name}"));
        for name in [&one, &other] {
            client(&three, &mut ends, name, to, &port)?;
            ends.far.does(&format!("ask {name} 2"))?;
        }
        ends.near.does("answer server 4")?;
        for (name, count) in [(&one, 3), (&other, 5)] {
            ends.far.does(&format!("answered {name} 2"))?;
            ends.far.does(&format!("ask {name} {count}"))?;
        }
        ends.near.does("waiting server")?;
        let named = match to {
            IpAddr::V4(to) => format!("udp:{to}:{port}"),
            IpAddr::V6(to) => format!("udp:[{to}]:{port}"),
        };
        let moves = |daemon: &crate::Whimbrel, to: &str, process: &str| -> Result<()> {
            let said = daemon.cli(&["move", &named, "--to", to, "--process", process])?;
            expect!(said.lines().count() == 1 && said.contains("is with"), "{said}");
            Ok(())
        };
        moves(&three.donor_daemon, "guest", "states")?;
        // What is left of it is no server, and who says it twice does no harm.
        let again = three.donor_daemon.cli(&["move", &named, "--to", "guest", "--process", "states"]);
        let told = again.err().map(|error| error.to_string()).unwrap_or_default();
        expect!(told.contains("no socket"), "it is said once more: {told}");
        ends.next.does("take server 0 0")?;

        step("what they had asked is answered there, as is who comes later");
        ends.next.does("answer server 8")?;
        ends.far.does(&format!("answered {one} 5"))?;
        ends.far.does(&format!("answered {other} 7"))?;
        client(&three, &mut ends, &new, to, &port)?;
        ends.far.does(&format!("ask {new} 3"))?;
        ends.next.does("answer server 3")?;
        ends.far.does(&format!("answered {new} 3"))?;
        ends.near.does("close server")?;

        ends.next.does("serve_on server")?;
        if family == "v4" {
            step("the daemons are killed, and nobody says meanwhile that there is no server");
            client(&three, &mut ends, &steady, to, &port)?;
            ends.far.does(&format!("keep_asking {steady}"))?;
            three.acceptor_daemon.kill()?;
            three.donor_daemon.kill()?;
            three.acceptor_daemon.restart()?;
            three.donor_daemon.restart()?;
            ends.near.does("receive home")?;
            ends.next.does("receive states")?;
            ends.far.does(&format!("insist {one}"))?;
            ends.far.does(&format!("stop_asking {steady}"))?;
            ends.far.does(&format!("close {steady}"))?;
        }

        step("it goes on to a third host while clients ask without a pause");
        for name in [&other, &new] {
            ends.far.does(&format!("keep_asking {name}"))?;
        }
        ends.next.does("has_served 20")?;
        moves(&three.acceptor_daemon, "third", "third")?;
        ends.next.does("is_told")?;
        last.does("take server 0 0")?;
        last.does("serve_on server")?;
        client(&three, &mut ends, &late, to, &port)?;
        ends.far.does(&format!("keep_asking {late}"))?;
        last.does("has_served 100")?;
        for name in [&other, &new, &late] {
            let asked = ends.far.does(&format!("stop_asking {name}"))?;
            all_came(name, &asked, |port| {
                [&mut ends.next, &mut last].map(|program| program.does(&format!("served {port}"))).into_iter().collect()
            })?;
        }
        last.does("serve_no_more")?;
        step("and home");
        wait_for(LONG, "it comes home", || Ok(moves(&third_daemon, "desk", "home").is_ok().then_some(())))?;
        ends.near.does("take server 0 0")?;
        client(&three, &mut ends, &back, to, &port)?;
        ends.far.does(&format!("ask {back} 2"))?;
        ends.near.does("answer server 2")?;
        ends.far.does(&format!("answered {back} 2"))?;
        ends.near.does("close server")?;
        ends.next.does("close server")?;
        last.does("close server")?;
        for name in [&one, &other, &new, &late, &back] {
            ends.far.does(&format!("close {name}"))?;
        }
    }
    third_daemon.stop()?;
    Ok(())
}

/// Waits until all that a client has asked has come to the server, each once. `asked`: what `stop_asking` has said.
/// `served`: what it has asked by this port, of each host that had the server, which may know of more than that.
pub(super) fn all_came(name: &str, asked: &str, mut served: impl FnMut(u32) -> Result<Vec<String>>) -> Result<()> {
    let words: Vec<u32> = asked.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[port, first, next] = words.as_slice() else { return Err(Error::Usage(asked.to_owned())) };
    let mut numbers: Vec<u32> = Vec::new();
    let all = || -> Result<Option<()>> {
        let told = served(port)?;
        let every = told.iter().flat_map(|told| told.split(',')).filter_map(|number| number.parse().ok());
        numbers = every.filter(|number| (first..next).contains(number)).collect();
        numbers.sort_unstable();
        Ok(numbers.iter().copied().eq(first..next).then_some(()))
    };
    let waited = wait_for(LONG, "all that was asked came to the server", all);
    let lost: Vec<u32> = (first..next).filter(|number| !numbers.contains(number)).take(9).collect();
    expect!(waited.is_ok(), "{name}: of {first} to {next}, {} came, without {lost:?}", numbers.len());
    Ok(())
}

/// A client of the server there.
fn client(three: &Three, ends: &mut Ends, name: &str, to: IpAddr, port: &str) -> Result<()> {
    let at = &three.world.at;
    let from = if to.is_ipv4() { at.ipv4()? } else { at.ipv6()? };
    ends.far.does(&format!("bind {name} {from}"))?;
    ends.far.does(&format!("aim {name} {to} {port}")).map(drop)
}

fn unmovable(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let mut ends = Ends::start(&three)?;
    let to = three.world.at_server.ipv4()?;
    for (what, why) in [
        ("group", "multicast group"),
        ("device", "bound to an interface"),
        ("corked", "corked"),
        ("shared", "several sockets share"),
    ] {
        step(what);
        let port = ends.near.does(&format!("bind {what} 0.0.0.0"))?;
        ends.near.does(&format!("spoil {what}"))?;
        stays(
            &three.donor_daemon,
            &["move", &format!("udp:{to}:{port}"), "--to", "guest", "--process", "states"],
            why,
        )?;
        ends.near.does(&format!("close {what}"))?;
    }
    step("none at all");
    let named = format!("udp:{to}:9");
    let said = three.donor_daemon.cli(&["move", &named, "--to", "guest", "--process", "states"]);
    let why = "no socket of this host waits for clients there";
    expect!(said.as_ref().is_err_and(|error| error.to_string().contains(why)), "not `{why}`: {said:?}");
    Ok(())
}
