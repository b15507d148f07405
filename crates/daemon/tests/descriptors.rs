//! The control socket where no descriptors are left. In a process of its own, whose limit it changes.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whimbrel_daemon::server::Server;
use whimbrel_protocol::Time;

fn wakes(server: &Server) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&server.wake(), PollFlags::IN)], Some(&at_once)) == Ok(1)
}

#[test]
fn without_descriptors_the_listener_is_not_waited_for() {
    let path = std::env::temp_dir().join(format!("whimbrel-descriptors-{}.sock", std::process::id()));
    let mut server = Server::bind(&path, 0o600).expect("bind");
    let mut waiting = UnixStream::connect(&path).expect("connect");
    let former = getrlimit(Resource::Nofile);
    // The next that is opened would have this number.
    let next = File::open("/dev/null").expect("open").as_raw_fd();
    setrlimit(Resource::Nofile, Rlimit { current: u64::try_from(next).ok(), ..former }).expect("setrlimit");
    let woken = wakes(&server);
    server.handle_ready(Time::default());
    let deaf = !wakes(&server);
    server.check_again(Time::default());
    let still_deaf = !wakes(&server);
    setrlimit(Resource::Nofile, former).expect("setrlimit");
    assert!(woken && deaf && still_deaf);
    server.check_again(Time::default());
    server.settle();
    assert!(!wakes(&server), "it is taken in, and has asked for nothing");
    waiting.write_all(b"\n").expect("written");
    assert_eq!(server.handle_ready(Time::default()).len(), 1, "taken in once there is a descriptor");
}
