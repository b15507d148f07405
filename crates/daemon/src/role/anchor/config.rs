//! `[anchor]`: what this host lends others.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Prefix;
use whimbrel_wire::moving::MAX_OFFERED;

use crate::config::document::{ConfigError, Document};
use crate::config::value::{limit, list, parse_prefix, seconds};
use crate::role::anchor::offer::BLOCK;

/// The longest that a lease can last, in seconds.
const LONGEST: u32 = 86_400;
const MOST_LEASES: u32 = 4096;

/// `[anchor]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Anchor {
    /// See [`Lendable::ports`].
    #[serde(deserialize_with = "ranges")]
    pub ports: Vec<RangeInclusive<u16>>,
    /// See [`Lendable::own`].
    #[serde(deserialize_with = "list")]
    pub own: Vec<IpAddr>,
    /// See [`Lendable::addresses`].
    #[serde(deserialize_with = "list")]
    pub addresses: Vec<Prefix>,
    /// To whom it is lent, beside the hosts of the community.
    #[serde(deserialize_with = "list")]
    pub to: Vec<PublicKey>,
    /// Leases that one host may have.
    #[serde(deserialize_with = "limit::<_, _, MOST_LEASES>")]
    pub leases: u32,
    /// How long a lease lasts that is not asked for again.
    #[serde(deserialize_with = "seconds::<_, LONGEST>")]
    pub lifetime: Duration,
}

impl Default for Anchor {
    fn default() -> Self {
        let (ports, own, addresses, to) = Default::default();
        Self { ports, own, addresses, to, leases: 64, lifetime: Duration::from_secs(3600) }
    }
}

/// What may be lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lendable {
    /// Ports of this host's own addresses, in order, of which none adjoin.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Its own addresses that are lent from, one of a family, where it is not to be that of the default route.
    pub own: Vec<IpAddr>,
    /// Addresses that are lent as a whole. They have to be routed here, or be of a subnet of this host's links.
    pub addresses: Vec<Prefix>,
}

impl Anchor {
    /// What may be lent.
    #[must_use]
    pub fn lendable(&self) -> Lendable {
        Lendable { ports: self.ports.clone(), own: self.own.clone(), addresses: self.addresses.clone() }
    }

    pub(crate) fn check(&self, document: &Document<'_>) -> Result<(), ConfigError> {
        let Self { ports, own, addresses, .. } = self;
        if ports.is_empty() && document.has("anchor.own") {
            let sentence =
                "`own` says of which addresses `ports` are lent, and there are none; whole ones are `addresses`";
            return Err(document.wrong("anchor.own", sentence));
        }
        for (index, address) in own.iter().enumerate() {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let other = own[..index].iter().find(|other| other.is_ipv4() == address.is_ipv4());
            let sentence = match (unfit(&Prefix { address: *address, length }), other) {
                (Some(what), _) => format!("{address} is {what}: others do not reach this host there"),
                (None, Some(other)) => {
                    format!("ports of one address of a family are lent: {other} and {address} are two")
                }
                (None, None) => continue,
            };
            return Err(document.wrong(&format!("anchor.own.{index}"), sentence));
        }
        for (index, one) in addresses.iter().enumerate() {
            if let Some(sentence) = unlendable(one, &addresses[..index]) {
                return Err(document.wrong(&format!("anchor.addresses.{index}"), sentence));
            }
        }
        if ports.is_empty() && addresses.is_empty() {
            let sentence = "`[anchor]` lends nothing: it needs `ports`, such as \"40000-44999\", or `addresses`";
            return Err(document.wrong("anchor", sentence));
        }
        Ok(())
    }
}

/// One range of ports, or several. Those that adjoin are one.
fn ranges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RangeInclusive<u16>>, D::Error> {
    let mut sorted: Vec<RangeInclusive<u16>> = list(deserializer)?;
    sorted.sort_by_key(|range| *range.start());
    if let Some(pair) = sorted.windows(2).find(|pair| pair[1].start() <= pair[0].end()) {
        return Err(D::Error::custom(format_args!("`ports` names port {} twice", pair[1].start())));
    }
    sorted.dedup_by(|next, range| {
        let adjoins = range.end().checked_add(1) == Some(*next.start());
        if adjoins {
            *range = *range.start()..=*next.end();
        }
        adjoins
    });
    if sorted.len() > MAX_OFFERED {
        return Err(D::Error::custom(format_args!("`ports` has more than {MAX_OFFERED} ranges")));
    }
    let longest = sorted.iter().map(ExactSizeIterator::len).max();
    if longest.is_some_and(|longest| longest < usize::from(BLOCK)) {
        return Err(D::Error::custom(format_args!(
            "`ports` has no {BLOCK} ports in a row, which each program is lent: `ports = \"40000-44999\"` has room for 39 programs"
        )));
    }
    Ok(sorted)
}

/// Why a prefix cannot be lent as a whole, beside `others`.
fn unlendable(one: &Prefix, others: &[Prefix]) -> Option<String> {
    let shown = format!("{}/{}", one.address, one.length);
    let base = IpNet::new(one.address, one.length).ok()?.network();
    if base != one.address {
        return Some(format!(
            "{shown} begins with {base}: write \"{base}/{}\" for all of it, or \"{}\" for this address alone",
            one.length, one.address
        ));
    }
    if let Some(what) = unfit(one) {
        let right = "name addresses that are routed to this host, or a part of its subnet that nobody has";
        return Some(format!("{shown} has {what} in it; {right}"));
    }
    let other = others.iter().find(|other| overlap(other, one))?;
    Some(format!("{shown} and {}/{} have addresses in common", other.address, other.length))
}

/// What nobody can be lent that is in a prefix, if anything is.
fn unfit(prefix: &Prefix) -> Option<&'static str> {
    const UNFIT: [(&str, &str); 9] = [
        ("0.0.0.0/8", "the unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "an address of one link alone"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "an address that nobody has (RFC 1112)"),
        ("::/128", "the unspecified address"),
        ("::1/128", "a loopback address"),
        ("fe80::/10", "an address of one link alone"),
        ("ff00::/8", "a multicast address"),
    ];
    let is_in = |text: &str| parse_prefix(text).is_some_and(|unfit| overlap(&unfit, prefix));
    UNFIT.iter().find(|(unfit, _)| is_in(unfit)).map(|(_, what)| *what)
}

fn overlap(one: &Prefix, other: &Prefix) -> bool {
    let (wide, narrow) = if one.length <= other.length { (one, other) } else { (other, one) };
    wide.contains(narrow.address)
}
