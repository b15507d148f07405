//! The page: a lane for this host, one for each peer and its connections, and a table of what happened.

use std::time::{Duration, UNIX_EPOCH};

use whimbrel_ipc::rfc3339;

use super::axis::{Axis, CUT, Stretch};
use super::incident::{Incident, Kind, human};
use super::story::{Ends, Millis, Peer, Span, Story, Way};
use super::svg::{Rect, Svg};
use crate::show;
use crate::table::{cut, wrap};

/// The page, in pixels; it is as high as it must be.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 20.0;
/// Where the lanes begin and end.
const LEFT: f64 = 210.0;
const RIGHT: f64 = WIDTH - MARGIN;

/// Connections of a peer that have a lane each; of more their number is drawn. All together, and where those are too
/// many.
const LANES: usize = 8;
const LANES_IN_ALL: usize = 48;
const LANES_OF_MANY: usize = 2;
/// Peers and incidents that are drawn; of the others it is told how many there are.
const PEERS: usize = 24;
const ROWS: usize = 60;
/// Spans of a lane of which each is drawn, however short.
const SPANS: usize = 2_000;

/// The least that something short is drawn as.
const SHORTEST: f64 = 2.5;
/// A character of text of the usual size.
const CHARACTER: f64 = 6.3;
/// The same of what is strong.
const STRONG: f64 = 7.6;

const HEAD: &str = "\
<style>
svg { font-family: 'Inter', 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif; font-size: 11px; fill: #1f2933; }
.page { fill: #ffffff; } .panel { fill: #f6f8fa; } .title { font-size: 18px; font-weight: 600; }
.strong { font-weight: 600; font-size: 12px; } .faint { fill: #66737f; }
.right { text-anchor: end; fill: #66737f; } .over { text-anchor: middle; paint-order: stroke; stroke: #ffffff; stroke-width: 2.5px; stroke-linejoin: round; }
.tick { text-anchor: middle; fill: #66737f; }
.number { text-anchor: middle; fill: #ffffff; font-size: 10px; font-weight: 600; }
.cell { text-anchor: end; }
.grid { stroke: #d5dce3; stroke-width: 1; } .rule { stroke: #c3ccd5; stroke-width: 1; } .moment { stroke: #c2410c; stroke-width: 1; opacity: .45; }
.native { fill: #a9bccf; } .rewrite { fill: #2f9e6e; } .tunnel { fill: #3d7dcc; } .follow { fill: #2795a3; }
.held { fill: #f2a93b; } .away { fill: url(#away); } .doubt { fill: url(#doubt); }
.path0 { fill: #e3e9ef; } .path1 { fill: #d3dde6; } .nowhere { fill: #fbe4c2; }
.handoff { fill: #c2410c; } .mark { fill: #c2410c; } .suspended { fill: #7a64a8; } .up { fill: #dde4ea; }
.down { fill: #ffffff; stroke: #9aa5b1; stroke-dasharray: 3 2; }
.cut { fill: #ffffff; opacity: .78; } .edge { fill: none; stroke: #9aa5b1; stroke-width: 1; }
</style>
<defs><pattern id=\"away\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<rect width=\"6\" height=\"6\" fill=\"#e4e7eb\"/><rect width=\"2.5\" height=\"6\" fill=\"#8a96a3\"/></pattern>\
<pattern id=\"doubt\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(-45)\">\
<rect width=\"6\" height=\"6\" fill=\"#f6d6dc\"/><rect width=\"2.5\" height=\"6\" fill=\"#b83b5e\"/></pattern></defs>
";

/// The classes of ways, with what the legend says.
const WAYS: [(Way, &str, &str); 7] = [
    (Way::Native, "native", "native: not touched"),
    (Way::Rewrite, "rewrite", "rewritten"),
    (Way::Tunnel, "tunnel", "tunnel"),
    (Way::Follow, "follow", "as they come: rewritten or tunnel"),
    (Way::NotConfirmed, "doubt", "not confirmed: no answer"),
    (Way::Held, "held", "held"),
    (Way::Away, "away", "held, the peer is away"),
];

fn class(way: Way) -> &'static str {
    WAYS.iter().find(|(one, ..)| *one == way).map_or("native", |(_, class, _)| class)
}

fn words(way: Way) -> &'static str {
    WAYS.iter().find(|(one, ..)| *one == way).map_or("", |(.., words)| words)
}

/// Draws a story; that there is none, where there is none.
pub(super) fn draw(story: Option<&Story>) -> String {
    let mut svg = Svg::default();
    let Some(story) = story else {
        svg.rect(Rect { x: 0.0, y: 0.0, width: WIDTH, height: 80.0 }, "page", "");
        svg.text(MARGIN, 46.0, "title", "No events");
        return svg.finish(WIDTH, 80.0, "Whimbrel: no events", HEAD);
    };
    let (shown, lanes) = shown(story);
    let axis = Axis::new(moments(story, &shown, lanes), LEFT, RIGHT);

    // What lies behind the lanes is as high as they are, which is known when they are drawn.
    let mut front = Page { svg: Svg::default(), axis: &axis, story, y: 155.0 };
    let top = front.y - 14.0;
    let mut panels = Vec::new();
    front.host();
    for id in &shown {
        let above = front.y;
        front.peer(*id, &story.peers[*id], lanes);
        panels.push(Rect { x: MARGIN / 2.0, y: above, width: WIDTH - MARGIN, height: front.y - above - 10.0 });
    }
    let hidden = story.peers.len() - shown.len();
    if hidden > 0 {
        let of = if shown.is_empty() { "" } else { " more" };
        let with = if hidden > 1 { "s" } else { "" };
        let least = "with fewer connections and incidents, or none";
        front.svg.text(MARGIN, front.y + 8.0, "faint", &format!("{hidden}{of} peer{with} {least}"));
        front.y += 20.0;
    }
    let bottom = front.y - 6.0;
    front.cuts(top, bottom);
    front.table();
    let height = front.y + MARGIN;
    let front = front.svg;

    svg.rect(Rect { x: 0.0, y: 0.0, width: WIDTH, height }, "page", "");
    for panel in panels {
        svg.rect(panel, "panel", "");
    }
    let title = title(story);
    svg.text(MARGIN, 36.0, "title", &title);
    svg.text(MARGIN, 56.0, "faint", &cut(&summary(story), 196));
    legend(&mut svg, 80.0);
    for tick in axis.ticks(&story.clock) {
        svg.line((tick.x, top), (tick.x, bottom), "grid");
        if !tick.label.is_empty() {
            svg.text(tick.x, top - 6.0, "tick", &tick.label);
        }
    }
    svg.append(front);
    svg.finish(WIDTH, height, &title, HEAD)
}

/// Which peers are drawn, those with most to tell, and how many lanes each may have for connections.
fn shown(story: &Story) -> (Vec<usize>, usize) {
    let mut shown: Vec<usize> = (0..story.peers.len())
        .filter(|id| !story.peers[*id].counts.is_empty() || !story.peers[*id].marks.is_empty())
        .collect();
    shown.sort_by_key(|id| std::cmp::Reverse((story.peers[*id].marks.len(), most(&story.peers[*id]))));
    shown.truncate(PEERS);
    shown.sort_unstable();
    let few = shown.iter().map(|id| story.peers[*id].connections.len()).filter(|count| *count <= LANES);
    (shown.clone(), if few.sum::<usize>() > LANES_IN_ALL { LANES_OF_MANY } else { LANES })
}

fn most(peer: &Peer) -> usize {
    peer.counts.iter().map(|(_, count)| *count).max().unwrap_or(0)
}

/// A peer's name, or its number.
fn called(peer: &Peer) -> String {
    peer.name.clone().unwrap_or_else(|| format!("#{}", peer.number))
}

/// Whether a peer's connections have a lane each.
fn one_by_one(peer: &Peer, lanes: usize) -> bool {
    let before = peer.counts.first().is_some_and(|(at, count)| *at == 0.0 && *count > 0)
        && peer.connections.first().is_none_or(|one| one.from > 0.0);
    !before && peer.connections.len() <= lanes
}

/// Moments at which something is drawn that has to be told apart.
fn moments(story: &Story, shown: &[usize], lanes: usize) -> Vec<Millis> {
    let mut moments = vec![0.0, story.end];
    moments.extend(story.incidents.iter().flat_map(|one| [one.from, one.to.unwrap_or(one.from)]));
    for peer in shown.iter().map(|id| &story.peers[*id]) {
        moments.extend(peer.ways.iter().flat_map(|span| [span.from, span.to]));
        moments.extend(peer.paths.iter().map(|span| span.from));
        if one_by_one(peer, lanes) {
            moments.extend(peer.connections.iter().flat_map(|one| [one.from, one.to]));
        }
    }
    moments
}

struct Page<'a> {
    svg: Svg,
    axis: &'a Axis,
    story: &'a Story,
    y: f64,
}

impl Page<'_> {
    /// What was with this host altogether.
    fn host(&mut self) {
        let own = |(number, incident): (usize, &Incident)| incident.peers.is_empty().then_some((incident.from, number));
        let marks: Vec<_> = self.story.incidents.iter().enumerate().filter_map(own).collect();
        if !marks.is_empty() {
            self.marks(&marks);
        }
        self.svg.text(MARGIN, self.y + 11.0, "strong", "this host");
        let whole = Span { from: 0.0, to: self.story.end, what: () };
        self.bar(&whole, 14.0, "up", "the daemon runs");
        for span in &self.story.host {
            let (class, what) = match span.what {
                Kind::Suspended => ("suspended", "suspended"),
                _ => ("down", "no daemon runs"),
            };
            self.bar(span, 14.0, class, &self.told(what, span.from, span.to));
        }
        self.y += 28.0;
    }

    fn peer(&mut self, id: usize, peer: &Peer, lanes: usize) {
        let ends = peer.paths.iter().rev().find_map(|span| span.what.theirs.as_deref()).unwrap_or("");
        self.y += 8.0;
        self.svg.text(MARGIN, self.y + 11.0, "strong", &cut(&format!("{} {ends}", called(peer)), 26));
        if !peer.marks.is_empty() {
            self.marks(&peer.marks);
        } else {
            self.y += 18.0;
        }
        let rows = self.y;
        if let Some(key) = &peer.key {
            let short: String = key.chars().take(10).collect();
            self.svg.text(MARGIN, self.y + 11.0, "faint", &short);
        }
        self.paths(peer);
        self.label("state", 11.0);
        for span in self.visible(&peer.ways) {
            self.bar(span, 14.0, class(span.what), &self.told(words(span.what), span.from, span.to));
        }
        self.durations(&peer.ways);
        for incident in self.story.incidents.iter().filter(|one| one.kind == Kind::Waiting && one.peers.contains(&id)) {
            let to = incident.to.filter(|_| incident.open == 0).unwrap_or(self.story.end);
            let (left, width) = self.extent(incident.from, to);
            let rect = Rect { x: left, y: self.y + 10.0, width, height: 4.0 };
            self.svg.rect(rect, "held", &self.told("single connections wait", incident.from, to));
        }
        self.y += 19.0;
        if one_by_one(peer, lanes) {
            self.connections(peer);
        } else {
            self.numbers(peer);
        }
        for span in self.visible(&peer.handoffs) {
            let x = self.axis.x(span.from);
            self.svg.line((x, rows), (x, self.y), "moment");
        }
        self.y += 16.0;
    }

    /// Numbers of incidents where they began; those that would lie on one another together.
    fn marks(&mut self, marks: &[(Millis, usize)]) {
        let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
        for (at, number) in marks {
            let x = self.axis.x(*at);
            match groups.last_mut() {
                Some((first, numbers)) if x - *first < 9.0 + pill(numbers) => numbers.push(*number),
                _ => groups.push((x, vec![*number])),
            }
        }
        for (x, numbers) in groups {
            let width = pill(&numbers);
            let told: Vec<_> = numbers.iter().take(9).map(|number| self.story.incidents[*number].sentence()).collect();
            let left = (x - 8.0).min(RIGHT - width);
            let rect = Rect { x: left, y: self.y, width, height: 15.0 };
            self.svg.pill(rect, "mark", &told.join("; "));
            self.svg.text(left + width / 2.0, self.y + 11.0, "number", &in_words(&numbers));
        }
        self.y += 18.0;
    }

    /// On which addresses packets went, and hand-offs between them.
    fn paths(&mut self, peer: &Peer) {
        self.label("path", 11.0);
        for span in self.visible(&peer.paths) {
            let n = peer.paths.partition_point(|other| other.from < span.from);
            let Ends { ours, theirs } = &span.what;
            let class = match (ours, n % 2) {
                (None, _) => "nowhere",
                (Some(_), 0) => "path0",
                (Some(_), _) => "path1",
            };
            let (ours, theirs) = (ours.as_deref().unwrap_or("no network"), theirs.as_deref().unwrap_or("?"));
            let whole = format!("{ours} → {theirs}");
            self.bar(span, 15.0, class, &self.told(&whole, span.from, span.to));
            // Where there is not room for both ends, the one that is another than before.
            let before = n.checked_sub(1).map(|before| &peer.paths[before].what);
            let changed = if before.is_some_and(|before| before.ours == span.what.ours) { theirs } else { ours };
            let handoff = peer.handoffs.iter().find(|handoff| handoff.from <= span.from && handoff.to > span.from);
            let pieces = self.pieces(handoff.map_or(span.from, |handoff| handoff.to), span.to);
            let fits = |text: &str, width: f64| text.chars().count() as f64 * CHARACTER + 10.0 <= width;
            let place = |text| pieces.iter().find(|(_, width)| fits(text, *width)).map(|(left, _)| (*left, text));
            if let Some((left, text)) = place(whole.as_str()).or_else(|| place(changed)) {
                self.svg.text(left + 5.0, self.y + 11.5, "onbar", text);
            }
        }
        for span in self.visible(&peer.handoffs) {
            let (left, width) = self.extent(span.from, span.to);
            let rect = Rect { x: left, y: self.y, width, height: 15.0 };
            let told = self.story.incidents.get(span.what).map(Incident::sentence).unwrap_or_default();
            self.svg.rect(rect, "handoff", &self.told(&told, span.from, span.to));
        }
        self.y += 18.0;
    }

    /// How long what stands still did so, where there is room.
    fn durations(&mut self, ways: &[Span<Way>]) {
        let stands_still = |way: Way| matches!(way, Way::NotConfirmed | Way::Held | Way::Away);
        for span in ways.iter().filter(|span| stands_still(span.what)) {
            let text = human(span.to - span.from);
            let room = text.chars().count() as f64 * CHARACTER + 6.0;
            if let Some((left, width)) = self.pieces(span.from, span.to).into_iter().find(|(_, width)| *width >= room) {
                self.svg.text(left + width / 2.0, self.y + 11.0, "over", &text);
            }
        }
    }

    /// Left and width of the parts of a span that are not cut out.
    fn pieces(&self, from: Millis, to: Millis) -> Vec<(f64, f64)> {
        let shown = self.axis.stretches.iter().filter(|stretch| !stretch.cut);
        let piece = |stretch: &Stretch| {
            let (from, to) = (from.max(stretch.from), to.min(stretch.to));
            (from < to).then(|| (self.axis.x(from), self.axis.x(to) - self.axis.x(from)))
        };
        shown.filter_map(piece).collect()
    }

    fn connections(&mut self, peer: &Peer) {
        for one in &peer.connections {
            self.label(&short(&one.name), 9.0);
            let waits = one.waits.iter().map(|span| Span { from: span.from, to: span.to, what: Way::Held });
            let ways: Vec<_> = peer.ways_of(one).into_iter().chain(waits).collect();
            for span in self.visible(&ways) {
                let told = format!("{}: {}", one.name, words(span.what));
                self.bar(span, 10.0, class(span.what), &self.told(&told, span.from, span.to));
            }
            self.y += 13.0;
        }
    }

    /// How many connections there are, in the colours of the ways that they go.
    fn numbers(&mut self, peer: &Peer) {
        const HEIGHT: f64 = 52.0;
        let most = most(peer).max(1);
        let base = self.y + HEIGHT;
        self.label(&thousands(most as u64), 9.0);
        self.svg.text(LEFT - 8.0, base, "right", "0");
        self.svg.text(MARGIN, self.y + HEIGHT / 2.0 + 4.0, "faint", "connections");
        self.svg.line((LEFT, self.y), (RIGHT, self.y), "grid");
        let height = |count: usize| base - HEIGHT * count as f64 / most as f64;
        for way in self.visible(&peer.ways) {
            let (left, right) = (self.axis.x(way.from), self.axis.x(way.to));
            let first = peer.counts.partition_point(|(at, _)| *at <= way.from);
            let mut count = first.checked_sub(1).map_or(0, |index| peer.counts[index].1);
            let (mut x, mut greatest) = (left, count);
            let mut points = vec![(left, base), (left, height(count))];
            for (at, next) in peer.counts[first..].iter().take_while(|(at, _)| *at < way.to) {
                let to = self.axis.x(*at);
                // Within a pixel only the last step can be seen.
                if to - x >= 0.5 {
                    points.extend([(to, height(count)), (to, height(*next))]);
                    x = to;
                } else if let Some(last) = points.last_mut() {
                    last.1 = height(*next);
                }
                count = *next;
                greatest = greatest.max(count);
            }
            points.extend([(right.max(left + 1.0), height(count)), (right.max(left + 1.0), base)]);
            let told = format!("up to {}, {}", show::count(greatest, "connection"), words(way.what));
            self.svg.path(points, class(way.what), &self.told(&told, way.from, way.to));
        }
        self.svg.line((LEFT, base), (RIGHT, base), "rule");
        self.y = base + 6.0;
    }

    /// Where the axis is cut, and how much is left out there.
    fn cuts(&mut self, top: f64, bottom: f64) {
        for Stretch { from, to, left, right, .. } in self.axis.stretches.iter().filter(|stretch| stretch.cut) {
            let rect = Rect { x: *left + 1.0, y: top, width: CUT - 2.0, height: bottom - top };
            let length = human(to - from);
            self.svg.rect(rect, "cut", &format!("{length} in which nothing happens"));
            for x in [*left + 1.0, *right - 1.0] {
                let steps = ((bottom - top) / 5.0).max(1.0) as usize;
                let zigzag = (0..=steps).map(|n| (x + if n % 2 == 0 { -1.5 } else { 1.5 }, top + n as f64 * 5.0));
                self.svg.path(zigzag, "edge", "");
            }
            self.svg.text((left + right) / 2.0, top - 20.0, "tick", &length);
        }
    }

    fn table(&mut self) {
        let Story { incidents, end, .. } = self.story;
        self.y += 16.0;
        if incidents.is_empty() {
            self.svg.text(MARGIN, self.y, "faint", "No hand-off, no hold and no absence.");
            self.y += 16.0;
        } else {
            for (x, class, heading) in [
                (48.0, "faint", "TIME (UTC)"),
                (180.0, "faint", "PEERS"),
                (320.0, "faint", "WHAT HAPPENED"),
                (780.0, "right", "HOW LONG"),
                (870.0, "right", "CONNECTIONS"),
                (890.0, "faint", "THEN THEY GO"),
            ] {
                self.svg.text(x, self.y, class, heading);
            }
            self.y += 8.0;
            self.svg.line((MARGIN, self.y), (RIGHT, self.y), "rule");
            self.y += 16.0;
        }
        let several_days = day(self.story, 0.0) != day(self.story, *end);
        for (number, incident) in incidents.iter().enumerate().take(ROWS) {
            let width = pill(&[number]);
            self.svg.pill(Rect { x: MARGIN, y: self.y - 11.0, width, height: 15.0 }, "mark", "");
            self.svg.text(MARGIN + width / 2.0, self.y, "number", &in_words(&[number]));
            let time = wall(self.story, incident.from);
            self.svg.text(48.0, self.y, "time", if several_days { &time[5..] } else { &time[11..] });
            self.svg.text(180.0, self.y, "who", &cut(&self.names(incident), 22));
            self.svg.text(320.0, self.y, "what", &cut(&incident.sentence(), 64));
            self.svg.text(780.0, self.y, "cell", &incident.lasted(*end));
            self.svg.text(870.0, self.y, "cell", &thousands(incident.flows));
            for (line, how) in wrap(&incident.ways(), 46, 0).lines().enumerate() {
                self.y += if line > 0 { 13.0 } else { 0.0 };
                self.svg.text(890.0, self.y, "how", how);
            }
            self.y += 18.0;
        }
        if incidents.len() > ROWS {
            let more = format!("… and {} more: `whimbrel events` tells of them.", incidents.len() - ROWS);
            self.svg.text(MARGIN, self.y, "faint", &more);
            self.y += 18.0;
        }
        if self.story.first > 1 {
            let before = format!("What was before event {} is not known.", self.story.first);
            self.svg.text(MARGIN, self.y, "faint", &before);
            self.y += 16.0;
        }
    }

    /// Whom an incident was about.
    fn names(&self, incident: &Incident) -> String {
        let name = |id: &usize| called(&self.story.peers[*id]);
        match incident.peers.as_slice() {
            [] => "all".to_owned(),
            few if few.len() <= 3 => few.iter().map(name).collect::<Vec<_>>().join(", "),
            [first, second, rest @ ..] => format!("{}, {} and {} more", name(first), name(second), rest.len()),
            [one] => name(one),
        }
    }

    /// The spans that are drawn: all of them, or, where those are too many, those that would not lie on one another.
    fn visible<'s, T>(&self, spans: &'s [Span<T>]) -> Vec<&'s Span<T>> {
        let all = spans.len() <= SPANS;
        let mut drawn = f64::NEG_INFINITY;
        let visible = |span: &&Span<T>| {
            let right = self.axis.x(span.to);
            let visible = all || right - drawn >= 0.5;
            drawn = if visible { right } else { drawn };
            visible
        };
        spans.iter().filter(visible).collect()
    }

    /// What is told where a pointer rests on something.
    fn told(&self, what: &str, from: Millis, to: Millis) -> String {
        let (begin, end) = (wall(self.story, from), wall(self.story, to));
        format!("{what}\n{begin} – {}, {}", &end[11..], human(to - from))
    }

    /// Left and width of a span; short ones are widened to be seen.
    fn extent(&self, from: Millis, to: Millis) -> (f64, f64) {
        let (left, right) = (self.axis.x(from), self.axis.x(to));
        (left.min(RIGHT - SHORTEST), (right - left).max(SHORTEST))
    }

    fn bar<T>(&mut self, span: &Span<T>, height: f64, class: &str, told: &str) {
        let (x, width) = self.extent(span.from, span.to);
        self.svg.rect(Rect { x, y: self.y, width, height }, class, told);
    }

    /// What a row is, left of it.
    fn label(&mut self, text: &str, down: f64) {
        self.svg.text(LEFT - 8.0, self.y + down, "right", &cut(text, 28));
    }
}

fn legend(svg: &mut Svg, y: f64) {
    let paths = [("path0", "a path"), ("path1", "the next one"), ("nowhere", "no network"), ("handoff", "hand-off")];
    let host = [("up", "the daemon runs"), ("down", "no daemon runs"), ("suspended", "suspended")];
    let ways = WAYS.map(|(_, class, words)| (class, words));
    for (line, (of, all)) in
        [("how connections go", &ways[..]), ("path", &paths[..]), ("this host", &host[..])].into_iter().enumerate()
    {
        // The two short ones share a line.
        let (mut x, y) = (if line == 2 { WIDTH / 2.0 } else { MARGIN }, y + if line > 0 { 17.0 } else { 0.0 });
        svg.text(x, y, "strong", of);
        x += of.chars().count() as f64 * STRONG + 18.0;
        for (class, words) in all {
            svg.rect(Rect { x, y: y - 9.0, width: 16.0, height: 10.0 }, class, "");
            svg.text(x + 21.0, y, "faint", words);
            x += 21.0 + words.chars().count() as f64 * CHARACTER + 16.0;
        }
    }
}

fn title(story: &Story) -> String {
    let (begin, end) = (wall(story, 0.0), wall(story, story.end));
    let end = if begin[..10] == end[..10] { &end[11..19] } else { &end[..19] };
    format!("Connections of this host, {} – {end} UTC", &begin[..19])
}

fn summary(story: &Story) -> String {
    let of = |kind: Kind| story.incidents.iter().filter(|one| one.kind == kind).count();
    let longest = |kind: Kind| {
        let lengths = story.incidents.iter().filter(|one| one.kind == kind);
        let length = |one: &Incident| one.took.or(one.to.map(|to| to - one.from));
        lengths.filter_map(length).reduce(Millis::max).map(|most| format!(" ({} at most)", human(most)))
    };
    let begin = |key: &String| format!("key {}…", key.chars().take(10).collect::<String>());
    let mut parts: Vec<String> = story.key.iter().map(begin).collect();
    parts.push(human(story.end));
    parts.push(show::count(story.peers.len(), "peer"));
    let introduced: usize = story.peers.iter().map(|peer| peer.connections.len()).sum();
    let plural = if introduced == 1 { "" } else { "s" };
    parts.push(format!("{} connection{plural} introduced", thousands(introduced as u64)));
    for (kind, one, more) in [
        (Kind::Handoff, "move of this host", "moves of this host"),
        (Kind::PeerMoved, "move of a peer", "moves of peers"),
        (Kind::Away, "absence of a peer", "absences of peers"),
        (Kind::Suspended, "suspension", "suspensions"),
    ] {
        let longest = longest(kind).filter(|_| kind != Kind::PeerMoved).unwrap_or_default();
        match of(kind) {
            0 => {}
            1 => parts.push(format!("1 {one}{longest}")),
            many => parts.push(format!("{many} {more}{longest}")),
        }
    }
    parts.join(" · ")
}

/// The wall clock at a moment, as `2026-01-31 23:59:58.007`.
fn wall(story: &Story, at: Millis) -> String {
    let index = story.clock.partition_point(|(known, _)| *known <= at).saturating_sub(1);
    let (known, wall) = story.clock.get(index).copied().unwrap_or((0.0, 0));
    let time = rfc3339(UNIX_EPOCH + Duration::from_millis(wall.saturating_add((at - known) as u64)));
    time.trim_end_matches('Z').replacen('T', " ", 1)
}

fn day(story: &Story, at: Millis) -> String {
    wall(story, at)[..10].to_owned()
}

/// `tcp 40000 → 22` of `tcp 192.0.2.1:40000 -> 203.0.113.5:22`: the addresses stand above.
fn short(flow: &str) -> String {
    let port = |end: &str| end.parse().map_or(end.to_owned(), |end: std::net::SocketAddr| end.port().to_string());
    match flow.split_whitespace().collect::<Vec<_>>().as_slice() {
        [transport, local, "->", remote] => format!("{transport} {} → {}", port(local), port(remote)),
        _ => flow.to_owned(),
    }
}

/// How wide the mark of incidents is.
fn pill(numbers: &[usize]) -> f64 {
    (in_words(numbers).chars().count() as f64 * 6.2 + 9.0).max(15.0)
}

/// Numbers of incidents, from 1.
fn in_words(numbers: &[usize]) -> String {
    match numbers {
        [] => String::new(),
        [one] => (one + 1).to_string(),
        [first, .., last] => format!("{}–{}", first + 1, last + 1),
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
