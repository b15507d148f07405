//! Programs on devices: tcx links where the kernel has them (6.6), else filters of a clsact qdisc.
//!
//! A link is pinned as `link-ROLE-INTERFACE-DIRECTION`. A filter holds its program by itself; the program is pinned as
//! `filter-ROLE-INTERFACE-DIRECTION`, as the note that the filter is there. The clsact qdisc is left when a filter
//! goes, since others may have filters on it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Tcx,
    Clsact,
}

/// One program on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) interface: u32,
    pub(crate) direction: Direction,
    /// Name of the role that it is part of.
    pub(crate) role: &'static str,
    pub(crate) mechanism: Mechanism,
}

/// Of our filter among those of a clsact qdisc; a high number lets what the user has there come first.
const FILTER_PRIORITY: u32 = 0x5742;
const FILTER_HANDLE: u32 = 1;

impl Hook {
    fn pin(&self, pins: &Path) -> PathBuf {
        let kind = match self.mechanism {
            Mechanism::Tcx => "link",
            Mechanism::Clsact => "filter",
        };
        let direction = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        pins.join(format!("{kind}-{}-{}-{direction}", self.role, self.interface))
    }

    /// The hook whose pin has this file name, if it is one. `roles` are the names that may stand in it.
    pub(crate) fn parse(name: &str, roles: &[&'static str]) -> Option<Self> {
        let mut parts = name.split('-');
        let mechanism = match parts.next()? {
            "link" => Mechanism::Tcx,
            "filter" => Mechanism::Clsact,
            _ => return None,
        };
        let role = parts.next()?;
        let role = roles.iter().find(|known| **known == role)?;
        let interface = parts.next()?.parse().ok()?;
        let direction = match parts.next()? {
            "ingress" => Direction::Ingress,
            "egress" => Direction::Egress,
            _ => return None,
        };
        parts.next().is_none().then_some(Self { interface, direction, role, mechanism })
    }

    fn object(&self) -> String {
        format!("interface {} {:?}", self.interface, self.direction)
    }

    /// Puts `program` there and pins what is needed.
    pub(crate) fn attach(
        interface: u32,
        direction: Direction,
        role: &'static str,
        program: BorrowedFd<'_>,
        pins: &Path,
        tcx: bool,
    ) -> Result<Self, Error> {
        let mut hook = Self { interface, direction, role, mechanism: Mechanism::Tcx };
        let linked = if tcx { hook.link(program)? } else { None };
        match linked {
            // Should the pin fail, the link goes with its descriptor.
            Some(link) => pin(&link, &hook.pin(pins))?,
            None => {
                hook.mechanism = Mechanism::Clsact;
                let path = hook.pin(pins);
                pin(&program, &path)?;
                if let Err(error) = hook.filter(program) {
                    let _ = fs::remove_file(path);
                    return Err(error);
                }
            }
        }
        Ok(hook)
    }

    /// None if the kernel has no tcx.
    fn link(&self, program: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Error> {
        let mut options = libbpf_sys::bpf_link_create_opts::default();
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        let attach_type = match self.direction {
            // First in and last out, so that whatever else is on the device sees the own tuples.
            Direction::Ingress => {
                options.flags = libbpf_sys::BPF_F_BEFORE;
                libbpf_sys::BPF_TCX_INGRESS
            }
            Direction::Egress => libbpf_sys::BPF_TCX_EGRESS,
        };
        let interface = i32::try_from(self.interface).map_err(|_| self.no_device("bpf(BPF_LINK_CREATE)"))?;
        // SAFETY: an open program and options that live through the call.
        let fd =
            unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, attach_type, &raw const options) };
        match fd {
            // SAFETY: a new descriptor that nobody else owns.
            0.. => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ if -fd == libc::EINVAL => Ok(None),
            _ => Err(Error::code("bpf(BPF_LINK_CREATE)", self.object(), fd)),
        }
    }

    fn no_device(&self, call: &'static str) -> Error {
        Error::call(call, self.object(), io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn tc_hook(&self) -> Result<libbpf_sys::bpf_tc_hook, Error> {
        let mut hook = libbpf_sys::bpf_tc_hook::default();
        hook.sz = size_of_val(&hook) as libbpf_sys::size_t;
        hook.ifindex = i32::try_from(self.interface).map_err(|_| self.no_device("bpf_tc_hook"))?;
        hook.attach_point = match self.direction {
            Direction::Ingress => libbpf_sys::BPF_TC_INGRESS,
            Direction::Egress => libbpf_sys::BPF_TC_EGRESS,
        };
        Ok(hook)
    }

    fn tc_options() -> libbpf_sys::bpf_tc_opts {
        let mut options = libbpf_sys::bpf_tc_opts::default();
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        options.handle = FILTER_HANDLE;
        options.priority = FILTER_PRIORITY;
        options
    }

    /// Makes the qdisc if need be, and sets or replaces our filter.
    fn filter(&self, program: BorrowedFd<'_>) -> Result<(), Error> {
        let mut hook = self.tc_hook()?;
        // SAFETY: a sized struct that lives through the call.
        let code = unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) };
        if code != 0 && -code != libc::EEXIST {
            return Err(Error::code("bpf_tc_hook_create", self.object(), code));
        }
        let mut options = Self::tc_options();
        options.prog_fd = program.as_raw_fd();
        options.flags = libbpf_sys::BPF_TC_F_REPLACE;
        // SAFETY: sized structs that live through the call.
        let code = unsafe { libbpf_sys::bpf_tc_attach(&raw const hook, &raw mut options) };
        if code == 0 { Ok(()) } else { Err(Error::code("bpf_tc_attach", self.object(), code)) }
    }

    /// Sets a filter that passes everything, on both sides of a device that the caller has for this.
    pub(crate) fn try_filter(interface: u32) -> Result<(), Error> {
        // r0 = TC_ACT_UNSPEC; return r0 (linux/bpf_common.h, linux/bpf.h)
        let [mut verdict, mut exit] = [libbpf_sys::bpf_insn::default(); 2];
        verdict.code = (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8;
        verdict.imm = -1;
        exit.code = (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8;
        let program = [verdict, exit];
        // SAFETY: no name, a terminated string, as many instructions as said; null options mean defaults.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                ptr::null(),
                c"Dual BSD/GPL".as_ptr(),
                program.as_ptr(),
                program.len() as libbpf_sys::size_t,
                ptr::null_mut(),
            )
        };
        if fd < 0 {
            return Err(Error::code("bpf(BPF_PROG_LOAD)", "a filter", fd));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let program = unsafe { OwnedFd::from_raw_fd(fd) };
        [Direction::Ingress, Direction::Egress].into_iter().try_for_each(|direction| {
            Self { interface, direction, role: "", mechanism: Mechanism::Clsact }.filter(program.as_fd())
        })
    }

    fn has_filter(&self) -> Result<bool, Error> {
        let hook = self.tc_hook()?;
        let mut options = Self::tc_options();
        // SAFETY: sized structs that live through the call.
        Ok(unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut options) } == 0)
    }

    /// Takes over what an earlier process left: puts `program` in the place of what is there. False: the device is
    /// gone, and so is the pin now.
    pub(crate) fn adopt(&self, program: BorrowedFd<'_>, pins: &Path) -> Result<bool, Error> {
        let path = self.pin(pins);
        match self.mechanism {
            Mechanism::Tcx => {
                let link = open_pinned(&path)?;
                // SAFETY: an open link and an open program; null options mean defaults.
                let code = unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), ptr::null()) };
                if code == 0 {
                    return Ok(true);
                }
                // A link whose device is gone is defunct and says so (kernel/bpf/tcx.c, tcx_link_update).
                if -code != libc::ENOLINK {
                    return Err(Error::code("bpf(BPF_LINK_UPDATE)", path.display().to_string(), code));
                }
                unpin(&path)?;
                Ok(false)
            }
            Mechanism::Clsact => {
                unpin(&path)?;
                if !self.has_filter()? {
                    return Ok(false);
                }
                pin(&program, &path)?;
                self.filter(program)?;
                Ok(true)
            }
        }
    }

    /// Removes what is left where the device is gone.
    pub(crate) fn forget(&self, pins: &Path) -> Result<(), Error> {
        unpin(&self.pin(pins))
    }

    /// Removes program and pin. `keep_filter`: only the pin of a filter, when another role has replaced the filter.
    pub(crate) fn detach(&self, pins: &Path, keep_filter: bool) -> Result<(), Error> {
        let path = self.pin(pins);
        match self.mechanism {
            Mechanism::Tcx => {
                let link = open_pinned(&path)?;
                // At once, and not when the kernel comes round to the unlinked file.
                // SAFETY: an open link.
                let code = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
                if code != 0 {
                    return Err(Error::code("bpf(BPF_LINK_DETACH)", self.object(), code));
                }
            }
            Mechanism::Clsact if !keep_filter => {
                let hook = self.tc_hook()?;
                let options = Self::tc_options();
                // SAFETY: sized structs that live through the call.
                let code = unsafe { libbpf_sys::bpf_tc_detach(&raw const hook, &raw const options) };
                // The device, the qdisc or the filter may have gone before us.
                if code != 0 && ![libc::ENODEV, libc::ENOENT, libc::EINVAL].contains(&-code) {
                    return Err(Error::code("bpf_tc_detach", self.object(), code));
                }
            }
            Mechanism::Clsact => {}
        }
        unpin(&path)
    }
}

fn path_string(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::call("open", path.display().to_string(), io::ErrorKind::InvalidInput.into()))
}

pub(crate) fn pin(fd: &impl AsRawFd, path: &Path) -> Result<(), Error> {
    let name = path_string(path)?;
    // SAFETY: an open BPF descriptor and a terminated string.
    let code = unsafe { libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), name.as_ptr()) };
    if code == 0 { Ok(()) } else { Err(Error::code("bpf(BPF_OBJ_PIN)", path.display().to_string(), code)) }
}

pub(crate) fn open_pinned(path: &Path) -> Result<OwnedFd, Error> {
    let name = path_string(path)?;
    // SAFETY: a terminated string.
    let fd = unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) };
    if fd < 0 {
        return Err(Error::code("bpf(BPF_OBJ_GET)", path.display().to_string(), fd));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn unpin(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(|source| Error::call("unlink", path.display().to_string(), source))
}

/// Do packets of this device have an Ethernet header? The others that carry IP (TUN, WireGuard, PPP, raw IP modems)
/// have none where the programs see them.
pub(crate) fn has_ethernet_header(interface: u32) -> Result<bool, Error> {
    let object = || format!("interface {interface}");
    let failed = |call| Error::call(call, object(), io::Error::last_os_error());
    // SAFETY: ifreq is plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: room for IF_NAMESIZE bytes.
    if unsafe { libc::if_indextoname(interface, request.ifr_name.as_mut_ptr()) }.is_null() {
        return Err(failed("if_indextoname"));
    }
    let socket = std::os::unix::net::UnixDatagram::unbound()
        .map_err(|source| Error::call("socket(AF_UNIX)", object(), source))?;
    // SAFETY: an open socket and a request that the kernel fills.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
        return Err(failed("ioctl(SIOCGIFHWADDR)"));
    }
    // SAFETY: SIOCGIFHWADDR fills this member.
    let kind = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    Ok(matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK))
}
