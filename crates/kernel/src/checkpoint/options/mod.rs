//! The options that programs set on sockets: which go along, which keep a socket where it is, and which are nothing of
//! the socket's.

mod table;

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use whimbrel_wire::Transport;
use whimbrel_wire::snapshot::option::MOST_PRIORITY;
use whimbrel_wire::snapshot::{Body, Family, OptionKind, Snapshot, SocketOption};

use super::{Kind, SO_BUF_LOCK, SO_RCVBUF, Unmovable};
use crate::error::Error;
use crate::privilege;
use crate::sockopt::{self, Name};
use table::ROWS;

/// How the kernel has the value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An int, in the snapshot's unit.
    Int,
    /// An int that is of interest where it is 0: the kernel itself changes the others.
    Zero,
    /// `struct linger`: seconds where it is on.
    Linger,
    /// `struct timeval`: microseconds; zero is none.
    Time,
    /// A buffer's size: the kernel gives the double of what it was told, and a bit of SO_BUF_LOCK says whether it was.
    Buffer(i32),
    /// An unsigned number of 64 bits; all ones is none.
    Long,
    /// TCP_WINDOW_CLAMP, in which the kernel has an own idea of a connection.
    Clamp,
    /// The name of a congestion control.
    Control,
}

/// How it is found out whether a socket has what it cannot be moved with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Find {
    /// The first int of it is not 0.
    NonZero,
    /// One of two ints is not 0.
    Pair,
    /// There is something to be read.
    Bytes,
    /// It can be read at all.
    Answers,
    /// A filter of either kind is attached: one of BPF cannot be read (`sk_get_filter`).
    Filter,
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
    V6Datagrams,
}

/// When it is set on a socket that is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before it is bound.
    Early,
    /// When it is connected and its queues are full; for streams, which are in repair mode until they wake, that is
    /// before.
    Late,
}

/// What becomes of an option when its socket moves.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Carried {
        kind: OptionKind,
        shape: Shape,
        who: Who,
        when: When,
    },
    /// A socket that has it stays.
    Refused {
        find: Find,
        who: Who,
        why: &'static str,
    },
    /// Nothing of it is the socket's, or nobody can tell; why that is so.
    NoState(#[cfg_attr(not(test), expect(dead_code, reason = "for who reads the table"))] &'static str),
}

struct Row {
    name: Name,
    fate: Fate,
}

const fn carried(kind: OptionKind, shape: Shape, who: Who, when: When) -> Fate {
    Fate::Carried { kind, shape, who, when }
}

const fn refused(find: Find, who: Who, why: &'static str) -> Fate {
    Fate::Refused { find, who, why }
}

const fn no_state(why: &'static str) -> Fate {
    Fate::NoState(why)
}

/// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK.
const SEND_LOCK: i32 = 1;
const RECEIVE_LOCK: i32 = 2;

/// Congestion controls in the order of their numbers in snapshots, which begin with 1.
const CONTROLS: [&str; 11] =
    ["reno", "cubic", "bbr", "dctcp", "vegas", "westwood", "htcp", "hybla", "illinois", "scalable", "yeah"];
/// One that has no number.
const OTHER_CONTROL: u64 = u64::MAX;

impl Who {
    fn has(self, kind: Kind, family: Family) -> bool {
        match self {
            Self::All => true,
            Self::V6 => family == Family::Ipv6,
            Self::Streams => kind != Kind::Datagram,
            Self::Listeners => kind == Kind::Listening,
            Self::Datagrams => kind == Kind::Datagram,
            Self::V6Datagrams => kind == Kind::Datagram && family == Family::Ipv6,
        }
    }
}

/// An option that goes along.
#[derive(Clone, Copy)]
struct Carried {
    name: Name,
    kind: OptionKind,
    shape: Shape,
    who: Who,
    when: When,
}

/// All that do, in the order of the table.
fn all_carried() -> impl Iterator<Item = Carried> {
    ROWS.iter().filter_map(|row| match row.fate {
        Fate::Carried { kind, shape, who, when } => Some(Carried { name: row.name, kind, shape, who, when }),
        Fate::Refused { .. } | Fate::NoState(_) => None,
    })
}

impl Carried {
    /// The one of a kind: a priority has two, by its value.
    fn of(kind: OptionKind) -> Option<Self> {
        let kind = if kind == OptionKind::HighPriority { OptionKind::Priority } else { kind };
        all_carried().find(|carried| carried.kind == kind)
    }

    /// The value in the snapshot's unit; `None` where the socket does not have it, or it is off. `locks`: its
    /// SO_BUF_LOCK.
    fn get(&self, fd: BorrowedFd<'_>, kind: Kind, locks: i32) -> Option<u64> {
        let int = |name| sockopt::get_int(fd, name).ok().map(|value| u64::from(value.cast_unsigned()));
        match self.shape {
            Shape::Int => int(self.name),
            Shape::Zero => int(self.name).filter(|value| *value == 0),
            Shape::Linger => {
                let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
                sockopt::get_into(fd, self.name, &mut linger).ok()?;
                (linger.l_onoff != 0).then(|| u64::from(linger.l_linger.cast_unsigned()))
            }
            Shape::Time => {
                let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
                sockopt::get_into(fd, self.name, &mut time).ok()?;
                let seconds = u64::try_from(time.tv_sec).ok()?;
                seconds.checked_mul(1_000_000)?.checked_add(u64::try_from(time.tv_usec).ok()?)
            }
            Shape::Buffer(lock) => {
                if locks & lock == 0 {
                    return None;
                }
                int(self.name).map(|doubled| doubled / 2)
            }
            Shape::Long => {
                let mut value = 0u64;
                (sockopt::get_into(fd, self.name, &mut value).ok()? == size_of::<u64>()).then_some(value)
            }
            Shape::Clamp => {
                let clamp = int(self.name).filter(|clamp| *clamp > 0)?;
                // The kernel's own follows the buffer (`tcp_init_buffer_space`, `tcp_rcv_space_adjust`).
                let is_chosen = kind == Kind::Listening || clamp < int(SO_RCVBUF)? / 4;
                is_chosen.then_some(clamp)
            }
            Shape::Control => {
                let mut name = [0u8; 16];
                let length = sockopt::get_into(fd, self.name, &mut name).ok()?;
                let name = name[..length].split(|byte| *byte == 0).next()?;
                let at = CONTROLS.iter().position(|control| control.as_bytes() == name);
                Some(at.map_or(OTHER_CONTROL, |at| at as u64 + 1))
            }
        }
    }

    fn set(&self, fd: BorrowedFd<'_>, value: u64) -> Result<(), Error> {
        let beyond = || Error::Argument { object: format!("{} {value}", self.name.text), detail: "is too large" };
        let int = || u32::try_from(value).map(u32::cast_signed).map_err(|_| beyond());
        match self.shape {
            Shape::Int | Shape::Zero | Shape::Clamp | Shape::Buffer(_) => sockopt::set(fd, self.name, &int()?),
            Shape::Linger => sockopt::set(fd, self.name, &libc::linger { l_onoff: 1, l_linger: int()? }),
            Shape::Time => {
                let seconds = libc::time_t::try_from(value / 1_000_000).map_err(|_| beyond())?;
                let time = libc::timeval { tv_sec: seconds, tv_usec: (value % 1_000_000) as libc::suseconds_t };
                sockopt::set(fd, self.name, &time)
            }
            Shape::Long => sockopt::set(fd, self.name, &value),
            Shape::Control => {
                let at = value.checked_sub(1).and_then(|at| usize::try_from(at).ok());
                let name = at.and_then(|at| CONTROLS.get(at)).ok_or_else(beyond)?;
                // With a zero at its end: the kernel takes more than its name for nothing.
                let mut bytes = [0u8; 16];
                bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
                sockopt::set(fd, self.name, &bytes)
            }
        }
    }

    /// Its kind with a value.
    fn kind_with(&self, value: u64) -> OptionKind {
        if self.kind == OptionKind::Priority && value > MOST_PRIORITY { OptionKind::HighPriority } else { self.kind }
    }
}

impl Find {
    fn is_set(self, fd: BorrowedFd<'_>, name: Name) -> bool {
        match self {
            Self::NonZero => sockopt::get_int(fd, name).is_ok_and(|value| value != 0),
            Self::Pair => {
                let mut pair = [0u32; 2];
                sockopt::get_into(fd, name, &mut pair).is_ok() && pair != [0, 0]
            }
            Self::Bytes => {
                let mut bytes = [0u8; 256];
                sockopt::get_into(fd, name, &mut bytes).is_ok_and(|length| length > 0 && bytes != [0; 256])
            }
            Self::Answers => {
                let mut bytes = [0u8; 256];
                sockopt::get_into(fd, name, &mut bytes).is_ok()
            }
            Self::Filter => match sockopt::get_into(fd, name, &mut [0u8; 0]) {
                Ok(instructions) => instructions > 0,
                Err(error) => error.raw_os_error() == Some(libc::EACCES),
            },
        }
    }
}

/// Refuses a socket that has something which cannot go along.
pub(super) fn check(fd: BorrowedFd<'_>, kind: Kind, family: Family) -> Result<(), Unmovable> {
    for row in ROWS {
        match row.fate {
            Fate::Refused { find, who, why } if who.has(kind, family) && find.is_set(fd, row.name) => {
                return Err(Unmovable::Kind(why));
            }
            Fate::Refused { .. } | Fate::Carried { .. } | Fate::NoState(_) => {}
        }
    }
    Ok(())
}

/// What is refused here and CRIU rebuilds.
const OF_CRIU: [&str; 3] = ["SO_DONTROUTE", "SO_ATTACH_FILTER", "SO_BINDTOIFINDEX"];
/// What CRIU leaves behind that keeps something away from its program.
const GUARDS: [(OptionKind, &str); 2] = [
    (
        OptionKind::MinimumTimeToLive,
        "a socket with a least time to live (IP_MINTTL) cannot be moved with its process: CRIU leaves that behind",
    ),
    (
        OptionKind::V6MinimumHopCount,
        "a socket with a least hop limit (IPV6_MINHOPCOUNT) cannot be moved with its process: CRIU leaves that behind",
    ),
];

/// Refuses a socket that is to be rebuilt by CRIU and would lack something that its program relies on. Other options
/// that CRIU does not know are lost.
pub(super) fn check_for_criu(fd: BorrowedFd<'_>, kind: Kind, family: Family) -> Result<(), Unmovable> {
    for row in ROWS {
        match row.fate {
            Fate::Refused { find, who, why }
                if who.has(kind, family) && !OF_CRIU.contains(&row.name.text) && find.is_set(fd, row.name) =>
            {
                return Err(Unmovable::Kind(why));
            }
            Fate::Carried { kind: of, who, .. } if who.has(kind, family) => {
                let guard = GUARDS.iter().find(|(guard, _)| *guard == of);
                if let Some((_, why)) = guard.filter(|_| Find::NonZero.is_set(fd, row.name)) {
                    return Err(Unmovable::Kind(why));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Why a host does not take a socket with options of these numbers, if it does not.
///
/// # Errors
/// [`Error::Call`]: a socket to look at could not be made.
pub fn why_not_set(
    numbers: &[u16],
    transport: Transport,
    family: Family,
    rights: Rights,
) -> Result<Option<String>, Error> {
    if numbers.is_empty() {
        return Ok(None);
    }
    let domain = if family == Family::Ipv4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let shape = if transport == Transport::Tcp { SocketType::STREAM } else { SocketType::DGRAM };
    let fresh = socket_with(domain, shape, SocketFlags::CLOEXEC, None);
    let fresh = fresh.map_err(|error| Error::call("socket", "one to compare with", error))?;
    for number in numbers {
        let Some(carried) = OptionKind::from_number(*number).and_then(Carried::of) else {
            return Ok(Some(format!("the socket has an option of number {number}, which this host does not know")));
        };
        let text = carried.name.text;
        if !rights.all && OptionKind::from_number(*number).is_some_and(OptionKind::is_privileged) {
            return Ok(Some(format!(
                "the socket has {text}, which needs a privilege that this host does not use for others' sockets (`privileged_options`)"
            )));
        }
        let known = sockopt::get_into(fresh.as_fd(), carried.name, &mut [0u8; 16]);
        if known.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP))) {
            return Ok(Some(format!("the socket has {text}, which this host's kernel does not know")));
        }
    }
    Ok(None)
}

/// What sockets have whose programs have set nothing, on this host: what differs is what a program has set. The values
/// are those of the calling thread's network namespace; looking at them costs as much as a few sockets, so it is done
/// once for many.
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
                let has = |who: Who| who.has(kind, family) || kind == Kind::Stream && who.has(Kind::Listening, family);
                // Nobody has chosen the sizes of its buffers.
                let get = |row: Carried| has(row.who).then(|| row.get(fresh.as_fd(), kind, 0)).flatten();
                values[usize::from(family == Family::Ipv6)][usize::from(kind == Kind::Datagram)] =
                    all_carried().map(get).collect();
            }
        }
        Ok(Self { values })
    }

    fn of(&self, family: Family, kind: Kind) -> &[Option<u64>] {
        &self.values[usize::from(family == Family::Ipv6)][usize::from(kind == Kind::Datagram)]
    }
}

/// What the program has set. `before`: those that are not as it has set them, since the socket rests.
pub(super) fn dump(
    fd: BorrowedFd<'_>,
    kind: Kind,
    family: Family,
    defaults: &Defaults,
    before: &[(OptionKind, u64)],
) -> Result<Vec<SocketOption>, Unmovable> {
    // Kernels that do not tell (before 5.14) grow the buffers as they please.
    let locks = sockopt::get_int(fd, SO_BUF_LOCK).unwrap_or(0);
    let mut differing = Vec::new();
    for (row, default) in all_carried().zip(defaults.of(family, kind)).filter(|(row, _)| row.who.has(kind, family)) {
        let before = before.iter().find(|(kind, _)| *kind == row.kind).map(|(_, value)| *value);
        let value = before.or_else(|| row.get(fd, kind, locks));
        let Some(value) = value.filter(|value| *default != Some(*value)) else { continue };
        if row.shape == Shape::Control && value == OTHER_CONTROL {
            return Err(Unmovable::Kind(
                "a listener whose congestion control (TCP_CONGESTION) has no number cannot be moved",
            ));
        }
        differing.push(SocketOption { kind: row.kind_with(value), value });
    }
    differing.sort_unstable_by_key(|option| option.kind);
    Ok(differing)
}

/// Those of a connection that wait until it wakes.
pub(super) fn of_waking(snapshot: &Snapshot) -> Vec<SocketOption> {
    snapshot.options.iter().filter(|option| option.kind.waits_until_awake()).copied().collect()
}

/// Sets options that have waited.
pub(super) fn restore_awake(fd: BorrowedFd<'_>, options: &[SocketOption]) -> Result<(), Error> {
    options.iter().try_for_each(|option| Carried::of(option.kind).map_or(Ok(()), |row| row.set(fd, option.value)))
}

/// SO_BUF_LOCK of a socket whose program has chosen the sizes among these options, and no others.
pub(super) fn locks(options: &[SocketOption]) -> i32 {
    let set = |kind| options.iter().any(|option| option.kind == kind);
    let send = if set(OptionKind::SendBuffer) { SEND_LOCK } else { 0 };
    send | if set(OptionKind::ReceiveBuffer) { RECEIVE_LOCK } else { 0 }
}

/// Sets what has to be set before a socket is bound.
pub(super) fn restore_early(fd: BorrowedFd<'_>, snapshot: &Snapshot, rights: Rights) -> Result<(), Unmovable> {
    restore(fd, snapshot, When::Early, rights)
}

/// Sets all else.
pub(super) fn restore_late(fd: BorrowedFd<'_>, snapshot: &Snapshot, rights: Rights) -> Result<(), Unmovable> {
    restore(fd, snapshot, When::Late, rights)
}

fn restore(fd: BorrowedFd<'_>, snapshot: &Snapshot, when: When, rights: Rights) -> Result<(), Unmovable> {
    let kind = match snapshot.body {
        Body::Stream(_) => Kind::Stream,
        Body::Listening { .. } => Kind::Listening,
        Body::Datagram(_) => Kind::Datagram,
    };
    let find = |option: &SocketOption| {
        let row = Carried::of(option.kind)?;
        (row.when == when && row.who.has(kind, snapshot.family)).then_some((row, *option))
    };
    let waits = |option: &&SocketOption| kind == Kind::Stream && option.kind.waits_until_awake();
    let mut found: Vec<_> = snapshot.options.iter().filter(|option| !waits(option)).filter_map(find).collect();
    if let Some((row, _)) = found.iter().find(|(_, option)| option.kind.is_privileged()).filter(|_| !rights.all) {
        let refused = Error::call("setsockopt", row.name.text, Errno::PERM);
        return Err(refused.into());
    }
    // IP_TOS sets a priority of its own (ip(7)).
    found.sort_by_key(|(row, _)| row.kind == OptionKind::Priority);
    let set = || {
        found.iter().try_for_each(|(row, option)| match row.set(fd, option.value) {
            // What the kernel does not have, or not for everybody, stays what its administrator chose, as of a
            // connection.
            Err(error) if row.shape == Shape::Control && error.raw_os_error() != Some(libc::EINVAL) => Ok(()),
            result => result,
        })
    };
    if found.is_empty() || rights.all {
        set()?
    } else {
        privilege::without_network(set)?
    }
    Ok(())
}

/// What is set on sockets that are rebuilt for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Also what Linux keeps to those who have CAP_NET_ADMIN or CAP_NET_RAW.
    pub all: bool,
}

#[cfg(test)]
mod tests;
