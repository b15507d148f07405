//! Who is at the other end of a UNIX socket.

use std::os::fd::BorrowedFd;

use crate::error::Error;
use crate::sockopt;

/// Who connected, or made both ends (SO_PEERCRED, unix(7)), as the calling process's namespaces number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process then; 0 where that is in a PID namespace which is none of this one's.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Asks the kernel.
///
/// # Errors
/// [`Error::Call`]: it is no UNIX socket, or not connected.
pub fn credentials(socket: BorrowedFd<'_>) -> Result<Credentials, Error> {
    let option = sockopt::Name { level: libc::SOL_SOCKET, name: libc::SO_PEERCRED, text: "SO_PEERCRED" };
    // struct ucred
    let mut found = [0u32; 3];
    sockopt::get_into(socket, option, &mut found).map_err(|error| Error::call("getsockopt", option.text, error))?;
    let [pid, uid, gid] = found;
    Ok(Credentials { pid, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_made_a_pair_is_at_its_other_end() {
        let (one, _other) = UnixStream::pair().expect("pair");
        let found = credentials(one.as_fd()).expect("a UNIX socket");
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(found, Credentials { pid: std::process::id(), uid, gid });
    }

    #[test]
    fn nobody_is_at_the_other_end_of_another_socket() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        assert!(credentials(socket.as_fd()).map_or(true, |found| found.pid == 0 && found.uid == u32::MAX));
    }
}
