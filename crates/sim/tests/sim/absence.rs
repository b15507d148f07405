//! An end sleeps, or vanishes without a word, and comes back.

use std::time::Duration;

use whimbrel_protocol::{Config, Event};
use whimbrel_sim::{Carried, FlowId, HostId, Kind, Mutation, World};

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, Two, settle_as};

const WEEKEND: Duration = Duration::from_secs(72 * 3600);

#[test]
fn a_host_sleeps_and_wakes_elsewhere() {
    // P-44: while it sleeps nothing is sent, at either end.
    for inside in [false, true] {
        let (Two { mut world, client, server, home: _, away, nat, .. }, flows) = Two::flowing(811, 3);
        world.part(client);
        world.run_for(SECOND);
        assert_eq!(world.at(client).node.as_ref().map(|node| node.leaving_peers()), Some(0), "the peer has answered");
        assert_eq!(world.peer(server).away, Some(true));
        let sent = world.sent;
        world.detach(client, HOME);
        world.suspend(client);
        world.set_beat(Some(10 * SECOND));
        world.run_for(WEEKEND);
        world.set_beat(Some(Duration::from_millis(7)));
        assert_eq!(world.sent, sent, "nothing is sent to whom is away");
        world.wake(client);
        if inside {
            world.attach(client, nat, INSIDE);
        } else {
            world.attach(client, away, AWAY);
        }
        world.resume(client);
        world.assert_delivering(2 * SECOND);
        assert_eq!(world.peer(server).away, None);
        settle_as(&mut world, &flows, if inside { Carried::Tunnelled } else { Carried::Rewritten });
        world.check();
    }
}

#[test]
fn whom_nothing_is_heard_of_is_waited_for() {
    // P-45: it comes back where it was, elsewhere, or behind a NAT.
    for back in 0..3 {
        let (Two { mut world, client, server, home, away, nat, .. }, flows) = Two::flowing(812, 3);
        world.detach(client, HOME);
        world.run_for(5 * SECOND);
        assert_eq!(world.peer(server).away, None, "nothing stalls, so nothing is noticed");
        world.stall(flows[1], 1);
        world.run_for(20 * SECOND);
        assert_eq!(world.peer(server).away, Some(false));
        assert!(world.events.iter().any(|(_, host, event)| {
            *host == server && matches!(event, Event::PeerAway { announced: false, flows: 3, .. })
        }));
        let sent = world.sent;
        world.set_beat(Some(10 * SECOND));
        world.run_for(WEEKEND);
        world.set_beat(Some(Duration::from_millis(7)));
        assert!(world.sent - sent < 4 * 72 * 3600 / 300, "{} datagrams", world.sent - sent);
        match back {
            0 => world.attach(client, home, HOME),
            1 => world.attach(client, away, AWAY),
            _ => world.attach(client, nat, INSIDE),
        }
        world.assert_delivering(2 * SECOND);
        assert_eq!(world.peer(server).away, None);
        settle_as(&mut world, &flows, [Carried::Native, Carried::Rewritten, Carried::Tunnelled][back]);
        world.check();
    }
}

#[test]
fn whose_daemon_alone_is_gone_is_heard_natively() {
    // P-45, P-39: a flow stalled for a while, but its host is there.
    let (Two { mut world, client, server, .. }, flows) = Two::flowing(813, 3);
    world.crash(client);
    world.stall(flows[0], 1);
    assert!(world.wait(30 * SECOND, |w| w.events.iter().any(|(_, _, event)| matches!(event, Event::PeerBack { .. }))));
    assert_eq!(world.peer(server).away, None);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn a_new_owner_of_the_address_gets_nothing() {
    // P-45: whom nothing is heard of is not sent to either, since its address may be another's by now.
    let (Two { mut world, client, server, home, away, .. }, flows) = Two::flowing(814, 3);
    world.detach(client, HOME);
    world.stall(flows[0], 1);
    assert!(world.wait(30 * SECOND, |w| w.peer(server).away == Some(false)));
    let other = world.host("new owner");
    world.attach(other, home, HOME);
    world.run_for(600 * SECOND);
    world.attach(client, away, AWAY);
    world.assert_delivering(2 * SECOND);
    assert!(flows.iter().all(|flow| !world.was_reset(*flow)));
    world.check_except(&[Kind::Storm]);
}

#[test]
fn a_recorded_word_of_parting_means_nothing_later() {
    // P-17, P-44
    let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(815, 2);
    // Each is followed by one from before, from where that came or from elsewhere.
    world.mutation = Mutation { replay: 1000, replay_elsewhere: 1000, ..Mutation::default() };
    world.part(client);
    world.run_for(SECOND);
    world.move_to(client, away, AWAY);
    world.resume(client);
    world.assert_delivering(2 * SECOND);
    world.run_for(600 * SECOND);
    assert_eq!(world.peer(server).away, None);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.check();
}

#[test]
fn a_host_that_was_started_anew_ends_its_flows() {
    // P-47: it went to sleep and woke without its past, or it crashed; where it was, or elsewhere. Its daemon alone
    // being started anew ends nothing.
    for (asleep, elsewhere, anew) in [(true, true, true), (true, false, true), (false, true, true), (true, true, false)]
    {
        let life = |life| Config { life, ..Config::default() };
        let mut two = Two::with(816, life(1), life(2));
        let flows = two.flow(3);
        let Two { world, client, server, home, away, .. } = &mut two;
        let (client, server) = (*client, *server);
        if asleep {
            world.part(client);
            world.run_for(SECOND);
        }
        world.crash(client);
        world.detach(client, HOME);
        if !asleep {
            world.stall(flows[0], 1);
            world.run_for(20 * SECOND);
        }
        world.run_for(100 * SECOND);
        if anew {
            world.forget_saved(client);
            world.at_mut(client).config.life = 3;
        }
        world.attach(client, if elsewhere { *away } else { *home }, if elsewhere { AWAY } else { HOME });
        world.boot(client);
        if asleep && !anew {
            assert_eq!(world.at(client).node.as_ref().map(|node| node.is_suspended()), Some(true));
            world.resume(client);
        }
        if anew {
            // It knows of nobody; another connection brings the two together.
            world.connect(client, SERVICE);
        }
        world.run_for(400 * SECOND);
        let ended = world
            .events
            .iter()
            .any(|(_, host, event)| *host == server && matches!(event, Event::PeerRestarted { flows: 3, .. }));
        assert_eq!(ended, anew, "asleep {asleep}, elsewhere {elsewhere}");
        assert_eq!(world.resets(server), if anew { flows.clone() } else { Vec::new() });
        if !anew {
            world.assert_delivering(2 * SECOND);
            world.check();
        }
    }
}

#[test]
fn single_flows_wait_by_request_of_either_end() {
    // P-48: through a move and a restart of whichever daemon, and whatever datagram is lost.
    for lost in 0..6 {
        let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(817, 3);
        let [one, other, runs] = [flows[0], flows[1], flows[2]];
        let next = world.sent;
        world.faults.lose = Some(next + lost);
        world.let_wait(one, 0, true);
        world.let_wait(other, 1, true);
        world.run_for(SECOND);
        let still = |world: &mut World, waiting: &[FlowId]| {
            let before: Vec<_> = flows.iter().map(|flow| world.flow(*flow).arrived).collect();
            world.run_for(2 * SECOND);
            for (flow, before) in flows.iter().zip(before) {
                let arrived = world.flow(*flow).arrived;
                let stands = (0..2).map(|end| arrived[end] == before[end]);
                assert!(stands.clone().all(|stands| stands == waiting.contains(flow)), "{flow:?} of {waiting:?}");
            }
        };
        still(&mut world, &[one, other]);
        world.move_to(client, away, AWAY);
        world.run_for(SECOND);
        still(&mut world, &[one, other]);
        world.restart(server, SECOND);
        world.restart(client, 2 * SECOND);
        world.run_for(20 * SECOND);
        still(&mut world, &[one, other]);
        // Who did not ask for it does not end it.
        world.let_wait(one, 1, false);
        world.let_wait(other, 1, false);
        world.run_for(SECOND);
        still(&mut world, &[one]);
        world.let_wait(one, 0, false);
        world.run_for(SECOND);
        still(&mut world, &[]);
        assert!(world.introduced(runs));
        world.check();
    }
}

#[test]
fn what_is_so_already_is_not_said_again() {
    // Of what only the other end has wait, nothing goes on by this end's word, and nothing is told or said of it.
    let (Two { mut world, client, server, .. }, flows) = Two::flowing(818, 2);
    let told = |world: &World, host| {
        let waiting = |(_, at, event): &&(_, HostId, Event)| *at == host && matches!(event, Event::Paused { .. });
        world.events.iter().filter(waiting).count()
    };
    world.let_wait(flows[0], 0, true);
    world.run_for(SECOND);
    assert_eq!((told(&world, client), told(&world, server)), (1, 1));
    world.let_wait(flows[0], 0, true);
    world.let_wait(flows[0], 1, false);
    world.let_wait(flows[1], 1, false);
    world.run_for(SECOND);
    assert_eq!((told(&world, client), told(&world, server)), (1, 1));
    world.let_wait(flows[0], 0, false);
    world.assert_delivering(2 * SECOND);
    assert_eq!((told(&world, client), told(&world, server)), (2, 2));
    world.check();
}

#[test]
fn connections_that_have_ended_are_counted_nowhere() {
    // They are known for a while, since their last packets may be under way.
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(819, 3);
    world.close_end(flows[2], 0);
    world.run_for(Duration::from_millis(10));
    world.part(client);
    world.run_for(SECOND);
    let suspended = |event: &Event| matches!(event, Event::Suspended { flows: 2 });
    assert!(world.events.iter().any(|(_, at, event)| *at == client && suspended(event)));
    assert_eq!(world.peer(client).flows, 2);
    world.move_to(client, away, AWAY);
    world.resume(client);
    world.run_for(SECOND);
    let counts = |event: &Event| match event {
        Event::Moving { flows, .. } | Event::PeerMoved { flows, .. } => Some((*flows, *flows)),
        Event::Moved { flows, carried, .. } => Some((*flows, carried.flows)),
        _ => None,
    };
    let told: Vec<_> = world.events.iter().filter(|(_, at, _)| *at == client).filter_map(|of| counts(&of.2)).collect();
    assert!(!told.is_empty() && told.iter().all(|counted| *counted == (2, 2)), "{told:?}");
}
