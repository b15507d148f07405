//! Endpoint namespaces: a network namespace each in which one borrowed virtual address is local (DESIGN §1, §4).
//!
//! Sockets that moved here, and sockets of an address that is lent, live in one, so that two equal virtual endpoints
//! can be on one host, and neither its addresses nor its routes know of them. A socket stays in the namespace that it
//! was made in, whichever process it is passed to (unix(7), SCM_RIGHTS).
//!
//! Inside, the address is on `lo`, and all that is sent leaves by `e0`; outside, it arrives on the other end of that
//! veth pair, whose ingress program carries it on, and what arrives for the address is put in there. There is no ARP
//! and no neighbour discovery: the programs care for link-layer addresses.
//!
//! Nothing of it has a name in any file system: it lives as long as a descriptor or a socket in it, and the pair of
//! interfaces ends with it. So what a killed daemon leaves is what programs still use, and a daemon finds it
//! again by these ([`find`]).
//!
//! A namespace may be a program's, which renames, replaces and numbers what is in it as it likes. So the pair is only
//! ever looked for outside, by the name that was drawn for it, and nothing that is read inside says what to do with an
//! interface outside.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;

use crate::duplicated;
use crate::error::Error;
use crate::namespace::{self, Entered};
use crate::process;
use crate::route::{
    AddressScope, LOCAL_TABLE, LOOPBACK, Link, NewAddress, NextHop, Prefix, RouteKind, RouteSocket, Rule, Selector,
    TableRoute,
};
use crate::sysctl;

/// The outer ends of pairs are called so, and an own number behind it: of namespaces that were made here,
const MADE: &str = "whimbrel-e";
/// and of those that programs have brought along. A daemon tells by that what is whose: processes are in either kind,
/// since whole ones come into those that it has made.
const BROUGHT: &str = "whimbrel-b";
/// How many names are tried: one in a million is taken for each namespace that is there.
const DRAWS: u32 = 8;
/// So many interfaces a namespace may have that a program brings along, and more than the kernel makes by itself in a
/// new one (`sit0`, `tunl0`...): listing them takes time, and the program makes as many as it likes.
const MOST_LINKS: usize = 64;
/// The inner end of the pair.
const INNER: &str = "e0";
/// Its link-layer address, in every endpoint namespace the same, since nobody asks for it: what the programs send in
/// there bears it (`INNER_HARDWARE_ADDRESS` in `bpf/abi.h`). Locally administered.
pub const INNER_HARDWARE_ADDRESS: [u8; 6] = [0x02, b'W', b'B', b'e', b'p', 0];
const MAIN_TABLE: u32 = 254;
/// Where the address is local for what comes in.
const ENTRANCE_TABLE: u32 = 100;
const ENTRANCE_PRIORITY: u32 = 100;
/// Of the pair, in bytes: what the host's own programs send comes from its loopback device, as long as that takes it.
const MOST_MTU: u32 = 65_535;
/// How long the kernel may take to make the local route of an IPv6 address, which it does by itself: milliseconds, but
/// more than a second was seen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// linux/sockios.h: a descriptor of the network namespace that a socket is in (Linux 4.10).
const SIOCGSKNS: libc::c_ulong = 0x894c;
/// linux/nsfs.h, ioctl_nsfs(2): the user namespace that a namespace belongs to; its type; the user who has made a user
/// namespace.
const NS_GET_USERNS: libc::c_ulong = 0xb701;
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;

/// Settings of the host that programs notice in their sockets: those below `net/ipv4` that begin so (IPv6 goes by them
/// as well).
const COPIED: [&str; 5] = ["tcp_", "udp_", "ip_local_", "ip_default_ttl", "ip_no_pmtu_disc"];
/// And these.
const COPIED_TOO: [&str; 3] = ["net/core/somaxconn", "net/ipv6/conf/all/hop_limit", "net/ipv6/auto_flowlabels"];

/// Settings of the outer end. The programs ask the routing table for it, which answers for interfaces that forward
/// (`bpf_fib_lookup`). What they let pass up the host's stack is for its own programs, and comes from an address of the
/// host's own, perhaps.
const OUTER_SETTINGS: [(&str, &str); 6] = [
    ("ipv4/conf/IF/forwarding", "1"),
    ("ipv4/conf/IF/accept_local", "1"),
    ("ipv4/conf/IF/rp_filter", "0"),
    ("ipv6/conf/IF/forwarding", "1"),
    ("ipv6/conf/IF/accept_ra", "0"),
    ("ipv6/conf/IF/addr_gen_mode", "1"),
];
const TUNNEL_SETTINGS: [(&str, &str); 3] =
    [("ipv4/conf/IF/forwarding", "1"), ("ipv4/conf/IF/accept_local", "1"), ("ipv6/conf/IF/forwarding", "1")];
/// Settings inside. What comes in has come any way, even from the address itself, which the host may have as well;
/// nobody else's routes or addresses are wanted here.
const INNER_SETTINGS: [(&str, &str); 4] = [
    ("ipv4/conf/IF/rp_filter", "0"),
    ("ipv4/conf/IF/accept_local", "1"),
    ("ipv6/conf/IF/accept_ra", "0"),
    ("ipv6/conf/IF/addr_gen_mode", "1"),
];
/// Without a local route the kernel takes the address for nobody's when a socket is bound to it.
const NAMESPACE_SETTINGS: [(&str, &str); 3] =
    [("ipv4/conf/all/rp_filter", "0"), ("ipv4/ip_nonlocal_bind", "1"), ("ipv6/ip_nonlocal_bind", "1")];

/// An endpoint namespace.
#[derive(Debug)]
pub struct Endpoint {
    namespace: OwnedFd,
    outer: Outer,
}

/// The end outside of an endpoint namespace's pair of interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Its index.
    pub index: u32,
    /// Its name, which no other interface has, or will have.
    pub name: String,
    /// By which id (RTM_NEWNSID) the namespace outside knows the one inside.
    pub namespace: u32,
}

impl Outer {
    /// Whether an interface of this name is one.
    #[must_use]
    pub fn is_called(name: &str) -> bool {
        let number = name.strip_prefix(MADE).or_else(|| name.strip_prefix(BROUGHT));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }

    /// Whether a program has brought the namespace along.
    #[must_use]
    pub fn is_of_program(&self) -> bool {
        self.name.starts_with(BROUGHT)
    }

    /// Takes the pair down: nothing gets into the namespace any more, nor out of it. One that has gone is none the
    /// worse. In the network namespace outside.
    ///
    /// # Errors
    /// [`Error::Call`]; it is still there.
    pub fn remove(&self, outside: &mut RouteSocket) -> Result<(), Error> {
        // By its name: the number may be another's, should the pair have gone with the namespace.
        outside.delete_link_called(&self.name).map(drop)
    }

    /// Makes the pair, both ends switched off.
    fn create(prefix: &str, namespace: BorrowedFd<'_>, outside: &mut RouteSocket) -> Result<Self, Error> {
        let mut draw = 1;
        let index = loop {
            let name = format!("{prefix}{:05x}", random()? & 0xf_ffff);
            match outside.create_pair(&name, (INNER, INNER_HARDWARE_ADDRESS), namespace, MOST_MTU) {
                Ok(index) => break (index, name),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) && draw < DRAWS => draw += 1,
                Err(error) => return Err(error),
            }
        };
        let (index, name) = index;
        match outside.namespace_id(namespace) {
            Ok(namespace) => Ok(Self { index, name, namespace }),
            Err(error) => {
                let _ = outside.delete_link_called(&name);
                Err(error)
            }
        }
    }
}

impl Endpoint {
    /// Makes one for `address`, with an end in the calling thread's network namespace, whose settings for TCP and UDP
    /// it takes over. `mtu`, in bytes, is that of its route to everywhere. `guard` is given the index of that end
    /// before anything can come through it, and puts there what watches over it. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Call`], and what `guard` says; no interface is left of the attempt.
    pub fn create<E: From<Error>>(
        address: IpAddr,
        mtu: u32,
        guard: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::equipped(new_namespace()?, MADE, address, mtu, guard)
    }

    /// As [`Endpoint::create`], of a network namespace that a program has made for itself, perhaps in a user namespace
    /// of its own. There must be nothing in it yet.
    ///
    /// # Errors
    /// As [`Endpoint::create`]; or it may not be used ([`Brought::check`]), and is as before.
    pub fn create_in<E: From<Error>>(
        brought: Brought,
        address: IpAddr,
        mtu: u32,
        guard: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<Self, E> {
        brought.check()?;
        Self::equipped(brought.namespace, BROUGHT, address, mtu, guard)
    }

    fn equipped<E: From<Error>>(
        namespace: OwnedFd,
        prefix: &str,
        address: IpAddr,
        mtu: u32,
        guard: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<Self, E> {
        let settings = settings();
        let mut outside = RouteSocket::open()?;
        let outer = Outer::create(prefix, namespace.as_fd(), &mut outside)?;
        let endpoint = Self { namespace, outer };
        let furnished =
            guard(endpoint.outer.index).and_then(|()| Ok(endpoint.furnish(address, mtu, &mut outside, &settings)?));
        if furnished.is_err() {
            // The namespace may be a program's, and does not end with this.
            let _ = endpoint.outer.remove(&mut outside);
        }
        furnished.map(|()| endpoint)
    }

    fn furnish(
        &self,
        address: IpAddr,
        mtu: u32,
        outside: &mut RouteSocket,
        settings: &[(String, String)],
    ) -> Result<(), Error> {
        set_all(&self.outer.name, &OUTER_SETTINGS)?;
        outside.set_up(self.outer.index, true)?;
        let _inside = self.enter()?;
        for (key, value) in settings {
            if sysctl::get(key).is_ok_and(|now| now != *value) {
                // What cannot be set here is the same everywhere, or the host's own business.
                let _ = sysctl::set(key, value);
            }
        }
        furnish(address, mtu)
    }

    /// The end outside of its pair of interfaces.
    #[must_use]
    pub fn outer(&self) -> &Outer {
        &self.outer
    }

    /// Has programs inside draw their ports from these (`net.ipv4.ip_local_port_range`, for IPv6 as well).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn draw_ports(&self, ports: &RangeInclusive<u16>) -> Result<(), Error> {
        let _inside = self.enter()?;
        sysctl::set("net/ipv4/ip_local_port_range", &format!("{}\t{}", ports.start(), ports.end()))
    }

    /// Programs inside may have ports below 1024 whoever's they are (`net.ipv4.ip_unprivileged_port_start`).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn let_anybody_listen(&self) -> Result<(), Error> {
        let _inside = self.enter()?;
        sysctl::set("net/ipv4/ip_unprivileged_port_start", "0")
    }

    /// Whether any process is in it, or any but the calling one has a socket of it; also where that cannot be told.
    /// Processes that may not be looked into, with CAP_SYS_PTRACE, are passed over.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let look = || -> Result<bool, Error> {
            let number = number(self.namespace.as_fd())?;
            let cookie = self.enter().and_then(|_inside| namespace::cookie())?;
            std::fs::read_dir("/proc").map_err(|e| Error::call("readdir", "/proc", e))?;
            // Where processes are is known much sooner than what they have open.
            for pid in pids() {
                let path = format!("/proc/{pid}/ns/net");
                match std::fs::metadata(&path) {
                    Ok(metadata) if metadata.ino() == number => return Ok(true),
                    Err(error) if !is_beyond(error.raw_os_error()) => return Err(Error::call("stat", path, error)),
                    Ok(_) | Err(_) => {}
                }
            }
            let is_inside = |socket: BorrowedFd<'_>| namespace::cookie_of(socket).map(|of| of == cookie);
            for pid in pids().filter(|pid| *pid != std::process::id()) {
                match duplicated::any_socket(pid, is_inside) {
                    Ok(true) => return Ok(true),
                    Err(error) if !is_beyond(error.raw_os_error()) => return Err(error),
                    Ok(false) | Err(_) => {}
                }
            }
            Ok(false)
        };
        look().unwrap_or(true)
    }

    /// Changes the MTU of the route to everywhere of the namespace, whose address this is: what its sockets send fits
    /// links of so many bytes from now on, also those that are connected.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_mtu(&self, address: IpAddr, mtu: u32) -> Result<(), Error> {
        let _inside = self.enter()?;
        let mut inside = RouteSocket::open()?;
        let e0 = inside.link_index(INNER)?;
        inside.set_route(&way_out(address, e0, mtu))
    }

    /// TCP connections that are made in the namespace from now on, or rebuilt, begin with a congestion window of so
    /// many segments; `None` for the kernel's own idea. The others stay as they are.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_first_window(&self, address: IpAddr, mtu: u32, first_window: Option<u32>) -> Result<(), Error> {
        let _inside = self.enter()?;
        let mut inside = RouteSocket::open()?;
        let e0 = inside.link_index(INNER)?;
        inside.set_route(&TableRoute { first_window, ..way_out(address, e0, mtu) })
    }

    /// The calling thread is inside until the guard is dropped; sockets that it makes meanwhile stay there.
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn enter(&self) -> Result<Entered, Error> {
        Entered::descriptor(self.namespace.as_fd())
    }
}

/// A network namespace that a program hands in.
#[derive(Debug)]
pub struct Brought {
    /// What it handed in.
    pub namespace: OwnedFd,
    /// The program's user.
    pub owner: u32,
}

impl Brought {
    /// Whether it may be made an endpoint namespace: it is a network namespace, not the calling thread's own, belongs
    /// to that user, and has nothing but a loopback device that is down.
    ///
    /// # Errors
    /// [`Error::Argument`]: it may not; [`Error::Call`].
    pub fn check(&self) -> Result<(), Error> {
        const HERE: &str = "/proc/thread-self/ns/net";
        let refused = |detail| Error::Argument { object: "the network namespace".to_owned(), detail };
        // The descriptor is anything that a program has: what serves it may never answer, so that it is asked for by
        // its name first.
        let link = format!("/proc/thread-self/fd/{}", self.namespace.as_raw_fd());
        let name = std::fs::read_link(&link).map_err(|e| Error::call("readlink", link, e))?;
        let is_network = name.to_str().is_some_and(|name| name.starts_with("net:["));
        if !is_network || self.ask(NS_GET_NSTYPE, "NS_GET_NSTYPE")? != libc::CLONE_NEWNET {
            return Err(refused("it is none"));
        }
        if number_of(HERE) == Some(number(self.namespace.as_fd())?) {
            return Err(refused("it is the host's own"));
        }
        if self.made_by()? != Some(self.owner) {
            return Err(refused("it is another user's"));
        }
        let _inside = Entered::descriptor(self.namespace.as_fd())?;
        let links = RouteSocket::open()?.some_links(MOST_LINKS + 1)?;
        if links.len() > MOST_LINKS {
            return Err(refused("it is in use: it has very many interfaces"));
        }
        if links.iter().any(|link| link.up) || RouteSocket::open()?.has_address()? {
            return Err(refused("it is in use: an interface is up, or has an address"));
        }
        Ok(())
    }

    /// The user whose it is: root where it belongs to the calling process's own user namespace, else who has made the
    /// user namespace that it belongs to. `None`: that is out of sight.
    fn made_by(&self) -> Result<Option<u32>, Error> {
        let users = match self.ask(NS_GET_USERNS, "NS_GET_USERNS") {
            // SAFETY: the descriptor is new, and nobody else's.
            Ok(raw) => unsafe { OwnedFd::from_raw_fd(raw) },
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&users).map_err(|e| Error::call("fstat", "a user namespace", e))?;
        if number_of("/proc/thread-self/ns/user") == Some(stat.st_ino) {
            return Ok(Some(0));
        }
        let mut owner: libc::uid_t = 0;
        // SAFETY: `owner` is valid for writes, and of the type that the request takes.
        if unsafe { libc::ioctl(users.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) } < 0 {
            return Err(Error::call("ioctl NS_GET_OWNER_UID", "a user namespace", io::Error::last_os_error()));
        }
        Ok(Some(owner))
    }

    fn ask(&self, request: libc::c_ulong, call: &'static str) -> Result<i32, Error> {
        // SAFETY: these requests take no argument.
        let answer = unsafe { libc::ioctl(self.namespace.as_raw_fd(), request) };
        if answer < 0 {
            return Err(Error::call(call, "a network namespace", io::Error::last_os_error()));
        }
        Ok(answer)
    }
}

/// An endpoint namespace that was found again.
#[derive(Debug)]
pub struct Found {
    /// Its cookie (SO_NETNS_COOKIE).
    pub cookie: u64,
    /// A process is in it, and has not just sockets there.
    pub lived_in: bool,
    /// The namespace.
    pub endpoint: Endpoint,
}

/// The endpoint namespaces with these cookies (SO_NETNS_COOKIE) that programs are in, or have sockets in, and whose
/// pairs end in the calling thread's network namespace: how a daemon finds what one before it has made. Looks at every
/// process that may be looked into, and its sockets.
///
/// # Errors
/// [`Error::Call`]: what is here cannot be listed.
pub fn find(cookies: &HashSet<u64>) -> Result<Vec<Found>, Error> {
    let mut outside = RouteSocket::open()?;
    let pairs: Vec<Link> = outer_ends(&mut outside)?;
    let mut found = Vec::new();
    let mut seen: HashSet<u64> = number_of("/proc/thread-self/ns/net").into_iter().collect();
    let mut consider = |namespace: OwnedFd, lived_in: bool| {
        if !number(namespace.as_fd()).is_ok_and(|number| seen.insert(number)) {
            return;
        }
        let cookie = Entered::descriptor(namespace.as_fd()).and_then(|_inside| namespace::cookie());
        let Some(cookie) = cookie.ok().filter(|cookie| cookies.contains(cookie)) else { return };
        let Ok(id) = outside.namespace_id(namespace.as_fd()) else { return };
        let mut leading: Vec<&Link> = pairs.iter().filter(|link| link.beyond == Some(id)).collect();
        // A program may move the inner end of a namespace of its own to another of its own. Then nobody knows which is
        // whose.
        if let (Some(link), true) = (leading.pop(), leading.is_empty()) {
            let outer = Outer { index: link.index, name: link.name.clone(), namespace: id };
            found.push(Found { cookie, lived_in, endpoint: Endpoint { namespace, outer } });
        }
    };
    for pid in pids() {
        if let Ok(namespace) = std::fs::File::open(format!("/proc/{pid}/ns/net")) {
            consider(namespace.into(), true);
        }
    }
    for pid in pids() {
        let sockets = duplicated::borrow(pid, &process::sockets(pid)).unwrap_or_default();
        for (_, socket) in sockets {
            if namespace::cookie_of(socket.as_fd()).is_ok_and(|cookie| cookies.contains(&cookie)) {
                of_socket(socket.as_fd()).into_iter().for_each(|namespace| consider(namespace, false));
            }
        }
    }
    Ok(found)
}

/// Takes down all pairs of endpoint namespaces that end in the calling thread's network namespace, which sockets that
/// are in these may survive. Gives their names.
///
/// # Errors
/// [`Error::Call`] of the first that is still there; all are tried.
pub fn remove_all() -> Result<BTreeSet<String>, Error> {
    let mut outside = RouteSocket::open()?;
    let pairs = outer_ends(&mut outside)?;
    let removed = pairs.iter().map(|link| outside.delete_link_called(&link.name).map(drop));
    removed.fold(Ok(()), Result::and)?;
    Ok(pairs.into_iter().map(|link| link.name).collect())
}

fn outer_ends(outside: &mut RouteSocket) -> Result<Vec<Link>, Error> {
    let links = outside.links()?;
    Ok(links.into_iter().filter(|link| link.kind == "veth" && Outer::is_called(&link.name)).collect())
}

/// The network namespace that a socket is in.
fn of_socket(socket: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    // SAFETY: the request takes no argument and gives a new descriptor.
    let raw = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if raw < 0 {
        let object = format!("descriptor {}", socket.as_raw_fd());
        return Err(Error::call("ioctl SIOCGSKNS", object, io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// The number of a namespace (that of its inode).
fn number(namespace: BorrowedFd<'_>) -> Result<u64, Error> {
    let stat = rustix::fs::fstat(namespace).map_err(|e| Error::call("fstat", "a network namespace", e))?;
    Ok(stat.st_ino)
}

fn random() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    // SAFETY: room for so many bytes. So few are given whole, or none (getrandom(2)).
    let given = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if given < 0 {
        return Err(Error::call("getrandom", "the name of an interface", io::Error::last_os_error()));
    }
    Ok(u32::from_ne_bytes(bytes))
}

/// The processes of this PID namespace.
fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The number of the namespace at a path.
fn number_of(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}

/// Whether an error says that a process has ended, or that this one may not look into it: such there are in many a
/// container, and leases would never be returned if they counted.
fn is_beyond(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::ESRCH | libc::EACCES | libc::EPERM))
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Lets the programs ask the routing table for what comes by the TUN device, or by a device that does not forward, and
/// the host's own programs be reached from an end that has the host's address and is leased to a peer. Needed where
/// anything is forwarded for a socket that is elsewhere, or leased; the host does not become a router by it. It ends
/// with the device.
///
/// # Errors
/// [`Error::Call`]; some may have been set.
pub fn let_forward(tun: &str) -> Result<(), Error> {
    set_all(tun, &TUNNEL_SETTINGS)
}

/// A network namespace without a name, made by a thread that ends in it.
fn new_namespace() -> Result<OwnedFd, Error> {
    const HERE: &str = "/proc/thread-self/ns/net";
    let make = || {
        // SAFETY: the thread shares nothing with others that a network namespace would change, and ends right after.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|e| Error::call("unshare", "a network namespace", e))?;
        std::fs::File::open(HERE).map(OwnedFd::from).map_err(|e| Error::call("open", HERE, e))
    };
    let thread = std::thread::Builder::new().name("endpoint".to_owned()).spawn(make);
    let thread = thread.map_err(|e| Error::call("clone", "a thread for a network namespace", e))?;
    thread.join().unwrap_or_else(|_| {
        let detail = "the thread that makes it failed".to_owned();
        Err(Error::Answer { call: "unshare", object: "a network namespace".to_owned(), detail })
    })
}

/// Makes the address local in the namespace that the thread is in, and leads everything out of it.
///
/// It is local to what comes in alone. What is sent to it goes out as anything else does: the host may have the address
/// too, and programs that hold other ports of it.
fn furnish(address: IpAddr, mtu: u32) -> Result<(), Error> {
    set_all(INNER, &INNER_SETTINGS)?;
    set_all("", &NAMESPACE_SETTINGS)?;
    let mut inside = RouteSocket::open()?;
    inside.set_up(LOOPBACK, true)?;
    let e0 = inside.link_index(INNER)?;
    inside.set_up(e0, false)?;
    inside.set_address(&NewAddress { interface: LOOPBACK, address, scope: AddressScope::Global, deprecated: false })?;
    inside.set_route(&way_out(address, e0, mtu))?;
    let local = |table| {
        let hops = vec![NextHop::interface(LOOPBACK)];
        TableRoute::new(Prefix::host(address), table, RouteKind::Local, hops).metric(0)
    };
    inside.set_route(&local(ENTRANCE_TABLE))?;
    let selector = Selector::Arrived { interface: INNER, ipv4: address.is_ipv4() };
    inside.set_rule(&Rule { priority: ENTRANCE_PRIORITY, selector, table: ENTRANCE_TABLE })?;
    let since = Instant::now();
    while !inside.delete_route(&local(LOCAL_TABLE))? {
        if since.elapsed() > PATIENCE {
            let detail = "the kernel made no local route of it".to_owned();
            return Err(Error::Answer { call: "RTM_NEWADDR", object: address.to_string(), detail });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The route to everywhere in the family of `like`.
fn way_out(like: IpAddr, e0: u32, mtu: u32) -> TableRoute {
    let hops = vec![NextHop::interface(e0)];
    TableRoute::new(Prefix::everything(like), MAIN_TABLE, RouteKind::Unicast, hops).mtu(mtu)
}

/// Sets settings below `net`, those of `interface` where they name one (`IF`).
fn set_all(interface: &str, settings: &[(&str, &str)]) -> Result<(), Error> {
    for (key, value) in settings {
        match sysctl::set(&format!("net/{}", key.replace("IF", interface)), value) {
            // Without IPv6 there is none to keep out.
            Err(error) if key.contains("ipv6") && error.raw_os_error() == Some(libc::ENOENT) => {}
            other => other?,
        }
    }
    Ok(())
}

/// The host's settings that are taken over, with their values.
fn settings() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(Path::new("/proc/sys/net/ipv4")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let wanted = names.filter(|name| COPIED.iter().any(|prefix| name.starts_with(prefix)));
    let keys = wanted.map(|name| format!("net/ipv4/{name}")).chain(COPIED_TOO.map(str::to_owned));
    keys.filter_map(|key| sysctl::get(&key).ok().map(|value| (key, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_drawn_is_the_end_of_a_namespace() {
        for name in ["whimbrel-e0", "whimbrel-e3f2a1", "whimbrel-b0f2a1"] {
            assert!(Outer::is_called(name), "{name}");
        }
        for name in ["whimbrel", "whimbrel-e", "whimbrel-b", "whimbrel-c1", "whimbrel-extra", "eth0", "e0", ""] {
            assert!(!Outer::is_called(name), "{name}");
        }
    }
}
