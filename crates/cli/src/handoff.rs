//! `whimbrel handoff`: starts one and tells what becomes of it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use whimbrel_ipc::{ClientError, EventRecord, EventsQuery, HandoffStarted, Reply, Request, reply_to_line};

use crate::complaint::Complaint;
use crate::{connect, print, show};

/// How long is waited for the peers' answers.
const WAIT: Duration = Duration::from_secs(15);

pub(crate) fn handoff(
    run_dir: &Path,
    to: Option<IpAddr>,
    peer: Option<String>,
    wait: bool,
    json: bool,
) -> Result<ExitCode, Complaint> {
    let (line, reply) = connect(run_dir)?.ask_for_line(&Request::Handoff { to, peer })?;
    let Reply::Handoff(started) = reply else { return Err(ClientError::Unexpected.into()) };
    print(&if json { line } else { announcement(&started) })?;
    if !wait || started.peers.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }

    let query = EventsQuery { last: None, since: Some(started.since), follow: true };
    let mut events = connect(run_dir)?.events(query)?;
    let mut outcome = Outcome::new(&started);
    let deadline = Instant::now() + WAIT;
    while !outcome.open.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        events.set_timeout(Some(left))?;
        let event = match events.next() {
            Some(Ok(event)) => event,
            Some(Err(ClientError::Timeout { .. })) | None => break,
            Some(Err(error)) => return Err(error.into()),
        };
        if outcome.record(&event) {
            print(&if json { reply_to_line(&Reply::Event(event))? } else { show::event(&event) })?;
        }
    }
    outcome.verdict()
}

fn announcement(started: &HandoffStarted) -> String {
    let to = started.to.map(|to| format!(" to {to}")).unwrap_or_default();
    match started.peers.len() {
        0 => "No peer needs to be told: no connection is introduced yet.\n".to_owned(),
        peers => {
            format!("Moving {} with {}{to}.\n", show::count(started.flows, "connection"), show::count(peers, "peer"))
        }
    }
}

/// What the peers have made of a hand-off so far.
struct Outcome {
    /// Those that have not acknowledged it.
    open: HashSet<u64>,
    /// Those that did not answer, so that their connections stay where they were.
    stayed: usize,
}

impl Outcome {
    fn new(started: &HandoffStarted) -> Self {
        Self { open: started.peers.iter().map(|peer| u64::from(peer.id)).collect(), stayed: 0 }
    }

    /// Takes an event in; whether it belongs to this hand-off.
    fn record(&mut self, event: &EventRecord) -> bool {
        let Some(peer) = event.fields.get("peer").and_then(serde_json::Value::as_u64) else { return false };
        match event.kind.as_str() {
            "moved" => self.open.remove(&peer),
            "taken-back" => {
                let stays = self.open.remove(&peer);
                self.stayed += usize::from(stays);
                stays
            }
            _ => self.open.contains(&peer),
        }
    }

    fn verdict(&self) -> Result<ExitCode, Complaint> {
        if self.stayed > 0 {
            return Err(Complaint::Stayed(format!("{} did not answer from there", show::count(self.stayed, "peer"))));
        }
        match self.open.len() {
            0 => Ok(ExitCode::SUCCESS),
            open => Err(Complaint::Handoff(format!(
                "{} did not acknowledge the move within {} s",
                show::count(open, "peer"),
                WAIT.as_secs()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::PeerName;

    fn started(peers: &[u32]) -> HandoffStarted {
        let peers = peers.iter().map(|id| PeerName { id: *id, key: String::new(), name: None }).collect();
        HandoffStarted { to: Some("198.51.100.7".parse().unwrap()), peers, flows: 2, since: 0 }
    }

    fn event(kind: &str, peer: u32) -> EventRecord {
        EventRecord {
            number: 1,
            time: String::new(),
            monotonic_ms: 0,
            kind: kind.into(),
            sentence: String::new(),
            fields: serde_json::from_value(serde_json::json!({ "peer": peer })).unwrap(),
        }
    }

    #[test]
    fn done_when_every_peer_has_moved() {
        let mut outcome = Outcome::new(&started(&[1, 2]));
        assert!(outcome.record(&event("moving", 1)));
        assert!(outcome.record(&event("moved", 1)));
        assert!(!outcome.record(&event("moved", 7)));
        assert!(outcome.verdict().is_err());
        assert!(outcome.record(&event("moved", 2)));
        assert!(outcome.verdict().is_ok());
    }

    #[test]
    fn failed_where_a_peer_stays() {
        let mut outcome = Outcome::new(&started(&[1, 2]));
        assert!(outcome.record(&event("moved", 2)));
        assert!(outcome.record(&event("taken-back", 1)));
        // Back where it was: that is no success.
        assert!(!outcome.record(&event("moved", 1)));
        let told = outcome.verdict().unwrap_err().to_string();
        assert!(told.contains("1 peer did not answer from there") && told.contains("as before"), "{told}");
    }

    #[test]
    fn announces_what_moves() {
        assert_eq!(announcement(&started(&[1])), "Moving 2 connections with 1 peer to 198.51.100.7.\n");
    }
}
