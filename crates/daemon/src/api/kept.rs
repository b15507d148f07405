//! Sockets that wait for their programs.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::socket_cookie;
use whimbrel_ipc::{Code, Failure, Uuid, WAITS_FOR};
use whimbrel_protocol::Time;

use crate::api::access::User;
use crate::closing::Received;

/// Sockets that wait at a time: a process may have 20,000 descriptors on a usual system, and the daemon needs some. Of
/// these, those that users other than root have exported are three quarters at the most, and each one's half of all:
/// the others are for root, and for what comes from other hosts.
const MOST: usize = 12_000;

/// Digits of a name that suffice: SOCKMAND's programs have room for no more.
const DIGITS: usize = 8;

/// Sockets that wait for a program to ask for them: their programs have given them to the daemon before they ended, or
/// they came from another host where nobody received them. They are closed when they have waited for too long. Who
/// knows a name may have the socket.
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
    socket: Received,
    /// Whose program has exported it; root's where it has come from another host.
    user: User,
    until: Time,
}

impl KeptSockets {
    /// Keeps one, and tells how long.
    ///
    /// # Errors
    /// Where as many as may be are kept already, or another one of this name; the program has its own still.
    pub(crate) fn keep(&mut self, now: Time, uuid: Uuid, socket: Received, user: User) -> Result<Duration, Failure> {
        if !self.sockets.contains_key(&uuid) && !self.has_room_for(user) {
            return Err(Failure::new("too many sockets wait for their programs already").code(Code::TooMany));
        }
        let taken = |_| Failure::new("another socket of this name waits for its program").on(uuid).code(Code::InUse);
        self.insert(now, uuid, socket, user).map_err(taken)?;
        Ok(WAITS_FOR)
    }

    fn has_room_for(&self, user: User) -> bool {
        if user == User::Root {
            return !self.is_full();
        }
        let others = || self.sockets.values().map(|kept| kept.user).filter(|of| *of != User::Root);
        let own = others().filter(|of| *of == user).count();
        !self.is_full() && others().count() < self.most / 4 * 3 && own < self.most / 2
    }

    /// Takes one in that has come from another host, and that nobody else has any more. The caller asks for none while
    /// [all room is taken](Self::is_full); those that are under way then come on top of it.
    ///
    /// # Errors
    /// The socket, where [another one](Self::has_other) waits by this name.
    pub(crate) fn put(&mut self, now: Time, uuid: Uuid, socket: Received) -> Result<(), Received> {
        self.insert(now, uuid, socket, User::Root)
    }

    fn insert(&mut self, now: Time, uuid: Uuid, socket: Received, user: User) -> Result<(), Received> {
        if self.has_other(&uuid, socket.as_fd()) {
            return Err(socket);
        }
        // Whoever has it as well and exports it again does not make it another's.
        let user = self.sockets.get(&uuid).map_or(user, |kept| kept.user);
        self.sockets.insert(uuid, Kept { socket, user, until: now + WAITS_FOR });
        Ok(())
    }

    /// Whether a socket waits by this name that is not this one. Names come from other hosts as well: nobody's word
    /// makes one give way.
    pub(crate) fn has_other(&self, uuid: &Uuid, socket: BorrowedFd<'_>) -> bool {
        let number = |socket: BorrowedFd<'_>| socket_cookie(socket).ok();
        self.sockets.get(uuid).is_some_and(|kept| number(kept.socket.as_fd()) != number(socket))
    }

    /// Whether as many wait as should.
    pub(crate) fn is_full(&self) -> bool {
        self.sockets.len() >= self.most
    }

    /// Gives one to a program, by its name. The beginning of it does for the user whose program has exported it, and
    /// for root: it can be guessed.
    ///
    /// # Errors
    /// Where none is named by this, or several are.
    pub(crate) fn take(&mut self, name: &str, user: User) -> Result<(Uuid, Received), Failure> {
        let is_named = |uuid: &Uuid, of: User| {
            let text = uuid.to_string();
            let by_beginning = user == User::Root || of == user && user != User::Unknown;
            text == name || by_beginning && name.len() == DIGITS && text.starts_with(name)
        };
        let mut named = self.sockets.iter().filter(|(uuid, kept)| is_named(uuid, kept.user)).map(|(uuid, _)| *uuid);
        let found = match (named.next(), named.next()) {
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
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn held(socket: UnixStream) -> Received {
        OwnedFd::from(socket).into()
    }

    fn uuid(first: u8) -> Uuid {
        Uuid::from_random([first; 16])
    }

    #[test]
    fn they_are_taken_once_by_name_or_its_beginning() {
        let mut kept = KeptSockets::default();
        let socket = || held(UnixStream::pair().expect("pair").0);
        let now = Time::default();
        for first in [1, 2, 3] {
            kept.keep(now, uuid(first), socket(), User::Root).expect("kept");
        }
        assert_eq!(kept.take(&uuid(1).to_string(), User::Root).expect("there").0, uuid(1));
        assert_eq!(kept.take(&uuid(1).to_string(), User::Root).expect_err("gone").code, Some(Code::Unknown));
        assert_eq!(kept.take(&uuid(2).to_string()[..8], User::Root).expect("there").0, uuid(2));
        for name in ["", "03", "0303", "030303030", "gggggggg"] {
            assert!(kept.take(name, User::Root).is_err(), "{name}");
        }
        let mut twin = *uuid(3).as_bytes();
        twin[15] ^= 1;
        kept.keep(now, Uuid::from_bytes(twin), socket(), User::Root).expect("kept");
        assert_eq!(kept.take("03030303", User::Root).expect_err("two").what, "this names several sockets");
    }

    #[test]
    fn the_beginning_of_a_name_does_for_whose_the_socket_is() {
        let mut kept = KeptSockets::default();
        let socket = || held(UnixStream::pair().expect("pair").0);
        let (now, [owner, other]) = (Time::default(), [User::Other(1000), User::Other(1001)]);
        kept.keep(now, uuid(1), socket(), owner).expect("kept");
        kept.put(now, uuid(2), socket()).expect("put");
        let short = |first: u8| uuid(first).to_string()[..8].to_owned();
        for who in [other, User::Unknown] {
            assert_eq!(kept.take(&short(1), who).expect_err("another's").code, Some(Code::Unknown));
        }
        assert!(kept.take(&short(2), owner).is_err(), "what came from another host is root's");
        assert_eq!(kept.take(&short(1), owner).expect("its own").0, uuid(1));
        kept.keep(now, uuid(1), socket(), owner).expect("kept");
        assert!(kept.take(&short(1), User::Root).is_ok());
        assert!(kept.take(&uuid(2).to_string(), other).is_ok(), "it knows the name");
    }

    #[test]
    fn no_user_takes_all_the_room() {
        let mut kept = KeptSockets { most: 8, ..KeptSockets::default() };
        let socket = || held(UnixStream::pair().expect("pair").0);
        let now = Time::default();
        let mut fill = |user, numbers: std::ops::Range<u8>| {
            numbers.filter(|number| kept.keep(now, uuid(*number), socket(), user).is_ok()).count()
        };
        assert_eq!(fill(User::Other(1000), 0..8), 4);
        assert_eq!(fill(User::Other(1001), 10..18), 2);
        assert_eq!(fill(User::Other(1002), 20..28), 0);
        assert_eq!(fill(User::Root, 30..38), 2);
        assert!(kept.is_full());
    }

    #[test]
    fn one_that_waits_gives_way_to_no_other_of_its_name() {
        let mut kept = KeptSockets::default();
        let (first, mut far) = UnixStream::pair().expect("pair");
        let (second, _other) = UnixStream::pair().expect("pair");
        let now = Time::default();
        let again = first.try_clone().expect("dup");
        kept.keep(now, uuid(1), held(first), User::Root).expect("kept");
        // As by a host that has called its own so.
        let back = kept.put(now, uuid(1), held(second.try_clone().expect("dup"))).expect_err("another one");
        assert!(socket_cookie(&back) == socket_cookie(&second), "it is not closed either");
        let other = kept.keep(now, uuid(1), held(second), User::Root).expect_err("another one");
        assert_eq!(other.code, Some(Code::InUse));
        let wait = kept.keep(now + Duration::from_secs(1), uuid(1), held(again), User::Root).expect("it is the same");
        assert!(kept.expire(now + wait).is_empty(), "and waits from then on");
        let (_, taken) = kept.take(&uuid(1).to_string(), User::Root).expect("there");
        let mut taken = UnixStream::from(taken.into_inner());
        far.write_all(b"x").expect("written");
        assert_eq!(taken.read(&mut [0]).expect("read"), 1);
    }

    #[test]
    fn they_are_closed_when_nobody_comes() {
        let mut kept = KeptSockets::default();
        let (mut other, socket) = UnixStream::pair().expect("pair");
        let now = Time::default();
        let wait = kept.keep(now, uuid(1), held(socket), User::Root).expect("kept");
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
        let socket = || held(socket.try_clone().expect("dup"));
        // As many as there may be are more than a test may have descriptors.
        let most = 500;
        for number in 0..most {
            kept.put(now, name(number), socket()).expect("put");
        }
        assert!(!kept.is_full());
        kept.most = most;
        assert!(kept.is_full());
        assert_eq!(kept.keep(now, name(most), socket(), User::Root).expect_err("full").code, Some(Code::TooMany));
        assert!(kept.keep(now, name(0), socket(), User::Root).is_ok(), "it has its place already");
        kept.put(now, name(most), socket()).expect("it comes on top");
        assert_eq!(kept.take(&name(most).to_string(), User::Root).expect("it was on its way").0, name(most));
    }
}
