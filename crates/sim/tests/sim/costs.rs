//! What strangers can have a host do at all its sockets (P-143): keys are free, so that no number of them makes it look
//! more often.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_sim::{Access, HostId, NetworkId, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{Message, Pairing, UpdateFlags};

use crate::common::{SECOND, SERVICE, Two, address};

/// Looks that peers may cause for senders to be woken, all together: so many at once, and so many a second.
const WAKES: (usize, usize) = (16, 40);
/// Likewise for connections to be found, and peers that one is for.
const FINDS: (usize, usize) = (4, 20);
const FOUND_AT_ONCE: usize = 16;
/// Moves of one peer.
const MOVES: (usize, usize) = (20, 5);

fn bound((at_once, a_second): (usize, usize), seconds: usize) -> usize {
    at_once + a_second * (seconds + 1)
}

/// Somebody with another key, on a host of his own, and a session with the server.
fn stranger(world: &mut World, network: NetworkId, number: usize) -> (HostId, Speaker) {
    let host = world.bare_host("stranger");
    let at = format!("10.66.{}.{}", number / 200, 1 + number % 200);
    world.at_mut(host).collects = true;
    world.attach(host, network, &at);
    let mut speaker = Speaker::new(host, network, address(&at), address("10.9.0.1"));
    speaker.meet(world);
    (host, speaker)
}

/// A server, and so many peers with a connection each that is introduced.
fn introduced(seed: u64, peers: usize) -> (World, HostId, Vec<Speaker>) {
    let mut world = World::new(seed);
    let [den, far] = std::array::from_fn(|_| world.network(Access::Open));
    let server = world.host("server");
    world.attach(server, far, "10.9.0.1");
    let mut speakers = Vec::new();
    for number in 0..peers {
        let (host, mut speaker) = stranger(&mut world, den, number);
        let flow = world.connect(host, SERVICE);
        speaker.introduce(&mut world, flow, (0, 0));
        speakers.push(speaker);
    }
    (world, server, speakers)
}

/// Says that it has moved to another port.
fn moves(world: &mut World, speaker: &mut Speaker, sequence: u32) {
    let from = SocketAddr::new(speaker.address, 2031 + (sequence % 2) as u16);
    let update = Message::BindingUpdate {
        binding: BindingNumber::FIRST,
        sequence,
        flags: UpdateFlags::FORMER_PATH_LOST,
        claimed: from,
        lifetime: 0,
    };
    speaker.send(world, from, &[update, Message::Padding { length: 1000 }]);
}

#[test]
fn a_peer_that_moves_without_end_is_followed_so_often() {
    let (mut world, server, mut speakers) = introduced(1101, 1);
    let before = world.at(server).kicks;
    for sequence in 1..=2000 {
        moves(&mut world, &mut speakers[0], sequence);
        world.run_for(Duration::from_millis(2));
    }
    let kicks = (world.at(server).kicks - before) as usize;
    assert!((MOVES.0 / 2..=bound(MOVES, 4)).contains(&kicks), "{kicks} in 4 s");
    // It is followed where it means it.
    world.run_for(2 * SECOND);
    let before = world.at(server).kicks;
    for sequence in 3000..=3001 {
        moves(&mut world, &mut speakers[0], sequence);
        world.run_for(SECOND);
    }
    assert!(world.at(server).kicks > before);
}

#[test]
fn peers_that_move_at_once_are_served_by_few_looks() {
    const PEERS: usize = 60;
    let (mut world, server, mut speakers) = introduced(1102, PEERS);
    let before = (world.at(server).kicks, world.at(server).looks.len());
    for sequence in 1..=5 {
        for speaker in &mut speakers {
            moves(&mut world, speaker, sequence);
            world.run_for(Duration::from_millis(1));
        }
    }
    world.run_for(SECOND);
    let kicks = (world.at(server).kicks - before.0) as usize;
    let looks = world.at(server).looks.len() - before.1;
    assert!(looks <= bound(WAKES, 2), "{looks} looks");
    assert!(kicks >= PEERS && kicks > looks, "{kicks} served by {looks} looks");
}

#[test]
fn claims_with_any_number_of_keys_cause_few_looks() {
    const KEYS: usize = 80;
    let mut two = Two::new(1103);
    let den = two.world.network(Access::Open);
    let mut speakers: Vec<Speaker> = (0..KEYS).map(|number| stranger(&mut two.world, den, number).1).collect();
    two.world.strips_options = true;
    let flow = two.world.connect(two.client, SERVICE);
    let tuple = two.world.flow(flow).tuples[0];
    let before = (two.world.at(two.server).finds, two.world.at(two.server).looks.len());
    let mut nonce = 0;
    let mut seconds = 0;
    // Until somebody who is in earnest has had his turn.
    while !two.world.introduced(flow) {
        seconds += 1;
        assert!(seconds < 30, "the client's connection is not introduced");
        for _ in 0..20 {
            for speaker in &mut speakers {
                nonce += 1;
                let claim = Message::Pairing(Pairing {
                    introducer_nonce: nonce,
                    proof: [7; 16],
                    introducer_place: 0,
                    responder_place: 0,
                    wire_port: 2000,
                    tuple,
                    late: false,
                });
                speaker.send(&mut two.world, speaker.endpoint(), &[claim]);
            }
            two.world.run_for(Duration::from_millis(50));
        }
    }
    let finds = (two.world.at(two.server).finds - before.0) as usize;
    let looks = two.world.at(two.server).looks.len() - before.1;
    assert!(looks <= bound(FINDS, seconds), "{looks} looks in {seconds} s");
    assert!(finds <= FOUND_AT_ONCE * bound(FINDS, seconds), "{finds} in {seconds} s");
}
