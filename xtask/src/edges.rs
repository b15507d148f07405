//! Which crate may depend on which, and why. Cargo enforces only that there is no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::failure::{Failure, OnObject};
use crate::workspace::cargo;

/// Every edge between crates of the workspace that may be, with its reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("whimbrel-handshake", "whimbrel-wire", "a handshake is carried in datagrams of the wire format"),
    ("whimbrel-protocol", "whimbrel-wire", "it speaks in messages of the wire format"),
    ("whimbrel-protocol", "whimbrel-handshake", "it owns the sessions of its peers"),
    ("whimbrel-transform", "whimbrel-wire", "tunnel trains are framed by the wire format"),
    ("whimbrel-kernel", "whimbrel-wire", "sockets are found and snapshots taken by flow"),
    ("whimbrel-tunnel", "whimbrel-wire", "flows and keys of sessions are named in its terms"),
    ("whimbrel-tunnel", "whimbrel-transform", "it has packets cut, sealed and transformed"),
    ("whimbrel-tunnel", "whimbrel-kernel", "it reads and writes the TUN device and UDP"),
    ("whimbrel-datapath", "whimbrel-wire", "maps are keyed by flow"),
    ("whimbrel-sim", "whimbrel-protocol", "it drives nodes on a simulated network"),
    ("whimbrel-sim", "whimbrel-handshake", "it gives nodes their keys"),
    ("whimbrel-sim", "whimbrel-wire", "it looks into datagrams to lose or forge them"),
    ("whimbrel-daemon", "whimbrel-wire", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-handshake", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-protocol", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-transform", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-kernel", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-tunnel", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-datapath", "the daemon joins all of it"),
    ("whimbrel-daemon", "whimbrel-ipc", "it answers the local API"),
    ("whimbrel-cli", "whimbrel-ipc", "commands ask the daemon by the local API"),
    ("whimbrel-cli", "whimbrel-daemon", "`up`, `doctor`, `clean` and `run` only (docs/decisions/0001-one-binary.md)"),
    ("whimbrel-daemon", "whimbrel-bus", "what services say of links on D-Bus is heard"),
    ("whimbrel-cli", "whimbrel-bus", "`notify` speaks with the desktop of a user's session"),
    ("whimbrel-capi", "whimbrel-ipc", "programs ask the daemon by the local API"),
    ("whimbrel-lab", "whimbrel-ipc", "scenarios ask their daemons by the local API"),
    ("whimbrel-lab", "whimbrel-wire", "it reads and makes the headers of packets on its links"),
    ("whimbrel-bench", "whimbrel-lab", "measurements run on the lab's hosts and links"),
    ("whimbrel-bench", "whimbrel-tunnel", "it measures the pumps by themselves"),
    ("whimbrel-bench", "whimbrel-datapath", "it sets the windows that ours are held against"),
    ("whimbrel-bench", "whimbrel-handshake", "it measures parts by themselves"),
    ("whimbrel-bench", "whimbrel-kernel", "it measures parts by themselves"),
    ("whimbrel-bench", "whimbrel-transform", "it measures parts by themselves"),
    ("whimbrel-bench", "whimbrel-wire", "it measures parts by themselves"),
    ("whimbrel-bench", "whimbrel-ipc", "measurements ask their daemons by the local API"),
];

/// Edges that only tests may have.
const ALLOWED_IN_TESTS: &[(&str, &str, &str)] = &[
    ("whimbrel-protocol", "whimbrel-sim", "its scenarios run on the simulator"),
    ("whimbrel-datapath", "whimbrel-kernel", "its root tests make namespaces and devices"),
    ("whimbrel-tunnel", "whimbrel-protocol", "its ends agree on chains of transforms in tests"),
    ("whimbrel-tunnel", "whimbrel-handshake", "so they need keys"),
    ("whimbrel-daemon", "whimbrel-sim", "what it makes of a node's orders is tested on the simulator"),
];

/// Crates that do no I/O. Nothing that they depend on, however indirectly, may be one of [`IMPURE`].
const PURE: &[&str] =
    &["whimbrel-wire", "whimbrel-handshake", "whimbrel-protocol", "whimbrel-transform", "whimbrel-sim"];

/// System calls and runtimes, by the beginning of the crate's name.
const IMPURE: &[(&str, &str)] = &[
    ("whimbrel-kernel", "it makes system calls"),
    ("whimbrel-datapath", "it makes system calls"),
    ("whimbrel-tunnel", "it reads devices and sockets"),
    ("whimbrel-daemon", "it is the event loop"),
    ("libbpf-", "it makes system calls"),
    ("netlink-", "it makes system calls"),
    ("rtnetlink", "it makes system calls"),
    ("neli", "it makes system calls"),
    ("nix", "it makes system calls"),
    ("quinn-udp", "it makes system calls"),
    ("rustix", "it makes system calls"),
    ("socket2", "it makes system calls"),
    ("mio", "it is an event loop"),
    ("tokio", "it is an async runtime"),
    ("async-std", "it is an async runtime"),
    ("smol", "it is an async runtime"),
];

/// What is wrong with the workspace's edges, as sentences.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>, Failure> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .failed("run", "cargo metadata")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("cargo metadata failed: {said}")));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).failed("read", "the output of cargo metadata")?;
    Ok(judge(&Graph::from_metadata(&metadata)))
}

/// The dependencies of a workspace, by name.
#[derive(Debug, Default)]
struct Graph {
    members: BTreeSet<String>,
    /// What the crate itself needs: normal and build dependencies.
    normal: BTreeMap<String, BTreeSet<String>>,
    /// What its tests need.
    tests: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn from_metadata(metadata: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let names: BTreeMap<String, String> =
            list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
        let name = |id: &Value| names.get(&text(id)).cloned().unwrap_or_default();

        let mut graph =
            Self { members: list(&metadata["workspace_members"]).iter().map(name).collect(), ..Self::default() };
        for node in list(&metadata["resolve"]["nodes"]) {
            let from = name(&node["id"]);
            for dependency in list(&node["deps"]) {
                let to = name(&dependency["pkg"]);
                for kind in list(&dependency["dep_kinds"]) {
                    let edges = if kind["kind"] == "dev" { &mut graph.tests } else { &mut graph.normal };
                    edges.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        graph
    }

    /// Everything that a crate depends on, with the crate through which it first came.
    fn closure(&self, of: &str) -> BTreeMap<&str, &str> {
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open: Vec<&str> = self.normal.get_key_value(of).map(|(name, _)| name.as_str()).into_iter().collect();
        while let Some(from) = open.pop() {
            for to in self.normal.get(from).into_iter().flatten() {
                if !found.contains_key(to.as_str()) {
                    found.insert(to, from);
                    open.push(to);
                }
            }
        }
        found
    }
}

fn judge(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    let allows =
        |table: &[(&str, &str, &str)], from: &str, to: &str| table.iter().any(|(f, t, _)| *f == from && *t == to);
    for from in &graph.members {
        let members = |edges: &BTreeMap<String, BTreeSet<String>>| -> Vec<String> {
            edges.get(from).into_iter().flatten().filter(|to| graph.members.contains(*to)).cloned().collect()
        };
        for to in members(&graph.normal) {
            if !allows(ALLOWED, from, &to) {
                faults.push(format!("{from} must not depend on {to}: xtask/src/edges.rs lists what may, and why"));
            }
        }
        for to in members(&graph.tests) {
            if !allows(ALLOWED, from, &to) && !allows(ALLOWED_IN_TESTS, from, &to) {
                faults.push(format!("the tests of {from} must not depend on {to}: see xtask/src/edges.rs"));
            }
        }
    }
    for pure in PURE {
        for (name, through) in graph.closure(pure) {
            if let Some((_, reason)) = IMPURE.iter().find(|(prefix, _)| is_or_extends(name, prefix)) {
                faults.push(format!("{pure} does no I/O, but depends on {name} (through {through}): {reason}"));
            }
        }
    }
    faults
}

/// A whole name, or one of its family: `tokio` covers `tokio-util`, `nix` does not cover `nixpkgs`.
fn is_or_extends(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| prefix.ends_with('-') || rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in edges {
            for name in [from, to].into_iter().filter(|name| name.starts_with("whimbrel-")) {
                graph.members.insert((*name).to_owned());
            }
            graph.normal.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    #[test]
    fn the_workspace_has_no_other_edges() {
        assert_eq!(faults(&root()).unwrap(), [] as [String; 0]);
    }

    #[test]
    fn an_edge_that_is_not_listed_is_a_fault() {
        assert_eq!(judge(&graph(&[("whimbrel-cli", "whimbrel-ipc")])), [] as [String; 0]);
        assert_eq!(judge(&graph(&[("whimbrel-cli", "whimbrel-kernel")])).len(), 1);
    }

    #[test]
    fn impurity_is_found_however_deep() {
        let faults = judge(&graph(&[("whimbrel-wire", "nice"), ("nice", "deeper"), ("deeper", "tokio-util")]));
        assert_eq!(
            faults,
            ["whimbrel-wire does no I/O, but depends on tokio-util (through deeper): it is an async runtime"]
        );
        assert!(judge(&graph(&[("whimbrel-wire", "mioco")])).is_empty());
    }

    #[test]
    fn edges_are_listed_once() {
        let mut seen = BTreeSet::new();
        for (from, to, reason) in ALLOWED.iter().chain(ALLOWED_IN_TESTS) {
            assert!(seen.insert((from, to)) && !reason.is_empty(), "{from} -> {to}");
        }
    }
}
