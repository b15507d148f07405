//! Figures for monitoring (`docs/metrics.md`): what is counted as it happens, and what is looked up when somebody asks.

mod endpoint;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_ipc::{ConnectionState, Metric, MetricKind};
use whimbrel_protocol::{Carrier, Event, FlowState, FlowView, PeerId, PeerView, Standing};
use whimbrel_tunnel::Counter;

use crate::api::views;
use crate::events::Kind;
pub(crate) use endpoint::Endpoint;

/// Upper bounds of what hand-offs are told apart by, in seconds.
const BOUNDS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Whose hand-offs came to what end.
const HANDOFFS: [(&str, &str); 4] =
    [("local", "moved"), ("local", "not-moved"), ("local", "taken-back"), ("peer", "moved")];

/// Counter of the data plane that is not one of packets.
const LOST: &str = "flow_event_lost";

/// What is counted since the daemon started.
#[derive(Debug)]
pub(crate) struct Tally {
    since: SystemTime,
    events: BTreeMap<Kind, u64>,
    handoffs: [u64; HANDOFFS.len()],
    /// Hand-offs of each bound and of none, which lasted no longer than that and longer than the bound before.
    took: [u64; BOUNDS.len() + 1],
    took_together: Duration,
}

/// What is looked up.
pub(crate) struct Looked<'a> {
    pub(crate) suspended: bool,
    pub(crate) peers: &'a [PeerView],
    pub(crate) connections: Connections,
    pub(crate) kept_addresses: usize,
    /// Of the tunnel.
    pub(crate) tunnel: Vec<(Counter, u64)>,
    /// Of the data plane, by name; `None` where the kernel did not tell them.
    pub(crate) datapath: Option<Vec<(&'static str, u64)>>,
}

/// How many connections there are of each kind.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Connections {
    states: [u64; STATES.len()],
    carriers: [u64; CARRIERS.len()],
}

const STATES: [ConnectionState; 7] = [
    ConnectionState::Native,
    ConnectionState::Moved,
    ConnectionState::NotConfirmed,
    ConnectionState::Held,
    ConnectionState::Pending,
    ConnectionState::Unprotected,
    ConnectionState::Lost,
];

const CARRIERS: [(Carrier, &str); 3] =
    [(Carrier::Rewrite, "rewrite"), (Carrier::Tunnel, "tunnel"), (Carrier::FollowRewrite, "follow-rewrite")];

impl Connections {
    /// Counts flows. `standing`: of the remote address of one that is not introduced. `lost`: whether a move has left
    /// one behind.
    pub(crate) fn count(
        flows: impl Iterator<Item = FlowView>,
        peers: &[PeerView],
        standing: impl Fn(IpAddr) -> Standing,
        lost: impl Fn(&FlowView) -> bool,
    ) -> Self {
        let peers: HashMap<PeerId, &PeerView> = peers.iter().map(|peer| (peer.id, peer)).collect();
        let mut counted = Self::default();
        for flow in flows.filter(FlowView::is_connection) {
            let peer = flow.peer.and_then(|peer| peers.get(&peer).copied());
            let state = match flow.state {
                _ if lost(&flow) => ConnectionState::Lost,
                FlowState::Unknown => views::state_of_unknown(&flow, standing(flow.tuple.remote.ip())),
                _ => views::state(&flow, peer),
            };
            counted.states[STATES.iter().position(|one| *one == state).unwrap_or(0)] += 1;
            let carrier = peer.filter(|_| state == ConnectionState::Moved).map(|peer| peer.carrier);
            if let Some(index) = CARRIERS.iter().position(|(one, _)| Some(*one) == carrier) {
                counted.carriers[index] += 1;
            }
        }
        counted
    }
}

impl Tally {
    /// Begins to count, now. `kinds`: those that are told even before one has happened.
    pub(crate) fn new(since: SystemTime, kinds: impl Iterator<Item = Kind>) -> Self {
        Self {
            since,
            events: kinds.map(|kind| (kind, 0)).collect(),
            handoffs: [0; HANDOFFS.len()],
            took: [0; BOUNDS.len() + 1],
            took_together: Duration::ZERO,
        }
    }

    /// An event happened, whether or not it is told.
    pub(crate) fn count(&mut self, kind: Kind) {
        *self.events.entry(kind).or_default() += 1;
    }

    /// What the node tells of hand-offs.
    pub(crate) fn record(&mut self, event: &Event) {
        let ended = match event {
            Event::Moved { took, .. } => {
                let seconds = took.as_secs_f64();
                self.took[BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len())] += 1;
                self.took_together += *took;
                ("local", "moved")
            }
            Event::NotMoved { .. } => ("local", "not-moved"),
            Event::TakenBack { .. } => ("local", "taken-back"),
            Event::PeerMoved { .. } => ("peer", "moved"),
            _ => return,
        };
        if let Some(index) = HANDOFFS.iter().position(|one| *one == ended) {
            self.handoffs[index] += 1;
        }
    }

    /// All figures.
    pub(crate) fn metrics(&self, looked: &Looked<'_>) -> Vec<Metric> {
        use MetricKind::{Counter as Rises, Gauge};
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let of_peers =
            |wanted: &dyn Fn(&PeerView) -> bool| looked.peers.iter().filter(|peer| wanted(peer)).count() as u64;
        let sessions = [("up", of_peers(&|peer| peer.session)), ("none", of_peers(&|peer| !peer.session))];
        let away = [true, false].map(|announced| of_peers(&|peer| peer.away == Some(announced)));
        let away = ["announced", "silent"].into_iter().zip(away);
        let Connections { states, carriers } = &looked.connections;
        let states = STATES.iter().map(|state| state.word().to_owned()).zip(states.iter().copied());
        let carriers = CARRIERS.iter().map(|(_, carrier)| *carrier).zip(carriers.iter().copied());
        let events = self.events.iter().map(|(kind, count)| (kind.word(), *count));
        let mut handoffs =
            Metric::new("whimbrel_handoffs_total", Rises, "Hand-offs, by the end that moved and by what came of them.");
        for ((end, outcome), count) in HANDOFFS.iter().zip(self.handoffs) {
            handoffs = handoffs.sample("", &[("end", end), ("outcome", outcome)], count as f64);
        }
        let mut metrics = vec![
            Metric::new("whimbrel_build_info", Gauge, "Always 1; the label is the version of the program.")
                .each("version", [(env!("CARGO_PKG_VERSION"), 1)]),
            Metric::new("whimbrel_start_time_seconds", Gauge, "When the daemon started, in seconds since 1970.")
                .value(since),
            Metric::new("whimbrel_suspended", Gauge, "Whether this host is suspended (1) or not (0).")
                .value(f64::from(u8::from(looked.suspended))),
            Metric::new("whimbrel_peers", Gauge, "Known peers, by whether a session with them is up.")
                .each("session", sessions),
            Metric::new("whimbrel_peers_away", Gauge, "Peers that are away, by whether they said so.")
                .each("how", away),
            Metric::new("whimbrel_connections", Gauge, "Connections, by what a move of this host would do to them.")
                .each("state", states),
            Metric::new(
                "whimbrel_carried_connections",
                Gauge,
                "Connections that are carried elsewhere than they were opened, by what carries them.",
            )
            .each("carrier", carriers),
            Metric::new("whimbrel_kept_addresses", Gauge, "Former addresses that connections still use.")
                .value(looked.kept_addresses as f64),
            Metric::new("whimbrel_events_total", Rises, "Events, by kind, those that were not told included.")
                .each("kind", events),
            handoffs,
            self.durations(),
        ];
        metrics.extend(tunnel(&looked.tunnel));
        metrics.extend(looked.datapath.iter().flat_map(|counters| datapath(counters)));
        metrics
    }

    fn durations(&self) -> Metric {
        let mut metric = Metric::new(
            "whimbrel_handoff_duration_seconds",
            MetricKind::Histogram,
            "How long moves of this host took, from its notice to the peer's acknowledgement.",
        );
        let mut so_far = 0;
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(self.took) {
            so_far += count;
            metric = metric.sample("_bucket", &[("le", &bound)], so_far as f64);
        }
        metric.sample("_sum", &[], self.took_together.as_secs_f64()).sample("_count", &[], so_far as f64)
    }
}

fn tunnel(counters: &[(Counter, u64)]) -> [Metric; 3] {
    let kind = MetricKind::Counter;
    let mut packets = Metric::new("whimbrel_tunnel_packets_total", kind, "Packets that the tunnel carried (segments).");
    let mut bytes = Metric::new("whimbrel_tunnel_bytes_total", kind, "Bytes of packets that the tunnel carried.");
    let mut dropped = Metric::new(
        "whimbrel_tunnel_dropped_total",
        kind,
        "Packets and datagrams that the tunnel dropped, by the reason.",
    );
    for (counter, count) in counters {
        let count = *count as f64;
        match counter {
            Counter::PacketsSent => packets = packets.sample("", &[("direction", "sent")], count),
            Counter::PacketsReceived => packets = packets.sample("", &[("direction", "received")], count),
            Counter::BytesSent => bytes = bytes.sample("", &[("direction", "sent")], count),
            Counter::BytesReceived => bytes = bytes.sample("", &[("direction", "received")], count),
            Counter::DuplicatesSent => packets = packets.sample("", &[("direction", "sent_twice")], count),
            other => dropped = dropped.sample("", &[("reason", other.name())], count),
        }
    }
    [packets, bytes, dropped]
}

fn datapath(counters: &[(&'static str, u64)]) -> [Metric; 2] {
    let (lost, verdicts): (Vec<_>, Vec<_>) = counters.iter().copied().partition(|(name, _)| *name == LOST);
    let packets = Metric::new(
        "whimbrel_datapath_packets_total",
        MetricKind::Counter,
        "Packets that eBPF programs gave a verdict on, since these were loaded.",
    )
    .each("verdict", verdicts);
    let lost: u64 = lost.into_iter().map(|(_, count)| count).sum();
    let lost = Metric::new(
        "whimbrel_flow_events_lost_total",
        MetricKind::Counter,
        "Openings and closings of connections that came too fast; all connections are listed again then.",
    )
    .value(lost as f64);
    [packets, lost]
}

#[cfg(test)]
mod tests {
    mod strict;

    use super::*;
    use crate::events::KINDS;
    use whimbrel_handshake::StaticKey;
    use whimbrel_ipc::exposition;
    use whimbrel_protocol::{Carried, FlowEntry, LocalEnd, Places, Time, Waits};
    use whimbrel_wire::{FlowTuple, Transport};

    fn peer(id: u32, carrier: Carrier) -> PeerView {
        PeerView {
            id: PeerId(id),
            key: StaticKey::from_bytes([1; 32]).public(),
            remote: "198.51.100.7:2031".parse().unwrap(),
            candidate: None,
            by_tcp: false,
            source: None,
            observed: None,
            session: id != 2,
            capabilities: None,
            round_trip: None,
            places: Places::default(),
            carrier,
            translated: false,
            path: whimbrel_protocol::PathId(0),
            kept: Vec::new(),
            flows: 1,
            moved: 1,
            locators: Vec::new(),
            sequences: (0, 0),
            last_heard: Time::default(),
            mapped: false,
            ping: None,
            doubt: None,
            away: (id == 3).then_some(false),
        }
    }

    fn flow(port: u16, state: FlowState, peer: Option<u32>) -> FlowView {
        let local = ([192, 0, 2, 1], port).into();
        let tuple = FlowTuple { transport: Transport::Tcp, local, remote: ([203, 0, 113, 5], 22).into() };
        let entry = peer.map(|peer| FlowEntry {
            peer: PeerId(peer),
            name: 7,
            side: 0,
            waits: Waits { here: port == 99, ..Waits::default() },
            manner: whimbrel_protocol::Manner::default(),
            home: Places::default(),
            peer_tuple: tuple.mirrored(),
            wire_local_port: 1,
            wire_remote_port: 2,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        });
        FlowView {
            tuple,
            state,
            peer: peer.map(PeerId),
            entry,
            opened: Time::default(),
            accepted: port == 50,
            unconnected: false,
            greeting: None,
        }
    }

    fn figures() -> Vec<Metric> {
        let mut tally = Tally::new(UNIX_EPOCH + Duration::from_millis(1_769_893_200_250), KINDS.iter().copied());
        let carried = Carried { flows: 1, carrier: Carrier::Tunnel };
        for micros in [41_250, 5_000, 5_001, 75_000_000] {
            let took = Duration::from_micros(micros);
            let to = [192, 0, 2, 9].into();
            tally.record(&Event::Moved {
                peer: PeerId(1),
                to,
                translated: false,
                masked: false,
                took,
                flows: 1,
                carried,
            });
            tally.count(Kind::Moved);
        }
        tally.record(&Event::PeerMoved {
            peer: PeerId(1),
            to: ([192, 0, 2, 9], 2031).into(),
            translated: false,
            flows: 1,
            carried,
        });
        let peers = [peer(1, Carrier::Rewrite), peer(2, Carrier::Hold), peer(3, Carrier::Tunnel)];
        let flows = [
            flow(1, FlowState::Native, Some(1)),
            flow(2, FlowState::Moved, Some(1)),
            flow(3, FlowState::Moved, Some(3)),
            flow(4, FlowState::Moved, Some(2)),
            flow(99, FlowState::Native, Some(1)),
            flow(5, FlowState::Introducing, None),
            flow(6, FlowState::Failed("a test"), None),
            flow(7, FlowState::Unknown, None),
            flow(50, FlowState::Unknown, None),
        ];
        tally.metrics(&Looked {
            suspended: false,
            peers: &peers,
            connections: Connections::count(
                flows.into_iter(),
                &peers,
                |_| Standing::Asking,
                |flow| flow.tuple.local.port() == 6,
            ),
            kept_addresses: 2,
            tunnel: Counter::ALL.iter().copied().zip(0..).collect(),
            datapath: Some(vec![("native_out", 1 << 40), (LOST, 7)]),
        })
    }

    #[test]
    fn the_text_is_of_the_format_to_the_letter() {
        let text = exposition(&figures());
        let read = strict::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let value = |name: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            read.get(&(name.to_owned(), labels)).copied()
        };
        let of_state = |state| value("whimbrel_connections", &[("state", state)]);
        assert_eq!(
            ["native", "moved", "not-confirmed", "held", "pending", "unprotected", "lost"].map(of_state),
            [1.0, 2.0, 0.0, 2.0, 2.0, 1.0, 1.0].map(Some)
        );
        assert_eq!(value("whimbrel_carried_connections", &[("carrier", "rewrite")]), Some(1.0));
        assert_eq!(value("whimbrel_peers", &[("session", "up")]), Some(2.0));
        assert_eq!(value("whimbrel_peers_away", &[("how", "silent")]), Some(1.0));
        assert_eq!(value("whimbrel_start_time_seconds", &[]), Some(1_769_893_200.25));
        assert_eq!(value("whimbrel_events_total", &[("kind", "moved")]), Some(4.0));
        assert_eq!(value("whimbrel_events_total", &[("kind", "peer-away")]), Some(0.0));
        let took = |bound| value("whimbrel_handoff_duration_seconds_bucket", &[("le", bound)]);
        assert_eq!(["0.005", "0.01", "0.05", "60", "+Inf"].map(took), [1.0, 2.0, 3.0, 3.0, 4.0].map(Some));
        assert_eq!(value("whimbrel_handoffs_total", &[("end", "peer"), ("outcome", "moved")]), Some(1.0));
        assert_eq!(value("whimbrel_datapath_packets_total", &[("verdict", "native_out")]), Some(1_099_511_627_776.0));
        assert_eq!(value("whimbrel_flow_events_lost_total", &[]), Some(7.0));
    }

    #[test]
    fn every_metric_is_documented_with_its_type_and_labels() {
        let documentation = include_str!("../../../../docs/metrics.md");
        for metric in figures() {
            let row = format!("| `{}` | {} |", metric.name, metric.kind);
            let line = documentation.lines().find(|line| line.starts_with(&row));
            let line = line.unwrap_or_else(|| panic!("no row that begins with {row}"));
            for label in metric.samples.iter().flat_map(|sample| sample.labels.keys()).filter(|label| *label != "le") {
                assert!(line.contains(&format!("`{label}`")), "{label} is not in {line}");
            }
        }
        let rows = documentation.lines().filter(|line| line.starts_with("| `whimbrel_")).count();
        assert_eq!(rows, figures().len());
    }
}
