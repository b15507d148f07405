//! The datagrams of the UDP port: `docs/protocol.md` §1.
//!
//! [`Datagram::parse`] borrows; what a sender writes is a header of fixed length (`*_header` below) followed by bytes
//! that another layer seals.

use crate::codec::{Malformed, Reader};

/// The UDP port of control datagrams and tunnels.
pub const PORT: u16 = 2031;
/// The highest version of the protocol that this crate knows.
pub const VERSION: u8 = 1;
/// Least length of an initiation, in bytes (P-2). Nothing that answers one is longer.
pub const INITIATION_LEN: usize = 1200;
/// Length of the header of an initiation.
pub const INITIATION_HEADER_LEN: usize = 8;
/// Length of the header of a response.
pub const RESPONSE_HEADER_LEN: usize = 12;
/// Length of the header of a finish.
pub const FINISH_HEADER_LEN: usize = 8;
/// Length of the header of a control datagram and of both kinds of tunnel datagrams.
pub const CONTROL_HEADER_LEN: usize = 16;
/// Length of the part of a cookie reply that its tag covers without sealing it.
pub const COOKIE_HEADER_LEN: usize = 8;
/// Length of a whole cookie reply.
pub const COOKIE_REPLY_LEN: usize = COOKIE_HEADER_LEN + NONCE_LEN + COOKIE_LEN + TAG_LEN;
/// Length of a cookie, and of the MAC that is made with it.
pub const COOKIE_LEN: usize = 16;
/// Length of an AEAD nonce.
pub const NONCE_LEN: usize = 12;
/// Length of an AEAD tag.
pub const TAG_LEN: usize = 16;

/// The first byte of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// First handshake message.
    Initiation = 0x01,
    /// Second handshake message.
    Response = 0x02,
    /// Third handshake message, of XX only.
    Finish = 0x03,
    /// Stateless answer of a responder under load.
    Cookie = 0x04,
    /// Sealed messages.
    Control = 0x10,
    /// Sealed packets.
    TunnelSealed = 0x20,
    /// Packets in clear.
    TunnelPlain = 0x21,
}

/// The Noise pattern of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Pattern {
    /// First contact: neither end needs to know the other's key.
    Xx = 1,
    /// The responder's static key is known to the initiator.
    Ik = 2,
    /// XX with a pre-shared key (`XXpsk3`).
    XxPsk = 3,
    /// IK with a pre-shared key (`IKpsk2`).
    IkPsk = 4,
}

impl Pattern {
    /// The pattern of a number on the wire.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Xx),
            2 => Some(Self::Ik),
            3 => Some(Self::XxPsk),
            4 => Some(Self::IkPsk),
            _ => None,
        }
    }

    /// Whether the initiator knew the responder's static key.
    #[must_use]
    pub const fn knows_responder(self) -> bool {
        matches!(self, Self::Ik | Self::IkPsk)
    }

    /// Whether a pre-shared key is mixed in.
    #[must_use]
    pub const fn has_psk(self) -> bool {
        matches!(self, Self::XxPsk | Self::IkPsk)
    }
}

/// A received datagram, taken apart as far as that is possible without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// Kind 0x01.
    Initiation(Initiation<'a>),
    /// Kind 0x02.
    Response(Response<'a>),
    /// Kind 0x03.
    Finish(Finish<'a>),
    /// Kind 0x04.
    Cookie(CookieReply<'a>),
    /// Kind 0x10.
    Control(Control<'a>),
    /// Kind 0x20.
    TunnelSealed(TunnelSealed<'a>),
    /// Kind 0x21.
    TunnelPlain(TunnelPlain<'a>),
}

/// First handshake message: header (8) · Noise message · cookie MAC (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiation<'a> {
    /// How the handshake goes on.
    pub pattern: Pattern,
    /// Highest version that the initiator speaks, at least 1.
    pub version: u8,
    /// Index by which the initiator wants to be addressed.
    pub sender: u32,
    /// The header as received; part of the handshake's prologue.
    pub header: &'a [u8; INITIATION_HEADER_LEN],
    /// The Noise message. Its payload is padded, so that it fills the datagram.
    pub noise: &'a [u8],
    /// MAC over `covered` with the cookie, zeros if the initiator has none.
    pub mac: &'a [u8; COOKIE_LEN],
    /// Everything before the MAC.
    pub covered: &'a [u8],
}

/// Second handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Index by which the responder wants to be addressed.
    pub sender: u32,
    /// The initiator's index.
    pub receiver: u32,
    /// The header as received; its sealed copy must be the same.
    pub header: &'a [u8; RESPONSE_HEADER_LEN],
    /// The Noise message.
    pub noise: &'a [u8],
}

/// Third handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish<'a> {
    /// The responder's index.
    pub receiver: u32,
    /// The header as received; its sealed copy must be the same.
    pub header: &'a [u8; FINISH_HEADER_LEN],
    /// The Noise message.
    pub noise: &'a [u8],
}

/// Stateless answer to an initiation under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieReply<'a> {
    /// The initiator's index.
    pub receiver: u32,
    /// The header as received; associated data of the sealed cookie.
    pub header: &'a [u8; COOKIE_HEADER_LEN],
    /// Nonce of the sealed cookie.
    pub nonce: &'a [u8; NONCE_LEN],
    /// The cookie and its tag.
    pub sealed: &'a [u8; COOKIE_LEN + TAG_LEN],
}

/// Sealed messages of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control<'a> {
    /// The receiver's session index.
    pub receiver: u32,
    /// Nonce of the sealed messages.
    pub counter: u64,
    /// The header as received; associated data of the sealed messages.
    pub header: &'a [u8; CONTROL_HEADER_LEN],
    /// Messages and tag.
    pub sealed: &'a [u8],
}

/// Sealed packets of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelSealed<'a> {
    /// Chain of transforms that the packets went through; 0 is the empty one.
    pub chain: u8,
    /// The receiver's session index.
    pub receiver: u32,
    /// Nonce of the sealed packets.
    pub counter: u64,
    /// The header as received; associated data of the sealed packets.
    pub header: &'a [u8; CONTROL_HEADER_LEN],
    /// Packets and tag.
    pub sealed: &'a [u8],
}

/// Packets of a tunnel in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelPlain<'a> {
    /// Chain of transforms that the packets went through; 0 is the empty one.
    pub chain: u8,
    /// The receiver's session index.
    pub receiver: u32,
    /// The token that the receiver accepts.
    pub token: u64,
    /// The packets.
    pub packets: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Takes a received UDP payload apart.
    ///
    /// # Errors
    /// The kind, pattern or version is not known, or the datagram is shorter (a cookie reply: not exactly as long) than
    /// its kind demands. Such a datagram is dropped and counted (P-1).
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let kind = *datagram.first().ok_or(Malformed { what: "datagram kind", at: 0 })?;
        match kind {
            0x01 => Initiation::parse(datagram).map(Self::Initiation),
            0x02 => Response::parse(datagram).map(Self::Response),
            0x03 => Finish::parse(datagram).map(Self::Finish),
            0x04 => CookieReply::parse(datagram).map(Self::Cookie),
            0x10 => {
                let header = session_header(datagram)?;
                let sealed = sealed_body(datagram)?;
                let (receiver, counter) = header_fields(header);
                Ok(Self::Control(Control { receiver, counter, header, sealed }))
            }
            0x20 => {
                let header = session_header(datagram)?;
                let sealed = sealed_body(datagram)?;
                let (receiver, counter) = header_fields(header);
                Ok(Self::TunnelSealed(TunnelSealed { chain: header[1], receiver, counter, header, sealed }))
            }
            0x21 => {
                let header = session_header(datagram)?;
                let (receiver, token) = header_fields(header);
                let packets = &datagram[CONTROL_HEADER_LEN..];
                Ok(Self::TunnelPlain(TunnelPlain { chain: header[1], receiver, token, packets }))
            }
            _ => Err(Malformed { what: "datagram kind", at: 0 }),
        }
    }
}

impl<'a> Initiation<'a> {
    fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        if datagram.len() < INITIATION_LEN {
            return Err(Malformed { what: "initiation length", at: datagram.len() });
        }
        let (covered, mac) = datagram.split_last_chunk().ok_or(Malformed { what: "cookie MAC", at: 0 })?;
        let mut reader = Reader::new(covered);
        let header: &[u8; INITIATION_HEADER_LEN] = reader.array("initiation header")?;
        let [_kind, pattern, version, _reserved, sender @ ..] = *header;
        let pattern = Pattern::from_number(pattern).ok_or(Malformed { what: "pattern", at: 1 })?;
        if version == 0 {
            return Err(Malformed { what: "version", at: 2 });
        }
        Ok(Self { pattern, version, sender: u32::from_be_bytes(sender), header, noise: reader.rest(), mac, covered })
    }
}

impl<'a> Response<'a> {
    fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(datagram);
        let header: &[u8; RESPONSE_HEADER_LEN] = reader.array("response header")?;
        let mut fields = Reader::new(&header[4..]);
        let sender = fields.u32("sender index")?;
        let receiver = fields.u32("receiver index")?;
        Ok(Self { sender, receiver, header, noise: reader.rest() })
    }
}

impl<'a> Finish<'a> {
    fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(datagram);
        let header: &[u8; FINISH_HEADER_LEN] = reader.array("finish header")?;
        let receiver = Reader::new(&header[4..]).u32("receiver index")?;
        Ok(Self { receiver, header, noise: reader.rest() })
    }
}

impl<'a> CookieReply<'a> {
    fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(datagram);
        let header: &[u8; COOKIE_HEADER_LEN] = reader.array("cookie header")?;
        let receiver = Reader::new(&header[4..]).u32("receiver index")?;
        let nonce = reader.array("cookie nonce")?;
        let sealed = reader.array("sealed cookie")?;
        reader.finish("end of cookie reply")?;
        Ok(Self { receiver, header, nonce, sealed })
    }
}

fn session_header(datagram: &[u8]) -> Result<&[u8; CONTROL_HEADER_LEN], Malformed> {
    datagram.first_chunk().ok_or(Malformed { what: "session header", at: datagram.len() })
}

fn sealed_body(datagram: &[u8]) -> Result<&[u8], Malformed> {
    let sealed = &datagram[CONTROL_HEADER_LEN..];
    if sealed.len() < TAG_LEN { Err(Malformed { what: "tag", at: datagram.len() }) } else { Ok(sealed) }
}

/// The receiver index, and the 8 bytes after it as a number.
fn header_fields(header: &[u8; CONTROL_HEADER_LEN]) -> (u32, u64) {
    let [_, _, _, _, a, b, c, d, tail @ ..] = *header;
    (u32::from_be_bytes([a, b, c, d]), u64::from_be_bytes(tail))
}

/// The header of an initiation.
#[must_use]
pub const fn initiation_header(pattern: Pattern, version: u8, sender: u32) -> [u8; INITIATION_HEADER_LEN] {
    let [a, b, c, d] = sender.to_be_bytes();
    [Kind::Initiation as u8, pattern as u8, version, 0, a, b, c, d]
}

/// The header of a response.
#[must_use]
pub const fn response_header(sender: u32, receiver: u32) -> [u8; RESPONSE_HEADER_LEN] {
    let [a, b, c, d] = sender.to_be_bytes();
    let [e, f, g, h] = receiver.to_be_bytes();
    [Kind::Response as u8, 0, 0, 0, a, b, c, d, e, f, g, h]
}

/// The header of a finish.
#[must_use]
pub const fn finish_header(receiver: u32) -> [u8; FINISH_HEADER_LEN] {
    let [a, b, c, d] = receiver.to_be_bytes();
    [Kind::Finish as u8, 0, 0, 0, a, b, c, d]
}

/// The header of a cookie reply.
#[must_use]
pub const fn cookie_header(receiver: u32) -> [u8; COOKIE_HEADER_LEN] {
    let [a, b, c, d] = receiver.to_be_bytes();
    [Kind::Cookie as u8, 0, 0, 0, a, b, c, d]
}

/// The header of a control datagram.
#[must_use]
pub const fn control_header(receiver: u32, counter: u64) -> [u8; CONTROL_HEADER_LEN] {
    session_header_octets(Kind::Control, 0, receiver, counter)
}

/// The header of a sealed tunnel datagram.
#[must_use]
pub const fn tunnel_sealed_header(chain: u8, receiver: u32, counter: u64) -> [u8; CONTROL_HEADER_LEN] {
    session_header_octets(Kind::TunnelSealed, chain, receiver, counter)
}

/// The header of a plain tunnel datagram.
#[must_use]
pub const fn tunnel_plain_header(chain: u8, receiver: u32, token: u64) -> [u8; CONTROL_HEADER_LEN] {
    session_header_octets(Kind::TunnelPlain, chain, receiver, token)
}

const fn session_header_octets(kind: Kind, chain: u8, receiver: u32, tail: u64) -> [u8; CONTROL_HEADER_LEN] {
    let [a, b, c, d] = receiver.to_be_bytes();
    let [s, t, u, v, w, x, y, z] = tail.to_be_bytes();
    [kind as u8, chain, 0, 0, a, b, c, d, s, t, u, v, w, x, y, z]
}
