use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Error;

const COMMON: &str = "/sys/fs/bpf";

/// The root of a bpffs to pin things in: `/sys/fs/bpf` where it is one, as distributions have it, else `fallback`,
/// which is made and mounted on if it is not a bpffs yet.
///
/// # Errors
/// When `fallback` is needed and cannot be made or mounted on.
pub fn bpffs(fallback: &Path) -> Result<PathBuf, Error> {
    if let Some(common) = common_bpffs() {
        return Ok(common);
    }
    let failed = |source| Error::Bpffs { path: fallback.to_owned(), source };
    std::fs::create_dir_all(fallback).map_err(failed)?;
    if !is_bpffs(fallback) {
        mount(fallback).map_err(failed)?;
    }
    Ok(fallback.to_owned())
}

/// The machine's own bpffs, where it has one.
#[must_use]
pub fn common_bpffs() -> Option<PathBuf> {
    let common = Path::new(COMMON);
    is_bpffs(common).then(|| common.to_owned())
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn is_bpffs(path: &Path) -> bool {
    let Ok(path) = path_string(path) else { return false };
    // SAFETY: statfs is plain data, for which zero is a value.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated string and a struct that the kernel fills, both living through the call.
    let result = unsafe { libc::statfs(path.as_ptr(), &raw mut status) };
    result == 0 && status.f_type == libc::BPF_FS_MAGIC
}

fn mount(path: &Path) -> io::Result<()> {
    let path = path_string(path)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: terminated strings that live through the call; bpffs needs no data.
    let result =
        unsafe { libc::mount(c"bpf".as_ptr(), path.as_ptr(), c"bpf".as_ptr(), flags, c"mode=0700".as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
