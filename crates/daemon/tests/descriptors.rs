//! The control socket where no descriptors are left. In a process of its own, whose limit it changes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whimbrel_daemon::server::Server;
use whimbrel_protocol::Time;

#[test]
fn without_descriptors_the_listener_is_not_waited_for() {
    let path = std::env::temp_dir().join(format!("whimbrel-descriptors-{}.sock", std::process::id()));
    let mut server = Server::bind(&path, 0o600).expect("bind");
    let _waiting = UnixStream::connect(&path).expect("connect");
    let former = getrlimit(Resource::Nofile);
    // The next that is opened would have this number.
    let next = File::open("/dev/null").expect("open").as_raw_fd();
    setrlimit(Resource::Nofile, Rlimit { current: u64::try_from(next).ok(), ..former }).expect("setrlimit");
    let none = server.accept(Time::default());
    let (deaf, again) = (server.is_deaf(), server.check_again(Time::default()));
    setrlimit(Resource::Nofile, former).expect("setrlimit");
    assert!(none.is_empty() && deaf && again.is_empty() && server.is_deaf());
    assert_eq!(server.check_again(Time::default()).len(), 1, "taken in once there is a descriptor");
    assert!(!server.is_deaf());
}
