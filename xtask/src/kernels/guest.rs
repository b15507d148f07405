//! The guest's root file system and its one script.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::{Failure, OnObject};

use super::archive::Archive;
use super::package::Kernel;
use super::system::{Flavour, Processor};

/// Where Debian has programs and their libraries; the rest of its packages is for people.
const USED: &[&str] = &["bin", "sbin", "lib", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/libexec"];

/// What is large and never used in a guest. Names of files and directories.
const UNUSED: &[&str] =
    &["perl", "perl-base", "perl5", "gconv", "locale", "systemd", "dpkg", "apt", "idlelib", "pydoc_data", "lib2to3"];

/// Modules of Debian's kernels that Whimbrel or the lab use; what is built in is left out, what is not there complained
/// of.
const MODULES: &[&str] = &[
    "veth",
    "tun",
    "bridge",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "sch_htb",
    "sch_tbf",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
    "netlink_diag",
    "af_packet_diag",
    "raw_diag",
    "nf_tables",
    "nf_conntrack",
    "nf_nat",
    "nft_chain_nat",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_limit",
    "nft_numgen",
    "nft_reject",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "tcp_bbr",
];

/// What a guest with radios has besides: three of them, what encrypts their frames, and first of all what clouds'
/// kernels have built in and the rest asks for without naming it.
const RADIO_MODULES: &[&str] = &["crc32c_generic", "mac80211_hwsim", "ccm", "ctr"];

/// What a module is told when it is loaded.
const PARAMETERS: &[(&str, &str)] = &[("mac80211_hwsim.ko", "radios=3")];

/// Where the host's directories lie in the guest, which has the merged /usr of Debian.
const LINKS: &[(&str, &str)] = &[("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:w:/:/bin/false\nsshd:x:100:65534:s:/run/sshd:/bin/false\n\
     nobody:x:65534:65534:n:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n";

/// One thing to do in the guest.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// A word.
    pub(crate) name: String,
    /// For its shell.
    pub(crate) command: String,
}

/// All that makes a guest.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Whose programs they all are.
    pub(crate) processor: Processor,
    pub(crate) flavour: Flavour,
    /// Where Debian's packages are unpacked.
    pub(crate) userland: &'a Path,
    /// To `/usr/local/bin`.
    pub(crate) commands: &'a [PathBuf],
    /// To `/tests`.
    pub(crate) tests: &'a [(String, PathBuf)],
    pub(crate) steps: &'a [Step],
    /// A step that takes longer is killed, and the next one follows.
    pub(crate) limit: Duration,
    /// A file that may be written and removed meanwhile.
    pub(crate) scratch: &'a Path,
}

impl Guest<'_> {
    /// Writes the initramfs.
    pub(crate) fn write(&self, out: impl Write) -> Result<(), Failure> {
        let mut tree = Tree::default();
        for (link, to) in LINKS {
            tree.links.insert((*link).to_owned(), (*to).to_owned());
        }
        tree.add_userland(self.userland)?;
        // Busybox's own shell would prefer its own `ip`.
        tree.links.insert("usr/bin/sh".into(), "/usr/bin/dash".into());
        for directory in [
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
            "mnt",
            "root",
            "var/log/nginx",
            "var/lib/nginx",
            "opt/busybox",
            "modules",
        ] {
            tree.directory(directory);
        }
        for command in self.commands {
            tree.add_built(command, "usr/local/bin", self.processor, self.scratch)?;
        }
        for (_, test) in self.tests {
            tree.add_built(test, "tests", self.processor, self.scratch)?;
        }
        let radios = if self.flavour == Flavour::Wifi { RADIO_MODULES } else { &[] };
        let modules = self.kernel.modules_in_order(&[radios, MODULES].concat())?;
        let mut loads = String::new();
        for module in &modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy().trim_end_matches(".xz").to_owned();
            tree.files.insert(format!("modules/{name}"), unpacked(module)?);
            let told = PARAMETERS.iter().find(|(module, _)| *module == name).map_or("", |(_, told)| told);
            loads.push_str(&format!("insmod /modules/{name} {told} || echo 'guest: cannot load {name}'\n"));
        }
        tree.files.insert("etc/passwd".into(), PASSWD.into());
        tree.files.insert("etc/group".into(), GROUP.into());
        tree.files.insert("etc/hosts".into(), b"127.0.0.1 localhost\n::1 localhost\n".into());
        tree.files.insert("init".into(), self.script(&loads).into_bytes());
        tree.write(out).failed("write", "an initramfs")
    }

    fn script(&self, loads: &str) -> String {
        let mut script = format!(
            "\
#!/usr/bin/sh
/usr/bin/busybox --install -s /opt/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/opt/busybox HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /run/netns /run/sshd /run/whimbrel-lab
{loads}ip link set lo up
hostname guest
ulimit -n 65536
export WHIMBREL_LAB_PATIENCE=10
# What is shown of the kernel's log after a failure is not of the boot.
dmesg -c >/dev/null
step() {{
	name=$1
	shift
	echo \"guest: run $name\"
	timeout -s KILL {limit} \"$@\"
	status=$?
	if [ $status = 0 ]; then
		echo \"guest: PASS $name\"
		return
	fi
	# What was killed has left its logs.
	find /run/whimbrel-lab -name '*.err' -size +0 | while read -r log; do
		echo \"--- end of $log:\"
		tail -n 30 \"$log\"
	done
	[ ! -x /usr/local/bin/whimbrel-lab ] || whimbrel-lab clean
	echo '--- end of the kernel log:'
	dmesg | tail -n 15
	if [ $status = 137 ]; then why='killed: it took longer than {limit} s'; else why=\"exit status $status\"; fi
	echo \"guest: FAIL $name ($why)\"
}}
",
            limit = self.limit.as_secs(),
        );
        for step in self.steps {
            script.push_str(&format!("step {} {}\n", step.name, step.command));
        }
        script.push_str("poweroff -f\n");
        script
    }
}

/// What a line of the guest's console says of a step, and whether it went well.
pub(crate) fn result(line: &str) -> Option<(&str, bool)> {
    // The console may still hold part of a line of somebody else's.
    let (_, line) = line.split_once("guest: ")?;
    let mut words = line.split_whitespace();
    let passed = match words.next()? {
        "PASS" => true,
        "FAIL" => false,
        _ => return None,
    };
    Some((words.next()?, passed))
}

impl Kernel {
    /// The modules with all that they need, each after what it needs.
    fn modules_in_order(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        let read = |name: &str| {
            let path = self.modules.join(name);
            fs::read_to_string(&path).failed("read", path.display())
        };
        let (needs, builtin) = (read("modules.dep")?, read("modules.builtin")?);
        let (modules, missing) = in_order(&needs, &builtin, wanted);
        for name in missing {
            println!("{} has no module {name}", self.release);
        }
        Ok(modules.iter().map(|module| self.modules.join(module)).collect())
    }
}

/// From `modules.dep` (depmod(8)): the files to load in order, and those wanted that are neither there nor built in.
fn in_order<'a>(needs: &'a str, builtin: &str, wanted: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let needs: BTreeMap<&str, Vec<&str>> = needs
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    let name = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().unwrap_or_default().replace('-', "_")
    };
    let builtin: BTreeSet<String> = builtin.lines().map(name).collect();
    let mut order: Vec<&str> = Vec::new();
    let mut missing = Vec::new();
    for wanted in wanted {
        match needs.iter().find(|(module, _)| name(module) == *wanted) {
            Some((module, needs)) => {
                // The list of a module is whole, and what stands last has to be loaded first.
                for path in needs.iter().rev().chain([module]) {
                    if !order.contains(path) {
                        order.push(path);
                    }
                }
            }
            None if builtin.contains(*wanted) => {}
            None => missing.push(*wanted),
        }
    }
    (order, missing)
}

/// What goes into the archive, by path without a leading slash.
#[derive(Debug, Default)]
struct Tree {
    directories: BTreeSet<String>,
    files: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
}

impl Tree {
    fn directory(&mut self, path: &str) {
        self.directories.extend(ancestors(path));
        self.directories.insert(path.to_owned());
    }

    /// Debian's programs and libraries.
    fn add_userland(&mut self, root: &Path) -> Result<(), Failure> {
        let mut open: Vec<PathBuf> = USED.iter().map(PathBuf::from).collect();
        while let Some(place) = open.pop() {
            let path = root.join(&place);
            let Ok(kind) = path.symlink_metadata().map(|metadata| metadata.file_type()) else { continue };
            let unused = |name: &OsStr| UNUSED.iter().any(|unused| name == *unused);
            if place.file_name().is_some_and(unused) {
                continue;
            }
            if kind.is_dir() {
                for entry in fs::read_dir(&path).failed("read", path.display())? {
                    open.push(place.join(entry.failed("read", path.display())?.file_name()));
                }
            } else if kind.is_symlink() {
                let to = fs::read_link(&path).failed("read", path.display())?;
                self.links.insert(merged(&place), to.display().to_string());
            } else {
                self.files.insert(merged(&place), fs::read(&path).failed("read", path.display())?);
            }
        }
        // What leads from one of the merged places to the other leads to itself now.
        self.links.retain(|place, _| !self.files.contains_key(place));
        Ok(())
    }

    /// A program of this build, without what is only for debuggers.
    fn add_built(
        &mut self,
        program: &Path,
        directory: &str,
        processor: Processor,
        stripped: &Path,
    ) -> Result<(), Failure> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let strip = processor.strip();
        let mut command = Command::new(strip);
        let status = command.arg("--strip-debug").arg("-o").args([stripped, program]).status().failed("run", strip)?;
        if !status.success() {
            return Err(Failure::new(format!("{strip} failed on {}", program.display())));
        }
        let content = fs::read(stripped).failed("read", stripped.display());
        let removed = fs::remove_file(stripped);
        self.files.insert(format!("{directory}/{name}"), content?);
        removed.failed("remove", stripped.display())
    }

    fn write(mut self, out: impl Write) -> io::Result<()> {
        let paths: Vec<String> = self.files.keys().chain(self.links.keys()).cloned().collect();
        for path in &paths {
            self.directories.extend(ancestors(path));
        }
        for (_, to) in LINKS {
            self.directories.insert((*to).to_owned());
        }
        let mut archive = Archive::new(out);
        // In order of their names, so parents come first.
        for directory in &self.directories {
            archive.directory(directory)?;
        }
        for (link, to) in &self.links {
            archive.symlink(link, to)?;
        }
        for (file, content) in &self.files {
            archive.file(file, content)?;
        }
        archive.finish()?;
        Ok(())
    }
}

/// The directories above a path.
fn ancestors(path: &str) -> impl Iterator<Item = String> {
    let path = path.trim_start_matches('/').to_owned();
    let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
    ends.into_iter().map(move |end| path[..end].to_owned())
}

/// Where a file of Debian's lies in the guest, whose /usr is merged.
fn merged(place: &Path) -> String {
    let place = place.display().to_string();
    let moved = LINKS.iter().find_map(|(link, to)| {
        let rest = place.strip_prefix(link)?.strip_prefix('/')?;
        Some(format!("{to}/{rest}"))
    });
    moved.unwrap_or(place)
}

/// A program of this machine in the usual places.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

/// A module's content; newer kernels' are compressed.
fn unpacked(module: &Path) -> Result<Vec<u8>, Failure> {
    if module.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(module).failed("read", module.display());
    }
    let output = Command::new("xz").args(["--decompress", "--stdout"]).arg(module).output().failed("run", "xz")?;
    if !output.status.success() {
        return Err(Failure::new(format!("xz cannot unpack {}", module.display())));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let needs = "kernel/a/nft_masq.ko: kernel/n/nf_nat.ko kernel/c/nf_conntrack.ko\nkernel/n/nf_nat.ko: \
                     kernel/c/nf_conntrack.ko\nkernel/c/nf_conntrack.ko:\nkernel/d/cls-bpf.ko.xz:\n";
        let (order, missing) =
            in_order(needs, "kernel/net/veth.ko\n", &["nft_masq", "nf_nat", "cls_bpf", "veth", "mip6"]);
        let expected =
            ["kernel/c/nf_conntrack.ko", "kernel/n/nf_nat.ko", "kernel/a/nft_masq.ko", "kernel/d/cls-bpf.ko.xz"];
        assert_eq!(order, expected);
        assert_eq!(missing, ["mip6"]);
    }

    #[test]
    fn results_are_found_behind_noise() {
        assert_eq!(result("guest: PASS scenario-x"), Some(("scenario-x", true)));
        assert_eq!(result("[ 3.1] noise guest: FAIL y (exit status 1)"), Some(("y", false)));
        assert_eq!(result("guest: run y"), None);
        assert_eq!(result("PASS y"), None);
    }

    #[test]
    fn merged_places() {
        for (place, in_guest) in
            [("sbin/tc", "usr/sbin/tc"), ("lib64/ld.so", "usr/lib64/ld.so"), ("usr/bin/nsenter", "usr/bin/nsenter")]
        {
            assert_eq!(merged(Path::new(place)), in_guest);
        }
    }
}
