//! An established session whose datagrams are delayed, repeated, changed and invented on the way: each true datagram
//! opens once, and nothing else does.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use whimbrel_fuzz::{Input, randomness};
use whimbrel_handshake::{Contact, Incoming, Initiator, Local, ReplayWindow, Session, StaticKey};
use whimbrel_wire::{Datagram, Hello};

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let [mut sender, mut receiver] = sessions();
    let mut sent: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut opened = HashSet::new();
    let mut highest = 0;
    while !input.is_empty() {
        match input.byte() % 8 {
            // Seal something.
            0..=2 => {
                let length = usize::from(input.byte());
                let plaintext = input.bytes(length).to_vec();
                let datagram = sender.seal(&plaintext).unwrap();
                sent.push((plaintext, datagram));
            }
            // Seal many, so that the window moves on.
            3 => {
                for _ in 0..input.number() % 1000 {
                    sent.push((Vec::new(), sender.seal(&[]).unwrap()));
                }
            }
            // Deliver one, perhaps not for the first time.
            4 | 5 if !sent.is_empty() => {
                let counter = input.number() % sent.len();
                let (plaintext, datagram) = &sent[counter];
                let Ok(Datagram::Control(parsed)) = Datagram::parse(datagram) else { panic!("control") };
                let counter = counter as u64;
                let in_window = counter + ReplayWindow::WIDTH > highest;
                let expected = in_window && opened.insert(counter);
                match receiver.open(&parsed) {
                    Ok(datagram) => {
                        assert!(expected);
                        assert_eq!(&datagram.plaintext, plaintext);
                        assert_eq!(datagram.newest, opened.len() == 1 || counter > highest);
                        highest = highest.max(counter);
                    }
                    Err(_) => assert!(!expected),
                }
            }
            // Deliver one that was changed.
            6 if !sent.is_empty() => {
                let datagram = &sent[input.number() % sent.len()].1;
                let forged = input.tamper(datagram);
                if forged != *datagram
                    && let Ok(Datagram::Control(parsed)) = Datagram::parse(&forged)
                {
                    assert!(receiver.open(&parsed).is_err());
                }
            }
            // Deliver something invented.
            _ => {
                let length = usize::from(input.byte());
                let mut datagram = vec![0x10, 0, 0, 0, 0, 0, 0, 2];
                datagram.extend_from_slice(input.bytes(length));
                if let Ok(Datagram::Control(parsed)) = Datagram::parse(&datagram) {
                    assert!(receiver.open(&parsed).is_err());
                }
            }
        }
    }
    assert_eq!(receiver.received(), opened.len() as u64);
    assert_eq!(receiver.is_confirmed(), !opened.is_empty());
});

/// Of an IK initiator with index 1, and of its responder with index 2.
fn sessions() -> [Session; 2] {
    let ours = StaticKey::generate(&mut randomness(1));
    let theirs = StaticKey::generate(&mut randomness(2));
    let local = Local { key: &ours, psk: None };
    let contact = Contact::Known(theirs.public());
    let (initiator, initiation) = Initiator::start(contact, local, 1, Hello::default(), &mut randomness(3)).unwrap();
    let Ok(Datagram::Initiation(parsed)) = Datagram::parse(&initiation) else { panic!("initiation") };
    let local = Local { key: &theirs, psk: None };
    let Ok(Incoming::Known(incoming)) = Incoming::read(&parsed, local, &mut randomness(4)) else { panic!("IK") };
    let responder = incoming.respond(2, Hello::default(), 0).unwrap();
    let response = responder.answer.unwrap();
    let Ok(Datagram::Response(parsed)) = Datagram::parse(&response) else { panic!("response") };
    let initiator = initiator.handle_response(&parsed, 0).unwrap();
    [initiator.session, responder.session]
}
