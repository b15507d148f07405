//! The lab's only unsafe code: system calls that no library wraps as we need them.
#![expect(unsafe_code, reason = "system calls that rustix does not cover")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Puts the calling thread in a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET changes the calling thread's namespace only; no memory or descriptor is touched.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct ifreq` as TUNSETIFF wants it: name and flags.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    pad: [u8; 22],
}

impl IfReq {
    fn new(name: &str, flags: libc::c_short) -> io::Result<Self> {
        let mut req = Self { name: [0; libc::IFNAMSIZ], flags, pad: [0; 22] };
        if name.len() >= libc::IFNAMSIZ {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name longer than 15 bytes"));
        }
        req.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(req)
    }
}

/// Opens a TAP interface in the calling thread's network namespace: no vnet header, so the kernel segments and
/// checksums every packet before it is handed out. Non-blocking; the interface goes with the descriptor.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut req = IfReq::new(name, (libc::IFF_TAP | libc::IFF_NO_PI) as _)?;
    // SAFETY: TUNSETIFF reads and writes one ifreq (40 bytes on 64-bit), which `req` is, and keeps no pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut req) } {
        0 => Ok(file.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// IFF_RUNNING of an interface in the calling thread's network namespace.
pub(crate) fn interface_running(name: &str) -> io::Result<bool> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut req = IfReq::new(name, 0)?;
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq, which `req` is, and keeps no pointer.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut req) } {
        0 => Ok(i32::from(req.flags) & libc::IFF_RUNNING != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the carrier of a TAP interface: false looks to its host like a pulled cable.
pub(crate) fn set_tap_carrier(tap: impl AsFd, up: bool) -> io::Result<()> {
    let value = libc::c_uint::from(up);
    // SAFETY: TUNSETCARRIER reads one unsigned int and keeps no pointer.
    match unsafe { libc::ioctl(tap.as_fd().as_raw_fd(), libc::TUNSETCARRIER as _, &raw const value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a child does between fork and exec.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChildSetup {
    /// Namespace to enter.
    pub(crate) netns: Option<RawFd>,
    /// Be killed when the thread that forked ends.
    pub(crate) die_with_parent: bool,
    /// Become leader of a new session whose controlling terminal is standard input.
    pub(crate) terminal: bool,
}

/// Makes `command` set itself up so before it runs. Descriptors in `setup` must stay open until it is spawned.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    let hook = move || {
        if let Some(fd) = setup.netns {
            // SAFETY: the caller keeps the descriptor open until the child is spawned.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            move_into_link_name_space(fd, Some(LinkNameSpaceType::Network))?;
        }
        if setup.die_with_parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        }
        if setup.terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    // SAFETY: the hook makes plain system calls only: no allocation, no lock, no Rust I/O.
    unsafe { command.pre_exec(hook) };
}

/// Leaves whoever has started this process: no descriptor of theirs, no session, and no end with theirs.
pub(crate) fn leave_everybody() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(None)?;
    rustix::process::setsid()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    // SAFETY: what is closed was left open by whoever has started this process; it has opened nothing itself yet.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread real-time priority 1 and the finest timer slack, so that emulated delays stay exact on a
/// busy machine. Without the privilege it stays as it is.
pub(crate) fn prefer_this_thread() {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: both calls read their arguments and change the calling thread's scheduling only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const param);
    }
}

/// The parts of `struct tcp_info` that the lab reports (include/uapi/linux/tcp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TcpInfo {
    /// Segments retransmitted since the connection was opened.
    pub total_retransmits: u32,
    /// Unacknowledged segments.
    pub unacked: u32,
    /// Smoothed round trip, µs.
    pub rtt_us: u32,
    /// Retransmission timeout, µs.
    pub rto_us: u32,
    /// Steps of back-off.
    pub backoff: u8,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Sending MSS, bytes.
    pub snd_mss: u32,
}

impl TcpInfo {
    /// Of a connection of TCP.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        tcp_info(socket)
    }
}

/// Reads TCP_INFO of a connection.
pub(crate) fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    // SAFETY: tcp_info is plain integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, whose size that is.
    let r = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpInfo {
        total_retransmits: info.tcpi_total_retrans,
        unacked: info.tcpi_unacked,
        rtt_us: info.tcpi_rtt,
        rto_us: info.tcpi_rto,
        backoff: info.tcpi_backoff,
        cwnd: info.tcpi_snd_cwnd,
        snd_mss: info.tcpi_snd_mss,
    })
}

/// Write end of the pipe that tells the clean-up thread which signal came; -1 while there is none.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let byte = signal as u8;
    let fd = SIGNAL_PIPE.load(Ordering::Relaxed);
    // SAFETY: write(2) is async-signal-safe, and reads one byte that outlives the call.
    unsafe { libc::write(fd, (&raw const byte).cast(), 1) };
}

/// Routes SIGINT, SIGTERM and SIGHUP to the returned descriptor, one byte (the signal's number) each. Call once.
pub(crate) fn catch_signals() -> io::Result<OwnedFd> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    SIGNAL_PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
    // The handler uses it until the process ends.
    std::mem::forget(write);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `action` is fully initialised; the handler is async-signal-safe (see there).
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(read)
}

/// SO_BINDTODEVICE.
pub(crate) fn bind_to_device(socket: impl AsFd, device: &str) -> io::Result<()> {
    // SAFETY: the kernel reads `len` bytes of the name, which outlive the call; it needs no terminating zero.
    let r = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            device.as_ptr().cast(),
            device.len() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// IP_RECVERR or IPV6_RECVERR.
pub(crate) fn report_errors(socket: impl AsFd, v6: bool) -> io::Result<()> {
    let (level, name) = if v6 { (libc::SOL_IPV6, libc::IPV6_RECVERR) } else { (libc::SOL_IP, libc::IP_RECVERR) };
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an integer that outlives the call.
    let r = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
