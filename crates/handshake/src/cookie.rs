//! The stateless answer to a flood of initiations (P-3), after WireGuard's (its paper, §5.4.7).

use std::net::SocketAddr;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use whimbrel_wire::codec::endpoint_octets;
use whimbrel_wire::datagram::{
    COOKIE_HEADER_LEN, COOKIE_LEN, COOKIE_REPLY_LEN, CookieReply, Initiation, NONCE_LEN, cookie_header,
};

use crate::Randomness;
use crate::error::Error;
use crate::key::PublicKey;

/// How long one secret makes cookies, in microseconds. A cookie is taken during this period and the next.
pub const COOKIE_PERIOD: u64 = 120_000_000;

/// Makes and checks cookies, and keeps nothing for them.
pub struct CookieChecker {
    /// Each period's secret is a MAC of the period's number under this one.
    root: hmac::Key,
    public: PublicKey,
}

impl CookieChecker {
    /// A checker for the responder with this public key.
    #[must_use]
    pub fn new(public: PublicKey, randomness: Randomness<'_>) -> Self {
        let mut root = [0; 32];
        randomness(&mut root);
        Self { root: hmac::Key::new(hmac::HMAC_SHA256, &root), public }
    }

    /// Whether the initiation proves that its sender receives at `source`. `now` is in microseconds.
    #[must_use]
    pub fn check(&self, initiation: &Initiation<'_>, source: SocketAddr, now: u64) -> bool {
        let period = now / COOKIE_PERIOD;
        let made_in = |period| {
            let expected = initiation_mac(&self.cookie(source, period), initiation.covered);
            equal(&expected, initiation.mac)
        };
        made_in(period) || period.checked_sub(1).is_some_and(made_in)
    }

    /// The cookie reply to an initiation from `source`. `now` is in microseconds.
    #[must_use]
    pub fn reply(
        &self,
        initiation: &Initiation<'_>,
        source: SocketAddr,
        now: u64,
        randomness: Randomness<'_>,
    ) -> [u8; COOKIE_REPLY_LEN] {
        let header = cookie_header(initiation.sender);
        let mut nonce = [0; NONCE_LEN];
        randomness(&mut nonce);
        let mut cookie = self.cookie(source, now / COOKIE_PERIOD);
        let responder = initiation.pattern.knows_responder().then_some(self.public);
        let tag = sealing_key(responder, initiation.covered)
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), &mut cookie)
            .expect("16 bytes are not too many to seal");
        let mut reply = [0; COOKIE_REPLY_LEN];
        let (reply_header, body) = reply.split_at_mut(COOKIE_HEADER_LEN);
        reply_header.copy_from_slice(&header);
        body[..NONCE_LEN].copy_from_slice(&nonce);
        body[NONCE_LEN..NONCE_LEN + COOKIE_LEN].copy_from_slice(&cookie);
        body[NONCE_LEN + COOKIE_LEN..].copy_from_slice(tag.as_ref());
        reply
    }

    fn cookie(&self, source: SocketAddr, period: u64) -> [u8; COOKIE_LEN] {
        let secret = hmac::sign(&self.root, &period.to_be_bytes());
        truncated(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref()), &[&endpoint_octets(source)])
    }
}

/// The cookie in a reply to the initiation that `covered` is all of but the MAC.
pub(crate) fn open_reply(
    reply: &CookieReply<'_>,
    responder: Option<PublicKey>,
    covered: &[u8],
) -> Result<[u8; COOKIE_LEN], Error> {
    let mut cookie = *reply.sealed;
    let cookie = sealing_key(responder, covered)
        .open_in_place(Nonce::assume_unique_for_key(*reply.nonce), Aad::from(reply.header), &mut cookie)
        .map_err(|_| Error::NotAuthentic)?;
    <[u8; COOKIE_LEN]>::try_from(&*cookie).map_err(|_| Error::NotAuthentic)
}

/// The MAC that proves possession of a cookie.
pub(crate) fn initiation_mac(cookie: &[u8; COOKIE_LEN], covered: &[u8]) -> [u8; COOKIE_LEN] {
    truncated(&hmac::Key::new(hmac::HMAC_SHA256, cookie), &[b"whimbrel 1 initiation", covered])
}

/// The key that seals the cookie in the reply to one initiation.
///
/// It is drawn from the initiation, so that only those who saw that can forge a reply, and from the responder's public
/// key where the initiator knows it. No two initiations have the same key, which is why a random nonce of 12 bytes
/// will do.
fn sealing_key(responder: Option<PublicKey>, covered: &[u8]) -> LessSafeKey {
    let public = responder.map_or([0; 32], |key| *key.as_bytes());
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &public));
    mac.update(b"whimbrel 1 cookie");
    mac.update(covered);
    let key = mac.sign();
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()).expect("SHA-256 has the length of a key"))
}

fn truncated(key: &hmac::Key, parts: &[&[u8]]) -> [u8; COOKIE_LEN] {
    let mut mac = hmac::Context::with_key(key);
    parts.iter().for_each(|part| mac.update(part));
    *mac.sign().as_ref().first_chunk().expect("SHA-256 is longer than a cookie")
}

/// Compares without telling by the time taken where the difference is.
fn equal(a: &[u8; COOKIE_LEN], b: &[u8; COOKIE_LEN]) -> bool {
    a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}
