//! Sockets go from one host to another, and the far end notices nothing. Run as root.

mod hosts;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hosts::{Host, PATIENCE, wait};
use rustix::net::sockopt;
use whimbrel_kernel::Error;
use whimbrel_kernel::checkpoint::{Checkpoint, Defaults, Unmovable, expect_round_trip};
use whimbrel_kernel::endpoint::Endpoint;
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_kernel::sysctl;
use whimbrel_kernel::udp;
use whimbrel_wire::snapshot::{Body, OptionKind, Snapshot, Stream, StreamState};

/// Two hosts that both have one address, and a far end that reaches it at one of them:
///
/// ```text
/// donor (HOME) e0 -- d0 far d1 -- e0 acceptor (HOME)
/// ```
struct Three {
    donor: Host,
    acceptor: Host,
    far: Host,
    plan: Plan,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    ip: &'static str,
    home: &'static str,
    far: &'static str,
    donor_link: &'static str,
    acceptor_link: &'static str,
    far_links: [&'static str; 2],
    link: u8,
    host: u8,
    nodad: &'static str,
}

const PLANS: [Plan; 2] = [
    Plan {
        ip: "ip",
        home: "10.5.0.1",
        far: "10.9.0.1",
        donor_link: "10.1.0.2",
        acceptor_link: "10.2.0.2",
        far_links: ["10.1.0.1", "10.2.0.1"],
        link: 24,
        host: 32,
        nodad: "",
    },
    Plan {
        ip: "ip -6",
        home: "fd05::1",
        far: "fd09::1",
        donor_link: "fd01::2",
        acceptor_link: "fd02::2",
        far_links: ["fd01::1", "fd02::1"],
        link: 64,
        host: 128,
        nodad: "nodad",
    },
];

impl Three {
    fn new(plan: Plan) -> Self {
        let (donor, acceptor, far) = (Host::new(), Host::new(), Host::new());
        let Plan { ip, home, link, host, nodad, far_links, .. } = plan;
        for (one, near, index) in [(&donor, plan.donor_link, 0), (&acceptor, plan.acceptor_link, 1)] {
            one.cable("e0", &far, &format!("d{index}"));
            let gateway = far_links[index];
            far.sh(&format!("{ip} addr add {gateway}/{link} dev d{index} {nodad}"));
            one.sh(&format!(
                "{ip} addr add {near}/{link} dev e0 {nodad}; {ip} addr add {home}/{host} dev lo {nodad};
                 {ip} route add default via {gateway}"
            ));
        }
        far.sh(&format!("{ip} addr add {}/{host} dev lo {nodad}", plan.far));
        let three = Self { donor, acceptor, far, plan };
        three.lead(plan.donor_link);
        three
    }

    /// The far end reaches HOME there from now on.
    fn lead(&self, to: &str) {
        let Plan { ip, home, host, .. } = self.plan;
        self.far.sh(&format!("{ip} route replace {home}/{host} via {to}"));
    }

    fn home(&self) -> IpAddr {
        self.plan.home.parse().unwrap()
    }

    fn far_address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.plan.far.parse().unwrap(), port)
    }

    /// A connection from HOME, on the donor, to the far end: the end to be moved first.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self.far.on(|| TcpListener::bind(self.far_address(0)).unwrap());
        let home = SocketAddr::new(self.home(), 0);
        let near = self.donor.on(|| {
            use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
            let family = if home.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket(family, SocketType::STREAM, None).unwrap();
            bind(&socket, &home).unwrap();
            connect(&socket, &listener.local_addr().unwrap()).unwrap();
            TcpStream::from(socket)
        });
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (near, far)
    }

    /// Nothing gets to the donor or away from it.
    fn hold(&self) {
        self.donor.sh("ip link set e0 down");
    }

    fn injector(host: &Host) -> Injector {
        host.on(|| Injector::open().unwrap())
    }

    /// A socket of the donor.
    fn written(&self, checkpoint: &Checkpoint) -> Result<Snapshot, Unmovable> {
        self.donor.on(|| checkpoint.dump(&defaults(), &mut SockDiag::open().unwrap()))
    }

    /// Of the donor.
    fn destroy(&self, checkpoint: Checkpoint) {
        self.donor.on(|| checkpoint.destroy(&mut SockDiag::open().unwrap())).unwrap();
    }

    /// The whole way: what was dumped passes through its bytes.
    fn move_over(&self, near: OwnedFd) -> (TcpStream, Snapshot) {
        let checkpoint = Checkpoint::freeze(near).unwrap();
        let snapshot = self.written(&checkpoint).unwrap();
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        let arrived = Snapshot::decode(&bytes).unwrap();
        assert_eq!(arrived, snapshot);
        let injector = Self::injector(&self.acceptor);
        let restored = self.acceptor.on(|| Checkpoint::restore(&arrived, &injector)).unwrap();
        self.destroy(checkpoint);
        self.lead(self.plan.acceptor_link);
        let socket = TcpStream::from(restored.thaw(&injector).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (socket, snapshot)
    }
}

/// All hosts of a test are made alike.
fn unwatched(_: u32) -> Result<(), Error> {
    Ok(())
}

fn defaults() -> Defaults {
    Defaults::look().unwrap()
}

fn stream(snapshot: &Snapshot) -> &Stream {
    match &snapshot.body {
        Body::Stream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn fill(end: &mut TcpStream) -> Vec<u8> {
    end.set_nonblocking(true).unwrap();
    let mut written = Vec::new();
    loop {
        match end.write(&pattern(written.len(), 10_000)) {
            Ok(length) => written.extend_from_slice(&pattern(written.len(), length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    end.set_nonblocking(false).unwrap();
    written
}

fn read_exactly(end: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    end.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_connection_goes_on_at_another_host() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        three.hold();
        let (mut moved, _) = three.move_over(near.try_clone().unwrap().into());
        hosts::exchange(&mut moved, &mut far);
        // The donor's end is dead, and its death is not told to anybody.
        let error = near.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        drop(near);
        hosts::exchange(&mut moved, &mut far);
        drop(moved);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "a FIN ends it");
    }
}

/// Congestion window in segments, and slow start threshold.
fn congestion(socket: impl AsFd) -> [u32; 2] {
    let info = info(socket);
    [info.tcpi_snd_cwnd, info.tcpi_snd_ssthresh]
}

fn info(socket: impl AsFd) -> libc::tcp_info {
    use std::os::fd::AsRawFd;
    // SAFETY: all zero is a value of it.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `info` is valid for writes of `length` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length) };
    assert_eq!(result, 0);
    info
}

#[test]
fn a_connection_begins_with_what_is_known_of_its_new_path() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        three.hold();
        let checkpoint = Checkpoint::freeze(near.into()).unwrap();
        let snapshot = three.written(&checkpoint).unwrap();
        let elsewhere = Host::new();
        let _here = elsewhere.enter();
        let rebuilt = |window| {
            let endpoint = Endpoint::create(three.home(), 1500, unwatched).unwrap();
            endpoint.set_first_window(three.home(), 1500, window).unwrap();
            let _inside = endpoint.enter().unwrap();
            congestion(Checkpoint::restore(&snapshot, &Injector::open().unwrap()).unwrap())
        };
        let [window, threshold] = rebuilt(None);
        assert_eq!(window, 10);
        assert!(threshold > 1 << 30, "slow start has no end that is known");
        assert_eq!(rebuilt(Some(47)), [47, threshold]);
    }
}

#[test]
fn the_first_timeout_is_that_of_the_round_trip_that_was_said() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        three.hold();
        let snapshot = three.written(&Checkpoint::freeze(near.into()).unwrap()).unwrap();
        let elsewhere = Host::new();
        let _here = elsewhere.enter();
        let endpoint = Endpoint::create(three.home(), 1500, unwatched).unwrap();
        let _inside = endpoint.enter().unwrap();
        let injector = Injector::open().unwrap();
        let other: IpAddr = if three.home().is_ipv4() { "192.0.2.99" } else { "2001:db8::99" }.parse().unwrap();
        let rebuilt = || info(Checkpoint::restore(&snapshot, &injector).unwrap());
        let timeout = || Duration::from_micros(rebuilt().tcpi_rto.into());
        let expect = |remote, milliseconds| {
            expect_round_trip(three.home(), remote, Duration::from_millis(milliseconds), &injector).unwrap();
        };
        // The kernel counts in ticks of up to 10 ms.
        let about = |milliseconds: u64| {
            let [least, most] = [milliseconds - 10, milliseconds + milliseconds / 20 + 10];
            (Duration::from_millis(least)..Duration::from_millis(most)).contains(&timeout())
        };
        let sent = || {
            let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = devices.lines().find_map(|line| line.trim().strip_prefix("e0:").map(str::to_owned)).unwrap();
            line.split_whitespace().nth(9).map(str::to_owned)
        };
        let before = sent();
        assert_eq!(timeout(), Duration::from_secs(3), "nothing is known");
        expect(other, 80);
        assert_eq!(timeout(), Duration::from_secs(3), "another far end's was said");
        // One that is longer is believed at once; so the order matters.
        for milliseconds in [1, 80, 300] {
            expect(three.far_address(0).ip(), milliseconds);
            let expected = milliseconds + (2 * milliseconds).max(200);
            assert!(about(expected), "{:?} instead of {expected} ms", timeout());
        }
        // It is the timeout alone that was said; what is measured is.
        assert_eq!(rebuilt().tcpi_rtt, 0);
        sysctl::set("net/ipv4/tcp_no_metrics_save", "1").unwrap();
        expect(three.far_address(0).ip(), 400);
        assert!(about(1200), "{:?}, on a host that remembers nothing", timeout());
        assert_eq!(sysctl::get("net/ipv4/tcp_no_metrics_save").unwrap(), "1");
        assert_eq!(sent(), before, "packets have left");
    }
}

#[test]
fn what_is_not_read_not_sent_and_not_acknowledged_goes_along() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        far.write_all(&pattern(7, 20_000)).unwrap();
        wait("all has arrived", || {
            let mut buffer = [0; 20_000];
            near.peek(&mut buffer).unwrap() == 20_000
        });
        // Some of it is sent and lost, the rest waits for room.
        three.far.sh(LOSE);
        let mine = fill(&mut near);
        three.hold();
        three.far.sh(LOSE_NO_MORE);
        let (mut moved, snapshot) = three.move_over(near.into());
        let Stream { send, receive, .. } = stream(&snapshot);
        assert!(
            send.unsent > 0 && (send.unsent as usize) < send.bytes.len(),
            "{} of {}",
            send.unsent,
            send.bytes.len()
        );
        assert_eq!((&send.bytes, &receive.bytes), (&mine, &pattern(7, 20_000)));
        assert_eq!(read_exactly(&mut moved, 20_000), pattern(7, 20_000));
        assert_eq!(read_exactly(&mut far, mine.len()), mine);
        hosts::exchange(&mut moved, &mut far);
    }
}

/// How a program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Plainly,
    /// TCP_NODELAY.
    AtOnce,
    /// MSG_MORE.
    WithMore,
    /// TCP_CORK.
    Corked,
    /// MSG_EOR: the kernel joins no two of them.
    Apart,
    /// TCP_NOTSENT_LOWAT.
    UpToAMark,
}

const WRITES: [Writes; 6] =
    [Writes::Plainly, Writes::AtOnce, Writes::WithMore, Writes::Corked, Writes::Apart, Writes::UpToAMark];

/// Writes until there is no room, at most so much; gives what was written.
fn fill_as(end: &TcpStream, each: usize, writes: Writes) -> Vec<u8> {
    use rustix::net::SendFlags;
    let flags = match writes {
        Writes::WithMore => SendFlags::MORE,
        Writes::Apart => SendFlags::EOR,
        _ => SendFlags::empty(),
    };
    match writes {
        Writes::AtOnce => sockopt::set_tcp_nodelay(end, true).unwrap(),
        Writes::Corked => sockopt::set_tcp_cork(end, true).unwrap(),
        Writes::UpToAMark => set_int(end, libc::IPPROTO_TCP, 25, 4096),
        _ => {}
    }
    let mut written = Vec::new();
    while written.len() < 16 << 20 {
        match rustix::net::send(end, &pattern(written.len(), each), flags | SendFlags::DONTWAIT) {
            Ok(length) => written.extend_from_slice(&pattern(written.len(), length)),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    written
}

fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) {
    use std::os::fd::AsRawFd;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` is valid for reads of its own size.
    let result =
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of_val(&value) as libc::socklen_t) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn get_int(socket: impl AsFd, level: i32, name: i32) -> i32 {
    use std::os::fd::AsRawFd;
    let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` is valid for writes of its own size.
    let result = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    value
}

/// SO_SNDBUF, SO_RCVBUF, and SO_BUF_LOCK.
fn room_of(socket: impl AsFd) -> [i32; 3] {
    let [send, receive, locks] =
        [libc::SO_SNDBUF, libc::SO_RCVBUF, 72].map(|name| get_int(socket.as_fd(), libc::SOL_SOCKET, name));
    // What nobody has chosen the kernel makes as large as it likes.
    [send * (locks & 1), receive * (locks >> 1 & 1), locks]
}

/// Sizes that a program may choose, in bytes; those beyond the host's limit by force.
const SIZES: [Option<usize>; 6] = [None, Some(2 << 10), Some(16 << 10), Some(96 << 10), Some(1 << 20), Some(4 << 20)];

const ROOMS: [Option<usize>; 4] = [None, Some(16 << 10), Some(96 << 10), Some(1 << 20)];

#[test]
fn full_queues_go_along_whatever_their_sizes_and_however_they_are_packed() {
    let most: usize = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap().trim().parse().unwrap();
    for plan in PLANS {
        let three = Three::new(plan);
        let mut ends = Vec::new();
        let mut seed = 1u32;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as usize % below
        };
        for lost in [false, true] {
            if lost {
                three.far.sh(LOSE_SYNLESS);
            }
            for size in SIZES {
                for each in [100, 1448, 9_000, 64 << 10, 1 << 20] {
                    let case = (lost, size, each, WRITES[draw(WRITES.len())], draw(3), ROOMS[draw(ROOMS.len())]);
                    let (near, far) = three.connect();
                    if let Some(size) = size {
                        sockopt::set_socket_send_buffer_size_force(&near, size).unwrap();
                    }
                    let (_, _, _, writes, life, room) = case;
                    if let Some(room) = room {
                        sockopt::set_socket_recv_buffer_size(&near, room).unwrap();
                    }
                    // The far end says something first, which is not read.
                    let full = room.is_none_or(|room| room >= 1 << 20);
                    let theirs = match (lost || life == 2, full) {
                        (true, _) => Vec::new(),
                        (false, true) => fill_as(&far, 300, Writes::AtOnce),
                        (false, false) => {
                            sockopt::set_tcp_nodelay(&far, true).unwrap();
                            let said = pattern(0, 6000);
                            said.chunks(300).for_each(|part| (&far).write_all(part).unwrap());
                            wait("it is there", || near.peek(&mut [0; 6001]).unwrap() == 6000);
                            said
                        }
                    };
                    if life == 2 && !lost {
                        far.shutdown(Shutdown::Write).unwrap();
                        wait("the end has arrived", || info(&near).tcpi_state == 8);
                    }
                    // So small writes into so much room would take all day.
                    let each = each.max(size.unwrap_or(1 << 20) / 500);
                    let mine = fill_as(&near, each, writes);
                    if life == 1 {
                        near.shutdown(Shutdown::Write).unwrap();
                    }
                    ends.push((case, near, far, mine, theirs));
                }
            }
        }
        three.hold();
        three.far.sh(LOSE_NO_MORE);
        let injector = Three::injector(&three.acceptor);
        let mut moved = Vec::new();
        for (case, near, far, mine, theirs) in ends {
            let before = room_of(&near);
            let checkpoint = Checkpoint::freeze(near.into()).unwrap();
            let snapshot = three.written(&checkpoint).unwrap();
            let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector));
            let restored = restored.unwrap_or_else(|why| panic!("{case:?}: {why}"));
            three.destroy(checkpoint);
            moved.push((case, restored, before, far, mine, theirs));
        }
        three.lead(plan.acceptor_link);
        let woken = moved.into_iter().map(|(case, restored, before, far, mine, theirs)| {
            let near = restored.thaw(&injector).unwrap_or_else(|why| panic!("{case:?}: {why}"));
            let near = TcpStream::from(near);
            near.set_nonblocking(false).unwrap();
            near.set_read_timeout(Some(PATIENCE)).unwrap();
            let room = room_of(&near);
            assert_eq!(room[2], before[2], "{case:?}: what nobody has chosen grows as it likes");
            if case.1.is_none_or(|size| size <= most) {
                assert_eq!(room, before, "{case:?}");
            }
            (case, near, far, mine, theirs)
        });
        for (case, mut near, mut far, mine, theirs) in woken.collect::<Vec<_>>() {
            far.set_nonblocking(false).unwrap();
            assert!(read_exactly(&mut far, mine.len()) == mine, "{case:?}: what was not sent");
            assert!(read_exactly(&mut near, theirs.len()) == theirs, "{case:?}: what was not read");
            let (lost, life) = (case.0, case.4);
            if life == 1 {
                assert_eq!(far.read(&mut [0]).unwrap(), 0, "{case:?}: its end");
            } else {
                near.write_all(b"and on").unwrap();
                if case.3 == Writes::Corked {
                    sockopt::set_tcp_cork(&near, false).unwrap();
                }
                assert_eq!(read_exactly(&mut far, 6), b"and on", "{case:?}");
            }
            if life == 2 && !lost {
                assert_eq!(near.read(&mut [0]).unwrap(), 0, "{case:?}: the far end's end");
            } else {
                far.write_all(b"and back").unwrap();
                assert_eq!(read_exactly(&mut near, 8), b"and back", "{case:?}");
            }
        }
    }
}

/// What the far end is sent is lost, unless it opens a connection.
const LOSE_SYNLESS: &str =
    "nft 'add table inet lossy; add chain inet lossy into { type filter hook prerouting priority 0 ; policy accept ; };
    add rule inet lossy into meta l4proto tcp tcp flags & syn == 0 meta length > 100 drop'";

#[test]
fn what_is_said_after_a_move_is_cut_as_before() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        let before = info(&near).tcpi_snd_mss;
        three.hold();
        let (mut moved, _) = three.move_over(near.into());
        assert_eq!(info(&moved).tcpi_snd_mss, before);
        let heard = info(&far).tcpi_segs_in;
        let said = pattern(0, 10 * before as usize);
        moved.write_all(&said).unwrap();
        assert_eq!(read_exactly(&mut far, said.len()), said);
        // One that tells where the connection stands, and those with data.
        let used = info(&far).tcpi_segs_in - heard;
        assert!((10..=12).contains(&used), "{used} segments for ten of {before} bytes");
    }
}

#[test]
fn a_connection_that_cannot_be_woken_is_over_for_both_ends() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (near, mut far) = three.connect();
        far.shutdown(Shutdown::Write).unwrap();
        wait("the end has arrived", || info(&near).tcpi_state == 8);
        three.hold();
        let checkpoint = Checkpoint::freeze(near.into()).unwrap();
        let snapshot = three.written(&checkpoint).unwrap();
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
        three.destroy(checkpoint);
        three.lead(plan.acceptor_link);
        // The far end's FIN does not come to the socket.
        three.acceptor.sh("nft 'add table inet t; add chain inet t out { type filter hook output priority 0 ; };
             add rule inet t out oifname lo drop'");
        let program = restored.as_fd().try_clone_to_owned().unwrap();
        let why = restored.thaw(&injector).unwrap_err();
        assert!(why.to_string().contains("sendmsg"), "{why}");
        assert_eq!(far.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(TcpStream::from(program).write(b"?").is_err(), "its program is told");
    }
}

/// What the far end is sent is lost, and is no more.
const LOSE: &str =
    "nft 'add table inet lossy; add chain inet lossy into { type filter hook prerouting priority 0 ; policy drop ; }'";
const LOSE_NO_MORE: &str = "nft delete table inet lossy";

/// Counts the segments that leave a host from now on.
fn count_segments(host: &Host) -> impl Fn() -> u64 {
    host.sh("nft 'add table inet c; add chain inet c out { type filter hook output priority 0 ; };
             add rule inet c out meta l4proto tcp counter'");
    move || {
        let said = host.sh("nft list chain inet c out");
        said.split("packets ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }
}

#[test]
fn a_socket_that_is_rebuilt_says_nothing_before_it_wakes() {
    for (plan, corked) in PLANS.into_iter().flat_map(|plan| [(plan, false), (plan, true)]) {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        sockopt::set_tcp_nodelay(&near, true).unwrap();
        if corked {
            sockopt::set_tcp_cork(&near, true).unwrap();
        } else {
            // With one segment in flight the window of what may be is full.
            three.far.sh(LOSE);
            near.write_all(b"lost").unwrap();
            wait("it was sent again", || info(&near).tcpi_retransmits > 1);
        }
        three.hold();
        // The kernel keeps what is corked for 200 ms.
        near.write_all(b"waits").unwrap();
        let checkpoint = Checkpoint::freeze(near.into()).unwrap();
        let snapshot = three.written(&checkpoint).unwrap();
        assert_eq!(stream(&snapshot).send.unsent, 5, "what this is about");
        if !corked {
            three.far.sh(LOSE_NO_MORE);
        }
        three.lead(plan.acceptor_link);
        let sent = count_segments(&three.acceptor);
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
        assert_eq!(sent(), 0);
        three.destroy(checkpoint);
        let moved = restored.thaw(&injector).unwrap();
        let all: &[u8] = if corked { b"waits" } else { b"lostwaits" };
        assert_eq!(read_exactly(&mut far, all.len()), all);
        assert!(sockopt::tcp_nodelay(&moved).unwrap());
    }
}

#[test]
fn no_socket_ends_for_want_of_answers_while_it_rests() {
    const TIMEOUT: u32 = 700;
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        hosts::exchange(&mut near, &mut far);
        sockopt::set_tcp_user_timeout(&near, TIMEOUT).unwrap();
        three.far.sh(LOSE);
        near.write_all(b"mine").unwrap();
        three.hold();
        let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
        let snapshot = three.written(&checkpoint).unwrap();
        assert!(
            snapshot
                .options
                .iter()
                .any(|option| { option.kind == OptionKind::UserTimeout && option.value == u64::from(TIMEOUT) })
        );
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| {
            expect_round_trip(three.home(), three.far_address(0).ip(), Duration::from_millis(1), &injector).unwrap();
            Checkpoint::restore(&snapshot, &injector).unwrap()
        });
        let waited = |socket: &dyn AsFd| {
            let since = std::time::Instant::now();
            wait("an answer was waited for in vain", || {
                let enough = since.elapsed() > Duration::from_millis(2 * u64::from(TIMEOUT));
                assert_eq!(info(socket.as_fd()).tcpi_state, 1);
                enough && info(socket.as_fd()).tcpi_retransmits > 2
            });
        };
        waited(&near);
        waited(&restored);
        // A daemon after this one finds it so.
        drop(checkpoint);
        let since = std::time::Instant::now();
        let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
        checkpoint.thaw(&Three::injector(&three.donor)).unwrap();
        // What it has rested since counts as little: milliseconds, on a slow machine.
        let rested = u32::try_from(since.elapsed().as_millis()).unwrap() + 1;
        let timeout = sockopt::tcp_user_timeout(&near).unwrap();
        assert!((TIMEOUT..=TIMEOUT + rested).contains(&timeout), "{timeout} after {rested} ms");
        three.destroy(Checkpoint::freeze(near.into()).unwrap());
        three.lead(plan.acceptor_link);
        three.far.sh(LOSE_NO_MORE);
        // What was sent in vain counts as little after the rest.
        let mut moved = TcpStream::from(restored.thaw(&injector).unwrap());
        assert_eq!(read_exactly(&mut far, 4), b"mine");
        hosts::exchange(&mut moved, &mut far);
        let timeout = sockopt::tcp_user_timeout(&moved).unwrap();
        assert!((TIMEOUT..TIMEOUT + 60_000).contains(&timeout), "{timeout}");
    }
}

#[test]
fn one_that_has_ended_while_it_rested_is_not_said_to_go_on() {
    let three = Three::new(PLANS[0]);
    let (mut near, mut far) = three.connect();
    hosts::exchange(&mut near, &mut far);
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    let mut sockets = three.donor.on(|| SockDiag::open().unwrap());
    let tuple = whimbrel_wire::FlowTuple {
        transport: whimbrel_wire::Transport::Tcp,
        local: near.local_addr().unwrap(),
        remote: near.peer_addr().unwrap(),
    };
    let connection = sockets.find(&tuple).unwrap().unwrap();
    assert!(sockets.destroy(&connection).unwrap());
    let why = checkpoint.thaw(&Three::injector(&three.donor)).unwrap_err().to_string();
    assert!(why.contains("has ended"), "{why}");
}

/// The state of the connection, which goes on.
fn state_of(three: &Three, near: &TcpStream) -> StreamState {
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    let state = stream(&three.written(&checkpoint).unwrap()).state;
    checkpoint.thaw(&Three::injector(&three.donor)).unwrap();
    state
}

/// Does something to a connection that brings its near end into a state, then moves it.
fn moved_in(three: &Three, state: StreamState) {
    let (mut near, mut far) = three.connect();
    hosts::exchange(&mut near, &mut far);
    let finishes_first = matches!(state, StreamState::FinWait1 | StreamState::FinWait2 | StreamState::Closing);
    // What is said and heard before the end, so that something is left to do.
    if state == StreamState::FinWait2 {
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        far.write_all(b"late").unwrap();
        wait("it has arrived", || near.peek(&mut [0; 9]).unwrap() == 4);
    }
    if state.peer_has_finished() && !finishes_first {
        far.write_all(b"last words").unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        wait("the end has arrived", || state_of(three, &near) == StreamState::CloseWait);
    }
    if state != StreamState::Closing {
        three.hold();
    }
    if matches!(state, StreamState::FinWait1 | StreamState::LastAck | StreamState::Closing) {
        three.far.sh(LOSE);
        near.write_all(b"mine").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
    }
    if state == StreamState::Closing {
        // Both ends finish, and neither has heard of it.
        far.write_all(b"last words").unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        wait("the end has arrived", || state_of(three, &near) == state);
        three.hold();
    }
    if state != StreamState::FinWait2 && state != StreamState::CloseWait {
        three.far.sh(LOSE_NO_MORE);
    }
    let checkpoint = Checkpoint::freeze(near.into()).unwrap();
    let snapshot = three.written(&checkpoint).unwrap();
    let mut bytes = Vec::new();
    snapshot.encode(&mut bytes);
    let snapshot = Snapshot::decode(&bytes).unwrap();
    assert_eq!(stream(&snapshot).state, state);
    let injector = Three::injector(&three.acceptor);
    let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
    three.destroy(checkpoint);
    three.lead(three.plan.acceptor_link);
    let mut moved = TcpStream::from(restored.thaw(&injector).unwrap());
    moved.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut heard, mut said) = (Vec::new(), Vec::new());
    match state {
        StreamState::Established => unreachable!(),
        StreamState::FinWait1 | StreamState::FinWait2 => {
            far.write_all(b" enough").unwrap();
            far.read_to_end(&mut heard).unwrap();
            far.shutdown(Shutdown::Write).unwrap();
            moved.read_to_end(&mut said).unwrap();
            let before = if state == StreamState::FinWait2 { "late" } else { "" };
            assert_eq!(said, format!("{before} enough").as_bytes());
            assert_eq!(heard, if state == StreamState::FinWait1 { &b"mine"[..] } else { b"" });
        }
        StreamState::CloseWait | StreamState::LastAck | StreamState::Closing => {
            moved.read_to_end(&mut said).unwrap();
            assert_eq!(said, b"last words");
            if state == StreamState::CloseWait {
                moved.write_all(b"mine").unwrap();
                moved.shutdown(Shutdown::Write).unwrap();
            }
            far.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, b"mine");
        }
    }
    // Nobody is told of a reset.
    assert!(far.take_error().unwrap().is_none() && moved.take_error().unwrap().is_none());
}

#[test]
fn half_closed_connections_move_in_every_state() {
    for plan in PLANS {
        for state in StreamState::ALL.into_iter().filter(|state| *state != StreamState::Established) {
            println!("{state:?} over {}", plan.ip);
            moved_in(&Three::new(plan), state);
        }
    }
}

#[test]
fn a_move_that_is_given_up_leaves_the_connection_as_it_was() {
    let three = Three::new(PLANS[0]);
    let (mut near, mut far) = three.connect();
    sockopt::set_socket_reuseaddr(&near, true).unwrap();
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    assert!(near.write(b"?").is_err(), "a frozen socket takes nothing");
    three.written(&checkpoint).unwrap();
    drop(checkpoint.thaw(&Three::injector(&three.donor)).unwrap());
    assert!(sockopt::socket_reuseaddr(&near).unwrap());
    hosts::exchange(&mut near, &mut far);
}

#[test]
fn what_its_program_has_made_another_connection_of_is_not_woken() {
    let three = Three::new(PLANS[0]);
    let (near, _far) = three.connect();
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    // At rest it needs nobody's consent (`tcp_connect`).
    rustix::net::connect_unspec(&near).unwrap();
    rustix::net::connect(&near, &three.far_address(9)).unwrap();
    let why = checkpoint.thaw(&Three::injector(&three.donor)).unwrap_err().to_string();
    assert!(why.contains("another connection"), "{why}");
    assert!(Checkpoint::is_at_rest(near.as_fd()));
}

#[test]
fn options_of_the_program_go_along_and_no_others() {
    let three = Three::new(PLANS[0]);
    let (near, mut far) = three.connect();
    sockopt::set_tcp_nodelay(&near, true).unwrap();
    sockopt::set_socket_keepalive(&near, true).unwrap();
    sockopt::set_tcp_keepidle(&near, Duration::from_secs(77)).unwrap();
    sockopt::set_tcp_user_timeout(&near, 12_345).unwrap();
    sockopt::set_ip_tos(&near, 0x10).unwrap();
    sockopt::set_socket_linger(&near, Some(Duration::from_secs(3))).unwrap();
    sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
    sockopt::set_socket_timeout(&near, sockopt::Timeout::Send, Some(Duration::from_millis(1500))).unwrap();
    three.hold();
    let (mut moved, snapshot) = three.move_over(near.into());
    let kinds: Vec<_> = snapshot.options.iter().map(|option| (option.kind, option.value)).collect();
    let expected = [
        (OptionKind::KeepAlive, 1),
        (OptionKind::Linger, 3),
        (OptionKind::ReceiveBuffer, 50_000),
        (OptionKind::ReceiveTimeout, PATIENCE.as_micros() as u64),
        (OptionKind::SendTimeout, 1_500_000),
        (OptionKind::TypeOfService, 0x10),
        (OptionKind::NoDelay, 1),
        (OptionKind::KeepIdle, 77),
        (OptionKind::UserTimeout, 12_345),
    ];
    // The kernel draws a priority from the type of service.
    let kinds: Vec<_> = kinds.into_iter().filter(|(kind, _)| *kind != OptionKind::Priority).collect();
    assert_eq!(kinds, expected);
    assert!(sockopt::tcp_nodelay(&moved).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&moved).unwrap(), Duration::from_secs(77));
    assert_eq!(sockopt::tcp_user_timeout(&moved).unwrap(), 12_345);
    assert_eq!(sockopt::ip_tos(&moved).unwrap(), 0x10);
    assert_eq!(sockopt::socket_recv_buffer_size(&moved).unwrap(), 100_000);
    hosts::exchange(&mut moved, &mut far);
}

#[test]
fn datagrams_that_were_not_read_go_along() {
    for plan in PLANS {
        let three = Three::new(plan);
        let far = three.far.on(|| UdpSocket::bind(three.far_address(0)).unwrap());
        let near = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        let home = near.local_addr().unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let last = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        last.set_read_timeout(Some(PATIENCE)).unwrap();
        for datagram in [&b"one"[..], b"", b"three"] {
            far.send_to(datagram, home).unwrap();
        }
        // What was sent before it is there as well.
        far.send_to(b"last", last.local_addr().unwrap()).unwrap();
        last.recv(&mut [0; 9]).unwrap();
        let snapshot = dump(&three.donor, &near);
        three.hold();
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
        three.lead(plan.acceptor_link);
        let moved = UdpSocket::from(restored.thaw(&injector).unwrap());
        moved.set_read_timeout(Some(PATIENCE)).unwrap();
        far.send_to(b"four", home).unwrap();
        let mut buffer = [0; 100];
        for datagram in [&b"one"[..], b"", b"three", b"four"] {
            let length = moved.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], datagram);
        }
        moved.send(b"back").unwrap();
        let (length, from) = far.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"back"[..], home));
    }
}

#[test]
fn what_others_sent_before_a_socket_was_connected_goes_along() {
    for plan in PLANS {
        let three = Three::new(plan);
        let [far, other, third] = [(); 3].map(|()| three.far.on(|| UdpSocket::bind(three.far_address(0)).unwrap()));
        let near = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        let home = near.local_addr().unwrap();
        let all: [(&UdpSocket, &[u8]); 5] =
            [(&other, b"one"), (&far, b"two"), (&third, b"three"), (&other, b"four"), (&other, b"five")];
        for (from, datagram) in all {
            from.send_to(datagram, home).unwrap();
        }
        let count = |socket: &UdpSocket| match &dump(&three.donor, socket).body {
            Body::Datagram(datagrams) => datagrams.queue.len(),
            other => panic!("{other:?}"),
        };
        wait("all have arrived", || count(&near) == all.len());
        near.connect(far.local_addr().unwrap()).unwrap();
        far.send_to(b"last", home).unwrap();
        wait("the last has arrived", || count(&near) == all.len() + 1);
        let snapshot = dump(&three.donor, &near);
        three.hold();
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
        three.lead(plan.acceptor_link);
        let moved = UdpSocket::from(restored.thaw(&injector).unwrap());
        moved.set_read_timeout(Some(PATIENCE)).unwrap();
        for (from, datagram) in all.into_iter().chain([(&far, &b"last"[..])]) {
            let mut buffer = [0; 99];
            let (length, source) = moved.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], source), (datagram, from.local_addr().unwrap()));
        }
        // From now on it hears the one that it is connected to.
        other.send_to(b"stranger", home).unwrap();
        far.send_to(b"friend", home).unwrap();
        let mut buffer = [0; 99];
        let length = moved.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"friend");
        assert_eq!(moved.peer_addr().unwrap(), far.local_addr().unwrap());
    }
}

#[test]
fn a_datagram_that_was_begun_is_a_reason_to_wait() {
    for (plan, connected) in PLANS.into_iter().flat_map(|plan| [(plan, false), (plan, true)]) {
        let three = Three::new(plan);
        let far = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let near = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        let to = far.local_addr().unwrap();
        if connected {
            near.connect(to).unwrap();
        }
        let say = |bytes: &[u8], flags| rustix::net::sendto(&near, bytes, flags, &to).unwrap();
        let freeze = || three.donor.on(|| Checkpoint::freeze(near.try_clone().unwrap().into()));
        freeze().unwrap();
        say(b"be", rustix::net::SendFlags::MORE);
        for _ in 0..2 {
            let why = freeze().unwrap_err().to_string();
            assert!(why.contains("begun"), "{why}");
        }
        // It is as it was.
        say(b"gun", rustix::net::SendFlags::empty());
        freeze().unwrap();
        let mut buffer = [0; 99];
        let length = far.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"begun");
    }
}

#[test]
fn a_queue_that_is_longer_than_a_snapshot_may_be_is_a_reason_to_wait() {
    let three = Three::new(PLANS[0]);
    let near = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
    sockopt::set_socket_recv_buffer_size_force(&near, 512 << 20).unwrap();
    let home = near.local_addr().unwrap();
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    for _ in 0..=whimbrel_wire::snapshot::MAX_QUEUED {
        near.send_to(b"x", home).unwrap();
    }
    let why = three.written(&checkpoint).unwrap_err().to_string();
    assert!(why.contains("more datagrams"), "{why}");
    near.recv(&mut [0]).unwrap();
    three.written(&checkpoint).unwrap();
}

#[test]
fn a_socket_that_was_shut_down_is_so_elsewhere() {
    for plan in PLANS {
        // TCP: what is there is read, and then the end.
        for says_more in [true, false] {
            let three = Three::new(plan);
            let (near, mut far) = three.connect();
            far.write_all(b"before").unwrap();
            wait("it is there", || near.peek(&mut [0; 9]).unwrap() == 6);
            near.shutdown(Shutdown::Read).unwrap();
            if !says_more {
                near.shutdown(Shutdown::Write).unwrap();
                wait("its end is known", || info(&near).tcpi_state == 5);
            }
            three.hold();
            let (mut moved, snapshot) = three.move_over(near.into());
            assert!(snapshot.shut.receive && !snapshot.shut.send);
            moved.set_nonblocking(true).unwrap();
            assert_eq!(read_exactly(&mut moved, 6), b"before");
            assert_eq!(moved.read(&mut [0]).unwrap(), 0);
            if says_more {
                moved.write_all(b"and on").unwrap();
                assert_eq!(read_exactly(&mut far, 6), b"and on");
            }
        }
        // UDP, connected and not.
        let three = Three::new(plan);
        let injector = Three::injector(&three.acceptor);
        for connected in [true, false] {
            for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
                let far = three.far.on(|| UdpSocket::bind(three.far_address(0)).unwrap());
                let near = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
                if connected {
                    near.connect(far.local_addr().unwrap()).unwrap();
                }
                let how_far = match how {
                    Shutdown::Read => rustix::net::Shutdown::Read,
                    Shutdown::Write => rustix::net::Shutdown::Write,
                    Shutdown::Both => rustix::net::Shutdown::Both,
                };
                // One that is not connected is shut down all the same (`inet_shutdown`).
                assert_eq!(rustix::net::shutdown(&near, how_far).is_ok(), connected);
                let [receive, send] = [how != Shutdown::Write, how != Shutdown::Read];
                let snapshot = dump(&three.donor, &near);
                assert_eq!((snapshot.shut.receive, snapshot.shut.send), (receive, send));
                let mut bytes = Vec::new();
                snapshot.encode(&mut bytes);
                let snapshot = Snapshot::decode(&bytes).unwrap();
                let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
                let moved = UdpSocket::from(restored.thaw(&injector).unwrap());
                moved.set_nonblocking(true).unwrap();
                let sent = moved.send_to(b"?", far.local_addr().unwrap());
                let sent = if connected { moved.send(b"?") } else { sent };
                assert_eq!(sent.err().map(|error| error.kind()), send.then_some(ErrorKind::BrokenPipe), "{how:?}");
                // Only who waits is told of the end.
                moved.set_nonblocking(!receive).unwrap();
                moved.set_read_timeout(Some(PATIENCE)).unwrap();
                let read = moved.recv(&mut [0; 9]).map_err(|error| error.kind());
                assert_eq!(read, if receive { Ok(0) } else { Err(ErrorKind::WouldBlock) }, "{how:?}");
            }
        }
    }
}

#[test]
fn a_udp_server_goes_on_with_what_anybody_has_sent() {
    for plan in PLANS {
        let three = Three::new(plan);
        // Of IPv6, at all addresses, and the kernel joins what comes as a train.
        let near = three.donor.on(|| udp::UdpSocket::bind(0).unwrap());
        let home = SocketAddr::new(three.home(), near.port());
        let trains = three.far.on(|| udp::UdpSocket::bind(0).unwrap());
        let train = [&[b'a'; 500][..], &[b'b'; 500], &[b'c'; 77]].concat();
        let transmit = udp::Transmit {
            destination: home,
            source: None,
            interface: None,
            contents: &train,
            segment_size: Some(500),
        };
        assert!(trains.send(&[transmit]).error.is_none());
        let clients = [(); 2].map(|()| three.far.on(|| UdpSocket::bind(three.far_address(0)).unwrap()));
        for (number, client) in clients.iter().enumerate() {
            client.connect(home).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.send(&[number as u8; 9]).unwrap();
            client.send(b"").unwrap();
        }
        let from = |client: &UdpSocket| client.local_addr().unwrap();
        let socket: OwnedFd = near.as_fd().try_clone_to_owned().unwrap();
        let checkpoint = three.donor.on(|| Checkpoint::freeze(socket).unwrap());
        // What was sent before it is there as well.
        let last = three.donor.on(|| UdpSocket::bind(SocketAddr::new(three.home(), 0)).unwrap());
        last.set_read_timeout(Some(PATIENCE)).unwrap();
        let sender = three.far.on(|| UdpSocket::bind(three.far_address(0)).unwrap());
        sender.send_to(b"last", last.local_addr().unwrap()).unwrap();
        last.recv(&mut [0; 9]).unwrap();
        let mut snapshot = three.written(&checkpoint).unwrap();
        let Body::Datagram(datagrams) = &mut snapshot.body else { panic!("{snapshot:?}") };
        let queue = std::mem::take(&mut datagrams.queue);
        let lengths: Vec<_> = queue.iter().map(|queued| queued.bytes.len()).collect();
        assert_eq!(lengths, [500, 500, 77, 9, 0, 9, 0]);
        assert!(queue[0].bytes == train[..500] && queue[2].bytes == train[1000..]);
        assert_eq!([queue[3].from, queue[5].from], [from(&clients[0]), from(&clients[1])]);
        assert!(snapshot.local.ip().is_unspecified());
        let injector = Three::injector(&three.acceptor);
        let restored = three.acceptor.on(|| {
            let restored = Checkpoint::restore(&snapshot, &injector).unwrap();
            restored.requeue(home, &queue, &injector).unwrap();
            restored
        });
        three.destroy(checkpoint);
        // Nobody reads there any more what is read elsewhere.
        let left = UdpSocket::from(near.as_fd().try_clone_to_owned().unwrap());
        left.set_nonblocking(true).unwrap();
        assert_eq!(left.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(
            left.recv(&mut [0; 9]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "said once, and no empty datagrams"
        );
        assert_eq!(left.send_to(b"of two", three.far_address(9)).unwrap_err().kind(), ErrorKind::BrokenPipe);
        three.lead(plan.acceptor_link);
        let moved = UdpSocket::from(restored.thaw(&injector).unwrap());
        moved.set_read_timeout(Some(PATIENCE)).unwrap();
        moved.set_nonblocking(false).unwrap();
        let mut buffer = [0; 1000];
        for queued in &queue {
            let (length, from) = moved.recv_from(&mut buffer).unwrap();
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            assert_eq!((&buffer[..length], from), (&queued.bytes[..], queued.from));
        }
        for client in &clients {
            client.send(b"again").unwrap();
            assert_eq!(moved.recv(&mut buffer).unwrap(), 5);
        }
    }
}

#[test]
fn a_udp_socket_that_would_be_another_one_elsewhere_is_refused() {
    let three = Three::new(PLANS[0]);
    let bound = || three.donor.on(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let checkpoint = |socket: &UdpSocket| {
        let socket = socket.try_clone().unwrap().into();
        three.donor.on(|| Checkpoint::freeze(socket).map(drop).map_err(|why| why.to_string()))
    };
    let member = bound();
    checkpoint(&member).unwrap();
    let (group, at) = ("239.9.8.7".parse().unwrap(), plan_v4(three.plan.donor_link));
    member.join_multicast_v4(&group, &at).unwrap();
    assert!(checkpoint(&member).unwrap_err().contains("multicast"));
    // Groups of others' are no reason.
    checkpoint(&bound()).unwrap();
    member.leave_multicast_v4(&group, &at).unwrap();
    checkpoint(&member).unwrap();
    let member = three.donor.on(|| UdpSocket::bind("[::]:0").unwrap());
    member.join_multicast_v6(&"ff02::4711".parse().unwrap(), 0).unwrap();
    assert!(checkpoint(&member).unwrap_err().contains("multicast"));
}

fn plan_v4(address: &str) -> std::net::Ipv4Addr {
    address.parse().unwrap()
}

fn dump(host: &Host, socket: &UdpSocket) -> Snapshot {
    let _here = host.enter();
    Checkpoint::freeze(socket.try_clone().unwrap().into())
        .unwrap()
        .dump(&defaults(), &mut SockDiag::open().unwrap())
        .unwrap()
}

#[test]
fn a_listener_goes_on_at_another_host() {
    let three = Three::new(PLANS[0]);
    let near = three.donor.on(|| TcpListener::bind(SocketAddr::new(three.home(), 0)).unwrap());
    let address = near.local_addr().unwrap();
    let checkpoint = Checkpoint::freeze(near.into()).unwrap();
    let snapshot = three.written(&checkpoint).unwrap();
    // The standard library sets this one.
    assert!(snapshot.options.iter().all(|option| option.kind == OptionKind::ReuseAddress), "{:?}", snapshot.options);
    let injector = Three::injector(&three.acceptor);
    let restored = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
    three.destroy(checkpoint);
    three.lead(three.plan.acceptor_link);
    let listener = TcpListener::from(restored.thaw(&injector).unwrap());
    let mut far = three.far.on(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    hosts::exchange(&mut far, &mut accepted);
}

#[test]
fn a_listener_comes_home_while_its_program_has_what_is_left_of_it() {
    for plan in PLANS {
        let three = Three::new(plan);
        for reuses in [false, true] {
            let home = SocketAddr::new(three.home(), 0);
            let near = three.donor.on(|| {
                use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
                let family = if home.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket = socket(family, SocketType::STREAM, None).unwrap();
                sockopt::set_socket_reuseaddr(&socket, reuses).unwrap();
                bind(&socket, &home).unwrap();
                listen(&socket, 9).unwrap();
                TcpListener::from(socket)
            });
            let address = near.local_addr().unwrap();
            let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
            let snapshot = three.written(&checkpoint).unwrap();
            let injector = Three::injector(&three.donor);
            let rebuilt = || three.donor.on(|| Checkpoint::restore(&snapshot, &injector));
            assert!(rebuilt().is_err(), "there is one that listens");
            three.destroy(checkpoint);
            let back = TcpListener::from(rebuilt().unwrap().thaw(&injector).unwrap());
            assert_eq!(sockopt::socket_reuseaddr(&back).unwrap(), reuses);
            let others = three.donor.on(|| TcpListener::bind(address));
            assert_eq!(others.unwrap_err().kind(), ErrorKind::AddrInUse);
            let mut far = three.far.on(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
            hosts::exchange(&mut far, &mut back.accept().unwrap().0);
            drop(near);
        }
    }
}

#[test]
fn a_mapped_connection_moves_as_one_of_an_ipv6_socket() {
    let three = Three::new(PLANS[0]);
    let listener = three.donor.on(|| TcpListener::bind("[::]:0").unwrap());
    let to = SocketAddr::new(three.home(), listener.local_addr().unwrap().port());
    let mut far = three.far.on(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
    let (near, _) = listener.accept().unwrap();
    three.hold();
    let (mut moved, snapshot) = three.move_over(near.into());
    assert_eq!(snapshot.family, whimbrel_wire::snapshot::Family::Ipv6);
    assert_eq!(snapshot.local, to);
    hosts::exchange(&mut moved, &mut far);
    assert!(moved.local_addr().unwrap().is_ipv6());
}

#[test]
fn what_cannot_be_moved_is_refused_with_its_reason() {
    let refused = |socket: OwnedFd| match Checkpoint::freeze(socket) {
        Err(Unmovable::Kind(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(refused(file.into()).contains("no socket"));
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(refused(unix.into()).contains("IPv4 and IPv6"));
    let idle = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    assert!(refused(idle).contains("not established"));
    if let Ok(multipath) = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        Some(rustix::net::Protocol::from_raw(262.try_into().unwrap())),
    ) {
        assert!(refused(multipath).contains("Multipath"));
    }
}

/// What TCP_MD5SIG takes (`struct tcp_md5sig`, linux/tcp.h): address, flags, prefix, length, interface, key.
fn sign(socket: impl AsFd, peer: IpAddr) {
    use std::os::fd::AsRawFd;
    let mut signature = [0u8; 216];
    let (family, at, address): (_, usize, Vec<u8>) = match peer {
        IpAddr::V4(v4) => (libc::AF_INET, 4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, 8, v6.octets().to_vec()),
    };
    signature[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    signature[at..at + address.len()].copy_from_slice(&address);
    signature[130..132].copy_from_slice(&6u16.to_ne_bytes());
    signature[136..142].copy_from_slice(b"secret");
    // SAFETY: `signature` is valid for reads of its own size for the duration of the call.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, 14, signature.as_ptr().cast(), 216) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_socket_that_signs_its_segments_stays() {
    for plan in PLANS {
        let three = Three::new(plan);
        let (mut near, mut far) = three.connect();
        let listener = three.donor.on(|| TcpListener::bind(SocketAddr::new(three.home(), 0)).unwrap());
        // One of several that listen there is told from the others.
        let beside: Vec<_> = (0..2)
            .map(|_| {
                three.donor.on(|| {
                    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
                    let family = if three.home().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                    let socket = socket(family, SocketType::STREAM, None).unwrap();
                    sockopt::set_socket_reuseport(&socket, true).unwrap();
                    bind(&socket, &SocketAddr::new(three.home(), 7777)).unwrap();
                    listen(&socket, 9).unwrap();
                    socket
                })
            })
            .collect();
        let needs = |socket: &dyn AsFd| {
            three.donor.on(|| Checkpoint::needs(socket.as_fd(), &defaults(), &mut SockDiag::open().unwrap())).map(drop)
        };
        for socket in [&near as &dyn AsFd, &listener, &beside[0], &beside[1]] {
            needs(socket).unwrap();
        }
        let peer = three.far_address(0).ip();
        let signing: [(&dyn AsFd, OwnedFd); 3] = [
            (&near, near.try_clone().unwrap().into()),
            (&listener, listener.try_clone().unwrap().into()),
            (&beside[1], beside[1].try_clone().unwrap()),
        ];
        sign(&far, three.home());
        for (socket, again) in signing {
            // Also one that gets its key when it has been asked for already.
            let checkpoint = Checkpoint::freeze(again).unwrap();
            three.written(&checkpoint).unwrap();
            sign(socket.as_fd(), peer);
            for why in [needs(socket).unwrap_err(), three.written(&checkpoint).unwrap_err()] {
                assert!(why.to_string().contains("TCP_MD5SIG"), "{why}");
            }
            checkpoint.thaw(&Three::injector(&three.donor)).unwrap();
        }
        needs(&beside[0]).unwrap();
        hosts::exchange(&mut near, &mut far);
    }
}

#[test]
fn urgent_data_that_was_not_read_is_a_reason_to_wait() {
    let three = Three::new(PLANS[0]);
    let (mut near, mut far) = three.connect();
    far.write_all(b"before").unwrap();
    rustix::net::send(&far, b"!", rustix::net::SendFlags::OOB).unwrap();
    far.write_all(b"after").unwrap();
    let mut urgent = [0];
    wait("it has arrived", || {
        rustix::net::recv(near.as_fd(), &mut urgent[..], rustix::net::RecvFlags::OOB | rustix::net::RecvFlags::PEEK)
            .is_ok()
    });
    let refused = || Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap_err();
    assert!(refused().to_string().contains("urgent"), "{}", refused());
    // Read out of turn: what is behind its mark is still out of reach.
    rustix::net::recv(near.as_fd(), &mut urgent[..], rustix::net::RecvFlags::OOB).unwrap();
    assert_eq!(&urgent, b"!");
    assert!(refused().to_string().contains("urgent"), "{}", refused());
    assert_eq!(read_exactly(&mut near, 6), b"before");
    assert_eq!(read_exactly(&mut near, 5), b"after");
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    checkpoint.thaw(&Three::injector(&three.donor)).unwrap();
}

#[test]
fn an_urgent_byte_that_was_read_out_of_turn_is_passed_over() {
    for before in [&b""[..], b"before"] {
        let three = Three::new(PLANS[0]);
        let (near, mut far) = three.connect();
        far.write_all(before).unwrap();
        rustix::net::send(&far, b"!", rustix::net::SendFlags::OOB).unwrap();
        let mut urgent = [0];
        wait("it has been read", || {
            rustix::net::recv(near.as_fd(), &mut urgent[..], rustix::net::RecvFlags::OOB).is_ok()
        });
        three.hold();
        let (mut moved, _) = three.move_over(near.into());
        assert_eq!(read_exactly(&mut moved, before.len()), before);
        hosts::exchange(&mut moved, &mut far);
    }
}

#[test]
fn a_target_that_lacks_the_address_leaves_nothing_behind() {
    let three = Three::new(PLANS[0]);
    let (mut near, mut far) = three.connect();
    let checkpoint = Checkpoint::freeze(near.try_clone().unwrap().into()).unwrap();
    let snapshot = three.written(&checkpoint).unwrap();
    let home = three.plan.home;
    three.acceptor.sh(&format!("ip addr del {home}/32 dev lo"));
    let injector = Three::injector(&three.acceptor);
    let error = three.acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap_err();
    assert!(error.to_string().contains(home), "{error}");
    drop(checkpoint.thaw(&Three::injector(&three.donor)).unwrap());
    hosts::exchange(&mut near, &mut far);
}

/// `cargo test --release -p whimbrel-kernel --test checkpoint -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a test"]
fn what_it_costs() {
    let three = Three::new(PLANS[0]);
    let pairs: Vec<_> = (0..1000).map(|_| three.connect()).collect();
    let defaults = three.donor.on(defaults);
    let injector = Three::injector(&three.acceptor);
    let ends: Vec<OwnedFd> = pairs.iter().map(|(near, _)| near.try_clone().unwrap().into()).collect();
    let each = |since: std::time::Instant| since.elapsed().as_secs_f64() * 1e6 / pairs.len() as f64;
    let began = std::time::Instant::now();
    let checkpoint: Vec<_> = ends.into_iter().map(|end| Checkpoint::freeze(end).unwrap()).collect();
    println!("freeze  {:5.1} us", each(began));
    let began = std::time::Instant::now();
    let mut sockets = three.donor.on(|| SockDiag::open().unwrap());
    let snapshots: Vec<_> = checkpoint.iter().map(|end| end.dump(&defaults, &mut sockets).unwrap()).collect();
    println!("dump    {:5.1} us", each(began));
    let _there = three.acceptor.enter();
    let began = std::time::Instant::now();
    let restored: Vec<_> = snapshots.iter().map(|end| Checkpoint::restore(end, &injector).unwrap()).collect();
    println!("restore {:5.1} us", each(began));
    let began = std::time::Instant::now();
    checkpoint.into_iter().for_each(|end| end.destroy(&mut sockets).unwrap());
    println!("destroy {:5.1} us", each(began));
    let began = std::time::Instant::now();
    restored.into_iter().for_each(|end| drop(end.thaw(&injector).unwrap()));
    println!("thaw    {:5.1} us", each(began));
}
