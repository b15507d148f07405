//! Programs on the root of cgroup v2, which run for all programs of the machine. Their links are pinned and outlive the
//! process.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use crate::error::Error;
use crate::hook::{open_pinned, pin, unpin};
use crate::object::Programs;

/// The programs of one object that hang there together.
pub(crate) struct Hooks {
    /// What the names of their pins begin with.
    pub(crate) pinned_as: &'static str,
    /// Each program and what it is attached as (include/uapi/linux/bpf.h).
    pub(crate) programs: &'static [(&'static str, libbpf_sys::bpf_attach_type)],
    /// Pinned maps that only they use.
    pub(crate) maps: &'static [&'static str],
}

impl Hooks {
    /// Attaches all of them, those of a process before this one being replaced without a gap.
    ///
    /// # Errors
    /// When the kernel refuses one. None is attached then.
    pub(crate) fn attach(&self, programs: &Programs, pins: &Path) -> Result<(), Error> {
        let root = root_cgroup()?;
        let attached = self.programs.iter().try_for_each(|(name, kind)| {
            let program = programs.program(name)?;
            let path = self.pin_of(pins, name);
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
        if attached.is_err() {
            // The first error is the one that tells.
            let _ = self.detach(pins);
        }
        attached
    }

    /// Takes all of them off, of whatever process. A link goes with the last that refers to it.
    ///
    /// # Errors
    /// The first; all is tried.
    pub(crate) fn detach(&self, pins: &Path) -> Result<(), Error> {
        let mut result = Ok(());
        for (name, _) in self.programs {
            let path = self.pin_of(pins, name);
            if let Ok(link) = open_pinned(&path) {
                // At once, and not when the kernel comes round to the unlinked file.
                // SAFETY: an open link.
                let code = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
                if code != 0 {
                    result = result.and(Err(Error::code("bpf(BPF_LINK_DETACH)", *name, code)));
                }
                result = result.and(unpin(&path));
            }
        }
        for map in self.maps {
            match fs::remove_file(pins.join(map)) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    result = result.and(Err(Error::call("unlink", *map, source)));
                }
                _ => {}
            }
        }
        result
    }

    fn pin_of(&self, pins: &Path, program: &str) -> PathBuf {
        pins.join(format!("{}-{program}", self.pinned_as))
    }
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
