//! Wi-Fi, over simulated radios and the kernel's own nl80211: two access points of one network, and Ethernet beside it.
//!
//! Nothing is bound in time: radios are simulated where the processor is emulated.

use std::time::Duration;

use whimbrel_ipc::{AgainstNetwork, EventRecord, NetworkCandidate};

use super::preferred::{SECOND, is_reached_from, wait_reached_from};
use super::world::{LONG, SOME, all_run, step};
use super::{Scenario, scenario};
use crate::traffic::FlowStatus;
use crate::{
    AccessPoint, Attachment, Campus, Error, FlowPair, Host, Join, Lab, Leave, PairOptions, Radio, Result, Side,
    SiteSpec, Station, Whimbrel, expect, wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "wifi-roam",
        "a station roams between two access points of one network, there and back with Ethernet beside, and once more \
         without: every byte arrives, Wi-Fi is come back to each time, and its new signal is shown",
        roam,
    ),
    scenario(
        "wifi-signal",
        "the file wants a signal of -70 dBm: where it is weaker all goes on by Ethernet, and comes back when it is 6 \
         dB above that, not before",
        signal,
    ),
    scenario(
        "wifi-lost",
        "both access points fall silent without a word, and the connection is at rest: it is moved to Ethernet by what \
         the kernel says, before anything is sent, and comes back with them",
        lost,
    ),
];

/// Bits a second each way: what is enough to see that it goes on, for processors that are emulated.
const RATE: u64 = 400_000;
/// The access points are received so, in dBm.
const STRONG: [i16; 2] = [-40, -55];
/// What is shown is an average, in whole dB.
const NEARLY: i16 = 2;
/// A network is silent after so long that roaming is none, even where all of it is emulated.
const PATIENT: &str = "[links]\nsh1 = 10000\nsh2 = 20000\n";
/// Time until a network is come back to that was left: it is tried more and more rarely, and for two seconds.
const BACK_WITHIN: Duration = Duration::from_secs(90);

/// A laptop at one of two access points, which its routes prefer, and on Ethernet; and a server.
struct Air {
    laptop: Host,
    server: Host,
    points: [AccessPoint; 2],
    station: Station,
    wifi: Attachment,
    ethernet: Attachment,
    at_server: Attachment,
}

impl Air {
    /// With veth pairs where there are cables, since the radios take long enough.
    fn new(lab: &mut Lab) -> Result<Self> {
        let mut campus = Campus::new(lab)?;
        let mut site = |name| campus.add(lab, SiteSpec::named(name).v4_only().fast());
        let [cable, air, far] = [site("a")?, site("b")?, site("s")?];
        let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
        let at_server = server.join(&far.network, &Join::by("eth0"))?;
        let ethernet = laptop.join(&cable.network, &Join::by(SECOND).metric(500))?;
        let [one, two, own] = Radio::hand_out([&air.router, &air.router, &laptop])?;
        for (radio, dbm) in [&one, &two].into_iter().zip(STRONG) {
            radio.received_at(dbm)?;
        }
        let bridge = air.network.bridge();
        let points = [AccessPoint::start(one, &bridge, 1)?, AccessPoint::start(two, &bridge, 6)?];
        let station = Station::start(own)?;
        let join = Join::by(station.radio().interface()).metric(50);
        let wifi = laptop.join_by_own(&air.network, &join)?;
        Ok(Self { laptop, server, points, station, wifi, ethernet, at_server })
    }

    /// A stream that goes by Wi-Fi, with daemons that know it.
    fn stream(&self, client: &Whimbrel) -> Result<FlowPair> {
        let (to, wifi) = (self.at_server.ipv4()?, self.wifi.ipv4()?);
        let mut pair = FlowPair::tcp(&self.laptop, &self.server, to, &PairOptions::rate(RATE))?;
        pair.wait_progress(SOME / 10, LONG)?;
        expect!(pair.local().ip() == wifi, "it begins at {}", pair.local());
        client.wait_introduced(&pair, LONG)?;
        expect!(is_reached_from(client, wifi)?, "the server is not reached from {wifi}");
        Ok(pair)
    }

    /// The access point that the station is not at, and how strongly that is received.
    fn other(&self) -> Result<(&AccessPoint, i16)> {
        let at = self.station.at()?;
        let mut all = self.points.iter().zip(STRONG);
        all.find(|(point, _)| at.as_deref() != Some(point.address())).ok_or_else(|| Error::Usage("it has gone".into()))
    }

    fn received_at(&self, dbm: i16) -> Result<()> {
        self.points.iter().try_for_each(|point| point.radio().received_at(dbm))
    }

    fn set_heard(&self, heard: bool) -> Result<()> {
        self.points.iter().try_for_each(|point| point.radio().set_heard(heard))
    }

    /// What the daemon shows of Wi-Fi.
    fn shown(&self, client: &Whimbrel) -> Result<Option<NetworkCandidate>> {
        let mut networks = client.explained(None)?.peers.into_iter().flat_map(|peer| peer.networks);
        Ok(networks.find(|network| network.interface == self.wifi.interface))
    }

    /// Waits until it shows that Wi-Fi is received so.
    fn wait_shown(&self, client: &Whimbrel, dbm: i16) -> Result<NetworkCandidate> {
        wait_for(LONG, &format!("a signal of {dbm} dBm is shown"), || {
            let is_so = |signal: i16| (signal - dbm).abs() <= NEARLY;
            Ok(self.shown(client)?.filter(|network| network.signal_dbm.is_some_and(is_so)))
        })
    }

    /// Goes to the other access point, and sees that the connection goes by Wi-Fi. Whether it is native is not asked:
    /// daemons judge by time what passes there, and in an emulated guest all may stand still for seconds.
    fn roam(&self, client: &Whimbrel, pair: &mut FlowPair) -> Result<()> {
        let (to, dbm) = self.other()?;
        step(&format!("to {}", to.address()));
        self.station.roam(to)?;
        pair.wait_progress(SOME, LONG)?;
        wait_reached_from(client, self.wifi.ipv4()?, BACK_WITHIN)?;
        self.wait_shown(client, dbm)?;
        expect!(self.station.at()?.as_deref() == Some(to.address()), "it is at {:?}", self.station.at()?);
        pair.wait_progress(SOME, LONG)
    }
}

/// What was told since then, shown.
fn told(client: &Whimbrel, since: u64) -> Result<Vec<EventRecord>> {
    let told = client.events(since)?;
    told.iter().for_each(|event| println!("    {}", event.sentence));
    Ok(told)
}

/// Nothing is under way any more: what an end has sent has arrived and was acknowledged.
fn rest(pair: &mut FlowPair) -> Result<()> {
    for side in [Side::Client, Side::Server] {
        pair.set_rate(side, Some(0))?;
    }
    wait_for(LONG, "nothing is under way", || {
        let [client, server] = [pair.status(Side::Client)?, pair.status(Side::Server)?];
        let acknowledged = |status: &FlowStatus| status.tcp.is_none_or(|tcp| tcp.unacked == 0);
        let arrived = client.sent == server.received && server.sent == client.received;
        Ok((arrived && acknowledged(&client) && acknowledged(&server)).then_some(()))
    })
}

fn roam(lab: &mut Lab) -> Result<()> {
    let air = Air::new(lab)?;
    let mut client = air.laptop.whimbrel_with(PATIENT)?;
    let mut server = air.server.whimbrel()?;
    let mut pair = air.stream(&client)?;
    let start = client.status()?.newest_event;
    // The kernel takes the carrier away until it is at the other one, so it may go by Ethernet meanwhile.
    for _ in 0..2 {
        air.roam(&client, &mut pair)?;
    }
    told(&client, start)?;

    step("without Ethernet there is nowhere else to go");
    air.laptop.leave(&air.ethernet, Leave::Orderly)?;
    pair.wait_progress(SOME, LONG)?;
    let before = client.status()?.newest_event;
    air.roam(&client, &mut pair)?;
    let wifi = air.wifi.ipv4()?.to_string();
    let elsewhere =
        |event: &EventRecord| event.kind == "moved" && event.fields.get("to") != Some(&wifi.as_str().into());
    let moved = told(&client, before)?.into_iter().find(elsewhere);
    expect!(moved.is_none(), "it was moved elsewhere: {moved:?}");
    let silent = client.events(start)?.into_iter().find(|event| event.kind == "network-silent");
    expect!(silent.is_none(), "a network was taken for silent: {silent:?}");
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn signal(lab: &mut Lab) -> Result<()> {
    const WANTED: &str = "[[prefer]]\nsignal = -70\n";
    const ENOUGH: AgainstNetwork = AgainstNetwork::Signal { least_dbm: -64 };
    let air = Air::new(lab)?;
    let mut client = air.laptop.whimbrel_with(WANTED)?;
    let mut server = air.server.whimbrel()?;
    let mut pair = air.stream(&client)?;
    let (wifi, ethernet) = (air.wifi.ipv4()?, air.ethernet.ipv4()?);

    step("it is received at -80 dBm");
    let before = client.status()?.newest_event;
    air.received_at(-80)?;
    let preferred = client.wait_event("network-preferred", before, LONG)?;
    println!("    {}", preferred.sentence);
    wait_reached_from(&client, ethernet, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    let shown = air.wait_shown(&client, -80)?;
    expect!(shown.answers && shown.against == Some(ENOUGH), "{shown:?}");
    // That was the signal alone.
    expect!(air.station.at()?.is_some(), "the station is at no access point any more");
    let gone = client.events(before)?.into_iter().find(|event| event.kind == "network-silent");
    expect!(gone.is_none(), "{gone:?}");

    step("at -67 dBm: that is above the bound, and not enough");
    air.received_at(-67)?;
    let shown = air.wait_shown(&client, -67)?;
    expect!(shown.answers && shown.against == Some(ENOUGH), "{shown:?}");
    // Longer than it takes to look at the signal, and to come back.
    pair.wait_progress(RATE / 8 * 10, LONG * 2)?;
    let shown = air.shown(&client)?;
    expect!(shown.as_ref().is_some_and(|network| network.against == Some(ENOUGH)), "{shown:?}");
    expect!(is_reached_from(&client, ethernet)?, "the server is not reached from {ethernet}");

    step("at -50 dBm");
    air.received_at(-50)?;
    wait_reached_from(&client, wifi, BACK_WITHIN)?;
    pair.wait_progress(SOME, LONG)?;
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

fn lost(lab: &mut Lab) -> Result<()> {
    let air = Air::new(lab)?;
    let mut client = air.laptop.whimbrel()?;
    let mut server = air.server.whimbrel()?;
    let mut pair = air.stream(&client)?;
    let (wifi, ethernet) = (air.wifi.ipv4()?, air.ethernet.ipv4()?);
    rest(&mut pair)?;
    let sent = [pair.status(Side::Client)?.sent, pair.status(Side::Server)?.sent];

    step("the access points fall silent, and nothing is sent");
    let before = client.status()?.newest_event;
    air.set_heard(false)?;
    client.wait_event("moved", before, LONG)?;
    wait_reached_from(&client, ethernet, LONG)?;
    told(&client, before)?;
    let after = [pair.status(Side::Client)?.sent, pair.status(Side::Server)?.sent];
    expect!(sent == after, "{sent:?} bytes were sent before, and {after:?} after");
    for side in [Side::Client, Side::Server] {
        pair.set_rate(side, Some(RATE))?;
    }
    pair.wait_progress(SOME, LONG)?;

    step("they are there again");
    air.set_heard(true)?;
    wait_reached_from(&client, wifi, BACK_WITHIN)?;
    pair.wait_progress(SOME, LONG)?;
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
