//! A flow of this host, from the moment its socket is seen.

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::op::{FlowEntry, PeerId, Places};

/// How far a flow's introduction is.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Nobody has introduced it. Entry: the socket is seen. Exits: the host behind its remote address turns out to be a
    /// peer and it is old enough (`Introducing`), or the peer's introduction arrives (`Responding`).
    Open,
    /// Our nonce is in the flow. Exits: the peer's nonce arrives (`Echoing`); three tries are over (`Failed`).
    Introducing { peer: PeerId, nonce: u64, since: Time, tries: u32, next: Time },
    /// The peer's nonce arrived and was sent back. Exits: *done* (`Introduced`), a refusal or tries over (`Failed`).
    Echoing { peer: PeerId, nonce: u64, echo: whimbrel_wire::message::Echo, tries: u32, next: Time },
    /// The peer introduces: its nonce arrived, ours is in the flow. Exits: the right echo (`Introduced`), time (`Open`).
    Responding { peer: PeerId, introducer_nonce: u64, nonce: u64, until: Time },
    /// Both ends proved that they sit on it. `again`: nonces, theirs and ours, of an introduction that the peer began
    /// anew, as a daemon does that lost the flow.
    Introduced { entry: FlowEntry, origin: Origin, again: Option<(u64, u64)> },
    /// It can't be moved.
    Failed(&'static str),
}

/// How a flow came to be introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A daemon before this one knew.
    Restored,
    /// We introduced it, with this nonce.
    Introduced(u64),
    /// The peer introduced it, with the first nonce, and we answered with the second: a repeated echo gets the same
    /// answer.
    Answered(u64, u64),
}

impl Stage {
    /// The nonces that this host put into the flow, while the peer may still name them.
    pub(crate) fn own_nonces(&self) -> impl Iterator<Item = u64> + use<> {
        let nonces = match self {
            Self::Introducing { nonce, .. } | Self::Echoing { nonce, .. } | Self::Responding { nonce, .. } => {
                [Some(*nonce), None]
            }
            Self::Introduced { origin, again, .. } => {
                let own = if let Origin::Answered(_, own) = origin { Some(*own) } else { None };
                [own, again.map(|(_, own)| own)]
            }
            Self::Open | Self::Failed(_) => [None, None],
        };
        nonces.into_iter().flatten()
    }
}

/// A flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) stage: Stage,
    pub(crate) opened: Time,
    /// The other end opened it.
    pub(crate) accepted: bool,
    /// Its socket is gone; it is kept for what is still under way.
    pub(crate) closed: bool,
    /// Its socket was seen; else only an introduction of it.
    pub(crate) seen: bool,
    /// How often its introduction met with a move and was begun anew.
    pub(crate) again: u8,
}

impl Flow {
    pub(crate) fn opened(now: Time, accepted: bool) -> Self {
        Self { stage: Stage::Open, opened: now, accepted, closed: false, seen: true, again: 0 }
    }

    /// An introduction of it has arrived; its socket was not seen.
    pub(crate) fn heard_of(now: Time) -> Self {
        Self { seen: false, ..Self::opened(now, true) }
    }

    pub(crate) fn introduced(entry: FlowEntry, now: Time) -> Self {
        Self { stage: Stage::Introduced { entry, origin: Origin::Restored, again: None }, ..Self::opened(now, false) }
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
            Stage::Introducing { peer, .. } | Stage::Echoing { peer, .. } | Stage::Responding { peer, .. } => {
                (FlowState::Introducing, Some(*peer))
            }
            Stage::Introduced { entry, .. } => {
                let state = if places == Some(entry.home) { FlowState::Native } else { FlowState::Moved };
                (state, Some(entry.peer))
            }
            Stage::Failed(reason) => (FlowState::Failed(reason), None),
        };
        FlowView { tuple, state, peer, entry: self.entry().copied(), opened: self.opened, accepted: self.accepted }
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
}
