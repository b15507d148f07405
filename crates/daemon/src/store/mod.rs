//! What outlives the daemon on disk.
//!
//! ```text
//! log.rs         an append-only file of changes to rows, which survives a kill at any write, and its compaction
//! former.rs      files that a daemon of before has written
//! instance.rs    one daemon for each run directory and each state directory
//! place.rs       where the data plane is pinned
//! identity.rs    the host's key
//! known_keys.rs  which key answered at which address
//! ```
//!
//! Nothing here knows what is in the tables: they are declared beside their owners (`host::table`, and `table` of a
//! role). What is live is asked of those owners; the store is read once, when a daemon starts.

pub(crate) mod files;
mod former;
pub mod identity;
pub mod instance;
pub mod known_keys;
mod log;
pub(crate) mod place;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use log::{Change, Found, Log, read};

/// The file in the run directory.
pub(crate) const JOURNAL: &str = "journal";

/// The format of the files that this release writes.
const VERSION: u32 = 2;

/// A store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refuses.
    #[error("cannot {action} the store {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A later release has written it.
    #[error(
        "{path} was written by a later release of Whimbrel (format {version}, and this one knows {VERSION}). Start \
         that release again; or end what it has left with `whimbrel clean` of that release, or `rm {path}`, which \
         ends moved connections"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
}

/// A table: what is kept under which key. What is on disk of it is JSON, so that people can read it.
pub(crate) trait Table {
    /// What its rows are called in the file. It stays the same over releases.
    const NAME: &'static str;
    /// What names a row. Its JSON has to be the same text each time, so it is no map.
    type Key: serde::Serialize + serde::de::DeserializeOwned;
    /// What is kept.
    type Row: serde::Serialize + serde::de::DeserializeOwned;
}

/// Declares a table.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident = $name:literal: $key:ty => $row:ty) => {
        $(#[$doc])*
        pub(crate) enum $table {}

        impl $crate::store::Table for $table {
            const NAME: &'static str = $name;
            type Key = $key;
            type Row = $row;
        }
    };
}
pub(crate) use table;

/// The store of a running daemon.
#[derive(Debug)]
pub(crate) struct Store {
    log: Log,
    /// Of hosts behind this one alone: it outlives this host's own life.
    lasting: Option<Log>,
}

impl Store {
    /// That goes on with this file.
    pub(crate) fn new(log: Log) -> Self {
        Self { log, lasting: None }
    }

    /// The file that outlives this host's own life, where there is one.
    pub(crate) fn lasting(&mut self) -> Option<&mut Log> {
        self.lasting.as_mut()
    }

    /// Has one from now on.
    pub(crate) fn set_lasting(&mut self, log: Log) {
        self.lasting = Some(log);
    }

    /// Takes in a change: see [`Log::append`].
    pub(crate) fn append(&mut self, change: Change) {
        self.log.append(change);
    }

    /// Keeps a row.
    pub(crate) fn put<T: Table>(&mut self, key: &T::Key, row: &T::Row) {
        self.log.append(Change::default().put::<T>(key, row));
    }

    /// Drops a row.
    pub(crate) fn remove<T: Table>(&mut self, key: &T::Key) {
        self.log.append(Change::default().remove::<T>(key));
    }

    /// Keeps decisions: see [`Log::keep`].
    ///
    /// # Errors
    /// When the file cannot be written. Then none is kept.
    pub(crate) fn keep(&mut self, decisions: Vec<Change>) -> Result<(), StoreError> {
        self.log.keep(decisions)
    }

    /// Hands all that was said since the last call to the system: see [`Log::flush`].
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        let lasting = self.lasting.as_mut().map_or(Ok(()), Log::flush);
        self.log.flush().and(lasting)
    }
}

/// Removes a store.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    files::remove(path).map_err(|source| StoreError::Io { action: "remove", path: path.to_owned(), source })
}
