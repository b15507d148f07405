//! Kernels and what runs on them, out of Debian's archive: unpacked but not installed.
//!
//! apt works below the target directory here, on lists, a cache and a state of its own, so that another architecture's
//! packages can be had, nothing changes on the machine, and nobody has to be root.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::failure::{Failure, OnObject};

use super::system::{Flavour, Processor};

/// What a guest has beside this build: what scenarios run, and CRIU. What these need comes along.
const USERLAND: &[&str] = &[
    "dash",
    "bash",
    "busybox-static",
    "iproute2",
    "nftables",
    "procps",
    "util-linux",
    "bpftool",
    "criu",
    "python3",
    "libelf1",
    "zlib1g",
    "libgcc-s1",
];

/// What a guest with radios has besides.
const RADIO_USERLAND: &[&str] = &["hostapd", "wpasupplicant", "iw"];

/// What this build is linked with on another processor: headers and static libraries, so nothing of them is needed in
/// the guest.
const LIBRARIES: &[&str] = &["libelf-dev", "zlib1g-dev"];

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

/// apt for one architecture.
#[derive(Debug)]
pub(crate) struct Apt {
    directory: PathBuf,
    processor: Processor,
    config: PathBuf,
}

impl Apt {
    /// Below `directory`.
    pub(crate) fn open(directory: &Path, processor: Processor) -> Result<Self, Failure> {
        let own = directory.join(format!("apt-{}", processor.debian()));
        for part in ["lists/partial", "cache/archives/partial"] {
            let path = own.join(part);
            fs::create_dir_all(&path).failed("make", path.display())?;
        }
        let config = own.join("apt.conf");
        // On a machine where nothing is installed, everything has to be downloaded. Locks are for machines on which
        // something is.
        for (path, content) in [(own.join("status"), String::new()), (config.clone(), configuration(&own, processor))] {
            fs::write(&path, content).failed("write", path.display())?;
        }
        Ok(Self { directory: directory.to_owned(), processor, config })
    }

    /// The newest kernel of a series (`6.1`), downloaded unless it is there already.
    pub(crate) fn kernel(&self, series: &str, flavour: Flavour) -> Result<Kernel, Failure> {
        let listed = || -> Result<String, Failure> {
            let pattern = format!("linux-image-{series}.");
            let names = run(self.command("apt-cache").args(["pkgnames", &pattern]))?;
            let end = flavour.end(self.processor);
            newest(&String::from_utf8_lossy(&names.stdout), series, &end).ok_or_else(|| {
                Failure::new(format!(
                    "apt finds no linux-image-{series}.*{end} in this machine's sources; those of bookworm-security have \
                     both 6.1 and 6.12"
                ))
            })
        };
        self.with_lists(|| {
            let package = listed()?;
            let release = package.trim_start_matches("linux-image-").to_owned();
            let unpacked = self.directory.join(&release);
            let kernel = Kernel {
                image: unpacked.join(format!("boot/vmlinuz-{release}")),
                modules: unpacked.join("lib/modules").join(&release),
                release,
            };
            // Written last, so its presence says that the rest is whole.
            if !kernel.modules.join("modules.dep").is_file() {
                self.unpack(&["download", &package], &unpacked)?;
                run(Command::new("/sbin/depmod").arg("--basedir").arg(&unpacked).arg(&kernel.release))?;
            }
            Ok(kernel)
        })
    }

    /// The root of all else that a guest runs.
    pub(crate) fn userland(&self, flavour: Flavour) -> Result<PathBuf, Failure> {
        let mut order = vec!["--no-install-recommends", "--download-only", "install"];
        order.extend(USERLAND);
        match flavour {
            Flavour::Cloud => self.tree("userland", &order),
            Flavour::Wifi => {
                order.extend(RADIO_USERLAND);
                self.tree("userland-wifi", &order)
            }
        }
    }

    /// The root of what this build is linked with.
    pub(crate) fn libraries(&self) -> Result<PathBuf, Failure> {
        let mut order = vec!["download"];
        order.extend(LIBRARIES);
        self.tree("libraries", &order)
    }

    /// What apt-get downloads on this order, unpacked at a place of its own unless it is there already.
    fn tree(&self, name: &str, order: &[&str]) -> Result<PathBuf, Failure> {
        let unpacked = self.directory.join(format!("{name}-{}", self.processor.debian()));
        let whole = unpacked.join("whole");
        // What it was made of: another list makes another tree.
        let content = order.join(" ");
        if fs::read_to_string(&whole).is_ok_and(|there| there == content) {
            return Ok(unpacked);
        }
        if unpacked.is_dir() {
            fs::remove_dir_all(&unpacked).failed("remove", unpacked.display())?;
        }
        self.with_lists(|| self.unpack(order, &unpacked))?;
        fs::write(&whole, content).failed("write", whole.display())?;
        Ok(unpacked)
    }

    /// Does something for which the package lists are needed; again with fresh ones if it fails, since the archive has
    /// only what is newest.
    fn with_lists<T>(&self, work: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        work().or_else(|_| {
            // It also complains of sources that have nothing to do with us. What matters is found out below.
            let _ = self.command("apt-get").args(["--quiet", "update"]).status();
            work()
        })
    }

    /// Unpacks what apt-get downloads on this order.
    fn unpack(&self, order: &[&str], to: &Path) -> Result<(), Failure> {
        let archives = self.config.with_file_name("cache").join("archives");
        let debs = || -> Result<Vec<PathBuf>, Failure> {
            let entries = fs::read_dir(&archives).failed("read", archives.display())?;
            let paths = entries.flatten().map(|entry| entry.path());
            Ok(paths.filter(|path| path.extension() == Some(OsStr::new("deb"))).collect())
        };
        // What a run that was interrupted has left may be half of it.
        for left in debs()? {
            fs::remove_file(&left).failed("remove", left.display())?;
        }
        run(self.command("apt-get").args(["--quiet", "--yes"]).args(order).current_dir(&archives))?;
        for deb in debs()? {
            run(Command::new("dpkg-deb").arg("--extract").args([deb.as_path(), to]))?;
            fs::remove_file(&deb).failed("remove", deb.display())?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        command
    }
}

/// apt.conf(5), read before the machine's own, which keeps its sources, keys and proxies.
fn configuration(own: &Path, processor: Processor) -> String {
    let (own, architecture) = (own.display(), processor.debian());
    format!(
        "Dir::State \"{own}\";\nDir::State::status \"{own}/status\";\nDir::State::lists \"{own}/lists\";\nDir::Cache \"{own}/cache\";\n\
         APT::Architecture \"{architecture}\";\nAPT::Architectures {{ \"{architecture}\"; }};\nAPT::Sandbox::User \"root\";\n\
         Debug::NoLocking \"true\";\nAcquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n"
    )
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

impl Flavour {
    /// What the names of such kernels end with.
    fn end(self, processor: Processor) -> String {
        match self {
            Self::Cloud => format!("-cloud-{}", processor.debian()),
            Self::Wifi => format!("-{}", processor.debian()),
        }
    }
}

/// Of apt's package names, the signed kernel with the highest version: of those with nothing but that between series
/// and end.
fn newest(names: &str, series: &str, end: &str) -> Option<String> {
    let version = |name: &str| -> Option<Vec<u64>> {
        let version = name.strip_prefix(&format!("linux-image-{series}."))?.strip_suffix(end)?;
        // Others have a word more: `cloud`, `rt`.
        if version.split('-').skip(1).any(|part| part.starts_with(|c: char| c.is_ascii_alphabetic())) {
            return None;
        }
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
                     linux-image-6.1.0-99-cloud-amd64-unsigned\nlinux-image-6.12.117+deb12-cloud-amd64\n\
                     linux-image-6.1.0-55-cloud-arm64\nlinux-image-6.1.0-61-rt-amd64\n";
        let newest = |series| super::newest(names, series, &Flavour::Cloud.end(Processor::X86));
        assert_eq!(newest("6.1").as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(newest("6.12").as_deref(), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(newest("5.10"), None);
        let other = |flavour: Flavour, processor| super::newest(names, "6.1", &flavour.end(processor));
        assert_eq!(other(Flavour::Cloud, Processor::Arm).as_deref(), Some("linux-image-6.1.0-55-cloud-arm64"));
        assert_eq!(other(Flavour::Wifi, Processor::X86).as_deref(), Some("linux-image-6.1.0-60-amd64"));
    }
}
