//! Single connections that go by two networks at once while the one that they go by is in doubt.

use std::time::Duration;

use super::preferred::{SECOND, join_second, wait_reached_from};
use super::world::{LONG, RATE, SOME, World, all_run, is_native, site, step};
use super::{Scenario, scenario};
use crate::traffic::FlowStatus;
use crate::{Cut, FlowPair, Lab, Leave, MonoTime, PairOptions, Result, Side, Whimbrel, expect, patience, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "vhf-duplicated",
        "the first network loses three of ten packets: of a call and a stream that the file has go by both in moments \
         of doubt next to nothing is lost, and nothing comes twice; another call loses as much as the network does; \
         the first network falls silent meanwhile; and all is native again when nothing is lost any more",
        duplicated,
    ),
    scenario(
        "vhf-lossy",
        "a laptop that has been elsewhere is back where its first network then loses three of ten packets for long: \
         neither end takes the losses for a way that is closed to the connections alone, and all is native afterwards",
        lossy,
    ),
];

/// Datagrams a second, in bits as the programs have it.
const CALL: u64 = 400_000;

/// Of a hundred datagrams of either end so many came, the worse of both.
fn share(before: &[FlowStatus; 2], after: &[FlowStatus; 2]) -> f64 {
    let of = |from: usize| {
        let (sent, came) = (after[from].sent - before[from].sent, after[1 - from].received - before[1 - from].received);
        100.0 * came as f64 / sent.max(1) as f64
    };
    of(0).min(of(1))
}

fn duplicated(lab: &mut Lab) -> Result<()> {
    const MANY: u64 = 1000;
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let to = world.at_server.ipv4()?;
    let [call, other, stream] = [47_001, 47_002, 47_003];
    let config = format!("kick = true\n[[prefer]]\nremote_port = {call}\nduplicate = true\n");
    let config = format!("{config}\n[[prefer]]\nremote_port = {stream}\nduplicate = true\nnever = \"nothing*\"\n");
    let mut client = world.laptop.whimbrel_with(&config)?;
    let mut server = world.server.whimbrel()?;
    join_second(&world, &client)?;
    let at = |port| PairOptions { port, ..PairOptions::rate(CALL) };
    let mut call = FlowPair::udp(&world.laptop, &world.server, to, &at(call))?;
    let mut other = FlowPair::udp(&world.laptop, &world.server, to, &at(other))?;
    let mut stream =
        FlowPair::tcp(&world.laptop, &world.server, to, &PairOptions { port: stream, ..PairOptions::rate(RATE / 4) })?;
    for pair in [&call, &other, &stream] {
        client.wait_introduced(pair, LONG)?;
    }
    let both_ways = |pair: &mut FlowPair, more: u64| pair.wait_progress(more, LONG);
    both_ways(&mut call, MANY / 4)?;
    for pair in [&call, &stream] {
        is_native(&client, Side::Client, pair)?;
    }

    step("the first network loses three of ten packets");
    let access = world.at.access()?;
    let usual = access.shape(crate::Direction::Up);
    let before = client.status()?.newest_event;
    access.set_both(&usual.clone().with_loss(0.3));
    let lossy = MonoTime::now();
    let told = client.wait_event("connections-duplicated", before, LONG)?;
    println!("    after {:.1} s: {}", (MonoTime::now() - lossy).as_secs_f64(), told.sentence);
    // What the second network carries is as much as goes there.
    wait_for(LONG, "the call goes by both", || {
        let all = client.connections()?;
        let found = all.iter().find(|one| one.flow.local == call.local());
        Ok(found.filter(|one| one.network.is_some() && one.second_network.is_some()).map(drop))
    })?;
    both_ways(&mut call, MANY / 10)?;
    let begun = [call.check()?, other.check()?];
    both_ways(&mut call, MANY)?;
    let ended = [call.check()?, other.check()?];
    let [of_call, of_other] = [0, 1].map(|of| share(&begun[of], &ended[of]));
    println!("    of the call {of_call:.1} % came, of the other one {of_other:.1} %");
    expect!(of_call > 98.0, "only {of_call:.1} % of the call came by both networks");
    expect!((50.0..90.0).contains(&of_other), "{of_other:.1} % of the other call came");
    let twice = ended[0].iter().map(|status| status.duplicates).sum::<u64>();
    expect!(twice == 0, "{twice} datagrams came twice");
    print!("{}", client.cli(&["paths", "--explain"])?);
    let explained = client.explained(None)?;
    for of in &explained.peers[0].connections {
        let beside = of.duplicate.as_ref().map(|it| (it.interface.as_deref(), it.doubt.is_some()));
        expect!(beside == Some((Some(SECOND), true)), "{explained:?}");
    }
    stream.wait_progress(SOME, LONG)?;

    step("then it falls silent, and nobody says so");
    access.set_both(&usual);
    let begun = call.check()?;
    access.cut(Cut::Silent)?;
    both_ways(&mut call, MANY)?;
    access.restore()?;
    let came = share(&begun, &call.check()?);
    println!("    of the call {came:.1} % came meanwhile");
    expect!(came > 97.0, "only {came:.1} % of the call came meanwhile");
    stream.wait_progress(SOME / 4, LONG)?;

    step("nothing is lost any more");
    wait_for(LONG * 4, "all is native again", || {
        let all = [&call, &other, &stream].map(|pair| is_native(&client, Side::Client, pair).is_ok());
        Ok((all == [true; 3]).then_some(()))
    })?;
    let calm = client.status()?.newest_event;
    let begun = call.check()?;
    both_ways(&mut call, MANY)?;
    let came = share(&begun, &call.check()?);
    expect!(came > 99.0, "{came:.1} % of the call came");
    let again = client.events(calm)?.iter().filter(|event| event.kind == "connections-duplicated").count();
    expect!(again == 0, "nothing is in doubt, and {again} times it was said so");

    step("the first network is gone");
    let gone = MonoTime::now();
    world.laptop.leave(&world.at, Leave::Carrier)?;
    stream.wait_progress(SOME, LONG)?;
    let gap = stream.longest_gap(Side::Client, gone)?;
    expect!(gap < Duration::from_secs(2) * patience(), "{gap:?}");
    both_ways(&mut call, MANY / 4)?;
    let last = call.check()?;
    let twice = last.iter().map(|status| status.duplicates).sum::<u64>();
    expect!(twice == 0, "{twice} datagrams came twice");
    other.check()?;
    stream.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn lossy(lab: &mut Lab) -> Result<()> {
    const LASTING: u64 = 1500;
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let (to, home) = (world.at_server.ipv4()?, world.at.ipv4()?);
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let second = join_second(&world, &client)?;
    let mut call = FlowPair::udp(&world.laptop, &world.server, to, &PairOptions::rate(CALL))?;
    let mut stream = FlowPair::tcp(&world.laptop, &world.server, to, &PairOptions::rate(CALL))?;
    for pair in [&call, &stream] {
        client.wait_introduced(pair, LONG)?;
    }
    for there in [second.ipv4()?, home] {
        client.handoff(Some(there))?;
        wait_reached_from(&client, there, LONG)?;
        call.wait_progress(100, LONG)?;
    }
    let native = |daemon: &Whimbrel, side, call: &FlowPair, stream: &FlowPair| {
        [call, stream].iter().try_for_each(|pair| is_native(daemon, side, pair))
    };
    native(&client, Side::Client, &call, &stream)?;

    step("the first network loses three of ten packets for long");
    let access = world.at.access()?;
    let usual = access.shape(crate::Direction::Up);
    access.set_both(&usual.clone().with_loss(0.3));
    call.wait_progress(LASTING, LONG * 3)?;

    step("nothing is lost any more");
    access.set_both(&usual);
    wait_for(LONG * 3, "all is native again at both ends", || {
        let both = native(&client, Side::Client, &call, &stream).and(native(&server, Side::Server, &call, &stream));
        Ok(both.ok())
    })?;
    stream.wait_progress(SOME / 4, LONG)?;
    let followed = |daemon: &Whimbrel| -> Result<usize> {
        Ok(daemon.events(0)?.iter().filter(|event| event.kind == "peer-moved").count())
    };
    let moves = followed(&client)?;
    expect!(moves == 0, "the server has said {moves} times that it is elsewhere, and has stayed where it was");
    call.check()?;
    stream.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
