//! What roles write of hosts: which sessions are kept, whom this host is on the look-out for, and which keys are
//! believed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use whimbrel_handshake::PublicKey;

/// What a session is for, as whoever stands on it says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Flows are ones with the peer.
    pub flows: bool,
    /// Others are being introduced to it.
    pub introductions: bool,
    /// The peer is away, or is not heard.
    pub away: bool,
    /// It is being told where this host is.
    pub updating: bool,
}

/// Why a role wants something of a host, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pin {
    /// It is registered here: of hosts without flows it is forgotten last.
    Registered,
    /// It is to be told something once, so it is looked for.
    Sought,
    /// A session is kept with it, flows or not, as long as it answers.
    Kept,
    /// A socket moves by its help: it is looked for without end.
    Moving,
    /// This host lends it something: likewise.
    Lent,
    /// It lends this host something: likewise.
    Rented,
}

/// Why a host is looked for without end, whether or not there are flows with it. In this order where there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A socket moves by its help.
    Moving,
    /// This host lends it something.
    Lent,
    /// It lends this host something.
    Rented,
}

/// Why an address is asked though no flow waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Want {
    /// It is that of a rendezvous, which is asked again sooner than others.
    Rendezvous,
    /// Connections of hosts behind this one lead there.
    Opened,
}

/// What is written from above. Each kind of pin and of want is one role's.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    hosts: BTreeMap<Pin, BTreeSet<PublicKey>>,
    addresses: BTreeMap<Want, BTreeSet<IpAddr>>,
    members: BTreeSet<PublicKey>,
}

impl Pins {
    /// These are the hosts that a role pins so.
    pub(crate) fn set(&mut self, pin: Pin, hosts: BTreeSet<PublicKey>) {
        self.hosts.insert(pin, hosts);
    }

    /// A role pins one more host so, or one less.
    pub(crate) fn pin(&mut self, pin: Pin, host: PublicKey, pinned: bool) {
        let hosts = self.hosts.entry(pin).or_default();
        if pinned {
            hosts.insert(host);
        } else {
            hosts.remove(&host);
        }
    }

    /// Whether a host is pinned so.
    pub(crate) fn has(&self, pin: Pin, host: &PublicKey) -> bool {
        self.hosts.get(&pin).is_some_and(|hosts| hosts.contains(host))
    }

    /// Whether a session is kept with a host, flows or not.
    pub(crate) fn keeps(&self, host: &PublicKey) -> bool {
        self.has(Pin::Kept, host) || self.needs(host)
    }

    /// Whether a host is looked for without end.
    pub(crate) fn needs(&self, host: &PublicKey) -> bool {
        self.need(host).is_some()
    }

    /// Why a host is looked for without end, if it is.
    pub(crate) fn need(&self, host: &PublicKey) -> Option<Need> {
        let needs = [(Pin::Moving, Need::Moving), (Pin::Lent, Need::Lent), (Pin::Rented, Need::Rented)];
        needs.into_iter().find(|(pin, _)| self.has(*pin, host)).map(|(_, need)| need)
    }

    /// These are the addresses that a role wants asked.
    pub(crate) fn want(&mut self, want: Want, addresses: BTreeSet<IpAddr>) {
        self.addresses.insert(want, addresses);
    }

    /// Whether an address is wanted so.
    pub(crate) fn wants(&self, want: Want, address: IpAddr) -> bool {
        self.addresses.get(&want).is_some_and(|addresses| addresses.contains(&address))
    }

    /// Whether an address is asked though no flow waits for it.
    pub(crate) fn is_wanted(&self, address: IpAddr) -> bool {
        self.addresses.values().any(|addresses| addresses.contains(&address))
    }

    /// Keys of these hosts count wherever only named ones do.
    pub(crate) fn set_members(&mut self, members: BTreeSet<PublicKey>) {
        self.members = members;
    }

    /// The hosts of the community beside this one, in order.
    pub(crate) fn members(&self) -> impl Iterator<Item = &PublicKey> {
        self.members.iter()
    }

    pub(crate) fn is_member(&self, key: &PublicKey) -> bool {
        self.members.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_wait_is_why_a_host_is_needed() {
        let [host, other] = [1, 2].map(|seed| whimbrel_handshake::StaticKey::from_bytes([seed; 32]).public());
        let mut pins = Pins::default();
        for pin in [Pin::Registered, Pin::Sought, Pin::Kept] {
            pins.pin(pin, host, true);
        }
        assert_eq!((pins.need(&host), pins.needs(&host), pins.keeps(&host)), (None, false, true));
        for (pin, need) in [(Pin::Rented, Need::Rented), (Pin::Lent, Need::Lent), (Pin::Moving, Need::Moving)] {
            pins.pin(pin, host, true);
            assert_eq!((pins.need(&host), pins.need(&other)), (Some(need), None));
        }
    }
}
