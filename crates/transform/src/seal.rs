//! Sealing of tunnel datagrams: AEAD ciphers behind one small trait.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Bytes that sealing adds after the plaintext.
pub use whimbrel_wire::datagram::TAG_LEN;

/// Bytes of a key, for every algorithm.
pub const KEY_LEN: usize = 32;

/// A cipher keyed for one direction of one session.
pub trait Aead: Send + Sync {
    /// Encrypts `data` in place and returns the tag. `counter` must never be given twice for one key; `header` is
    /// authenticated with it.
    ///
    /// # Errors
    /// [`SealError`] if `data` is longer than the cipher allows.
    fn seal(&self, counter: u64, header: &[u8], data: &mut [u8]) -> Result<[u8; TAG_LEN], SealError>;

    /// Checks and decrypts `data`, which ends with the tag, in place, and returns how many bytes of it are plaintext.
    ///
    /// # Errors
    /// [`SealError`] if anything of it, or of `header`, is not what was sealed; `data` is useless then.
    fn open(&self, counter: u64, header: &[u8], data: &mut [u8]) -> Result<usize, SealError>;
}

/// A datagram that was not sealed with this key, or not like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("authentication failed")]
pub struct SealError;

/// The ciphers to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// NIST SP 800-38D, for processors with instructions for it.
    Aes256Gcm,
    /// RFC 8439.
    ChaCha20Poly1305,
}

impl Algorithm {
    /// The faster one on this processor: AES-256-GCM with instructions for it reaches three times the rate of
    /// ChaCha20-Poly1305, without them a fraction.
    #[must_use]
    pub fn preferred() -> Self {
        if has_aes_instructions() { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    /// The cipher for this key. The nonce (12 bytes) is four zero bytes, then the counter in network order; a key is of
    /// one session and one direction, so nothing else has to be in it.
    #[must_use]
    pub fn key(self, key: &[u8; KEY_LEN]) -> Box<dyn Aead> {
        let algorithm = match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        // Both take keys of KEY_LEN bytes, which is the only thing that is checked.
        match UnboundKey::new(algorithm, key) {
            Ok(key) => Box::new(RingKey(LessSafeKey::new(key))),
            Err(_) => Box::new(NoKey),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes_instructions() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes_instructions() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes_instructions() -> bool {
    false
}

struct RingKey(LessSafeKey);

fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Aead for RingKey {
    fn seal(&self, counter: u64, header: &[u8], data: &mut [u8]) -> Result<[u8; TAG_LEN], SealError> {
        let tag = self.0.seal_in_place_separate_tag(nonce(counter), Aad::from(header), data);
        tag.ok().and_then(|tag| tag.as_ref().try_into().ok()).ok_or(SealError)
    }

    fn open(&self, counter: u64, header: &[u8], data: &mut [u8]) -> Result<usize, SealError> {
        let plaintext = self.0.open_in_place(nonce(counter), Aad::from(header), data);
        plaintext.map(|plaintext| plaintext.len()).map_err(|_| SealError)
    }
}

/// Refuses everything.
struct NoKey;

impl Aead for NoKey {
    fn seal(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<[u8; TAG_LEN], SealError> {
        Err(SealError)
    }

    fn open(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<usize, SealError> {
        Err(SealError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(seed: u8) -> [Box<dyn Aead>; 2] {
        [Algorithm::Aes256Gcm, Algorithm::ChaCha20Poly1305].map(|algorithm| algorithm.key(&[seed; KEY_LEN]))
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens(text in proptest::collection::vec(any::<u8>(), 0..300), counter: u64, header: [u8; 16]) {
            for key in keys(9) {
                let mut data = text.clone();
                let tag = key.seal(counter, &header, &mut data).unwrap();
                data.extend(tag);
                let len = key.open(counter, &header, &mut data).unwrap();
                prop_assert_eq!(&data[..len], &text);
            }
        }

        #[test]
        fn any_change_is_noticed(
            text in proptest::collection::vec(any::<u8>(), 1..80), counter in 0u64..1000, at: usize, bit in 0u8..8,
        ) {
            for (key, other) in keys(9).into_iter().zip(keys(10)) {
                let header = [5; 16];
                let mut data = text.clone();
                let tag = key.seal(counter, &header, &mut data).unwrap();
                data.extend(tag);
                let mut damaged = data.clone();
                let len = damaged.len();
                damaged[at % len] ^= 1 << bit;
                prop_assert_eq!(key.open(counter, &header, &mut damaged), Err(SealError));
                prop_assert_eq!(key.open(counter + 1, &header, &mut data.clone()), Err(SealError));
                prop_assert_eq!(key.open(counter, &[4; 16], &mut data.clone()), Err(SealError));
                prop_assert_eq!(other.open(counter, &header, &mut data.clone()), Err(SealError));
                prop_assert_eq!(key.open(counter, &header, &mut data[..len - 1]), Err(SealError));
                prop_assert_eq!(key.open(counter, &header, &mut data[..TAG_LEN.min(len) - 1]), Err(SealError));
            }
        }
    }
}
