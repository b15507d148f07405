//! Network namespaces: which one this is, where another one is, and working in it for a while.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::Error;
use crate::sockopt;

/// The cookie of the calling thread's network namespace: unique until the machine is booted again
/// (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// [`Error::Call`] with ENOPROTOOPT on an older kernel.
pub fn cookie() -> Result<u64, Error> {
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::call("socket", "AF_UNIX", e))?;
    cookie_of(probe.as_fd())
}

/// The cookie of the network namespace that a socket was made in.
///
/// # Errors
/// As [`cookie`].
pub fn cookie_of(socket: BorrowedFd<'_>) -> Result<u64, Error> {
    let option = sockopt::Name { level: libc::SOL_SOCKET, name: libc::SO_NETNS_COOKIE, text: "SO_NETNS_COOKIE" };
    let mut value = 0u64;
    sockopt::get_into(socket, option, &mut value).map_err(|error| Error::call("getsockopt", option.text, error))?;
    Ok(value)
}

/// Marks a socket (SO_MARK, socket(7)), and with it what it accepts. Marks do not leave a network namespace.
///
/// # Errors
/// [`Error::Call`]: without CAP_NET_ADMIN over the socket's network namespace, for one.
pub fn mark(socket: BorrowedFd<'_>, mark: u32) -> Result<(), Error> {
    let option = sockopt::Name { level: libc::SOL_SOCKET, name: libc::SO_MARK, text: "SO_MARK" };
    sockopt::set(socket, option, &mark.cast_signed())
}

/// The mark of a socket.
///
/// # Errors
/// [`Error::Call`]: it is no socket.
pub fn mark_of(socket: BorrowedFd<'_>) -> Result<u32, Error> {
    let option = sockopt::Name { level: libc::SOL_SOCKET, name: libc::SO_MARK, text: "SO_MARK" };
    Ok(sockopt::get_int(socket, option)?.cast_unsigned())
}

/// Moves the calling process into a network namespace of its own, in which there is nothing yet, and gives a descriptor
/// of it. Where the process may not do that, it moves into a user namespace of its own first, as whom it is: with no
/// more rights over anything outside. It must have one thread.
///
/// # Errors
/// [`Error::Call`]: the process may not, or has several threads. It may be in a user namespace then.
pub fn leave() -> Result<OwnedFd, Error> {
    const HERE: &str = "/proc/self/ns/net";
    let unshare = |flags, what| {
        // SAFETY: neither the file system context nor descriptors are unshared, and with one thread there is none that
        // would see others'.
        unsafe { unshare_unsafe(flags) }.map_err(|e| Error::call("unshare", what, e))
    };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match unshare(UnshareFlags::NEWNET, "a network namespace") {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET, "a user and a network namespace")?;
            let write = |path: &str, text: String| {
                std::fs::write(path, text).map_err(|e| Error::call("write", path.to_owned(), e))
            };
            // user_namespaces(7): who maps a group without rights outside has to give up setgroups(2).
            write("/proc/self/setgroups", "deny".to_owned())?;
            write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        Err(error) => return Err(error),
    }
    File::open(HERE).map(OwnedFd::from).map_err(|e| Error::call("open", HERE, e))
}

/// The calling thread works in another network namespace until this is dropped.
///
/// Not [`Send`]: the namespace belongs to the thread. Sockets and descriptors opened meanwhile stay in that namespace.
#[derive(Debug)]
pub struct Entered {
    home: File,
    _thread: PhantomData<*const ()>,
}

impl Entered {
    /// Moves the calling thread into the namespace at `path` (`/run/netns/NAME`, `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn path(path: &Path) -> Result<Self, Error> {
        let target = File::open(path).map_err(|e| Error::call("open", path.display().to_string(), e))?;
        Self::descriptor(target.as_fd())
    }

    /// Moves the calling thread into the namespace behind an open descriptor.
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn descriptor(target: BorrowedFd<'_>) -> Result<Self, Error> {
        const HERE: &str = "/proc/thread-self/ns/net";
        let home = File::open(HERE).map_err(|e| Error::call("open", HERE, e))?;
        move_into_link_name_space(target, Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::call("setns", format!("descriptor {}", target.as_raw_fd()), e))?;
        Ok(Self { home, _thread: PhantomData })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A thread that went on in the wrong namespace would change addresses and routes of a stranger.
        if let Err(error) = move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network)) {
            eprintln!("setns: cannot return to the own network namespace: {error}");
            std::process::abort();
        }
    }
}

/// Where a network namespace was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It is behind this path, which `nsenter --net=` takes.
    At(PathBuf),
    /// Nothing that could be looked at holds it, and everything could be.
    Gone,
    /// It may be behind this path, which the caller may not look at.
    Unclear(PathBuf),
}

/// Looks for the network namespace with this cookie: where it is mounted, and in all processes, their threads and
/// descriptors. That is slow where there are many. One that only a socket holds is not found.
#[must_use]
pub fn find(wanted: u64) -> Whereabouts {
    // A thread of its own goes from one to the next, and home by ending.
    let search = std::thread::Builder::new().name("namespaces".to_owned()).spawn(move || search_for(wanted));
    let found = search.ok().and_then(|thread| thread.join().ok());
    found.unwrap_or_else(|| Whereabouts::Unclear(PathBuf::from("/proc")))
}

fn search_for(wanted: u64) -> Whereabouts {
    let mut known: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut unclear = None;
    for path in holders() {
        let metadata = match std::fs::metadata(&path) {
            Ok(metadata) => metadata,
            // It ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
                continue;
            }
            Err(_) => {
                unclear.get_or_insert(path);
                continue;
            }
        };
        if !known.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        match cookie_behind(&path) {
            Ok(Some(cookie)) if cookie == wanted => return Whereabouts::At(path),
            Ok(_) => {}
            Err(_) => {
                unclear.get_or_insert(path);
            }
        }
    }
    unclear.map_or(Whereabouts::Gone, Whereabouts::Unclear)
}

/// The cookie of the namespace behind a path, which the calling thread is in afterwards; `None` where it is gone.
fn cookie_behind(path: &Path) -> Result<Option<u64>, Error> {
    let called = |call, error: io::Error| Error::call(call, path.display().to_string(), error);
    let target = match File::open(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(called("open", error)),
    };
    move_into_link_name_space(target.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| called("setns", error.into()))?;
    cookie().map(Some)
}

/// Paths that namespaces are behind, those that people gave a name first.
fn holders() -> impl Iterator<Item = PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted: Vec<PathBuf> = mounts.lines().filter_map(mounted_namespace).collect();
    mounted.into_iter().chain(numbered(Path::new("/proc")).into_iter().flat_map(of_process))
}

/// Those of a process: its own, those of its threads, and those that it has open.
fn of_process(process: PathBuf) -> Vec<PathBuf> {
    let is_namespace = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_str().is_some_and(|target| target.starts_with("net:[")))
    };
    let threads = numbered(&process.join("task")).into_iter().map(|thread| thread.join("ns/net"));
    let descriptors = numbered(&process.join("fd")).into_iter().filter(is_namespace);
    std::iter::once(process.join("ns/net")).chain(threads).chain(descriptors).collect()
}

/// The entries of a directory of `/proc` whose names are numbers.
fn numbered(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_number)).map(|entry| entry.path()).collect()
}

/// The mount point of a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), where a network namespace is mounted.
fn mounted_namespace(line: &str) -> Option<PathBuf> {
    let mut fields = line.split(' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    root.starts_with("net:[").then(|| PathBuf::from(point.replace("\\040", " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_a_cookie() {
        assert_eq!(cookie().unwrap(), cookie().unwrap());
    }

    #[test]
    fn namespaces_are_found_among_mounts() {
        let line = "612 27 0:4 net:[4026532709] /run/netns/a\\040b rw shared:317 - nsfs nsfs rw";
        assert_eq!(mounted_namespace(line), Some(PathBuf::from("/run/netns/a b")));
        assert_eq!(mounted_namespace("27 1 0:25 / /run rw,nosuid - tmpfs tmpfs rw"), None);
        assert_eq!(mounted_namespace(""), None);
    }

    #[test]
    fn a_missing_namespace_is_an_error() {
        let error = Entered::path(Path::new("/nonexistent/namespace")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
