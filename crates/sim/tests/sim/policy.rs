//! Flows that a policy leaves alone (P-59).

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Config, FlowState, Manner, Rule, Ruling, View};
use whimbrel_sim::{Carried, FlowId, HostId};

use crate::common::{AWAY, SECOND, SERVICE, Two, introduced, settle_as};

const LEFT_ALONE: Rule = Rule { excluded_by: Some(7), manner: Manner { view: View::Virtual, gives_way: false } };

/// Both hosts ask what is wanted for each flow.
fn asking(seed: u64) -> Two {
    let mut two = Two::with(seed, Config::default(), Config::default());
    for host in [two.client, two.server] {
        two.world.with_node(host, |node| node.await_rulings(true));
    }
    two
}

fn rule(two: &mut Two, flow: FlowId, end: usize, ruling: &Ruling) {
    let tuple = two.world.flow(flow).tuples[end];
    let (host, now) = ([two.client, two.server][end], two.world.now());
    two.world.with_node(host, |node| node.handle_ruling(now, tuple, ruling.clone()));
}

fn state(two: &Two, flow: FlowId, end: usize) -> FlowState {
    two.world.view(flow, end).expect("a flow").state
}

fn key_of(two: &Two, host: HostId) -> PublicKey {
    two.world.at(host).public_key()
}

#[test]
fn a_flow_that_its_opener_leaves_alone_asks_nobody() {
    let mut two = asking(901);
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Ruling { otherwise: LEFT_ALONE, ..Ruling::default() });
    rule(&mut two, flow, 1, &Ruling::default());
    let sent = two.world.datagrams();
    two.world.run_for(20 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Excluded(7));
    assert_eq!(two.world.datagrams(), sent, "the other end was asked on its account");
    assert_eq!(two.world.peers(two.client).len(), 0);
    two.world.check();
}

#[test]
fn a_flow_that_its_acceptor_leaves_alone_is_refused_at_once() {
    let mut two = asking(902);
    two.world.set_beat(Some(SECOND / 10));
    let alone = two.world.connect(two.client, SERVICE);
    let other = two.world.connect(two.client, SERVICE);
    rule(&mut two, alone, 1, &Ruling { otherwise: LEFT_ALONE, ..Ruling::default() });
    for (flow, end) in [(alone, 0), (other, 0), (other, 1)] {
        rule(&mut two, flow, end, &Ruling::default());
    }
    introduced(&mut two.world, &[other]);
    two.world.run_for(2 * SECOND);
    assert_eq!(state(&two, alone, 1), FlowState::Excluded(7));
    assert_eq!(state(&two, alone, 0), FlowState::Failed("the peer's policy leaves it alone"));
    two.world.close(alone);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[other], Carried::Rewritten);
    two.world.check();
}

#[test]
fn nothing_is_done_about_a_flow_before_its_ruling() {
    let mut two = asking(903);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(30 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Unknown);
    assert_eq!(two.world.peers(two.client).len(), 0);
    // One end long before the other, as where finding out who has it takes a while.
    rule(&mut two, flow, 0, &Ruling::default());
    two.world.run_for(SECOND / 2);
    rule(&mut two, flow, 1, &Ruling::default());
    introduced(&mut two.world, &[flow]);
    // What was said once stays.
    rule(&mut two, flow, 0, &Ruling { otherwise: LEFT_ALONE, ..Ruling::default() });
    assert_eq!(state(&two, flow, 0), FlowState::Native);
    two.world.check();
}

#[test]
fn a_rule_that_names_a_key_counts_once_the_peer_is_known() {
    let mut two = asking(904);
    let server = key_of(&two, two.server);
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Ruling { for_keys: vec![(server, LEFT_ALONE)], otherwise: Rule::default() });
    rule(&mut two, flow, 1, &Ruling::default());
    two.world.run_for(5 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Excluded(7));
    // The other way round: all but this one.
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Ruling { for_keys: vec![(server, Rule::default())], otherwise: LEFT_ALONE });
    rule(&mut two, flow, 1, &Ruling::default());
    introduced(&mut two.world, &[flow]);
    two.world.check();
}

#[test]
fn flows_are_not_paired_before_their_ruling_or_against_it() {
    let mut two = asking(905);
    two.world.strips_options = true;
    let flow = two.world.connect(two.client, SERVICE);
    two.world.set_beat(Some(SECOND / 10));
    rule(&mut two, flow, 0, &Ruling::default());
    two.world.run_for(6 * SECOND);
    assert!(!two.world.introduced(flow));
    rule(&mut two, flow, 1, &Ruling { otherwise: LEFT_ALONE, ..Ruling::default() });
    two.world.run_for(20 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Failed("the peer's policy leaves it alone"));
    two.world.check();
}
