//! Why a flow stays where it is.

/// Why a flow is not introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another host is named as the owner of the socket at its other end, and cannot be reached.
    NotFound,
    /// The peer's policy (P-59).
    Declined,
    /// Nothing of an introduction has come through.
    Unmarked,
    /// No port is left for its rewritten packets (P-16).
    NoWirePort,
    NoSocket,
    /// At the peer.
    NoRoom,
    /// At this host.
    Full,
    /// To what was said again and again.
    NoAnswer,
    /// The host is not heard at all.
    Silent,
    Moved,
    OtherTransport,
    Refused,
    /// Neither nonces nor numbers name it.
    Stripped,
    /// The other end did not take a late claim (P-204).
    Lost,
    /// Somebody is still at its former far end (P-206).
    StillThere,
    /// Two peers name it late (P-206).
    Contested,
    /// It was introduced, and the peer has forgotten it for good (P-227).
    Forgotten,
}

impl Failure {
    /// What users are told.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::NotFound => "its other end is on another host, which is not to be found",
            Self::Declined => "the peer's policy leaves it alone",
            Self::Unmarked => "what marks its packets is dropped or taken out on the way",
            Self::NoWirePort => "all ports are had that rewritten packets could bear",
            Self::NoSocket => "the peer has no socket for it",
            Self::NoRoom => "the peer has as many connections as may be, in all or with this host's address",
            Self::Full => "there are as many movable connections as may be",
            Self::NoAnswer => "the other host does not answer, or the two keep moving meanwhile",
            Self::Silent => "the other host does not answer",
            Self::Moved => "one of the hosts moved meanwhile",
            Self::OtherTransport => "the other host takes it for another kind of connection",
            Self::Refused => "the other host refused",
            Self::Stripped => {
                "TCP options are stripped on the way, and its sequence numbers fit no connection at the other end"
            }
            Self::Lost => "an end moved before it was introduced, and the other end cannot tell whose it is",
            Self::StillThere => "a peer names it that has left, and its other end is still where it was",
            Self::Forgotten => "the other host has forgotten it: `whimbrel clean` was run there",
            Self::Contested => "two peers name it that have left, and neither of them gets it",
        }
    }
}
