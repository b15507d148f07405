//! What happens to a community.

use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::CommunityKey;

/// Something about a community that people want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommunityEvent {
    /// This host belongs to a community from now on.
    Joined {
        /// Which.
        community: CommunityKey,
        /// Who has let it in.
        by: PublicKey,
    },
    /// A code that was used at this host came to nothing.
    JoinFailed {
        /// Its number.
        number: u16,
        /// Why.
        why: JoinFailure,
    },
    /// A host belongs to the community from now on, or is something else in it.
    HostJoined {
        /// Its key.
        host: PublicKey,
        /// What people call it.
        name: String,
        /// Whether it may invite and revoke.
        steward: bool,
    },
    /// A host belongs to it no more.
    HostRevoked {
        /// Its key.
        host: PublicKey,
        /// What people called it.
        name: String,
    },
    /// This host belongs to it no more.
    Revoked,
    /// Somebody guessed at a code of this host's, which is good for nothing now.
    WrongCode {
        /// Its number.
        number: u16,
        /// Who.
        host: PublicKey,
        /// From where.
        remote: SocketAddr,
    },
    /// A host has shown a code, and was not let in: another of the community has the name that it wants.
    NameTaken {
        /// The number of the code, which is good for nothing now.
        number: u16,
        /// Who.
        host: PublicKey,
        /// The name.
        name: String,
    },
    /// A stranger has shown a code: it may be given a connection, once.
    Granted {
        /// The number of the grant.
        number: u16,
        /// Who.
        host: PublicKey,
        /// Which, as this host's socket has it.
        flow: FlowTuple,
    },
    /// A code has proven whose key answers at an address for which another is remembered: that one stays until it is
    /// forgotten (P-148).
    OtherKeyKnown {
        /// The address.
        address: IpAddr,
        /// The key that is remembered.
        known: PublicKey,
        /// The key that the code has proven.
        proven: PublicKey,
    },
    /// This host may receive a connection of a stranger's, once.
    MayReceive {
        /// The number of the grant at this host.
        number: u16,
        /// Whose.
        host: PublicKey,
    },
}

/// Why a code came to nothing at the host that used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinFailure {
    /// Nobody answered.
    #[error("nobody there answered; the code is as good as before")]
    Unanswered,
    /// A host has answered, and then fell silent, before it was shown anything of the code.
    #[error("a host there answered, and then no more; the code is as good as before")]
    Silent,
    /// A host has answered that it was busy, to the end.
    #[error("the host there was busy with others that use codes; the code is as good as before")]
    Busy,
    /// A host has seen the proof of the code, and then fell silent.
    #[error(
        "a host there answered, was shown that this one has the code, and then said nothing more: the code is used up, whether or not \
         it was let in there"
    )]
    BrokenOff,
    /// The other end has no open code of that number.
    #[error("no code of this number is open there: it was used, its ten minutes are over, or it is another host's")]
    NoSuchCode,
    /// The other end says that the code is wrong.
    #[error("the code is wrong")]
    WrongCode,
    /// The other end has not shown that it knows the code: it is another host, or somebody is in between.
    #[error("the host that answered does not know the code")]
    NotProven,
    /// The code is for something else.
    #[error("the code is for something else")]
    OtherPurpose,
    /// The community is full.
    #[error("the community has as many hosts as it may have")]
    Full,
    /// Another host of the community has the name.
    #[error("another host of that community is called as this one is; `--name` gives it another name")]
    NameTaken,
}

impl JoinFailure {
    /// Whether the code may be used again as if nothing had been.
    #[must_use]
    pub fn leaves_code(&self) -> bool {
        matches!(self, Self::Unanswered | Self::Silent | Self::Busy)
    }
}
