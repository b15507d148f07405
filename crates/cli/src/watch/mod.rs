//! `whimbrel watch`: how things are, drawn anew each second.

mod screen;
mod terminal;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use whimbrel_ipc::{Bytes, Client, ClientError, Connection, EventRecord, EventsQuery, Flow, Peer, Status};

use crate::complaint::Complaint;
use screen::Notice;
use terminal::Terminal;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Events that are asked for; fewer are shown where the terminal is small.
const EVENTS: usize = 20;

/// All that is shown.
struct Snapshot {
    status: Status,
    peers: Vec<Peer>,
    connections: Vec<Connection>,
    events: Vec<EventRecord>,
    taken: Instant,
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    sent: f64,
    received: f64,
}

pub(crate) fn watch(run_dir: &Path) -> Result<(), Complaint> {
    // A daemon that is not there at all is told as ever; one that goes away later is waited for.
    let mut last = look(run_dir)?;
    let terminal = Terminal::take().map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => Complaint::NoTerminal,
        _ => Complaint::Output(error),
    })?;
    let mut rates = HashMap::new();
    let mut notice = None;
    loop {
        let lines = screen::draw(&last, &rates, notice.as_ref(), terminal.size());
        terminal.show(&lines).map_err(Complaint::Output)?;
        if terminal.wait(PAUSE).map_err(Complaint::Output)? {
            return Ok(());
        }
        match look(run_dir) {
            Ok(now) => {
                notice = match notice {
                    _ if now.status.pid != last.status.pid => Some(Notice::Restarted { pid: now.status.pid }),
                    Some(Notice::Gone { .. }) | None => None,
                    kept => kept,
                };
                rates = self::rates(&last, &now);
                last = now;
            }
            Err(error) => {
                rates.clear();
                let since = match notice {
                    Some(Notice::Gone { since, .. }) => since,
                    _ => Instant::now(),
                };
                notice = Some(Notice::Gone { what: Complaint::from(error).failure().what, since });
            }
        }
    }
}

fn look(run_dir: &Path) -> Result<Snapshot, ClientError> {
    let mut client = Client::connect(run_dir)?;
    let (status, peers) = (client.status()?, client.peers()?);
    let taken = Instant::now();
    let connections = client.connections()?;
    let query = EventsQuery { last: Some(EVENTS), ..EventsQuery::default() };
    let events = client.events(query)?.collect::<Result<_, _>>()?;
    Ok(Snapshot { status, peers, connections, events, taken })
}

/// How fast each connection was between two looks.
fn rates(before: &Snapshot, now: &Snapshot) -> HashMap<Flow, Rate> {
    let counted = |snapshot: &Snapshot| -> HashMap<Flow, Bytes> {
        snapshot.connections.iter().filter_map(|one| Some((one.flow, one.bytes?))).collect()
    };
    let seconds = now.taken.saturating_duration_since(before.taken).as_secs_f64().max(0.001);
    let former = counted(before);
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    counted(now)
        .into_iter()
        .filter_map(|(flow, bytes)| {
            let before = former.get(&flow)?;
            Some((flow, Rate { sent: rate(before.sent, bytes.sent), received: rate(before.received, bytes.received) }))
        })
        .collect()
}
