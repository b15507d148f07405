//! What is told of each event of the node's.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Carried, Carrier, CommunityEvent, Event, NeighbourProxyStatus, PeerId};
use whimbrel_wire::FlowTuple;

use super::{Kind, Report};

/// Connections of whose names an event tells.
pub(super) const NAMED: usize = 16;

/// A particular, as programs read it (`docs/json.md`).
trait Field {
    fn value(&self) -> Value;
}

macro_rules! fields {
    ($(|$value:ident: $of:ty| $json:expr;)+) => {
        $(impl Field for $of {
            fn value(&self) -> Value {
                let $value = self;
                $json.into()
            }
        })+
    };
}

fields! {
    |is: bool| *is;
    |count: usize| *count;
    |number: u16| *number;
    |number: u64| *number;
    |text: &'static str| *text;
    |text: String| text.clone();
    |peer: PeerId| peer.0;
    |key: PublicKey| key.to_string();
    |address: IpAddr| address.to_string();
    |endpoint: SocketAddr| endpoint.to_string();
    |flow: FlowTuple| flow.to_string();
    |flows: Vec<FlowTuple>| flows.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>();
    |carrier: Carrier| word(*carrier);
    // Milliseconds with microseconds behind the point.
    |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
}

impl<T: Field> Field for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, Field::value)
    }
}

/// `told!(Kind { field, field: value }, "sentence", …)`.
macro_rules! told {
    ($kind:ident { $($field:ident $(: $value:expr)?),* }, $($sentence:tt)+) => {
        Report::new(Kind::$kind, format!($($sentence)+))$(.with(stringify!($field), told!(@value $field $($value)?)))*
    };
    (@value $field:ident) => { Field::value($field) };
    (@value $field:ident $value:expr) => { Field::value(&$value) };
}

impl Report {
    /// How the peer's connections go from now on.
    fn carried(self, carried: &Carried) -> Self {
        let carrier = (carried.flows > 0).then_some(carried.carrier);
        self.with("carried", carried.flows).with("carrier", carrier.value())
    }

    /// What people are told of an event of the node's. Of what moves the loop knows more, and tells it itself.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Community(event) => Self::of_community(event),
            Event::Move(_) => return None,
            Event::PeerReached { peer, key, remote, took } => {
                let how = match took.is_zero() {
                    // It asked, in one message.
                    true => "it asked for a session, which is up".to_owned(),
                    false => format!("a session is up after {}", human(*took)),
                };
                told!(
                    PeerReached { peer, key, remote, took_ms: *took },
                    "peer {peer} at {remote} runs Whimbrel too: {how}"
                )
            }
            Event::NobodyThere { address, again_in } => told!(
                NobodyThere { address, again_in_ms: *again_in },
                "{address} did not answer: it runs no Whimbrel, or UDP is dropped on the way, or its `trust` is \
                 another; asked again in {}",
                human(*again_in)
            ),
            Event::KeyMismatch { address, expected, found: None } => told!(
                KeyMismatch { address, expected, found: None::<PublicKey> },
                "{address} does not have the key {expected} that is known for it: not trusted"
            ),
            Event::KeyMismatch { address, expected, found: Some(found) } => told!(
                KeyMismatch { address, expected, found },
                "{address} answered with the key {found}, but {expected} is known for it: not trusted. Where the \
                 host was set up anew, `whimbrel peers forget {address}` drops the old key"
            ),
            Event::FlowIntroduced { flow, peer, translated } => told!(
                FlowIntroduced { flow, peer, translated },
                "{flow} will outlive a move: both ends agree on it{}",
                if *translated { ", through a NAT" } else { "" }
            ),
            Event::IntroductionFailed { flow, reason } => {
                told!(IntroductionFailed { flow, reason }, "{flow} will not outlive a move: {reason}")
            }
            Event::FlowGone { flow, peer } => told!(FlowGone { flow, peer }, "{flow} has ended"),
            Event::Paused { peer, wait: true, by_peer, flows: named, waiting } => told!(
                FlowsWait { peer, by: by(*by_peer), flows: named.len(), waiting, named },
                "{} of peer {peer} {} as {} asked",
                connections(named.len()),
                if named.len() == 1 { "waits" } else { "wait" },
                who(*by_peer)
            ),
            Event::Paused { peer, wait: false, by_peer, flows: named, waiting } => told!(
                FlowsGoOn { peer, by: by(*by_peer), flows: named.len(), waiting, named },
                "{} of peer {peer} {} on as {} asked",
                connections(named.len()),
                if named.len() == 1 { "goes" } else { "go" },
                who(*by_peer)
            ),
            Event::Moving { peer, from, to, flows, kept } => {
                let count = connections(*flows);
                let sentence = match (from, to) {
                    (_, None) => format!("no way to peer {peer} any more: {count} on hold"),
                    (None, Some(to)) => format!("there is a way to peer {peer} from {to}: {count} to move"),
                    (Some(from), Some(to)) if from == to => {
                        format!("announcing {to} once more to peer {peer}: {count}")
                    }
                    (Some(from), Some(to)) => format!("moving from {from} to {to} towards peer {peer}: {count}"),
                };
                told!(Moving { peer, from, to, flows, kept }, "{sentence}")
            }
            Event::Moved { peer, to, translated, took, flows, carried } => told!(
                Moved { peer, to, translated, took_ms: *took, flows },
                "moved to {to}{} towards peer {peer} in {}: {}",
                behind_a_nat(*translated),
                human(*took),
                connections(*flows)
            )
            .carried(carried),
            Event::NotMoved { peer, at, flows, carried } => {
                let told = told!(
                    NotMoved { peer, flows },
                    "peer {peer} does not answer, but this network is the old one: {} as before",
                    connections(*flows)
                );
                let told = told.carried(carried);
                match at {
                    Some(at) => told.with("at", at.value()),
                    None => told,
                }
            }
            Event::PeerAway { peer, announced, flows } => {
                let how = if *announced { "goes away" } else { "is not heard any more" };
                told!(PeerAway { peer, announced, flows }, "peer {peer} {how}: {} for it", wait(*flows))
            }
            Event::PeerRestarted { peer, flows } => told!(
                PeerRestarted { peer, flows },
                "the host of peer {peer} was started anew: {} ended with it",
                connections(*flows)
            ),
            Event::PeerBack { peer, flows, carried } => {
                told!(PeerBack { peer, flows }, "peer {peer} is heard again: {} on", go(*flows)).carried(carried)
            }
            Event::Suspended { flows } => {
                told!(Suspended { flows }, "this host goes away: {} until it is back", wait(*flows))
            }
            Event::Resumed => told!(Resumed {}, "this host is back"),
            Event::PeerFound { peer, remote, rendezvous } => told!(
                PeerFound { peer, remote, rendezvous },
                "peer {peer} was found at {remote}, as the rendezvous (peer {rendezvous}) said"
            ),
            Event::StandsIn { peer, address } => told!(
                StandsIn { peer, address },
                "peer {peer} has left {address}, and what is said to it there is passed on to it"
            ),
            Event::StoodAside { peer, address, reason } => {
                let reason = not_stood_in(*reason);
                told!(
                    StoodAside { peer, address, reason: reason },
                    "{address}, which peer {peer} has left, is not stood in for: {reason}"
                )
            }
            Event::StoodInFor { by: peer, address, status: NeighbourProxyStatus::Accepted } => told!(
                StoodInFor { peer, address, reason: None::<bool> },
                "peer {peer} passes on what is said to this host at {address}, which it has left"
            ),
            Event::StoodInFor { by: peer, address, status } => {
                let reason = not_stood_in(*status);
                told!(
                    NotStoodInFor { peer, address, reason: reason },
                    "peer {peer} does not stand in for this host at {address}: {reason}"
                )
            }
            Event::TakenBack { peer, from, flows } => told!(
                TakenBack { peer, from, flows },
                "no answer of peer {peer} arrives at {from}: {} as before",
                connections(*flows)
            ),
            Event::PeerMoved { peer, to, translated, flows, carried } => told!(
                PeerMoved { peer, to, translated, flows },
                "peer {peer} moved to {to}{}: {}",
                behind_a_nat(*translated),
                connections(*flows)
            )
            .carried(carried),
            Event::PathConfirmed { peer, remote, round_trip, carried } => told!(
                PathConfirmed { peer, remote, round_trip_ms: *round_trip },
                "the path to peer {peer} at {remote} is confirmed, round trip {}",
                human(*round_trip)
            )
            .carried(carried),
            Event::CarrierChanged { peer, carrier } => {
                let how = match carrier {
                    Carrier::Hold => "are held",
                    Carrier::Tunnel => "go through the tunnel",
                    Carrier::FollowRewrite => "are answered as they come, rewritten or through the tunnel,",
                    Carrier::Rewrite => "are rewritten",
                };
                told!(CarrierChanged { peer, carrier }, "moved connections of peer {peer} {how} from now on")
            }
            Event::Claimed { flow, peer, given_up } => {
                let (outcome, sentence) = match given_up {
                    true => ("aborted", "this one is aborted for it"),
                    false => ("refused", "it is refused as long as this one is open"),
                };
                told!(
                    AddressConflict { flow, peer, outcome: outcome },
                    "whoever is at {} now, which peer {peer} has left, opens a connection under the very names of \
                     {flow}: {sentence}",
                    flow.remote.ip()
                )
            }
            Event::Refused { peer, reason } => {
                told!(Refused { peer, reason }, "refused what peer {peer} asked for: {reason}")
            }
            Event::HandshakeRefused { remote, reason } => told!(
                HandshakeRefused { remote, reason },
                "no session with {remote}: {reason}. `trust` and `psk_file` have to be the same at both ends"
            ),
            Event::PeerSilent { peer, remote, flows } => told!(
                PeerSilent { peer, remote, flows },
                "peer {peer} at {remote} does not answer: {} would not survive a move before it does. Whether it \
                 runs, lets UDP in and has the same `trust` is to be seen there (`whimbrel doctor`, `whimbrel \
                 events`)",
                connections(*flows)
            ),
            Event::OpFailed { what, error } => told!(OpFailed { what, error }, "{what} failed: {error}"),
        })
    }

    fn of_community(event: &CommunityEvent) -> Self {
        match event {
            CommunityEvent::Joined { community, by } => told!(
                CommunityJoined { community: PublicKey::from(*community), by },
                "this host belongs to the community from now on, with all of its hosts"
            ),
            CommunityEvent::JoinFailed { number: code, why } => told!(
                JoinFailed { code, reason: why.to_string(), good: why.leaves_code() },
                "code {code} came to nothing: {why}"
            ),
            CommunityEvent::HostJoined { host, name, steward } => told!(
                HostJoined { host, name, steward },
                "`{name}` belongs to the community{} from now on: sockets may move to and from it",
                if *steward { " as a steward" } else { "" }
            ),
            CommunityEvent::HostRevoked { host, name } => {
                told!(HostRevoked { host, name }, "`{name}` belongs to the community no more: nothing is taken of it")
            }
            CommunityEvent::Revoked => told!(
                CommunityRevoked {},
                "this host was revoked: it belongs to the community no more. `whimbrel community join` takes it \
                 back, with a new code"
            ),
            CommunityEvent::WrongCode { number: code, host, remote } => told!(
                CodeGuessed { code, host, remote },
                "somebody at {remote} used code {code} with the wrong words, or somebody sits in between: the code \
                 is good for nothing now"
            ),
            CommunityEvent::NameTaken { number: code, host, name } => told!(
                NameTaken { code, host, name },
                "a host that calls itself `{name}` has used code {code}, and was not let in: another of the \
                 community is called so. Where that one is no more, `whimbrel community revoke` frees the name"
            ),
            CommunityEvent::Granted { number: grant, host, flow } => told!(
                ConnectionGranted { grant, host, flow },
                "{flow} may be given to {host}, once; `whimbrel community revoke {grant}` takes that back"
            ),
            CommunityEvent::OtherKeyKnown { address, known, proven } => told!(
                OtherKeyKnown { address, known, proven },
                "the code has proven that {address} has the key {proven}, but {known} is remembered for it and stays: \
                 connections to {address} are not introduced. Where the host was set up anew, `whimbrel peers forget \
                 {address}` has the proven key take the place of the old one"
            ),
            CommunityEvent::MayReceive { number: grant, host } => told!(
                MayReceive { grant, host },
                "this host may receive a connection of {host}, once; `whimbrel community revoke {grant}` takes that \
                 back"
            ),
        }
    }
}

/// Why nobody stands in for an address.
fn not_stood_in(status: NeighbourProxyStatus) -> &'static str {
    match status {
        NeighbourProxyStatus::Accepted => "it is",
        NeighbourProxyStatus::Unproven => "this host was not met there",
        NeighbourProxyStatus::OffLink => "it is on none of its links",
        NeighbourProxyStatus::Taken => "somebody has it",
        NeighbourProxyStatus::Refused => "`stand_in` is not set there, or there are too many",
        NeighbourProxyStatus::Other(_) => "for a reason that this version does not know",
    }
}

fn word(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Hold => "hold",
        Carrier::Tunnel => "tunnel",
        Carrier::FollowRewrite => "follow-rewrite",
        Carrier::Rewrite => "rewrite",
    }
}

fn by(peer: bool) -> &'static str {
    if peer { "peer" } else { "this-host" }
}

fn who(peer: bool) -> &'static str {
    if peer { "the peer" } else { "somebody here" }
}

fn behind_a_nat(translated: bool) -> &'static str {
    if translated { " (behind a NAT)" } else { "" }
}

fn human(duration: Duration) -> String {
    match duration.as_millis() {
        0..1_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        1_000..120_000 => format!("{:.1} s", duration.as_secs_f64()),
        120_000..7_200_000 => format!("{} min", duration.as_secs() / 60),
        _ => format!("{} h", duration.as_secs() / 3600),
    }
}

fn connections(count: usize) -> String {
    match count {
        1 => "1 connection".into(),
        _ => format!("{count} connections"),
    }
}

fn wait(count: usize) -> String {
    format!("{} {}", connections(count), if count == 1 { "waits" } else { "wait" })
}

fn go(count: usize) -> String {
    format!("{} {}", connections(count), if count == 1 { "goes" } else { "go" })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    /// What is told of each event stays as it was, to the byte: other programs read it.
    #[test]
    fn what_is_told_of_each_event_stays_as_it_was() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/events.jsonl");
        let text: String = samples::all()
            .iter()
            .filter_map(Report::of)
            .map(|told| {
                let fields = Value::Object(told.fields).to_string();
                format!("[\"{}\",{},{fields}]\n", told.kind.word(), Value::from(told.sentence))
            })
            .collect();
        if std::env::var_os("WHIMBREL_WRITE_DATA").is_some() {
            std::fs::write(&file, &text).expect("write");
        }
        let then = std::fs::read_to_string(&file).expect("the file");
        then.lines().zip(text.lines()).for_each(|(then, now)| assert_eq!(now, then));
        assert_eq!(text.lines().count(), then.lines().count());
    }

    #[test]
    fn a_move_to_the_same_address_is_not_called_one() {
        let here = "192.0.2.9".parse().ok();
        let told = |to| {
            Report::of(&Event::Moving { peer: PeerId(3), from: here, to, flows: 1, kept: true })
                .expect("a sentence")
                .sentence
        };
        assert_eq!(told(here), "announcing 192.0.2.9 once more to peer #3: 1 connection");
        assert_eq!(
            told("192.0.2.10".parse().ok()),
            "moving from 192.0.2.9 to 192.0.2.10 towards peer #3: 1 connection"
        );
    }

    #[test]
    fn sentences_are_for_people_and_fields_for_programs() {
        let told = Report::of(&Event::Moved {
            peer: PeerId(3),
            to: "192.0.2.9".parse().expect("address"),
            translated: true,
            took: Duration::from_micros(41_250),
            flows: 1,
            carried: Carried { flows: 1, carrier: Carrier::Tunnel },
        })
        .expect("a sentence");
        assert_eq!(told.sentence, "moved to 192.0.2.9 (behind a NAT) towards peer #3 in 41.2 ms: 1 connection");
        assert_eq!(told.fields["took_ms"], 41.25);
        assert_eq!(told.fields["peer"], 3);
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&1.into(), &"tunnel".into()));
    }

    #[test]
    fn what_is_at_home_is_carried_by_nothing() {
        let carried = Carried { flows: 0, carrier: Carrier::Tunnel };
        let told = Report::of(&Event::PeerBack { peer: PeerId(3), flows: 2, carried }).expect("a sentence");
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&0.into(), &Value::Null));
    }

    #[test]
    fn connections_that_wait_are_named_up_to_a_number() {
        let flow = |port| FlowTuple {
            transport: whimbrel_wire::Transport::Tcp,
            local: ([192, 0, 2, 1], port).into(),
            remote: ([203, 0, 113, 5], 22).into(),
        };
        let flows = (1..=100).map(flow).collect();
        let told = Report::of(&Event::Paused { peer: PeerId(3), wait: true, by_peer: false, flows, waiting: 101 })
            .expect("a sentence");
        assert_eq!((told.kind, &told.fields["by"]), (Kind::FlowsWait, &"this-host".into()));
        assert_eq!(told.sentence, "100 connections of peer #3 wait as somebody here asked");
        assert_eq!((&told.fields["flows"], &told.fields["waiting"]), (&100.into(), &101.into()));
        assert_eq!(told.fields["named"].as_array().map(Vec::len), Some(NAMED));
        assert_eq!(told.fields["named"][0], "tcp 192.0.2.1:1 -> 203.0.113.5:22");
        let one = Event::Paused { peer: PeerId(3), wait: false, by_peer: true, flows: vec![flow(1)], waiting: 0 };
        assert_eq!(Report::of(&one).expect("a sentence").sentence, "1 connection of peer #3 goes on as the peer asked");
    }
}
