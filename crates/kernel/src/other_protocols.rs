//! What is bound to addresses of this host and is neither TCP nor UDP: nobody moves it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::NLM_F_DUMP;

use crate::error::Error;
use crate::netlink::Netlink;

/// `NETLINK_XFRM`, and messages of it (include/uapi/linux/xfrm.h).
const NETLINK_XFRM: isize = 6;
const XFRM_MSG_NEWSA: u16 = 0x10;
const XFRM_MSG_GETSA: u16 = 0x12;
/// Where fields are in `struct xfrm_usersa_info`.
const SA_DESTINATION: usize = 56;
const SA_PROTOCOL: usize = 76;
const SA_SOURCE: usize = 80;
const SA_FAMILY: usize = 212;
const ESP: u8 = 50;
const AH: u8 = 51;

/// A protocol that is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// UDP-Lite (RFC 3828).
    UdpLite,
    /// ICMP echo by a socket of its own ("ping socket"); ports are its identifier.
    Echo,
    /// A raw socket; ports are the IP protocol's number.
    Raw,
    /// SCTP (RFC 9260).
    Sctp,
    /// IPsec, ESP or AH; it has no ports.
    Ipsec,
}

/// Something that depends on an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bound {
    /// What it is.
    pub protocol: Protocol,
    /// Its own address. Of IPsec the one that packets come from, which may be the other end's.
    pub local: SocketAddr,
    /// The other end's, where it has one.
    pub remote: Option<SocketAddr>,
    /// The socket's inode; 0 where there is none.
    pub inode: u32,
}

impl Bound {
    /// Whether it is lost with this address of the host's.
    #[must_use]
    pub fn needs(&self, address: IpAddr) -> bool {
        let other = self.remote.filter(|_| self.protocol == Protocol::Ipsec);
        self.local.ip() == address || other.is_some_and(|other| other.ip() == address)
    }
}

/// All that is bound to an address of the thread's network namespace, except for loopback and wildcards, which need
/// none. What the kernel has not is not there.
///
/// # Errors
/// [`Error::Call`] when associations of IPsec cannot be listed.
pub fn bound() -> Result<Vec<Bound>, Error> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let mut all = Vec::new();
    for (protocol, names) in [
        (Protocol::UdpLite, ["udplite", "udplite6"]),
        (Protocol::Echo, ["icmp", "icmp6"]),
        (Protocol::Raw, ["raw", "raw6"]),
    ] {
        for name in names {
            all.extend(read(name).lines().filter_map(|line| socket(protocol, line)));
        }
    }
    all.extend(read("sctp/assocs").lines().filter_map(association));
    all.extend(security_associations()?);
    all.retain(|one| !one.local.ip().is_unspecified() && !one.local.ip().is_loopback());
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A line of `/proc/net/raw` and its like (`ping_v4_format_sock`).
fn socket(protocol: Protocol, line: &str) -> Option<Bound> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (endpoint(words.next()?)?, endpoint(words.next()?)?);
    let inode = words.nth(6)?.parse().ok()?;
    Some(Bound { protocol, local, remote: Some(remote).filter(|remote| !remote.ip().is_unspecified()), inode })
}

/// An address in words of the machine's order and a port, in hexadecimal.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if !address.is_ascii() || !matches!(address.len(), 8 | 32) {
        return None;
    }
    let words = (0..address.len() / 8).map(|at| u32::from_str_radix(&address[8 * at..8 * at + 8], 16).ok());
    let octets: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    Some(SocketAddr::new(address_of(&octets)?, port))
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).to_canonical()),
        _ => None,
    }
}

/// A line of `/proc/net/sctp/assocs` (`sctp_assocs_seq_show`): the primary address of either side has a star.
fn association(line: &str) -> Option<Bound> {
    let (before, after) = line.split_once(" <-> ")?;
    let words: Vec<&str> = before.split_whitespace().collect();
    let addresses = words.iter().position(|word| word.parse::<IpAddr>().is_ok() || word.starts_with('*'))?;
    let number = |back: usize| words.get(addresses.checked_sub(back)?)?.parse().ok();
    let (inode, local_port, remote_port) = (number(3)?, number(2)?, number(1)?);
    let first =
        |mut words: std::slice::Iter<'_, &str>| words.find_map(|word| word.trim_start_matches('*').parse().ok());
    let after: Vec<&str> = after.split_whitespace().collect();
    let (local, remote): (IpAddr, IpAddr) = (first(words[addresses..].iter())?, first(after.iter())?);
    let port = |number: u32| u16::try_from(number).ok();
    Some(Bound {
        protocol: Protocol::Sctp,
        local: SocketAddr::new(local, port(local_port)?),
        remote: Some(SocketAddr::new(remote, port(remote_port)?)),
        inode,
    })
}

fn security_associations() -> Result<Vec<Bound>, Error> {
    let mut socket = match Netlink::open(NETLINK_XFRM, "NETLINK_XFRM") {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    let note = |found: &mut Vec<Bound>, kind: u16, payload: &[u8]| {
        found.extend((kind == XFRM_MSG_NEWSA).then(|| security_association(payload)).flatten());
    };
    socket
        .request(XFRM_MSG_GETSA, NLM_F_DUMP, &[], &mut found, Vec::clear, note)
        .map_err(|refusal| refusal.of("XFRM_MSG_GETSA", "all"))?;
    Ok(found)
}

/// An association of ESP or AH that is not open to any source.
fn security_association(payload: &[u8]) -> Option<Bound> {
    let family = i32::from(u16::from_ne_bytes(payload.get(SA_FAMILY..SA_FAMILY + 2)?.try_into().ok()?));
    let length = if family == libc::AF_INET { 4 } else { 16 };
    let address = |at: usize| address_of(payload.get(at..at + length)?);
    let (local, remote) = (address(SA_SOURCE)?, address(SA_DESTINATION)?);
    matches!(payload.get(SA_PROTOCOL), Some(&(ESP | AH))).then(|| Bound {
        protocol: Protocol::Ipsec,
        local: SocketAddr::new(local, 0),
        remote: Some(SocketAddr::new(remote, 0)),
        inode: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_are_read_as_the_kernel_shows_them() {
        let line = "  17: 070064C6:0011 01000AC0:0000 01 00000000:00000000 00:00000000 00000000  0  0 4711 2 0000000000000000 0";
        let found = socket(Protocol::Echo, line).unwrap();
        assert_eq!((found.local, found.inode), (at("198.100.0.7:17"), 4711));
        assert_eq!(found.remote, Some(at("192.10.0.1:0")));
        let line = "   1: B80D0120000000000000000007000000:003A 00000000000000000000000000000000:0000 07 0:0 0:0 0  0  0 12 2 0 0";
        let found = socket(Protocol::Raw, line).unwrap();
        assert_eq!((found.local, found.remote), (at("[2001:db8::7]:58"), None));
        assert_eq!(socket(Protocol::Raw, "  sl  local_address rem_address   st"), None);
        assert_eq!(socket(Protocol::Raw, ""), None);
    }

    #[test]
    fn associations_are_read_by_their_primary_addresses() {
        let line = " ffff88 ffff89 2   1   3  0        5        0        0       0 20735  7 9899  *198.51.100.7 10.0.0.7 <-> *192.0.2.1 \t 30000  2  2    0    0    0 0 212992 87380";
        let found = association(line).unwrap();
        assert_eq!((found.local, found.remote), (at("198.51.100.7:7"), Some(at("192.0.2.1:9899"))));
        assert_eq!(found.inode, 20735);
        assert_eq!(association(" ASSOC SOCK STY SST ST HBKT LADDRS <-> RADDRS HBINT"), None);
    }

    #[test]
    fn security_associations_need_both_addresses() {
        let mut payload = [0u8; 224];
        payload[SA_DESTINATION..SA_DESTINATION + 4].copy_from_slice(&[192, 0, 2, 1]);
        payload[SA_SOURCE..SA_SOURCE + 4].copy_from_slice(&[198, 51, 100, 7]);
        payload[SA_FAMILY..SA_FAMILY + 2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        assert_eq!(security_association(&payload), None, "of another protocol");
        payload[SA_PROTOCOL] = ESP;
        let found = security_association(&payload).unwrap();
        assert!(found.needs(at("198.51.100.7:0").ip()) && found.needs(at("192.0.2.1:0").ip()));
        assert!(!found.needs(at("10.0.0.1:0").ip()));
        assert_eq!(security_association(&payload[..200]), None);
    }
}
