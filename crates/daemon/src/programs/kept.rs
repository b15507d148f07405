//! Sockets that wait for their programs.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::socket_cookie;
use whimbrel_ipc::{Code, Failure, Uuid, WAITS_FOR};
use whimbrel_protocol::Time;

/// Sockets that wait at a time: a process may have 20,000 descriptors on a usual system, and the daemon needs some.
const MOST: usize = 12_000;

/// Digits of a name that suffice: SOCKMAND's programs have room for no more.
const DIGITS: usize = 8;

/// Sockets that wait for a program to ask for them: their programs have given them to the daemon before they ended, or they came
/// from another host where nobody received them. They are closed when they have waited for too long.
#[derive(Debug)]
pub(crate) struct KeptSockets {
    sockets: HashMap<Uuid, Kept>,
    most: usize,
}

impl Default for KeptSockets {
    fn default() -> Self {
        Self { sockets: HashMap::new(), most: MOST }
    }
}

#[derive(Debug)]
struct Kept {
    socket: OwnedFd,
    until: Time,
}

impl KeptSockets {
    /// Keeps one, and tells how long.
    ///
    /// # Errors
    /// Where as many as may be are kept already, or another one of this name; the program has its own still.
    pub(crate) fn keep(&mut self, now: Time, uuid: Uuid, socket: OwnedFd) -> Result<Duration, Failure> {
        if self.is_full() && !self.sockets.contains_key(&uuid) {
            return Err(Failure::new("too many sockets wait for their programs already").code(Code::TooMany));
        }
        let taken = |_| Failure::new("another socket of this name waits for its program").on(uuid).code(Code::InUse);
        self.put(now, uuid, socket).map_err(taken)?;
        Ok(WAITS_FOR)
    }

    /// Takes one in that has come from another host, and that nobody else has any more. The caller asks for none while
    /// [all room is taken](Self::is_full); those that are under way then come on top of it.
    ///
    /// # Errors
    /// The socket, where [another one](Self::has_other) waits by this name.
    pub(crate) fn put(&mut self, now: Time, uuid: Uuid, socket: OwnedFd) -> Result<(), OwnedFd> {
        if self.has_other(&uuid, socket.as_fd()) {
            return Err(socket);
        }
        self.sockets.insert(uuid, Kept { socket, until: now + WAITS_FOR });
        Ok(())
    }

    /// Whether a socket waits by this name that is not this one. Names come from other hosts as well: nobody's word makes one give way.
    pub(crate) fn has_other(&self, uuid: &Uuid, socket: BorrowedFd<'_>) -> bool {
        let number = |socket: BorrowedFd<'_>| socket_cookie(socket).ok();
        self.sockets.get(uuid).is_some_and(|kept| number(kept.socket.as_fd()) != number(socket))
    }

    /// Whether as many wait as should.
    pub(crate) fn is_full(&self) -> bool {
        self.sockets.len() >= self.most
    }

    /// Gives one to a program, by its name or the beginning of it.
    ///
    /// # Errors
    /// Where none is named by this, or several are.
    pub(crate) fn take(&mut self, name: &str) -> Result<(Uuid, OwnedFd), Failure> {
        let mut named = self.sockets.keys().filter(|uuid| {
            let text = uuid.to_string();
            text == name || name.len() == DIGITS && text.starts_with(name)
        });
        let found = match (named.next().copied(), named.next()) {
            (Some(uuid), None) => self.sockets.remove_entry(&uuid),
            (_, Some(_)) => return Err(Failure::new("this names several sockets").code(Code::Unknown)),
            (None, _) => None,
        };
        let (uuid, kept) = found.ok_or_else(|| {
            Failure::new("no socket of this name waits for its program here")
                .code(Code::Unknown)
                .hint("It may not have come yet, or was taken already.")
        })?;
        Ok((uuid, kept.socket))
    }

    /// One is elsewhere.
    pub(crate) fn forget(&mut self, uuid: &Uuid) {
        self.sockets.remove(uuid);
    }

    /// Closes those that have waited for too long, and tells which.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<Uuid> {
        self.sockets.extract_if(|_, kept| kept.until <= now).map(|(uuid, _)| uuid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn uuid(first: u8) -> Uuid {
        Uuid::from_random([first; 16])
    }

    #[test]
    fn they_are_taken_once_by_name_or_its_beginning() {
        let mut kept = KeptSockets::default();
        let socket = || OwnedFd::from(UnixStream::pair().expect("pair").0);
        let now = Time::default();
        for first in [1, 2, 3] {
            kept.keep(now, uuid(first), socket()).expect("kept");
        }
        assert_eq!(kept.take(&uuid(1).to_string()).expect("there").0, uuid(1));
        assert_eq!(kept.take(&uuid(1).to_string()).expect_err("gone").code, Some(Code::Unknown));
        assert_eq!(kept.take(&uuid(2).to_string()[..8]).expect("there").0, uuid(2));
        for name in ["", "03", "0303", "030303030", "gggggggg"] {
            assert!(kept.take(name).is_err(), "{name}");
        }
        let mut twin = *uuid(3).as_bytes();
        twin[15] ^= 1;
        kept.keep(now, Uuid::from_bytes(twin), socket()).expect("kept");
        assert_eq!(kept.take("03030303").expect_err("two").what, "this names several sockets");
    }

    #[test]
    fn one_that_waits_gives_way_to_no_other_of_its_name() {
        let mut kept = KeptSockets::default();
        let (first, mut far) = UnixStream::pair().expect("pair");
        let (second, _other) = UnixStream::pair().expect("pair");
        let now = Time::default();
        let again = first.try_clone().expect("dup");
        kept.keep(now, uuid(1), first.into()).expect("kept");
        // As by a host that has called its own so.
        let back = kept.put(now, uuid(1), second.try_clone().expect("dup").into()).expect_err("another one");
        assert!(socket_cookie(&back) == socket_cookie(&second), "it is not closed either");
        assert_eq!(kept.keep(now, uuid(1), second.into()).expect_err("another one").code, Some(Code::InUse));
        let wait = kept.keep(now + Duration::from_secs(1), uuid(1), again.into()).expect("it is the same");
        assert!(kept.expire(now + wait).is_empty(), "and waits from then on");
        let (_, mut taken) =
            kept.take(&uuid(1).to_string()).map(|(uuid, fd)| (uuid, UnixStream::from(fd))).expect("there");
        far.write_all(b"x").expect("written");
        assert_eq!(taken.read(&mut [0]).expect("read"), 1);
    }

    #[test]
    fn they_are_closed_when_nobody_comes() {
        let mut kept = KeptSockets::default();
        let (mut other, socket) = UnixStream::pair().expect("pair");
        let now = Time::default();
        let wait = kept.keep(now, uuid(1), socket.into()).expect("kept");
        assert!(kept.expire(now).is_empty());
        assert_eq!(kept.expire(now + wait), [uuid(1)]);
        assert_eq!(other.read(&mut [0]).expect("read"), 0);
    }

    #[test]
    fn there_is_a_bound_that_loses_none() {
        let mut kept = KeptSockets::default();
        let now = Time::default();
        let name = |number: usize| Uuid::from_random((number as u128).to_be_bytes());
        let (socket, _other) = UnixStream::pair().expect("pair");
        let socket = || OwnedFd::from(socket.try_clone().expect("dup"));
        // As many as there may be are more than a test may have descriptors.
        let most = 500;
        for number in 0..most {
            kept.put(now, name(number), socket()).expect("put");
        }
        assert!(!kept.is_full());
        kept.most = most;
        assert!(kept.is_full());
        assert_eq!(kept.keep(now, name(most), socket()).expect_err("full").code, Some(Code::TooMany));
        assert!(kept.keep(now, name(0), socket()).is_ok(), "it has its place already");
        kept.put(now, name(most), socket()).expect("it comes on top");
        assert_eq!(kept.take(&name(most).to_string()).expect("it was on its way").0, name(most));
    }
}
