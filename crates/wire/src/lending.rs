//! Endpoints that one host lends another: `docs/protocol.md` §11.

use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::codec::{Malformed, Reader};
use crate::codec::{put_endpoint, put_u16, put_u32};

/// Endpoints of an anchor: ports of one of its addresses, for TCP and UDP alike, or all that there is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ends {
    /// The address and the first port. Where they are asked for, the unspecified address and port 0 leave either to the
    /// anchor.
    pub first: SocketAddr,
    /// So many ports, one after the other. 0: the whole address, and port 0 with it.
    pub count: u16,
}

impl Ends {
    /// The ports, where they are known: the whole address has port 0 alone.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.first.port();
        first..=first.saturating_add(self.count.saturating_sub(1))
    }

    /// Whether an endpoint is among them.
    #[must_use]
    pub fn contain(&self, end: SocketAddr) -> bool {
        let first = self.first.port();
        let among = end.port() >= first && u32::from(end.port()) < u32::from(first) + u32::from(self.count);
        end.ip() == self.first.ip() && (self.count == 0 || among)
    }

    /// Whether it says which they are, and there are such.
    #[must_use]
    pub fn are_definite(&self) -> bool {
        let (first, last) = (u32::from(self.first.port()), u32::from(self.first.port()) + u32::from(self.count));
        let ports = if self.count == 0 { first == 0 } else { first > 0 && last <= 0x1_0000 };
        ports && !self.first.ip().is_unspecified() && !self.first.ip().is_multicast()
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_endpoint(out, self.first);
        put_u16(out, self.count);
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let beyond = body.malformed("endpoints");
        let ends = Self { first: body.endpoint("first endpoint")?, count: body.u16("count of ports")? };
        let (first, count) = (u32::from(ends.first.port()), u32::from(ends.count));
        if first + count > 0x1_0000 || count == 0 && first != 0 {
            return Err(beyond);
        }
        Ok(ends)
    }
}

/// What an anchor lends, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The endpoints, definite.
    pub ends: Ends,
    /// From now on, in seconds, unless the lease is asked for again before.
    pub lifetime: u32,
}

impl Granted {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.ends.put(out);
        put_u32(out, self.lifetime);
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let vague = body.malformed("endpoints that are lent");
        let ends = Ends::read(body)?;
        if !ends.are_definite() {
            return Err(vague);
        }
        Ok(Self { ends, lifetime: body.u32("lifetime of a lease")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(first: &str, count: u16) -> Ends {
        Ends { first: first.parse().unwrap(), count }
    }

    #[test]
    fn ports_are_contained_up_to_the_last() {
        let few = ends("192.0.2.1:65534", 2);
        assert!(few.are_definite());
        assert_eq!(few.ports().collect::<Vec<_>>(), [65534, 65535]);
        for (end, contained) in [
            ("192.0.2.1:65533", false),
            ("192.0.2.1:65534", true),
            ("192.0.2.1:65535", true),
            ("192.0.2.2:65535", false),
        ] {
            assert_eq!(few.contain(end.parse().unwrap()), contained, "{end}");
        }
        let whole = ends("[2001:db8::1]:0", 0);
        assert!(whole.are_definite() && whole.contain("[2001:db8::1]:9".parse().unwrap()));
        assert_eq!(whole.ports().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn what_is_no_endpoint_is_malformed() {
        for (first, count) in [("192.0.2.1:65535", 2), ("192.0.2.1:1", 0)] {
            let mut bytes = Vec::new();
            ends(first, count).put(&mut bytes);
            assert!(Ends::read(&mut Reader::new(&bytes)).is_err(), "{first} {count}");
        }
        for (first, count) in [("0.0.0.0:1", 1), ("192.0.2.1:0", 1), ("224.0.0.1:1", 1)] {
            let mut bytes = Vec::new();
            Granted { ends: ends(first, count), lifetime: 1 }.put(&mut bytes);
            assert!(Ends::read(&mut Reader::new(&bytes)).is_ok());
            assert!(Granted::read(&mut Reader::new(&bytes)).is_err(), "{first} {count}");
        }
    }
}
