//! How long a connection waits at first until it sends again what was lost.
//!
//! A rebuilt socket has measured no round trip, and waits for 3 s (`TCP_TIMEOUT_FALLBACK`). Where the kernel remembers
//! a round trip to the same address from a connection before, the first timeout is made of that (`tcp_init_metrics`),
//! and nothing else: the round trip itself is still measured anew, so that neither congestion control nor pacing takes
//! what was said for what was seen. What is remembered nobody may set; it is what a connection had measured when it
//! ended in order. So one is made that measures what is to be said, and ends, without a packet on any wire: in repair
//! mode it "sends" a byte and its FIN, and is given an acknowledgement with an echo of its clock of a round trip ago
//! (RFC 7323).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, socket_with};
use whimbrel_wire::{FlowTuple, Transport};

use super::canonical;
use super::stream::{
    FIN_WAIT2, Info, KIND_TIMESTAMPS, OFF_SILENTLY, ON, SEND_QUEUE, TCP_REPAIR, TCP_REPAIR_OPTIONS, TCP_REPAIR_QUEUE,
    TCP_TIMESTAMP, tcp,
};
use crate::error::Error;
use crate::inject::{Injector, Numbers, Segment};
use crate::sockopt::{Name, get_int, set, set_slice};
use crate::sysctl;

const TCP_LINGER2: Name = tcp(libc::TCP_LINGER2, "TCP_LINGER2");
/// How long the rest of the connection stays in the kernel, in seconds.
const LINGERS: i32 = 1;
/// The discard port (RFC 863). Nothing is sent there.
const NO_PORT: u16 = 9;
/// The acknowledgement arrives at once, unless the kernel has so much to do that it leaves packets to a thread
/// (ksoftirqd), which has its turn when this one waits.
const ARRIVES_WITHIN: Duration = Duration::from_millis(100);
const LOOK_PAUSE: Duration = Duration::from_micros(50);
/// Forbids what is done here.
const NOTHING_KEPT: &str = "net/ipv4/tcp_no_metrics_save";

/// Connections from `local` to `remote` that are made or rebuilt in the calling thread's network namespace from now on
/// wait, until they have measured something themselves, about so long for an answer as takes a path with this round
/// trip: three of it, or it and the least timeout (200 ms), whichever is longer. A longer one that is remembered is
/// lowered by an eighth alone. `local` must be there, and `injector` of the same namespace.
///
/// # Errors
/// [`Error::Call`], [`Error::Answer`]: they wait for as long as before.
pub fn expect_round_trip(
    local: IpAddr,
    remote: IpAddr,
    round_trip: Duration,
    injector: &Injector,
) -> Result<(), Error> {
    // A host may have been told to remember nothing, which its namespaces are told as well.
    let forbidden = sysctl::get(NOTHING_KEPT).is_ok_and(|value| value != "0");
    if forbidden {
        sysctl::set(NOTHING_KEPT, "0")?;
    }
    let done = measure(local, remote, round_trip, injector);
    if forbidden { sysctl::set(NOTHING_KEPT, "1").and(done) } else { done }
}

fn measure(local: IpAddr, remote: IpAddr, round_trip: Duration, injector: &Injector) -> Result<(), Error> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::call("socket", remote.to_string(), e))?;
    let fd = socket.as_fd();
    set(fd, TCP_REPAIR, &ON)?;
    rustix::net::bind(fd, &SocketAddr::new(local, 0)).map_err(|e| Error::call("bind", local.to_string(), e))?;
    let remote = SocketAddr::new(remote, NO_PORT);
    rustix::net::connect(fd, &remote).map_err(|e| Error::call("connect", remote.to_string(), e))?;
    set_slice(fd, TCP_REPAIR_OPTIONS, &[[KIND_TIMESTAMPS, 0]])?;
    set(fd, TCP_REPAIR_QUEUE, &SEND_QUEUE)?;
    let clock = get_int(fd, TCP_TIMESTAMP)?.cast_unsigned();
    // What is put into the queue has no time at which it was sent, so that the clock's echo tells it (TCPCB_REPAIRED).
    rustix::net::send(fd, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        .map_err(|e| Error::call("send", "a byte that goes nowhere", e))?;
    rustix::net::shutdown(fd, Shutdown::Write)
        .map_err(|e| Error::call("shutdown", "a connection that goes nowhere", e))?;
    let name = rustix::net::getsockname(fd).map_err(|e| Error::call("getsockname", local.to_string(), e))?;
    let tuple = FlowTuple { transport: Transport::Tcp, local: canonical("getsockname", name)?, remote };
    // In repair mode both directions begin with 0: a byte, and the FIN.
    let numbers = Numbers { sequence: 0, acknowledgement: 2, window: u16::MAX };
    let milliseconds = u32::try_from(round_trip.as_millis()).unwrap_or(u32::MAX).clamp(1, 60_000);
    let timestamps = Some((1, clock.wrapping_sub(milliseconds)));
    injector.answer(&tuple, &Segment { numbers, timestamps, payload: &[] })?;
    wait_acknowledged(fd)?;
    set(fd, TCP_LINGER2, &LINGERS)?;
    // Awake, it ends by being closed: what it has measured is remembered then (`tcp_time_wait`), and nothing is sent.
    set(fd, TCP_REPAIR, &OFF_SILENTLY)
}

fn wait_acknowledged(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let begun = Instant::now();
    while Info::of(fd)?.state != FIN_WAIT2 {
        if begun.elapsed() > ARRIVES_WITHIN {
            return Err(Error::Answer {
                call: "sendmsg",
                object: "an acknowledgement for this host itself".to_owned(),
                detail: format!("it has not arrived within {ARRIVES_WITHIN:?}"),
            });
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Ok(())
}
