//! What is shown is so: each state of `connections` is reached, and is true then.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use whimbrel_ipc::{Carrier, ConnectionState};

use super::world::{LONG, SOME, World, all_run, carried_by, goes_on_since, is_native, names, site, step};
use super::{Scenario, scenario};
use crate::{Error, FlowPair, Gateway, Join, Lab, Leave, PairOptions, Result, Side, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "shown-silent",
        "on a network that drops UDP nothing is called moved: it is not confirmed, with when the peer was last heard and \
         what to look for, until it is",
        silent,
    ),
    scenario(
        "shown-server-moved",
        "a server that has moved while its client is behind a NAT, and sends no masked updates, is not confirmed at \
         either end, and both say so",
        server_moved,
    ),
    scenario(
        "shown-one-way",
        "on a network that lets UDP out and not in, a connection is not confirmed at either end, each with its own \
         reason, also where a daemon was started anew meanwhile, until it is",
        one_way,
    ),
    scenario(
        "shown-cut",
        "where a network stops to let UDP through, or lets nothing out any more, `doctor` finds that at once, all \
         commands say so, and nothing is said to go on before the peer answers",
        cut,
    ),
    scenario(
        "shown-unprotected",
        "what is left alone says why, at the end that might ask and at the other one, and a move ends it",
        unprotected,
    ),
    scenario(
        "shown-left-behind",
        "connections that nobody had agreed on when their address went are lost at the move, and said to be, with a true \
         reason; they are not pending",
        left_behind,
    ),
    scenario(
        "shown-held",
        "connections are pending while nobody answers, servers are listed where they are asked for, and what is held \
         stands still, each with its own reason: suspended, by hand, by the peer, no network, a peer that is away or \
         silent",
        held,
    ),
];

/// Where a server waits that nobody asks.
const SERVICE: u16 = 7100;

/// Drops what the daemons say to each other, and their tunnel, on its way through a router.
const NO_UDP: &str = "table inet cafe { chain forward { type filter hook forward priority -5; policy accept; \
                      udp dport 2031 drop; udp sport 2031 drop;\n}\n}\n";

/// The pair's connection is not confirmed at an end, nor is its path, and all commands say so.
fn is_not_confirmed(daemon: &Whimbrel, end: Side, pair: &FlowPair, heard: Duration) -> Result<()> {
    let (local, remote) = match end {
        Side::Client => (pair.local(), pair.peer()),
        Side::Server => (pair.peer(), pair.seen_by_server()),
    };
    let long_ago = |ago: Option<u64>| ago.is_some_and(|ago| u128::from(ago) >= heard.as_millis());
    daemon.wait_connection(local, remote, LONG, "not confirmed", |one| {
        one.state == ConnectionState::NotConfirmed && long_ago(one.heard_ms) && one.reason.is_some()
    })?;
    let paths = daemon.paths()?;
    let used = paths.iter().find(|path| path.active);
    expect!(
        used.is_some_and(|path| !path.confirmed && path.round_trip_ms.is_none() && long_ago(path.heard_ms)),
        "{paths:?}"
    );
    for (command, what) in [("connections", "last heard"), ("paths", "not confirmed"), ("peers", "heard")] {
        let shown = daemon.cli(&[command])?;
        println!("{shown}");
        expect!(shown.contains(what), "`{command}` does not say {what:?}: {shown}");
    }
    let said = "of which 0 survive a move; 1 is not confirmed: it survives once its peer answers.";
    expect!(daemon.cli(&["connections"])?.contains(said), "what is not confirmed is promised, or given up");
    let counts = daemon.status()?.counts;
    expect!((counts.moved, counts.not_confirmed) == (0, 1), "{counts:?}");
    Ok(())
}

/// `why` says this of the pair's connection, as text and as JSON.
fn why(client: &Whimbrel, pair: &FlowPair, what: &str) -> Result<()> {
    let local = pair.local().to_string();
    let said = client.cli(&["why", &local])?;
    println!("{said}");
    // Lines are broken to fit.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    expect!(said.contains(what) && said.contains(&local), "`why` does not say {what:?}: {said}");
    let json = client.cli(&["why", "--json", &local])?;
    expect!(json.starts_with(r#"{"schema":1,"why":[{"#) && json.lines().count() == 1, "{json}");
    Ok(())
}

/// What a command says, and whether it succeeds.
fn fails(daemon: &Whimbrel, arguments: &[&str]) -> Result<(String, bool)> {
    let script = "\"$@\" 2>&1; echo \"ended with $?\"";
    let command = daemon.host().command("sh").args(["-c", script, "sh"]).arg(daemon.binary());
    let said = command.arg("--run-dir").arg(daemon.run_dir()).args(arguments.iter().copied()).run()?;
    let good = said.ends_with("ended with 0\n");
    Ok((said, good))
}

fn silent(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    is_native(&client, Side::Client, &pair)?;
    let there = world.at_server.ipv4()?.to_string();
    let pong = client.cli(&["ping", &there, "--count", "2"])?;
    println!("{pong}");
    for what in ["answers after 4", "session", "up for", "NAT      none", "passes out, and the answers in", "2 of 2"] {
        expect!(pong.contains(what), "`ping` does not say {what:?}: {pong}");
    }
    why(&client, &pair, "It would survive a move of either host.")?;

    step("the laptop moves to where UDP is dropped");
    let b = world.b.clone();
    b.router.nft(NO_UDP)?;
    let since = [client.status()?.newest_event, server.status()?.newest_event];
    world.roam(&b)?;
    let event = client.wait_event("not-confirmed", since[0], LONG)?;
    println!("    {}", event.sentence);
    expect!(event.fields["because"] == "moved" && event.fields["flows"] == 1, "{event:?}");
    expect!(event.sentence.contains("Does this network let UDP 2031 out?"), "{}", event.sentence);
    is_not_confirmed(&client, Side::Client, &pair, Duration::from_secs(5))?;
    why(&client, &pair, "nothing shows that it arrives")?;
    let (said, good) = fails(&client, &["ping", &there, "--count", "1"])?;
    println!("{said}");
    expect!(!good && said.contains("no answer, last heard"), "{said}");
    let (said, good) = fails(&client, &["doctor"])?;
    let unbroken = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for what in [" does not answer, last heard ", "does UDP 2031 pass", "Whimbrel works here, with less"] {
        expect!(good && unbroken.contains(what), "`doctor` does not say {what:?}: {said}");
    }
    step("the other end misses it, since its connection stands still");
    let event = server.wait_event("not-confirmed", since[1], LONG * 2)?;
    println!("    {}", event.sentence);
    expect!(event.fields["because"] == "silent", "{event:?}");

    step("the network lets it through");
    b.router.nft("delete table inet cafe")?;
    pair.wait_progress(SOME, LONG * 4)?;
    for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
        carried_by(daemon, side, &pair, Carrier::Rewrite)?;
    }
    let paths = client.paths()?;
    let used = paths.iter().find(|path| path.active);
    expect!(used.is_some_and(|path| path.confirmed && path.round_trip_ms.is_some()), "{paths:?}");
    let told = client.events(since[0])?.into_iter().filter(|event| event.kind == "not-confirmed").count();
    expect!(told == 1, "it was told {told} times that the peer does not answer");
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn server_moved(lab: &mut Lab) -> Result<()> {
    // A NAT that lets through what it takes for invalid, with the name that it had inside, would have the server answer
    // that with a reset: of what came by the tunnel it has seen nothing.
    let mut world = World::new(lab, site("a").behind(Gateway::NatFirewall), site("b"))?;
    let elsewhere = world.add(lab, crate::SiteSpec::named("t"))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel_with("masked_updates = false\n")?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;

    step("the server moves, and the NAT lets nothing in from where it is then");
    let since = [client.status()?.newest_event, server.status()?.newest_event];
    let home = world.s.clone();
    world.roam_server(&elsewhere)?;
    let event = server.wait_event("not-confirmed", since[1], LONG)?;
    println!("    {}", event.sentence);
    expect!(event.fields["because"] == "moved" && event.sentence.contains("behind a NAT"), "{event:?}");
    is_not_confirmed(&server, Side::Server, &pair, Duration::from_secs(5))?;
    let event = client.wait_event("not-confirmed", since[0], LONG * 2)?;
    println!("    {}", event.sentence);
    expect!(event.fields["because"] == "silent", "{event:?}");
    wait_for(LONG, "the client shows that it hears nothing", || {
        let shown = client.connection(pair.local(), pair.peer())?;
        Ok(shown.filter(|one| one.state == ConnectionState::Held && one.heard_ms.is_some()).map(drop))
    })?;
    println!("{}", client.cli(&["connections"])?);

    step("the server is back");
    world.roam_server(&home)?;
    goes_on_since(&mut pair, &world.at_server)?;
    for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
        daemon.wait_connection(
            if side == Side::Client { pair.local() } else { pair.peer() },
            if side == Side::Client { pair.peer() } else { pair.seen_by_server() },
            LONG,
            "confirmed",
            |one| matches!(one.state, ConnectionState::Native | ConnectionState::Moved),
        )?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Waits until an end shows that the pair's connection is not confirmed, for this reason.
fn is_doubted_since(daemon: &Whimbrel, end: Side, pair: &FlowPair, reason: &str) -> Result<()> {
    let (local, remote) = names(end, pair);
    let what = format!("not confirmed, since {reason}");
    let shown = daemon.wait_connection(local, remote, LONG * 2, &what, |one| {
        let because = one.reason.as_ref().is_some_and(|because| because.starts_with(reason));
        one.state == ConnectionState::NotConfirmed && because
    })?;
    println!("    {end:?}: {}", shown.reason.unwrap_or_default());
    Ok(())
}

fn one_way(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    is_native(&server, Side::Server, &pair)?;

    step("the laptop moves to where nothing of the peer's comes in");
    let b = world.b.clone();
    let deaf = format!("oifname {} udp sport 2031 drop;", b.network.bridge());
    b.router.nft(&format!(
        "table inet cafe {{ chain forward {{ type filter hook forward priority -5; policy accept; {deaf}\n}}\n}}\n"
    ))?;
    let since = server.status()?.newest_event;
    world.roam(&b)?;
    is_doubted_since(&client, Side::Client, &pair, "the peer has not answered since this host moved")?;
    is_doubted_since(&server, Side::Server, &pair, "the peer has moved and does not answer from there")?;
    let event = server.wait_event("not-confirmed", since, LONG)?;
    println!("    {}", event.sentence);
    expect!(event.fields["because"] == "peer-moved", "{event:?}");

    step("the server's daemon is started anew meanwhile");
    server.kill()?;
    server.restart()?;
    is_doubted_since(&server, Side::Server, &pair, "there is no session with the peer any more")?;

    step("the network lets it in");
    b.router.nft("delete table inet cafe")?;
    pair.wait_progress(SOME, LONG * 4)?;
    for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
        carried_by(daemon, side, &pair, Carrier::Rewrite)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// `doctor` says this, whether or not something is amiss; lines are broken to fit.
fn doctor_says(daemon: &Whimbrel, what: &str) -> Result<()> {
    let (said, good) = fails(daemon, &["doctor"])?;
    let unbroken = said.split_whitespace().collect::<Vec<_>>().join(" ");
    expect!(good && unbroken.contains(what), "`doctor` does not say {what:?}: {said}");
    Ok(())
}

fn cut(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    doctor_says(&client, "1 of 1 answer")?;

    step("the network lets UDP through no more; rewritten packets pass");
    b.router.nft(NO_UDP)?;
    for daemon in [&client, &server] {
        doctor_says(daemon, " does not answer, last heard ")?;
    }
    is_doubted_since(&client, Side::Client, &pair, "the peer does not answer")?;
    let explained = client.cli(&["paths", "--explain"])?;
    println!("{explained}");
    expect!(explained.contains("is not confirmed") && !explained.contains("answers in"), "{explained}");
    pair.wait_progress(SOME, LONG)?;
    b.router.nft("delete table inet cafe")?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    let there = world.at_server.ipv4()?;
    for host in [SocketAddr::new(there, pair.peer().port()).to_string(), there.to_string()] {
        let pong = client.cli(&["ping", &host, "--count", "1"])?;
        expect!(pong.contains("1 of 1"), "{pong}");
    }
    for own in ["localhost", "127.0.0.1"] {
        let (said, good) = fails(&client, &["ping", own])?;
        expect!(!good && said.contains("this is the host itself"), "{said}");
    }
    doctor_says(&client, "1 of 1 answer")?;

    step("the network lets nothing out any more: the laptop hears the peer, which does not hear it");
    let since = client.status()?.newest_event;
    let mute = format!("iifname {} drop;", b.network.bridge());
    b.router.nft(&format!(
        "table inet cafe {{ chain forward {{ type filter hook forward priority -5; policy accept; {mute}\n}}\n}}\n"
    ))?;
    is_doubted_since(&client, Side::Client, &pair, "the peer is heard, and does not answer")?;
    let (local, remote) = names(Side::Client, &pair);
    let (mut words, mut heard_before) = (0, u64::MAX);
    wait_for(LONG * 2, "the peer is heard four times more", || {
        let shown = client.connection(local, remote)?;
        expect!(shown.as_ref().is_some_and(|one| one.state == ConnectionState::NotConfirmed), "{shown:?}");
        let used = client.paths()?.into_iter().find(|path| path.active);
        expect!(used.as_ref().is_some_and(|path| !path.confirmed), "{used:?}");
        let heard = used.and_then(|path| path.heard_ms).unwrap_or(u64::MAX);
        words += u32::from(heard < heard_before);
        heard_before = heard;
        // The first is no word: nothing was seen before.
        Ok((words > 4).then_some(()))
    })?;
    let goes_on = |kind: &str| matches!(kind, "peer-back" | "path-confirmed" | "moved");
    let told = client.events(since)?;
    told.iter().for_each(|event| println!("    {}", event.sentence));
    expect!(!told.iter().any(|event| goes_on(&event.kind)), "it is said to go on, and nothing passes");

    step("it lets it out again");
    b.router.nft("delete table inet cafe")?;
    pair.wait_progress(SOME, LONG * 2)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    let told = client.events(since)?;
    expect!(told.iter().filter(|event| goes_on(&event.kind)).count() == 1, "{told:?}");
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Ports of servers that the laptop's daemon is not to touch, and that the server's is not.
const BARRED: u16 = 7801;
const EXCLUDED: u16 = 7802;

fn unprotected(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (nobody, barred) = (lab.host("nobody")?, lab.host("barred")?);
    nobody.join(&world.s.network, &Join::by("eth0"))?;
    let to_barred = barred.join(&world.s.network, &Join::by("eth0"))?.ipv4()?;
    let mut client = world.laptop.whimbrel_with(&format!(
        "[ask]\ndeny = [\"{to_barred}/32\"]\n[[policy]]\nremote_port = {EXCLUDED}\nprotect = false\n"
    ))?;
    let mut server = world.server.whimbrel()?;
    let to = world.at_server.ipv4()?;
    let at = |port: u16| PairOptions { port, ..PairOptions::rate(super::world::RATE) };
    let mut known = world.stream()?;
    client.wait_introduced(&known, LONG)?;
    let mut denied = FlowPair::tcp(&world.laptop, &barred, to_barred, &at(BARRED))?;
    let mut excluded = FlowPair::tcp(&world.laptop, &world.server, to, &at(EXCLUDED))?;
    let mut accepted = FlowPair::tcp(&nobody, &world.server, to, &PairOptions::rate(super::world::RATE))?;
    let is = |daemon: &Whimbrel, end: Side, pair: &FlowPair, reason: &str| -> Result<()> {
        let (local, remote) = names(end, pair);
        let shown = daemon.wait_connection(local, remote, LONG, &format!("unprotected: {reason}"), |one| {
            one.state == ConnectionState::Unprotected && one.reason.as_ref().is_some_and(|why| why.contains(reason))
        })?;
        println!("    {local} {remote}: {}", shown.reason.unwrap_or_default());
        let said = daemon.cli(&["why", &local.to_string(), &remote.to_string()]);
        let said = said.or_else(|_| daemon.cli(&["why", &remote.to_string()]))?;
        println!("{said}");
        Ok(())
    };
    is(&client, Side::Client, &denied, "keeps this host from asking")?;
    is(&client, Side::Client, &excluded, "policy at line")?;
    is(&server, Side::Server, &accepted, "the other end opened it and has not asked")?;

    step("each goes on as long as nobody moves");
    for pair in [&mut denied, &mut excluded, &mut accepted] {
        pair.wait_progress(SOME, LONG)?;
    }
    step("the laptop moves");
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut known)?;
    for pair in [&denied, &excluded] {
        client.wait_connection(pair.local(), pair.peer(), LONG, "lost at the move", |one| {
            one.state == ConnectionState::Lost
        })?;
    }
    for pair in [&mut denied, &mut excluded] {
        let before = pair.status(Side::Server)?.received;
        known.wait_progress(SOME, LONG)?;
        expect!(pair.status(Side::Server)?.received == before, "one that is lost goes on");
    }
    accepted.wait_progress(SOME, LONG)?;
    drop((denied, excluded, accepted));
    known.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

fn left_behind(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let nobody = lab.host("nobody")?;
    let there = nobody.join(&world.s.network, &Join::by("eth0"))?.ipv4()?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let strange = FlowPair::tcp(&world.laptop, &nobody, there, &PairOptions::rate(super::world::RATE))?;
    client.wait_connection(strange.local(), strange.peer(), LONG, "unprotected", |one| {
        one.state == ConnectionState::Unprotected
            && one.reason.as_ref().is_some_and(|why| why.starts_with("asked, silent"))
    })?;

    step("the laptop moves");
    let since = client.status()?.newest_event;
    let b = world.b.clone();
    world.roam(&b)?;
    let lost = client.wait_connection(strange.local(), strange.peer(), LONG, "lost at the move", |one| {
        one.state == ConnectionState::Lost
    })?;
    let reason = "its address is gone, and the other host had not answered when it was asked";
    expect!(lost.reason.as_deref() == Some(reason), "{lost:?}");
    let event = client.wait_event("left-behind", since, LONG)?;
    println!("    {}", event.sentence);
    expect!(event.fields["count"] == 1, "{event:?}");
    expect!(event.fields["flows"][0].as_str().is_some_and(|flow| flow.contains(&there.to_string())), "{event:?}");
    let shown = client.cli(&["connections"])?;
    println!("{shown}");
    let said = client.cli(&["why", &strange.local().to_string()])?;
    println!("{said}");
    expect!(said.contains("A move has ended it"), "{said}");
    let (said, good) = fails(&client, &["ping", &there.to_string()])?;
    println!("{said}");
    expect!(!good && said.contains("runs no Whimbrel"), "{said}");
    // One that runs it, and that nothing was known of.
    let fresh = lab.host("fresh")?;
    let there = fresh.join(&world.s.network, &Join::by("eth0"))?.ipv4()?;
    let mut stranger = fresh.whimbrel()?;
    let pong = client.cli(&["ping", &there.to_string(), "--count", "1"])?;
    println!("{pong}");
    expect!(pong.contains("answers after") && pong.contains("1 of 1"), "{pong}");
    let (said, _) = fails(&client, &["connections", "--json", "--nonsense"])?;
    println!("{said}");
    expect!(said.starts_with(r#"{"schema":1,"error":{"what":"#) && said.ends_with("ended with 2\n"), "{said}");
    expect!(shown.contains("lost at the move") && shown.contains("of which 1 survives"), "{shown}");
    expect!(client.status()?.counts.lost == 1, "{:?}", client.status()?.counts);
    world.goes_on(&mut pair)?;

    step("the daemon is started anew, and knows of it still");
    client.restart()?;
    client.wait_connection(strange.local(), strange.peer(), LONG, "lost at the move", |one| {
        one.state == ConnectionState::Lost
    })?;
    expect!(client.events(0)?.iter().all(|event| event.kind != "left-behind"), "it is told once");
    world.goes_on(&mut pair)?;
    drop(strange);
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server, &mut stranger])
}

/// A socket that waits for clients is listed where it is asked for, and only then.
fn is_server(daemon: &Whimbrel, at: SocketAddr) -> Result<()> {
    let listed = daemon.cli(&["connections", "--servers"])?;
    let is_it = |line: &str| line.starts_with(&format!("listener:{at} "));
    expect!(listed.lines().any(is_it), "`connections --servers` does not list {at}: {listed}");
    let listed = daemon.connections()?;
    expect!(listed.iter().all(|one| one.state != ConnectionState::Server), "servers are listed unasked: {listed:?}");
    Ok(())
}

/// Waits until an end shows that the pair's connection is held for this reason. It stands still then.
fn is_held_since(daemon: &Whimbrel, end: Side, pair: &mut FlowPair, reason: &str) -> Result<()> {
    let (local, remote) = names(end, pair);
    daemon.wait_connection(local, remote, LONG * 2, &format!("held: {reason}"), |one| {
        one.state == ConnectionState::Held && one.reason.as_deref() == Some(reason)
    })?;
    let mut arrived =
        || -> Result<[u64; 2]> { Ok([pair.status(Side::Client)?.received, pair.status(Side::Server)?.received]) };
    // What was under way arrives, and then no more.
    let mut before = arrived()?;
    wait_for(LONG, "the connection stands still", || {
        // That nothing comes has no other sign than that time has passed.
        std::thread::sleep(Duration::from_millis(300));
        let now = arrived()?;
        Ok((std::mem::replace(&mut before, now) == now).then_some(()))
    })?;
    let shown = daemon.cli(&["connections"])?;
    expect!(shown.contains("held") && shown.contains(reason), "`connections` does not say {reason:?}: {shown}");
    let said = daemon.cli(&["why", &local.to_string()])?;
    println!("{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    expect!(said.contains(reason), "`why` does not say {reason:?}: {said}");
    Ok(())
}

fn held(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;

    step("nobody answers yet");
    world.s.router.nft(NO_UDP)?;
    let mut pair = world.stream_unproven()?;
    let (local, remote) = (pair.local(), pair.peer());
    client.wait_connection(local, remote, LONG, "pending", |one| one.state == ConnectionState::Pending)?;
    why(&client, &pair, "until then a move of this host would end it")?;
    let at = SocketAddr::new(world.at_server.ipv4()?, SERVICE);
    let waits =
        world.server.enter(|| TcpListener::bind(at))?.map_err(|error| Error::call("bind", "a socket", error))?;
    is_server(&server, at)?;
    drop(waits);
    world.s.router.nft("delete table inet cafe")?;
    pair.wait_progress(SOME, LONG)?;
    client.wait_introduced(&pair, LONG * 6)?;
    is_native(&server, Side::Server, &pair)?;

    step("the laptop is suspended");
    client.cli(&["suspend"])?;
    is_held_since(&client, Side::Client, &mut pair, "this host is suspended")?;
    is_held_since(&server, Side::Server, &mut pair, "the peer is away, and said so")?;
    client.cli(&["resume"])?;
    pair.wait_progress(SOME, LONG)?;

    step("the connection is suspended");
    client.cli(&["suspend", &local.to_string()])?;
    is_held_since(&client, Side::Client, &mut pair, "suspended by hand")?;
    is_held_since(&server, Side::Server, &mut pair, "suspended by the peer")?;
    server.cli(&["suspend", &pair.seen_by_server().to_string()])?;
    is_held_since(&server, Side::Server, &mut pair, "suspended by hand, here and by the peer")?;
    client.cli(&["resume", &local.to_string()])?;
    server.cli(&["resume", &pair.seen_by_server().to_string()])?;
    pair.wait_progress(SOME, LONG)?;

    step("the laptop has no network");
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    is_held_since(&client, Side::Client, &mut pair, "no network of this host leads to the peer")?;
    is_held_since(&server, Side::Server, &mut pair, "the peer is not heard")?;
    let network = world.b.network.clone();
    world.at = world.laptop.join(&network, &Join::default())?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}
