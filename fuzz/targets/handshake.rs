//! Handshakes with somebody on the way who changes every message: nothing changed is taken, and the true message is
//! taken after it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_fuzz::{Input, randomness};
use whimbrel_handshake::{Contact, CookieChecker, Error, Finished, Incoming, Initiator, Local, StaticKey};
use whimbrel_wire::datagram::COOKIE_LEN;
use whimbrel_wire::{Datagram, Hello};

const NOW: u64 = 1_000_000;
const PSK: [u8; 32] = [7; 32];

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let choice = input.byte();
    let psk = (choice & 1 != 0).then_some(&PSK);
    let ours = StaticKey::generate(&mut randomness(1));
    let theirs = StaticKey::generate(&mut randomness(2));
    let contact = if choice & 2 != 0 { Contact::Known(theirs.public()) } else { Contact::First };
    let source = "192.0.2.1:2031".parse().unwrap();

    let local = Local { key: &ours, psk };
    let (mut initiator, mut initiation) =
        Initiator::start(contact, local, 1, Hello::default(), &mut randomness(3)).unwrap();
    let responder = Local { key: &theirs, psk };

    if choice & 4 != 0 {
        let checker = CookieChecker::new(theirs.public(), &mut randomness(4));
        let Ok(Datagram::Initiation(parsed)) = Datagram::parse(&initiation) else { panic!("initiation") };
        let reply = checker.reply(&parsed, source, NOW, &mut randomness(5));
        let forged = input.tamper(&reply);
        if forged != reply
            && let Ok(Datagram::Cookie(forged)) = Datagram::parse(&forged)
        {
            assert!(initiator.handle_cookie(&forged).is_err());
        }
        let Ok(Datagram::Cookie(reply)) = Datagram::parse(&reply) else { panic!("cookie") };
        initiation = initiator.handle_cookie(&reply).unwrap();
        let forged = input.tamper(&initiation);
        if let Ok(Datagram::Initiation(parsed)) = Datagram::parse(&forged) {
            assert_eq!(checker.check(&parsed, source, NOW), forged == initiation);
        }
    }

    // A changed initiation may be answered (XX cannot tell yet), but nothing comes of the answer.
    let forged = input.tamper(&initiation);
    let covered = &initiation[..initiation.len() - COOKIE_LEN];
    let changed = forged.len() != initiation.len() || !forged.starts_with(covered);
    if changed && let Ok(Datagram::Initiation(parsed)) = Datagram::parse(&forged) {
        let response = match Incoming::read(&parsed, responder, &mut randomness(6)) {
            Ok(Incoming::Known(_)) => panic!("a changed initiation of IK was taken"),
            Ok(Incoming::First(xx)) => xx.respond(9, Hello::default()).ok().map(|(_, response)| response),
            Err(_) => None,
        };
        if let Some(response) = response {
            initiator = refused(initiator, &response);
        }
    }

    let Ok(Datagram::Initiation(parsed)) = Datagram::parse(&initiation) else { panic!("initiation") };
    let (known, first, response) = match Incoming::read(&parsed, responder, &mut randomness(7)).unwrap() {
        Incoming::Known(ik) => {
            let mut finished = ik.respond(2, Hello::default(), NOW).unwrap();
            let response = finished.answer.take().unwrap();
            (Some(finished), None, response)
        }
        Incoming::First(xx) => {
            let (state, response) = xx.respond(2, Hello::default()).unwrap();
            (None, Some(state), response)
        }
    };
    let forged = input.tamper(&response);
    if forged != response {
        initiator = refused(initiator, &forged);
    }
    let Ok(Datagram::Response(parsed)) = Datagram::parse(&response) else { panic!("response") };
    let initiator = initiator.handle_response(&parsed, NOW).expect("the true response");

    let responder = match (known, first) {
        (Some(finished), _) => finished,
        (None, Some(mut state)) => {
            let finish = initiator.answer.as_ref().unwrap();
            let forged = input.tamper(finish);
            if forged != *finish
                && let Ok(Datagram::Finish(parsed)) = Datagram::parse(&forged)
            {
                state = match state.handle_finish(&parsed, NOW) {
                    Ok(_) => panic!("a changed finish was taken"),
                    Err(rejected) => rejected.state,
                };
            }
            let Ok(Datagram::Finish(parsed)) = Datagram::parse(finish) else { panic!("finish") };
            state.handle_finish(&parsed, NOW).expect("the true finish")
        }
        (None, None) => unreachable!("one of both patterns"),
    };
    agree(initiator, responder);
});

/// Offers a response that is not the true one.
fn refused(initiator: Initiator, response: &[u8]) -> Initiator {
    let Ok(Datagram::Response(parsed)) = Datagram::parse(response) else { return initiator };
    match initiator.handle_response(&parsed, NOW) {
        Ok(_) => panic!("a changed response was taken"),
        Err(rejected) => {
            assert!(!matches!(rejected.error, Error::Noise(_)), "{:?}", rejected.error);
            rejected.state
        }
    }
}

fn agree(mut a: Finished, mut b: Finished) {
    let datagram = a.session.seal(b"done").unwrap();
    let Ok(Datagram::Control(parsed)) = Datagram::parse(&datagram) else { panic!("control") };
    assert_eq!(b.session.open(&parsed).unwrap().plaintext, b"done");
    assert_eq!(a.session.tunnel_keys().send, b.session.tunnel_keys().receive);
}
