//! What the commands say and do beside asking: they are what users see.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use whimbrel_ipc::{Carrier, ConnectionState, Path, Request, request_to_line};

use super::world::{LONG, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{
    Direction, FlowPair, Host, Join, Lab, Leave, MonoTime, PairOptions, Process, Result, Side, Whimbrel, expect,
    patience, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("views", "paths, connections, peers and hand-offs by hand tell what is so", views),
    scenario(
        "handoff-without-default-route",
        "by hand to an interface that has an address and no default route: packets go as routing leads that address",
        without_default_route,
    ),
    scenario(
        "watched",
        "`watch` shows a connection come, move and end, and that the daemon is gone, and back; `doctor` says what \
         would be in the way, and what to do",
        watched,
    ),
    scenario("clean", "what a stopped daemon leaves for moved connections is removed by hand", clean),
    scenario(
        "clean-told",
        "who has what a stopped daemon leaves removed has the other end told: what had moved ends there at once, what \
         is native goes on; and where nobody answers, the port is taken or the key is gone it takes a moment longer, \
         or none",
        clean_told,
    ),
    scenario(
        "peer-forgotten",
        "a host is forgotten by its number or key, by force where a connection with it has moved, which ends at both \
         ends; others go on, and the two meet anew",
        forgotten,
    ),
    scenario(
        "another-namespace",
        "a killed daemon's run directory is refused in another network namespace while its own is there, and no longer",
        another_namespace,
    ),
    scenario(
        "local-api",
        "programs that ask all at once, hang up or never read are answered in order, or dropped",
        local_api,
    ),
];

fn views(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let nobody = lab.host("nobody")?;
    let there = nobody.join(&world.s.network, &Join::by("eth0"))?.ipv4()?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;

    // A host that runs nothing: it answers with ICMP, and is remembered.
    let strange = FlowPair::tcp(&world.laptop, &nobody, there, &PairOptions::rate(super::world::RATE))?;
    client.wait_connection(strange.local(), strange.peer(), LONG, "asked in vain", |connection| {
        connection.state == ConnectionState::Unprotected
            && connection.reason.as_deref().is_some_and(|reason| reason.starts_with("asked, silent until "))
    })?;

    // Both networks are up: the other one is shown as a way that could be used.
    let second = world.laptop.join(&world.b.network, &Join::by("eth1").metric(4000))?;
    let other = second.ipv4()?;
    wait_for(LONG, "paths show the second network", || {
        let possible = |path: &Path| path.local == Some(other) && !path.active && !path.confirmed;
        Ok(client.paths()?.into_iter().find(possible))
    })?;
    expect!(client.cli(&["paths"])?.contains("possible"), "{}", client.cli(&["paths"])?);

    // The end that follows says that it answers rewritten.
    client.handoff(Some(other))?;
    for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
        carried_by(daemon, side, &pair, Carrier::Rewrite)?;
    }
    expect!(server.peers()?.iter().any(|peer| peer.carrier == Some(Carrier::FollowRewrite)), "{:?}", server.peers()?);
    pair.wait_progress(super::world::SOME, LONG)?;

    // No network at all: a hand-off by hand says so at once, and does not wait for peers.
    let since = client.status()?.newest_event;
    world.laptop.leave(&second, Leave::Orderly)?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    client.wait_event("moving", since, LONG)?;
    wait_for(LONG, "no address is left", || Ok(client.status()?.addresses.is_empty().then_some(())))?;
    let begun = MonoTime::now();
    let refusal = client.handoff(None);
    expect!(MonoTime::now() - begun < Duration::from_secs(5), "the refusal took long");
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains("no usable network")),
        "a hand-off without a network gave {refusal:?}"
    );
    all_run(&mut [&mut client, &mut server])
}

fn without_default_route(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let second = Join { default_route: false, ..Join::by("eth1") };
    let second = world.laptop.join(&world.b.network, &second)?.ipv4()?;
    let known =
        |client: &crate::Whimbrel| Ok(client.status()?.addresses.iter().any(|own| own.address == second).then_some(()));
    wait_for(LONG, "the second address is known", || known(&client))?;

    // What is sent from there goes by the first network's gateway; what is sent there comes by the second.
    for there in [true, false, true] {
        client.handoff(Some(if there { second } else { world.at.ipv4()? }))?;
        for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
            if there {
                carried_by(daemon, side, &pair, Carrier::Rewrite)?;
            } else {
                is_native(daemon, side, &pair)?;
            }
        }
        pair.wait_progress(super::world::SOME, LONG)?;
        if there {
            let bare = |_: Direction, p: &crate::Packet<'_>| p.tcp().is_some();
            let [first, other] = [&world.a, &world.b].map(|site| site.link().map(|link| link.count(bare)));
            let (first, other) = (first?, other?);
            pair.wait_progress(super::world::SOME, LONG)?;
            expect!(first.get() > 0 && other.get() > 0, "{} packets out, {} in", first.get(), other.get());
        }
    }

    // A default route on the second network is a better way: it is taken without a word.
    let gateway = world.b.network.spec().v4.map(|(gateway, _)| gateway);
    let default = format!("default via {} dev eth1 metric 4000", gateway.expect("b has IPv4"));
    world.laptop.ip([format!("route add {default}")])?;
    let other = world.b.link()?.count(|direction, p| direction == Direction::Up && p.tcp().is_some());
    wait_for(LONG, "packets leave by the second network", || Ok((other.get() > 0).then_some(())))?;
    pair.wait_progress(super::world::SOME, LONG)?;
    world.laptop.ip([format!("route del {default}")])?;
    pair.wait_progress(super::world::SOME, LONG)?;

    // Where no route leads from an address at all, it is refused, and nothing changes.
    client.handoff(Some(world.at.ipv4()?))?;
    is_native(&client, Side::Client, &pair)?;
    world.laptop.ip([format!("rule add from {second} unreachable")])?;
    let refusal = client.handoff(Some(second));
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains("no route leads")),
        "a hand-off to an address that no route leads from gave {refusal:?}"
    );
    is_native(&client, Side::Client, &pair)?;
    pair.wait_progress(super::world::SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// What `doctor` says, and whether it found something that keeps Whimbrel from working.
fn doctor(daemon: &Whimbrel, more: &[&str]) -> Result<(String, bool)> {
    let script = "\"$@\"; echo \"ended with $?\"";
    let command = daemon.host().command("sh").args(["-c", script, "sh"]).arg(daemon.binary());
    let said = command.arg("--run-dir").arg(daemon.run_dir()).arg("doctor").args(more).run()?;
    let good = said.ends_with("ended with 0\n");
    Ok((said, good))
}

fn watched(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let (said, good) = doctor(&client, &[])?;
    expect!(good && said.contains("UDP port 2031"), "{said}");
    step("a firewall is in the way");
    let table =
        "table inet guard { chain in { type filter hook input priority 0; policy accept; udp dport 2031 drop; }\n}";
    world.laptop.nft(table)?;
    let (said, _) = doctor(&client, &[])?;
    expect!(said.contains("guard") || said.contains("drops"), "the table is not named: {said}");
    world.laptop.nft("delete table inet guard")?;
    let (again, good) = doctor(&client, &[])?;
    expect!(good && !again.contains("guard"), "{again}");
    let (said, good) = doctor(&client, &["--config", "/nonexistent.toml"])?;
    expect!(!good && said.contains("there is no configuration /nonexistent.toml"), "{said}");

    step("somebody watches");
    // On a terminal of its own (script(1)), from which keys are read.
    let command = format!("{} --run-dir {} watch", client.binary().display(), client.run_dir().display());
    let script =
        world.laptop.command("script").args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"]);
    let mut watch = script.env("TERM", "vt100").label("watch").spawn()?;
    let pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    // The screen as it was drawn last: each begins in the corner.
    let screen = |watch: &Process| watch.stdout().rsplit("\x1b[H").nth(1).unwrap_or_default().to_owned();
    let shows = |watch: &mut Process, what: &[&str]| {
        let mut last = String::new();
        let result = wait_until(LONG, &format!("`watch` shows {what:?}"), || {
            last = screen(watch);
            what.iter().all(|what| last.contains(what))
        });
        result.map_err(|error| crate::Error::Usage(format!("{error}; it shows {last:?}")))
    };
    let local = pair.local().to_string();
    shows(&mut watch, &[&local, "native", "bit/s", "q quits"])?;
    let b = world.b.clone();
    world.roam(&b)?;
    shows(&mut watch, &[&local, "moved", "rewrite"])?;
    client.kill()?;
    shows(&mut watch, &["!! no daemon answers", &local])?;
    client.restart()?;
    shows(&mut watch, &["the daemon was restarted", &local])?;
    world.finish(pair)?;
    shows(&mut watch, &["No connections."])?;
    watch.send_line("q")?;
    watch.wait_success(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

/// What of ours shows in a host's network.
fn traces(host: &Host) -> Result<String> {
    let shown = ["rule", "-6 rule", "-o addr show dev lo", "-o link show whimbrel0"];
    // The device is not there while no daemon ever ran.
    Ok(shown.iter().map(|arguments| host.ip_output(arguments).unwrap_or_default()).collect())
}

fn clean(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let untouched = traces(&world.laptop)?;
    let valid_mark = "net.ipv4.conf.all.src_valid_mark";
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;

    let refusal = client.cli(&["clean"]);
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains("Stop it first")),
        "cleaning under a daemon gave {refusal:?}"
    );
    // What moved goes on without the daemon.
    client.stop()?;
    pair.wait_progress(super::world::SOME, LONG)?;
    expect!(traces(&world.laptop)? != untouched, "nothing was left though a connection is moved");
    step("somebody cleans with another run directory");
    let before = traces(&world.laptop)?;
    let other = client.run_dir().with_file_name("another");
    let command = world.laptop.command("env").arg(client.binary()).arg("--run-dir").arg(&other).arg("clean");
    let told = command.run()?;
    println!("{told}");
    let unbroken = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let whose = format!("`whimbrel --run-dir {} clean` removes it", client.run_dir().display());
    expect!(unbroken.contains(&whose) && unbroken.contains("was not touched"), "{told}");
    expect!(traces(&world.laptop)? == before, "it has changed: {}", traces(&world.laptop)?);
    pair.wait_progress(super::world::SOME, LONG)?;

    step("and with its own");
    let told = client.cli(&["clean"])?;
    println!("{told}");
    for left in ["kept addresses", "whimbrel0", "programs and maps", "journal"] {
        expect!(told.contains(left), "{left} is not among what was removed: {told}");
    }
    expect!(traces(&world.laptop)? == untouched, "still there: {}", traces(&world.laptop)?);
    expect!(world.laptop.sysctl_value(valid_mark)? == "0", "{valid_mark} was not put back");
    let told = client.cli(&["clean"])?;
    expect!(told == "Nothing was left behind.\n", "the second time: {told}");

    // And all begins anew.
    client.restart()?;
    let fresh = world.stream()?;
    client.wait_introduced(&fresh, LONG)?;
    fresh.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

fn forgotten(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut moved = world.stream()?;
    client.wait_introduced(&moved, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut moved)?;
    let mut native = world.stream()?;
    client.wait_introduced(&native, LONG)?;
    let (status, since) = (server.status()?, server.status()?.newest_event);

    step("it is refused while a connection has moved");
    let refusal = client.cli(&["peers", "forget", "#1"]);
    let why = "a connection with this host has moved, and would end";
    expect!(refusal.as_ref().is_err_and(|error| error.to_string().contains(why)), "forgetting gave {refusal:?}");
    world.goes_on(&mut moved)?;

    step("and done by force");
    let said = client.cli(&["peers", "forget", "--force", &status.public_key])?;
    println!("{said}");
    let unbroken = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let had = "It had 2 connections, of which 1 had moved, which ends those of TCP.";
    expect!(unbroken.contains(had) && unbroken.contains(&status.public_key), "{said}");
    server.wait_event("peer-cleaned", since, LONG)?;
    for side in [Side::Client, Side::Server] {
        wait_for(LONG, "the program hears that its connection is over", || Ok(moved.status(side)?.error))?;
    }
    native.wait_progress(super::world::SOME, LONG)?;
    drop(moved);
    world.forget_resets();

    step("and all begins anew");
    let fresh = world.stream()?;
    client.wait_introduced(&fresh, LONG)?;
    fresh.finish(LONG)?;
    native.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

/// How long the other end may take to hear that a connection is over.
const HEARD: Duration = Duration::from_secs(1);
/// How long peers are waited for that do not answer.
const WAITED: Duration = Duration::from_secs(2);

fn clean_told(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let a = world.a.clone();
    // Without anybody to be told, as a measure.
    let alone = lab.host("alone")?;
    alone.join(&a.network, &Join::by("eth0"))?;
    let mut of_nobody = alone.whimbrel()?;
    of_nobody.kill()?;
    let (said, usual) = of_nobody.clean()?;
    expect!(!said.contains("told") && !said.contains("not confirmed"), "{said}");
    step(&format!("it takes {:.0} ms where there is nobody to be told", usual.as_secs_f64() * 1e3));

    let mut moved = world.stream()?;
    client.wait_introduced(&moved, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut moved)?;
    let mut native = world.stream()?;
    client.wait_introduced(&native, LONG)?;
    client.stop()?;
    let since = server.status()?.newest_event;
    let (said, took) = client.clean()?;
    step(&format!("the other end is told: {:.0} ms", took.as_secs_f64() * 1e3));
    expect!(said.contains("1 peer was told.") && !said.contains("not confirmed"), "{said}");
    expect!(took < usual + HEARD * patience(), "it took {took:?}, and {usual:?} where there is nobody to be told");
    let told = server.wait_event("peer-cleaned", since, HEARD)?;
    expect!(told.sentence.contains("1 moved connection ended"), "{}", told.sentence);
    let error = wait_for(HEARD, "the server's program hears that its connection is over", || {
        Ok(moved.status(Side::Server)?.error)
    })?;
    expect!(error.to_lowercase().contains("reset"), "the server's program has {error}");
    expect!(!server.connections()?.iter().any(|one| one.flow.remote == moved.local()), "the server has it still");
    native.wait_progress(super::world::SOME, LONG)?;
    let shown = server.wait_connection(native.peer(), native.local(), LONG, "forgotten", |one| {
        one.state == ConnectionState::Unprotected
    })?;
    expect!(shown.reason.as_deref().is_some_and(|reason| reason.contains("`whimbrel clean`")), "{shown:?}");
    drop(moved);
    world.forget_resets();

    step("and all begins anew");
    client.restart()?;
    client.wait_introduced(&native, LONG)?;
    world.roam(&a)?;
    native.wait_progress(super::world::SOME, LONG)?;

    step("the other end's daemon is not heard");
    server
        .host()
        .nft("table inet deaf {\n chain input {\n type filter hook input priority 0\n udp dport 2031 drop\n }\n }")?;
    client.stop()?;
    let since = server.status()?.newest_event;
    let (said, took) = client.clean()?;
    step(&format!("it was waited for: {:.0} ms", took.as_secs_f64() * 1e3));
    expect!(
        said.contains("1 peer has not confirmed it: no answer within 2 s.") && !said.contains("was told"),
        "{said}"
    );
    let most = usual + WAITED + HEARD * patience();
    expect!(took >= WAITED && took < most, "it took {took:?}, and {usual:?} where there is nobody to be told");
    expect!(server.events(since)?.iter().all(|event| event.kind != "peer-cleaned"), "the server was told");
    server.host().command("nft").args(["delete", "table", "inet", "deaf"]).run()?;
    drop(native);
    server.restart()?;
    client.restart()?;

    let both = [("somebody else has the port", "in use", true), ("the key is gone", "there is no key in", false)];
    for (what, why, state) in both {
        step(what);
        let pair = world.stream()?;
        client.wait_introduced(&pair, LONG)?;
        client.stop()?;
        let port = PairOptions { port: 2031, ..PairOptions::rate(super::world::RATE) };
        let beside = state.then(|| FlowPair::udp(&world.laptop, &world.laptop, world.at.ipv4()?, &port)).transpose()?;
        if !state {
            client.forget_everything()?;
        }
        let (said, took) = client.clean()?;
        expect!(said.contains("1 peer has not confirmed it: ") && said.contains(why), "{said}");
        expect!(took < usual + HEARD * patience(), "it took {took:?}, and {usual:?} where there is nobody to be told");
        drop(beside);
        drop(pair);
        client.restart()?;
    }
    all_run(&mut [&mut client, &mut server])
}

fn another_namespace(lab: &mut Lab) -> Result<()> {
    let host = lab.host("host")?;
    let mut daemon = host.whimbrel()?;
    daemon.kill()?;
    let refusal = daemon.restart_apart(true);
    let command = format!(
        "`nsenter --net=/run/netns/{} whimbrel --run-dir {} clean`",
        host.netns_name(),
        daemon.run_dir().display()
    );
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains(&command)),
        "a start in another namespace gave {refusal:?}, not {command}"
    );
    // As it says.
    let told = daemon.cli(&["clean"])?;
    expect!(told.contains("whimbrel0") && told.contains("programs and maps"), "nothing was cleaned: {told}");
    daemon.restart_apart(true)?;

    // With the daemon its namespace goes: nobody could clean there, or start.
    for clean in [false, true] {
        daemon.kill()?;
        if clean {
            let told = daemon.cli(&["clean"])?;
            expect!(told.contains("programs and maps") && !told.contains("whimbrel0"), "{told}");
        }
        daemon.restart_apart(false)?;
        let status = daemon.status()?;
        expect!(status.ready && status.counts.peers == 0, "{status:?}");
        daemon.stop()?;
        daemon.restart_apart(true)?;
    }
    daemon.restart_apart(false)?;

    // Two in one namespace do not go together.
    for (config, why) in [("", "UDP port 2031 is taken"), ("port = 2032\n", "works in this network namespace already")]
    {
        let second = host.whimbrel_with(config);
        expect!(
            second.as_ref().is_err_and(|error| error.to_string().contains(why)),
            "a second daemon with {config:?} gave {second:?}, not {why}"
        );
    }
    all_run(&mut [&mut daemon])
}

fn local_api(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let socket = whimbrel_ipc::socket_path(&client.run_dir());
    let open =
        || UnixStream::connect(&socket).map_err(|e| crate::Error::call("connect", socket.display().to_string(), e));
    let failed = |call| move |e| crate::Error::call(call, "the control socket", e);

    // All at once, and no more to say: what is slow to answer is answered first all the same.
    let mut stream = open()?;
    let requests = [Request::Connections, Request::Status, Request::Connections, Request::Peers];
    let lines: Vec<String> = requests.iter().filter_map(|request| request_to_line(request).ok()).collect();
    stream.write_all(lines.concat().as_bytes()).map_err(failed("write"))?;
    stream.shutdown(Shutdown::Write).map_err(failed("shutdown"))?;
    stream.set_read_timeout(Some(LONG * patience())).map_err(failed("setsockopt"))?;
    let answers: Vec<String> =
        BufReader::new(&stream).lines().collect::<std::result::Result<_, _>>().map_err(failed("read"))?;
    let kinds: Vec<&str> = answers.iter().filter_map(|line| line.split('"').nth(3)).collect();
    expect!(kinds == ["connections", "status", "connections", "peers"], "{kinds:?}: {answers:?}");

    // As many as fit, again and again, and nobody who waits for the answers.
    let threads = |client: &mut crate::Whimbrel| -> Result<usize> {
        let path = format!("/proc/{}/task", client.process().pid());
        Ok(std::fs::read_dir(&path).map_err(|e| crate::Error::call("readdir", path, e))?.count())
    };
    let before = threads(&mut client)?;
    let flood = request_to_line(&Request::Connections).unwrap_or_default().repeat(300);
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = open()?;
        stream.write_all(flood.as_bytes()).map_err(failed("write"))?;
        silent.push(stream);
    }
    let most = threads(&mut client)?;
    println!("    {before} threads, and {most} with {} questions under way", silent.len() * 300);
    expect!(most <= before + silent.len(), "{most} threads after {before}");
    drop(silent);
    wait_for(LONG, "the daemon has done with them", || Ok((threads(&mut client)? <= before).then_some(())))?;
    let used = crate::cpu_seconds(client.process().pid())?;
    let until = MonoTime::now() + Duration::from_secs(1);
    wait_for(LONG, "a second has passed", || Ok((MonoTime::now() > until).then_some(())))?;
    let used = crate::cpu_seconds(client.process().pid())? - used;
    println!("    {used:.2} s of a processor in the second after they had gone");
    expect!(used < 0.5, "the daemon is busy with nobody: {used} s of a second");
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}
