//! Which connections a section of the configuration means.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use whimbrel_handshake::PublicKey;
pub use whimbrel_kernel::process::Holder;
use whimbrel_protocol::Prefix;
use whimbrel_wire::{FlowTuple, Transport};

/// A connection that is held against conditions.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// As this host names it.
    pub flow: &'a FlowTuple,
    /// The key of the peer at its other end, once that is known.
    pub key: Option<&'a PublicKey>,
    /// The processes that have it open. None where nobody asked, or where no process has it any more.
    pub holders: &'a [Holder],
}

/// What `peer` in the configuration may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCondition {
    /// The remote address lies here.
    Prefix(Prefix),
    /// The peer has this key.
    Key(PublicKey),
}

/// What `program` in the configuration may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramCondition {
    /// The name of the executable's file, or the name that the process goes by.
    Name(String),
    /// The executable's absolute path, links resolved.
    Path(PathBuf),
}

/// The name that a process goes by, as the kernel has it: 15 bytes at most, and zeros behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramName([u8; 16]);

impl ProgramName {
    /// What a process is called that executes a file of this name, unless it calls itself otherwise.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
        Self(bytes)
    }

    /// With the zeros.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl ProgramCondition {
    /// The name that such a process goes by, unless it calls itself otherwise.
    #[must_use]
    pub fn name(&self) -> Option<ProgramName> {
        match self {
            Self::Name(name) => Some(ProgramName::new(name)),
            Self::Path(path) => path.file_name()?.to_str().map(ProgramName::new),
        }
    }

    /// Of the configuration's text: a path where that begins with `/`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text.starts_with('/') { Self::Path(text.into()) } else { Self::Name(text.to_owned()) }
    }

    fn matches(&self, holder: &Holder) -> bool {
        match self {
            // A file that was replaced while it runs is shown so (proc_pid_exe(5)).
            Self::Path(path) => {
                let shown = holder.executable.as_os_str().as_encoded_bytes();
                let shown = shown.strip_suffix(b" (deleted)").unwrap_or(shown);
                shown == path.as_os_str().as_encoded_bytes()
            }
            Self::Name(name) => {
                // comm is cut to 15 bytes (TASK_COMM_LEN).
                let cut = name.as_bytes().get(..15).unwrap_or(name.as_bytes());
                let file = holder.executable.file_name().map(Path::new).map(Path::as_os_str);
                let file = file.map(|file| file.as_encoded_bytes()).unwrap_or_default();
                let file = file.strip_suffix(b" (deleted)").unwrap_or(file);
                file == name.as_bytes() || !holder.name.is_empty() && holder.name.as_bytes() == cut
            }
        }
    }
}

/// The conditions of one section, all of which a connection must meet. Without any it matches every connection.
///
/// `[[policy]]` sections have one each. It is made by `config::conditions`, so that every section that means
/// connections names them by the same keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// `peer`: one of these is met. `None`: any peer.
    pub peer: Option<Vec<PeerCondition>>,
    /// `local_port`.
    pub local_port: Option<RangeInclusive<u16>>,
    /// `remote_port`.
    pub remote_port: Option<RangeInclusive<u16>>,
    /// `transport`.
    pub transport: Option<Transport>,
    /// `program`: of one of the processes that have it open.
    pub program: Option<ProgramCondition>,
    /// `cgroup`: one of them is in this one or below it. Begins with `/`, and does not end so unless it is the root.
    pub cgroup: Option<String>,
}

impl Matcher {
    /// Whether a connection is meant. What is not known of it meets no condition: a section that names a key means
    /// nobody before the peer's key is known, one that names a program no connection that nobody has open.
    #[must_use]
    pub fn matches(&self, subject: &Subject<'_>) -> bool {
        let Subject { flow, key, holders } = subject;
        let met = |condition: &PeerCondition| match condition {
            PeerCondition::Prefix(prefix) => prefix.contains(flow.remote.ip()),
            PeerCondition::Key(wanted) => *key == Some(wanted),
        };
        let within =
            |range: &Option<RangeInclusive<u16>>, port: u16| range.as_ref().is_none_or(|range| range.contains(&port));
        self.transport.is_none_or(|transport| transport == flow.transport)
            && within(&self.local_port, flow.local.port())
            && within(&self.remote_port, flow.remote.port())
            && self.peer.as_ref().is_none_or(|peer| peer.iter().any(met))
            && (!self.asks_for_holders() || holders.iter().any(|holder| self.matches_holder(holder)))
    }

    /// One process meets both.
    fn matches_holder(&self, holder: &Holder) -> bool {
        self.program.as_ref().is_none_or(|program| program.matches(holder))
            && self.cgroup.as_ref().is_none_or(|cgroup| lies_in(&holder.cgroup, cgroup))
    }

    /// Whether the processes that have a connection must be known: finding them out takes a while.
    #[must_use]
    pub fn asks_for_holders(&self) -> bool {
        self.program.is_some() || self.cgroup.is_some()
    }

    /// Whether it has conditions on more than the peer at the other end.
    #[must_use]
    pub fn means_flows(&self) -> bool {
        Self { peer: None, ..self.clone() } != Self::default()
    }

    /// Without those on who has a connection open.
    #[must_use]
    pub fn but_for_holders(&self) -> Self {
        Self { program: None, cgroup: None, ..self.clone() }
    }

    /// The keys that it names.
    pub fn keys(&self) -> impl Iterator<Item = &PublicKey> {
        self.peer.iter().flatten().filter_map(|condition| match condition {
            PeerCondition::Key(key) => Some(key),
            PeerCondition::Prefix(_) => None,
        })
    }
}

/// Whether a cgroup is `ancestor` or below it.
fn lies_in(cgroup: &str, ancestor: &str) -> bool {
    let ancestor = ancestor.trim_end_matches('/');
    cgroup.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
