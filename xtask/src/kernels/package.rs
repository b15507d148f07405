//! Kernels out of Debian's archive, unpacked but not installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::failure::{Failure, OnObject};

/// A kernel that is there to be booted.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As `uname -r` says it.
    pub(crate) release: String,
    /// What is booted.
    pub(crate) image: PathBuf,
    /// `lib/modules/RELEASE`.
    pub(crate) modules: PathBuf,
}

/// The newest cloud kernel of a series (`6.1`), downloaded unless it is there already.
pub(crate) fn get(directory: &Path, series: &str) -> Result<Kernel, Failure> {
    let package = match listed(series)? {
        Some(package) => package,
        None => {
            // Images of containers come without lists. Only root may fetch them; others are told below.
            let _ = Command::new("apt-get").args(["--quiet", "update"]).status();
            listed(series)?.ok_or_else(|| {
                Failure::new(format!(
                    "the package lists have no linux-image-{series}.*-cloud-amd64. Renew them with `apt-get update`; \
                     bookworm-security has both 6.1 and 6.12."
                ))
            })?
        }
    };
    let release = package.trim_start_matches("linux-image-").to_owned();
    let unpacked = directory.join(&release);
    let kernel = Kernel {
        image: unpacked.join(format!("boot/vmlinuz-{release}")),
        modules: unpacked.join("lib/modules").join(&release),
        release,
    };
    // Written last, so its presence says that the rest is whole.
    if !kernel.modules.join("modules.dep").is_file() {
        let deb = download(directory, &package)?;
        run(Command::new("dpkg-deb").arg("--extract").args([&deb, &unpacked]))?;
        fs::remove_file(&deb).failed("remove", deb.display())?;
        run(Command::new("/sbin/depmod").arg("--basedir").arg(&unpacked).arg(&kernel.release))?;
    }
    Ok(kernel)
}

/// CRIU, and those of its libraries that few machines have.
const CRIU: [&str; 6] = ["criu", "libnet1", "libprotobuf-c1", "libnl-3-200", "libbsd0", "libmd0"];

/// Where CRIU is unpacked, downloaded unless it is there already.
pub(crate) fn criu(directory: &Path) -> Result<PathBuf, Failure> {
    let (unpacked, whole) = (directory.join("criu"), directory.join("criu/whole"));
    if !whole.is_file() {
        for package in CRIU {
            let deb = download(directory, package)?;
            run(Command::new("dpkg-deb").arg("--extract").args([&deb, &unpacked]))?;
            fs::remove_file(&deb).failed("remove", deb.display())?;
        }
        // Written last, so its presence says that the rest is whole.
        fs::write(&whole, "").failed("write", whole.display())?;
    }
    Ok(unpacked)
}

/// The newest package of a series that apt knows of.
fn listed(series: &str) -> Result<Option<String>, Failure> {
    let names = run(Command::new("apt-cache").args(["pkgnames", &format!("linux-image-{series}.")]))?;
    Ok(newest(&String::from_utf8_lossy(&names.stdout), series))
}

fn download(directory: &Path, package: &str) -> Result<PathBuf, Failure> {
    let found = || -> Result<Vec<PathBuf>, Failure> {
        let is_it = |path: &PathBuf| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
        };
        let entries = fs::read_dir(directory).failed("read", directory.display())?;
        Ok(entries.flatten().map(|entry| entry.path()).filter(is_it).collect())
    };
    // What a run that was interrupted has left may be half of it.
    for left in found()? {
        fs::remove_file(&left).failed("remove", left.display())?;
    }
    run(Command::new("apt-get").args(["--quiet", "download", package]).current_dir(directory))?;
    found()?.pop().ok_or_else(|| {
        Failure::new(format!("apt-get downloaded {package}, but left no package in {}", directory.display()))
    })
}

fn run(command: &mut Command) -> Result<Output, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().failed("run", &program)?;
    if output.status.success() {
        return Ok(output);
    }
    let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!("{program} {} failed: {said}", arguments.join(" "))))
}

/// Of apt's package names, the signed cloud kernel with the highest version.
fn newest(names: &str, series: &str) -> Option<String> {
    let version = |name: &str| -> Option<Vec<u64>> {
        let version = name.strip_prefix(&format!("linux-image-{series}."))?.strip_suffix("-cloud-amd64")?;
        let numbers = version.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
        Some(numbers.map(|number| number.parse().unwrap_or(0)).collect())
    };
    names.lines().filter_map(|name| Some((version(name)?, name))).max().map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-56-cloud-amd64\nlinux-image-6.1.0-60-amd64\n\
                     linux-image-6.1.0-99-cloud-amd64-unsigned\nlinux-image-6.12.117+deb12-cloud-amd64\n";
        assert_eq!(newest(names, "6.1").as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(newest(names, "6.12").as_deref(), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(newest(names, "5.10"), None);
    }
}
