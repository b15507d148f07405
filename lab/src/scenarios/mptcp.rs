//! A program that speaks MPTCP, whose subflows are connections of TCP like others.

use std::net::IpAddr;

use whimbrel_ipc::ConnectionState;

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Cut, Join, Lab, Process, Result, Whimbrel, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "mptcp",
    "a connection of MPTCP with two subflows: one of the two networks goes and returns, and then both go for a third",
    mptcp,
)];

/// `PROGRAM listen ADDRESS` sends back what it gets; `PROGRAM connect ADDRESS` asks for a block after another, compares
/// what comes, and says how many it has had.
const MPTCP: &str = r#"
import os, socket, sys
address, mptcp = sys.argv[2], 262
end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, mptcp)
if sys.argv[1] == "listen":
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end.bind((address, 7790))
    end.listen()
    print("ready", flush=True)
    # Subflows that join come to the socket that listens.
    first = end.accept()[0]
    while True:
        data = first.recv(65536)
        if not data:
            break
        first.sendall(data)
else:
    end.connect((address, 7790))
    for count in range(1, 1 << 30):
        block = os.urandom(4000)
        end.sendall(block)
        back = b""
        while len(back) < len(block):
            data = end.recv(65536)
            if not data:
                sys.exit("the other end has closed")
            back += data
        if back != block:
            sys.exit("what came is not what was sent")
        print(count, flush=True)
"#;

fn mptcp(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let c = world.add(lab, site("c").v4_only())?;
    let second = world.laptop.join(&world.b.network, &Join::by("eth0").metric(500))?;
    let (mut client, mut server) = world.daemons()?;
    let own = [world.at.ipv4()?, second.ipv4()?];
    // A subflow from the second network's address leaves by that network.
    let router = world.b.network.spec().v4.map(|(router, _)| router.to_string()).unwrap_or_default();
    world.laptop.ip([
        format!("rule add from {} lookup 77", own[1]),
        format!("route add default via {router} dev eth0 table 77"),
        "mptcp limits set subflow 4 add_addr_accepted 4".to_owned(),
        format!("mptcp endpoint add {} dev eth0 subflow", own[1]),
    ])?;
    world.server.ip(["mptcp limits set subflow 4 add_addr_accepted 4".to_owned()])?;
    let there = world.at_server.ipv4()?;
    let program = |host: &crate::Host, what: &str| {
        host.command("python3").args(["-c", MPTCP, what, &there.to_string()]).label(what).spawn()
    };
    let mut listens = program(&world.server, "listen")?;
    wait_until(LONG, "the server listens", || listens.stdout().contains("ready"))?;
    let mut connects = program(&world.laptop, "connect")?;
    wait_for_all(&client, &own, "both subflows will outlive a move", ConnectionState::Native)?;

    step("the first network goes");
    world.at.access()?.cut(Cut::Carrier)?;
    go_on(&client, &connects, &own)?;

    step("it returns");
    world.at.access()?.restore()?;
    go_on(&client, &connects, &own)?;

    step("both go for a third");
    second.access()?.cut(Cut::Carrier)?;
    world.roam(&c)?;
    go_on(&client, &connects, &own)?;
    wait_for_all(&client, &own, "both subflows have moved", ConnectionState::Moved)?;
    connects.kill()?;
    wait_until(LONG, "the server's end has closed", || !listens.is_running())?;
    listens.wait(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

/// How the subflow from this address stands.
fn state_of(daemon: &Whimbrel, own: IpAddr) -> Result<Option<ConnectionState>> {
    let its = |flow: &whimbrel_ipc::Flow| flow.local.ip() == own && flow.remote.port() == 7790;
    let all = daemon.connections()?;
    Ok(all.into_iter().find(|connection| its(&connection.flow)).map(|connection| connection.state))
}

/// Waits until all subflows stand so.
fn wait_for_all(daemon: &Whimbrel, own: &[IpAddr], what: &str, wanted: ConnectionState) -> Result<()> {
    wait_for(LONG, what, || {
        let states = own.iter().map(|own| state_of(daemon, *own)).collect::<Result<Vec<_>>>()?;
        Ok(states.iter().all(|state| *state == Some(wanted)).then_some(()))
    })
}

/// Blocks go to and fro, and both subflows are there. The second one is bound to the interface of its endpoint.
fn go_on(daemon: &Whimbrel, connects: &Process, own: &[IpAddr]) -> Result<()> {
    let blocks = || connects.stdout().lines().count();
    let before = blocks();
    wait_until(LONG, "blocks go to and fro", || blocks() > before + 20)?;
    let states = own.iter().map(|own| state_of(daemon, *own)).collect::<Result<Vec<_>>>()?;
    println!("    the subflows are {states:?}");
    expect!(states.iter().all(Option::is_some), "a subflow has ended: {:?}", daemon.connections()?);
    Ok(())
}
