//! What two ends have said of single flows that go by bindings of their own (P-186 to P-190).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::BindingNumber;
use whimbrel_wire::binding::{MAX_PLACED, Placed, PlacedSeen, PlacedStatus};

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::op::SecondWay;
use crate::path::kept::Way;

/// Bindings that each end may make beside the first of a peer.
pub(super) const MOST: u8 = 4;
/// Words that are said in close succession.
pub(super) const WORDS: u32 = 12;
/// Unanswered words after which the session is doubted and another handshake begun beside it.
const DOUBT_AFTER: u32 = 3;
/// So often what is placed may change at the other end's wish (P-143): each change costs an op for each flow.
const CHANGES: f64 = 10.0;
const CHANGES_PAUSE: Duration = Duration::from_millis(200);

/// Where a single flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placement {
    /// By the path that begins at this address of this host.
    pub from: IpAddr,
    /// And by the path in use as well, as long as both work: what comes first counts (P-262).
    pub duplicated: bool,
}

impl Placement {
    /// By the path that begins at this address alone.
    #[must_use]
    pub const fn at(from: IpAddr) -> Self {
        Self { from, duplicated: false }
    }
}

/// Why a flow is not placed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It is not introduced, or is over.
    #[error("the connection cannot be moved: it is not introduced")]
    UnknownFlow,
    /// This host is not at that address.
    #[error("this host does not have that address")]
    NoSuchAddress,
    /// As many addresses, or flows from one of them, as may be.
    #[error("connections with this peer go from as many addresses of their own as may be, or too many from this one")]
    Full,
}

/// The bindings of single flows with a peer, by their sides: what the two ends have made.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    /// Of this host's making, each by its count.
    own: BTreeMap<u8, Own>,
    /// Of the peer's.
    pub(super) theirs: BTreeMap<u8, Theirs>,
    /// Of what was said last.
    pub(super) sequence: u32,
    /// When the peer is told again, as long as it leads, or is to lead, anything by a binding of this host's.
    pub(super) said_next: Option<Time>,
    /// How often the peer may change what it has placed.
    changes: Option<Bucket>,
    /// The ways that the tunnel was told.
    pub(super) ways: BTreeMap<u8, Told>,
    /// Flows that are led by them, by their names.
    pub(super) led: BTreeSet<u64>,
}

/// What the tunnel was told of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) way: Way,
    /// As well, where that is wanted.
    pub(super) second: Option<SecondWay>,
    /// The session that it sends in.
    pub(super) receive_index: u32,
}

/// One that leads flows.
pub(super) struct Leading<'a> {
    pub(super) side: u8,
    pub(super) way: Way,
    pub(super) duplicated: bool,
    pub(super) names: &'a BTreeSet<u64>,
}

/// One that this host has made.
#[derive(Debug)]
struct Own {
    /// Where its path begins, and whether its flows go by the path in use as well.
    to: Placement,
    /// The flows that it is to lead.
    flows: BTreeSet<u64>,
    /// Those that it leads until another one does.
    leaving: BTreeSet<u64>,
    /// Those that it leads, as the peer has agreed.
    agreed: BTreeSet<u64>,
    said: Option<Said>,
}

/// What the peer was told of it last.
#[derive(Debug)]
struct Said {
    sequence: u32,
    path: u32,
    names: BTreeSet<u64>,
    /// How often since it was answered; `None`: there is nothing that the peer could have forgotten.
    tries: Option<u32>,
    /// That the session was doubted since.
    doubted: bool,
}

/// One that the peer has made.
#[derive(Debug)]
pub(super) struct Theirs {
    /// When the newest session began that it was said in.
    pub(super) since: Time,
    sequence: u32,
    path: u32,
    duplicated: bool,
    names: BTreeSet<u64>,
    pub(super) standing: PlacedStatus,
}

/// What came of a word of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is as it says from now on, as far as its path works.
    News,
    /// It was said before, and this is how it stands.
    Before(PlacedStatus),
    /// There is a newer one, with this number.
    Late(u32),
    /// It is not listened to now: the peer says it again.
    TooMuch,
}

impl Sides {
    /// Whether a path is to be kept ready from there.
    pub(crate) fn keeps_from(&self, address: IpAddr) -> bool {
        self.own.values().any(|own| own.to.from == address && !(own.flows.is_empty() && own.leaving.is_empty()))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.own.is_empty() && self.theirs.is_empty() && self.led.is_empty()
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let of = |own: &Own| 1 + own.flows.len() + own.leaving.len() + own.agreed.len();
        let own: usize = self.own.values().map(of).sum();
        let theirs: usize = self.theirs.values().map(|theirs| 1 + theirs.names.len()).sum();
        own + theirs + self.ways.len() + self.led.len()
    }

    /// The path that such a binding goes by.
    pub(crate) fn path(&self, side: u8) -> Option<Way> {
        self.ways.get(&side).map(|told| told.way)
    }

    /// There is another session: what was said in the one before may not be known there.
    pub(super) fn say_again(&mut self) {
        self.own.values_mut().filter_map(|own| own.said.as_mut()).for_each(|said| said.tries = Some(0));
    }

    /// A flow has another name from now on: it stays placed.
    pub(super) fn rename(&mut self, before: u64, name: u64) {
        for own in self.own.values_mut() {
            if own.flows.remove(&before) {
                own.flows.insert(name);
            }
            own.leaving.remove(&before);
        }
    }

    /// Has a flow go there, or with the others. Tells whether there is room.
    pub(super) fn place(&mut self, name: u64, to: Option<Placement>) -> bool {
        let Some(to) = to else {
            self.unplace(name);
            return true;
        };
        let of = self.own.iter().find(|(_, own)| own.to == to).map(|(count, _)| *count);
        let Some(count) = of.or_else(|| (1..=MOST).find(|count| !self.own.contains_key(count))) else { return false };
        let known = self.own.get(&count).map(|own| &own.flows);
        if known.is_some_and(|flows| flows.len() >= MAX_PLACED && !flows.contains(&name)) {
            return false;
        }
        for (_, own) in self.own.iter_mut().filter(|(of, _)| **of != count) {
            if own.flows.remove(&name) && own.agreed.contains(&name) {
                own.leaving.insert(name);
            }
        }
        let new = || Own { to, flows: BTreeSet::new(), leaving: BTreeSet::new(), agreed: BTreeSet::new(), said: None };
        self.own.entry(count).or_insert_with(new).flows.insert(name);
        true
    }

    fn unplace(&mut self, name: u64) {
        for own in self.own.values_mut() {
            own.flows.remove(&name);
            own.leaving.remove(&name);
        }
    }

    /// The names of all flows that this host has placed.
    pub(super) fn own_names(&self) -> impl Iterator<Item = u64> + '_ {
        self.own.values().flat_map(|own| own.flows.iter().copied())
    }

    /// Makes what the peer is told of this host's bindings what is to be so. `way` gives the path of such
    /// flows, where it is confirmed.
    pub(super) fn word(&mut self, known: impl Fn(&u64) -> bool, way: impl Fn(Placement) -> Option<Way>) {
        let Self { own, sequence, .. } = self;
        // What another one leads by now is left to it, and what has no path there goes with the others.
        let led: BTreeSet<u64> = own.values().flat_map(|own| own.agreed.intersection(&own.flows)).copied().collect();
        let leads = own.values().filter(|own| way(own.to).is_some());
        let awaited: BTreeSet<u64> = leads.flat_map(|own| own.flows.difference(&led)).copied().collect();
        own.retain(|_, own| {
            own.flows.retain(&known);
            own.leaving.retain(|name| known(name) && awaited.contains(name));
            let way = way(own.to);
            let all = || own.flows.union(&own.leaving).copied().take(MAX_PLACED).collect();
            let names = way.map_or_else(BTreeSet::new, |_| all());
            let before = own.said.as_ref();
            let path = way.map(|way| way.id.0).or(before.map(|said| said.path)).unwrap_or(0);
            let same = before.is_none_or(|said| said.path == path);
            own.agreed.retain(|name| same && names.contains(name));
            if before.map_or(names.is_empty(), |said| same && said.names == names) {
                return !own.flows.is_empty()
                    || !own.leaving.is_empty()
                    || before.is_some_and(|said| said.tries.is_some());
            }
            *sequence = sequence.saturating_add(1);
            own.said = Some(Said { sequence: *sequence, path, names, tries: Some(0), doubted: false });
            true
        });
    }

    /// The peer has answered. Gives the path that has failed, as it says.
    pub(super) fn on_answer(&mut self, count: u8, answer: &PlacedSeen) -> Option<u32> {
        let Self { own, sequence, .. } = self;
        let own = own.get_mut(&count)?;
        let said = own.said.as_mut()?;
        if answer.status == PlacedStatus::NotNewer && answer.sequence > said.sequence {
            // A daemon before this one has said more: it is gone on from there.
            *sequence = (*sequence).max(answer.sequence).saturating_add(1);
            (said.sequence, said.tries) = (*sequence, Some(0));
            own.agreed.clear();
            return None;
        }
        if said.sequence != answer.sequence {
            return None;
        }
        said.doubted = false;
        // What it leads it is told again from time to time, as it may have had to forget that, or to take it back, and
        // its word of that may be lost.
        let rests = (!said.names.is_empty()).then_some(WORDS - 1);
        match answer.status {
            PlacedStatus::InForce => (own.agreed, said.tries) = (said.names.clone(), rests),
            // It says so by itself once the path is confirmed.
            PlacedStatus::Waits => said.tries = rests,
            PlacedStatus::Failed => {
                own.agreed.clear();
                return Some(said.path);
            }
            // An older one has overtaken this one, which is answered as well.
            PlacedStatus::NotNewer => {}
            PlacedStatus::Refused | PlacedStatus::Other(_) => {
                own.agreed.clear();
                said.tries = None;
            }
        }
        None
    }

    /// What is to be said now, after how many words, and whether the session is to be doubted.
    pub(super) fn say(&mut self, greater: bool) -> (Vec<(Placement, Placed)>, Option<u32>, bool) {
        let (mut all, mut least, mut doubts) = (Vec::new(), None, false);
        for (count, own) in &mut self.own {
            let Some(said) = own.said.as_mut() else { continue };
            let Said { sequence, path, names, tries: Some(tries), doubted } = said else { continue };
            *tries = tries.saturating_add(1);
            // Once for each word: a peer that has never heard of such words is not to be asked for sessions for ever.
            doubts |= *tries == DOUBT_AFTER && !std::mem::replace(doubted, true);
            least = Some(least.map_or(*tries, |least: u32| least.min(*tries)));
            let binding = BindingNumber::made(u32::from(*count), greater);
            let names: Vec<u64> = names.iter().copied().collect();
            // What is over may be said to who has never known of that.
            let duplicated = own.to.duplicated && !names.is_empty();
            all.push((own.to, Placed { binding, sequence: *sequence, path: *path, duplicated, names }));
        }
        (all, least, doubts)
    }

    /// The peer says which flows one of its bindings leads, in a session that began then (P-187).
    pub(super) fn hear(&mut self, now: Time, count: u8, since: Time, placed: &Placed) -> Heard {
        if let Some(theirs) = self.theirs.get_mut(&count) {
            theirs.since = theirs.since.max(since);
            if theirs.sequence == placed.sequence {
                return Heard::Before(theirs.standing);
            }
            if theirs.sequence > placed.sequence {
                return Heard::Late(theirs.sequence);
            }
        }
        let names: BTreeSet<u64> = placed.names.iter().copied().collect();
        if names.is_empty() && !self.theirs.contains_key(&count) {
            return Heard::Before(PlacedStatus::InForce);
        }
        if !self.changes.get_or_insert_with(|| Bucket::of(CHANGES, CHANGES_PAUSE)).take(now) {
            return Heard::TooMuch;
        }
        let standing = if names.is_empty() { PlacedStatus::InForce } else { PlacedStatus::Waits };
        let Placed { sequence, path, duplicated, .. } = *placed;
        self.theirs.insert(count, Theirs { since, sequence, path, duplicated, names, standing });
        Heard::News
    }

    /// Which binding leads which flows, the weaker first: of one end's the one that was said of last counts, and of
    /// both ends' that of the end with the greater key. `told` gives a path of the peer's that is confirmed.
    pub(super) fn leading(
        &self,
        greater: bool,
        own_way: impl Fn(Placement) -> Option<Way>,
        told: impl Fn(u32) -> Option<Way>,
    ) -> Vec<Leading<'_>> {
        let own = self.own.iter().filter_map(|(count, own)| {
            let way = own_way(own.to).filter(|_| !own.agreed.is_empty())?;
            let leading = Leading { side: *count, way, duplicated: own.to.duplicated, names: &own.agreed };
            Some(((greater, own.said.as_ref()?.sequence), leading))
        });
        let theirs = self.theirs.iter().filter_map(|(count, theirs)| {
            let in_force = theirs.standing == PlacedStatus::InForce && !theirs.names.is_empty();
            let way = told(theirs.path).filter(|_| in_force)?;
            let leading = Leading { side: MOST + count, way, duplicated: theirs.duplicated, names: &theirs.names };
            Some(((!greater, theirs.sequence), leading))
        });
        let mut all: Vec<_> = own.chain(theirs).collect();
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, leading)| leading).collect()
    }

    /// What has become of the peer's bindings: those whose path is confirmed by now, and those whose path is gone.
    pub(super) fn stand(&mut self, told: impl Fn(u32) -> Option<Way>) -> Vec<(u8, u32, PlacedStatus)> {
        let mut changed = Vec::new();
        for (count, theirs) in self.theirs.iter_mut().filter(|(_, theirs)| !theirs.names.is_empty()) {
            let standing = match (theirs.standing, told(theirs.path).is_some()) {
                (PlacedStatus::Waits, true) => PlacedStatus::InForce,
                (PlacedStatus::InForce, false) => PlacedStatus::Failed,
                (as_before, _) => as_before,
            };
            if theirs.standing != standing {
                theirs.standing = standing;
                changed.push((*count, theirs.sequence, standing));
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::default() + Duration::from_secs(second)
    }

    fn placed(sequence: u32, names: &[u64]) -> Placed {
        Placed { binding: BindingNumber(1), sequence, path: 7, duplicated: false, names: names.to_vec() }
    }

    fn seen(sequence: u32, status: PlacedStatus) -> PlacedSeen {
        PlacedSeen { binding: BindingNumber(1), sequence, status }
    }

    fn way(_: Placement) -> Option<Way> {
        let remote = ([10, 0, 0, 2], 2031).into();
        Some(Way { id: crate::base::id::PathId(7), source: None, link: None, remote })
    }

    /// With one flow placed, of which the peer was told.
    fn told() -> Sides {
        let mut sides = Sides::default();
        assert!(sides.place(5, Some(Placement::at(IpAddr::from([10, 0, 0, 1])))));
        sides.word(|_| true, way);
        sides
    }

    #[test]
    fn a_flow_is_led_as_before_until_the_peer_agrees_to_another_way() {
        let both = Placement { from: IpAddr::from([10, 0, 0, 1]), duplicated: true };
        let mut sides = told();
        sides.on_answer(1, &seen(1, PlacedStatus::InForce));
        let led = |sides: &Sides| {
            let leading = sides.leading(true, way, |_| None);
            leading.into_iter().rfind(|it| it.names.contains(&5)).map(|it| it.duplicated)
        };
        assert_eq!(led(&sides), Some(false));
        assert!(sides.place(5, Some(both)));
        sides.word(|_| true, way);
        assert_eq!(led(&sides), Some(false), "the peer has not agreed");
        sides.on_answer(2, &PlacedSeen { binding: BindingNumber(2), sequence: 2, status: PlacedStatus::InForce });
        assert_eq!(led(&sides), Some(true));
        sides.word(|_| true, way);
        assert_eq!((led(&sides), sides.own[&1].flows.len() + sides.own[&1].leaving.len()), (Some(true), 0));
        // Where there is no path it would go with the others, and does.
        let elsewhere = Placement::at(IpAddr::from([10, 0, 0, 9]));
        assert!(sides.place(5, Some(elsewhere)));
        sides.word(|_| true, |to| way(to).filter(|_| to != elsewhere));
        assert_eq!(led(&sides), None);
        assert!(sides.place(5, Some(both)));
        sides.word(|_| true, way);
        // What is over is said to anybody.
        let knows = |to: Placement| way(to).filter(|_| !to.duplicated);
        sides.word(|_| true, knows);
        let (said, ..) = sides.say(true);
        assert!(said.iter().all(|(_, placed)| !placed.duplicated), "{said:?}");
    }

    #[test]
    fn what_is_newer_is_told_by_its_number_whichever_session_it_came_in() {
        let mut sides = Sides::default();
        assert_eq!(sides.hear(at(9), 1, at(5), &placed(2, &[5])), Heard::News);
        // Of two sessions that began at the same time each end counts its own as the older one.
        assert_eq!(sides.hear(at(9), 1, at(4), &placed(2, &[5])), Heard::Before(PlacedStatus::Waits));
        assert_eq!(sides.hear(at(9), 1, at(4), &placed(3, &[])), Heard::News);
        assert_eq!(sides.hear(at(9), 1, at(6), &placed(2, &[5])), Heard::Late(3));
        assert!(sides.theirs[&1].names.is_empty() && sides.theirs[&1].since == at(6));
    }

    #[test]
    fn nothing_is_kept_of_who_places_nothing_and_changes_have_a_pace() {
        let mut sides = Sides::default();
        assert_eq!(sides.hear(at(9), 1, at(5), &placed(1, &[])), Heard::Before(PlacedStatus::InForce));
        assert!(sides.is_idle());
        let listened = (1..=100).filter(|of| sides.hear(at(9), 1, at(5), &placed(*of, &[1])) == Heard::News).count();
        assert_eq!(listened, CHANGES as usize);
        assert_eq!(sides.hear(at(10), 1, at(5), &placed(200, &[1])), Heard::News);
    }

    #[test]
    fn a_daemon_that_has_lost_count_goes_on_from_what_its_peer_has_heard() {
        let mut sides = told();
        assert_eq!(sides.on_answer(1, &seen(40, PlacedStatus::NotNewer)), None);
        let (said, tries, _) = sides.say(false);
        assert_eq!((said[0].1.sequence, tries), (41, Some(1)));
        // An older one that was overtaken changes nothing.
        sides.on_answer(1, &seen(41, PlacedStatus::InForce));
        sides.on_answer(1, &seen(41, PlacedStatus::NotNewer));
        assert_eq!(sides.own[&1].agreed.len(), 1);
    }

    #[test]
    fn what_is_in_force_is_said_again_and_its_session_doubted_once_for_each_word() {
        let mut sides = told();
        let doubts = |sides: &mut Sides| (0..WORDS).filter(|_| sides.say(false).2).count();
        assert_eq!(doubts(&mut sides), 1);
        sides.say_again();
        assert_eq!(doubts(&mut sides), 0, "the new session was begun for it");
        sides.on_answer(1, &seen(1, PlacedStatus::InForce));
        let (said, tries, _) = sides.say(false);
        assert_eq!((said.len(), tries), (1, Some(WORDS)));
        sides.place(5, None);
        sides.word(|_| true, way);
        sides.on_answer(1, &seen(2, PlacedStatus::InForce));
        assert_eq!(sides.say(false).1, None, "nothing is led any more");
    }

    #[test]
    fn a_flow_that_is_introduced_anew_stays_placed_by_its_other_name() {
        let mut sides = told();
        sides.on_answer(1, &seen(1, PlacedStatus::InForce));
        sides.rename(5, 6);
        sides.word(|name| *name == 6, way);
        assert!(sides.own[&1].agreed.is_empty(), "the peer has not agreed to that");
        assert_eq!(sides.say(false).0[0].1.names, [6]);
    }
}
