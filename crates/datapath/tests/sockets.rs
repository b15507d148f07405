//! Sockets are followed and looked up, in one namespace and no other.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use support::pair::{Pair, all_events, binding, entry, events, find, flow, get, set};
use support::{is_root, run};
use whimbrel_datapath::{Carrier, Datapath, Event, Most, Origin, TcpSocket};
use whimbrel_wire::packet::Ip;
use whimbrel_wire::{BindingId, FlowTuple, PeerId};

const BINDING: BindingId = BindingId::first(PeerId(7));
/// Drains until `count` events have come.
fn wait(datapath: &mut Datapath, count: usize) -> Vec<Event> {
    let mut seen = Vec::new();
    while seen.len() < count {
        seen.extend(events(datapath));
        std::thread::yield_now();
    }
    assert_eq!(seen.len(), count);
    seen
}

#[test]
fn connections_are_followed_in_their_own_namespace() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut near_datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    near_datapath.track(true).expect("track");
    pair.far.enter();
    let mut far_datapath = Datapath::open(&pair.bpffs.pins("far")).expect("open");
    far_datapath.track(true).expect("track");
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        let (near, far) = pair.connect(to);
        let opened = Event::FlowOpened { flow: flow(&near), origin: Origin::Connected, user: 0 };
        assert_eq!(wait(&mut near_datapath, 1), [opened]);
        let accepted = Event::FlowOpened { flow: flow(&far), origin: Origin::Accepted, user: 0 };
        assert_eq!(wait(&mut far_datapath, 1), [accepted]);
        let (near_flow, far_flow) = (flow(&near), flow(&far));
        drop((near, far));
        assert_eq!(wait(&mut near_datapath, 1), [Event::FlowClosed { flow: near_flow }]);
        assert_eq!(wait(&mut far_datapath, 1), [Event::FlowClosed { flow: far_flow }]);
    }

    // IPv4 on an IPv6 socket, refused connections and loopback.
    let (near, far) = pair.connect("[::ffff:10.0.0.2]:0");
    assert_eq!(
        wait(&mut near_datapath, 1),
        [Event::FlowOpened { flow: flow(&near), origin: Origin::Connected, user: 0 }]
    );
    let accepted = Event::FlowOpened { flow: flow(&far), origin: Origin::Accepted, user: 0 };
    assert_eq!(wait(&mut far_datapath, 1), [accepted]);
    assert!(flow(&far).local.is_ipv4());
    TcpStream::connect("10.0.0.2:1").expect_err("nobody listens");
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).expect("listen");
    drop(TcpStream::connect(listener.local_addr().expect("address")).expect("connect"));
    assert_eq!(events(&mut near_datapath), []);

    near_datapath.track(false).expect("track no more");
    drop((near, far));
    assert_eq!(wait(&mut far_datapath, 1).len(), 1);
    assert_eq!(events(&mut near_datapath), []);
    near_datapath.unload().expect("unload");
    far_datapath.unload().expect("unload");
}

/// An introduction by a datagram, behind the headers of Ethernet, IPv4 and UDP.
fn introduction(index: u32) -> Vec<u8> {
    let data = [b"\xffWBintro".as_slice(), &index.to_be_bytes(), &[7; 8]].concat();
    let ip = Ip::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into()).udp(40_000, 443, &data).expect("a packet");
    [&[2; 12], &[8, 0][..], &ip].concat()
}

#[test]
fn what_sockets_do_is_told_whatever_strangers_send() {
    // P-142
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.track(true).expect("track");
    // More than any ring buffer holds.
    for index in 1..=10 {
        datapath.listen_introductions(index).expect("listen");
        for _ in 0..1024 {
            run(datapath.program("introductions_l2").expect("program"), &introduction(index));
        }
    }
    let (near, _far) = pair.connect("10.0.0.2:0");
    let mut seen = Vec::new();
    datapath.drain_events(Most::OF_SOCKETS, |event| seen.push(event)).expect("drain");
    let opening = Event::FlowOpening { remote: [10, 0, 0, 2].into() };
    assert_eq!(seen, [opening, Event::FlowOpened { flow: flow(&near), origin: Origin::Connected, user: 0 }]);
    datapath.unload().expect("unload");
}

#[test]
fn connections_over_loopback_take_no_room() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.track(true).expect("track");
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).expect("listen");
    let address = listener.local_addr().expect("address");
    // Each is opened and closed at either end; a record takes 80 of 512 Ki bytes.
    for _ in 0..2000 {
        let there = TcpStream::connect(address).expect("connect");
        let (here, _) = listener.accept().expect("accept");
        drop((there, here));
    }
    let (near, _far) = pair.connect("10.0.0.2:0");
    assert_eq!(events(&mut datapath), [Event::FlowOpened { flow: flow(&near), origin: Origin::Connected, user: 0 }]);
    datapath.unload().expect("unload");
}

/// How often a reader that sleeps until it is woken would have been woken since it was last asked: never or at all.
struct Sleeper(OwnedFd);

impl Sleeper {
    fn new(datapath: &Datapath) -> Self {
        // SAFETY: takes flags.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0, "epoll_create1: {}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that nobody else has.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        let ring = datapath.event_fd().as_raw_fd();
        // SAFETY: open descriptors, and an event that the kernel reads.
        let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, ring, &raw mut event) };
        assert_eq!(added, 0, "epoll_ctl: {}", std::io::Error::last_os_error());
        Self(epoll)
    }

    /// Waits no longer than it takes the kernel to run the wake-up, which it puts off to an interrupt.
    fn is_woken(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for the one event that is asked for.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, 100) > 0 }
    }
}

#[test]
fn a_reader_is_woken_when_it_has_fallen_behind_and_not_for_each_event() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    // Where connections are accepted.
    pair.far.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("far")).expect("open");
    datapath.track(true).expect("track");
    let sleeper = Sleeper::new(&datapath);
    let mut streams: Vec<_> = (0..10).map(|_| pair.connect("10.0.0.2:0")).collect();
    assert!(!sleeper.is_woken(), "for a few");
    // An eighth of the ring buffer: 64 KiB.
    let record = 8 + 72;
    streams.extend((10..65_536 / record).map(|_| pair.connect("10.0.0.2:0")));
    assert!(!sleeper.is_woken(), "just before the step");
    streams.push(pair.connect("10.0.0.2:0"));
    assert!(sleeper.is_woken(), "at the step");
    streams.push(pair.connect("10.0.0.2:0"));
    assert!(!sleeper.is_woken(), "for each that follows");
    drop(streams);
    assert!(sleeper.is_woken(), "at a later step");
    datapath.unload().expect("unload");
}

#[test]
fn a_reader_is_woken_for_what_this_host_opens_unless_that_is_very_much() {
    // P-200
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    datapath.track(true).expect("track");
    let sleeper = Sleeper::new(&datapath);
    for (to, remote) in [("10.0.0.2:0", "10.0.0.2"), ("[fd00::2]:0", "fd00::2")] {
        let (near, _far) = pair.connect(to);
        assert!(sleeper.is_woken());
        let opened = Event::FlowOpened { flow: flow(&near), origin: Origin::Connected, user: 0 };
        let opening = Event::FlowOpening { remote: remote.parse().expect("an address") };
        assert_eq!(all_events(&mut datapath), [opening, opened]);
        drop(near);
        assert_eq!(wait(&mut datapath, 1).len(), 1);
    }
    let began = std::time::Instant::now();
    let streams: Vec<_> = (0..400).map(|_| pair.connect("10.0.0.2:0")).collect();
    let periods = began.elapsed().as_millis() as usize / 250 + 2;
    let told = all_events(&mut datapath);
    let beginnings = told.iter().filter(|event| matches!(event, Event::FlowOpening { .. })).count();
    assert!(beginnings <= 8 * periods && beginnings < streams.len(), "{beginnings} in {periods} periods");
    assert_eq!(told.len() - beginnings, streams.len(), "each that is there is told of");
    datapath.unload().expect("unload");
}

#[test]
fn sockets_are_looked_up_with_their_state() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let streams: Vec<_> = (0..200).map(|i| pair.connect(["10.0.0.2:0", "[fd00::2]:0"][i % 2])).collect();
    let flows: Vec<_> = streams.iter().map(|(near, _)| flow(near)).collect();
    let sockets = datapath.look_up(&flows).expect("look");
    assert_eq!(sockets.len(), streams.len());
    for (near, _) in &streams {
        let socket = sockets.iter().find(|socket| socket.flow == flow(near)).expect("every socket is there");
        assert_eq!(socket.state, 1);
        assert_eq!(socket.snd_una, socket.snd_nxt);
        let expected = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(near)));
        assert_eq!(socket.inode, std::os::unix::fs::MetadataExt::ino(&expected.expect("stat")));
        assert_eq!((socket.backoff, socket.retransmits, socket.bound_interface, socket.uid), (0, 0, 0, 0));
        assert_eq!(socket.pmtu_cookie, 1500);
        assert!(socket.mss_cache > 1400 && socket.mss_cache < 1460);
        // The same of one alone.
        assert_eq!(datapath.tcp_position(&flow(near)).expect("look"), Some(socket.into()));
    }
    let stranger =
        FlowTuple { local: (streams[0].0.local_addr().expect("local").ip(), 1).into(), ..flow(&streams[0].0) };
    assert_eq!(datapath.tcp_position(&stranger).expect("look"), None);
    assert_eq!(datapath.look_up(&[stranger]).expect("look"), []);
    // More than are looked up at once; some have none.
    let many: Vec<_> = (0..3000).map(|number| if number % 3 == 0 { stranger } else { flows[number % 200] }).collect();
    assert_eq!(datapath.look_up(&many).expect("look").len(), 2000);
    let (mut near, mut far) = streams.into_iter().next().expect("there are some");
    let before = find(&datapath, &near);
    assert_eq!(before.write_seq, before.snd_nxt);
    near.write_all(&[0; 100]).expect("write");
    far.read_exact(&mut [0; 100]).expect("read");
    let after = find(&datapath, &near);
    assert_eq!((before.receives, after.receives), (false, false), "who only sends receives nothing");
    far.write_all(&[0; 10]).expect("write");
    near.read_exact(&mut [0; 10]).expect("read");
    assert!(find(&datapath, &near).receives);
    assert_eq!(after.snd_nxt, before.snd_nxt.wrapping_add(100));
    assert_eq!(after.write_seq, after.snd_nxt);
    assert_eq!(after.inode, before.inode);
    // Whatever comes counts, so also the answer to a keepalive, which brings nothing new (P-206).
    assert!(!after.round_trip.is_zero() && after.round_trip < Duration::from_secs(1), "{after:?}");
    let until = |good: &dyn Fn(&TcpSocket) -> bool| loop {
        let socket = find(&datapath, &near);
        if good(&socket) {
            break socket;
        }
        std::thread::yield_now();
    };
    let before = until(&|socket| socket.snd_una == socket.snd_nxt);
    set(&near, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1);
    set(&near, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    let heard = until(&|socket| socket.heard != before.heard);
    assert_eq!((heard.heard, heard.received), (before.heard + 1, before.received));
    set(&near, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0);

    // With nobody to acknowledge, the timer backs off.
    pair.far.run("ip addr flush dev v");
    near.write_all(&[0; 100]).expect("write");
    loop {
        let socket = find(&datapath, &near);
        assert_eq!(socket.snd_nxt.wrapping_sub(socket.snd_una), 100);
        if socket.backoff >= 2 && socket.retransmits >= 2 {
            break;
        }
    }
    // An urgent byte is one until it is acknowledged, whatever has come before it and comes behind it.
    let is_urgent = || datapath.is_urgent(&flow(&near)).expect("look");
    assert!(!is_urgent());
    // SAFETY: the one byte is there for the duration of the call.
    let sent = unsafe { libc::send(near.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!((sent, is_urgent()), (1, true));
    (&near).write_all(&[0; 100]).expect("write");
    assert!(is_urgent());
    pair.far.run("ip addr add 10.0.0.2/24 dev v");
    // The byte itself is out of the stream.
    far.read_exact(&mut [0; 200]).expect("read");
    while is_urgent() {
        std::thread::yield_now();
    }
    datapath.unload().expect("unload");
}

#[test]
fn a_sender_that_is_answered_for_a_part_of_what_it_has_sent_again_stands_still() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.run("ip route replace 10.0.0.0/24 dev v src 10.0.0.1 congctl cubic");
    let (near, mut far) = pair.connect("10.0.0.2:0");
    near.set_nodelay(true).expect("option");
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let until = |good: &dyn Fn(&TcpSocket) -> bool| loop {
        let socket = find(&datapath, &near);
        if good(&socket) {
            break socket;
        }
        std::thread::yield_now();
    };
    // The first of two segments arrives, and what acknowledges it does not; both are sent again as one.
    pair.mute();
    (&near).write_all(&[1; 600]).expect("write");
    far.read_exact(&mut [0; 600]).expect("read");
    pair.cut();
    (&near).write_all(&[2; 600]).expect("write");
    let before = until(&|socket| socket.backoff >= 2 && socket.retransmits >= 2);
    pair.unmute();
    far.write_all(b"!").expect("write");
    let after = until(&|socket| socket.snd_una != before.snd_una);
    assert_eq!((after.snd_una, after.retransmits), (before.snd_una.wrapping_add(600), 0));
    assert!(after.stands_still && after.backoff > 0, "{after:?}");
    // It goes on with its timer, and then it does not stand still.
    pair.mend();
    far.read_exact(&mut [0; 600]).expect("read");
    assert!(!until(&|socket| socket.snd_una == socket.snd_nxt).stands_still);
    (&near).read_exact(&mut [0]).expect("read");
    datapath.unload().expect("unload");
}

#[test]
fn both_ends_tell_the_same_initial_numbers() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.enter();
    let far_datapath = Datapath::open(&pair.bpffs.pins("far")).expect("open");
    // The end that accepts counts from the first byte on.
    let agree = |near: &TcpStream, far: &TcpStream, near_datapath: &Datapath| {
        pair.near.enter();
        let one = find(near_datapath, near);
        pair.far.enter();
        let other = find(&far_datapath, far);
        assert_eq!(one.first_sent().wrapping_add(1), other.first_received(), "{one:?} {other:?}");
        assert_eq!(one.first_received(), other.first_sent(), "{one:?} {other:?}");
        (one.first_sent(), one.first_received())
    };
    pair.near.enter();
    let near_datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    for to in ["10.0.0.2:0", "[fd00::2]:0"] {
        for options in ["1", "0"] {
            for option in ["timestamps", "window_scaling"] {
                pair.near.sysctl(&format!("net.ipv4.tcp_{option}"), options);
            }
            let (mut near, mut far) = pair.connect(to);
            let at_first = agree(&near, &far, &near_datapath);
            for length in [1, 3_000_000] {
                let mut buffer = vec![0; length];
                std::thread::scope(|scope| {
                    scope.spawn(|| near.write_all(&vec![1; length]).expect("write"));
                    far.read_exact(&mut buffer).expect("read");
                });
                std::thread::scope(|scope| {
                    scope.spawn(|| far.write_all(&buffer).expect("write"));
                    near.read_exact(&mut vec![0; length]).expect("read");
                });
                assert_eq!(agree(&near, &far, &near_datapath), at_first);
            }
            // One end has finished; it is acknowledged at once.
            near.shutdown(std::net::Shutdown::Write).expect("shut down");
            assert_eq!(far.read(&mut [0]).expect("read"), 0);
            assert_eq!(agree(&near, &far, &near_datapath), at_first);
        }
    }
    near_datapath.unload().expect("unload");
    far_datapath.unload().expect("unload");
}

#[test]
fn sockets_that_report_errors_are_told() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let connections: Vec<_> = (0..4).map(|i| pair.connect(["10.0.0.2:0", "[fd00::2]:0"][i / 2])).collect();
    set(&connections[1].0, libc::SOL_IP, libc::IP_RECVERR, 1);
    set(&connections[3].0, libc::SOL_IPV6, libc::IPV6_RECVERR, 1);
    let reports: Vec<bool> = connections.iter().map(|(near, _)| find(&datapath, near).reports_errors).collect();
    assert_eq!(reports, [false, true, false, true]);
    set(&connections[1].0, libc::SOL_IP, libc::IP_RECVERR, 0);
    assert!(!find(&datapath, &connections[1].0).reports_errors);
    datapath.unload().expect("unload");
}

/// Memory that is not there before this is dropped: whoever reads it waits.
struct Missing {
    uffd: OwnedFd,
    at: *mut libc::c_void,
}

impl Missing {
    const BYTES: usize = 4096;
    /// `UFFDIO_API`, `UFFDIO_REGISTER`, and what they take (linux/userfaultfd.h).
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;

    fn new() -> Self {
        // SAFETY: takes flags; the descriptor is new, and nobody else has it.
        let uffd = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32) };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let mut api = [0xaa_u64, 0, 0];
        let mut register = [at as u64, Self::BYTES as u64, 1, 0];
        for (call, told) in [(Self::API, api.as_mut_ptr()), (Self::REGISTER, register.as_mut_ptr())] {
            // SAFETY: room for what the call takes and gives.
            let result = unsafe { libc::ioctl(uffd.as_raw_fd(), call, told) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        }
        Self { uffd, at }
    }
}

#[test]
fn a_socket_that_its_program_holds_keeps_no_look_up_waiting() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let (near, _far) = pair.connect("10.0.0.2:0");
    let (other, _other_far) = pair.connect("10.0.0.2:0");
    let flows = [flow(&near), flow(&other)];
    datapath.insert_flows(&[entry(&near, BINDING, false), entry(&other, BINDING, false)]).expect("insert");
    let missing = Missing::new();
    let (fd, at) = (near.as_raw_fd(), missing.at as usize);
    // It sleeps with the lock of the socket.
    let sender = std::thread::spawn(move || {
        // SAFETY: memory that is there before the thread is waited for.
        unsafe { libc::send(fd, at as *const libc::c_void, Missing::BYTES, 0) }
    });
    let mut event = [0_u8; 32];
    // SAFETY: room for the one event that is read, which is there once somebody waits.
    let read = unsafe { libc::read(missing.uffd.as_raw_fd(), event.as_mut_ptr().cast(), event.len()) };
    assert_eq!(read, 32);

    let begun = std::time::Instant::now();
    assert_eq!(datapath.look_up(&flows).expect("look").len(), 2);
    assert_eq!(datapath.on_lapse(&flows).expect("note").len(), 2);
    assert!(datapath.tcp_position(&flows[0]).expect("look").is_some());
    assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    // Whoever goes through them all waits, in a thread of its own.
    let apart = datapath.sockets_apart().expect("apart");
    let pass = std::thread::spawn(move || apart.fit(&[]));
    assert!(!sender.is_finished() && !pass.is_finished());
    drop(missing.uffd);
    assert_eq!(sender.join().expect("sender"), Missing::BYTES as isize);
    pass.join().expect("pass").expect("fit");
    datapath.unload().expect("unload");
}

/// SO_BINDTOIFINDEX, `asm-generic/socket.h`.
const SO_BINDTOIFINDEX: i32 = 62;

#[test]
fn sockets_of_moved_flows_are_bound_to_no_device() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let pins = pair.bpffs.pins("near");
    let mut datapath = Datapath::open(&pins).expect("open");
    let (bound, _far) = pair.connect("10.0.0.2:0");
    let (stranger, _strangers_far) = pair.connect("[fd00::2]:0");
    // SAFETY: a terminated string.
    let device = unsafe { libc::if_nametoindex(c"v".as_ptr()) };
    for stream in [&bound, &stranger] {
        set(stream, libc::SOL_SOCKET, SO_BINDTOIFINDEX, device as i32);
    }
    datapath.insert_flows(&[entry(&bound, BINDING, false)]).expect("insert");
    let bind = |datapath: &Datapath, place: u32| {
        datapath.set_binding(BINDING, &binding(place, Carrier::Hold, false)).expect("bind");
    };
    let changed = |datapath: &Datapath, interfaces: &[u32]| {
        let fitted = datapath.fit_sockets(interfaces).expect("fit");
        assert_eq!(fitted.waiting, 0);
        fitted.changed
    };
    let devices = |datapath: &Datapath| [&bound, &stranger].map(|stream| find(datapath, stream).bound_interface);

    bind(&datapath, 0);
    assert_eq!(changed(&datapath, &[device]), 0);
    assert_eq!(devices(&datapath), [device, device]);

    bind(&datapath, 1);
    assert_eq!(changed(&datapath, &[device]), 1);
    assert_eq!(devices(&datapath), [0, device]);
    assert_eq!(changed(&datapath, &[device]), 0);

    // Another daemon knows as well, and binds it to no device that is gone.
    drop(datapath);
    datapath = Datapath::open(&pins).expect("open again");
    bind(&datapath, 0);
    assert_eq!(changed(&datapath, &[]), 0);
    assert_eq!(devices(&datapath), [0, device]);
    assert_eq!(changed(&datapath, &[device]), 1);
    assert_eq!(devices(&datapath), [device, device]);

    // What its program has bound anew stays so.
    bind(&datapath, 1);
    assert_eq!(changed(&datapath, &[device]), 1);
    bind(&datapath, 0);
    set(&bound, libc::SOL_SOCKET, SO_BINDTOIFINDEX, device as i32);
    assert_eq!(changed(&datapath, &[device]), 0);
    assert_eq!(devices(&datapath), [device, device]);

    // Nobody would bind it later.
    bind(&datapath, 1);
    assert_eq!(changed(&datapath, &[device]), 1);
    datapath.unload().expect("unload");
    let index = |stream| get(stream, libc::SOL_SOCKET, SO_BINDTOIFINDEX).cast_unsigned();
    assert_eq!([&bound, &stranger].map(index), [device, device]);
}

#[test]
fn flows_that_get_no_answer_are_told() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
    let [mut known, mut stranger, idle, mut deliveries] =
        [0, 1, 0, 1].map(|at| pair.connect(["10.0.0.2:0", "[fd00::2]:0"][at]));
    let flows = [&known.0, &idle.0].map(|stream| entry(stream, BINDING, false));
    datapath.insert_flows(&flows).expect("insert");
    // The other end of a flow of the same names is in another namespace.
    let (own, entry) = flows[0];
    let far = FlowTuple { local: flow(&deliveries.1).local, remote: flow(&deliveries.1).remote, ..own };
    datapath.insert_flows(&[(far, entry)]).expect("insert");
    datapath.track(true).expect("track");
    // It is not given up meanwhile.
    for (name, value) in [(libc::TCP_KEEPIDLE, 1), (libc::TCP_KEEPINTVL, 1), (libc::TCP_KEEPCNT, 127)] {
        set(&idle.0, libc::SOL_TCP, name, value);
    }
    set(&idle.0, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    // What is answered is nothing to tell: data, and the probes of two seconds.
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(2_500) {
        known.0.write_all(&[0; 100]).expect("write");
        known.1.read_exact(&mut [0; 100]).expect("read");
    }
    assert_eq!(events(&mut datapath), []);

    pair.cut();
    pair.mute();
    let sleeper = Sleeper::new(&datapath);
    for stream in [&mut known.0, &mut stranger.0, &mut deliveries.1] {
        stream.write_all(&[0; 100]).expect("write");
    }
    let mut seen = Vec::new();
    let stalls = |seen: &[Event], of: &FlowTuple| -> Vec<u32> {
        let attempts = |event: &Event| match event {
            Event::FlowStalled { flow, attempts } if flow == of => Some(*attempts),
            _ => None,
        };
        seen.iter().filter_map(attempts).collect()
    };
    let told = |seen: &[Event], of: &FlowTuple| stalls(seen, of).len();
    assert!((0..200).any(|_| sleeper.is_woken()), "at the first");
    // Not every kernel lets a program see probes.
    let of_probes = if datapath.sees_probes() { 2 } else { 0 };
    while told(&seen, &flows[0].0) < 2 || told(&seen, &flows[1].0) < of_probes {
        // How long its timer is depends on the round trips that it has had on a busy machine.
        let attempts = find(&datapath, &known.0).retransmits;
        seen.extend(events(&mut datapath));
        assert!(attempts < 8, "{seen:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // At the second of its timer, and at the fourth.
    assert!((4..8).contains(&find(&datapath, &known.0).retransmits));
    assert!(find(&datapath, &stranger.0).retransmits >= 2);
    let all: usize = flows.iter().map(|(own, _)| told(&seen, own)).sum();
    assert_eq!(all, seen.len(), "{seen:?}");
    assert_eq!(stalls(&seen, &flows[0].0), [2, 4]);
    datapath.track(false).expect("track no more");
    datapath.unload().expect("unload");
}
