//! What a node knows of one peer: who it is, and its sessions.

use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::{PublicKey, Session};
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::base::op::PeerId;

/// Addresses where a peer has answered that are remembered (P-215).
const ANSWERS_MOST: usize = 32;

/// An association with a peer, as one slot of it.
pub(crate) struct SessionSlot {
    pub(super) session: Session,
    /// Whether it took the place of the others: the peer has shown that it holds the keys too.
    pub(super) settled: bool,
    /// When it is no longer received from: once another took its place, and before the peer has shown that it holds the
    /// keys.
    pub(super) until: Option<Time>,
    /// When its handshake began here.
    pub(super) begun: Time,
    /// Where the peer asked for it, and at which of our addresses. That it knows the keys will show that it is there.
    pub(super) origin: Option<Met>,
    /// The peer's life, as its hello says (P-47).
    pub(super) life: u64,
    /// Whether the tunnel seals with AES.
    pub(super) aes: bool,
    /// What the peer is able to do, as its hello says.
    pub(super) capabilities: Capabilities,
}

impl SessionSlot {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The index by which this host knows it.
    pub(crate) fn local_index(&self) -> u32 {
        self.session.local_index()
    }

    /// The index by which the peer knows it.
    pub(crate) fn remote_index(&self) -> u32 {
        self.session.remote_index()
    }

    /// When its handshake began here.
    pub(crate) fn begun(&self) -> Time {
        self.begun
    }

    /// Whether the tunnel seals with AES.
    pub(crate) fn seals_with_aes(&self) -> bool {
        self.aes
    }

    /// What the peer is able to do, as its hello says.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

/// Where a handshake was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub remote: SocketAddr,
    /// Our address.
    pub destination: Option<IpAddr>,
    /// The peer's endpoint as it knows it.
    pub claimed: SocketAddr,
}

pub(crate) struct Peer {
    pub(super) id: PeerId,
    pub(super) key: PublicKey,
    pub(super) sessions: Vec<SessionSlot>,
    /// The addresses where we asked and it answered, that of the last answer first.
    pub(super) answers_at: Vec<IpAddr>,
    pub(super) last_heard: Time,
    /// Timestamp of the newest IK initiation accepted (P-9).
    pub(super) newest_initiation: u64,
    pub(super) reach_tries: u32,
    /// Handshakes begun since a session was confirmed.
    pub(super) handshakes: u32,
    /// Another key answers where it was: nothing of it is worth keeping once its flows are gone.
    pub(super) replaced: bool,
}

impl Peer {
    pub(crate) fn new(id: PeerId, key: PublicKey, now: Time) -> Self {
        Self {
            id,
            key,
            sessions: Vec::new(),
            answers_at: Vec::new(),
            last_heard: now,
            newest_initiation: 0,
            reach_tries: 0,
            handshakes: 0,
            replaced: false,
        }
    }

    pub(crate) fn id(&self) -> PeerId {
        self.id
    }

    pub(crate) fn key(&self) -> PublicKey {
        self.key
    }

    /// When it was last heard.
    pub(crate) fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Whether it has answered at an address that was asked.
    pub(crate) fn has_answered_at(&self, address: &IpAddr) -> bool {
        self.answers_at.contains(address)
    }

    /// The addresses where we asked and it answered, that of the last answer first.
    pub(crate) fn answers_at(&self) -> &[IpAddr] {
        &self.answers_at
    }

    /// It has answered at an address.
    pub(super) fn record_answer_at(&mut self, address: IpAddr) {
        self.answers_at.retain(|at| *at != address);
        self.answers_at.insert(0, address);
        self.answers_at.truncate(ANSWERS_MOST);
    }

    /// Another key answers at an address where it was.
    pub(crate) fn replace_at(&mut self, address: &IpAddr) {
        self.answers_at.retain(|at| at != address);
        self.replaced = true;
    }

    /// Whether another key answers where it was, so that nothing of it is worth keeping once its flows are gone.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// Its sessions, be they confirmed or not.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &SessionSlot> {
        self.sessions.iter()
    }

    /// The session to send with: the one that was confirmed last (P-8), or else one that we began, so that the peer can
    /// confirm it.
    pub(crate) fn session(&self) -> Option<&SessionSlot> {
        self.confirmed().or_else(|| self.sessions.iter().rfind(|slot| slot.session.is_initiator()))
    }

    /// The same, to be sent with.
    pub(crate) fn session_mut(&mut self) -> Option<&mut SessionSlot> {
        let index = self.session()?.local_index();
        self.sessions.iter_mut().find(|slot| slot.local_index() == index)
    }

    /// This session is sent with from now on. The others are received from until then.
    pub(super) fn use_session(&mut self, slot: SessionSlot, until: Time) {
        self.sessions.iter_mut().filter(|former| former.settled).for_each(|former| {
            former.until.get_or_insert(until);
        });
        self.sessions.push(SessionSlot { until: None, ..slot });
    }

    /// Whether it is received from in a session that another took the place of: it may send in that one still.
    pub(crate) fn has_former(&self) -> bool {
        self.sessions.iter().any(|slot| slot.settled && slot.until.is_some())
    }

    pub(crate) fn has_session(&self) -> bool {
        self.confirmed().is_some()
    }

    /// The session that was confirmed last.
    pub(crate) fn confirmed(&self) -> Option<&SessionSlot> {
        self.sessions.iter().rfind(|slot| slot.settled && slot.until.is_none())
    }

    /// The session that has this index of ours.
    pub(crate) fn session_of(&self, index: u32) -> Option<&SessionSlot> {
        self.sessions.iter().find(|slot| slot.local_index() == index)
    }

    /// The session that the peer calls by this index of its.
    pub(crate) fn session_to(&self, remote_index: u32) -> Option<&SessionSlot> {
        self.sessions.iter().find(|slot| slot.remote_index() == remote_index)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        1 + self.sessions.len() + self.answers_at.len()
    }
}
