//! Wi-Fi, by what nl80211 tells.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::wireless::{AccessPoint, Drained, Happened, WirelessEvent, WirelessMonitor};
use whimbrel_protocol::{LinkFacts, LinkId, Time};

use super::detector::Detector;

/// How often figures are asked for while somebody wants them, and an access point that is doubted.
const PERIOD: Duration = Duration::from_secs(2);

/// Hears what happens to interfaces, and asks for figures then; in between only while somebody wants them, so that a
/// host at rest is not woken. It sets no bounds of its own on the signal: a driver has one, and `wpa_supplicant` may
/// have set it to know when to roam.
#[derive(Debug)]
pub(super) struct Wifi {
    monitor: WirelessMonitor,
    stations: BTreeMap<LinkId, Station>,
    wanted: bool,
    next: Option<Time>,
}

/// An interface that is a station of somebody's network, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Station {
    at: Option<AccessPoint>,
    doubt: Option<Doubt>,
}

/// Why it is doubted that anything passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// Frames are lost. Where it is at an access point still when it is looked next, that is over.
    Losing,
    /// It was sent away. That is over when it is at an access point.
    Away,
}

impl Wifi {
    pub(super) fn start() -> Option<Box<dyn Detector>> {
        match WirelessMonitor::open() {
            Ok(monitor) => {
                let monitor = monitor?;
                Some(Box::new(Self { monitor, stations: BTreeMap::new(), wanted: false, next: None }))
            }
            Err(error) => {
                tracing::warn!("nothing is known of Wi-Fi: {error}");
                None
            }
        }
    }

    /// Looks at which access points interfaces are.
    fn look(&mut self, now: Time) {
        for (link, station) in &mut self.stations {
            station.at = self.monitor.access_point(link.0).unwrap_or_else(|error| {
                tracing::debug!("the access point of interface {} is not known: {error}", link.0);
                None
            });
        }
        self.plan(now);
    }

    fn plan(&mut self, now: Time) {
        let is_doubted = self.stations.values().any(|station| station.doubt.is_some());
        let waits = (self.wanted && !self.stations.is_empty()) || is_doubted;
        self.next = waits.then_some(now + PERIOD);
    }
}

impl Station {
    fn take_in(&mut self, what: Happened) {
        self.doubt = match what {
            Happened::Connected => None,
            Happened::Disconnected => Some(Doubt::Away),
            Happened::Losing => self.doubt.or(Some(Doubt::Losing)),
            Happened::Signal => self.doubt,
        };
    }

    /// Time has passed, and it is known where it is.
    fn settle(&mut self) {
        self.doubt = self.doubt.filter(|_| self.at.is_none());
    }

    fn facts(&self) -> LinkFacts {
        let (signal, rate) = self.at.map_or((None, None), |at| (at.signal, at.rate));
        LinkFacts { signal, rate, doubtful: self.doubt.is_some(), ..LinkFacts::default() }
    }
}

impl Detector for Wifi {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.as_fd()]
    }

    fn due(&self) -> Option<Time> {
        self.next
    }

    fn handle(&mut self, now: Time) {
        let drained = self.monitor.drain().unwrap_or_else(|error| {
            tracing::warn!("what happens to Wi-Fi is not told: {error}");
            Drained::default()
        });
        let is_due = self.next.is_some_and(|next| next <= now);
        if drained.events.is_empty() && !drained.lost && !is_due {
            return;
        }
        for WirelessEvent { interface, what } in drained.events {
            tracing::debug!(interface, ?what, "Wi-Fi");
            if let Some(station) = self.stations.get_mut(&LinkId(interface)) {
                station.take_in(what);
            }
        }
        self.look(now);
        if is_due || drained.lost {
            self.stations.values_mut().for_each(Station::settle);
            self.plan(now);
        }
    }

    fn handle_network(&mut self, now: Time, network: &NetworkState) {
        let stations = self.monitor.stations().unwrap_or_else(|error| {
            tracing::debug!("interfaces of Wi-Fi are not known: {error}");
            Vec::new()
        });
        let there = stations.into_iter().filter(|index| network.link(*index).is_some_and(|link| link.up));
        let there: BTreeMap<LinkId, Station> = there
            .map(|index| (LinkId(index), self.stations.get(&LinkId(index)).copied().unwrap_or_default()))
            .collect();
        if there.keys().ne(self.stations.keys()) {
            self.stations = there;
            self.look(now);
        }
    }

    fn measure(&mut self, now: Time, wanted: bool) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.look(now);
        }
    }

    fn facts(&self) -> BTreeMap<LinkId, LinkFacts> {
        self.stations.iter().map(|(link, station)| (*link, station.facts())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Option<AccessPoint> = Some(AccessPoint { address: [2; 6], signal: Some(-60), rate: Some(54) });

    fn doubtful_after(what: &[Happened], at: Option<AccessPoint>) -> [bool; 2] {
        let mut station = Station { at, doubt: None };
        what.iter().for_each(|what| station.take_in(*what));
        let at_once = station.facts().doubtful;
        station.settle();
        [at_once, station.facts().doubtful]
    }

    #[test]
    fn what_is_lost_is_doubted_for_a_while_and_who_was_sent_away_until_it_is_somewhere() {
        assert_eq!(doubtful_after(&[Happened::Signal], AT), [false, false]);
        assert_eq!(doubtful_after(&[Happened::Losing, Happened::Signal], AT), [true, false]);
        assert_eq!(doubtful_after(&[Happened::Disconnected, Happened::Losing], None), [true, true]);
        // It roams: away from one, and at another.
        assert_eq!(doubtful_after(&[Happened::Disconnected, Happened::Connected], AT), [false, false]);
        // The word of it was lost.
        assert_eq!(doubtful_after(&[Happened::Disconnected], AT), [true, false]);
    }

    #[test]
    fn figures_are_those_of_the_access_point() {
        let facts = Station { at: AT, doubt: None }.facts();
        assert_eq!(facts, LinkFacts { signal: Some(-60), rate: Some(54), ..LinkFacts::default() });
    }
}
