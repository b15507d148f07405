//! What a node knows of one peer: its sessions, where it is, where we are towards it, and how its flows are carried.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{PublicKey, Session};
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::{PeerId, SavedPeer};
use crate::path::challenge::Candidate;
use crate::path::shown::Shown;

/// Round trip assumed before one was measured.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(200);

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
    /// The confirmed endpoint.
    pub(crate) remote: SocketAddr,
    /// Where its last handshake came from, if that is not the confirmed endpoint: it was there, and has not said that
    /// its flows are.
    pub(crate) met: Option<SocketAddr>,
    /// Our address towards it.
    pub(crate) source: Option<IpAddr>,
    /// The attachment that it belongs to; `None`: we cannot reach the peer.
    pub(crate) attachment: Option<Attachment>,
    /// Our address where it takes us to be, while we are elsewhere and it has not answered.
    pub(crate) left: Option<IpAddr>,
    /// Other addresses that it told.
    pub(crate) locators: Vec<IpAddr>,
    pub(crate) candidate: Option<Candidate>,
    /// Our own address and port as the peer sees them.
    pub(crate) observed: Option<SocketAddr>,
    /// Token of the last unsolicited challenge, for the round trip and the observed address.
    pub(crate) check: Option<(u64, Time)>,
    /// Where it went.
    pub(crate) checked: Option<IpAddr>,
    /// How often it was repeated.
    pub(crate) check_tries: u32,
    /// Addresses of ours that it has been told, and those that go along with the last check.
    pub(crate) told: Vec<IpAddr>,
    pub(crate) telling: Vec<IpAddr>,
    pub(crate) round_trip: Option<Duration>,
    /// The addresses where we asked and it answered.
    pub(crate) answers_at: BTreeSet<IpAddr>,
    pub(crate) last_heard: Time,
    /// Timestamp of the newest IK initiation accepted (P-9).
    pub(super) newest_initiation: u64,
    pub(super) reach_tries: u32,
    /// Handshakes begun since a session was confirmed.
    pub(super) handshakes: u32,
    /// It was taken over from a daemon before this one, and where we are was not looked at since.
    pub(crate) restored: bool,
    /// It has not shown since then that it is where it said.
    pub(crate) unproven: bool,
    /// Where else it has received something.
    pub(crate) shown: Shown,
    /// Another key answers where it was: nothing of it is worth keeping once its flows are gone.
    pub(crate) replaced: bool,
    /// The address that was chosen by hand, as long as this host has it.
    pub(crate) preferred: Option<Attachment>,
    /// The attachment of the other family that leads to it, tried where nobody answers by the one that was chosen.
    pub(crate) otherwise: Option<Attachment>,
    /// The one that it was left for since nobody answered.
    pub(crate) unanswered: Option<Attachment>,
}

impl Peer {
    pub(crate) fn new(id: PeerId, key: PublicKey, remote: SocketAddr, now: Time) -> Self {
        Self {
            id,
            key,
            sessions: Vec::new(),
            remote,
            met: None,
            source: None,
            attachment: None,
            left: None,
            locators: Vec::new(),
            candidate: None,
            observed: None,
            check: None,
            checked: None,
            check_tries: 0,
            told: Vec::new(),
            telling: Vec::new(),
            round_trip: None,
            answers_at: BTreeSet::new(),
            last_heard: now,
            newest_initiation: 0,
            reach_tries: 0,
            handshakes: 0,
            restored: false,
            unproven: false,
            shown: Shown::default(),
            replaced: false,
            preferred: None,
            otherwise: None,
            unanswered: None,
        }
    }

    pub(crate) fn restored(saved: &SavedPeer, now: Time) -> Self {
        let mut peer = Self::new(saved.id, saved.key, saved.remote, now);
        peer.restored = true;
        peer.unproven = true;
        peer.source = saved.source;
        peer.locators.clone_from(&saved.locators);
        peer.observed = saved.observed;
        peer
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

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or(INITIAL_ROUND_TRIP)
    }

    /// RFC 6298's smoothing.
    pub(crate) fn sample_round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => sample,
            Some(smoothed) => (smoothed * 7 + sample) / 8,
        });
    }

    /// The delay before try number `tries` + 1 of a request (P-12).
    pub(crate) fn repeat_after(&self, tries: u32) -> Duration {
        let first = (self.round_trip() * 3 / 2).max(Duration::from_millis(50));
        (first * 2u32.pow(tries.saturating_sub(1).min(8))).min(Duration::from_secs(2))
    }

    /// Where flows are led: the endpoint that was announced last, whether or not it is confirmed.
    pub(crate) fn heading(&self) -> SocketAddr {
        match &self.candidate {
            Some(candidate) if candidate.announced => candidate.remote,
            _ => self.remote,
        }
    }

    /// Whether its flows may come by another path at any moment: it has told of one that is not confirmed yet, and need
    /// not wait with what it sends itself (P-21, P-38).
    pub(crate) fn may_come_anew(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.awaited.is_some() && !candidate.doubted)
    }

    /// Whether the peer has shown that it is at an endpoint. What it told, or announced once, shows nothing.
    pub(crate) fn has_shown(&self, endpoint: SocketAddr) -> bool {
        self.remote == endpoint || self.met == Some(endpoint)
    }

    /// The session that the peer calls by this index of its.
    pub(crate) fn session_to(&self, remote_index: u32) -> Option<&SessionSlot> {
        self.sessions.iter().find(|slot| slot.session.remote_index() == remote_index)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        1 + self.sessions.len() + self.answers_at.len() + self.locators.len()
    }
}
