//! What is on the screen. Pure: values in, lines out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_ipc::{Connection, ConnectionState, Flow};

use super::{Rate, Snapshot};
use crate::show;
use crate::table::{cut, elastic, number, render, text};

/// Something to say above all else.
pub(super) enum Notice {
    /// The daemon does not answer; what is below is from before.
    Gone { what: String, since: Instant },
    /// Another daemon answers than before.
    Restarted { pid: u32 },
}

/// The lines, as many as fit, each as wide as fits.
pub(super) fn draw(
    snapshot: &Snapshot,
    rates: &HashMap<Flow, Rate>,
    notice: Option<&Notice>,
    (width, height): (usize, usize),
) -> Vec<String> {
    let mut lines = head(snapshot, rates);
    match notice {
        Some(Notice::Gone { what, since }) => {
            lines.push(format!("!! {what} for {} s; below is how it was. Waiting.", since.elapsed().as_secs()));
        }
        Some(Notice::Restarted { pid }) => lines.push(format!("!! the daemon was restarted: process {pid}")),
        None => {}
    }
    if snapshot.status.suspended {
        lines.push("!! this host is suspended: connections wait until `whimbrel resume`".to_owned());
    }
    let events: Vec<String> = snapshot.events.iter().flat_map(|event| own_lines(&show::event(event))).collect();
    // Peers and events get a quarter each at the most, connections what is left.
    let quarter = (height / 4).max(2);
    section(&mut lines, own_lines(&show::peers(&snapshot.peers)), quarter);
    let of_events = events.len().min(quarter);
    let room = height.saturating_sub(lines.len() + of_events + 4).max(2);
    section(&mut lines, connections(snapshot, rates), room);
    lines.push(String::new());
    lines.extend(events.into_iter().rev().take(of_events).rev());
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push("q quits".to_owned());
    lines.into_iter().map(|line| cut(&line, width)).collect()
}

fn head(snapshot: &Snapshot, rates: &HashMap<Flow, Rate>) -> Vec<String> {
    let status = &snapshot.status;
    let addresses: Vec<_> =
        status.addresses.iter().map(|local| format!("{} ({})", local.address, local.interface)).collect();
    let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
    let kept: Vec<_> = status.kept_addresses.iter().map(ToString::to_string).collect();
    let kept = if kept.is_empty() { String::new() } else { format!("   kept {}", kept.join(", ")) };
    let (sent, received) =
        rates.values().fold((0.0, 0.0), |(sent, received), rate| (sent + rate.sent, received + rate.received));
    let counts = status.counts;
    // What a narrow screen cuts is what is told below as well.
    vec![
        format!(
            "whimbrel {}, process {}, up {}   out {} in {}   {}: {} would survive{}, {} moved, {} held{}",
            status.version,
            status.pid,
            show::duration(Duration::from_millis(status.uptime_ms)),
            bits(sent),
            bits(received),
            show::count(counts.connections, "connection"),
            counts.introduced.saturating_sub(counts.not_confirmed),
            if counts.introduced > 0 && counts.sessions == 0 { " once a session comes up" } else { "" },
            counts.moved,
            counts.held,
            not_confirmed(counts.not_confirmed),
        ),
        format!("addresses {addresses}{kept}"),
    ]
}

/// How many connections are carried to where nothing was heard from, if any.
fn not_confirmed(count: usize) -> String {
    if count > 0 { format!(", {count} not confirmed") } else { String::new() }
}

fn connections(snapshot: &Snapshot, rates: &HashMap<Flow, Rate>) -> Vec<String> {
    let mut shown: Vec<_> = snapshot.connections.iter().filter(|one| !show::is_server(one)).collect();
    shown.sort_by_key(|connection| (show::rank(connection.state), connection.flow));
    if shown.is_empty() {
        return vec!["No connections.".to_owned()];
    }
    let rate = |flow: &Flow, pick: fn(&Rate) -> f64| rates.get(flow).map(|rate| bits(pick(rate))).unwrap_or_default();
    let rows: Vec<_> = shown
        .into_iter()
        .map(|connection| {
            let Flow { transport, local, remote } = connection.flow;
            // As its socket has it, wherever that is.
            let (local, remote) = if connection.passed_on { (remote, local) } else { (local, remote) };
            [
                transport.to_string(),
                local.to_string(),
                remote.to_string(),
                stands(connection),
                show::via(connection),
                show::peer(connection),
                rate(&connection.flow, |rate| rate.sent),
                rate(&connection.flow, |rate| rate.received),
                connection.process.as_ref().map(|process| process.name.clone()).unwrap_or_default(),
            ]
        })
        .collect();
    let columns = [
        text("PROTO"),
        elastic("LOCAL"),
        elastic("REMOTE"),
        text("STATE"),
        text("VIA"),
        text("PEER"),
        number("OUT"),
        number("IN"),
        elastic("PROGRAM"),
    ];
    own_lines(&render(columns, &rows))
}

/// How it stands, and where that is not confirmed how long ago its peer was last heard.
fn stands(connection: &Connection) -> String {
    match (connection.passed_on, connection.state, connection.heard_ms) {
        (true, ..) => "passed on".to_owned(),
        (_, ConnectionState::NotConfirmed, Some(ago)) => {
            format!("not confirmed, heard {} ago", show::duration(Duration::from_millis(ago)))
        }
        (_, state, _) => state.to_string(),
    }
}

/// Adds a section with at most so many lines, an empty one before it; says how many more there are.
fn section(lines: &mut Vec<String>, mut content: Vec<String>, most: usize) {
    if content.len() > most {
        let more = content.len() - most.saturating_sub(1);
        content.truncate(most.saturating_sub(1));
        content.push(format!("… and {more} more"));
    }
    lines.push(String::new());
    lines.extend(content);
}

fn own_lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Bytes a second as bits a second: `0`, `12 kbit/s`, `3.4 Mbit/s`.
fn bits(bytes: f64) -> String {
    let bits = bytes * 8.0;
    match bits {
        ..1.0 => "0".to_owned(),
        1.0..1e3 => format!("{bits:.0} bit/s"),
        1e3..1e6 => format!("{:.0} kbit/s", bits / 1e3),
        1e6..1e9 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.2} Gbit/s", bits / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{Bytes, Counts, EventRecord, Status, Transport, Trust};

    fn snapshot(count: u16, sent: u64) -> Snapshot {
        let connection = |port| {
            let (local, remote) = (([192, 0, 2, 10], port).into(), ([203, 0, 113, 5], 22).into());
            let flow = Flow { transport: Transport::Tcp, local, remote };
            let bytes = Some(Bytes { sent, received: 0 });
            Connection { bytes, ..Connection::bare(flow, ConnectionState::Native) }
        };
        let event = |number| EventRecord {
            number,
            time: "2026-01-31T23:59:58.007Z".into(),
            monotonic_ms: 0,
            kind: "moved".into(),
            sentence: format!("event {number}"),
            fields: serde_json::Map::new(),
        };
        Snapshot {
            status: Status {
                ready: true,
                version: "0.1.0".into(),
                pid: 4711,
                uptime_ms: 1000,
                public_key: String::new(),
                port: 2031,
                trust: Trust::Tofu,
                run_dir: "/run/whimbrel".into(),
                state_dir: "/var/lib/whimbrel".into(),
                place: 0,
                addresses: Vec::new(),
                kept_addresses: Vec::new(),
                suspended: false,
                rendezvous: Vec::new(),
                meetings: None,
                name_server: None,
                counts: Counts::default(),
                attached: Vec::new(),
                tunnel: None,
                newest_event: 30,
            },
            peers: Vec::new(),
            connections: (1..=count).map(connection).collect(),
            events: (1..=30).map(event).collect(),
            taken: Instant::now(),
        }
    }

    #[test]
    fn fills_any_screen_exactly() {
        for size in [(80, 24), (40, 12), (200, 60), (20, 5)] {
            for count in [0, 3, 500] {
                let gone = Notice::Gone { what: "no daemon answers".into(), since: Instant::now() };
                let lines = draw(&snapshot(count, 0), &HashMap::new(), Some(&gone), size);
                assert_eq!(lines.len(), size.1);
                assert!(lines.iter().all(|line| line.chars().count() <= size.0), "{lines:?}");
                assert_eq!(lines.last().unwrap(), "q quits");
            }
        }
    }

    #[test]
    fn shows_the_newest_events_what_is_left_out_and_that_the_daemon_is_gone() {
        let gone = Notice::Gone { what: "no daemon answers".into(), since: Instant::now() };
        let text = draw(&snapshot(500, 0), &HashMap::new(), Some(&gone), (100, 24)).join("\n");
        assert!(text.contains("event 30") && !text.contains("event 1\n"), "{text}");
        assert!(text.contains("more") && text.contains("!! no daemon answers for 0 s"), "{text}");
        let text = draw(&snapshot(1, 0), &HashMap::new(), Some(&Notice::Restarted { pid: 9 }), (100, 24)).join("\n");
        assert!(text.contains("!! the daemon was restarted: process 9"), "{text}");
    }

    #[test]
    fn what_keeps_connections_from_surviving_is_shown() {
        let mut away = snapshot(1, 0);
        away.status.suspended = true;
        away.status.counts = Counts { introduced: 1, ..Counts::default() };
        let text = draw(&away, &HashMap::new(), None, (160, 24)).join("\n");
        assert!(text.contains("this host is suspended") && text.contains("1 would survive once a session"), "{text}");
        away.status.suspended = false;
        away.status.counts.sessions = 1;
        let text = draw(&away, &HashMap::new(), None, (160, 24)).join("\n");
        assert!(!text.contains("suspended") && text.contains("1 would survive, 0 moved"), "{text}");
    }

    #[test]
    fn who_is_not_heard_is_said_to_be() {
        let mut silent = snapshot(1, 0);
        silent.status.counts = Counts { introduced: 1, sessions: 1, not_confirmed: 1, ..Counts::default() };
        silent.connections[0].state = ConnectionState::NotConfirmed;
        silent.connections[0].heard_ms = Some(28_040);
        let text = draw(&silent, &HashMap::new(), None, (160, 24)).join("\n");
        assert!(text.contains("0 held, 1 not confirmed") && text.contains("not confirmed, heard 28 s ago"), "{text}");
    }

    #[test]
    fn rates_are_what_was_added_since() {
        let before = snapshot(1, 1_000);
        let mut now = snapshot(1, 126_000);
        now.taken = before.taken + Duration::from_secs(1);
        let rates = super::super::rates(&before, &now);
        assert_eq!(rates.values().next().unwrap().sent, 125_000.0);
        let lines = draw(&now, &rates, None, (80, 24));
        assert!(lines[0].contains("out 1.0 Mbit/s in 0"), "{lines:?}");
        assert!(lines[1..].iter().any(|line| line.contains("1.0 Mbit/s")), "{lines:?}");
    }
}
