//! Settings that are changed for a while, and are put back even when the process that changed them was killed.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{namespace, sysctl};

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: String,
    before: String,
    ours: String,
}

/// Remembers in a file what settings were before they were changed.
///
/// The file is one line that names the boot and the network namespace, then a line `key TAB before TAB ours` for each
/// setting. It is written before a setting changes. A file of another boot or namespace counts as none.
#[derive(Debug)]
pub struct SavedSysctls {
    file: PathBuf,
    head: String,
    entries: Vec<Entry>,
}

impl SavedSysctls {
    /// Reads what an earlier process has left in `file`, if anything. In the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(file: &Path) -> Result<Self, Error> {
        let head = format!("{} {:x}", sysctl::get("kernel/random/boot_id")?, namespace::cookie()?);
        let entries = match std::fs::read_to_string(file) {
            Ok(text) => parse(&text, &head),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::call("read", file.display().to_string(), error)),
        };
        Ok(Self { file: file.to_owned(), head, entries })
    }

    /// Whether anything is changed now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives a setting another value; returns whether it had another one.
    ///
    /// # Errors
    /// [`Error::Call`]; the setting is as it was.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        let now = sysctl::get(key)?;
        if now == value {
            return Ok(false);
        }
        let known = self.entries.iter().position(|entry| entry.key == key);
        let before = known.map_or(now, |at| self.entries[at].before.clone());
        let entry = Entry { key: key.to_owned(), before, ours: value.to_owned() };
        let previous = self.entries.clone();
        match known {
            Some(at) => self.entries[at] = entry,
            None => self.entries.push(entry),
        }
        if let Err(error) = self.write().and_then(|()| sysctl::set(key, value)) {
            self.entries = previous;
            // The setting is as it was; a record too many is harmless (`restore` looks first).
            let _ = self.write();
            return Err(error);
        }
        Ok(true)
    }

    /// Puts all settings back, except for those that somebody else has changed meanwhile.
    ///
    /// # Errors
    /// [`Error::Call`]; the settings that are not back yet are still remembered.
    pub fn restore(&mut self) -> Result<(), Error> {
        while let Some(entry) = self.entries.last() {
            match sysctl::get(&entry.key) {
                Ok(now) if now == entry.ours => sysctl::set(&entry.key, &entry.before)?,
                // Changed by somebody else.
                Ok(_) => {}
                // The interface that it belonged to is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
            self.entries.pop();
        }
        self.write()
    }

    fn write(&self) -> Result<(), Error> {
        let object = || self.file.display().to_string();
        if self.entries.is_empty() {
            return match std::fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::call("unlink", object(), error)),
                _ => Ok(()),
            };
        }
        let mut text = format!("{}\n", self.head);
        for Entry { key, before, ours } in &self.entries {
            let _ = writeln!(text, "{key}\t{before}\t{ours}");
        }
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, text).map_err(|e| Error::call("write", fresh.display().to_string(), e))?;
        std::fs::rename(&fresh, &self.file).map_err(|e| Error::call("rename", object(), e))
    }
}

/// Lines that make no sense are left out: there is nobody to ask.
fn parse(text: &str, head: &str) -> Vec<Entry> {
    let mut lines = text.lines();
    if lines.next() != Some(head) {
        return Vec::new();
    }
    lines
        .filter_map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let entry = Entry { key: fields.next()?, before: fields.next()?, ours: fields.next()? };
            fields.next().is_none().then_some(entry)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_boot_or_namespace_counts_as_none() {
        let text = "boot 1\nnet/ipv4/ip_forward\t0\t1\nnonsense\n";
        assert_eq!(parse(text, "boot 1").len(), 1);
        assert!(parse(text, "boot 2").is_empty());
        assert!(parse("", "boot 1").is_empty());
    }
}
