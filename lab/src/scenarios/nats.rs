//! NATs of all kinds at both ends: which way a hand-off finds through them, or that there is none.
//!
//! ```text
//!  laptop ~~(net t, public)~~ rt === core === rs (fixed side's) ---(net s)--- server
//!         ~~(net a)~~ ra (from) === core
//!         ~~(net b)~~ rb (to)   === core === rc ---(net c)--- meeting, the rendezvous
//! ```

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use whimbrel_ipc::{EventRecord, RendezvousState};

use super::world::{LONG, SOME, all_run, site, step};
use super::{Scenario, scenario};
use crate::{
    Campus, Error, FlowPair, Gateway, Host, Join, Lab, MonoTime, NatKind, PairOptions, Result, Side, Site, Whimbrel,
    expect, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "nat-kinds",
        description: "each kind of NAT lets in what it must, and nothing else, and forgets it",
        needs_daemon: false,
        run: kinds,
    },
    scenario(
        "nat-masked",
        "the server is behind a NAT that lets in only what comes from where the laptop was, and nothing helps: the \
         connection goes on by masked updates where the laptop's new network lets them out, and else waits until it is \
         back",
        masked,
    ),
    scenario("nat-matrix", "the laptop moves between NATs of some kinds, the server is behind others", some),
];

pub(super) const LONG_SCENARIOS: &[Scenario] = &[
    scenario("nat-matrix-all", "the same for all kinds of NAT at each end, with all that may help", whole),
    scenario("nat-expiry", "both ends are behind NATs that forget what is not used for 30 s, and are silent", expiry),
];

/// What must not have arrived by then is taken not to come: what was sent after it by the same way has.
const SOON: Duration = Duration::from_secs(5);
/// Of a NAT that is seen to forget.
const SHORT: Duration = Duration::from_secs(2);
/// By then a connection has gone on, or does not: TCP stands in for UDP after 2 s, and is slow.
const GOES_ON: Duration = Duration::from_secs(15);
/// Of each stream, in each direction.
const RATE: u64 = 1_000_000;

/// What may lead to a fixed side that is behind a NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// Nothing: it has opened the connection itself.
    Nothing,
    /// Both ends know a rendezvous.
    Rendezvous,
    /// Its NAT passes on to it what comes for its ports, control datagrams among it.
    Forward,
    /// Its NAT passes on connections of TCP alone, which it takes in place of datagrams (`listen_tcp`).
    Tcp,
}

/// One case: `None` is no NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Where the laptop was.
    pub from: Option<NatKind>,
    /// Where it goes.
    pub to: Option<NatKind>,
    /// Before the server, which stays.
    pub fixed: Option<NatKind>,
    /// How that is reached.
    pub help: Help,
}

/// What a hand-off found through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The update itself.
    Direct,
    /// The update as from where the laptop was.
    Masked,
    /// A rendezvous told either end where the other is, which no datagram found by itself.
    Punched,
    /// The update itself, by a port that is forwarded.
    Forwarded,
    /// A connection of TCP.
    Tcp,
}

/// What became of a case.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Which way was found, if any.
    pub method: Option<Method>,
    /// For how long the end that waited longer heard nothing.
    pub silence: Option<Duration>,
    /// Control datagrams on the laptop's new uplink, both ways, until it went on.
    pub datagrams: u64,
}

fn kind_name(kind: Option<NatKind>) -> &'static str {
    kind.map_or("none", NatKind::name)
}

impl Cell {
    /// Every case that there can be. Without help only what a laptop without NAT does is one: behind two NATs the ends
    /// would not have met.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let any = || std::iter::once(None).chain(NatKind::ALL.into_iter().map(Some));
        let mut all = Vec::new();
        let mut add = |fixed: Option<NatKind>, help| {
            let from = any().filter(move |from| help != Help::Nothing || fixed.is_none() || from.is_none());
            all.extend(from.flat_map(|from| any().map(move |to| Self { from, to, fixed, help })));
        };
        add(None, Help::Nothing);
        for kind in NatKind::ALL {
            add(Some(kind), Help::Nothing);
            add(Some(kind), Help::Rendezvous);
        }
        add(Some(NatKind::PortRestricted), Help::Forward);
        add(Some(NatKind::PortRestricted), Help::Tcp);
        all
    }

    /// Whether it is the server that opens the connection: only who does asks the other end (P-10), and behind its NAT
    /// it could not be asked.
    fn server_opens(self) -> bool {
        self.fixed.is_some() && self.help != Help::Forward
    }

    /// Name for tables and figures.
    #[must_use]
    pub fn name(self) -> String {
        let help = match self.help {
            Help::Nothing => "",
            Help::Rendezvous => "+rendezvous",
            Help::Forward => "+forward",
            Help::Tcp => "+tcp",
        };
        format!("{}_to_{}_fixed_{}{help}", kind_name(self.from), kind_name(self.to), kind_name(self.fixed))
    }

    /// Whether a way through is known to exist.
    #[must_use]
    pub fn has_way(self) -> bool {
        use NatKind::{FullCone, PortRestricted, Symmetric};
        match (self.fixed, self.help) {
            (None | Some(FullCone), _) | (_, Help::Forward | Help::Tcp) => true,
            // As from where the laptop was, which names where it is: no NAT may change either.
            (_, Help::Nothing) => self.to.is_none(),
            // Neither end knows by which port the other one's NAT lets it through.
            (Some(fixed), Help::Rendezvous) => {
                let through = |to| match fixed {
                    Symmetric => !matches!(to, Some(Symmetric | PortRestricted)),
                    PortRestricted => to != Some(Symmetric),
                    _ => true,
                };
                through(self.from) && through(self.to)
            }
        }
    }

    /// Tries it, in a lab of its own.
    ///
    /// # Errors
    /// When the case could not be tried, or a byte arrived that was not sent.
    pub fn run(self, lab: Lab) -> Result<Outcome> {
        Case::build(lab, self)?.run(self)
    }
}

/// Hosts and daemons of one case.
struct Case {
    first: Site,
    /// Where the laptop goes before it is looked at, if it is not there from the beginning.
    from: Option<Site>,
    to: Site,
    at_server: Site,
    laptop: Host,
    server: Host,
    meeting: Option<Whimbrel>,
    config: String,
    server_config: String,
    // Last: the others live in it.
    _lab: Lab,
}

impl Case {
    fn build(mut lab: Lab, cell: Cell) -> Result<Self> {
        let mut campus = Campus::new(&mut lab)?;
        let mut add = |name: &str, kind: Option<NatKind>, rewrites: bool| -> Result<Site> {
            let gateway = kind.map_or(Gateway::Router, |kind| Gateway::OfKind { kind, rewrites });
            campus.add(&mut lab, site(name).behind(gateway).v4_only())
        };
        let forwarded = cell.help == Help::Forward;
        let (from, to) = (add("a", cell.from, true)?, add("b", cell.to, true)?);
        let (at_server, at_meeting) = (add("s", cell.fixed, !forwarded)?, add("c", None, false)?);
        // Two ends that are both behind NATs, and have nothing forwarded, would not have met.
        let apart = cell.from.is_some() && cell.server_opens();
        let (first, from) = if apart { (add("t", None, false)?, Some(from)) } else { (from, None) };
        let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
        let (mut config, mut meeting) = (String::new(), None);
        if cell.help == Help::Rendezvous {
            let host = lab.host("meeting")?;
            let address = host.join(&at_meeting.network, &Join::by("eth0"))?.ipv4()?;
            config = format!("rendezvous = [\"{address}\"]\n");
            meeting = Some(host.whimbrel_with("serve_rendezvous = true\n")?);
        }
        let tcp = if cell.help == Help::Tcp { "listen_tcp = \"[::]:443\"\n" } else { "" };
        let server_config = format!("{tcp}{config}");
        Ok(Self { first, from, to, at_server, laptop, server, meeting, config, server_config, _lab: lab })
    }

    fn run(self, cell: Cell) -> Result<Outcome> {
        let at_server = self.server.join(&self.at_server.network, &Join::by("eth0"))?;
        let mut at = self.laptop.join(&self.first.network, &Join::default())?;
        if let Some(inside) = at_server.v4.filter(|_| matches!(cell.help, Help::Forward | Help::Tcp)) {
            self.at_server.router.forward_ports("up0", inside, cell.help == Help::Forward)?;
        }
        let mut client = self.laptop.whimbrel_with(&self.config)?;
        let mut server = self.server.whimbrel_with(&self.server_config)?;
        let (mut pair, opener) = if cell.server_opens() {
            (FlowPair::tcp(&self.server, &self.laptop, at.ipv4()?, &PairOptions::rate(RATE))?, &server)
        } else if cell.fixed.is_some() {
            let options = PairOptions { listen: Some(at_server.ipv4()?), ..PairOptions::rate(RATE) };
            (FlowPair::tcp(&self.laptop, &self.server, self.at_server.outside.into(), &options)?, &client)
        } else {
            (FlowPair::tcp(&self.laptop, &self.server, at_server.ipv4()?, &PairOptions::rate(RATE))?, &client)
        };
        opener.wait_introduced(&pair, LONG)?;
        if let Some(meeting) = &self.meeting {
            registered(&[&client, &server], meeting)?;
        }
        if let Some(from) = &self.from {
            at = self.laptop.roam(&at, &from.network, &Join::default())?;
            if !goes_on(&mut pair)? {
                return Ok(Outcome { method: None, silence: None, datagrams: 0 });
            }
        }
        let since = client.status()?.newest_event;
        let control = self.to.link()?.count(|_, packet| packet.udp().is_some_and(is_control));
        at = self.laptop.roam(&at, &self.to.network, &Join::default())?;
        if !goes_on(&mut pair)? {
            return Ok(Outcome { method: None, silence: None, datagrams: control.get() });
        }
        let datagrams = control.get();
        let silence = silence(&mut pair, at.usable_at)?;
        let method = if client.paths()?.iter().any(|path| path.active && path.by_tcp) {
            Method::Tcp
        } else if was_masked(&client, since)? {
            Method::Masked
        } else if cell.help == Help::Rendezvous && cell.fixed != Some(NatKind::FullCone) {
            // As the same cases without help show.
            Method::Punched
        } else if cell.help == Help::Forward {
            Method::Forwarded
        } else {
            Method::Direct
        };
        pair.finish(LONG)?;
        all_run(&mut [&mut client, &mut server])?;
        Ok(Outcome { method: Some(method), silence, datagrams })
    }
}

/// Whether a move since then was told by a masked update.
fn was_masked(client: &Whimbrel, since: u64) -> Result<bool> {
    let is_so = |event: &EventRecord| event.fields.get("masked").is_some_and(|masked| *masked == true);
    Ok(client.events(since)?.iter().any(is_so))
}

/// Whether it is a datagram of the daemons' that is none of a tunnel.
fn is_control(payload: &[u8]) -> bool {
    payload.first().is_some_and(|kind| kind & 0xf0 <= 0x10)
}

/// Both ends are known at the rendezvous.
fn registered(daemons: &[&Whimbrel], meeting: &Whimbrel) -> Result<()> {
    for daemon in daemons {
        wait_until(LONG, "the rendezvous answers", || {
            let state = daemon.status().ok().and_then(|status| status.rendezvous.first().copied());
            state.is_some_and(|at| at.state == RendezvousState::Registered && at.peers == 1)
        })?;
    }
    let pairs = || meeting.status().ok().and_then(|status| status.meetings).map(|meetings| meetings.pairs);
    wait_until(LONG, "both are known at the rendezvous", || pairs() == Some(1))
}

/// Whether both directions go on.
fn goes_on(pair: &mut FlowPair) -> Result<bool> {
    match pair.wait_progress(SOME / 10, GOES_ON) {
        Ok(()) => Ok(true),
        Err(Error::Timeout { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// For how long the end that waited longer heard nothing.
fn silence(pair: &mut FlowPair, since: MonoTime) -> Result<Option<Duration>> {
    let both = [pair.silence(Side::Client, since)?, pair.silence(Side::Server, since)?];
    Ok(both.into_iter().flatten().max())
}

/// Tries these cases and prints them as a table. Those that have a way must have found one.
fn try_all(lab: &Lab, cells: &[Cell]) -> Result<()> {
    let mut lost = Vec::new();
    println!("    {:16} {:16} {:16} {:11} {:10} {:>8} {:>9}", "from", "to", "fixed", "help", "method", "ms", "control");
    for cell in cells {
        let outcome = cell.run(lab.another()?).map_err(|error| Error::Usage(format!("{}: {error}", cell.name())))?;
        let method = outcome.method.map_or("none".to_owned(), |method| format!("{method:?}").to_lowercase());
        let took = outcome.silence.map_or("–".to_owned(), |took| format!("{:.0}", took.as_secs_f64() * 1e3));
        let (from, to, fixed) = (kind_name(cell.from), kind_name(cell.to), kind_name(cell.fixed));
        let help = format!("{:?}", cell.help).to_lowercase();
        println!("    {from:16} {to:16} {fixed:16} {help:11} {method:10} {took:>8} {:>9}", outcome.datagrams);
        if cell.has_way() && outcome.method.is_none() {
            lost.push(cell.name());
        }
    }
    expect!(lost.is_empty(), "connections did not go on: {}", lost.join(", "));
    Ok(())
}

fn some(lab: &mut Lab) -> Result<()> {
    use NatKind::{FullCone, PortRestricted, Restricted, Symmetric};
    let cell = |from, to, fixed, help| Cell { from, to, fixed, help };
    let cells = [
        cell(None, Some(Symmetric), None, Help::Nothing),
        cell(Some(Symmetric), Some(FullCone), None, Help::Nothing),
        cell(None, None, Some(FullCone), Help::Nothing),
        cell(Some(Restricted), Some(PortRestricted), Some(Restricted), Help::Rendezvous),
        cell(Some(PortRestricted), None, Some(Symmetric), Help::Rendezvous),
        cell(Some(FullCone), Some(Symmetric), Some(Restricted), Help::Rendezvous),
        cell(Some(PortRestricted), Some(Symmetric), Some(PortRestricted), Help::Forward),
        cell(None, Some(Symmetric), Some(PortRestricted), Help::Tcp),
    ];
    try_all(lab, &cells)
}

fn whole(lab: &mut Lab) -> Result<()> {
    try_all(lab, &Cell::all())
}

fn masked(lab: &mut Lab) -> Result<()> {
    use NatKind::{PortRestricted, Restricted, Symmetric};
    for kind in [Restricted, PortRestricted, Symmetric] {
        let cell = Cell { from: None, to: None, fixed: Some(kind), help: Help::Nothing };
        let outcome = cell.run(lab.another()?)?;
        println!("    {}: {:?}, silent for {:?}", cell.name(), outcome.method, outcome.silence);
        expect!(outcome.method == Some(Method::Masked), "{} went on by {:?}", cell.name(), outcome.method);
    }
    dropped(lab.another()?)
}

/// A network that checks sources, as RFC 2827 asks for: it is tried once, and remembered.
fn dropped(lab: Lab) -> Result<()> {
    let cell = Cell { from: None, to: None, fixed: Some(NatKind::Restricted), help: Help::Nothing };
    let case = Case::build(lab, cell)?;
    case.to.router.strict_rp_filter()?;
    case.server.join(&case.at_server.network, &Join::by("eth0"))?;
    let mut at = case.laptop.join(&case.first.network, &Join::default())?;
    let (mut client, mut server) = (case.laptop.whimbrel()?, case.server.whimbrel()?);
    let mut pair = FlowPair::tcp(&case.server, &case.laptop, at.ipv4()?, &PairOptions::rate(RATE))?;
    server.wait_introduced(&pair, LONG)?;
    let since = client.status()?.newest_event;
    for again in [false, true] {
        let before = case.to.router.reverse_path_drops()?;
        at = case.laptop.roam(&at, &case.to.network, &Join::default())?;
        expect!(!goes_on(&mut pair)?, "the connection goes on, by no way that there is");
        let dropped = case.to.router.reverse_path_drops()? - before;
        expect!((dropped > 0) != again, "{dropped} datagrams from elsewhere were dropped, again: {again}");
        at = case.laptop.roam(&at, &case.first.network, &Join::default())?;
        pair.wait_progress(SOME, LONG)?;
    }
    expect!(!was_masked(&client, since)?, "a masked update has arrived");
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

fn kinds(lab: &mut Lab) -> Result<()> {
    for kind in NatKind::ALL {
        for rewrites in [false, true] {
            step(&format!("{}{}", kind.name(), if rewrites { ", which rewrites ports" } else { "" }));
            try_kind(lab.another()?, kind, rewrites)?;
        }
    }
    Ok(())
}

/// Somebody inside speaks to one outside; who else is let in tells the kind.
fn try_kind(mut lab: Lab, kind: NatKind, rewrites: bool) -> Result<()> {
    let mut campus = Campus::new(&mut lab)?;
    let inside = campus.add(&mut lab, site("b").v4([10, 0, 98, 1], 24).v4_only())?;
    let outside = campus.add(&mut lab, site("c").v4_only())?;
    inside.router.nat("up0", kind, rewrites, SHORT)?;
    let host = lab.host("inside")?;
    host.join(&inside.network, &Join::by("eth0"))?;
    let socket = |host: &Host, address: Ipv4Addr, port: u16| -> Result<UdpSocket> {
        let bound = host.enter(|| UdpSocket::bind((address, port)))?;
        let bound = bound.map_err(|e| Error::call("bind", format!("port {port} on {}", host.name()), e))?;
        bound.set_read_timeout(Some(SOON)).map_err(|e| Error::call("setsockopt", "SO_RCVTIMEO", e))?;
        Ok(bound)
    };
    // One host with three addresses: what it sends arrives in that order.
    let others = lab.host("outside")?;
    let address = others.join(&outside.network, &Join::by("eth0"))?.v4;
    let at = |number: u32| address.map(|first| Ipv4Addr::from(u32::from(first) + number));
    let (Some(at_first), Some(at_second), Some(at_third)) = (at(0), at(1), at(2)) else {
        return Err(Error::Usage("the network outside has no IPv4".to_owned()));
    };
    others.ip([format!("addr add {at_second}/25 dev eth0"), format!("addr add {at_third}/25 dev eth0")])?;
    let own = socket(&host, Ipv4Addr::UNSPECIFIED, 2031)?;
    let (spoken_to, other_port) = (socket(&others, at_first, 5000)?, socket(&others, at_first, 5001)?);
    let (other_spoken_to, other_address) = (socket(&others, at_second, 5000)?, socket(&others, at_second, 5001)?);
    let stranger = socket(&others, at_third, 5000)?;
    let failed = |what: &'static str| move |e| Error::call(what, "a probe of a NAT", e);
    let send = |from: &UdpSocket, to: SocketAddr, text: &[u8]| from.send_to(text, to).map_err(failed("sendto"));
    let receive = |at: &UdpSocket| -> Result<(String, SocketAddr)> {
        let mut buffer = [0; 64];
        let (length, from) = at.recv_from(&mut buffer).map_err(failed("recvfrom"))?;
        Ok((String::from_utf8_lossy(&buffer[..length]).into_owned(), from))
    };

    send(&own, (at_first, 5000).into(), b"out")?;
    let (_, mapped) = receive(&spoken_to)?;
    expect!(mapped.ip() == inside.outside, "it is seen as {mapped}");
    let keeps = mapped.port() == 2031;
    expect!(kind == NatKind::Symmetric || keeps != rewrites, "port 2031 is seen as {}", mapped.port());
    for (from, text) in [(&other_port, "port"), (&other_address, "host"), (&stranger, "third"), (&spoken_to, "answer")]
    {
        send(from, mapped, text.as_bytes())?;
    }
    let mut let_in = Vec::new();
    loop {
        match receive(&own)?.0 {
            text if text == "answer" => break,
            text => let_in.push(text),
        }
    }
    let wanted: &[&str] = match kind {
        NatKind::FullCone => &["port", "host", "third"],
        NatKind::Restricted => &["port"],
        NatKind::PortRestricted | NatKind::Symmetric => &[],
    };
    expect!(let_in == wanted, "it lets in {let_in:?}, not {wanted:?}");

    send(&own, (at_second, 5000).into(), b"out")?;
    let (_, again) = receive(&other_spoken_to)?;
    expect!((again == mapped) != (kind == NatKind::Symmetric), "seen as {mapped}, and then as {again}");

    // Whoever asks keeps the mapping alive, so it is asked less and less often.
    let mut pause = SHORT;
    let quick = Duration::from_millis(500);
    own.set_read_timeout(Some(quick)).map_err(failed("setsockopt"))?;
    wait_for(LONG * 2, "the mapping is forgotten", || {
        std::thread::sleep(pause);
        pause += SHORT;
        send(&spoken_to, mapped, b"late")?;
        Ok(receive(&own).is_err().then_some(()))
    })
}

/// Both are behind NATs, and nothing is sent for longer than these remember.
fn expiry(lab: &mut Lab) -> Result<()> {
    let kind = Some(NatKind::PortRestricted);
    let cell = Cell { from: None, to: kind, fixed: kind, help: Help::Rendezvous };
    let case = Case::build(lab.another()?, cell)?;
    case.server.join(&case.at_server.network, &Join::by("eth0"))?;
    let at = case.laptop.join(&case.first.network, &Join::default())?;
    let mut client = case.laptop.whimbrel_with(&case.config)?;
    let mut server = case.server.whimbrel_with(&case.server_config)?;
    let mut pair = FlowPair::tcp(&case.server, &case.laptop, at.ipv4()?, &PairOptions::rate(RATE))?;
    server.wait_introduced(&pair, LONG)?;
    if let Some(meeting) = &case.meeting {
        registered(&[&client, &server], meeting)?;
    }
    case.laptop.roam(&at, &case.to.network, &Join::default())?;
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Server, Side::Client] {
        step(&format!("nothing is sent for 70 s, then by the {side:?}"));
        for end in [Side::Client, Side::Server] {
            pair.set_rate(end, Some(0))?;
        }
        std::thread::sleep(EXPIRES * 2 + Duration::from_secs(10));
        pair.set_rate(side, Some(RATE))?;
        let receiver = if side == Side::Server { Side::Client } else { Side::Server };
        pair.wait_progress_of(&[receiver], SOME, LONG)?;
    }
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

/// When NATs of the matrix forget.
const EXPIRES: Duration = Duration::from_secs(30);
