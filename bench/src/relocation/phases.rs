//! What the daemons' logs tell of moves: `move: KIND number=… at_us=… took_us=…`, a line for each op (CLOCK_MONOTONIC).

use std::collections::HashMap;
use std::fs;

use whimbrel_lab::Lab;

use crate::Result;

/// When an op began and ended, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) began: u64,
    pub(super) ended: u64,
}

/// The ops of one move, at either host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ops(HashMap<String, Op>);

impl Ops {
    pub(super) fn get(&self, kind: &str) -> Option<Op> {
        self.0.get(kind).copied()
    }

    /// How long the socket was at rest, in microseconds, if it went to another host.
    pub(super) fn rest(&self) -> Option<u64> {
        Some(self.get("thaw")?.ended.saturating_sub(self.get("freeze")?.began))
    }
}

/// All moves in the logs of a lab's daemons, by number.
pub(super) fn read(lab: &Lab) -> Result<HashMap<u64, Ops>> {
    let mut moves = HashMap::new();
    for (_, path) in lab.daemon_logs() {
        absorb(&mut moves, &fs::read_to_string(path)?);
    }
    Ok(moves)
}

fn absorb(moves: &mut HashMap<u64, Ops>, log: &str) {
    for line in log.lines() {
        let Some((_, told)) = line.split_once("move: ") else { continue };
        let kind = told.split_whitespace().next().unwrap_or_default();
        let field = |name: &str| {
            let words = told.split_whitespace();
            words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).next()?.parse::<u64>().ok()
        };
        if let (Some(number), Some(began), Some(took)) = (field("number"), field("at_us"), field("took_us")) {
            let op = Op { began, ended: began + took };
            moves.entry(number).or_default().0.insert(kind.to_owned(), op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_how_long_a_socket_was_at_rest() {
        let log = "2026-01-01T00:00:00Z DEBUG move: freeze number=7 at_us=1000 took_us=40 done=true\n\
                   2026-01-01T00:00:00Z DEBUG move: save-held at_us=1100 took_us=5 done=true\n\
                   2026-01-01T00:00:00Z DEBUG something else\n";
        let mut moves = HashMap::new();
        absorb(&mut moves, log);
        assert_eq!(moves.len(), 1);
        assert_eq!(moves[&7].get("freeze"), Some(Op { began: 1000, ended: 1040 }));
        assert_eq!(moves[&7].rest(), None, "it is still at rest");
        absorb(&mut moves, "Z DEBUG move: thaw number=7 at_us=1500 took_us=60 done=true");
        assert_eq!(moves[&7].rest(), Some(560));
    }
}
