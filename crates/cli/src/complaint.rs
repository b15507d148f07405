//! Why the command failed, and what to do about it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use whimbrel_ipc::{ClientError, Code, Failure, SchemaError};

/// A failure of the command. Shown as sentences, or as the JSON of a [`Failure`]: what failed, on which object, what to
/// do.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// The daemon could not be asked, or refused.
    Daemon(ClientError),
    /// The daemon that was to run did not.
    Run(Box<dyn std::error::Error>),
    /// Peers did not take a hand-off.
    Handoff(String),
    /// A hand-off by hand was taken back.
    Stayed(String),
    /// A code came to nothing. `good`: it can be used again.
    Code { what: String, good: bool },
    /// An address of IPv4 where one of IPv6 is wanted.
    NotIpv6(IpAddr),
    /// There is no session with a desktop.
    #[cfg(feature = "dbus")]
    NoSession,
    /// That desktop shows nothing.
    #[cfg(feature = "dbus")]
    Desktop(whimbrel_bus::BusError),
    /// There is nothing to draw on.
    NoTerminal,
    /// A drawing cannot be written.
    Drawing(PathBuf, io::Error),
    /// A program cannot be run, or is not there.
    Program(PathBuf, io::Error),
    /// What only another host could lend is wanted of this one.
    OwnAnchor(&'static str),
    /// No connection is named so.
    NoConnection(String),
    /// A log of events cannot be read.
    Log(PathBuf, io::Error),
    /// A line of a log is no event.
    Line(PathBuf, usize, SchemaError),
    /// The system does not let this process have a network of its own.
    Apart(Box<dyn std::error::Error>),
    /// The command line cannot be understood; as it is told to people.
    Usage(String),
    /// Standard output does not take what is to be told.
    Output(io::Error),
}

/// Exit statuses of commands that run a program, as of env(1) and of shells: it cannot be run, it is not there.
const CANNOT_RUN: u8 = 126;
const NOT_THERE: u8 = 127;

impl Complaint {
    /// With what the command ends.
    pub(crate) fn status(&self) -> ExitCode {
        match self {
            Self::Program(_, error) if error.kind() == io::ErrorKind::NotFound => ExitCode::from(NOT_THERE),
            Self::Program(..) => ExitCode::from(CANNOT_RUN),
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether a daemon that is being started anew would be the reason.
    pub(crate) fn is_for_want_of_a_daemon(&self) -> bool {
        let Self::Daemon(error) = self else { return false };
        let absent = matches!(
            error,
            ClientError::Connect { .. }
                | ClientError::Timeout { .. }
                | ClientError::Closed { .. }
                | ClientError::Io { .. }
        );
        absent && !error.is_denied()
    }

    pub(crate) fn daemon(error: impl std::error::Error + 'static) -> Self {
        Self::Run(Box::new(error))
    }

    /// It in its parts.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Daemon(error) => of_client(error),
            Self::Run(error) => Failure::new(with_causes(error.as_ref()).trim_end_matches('.')),
            Self::Handoff(what) => Failure::new(what)
                .hint("The daemon goes on trying; `whimbrel events --follow` tells what becomes of it."),
            Self::Stayed(what) => Failure::new(what).hint("Its connections go on as before."),
            Self::Code { what, good: true } => Failure::new(what).hint(
                "Check the address, and that a daemon runs there whose control port is reached (`whimbrel doctor` at that host); then use \
                 the code again, within ten minutes from when it was drawn.",
            ),
            Self::Code { what, good: false } => Failure::new(what).hint(
                "Have another code drawn at the other host and check the address: a code is good for one try, by one host.",
            ),
            Self::NotIpv6(address) => Failure::new("it is no IPv6 address")
                .on(address)
                .hint("-6 goes with `--address any`; an address says its family by itself."),
            #[cfg(feature = "dbus")]
            Self::NoSession => Failure::new("there is no session whose desktop could show notifications").hint(
                "Run it as the user who sits there, in a terminal of that session, or have the session start it: \
                 `systemctl --user enable --now whimbrel-notify`.",
            ),
            #[cfg(feature = "dbus")]
            Self::Desktop(error) => Failure::new(format!("notifications cannot be shown: {error}")).hint(
                "`DBUS_SESSION_BUS_ADDRESS` names the bus of the session; it has to be there, and let this user in.",
            ),
            Self::NoTerminal => Failure::new("`watch` draws on a terminal, and this is none")
                .hint("`whimbrel events --follow --json` and `whimbrel connections --json` are for programs."),
            Self::Drawing(path, error) if error.kind() == io::ErrorKind::NotFound => {
                Failure::new("there is no such directory to draw into").on(path.display())
            }
            Self::Drawing(path, error) => Failure::new(format!("cannot draw into it: {error}")).on(path.display()),
            Self::Program(path, error) if error.kind() == io::ErrorKind::NotFound => {
                Failure::new("there is no such program").on(path.display())
            }
            Self::Program(path, error) => Failure::new(format!("cannot be run: {error}")).on(path.display()),
            Self::OwnAnchor(option) => Failure::new(format!("{option} is for an anchor that is another host")).on("self").hint(
                "`--anchor self` runs the program as it is, with this host's own addresses and ports.",
            ),
            Self::NoConnection(name) if name.starts_with("pid:") => {
                Failure::new("this process has no connection here, or does not run").on(name).code(Code::Unknown).hint(
                    "`whimbrel connections` shows those that there are; sockets in namespaces of their own are not \
                     among them.",
                )
            }
            Self::NoConnection(name) => Failure::new("no connection is named by this").on(name).code(Code::Unknown).hint(
                "An address of either end does, with or without its port (192.0.2.1:22, [2001:db8::1]:22), or \
                 pid:NUMBER; `whimbrel connections` shows them.",
            ),
            Self::Log(path, error) if error.kind() == io::ErrorKind::NotFound => {
                Failure::new("there is no such log").on(path.display()).hint(
                    "A daemon writes one if `event_log` in its configuration names it, below its state directory \
                     (/var/lib/whimbrel); without --from the daemon that runs is asked.",
                )
            }
            Self::Log(path, error) => Failure::new(format!("the log cannot be read: {error}")).on(path.display()),
            Self::Line(path, line, error) => Failure::new(format!("{error}"))
                .on(format!("{}:{line}", path.display()))
                .hint("A log has the lines that `whimbrel events --json` prints; docs/json.md describes them."),
            Self::Apart(error) => Failure::new(error.to_string()).hint(
                "`whimbrel run` needs a network namespace for its program: as root, or where users may have namespaces \
                 (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor's restriction of them).",
            ),
            Self::Usage(text) => usage(text),
            Self::Output(error) => Failure::new(format!("cannot write: {error}")).on("standard output"),
        }
    }
}

/// What is wrong with a command line, of the text that people are told.
fn usage(text: &str) -> Failure {
    let (what, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let what: Vec<&str> = what.trim_start_matches("error: ").split_whitespace().collect();
    let usage = rest.split("\n\n").find_map(|part| part.trim().strip_prefix("Usage: "));
    // A command that has others below it has two.
    let usage = usage.map(|usage| usage.split_whitespace().collect::<Vec<_>>().join(" "));
    let usage = usage.map(|usage| usage.replace(" whimbrel ", "` or `whimbrel "));
    let hint = usage.map_or("`whimbrel --help` tells what there is.".to_owned(), |usage| {
        format!("It is `{usage}`; with `--help` it tells more.")
    });
    Failure::new(what.join(" ")).hint(hint)
}

impl From<ClientError> for Complaint {
    fn from(error: ClientError) -> Self {
        Self::Daemon(error)
    }
}

impl From<SchemaError> for Complaint {
    fn from(error: SchemaError) -> Self {
        Self::Daemon(error.into())
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A daemon that is not there is named in the sentence, which reads better than before it.
            Self::Daemon(error @ ClientError::Connect { socket, .. }) => {
                let Failure { what, hint, .. } = of_client(error);
                write!(f, "{what} at {}.\n{}", socket.display(), hint.unwrap_or_default())
            }
            Self::Run(error) => {
                let sentence = with_causes(error.as_ref());
                let stop = if sentence.ends_with(['.', '!', '?']) { "" } else { "." };
                write!(f, "{sentence}{stop}")
            }
            _ => self.failure().fmt(f),
        }
    }
}

fn of_client(error: &ClientError) -> Failure {
    const LOG: &str = "Its log says why (`journalctl -u whimbrel`); start it again with `whimbrel up` or \
                       `systemctl start whimbrel`.";
    match error {
        ClientError::Refused(failure) => failure.clone(),
        ClientError::Connect { socket, source } => {
            let (what, hint) = match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => (
                    "no daemon answers".to_owned(),
                    "Start one with `whimbrel up` (or `systemctl start whimbrel`), or name the run directory of one that \
                     runs with --run-dir or WHIMBREL_RUN_DIR.",
                ),
                io::ErrorKind::PermissionDenied => (
                    "this user may not ask the daemon".to_owned(),
                    "Ask as root, or as a member of the group `whimbrel`, where there is one when the daemon starts (`usermod -aG whimbrel USER`).",
                ),
                _ => (
                    format!("cannot ask a daemon ({source})"),
                    "Name its run directory with --run-dir or WHIMBREL_RUN_DIR.",
                ),
            };
            Failure::new(what).on(socket.display()).hint(hint)
        }
        ClientError::Timeout { socket, after } => {
            Failure::new(format!("the daemon did not answer within {} s", after.as_secs()))
                .on(socket.display())
                .hint("It may be stuck: its log says more (`journalctl -u whimbrel`).")
        }
        ClientError::Io { socket, source } => {
            Failure::new(format!("the connection with the daemon broke: {source}")).on(socket.display()).hint(LOG)
        }
        ClientError::Closed { socket } => {
            Failure::new("the daemon closed the connection before it had answered").on(socket.display()).hint(LOG)
        }
        ClientError::Stopped { socket } => {
            Failure::new("the daemon has stopped: no more events come").on(socket.display()).hint(LOG)
        }
        ClientError::Schema(_) | ClientError::Unexpected => Failure::new(error.to_string())
            .hint("Use a command and a daemon of the same release: restart the daemon after an upgrade."),
    }
}

/// The sentence of an error, and those of its causes that it does not name already.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !sentence.contains(&text) {
            sentence.push_str(": ");
            sentence.push_str(&text);
        }
        cause = inner.source();
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(errno: i32) -> Complaint {
        let socket = "/run/whimbrel/whimbrel.sock".into();
        ClientError::Connect { socket, source: io::Error::from_raw_os_error(errno) }.into()
    }

    #[test]
    fn says_how_to_start_a_daemon() {
        // ENOENT: never started here; ECONNREFUSED: killed.
        for errno in [2, 111] {
            assert_eq!(
                connect(errno).to_string(),
                "no daemon answers at /run/whimbrel/whimbrel.sock.\n\
                 Start one with `whimbrel up` (or `systemctl start whimbrel`), or name the run directory of one that runs \
                 with --run-dir or WHIMBREL_RUN_DIR."
            );
        }
        assert!(connect(13).to_string().contains("may not ask"));
    }

    #[test]
    fn programs_are_told_in_parts() {
        let failure = connect(2).failure();
        assert_eq!(failure.what, "no daemon answers");
        assert_eq!(failure.object.as_deref(), Some("/run/whimbrel/whimbrel.sock"));
        assert!(failure.hint.is_some_and(|hint| hint.starts_with("Start one")));
        let late = Complaint::Handoff("1 peer did not acknowledge the move within 15 s".into());
        assert!(late.to_string().contains("15 s. The daemon goes on trying"), "{late}");
    }

    #[test]
    fn a_refusal_is_told_as_the_daemon_put_it() {
        let failure = Failure::new("this host has no such address").on("192.0.2.1").hint("See `whimbrel status`.");
        assert_eq!(
            Complaint::from(ClientError::Refused(failure)).to_string(),
            "192.0.2.1: this host has no such address. See `whimbrel status`."
        );
    }
}
