//! Interfaces.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};

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
    /// The interface of this namespace by which its packets leave, under the same names (a VLAN, macvlan or the like).
    pub below: Option<u32>,
    /// By which id (RTM_NEWNSID) the namespace is known that the interface is in which it goes by, or the other end of
    /// a pair. None: it is in the same.
    pub beyond: Option<u32>,
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

    /// Some interfaces, `most` of them at the most, where there may be very many. The socket is used up by that: a list
    /// that nobody has read to its end goes with it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn some_links(self, most: usize) -> Result<Vec<Link>, Error> {
        let parts = self.some("RTM_GETLINK", &RouteNetlinkMessage::GetLink(LinkMessage::default()), most)?;
        Ok(decode_all(&parts))
    }

    /// By which id (RTM_NEWNSID) the namespace of the socket knows another one, which it has from now on if it had
    /// none.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Answer`].
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<u32, Error> {
        let object = || format!("descriptor {}", namespace.as_raw_fd());
        let number = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(number));
        let mut new = message.clone();
        // -1: whichever is free.
        new.attributes.push(NsidAttribute::Id(-1));
        match self.change(&RouteNetlinkMessage::NewNsId(new), 0) {
            Err(refusal) if refusal.errno() != libc::EEXIST => return Err(refusal.of("RTM_NEWNSID", object())),
            Ok(()) | Err(_) => {}
        }
        let parts = self.ask(&RouteNetlinkMessage::GetNsId(message), 0).map_err(|e| e.of("RTM_GETNSID", object()))?;
        let id = parts.iter().find_map(|part| match part {
            RouteNetlinkMessage::NewNsId(message) => message.attributes.iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(id) => u32::try_from(*id).ok(),
                _ => None,
            }),
            _ => None,
        });
        let detail = || "the namespace has none".to_owned();
        id.ok_or_else(|| Error::Answer { call: "RTM_GETNSID", object: object(), detail: detail() })
    }

    /// Makes a pair of connected interfaces (veth(4)): `name` here and `peer` in another namespace, both switched off.
    /// `mtu` is in bytes. Returns the index of the one here, at a cost that does not depend on how many interfaces
    /// there are.
    ///
    /// # Errors
    /// [`Error::Call`]; the pair has been taken away there then, if it was made.
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
        // Here, and not there: who has the other namespace calls what is in it as it likes.
        self.link_index(name)
    }

    /// The index of an interface.
    ///
    /// # Errors
    /// [`Error::Call`] with ENODEV where there is none of that name.
    pub fn link_index(&self, name: &str) -> Result<u32, Error> {
        rustix::net::netdevice::name_to_index(&self.netlink, name)
            .map_err(|errno| Error::call("ioctl SIOCGIFINDEX", name, errno))
    }

    /// Deletes the interface with this name, a pair with it; returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_link_called(&mut self, name: &str) -> Result<bool, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.change(&RouteNetlinkMessage::DelLink(message), 0) {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.errno() == libc::ENODEV => Ok(false),
            Err(refusal) => Err(refusal.of("RTM_DELLINK", name)),
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
        below: None,
        beyond: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::CarrierDownCount(count) => link.carrier_losses = *count,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::Link(index) => link.below = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkNetNsId(id) => link.beyond = u32::try_from(*id).ok(),
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
