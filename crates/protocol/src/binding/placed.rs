//! What two ends have said of single flows that go by bindings of their own (P-186 to P-190).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use whimbrel_wire::BindingNumber;
use whimbrel_wire::binding::{MAX_PLACED, Placed, PlacedSeen, PlacedStatus};

use crate::Time;
use crate::path::kept::Way;

/// Bindings that each end may make beside the first of a peer.
pub(super) const MOST: u8 = 4;
/// Words that are said in close succession.
pub(super) const WORDS: u32 = 12;

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
    /// The ways that the tunnel was told, with the session that it sends in.
    pub(super) ways: BTreeMap<u8, (Way, u32)>,
    /// Flows that are led by them, by their names.
    pub(super) led: BTreeSet<u64>,
}

/// One that this host has made.
#[derive(Debug)]
struct Own {
    /// Where its path begins.
    from: IpAddr,
    /// The flows that it is to lead.
    flows: BTreeSet<u64>,
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
    /// How often, as long as it was not answered.
    tries: Option<u32>,
}

/// One that the peer has made.
#[derive(Debug)]
pub(super) struct Theirs {
    /// When the session began that it was said in last.
    pub(super) since: Time,
    sequence: u32,
    path: u32,
    names: BTreeSet<u64>,
    pub(super) standing: PlacedStatus,
}

impl Sides {
    /// Whether a path is to be kept ready from there.
    pub(crate) fn keeps_from(&self, address: IpAddr) -> bool {
        self.own.values().any(|own| own.from == address && !own.flows.is_empty())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.own.is_empty() && self.theirs.is_empty() && self.led.is_empty()
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let own: usize = self.own.values().map(|own| 1 + own.flows.len() + own.agreed.len()).sum();
        let theirs: usize = self.theirs.values().map(|theirs| 1 + theirs.names.len()).sum();
        own + theirs + self.ways.len() + self.led.len()
    }

    /// The path that such a binding goes by.
    pub(crate) fn path(&self, side: u8) -> Option<Way> {
        self.ways.get(&side).map(|(way, _)| *way)
    }

    /// There is another session: what was said in the one before may not be known there.
    pub(super) fn say_again(&mut self) {
        self.own.values_mut().filter_map(|own| own.said.as_mut()).for_each(|said| said.tries = Some(0));
    }

    /// Has a flow go from this address, or from none. Tells whether there is room.
    pub(super) fn place(&mut self, name: u64, from: Option<IpAddr>) -> bool {
        let Some(from) = from else {
            self.unplace(name);
            return true;
        };
        let of = self.own.iter().find(|(_, own)| own.from == from).map(|(count, _)| *count);
        let Some(count) = of.or_else(|| (1..=MOST).find(|count| !self.own.contains_key(count))) else { return false };
        let known = self.own.get(&count).map_or(0, |own| own.flows.len());
        if known >= MAX_PLACED {
            return false;
        }
        self.unplace(name);
        let new = || Own { from, flows: BTreeSet::new(), agreed: BTreeSet::new(), said: None };
        self.own.entry(count).or_insert_with(new).flows.insert(name);
        true
    }

    fn unplace(&mut self, name: u64) {
        for own in self.own.values_mut() {
            own.flows.remove(&name);
        }
    }

    /// Makes what the peer is told of this host's bindings what is to be so. `way` gives the path from an address that
    /// is confirmed.
    pub(super) fn word(&mut self, known: impl Fn(&u64) -> bool, way: impl Fn(IpAddr) -> Option<Way>) {
        let Self { own, sequence, .. } = self;
        own.retain(|_, own| {
            own.flows.retain(&known);
            let way = way(own.from);
            let names = way.map_or_else(BTreeSet::new, |_| own.flows.clone());
            let before = own.said.as_ref();
            let path = way.map(|way| way.id.0).or(before.map(|said| said.path)).unwrap_or(0);
            let same = before.is_none_or(|said| said.path == path);
            own.agreed.retain(|name| same && names.contains(name));
            if before.map_or(names.is_empty(), |said| same && said.names == names) {
                return !own.flows.is_empty() || before.is_some_and(|said| said.tries.is_some());
            }
            *sequence += 1;
            own.said = Some(Said { sequence: *sequence, path, names, tries: Some(0) });
            true
        });
    }

    /// The peer has answered. Gives the path that has failed, as it says.
    pub(super) fn on_answer(&mut self, count: u8, answer: &PlacedSeen) -> Option<u32> {
        let own = self.own.get_mut(&count)?;
        let said = own.said.as_mut().filter(|said| said.sequence == answer.sequence)?;
        match answer.status {
            PlacedStatus::InForce => (own.agreed, said.tries) = (said.names.clone(), None),
            // It says so by itself once the path is confirmed.
            PlacedStatus::Waits => said.tries = Some(WORDS),
            PlacedStatus::Failed => {
                own.agreed.clear();
                return Some(said.path);
            }
            PlacedStatus::NotNewer | PlacedStatus::Refused | PlacedStatus::Other(_) => {
                own.agreed.clear();
                said.tries = None;
            }
        }
        None
    }

    /// What is to be said now of what is not answered, and when next.
    pub(super) fn say(&mut self, greater: bool) -> (Vec<Placed>, Option<u32>) {
        let (mut all, mut least) = (Vec::new(), None);
        for (count, own) in &mut self.own {
            let Some(Said { sequence, path, names, tries: Some(tries) }) = own.said.as_mut() else { continue };
            *tries = tries.saturating_add(1);
            least = Some(least.map_or(*tries, |least: u32| least.min(*tries)));
            let binding = BindingNumber::made(u32::from(*count), greater);
            all.push(Placed { binding, sequence: *sequence, path: *path, names: names.iter().copied().collect() });
        }
        (all, least)
    }

    /// The peer says which flows one of its bindings leads. Gives what is to be answered, unless that follows.
    pub(super) fn hear(&mut self, count: u8, since: Time, placed: &Placed) -> Option<PlacedStatus> {
        let stands = (since, placed.sequence);
        match self.theirs.get(&count).map(|theirs| ((theirs.since, theirs.sequence), theirs.standing)) {
            Some((before, standing)) if before == stands => return Some(standing),
            Some((before, _)) if before > stands => return Some(PlacedStatus::NotNewer),
            _ => {}
        }
        let names: BTreeSet<u64> = placed.names.iter().copied().collect();
        let standing = if names.is_empty() { PlacedStatus::InForce } else { PlacedStatus::Waits };
        let Placed { sequence, path, .. } = *placed;
        self.theirs.insert(count, Theirs { since, sequence, path, names, standing });
        None
    }

    /// Which binding leads which flows, the weaker first: of one end's the one that was said of last counts, and of
    /// both ends' that of the end with the greater key. `told` gives a path of the peer's that is confirmed.
    pub(super) fn leading(
        &self,
        greater: bool,
        own_way: impl Fn(IpAddr) -> Option<Way>,
        told: impl Fn(u32) -> Option<Way>,
    ) -> Vec<(u8, Way, &BTreeSet<u64>)> {
        let own = self.own.iter().filter_map(|(count, own)| {
            let way = own_way(own.from).filter(|_| !own.agreed.is_empty())?;
            Some(((greater, own.said.as_ref()?.sequence), *count, way, &own.agreed))
        });
        let theirs = self.theirs.iter().filter_map(|(count, theirs)| {
            let in_force = theirs.standing == PlacedStatus::InForce && !theirs.names.is_empty();
            let way = told(theirs.path).filter(|_| in_force)?;
            Some(((!greater, theirs.sequence), MOST + count, way, &theirs.names))
        });
        let mut all: Vec<_> = own.chain(theirs).collect();
        all.sort_by_key(|(rank, ..)| *rank);
        all.into_iter().map(|(_, side, way, names)| (side, way, names)).collect()
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
