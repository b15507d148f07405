//! What goes ahead of a process, and its images, as bytes.
//!
//! A load is the length of the manifest (4 bytes, big-endian), the manifest (JSON), and an archive of the images that
//! were made while the process ran. The snapshot of its first connection is an archive of those that were made of it at
//! rest. An archive is, for each file, the length of its name (2), its name, its length (8), and its bytes. Beside
//! CRIU's files there is one for each UDP socket in whose queue something waited, a snapshot of it (docs/snapshot.md).

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use whimbrel_wire::snapshot::{MAX_LEN, Snapshot};

/// Longest manifest, in bytes.
const MANIFEST_MOST: usize = 4 << 20;

/// What an acceptor has to know of a process before its connections come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// CRIU's version at the donor: an older one may not read its images.
    pub(crate) criu: String,
    /// Of the machine, as Rust calls it: images are of one kind of processor.
    pub(crate) architecture: String,
    /// The program's name.
    pub(crate) name: String,
    /// The numbers of the processes, as they see them themselves, the first first.
    pub(crate) pids: Vec<u32>,
    /// The first is no leader of a session.
    pub(crate) job: bool,
    /// One has a UNIX datagram socket whose other end stays.
    pub(crate) talks: bool,
    /// Files that they need, with the lengths of those that have one and that they do not write to.
    pub(crate) files: Vec<(PathBuf, Option<u64>)>,
    /// Images were made while they ran.
    pub(crate) before: bool,
}

/// Bytes that are no load, or no archive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadLoad {
    #[error("what was sent of the process does not fit together")]
    Malformed,
    #[error("what was sent of the process cannot be written down: {0}")]
    Io(#[from] io::Error),
}

/// How the files begin that hold queues of UDP sockets. CRIU has none of such a name.
const QUEUE: &str = "whimbrel-queue-";

/// Writes queues of sockets beside the images.
pub(crate) fn write_queues(queues: &[Snapshot], images: &Path) -> io::Result<()> {
    for (number, snapshot) in queues.iter().enumerate() {
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        fs::write(images.join(format!("{QUEUE}{number}.img")), bytes)?;
    }
    Ok(())
}

/// Reads them. One that does not fit together is left out: datagrams may be lost.
pub(crate) fn read_queues(images: &Path) -> Vec<Snapshot> {
    let entries = fs::read_dir(images).into_iter().flatten().flatten();
    let queues = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(QUEUE)));
    queues.filter_map(|entry| Snapshot::decode(&fs::read(entry.path()).ok()?).ok()).collect()
}

/// Puts a load together.
pub(crate) fn pack(manifest: &Manifest, images: &Path) -> Result<Vec<u8>, String> {
    let text = serde_json::to_vec(manifest).map_err(|error| error.to_string())?;
    let length = u32::try_from(text.len()).map_err(|_| "it needs too many files".to_owned())?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(text);
    archive(images, &mut bytes)?;
    Ok(bytes)
}

/// Takes a load apart, and writes the images to `images`.
pub(crate) fn unpack(bytes: &[u8], images: &Path) -> Result<Manifest, BadLoad> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(BadLoad::Malformed)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (text, archived) = rest.split_at_checked(length.min(MANIFEST_MOST)).ok_or(BadLoad::Malformed)?;
    let manifest: Manifest = serde_json::from_slice(text).map_err(|_| BadLoad::Malformed)?;
    if manifest.pids.is_empty() {
        return Err(BadLoad::Malformed);
    }
    extract(archived, images)?;
    Ok(manifest)
}

/// Appends the image files of a directory. What CRIU logs is left out, and what it counts.
pub(crate) fn archive(images: &Path, bytes: &mut Vec<u8>) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("its images cannot be read: {error}");
    for entry in fs::read_dir(images).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if !entry.file_type().map_err(unreadable)?.is_file() || !name.ends_with(".img") {
            continue;
        }
        let content = fs::read(entry.path()).map_err(unreadable)?;
        if bytes.len() + content.len() > MAX_LEN {
            return Err(format!("it has more memory than can be sent at a time ({} MiB)", MAX_LEN >> 20));
        }
        bytes.extend((name.len() as u16).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((content.len() as u64).to_be_bytes());
        bytes.extend(content);
    }
    Ok(())
}

/// Writes the files of an archive to a directory.
pub(crate) fn extract(mut bytes: &[u8], images: &Path) -> Result<(), BadLoad> {
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<2>().ok_or(BadLoad::Malformed)?;
        let (name, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into()).ok_or(BadLoad::Malformed)?;
        let (length, rest) = rest.split_first_chunk::<8>().ok_or(BadLoad::Malformed)?;
        let length = usize::try_from(u64::from_be_bytes(*length)).map_err(|_| BadLoad::Malformed)?;
        let (content, rest) = rest.split_at_checked(length).ok_or(BadLoad::Malformed)?;
        let name = std::str::from_utf8(name).map_err(|_| BadLoad::Malformed)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.chars().all(plain) || name.starts_with('.') || !name.ends_with(".img") {
            return Err(BadLoad::Malformed);
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(images.join(name))?;
        file.write_all(content)?;
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            criu: "3.17.1".into(),
            architecture: "x86_64".into(),
            name: "walker".into(),
            pids: vec![7],
            job: false,
            talks: false,
            files: vec![("/bin/sh".into(), Some(9)), ("/".into(), None)],
            before: true,
        }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("whimbrel-load-{name}-{}", std::process::id()));
            crate::role::relocation::process::make(&path).expect("directory");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = crate::role::relocation::process::remove(&self.0);
        }
    }

    #[test]
    fn a_load_comes_out_as_it_went_in() {
        let (from, to) = (Folder::new("from"), Folder::new("to"));
        let images = from.0.join(super::super::BEFORE);
        fs::write(images.join("pages-1.img"), [7; 5000]).expect("write");
        fs::write(images.join("empty.img"), []).expect("write");
        fs::write(images.join("dump.log"), "not this").expect("write");
        let bytes = pack(&manifest(), &images).expect("pack");
        let there = to.0.join(super::super::BEFORE);
        let read = unpack(&bytes, &there).expect("unpack");
        assert_eq!(read, manifest());
        assert_eq!(fs::read(there.join("pages-1.img")).expect("read"), [7; 5000]);
        assert_eq!(fs::read_dir(&there).expect("directory").count(), 2);
        // Whatever is missing at its end is missed.
        for length in [0, 3, 4, 20, bytes.len() - 1] {
            let other = Folder::new(&format!("cut-{length}"));
            assert!(unpack(&bytes[..length], &other.0.join("images")).is_err(), "{length}");
        }
    }

    #[test]
    fn queues_go_among_the_images() {
        use whimbrel_wire::snapshot::{Body, Datagrams, Family, Queued};
        let (from, to) = (Folder::new("queues-from"), Folder::new("queues-to"));
        let remote = "192.0.2.2:53".parse().expect("endpoint");
        let queue = vec![Queued { from: remote, bytes: b"here".to_vec() }];
        let snapshot = Snapshot {
            family: Family::Ipv4,
            local: "192.0.2.1:4000".parse().expect("endpoint"),
            body: Body::Datagram(Datagrams { remote: Some(remote), queue }),
            shut: whimbrel_wire::snapshot::Shut::default(),
            options: Vec::new(),
            metadata: None,
        };
        write_queues(&[snapshot.clone(), snapshot.clone()], &from.0).expect("write");
        let mut bytes = Vec::new();
        archive(&from.0, &mut bytes).expect("archive");
        extract(&bytes, &to.0).expect("extract");
        assert_eq!(read_queues(&to.0), [snapshot.clone(), snapshot.clone()]);
        fs::write(to.0.join(format!("{QUEUE}0.img")), "no snapshot").expect("write");
        assert_eq!(read_queues(&to.0), [snapshot]);
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let folder = Folder::new("names");
        for name in ["../x.img", "/x.img", ".x.img", "x", "a/b.img", ""] {
            let mut bytes = (name.len() as u16).to_be_bytes().to_vec();
            bytes.extend(name.as_bytes());
            bytes.extend(0u64.to_be_bytes());
            assert!(extract(&bytes, &folder.0).is_err(), "{name}");
        }
        assert!(extract(&[0, 1], &folder.0).is_err());
    }
}
