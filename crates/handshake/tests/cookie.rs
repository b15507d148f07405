//! The stateless answer under load (P-3).

mod common;

use std::net::SocketAddr;

use common::*;
use whimbrel_handshake::{COOKIE_PERIOD, CookieChecker, Error};
use whimbrel_wire::Datagram;
use whimbrel_wire::datagram::{COOKIE_LEN, COOKIE_REPLY_LEN, INITIATION_LEN};

fn source() -> SocketAddr {
    "192.0.2.1:2031".parse().unwrap()
}

fn checker(ends: &Ends) -> CookieChecker {
    CookieChecker::new(ends.responder.public(), &mut randomness(30))
}

#[test]
fn a_cookie_gets_an_initiation_through() {
    for ends in Ends::all() {
        let checker = checker(&ends);
        let (mut initiator, initiation) = ends.start();
        assert!(!checker.check(&as_initiation(&initiation), source(), NOW));
        let reply = checker.reply(&as_initiation(&initiation), source(), NOW, &mut randomness(31));
        const { assert!(COOKIE_REPLY_LEN < INITIATION_LEN) };
        let repeated = initiator.handle_cookie(&as_cookie(&reply)).unwrap();
        assert_eq!(repeated[..INITIATION_LEN - COOKIE_LEN], initiation[..INITIATION_LEN - COOKIE_LEN]);
        assert!(checker.check(&as_initiation(&repeated), source(), NOW));
        let answered = ends.respond(&repeated).unwrap();
        assert!(initiator.handle_response(&as_response(answered.response()), NOW).is_ok());
    }
}

#[test]
fn a_cookie_is_good_for_its_source_alone() {
    let ends = Ends::new(false, None);
    let checker = checker(&ends);
    let (mut initiator, initiation) = ends.start();
    let reply = checker.reply(&as_initiation(&initiation), source(), NOW, &mut randomness(31));
    let repeated = initiator.handle_cookie(&as_cookie(&reply)).unwrap();
    for other in ["192.0.2.1:2032", "192.0.2.2:2031", "[2001:db8::1]:2031"] {
        assert!(!checker.check(&as_initiation(&repeated), other.parse().unwrap(), NOW), "{other}");
    }
    let mapped = "[::ffff:192.0.2.1]:2031".parse().unwrap();
    assert!(checker.check(&as_initiation(&repeated), mapped, NOW), "a dual-stack socket may show it so");
}

#[test]
fn a_cookie_is_good_for_two_periods() {
    let ends = Ends::new(true, None);
    let checker = checker(&ends);
    let (mut initiator, initiation) = ends.start();
    let made = 5 * COOKIE_PERIOD + 1;
    let reply = checker.reply(&as_initiation(&initiation), source(), made, &mut randomness(31));
    let repeated = initiator.handle_cookie(&as_cookie(&reply)).unwrap();
    let repeated = as_initiation(&repeated);
    for (now, good) in [
        (made, true),
        (6 * COOKIE_PERIOD - 1, true),
        (7 * COOKIE_PERIOD - 1, true),
        (7 * COOKIE_PERIOD, false),
        (5 * COOKIE_PERIOD - 1, false),
        (0, false),
        (u64::MAX, false),
    ] {
        assert_eq!(checker.check(&repeated, source(), now), good, "at {now}");
    }
}

#[test]
fn a_mac_covers_all_of_the_initiation() {
    let ends = Ends::new(true, None);
    let checker = checker(&ends);
    let (mut initiator, initiation) = ends.start();
    let reply = checker.reply(&as_initiation(&initiation), source(), NOW, &mut randomness(31));
    let repeated = initiator.handle_cookie(&as_cookie(&reply)).unwrap();
    for at in 0..repeated.len() {
        let forged = changed(&repeated, at, 0x20);
        if let Ok(Datagram::Initiation(forged)) = Datagram::parse(&forged) {
            assert!(!checker.check(&forged, source(), NOW), "byte {at}");
        }
    }
}

#[test]
fn a_forged_cookie_reply_is_refused_and_the_true_one_taken() {
    for ends in Ends::all() {
        let checker = checker(&ends);
        let (mut initiator, initiation) = ends.start();
        let reply = checker.reply(&as_initiation(&initiation), source(), NOW, &mut randomness(31));
        for at in 1..reply.len() {
            let error = initiator.handle_cookie(&as_cookie(&changed(&reply, at, 0x01))).unwrap_err();
            let expected = match at {
                4..=7 => matches!(error, Error::WrongIndex { .. }),
                _ => matches!(error, Error::NotAuthentic),
            };
            assert!(expected, "byte {at}: {error}");
        }
        for length in 0..reply.len() {
            assert!(Datagram::parse(&reply[..length]).is_err());
        }
        // A reply to another initiation with the same index.
        let (_, other) = ends.start_with(INITIATOR_INDEX, 11);
        let other = checker.reply(&as_initiation(&other), source(), NOW, &mut randomness(31));
        assert_eq!(initiator.handle_cookie(&as_cookie(&other)).unwrap_err(), Error::NotAuthentic);
        assert!(initiator.handle_cookie(&as_cookie(&reply)).is_ok());
        assert_eq!(initiator.handle_cookie(&as_cookie(&reply)).unwrap_err(), Error::CookieUsed);
    }
}

#[test]
fn replies_of_another_responder_are_refused_where_the_key_is_known() {
    let ends = Ends::new(true, None);
    let (mut initiator, initiation) = ends.start();
    let other = CookieChecker::new(key(99).public(), &mut randomness(30));
    let reply = other.reply(&as_initiation(&initiation), source(), NOW, &mut randomness(31));
    assert_eq!(initiator.handle_cookie(&as_cookie(&reply)).unwrap_err(), Error::NotAuthentic);
}
