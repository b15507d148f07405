//! Programs with the address of another host, which passes on what comes for them to wherever they are.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_ipc::{Carrier, ConnectionState};

use super::library::{Program, far_end, is_over};
use super::relocation::straight;
use super::world::{LONG, REWRITTEN_WITHIN, World, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, EchoServer, Gateway, Host, Join, Lab, Leave, Many, MonoTime, Process, Result, Shape, Site, SiteSpec,
    Ticker, TickerFar, Whimbrel, expect, patience, wait_until,
};

/// Says what user it is, and what it may bind, with both transports.
const BINDS: &str = r#"
import errno, os, socket, sys
def bind(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
        with socket.socket(family, kind) as s:
            try:
                s.bind((host, port))
            except OSError as error:
                return errno.errorcode[error.errno]
    return "has"
host, LENT = sys.argv[1], int(sys.argv[2])
loopback = "::1" if ":" in host else "127.0.0.1"
ports = " ".join(f"{port}={bind(host, port)}" for port in (LENT, 0, LENT + 1, 80))
print(os.getuid(), ports, f"loopback={bind(loopback, LENT + 1)}")
"#;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "anchored",
        "a program has another host's address, and its connection goes to a third host, to the anchor itself and back; the far end runs nothing",
        |lab| anchored(lab, false),
    ),
    scenario("anchored-ipv6", "the same over IPv6", |lab| anchored(lab, true)),
    scenario(
        "anchored-direct",
        "a connection to another host's address whose far end runs Whimbrel goes to the program's host directly, without that other host, and on to a third",
        |lab| direct(lab, false),
    ),
    scenario(
        "anchored-user",
        "programs of a user without rights have another host's address and carry data, while their host roams and \
         both daemons die",
        of_a_user,
    ),
    scenario(
        "anchored-chosen",
        "of two anchors a policy chooses the nearer, or the one that stays; the other where that one has vanished; \
         connections stay with what was chosen",
        chosen,
    ),
    scenario("anchored-direct-nat", "the same with the program's host behind a NAT", |lab| direct(lab, true)),
];

/// What the anchor lends.
pub(super) const LENDS: &str = "[anchor]\nports = \"8000-8999\"\n";
pub(super) const PORT: u16 = 8001;
/// Any user may ask the daemon.
const ANYBODY: &str = "control_mode = \"0666\"\n";
/// Connections that stay with one program.
const COUNT: usize = 3;
const EVERY: Duration = Duration::from_millis(1);
/// Time without a network: TCP's timer is at three seconds by then, and at six from then on.
const AWAY: Duration = Duration::from_secs(7);
/// How long the far end may wait on the way.
const SOON: Duration = Duration::from_secs(1);

/// A far end that runs nothing, an anchor, and two hosts of its community.
pub(super) struct Four {
    pub(super) world: World,
    pub(super) anchor: Whimbrel,
    pub(super) guest: Whimbrel,
    pub(super) third: Whimbrel,
    guest_host: Host,
    guest_network: Site,
    at_guest: Attachment,
    pub(super) at_third: Attachment,
}

impl Four {
    pub(super) fn new(lab: &mut Lab, lends: &str) -> Result<Self> {
        Self::with_guest_at(lab, lends, site("c"), false)
    }

    /// Where the others have met the anchor by IPv6.
    pub(super) fn met_by_ipv6(lab: &mut Lab, lends: &str) -> Result<Self> {
        Self::with_guest_at(lab, lends, site("c"), true)
    }

    fn with_guest_at(lab: &mut Lab, lends: &str, guest_at: SiteSpec, ipv6: bool) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, guest_at)?;
        let (guest_host, third_host) = (lab.host("guest")?, lab.host("third")?);
        let at_guest = guest_host.join(&network.network, &Join::by("eth0"))?;
        let at_third = third_host.join(&world.b.network, &Join::by("eth0"))?;
        let anchor = world.server.whimbrel_with(lends)?;
        // Any user of the guest may ask its daemon.
        let guest = guest_host.whimbrel_with(ANYBODY)?;
        let third = third_host.whimbrel()?;
        let at = address(&world.at_server, ipv6)?;
        anchor.befriend(&guest, at)?;
        anchor.invite(&third, at, "third")?;
        Ok(Self { world, anchor, guest, third, guest_host, guest_network: network, at_guest, at_third })
    }

    /// The network that the guest began in.
    pub(super) fn guest_network(&self) -> &Site {
        &self.guest_network
    }
}

pub(super) fn address(of: &Attachment, ipv6: bool) -> Result<IpAddr> {
    if ipv6 { of.ipv6() } else { of.ipv4() }
}

/// How many connections of this endpoint a host has that do without its daemon. What of IPv6 goes between hosts that
/// have met by IPv4 goes by the tunnel.
pub(super) fn carried(daemon: &Whimbrel, at: SocketAddr) -> usize {
    let all = daemon.connections().unwrap_or_default();
    let of_it = all.iter().filter(|c| c.flow.local == at && c.state != ConnectionState::Server);
    of_it.filter(|c| at.is_ipv6() || c.carrier == Some(Carrier::Rewrite)).count()
}

fn anchored(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at_anchor = address(&four.world.at_server, ipv6)?;
    let lent = SocketAddr::new(at_anchor, PORT);
    let mut tickers = [
        Ticker::start_behind(&four.guest, "desk", lent, "guest", EVERY)?,
        Ticker::start(&four.third, address(&four.at_third, ipv6)?, "third", EVERY)?,
        Ticker::start(&four.anchor, at_anchor, "desk", EVERY)?,
    ];
    let mut far = TickerFar::connect(&four.world.laptop, lent)?;
    far.wait_progress(100, LONG)?;
    expect!(four.anchor.cli(&["anchor"])?.contains("lent to"), "the anchor lends");
    step("the anchor knows the connection as a flow");
    let known = || four.anchor.cli(&["anchor"]).is_ok_and(|said| said.contains("passed on to"));
    wait_until(LONG, "the connection is claimed", known)?;
    far.wait_progress(1000, LONG)?;

    let mut until = 0;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let daemons = [&four.guest, &four.third, &four.anchor];
        let name = ["guest", "third", "desk"][to];
        let before = MonoTime::now();
        let said = daemons[from].cli(&["move", &far.local().to_string(), "--to", name, "--process", name])?;
        expect!(said.contains("is with"), "{said}");
        let (began, end) = tickers[from].ticked()?;
        expect!(began == until, "a sender began with byte {began} after byte {until}");
        until = end;
        far.wait_progress(500, LONG)?;
        let gap = far.longest_gap(before)?.map(|(begun, ended)| ended.since(begun)).unwrap_or_default();
        println!("    to {name}: nothing was heard for {:.1} ms", gap.as_secs_f64() * 1e3);
        expect!(gap < SOON * patience(), "the far end heard nothing for {gap:?}");
    }

    step("a user without rights runs a program");
    let run_dir = four.guest.run_dir();
    let run = four.guest_host.command("setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    let run = run.arg(four.guest.binary()).arg("--run-dir").arg(run_dir).args(["run", "--anchor", "nearest"]);
    let run = run.args(if ipv6 { &["-6"][..] } else { &[] }).arg(format!("--port={}", PORT + 2));
    // A port that was not lent to it would be deaf: it is taken. What stays on the host is the program's own business.
    let run = run
        .args(["--", "python3", "-c", BINDS, if ipv6 { "::" } else { "0.0.0.0" }])
        .arg((PORT + 2).to_string())
        .run()?;
    let wanted = format!("65534 {}=has 0=has {}=EADDRINUSE 80=EADDRINUSE loopback=has", PORT + 2, PORT + 3);
    expect!(run.trim() == wanted, "a program without rights says {run} and not {wanted}");

    step("many connections, whose program has moved none");
    let echo_at = SocketAddr::new(at_anchor, PORT + 1);
    let server = EchoServer::start_behind(&four.guest, "desk", echo_at)?;
    let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
    let echo = |many: &mut Many, what: &str| -> Result<()> {
        let slowest = many.all_answer(LONG, what)?;
        println!("    {what}: answers within {:.1} ms", slowest.as_secs_f64() * 1e3);
        Ok(())
    };
    echo(&mut many, "by the lease")?;
    wait_until(REWRITTEN_WITHIN, "the connections are claimed", || carried(&four.guest, echo_at) == COUNT)?;
    // What is answered rewritten once is sent so from then on (P-24).
    echo(&mut many, "as flows")?;
    step("the anchor's daemon is killed");
    four.anchor.kill()?;
    if !ipv6 {
        echo(&mut many, "without it")?;
    }
    four.anchor.restart()?;
    echo(&mut many, "with another")?;
    far.wait_progress(500, LONG)?;
    step("the tenant's daemon is killed");
    four.guest.kill()?;
    if !ipv6 {
        echo(&mut many, "without it")?;
    }
    four.guest.restart()?;
    echo(&mut many, "with another")?;
    let mut more = Many::open(&four.world.laptop, &server, COUNT)?;
    echo(&mut more, "new ones")?;

    step("the tenant roams");
    let elsewhere = four.world.a.clone();
    four.at_guest = four.guest_host.roam(&four.at_guest, &elsewhere.network, &Join::by("eth0"))?;
    echo(&mut many, "from where it is now")?;
    echo(&mut more, "those that are young")?;
    four.world.no_resets()?;

    step("the anchor stops");
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    let refused = four.third.cli(&["run", "--anchor", "desk", "--", "true"]);
    expect!(refused.is_err_and(|error| error.to_string().contains("about to stop lending")), "it lends on");
    drop((many, more));
    let passed_on = |anchor: &Whimbrel| anchor.cli(&["anchor"]).map(|said| said.matches("passed on to").count());
    wait_until(LONG, "what has ended depends on nobody", || passed_on(&four.anchor).is_ok_and(|count| count == 1))?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    expect!(passed_on(&four.anchor)? == 1, "another daemon counts what has ended");
    drop((server, far));
    // What was leased by programs that have ended is given back.
    tickers[0].process().kill()?;
    let returned = || four.anchor.cli(&["anchor"]).is_ok_and(|said| !said.contains("lent to"));
    wait_until(LONG, "the leases are returned", returned)?;
    four.anchor.cli(&["anchor", "start"])?;
    // One that is at rest itself is not its own.
    let at_anchor = four.world.at_server.ipv4()?;
    for policy in ["auto", "stable", "nearest"] {
        let shown = four.third.cli(&["run", "--anchor", policy, "--", "ip", "-brief", "address"])?;
        expect!(
            shown.contains(&format!("{at_anchor}/")),
            "behind `{policy}` a program has {shown} and not {at_anchor}"
        );
    }
    Ok(())
}

fn direct(lab: &mut Lab, behind_nat: bool) -> Result<()> {
    let nat = Gateway::Nat { random_ports: false };
    let at = if behind_nat { site("c").behind(nat) } else { site("c") };
    let mut four = Four::with_guest_at(lab, LENDS, at, false)?;
    let far_daemon = four.world.laptop.whimbrel()?;
    let at_anchor = four.world.at_server.ipv4()?;
    let lent = SocketAddr::new(at_anchor, PORT);
    let mut tickers = [
        Ticker::start_behind(&four.guest, "desk", lent, "guest", EVERY)?,
        Ticker::start(&four.third, four.at_third.ipv4()?, "third", EVERY)?,
    ];
    let mut far = TickerFar::connect(&four.world.laptop, lent)?;
    far.wait_progress(100, LONG)?;
    let before = MonoTime::now();
    straight(&far_daemon, &four.guest)?;
    far.wait_progress(500, LONG)?;
    let gap = far.longest_gap(before)?.map(|(begun, ended)| ended.since(begun)).unwrap_or_default();
    println!("    nothing was heard for {:.1} ms while it became direct", gap.as_secs_f64() * 1e3);
    expect!(gap < SOON * patience(), "the far end heard nothing for {gap:?}");
    step("the tenant's daemon is killed before it tells the anchor so");
    four.guest.kill()?;
    let known = four.anchor.anchors()?.passed_on.len();
    println!("    the anchor passes {known} on");
    four.guest.restart()?;
    far.wait_progress(500, LONG)?;
    step("it goes to a third host");
    let said = four.guest.cli(&["move", &far.local().to_string(), "--to", "third", "--process", "third"])?;
    expect!(said.contains("is with"), "{said}");
    let (began, until) = tickers[0].ticked()?;
    expect!(began == 0, "a sender began with byte {began}");
    far.wait_progress(500, LONG)?;
    straight(&far_daemon, &four.third)?;
    let said = four.third.cli(&["move", &far.local().to_string(), "--to", "guest", "--process", "guest"])?;
    expect!(said.contains("is with"), "{said}");
    let (began, _) = tickers[1].ticked()?;
    expect!(began == until, "a sender began with byte {began} after byte {until}");
    far.wait_progress(500, LONG)?;
    straight(&far_daemon, &four.guest)?;

    step("the anchor passes it on no more");
    let none = || four.anchor.anchors().is_ok_and(|all| all.passed_on.is_empty());
    wait_until(LONG, "the anchor has nothing to do with it", none)?;
    step("the tenant's daemon is killed");
    four.guest.kill()?;
    four.guest.restart()?;
    far.wait_progress(500, LONG)?;

    step("the anchor vanishes");
    four.world.server.leave(&four.world.at_server, Leave::Orderly)?;
    far.wait_progress(500, LONG)?;
    step("its host is nowhere for a while, and comes back elsewhere");
    four.guest_host.leave(&four.at_guest, Leave::Orderly)?;
    let left = MonoTime::now();
    wait_until(LONG, "TCP's timer has grown", || MonoTime::now().since(left) > AWAY)?;
    let elsewhere = four.world.a.clone();
    four.at_guest = four.guest_host.join(&elsewhere.network, &Join::by("eth0"))?;
    let there = MonoTime::now();
    far.wait_progress(500, LONG)?;
    let gap = far.longest_gap(left)?.map(|(_, ended)| ended.since(there)).unwrap_or_default();
    println!("    it was heard again {:.1} ms after its host had an address", gap.as_secs_f64() * 1e3);
    expect!(gap < SOON * patience(), "the far end heard nothing for {gap:?} more");
    four.world.no_resets()
}

/// Blocks that are sent and compared at a time, and who sends them.
const BLOCKS: u32 = 50;
const FEW: u32 = 5;
const USER: u32 = 65_534;

fn of_a_user(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let to = four.world.at.ipv4()?;
    let mut talks = Vec::new();
    for _ in 0..2 {
        let (far, port) = far_end(&four.world.laptop, to)?;
        let mut program = Program::start_behind_by(&four.guest, "desk", USER)?;
        program.does(&format!("dial {to} {port}"))?;
        program.does(&format!("talk {BLOCKS}"))?;
        talks.push((program, far));
    }
    let mut blocks = BLOCKS;
    let mut go_on = |what: &str| -> Result<()> {
        step(what);
        talks.iter_mut().try_for_each(|(program, _)| program.does(&format!("talk {BLOCKS}")).map(drop))?;
        blocks += BLOCKS;
        Ok(())
    };
    let claimed = || four.anchor.anchors().is_ok_and(|all| all.passed_on.len() == 2);
    wait_until(LONG, "the connections are claimed", claimed)?;
    go_on("as flows")?;
    let elsewhere = four.world.a.clone();
    four.at_guest = four.guest_host.roam(&four.at_guest, &elsewhere.network, &Join::by("eth0"))?;
    go_on("their host has roamed")?;
    four.guest.kill()?;
    four.guest.restart()?;
    go_on("their host's daemon was killed")?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    go_on("the anchor's daemon was killed")?;
    for (program, far) in &mut talks {
        program.does("close")?;
        is_over(far, blocks)?;
    }
    four.world.no_resets()
}

fn chosen(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (here, there) = (world.add(lab, site("c"))?, world.add(lab, site("t"))?);
    let (guest_host, third_host) = (lab.host("guest")?, lab.host("third")?);
    guest_host.join(&here.network, &Join::by("eth0"))?;
    let at_third = third_host.join(&world.b.network, &Join::by("eth0"))?;
    let desk = world.server.whimbrel_with(LENDS)?;
    let (third, guest) = (third_host.whimbrel_with(LENDS)?, guest_host.whimbrel_with(ANYBODY)?);
    let at_desk = world.at_server.ipv4()?;
    desk.befriend(&guest, at_desk)?;
    desk.invite(&third, at_desk, "third")?;
    let to = world.at.ipv4()?;
    let mut talks: Vec<(Program, Process)> = Vec::new();
    let mut behind = |policy: &str, anchor: IpAddr| -> Result<()> {
        let mut shown = String::new();
        let chosen = wait_until(3 * LONG, &format!("`{policy}` chooses {anchor}"), || {
            shown = guest
                .cli(&["run", "--anchor", policy, "--", "ip", "-brief", "address"])
                .unwrap_or_else(|e| e.to_string());
            shown.contains(&format!("{anchor}/"))
        });
        println!("    `{policy}`: {}", shown.trim().replace('\n', "; "));
        chosen?;
        // What was chosen before stays, whatever is chosen now.
        if let Some((program, _)) = talks.first_mut().filter(|_| policy == "nearest") {
            program.does(&format!("talk {FEW}"))?;
        }
        let (far, port) = far_end(&world.laptop, to)?;
        let mut program = Program::start_behind_by(&guest, policy, USER)?;
        let own = program.does(&format!("dial {to} {port}")).and_then(|_| program.does("own"))?;
        expect!(own == anchor.to_string(), "behind `{policy}` a program has {own}, and a moment ago {anchor}");
        program.does(&format!("talk {FEW}"))?;
        talks.push((program, far));
        Ok(())
    };
    // Far enough to be seen in the first round trip that is measured then: what is known of it is smoothed.
    let far_away = Shape::delay_rate(400, 100);
    step("the nearer one");
    behind("nearest", at_desk)?;
    step("the other one, which is nearer now");
    world.s.link()?.set_both(&far_away);
    behind("nearest", at_third.ipv4()?)?;
    step("the one that stays, though it is farther away");
    let moved = third_host.roam(&at_third, &there.network, &Join::by("eth0"))?;
    let known = |address: IpAddr| guest.peers().is_ok_and(|all| all.iter().any(|peer| peer.address.ip() == address));
    let there = moved.ipv4()?;
    wait_until(LONG, "the guest knows where it is", || known(there))?;
    behind("stable", at_desk)?;
    step("the other one, where that one has vanished");
    world.server.leave(&world.at_server, Leave::Orderly)?;
    behind("stable", there)
}
