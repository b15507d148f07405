//! What happened, kept for `whimbrel events`: the last few thousand, each as a sentence and in parts.

mod kinds;
mod node;
mod report;
mod restraint;

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use whimbrel_ipc::{EventRecord, EventsQuery, rfc3339};

pub(crate) use kinds::{Declared, KINDS, Kind, kinds};
pub(crate) use node::report;
pub(crate) use report::{Causer, Field, Report, reports, told};
pub(crate) use restraint::Restraint;

/// Events that are kept of each sort.
const KEPT: usize = 4096;

/// The newest events, oldest first. Those about single connections are kept apart: where connections come and go by the
/// thousand they would push out what became of all of them.
#[derive(Debug, Default)]
pub(crate) struct EventRing {
    general: VecDeque<EventRecord>,
    of_connections: VecDeque<EventRecord>,
    newest: u64,
}

impl EventRing {
    /// Stamps and keeps an event.
    pub(crate) fn push(&mut self, wall: SystemTime, monotonic: Duration, told: Report) -> &EventRecord {
        let records = if told.kind.is_of_connection() { &mut self.of_connections } else { &mut self.general };
        if records.len() == KEPT {
            records.pop_front();
        }
        self.newest += 1;
        records.push_back(EventRecord {
            number: self.newest,
            time: rfc3339(wall),
            monotonic_ms: u64::try_from(monotonic.as_millis()).unwrap_or(u64::MAX),
            kind: told.kind.word().to_owned(),
            sentence: told.sentence,
            fields: told.fields,
        });
        &records[records.len() - 1]
    }

    /// The number of the newest event; 0 where there is none.
    #[must_use]
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The events that a query asks for, oldest first.
    pub(crate) fn select(&self, query: &EventsQuery) -> impl Iterator<Item = &EventRecord> {
        let after = query.since.unwrap_or(0);
        let fresh = |records: &'_ VecDeque<EventRecord>| records.partition_point(|record| record.number <= after);
        let (general, of_connections) = (fresh(&self.general), fresh(&self.of_connections));
        let all = self.general.len() - general + self.of_connections.len() - of_connections;
        let skipped = all.saturating_sub(query.last.unwrap_or(usize::MAX));
        let mut general = self.general.iter().skip(general).peekable();
        let mut of_connections = self.of_connections.iter().skip(of_connections).peekable();
        let merged = std::iter::from_fn(move || match (general.peek(), of_connections.peek()) {
            (Some(one), Some(other)) if one.number > other.number => of_connections.next(),
            (Some(_), _) => general.next(),
            (None, _) => of_connections.next(),
        });
        merged.skip(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize) -> EventRing {
        let mut ring = EventRing::default();
        for number in 0..count {
            ring.push(
                SystemTime::UNIX_EPOCH,
                Duration::from_millis(number as u64),
                Report::new(Kind::Resumed, "something"),
            );
        }
        ring
    }

    fn numbers(ring: &EventRing, query: &EventsQuery) -> Vec<u64> {
        ring.select(query).map(|record| record.number).collect()
    }

    #[test]
    fn queries_select_by_number_and_count() {
        let ring = filled(5);
        assert_eq!(numbers(&ring, &EventsQuery::default()), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { last: Some(2), ..Default::default() }), [4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(3), ..Default::default() }), [4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(1), last: Some(1), ..Default::default() }), [5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(99), ..Default::default() }), [] as [u64; 0]);
    }

    #[test]
    fn connections_that_come_and_go_push_nothing_else_out() {
        let mut ring = filled(2);
        for _ in 0..KEPT + 1 {
            ring.push(SystemTime::UNIX_EPOCH, Duration::ZERO, Report::new(Kind::FlowGone, "a connection has ended"));
        }
        ring.push(SystemTime::UNIX_EPOCH, Duration::ZERO, Report::new(Kind::Resumed, "something"));
        let last = (KEPT + 4) as u64;
        let all = numbers(&ring, &EventsQuery::default());
        assert_eq!((all.len(), &all[..3], all.last()), (KEPT + 3, &[1, 2, 4][..], Some(&last)));
        assert!(all.is_sorted());
        let query = EventsQuery { last: Some(2), ..Default::default() };
        assert_eq!(numbers(&ring, &query), [last - 1, last]);
        let query = EventsQuery { since: Some(2), last: Some(KEPT + 9), ..Default::default() };
        assert_eq!(numbers(&ring, &query).len(), KEPT + 1);
    }

    #[test]
    fn the_ring_forgets_the_oldest() {
        let ring = filled(KEPT + 3);
        let all = numbers(&ring, &EventsQuery::default());
        assert_eq!((all.len(), all[0], ring.newest()), (KEPT, 4, (KEPT + 3) as u64));
    }
}
