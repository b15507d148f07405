//! What the names mean that clients give, and what they are given.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure, MAX_NAMES, PeerName};
use whimbrel_protocol::{FlowView, HostView, LocalEnd, PeerId, PeerView, Routes};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::MemberStanding;

use super::desk::Desk;
use super::views;
use crate::clock;

/// Processes that a request may name: what each has open is looked at.
const MAX_PROCESSES: usize = 16;

/// Addresses far away in either family: documentation prefixes, which routing treats as any other (RFC 5737, RFC 3849).
const EVERYWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

impl Desk {
    /// The host that this names.
    pub(crate) fn host_named(&self, wanted: &str) -> Result<PublicKey, Failure> {
        let peers = self.node.peers().filter(|view| views::names(view, wanted)).map(|view| view.key);
        let mut found: Vec<PublicKey> = peers.collect();
        let community = self.node.community(clock::now());
        found.extend(community.called(wanted).into_iter().map(|host| host.key));
        found.extend(self.configured().iter().filter(|(_, name)| *name == wanted).map(|(key, _)| *key));
        found.sort_unstable();
        found.dedup();
        match found[..] {
            [key] => Ok(key),
            [] if community.standing == Some(MemberStanding::Revoked) => {
                Err(Failure::new("no host is known by this: this one was revoked from its community")
                    .on(wanted)
                    .code(Code::Unknown)
                    .hint("`whimbrel community join` takes it back, with a new code."))
            }
            [] => Err(Failure::new("no host is known by this").on(wanted).code(Code::Unknown).hint(
                "A peer's number, key or address, or its name in the community or the configuration: `whimbrel \
                     peers` and `whimbrel community list`.",
            )),
            _ => Err(Failure::new("this names several hosts")
                .on(wanted)
                .hint("The number or key of one names it alone: `whimbrel peers` and `whimbrel community list`.")),
        }
    }

    /// A host, as it is named to clients.
    pub(crate) fn peer_name(&self, key: &PublicKey) -> PeerName {
        let known = self.node.peers().find(|view| view.key == *key);
        let mut found =
            known.map_or_else(|| PeerName { id: 0, key: key.to_string(), name: None }, |view| views::name(&view));
        found.name = self.name_of(key);
        found
    }

    /// What a host is called: its name in the community, or else what the configuration calls it.
    pub(crate) fn name_of(&self, key: &PublicKey) -> Option<String> {
        self.node.name_of_member(key).or(self.configured().get(key).map(String::as_str)).map(str::to_owned)
    }

    /// A host, as people name it.
    pub(crate) fn called(&self, key: &PublicKey) -> String {
        self.peer_name(key).to_string()
    }

    /// What hosts are called, by their keys, as [`Desk::name_of`] has it.
    pub(crate) fn names_of_hosts(&self) -> HashMap<String, String> {
        let configured = self.configured().iter().map(|(key, name)| (key.to_string(), name.clone()));
        let mut names: HashMap<String, String> = configured.collect();
        let hosts = self.node.community(clock::now()).hosts;
        let named = |host: &HostView| Some((host.key.to_string(), self.node.name_of_member(&host.key)?.to_owned()));
        names.extend(hosts.iter().filter_map(named));
        names
    }

    /// This host's addresses, those that it uses towards everywhere first.
    pub(crate) fn met_at(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.own_addresses().into_iter().collect();
        let preferred: Vec<IpAddr> = EVERYWHERE.iter().filter_map(|to| self.routes.source_for(*to)).collect();
        addresses.sort_by_key(|address| !preferred.contains(address));
        addresses
    }

    /// The connections of this host that these name, whoever is at the other end.
    pub(crate) fn open_connections(&mut self, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        if names.is_empty() {
            return Err(Failure::new("no connection is named")
                .hint("An address and port of either end does (192.0.2.1:22, [2001:db8::1]:22), or pid:NUMBER."));
        }
        let ended =
            |view: &FlowView| view.entry.is_some_and(|entry| matches!(entry.end, LocalEnd::Behind | LocalEnd::Passing));
        let views = self.node.flows().filter(|view| !ended(view)).collect();
        self.among(names, views, "no open connection is named by this")
    }

    /// The connections that outlive a move and that these name.
    pub(crate) fn lasting_connections(&mut self, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        let views = self.node.flows().filter(|view| view.entry.is_some()).collect();
        self.among(names, views, "no connection that outlives a move is named by this")
    }

    fn among(&mut self, names: &[String], views: Vec<FlowView>, none: &str) -> Result<Vec<FlowTuple>, Failure> {
        let names: BTreeSet<&String> = names.iter().collect();
        if names.len() > MAX_NAMES {
            return Err(Failure::new(format!("a request may name {MAX_NAMES} connections")).code(Code::TooMany));
        }
        // Looked at once, however many processes are named.
        let mut sockets = None;
        let mut present: Option<HashMap<PeerId, PeerView>> = None;
        let mut processes = 0;
        let mut named = BTreeSet::new();
        for name in names {
            let matching: Vec<FlowTuple> = match name.strip_prefix("pid:").map(str::parse) {
                Some(pid) => {
                    let pid: u32 = pid.map_err(|_| Failure::new("this is no process id").on(name))?;
                    processes += 1;
                    if processes > MAX_PROCESSES {
                        let failure = Failure::new(format!("a request may name {MAX_PROCESSES} processes"));
                        return Err(failure.on(name).code(Code::TooMany));
                    }
                    let sockets = sockets.get_or_insert_with(|| views::sockets(self.host.inhabitants_elsewhere()));
                    views::of_process(&views, pid, sockets)
                }
                None => {
                    let wanted: SocketAddr = name.parse().map_err(|_| {
                        Failure::new("this names no connection").on(name).hint(
                            "An address and port of either end does (192.0.2.1:22, [2001:db8::1]:22), or pid:NUMBER.",
                        )
                    })?;
                    let ends = |tuple: &FlowTuple| [tuple.local, tuple.remote].contains(&wanted);
                    let own: Vec<FlowTuple> = views.iter().map(|view| view.tuple).filter(ends).collect();
                    // Else as programs may be shown it.
                    let peers = present.get_or_insert_with(|| self.node.peers().map(|view| (view.id, view)).collect());
                    let now = |view: &FlowView| views::present(view, peers.get(&view.peer?)?);
                    let is_there = |view: &&FlowView| now(view).as_ref().is_some_and(ends);
                    match own.is_empty() {
                        true => views.iter().filter(is_there).map(|view| view.tuple).collect(),
                        false => own,
                    }
                }
            };
            if matching.is_empty() {
                return Err(Failure::new(none).on(name).hint("`whimbrel connections` shows them."));
            }
            named.extend(matching);
        }
        Ok(named.into_iter().collect())
    }
}
