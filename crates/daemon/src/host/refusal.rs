//! What another host is told of what failed here.

use std::io;

use rustix::io::Errno;
use whimbrel_kernel::frozen::Unmovable;
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

/// What the kernel says where there is no room: for descriptors of this process or of all, memory of sockets, entries of maps.
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
