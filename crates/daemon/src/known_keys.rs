//! Which key answered at which address: what trust on first use remembers, as ssh's `known_hosts` does.
//!
//! One line for each address: the address, a blank, the key. Lines that start with `#` are for people.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use whimbrel_handshake::PublicKey;

const HEAD: &str =
    "# Keys that answered first at an address (trust on first use). Remove a line to trust the next one.\n";

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnownKeysError {
    /// It cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
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

/// The remembered keys.
#[derive(Debug)]
pub struct KnownKeys {
    path: PathBuf,
    keys: HashMap<IpAddr, PublicKey>,
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
            Err(source) => return Err(KnownKeysError::Io { action: "read", path: path.to_owned(), source }),
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
        Ok(Self { path: path.to_owned(), keys })
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

    /// Remembers a key for an address.
    ///
    /// # Errors
    /// When the file cannot be written; the key is then remembered until the daemon ends.
    pub fn remember(&mut self, address: IpAddr, key: PublicKey) -> Result<(), KnownKeysError> {
        if self.keys.insert(address, key) == Some(key) {
            return Ok(());
        }
        self.write()
    }

    /// Forgets the key of an address and gives it back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn forget(&mut self, address: IpAddr) -> Result<Option<PublicKey>, KnownKeysError> {
        let Some(key) = self.keys.remove(&address) else { return Ok(None) };
        self.write().map(|()| Some(key))
    }

    fn write(&self) -> Result<(), KnownKeysError> {
        let mut lines: Vec<_> = self.keys.iter().collect();
        lines.sort_unstable_by_key(|(address, _)| **address);
        let mut text = HEAD.to_owned();
        for (address, key) in lines {
            text.push_str(&format!("{address} {key}\n"));
        }
        let fresh = self.path.with_extension("new");
        let written =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh).and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                // Unlike the journal this must outlive a power failure.
                file.sync_all()?;
                fs::rename(&fresh, &self.path)
            });
        written.map_err(|source| KnownKeysError::Io { action: "write", path: self.path.clone(), source })
    }
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
        known.remember(address, key).expect("remember");
        known.remember("192.0.2.1".parse().expect("address"), key).expect("remember");
        let mut known = KnownKeys::open(&path).expect("open");
        assert_eq!(known.addresses_of(key).len(), 2);
        assert_eq!(known.forget(address).expect("forget"), Some(key));
        assert_eq!(known.forget(address).expect("forget"), None);
        assert_eq!(KnownKeys::open(&path).expect("open").all().len(), 1);
        fs::write(&path, "# a comment\n\n192.0.2.1 nonsense\n").expect("write");
        assert!(KnownKeys::open(&path).expect_err("a bad line").to_string().contains(":3:"));
        fs::remove_file(&path).expect("remove");
    }
}
