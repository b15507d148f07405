//! `whimbrel connections`.

use std::collections::BTreeMap;

use whimbrel_ipc::{Carrier, Connection, ConnectionState, Flow, HelperState, PeerName};

use super::count;
use super::peers::slower;
use crate::table::{elastic, render, text, width, wrap};

/// Whether it is not carried the way that it was opened.
pub(crate) fn is_away(connection: &Connection) -> bool {
    match connection.state {
        ConnectionState::Moved | ConnectionState::Held => true,
        ConnectionState::NotConfirmed => connection.carrier.is_some(),
        _ => false,
    }
}

/// `only_moved`: they were picked by [`is_away`].
pub(crate) fn connections(connections: &[Connection], only_moved: bool) -> String {
    let (of_servers, shown): (Vec<_>, Vec<_>) = connections.iter().partition(|one| is_server(one));
    let (of_others, mut shown): (Vec<_>, Vec<_>) = shown.into_iter().partition(|one| one.passed_on);
    let servers = format!("{}{}", passed_on(of_others), servers(&of_servers));
    if shown.is_empty() {
        let none = if only_moved { "No connection has moved.\n" } else { "No connections.\n" };
        return format!("{none}{servers}");
    }
    shown.sort_by_key(|connection| (rank(connection.state), connection.flow));
    let marks = marks(&shown);
    let rows: Vec<_> = shown
        .iter()
        .map(|connection| {
            [
                connection.flow.transport.to_string(),
                connection.flow.local.to_string(),
                connection.flow.remote.to_string(),
                format!("{}{}{}", connection.state, mark(connection, &marks), unconnected(connection)),
                via(connection),
                peer(connection),
                program(connection),
            ]
        })
        .collect();
    let mut out = render(
        [text("PROTO"), text("LOCAL"), text("REMOTE"), text("STATE"), text("VIA"), elastic("PEER"), elastic("PROGRAM")],
        &rows,
    );
    out.push_str(&helpers(&shown));
    out.push_str(&reasons(&shown, &marks));
    if shown.iter().any(|one| one.reason.as_deref().is_some_and(|reason| reason.starts_with("asked, silent"))) {
        out.push_str("(`systemctl reload whimbrel`, or SIGHUP to the daemon, has silent hosts asked again at once.)\n");
    }
    let of = |state| shown.iter().filter(|connection| connection.state == state).count();
    let survive = of(ConnectionState::Native) + of(ConnectionState::Moved) + of(ConnectionState::Held);
    let verb = if survive == 1 { "survives" } else { "survive" };
    let doubtful = match of(ConnectionState::NotConfirmed) {
        0 => String::new(),
        1 => "; 1 is not confirmed: it survives once its peer answers".to_owned(),
        more => format!("; {more} are not confirmed: they survive once their peers answer"),
    };
    let sum = format!("{}, of which {survive} {verb} a move{doubtful}.", count(shown.len(), "connection"));
    out.push_str(&(wrap(&sum, width(), 0) + "\n"));
    out.push_str(slower(shown.iter().any(|connection| connection.by_tcp)));
    out.push_str(&servers);
    out
}

/// Whether it is none, but a socket that waits for clients.
pub(crate) fn is_server(connection: &Connection) -> bool {
    connection.state == ConnectionState::Server
}

/// Behind the state of what a socket that is not connected has with one remote end.
const fn unconnected(connection: &Connection) -> &'static str {
    if connection.unconnected { ", unconnected" } else { "" }
}

/// Who is at its other end: the name in the community, else the number.
pub(crate) fn peer(connection: &Connection) -> String {
    let named = |peer: &PeerName| peer.name.clone().unwrap_or_else(|| format!("#{}", peer.id));
    connection.peer.as_ref().map(named).unwrap_or_default()
}

fn program(connection: &Connection) -> String {
    let process = connection.process.as_ref();
    process.map(|process| format!("{} ({})", process.name, process.pid)).unwrap_or_default()
}

/// Connections whose sockets other hosts have, and that are nothing to this host but packets to pass on.
fn passed_on(mut shown: Vec<&Connection>) -> String {
    if shown.is_empty() {
        return String::new();
    }
    shown.sort_by_key(|one| (one.flow.remote, one.flow.local));
    // As the hosts' sockets have them: the address is this host's.
    let row = |one: &&Connection| {
        let Flow { transport, local, remote } = one.flow;
        [transport.to_string(), remote.to_string(), local.to_string(), via(one), peer(one)]
    };
    let rows: Vec<_> = shown.iter().map(row).collect();
    let table = render([text("PROTO"), text("LENT"), text("FAR END"), text("VIA"), elastic("PASSED ON TO")], &rows);
    format!("\nConnections of others that this host passes on:\n{table}")
}

/// Sockets that wait for clients, by the names that `whimbrel move` knows them by.
fn servers(shown: &[&Connection]) -> String {
    if shown.is_empty() {
        return String::new();
    }
    let row = |one: &&Connection| {
        [one.name.clone().unwrap_or_default(), program(one), one.reason.clone().unwrap_or_default()]
    };
    let table =
        render([text("SERVER"), text("PROGRAM"), elastic("WHY IT STAYS")], &shown.iter().map(row).collect::<Vec<_>>());
    format!("\nSockets that wait for clients; `whimbrel move` gives them to another host by these names:\n{table}")
}

/// What is done, or was, for those whose peer is away.
fn helpers(shown: &[&Connection]) -> String {
    let line = |connection: &&Connection| {
        let helper = connection.helper.as_ref()?;
        let head = format!("helper {} at {}: ", helper.name, connection.flow.remote);
        let what = match helper.state {
            HelperState::Answers => {
                format!("has kept {} and answered with {}", bytes(helper.kept), bytes(helper.answered))
            }
            HelperState::Holds => format!("does not answer (any more); {} are kept", bytes(helper.kept)),
            HelperState::Delivers => format!("the peer is back and has {} of {}", helper.delivered, bytes(helper.kept)),
            HelperState::Over => format!("is done; sequence numbers are shifted by {}", helper.shifted),
            HelperState::Stopped => match helper.pid {
                Some(pid) => format!("process {pid} is stopped"),
                None => "its cgroup is stopped".to_owned(),
            },
        };
        Some(format!("{head}{}\n", wrap(&what, width(), head.len())))
    };
    shown.iter().filter_map(line).collect()
}

fn bytes(number: u64) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), "byte")
}

/// A state and why connections are in it.
type Why<'a> = (ConnectionState, &'a str);

/// Such, in the order in which they are told, with their numbers.
type Marks<'a> = BTreeMap<(u8, &'a str), (ConnectionState, Option<usize>)>;

fn why(connection: &Connection) -> Option<Why<'_>> {
    Some((connection.state, connection.reason.as_deref()?))
}

/// The reasons why connections are in a state, each once, with a number where that state has several.
fn marks<'a>(shown: &[&'a Connection]) -> Marks<'a> {
    let mut marks = BTreeMap::new();
    for (state, reason) in shown.iter().filter_map(|connection| why(connection)) {
        marks.insert((rank(state), reason), (state, None));
    }
    let several: Vec<u8> = marks.keys().map(|(rank, _)| *rank).collect();
    let mut number = 0;
    for ((rank, _), (_, mark)) in &mut marks {
        if several.iter().filter(|other| *other == rank).count() > 1 {
            number += 1;
            *mark = Some(number);
        }
    }
    marks
}

/// What stands behind the state of a connection, so that its reason is found.
fn mark(connection: &Connection, marks: &Marks<'_>) -> String {
    let known = why(connection).and_then(|(state, reason)| marks.get(&(rank(state), reason)));
    known.and_then(|(_, mark)| *mark).map(|number| format!(" ({number})")).unwrap_or_default()
}

/// Why some would not survive a move, or are held: each reason once.
fn reasons(shown: &[&Connection], marks: &Marks<'_>) -> String {
    let line = |((_, reason), (state, mark)): (&(u8, &str), &(ConnectionState, Option<usize>))| {
        let number = shown.iter().filter(|connection| why(connection) == Some((*state, *reason))).count();
        let mark = mark.map(|number| format!("({number}) ")).unwrap_or_default();
        let head = format!("{mark}{state}: ");
        format!("{head}{}\n", wrap(&format!("{reason} ({})", count(number, "connection")), width(), head.len()))
    };
    marks.iter().map(line).collect()
}

/// What carries it, and whether something on the way translates its addresses.
pub(crate) fn via(connection: &Connection) -> String {
    let state = connection.helper.as_ref().map(|helper| helper.state);
    let helps = state.is_some_and(|state| !matches!(state, HelperState::Over | HelperState::Holds));
    let carrier = match connection.carrier {
        _ if helps => "helper",
        Some(Carrier::Hold) | None => "",
        Some(Carrier::Rewrite) => "rewrite",
        Some(Carrier::Tunnel) if connection.by_tcp => "tunnel/tcp",
        Some(Carrier::Tunnel) => "tunnel",
        Some(Carrier::FollowRewrite) => "follow",
    };
    let carrier = match (&connection.network, &connection.second_network) {
        (Some(network), Some(second)) if network == second => format!("{carrier} {network} twice"),
        (Some(network), Some(second)) => format!("{carrier} {network}+{second}"),
        (Some(network), None) => format!("{carrier} {network}"),
        (None, _) => carrier.to_owned(),
    };
    match (carrier.as_str(), connection.translated) {
        ("", Some(true)) => "nat".to_owned(),
        (carrier, Some(true)) => format!("{carrier}+nat"),
        (carrier, _) => carrier.to_owned(),
    }
}

/// What moved comes first, what has no protection last.
pub(crate) fn rank(state: ConnectionState) -> u8 {
    match state {
        ConnectionState::NotConfirmed => 0,
        ConnectionState::Held => 1,
        ConnectionState::Moved => 2,
        ConnectionState::Native => 3,
        ConnectionState::Pending => 4,
        ConnectionState::Lost => 5,
        ConnectionState::Unprotected => 6,
        ConnectionState::Server => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::WIDTH;
    use whimbrel_ipc::{Helper, Process, Transport};

    fn connection(local: &str, remote: &str, state: ConnectionState) -> Connection {
        let flow = Flow { transport: Transport::Tcp, local: local.parse().unwrap(), remote: remote.parse().unwrap() };
        Connection { since: "2026-01-31T23:59:58.007Z".into(), ..Connection::bare(flow, state) }
    }

    #[test]
    fn helpers_are_told_with_what_they_did() {
        let mut helped = connection("192.0.2.10:6667", "203.0.113.5:51514", ConnectionState::Held);
        helped.carrier = Some(Carrier::Hold);
        let helper = |state| Helper {
            name: "irc".into(),
            state,
            pid: Some(7),
            kept: 2409,
            delivered: 9,
            answered: 75,
            shifted: 80,
        };
        for (state, via, told) in [
            (HelperState::Answers, "helper", "has kept 2409 bytes and answered with 75 bytes"),
            (HelperState::Holds, "", "does not answer (any more); 2409 bytes are kept"),
            (HelperState::Delivers, "helper", "the peer is back and has 9 of 2409 bytes"),
            (HelperState::Over, "", "is done; sequence numbers are shifted by 80"),
            (HelperState::Stopped, "helper", "process 7 is stopped"),
        ] {
            helped.helper = Some(helper(state));
            assert_eq!(super::via(&helped), via);
            let shown = connections(std::slice::from_ref(&helped), false);
            assert!(shown.contains(&format!("\nhelper irc at 203.0.113.5:51514: {told}\n")), "{shown}");
        }
    }

    #[test]
    fn what_moved_comes_first() {
        let mut moved = connection("192.0.2.10:51514", "203.0.113.5:443", ConnectionState::Moved);
        moved.carrier = Some(Carrier::Tunnel);
        moved.translated = Some(true);
        moved.peer = Some(PeerName { id: 3, key: "key".into(), name: None });
        moved.process = Some(Process { pid: 812, name: "curl".into() });
        let mut lost = connection("198.51.100.7:40000", "203.0.113.9:22", ConnectionState::Unprotected);
        lost.reason = Some("nobody answers there".into());
        assert_eq!(
            connections(&[lost.clone(), moved.clone()], false),
            "\
PROTO  LOCAL               REMOTE           STATE        VIA         PEER  PROGRAM
tcp    192.0.2.10:51514    203.0.113.5:443  moved        tunnel+nat  #3    curl (812)
tcp    198.51.100.7:40000  203.0.113.9:22   unprotected
unprotected: nobody answers there (1 connection)
2 connections, of which 1 survives a move.
"
        );
        assert!(is_away(&moved) && !is_away(&lost));
        // Who is called something is called so.
        moved.peer = Some(PeerName { id: 3, key: "key".into(), name: Some("desk".into()) });
        let text = connections(&[moved], false);
        assert!(text.contains("  desk  curl (812)") && !text.contains("#3"), "{text}");
    }

    #[test]
    fn what_is_not_confirmed_does_not_count_as_what_survives() {
        let mut doubtful = connection("192.0.2.10:51514", "203.0.113.5:443", ConnectionState::NotConfirmed);
        doubtful.carrier = Some(Carrier::Tunnel);
        doubtful.reason = Some("the peer has not answered since this host moved, last heard 28 s ago".into());
        let native = connection("192.0.2.10:51515", "203.0.113.6:443", ConnectionState::Native);
        assert!(is_away(&doubtful));
        assert_eq!(
            connections(&[native, doubtful], false),
            "\
PROTO  LOCAL             REMOTE           STATE          VIA
tcp    192.0.2.10:51514  203.0.113.5:443  not confirmed  tunnel
tcp    192.0.2.10:51515  203.0.113.6:443  native
not confirmed: the peer has not answered since this host moved, last heard 28 s ago (1 connection)
2 connections, of which 1 survives a move; 1 is not confirmed: it survives once its peer answers.
"
        );
    }

    #[test]
    fn what_an_unconnected_socket_has_with_a_remote_is_told_apart() {
        let native = connection("192.0.2.10:53", "203.0.113.6:40000", ConnectionState::Native);
        let of_socket = Connection { unconnected: true, ..native };
        let moved = Connection { state: ConnectionState::Moved, ..of_socket.clone() };
        let text = connections(&[of_socket, moved], false);
        assert!(text.contains("  native, unconnected\n") && text.contains("  moved, unconnected\n"), "{text}");
    }

    #[test]
    fn sockets_of_servers_have_the_names_that_move_knows() {
        let server = |name: &str, local: &str| Connection {
            name: Some(name.into()),
            process: Some(Process { pid: 812, name: "nginx".into() }),
            ..connection(local, "0.0.0.0:0", ConnectionState::Server)
        };
        let mut leased = server("udp:192.0.2.7:53", "192.0.2.7:53");
        leased.reason = Some("several sockets share this endpoint".into());
        let of_both = [server("listener:192.0.2.7:80", "192.0.2.7:80"), leased];
        let told = "
Sockets that wait for clients; `whimbrel move` gives them to another host by these names:
SERVER                 PROGRAM      WHY IT STAYS
listener:192.0.2.7:80  nginx (812)
udp:192.0.2.7:53       nginx (812)  several sockets share this endpoint
";
        assert_eq!(connections(&of_both, false), format!("No connections.\n{told}"));
        let lost = connection("198.51.100.7:40000", "203.0.113.9:22", ConnectionState::Unprotected);
        let text = connections(&[of_both.to_vec(), vec![lost]].concat(), false);
        assert!(text.contains("\n1 connection, of which 0 survive a move.\n") && text.ends_with(told), "{text}");
        assert!(!of_both.iter().any(is_away));
    }

    #[test]
    fn what_is_passed_on_is_not_this_hosts_own() {
        // As its far end has it.
        let mut passed = connection("203.0.113.9:50000", "192.0.2.7:8001", ConnectionState::Moved);
        (passed.passed_on, passed.carrier) = (true, Some(Carrier::Rewrite));
        passed.peer = Some(PeerName { id: 3, key: "key".into(), name: Some("guest".into()) });
        let told = "
Connections of others that this host passes on:
PROTO  LENT            FAR END            VIA      PASSED ON TO
tcp    192.0.2.7:8001  203.0.113.9:50000  rewrite  guest
";
        assert_eq!(connections(std::slice::from_ref(&passed), false), format!("No connections.\n{told}"));
        let own = connection("192.0.2.7:22", "203.0.113.9:40000", ConnectionState::Native);
        let text = connections(&[passed, own], false);
        assert!(text.ends_with(&format!("\n1 connection, of which 1 survives a move.\n{told}")), "{text}");
    }

    #[test]
    fn each_row_says_which_reason_is_its() {
        let why = |local: &str, state, reason: &str| Connection {
            reason: Some(reason.into()),
            ..connection(local, "203.0.113.9:22", state)
        };
        let (held, lost) = (ConnectionState::Held, ConnectionState::Unprotected);
        let text = connections(
            &[
                why("192.0.2.1:1", lost, "policy at line 3"),
                why("192.0.2.1:2", lost, "nobody answers there"),
                why("192.0.2.1:3", lost, "policy at line 3"),
                why("192.0.2.1:4", held, "suspended by hand"),
            ],
            false,
        );
        assert_eq!(
            text,
            "\
PROTO  LOCAL        REMOTE          STATE
tcp    192.0.2.1:4  203.0.113.9:22  held
tcp    192.0.2.1:1  203.0.113.9:22  unprotected (2)
tcp    192.0.2.1:2  203.0.113.9:22  unprotected (1)
tcp    192.0.2.1:3  203.0.113.9:22  unprotected (2)
held: suspended by hand (1 connection)
(1) unprotected: nobody answers there (1 connection)
(2) unprotected: policy at line 3 (2 connections)
4 connections, of which 1 survives a move.
"
        );
    }

    #[test]
    fn ipv6_fits_the_width() {
        let mut long =
            connection("[2001:db8:1:2:3:4:5:6]:51514", "[2001:db8:a:b:c:d:e:f]:443", ConnectionState::Unprotected);
        long.process = Some(Process { pid: 4_000_000, name: "sixteen-letters-".into() });
        long.reason = Some("nobody answers at 2001:db8:a:b:c:d:e:f on UDP port 2031".into());
        let text = connections(&[long], false);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn none() {
        assert_eq!(connections(&[], false), "No connections.\n");
        assert_eq!(connections(&[], true), "No connection has moved.\n");
    }
}
