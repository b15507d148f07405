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
        "usr/lib/sysusers.d/whimbrel.conf",
    ]
    .map(str::to_owned)
    .to_vec();
    let shared =
        ["man/man1/whimbrel.1", "doc/whimbrel/json.md", "doc/whimbrel/helpers.md", "doc/whimbrel/whimbrel.toml"];
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
    for unit in &units {
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

    // A configuration that the administrator has changed is kept, by another installation too.
    let configuration = root.join("etc/whimbrel/whimbrel.toml");
    fs::write(&configuration, "port = 2032\n").unwrap();
    make("install");
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "port = 2032\n");
    make("uninstall");
    assert_eq!(files(&root), ["etc/whimbrel/whimbrel.toml"]);
}
