//! Files of the daemon's own that are written as a whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What could not be done with which file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// Puts a file in the place of the one that is there, which stays until that is whole.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, false)
}

/// The same, for what is to be there when the power fails right after.
pub(crate) fn replace_for_good(path: &Path, content: &[u8]) -> Result<(), FileError> {
    write(path, content, true).map_err(FileError::of("write", path))
}

/// The same, for what nobody else may read: a file that was left half-written may be open to others.
pub(crate) fn replace_secret(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let _ = remove(&path.with_extension("new"));
    replace_for_good(path, content)
}

fn write(path: &Path, content: &[u8], sync: bool) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    if sync {
        file.sync_all()?;
    }
    fs::rename(&fresh, path)
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
