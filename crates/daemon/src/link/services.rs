//! What other services of this host say of links on D-Bus: NetworkManager, systemd-networkd and ModemManager, where
//! they are there. None is needed (decision 0115).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use whimbrel_bus::address::Address;
use whimbrel_bus::{Connectivity, Heard, LinkReport, Watch};
use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{LinkFacts, LinkId, Time};

use super::detector::Detector;
use crate::host::source_routes;

/// Listens in a thread, and has what was heard last.
#[derive(Debug)]
pub(super) struct Services {
    watch: Watch,
    heard: Heard,
    interfaces: Interfaces,
}

/// The interfaces that there are.
#[derive(Debug, Default)]
struct Interfaces {
    /// By their names.
    links: BTreeMap<String, LinkId>,
    /// Those that lead everywhere.
    outward: BTreeSet<LinkId>,
}

impl Services {
    pub(super) fn start() -> Option<Box<dyn Detector>> {
        match Address::system().and_then(Watch::start) {
            Ok(watch) => Some(Box::new(Self { watch, heard: Heard::default(), interfaces: Interfaces::default() })),
            Err(error) => {
                tracing::warn!("services that manage the network are not listened to: {error}");
                None
            }
        }
    }
}

impl Detector for Services {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.watch.wake()]
    }

    fn handle(&mut self, _: Time) {
        if let Some(heard) = self.watch.take() {
            if heard.services != self.heard.services {
                tracing::debug!(services = ?heard.services, absent = ?heard.absent, "services on D-Bus");
            }
            self.heard = heard;
        }
    }

    fn handle_network(&mut self, _: Time, network: &NetworkState) {
        let outward = source_routes(network);
        let holders = network.addresses.iter().filter(|usable| outward.contains_key(&usable.address));
        self.interfaces = Interfaces {
            links: network.links.iter().map(|link| (link.name.clone(), LinkId(link.index))).collect(),
            outward: holders.map(|usable| LinkId(usable.interface)).collect(),
        };
    }

    fn facts(&self) -> BTreeMap<LinkId, LinkFacts> {
        self.interfaces.facts(&self.heard.links)
    }
}

impl Interfaces {
    fn facts(&self, reports: &BTreeMap<String, LinkReport>) -> BTreeMap<LinkId, LinkFacts> {
        let of = |(name, report): (&String, &LinkReport)| {
            let link = *self.links.get(name)?;
            Some((link, facts(report, self.outward.contains(&link))))
        };
        reports.iter().filter_map(of).collect()
    }
}

/// A link that is not meant to lead anywhere else is not the worse for that: NetworkManager calls it limited too.
fn facts(report: &LinkReport, leads_out: bool) -> LinkFacts {
    let LinkReport { leaving, doubtful, connectivity, metered, signal, rate } = *report;
    let captive = match connectivity {
        Connectivity::Usual => false,
        Connectivity::Portal => true,
        Connectivity::Limited => leads_out,
    };
    LinkFacts { signal, rate, doubtful, leaving, captive, metered }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_of_interfaces_that_are_there() {
        let [wifi, lan] = [LinkId(3), LinkId(4)];
        let links = [("wlan0".to_owned(), wifi), ("eth0".to_owned(), lan)].into();
        let interfaces = Interfaces { links, outward: [wifi].into() };
        let limited = LinkReport { connectivity: Connectivity::Limited, ..LinkReport::default() };
        let gone = LinkReport { leaving: true, ..LinkReport::default() };
        let reports = ["wlan0", "eth0", "wwan0"].map(str::to_owned).into_iter().zip([limited, limited, gone]).collect();
        let captive = LinkFacts { captive: true, ..LinkFacts::default() };
        assert_eq!(interfaces.facts(&reports), [(wifi, captive), (lan, LinkFacts::default())].into());
        assert!(facts(&LinkReport { connectivity: Connectivity::Portal, ..gone }, false).captive);
    }
}
