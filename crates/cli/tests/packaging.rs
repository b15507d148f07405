//! What `make install` puts where, and that `make uninstall` takes all of it away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory of its own that goes with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All files below a directory, without it.
fn files(root: &Path) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => found.push(entry.path().strip_prefix(root).unwrap().display().to_string()),
            }
        }
    }
    found.sort_unstable();
    found
}

/// Links of pages to files that are not there, each behind its page.
fn broken_links(pages: &Path) -> Vec<String> {
    let mut broken = Vec::new();
    for page in files(pages).into_iter().filter(|page| page.ends_with(".md")) {
        let text = fs::read_to_string(pages.join(&page)).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let folder = pages.join(&page).parent().unwrap().to_owned();
        let is_file = |link: &&str| !link.is_empty() && !link.contains(':') && !link.contains(' ');
        let nowhere = links.filter(is_file).filter(|link| !folder.join(link).exists());
        broken.extend(nowhere.map(|link| format!("{page}: {link}")));
    }
    broken
}

#[test]
fn without_a_build_nothing_is_installed_and_that_is_said() {
    let mut command = Command::new("make");
    command.args(["--silent", "install", "TARGET=/nonexistent", "DESTDIR=/nonexistent"]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let output = command.env_remove("MAKEFLAGS").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("run `make build` first"), "{said}");
}

#[test]
fn what_is_installed_is_uninstalled() {
    let folder = Folder(std::env::temp_dir().join(format!("whimbrel-packaging-{}", std::process::id())));
    let (built, root) = (folder.0.join("target"), folder.0.join("root"));
    fs::create_dir_all(built.join("release")).unwrap();
    for program in ["whimbrel", "irc-pong", "libwhimbrel.so", "libwhimbrel.a"] {
        fs::write(built.join("release").join(program), "a program").unwrap();
    }
    let make = |goal: &str| {
        let mut command = Command::new("make");
        command.arg("--silent").arg(goal).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        command.args(["PREFIX=/opt/w", "SYSTEMD_UNITS=/lib/systemd/system"]);
        command.arg(format!("TARGET={}", built.display())).arg(format!("DESTDIR={}", root.display()));
        let output = command.env_remove("MAKEFLAGS").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    make("install");
    let units = ["whimbrel-criu.socket", "whimbrel-criu@.service", "whimbrel-sleep.service", "whimbrel.service"]
        .map(|unit| format!("lib/systemd/system/{unit}"));
    let mut expected = [
        "etc/whimbrel/whimbrel.toml",
        "opt/w/bin/whimbrel",
        "opt/w/lib/whimbrel/irc-pong",
        "usr/lib/NetworkManager/dispatcher.d/50-whimbrel",
        "usr/lib/NetworkManager/dispatcher.d/pre-down.d/50-whimbrel",
        "usr/lib/systemd/user/whimbrel-notify.service",
        "usr/lib/sysusers.d/whimbrel.conf",
    ]
    .map(str::to_owned)
    .to_vec();
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let pages = files(docs).into_iter().filter(|page| page.ends_with(".md"));
    expected.extend(pages.map(|page| format!("opt/w/share/doc/whimbrel/{page}")));
    let shared = ["man/man1/whimbrel.1", "doc/whimbrel/whimbrel.toml"];
    let library = [
        "include/libsockmand.h",
        "include/whimbrel.h",
        "lib/libwhimbrel.a",
        "lib/libwhimbrel.so",
        "lib/libwhimbrel.so.0",
        "lib/libwhimbrel.so.0.1.0",
        "lib/pkgconfig/whimbrel.pc",
        "lib/python3/dist-packages/whimbrel/__init__.py",
        "share/man/man3/whimbrel.3",
    ];
    expected.extend(library.map(|file| format!("opt/w/{file}")));
    expected.extend(shared.map(|file| format!("opt/w/share/{file}")).into_iter().chain(units.clone()));
    expected.sort_unstable();
    assert_eq!(files(&root), expected);
    let script = fs::read_to_string(root.join("usr/lib/NetworkManager/dispatcher.d/50-whimbrel")).unwrap();
    assert!(script.contains("whimbrel=/opt/w/bin/whimbrel\n"), "{script}");
    let of_sessions = "usr/lib/systemd/user/whimbrel-notify.service".to_owned();
    for unit in units.iter().chain([&of_sessions]) {
        let text = fs::read_to_string(root.join(unit)).unwrap();
        let started: Vec<&str> =
            text.lines().filter(|line| line.starts_with("Exec") && line.contains("whimbrel")).collect();
        // A socket starts nothing by itself.
        assert_eq!(started.is_empty(), unit.ends_with(".socket"), "{unit}");
        assert!(started.iter().all(|line| line.contains("/opt/w/bin/whimbrel ")), "{started:?}");
    }

    assert_eq!(fs::read_to_string(root.join("opt/w/lib/libwhimbrel.so")).unwrap(), "a program");
    let described = fs::read_to_string(root.join("opt/w/lib/pkgconfig/whimbrel.pc")).unwrap();
    assert!(described.starts_with("prefix=/opt/w\n"), "{described}");

    let missing = broken_links(&root.join("opt/w/share/doc/whimbrel"));
    assert!(missing.is_empty(), "links that lead nowhere: {missing:?}");

    // A configuration that the administrator has changed is kept, by another installation too.
    let configuration = root.join("etc/whimbrel/whimbrel.toml");
    fs::write(&configuration, "port = 2032\n").unwrap();
    make("install");
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "port = 2032\n");
    make("uninstall");
    assert_eq!(files(&root), ["etc/whimbrel/whimbrel.toml"]);
}

/// What the packaged daemon does without. A line that goes or says less is a decision (docs/decisions/0039).
const BOUNDS: [&str; 31] = [
    "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_BPF CAP_PERFMON CAP_SYS_ADMIN \
     CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SETUID CAP_SETGID CAP_KILL",
    "DeviceAllow=/dev/net/tun rw",
    "DevicePolicy=closed",
    "LimitCORE=0",
    "LimitNOFILE=65536",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "MemoryMax=50%",
    "NoNewPrivileges=yes",
    "PrivateMounts=yes",
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=no",
    "ProtectHome=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=no",
    "ProtectProc=invisible",
    "ProtectSystem=strict",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET",
    "RestrictNamespaces=net",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SupplementaryGroups=whimbrel",
    "SystemCallArchitectures=native",
    "SystemCallErrorNumber=EPERM",
    "SystemCallFilter=@system-service bpf mount umount2 pidfd_getfd",
    "SystemCallFilter=~@resources @keyring",
    "TasksMax=1024",
    "UMask=0077",
];

/// And what is no bound.
const OTHER: [&str; 10] = [
    "ConfigurationDirectory",
    "ExecReload",
    "ExecStart",
    "Restart",
    "RestartSec",
    "RuntimeDirectory",
    "RuntimeDirectoryMode",
    "RuntimeDirectoryPreserve",
    "StateDirectoryMode",
    "StateDirectory",
];

/// How exposed it may be, in tenths of what systemd-analyze(1) reckons: 4.2 with systemd 252.
const EXPOSED: u32 = 42;

/// The lines of a unit's section `[Service]`.
fn service(unit: &str) -> Vec<String> {
    let path = format!("{}/../../packaging/{unit}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().skip_while(|line| *line != "[Service]").skip(1).take_while(|line| !line.starts_with('['));
    let mut lines: Vec<String> =
        lines.filter(|line| line.contains('=') && !line.starts_with('#')).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_packaged_daemon_is_kept_in_bounds() {
    let key = |line: &str| line.split('=').next().unwrap().to_owned();
    let mut found = service("whimbrel.service");
    found.retain(|line| !OTHER.contains(&key(line).as_str()) && key(line) != "Type");
    assert_eq!(found, BOUNDS);
    // It runs what it is told to by root, and keeps nothing of it.
    let helper = service("whimbrel-criu@.service");
    for bound in ["LimitCORE=0", "StandardInput=socket", "UMask=0077"] {
        assert!(helper.iter().any(|line| line == bound), "{bound}: {helper:?}");
    }
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/whimbrel.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSED}"), unit]);
    // A machine without systemd, or with one that does not know `--offline` (before 250), has no opinion.
    let output = analyze.output().ok();
    if let Some(output) = output.filter(|output| !String::from_utf8_lossy(&output.stderr).contains("unrecognized")) {
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{}", said.lines().last().unwrap_or_default());
        assert!(output.status.success(), "{said}");
    }
}
