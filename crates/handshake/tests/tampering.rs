//! Whatever is changed on the way is refused without a panic, and does not keep the true message from being taken.

mod common;

use common::*;
use whimbrel_handshake::{Error, SessionError};
use whimbrel_wire::Datagram;
use whimbrel_wire::datagram::COOKIE_LEN;

/// Positions to change: all of the first and last bytes, samples of the padding between them.
fn positions(length: usize) -> impl Iterator<Item = usize> {
    (0..length).filter(move |at| *at < 160 || *at + 64 > length || at % 37 == 0)
}

#[test]
fn initiations() {
    // P-1
    for ends in Ends::all() {
        let (initiator, initiation) = ends.start();
        let mut initiator = initiator;
        for at in positions(initiation.len() - COOKIE_LEN) {
            let forged = changed(&initiation, at, 0x01);
            let Ok(Datagram::Initiation(_)) = Datagram::parse(&forged) else { continue };
            // IK fails at once. XX has nothing to check yet, so it fails when the response is read.
            let Ok(answered) = ends.respond(&forged) else { continue };
            assert!(!ends.knows_responder, "byte {at} of an IK initiation");
            let response = answered.response().to_vec();
            let (state, error) = rejected(initiator.handle_response(&as_response(&response), NOW));
            assert!(matches!(error, Error::NotAuthentic | Error::WrongIndex { .. }), "byte {at}: {error}");
            initiator = state;
        }
        let answered = ends.respond(&initiation).unwrap();
        assert!(initiator.handle_response(&as_response(answered.response()), NOW).is_ok());
    }
}

#[test]
fn responses() {
    // P-27, P-31
    for ends in Ends::all() {
        let (mut initiator, initiation) = ends.start();
        let answered = ends.respond(&initiation).unwrap();
        let response = answered.response();
        for at in 0..response.len() {
            let forged = changed(response, at, 0x80);
            let Ok(Datagram::Response(forged)) = Datagram::parse(&forged) else { continue };
            let (state, error) = rejected(initiator.handle_response(&forged, NOW));
            let expected = match at {
                1..=7 => matches!(error, Error::HeaderChanged),
                8..=11 => matches!(error, Error::WrongIndex { .. }),
                _ => matches!(error, Error::NotAuthentic),
            };
            assert!(expected, "byte {at}: {error}");
            initiator = state;
        }
        for length in 12..response.len() {
            let Ok(Datagram::Response(cut)) = Datagram::parse(&response[..length]) else { panic!("{length}") };
            let (state, error) = rejected(initiator.handle_response(&cut, NOW));
            assert_eq!(error, Error::NotAuthentic, "{length} bytes");
            initiator = state;
        }
        assert!(initiator.handle_response(&as_response(response), NOW).is_ok());
    }
}

#[test]
fn finishes() {
    // P-27, P-31
    for psk in [None, Some(PSK)] {
        let ends = Ends::new(false, psk);
        let (initiator, initiation) = ends.start();
        let Answered::First(mut responder, response) = ends.respond(&initiation).unwrap() else { panic!("XX") };
        let mut initiator = initiator.handle_response(&as_response(&response), NOW).unwrap();
        let finish = initiator.answer.unwrap();
        for at in 1..finish.len() {
            let forged = changed(&finish, at, 0x10);
            let (state, error) = rejected(responder.handle_finish(&as_finish(&forged), NOW));
            let expected = match at {
                1..=3 => matches!(error, Error::HeaderChanged),
                4..=7 => matches!(error, Error::WrongIndex { .. }),
                _ => matches!(error, Error::NotAuthentic),
            };
            assert!(expected, "byte {at}: {error}");
            responder = state;
        }
        for length in 8..finish.len() {
            let (state, error) = rejected(responder.handle_finish(&as_finish(&finish[..length]), NOW));
            assert_eq!(error, Error::NotAuthentic, "{length} bytes");
            responder = state;
        }
        let mut responder = responder.handle_finish(&as_finish(&finish), NOW).unwrap();
        converse(&mut initiator.session, &mut responder.session);
    }
}

#[test]
fn control_datagrams() {
    // P-1
    let (mut initiator, mut responder) = Ends::new(true, None).shake();
    let datagram = initiator.session.seal(b"twelve bytes").unwrap();
    for at in 1..datagram.len() {
        let forged = changed(&datagram, at, 0x04);
        let error = responder.session.open(&as_control(&forged)).unwrap_err();
        let expected = match at {
            4..=7 => matches!(error, SessionError::WrongIndex { .. }),
            _ => matches!(error, SessionError::NotAuthentic { .. }),
        };
        assert!(expected, "byte {at}: {error}");
    }
    for length in 0..datagram.len() {
        if let Ok(Datagram::Control(cut)) = Datagram::parse(&datagram[..length]) {
            assert!(matches!(responder.session.open(&cut), Err(SessionError::NotAuthentic { .. })));
        }
    }
    assert!(!responder.session.is_confirmed(), "nothing forged confirms a session");
    assert_eq!(responder.session.open(&as_control(&datagram)).unwrap().plaintext, b"twelve bytes");
}
