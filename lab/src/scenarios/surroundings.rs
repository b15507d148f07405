//! What else is on the network: neighbours, filters, other hosts.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::process::Signal;
use whimbrel_ipc::{Carrier, ConnectionState};

use super::records::figures;
use super::world::{
    LONG, RATE, REWRITTEN_WITHIN, SOME, World, all_run, carried_by, goes_on_since, is_native, site, step,
};
use super::{Scenario, scenario};
use crate::{
    FlowPair, Gateway, Join, Lab, MonoTime, PacketCount, PairOptions, Result, Side, Site, UdpRelay, Whimbrel, expect,
    wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("on-link-before", "the peer is on the same link until the laptop leaves it", on_link_before),
    scenario("on-link-after", "the laptop comes to the link that the peer is on", on_link_after),
    scenario(
        "strict-rp-filter",
        "both hosts drop packets that do not come from where their source is routed to",
        strict,
    ),
    scenario(
        "service-address",
        "the laptop talks to an address that the server has on lo, and that is routed there",
        service_address,
    ),
    scenario("new-owner", "another host gets the laptop's old address; both talk to the server", new_owner),
    scenario(
        "new-owner-on-link",
        "the same on the server's own link, with strict reverse path filtering",
        new_owner_on_link,
    ),
    scenario(
        "deprecated-address",
        "the laptop's IPv6 address is deprecated in favour of another, as privacy extensions do, and later ends",
        deprecated,
    ),
    scenario(
        "forgotten-key",
        "the server is set up anew: its new key is refused until the old one is forgotten",
        forgotten_key,
    ),
    scenario(
        "another-key",
        "the server alone is set up anew, while the laptop has a session with the former one: its new key is noticed",
        another_key,
    ),
    scenario("two-mobiles-one-nat", "two laptops behind one NAT; one leaves, then the other", two_mobiles),
    scenario(
        "neighbour-behind-nat",
        "a laptop leaves a NAT and comes back, again and again; who stays there, running nothing, loses nothing to it",
        neighbour,
    ),
    scenario("no-peer", "a server that runs nothing is left alone: it is asked a few times, then not again", no_peer),
    scenario("no-peer-silent", "the same where a firewall drops the question without an answer", no_peer_silent),
    scenario(
        "local-thief",
        "a local user of a host without Whimbrel opens port 2031 and claims its connections",
        thief,
    ),
];

/// UDP port of the control protocol.
const PORT: u16 = 2031;

fn on_link_before(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let a = world.a.clone();
    world.roam_server(&a)?;
    on_link(&mut world, false)
}

fn on_link_after(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let b = world.b.clone();
    world.roam_server(&b)?;
    on_link(&mut world, true)
}

/// The laptop moves from `a` to `b` and back, both families; one of them is the server's own network.
fn on_link(world: &mut World, server_in_b: bool) -> Result<()> {
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = [world.stream_to(world.at_server.ipv4()?)?, world.stream_to(world.at_server.ipv6()?)?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let (a, b) = (world.a.clone(), world.b.clone());
    for (there, site) in [(true, &b), (false, &a), (true, &b)] {
        step(if there { "to network b" } else { "to network a" });
        world.roam(site)?;
        for pair in &mut pairs {
            world.goes_on(pair)?;
        }
        if there {
            for daemon in [&client, &server] {
                rewritten_in_passing(daemon, &mut pairs)?;
            }
        }
        if there == server_in_b {
            // Neighbours talk directly: nothing of theirs goes over the uplink of the network that both are in.
            let uplink = site.link()?.count(|_, p| p.tcp().is_some());
            for pair in &mut pairs {
                pair.wait_progress(SOME, LONG)?;
            }
            expect!(uplink.get() == 0, "{} packets between neighbours went over the uplink", uplink.get());
        }
    }
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

/// What is rewritten crosses the host's output once, except for one packet every now and then that shows the next hop,
/// whether the old address of this end is gone or the other end has left the link.
fn rewritten_in_passing(daemon: &Whimbrel, pairs: &mut [FlowPair]) -> Result<()> {
    let look = || -> Result<[f64; 2]> {
        let all = figures(&daemon.cli(&["metrics"])?)?;
        let of = |verdict: &str| all.get(&format!("whimbrel_datapath_packets_total{{verdict=\"{verdict}\"}}")).copied();
        Ok(["rewritten_out", "redirected_out"].map(|verdict| of(verdict).unwrap_or(0.0)))
    };
    let start = look()?[0];
    wait_until(REWRITTEN_WITHIN, "what is moved is rewritten", || look().is_ok_and(|now| now[0] > start))?;
    let mut progress = || pairs.iter_mut().try_for_each(|pair| pair.wait_progress(SOME, LONG));
    // The routes follow the binding.
    progress()?;
    let before = look()?;
    progress()?;
    let after = look()?;
    let [rewritten, redirected] = [0, 1].map(|index| after[index] - before[index]);
    println!("    {redirected} of {rewritten} rewritten packets were sent again on {}", daemon.host().name());
    expect!(redirected * 4.0 < rewritten, "{redirected} of {rewritten} rewritten packets were sent again");
    Ok(())
}

fn strict(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let t = world.add(lab, crate::SiteSpec::named("t"))?;
    for host in [&world.laptop, &world.server] {
        host.strict_rp_filter()?;
    }
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    world.roam_server(&t)?;
    goes_on_since(&mut pair, &world.at_server)?;
    world.roam(&a)?;
    world.goes_on(&mut pair)?;
    // With both networks up as well: what is still on the way on the old one arrives there.
    let (before, moves) = (world.laptop.reverse_path_drops()?, client.status()?.newest_event);
    // The daemon sees late that there is another one, and the peer says something before that.
    client.process().signal(Signal::STOP)?;
    world.laptop.join(&world.b.network, &Join::by("eth0").metric(50))?;
    world.laptop.strict_rp_filter()?;
    world.server.ip(["addr add 2001:db8:7::77/64 dev eth0 nodad"])?;
    wait_for(LONG, "the server's daemon tells its addresses", || {
        let waits = world.laptop.command("ss").args(["-Hulmn", &format!("sport = :{PORT}")]).run()?;
        let waits = !waits.is_empty() && waits.split_whitespace().nth(1) != Some("0");
        Ok((waits || world.laptop.reverse_path_drops()? > before).then_some(()))
    })?;
    client.process().signal(Signal::CONT)?;
    client.wait_event("moved", moves, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    let dropped = world.laptop.reverse_path_drops()? - before;
    println!("    {dropped} packets dropped for the way they came");
    expect!(dropped == 0, "{dropped} packets were dropped by the reverse path filter");
    for host in [&world.laptop, &world.server] {
        expect!(host.sysctl_value("net.ipv4.conf.default.rp_filter")? == "1", "rp_filter was changed for good");
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn service_address(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let service: IpAddr = IpAddr::from([172, 31, 6, 6]);
    world.server.ip([format!("addr add {service}/32 dev lo")])?;
    world.s.router.ip([format!("route add {service} via {}", world.at_server.ipv4()?)])?;
    world.campus.core.ip([format!("route add {service} via {}", world.s.outside)])?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(service)?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    carried_by(&server, Side::Server, &pair, Carrier::Rewrite)?;
    pair.wait_progress(SOME, LONG)?;
    world.roam(&a)?;
    world.goes_on(&mut pair)?;
    is_native(&server, Side::Server, &pair)?;
    // Nothing is routed to the service address where the server goes.
    let t = world.add(lab, crate::SiteSpec::named("t"))?;
    world.roam_server(&t)?;
    goes_on_since(&mut pair, &world.at_server)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn new_owner(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let old = world.at.clone();
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    let other = lab.host("other")?;
    let join = Join { address_v4: old.v4, address_v6: old.v6, ..Join::default() };
    let at_other = other.join(&a.network, &join)?;
    expect!(at_other.v4 == old.v4, "the other host has another address");
    // The same port as well, so that both connections have the very same tuple in the laptop's and in the new owner's
    // eyes, except for the server's port.
    let options =
        PairOptions { bind: Some(SocketAddr::new(old.ipv4()?, pair.local().port())), ..PairOptions::rate(RATE) };
    let mut theirs = FlowPair::tcp(&other, &world.server, world.at_server.ipv4()?, &options)?;
    theirs.wait_progress(SOME, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    // The laptop itself can reach the new owner of its old address.
    let mut neighbours = FlowPair::tcp(&world.laptop, &other, at_other.ipv4()?, &PairOptions::rate(RATE))?;
    neighbours.wait_progress(SOME, LONG)?;
    world.finish(neighbours)?;
    world.finish(theirs)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// The server's routes lead the laptop's old addresses elsewhere, and yet it talks to whoever has them now, both ways
/// and in both families.
fn new_owner_on_link(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam_server(&a)?;
    world.server.strict_rp_filter()?;
    let (mut client, mut server) = world.daemons()?;
    let (v4, v6) = (world.at_server.ipv4()?, world.at_server.ipv6()?);
    let mut pairs = [world.stream_to(v4)?, world.stream_to(v6)?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let old = world.at.clone();
    world.roam(&b)?;
    for pair in &mut pairs {
        world.goes_on(pair)?;
    }
    let other = lab.host("other")?;
    let join = Join { address_v4: old.v4, address_v6: old.v6, ..Join::default() };
    let at_other = other.join(&a.network, &join)?;
    expect!(at_other.v4 == old.v4 && at_other.v6 == old.v6, "the other host has other addresses");
    for (theirs, servers) in [(at_other.ipv4()?, v4), (at_other.ipv6()?, v6)] {
        step(&format!("{theirs} and {servers}"));
        let port = pairs[usize::from(theirs.is_ipv6())].local().port();
        let options = PairOptions { bind: Some(SocketAddr::new(theirs, port)), ..PairOptions::rate(RATE) };
        let mut to = FlowPair::tcp(&other, &world.server, servers, &options)?;
        to.wait_progress(SOME, LONG)?;
        let mut from = FlowPair::tcp(&world.server, &other, theirs, &PairOptions::rate(RATE))?;
        from.wait_progress(SOME, LONG)?;
        other.command("ping").args(["-c", "2", "-W", "5", &servers.to_string()]).run()?;
        world.server.command("ping").args(["-c", "2", "-W", "5", &theirs.to_string()]).run()?;
        for pair in &mut pairs {
            pair.wait_progress(SOME, LONG)?;
        }
        world.finish(to)?;
        world.finish(from)?;
    }
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

/// What uses a deprecated address goes on as it was, with Whimbrel at the other end or without.
fn deprecated(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let bystander = lab.host("bystander")?;
    let at_bystander = bystander.join(&world.s.network, &Join::default())?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(world.at_server.ipv6()?)?;
    let mut other = FlowPair::tcp(&world.laptop, &bystander, at_bystander.ipv6()?, &PairOptions::rate(RATE))?;
    client.wait_introduced(&pair, LONG)?;
    let before = client.status()?.newest_event;
    let (old, device) = (world.at.ipv6()?, world.at.interface.clone());
    world.laptop.ip([
        format!("addr add 2001:db8:a::77/64 dev {device} nodad"),
        format!("addr change {old}/64 dev {device} preferred_lft 0"),
    ])?;
    let fresh: IpAddr = [0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x77].into();
    wait_until(LONG, "the daemon knows the new address", || {
        client.status().is_ok_and(|status| status.addresses.iter().any(|local| local.address == fresh))
    })?;
    for pair in [&mut pair, &mut other] {
        pair.wait_progress(SOME, LONG)?;
    }
    is_native(&client, Side::Client, &pair)?;
    let moves = client.events(before)?.iter().filter(|event| event.kind == "moving").count();
    expect!(moves == 0, "moved {moves} times though its address is still there");
    // What is new uses the new address; the old one ends.
    let mut later = world.stream_to(world.at_server.ipv6()?)?;
    expect!(later.local().ip() == fresh, "a new connection from {}", later.local());
    client.wait_introduced(&later, LONG)?;
    world.finish(other)?;
    world.laptop.ip([format!("addr del {old}/64 dev {device}")])?;
    for pair in [&mut pair, &mut later] {
        pair.wait_progress(SOME, LONG)?;
    }
    world.finish(later)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn forgotten_key(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    world.finish(pair)?;
    client.stop()?;
    server.stop()?;
    server.forget_everything()?;
    server.restart()?;
    client.restart()?;
    let refused = world.stream()?;
    let before = client.wait_event("key-mismatch", 0, LONG)?.number;
    client.cli(&["peers", "forget", &world.at_server.ipv4()?.to_string()])?;
    // Nothing is restarted, and nothing is waited for.
    let taken = world.stream()?;
    client.wait_introduced(&taken, LONG)?;
    let again = client.events(before)?.iter().filter(|event| event.kind == "key-mismatch").count();
    expect!(again == 0, "the new key was refused {again} times more");
    world.finish(taken)?;
    world.finish(refused)?;
    all_run(&mut [&mut client, &mut server])
}

fn another_key(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    world.finish(pair)?;
    server.stop()?;
    server.forget_everything()?;
    server.restart()?;
    // The laptop has its session still.
    let refused = world.stream()?;
    let before = client.wait_event("key-mismatch", 0, 3 * LONG)?.number;
    client.cli(&["peers", "forget", &world.at_server.ipv4()?.to_string()])?;
    let taken = world.stream()?;
    client.wait_introduced(&taken, LONG)?;
    let again = client.events(before)?.iter().filter(|event| event.kind == "key-mismatch").count();
    expect!(again == 0, "the new key was refused {again} times more");
    world.finish(taken)?;
    world.finish(refused)?;
    all_run(&mut [&mut client, &mut server])
}

fn two_mobiles(lab: &mut Lab) -> Result<()> {
    let nat = Gateway::Nat { random_ports: false };
    let mut world = World::new(lab, site("a").behind(nat), site("b"))?;
    let tablet = lab.host("tablet")?;
    let mut at_tablet = tablet.join(&world.a.network, &Join::default())?;
    let (mut client, mut server) = world.daemons()?;
    let mut third = tablet.whimbrel()?;
    let to = world.at_server.ipv4()?;
    let mut pair = world.stream()?;
    // The same source port: behind the NAT only its translation tells them apart.
    let bind = Some(SocketAddr::new(at_tablet.ipv4()?, pair.local().port()));
    let options = PairOptions { bind, ..PairOptions::rate(RATE) };
    let mut theirs = FlowPair::tcp(&tablet, &world.server, to, &options)?;
    expect!(pair.seen_by_server().ip() == theirs.seen_by_server().ip(), "not behind one NAT");
    client.wait_introduced(&pair, LONG)?;
    third.wait_introduced(&theirs, LONG)?;
    let b = world.b.clone();
    world.leaves_router(&pair);
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    let status = third.connection(theirs.local(), theirs.peer())?;
    expect!(
        status.is_some_and(|c| c.state == ConnectionState::Native),
        "the tablet's connection moved with the laptop's"
    );
    theirs.wait_progress(SOME, LONG)?;
    world.leaves_router(&theirs);
    at_tablet = tablet.roam(&at_tablet, &b.network, &Join::default())?;
    goes_on_since(&mut theirs, &at_tablet)?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(theirs)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server, &mut third])
}

/// The first port of Linux' own range (ip-sysctl), which the laptop has not been told another.
const DRAWN_FROM: u16 = 32_768;

fn neighbour(lab: &mut Lab) -> Result<()> {
    let nat = Gateway::Nat { random_ports: false };
    let mut world = World::new(lab, site("a").behind(nat), site("b"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&world.a.network, &Join::default())?;
    let (mut client, mut server) = world.daemons()?;
    let to = world.at_server.ipv4()?;
    let mut pair = world.stream()?;
    // From the port that the laptop calls its connection by (docs/protocol.md P-16), which the NAT keeps, and from any.
    let named = pair.local().port() - DRAWN_FROM + 1024;
    let bind = Some(SocketAddr::new(at_tablet.ipv4()?, named));
    let ports = [bind, None].map(|bind| PairOptions { bind, ..PairOptions::rate(RATE) });
    let theirs = ports.iter().map(|options| FlowPair::tcp(&tablet, &world.server, to, options));
    let mut theirs = theirs.collect::<Result<Vec<_>>>()?;
    expect!(pair.seen_by_server().ip() == theirs[0].seen_by_server().ip(), "not behind one NAT");
    expect!(theirs[0].seen_by_server().port() == named, "the NAT has not kept port {named}");
    client.wait_introduced(&pair, LONG)?;
    world.leaves_router(&pair);
    let (a, b) = (world.a.clone(), world.b.clone());
    for to in [&b, &a, &b, &a] {
        step(&format!("to {}", to.network.name()));
        world.roam(to)?;
        world.goes_on(&mut pair)?;
        for of_neighbour in &mut theirs {
            of_neighbour.wait_progress(SOME, LONG)?;
        }
    }
    for of_neighbour in theirs {
        world.finish(of_neighbour)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Counts what anybody sends to or from the control port on a site's uplink.
fn control_packets(site: &Site) -> Result<PacketCount> {
    Ok(site.link()?.count(|_, p| p.ports().is_some_and(|(from, to)| p.udp().is_some() && (from == PORT || to == PORT))))
}

/// Opens connections for ten seconds to a server that runs nothing; `most` control packets may be seen meanwhile.
fn ask_nobody(world: &mut World, most: u64) -> Result<()> {
    let mut client = world.laptop.whimbrel()?;
    let packets = control_packets(&world.s)?;
    let started = MonoTime::now();
    let mut pairs = Vec::new();
    while started + Duration::from_secs(10) > MonoTime::now() {
        let mut pair =
            FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &PairOptions::rate(100_000))?;
        pair.wait_progress(10_000, LONG)?;
        pairs.push(pair);
    }
    expect!(pairs.len() >= 5, "only {} connections in ten seconds", pairs.len());
    println!("    {} connections, {} control packets", pairs.len(), packets.get());
    expect!((1..=most).contains(&packets.get()), "{} control packets, at most {most} are allowed", packets.get());
    client.wait_event("nobody-there", 0, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    let fresh = world.stream()?;
    fresh.finish(LONG)?;
    all_run(&mut [&mut client])
}

fn no_peer(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    // The port unreachable ends it at once (docs/protocol.md P-10); one more may have been on its way.
    ask_nobody(&mut world, 2)
}

fn no_peer_silent(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    world.server.nft(
        "table inet quiet {\nchain input {\ntype filter hook input priority filter;\nudp dport 2031 drop;\n}\n}\n",
    )?;
    ask_nobody(&mut world, 3)
}

/// The victim runs nothing. A user there passes port 2031 to a daemon of his own elsewhere, which so has a session with
/// the server from the victim's address, and moves.
fn thief(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let accomplice = lab.host("accomplice")?;
    let at_c = accomplice.join(&c.network, &Join::default())?;
    let mut server = world.server.whimbrel()?;
    let mut thief = accomplice.whimbrel()?;
    let victim = world.at.ipv4()?;
    let relay = UdpRelay::start(&world.laptop, SocketAddr::new(victim, PORT), SocketAddr::new(at_c.ipv4()?, PORT))?;

    // The server opens the connection, so it asks the victim's address, and the accomplice's daemon answers.
    let mut pair = FlowPair::tcp(&world.server, &world.laptop, victim, &PairOptions::rate(RATE))?;
    server.wait_event("peer-reached", 0, LONG)?;
    // As many tries as an introduction gets, and their time-outs.
    pair.wait_progress(SOME, LONG)?;
    let until = MonoTime::now() + Duration::from_secs(8);
    let what = "introductions have had their time";
    wait_until(Duration::from_secs(9), what, || MonoTime::now() > until)?;
    let never =
        |c: &whimbrel_ipc::Connection| matches!(c.state, ConnectionState::Pending | ConnectionState::Unprotected);
    server.wait_connection(pair.local(), pair.peer(), LONG, "not introduced", never)?;

    let before = control_packets(&world.a)?;
    accomplice.roam(&at_c, &world.b.network, &Join::default())?;
    pair.wait_progress(4 * SOME, LONG)?;
    println!("    {} control packets by way of the victim after the accomplice moved", before.get());
    server.wait_connection(pair.local(), pair.peer(), LONG, "not introduced", never)?;
    world.finish(pair)?;
    drop(relay);
    all_run(&mut [&mut server, &mut thief])
}
