//! Whether CRIU works on this host, without which whole processes are moved neither from it nor to it.
//!
//! It is tried, for versions do not tell: CRIU parses what the kernel gives every process, and an old one refuses a new
//! kernel's layout.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use rustix::io::Errno;
use rustix::net::sockopt;

use whimbrel_ipc::Finding;
use whimbrel_kernel::privilege::{Capabilities, Capability};
use whimbrel_kernel::program::{Inside, Program, Unsuited};

const AREA: &str = "moving processes";
/// What works on every kernel that Whimbrel works on.
const NEWER: &str = "install CRIU 4.2 or newer (that of Debian 12 is older): `./setup test`, beside Whimbrel's source, fetches one from Debian's \
                     unstable archive into /usr/local/lib/whimbrel-test/bin, which is to be in the daemon's PATH; or \
                     build it (https://criu.org)";
const LOST: &str = "whole processes cannot be moved from or to this host; single connections can";

/// What CRIU said of itself.
#[derive(Debug)]
enum Tried {
    /// There is none.
    Absent,
    /// It could not be run.
    Failed(io::Error),
    /// This version was not tried, for that takes privileges.
    Untried(String),
    /// This version finds all that it cannot do without.
    Works(String, Program),
    /// This version seems to, and cannot dump a TCP or UDP socket on this kernel.
    NoSockets(String),
    /// This version does not, and wrote this.
    Refuses(String, String),
}

/// `criu check` leaves only CRIU's cache of what the kernel can. `wanted`: this host is configured to take processes.
pub(crate) fn finding(wanted: bool) -> Finding {
    match tried() {
        Tried::Absent if wanted => missed(),
        other => judge(other),
    }
}

/// None is installed where processes are to be taken.
fn missed() -> Finding {
    Finding::warning(AREA, "CRIU", "not installed, and `processes = true` in the configuration").lost(LOST).mend(NEWER)
}

/// A CRIU that works on this host, and its version; or why there is none, in a sentence.
pub(crate) fn usable() -> Result<(String, Program), String> {
    match tried() {
        Tried::Works(version, program) => Ok((version, program)),
        Tried::Absent => Err("not installed".to_owned()),
        other => Err(judge(other).found),
    }
}

fn tried() -> Tried {
    let program = match Program::find("criu") {
        Ok(program) => program,
        Err(Unsuited::Absent(_)) => return Tried::Absent,
        Err(unsuited) => return Tried::Failed(io::Error::other(unsuited)),
    };
    let said = |argument: &str| program.output(&[argument.into()], Inside::default());
    let version = match said("--version") {
        Ok(output) => version(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => return Tried::Failed(error),
    };
    if !Capabilities::effective().is_ok_and(|held| held.has(Capability::SysAdmin)) {
        return Tried::Untried(version);
    }
    match said("check") {
        Ok(output) if output.status.success() && asks_for_credentials(&version) && credentials_are_refused() => {
            Tried::NoSockets(version)
        }
        Ok(output) if output.status.success() => Tried::Works(version, program),
        Ok(output) => Tried::Refuses(version, String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Tried::Failed(error),
    }
}

/// From `criu --version`: "Version: 3.17.1", and a line with the commit in some builds.
fn version(said: &str) -> String {
    said.lines().find_map(|line| line.strip_prefix("Version:")).unwrap_or("of an unknown version").trim().to_owned()
}

/// Whether this version asks every socket for SO_PASSCRED, and gives up where it is refused: before 4.2. `criu check`
/// does not tell.
fn asks_for_credentials(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().is_some_and(|major| (major, numbers.next().unwrap_or(0)) < (4, 2))
}

/// Linux 6.16 has SO_PASSCRED for some families alone (net/core/sock.c, `sk_may_scm_recv`).
fn credentials_are_refused() -> bool {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    socket.is_ok_and(|socket| sockopt::socket_passcred(&socket) == Err(Errno::OPNOTSUPP))
}

fn judge(tried: Tried) -> Finding {
    let check = "CRIU";
    match tried {
        Tried::Absent => Finding::ok(
            AREA,
            check,
            "not installed: connections can be moved, whole processes cannot; it is needed at both hosts, version 4.2 or newer",
        ),
        Tried::Failed(error) => Finding::warning(AREA, check, format!("cannot be run: {error}"))
            .lost(LOST)
            .mend("see why `criu check` does not start, or remove CRIU if no process is to be moved"),
        Tried::Untried(version) => Finding::warning(
            AREA,
            check,
            format!("{version}; whether it works on this kernel cannot be tried without privileges"),
        )
        .mend("run `whimbrel doctor` as root"),
        Tried::Works(version, _) => Finding::ok(AREA, check, format!("{version} works on this kernel")),
        Tried::NoSockets(version) => {
            Finding::warning(AREA, check, format!("{version} is too old for the sockets of this kernel (SO_PASSCRED)"))
                .lost("processes with TCP or UDP sockets cannot be moved from this host; single connections can")
                .mend(NEWER)
        }
        // Linux 6.13 divides the data pages of the vDSO in two; CRIU before 4.1 takes the second for a hole.
        Tried::Refuses(version, said) if said.contains("vdso: Unexpected rt vDSO area bounds") => {
            Finding::warning(AREA, check, format!("{version} is too old for this kernel (vDSO)")).lost(LOST).mend(NEWER)
        }
        Tried::Refuses(version, said) => Finding::warning(
            AREA,
            check,
            format!("{version} does not work on this kernel: {}", complaint(&said)),
        )
        .lost(LOST)
        .mend("`criu check` as root shows what is missing; a newer CRIU, or a kernel with CONFIG_CHECKPOINT_RESTORE"),
    }
}

/// The first error that says something, without its place in CRIU's source.
pub(crate) fn complaint(said: &str) -> &str {
    let errors = said.lines().filter_map(|line| line.split_once("Error (")?.1.split_once("): "));
    let mut errors = errors.map(|(_, error)| error.trim()).filter(|error| !is_harmless(error));
    errors.next().unwrap_or_else(|| said.lines().next_back().unwrap_or("no reason given").trim())
}

/// What CRIU calls an error where all is well: helpers that end with a status, and a limit of its own that it may not
/// raise in a container.
fn is_harmless(error: &str) -> bool {
    error.starts_with("exited, status=") || error.starts_with("rlimit: Can't setup RLIMIT_NOFILE for self")
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::Verdict;

    #[test]
    fn an_old_criu_on_a_new_kernel_is_told_with_what_to_do() {
        // Debian's 3.17.1 on Linux 6.18
        let said = "Error (criu/util.c:642): exited, status=1\n\
            Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds\n\
            Error (criu/vdso.c:613): vdso: Failed to fill self vdso symtable\n\
            Error (criu/kerndat.c:1615): kerndat_vdso_fill_symtable failed when initializing kerndat.\n\
            Error (criu/crtools.c:260): Could not initialize kernel features detection.\n";
        let found = judge(Tried::Refuses(version("Version: 3.17.1\n"), said.to_owned()));
        assert_eq!(found.verdict, Verdict::Warning);
        assert_eq!(found.found, "3.17.1 is too old for this kernel (vDSO)");
        assert!(found.mend.is_some_and(|mend| mend.contains("4.2")));
        assert!(found.lost.is_some_and(|lost| lost.contains("single connections can")));
    }

    #[test]
    fn a_criu_that_checks_well_and_cannot_dump_sockets_is_told() {
        for (version, asks) in [
            ("3.17.1", true),
            ("4.1.1", true),
            ("4", true),
            ("4.2", false),
            ("5.0", false),
            ("of an unknown version", false),
        ] {
            assert_eq!(asks_for_credentials(version), asks, "{version}");
        }
        let found = judge(Tried::NoSockets("4.1".into()));
        assert_eq!(found.found, "4.1 is too old for the sockets of this kernel (SO_PASSCRED)");
        assert!(found.verdict == Verdict::Warning && found.mend.is_some() && found.lost.is_some());
    }

    #[test]
    fn another_refusal_is_told_in_its_own_words() {
        // 3.17.1 on Linux 6.12 without a module for nf_tables
        let said = "Error (criu/util.c:642): exited, status=3\n\
            Error (criu/kerndat.c:1666): kerndat_has_nftables_concat failed when initializing kerndat.\n";
        let found = judge(Tried::Refuses("3.17.1".into(), said.into()));
        assert!(
            found.found.ends_with("kernel: kerndat_has_nftables_concat failed when initializing kerndat."),
            "{found:?}"
        );
        let said = "(00.1) Error (criu/rlimit.c:50): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n\
            (00.2) Error (criu/cr-restore.c:1): Can't fork for 135: File exists\n";
        assert_eq!(complaint(said), "Can't fork for 135: File exists");
        assert_eq!(complaint("You need root\n"), "You need root");
        assert_eq!(complaint(""), "no reason given");
    }

    #[test]
    fn only_what_is_there_and_does_not_work_is_a_fault() {
        assert_eq!(judge(Tried::Absent).verdict, Verdict::Ok);
        let missed = missed();
        assert!(missed.verdict == Verdict::Warning && missed.mend.is_some() && missed.lost.is_some());
        let program = Program::open(std::path::Path::new("/bin/sh")).expect("it is root's");
        let works = judge(Tried::Works(version("Version: 4.2\nGitID: v4.2\n"), program));
        assert_eq!((works.verdict, works.found.as_str()), (Verdict::Ok, "4.2 works on this kernel"));
        let untried = judge(Tried::Untried(version("")));
        assert!(untried.verdict == Verdict::Warning && untried.mend.is_some(), "{untried:?}");
        assert_eq!(judge(Tried::Failed(io::Error::other("no"))).verdict, Verdict::Warning);
    }
}
