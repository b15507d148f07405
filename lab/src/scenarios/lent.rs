//! What anchors lend, beyond ports for connections: ICMP of it, path MTUs, fragments, whole addresses; and programs
//! that stay hidden.

use std::net::{IpAddr, SocketAddr};

use super::anchor::{Four, LENDS, PORT};
use super::library::Program;
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{Error, Host, Lab, Packet, Result, Site, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "anchored-paths",
        "narrow links before and behind an anchor, ports that nobody has, fragments: both ends of datagrams and connections with its address hear of them and go on",
        |lab| paths(lab, false),
    ),
    scenario("anchored-paths-ipv6", "the same over IPv6", |lab| paths(lab, true)),
    scenario(
        "anchored-address",
        "a server has a whole address of an anchor's: it is reached at any port, pings are answered where it is, and nobody else gets the address",
        |lab| whole(lab, false),
    ),
    scenario("anchored-address-ipv6", "the same over IPv6", |lab| whole(lab, true)),
    scenario(
        "anchored-hidden",
        "two programs with an anchor's address are opened connections to by a far end that runs Whimbrel: it learns where one of them is, and never where the hidden one is, also over a restart",
        hidden,
    ),
];

const PROGRAM: &str = include_str!("lent/program.py");

/// Of IP packets that are too long for any tunnel over Ethernet, and fit Ethernet.
const FULL: u32 = 1500;
/// Of links that are narrow; IPv6 allows no less than 1280.
const NARROW: u32 = 1350;
const NARROWER: u32 = 1300;
/// A datagram in fragments.
const MANY: u32 = 4000;
/// Bytes of a stream: many windows.
const STREAM: u32 = 2_000_000;

/// One end of what is sent, on a host, or behind an anchor.
struct End(Program);

impl End {
    fn on(host: &Host) -> Result<Self> {
        let program = write(host)?;
        Self::ready(Program { process: host.command("python3").arg(program).label("an end").spawn()? })
    }

    fn behind(daemon: &Whimbrel, options: &[&str]) -> Result<Self> {
        let program = write(daemon.host())?;
        let command = daemon.command(&["run", "--anchor", "desk"]).args(options).args(["--", "python3", &program]);
        Self::ready(Program { process: command.label("an end behind an anchor").spawn()? })
    }

    fn ready(mut program: Program) -> Result<Self> {
        program.process.wait_line(LONG, "it runs", |line| line.starts_with("did start").then_some(()))?;
        Ok(Self(program))
    }

    fn does(&mut self, order: &str) -> Result<String> {
        self.0.does(order)
    }

    /// A number that it answers.
    fn tells(&mut self, order: &str) -> Result<u32> {
        let said = self.0.does(order)?;
        said.trim().parse().map_err(|_| Error::Usage(format!("`{order}`: {said}")))
    }

    /// An order at this end, and one at another while it goes on.
    fn with(&mut self, order: &str, other: &mut Self, its: &str) -> Result<()> {
        self.0.begin(order)?;
        other.does(its)?;
        self.0.did(order).map(drop)
    }
}

fn write(host: &Host) -> Result<String> {
    let path = host.dir().join(format!("{}.py", host.unique_label("end")));
    std::fs::write(&path, PROGRAM).map_err(|error| Error::call("write", path.display().to_string(), error))?;
    Ok(path.display().to_string())
}

/// The link between a network's router and the core takes packets of so many bytes.
fn narrow(four: &Four, site: &Site, mtu: u32) -> Result<()> {
    site.router.ip([format!("link set dev up0 mtu {mtu}")])?;
    four.world.campus.core.ip([format!("link set dev to-{} mtu {mtu}", site.network.name())])
}

/// Whether a packet is one of the tunnel: sealed or plain, it goes to or comes from the control port.
fn is_tunnel(packet: &Packet<'_>) -> bool {
    packet.udp().is_some() && packet.ports().is_some_and(|(from, to)| from == 2031 || to == 2031)
}

/// The payload of UDP of so long an IP packet.
fn payload(mtu: u32, ipv6: bool) -> u32 {
    mtu - if ipv6 { 48 } else { 28 }
}

/// Whether an anchor passes on a connection of this far end as a flow.
fn is_claimed(four: &Four, far: SocketAddr) -> bool {
    four.anchor.anchors().is_ok_and(|all| all.passed_on.iter().any(|passed| passed.flow.remote == far))
}

fn paths(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let four = Four::new(lab, LENDS)?;
    let of = |at: &crate::Attachment| if ipv6 { at.ipv6() } else { at.ipv4() };
    let (lent, far_at) = (of(&four.world.at_server)?, of(&four.world.at)?);
    let ports = [PORT, PORT + 1, PORT + 2].map(|port| format!("--port={port}"));
    let mut options: Vec<&str> = ports.iter().map(String::as_str).collect();
    options.extend(ipv6.then_some("-6"));
    let mut near = End::behind(&four.guest, &options)?;
    let mut far = End::on(&four.world.laptop)?;
    let fits = |mtu| payload(mtu, ipv6);

    step("datagrams of no flow: the far end hears that the tunnel is narrower than its link, and what it sent arrives");
    let far_port = far.tells(&format!("udp a {far_at} 0 do"))?;
    near.does(&format!("udp a {lent} {PORT} do"))?;
    far.does(&format!("connect a {lent} {PORT}"))?;
    far.does(&format!("send a {}", fits(FULL)))?;
    near.does(&format!("take a {}", fits(FULL)))?;
    let heard = far.tells(&format!("learn a {}", fits(FULL)))?;
    expect!((1280..FULL).contains(&heard), "the far end takes the path for one of {heard} bytes");
    println!("    the tunnel takes {heard} bytes");
    far.does(&format!("send a {}", fits(heard)))?;
    near.does(&format!("take a {}", fits(heard)))?;

    step("the program hears of a narrow link behind the anchor");
    narrow(&four, &four.world.a, NARROW)?;
    let known = near.tells(&format!("learn a {} {far_at} {far_port}", fits(1400)))?;
    expect!(known == NARROW, "the program takes the path for one of {known} bytes");
    near.does(&format!("send a {} {far_at} {far_port}", fits(NARROW)))?;
    far.does(&format!("take a {}", fits(NARROW)))?;

    step("fragments");
    // Over IPv6 the sender cuts, and hears from the first ones how short they have to be.
    far.does(&format!("udp b {far_at} 0 want"))?;
    far.does(&format!("connect b {lent} {}", PORT + 1))?;
    near.does(&format!("udp b {lent} {} want", PORT + 1))?;
    far.does(&format!("flood b {MANY}"))?;
    let sender = near.does(&format!("take b {MANY}"))?;
    near.does(&format!("flood b {MANY} {sender}"))?;
    far.does(&format!("take b {MANY}"))?;

    step("nobody has the port, at either end");
    near.does("close b")?;
    far.does("refused b")?;
    far.does("close b")?;
    near.does(&format!("udp b {lent} {} do", PORT + 1))?;
    near.does(&format!("connect b {sender}"))?;
    near.does("refused b")?;
    near.does("close b")?;

    step("both ends of datagrams are connected; the links get narrower on either side");
    let far_port = far.tells(&format!("udp c {far_at} 0 do"))?;
    near.does(&format!("udp c {lent} {} do", PORT + 2))?;
    near.does(&format!("connect c {far_at} {far_port}"))?;
    far.does(&format!("connect c {lent} {}", PORT + 2))?;
    narrow(&four, &four.world.a, NARROWER)?;
    let known = near.tells(&format!("learn c {}", fits(1340)))?;
    expect!(known == NARROWER, "the program takes the path for one of {known} bytes");
    near.does(&format!("send c {}", fits(NARROWER)))?;
    far.does(&format!("take c {}", fits(NARROWER)))?;
    narrow(&four, &four.world.a, FULL)?;
    let network = four.guest_network();
    narrow(&four, network, NARROWER)?;
    if !ipv6 {
        // The tunnel's datagrams are cut on the way. Over IPv6 the anchor learns that they have to be, and the far end
        // may learn of less.
        far.does(&format!("flood c {}", fits(heard)))?;
        near.does(&format!("take c {}", fits(heard)))?;
    }
    far.does("close c")?;
    near.does("refused c")?;
    near.does("close c")?;

    step("streams: first of no flow, then as a flow, with links that have got narrow at either side");
    narrow(&four, network, FULL)?;
    narrow(&four, &four.world.a, NARROWER)?;
    near.does(&format!("listen l {lent} {}", PORT + 1))?;
    far.does(&format!("open s {lent} {}", PORT + 1))?;
    let sender = near.does("accept s l")?;
    near.with(&format!("push s {STREAM}"), &mut far, &format!("pull s {STREAM}"))?;
    far.with(&format!("push s {STREAM}"), &mut near, &format!("pull s {STREAM}"))?;
    let (_, port) = sender.trim().split_once(' ').unwrap_or_default();
    let flow = SocketAddr::new(far_at, port.parse().unwrap_or_default());
    wait_until(LONG, "it is claimed", || is_claimed(&four, flow))?;
    narrow(&four, network, NARROW)?;
    near.with(&format!("push s {STREAM}"), &mut far, &format!("pull s {STREAM}"))?;
    far.with(&format!("push s {STREAM}"), &mut near, &format!("pull s {STREAM}"))?;
    four.world.no_resets()
}

/// What an anchor lends as a whole: of the subnet that it is in, and routed to it.
const LENDS_WHOLE: &str = "[anchor]\naddresses = [\"192.0.2.64/31\", \"2001:db8:5::6:0/127\"]\n";

fn whole(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let mut four = Four::new(lab, LENDS_WHOLE)?;
    let lent: [IpAddr; 2] = if ipv6 {
        [[0x2001, 0xdb8, 5, 0, 0, 0, 6, 0].into(), [0x2001, 0xdb8, 5, 0, 0, 0, 6, 1].into()]
    } else {
        [[192, 0, 2, 64].into(), [192, 0, 2, 65].into()]
    };
    let far_at = if ipv6 { four.world.at.ipv6()? } else { four.world.at.ipv4()? };
    let address = lent[1].to_string();
    let mut near = End::behind(&four.guest, &["--address", &address])?;
    let mut far = End::on(&four.world.laptop)?;
    let shown = four.anchor.cli(&["anchor"])?;
    expect!(shown.contains(&format!("{address}, as a whole")), "{shown}");

    step("it answers pings, and its answers come from where the program is");
    let network = four.guest_network().link()?;
    let passed = network.count(|_, packet| is_tunnel(packet));
    let ping = |four: &Four, more: &[&str]| {
        let host = &four.world.laptop;
        host.command("ping").args(["-n", "-c", "3", "-i", "0.2", "-W", "5"]).args(more).arg(&address).run()
    };
    let said = ping(&four, &[])?;
    expect!(said.contains("3 received"), "{said}");
    expect!(passed.get() >= 6, "three pings and their answers made {} packets of the tunnel", passed.get());
    step("long ones in fragments");
    let said = ping(&four, &["-s", "4000"])?;
    expect!(said.contains("3 received"), "{said}");
    step("and such as are too long for the tunnel");
    let said = ping(&four, &["-M", "do", "-s", "1440"])?;
    expect!(said.contains("3 received"), "{said}");

    step("any port, also one below 1024");
    near.does(&format!("listen l {address} 80"))?;
    far.does(&format!("open s {address} 80"))?;
    let sender = near.does("accept s l")?;
    near.with(&format!("push s {STREAM}"), &mut far, &format!("pull s {STREAM}"))?;
    let (_, port) = sender.trim().split_once(' ').unwrap_or_default();
    let flow = SocketAddr::new(far_at, port.parse().unwrap_or_default());
    wait_until(LONG, "it is claimed", || is_claimed(&four, flow))?;
    far.with(&format!("push s {STREAM}"), &mut near, &format!("pull s {STREAM}"))?;
    near.does(&format!("udp u {address} 53"))?;
    far.does(&format!("udp u {far_at} 0"))?;
    far.does(&format!("connect u {address} 53"))?;
    far.does(&format!("flood u {MANY}"))?;
    let sender = near.does(&format!("take u {MANY}"))?;
    near.does(&format!("flood u {MANY} {sender}"))?;
    far.does(&format!("take u {MANY}"))?;
    near.does("close u")?;
    far.does("refused u")?;
    step("what it opens has the address too");
    let port = far.tells(&format!("listen m {far_at} 0"))?;
    near.does(&format!("open t {far_at} {port}"))?;
    let sender = far.does("accept t m")?;
    expect!(sender.starts_with(&address), "it comes from {sender}");

    step("nobody else gets it, and what is not lent is refused");
    let refused = |four: &Four, options: &[&str], why: &str| -> Result<()> {
        let args = [&["run", "--anchor", "desk"], options, &["--", "true"]].concat();
        let said = four.third.cli(&args);
        expect!(said.as_ref().is_err_and(|error| error.to_string().contains(why)), "{options:?}: {said:?}");
        Ok(())
    };
    refused(&four, &["--address", &address], "it is lent already")?;
    refused(
        &four,
        &["--address", if ipv6 { "2001:db8:5::7:0" } else { "192.0.2.70" }],
        "none that it lends as a whole",
    )?;
    refused(&four, &["--address", "224.0.0.1"], "no anchor can lend that address")?;
    refused(&four, &["--address", "192.0.2"], "it is `any`, or an address")?;
    refused(&four, &["--address", "any", "--port", "80"], "cannot be used with")?;
    refused(&four, &["--port", "8001"], "offers none, or not this one")?;
    refused(&four, &["-6", "--address", "192.0.2.64"], "no IPv6 address")?;
    step("the other one, and then there is none left");
    let family: &[&str] = if ipv6 { &["-6"] } else { &[] };
    let mut other = End::behind(&four.third, &[&["--address", "any"], family].concat())?;
    let shown = four.third.cli(&["anchor"])?;
    expect!(shown.contains(&format!("{}, as a whole", lent[0])), "{shown}");
    refused(&four, &[&["--address", "any"], family].concat(), "all addresses that it lends are taken")?;
    other.does(&format!("listen l {} 80", lent[0]))?;
    far.does(&format!("open o {} 80", lent[0]))?;
    other.does("accept o l")?;
    far.with(&format!("push o {STREAM}"), &mut other, &format!("pull o {STREAM}"))?;

    step("both daemons are killed");
    four.guest.kill()?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    four.guest.restart()?;
    far.with(&format!("push s {STREAM}"), &mut near, &format!("pull s {STREAM}"))?;
    let answered = || ping(&four, &[]).is_ok_and(|said| said.contains("3 received"));
    wait_until(LONG, "it answers pings again", answered)?;
    far.does(&format!("open n {address} 80"))?;
    near.does("accept n l")?;
    near.with(&format!("push n {STREAM}"), &mut far, &format!("pull n {STREAM}"))?;
    four.world.no_resets()?;

    step("of a family, or as a whole, nothing is lent");
    // `[anchor]` is read at the start.
    for (config, options, why) in [
        ("[anchor]\naddresses = [\"192.0.2.64/31\"]\n", &["-6", "--address", "any"][..], "none of that family"),
        (LENDS, &["--address", "any"], "it lends no address as a whole"),
    ] {
        four.anchor.reconfigure(config)?;
        four.anchor.kill()?;
        four.anchor.restart()?;
        refused(&four, options, why)?;
    }
    drop((far, other));
    Ok(())
}

fn hidden(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let far_daemon = four.world.laptop.whimbrel()?;
    let lent = four.world.at_server.ipv4()?;
    let mut shy = End::behind(&four.guest, &[&format!("--port={PORT}"), "--hidden"])?;
    let mut frank = End::behind(&four.guest, &[&format!("--port={}", PORT + 1)])?;
    let mut far = End::on(&four.world.laptop)?;
    let key = four.guest.status()?.public_key;
    // Whether the far end knows that the connection to this port is with the program's host.
    let with_guest = |port: u16| -> Result<bool> {
        let all = far_daemon.connections()?;
        Ok(all.iter().any(|c| c.flow.remote.port() == port && c.peer.as_ref().is_some_and(|peer| peer.key == key)))
    };
    let refused = |port: u16| -> Result<bool> {
        let all = far_daemon.connections()?;
        Ok(all.iter().any(|c| c.flow.remote.port() == port && c.peer.is_none()))
    };
    shy.does(&format!("listen l {lent} {PORT}"))?;
    frank.does(&format!("listen l {lent} {}", PORT + 1))?;
    let talk = |far: &mut End, near: &mut End, name: &str| -> Result<()> {
        far.with(&format!("push {name} {STREAM}"), near, &format!("pull {name} {STREAM}"))?;
        near.with(&format!("push {name} {STREAM}"), far, &format!("pull {name} {STREAM}"))
    };
    for (end, name, port) in [(&mut shy, "shy", PORT), (&mut frank, "frank", PORT + 1)] {
        far.does(&format!("open {name} {lent} {port}"))?;
        end.does(&format!("accept {name} l"))?;
        talk(&mut far, end, name)?;
    }
    step("the one that is not hidden goes directly");
    wait_until(LONG, "it is with the program's host", || with_guest(PORT + 1).unwrap_or(false))?;
    let passed_on = |four: &Four| four.anchor.anchors().map(|all| all.passed_on).unwrap_or_default();
    wait_until(LONG, "the anchor has nothing to do with it", || passed_on(&four).len() == 1)?;
    step("the other one stays, and what it opens itself does too");
    expect!(refused(PORT)? && !with_guest(PORT)?, "the far end knows where the hidden program is");
    let far_at = four.world.at.ipv4()?;
    let port = far.tells(&format!("listen m {far_at} 0"))?;
    let own = u16::try_from(shy.tells(&format!("open own {far_at} {port}"))?).unwrap_or_default();
    far.does("accept own m")?;
    talk(&mut far, &mut shy, "own")?;
    wait_until(LONG, "it is claimed", || passed_on(&four).len() == 2)?;
    talk(&mut far, &mut shy, "own")?;
    expect!(!with_guest(own)?, "the far end knows where the hidden program is");

    step("another daemon knows that it is hidden");
    four.guest.kill()?;
    four.guest.restart()?;
    talk(&mut far, &mut shy, "shy")?;
    far.does(&format!("open new {lent} {PORT}"))?;
    shy.does("accept new l")?;
    talk(&mut far, &mut shy, "new")?;
    wait_until(LONG, "it is claimed", || passed_on(&four).len() == 3)?;
    talk(&mut far, &mut shy, "new")?;
    expect!(!with_guest(PORT)? && !with_guest(own)?, "the far end knows where the hidden program is");
    four.world.no_resets()
}
