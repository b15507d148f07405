//! The namespaces of a process, opened once.
//!
//! A process may change its namespaces at any time. What is decided of those that it was seen in counts for those
//! alone: so they are opened when it is looked at, compared by these descriptors (device and inode), and entered by
//! them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};

use super::{Unfit, tied};
use crate::error::Error;

/// What tells a file, and so a namespace, from all others: device and inode.
pub type Identity = (u64, u64);

fn identity(of: &Stat) -> Identity {
    (of.st_dev, of.st_ino)
}

/// What is behind a descriptor.
///
/// # Errors
/// [`Error::Call`].
pub fn identity_of(descriptor: BorrowedFd<'_>) -> Result<Identity, Error> {
    fstat(descriptor)
        .map(|stat| identity(&stat))
        .map_err(|error| Error::call("fstat", format!("descriptor {}", descriptor.as_raw_fd()), error))
}

/// The root directory of the calling process.
///
/// # Errors
/// [`Error::Call`].
pub fn own_root() -> Result<Identity, Error> {
    statat(CWD, "/", AtFlags::empty()).map(|stat| identity(&stat)).map_err(|error| Error::call("stat", "/", error))
}

/// One namespace, open.
#[derive(Clone, Debug)]
pub struct Namespace {
    descriptor: Arc<OwnedFd>,
    identity: Identity,
}

impl Namespace {
    /// Takes an open descriptor of one, and sees to it that it belongs to the calling process's user namespace: what is
    /// mounted in it was mounted by who might do so here as well.
    ///
    /// # Errors
    /// [`Error::Call`] where it is none, [`Error::Argument`] where it is of another user namespace.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        let object = || format!("descriptor {}", descriptor.as_raw_fd());
        // SAFETY: this request (ioctl_nsfs(2)) takes no argument, and gives a new descriptor.
        let owner = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::NS_GET_USERNS) };
        if owner < 0 {
            return Err(Error::call("ioctl NS_GET_USERNS", object(), io::Error::last_os_error()));
        }
        // SAFETY: it was just made, and nobody else has it.
        let owner = unsafe { OwnedFd::from_raw_fd(owner) };
        const OWN: &str = "/proc/self/ns/user";
        let own = File::open(OWN).map_err(|error| Error::call("open", OWN, error))?;
        if identity_of(owner.as_fd())? != identity_of(own.as_fd())? {
            return Err(Error::Argument {
                object: object(),
                detail: "the namespace belongs to another user namespace",
            });
        }
        let identity = identity_of(descriptor.as_fd())?;
        Ok(Self { descriptor: Arc::new(descriptor), identity })
    }

    /// Its device and inode.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for Namespace {}

/// Those of a process that CRIU is run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Where its sockets are.
    pub network: Namespace,
    /// Where its number counts.
    pub pid: Namespace,
    /// Where its files are.
    pub mount: Namespace,
}

impl Namespaces {
    /// Opens those of a process, which has to have the calling process's user namespace and root directory.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn of(pid: u32) -> Result<Self, Unfit> {
        let path = format!("/proc/{pid}");
        let called = |call: &'static str| {
            let path = path.clone();
            move |error: rustix::io::Errno| Unfit::Kernel(Error::call(call, path, error))
        };
        // By one descriptor, so that all of them are of one process, whoever has its number later.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = openat(CWD, path.as_str(), flags, Mode::empty()).map_err(|_| Unfit::Gone(pid))?;
        let open = |kind: &str| openat(&process, kind, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let owned = |kind: &str| {
            let descriptor = open(kind).map_err(called("open a namespace of"))?;
            Namespace::new(descriptor).map_err(|error| match error {
                Error::Argument { .. } => tied(format!("process {pid} is in a namespace of another user namespace")),
                other => Unfit::Kernel(other),
            })
        };
        let namespaces = Self { network: owned("ns/net")?, pid: owned("ns/pid")?, mount: owned("ns/mnt")? };
        // The user namespace last: who leaves it while it is looked at is found out.
        let user = open("ns/user").map_err(called("open a namespace of"))?;
        let own = openat(CWD, "/proc/self/ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let own = own.map_err(called("open a namespace beside"))?;
        if identity_of(user.as_fd())? != identity_of(own.as_fd())? {
            return Err(tied(format!("process {pid} is in a user namespace of its own")));
        }
        let root = statat(&process, "root/", AtFlags::empty()).map_err(called("look at the root directory of"))?;
        if identity(&root) != own_root()? {
            return Err(tied(format!("process {pid} has another root directory, as in a container")));
        }
        Ok(namespaces)
    }

    /// Whether its PID or mount namespace is another than the calling process's.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn are_apart(&self) -> Result<bool, Error> {
        let own = |path: &str| {
            let file = File::open(path).map_err(|error| Error::call("open", path, error))?;
            identity_of(file.as_fd())
        };
        Ok(own("/proc/self/ns/pid")? != self.pid.identity || own("/proc/thread-self/ns/mnt")? != self.mount.identity)
    }
}
