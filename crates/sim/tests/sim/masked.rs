//! Updates as from where their sender was, to a peer behind a NAT that lets nothing else in (P-239 to P-241, P-244).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::CONTROL_OVERHEAD;
use whimbrel_protocol::{Config, Event};
use whimbrel_sim::{Access, FlowId, HostId, Kind, NatPorts, NetworkId, Speaker, World};
use whimbrel_wire::binding::MaskedUpdate;
use whimbrel_wire::message::Message;

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, address, introduced, nat};

const VICTIM: &str = "10.77.0.1";
const OTHER: &str = "10.77.0.2";

/// A server behind a NAT that has opened connections to a client.
struct Behind {
    world: World,
    client: HostId,
    home: NetworkId,
    away: NetworkId,
    flow: FlowId,
}

impl Behind {
    fn new(seed: u64, ports: NatPorts, client: Config) -> Self {
        let mut world = World::new(seed);
        let inside = world.network(nat("10.100.0.9", ports));
        let [home, away] = [Access::Open, Access::Open].map(|access| world.network(access));
        let (client, server) = (world.host_with("client", client), world.host("server"));
        world.attach(server, inside, INSIDE);
        world.attach(client, home, HOME);
        let flow = world.connect(server, &format!("{HOME}:443"));
        introduced(&mut world, &[flow]);
        world.assert_delivering(SECOND);
        Self { world, client, home, away, flow }
    }

    fn was_masked(&self) -> bool {
        self.world.events.iter().any(|(_, _, event)| matches!(event, Event::Moved { masked: true, .. }))
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

/// A server with peers that say what they like.
struct Lied {
    world: World,
    server: HostId,
    liars: Vec<Speaker>,
}

impl Lied {
    fn new(seed: u64, liars: u8) -> Self {
        let mut world = World::new(seed);
        let [den, far, crowd] = std::array::from_fn(|_| world.network(Access::Open));
        let (server, victim) = (world.host("server"), world.bare_host("victim"));
        world.attach(server, far, "10.9.0.1");
        world.attach(victim, crowd, VICTIM);
        let mut lied = Self { world, server, liars: Vec::new() };
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
