//! Holds the crate to the lines that `docs/json.md` promises.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use whimbrel_ipc::{
    AgainstNetwork, Anchored, Anchors, Attachment, Bytes, Carrier, Client, ClientError, Code, CommunityReply,
    CommunityRequest, CommunityStanding, Configuration, Connection, ConnectionState, ConnectionsChoice, Counts, Doubt,
    DrawnCode, Duplicate, EventRecord, EventsQuery, Explained, Failure, Family, Flow, Grant, Greeting, HandoffStarted,
    Helper, HelperState, Host, Kept, LentEnds, LocalAddress, MadeSocket, Meetings, Metric, MetricKind, Moved,
    NameServer, NameServerState, NetworkCandidate, NetworkChoice, Offer, OfferedAddress, OfferedPrefix, Open,
    OpenSocket, PassedOn, Path, Peer, PeerFlows, PeerName, Pinged, Places, PreferSection, Process, Purpose, Received,
    Rendezvous, RendezvousBy, RendezvousState, Reply, Request, Roster, SchemaError, Sequence, Session, SocketKind,
    State, Status, Suspended, Transport, Trust, Tunnel, Uuid, WantedAnchor, WhyNetwork, WrittenPreference,
    reply_from_line, reply_to_line, request_from_line, request_to_line, socket_path,
};

const KEY: &str = "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo";

fn flow(local: &str, remote: &str) -> Flow {
    Flow { transport: Transport::Tcp, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
}

fn uuid() -> Uuid {
    "0b5f8c1e-42d7-4a63-9c1b-7e35d20f6a98".parse().unwrap()
}

fn lent(address: &str, port: u16, count: u16) -> LentEnds {
    LentEnds { host: peer_name(), address: address.parse().unwrap(), port, count }
}

fn peer_name() -> PeerName {
    PeerName { id: 3, key: KEY.into(), name: Some("desk".into()) }
}

fn status() -> Status {
    Status {
        ready: true,
        version: "0.1.0".into(),
        pid: 4711,
        uptime_ms: 86_400_000,
        public_key: KEY.into(),
        port: 2031,
        trust: Trust::Tofu,
        run_dir: "/run/whimbrel".into(),
        state_dir: "/var/lib/whimbrel".into(),
        place: 2,
        addresses: vec![LocalAddress { address: "198.51.100.7".parse().unwrap(), interface: "wlan0".into() }],
        kept_addresses: vec!["192.0.2.10".parse().unwrap()],
        suspended: false,
        rendezvous: vec![Rendezvous {
            address: "203.0.113.53".parse().unwrap(),
            by: RendezvousBy::Community,
            state: RendezvousState::Registered,
            peers: 1,
        }],
        meetings: Some(Meetings { hosts: 2, pairs: 1 }),
        name_server: Some(NameServer {
            name: "laptop.roam.test".into(),
            server: "192.0.2.53:53".parse().unwrap(),
            state: NameServerState::Updated,
            addresses: vec!["198.51.100.7".parse().unwrap()],
            since: Some("2026-01-31T23:59:58.007Z".into()),
            sentence: Some("the name server was told".into()),
        }),
        counts: Counts { peers: 1, sessions: 1, connections: 5, introduced: 2, moved: 1, ..Counts::default() },
        attached: vec![Attachment { interface: "wlan0".into(), program: "egress".into(), hook: "tcx".into() }],
        tunnel: Some(Tunnel { device: "whimbrel0".into(), mtu: 1428, packets_sent: 10, packets_received: 20 }),
        newest_event: 17,
    }
}

fn roster() -> Roster {
    let purpose =
        Purpose::Connection { local: "192.0.2.7:22".parse().unwrap(), remote: "203.0.113.5:40000".parse().unwrap() };
    Roster {
        community: Some(KEY.into()),
        standing: Some(CommunityStanding::Steward),
        hosts: vec![Host {
            name: "laptop".into(),
            key: KEY.into(),
            standing: CommunityStanding::Member,
            here: false,
            at: "198.51.100.7:2031".parse().ok(),
            session: true,
            knows: true,
        }],
        codes: vec![
            Open { number: 7, purpose: Purpose::Steward, left_s: 599 },
            Open { number: 8, purpose, left_s: 598 },
        ],
        grants: vec![
            Grant { number: 9, key: KEY.into(), local: None, remote: None, left_s: 3599 },
            Grant {
                number: 10,
                key: KEY.into(),
                local: "192.0.2.7:22".parse().ok(),
                remote: "203.0.113.5:40000".parse().ok(),
                left_s: 3598,
            },
        ],
    }
}

fn replies() -> Vec<(&'static str, Reply)> {
    vec![
        ("status", Reply::Status(Box::new(status()))),
        (
            "connections",
            Reply::Connections(vec![
                Connection {
                    flow: flow("192.0.2.10:51514", "203.0.113.5:443"),
                    passed_on: false,
                    unconnected: false,
                    name: None,
                    state: ConnectionState::Moved,
                    carrier: Some(Carrier::Rewrite),
                    by_tcp: false,
                    network: None,
                    second_network: None,
                    peer: Some(peer_name()),
                    translated: Some(false),
                    wire: Some(flow("198.51.100.7:51514", "203.0.113.5:443")),
                    present: Some(flow("198.51.100.7:51514", "203.0.113.5:443")),
                    peer_flow: Some(flow("203.0.113.5:443", "192.0.2.10:51514")),
                    greeting: Some(Greeting { near_translated: true, far_translated: false }),
                    process: Some(Process { pid: 812, name: "curl".into() }),
                    bytes: Some(Bytes { sent: 412, received: 1_048_576 }),
                    since: "2026-01-31T23:59:58.007Z".into(),
                    reason: None,
                    heard_ms: None,
                    helper: Some(Helper {
                        name: "irc".into(),
                        state: HelperState::Over,
                        pid: None,
                        kept: 0,
                        delivered: 0,
                        answered: 0,
                        shifted: 75,
                    }),
                },
                Connection {
                    since: "2026-01-31T23:59:58.007Z".into(),
                    reason: Some("nobody answers at 2001:db8:1::1 on UDP port 2031".into()),
                    ..Connection::bare(flow("[2001:db8::10]:40000", "[2001:db8:1::1]:22"), ConnectionState::Unprotected)
                },
                Connection {
                    carrier: Some(Carrier::Tunnel),
                    peer: Some(peer_name()),
                    since: "2026-01-31T23:59:58.007Z".into(),
                    reason: Some("no answer since this host moved, last heard 28 s ago".into()),
                    heard_ms: Some(28_040),
                    ..Connection::bare(flow("192.0.2.10:40001", "203.0.113.5:22"), ConnectionState::NotConfirmed)
                },
                Connection {
                    name: Some("listener:192.0.2.10:80".into()),
                    process: Some(Process { pid: 813, name: "nginx".into() }),
                    since: "2026-01-31T23:59:58.007Z".into(),
                    ..Connection::bare(flow("192.0.2.10:80", "0.0.0.0:0"), ConnectionState::Server)
                },
                Connection {
                    passed_on: true,
                    unconnected: true,
                    peer: Some(peer_name()),
                    since: "2026-01-31T23:59:58.007Z".into(),
                    ..Connection::bare(flow("203.0.113.9:50000", "192.0.2.10:40000"), ConnectionState::Moved)
                },
            ]),
        ),
        (
            "peers",
            Reply::Peers(vec![Peer {
                id: 3,
                key: KEY.into(),
                name: Some("desk".into()),
                address: "203.0.113.5:2031".parse().unwrap(),
                trust: Trust::Tofu,
                remembered: vec!["203.0.113.5".parse().unwrap()],
                session: Some(Session {
                    age_ms: 61_000,
                    round_trip_ms: Some(40.5),
                    heard_ms: Some(120),
                    version: 1,
                    capabilities: vec!["rewrite".into(), "tunnel-sealed".into()],
                }),
                sequence: Sequence { sent: 2, accepted: 0 },
                places: Places { local: 2, peer: 0 },
                locators: vec!["2001:db8:1::1".parse().unwrap()],
                carrier: Some(Carrier::Rewrite),
                flows: PeerFlows { introduced: 2, moved: 1 },
                away: None,
                unanswered_ms: None,
            }]),
        ),
        (
            "paths",
            Reply::Paths(vec![Path {
                peer: peer_name(),
                local: Some("198.51.100.7".parse().unwrap()),
                remote: "203.0.113.5:2031".parse().unwrap(),
                active: true,
                confirmed: true,
                by_tcp: false,
                carrier: Some(Carrier::Tunnel),
                translated: Some(true),
                round_trip_ms: Some(40.5),
                mtu: Some(1500),
                heard_ms: None,
            }]),
        ),
        (
            "explained",
            Reply::Explained(Explained {
                trial: true,
                sections: vec![
                    PreferSection {
                        line: 12,
                        selects_nothing: false,
                        peers: 1,
                        of_connections: false,
                        connections: None,
                    },
                    PreferSection {
                        line: 20,
                        selects_nothing: false,
                        peers: 0,
                        of_connections: true,
                        connections: Some(2),
                    },
                ],
                peers: vec![NetworkChoice {
                    peer: peer_name(),
                    in_use: "wlan0".into(),
                    unanswered: true,
                    routes: "wlan0".into(),
                    line: Some(12),
                    selected: Some("eth0".into()),
                    why: WhyNetwork::Price,
                    by_hand: false,
                    silent: None,
                    rests: false,
                    waits_ms: Some(1500),
                    networks: vec![
                        network("eth0", None),
                        network("wlan0", Some(AgainstNetwork::Price)),
                        network("wwan0", Some(AgainstNetwork::Delay { most_ms: 160.0 })),
                    ],
                    connections: vec![ConnectionsChoice {
                        line: 20,
                        connections: 2,
                        apart: 1,
                        left_out: 0,
                        duplicate: Some(Duplicate { interface: Some("wwan0".into()), doubt: Some(Doubt::Overdue) }),
                        selected: Some("eth0".into()),
                        why: WhyNetwork::Order,
                        waits_ms: None,
                        networks: vec![network("eth0", None), network("wlan0", Some(AgainstNetwork::Order))],
                    }],
                }],
            }),
        ),
        (
            "event",
            Reply::Event(EventRecord {
                number: 17,
                time: "2026-01-31T23:59:58.007Z".into(),
                monotonic_ms: 123_456,
                kind: "moved".into(),
                sentence: "Peer #3 takes us at 198.51.100.7 now (1 connection, 43 ms).".into(),
                fields: serde_json::from_str(r#"{"peer":3,"to":"198.51.100.7","flows":1}"#).unwrap(),
            }),
        ),
        (
            "pinged",
            Reply::Pinged(Box::new(Pinged {
                address: "203.0.113.5:2031".parse().unwrap(),
                peer: Some(peer_name()),
                session: Some(Session {
                    age_ms: 61_000,
                    round_trip_ms: Some(40.5),
                    heard_ms: Some(0),
                    version: 1,
                    capabilities: vec!["rewrite".into()],
                }),
                answered: true,
                round_trip_ms: Some(41.25),
                tries: 1,
                local: "192.168.1.2".parse().ok(),
                observed: "198.51.100.7:2031".parse().ok(),
                nat_here: Some(true),
                nat_there: Some(false),
                heard_ms: Some(0),
                reason: None,
            })),
        ),
        (
            "configuration",
            Reply::Configuration(Configuration {
                path: "/etc/whimbrel/whimbrel.toml".into(),
                restart: vec!["port".into()],
                reload: vec!["log".into()],
                error: None,
            }),
        ),
        (
            "metrics",
            Reply::Metrics(vec![
                Metric::new("whimbrel_suspended", MetricKind::Gauge, "Whether this host is suspended.").value(0.0),
                Metric::new("whimbrel_handoff_duration_seconds", MetricKind::Histogram, "How long they took.")
                    .sample("_bucket", &[("le", "0.05")], 3.0)
                    .sample("_bucket", &[("le", "+Inf")], 4.0)
                    .sample("_sum", &[], 0.75)
                    .sample("_count", &[], 4.0),
            ]),
        ),
        ("end", Reply::End { newest: 17 }),
        (
            "handoff",
            Reply::Handoff(HandoffStarted {
                to: Some("198.51.100.7".parse().unwrap()),
                peers: vec![peer_name()],
                flows: 2,
                since: 17,
            }),
        ),
        ("suspended", Reply::Suspended(Suspended { flows: 2, told: 1, answered: 1, already: false })),
        ("resumed", Reply::Resumed { flows: 2, host: true }),
        ("placed", Reply::Placed { flows: 1 }),
        (
            "forgotten",
            Reply::Forgotten {
                address: "203.0.113.5".parse().unwrap(),
                key: KEY.into(),
                remembered: vec!["203.0.113.5".parse().unwrap()],
                peer: true,
                flows: PeerFlows { introduced: 2, moved: 1 },
            },
        ),
        (
            "moved",
            Reply::Moved(Moved { flow: flow("192.0.2.10:51514", "203.0.113.5:443"), uuid: uuid(), to: peer_name() }),
        ),
        (
            "kept",
            Reply::Kept(Kept {
                flow: flow("192.0.2.10:51514", "203.0.113.5:443"),
                uuid: uuid(),
                reason: "nobody receives under the name \"films\" there".into(),
                lost: false,
                unheard: false,
            }),
        ),
        ("prepared", Reply::Prepared { lasts_ms: 30_000 }),
        ("receiving", Reply::Receiving { name: "films".into() }),
        (
            "received",
            Reply::Received(Box::new(Received {
                name: "films".into(),
                from: peer_name(),
                flow: flow("192.0.2.10:51514", "203.0.113.5:443"),
                uuid: uuid(),
                state: State::new(b"frame 17".to_vec()).unwrap(),
            })),
        ),
        ("socket", Reply::Socket(MadeSocket { uuid: uuid(), anchor: "self".into() })),
        (
            "namespace",
            Reply::Namespace(Anchored {
                anchor: peer_name(),
                address: "203.0.113.5".parse().unwrap(),
                ports: (40_000, 128),
            }),
        ),
        (
            "anchors",
            Reply::Anchors(Anchors {
                lends: true,
                stopping: false,
                offer: Some(Offer {
                    ports: vec![(8080, 8207), (40_000, 44_999)],
                    of: vec![OfferedAddress {
                        address: "192.0.2.10".parse().unwrap(),
                        lent: 128,
                        room: Some(38),
                        used: vec![(8080, 8081), (40_022, 40_022)],
                        fault: None,
                    }],
                    addresses: vec![OfferedPrefix {
                        prefix: "192.0.2.64/28".into(),
                        addresses: Some(14),
                        lent: 1,
                        room: Some(12),
                        fault: Some("`addresses` names 192.0.2.64/28, which has 192.0.2.70 in it, its router's".into()),
                    }],
                    faults: vec!["`own` names 192.0.2.9, which is no address of this host".into()],
                    unreached: vec![
                        "ports of 192.0.2.8 are lent, and this host does not have that address any more".into(),
                    ],
                }),
                lent: vec![lent("192.0.2.10", 40_000, 128)],
                passed_on: vec![PassedOn { host: peer_name(), flow: flow("192.0.2.10:40000", "203.0.113.5:443") }],
                rented: vec![lent("203.0.113.5", 0, 0)],
            }),
        ),
        ("bound", Reply::Bound { address: "192.0.2.10:8080".parse().unwrap() }),
        ("uuid", Reply::Uuid { uuid: uuid() }),
        ("exported", Reply::Exported { uuid: uuid(), wait_ms: 300_000 }),
        (
            "sockets",
            Reply::Sockets(vec![OpenSocket {
                uuid: uuid(),
                descriptors: vec![3, 7],
                family: Family::Ipv4,
                kind: SocketKind::Stream,
                local: "192.0.2.10:51514".parse().unwrap(),
                remote: Some("203.0.113.5:443".parse().unwrap()),
                listening: false,
                reason: None,
            }]),
        ),
        ("migrator", Reply::Migrator { wait_ms: 2000 }),
        (
            "wanted-anchor",
            Reply::WantedAnchor(WantedAnchor {
                question: 5,
                policy: 1,
                process: Process { pid: 812, name: "player".into() },
            }),
        ),
        (
            "error",
            Reply::Error(
                Failure::new("this host has no such address")
                    .on("198.51.100.8")
                    .code(Code::Unknown)
                    .hint("'whimbrel status' lists the addresses that can be moved to."),
            ),
        ),
        ("community", Reply::Community(Box::new(CommunityReply::Roster(roster())))),
        (
            "code",
            Reply::Community(Box::new(CommunityReply::Code(DrawnCode {
                code: "7-crossover-clockwork-tolerance".into(),
                open: Open { number: 7, purpose: Purpose::Member, left_s: 600 },
                addresses: vec!["192.0.2.7".parse().unwrap()],
                port: 2031,
            }))),
        ),
        ("asking", Reply::Community(Box::new(CommunityReply::Asking { since: 12 }))),
    ]
}

fn network(interface: &str, against: Option<AgainstNetwork>) -> NetworkCandidate {
    NetworkCandidate {
        interface: interface.into(),
        answers: true,
        tried: true,
        round_trip_ms: Some(20.5),
        lost_percent: None,
        signal_dbm: Some(-61),
        rate_mbit: Some(54),
        against,
    }
}

fn requests() -> Vec<(Request, &'static str)> {
    vec![
        (Request::Status, r#"{"schema":1,"request":"status"}"#),
        (Request::Connections, r#"{"schema":1,"request":"connections"}"#),
        (Request::Peers, r#"{"schema":1,"request":"peers"}"#),
        (Request::Paths, r#"{"schema":1,"request":"paths"}"#),
        (Request::ExplainPaths { prefer: None }, r#"{"schema":1,"request":"explain-paths"}"#),
        (
            Request::ExplainPaths {
                prefer: Some(vec![WrittenPreference {
                    line: 12,
                    keys: serde_json::from_str(r#"{"order":["eth*"]}"#).unwrap(),
                }]),
            },
            r#"{"schema":1,"request":"explain-paths","prefer":[{"line":12,"order":["eth*"]}]}"#,
        ),
        (Request::Ping { host: "desk".into() }, r#"{"schema":1,"request":"ping","host":"desk"}"#),
        (Request::Configuration, r#"{"schema":1,"request":"configuration"}"#),
        (Request::Metrics, r#"{"schema":1,"request":"metrics"}"#),
        (
            Request::Events(EventsQuery { last: Some(20), since: Some(5), follow: true }),
            r#"{"schema":1,"request":"events","last":20,"since":5,"follow":true}"#,
        ),
        (
            Request::Handoff { to: Some("198.51.100.7".parse().unwrap()), peer: Some("#3".into()) },
            r##"{"schema":1,"request":"handoff","to":"198.51.100.7","peer":"#3"}"##,
        ),
        (
            Request::Suspend { connections: vec!["192.0.2.1:22".into()] },
            r#"{"schema":1,"request":"suspend","connections":["192.0.2.1:22"]}"#,
        ),
        (
            Request::Resume { connections: vec!["pid:4711".into()] },
            r#"{"schema":1,"request":"resume","connections":["pid:4711"]}"#,
        ),
        (
            Request::Place { connections: vec!["pid:4711".into()], from: Some("198.51.100.7".parse().unwrap()) },
            r#"{"schema":1,"request":"place","connections":["pid:4711"],"from":"198.51.100.7"}"#,
        ),
        (
            Request::ForgetPeer { address: "203.0.113.5".into(), force: false },
            r#"{"schema":1,"request":"forget-peer","address":"203.0.113.5"}"#,
        ),
        (
            Request::ForgetPeer { address: "desk".into(), force: true },
            r#"{"schema":1,"request":"forget-peer","address":"desk","force":true}"#,
        ),
        (
            Request::Move {
                connections: vec!["pid:4711".into()],
                to: "198.51.100.7".into(),
                receiver: Some("films".into()),
            },
            r#"{"schema":1,"request":"move","connections":["pid:4711"],"to":"198.51.100.7","receiver":"films"}"#,
        ),
        (Request::Receive { name: "films".into() }, r#"{"schema":1,"request":"receive","name":"films"}"#),
        (
            Request::Give {
                to: "#3".into(),
                receiver: Some("films".into()),
                state: State::new(b"frame 17".to_vec()).unwrap(),
            },
            r##"{"schema":1,"request":"give","to":"#3","receiver":"films","state":"ZnJhbWUgMTc="}"##,
        ),
        (
            Request::Prepare { to: "#3".into(), receiver: Some("films".into()) },
            r##"{"schema":1,"request":"prepare","to":"#3","receiver":"films"}"##,
        ),
        (
            Request::Socket { family: Family::Ipv6, kind: SocketKind::Datagram, anchor: "self".into(), hidden: true },
            r#"{"schema":1,"request":"socket","family":"ipv6","kind":"datagram","anchor":"self","hidden":true}"#,
        ),
        (
            Request::Namespace {
                anchor: "home".into(),
                family: Family::Ipv4,
                ports: vec![8080],
                address: None,
                hidden: false,
            },
            r#"{"schema":1,"request":"namespace","anchor":"home","family":"ipv4","ports":[8080],"hidden":false}"#,
        ),
        (
            Request::Namespace {
                anchor: "home".into(),
                family: Family::Ipv4,
                ports: Vec::new(),
                address: Some([192, 0, 2, 70].into()),
                hidden: true,
            },
            r#"{"schema":1,"request":"namespace","anchor":"home","family":"ipv4","address":"192.0.2.70","hidden":true}"#,
        ),
        (Request::Anchors { brief: false }, r#"{"schema":1,"request":"anchors"}"#),
        (Request::Anchors { brief: true }, r#"{"schema":1,"request":"anchors","brief":true}"#),
        (Request::Lending { stop: true }, r#"{"schema":1,"request":"lending","stop":true}"#),
        (
            Request::Bind { address: "0.0.0.0:8080".parse().unwrap() },
            r#"{"schema":1,"request":"bind","address":"0.0.0.0:8080"}"#,
        ),
        (Request::Uuid, r#"{"schema":1,"request":"uuid"}"#),
        (Request::Export, r#"{"schema":1,"request":"export"}"#),
        (
            Request::Rebuild { uuid: uuid().to_string() },
            r#"{"schema":1,"request":"rebuild","uuid":"0b5f8c1e-42d7-4a63-9c1b-7e35d20f6a98"}"#,
        ),
        (Request::Sockets { pid: 4711 }, r#"{"schema":1,"request":"sockets","pid":4711}"#),
        (Request::Migrator, r#"{"schema":1,"request":"migrator"}"#),
        (
            Request::Community(CommunityRequest::Init { name: Some("desk".into()) }),
            r#"{"schema":1,"request":"community","action":"init","name":"desk"}"#,
        ),
        (
            Request::Community(CommunityRequest::Invite { steward: true }),
            r#"{"schema":1,"request":"community","action":"invite","steward":true}"#,
        ),
        (
            Request::Community(CommunityRequest::Join {
                code: "7-crossover-clockwork-tolerance".into(),
                hosts: vec!["192.0.2.7".parse().unwrap()],
                port: None,
                name: None,
            }),
            r#"{"schema":1,"request":"community","action":"join","code":"7-crossover-clockwork-tolerance","hosts":["192.0.2.7"]}"#,
        ),
        (
            Request::Community(CommunityRequest::Revoke { what: "laptop".into() }),
            r#"{"schema":1,"request":"community","action":"revoke","what":"laptop"}"#,
        ),
        (Request::Community(CommunityRequest::List), r#"{"schema":1,"request":"community","action":"list"}"#),
        (
            Request::Anchor { question: 5, anchor: Some("self".into()) },
            r#"{"schema":1,"request":"anchor","question":5,"anchor":"self"}"#,
        ),
    ]
}

#[test]
fn replies_are_as_documented() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, reply) in replies() {
        let line = reply_to_line(&reply).unwrap();
        let path = directory.join(format!("{name}.json"));
        // To renew them after the schema grew: WHIMBREL_BLESS=1 cargo test -p whimbrel-ipc
        if std::env::var_os("WHIMBREL_BLESS").is_some() {
            fs::write(&path, &line).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(line, golden, "{}", path.display());
        assert_eq!(reply_from_line(&golden).unwrap(), reply);
    }
}

/// The names of all members of a value, however deep, except for those that `fields` of an event has.
fn members(value: &serde_json::Value, into: &mut std::collections::BTreeSet<String>) {
    if let Some(object) = value.as_object() {
        into.extend(object.keys().cloned());
    }
    let inner =
        value.as_object().map(|object| object.iter().filter(|(name, _)| *name != "fields").map(|(_, inner)| inner));
    let elements = value.as_array().into_iter().flatten();
    inner.into_iter().flatten().chain(elements).for_each(|inner| members(inner, into));
}

#[test]
fn every_member_is_documented() {
    let text = include_str!("../../../docs/json.md");
    let mut names = std::collections::BTreeSet::new();
    for (_, reply) in replies() {
        members(&serde_json::from_str(&reply_to_line(&reply).unwrap()).unwrap(), &mut names);
    }
    assert!(names.len() > 70, "{}", names.len());
    let words: std::collections::BTreeSet<&str> = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let missing: Vec<_> = names.iter().filter(|name| !name.split('-').all(|word| words.contains(word))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

#[test]
fn requests_are_as_documented() {
    for (request, line) in requests() {
        assert_eq!(request_to_line(&request).unwrap().trim_end(), line);
        assert_eq!(request_from_line(line).unwrap(), request);
    }
}

#[test]
fn what_a_request_may_leave_out() {
    let request = request_from_line(r#"{"schema":1,"request":"events"}"#).unwrap();
    assert_eq!(request, Request::Events(EventsQuery::default()));
    let request = request_from_line(r#"{"schema":1,"request":"handoff"}"#).unwrap();
    assert_eq!(request, Request::Handoff { to: None, peer: None });
    let request = request_from_line(r#"{"schema":1,"request":"suspend"}"#).unwrap();
    assert_eq!(request, Request::Suspend { connections: Vec::new() });
    let request = request_from_line(r##"{"schema":1,"request":"give","to":"#3"}"##).unwrap();
    assert_eq!(request, Request::Give { to: "#3".into(), receiver: None, state: State::default() });
}

#[test]
fn unknown_members_are_ignored() {
    let request = request_from_line(r#"{"schema":1,"request":"status","colour":"grey"}"#).unwrap();
    assert_eq!(request, Request::Status);
}

#[test]
fn other_schemas_and_nonsense_are_refused() {
    assert!(matches!(request_from_line(r#"{"schema":2,"request":"status"}"#), Err(SchemaError::Version { found: 2 })));
    for line in ["", "{", "[]", r#"{"schema":1}"#, r#"{"schema":1,"request":"fly"}"#, r#"{"schema":-1}"#] {
        assert!(matches!(request_from_line(line), Err(SchemaError::Malformed(_))), "{line}");
    }
}

#[test]
fn kinds_of_failures_may_be_added() {
    let line = r#"{"schema":1,"error":{"what":"no","code":"too-windy"}}"#;
    assert_eq!(reply_from_line(line).unwrap(), Reply::Error(Failure::new("no").code(Code::Other)));
}

/// A directory of its own that goes with it.
struct RunDir(PathBuf);

impl RunDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("whimbrel-ipc-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A daemon that gives these lines to the one request that it waits for.
fn daemon(run_dir: &RunDir, answer: String) -> thread::JoinHandle<String> {
    let listener = UnixListener::bind(socket_path(&run_dir.0)).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut request = String::new();
        reader.read_line(&mut request).unwrap();
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
        request
    })
}

#[test]
fn client_gets_its_answer() {
    let run_dir = RunDir::new("answer");
    let daemon = daemon(&run_dir, reply_to_line(&replies()[0].1).unwrap());
    let answer = Client::connect(&run_dir.0).unwrap().status().unwrap();
    assert_eq!(answer, status());
    assert_eq!(daemon.join().unwrap(), "{\"schema\":1,\"request\":\"status\"}\n");
}

#[test]
fn client_tells_a_refusal() {
    let run_dir = RunDir::new("refusal");
    let daemon = daemon(&run_dir, reply_to_line(&Reply::Error(Failure::new("no").on("eth9"))).unwrap());
    let error = Client::connect(&run_dir.0).unwrap().handoff(None, None).unwrap_err();
    assert_eq!(error.to_string(), "eth9: no.");
    daemon.join().unwrap();
}

fn an_event() -> EventRecord {
    let event = |reply| if let Reply::Event(event) = reply { Some(event) } else { None };
    replies().into_iter().find_map(|(_, reply)| event(reply)).unwrap()
}

#[test]
fn client_reads_events_to_their_end() {
    let run_dir = RunDir::new("events");
    let event = an_event();
    let line = reply_to_line(&Reply::Event(event.clone())).unwrap();
    let end = reply_to_line(&Reply::End { newest: 17 }).unwrap();
    let daemon = daemon(&run_dir, format!("{line}{line}{end}"));
    let events = Client::connect(&run_dir.0).unwrap().events(EventsQuery::default()).unwrap();
    let events: Vec<_> = events.collect::<Result<_, _>>().unwrap();
    assert_eq!(events, [event.clone(), event]);
    daemon.join().unwrap();
}

#[test]
fn who_follows_is_told_that_the_daemon_stopped() {
    let run_dir = RunDir::new("follow");
    let event = an_event();
    let daemon = daemon(&run_dir, reply_to_line(&Reply::Event(event.clone())).unwrap());
    let query = EventsQuery { follow: true, ..EventsQuery::default() };
    let mut events = Client::connect(&run_dir.0).unwrap().events(query).unwrap();
    daemon.join().unwrap();
    assert_eq!(events.next().unwrap().unwrap(), event);
    let error = events.next().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Stopped { .. }), "{error}");
    assert!(events.next().is_none());
}

#[test]
fn client_notices_a_daemon_that_dies_in_mid_answer() {
    let run_dir = RunDir::new("dies");
    let daemon = daemon(&run_dir, String::new());
    let error = Client::connect(&run_dir.0).unwrap().peers().unwrap_err();
    assert!(matches!(error, ClientError::Closed { .. }), "{error}");
    daemon.join().unwrap();
}

#[test]
fn client_says_where_no_daemon_is() {
    let run_dir = RunDir::new("nobody");
    let error = Client::connect(&run_dir.0).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("whimbrel.sock"), "{error}");
}
