//! What is known of one flow of this host, from the moment its socket is seen.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Echo;

use crate::Time;
use crate::base::op::{FlowEntry, PeerId, Places};
use crate::base::pace::KEPT;
use crate::flow::failure::Failure;
use crate::flow::verdict::{Rule, Verdict};

/// How far a flow's introduction is.
#[derive(Clone, Debug, Default)]
pub(crate) enum Stage {
    /// Nobody has introduced it. Entry: the socket is seen. Exits: the host behind its remote address turns out to be a
    /// peer and it is old enough (`Introducing`), or an introduction of a peer's is answered ([`Responding`]) and comes
    /// back in its session (`Introduced`).
    #[default]
    Open,
    /// Our nonce is in the flow. Exits: the peer's nonce arrives (`Echoing`); three tries are over (`Failed`).
    Introducing {
        peer: PeerId,
        nonce: u64,
        /// Where both ends were when it went into the flow (P-202).
        home: Places,
        since: Time,
        tries: u32,
        next: Time,
    },
    /// The peer's nonce arrived and was sent back. Exits: *done* (`Introduced`), a refusal or tries over (`Failed`).
    Echoing {
        peer: PeerId,
        nonce: u64,
        echo: Echo,
        /// The peer's index of the session that the echo is said in, and the flow named in (P-132).
        session: u32,
        tries: u32,
        next: Time,
        /// How often our nonce was said again, since the peer's came again, which introduces as well.
        answers: u32,
    },
    /// Our nonce did not arrive, so the flow is named by its sequence numbers (P-50). Exits: *paired* (`Introduced`), a
    /// refusal or tries over (`Failed`).
    Pairing {
        peer: PeerId,
        nonce: u64,
        home: Places,
        /// This host has left the address that it is from (P-204).
        late: bool,
        wire_port: u16,
        numbers: Option<(u32, u32)>,
        /// The peer's index of the session that it is claimed in, and named in (P-132), once it was.
        session: Option<u32>,
        since: Time,
        tries: u32,
        next: Time,
    },
    /// Both ends proved that they sit on it.
    Introduced { entry: FlowEntry, origin: Origin },
    /// It can't be moved.
    Failed(Failure),
    /// The caller's policy leaves it alone, by the rule of this number (P-59).
    Excluded(u32),
}

/// An introduction of a peer's that was answered on the flow and has not come back in the session. Whatever the flow's
/// stage is meanwhile stays: anybody with a session may begin one, and only the peer that sits on the flow ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responding {
    pub(super) introducer_nonce: u64,
    /// Ours.
    pub(super) nonce: u64,
    /// Where both ends were when ours went into the flow (P-202).
    pub(super) home: Places,
    pub(super) begun: Time,
    /// How often the same nonce was answered.
    pub(super) answers: u32,
}

/// How a flow came to be introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A daemon before this one knew.
    Restored,
    /// We introduced it.
    Introduced,
    /// The peer introduced it with its nonce, and we answered with ours: a repeated echo gets the same answer.
    Answered { introducer_nonce: u64, nonce: u64 },
    /// The peer introduced it by these numbers, and calls that by its nonce.
    Paired {
        introducer_nonce: u64,
        numbers: (u32, u32),
        /// After it had left (P-204).
        late: bool,
    },
}

impl Stage {
    /// The nonce that this host put into the flow, while the peer may still name it.
    pub(crate) fn own_nonce(&self) -> Option<u64> {
        match self {
            Self::Introducing { nonce, .. }
            | Self::Echoing { nonce, .. }
            | Self::Pairing { nonce, .. }
            | Self::Introduced { origin: Origin::Answered { nonce, .. }, .. } => Some(*nonce),
            Self::Introduced { .. } | Self::Open | Self::Failed(_) | Self::Excluded(_) => None,
        }
    }
}

/// A flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub(super) stage: Stage,
    pub(super) opened: Time,
    /// The other end opened it.
    pub(super) accepted: bool,
    /// It is introduced, or was, or was open before anybody could see it: it is not introduced late (P-205).
    pub(super) settled: bool,
    /// Its socket is gone; it is kept for what is still under way.
    pub(super) closed: bool,
    /// How often its introduction met with a move and was begun anew.
    pub(super) again: u8,
    /// How often the peer had no socket for it when it was introduced.
    pub(super) refusals: u8,
    /// Whom the host at its remote address has named as the owner of the socket at its other end (P-87).
    pub(super) referred: Option<PublicKey>,
    /// How often that was done, of this connection.
    pub(super) referrals: u8,
    /// That one has said in its session that our nonce has arrived there.
    pub(super) seen: bool,
    /// A nonce that came in the flow as its answer, before it has said so.
    pub(super) early: Option<u64>,
    /// The peer that it is being introduced to has said that its end is a host's behind it (P-123).
    pub(super) beyond: bool,
    /// What its other end said of itself as it was opened.
    pub(super) greeting: Option<Greeting>,
    /// The user who has opened it, where the caller has said.
    pub(super) user: Option<u32>,
    /// What the caller's policy says of it; `None` while that is awaited.
    pub(super) verdict: Option<Verdict>,
    /// Sections of the user's file about networks whose conditions it meets, by their lines; `None`: nobody has said.
    pub(super) met: Option<Vec<u32>>,
    /// It was passed over when it was its turn, since its verdict is awaited.
    pub(super) passed_over: bool,
    /// Its socket is not connected: it ends then unless it is in use, or is proven anew (P-223).
    pub(super) lease: Option<Time>,
    /// Whose introduction has begun it, where its socket is not connected.
    pub(super) introducer: Option<PeerId>,
    /// It has moved, and was not in use when that was last asked.
    pub(super) idle: bool,
}

impl Flow {
    pub(crate) fn opened(now: Time, accepted: bool) -> Self {
        Self { opened: now, accepted, verdict: Some(Verdict::default()), ..Self::default() }
    }

    pub(crate) fn introduced(entry: FlowEntry, now: Time) -> Self {
        let lease = entry.unconnected.then_some(now + KEPT);
        let stage = Stage::Introduced { entry, origin: Origin::Restored };
        Self { stage, lease, settled: true, ..Self::opened(now, entry.unconnected && !entry.begun) }
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Whether its socket takes what anybody sends.
    pub(crate) fn is_unconnected(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether the other end opened it.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// Whether its socket is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The sections about networks whose conditions it meets, by their lines.
    pub(crate) fn met(&self) -> &[u32] {
        self.met.as_deref().unwrap_or_default()
    }

    /// What is wanted for it with the peer of this key, where the caller has said.
    pub(crate) fn rule(&self, key: &PublicKey) -> Option<Rule> {
        self.verdict.as_ref().map(|verdict| verdict.with(key))
    }

    /// As it is when nobody has introduced it.
    pub(crate) fn reopened(self) -> Self {
        Self { stage: Stage::Open, refusals: 0, idle: false, ..self }
    }

    /// As it would be if nobody ever had.
    pub(crate) fn forgotten(self) -> Self {
        Self { again: 0, beyond: false, ..self.reopened() }
    }

    pub(crate) fn entry(&self) -> Option<&FlowEntry> {
        match &self.stage {
            Stage::Introduced { entry, .. } => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn view(&self, tuple: FlowTuple, places: Option<Places>) -> FlowView {
        let (state, peer) = match &self.stage {
            Stage::Open => (FlowState::Unknown, None),
            Stage::Introducing { peer, .. } | Stage::Echoing { peer, .. } | Stage::Pairing { peer, .. } => {
                (FlowState::Introducing, Some(*peer))
            }
            Stage::Introduced { entry, .. } => {
                let state =
                    if places == Some(entry.home) && entry.side == 0 { FlowState::Native } else { FlowState::Moved };
                (state, Some(entry.peer))
            }
            Stage::Failed(reason) => (FlowState::Failed(reason.sentence()), None),
            Stage::Excluded(rule) => (FlowState::Excluded(*rule), None),
        };
        let (opened, accepted, unconnected) = (self.opened, self.accepted, self.is_unconnected());
        let (entry, greeting) = (self.entry().copied(), self.greeting);
        FlowView { tuple, state, peer, entry, opened, accepted, unconnected, greeting }
    }
}

/// How far a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// The other end is not known to run Whimbrel, or the flow is young.
    Unknown,
    /// Its introduction is under way.
    Introducing,
    /// It can be moved; nothing touches it.
    Native,
    /// The peer's binding carries it.
    Moved,
    /// It can't be moved.
    Failed(&'static str),
    /// The caller's rule of this number leaves it alone.
    Excluded(u32),
}

/// What the other end of a connection has said in the handshake of TCP: that it runs Whimbrel, and between which
/// endpoints the handshake was sent. Whoever is on the path can say so (P-242).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Something translates this host's endpoint.
    pub near_translated: bool,
    /// Something translates the endpoint of the other end.
    pub far_translated: bool,
}

/// A flow as `whimbrel connections` shows it.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// As this host has it.
    pub tuple: FlowTuple,
    /// How far it is.
    pub state: FlowState,
    /// With whom.
    pub peer: Option<PeerId>,
    /// What the data plane knows, once it is introduced.
    pub entry: Option<FlowEntry>,
    /// When its socket was first seen.
    pub opened: Time,
    /// Whether the other end opened it.
    pub accepted: bool,
    /// Whether its socket takes what anybody sends.
    pub unconnected: bool,
    /// What its other end said of itself as it was opened.
    pub greeting: Option<Greeting>,
}

impl FlowView {
    /// Whether it is one to tell of: of what a socket that is not connected has sent nothing may have come, as of a
    /// question that was answered long ago.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        !self.unconnected || self.entry.is_some()
    }
}
