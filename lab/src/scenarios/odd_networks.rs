//! Networks that are not what they seem, beside one that works.

use std::net::Ipv4Addr;
use std::time::Duration;

use whimbrel_ipc::EventRecord;

use super::preferred::{is_reached_from, no_gaps};
use super::world::{LONG, RATE, SOME, World, all_run, is_native, site, step};
use super::{Scenario, scenario};
use crate::{
    Cut, DhcpServer, EchoServer, Error, FlowPair, Join, Lab, Lease, MonoTime, PairOptions, Result, Side, expect,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "answers-for-everything",
        "a network comes that the routes prefer, whose router answers in everybody's name: nothing goes there, and \
         what there was before goes on, also when its network is silent for a while",
        answers_for_everything,
    ),
    scenario(
        "one-address-twice",
        "a second interface on another network gets the very address that the first one has, and loses it again",
        one_address_twice,
    ),
    scenario(
        "dhcp-conflict",
        "a network comes that the routes prefer, and its DHCP server gives an address that another host has there, \
         then one of the network in use, then that of its gateway: what there was before stays and goes on",
        dhcp_conflict,
    ),
];

/// So much longer than a network that is preferred is waited for.
const LOOKED_AT: u64 = RATE / 8 * 4;

fn answers_for_everything(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let first = world.at.ipv4()?;

    step("a network comes that the routes prefer, and its router answers for everything");
    let router = &world.b.router;
    let everybody = EchoServer::with_datagrams(router, [0, 0, 0, 0].into())?;
    router.nft(&format!(
        "table ip everybody {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
         iifname != \"up0\" meta l4proto {{ tcp, udp }} redirect to :{}; }}; \
         chain forward {{ type filter hook forward priority filter; drop; }}; }}",
        everybody.address().port()
    ))?;
    let before = client.status()?.newest_event;
    let begun = MonoTime::now();
    let second = world.laptop.join(&world.b.network, &Join::by("eth0").metric(50))?.ipv4()?;
    pair.wait_progress(LOOKED_AT, LONG)?;
    no_gaps(&mut pair, begun, "beside a network that answers for everything")?;
    expect!(is_reached_from(&client, first)?, "the server is not reached from {first}");
    is_native(&client, Side::Client, &pair)?;
    // It may have been tried while the first one carried on.
    let there = |event: &EventRecord| event.kind == "moved" && event.fields["to"] == second.to_string();
    expect!(!client.events(before)?.iter().any(there), "a hand-off to a network that leads nowhere");

    step("the network that works is silent for a while");
    world.a.link()?.cut(Cut::Silent)?;
    client.wait_event("not-confirmed", before, 3 * LONG)?;
    world.a.link()?.restore()?;
    pair.wait_progress(2 * SOME, 3 * LONG)?;
    expect!(is_reached_from(&client, first)?, "the server is not reached from {first} any more");
    // Not `World::finish`: the router resets what it gets in the moment before the daemon knows of it, by way of the
    // network that works, where that comes too late while something is sent.
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn dhcp_conflict(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let first = world.at.v4.ok_or_else(|| Error::Usage("network a has no IPv4".into()))?;
    let taken = Ipv4Addr::new(203, 0, 113, 77);
    let other = lab.host("other")?;
    other.join(&world.b.network, &Join { address_v4: Some(taken), v6: false, ..Join::by("wlan0") })?;
    // The router holds to who had the address first: else whoever it has heard of last has a network that works.
    let shown = other.ip_output("-o link show dev wlan0")?;
    let hardware = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
    let hardware = hardware.ok_or_else(|| Error::Usage(format!("no hardware address in {shown}")))?;
    world
        .b
        .router
        .ip([format!("neigh replace {taken} lladdr {hardware} dev {} nud permanent", world.b.network.bridge())])?;
    let mut theirs = FlowPair::tcp(&other, &world.server, world.at_server.ipv4()?, &PairOptions::rate(RATE / 8))?;
    theirs.wait_progress(SOME / 8, LONG)?;
    world.laptop.join(&world.b.network, &Join { v4: false, v6: false, ..Join::by("eth0") })?;
    let [a, b, c, _] = first.octets();
    for (address, what) in [
        (taken, "that another host has"),
        (Ipv4Addr::new(a, b, c, 77), "of the network in use"),
        (Ipv4Addr::new(a, b, c, 1), "of its gateway"),
    ] {
        step(&format!("eth0 is given {address}, {what}"));
        let (before, begun) = (client.status()?.newest_event, MonoTime::now());
        // The server asks whether anybody has it: who sleeps does not answer.
        other.sysctl("net.ipv4.conf.all.arp_ignore", "8")?;
        let mut dhcp = DhcpServer::start(&world.b.network, address)?;
        let lease = Lease::take_with(&world.laptop, "eth0", address, 50, LONG)?;
        other.sysctl("net.ipv4.conf.all.arp_ignore", "0")?;
        pair.wait_progress(LOOKED_AT, LONG)?;
        no_gaps(&mut pair, begun, what)?;
        expect!(is_reached_from(&client, first.into())?, "the server is not reached from {first}");
        is_native(&client, Side::Client, &pair)?;
        let there = |event: &EventRecord| event.kind == "moved" && event.fields["to"] == address.to_string();
        expect!(!client.events(before)?.iter().any(there), "a hand-off to an address {what}");
        expect!(dhcp.process().is_running(), "udhcpd has ended");
        lease.release(LONG)?;
        world.laptop.ip(["addr flush dev eth0".to_owned()])?;
        dhcp.process().terminate(LONG)?;
        pair.wait_progress(SOME, LONG)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn one_address_twice(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    world.laptop.join(&world.b.network, &Join::by("eth0").metric(500))?;
    pair.wait_progress(SOME, LONG)?;
    let own = world.at.ipv4()?;
    for prefix in [32, 25] {
        step(&format!("eth0 has {own}/{prefix} as well"));
        let begun = MonoTime::now();
        world.laptop.ip([format!("addr add {own}/{prefix} dev eth0 noprefixroute")])?;
        pair.wait_progress(2 * SOME, LONG)?;
        world.laptop.ip([format!("addr del {own}/{prefix} dev eth0")])?;
        pair.wait_progress(2 * SOME, LONG)?;
        let gap = pair.longest_gap(Side::Client, begun)?;
        expect!(gap < Duration::from_secs(1), "nothing came for {gap:?}");
        is_native(&client, Side::Client, &pair)?;
    }

    step("and the first one has it no more");
    world.laptop.ip([format!("addr add {own}/32 dev eth0 noprefixroute")])?;
    world.laptop.leave(&world.at, crate::Leave::Orderly)?;
    pair.wait_progress(2 * SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
