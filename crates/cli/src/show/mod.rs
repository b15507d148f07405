//! Answers as text for people. All of it is pure: values in, text out.

mod absence;
mod choice;
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
pub(crate) use choice::explained;
pub(crate) use clean::{removed, removed_json};
pub(crate) use community::{LEFT, code, outcome, roster};
pub(crate) use connections::{connections, is_away, is_server, peer, rank, via};
pub(crate) use doctor::findings;
pub(crate) use events::{event, event_in};
pub(crate) use peers::{forgotten, paths, peers, peers_in};
pub(crate) use ping::{pong, pongs};
pub(crate) use status::status;
pub(crate) use why::{is_named, sentences, why};

pub(crate) use whimbrel_ipc::duration;

/// So many things: `1 peer`, `2 peers`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{s}")
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
