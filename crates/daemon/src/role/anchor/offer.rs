//! What this host is configured to lend, and what of it cannot be lent on this host as it is now (decision 0028).

use std::collections::BTreeMap;
use std::net::IpAddr;

use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::Prefix;

use crate::host::own_addresses;
use crate::role::anchor::config::Lendable;

/// Ports that are leased at a time, for what programs leave to the kernel.
pub(crate) const BLOCK: u16 = 128;

/// What is configured and cannot be lent, or is lent and cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What it is about.
    pub(crate) about: About,
    /// What it is.
    pub(crate) sentence: String,
    /// What does not work.
    pub(crate) lost: String,
    /// What to do.
    pub(crate) mend: String,
    /// Nothing of it can be lent.
    pub(crate) whole: bool,
}

/// What a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// `ports`, of whichever address.
    Ports,
    /// An address of `own`.
    Own(IpAddr),
    /// A prefix of `addresses`.
    Addresses(Prefix),
    /// An address that others have on lease, or ports of it.
    Lent(IpAddr),
}

/// An address of which something is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LentOf {
    pub(crate) address: IpAddr,
    /// As a whole, where it was of a subnet of this host's links when it was lent; else ports of this host's own.
    pub(crate) whole: bool,
}

/// Whose an address is that is not lent.
const OWN: &str = "this host's own";
const ROUTERS: &str = "its router's";

/// What of `lendable` cannot be lent with these addresses and routers, and what that is `lent` is gone. They may come
/// later, and go: so it is no mistake in the file.
pub(crate) fn faults(lendable: &Lendable, lent: &[LentOf], network: &NetworkState) -> Vec<Fault> {
    let own = own_addresses(network);
    let nowhere = own.is_empty() && !lendable.ports.is_empty();
    let nowhere = nowhere.then(|| Fault {
        about: About::Ports,
        sentence: "`ports` are of this host's own addresses, and it has none".to_owned(),
        lost: "no port is lent".to_owned(),
        mend: "connect this host to a network: it lends them once it has an address (`ip address`)".to_owned(),
        whole: true,
    });
    // A host without a network has no address to name.
    let foreign = lendable.own.iter().filter(|address| !own.is_empty() && !own.contains(address));
    let foreign = foreign.map(|address| Fault {
        about: About::Own(*address),
        sentence: format!("`own` names {address}, which is no address of this host ({} are)", listed(own.iter())),
        lost: format!("no port of {address} is lent"),
        mend: "name an address that this host has (`ip address`), or leave `own` out for that of the interface with the default route"
            .to_owned(),
        whole: true,
    });
    let routers = network.default_routes.iter().filter_map(|route| route.gateway);
    let routers: Vec<IpAddr> = routers.filter(|router| !own.contains(router)).collect();
    let mixed = lendable.addresses.iter().filter_map(|prefix| {
        let inside = |address: &&IpAddr| prefix.contains(**address);
        let (mine, router) = (own.iter().find(inside), routers.iter().find(inside));
        let (shown, about) = (shown(prefix), About::Addresses(*prefix));
        let whose = |address: &IpAddr| if own.contains(address) { OWN } else { ROUTERS };
        let address = mine.or(router)?;
        Some(match is_one(prefix) {
            true => Fault {
                about,
                sentence: format!("`addresses` names {address}, which is {}", whose(address)),
                lost: format!("{address} is not lent"),
                mend: match mine {
                    Some(_) => "leave it out; `ports` lends ports of this host's own addresses",
                    None => "leave it out: without its router this host reaches nobody",
                }
                .to_owned(),
                whole: true,
            },
            false => {
                let both = mine.zip(router).map(|(_, router)| *router);
                let more = both.map(|router| format!(", and {router}, {ROUTERS}")).unwrap_or_default();
                let not_lent = match both {
                    Some(router) => format!("{address} and {router} are not lent"),
                    None => format!("{address} is not lent"),
                };
                let without = if both.is_some() { "these" } else { "it" };
                Fault {
                    about,
                    sentence: format!("`addresses` names {shown}, which has {address} in it, {}{more}", whose(address)),
                    lost: format!("{not_lent}; another host that has an address of {shown} loses it to whom it is lent"),
                    mend: format!(
                        "name a part of {shown} without {without}, where nobody has an address, or what is routed to this host"
                    ),
                    whole: false,
                }
            }
        })
    });
    let gone = lent.iter().filter(|lent| match lent.whole {
        true => !is_on_link(network, lent.address),
        false => !own.contains(&lent.address),
    });
    let gone = gone.map(|LentOf { address, whole }| Fault {
        about: About::Lent(*address),
        sentence: match whole {
            true => format!("{address} is lent, and of no subnet any more that this host is in"),
            false => format!("ports of {address} are lent, and this host does not have that address any more"),
        },
        lost: "what is sent to it does not come here, so programs that have it on lease are not reached".to_owned(),
        mend: {
            let other = match (whole, lendable.own.contains(address)) {
                (true, _) => "lend others (`addresses`) and ",
                (false, true) => "name another in `own` and ",
                (false, false) => "",
            };
            format!(
                "see to it that this host gets it back (`ip address`), or {other}start those programs anew (`whimbrel anchor` shows \
                 whose they are)"
            )
        },
        whole: true,
    });
    nowhere.into_iter().chain(foreign).chain(mixed).chain(gone).collect()
}

/// What cannot be lent now, if it is not about the same as `before`. Which addresses the host has beside does not
/// matter, as it draws new ones by itself (RFC 8981); and one without a network can lend as little as before, but is
/// not reached at what it has lent. That all can be lent is only said where it can: it is left to when the network is
/// back.
pub(crate) fn changed(
    before: &[Fault],
    lendable: &Lendable,
    lent: &[LentOf],
    network: &NetworkState,
) -> Option<Vec<Fault>> {
    let mut now = faults(lendable, lent, network);
    let is_well = now.is_empty();
    if own_addresses(network).is_empty() {
        let is_lent = |fault: &Fault| matches!(fault.about, About::Lent(_));
        now.retain(is_lent);
        now.splice(..0, before.iter().filter(|fault| !is_lent(fault)).cloned());
    }
    let same = now.iter().map(|fault| &fault.about).eq(before.iter().map(|fault| &fault.about));
    (!same && is_well == now.is_empty()).then_some(now)
}

/// Addresses that are not lent as a whole, whatever is configured, and why: this host's own, and those of its routers,
/// without which it reaches nobody.
pub(crate) fn kept(network: &NetworkState) -> BTreeMap<IpAddr, &'static str> {
    let routers = network.default_routes.iter().filter_map(|route| Some((route.gateway?, ROUTERS)));
    routers.chain(own_addresses(network).into_iter().map(|address| (address, OWN))).collect()
}

/// Whether an address is of a subnet of this host's links.
pub(crate) fn is_on_link(network: &NetworkState, address: IpAddr) -> bool {
    let connected = |index| network.link(index).is_some_and(|link| link.carrier);
    let mut there = network.addresses.iter().filter(|usable| connected(usable.interface));
    there.any(|usable| Prefix { address: usable.address, length: usable.prefix_length }.contains(address))
}

/// Whether an address of a prefix is of no subnet of this host's links, as others of it (`gone`) that once were.
pub(crate) fn is_gone<'a>(
    prefix: &'a Prefix,
    gone: &[IpAddr],
    network: &'a NetworkState,
) -> impl Fn(IpAddr) -> bool + use<'a> {
    let any = gone.iter().any(|address| prefix.contains(*address));
    move |address| any && prefix.contains(address) && !is_on_link(network, address)
}

/// The address whose ports are lent in a family: the configured one, or where none of either family is that at which
/// this host is met.
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
            below: None,
            beyond: None,
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
        faults(&lendable, &[], &network()).into_iter().map(|fault| (fault.sentence, fault.whole)).collect()
    }

    #[test]
    fn what_the_host_does_not_have_or_has_itself_cannot_be_lent() {
        assert!(found(&["192.0.2.5", "2001:db8::5"], &["192.0.2.64/28", "2001:db8:0:1::/64"]).is_empty());
        let foreign = "`own` names 192.0.2.6, which is no address of this host (192.0.2.5, 2001:db8::5 are)";
        assert_eq!(found(&["192.0.2.6"], &[]), [(foreign.to_owned(), true)].into());
        let all = found(&[], &["192.0.2.0/24", "2001:db8::5/128", "192.0.2.0/30"]);
        let expected = [
            (
                "`addresses` names 192.0.2.0/24, which has 192.0.2.5 in it, this host's own, and 192.0.2.1, its router's",
                false,
            ),
            ("`addresses` names 2001:db8::5, which is this host's own", true),
            ("`addresses` names 192.0.2.0/30, which has 192.0.2.1 in it, its router's", false),
        ];
        assert_eq!(all, expected.map(|(sentence, whole)| (sentence.to_owned(), whole)).into());
        let lendable = Lendable { ports: Vec::new(), own: Vec::new(), addresses: vec![prefix("192.0.2.0/30")] };
        let router = &faults(&lendable, &[], &network())[0];
        assert!(router.mend.contains("a part of 192.0.2.0/30 without it"), "{router:?}");
        let kept = kept(&network());
        let whose = ["192.0.2.1", "192.0.2.5", "192.0.2.6"].map(|of| kept.get(&address(of)).copied());
        assert_eq!(whose, [Some("its router's"), Some("this host's own"), None]);
    }

    #[test]
    fn a_host_without_an_address_lends_no_ports() {
        let mut lendable = Lendable { ports: vec![40_000..=40_999], own: Vec::new(), addresses: Vec::new() };
        assert!(faults(&lendable, &[], &network()).is_empty());
        for own in [Vec::new(), vec![address("192.0.2.6")]] {
            lendable.own = own;
            let found = faults(&lendable, &[], &NetworkState::default());
            assert!(matches!(&found[..], [Fault { about: About::Ports, whole: true, .. }]), "{found:?}");
        }
        lendable.ports.clear();
        assert!(faults(&lendable, &[], &NetworkState::default()).is_empty());
    }

    #[test]
    fn what_is_lent_and_gone_is_told_also_where_the_network_is_gone_with_it() {
        let lendable =
            Lendable { ports: vec![40_000..=40_999], own: Vec::new(), addresses: vec![prefix("192.0.2.64/28")] };
        let lent = [("192.0.2.5", false), ("192.0.2.70", true)];
        let lent = lent.map(|(of, whole)| LentOf { address: address(of), whole });
        assert_eq!(changed(&[], &lendable, &lent, &network()), None);
        let told = changed(&[], &lendable, &lent, &NetworkState::default()).expect("it is told");
        let about: Vec<About> = told.iter().map(|fault| fault.about).collect();
        assert_eq!(about, lent.map(|of| About::Lent(of.address)));
        assert_eq!(changed(&told, &lendable, &lent, &NetworkState::default()), None);
        // Nobody has them any more, or they are back. Without an address nothing can be lent all the same.
        assert_eq!(changed(&told, &lendable, &[], &NetworkState::default()), None);
        assert_eq!(changed(&told, &lendable, &[], &network()), Some(Vec::new()));
        assert_eq!(changed(&told, &lendable, &lent, &network()), Some(Vec::new()));
        let whole = Lendable { ports: Vec::new(), ..lendable.clone() };
        assert_eq!(changed(&told, &whole, &[], &NetworkState::default()), Some(Vec::new()), "it can be routed here");
        // Another address than that which was lent of.
        let mut elsewhere = network();
        elsewhere.addresses[0].address = address("198.51.100.5");
        assert_eq!(changed(&[], &lendable, &lent, &elsewhere).as_ref(), Some(&told));
        // Who starts anew gets another address only where there is one.
        let mends: Vec<&str> = told.iter().map(|fault| fault.mend.split(", or ").last().unwrap_or_default()).collect();
        assert!(mends[0].starts_with("start ") && mends[1].starts_with("lend others "), "{mends:?}");
        let named = Lendable { own: vec![address("192.0.2.5")], ..lendable.clone() };
        let told = &faults(&named, &lent[..1], &elsewhere)[1];
        assert!(told.mend.contains("or name another in `own` and start "), "{told:?}");
        // What was wrong before is not mended by that the network goes.
        let wrong = Lendable { own: vec![address("192.0.2.6")], ..lendable };
        let before = faults(&wrong, &[], &network());
        let now = changed(&before, &wrong, &lent, &NetworkState::default()).expect("it is told");
        assert_eq!((now.len(), &now[..1]), (3, &before[..]));
        assert_eq!(changed(&now, &wrong, &lent, &network()), Some(before));
    }

    #[test]
    fn what_is_beside_an_address_that_is_gone_is_so_too() {
        let (prefix, network) = (prefix("198.51.100.0/24"), network());
        let asked = ["198.51.100.9", "203.0.113.9"].map(address);
        let of = |gone: &[IpAddr]| asked.map(is_gone(&prefix, gone, &network));
        assert_eq!(of(&[]), [false, false], "it may be routed here");
        assert_eq!(of(&[address("203.0.113.7")]), [false, false]);
        assert_eq!(of(&[address("198.51.100.7")]), [true, false]);
        let wide = Prefix { address: address("0.0.0.0"), length: 0 };
        let there = is_gone(&wide, &[address("198.51.100.7")], &network)(address("192.0.2.9"));
        assert!(!there, "another subnet of the same prefix is there");
    }

    #[test]
    fn faults_are_told_anew_only_where_others_came_or_some_went() {
        let with = |own: &str| Lendable {
            ports: vec![40_000..=40_999],
            own: vec![address(own)],
            addresses: vec![prefix("2001:db8::/64")],
        };
        let (lendable, mut network) = (with("192.0.2.6"), network());
        let told = changed(&[], &lendable, &[], &network).expect("it is told");
        assert_eq!(told.len(), 2);
        assert_eq!(changed(&told, &lendable, &[], &network), None);
        // Another privacy address.
        network.addresses[1].address = address("2001:db8::77");
        assert_ne!(faults(&lendable, &[], &network), told);
        assert_eq!(changed(&told, &lendable, &[], &network), None);
        // The network goes away.
        assert_eq!(changed(&told, &lendable, &[], &NetworkState::default()), None);
        assert_eq!(changed(&[], &lendable, &[], &NetworkState::default()), None);
        // The address comes.
        network.addresses[0].address = address("192.0.2.6");
        assert_eq!(changed(&told, &lendable, &[], &network).map(|now| now.len()), Some(1));
        network.addresses[1].address = address("2001:db8:0:1::5");
        assert_eq!(changed(&told, &lendable, &[], &network), Some(Vec::new()));
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
