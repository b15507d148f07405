//! The hello: what the ends tell each other in the handshake (`docs/protocol.md` §2).

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::{BitAnd, BitOr};

use crate::codec::{ADDRESS_LEN, Malformed, Reader, put_address, put_u16, put_u32, put_u64};
use crate::datagram::VERSION;

/// What an end can do: a set of bits. Bits that are not known are kept and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(pub u32);

impl Capabilities {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Bit 0: the *rewrite* carrier.
    pub const REWRITE: Self = Self(1 << 0);
    /// Bit 1: the *tunnel* carrier, in clear.
    pub const TUNNEL_PLAIN: Self = Self(1 << 1);
    /// Bit 2: the *tunnel* carrier, sealed.
    pub const TUNNEL_SEALED: Self = Self(1 << 2);
    /// Bit 3: locators may be IPv6.
    pub const IPV6_LOCATORS: Self = Self(1 << 3);
    /// Bit 4: sealed tunnel datagrams are preferred under AES-256-GCM; used where both ends say so.
    pub const TUNNEL_AES: Self = Self(1 << 4);
    /// Bit 5: the sender is a gateway, which sees no sockets of the hosts behind it: it is to be told of TCP flows that
    /// end (P-103).
    pub const GATEWAY: Self = Self(1 << 5);
    /// Bit 6: chains of transforms may be asked for (P-170).
    pub const TRANSFORMS: Self = Self(1 << 6);
    /// Bit 7: the sender offers itself as a rendezvous (P-216).
    pub const RENDEZVOUS: Self = Self(1 << 7);
    /// Bit 8: single flows may go by two paths at once (P-262).
    pub const DUPLICATION: Self = Self(1 << 8);

    /// Whether all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Capabilities {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Capabilities {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The payload of a handshake message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// From the initiator the highest version that it speaks, from the responder the one that is used (P-5).
    pub version: u8,
    /// What the sender can do.
    pub capabilities: Capabilities,
    /// Milliseconds, strictly rising from one initiation of a key to its next (P-9); 0 from a responder.
    pub timestamp: u64,
    /// Names the life of all of the sender's sockets: another one when its host was started anew (P-47). 0 says
    /// nothing.
    pub life: u64,
    /// Addresses of the sender, at most [`MAX_LOCATORS`]; the first is the one that it has itself on this path.
    pub locators: Vec<IpAddr>,
    /// The port at which the sender takes connections of TCP that carry its datagrams (P-250); 0: at none, and then it
    /// is not written.
    pub tcp_port: u16,
}

/// Most addresses in a hello or a *locators* message. With so many a response is still shorter than an initiation
/// (P-2).
pub const MAX_LOCATORS: usize = 32;
/// Length of a hello without locators, in bytes.
pub const HELLO_FIXED_LEN: usize = 22;

impl Default for Hello {
    /// A hello of the newest version that says nothing.
    fn default() -> Self {
        Self {
            version: VERSION,
            capabilities: Capabilities::NONE,
            timestamp: 0,
            life: 0,
            locators: Vec::new(),
            tcp_port: 0,
        }
    }
}

impl Hello {
    /// Length when encoded, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let port = if self.tcp_port == 0 { 0 } else { size_of::<u16>() };
        HELLO_FIXED_LEN + ADDRESS_LEN * self.locators.len().min(MAX_LOCATORS) + port
    }

    /// Appends the hello. Locators after the first [`MAX_LOCATORS`] are left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.version);
        put_u32(out, self.capabilities.0);
        put_u64(out, self.timestamp);
        put_u64(out, self.life);
        put_locators(out, &self.locators);
        if self.tcp_port != 0 {
            put_u16(out, self.tcp_port);
        }
    }

    /// Reads a hello. What follows it in `payload` is padding, or fields of a later version, and is ignored.
    ///
    /// # Errors
    /// The payload is too short, the version is 0, or there are more than [`MAX_LOCATORS`] locators.
    pub fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let version = reader.u8("hello version")?;
        if version == 0 {
            return Err(Malformed { what: "hello version", at: 0 });
        }
        let capabilities = Capabilities(reader.u32("capabilities")?);
        let timestamp = reader.u64("timestamp")?;
        let life = reader.u64("life")?;
        let locators = read_locators(&mut reader)?;
        // Padding is zeros, and may be shorter than a port.
        let tcp_port = reader.u16("TCP port").unwrap_or(0);
        Ok(Self { version, capabilities, timestamp, life, locators, tcp_port })
    }
}

/// Count, then addresses; those after the first [`MAX_LOCATORS`] are left out.
pub(crate) fn put_locators(out: &mut Vec<u8>, locators: &[IpAddr]) {
    let count = locators.len().min(MAX_LOCATORS);
    out.push(count as u8);
    for locator in &locators[..count] {
        put_address(out, *locator);
    }
}

pub(crate) fn read_locators(reader: &mut Reader<'_>) -> Result<Vec<IpAddr>, Malformed> {
    let too_many = reader.malformed("locator count");
    let count = usize::from(reader.u8("locator count")?);
    if count > MAX_LOCATORS {
        return Err(too_many);
    }
    (0..count).map(|_| reader.address("locator")).collect()
}
