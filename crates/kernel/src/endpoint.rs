//! Endpoint namespaces: a network namespace each in which one borrowed virtual address is local (DESIGN §1, §4).
//!
//! Sockets that moved here, and sockets of an address that is lent, live in one, so that two equal virtual endpoints can be on
//! one host, and neither its addresses nor its routes know of them. A socket stays in the namespace that it was made in, whichever process
//! it is passed to (unix(7), SCM_RIGHTS).
//!
//! Inside, the address is on `lo`, and all that is sent leaves by `e0`; outside, it arrives on the other end of that veth pair, whose
//! ingress program carries it on, and what arrives for the address is put in there. There is no ARP and no neighbour discovery: the
//! programs care for link-layer addresses.
//!
//! Nothing of it has a name in any file system: it lives as long as a descriptor or a socket in it, and the pair of
//! interfaces ends with it. So what a killed daemon leaves is what programs still use, and a daemon finds it
//! again by their sockets ([`Endpoint::of_socket`]).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::thread::UnshareFlags;

use crate::error::Error;
use crate::namespace::Entered;
use crate::route::{AddressScope, LOOPBACK, NewAddress, NextHop, Prefix, RouteKind, RouteSocket, TableRoute};
use crate::sysctl;

/// The inner end of the pair.
const INNER: &str = "e0";
const MAIN_TABLE: u32 = 254;
/// linux/sockios.h: a descriptor of the network namespace that a socket is in (Linux 4.10).
const SIOCGSKNS: libc::c_ulong = 0x894c;

/// Settings of the host that programs notice in their sockets: those below `net/ipv4` that begin so (IPv6 goes by them as well).
const COPIED: [&str; 5] = ["tcp_", "udp_", "ip_local_", "ip_default_ttl", "ip_no_pmtu_disc"];
/// And these.
const COPIED_TOO: [&str; 3] = ["net/core/somaxconn", "net/ipv6/conf/all/hop_limit", "net/ipv6/auto_flowlabels"];

/// An endpoint namespace.
#[derive(Debug)]
pub struct Endpoint {
    namespace: OwnedFd,
}

impl Endpoint {
    /// Makes one for `address`, with `interface` as its end in the calling thread's network namespace, whose settings for TCP and
    /// UDP it takes over. `mtu` is in bytes. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing is left of the attempt.
    pub fn create(address: IpAddr, interface: &str, mtu: u32) -> Result<Self, Error> {
        let namespace = new_namespace()?;
        let settings = settings();
        let mut outside = RouteSocket::open()?;
        // From here on the end of the namespace is the end of all that was made.
        let outer = outside.create_pair(interface, INNER, namespace.as_fd(), mtu)?;
        outside.set_up(outer, true)?;
        let endpoint = Self { namespace };
        let _inside = endpoint.enter()?;
        for (key, value) in &settings {
            if sysctl::get(key).is_ok_and(|now| now != *value) {
                // What cannot be set here is the same everywhere, or the host's own business.
                let _ = sysctl::set(key, value);
            }
        }
        furnish(address)?;
        Ok(endpoint)
    }

    /// The namespace that a socket is in. Whether it is an endpoint namespace, the caller has to know.
    ///
    /// # Errors
    /// [`Error::Call`]: it is no socket, or CAP_NET_ADMIN in its user namespace is lacking.
    pub fn of_socket(socket: BorrowedFd<'_>) -> Result<Self, Error> {
        // SAFETY: the request takes no argument and gives a new descriptor.
        let raw = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
        if raw < 0 {
            let object = format!("descriptor {}", socket.as_raw_fd());
            return Err(Error::call("ioctl SIOCGSKNS", object, io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Self { namespace: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// The calling thread is inside until the guard is dropped; sockets that it makes meanwhile stay there.
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn enter(&self) -> Result<Entered, Error> {
        Entered::descriptor(self.namespace.as_fd())
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
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
fn furnish(address: IpAddr) -> Result<(), Error> {
    // What comes in has come any way; nobody else's routes or addresses are wanted here.
    for (key, value) in [
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/e0/rp_filter", "0"),
        ("net/ipv6/conf/e0/accept_ra", "0"),
        ("net/ipv6/conf/e0/addr_gen_mode", "1"),
    ] {
        match sysctl::set(key, value) {
            // Without IPv6 there is none to keep out.
            Err(error) if key.contains("ipv6") && error.raw_os_error() == Some(libc::ENOENT) => {}
            other => other?,
        }
    }
    let mut inside = RouteSocket::open()?;
    inside.set_up(LOOPBACK, true)?;
    let links = inside.links()?;
    let e0 = links.iter().find(|link| link.name == INNER).map(|link| link.index).ok_or_else(|| Error::Answer {
        call: "RTM_GETLINK",
        object: INNER.to_owned(),
        detail: "it is not there".to_owned(),
    })?;
    inside.set_up(e0, false)?;
    inside.set_address(&NewAddress { interface: LOOPBACK, address, scope: AddressScope::Global, deprecated: false })?;
    let everything = Prefix::everything(address);
    inside.set_route(&TableRoute::new(everything, MAIN_TABLE, RouteKind::Unicast, vec![NextHop::interface(e0)]))
}

/// The host's settings that are taken over, with their values.
fn settings() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(Path::new("/proc/sys/net/ipv4")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let wanted = names.filter(|name| COPIED.iter().any(|prefix| name.starts_with(prefix)));
    let keys = wanted.map(|name| format!("net/ipv4/{name}")).chain(COPIED_TOO.map(str::to_owned));
    keys.filter_map(|key| sysctl::get(&key).ok().map(|value| (key, value))).collect()
}
