//! Which program a socket belongs to.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number, in the PID namespace that `/proc` shows.
    pub pid: u32,
    /// The first 15 bytes of its name (`/proc/PID/comm`).
    pub name: String,
}

/// The processes that have sockets with these inodes. Reads the descriptors of all processes, so ask for many at once.
/// A socket that several processes share is given to the one with the lowest number; processes that may not be looked
/// into (no CAP_SYS_PTRACE, another user) are left out, and so are those that end meanwhile.
#[must_use]
pub fn owners(inodes: &HashSet<u32>) -> HashMap<u32, Process> {
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut owners = HashMap::with_capacity(inodes.len());
    for pid in pids {
        if owners.len() == inodes.len() {
            break;
        }
        let mut name = None;
        for inode in open_sockets(pid) {
            if inodes.contains(&inode) && !owners.contains_key(&inode) {
                let name = name.get_or_insert_with(|| name_of(pid)).clone();
                owners.insert(inode, Process { pid, name });
            }
        }
    }
    owners
}

/// A process that has a socket open, and where it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Its number, in the PID namespace that `/proc` shows.
    pub pid: u32,
    /// The first 15 bytes of its name (`/proc/PID/comm`).
    pub name: String,
    /// The file that it executes (`/proc/PID/exe`); of a script that is its interpreter. One that was replaced or
    /// removed ends in ` (deleted)`. Empty where that may not be read.
    pub executable: PathBuf,
    /// Its place in the cgroup v2 hierarchy, beginning with `/`; empty where there is none.
    pub cgroup: String,
    /// Its effective user; `None` where it is gone.
    pub uid: Option<u32>,
}

/// All processes that have sockets with these inodes. As [`owners`], but whoever shares a socket is told.
#[must_use]
pub fn holders(inodes: &HashSet<u32>) -> HashMap<u32, Vec<Holder>> {
    let pids = numbers();
    let mut holders: HashMap<u32, Vec<Holder>> = HashMap::with_capacity(inodes.len());
    for pid in pids {
        let open: HashSet<u32> = open_sockets(pid).filter(|inode| inodes.contains(inode)).collect();
        if open.is_empty() {
            continue;
        }
        let holder = Holder {
            pid,
            name: name_of(pid),
            executable: std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default(),
            cgroup: cgroup_of(pid),
            uid: user_of(pid),
        };
        for inode in open {
            holders.entry(inode).or_default().push(holder.clone());
        }
    }
    holders
}

/// The numbers of all processes.
pub(crate) fn numbers() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The inodes of the sockets that a process has open, shared ones too; none where it may not be looked into, or is
/// gone.
#[must_use]
pub fn sockets(pid: u32) -> HashSet<u32> {
    open_sockets(pid).collect()
}

fn open_sockets(pid: u32) -> impl Iterator<Item = u32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| socket_inode(&std::fs::read_link(descriptor.path()).ok()?))
}

/// The first 15 bytes of a process's name (`/proc/PID/comm`); empty where it is gone.
#[must_use]
pub fn name_of(pid: u32) -> String {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(comm.trim_ascii_end()).into_owned()
}

/// The place of a process in the cgroup v2 hierarchy, beginning with `/`; empty where there is none, or it is gone.
#[must_use]
pub fn cgroup_of(pid: u32) -> String {
    // From the line of hierarchy 0, which is that of version 2 (cgroups(7)).
    let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    lines.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// The effective user of a process (`/proc/PID/status`; the files' owner is root where it has changed its user).
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

pub(crate) fn socket_inode(link: &Path) -> Option<u32> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn finds_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let listeners = crate::sock_diag::SockDiag::open().unwrap().listeners().unwrap();
        let inode = listeners.iter().find(|l| l.address == here).unwrap().inode;
        let owners = owners(&HashSet::from([inode, 0]));
        assert_eq!(owners[&inode].pid, std::process::id());
        assert!(!owners[&inode].name.is_empty());
        let holders = super::holders(&HashSet::from([inode, 0]));
        assert_eq!(holders.keys().collect::<Vec<_>>(), [&inode]);
        let itself = std::fs::read_link("/proc/self/exe").unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert!(holders[&inode].iter().all(|holder| holder.uid == Some(user)));
        assert!(holders[&inode].iter().any(|holder| holder.executable == itself && holder.name == owners[&inode].name));
        assert!(sockets(std::process::id()).contains(&inode));
        assert!(sockets(u32::MAX).is_empty());
    }
}
