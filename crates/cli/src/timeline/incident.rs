//! What stands in the table under the lanes: hand-offs, absences and the like.

use std::time::Duration;

use whimbrel_ipc::measured;

use super::story::{Millis, Way};

/// What sort of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// This host moved.
    Handoff,
    PeerMoved,
    NoWay,
    Away,
    /// The peer did not answer.
    Doubt,
    Restarted,
    Suspended,
    Down,
    Waiting,
}

/// Something that happened to connections.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Incident {
    pub(super) kind: Kind,
    pub(super) from: Millis,
    /// Its end, or that of a part of it while it goes on for some peers.
    pub(super) to: Option<Millis>,
    /// Peers that it goes on for.
    pub(super) open: usize,
    pub(super) what: String,
    pub(super) outcome: Option<&'static str>,
    pub(super) nat: bool,
    /// How long it took, where an event says so more exactly than by its time.
    pub(super) took: Option<Millis>,
    /// Connections.
    pub(super) flows: u64,
    /// Which peers (by their place in the story).
    pub(super) peers: Vec<usize>,
    /// Which ways connections went after it, and since when.
    led: Vec<(Millis, Way)>,
}

impl Incident {
    pub(super) fn new(kind: Kind, from: Millis, what: impl Into<String>, flows: u64) -> Self {
        Self {
            kind,
            from,
            to: None,
            open: 0,
            what: what.into(),
            outcome: None,
            nat: false,
            took: None,
            flows,
            peers: Vec::new(),
            led: Vec::new(),
        }
    }

    /// From `at` on connections go this way because of it.
    pub(super) fn led_to(&mut self, at: Millis, way: Way) {
        if !self.led.iter().any(|(_, led)| *led == way) {
            self.led.push((at, way));
        }
    }

    /// What happened, as a sentence.
    pub(super) fn sentence(&self) -> String {
        let nat = if self.nat { " (behind a NAT)" } else { "" };
        let outcome = self.outcome.map(|outcome| format!(": {outcome}")).unwrap_or_default();
        format!("{}{nat}{outcome}", self.what)
    }

    /// How long it lasted, or has lasted until `end`; empty for what has no length.
    pub(super) fn lasted(&self, end: Millis) -> String {
        match (self.kind, self.to) {
            (Kind::PeerMoved | Kind::Restarted, _) => String::new(),
            (Kind::Down, Some(to)) if to <= self.from => String::new(),
            (_, Some(to)) if self.open == 0 => human(self.took.unwrap_or(to - self.from)),
            _ => format!("{} and more", human(end - self.from)),
        }
    }

    /// How connections went after it.
    pub(super) fn ways(&self) -> String {
        let since = self.to.unwrap_or(self.from);
        // What stood still only until something else was known did not go so.
        let goes = |way: Way| !matches!(way, Way::NotConfirmed | Way::Held | Way::Away);
        let went = self.led.iter().any(|(_, way)| goes(*way));
        let ways = self.led.iter().filter(|(_, way)| !went || goes(*way)).map(|(at, way)| {
            let way = match way {
                Way::Native => "native",
                Way::Rewrite => "rewritten",
                Way::Tunnel => "tunnel",
                Way::Follow => "as they come",
                Way::NotConfirmed => "not confirmed",
                Way::Held | Way::Away => "held",
            };
            if at - since >= 1.0 { format!("{way} after {}", human(at - since)) } else { way.to_owned() }
        });
        ways.collect::<Vec<_>>().join(", ")
    }
}

/// How long it is, for people.
pub(super) fn human(millis: Millis) -> String {
    measured(Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default())
}
