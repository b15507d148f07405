//! Reading and writing of the fields that all formats share.
//!
//! Numbers are in network order. An address is 16 bytes, IPv4 written as IPv4-mapped IPv6 (RFC 4291 §2.5.5.2).

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::flow::{FlowTuple, Transport};

/// Input that does not follow the format: what was being read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The field or rule that did not fit.
    pub what: &'static str,
    /// Offset of that field in the input that was handed in, in bytes.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {} at byte {}", self.what, self.at)
    }
}

impl core::error::Error for Malformed {}

/// A cursor over received bytes. A failed read leaves it where it was.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `input` from its first byte.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { rest: input, at: 0 }
    }

    /// Number of bytes not yet read.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Offset of the next byte in the original input.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// An error about the field that starts at the next byte.
    #[must_use]
    pub const fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }

    /// Leaves out all but the next `length` bytes; positions count on from where they are.
    pub fn limit(&mut self, length: usize) {
        self.rest = &self.rest[..length.min(self.rest.len())];
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn bytes(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(self.malformed(what))?;
        self.rest = rest;
        self.at += length;
        Ok(taken)
    }

    /// The next `N` bytes, as an array.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(self.malformed(what))?;
        self.rest = rest;
        self.at += N;
        Ok(taken)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        let taken = core::mem::take(&mut self.rest);
        self.at += taken.len();
        taken
    }

    /// A byte.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        self.array::<1>(what).map(|b| b[0])
    }

    /// A 2-byte number.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, Malformed> {
        self.array(what).copied().map(u16::from_be_bytes)
    }

    /// A 4-byte number.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        self.array(what).copied().map(u32::from_be_bytes)
    }

    /// An 8-byte number.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        self.array(what).copied().map(u64::from_be_bytes)
    }

    /// A 16-byte address; an IPv4-mapped one is given as IPv4.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn address(&mut self, what: &'static str) -> Result<IpAddr, Malformed> {
        self.array::<16>(what).map(|octets| Ipv6Addr::from(*octets).to_canonical())
    }

    /// An address and a port.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn endpoint(&mut self, what: &'static str) -> Result<SocketAddr, Malformed> {
        let octets = self.array::<18>(what)?;
        let (address, port) = octets.split_at(16);
        let address: [u8; 16] = address.try_into().expect("split at 16");
        let port: [u8; 2] = port.try_into().expect("18 minus 16");
        Ok(SocketAddr::new(Ipv6Addr::from(address).to_canonical(), u16::from_be_bytes(port)))
    }

    /// A tuple of 37 bytes.
    ///
    /// # Errors
    /// Fewer bytes are left, the transport cannot be moved, or the two addresses are of different families.
    pub fn tuple(&mut self, what: &'static str) -> Result<FlowTuple, Malformed> {
        let mut ahead = self.clone();
        let tuple = ahead.tuple_unchecked(what)?;
        let tuple = tuple.ok_or(self.malformed(what))?;
        *self = ahead;
        Ok(tuple)
    }

    fn tuple_unchecked(&mut self, what: &'static str) -> Result<Option<FlowTuple>, Malformed> {
        let transport = Transport::from_protocol(self.u8(what)?);
        let local = self.endpoint(what)?;
        let remote = self.endpoint(what)?;
        Ok(transport.filter(|_| local.is_ipv4() == remote.is_ipv4()).map(|transport| FlowTuple {
            transport,
            local,
            remote,
        }))
    }

    /// Checks that everything has been read.
    ///
    /// # Errors
    /// Bytes are left.
    pub const fn finish(&self, what: &'static str) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed(what)) }
    }
}

/// Length of an address on the wire, in bytes.
pub const ADDRESS_LEN: usize = 16;
/// Length of an endpoint on the wire, in bytes.
pub const ENDPOINT_LEN: usize = 18;
/// Length of a tuple on the wire, in bytes.
pub const TUPLE_LEN: usize = 37;

/// The 16 bytes of an address.
#[must_use]
pub const fn address_octets(address: IpAddr) -> [u8; ADDRESS_LEN] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address of 16 bytes; an IPv4-mapped one is given as IPv4.
#[must_use]
pub fn address_from_octets(octets: [u8; ADDRESS_LEN]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

/// The 18 bytes of an endpoint: address, then port.
#[must_use]
pub fn endpoint_octets(endpoint: SocketAddr) -> [u8; ENDPOINT_LEN] {
    let mut octets = [0; ENDPOINT_LEN];
    octets[..ADDRESS_LEN].copy_from_slice(&address_octets(endpoint.ip()));
    octets[ADDRESS_LEN..].copy_from_slice(&endpoint.port().to_be_bytes());
    octets
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends what `body` writes behind its length in two bytes, which it has to fit.
pub(crate) fn put_counted(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    put_u16(out, 0);
    let from = out.len();
    body(out);
    let length = (out.len() - from) as u16;
    out[from - 2..from].copy_from_slice(&length.to_be_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    out.extend_from_slice(&address_octets(address));
}

pub(crate) fn put_endpoint(out: &mut Vec<u8>, endpoint: SocketAddr) {
    out.extend_from_slice(&endpoint_octets(endpoint));
}

pub(crate) fn put_tuple(out: &mut Vec<u8>, tuple: &FlowTuple) {
    out.push(tuple.transport.protocol());
    put_endpoint(out, tuple.local);
    put_endpoint(out, tuple.remote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_read_moves_nothing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u32("b"), Err(Malformed { what: "b", at: 1 }));
        assert_eq!(reader.u16("c"), Ok(0x0203));
        assert_eq!(reader.finish("d"), Ok(()));
    }

    #[test]
    fn ipv4_is_written_mapped_and_read_back_as_ipv4() {
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let octets = address_octets(address);
        assert_eq!(octets, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(address_from_octets(octets), address);
    }

    #[test]
    fn a_tuple_of_two_families_is_malformed() {
        let mut bytes = Vec::new();
        bytes.push(6);
        put_endpoint(&mut bytes, "192.0.2.1:1".parse().unwrap());
        put_endpoint(&mut bytes, "[2001:db8::1]:2".parse().unwrap());
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.tuple("tuple"), Err(Malformed { what: "tuple", at: 0 }));
        assert_eq!(reader.remaining(), TUPLE_LEN);
    }
}
