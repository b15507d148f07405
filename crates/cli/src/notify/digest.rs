//! What of all events somebody wants to be told of, and how often: one notification for a hand-off, whatever it
//! consists of, and one while nothing arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_bus::notification::Notification;
use whimbrel_ipc::EventRecord;

use crate::show::count;

/// Peers of one hand-off answer within so long, most of them.
const SETTLES: Duration = Duration::from_secs(1);
/// What the daemon has said of why belongs to what moves within so long.
const FOLLOWS: Duration = Duration::from_secs(5);
/// A notification about the same is not shown sooner after the last.
const SPACING: Duration = Duration::from_secs(10);

/// What has happened and is not told yet.
#[derive(Debug, Default)]
pub(crate) struct Digest {
    /// Connections that have moved, and from where they go on, by peer.
    moved: BTreeMap<u64, (u64, Option<String>)>,
    /// What the daemon has said of why, and when.
    cause: Option<(Instant, String)>,
    /// Peers that do not answer, with what the daemon says of each.
    unheard: BTreeMap<u64, String>,
    hand_off: Turn,
    silence: Turn,
}

/// When something may be shown.
#[derive(Debug, Default)]
struct Turn {
    due: Option<Instant>,
    shown: Option<Instant>,
    /// Number of the notification that the next replaces.
    last: u32,
}

impl Turn {
    fn want(&mut self, at: Instant) {
        let earliest = self.shown.map_or(at, |shown| at.max(shown + SPACING));
        self.due.get_or_insert(earliest);
    }

    fn take(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            (self.due, self.shown) = (None, Some(now));
        }
        is_due
    }
}

impl Digest {
    /// Takes in what has happened.
    pub(crate) fn take(&mut self, now: Instant, event: &EventRecord) {
        let number = |name: &str| event.fields.get(name).and_then(Value::as_u64);
        let Some(peer) = number("peer") else { return };
        let flows = number("flows").unwrap_or(0);
        match event.kind.as_str() {
            "moved" => {
                self.unheard.remove(&peer);
                if flows > 0 {
                    if self.moved.is_empty() {
                        self.cause.take_if(|(said, _)| *said + FOLLOWS < now);
                    }
                    let place = event.fields.get("to").and_then(Value::as_str).map(str::to_owned);
                    self.moved.insert(peer, (flows, place));
                    self.hand_off.want(now + SETTLES);
                }
            }
            // The first of a hand-off, or the last before it.
            "network-silent" | "network-back" | "network-preferred" | "network-unfit" | "network-fit"
                if self.moved.is_empty() || self.cause.is_none() =>
            {
                self.cause = Some((now, event.sentence.clone()));
            }
            "not-confirmed" if flows > 0 => {
                self.unheard.insert(peer, event.sentence.clone());
                self.silence.want(now);
            }
            "path-confirmed" | "not-moved" | "peer-back" => drop(self.unheard.remove(&peer)),
            _ => {}
        }
    }

    /// When something is to be shown.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.hand_off.due.into_iter().chain(self.silence.due).min()
    }

    /// What is to be shown now, and the place of the number of what it replaces.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(Notification, &mut u32)> {
        if self.silence.take(now) && !self.unheard.is_empty() {
            let first = self.unheard.values().next().cloned().unwrap_or_default();
            let others = self.unheard.len() - 1;
            let body = match others {
                0 => sentence(&first),
                others => format!("{} The same of {}.", sentence(&first), count(others, "other host")),
            };
            self.unheard.clear();
            let summary = "Connections get no answer".to_owned();
            return Some((Notification { summary, body, urgent: true }, &mut self.silence.last));
        }
        if !self.hand_off.take(now) {
            return None;
        }
        let flows = usize::try_from(self.moved.values().map(|(flows, _)| flows).sum::<u64>()).unwrap_or(usize::MAX);
        let hosts = count(self.moved.len(), "host");
        let places: BTreeSet<&str> = self.moved.values().filter_map(|(_, place)| place.as_deref()).collect();
        let places: Vec<&str> = places.into_iter().collect();
        let goes = if flows == 1 { "goes" } else { "go" };
        let mut body = format!("{} with {hosts} {goes} on from {}.", count(flows, "connection"), places.join(", "));
        if let Some((_, cause)) = self.cause.take() {
            body = format!("{body} {}", sentence(&cause));
        }
        self.moved.clear();
        let summary = "Connections have moved".to_owned();
        Some((Notification { summary, body, urgent: false }, &mut self.hand_off.last))
    }
}

/// As it begins and ends in a text.
fn sentence(said: &str) -> String {
    let mut letters = said.chars();
    let begin: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let end = if said.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{begin}{}{end}", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, peer: u64, flows: u64) -> EventRecord {
        let fields = serde_json::json!({ "peer": peer, "flows": flows, "to": "192.0.2.5" });
        EventRecord {
            number: 1,
            time: String::new(),
            monotonic_ms: 1,
            kind: kind.into(),
            sentence: format!("nothing of peer {peer} has come"),
            fields: fields.as_object().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn a_hand_off_is_told_once() {
        let (mut digest, now) = (Digest::default(), Instant::now());
        digest.take(now, &event("network-silent", 1, 2));
        for (peer, flows) in [(1, 2), (2, 5), (3, 0)] {
            digest.take(now, &event("moved", peer, flows));
        }
        assert!(digest.next(now).is_none(), "others may answer yet");
        let at = digest.due().expect("it is told");
        let (shown, number) = digest.next(at).expect("now");
        assert_eq!(shown.body, "7 connections with 2 hosts go on from 192.0.2.5. Nothing of peer 1 has come.");
        *number = 17;
        assert!(digest.next(at).is_none() && digest.due().is_none());
        // A network that flaps: no more than one in ten seconds, which replaces the one before.
        for tenth in 0..50 {
            digest.take(at + Duration::from_millis(100 * tenth), &event("moved", 1, 1));
        }
        assert_eq!(digest.due(), Some(at + SPACING));
        let (shown, number) = digest.next(at + SPACING).expect("then");
        assert_eq!((shown.body.as_str(), *number), ("1 connection with 1 host goes on from 192.0.2.5.", 17));
    }

    #[test]
    fn who_does_not_answer_is_told_of_unless_that_is_over() {
        let (mut digest, now) = (Digest::default(), Instant::now());
        digest.take(now, &event("not-confirmed", 1, 1));
        digest.take(now, &event("not-confirmed", 2, 1));
        let (shown, _) = digest.next(now).expect("at once");
        assert_eq!(shown.body, "Nothing of peer 1 has come. The same of 1 other host.");
        digest.take(now, &event("not-confirmed", 1, 1));
        digest.take(now, &event("path-confirmed", 1, 1));
        assert!(digest.next(now + SPACING).is_none() && digest.due().is_none());
        digest.take(now, &event("not-confirmed", 1, 0));
        assert!(digest.due().is_none(), "nobody has connections there");
    }

    #[test]
    fn a_hand_off_is_told_with_its_own_cause_and_place() {
        let (mut digest, now) = (Digest::default(), Instant::now());
        // Something was silent, and nothing moved that anybody has.
        digest.take(now, &event("network-silent", 7, 0));
        let later = now + Duration::from_secs(3600);
        digest.take(later, &event("moved", 1, 1));
        let (shown, _) = digest.next(later + SETTLES).expect("it has moved");
        assert_eq!(shown.body, "1 connection with 1 host goes on from 192.0.2.5.", "that was not why");
        // There, and back again before it is told.
        let back = later + Duration::from_secs(2);
        let mut there = event("moved", 1, 1);
        there.fields.insert("to".into(), "198.51.100.1".into());
        digest.take(back, &there);
        digest.take(back, &event("moved", 1, 1));
        let (shown, _) = digest.next(later + SETTLES + SPACING).expect("it has moved");
        assert_eq!(shown.body, "1 connection with 1 host goes on from 192.0.2.5.", "it is there no more");
    }
}
