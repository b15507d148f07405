//! `whimbrel events`.

use whimbrel_ipc::EventRecord;

use crate::table::{width, wrap};

/// One event: number, time of day and what happened.
pub(crate) fn event(event: &EventRecord) -> String {
    event_in(width(), event)
}

/// The same on a screen of this width.
pub(crate) fn event_in(width: usize, event: &EventRecord) -> String {
    // 2026-01-31T23:59:58.007Z: the date says little while one watches, and is in --json.
    let time = event.time.split_once('T').map_or(event.time.as_str(), |(_, time)| time.trim_end_matches('Z'));
    let head = format!("{:>5}  {time}  ", event.number);
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
            "   17  23:59:58.007  Peer #3 takes us at 198.51.100.7 now; a NAT is on the way, so that the 12\n\
             \u{20}                    connections that moved go by tunnel.\n"
        );
    }
}
