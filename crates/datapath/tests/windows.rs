//! Senders that come back to a network go on with what they had there, by a congestion control of one round trip.

mod support;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use support::pair::{flow, look, wait};
use support::{Bpffs, Namespace, is_root, veth};
use whimbrel_datapath::{Datapath, Resumption, Windows, features, monotonic};

/// Whether this is root, on a kernel that has what is tried here. Says so if not.
fn is_able() -> bool {
    let able = features().windows;
    if !able {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("SKIPPED: {test} needs Linux 6.5, which lets congestion controls set windows\n");
        io::stderr().write_all(line.as_bytes()).expect("write to stderr");
    }
    able && is_root()
}

/// A sender, a router and a receiver; the way there takes 20 Mbit/s, and the router's queue is the round trip.
struct Course {
    near: Namespace,
    router: Namespace,
    far: Namespace,
    bpffs: Bpffs,
}

/// Bytes that wait at the router before it drops: some twenty segments, and many hundreds.
const SHORT: u32 = 30_000;
const LONG: u32 = 1_000_000;

impl Course {
    fn new() -> Self {
        let [near, router, far] = std::array::from_fn(|_| Namespace::new());
        veth(&near, "v", &router, "wa");
        veth(&router, "wb", &far, "v");
        router.sysctl("net.ipv4.ip_forward", "1");
        for (namespace, n, device) in [(&near, 1, "wa"), (&far, 2, "wb")] {
            namespace.run(&format!("ip addr add 10.{n}.0.2/24 dev v"));
            router.run(&format!("ip addr add 10.{n}.0.1/24 dev {device}"));
            namespace.run(&format!("ip route add default via 10.{n}.0.1"));
        }
        router.run(&format!("tc qdisc add dev wb root tbf rate 20mbit burst 3200 limit {SHORT}"));
        Self { near, router, far, bpffs: Bpffs::new() }
    }

    fn queue(&self, bytes: u32) {
        self.router.run(&format!("tc qdisc change dev wb root tbf rate 20mbit burst 3200 limit {bytes}"));
    }

    /// A connection that sends as fast as it can, and has met its limit by now: slow start is over.
    fn streaming(&self, control: &str) -> TcpStream {
        self.queue(SHORT);
        self.far.enter();
        let listener = TcpListener::bind("10.2.0.2:0").expect("listen");
        self.near.enter();
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        set_control(&near, control);
        let (mut far, _) = listener.accept().expect("accept");
        thread::spawn(move || while far.read(&mut vec![0; 1 << 20]).is_ok_and(|read| read > 0) {});
        let mut stream = near.try_clone().expect("clone");
        thread::spawn(move || while stream.write(&[0; 1 << 16]).is_ok() {});
        wait(|| info(&near).tcpi_total_retrans > 0);
        wait(|| info(&near).tcpi_ca_state == 0);
        near
    }
}

fn set_control(stream: &TcpStream, name: &str) {
    // SAFETY: an open socket, and a name with its length.
    let result = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        libc::setsockopt(stream.as_raw_fd(), level, option, name.as_ptr().cast(), name.len() as u32)
    };
    assert_eq!(result, 0, "{name}: {}", std::io::Error::last_os_error());
}

fn control(stream: &TcpStream) -> String {
    let mut name = [0u8; 16];
    let mut length = size_of_val(&name) as libc::socklen_t;
    // SAFETY: an open socket, and room for the name and its length.
    let result = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        libc::getsockopt(stream.as_raw_fd(), level, option, name.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

fn info(stream: &TcpStream) -> libc::tcp_info {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: an open socket, and room for what the kernel tells and its length.
    let result = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(stream.as_raw_fd(), level, option, (&raw mut info).cast(), &raw mut length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    info
}

/// Microseconds, as TCP remembers it.
fn least_round_trip(stream: &TcpStream) -> u32 {
    info(stream).tcpi_min_rtt
}

/// Microseconds, as BBR has it: `bbr_min_rtt` of struct tcp_bbr_info.
fn bbr_least_round_trip(stream: &TcpStream) -> u32 {
    const TCP_CC_INFO: libc::c_int = 26;
    let mut told = [0u32; 5];
    let mut length = size_of_val(&told) as libc::socklen_t;
    // SAFETY: an open socket, and room for what the kernel tells and its length.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, TCP_CC_INFO, told.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    told[2]
}

/// In segments of the connection's; the round trips are as they may be.
fn resumption(stream: &TcpStream, window: u32, most: u32) -> Resumption {
    let segment = info(stream).tcpi_snd_mss;
    Resumption {
        since: monotonic().expect("a clock"),
        window: window * segment,
        most: most * segment,
        threshold: Some(most * segment),
        least: Duration::from_micros(100),
        smoothed: Duration::from_millis(20),
        unknown: false,
    }
}

#[test]
fn a_sender_that_comes_back_has_its_window_and_its_own_congestion_control_again() {
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    for own in ["reno", "cubic", "bbr"] {
        let near = course.streaming(own);
        course.queue(LONG);
        // No slow start would get there, as it is over.
        assert!(info(&near).tcpi_snd_cwnd < 60, "{own}: {}", info(&near).tcpi_snd_cwnd);
        assert_eq!(windows.resume(&[(flow(&near), resumption(&near, 140, 280))]).expect("resume"), 1);
        let meanwhile = control(&near);
        assert_eq!(Some(&meanwhile), windows.name().as_ref(), "{own}");
        wait(|| control(&near) == own);
        let after = info(&near).tcpi_snd_cwnd;
        // Less than it begins with where the machine is busy: what is not used is given up.
        assert!((100..=300).contains(&after), "{own}: {after}");
        assert_eq!(windows.resume(&[]).expect("nobody"), 0);
        near.shutdown(Shutdown::Both).expect("end");
    }
}

#[test]
fn who_loses_some_of_it_has_less_than_has_arrived() {
    // RFC 9959, Safe Retreat.
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    for own in ["reno", "cubic"] {
        let near = course.streaming(own);
        assert_eq!(windows.resume(&[(flow(&near), resumption(&near, 140, 280))]).expect("resume"), 1);
        wait(|| control(&near) == own);
        wait(|| info(&near).tcpi_ca_state == 0);
        let after = info(&near);
        assert!(after.tcpi_snd_cwnd < 40 && after.tcpi_snd_ssthresh < 40, "{own}: {}", after.tcpi_snd_cwnd);
        near.shutdown(Shutdown::Both).expect("end");
    }
}

#[test]
fn another_network_than_the_one_that_is_remembered_is_left_as_it_is() {
    // RFC 9959, Reconnaissance: the round trip is ten times what it was, or half of the least.
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    let near = course.streaming("reno");
    let (least, smoothed) = (Duration::from_micros(10), Duration::from_micros(20));
    for (least, smoothed) in [(least, smoothed), (Duration::from_secs(2), Duration::from_secs(2))] {
        let saved = Resumption { least, smoothed, ..resumption(&near, 140, 280) };
        assert_eq!(windows.resume(&[(flow(&near), saved)]).expect("resume"), 1);
        wait(|| control(&near) == "reno");
        assert!(info(&near).tcpi_snd_cwnd < 60, "{}", info(&near).tcpi_snd_cwnd);
    }
}

#[test]
fn who_has_gone_on_to_another_network_is_left_as_it_is() {
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    let near = course.streaming("reno");
    course.queue(LONG);
    course.router.run("ip link set wb down");
    let saved = Resumption { smoothed: Duration::from_secs(2), ..resumption(&near, 400, 800) };
    let elsewhere = Resumption { unknown: true, ..saved };
    assert_eq!(windows.resume(&[(flow(&near), saved)]).expect("resume"), 1);
    assert_eq!(windows.resume(&[(flow(&near), elsewhere)]).expect("call off"), 0);
    course.router.run("ip link set wb up");
    wait(|| control(&near) == "reno");
    assert!(info(&near).tcpi_snd_cwnd < 60, "{}", info(&near).tcpi_snd_cwnd);
}

#[test]
fn bbr_has_the_round_trip_of_where_it_is() {
    // It would hold its window down to that of the path before, which TCP remembers.
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    let near = course.streaming("bbr");
    course.queue(LONG);
    let before = bbr_least_round_trip(&near);
    assert!(before.abs_diff(least_round_trip(&near)) < 1_000, "{before}");
    // What has been sent waits in the queue.
    wait(|| info(&near).tcpi_rtt > 20_000);
    let saved = Resumption { smoothed: Duration::from_secs(1), ..resumption(&near, 140, 280) };
    assert_eq!(windows.resume(&[(flow(&near), saved)]).expect("resume"), 1);
    wait(|| control(&near) == "bbr");
    let after = bbr_least_round_trip(&near);
    assert!(after > 4 * before, "{before} before, {after} after");
}

#[test]
fn what_is_taken_for_lost_where_nothing_is_known_costs_half_of_what_there_was() {
    // The timer runs out before the first of it is answered, as on a path that is much longer than TCP has it.
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    for taken_up in [false, true] {
        let near = course.streaming("reno");
        course.queue(LONG);
        course.router.run("ip link set wb down");
        if taken_up {
            let had = Resumption { smoothed: Duration::from_secs(1), threshold: None, ..resumption(&near, 140, 280) };
            assert_eq!(windows.resume(&[(flow(&near), Resumption { unknown: true, ..had })]).expect("resume"), 1);
        }
        wait(|| info(&near).tcpi_ca_state == 4 && info(&near).tcpi_backoff > 0);
        course.router.run("ip link set wb up");
        wait(|| control(&near) == "reno");
        wait(|| info(&near).tcpi_ca_state == 0);
        let after = info(&near);
        let (window, threshold) = (after.tcpi_snd_cwnd, after.tcpi_snd_ssthresh);
        assert_eq!(threshold > 1_000, taken_up, "{taken_up}: {window}, {threshold}");
        assert_eq!(window >= 100, taken_up, "{taken_up}: {window}, {threshold}");
        near.shutdown(Shutdown::Both).expect("end");
    }
}

#[test]
fn a_window_of_a_faster_network_is_brought_down_at_once() {
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    let near = course.streaming("reno");
    course.queue(LONG);
    windows.resume(&[(flow(&near), resumption(&near, 140, 280))]).expect("resume");
    wait(|| control(&near) == "reno");
    wait(|| info(&near).tcpi_ca_state == 0 && info(&near).tcpi_snd_cwnd >= 140);
    // It may grow again with each that is answered.
    windows.resume(&[(flow(&near), resumption(&near, 6, 12))]).expect("resume");
    assert!(info(&near).tcpi_snd_cwnd <= 20, "{}", info(&near).tcpi_snd_cwnd);
    wait(|| control(&near) == "reno");
    assert!(info(&near).tcpi_snd_cwnd < 40, "{}", info(&near).tcpi_snd_cwnd);
}

#[test]
fn sockets_outlive_the_one_that_has_resumed_them() {
    if !is_able() {
        return;
    }
    let course = Course::new();
    let windows = Windows::default();
    let near = course.streaming("cubic");
    course.queue(LONG);
    windows.resume(&[(flow(&near), resumption(&near, 140, 280))]).expect("resume");
    let name = windows.name().expect("registered");
    drop(windows);
    wait(|| control(&near) == "cubic");
    assert!(info(&near).tcpi_snd_cwnd >= 140, "{}", info(&near).tcpi_snd_cwnd);
    // Another one may have the name now. Whoever takes it by hand has one that there always is.
    let windows = Windows::default();
    windows.resume(&[(flow(&near), resumption(&near, 140, 280))]).expect("resume");
    assert_eq!(windows.name(), Some(name.clone()));
    wait(|| control(&near) == "cubic");
    near.shutdown(Shutdown::Both).expect("end");
    let other = course.streaming("cubic");
    set_control(&other, &name);
    wait(|| control(&other) == "reno");
}

#[test]
fn what_a_sender_has_is_told() {
    if !is_able() {
        return;
    }
    let course = Course::new();
    let near = course.streaming("reno");
    let datapath = Datapath::open(&course.bpffs.pins("near")).expect("open");
    wait(|| {
        let (before, told, after) = (info(&near), look(&datapath, &flow(&near)).expect("a socket"), info(&near));
        if before.tcpi_snd_cwnd != after.tcpi_snd_cwnd || after.tcpi_ca_state != 0 {
            return false;
        }
        let segment = u64::from(after.tcpi_snd_mss);
        assert_eq!(told.window, u64::from(after.tcpi_snd_cwnd) * segment);
        assert_eq!(told.threshold, Some(u64::from(after.tcpi_snd_ssthresh) * segment));
        assert!(told.sends && !told.least_round_trip.is_zero() && told.least_round_trip <= told.round_trip * 8);
        true
    });
    // The way is lost: what is under way then counts as lost, and the window is one segment.
    wait(|| info(&near).tcpi_ca_state == 0 && info(&near).tcpi_snd_cwnd > 8);
    course.router.run("ip link set wb down");
    wait(|| info(&near).tcpi_ca_state == 4 && info(&near).tcpi_backoff > 1);
    let told = look(&datapath, &flow(&near)).expect("a socket");
    let segment = u64::from(info(&near).tcpi_snd_mss);
    assert!(info(&near).tcpi_snd_cwnd <= 2 && told.window >= 6 * segment, "{}", told.window);
    assert_eq!(told.threshold, Some(told.window));
    datapath.unload().expect("unload");
}
