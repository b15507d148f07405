//! Connections of protocols that are not moved: they are named, with the reason, and so are those that a move leaves
//! behind.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use whimbrel_ipc as ipc;
use whimbrel_kernel::other_protocols::{Bound, Protocol, bound};
use whimbrel_kernel::process;

use crate::events::{Kind, Report};

/// Connections that an event names one by one.
const NAMED: usize = 16;

/// Why something is not moved (docs/programs.md).
fn reason(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::UdpLite => "UDP-Lite is not moved",
        Protocol::Echo => "an echo socket that is bound to an address is not moved; one that is not goes on by itself",
        Protocol::Raw => "a raw socket that is bound to an address is not moved; one that is not goes on by itself",
        Protocol::Sctp => "SCTP is not moved; it can change addresses by itself (RFC 5061), if both ends let it",
        Protocol::Ipsec => "IPsec is not moved; its key exchange can do so (MOBIKE, RFC 4555)",
    }
}

fn transport(protocol: Protocol) -> ipc::Transport {
    match protocol {
        Protocol::UdpLite => ipc::Transport::UdpLite,
        Protocol::Echo => ipc::Transport::Echo,
        Protocol::Raw => ipc::Transport::Raw,
        Protocol::Sctp => ipc::Transport::Sctp,
        Protocol::Ipsec => ipc::Transport::Ipsec,
    }
}

fn flow(bound: &Bound) -> ipc::Flow {
    let nobody = match bound.local.ip() {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let remote = bound.remote.unwrap_or(SocketAddr::new(nobody, 0));
    ipc::Flow { transport: transport(bound.protocol), local: bound.local, remote }
}

fn look() -> Vec<Bound> {
    bound().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list connections that are neither TCP nor UDP");
        Vec::new()
    })
}

/// All of them at these addresses of this host, as `whimbrel connections` shows them.
pub(crate) fn connections(own: &BTreeSet<IpAddr>, since: &str) -> Vec<ipc::Connection> {
    let found: Vec<Bound> = look().into_iter().filter(|bound| own.contains(&bound.local.ip())).collect();
    let inodes: HashSet<u32> = found.iter().map(|bound| bound.inode).filter(|inode| *inode != 0).collect();
    let owners = if inodes.is_empty() { HashMap::default() } else { process::owners(&inodes) };
    let shown = found.iter().map(|bound| ipc::Connection {
        process: owners.get(&bound.inode).map(|owner| ipc::Process { pid: owner.pid, name: owner.name.clone() }),
        since: since.to_owned(),
        reason: Some(reason(bound.protocol).to_owned()),
        ..ipc::Connection::bare(flow(bound), ipc::ConnectionState::Unprotected)
    });
    shown.collect()
}

/// What is left behind at addresses that this host does not have any more.
pub(crate) fn left_behind(gone: &[IpAddr]) -> Option<Report> {
    if gone.is_empty() {
        return None;
    }
    let left: Vec<Bound> = look().into_iter().filter(|bound| gone.iter().any(|gone| bound.needs(*gone))).collect();
    let first = left.first()?;
    let flows: Vec<String> = left.iter().take(NAMED).map(|bound| flow(bound).to_string()).collect();
    let mut reasons: Vec<&str> = left.iter().map(|bound| reason(bound.protocol)).collect();
    reasons.dedup();
    let reason = reasons.join("; ");
    let sentence = match left.len() {
        1 => format!("{} stays at an address that is gone: {reason}", flow(first)),
        count => format!("{count} connections stay at an address that is gone: {reason}"),
    };
    let report = Report::new(Kind::LeftBehind, sentence).with("flows", flows).with("count", left.len());
    Some(report.with("reason", reason))
}
