//! Two ends and what travels between them.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use whimbrel_handshake::{
    Contact, Error, Finished, Incoming, Initiator, Local, Rejected, Session, StaticKey, XxResponder,
};
use whimbrel_wire::datagram::{Control, CookieReply, Datagram, Finish, Initiation, Response};
use whimbrel_wire::{Capabilities, Hello};

pub(crate) const INITIATOR_INDEX: u32 = 0x1111_2222;
pub(crate) const RESPONDER_INDEX: u32 = 0x3333_4444;
pub(crate) const NOW: u64 = 7_000_000;
pub(crate) const PSK: [u8; 32] = [0x5a; 32];

/// A repeatable source of bytes.
pub(crate) fn randomness(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |out| {
        for byte in out {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
    }
}

pub(crate) fn key(seed: u64) -> StaticKey {
    StaticKey::generate(&mut randomness(seed))
}

pub(crate) struct Ends {
    pub(crate) initiator: StaticKey,
    pub(crate) responder: StaticKey,
    pub(crate) initiator_psk: Option<[u8; 32]>,
    pub(crate) responder_psk: Option<[u8; 32]>,
    pub(crate) knows_responder: bool,
}

impl Ends {
    pub(crate) fn new(knows_responder: bool, psk: Option<[u8; 32]>) -> Self {
        Self { initiator: key(1), responder: key(2), initiator_psk: psk, responder_psk: psk, knows_responder }
    }

    /// All four patterns.
    pub(crate) fn all() -> [Self; 4] {
        [Self::new(false, None), Self::new(true, None), Self::new(false, Some(PSK)), Self::new(true, Some(PSK))]
    }

    pub(crate) fn contact(&self) -> Contact {
        if self.knows_responder { Contact::Known(self.responder.public()) } else { Contact::First }
    }

    pub(crate) fn start(&self) -> (Initiator, Vec<u8>) {
        self.start_with(INITIATOR_INDEX, 10)
    }

    pub(crate) fn start_with(&self, index: u32, seed: u64) -> (Initiator, Vec<u8>) {
        let local = Local { key: &self.initiator, psk: self.initiator_psk.as_ref() };
        Initiator::start(self.contact(), local, index, initiator_hello(), &mut randomness(seed)).unwrap()
    }

    pub(crate) fn read(&self, initiation: &[u8]) -> Result<Incoming, Error> {
        let local = Local { key: &self.responder, psk: self.responder_psk.as_ref() };
        Incoming::read(&as_initiation(initiation), local, &mut randomness(20))
    }

    pub(crate) fn respond(&self, initiation: &[u8]) -> Result<Answered, Error> {
        Ok(match self.read(initiation)? {
            Incoming::Known(incoming) => Answered::Known(incoming.respond(RESPONDER_INDEX, responder_hello(), NOW)?),
            Incoming::First(incoming) => {
                let (responder, response) = incoming.respond(RESPONDER_INDEX, responder_hello())?;
                Answered::First(responder, response)
            }
        })
    }

    /// A whole handshake: what the initiator and the responder end with.
    pub(crate) fn shake(&self) -> (Finished, Finished) {
        let (initiator, initiation) = self.start();
        match self.respond(&initiation).unwrap() {
            Answered::Known(responder) => {
                let response = responder.answer.clone().unwrap();
                (initiator.handle_response(&as_response(&response), NOW).unwrap(), responder)
            }
            Answered::First(responder, response) => {
                let finished = initiator.handle_response(&as_response(&response), NOW).unwrap();
                let finish = finished.answer.clone().unwrap();
                let responder = responder.handle_finish(&as_finish(&finish), NOW).unwrap();
                (finished, responder)
            }
        }
    }
}

pub(crate) enum Answered {
    Known(Finished),
    First(XxResponder, Vec<u8>),
}

impl Answered {
    pub(crate) fn response(&self) -> &[u8] {
        match self {
            Self::Known(finished) => finished.answer.as_ref().unwrap(),
            Self::First(_, response) => response,
        }
    }
}

pub(crate) fn initiator_hello() -> Hello {
    Hello {
        capabilities: Capabilities::REWRITE | Capabilities::TUNNEL_SEALED,
        timestamp: 1_700_000_000_123,
        locators: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        ..Hello::default()
    }
}

pub(crate) fn responder_hello() -> Hello {
    Hello {
        capabilities: Capabilities::TUNNEL_PLAIN,
        locators: vec!["198.51.100.7".parse().unwrap(), "10.0.0.7".parse().unwrap()],
        ..Hello::default()
    }
}

pub(crate) fn as_initiation(datagram: &[u8]) -> Initiation<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Initiation(initiation)) => initiation,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn as_response(datagram: &[u8]) -> Response<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Response(response)) => response,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn as_finish(datagram: &[u8]) -> Finish<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Finish(finish)) => finish,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn as_cookie(datagram: &[u8]) -> CookieReply<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Cookie(cookie)) => cookie,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn as_control(datagram: &[u8]) -> Control<'_> {
    match Datagram::parse(datagram) {
        Ok(Datagram::Control(control)) => control,
        other => panic!("{other:?}"),
    }
}

/// Sends one datagram each way.
pub(crate) fn converse(a: &mut Session, b: &mut Session) {
    exchange(a, b, b"there");
    exchange(b, a, b"and back");
}

pub(crate) fn exchange(from: &mut Session, to: &mut Session, text: &[u8]) {
    let datagram = from.seal(text).unwrap();
    assert_eq!(to.open(&as_control(&datagram)).unwrap().plaintext, text);
}

/// Takes a rejection apart.
pub(crate) fn rejected<S>(result: Result<Finished, Rejected<S>>) -> (S, Error) {
    match result {
        Ok(_) => panic!("a message was taken that should not have been"),
        Err(Rejected { state, error }) => (state, error),
    }
}

/// The same with the bits of `flip` turned at `position`.
pub(crate) fn changed(datagram: &[u8], position: usize, flip: u8) -> Vec<u8> {
    let mut changed = datagram.to_vec();
    changed[position] ^= flip;
    changed
}
