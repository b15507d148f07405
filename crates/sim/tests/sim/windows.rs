//! What senders come back to (P-246 to P-248).

use std::time::Duration;

use whimbrel_protocol::{Comeback, SendWindows};
use whimbrel_sim::{HostId, World};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, Two};

fn having(window: u64, milliseconds: u64) -> SendWindows {
    let smoothed = Duration::from_millis(milliseconds);
    SendWindows { window, threshold: Some(window), least: smoothed / 2, smoothed }
}

/// What its senders were told to come back to since the last time.
fn told(world: &mut World, host: HostId) -> Vec<Option<Comeback>> {
    std::mem::take(&mut world.at_mut(host).comebacks).into_iter().map(|(_, comeback)| comeback).collect()
}

fn both(two: &mut Two) -> [Vec<Option<Comeback>>; 2] {
    let Two { world, client, server, .. } = two;
    [told(world, *client), told(world, *server)]
}

#[test]
fn senders_of_either_end_come_back_to_half_of_what_they_had_there() {
    let (mut two, _) = Two::flowing(1090, 2);
    let Two { client, server, home, away, .. } = two;
    let (at_home, elsewhere) = (having(80_000, 20), having(6_000, 300));
    two.world.at_mut(server).windows = Some(at_home);
    two.world.at_mut(client).windows = Some(at_home);
    two.world.run_for(10 * SECOND);
    two.world.move_to(client, away, AWAY);
    two.world.run_for(10 * SECOND);
    assert_eq!(both(&mut two), [[None], [None]], "nobody was there before");
    two.world.at_mut(server).windows = Some(elsewhere);
    two.world.at_mut(client).windows = None;
    two.world.move_to(client, home, HOME);
    two.world.run_for(10 * SECOND);
    let comeback = |had: SendWindows| Some(Comeback { begin: had.window / 2, had });
    assert_eq!(both(&mut two), [[comeback(at_home)], [comeback(at_home)]]);
    // At the other end nothing was sent there.
    two.world.move_to(client, away, AWAY);
    two.world.run_for(10 * SECOND);
    assert_eq!(both(&mut two), [[None], [comeback(elsewhere)]]);
    two.world.check();
}

#[test]
fn nothing_is_learned_where_nobody_stays() {
    // P-246
    let (mut two, _) = Two::flowing(1091, 2);
    let Two { client, server, home, away, further, .. } = two;
    two.world.at_mut(server).windows = Some(having(80_000, 20));
    two.world.run_for(10 * SECOND);
    for _ in 0..3 {
        two.world.move_to(client, away, AWAY);
        two.world.run_for(SECOND / 2);
        two.world.move_to(client, further, FURTHER);
        two.world.run_for(SECOND / 2);
    }
    assert_eq!(two.world.at(server).comebacks.iter().filter(|(_, comeback)| comeback.is_some()).count(), 0);
    two.world.run_for(10 * SECOND);
    two.world.move_to(client, home, HOME);
    two.world.run_for(5 * SECOND);
    assert!(told(&mut two.world, server).last().is_some_and(Option::is_some), "home is known still");
    two.world.check();
}

#[test]
fn what_is_behind_a_nat_is_a_network_of_its_own_and_an_hour_is_too_long() {
    // P-246, P-248
    let (mut two, _) = Two::flowing(1092, 1);
    let Two { client, server, home, nat, .. } = two;
    two.world.at_mut(server).windows = Some(having(80_000, 20));
    two.world.run_for(10 * SECOND);
    two.world.move_to(client, nat, INSIDE);
    two.world.run_for(10 * SECOND);
    two.world.move_to(client, home, HOME);
    two.world.run_for(10 * SECOND);
    two.world.at_mut(server).windows = Some(having(7_000, 20));
    two.world.move_to(client, nat, INSIDE);
    two.world.run_for(10 * SECOND);
    let begins = |told: Vec<Option<Comeback>>| -> Vec<u64> {
        told.into_iter().map(|comeback| comeback.map_or(0, |comeback| comeback.begin)).collect()
    };
    assert_eq!(begins(told(&mut two.world, server)), [0, 40_000, 40_000]);
    two.world.set_beat(Some(10 * SECOND));
    two.world.run_for(3700 * SECOND);
    two.world.move_to(client, home, HOME);
    two.world.run_for(30 * SECOND);
    assert_eq!(begins(told(&mut two.world, server)), [0]);
    two.world.check();
}
