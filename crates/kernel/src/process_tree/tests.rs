use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use super::*;

/// What whoever runs the tests has left open does not go to their children.
fn keep_what_is_open() {
    // SAFETY: it changes a flag of descriptors, and those that children are given are duplicated for them without it.
    unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

/// A process with these for standard input and output.
fn start(input: Stdio, output: Stdio) -> Child {
    keep_what_is_open();
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(input).stdout(output).stderr(Stdio::null()).current_dir("/");
    command.spawn().expect("sleep")
}

/// What [`look`] says once the child has become its program.
fn looked(child: &Child, scope: Scope) -> Result<ProcessTree, Unfit> {
    let since = Instant::now();
    while process::name_of(child.id()) != "sleep" {
        assert!(since.elapsed().as_secs() < 10, "it does not start");
        std::thread::yield_now();
    }
    look(child.id(), scope)
}

fn ended(pids: &[u32]) {
    let seen: Vec<Seen> = pids.iter().copied().map(Seen::now).collect();
    end(&seen).expect("end");
}

fn finish(mut child: Child) {
    ended(&[child.id()]);
    child.wait().expect("wait");
}

#[test]
fn what_has_the_number_of_a_process_that_was_seen_is_not_signalled() {
    let mut child = start(Stdio::null(), Stdio::null());
    let seen = Seen::now(child.id());
    // As if the number had been another one's before.
    let before = Seen::then(seen.pid(), seen.started().map(|started| started - 1));
    assert!(seen.is_there() && !before.is_there() && !Seen::then(seen.pid(), None).is_there());
    let gone = |result: Result<(), Error>| result.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
    assert!(gone(before.signal(Signal::KILL)));
    end(&[before]).expect("it is gone");
    assert!(gone(wake(&[before])));
    assert!(child.try_wait().expect("wait").is_none(), "the one that has the number now lives");
    end(&[seen]).expect("end");
    child.wait().expect("wait");
    assert!(gone(seen.signal(Signal::CONT)));
}

#[test]
fn a_process_and_what_it_needs_are_found() {
    let child = start(Stdio::null(), Stdio::null());
    let process_tree = looked(&child, Scope::Alone).expect("it can go");
    assert_eq!(
        (process_tree.root, process_tree.pids.as_slice(), process_tree.inner.len()),
        (child.id(), &[child.id()][..], 1)
    );
    assert!(
        process_tree.name == "sleep" && process_tree.memory > 0 && !process_tree.apart && process_tree.flows.is_empty()
    );
    let named = |name: &str| process_tree.files.iter().any(|(path, length)| path.ends_with(name) && length.is_some());
    assert!(named("libc.so.6"), "{:?}", process_tree.files);
    assert!(process_tree.files.contains(&(PathBuf::from("/"), None)), "{:?}", process_tree.files);
    assert!(lacking(&process_tree.files).is_empty());
    assert!(started(child.id()).is_some() && !is_traced(child.id()));
    finish(child);
}

#[test]
fn a_file_that_grows_is_wanted_with_no_length() {
    let path = std::env::temp_dir().join(format!("whimbrel-log-{}", std::process::id()));
    let log = std::fs::File::options().append(true).create(true).open(&path).expect("open");
    let reader = std::fs::File::open(&path).expect("open");
    let writes = start(Stdio::null(), log.into());
    let reads = start(reader.into(), Stdio::null());
    let length = |child: &Child| {
        let files = looked(child, Scope::Alone).expect("it can go").files;
        files.into_iter().find_map(|(file, length)| (file == path).then_some(length))
    };
    let lengths = (length(&writes), length(&reads));
    std::fs::remove_file(&path).expect("unlink");
    finish(writes);
    finish(reads);
    assert_eq!(lengths, (Some(None), Some(Some(0))));
}

#[test]
fn a_process_that_may_not_be_looked_into_is_not_said_to_be_absent() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root has what another may not look into");
        return;
    }
    let child = start(Stdio::null(), Stdio::null());
    let pid = child.id();
    let nobody = move || {
        let mut held = rustix::thread::capabilities(None).expect("capget");
        held.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, held).expect("capset");
        look(pid, Scope::Tree)
    };
    // The rights are those of one thread.
    let told = std::thread::spawn(nobody).join().expect("the thread").expect_err("it is another's");
    assert!(matches!(told, Unfit::Closed(of) if of == pid) && told.to_string().contains("CAP_SYS_PTRACE"), "{told}");
    assert!(matches!(look(u32::MAX, Scope::Tree), Err(Unfit::Gone(_))));
    finish(child);
}

#[test]
fn there_is_room_for_what_comes_before_a_process_goes_on() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let held: OwnedFd = socket.try_clone().expect("dup").into();
    let child = start(held.into(), Stdio::null());
    let mine: OwnedFd = socket.into();
    let size = || rustix::net::sockopt::socket_recv_buffer_size(&mine).expect("SO_RCVBUF");
    let (before, done) = (size(), make_room(&[child.id()]));
    // Beyond the limit for all only who may administrate the network sets it.
    if rustix::process::geteuid().is_root() {
        done.expect("room");
        assert!(size() > before && size() >= 1 << 20, "{} bytes, before {before}", size());
    }
    finish(child);
}

#[test]
fn what_is_not_there_is_said() {
    let files = [
        (PathBuf::from("/nonexistent/file"), Some(3)),
        (PathBuf::from("/proc/self/exe"), Some(3)),
        (PathBuf::from("/"), Some(3)),
        (PathBuf::from("/"), None),
    ];
    let said = lacking(&files);
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(said[0], "/nonexistent/file is missing");
    assert!(said[1].contains("instead of 3") && said[2] == "/ is no file of 3 bytes", "{said:?}");
    assert!(matches!(look(u32::MAX, Scope::Tree), Err(Unfit::Gone(_))));
    assert!(matches!(look(std::process::id(), Scope::Tree), Err(Unfit::Company(_))));
    for scope in [Scope::Alone, Scope::Tree, Scope::Cgroup] {
        let said = look(1, scope).expect_err("the first of all").to_string();
        assert!(said.starts_with("process 1 starts and ends all others"), "{said}");
        let parent = std::os::unix::process::parent_id();
        let said = look(parent, scope).expect_err("what has started this one").to_string();
        assert!(parent == 1 || said.ends_with("has started Whimbrel itself, which stays"), "{said}");
    }
}

#[test]
fn a_pipe_to_a_process_that_stays_is_told() {
    let child = start(Stdio::piped(), Stdio::null());
    let said = looked(&child, Scope::Alone).expect_err("a pipe").to_string();
    assert!(said.contains("shares a pipe with process"), "{said}");
    assert!(said.contains("descriptor 0 of the one and "), "{said}");
    finish(child);
}

#[test]
fn a_unix_socket_to_a_process_that_stays_is_told() {
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let child = start(OwnedFd::from(theirs).into(), Stdio::null());
    let said = looked(&child, Scope::Alone).expect_err("a socket").to_string();
    assert!(said.contains("UNIX socket") && said.contains("that stays"), "{said}");
    drop(ours);
    finish(child);
}

#[test]
fn children_are_not_left_behind() {
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 1000 & echo; wait"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("sh");
    let mut output = child.stdout.take().expect("pipe");
    output.read_exact(&mut [0]).expect("it runs");
    let said = look(child.id(), Scope::Alone).expect_err("a child").to_string();
    assert!(said.contains("`--tree` takes them along"), "{said}");
    let pids = members(child.id(), Scope::Tree).expect("a tree");
    assert_eq!((pids.len(), pids[0]), (2, child.id()));
    ended(&pids);
    child.wait().expect("wait");
}

#[test]
fn a_child_that_has_ended_and_was_not_waited_for_goes_along() {
    keep_what_is_open();
    let mut command = Command::new("sh");
    // What the shell becomes knows nothing of the child.
    command.args(["-c", "sleep 0 & exec sleep 1000"]).current_dir("/");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh");
    let since = Instant::now();
    while process::name_of(child.id()) != "sleep"
        || !descendants(child.id(), &parents()).iter().any(|pid| is_over(*pid))
    {
        assert!(since.elapsed().as_secs() < 10, "it does not end");
        std::thread::yield_now();
    }
    let process_tree = looked(&child, Scope::Tree).expect("it can go");
    assert_eq!(process_tree.pids.len(), 2);
    assert!(!is_over(process_tree.pids[0]) && is_over(process_tree.pids[1]));
    finish(child);
}

#[test]
fn a_connection_that_a_tree_shares_goes_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let there = OwnedFd::from(listener.accept().expect("accept").0);
    keep_what_is_open();
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec 3<&0; sleep 1000 & exec sleep 1000"])
        .stdin(there)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.current_dir("/").spawn().expect("sh");
    drop((command, listener));
    let since = Instant::now();
    while descendants(child.id(), &parents()).iter().filter(|pid| process::name_of(**pid) == "sleep").count() < 2 {
        assert!(since.elapsed().as_secs() < 10, "it does not start");
        std::thread::yield_now();
    }
    let process_tree = looked(&child, Scope::Tree).expect("both have it, and both go");
    assert_eq!((process_tree.pids.len(), process_tree.flows.len()), (2, 1));
    let one = look(process_tree.pids[1], Scope::Alone).expect_err("the other one stays").to_string();
    assert!(one.contains("shares a socket with process"), "{one}");
    ended(&process_tree.pids);
    drop(here);
    finish(child);
}

#[test]
fn what_waits_in_queues_is_written_down_and_stays_there() {
    let far = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let near = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let (at, from) = (near.local_addr().expect("address"), far.local_addr().expect("address"));
    near.connect(from).expect("connect");
    let child = start(OwnedFd::from(near.try_clone().expect("clone")).into(), Stdio::null());
    assert!(queues_of(&[child.id()]).expect("queues").is_empty(), "nothing waits");
    for datagram in [&b"one"[..], b"another"] {
        far.send_to(datagram, at).expect("send");
    }
    near.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    near.peek(&mut [0; 9]).expect("it comes");
    for _ in 0..2 {
        let queues = queues_of(&[child.id(), child.id()]).expect("queues");
        let [Snapshot { local, body: Body::Datagram(datagrams), .. }] = queues.as_slice() else {
            panic!("{queues:?}");
        };
        assert_eq!((*local, datagrams.remote), (at, Some(from)));
        let bytes: Vec<_> = datagrams.queue.iter().map(|queued| queued.bytes.as_slice()).collect();
        assert_eq!(bytes, [&b"one"[..], b"another"]);
    }
    finish(child);
}

#[test]
fn all_processes_are_no_cgroup() {
    let child = start(Stdio::null(), Stdio::null());
    let cgroup = process::cgroup_of(child.id());
    if matches!(cgroup.as_str(), "" | "/") {
        let said = looked(&child, Scope::Cgroup).expect_err("all").to_string();
        assert!(said.contains("no cgroup of its own"), "{said}");
    }
    finish(child);
}

#[test]
fn a_connection_that_is_open_elsewhere_too_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let there = OwnedFd::from(listener.accept().expect("accept").0);
    let child = start(there.try_clone().expect("clone").into(), Stdio::null());
    let said = looked(&child, Scope::Alone).expect_err("it is open here").to_string();
    assert!(said.contains("shares a socket"), "{said}");
    drop(there);
    let process_tree = looked(&child, Scope::Alone).expect("it has it alone");
    assert_eq!(process_tree.flows.len(), 1);
    assert_eq!(process_tree.flows[0].remote, here.local_addr().expect("address"));
    assert_eq!(flows_of(&process_tree.pids).expect("flows").into_iter().collect::<Vec<_>>(), process_tree.flows);
    drop(here);
    finish(child);
}

#[test]
fn a_socket_that_criu_would_leave_unguarded_is_told() {
    let set = |socket: &dyn AsFd, option, value: i32| {
        let name = crate::sockopt::Name { level: libc::SOL_IP, name: option, text: "an option" };
        crate::sockopt::set(socket.as_fd(), name, &value).expect("setsockopt");
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("bind");
    // What is lost with nobody the worse for it.
    set(&datagrams, libc::IP_RECVTTL, 1);
    let sockets: [(&dyn AsFd, OwnedFd); 3] = [
        (&near, near.try_clone().expect("dup").into()),
        (&listener, listener.try_clone().expect("dup").into()),
        (&datagrams, datagrams.try_clone().expect("dup").into()),
    ];
    for (socket, given) in sockets {
        let child = start(given.into(), Stdio::null());
        let free = |looked: Result<ProcessTree, Unfit>| !looked.is_err_and(|why| why.to_string().contains("IP_MINTTL"));
        assert!(free(looked(&child, Scope::Alone)));
        set(socket, libc::IP_MINTTL, 3);
        let why = looked(&child, Scope::Alone).expect_err("it guards its program").to_string();
        assert!(why.contains("IP_MINTTL") && why.contains("descriptor 0"), "{why}");
        finish(child);
    }
}

#[test]
fn sockets_without_another_end_are_told_and_whose_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let ours = TcpListener::bind("127.0.0.1:0").expect("bind");
    let end = |transport, at: std::io::Result<SocketAddr>| End { transport, at: at.expect("address") };
    let (tcp, udp) = (end(Transport::Tcp, listener.local_addr()), end(Transport::Udp, datagrams.local_addr()));
    let other = end(Transport::Tcp, ours.local_addr());
    let child = start(OwnedFd::from(listener).into(), OwnedFd::from(datagrams).into());
    let process_tree = looked(&child, Scope::Alone).expect("it can go");
    assert_eq!(process_tree.ends, [tcp, udp]);
    assert!(process_tree.others.contains(&other) && !process_tree.others.contains(&tcp), "{:?}", process_tree.others);
    process_tree.see_again().expect("nothing has changed");
    let before = ProcessTree { ends: vec![tcp], ..process_tree.clone() };
    assert!(before.see_again().expect_err("one more").to_string().contains("opened or closed"));
    let another = ProcessTree { started: vec![Some(1)], ..process_tree };
    assert!(another.see_again().expect_err("another of its number").to_string().contains("started or ended"));
    finish(child);
}

/// A connection that its far end has reset, after it said this.
fn reset_after(said: &[u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (mut there, _) = listener.accept().expect("accept");
    std::io::Write::write_all(&mut there, said).expect("write");
    let linger = rustix::net::sockopt::set_socket_linger(&there, Some(Duration::ZERO));
    linger.expect("SO_LINGER");
    drop(there);
    let mut polled = [rustix::event::PollFd::new(&here, rustix::event::PollFlags::empty())];
    rustix::event::poll(&mut polled, None).expect("poll");
    here
}

fn tcp(family: rustix::net::AddressFamily, protocol: Option<rustix::net::Protocol>) -> OwnedFd {
    rustix::net::socket(family, rustix::net::SocketType::STREAM, protocol).expect("socket")
}

#[test]
fn sockets_that_no_list_has_go_along() {
    use rustix::net::{AddressFamily as Of, SocketType, bind, socket};
    let bound = tcp(Of::INET, None);
    bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
    let at = SocketAddr::try_from(rustix::net::getsockname(&bound).expect("name")).expect("an endpoint");
    let reset = reset_after(b"");
    let was = reset.local_addr().expect("address");
    let over = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        here.shutdown(std::net::Shutdown::Write).expect("shutdown");
        drop(listener.accept().expect("accept"));
        let mut polled = [rustix::event::PollFd::new(&here, rustix::event::PollFlags::empty())];
        rustix::event::poll(&mut polled, None).expect("poll");
        here
    };
    let ended = over.local_addr().expect("address");
    for (what, idle, found) in [
        ("never connected", tcp(Of::INET, None), None),
        ("never connected, IPv6", tcp(Of::INET6, None), None),
        ("bound", bound, Some(at)),
        ("reset", reset.into(), Some(was)),
        ("over", over.into(), Some(ended)),
        ("UDP, unbound", socket(Of::INET, SocketType::DGRAM, None).expect("socket"), None),
        ("UDP, unbound, IPv6", socket(Of::INET6, SocketType::DGRAM, None).expect("socket"), None),
    ] {
        let child = start(idle.into(), Stdio::null());
        let process_tree = looked(&child, Scope::Alone)
            .map(|process_tree| (process_tree.idle, process_tree.flows.len(), process_tree.ends.len()));
        finish(child);
        assert_eq!(process_tree.expect(what), (found.into_iter().collect(), 0, 0), "{what}");
    }
}

#[test]
fn sockets_that_no_list_has_are_told_where_they_cannot_go() {
    use rustix::net::{AddressFamily as Of, Protocol};
    let said = |socket: OwnedFd| {
        let child = start(socket.into(), Stdio::null());
        let said = looked(&child, Scope::Alone);
        finish(child);
        said.expect_err("it stays").to_string()
    };
    let unread = said(reset_after(b"unread").into());
    assert!(unread.contains("is over, and 6 bytes of it were not read yet"), "{unread}");
    let multipath = Protocol::from_raw(std::num::NonZeroU32::new(262).expect("a number"));
    if rustix::net::socket(Of::INET, rustix::net::SocketType::STREAM, Some(multipath)).is_ok() {
        let multipath = said(tcp(Of::INET, Some(multipath)));
        assert!(multipath.contains("cannot be moved: of Multipath TCP"), "{multipath}");
    }
    if rustix::process::geteuid().is_root() {
        let elsewhere = std::thread::spawn(|| {
            // SAFETY: neither the file system context nor descriptors are unshared.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("unshare");
            tcp(Of::INET, None)
        });
        let elsewhere = said(elsewhere.join().expect("the thread"));
        assert!(elsewhere.contains("a socket of another network namespace"), "{elsewhere}");
    }
}

#[test]
fn a_process_grows_quiet_once_it_has_accepted_what_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let at = listener.local_addr().expect("address");
    let child = start(listener.try_clone().map(OwnedFd::from).expect("clone").into(), Stdio::null());
    let pids = [child.id()];
    assert_eq!(queued(&pids).expect("queue"), None);
    grow_quiet(&pids, &[at], Duration::from_secs(20)).expect("nothing waits");
    let waiting = TcpStream::connect(at).expect("connect");
    assert_eq!(queued(&pids).expect("queue"), Some((at, 1)));
    let said = grow_quiet(&pids, &[at], Duration::from_millis(50)).expect_err("one waits").to_string();
    assert_eq!(said, format!("1 connections wait at {at} to be accepted, and are not"));
    let accepting = std::thread::spawn(move || listener.accept().map(drop));
    grow_quiet(&pids, &[at], Duration::from_secs(20)).expect("it is accepted");
    accepting.join().expect("thread").expect("accept");
    drop(waiting);
    finish(child);
}

#[test]
fn what_anybody_has_sent_is_written_down() {
    let near = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let at = near.local_addr().expect("address");
    let child = start(OwnedFd::from(near.try_clone().expect("clone")).into(), Stdio::null());
    let far = UdpSocket::bind("127.0.0.1:0").expect("bind");
    far.send_to(b"one", at).expect("send");
    near.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    near.peek(&mut [0; 9]).expect("it comes");
    let queues = queues_of(&[child.id()]).expect("queues");
    let [Snapshot { local, body: Body::Datagram(datagrams), .. }] = queues.as_slice() else { panic!("{queues:?}") };
    assert_eq!((*local, datagrams.remote), (at, None));
    let queued: Vec<_> = datagrams.queue.iter().map(|queued| (queued.from, queued.bytes.as_slice())).collect();
    assert_eq!(queued, [(far.local_addr().expect("address"), &b"one"[..])]);
    finish(child);
}
