//! Scenarios that need no daemon: the lab checks that it emulates what it says.

use std::time::Duration;

use super::{Scenario, scenario};
use crate::{
    Campus, Cut, Direction, Download, EchoServer, FlowPair, Gateway, IperfServer, Join, Lab, Leave, Many, Nginx,
    PairOptions, Result, Shape, Side, SiteSpec, SshServer, Verdict, expect, tcp_flags, wait_until,
};

/// Long enough for anything here on a busy machine.
const LONG: Duration = Duration::from_secs(20);

const fn own(name: &'static str, description: &'static str, run: fn(&mut Lab) -> Result<()>) -> Scenario {
    Scenario { needs_daemon: false, ..scenario(name, description, run) }
}

pub(super) const SCENARIOS: &[Scenario] = &[
    own("lab-links", "emulated links delay, lose, limit and are cut as they are told to", links),
    own("lab-mobility", "hosts join, leave and roam; a connection without Whimbrel dies of it", mobility),
    own("lab-on-link", "a host that comes to a link finds its neighbours there at once", on_link),
    own("lab-nat", "NATs translate, with random ports if asked; the far end sees the NAT's address", nat),
    own("lab-firewall", "a firewall drops TCP in mid-stream and lets UDP and new connections out", firewall),
    own("lab-programs", "nginx, curl, ssh, iperf3 and the lab's own traffic programs work", programs),
    own("lab-fault-injection", "observers see and hooks drop exactly the packets that they are meant for", hooks),
];

/// Round trip times of `count` pings in milliseconds.
fn ping(from: &crate::Host, to: std::net::IpAddr, count: usize) -> Result<Vec<f64>> {
    let text = from.command("ping").args(["-n", "-c", &count.to_string(), "-i", "0.05", &to.to_string()]).run()?;
    Ok(text.lines().filter_map(|l| l.split_once("time=")?.1.split(' ').next()?.parse().ok()).collect())
}

fn links(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a"))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;
    let at = laptop.join(&a.network, &Join::default())?;
    let link = a.link()?;

    for address in [to.ipv4()?, to.ipv6()?] {
        ping(&laptop, address, 1)?; // neighbours are found
        // The fastest: ping itself may have to wait for a processor.
        let best = ping(&laptop, address, 20)?.into_iter().fold(f64::INFINITY, f64::min);
        expect!((40.0..41.0).contains(&best), "the round trip is {best} ms in place of 40");
    }
    for direction in Direction::BOTH {
        let late = link.counters(direction).mean_lateness();
        expect!(late < Duration::from_micros(500), "frames are {late:?} late on average");
    }
    let mut pair = FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::default())?;
    pair.wait_progress(1 << 20, LONG)?;

    link.set_both(&Shape::delay_rate(5, 20));
    pair.wait_progress(1 << 20, LONG)?; // what was on the way at the old rate has arrived
    let before = link.counters(Direction::Down);
    let start = crate::MonoTime::now();
    pair.wait_progress(4 << 20, LONG)?;
    let after = link.counters(Direction::Down);
    let rate = (after.delivered_bytes - before.delivered_bytes) as f64 * 8e-6 / start_elapsed(start);
    expect!((8.0..20.5).contains(&rate), "{rate:.1} Mbit/s over a link of 20");
    expect!(after.longest_queue > 10, "no queue before a link of 20 Mbit/s");

    link.set_both(&Shape::delay_rate(5, 100).with_loss(0.05));
    let before = link.counters(Direction::Down);
    pair.wait_progress(4 << 20, LONG)?;
    let after = link.counters(Direction::Down);
    let (lost, offered) = (after.lost - before.lost, after.offered - before.offered);
    let share = lost as f64 / offered as f64;
    expect!((0.03..0.07).contains(&share), "{lost} of {offered} lost in place of 5 %");

    link.set_both(&Shape { duplicate: 0.1, reorder: 0.1, ..Shape::delay_rate(5, 100) });
    pair.wait_progress(1 << 20, LONG)?;
    let counters = link.counters(Direction::Down);
    expect!(counters.duplicated > 0 && counters.reordered > 0, "nothing duplicated or reordered: {counters:?}");
    link.set_both(&Shape::delay_rate(5, 100));

    for kind in [Cut::Silent, Cut::Carrier] {
        link.cut(kind)?;
        let offered = link.counters(Direction::Down).cut;
        wait_until(LONG, "packets run into the cut", || {
            link.counters(Direction::Down).cut > offered || kind == Cut::Carrier
        })?;
        let carrier = |want: &str| {
            wait_until(LONG, &format!("up0 has {want}"), || {
                a.router.ip_output("-o link show up0").is_ok_and(|text| text.contains(want) != (want == "carrier"))
            })
        };
        match kind {
            Cut::Silent => expect!(!a.router.ip_output("-o link show up0")?.contains("NO-CARRIER"), "carrier lost"),
            Cut::Carrier => carrier("NO-CARRIER")?,
        }
        link.restore()?;
        pair.wait_progress(1 << 16, LONG)?;
    }
    expect!(at.access()?.counters(Direction::Up).lost == 0, "losses on a link that has none");
    pair.finish(LONG)?;
    lab.check_links()
}

fn start_elapsed(start: crate::MonoTime) -> f64 {
    crate::MonoTime::now().since(start).as_secs_f64()
}

fn mobility(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a"))?;
    let nat = Gateway::Nat { random_ports: false };
    let same = campus.add(lab, SiteSpec::named("c").behind(nat).v4([198, 51, 100, 1], 25))?; // as `a` has it
    let b = campus.add(lab, SiteSpec::named("b"))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;

    let at_a = laptop.join(&a.network, &Join::default())?;
    let mut pair = FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::rate(1_000_000))?;
    pair.wait_progress(10_000, LONG)?;
    let at_b = laptop.roam(&at_a, &b.network, &Join::default())?;
    expect!(at_a.v4 != at_b.v4, "the same address in both networks");
    ping(&laptop, to.ipv4()?, 1)?;
    ping(&laptop, to.ipv6()?, 1)?;
    let later = at_b.usable_at + Duration::from_millis(500);
    wait_until(LONG, "half a second passes", || crate::MonoTime::now() > later)?;
    let late = pair.arrivals(Side::Client, at_b.usable_at + Duration::from_millis(100))?;
    expect!(late.is_empty(), "a connection went on without Whimbrel");

    let back = laptop.roam(&at_b, &a.network, &Join::default())?;
    expect!(back.v4 == at_a.v4, "another lease on return");
    pair.wait_progress(10_000, LONG)?;

    let eth = laptop.join(&b.network, &Join::by("eth0").metric(50))?;
    expect!(eth.v4 != at_b.v4, "two interfaces have one lease");
    let route = laptop.ip_output(&format!("route get {}", to.ipv4()?))?;
    expect!(route.contains("dev eth0"), "the better metric does not win: {route}");
    laptop.leave(&back, Leave::Orderly)?;
    ping(&laptop, to.ipv4()?, 1)?;

    let gateway = |host: &crate::Host| host.ip_output("neigh show 198.51.100.1 dev wlan0");
    let at_a = laptop.join(&a.network, &Join::by("wlan0").metric(10))?;
    ping(&laptop, to.ipv4()?, 1)?;
    let first = gateway(&laptop)?;
    laptop.roam(&at_a, &same.network, &Join::by("wlan0").metric(10))?;
    laptop.command("ping").args(["-c1", "-W2", "198.51.100.1"]).run()?;
    let second = gateway(&laptop)?;
    expect!(first.contains("lladdr") && first != second, "the same gateway in both networks: {first} / {second}");

    server.leave(&to, Leave::Carrier)?;
    wait_until(LONG, "the server loses its carrier", || {
        server.ip_output("-o link show eth0").is_ok_and(|text| text.contains("NO-CARRIER"))
    })?;
    expect!(server.ip_output("-4 addr show eth0")?.contains("192.0.2.10"), "a pulled cable took the address away");
    lab.check_links()
}

fn on_link(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a"))?;
    let b = campus.add(lab, SiteSpec::named("b"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&b.network, &Join::by("eth0"))?;
    let mut at = laptop.join(&a.network, &Join::default())?;
    for (n, network) in [&b, &a, &b, &a, &b].into_iter().enumerate() {
        at = laptop.roam(&at, &network.network, &Join::default())?;
        for address in [to.ipv6()?, to.ipv4()?] {
            let times = ping(&laptop, address, 1)?;
            let most = if n % 2 == 0 { 20.0 } else { 120.0 };
            expect!(
                times.iter().all(|t| *t < most),
                "the first answer from {address} after move {n} took {times:?} ms"
            );
        }
    }
    lab.check_links()
}

fn nat(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a").behind(Gateway::Nat { random_ports: false }))?;
    let b = campus.add(lab, SiteSpec::named("b").behind(Gateway::Nat { random_ports: true }))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;
    let mut at = laptop.join(&a.network, &Join::default())?;
    for (site, keeps_port) in [(&a, true), (&b, false)] {
        at = if keeps_port { at } else { laptop.roam(&at, &site.network, &Join::default())? };
        for _ in 0..3 {
            let pair = FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::rate(1_000_000))?;
            let (own, seen) = (pair.local(), pair.seen_by_server());
            expect!(Some(own.ip()) == at.v4.map(Into::into), "the client has {own}");
            expect!(seen.ip() == site.outside, "the server sees {seen}, not {}", site.outside);
            expect!((own.port() == seen.port()) == keeps_port, "{own} is translated to {seen}");
            pair.finish(LONG)?;
        }
        let mut udp = FlowPair::udp(&laptop, &server, to.ipv4()?, &PairOptions::rate(100_000))?;
        expect!(udp.seen_by_server().ip() == site.outside, "UDP is not translated");
        udp.wait_progress(10, LONG)?;
    }
    lab.check_links()
}

fn firewall(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a"))?;
    let b = campus.add(lab, SiteSpec::named("b").v4([198, 51, 100, 129], 25).behind(Gateway::Firewall))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;
    let at_a = laptop.join(&a.network, &Join::default())?;
    let mut old = FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::rate(1_000_000))?;
    old.wait_progress(10_000, LONG)?;
    let at_b = laptop.roam(&at_a, &b.network, &Join::default())?;
    // The old connection's own address, now behind the firewall: only conntrack stops it.
    let old_address = at_a.v4.map(|a| a.to_string()).unwrap_or_default();
    laptop.ip([format!("addr add {old_address}/32 dev lo")])?;
    let crossing = b
        .link()?
        .count(move |_, p| p.tcp().is_some_and(|t| !t.has(tcp_flags::SYN)) && p.source.to_string() == old_address);
    let offered = at_b.access()?.count(|d, p| d == Direction::Up && p.tcp().is_some());
    wait_until(LONG, "the old connection sends into the new network", || offered.get() >= 3)?;
    expect!(crossing.get() == 0, "TCP in mid-stream crossed the firewall");
    FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::rate(1_000_000))?.finish(LONG)?;
    FlowPair::udp(&laptop, &server, to.ipv4()?, &PairOptions::rate(100_000))?.wait_progress(10, LONG)?;
    lab.check_links()
}

fn programs(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a").uplink(Shape::delay_rate(2, 1000)))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;
    laptop.join(&a.network, &Join::default())?;
    for address in [to.ipv4()?, to.ipv6()?] {
        let nginx = Nginx::start(&server, address)?;
        let url = nginx.file("file", 3_000_001)?;
        Download::start(&laptop, &url, &[])?.finish(&nginx.checksum(&server, "file")?, LONG)?;
        let ssh = SshServer::start(&server, address)?;
        let mut session = ssh.session(&laptop)?;
        for _ in 0..3 {
            session.type_and_check(LONG)?;
        }
        session.finish(LONG)?;
        let iperf = IperfServer::start(&server, address)?.run(&laptop, &["-t", "1", "-C", "cubic"])?;
        expect!(iperf.bits_per_second > 1e8, "iperf3: {:.0} Mbit/s", iperf.bits_per_second / 1e6);
        let echo = EchoServer::start(&server, address)?;
        let mut many = Many::open(&laptop, &echo, 300)?;
        let report = many.echo(LONG)?;
        expect!(report.answered() == 300 && report.closed == 0, "{} of 300 echoes", report.answered());
        expect!(echo.requests(&laptop, Duration::from_millis(200))?.done > 10, "requests are slow");
        expect!(echo.connections(&laptop, Duration::from_millis(200))?.done > 10, "connections are slow");
    }
    lab.check_links()
}

fn hooks(lab: &mut Lab) -> Result<()> {
    let mut campus = Campus::new(lab)?;
    let a = campus.add(lab, SiteSpec::named("a").uplink(Shape::delay(Duration::from_millis(2))))?;
    let s = campus.add(lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?;
    laptop.join(&a.network, &Join::default())?;
    let mut pair = FlowPair::tcp(&laptop, &server, to.ipv4()?, &PairOptions::rate(1_000_000))?;
    pair.wait_progress(10_000, LONG)?;
    let retransmits = |pair: &mut FlowPair| Ok(pair.status(Side::Client)?.tcp.map_or(0, |t| t.total_retransmits));
    let before = retransmits(&mut pair)?;
    let link = a.link()?;
    let mut dropped = 0;
    link.hook(move |direction, frame| {
        let data = frame.ip().and_then(|p| p.tcp()).is_some_and(|t| !t.payload.is_empty());
        if direction == Direction::Up && data && dropped < 3 {
            dropped += 1;
            return Verdict::Drop;
        }
        Verdict::Pass
    });
    wait_until(LONG, "the hook drops three segments", || link.counters(Direction::Up).hooked == 3)?;
    pair.wait_progress(10_000, LONG)?;
    let after = retransmits(&mut pair)?;
    // The kernel may join small segments when it sends them again.
    expect!(after > before, "no retransmission after three drops");
    link.unhook();
    let resets = link.count(|_, p| p.tcp().is_some_and(|t| t.has(tcp_flags::RST)));
    pair.finish(LONG)?;
    expect!(resets.get() == 0, "a reset without a cause");
    lab.check_links()
}
