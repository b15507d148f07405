//! The options of sockets go from one host to another, or keep their socket where it is. Run as root.

mod hosts;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hosts::Host;
use whimbrel_kernel::checkpoint::{Checkpoint, Defaults, Rights, Unmovable};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_wire::snapshot::{OptionKind, Snapshot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Stream,
    Listener,
    Datagram,
}
use Of::{Datagram, Listener, Stream};

const EVERYBODY: &[Of] = &[Stream, Listener, Datagram];
const STREAMS: &[Of] = &[Stream, Listener];
const LISTENERS: &[Of] = &[Listener];
const DATAGRAMS: &[Of] = &[Datagram];

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::SOL_IP;
const V6: i32 = libc::SOL_IPV6;
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;

/// Options of an int, a value that is no default, and the sockets on which they are set.
const CARRIED: &[(i32, i32, i32, &[Of])] = &[
    (SOCKET, libc::SO_KEEPALIVE, 1, EVERYBODY),
    (SOCKET, libc::SO_OOBINLINE, 1, EVERYBODY),
    (SOCKET, libc::SO_BROADCAST, 1, DATAGRAMS),
    (SOCKET, libc::SO_NO_CHECK, 1, DATAGRAMS),
    (SOCKET, libc::SO_PRIORITY, 5, EVERYBODY),
    (SOCKET, libc::SO_RCVLOWAT, 3, EVERYBODY),
    (SOCKET, libc::SO_MARK, 77, EVERYBODY),
    (SOCKET, libc::SO_TIMESTAMPNS, 1, EVERYBODY),
    (SOCKET, libc::SO_RXQ_OVFL, 1, EVERYBODY),
    (SOCKET, libc::SO_WIFI_STATUS, 1, EVERYBODY),
    (SOCKET, libc::SO_PEEK_OFF, 0, EVERYBODY),
    (SOCKET, libc::SO_LOCK_FILTER, 1, EVERYBODY),
    (SOCKET, libc::SO_SELECT_ERR_QUEUE, 1, EVERYBODY),
    (SOCKET, libc::SO_BUSY_POLL, 9, EVERYBODY),
    (SOCKET, 69, 1, EVERYBODY),
    (SOCKET, 74, 0, STREAMS),
    (SOCKET, 75, 1, EVERYBODY),
    (SOCKET, 82, 1, EVERYBODY),
    (IP, libc::IP_TOS, 0x10, EVERYBODY),
    (IP, libc::IP_TTL, 77, EVERYBODY),
    (IP, libc::IP_RECVOPTS, 1, EVERYBODY),
    (IP, libc::IP_RETOPTS, 1, EVERYBODY),
    (IP, libc::IP_PKTINFO, 1, EVERYBODY),
    (IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, EVERYBODY),
    (IP, libc::IP_RECVERR, 1, EVERYBODY),
    (IP, libc::IP_RECVTTL, 1, EVERYBODY),
    (IP, libc::IP_RECVTOS, 1, EVERYBODY),
    (IP, libc::IP_FREEBIND, 1, EVERYBODY),
    (IP, libc::IP_PASSSEC, 1, EVERYBODY),
    (IP, libc::IP_RECVORIGDSTADDR, 1, EVERYBODY),
    (IP, libc::IP_MINTTL, 3, EVERYBODY),
    (IP, 23, 1, DATAGRAMS),
    (IP, libc::IP_BIND_ADDRESS_NO_PORT, 1, EVERYBODY),
    (IP, 25, 1, DATAGRAMS),
    (IP, 26, 1, EVERYBODY),
    (IP, libc::IP_MULTICAST_TTL, 9, DATAGRAMS),
    (IP, libc::IP_MULTICAST_LOOP, 0, DATAGRAMS),
    (IP, libc::IP_MULTICAST_ALL, 0, DATAGRAMS),
    (IP, 51, 50_000 << 16 | 40_000, EVERYBODY),
    (V6, 2, 1, EVERYBODY),
    (V6, 3, 1, EVERYBODY),
    (V6, 4, 1, EVERYBODY),
    (V6, 5, 1, EVERYBODY),
    (V6, 8, 1, EVERYBODY),
    (V6, 11, 1, EVERYBODY),
    (V6, libc::IPV6_UNICAST_HOPS, 77, EVERYBODY),
    (V6, libc::IPV6_MULTICAST_HOPS, 9, DATAGRAMS),
    (V6, libc::IPV6_MULTICAST_LOOP, 0, DATAGRAMS),
    (V6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, EVERYBODY),
    (V6, libc::IPV6_RECVERR, 1, EVERYBODY),
    (V6, 29, 0, DATAGRAMS),
    (V6, 31, 1, EVERYBODY),
    (V6, libc::IPV6_RECVPKTINFO, 1, EVERYBODY),
    (V6, libc::IPV6_RECVHOPLIMIT, 1, EVERYBODY),
    (V6, libc::IPV6_RECVHOPOPTS, 1, EVERYBODY),
    (V6, libc::IPV6_RECVRTHDR, 1, EVERYBODY),
    (V6, libc::IPV6_RECVDSTOPTS, 1, EVERYBODY),
    (V6, libc::IPV6_RECVPATHMTU, 1, EVERYBODY),
    (V6, libc::IPV6_DONTFRAG, 1, EVERYBODY),
    (V6, libc::IPV6_RECVTCLASS, 1, EVERYBODY),
    (V6, libc::IPV6_TCLASS, 0x10, EVERYBODY),
    (V6, libc::IPV6_AUTOFLOWLABEL, 0, EVERYBODY),
    // IPV6_PREFER_SRC_PUBLIC.
    (V6, 72, 2, EVERYBODY),
    (V6, 73, 3, EVERYBODY),
    (V6, libc::IPV6_RECVORIGDSTADDR, 1, EVERYBODY),
    (V6, 77, 1, EVERYBODY),
    (TCP, libc::TCP_NODELAY, 1, STREAMS),
    (TCP, libc::TCP_MAXSEG, 700, LISTENERS),
    (TCP, libc::TCP_CORK, 1, STREAMS),
    (TCP, libc::TCP_KEEPIDLE, 77, STREAMS),
    (TCP, libc::TCP_KEEPINTVL, 7, STREAMS),
    (TCP, libc::TCP_KEEPCNT, 4, STREAMS),
    (TCP, libc::TCP_SYNCNT, 3, STREAMS),
    (TCP, libc::TCP_LINGER2, 7, STREAMS),
    (TCP, libc::TCP_DEFER_ACCEPT, 3, LISTENERS),
    (TCP, libc::TCP_WINDOW_CLAMP, 9000, STREAMS),
    (TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 1, STREAMS),
    (TCP, libc::TCP_USER_TIMEOUT, 12_345, STREAMS),
    (TCP, libc::TCP_FASTOPEN, 7, LISTENERS),
    (TCP, libc::TCP_NOTSENT_LOWAT, 70_000, STREAMS),
    (TCP, libc::TCP_SAVE_SYN, 1, LISTENERS),
    (TCP, libc::TCP_FASTOPEN_NO_COOKIE, 1, LISTENERS),
    (TCP, libc::TCP_INQ, 1, STREAMS),
    (TCP, 44, 30_000, STREAMS),
    (TCP, 45, 20_000, STREAMS),
    (TCP, 46, 20_000, STREAMS),
    (UDP, 101, 1, DATAGRAMS),
    (UDP, 102, 1, DATAGRAMS),
    (UDP, libc::UDP_SEGMENT, 700, DATAGRAMS),
    (UDP, libc::UDP_GRO, 1, DATAGRAMS),
];

/// Numbers of 64 bits, and of 32.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn ints(ints: &[i32]) -> Vec<u8> {
    ints.iter().flat_map(|int| int.to_ne_bytes()).collect()
}

/// More of them: of other values than one int that is no default.
fn carried_otherwise() -> Vec<(i32, i32, Vec<u8>, &'static [Of])> {
    vec![
        (SOCKET, libc::SO_REUSEADDR, ints(&[1]), EVERYBODY),
        (SOCKET, libc::SO_REUSEADDR, ints(&[0]), EVERYBODY),
        (SOCKET, libc::SO_REUSEPORT, ints(&[1]), EVERYBODY),
        (SOCKET, libc::SO_LINGER, ints(&[1, 9]), EVERYBODY),
        (SOCKET, libc::SO_LINGER, ints(&[1, 0]), EVERYBODY),
        (SOCKET, libc::SO_RCVTIMEO, words(&[3, 500_000]), EVERYBODY),
        (SOCKET, libc::SO_SNDTIMEO, words(&[0, 500_000]), EVERYBODY),
        (SOCKET, libc::SO_SNDBUF, ints(&[30_000]), EVERYBODY),
        (SOCKET, libc::SO_RCVBUF, ints(&[30_000]), EVERYBODY),
        (SOCKET, libc::SO_TIMESTAMP, ints(&[1]), EVERYBODY),
        // SO_TIMESTAMP_NEW and SO_TIMESTAMPNS_NEW.
        (SOCKET, 63, ints(&[1]), EVERYBODY),
        (SOCKET, 64, ints(&[1]), EVERYBODY),
        (SOCKET, libc::SO_MAX_PACING_RATE, words(&[5_000_000_000]), EVERYBODY),
        (SOCKET, libc::SO_MAX_PACING_RATE, ints(&[1_000_000]), EVERYBODY),
        (IP, libc::IP_TRANSPARENT, ints(&[1]), STREAMS),
        // TCP_TX_DELAY.
        (TCP, 37, ints(&[5000]), STREAMS),
        (TCP, libc::TCP_USER_TIMEOUT, ints(&[i32::MAX]), STREAMS),
    ]
}

/// Those that keep a socket where it is, with what is said of them.
const REFUSED: &[(i32, i32, i32, &[Of], &str)] = &[
    (SOCKET, libc::SO_DONTROUTE, 1, EVERYBODY, "SO_DONTROUTE"),
    (SOCKET, libc::SO_TIMESTAMPING, 16, EVERYBODY, "SO_TIMESTAMPING"),
    (SOCKET, libc::SO_ZEROCOPY, 1, EVERYBODY, "SO_ZEROCOPY"),
    (SOCKET, 62, 1, EVERYBODY, "SO_BINDTODEVICE"),
    (IP, libc::IP_OPTIONS, 0x0101_0101, EVERYBODY, "IP_OPTIONS"),
    (IP, 50, 0x0100_0000, EVERYBODY, "IP_UNICAST_IF"),
    (V6, 33, 1, EVERYBODY, "IPV6_FLOWINFO_SEND"),
    (V6, 76, 0x0100_0000, EVERYBODY, "IPV6_UNICAST_IF"),
    (UDP, libc::UDP_CORK, 1, DATAGRAMS, "corked"),
];

fn set<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> std::io::Result<()> {
    // SAFETY: `value` is valid for reads of its own size for the duration of the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> std::io::Result<()> {
    // SAFETY: `value` is valid for reads of its length for the duration of the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn get_bytes(fd: BorrowedFd<'_>, level: i32, name: i32) -> Vec<u8> {
    let (mut value, mut length) = ([0u8; 16], 16 as libc::socklen_t);
    // SAFETY: `value` is valid for writes of `length` bytes.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length) };
    assert_eq!(result, 0, "level {level}, option {name}: {}", std::io::Error::last_os_error());
    value[..length as usize].to_vec()
}

fn get(fd: BorrowedFd<'_>, level: i32, name: i32) -> std::io::Result<i32> {
    let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `value` is valid for writes of `length` bytes, and any bytes are an int.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(std::io::Error::last_os_error()) }
}

/// A host that has both ends of everything as its own.
fn host() -> Host {
    let host = Host::new();
    host.sh("ip addr add 10.5.0.1/32 dev lo; ip addr add 10.9.0.1/32 dev lo;
             ip -6 addr add fd05::1/128 dev lo nodad; ip -6 addr add fd09::1/128 dev lo nodad");
    // The kernel makes the local routes of IPv6 addresses a moment after them. Until then another route leads to `lo`,
    // by which a socket connects, and what it sends is not delivered.
    for address in ["fd05::1", "fd09::1"] {
        let line = format!("local {address} ");
        hosts::wait("the host reaches itself", || host.sh("ip -6 route show table local").contains(&line));
    }
    host
}

/// A socket of a kind on a host, and what has to stay open with it.
fn socket(host: &Host, of: Of, ipv6: bool) -> (OwnedFd, Vec<OwnedFd>) {
    let at = |last: &str| -> SocketAddr {
        if ipv6 { format!("[fd{last}::1]:0") } else { format!("10.{}.0.1:0", &last[1..]) }.parse().unwrap()
    };
    host.on(|| match of {
        Stream => {
            let far = TcpListener::bind(at("09")).unwrap();
            let near = TcpListener::bind(at("05")).unwrap();
            // The end that was accepted: its address is the one that moves.
            let there = TcpStream::connect(near.local_addr().unwrap()).unwrap();
            let here = near.accept().unwrap().0;
            (here.into(), vec![far.into(), there.into()])
        }
        Listener => (TcpListener::bind(at("05")).unwrap().into(), Vec::new()),
        Datagram => (UdpSocket::bind(at("05")).unwrap().into(), Vec::new()),
    })
}

fn dump(host: &Host, socket: &OwnedFd) -> Result<Snapshot, Unmovable> {
    host.on(|| {
        let defaults = Defaults::look().unwrap();
        let mut sockets = SockDiag::open().unwrap();
        let needs = Checkpoint::needs(socket.as_fd(), &defaults, &mut sockets)?;
        let snapshot = Checkpoint::freeze(socket.try_clone().unwrap())?.dump(&defaults, &mut sockets)?;
        let numbers: Vec<u16> = snapshot.options.iter().map(|option| option.kind.number()).collect();
        assert_eq!(needs, numbers, "what is asked for is what goes");
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        Ok(Snapshot::decode(&bytes).unwrap())
    })
}

#[test]
#[ignore = "needs root"]
fn every_option_that_goes_along_is_there() {
    let (mut moved, mut unknown) = (0, 0);
    for ipv6 in [false, true] {
        for of in EVERYBODY {
            let (donor, acceptor) = (host(), host());
            let injector = acceptor.on(|| Injector::open().unwrap());
            for (level, name, value, on) in CARRIED {
                if !on.contains(of) || *level == V6 && !ipv6 || *level == UDP && *name < 103 && !ipv6 {
                    continue;
                }
                let what = format!("{of:?}, IPv6 {ipv6}: level {level}, option {name}");
                let (socket, _beside) = socket(&donor, *of, ipv6);
                match set(socket.as_fd(), *level, *name, value) {
                    Ok(()) => {}
                    // An older kernel.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {
                        unknown += 1;
                        continue;
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                let before = get(socket.as_fd(), *level, *name).unwrap_or_else(|error| panic!("{what}: {error}"));
                let snapshot = dump(&donor, &socket).unwrap_or_else(|why| panic!("{what}: {why}"));
                // What needs a privilege is not set without it, and nothing else is refused.
                let privileged = snapshot.options.iter().any(|option| option.kind.is_privileged());
                let plain = acceptor.on(|| Checkpoint::restore(&snapshot, &injector));
                assert_eq!(plain.is_err(), privileged, "{what}: {plain:?}");
                drop(plain);
                // A process that another test is starting may have what was closed for a moment.
                let with_all = || acceptor.on(|| Checkpoint::restore_with(&snapshot, &injector, Rights { all: true }));
                let mut restored = with_all();
                hosts::wait("the port is free", || {
                    let says = |what| restored.as_ref().is_err_and(|why| why.to_string().contains(what));
                    let in_use = says("in use") || says("Cannot assign");
                    if in_use {
                        restored = with_all();
                    }
                    !in_use
                });
                // Some are set as it wakes: at rest they would have it send.
                let awake = acceptor.on(|| restored?.thaw(&injector)).unwrap_or_else(|why| panic!("{what}: {why}"));
                assert_eq!(get(awake.as_fd(), *level, *name).unwrap(), before, "{what}");
                moved += 1;
                // Its ports are free at once.
                set(awake.as_fd(), SOCKET, libc::SO_LINGER, &[1i32, 0]).unwrap();
            }
        }
    }
    println!("{moved} options moved, {unknown} are unknown to this kernel");
    assert!(moved > 200, "{moved}");
}

#[test]
#[ignore = "needs root"]
fn every_other_value_that_goes_along_is_there() {
    for ipv6 in [false, true] {
        for of in EVERYBODY {
            let (donor, acceptor) = (host(), host());
            let injector = acceptor.on(|| Injector::open().unwrap());
            for (level, name, value, on) in carried_otherwise() {
                if !on.contains(of) {
                    continue;
                }
                let what = format!("{of:?}, IPv6 {ipv6}: level {level}, option {name}, {value:?}");
                let (socket, _beside) = socket(&donor, *of, ipv6);
                set_bytes(socket.as_fd(), level, name, &value).unwrap_or_else(|error| panic!("{what}: {error}"));
                let before = get_bytes(socket.as_fd(), level, name);
                let snapshot = dump(&donor, &socket).unwrap_or_else(|why| panic!("{what}: {why}"));
                let restored = acceptor.on(|| Checkpoint::restore_with(&snapshot, &injector, Rights { all: true }));
                let restored = restored.unwrap_or_else(|why| panic!("{what}: {why}"));
                let awake = acceptor.on(|| restored.thaw(&injector)).unwrap_or_else(|why| panic!("{what}: {why}"));
                assert_eq!(get_bytes(awake.as_fd(), level, name), before, "{what}");
                set(awake.as_fd(), SOCKET, libc::SO_LINGER, &[1i32, 0]).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_priority_that_outranks_a_type_of_service_outlives_it() {
    let (donor, acceptor) = (host(), host());
    let injector = acceptor.on(|| Injector::open().unwrap());
    for (priority, privileged) in [(3, false), (7, true)] {
        let (socket, _beside) = socket(&donor, Datagram, false);
        set(socket.as_fd(), IP, libc::IP_TOS, &0x10i32).unwrap();
        set(socket.as_fd(), SOCKET, libc::SO_PRIORITY, &priority).unwrap();
        let snapshot = dump(&donor, &socket).unwrap();
        let high = snapshot.options.iter().any(|option| option.kind == OptionKind::HighPriority);
        assert_eq!(high, privileged);
        let restored = acceptor.on(|| Checkpoint::restore_with(&snapshot, &injector, Rights { all: true })).unwrap();
        assert_eq!(get(restored.as_fd(), SOCKET, libc::SO_PRIORITY).unwrap(), priority);
    }
}

#[test]
#[ignore = "needs root"]
fn a_listeners_congestion_control_goes_along() {
    let (donor, acceptor) = (host(), host());
    let injector = acceptor.on(|| Injector::open().unwrap());
    // Anybody may choose it, whatever the host does else.
    let name = *b"reno\0";
    let (socket, _beside) = socket(&donor, Listener, false);
    set(socket.as_fd(), TCP, libc::TCP_CONGESTION, &name).unwrap();
    let snapshot = dump(&donor, &socket).unwrap();
    let restored = acceptor.on(|| Checkpoint::restore(&snapshot, &injector)).unwrap();
    // The first four letters of it.
    assert_eq!(get(restored.as_fd(), TCP, libc::TCP_CONGESTION).unwrap().to_ne_bytes(), name[..4]);
}

#[test]
#[ignore = "needs root"]
fn what_cannot_go_along_keeps_its_socket_and_is_said() {
    for ipv6 in [false, true] {
        for of in EVERYBODY {
            let donor = host();
            for (level, name, value, on, said) in REFUSED {
                if !on.contains(of) || *level == V6 && !ipv6 || *level == IP && *name == libc::IP_OPTIONS && ipv6 {
                    continue;
                }
                let what = format!("{of:?}, IPv6 {ipv6}: {said}");
                let (socket, _beside) = socket(&donor, *of, ipv6);
                set(socket.as_fd(), *level, *name, value).unwrap_or_else(|error| panic!("{what}: {error}"));
                let why = dump(&donor, &socket).expect_err(&what).to_string();
                assert!(why.contains(said) && why.contains("cannot be moved"), "{what}: {why}");
                // It is as it was.
                assert!(!Checkpoint::is_at_rest(socket.as_fd()), "{what}");
            }
        }
    }
}

/// Level, number, value, the sockets on which it is set, what is said.
type Otherwise = (i32, i32, Vec<u8>, &'static [Of], &'static str);

/// The same of options that are no int, and of which a kernel may have been built without some.
fn refused_otherwise() -> Vec<Otherwise> {
    let header = |second: u8| vec![0, 0, 1, second, 0, 0, 0, 0];
    // An extension header that pads to eight bytes (RFC 8200 §4.2), and a routing header of type 2 (RFC 6275 §6.4).
    let (padding, mut routing) = (header(4), vec![0u8, 2, 2, 1, 0, 0, 0, 0]);
    routing.extend("fd09::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    // `struct tcp_ao_add` (linux/tcp.h): address, algorithm, prefix (202), length of the key (207), key.
    let mut signature = vec![0u8; 288];
    signature[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
    signature[4..8].copy_from_slice(&[10, 9, 0, 1]);
    signature[128..138].copy_from_slice(b"hmac(sha1)");
    (signature[202], signature[203], signature[204], signature[207]) = (32, 1, 1, 6);
    signature[208..214].copy_from_slice(b"secret");
    vec![
        // SO_TXTIME, by CLOCK_MONOTONIC; SO_RESERVE_MEM.
        (SOCKET, 61, ints(&[1, 1]), EVERYBODY, "SO_TXTIME"),
        (SOCKET, 73, ints(&[4096]), EVERYBODY, "SO_RESERVE_MEM"),
        (IP, libc::IP_MULTICAST_IF, vec![10, 5, 0, 1], DATAGRAMS, "IP_MULTICAST_IF"),
        (V6, libc::IPV6_MULTICAST_IF, ints(&[1]), DATAGRAMS, "IPV6_MULTICAST_IF"),
        (V6, libc::IPV6_HOPOPTS, padding.clone(), EVERYBODY, "IPV6_HOPOPTS"),
        (V6, libc::IPV6_RTHDRDSTOPTS, padding.clone(), EVERYBODY, "IPV6_RTHDRDSTOPTS"),
        (V6, libc::IPV6_RTHDR, routing, EVERYBODY, "IPV6_RTHDR"),
        (V6, libc::IPV6_DSTOPTS, padding, EVERYBODY, "IPV6_DSTOPTS"),
        (TCP, 31, b"tls".to_vec(), &[Stream], "TLS"),
        // TCP_AO_ADD_KEY.
        (TCP, 38, signature, LISTENERS, "TCP_AO"),
        // UDP_ENCAP_ESPINUDP.
        (UDP, 100, ints(&[2]), DATAGRAMS, "tunnels of the kernel's own"),
    ]
}

#[test]
#[ignore = "needs root"]
fn what_else_cannot_go_along_is_said_where_the_kernel_has_it() {
    let (mut said_of, mut lacking) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for ipv6 in [false, true] {
        for of in EVERYBODY {
            let donor = host();
            for (level, name, value, on, said) in refused_otherwise() {
                if !on.contains(of) || level == V6 && !ipv6 || said == "TCP_AO" && ipv6 {
                    continue;
                }
                let what = format!("{of:?}, IPv6 {ipv6}: {said}");
                let (socket, _beside) = socket(&donor, *of, ipv6);
                if let Err(error) = donor.on(|| set_bytes(socket.as_fd(), level, name, &value)) {
                    let absent = [libc::ENOPROTOOPT, libc::EOPNOTSUPP, libc::ENOENT, libc::EINVAL, libc::EPERM];
                    assert!(error.raw_os_error().is_some_and(|errno| absent.contains(&errno)), "{what}: {error}");
                    lacking.insert(said);
                    continue;
                }
                let why = dump(&donor, &socket).expect_err(&what).to_string();
                assert!(why.contains(said) && why.contains("cannot be moved"), "{what}: {why}");
                assert!(!Checkpoint::is_at_rest(socket.as_fd()), "{what}");
                said_of.insert(said);
            }
        }
    }
    println!("{said_of:?} were refused; this kernel does not have {:?}", &lacking - &said_of);
    for always in ["SO_TXTIME", "IP_MULTICAST_IF", "IPV6_MULTICAST_IF", "IPV6_HOPOPTS", "IPV6_DSTOPTS"] {
        assert!(said_of.contains(always), "{always}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_socket_with_a_filter_stays() {
    let donor = host();
    // Everything passes (BPF_RET).
    let program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_ptr().cast_mut() };
    for of in EVERYBODY {
        let (socket, _beside) = socket(&donor, *of, false);
        set(socket.as_fd(), SOCKET, libc::SO_ATTACH_FILTER, &filter).unwrap();
        let why = dump(&donor, &socket).expect_err("a filter").to_string();
        assert!(why.contains("with a filter"), "{why}");
        let (socket, _beside) = self::socket(&donor, *of, false);
        set(socket.as_fd(), SOCKET, libc::SO_ATTACH_BPF, &passing().as_raw_fd()).unwrap();
        let why = dump(&donor, &socket).expect_err("a filter").to_string();
        assert!(why.contains("with a filter"), "{why}");
    }
}

/// The same in eBPF (bpf(2)): it returns as many bytes as there may be.
fn passing() -> OwnedFd {
    use std::os::fd::FromRawFd;
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
    // `mov32 r0, -1` and `exit`: code, registers, offset, immediate.
    let program: [u8; 16] = [0xb4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let license = c"GPL";
    // The beginning of `union bpf_attr` for this command: type, count of instructions, where they are, where the
    // license is.
    let mut attributes = [0u64; 6];
    attributes[0] = u64::from_ne_bytes(ints(&[BPF_PROG_TYPE_SOCKET_FILTER as i32, 2]).try_into().unwrap());
    (attributes[1], attributes[2]) = (program.as_ptr() as u64, license.as_ptr() as u64);
    // SAFETY: both pointers in `attributes` are to values that outlive the call, as long as is said there.
    let loaded = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, attributes.as_ptr(), size_of_val(&attributes)) };
    assert!(loaded >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(loaded as libc::c_int) }
}
