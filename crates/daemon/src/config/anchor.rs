//! `[anchor]`: what this host lends others.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Prefix;

use super::conditions::ports;
use super::value::{Mistake, Section, Value, array, limit, prefix, string, subtable};

/// How long a lease lasts that is not asked for again, in seconds, where the file does not say.
const LIFETIME: u32 = 3600;
const LONGEST: u32 = 86_400;
/// Leases that one host may have, where the file does not say.
const LEASES: u32 = 64;
const MOST_LEASES: u32 = 4096;

/// What may be lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lendable {
    /// Ports of this host's own addresses.
    pub ports: Option<RangeInclusive<u16>>,
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
    let lent = section.take("ports").map(|value| ports(value, "ports")).transpose()?;
    let mut own: Vec<IpAddr> = Vec::new();
    if let Some(value) = section.take("own") {
        for element in array(value, "own", "a list of addresses of this host")? {
            let text = string(element, "own", "a list of addresses")?;
            let address =
                text.parse().map_err(|_| Mistake::new(element.span(), format!("`{text}` is no IP address")))?;
            own.push(address);
        }
    }
    let mut addresses = Vec::new();
    if let Some(value) = section.take("addresses") {
        for element in array(value, "addresses", "a list of prefixes such as [\"192.0.2.64/28\", \"2001:db8:1::/64\"]")?
        {
            addresses.push(prefix(element, "addresses")?);
        }
    }
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
    if lent.is_none() && addresses.is_empty() {
        let sentence = "`[anchor]` lends nothing: it needs `ports`, such as \"40000-44999\", or `addresses`";
        return Err(Mistake::new(value.span(), sentence));
    }
    let lifetime = Duration::from_secs(lifetime.unwrap_or(LIFETIME).into());
    let lendable = Lendable { ports: lent, own, addresses };
    Ok(Some(Anchor { lendable, to, leases: leases.unwrap_or(LEASES), lifetime }))
}
