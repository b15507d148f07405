//! A host with two networks, of which the user's file prefers the one that the routes do not.

use std::time::Duration;

use whimbrel_ipc::{AgainstNetwork, WhyNetwork};

use super::roam::carried;
use super::world::{LONG, RATE, SOME, World, all_run, is_native, reconfigure, site, step};
use super::{Scenario, scenario};
use crate::{
    Download, Error, FlowPair, Join, Lab, Leave, MonoTime, Nginx, PairOptions, Result, Side, Whimbrel, expect,
    patience, wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "vhf-preferred",
        "the file prefers the network that the routes do not: a download and TCP both ways go there with nothing sent \
         twice, go on by the other while the preferred one is silent, come back, and go home when nothing is wanted",
        preferred,
    ),
    scenario(
        "vhf-placed",
        "the file has a download by its port on the second network, while a stream goes by the first: each goes by its \
         own; all by the first while the second is silent, or gone, with nothing lost; and they divide again",
        placed,
    ),
    scenario(
        "vhf-renamed",
        "the preferred interface gets another name while it is in use: it is preferred no longer, and all goes on",
        renamed,
    ),
    scenario(
        "vhf-preferred-flaps",
        "the preferred network's address goes and returns every 300 ms for 15 seconds: three hand-offs at the most, \
         and it is taken again afterwards",
        flaps,
    ),
    scenario(
        "vhf-network-manager",
        "NetworkManager says before it takes an interface down: what goes by that has left it by then, with next to \
         nothing sent again; what does not go by it stays, and so does what somebody else has chosen",
        network_manager,
    ),
];

/// Time in which nothing may arrive, where both networks are up or one is watched.
const WATCHED: Duration = Duration::from_millis(600);
pub(super) const SECOND: &str = "eth0";

/// The second network's address, once the daemon knows it.
pub(super) fn join_second(world: &World, client: &Whimbrel) -> Result<crate::Attachment> {
    let second = world.laptop.join(&world.b.network, &Join::by(SECOND).metric(500))?;
    let there = second.ipv4()?;
    wait_for(LONG, "the second address is known", || {
        Ok(client.status()?.addresses.iter().any(|own| own.address == there).then_some(()))
    })?;
    Ok(second)
}

/// From where the server's peer is reached.
pub(super) fn is_reached_from(client: &Whimbrel, from: std::net::IpAddr) -> Result<bool> {
    Ok(client.paths()?.iter().any(|path| path.active && path.local == Some(from)))
}

pub(super) fn wait_reached_from(client: &Whimbrel, from: std::net::IpAddr, within: Duration) -> Result<()> {
    wait_for(within, &format!("the server is reached from {from}"), || Ok(is_reached_from(client, from)?.then_some(())))
}

/// Neither end received nothing for long since then.
pub(super) fn no_gaps(pair: &mut FlowPair, since: MonoTime, what: &str) -> Result<()> {
    for side in [Side::Client, Side::Server] {
        let gap = pair.longest_gap(side, since)?;
        println!("    {what}: {side:?} received nothing for {:.0} ms at the most", gap.as_secs_f64() * 1e3);
        expect!(gap < WATCHED * patience(), "{what}: {side:?} received nothing for {gap:?}");
    }
    Ok(())
}

fn preferred(lab: &mut Lab) -> Result<()> {
    const VIGILANT: &str = "[links]\nmode = \"vigilant\"\n";
    let world = World::new(lab, site("a"), site("b"))?;
    let first = world.at.ipv4()?;
    // The routes prefer it, and it costs.
    let config = format!("{VIGILANT}\n[[prefer]]\nprice = {{ \"{}\" = 5 }}\n", world.at.interface);
    let mut client = world.laptop.whimbrel_with(&config)?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    let nginx = Nginx::start(&world.server, world.at_server.ipv4()?)?;
    let url = nginx.file("film", 30_000_000)?;
    let mut curl = Download::start(&world.laptop, &url, &["--limit-rate", "250k"])?;
    client.wait_introduced(&pair, LONG)?;
    let both = || {
        let known = client.connections()?.iter().filter(|one| one.peer.is_some()).count();
        Ok((known >= 2).then_some(()))
    };
    wait_for(LONG, "the download is introduced", both)?;

    step("another network comes, which costs nothing: everything goes there");
    let (before, came) = (client.status()?.newest_event, MonoTime::now());
    let second = join_second(&world, &client)?;
    let there = second.ipv4()?;
    let told = client.wait_event("network-preferred", before, LONG)?;
    println!("    {}, after {:.1} s", told.sentence, (MonoTime::now() - came).as_secs_f64());
    let told = client.wait_event("moved", before, LONG)?;
    println!("    {}", told.sentence);
    wait_reached_from(&client, there, LONG)?;
    pair.wait_progress(2 * SOME, LONG)?;
    curl.wait_progress(200_000, LONG)?;
    no_gaps(&mut pair, came, "to what is preferred")?;
    let leads = || {
        let way = world.laptop.ip_output(&format!("route get {}", world.at_server.ipv4()?))?;
        Ok(way.contains(&format!("dev {SECOND} ")).then_some(()))
    };
    wait_for(LONG, "what is new goes by the second network", leads)?;
    let fresh = world.stream()?;
    expect!(fresh.local().ip() == there, "what is new begins at {}", fresh.local());
    fresh.finish(LONG)?;

    says_why(&client, world.at.interface.as_str())?;

    step("the preferred network falls silent");
    pair.wait_progress(RATE / 8 * 5, LONG)?;
    let (before, cut) = (client.status()?.newest_event, MonoTime::now());
    world.laptop.leave(&second, Leave::Silent)?;
    let told = client.wait_event("network-silent", before, LONG)?;
    println!("    {}", told.sentence);
    pair.wait_progress(2 * SOME, LONG)?;
    curl.wait_progress(200_000, LONG)?;
    expect!(is_reached_from(&client, first)?, "the server is not reached from {first}");
    no_gaps(&mut pair, cut, "away from it")?;
    let explained = client.explained(None)?;
    expect!(explained.peers[0].silent.as_deref() == Some(SECOND), "{explained:?}");

    step("it answers again");
    let (before, restored) = (client.status()?.newest_event, MonoTime::now());
    second.access()?.restore()?;
    let told = client.wait_event("network-back", before, Duration::from_secs(90))?;
    println!("    {}, after {:.1} s", told.sentence, (MonoTime::now() - restored).as_secs_f64());
    wait_reached_from(&client, there, LONG)?;
    pair.wait_progress(2 * SOME, LONG)?;
    no_gaps(&mut pair, restored, "back to it")?;

    step("the file wants nothing any more");
    let ended = MonoTime::now();
    reconfigure(&mut client, VIGILANT)?;
    wait_reached_from(&client, first, LONG)?;
    wait_for(LONG, "all is native again", || Ok(is_native(&client, Side::Client, &pair).ok()))?;
    pair.wait_progress(SOME, LONG)?;
    no_gaps(&mut pair, ended, "home")?;
    curl.finish(&nginx.checksum(&world.server, "film")?, Duration::from_secs(240))?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn placed(lab: &mut Lab) -> Result<()> {
    const MUCH: u64 = 1_000_000;
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let mut client = world.laptop.whimbrel_with("kick = true\n")?;
    let mut server = world.server.whimbrel()?;
    let mut second = join_second(&world, &client)?;
    let options = PairOptions::download(Some(4 * RATE));
    let mut download = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options)?;
    let mut usual = world.stream()?;
    client.wait_introduced(&download, LONG)?;
    client.wait_introduced(&usual, LONG)?;
    // How much of the next bytes of the download goes by each of the two networks.
    let share = |download: &mut FlowPair| -> Result<[u64; 2]> {
        let before = [carried(&world.a)?, carried(&world.b)?];
        download.wait_progress_of(&[Side::Client], MUCH, LONG)?;
        Ok([carried(&world.a)? - before[0], carried(&world.b)? - before[1]])
    };
    let divides = |download: &mut FlowPair| -> Result<[u64; 2]> {
        wait_for(Duration::from_secs(90), "the download goes by the second network", || {
            let [first, other] = share(download)?;
            // What the stream that stays carries meanwhile, both ways, is half of it.
            Ok((other > MUCH && first < MUCH).then_some([first, other]))
        })
    };
    let [first, other] = share(&mut download)?;
    expect!(first > MUCH && other < MUCH / 10, "before: {first} bytes by the first, {other} by the second");

    step("the file places the download, and means nothing else");
    let of_port = format!("[[prefer]]\nlocal_port = {}\norder = \"{SECOND}\"\n", download.local().port());
    let nobodys = "\n[[prefer]]\nprogram = \"no-such-program\"\norder = \"eth0\"\n";
    let config = format!("{of_port}{nobodys}");
    let tried = client.explained(Some(&config))?;
    let counted: Vec<_> = tried.sections.iter().map(|section| section.connections).collect();
    expect!(counted == [Some(1), None], "what it would do: {tried:?}");
    let (before, at) = (client.status()?.newest_event, MonoTime::now());
    reconfigure(&mut client, &config)?;
    let told = client.wait_event("connections-placed", before, LONG)?;
    println!("    {}", told.sentence);
    let [first, other] = divides(&mut download)?;
    println!("    the download: {first} bytes by the first network, {other} by the second");
    is_native(&client, Side::Client, &usual)?;
    usual.wait_progress(SOME, LONG)?;
    no_gaps(&mut usual, at, "the stream, which stays")?;
    let gap = download.longest_gap(Side::Client, at)?;
    expect!(gap < WATCHED * patience(), "the download stood still for {gap:?}");
    let local = download.local();
    let goes_by = |daemon: &Whimbrel, network: Option<&str>| {
        wait_for(LONG, &format!("the download goes by {network:?}"), || {
            let all = daemon.connections()?;
            let found = all.iter().find(|one| one.flow.local == local || one.flow.remote == local);
            Ok(found.filter(|one| one.network.as_deref() == network).map(drop))
        })
    };
    goes_by(&client, Some(SECOND))?;
    // The other end says by which of its own.
    goes_by(&server, Some(world.at_server.interface.as_str()))?;
    let explained = client.explained(None)?;
    print!("{}", client.cli(&["paths", "--explain"])?);
    let of: Vec<_> = explained.peers[0].connections.iter().map(|of| (of.connections, of.apart)).collect();
    let counted: Vec<_> = explained.sections.iter().map(|section| section.connections).collect();
    expect!(of == [(1, 1)] && counted == [Some(1), Some(0)], "{explained:?}");

    for leave in [Leave::Silent, Leave::Carrier] {
        step(&format!("the second network fails: {leave:?}"));
        let failed = MonoTime::now();
        world.laptop.leave(&second, leave)?;
        goes_by(&client, None)?;
        download.wait_progress_of(&[Side::Client], SOME, LONG)?;
        let gap = download.longest_gap(Side::Client, failed)?;
        println!("    the download stood still for {:.0} ms at the most", gap.as_secs_f64() * 1e3);
        expect!(gap < Duration::from_secs(8) * patience(), "{gap:?}");
        no_gaps(&mut usual, failed, "the stream, meanwhile")?;
        is_native(&client, Side::Client, &download)?;
        match leave {
            Leave::Silent => second.access()?.restore()?,
            _ => second = world.laptop.plug_in(&second)?,
        }
        let [first, other] = divides(&mut download)?;
        println!("    back there: {first} bytes by the first network, {other} by the second");
    }

    step("a file with a mistake changes nothing, and one that wants nothing has all go with the others");
    let wrong = client.explained(Some("[[prefer]]\nprogram = \"a/b\"\norder = \"eth0\"\n"));
    expect!(wrong.is_err(), "{wrong:?}");
    goes_by(&client, Some(SECOND))?;
    reconfigure(&mut client, "kick = true\n")?;
    goes_by(&client, None)?;
    is_native(&client, Side::Client, &download)?;
    is_native(&server, Side::Server, &download)?;
    usual.wait_progress(SOME, LONG)?;
    usual.finish(LONG)?;
    world.finish(download)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

/// What is said of what is so, and of what other files would do.
fn says_why(client: &Whimbrel, first: &str) -> Result<()> {
    print!("{}", client.cli(&["paths", "--explain"])?);
    let explained = client.explained(None)?;
    let peer = &explained.peers[0];
    let so = (peer.in_use.as_str(), peer.routes.as_str(), peer.selected.as_deref(), peer.why);
    expect!(so == (SECOND, first, Some(SECOND), WhyNetwork::Price) && peer.line.is_some(), "{explained:?}");
    let against = peer.networks.iter().find(|network| network.interface == first).and_then(|network| network.against);
    expect!(against == Some(AgainstNetwork::Price), "{explained:?}");
    // The one in use is doubted for a moment now and then, where the machine is busy with something else; what is said
    // then is true, and not meant.
    let would = |config: &str, wanted: WhyNetwork| {
        wait_for(LONG, &format!("{config:?} selects {first}, {wanted:?}"), || {
            let explained = client.explained(Some(config))?;
            expect!(explained.trial, "{explained:?}");
            let peer = &explained.peers[0];
            Ok((peer.selected.as_deref() == Some(first) && peer.why == wanted).then_some(explained.sections))
        })
    };
    // Other sections would have it elsewhere, and none where the routes lead.
    would(&format!("[[prefer]]\norder = [\"{first}\", \"{SECOND}\"]\n"), WhyNetwork::Order)?;
    would("", WhyNetwork::Default)?;
    let sections = would("[[prefer]]\norder = \"nothing0\"\n", WhyNetwork::Routes)?;
    expect!(sections[0].selects_nothing, "{sections:?}");
    would("[[prefer]]\ndelay = 1\n", WhyNetwork::NothingFits)?;
    expect!(client.explained(Some("[[prefer]]\n")).is_err(), "a section that says nothing is taken");
    // And nothing was changed by that.
    let after = client.explained(None)?;
    expect!(after.peers[0].in_use == SECOND && after.peers[0].line.is_some(), "{after:?}");
    Ok(())
}

fn renamed(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let first = world.at.ipv4()?;
    let config = format!("[[prefer]]\norder = [\"{SECOND}\", \"{}\"]\n", world.at.interface);
    let mut client = world.laptop.whimbrel_with(&config)?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let second = join_second(&world, &client)?;
    wait_reached_from(&client, second.ipv4()?, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    step("its interface gets another name");
    let (before, at) = (client.status()?.newest_event, MonoTime::now());
    world.laptop.ip([format!("link set {SECOND} name cable0")])?;
    let told = client.wait_event("network-preferred", before, LONG)?;
    println!("    {}", told.sentence);
    wait_reached_from(&client, first, LONG)?;
    pair.wait_progress(2 * SOME, LONG)?;
    no_gaps(&mut pair, at, "away from a name that is gone")?;
    world.laptop.ip([format!("link set cable0 name {SECOND}")])?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn network_manager(lab: &mut Lab) -> Result<()> {
    const SCRIPT: &str = include_str!("../../../packaging/whimbrel-networkmanager");
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let second = join_second(&world, &client)?;
    let here = SCRIPT.replace("/usr/bin/whimbrel", &client.binary().display().to_string());
    let script = world.laptop.dir().join("50-whimbrel");
    std::fs::write(&script, here).map_err(|error| Error::call("write", script.display().to_string(), error))?;
    let dispatched_by = |device: &str, interface: &str, action: &str| {
        let says = world.laptop.command("sh").arg(&script).args([device, action]).env("DEVICE_IP_IFACE", interface);
        says.env("WHIMBREL_RUN_DIR", client.run_dir()).run()
    };
    let dispatched = |interface: &str, action: &str| dispatched_by(interface, interface, action);
    step("an interface goes that nothing goes by");
    let before = client.status()?.newest_event;
    dispatched(SECOND, "pre-down")?;
    let moves = client.events(before)?.iter().filter(|event| event.kind == "moving").count();
    expect!(moves == 0, "{moves} hand-offs");

    step("an interface goes while somebody has chosen the other");
    client.handoff(Some(second.ipv4()?))?;
    wait_reached_from(&client, second.ipv4()?, LONG)?;
    let before = client.status()?.newest_event;
    dispatched("wwan0", "down")?;
    let moves = client.events(before)?.iter().filter(|event| event.kind == "moving").count();
    expect!(moves == 0 && is_reached_from(&client, second.ipv4()?)?, "what was chosen is given back: {moves}");
    client.handoff(None)?;
    wait_for(LONG, "all is native", || Ok(is_native(&client, Side::Client, &pair).ok()))?;

    step("the one in use goes");
    pair.wait_progress(SOME, LONG)?;
    let again = |pair: &mut FlowPair| -> Result<u32> {
        let counts = pair.check()?.map(|end| end.tcp.map_or(0, |tcp| tcp.total_retransmits));
        Ok(counts[0] + counts[1])
    };
    let (before, said) = (again(&mut pair)?, MonoTime::now());
    // As for a modem, which has another name than its interface, and none when that is down.
    dispatched_by("cdc-wdm0", "wlan0", "pre-down")?;
    expect!(is_reached_from(&client, second.ipv4()?)?, "the server is not reached by the other network");
    // What the server had sent before it was told still comes.
    pair.wait_progress(SOME, LONG)?;
    let old = world.a.link()?.count(|_, packet| packet.tcp().is_some());
    pair.wait_progress(SOME, LONG)?;
    expect!(old.get() == 0, "{} TCP packets took the old path after the move", old.get());
    world.laptop.leave(&world.at, Leave::Orderly)?;
    dispatched_by("cdc-wdm0", "", "down")?;
    pair.wait_progress(SOME, LONG)?;
    no_gaps(&mut pair, said, "away from what goes")?;
    let sent_again = again(&mut pair)? - before;
    println!("    {sent_again} segments were sent again");
    expect!(sent_again < 40, "{sent_again} segments were sent again");

    step("it is back, and in use as ever");
    world.at = world.laptop.join(&world.a.network, &Join::default())?;
    wait_reached_from(&client, world.at.ipv4()?, LONG)?;
    wait_for(LONG, "all is native again", || Ok(is_native(&client, Side::Client, &pair).ok()))?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn flaps(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let config = format!("[[prefer]]\norder = \"{SECOND}\"\n");
    let mut client = world.laptop.whimbrel_with(&config)?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let second = join_second(&world, &client)?;
    let there = second.ipv4()?;
    wait_reached_from(&client, there, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    let before = client.status()?.newest_event;
    let flapping = MonoTime::now();
    let (gateway, length) = world.b.network.spec().v4.ok_or_else(|| Error::Usage("b has no IPv4".into()))?;
    let mut times = 0;
    while MonoTime::now() - flapping < Duration::from_secs(15) {
        world.laptop.ip([format!("addr del {there}/{length} dev {SECOND}")])?;
        std::thread::sleep(Duration::from_millis(300));
        world.laptop.ip([
            format!("addr add {there}/{length} dev {SECOND}"),
            format!("route add default via {gateway} dev {SECOND} metric 500"),
        ])?;
        std::thread::sleep(Duration::from_millis(300));
        times += 1;
    }
    let moves = client.events(before)?.iter().filter(|event| event.kind == "moving").count();
    println!("    out and in again {times} times: {moves} hand-offs");
    expect!((1..=3).contains(&moves), "{moves} hand-offs for {times} times");
    pair.wait_progress(SOME, LONG)?;
    wait_reached_from(&client, there, Duration::from_secs(90))?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
