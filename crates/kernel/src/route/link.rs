//! Interfaces.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::RouteSocket;
use crate::error::Error;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index; never used again for another one while the namespace lives, or hardly.
    pub index: u32,
    /// Its name; may change.
    pub name: String,
    /// Is switched on.
    pub up: bool,
    /// Is connected to something.
    pub carrier: bool,
    /// Is `lo`.
    pub loopback: bool,
    /// Which driver made it (`veth`, `tun`, `wireguard`, `bridge`…); empty for hardware.
    pub kind: String,
    /// In bytes.
    pub mtu: u32,
    /// How often it was disconnected since it was made: what came and went between two looks shows here.
    pub carrier_losses: u32,
    /// The interface that it is part of (bridge, bond, VRF), if any.
    pub controller: Option<u32>,
}

impl RouteSocket {
    /// All interfaces, by index.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let parts = self.dump("RTM_GETLINK", &RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let mut links: Vec<Link> = parts
            .iter()
            .filter_map(|part| match part {
                RouteNetlinkMessage::NewLink(message) => Some(decode(message)),
                _ => None,
            })
            .collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }
}

fn decode(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        kind: String::new(),
        mtu: 0,
        carrier_losses: 0,
        controller: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::CarrierDownCount(count) => link.carrier_losses = *count,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        link.kind = kind.to_string();
                    }
                }
            }
            _ => {}
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_loopback_interface() {
        let links = RouteSocket::open().unwrap().links().unwrap();
        let lo = links.iter().find(|link| link.loopback).unwrap();
        assert_eq!((lo.name.as_str(), lo.index), ("lo", super::super::LOOPBACK));
        assert!(lo.mtu > 0);
    }
}
