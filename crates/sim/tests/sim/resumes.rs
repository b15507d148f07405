//! Who comes back is not who says so: resumes that are made up, recorded, under another key, or under a copied one.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_protocol::{Config, Event, Trust};
use whimbrel_sim::{Access, Carried, FlowId, HostId, Kind, Speaker, Verdict, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{Message, UpdateFlags};

use crate::common::{AWAY, HOME, SECOND, SERVICE, Two, address, settle_as};

/// Where somebody is who is nobody's peer.
const ELSEWHERE: &str = "10.66.0.1";

fn endpoint(at: &str) -> SocketAddr {
    format!("{at}:2031").parse().expect("an endpoint")
}

fn happened(world: &World, host: HostId, what: impl Fn(&Event) -> bool) -> usize {
    world.events.iter().filter(|(_, at, event)| *at == host && what(event)).count()
}

/// A client that is away and said so, and a bystander on a network of its own.
fn away(two: &mut Two) -> (HostId, whimbrel_sim::NetworkId) {
    let crowd = two.world.network(Access::Open);
    let bystander = two.world.bare_host("bystander");
    two.world.at_mut(bystander).collects = true;
    two.world.attach(bystander, crowd, ELSEWHERE);
    two.world.part(two.client);
    two.world.run_for(SECOND);
    two.world.detach_all(two.client);
    two.world.suspend(two.client);
    (bystander, crowd)
}

/// The server waits for the client still, and has sent nothing of its flows to anybody.
fn assert_waiting(world: &World, server: HostId, flows: &[FlowId]) {
    assert!(world.peers(server).iter().any(|peer| peer.away == Some(true) && peer.flows == flows.len()));
    for flow in flows {
        assert_eq!(world.verdict(*flow, 1), Verdict::Hold("binding on hold"));
    }
    let back = |event: &Event| matches!(event, Event::PeerBack { .. } | Event::PeerMoved { .. });
    assert_eq!(happened(world, server, back), 0);
}

fn comes_back(two: &mut Two, flows: &[FlowId]) {
    let (client, net) = (two.client, two.away);
    two.world.wake(client);
    two.world.attach(client, net, AWAY);
    two.world.resume(client);
    two.world.assert_delivering(2 * SECOND);
    settle_as(&mut two.world, flows, Carried::Rewritten);
}

#[test]
fn a_resume_that_is_made_up_brings_nobody_back() {
    // P-17, P-44: without the session's keys, from the stranger's own address, the client's former one and another.
    let (mut two, flows) = Two::flowing(870, 3);
    let (bystander, crowd) = away(&mut two);
    let server = two.server;
    let mut stranger = Speaker::new(bystander, crowd, address(ELSEWHERE), address("10.9.0.1"));
    stranger.meet(&mut two.world);
    for (round, source) in [ELSEWHERE, HOME, AWAY].into_iter().cycle().take(30).enumerate() {
        for flags in [UpdateFlags::NONE, UpdateFlags::FORMER_PATH_LOST, UpdateFlags::UPROOTED] {
            let sequence = 100 + 10 * round as u32;
            let update = Message::BindingUpdate {
                binding: BindingNumber::FIRST,
                sequence,
                flags,
                claimed: endpoint(source),
                lifetime: 0,
            };
            stranger.send(&mut two.world, endpoint(source), &[update, Message::Padding { length: 1000 }]);
            two.world.run_for(Duration::from_millis(70));
        }
    }
    two.world.run_for(60 * SECOND);
    assert_waiting(&two.world, server, &flows);
    comes_back(&mut two, &flows);
    two.world.check_except(&[Kind::Storm]);
}

#[test]
fn a_recorded_resume_brings_nobody_back() {
    // P-6, P-8, P-9: from where it was sent and from elsewhere, in the session that it was said in and in others, with
    // the handshake of a daemon that was started anew, to a daemon that remembers and to one that does not.
    for (anew, forgets) in [(false, None), (true, None), (false, Some(false)), (true, Some(false)), (true, Some(true))]
    {
        let (mut two, flows) = Two::flowing(871, 3);
        let (client, server) = (two.client, two.server);
        two.world.part(client);
        two.world.run_for(SECOND);
        if anew {
            two.world.restart(client, Duration::from_millis(10));
            two.world.run_for(SECOND);
        }
        two.world.recorded = Some(Vec::new());
        if anew {
            two.world.restart(client, Duration::from_millis(10));
            two.world.run_for(SECOND);
        }
        two.world.resume(client);
        two.world.assert_delivering(SECOND);
        let recorded = two.world.recorded.take().expect("what was recorded");
        let recorded: Vec<_> = recorded.into_iter().filter(|(_, packet)| packet.origin == client).collect();
        assert!(!recorded.is_empty());
        let (bystander, crowd) = away(&mut two);
        two.world.events.clear();
        if let Some(forgets) = forgets {
            two.world.crash(server);
            if forgets {
                two.world.forget_saved(server);
            }
            two.world.boot(server);
            two.world.run_for(SECOND);
        }
        let before = [HOME, ELSEWHERE].map(|at| two.world.exchanged(server, address(at)));
        for _ in 0..3 {
            for (network, packet) in &recorded {
                two.world.launch(*network, packet.clone());
                let mut elsewhere = packet.clone();
                (elsewhere.source, elsewhere.origin) = (endpoint(ELSEWHERE), bystander);
                two.world.launch(crowd, elsewhere);
                two.world.run_for(Duration::from_millis(40));
            }
            two.world.run_for(20 * SECOND);
        }
        let case = format!("anew {anew}, forgets {forgets:?}");
        if forgets == Some(true) {
            // Nothing is known of the client, nor is by what is unconfirmed.
            assert!(two.world.peers(server).iter().all(|peer| !peer.session && peer.flows == 0), "{case}");
            continue;
        }
        assert_waiting(&two.world, server, &flows);
        for (at, before) in [HOME, ELSEWHERE].into_iter().zip(before) {
            let after = two.world.exchanged(server, address(at));
            assert!(after.0 - before.0 <= after.1 - before.1, "{case}: {at} got {before:?} to {after:?}");
            if !anew {
                assert_eq!(after.0, before.0, "{case}: recorded datagrams are answered");
            }
        }
        comes_back(&mut two, &flows);
        two.world.check_except(&[Kind::Storm]);
    }
}

#[test]
fn a_resume_under_another_key_brings_nobody_back() {
    // The host comes back with all that its daemon had but the key, where it was and elsewhere; and then with the right
    // one.
    for trust in [Trust::Tofu, Trust::Pinned, Trust::Psk] {
        for elsewhere in [true, false] {
            let mut probe = Two::new(872);
            let keys = [probe.client, probe.server].map(|host| probe.world.at(host).public_key());
            probe.world.run_for(SECOND);
            let config = |known: Option<(&str, usize)>| Config {
                trust,
                psk: (trust == Trust::Psk).then(|| [1; 32].into()),
                known_keys: known
                    .filter(|_| trust == Trust::Pinned)
                    .map(|(at, host)| (address(at), keys[host]))
                    .into_iter()
                    .collect(),
                ..Config::default()
            };
            let mut two = Two::with(872, config(Some(("10.9.0.1", 1))), config(Some((HOME, 0))));
            let flows = two.flow(3);
            let Two { world, client, server, home, away, .. } = &mut two;
            let (client, server) = (*client, *server);
            world.part(client);
            world.run_for(SECOND);
            world.crash(client);
            world.detach(client, HOME);
            world.events.clear();
            match trust {
                Trust::Psk => world.at_mut(client).config.psk = Some([2; 32].into()),
                _ => world.at_mut(client).change_key(),
            }
            if elsewhere {
                world.attach(client, *away, AWAY);
            } else {
                world.attach(client, *home, HOME);
            }
            world.boot(client);
            world.resume(client);
            world.run_for(60 * SECOND);
            assert_waiting(world, server, &flows);
            assert!(flows.iter().all(|flow| !world.was_reset(*flow)), "{trust:?}");
            assert_eq!(world.peers(server).len(), if trust == Trust::Tofu { 2 } else { 1 }, "{trust:?}");
            let refused = |event: &Event| matches!(event, Event::HandshakeRefused { .. });
            assert_eq!(happened(world, server, refused) > 0, trust == Trust::Psk, "{trust:?}");
            // It was the wrong state directory.
            world.crash(client);
            match trust {
                Trust::Psk => world.at_mut(client).config.psk = Some([1; 32].into()),
                _ => world.at_mut(client).change_key(),
            }
            world.boot(client);
            world.assert_delivering(65 * SECOND);
            // Under tofu another key has answered at that address, which counts as shared for two minutes (P-136). Then
            // it is for the next round of carrier probes to find out that rewritten packets pass (P-20).
            if elsewhere && trust == Trust::Tofu {
                settle_as(world, &flows, Carried::Tunnelled);
                world.run_for(600 * SECOND);
            }
            settle_as(world, &flows, if elsewhere { Carried::Rewritten } else { Carried::Native });
            world.check();
        }
    }
}

#[test]
fn a_copied_key_ends_connections_and_gets_none() {
    // P-47: two hosts with one key are one peer to everybody else, and it can have but one life. What the docs say of
    // it.
    let life = |life| Config { life, ..Config::default() };
    let mut two = Two::with(873, life(1), life(2));
    let flows = two.flow(3);
    let (client, server, far_away) = (two.client, two.server, two.away);
    let copy = two.world.host_with("copy", life(3));
    two.world.copy_key(client, copy);
    two.world.part(client);
    two.world.run_for(SECOND);
    two.world.detach_all(client);
    two.world.suspend(client);
    two.world.attach(copy, far_away, AWAY);
    two.world.crash(copy);
    two.world.boot(copy);
    let own = two.world.connect(copy, SERVICE);
    two.world.run_for(20 * SECOND);
    let restarted = |event: &Event| matches!(event, Event::PeerRestarted { flows: 3, .. });
    assert_eq!(happened(&two.world, server, restarted), 1);
    assert_eq!(two.world.resets(server), flows);
    assert!(two.world.introduced(own));
    // No segment of them came to the copy, which would have refused it.
    two.world.check();
}
