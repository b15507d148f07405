//! X25519 keys: who a peer is.

use std::fmt;
use std::str::FromStr;

use ring::hmac;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::Randomness;

/// Length of either key, in bytes.
const KEY_LEN: usize = 32;
/// Length of a meeting tag, in bytes.
const TAG_LEN: usize = 16;
/// What a meeting tag is a MAC over.
const MEETING: &[u8] = b"whimbrel 1 meeting";
/// What the key of tickets is a MAC over.
const TICKET: &[u8] = b"whimbrel 1 ticket";
/// Length of a key in base64.
const BASE64_LEN: usize = 44;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A host's long-term secret key (X25519).
#[derive(Clone)]
pub struct StaticKey {
    secret: Zeroizing<[u8; KEY_LEN]>,
    public: PublicKey,
}

impl ZeroizeOnDrop for StaticKey {}

impl StaticKey {
    /// A new key.
    #[must_use]
    pub fn generate(randomness: Randomness<'_>) -> Self {
        let mut secret = Zeroizing::new([0; KEY_LEN]);
        randomness(&mut *secret);
        Self::from_bytes(*secret)
    }

    /// The key of 32 bytes, clamped when it is used (RFC 7748 §5).
    #[must_use]
    pub fn from_bytes(secret: [u8; KEY_LEN]) -> Self {
        let secret = Zeroizing::new(secret);
        let mut agreement = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("built with `use-curve25519`");
        agreement.set(secret.as_slice());
        let public = agreement.pubkey().try_into().expect("X25519 keys have 32 bytes");
        Self { secret, public: PublicKey(public) }
    }

    /// The 32 secret bytes, to be stored.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; KEY_LEN]> {
        self.secret.clone()
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// What this host and a peer call their meeting at a rendezvous (P-54): the same at both ends, and known to nobody
    /// else. `None` where the peer's key is of small order, so that everybody could know it (P-28).
    #[must_use]
    pub fn meeting_tag(&self, peer: &PublicKey) -> Option<[u8; TAG_LEN]> {
        self.shared_mac(peer, MEETING)?.first_chunk().copied()
    }

    /// The key of the tickets that a donor of sockets has a holder of bindings accept (P-73): the same at both ends,
    /// and known to nobody else. `None` where the peer's key is of small order (P-28).
    #[must_use]
    pub fn ticket_key(&self, peer: &PublicKey) -> Option<[u8; KEY_LEN]> {
        self.shared_mac(peer, TICKET)
    }

    /// A MAC over `text` under the secret that the two static keys share.
    fn shared_mac(&self, peer: &PublicKey, text: &[u8]) -> Option<[u8; KEY_LEN]> {
        let mut agreement = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("built with `use-curve25519`");
        agreement.set(self.secret.as_slice());
        let mut shared = Zeroizing::new([0; KEY_LEN]);
        agreement.dh(peer.as_bytes(), shared.as_mut_slice()).ok()?;
        if *shared == [0; KEY_LEN] {
            return None;
        }
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, shared.as_slice()), text);
        mac.as_ref().first_chunk().copied()
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_LEN] {
        &self.secret
    }
}

impl fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// A peer's long-term public key (X25519). People see and write it in base64, as WireGuard does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl From<[u8; KEY_LEN]> for PublicKey {
    fn from(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(BASE64_LEN);
        for chunk in self.0.chunks(3) {
            let mut group = [0; 4];
            group[1..=chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes(group);
            for digit in 0..4 {
                let value = (bits >> (18 - 6 * digit)) & 0x3f;
                text.push(if digit <= chunk.len() { BASE64[value as usize] as char } else { '=' });
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 bytes in base64: 43 characters and one `=`")]
pub struct InvalidKey;

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let text: &[u8; BASE64_LEN] = text.as_bytes().try_into().map_err(|_| InvalidKey)?;
        let (digits, padding) = text.split_at(BASE64_LEN - 1);
        if padding != b"=" {
            return Err(InvalidKey);
        }
        let mut key = [0; KEY_LEN];
        let mut bits = 0_u32;
        let mut held = 0;
        let mut filled = 0;
        for digit in digits {
            let value = BASE64.iter().position(|letter| letter == digit).ok_or(InvalidKey)?;
            bits = bits << 6 | value as u32;
            held += 6;
            if held >= 8 {
                held -= 8;
                key[filled] = (bits >> held) as u8;
                filled += 1;
            }
            bits &= (1 << held) - 1;
        }
        // The last digit has two bits to spare; one spelling only is taken.
        if bits == 0 { Ok(Self(key)) } else { Err(InvalidKey) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_belongs_to_its_secret() {
        // RFC 7748 §6.1, Alice.
        let secret = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c,
            0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let key = StaticKey::from_bytes(secret);
        assert_eq!(key.public().to_string(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
        assert_eq!(*key.to_bytes(), secret);
        assert!(!format!("{key:?}").contains("secret"));
    }

    #[test]
    fn a_meeting_tag_is_of_both_keys_and_of_no_others() {
        // P-54. The shared secret is that of RFC 7748 §6.1; the MAC over it was made with another implementation.
        let bytes = |text: &str| {
            let digits = (0..32).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap());
            digits.collect::<Vec<u8>>().try_into().unwrap()
        };
        let alice = StaticKey::from_bytes(bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
        let bob = StaticKey::from_bytes(bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
        let tag = alice.meeting_tag(&bob.public()).unwrap();
        assert_eq!(
            tag,
            [0x48, 0xdd, 0x27, 0x9d, 0xfb, 0xb2, 0x0e, 0x89, 0x2e, 0x38, 0xb3, 0x30, 0x97, 0xc7, 0x55, 0x18]
        );
        assert_eq!(bob.meeting_tag(&alice.public()), Some(tag));
        let carol = StaticKey::from_bytes([9; 32]);
        assert_ne!(carol.meeting_tag(&bob.public()), Some(tag));
        assert_ne!(carol.meeting_tag(&alice.public()), Some(tag));
        assert_eq!(alice.meeting_tag(&PublicKey([0; 32])), None, "of small order");
        // P-73
        let key = alice.ticket_key(&bob.public()).unwrap();
        assert_eq!(bob.ticket_key(&alice.public()), Some(key));
        assert_ne!(key[..16], tag);
        assert_ne!(carol.ticket_key(&bob.public()), Some(key));
        assert_eq!(alice.ticket_key(&PublicKey([0; 32])), None, "of small order");
        assert!(alice.ticket_key(&alice.public()).is_some(), "with itself");
    }

    #[test]
    fn text_and_bytes_are_one_to_one() {
        for seed in 0..=255_u8 {
            let key = PublicKey(std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add((i * i) as u8)));
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for wrong in ["", "=", &"A".repeat(44), &format!("{}=", "A".repeat(42)), &format!("{}B=", "A".repeat(42))] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(InvalidKey), "{wrong}");
        }
        assert_eq!(format!("{}=", "A".repeat(43)).parse(), Ok(PublicKey([0; 32])));
    }
}
