//! TUN devices with offloads: packets go in and out as super-packets with their `virtio_net_hdr`.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::Error;

/// Bytes of the `virtio_net_hdr` before each packet.
pub const VNET_LEN: usize = 10;
/// The longest packet that is read or written, without its `virtio_net_hdr`.
pub const MAX_PACKET: usize = 65_535;

const IFNAMSIZ: usize = libc::IFNAMSIZ;
/// `struct ifreq`: a name and a union.
const IFREQ: usize = size_of::<libc::ifreq>();

/// A TUN device (IP packets, no link layer header) and one queue of it.
///
/// It is persistent: it stays, with its routes and tc programs, when the process ends, and [`Tun::open`] with the same
/// name takes it up again. Meanwhile it has no carrier and drops what it is given.
#[derive(Debug)]
pub struct Tun {
    file: File,
    /// For requests about the interface, in the namespace that it is in whoever asks.
    control: OwnedFd,
    name: String,
    index: u32,
    udp_segmentation: bool,
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Tun {
    /// Opens the device `name` in the thread's network namespace, making it if it is not there, with checksum and
    /// segmentation offloads, sets its MTU and brings it up. It gets no IPv6 address of its own.
    ///
    /// # Errors
    /// [`Error::Argument`] for a name that cannot be one, [`Error::Call`] otherwise: EPERM without CAP_NET_ADMIN, EBUSY
    /// if another process has it open, EINVAL if there is a device of another kind with this name.
    pub fn open(name: &str, mtu: u32) -> Result<Self, Error> {
        let path = "/dev/net/tun";
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| Error::call("open", path, error))?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request = Request::new(name)?;
        request.0[IFNAMSIZ..IFNAMSIZ + 2].copy_from_slice(&(flags as u16).to_ne_bytes());
        request.ioctl(&file, libc::TUNSETIFF, "ioctl TUNSETIFF")?;
        let control = control_socket(name)?;
        let mut tun = Self { file, control, name: name.to_owned(), index: 0, udp_segmentation: true };
        let result = tun.configure(mtu);
        // A device that was made here and could not be set up is gone with the descriptor: it is not persistent yet.
        result.map(|()| tun)
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's interface index.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether UDP super-packets pass in both directions (TUN_F_USO4 and TUN_F_USO6, Linux 6.2).
    #[must_use]
    pub fn has_udp_segmentation(&self) -> bool {
        self.udp_segmentation
    }

    /// Sets the device's MTU, in bytes.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        let mut request = Request::new(&self.name)?;
        request.0[IFNAMSIZ..IFNAMSIZ + 4].copy_from_slice(&mtu.to_ne_bytes());
        request.ioctl(&self.control, libc::SIOCSIFMTU, "ioctl SIOCSIFMTU")
    }

    /// Reads one packet into the buffers, its `virtio_net_hdr` ([`VNET_LEN`] bytes) first, and returns the length of
    /// both; `None` if there is none. What does not fit is cut off.
    ///
    /// # Errors
    /// The error of readv(2): EIO or EBADFD after the device was deleted.
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::readv(&self.file, buffers) {
                Ok(len) => return Ok(Some(len)),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes one packet, its `virtio_net_hdr` first. The host takes it as received from the device.
    ///
    /// # Errors
    /// The error of writev(2): EINVAL for headers that contradict each other, EIO while the device is down.
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.file, buffers) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes the device, with all routes through it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn remove(self) -> Result<(), Error> {
        self.set_persistent(false)
    }

    fn configure(&mut self, mtu: u32) -> Result<(), Error> {
        let without_udp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let with_udp = without_udp | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        self.udp_segmentation = self.set_offload(with_udp).is_ok();
        if !self.udp_segmentation {
            self.set_offload(without_udp)?;
        }
        let size = VNET_LEN as libc::c_int;
        // SAFETY: the argument points to an int that outlives the call.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })
            .map_err(|error| Error::call("ioctl TUNSETVNETHDRSZ", &self.name, error))?;
        let mut request = Request::new(&self.name)?;
        request.ioctl(&self.control, libc::SIOCGIFINDEX, "ioctl SIOCGIFINDEX")?;
        self.index = request.number();
        self.set_mtu(mtu)?;
        let mut request = Request::new(&self.name)?;
        request.0[IFNAMSIZ..IFNAMSIZ + 4].copy_from_slice(&QUEUE.to_ne_bytes());
        request.ioctl(&self.control, libc::SIOCSIFTXQLEN, "ioctl SIOCSIFTXQLEN")?;
        // Addresses that the kernel makes up would only send router solicitations into the tunnel. The file is missing
        // where there is no IPv6, and then there is nothing to prevent.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/addr_gen_mode", self.name), "1");
        let mut request = Request::new(&self.name)?;
        request.ioctl(&self.control, libc::SIOCGIFFLAGS, "ioctl SIOCGIFFLAGS")?;
        let flags = request.number() as u16 | libc::IFF_UP as u16;
        request.0[IFNAMSIZ..IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
        request.ioctl(&self.control, libc::SIOCSIFFLAGS, "ioctl SIOCSIFFLAGS")?;
        self.set_persistent(true)
    }

    fn set_offload(&self, flags: libc::c_uint) -> Result<(), Error> {
        // SAFETY: the argument is a number.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
            .map_err(|error| Error::call("ioctl TUNSETOFFLOAD", &self.name, error))
    }

    fn set_persistent(&self, on: bool) -> Result<(), Error> {
        // SAFETY: the argument is a number.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(on)) })
            .map_err(|error| Error::call("ioctl TUNSETPERSIST", &self.name, error))
    }
}

/// Packets that wait to be read. Thousands of connections that have a word to say at once, as after a move, are as many
/// small packets, and what is lost of such waits for TCP's timer; the kernel's 500 are gone while the reader wakes up.
const QUEUE: u32 = 4096;

/// A `struct ifreq`: 16 bytes of name, then the argument.
#[repr(C, align(8))]
struct Request([u8; IFREQ]);

impl Request {
    fn new(name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.len() >= IFNAMSIZ || name.bytes().any(|byte| byte == 0 || byte == b'/') {
            return Err(Error::Argument {
                object: format!("network device {name:?}"),
                detail: "a device name has 1 to 15 bytes and no slash",
            });
        }
        let mut bytes = [0; IFREQ];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    fn ioctl(&mut self, fd: &impl AsFd, request: libc::Ioctl, call: &'static str) -> Result<(), Error> {
        // SAFETY: the argument points to a whole, writable `struct ifreq`, which outlives the call.
        let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, self.0.as_mut_ptr()) };
        check(result).map_err(|error| {
            let len = self.0[..IFNAMSIZ].iter().position(|byte| *byte == 0).unwrap_or(IFNAMSIZ);
            Error::call(call, String::from_utf8_lossy(&self.0[..len]), error)
        })
    }

    fn number(&self) -> u32 {
        u32::from_ne_bytes([self.0[IFNAMSIZ], self.0[IFNAMSIZ + 1], self.0[IFNAMSIZ + 2], self.0[IFNAMSIZ + 3]])
    }
}

/// Any socket will do for the requests about interfaces (netdevice(7)).
fn control_socket(name: &str) -> Result<OwnedFd, Error> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd).map_err(|error| Error::call("socket", name, error))?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
