//! What a node knows of one peer: who it is, and its sessions.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::{PublicKey, Session};
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::base::op::PeerId;

/// An association with a peer, as one slot of it.
pub(crate) struct SessionSlot {
    pub(crate) session: Session,
    /// Whether it took the place of the others: the peer has shown that it holds the keys too.
    pub(crate) settled: bool,
    /// When it is no longer received from: once another took its place, and before the peer has shown that it holds the
    /// keys.
    pub(crate) until: Option<Time>,
    /// When its handshake began here.
    pub(crate) begun: Time,
    /// Where the peer asked for it, and at which of our addresses. That it knows the keys will show that it is there.
    pub(super) origin: Option<Met>,
    /// The peer's life, as its hello says (P-47).
    pub(crate) life: u64,
    /// Whether the tunnel seals with AES.
    pub(crate) aes: bool,
    /// What the peer is able to do, as its hello says.
    pub(crate) capabilities: Capabilities,
}

/// Where a handshake was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) remote: SocketAddr,
    /// Our address.
    pub(crate) destination: Option<IpAddr>,
    /// The peer's endpoint as it knows it.
    pub(crate) claimed: SocketAddr,
}

pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) key: PublicKey,
    pub(crate) sessions: Vec<SessionSlot>,
    /// The addresses where we asked and it answered.
    pub(crate) answers_at: BTreeSet<IpAddr>,
    pub(crate) last_heard: Time,
    /// Timestamp of the newest IK initiation accepted (P-9).
    pub(super) newest_initiation: u64,
    pub(super) reach_tries: u32,
    /// Handshakes begun since a session was confirmed.
    pub(super) handshakes: u32,
    /// Another key answers where it was: nothing of it is worth keeping once its flows are gone.
    pub(crate) replaced: bool,
}

impl Peer {
    pub(crate) fn new(id: PeerId, key: PublicKey, now: Time) -> Self {
        Self {
            id,
            key,
            sessions: Vec::new(),
            answers_at: BTreeSet::new(),
            last_heard: now,
            newest_initiation: 0,
            reach_tries: 0,
            handshakes: 0,
            replaced: false,
        }
    }

    /// The session to send with: the one that was confirmed last (P-8), or else one that we began, so that the peer can
    /// confirm it.
    pub(crate) fn session(&mut self) -> Option<&mut SessionSlot> {
        let settled = self.sessions.iter().rposition(|slot| slot.settled && slot.until.is_none());
        let at = settled.or_else(|| self.sessions.iter().rposition(|slot| slot.session.is_initiator()))?;
        self.sessions.get_mut(at)
    }

    pub(crate) fn has_session(&self) -> bool {
        self.sessions.iter().any(|slot| slot.settled && slot.until.is_none())
    }

    /// The session that the peer calls by this index of its.
    pub(crate) fn session_to(&self, remote_index: u32) -> Option<&SessionSlot> {
        self.sessions.iter().find(|slot| slot.session.remote_index() == remote_index)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        1 + self.sessions.len() + self.answers_at.len()
    }
}
