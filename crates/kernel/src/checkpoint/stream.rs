//! TCP connections: what TCP_REPAIR gives away of them, and takes (tcp(7), net/ipv4/tcp.c).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use whimbrel_wire::snapshot::{
    Negotiated, OptionKind, PathState, ReceiveQueue, Scale, SendQueue, Snapshot, SocketOption, Stream, StreamState,
    Window,
};
use whimbrel_wire::{FlowTuple, Transport};

use super::{
    NEITHER, SO_BUF_LOCK, SO_RCVBUF, SO_RCVBUFFORCE, SO_REUSEADDR, SO_SNDBUF, SO_SNDBUFFORCE, Unmovable, bind, connect,
    interrupted, make_room, options, shut_down, tuple_of,
};
use crate::error::Error;
use crate::inject::{Injector, Numbers};
use crate::privilege;
use crate::sock_diag::{self, SockDiag};
use crate::sockopt::{Name, get_int, get_into, ioctl_int, set, set_slice};

pub(super) const fn tcp(name: libc::c_int, text: &'static str) -> Name {
    Name { level: libc::IPPROTO_TCP, name, text }
}

pub(super) const TCP_REPAIR: Name = tcp(libc::TCP_REPAIR, "TCP_REPAIR");
pub(super) const TCP_REPAIR_QUEUE: Name = tcp(libc::TCP_REPAIR_QUEUE, "TCP_REPAIR_QUEUE");
const TCP_QUEUE_SEQ: Name = tcp(libc::TCP_QUEUE_SEQ, "TCP_QUEUE_SEQ");
pub(super) const TCP_REPAIR_OPTIONS: Name = tcp(libc::TCP_REPAIR_OPTIONS, "TCP_REPAIR_OPTIONS");
const TCP_REPAIR_WINDOW: Name = tcp(29, "TCP_REPAIR_WINDOW");
pub(super) const TCP_TIMESTAMP: Name = tcp(libc::TCP_TIMESTAMP, "TCP_TIMESTAMP");
const TCP_MAXSEG: Name = tcp(libc::TCP_MAXSEG, "TCP_MAXSEG");
const TCP_INFO: Name = tcp(libc::TCP_INFO, "TCP_INFO");
const TCP_ULP: Name = tcp(31, "TCP_ULP");
const TCP_CORK: Name = tcp(libc::TCP_CORK, "TCP_CORK");
const TCP_NOTSENT_LOWAT: Name = tcp(25, "TCP_NOTSENT_LOWAT");
const TCP_USER_TIMEOUT: Name = tcp(libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT");
const TCP_CONGESTION: Name = tcp(libc::TCP_CONGESTION, "TCP_CONGESTION");

const SO_OOBINLINE: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_OOBINLINE, text: "SO_OOBINLINE" };

pub(super) const ON: i32 = 1;
/// Off, and a window probe tells the peer where the connection stands.
const OFF: i32 = 0;
/// Off without a word.
pub(super) const OFF_SILENTLY: i32 = -1;

const NO_QUEUE: i32 = 0;
const RECEIVE_QUEUE: i32 = 1;
pub(super) const SEND_QUEUE: i32 = 2;

// include/net/tcp_states.h
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
pub(super) const FIN_WAIT2: u8 = 5;
const CLOSED: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

// tcpi_options
const HAS_TIMESTAMPS: u8 = 1;
const HAS_SACK: u8 = 2;
const HAS_SCALE: u8 = 4;
const HAS_ECN: u8 = 8;

// TCP option kinds (RFC 9293 §3.2, RFC 7323, RFC 2018), as TCP_REPAIR_OPTIONS takes them.
const KIND_MSS: u32 = 2;
const KIND_SCALE: u32 = 3;
const KIND_SACK: u32 = 4;
pub(super) const KIND_TIMESTAMPS: u32 = 8;

/// Values of TCP_NOTSENT_LOWAT.
const NO_LIMIT: i32 = -1;
const BY_DEFAULT: i32 = 0;

/// The longest TCP_USER_TIMEOUT that is told by that of a socket at rest, in milliseconds: three days. One that is
/// longer need not be changed, as that of a socket whose peer is away (`bpf/lib/park.h`: 20 days).
const LONGEST_TOLD: i32 = 1 << 28;

/// The smallest and the largest segment that TCP_MAXSEG takes (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const SEGMENTS: std::ops::RangeInclusive<u16> = 88..=32_767;

const SIOCATMARK: libc::c_ulong = 0x8905;
const SIOCOUTQ: libc::c_ulong = libc::TIOCOUTQ;
const SIOCINQ: libc::c_ulong = libc::FIONREAD;
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// Bytes that are put into a queue at a time: the kernel wants them in one piece of memory.
const CHUNK: usize = 32 << 10;

/// Room for what the peer may send is made for a window up to this, in bytes: what Linux grows to by itself is less.
const MOST_EXPECTED: usize = 64 << 20;

const NOT_ESTABLISHED: &str = "this connection is not established yet, or is over";

/// The parts of tcp_info that are there in every kernel (linux/tcp.h).
pub(super) struct Info {
    pub(super) state: u8,
    /// It sends again what was not answered, or asks again for a window.
    repeats: bool,
    options: u8,
    scales: u8,
    numbers: [u32; 24],
}

impl Info {
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self, Error> {
        let mut bytes = [0u8; 104];
        let length = get_into(fd, TCP_INFO, &mut bytes).map_err(|e| Error::call("getsockopt", "TCP_INFO", e))?;
        if length < bytes.len() {
            let detail = format!("{length} bytes");
            return Err(Error::Answer { call: "getsockopt", object: "TCP_INFO".to_owned(), detail });
        }
        let mut words = bytes[8..].chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        let numbers = std::array::from_fn(|_| words.next().unwrap_or(0));
        Ok(Self {
            state: bytes[0],
            repeats: bytes[2] != 0 || bytes[3] != 0,
            options: bytes[5],
            scales: bytes[6],
            numbers,
        })
    }

    /// How many may wait to be accepted, where it listens (`tcp_get_info`).
    fn backlog(&self) -> u32 {
        self.numbers[5]
    }

    fn mtu(&self) -> u32 {
        self.numbers[13]
    }

    /// Smoothed round-trip time and its variation, in microseconds.
    fn round_trip(&self) -> (u32, u32) {
        (self.numbers[15], self.numbers[16])
    }

    /// Slow start threshold and congestion window, in segments.
    fn congestion(&self) -> (u32, u32) {
        (self.numbers[17], self.numbers[18])
    }
}

/// Whether a TCP socket is over, or was never connected.
pub(super) fn is_closed(fd: BorrowedFd<'_>) -> Result<bool, Error> {
    Ok(Info::of(fd)?.state == CLOSED)
}

/// Whether the other end of a connection has finished.
pub(super) fn has_heard_all(fd: BorrowedFd<'_>) -> Result<bool, Unmovable> {
    Ok(state_of(&Info::of(fd)?)?.peer_has_finished())
}

/// Bytes that nobody has read, up to an urgent one.
pub(super) fn unread(fd: BorrowedFd<'_>) -> Result<u32, Error> {
    ioctl_int(fd, SIOCINQ, "SIOCINQ")
}

pub(super) fn backlog(fd: BorrowedFd<'_>) -> Result<u32, Unmovable> {
    Ok(Info::of(fd)?.backlog())
}

/// What is left for the moment in which a rebuilt socket wakes.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Bytes that were never sent wait in its queue.
    says_more: bool,
    /// What the program has not written to the end of a segment waits for more (TCP_CORK).
    corked: bool,
    /// This end says no more.
    finish: bool,
    /// The other end's FIN is to arrive: the socket's tuple and the numbers that it comes with.
    peer_finish: Option<(FlowTuple, Numbers)>,
    /// SO_REUSEADDR, which repair mode makes its own use of.
    reuse: i32,
    /// How long its program lets it wait for an answer (TCP_USER_TIMEOUT), in milliseconds. While it rests there is
    /// none, and that is nobody's fault.
    timeout: i32,
    /// Since when it rests.
    since: Option<Instant>,
    /// Options of its program that it has no sooner than it is awake.
    waiting: Vec<SocketOption>,
    /// Buffers were made larger by force, which the kernel takes for the program's wish.
    forced: bool,
}

impl Due {
    /// What the program has set, where that is not what is there: of repair mode's use of SO_REUSEADDR nothing is seen
    /// here.
    pub(super) fn before(&self) -> Vec<(OptionKind, u64)> {
        vec![
            (OptionKind::ReuseAddress, u64::from(self.reuse != 0)),
            (OptionKind::UserTimeout, u64::from(self.timeout.unsigned_abs())),
        ]
    }
}

pub(super) fn freeze(fd: BorrowedFd<'_>, connected: bool) -> Result<Due, Unmovable> {
    let mut protocol = [0u8; 16];
    match get_into(fd, TCP_ULP, &mut protocol) {
        Ok(length) if length > 0 && protocol[0] != 0 => {
            return Err(Unmovable::Kind(
                "a TLS connection that the kernel encrypts cannot be moved: it does not give away the state of its keys",
            ));
        }
        Ok(_) => {}
        Err(_) => return Err(Unmovable::Kind(NEITHER)),
    }
    if !connected {
        return Err(Unmovable::Kind(NOT_ESTABLISHED));
    }
    if urgent(fd)? {
        return Err(Unmovable::Kind("urgent data waits to be read; it can be moved once the program has read it"));
    }
    let (reuse, timeout) = (get_int(fd, SO_REUSEADDR)?, own_timeout(fd)?);
    set(fd, TCP_REPAIR, &ON)?;
    if let Err(error) = set(fd, TCP_USER_TIMEOUT, &timeout_at_rest(timeout)) {
        let _ = set(fd, TCP_REPAIR, &OFF_SILENTLY);
        return Err(error.into());
    }
    Ok(Due { reuse, timeout, since: Some(Instant::now()), ..Due::default() })
}

/// TCP_USER_TIMEOUT while a socket rests: its timers go on, what they send is held, and nobody answers; so it must not
/// end by that. It is so long that it is none, and tells the program's own to whoever finds the socket at rest.
fn timeout_at_rest(own: i32) -> i32 {
    if own > LONGEST_TOLD { own } else { i32::MAX - own }
}

/// The program's own, of a socket that a daemon before this one may have put to rest. (One of 22 days is taken for that
/// of a rest then.)
fn own_timeout(fd: BorrowedFd<'_>) -> Result<i32, Error> {
    let there = get_int(fd, TCP_USER_TIMEOUT)?;
    let told = i32::MAX - there;
    Ok(if (0..=LONGEST_TOLD).contains(&told) && is_frozen(fd) { told } else { there })
}

/// Refuses a connection, or a listener, with a key of TCP_MD5SIG: what another host would send for it without the key
/// the other end throws away. The option itself cannot be read.
pub(super) fn check_unsigned(
    fd: BorrowedFd<'_>,
    local: SocketAddr,
    remote: Option<SocketAddr>,
    sockets: &mut SockDiag,
) -> Result<(), Unmovable> {
    match sockets.is_signing(&tuple_of(Transport::Tcp, local, remote), sock_diag::cookie_of(fd)?)? {
        Some(false) => Ok(()),
        Some(true) => Err(Unmovable::Kind(
            "a socket whose segments are signed (TCP_MD5SIG, RFC 2385) cannot be moved: its keys are of this host",
        )),
        None => {
            Err(Unmovable::Kind("the kernel does not say of this TCP socket whether it signs its segments (sock_diag)"))
        }
    }
}

/// Ends the rest of a socket, which tells its far end what it has and waits for (`tcp_send_window_probe`).
pub(super) fn wake(fd: BorrowedFd<'_>) -> Result<(), Error> {
    set(fd, TCP_REPAIR, &OFF)
}

pub(super) fn is_frozen(fd: BorrowedFd<'_>) -> bool {
    get_int(fd, TCP_REPAIR).is_ok_and(|repair| repair != 0)
}

/// Whether urgent data has arrived that the program has not read, or has read before what came first and what came
/// behind it: the queue can be looked at as far as its mark only (`tcp_poll`, `tcp_inq`). A byte that was read out of
/// turn and is the last needs nothing: it is passed over, as the kernel would.
fn urgent(fd: BorrowedFd<'_>) -> Result<bool, Error> {
    let unread = || ioctl_int(fd, SIOCINQ, "SIOCINQ");
    let to_mark = unread()?;
    if to_mark == 0 && ioctl_int(fd, SIOCATMARK, "SIOCATMARK")? == 0 {
        // Nothing before a mark, and no mark: nothing at all. So it is with most sockets.
        return Ok(false);
    }
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::PRI)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).map_err(|e| Error::call("poll", "a socket to be moved", e))?;
    if polled[0].revents().contains(rustix::event::PollFlags::PRI) {
        return Ok(true);
    }
    let inline = get_int(fd, SO_OOBINLINE)?;
    set(fd, SO_OOBINLINE, &1i32)?;
    let all = unread();
    set(fd, SO_OOBINLINE, &inline)?;
    Ok(all?.saturating_sub(to_mark) > 1)
}

fn state_of(info: &Info) -> Result<StreamState, Unmovable> {
    Ok(match info.state {
        ESTABLISHED => StreamState::Established,
        FIN_WAIT1 => StreamState::FinWait1,
        FIN_WAIT2 => StreamState::FinWait2,
        CLOSE_WAIT => StreamState::CloseWait,
        LAST_ACK => StreamState::LastAck,
        CLOSING => StreamState::Closing,
        _ => return Err(Unmovable::Kind(NOT_ESTABLISHED)),
    })
}

pub(super) fn dump(fd: BorrowedFd<'_>, remote: Option<SocketAddr>) -> Result<Stream, Unmovable> {
    let remote = remote.ok_or(Unmovable::Kind(NOT_ESTABLISHED))?;
    let info = Info::of(fd)?;
    let state = state_of(&info)?;
    let (send, receive) = (dump_send(fd, state)?, dump_receive(fd, state)?);
    set(fd, TCP_REPAIR_QUEUE, &NO_QUEUE)?;
    let mss = get_int(fd, TCP_MAXSEG)?;
    let scale = Scale { send: info.scales & 15, receive: info.scales >> 4 };
    let has = |flag| info.options & flag != 0;
    let timestamp = if has(HAS_TIMESTAMPS) { Some(get_int(fd, TCP_TIMESTAMP)?.cast_unsigned()) } else { None };
    let negotiated = Negotiated {
        mss: u16::try_from(mss).unwrap_or(u16::MAX),
        scale: has(HAS_SCALE).then_some(scale),
        sack: has(HAS_SACK),
        ecn: has(HAS_ECN),
        timestamp,
    };
    let mut fields = [0u32; 5];
    get_into(fd, TCP_REPAIR_WINDOW, &mut fields).map_err(|e| Error::call("getsockopt", "TCP_REPAIR_WINDOW", e))?;
    let [send_updated, send_window, send_max, receive_window, updated] = fields;
    // The kernel counts the peer's FIN; here only bytes count.
    let receive_updated = if receive.end.wrapping_sub(updated).cast_signed() < 0 { receive.end } else { updated };
    let window = Window { send_updated, send: send_window, send_max, receive: receive_window, receive_updated };
    let (slow_start_threshold, congestion_window) = info.congestion();
    let (round_trip, variation) = info.round_trip();
    let mut name = [0u8; 16];
    let length = get_into(fd, TCP_CONGESTION, &mut name).unwrap_or(0);
    let name = name[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    let path = PathState {
        congestion_control: String::from_utf8_lossy(name).into_owned(),
        congestion_window,
        slow_start_threshold,
        round_trip,
        variation,
        mtu: info.mtu(),
    };
    Ok(Stream { remote, state, send, receive, negotiated, window, out_of_order: Vec::new(), path: Some(path) })
}

/// Leaves its queue chosen, as [`dump_receive`] does.
fn dump_send(fd: BorrowedFd<'_>, state: StreamState) -> Result<SendQueue, Unmovable> {
    set(fd, TCP_REPAIR_QUEUE, &SEND_QUEUE)?;
    let end = get_int(fd, TCP_QUEUE_SEQ)?.cast_unsigned();
    let queued = ioctl_int(fd, SIOCOUTQ, "SIOCOUTQ")?;
    let unsent = if queued == 0 { 0 } else { ioctl_int(fd, SIOCOUTQNSD, "SIOCOUTQNSD")? };
    let bytes = peek(fd, queued as usize)?;
    // A FIN takes a number of its own, the last.
    let finish = u32::from(state.has_finished());
    Ok(SendQueue { end: end.wrapping_sub(finish), unsent: unsent.saturating_sub(finish), bytes })
}

fn dump_receive(fd: BorrowedFd<'_>, state: StreamState) -> Result<ReceiveQueue, Unmovable> {
    set(fd, TCP_REPAIR_QUEUE, &RECEIVE_QUEUE)?;
    let end = get_int(fd, TCP_QUEUE_SEQ)?.cast_unsigned();
    let unread = ioctl_int(fd, SIOCINQ, "SIOCINQ")?;
    let bytes = peek(fd, unread as usize)?;
    Ok(ReceiveQueue { end: end.wrapping_sub(u32::from(state.peer_has_finished())), bytes })
}

/// All bytes of the queue that is chosen: up to `length`, of which one may be a FIN.
fn peek(fd: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>, Unmovable> {
    let mut bytes = vec![0; length];
    if length == 0 {
        return Ok(bytes);
    }
    loop {
        match rustix::net::recv(fd, bytes.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, length)) => {
                bytes.truncate(length);
                return Ok(bytes);
            }
            Err(rustix::io::Errno::INTR) => {}
            // Only a FIN is there.
            Err(rustix::io::Errno::AGAIN) => return Ok(Vec::new()),
            Err(error) => return Err(Error::call("recv", "a queue of a frozen socket", error).into()),
        }
    }
}

pub(super) fn restore(fd: BorrowedFd<'_>, snapshot: &Snapshot, stream: &Stream) -> Result<Due, Unmovable> {
    let (family, local) = (snapshot.family, snapshot.local);
    let Stream { remote, state, send, receive, negotiated, window, path, .. } = stream;
    let sent = send.bytes.len() - send.unsent as usize;
    let (sent, unsent) = send.bytes.split_at(sent);
    let mut forced = make_rooms(fd, stream)?;
    // What a program or an administrator wants to be in a queue at the most is of no account for what is in one.
    set(fd, TCP_NOTSENT_LOWAT, &NO_LIMIT)?;
    let waiting = options::of_waking(snapshot);
    let timeout = waiting.iter().find(|option| option.kind == OptionKind::UserTimeout);
    let timeout = timeout.map_or(0, |option| i32::try_from(option.value).unwrap_or(i32::MAX));
    set(fd, TCP_USER_TIMEOUT, &timeout_at_rest(timeout))?;
    set(fd, TCP_REPAIR, &ON)?;
    choose(fd, SEND_QUEUE, send.end.wrapping_sub(send.bytes.len() as u32))?;
    choose(fd, RECEIVE_QUEUE, receive.end.wrapping_sub(receive.bytes.len() as u32))?;
    bind(fd, family, local)?;
    // What the kernel does not have, or not for everybody, stays what its administrator chose.
    if let Some(path) = path.as_ref().filter(|path| !path.congestion_control.is_empty()) {
        let _ = privilege::without_network(|| set(fd, TCP_CONGESTION, &name_of(&path.congestion_control)));
    }
    // Segments are cut as a socket takes them to be when it connects (`tcp_connect_init`), and not anew when it is told
    // what was agreed upon: it would begin with the 536 or 1220 bytes that everybody takes.
    let longest = i32::from(negotiated.mss.min(*SEGMENTS.end()));
    let is_told = negotiated.mss >= *SEGMENTS.start();
    if is_told {
        set(fd, TCP_MAXSEG, &longest)?;
    }
    // In repair mode this sends nothing: the connection is established at once (`tcp_connect`).
    connect(fd, family, *remote)?;
    if is_told {
        set(fd, TCP_MAXSEG, &0i32)?;
    }
    let (agreed, count) = agreed(negotiated);
    set_slice(fd, TCP_REPAIR_OPTIONS, &agreed[..count])?;
    if let Some(timestamp) = negotiated.timestamp {
        // The lowest bit asks for a clock of microseconds, which not every kernel has; the clock must not go back.
        let value = (timestamp.wrapping_add(2) & !1).cast_signed();
        set(fd, TCP_TIMESTAMP, &value)?;
    }
    // The receive queue is chosen still.
    forced |= fill(fd, &receive.bytes, &TO_READ)?;
    if !sent.is_empty() {
        set(fd, TCP_REPAIR_QUEUE, &SEND_QUEUE)?;
        forced |= fill(fd, sent, &TO_SEND)?;
    }
    if !unsent.is_empty() {
        // In repair mode all that is written counts as sent. Out of it nothing leaves either, since a window is yet to
        // be told (`tcp_connect_init`).
        set(fd, TCP_REPAIR, &OFF_SILENTLY)?;
        forced |= fill(fd, unsent, &TO_SEND)?;
        set(fd, TCP_REPAIR, &ON)?;
    }
    set(fd, TCP_REPAIR_QUEUE, &NO_QUEUE)?;
    set(fd, TCP_NOTSENT_LOWAT, &BY_DEFAULT)?;
    let fields =
        [window.send_updated, window.send, window.send_max.max(window.send), window.receive, window.receive_updated];
    set(fd, TCP_REPAIR_WINDOW, &fields)?;
    let peer_finish = state.peer_has_finished().then(|| {
        let tuple = FlowTuple { transport: Transport::Tcp, local, remote: *remote };
        let scale = negotiated.scale.map_or(0, |scale| scale.send);
        let numbers = Numbers {
            sequence: receive.end,
            acknowledgement: send.end.wrapping_sub(send.bytes.len() as u32),
            window: u16::try_from(window.send >> scale).unwrap_or(u16::MAX),
        };
        (tuple, numbers)
    });
    let is_on = |kind| snapshot.options.iter().any(|option| option.kind == kind && option.value != 0);
    Ok(Due {
        says_more: !unsent.is_empty(),
        corked: is_on(OptionKind::Cork),
        finish: state.has_finished(),
        peer_finish,
        reuse: i32::from(is_on(OptionKind::ReuseAddress)),
        timeout,
        since: Some(Instant::now()),
        waiting,
        forced,
    })
}

/// Room for what is in the queues, and for what the peer was told that it may send: that may come before anything is
/// read. Whether a buffer was made larger by force.
fn make_rooms(fd: BorrowedFd<'_>, stream: &Stream) -> Result<bool, Error> {
    let (unread, window) = (stream.receive.bytes.len(), (stream.window.receive as usize).min(MOST_EXPECTED));
    let to_send = !stream.send.bytes.is_empty() && make_room(fd, SO_SNDBUFFORCE, stream.send.bytes.len())?;
    // A buffer for twice a window is what the kernel itself gives one (`tcp_win_from_space`); a queue that is full of
    // small pieces needs more.
    let fits = unread == 0 && get_int(fd, SO_RCVBUF)?.cast_unsigned() as usize >= 2 * window;
    let to_receive = !fits && make_room(fd, SO_RCVBUFFORCE, unread + window)?;
    Ok(to_send || to_receive)
}

fn choose(fd: BorrowedFd<'_>, queue: i32, sequence: u32) -> Result<(), Error> {
    set(fd, TCP_REPAIR_QUEUE, &queue)?;
    set(fd, TCP_QUEUE_SEQ, &sequence.cast_signed())
}

fn name_of(congestion_control: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name.iter_mut().zip(congestion_control.bytes().take(15)).for_each(|(to, from)| *to = from);
    name
}

/// What TCP_REPAIR_OPTIONS takes: pairs of an option's kind and its value, and how many (`tcp_repair_options_est`).
fn agreed(negotiated: &Negotiated) -> ([[u32; 2]; 4], usize) {
    let scale = negotiated.scale.map(|scale| [KIND_SCALE, u32::from(scale.send) | u32::from(scale.receive) << 16]);
    let sack = negotiated.sack.then_some([KIND_SACK, 0]);
    let timestamps = negotiated.timestamp.map(|_| [KIND_TIMESTAMPS, 0]);
    let mut pairs = [[KIND_MSS, u32::from(negotiated.mss)]; 4];
    let mut count = 1;
    for pair in [scale, sack, timestamps].into_iter().flatten() {
        pairs[count] = pair;
        count += 1;
    }
    (pairs, count)
}

/// Room for a queue that is filled.
struct Room {
    /// How much there is, and how more is had.
    size: Name,
    force: Name,
    /// What the kernel says where there is none.
    full: Errno,
}

const TO_SEND: Room = Room { size: SO_SNDBUF, force: SO_SNDBUFFORCE, full: Errno::AGAIN };
/// `tcp_send_rcvq`
const TO_READ: Room = Room { size: SO_RCVBUF, force: SO_RCVBUFFORCE, full: Errno::NOMEM };

impl Room {
    /// Doubles it. `false`: there is as much as the kernel counts.
    fn grow(&self, fd: BorrowedFd<'_>) -> Result<bool, Error> {
        let size = get_int(fd, self.size)?;
        if size >= i32::MAX - 1 {
            return Ok(false);
        }
        // It is doubled by the kernel.
        set(fd, self.force, &size)?;
        Ok(true)
    }
}

/// Puts bytes into the queue that is chosen. How much room they take depends on how the kernel packs them here, so more
/// is made as it is needed. Whether it was.
fn fill(fd: BorrowedFd<'_>, bytes: &[u8], room: &Room) -> Result<bool, Error> {
    let object = || format!("{} bytes into a queue of a rebuilt socket", bytes.len());
    let (mut rest, mut forced) = (bytes, false);
    while !rest.is_empty() {
        let chunk = &rest[..rest.len().min(CHUNK)];
        match rustix::net::send(fd, chunk, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(0) => return Err(Error::call("send", object(), io::Error::from(io::ErrorKind::WriteZero))),
            Ok(length) => rest = &rest[length..],
            Err(Errno::INTR) => {}
            Err(full) if full == room.full && room.grow(fd)? => forced = true,
            Err(error) => return Err(Error::call("send", object(), error)),
        }
    }
    Ok(forced)
}

/// Nothing in here needs room: all bytes are in the queues. Where it fails all the same both ends are told: the program
/// by an error, the other end by a reset.
pub(super) fn thaw(fd: BorrowedFd<'_>, due: &Due, injector: &Injector) -> Result<(), Unmovable> {
    let woken = go_on(fd, due, injector);
    if woken.is_err() {
        give_up(fd);
    }
    woken
}

/// The connection of a socket is over, which both ends are told.
pub(super) fn give_up(fd: BorrowedFd<'_>) {
    // Awake, it does not end without a word.
    let _ = set(fd, TCP_REPAIR, &OFF_SILENTLY);
    let _ = disconnect(fd);
}

fn go_on(fd: BorrowedFd<'_>, due: &Due, injector: &Injector) -> Result<(), Unmovable> {
    let info = Info::of(fd)?;
    if info.state == CLOSED {
        return Err(Unmovable::Kind("the connection has ended while its socket was at rest"));
    }
    let says_more = due.says_more || due.finish;
    set(fd, TCP_REPAIR, if says_more { &OFF_SILENTLY } else { &OFF })?;
    if due.says_more {
        // Without a cork the kernel sends what waits, as far as it may (`__tcp_sock_set_cork`).
        set(fd, TCP_CORK, &0i32)?;
        if due.corked {
            set(fd, TCP_CORK, &1i32)?;
        }
    }
    if let Some((tuple, numbers)) = &due.peer_finish {
        injector.finish(tuple, *numbers)?;
    }
    if due.finish {
        // Whoever has acknowledged it already does so again (RFC 9293 §3.10.7.4).
        shut_down(fd, Shutdown::Write)?;
    }
    if due.reuse != 0 {
        set(fd, SO_REUSEADDR, &due.reuse)?;
    }
    // Last, since what the queues hold may take more here than the program has asked for.
    options::restore_awake(fd, &due.waiting)?;
    if due.forced {
        // The kernel lets buffers whose size was chosen grow no more.
        set(fd, SO_BUF_LOCK, &options::locks(&due.waiting))?;
    }
    // What it has sent in vain meanwhile is reckoned from the first time, so the rest is added. Otherwise nothing of it
    // counts.
    let counts = info.repeats && (1..=LONGEST_TOLD).contains(&due.timeout);
    let rested = due.since.filter(|_| counts).map_or(Duration::ZERO, |since| since.elapsed());
    let rested = i32::try_from(rested.as_millis()).unwrap_or(i32::MAX);
    set(fd, TCP_USER_TIMEOUT, &due.timeout.saturating_add(rested))?;
    Ok(())
}

pub(super) fn destroy(fd: BorrowedFd<'_>) -> Result<(), Unmovable> {
    // A socket in repair mode is dropped without a word (`tcp_disconnect`).
    disconnect(fd)?;
    Ok(set(fd, TCP_REPAIR, &OFF_SILENTLY)?)
}

/// Ends a connection at once: by a reset, unless it is at rest.
fn disconnect(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    loop {
        // SAFETY: `nobody` is valid for reads of its own size for the duration of the call.
        let result =
            unsafe { libc::connect(fd.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !interrupted(&error) {
            return Err(Error::call("connect", "AF_UNSPEC", error));
        }
    }
}
