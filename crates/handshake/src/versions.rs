//! Two versions of the protocol with one another (P-5): this one, and a later one as it might be.

use whimbrel_wire::datagram::{Datagram, Pattern, VERSION, initiation_header, response_header};
use whimbrel_wire::{Capabilities, Hello};
use zeroize::Zeroizing;

use crate::initiator::write_sealed;
use crate::noise::{self, Inputs};
use crate::{Contact, Error, Finished, Incoming, Initiator, Local, StaticKey};

const LATER: u8 = VERSION + 1;
const NOW: u64 = 1_000_000;

fn key(byte: u8) -> StaticKey {
    StaticKey::from_bytes([byte; 32])
}

/// What an end of a later version says, with a capability that this one does not know.
fn hello(byte: u8) -> Hello {
    let locators = vec![[192, 0, 2, byte].into()];
    Hello { capabilities: Capabilities(1 << 31), timestamp: 1, locators, ..Hello::default() }
}

fn start(contact: Contact) -> (Initiator, Vec<u8>) {
    let local = Local { key: &key(1), psk: None };
    Initiator::start(contact, local, 7, hello(1), &mut |bytes| bytes.fill(3)).expect("keys are good")
}

fn contacts() -> [Contact; 2] {
    [Contact::First, Contact::Known(key(2).public())]
}

/// The whole handshake, as both ends see it.
fn shake(initiator: Initiator, initiation: &[u8]) -> [Finished; 2] {
    let Ok(Datagram::Initiation(initiation)) = Datagram::parse(initiation) else { panic!("no initiation") };
    let local = Local { key: &key(2), psk: None };
    let incoming = Incoming::read(&initiation, local, &mut |bytes| bytes.fill(4)).expect("it is authentic");
    let taken = |initiator: Initiator, response: &[u8]| {
        let Ok(Datagram::Response(response)) = Datagram::parse(response) else { panic!("no response") };
        initiator.handle_response(&response, NOW).expect("it is taken")
    };
    match incoming {
        Incoming::Known(incoming) => {
            let theirs = incoming.respond(9, hello(2), NOW).expect("keys are good");
            [taken(initiator, theirs.answer.as_deref().expect("a response")), theirs]
        }
        Incoming::First(incoming) => {
            let (responder, response) = incoming.respond(9, hello(2)).expect("keys are good");
            let own = taken(initiator, &response);
            let finish = own.answer.as_deref().expect("a finish");
            let Ok(Datagram::Finish(finish)) = Datagram::parse(finish) else { panic!("no finish") };
            let theirs = responder.handle_finish(&finish, NOW).expect("it is taken");
            [own, theirs]
        }
    }
}

#[test]
fn a_later_version_is_answered_with_this_one() {
    for contact in contacts() {
        let (mut initiator, _) = start(contact);
        initiator.offer(LATER);
        let initiation = initiator.datagram([0; 16]);
        assert_eq!(initiation[2], LATER);
        let [own, theirs] = shake(initiator, &initiation);
        // Of IK the initiation's hello tells what was offered, before anything is agreed on.
        let told = if contact == Contact::First { VERSION } else { LATER };
        assert_eq!((own.hello.version, theirs.hello.version), (VERSION, told), "{contact:?}");
        assert_eq!((own.hello.capabilities, theirs.hello.capabilities), (Capabilities(1 << 31), Capabilities(1 << 31)));
    }
}

#[test]
fn what_was_offered_cannot_be_changed_on_the_way() {
    for contact in contacts() {
        let (mut initiator, _) = start(contact);
        initiator.offer(LATER);
        let mut initiation = initiator.datagram([0; 16]);
        initiation[2] = VERSION;
        let Ok(Datagram::Initiation(initiation)) = Datagram::parse(&initiation) else { panic!("no initiation") };
        let local = Local { key: &key(2), psk: None };
        let refused = match Incoming::read(&initiation, local, &mut |bytes| bytes.fill(4)) {
            Err(error) => error,
            Ok(Incoming::Known(_)) => panic!("IK covers the header"),
            Ok(Incoming::First(incoming)) => {
                let (_, response) = incoming.respond(9, hello(2)).expect("keys are good");
                let Ok(Datagram::Response(response)) = Datagram::parse(&response) else { panic!("no response") };
                initiator.handle_response(&response, NOW).expect_err("the two ends have seen two initiations").error
            }
        };
        assert_eq!(refused, Error::NotAuthentic, "{contact:?}");
    }
}

#[test]
fn who_speaks_a_later_version_alone_says_so() {
    for contact in contacts() {
        let (initiator, initiation) = start(contact);
        let Ok(Datagram::Initiation(initiation)) = Datagram::parse(&initiation) else { panic!("no initiation") };
        let inputs = Inputs {
            pattern: initiation.pattern,
            key: key(2),
            psk: None,
            remote: None,
            ephemeral: Zeroizing::new([4; 32]),
            initiation_header: initiation_header(pattern(contact), VERSION, 7),
        };
        let mut noise = inputs.responder().expect("keys are good");
        noise::read(&mut noise, initiation.noise).expect("it is authentic");
        let later = Hello { version: LATER, timestamp: 0, ..hello(2) };
        let response = write_sealed(&mut noise, &response_header(9, 7), &later).expect("keys are good");
        let Ok(Datagram::Response(response)) = Datagram::parse(&response) else { panic!("no response") };
        let refused = initiator.handle_response(&response, NOW).expect_err("it was not offered").error;
        assert_eq!(refused, Error::Version(LATER), "{contact:?}");
    }
}

fn pattern(contact: Contact) -> Pattern {
    if contact == Contact::First { Pattern::Xx } else { Pattern::Ik }
}
