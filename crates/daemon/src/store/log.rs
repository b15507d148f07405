//! An append-only file of changes to rows.
//!
//! ```text
//! {"whimbrel":"store","version":2,"rows":1}                      the head: so many rows follow
//! [["flow","tcp 192.0.2.7:1 -> 192.0.2.1:22",{"peer":1,…}]]      one row in each line
//! [["halted",71,2],["donation",["…",1],{…}]]                     then a change in each line: rows that are put …
//! [["flow","tcp 192.0.2.7:1 -> 192.0.2.1:22"]]                   … and rows that are removed, by table and key
//! ```
//!
//! A line is handed to the system in one write before its effect is reported as done, so that `kill -9` loses nothing;
//! a power failure ends the connections anyway, so nothing is synced. A last line that was torn is ignored: with it the
//! whole change. When most lines are out of date the file is written anew under another name, which then takes its
//! place.
//!
//! *Where there is no room* the file stays as it was, whole, and what was said since is written, as a new file, when
//! there is. Decisions about sockets and endpoints (P-76) are another matter: they are kept at once, or not at all
//! ([`Log::keep`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{StoreError, Table, VERSION, former};

/// Lines that may be out of date before the file is written anew, beside as many as are in force.
pub(super) const SLACK: usize = 1024;
/// Where a new file found no room, so many times at the most what was said is not written before it is tried again.
pub(super) const PASSED_OVER_MOST: u32 = 1024;
/// Bytes that may wait for room, beside twice as many as are needed for the last change of each row.
const WAITING_MOST: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
struct Head<'a> {
    whimbrel: &'a str,
    version: u32,
    rows: usize,
}

/// A row that is put, or removed: table, key and row.
#[derive(Deserialize)]
struct Entry<'a>(
    #[serde(borrow)] Cow<'a, str>,
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow, default)] Option<&'a RawValue>,
);

/// Table and key, as they are written.
type Name<'a> = (Cow<'a, str>, Cow<'a, str>);

/// What was said last of each row; `None`: it is removed.
pub(super) type Rows<'a> = BTreeMap<Name<'a>, Option<Cow<'a, str>>>;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Found<'a> {
    rows: Rows<'a>,
    lines: usize,
    /// Of whole lines, in bytes.
    length: usize,
    skipped: usize,
    dropped: Vec<Name<'a>>,
}

/// The bytes of a file, if it is there.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(|source| StoreError::Io { action: "read", path: path.to_owned(), source }),
    }
}

impl<'a> Found<'a> {
    /// What the bytes of the file at `path` say.
    ///
    /// # Errors
    /// When a later release has written it.
    pub(crate) fn parse(path: &Path, text: &'a [u8]) -> Result<Self, StoreError> {
        let length = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let mut found = Self { length, ..Self::default() };
        let mut due = 0;
        for line in text[..length].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            found.lines += 1;
            let head =
                line.starts_with(b"{\"whimbrel\"").then(|| serde_json::from_slice::<Head<'_>>(line).ok()).flatten();
            let makes_sense = match head {
                Some(head) if head.version > VERSION => {
                    return Err(StoreError::Newer { path: path.to_owned(), version: head.version });
                }
                Some(head) => {
                    due = head.rows.saturating_add(found.lines);
                    true
                }
                None => found.apply(line).is_some(),
            };
            if !makes_sense {
                found.skipped += 1;
                tracing::warn!(path = %path.display(), line = found.lines, "skipping a line of the store");
            }
        }
        if found.lines < due {
            // Power failed while it was written anew: a part of what was so is nothing that ever was.
            tracing::warn!(path = %path.display(), "the store breaks off: nothing of it is used");
            found.rows.clear();
            found.skipped += 1;
        }
        Ok(found)
    }

    fn apply(&mut self, line: &'a [u8]) -> Option<()> {
        if !line.starts_with(b"[") {
            return former::apply(&mut self.rows, line);
        }
        for Entry(table, key, row) in serde_json::from_slice::<Vec<Entry<'a>>>(line).ok()? {
            self.rows.insert((table, key.get().into()), row.map(|row| row.get().into()));
        }
        Some(())
    }

    /// The rows of a table. Those that make no sense are dropped.
    pub(crate) fn rows<T: Table>(&mut self) -> Vec<(T::Key, T::Row)> {
        let mut rows = Vec::new();
        let of_table = self.rows.iter().filter(|((table, _), row)| table == T::NAME && row.is_some());
        let mut senseless = Vec::new();
        for (name, row) in of_table {
            let row = row.as_deref().unwrap_or_default();
            match serde_json::from_str(&name.1).and_then(|key| Ok((key, serde_json::from_str(row)?))) {
                Ok(row) => rows.push(row),
                Err(error) => {
                    tracing::warn!(table = T::NAME, key = %name.1, %error, "skipping a row of the store");
                    senseless.push(name.clone());
                }
            }
        }
        self.skipped += senseless.len();
        senseless.into_iter().for_each(|name| self.drop_row(name));
        rows
    }

    /// Drops a row.
    pub(crate) fn drop<T: Table>(&mut self, key: &T::Key) {
        if let Ok(key) = serde_json::to_string(key) {
            self.drop_row((T::NAME.into(), key.into()));
        }
    }

    fn drop_row(&mut self, name: Name<'a>) {
        self.rows.remove(&name);
        self.dropped.push(name);
    }

    /// Lines and rows that could not be read.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped
    }
}

/// Rows that are put and removed together, or not at all.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Of the line, except for its last bracket.
    text: String,
    /// Rows by [`number`], and whether they are there afterwards.
    rows: Vec<(u64, bool)>,
}

impl Change {
    /// Puts a row in the place of what was there under its key.
    #[must_use]
    pub(crate) fn put<T: Table>(self, key: &T::Key, row: &T::Row) -> Self {
        // None of the tables has a map with keys other than strings, or a serializer that fails.
        let (Ok(key), Ok(row)) = (serde_json::to_string(key), serde_json::to_string(row)) else { return self };
        self.entry(T::NAME, &key, Some(&row))
    }

    /// Removes a row, if it is there.
    #[must_use]
    pub(crate) fn remove<T: Table>(self, key: &T::Key) -> Self {
        let Ok(key) = serde_json::to_string(key) else { return self };
        self.entry(T::NAME, &key, None)
    }

    fn entry(mut self, table: &str, key: &str, row: Option<&str>) -> Self {
        self.rows.push((number(table, key), row.is_some()));
        self.text.push(if self.text.is_empty() { '[' } else { ',' });
        push_entry(&mut self.text, table, key, row);
        self
    }

    /// Whether it changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A table's name needs no escaping.
fn push_entry(text: &mut String, table: &str, key: &str, row: Option<&str>) {
    for part in ["[\"", table, "\",", key] {
        text.push_str(part);
    }
    for part in row.iter().flat_map(|row| [",", row]) {
        text.push_str(part);
    }
    text.push(']');
}

/// Stands for a row where rows are counted: where two have the same number the file is written anew a line too early.
fn number(table: &str, key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (table, key).hash(&mut hasher);
    hasher.finish()
}

/// The file, open for appending.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    pub(super) file: File,
    lines: usize,
    /// What is in the file, in bytes: all of it whole lines.
    length: u64,
    /// Lines that are not in it yet.
    pending: Vec<u8>,
    /// Bytes of them after which only what was said last of each row is kept, where they have to wait.
    pending_most: usize,
    wanting: Option<Wanting>,
    /// The rows that are there, by number.
    live: HashSet<u64>,
}

/// The file lacks what was said: only a new one will do.
#[derive(Clone, Copy, Debug)]
struct Wanting {
    /// How often it is not tried before it is tried again.
    pause: u32,
    left: u32,
}

impl Log {
    /// Goes on with the file at `path`, or creates it. `found`: what it says, as far as it is to stay.
    ///
    /// # Errors
    /// When it cannot be created. Where there is no room to write it anew it serves as it is.
    pub(crate) fn open(path: &Path, found: &Found<'_>) -> Result<Self, StoreError> {
        let mut log = Self::opened(path, found)?;
        if let Err(error) = log.replace(found) {
            tracing::warn!(%error, "the store serves as it is");
            if log.cut().is_ok() {
                log.wanting = None;
            }
            log.append(found.dropped.iter().fold(Change::default(), |all, (table, key)| all.entry(table, key, None)));
        }
        Ok(log)
    }

    /// Has the file at `path` say this, and nothing else.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn create(path: &Path, content: &[Change]) -> Result<Self, StoreError> {
        let text = content.iter().fold(String::new(), |text, change| text + &change.text + "]\n");
        let found = Found::parse(path, text.as_bytes())?;
        let mut log = Self::opened(path, &Found::default())?;
        log.replace(&found).map(|()| log)
    }

    fn opened(path: &Path, found: &Found<'_>) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Io { action: "create", path: path.to_owned(), source };
        Ok(Self {
            path: path.to_owned(),
            file: create(path).map_err(failed)?,
            lines: found.lines,
            length: found.length as u64,
            pending: Vec::new(),
            pending_most: WAITING_MOST,
            wanting: None,
            live: HashSet::new(),
        })
    }

    /// Takes in a change, which is in force with the next [`Log::flush`].
    pub(crate) fn append(&mut self, change: Change) {
        if change.is_empty() {
            return;
        }
        self.pending.extend_from_slice(change.text.as_bytes());
        self.pending.extend_from_slice(b"]\n");
        self.record(change);
        if self.wanting.is_some() && self.pending.len() > self.pending_most {
            self.shorten();
        }
    }

    /// Hands all that was said since the last call to the system.
    ///
    /// # Errors
    /// When the file cannot be written. What was said is written when there is room; it is not said again each time
    /// that there is none.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if let Some(wanting) = &mut self.wanting {
            if wanting.left > 0 {
                wanting.left -= 1;
                return Ok(());
            }
            return self.compact();
        }
        if self.lines > 2 * self.live.len() + SLACK {
            return self.compact();
        }
        let pending = std::mem::take(&mut self.pending);
        if let Err(source) = self.write(&pending) {
            self.pending = pending;
            self.want();
            return Err(self.failed("write", source));
        }
        Ok(())
    }

    /// Keeps decisions, behind all that was said before, in one write: where that is cut short by a kill, the first of
    /// them. They are in force if and only if they are in the file: otherwise they would come into force with the next
    /// daemon after they had been taken back.
    ///
    /// # Errors
    /// When the file cannot be written. Then none is kept.
    pub(crate) fn keep(&mut self, decisions: Vec<Change>) -> Result<(), StoreError> {
        if self.wanting.is_some() {
            self.compact()?;
        }
        self.flush()?;
        let text = decisions.iter().fold(String::new(), |text, change| text + &change.text + "]\n");
        self.write(text.as_bytes()).map_err(|source| self.failed("write", source))?;
        decisions.into_iter().for_each(|change| self.record(change));
        Ok(())
    }

    /// Bytes that are not in the file yet.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    fn record(&mut self, change: Change) {
        self.lines += 1;
        for (row, is_there) in change.rows {
            let _ = if is_there { self.live.insert(row) } else { self.live.remove(&row) };
        }
    }

    /// Writes whole lines behind the others. Where that fails the file is as it was, or a new one is wanted.
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(text) {
            // The half of a line may be there.
            if self.cut().is_err() {
                self.want();
            }
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)
    }

    /// Has a new file written, after a while that gets longer.
    fn want(&mut self) {
        let pause = self.wanting.map_or(1, |before| (before.pause * 2).min(PASSED_OVER_MOST));
        self.wanting = Some(Wanting { pause, left: pause });
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.path.clone(), source }
    }

    /// Of what waits for room, keeps what was said last of each row.
    fn shorten(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let Ok(found) = Found::parse(&self.path, &pending) else { return };
        let mut text = String::new();
        push_rows(&mut text, &found, true);
        self.pending_most = 2 * text.len() + WAITING_MOST;
        self.pending = text.into();
    }

    /// Writes what is in force to a new file that takes the old one's place.
    fn compact(&mut self) -> Result<(), StoreError> {
        let mut text = vec![0; usize::try_from(self.length).unwrap_or(usize::MAX)];
        if let Err(source) = self.file.read_exact_at(&mut text, 0) {
            self.want();
            return Err(self.failed("read", source));
        }
        text.extend_from_slice(&self.pending);
        let found = Found::parse(&self.path, &text)?;
        self.replace(&found)
    }

    fn replace(&mut self, found: &Found<'_>) -> Result<(), StoreError> {
        let rows = found.rows.values().filter(|row| row.is_some()).count();
        let head = serde_json::to_string(&Head { whimbrel: "store", version: VERSION, rows });
        let mut text = head.map_err(|error| self.failed("write", error.into()))? + "\n";
        push_rows(&mut text, found, false);
        let fresh = self.path.with_extension("new");
        let written = create(&fresh).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&fresh, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.file = file,
            Err(source) => {
                // It takes room that others need.
                let _ = fs::remove_file(&fresh);
                self.want();
                return Err(self.failed("rewrite", source));
            }
        }
        let there = found.rows.iter().filter(|(_, row)| row.is_some());
        self.live = there.map(|((table, key), _)| number(table, key)).collect();
        (self.lines, self.length) = (rows + 1, text.len() as u64);
        self.wanting = None;
        self.pending.clear();
        self.pending_most = WAITING_MOST;
        Ok(())
    }
}

/// One line for each row, of those that are removed as well if need be.
fn push_rows(text: &mut String, found: &Found<'_>, removed: bool) {
    for ((table, key), row) in found.rows.iter().filter(|(_, row)| removed || row.is_some()) {
        text.push('[');
        push_entry(text, table, key, row.as_deref());
        text.push_str("]\n");
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)
}
