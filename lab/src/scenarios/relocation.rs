//! Sockets change hosts, and their far ends notice nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use whimbrel_ipc::{Carrier, Connection, ConnectionState};

use super::world::{LONG, REWRITTEN_WITHIN, World, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, EchoServer, Error, FlowPair, Host, Join, Lab, Many, MonoTime, PairOptions, Process, Result, Shape,
    Side, Site, Ticker, TickerFar, Verdict, Whimbrel, expect, patience, traffic, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-socket",
        "a server's connections go to another host, in another network, and on from there; their far end runs nothing",
        |lab| moved(lab, false),
    ),
    scenario(
        "moved-socket-direct",
        "the same with a far end that runs Whimbrel, and is led to the other host itself",
        |lab| moved(lab, true),
    ),
    scenario(
        "moved-again",
        "a connection that never rests goes to another host and back, again and again; no byte is lost, doubled or late",
        |lab| again(lab, false),
    ),
    scenario(
        "moved-in-flow",
        "a stream and datagrams come at full rate while their receivers go to another host: nothing is lost",
        |lab| in_flow(lab, false, false),
    ),
    scenario(
        "moved-with-a-hole",
        "the same while a segment is missing: what has come behind it is sent again, and nothing is taken for what has not come",
        |lab| in_flow(lab, false, true),
    ),
    scenario(
        "moved-to-a-faster-path",
        "a download goes on at a host with a faster path, and not from the beginning",
        |lab| other_path(lab, 200, 0.4),
    ),
    scenario(
        "moved-to-a-slower-path",
        "the same at a host with a slower path, which is filled and not flooded",
        |lab| other_path(lab, 5, 0.5),
    ),
    scenario(
        "moved-and-not-heard",
        "what a moved connection says first is lost on its new path, and said again before anybody wonders",
        not_heard,
    ),
    scenario("moved-in-flow-direct", "the same with a far end that runs Whimbrel", |lab| in_flow(lab, true, false)),
    scenario(
        "moved-back-in-flow",
        "datagrams come rewritten while their receiver goes back to where it was: none is lost",
        back_in_flow,
    ),
    scenario(
        "moved-from-many-addresses",
        "connections of 200 addresses go to another host, which has a namespace made for each and answers meanwhile",
        many_addresses,
    ),
    scenario(
        "moved-many",
        "1,000 connections that have carried data go to another host at once, and carry on there: no byte is lost or \
         wrong",
        many_move,
    ),
    scenario("moved-again-direct", "the same with a far end that runs Whimbrel", |lab| again(lab, true)),
];

/// Connections that move together.
const COUNT: usize = 3;
/// How long the far end may wait for an answer on the way.
const SOON: Duration = Duration::from_secs(1);

/// A far end, a donor that serves it, and an acceptor, each in a network of its own.
pub(super) struct Three {
    pub(super) world: World,
    pub(super) donor_daemon: Whimbrel,
    pub(super) acceptor_daemon: Whimbrel,
    pub(super) far_daemon: Option<Whimbrel>,
    pub(super) acceptor: Host,
    /// Where the acceptor is.
    pub(super) at: Attachment,
    pub(super) at_acceptor: IpAddr,
    /// The network that the acceptor was in at first.
    pub(super) network: Site,
}

impl Three {
    pub(super) fn new(lab: &mut Lab, far_runs: bool) -> Result<Self> {
        Self::with(lab, far_runs, "")
    }

    /// With a configuration for all daemons.
    pub(super) fn with(lab: &mut Lab, far_runs: bool, config: &str) -> Result<Self> {
        Self::started(lab, far_runs, |host| host.whimbrel_with(config))
    }

    /// With daemons that are started so.
    pub(super) fn started(lab: &mut Lab, far_runs: bool, start: impl Fn(&Host) -> Result<Whimbrel>) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, site("c"))?;
        let acceptor = lab.host("acceptor")?;
        let at = acceptor.join(&network.network, &Join::by("eth0"))?;
        let at_acceptor = at.ipv4()?;
        let donor_daemon = start(&world.server)?;
        let acceptor_daemon = start(&acceptor)?;
        let far_daemon = if far_runs { Some(start(&world.laptop)?) } else { None };
        donor_daemon.befriend(&acceptor_daemon, world.at_server.ipv4()?)?;
        Ok(Self { world, donor_daemon, acceptor_daemon, far_daemon, acceptor, at, at_acceptor, network })
    }
}

/// Moves of one connection.
const TIMES: usize = 12;

fn again(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let Three { world, donor_daemon, acceptor_daemon, far_daemon, .. } = &three;
    let every = Duration::from_millis(1);
    let mut tickers = [
        Ticker::start(donor_daemon, world.at_server.ipv4()?, "desk", every)?,
        Ticker::start(acceptor_daemon, three.at_acceptor, "guest", every)?,
    ];
    let mut far = TickerFar::connect(&world.laptop, tickers[0].address())?;
    far.wait_progress(100, LONG)?;
    if let Some(daemon) = far_daemon {
        let native = || daemon.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
        wait_until(LONG, "the connection is introduced", native)?;
    }
    let mut until = 0;
    for number in 0..TIMES {
        let (daemon, to) = if number % 2 == 0 { (donor_daemon, "guest") } else { (acceptor_daemon, "desk") };
        let before = MonoTime::now();
        let said = daemon.cli(&["move", &far.local().to_string(), "--to", to, "--process", to])?;
        expect!(said.contains("is with"), "{said}");
        let (from, end) = tickers[number % 2].ticked()?;
        expect!(from == until, "a sender began with byte {from} after byte {until}");
        until = end;
        // Those of the second half come back before what was ended there is forgotten.
        far.wait_progress(if number < TIMES / 2 { 100 } else { 1 }, LONG)?;
        let gap = far.longest_gap(before)?.map(|(begun, ended)| ended.since(begun)).unwrap_or_default();
        println!("    to {to}: nothing was heard for {:.1} ms", gap.as_secs_f64() * 1e3);
        expect!(gap < SOON * patience(), "the far end heard nothing for {gap:?}");
        if let Some(far) = far_daemon {
            straight(far, if number % 2 == 0 { acceptor_daemon } else { donor_daemon })?;
        }
    }
    world.no_resets()
}

/// A far end that runs Whimbrel has its connection with the very host that has the socket now, with nobody in between.
pub(super) fn straight(far: &Whimbrel, owner: &Whimbrel) -> Result<()> {
    let key = owner.status()?.public_key;
    let with = |all: Vec<Connection>| all.iter().any(|found| found.peer.as_ref().is_some_and(|peer| peer.key == key));
    wait_until(LONG, "the far end is led to the host that has the socket", || far.connections().is_ok_and(with))
}

fn moved(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::new(lab, far_runs)?;
    let server = EchoServer::start(&three.world.server, three.world.at_server.ipv4()?)?;
    let mut far = Many::open(&three.world.laptop, &server, COUNT)?;
    let mut echo = |what: &str| -> Result<()> {
        let slowest = far.all_answer(LONG, what)?;
        println!("    {what}: answers within {:.1} ms", slowest.as_secs_f64() * 1e3);
        expect!(slowest < SOON * patience(), "{what}: the slowest took {slowest:?}");
        Ok(())
    };
    echo("before the move")?;
    if let Some(daemon) = &three.far_daemon {
        let native = || {
            let all = daemon.connections().unwrap_or_default();
            all.iter().filter(|connection| connection.state == ConnectionState::Native).count() == COUNT
        };
        wait_until(LONG, "the connections are introduced", native)?;
    }
    let _receiver = receiver(&three.acceptor_daemon, "echo")?;
    let at_server = server.address().to_string();
    step("the connections go to another host");
    give(&three.donor_daemon, &at_server, &three.at_acceptor.to_string(), "echo")?;
    echo("after the move")?;

    three.acceptor_daemon.wait_event("carrier-changed", 0, LONG)?;
    // What is answered rewritten once is sent so from then on (P-24).
    echo("rewritten")?;
    echo("rewritten both ways")?;

    step("the acceptor's daemon is killed");
    three.acceptor_daemon.kill()?;
    echo("without it")?;
    three.acceptor_daemon.restart()?;
    echo("with another")?;
    step("the donor's daemon is killed");
    three.donor_daemon.kill()?;
    echo("without it")?;
    three.donor_daemon.restart()?;
    echo("with another")?;

    step("the acceptor roams");
    let elsewhere = three.world.b.clone();
    three.acceptor.roam(&three.at, &elsewhere.network, &Join::by("eth0"))?;
    echo("from where it is now")?;

    step("the connections come back");
    let _home = receiver(&three.donor_daemon, "home")?;
    give(&three.acceptor_daemon, &at_server, "desk", "home")?;
    echo("at home")?;
    three.world.no_resets()
}

/// What the stream carries, bits a second, and the datagrams: well below what the links do.
const STREAM: u64 = 30_000_000;
const DATAGRAMS: u64 = 5_000_000;
/// Bytes of a datagram.
const SIZE: usize = 200;

/// `hole`: one segment of the stream is lost again and again until the stream has moved.
fn in_flow(lab: &mut Lab, far_runs: bool, hole: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let Three { world, donor_daemon, acceptor_daemon, far_daemon, .. } = &three;
    let at = world.at_server.ipv4()?;
    let way = |rate| PairOptions { up: Some(rate), down: Some(0), ..PairOptions::default() };
    let mut stream = FlowPair::tcp(&world.laptop, &world.server, at, &way(STREAM))?;
    let mut datagrams = FlowPair::udp(&world.laptop, &world.server, at, &way(DATAGRAMS))?;
    let to_server = [Side::Server];
    stream.wait_progress_of(&to_server, 20 * STREAM / 80, LONG)?;
    if let Some(daemon) = far_daemon {
        let native = || {
            let all = daemon.connections().unwrap_or_default();
            all.iter().filter(|connection| connection.state == ConnectionState::Native).count() == 2
        };
        wait_until(LONG, "both are introduced", native)?;
    }
    let sent_again = |pair: &mut FlowPair| -> Result<u32> {
        Ok(pair.status(Side::Client)?.tcp.map_or(0, |info| info.total_retransmits))
    };
    let missing = Arc::new(AtomicU64::new(0));
    if hole {
        let (count, mut of) = (missing.clone(), None);
        world.a.link()?.hook(move |_, frame| {
            let Some(segment) = frame.ip().and_then(|packet| packet.tcp()) else { return Verdict::Pass };
            // Whoever sends so much is the far end.
            if segment.payload.len() < 1000 || *of.get_or_insert(segment.sequence) != segment.sequence {
                return Verdict::Pass;
            }
            count.fetch_add(1, Ordering::Relaxed);
            Verdict::Drop
        });
        wait_until(LONG, "what is missing was sent twice", || missing.load(Ordering::Relaxed) > 1)?;
    }
    let (before, vain_before) = (sent_again(&mut stream)?, counted(&world.laptop, DUPLICATES)?);
    let overtaken_before = counted(&world.laptop, OVERTAKEN)?;
    // Before the moves a busy machine's server may be too slow for them.
    let mut from = 0;
    let mut receivers = Vec::new();
    let mut files = Vec::new();
    for (name, local) in [("stream", stream.local()), ("datagrams", datagrams.local())] {
        let file = three.acceptor.dir().join(name);
        let program = ["sh", "-c", &format!("exec cat > {}", file.display())].map(str::to_owned);
        receivers.push(receiver_of(acceptor_daemon, name, &program)?);
        step(&format!("the receiver of the {name} goes to another host"));
        from = datagrams.status(Side::Client)?.sent;
        let said = donor_daemon.cli(&["move", &local.to_string(), "--to", "guest", "--process", name])?;
        expect!(said.contains("is with"), "{said}");
        if hole {
            let times = missing.load(Ordering::Relaxed);
            println!("    with a segment missing that was sent {times} times");
            world.a.link()?.unhook();
        }
        files.push(file);
    }
    let [streamed, came] = <[PathBuf; 2]>::try_from(files).map_err(|_| Error::Usage("two files".into()))?;
    let length = |file: &PathBuf| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    // What is missing is sent again when its timer runs out, which doubled each time that it was lost.
    wait_until(3 * LONG, "both go on there", || length(&streamed) > STREAM / 8 && length(&came) > DATAGRAMS / 8)?;

    step("all that was sent has come, at the one or the other");
    stream.set_rate(Side::Client, Some(0))?;
    datagrams.set_rate(Side::Client, Some(0))?;
    let here = stream.status(Side::Server)?.received;
    // A write may be under way yet.
    let whole =
        |stream: &mut FlowPair| Ok((stream.status(Side::Client)?.sent == here + length(&streamed)).then_some(()));
    let arrived = wait_for(LONG, "the stream has come", || whole(&mut stream));
    let sent = stream.status(Side::Client)?.sent;
    let bytes = std::fs::read(&streamed).map_err(|e| Error::call("read", streamed.display().to_string(), e))?;
    expect!(here + bytes.len() as u64 == sent, "{here} and {} of {sent} bytes came", bytes.len());
    let differs = traffic::first_difference(stream.peer().port().into(), here, &bytes);
    expect!(differs.is_none(), "a wrong byte at {differs:?}");
    arrived?;
    if hole {
        return world.no_resets();
    }

    let mut sent = 0;
    let here = datagrams.arrivals(Side::Server, MonoTime(0))?;
    let mut numbers: BTreeSet<u64> = here.iter().map(|(_, number)| *number).filter(|number| *number >= from).collect();
    let mut last = Vec::new();
    let complete = wait_for(LONG, "the datagrams have come", || {
        last = std::fs::read(&came).map_err(|e| Error::call("read", came.display().to_string(), e))?;
        let there = last.chunks_exact(SIZE).filter_map(|datagram| datagram.first_chunk::<8>());
        numbers.extend(there.map(|number| u64::from_be_bytes(*number)).filter(|number| *number >= from));
        sent = datagrams.status(Side::Client)?.sent;
        Ok((numbers.len() as u64 >= sent - from).then_some(()))
    });
    let there = last.len() / SIZE;
    println!("    {} of {} datagrams came, {there} of them at the other host", numbers.len(), sent - from);
    complete?;
    // A far end that is led straight to the acceptor sends there before what is handed on has arrived, and may take
    // that for lost; any may where a busy machine lets it wait for 200 ms. Now that all has come nothing is on its way
    // but what it may be told of that. What it was told by the tunnel it does not hear where its daemon has to wait for
    // a processor, and a later word comes rewritten before (RFC 7323, PAWS).
    let mut counts = (0, 0, 0);
    let none_lost = wait_for(LONG, "nothing was lost", || {
        let in_vain = counted(&world.laptop, DUPLICATES)? - vain_before;
        let overtaken = counted(&world.laptop, OVERTAKEN)? - overtaken_before;
        counts = (sent_again(&mut stream)? - before, in_vain, overtaken);
        // One word may tell of several.
        Ok((u64::from(counts.0) <= in_vain + in_vain / 20 + overtaken).then_some(()))
    });
    let (again, in_vain, overtaken) = counts;
    println!("    {again} segments were sent again, {in_vain} of them had come, {overtaken} words were overtaken");
    none_lost?;
    world.no_resets()
}

/// What is on its way rewritten when a socket is given away comes under names that its host knows for a while yet.
fn back_in_flow(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, true)?;
    let Three { world, donor_daemon, acceptor_daemon, far_daemon, .. } = &three;
    let way = PairOptions { up: Some(DATAGRAMS), down: Some(0), ..PairOptions::default() };
    let mut datagrams = FlowPair::udp(&world.laptop, &world.server, world.at_server.ipv4()?, &way)?;
    // Words of the daemons overtake datagrams, as they do where these wait in a queue.
    let shape = Shape::delay_rate(20, 100);
    world.a.link()?.set_both(&Shape { reorder: 0.5, reorder_by: Duration::from_millis(60), ..shape });
    let local = datagrams.local();
    let is = |good: &dyn Fn(&Connection) -> bool| {
        let all = far_daemon.as_ref().map(Whimbrel::connections).transpose().ok().flatten().unwrap_or_default();
        all.iter().any(|connection| connection.flow.local == local && good(connection))
    };
    wait_until(LONG, "they are introduced", || is(&|connection| connection.state == ConnectionState::Native))?;
    let (mut receivers, mut files) = (Vec::new(), Vec::new());
    let from = datagrams.status(Side::Client)?.sent;
    let mut here = Vec::new();
    for (giver, taker, host, name) in [
        (donor_daemon, acceptor_daemon, &three.acceptor, "guest"),
        (acceptor_daemon, donor_daemon, &world.server, "desk"),
    ] {
        let file = host.dir().join("datagrams");
        // It answers: what is heard rewritten is sent so (P-24).
        let program = ["tee".to_owned(), file.display().to_string()];
        receivers.push(receiver_of(taker, "datagrams", &program)?);
        step(&format!("the receiver goes to {name}"));
        let said = giver.cli(&["move", &local.to_string(), "--to", name, "--process", "datagrams"])?;
        expect!(said.contains("is with"), "{said}");
        files.push(file);
        if name == "guest" {
            let rewritten = || is(&|connection| connection.carrier == Some(Carrier::Rewrite));
            wait_until(REWRITTEN_WITHIN, "what is sent there is rewritten", rewritten)?;
            // The port is that of the socket that comes back.
            here = datagrams.arrivals(Side::Server, MonoTime(0))?;
            datagrams.process(Side::Server).kill()?;
        }
    }
    let length = |file: &PathBuf| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    wait_until(LONG, "they come where they came before", || length(&files[1]) > DATAGRAMS / 8)?;
    datagrams.set_rate(Side::Client, Some(0))?;
    let mut numbers: BTreeSet<u64> = here.iter().map(|(_, number)| *number).filter(|number| *number >= from).collect();
    let mut sent = 0;
    let complete = wait_for(LONG, "all have come", || {
        for file in &files {
            let bytes = std::fs::read(file).map_err(|e| Error::call("read", file.display().to_string(), e))?;
            let there = bytes.chunks_exact(SIZE).filter_map(|datagram| datagram.first_chunk::<8>());
            numbers.extend(there.map(|number| u64::from_be_bytes(*number)).filter(|number| *number >= from));
        }
        sent = datagrams.status(Side::Client)?.sent;
        Ok((numbers.len() as u64 >= sent - from).then_some(()))
    });
    println!("    {} of {} datagrams came", numbers.len(), sent - from);
    complete
}

/// `rate`: of the acceptor's link, Mbit/s; the donor's has 20. `least`: the part of it that is to be used in the first
/// second.
fn other_path(lab: &mut Lab, rate: u64, least: f64) -> Result<()> {
    let three = Three::new(lab, true)?;
    let Three { world, donor_daemon, acceptor_daemon, far_daemon, .. } = &three;
    world.s.link()?.set_both(&Shape::delay_rate(20, 20));
    world.a.link()?.set_both(&Shape::delay_rate(0, 500));
    three.network.link()?.set_both(&Shape::delay_rate(20, rate));
    let options = PairOptions { up: Some(0), ..PairOptions::default() };
    let mut stream = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options)?;
    stream.wait_progress_of(&[Side::Client], 5_000_000, LONG)?;
    if let Some(daemon) = far_daemon {
        let native = || daemon.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
        wait_until(LONG, "the connection is introduced", native)?;
    }
    // Other bytes than the server's, which the far end takes as they come.
    let zeros = ["cat", "/dev/zero"].map(str::to_owned);
    let _receiver = receiver_of(acceptor_daemon, "zeros", &zeros)?;
    let said = donor_daemon.cli(&["move", &stream.local().to_string(), "--to", "guest", "--process", "zeros"])?;
    let at = MonoTime::now();
    expect!(said.contains("is with"), "{said}");
    let second = Duration::from_secs(1);
    wait_for(LONG, "a second has passed", || {
        let last = stream.status(Side::Client)?.last_arrival;
        Ok(last.filter(|last| last.since(at) > second + Duration::from_millis(100)))
    })?;
    let resumed = stream.resumed(Side::Client, at)?.unwrap_or(at);
    let arrivals = stream.arrivals(Side::Client, resumed)?;
    let bytes: u64 = arrivals.iter().take_while(|(time, _)| time.since(resumed) < second).map(|(_, bytes)| bytes).sum();
    let share = bytes as f64 * 8.0 / (rate as f64 * 1e6);
    println!("    {rate} Mbit/s: {:.2} MB in the first second, {:.0} % of the link", bytes as f64 / 1e6, share * 100.0);
    expect!(share > least / f64::from(patience()), "{bytes} bytes in the first second");
    world.no_resets()
}

/// How soon what is lost first is sent again: the round trip and 200 ms, where nothing is measured yet. A second is
/// what the kernel waits for that knows nothing of a path.
const AGAIN: Duration = Duration::from_millis(700);

fn not_heard(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let Three { world, donor_daemon, acceptor_daemon, .. } = &three;
    let server = EchoServer::start(&world.server, world.at_server.ipv4()?)?;
    let mut far = Many::open(&world.laptop, &server, 1)?;
    let usual = far.all_answer(LONG, "before the move")?;
    let _receiver = receiver(acceptor_daemon, "echo")?;
    let said = donor_daemon.cli(&["move", &server.address().to_string(), "--to", "guest", "--process", "echo"])?;
    expect!(said.contains("is with"), "{said}");
    let (lost, address) = (Arc::new(AtomicU64::new(0)), server.address().ip());
    let count = lost.clone();
    world.a.link()?.hook(move |_, frame| {
        let segment = frame.ip().filter(|packet| packet.source == address).and_then(|packet| packet.tcp());
        let answer = segment.is_some_and(|segment| !segment.payload.is_empty());
        if answer && count.fetch_add(1, Ordering::Relaxed) == 0 { Verdict::Drop } else { Verdict::Pass }
    });
    let took = far.all_answer(LONG, "after it")?;
    println!(
        "    an answer took {:.1} ms, and {:.1} ms when it was lost first",
        milliseconds(usual),
        milliseconds(took)
    );
    expect!(lost.load(Ordering::Relaxed) > 1, "nothing was lost");
    expect!(took < AGAIN * patience(), "it took {took:?}");
    world.no_resets()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// TcpExt: how many segments that were sent again had come, as their receiver says (RFC 2883). One word may tell of
/// several, and one that the kernel makes nothing of (`tcp_dsack_seen`) tells of one at least.
const DUPLICATES: &[&str] = &["TCPDSACKRecvSegs", "TCPDSACKIgnoredDubious"];
/// TcpExt: words that are older than what came before them, and are not listened to.
const OVERTAKEN: &[&str] = &["PAWSEstab", "PAWSOldAck"];

/// The sum of these counters of a host's stack.
fn counted(host: &Host, told: &[&str]) -> Result<u64> {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))?;
    let text = text.map_err(|e| Error::call("read", "/proc/net/netstat", e))?;
    let mut lines = text.lines();
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let found = names.split(' ').zip(values.split(' ')).filter(|(name, _)| told.contains(name));
    Ok(found.filter_map(|(_, value)| value.parse::<u64>().ok()).sum())
}

/// A program that goes on with each connection that comes under a name.
fn receiver(daemon: &Whimbrel, name: &str) -> Result<Process> {
    receiver_of(daemon, name, &["cat".to_owned()])
}

fn receiver_of(daemon: &Whimbrel, name: &str, program: &[String]) -> Result<Process> {
    let words = ["receive", name, "--"].into_iter().chain(program.iter().map(String::as_str));
    let mut process = daemon.spawn_cli(&words.collect::<Vec<_>>())?;
    process.wait_line(LONG, "it receives", |line| line.starts_with("receiving").then_some(()))?;
    Ok(process)
}

/// Gives all connections of a server away.
fn give(from: &Whimbrel, connections: &str, to: &str, receiver: &str) -> Result<()> {
    let said = from.cli(&["move", connections, "--to", to, "--process", receiver])?;
    expect!(said.lines().filter(|line| line.contains("is with")).count() == COUNT, "{said}");
    Ok(())
}

/// Connections that move at once, and what each carries in either direction before and after it, in bytes.
const MANY: usize = 1000;
const CARRIED: u64 = 20_000;

fn many_move(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let Three { world, donor_daemon, acceptor_daemon, .. } = &three;
    let server = EchoServer::start(&world.server, world.at_server.ipv4()?)?;
    let _there = EchoServer::receiving(acceptor_daemon, three.at_acceptor, "echo")?;
    let mut far = Many::open(&world.laptop, &server, MANY)?;
    for moved in [false, true] {
        if moved {
            let began = Instant::now();
            let all = format!("pid:{}", server.pid());
            let said = donor_daemon.cli(&["move", &all, "--to", "guest", "--process", "echo"])?;
            println!("    {MANY} connections have moved in {:.1} s", began.elapsed().as_secs_f64());
            let went = said.lines().filter(|line| line.contains("is with")).count();
            expect!(went == MANY, "{went} of {MANY} connections have moved: {said}");
        }
        far.start_carry(CARRIED, 3 * LONG)?;
        let report = far.finish_carry(3 * LONG)?;
        expect!(report.answered() == MANY, "{} of {MANY} had all back, {} closed", report.answered(), report.closed);
    }
    world.no_resets()
}

/// Addresses of either family that connections are moved from.
const ADDRESSES: u8 = 100;
/// How long a daemon that is given sockets of them may let its users wait for an answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// The acceptor makes a namespace for each of very many addresses, and goes on with everything else meanwhile.
fn many_addresses(lab: &mut Lab) -> Result<()> {
    let three = Three::new(lab, false)?;
    let Three { world, donor_daemon, acceptor_daemon, .. } = &three;
    let addresses: Vec<IpAddr> = (0..ADDRESSES)
        .flat_map(|number| {
            let ipv6 = format!("2001:db8:5::1:{number:x}");
            [IpAddr::from([192, 0, 2, 20 + number]), ipv6.parse().unwrap_or(IpAddr::from([0; 16]))]
        })
        .collect();
    world.server.ip(addresses.iter().map(|address| match address {
        IpAddr::V4(_) => format!("addr add {address}/25 dev eth0"),
        IpAddr::V6(_) => format!("addr add {address}/64 dev eth0 nodad"),
    }))?;
    let server = EchoServer::start(&world.server, IpAddr::from([0; 16]))?;
    let port = server.address().port();
    let to: Vec<SocketAddr> = addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
    let mut far = Many::open_to(&world.laptop, &to, to.len())?;
    far.all_answer(LONG, "before the move")?;
    let _receiver = receiver(acceptor_daemon, "echo")?;

    step("connections of 200 addresses go to another host");
    let began = Instant::now();
    let all = format!("pid:{}", server.pid());
    let mut moving = donor_daemon.spawn_cli(&["move", &all, "--to", "guest", "--process", "echo"])?;
    let mut slowest = Duration::ZERO;
    wait_for(3 * LONG, "all have moved", || {
        let asked = Instant::now();
        acceptor_daemon.status()?;
        slowest = slowest.max(asked.elapsed());
        Ok((!moving.is_running()).then_some(()))
    })?;
    println!(
        "    in {:.1} s; the slowest answer took {:.0} ms",
        began.elapsed().as_secs_f64(),
        slowest.as_secs_f64() * 1e3
    );
    moving.wait_success(LONG)?;
    far.all_answer(LONG, "after the move")?;
    expect!(slowest < ANSWERS_WITHIN * patience(), "the acceptor's daemon let its users wait for {slowest:?}");
    world.no_resets()
}
