//! What sockets are called.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use ring::hmac;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use whimbrel_ipc::{Code, Failure, Uuid};

use super::sockets::failed;

/// Names of sockets that came from elsewhere which are known at a time. Nobody tells when such a socket is closed, so
/// the oldest are forgotten; it is called otherwise then, by a name that is as good for all that begins later.
const LEARNED: usize = 65_536;

/// Gives sockets their names. One that was made here has a name that follows from its number (SO_COOKIE, which no other
/// socket has until the machine is booted again) and a secret, so that nothing need be remembered, and every life of
/// the daemon gives it the same.
#[derive(Clone, Debug)]
pub(crate) struct SocketNames {
    secret: hmac::Key,
    boot: String,
    /// Those of sockets that came from other hosts, by their numbers here.
    learned: HashMap<u64, Uuid>,
    /// Their numbers, the oldest first.
    order: VecDeque<u64>,
}

impl SocketNames {
    /// `secret`: this host's, for good.
    pub(crate) fn new(secret: &[u8]) -> Self {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"whimbrel: names of sockets");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        Self { secret, boot, learned: HashMap::new(), order: VecDeque::new() }
    }

    /// The name of a socket that some program has given.
    ///
    /// # Errors
    /// What it is instead, where it is no socket of TCP or UDP over IP.
    pub(crate) fn of(&self, socket: BorrowedFd<'_>) -> Result<Uuid, Failure> {
        let asked = |error| failed("this descriptor is no socket", error);
        let family = sockopt::socket_domain(socket).map_err(asked)?;
        let kind = sockopt::socket_type(socket).map_err(asked)?;
        let protocol = sockopt::socket_protocol(socket).map_err(asked)?;
        let over_ip = [AddressFamily::INET, AddressFamily::INET6].contains(&family);
        let moved = kind == SocketType::STREAM && protocol == Some(ipproto::TCP)
            || kind == SocketType::DGRAM && protocol == Some(ipproto::UDP);
        if !(over_ip && moved) {
            return Err(Failure::new("only sockets of TCP and UDP over IP are moved").code(Code::NotSupported));
        }
        Ok(self.of_cookie(sockopt::socket_cookie(socket).map_err(asked)?))
    }

    /// A socket has come from another host, which called it so.
    pub(crate) fn learn(&mut self, socket: BorrowedFd<'_>, uuid: Uuid) {
        // What has no number is no socket; and who gave one may not have called it anything (RFC 9562 §5.9).
        let Ok(cookie) = sockopt::socket_cookie(socket) else { return };
        if *uuid.as_bytes() == [0; 16] {
            return;
        }
        if self.learned.insert(cookie, uuid).is_none() {
            self.order.push_back(cookie);
        }
        if self.order.len() > LEARNED
            && let Some(oldest) = self.order.pop_front()
        {
            self.learned.remove(&oldest);
        }
    }

    /// The name of the socket with this number (SO_COOKIE).
    pub(crate) fn of_cookie(&self, cookie: u64) -> Uuid {
        if let Some(uuid) = self.learned.get(&cookie) {
            return *uuid;
        }
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(self.boot.as_bytes());
        context.update(&cookie.to_be_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&context.sign().as_ref()[..16]);
        Uuid::from_random(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_name_stays_and_is_nobody_elses() {
        let names = SocketNames::new(&[7; 32]);
        let (one, two) = (UdpSocket::bind("127.0.0.1:0").expect("bind"), UdpSocket::bind("127.0.0.1:0").expect("bind"));
        let uuid = names.of(one.as_fd()).expect("named");
        assert_eq!(names.of(one.try_clone().expect("dup").as_fd()).expect("named"), uuid);
        assert_ne!(names.of(two.as_fd()).expect("named"), uuid);
        assert_eq!(SocketNames::new(&[7; 32]).of(one.as_fd()).expect("named"), uuid);
        assert_ne!(SocketNames::new(&[8; 32]).of(one.as_fd()).expect("named"), uuid);
    }

    #[test]
    fn a_socket_that_came_brings_its_name() {
        let mut names = SocketNames::new(&[7; 32]);
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let uuid = Uuid::from_random([9; 16]);
        let before = names.of(socket.as_fd()).expect("named");
        names.learn(socket.as_fd(), Uuid::from_bytes([0; 16]));
        assert_eq!(names.of(socket.as_fd()).expect("named"), before);
        names.learn(socket.as_fd(), uuid);
        names.learn(socket.as_fd(), uuid);
        assert_eq!(names.of(socket.as_fd()).expect("named"), uuid);
        assert_eq!(names.order.len(), 1);
    }

    #[test]
    fn what_is_no_such_socket_has_no_name() {
        let names = SocketNames::new(&[7; 32]);
        let file = std::fs::File::open("/dev/null").expect("open");
        assert_eq!(names.of(file.as_fd()).expect_err("no socket").code, Some(Code::NotASocket));
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert_eq!(names.of(unix.as_fd()).expect_err("of another family").code, Some(Code::NotSupported));
    }
}
