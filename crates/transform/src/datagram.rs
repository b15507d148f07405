//! The datagrams of a tunnel: docs/protocol.md §1 (kinds 0x20 and 0x21) and §7 (the train of inner packets).

use whimbrel_wire::Malformed;
use whimbrel_wire::datagram::{CONTROL_HEADER_LEN, Datagram, Kind, tunnel_plain_header, tunnel_sealed_header};

/// Bytes before the train: kind, chain, reserved, receiver index, counter or token.
pub const HEADER_LEN: usize = CONTROL_HEADER_LEN;
/// Bytes before each packet of a train.
pub const LENGTH_LEN: usize = 2;
/// What a datagram of a single packet has before it.
pub const FRAMING: usize = HEADER_LEN + LENGTH_LEN;

/// Whether a datagram with this first byte belongs to a tunnel.
#[must_use]
pub fn is_tunnel(first: u8) -> bool {
    first == Kind::TunnelSealed as u8 || first == Kind::TunnelPlain as u8
}

/// The chain that a datagram names which [`is_tunnel`].
#[must_use]
pub fn chain_of(datagram: &[u8]) -> Option<u8> {
    datagram.get(1).copied()
}

/// The header of a tunnel datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHeader {
    /// Which chain of transforms the packets went through; 0 is the empty one.
    pub chain: u8,
    /// The index that the receiver gave to the session.
    pub receiver: u32,
    /// Sealed or plain.
    pub protection: Protection,
}

/// What guards a datagram against strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Sealed under the session's tunnel key, with this counter as nonce.
    Sealed {
        /// Never used twice under one key.
        counter: u64,
    },
    /// Not encrypted: a token that the receiver gave out in the session.
    Plain {
        /// The receiver's token.
        token: u64,
    },
}

impl TunnelHeader {
    /// The header's bytes; reserved ones are zero (P-4).
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        match self.protection {
            Protection::Sealed { counter } => tunnel_sealed_header(self.chain, self.receiver, counter),
            Protection::Plain { token } => tunnel_plain_header(self.chain, self.receiver, token),
        }
    }

    /// Reads the header of `datagram`; its train follows at [`HEADER_LEN`]. Reserved bytes are ignored (P-4).
    ///
    /// # Errors
    /// [`Malformed`] for other kinds and for what is too short (P-1).
    pub fn decode(datagram: &[u8]) -> Result<Self, Malformed> {
        match Datagram::parse(datagram)? {
            Datagram::TunnelSealed(sealed) => Ok(Self {
                chain: sealed.chain,
                receiver: sealed.receiver,
                protection: Protection::Sealed { counter: sealed.counter },
            }),
            Datagram::TunnelPlain(plain) => Ok(Self {
                chain: plain.chain,
                receiver: plain.receiver,
                protection: Protection::Plain { token: plain.token },
            }),
            _ => Err(Malformed { what: "tunnel datagram kind", at: 0 }),
        }
    }
}

/// The length that stands before a packet in a train.
///
/// # Errors
/// [`Malformed`] if the packet is longer than a train can say.
pub fn length_prefix(packet: usize) -> Result<[u8; LENGTH_LEN], Malformed> {
    u16::try_from(packet).map(u16::to_be_bytes).map_err(|_| Malformed { what: "packet length", at: 0 })
}

/// The packets of a train, as offset and length within it. After an error nothing more comes.
#[derive(Clone, Debug)]
pub struct Train<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Train<'a> {
    /// Reads the plaintext of a datagram.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl Iterator for Train<'_> {
    type Item = Result<(usize, usize), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let start = self.at + LENGTH_LEN;
        let length = rest.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)));
        match length.filter(|&length| length > 0 && start + length <= self.bytes.len()) {
            Some(length) => {
                self.at = start + length;
                Some(Ok((start, length)))
            }
            None => {
                let at = std::mem::replace(&mut self.at, self.bytes.len());
                Some(Err(Malformed { what: "packet of a train", at }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_is_as_documented() {
        let header = TunnelHeader { chain: 7, receiver: 0x0102_0304, protection: Protection::Sealed { counter: 5 } };
        assert_eq!(header.encode(), [0x20, 7, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
        let mut reserved = [header.encode(), [0; 16]].concat();
        reserved[2] = 0xff;
        assert_eq!(TunnelHeader::decode(&reserved), Ok(header));
        assert!(TunnelHeader::decode(&[0x10; 40]).is_err());
        assert!(TunnelHeader::decode(&[0x20; 31]).is_err());
        assert!(TunnelHeader::decode(&[0x21; 15]).is_err());
    }

    #[test]
    fn trains_that_are_cut_off_are_seen() {
        for bytes in [&[0u8, 5, 1, 2, 3, 4][..], &[0, 0], &[1], &[0, 1, 9, 0, 2, 1]] {
            let packets: Vec<_> = Train::new(bytes).collect();
            assert!(packets.last().unwrap().is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn headers_round_trip(chain: u8, receiver: u32, last: u64, sealed: bool) {
            let protection =
                if sealed { Protection::Sealed { counter: last } } else { Protection::Plain { token: last } };
            let header = TunnelHeader { chain, receiver, protection };
            prop_assert_eq!(TunnelHeader::decode(&[header.encode(), [0; 16]].concat()), Ok(header));
        }

        #[test]
        fn trains_round_trip(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..99), 0..9)) {
            let mut train = Vec::new();
            for packet in &packets {
                train.extend(length_prefix(packet.len()).unwrap());
                train.extend(packet);
            }
            let read: Result<Vec<_>, _> = Train::new(&train).collect();
            let read: Vec<_> = read.unwrap().into_iter().map(|(at, len)| train[at..at + len].to_vec()).collect();
            prop_assert_eq!(read, packets);
        }

        #[test]
        fn noise_never_panics(data in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = TunnelHeader::decode(&data);
            for packet in Train::new(&data).flatten() {
                prop_assert!(packet.0 + packet.1 <= data.len());
            }
        }
    }
}
