//! Whole processes that change hosts (decision 0020): what CRIU is asked to do, and what is sent of them.
//!
//! ```text
//! criu.rs      running it, and telling what it has rebuilt its fate
//! helper.rs    the process that does
//! load.rs      what goes ahead of a process, and its images, as bytes
//! ```

pub(crate) mod criu;
pub(crate) mod executor;
pub(crate) mod helper;
pub(crate) mod load;
pub(crate) mod tool;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What is kept of processes on their way, in the run directory.
pub(crate) fn directory(run_dir: &Path) -> PathBuf {
    run_dir.join("processes")
}

/// Where the images are that were made while the process ran, and those that were made of it at rest.
pub(crate) const BEFORE: &str = "before";
pub(crate) const IMAGES: &str = "images";

/// Makes the directory of one process anew, readable for nobody else: there is all its memory in it.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    remove(path)?;
    for part in [BEFORE, IMAGES] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join(part))?;
    }
    Ok(())
}

/// Removes it, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
