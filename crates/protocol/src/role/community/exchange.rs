//! From a one-time code to a key that only two hosts have, with nothing for a third to try guesses on: SPAKE2 (RFC
//! 9382).

use ring::hmac;
use spake2::{Ed25519Group, Identity, Password, Spake2};
use whimbrel_handshake::PublicKey;
use whimbrel_wire::community::{Element, JoinPurpose, Proof};

use super::code::OneTimeCode;
use crate::base::random::Random;

/// What the two ends are called in an exchange.
const JOINER: &[u8] = b"whimbrel 1 joiner";
const INVITER: &[u8] = b"whimbrel 1 inviter";
/// The byte in front of an element that tells whose it is, in the library's format.
const JOINER_SIDE: u8 = b'A';
const INVITER_SIDE: u8 = b'B';

/// What an exchange is about, the same at both ends, or it comes to nothing: the two static keys that the session
/// between them has authenticated. So nobody can sit in between with a key of its own.
pub(super) struct Between {
    pub(super) joiner: PublicKey,
    pub(super) inviter: PublicKey,
    pub(super) purpose: JoinPurpose,
}

impl Between {
    fn identities(&self) -> (Identity, Identity) {
        let joiner = [JOINER, self.joiner.as_bytes(), &[self.purpose.number()]].concat();
        let inviter = [INVITER, self.inviter.as_bytes()].concat();
        (Identity::new(&joiner), Identity::new(&inviter))
    }
}

/// The joiner's half, until the inviter has answered.
pub(super) struct Begun {
    state: Spake2<Ed25519Group>,
    /// To be sent.
    pub(super) element: Element,
}

/// What an exchange came to. Whether the other end knew the code shows with its proof, and not before.
pub(super) struct Agreed {
    key: hmac::Key,
}

/// Begins an exchange as the joiner.
pub(super) fn begin(code: &OneTimeCode, between: &Between, random: &mut Random) -> Option<Begun> {
    let (joiner, inviter) = between.identities();
    let password = Password::new(code.secret());
    let (state, element) = Spake2::<Ed25519Group>::start_a_with_rng(&password, &joiner, &inviter, Source(random));
    Some(Begun { state, element: without_side(&element)? })
}

impl Begun {
    /// The inviter's element came. `None` where it is none.
    pub(super) fn finish(self, inviter: &Element) -> Option<Agreed> {
        agreed(self.state, INVITER_SIDE, inviter)
    }
}

/// Answers as the inviter: its element, and what the exchange came to, where the joiner's element is one.
pub(super) fn answer(
    code: &OneTimeCode,
    between: &Between,
    element: &Element,
    random: &mut Random,
) -> Option<(Element, Agreed)> {
    let (joiner, inviter) = between.identities();
    let password = Password::new(code.secret());
    let (state, own) = Spake2::<Ed25519Group>::start_b_with_rng(&password, &joiner, &inviter, Source(random));
    Some((without_side(&own)?, agreed(state, JOINER_SIDE, element)?))
}

fn agreed(state: Spake2<Ed25519Group>, side: u8, element: &Element) -> Option<Agreed> {
    let mut message = vec![side];
    message.extend_from_slice(element);
    let key = state.finish(&message).ok()?;
    Some(Agreed { key: hmac::Key::new(hmac::HMAC_SHA256, &key) })
}

fn without_side(message: &[u8]) -> Option<Element> {
    message.get(1..)?.try_into().ok()
}

impl Agreed {
    /// Shows that the joiner knows the code; over what it says beside.
    pub(super) fn prove_joiner(&self, said: &[u8]) -> Proof {
        self.prove(JOINER, said)
    }

    /// Shows that the inviter knows it.
    pub(super) fn prove_inviter(&self, said: &[u8]) -> Proof {
        self.prove(INVITER, said)
    }

    /// Whether the joiner knows the code.
    pub(super) fn is_joiners(&self, proof: &Proof, said: &[u8]) -> bool {
        self.verify(JOINER, proof, said)
    }

    /// Whether the inviter does.
    pub(super) fn is_inviters(&self, proof: &Proof, said: &[u8]) -> bool {
        self.verify(INVITER, proof, said)
    }

    fn prove(&self, who: &[u8], said: &[u8]) -> Proof {
        let tag = hmac::sign(&self.key, &[who, b" ", said].concat());
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    fn verify(&self, who: &[u8], proof: &Proof, said: &[u8]) -> bool {
        hmac::verify(&self.key, &[who, b" ", said].concat(), proof).is_ok()
    }
}

/// The node's randomness, as the library wants it.
struct Source<'a>(&'a mut Random);

impl rand_core::RngCore for Source<'_> {
    fn next_u32(&mut self) -> u32 {
        (self.0.u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0.u64()
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        self.0.fill(dest);
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), rand_core::Error> {
        self.0.fill(dest);
        Ok(())
    }
}

impl rand_core::CryptoRng for Source<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn between() -> Between {
        Between {
            joiner: PublicKey::from([1; 32]),
            inviter: PublicKey::from([2; 32]),
            purpose: JoinPurpose::Membership,
        }
    }

    /// Whether two ends that take this to be so agree.
    fn agree(codes: [&str; 2], betweens: [&Between; 2]) -> bool {
        let mut random = Random::new([7; 32]);
        let codes = codes.map(|code| code.parse::<OneTimeCode>().unwrap());
        let begun = begin(&codes[0], betweens[0], &mut random).unwrap();
        let (element, inviter) = answer(&codes[1], betweens[1], &begun.element, &mut random).unwrap();
        let joiner = begun.finish(&element).unwrap();
        let first = inviter.is_joiners(&joiner.prove_joiner(b"name"), b"name");
        assert_eq!(first, joiner.is_inviters(&inviter.prove_inviter(b"rest"), b"rest"));
        assert!(!inviter.is_joiners(&joiner.prove_joiner(b"name"), b"another"));
        assert!(!joiner.is_inviters(&joiner.prove_joiner(b"rest"), b"rest"), "a proof sent back");
        first
    }

    #[test]
    fn those_agree_who_know_the_code_and_one_another() {
        let code = "7-crossover-clockwork-tolerance";
        assert!(agree([code, code], [&between(), &between()]));
        assert!(!agree([code, "7-crossover-clockwork-tobacco"], [&between(), &between()]));
        assert!(!agree([code, "8-crossover-clockwork-tolerance"], [&between(), &between()]));
        let middle = PublicKey::from([9; 32]);
        assert!(!agree([code, code], [&Between { inviter: middle, ..between() }, &between()]));
        assert!(!agree([code, code], [&between(), &Between { joiner: middle, ..between() }]));
        let other = Between { purpose: JoinPurpose::Connection, ..between() };
        assert!(!agree([code, code], [&other, &between()]));
    }

    #[test]
    fn bytes_that_are_no_element_come_to_nothing() {
        let code = "7-crossover-clockwork-tolerance".parse().unwrap();
        let mut random = Random::new([7; 32]);
        let mut none = [0; 32];
        // No point of the curve has this y (RFC 8032 §5.1.3).
        none[0] = 2;
        assert!(answer(&code, &between(), &none, &mut random).is_none());
    }
}
