//! Logs as daemons write them, and what is drawn of them.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use whimbrel_ipc::{EventRecord, rfc3339};

use super::incident::{Incident, Kind};
use super::story::{Story, Way, read};
use super::{lanes, plot};

/// 2026-01-31T21:00:00Z.
const BEGIN: u64 = 1_769_893_200_000;

const KEY: &str = "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo";

/// A log: events in a row, each so many milliseconds after the first.
struct Log(Vec<EventRecord>);

impl Log {
    fn new() -> Self {
        let mut log = Self(Vec::new());
        log.add(0, "started", json!({ "key": KEY, "restored_flows": 0 }));
        log
    }

    fn add(&mut self, at: u64, kind: &str, fields: Value) {
        let Value::Object(fields) = fields else { panic!("fields are an object") };
        self.0.push(EventRecord {
            number: self.0.len() as u64 + 1,
            time: rfc3339(UNIX_EPOCH + Duration::from_millis(BEGIN + at)),
            monotonic_ms: 1_000_000 + at,
            kind: kind.to_owned(),
            sentence: "for people".to_owned(),
            fields,
        });
    }

    fn reached(&mut self, at: u64, peer: u64) {
        let key = format!("{peer}{KEY}");
        let remote = format!("203.0.113.{peer}:2031");
        self.add(at, "peer-reached", json!({ "peer": peer, "key": key, "remote": remote, "took_ms": 40.5 }));
    }

    fn introduced(&mut self, at: u64, peer: u64, port: u64, own: &str) {
        let flow = format!("tcp {own}:{port} -> 203.0.113.{peer}:22");
        self.add(at, "flow-introduced", json!({ "flow": flow, "peer": peer, "translated": false }));
    }

    fn gone(&mut self, at: u64, peer: u64, port: u64, own: &str) {
        let flow = format!("tcp {own}:{port} -> 203.0.113.{peer}:22");
        self.add(at, "flow-gone", json!({ "flow": flow, "peer": peer }));
    }

    fn moving(&mut self, at: u64, peer: u64, from: Option<&str>, to: Option<&str>, flows: u64, kept: bool) {
        let fields = json!({ "peer": peer, "from": from, "to": to, "flows": flows, "kept": kept });
        self.add(at, "moving", fields);
    }

    fn moved(&mut self, at: u64, peer: u64, to: &str, took: f64, flows: u64, carrier: Option<&str>) {
        let carried = if carrier.is_some() { flows } else { 0 };
        self.add(
            at,
            "moved",
            json!({
                "peer": peer, "to": to, "translated": carrier == Some("tunnel"), "took_ms": took, "flows": flows,
                "carried": carried, "carrier": carrier,
            }),
        );
    }
}

const HOME: &str = "192.0.2.10";
const AWAY: &str = "198.51.100.7";

/// One connection that moves, is held for want of a network, and comes home.
fn one() -> Log {
    let mut log = Log::new();
    log.reached(1_120, 5);
    log.introduced(1_180, 5, 40_000, HOME);
    log.moving(90_000, 5, Some(HOME), Some(AWAY), 1, false);
    log.moved(90_041, 5, AWAY, 41.25, 1, Some("tunnel"));
    log.add(90_310, "carrier-changed", json!({ "peer": 5, "carrier": "rewrite" }));
    log.moving(150_000, 5, Some(AWAY), None, 1, false);
    log.moving(162_400, 5, None, Some(HOME), 1, false);
    log.moved(162_444, 5, HOME, 44.0, 1, None);
    log.gone(200_000, 5, 40_000, HOME);
    log
}

/// A thousand connections, among others', through moves of either end, a suspension and an absence.
fn thousand() -> Log {
    let mut log = Log::new();
    log.reached(900, 5);
    log.reached(950, 6);
    for n in 0..1_000 {
        log.introduced(1_000 + n * 3, 5, 20_000 + n, HOME);
    }
    for n in 0..3 {
        log.introduced(4_100 + n * 900, 6, 40_000 + n, HOME);
    }
    for peer in [5, 6] {
        log.moving(60_000, peer, Some(HOME), Some(AWAY), if peer == 5 { 1_000 } else { 3 }, true);
    }
    log.moved(60_023, 6, AWAY, 22.75, 3, Some("tunnel"));
    log.moved(60_027, 5, AWAY, 26.25, 1_000, Some("tunnel"));
    log.add(60_290, "carrier-changed", json!({ "peer": 5, "carrier": "rewrite" }));
    log.introduced(61_000, 6, 41_000, AWAY);
    for n in 0..400 {
        log.gone(62_000 + n * 10, 5, 20_000 + n, HOME);
    }
    let named = ["tcp 192.0.2.10:40001 -> 203.0.113.6:22"];
    log.add(66_500, "flows-wait", json!({ "peer": 6, "by": "this-host", "flows": 1, "waiting": 1, "named": named }));
    log.add(67_800, "flows-go-on", json!({ "peer": 6, "by": "this-host", "flows": 1, "waiting": 0, "named": named }));
    let moved = json!({
        "peer": 5, "to": "203.0.113.77:2031", "translated": false, "flows": 600, "carried": 600, "carrier": "tunnel",
    });
    log.add(68_000, "peer-moved", moved);
    let confirmed = json!({
        "peer": 5, "remote": "203.0.113.77:2031", "round_trip_ms": 20.1, "carried": 600, "carrier": "tunnel",
    });
    log.add(68_020, "path-confirmed", confirmed);
    log.add(68_300, "carrier-changed", json!({ "peer": 5, "carrier": "follow-rewrite" }));
    log.add(70_000, "suspended", json!({ "flows": 604 }));
    let hours = 7_400_000;
    log.add(hours, "resumed", json!({}));
    for (peer, flows) in [(5, 600), (6, 4)] {
        log.moving(hours + 3, peer, None, Some(HOME), flows, false);
    }
    for (peer, flows, carrier) in [(5, 600, Some("tunnel")), (6, 4, None)] {
        log.moved(hours + 38, peer, HOME, 35.2, flows, carrier);
    }
    log.add(hours + 2_000, "peer-away", json!({ "peer": 6, "announced": false, "flows": 4 }));
    log.add(hours + 9_000, "peer-back", json!({ "peer": 6, "flows": 4, "carried": 0, "carrier": null }));
    log.add(hours + 20_000, "reloaded", json!({}));
    log
}

fn story(log: &Log) -> Story {
    read(&log.0, None).expect("a story")
}

fn ways(story: &Story, peer: usize) -> Vec<(f64, f64, Way)> {
    story.peers[peer].ways.iter().map(|span| (span.from, span.to, span.what)).collect()
}

#[test]
fn a_connection_is_followed_through_moves() {
    let story = story(&one());
    assert_eq!(
        ways(&story, 0),
        [
            (1_120.0, 90_000.0, Way::Native),
            (90_000.0, 90_041.0, Way::Held),
            (90_041.0, 90_310.0, Way::Tunnel),
            (90_310.0, 150_000.0, Way::Rewrite),
            (150_000.0, 162_444.0, Way::Held),
            (162_444.0, 200_000.0, Way::Native),
        ]
    );
    let incidents: Vec<_> = story
        .incidents
        .iter()
        .map(|one| (one.kind, one.from, one.sentence(), one.lasted(story.end), one.ways()))
        .collect();
    let told = |kind, from, sentence: &str, lasted: &str, ways: &str| {
        (kind, from, sentence.to_owned(), lasted.to_owned(), ways.to_owned())
    };
    assert_eq!(
        incidents,
        [
            told(
                Kind::Handoff,
                90_000.0,
                "this host moved from 192.0.2.10 to 198.51.100.7 (behind a NAT)",
                "41 ms",
                "tunnel, rewritten after 269 ms"
            ),
            told(Kind::NoWay, 150_000.0, "this host had no network to go by", "12.4 s", ""),
            told(Kind::Handoff, 162_400.0, "this host came to 192.0.2.10", "44 ms", "native"),
        ]
    );
    let connection = &story.peers[0].connections[0];
    assert_eq!((connection.from, connection.to), (1_180.0, 200_000.0));
    assert_eq!(story.peers[0].counts, [(1_180.0, 1), (200_000.0, 0)]);
}

/// A laptop that moves to where nobody answers, has no network for a while, and is back; its peer has a name, and falls
/// silent later.
fn doubtful() -> Log {
    let mut log = Log::new();
    let not_confirmed = |log: &mut Log, at, because: &str, unanswered: f64| {
        let fields = json!({
            "peer": 5, "peer_name": "desk", "remote": "203.0.113.5:2031", "from": AWAY, "because": because,
            "unanswered_ms": unanswered, "heard_ms": unanswered + 20.0, "flows": 1, "advice": "look",
        });
        log.add(at, "not-confirmed", fields);
    };
    log.reached(1_120, 5);
    log.introduced(1_180, 5, 40_000, HOME);
    log.moving(10_000, 5, Some(HOME), Some(AWAY), 1, false);
    not_confirmed(&mut log, 15_000, "moved", 5_000.0);
    log.moving(20_000, 5, Some(AWAY), None, 1, false);
    log.moving(23_000, 5, None, Some(AWAY), 1, false);
    not_confirmed(&mut log, 28_000, "moved", 5_000.0);
    log.moved(37_000, 5, AWAY, 14_000.0, 1, Some("tunnel"));
    not_confirmed(&mut log, 60_000, "silent", 7_000.0);
    let confirmed = json!({
        "peer": 5, "remote": "203.0.113.5:2031", "round_trip_ms": 20.1, "carried": 1, "carrier": "tunnel",
    });
    log.add(72_000, "path-confirmed", confirmed);
    log.add(80_000, "reloaded", json!({}));
    log
}

#[test]
fn what_is_not_confirmed_is_drawn_so() {
    let story = story(&doubtful());
    assert_eq!(
        ways(&story, 0),
        [
            (1_120.0, 10_000.0, Way::Native),
            (10_000.0, 20_000.0, Way::NotConfirmed),
            (20_000.0, 23_000.0, Way::Held),
            (23_000.0, 37_000.0, Way::NotConfirmed),
            (37_000.0, 53_000.0, Way::Tunnel),
            (53_000.0, 72_000.0, Way::NotConfirmed),
            (72_000.0, 80_000.0, Way::Tunnel),
        ]
    );
    let told: Vec<_> =
        story.incidents.iter().map(|one| (one.kind, one.from, one.lasted(story.end), one.ways())).collect();
    assert_eq!(
        told[1..],
        [
            // That there was no network ends with there being one, and not with an answer.
            (Kind::NoWay, 20_000.0, "3.0 s".to_owned(), String::new()),
            (Kind::Handoff, 23_000.0, "14.0 s".to_owned(), "tunnel".to_owned()),
            (Kind::Doubt, 53_000.0, "19.0 s".to_owned(), String::new()),
        ]
    );
    let drawn = plot(&doubtful().0, None);
    well_formed(&drawn);
    assert!(drawn.contains(">desk 203.0.113.5<") && !drawn.contains("#5"), "{drawn}");
    assert!(drawn.contains("class=\"doubt\"") && drawn.contains("not confirmed: no answer<"));
}

#[test]
fn who_is_silent_and_has_not_said_so_is_led_to_where_it_was() {
    let mut log = Log::new();
    log.reached(100, 5);
    log.introduced(200, 5, 40_000, HOME);
    log.moving(1_000, 5, Some(HOME), Some(AWAY), 1, false);
    log.moved(1_040, 5, AWAY, 40.0, 1, Some("rewrite"));
    log.add(9_000, "peer-away", json!({ "peer": 5, "announced": false, "flows": 1 }));
    log.add(12_000, "peer-back", json!({ "peer": 5, "flows": 1, "carried": 1, "carrier": "rewrite" }));
    log.add(15_000, "peer-away", json!({ "peer": 5, "announced": true, "flows": 1 }));
    let last: Vec<Way> = story(&log).peers[0].ways.iter().skip(2).map(|span| span.what).collect();
    assert_eq!(last, [Way::Rewrite, Way::NotConfirmed, Way::Rewrite, Way::Away]);
}

#[test]
fn peers_that_move_together_are_one_incident() {
    let story = story(&thousand());
    let handoffs: Vec<_> = story.incidents.iter().filter(|one| one.kind == Kind::Handoff).collect();
    assert_eq!(handoffs.iter().map(|one| (one.peers.len(), one.flows)).collect::<Vec<_>>(), [(2, 1_003), (2, 604)]);
    // The one that took longest.
    assert_eq!(handoffs[0].lasted(story.end), "26 ms");
}

#[test]
fn a_path_that_is_kept_goes_on_during_a_move() {
    let story = story(&thousand());
    assert_eq!(ways(&story, 1)[..2], [(950.0, 60_023.0, Way::Native), (60_023.0, 70_000.0, Way::Tunnel)]);
    assert_eq!(story.peers[1].handoffs.len(), 2);
}

#[test]
fn what_was_opened_elsewhere_is_native_there() {
    let story = story(&thousand());
    let peer = &story.peers[1];
    let of = |index: usize| -> Vec<_> { peer.ways_of(&peer.connections[index]).iter().map(|s| s.what).collect() };
    assert_eq!(of(0), [Way::Native, Way::Tunnel, Way::Held, Way::Native, Way::Away, Way::Native]);
    assert_eq!(of(3)[..2], [Way::Native, Way::Held]);
    assert_eq!(peer.connections[1].waits.len(), 1);
}

#[test]
fn connections_from_before_the_log_are_counted() {
    let mut log = one();
    log.0.drain(..3);
    let story = story(&log);
    assert_eq!(story.first, 4);
    assert_eq!(story.peers[0].counts, [(0.0, 1), (110_000.0, 0)]);
    assert!(plot(&log.0, None).contains("What was before event 4 is not known."));
}

#[test]
fn a_daemon_that_is_started_again_goes_on() {
    let mut log = Log::new();
    log.reached(100, 5);
    log.introduced(200, 5, 1, HOME);
    log.add(1_000, "stopping", json!({}));
    log.add(3_000, "started", json!({ "key": KEY, "restored_flows": 1 }));
    log.gone(4_000, 5, 1, HOME);
    log.add(5_000, "started", json!({ "key": KEY, "restored_flows": 0 }));
    let story = story(&log);
    assert_eq!(story.host.len(), 1);
    assert_eq!((story.host[0].from, story.host[0].to, story.host[0].what), (1_000.0, 3_000.0, Kind::Down));
    assert_eq!(story.peers[0].connections[0].to, 4_000.0);
    let down: Vec<_> = story.incidents.iter().map(|one| (one.sentence(), one.lasted(story.end))).collect();
    assert_eq!(down[0], ("no daemon ran here".to_owned(), "2.0 s".to_owned()));
    assert_eq!(down[1].1, "");
}

#[test]
fn numbers_of_another_daemon_are_told_apart_by_keys() {
    let mut log = Log::new();
    log.reached(100, 5);
    log.reached(110, 6);
    log.add(3_000, "started", json!({ "key": KEY, "restored_flows": 0 }));
    // The other way round.
    log.add(3_100, "peer-reached", json!({ "peer": 5, "key": format!("6{KEY}"), "remote": "203.0.113.6:2031" }));
    log.introduced(3_200, 5, 1, HOME);
    let story = story(&log);
    assert_eq!(
        story.peers.iter().map(|peer| (peer.number, peer.connections.len())).collect::<Vec<_>>(),
        [(5, 0), (6, 1)]
    );
}

#[test]
fn time_goes_on_while_the_machine_sleeps_and_never_back() {
    let mut log = Log::new();
    log.add(1_000, "resumed", json!({}));
    // Asleep for an hour, which CLOCK_MONOTONIC does not count.
    log.add(3_601_000, "resumed", json!({}));
    log.0[2].monotonic_ms = 1_001_500;
    // The wall clock is put back.
    log.add(0, "resumed", json!({}));
    log.0[3].monotonic_ms = 1_002_000;
    // A clock that tells nonsense.
    log.add(0, "resumed", json!({}));
    log.0[4].monotonic_ms = u64::MAX;
    let story = story(&log);
    let at: Vec<_> = story.clock.iter().map(|(at, _)| *at).collect();
    assert_eq!(at[..4], [0.0, 1_000.0, 3_601_000.0, 3_601_500.0]);
    assert!(at[4] < 1e13);
    assert!(lanes::draw(Some(&story)).len() < 100_000);
}

#[test]
fn a_drawing_may_go_on_to_now() {
    let log = one();
    let story = read(&log.0, Some(BEGIN + 260_000)).expect("a story");
    assert_eq!(story.end, 260_000.0);
    assert_eq!(story.peers[0].ways.last().map(|span| span.to), Some(260_000.0));
}

#[test]
fn drawings_are_as_they_were() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/timeline/golden");
    for (name, log) in [("one", one()), ("thousand", thousand()), ("doubtful", doubtful())] {
        let drawn = plot(&log.0, None);
        well_formed(&drawn);
        let path = directory.join(format!("{name}.svg"));
        // To renew them after the drawing changed, and to look at them: WHIMBREL_BLESS=1 cargo test -p whimbrel-cli
        if std::env::var_os("WHIMBREL_BLESS").is_some() {
            std::fs::write(&path, &drawn).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(drawn == golden, "{} is drawn otherwise", path.display());
    }
}

#[test]
fn a_thousand_connections_are_one_lane() {
    let drawn = plot(&thousand().0, None);
    assert!(drawn.len() < 120_000, "{} bytes", drawn.len());
    assert!(drawn.contains(">1,000<") && !drawn.contains("tcp 20001"));
    // Those of the other peer have their own.
    assert!(drawn.contains("tcp 40000 → 22"));
}

#[test]
fn many_peers_and_incidents_are_bounded() {
    let mut log = Log::new();
    for peer in 1..=200 {
        log.reached(peer * 10, peer);
        for port in 0..3 {
            log.introduced(peer * 10 + port, peer, port + 1, HOME);
        }
    }
    for n in 0..500 {
        log.moving(10_000 + n * 5_000, 1 + n % 200, Some(HOME), Some(AWAY), 3, false);
        log.moved(10_040 + n * 5_000, 1 + n % 200, AWAY, 40.0, 3, Some("rewrite"));
    }
    let drawn = plot(&log.0, None);
    well_formed(&drawn);
    assert!(drawn.contains("176 more peers"), "peers");
    assert!(drawn.contains("… and 440 more"), "incidents");
    assert!(drawn.len() < 1 << 20, "{} bytes", drawn.len());
}

#[test]
fn a_log_of_weeks_is_bounded() {
    let mut log = Log::new();
    log.reached(10, 5);
    log.introduced(20, 5, 40_000, HOME);
    for n in 0..20_000 {
        let at = 60_000 + n * 60_000;
        log.moving(at, 5, Some(HOME), Some(AWAY), 1, false);
        log.moved(at + 40, 5, AWAY, 40.0, 1, Some("tunnel"));
        log.moving(at + 30_000, 5, Some(AWAY), Some(HOME), 1, true);
        log.moved(at + 30_040, 5, HOME, 40.0, 1, None);
    }
    let drawn = plot(&log.0, None);
    well_formed(&drawn);
    assert!(drawn.len() < 3 << 20, "{} bytes", drawn.len());
}

#[test]
fn connections_that_were_taken_over_are_drawn() {
    let mut log = Log::new();
    let flow = format!("tcp {HOME}:40000 -> 203.0.113.5:22");
    log.add(0, "started", json!({ "key": KEY, "restored_flows": 1 }));
    log.add(1, "flow-taken-over", json!({ "flow": flow, "peer": 5 }));
    log.reached(1_120, 5);
    log.moving(90_000, 5, Some(HOME), Some(AWAY), 1, false);
    log.moved(90_041, 5, AWAY, 41.25, 1, Some("tunnel"));
    let drawn = plot(&log.0, None);
    well_formed(&drawn);
    assert!(drawn.contains("40000"), "{drawn}");
    // Where what was before is known, it is one connection still.
    let mut whole = Log::new();
    whole.reached(0, 5);
    whole.introduced(10, 5, 40_000, HOME);
    whole.add(20_000, "started", json!({ "key": KEY, "restored_flows": 1 }));
    let before = plot(&whole.0, None).matches("40000").count();
    whole.add(20_000, "flow-taken-over", json!({ "flow": flow, "peer": 5 }));
    assert_eq!(plot(&whole.0, None).matches("40000").count(), before);
}

#[test]
fn what_was_taken_over_goes_as_it_went() {
    // The names of two of the three are not told.
    let mut log = Log::new();
    let flow = format!("tcp {HOME}:40000 -> 203.0.113.5:22");
    log.add(0, "started", json!({ "key": KEY, "restored_flows": 3 }));
    log.add(1, "flow-taken-over", json!({ "flow": flow, "peer": 5 }));
    let taken = json!({
        "peer": 5, "key": KEY, "remote": "203.0.113.5:2031", "from": AWAY, "flows": 3, "carried": 3,
        "carrier": "tunnel",
    });
    log.add(1, "peer-taken-over", taken);
    log.add(5_000, "reloaded", json!({}));
    let story = story(&log);
    let peer = &story.peers[0];
    assert_eq!(peer.ways.iter().map(|way| way.what).collect::<Vec<_>>(), [Way::Tunnel]);
    assert_eq!(peer.paths.last().and_then(|path| path.what.ours.as_deref()), Some(AWAY));
    assert_eq!(peer.counts.last().map(|(_, count)| *count), Some(3));
}

#[test]
fn what_was_taken_over_is_native_where_it_began() {
    // Taken over before the peer is reached, and carried since: back there it is at home, though another is carried
    // then.
    let mut log = Log::new();
    let flow = format!("tcp {HOME}:40000 -> 203.0.113.5:22");
    log.add(0, "started", json!({ "key": KEY, "restored_flows": 1 }));
    log.add(1, "flow-taken-over", json!({ "flow": flow, "peer": 5 }));
    log.reached(100, 5);
    let moved = |to: &str, carried: u64| json!({ "peer": 5, "to": format!("{to}:2031"), "translated": false, "flows": 2, "carried": carried, "carrier": "tunnel" });
    log.add(1_000, "peer-moved", moved("203.0.113.77", 1));
    log.add(1_100, "flow-introduced", json!({ "flow": format!("tcp {HOME}:40001 -> 203.0.113.77:22"), "peer": 5 }));
    log.add(2_000, "peer-moved", moved("203.0.113.5", 1));
    log.add(3_000, "reloaded", json!({}));
    let story = story(&log);
    let peer = &story.peers[0];
    let of = |index: usize| -> Vec<_> { peer.ways_of(&peer.connections[index]).iter().map(|s| s.what).collect() };
    assert_eq!(of(0), [Way::Native, Way::Tunnel, Way::Native]);
    assert_eq!(of(1), [Way::Native, Way::Tunnel]);
}

#[test]
fn where_both_ends_move_each_move_tells_how_they_go_in_the_end() {
    let mut log = Log::new();
    log.reached(100, 5);
    log.introduced(200, 5, 40_000, HOME);
    log.moving(1_000, 5, Some(HOME), Some(AWAY), 1, false);
    let moved = json!({
        "peer": 5, "to": "203.0.113.77:2031", "translated": false, "flows": 1, "carried": 1, "carrier": "hold",
    });
    log.add(1_010, "peer-moved", moved);
    log.moved(1_011, 5, AWAY, 11.0, 1, Some("tunnel"));
    log.add(1_040, "carrier-changed", json!({ "peer": 5, "carrier": "follow-rewrite" }));
    // What comes later is not theirs.
    let moved = json!({
        "peer": 5, "to": "203.0.113.5:2031", "translated": false, "flows": 1, "carried": 1, "carrier": "rewrite",
    });
    log.add(9_000, "peer-moved", moved);
    let story = story(&log);
    let ways: Vec<_> = story.incidents.iter().map(Incident::ways).collect();
    assert_eq!(
        ways,
        ["tunnel, as they come after 29 ms", "tunnel after 1.0 ms, as they come after 30 ms", "rewritten"]
    );
    // Nothing of it is cut off.
    assert!(plot(&log.0, None).contains(">tunnel after 1.0 ms, as they come after 30 ms<"));
}

#[test]
fn what_makes_no_sense_is_drawn_all_the_same() {
    assert!(plot(&[], None).contains("No events"));
    let mut log = Log::new();
    for kind in ["moving", "moved", "peer-moved", "peer-away", "flow-introduced", "flow-gone", "flows-wait", "started"]
    {
        log.add(10, kind, json!({}));
        log.add(10, kind, json!({ "peer": 1 }));
        log.add(5, kind, json!({ "peer": "<x>", "flow": 7, "flows": -1, "named": [1], "to": {} }));
        log.add(5, kind, json!({ "peer": u64::MAX, "flow": "]]>\"'&<", "flows": u64::MAX, "to": "<\u{0}>" }));
    }
    log.0[3].time = "yesterday".to_owned();
    well_formed(&plot(&log.0, Some(0)));
}

/// Elements end in the order in which they began, and nothing in between is taken for one.
fn well_formed(document: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = document;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        let end = rest.find('>').expect("an end");
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name"));
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?}");
    let entities = document.split('&').skip(1);
    assert!(entities.into_iter().all(|text| ["amp;", "lt;", "gt;", "quot;"].iter().any(|one| text.starts_with(one))));
}
