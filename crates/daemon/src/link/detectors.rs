//! The detectors of this host, and what all of them know together.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{LinkFacts, LinkId, Time};

use super::detector::Detector;
use super::ethernet::Ethernet;
#[cfg(feature = "dbus")]
use super::services::Services;
use super::wifi::Wifi;

/// All kinds. Of what two know of one link the first in the list counts; what speaks against it counts whoever says it.
fn all() -> Vec<Box<dyn Detector>> {
    let all: [Option<Box<dyn Detector>>; _] = [
        // One line for each.
        Ethernet::start(),
        Wifi::start(),
        #[cfg(feature = "dbus")]
        Services::start(),
    ];
    all.into_iter().flatten().collect()
}

/// The detectors of this host.
#[derive(Debug)]
pub(crate) struct Detectors {
    all: Vec<Box<dyn Detector>>,
    /// What was told last.
    told: Vec<(LinkId, LinkFacts)>,
}

impl Detectors {
    pub(crate) fn start() -> Self {
        Self { all: all(), told: Vec::new() }
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().flat_map(|detector| detector.fds())
    }

    pub(crate) fn due(&self) -> Option<Time> {
        self.all.iter().filter_map(|detector| detector.due()).min()
    }

    pub(crate) fn handle(&mut self, now: Time) {
        self.all.iter_mut().for_each(|detector| detector.handle(now));
    }

    pub(crate) fn handle_network(&mut self, now: Time, network: &NetworkState) {
        self.all.iter_mut().for_each(|detector| detector.handle_network(now, network));
    }

    pub(crate) fn measure(&mut self, now: Time, wanted: bool) {
        self.all.iter_mut().for_each(|detector| detector.measure(now, wanted));
    }

    /// All that is known, where it has changed since this was asked last.
    pub(crate) fn changed(&mut self) -> Option<&[(LinkId, LinkFacts)]> {
        let facts = merged(self.all.iter().map(|detector| detector.facts()));
        let has_changed = facts != self.told;
        self.told = facts;
        has_changed.then_some(&self.told)
    }
}

fn merged(each: impl Iterator<Item = BTreeMap<LinkId, LinkFacts>>) -> Vec<(LinkId, LinkFacts)> {
    let mut all: BTreeMap<LinkId, LinkFacts> = BTreeMap::new();
    for (link, facts) in each.flatten() {
        let so_far = all.entry(link).or_default();
        *so_far = LinkFacts {
            signal: so_far.signal.or(facts.signal),
            rate: so_far.rate.or(facts.rate),
            doubtful: so_far.doubtful || facts.doubtful,
            leaving: so_far.leaving || facts.leaving,
            captive: so_far.captive || facts.captive,
            metered: so_far.metered || facts.metered,
        };
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_detectors_know_of_one_link_comes_together() {
        let [wifi, wwan] = [LinkId(3), LinkId(4)];
        let signal = LinkFacts { signal: Some(-60), doubtful: true, ..LinkFacts::default() };
        let other = LinkFacts { signal: Some(-70), rate: Some(54), captive: true, ..LinkFacts::default() };
        let metered = LinkFacts { metered: true, ..LinkFacts::default() };
        let each = [[(wifi, signal)].into(), [(wifi, other), (wwan, metered)].into()];
        let both = LinkFacts { signal: Some(-60), rate: Some(54), doubtful: true, captive: true, ..metered };
        let both = LinkFacts { metered: false, ..both };
        assert_eq!(merged(each.into_iter()), [(wifi, both), (wwan, metered)]);
    }
}
