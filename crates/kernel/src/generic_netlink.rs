//! Families of generic netlink, which kernels number as they are loaded.

use std::collections::BTreeMap;

use netlink_packet_core::NLM_F_DUMP;

use crate::error::Error;
use crate::netlink::{Attributes, Netlink, Refusal, attribute, number, push_attribute, text};

/// `struct genlmsghdr`, in bytes.
const HEADER: usize = 4;
/// The family that knows the others (include/uapi/linux/genetlink.h).
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

/// A family, as this kernel numbers it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    number: u16,
    groups: BTreeMap<String, u32>,
}

/// A socket for requests to one family.
#[derive(Debug)]
pub(crate) struct GenericNetlink {
    netlink: Netlink,
    family: Family,
}

impl GenericNetlink {
    /// `None` where the kernel has no such family.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub(crate) fn open(name: &'static str) -> Result<Option<Self>, Error> {
        let mut netlink = Netlink::open(netlink_sys::protocols::NETLINK_GENERIC, "NETLINK_GENERIC")?;
        let mut body = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
        push_attribute(&mut body, CTRL_ATTR_FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        let mut family = Family::default();
        let answer = netlink.request(
            GENL_ID_CTRL,
            0,
            &body,
            &mut family,
            |_| {},
            |family, _, payload| *family = Family::read(payload.get(HEADER..).unwrap_or_default()),
        );
        match answer {
            Ok(()) => Ok(Some(Self { netlink, family })),
            Err(refusal) if refusal.errno() == libc::ENOENT => Ok(None),
            Err(refusal) => Err(refusal.of("getfamily", name)),
        }
    }

    /// The number of a group to which the family tells what happens.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.family.groups.get(name).copied()
    }

    /// Asks for something, and gives each part of the answer: its command, and its attributes.
    pub(crate) fn request(
        &mut self,
        command: u8,
        dump: bool,
        attributes: &[u8],
        mut each: impl FnMut(u8, &[u8]),
    ) -> Result<(), Refusal> {
        let body = [&[command, 1, 0, 0], attributes].concat();
        let flags = if dump { NLM_F_DUMP } else { 0 };
        let give = |(): &mut (), _: u16, payload: &[u8]| {
            if let Some((command, attributes)) = split(payload) {
                each(command, attributes);
            }
        };
        self.netlink.request(self.family.number, flags, &body, &mut (), |()| {}, give)
    }
}

impl Family {
    fn read(attributes: &[u8]) -> Self {
        let number = attribute(attributes, CTRL_ATTR_FAMILY_ID).and_then(|value| value.first_chunk());
        let groups = Attributes(attribute(attributes, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default());
        let group = |(_, group)| {
            let name = attribute(group, CTRL_ATTR_MCAST_GRP_NAME).map(text)?;
            Some((name, attribute(group, CTRL_ATTR_MCAST_GRP_ID).and_then(self::number)?))
        };
        Self {
            number: number.map_or(0, |bytes| u16::from_ne_bytes(*bytes)),
            groups: groups.filter_map(group).collect(),
        }
    }
}

/// The command of a message, and its attributes.
pub(crate) fn split(payload: &[u8]) -> Option<(u8, &[u8])> {
    Some((*payload.first()?, payload.get(HEADER..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_asked_for_by_name() {
        let known = GenericNetlink::open("nlctrl").unwrap().expect("the family that knows the others");
        assert_eq!(known.family.number, GENL_ID_CTRL);
        assert!(known.group("notify").is_some(), "{known:?}");
        assert!(GenericNetlink::open("no such one").unwrap().is_none());
    }
}
