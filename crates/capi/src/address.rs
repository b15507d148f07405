//! Addresses as C has them.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::failure::Fault;

/// An address argument.
///
/// # Safety
/// `address` is null, or points to `length` bytes.
pub(crate) unsafe fn read(address: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Fault> {
    if address.is_null() {
        return Err(Fault::null("the address"));
    }
    let short = || Fault::new(libc::EINVAL, "the address is shorter than its family's");
    let length = length as usize;
    if length < mem::size_of::<libc::sa_family_t>() {
        return Err(short());
    }
    // SAFETY: there are as many bytes as are read, aligned or not.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if length >= mem::size_of::<sockaddr_in>() => {
            // SAFETY: as above.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if length >= mem::size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(short()),
        _ => Err(Fault::new(libc::EAFNOSUPPORT, "the address is neither of IPv4 nor of IPv6")),
    }
}

/// An address for C.
pub(crate) fn write(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all zero is a valid address of no family.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let value = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: there is room for an address of any family, and it is aligned for it.
            unsafe { place.cast::<sockaddr_in>().write(value) };
        }
        SocketAddr::V6(v6) => {
            let value = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(value) };
        }
    }
    storage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:443", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let storage = write(address);
            let length = mem::size_of::<sockaddr_storage>() as socklen_t;
            // SAFETY: it is as long as is said.
            assert_eq!(unsafe { read((&raw const storage).cast(), length) }.expect("read"), address);
        }
    }
}
