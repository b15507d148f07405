//! What masked updates may cost: how many are answered (P-244), and where they are sent (P-240).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::bucket::Bucket;
use crate::base::id::LinkId;

/// How long it is tried in a network whether it lets foreign sources out, and how long the result counts (P-240).
const TRIAL: Duration = Duration::from_secs(10);
const TRIAL_MOST: u32 = 32;
/// How often one goes out after that: whoever was to answer may have been cut off meanwhile.
pub(super) const AGAIN: Duration = Duration::from_secs(120);
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// Networks of which that is remembered.
const NETWORKS_MOST: usize = 32;

/// So many masked updates of a peer's are answered at once, and then one each so long (P-244).
const ANSWERED_AT_ONCE: f64 = 4.0;
const ANSWERED_EACH: Duration = Duration::from_secs(10);
/// The same for those of all peers together.
const ALL_ANSWERED_AT_ONCE: f64 = 32.0;
const ALL_ANSWERED_EACH: Duration = Duration::from_millis(250);

/// Bounds what masked updates have this host send (P-244).
#[derive(Debug)]
pub(crate) struct Masks(Bucket);

impl Masks {
    /// Those of all peers.
    pub(super) fn of_all() -> Self {
        Self(Bucket::of(ALL_ANSWERED_AT_ONCE, ALL_ANSWERED_EACH))
    }

    /// Whether another one is answered.
    pub(super) fn take(&mut self, now: Time) -> bool {
        self.0.take(now)
    }
}

impl Default for Masks {
    /// Those of one.
    fn default() -> Self {
        Self(Bucket::of(ANSWERED_AT_ONCE, ANSWERED_EACH))
    }
}

/// Which networks of this host let out what bears another source than they gave.
#[derive(Debug, Default)]
pub(super) struct MaskedNetworks(VecDeque<Tried>);

#[derive(Debug)]
struct Tried {
    network: (LinkId, [u8; 8]),
    since: Time,
    passes: bool,
    /// When one was sent there last.
    last: Time,
    /// So many were sent there before any was answered.
    sent: u32,
}

impl MaskedNetworks {
    /// Whether it is to be tried there. All peers that are told of one move share the trial.
    pub(super) fn begin(&mut self, now: Time, at: Attachment) -> bool {
        let network = network(at);
        self.0.retain(|tried| now.since(tried.since) < REMEMBERED);
        if let Some(tried) = self.0.iter_mut().find(|tried| tried.network == network) {
            let on_trial = now.since(tried.since) < TRIAL && tried.sent < TRIAL_MOST;
            let may = tried.passes || on_trial || now.since(tried.last) >= AGAIN;
            if may {
                (tried.last, tried.sent) = (now, tried.sent + 1);
            }
            return may;
        }
        self.0.push_front(Tried { network, since: now, passes: false, last: now, sent: 1 });
        self.0.truncate(NETWORKS_MOST);
        true
    }

    /// A peer has answered the update itself, and none of those beside it, for which there was no need: that says
    /// nothing of the network.
    pub(super) fn forget(&mut self, at: Attachment) {
        self.0.retain(|tried| tried.passes || tried.network != network(at));
    }

    /// One was answered that was sent there.
    pub(super) fn note_passing(&mut self, now: Time, at: Attachment) {
        if let Some(tried) = self.0.iter_mut().find(|tried| tried.network == network(at)) {
            (tried.since, tried.passes) = (now, true);
        }
    }
}

/// A link, and the addresses that are one network there, whichever of them a host is given: 2^64 or, of IPv4, 256.
fn network(at: Attachment) -> (LinkId, [u8; 8]) {
    let prefix = match at.address {
        IpAddr::V4(address) => {
            let [first, second, third, _] = address.octets();
            [4, first, second, third, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets()[..8].try_into().unwrap_or_default(),
    };
    (at.link, prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_was_no_need_it_is_tried_again() {
        let (mut networks, start) = (MaskedNetworks::default(), Time::from_micros(5_000_000));
        assert!(networks.begin(start, at("192.0.2.7")));
        networks.forget(at("192.0.2.7"));
        assert!(networks.begin(start + TRIAL * 2, at("192.0.2.7")));
        assert!(!networks.begin(start + TRIAL * 4, at("192.0.2.7")));
    }

    #[test]
    fn very_many_peers_do_not_try_one_network_together() {
        let (mut networks, start) = (MaskedNetworks::default(), Time::from_micros(5_000_000));
        let mut begun = || (0..100).filter(|_| networks.begin(start, at("192.0.2.7"))).count();
        assert_eq!(begun(), TRIAL_MOST as usize);
        networks.note_passing(start, at("192.0.2.7"));
        assert!(networks.begin(start, at("192.0.2.7")));
    }

    fn at(address: &str) -> Attachment {
        Attachment { address: address.parse().expect("an address"), link: LinkId(1), generation: 0 }
    }

    #[test]
    fn a_network_is_tried_once() {
        // P-240
        let (mut networks, start) = (MaskedNetworks::default(), Time::from_micros(5_000_000));
        let later = start + TRIAL;
        assert!(networks.begin(start, at("192.0.2.7")) && networks.begin(start + TRIAL / 2, at("192.0.2.7")));
        assert!(!networks.begin(later, at("192.0.2.7")) && !networks.begin(later, at("192.0.2.8")));
        assert!(networks.begin(later, at("198.51.100.7")));
        let mut again = (1..=600).filter(|n| networks.begin(later + Duration::from_secs(*n), at("192.0.2.7")));
        assert_eq!((again.next(), again.count()), (Some(115), 4), "one in two minutes");
        assert!(networks.begin(start + REMEMBERED, at("192.0.2.7")), "networks change");
        networks.note_passing(start + REMEMBERED, at("192.0.2.7"));
        assert!(networks.begin(start + REMEMBERED + TRIAL * 2, at("192.0.2.7")));
        networks.forget(at("192.0.2.7"));
        assert!(networks.begin(start + REMEMBERED + TRIAL * 3, at("192.0.2.7")), "it passes");
        for n in 0..=255 {
            networks.begin(later, at(&format!("10.0.{n}.1")));
        }
        assert_eq!(networks.0.len(), NETWORKS_MOST);
    }
}
