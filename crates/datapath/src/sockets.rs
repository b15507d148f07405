//! Following, looking up and fitting the sockets of the namespace.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Error;
use crate::abi::{
    FITTED_CHANGED, FITTED_WAITING, LOOKED_UP_AT_ONCE, Plain, RawPosition, RawSocket, RawTuple, RawWanted,
};
use crate::object::Programs;
use crate::table::Table;

/// A TCP socket that is connected, or connecting, as the kernel has it. Sequence numbers as they are on the wire, with
/// no offset; fields are those of `struct tcp_sock` and its kin that have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Own tuple.
    pub flow: FlowTuple,
    /// As in `/proc/PID/fd`; 0 when no process holds the socket any more.
    pub inode: u64,
    /// `TCP_ESTABLISHED` (1) and so on, `include/net/tcp_states.h`.
    pub state: u8,
    /// Oldest sequence number that is not acknowledged.
    pub snd_una: u32,
    /// Next to be sent.
    pub snd_nxt: u32,
    /// One more than the last that its program wrote.
    pub write_seq: u32,
    /// Next expected.
    pub rcv_nxt: u32,
    /// The peer's receive window, scaled: bytes.
    pub snd_wnd: u32,
    /// Payload bytes of a full-sized segment, options subtracted.
    pub mss_cache: u32,
    /// Path MTU in use, bytes.
    pub pmtu_cookie: u32,
    /// SO_BINDTODEVICE: interface index, 0 for none.
    pub bound_interface: u32,
    /// Owner.
    pub uid: u32,
    /// Back-off steps of the retransmission timer.
    pub backoff: u8,
    /// Retransmissions of the oldest segment without an answer.
    pub retransmits: u8,
    /// IP_RECVERR or IPV6_RECVERR: the program is told of every ICMP error at once.
    pub reports_errors: bool,
    /// It takes some of what it sent for lost (`lost_out`), and sends that again as the peer answers.
    pub repairs: bool,
    /// It was answered after it last sent in a back-off, and sends nothing of what was not acknowledged.
    pub stands_still: bool,
    /// Bits that the window in the peer's segments is shifted by (RFC 7323).
    pub window_scale: u8,
    /// Something has come that is not the next in the stream, and waits.
    pub unordered: bool,
    /// It was sent data in the last seconds (`lrcvtime`): ten, or up to a hundred where the kernel's clock is coarse.
    pub receives: bool,
    /// `bytes_acked`: what it has sent and the other end has acknowledged.
    pub acknowledged: u64,
    /// `bytes_received`.
    pub received: u64,
    /// `segs_in`: segments that came.
    pub heard: u32,
    /// `srtt_us`: the round trip, smoothed; zero until it is measured.
    pub round_trip: Duration,
    /// The least of the last minutes (`rtt_min`), on whatever network; zero until it is measured.
    pub least_round_trip: Duration,
    /// `snd_cwnd`, or what that was before the kernel took what is under way for lost, in bytes.
    pub window: u64,
    /// `snd_ssthresh` in bytes; `None`: none yet. Where the kernel takes some for lost, as much as the window.
    pub threshold: Option<u64>,
    /// Some of what its program wrote is not acknowledged.
    pub sends: bool,
    /// `total_retrans`: segments that were sent again, since it was opened.
    pub sent_again: u32,
}

impl TcpSocket {
    /// This end's initial sequence number where it opened the connection, one more where it accepted it
    /// (`tcp_connect_init`, `tcp_create_openreq_child`). Means nothing after TCP_REPAIR.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    pub fn first_sent(&self) -> u32 {
        self.snd_una.wrapping_sub(self.acknowledged as u32)
    }

    /// One more than the other end's initial sequence number. Means nothing after TCP_REPAIR.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    pub fn first_received(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(self.received as u32)
    }

    fn from_raw(raw: &RawSocket) -> Option<Self> {
        Some(Self {
            flow: raw.tuple.tuple()?,
            inode: raw.inode,
            state: u8::try_from(raw.state).ok()?,
            snd_una: raw.snd_una,
            snd_nxt: raw.snd_nxt,
            write_seq: raw.write_seq,
            rcv_nxt: raw.rcv_nxt,
            snd_wnd: raw.snd_wnd,
            mss_cache: raw.mss_cache,
            pmtu_cookie: raw.pmtu_cookie,
            bound_interface: raw.bound_interface,
            uid: raw.uid,
            backoff: raw.backoff,
            retransmits: raw.retransmits,
            reports_errors: raw.reports_errors != 0,
            repairs: raw.repairs != 0,
            stands_still: raw.stands_still != 0,
            window_scale: raw.window_scale,
            unordered: raw.unordered != 0,
            receives: raw.receives != 0,
            acknowledged: raw.acknowledged,
            received: raw.received,
            heard: raw.heard,
            round_trip: Duration::from_micros(raw.round_trip.into()),
            least_round_trip: measured(raw.least_round_trip),
            window: u64::from(raw.window) * u64::from(raw.mss_cache),
            threshold: (raw.threshold > 0).then(|| u64::from(raw.threshold) * u64::from(raw.mss_cache)),
            sends: raw.sends != 0,
            sent_again: raw.sent_again,
        })
    }
}

/// The kernel's word for a time that it has not measured yet is the longest.
fn measured(microseconds: u32) -> Duration {
    Duration::from_micros(if microseconds == u32::MAX { 0 } else { microseconds.into() })
}

/// Where a TCP socket is in its streams, as [`TcpSocket`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Oldest sequence number that is not acknowledged.
    pub snd_una: u32,
    /// Next expected.
    pub rcv_nxt: u32,
}

impl From<&TcpSocket> for Position {
    fn from(socket: &TcpSocket) -> Self {
        Self { snd_una: socket.snd_una, rcv_nxt: socket.rcv_nxt }
    }
}

/// What [`crate::Datapath::fit_sockets`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    /// Sockets that were changed.
    pub changed: usize,
    /// Sockets that are no longer parked and whose options cannot be put back yet, as that would end the connection:
    /// the kernel reckons from before the absence until something new is acknowledged. The caller comes again.
    pub waiting: usize,
}

/// The socket programs, loaded.
#[derive(Debug)]
pub(crate) struct Sockets {
    programs: Programs,
    looked_up: Mutex<Table<u32, RawSocket>>,
    interfaces: Mutex<Table<u32, u32>>,
}

/// What is done with sockets in another thread: [`crate::Datapath::sockets_apart`]. Acts on the network namespace of
/// the thread that calls.
#[derive(Clone, Debug)]
pub struct SocketsApart(pub(crate) Arc<Sockets>);

impl SocketsApart {
    /// As [`crate::Datapath::fit_sockets`].
    ///
    /// # Errors
    /// As there.
    pub fn fit(&self, interfaces: &[u32]) -> Result<Fitted, Error> {
        self.0.fit(interfaces)
    }

    /// As [`crate::Datapath::look_up`].
    ///
    /// # Errors
    /// As there.
    pub fn look_up(&self, flows: &[FlowTuple]) -> Result<Vec<TcpSocket>, Error> {
        self.0.look_up(flows, false)
    }
}

/// The programs that report sockets as they open, stall and close; attached while this lives.
#[derive(Debug)]
pub(crate) struct Follower {
    _links: Vec<OwnedFd>,
    /// Whether this kernel lets a program see unanswered probes.
    pub(crate) sees_probes: bool,
}

/// Records a read; the kernel makes 8 pages at a time (`kernel/bpf/bpf_iter.c`).
const READ_BYTES: usize = 32 * 1024;

/// Length of an Ethernet header, which a program on tc is run behind.
const ETHERNET: usize = 14;
/// Which of its members `struct __sk_buff` has the interface in (linux/bpf.h).
const SK_BUFF_IFINDEX: usize = 10;
/// Of a frame that a program is run on: the shortest that Ethernet has.
const FRAME: usize = 60;

impl Sockets {
    pub(crate) fn load(datapath: &Programs, pins: &Path) -> Result<Self, Error> {
        let programs = Programs::load_sockets(datapath, pins)?;
        let looked_up = Mutex::new(programs.table("looked_up")?);
        let interfaces = Mutex::new(programs.table("interfaces")?);
        Ok(Self { programs, looked_up, interfaces })
    }

    pub(crate) fn follow(&self, datapath: &Programs, pins: &Path) -> Result<Follower, Error> {
        let mut links = ["follow_sockets", "follow_retransmissions"]
            .map(|name| attach(&self.programs, name))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        // What is missed without it is heard of later, by what its program sends or by the peer's daemon.
        let probes = Programs::load_probes(datapath, pins).and_then(|probes| attach(&probes, "follow_probes"));
        let sees_probes = probes.is_ok();
        links.extend(probes);
        Ok(Follower { _links: links, sees_probes })
    }

    /// The sockets of those of these flows that are of TCP and connected, in no order. `lapsed`: their flows go on
    /// after a lapse.
    pub(crate) fn look_up(&self, flows: &[FlowTuple], lapsed: bool) -> Result<Vec<TcpSocket>, Error> {
        let tcp = flows.iter().filter(|flow| flow.transport == Transport::Tcp);
        let wanted: Vec<RawTuple> = tcp.map(RawTuple::new).collect();
        let mut found = Vec::with_capacity(flows.len());
        let mut left = self.look_up_at(0, &wanted, lapsed, &mut found)?;
        if left.is_empty() {
            return Ok(found);
        }
        // A socket that is bound to a device takes nothing that comes by another.
        for interface in crate::datapath::interfaces()? {
            left = self.look_up_at(interface, &left, lapsed, &mut found)?;
            if left.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// As if packets came by this interface (0: by none that a socket is bound to). Gives those that have no socket
    /// there.
    fn look_up_at(
        &self,
        interface: u32,
        wanted: &[RawTuple],
        lapsed: bool,
        found: &mut Vec<TcpSocket>,
    ) -> Result<Vec<RawTuple>, Error> {
        const NAME: &str = "look_up_sockets";
        let mut left = Vec::new();
        for wanted in wanted.chunks(LOOKED_UP_AT_ONCE as usize) {
            let keys: Vec<u32> = (0..).take(wanted.len()).collect();
            let asked: Vec<RawSocket> =
                wanted.iter().map(|tuple| RawSocket { tuple: *tuple, ..RawSocket::zeroed() }).collect();
            // Not for longer: another thread may have very many to look up.
            let table = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
            table.insert_all(&keys, &asked)?;
            let count = keys.len() as u32;
            let mut frame = [0; FRAME];
            let told = RawWanted { count, lapsed: lapsed.into() };
            frame[ETHERNET..][..size_of_val(&told)].copy_from_slice(told.as_bytes());
            match self.run(NAME, &mut frame, interface) {
                Ok(_) => {}
                // The interface has gone meanwhile.
                Err(error) if interface != 0 && error.raw_os_error() == Some(libc::ENODEV) => {
                    left.extend_from_slice(wanted);
                    continue;
                }
                Err(error) => return Err(error),
            }
            for (raw, tuple) in table.first(wanted.len())?.iter().zip(wanted) {
                match TcpSocket::from_raw(raw).filter(|socket| socket.state != 0) {
                    Some(socket) => found.push(socket),
                    None => left.push(*tuple),
                }
            }
        }
        Ok(left)
    }

    /// Where the socket of a flow is, if it is connected and bound to no device, and whether an urgent byte of it is
    /// not acknowledged.
    pub(crate) fn find(&self, flow: &FlowTuple) -> Result<Option<(Position, bool)>, Error> {
        let tuple = RawTuple::new(flow);
        let mut frame = [0; FRAME];
        frame[ETHERNET..][..size_of_val(&tuple)].copy_from_slice(tuple.as_bytes());
        let found = self.run("find_socket", &mut frame, 0)? == 1;
        let answer = &frame[ETHERNET..][..size_of::<RawPosition>()];
        let found = RawPosition::from_bytes(answer).filter(|_| found);
        Ok(found.map(|RawPosition { snd_una, rcv_nxt, snd_up }| {
            (Position { snd_una, rcv_nxt }, snd_up.wrapping_sub(snd_una).cast_signed() > 0)
        }))
    }

    /// Runs a program by hand on a frame that comes by an interface (0: loopback); gives what it returns.
    fn run(&self, name: &'static str, frame: &mut [u8; FRAME], interface: u32) -> Result<u32, Error> {
        let asked = *frame;
        let mut options = libbpf_sys::bpf_test_run_opts::default();
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        options.data_in = asked.as_ptr().cast();
        options.data_size_in = asked.len() as u32;
        options.data_out = frame.as_mut_ptr().cast();
        options.data_size_out = frame.len() as u32;
        let mut by = [0u32; SK_BUFF_IFINDEX + 1];
        by[SK_BUFF_IFINDEX] = interface;
        if interface != 0 {
            options.ctx_in = (&raw const by).cast();
            options.ctx_size_in = size_of_val(&by) as u32;
        }
        options.repeat = 1;
        let program = self.programs.program(name)?;
        // SAFETY: buffers of the sizes given, living through the call.
        let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if code < 0 {
            return Err(Error::code("bpf(BPF_PROG_TEST_RUN)", name, code));
        }
        Ok(options.retval)
    }

    /// Makes TCP sockets fit what has become of their flows ([`crate::Datapath::fit_sockets`]).
    pub(crate) fn fit(&self, interfaces: &[u32]) -> Result<Fitted, Error> {
        self.set_interfaces(interfaces)?;
        let mut fitted = Fitted::default();
        visit(&self.programs, "fit_sockets", &mut |bytes| {
            let count = |flag| bytes.iter().filter(|byte| **byte & flag != 0).count();
            fitted.changed += count(FITTED_CHANGED);
            fitted.waiting += count(FITTED_WAITING);
        })?;
        Ok(fitted)
    }

    /// Puts back what sockets had, for good ([`crate::Datapath::unload`]).
    pub(crate) fn release(&self, interfaces: &[u32]) -> Result<(), Error> {
        self.set_interfaces(interfaces)?;
        visit(&self.programs, "release_sockets", &mut |_| {})
    }

    /// Sockets may be bound to these devices and no others in the next pass.
    fn set_interfaces(&self, indices: &[u32]) -> Result<(), Error> {
        let present = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        for (gone, _) in present.entries()?.iter().filter(|(key, _)| !indices.contains(key)) {
            present.remove(gone)?;
        }
        for key in indices {
            present.insert(key, &1)?;
        }
        Ok(())
    }
}

/// Runs an iterator's program on each socket and gives `receiver` what it writes. Waits for each socket's lock,
/// which a program can hold for as long as it likes.
pub(crate) fn visit(programs: &Programs, name: &'static str, receiver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    let program = programs.program(name)?;
    // SAFETY: null options mean defaults; an iterator has no target.
    let link = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, ptr::null()) };
    let link = owned(link, "bpf(BPF_LINK_CREATE)", name)?;
    // SAFETY: an open link of an iterator.
    let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    let mut iterator = File::from(owned(iterator, "bpf(BPF_ITER_CREATE)", name)?);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match iterator.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => receiver(&buffer[..read]),
            // The kernel looked at a million sockets without finding one to show.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::call("read", name, error)),
        }
    }
}

/// Attaches a program that says itself what it belongs to: a tracepoint, or a function of the kernel.
fn attach(programs: &Programs, name: &'static str) -> Result<OwnedFd, Error> {
    let program = programs.program(name)?;
    // SAFETY: the name of the tracepoint is in the program, so it is null here.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) };
    owned(fd, "bpf(BPF_RAW_TRACEPOINT_OPEN)", name)
}

fn owned(fd: i32, call: &'static str, object: &str) -> Result<OwnedFd, Error> {
    if fd < 0 {
        return Err(Error::code(call, object, fd));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
