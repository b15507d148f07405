//! Answers as text for people. All of it is pure: values in, text out.

mod absence;
mod clean;
mod community;
mod connections;
mod doctor;
mod events;
mod peers;
mod ping;
mod status;
mod why;

pub(crate) use absence::{resumed, suspended};
pub(crate) use clean::{removed, removed_json};
pub(crate) use community::{LEFT, code, outcome, roster};
pub(crate) use connections::{connections, is_away, is_server, peer, rank, via};
pub(crate) use doctor::findings;
pub(crate) use events::{event, event_in};
pub(crate) use peers::{paths, peers, peers_in};
pub(crate) use ping::{pong, pongs};
pub(crate) use status::status;
pub(crate) use why::{is_named, sentences, why};

use std::time::Duration;

/// So many things: `1 peer`, `2 peers`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{s}")
}

/// A duration in its two largest units: `3 d 4 h`, `12 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Milliseconds with as many digits as mean something.
fn milliseconds(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value < 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// The beginning of a key: enough to tell peers apart in a table.
fn short_key(key: &str) -> String {
    key.chars().take(whimbrel_ipc::KEY_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_two_units() {
        for (seconds, text) in [(0, "0 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
