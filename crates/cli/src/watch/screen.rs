//! What is on the screen. Pure: values in, lines out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_ipc::{Connection, ConnectionState, Flow};

use super::{Rate, Snapshot};
use crate::show;
use crate::table::{cut, elastic, number, render_in, text, wrap};

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
    let mut lines = head(snapshot, rates, width);
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
    let told = |event| own_lines(&show::event_in(width, event));
    let events: Vec<String> = snapshot.events.iter().flat_map(told).collect();
    // Peers and events get a quarter each at the most, connections what is left.
    let quarter = (height / 4).max(2);
    section(&mut lines, own_lines(&show::peers_in(width, &snapshot.peers)), quarter);
    let of_events = events.len().min(quarter);
    let room = height.saturating_sub(lines.len() + of_events + 4).max(2);
    section(&mut lines, connections(snapshot, rates, width), room);
    lines.push(String::new());
    lines.extend(events.into_iter().rev().take(of_events).rev());
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push("q quits".to_owned());
    lines.into_iter().map(|line| cut(&line, width)).collect()
}

fn head(snapshot: &Snapshot, rates: &HashMap<Flow, Rate>, width: usize) -> Vec<String> {
    let status = &snapshot.status;
    let addresses: Vec<_> =
        status.addresses.iter().map(|local| format!("{} ({})", local.address, local.interface)).collect();
    let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
    let kept: Vec<_> = status.kept_addresses.iter().map(ToString::to_string).collect();
    let kept = if kept.is_empty() { String::new() } else { format!(" kept {}", kept.join(", ")) };
    let (sent, received) =
        rates.values().fold((0.0, 0.0), |(sent, received), rate| (sent + rate.sent, received + rate.received));
    let counts = status.counts;
    let who = format!(
        "whimbrel {}, process {}, up {}",
        status.version,
        status.pid,
        show::duration(Duration::from_millis(status.uptime_ms))
    );
    let rate = format!("out {} in {}", bits(sent), bits(received));
    let counts = format!(
        "{}: {} would survive{}, {} moved, {} held{}",
        show::count(counts.connections, "connection"),
        counts.introduced.saturating_sub(counts.not_confirmed),
        if counts.introduced > 0 && counts.sessions == 0 { " once a session comes up" } else { "" },
        counts.moved,
        counts.held,
        not_confirmed(counts.not_confirmed),
    );
    let mut lines = packed([who, rate, counts], width);
    lines.extend(own_lines(&wrap(&format!("addresses {addresses}{kept}"), width, 2)));
    lines
}

/// Parts of a line, on as many lines as it takes to have each whole.
fn packed(parts: impl IntoIterator<Item = String>, width: usize) -> Vec<String> {
    const BETWEEN: &str = "   ";
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(last) if last.chars().count() + BETWEEN.len() + part.chars().count() <= width => {
                last.extend([BETWEEN, &part]);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// How many connections are carried to where nothing was heard from, if any.
fn not_confirmed(count: usize) -> String {
    if count > 0 { format!(", {count} not confirmed") } else { String::new() }
}

fn connections(snapshot: &Snapshot, rates: &HashMap<Flow, Rate>, width: usize) -> Vec<String> {
    let mut shown: Vec<_> = snapshot.connections.iter().filter(|one| !show::is_server(one)).collect();
    shown.sort_by_key(|connection| (show::rank(connection.state), connection.flow));
    if shown.is_empty() {
        return vec!["No connections.".to_owned()];
    }
    let rate = |flow: &Flow, pick: fn(&Rate) -> f64| rates.get(flow).map(|rate| bits(pick(rate))).unwrap_or_default();
    // What may be left out where there is no room.
    let beside = |connection: &Connection| {
        [
            heard(connection),
            show::via(connection),
            show::peer(connection),
            rate(&connection.flow, |rate| rate.sent),
            rate(&connection.flow, |rate| rate.received),
            connection.process.as_ref().map(|process| process.name.clone()).unwrap_or_default(),
        ]
    };
    let columns = [
        text("HEARD").spare(1),
        text("VIA").spare(5),
        elastic("PEER").spare(4),
        number("OUT").spare(2),
        number("IN").spare(2),
        elastic("PROGRAM").spare(3),
    ];
    let [heard, via, peer, out, into, program] = columns;
    let named: Vec<_> = shown.iter().map(|connection| (names(connection), stands(connection))).collect();
    let longest = |pick: fn(&([String; 3], String)) -> &String| {
        named.iter().map(|one| pick(one).chars().count()).max().unwrap_or_default()
    };
    let ends = longest(|one| &one.0[1]) + longest(|one| &one.0[2]);
    // The narrowest that names all connections and says how they stand.
    let least = "PROTO  ".len() + ends + longest(|one| &one.1) + 4;
    if least <= width {
        let row = |(connection, (name, state)): (&&Connection, &([String; 3], String))| {
            let ([transport, local, remote], state) = (name.clone(), state.clone());
            let [heard, via, peer, out, into, program] = beside(connection);
            [transport, local, remote, state, heard, via, peer, out, into, program]
        };
        let rows: Vec<_> = shown.iter().zip(&named).map(row).collect();
        let columns =
            [text("PROTO"), text("LOCAL"), text("REMOTE"), text("STATE"), heard, via, peer, out, into, program];
        return own_lines(&render_in(width, columns, &rows));
    }
    // Each on two lines: long addresses of IPv6.
    let rows = shown.iter().zip(&named).flat_map(|(connection, ([transport, local, remote], state))| {
        let [heard, via, peer, out, into, program] = beside(connection);
        let mut below: [String; 8] = Default::default();
        below[0] = format!("  -> {remote}");
        [[format!("{transport} {local}"), state.clone(), heard, via, peer, out, into, program], below]
    });
    let columns = [text("CONNECTION"), text("STATE"), heard, via, peer, out, into, program];
    own_lines(&render_in(width, columns, &rows.collect::<Vec<_>>()))
}

/// What names a connection: its transport and its ends, as its socket has them, wherever that is.
fn names(connection: &Connection) -> [String; 3] {
    let Flow { transport, local, remote } = connection.flow;
    let (local, remote) = if connection.passed_on { (remote, local) } else { (local, remote) };
    [transport.to_string(), local.to_string(), remote.to_string()]
}

/// How it stands.
fn stands(connection: &Connection) -> String {
    if connection.passed_on { "passed on".to_owned() } else { connection.state.to_string() }
}

/// How long ago its peer was last heard, where that is what keeps it from being confirmed.
fn heard(connection: &Connection) -> String {
    match (connection.state, connection.heard_ms) {
        (ConnectionState::NotConfirmed, Some(ago)) => format!("{} ago", show::duration(Duration::from_millis(ago))),
        _ => String::new(),
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
        assert!(text.contains("0 held, 1 not confirmed") && text.contains("not confirmed  28 s ago"), "{text}");
    }

    #[test]
    fn what_names_a_connection_its_state_and_all_counts_are_whole_on_any_screen() {
        let mut shown = snapshot(2, 0);
        let counts =
            Counts { connections: 312, introduced: 310, sessions: 1, moved: 211, held: 17, ..Counts::default() };
        shown.status.counts = Counts { not_confirmed: 38, ..counts };
        let long = |address: &str, port| std::net::SocketAddr::new(address.parse().unwrap(), port);
        shown.connections[0].flow = Flow {
            transport: Transport::Tcp,
            local: long("192.168.100.110", 51_514),
            remote: long("203.0.113.205", 44_443),
        };
        shown.connections[0].state = ConnectionState::NotConfirmed;
        shown.connections[0].heard_ms = Some(61_000);
        shown.connections[0].process = Some(whimbrel_ipc::Process { pid: 1, name: "firefox-esr".into() });
        let wide = 80..=140;
        for width in wide.clone() {
            let text = draw(&shown, &HashMap::new(), None, (width, 40)).join("\n");
            for whole in
                ["192.168.100.110:51514", "203.0.113.205:44443", "not confirmed", "38 not confirmed", "211 moved"]
            {
                assert!(text.contains(whole), "{whole} at {width}: {text}");
            }
        }
        // The longest addresses that there are.
        let (local, remote) = ("2001:db8:1111:2222:3333:4444:5555:6661", "2001:db8:1111:2222:3333:4444:5555:6662");
        shown.connections[1].flow =
            Flow { transport: Transport::Udp, local: long(local, 51_514), remote: long(remote, 44_443) };
        for width in wide {
            let text = draw(&shown, &HashMap::new(), None, (width, 40)).join("\n");
            for whole in [format!("[{local}]:51514"), format!("[{remote}]:44443"), "native".to_owned()] {
                assert!(text.contains(&whole), "{whole} at {width}: {text}");
            }
        }
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
