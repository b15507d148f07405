//! The end that starts a handshake.

use std::fmt;

use snow::HandshakeState;
use whimbrel_wire::Hello;
use whimbrel_wire::datagram::{
    COOKIE_LEN, CookieReply, INITIATION_HEADER_LEN, INITIATION_LEN, Pattern, RESPONSE_HEADER_LEN, Response, TAG_LEN,
    VERSION, finish_header, initiation_header,
};
use zeroize::Zeroizing;

use crate::cookie::{initiation_mac, open_reply};
use crate::derive::Role;
use crate::error::{Error, Rejected};
use crate::key::PublicKey;
use crate::noise::{self, Inputs, Local, PUBLIC_LEN};
use crate::session::Session;
use crate::{Finished, Randomness};

/// What the initiator knows of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Nothing: XX.
    First,
    /// Its static key: IK. The hello needs a timestamp then (P-9).
    Known(PublicKey),
}

/// A handshake that was started and not answered yet.
///
/// Goes on with [`Self::handle_response`], which may come after one [`Self::handle_cookie`]. It is repeated by starting
/// a new one; both may be open at the same time.
pub struct Initiator {
    inputs: Box<Inputs>,
    /// Taken out by an attempt to read a response; made again from the inputs if that failed.
    noise: Option<Box<HandshakeState>>,
    index: u32,
    hello: Box<Hello>,
    /// The initiation without its MAC.
    covered: Vec<u8>,
    has_cookie: bool,
}

impl Initiator {
    /// Starts a handshake and gives the initiation to send.
    ///
    /// `index` is what the peer shall address the session by; it must not be that of another session or handshake of
    /// this end. The version of the hello is set here. In XX the hello travels in the finish.
    ///
    /// # Errors
    /// The responder's key is of small order.
    pub fn start(
        contact: Contact,
        local: Local<'_>,
        index: u32,
        mut hello: Hello,
        randomness: Randomness<'_>,
    ) -> Result<(Self, Vec<u8>), Error> {
        hello.version = VERSION;
        let (pattern, remote) = match (contact, local.psk) {
            (Contact::First, None) => (Pattern::Xx, None),
            (Contact::First, Some(_)) => (Pattern::XxPsk, None),
            (Contact::Known(key), None) => (Pattern::Ik, Some(key)),
            (Contact::Known(key), Some(_)) => (Pattern::IkPsk, Some(key)),
        };
        let mut ephemeral = Zeroizing::new([0; 32]);
        randomness(&mut *ephemeral);
        let inputs = Inputs {
            pattern,
            key: local.key.clone(),
            psk: local.psk.copied().map(Zeroizing::new),
            remote,
            ephemeral,
            initiation_header: initiation_header(pattern, VERSION, index),
        };
        let mut initiator = Self {
            inputs: Box::new(inputs),
            noise: None,
            index,
            hello: Box::new(hello),
            covered: Vec::new(),
            has_cookie: false,
        };
        let (noise, covered) = initiator.write_initiation()?;
        initiator.noise = Some(noise);
        initiator.covered = covered;
        let datagram = initiator.datagram([0; COOKIE_LEN]);
        Ok((initiator, datagram))
    }

    /// The index that the response will carry.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The key of the responder, where it was known before.
    #[must_use]
    pub fn expected(&self) -> Option<PublicKey> {
        self.inputs.remote
    }

    /// Takes the cookie of a responder under load, and gives the same initiation with its MAC, to be sent at once.
    ///
    /// # Errors
    /// The reply is not for this initiation or not authentic, or a cookie was taken before: whoever can read the
    /// initiation could otherwise make this end send without limit.
    pub fn handle_cookie(&mut self, reply: &CookieReply<'_>) -> Result<Vec<u8>, Error> {
        check_index(self.index, reply.receiver)?;
        if self.has_cookie {
            return Err(Error::CookieUsed);
        }
        let cookie = open_reply(reply, self.inputs.remote, &self.covered)?;
        self.has_cookie = true;
        Ok(self.datagram(initiation_mac(&cookie, &self.covered)))
    }

    /// Takes the response. With XX, the finish to send is in [`Finished::answer`]; it may be lost, so it is to be
    /// repeated, or the handshake started anew, while the session is not confirmed. `now` is in microseconds.
    ///
    /// # Errors
    /// The response is not for this initiation, not authentic, or breaks the protocol.
    pub fn handle_response(mut self, response: &Response<'_>, now: u64) -> Result<Finished, Rejected<Self>> {
        self.read_response(response, now).map_err(|error| Rejected { state: self, error })
    }

    fn read_response(&mut self, response: &Response<'_>, now: u64) -> Result<Finished, Error> {
        check_index(self.index, response.receiver)?;
        let mut noise = match self.noise.take() {
            Some(noise) => noise,
            None => self.write_initiation()?.0,
        };
        let payload = noise::read(&mut noise, response.noise)?;
        let hello = read_sealed::<RESPONSE_HEADER_LEN>(&payload, response.header)?;
        if hello.version > VERSION {
            return Err(Error::Version(hello.version));
        }
        let remote = noise::remote_static(&noise)?;
        let answer = if self.inputs.pattern.knows_responder() {
            None
        } else {
            self.hello.version = hello.version;
            Some(write_sealed(&mut noise, &finish_header(response.sender), &self.hello)?)
        };
        let session = Session::new(Role::Initiator, self.index, response.sender, &noise::secrets(*noise), now);
        // P-8: the response ends IK and so proves that the peer holds the keys; XX ends with our own message.
        let session = if answer.is_none() { session.confirmed() } else { session };
        Ok(Finished { session, remote, hello, answer })
    }

    fn write_initiation(&self) -> Result<(Box<HandshakeState>, Vec<u8>), Error> {
        let pattern = self.inputs.pattern;
        let mut noise = Box::new(self.inputs.initiator()?);
        let mut payload = Vec::new();
        // The first message of XX can be read by anyone, so it says nothing.
        if pattern.knows_responder() {
            self.hello.encode(&mut payload);
        }
        payload.resize(initiation_payload_len(pattern), 0);
        let message = noise::write(&mut noise, &payload)?;
        let mut covered = Vec::with_capacity(INITIATION_LEN);
        covered.extend_from_slice(&self.inputs.initiation_header);
        covered.extend_from_slice(&message);
        Ok((noise, covered))
    }

    pub(crate) fn datagram(&self, mac: [u8; COOKIE_LEN]) -> Vec<u8> {
        [self.covered.as_slice(), &mac].concat()
    }
}

#[cfg(test)]
impl Initiator {
    /// Offers another version than this program's highest.
    pub(crate) fn offer(&mut self, version: u8) {
        self.hello.version = version;
        self.inputs.initiation_header = initiation_header(self.inputs.pattern, version, self.index);
        let (noise, covered) = self.write_initiation().expect("keys are good");
        (self.noise, self.covered) = (Some(noise), covered);
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator")
            .field("pattern", &self.inputs.pattern)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// Length of the payload with which the initiation is as long as it has to be (P-2).
fn initiation_payload_len(pattern: Pattern) -> usize {
    let keys = if pattern.knows_responder() { PUBLIC_LEN + PUBLIC_LEN + TAG_LEN } else { PUBLIC_LEN };
    // A pre-shared key makes Noise encrypt from the first message on.
    let tag = if pattern == Pattern::Xx { 0 } else { TAG_LEN };
    INITIATION_LEN - INITIATION_HEADER_LEN - COOKIE_LEN - keys - tag
}

pub(crate) fn check_index(expected: u32, found: u32) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::WrongIndex { expected, found }) }
}

/// A datagram: its header, and a Noise message that seals the header once more and the hello.
pub(crate) fn write_sealed(noise: &mut HandshakeState, header: &[u8], hello: &Hello) -> Result<Vec<u8>, Error> {
    let mut payload = header.to_vec();
    hello.encode(&mut payload);
    let message = noise::write(noise, &payload)?;
    Ok([header, &message].concat())
}

/// The hello behind the sealed copy of the header, which must be the same (P-27).
pub(crate) fn read_sealed<const N: usize>(payload: &[u8], header: &[u8; N]) -> Result<Hello, Error> {
    match payload.split_first_chunk::<N>() {
        Some((copy, hello)) if copy == header => Ok(Hello::decode(hello)?),
        _ => Err(Error::HeaderChanged),
    }
}
