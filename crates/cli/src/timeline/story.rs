//! What events tell, as spans of time: how each peer's connections went, on which path, and what happened to them.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use whimbrel_ipc::{EventRecord, parse_rfc3339};

use super::incident::{Incident, Kind};

/// Milliseconds since the first event.
pub(super) type Millis = f64;

/// Incidents of several peers that begin within so long are one.
const TOGETHER: Millis = 1_000.0;

/// Between two events: a century. A time beyond is none.
const LONGEST: u64 = 100 * 365 * 86_400_000;

/// What became of a hand-off that the next one overtook.
const NO_ANSWER: &str = "no answer before the next change";

/// How connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Way {
    Native,
    Rewrite,
    Tunnel,
    /// As they come, rewritten or by the tunnel.
    Follow,
    /// Carried to where nothing shows that they arrive.
    NotConfirmed,
    Held,
    /// Held, since the peer is away.
    Away,
}

/// Something that was so for a while.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span<T> {
    pub(super) from: Millis,
    pub(super) to: Millis,
    pub(super) what: T,
}

/// The addresses at the two ends; an own one that is `None`: no way leads to the peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ends {
    pub(super) ours: Option<String>,
    pub(super) theirs: Option<String>,
}

/// A connection from its introduction to its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Connection {
    pub(super) name: String,
    pub(super) from: Millis,
    /// Infinite until the story is finished.
    pub(super) to: Millis,
    /// The path that it was introduced on.
    pub(super) home: Ends,
    /// While it waits by request.
    pub(super) waits: Vec<Span<()>>,
}

/// A peer and what became of its connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Peer {
    pub(super) number: u64,
    pub(super) key: Option<String>,
    /// What it is called, if anything.
    pub(super) name: Option<String>,
    pub(super) ways: Vec<Span<Way>>,
    pub(super) paths: Vec<Span<Ends>>,
    /// From the moment that this host noticed its move to the peer's answer; each with the number of its incident.
    pub(super) handoffs: Vec<Span<usize>>,
    pub(super) connections: Vec<Connection>,
    /// How many connections there are from each moment on.
    pub(super) counts: Vec<(Millis, usize)>,
    /// Moments at which incidents began, with their numbers.
    pub(super) marks: Vec<(Millis, usize)>,
    /// What is going on now.
    now: Now,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Now {
    ends: Ends,
    handoff: Option<usize>,
    no_way: Option<usize>,
    away: Option<usize>,
    doubt: Option<usize>,
    waiting: Option<usize>,
    /// The last incident after which connections went another way, and those before it that had only stopped them.
    led: Vec<usize>,
    /// They have not gone since these.
    stopped: bool,
    /// Change of the number of connections since the story began, what it was before, and how it went.
    change: i64,
    before: i64,
    changes: Vec<(Millis, i64)>,
}

/// Everything that is drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Story {
    /// The end: of the last event, or later.
    pub(super) end: Millis,
    /// Moments and what the wall clock showed then, in milliseconds since 1970.
    pub(super) clock: Vec<(Millis, u64)>,
    pub(super) key: Option<String>,
    /// While this host was suspended, and while no daemon ran.
    pub(super) host: Vec<Span<Kind>>,
    pub(super) peers: Vec<Peer>,
    pub(super) incidents: Vec<Incident>,
    /// The number of the first event: what was before is not known where it is not 1.
    pub(super) first: u64,
}

/// Reads events, oldest first; `until` is the wall clock (milliseconds since 1970) at the end of what is drawn, where
/// that is later than the last of them. `None` where there are no events.
pub(super) fn read(events: &[EventRecord], until: Option<u64>) -> Option<Story> {
    let first = events.first()?;
    let mut reader = Reader { story: Story { first: first.number, ..Story::default() }, ..Reader::default() };
    for event in events {
        let at = reader.advance(event);
        reader.add(at, event);
    }
    Some(reader.finish(until))
}

#[derive(Default)]
struct Reader {
    story: Story,
    /// Of the last event: CLOCK_MONOTONIC.
    monotonic: u64,
    by_number: HashMap<u64, usize>,
    /// Connections that have not ended: the peer, and which of its connections.
    open: HashMap<String, (usize, usize)>,
    stopped: Option<Millis>,
    suspended: Option<usize>,
}

impl Reader {
    /// Where on the axis an event is. The wall clock counts while the machine sleeps and over reboots, CLOCK_MONOTONIC
    /// does not go back when it is set: whichever of the two has gone on further is believed.
    fn advance(&mut self, event: &EventRecord) -> Millis {
        let wall = parse_rfc3339(&event.time)
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .and_then(|since| u64::try_from(since.as_millis()).ok());
        let Some((before, wall_before)) = self.story.clock.last().copied() else {
            self.monotonic = event.monotonic_ms;
            self.story.clock.push((0.0, wall.unwrap_or(0)));
            return 0.0;
        };
        let wall = wall.unwrap_or(wall_before);
        let gone = event.monotonic_ms.saturating_sub(self.monotonic).max(wall.saturating_sub(wall_before)).min(LONGEST);
        self.monotonic = event.monotonic_ms;
        let at = before + gone as f64;
        self.story.clock.push((at, wall));
        self.story.end = at;
        at
    }

    fn add(&mut self, at: Millis, event: &EventRecord) {
        match event.kind.as_str() {
            "started" => self.started(at, event),
            "stopping" => self.stopped = Some(at),
            "suspended" => self.suspend(at, event),
            "resumed" => {
                end(&mut self.story.host, at);
                let suspended = self.suspended.take();
                self.close(suspended, at);
            }
            kind => {
                let Some(number) = unsigned(event, "peer") else { return };
                let peer = self.peer(number, text(event, "key"));
                self.handle_peer_event(at, peer, kind, event);
            }
        }
    }

    fn handle_peer_event(&mut self, at: Millis, id: usize, kind: &str, event: &EventRecord) {
        let peer = &mut self.story.peers[id];
        peer.name = text(event, "peer_name").or(peer.name.take());
        if let Some(flows) = unsigned(event, "flows").filter(|_| !kind.starts_with("flows-")) {
            peer.there_are(flows);
        }
        match kind {
            "peer-reached" => {
                if peer.now.ends.theirs.is_none() {
                    peer.now.ends.theirs = text(event, "remote").map(address);
                }
                if peer.ways.is_empty() {
                    set(&mut peer.ways, at, Way::Native);
                }
                peer.on_path(at);
            }
            "flow-introduced" => self.introduced(at, id, event),
            // Where what was before is not known.
            "flow-taken-over" if text(event, "flow").is_some_and(|name| !self.open.contains_key(&name)) => {
                self.introduced(at, id, event);
            }
            "peer-taken-over" => {
                peer.now.ends.ours = text(event, "from").or(peer.now.ends.ours.take());
                peer.now.ends.theirs = text(event, "remote").map(address).or(peer.now.ends.theirs.take());
                let way = peer.way(event);
                if !peer.is_stopped() {
                    set(&mut peer.ways, at, way);
                }
                peer.on_path(at);
            }
            "flow-gone" => self.gone(at, id, event),
            "moving" => self.moving(at, id, event),
            "moved" => {
                peer.now.ends.ours = text(event, "to");
                let way = peer.way(event);
                if let Some(incident) = peer.now.handoff.map(|number| &mut self.story.incidents[number]) {
                    incident.nat |= boolean(event, "translated");
                    let took = event.fields.get("took_ms").and_then(serde_json::Value::as_f64);
                    incident.took = took.into_iter().chain(incident.took).reduce(Millis::max);
                }
                self.arrived(at, id, way, None);
            }
            "not-moved" => {
                let way = peer.way(event);
                self.arrived(at, id, way, Some("it had not moved after all"));
            }
            "taken-back" => {
                // The former address is announced once more.
                self.give_up(at, id, "taken back, since no answer came");
            }
            "peer-moved" => {
                let to = text(event, "to").map(address);
                peer.now.ends.theirs = to.clone();
                let (way, flows) = (peer.way(event), unsigned(event, "flows").unwrap_or(0));
                set(&mut peer.ways, at, way);
                peer.on_path(at);
                let (away, doubt) = (peer.now.away.take(), peer.now.doubt.take());
                self.close(away, at);
                self.close(doubt, at);
                let nat = if boolean(event, "translated") { " (behind a NAT)" } else { "" };
                let what = format!("the peer moved to {}{nat}", to.as_deref().unwrap_or("another address"));
                let number = self.open(Incident::new(Kind::PeerMoved, at, what, flows), id, false);
                self.close(Some(number), at);
                self.led(at, id, number, way);
            }
            "path-confirmed" => {
                peer.now.ends.theirs = text(event, "remote").map(address).or(peer.now.ends.theirs.take());
                peer.on_path(at);
                if unsigned(event, "carried").is_some() && !peer.is_stopped() {
                    let way = peer.way(event);
                    self.confirmed(at, id);
                    self.goes_by(at, id, way);
                }
            }
            "not-confirmed" => self.not_confirmed(at, id, event),
            "carrier-changed" => {
                let way = peer.way(event);
                self.goes_by(at, id, way);
            }
            "peer-away" => {
                // What has moved is carried on where its peer has not said that it goes.
                let carried = peer.ways.last().is_some_and(|span| span.to.is_infinite() && is_carried(span.what));
                let way = if carried && !boolean(event, "announced") { Way::NotConfirmed } else { Way::Away };
                set(&mut peer.ways, at, way);
                let what = match boolean(event, "announced") {
                    true => "the peer went away, and said so",
                    false => "the peer is not heard any more",
                };
                let incident = Incident::new(Kind::Away, at, what, unsigned(event, "flows").unwrap_or(0));
                let number = self.open(incident, id, false);
                self.story.peers[id].now.away = Some(number);
            }
            "peer-back" => {
                let way = peer.way(event);
                set(&mut peer.ways, at, way);
                let (away, doubt) = (peer.now.away.take(), peer.now.doubt.take());
                self.close(doubt, at);
                if let Some(number) = away {
                    self.led(at, id, number, way);
                }
                self.close(away, at);
            }
            "peer-restarted" | "peer-cleaned" => {
                set(&mut peer.ways, at, Way::Native);
                let away = peer.now.away.take();
                self.close(away, at);
                let what = match kind {
                    "peer-restarted" => "the peer's host was started anew: its connections ended",
                    _ => "`whimbrel clean` was run on the peer's host: what had moved ended",
                };
                let incident = Incident::new(Kind::Restarted, at, what, unsigned(event, "flows").unwrap_or(0));
                let number = self.open(incident, id, false);
                self.close(Some(number), at);
            }
            "flows-wait" | "flows-go-on" => self.waiting(at, id, kind == "flows-wait", event),
            _ => {}
        }
    }

    fn started(&mut self, at: Millis, event: &EventRecord) {
        self.story.key = text(event, "key").or(self.story.key.take());
        if self.story.clock.len() < 2 {
            return;
        }
        // One that was killed said nothing, and it is not known since when there was none.
        let stopped = self.stopped.take();
        let down = stopped.unwrap_or(at);
        end(&mut self.story.host, down);
        let suspended = self.suspended.take();
        self.close(suspended, down);
        if down < at {
            self.story.host.push(Span { from: down, to: at, what: Kind::Down });
        }
        let kept = unsigned(event, "restored_flows").unwrap_or(0);
        let what = match stopped {
            Some(_) => "no daemon ran here",
            None => "the daemon was started anew, after an end without a word",
        };
        let mut incident = Incident::new(Kind::Down, down, what, kept);
        incident.to = Some(at);
        self.story.incidents.push(incident);
        if kept > 0 {
            return;
        }
        // Nothing was moved, so nothing was left for this daemon: it introduces anew what is still there.
        for (id, which) in std::mem::take(&mut self.open).into_values() {
            self.story.peers[id].connections[which].to = down;
        }
        for id in 0..self.story.peers.len() {
            let peer = &mut self.story.peers[id];
            let gone = peer.count();
            peer.changes(down, -gone);
            end(&mut peer.ways, down);
            end(&mut peer.paths, down);
            end(&mut peer.handoffs, down);
            let now = std::mem::take(&mut peer.now);
            let counted = Now { change: now.change, before: now.before, changes: now.changes, ..Now::default() };
            peer.now = counted;
            for number in [now.handoff, now.no_way, now.away, now.doubt, now.waiting] {
                self.close(number, down);
            }
        }
    }

    fn suspend(&mut self, at: Millis, event: &EventRecord) {
        set(&mut self.story.host, at, Kind::Suspended);
        let incident =
            Incident::new(Kind::Suspended, at, "this host was suspended", unsigned(event, "flows").unwrap_or(0));
        self.suspended = Some(self.story.incidents.len());
        self.story.incidents.push(incident);
        for peer in self.story.peers.iter_mut().filter(|peer| peer.count() > 0) {
            set(&mut peer.ways, at, Way::Held);
        }
    }

    fn introduced(&mut self, at: Millis, id: usize, event: &EventRecord) {
        let Some(name) = text(event, "flow") else { return };
        let peer = &mut self.story.peers[id];
        if peer.now.ends.ours.is_none() && peer.now.no_way.is_none() {
            peer.now.ends.ours = own_end(&name);
        }
        peer.on_path(at);
        if peer.ways.is_empty() {
            set(&mut peer.ways, at, Way::Native);
        }
        let known = self.open.insert(name.clone(), (id, peer.connections.len()));
        peer.changes(at, if known.is_some_and(|(of, _)| of == id) { 0 } else { 1 });
        // One that was taken over may be elsewhere by now, and its peer not be there yet: its name tells where it
        // began.
        let home = match event.kind.as_str() {
            "flow-taken-over" => ends_of(&name).unwrap_or_else(|| peer.now.ends.clone()),
            _ => peer.now.ends.clone(),
        };
        peer.connections.push(Connection { name, from: at, to: Millis::INFINITY, home, waits: Vec::new() });
        if let Some((of, which)) = known {
            self.story.peers[of].connections[which].to = at;
            if of != id {
                self.story.peers[of].changes(at, -1);
            }
        }
    }

    fn gone(&mut self, at: Millis, id: usize, event: &EventRecord) {
        let known = text(event, "flow").and_then(|name| self.open.remove(&name));
        if let Some((of, which)) = known {
            let connection = &mut self.story.peers[of].connections[which];
            connection.to = at;
            end(&mut connection.waits, at);
        }
        self.story.peers[known.map_or(id, |(of, _)| of)].changes(at, -1);
    }

    fn moving(&mut self, at: Millis, id: usize, event: &EventRecord) {
        let (from, to) = (text(event, "from"), text(event, "to"));
        let flows = unsigned(event, "flows").unwrap_or(0);
        let peer = &mut self.story.peers[id];
        let Some(to) = to else {
            set(&mut peer.ways, at, Way::Held);
            peer.now.ends.ours = None;
            self.give_up(at, id, NO_ANSWER);
            if self.story.peers[id].now.no_way.is_none() {
                let incident = Incident::new(Kind::NoWay, at, "this host had no network to go by", flows);
                let number = self.open(incident, id, true);
                self.story.peers[id].now.no_way = Some(number);
            }
            self.story.peers[id].on_path(at);
            return;
        };
        if !boolean(event, "kept") {
            set(&mut peer.ways, at, Way::Held);
            peer.now.ends.ours = Some(to.clone());
            peer.on_path(at);
        }
        self.give_up(at, id, NO_ANSWER);
        // There is a network, whether or not the peer answers by it.
        let no_way = self.story.peers[id].now.no_way.take();
        self.close(no_way, at);
        let what = match from {
            Some(from) if from == to => format!("this host announced {to} once more"),
            Some(from) => format!("this host moved from {from} to {to}"),
            None => format!("this host came to {to}"),
        };
        let number = self.open(Incident::new(Kind::Handoff, at, what, flows), id, true);
        let peer = &mut self.story.peers[id];
        peer.now.handoff = Some(number);
        set(&mut peer.handoffs, at, number);
    }

    /// A hand-off of this host's comes to nothing.
    fn give_up(&mut self, at: Millis, id: usize, outcome: &'static str) {
        let peer = &mut self.story.peers[id];
        end(&mut peer.handoffs, at);
        let Some(number) = peer.now.handoff.take() else { return };
        self.story.incidents[number].outcome = Some(outcome);
        self.close(Some(number), at);
    }

    /// A peer does not answer: since when that is so, nothing shows that its connections arrive.
    fn not_confirmed(&mut self, at: Millis, id: usize, event: &EventRecord) {
        let unanswered = event.fields.get("unanswered_ms").and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        let peer = &mut self.story.peers[id];
        if peer.now.no_way.is_some() {
            return;
        }
        let since = peer.ways.last().map_or(at, |last| last.from.max(at - unanswered).min(at));
        set(&mut peer.ways, since, Way::NotConfirmed);
        if peer.now.handoff.is_none() && peer.now.away.is_none() && peer.now.doubt.is_none() {
            let flows = unsigned(event, "flows").unwrap_or(0);
            let incident = Incident::new(Kind::Doubt, since, "the peer did not answer", flows);
            let number = self.open(incident, id, false);
            self.story.peers[id].now.doubt = Some(number);
        }
    }

    /// A peer answers again.
    fn confirmed(&mut self, at: Millis, id: usize) {
        let doubt = self.story.peers[id].now.doubt.take();
        self.close(doubt, at);
    }

    /// A hand-off of this host's has come to its end.
    fn arrived(&mut self, at: Millis, id: usize, way: Way, outcome: Option<&'static str>) {
        let peer = &mut self.story.peers[id];
        set(&mut peer.ways, at, way);
        peer.on_path(at);
        end(&mut peer.handoffs, at);
        let (handoff, no_way) = (peer.now.handoff.take(), peer.now.no_way.take());
        self.confirmed(at, id);
        if let Some(number) = handoff {
            self.story.incidents[number].outcome = outcome;
            self.led(at, id, number, way);
        }
        self.close(handoff, at);
        self.close(no_way, at);
    }

    fn waiting(&mut self, at: Millis, id: usize, wait: bool, event: &EventRecord) {
        let flows = unsigned(event, "flows").unwrap_or(0);
        let named = event.fields.get("named").and_then(|named| named.as_array());
        for name in named.into_iter().flatten().filter_map(|name| name.as_str()) {
            let Some((of, which)) = self.open.get(name).copied() else { continue };
            let waits = &mut self.story.peers[of].connections[which].waits;
            if wait {
                set(waits, at, ());
            } else {
                end(waits, at);
            }
        }
        let open = self.story.peers[id].now.waiting;
        if wait && open.is_none() {
            let asked = if text(event, "by").as_deref() == Some("peer") { "the peer" } else { "somebody here" };
            let what = format!("single connections wait: {asked} asked for it");
            let number = self.open(Incident::new(Kind::Waiting, at, what, flows), id, false);
            self.story.peers[id].now.waiting = Some(number);
        } else if !wait && unsigned(event, "waiting") == Some(0) {
            self.story.peers[id].now.waiting = None;
            self.close(open, at);
        }
    }

    /// Connections go another way, with nothing else that has happened.
    fn goes_by(&mut self, at: Millis, id: usize, way: Way) {
        let peer = &mut self.story.peers[id];
        if peer.is_stopped() {
            return;
        }
        let before = peer.ways.last().map(|span| span.what);
        set(&mut peer.ways, at, way);
        if let Some(number) = peer.now.led.last().copied().filter(|_| before != Some(way)) {
            self.led(at, id, number, way);
        }
    }

    /// An incident has had a peer's connections go some way.
    fn led(&mut self, at: Millis, id: usize, number: usize, way: Way) {
        let now = &mut self.story.peers[id].now;
        if !now.led.contains(&number) {
            if !now.stopped {
                now.led.clear();
            }
            now.led.push(number);
        }
        now.stopped = matches!(way, Way::NotConfirmed | Way::Held | Way::Away);
        for number in &now.led {
            self.story.incidents[*number].led_to(at, way);
        }
    }

    /// Begins an incident of a peer. Where others are `together` with theirs, it is one.
    fn open(&mut self, incident: Incident, id: usize, together: bool) -> usize {
        let at = incident.from;
        let incidents = &self.story.incidents;
        let same = |one: &Incident| one.kind == incident.kind && one.what == incident.what && !one.peers.contains(&id);
        let mut recent = incidents.iter().rev().take_while(|one| together && at - one.from <= TOGETHER);
        let number = match recent.position(same) {
            Some(back) => {
                let number = incidents.len() - 1 - back;
                let one = &mut self.story.incidents[number];
                one.flows = one.flows.saturating_add(incident.flows);
                number
            }
            None => {
                self.story.incidents.push(incident);
                self.story.incidents.len() - 1
            }
        };
        let one = &mut self.story.incidents[number];
        one.peers.push(id);
        one.open += 1;
        self.story.peers[id].marks.push((at, number));
        number
    }

    /// Ends an incident, for one of its peers.
    fn close(&mut self, number: Option<usize>, at: Millis) {
        let Some(incident) = number.map(|number| &mut self.story.incidents[number]) else { return };
        incident.open = incident.open.saturating_sub(1);
        incident.to = Some(at);
    }

    /// The peer of this number. Numbers are a daemon's own: another one may give them to others.
    fn peer(&mut self, number: u64, key: Option<String>) -> usize {
        let peers = &mut self.story.peers;
        let known = self.by_number.get(&number).copied();
        let differs = |known: &Option<String>| known.is_some() && key.is_some() && *known != key;
        let found = match known.filter(|id| !differs(&peers[*id].key)) {
            Some(id) => id,
            None => match peers.iter().position(|peer| key.is_some() && peer.key == key) {
                Some(id) => id,
                None => {
                    peers.push(Peer { number, ..Peer::default() });
                    peers.len() - 1
                }
            },
        };
        if peers[found].key.is_none() {
            peers[found].key = key;
        }
        self.by_number.insert(number, found);
        found
    }

    fn finish(mut self, until: Option<u64>) -> Story {
        if let (Some(until), Some((at, wall))) = (until, self.story.clock.last().copied()) {
            self.story.end = at + until.saturating_sub(wall) as f64;
        }
        let end = self.story.end;
        if let Some(stopped) = self.stopped {
            self.story.host.push(Span { from: stopped, to: end, what: Kind::Down });
        }
        let limit = |to: &mut Millis| *to = to.min(end);
        self.story.host.iter_mut().for_each(|span| limit(&mut span.to));
        for peer in &mut self.story.peers {
            peer.ways.iter_mut().for_each(|span| limit(&mut span.to));
            peer.paths.iter_mut().for_each(|span| limit(&mut span.to));
            peer.handoffs.iter_mut().for_each(|span| limit(&mut span.to));
            for connection in &mut peer.connections {
                limit(&mut connection.to);
                connection.waits.iter_mut().for_each(|span| limit(&mut span.to));
            }
            // What was there before the first event shows only later.
            let before = peer.now.before;
            let there = |change: i64| usize::try_from(before + change).unwrap_or(0);
            if before > 0 {
                peer.counts.push((0.0, there(0)));
            }
            peer.counts
                .extend(std::mem::take(&mut peer.now.changes).into_iter().map(|(at, change)| (at, there(change))));
        }
        self.story
    }
}

impl Peer {
    /// How its connections go after an event that says so; one of an older daemon does not, but the path does.
    fn way(&self, event: &EventRecord) -> Way {
        let carrier = text(event, "carrier");
        match (unsigned(event, "carried"), carrier.as_deref()) {
            (Some(0), _) => Way::Native,
            (_, Some("rewrite")) => Way::Rewrite,
            (_, Some("follow-rewrite")) => Way::Follow,
            (_, Some("hold")) => Way::Held,
            (_, Some(_)) | (Some(_), None) => Way::Tunnel,
            (None, None) => {
                let open = || self.connections.iter().filter(|one| one.to.is_infinite());
                match open().all(|one| one.home == self.now.ends) && open().next().is_some() {
                    true => Way::Native,
                    false => Way::Tunnel,
                }
            }
        }
    }

    /// Whether its connections stand still for a reason that a path alone does not end.
    fn is_stopped(&self) -> bool {
        self.now.away.is_some() || self.now.no_way.is_some() || self.now.handoff.is_some()
    }

    /// How one of its connections went. While others are carried, those that are where they were introduced are native.
    pub(super) fn ways_of(&self, one: &Connection) -> Vec<Span<Way>> {
        let mut ways: Vec<Span<Way>> = Vec::new();
        let mut push = |from: Millis, to: Millis, what: Way| match ways.last_mut() {
            _ if from >= to => {}
            Some(last) if last.what == what && last.to >= from => last.to = to,
            _ => ways.push(Span { from, to, what }),
        };
        let mut homes = self.paths.iter().filter(|path| path.what == one.home).peekable();
        for way in &self.ways {
            let (mut at, to) = (way.from.max(one.from), way.to.min(one.to));
            if is_carried(way.what) || way.what == Way::NotConfirmed {
                while homes.next_if(|path| path.to <= at).is_some() {}
                for path in homes.clone().take_while(|path| path.from < to) {
                    let home = (path.from.max(at), path.to.min(to));
                    push(at, home.0, way.what);
                    push(home.0, home.1, Way::Native);
                    at = home.1;
                }
            }
            push(at, to, way.what);
        }
        ways
    }

    fn on_path(&mut self, at: Millis) {
        if (self.now.ends.ours.is_some() || self.now.no_way.is_some()) && self.now.ends.theirs.is_some() {
            set(&mut self.paths, at, self.now.ends.clone());
        }
    }

    /// How many connections there are now, as far as is known so far.
    fn count(&self) -> i64 {
        self.now.before + self.now.change
    }

    fn changes(&mut self, at: Millis, by: i64) {
        self.now.change += by;
        self.now.before = self.now.before.max(-self.now.change);
        match self.now.changes.last_mut() {
            Some((last, change)) if *last == at => *change = self.now.change,
            _ => self.now.changes.push((at, self.now.change)),
        }
    }

    /// An event tells how many there are: what was not counted was there before the first event.
    fn there_are(&mut self, flows: u64) {
        let flows = i64::try_from(flows).unwrap_or(0);
        self.now.before = self.now.before.max(flows - self.now.change);
    }
}

/// Whether connections that have moved are carried so, and arrive.
fn is_carried(way: Way) -> bool {
    matches!(way, Way::Rewrite | Way::Tunnel | Way::Follow)
}

/// From `at` on it is so.
fn set<T: PartialEq>(spans: &mut Vec<Span<T>>, at: Millis, what: T) {
    if spans.last().is_some_and(|last| last.to.is_infinite() && last.what == what) {
        return;
    }
    end(spans, at);
    spans.push(Span { from: at, to: Millis::INFINITY, what });
}

/// What was so last is not so any more; what was not so for any time was never so.
fn end<T>(spans: &mut Vec<Span<T>>, at: Millis) {
    let Some(last) = spans.last_mut().filter(|last| last.to.is_infinite()) else { return };
    last.to = at;
    if last.from >= at {
        spans.pop();
    }
}

fn text(event: &EventRecord, name: &str) -> Option<String> {
    event.fields.get(name)?.as_str().map(str::to_owned)
}

fn unsigned(event: &EventRecord, name: &str) -> Option<u64> {
    event.fields.get(name)?.as_u64()
}

fn boolean(event: &EventRecord, name: &str) -> bool {
    event.fields.get(name).and_then(serde_json::Value::as_bool).unwrap_or(false)
}

/// The address of an endpoint.
fn address(endpoint: String) -> String {
    endpoint.parse().map_or(endpoint, |endpoint: std::net::SocketAddr| endpoint.ip().to_string())
}

/// The addresses of `tcp 192.0.2.1:40000 -> 203.0.113.5:22`.
fn ends_of(flow: &str) -> Option<Ends> {
    let theirs = flow.split_whitespace().nth(3).map(|remote| address(remote.to_owned()));
    Some(Ends { ours: own_end(flow), theirs }).filter(|ends| ends.ours.is_some() && ends.theirs.is_some())
}

/// The own address of `tcp 192.0.2.1:40000 -> 203.0.113.5:22`.
fn own_end(flow: &str) -> Option<String> {
    flow.split_whitespace().nth(1).map(|local| address(local.to_owned()))
}
