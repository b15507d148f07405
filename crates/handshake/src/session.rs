//! An established session: sealing and opening of control datagrams.

use std::fmt;

use ring::aead::{Aad, Nonce};
use ring::hmac;
use whimbrel_wire::datagram::{CONTROL_HEADER_LEN, Control, NONCE_LEN, TAG_LEN, control_header};
use whimbrel_wire::{ReplayWindow, TunnelKeys};

use crate::derive::{ControlKeys, FlowKeys, Role, Secrets, session_keys};
use crate::error::SessionError;

/// By how much a control datagram is longer than its messages, in bytes.
pub const CONTROL_OVERHEAD: usize = CONTROL_HEADER_LEN + TAG_LEN;
/// No key seals more datagrams than this. Renewal is due long before (P-7).
const COUNTER_LIMIT: u64 = 1 << 62;

/// An authenticated, encrypted association with one peer.
pub struct Session {
    role: Role,
    local_index: u32,
    remote_index: u32,
    /// Boxed, as the window is: together they take 1.6 KiB, and sessions are moved about.
    control: Box<ControlKeys>,
    tunnel: TunnelKeys,
    flows: Box<FlowKeys>,
    established: u64,
    sent: u64,
    received: u64,
    window: Box<ReplayWindow>,
    confirmed: bool,
}

/// An opened control datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The messages, to be read by [`whimbrel_wire::message::decode_all`].
    pub plaintext: Vec<u8>,
    /// Its counter.
    pub counter: u64,
    /// Whether it is newer than all that were opened before; only such a one may tell where the peer is (P-26).
    pub newest: bool,
}

impl Session {
    pub(crate) fn new(role: Role, local_index: u32, remote_index: u32, secrets: &Secrets, now: u64) -> Self {
        let (control, tunnel, flows) = session_keys(secrets, role);
        Self {
            role,
            local_index,
            remote_index,
            control: Box::new(control),
            tunnel,
            flows: Box::new(flows),
            established: now,
            sent: 0,
            received: 0,
            window: Box::new(ReplayWindow::new()),
            confirmed: false,
        }
    }

    pub(crate) fn confirmed(mut self) -> Self {
        self.confirmed = true;
        self
    }

    /// Makes a control datagram of encoded messages.
    ///
    /// # Errors
    /// The counters are used up.
    pub fn seal(&mut self, plaintext: &[u8]) -> Result<Vec<u8>, SessionError> {
        if self.sent >= COUNTER_LIMIT {
            return Err(SessionError::Exhausted);
        }
        let counter = self.sent;
        let header = control_header(self.remote_index, counter);
        let mut datagram = Vec::with_capacity(CONTROL_OVERHEAD + plaintext.len());
        datagram.extend_from_slice(&header);
        datagram.extend_from_slice(plaintext);
        let tag = self
            .control
            .send
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce(counter)),
                Aad::from(header),
                &mut datagram[CONTROL_HEADER_LEN..],
            )
            .map_err(|_| SessionError::Exhausted)?;
        datagram.extend_from_slice(tag.as_ref());
        self.sent += 1;
        Ok(datagram)
    }

    /// Opens a control datagram that carries our index.
    ///
    /// # Errors
    /// It is meant for another session, not authentic, or not new. The session is then as before (P-1).
    pub fn open(&mut self, datagram: &Control<'_>) -> Result<Opened, SessionError> {
        if datagram.receiver != self.local_index {
            return Err(SessionError::WrongIndex { expected: self.local_index, found: datagram.receiver });
        }
        let counter = datagram.counter;
        // Spares the decryption of replays. What counts is the check after authentication (P-6), which is the same one,
        // since nothing comes in between.
        if !self.window.is_new(counter) {
            return Err(SessionError::Replayed { counter });
        }
        let plaintext = self.open_copy(datagram)?;
        let newest = self.window.highest().is_none_or(|highest| counter > highest);
        self.window.accept(counter);
        self.received += 1;
        self.confirmed = true;
        Ok(Opened { plaintext, counter, newest })
    }

    /// Opens a datagram whether or not it is new. One that is not says nothing but by which other way it came: the rest
    /// was said, and may be long over.
    ///
    /// # Errors
    /// It is not authentic.
    pub fn open_copy(&self, datagram: &Control<'_>) -> Result<Vec<u8>, SessionError> {
        let (counter, mut plaintext) = (datagram.counter, datagram.sealed.to_vec());
        let length = self
            .control
            .receive
            .open_in_place(Nonce::assume_unique_for_key(nonce(counter)), Aad::from(datagram.header), &mut plaintext)
            .map_err(|_| SessionError::NotAuthentic { counter })?
            .len();
        plaintext.truncate(length);
        Ok(plaintext)
    }

    /// What the tunnel needs of this session.
    #[must_use]
    pub fn tunnel_keys(&self) -> &TunnelKeys {
        &self.tunnel
    }

    /// The proof that its sender knows these two sequence numbers (P-50): `ours` for one that this end sends, else for
    /// one that it receives. `numbers` are the introducer's, `introducer` is whether it is that who proves.
    #[must_use]
    pub fn pairing_proof(&self, ours: bool, introducer: bool, numbers: (u32, u32)) -> [u8; 16] {
        let key = if ours { &self.flows.send } else { &self.flows.receive };
        let mut message = [0; 9];
        message[0] = u8::from(!introducer);
        message[1..5].copy_from_slice(&numbers.0.to_be_bytes());
        message[5..].copy_from_slice(&numbers.1.to_be_bytes());
        let mut proof = [0; 16];
        proof.copy_from_slice(&hmac::sign(key, &message).as_ref()[..16]);
        proof
    }

    /// What a flow is called whose two nonces came back in this session (P-132): both ends have the same name for it,
    /// and who has seen the nonces travel has none.
    #[must_use]
    pub fn flow_name(&self, introducer_nonce: u64, responder_nonce: u64) -> u64 {
        let nonces = [introducer_nonce.to_be_bytes(), responder_nonce.to_be_bytes()].concat();
        self.name(0, &nonces)
    }

    /// What a flow is called that was paired in this session by these numbers, which are the introducer's (P-132).
    /// `introducer`: whether this end is that.
    #[must_use]
    pub fn paired_flow_name(&self, introducer: bool, introducer_nonce: u64, numbers: (u32, u32)) -> u64 {
        let first = self.pairing_proof(introducer, true, numbers);
        let second = self.pairing_proof(!introducer, false, numbers);
        self.name(1, &[&introducer_nonce.to_be_bytes()[..], &first, &second].concat())
    }

    fn name(&self, kind: u8, of: &[u8]) -> u64 {
        let tag = hmac::sign(&self.flows.name, &[&[kind], of].concat());
        tag.as_ref().iter().take(8).fold(0, |name, byte| name << 8 | u64::from(*byte))
    }

    /// The index that the peer addresses this session by.
    #[must_use]
    pub fn local_index(&self) -> u32 {
        self.local_index
    }

    /// The index that this end addresses the peer's session by.
    #[must_use]
    pub fn remote_index(&self) -> u32 {
        self.remote_index
    }

    /// Whether this end sent the initiation.
    #[must_use]
    pub fn is_initiator(&self) -> bool {
        self.role == Role::Initiator
    }

    /// Whether the peer has shown that it holds the keys of this session (P-8): by the last handshake message, if it
    /// sent that, else by the first control datagram that opened.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// When the handshake ended here, in microseconds of the caller's clock.
    #[must_use]
    pub fn established(&self) -> u64 {
        self.established
    }

    /// Microseconds since the handshake ended here.
    #[must_use]
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.established)
    }

    /// Number of control datagrams sealed.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of control datagrams opened.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("role", &self.role)
            .field("local_index", &self.local_index)
            .field("remote_index", &self.remote_index)
            .field("established", &self.established)
            .field("sent", &self.sent)
            .field("received", &self.received)
            .field("confirmed", &self.confirmed)
            .finish_non_exhaustive()
    }
}

/// The AEAD nonce of a datagram, of control and tunnel alike: four zero bytes, then the counter as it stands in the
/// header.
#[must_use]
pub const fn nonce(counter: u64) -> [u8; NONCE_LEN] {
    let [a, b, c, d, e, f, g, h] = counter.to_be_bytes();
    [0, 0, 0, 0, a, b, c, d, e, f, g, h]
}
