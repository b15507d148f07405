//! Anything happens to any of a host's three networks, at any moment.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use whimbrel_ipc::Path;

use super::world::{LONG, RATE, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, Cut, Error, FlowPair, Frame, Gateway, Host, Join, Lab, MonoTime, PairOptions, Random, Result, Shape,
    Side, Verdict, Whimbrel, expect, wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "vhf-random",
    "a minute of random events on three networks (addresses, routes and cables that go and return, silence, loss, delay, \
     no UDP, other names), with TCP and UDP of both families over all of it",
    minute,
)];

pub(super) const LONG_SCENARIOS: &[Scenario] =
    &[scenario("vhf-random-long", "ten minutes of the random events of vhf-random", ten_minutes)];

/// Interfaces of the laptop, with the metrics of their routes.
const INTERFACES: [(&str, u32); 3] = [("wlan0", 100), ("eth0", 500), ("wwan0", 700)];
const CONFIG: &str = "log = \"debug\"\n[links]\nmode = \"vigilant\"\n";
/// UDP beside the streams, bits a second.
const DATAGRAMS: u64 = 200_000;
/// Bytes of a stream, and datagrams, that show that a flow goes on.
const BYTES: u64 = 200_000;
const NUMBER: u64 = 20;
/// The longest pause between two events, if nothing is looked at in between.
const PAUSE: Duration = Duration::from_millis(1500);
/// Where half of what is sent is not answered TCP waits this long at times before it sends again (`TCP_RTO_MAX`, and a
/// moment), and nobody moves it for that: the network is neither up nor down. One time in two hundred eight tries in a
/// row are lost, after which it waits for 64 seconds.
const BACKED_OFF: Duration = Duration::from_secs(125);
/// How long a network may be kept from being used, after it was left again and again.
const DAMPED: Duration = Duration::from_secs(90);
/// Where daemons speak.
const CONTROL_PORT: u16 = 2031;

/// What is wrong with a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Its addresses are gone, and with them the routes.
    NoAddress,
    /// Its default routes are gone.
    NoRoute,
    /// The cable is out.
    NoCarrier,
    /// Nothing arrives, and nobody says so.
    Silent,
    /// Three in ten frames are lost each way.
    Lossy,
    /// 300 ms more each way, with a jitter of 100.
    Slow,
    /// It lets no datagrams of the daemons pass.
    NoDatagrams,
    /// Its interface has another name; else all is well.
    Renamed,
}

impl Trouble {
    const ALL: [Self; 8] = [
        Self::NoAddress,
        Self::NoRoute,
        Self::NoCarrier,
        Self::Silent,
        Self::Lossy,
        Self::Slow,
        Self::NoDatagrams,
        Self::Renamed,
    ];
}

/// One of the laptop's networks.
struct Network {
    at: Attachment,
    metric: u32,
    trouble: Option<Trouble>,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.trouble {
            Some(trouble) => write!(f, "{} {trouble:?}", self.at.interface),
            None => write!(f, "{} good", self.at.interface),
        }
    }
}

impl Network {
    fn other_name(&self) -> String {
        format!("{}x", self.at.interface)
    }

    /// Everything has to go on as long as one of them is.
    fn is_good(&self) -> bool {
        matches!(self.trouble, None | Some(Trouble::Renamed))
    }

    /// Its addresses with the lengths of their prefixes.
    fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let spec = self.at.network.spec();
        let v4 = self.at.v4.zip(spec.v4).map(|(own, (_, length))| (own.into(), length));
        let v6 = self.at.v6.zip(spec.v6).map(|(own, (_, length))| (own.into(), length));
        v4.into_iter().chain(v6)
    }

    /// Commands of ip(8) that take the addresses away, with the routes of IPv6, which would stay.
    fn addresses_go(&self) -> Vec<String> {
        let dev = &self.at.interface;
        let gone = self.addresses().map(|(own, length)| format!("addr del {own}/{length} dev {dev}"));
        self.default_routes("del", "").into_iter().chain(self.on_link("del")).chain(gone).collect()
    }

    fn addresses_return(&self) -> Vec<String> {
        let dev = &self.at.interface;
        let again = self.addresses().map(|(own, length)| {
            let nodad = if own.is_ipv6() { "noprefixroute nodad" } else { "" };
            format!("addr add {own}/{length} dev {dev} {nodad}")
        });
        again.chain(self.on_link("replace")).chain(self.routes_return()).collect()
    }

    /// What is done with the route to the neighbours over IPv6; the kernel makes that of IPv4.
    fn on_link(&self, verb: &str) -> Option<String> {
        let (own, (_, length)) = self.at.v6.zip(self.at.network.spec().v6)?;
        let prefix = Ipv6Addr::from(u128::from(own) & (u128::MAX << (128 - u32::from(length))));
        Some(format!("route {verb} {prefix}/{length} dev {} proto kernel metric 256", self.at.interface))
    }

    fn routes_return(&self) -> Vec<String> {
        self.default_routes("replace", "congctl cubic")
    }

    /// What is done with the default routes.
    fn default_routes(&self, verb: &str, attributes: &str) -> Vec<String> {
        let (dev, spec, metric) = (&self.at.interface, self.at.network.spec(), self.metric);
        let v4 = self.at.v4.and(spec.v4).map(|(gateway, _)| gateway.to_string());
        let v6 = self.at.v6.and(spec.v6).map(|(gateway, _)| gateway.to_string());
        let route = |gateway| format!("route {verb} default via {gateway} dev {dev} metric {metric} {attributes}");
        v4.into_iter().chain(v6).map(route).collect()
    }

    fn begin(&mut self, laptop: &Host, trouble: Trouble) -> Result<()> {
        let access = self.at.access()?;
        let usual = Shape::default();
        match trouble {
            Trouble::NoAddress => laptop.ip(self.addresses_go())?,
            Trouble::NoRoute => laptop.ip(self.default_routes("del", ""))?,
            Trouble::NoCarrier => access.cut(Cut::Carrier)?,
            Trouble::Silent => access.cut(Cut::Silent)?,
            Trouble::Lossy => access.set_both(&usual.with_loss(0.3)),
            Trouble::Slow => access.set_both(&Shape {
                delay: Duration::from_millis(300),
                jitter: Duration::from_millis(100),
                ..usual
            }),
            Trouble::NoDatagrams => access.hook(|_, frame: &Frame<'_>| {
                let ports = frame.ip().filter(|packet| packet.tcp().is_none()).and_then(|packet| packet.ports());
                let of_daemons = ports.is_some_and(|(from, to)| from == CONTROL_PORT || to == CONTROL_PORT);
                if of_daemons { Verdict::Drop } else { Verdict::Pass }
            }),
            Trouble::Renamed => {
                laptop.ip([format!("link set {} name {}", self.at.interface, self.other_name())])?;
            }
        }
        self.trouble = Some(trouble);
        Ok(())
    }

    fn end(&mut self, laptop: &Host) -> Result<()> {
        let access = self.at.access()?;
        match self.trouble.take() {
            None => {}
            Some(Trouble::NoAddress) => laptop.ip(self.addresses_return())?,
            Some(Trouble::NoRoute) => laptop.ip(self.routes_return())?,
            Some(Trouble::NoCarrier | Trouble::Silent) => access.restore()?,
            Some(Trouble::Lossy | Trouble::Slow) => access.set_both(&Shape::default()),
            Some(Trouble::NoDatagrams) => access.unhook(),
            Some(Trouble::Renamed) => {
                laptop.ip([format!("link set {} name {}", self.other_name(), self.at.interface)])?;
            }
        }
        Ok(())
    }
}

fn minute(lab: &mut Lab) -> Result<()> {
    random_events(lab, Duration::from_secs(60))
}

fn ten_minutes(lab: &mut Lab) -> Result<()> {
    random_events(lab, Duration::from_secs(600))
}

fn random_events(lab: &mut Lab, lasting: Duration) -> Result<()> {
    let seed = lab.seed();
    println!("    seed {seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c").behind(Gateway::Nat { random_ports: true }))?;
    let server_at = [world.at_server.ipv4()?, world.at_server.ipv6()?];
    let mut networks = Vec::new();
    for ((interface, metric), site) in INTERFACES.into_iter().zip([&world.a, &world.b, &c]) {
        let at = if interface == world.at.interface {
            world.at.clone()
        } else {
            world.laptop.join(&site.network, &Join::by(interface).metric(metric))?
        };
        networks.push(Network { at, metric, trouble: None });
    }
    let mut client = world.laptop.whimbrel_with(CONFIG)?;
    let mut server = world.server.whimbrel_with("log = \"debug\"\n")?;
    let mut pairs = Vec::new();
    for address in server_at {
        pairs.push(FlowPair::tcp(&world.laptop, &world.server, address, &PairOptions::rate(RATE))?);
        pairs.push(FlowPair::udp(&world.laptop, &world.server, address, &PairOptions::rate(DATAGRAMS))?);
    }
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let begun = MonoTime::now();
    let (mut events, mut looks) = (0, 0);
    let mut backs_off_until = begun;
    while MonoTime::now() - begun < lasting {
        let chosen = random.below(networks.len() as u64) as usize;
        let network = &mut networks[chosen];
        events += 1;
        if network.trouble.is_some() {
            network.end(&world.laptop)?;
        } else if random.chance(0.1) {
            // Within a millisecond.
            world.laptop.ip(network.addresses_go().into_iter().chain(network.addresses_return()))?;
        } else {
            let trouble = Trouble::ALL[random.below(Trouble::ALL.len() as u64) as usize];
            network.begin(&world.laptop, trouble)?;
        }
        let so: Vec<String> = networks.iter().map(ToString::to_string).collect();
        println!("    {:5.1} s: {}", (MonoTime::now() - begun).as_secs_f64(), so.join(", "));
        if networks.iter().any(|network| network.trouble == Some(Trouble::Lossy)) {
            backs_off_until = MonoTime::now() + BACKED_OFF;
        }
        if random.chance(0.5) && networks.iter().any(Network::is_good) {
            looks += 1;
            if MonoTime::now() < backs_off_until {
                all_go_on(&mut pairs, BYTES / 20, BACKED_OFF)?;
            } else {
                all_go_on(&mut pairs, BYTES, LONG)?;
            }
        } else {
            std::thread::sleep(PAUSE.mul_f64(random.fraction()));
        }
    }
    step("all networks are good again");
    for network in &mut networks {
        network.end(&world.laptop)?;
    }
    all_go_on(&mut pairs, BYTES / 20, BACKED_OFF)?;
    all_go_on(&mut pairs, BYTES, LONG)?;
    let moves = client.events(0)?.iter().filter(|event| event.kind == "moving").count();
    println!("    {events} events, {looks} times looked whether all goes on, {moves} hand-offs");
    // Those of the other family than the path in use, and those that seemed to be forgotten on the way (P-49), are not
    // native any more, and need not be.
    let first = [networks[0].at.v4.map(IpAddr::V4), networks[0].at.v6.map(IpAddr::V6)];
    wait_for(DAMPED, "the server is reached by the first network", || {
        let at = |path: &Path| path.active && path.local.is_some() && first.contains(&path.local);
        Ok(client.paths()?.iter().any(at).then_some(()))
    })?;
    all_go_on(&mut pairs, BYTES, LONG)?;
    ends_well(&mut client, &mut server, pairs)?;
    lab.check_links()
}

/// Every flow goes on, both ways: so many bytes of streams, and some datagrams.
fn all_go_on(pairs: &mut [FlowPair], bytes: u64, within: Duration) -> Result<()> {
    let begun = MonoTime::now();
    for pair in pairs {
        let some = if pair.status(Side::Client)?.tcp.is_some() { bytes } else { NUMBER };
        let (from, to) = (pair.local(), pair.peer());
        pair.wait_progress(some, within).map_err(|error| Error::Expectation(format!("{from} -> {to}: {error}")))?;
    }
    println!("            all go on after {:.2} s", (MonoTime::now() - begun).as_secs_f64());
    Ok(())
}

/// Every byte has arrived, and neither daemon has crashed.
fn ends_well(client: &mut Whimbrel, server: &mut Whimbrel, pairs: Vec<FlowPair>) -> Result<()> {
    for mut pair in pairs {
        if pair.status(Side::Client)?.tcp.is_some() {
            pair.finish(LONG)?;
        } else {
            for status in pair.check()? {
                expect!(status.received > 0, "no datagram has arrived");
            }
        }
    }
    all_run(&mut [client, server])
}
