//! The log of events: each as a line of JSON in a file (`docs/json.md`), for as long as it is kept.
//!
//! A thread of its own writes it, so that a disk that is slow, full or gone holds nothing up but the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use whimbrel_ipc::{EventRecord, Reply, reply_to_line};

/// The log is begun anew when it would be longer than this, in bytes; the one before it is kept.
const LONGEST: u64 = 16 << 20;

/// Lines that wait to be written; more are left out, which the numbers of events show.
const WAITING: usize = 16_384;

/// How long the end of a daemon waits for what is not written yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// A log that is written to.
#[derive(Debug)]
pub(crate) struct EventLog {
    lines: Option<SyncSender<String>>,
    /// Ends when the thread does.
    finished: Receiver<()>,
    leaves_out: bool,
}

impl EventLog {
    /// Goes on with the log at `path`, or begins it.
    ///
    /// # Errors
    /// When it cannot be opened for writing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut log = Log::open(path, LONGEST)?;
        let (lines, waiting) = sync_channel::<String>(WAITING);
        let (done, finished) = sync_channel(1);
        std::thread::Builder::new().name("event log".to_owned()).spawn(move || {
            for line in waiting {
                log.write(&line);
            }
            // Whoever waited for it may have lost patience.
            let _ = done.try_send(());
        })?;
        Ok(Self { lines: Some(lines), finished, leaves_out: false })
    }

    /// Has an event written. Does not wait.
    pub(crate) fn write(&mut self, record: &EventRecord) {
        let (Ok(line), Some(lines)) = (reply_to_line(&Reply::Event(record.clone())), &self.lines) else { return };
        let full = matches!(lines.try_send(line), Err(TrySendError::Full(_)));
        if full && !self.leaves_out {
            tracing::warn!("events come faster than their log can be written; it leaves some out");
        }
        self.leaves_out = full;
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        drop(self.lines.take());
        let _ = self.finished.recv_timeout(PATIENCE);
    }
}

/// The file.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    longest: u64,
    file: File,
    length: u64,
    failed: bool,
}

impl Log {
    fn open(path: &Path, longest: u64) -> io::Result<Self> {
        // Who may read it may see whom this host talks to.
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut length = file.metadata()?.len();
        if length > 0 {
            // A daemon that was killed may have been at a line.
            let mut last = [0];
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                length += 1;
            }
        }
        Ok(Self { path: path.to_owned(), longest, file, length, failed: false })
    }

    fn write(&mut self, line: &str) {
        let result = self.try_write(line);
        if let Err(error) = &result
            && !self.failed
        {
            tracing::warn!(path = %self.path.display(), %error, "the log of events cannot be written; events are left out");
        }
        self.failed = result.is_err();
    }

    fn try_write(&mut self, line: &str) -> io::Result<()> {
        if self.length > 0 && self.length + line.len() as u64 > self.longest {
            let mut former = self.path.clone().into_os_string();
            former.push(".1");
            fs::rename(&self.path, former)?;
            *self = Self::open(&self.path, self.longest)?;
        }
        self.file.write_all(line.as_bytes())?;
        self.length += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use whimbrel_ipc::reply_from_line;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("whimbrel-event-log-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(number: u64) -> EventRecord {
        EventRecord {
            number,
            time: "2026-01-31T23:59:58.007Z".into(),
            monotonic_ms: 1,
            kind: "test".into(),
            sentence: "something".into(),
            fields: serde_json::Map::new(),
        }
    }

    #[test]
    fn what_is_written_is_what_is_told() {
        let folder = Folder::new("told");
        let path = folder.0.join("events.jsonl");
        for life in 0..2 {
            let mut log = EventLog::open(&path).expect("a log");
            (1..=3).for_each(|number| log.write(&record(number + life)));
        }
        let text = fs::read_to_string(&path).expect("text");
        let told: Vec<_> = text.lines().map(|line| reply_from_line(line).expect("a reply")).collect();
        assert_eq!(told, [1, 2, 3, 2, 3, 4].map(|number| Reply::Event(record(number))));
        assert_eq!(fs::metadata(&path).expect("stat").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_a_killed_daemon_began_is_ended() {
        let folder = Folder::new("killed");
        let path = folder.0.join("events.jsonl");
        fs::write(&path, "{\"schema\":1,\"event\":{\"num").expect("write");
        Log::open(&path, LONGEST).expect("a log").write("whole\n");
        assert_eq!(fs::read_to_string(&path).expect("text"), "{\"schema\":1,\"event\":{\"num\nwhole\n");
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let folder = Folder::new("long");
        let path = folder.0.join("events.jsonl");
        let mut log = Log::open(&path, 100).expect("a log");
        (0..100).for_each(|n| log.write(&format!("{n:09}\n")));
        assert_eq!(fs::metadata(&path).expect("stat").len(), 100);
        assert_eq!(fs::metadata(folder.0.join("events.jsonl.1")).expect("stat").len(), 100);
        assert!(fs::read_to_string(&path).expect("text").ends_with("000000099\n"));
        assert_eq!(fs::read_dir(&folder.0).expect("folder").count(), 2);
    }

    #[test]
    fn a_disk_that_is_full_ends_nothing() {
        let mut log = EventLog::open(Path::new("/dev/full")).expect("a log");
        (0..10).for_each(|number| log.write(&record(number)));
    }
}
