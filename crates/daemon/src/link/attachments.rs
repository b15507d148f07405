//! This host's addresses, each with a number that tells one stay on a network from the next.
//!
//! Another network may hand out the very same address (every second home router gives out 192.168.1.2), so an address
//! alone does not say where a host is. What tells stays apart: the address was away, it was made anew (the kernel
//! stamps it), it sits on another interface, or its interface was without carrier (the kernel counts that). The stamps
//! and counts are in the state itself, so that a change which came and went between two looks is seen all the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use whimbrel_kernel::network::{NetworkState, UsableAddress};
use whimbrel_protocol::{Attachment, LinkId};

/// An address, as it is found now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// The address.
    pub(crate) address: IpAddr,
    /// The interface that has it.
    pub(crate) interface: u32,
    /// How often that interface lost its carrier so far.
    pub(crate) carrier_losses: u32,
    /// When the address was made, by a clock of the kernel's own.
    pub(crate) made: u32,
}

/// What of this host's addresses can be used now: their interfaces have a carrier.
pub(crate) fn sightings(network: &NetworkState) -> Vec<Sighting> {
    let usable = |usable: &UsableAddress| {
        let link = network.link(usable.interface).filter(|link| link.carrier)?;
        Some(Sighting {
            address: usable.address,
            interface: usable.interface,
            carrier_losses: link.carrier_losses,
            made: usable.made,
        })
    };
    network.addresses.iter().filter_map(usable).collect()
}

/// The stays so far.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    stays: HashMap<IpAddr, Stay>,
    /// One number counts for all addresses, so that one which is away need not be remembered.
    newest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    generation: u64,
    sighting: Sighting,
}

impl Attachments {
    /// Takes in what is there now, and gives it with its generations; sorted. Where two interfaces have one address,
    /// the first that was seen keeps it.
    pub(crate) fn update(&mut self, sightings: &[Sighting]) -> Vec<Attachment> {
        self.stays.retain(|_, stay| sightings.contains(&stay.sighting));
        for sighting in sightings {
            if let Entry::Vacant(vacant) = self.stays.entry(sighting.address) {
                self.newest += 1;
                vacant.insert(Stay { generation: self.newest, sighting: *sighting });
            }
        }
        let mut attachments: Vec<_> = self
            .stays
            .iter()
            .map(|(address, stay)| {
                let link = LinkId(stay.sighting.interface);
                Attachment { address: *address, link, generation: stay.generation }
            })
            .collect();
        attachments.sort_unstable_by_key(|attachment| attachment.address);
        attachments
    }

    /// How many stays there were so far.
    #[must_use]
    pub(crate) fn newest(&self) -> u32 {
        u32::try_from(self.newest).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(address: &str, interface: u32) -> Sighting {
        Sighting { address: address.parse().expect("address"), interface, carrier_losses: 0, made: 100 }
    }

    fn generation(attachments: &[Attachment], address: &str) -> u64 {
        let address: IpAddr = address.parse().expect("address");
        attachments.iter().find(|attachment| attachment.address == address).expect("present").generation
    }

    #[test]
    fn what_stays_keeps_its_generation() {
        let mut attachments = Attachments::default();
        let before = attachments.update(&[sighting("192.0.2.1", 2)]);
        let after = attachments.update(&[sighting("192.0.2.1", 2), sighting("2001:db8::1", 2)]);
        assert_eq!(generation(&before, "192.0.2.1"), generation(&after, "192.0.2.1"));
        assert_eq!(after.len(), 2);
    }

    #[test]
    fn the_same_address_after_an_absence_is_another_stay() {
        let mut attachments = Attachments::default();
        let before = attachments.update(&[sighting("192.0.2.1", 2)]);
        assert!(attachments.update(&[]).is_empty());
        let after = attachments.update(&[sighting("192.0.2.1", 2)]);
        assert!(generation(&after, "192.0.2.1") > generation(&before, "192.0.2.1"));
    }

    #[test]
    fn an_absence_between_two_looks_shows_in_stamps_and_counts() {
        let mut attachments = Attachments::default();
        let first = generation(&attachments.update(&[sighting("192.0.2.1", 2)]), "192.0.2.1");
        let again = Sighting { made: 101, ..sighting("192.0.2.1", 2) };
        let second = generation(&attachments.update(&[again]), "192.0.2.1");
        let plugged = Sighting { carrier_losses: 1, ..again };
        let third = generation(&attachments.update(&[plugged]), "192.0.2.1");
        let elsewhere = Sighting { interface: 3, ..plugged };
        let fourth = generation(&attachments.update(&[elsewhere]), "192.0.2.1");
        assert!(first < second && second < third && third < fourth);
    }

    #[test]
    fn one_address_on_two_interfaces_belongs_to_the_first() {
        let mut attachments = Attachments::default();
        let both = [sighting("192.0.2.1", 2), sighting("192.0.2.1", 3)];
        let first = generation(&attachments.update(&both), "192.0.2.1");
        assert_eq!(generation(&attachments.update(&both), "192.0.2.1"), first);
        assert!(generation(&attachments.update(&both[1..]), "192.0.2.1") > first);
    }
}
