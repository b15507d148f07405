//! What the configuration says of helpers.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use whimbrel_kernel::child::Account;

use crate::policy::{Matcher, Subject};

/// Bytes that are kept for a peer at the most, unless configured.
pub const KEEP: u64 = 1 << 20;
/// Bytes that a program may answer in one absence, unless configured.
pub const ANSWER: u64 = 64 << 10;
/// For how long a program may leave what it was handed unread, unless configured.
pub const STALL: Duration = Duration::from_secs(60);
/// Whom programs run as, unless configured.
pub const USER: &str = "nobody";

/// One `[[helper]]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// `name`: what people call it.
    pub name: String,
    /// Which connections it means.
    pub matcher: Matcher,
    /// `kind`, with what belongs to it.
    pub kind: Kind,
}

/// What is done for a connection whose peer is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It waits: what is done for all that no section means.
    Hold,
    /// Its keepalives are stopped, and its probes answered. Waiting does that as well; this is its name.
    Keepalive,
    /// What serves it is stopped, and continued when the peer is back.
    Stop(Scope),
    /// A program is handed what the live end sends, and may answer.
    Program(Program),
}

impl Kind {
    /// As in the configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Keepalive => "keepalive",
            Self::Stop(_) => "stop",
            Self::Program(_) => "program",
        }
    }
}

/// What is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The process that has the connection open (SIGSTOP).
    #[default]
    Process,
    /// The cgroup of that process (`cgroup.freeze`).
    Cgroup,
}

/// A program and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `command`: the program's absolute path and its arguments.
    pub command: Vec<String>,
    /// `user`.
    pub account: Account,
    /// `keep`, in bytes: what the live end can send in one absence.
    pub keep: u64,
    /// `answer`, in bytes: what the program can answer in one absence.
    pub answer: u64,
    /// `lines`: what it answers is put in by whole lines, and what of a line it has not said to the end is left out.
    pub lines: bool,
    /// `stall`: how long the program may leave what it was handed unread.
    pub stall: Duration,
}

impl Program {
    /// Why it cannot be started, as far as a look at its file tells.
    #[must_use]
    pub fn unusable(&self) -> Option<String> {
        let program = self.command.first()?;
        let found = match std::fs::metadata(program) {
            Ok(found) => found,
            Err(error) => return Some(format!("{program}: {error}")),
        };
        // Of the three classes the first that fits decides (path_resolution(7)).
        let executable = match self.account {
            Account { uid, .. } if uid == found.uid() => 0o100,
            Account { gid, .. } if gid == found.gid() => 0o010,
            _ => 0o001,
        };
        match found.is_file() {
            false => Some(format!("{program} is no file")),
            true if found.mode() & executable == 0 => {
                Some(format!("{program} cannot be executed by its `user`; see `ls -l {program}`"))
            }
            true => None,
        }
    }
}

/// All `[[helper]]` sections, in the order of the file; the first that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections(Vec<Section>);

impl Sections {
    /// In this order.
    #[must_use]
    pub fn new(sections: Vec<Section>) -> Self {
        Self(sections)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that means this connection.
    #[must_use]
    pub fn find(&self, subject: &Subject<'_>) -> Option<&Section> {
        self.0.iter().find(|section| section.matcher.matches(subject))
    }

    /// The one with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Section> {
        self.0.iter().find(|section| section.name == name)
    }

    /// Whether who has connections open must be known, to find their section.
    #[must_use]
    pub fn asks_for_holders(&self) -> bool {
        self.0.iter().any(|section| section.matcher.asks_for_holders())
    }

    /// Whether what serves a connection may be stopped.
    #[must_use]
    pub fn stops(&self) -> bool {
        self.0.iter().any(|section| matches!(section.kind, Kind::Stop(_)))
    }
}

/// A user by name or number, with its group, as /etc/passwd has it.
#[must_use]
pub fn account(user: &str) -> Option<Account> {
    account_in(&std::fs::read_to_string(Path::new("/etc/passwd")).ok()?, user)
}

fn account_in(passwd: &str, user: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        if name != user && uid != user {
            return None;
        }
        Some(Account { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nirc:x:39:40:ircd:/run/ircd:/usr/sbin/nologin\n";
        let irc = Some(Account { uid: 39, gid: 40 });
        assert_eq!((account_in(passwd, "irc"), account_in(passwd, "39")), (irc, irc));
        assert_eq!(account_in(passwd, "ir"), None);
        assert_eq!(account_in(passwd, "root"), Some(Account { uid: 0, gid: 0 }));
    }
}
