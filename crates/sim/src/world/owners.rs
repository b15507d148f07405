//! Who may have what a flow's ends send, and what somebody sees who is on a link.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use whimbrel_protocol::Time;

use super::{FlowId, World};
use crate::host::HostId;
use crate::ledger::Kind;
use crate::network::NetworkId;
use crate::packet::{Body, Packet};

/// How long something may still be under way to who had a socket before.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// Packets that are remembered of what was seen.
const SEEN: usize = 512;

/// Who may have what comes for an end of a flow, beside the host that has its socket.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// All of one party that keeps to no rules: what one of it may have, all may.
    hostile: BTreeSet<HostId>,
    /// Sessions whose keys that party has, by the index that its end is addressed by.
    sessions: BTreeSet<u32>,
    /// Whom an end's socket was given to, and until when what comes for it may come there; `None`: it may have it
    /// still.
    given: BTreeMap<(FlowId, usize), BTreeMap<HostId, Option<Time>>>,
}

/// What is seen by who is on these links.
#[derive(Debug, Default)]
pub(super) struct Watch {
    links: BTreeSet<NetworkId>,
    seen: VecDeque<Packet>,
}

impl World {
    /// Takes a host for one of a party that keeps to no rules.
    pub fn turn(&mut self, host: HostId) {
        self.owners.hostile.insert(host);
    }

    /// Whether a host belongs to that party.
    #[must_use]
    pub fn is_hostile(&self, host: HostId) -> bool {
        self.owners.hostile.contains(&host)
    }

    /// That party's end of a session is addressed by this index.
    pub(crate) fn on_session(&mut self, index: u32) {
        self.owners.sessions.insert(index);
    }

    /// Whether that party can open what is sealed for this session.
    pub(super) fn can_open(&self, index: u32) -> bool {
        self.owners.sessions.contains(&index)
    }

    /// Whether what comes for an end of a flow may come to a host.
    #[must_use]
    pub fn may_have(&self, flow: FlowId, end: usize, host: HostId) -> bool {
        let owner = self.flow(flow).hosts[end];
        let one_of = |who: HostId| who == host || self.is_hostile(who) && self.is_hostile(host);
        let given = self.owners.given.get(&(flow, end)).into_iter().flatten();
        let mut given = given.filter(|(_, until)| until.is_none_or(|until| until > self.now));
        one_of(owner) || given.any(|(who, _)| one_of(*who))
    }

    /// The owner of an end's socket gives it away: what comes for it may come to the other host, too.
    pub(super) fn on_given(&mut self, flow: FlowId, end: usize, to: HostId) {
        self.owners.given.entry((flow, end)).or_default().insert(to, None);
    }

    /// An end's socket is with a host now, and with nobody else.
    pub(super) fn on_owned(&mut self, flow: FlowId, end: usize, by: HostId) {
        let (until, before) = (self.now + UNDER_WAY, self.flow(flow).hosts[end]);
        let given = self.owners.given.entry((flow, end)).or_default();
        given.insert(before, None);
        given.remove(&by);
        given.values_mut().for_each(|of| *of = Some(of.unwrap_or(until).min(until)));
    }

    /// Whether both flows are that party's own: which of them gets what is for them to see.
    pub(super) fn are_hostile(&self, one: FlowId, other: FlowId) -> bool {
        [one, other].iter().all(|flow| self.flow(*flow).hosts.iter().any(|host| self.is_hostile(*host)))
    }

    /// A packet of an end of a flow has come to a host by other names than its own, or to one that reads whatever
    /// comes. Tells whether it ends there. Judged where there is such a party: then connections that move are tied to
    /// their flows.
    pub(super) fn judge(&mut self, host: HostId, packet: &Packet, (flow, end): (FlowId, usize), renamed: bool) -> bool {
        if self.owners.hostile.is_empty() {
            return false;
        }
        let hostile = self.is_hostile(host);
        if (renamed || hostile) && !self.may_have(flow, 1 - end, host) {
            let name = self.hosts[host.0].name;
            let what = format!("{name} gets what end {end} of {flow:?} has sent: {packet}");
            self.ledger.violation(Kind::Taken, self.now, what);
            return true;
        }
        // Nobody on a host of that party answers for what is not its own.
        hostile && self.flow(flow).hosts[1 - end] != host
    }

    /// Remembers what passes on a network from now on.
    pub fn watch(&mut self, network: NetworkId) {
        self.watch.links.insert(network);
    }

    /// What has passed on the networks that are watched, as it stood there; the newest last.
    pub fn seen(&self) -> impl Iterator<Item = &Packet> {
        self.watch.seen.iter()
    }

    pub(super) fn on_seen(&mut self, network: NetworkId, packet: &Packet) {
        if !self.watch.links.contains(&network) || matches!(packet.body, Body::Data { .. } | Body::Tunnel { .. }) {
            return;
        }
        if self.watch.seen.len() >= SEEN {
            self.watch.seen.pop_front();
        }
        self.watch.seen.push_back(packet.clone());
    }
}
