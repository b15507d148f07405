//! The end that is asked.

use std::fmt;

use snow::HandshakeState;
use whimbrel_wire::Hello;
use whimbrel_wire::datagram::{FINISH_HEADER_LEN, Finish, Initiation, VERSION, response_header};
use zeroize::Zeroizing;

use crate::derive::Role;
use crate::error::{Error, Rejected};
use crate::initiator::{check_index, read_sealed, write_sealed};
use crate::key::PublicKey;
use crate::noise::{self, Inputs, Local};
use crate::session::Session;
use crate::{Finished, Randomness};

/// An initiation that was read and not answered. Costs no more than the memory it takes here; may be dropped.
#[derive(Debug)]
pub enum Incoming {
    /// The initiator does not know this end's key, nor is its own known yet.
    First(XxInitiation),
    /// The initiator knows this end's key, and has told its own.
    Known(IkInitiation),
}

impl Incoming {
    /// Reads an initiation, whose cookie MAC has been checked where that is needed.
    ///
    /// # Errors
    /// It is not authentic (IK), or one end uses a pre-shared key and the other does not.
    pub fn read(initiation: &Initiation<'_>, local: Local<'_>, randomness: Randomness<'_>) -> Result<Self, Error> {
        // P-29
        match (initiation.pattern.has_psk(), local.psk) {
            (true, None) => return Err(Error::PskMissing),
            (false, Some(_)) => return Err(Error::PskExpected),
            _ => {}
        }
        let mut ephemeral = Zeroizing::new([0; 32]);
        randomness(&mut *ephemeral);
        let inputs = Inputs {
            pattern: initiation.pattern,
            key: local.key.clone(),
            psk: local.psk.copied().map(Zeroizing::new),
            remote: None,
            ephemeral,
            initiation_header: *initiation.header,
        };
        let mut noise = Box::new(inputs.responder()?);
        let payload = noise::read(&mut noise, initiation.noise)?;
        let remote_index = initiation.sender;
        let version = initiation.version.min(VERSION);
        if initiation.pattern.knows_responder() {
            let hello = Hello::decode(&payload)?;
            let remote = noise::remote_static(&noise)?;
            Ok(Self::Known(IkInitiation { noise, remote_index, version, remote, hello }))
        } else {
            let initiation = initiation.noise.to_vec();
            Ok(Self::First(XxInitiation { inputs: Box::new(inputs), noise, remote_index, version, initiation }))
        }
    }
}

/// An IK initiation. The peer is known, but this may be an old datagram sent once more: the caller checks that the
/// timestamp of the hello is newer than the last accepted one of that key (P-9), and that the key is trusted.
pub struct IkInitiation {
    noise: Box<HandshakeState>,
    remote_index: u32,
    version: u8,
    remote: PublicKey,
    hello: Hello,
}

impl IkInitiation {
    /// Who asks.
    #[must_use]
    pub fn remote(&self) -> PublicKey {
        self.remote
    }

    /// What it told of itself.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Answers. The response is in [`Finished::answer`]. The session may be received with at once, and sent with once
    /// it is confirmed by the first datagram that opens (P-8). `now` is in microseconds.
    ///
    /// # Errors
    /// The initiator's ephemeral key is of small order.
    pub fn respond(mut self, index: u32, mut hello: Hello, now: u64) -> Result<Finished, Error> {
        hello.version = self.version;
        hello.timestamp = 0;
        let answer = write_sealed(&mut self.noise, &response_header(index, self.remote_index), &hello)?;
        let session = Session::new(Role::Responder, index, self.remote_index, &noise::secrets(*self.noise), now);
        Ok(Finished { session, remote: self.remote, hello: self.hello, answer: Some(answer) })
    }
}

impl fmt::Debug for IkInitiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IkInitiation")
            .field("remote_index", &self.remote_index)
            .field("remote", &self.remote)
            .field("hello", &self.hello)
            .finish_non_exhaustive()
    }
}

/// An XX initiation: somebody asks, and nothing is known of them.
pub struct XxInitiation {
    inputs: Box<Inputs>,
    noise: Box<HandshakeState>,
    remote_index: u32,
    version: u8,
    initiation: Vec<u8>,
}

impl XxInitiation {
    /// Answers, and gives the response to send. Of the hello's locators the first alone is told, and no life: whoever
    /// asks could read them (P-30).
    ///
    /// # Errors
    /// The initiator's ephemeral key is of small order.
    pub fn respond(mut self, index: u32, mut hello: Hello) -> Result<(XxResponder, Vec<u8>), Error> {
        hello.version = self.version;
        hello.timestamp = 0;
        hello.life = 0;
        hello.locators.truncate(1);
        let header = response_header(index, self.remote_index);
        let response = write_sealed(&mut self.noise, &header, &hello)?;
        let replay = Replay { inputs: self.inputs, initiation: self.initiation, header, hello };
        let responder =
            XxResponder { replay: Box::new(replay), noise: Some(self.noise), index, remote_index: self.remote_index };
        Ok((responder, response))
    }
}

impl fmt::Debug for XxInitiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XxInitiation").field("remote_index", &self.remote_index).finish_non_exhaustive()
    }
}

/// An XX handshake that was answered and waits for its finish.
pub struct XxResponder {
    replay: Box<Replay>,
    /// Taken out by an attempt to read a finish; made again if that failed.
    noise: Option<Box<HandshakeState>>,
    index: u32,
    remote_index: u32,
}

/// What leads to the state that a finish is read in.
struct Replay {
    inputs: Box<Inputs>,
    initiation: Vec<u8>,
    header: [u8; whimbrel_wire::datagram::RESPONSE_HEADER_LEN],
    hello: Hello,
}

impl Replay {
    fn run(&self) -> Result<Box<HandshakeState>, Error> {
        let mut noise = Box::new(self.inputs.responder()?);
        noise::read(&mut noise, &self.initiation)?;
        write_sealed(&mut noise, &self.header, &self.hello)?;
        Ok(noise)
    }
}

impl XxResponder {
    /// The index that the finish will carry.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Takes the finish. `now` is in microseconds.
    ///
    /// # Errors
    /// The finish is not for this handshake, not authentic, or breaks the protocol.
    pub fn handle_finish(mut self, finish: &Finish<'_>, now: u64) -> Result<Finished, Rejected<Self>> {
        self.read_finish(finish, now).map_err(|error| Rejected { state: self, error })
    }

    fn read_finish(&mut self, finish: &Finish<'_>, now: u64) -> Result<Finished, Error> {
        check_index(self.index, finish.receiver)?;
        let mut noise = match self.noise.take() {
            Some(noise) => noise,
            None => self.replay.run()?,
        };
        let payload = noise::read(&mut noise, finish.noise)?;
        let hello = read_sealed::<FINISH_HEADER_LEN>(&payload, finish.header)?;
        let remote = noise::remote_static(&noise)?;
        let secrets = noise::secrets(*noise);
        let session = Session::new(Role::Responder, self.index, self.remote_index, &secrets, now).confirmed();
        Ok(Finished { session, remote, hello, answer: None })
    }
}

impl fmt::Debug for XxResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XxResponder")
            .field("index", &self.index)
            .field("remote_index", &self.remote_index)
            .finish_non_exhaustive()
    }
}
