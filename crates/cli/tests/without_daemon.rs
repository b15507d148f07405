//! What the program says where no daemon is, or where one goes away: sentences for people, JSON for programs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use whimbrel_ipc::{Reply, reply_from_line, socket_path};

/// A directory of its own that goes with it.
struct RunDir(PathBuf);

impl RunDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("whimbrel-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn whimbrel(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_whimbrel")).arg("--run-dir").arg(&self.0).args(args).output().unwrap()
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn people_get_a_sentence_and_programs_a_line() {
    let run_dir = RunDir::new("nobody");
    for args in [
        &["status"][..],
        &["connections", "--moved"],
        &["peers"],
        &["peers", "forget", "203.0.113.5"],
        &["paths"],
        &["metrics"],
        &["events"],
        &["handoff"],
        &["suspend"],
        &["suspend", "203.0.113.5:22"],
        &["resume"],
    ] {
        let output = run_dir.whimbrel(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).starts_with("whimbrel: no daemon answers at "), "{args:?}: {output:?}");
        assert!(!text(&output.stderr).contains("os error"), "{args:?}: {output:?}");

        let output = run_dir.whimbrel(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(text(&output.stderr), "", "{args:?}");
        assert_eq!(text(&output.stdout).lines().count(), 1, "{args:?}");
        let Ok(Reply::Error(failure)) = reply_from_line(text(&output.stdout)) else { panic!("{args:?}: {output:?}") };
        assert_eq!(failure.what, "no daemon answers");
        assert!(failure.object.is_some_and(|object| object.ends_with("whimbrel.sock")));
        assert!(failure.hint.is_some());
    }
}

#[test]
fn notifications_need_a_session() {
    let run_dir = RunDir::new("no-session");
    let notify = |address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_whimbrel"));
        command.arg("--run-dir").arg(&run_dir.0).arg("notify").env_remove("XDG_RUNTIME_DIR");
        let output = command.env("DBUS_SESSION_BUS_ADDRESS", address).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(&output.stderr).to_owned()
    };
    let said = notify("");
    assert!(said.contains("there is no session") && said.contains("systemctl --user"), "{said}");
    let said = notify("unix:path=/nowhere/bus");
    assert!(said.contains("connect unix:path=/nowhere/bus: No such file"), "{said}");
}

#[test]
fn a_receiver_whose_program_cannot_be_run_does_not_begin() {
    let run_dir = RunDir::new("no-program");
    let plain = run_dir.0.join("plain");
    fs::write(&plain, "").unwrap();
    let [directory, plain] = [&run_dir.0, &plain].map(|path| path.to_str().unwrap());
    for (program, status, why) in [
        ("/nowhere/at-all", 127, "/nowhere/at-all: there is no such program."),
        ("whimbrel-of-nobody", 127, "whimbrel-of-nobody: there is no such program."),
        ("", 127, "there is no such program."),
        (plain, 126, "cannot be run"),
        (directory, 126, "cannot be run"),
    ] {
        let output = run_dir.whimbrel(&["receive", "worker", "--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}: {output:?}");
        assert!(text(&output.stderr).contains(why), "{program}: {output:?}");
    }
    // One that can be is looked for as the shell does, and then it is the daemon that is missed.
    for program in ["sh", "/bin/sh"] {
        let output = run_dir.whimbrel(&["receive", "worker", "--", program]);
        assert_eq!(output.status.code(), Some(1), "{program}: {output:?}");
        assert!(text(&output.stderr).contains("no daemon answers"), "{program}: {output:?}");
    }
}

#[test]
fn a_receiver_goes_on_with_the_next_daemon() {
    let run_dir = RunDir::new("next-daemon");
    let socket = socket_path(&run_dir.0);
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = thread::spawn(move || {
        let answers = |listener: &UnixListener, answer: &str| {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut asked = String::new();
            reader.read_line(&mut asked).unwrap();
            assert!(asked.contains("receive") && asked.contains("worker"), "{asked}");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        };
        let receiving = "{\"schema\":1,\"receiving\":{\"name\":\"worker\"}}\n";
        answers(&listener, receiving);
        drop(listener);
        fs::remove_file(&socket).unwrap();
        // It is there, and not ready yet; then it is; then it refuses.
        let listener = UnixListener::bind(&socket).unwrap();
        answers(&listener, "");
        answers(&listener, receiving);
        answers(&listener, "{\"schema\":1,\"error\":{\"what\":\"it is enough\",\"object\":null,\"hint\":null}}\n");
    });
    let output = run_dir.whimbrel(&["receive", "worker", "--", "true"]);
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output.stdout), "receiving sockets as worker\n".repeat(2), "{output:?}");
    let told = text(&output.stderr);
    assert!(told.contains("another is waited for, for 60 s") && told.contains("it is enough"), "{output:?}");
}

#[test]
fn who_leaves_a_community_is_told_so() {
    let run_dir = RunDir::new("leaves");
    let listener = UnixListener::bind(socket_path(&run_dir.0)).unwrap();
    let daemon = thread::spawn(move || {
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            reader.read_line(&mut String::new()).unwrap();
            let none = r#"{"schema":1,"community":{"roster":{"community":null,"standing":null,"hosts":[],"codes":[],"grants":[]}}}"#;
            reader.get_mut().write_all(format!("{none}\n").as_bytes()).unwrap();
        }
    });
    let left = run_dir.whimbrel(&["community", "leave"]);
    assert!(text(&left.stdout).starts_with("This host has left its community"), "{left:?}");
    let list = run_dir.whimbrel(&["community", "list"]);
    assert!(text(&list.stdout).starts_with("No community"), "{list:?}");
    daemon.join().unwrap();
}

#[test]
fn who_follows_events_fails_when_the_daemon_goes_away() {
    let run_dir = RunDir::new("goes-away");
    let listener = UnixListener::bind(socket_path(&run_dir.0)).unwrap();
    let event = r#"{"schema":1,"event":{"number":1,"time":"2026-01-31T23:59:58.007Z","monotonic_ms":1,"kind":"started","sentence":"the daemon starts"}}"#;
    let daemon = thread::spawn(move || {
        for end in ["", "", "{\"schema\":1,\"end\":{\"newest\":1}}\n"] {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            reader.read_line(&mut String::new()).unwrap();
            reader.get_mut().write_all(format!("{event}\n{end}").as_bytes()).unwrap();
        }
    });
    let output = run_dir.whimbrel(&["events", "--follow"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("the daemon starts"));
    assert!(text(&output.stderr).contains("the daemon has stopped"), "{output:?}");

    let output = run_dir.whimbrel(&["events", "--follow", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let last = text(&output.stdout).lines().last().unwrap();
    assert!(matches!(reply_from_line(last), Ok(Reply::Error(_))), "{last}");

    let output = run_dir.whimbrel(&["events"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    daemon.join().unwrap();
}

#[test]
fn json_goes_with_what_narrows_an_answer_down() {
    let run_dir = RunDir::new("narrow");
    let listener = UnixListener::bind(socket_path(&run_dir.0)).unwrap();
    let flow = |state: &str, port: u16| {
        format!(
            r#"{{"flow":{{"transport":"tcp","local":"192.0.2.10:{port}","remote":"203.0.113.5:22"}},"state":"{state}","carrier":null,"peer":null,"translated":null,"wire":null,"peer_flow":null,"process":null,"since":"","reason":null}}"#
        )
    };
    let connections = format!(r#"{{"schema":1,"connections":[{},{}]}}"#, flow("native", 1), flow("moved", 2));
    let daemon = thread::spawn(move || {
        for answer in [connections.as_str(), r#"{"schema":1,"forgotten":{"address":"203.0.113.5","key":"k"}}"#] {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            reader.read_line(&mut String::new()).unwrap();
            reader.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    let output = run_dir.whimbrel(&["connections", "--moved", "--json"]);
    let Ok(Reply::Connections(moved)) = reply_from_line(text(&output.stdout)) else { panic!("{output:?}") };
    assert_eq!(moved.iter().map(|connection| connection.flow.local.port()).collect::<Vec<_>>(), [2]);
    let output = run_dir.whimbrel(&["peers", "forget", "203.0.113.5", "--json"]);
    assert!(matches!(reply_from_line(text(&output.stdout)), Ok(Reply::Forgotten { .. })), "{output:?}");
    daemon.join().unwrap();
}
