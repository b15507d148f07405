//! The options that programs set on sockets: one table of what they are called here and in snapshots.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use whimbrel_wire::snapshot::{Body, Family, OptionKind, Snapshot, SocketOption};

use super::stream::Due;
use super::{Kind, SO_BUF_LOCK, Unmovable};
use crate::error::Error;
use crate::sockopt::{self, Name};

/// How the kernel has the value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An int, in the snapshot's unit.
    Int,
    /// `struct linger`: seconds where it is on.
    Linger,
    /// `struct timeval`: microseconds; zero is none.
    Time,
    /// A buffer's size: the kernel gives the double of what it was told, and a bit of SO_BUF_LOCK says whether it was.
    Buffer(i32),
    /// An unsigned number of 64 bits; all ones is none.
    Long,
}

/// Which sockets it has an effect on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    All,
    V6,
    /// Connections and listeners.
    Streams,
    Listeners,
    Datagrams,
}

/// When it is set on a socket that is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before it is bound.
    Early,
    /// When it is connected and its queues are full; for streams, which are in repair mode until they wake, that is before.
    Late,
}

struct Row {
    kind: OptionKind,
    name: Name,
    shape: Shape,
    who: Who,
    when: When,
}

const fn row(
    kind: OptionKind,
    level: libc::c_int,
    name: libc::c_int,
    text: &'static str,
    shape: Shape,
    who: Who,
    when: When,
) -> Row {
    Row { kind, name: Name { level, name, text }, shape, who, when }
}

use OptionKind as O;
use Shape::{Buffer, Int, Linger, Long, Time};
use When::{Early, Late};
use Who::{All, Datagrams, Listeners, Streams, V6};
use libc::{IPPROTO_TCP as TCP, IPPROTO_UDP as UDP, SOL_IP as IP, SOL_IPV6 as IPV6, SOL_SOCKET as SOCKET};

/// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK.
const SEND_LOCK: i32 = 1;
const RECEIVE_LOCK: i32 = 2;

/// In the order of their numbers in snapshots.
#[rustfmt::skip]
const ROWS: [Row; 37] = [
    row(O::ReuseAddress, SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", Int, All, Early),
    row(O::ReusePort, SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", Int, All, Early),
    row(O::KeepAlive, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", Int, All, Late),
    row(O::UrgentInline, SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", Int, All, Late),
    row(O::Broadcast, SOCKET, libc::SO_BROADCAST, "SO_BROADCAST", Int, Datagrams, Late),
    row(O::Linger, SOCKET, libc::SO_LINGER, "SO_LINGER", Linger, All, Late),
    row(O::SendBuffer, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", Buffer(SEND_LOCK), All, Late),
    row(O::ReceiveBuffer, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", Buffer(RECEIVE_LOCK), All, Late),
    row(O::ReceiveLowWater, SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", Int, All, Late),
    row(O::ReceiveTimeout, SOCKET, libc::SO_RCVTIMEO, "SO_RCVTIMEO", Time, All, Late),
    row(O::SendTimeout, SOCKET, libc::SO_SNDTIMEO, "SO_SNDTIMEO", Time, All, Late),
    row(O::Priority, SOCKET, libc::SO_PRIORITY, "SO_PRIORITY", Int, All, Late),
    row(O::Mark, SOCKET, libc::SO_MARK, "SO_MARK", Int, All, Early),
    row(O::MaxPacingRate, SOCKET, libc::SO_MAX_PACING_RATE, "SO_MAX_PACING_RATE", Long, All, Late),
    row(O::TypeOfService, IP, libc::IP_TOS, "IP_TOS", Int, All, Late),
    row(O::TimeToLive, IP, libc::IP_TTL, "IP_TTL", Int, All, Late),
    row(O::ReceiveErrors, IP, libc::IP_RECVERR, "IP_RECVERR", Int, All, Late),
    row(O::PacketInfo, IP, libc::IP_PKTINFO, "IP_PKTINFO", Int, Datagrams, Late),
    row(O::ReceiveTypeOfService, IP, libc::IP_RECVTOS, "IP_RECVTOS", Int, Datagrams, Late),
    row(O::MtuDiscovery, IP, libc::IP_MTU_DISCOVER, "IP_MTU_DISCOVER", Int, All, Late),
    row(O::V6Only, IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", Int, V6, Early),
    row(O::TrafficClass, IPV6, libc::IPV6_TCLASS, "IPV6_TCLASS", Int, V6, Late),
    row(O::HopLimit, IPV6, libc::IPV6_UNICAST_HOPS, "IPV6_UNICAST_HOPS", Int, V6, Late),
    row(O::V6ReceiveErrors, IPV6, libc::IPV6_RECVERR, "IPV6_RECVERR", Int, V6, Late),
    row(O::V6PacketInfo, IPV6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO", Int, V6, Late),
    row(O::NoDelay, TCP, libc::TCP_NODELAY, "TCP_NODELAY", Int, Streams, Late),
    row(O::Cork, TCP, libc::TCP_CORK, "TCP_CORK", Int, Streams, Late),
    row(O::KeepIdle, TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", Int, Streams, Late),
    row(O::KeepInterval, TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL", Int, Streams, Late),
    row(O::KeepCount, TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT", Int, Streams, Late),
    row(O::UserTimeout, TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", Int, Streams, Late),
    row(O::FinWait2Timeout, TCP, libc::TCP_LINGER2, "TCP_LINGER2", Int, Streams, Late),
    row(O::DeferAccept, TCP, libc::TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT", Int, Listeners, Late),
    row(O::UnsentLowWater, TCP, 25, "TCP_NOTSENT_LOWAT", Int, Streams, Late),
    row(O::ThinLinearTimeouts, TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, "TCP_THIN_LINEAR_TIMEOUTS", Int, Streams, Late),
    row(O::UdpSegment, UDP, libc::UDP_SEGMENT, "UDP_SEGMENT", Int, Datagrams, Late),
    row(O::UdpGro, UDP, libc::UDP_GRO, "UDP_GRO", Int, Datagrams, Late),
];

impl Row {
    fn is_of(&self, kind: Kind, family: Family) -> bool {
        match self.who {
            All => true,
            V6 => family == Family::Ipv6,
            Streams => kind != Kind::Datagram,
            Listeners => kind == Kind::Listening,
            Datagrams => kind == Kind::Datagram,
        }
    }

    /// The value in the snapshot's unit; `None` where the socket does not have it, or it is off. `locks`: its SO_BUF_LOCK.
    fn get(&self, fd: BorrowedFd<'_>, locks: i32) -> Option<u64> {
        let int = |name| sockopt::get_int(fd, name).ok().map(|value| u64::from(value.cast_unsigned()));
        match self.shape {
            Int => int(self.name),
            Linger => {
                let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
                sockopt::get_into(fd, self.name, &mut linger).ok()?;
                (linger.l_onoff != 0).then(|| u64::from(linger.l_linger.cast_unsigned()))
            }
            Time => {
                let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
                sockopt::get_into(fd, self.name, &mut time).ok()?;
                let seconds = u64::try_from(time.tv_sec).ok()?;
                seconds.checked_mul(1_000_000)?.checked_add(u64::try_from(time.tv_usec).ok()?)
            }
            Buffer(lock) => {
                if locks & lock == 0 {
                    return None;
                }
                int(self.name).map(|doubled| doubled / 2)
            }
            Long => {
                let mut value = 0u64;
                (sockopt::get_into(fd, self.name, &mut value).ok()? == size_of::<u64>()).then_some(value)
            }
        }
    }

    fn set(&self, fd: BorrowedFd<'_>, value: u64) -> Result<(), Error> {
        let beyond = || Error::Argument { object: format!("{} {value}", self.name.text), detail: "is too large" };
        let int = || u32::try_from(value).map(u32::cast_signed).map_err(|_| beyond());
        match self.shape {
            Int | Buffer(_) => sockopt::set(fd, self.name, &int()?),
            Linger => sockopt::set(fd, self.name, &libc::linger { l_onoff: 1, l_linger: int()? }),
            Time => {
                let seconds = libc::time_t::try_from(value / 1_000_000).map_err(|_| beyond())?;
                let time = libc::timeval { tv_sec: seconds, tv_usec: (value % 1_000_000) as libc::suseconds_t };
                sockopt::set(fd, self.name, &time)
            }
            Long => sockopt::set(fd, self.name, &value),
        }
    }
}

/// What sockets have whose programs have set nothing, on this host: what differs is what a program has set. The values are those of
/// the calling thread's network namespace; looking at them costs as much as a few sockets, so it is done once for many.
#[derive(Debug)]
pub struct Defaults {
    /// By family and kind, in the order of the rows.
    values: [[Vec<Option<u64>>; 2]; 2],
}

impl Defaults {
    /// Makes sockets to look at.
    ///
    /// # Errors
    /// [`Error::Call`]: the kernel refused one, other than for want of IPv6.
    pub fn look() -> Result<Self, Error> {
        let mut values: [[Vec<Option<u64>>; 2]; 2] = Default::default();
        for (family, number) in [(Family::Ipv4, AddressFamily::INET), (Family::Ipv6, AddressFamily::INET6)] {
            for (kind, shape) in [(Kind::Stream, SocketType::STREAM), (Kind::Datagram, SocketType::DGRAM)] {
                let fresh = match socket_with(number, shape, SocketFlags::CLOEXEC, None) {
                    Ok(fresh) => fresh,
                    Err(Errno::AFNOSUPPORT) => continue,
                    Err(error) => return Err(Error::call("socket", "one to compare with", error)),
                };
                // A stream stands for listeners as well.
                let has =
                    |row: &Row| row.is_of(kind, family) || kind == Kind::Stream && row.is_of(Kind::Listening, family);
                // Nobody has chosen the sizes of its buffers.
                let get = |row: &Row| has(row).then(|| row.get(fresh.as_fd(), 0)).flatten();
                values[usize::from(family == Family::Ipv6)][usize::from(kind == Kind::Datagram)] =
                    ROWS.iter().map(get).collect();
            }
        }
        Ok(Self { values })
    }

    fn of(&self, family: Family, kind: Kind) -> &[Option<u64>] {
        &self.values[usize::from(family == Family::Ipv6)][usize::from(kind == Kind::Datagram)]
    }
}

/// What the program has set. `due` has what repair mode has changed.
pub(super) fn dump(
    fd: BorrowedFd<'_>,
    kind: Kind,
    family: Family,
    defaults: &Defaults,
    due: &Due,
) -> Vec<SocketOption> {
    // Kernels that do not tell (before 5.14) grow the buffers as they please.
    let locks = sockopt::get_int(fd, SO_BUF_LOCK).unwrap_or(0);
    let rows = ROWS.iter().zip(defaults.of(family, kind)).filter(|(row, _)| row.is_of(kind, family));
    let differing = rows.filter_map(|(row, default)| {
        let value = match row.kind {
            O::ReuseAddress if kind == Kind::Stream => due.reuse(),
            _ => row.get(fd, locks)?,
        };
        (*default != Some(value)).then_some(SocketOption { kind: row.kind, value })
    });
    differing.collect()
}

/// The sizes of buffers that the program has chosen.
pub(super) fn sizes(snapshot: &Snapshot) -> Vec<SocketOption> {
    snapshot.options.iter().filter(|option| is_size(option.kind)).copied().collect()
}

fn is_size(kind: OptionKind) -> bool {
    matches!(kind, OptionKind::SendBuffer | OptionKind::ReceiveBuffer)
}

/// Has the buffers have these sizes, whatever is in them.
pub(super) fn restore_sizes(fd: BorrowedFd<'_>, sizes: &[SocketOption]) -> Result<(), Error> {
    let row = |kind| ROWS.iter().find(|row| row.kind == kind);
    sizes.iter().try_for_each(|size| row(size.kind).map_or(Ok(()), |row| row.set(fd, size.value)))
}

/// SO_BUF_LOCK of a socket whose program has chosen these sizes, and no others.
pub(super) fn locks(sizes: &[SocketOption]) -> i32 {
    let set = |kind| sizes.iter().any(|option| option.kind == kind);
    let send = if set(OptionKind::SendBuffer) { SEND_LOCK } else { 0 };
    send | if set(OptionKind::ReceiveBuffer) { RECEIVE_LOCK } else { 0 }
}

/// Sets what has to be set before a socket is bound.
pub(super) fn restore_early(fd: BorrowedFd<'_>, snapshot: &Snapshot) -> Result<(), Unmovable> {
    restore(fd, snapshot, Early)
}

/// Sets all else.
pub(super) fn restore_late(fd: BorrowedFd<'_>, snapshot: &Snapshot) -> Result<(), Unmovable> {
    restore(fd, snapshot, Late)
}

fn restore(fd: BorrowedFd<'_>, snapshot: &Snapshot, when: When) -> Result<(), Unmovable> {
    let kind = match snapshot.body {
        Body::Stream(_) => Kind::Stream,
        Body::Listening { .. } => Kind::Listening,
        Body::Datagram(_) => Kind::Datagram,
    };
    // Those of a stream's buffers wait until it wakes.
    let waits = |option: &&SocketOption| kind == Kind::Stream && is_size(option.kind);
    for option in snapshot.options.iter().filter(|option| !waits(option)) {
        let row = ROWS.iter().find(|row| row.kind == option.kind);
        if let Some(row) = row.filter(|row| row.when == when && row.is_of(kind, snapshot.family)) {
            row.set(fd, option.value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_format_has_a_row_in_its_order() {
        let kinds: Vec<_> = ROWS.iter().map(|row| row.kind).collect();
        assert_eq!(kinds, OptionKind::ALL);
    }
}
