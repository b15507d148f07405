//! What another host is told of what failed here.

use std::io;

use rustix::io::Errno;
use whimbrel_kernel::checkpoint::Unmovable;
use whimbrel_protocol::{OpFailed, Refusal};

use super::Failure;
use crate::store::StoreError;

pub(crate) fn failed(refusal: Refusal, why: &dyn std::fmt::Display) -> OpFailed {
    OpFailed { refusal: Some(refusal), sentence: why.to_string() }
}

/// A decision that cannot be written down is none.
#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
pub(crate) fn not_kept(error: StoreError) -> OpFailed {
    failed(Refusal::NotKept, &error)
}

/// What the kernel says where there is no room: for descriptors of this process or of all, memory of sockets, entries
/// of maps.
const NO_ROOM: [Errno; 6] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOSPC, Errno::TOOBIG, Errno::AGAIN];

/// As what another host is told of a failure of the kernel's.
pub(crate) fn refusal_of(errno: Option<i32>, otherwise: Refusal) -> Refusal {
    match errno.map(io::Error::from_raw_os_error).map(|error| error.kind()) {
        Some(io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => Refusal::Taken,
        Some(io::ErrorKind::PermissionDenied) => Refusal::NoRights,
        Some(io::ErrorKind::OutOfMemory) => Refusal::NoRoom,
        _ if errno == Some(Errno::AFNOSUPPORT.raw_os_error()) => Refusal::NoFamily,
        _ if NO_ROOM.iter().any(|full| errno == Some(full.raw_os_error())) => Refusal::NoRoom,
        _ => otherwise,
    }
}

pub(crate) fn unmovable(why: &Unmovable, otherwise: Refusal) -> OpFailed {
    let refusal = match why {
        Unmovable::Kernel(error) => refusal_of(error.raw_os_error(), otherwise),
        _ => Refusal::Unmovable,
    };
    failed(refusal, why)
}

pub(crate) fn refused(error: &whimbrel_kernel::Error, otherwise: Refusal) -> OpFailed {
    failed(refusal_of(error.raw_os_error(), otherwise), error)
}

impl From<Failure> for OpFailed {
    fn from(failure: Failure) -> Self {
        failed(Refusal::NotKept, &failure)
    }
}

/// Why a host does not do its part, for people.
pub(crate) fn sentence(why: Refusal) -> &'static str {
    match why {
        Refusal::NotAllowed => {
            "the other host takes no sockets from this one: the two are of no community, and no grant says otherwise \
             (`whimbrel community`)"
        }
        Refusal::NoRoom => "the other host has no room for it",
        Refusal::NoFamily => "the other host does not have its address family",
        Refusal::NoRights => {
            "the other host may not rebuild sockets: its daemon lacks a right (`whimbrel doctor` there)"
        }
        Refusal::NoOption => {
            "the other host does not set an option that it has, as one that needs a privilege (`privileged_options`): \
             its log says which"
        }
        Refusal::Taken => "its address and port are taken on the other host",
        Refusal::NobodyReceives => {
            "no program on the other host receives it under this name (`whimbrel receive`, or one with libwhimbrel; \
             names of other users than root begin with theirs: `USER/NAME`)"
        }
        Refusal::AcceptorUnreached => "the other host does not answer",
        Refusal::HolderUnreached => "the host that holds its far end was not reached",
        Refusal::BadSnapshot => "the other host could not read it",
        Refusal::NotRestored => "the other host could not rebuild it: its log says why",
        Refusal::NoSuchFlow => "the host at its far end knows no such connection",
        Refusal::OtherSequence | Refusal::Busy => "another move of it is under way",
        Refusal::NotAnnounced | Refusal::NotYours | Refusal::Forged => "the move was not in order",
        Refusal::Expired => "the other host took too long",
        Refusal::NotKept => "what was decided could not be kept",
        Refusal::Cancelled => "the move was called off",
        Refusal::NotWoken => "the other host could not let it go on",
        Refusal::FarEnd => "its far end is on that host itself",
        Refusal::NotLent => "the other host lends no such endpoint",
        Refusal::Stopping => "the other host is about to stop lending",
        Refusal::Unmovable => "it is of a kind, or in a state, that cannot be moved",
        Refusal::Other(_) => "the other host refused for a reason that this one does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_told_as_what_it_is() {
        let told = |errno: Errno| refusal_of(Some(errno.raw_os_error()), Refusal::NotRestored);
        for full in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::AGAIN] {
            assert_eq!(told(full), Refusal::NoRoom, "{full}");
        }
        assert_eq!([Errno::PERM, Errno::ACCESS].map(told), [Refusal::NoRights; 2]);
        assert_eq!([Errno::ADDRINUSE, Errno::ADDRNOTAVAIL].map(told), [Refusal::Taken; 2]);
        assert_eq!(told(Errno::AFNOSUPPORT), Refusal::NoFamily);
        assert_eq!(told(Errno::INVAL), Refusal::NotRestored);
        assert_eq!(refusal_of(None, Refusal::NotKept), Refusal::NotKept);
    }
}
