//! A router that speaks for the hosts behind it, which run nothing: the laptop roams, and they never notice.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use whimbrel_ipc::{Carrier, ConnectionState};

use super::library::{Program, far_end, is_over};
use super::world::{LONG, RATE, SOME, World, all_run, backed_off, carried_by, is_bare, is_native, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, Direction, FlowPair, Gateway, Join, Lab, Leave, PacketCount, PairOptions, Result, Side, SiteSpec,
    Whimbrel, expect, patience, wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "gateway",
        "the server runs nothing and its router speaks for it: moves, an outage, a killed daemon, and home again",
        |lab| gateway(lab, false),
    ),
    scenario("gateway-ipv6", "the same over IPv6", |lab| gateway(lab, true)),
    scenario(
        "gateway-nat",
        "the laptop roams into a NAT and out of it; the server behind its router runs nothing",
        gateway_nat,
    ),
    scenario(
        "gateway-rebooted",
        "the router is started anew while the laptop is away, in the open and behind a NAT: what passes it goes on, and moves on",
        rebooted,
    ),
    scenario(
        "gateway-narrow",
        "the laptop roams to where the path is narrower than the router's link: what is too long for the tunnel there is cut",
        narrow,
    ),
    scenario(
        "gateway-opened",
        "a host behind the router has opened the connection; the laptop roams, and comes home",
        opened,
    ),
    scenario(
        "gateway-given",
        "a connection with a host behind the router is given to another host, and back; what was not given moves on",
        |lab| given(lab, false),
    ),
    scenario("gateway-given-ipv6", "the same over IPv6", |lab| given(lab, true)),
    scenario(
        "gateway-stranger",
        "somebody else has the laptop's former address, and Whimbrel: nothing of the laptop's goes there",
        stranger,
    ),
];

/// UDP port of the control protocol.
const PORT: u16 = 2031;
/// The server's networks.
const BEHIND: &str = "[gateway]\nbehind = [\"192.0.2.0/25\", \"2001:db8:5::/64\"]\nanybody = true\n";
/// What TCP's timer has to have grown to when an outage ends: far more than a hand-off takes.
const BACKED_OFF: Duration = Duration::from_secs(6);
/// Connections beside that one. Where the outage cuts into one's segments, by chance, decides what its sender sends
/// again, and whether it waits for an answer to that.
const MORE: usize = 4;
/// Time in which a stream has to go on. The server is a stock host: that its timer runs out for the first time nobody
/// can hurry, as nobody knows it to wait; and on a busy machine it has measured long round trips.
const SOON: Duration = Duration::from_secs(3);
/// How long a connection that has ended may be counted.
const COUNTED: Duration = Duration::from_secs(2);
/// Datagrams that must arrive in both directions: one second's.
const DATAGRAMS: u64 = 300;
/// A connection's ports, the laptop's first.
const PORTS: (u16, u16) = (7610, 7710);

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// In order, by this end first.
    By(Side),
    /// The server's program is killed with something unread, so that its kernel resets the connection.
    Killed,
}

/// The laptop, a server that runs nothing, and the server's router, which speaks for it.
struct Three {
    world: World,
    client: Whimbrel,
    gateway: Whimbrel,
    at_server: IpAddr,
    /// Datagrams of the control protocol on the server's own link.
    control: PacketCount,
}

impl Three {
    fn new(lab: &mut Lab, a: SiteSpec, b: SiteSpec, ipv6: bool) -> Result<Self> {
        Self::in_world(World::new(lab, a, b)?, ipv6, "")
    }

    /// `config`: the laptop's.
    fn in_world(world: World, ipv6: bool, config: &str) -> Result<Self> {
        let at_server = if ipv6 { world.at_server.ipv6()? } else { world.at_server.ipv4()? };
        let of_control = |packet: &crate::Packet<'_>| {
            packet.udp().is_some() && packet.ports().is_some_and(|(from, to)| from == PORT || to == PORT)
        };
        let control = world.at_server.access()?.count(move |_, packet| of_control(packet));
        let (client, gateway) = (world.laptop.whimbrel_with(config)?, world.s.router.whimbrel_with(BEHIND)?);
        Ok(Self { world, client, gateway, at_server, control })
    }

    fn goes_on(&self, pair: &mut FlowPair, at: &Attachment) -> Result<()> {
        pair.wait_progress(SOME, LONG)?;
        for side in [Side::Client, Side::Server] {
            let took = pair.silence(side, at.usable_at)?;
            println!("    {side:?} received nothing for {:.1} ms once the address was there", ms(took));
            expect!(took.is_some_and(|t| t < SOON * patience()), "{side:?} received nothing for {took:?}");
        }
        Ok(())
    }

    /// The connections that the router counts: in all, of its peers, and those that it lists.
    fn counted(&self) -> Result<[usize; 3]> {
        let of_peers = self.gateway.peers()?.iter().map(|peer| peer.flows.introduced).sum();
        let listed = self.gateway.connections()?.iter().filter(|connection| connection.peer.is_some()).count();
        Ok([self.gateway.status()?.counts.introduced, of_peers, listed])
    }

    /// The router counts a connection until it ends, and no longer.
    fn counts_until(&mut self, pair: FlowPair, end: End) -> Result<()> {
        let before = self.counted()?;
        match end {
            End::By(side) => drop(pair.finish_from(side, LONG)?),
            End::Killed => {
                let mut pair = pair;
                pair.process(Side::Server).kill()?;
                let what = "the laptop's program has heard that its connection is reset";
                wait_for(LONG, what, || Ok(pair.status(Side::Client)?.error.map(drop)))?;
            }
        }
        let began = Instant::now();
        let after = before.map(|count| count.saturating_sub(1));
        wait_for(COUNTED, &format!("{after:?} connections are counted once one has ended ({end:?})"), || {
            Ok((self.counted()? == after).then_some(()))
        })?;
        println!("    {end:?}: not counted any more after {:.0} ms", ms(Some(began.elapsed())));
        Ok(())
    }

    /// Nobody has said anything of Whimbrel's to the server, and nobody has crashed.
    fn finish(mut self, pairs: Vec<FlowPair>) -> Result<()> {
        for pair in pairs {
            pair.finish(LONG)?;
        }
        self.world.no_resets()?;
        expect!(self.control.get() == 0, "the server was sent {} datagrams of the protocol", self.control.get());
        all_run(&mut [&mut self.client, &mut self.gateway])
    }
}

fn gateway(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let mut three = Three::new(lab, site("a"), site("b"), ipv6)?;
    let c = three.world.add(lab, site("c"))?;
    let (laptop, server) = (three.world.laptop.clone(), three.world.server.clone());
    let of_router = three.world.s.network.spec();
    let router: IpAddr = if ipv6 {
        of_router.v6.map(|(address, _)| address.into())
    } else {
        of_router.v4.map(|(address, _)| address.into())
    }
    .ok_or_else(|| crate::Error::Usage("the router has no address".into()))?;
    // The router is met at an address of its own first: what goes there can be rewritten.
    let mut own = FlowPair::tcp(&laptop, &three.world.s.router, router, &PairOptions::rate(RATE / 4))?;
    three.client.wait_introduced(&own, LONG)?;
    let mut stream = three.world.stream_to(three.at_server)?;
    let mut datagrams = FlowPair::udp(&laptop, &server, three.at_server, &PairOptions::rate(RATE / 8))?;
    for pair in [&stream, &datagrams] {
        three.client.wait_introduced(pair, LONG)?;
    }
    is_native(&three.gateway, Side::Server, &stream)?;
    step("what has ended is not counted");
    let mut ending = Vec::new();
    for end in [End::By(Side::Client), End::By(Side::Server), End::Killed] {
        for _ in 0..2 {
            let pair = three.world.stream_to(three.at_server)?;
            three.client.wait_introduced(&pair, LONG)?;
            ending.push((pair, end));
        }
        let (pair, end) = ending.remove(ending.len() - 1);
        three.counts_until(pair, end)?;
    }
    three.world.forget_resets();

    step("to another network");
    let (a, b) = (three.world.a.clone(), three.world.b.clone());
    three.world.roam(&b)?;
    for pair in [&mut stream, &mut own] {
        three.goes_on(pair, &three.world.at)?;
    }
    datagrams.wait_progress(DATAGRAMS, LONG)?;
    carried_by(&three.client, Side::Client, &stream, Carrier::Rewrite)?;
    carried_by(&three.gateway, Side::Server, &stream, Carrier::Rewrite)?;
    is_bare(&b, &mut stream)?;
    step("nor is it where it had moved");
    for (mut pair, end) in ending {
        three.goes_on(&mut pair, &three.world.at)?;
        three.counts_until(pair, end)?;
    }
    three.world.forget_resets();

    step("a connection that begins there is at home there");
    let mut fresh = three.world.stream_to(three.at_server)?;
    three.client.wait_introduced(&fresh, LONG)?;
    is_native(&three.gateway, Side::Server, &fresh)?;
    fresh.wait_progress(SOME, LONG)?;

    step("the router's daemon is killed");
    three.gateway.kill()?;
    for pair in [&mut stream, &mut fresh] {
        pair.wait_progress(SOME, LONG)?;
    }
    three.gateway.restart()?;
    for pair in [&mut stream, &mut fresh, &mut own] {
        pair.wait_progress(SOME, LONG)?;
    }
    datagrams.wait_progress(DATAGRAMS, LONG)?;

    step("an outage, until the server's own timer is long");
    let quieter = PairOptions::rate(RATE / 16);
    let mut several = Vec::new();
    for _ in 0..MORE {
        let pair = FlowPair::tcp(&laptop, &server, three.at_server, &quieter)?;
        three.client.wait_introduced(&pair, LONG)?;
        several.push(pair);
    }
    for pair in several.iter_mut().chain([&mut own, &mut stream]) {
        pair.set_rate(Side::Client, Some(0))?;
    }
    three.world.laptop.leave(&three.world.at, Leave::Orderly)?;
    let due = backed_off(&mut stream, Side::Server, BACKED_OFF)?;
    three.world.at = three.world.laptop.join(&c.network, &Join::default())?;
    let usable = three.world.at.usable_at;
    expect!(due > usable + BACKED_OFF / 2, "this machine is too slow to tell: the address came when the timer ran out");
    let left = due - usable;
    for pair in several.iter_mut().chain([&mut stream]) {
        pair.wait_progress_of(&[Side::Client], SOME / 10, LONG)?;
        let first = pair.arrivals(Side::Client, usable)?.first().map(|(at, _)| at.since(usable));
        step(&format!(
            "the laptop received something {:.0} ms after the address was there; TCP's timer would have taken {:.0} ms",
            ms(first),
            ms(Some(left))
        ));
        expect!(first.is_some_and(|it| it < left / 2), "nothing came for {first:?}, and the timer takes {left:?}");
    }
    for pair in several {
        pair.finish(LONG)?;
    }
    stream.set_rate(Side::Client, Some(RATE))?;

    step("home again");
    three.world.roam(&a)?;
    for pair in [&mut stream, &mut fresh] {
        pair.wait_progress(SOME, LONG)?;
    }
    datagrams.wait_progress(DATAGRAMS, LONG)?;
    is_native(&three.client, Side::Client, &stream)?;
    is_native(&three.gateway, Side::Server, &stream)?;
    datagrams.check()?;
    drop(datagrams);
    three.finish(vec![stream, fresh, own])
}

fn given(lab: &mut Lab, ipv6: bool) -> Result<()> {
    const BLOCKS: u32 = 20;
    let mut three = Three::new(lab, site("a"), site("b"), ipv6)?;
    let c = three.world.add(lab, site("c"))?;
    let guest = lab.host("guest")?;
    let at_guest = guest.join(&c.network, &Join::by("eth0"))?.ipv4()?;
    let mut there = guest.whimbrel()?;
    let (laptop, at_laptop) = (three.world.laptop.clone(), three.world.at.ipv4()?);
    three.client.befriend(&there, at_laptop)?;
    let mut stream = three.world.stream_to(three.at_server)?;
    let (mut far, port) = far_end(&three.world.server, three.at_server)?;
    let mut first = Program::start(&laptop, &three.client)?;
    let local: u16 = first.does(&format!("connect {} {port}", three.at_server))?.parse().unwrap_or_default();
    first.does(&format!("talk {BLOCKS}"))?;
    three.client.wait_introduced(&stream, LONG)?;
    let own = if ipv6 { three.world.at.ipv6()? } else { at_laptop };
    let (here, remote) = (SocketAddr::new(own, local), SocketAddr::new(three.at_server, port));
    let native = |connection: &whimbrel_ipc::Connection| connection.state == ConnectionState::Native;
    three.client.wait_connection(here, remote, LONG, "introduced", native)?;

    step("to a host elsewhere");
    let mut second = Program::start(&guest, &there)?;
    second.does("receive films")?;
    first.does(&format!("give {at_guest} films"))?;
    second.does("received")?;
    second.does(&format!("talk {BLOCKS}"))?;
    stream.wait_progress(SOME, LONG)?;
    let kept = three.world.s.router.ip_output("-o addr show dev lo")?;
    expect!(!kept.contains(&three.at_server.to_string()), "the router has the address of who is behind it: {kept}");

    step("the router's daemon is killed, and the laptop roams with what it has not given");
    three.gateway.kill()?;
    three.gateway.restart()?;
    let b = three.world.b.clone();
    three.world.roam(&b)?;
    stream.wait_progress(SOME, LONG)?;
    second.does(&format!("talk {BLOCKS}"))?;

    step("and back");
    first.does("receive films")?;
    let at_laptop = three.world.at.ipv4()?;
    second.does(&format!("give {at_laptop} films"))?;
    first.does("received")?;
    first.does(&format!("talk {BLOCKS}"))?;
    first.does("close")?;
    is_over(&mut far, 4 * BLOCKS)?;
    all_run(&mut [&mut there])?;
    three.finish(vec![stream])
}

fn gateway_nat(lab: &mut Lab) -> Result<()> {
    let nat = site("b").behind(Gateway::Nat { random_ports: false });
    let mut three = Three::new(lab, site("a"), nat, false)?;
    let mut stream = three.world.stream_to(three.at_server)?;
    three.client.wait_introduced(&stream, LONG)?;
    let (a, b) = (three.world.a.clone(), three.world.b.clone());
    step("into a NAT");
    three.world.roam(&b)?;
    three.goes_on(&mut stream, &three.world.at)?;
    carried_by(&three.client, Side::Client, &stream, Carrier::Tunnel)?;
    carried_by(&three.gateway, Side::Server, &stream, Carrier::Tunnel)?;
    step("a connection that begins there");
    let mut fresh = three.world.stream_to(three.at_server)?;
    three.client.wait_introduced(&fresh, LONG)?;
    step("the router's daemon is killed");
    three.gateway.kill()?;
    three.gateway.restart()?;
    for pair in [&mut stream, &mut fresh] {
        pair.wait_progress(SOME, LONG)?;
    }
    step("out of the NAT");
    three.world.leaves_router(&fresh);
    three.world.roam(&a)?;
    for pair in [&mut stream, &mut fresh] {
        three.goes_on(pair, &three.world.at)?;
    }
    is_native(&three.gateway, Side::Server, &stream)?;
    three.finish(vec![stream, fresh])
}

fn rebooted(lab: &mut Lab) -> Result<()> {
    let nat = site("b").behind(Gateway::Nat { random_ports: false });
    let mut three = Three::new(lab, site("a"), nat, false)?;
    let c = three.world.add(lab, site("c"))?;
    let mut stream = three.world.stream_to(three.at_server)?;
    three.client.wait_introduced(&stream, LONG)?;
    for to in [c.clone(), three.world.b.clone()] {
        step(&format!("to {}", to.network.name()));
        three.world.roam(&to)?;
        three.goes_on(&mut stream, &three.world.at)?;
        carried_by(&three.gateway, Side::Server, &stream, Carrier::Tunnel)?;
        // At home there, and so nobody's business while the router is away.
        let mut fresh = three.world.stream_to(three.at_server)?;
        three.client.wait_introduced(&fresh, LONG)?;
        step("the router is started anew");
        three.gateway.kill()?;
        three.gateway.reboot()?;
        three.gateway.wait_event("peer-reached", 0, LONG * 2)?;
        for pair in [&mut stream, &mut fresh] {
            pair.wait_progress(SOME, LONG * 2)?;
        }
        carried_by(&three.gateway, Side::Server, &stream, Carrier::Tunnel)?;
        fresh.finish(LONG)?;
        // What came rewritten while no daemon was there the server has refused, and nobody has believed that. What was
        // said to the daemon it was sent as well.
        three.world.forget_resets();
        three.control.take();
    }
    step("home again");
    let a = three.world.a.clone();
    three.world.roam(&a)?;
    three.goes_on(&mut stream, &three.world.at)?;
    is_native(&three.gateway, Side::Server, &stream)?;
    three.finish(vec![stream])
}

fn narrow(lab: &mut Lab) -> Result<()> {
    const MTU: u32 = 1300;
    let world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    world.campus.core.ip([format!("link set dev to-b mtu {MTU}")])?;
    world.b.router.ip([format!("link set dev up0 mtu {MTU}")])?;
    let mut three = Three::in_world(world, true, "carriers = [\"tunnel\"]\n")?;
    let at_server = three.at_server;
    let mut stream = three.world.stream_to(at_server)?;
    three.client.wait_introduced(&stream, LONG)?;
    let b = three.world.b.clone();
    three.world.roam(&b)?;
    stream.wait_progress(SOME, LONG)?;
    carried_by(&three.gateway, Side::Server, &stream, Carrier::Tunnel)?;
    step("the path is known");
    let gateway = &three.gateway;
    wait_for(LONG * 3, "the router knows how long a packet of its tunnel may be", || {
        let known = gateway.paths()?.into_iter().any(|path| path.active && path.mtu == Some(MTU));
        Ok(known.then_some(()))
    })?;
    stream.wait_progress(SOME, LONG)?;
    three.finish(vec![stream])
}

fn opened(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: false }))?;
    // Connection tracking is there where a rule asks for it.
    world.s.router.nft(
        "table inet filter {\n chain forward {\n type filter hook forward priority 0\n ct state established accept\n }\n }",
    )?;
    let to = IpAddr::V4(world.at.v4.ok_or_else(|| crate::Error::Usage("network a has no IPv4".into()))?);
    let mut three = Three::in_world(world, false, "")?;
    let pair = FlowPair::tcp(&three.world.server, &three.world.laptop, to, &PairOptions::rate(RATE))?;
    // The laptop has accepted it, and asks nobody by itself.
    let what = "introduced";
    let good = |found: &whimbrel_ipc::Connection| found.state == ConnectionState::Native && found.peer.is_some();
    three.client.wait_connection(pair.peer(), pair.seen_by_server(), LONG, what, good)?;
    let mut pairs = vec![pair];
    let (a, b) = (three.world.a.clone(), three.world.b.clone());
    for there in [&b, &a] {
        step(&format!("to {}", there.network.name()));
        three.world.roam(there)?;
        for pair in &mut pairs {
            three.goes_on(pair, &three.world.at)?;
        }
    }
    three.finish(pairs)
}

fn stranger(lab: &mut Lab) -> Result<()> {
    let mut three = Three::new(lab, site("a"), site("b"), false)?;
    let c = three.world.add(lab, site("c"))?;
    let old = three.world.at.v4.ok_or_else(|| crate::Error::Usage("network a has no IPv4".into()))?;
    let options = |(from, to): (u16, u16)| PairOptions {
        bind: Some(SocketAddr::new(old.into(), from)),
        port: to,
        ..PairOptions::rate(RATE)
    };
    let (laptop, server) = (three.world.laptop.clone(), three.world.server.clone());
    let mut stream = FlowPair::tcp(&laptop, &server, three.at_server, &options(PORTS))?;
    three.client.wait_introduced(&stream, LONG)?;
    let b = three.world.b.clone();
    three.world.roam(&b)?;
    three.goes_on(&mut stream, &three.world.at)?;

    step("somebody else has the laptop's former address, and a daemon");
    let other = lab.host("other")?;
    let join = Join { address_v4: Some(old), v6: false, ..Join::default() };
    let at_other = other.join(&three.world.a.network, &join)?;
    let mut thief = other.whimbrel()?;
    // Under the laptop's names nothing of it comes through.
    let since = three.gateway.status()?.newest_event;
    let refused = FlowPair::tcp(&other, &server, three.at_server, &options(PORTS));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    expect!(refused.to_lowercase().contains("refused"), "somebody else has the laptop's names: {refused}");
    three.gateway.wait_event("address-conflict", since, LONG)?;
    let mut theirs = FlowPair::tcp(&other, &server, three.at_server, &options((PORTS.0 + 1, PORTS.1 + 1)))?;
    thief.wait_introduced(&theirs, LONG)?;
    step("it moves on with what is its own");
    let at_c = other.roam(&at_other, &c.network, &Join::default())?;
    three.goes_on(&mut theirs, &at_c)?;
    stream.wait_progress(SOME, LONG)?;
    carried_by(&three.gateway, Side::Server, &stream, Carrier::Tunnel)?;
    // What was sent to the stranger's places is all its own.
    let strays = c.link()?.count(move |direction, packet| {
        direction == Direction::Down && packet.ports().is_some_and(|(from, _)| from == PORTS.1)
    });
    stream.wait_progress(SOME, LONG)?;
    expect!(strays.get() == 0, "{} packets of the laptop's went to somebody else", strays.get());
    three.world.forget_resets();
    all_run(&mut [&mut thief])?;
    three.finish(vec![stream, theirs])
}
