//! Ethernet, and whatever else has a driver that says at which rate it carries packets.

use std::collections::BTreeMap;

use whimbrel_kernel::ethernet::LinkRates;
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::route::Link;
use whimbrel_protocol::{LinkFacts, LinkId, Time};

use super::detector::Detector;

/// Asks for rates where something of an interface has changed: a rate is negotiated when its carrier comes.
#[derive(Debug)]
pub(super) struct Ethernet {
    rates: LinkRates,
    /// Each interface as it was when it was asked, and its rate.
    asked: BTreeMap<LinkId, (Link, Option<u32>)>,
}

impl Ethernet {
    pub(super) fn start() -> Option<Box<dyn Detector>> {
        let rates = match LinkRates::open() {
            Ok(rates) => rates?,
            Err(error) => {
                tracing::warn!("drivers cannot be asked for the rates of links: {error}");
                return None;
            }
        };
        Some(Box::new(Self { rates, asked: BTreeMap::new() }))
    }
}

impl Detector for Ethernet {
    fn handle_network(&mut self, _: Time, network: &NetworkState) {
        let up = network.links.iter().filter(|link| link.carrier && !link.loopback);
        let mut before = std::mem::take(&mut self.asked);
        for link in up {
            let id = LinkId(link.index);
            let known = before.remove(&id).filter(|(then, _)| then == link);
            let rate = known.map_or_else(|| self.rates.of(link.index), |(_, rate)| Ok(rate));
            let rate = rate.unwrap_or_else(|error| {
                tracing::debug!("the rate of {} is not known: {error}", link.name);
                None
            });
            self.asked.insert(id, (link.clone(), rate));
        }
    }

    fn facts(&self) -> BTreeMap<LinkId, LinkFacts> {
        let of = |(link, (_, rate)): (&LinkId, &(Link, Option<u32>))| {
            Some((*link, LinkFacts { rate: Some((*rate)?), ..LinkFacts::default() }))
        };
        self.asked.iter().filter_map(of).collect()
    }
}
