//! From the secrets of a handshake to the keys of a session (`docs/protocol.md` §2).

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::{hkdf, hmac};
use whimbrel_wire::TunnelKeys;
use zeroize::{Zeroize, Zeroizing};

/// What a handshake ends with.
pub(crate) struct Secrets {
    /// The key with which the initiator would send in plain Noise.
    pub(crate) from_initiator: [u8; 32],
    /// The key with which the responder would.
    pub(crate) from_responder: [u8; 32],
    /// The handshake hash.
    pub(crate) hash: [u8; 32],
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.from_initiator.zeroize();
        self.from_responder.zeroize();
    }
}

/// Which end of the handshake this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// Keys for control datagrams.
pub(crate) struct ControlKeys {
    pub(crate) send: LessSafeKey,
    pub(crate) receive: LessSafeKey,
}

/// Keys of what is said of flows: of the proofs by which they are paired (P-50), and of their names (P-132).
pub(crate) struct FlowKeys {
    pub(crate) send: hmac::Key,
    pub(crate) receive: hmac::Key,
    /// Both ends'.
    pub(crate) name: hmac::Key,
}

/// Draws all keys of a session. What they are drawn from is wiped; *ring* does not wipe the keys that it has made ready
/// for use.
pub(crate) fn session_keys(secrets: &Secrets, role: Role) -> (ControlKeys, TunnelKeys, FlowKeys) {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &secrets.hash);
    let root = salt.extract(&Zeroizing::new([secrets.from_initiator, secrets.from_responder].concat()));
    let (ours, theirs) = match role {
        Role::Initiator => ("initiator", "responder"),
        Role::Responder => ("responder", "initiator"),
    };
    let control = |sender| {
        let key = Zeroizing::new(expand::<32>(&root, "control", sender));
        LessSafeKey::new(
            UnboundKey::new(&CHACHA20_POLY1305, key.as_slice()).expect("the key has the algorithm's length"),
        )
    };
    let token = |sender| u64::from_be_bytes(expand(&root, "token", sender));
    let control_keys = ControlKeys { send: control(ours), receive: control(theirs) };
    let tunnel_keys = TunnelKeys {
        send: expand(&root, "tunnel", ours),
        receive: expand(&root, "tunnel", theirs),
        send_token: token(ours),
        receive_token: token(theirs),
    };
    let mac = |usage, sender| {
        let key = Zeroizing::new(expand::<32>(&root, usage, sender));
        hmac::Key::new(hmac::HMAC_SHA256, key.as_slice())
    };
    let flow_keys = FlowKeys { send: mac("pairing", ours), receive: mac("pairing", theirs), name: mac("name", "both") };
    (control_keys, tunnel_keys, flow_keys)
}

/// `N` bytes for one use by one sender, at most 32.
fn expand<const N: usize>(root: &hkdf::Prk, usage: &str, sender: &str) -> [u8; N] {
    let mut out = [0; N];
    let info = [b"whimbrel 1 ", usage.as_bytes(), b" ", sender.as_bytes()];
    root.expand(&info, Length(N))
        .and_then(|material| material.fill(&mut out))
        .expect("HKDF-SHA256 gives up to 8160 bytes");
    out
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::ZeroizeOnDrop;

    fn secrets() -> Secrets {
        Secrets { from_initiator: [1; 32], from_responder: [2; 32], hash: [3; 32] }
    }

    #[test]
    fn the_ends_agree_and_no_two_keys_are_equal() {
        let (_, initiator, _) = session_keys(&secrets(), Role::Initiator);
        let (_, responder, _) = session_keys(&secrets(), Role::Responder);
        assert_eq!(initiator.send, responder.receive);
        assert_eq!(initiator.receive, responder.send);
        assert_eq!(initiator.send_token, responder.receive_token);
        assert_eq!(initiator.receive_token, responder.send_token);
        assert_ne!(initiator.send, initiator.receive);
        assert_ne!(initiator.send_token, initiator.receive_token);
    }

    #[test]
    fn keys_are_wiped_when_they_are_dropped() {
        fn wiped<T: ZeroizeOnDrop>() {
            assert!(std::mem::needs_drop::<T>());
        }
        wiped::<TunnelKeys>();
        wiped::<crate::StaticKey>();
        wiped::<whimbrel_wire::community::CommunitySecret>();
        assert!(std::mem::needs_drop::<Secrets>());
        let (_, mut keys, _) = session_keys(&secrets(), Role::Initiator);
        keys.zeroize();
        let nothing = TunnelKeys { send: [0; 32], receive: [0; 32], send_token: 0, receive_token: 0 };
        assert!(keys == nothing);
    }

    #[test]
    fn every_input_counts() {
        let (_, keys, _) = session_keys(&secrets(), Role::Initiator);
        for change in [
            |s: &mut Secrets| s.from_initiator[0] ^= 1,
            |s: &mut Secrets| s.from_responder[31] ^= 1,
            |s: &mut Secrets| s.hash[5] ^= 1,
        ] {
            let mut other = secrets();
            change(&mut other);
            let (_, others, _) = session_keys(&other, Role::Initiator);
            assert_ne!(keys.send, others.send);
            assert_ne!(keys.receive, others.receive);
        }
    }
}
