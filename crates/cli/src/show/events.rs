//! `whimbrel events`.

use whimbrel_ipc::{EventRecord, moment};

use crate::table::{width, wrap};

/// One event: number, moment and what happened.
pub(crate) fn event(event: &EventRecord) -> String {
    line(width(), format!("{:>5}  {}  ", event.number, moment(&event.time)), event)
}

/// The same without the number, on a screen of this width.
pub(crate) fn event_in(width: usize, event: &EventRecord) -> String {
    line(width, format!("{}  ", moment(&event.time)), event)
}

fn line(width: usize, head: String, event: &EventRecord) -> String {
    let indent = head.chars().count();
    format!("{head}{}\n", wrap(&event.sentence, width, indent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_broken() {
        let record = EventRecord {
            number: 17,
            time: "2026-01-31T23:59:58.007Z".into(),
            monotonic_ms: 1,
            kind: "moved".into(),
            sentence: "Peer #3 takes us at 198.51.100.7 now; a NAT is on the way, so that the 12 connections that moved go by tunnel."
                .into(),
            fields: serde_json::Map::new(),
        };
        assert_eq!(
            event(&record),
            "   17  2026-01-31 23:59:58.007 UTC  Peer #3 takes us at 198.51.100.7 now; a NAT is on the way, so\n\
             \u{20}                                   that the 12 connections that moved go by tunnel.\n"
        );
    }
}
