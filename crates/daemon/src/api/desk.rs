//! What all parts of the local API work with.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{EventRecord, EventsQuery, Metric, Reply};
use whimbrel_protocol::{Event, Node, PeerId, PeerView, Time};

use super::Answer;
use super::kept::KeptSockets;
use super::server::{ClientId, Server};
use super::socket_names::SocketNames;
use crate::clock;
use crate::event_log::EventLog;
use crate::events::{EventRing, Report, Restraint};
use crate::host::{Host, own_addresses};
use crate::link::route_lookup::RouteLookup;
use crate::metrics::{Looked, Tally};

/// The node, the host that it is on, and who is to be told. Whoever answers a part of the local API is given it, beside
/// the executors of its own role.
pub(crate) struct Desk {
    pub(crate) node: Node,
    pub(crate) host: Host,
    pub(crate) routes: RouteLookup,
    pub(crate) server: Server,
    /// What sockets are called.
    pub(crate) names: SocketNames,
    /// Sockets that wait for their programs.
    pub(crate) kept: KeptSockets,
    events: EventRing,
    event_log: Option<EventLog>,
    restraint: Restraint,
    tally: Tally,
    /// What the configuration calls hosts, by their keys.
    configured: HashMap<PublicKey, String>,
}

/// What a role's part of the local API answers with: the desk, and what carries out its own.
pub(crate) struct With<'a, E> {
    pub(crate) desk: &'a mut Desk,
    pub(crate) own: &'a mut E,
}

impl Desk {
    pub(crate) fn new(
        node: Node,
        host: Host,
        routes: RouteLookup,
        server: Server,
        names: SocketNames,
        event_log: Option<EventLog>,
        tally: Tally,
    ) -> Self {
        Self {
            node,
            host,
            routes,
            server,
            names,
            kept: KeptSockets::default(),
            events: EventRing::default(),
            event_log,
            restraint: Restraint::default(),
            tally,
            configured: HashMap::new(),
        }
    }

    /// What the configuration calls hosts, by their keys.
    pub(crate) fn with_names(mut self, configured: HashMap<PublicKey, String>) -> Self {
        self.configured = configured;
        self
    }

    /// The same, for who names hosts.
    pub(super) fn configured(&self) -> &HashMap<PublicKey, String> {
        &self.configured
    }

    /// All peers, by number, with when each was last heard, by the tunnel or otherwise.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerView> {
        let heard = self.host.tunnel.heard();
        self.node.peers().map(move |view| with_heard(view, &heard))
    }

    /// One of them.
    pub(crate) fn peer(&self, id: PeerId) -> Option<PeerView> {
        Some(with_heard(self.node.peer(id)?, &self.host.tunnel.heard()))
    }

    /// Keeps an event, logs it, and tells it to those who follow.
    pub(crate) fn tell(&mut self, told: Report) {
        let told = told.name_peers(|id| self.name_of(&self.node.key_of(id)?));
        if told.kind.is_of_connection() {
            // A busy server would fill its log.
            tracing::debug!("{}", told.sentence);
        } else if told.kind.is_a_failure() {
            tracing::warn!("{}", told.sentence);
        } else {
            tracing::info!("{}", told.sentence);
        }
        self.tally.count(told.kind);
        let record = self.events.push(SystemTime::now(), clock::monotonic(), told);
        if let Some(log) = &mut self.event_log {
            log.write(record);
        }
        self.server.tell(record);
    }

    /// Tells it, unless others cause too many such events.
    pub(crate) fn tell_restrained(&mut self, now: Time, told: Report) {
        if self.restraint.admits(now, &told) {
            self.tell(told);
        } else {
            self.tally.count(told.kind);
        }
    }

    /// Counts what has happened in the node.
    pub(crate) fn count(&mut self, event: &Event) {
        self.tally.record(event);
    }

    /// Gives a client its answer, if there is one by now.
    pub(crate) fn reply(&mut self, id: ClientId, answer: Answer) {
        match answer {
            Ok(Some(reply)) => self.server.reply(id, &reply),
            Ok(None) => {}
            Err(failure) => self.server.reply(id, &Reply::Error(failure)),
        }
    }

    /// Tells how much was not told.
    pub(crate) fn tell_of_left_out(&mut self, now: Time) {
        self.restraint.left_out(now).into_iter().for_each(|told| self.tell(told));
    }

    /// The number of the newest event; 0 where there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.events.newest()
    }

    /// The events that a query asks for, oldest first.
    pub(crate) fn select(&self, query: &EventsQuery) -> impl Iterator<Item = &EventRecord> {
        self.events.select(query)
    }

    /// Figures for monitoring.
    pub(crate) fn metrics(&self, looked: &Looked<'_>) -> Vec<Metric> {
        self.tally.metrics(looked)
    }

    /// This host's addresses.
    pub(crate) fn own_addresses(&self) -> BTreeSet<IpAddr> {
        own_addresses(&self.host.network)
    }
}

/// `heard`: when something of each peer has come through the tunnel last.
fn with_heard(view: PeerView, heard: &HashMap<PeerId, Duration>) -> PeerView {
    let by_tunnel = heard.get(&view.id).map_or(Time::default(), |at| clock::of(*at));
    PeerView { last_heard: view.last_heard.max(by_tunnel), ..view }
}
