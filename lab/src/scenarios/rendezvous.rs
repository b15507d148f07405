//! Both ends move at once, and meet through a third host.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::{Carrier, RendezvousBy, RendezvousState};

use super::community::invite;
use super::world::{LONG, SOME, World, all_run, carried_by, is_bare, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, Bind, Cut, FlowPair, Gateway, Join, Lab, MonoTime, Result, Side, Site, SiteSpec, Whimbrel, ZONE,
    expect, patience, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "both-move-at-once",
        "laptop and server move at once; they lose one another, but not where both know a rendezvous",
        both_move_at_once,
    ),
    scenario(
        "both-move-into-nats",
        "the same, both behind home routers, and once more with the rendezvous started anew in between",
        into_nats,
    ),
    scenario(
        "both-move-community",
        "laptop and server move at once; nothing is configured, but both belong to one community with a third host",
        community,
    ),
    scenario(
        "both-move-offered",
        "the same without a community: both have the third host under [[peers]], and it offers itself",
        offered,
    ),
    scenario(
        "both-move-named",
        "the same without a third host: the server has the laptop's name, which BIND is told the addresses of",
        named,
    ),
    scenario(
        "server-moves-nat",
        "the laptop is behind a home router that lets nothing in from where the server moves to",
        server_moves,
    ),
];

/// A configuration that says nothing, so that there is one to be changed.
const ALONE: &str = "kick = true\n";
/// A meeting takes four round trips. The kernel asks for its gateway once a second, and its first question is lost
/// where the router's end of the new cable is not up yet.
const SOON: Duration = Duration::from_secs(3);
/// How long a connection is seen to stand still.
const STILL: Duration = Duration::from_secs(5);

/// A world with a third host, and daemons on all three.
struct Three {
    world: World,
    /// Where the server goes.
    t: Site,
    client: Whimbrel,
    server: Whimbrel,
    meeting: Whimbrel,
    /// Of the third host.
    address: IpAddr,
}

impl Three {
    /// The two do not know of the third yet.
    fn new(lab: &mut Lab, from: SiteSpec, to: SiteSpec, server_to: SiteSpec) -> Result<Self> {
        Self::with(lab, from, to, server_to, "serve_rendezvous = true\n")
    }

    /// The same; the third has this configuration.
    fn with(lab: &mut Lab, from: SiteSpec, to: SiteSpec, server_to: SiteSpec, config: &str) -> Result<Self> {
        let mut world = World::new(lab, from, to)?;
        let c = world.add(lab, site("c"))?;
        let t = world.add(lab, server_to)?;
        let host = lab.host("meeting")?;
        let address = host.join(&c.network, &Join::by("eth0"))?.ipv4()?;
        let meeting = host.whimbrel_with(config)?;
        let client = world.laptop.whimbrel_with(ALONE)?;
        let server = world.server.whimbrel_with(ALONE)?;
        Ok(Self { world, t, client, server, meeting, address })
    }

    /// Both are started again with the rendezvous in their configurations.
    fn make_known(&mut self) -> Result<()> {
        self.start_with(&format!("rendezvous = [\"{}\"]\n", self.address))
    }

    /// Both are started again with this configuration.
    fn start_with(&mut self, config: &str) -> Result<()> {
        for daemon in [&mut self.client, &mut self.server] {
            daemon.reconfigure(config)?;
            daemon.stop()?;
            daemon.restart()?;
        }
        Ok(())
    }

    /// Both ends can be met.
    fn registered(&self) -> Result<()> {
        for daemon in [&self.client, &self.server] {
            wait_until(LONG, "the rendezvous answers", || {
                let state = daemon.status().ok().and_then(|status| status.rendezvous.first().copied());
                state.is_some_and(|at| at.state == RendezvousState::Registered && at.peers == 1)
            })?;
        }
        let pairs = || self.meeting.status().ok().and_then(|status| status.meetings).map(|meetings| meetings.pairs);
        wait_until(LONG, "both are known at the rendezvous", || pairs() == Some(1))
    }

    /// A connection is opened, both ends move at once and meet, and so they do once more. Says how long it took.
    fn meet(mut self, by: RendezvousBy) -> Result<()> {
        let mut pair = self.world.stream()?;
        self.client.wait_introduced(&pair, LONG)?;
        self.registered()?;
        for daemon in [&self.client, &self.server] {
            let all = daemon.status()?.rendezvous;
            expect!(all.iter().all(|rendezvous| rendezvous.by == by), "rendezvous: {all:?}");
        }
        let bound = ROUND_TRIP * ROUND_TRIPS + MEETS_WITHIN;
        let (a, b, s) = (self.world.a.clone(), self.world.b.clone(), self.world.s.clone());
        for round in 0..2 {
            step(if round == 0 { "both move at once" } else { "both go back at once" });
            let since = self.newest()?;
            if round == 0 {
                self.both_move(&b)?;
            } else {
                s.link()?.restore()?;
                self.t.link()?.cut(Cut::Silent)?;
                self.world.roam(&a)?;
                self.world.roam_server(&s)?;
            }
            pair.wait_progress(SOME, LONG)?;
            self.found(since)?;
            for side in [Side::Client, Side::Server] {
                let took = pair.silence(side, self.world.at_server.usable_at)?;
                let holds = if took.is_some_and(|took| took <= bound) { "holds" } else { "is missed" };
                let (took_ms, bound) = (ms(took), bound.as_millis());
                println!(
                    "    {side:?}: first byte {took_ms:.1} ms after both addresses were there: {bound} ms {holds}"
                );
                // What a busy machine adds is no fault of the meeting's.
                expect!(took.is_some_and(|t| t < SOON * patience()), "{side:?} received nothing for {took:?}");
            }
        }
        self.finish(pair)
    }

    /// Both ends move, and neither hears anything that the other sends to where it was.
    fn both_move(&mut self, laptop_to: &Site) -> Result<()> {
        let t = self.t.clone();
        self.world.s.link()?.cut(Cut::Silent)?;
        self.world.roam(laptop_to)?;
        self.world.roam_server(&t)
    }

    fn found(&self, since: [u64; 2]) -> Result<()> {
        let ends = [(&self.client, since[0]), (&self.server, since[1])];
        wait_for(LONG, "one of them says that the other was found", || {
            for (daemon, since) in ends {
                if daemon.events(since)?.iter().any(|event| event.kind == "peer-found") {
                    return Ok(Some(()));
                }
            }
            Ok(None)
        })
    }

    fn finish(mut self, pair: FlowPair) -> Result<()> {
        self.world.finish(pair)?;
        all_run(&mut [&mut self.client, &mut self.server, &mut self.meeting])
    }

    fn newest(&self) -> Result<[u64; 2]> {
        Ok([self.client.status()?.newest_event, self.server.status()?.newest_event])
    }
}

fn both_move_at_once(lab: &mut Lab) -> Result<()> {
    let mut three = Three::new(lab, site("a"), site("b"), SiteSpec::named("t"))?;
    let mut pair = three.world.stream()?;
    three.client.wait_introduced(&pair, LONG)?;
    let (a, s) = (three.world.a.clone(), three.world.s.clone());

    step("without a rendezvous");
    let b = three.world.b.clone();
    three.both_move(&b)?;
    stands_still(&mut pair)?;
    step("the connection stands still, until one of them is where the other knows it to be");
    s.link()?.restore()?;
    three.world.roam_server(&s)?;
    pair.wait_progress(SOME, LONG)?;

    step("with a rendezvous");
    three.make_known()?;
    three.registered()?;
    let since = three.newest()?;
    three.both_move(&a)?;
    goes_on_soon(&mut pair, &three.world.at_server)?;
    three.found(since)?;
    carried_by(&three.server, Side::Server, &pair, Carrier::Rewrite)?;
    let t = three.t.clone();
    is_bare(&t, &mut pair)?;
    three.finish(pair)
}

/// Four round trips and 100 ms: what a meeting may take.
const ROUND_TRIPS: u32 = 4;
const MEETS_WITHIN: Duration = Duration::from_millis(100);
/// The links of all three are as long: 20 ms each way.
const ROUND_TRIP: Duration = Duration::from_millis(80);

fn community(lab: &mut Lab) -> Result<()> {
    let three = Three::with(lab, site("a"), site("b"), site("t"), ALONE)?;
    three.meeting.cli(&["community", "init", "--name", "desk"])?;
    for (daemon, name) in [(&three.client, "laptop"), (&three.server, "server")] {
        let drawn = invite(&three.meeting)?;
        daemon.cli(&["community", "join", &drawn.code, &three.address.to_string(), "--name", name])?;
    }
    three.meet(RendezvousBy::Community)
}

fn offered(lab: &mut Lab) -> Result<()> {
    let mut three = Three::with(lab, site("a"), site("b"), site("t"), "serve_rendezvous = true\n")?;
    let key = three.meeting.status()?.public_key;
    let config = format!("[[peers]]\naddress = \"{}\"\nkey = \"{key}\"\n", three.address);
    three.start_with(&config)?;
    three.meet(RendezvousBy::Named)
}

fn named(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (c, t) = (world.add(lab, site("c"))?, world.add(lab, site("t"))?);
    let names = lab.host("names")?;
    let address = names.join(&c.network, &Join::by("eth0"))?.ipv4()?;
    let bind = Bind::start(&names, address)?;
    let name = format!("laptop.{ZONE}");
    let told = format!(
        "[dns]\nname = \"{name}\"\nzone = \"{ZONE}\"\nserver = \"{address}\"\nkey_file = \"{}\"\nttl = 30\n",
        bind.key().display()
    );
    let mut client = world.laptop.whimbrel_with(&told)?;
    let key = client.status()?.public_key;
    let asks = format!("[[peers]]\nkey = \"{key}\"\nname = \"{name}\"\nname_server = \"{address}\"\n");
    let mut server = world.server.whimbrel_with(&asks)?;
    client.wait_event("name-updated", 0, LONG)?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.s.link()?.cut(Cut::Silent)?;
    world.roam(&b)?;
    world.roam_server(&t)?;
    pair.wait_progress(SOME, LONG)?;
    // The name has its new address once this host's have been the same for a second (decision 0014).
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, world.at_server.usable_at)?;
        println!("    {side:?} received nothing for {:.1} ms once both addresses were there", ms(took));
    }
    let found = server.wait_event("peer-found", 0, LONG)?;
    expect!(found.fields["rendezvous"].is_null(), "a rendezvous told it: {}", found.sentence);
    // It is called as the configuration calls it, wherever it is named.
    expect!(found.sentence.starts_with(&format!("peer {name} was found")), "{}", found.sentence);
    expect!(found.fields["peer_name"] == name.as_str() && found.fields["peer"].is_u64(), "{:?}", found.fields);
    for (command, what) in [("peers", name.clone()), ("paths", name.clone()), ("events", format!("peer {name}"))] {
        let shown = server.cli(&[command])?;
        expect!(shown.contains(&what) && !shown.contains("peer #"), "`{command}` does not say {what}: {shown}");
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn into_nats(lab: &mut Lab) -> Result<()> {
    let home = |name| site(name).behind(Gateway::NatFirewall);
    let mut three = Three::new(lab, site("a"), home("b"), home("t"))?;
    three.make_known()?;
    let mut pair = three.world.stream()?;
    three.client.wait_introduced(&pair, LONG)?;
    three.registered()?;
    for site in [three.world.b.clone(), three.t.clone()] {
        closed_router(&site)?;
    }
    let since = three.newest()?;
    let (a, b, s) = (three.world.a.clone(), three.world.b.clone(), three.world.s.clone());
    three.both_move(&b)?;
    pair.wait_progress(SOME, LONG)?;
    three.found(since)?;
    carried_by(&three.server, Side::Server, &pair, Carrier::Tunnel)?;

    step("the rendezvous is started anew, and both go back");
    s.link()?.restore()?;
    three.meeting.kill()?;
    three.meeting.restart()?;
    // Neither hears what is sent to where it was.
    three.t.link()?.cut(Cut::Silent)?;
    three.world.roam(&a)?;
    three.world.roam_server(&s)?;
    pair.wait_progress(SOME, LONG)?;
    three.finish(pair)
}

fn server_moves(lab: &mut Lab) -> Result<()> {
    let home = site("a").behind(Gateway::NatFirewall);
    let mut three = Three::new(lab, home, site("b"), SiteSpec::named("t"))?;
    three.make_known()?;
    closed_router(&three.world.a)?;
    let mut pair = three.world.stream()?;
    three.client.wait_introduced(&pair, LONG)?;
    three.registered()?;
    let t = three.t.clone();
    three.world.roam_server(&t)?;
    goes_on_soon(&mut pair, &three.world.at_server)?;
    carried_by(&three.server, Side::Server, &pair, Carrier::Tunnel)?;
    three.finish(pair)
}

/// A stream goes on in both directions after the server has joined at `at`.
fn goes_on_soon(pair: &mut FlowPair, at: &Attachment) -> Result<()> {
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, at.usable_at)?;
        println!("    {side:?} received nothing for {:.1} ms once the address was there", ms(took));
        expect!(took.is_some_and(|t| t < SOON * patience()), "{side:?} received nothing for {took:?}");
    }
    Ok(())
}

/// Has a site's router take nothing from outside for itself, as those of homes do. One that answers for itself takes
/// what comes in first for its own, and gives what goes out later another port (conntrack's clash resolution).
fn closed_router(site: &Site) -> Result<()> {
    site.router.nft(
        "table inet closed { chain input { type filter hook input priority filter; \
         iifname \"up0\" ct state new meta l4proto { tcp, udp } drop;\n}\n}\n",
    )
}

/// Nothing arrives at either end for a while, once what was under way has arrived.
fn stands_still(pair: &mut FlowPair) -> Result<()> {
    let mut received =
        || -> Result<[u64; 2]> { Ok([pair.status(Side::Client)?.received, pair.status(Side::Server)?.received]) };
    let mut before = received()?;
    let mut since = MonoTime::now();
    wait_for(LONG, "the connection stands still", || {
        let now = received()?;
        if now != std::mem::replace(&mut before, now) {
            since = MonoTime::now();
        }
        Ok((MonoTime::now() - since >= STILL).then_some(()))
    })
}
