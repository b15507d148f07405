//! Orders in which daemons see to what their nodes give out: nothing may depend on which it is.

use std::time::Duration;

use whimbrel_sim::{Carried, Drain};

use crate::common::{AWAY, HOME, SECOND, Two, settle_as};

#[test]
fn a_move_and_a_return_do_not_depend_on_the_order() {
    for drain in Drain::ALL {
        for takes in [Duration::ZERO, Duration::from_millis(30)] {
            let (Two { mut world, client, server, home, away, .. }, flows) = Two::flowing(11, 3);
            world.drain = drain;
            for host in [client, server] {
                world.at_mut(host).op_takes = takes;
            }
            world.move_to(client, away, AWAY);
            world.assert_delivering(2 * SECOND);
            settle_as(&mut world, &flows, Carried::Rewritten);
            world.move_to(client, home, HOME);
            world.assert_delivering(2 * SECOND);
            settle_as(&mut world, &flows, Carried::Native);
            world.check();
        }
    }
}

#[test]
fn a_peer_that_sleeps_does_not_depend_on_the_order() {
    for drain in Drain::ALL {
        let (Two { mut world, client, away, .. }, _) = Two::flowing(12, 2);
        world.drain = drain;
        let now = world.now();
        world.with_node(client, |node| node.suspend(now));
        world.run_for(SECOND);
        world.suspend(client);
        world.run_for(60 * SECOND);
        world.wake(client);
        world.move_to(client, away, AWAY);
        world.resume(client);
        world.assert_delivering(5 * SECOND);
        world.check();
    }
}

#[test]
fn what_has_arrived_is_said_where_a_path_is_lost() {
    // P-218
    for (overlaps, said) in [(false, 1), (true, 0)] {
        let (Two { mut world, client, server, away, .. }, _) = Two::flowing(31, 3);
        if overlaps {
            world.attach(client, away, AWAY);
            world.hand_off(client, Some(AWAY));
        } else {
            world.move_to(client, away, AWAY);
        }
        world.run_for(3 * SECOND);
        let counts = [client, server].map(|host| world.at(host).acknowledgements);
        assert_eq!(counts, [said, 0], "overlap: {overlaps}");
        world.check();
    }
}
