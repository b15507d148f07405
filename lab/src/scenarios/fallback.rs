//! Networks that let no UDP through, and peers that are reached over TCP there (decision 0110).

use whimbrel_ipc::{Carrier, ConnectionState, EventRecord};

use super::world::{LONG, SOME, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{FlowPair, Gateway, Lab, PairOptions, Result, Side, SshServer, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "udp-filtered",
        "in a network that drops all UDP connections go on over TCP, shown as such, also when either daemon is killed \
         meanwhile, and by UDP again where that passes",
        |lab| filtered(lab, Gateway::Router, false),
    ),
    scenario("udp-filtered-nat", "the same behind a NAT", |lab| filtered(lab, Gateway::NatFirewall, false)),
    scenario("udp-filtered-6", "the same over IPv6", |lab| filtered(lab, Gateway::Router, true)),
];

/// Drops all UDP on its way through a router.
const NO_UDP: &str = "table inet cafe { chain forward { type filter hook forward priority -5; policy accept; \
                      meta l4proto udp drop;\n}\n}\n";
/// Datagrams that must arrive in both directions.
const ENOUGH: u64 = 100;
/// Where the server takes connections.
const PORT: u16 = 443;

/// Waits until a daemon has told that all goes over TCP, or by UDP again.
fn goes(daemon: &Whimbrel, since: u64, by_tcp: bool) -> Result<()> {
    let what = format!("{} tells of {}", daemon.host().name(), if by_tcp { "TCP" } else { "UDP" });
    let is_it = |event: &EventRecord| event.kind == "transport" && event.fields["by_tcp"] == by_tcp;
    let event = wait_for(LONG * 3, &what, || Ok(daemon.events(since)?.into_iter().find(is_it)))?;
    println!("    {}", event.sentence);
    Ok(())
}

/// Both ends show that the pair goes over TCP.
fn is_shown(daemons: [&Whimbrel; 2], pair: &FlowPair) -> Result<()> {
    let named = [(pair.local(), pair.peer()), (pair.peer(), pair.seen_by_server())];
    for (daemon, (local, remote)) in daemons.into_iter().zip(named) {
        daemon.wait_connection(local, remote, LONG, "over TCP", |one| {
            one.state == ConnectionState::Moved && one.carrier == Some(Carrier::Tunnel) && one.by_tcp
        })?;
        for command in ["connections", "paths"] {
            let shown = daemon.cli(&[command])?;
            println!("{shown}");
            expect!(shown.contains("tunnel/tcp") && shown.contains("it is slower"), "`{command}`: {shown}");
        }
    }
    let paths = daemons[0].paths()?;
    let used = paths.iter().find(|path| path.active);
    expect!(used.is_some_and(|path| path.by_tcp && path.confirmed && path.remote.port() == PORT), "{paths:?}");
    Ok(())
}

fn filtered(lab: &mut Lab, gateway: Gateway, of_ipv6: bool) -> Result<()> {
    let at = |name| if of_ipv6 { site(name).v6_only() } else { site(name) };
    let mut world = World::new(lab, at("a"), at("b").behind(gateway))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel_with(&format!("listen_tcp = \"[::]:{PORT}\"\n"))?;
    let there = if of_ipv6 { world.at_server.ipv6()? } else { world.at_server.ipv4()? };
    let mut pair = world.stream_to(there)?;
    let mut datagrams = FlowPair::udp(&world.laptop, &world.server, there, &PairOptions::rate(200_000))?;
    let sshd = SshServer::start(&world.server, there)?;
    let mut session = sshd.session(&world.laptop)?;
    session.type_and_check(LONG)?;
    client.wait_introduced(&pair, LONG)?;
    wait_for(LONG, "all are introduced", || Ok((client.status()?.counts.introduced >= 3).then_some(())))?;
    is_native(&client, Side::Client, &pair)?;
    expect!(client.status()?.counts.introduced == 3, "the daemons' own connections are none of theirs");

    step("the laptop moves to where all UDP is dropped");
    let (home, cafe) = (world.a.clone(), world.b.clone());
    cafe.router.nft(NO_UDP)?;
    let since = [client.status()?.newest_event, server.status()?.newest_event];
    world.roam(&cafe)?;
    goes(&client, since[0], true)?;
    goes(&server, since[1], true)?;
    pair.wait_progress(SOME, LONG)?;
    datagrams.wait_progress(ENOUGH, LONG)?;
    let took = session.type_and_check(LONG)?;
    println!("    the shell answered in {:.0} ms", took.as_secs_f64() * 1e3);
    is_shown([&client, &server], &pair)?;
    let counts = client.status()?.counts;
    expect!((counts.introduced, counts.moved, counts.not_confirmed) == (3, 3, 0), "{counts:?}");

    step("strangers speak to the port, and say nothing or what is no datagram");
    let strangers = format!(
        "for i in $(seq 40); do exec {{fd}}<>/dev/tcp/{there}/{PORT} || exit 1; done; \
         for text in 'GET / HTTP/1.1\\r\\n\\r\\n' '\\0\\0' '\\0\\011half' '\\0\\005hello'; do \
         exec 3<>/dev/tcp/{there}/{PORT} && printf \"$text\" >&3; done; exec 3>&-; echo done"
    );
    let said = home.router.command("bash").args(["-c", &strangers]).run()?;
    expect!(said.contains("done"), "{said}");
    pair.wait_progress(SOME, LONG)?;

    for name in ["laptop", "server"] {
        step(&format!("the daemon of the {name} is killed and started again"));
        let killed = if name == "laptop" { &mut client } else { &mut server };
        killed.kill()?;
        killed.restart()?;
        pair.wait_progress(SOME, LONG * 3)?;
        datagrams.wait_progress(ENOUGH, LONG)?;
        session.type_and_check(LONG)?;
        is_shown([&client, &server], &pair)?;
    }

    step("the network lets UDP through");
    let since = [client.status()?.newest_event, server.status()?.newest_event];
    cafe.router.nft("delete table inet cafe")?;
    goes(&client, since[0], false)?;
    goes(&server, since[1], false)?;
    pair.wait_progress(SOME, LONG)?;
    let carrier = if gateway == Gateway::Router { Carrier::Rewrite } else { Carrier::Tunnel };
    carried_by(&client, Side::Client, &pair, carrier)?;
    expect!(!client.cli(&["connections"])?.contains("/tcp"), "it is over");

    step("and again not, and the laptop goes home");
    cafe.router.nft(NO_UDP)?;
    world.roam(&home)?;
    pair.wait_progress(SOME, LONG)?;
    is_native(&client, Side::Client, &pair)?;
    session.finish(LONG)?;
    datagrams.wait_progress(ENOUGH, LONG)?;
    datagrams.check()?;
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}
