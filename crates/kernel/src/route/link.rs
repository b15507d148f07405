//! Interfaces.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::RouteSocket;
use crate::error::Error;
use crate::namespace::Entered;

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
    /// The interface that it goes by, or the other end of a pair, by its index in the namespace of that.
    pub other_end: Option<u32>,
}

impl RouteSocket {
    /// All interfaces, by index.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let parts = self.dump("RTM_GETLINK", &RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(decode_all(&parts))
    }

    /// Some interfaces, `most` of them at the most, where there may be very many. The socket is used up by that: a list that nobody has read to its
    /// end goes with it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn some_links(self, most: usize) -> Result<Vec<Link>, Error> {
        let parts = self.some("RTM_GETLINK", &RouteNetlinkMessage::GetLink(LinkMessage::default()), most)?;
        Ok(decode_all(&parts))
    }

    /// By which id (RTM_NEWNSID) the namespace of the socket knows the one that the other end of a pair of interfaces is in; the kernel gives it
    /// one when it is asked. None: it is in the same.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn namespace_beyond(&mut self, interface: u32) -> Result<Option<u32>, Error> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        let parts = self
            .ask(&RouteNetlinkMessage::GetLink(message), 0)
            .map_err(|e| e.of("RTM_GETLINK", format!("interface {interface}")))?;
        Ok(parts.iter().find_map(|part| match part {
            RouteNetlinkMessage::NewLink(message) => message.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::LinkNetNsId(id) => u32::try_from(*id).ok(),
                _ => None,
            }),
            _ => None,
        }))
    }

    /// Makes a pair of connected interfaces (veth(4)): `name` here and `peer` in another namespace, both switched off. In `name` `%d` stands
    /// for the lowest number that makes it a new one (the kernel's `dev_alloc_name`). `mtu` is in bytes. Returns the index of the one here, at a
    /// cost that does not depend on how many interfaces there are here.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Answer`]; the pair ends with the other namespace then, if it was made.
    pub fn create_pair(
        &mut self,
        name: &str,
        peer: (&str, [u8; 6]),
        namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> Result<u32, Error> {
        let (peer, hardware) = peer;
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.to_owned()));
        other.attributes.push(LinkAttribute::Mtu(mtu));
        other.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        other.attributes.push(LinkAttribute::Address(hardware.to_vec()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        self.change(&RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| e.of("RTM_NEWLINK", format!("the pair of {name} and {peer}")))?;
        let there = {
            let _inside = Entered::descriptor(namespace)?;
            Self::open()?.links()?
        };
        let made = there.into_iter().find(|link| link.name == peer);
        made.and_then(|link| link.other_end).ok_or_else(|| Error::Answer {
            call: "RTM_GETLINK",
            object: name.to_owned(),
            detail: "it was made and is not there".to_owned(),
        })
    }

    /// The name of an interface.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn link_name(&self, interface: u32) -> Result<String, Error> {
        rustix::net::netdevice::index_to_name(&self.netlink, interface)
            .map_err(|errno| Error::call("ioctl SIOCGIFNAME", format!("interface {interface}"), errno))
    }

    /// Deletes an interface, a pair with it; returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_link(&mut self, interface: u32) -> Result<bool, Error> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        match self.change(&RouteNetlinkMessage::DelLink(message), 0) {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.errno() == libc::ENODEV => Ok(false),
            Err(refusal) => Err(refusal.of("RTM_DELLINK", format!("interface {interface}"))),
        }
    }

    /// Switches an interface on. `arp`: it asks for the link-layer addresses of neighbours.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_up(&mut self, interface: u32, arp: bool) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        message.header.flags = if arp { LinkFlags::Up } else { LinkFlags::Up | LinkFlags::Noarp };
        message.header.change_mask = LinkFlags::Up | LinkFlags::Noarp;
        self.change(&RouteNetlinkMessage::SetLink(message), 0)
            .map_err(|e| e.of("RTM_SETLINK", format!("interface {interface}")))
    }
}

fn decode_all(parts: &[RouteNetlinkMessage]) -> Vec<Link> {
    let mut links: Vec<Link> = parts
        .iter()
        .filter_map(|part| match part {
            RouteNetlinkMessage::NewLink(message) => Some(decode(message)),
            _ => None,
        })
        .collect();
    links.sort_by_key(|link| link.index);
    links
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
        other_end: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::CarrierDownCount(count) => link.carrier_losses = *count,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::Link(index) => link.other_end = Some(*index),
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
