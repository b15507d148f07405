//! What a running daemon lets other users see. It runs in network and mount namespaces of its own, where `whimbrel` is
//! a group.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Whom nobody else is.
const USER: &str = "54321";
const GROUP: &str = "54322";

/// In a place that others may look into: a stub of `/etc/group`, then the daemon, with a group of its own as its first.
const START: &str = r#"
mount --bind "$1/group" /etc/group && ip link set lo up || exit 1
exec setpriv --regid 54323 --clear-groups "$2" --run-dir "$1/run" up --state-dir "$1/state" --config "$1/whimbrel.toml"
"#;

struct Daemon {
    directory: PathBuf,
    child: Child,
}

impl Daemon {
    fn start(name: &str, group: &str, configuration: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("whimbrel-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.join("group"), group).unwrap();
        fs::write(directory.join("whimbrel.toml"), configuration).unwrap();
        // Others have to be able to run it, wherever it was built.
        fs::copy(env!("CARGO_BIN_EXE_whimbrel"), directory.join("whimbrel")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", START, "sh"]).arg(&directory).arg(directory.join("whimbrel"));
        let log = fs::File::create(directory.join("log")).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap();
        let mut daemon = Self { directory, child };
        let since = Instant::now();
        while !daemon.root(&["status"]).status.success() {
            let ended = daemon.child.try_wait().unwrap();
            let log = fs::read_to_string(daemon.directory.join("log")).unwrap();
            assert!(ended.is_none() && since.elapsed() < Duration::from_secs(60), "it does not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn root(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.directory.join("whimbrel"));
        command.arg("--run-dir").arg(self.directory.join("run")).args(arguments).output().unwrap()
    }

    /// As a user without any right, who is in a group.
    fn user(&self, group: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--groups", group, "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(self.directory.join("whimbrel")).arg("--run-dir").arg(self.directory.join("run"));
        command.args(arguments).output().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
#[ignore = "needs root: it runs a daemon"]
fn a_running_daemon_is_not_dumped_and_its_lock_is_its_own() {
    let daemon = Daemon::start("dumpable", "root:x:0:\n", "");
    // What is not dumpable belongs to root and its group (proc(5)), whoever it runs as.
    let process = fs::metadata(format!("/proc/{}/environ", daemon.child.id())).unwrap();
    assert_eq!(process.gid(), 0, "it runs as group 54323");
    let lock = fs::metadata(daemon.directory.join("run/lock")).unwrap();
    assert_eq!(lock.mode() & 0o777, 0o600);
    let socket = fs::metadata(daemon.directory.join("run/whimbrel.sock")).unwrap();
    assert_eq!(socket.mode() & 0o777, 0o600, "there is no group `whimbrel`");
    let denied = daemon.user(GROUP, &["status"]);
    assert!(!denied.status.success() && said(&denied).contains("may not ask"), "{denied:?}");
}

#[test]
#[ignore = "needs root: it runs a daemon"]
fn a_member_of_the_group_may_look_and_move_this_host_and_nothing_that_is_others() {
    let daemon = Daemon::start("group", &format!("root:x:0:\nwhimbrel:x:{GROUP}:\n"), "");
    let socket = fs::metadata(daemon.directory.join("run/whimbrel.sock")).unwrap();
    assert_eq!((socket.mode() & 0o777, socket.uid(), socket.gid().to_string().as_str()), (0o660, 0, GROUP));
    let looks = [&["status"][..], &["connections"], &["peers"], &["paths"], &["metrics"], &["events"], &["anchor"]];
    let host = [&["suspend"][..], &["resume"], &["community", "list"]];
    for command in looks.iter().chain(&host) {
        let output = daemon.user(GROUP, command);
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        let stranger = daemon.user(USER, command);
        assert!(!stranger.status.success() && said(&stranger).contains("may not ask"), "{command:?}: {stranger:?}");
    }
    let others = [
        &["peers", "forget", "192.0.2.1"][..],
        &["move", "192.0.2.1:22", "--to", "192.0.2.2"],
        &["move", "--pid", "1", "--to", "192.0.2.2"],
        &["community", "init", "--name", "home"],
        &["anchor", "stop"],
    ];
    for command in others {
        let output = daemon.user(GROUP, command);
        assert!(
            !output.status.success() && said(&output).contains("only root may ask"),
            "{command:?}: {}",
            said(&output)
        );
        assert!(!said(&daemon.root(command)).contains("only root may ask"), "{command:?}");
    }
}

#[test]
#[ignore = "needs root: it runs a daemon"]
fn configured_permissions_count_for_the_group() {
    let groups = format!("root:x:0:\nwhimbrel:x:{GROUP}:\n");
    let daemon = Daemon::start("mode", &groups, "control_mode = \"0600\"\n");
    let socket = fs::metadata(daemon.directory.join("run/whimbrel.sock")).unwrap();
    assert_eq!((socket.mode() & 0o777, socket.gid().to_string().as_str()), (0o600, GROUP));
    assert!(said(&daemon.user(GROUP, &["status"])).contains("may not ask"));
    assert!(daemon.root(&["status"]).status.success());
}
