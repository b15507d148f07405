//! What this host is configured to lend, and what of it cannot be lent on this host as it is now (decision 0028).

use std::net::IpAddr;

use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::Prefix;

use crate::config::Lendable;
use crate::effects::own_addresses;

/// What is configured and cannot be lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What of the configuration it is about.
    pub(crate) subject: String,
    /// What it is.
    pub(crate) sentence: String,
    /// What does not work.
    pub(crate) lost: String,
    /// What to do.
    pub(crate) mend: &'static str,
    /// Nothing of it can be lent.
    pub(crate) whole: bool,
}

/// What of `lendable` cannot be lent with these addresses and routers. They may come later, and go: so it is no mistake in the file.
pub(crate) fn faults(lendable: &Lendable, network: &NetworkState) -> Vec<Fault> {
    let own = own_addresses(network);
    // A host without a network has no address to name.
    let foreign = lendable.own.iter().filter(|address| !own.is_empty() && !own.contains(address));
    let foreign = foreign.map(|address| Fault {
        subject: format!("`own` {address}"),
        sentence: format!("`own` names {address}, which is no address of this host ({} are)", listed(own.iter())),
        lost: format!("no port of {address} is lent"),
        mend: "name an address that this host has (`ip address`), or leave `own` out for that of the interface with the default route",
        whole: true,
    });
    let routers = network.default_routes.iter().filter_map(|route| route.gateway);
    let taken: Vec<(IpAddr, &str)> =
        own.iter().map(|address| (*address, "this host's own")).chain(routers.map(|of| (of, "its router's"))).collect();
    let mixed = lendable.addresses.iter().filter_map(|prefix| {
        let (address, whose) = taken.iter().find(|(address, _)| prefix.contains(*address))?;
        let (shown, subject) = (shown(prefix), format!("`addresses` {}", shown(prefix)));
        Some(match is_one(prefix) {
            true => Fault {
                subject,
                sentence: format!("`addresses` names {address}, which is {whose}"),
                lost: format!("{address} is not lent"),
                mend: "leave it out; `ports` lends ports of this host's own addresses",
                whole: true,
            },
            false => Fault {
                subject,
                sentence: format!("`addresses` names {shown}, which has {address} in it, {whose}"),
                lost: format!("{address} is not lent; another host that has an address of {shown} loses it to whom it is lent"),
                mend: "name a part of the subnet where nobody has an address, such as \"192.0.2.64/28\", or what is routed to this host",
                whole: false,
            },
        })
    });
    foreign.chain(mixed).collect()
}

/// What cannot be lent now, if it is not about the same as `before`. Which addresses the host has beside does not matter, as it draws new ones by itself
/// (RFC 8981); and one without a network can lend as little as before.
pub(crate) fn changed(before: &[Fault], lendable: &Lendable, network: &NetworkState) -> Option<Vec<Fault>> {
    let now = faults(lendable, network);
    let same = now.iter().map(|fault| &fault.subject).eq(before.iter().map(|fault| &fault.subject));
    (!same && !own_addresses(network).is_empty()).then_some(now)
}

/// Addresses that are not lent as a whole, whatever is configured: this host's own, and those of its routers, without which it reaches nobody.
pub(crate) fn is_kept(network: &NetworkState, address: IpAddr) -> bool {
    let router = network.default_routes.iter().any(|route| route.gateway == Some(address));
    router || own_addresses(network).contains(&address)
}

/// The address whose ports are lent in a family: the configured one, or where none of either family is that at which this host is met.
pub(crate) fn lends_of(lendable: &Lendable, network: &NetworkState, ipv4: bool) -> Option<IpAddr> {
    if lendable.ports.is_empty() {
        return None;
    }
    let configured = lendable.own.iter().copied().find(|address| address.is_ipv4() == ipv4);
    configured.or_else(|| usual_address(network, ipv4).filter(|_| lendable.own.is_empty()))
}

/// The address that this host is met at: of the interface that leads everywhere, else of any.
fn usual_address(network: &NetworkState, ipv4: bool) -> Option<IpAddr> {
    let own = own_addresses(network);
    let of_family = |address: &IpAddr| address.is_ipv4() == ipv4;
    let way = network.default_routes.iter().filter(|route| route.ipv4 == ipv4).min_by_key(|route| route.metric);
    let there = way.and_then(|way| {
        let mut there =
            network.addresses.iter().filter(|usable| usable.interface == way.interface && !usable.deprecated);
        there.find(|usable| of_family(&usable.address) && own.contains(&usable.address))
    });
    there.map(|usable| usable.address).or_else(|| own.into_iter().find(of_family))
}

/// As people write it.
pub(crate) fn shown(prefix: &Prefix) -> String {
    if is_one(prefix) { prefix.address.to_string() } else { format!("{}/{}", prefix.address, prefix.length) }
}

fn is_one(prefix: &Prefix) -> bool {
    prefix.length == if prefix.address.is_ipv4() { 32 } else { 128 }
}

fn listed<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> String {
    /// A host may have very many.
    const SHOWN: usize = 4;
    let mut all: Vec<String> = addresses.take(SHOWN + 1).map(ToString::to_string).collect();
    if all.len() > SHOWN {
        all[SHOWN] = "others".to_owned();
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use whimbrel_kernel::network::{DefaultRoute, UsableAddress};
    use whimbrel_kernel::route::Link;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    fn prefix(text: &str) -> Prefix {
        let (of, length) = text.split_once('/').expect("a length");
        Prefix { address: address(of), length: length.parse().expect("a length") }
    }

    /// A host at 192.0.2.5/24 and 2001:db8::5/64, whose router is 192.0.2.1.
    fn network() -> NetworkState {
        let usable = |text, prefix_length| UsableAddress {
            interface: 2,
            address: address(text),
            prefix_length,
            made: 0,
            deprecated: false,
        };
        let route =
            DefaultRoute { ipv4: true, interface: 2, gateway: Some(address("192.0.2.1")), metric: 0, table: 254 };
        let link = Link {
            index: 2,
            name: "eth0".to_owned(),
            up: true,
            carrier: true,
            loopback: false,
            kind: String::new(),
            mtu: 1500,
            carrier_losses: 0,
            controller: None,
            other_end: None,
        };
        NetworkState {
            links: vec![link],
            addresses: vec![usable("192.0.2.5", 24), usable("2001:db8::5", 64)],
            default_routes: vec![route],
        }
    }

    fn found(own: &[&str], addresses: &[&str]) -> BTreeMap<String, bool> {
        let own = own.iter().map(|text| address(text)).collect();
        let lendable =
            Lendable { ports: vec![40_000..=40_999], own, addresses: addresses.iter().map(|of| prefix(of)).collect() };
        faults(&lendable, &network()).into_iter().map(|fault| (fault.sentence, fault.whole)).collect()
    }

    #[test]
    fn what_the_host_does_not_have_or_has_itself_cannot_be_lent() {
        assert!(found(&["192.0.2.5", "2001:db8::5"], &["192.0.2.64/28", "2001:db8:0:1::/64"]).is_empty());
        let foreign = "`own` names 192.0.2.6, which is no address of this host (192.0.2.5, 2001:db8::5 are)";
        assert_eq!(found(&["192.0.2.6"], &[]), [(foreign.to_owned(), true)].into());
        let all = found(&[], &["192.0.2.0/24", "2001:db8::5/128", "192.0.2.0/30"]);
        let expected = [
            ("`addresses` names 192.0.2.0/24, which has 192.0.2.5 in it, this host's own", false),
            ("`addresses` names 2001:db8::5, which is this host's own", true),
            ("`addresses` names 192.0.2.0/30, which has 192.0.2.1 in it, its router's", false),
        ];
        assert_eq!(all, expected.map(|(sentence, whole)| (sentence.to_owned(), whole)).into());
        let lendable = Lendable { ports: Vec::new(), own: vec![address("192.0.2.6")], addresses: Vec::new() };
        assert!(faults(&lendable, &NetworkState::default()).is_empty(), "it has no network yet");
        assert!(is_kept(&network(), address("192.0.2.1")) && is_kept(&network(), address("192.0.2.5")));
        assert!(!is_kept(&network(), address("192.0.2.6")));
    }

    #[test]
    fn faults_are_told_anew_only_where_others_came_or_some_went() {
        let with = |own: &str| Lendable {
            ports: vec![40_000..=40_999],
            own: vec![address(own)],
            addresses: vec![prefix("2001:db8::/64")],
        };
        let (lendable, mut network) = (with("192.0.2.6"), network());
        let told = changed(&[], &lendable, &network).expect("it is told");
        assert_eq!(told.len(), 2);
        assert_eq!(changed(&told, &lendable, &network), None);
        // Another privacy address.
        network.addresses[1].address = address("2001:db8::77");
        assert_ne!(faults(&lendable, &network), told);
        assert_eq!(changed(&told, &lendable, &network), None);
        // The network goes away.
        assert_eq!(changed(&told, &lendable, &NetworkState::default()), None);
        assert_eq!(changed(&[], &lendable, &NetworkState::default()), None);
        // The address comes.
        network.addresses[0].address = address("192.0.2.6");
        assert_eq!(changed(&told, &lendable, &network).map(|now| now.len()), Some(1));
        network.addresses[1].address = address("2001:db8:0:1::5");
        assert_eq!(changed(&told, &lendable, &network), Some(Vec::new()));
    }

    #[test]
    fn ports_are_lent_of_what_is_configured_or_else_of_where_the_host_is_met() {
        let of = |own: &[&str], ipv4| {
            let own = own.iter().map(|text| address(text)).collect();
            lends_of(&Lendable { ports: vec![1024..=2047], own, addresses: Vec::new() }, &network(), ipv4)
        };
        assert_eq!([of(&[], true), of(&[], false)], [Some(address("192.0.2.5")), Some(address("2001:db8::5"))]);
        assert_eq!([of(&["192.0.2.6"], true), of(&["192.0.2.6"], false)], [Some(address("192.0.2.6")), None]);
    }
}
