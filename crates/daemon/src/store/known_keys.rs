//! Which key answered at which address: what trust on first use remembers, as ssh's `known_hosts` does.
//!
//! One line for each address: the address, a blank, the key. Lines that start with `#` are for people.
//!
//! A thread of its own writes the file, since it must outlive a power failure: a disk that is slow to sync must not
//! keep a hand-off waiting.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use whimbrel_handshake::PublicKey;

use super::files::{FileError, replace_for_good};

/// The file, in the state directory.
pub const KNOWN_KEYS: &str = "known_keys";

const HEAD: &str =
    "# Keys that answered first at an address (trust on first use). Remove a line to trust the next one.\n";

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnownKeysError {
    /// It could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The thread that writes it could not be started.
    #[error("cannot start the thread that writes {path}: {source}")]
    Thread {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of it makes no sense. It is not skipped: a remembered key that is ignored would let another one in.
    #[error("{path}:{line}: not an address and a public key with a blank between; correct or remove the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
}

/// The remembered keys. Dropping them waits until the file has all of them.
#[derive(Debug)]
pub struct KnownKeys {
    keys: HashMap<IpAddr, PublicKey>,
    /// None once the end has begun.
    writer: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A key that was forgotten a moment ago.
#[derive(Debug)]
pub struct Forgotten {
    key: PublicKey,
    written: Receiver<Result<(), KnownKeysError>>,
}

impl Forgotten {
    /// Waits until the file has no more of it, as long as a disk may take, and gives the key.
    ///
    /// # Errors
    /// When the file cannot be written; the key is then forgotten until the daemon ends.
    pub fn written(self) -> Result<PublicKey, KnownKeysError> {
        // The thread ends only when it is told to, and it answers all that it was asked before.
        self.written.recv().unwrap_or(Ok(())).map(|()| self.key)
    }
}

/// What the file is to have from now on, and who wants to know whether it has.
#[derive(Debug)]
struct Order {
    keys: HashMap<IpAddr, PublicKey>,
    answer: Option<Sender<Result<(), KnownKeysError>>>,
}

impl KnownKeys {
    /// Reads the file; it need not exist.
    ///
    /// # Errors
    /// When it cannot be read or has a line that makes no sense.
    pub fn open(path: &Path) -> Result<Self, KnownKeysError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FileError::of("read", path)(error).into()),
        };
        let mut keys = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = line
                .split_once(char::is_whitespace)
                .and_then(|(address, key)| Some((address.parse().ok()?, key.trim().parse().ok()?)));
            let Some((address, key)) = parsed else {
                return Err(KnownKeysError::Line { path: path.to_owned(), line: index + 1 });
            };
            keys.insert(address, key);
        }
        let (writer, orders) = channel();
        let target = path.to_owned();
        let thread = std::thread::Builder::new().name("known-keys".to_owned());
        let thread = thread.spawn(move || write_ordered(&target, &orders));
        let thread = thread.map_err(|source| KnownKeysError::Thread { path: path.to_owned(), source })?;
        Ok(Self { keys, writer: Some(writer), thread: Some(thread) })
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &HashMap<IpAddr, PublicKey> {
        &self.keys
    }

    /// The addresses that a key is remembered for, sorted.
    #[must_use]
    pub fn addresses_of(&self, key: PublicKey) -> Vec<IpAddr> {
        let mut addresses: Vec<_> =
            self.keys.iter().filter(|(_, known)| **known == key).map(|(address, _)| *address).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Remembers a key for an address. It is in the file a moment later; where that cannot be written the log says so,
    /// and the key is remembered until the daemon ends.
    pub fn remember(&mut self, address: IpAddr, key: PublicKey) {
        if self.keys.insert(address, key) != Some(key) {
            self.order(None);
        }
    }

    /// Forgets the key of an address; `None` where there is none. [`Forgotten::written`] waits for the file.
    pub fn forget(&mut self, address: IpAddr) -> Option<Forgotten> {
        let key = self.keys.remove(&address)?;
        let (sender, written) = channel();
        self.order(Some(sender));
        Some(Forgotten { key, written })
    }

    fn order(&self, answer: Option<Sender<Result<(), KnownKeysError>>>) {
        if let Some(writer) = &self.writer {
            // It can only fail where the thread has panicked, which was told.
            let _ = writer.send(Order { keys: self.keys.clone(), answer });
        }
    }
}

impl Drop for KnownKeys {
    fn drop(&mut self) {
        drop(self.writer.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes what is ordered until there is nobody to order any more. Of several orders that wait only the last counts.
fn write_ordered(path: &Path, orders: &Receiver<Order>) {
    while let Ok(mut order) = orders.recv() {
        let mut asked: Vec<_> = order.answer.take().into_iter().collect();
        for newer in orders.try_iter() {
            order.keys = newer.keys;
            asked.extend(newer.answer);
        }
        if asked.is_empty() {
            if let Err(error) = write(path, &order.keys) {
                tracing::error!(%error, "keys that answered first are remembered until the daemon ends only");
            }
            continue;
        }
        for answer in asked {
            // Who asked may have given up.
            let _ = answer.send(write(path, &order.keys));
        }
    }
}

fn write(path: &Path, keys: &HashMap<IpAddr, PublicKey>) -> Result<(), KnownKeysError> {
    let mut lines: Vec<_> = keys.iter().collect();
    lines.sort_unstable_by_key(|(address, _)| **address);
    let mut text = HEAD.to_owned();
    for (address, key) in lines {
        text.push_str(&format!("{address} {key}\n"));
    }
    Ok(replace_for_good(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_remembered_and_forgotten() {
        let path = std::env::temp_dir().join(format!("whimbrel-known-keys-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let address: IpAddr = "2001:db8::7".parse().expect("address");
        let key = PublicKey::from([7; 32]);
        let mut known = KnownKeys::open(&path).expect("open");
        known.remember(address, key);
        known.remember("192.0.2.1".parse().expect("address"), key);
        drop(known);
        let mut known = KnownKeys::open(&path).expect("open");
        assert_eq!(known.addresses_of(key).len(), 2);
        assert_eq!(known.forget(address).expect("remembered").written().expect("forgotten"), key);
        assert!(known.forget(address).is_none());
        assert_eq!(KnownKeys::open(&path).expect("open").all().len(), 1);
        drop(known);
        fs::write(&path, "# a comment\n\n192.0.2.1 nonsense\n").expect("write");
        assert!(KnownKeys::open(&path).expect_err("a bad line").to_string().contains(":3:"));
        fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn what_a_daemon_of_before_has_written_is_taken_over() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/known_keys");
        let known = KnownKeys::open(&path).expect("open");
        let keys = [("2001:db8::7", 7), ("192.0.2.1", 8)];
        let keys = keys.map(|(address, of)| (address.parse().expect("address"), PublicKey::from([of; 32])));
        assert_eq!(known.all(), &HashMap::from(keys));
    }

    #[test]
    fn a_slow_disk_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("whimbrel-slow-keys-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut known = KnownKeys::open(&path).expect("open");
        // Whoever opens a FIFO for writing waits for a reader: the slowest of disks.
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        rustix::fs::mknodat(rustix::fs::CWD, &fresh, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("mkfifo");
        known.remember("192.0.2.1".parse().expect("address"), PublicKey::from([7; 32]));
        known.remember("192.0.2.2".parse().expect("address"), PublicKey::from([8; 32]));
        assert_eq!(known.all().len(), 2);
        let forgotten = known.forget("192.0.2.2".parse().expect("address")).expect("remembered");
        assert_eq!(known.all().len(), 1);
        // Now there is one. A FIFO cannot be synced, so nothing takes the file's place.
        let reader = fs::OpenOptions::new().read(true).open(&fresh).expect("open");
        drop(known);
        assert!(forgotten.written().is_err(), "the file has it still");
        drop(reader);
        fs::remove_file(&fresh).expect("remove");
        let _ = fs::remove_file(&path);
    }
}
