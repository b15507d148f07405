//! Where this host is attached to networks, and whom it speaks for there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use whimbrel_wire::FlowTuple;

use crate::base::config::Prefix;
use crate::base::id::LinkId;
use crate::base::op::LocalEnd;

/// One address of this host, during one stay on a network. The same address on another network has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// The address.
    pub address: IpAddr,
    /// The link that has it.
    pub link: LinkId,
    /// Rises whenever the address was away or its link without carrier.
    pub generation: u64,
}

/// Which source address the host would use towards a destination.
pub trait Routes {
    /// The address, or `None` where the destination cannot be reached.
    fn source_for(&self, destination: IpAddr) -> Option<IpAddr>;

    /// Whether packets from `source`, an address of the host's, could still reach a destination by the interface that
    /// has it, though the way that is preferred now may be another.
    fn still_reaches(&self, source: IpAddr, destination: IpAddr) -> bool;
}

/// All addresses of this host, and those of hosts behind it.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// In order, so that what is told of them does not depend on chance.
    own: BTreeMap<IpAddr, Attachment>,
    /// Those that are on another network than before, while a change of the network is looked at.
    replaced: BTreeSet<IpAddr>,
    /// Whether one is gone, while a change of the network is looked at.
    left: bool,
    behind: Vec<Prefix>,
}

impl Attachments {
    pub(crate) fn new(behind: Vec<Prefix>) -> Self {
        Self { own: BTreeMap::new(), replaced: BTreeSet::new(), left: false, behind }
    }

    /// These are all usable addresses now. Those that are on another network than before count as replaced until
    /// [`Attachments::settle`].
    pub(crate) fn set(&mut self, attachments: &[Attachment]) {
        let now = attachments.iter().map(|attachment| (attachment.address, *attachment)).collect();
        let before = std::mem::replace(&mut self.own, now);
        self.left = before.keys().any(|address| !self.own.contains_key(address));
        let stays = |old: &Attachment| self.own.get(&old.address).is_none_or(|new| new == old);
        self.replaced = before.values().filter(|old| !stays(old)).map(|old| old.address).collect();
    }

    /// The change of the network has been looked at.
    pub(crate) fn settle(&mut self) {
        self.replaced.clear();
        self.left = false;
    }

    /// Whether an address is gone with the change of the network that is looked at.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// The addresses, in order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &IpAddr> + Clone {
        self.own.keys()
    }

    pub(crate) fn get(&self, address: &IpAddr) -> Option<Attachment> {
        self.own.get(address).copied()
    }

    /// Whether an address is this host's own.
    pub(crate) fn has(&self, address: &IpAddr) -> bool {
        self.own.contains_key(address)
    }

    /// Whether this host is attached so now.
    pub(crate) fn is_current(&self, attachment: &Attachment) -> bool {
        self.own.get(&attachment.address) == Some(attachment)
    }

    /// Whether an address is gone, or on another network than before.
    pub(crate) fn is_gone(&self, address: IpAddr) -> bool {
        self.at(address).is_none() || self.replaced.contains(&address)
    }

    /// Whether an address is that of a host behind this one (P-100).
    pub(crate) fn is_behind(&self, address: IpAddr) -> bool {
        !self.has(&address) && self.speaks_at(address)
    }

    /// Whether peers may ask at an address for hosts behind this one, or for what else they take for one: its own
    /// there.
    pub(crate) fn speaks_at(&self, address: IpAddr) -> bool {
        self.behind.iter().any(|prefix| prefix.contains(address))
    }

    /// What this host is attached by where it is reached at `address`: by its own, or by that of a host behind it,
    /// which stays as long as the configuration says so.
    pub(crate) fn at(&self, address: IpAddr) -> Option<Attachment> {
        let foreign = || self.speaks_at(address).then_some(Attachment { address, link: LinkId::NONE, generation: 0 });
        self.get(&address).or_else(foreign)
    }

    /// Where this host's end of a flow is that its peer introduces.
    pub(crate) fn end_of(&self, flow: &FlowTuple) -> LocalEnd {
        if self.is_behind(flow.local.ip()) { LocalEnd::Passing } else { LocalEnd::Here }
    }
}
