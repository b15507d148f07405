//! What is known of links by themselves. A doubt of layer 2 has peers asked (P-233); a link that is about to go, or
//! that leads nowhere, is avoided as if a file wanted that (P-234).

use std::collections::{BTreeMap, BTreeSet};

use crate::base::config::SilenceMode;
use crate::base::id::LinkId;
use crate::base::link_facts::{LinkFacts, LinkFault};
use crate::base::op::PeerId;
use crate::role::At;
use crate::role::links::LinksRole;
use crate::role::links::select::LinkRules;
use crate::role::links::wishes::wish_among;

/// What the networks by which a peer is reached are compared by, and why.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The line of the section that means the peer. None does where it is for what is known of links.
    pub(super) line: Option<u32>,
    pub(super) rules: LinkRules,
}

impl LinksRole {
    /// This is all that is known of links.
    pub(crate) fn handle_facts(&mut self, facts: &[(LinkId, LinkFacts)], at: &mut At<'_>) {
        let said = facts.iter().copied().filter(|(_, facts)| *facts != LinkFacts::default());
        let facts: BTreeMap<LinkId, LinkFacts> = said.collect();
        if facts == self.facts {
            return;
        }
        let was_active = self.is_active();
        let before = std::mem::replace(&mut self.facts, facts);
        let was_doubtful = |link| before.get(link).is_some_and(|facts| facts.doubtful);
        let doubted = self.facts.iter().filter(|(link, facts)| facts.doubtful && !was_doubtful(link));
        let doubted: BTreeSet<LinkId> = doubted.map(|(link, _)| *link).collect();
        if self.mode != SilenceMode::Off {
            let concerned = self.peers.values_mut().filter(|watched| doubted.contains(&watched.at.link));
            concerned.for_each(|watched| watched.watch.suspect(at.now, at.now, at.now));
        }
        if self.is_active() || was_active {
            self.look_at_all(at);
        }
    }

    pub(super) fn facts(&self, link: LinkId) -> LinkFacts {
        self.facts.get(&link).copied().unwrap_or_default()
    }

    /// What speaks against a link.
    pub(super) fn fault(&self, link: LinkId) -> Option<LinkFault> {
        self.facts(link).fault()
    }

    /// Whether something speaks against any link.
    pub(super) fn knows_fault(&self) -> bool {
        self.facts.values().any(|facts| facts.fault().is_some())
    }

    /// What is wanted for a peer: by the first section that means it; else, where something speaks against a link or
    /// did so when the peer was moved, that the routes decide about all others.
    pub(super) fn wanted(&self, id: PeerId, at: &At<'_>) -> Option<Wanted> {
        if let Some(wish) = wish_among(&self.wishes, id, at) {
            return Some(Wanted { line: Some(wish.line), rules: self.with_prices(wish.rules.clone()) });
        }
        let is_led = || self.peers.get(&id).is_some_and(|watched| watched.wished.is_led());
        (self.knows_fault() || is_led()).then(|| Wanted { line: None, rules: LinkRules::default() })
    }

    /// What costs has a price where the file gives it none.
    pub(super) fn with_prices(&self, mut rules: LinkRules) -> LinkRules {
        for (link, _) in self.facts.iter().filter(|(_, facts)| facts.metered) {
            rules.prices.entry(*link).or_insert(METERED);
        }
        rules
    }
}

/// The price of a network that costs, where the file gives it none.
const METERED: u32 = 1;
