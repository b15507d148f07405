//! What is led to where nothing has been heard from is known to be so, and told (decision 0097).

use std::time::Duration;

use whimbrel_protocol::{Config, Doubt, Event};
use whimbrel_sim::{Access, Carried, Filter, HostId, Link, World};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, Two, settle_as};

/// What this host was told of a peer that does not answer: why that is in doubt, how long ago it was heard, of how many
/// flows.
fn told(world: &World, of: HostId) -> Vec<(Doubt, Duration, usize, bool)> {
    let told = world.events.iter().filter(|(_, host, _)| *host == of).filter_map(|(.., event)| match event {
        Event::NotConfirmed { doubt, heard, flows, behind_nat, .. } => Some((*doubt, *heard, *flows, *behind_nat)),
        _ => None,
    });
    told.collect()
}

fn doubt(world: &World, of: HostId) -> Option<Doubt> {
    world.peer(of).doubt.map(|(doubt, _)| doubt)
}

#[test]
fn a_network_where_nothing_passes_is_told_once_and_its_end_too() {
    for filtered in [false, true] {
        let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(971, 3);
        assert_eq!((doubt(&world, client), doubt(&world, server)), (None, None));
        if filtered {
            // The network lets all out but this, as those of cafés do.
            let mut filter = Filter::new();
            filter.no_control = true;
            *world.access(away) = Access::Filtered(filter);
        }
        world.set_cut(away, !filtered);
        world.move_to(client, away, AWAY);
        world.run_for(SECOND);
        assert_eq!(doubt(&world, client), Some(Doubt::Moved), "from the first moment on");
        assert_eq!(told(&world, client), [], "a moment is nothing to tell of");
        world.run_for(60 * SECOND);
        let [(Doubt::Moved, heard, 3, false)] = told(&world, client)[..] else { panic!("{:?}", told(&world, client)) };
        assert!(heard > 4 * SECOND && heard < 7 * SECOND, "{heard:?}");
        // The other end asks where a flow stands still.
        assert_eq!(told(&world, server), [], "nothing was asked");
        world.stall(flows[1], 1);
        world.run_for(10 * SECOND);
        assert!(matches!(told(&world, server)[..], [(Doubt::Silent, _, 3, false)]), "{:?}", told(&world, server));

        world.set_cut(away, false);
        *world.access(away) = Access::Open;
        world.run_for(70 * SECOND);
        world.assert_delivering(2 * SECOND);
        assert_eq!((doubt(&world, client), doubt(&world, server)), (None, None));
        assert_eq!((told(&world, client).len(), told(&world, server).len()), (1, 1));
        world.check();
    }
}

#[test]
fn who_has_moved_and_is_silent_then_is_missed_where_nothing_is_sent() {
    // P-34: the end that stayed asks, too.
    let (Two { mut world, client, server, away, .. }, _) = Two::flowing(976, 2);
    world.set_beat(None);
    world.move_to(client, away, AWAY);
    world.run_for(2 * SECOND);
    assert_eq!(doubt(&world, server), None);
    world.set_cut(away, true);
    world.run_for(45 * SECOND);
    assert!(matches!(told(&world, server)[..], [(Doubt::Silent, _, 2, false)]), "{:?}", told(&world, server));
    world.check();
}

#[test]
fn who_was_silent_for_long_is_confirmed_at_both_ends_when_it_has_answered() {
    let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(977, 2);
    let mut filter = Filter::new();
    filter.no_control = true;
    *world.access(away) = Access::Filtered(filter);
    world.move_to(client, away, AWAY);
    world.run_for(2 * SECOND);
    world.stall(flows[1], 1);
    world.run_for(93 * SECOND);
    assert_eq!(doubt(&world, server), Some(Doubt::Silent));
    *world.access(away) = Access::Open;
    assert!(world.wait(60 * SECOND, |world| doubt(world, client).is_none()));
    world.run_for(SECOND);
    assert_eq!(doubt(&world, server), None, "it has answered a moment ago");
    world.assert_delivering(2 * SECOND);
    world.check();
}

#[test]
fn a_server_that_has_moved_away_from_a_client_behind_a_nat_says_so() {
    let mut two = Two::nowhere(972, Config::default(), Config { masked_updates: false, ..Config::default() });
    two.world.attach(two.client, two.nat, INSIDE);
    two.flow(2);
    let Two { mut world, client, server, away, far, .. } = two;
    world.move_to(server, away, AWAY);
    world.run_for(6 * SECOND);
    // Nothing of what it says gets in where nothing was sent to from there.
    assert!(matches!(told(&world, server)[..], [(Doubt::Moved, _, 2, true)]), "{:?}", told(&world, server));
    // The client asks at the latest to keep its mapping (P-34).
    world.run_for(35 * SECOND);
    assert!(matches!(told(&world, client)[..], [(Doubt::Silent, _, 2, false)]), "{:?}", told(&world, client));
    world.move_to(server, far, "10.9.0.1");
    world.run_for(70 * SECOND);
    world.assert_delivering(2 * SECOND);
    assert_eq!((doubt(&world, client), doubt(&world, server)), (None, None));
    world.check();
}

#[test]
fn who_is_heard_and_hears_nothing_is_not_confirmed_at_either_end() {
    let (Two { mut world, client, server, away, home, .. }, _) = Two::flowing(973, 2);
    *world.access(away) = Access::Filtered(Filter::deaf());
    world.move_to(client, away, AWAY);
    assert!(world.wait(2 * SECOND, |world| doubt(world, server) == Some(Doubt::PeerMoved)));
    world.run_for(10 * SECOND);
    assert!(matches!(told(&world, client)[..], [(Doubt::Moved, ..)]), "{:?}", told(&world, client));
    assert!(matches!(told(&world, server)[..], [(Doubt::PeerMoved, ..)]), "{:?}", told(&world, server));
    world.move_to(client, home, HOME);
    world.assert_delivering(3 * SECOND);
    assert_eq!((doubt(&world, client), doubt(&world, server)), (None, None));
    world.check();
}

/// Two flows that have moved, and ends that have asked one another in vain for so long that they ask seldom.
fn asked_in_vain(seed: u64) -> Two {
    let (mut two, flows) = Two::flowing(seed, 2);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.set_beat(None);
    two.world.run_for(5 * SECOND);
    two.world.set_cut(two.away, true);
    two.world.run_for(70 * SECOND);
    assert_eq!([two.client, two.server].map(|end| doubt(&two.world, end)), [Some(Doubt::Silent); 2]);
    two
}

/// One round trip and what P-12 waits at the least.
const AT_ONCE: Duration = Duration::from_millis(20 + 50);

#[test]
fn who_owes_an_answer_and_is_heard_is_asked_at_once() {
    // P-34
    let Two { mut world, client, server, away, .. } = asked_in_vain(981);
    world.set_cut(away, false);
    let (now, id) = (world.now(), world.peer(client).id);
    world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
    world.run_for(AT_ONCE);
    assert_eq!([client, server].map(|end| doubt(&world, end)), [None, None]);
    world.check();
}

#[test]
fn who_owes_an_answer_is_asked_when_the_network_may_be_back() {
    let Two { mut world, client, server, away, .. } = asked_in_vain(982);
    world.set_cut(away, false);
    // The address was there all the time.
    world.notify(client);
    world.run_for(AT_ONCE);
    assert_eq!([client, server].map(|end| doubt(&world, end)), [None, None]);
    world.check();
}

#[test]
fn a_peer_whose_link_is_back_on_the_same_address_is_confirmed_by_that() {
    let (Two { mut world, client, server, away, far, .. }, flows) = Two::flowing(983, 2);
    world.move_to(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.set_beat(None);
    world.detach_all(server);
    assert!(world.wait(60 * SECOND, |world| doubt(world, client) == Some(Doubt::Silent)));
    world.run_for(30 * SECOND);
    world.attach(server, far, "10.9.0.1");
    world.run_for(AT_ONCE);
    assert_eq!([client, server].map(|end| doubt(&world, end)), [None, None]);
    world.check();
}

#[test]
fn who_is_heard_all_the_time_and_hears_nothing_is_asked_less_and_less_often() {
    let Two { mut world, client, server, away, .. } = asked_in_vain(984);
    *world.access(away) = Access::Filtered(Filter::deaf());
    world.set_cut(away, false);
    let id = world.peer(client).id;
    let mut others_in = |seconds: u64| {
        let (before, asked) = (world.datagrams(), 10 * seconds);
        for _ in 0..asked {
            let now = world.now();
            world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
            world.run_for(SECOND / 10);
        }
        // Those questions, and their answers.
        world.datagrams() - before - 2 * asked
    };
    let at_first = others_in(20);
    others_in(40);
    let later = others_in(20);
    assert_eq!(doubt(&world, server), Some(Doubt::Silent), "it has answered nothing");
    println!("{at_first} in 20 s, and {later} a minute later");
    assert!((8..60).contains(&at_first) && later * 2 < at_first, "{at_first} in 20 s, and {later} a minute later");
    world.check();
}

#[test]
fn who_is_heard_and_hears_nothing_is_not_back() {
    let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(986, 2);
    world.move_to(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.set_beat(None);
    world.run_for(5 * SECOND);
    world.set_cut(away, true);
    world.stall(flows[1], 1);
    world.run_for(30 * SECOND);
    let events = |world: &World, is: fn(&Event) -> bool| {
        world.events.iter().filter(|(_, host, event)| *host == server && is(event)).count()
    };
    let gone = |event: &Event| matches!(event, Event::PeerAway { announced: false, held: false, flows: 2, .. });
    let back = |event: &Event| matches!(event, Event::PeerBack { .. } | Event::PathConfirmed { .. });
    let before = events(&world, back);
    assert_eq!(events(&world, gone), 1);
    // From now on it is heard.
    *world.access(away) = Access::Filtered(Filter::deaf());
    world.set_cut(away, false);
    let id = world.peer(client).id;
    for second in 0..30 {
        let now = world.now();
        world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
        if second % 5 == 0 {
            world.stall(flows[1], 1);
        }
        world.run_for(SECOND);
        assert_eq!(doubt(&world, server), Some(Doubt::Silent), "after {second} s");
    }
    assert!(world.now().since(world.peer(server).last_heard) <= SECOND);
    assert_eq!((events(&world, gone), events(&world, back)), (1, before));
    *world.access(away) = Access::Open;
    world.run_for(70 * SECOND);
    assert_eq!((events(&world, gone), events(&world, back)), (1, before + 1));
    assert_eq!([client, server].map(|end| doubt(&world, end)), [None, None]);
    world.check();
}

#[test]
fn who_is_asked_by_hand_in_vain_is_in_doubt() {
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(987, 2);
    world.move_to(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.run_for(5 * SECOND);
    world.set_cut(away, true);
    let id = world.peer(client).id;
    for _ in 0..2 {
        let now = world.now();
        world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
        world.run_for(SECOND);
    }
    assert_eq!(doubt(&world, client), None, "a loss or two");
    world.run_for(4 * SECOND);
    assert_eq!(doubt(&world, client), Some(Doubt::Silent));
}

#[test]
fn a_peer_is_asked_by_hand_on_the_path_in_use() {
    let (Two { mut world, client, server, away, .. }, _) = Two::flowing(974, 1);
    let ask = |world: &mut World| {
        let (now, id) = (world.now(), world.peer(client).id);
        world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
        world.run_for(SECOND);
        world.peer(client).ping.expect("it was asked").answer_since(now)
    };
    let (took, observed) = ask(&mut world).expect("an answer");
    assert!(took > Duration::from_millis(1) && took < SECOND, "{took:?}");
    assert_eq!(observed.ip().to_string(), HOME);
    // From where it is now, and no answer from before counts.
    world.set_cut(away, true);
    world.move_to(client, away, AWAY);
    assert_eq!(ask(&mut world), None);
    world.set_cut(away, false);
    assert_eq!(ask(&mut world).map(|(_, observed)| observed.ip().to_string()).as_deref(), Some(AWAY));
    assert!(!world.peer(server).mapped);
    world.check();
}

#[test]
fn a_round_trip_of_more_than_a_second_is_measured_by_hand() {
    let (Two { mut world, client, .. }, _) = Two::flowing(975, 1);
    world.set_links(Link { delay: Duration::from_millis(600), ..Link::default() });
    let (begun, id) = (world.now(), world.peer(client).id);
    let answered = |world: &World| world.peer(client).ping.and_then(|ping| ping.answer_since(begun));
    // Asked again each second, as by a user, whose answer is to be the one that comes.
    while answered(&world).is_none() && world.now() < begun + 5 * SECOND {
        let now = world.now();
        world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
        world.run_for(SECOND);
    }
    let (took, _) = answered(&world).expect("an answer");
    assert!(took > Duration::from_millis(2_200) && took < Duration::from_millis(2_700), "{took:?}");
    // One that was answered before is none to a later question, and another's question takes nobody's answer.
    let begun = world.now();
    for _ in 0..6 {
        let now = world.now();
        world.with_node(client, |node| assert!(node.ping(now, id), "there is a session"));
        world.run_for(SECOND / 2);
    }
    let since = |at| world.peer(client).ping.and_then(|ping| ping.answer_since(at));
    assert!(since(begun).is_some() && since(begun + SECOND).is_none());
    world.check();
}

#[test]
fn what_a_dead_daemon_has_lost_in_the_tunnel_is_sent_again_and_who_asked_it_meanwhile_asks_anew() {
    // P-226
    for killed in 0..2 {
        let (Two { mut world, client, server, nat, .. }, flows) = Two::flowing(976, 2);
        let ends = [client, server];
        world.move_to(client, nat, INSIDE);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.run_for(5 * SECOND);
        world.crash(ends[killed]);
        world.stall(flows[0], 1 - killed);
        let silent = |world: &World| doubt(world, ends[1 - killed]) == Some(Doubt::Silent);
        assert!(world.wait(31 * SECOND, silent), "it asks in time");
        world.run_for(30 * SECOND);
        assert_eq!(told(&world, ends[1 - killed]).len(), 1);
        let before = ends.map(|end| world.at(end).kicks);
        world.restart(ends[killed], Duration::ZERO);
        let woken = |world: &World| (0..2).all(|end| world.at(ends[end]).kicks > before[end]);
        assert!(world.wait(SECOND, woken), "the senders of both ends, {before:?}");
        world.assert_delivering(SECOND);
        assert_eq!(ends.map(|end| doubt(&world, end)), [None, None]);
        let confirmed = |(_, host, event): &(_, HostId, Event)| {
            *host == ends[1 - killed] && matches!(event, Event::PathConfirmed { .. } | Event::PeerBack { .. })
        };
        assert!(world.events.iter().any(confirmed));
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.run_for(60 * SECOND);
        assert_eq!(ends.map(|end| (doubt(&world, end), told(&world, end).len() > 1)), [(None, false); 2]);
        world.check();
    }
}

#[test]
fn a_daemon_that_is_started_anew_and_reaches_nobody_from_a_new_network_goes_on_where_it_is_met() {
    // P-215: what comes from the new network the peer's NAT lets in only once the peer has spoken to it.
    let (Two { mut world, client, server, nat, further, .. }, flows) = Two::flowing(979, 2);
    world.move_to(client, nat, INSIDE);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.run_for(5 * SECOND);
    world.crash(server);
    world.attach(server, further, FURTHER);
    world.run_for(5 * SECOND);
    world.restart(server, Duration::ZERO);
    world.run_for(45 * SECOND);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.run_for(120 * SECOND);
    world.assert_delivering(SECOND);
    assert_eq!([client, server].map(|end| doubt(&world, end)), [None, None]);
    world.check();
}

#[test]
fn where_nothing_was_lost_nobody_is_woken_in_a_new_session() {
    let (Two { mut world, client, server, nat, away, .. }, flows) = Two::flowing(977, 2);
    let kicks = |world: &World| [client, server].map(|end| world.at(end).kicks);
    // At home no daemon carries anything.
    let before = kicks(&world);
    for end in [client, server] {
        world.restart(end, SECOND);
        world.run_for(10 * SECOND);
    }
    assert_eq!(kicks(&world), before);
    world.move_to(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.run_for(5 * SECOND);
    let before = kicks(&world);
    for end in [client, server] {
        world.restart(end, SECOND);
        world.run_for(10 * SECOND);
    }
    assert_eq!(kicks(&world), before, "what is rewritten goes on meanwhile");
    // The session is renewed.
    world.move_to(client, nat, INSIDE);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.run_for(5 * SECOND);
    let before = kicks(&world);
    world.set_beat(Some(10 * SECOND));
    world.run_for(7300 * SECOND);
    assert_eq!(kicks(&world), before);
    world.check();
}
