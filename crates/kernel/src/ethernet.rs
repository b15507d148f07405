//! At which rate a link carries packets now, as its driver says (ethtool(8), by netlink).

use crate::error::Error;
use crate::generic_netlink::GenericNetlink;
use crate::netlink::{NESTED, attribute, number, push_attribute};

/// include/uapi/linux/ethtool_netlink.h.
const ETHTOOL_MSG_LINKMODES_GET: u8 = 4;
const ETHTOOL_A_LINKMODES_HEADER: u16 = 1;
const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
/// A rate that the driver does not know (`SPEED_UNKNOWN`); older ones say 0.
const UNKNOWN: [u32; 2] = [u32::MAX, 0];

/// Asks drivers for rates, in the network namespace that it was opened in.
#[derive(Debug)]
pub struct LinkRates(GenericNetlink);

impl LinkRates {
    /// `None` where the kernel cannot be asked so (`CONFIG_ETHTOOL_NETLINK`).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Option<Self>, Error> {
        Ok(GenericNetlink::open("ethtool")?.map(Self))
    }

    /// The rate of a link in Mbit/s, as it was negotiated; `None` where there is none, or the driver does not say.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn of(&mut self, interface: u32) -> Result<Option<u32>, Error> {
        let (mut header, mut body) = (Vec::new(), Vec::new());
        push_attribute(&mut header, ETHTOOL_A_HEADER_DEV_INDEX, &interface.to_ne_bytes());
        push_attribute(&mut body, ETHTOOL_A_LINKMODES_HEADER | NESTED, &header);
        let mut rate = None;
        let answer = self.0.request(ETHTOOL_MSG_LINKMODES_GET, false, &body, |_, attributes| {
            rate = attribute(attributes, ETHTOOL_A_LINKMODES_SPEED).and_then(number);
        });
        match answer {
            Ok(()) => Ok(rate.filter(|rate| !UNKNOWN.contains(rate))),
            // Its driver cannot be asked, or it has gone meanwhile.
            Err(refusal) if [libc::EOPNOTSUPP, libc::ENODEV].contains(&refusal.errno()) => Ok(None),
            Err(refusal) => Err(refusal.of("linkmodes-get", format!("interface {interface}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_has_no_rate_and_one_that_is_not_there_have_none() {
        let Some(mut rates) = LinkRates::open().unwrap() else { return };
        assert_eq!(rates.of(crate::route::LOOPBACK).unwrap(), None);
        assert_eq!(rates.of(0x7fff_ffff).unwrap(), None);
    }
}
