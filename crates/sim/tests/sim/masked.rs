//! Updates as from where their sender was, to a peer behind a NAT that lets nothing else in (P-239 to P-241, P-244).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::CONTROL_OVERHEAD;
use whimbrel_protocol::{Config, Event};
use whimbrel_sim::{Access, Filter, FlowId, HostId, Kind, Nat, NatPorts, NetworkId, Speaker, World};
use whimbrel_wire::binding::MaskedUpdate;
use whimbrel_wire::message::Message;

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, address, introduced, nat};

const VICTIM: &str = "10.77.0.1";
const OTHER: &str = "10.77.0.2";

/// A server behind a NAT that has opened connections to a client.
struct Behind {
    world: World,
    client: HostId,
    inside: NetworkId,
    home: NetworkId,
    away: NetworkId,
    flow: FlowId,
}

impl Behind {
    fn new(seed: u64, ports: NatPorts, client: Config) -> Self {
        Self::with(seed, nat("10.100.0.9", ports), [INSIDE, HOME], client)
    }

    /// `at`: the addresses of the server, and of the client at home.
    fn with(seed: u64, access: Access, at: [&str; 2], client: Config) -> Self {
        let mut world = World::new(seed);
        let inside = world.network(access);
        let [home, away] = [Access::Open, Access::Open].map(|access| world.network(access));
        let (client, server) = (world.host_with("client", client), world.host("server"));
        world.attach(server, inside, at[0]);
        world.attach(client, home, at[1]);
        let flow = world.connect(server, &SocketAddr::new(address(at[1]), 443).to_string());
        introduced(&mut world, &[flow]);
        world.assert_delivering(SECOND);
        Self { world, client, inside, home, away, flow }
    }

    /// Control datagrams that bear this source and left by this network, of those that were recorded.
    fn sent_as(&self, source: &str, network: NetworkId) -> usize {
        let recorded = self.world.recorded.as_ref().expect("recorded");
        recorded.iter().filter(|(from, packet)| *from == network && packet.source.ip() == address(source)).count()
    }

    fn was_masked(&self) -> bool {
        was_masked(&self.world)
    }

    fn received(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        self.world.flow(self.flow).received
    }
}

#[test]
fn a_nat_lets_in_what_seems_to_come_from_where_the_peer_was() {
    // P-239, P-241
    for (seed, ports) in [(1950, NatPorts::Preserving), (1951, NatPorts::Random)] {
        let mut behind = Behind::new(seed, ports, Config::default());
        behind.world.move_to(behind.client, behind.away, AWAY);
        behind.world.assert_delivering(2 * SECOND);
        assert!(behind.was_masked(), "{ports:?}");
        behind.world.run_for(60 * SECOND);
        behind.world.assert_delivering(2 * SECOND);
        behind.world.check();
    }
}

#[test]
fn without_it_nothing_gets_in() {
    let config = Config { masked_updates: false, ..Config::default() };
    let mut behind = Behind::new(1952, NatPorts::Preserving, config);
    behind.world.move_to(behind.client, behind.away, AWAY);
    behind.world.run_for(SECOND);
    let before = behind.received();
    behind.world.run_for(20 * SECOND);
    assert_eq!(before, behind.received());
    assert!(!behind.was_masked());
    behind.world.move_to(behind.client, behind.home, HOME);
    behind.world.assert_delivering(5 * SECOND);
    behind.world.check();
}

#[test]
fn a_network_that_drops_foreign_sources_is_tried_once() {
    // P-240
    let mut behind = Behind::new(1955, NatPorts::Preserving, Config::default());
    *behind.world.access(behind.away) = Access::Checked;
    let mut tried = |again: bool| {
        behind.world.recorded = Some(Vec::new());
        behind.world.move_to(behind.client, behind.away, AWAY);
        behind.world.run_for(20 * SECOND);
        let recorded = behind.world.recorded.take().expect("recorded");
        let foreign =
            recorded.iter().filter(|(network, packet)| *network == behind.away && packet.source.ip() == address(HOME));
        let count = foreign.count();
        assert!(if again { count == 0 } else { (2..=4).contains(&count) }, "{count}, again: {again}");
        behind.world.move_to(behind.client, behind.home, HOME);
        behind.world.assert_delivering(5 * SECOND);
    };
    tried(false);
    tried(true);
    assert!(!behind.was_masked());
    behind.world.check();
}

#[test]
fn a_firewall_lets_it_in_as_well_where_nothing_is_translated() {
    // P-239: IPv6
    let (home, away) = ("2001:db8:1::2", "2001:db8:2::2");
    let mut behind = Behind::with(1956, Access::Filtered(Filter::new()), ["2001:db8:9::1", home], Config::default());
    behind.world.move_to(behind.client, behind.away, away);
    behind.world.assert_delivering(4 * SECOND);
    assert!(behind.was_masked());
    behind.world.run_for(60 * SECOND);
    behind.world.assert_delivering(2 * SECOND);
    // P-259: it is away for longer than the firewall remembers.
    behind.world.part(behind.client);
    behind.world.run_for(SECOND);
    behind.world.detach_all(behind.client);
    behind.world.run_for(3600 * SECOND);
    behind.world.attach(behind.client, behind.home, home);
    behind.world.resume(behind.client);
    behind.world.assert_delivering(5 * SECOND);
    behind.world.check();
}

#[test]
fn the_network_that_is_being_left_takes_it_where_it_still_works() {
    // P-239: make before break
    let mut behind = Behind::new(1957, NatPorts::Random, Config::default());
    // No network need let out what is foreign to it.
    for network in [behind.home, behind.away] {
        *behind.world.access(network) = Access::Checked;
    }
    behind.world.recorded = Some(Vec::new());
    behind.world.attach(behind.client, behind.away, AWAY);
    assert!(behind.world.wait(5 * SECOND, was_masked), "it has not moved");
    assert_eq!(behind.sent_as(HOME, behind.away), 0);
    behind.world.recorded = None;
    behind.world.detach(behind.client, HOME);
    behind.world.assert_delivering(2 * SECOND);
    behind.world.check();
}

#[test]
fn nothing_is_said_of_an_address_of_the_other_family() {
    // P-239: the NAT knows nothing of it.
    let mut behind = Behind::new(1958, NatPorts::Preserving, Config::default());
    behind.world.recorded = Some(Vec::new());
    behind.world.move_to(behind.client, behind.away, "2001:db8:2::2");
    behind.world.run_for(20 * SECOND);
    let foreign = [behind.home, behind.away].map(|network| behind.sent_as(HOME, network));
    assert_eq!((foreign, behind.was_masked()), ([0, 0], false));
    behind.world.recorded = None;
    behind.world.move_to(behind.client, behind.home, HOME);
    behind.world.assert_delivering(5 * SECOND);
    behind.world.check();
    // P-241
    let mut lied = Lied::new(1959, 1);
    let mut liar = lied.liars.remove(0);
    let own = liar.endpoint();
    let six = "2001:db8:77::1";
    let there = lied.world.network(Access::Open);
    lied.world.attach(lied.victim, there, six);
    let far = lied.far;
    lied.world.attach(lied.server, far, "2001:db8:9::1");
    let claimed = SocketAddr::new(address(six), 2031);
    liar.send(&mut lied.world, own, &[Message::MaskedUpdate(MaskedUpdate { sequence: 1, claimed })]);
    lied.world.run_for(SECOND);
    assert_eq!(lied.sent(six), 0);
    lied.world.check();
}

#[test]
fn it_gets_in_however_long_who_sends_it_was_away() {
    // P-259: the NAT forgets what is not used for 30 s.
    let mut access = Nat::new(address("10.100.0.9"), NatPorts::Random);
    access.udp_expiry = 30 * SECOND;
    for (seed, how) in (1960..).zip([Gone::Announced, Gone::Silent, Gone::AtRest]) {
        let access = Access::Translated(access.clone());
        let mut behind = Behind::with(seed, access, [INSIDE, HOME], Config::default());
        if how == Gone::AtRest {
            behind.world.set_beat(None);
            behind.world.run_for(SECOND);
        }
        if how == Gone::Announced {
            behind.world.part(behind.client);
            behind.world.run_for(SECOND);
        }
        behind.world.detach_all(behind.client);
        behind.world.run_for(3 * 3600 * SECOND);
        behind.world.attach(behind.client, behind.away, AWAY);
        if how == Gone::Announced {
            behind.world.resume(behind.client);
        }
        behind.world.set_beat(Some(Duration::from_millis(500)));
        behind.world.assert_delivering(5 * SECOND);
        assert!(behind.was_masked(), "{how:?}");
        behind.world.check();
    }
}

#[test]
fn what_the_other_end_says_next_opens_a_firewall_that_has_forgotten_it_at_rest() {
    // P-239, P-45, P-259
    let (home, away) = ("2001:db8:1::2", "2001:db8:2::2");
    let mut behind = Behind::with(1964, Access::Filtered(Filter::new()), ["2001:db8:9::1", home], Config::default());
    behind.world.set_beat(None);
    behind.world.run_for(1200 * SECOND);
    behind.world.move_to(behind.client, behind.away, away);
    behind.world.run_for(60 * SECOND);
    assert!(!behind.was_masked());
    behind.world.set_beat(Some(SECOND));
    behind.world.stall(behind.flow, 0);
    assert!(behind.world.wait(240 * SECOND, was_masked), "it does not get in");
    behind.world.assert_delivering(5 * SECOND);
    behind.world.check();
}

#[test]
fn it_gets_in_though_the_other_end_was_cut_off_while_the_network_was_tried() {
    // P-239, P-240
    let mut behind = Behind::new(1963, NatPorts::Preserving, Config::default());
    behind.world.set_cut(behind.inside, true);
    behind.world.run_for(SECOND);
    behind.world.move_to(behind.client, behind.away, AWAY);
    behind.world.run_for(60 * SECOND);
    behind.world.set_cut(behind.inside, false);
    assert!(behind.world.wait(240 * SECOND, was_masked), "it does not get in");
    behind.world.assert_delivering(5 * SECOND);
    behind.world.check();
}

/// How a host goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// It says so.
    Announced,
    /// Something was under way.
    Silent,
    /// Nothing was.
    AtRest,
}

fn was_masked(world: &World) -> bool {
    world.events.iter().any(|(_, _, event)| matches!(event, Event::Moved { masked: true, .. }))
}

/// A server with peers that say what they like.
struct Lied {
    world: World,
    server: HostId,
    victim: HostId,
    far: NetworkId,
    liars: Vec<Speaker>,
}

impl Lied {
    fn new(seed: u64, liars: u8) -> Self {
        let mut world = World::new(seed);
        let [den, far, crowd] = std::array::from_fn(|_| world.network(Access::Open));
        let (server, victim) = (world.host("server"), world.bare_host("victim"));
        world.attach(server, far, "10.9.0.1");
        world.attach(victim, crowd, VICTIM);
        let mut lied = Self { world, server, victim, far, liars: Vec::new() };
        for n in 1..=liars {
            let (world, at) = (&mut lied.world, format!("10.66.0.{n}"));
            let host = world.bare_host("liar");
            world.at_mut(host).collects = true;
            world.attach(host, den, &at);
            let mut liar = Speaker::new(host, den, address(&at), address("10.9.0.1"));
            liar.meet(world);
            let flow = world.connect(host, SERVICE);
            liar.introduce(world, flow, (0, 0));
            lied.liars.push(liar);
        }
        lied
    }

    /// Of the server, to an address.
    fn sent(&self, to: &str) -> u64 {
        self.world.exchanged(self.server, address(to)).0
    }
}

fn masked(sequence: u32, claimed: &str) -> [Message; 1] {
    let claimed = format!("{claimed}:2031").parse().expect("an endpoint");
    [Message::MaskedUpdate(MaskedUpdate { sequence, claimed })]
}

#[test]
fn who_says_so_of_somebody_else_does_little_harm() {
    // P-241, P-244
    let mut lied = Lied::new(1953, 1);
    let mut liar = lied.liars.remove(0);
    let own = liar.endpoint();
    lied.world.set_beat(Some(Duration::from_millis(3)));
    // From elsewhere than where it was, and of the host itself: nothing comes of that.
    let elsewhere: SocketAddr = "10.66.0.1:4000".parse().expect("an endpoint");
    liar.send(&mut lied.world, elsewhere, &masked(1, VICTIM));
    liar.send(&mut lied.world, own, &masked(2, "10.9.0.1"));
    lied.world.run_for(SECOND);
    assert_eq!((lied.sent(VICTIM), lied.world.peer(lied.server).candidate), (0, None));
    let mut bytes = 0;
    for sequence in 3..43 {
        bytes = liar.send(&mut lied.world, own, &masked(sequence, VICTIM)) as u64;
        lied.world.run_for(Duration::from_millis(50));
    }
    // Each is shorter than what asked for it, and no data of the flows go there.
    let at_once = lied.sent(VICTIM);
    assert!(at_once > 0 && at_once < 4 * bytes, "{at_once} for {bytes} each");
    for sequence in 43..103 {
        liar.send(&mut lied.world, own, &masked(sequence, if sequence % 2 == 0 { VICTIM } else { OTHER }));
        lied.world.run_for(SECOND);
    }
    let later = lied.sent(VICTIM) + lied.sent(OTHER) - at_once;
    assert!((5..=7).contains(&(later * 4 / at_once)), "{later} within a minute, {at_once} at once");
    assert_eq!(lied.world.peer(lied.server).remote.ip(), address("10.66.0.1"));
    lied.world.check();
}

#[test]
fn many_who_do_are_bounded_together() {
    // P-244
    let mut lied = Lied::new(1954, 12);
    for sequence in 1..5 {
        for liar in &mut lied.liars {
            let own = liar.endpoint();
            liar.send(&mut lied.world, own, &masked(sequence, VICTIM));
        }
    }
    lied.world.run_for(SECOND);
    let each = CONTROL_OVERHEAD as u64 + 7;
    let count = lied.sent(VICTIM) / each;
    assert!((32..=36).contains(&count) && count * each == lied.sent(VICTIM), "{count}");
    lied.world.check_except(&[Kind::Storm]);
}
