//! What a daemon that is killed leaves of its substitutes: for each flow what was kept, what was answered, and a note.
//!
//! Bytes are handed to the system before they are acknowledged, so that `kill -9` loses nothing. A power failure ends
//! the connections anyway, so nothing is synced.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use whimbrel_wire::{FlowTuple, Transport};

use crate::store::files::replace;

/// How far a substitute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Progress {
    /// A program answers.
    Helping,
    /// Nobody answers any more; nothing more is kept.
    Holding,
    /// The peer is back, and the live end has not got all answers yet.
    Finishing,
    /// The peer gets what was kept.
    Delivering,
    /// Numbers are translated.
    Over,
}

/// The note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The helper's name in the configuration.
    pub(crate) helper: String,
    pub(crate) progress: Progress,
    /// First sequence number that is kept.
    pub(crate) base: u32,
    /// What the live end expected of its peer when the peer went away: the sequence number of the first answer.
    pub(crate) start: u32,
    /// Bytes that were answered in absences before.
    pub(crate) before: u32,
    /// Bits that the peer's window is to be shifted by.
    pub(crate) window_scale: u8,
    /// The peer's window when it went away, in bytes.
    pub(crate) window: u32,
    /// Payload of a full-sized segment of the live end's, in bytes.
    pub(crate) segment: u32,
    /// Bytes from `base` on that the live end had sent already when the peer went away: it may have some.
    #[serde(default)]
    pub(crate) flight: u32,
    /// Bytes from `base` on that the peer is known to have, from when it was back for a moment.
    #[serde(default)]
    pub(crate) delivered: u64,
}

impl Note {
    /// Whose it is.
    pub(crate) fn flow(&self) -> FlowTuple {
        FlowTuple { transport: Transport::Tcp, local: self.local, remote: self.remote }
    }
}

/// The files of one flow.
#[derive(Debug)]
pub(crate) struct Store {
    note: PathBuf,
    kept: Stream,
    answers: Stream,
}

/// A file that only grows.
#[derive(Debug)]
struct Stream {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Stream {
    fn open(path: PathBuf, fresh: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).read(true).write(true).truncate(fresh).mode(0o600);
        let file = options.open(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { path, file, length })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Where half of it was written by a call that failed it is written over.
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX).min(most);
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

impl Store {
    /// Begins: what an absence before has left is thrown away.
    pub(crate) fn create(dir: &Path, note: &Note) -> io::Result<Self> {
        let store = Self::open(dir, note, true)?;
        store.save(note)?;
        Ok(store)
    }

    /// Goes on with what is there.
    pub(crate) fn reopen(dir: &Path, note: &Note) -> io::Result<Self> {
        Self::open(dir, note, false)
    }

    fn open(dir: &Path, note: &Note, fresh: bool) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = |extension: &str| dir.join(format!("{}.{extension}", name_of(note)));
        let kept = Stream::open(path("kept"), fresh)?;
        Ok(Self { note: path("json"), kept, answers: Stream::open(path("answers"), fresh)? })
    }

    /// Puts another note in the place of the last.
    pub(crate) fn save(&self, note: &Note) -> io::Result<()> {
        replace(&self.note, &serde_json::to_vec(note)?)
    }

    /// The notes in a directory. One that cannot be read is left out, with what belongs to it.
    pub(crate) fn notes(dir: &Path) -> Vec<Note> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let notes = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let read = |path: PathBuf| {
            let note = fs::read(&path).map_err(|error| error.to_string());
            match note.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string())) {
                Ok(note) => Some(note),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "what was kept for a connection cannot be read");
                    None
                }
            }
        };
        notes.filter_map(read).collect()
    }

    pub(crate) fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.kept.append(bytes)
    }

    pub(crate) fn answer(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.answers.append(bytes)
    }

    /// Bytes that are kept.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.length
    }

    /// Bytes that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answers.length
    }

    pub(crate) fn read_kept(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        self.kept.read(at, most)
    }

    pub(crate) fn read_answers(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        self.answers.read(at, most)
    }

    /// The first note of what comes after an absence, and the bytes of that absence are not needed any more. In this
    /// order: a note that is read with the bytes of before counts them twice.
    pub(crate) fn begin_anew(&mut self, note: &Note) -> io::Result<()> {
        // A note that is over counts no bytes.
        self.save(note)?;
        for stream in [&mut self.kept, &mut self.answers] {
            stream.file.set_len(0)?;
            stream.length = 0;
        }
        Ok(())
    }

    /// Nobody needs any of it any more.
    pub(crate) fn remove(self) {
        for path in [&self.note, &self.kept.path, &self.answers.path] {
            let _ = fs::remove_file(path);
        }
    }
}

/// A name that is a file's: of each connection another.
fn name_of(note: &Note) -> String {
    let end = |end: SocketAddr| {
        let address: String = end.ip().to_string().chars().map(|c| if c == ':' { '_' } else { c }).collect();
        format!("{address}-{}", end.port())
    };
    format!("{}-{}", end(note.local), end(note.remote))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(port: u16) -> Note {
        Note {
            local: SocketAddr::new("2001:db8::1".parse().expect("address"), port),
            remote: "192.0.2.1:22".parse().expect("endpoint"),
            helper: "irc".into(),
            progress: Progress::Helping,
            base: 1,
            start: 2,
            before: 3,
            window_scale: 7,
            flight: 0,
            delivered: 0,
            window: 65535,
            segment: 1448,
        }
    }

    #[test]
    fn what_was_stored_is_there_after_a_kill() {
        let dir = std::env::temp_dir().join(format!("whimbrel-store-{}", std::process::id()));
        assert!(Store::notes(&dir).is_empty());
        let mut store = Store::create(&dir, &note(7)).expect("created");
        store.keep(b"PING :x").expect("kept");
        store.keep(b"\r\nmore").expect("kept");
        store.answer(b"PONG :x\r\n").expect("answered");
        store.save(&Note { progress: Progress::Finishing, ..note(7) }).expect("saved");
        drop(Store::create(&dir, &note(8)).expect("created"));
        std::mem::forget(store);

        let mut notes = Store::notes(&dir);
        notes.sort_by_key(|note| note.local.port());
        assert_eq!(notes, [Note { progress: Progress::Finishing, ..note(7) }, note(8)]);
        let store = Store::reopen(&dir, &notes[0]).expect("opened");
        assert_eq!((store.kept(), store.answered()), (13, 9));
        assert_eq!(store.read_kept(5, 4).expect("read"), b":x\r\n");
        assert_eq!(store.read_kept(9, 100).expect("read"), b"more");
        assert_eq!(store.read_answers(20, 100).expect("read"), b"");
        store.remove();
        // A note that was torn is no note.
        fs::write(dir.join("torn.json"), b"{\"local\":").expect("written");
        assert_eq!(Store::notes(&dir), [note(8)]);
        // An absence begins with nothing.
        let again = Store::create(&dir, &note(8)).expect("created");
        assert_eq!((again.kept(), again.answered()), (0, 0));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
