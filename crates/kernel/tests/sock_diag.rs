//! Many sockets, and destroying one.

mod hosts;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use hosts::{Host, PLANS};
use whimbrel_kernel::sock_diag::{MOVABLE, SockDiag, TcpState};

#[test]
#[ignore = "needs root"]
fn a_socket_is_destroyed() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let (near, mut far) = client.connect(&server, plan.server_socket());
        let mut diag = client.on(|| SockDiag::open().unwrap());
        let found = diag.tcp(&MOVABLE).unwrap();
        let [connection] = found[..] else { panic!("{found:?}") };
        assert_eq!(connection.tuple.remote, near.peer_addr().unwrap());
        let other = whimbrel_kernel::sock_diag::Connection { cookie: connection.cookie + 1, ..connection };
        assert!(!diag.destroy(&other).unwrap(), "another cookie");
        assert!(diag.destroy(&connection).unwrap());
        assert!(!diag.destroy(&connection).unwrap());
        assert_eq!(far.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
#[ignore = "needs root"]
fn what_waits_for_the_other_ends_last_words_alone_is_no_connection() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let (near, far) = client.connect(&server, plan.server_socket());
        let mut diag = client.on(|| SockDiag::open().unwrap());
        let tuple = diag.tcp(&MOVABLE).unwrap()[0].tuple;
        // Its program has closed it, and the other end's has not: FIN-WAIT-2, which is no socket any more.
        drop(near);
        let is_over = |diag: &mut SockDiag| diag.tcp(&MOVABLE).unwrap().is_empty();
        let begun = Instant::now();
        while !is_over(&mut diag) {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", diag.tcp(&MOVABLE));
        }
        let waits = diag.tcp(&[TcpState::FinWait2, TcpState::TimeWait]).unwrap();
        assert!(waits.iter().all(|one| one.tuple == tuple && one.state == TcpState::TimeWait), "{waits:?}");
        let of_far = server.on(|| SockDiag::open().unwrap()).tcp(&MOVABLE).unwrap();
        assert!(of_far.len() == 1 && of_far[0].state == TcpState::CloseWait, "{of_far:?}");
        drop(far);
    }
}

#[test]
#[ignore = "needs root"]
fn thousands_of_sockets_are_listed_fast() {
    const PAIRS: usize = 4000;
    let host = Host::new();
    let _here = host.enter();
    // Descriptors are scarce by default; root may have more.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pairs: Vec<(TcpStream, TcpStream)> = (0..PAIRS)
        .map(|_| (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0))
        .collect();
    let mut diag = SockDiag::open().unwrap();
    let start = Instant::now();
    let found = diag.tcp(&MOVABLE).unwrap();
    let time = start.elapsed();
    println!("{} sockets in {time:?}", found.len());
    assert_eq!(found.len(), 2 * PAIRS);
    assert!(found.iter().all(|connection| connection.state == TcpState::Established && connection.inode > 0));
    let inodes = found.iter().map(|connection| connection.inode).collect();
    let start = Instant::now();
    let owners = whimbrel_kernel::process::owners(&inodes);
    println!("and their owners in {:?}", start.elapsed());
    assert!(owners.len() == inodes.len() && owners.values().all(|owner| owner.pid == std::process::id()));
    drop(pairs);
}
