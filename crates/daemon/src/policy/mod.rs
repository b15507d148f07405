//! Policy: what the configuration wants for which connections.
//!
//! A [`Matcher`] says which connections a section means; [`Policies`] are the `[[policy]]` sections in order, of which
//! the first that matches decides. Both are pure. What they ask of a running host is found out by [`Judge`].

pub(crate) mod config;
mod judge;
mod matcher;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Manner, Rule, Verdict, View};
use whimbrel_wire::FlowTuple;

pub(crate) use judge::Judge;
pub use matcher::{Holder, Matcher, PeerCondition, ProgramCondition, ProgramName, Subject};

/// How a connection is to be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// `protect`: whether it may be introduced, and so be parked and moved.
    pub protect: bool,
    /// `view` and `conflict`.
    pub manner: Manner,
}

impl Default for Treatment {
    /// That of connections that no section matches.
    fn default() -> Self {
        Self { protect: true, manner: Manner::default() }
    }
}

/// One `[[policy]]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Where the file has it, from 1.
    pub line: u32,
    /// Which connections it means.
    pub matcher: Matcher,
    /// What it wants for them.
    pub treatment: Treatment,
}

/// All `[[policy]]` sections, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// In this order.
    #[must_use]
    pub fn new(sections: Vec<Policy>) -> Self {
        Self(sections)
    }

    /// Whether there are none, so that all connections are treated alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first section that matches.
    #[must_use]
    pub fn decide(&self, subject: &Subject<'_>) -> Option<&Policy> {
        self.0.iter().find(|policy| policy.matcher.matches(subject))
    }

    /// Whether it must be known who has a connection open before it is decided about, whoever is at its other end.
    #[must_use]
    pub fn asks_for_holders(&self, flow: &FlowTuple) -> bool {
        let keys = self.keys();
        keys.iter().map(Some).chain([None]).any(|key| {
            let subject = Subject { flow, key, holders: &[] };
            // The first that may match decides, whatever comes after it.
            let first = self.0.iter().find(|policy| policy.matcher.but_for_holders().matches(&subject));
            first.is_some_and(|policy| policy.matcher.asks_for_holders())
        })
    }

    /// What is wanted for a connection, whoever turns out to be at its other end. `holders`: who has it open.
    #[must_use]
    pub fn verdict(&self, flow: &FlowTuple, holders: &[Holder]) -> Verdict {
        let rule = |key: Option<&PublicKey>| match self.decide(&Subject { flow, key, holders }) {
            Some(policy) => Rule {
                excluded_by: (!policy.treatment.protect).then_some(policy.line),
                manner: policy.treatment.manner,
            },
            None => Rule::default(),
        };
        let otherwise = rule(None);
        let for_keys = self.keys().into_iter().map(|key| (key, rule(Some(&key))));
        Verdict { for_keys: for_keys.filter(|(_, rule)| *rule != otherwise).collect(), otherwise }
    }

    /// Whether any section wants programs to be shown anything but the addresses that their sockets were made with.
    #[must_use]
    pub fn ask_for_views(&self) -> bool {
        self.0.iter().any(|policy| policy.treatment.manner.view != View::Virtual)
    }

    /// The names of programs with lasting views, each once.
    #[must_use]
    pub fn lasting_programs(&self) -> Vec<ProgramName> {
        let lasting = self.0.iter().filter(|policy| policy.treatment.manner.view == View::Lasting);
        let mut names: Vec<_> = lasting.filter_map(|policy| policy.matcher.program.as_ref()?.name()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The keys that the sections name, each once.
    #[must_use]
    pub fn keys(&self) -> Vec<PublicKey> {
        let mut keys: Vec<PublicKey> = self.0.iter().flat_map(|policy| policy.matcher.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Sections that mean single connections, and of which the node finds out who is meant at their other ends: what they
/// say of the peer is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(Vec<(u32, Matcher)>);

impl Conditions {
    /// Of these sections, by their lines.
    pub fn new<'m>(sections: impl Iterator<Item = (u32, &'m Matcher)>) -> Self {
        let of_flows = sections.filter(|(_, matcher)| matcher.means_flows());
        Self(of_flows.map(|(line, matcher)| (line, Matcher { peer: None, ..matcher.clone() })).collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it must be known who has a connection open.
    #[must_use]
    pub fn asks_for_holders(&self, flow: &FlowTuple) -> bool {
        let subject = Subject { flow, key: None, holders: &[] };
        let may = |matcher: &Matcher| matcher.asks_for_holders() && matcher.but_for_holders().matches(&subject);
        self.0.iter().any(|(_, matcher)| may(matcher))
    }

    /// The lines of those that a connection meets.
    #[must_use]
    pub fn met(&self, flow: &FlowTuple, holders: &[Holder]) -> Vec<u32> {
        let subject = Subject { flow, key: None, holders };
        self.0.iter().filter(|(_, matcher)| matcher.matches(&subject)).map(|(line, _)| *line).collect()
    }
}

#[cfg(test)]
mod tests;
