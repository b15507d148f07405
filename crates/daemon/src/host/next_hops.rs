//! Next hops whose link-layer address is not known on the network that this host has come to.
//!
//! Those that have not answered the kernel's one question are asked again by us: the kernel asks again after a second,
//! and all that is to go there waits as long ([`whimbrel_kernel::neighbour::solicitor`]). Those that are known from the
//! network before are forgotten, so that the kernel asks at all: another host has their address here (every second home
//! router is 192.168.1.1), and what is sent to the one before is lost until the kernel doubts it, after half a minute.
//!
//! The same holds the other way round: a next hop may know another host by an address that this host has got. It learns
//! better from any question that is asked in the name of that address (RFC 826, RFC 4861 §7.2.3), and the kernel's own
//! may be in the name of another one. So it is asked from a new address in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_kernel::neighbour::solicitor::{NextHop, Solicitor};
use whimbrel_kernel::network::{DefaultRoute, NetworkState, UsableAddress};
use whimbrel_kernel::route::{Neighbour, NeighbourState, RouteSocket};
use whimbrel_protocol::Time;

use super::addresses::MARK;

/// When it is asked again first, after the kernel has asked, and when last: the kernel's own next question follows.
const FIRST: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_millis(640);
/// How long after this host has come to a network its next hops are looked at: a route may come after its address.
const NEWCOMER: Duration = Duration::from_secs(30);
/// Ways that are looked at together. Of a host with more peers some have asked for the same next hops.
const WAYS_MOST: usize = 64;

/// What is asked for, and when next.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    /// Opened when there is a way to look at first; none: it cannot be.
    solicitor: Option<Solicitor>,
    /// Ways that something was sent on just now, from an address of this host's to another.
    ways: BTreeSet<(IpAddr, IpAddr)>,
    /// Those that are asked, each with when its way was taken.
    asked: BTreeMap<NextHop, Time>,
    due: Option<Time>,
    /// Addresses that this host has got of late, by interface and when they were made, with when they were seen first.
    newcomers: BTreeMap<(u32, IpAddr, u32), Time>,
    /// Interfaces, by index and family (IPv4: true), that have only such, with when the first of these was seen.
    stays: BTreeMap<(u32, bool), Time>,
    /// Next hops there whose entries were looked at, each with the stay that this was in: what is entered later is of
    /// that.
    looked_at: BTreeSet<(u32, IpAddr, Time)>,
}

impl NextHops {
    /// Takes in another state of the network, and where peers are: next hops that were known on the network before are
    /// forgotten.
    pub(crate) fn enter(
        &mut self,
        now: Time,
        [before, network]: [&NetworkState; 2],
        peers: &BTreeSet<IpAddr>,
        table: &mut RouteSocket,
    ) {
        self.note_stays(now, before, network);
        let fresh = self.not_looked_at(network, peers);
        if fresh.is_empty() {
            return;
        }
        let known = table.neighbours().unwrap_or_else(|error| {
            tracing::debug!(%error, "neighbours of the network before are left to the kernel");
            Vec::new()
        });
        for one in known {
            let mut looked_at = fresh.iter();
            let stay = looked_at.find(|(interface, address, _)| (*interface, *address) == (one.interface, one.address));
            if !stay.is_some_and(|(.., since)| is_of_before(&one, now.since(*since))) {
                continue;
            }
            let forgotten = table.delete_neighbour(one.interface, one.address);
            tracing::debug!(neighbour = ?one, ?forgotten, "known from the network before");
        }
    }

    /// Notes which addresses are new, and since when interfaces are on other networks: as long as the oldest address
    /// that they have.
    fn note_stays(&mut self, now: Time, before: &NetworkState, network: &NetworkState) {
        let name = |usable: &UsableAddress| (usable.interface, usable.address, usable.made);
        let there: BTreeSet<_> = before.addresses.iter().map(name).collect();
        let known = std::mem::take(&mut self.newcomers);
        let mut stays: BTreeMap<(u32, bool), Option<Time>> = BTreeMap::new();
        for named in network.addresses.iter().map(name) {
            let since = known.get(&named).copied().or_else(|| (!there.contains(&named)).then_some(now));
            let since = since.filter(|since| now.since(*since) < NEWCOMER);
            self.newcomers.extend(since.map(|since| (named, since)));
            let stay = stays.entry((named.0, named.1.is_ipv4())).or_insert(since);
            *stay = (*stay).zip(since).map(|(one, other)| one.min(other));
        }
        self.stays = stays.into_iter().filter_map(|(on, since)| Some((on, since?))).collect();
    }

    /// Suspects whose entries were not looked at in this stay yet, with its beginning. They count as looked at now.
    fn not_looked_at(&mut self, network: &NetworkState, peers: &BTreeSet<IpAddr>) -> Vec<(u32, IpAddr, Time)> {
        let in_stay = |(interface, address): (u32, IpAddr)| {
            Some((interface, address, *self.stays.get(&(interface, address.is_ipv4()))?))
        };
        let suspects: BTreeSet<_> = self.suspects(network, peers).into_iter().filter_map(in_stay).collect();
        let before = std::mem::replace(&mut self.looked_at, suspects);
        self.looked_at.difference(&before).copied().collect()
    }

    /// Gateways, and peers that are on the link, of interfaces that have come to another network.
    fn suspects(&self, network: &NetworkState, peers: &BTreeSet<IpAddr>) -> BTreeSet<(u32, IpAddr)> {
        let gateways = network.default_routes.iter().filter_map(|route| Some((route.interface, route.gateway?)));
        let gateways =
            gateways.filter(|(interface, gateway)| self.stays.contains_key(&(*interface, gateway.is_ipv4())));
        let on_link = self.stays.keys().flat_map(|(interface, ipv4)| {
            let there = move |peer: &&IpAddr| peer.is_ipv4() == *ipv4 && network.is_on_link(*interface, **peer);
            peers.iter().filter(there).map(|peer| (*interface, *peer))
        });
        gateways.chain(on_link).collect()
    }

    /// Whether a neighbour is a gateway of a network that this host has come to, in a family that none of its peers is
    /// reached in by there. Nobody asks it again here, and what has gone to it before the network was known may be of
    /// flows that go another way by now.
    pub(crate) fn is_beside(
        &self,
        network: &NetworkState,
        neighbour: (u32, IpAddr),
        ways: &BTreeSet<(u32, bool)>,
    ) -> bool {
        let (interface, address) = neighbour;
        let of = (interface, address.is_ipv4());
        let is_gateway = |route: &DefaultRoute| (route.interface, route.gateway) == (interface, Some(address));
        self.stays.contains_key(&of) && !ways.contains(&of) && network.default_routes.iter().any(is_gateway)
    }

    /// Something is sent to `destination` from now on, which was not before, or not this way.
    pub(crate) fn on_way(&mut self, now: Time, source: Option<IpAddr>, destination: IpAddr) {
        let Some(source) = source.filter(|source| source.is_ipv4() == destination.is_ipv4()) else { return };
        if self.ways.len() < WAYS_MOST && self.ways.insert((source, destination)) {
            self.due_at(now + FIRST);
        }
    }

    fn due_at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When [`NextHops::handle_timeout`] is to be called.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.due
    }

    /// Asks those that have not answered.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        if self.solicitor.is_none() {
            match Solicitor::open(MARK) {
                Ok(solicitor) => self.solicitor = Some(solicitor),
                Err(error) => {
                    tracing::debug!(%error, "next hops that do not answer are left to the kernel");
                    (self.ways, self.asked) = Default::default();
                    return;
                }
            }
        }
        let Some(solicitor) = &mut self.solicitor else { return };
        for (source, destination) in std::mem::take(&mut self.ways) {
            match solicitor.next_hop(source, destination) {
                Ok(Some(hop)) => _ = self.asked.entry(hop).or_insert(now),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, %destination, "its next hop is not known"),
            }
        }
        if self.asked.is_empty() {
            return;
        }
        let wanted: Vec<NextHop> = self.asked.keys().copied().collect();
        let unanswered = solicitor.unanswered(&wanted).unwrap_or_else(|error| {
            tracing::debug!(%error, "whether next hops have answered is not known");
            Vec::new()
        });
        let newcomers = &self.newcomers;
        let is_new = |hop: &NextHop| {
            let mut of_late = newcomers.iter().filter(|(_, since)| now.since(**since) < NEWCOMER);
            of_late.any(|((interface, address, _), _)| (*interface, *address) == (hop.interface, hop.source))
        };
        let mut next = None;
        self.asked.retain(|hop, since| {
            if !unanswered.contains(hop) && !is_new(hop) {
                return false;
            }
            let again = pause(now.since(*since));
            let asked = solicitor.ask(*hop).inspect_err(|error| tracing::debug!(%error, ?hop, "it cannot be asked"));
            next = next.into_iter().chain(again).min();
            asked.is_ok() && again.is_some()
        });
        next.into_iter().for_each(|pause| self.due_at(now + pause));
    }
}

/// Whether a neighbour was not heard of since this host has come here, so long ago. What was entered by hand stays; who
/// has not answered is asked again in any case, and packets wait for the answer.
fn is_of_before(neighbour: &Neighbour, since: Duration) -> bool {
    use NeighbourState::{Probed, Reachable, Stale};
    matches!(neighbour.state, Probed | Reachable | Stale) && neighbour.age > since
}

/// How long after a question the next one follows, where its way was taken so long before: 20, 40, 80 ms and so on
/// after the kernel's.
fn pause(since: Duration) -> Option<Duration> {
    let waited = since + FIRST;
    (waited < LAST).then_some(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_follow_one_another_ever_later_until_the_kernel_asks() {
        let (mut since, mut at) = (Duration::ZERO, vec![FIRST]);
        while let Some(pause) = pause(since) {
            since += pause;
            at.push(since + FIRST);
        }
        let millis: Vec<u128> = at.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [20, 40, 80, 160, 320, 640]);
    }

    fn on(addresses: &[(u32, &str, u32)], gateways: &[(u32, &str)]) -> NetworkState {
        let usable = |(interface, address, made): &(u32, &str, u32)| {
            let (interface, made, address) = (*interface, *made, address.parse::<IpAddr>().unwrap());
            UsableAddress { interface, address, prefix_length: 24, made, deprecated: false }
        };
        let route = |(interface, gateway): &(u32, &str)| {
            let gateway: IpAddr = gateway.parse().unwrap();
            let (ipv4, interface, gateway) = (gateway.is_ipv4(), *interface, Some(gateway));
            DefaultRoute { ipv4, interface, gateway, metric: 100, table: 254 }
        };
        let (addresses, default_routes) =
            (addresses.iter().map(usable).collect(), gateways.iter().map(route).collect());
        NetworkState { links: Vec::new(), addresses, default_routes }
    }

    #[test]
    fn an_interface_is_elsewhere_once_it_has_none_of_its_addresses_from_before() {
        let start = Time::default() + Duration::from_secs(9);
        let after = |seconds| start + Duration::from_secs(seconds);
        let (first, gateway) = ((2, "10.0.0.5", 1), (2, "10.0.0.1"));
        let (mut hops, none) = (NextHops::default(), BTreeSet::new());
        let mut go = |now, before: &NetworkState, network: &NetworkState| {
            hops.note_stays(now, before, network);
            hops.suspects(network, &none)
        };
        let home = on(&[first], &[gateway]);
        assert!(go(start, &home, &home).is_empty(), "it was here when the daemon began");
        // The new address comes before the old one goes.
        let both = on(&[first, (2, "10.0.0.9", 50)], &[gateway]);
        assert!(go(after(1), &home, &both).is_empty());
        let away = on(&[(2, "10.0.0.9", 50)], &[gateway]);
        assert_eq!(go(after(2), &both, &away), BTreeSet::from([(2, IpAddr::from([10, 0, 0, 1]))]));
        assert_eq!(hops.stays.get(&(2, true)), Some(&after(1)), "as long as its oldest address");
        // Made anew, with its route a moment later, on one interface; the other stays.
        let mut go = |now, before: &NetworkState, network: &NetworkState| {
            hops.note_stays(now, before, network);
            hops.suspects(network, &none)
        };
        let anew = on(&[(2, "10.0.0.9", 70), (3, "10.9.0.9", 50)], &[(3, "10.9.0.1")]);
        let two = on(&[(2, "10.0.0.9", 50), (3, "10.9.0.9", 50)], &[gateway, (3, "10.9.0.1")]);
        go(after(60), &two, &two);
        assert!(go(after(61), &two, &anew).is_empty(), "it has no route yet");
        let routed = on(&[(2, "10.0.0.9", 70), (3, "10.9.0.9", 50)], &[gateway, (3, "10.9.0.1")]);
        assert_eq!(go(after(62), &anew, &routed), BTreeSet::from([(2, IpAddr::from([10, 0, 0, 1]))]));
        assert!(go(after(95), &routed, &routed).is_empty(), "long ago");
    }

    #[test]
    fn gateways_of_a_new_network_in_a_family_that_no_peer_is_reached_in_are_beside() {
        let mut hops = NextHops::default();
        let home = on(&[(3, "10.9.0.9", 50)], &[(3, "10.9.0.1")]);
        let addresses = [(3, "10.9.0.9", 50), (2, "10.0.0.5", 70), (2, "2001:db8::5", 70)];
        let away = on(&addresses, &[(3, "10.9.0.1"), (2, "10.0.0.1"), (2, "fe80::1")]);
        hops.note_stays(Time::default() + Duration::from_secs(9), &home, &away);
        let is_beside = |interface, address: &str, ways: &[(u32, bool)]| {
            let ways = ways.iter().copied().collect();
            hops.is_beside(&away, (interface, address.parse().unwrap()), &ways)
        };
        assert!(is_beside(2, "fe80::1", &[(2, true)]) && is_beside(2, "10.0.0.1", &[(2, false), (3, true)]));
        assert!(!is_beside(2, "fe80::1", &[(2, false)]), "it is asked");
        assert!(!is_beside(2, "2001:db8::9", &[(2, true)]), "no gateway");
        assert!(!is_beside(3, "10.9.0.1", &[(2, true)]), "of the network before");
    }

    #[test]
    fn an_entry_is_looked_at_once_in_a_stay() {
        let after = |seconds| Time::default() + Duration::from_secs(seconds);
        let (mut hops, none) = (NextHops::default(), BTreeSet::new());
        let mut go = |now, before: &NetworkState, network: &NetworkState| {
            hops.note_stays(now, before, network);
            hops.not_looked_at(network, &none).len()
        };
        let gateway = (2, "10.0.0.1");
        let [first, second] = [(2, "10.0.0.5", 1), (2, "10.0.0.9", 50)].map(|address| on(&[address], &[gateway]));
        assert_eq!(go(after(9), &NetworkState::default(), &first), 1);
        // Something changes elsewhere.
        assert_eq!(go(after(10), &first, &first), 0, "it has been entered since, and is of this network");
        assert_eq!(go(after(11), &first, &second), 1, "another network, with a gateway of the same address");
        assert_eq!(go(after(12), &second, &second), 0);
    }

    #[test]
    fn peers_on_the_link_and_gateways_of_the_family_are_looked_at() {
        let mut hops = NextHops::default();
        let network = on(&[(2, "10.0.0.5", 1), (2, "2001:db8::5", 1)], &[(2, "10.0.0.1"), (3, "10.9.0.1")]);
        hops.note_stays(Time::default() + Duration::from_secs(9), &NetworkState::default(), &network);
        let peers = ["10.0.0.7", "10.9.0.7", "2001:db8::7", "203.0.113.7"].map(|peer| peer.parse().unwrap());
        let found: Vec<String> =
            hops.suspects(&network, &peers.into()).iter().map(|(on, who)| format!("{on} {who}")).collect();
        assert_eq!(found, ["2 10.0.0.1", "2 10.0.0.7", "2 2001:db8::7"]);
    }

    #[test]
    fn only_what_is_older_than_the_stay_is_of_before() {
        let known = |state, age| Neighbour {
            interface: 2,
            address: IpAddr::from([10, 0, 0, 1]),
            link_address: vec![2, 0, 0, 0, 0, 1],
            state,
            age: Duration::from_millis(age),
        };
        let since = Duration::from_millis(50);
        for (state, forgotten) in [
            (NeighbourState::Reachable, true),
            (NeighbourState::Stale, true),
            (NeighbourState::Probed, true),
            (NeighbourState::Incomplete, false),
            (NeighbourState::Failed, false),
            (NeighbourState::Permanent, false),
        ] {
            assert_eq!(is_of_before(&known(state, 60), since), forgotten, "{state:?}");
            assert!(!is_of_before(&known(state, 50), since));
        }
    }

    #[test]
    fn ways_are_looked_at_together_and_are_bounded() {
        let (mut hops, now) = (NextHops::default(), Time::default() + Duration::from_secs(9));
        let here = IpAddr::from([10, 0, 0, 1]);
        hops.on_way(now, None, IpAddr::from([10, 0, 0, 2]));
        hops.on_way(now, Some(here), "2001:db8::1".parse().unwrap());
        assert_eq!(hops.timeout(), None, "no way at all");
        for last in 0..=255 {
            hops.on_way(now + Duration::from_millis(last.into()), Some(here), IpAddr::from([10, 0, 1, last]));
        }
        assert_eq!((hops.ways.len(), hops.timeout()), (WAYS_MOST, Some(now + FIRST)));
    }
}
