//! Which multicast groups a socket has joined. The kernel lists those of interfaces, and says of a socket and a group
//! whether the one is in the other; it has no list of a socket's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use crate::sockopt::{Name, get_into};

/// MCAST_MSFILTER (linux/in.h), of which libc has no name on Linux.
const MCAST_MSFILTER: libc::c_int = 48;
/// Bytes of `struct group_filter` before its sources (linux/in.h): interface (4), padding (4), `struct
/// sockaddr_storage` of the group (128), mode (4), count of sources (4).
const FILTER_LEN: usize = 144;
/// Where the group's address is in it.
const GROUP: usize = 8;

/// One of the groups that a socket has joined, of those that are known in the calling thread's network namespace, which
/// is to be the socket's.
pub(super) fn joined(fd: BorrowedFd<'_>) -> Option<IpAddr> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let mut groups = listed_v4(&read("igmp"));
    groups.extend(listed_v6(&read("igmp6")));
    groups.into_iter().find(|(interface, group)| has_joined(fd, *interface, *group)).map(|(_, group)| group)
}

/// As in `/proc/net/igmp`: a line for each interface, and below it one for each of its groups.
fn listed_v4(list: &str) -> Vec<(u32, IpAddr)> {
    let (mut interface, mut groups) = (0, Vec::new());
    for line in list.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) {
            interface = first.parse().unwrap_or(0);
        } else if let Ok(group) = u32::from_str_radix(first, 16) {
            // The number that the bytes in network order are on this machine (`igmp_mc_seq_show`).
            groups.push((interface, Ipv4Addr::from(group.to_ne_bytes()).into()));
        }
    }
    groups
}

/// As in `/proc/net/igmp6`: index and name of the interface, group.
fn listed_v6(list: &str) -> Vec<(u32, IpAddr)> {
    let group = |line: &str| {
        let mut columns = line.split_whitespace();
        let interface = columns.next()?.parse().ok()?;
        let group = u128::from_str_radix(columns.nth(1)?, 16).ok()?;
        Some((interface, Ipv6Addr::from(group).into()))
    };
    list.lines().filter_map(group).collect()
}

/// A socket that is not in the group has no filter of sources for it: EADDRNOTAVAIL (`ip_mc_gsfget`, `ip6_mc_msfget`).
fn has_joined(fd: BorrowedFd<'_>, interface: u32, group: IpAddr) -> bool {
    let mut filter = [0u8; FILTER_LEN];
    filter[..4].copy_from_slice(&interface.to_ne_bytes());
    let (level, family) = match group {
        IpAddr::V4(group) => {
            // struct sockaddr_in: family (2), port (2), address.
            filter[GROUP + 4..GROUP + 8].copy_from_slice(&group.octets());
            (libc::SOL_IP, libc::AF_INET)
        }
        IpAddr::V6(group) => {
            // struct sockaddr_in6: family (2), port (2), flow information (4), address.
            filter[GROUP + 8..GROUP + 24].copy_from_slice(&group.octets());
            (libc::SOL_IPV6, libc::AF_INET6)
        }
    };
    filter[GROUP..GROUP + 2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    get_into(fd, Name { level, name: MCAST_MSFILTER, text: "MCAST_MSFILTER" }, &mut filter).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_the_kernel_lists_them() {
        let number = u32::from_ne_bytes([224, 0, 0, 251]);
        let v4 = format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     1      V3\n\t\t\t\t\
             {number:08X}     1 0:00000000\t\t0\n2\teth0      :     1      V3\n\t\t\t\t{number:08X}     1 0:00000000\t\t0\n"
        );
        let group = IpAddr::from([224, 0, 0, 251]);
        assert_eq!(listed_v4(&v4), [(1, group), (2, group)]);
        let v6 = "2    eth0            ff0200000000000000000000000000fb     1 00000004 0\n\n";
        assert_eq!(listed_v6(v6), [(2, "ff02::fb".parse().unwrap())]);
    }
}
