//! Handshakes that succeed, and those that must not for what the ends are.

mod common;

use common::*;
use whimbrel_handshake::{Contact, Error, Incoming, Initiator, Local, PublicKey, SessionError};
use whimbrel_wire::datagram::{INITIATION_LEN, Pattern};
use whimbrel_wire::hello::MAX_LOCATORS;

#[test]
fn every_pattern_leads_to_a_session() {
    for ends in Ends::all() {
        let (mut initiator, mut responder) = ends.shake();
        assert_eq!(initiator.remote, ends.responder.public());
        assert_eq!(responder.remote, ends.initiator.public());
        assert_eq!(initiator.session.remote_index(), RESPONDER_INDEX);
        assert_eq!(initiator.session.local_index(), INITIATOR_INDEX);
        assert_eq!(responder.session.remote_index(), INITIATOR_INDEX);
        assert_eq!(responder.session.local_index(), RESPONDER_INDEX);
        assert!(initiator.session.is_initiator());
        assert!(!responder.session.is_initiator());
        converse(&mut initiator.session, &mut responder.session);
        assert_eq!((initiator.session.sent(), initiator.session.received()), (1, 1));
        assert_eq!(initiator.session.established(), NOW);
        assert_eq!(initiator.session.age(NOW + 5), 5);
        assert_eq!(initiator.session.age(NOW - 5), 0);
    }
}

#[test]
fn hellos_arrive_where_they_are_sealed() {
    // P-5, P-30
    for ends in Ends::all() {
        let (initiator, responder) = ends.shake();
        assert_eq!(responder.hello, initiator_hello());
        let mut answered = responder_hello();
        if !ends.knows_responder {
            answered.locators.truncate(1);
        }
        assert_eq!(initiator.hello, answered);
    }
}

#[test]
fn initiations_are_as_long_as_demanded_and_answers_not_longer() {
    // P-2
    let locators = vec!["2001:db8::1".parse().unwrap(); MAX_LOCATORS + 1];
    for ends in Ends::all() {
        let local = Local { key: &ends.initiator, psk: ends.initiator_psk.as_ref() };
        let mut hello = initiator_hello();
        hello.locators.clone_from(&locators);
        hello.tcp_port = 443;
        let (_, initiation) = Initiator::start(ends.contact(), local, 1, hello, &mut randomness(3)).unwrap();
        assert_eq!(initiation.len(), INITIATION_LEN);
        let mut hello = responder_hello();
        hello.locators.clone_from(&locators);
        hello.tcp_port = 443;
        let response = match ends.read(&initiation).unwrap() {
            Incoming::Known(incoming) => {
                assert_eq!(incoming.hello().locators.len(), MAX_LOCATORS);
                incoming.respond(2, hello, NOW).unwrap().answer.unwrap()
            }
            Incoming::First(incoming) => incoming.respond(2, hello).unwrap().1,
        };
        assert!(response.len() <= INITIATION_LEN, "P-2: {}", response.len());
    }
}

#[test]
fn the_first_message_of_xx_tells_nothing() {
    let (_, initiation) = Ends::new(false, None).start();
    let initiation = as_initiation(&initiation);
    assert_eq!(initiation.pattern, Pattern::Xx);
    assert!(initiation.noise[32..].iter().all(|byte| *byte == 0));
}

#[test]
fn both_ends_are_confirmed_by_what_the_peer_sent_last() {
    // P-8
    for ends in Ends::all() {
        let (mut initiator, mut responder) = ends.shake();
        assert_eq!(initiator.session.is_confirmed(), ends.knows_responder);
        assert_eq!(responder.session.is_confirmed(), !ends.knows_responder);
        converse(&mut initiator.session, &mut responder.session);
        assert!(initiator.session.is_confirmed() && responder.session.is_confirmed());
    }
}

#[test]
fn another_responder_cannot_read_an_ik_initiation() {
    let mut ends = Ends::new(true, None);
    let (_, initiation) = ends.start();
    ends.responder = key(99);
    assert_eq!(ends.read(&initiation).unwrap_err(), Error::NotAuthentic);
}

#[test]
fn xx_shows_another_responder_to_be_another() {
    let mut ends = Ends::new(false, None);
    ends.responder = key(99);
    let (initiator, responder) = ends.shake();
    assert_eq!(initiator.remote, key(99).public());
    assert_eq!(responder.remote, ends.initiator.public());
}

#[test]
fn a_wrong_psk_is_found_out_in_xx_by_the_responder() {
    // P-29
    let mut ends = Ends::new(false, Some(PSK));
    ends.responder_psk = Some([0x5b; 32]);
    let (initiator, initiation) = ends.start();
    let Answered::First(responder, response) = ends.respond(&initiation).unwrap() else { panic!("XX") };
    // The psk is mixed in by the finish only, so the initiator is none the wiser, and not confirmed.
    let finished = initiator.handle_response(&as_response(&response), NOW).unwrap();
    assert!(!finished.session.is_confirmed());
    let finish = finished.answer.unwrap();
    let (_, error) = rejected(responder.handle_finish(&as_finish(&finish), NOW));
    assert_eq!(error, Error::NotAuthentic);
}

#[test]
fn a_wrong_psk_is_found_out_in_ik_by_the_initiator() {
    // P-29
    let mut ends = Ends::new(true, Some(PSK));
    ends.responder_psk = Some([0x5b; 32]);
    let (initiator, initiation) = ends.start();
    let Answered::Known(responder) = ends.respond(&initiation).unwrap() else { panic!("IK") };
    assert!(!responder.session.is_confirmed());
    let (_, error) = rejected(initiator.handle_response(&as_response(&responder.answer.unwrap()), NOW));
    assert_eq!(error, Error::NotAuthentic);
}

#[test]
fn a_psk_on_one_end_only_is_named() {
    // P-29
    for knows_responder in [false, true] {
        let mut ends = Ends::new(knows_responder, None);
        ends.responder_psk = Some(PSK);
        assert_eq!(ends.read(&ends.start().1).unwrap_err(), Error::PskExpected);
        ends.responder_psk = None;
        ends.initiator_psk = Some(PSK);
        assert_eq!(ends.read(&ends.start().1).unwrap_err(), Error::PskMissing);
    }
}

#[test]
fn keys_of_small_order_are_refused() {
    // P-28
    // 0, 1 and the two points of order 8 (RFC 7748 §7; curve25519 has no others in canonical form but p-1, of order 2).
    let order_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
    let one = format!("01{}", "00".repeat(31));
    for point in [&"00".repeat(32), &one, order_8] {
        let bytes = std::array::from_fn(|i| u8::from_str_radix(&point[2 * i..2 * i + 2], 16).unwrap());
        let ends = Ends::new(true, None);
        let local = Local { key: &ends.initiator, psk: None };
        let contact = Contact::Known(PublicKey::from(bytes));
        let result = Initiator::start(contact, local, 1, initiator_hello(), &mut randomness(3));
        assert_eq!(result.unwrap_err(), Error::WeakKey, "{point}");
        // As the ephemeral key of somebody's XX initiation.
        let ends = Ends::new(false, None);
        let (_, mut initiation) = ends.start();
        initiation[8..40].copy_from_slice(&bytes);
        let Ok(Incoming::First(incoming)) = ends.read(&initiation) else { panic!("XX") };
        assert_eq!(incoming.respond(1, responder_hello()).unwrap_err(), Error::WeakKey);
    }
}

#[test]
fn crossing_initiations_make_two_sessions() {
    let forth = Ends::new(true, None);
    let back = Ends { initiator: key(2), responder: key(1), ..Ends::new(true, None) };
    let (forth_initiator, forth_initiation) = forth.start_with(1, 10);
    let (back_initiator, back_initiation) = back.start_with(2, 11);
    let Answered::Known(mut at_two) = forth.respond(&forth_initiation).unwrap() else { panic!("IK") };
    let Answered::Known(mut at_one) = back.respond(&back_initiation).unwrap() else { panic!("IK") };
    let mut forth_end = forth_initiator.handle_response(&as_response(&at_two.answer.take().unwrap()), NOW).unwrap();
    let mut back_end = back_initiator.handle_response(&as_response(&at_one.answer.take().unwrap()), NOW).unwrap();
    converse(&mut forth_end.session, &mut at_two.session);
    converse(&mut back_end.session, &mut at_one.session);
    assert_ne!(forth_end.session.tunnel_keys(), back_end.session.tunnel_keys());
}

#[test]
fn a_message_of_one_handshake_does_not_fit_into_another() {
    for ends in Ends::all() {
        let (initiator, initiation) = ends.start_with(INITIATOR_INDEX, 10);
        let (other_initiator, _) = ends.start_with(INITIATOR_INDEX, 11);
        let answered = ends.respond(&initiation).unwrap();
        let response = as_response(answered.response());
        assert_eq!(rejected(other_initiator.handle_response(&response, NOW)).1, Error::NotAuthentic);
        let (far_initiator, _) = ends.start_with(5, 12);
        assert_eq!(
            rejected(far_initiator.handle_response(&response, NOW)).1,
            Error::WrongIndex { expected: 5, found: INITIATOR_INDEX }
        );
        assert!(initiator.handle_response(&response, NOW).is_ok());
    }
}

#[test]
fn a_replayed_ik_initiation_gives_a_session_that_nobody_can_confirm() {
    let ends = Ends::new(true, None);
    let (initiator, initiation) = ends.start();
    let Answered::Known(first) = ends.respond(&initiation).unwrap() else { panic!("IK") };
    let mut true_end = initiator.handle_response(&as_response(&first.answer.unwrap()), NOW).unwrap();
    // The responder lost its memory, or did not look at the timestamp; its ephemeral key is another now.
    let local = Local { key: &ends.responder, psk: None };
    let Ok(Incoming::Known(again)) = Incoming::read(&as_initiation(&initiation), local, &mut randomness(77)) else {
        panic!("IK")
    };
    assert_eq!(again.hello().timestamp, initiator_hello().timestamp, "what P-9 needs");
    let mut again = again.respond(RESPONDER_INDEX, responder_hello(), NOW).unwrap();
    let datagram = true_end.session.seal(b"x").unwrap();
    let result = again.session.open(&as_control(&datagram));
    assert_eq!(result, Err(SessionError::NotAuthentic { counter: 0 }));
    assert!(!again.session.is_confirmed());
}

#[test]
fn all_keys_differ() {
    let mut seen = std::collections::HashSet::new();
    for ends in Ends::all() {
        let (initiator, responder) = ends.shake();
        let (ours, theirs) = (initiator.session.tunnel_keys(), responder.session.tunnel_keys());
        assert_eq!((ours.send, ours.receive), (theirs.receive, theirs.send));
        assert_eq!((ours.send_token, ours.receive_token), (theirs.receive_token, theirs.send_token));
        assert!(seen.insert(ours.send.to_vec()) && seen.insert(ours.receive.to_vec()));
        assert!(seen.insert(ours.send_token.to_be_bytes().to_vec()));
        assert!(seen.insert(ours.receive_token.to_be_bytes().to_vec()));
    }
}
