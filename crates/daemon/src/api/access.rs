//! Who may ask the daemon for what: who may open its socket, and which of those may ask for everything.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use whimbrel_ipc::{About, Code, Failure, Request};

use crate::api::server::Credentials;

/// The group whose members may ask, where the system has it.
const GROUP: &str = "whimbrel";
const GROUPS: &str = "/etc/group";
const USERS: &str = "/etc/passwd";
/// Permission bits of the socket where none are configured: for the group, or for root alone.
const FOR_GROUP: u32 = 0o660;
const FOR_ROOT: u32 = 0o600;

/// Who may open the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    group: Option<u32>,
    mode: Option<u32>,
}

impl Access {
    /// With these permission bits, where some are configured.
    pub(crate) fn of(mode: Option<u32>) -> Self {
        let groups = fs::read_to_string(GROUPS).unwrap_or_default();
        Self { group: group_id(&groups, GROUP), mode }
    }

    /// Opens the socket at a path to them.
    ///
    /// # Errors
    /// When the system refuses. Where the socket cannot be given to the group, it is opened to nobody who is not named
    /// by configured bits.
    pub(crate) fn grant(self, path: &Path) -> io::Result<()> {
        let given = self.group.map_or(Ok(()), |group| chown(path, None, Some(group)));
        let mode = match (&given, self.group) {
            (Ok(()), Some(_)) => self.mode.unwrap_or(FOR_GROUP),
            _ => self.mode.unwrap_or(FOR_ROOT),
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).and(given)
    }
}

/// The number of a group, as group(5) has it.
fn group_id(groups: &str, name: &str) -> Option<u32> {
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.trim().parse().ok())?
    };
    groups.lines().find_map(number)
}

/// Whose a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum User {
    /// Root's, or whom the daemon runs as.
    Root,
    /// Of another user, by its number.
    Other(u32),
    /// The system does not say, or it is gone.
    Unknown,
}

impl User {
    pub(crate) fn of(client: Option<Credentials>) -> Self {
        match client.map(|who| who.uid) {
            Some(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => Self::Root,
            Some(uid) => Self::Other(uid),
            None => Self::Unknown,
        }
    }
}

/// What the system calls a user: its number, and its names in `/etc/passwd` that are not numbers themselves.
pub(crate) fn names_of_user(uid: u32) -> Vec<String> {
    let users = fs::read_to_string(USERS).unwrap_or_default();
    std::iter::once(uid.to_string()).chain(user_names(&users, uid)).collect()
}

/// As passwd(5) has them.
fn user_names(users: &str, uid: u32) -> Vec<String> {
    let named = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| name.contains(|digit: char| !digit.is_ascii_digit()))?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.collect()
}

/// Whether a client may ask for this. Who could open the socket may look, deal with what is its own, and move the host;
/// what is others', and whom this host trusts, is for root and for whom the daemon runs as.
///
/// # Errors
/// [`Code::Denied`], for the client.
pub(crate) fn check(request: &Request, client: Option<Credentials>) -> Result<(), Failure> {
    let uid = client.map(|who| who.uid);
    let is_root = User::of(client) == User::Root;
    let allowed = match request.about() {
        About::Look | About::Own | About::Host => true,
        // Names of sockets that wait are as good as the sockets. What is not dumpable belongs to root (proc(5)).
        About::Process(pid) => {
            is_root || fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| Some(found.uid()) == uid)
        }
        About::Others => is_root,
    };
    if allowed {
        return Ok(());
    }
    Err(Failure::new("only root may ask for this").code(Code::Denied).hint(
        "It concerns what other users have, or whom this host trusts: try it with sudo (whimbrel(1), WHO MAY ASK).",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{CommunityRequest, ProcessScope};

    #[test]
    fn a_group_is_found_by_its_name() {
        let groups = "root:x:0:\nwhimbrels:x:7:\nbad\nwhimbrel:x:123:one,two\n";
        assert_eq!(group_id(groups, GROUP), Some(123));
        for bad in ["", "whimbrel", "whimbrel:x", "whimbrel:x:many:", "whimbrel:x:-1:"] {
            assert_eq!(group_id(bad, GROUP), None, "{bad}");
        }
    }

    #[test]
    fn a_user_is_found_by_its_number() {
        let users = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n1001:x:1000:1::/:/bin/sh\nbad\nal:x:1000:2::/:\n:x:1000:3\n";
        assert_eq!(user_names(users, 1000), ["alice", "al"]);
        assert!(user_names(users, 1001).is_empty());
    }

    #[test]
    fn what_others_have_is_for_root() {
        let who = |uid| Some(Credentials { pid: 1, uid, gid: uid });
        let others = [
            Request::ForgetPeer { address: "192.0.2.1".into(), force: false },
            Request::Move { connections: Vec::new(), to: String::new(), receiver: None },
            Request::MoveProcess { pid: 1, scope: ProcessScope::Alone, to: String::new(), address: None },
            Request::Place { connections: Vec::new(), from: None },
            Request::Lending { stop: true },
            Request::Migrator,
            Request::Community(CommunityRequest::Leave),
            Request::Community(CommunityRequest::Invite { steward: false }),
            Request::Sockets { pid: 1 },
        ];
        for request in others {
            assert!(check(&request, who(0)).is_ok());
            for other in [who(54321), None] {
                assert_eq!(check(&request, other).expect_err("others'").code, Some(Code::Denied), "{request:?}");
            }
        }
        let theirs = [
            Request::Status,
            Request::Community(CommunityRequest::List),
            Request::Uuid,
            Request::Handoff { to: None, peer: None },
            Request::Receive { name: "x".into() },
        ];
        assert!(theirs.iter().all(|request| check(request, who(54321)).is_ok()));
    }
}
