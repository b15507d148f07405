//! Programs of this host that are run in namespaces of others.
//!
//! What is started as root inside the namespaces of a process is never looked up there: it is found in the calling
//! process's own mount namespace, opened, looked at, and executed by that descriptor (execveat(2)). The mount namespace
//! that it runs in has to belong to this user namespace ([`Namespace`]), since its loader and libraries are those that
//! are mounted there.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process_tree::{Identity, Namespace, own_root};

/// Bits of a mode: writable by its group, by everybody, and sticky (inode(7)).
const GROUP: u32 = 0o020;
const EVERYBODY: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Whether somebody else than root may write to it.
fn is_exposed(found: &Metadata) -> bool {
    found.uid() != 0 || found.mode() & EVERYBODY != 0 || found.mode() & GROUP != 0 && found.gid() != 0
}

/// Why a program is not run.
#[derive(Debug, thiserror::Error)]
pub enum Unsuited {
    /// It is in none of the directories of `PATH`.
    #[error("`{0}` is not installed")]
    Absent(String),
    /// Somebody else than root could put another in its place.
    #[error("{} is not run as root: {} is not root's alone to write to (`chown root` and `chmod go-w` it, or install it elsewhere)", .program.display(), .writable.display())]
    Exposed {
        /// The program.
        program: PathBuf,
        /// It, or a directory on the way to it.
        writable: PathBuf,
    },
    /// It cannot be looked at.
    #[error("{}: {source}", .program.display())]
    Unreadable {
        /// The program, or a directory on the way to it.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A program of this host, open.
#[derive(Clone, Debug)]
pub struct Program {
    file: Arc<File>,
    path: PathBuf,
    /// Its interpreter opens it once more, by its descriptor.
    is_script: bool,
}

/// Where a program is to run; where nothing is said, as the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inside<'a> {
    /// Network namespace.
    pub network: Option<BorrowedFd<'a>>,
    /// PID namespace.
    pub pid: Option<&'a Namespace>,
    /// Mount namespace, whose root directory has to be the calling process's.
    pub mount: Option<&'a Namespace>,
}

impl Program {
    /// Looks for a program in the directories of `PATH`, in the mount namespace of the calling process, and opens it.
    /// It has to be root's, and written by nobody else, as every directory on the way to it, links followed (in a
    /// sticky directory nobody replaces what is root's).
    ///
    /// # Errors
    /// [`Unsuited`].
    pub fn find(name: &str) -> Result<Self, Unsuited> {
        Self::find_in(name, &std::env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(name: &str, path: &OsStr) -> Result<Self, Unsuited> {
        let is_program =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0);
        let mut candidates = std::env::split_paths(path).filter(|path| path.is_absolute()).map(|path| path.join(name));
        let found = candidates.find(is_program).ok_or_else(|| Unsuited::Absent(name.to_owned()))?;
        Self::open(&found)
    }

    /// Opens the program at a path, as [`find`](Self::find) does.
    ///
    /// # Errors
    /// [`Unsuited`].
    pub fn open(path: &Path) -> Result<Self, Unsuited> {
        let unreadable = |path: &Path| {
            let program = path.to_owned();
            move |source| Unsuited::Unreadable { program, source }
        };
        let path = fs::canonicalize(path).map_err(unreadable(path))?;
        let options = || {
            let mut options = File::options();
            options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
            options
        };
        let file = options().open(&path).map_err(unreadable(&path))?;
        let found = file.metadata().map_err(unreadable(&path))?;
        let exposed = |writable: &Path| Unsuited::Exposed { program: path.clone(), writable: writable.to_owned() };
        if !found.is_file() || is_exposed(&found) {
            return Err(exposed(&path));
        }
        for directory in path.ancestors().skip(1) {
            let found = fs::symlink_metadata(directory).map_err(unreadable(directory))?;
            let is_sticky = found.uid() == 0 && found.mode() & STICKY != 0;
            if !found.is_dir() || is_exposed(&found) && !is_sticky {
                return Err(exposed(directory));
            }
        }
        let mut start = [0; 2];
        let is_script = (&file).read_exact(&mut start).is_ok() && start == *b"#!";
        Ok(Self { file: Arc::new(file), path, is_script })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs it until it ends.
    ///
    /// # Errors
    /// It cannot be started there.
    pub fn output(&self, arguments: &[OsString], inside: Inside<'_>) -> io::Result<Output> {
        self.started(arguments, inside, |command| command.stdin(Stdio::null()).output())
    }

    /// Starts it, with nothing to read from and nowhere to write to.
    ///
    /// # Errors
    /// It cannot be started there.
    pub fn spawn(&self, arguments: &[OsString], inside: Inside<'_>) -> io::Result<Child> {
        self.started(arguments, inside, |command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        })
    }

    fn started<T: Send>(
        &self,
        arguments: &[OsString],
        inside: Inside<'_>,
        start: impl FnOnce(&mut Command) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let mut command = self.command(arguments, inside)?;
        let Some(pid) = inside.pid else { return start(&mut command) };
        // The PID namespace is that of children to come; a thread of its own is not there any more when others start
        // some.
        let work = || {
            move_into_link_name_space(pid.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
            start(&mut command)
        };
        let ended = || Err(io::Error::other("the thread that was to start it has ended"));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("program".to_owned()).spawn_scoped(scope, work)?;
            thread.join().unwrap_or_else(|_| ended())
        })
    }

    fn command(&self, arguments: &[OsString], inside: Inside<'_>) -> io::Result<Command> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let words = std::iter::once(self.path.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
        let variable = |(name, value): (OsString, OsString)| text(&[name, value].join(OsStr::new("=")));
        let execution = Execution {
            file: self.file.try_clone()?,
            is_script: self.is_script,
            arguments: words.map(text).collect::<io::Result<_>>()?,
            environment: std::env::vars_os().map(variable).collect::<io::Result<_>>()?,
            network: inside.network.map(|network| network.try_clone_to_owned()).transpose()?,
            mount: inside.mount.cloned(),
            root: own_root().map_err(io::Error::other)?,
        };
        let mut command = Command::new(&self.path);
        let vectors = Vectors::of(&execution);
        // SAFETY: only system calls, on what was made before the fork.
        unsafe { command.current_dir("/").pre_exec(move || Err(execution.carry_out(&vectors))) };
        Ok(command)
    }
}

/// What is done between fork and exec.
struct Execution {
    file: File,
    is_script: bool,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    network: Option<OwnedFd>,
    mount: Option<Namespace>,
    root: Identity,
}

/// The same as execveat(2) wants it: pointers into an [`Execution`], which owns what they point to on the heap.
struct Vectors {
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
}

// SAFETY: what they point to belongs to the closure that has them, and is not changed.
unsafe impl Send for Vectors {}
// SAFETY: as above.
unsafe impl Sync for Vectors {}

impl Vectors {
    fn of(execution: &Execution) -> Self {
        let pointers = |texts: &[CString]| {
            texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
        };
        Self { arguments: pointers(&execution.arguments), environment: pointers(&execution.environment) }
    }
}

impl Execution {
    /// Becomes the program; gives why it did not.
    fn carry_out(&self, vectors: &Vectors) -> io::Error {
        match self.enter() {
            Ok(()) => {}
            Err(error) => return error,
        }
        if self.is_script {
            // SAFETY: takes numbers.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFD, 0) };
        }
        // SAFETY: an empty path, and vectors of strings that end with a null pointer.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                self.file.as_raw_fd(),
                c"".as_ptr(),
                vectors.arguments.as_ptr(),
                vectors.environment.as_ptr(),
                libc::AT_EMPTY_PATH,
            )
        };
        io::Error::last_os_error()
    }

    fn enter(&self) -> io::Result<()> {
        if let Some(network) = &self.network {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        if let Some(mount) = &self.mount {
            move_into_link_name_space(mount.as_fd(), Some(LinkNameSpaceType::Mount))?;
            // Its root directory, which may be another than that of a process in it.
            let root = rustix::fs::stat(c"/")?;
            if (root.st_dev, root.st_ino) != self.root {
                return Err(io::Error::from_raw_os_error(libc::EXDEV));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// A directory of root's with a program in it that says a word.
    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("whimbrel-program-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("mode");
        write(&directory.join("speak"), "#!/bin/sh\necho \"$1 $WORD\"\n");
        directory
    }

    fn write(path: &Path, text: &str) {
        fs::write(path, text).expect("a script");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
    }

    #[test]
    fn what_is_not_there_is_said_to_be_absent() {
        assert!(matches!(Program::find_in("no-such-program", OsStr::new("/usr/bin")), Err(Unsuited::Absent(_))));
        // A relative directory is wherever the daemon was started.
        assert!(matches!(Program::find_in("sh", OsStr::new("bin:")), Err(Unsuited::Absent(_))));
    }

    #[test]
    #[ignore = "needs root: it makes files of other users"]
    fn only_what_root_alone_can_write_is_run() {
        let directory = directory("exposed");
        let speak = directory.join("speak");
        let exposed = |path: &Path| match Program::open(path) {
            Err(Unsuited::Exposed { writable, .. }) => Some(writable),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        };
        assert_eq!(exposed(&speak), None);
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
        chown(&speak, None, Some(65534)).expect("chown");
        for bad in [0o775, 0o757] {
            mode(&speak, bad);
            assert_eq!(exposed(&speak).as_deref(), Some(speak.as_path()));
        }
        mode(&speak, 0o755);
        assert_eq!(exposed(&speak), None);
        mode(&directory, 0o777);
        assert_eq!(exposed(&speak).as_deref(), Some(directory.as_path()));
        mode(&directory, 0o1777);
        assert_eq!(exposed(&speak), None, "nobody removes what is root's from a sticky directory");
        mode(&directory, 0o755);
        chown(&speak, Some(65534), None).expect("chown");
        assert_eq!(exposed(&speak).as_deref(), Some(speak.as_path()));
        chown(&speak, Some(0), None).expect("chown");
        // A link is what it leads to.
        let theirs = directory.join("theirs");
        fs::create_dir(&theirs).expect("directory");
        chown(&theirs, Some(65534), None).expect("chown");
        fs::copy(&speak, theirs.join("speak")).expect("copy");
        symlink(theirs.join("speak"), directory.join("link")).expect("link");
        assert_eq!(exposed(&directory.join("link")).as_deref(), Some(theirs.as_path()));
        // A FIFO is not waited for.
        let status = Command::new("mkfifo").arg(directory.join("fifo")).status().expect("mkfifo");
        assert!(status.success());
        assert!(exposed(&directory.join("fifo")).is_some());
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    #[ignore = "needs root: only what is root's is run"]
    fn scripts_and_programs_run_by_their_descriptors() {
        let directory = directory("runs");
        let script = Program::find_in("speak", directory.as_os_str()).expect("it is root's");
        // Whoever is in its place later is not run.
        write(&directory.join("other"), "#!/bin/sh\necho wrong\n");
        fs::rename(directory.join("other"), directory.join("speak")).expect("renamed");
        let output = script.output(&["hello".into()], Inside::default()).expect("it runs");
        assert!(output.stdout.starts_with(b"hello "), "{output:?}");
        let shell = Program::find("sh").expect("a shell");
        let output = shell.output(&["-c".into(), "exit 7".into()], Inside::default()).expect("it runs");
        assert_eq!(output.status.code(), Some(7));
        let bad = Program { file: Arc::new(File::open("/").expect("/")), ..shell };
        assert!(bad.output(&[], Inside::default()).is_err(), "a directory is no program");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
