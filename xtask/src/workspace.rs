//! Where things are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, OnObject};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Where cargo builds to.
pub(crate) fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> String {
    env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// All files below a directory with this extension, sorted; none where there is no such directory.
pub(crate) fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        if !directory.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&directory).failed("read", directory.display())? {
            let path = entry.failed("read", directory.display())?.path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
