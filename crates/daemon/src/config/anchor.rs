//! `[anchor]`: what this host lends others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Prefix;
use whimbrel_wire::moving::MAX_OFFERED;

use super::conditions::ports;
use super::value::{Mistake, Section, Value, array, limit, parse_prefix, prefix, string, subtable};
use crate::anchors::BLOCK;

/// How long a lease lasts that is not asked for again, in seconds, where the file does not say.
const LIFETIME: u32 = 3600;
const LONGEST: u32 = 86_400;
/// Leases that one host may have, where the file does not say.
const LEASES: u32 = 64;
const MOST_LEASES: u32 = 4096;

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

/// `[anchor]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// What may be lent.
    pub lendable: Lendable,
    /// To whom, beside the hosts of the community.
    pub to: Vec<PublicKey>,
    /// Leases that one host may have.
    pub leases: u32,
    /// How long a lease lasts that is not asked for again.
    pub lifetime: Duration,
}

pub(super) fn anchor(value: Value<'_, '_>) -> Result<Option<Anchor>, Mistake> {
    let table = subtable(value, "anchor")?;
    if table.is_empty() {
        return Ok(None);
    }
    let mut section = Section::new(table);
    let lent = section.take("ports").map(ranges).transpose()?.unwrap_or_default();
    let own = match section.take("own") {
        Some(value) if lent.is_empty() => {
            let sentence =
                "`own` says of which addresses `ports` are lent, and there are none; whole ones are `addresses`";
            return Err(Mistake::new(value.span(), sentence));
        }
        Some(value) => own(value)?,
        None => Vec::new(),
    };
    let addresses = section.take("addresses").map(addresses).transpose()?.unwrap_or_default();
    let mut to = Vec::new();
    if let Some(value) = section.take("to") {
        for element in array(value, "to", "a list of public keys")? {
            let text = string(element, "to", "a list of public keys")?;
            let key = text.parse().map_err(|error| {
                let right = "`whimbrel status` on that host shows its own";
                Mistake::new(element.span(), format!("`{text}` is no public key ({error}); {right}"))
            })?;
            to.push(key);
        }
    }
    let leases = section.take("leases").map(|value| limit(value, "leases", MOST_LEASES)).transpose()?;
    let lifetime = section.take("lifetime").map(|value| limit(value, "lifetime", LONGEST)).transpose()?;
    section.finish()?;
    if lent.is_empty() && addresses.is_empty() {
        let sentence = "`[anchor]` lends nothing: it needs `ports`, such as \"40000-44999\", or `addresses`";
        return Err(Mistake::new(value.span(), sentence));
    }
    let lifetime = Duration::from_secs(lifetime.unwrap_or(LIFETIME).into());
    let lendable = Lendable { ports: lent, own, addresses };
    Ok(Some(Anchor { lendable, to, leases: leases.unwrap_or(LEASES), lifetime }))
}

/// One range of ports, or several.
fn ranges(value: Value<'_, '_>) -> Result<Vec<RangeInclusive<u16>>, Mistake> {
    let all = match value.get_ref().as_array() {
        Some(elements) => elements.iter().map(|element| ports(element, "ports")).collect::<Result<_, _>>()?,
        None => vec![ports(value, "ports")?],
    };
    let mut sorted: Vec<RangeInclusive<u16>> = all;
    sorted.sort_by_key(|range| *range.start());
    if let Some(pair) = sorted.windows(2).find(|pair| pair[1].start() <= pair[0].end()) {
        let sentence = format!("`ports` names port {} twice", pair[1].start());
        return Err(Mistake::new(value.span(), sentence));
    }
    // Those that adjoin are one.
    sorted.dedup_by(|next, range| {
        let adjoins = range.end().checked_add(1) == Some(*next.start());
        if adjoins {
            *range = *range.start()..=*next.end();
        }
        adjoins
    });
    if sorted.len() > MAX_OFFERED {
        return Err(Mistake::new(value.span(), format!("`ports` has more than {MAX_OFFERED} ranges")));
    }
    let longest = sorted.iter().map(ExactSizeIterator::len).max();
    if longest.is_some_and(|longest| longest < usize::from(BLOCK)) {
        let sentence = format!(
            "`ports` has no {BLOCK} ports in a row, which each program is lent: `ports = \"40000-44999\"` has room for 39 programs"
        );
        return Err(Mistake::new(value.span(), sentence));
    }
    Ok(sorted)
}

/// Addresses of this host, one of a family.
fn own(value: Value<'_, '_>) -> Result<Vec<IpAddr>, Mistake> {
    let mut own: Vec<IpAddr> = Vec::new();
    for element in array(value, "own", "a list of addresses of this host")? {
        let text = string(element, "own", "a list of addresses")?;
        let wrong = |sentence| Mistake::new(element.span(), sentence);
        let address: IpAddr = text.parse().map_err(|_| wrong(format!("`{text}` is no IP address")))?;
        if let Some(what) = unfit(&Prefix { address, length: if address.is_ipv4() { 32 } else { 128 } }) {
            return Err(wrong(format!("{text} is {what}: others do not reach this host there")));
        }
        if let Some(other) = own.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
            let sentence = format!("ports of one address of a family are lent: {other} and {address} are two");
            return Err(wrong(sentence));
        }
        own.push(address);
    }
    Ok(own)
}

/// Addresses that are lent as a whole.
fn addresses(value: Value<'_, '_>) -> Result<Vec<Prefix>, Mistake> {
    let mut all: Vec<Prefix> = Vec::new();
    for element in array(value, "addresses", "a list of prefixes such as [\"192.0.2.64/28\", \"2001:db8:1::/64\"]")? {
        let one = prefix(element, "addresses")?;
        let wrong = |sentence| Mistake::new(element.span(), sentence);
        let shown = format!("{}/{}", one.address, one.length);
        let base = base_of(&one);
        if base != one.address {
            let sentence = format!(
                "{shown} begins with {base}: write \"{base}/{}\" for all of it, or \"{}\" for this address alone",
                one.length, one.address
            );
            return Err(wrong(sentence));
        }
        if let Some(what) = unfit(&one) {
            let right = "name addresses that are routed to this host, or a part of its subnet that nobody has";
            return Err(wrong(format!("{shown} has {what} in it; {right}")));
        }
        if let Some(other) = all.iter().find(|other| overlap(other, &one)) {
            return Err(wrong(format!("{shown} and {}/{} have addresses in common", other.address, other.length)));
        }
        all.push(one);
    }
    Ok(all)
}

/// The first address of a prefix.
fn base_of(prefix: &Prefix) -> IpAddr {
    let length = u32::from(prefix.length);
    match prefix.address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
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
