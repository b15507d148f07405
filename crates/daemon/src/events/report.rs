//! What is told of an event: its kind, a sentence for people and particulars for programs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Map, Value};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Carried, Carrier, PeerId, PeerView};
use whimbrel_wire::FlowTuple;

use super::Kind;

/// Connections of whose names an event tells.
pub(super) const NAMED: usize = 16;

/// The kind, the sentence and the parts of something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// What it is.
    pub(crate) kind: Kind,
    /// For people.
    pub(crate) sentence: String,
    /// The particulars.
    pub(crate) fields: Map<String, Value>,
    /// Who can cause such events at will.
    pub(super) causer: Option<Causer>,
}

/// Somebody else who can cause events at will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Causer {
    Strangers,
    /// One with connections.
    Peer(PeerId),
    /// One that takes part in moves.
    Host(PublicKey),
}

impl Report {
    /// Something that the daemon itself has to say.
    #[must_use]
    pub(crate) fn new(kind: Kind, sentence: impl Into<String>) -> Self {
        Self { kind, sentence: sentence.into(), fields: Map::new(), causer: None }
    }

    /// Adds a particular that is declared of its kind.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        debug_assert!(self.kind.fields().contains(&name), "`{name}` is not declared of `{}`", self.kind.word());
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Somebody else can cause such events at will, so not all of them are told (P-143).
    #[must_use]
    pub(crate) fn by(mut self, causer: impl Into<Option<Causer>>) -> Self {
        self.causer = causer.into();
        self
    }

    /// Names peers that have a name, where it says their numbers.
    #[must_use]
    pub(crate) fn name_peers(mut self, name: impl Fn(PeerId) -> Option<String>) -> Self {
        let number = self.fields.get("peer").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        if let Some(name) = number.and_then(|number| name(PeerId(number))) {
            self.fields.insert(PEER_NAME.to_owned(), name.into());
        }
        self.sentence = with_names(&self.sentence, name);
        self
    }

    /// Something about a socket that changes hosts. `what` goes on with "the socket of …".
    pub(crate) fn of_socket(kind: Kind, flow: Option<FlowTuple>, what: impl std::fmt::Display) -> Self {
        match flow {
            Some(flow) => {
                let of = if flow.is_unconnected() { crate::shown::flow(flow).called() } else { format!("of {flow}") };
                Self::new(kind, format!("the socket {of} {what}")).with("flow", flow.to_string())
            }
            None => Self::new(kind, format!("a socket {what}")),
        }
    }

    /// A peer with connections that a daemon before this one knew.
    pub(crate) fn peer_taken_over(view: &PeerView) -> Self {
        let PeerView { id: peer, key, remote, source: from, flows, .. } = view;
        let carried = Carried { flows: view.moved, carrier: view.carrier };
        super::told!(
            PeerTakenOver { peer, key, remote, from, flows, carried },
            "peer {peer} at {remote} is known since before this daemon was started: {flows} of its connections go on, of \
             which {} had moved",
            view.moved
        )
    }

    /// A connection that a daemon before this one introduced.
    pub(crate) fn taken_over(flow: &FlowTuple, peer: PeerId) -> Self {
        super::told!(FlowTakenOver { flow, peer }, "{flow} outlives moves since before this daemon was started")
    }
}

/// The particular that goes along with `peer` where that has a name.
const PEER_NAME: &str = "peer_name";

/// A sentence with the names of peers instead of their numbers, where they have some.
fn with_names(sentence: &str, name: impl Fn(PeerId) -> Option<String>) -> String {
    const NUMBERED: &str = "peer #";
    let mut named = String::with_capacity(sentence.len());
    let mut parts = sentence.split(NUMBERED);
    named.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|one: char| one.is_ascii_digit()).len();
        let (number, rest) = part.split_at(digits);
        match number.parse().ok().and_then(|number| name(PeerId(number))) {
            Some(name) => named.extend(["peer ", &name, rest]),
            None => named.extend([NUMBERED, part]),
        }
    }
    named
}

/// A particular, as programs read it (`docs/json.md`).
pub(crate) trait Field {
    /// Adds it under this name.
    fn add(&self, name: &str, to: Report) -> Report;
}

macro_rules! fields {
    ($(|$value:ident: $of:ty| $json:expr;)+) => {
        $(impl Field for $of {
            fn add(&self, name: &str, to: Report) -> Report {
                let $value = self;
                to.with(name, $json)
            }
        })+
    };
}

fields! {
    |is: bool| *is;
    |count: usize| *count;
    |number: u16| *number;
    |number: u32| *number;
    |number: u64| *number;
    |text: str| text;
    |text: String| text.clone();
    |texts: Vec<&str>| texts.clone();
    |peer: PeerId| peer.0;
    |key: PublicKey| key.to_string();
    |address: IpAddr| address.to_string();
    |endpoint: SocketAddr| endpoint.to_string();
    |flow: FlowTuple| flow.to_string();
    |flows: Vec<FlowTuple>| flows.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>();
    |carrier: Carrier| match carrier {
        Carrier::Hold => "hold",
        Carrier::Tunnel => "tunnel",
        Carrier::FollowRewrite => "follow-rewrite",
        Carrier::Rewrite => "rewrite",
    };
    // Milliseconds with microseconds behind the point.
    |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
}

impl<T: Field + ?Sized> Field for &T {
    fn add(&self, name: &str, to: Report) -> Report {
        (*self).add(name, to)
    }
}

impl<T: Field> Field for Option<T> {
    fn add(&self, name: &str, to: Report) -> Report {
        match self {
            Some(value) => value.add(name, to),
            None => to.with(name, Value::Null),
        }
    }
}

/// How the peer's connections go from now on.
impl Field for Carried {
    fn add(&self, name: &str, to: Report) -> Report {
        (self.flows > 0).then_some(self.carrier).add("carrier", to.with(name, self.flows))
    }
}

/// A report: `told!(Kind { field, field: value }, "sentence", …)`.
macro_rules! told {
    ($kind:ident { $($field:ident $(: $value:expr)?),* }, $($sentence:tt)+) => {{
        let report = $crate::events::Report::new($crate::events::Kind::$kind, format!($($sentence)+));
        $(let report = $crate::events::told!(@add report, $field $(, $value)?);)*
        report
    }};
    (@add $report:ident, $field:ident) => { $crate::events::told!(@add $report, $field, $field) };
    (@add $report:ident, $field:ident, $value:expr) => {
        $crate::events::Field::add(&$value, stringify!($field), $report)
    };
}
pub(crate) use told;

/// A function that gives the report of an event, by a table: what has happened (and who has caused it, where that is
/// restrained), and what is told of it.
macro_rules! reports {
    (
        $(#[$about:meta])* fn $name:ident($of:ty $(, except $other:pat)?);
        $($event:pat $(if $guard:expr)? $(, by $causer:expr)? => $kind:ident { $($fields:tt)* } $sentence:literal $(, $part:expr)*;)+
    ) => {
        $(#[$about])*
        pub(crate) fn $name(event: &$of) -> Option<$crate::events::Report> {
            match event {
                $($event $(if $guard)? => {
                    let report = $crate::events::told!($kind { $($fields)* }, $sentence $(, $part)*);
                    $(let report = report.by($causer);)?
                    Some(report)
                })+
                $($other => None,)?
            }
        }
    };
}
pub(crate) use reports;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_called_by_their_names() {
        let name = |id: PeerId| (id.0 == 1).then(|| "laptop.example.org".to_owned());
        let sentence = "peer #1 was found at 192.0.2.1:2031, as the rendezvous (peer #12) said; peer #1";
        let named = "peer laptop.example.org was found at 192.0.2.1:2031, as the rendezvous (peer #12) said; \
                     peer laptop.example.org";
        assert_eq!(with_names(sentence, name), named);
        assert_eq!(with_names("no peer # at all", name), "no peer # at all");
        let told = |peer: PeerId| {
            super::super::told!(CarrierChanged { peer, carrier: Carrier::Tunnel }, "of peer {peer}").name_peers(name)
        };
        let with_name = told(PeerId(1));
        assert_eq!(with_name.sentence, "of peer laptop.example.org");
        assert_eq!(
            (with_name.fields["peer"].clone(), with_name.fields["peer_name"].clone()),
            (1.into(), "laptop.example.org".into())
        );
        let without = told(PeerId(12));
        assert_eq!(without.sentence, "of peer #12");
        assert!(!without.fields.contains_key("peer_name"));
    }
}
