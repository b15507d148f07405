//! What was in a socket that has not gone on at the host that has it: its donor keeps that for people to find (decision
//! 0041).

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use whimbrel_ipc::Uuid;
use whimbrel_protocol::MoveName;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::{Body, Snapshot};

/// The directory, in that of what lasts.
const DIRECTORY: &str = "lost";
/// So many files are kept, and so many bytes in all; the oldest give way.
const MOST_FILES: usize = 32;
const MOST_BYTES: u64 = 64 << 20;
const MOST_UNHEARD: usize = 256;
/// Names that are tried.
const MOST_NAMES: u128 = 1000;

/// Writes down what a socket has not said for certain (`.unsent`), what its program has not read (`.unread`), and what
/// that had handed over with it (`.state`), each to a file of its own where there is any. Only root reads them.
///
/// # Errors
/// They could not be written, or are longer than what is kept in all. None of them is there then.
pub(crate) fn keep(state_dir: &Path, uuid: &Uuid, snapshot: &[u8]) -> io::Result<Vec<PathBuf>> {
    let snapshot = Snapshot::decode(snapshot).map_err(|why| io::Error::other(why.to_string()))?;
    let (unsent, unread) = match snapshot.body {
        Body::Stream(stream) => (stream.send.bytes, stream.receive.bytes),
        Body::Datagram(datagrams) => {
            (Vec::new(), datagrams.queue.into_iter().flat_map(|queued| queued.bytes).collect())
        }
        Body::Listening { .. } => (Vec::new(), Vec::new()),
    };
    let state = snapshot.metadata.map(|metadata| metadata.state).unwrap_or_default();
    let parts = [("unsent", unsent), ("unread", unread), ("state", state)];
    let parts: Vec<_> = parts.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let bytes: u64 = parts.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if bytes > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is more than is kept of such"));
    }
    let directory = state_dir.join(DIRECTORY);
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    make_room(&directory, MOST_FILES - parts.len(), MOST_BYTES - bytes)?;
    // In the order of time, so that it is seen which are the oldest.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    for now in now..now + MOST_NAMES {
        let named = parts.iter().map(|(kind, bytes)| (directory.join(format!("{now:015}-{uuid}.{kind}")), bytes));
        match write_all(named) {
            // Another socket's, of the same moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Makes these files: all or none. They are not waited for to be on the disk, since connections wait meanwhile.
fn write_all<'a>(files: impl Iterator<Item = (PathBuf, &'a Vec<u8>)>) -> io::Result<Vec<PathBuf>> {
    let mut made: Vec<PathBuf> = Vec::new();
    for (path, bytes) in files {
        let written = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path).and_then(|mut file| {
            made.push(path);
            file.write_all(bytes)
        });
        if let Err(error) = written {
            made.iter().for_each(|path| drop(fs::remove_file(path)));
            return Err(error);
        }
    }
    Ok(made)
}

/// What was kept of sockets of which their new hosts have not said yet whether they go on.
#[derive(Debug, Default)]
pub(crate) struct Unheard(VecDeque<(MoveName, Option<FlowTuple>, Vec<PathBuf>)>);

impl Unheard {
    pub(crate) fn add(&mut self, name: MoveName, flow: Option<FlowTuple>, files: &[PathBuf]) {
        // Files of more than these are not there any more either.
        if self.0.len() >= MOST_UNHEARD {
            self.0.pop_front();
        }
        self.0.push_back((name, flow, files.to_vec()));
    }

    /// The connection, and the files, of which those that have given way are left out.
    pub(crate) fn take(&mut self, name: &MoveName) -> (Option<FlowTuple>, Vec<PathBuf>) {
        let at = self.0.iter().position(|(of, ..)| of == name);
        let Some((_, flow, mut files)) = at.and_then(|at| self.0.remove(at)) else { return (None, Vec::new()) };
        files.retain(|file| file.exists());
        (flow, files)
    }
}

/// Of no use any more.
pub(crate) fn remove(files: &[PathBuf]) {
    for file in files {
        if let Err(error) = fs::remove_file(file) {
            tracing::warn!(file = %file.display(), %error, "what was kept of a socket that goes on stays");
        }
    }
}

/// Removes the oldest files until there are no more than these.
fn make_room(directory: &Path, files: usize, bytes: u64) -> io::Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        all.push((entry.file_name(), entry.metadata()?.len()));
    }
    all.sort();
    let mut rest: u64 = all.iter().map(|(_, length)| length).sum();
    let mut count = all.len();
    for (name, length) in all {
        if count <= files && rest <= bytes {
            break;
        }
        fs::remove_file(directory.join(name))?;
        (count, rest) = (count - 1, rest - length);
    }
    Ok(())
}

/// Where what was in it is, for people.
pub(crate) fn sentence(kept: io::Result<Vec<PathBuf>>) -> String {
    match kept {
        Ok(files) if files.is_empty() => "nothing was in it that had not been heard or read".to_owned(),
        Ok(files) => {
            let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
            format!("what may not have been heard, and had not been read, is in {}", files.join(", "))
        }
        Err(error) => format!("what was in it could not be kept: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use whimbrel_wire::snapshot::{Datagrams, Family, Metadata, Queued};

    fn snapshot(length: usize) -> Vec<u8> {
        let from = "198.51.100.7:4000".parse().expect("an endpoint");
        let queue = vec![Queued { from, bytes: vec![7; length] }];
        let snapshot = Snapshot {
            family: Family::Ipv4,
            local: "192.0.2.1:53".parse().expect("an endpoint"),
            body: Body::Datagram(Datagrams { remote: Some(from), queue }),
            shut: whimbrel_wire::snapshot::Shut::default(),
            options: Vec::new(),
            metadata: Some(Metadata { uuid: [1; 16], state: b"frame 17".to_vec() }),
        };
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        bytes
    }

    fn directory() -> PathBuf {
        let path = std::env::temp_dir().join(format!(
            "whimbrel-left-over-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("made");
        path
    }

    #[test]
    fn what_was_in_a_lost_socket_is_roots_to_read() {
        let directory = directory();
        let files = keep(&directory, &Uuid::from_bytes([1; 16]), &snapshot(99)).expect("kept");
        let [unread, state] = &files[..] else { panic!("{files:?}") };
        assert_eq!(fs::read(unread).expect("read"), [7; 99]);
        assert_eq!(fs::read(state).expect("read"), b"frame 17");
        for file in &files {
            assert_eq!(fs::metadata(file).expect("there").permissions().mode() & 0o777, 0o600);
        }
        let said = sentence(Ok(files));
        assert!(said.contains(".unread") && said.contains(".state"), "{said}");
        assert!(keep(&directory, &Uuid::from_bytes([1; 16]), b"no snapshot").is_err());
        fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn files_that_are_there_stay_as_they_are() {
        let directory = directory();
        let (first, second) = (directory.join("first"), directory.join("second"));
        fs::write(&second, b"another's").expect("written");
        let (mine, yours) = (b"mine".to_vec(), b"yours".to_vec());
        let error =
            write_all([(first.clone(), &mine), (second.clone(), &yours)].into_iter()).expect_err("one is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(!first.exists(), "half of it");
        assert_eq!(fs::read(&second).expect("read"), b"another's");
        // Many of one name at the same moment.
        let uuid = Uuid::from_bytes([0; 16]);
        let all: Vec<_> = (0..9u8).map(|_| keep(&directory, &uuid, &snapshot(9)).expect("kept")).collect();
        assert!(all.iter().flatten().all(|path| path.exists()), "{all:?}");
        fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn what_was_kept_of_a_socket_that_goes_on_after_all_goes() {
        let directory = directory();
        let files = keep(&directory, &Uuid::from_bytes([1; 16]), &snapshot(9)).expect("kept");
        let name = |number| MoveName { donor: [1; 32], number };
        let mut unheard = Unheard::default();
        unheard.add(name(1), None, &files);
        unheard.add(name(2), None, &[]);
        assert_eq!(unheard.take(&name(2)), (None, Vec::new()));
        // One has given way.
        fs::remove_file(&files[0]).expect("removed");
        let (_, left) = unheard.take(&name(1));
        assert_eq!(left, files[1..]);
        remove(&left);
        assert!(!files[1].exists());
        assert_eq!(unheard.take(&name(1)), (None, Vec::new()), "it is heard once");
        (0..1000).for_each(|number| unheard.add(name(number), None, &files));
        assert_eq!(unheard.0.len(), MOST_UNHEARD);
        fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn so_much_is_kept_and_no_more() {
        let directory = directory();
        for number in 0..40u8 {
            keep(&directory, &Uuid::from_bytes([number; 16]), &snapshot(65_535)).expect("kept");
        }
        let lost = directory.join(DIRECTORY);
        let count = || fs::read_dir(&lost).expect("there").count();
        assert_eq!(count(), MOST_FILES);
        make_room(&lost, 32, 3 * 65_535).expect("room");
        assert!(count() <= 6, "{}", count());
        fs::remove_dir_all(directory).expect("removed");
    }
}
