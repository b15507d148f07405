//! Sealing, opening and the order in which datagrams come.

mod common;

use common::*;
use proptest::prelude::*;
use whimbrel_handshake::{CONTROL_OVERHEAD, ReplayWindow, SessionError};

#[test]
fn each_datagram_opens_once() {
    // P-6
    let (mut initiator, mut responder) = Ends::new(true, None).shake();
    let datagrams: Vec<_> = (0..5).map(|_| initiator.session.seal(b"again").unwrap()).collect();
    for at in [3, 0, 4, 1, 2] {
        assert!(responder.session.open(&as_control(&datagrams[at])).is_ok());
        let again = responder.session.open(&as_control(&datagrams[at]));
        assert_eq!(again, Err(SessionError::Replayed { counter: at as u64 }));
    }
}

#[test]
fn only_the_newest_datagram_says_that_it_is() {
    let (mut initiator, mut responder) = Ends::new(true, None).shake();
    let datagrams: Vec<_> = (0..4).map(|_| initiator.session.seal(b"").unwrap()).collect();
    for (at, newest) in [(1, true), (0, false), (3, true), (2, false)] {
        let opened = responder.session.open(&as_control(&datagrams[at])).unwrap();
        assert_eq!((opened.counter, opened.newest), (at as u64, newest));
    }
}

#[test]
fn what_fell_out_of_the_window_is_refused() {
    // P-6
    let (mut initiator, mut responder) = Ends::new(true, None).shake();
    let late = initiator.session.seal(b"late").unwrap();
    for _ in 0..ReplayWindow::WIDTH {
        let datagram = initiator.session.seal(b"x").unwrap();
        assert!(responder.session.open(&as_control(&datagram)).is_ok());
    }
    assert_eq!(responder.session.open(&as_control(&late)), Err(SessionError::Replayed { counter: 0 }));
}

#[test]
fn a_datagram_does_not_open_where_it_was_sealed() {
    let ends = Ends::new(true, None);
    let (initiator, initiation) = ends.start_with(7, 10);
    // Both ends with the same index, so that the index is not what tells them apart.
    let whimbrel_handshake::Incoming::Known(incoming) = ends.read(&initiation).unwrap() else { panic!("IK") };
    let responder = incoming.respond(7, responder_hello(), NOW).unwrap();
    let mut initiator = initiator.handle_response(&as_response(&responder.answer.unwrap()), NOW).unwrap();
    let datagram = initiator.session.seal(b"echo").unwrap();
    let reflected = initiator.session.open(&as_control(&datagram));
    assert_eq!(reflected, Err(SessionError::NotAuthentic { counter: 0 }));
}

#[test]
fn debug_output_holds_no_keys() {
    let (initiator, _) = Ends::new(true, None).shake();
    let text = format!("{initiator:?} {:?}", initiator.session.tunnel_keys());
    let key = format!("{:?}", initiator.session.tunnel_keys().send);
    assert!(!text.contains(&key));
}

proptest! {
    #[test]
    fn what_is_sealed_is_opened(texts in proptest::collection::vec(any::<Vec<u8>>(), 1..20)) {
        let (mut initiator, mut responder) = Ends::new(false, None).shake();
        for text in &texts {
            let datagram = initiator.session.seal(text).unwrap();
            prop_assert_eq!(datagram.len(), text.len() + CONTROL_OVERHEAD);
            prop_assert_eq!(&responder.session.open(&as_control(&datagram)).unwrap().plaintext, text);
        }
        prop_assert_eq!(responder.session.received(), texts.len() as u64);
    }
}
