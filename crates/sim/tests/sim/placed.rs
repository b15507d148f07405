//! Single flows that go by a binding of their own (P-186 to P-190).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::{Config, PlaceError, Placement, TunnelPath};
use whimbrel_sim::{Access, Carried, FlowId, HostId, Kind, Speaker, Verdict, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::binding::Placed;
use whimbrel_wire::message::{CloseReason, Message};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, carried, settle_as};

const MOMENT: Duration = Duration::from_millis(500);

/// A client with two networks, of which `HOME` is in use, and flows.
fn with_two(seed: u64, behind_nat: bool) -> (Two, Vec<FlowId>) {
    let mut two = Two::nowhere(seed, Config::default(), Config::default());
    let (network, at) = if behind_nat { (two.nat, INSIDE) } else { (two.away, AWAY) };
    two.world.attach(two.client, network, at);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(3);
    two.world.run_for(SECOND);
    two.world.hand_off(two.client, Some(HOME));
    two.world.run_for(SECOND);
    (two, flows)
}

fn path(world: &World, flow: FlowId, end: usize) -> Option<TunnelPath> {
    match world.verdict(flow, end) {
        Verdict::Tunnel { path, .. } => Some(path),
        _ => None,
    }
}

/// Whether a flow goes between these addresses in the tunnel, both ways.
pub(crate) fn goes(world: &World, flow: FlowId, client: IpAddr, server: IpAddr) -> bool {
    let ends = [0, 1].map(|end| path(world, flow, end));
    let [Some(there), Some(back)] = ends else { return false };
    (there.source, there.remote.ip(), back.remote.ip()) == (Some(client), server, client)
}

pub(crate) fn is_placed(world: &World, flow: FlowId) -> bool {
    goes(world, flow, address(AWAY), address("10.9.0.1"))
}

/// Whether it goes with the others, at both ends.
pub(crate) fn is_back(world: &World, flow: FlowId) -> bool {
    let side = |end| world.view(flow, end).and_then(|view| view.entry).map(|entry| entry.side);
    side(0) == Some(0) && side(1) == Some(0)
}

#[test]
fn a_flow_goes_by_another_link_than_the_others_both_ways_and_comes_back() {
    let (Two { mut world, .. }, flows) = with_two(2001, false);
    assert!(is_back(&world, flows[0]));
    world.place(flows[0], 0, Some(AWAY));
    assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])), "{:?}", world.verdict(flows[0], 1));
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows[..1], Carried::Tunnelled);
    settle_as(&mut world, &flows[1..], Carried::Native);
    world.place(flows[0], 0, None);
    assert!(world.wait(MOMENT, |w| is_back(w, flows[0])));
    settle_as(&mut world, &flows, Carried::Native);
    // Nothing is left of it.
    world.run_for(30 * SECOND);
    assert!(world.peer(HostId(0)).kept.is_empty());
    world.check();
}

#[test]
fn the_fixed_end_is_seen_where_a_nat_has_put_it() {
    let (Two { mut world, .. }, flows) = with_two(2002, true);
    world.place(flows[1], 0, Some(INSIDE));
    let placed = |w: &World| {
        let ends = [0, 1].map(|end| path(w, flows[1], end));
        let [Some(there), Some(back)] = ends else { return false };
        there.source == Some(address(INSIDE)) && back.remote.ip() == address("10.100.0.1")
    };
    assert!(world.wait(SECOND, placed));
    world.run_for(120 * SECOND);
    assert!(placed(&world), "its mapping is kept");
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn where_the_link_is_gone_or_silent_the_flow_goes_with_the_others_at_once() {
    // P-189: told by an event, or found out by either end.
    for (seed, how) in [(2003, "gone"), (2004, "client"), (2005, "server")] {
        let (Two { mut world, client, away, .. }, flows) = with_two(seed, false);
        world.place(flows[0], 0, Some(AWAY));
        assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])));
        match how {
            "gone" => world.detach(client, AWAY),
            _ => world.set_cut(away, true),
        }
        match how {
            "client" => world.stall(flows[0], 0),
            "server" => world.stall(flows[0], 1),
            _ => {}
        }
        assert!(world.wait(2 * SECOND, |w| is_back(w, flows[0])), "{how}");
        world.assert_delivering(SECOND);
        match how {
            "gone" => world.attach(client, away, AWAY),
            _ => world.set_cut(away, false),
        }
        // It is what was asked for still.
        assert!(world.wait(60 * SECOND, |w| is_placed(w, flows[0])), "{how}: {:?}", world.peer(client).kept);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn with_the_first_path_gone_all_flows_go_by_the_other_and_divide_again() {
    let (Two { mut world, client, home, .. }, flows) = with_two(2006, false);
    world.place(flows[0], 0, Some(AWAY));
    assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])));
    world.detach(client, HOME);
    assert!(world.wait(SECOND, |w| is_back(w, flows[0])));
    world.assert_delivering(SECOND);
    world.attach(client, home, HOME);
    world.hand_off(client, Some(HOME));
    assert!(world.wait(5 * SECOND, |w| is_placed(w, flows[0])));
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows[1..], Carried::Native);
    world.check();
}

#[test]
fn it_stays_on_its_link_while_either_end_moves() {
    let (Two { mut world, client, server, further, second_nat, far, .. }, flows) = with_two(2007, false);
    world.place(flows[0], 0, Some(AWAY));
    assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])));
    // The client's first network is another: nothing of the flow changes.
    world.attach(client, second_nat, INSIDE);
    world.hand_off(client, Some(INSIDE));
    for _ in 0..20 {
        world.run_for(Duration::from_millis(50));
        assert!(is_placed(&world, flows[0]));
    }
    world.assert_delivering(SECOND);
    world.move_to(server, further, FURTHER);
    let so = |w: &World| goes(w, flows[0], address(AWAY), address(FURTHER));
    assert!(world.wait(5 * SECOND, so), "{:?}", world.peer(client).kept);
    world.assert_delivering(SECOND);
    // Both at once.
    world.hand_off(client, Some(HOME));
    world.move_to(server, far, "10.9.0.1");
    assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn each_end_may_place_and_of_both_the_one_with_the_greater_key_has_its_way() {
    for (seed, first) in [(2010, 0), (2011, 1)] {
        let (Two { mut world, server, further, .. }, flows) = with_two(seed, false);
        world.attach(server, further, FURTHER);
        world.run_for(SECOND);
        world.hand_off(server, Some("10.9.0.1"));
        world.run_for(SECOND);
        for end in [first, 1 - first] {
            world.place(flows[0], end, Some([AWAY, FURTHER][end]));
        }
        let by_client = |w: &World| is_placed(w, flows[0]);
        let by_server = |w: &World| goes(w, flows[0], address(HOME), address(FURTHER));
        world.run_for(2 * SECOND);
        let winner = (by_client(&world), by_server(&world));
        assert!(winner.0 != winner.1, "{winner:?}: {:?}", [0, 1].map(|end| path(&world, flows[0], end)));
        // The other's stands once the first is withdrawn.
        world.place(flows[0], if winner.0 { 0 } else { 1 }, None);
        assert!(world.wait(SECOND, |w| (by_client(w), by_server(w)) == (winner.1, winner.0)));
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_daemon_that_starts_anew_begins_with_the_first_and_is_told_again() {
    let (Two { mut world, client, server, .. }, flows) = with_two(2020, false);
    world.place(flows[0], 0, Some(AWAY));
    assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])));
    world.restart(server, MOMENT);
    assert!(world.wait(60 * SECOND, |w| is_placed(w, flows[0])), "{:?}", world.peer(client).kept);
    world.assert_delivering(SECOND);
    world.restart(client, MOMENT);
    assert!(world.wait(60 * SECOND, |w| is_back(w, flows[0])), "nobody asks for it any more");
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn it_stays_where_it_is_while_sessions_are_renewed_at_both_ends_at_once() {
    // Both renew an hour after the same handshake, and their initiations cross.
    for seed in 2040..2044 {
        let (Two { mut world, .. }, flows) = with_two(seed, false);
        world.place(flows[0], 0, Some(AWAY));
        assert!(world.wait(MOMENT, |w| is_placed(w, flows[0])));
        for hour in 1..=3 {
            world.run_for(3500 * SECOND);
            for second in 0..150 {
                world.run_for(SECOND);
                assert!(
                    is_placed(&world, flows[0]),
                    "{hour} h and {second} s: {:?}",
                    [0, 1].map(|of| path(&world, flows[0], of))
                );
            }
        }
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_flow_that_is_introduced_anew_goes_with_the_others_until_it_is_placed_by_its_new_name() {
    let (Two { mut world, client, server, further, .. }, flows) = with_two(2050, false);
    world.attach(server, further, FURTHER);
    world.run_for(SECOND);
    world.hand_off(server, Some("10.9.0.1"));
    world.run_for(SECOND);
    world.place(flows[0], 1, Some(FURTHER));
    let is_placed = |w: &World| goes(w, flows[0], address(HOME), address(FURTHER));
    assert!(world.wait(MOMENT, is_placed));
    let name = |w: &World| w.view(flows[0], 1).and_then(|view| view.entry).map(|entry| entry.name);
    let before = name(&world);
    // The daemon that has introduced it knows of nothing any more, and introduces it anew.
    world.crash(client);
    world.forget_saved(client);
    world.boot(client);
    let again = |w: &World| w.introduced(flows[0]) && name(w) != before && is_placed(w);
    let verdicts = |w: &World| [0, 1].map(|end| w.verdict(flows[0], end));
    assert!(world.wait(90 * SECOND, again), "{before:?} {:?} {:?}", name(&world), verdicts(&world));
    world.assert_delivering(SECOND);
    // Without its link it goes with the others.
    world.detach(server, FURTHER);
    assert!(world.wait(5 * SECOND, |w| is_back(w, flows[0])));
    world.assert_delivering(2 * SECOND);
    world.check();
}

#[test]
fn what_cannot_be_placed_is_refused_and_there_is_room_for_so_many() {
    let (Two { mut world, client, .. }, flows) = with_two(2021, false);
    let now = world.now();
    let tuple = world.flow(flows[0]).tuples[0];
    let unknown = whimbrel_wire::FlowTuple { local: SocketAddr::new(tuple.local.ip(), 1), ..tuple };
    world.with_node(client, |node| {
        assert_eq!(node.place_flow(now, &unknown, Some(Placement::at(address(AWAY)))), Err(PlaceError::UnknownFlow));
        assert_eq!(
            node.place_flow(now, &tuple, Some(Placement::at(address("10.77.0.1")))),
            Err(PlaceError::NoSuchAddress)
        );
        assert_eq!(node.place_flow(now, &tuple, Some(Placement::at(address(HOME)))), Ok(()), "where it goes already");
    });
    world.run_for(SECOND);
    assert!(is_back(&world, flows[0]));
    let more = ["10.70.0.1", "10.71.0.1", "10.72.0.1", "10.73.0.1"];
    for at in more {
        let network = world.network(Access::Open);
        world.attach(client, network, at);
    }
    world.run_for(SECOND);
    world.hand_off(client, Some(HOME));
    let all: Vec<FlowId> = flows.into_iter().chain([(); 2].map(|()| world.connect(client, SERVICE))).collect();
    assert!(world.wait(5 * SECOND, |w| all.iter().all(|flow| w.introduced(*flow))));
    let tuples: Vec<_> = all.iter().map(|flow| world.flow(*flow).tuples[0]).collect();
    let now = world.now();
    world.with_node(client, |node| {
        // Each address has a binding of its own, which lasts as long as a flow is to go by it.
        for (at, tuple) in more.into_iter().zip(&tuples) {
            assert_eq!(node.place_flow(now, tuple, Some(Placement::at(address(at)))), Ok(()), "{at}");
        }
        assert_eq!(node.place_flow(now, &tuples[4], Some(Placement::at(address(AWAY)))), Err(PlaceError::Full));
    });
    world.run_for(SECOND);
    world.check();
}

#[test]
fn of_many_links_those_are_kept_ready_first_that_placed_flows_go_by() {
    // P-180: there is room for four.
    let mut two = Two::nowhere(2060, Config { keep_paths: true, ..Config::default() }, Config::default());
    let links = ["10.70.0.1", "10.71.0.1", "10.72.0.1", "10.73.0.1", "10.74.0.1", "10.75.0.1"];
    for at in links {
        let network = two.world.network(Access::Open);
        two.world.attach(two.client, network, at);
    }
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(3);
    let Two { mut world, client, .. } = two;
    let kept = |w: &World| w.peer(client).kept.iter().map(|path| path.attachment.address).collect::<Vec<_>>();
    assert!(world.wait(2 * SECOND, |w| kept(w).len() == 4));
    let left_out = links.into_iter().filter(|at| !kept(&world).contains(&address(at)));
    let left_out: Vec<&str> = left_out.collect();
    assert_eq!(left_out.len(), 2);
    for (at, flow) in left_out.iter().zip(&flows) {
        world.place(*flow, 0, Some(at));
        let placed = |w: &World| goes(w, *flow, address(at), address("10.9.0.1"));
        assert!(world.wait(2 * SECOND, placed), "{at}: {:?}", kept(&world));
    }
    assert_eq!(kept(&world).len(), 4);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn whichever_op_fails_a_flow_comes_to_its_path_and_back() {
    // What could not be put in force is tried again, at the end that keeps the path and at the other one.
    for fails in 0.. {
        let (Two { mut world, client, server, .. }, flows) = with_two(2070, false);
        world.run_for(30 * SECOND);
        let (from, at) = (world.ops, world.now());
        world.faults.fail = Some(from + fails);
        world.place(flows[0], 0, Some(AWAY));
        assert!(world.wait(5 * SECOND, |w| is_placed(w, flows[0])), "op {fails}: {:?}", world.verdict(flows[0], 1));
        world.assert_delivering(SECOND);
        // In use, it is led anew when the session is another.
        world.restart(server, MOMENT);
        assert!(world.wait(60 * SECOND, |w| is_placed(w, flows[0])), "op {fails}: {:?}", world.peer(client).kept);
        world.assert_delivering(SECOND);
        world.place(flows[0], 0, None);
        assert!(world.wait(5 * SECOND, |w| is_back(w, flows[0])), "op {fails}");
        settle_as(&mut world, &flows, Carried::Native);
        world.check();
        if from + fails >= world.ops {
            assert!(fails > 20, "{fails} ops from {at:?} on");
            return;
        }
    }
}

/// A server, and somebody with a flow to it, at two addresses, who says what he likes; and a third host with a flow.
struct Liar {
    world: World,
    server: HostId,
    liar: Speaker,
    own: FlowId,
    others: FlowId,
}

const SECOND_DEN: &str = "10.67.0.1";

impl Liar {
    fn new(seed: u64) -> Self {
        let (mut world, server, liar, own) = Self::alone(seed);
        let home = world.network(Access::Open);
        let client = world.host("client");
        world.attach(client, home, HOME);
        let others = world.connect(client, SERVICE);
        world.set_beat(Some(Duration::from_millis(3)));
        assert!(world.wait(15 * SECOND, |w| w.introduced(others)));
        Self { world, server, liar, own, others }
    }

    /// Without the third host.
    fn alone(seed: u64) -> (World, HostId, Speaker, FlowId) {
        let mut world = World::new(seed);
        let [den, other_den, far] = std::array::from_fn(|_| world.network(Access::Open));
        let server = world.host("server");
        let host = world.bare_host("liar");
        world.at_mut(host).collects = true;
        world.attach(server, far, "10.9.0.1");
        world.attach(host, den, "10.66.0.1");
        world.attach(host, other_den, SECOND_DEN);
        let mut liar = Speaker::new(host, den, address("10.66.0.1"), address("10.9.0.1"));
        liar.meet(&mut world);
        let flow = world.connect(host, SERVICE);
        liar.introduce(&mut world, flow, (0, 0));
        (world, server, liar, flow)
    }

    /// What the server calls a flow.
    fn name(&self, flow: FlowId) -> u64 {
        self.world.view(flow, 1).and_then(|view| view.entry).expect("introduced").name
    }

    /// Tells of a path from there, and answers the challenges of it that come to an address of his.
    fn keep(&mut self, path: u32, from: &str) {
        let from = SocketAddr::new(address(from), 2031);
        self.liar.send(&mut self.world, from, &[Message::PathKept { path }, Message::Padding { length: 1000 }]);
        for _ in 0..10 {
            self.world.run_for(Duration::from_millis(50));
            for message in self.liar.hear(&mut self.world) {
                if let Message::PathChallenge { token } = message {
                    self.liar.send(&mut self.world, from, &[Message::PathResponse { token, observed: from }]);
                }
            }
        }
    }

    fn place(&mut self, binding: u32, sequence: u32, names: Vec<u64>) {
        self.place_by(1, binding, sequence, names);
    }

    fn place_by(&mut self, path: u32, binding: u32, sequence: u32, names: Vec<u64>) {
        let placed = Placed { binding: BindingNumber(binding), sequence, path, duplicated: false, names };
        let own = SocketAddr::new(address("10.66.0.1"), 2031);
        self.liar.send(&mut self.world, own, &[Message::Placed(placed)]);
    }
}

#[test]
fn nobody_places_flows_of_others_nor_by_a_path_that_he_is_not_at() {
    let mut lie = Liar::new(2030);
    let (own, others) = (lie.name(lie.own), lie.name(lie.others));
    let to = |lie: &Liar, flow: FlowId| path(&lie.world, flow, 1).map(|path| path.remote.ip());
    // One path is his. The other one leads to the victim, who does not answer.
    lie.keep(1, SECOND_DEN);
    lie.keep(2, HOME);
    let mut led = 0;
    for binding in [1, 0x8000_0001] {
        lie.place_by(2, binding, 1, vec![own, others]);
        lie.world.run_for(SECOND);
        assert_eq!((to(&lie, lie.own), to(&lie, lie.others)), (None, None), "by no path that he is not at");
        lie.place_by(1, binding, 2, vec![others, own]);
        lie.world.run_for(SECOND);
        led += usize::from(to(&lie, lie.own) == Some(address(SECOND_DEN)));
        lie.world.run_for(5 * SECOND);
        assert!(to(&lie, lie.others).is_none() && is_back(&lie.world, lie.others));
        lie.place_by(1, binding, 3, Vec::new());
        lie.world.run_for(SECOND);
    }
    assert_eq!(led, 1, "his own goes by his, with a binding that he may make");
    assert_eq!(carried(&lie.world, lie.others), [Some(Carried::Native); 2]);
    lie.world.check();
}

#[test]
fn nothing_is_left_to_do_for_a_peer_that_is_forgotten() {
    let (world, server, liar, own) = Liar::alone(2032);
    let mut lie = Liar { world, server, liar, own, others: own };
    let name = lie.name(own);
    lie.keep(1, SECOND_DEN);
    // It is challenged for as long as the peer is known.
    lie.keep(2, HOME);
    lie.place(0x8000_0001, 1, vec![name]);
    lie.place(1, 1, vec![name]);
    lie.world.run_for(SECOND);
    assert_eq!(path(&lie.world, own, 1).map(|path| path.remote.ip()), Some(address(SECOND_DEN)));
    lie.world.close(own);
    let forgotten = |w: &World| w.peers(server).is_empty();
    let from = SocketAddr::new(address("10.66.0.1"), 2031);
    // The flow that has ended is forgotten by then, and neither path is.
    lie.world.run_for(62 * SECOND);
    lie.liar.send(&mut lie.world, from, &[Message::Close { reason: CloseReason::Shutdown }]);
    assert!(lie.world.wait(SECOND, forgotten));
    // What was unfinished altogether is swept.
    lie.world.run_for(10 * SECOND);
    assert_eq!(lie.world.at(server).node.as_ref().and_then(whimbrel_protocol::Node::poll_timeout), None);
    lie.world.check();
}

#[test]
fn thousands_of_bindings_and_names_take_no_room() {
    let mut lie = Liar::new(2031);
    let entries = |world: &World, server: HostId| world.at(server).node.as_ref().expect("a daemon").entries();
    let before = entries(&lie.world, lie.server);
    for round in 0..2000_u32 {
        let names = (0..128).map(|name| u64::from(round * 128 + name)).collect();
        lie.place(if round % 2 == 0 { round } else { 1 << 31 | round }, round, names);
        if round % 16 == 0 {
            lie.world.run_for(Duration::from_millis(5));
        }
    }
    lie.world.run_for(SECOND);
    let grown = entries(&lie.world, lie.server) - before;
    assert!(grown <= 4 * 129 + 16, "{grown}");
    // He is answered as often as he asks.
    lie.world.check_except(&[Kind::Storm]);
}
