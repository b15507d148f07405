//! Standing in for a host that has left a link: answering for its address, and taking in what comes for it.
//!
//! All of it is done beside the kernel's own stack, by packet sockets (packet(7)). An address of the interface, or a
//! proxy entry, would do more than is wanted: the stack would answer the connections of the host that is gone with
//! resets, or ask for forwarding to be switched on. As it is, the stack finds such packets to be nobody's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::packet::{self, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Frame, Mac, Said};
use super::socket::{bind, link_address, own_address, packet_socket, send};
use crate::error::Error;

/// The longest packet that is looked at, in bytes: no control datagram is longer.
const LONGEST: usize = 2048;

/// What happened to an address that somebody is to stand in for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A datagram came to its control port.
    Datagram {
        /// The address.
        address: IpAddr,
        /// Where it came from.
        source: SocketAddr,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// Somebody on the link has the address, or is about to take it.
    Claimed {
        /// The address.
        address: IpAddr,
    },
    /// Something that is of no interest, or a question, which was answered.
    Other,
}

/// The way to one link, and this host's address there.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    mac: Mac,
}

/// An address that is watched.
#[derive(Debug)]
struct Watched {
    interface: u32,
    /// Questions for it are answered.
    answered: bool,
    /// Keeps the group joined that they go to.
    _group: Option<OwnedFd>,
}

/// Watches links for what concerns certain addresses, in the namespace of the thread that works with it.
#[derive(Debug)]
pub struct NeighbourProxy {
    /// Readable when one of `sockets` is.
    ready: OwnedFd,
    /// By what they take in. Those of an ethertype see nothing that this host sends, which one for all of them would
    /// have copied for it, and see what comes by a bridge or a VLAN once, and not at its port too.
    sockets: BTreeMap<u16, OwnedFd>,
    /// Read last: each has its turn.
    last: u16,
    port: u16,
    links: BTreeMap<u32, Link>,
    watched: BTreeMap<IpAddr, Watched>,
}

impl NeighbourProxy {
    /// Opens it; nothing is watched yet, and no packet looked at. `port`: of the datagrams that are taken in. Needs
    /// CAP_NET_RAW.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(port: u16) -> Result<Self, Error> {
        // Whether it is allowed shows here, and not when it is needed.
        drop(packet_socket()?);
        let ready =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::call("epoll_create", "packet sockets", e))?;
        let (sockets, links, watched) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { ready, sockets, last: 0, port, links, watched })
    }

    /// Begins to watch an address on a link. Questions for it are not answered yet.
    ///
    /// # Errors
    /// [`Error::Call`], or [`Error::Argument`] where the link is no Ethernet; nothing is watched more than before then.
    pub fn watch(&mut self, interface: u32, address: IpAddr) -> Result<(), Error> {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.links.entry(interface) {
            let socket = packet_socket()?;
            bind(&socket, interface, 0)?;
            let mac = own_address(&socket, interface)?;
            vacant.insert(Link { socket, mac });
        }
        let group = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(join(interface, packet::solicited_node(address))?),
        };
        self.watched.insert(address, Watched { interface, answered: false, _group: group });
        let listening = self.listen();
        if listening.is_err() {
            self.watched.remove(&address);
            self.close_unused();
        }
        listening
    }

    /// Asks whether anybody has an address that is watched.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn probe(&self, address: IpAddr) -> Result<(), Error> {
        self.send(address, packet::probe)
    }

    /// Answers for an address that is watched from now on, and says so to all on the link.
    ///
    /// # Errors
    /// [`Error::Call`]: it was not said.
    pub fn take(&mut self, address: IpAddr) -> Result<(), Error> {
        if let Some(watched) = self.watched.get_mut(&address) {
            watched.answered = true;
        }
        self.send(address, packet::announcement)
    }

    /// Watches an address no longer.
    ///
    /// # Errors
    /// [`Error::Call`]: what concerns it is looked at and ignored from now on.
    pub fn leave(&mut self, address: IpAddr) -> Result<(), Error> {
        self.watched.remove(&address);
        self.close_unused();
        self.listen()
    }

    /// Takes in the next packet, if one came: no more than that, whatever is in it, since a neighbour can send as many
    /// as it likes. Questions are answered by the way.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn receive(&mut self) -> Result<Option<Seen>, Error> {
        let mut buffer = [0u8; LONGEST];
        let later = self.sockets.range((Bound::Excluded(self.last), Bound::Unbounded));
        for (ethertype, socket) in later.chain(self.sockets.range(..=self.last)) {
            if let Some((length, from)) = receive(socket, &mut buffer)? {
                self.last = *ethertype;
                return self.take_in(&from, &buffer[..length]).map(Some);
            }
        }
        Ok(None)
    }

    fn take_in(&self, from: &libc::sockaddr_ll, bytes: &[u8]) -> Result<Seen, Error> {
        let interface = from.sll_ifindex as u32;
        match packet::read(u16::from_be(from.sll_protocol), bytes) {
            // It may come by a link and be for a host on another: the way of a router.
            Some(Said::Datagram { address, source, source_port, port, payload })
                if port == self.port && self.watched.contains_key(&address) =>
            {
                let source = SocketAddr::new(source, source_port);
                return Ok(Seen::Datagram { address, source, payload });
            }
            Some(Said::Asks { address, asker, mac }) => {
                let on_link = |of: &&Watched| of.interface == interface;
                // Who asks in the name of an address has it.
                if self.watched.get(&asker).filter(on_link).is_some() {
                    return Ok(Seen::Claimed { address: asker });
                }
                let watched = self.watched.get(&address).filter(on_link).filter(|of| of.answered);
                if let (Some(_), Some(link)) = (watched, self.links.get(&interface))
                    && let Some(frame) = packet::answer(link.mac, address, asker, mac)
                {
                    send(&link.socket, interface, &frame)?;
                }
            }
            Some(Said::Claims { address })
                if self.watched.get(&address).is_some_and(|watched| watched.interface == interface) =>
            {
                return Ok(Seen::Claimed { address });
            }
            _ => {}
        }
        Ok(Seen::Other)
    }

    fn send(&self, address: IpAddr, what: impl Fn(Mac, IpAddr) -> Frame) -> Result<(), Error> {
        let Some(watched) = self.watched.get(&address) else { return Ok(()) };
        let Some(link) = self.links.get(&watched.interface) else { return Ok(()) };
        send(&link.socket, watched.interface, &what(link.mac, address))
    }

    /// What has to be taken in for the addresses that are watched.
    fn ethertypes(&self) -> BTreeSet<u16> {
        let of = |address: &IpAddr| match address {
            IpAddr::V4(_) => [ETHERTYPE_ARP, ETHERTYPE_IPV4],
            IpAddr::V6(_) => [ETHERTYPE_IPV6; 2],
        };
        self.watched.keys().flat_map(of).collect()
    }

    /// Has the kernel hand over what concerns the addresses that are watched, and nothing else.
    fn listen(&mut self) -> Result<(), Error> {
        let addresses: Vec<IpAddr> = self.watched.keys().copied().collect();
        let mut program = filter(&addresses, self.port);
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let attach = |socket: &OwnedFd| {
            set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program, "SO_ATTACH_FILTER")
        };
        for ethertype in self.ethertypes() {
            if let Some(socket) = self.sockets.get(&ethertype) {
                attach(socket)?;
                continue;
            }
            let socket = packet_socket()?;
            // Before anything can come.
            attach(&socket)?;
            epoll::add(&self.ready, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|e| Error::call("epoll_ctl", "a packet socket", e))?;
            bind(&socket, 0, ethertype)?;
            self.sockets.insert(ethertype, socket);
        }
        Ok(())
    }

    /// Closes what no address that is watched has need of.
    fn close_unused(&mut self) {
        let needed = self.ethertypes();
        self.sockets.retain(|ethertype, _| needed.contains(ethertype));
        let used: BTreeSet<u32> = self.watched.values().map(|watched| watched.interface).collect();
        self.links.retain(|interface, _| used.contains(interface));
    }
}

impl AsFd for NeighbourProxy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Classic BPF (bpf(4)) over packets without their link-layer header: all of ARP and neighbour discovery, and datagrams
/// to a port of certain addresses; of both nothing that this host sends itself, or that is another's.
fn filter(addresses: &[IpAddr], port: u16) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LOAD_HALF_BEYOND: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
    const LOAD_HEADER_LENGTH: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const SKIP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, yes, no| libc::sock_filter { code, jt: yes, jf: no, k };
    let special = |at: i32| (libc::SKF_AD_OFF + at) as u32;
    let drop = step(RETURN, 0, 0, 0);
    let accept = step(RETURN, LONGEST as u32, 0, 0);

    let mut v4 = vec![
        step(LOAD_BYTE, 9, 0, 0),
        step(EQUAL, 17, 1, 0),
        drop,
        step(LOAD_HALF, 6, 0, 0),
        step(ANY_BIT, 0x3fff, 0, 1),
        drop,
        step(LOAD_HEADER_LENGTH, 0, 0, 0),
        step(LOAD_HALF_BEYOND, 2, 0, 0),
        step(EQUAL, port.into(), 1, 0),
        drop,
        step(LOAD_WORD, 16, 0, 0),
    ];
    let mut v6 = vec![
        step(LOAD_BYTE, 6, 0, 0),
        step(EQUAL, 58, 0, 5),
        step(LOAD_BYTE, 40, 0, 0),
        step(LEAST, 135, 0, 2),
        step(LEAST, 137, 1, 0),
        accept,
        drop,
        step(EQUAL, 17, 1, 0),
        drop,
        step(LOAD_HALF, 42, 0, 0),
        step(EQUAL, port.into(), 1, 0),
        drop,
    ];
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.extend([step(EQUAL, address.to_bits(), 0, 1), accept]),
            IpAddr::V6(address) => {
                for (index, word) in address.octets().chunks_exact(4).enumerate() {
                    let word = word.iter().fold(0, |word, octet| word << 8 | u32::from(*octet));
                    let index = index as u32;
                    v6.push(step(LOAD_WORD, 24 + 4 * index, 0, 0));
                    // To behind the acceptance.
                    v6.push(step(EQUAL, word, 0, (7 - 2 * index) as u8));
                }
                v6.push(accept);
            }
        }
    }
    v4.push(drop);
    v6.push(drop);
    let mut all = vec![
        step(LOAD_WORD, special(libc::SKF_AD_PKTTYPE), 0, 0),
        // Others' and this host's own: PACKET_OTHERHOST and PACKET_OUTGOING.
        step(LEAST, 3, 0, 1),
        drop,
        step(LOAD_WORD, special(libc::SKF_AD_PROTOCOL), 0, 0),
        step(EQUAL, ETHERTYPE_ARP.into(), 0, 1),
        accept,
        step(EQUAL, ETHERTYPE_IPV4.into(), 0, 1),
        step(SKIP, 3, 0, 0),
        step(EQUAL, ETHERTYPE_IPV6.into(), 1, 0),
        drop,
    ];
    // The way of IPv4 skips to its own part, which comes first; that of IPv6 skips it.
    all.push(step(SKIP, v4.len() as u32, 0, 0));
    all.extend(v4);
    all.extend(v6);
    all
}

/// Joins a group on a link for as long as the socket lives. The kernel tells switches that keep groups apart (RFC
/// 4541).
fn join(interface: u32, group: Ipv6Addr) -> Result<OwnedFd, Error> {
    let what = || format!("{group} on interface {interface}");
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::call("socket", "IPv6", e))?;
    sockopt::set_ipv6_add_membership(&socket, &group, interface)
        .map_err(|e| Error::call("setsockopt IPV6_ADD_MEMBERSHIP", what(), e))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<(usize, libc::sockaddr_ll)>, Error> {
    loop {
        let mut from = link_address(0, 0, [0; 6]);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the buffer, `from` and `length` are valid for writes of the sizes that are given.
        let result = unsafe {
            libc::recvfrom(
                socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        if let Ok(received) = usize::try_from(result) {
            return Ok(Some((received, from)));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // A link went down: that of another is none of this one's business.
            error if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENETDOWN)) => {}
            error => return Err(Error::call("recvfrom", "AF_PACKET", error)),
        }
    }
}

fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T, name: &'static str) -> Result<(), Error> {
    // SAFETY: `value` is valid for reads of its size for the duration of the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), size_of::<T>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(Error::call("setsockopt", name, io::Error::last_os_error())) }
}
