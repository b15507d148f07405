//! Network namespaces with a name under /run/netns, so that `nsenter --net=` and `ip -n` find them.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, Result, sys};

/// Where iproute2 keeps its namespaces (ip-netns(8)).
pub(crate) const NETNS_DIR: &str = "/run/netns";

/// A network namespace that this process made. Its name goes when this is dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: PathBuf,
    file: File,
}

impl Netns {
    /// Makes a namespace and binds it to `/run/netns/NAME`. Fails if the name is taken.
    pub(crate) fn create(name: &str) -> Result<Self> {
        fs::create_dir_all(NETNS_DIR).map_err(|e| Error::call("mkdir", NETNS_DIR, e))?;
        let path = Path::new(NETNS_DIR).join(name);
        let shown = || path.display().to_string();
        File::create_new(&path).map_err(|e| Error::call("open", shown(), e))?;
        // A thread of its own: unshare(2) changes the calling thread, which ends right after.
        let bound = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    sys::unshare_network().map_err(|e| Error::call("unshare(CLONE_NEWNET)", shown(), e))?;
                    rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)
                        .map_err(|e| Error::call("mount(MS_BIND)", shown(), e))
                })
                .join()
                .unwrap_or_else(|_| Err(Error::Usage("the thread that made a namespace panicked".into())))
        });
        let opened = bound.and_then(|()| File::open(&path).map_err(|e| Error::call("open", shown(), e)));
        match opened {
            Ok(file) => Ok(Self { name: name.into(), path, file }),
            Err(e) => {
                remove(name);
                Err(e)
            }
        }
    }

    /// Name under /run/netns.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/run/netns/NAME`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `f` on a thread inside the namespace and gives its result. Sockets that it makes stay in the namespace
    /// wherever they are used later.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|e| Error::call("setns", self.name.clone(), e))?;
                Ok(f())
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Takes a name away from /run/netns. The namespace itself goes with its last process and descriptor.
pub(crate) fn remove(name: &str) {
    let path = Path::new(NETNS_DIR).join(name);
    // Either may be gone already; there is nobody to tell, and `Run::clean` looks again.
    let _ = rustix::mount::unmount(&path, UnmountFlags::DETACH);
    let _ = fs::remove_file(&path);
}

/// Names of the namespaces whose name starts with `prefix`.
pub(crate) fn list(prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    names.filter(|n| n.starts_with(prefix)).collect()
}
