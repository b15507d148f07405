//! Why the command failed, and what to do about it.

use std::fmt;
use std::io;

use whimbrel_ipc::{ClientError, SchemaError};

/// A failure of the command. Shown as sentences: what failed, on which object, what to do.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// The daemon could not be asked, or refused.
    Daemon(ClientError),
    /// The daemon that was to run did not.
    Run(Box<dyn std::error::Error>),
    /// Peers did not take a hand-off.
    Handoff(String),
    /// Standard output does not take what is to be told.
    Output(io::Error),
}

impl Complaint {
    pub(crate) fn daemon(error: impl std::error::Error + 'static) -> Self {
        Self::Run(Box::new(error))
    }
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
            Self::Daemon(ClientError::Refused(failure)) => write!(f, "{failure}"),
            Self::Daemon(error) => {
                write!(f, "{error}.")?;
                match advice(error) {
                    Some(advice) => write!(f, "\n{advice}"),
                    None => Ok(()),
                }
            }
            Self::Run(error) => {
                let sentence = error.to_string();
                f.write_str(&sentence)?;
                // Causes that the sentence does not name already.
                let mut cause = error.source();
                while let Some(inner) = cause {
                    let text = inner.to_string();
                    if !sentence.contains(&text) {
                        write!(f, ": {text}")?;
                    }
                    cause = inner.source();
                }
                if sentence.ends_with(['.', '!', '?']) { Ok(()) } else { f.write_str(".") }
            }
            Self::Handoff(sentence) => f.write_str(sentence),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}."),
        }
    }
}

fn advice(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Connect { source, .. } => Some(match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "Ask as root, or let others ask with `control_mode` in the configuration."
            }
            _ => {
                "Start it with `whimbrel up` (or `systemctl start whimbrel`), or name its run directory \
                 with --run-dir or WHIMBREL_RUN_DIR."
            }
        }),
        ClientError::Timeout { .. } => Some("It may be stuck: its log says more (`journalctl -u whimbrel`)."),
        ClientError::Io { .. } | ClientError::Closed { .. } => {
            Some("It may have stopped: `whimbrel status` tells, and its log says why.")
        }
        ClientError::Schema(_) | ClientError::Unexpected => {
            Some("Use a command and a daemon of the same release: restart the daemon after an upgrade.")
        }
        ClientError::Refused(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::Failure;

    #[test]
    fn says_how_to_start_a_daemon() {
        let error = ClientError::Connect {
            socket: "/run/whimbrel/whimbrel.sock".into(),
            source: io::Error::from_raw_os_error(2),
        };
        assert_eq!(
            Complaint::from(error).to_string(),
            "no daemon answers at /run/whimbrel/whimbrel.sock: No such file or directory (os error 2).\n\
             Start it with `whimbrel up` (or `systemctl start whimbrel`), or name its run directory with --run-dir \
             or WHIMBREL_RUN_DIR."
        );
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
