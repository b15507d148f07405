//! What other services say on D-Bus: of networks, to the daemon; and what users are told on theirs.

use std::time::Duration;

use rustix::process::Signal;
use whimbrel_ipc::AgainstNetwork;

use super::preferred::{SECOND, is_reached_from, join_second, no_gaps, wait_reached_from};
use super::world::{LONG, RATE, SOME, World, all_run, is_native, site, step};
use super::{Scenario, scenario};
use crate::{Bus, FlowPair, Join, Lab, Leave, MonoTime, Result, Side, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "captive-portal",
        "a network comes that the routes prefer and has a portal, as NetworkManager says: connections stay on the one \
         before, and go to the new one when it leads everywhere",
        captive_portal,
    ),
    scenario(
        "modem-lost",
        "ModemManager says that the modem has lost its network: connections leave it before packets tell, and come \
         back when it has one again",
        modem_lost,
    ),
    scenario(
        "leaving",
        "NetworkManager says that it takes an interface down: connections have left it by then, with next to nothing \
         sent again; a bus that hangs or goes disturbs nothing, and one that comes back is listened to",
        leaving,
    ),
    scenario(
        "notify",
        "a user's session shows one notification for a hand-off, and one while the peer gives no answer, over the \
         daemon's restart",
        notify,
    ),
];

/// What `whimbrel doctor` says of services, once it says this.
fn wait_listened(client: &Whimbrel, what: &str) -> Result<()> {
    wait_for(LONG, &format!("doctor says that {what}"), || {
        // It may find something else that is wrong with this host.
        let output = client.command(&["doctor"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(said.contains(what).then_some(()))
    })
}

fn captive_portal(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let bus = Bus::start(&world.laptop)?;
    let _manager = bus.network_manager(&["wlan0", SECOND])?;
    bus.device(SECOND, "Ip4Connectivity=u(2)")?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    let mut echo = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    client.wait_introduced(&echo, LONG)?;
    wait_listened(&client, "NetworkManager is listened to")?;
    let first = world.at.ipv4()?;

    step("a network comes that the routes prefer, and there is a portal");
    let before = client.status()?.newest_event;
    let second = world.laptop.join(&world.b.network, &Join::by(SECOND).metric(50))?;
    let there = second.ipv4()?;
    let route = world.laptop.ip_output(&format!("route get {}", world.at_server.ipv4()?))?;
    expect!(route.contains(SECOND) || route.contains("wlan0"), "{route}");
    let explained = || {
        let choices = client.explained(None)?;
        let mut networks = choices.peers.iter().flat_map(|choice| &choice.networks);
        let avoided =
            networks.any(|network| network.interface == SECOND && network.against == Some(AgainstNetwork::Captive));
        Ok(avoided.then_some(()))
    };
    wait_for(LONG, "the second network is avoided for its portal", explained)?;
    // Longer than it takes to go to a network that is preferred.
    pair.wait_progress(RATE / 8 * 4, LONG)?;
    echo.wait_progress(SOME, LONG)?;
    expect!(is_reached_from(&client, first)?, "the server is not reached from {first}");
    let moves = client.events(before)?.iter().filter(|event| event.kind == "moved").count();
    expect!(moves == 0, "{moves} hand-offs to a network with a portal");

    step("somebody has logged in");
    let full = MonoTime::now();
    bus.device(SECOND, "Ip4Connectivity=u(4)")?;
    wait_reached_from(&client, there, LONG)?;
    pair.wait_progress(2 * SOME, LONG)?;
    echo.wait_progress(SOME, LONG)?;
    no_gaps(&mut pair, full, "to what leads everywhere now")?;
    world.finish(echo)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn modem_lost(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let bus = Bus::start(&world.laptop)?;
    let _manager = bus.modem_manager(&world.at.interface)?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    wait_listened(&client, "ModemManager is listened to")?;
    let (first, second) = (world.at.ipv4()?, join_second(&world, &client)?);
    let there = second.ipv4()?;
    pair.wait_progress(SOME, LONG)?;

    step("the modem looks for a network");
    let (before, said) = (client.status()?.newest_event, MonoTime::now());
    bus.modem("Modem.Modem3gpp", "RegistrationState=u(2)")?;
    wait_reached_from(&client, there, LONG)?;
    world.laptop.leave(&world.at, Leave::Silent)?;
    pair.wait_progress(2 * SOME, LONG)?;
    no_gaps(&mut pair, said, "away from the modem")?;
    let kinds: Vec<String> = client.events(before)?.into_iter().map(|event| event.kind).collect();
    expect!(!kinds.iter().any(|kind| kind == "network-silent"), "packets told: {kinds:?}");

    step("it has one again");
    world.at.access()?.restore()?;
    bus.modem("Modem.Modem3gpp", "RegistrationState=u(5)")?;
    // A path at rest is asked twice in 25 s whether it leads anywhere again.
    wait_reached_from(&client, first, Duration::from_secs(90))?;
    wait_for(LONG, "all is native again", || Ok(is_native(&client, Side::Client, &pair).ok()))?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn leaving(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut bus = Bus::start(&world.laptop)?;
    let mut manager = bus.network_manager(&["wlan0", SECOND])?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    wait_listened(&client, "NetworkManager is listened to")?;
    let second = join_second(&world, &client)?;
    pair.wait_progress(SOME, LONG)?;

    step("the interface in use is about to be taken down");
    let again = |pair: &mut FlowPair| -> Result<u32> {
        let counts = pair.check()?.map(|end| end.tcp.map_or(0, |tcp| tcp.total_retransmits));
        Ok(counts[0] + counts[1])
    };
    let (before, said) = (again(&mut pair)?, MonoTime::now());
    bus.device("wlan0", "State=u(110)")?;
    wait_reached_from(&client, second.ipv4()?, LONG)?;
    // What the server had sent before it was told still comes.
    pair.wait_progress(SOME, LONG)?;
    let old = world.a.link()?.count(|_, packet| packet.tcp().is_some());
    pair.wait_progress(SOME, LONG)?;
    expect!(old.get() == 0, "{} TCP packets took the old path after the move", old.get());
    world.laptop.leave(&world.at, Leave::Orderly)?;
    bus.device("wlan0", "State=u(30)")?;
    pair.wait_progress(SOME, LONG)?;
    no_gaps(&mut pair, said, "away from what goes")?;
    let sent_again = again(&mut pair)? - before;
    println!("    {sent_again} segments were sent again");
    expect!(sent_again < 40, "{sent_again} segments were sent again");

    step("the bus hangs, and NetworkManager goes");
    let calm = MonoTime::now();
    bus.process().signal(Signal::STOP)?;
    pair.wait_progress(SOME, LONG)?;
    expect!(client.status()?.ready, "the daemon waits for the bus");
    bus.process().signal(Signal::CONT)?;
    manager.kill()?;
    wait_listened(&client, "NetworkManager, systemd-networkd are not there")?;
    pair.wait_progress(SOME, LONG)?;

    step("the bus goes, and comes back with a NetworkManager that takes down what is in use");
    bus.process().kill()?;
    wait_listened(&client, "no bus is listened to")?;
    pair.wait_progress(SOME, LONG)?;
    no_gaps(&mut pair, calm, "while the bus did that")?;
    world.at = world.laptop.join(&world.a.network, &Join::default())?;
    wait_reached_from(&client, world.at.ipv4()?, LONG)?;
    let mut bus = Bus::start(&world.laptop)?;
    let _manager = bus.network_manager(&["wlan0"])?;
    bus.device("wlan0", "State=u(110)")?;
    wait_reached_from(&client, second.ipv4()?, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    bus.process().kill()?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn notify(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let says = |client: &crate::Whimbrel| {
        let command = world.laptop.command(client.binary()).arg("--run-dir").arg(client.run_dir()).arg("notify");
        command.label("notify")
    };

    step("there is no session");
    let output = says(&client).env("DBUS_SESSION_BUS_ADDRESS", world.laptop.bus_address()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    expect!(!output.status.success() && said.contains("notifications cannot be shown"), "{said}");

    step("the laptop moves");
    let mut bus = Bus::start(&world.laptop)?;
    let mut desktop = bus.template("notification_daemon", "org.freedesktop.Notifications")?;
    let mut notifier = bus.with_bus(says(&client)).spawn()?;
    notifier.wait_line(LONG, "notifications begin", |line| line.contains("are shown").then_some(()))?;
    let shown = |line: &str| line.contains(" Notify ").then(|| line.to_owned());
    let to = world.b.clone();
    world.roam(&to)?;
    let told = desktop.wait_line(LONG, "a notification of the hand-off", shown)?;
    println!("    {told}");
    expect!(told.contains("Connections have moved") && told.contains("1 connection with 1 host"), "{told}");
    pair.wait_progress(SOME, LONG)?;

    step("the daemon is started anew, and the peer gives no answer");
    client.restart()?;
    pair.wait_progress(SOME, LONG)?;
    let before = client.status()?.newest_event;
    world.laptop.leave(&world.at, Leave::Silent)?;
    client.wait_event("not-confirmed", before, LONG)?;
    let told = desktop.wait_line(LONG, "a notification of the silence", shown)?;
    println!("    {told}");
    expect!(told.contains("Connections get no answer"), "{told}");
    world.at.access()?.restore()?;
    pair.wait_progress(SOME, LONG)?;
    expect!(notifier.is_running(), "{}", notifier.stderr());

    notifier.kill()?;
    desktop.kill()?;
    bus.process().kill()?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
