//! The programs that tell programs what addresses are, and mean (`bpf/names.bpf.c`), on the root of cgroup v2.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use crate::abi::{Alias, RawAddress, RawAlias};
use crate::error::Error;
use crate::hook::{open_pinned, pin, unpin};
use crate::object::Programs;
use crate::table::Table;

/// Each program and what it is attached as (include/uapi/linux/bpf.h).
const PROGRAMS: [(&str, libbpf_sys::bpf_attach_type); 12] = [
    ("show_peer_v4", libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("show_peer_v6", libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME),
    ("show_own_v4", libbpf_sys::BPF_CGROUP_INET4_GETSOCKNAME),
    ("show_own_v6", libbpf_sys::BPF_CGROUP_INET6_GETSOCKNAME),
    ("show_sender_v4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
    ("show_sender_v6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    ("send_to_v4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    ("send_to_v6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
    ("reach_v4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    ("reach_v6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    ("bind_to_v4", libbpf_sys::BPF_CGROUP_INET4_BIND),
    ("bind_to_v6", libbpf_sys::BPF_CGROUP_INET6_BIND),
];

/// The programs, loaded and attached. Their links are pinned and outlive this.
#[derive(Debug)]
pub(crate) struct Names {
    aliases: Table<RawAlias, RawAddress>,
    _programs: Programs,
}

impl Names {
    /// Attaches all of them, those of a process before this one being replaced without a gap.
    pub(crate) fn attach(datapath: &Programs, pins: &Path) -> Result<Self, Error> {
        let programs = Programs::load_names(datapath, pins)?;
        let root = root_cgroup()?;
        let attached = PROGRAMS.iter().try_for_each(|(name, kind)| {
            let program = programs.program(name)?;
            let path = pin_of(pins, name);
            if replace(program, &path) {
                return Ok(());
            }
            // SAFETY: an open directory and an open program; null options mean defaults, which let others be beside it.
            let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), root.as_raw_fd(), *kind, ptr::null()) };
            if fd < 0 {
                return Err(Error::code("bpf(BPF_LINK_CREATE)", *name, fd));
            }
            // SAFETY: a new descriptor that nobody else owns.
            let link = unsafe { OwnedFd::from_raw_fd(fd) };
            pin(&link, &path)
        });
        if let Err(error) = attached {
            // The first error is the one that tells.
            let _ = Self::detach(pins);
            return Err(error);
        }
        Ok(Self { aliases: programs.table("aliases")?, _programs: programs })
    }

    /// Makes these the aliases.
    pub(crate) fn set_aliases(&self, aliases: &BTreeMap<Alias, IpAddr>) -> Result<(), Error> {
        let raw = |(alias, meant): (&Alias, &IpAddr)| (RawAlias::new(alias), RawAddress::new(*meant));
        let wanted: HashMap<RawAlias, RawAddress> = aliases.iter().map(raw).collect();
        let present: HashMap<RawAlias, RawAddress> = self.aliases.entries()?.into_iter().collect();
        for alias in present.keys().filter(|alias| !wanted.contains_key(alias)) {
            self.aliases.remove(alias)?;
        }
        for (alias, meant) in wanted.iter().filter(|(alias, meant)| present.get(alias) != Some(meant)) {
            self.aliases.insert(alias, meant)?;
        }
        Ok(())
    }

    /// Takes all of them off, of whatever process. A link goes with the last that refers to it.
    pub(crate) fn detach(pins: &Path) -> Result<(), Error> {
        let mut result = Ok(());
        for (name, _) in PROGRAMS {
            let path = pin_of(pins, name);
            if let Ok(link) = open_pinned(&path) {
                // At once, and not when the kernel comes round to the unlinked file.
                // SAFETY: an open link.
                let code = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
                if code != 0 {
                    result = result.and(Err(Error::code("bpf(BPF_LINK_DETACH)", name, code)));
                }
                result = result.and(unpin(&path));
            }
        }
        for map in ["aliases", "asked_own", "asked_peer"] {
            match fs::remove_file(pins.join(map)) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    result = result.and(Err(Error::call("unlink", map, source)));
                }
                _ => {}
            }
        }
        result
    }
}

fn pin_of(pins: &Path, program: &str) -> PathBuf {
    pins.join(format!("names-{program}"))
}

/// Whether a link was pinned there, and has this program now. One that cannot have it goes.
fn replace(program: BorrowedFd<'_>, path: &Path) -> bool {
    let Ok(link) = open_pinned(path) else { return false };
    // SAFETY: an open link and an open program; null options mean defaults.
    let code = unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), ptr::null()) };
    if code != 0 {
        let _ = unpin(path);
    }
    code == 0
}

/// Where the root of cgroup v2 is in the file system, as far as it is mounted, from proc_pid_mounts(5).
///
/// # Errors
/// When it is not mounted, or that cannot be seen.
pub fn cgroup_root() -> Result<PathBuf, Error> {
    let mounts =
        fs::read_to_string("/proc/self/mounts").map_err(|source| Error::call("read", "/proc/self/mounts", source))?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounted = fields.filter(|fields| fields.get(2) == Some(&"cgroup2")).find_map(|fields| fields.get(1).copied());
    let missing = || Error::call("open", "cgroup v2, which is not mounted", io::ErrorKind::NotFound.into());
    mounted.map(PathBuf::from).ok_or_else(missing)
}

pub(crate) fn root_cgroup() -> Result<File, Error> {
    let path = cgroup_root()?;
    File::open(&path).map_err(|source| Error::call("open", path.display().to_string(), source))
}
