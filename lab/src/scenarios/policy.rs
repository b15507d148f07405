//! What the configuration wants for which connections.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use whimbrel_ipc::{Carrier, Connection, ConnectionState};

use super::world::{LONG, RATE, SOME, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{
    DhcpServer, Download, Error, FlowPair, Join, Lab, Lease, Leave, Nginx, PairOptions, Result, Side, Whimbrel, expect,
    wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "policy",
        "connections that either end leaves alone, by program and by port, stand still where a protected one goes on",
        policy,
    ),
    scenario(
        "address-conflict",
        "DHCP gives the laptop's old address to another host, which opens connections under the very names of moved ones",
        address_conflict,
    ),
    scenario("real-view", "a program that is to see it is told where its peer is, wherever that goes", real_view),
];

/// Waits until a daemon says why it leaves the connection with this remote port alone.
fn left_alone(daemon: &Whimbrel, remote_port: u16, why: &str) -> Result<()> {
    let so = |connection: &Connection| {
        connection.flow.remote.port() == remote_port
            && connection.state == ConnectionState::Unprotected
            && connection.reason.as_deref().is_some_and(|reason| reason.starts_with(why))
    };
    wait_for(LONG, &format!("a connection is left alone: {why}"), || {
        Ok(daemon.connections()?.iter().any(so).then_some(()))
    })
}

fn policy(lab: &mut Lab) -> Result<()> {
    const PORT: u16 = 7707;
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel_with("[[policy]]\nprogram = \"curl\"\nprotect = false\n")?;
    let mut server = world.server.whimbrel_with("[[policy]]\nlocal_port = \"7700-7799\"\nprotect = false\n")?;
    let mut protected = world.stream()?;
    let options = PairOptions { port: PORT, ..PairOptions::rate(RATE) };
    let mut refused = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options)?;
    let nginx = Nginx::start(&world.server, world.at_server.ipv4()?)?;
    let url = nginx.file("film", 8_000_000)?;
    let mut curl = Download::start(&world.laptop, &url, &["--limit-rate", "400k"])?;
    curl.wait_progress(100_000, LONG)?;

    client.wait_introduced(&protected, LONG)?;
    left_alone(&client, nginx.address().port(), "policy at line ")?;
    left_alone(&client, PORT, "the peer's policy leaves it alone")?;
    left_alone(&server, refused.seen_by_server().port(), "policy at line ")?;

    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut protected)?;
    carried_by(&client, Side::Client, &protected, Carrier::Rewrite)?;
    // What had arrived is read as slowly as everything.
    wait_for(LONG, "what is left alone gets nothing any more", || {
        let fetched = curl.size();
        protected.wait_progress(SOME, LONG)?;
        Ok((curl.size() == fetched).then_some(()))
    })?;
    let (fetched, sent) = (curl.size(), refused.status(Side::Server)?.received);
    protected.wait_progress(10 * SOME, LONG)?;
    expect!(curl.size() == fetched, "a connection that is left alone was moved");
    expect!(refused.status(Side::Server)?.received == sent, "a connection that the server leaves alone was moved");
    step("what is left alone stands still");

    let a = world.a.clone();
    world.roam(&a)?;
    world.goes_on(&mut protected)?;
    is_native(&client, Side::Client, &protected)?;
    refused.wait_progress(SOME, Duration::from_secs(60))?;
    curl.finish(&nginx.checksum(&world.server, "film")?, Duration::from_secs(90))?;
    step("and goes on at home, as without Whimbrel");

    // A new policy counts for new connections.
    let since = client.status()?.newest_event;
    client.reconfigure("[[policy]]\nprogram = \"nothing\"\nprotect = false\n")?;
    client.wait_event("reloaded", since, LONG)?;
    let url = nginx.file("short", 1_000_000)?;
    let curl = Download::start(&world.laptop, &url, &["--limit-rate", "400k"])?;
    wait_for(LONG, "curl's connection is introduced", || {
        let to_nginx = |c: &Connection| c.flow.remote == nginx.address() && c.state == ConnectionState::Native;
        Ok(client.connections()?.iter().any(to_nginx).then_some(()))
    })?;
    curl.finish(&nginx.checksum(&world.server, "short")?, LONG)?;
    for pair in [protected, refused] {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

fn real_view(lab: &mut Lab) -> Result<()> {
    const PORT: u16 = 7708;
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel_with(&format!("[[policy]]\nlocal_port = {PORT}\nview = \"real\"\n"))?;
    let to = world.at_server.ipv4()?;
    let failed = |call: &'static str, error| Error::call(call, "a socket", error);
    let listener = world.server.enter(|| TcpListener::bind((to, PORT)))?.map_err(|error| failed("bind", error))?;
    let near = world.laptop.enter(|| TcpStream::connect((to, PORT)))?.map_err(|error| failed("connect", error))?;
    let (far, home) = listener.accept().map_err(|error| failed("accept", error))?;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(LONG)).map_err(|error| failed("setsockopt", error))?;
    }
    let every: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    let answers = world.server.enter(|| UdpSocket::bind((every, PORT)))?.map_err(|error| failed("bind", error))?;
    let asks = world.laptop.enter(|| {
        let asks = UdpSocket::bind((every, 0))?;
        asks.connect((to, PORT)).map(|()| asks)
    })?;
    let asks = asks.map_err(|error| failed("connect", error))?;
    for socket in [&answers, &asks] {
        socket.set_read_timeout(Some(LONG)).map_err(|error| failed("setsockopt", error))?;
    }
    // Whom the server is shown as its sender, whom it answers there.
    let seen_as = || -> Result<SocketAddr> {
        let mut heard = [0; 32];
        asks.send(b"who am I?").map_err(|error| failed("send", error))?;
        let (_, from) = answers.recv_from(&mut heard).map_err(|error| failed("recvfrom", error))?;
        answers.send_to(from.to_string().as_bytes(), from).map_err(|error| failed("sendto", error))?;
        let length = asks.recv(&mut heard).map_err(|error| failed("recv", error))?;
        expect!(heard[..length] == *from.to_string().as_bytes(), "{from} got another answer");
        Ok(from)
    };
    let asker = seen_as()?;
    expect!(asker.ip() == home.ip(), "at home its datagrams are from {asker}");
    let asked = |stream: &TcpStream| -> Result<(SocketAddr, SocketAddr)> {
        let names = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
        names.map_err(|error| failed("getpeername", error))
    };
    let goes_on = |text: &[u8]| -> Result<()> {
        let mut heard = vec![0; text.len()];
        (&near).write_all(text).and_then(|()| (&far).read_exact(&mut heard)).map_err(|error| failed("read", error))?;
        expect!(heard == text, "{heard:?} came out");
        Ok(())
    };
    let usual = asked(&near)?;
    expect!(asked(&far)? == (usual.1, usual.0) && home == usual.0, "at home both see the same: {:?}", asked(&far)?);
    for daemon in [&client, &server] {
        wait_for(LONG, "the connections are introduced", || {
            let it = |c: &Connection| c.flow.local.port() == PORT || c.flow.remote.port() == PORT;
            let so = |c: &&Connection| it(c) && c.state == ConnectionState::Native;
            Ok((daemon.connections()?.iter().filter(so).count() == 2).then_some(()))
        })?;
    }

    let (a, b) = (world.a.clone(), world.b.clone());
    for network in [&b, &a] {
        world.roam(network)?;
        let there = SocketAddr::new(world.at.ipv4()?, home.port());
        wait_for(LONG, "the server's program is shown where the laptop is", || {
            Ok((asked(&far)?.1 == there).then_some(()))
        })?;
        goes_on(b"where are you now?")?;
        expect!(asked(&far)? == (usual.1, there), "the server's end is shown as {:?}", asked(&far)?);
        expect!(asked(&near)? == usual, "the laptop's policy wants no such view: {:?}", asked(&near)?);
        let sender = seen_as()?;
        expect!(sender == SocketAddr::new(there.ip(), asker.port()), "its datagrams are shown as from {sender}");
        // Whoever has read that can ask for the connection by it.
        let said = server.cli(&["why", &there.to_string()])?;
        let own = format!("tcp {} -> {}", usual.1, usual.0);
        expect!(said.contains(&own), "`why {there}` says {said}");
        step(&format!("it is shown {there}, and {sender} as the sender of datagrams"));
    }
    all_run(&mut [&mut client, &mut server])
}

fn address_conflict(lab: &mut Lab) -> Result<()> {
    const KEPT: (u16, u16) = (7601, 7701);
    const GIVEN: (u16, u16) = (7602, 7702);
    let mut world = World::new(lab, site("a"), site("b"))?;
    let no_address = Join { v4: false, v6: false, ..Join::default() };
    let address = world.at.v4.ok_or_else(|| Error::Usage("network a has no IPv4".into()))?;
    let mut dhcp = DhcpServer::start(&world.a.network, address)?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    world.at = world.laptop.join(&world.a.network, &no_address)?;
    let lease = Lease::take(&world.laptop, "wlan0", address, LONG)?;

    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel_with("[[policy]]\nlocal_port = 7702\nconflict = \"abort\"\n")?;
    let to = world.at_server.ipv4()?;
    let options = |(from, to): (u16, u16)| PairOptions {
        bind: Some(SocketAddr::new(address.into(), from)),
        port: to,
        ..PairOptions::rate(RATE)
    };
    let mut kept = FlowPair::tcp(&world.laptop, &world.server, to, &options(KEPT))?;
    let mut given = FlowPair::tcp(&world.laptop, &world.server, to, &options(GIVEN))?;
    for pair in [&kept, &given] {
        client.wait_introduced(pair, LONG)?;
    }
    lease.release(LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    for pair in [&mut kept, &mut given] {
        world.goes_on(pair)?;
    }

    let other = lab.host("other")?;
    other.join(&world.a.network, &no_address)?;
    let lease = Lease::take(&other, "wlan0", address, LONG)?;
    expect!(dhcp.process().is_running(), "udhcpd has ended");
    step("another host has leased the laptop's old address");
    let since = server.status()?.newest_event;
    // Under other names it has the server to itself, and the laptop too.
    let mut theirs = FlowPair::tcp(&other, &world.server, to, &options((7603, 7703)))?;
    let mut neighbours = FlowPair::tcp(&world.laptop, &other, address.into(), &PairOptions::rate(RATE))?;
    for pair in [&mut theirs, &mut neighbours, &mut kept, &mut given] {
        pair.wait_progress(SOME, LONG)?;
    }

    // The connection that has these names pre-empts them: the newcomer hears at once that it cannot have them.
    let refused = FlowPair::tcp(&other, &world.server, to, &options(KEPT));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    expect!(refused.to_lowercase().contains("refused"), "the newcomer was not refused: {refused}");
    let told = server.wait_event("address-conflict", since, LONG)?;
    expect!(told.fields.get("outcome").is_some_and(|outcome| outcome == "refused"), "{}", told.sentence);
    kept.wait_progress(SOME, LONG)?;
    step("a newcomer is refused, and the moved connection goes on");

    // The one that gives way is aborted at both ends, and the newcomer comes through.
    let mut newcomer = FlowPair::tcp(&other, &world.server, to, &options(GIVEN))?;
    let told = server.wait_event("address-conflict", told.number, LONG)?;
    expect!(told.fields.get("outcome").is_some_and(|outcome| outcome == "aborted"), "{}", told.sentence);
    for side in [Side::Client, Side::Server] {
        wait_for(LONG, &format!("{side:?} is told that its connection was aborted"), || {
            Ok(given.status(side)?.error.is_some().then_some(()))
        })?;
    }
    for pair in [&mut newcomer, &mut kept, &mut theirs] {
        pair.wait_progress(SOME, LONG)?;
    }
    step("a connection that gives way is aborted, and the newcomer has its names");
    for pair in [newcomer, kept, theirs, neighbours] {
        pair.finish(LONG)?;
    }
    lease.release(LONG)?;
    all_run(&mut [&mut client, &mut server])
}
