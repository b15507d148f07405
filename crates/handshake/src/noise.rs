//! The Noise library, narrowed down to what is used of it.

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use whimbrel_wire::datagram::{INITIATION_HEADER_LEN, Pattern, TAG_LEN};
use zeroize::Zeroizing;

use crate::derive::Secrets;
use crate::error::Error;
use crate::key::{PublicKey, StaticKey};

/// Who this end is.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// Its static key.
    pub key: &'a StaticKey,
    /// The key that it shares with those that it trusts; with one, a peer without it is refused.
    pub psk: Option<&'a [u8; 32]>,
}

/// Length of an X25519 public key.
pub(crate) const PUBLIC_LEN: usize = 32;
/// Most bytes that a Noise message has beyond its payload: two keys and two tags.
const MESSAGE_OVERHEAD: usize = 2 * PUBLIC_LEN + 2 * TAG_LEN;
/// Start of the prologue; the header of the initiation follows.
const PROLOGUE: &[u8; 10] = b"whimbrel 1";

/// All that a handshake is made from on this end. The same inputs lead to the same messages, so that a handshake that
/// a forged message has led astray can be made again (P-31): the library does not go back to where it was by itself.
#[derive(Clone)]
pub(crate) struct Inputs {
    pub(crate) pattern: Pattern,
    pub(crate) key: StaticKey,
    pub(crate) psk: Option<Zeroizing<[u8; 32]>>,
    /// The responder's static key, on the initiator's end of IK.
    pub(crate) remote: Option<PublicKey>,
    /// Secret half of our ephemeral key.
    pub(crate) ephemeral: Zeroizing<[u8; 32]>,
    pub(crate) initiation_header: [u8; INITIATION_HEADER_LEN],
}

impl Inputs {
    pub(crate) fn initiator(&self) -> Result<HandshakeState, Error> {
        self.build(|builder| builder.build_initiator())
    }

    pub(crate) fn responder(&self) -> Result<HandshakeState, Error> {
        self.build(|builder| builder.build_responder())
    }

    fn build(
        &self,
        end: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> Result<HandshakeState, Error> {
        let (name, psk_position) = match self.pattern {
            Pattern::Xx => ("Noise_XX_25519_ChaChaPoly_BLAKE2s", 0),
            Pattern::Ik => ("Noise_IK_25519_ChaChaPoly_BLAKE2s", 0),
            Pattern::XxPsk => ("Noise_XXpsk3_25519_ChaChaPoly_BLAKE2s", 3),
            Pattern::IkPsk => ("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s", 2),
        };
        let params: NoiseParams = name.parse()?;
        let prologue = [PROLOGUE.as_slice(), self.initiation_header.as_slice()].concat();
        let resolver = Resolver { ephemeral: self.ephemeral.clone() };
        let mut builder = Builder::with_resolver(params, Box::new(resolver))
            .local_private_key(self.key.secret())?
            .prologue(&prologue)?;
        if let Some(psk) = &self.psk {
            builder = builder.psk(psk_position, psk)?;
        }
        if let Some(remote) = &self.remote {
            builder = builder.remote_public_key(remote.as_bytes())?;
        }
        end(builder).map_err(Error::from)
    }
}

/// The next message of ours.
pub(crate) fn write(state: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let mut message = vec![0; payload.len() + MESSAGE_OVERHEAD];
    let length = state.write_message(payload, &mut message)?;
    message.truncate(length);
    Ok(message)
}

/// The payload of the peer's next message.
pub(crate) fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, Error> {
    let mut payload = vec![0; message.len()];
    let length = state.read_message(message, &mut payload)?;
    payload.truncate(length);
    Ok(payload)
}

/// The peer's static key, once a message has told it.
pub(crate) fn remote_static(state: &HandshakeState) -> Result<PublicKey, Error> {
    state.get_remote_static().and_then(PublicKey::from_slice).ok_or(Error::Noise(snow::Error::Input))
}

/// What the finished handshake leaves to derive keys from.
pub(crate) fn secrets(mut state: HandshakeState) -> Secrets {
    let (from_initiator, from_responder) = state.dangerously_get_raw_split();
    let hash = state.get_handshake_hash().try_into().expect("BLAKE2s has 32 bytes");
    Secrets { from_initiator, from_responder, hash }
}

/// X25519 and BLAKE2s of snow's own, ChaCha20-Poly1305 of ring, and the ephemeral key that the caller drew.
struct Resolver {
    ephemeral: Zeroizing<[u8; 32]>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Drawn(Some(self.ephemeral.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice).map(|inner| Box::new(Contributory(inner)) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// Bytes that were drawn before, given out once: a handshake needs one ephemeral key.
struct Drawn(Option<Zeroizing<[u8; 32]>>);

impl Random for Drawn {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        let drawn = self.0.take().ok_or(snow::Error::Rng)?;
        if out.len() != drawn.len() {
            return Err(snow::Error::Rng);
        }
        out.copy_from_slice(drawn.as_slice());
        Ok(())
    }
}

/// Refuses the result zero, which a public key of small order leads to whatever the secret is (P-28, RFC 7748 §6.1).
struct Contributory(Box<dyn Dh>);

impl Dh for Contributory {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn pub_len(&self) -> usize {
        self.0.pub_len()
    }

    fn priv_len(&self) -> usize {
        self.0.priv_len()
    }

    fn set(&mut self, secret: &[u8]) {
        self.0.set(secret);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        self.0.generate(random)
    }

    fn pubkey(&self) -> &[u8] {
        self.0.pubkey()
    }

    fn privkey(&self) -> &[u8] {
        self.0.privkey()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        self.0.dh(public, out)?;
        let bits = out[..self.0.dh_len()].iter().fold(0, |bits, byte| bits | byte);
        if bits == 0 { Err(snow::Error::Dh) } else { Ok(()) }
    }

    fn dh_len(&self) -> usize {
        self.0.dh_len()
    }
}
