//! Making what other users are to own.

use crate::client::Credentials;
use crate::error::Error;

/// A user and a group that sockets are made for.
///
/// The kernel reckons a socket to whom its maker is for file systems (setfsuid(2)), for its life: which sockets may
/// share a port with it (SO_REUSEPORT), and which rules of firewalls and routing are about what it sends (`skuid`,
/// `uidrange`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Owner {
    /// Whose what belongs to no user is (`overflowuid`, proc_sys_kernel(5)).
    pub const NOBODY: Self = Self { uid: 65_534, gid: 65_534 };

    /// Runs something whose sockets are this owner's. Meanwhile the calling thread has no rights over files but the
    /// owner's; others that it has stay.
    ///
    /// # Errors
    /// [`Error::Call`]: CAP_SETUID or CAP_SETGID is lacking, or there is no such user in this user namespace. Nothing
    /// was run.
    pub fn make<T>(self, make: impl FnOnce() -> T) -> Result<T, Error> {
        let before = current();
        if before == self {
            return Ok(make());
        }
        let _back = Back { before, dumpable: rustix::process::dumpable_behavior().ok() };
        become_owner(self);
        if current() != self {
            let object = format!("user {} and group {}", self.uid, self.gid);
            return Err(Error::call("setfsuid", object, rustix::io::Errno::PERM));
        }
        Ok(make())
    }
}

impl From<Credentials> for Owner {
    fn from(Credentials { uid, gid, .. }: Credentials) -> Self {
        Self { uid, gid }
    }
}

/// Makes the calling thread who it was.
struct Back {
    before: Owner,
    /// Whether this process may be looked into, which the kernel sets anew as users change (PR_SET_DUMPABLE).
    dumpable: Option<rustix::process::DumpableBehavior>,
}

impl Drop for Back {
    fn drop(&mut self) {
        become_owner(self.before);
        self.dumpable.into_iter().for_each(keep_dumpable);
        // A thread that went on without its rights would fail in places that reckon with them.
        if current() != self.before {
            eprintln!("setfsuid: cannot become who this process was");
            std::process::abort();
        }
    }
}

fn keep_dumpable(dumpable: rustix::process::DumpableBehavior) {
    // It may have been what only the kernel sets, and is that again then.
    let _ = rustix::process::set_dumpable_behavior(dumpable);
}

fn become_owner(owner: Owner) {
    let dumpable = rustix::process::dumpable_behavior().ok();
    // SAFETY: these change the credentials of the calling thread alone, and no memory.
    unsafe {
        libc::setfsgid(owner.gid);
        libc::setfsuid(owner.uid);
    }
    dumpable.into_iter().for_each(keep_dumpable);
}

/// Who the calling thread is.
fn current() -> Owner {
    // SAFETY: no user and no group has this number, so that nothing is changed: it is asked who they are (setfsuid(2)).
    let (uid, gid) = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
    Owner { uid: uid.cast_unsigned(), gid: gid.cast_unsigned() }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use rustix::process::DumpableBehavior;

    use super::*;

    fn owner_of(socket: &UdpSocket) -> Owner {
        let stat = rustix::fs::fstat(socket.as_fd()).unwrap();
        Owner { uid: stat.st_uid, gid: stat.st_gid }
    }

    #[test]
    fn who_makes_something_for_itself_needs_no_right() {
        let own = current();
        let made = own.make(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(owner_of(&made), own);
    }

    #[test]
    #[ignore = "needs root"]
    fn what_is_made_for_others_is_theirs() {
        let member = Owner { uid: 54_321, gid: 54_322 };
        let own = current();
        // Not so that it could be looked into meanwhile.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
        let dumpable = || rustix::process::dumpable_behavior().unwrap();
        let (made, meanwhile) = member.make(|| (UdpSocket::bind("127.0.0.1:0").unwrap(), dumpable())).unwrap();
        assert_eq!((owner_of(&made), current()), (member, own));
        assert_eq!([meanwhile, dumpable()], [DumpableBehavior::NotDumpable; 2]);
        let port = made.local_addr().unwrap();
        let mut sockets = crate::sock_diag::SockDiag::open().unwrap();
        assert!(sockets.unconnected().unwrap().iter().any(|found| found.address == port));
        // Also where it comes to nothing half-way.
        let failed = std::panic::catch_unwind(|| member.make(|| panic!("half-way")));
        assert!(failed.is_err() && current() == own);
    }
}
