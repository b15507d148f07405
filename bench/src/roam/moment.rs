//! When a host's new address could be used: the kernel's own word, by rtnetlink(7), with the time of its arrival.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use whimbrel_lab::{Host, MonoTime};

use crate::Result;

/// Groups of `include/uapi/linux/rtnetlink.h`: IPV4_IFADDR, IPV4_ROUTE, and those of IPv6.
const GROUPS: [u32; 2] = [5, 7];
const GROUPS_V6: [u32; 2] = [9, 11];
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
/// Offsets in `struct nlmsghdr` and, behind it, `struct rtmsg`.
const HEADER: usize = 16;
const DESTINATION_LENGTH: usize = HEADER + 1;
const TABLE: usize = HEADER + 4;
const ROUTE_TYPE: usize = HEADER + 7;
const TABLE_MAIN: u8 = 254;
const RTN_UNICAST: u8 = 1;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An address appeared.
    Address,
    /// A route to everywhere, or to a subnet, appeared in the main table.
    Route {
        /// It leads everywhere.
        default: bool,
    },
}

/// Notes the changes of a host's addresses and routes in one family with their times, until it is dropped.
pub(crate) struct Changes {
    seen: Arc<Seen>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    list: Mutex<Vec<(MonoTime, Change)>>,
    grown: Condvar,
}

impl Changes {
    pub(crate) fn watch(host: &Host, ipv4: bool) -> Result<Self> {
        let socket = host.enter(|| -> std::io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            for group in if ipv4 { GROUPS } else { GROUPS_V6 } {
                socket.add_membership(group)?;
            }
            socket.set_non_blocking(true)?;
            Ok(socket)
        })??;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let seen = Arc::new(Seen::default());
        let (list, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("changes".into()).spawn(move || {
            // The stamp must not wait for those that act on the same change. Without the privilege it may.
            let _ = rustix::process::setpriority_process(None, -20);
            follow(&socket, &stopped, &list);
        })?;
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    /// Waits for the first such change at or after `from`, and says when it was seen; at most for `timeout`.
    pub(crate) fn first(&self, from: MonoTime, change: Change, timeout: Duration) -> Result<MonoTime> {
        let end = Instant::now() + timeout;
        let mut list = lock(&self.seen.list);
        loop {
            if let Some((at, _)) = list.iter().find(|(at, seen)| *at >= from && *seen == change) {
                return Ok(*at);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("the kernel told of no such change: {change:?}").into());
            }
            list = self.seen.grown.wait_timeout(list, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then the thread ends anyway.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn follow(socket: &Socket, stop: &OwnedFd, seen: &Seen) {
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut fds, None).is_err_and(|errno| errno != rustix::io::Errno::INTR) || !fds[1].revents().is_empty() {
            return;
        }
        let now = MonoTime::now();
        // An error is that of an empty queue, or of one that ran over, which a handful of messages cannot do.
        while let Ok((bytes, _)) = socket.recv_from_full() {
            lock(&seen.list).extend(messages(&bytes).filter_map(change).map(|change| (now, change)));
        }
        seen.grown.notify_all();
    }
}

/// Splits what one read gave (netlink(7): each message begins at a multiple of 4).
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = bytes.first_chunk::<4>().map(|length| u32::from_ne_bytes(*length) as usize)?;
        let message = bytes.get(..length).filter(|_| length >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn change(message: &[u8]) -> Option<Change> {
    let kind = u16::from_ne_bytes([*message.get(4)?, *message.get(5)?]);
    match kind {
        RTM_NEWADDR => Some(Change::Address),
        RTM_NEWROUTE => {
            let ours = *message.get(TABLE)? == TABLE_MAIN && *message.get(ROUTE_TYPE)? == RTN_UNICAST;
            ours.then_some(Change::Route { default: *message.get(DESTINATION_LENGTH)? == 0 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination_length: u8, table: u8) -> Vec<u8> {
        let mut message = vec![0; HEADER + 12];
        message[..4].copy_from_slice(&28u32.to_ne_bytes());
        message[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        message[DESTINATION_LENGTH] = destination_length;
        message[TABLE] = table;
        message[ROUTE_TYPE] = RTN_UNICAST;
        message
    }

    #[test]
    fn routes_are_told_apart() {
        let bytes = [route(24, 254), route(0, 254), route(32, 255)].concat();
        let found: Vec<_> = messages(&bytes).map(change).collect();
        let wanted = |default| Some(Change::Route { default });
        assert_eq!(found, [wanted(false), wanted(true), None]);
    }

    #[test]
    fn a_message_that_is_cut_off_ends_the_list() {
        assert_eq!(messages(&route(0, 254)[..20]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
    }
}
