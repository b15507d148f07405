//! The option in TCP's handshake by which hosts know of each other (decision 0117), and what becomes of it on the way.

use std::time::Duration;

use whimbrel_ipc::{Connection, ConnectionState, Greeting};

use super::world::{LONG, RATE, SOME, World, all_run, site, step};
use super::young::{until_introduced, watch_beginnings};
use super::{Scenario, scenario};
use crate::{FlowPair, Gateway, Lab, MonoTime, PairOptions, Result, Side, Whimbrel, expect};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "handshake-option",
    "hosts say in the handshake of TCP that they run Whimbrel: a server whose firewall lets in TCP alone is met, and so \
     is one that was silent; a NAT is seen, and what takes the option out or drops it keeps no connection from being \
     made",
    handshake_option,
)];

const OPTION: &str = "[ask]\nhandshake_option = true\n";
/// The server's firewall: what opens a connection of TCP comes in, and what answers.
const TCP_ALONE: &str = "table inet alone {\nchain input {\ntype filter hook input priority filter;\n\
                         iifname != lo udp dport 2031 ct state new drop\n}\n}\n";
/// What a router does with the option in handshakes. (Introductions have one of that kind as well; what takes it out
/// does so everywhere.)
const COUNTED: &str = "table inet option {\nchain forward {\ntype filter hook forward priority filter - 10;\n\
                       tcp flags & syn != 0 tcp option 253 exists counter\n}\n}\n";
const TAKEN: &str = "table inet option {\nchain forward {\ntype filter hook forward priority filter - 10;\n\
                     reset tcp option 253\n}\n}\n";
const DROPPED: &str = "table inet option {\nchain forward {\ntype filter hook forward priority filter - 10;\n\
                       tcp flags & syn != 0 tcp option 253 exists counter drop\n}\n}\n";
const NO_TABLE: &str = "delete table inet option";
/// Where the server takes connections of TCP in place of datagrams.
const PORT: u16 = 8443;
/// The kernel sends its first segment again after a second.
const SECOND: Duration = Duration::from_millis(900);

/// Daemons that know nothing, at the laptop and at the server, in place of what was there.
fn begin(before: Option<[Whimbrel; 2]>, world: &World, config: &str) -> Result<[Whimbrel; 2]> {
    before.map_or(Ok(()), end)?;
    let at_server = format!("listen_tcp = \"[::]:{PORT}\"\n{config}");
    // First who is asked: a connection of the step before may last, and who does not answer is left alone for long.
    let server = world.server.whimbrel_with(&at_server)?;
    Ok([world.laptop.whimbrel_with(config)?, server])
}

fn end(daemons: [Whimbrel; 2]) -> Result<()> {
    daemons.into_iter().try_for_each(|mut daemon| {
        daemon.stop()?;
        daemon.clean().map(drop)
    })
}

fn shown(daemon: &Whimbrel, end: Side, pair: &FlowPair) -> Result<Connection> {
    let (local, remote) = match end {
        Side::Client => (pair.local(), pair.peer()),
        Side::Server => (pair.peer(), pair.seen_by_server()),
    };
    daemon.wait_connection(local, remote, LONG, "known", |_| true)
}

/// What both ends heard, at the laptop and at the server.
fn heard(daemons: &[Whimbrel; 2], pair: &FlowPair) -> Result<[Option<Greeting>; 2]> {
    let [client, server] = daemons;
    Ok([shown(client, Side::Client, pair)?.greeting, shown(server, Side::Server, pair)?.greeting])
}

fn handshake_option(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: false }))?;
    let begun = watch_beginnings(&world.a)?;
    let (home, behind) = (world.a.clone(), world.b.clone());
    let counted = || home.router.command("nft").args(["list", "table", "inet", "option"]).run();

    step("without the option nothing is said");
    home.router.nft(COUNTED)?;
    let mut both = begin(None, &world, "")?;
    let pair = world.stream()?;
    let without = until_introduced(&both[0], Side::Client, &pair, &begun)?;
    expect!(heard(&both, &pair)? == [None; 2], "nobody says anything");
    pair.finish(LONG)?;
    expect!(counted()?.contains("packets 0 "), "{}", counted()?);

    step("with it both ends know of each other, and `why` says so");
    both = begin(Some(both), &world, OPTION)?;
    let pair = world.stream()?;
    let with = until_introduced(&both[0], Side::Client, &pair, &begun)?;
    step(&format!("the first connection to a host is introduced after {without:.0} ms without it, {with:.0} with it"));
    let plain = Greeting { near_translated: false, far_translated: false };
    expect!(heard(&both, &pair)? == [Some(plain); 2], "{:?}", heard(&both, &pair)?);
    let why = unwrapped(&both[0].cli(&["why", &pair.peer().to_string()])?);
    expect!(why.contains("runs Whimbrel, and no NAT is in between"), "{why}");
    pair.finish(LONG)?;
    expect!(!counted()?.contains("packets 0 "), "{}", counted()?);
    home.router.nft(NO_TABLE)?;

    step("a server that lets in TCP alone is not met without it");
    // What these say as they end would have the firewall let in answers.
    end(both)?;
    world.server.nft(TCP_ALONE)?;
    both = begin(None, &world, "")?;
    let pair = world.stream()?;
    both[0].wait_event("nobody-there", 0, LONG)?;
    let at_server = shown(&both[1], Side::Server, &pair)?;
    expect!(at_server.state == ConnectionState::Unprotected, "{at_server:?}");
    pair.finish(LONG)?;

    step("with it the server asks, and the connection survives a move");
    both = begin(Some(both), &world, OPTION)?;
    let mut pair = world.stream()?;
    let took = until_introduced(&both[0], Side::Client, &pair, &begun)?;
    step(&format!("the two are met after {took:.0} ms"));
    world.roam(&behind)?;
    pair.wait_progress(SOME, LONG)?;
    pair.finish(LONG)?;

    step("so it does behind a NAT, which both ends see");
    both = begin(Some(both), &world, OPTION)?;
    let pair = world.stream()?;
    both[0].wait_introduced(&pair, LONG)?;
    let nat = [
        Greeting { near_translated: true, far_translated: false },
        Greeting { near_translated: false, far_translated: true },
    ];
    expect!(heard(&both, &pair)? == nat.map(Some), "{:?}", heard(&both, &pair)?);
    let why = unwrapped(&both[1].cli(&["why", &pair.seen_by_server().to_string()])?);
    expect!(why.contains("a NAT is before the other end"), "{why}");
    pair.finish(LONG)?;
    world.roam(&home)?;

    step("a host that was silent is met with the next connection");
    let [client, mut server] = begin(Some(both), &world, OPTION)?;
    server.stop()?;
    let before = world.stream_unproven()?;
    client.wait_event("nobody-there", 0, LONG)?;
    world.server.nft("delete table inet alone")?;
    server.restart()?;
    let pair = world.stream()?;
    let took = until_introduced(&client, Side::Client, &pair, &begun)?;
    step(&format!("after {took:.0} ms"));
    client.wait_introduced(&before, LONG)?;
    before.finish(LONG)?;
    pair.finish(LONG)?;

    step("what takes it out is not noticed, and the other host is asked as without it");
    home.router.nft(TAKEN)?;
    both = begin(Some([client, server]), &world, OPTION)?;
    let pair = world.stream()?;
    both[0].wait_introduced(&pair, LONG)?;
    expect!(heard(&both, &pair)? == [None; 2], "it was taken out");
    pair.finish(LONG)?;
    home.router.nft(NO_TABLE)?;

    step("what drops it costs a second, once");
    home.router.nft(DROPPED)?;
    both = begin(Some(both), &world, OPTION)?;
    let begun = MonoTime::now();
    let pair = world.stream()?;
    let took = MonoTime::now().since(begun);
    both[0].wait_introduced(&pair, LONG)?;
    expect!(took > SECOND, "{took:?}");
    expect!(heard(&both, &pair)? == [None; 2], "it was dropped");
    pair.finish(LONG)?;
    let pair = world.stream()?;
    both[0].wait_introduced(&pair, LONG)?;
    pair.finish(LONG)?;
    expect!(counted()?.contains("packets 1 "), "{}", counted()?);
    home.router.nft(NO_TABLE)?;

    step("a server that runs nothing takes connections as ever");
    let [mut client, mut server] = begin(Some(both), &world, OPTION)?;
    server.stop()?;
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &PairOptions::rate(RATE))?;
    pair.wait_progress(SOME, LONG)?;
    expect!(shown(&client, Side::Client, &pair)?.greeting.is_none(), "nobody has said anything");
    pair.finish(LONG)?;
    all_run(&mut [&mut client])
}

/// What is shown in lines of some width.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
