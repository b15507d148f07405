//! Packet sockets (packet(7)) of links of Ethernet.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::packet::{Frame, Mac};
use crate::error::Error;

/// One that receives nothing before it is bound to an ethertype. Needs CAP_NET_RAW. To close it takes the kernel up to
/// tens of milliseconds (`synchronize_net`).
pub(super) fn packet_socket() -> Result<OwnedFd, Error> {
    // SAFETY: socket takes no pointers. Protocol 0: it receives nothing before it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(Error::call("socket", "AF_PACKET", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What names a host on a link to calls of sockets.
pub(super) fn link_address(interface: u32, ethertype: u16, to: Mac) -> libc::sockaddr_ll {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&to);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: to.len() as u8,
        sll_addr: address,
    }
}

/// Binds it to an interface; ethertype 0: it receives nothing.
pub(super) fn bind(socket: &OwnedFd, interface: u32, ethertype: u16) -> Result<(), Error> {
    let address = link_address(interface, ethertype, [0; 6]);
    // SAFETY: `address` is valid for the call, with its own size.
    let result =
        unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32) };
    if result == 0 {
        Ok(())
    } else {
        Err(Error::call("bind", format!("interface {interface}"), io::Error::last_os_error()))
    }
}

/// The link-layer address of the interface that a socket is bound to.
pub(super) fn own_address(socket: &OwnedFd, interface: u32) -> Result<Mac, Error> {
    let mut address = link_address(0, 0, [0; 6]);
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: both are valid for writes, and `length` is the size of `address`.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    if result != 0 {
        return Err(Error::call("getsockname", format!("interface {interface}"), io::Error::last_os_error()));
    }
    let [mac @ .., _, _] = address.sll_addr;
    if address.sll_hatype != libc::ARPHRD_ETHER || usize::from(address.sll_halen) != mac.len() {
        let detail = "is no Ethernet: nobody asks for addresses there";
        return Err(Error::Argument { object: format!("interface {interface}"), detail });
    }
    Ok(mac)
}

/// Sends a frame by an interface.
pub(super) fn send(socket: &OwnedFd, interface: u32, frame: &Frame) -> Result<(), Error> {
    let to = link_address(interface, frame.ethertype, frame.to);
    // SAFETY: the packet and `to` are valid for reads of the sizes that are given.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.packet.as_ptr().cast(),
            frame.packet.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if result >= 0 {
        return Ok(());
    }
    Err(Error::call("sendto", format!("interface {interface}"), io::Error::last_os_error()))
}
