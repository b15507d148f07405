//! The mark of an introduction inside a flow: `docs/protocol.md` §4.
//!
//! In TCP it is an experimental option (RFC 6994), in UDP the whole payload of a datagram of the flow. Probes of the
//! *rewrite* carrier look the same.

use crate::codec::Reader;

/// What an introduction says: which session it belongs to, and the number that has to come back in that session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// Session index of the receiver.
    pub index: u32,
    /// Drawn by the sender for this flow.
    pub nonce: u64,
}

/// TCP option kind 253: experiment 1 of RFC 4727.
pub const TCP_OPTION_KIND: u8 = 253;
/// Length of the TCP option with kind and length bytes.
pub const TCP_OPTION_LEN: usize = 16;
/// Experiment identifier of RFC 6994, "WB".
pub const TCP_OPTION_EXID: u16 = 0x5742;
/// The first bytes of a UDP introduction.
pub const UDP_MAGIC: [u8; 8] = *b"\xffWBintro";
/// Length of the payload of a UDP introduction.
pub const UDP_PAYLOAD_LEN: usize = 20;
/// Most bytes of TCP options in a segment (RFC 9293 §3.1).
pub const TCP_OPTIONS_MAX: usize = 40;

impl Introduction {
    /// The TCP option; its length is a multiple of 4, so it needs no padding.
    #[must_use]
    pub fn tcp_option(self) -> [u8; TCP_OPTION_LEN] {
        let mut option = [0; TCP_OPTION_LEN];
        option[0] = TCP_OPTION_KIND;
        option[1] = TCP_OPTION_LEN as u8;
        option[2..4].copy_from_slice(&TCP_OPTION_EXID.to_be_bytes());
        option[4..8].copy_from_slice(&self.index.to_be_bytes());
        option[8..].copy_from_slice(&self.nonce.to_be_bytes());
        option
    }

    /// The first introduction among the options of a TCP segment, walked as RFC 9293 §3.2 says.
    ///
    /// `None` if there is none, or if the list is malformed before it.
    #[must_use]
    pub fn in_tcp_options(options: &[u8]) -> Option<Self> {
        const END: u8 = 0;
        const NO_OPERATION: u8 = 1;
        let mut rest = options;
        loop {
            let (&kind, after_kind) = rest.split_first()?;
            match kind {
                END => return None,
                NO_OPERATION => rest = after_kind,
                _ => {
                    let length = usize::from(*after_kind.first()?);
                    if length < 2 {
                        return None;
                    }
                    let (option, after) = rest.split_at_checked(length)?;
                    if let Some(found) = Self::from_tcp_option(option) {
                        return Some(found);
                    }
                    rest = after;
                }
            }
        }
    }

    fn from_tcp_option(option: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(option);
        let ours = option.len() == TCP_OPTION_LEN
            && reader.u8("kind").ok()? == TCP_OPTION_KIND
            && usize::from(reader.u8("length").ok()?) == TCP_OPTION_LEN
            && reader.u16("ExID").ok()? == TCP_OPTION_EXID;
        if !ours {
            return None;
        }
        Some(Self { index: reader.u32("index").ok()?, nonce: reader.u64("nonce").ok()? })
    }

    /// The payload of a UDP datagram of the flow.
    #[must_use]
    pub fn udp_payload(self) -> [u8; UDP_PAYLOAD_LEN] {
        let mut payload = [0; UDP_PAYLOAD_LEN];
        payload[..8].copy_from_slice(&UDP_MAGIC);
        payload[8..12].copy_from_slice(&self.index.to_be_bytes());
        payload[12..].copy_from_slice(&self.nonce.to_be_bytes());
        payload
    }

    /// The introduction that a UDP payload is, if it is one.
    #[must_use]
    pub fn from_udp_payload(payload: &[u8]) -> Option<Self> {
        let payload: &[u8; UDP_PAYLOAD_LEN] = payload.try_into().ok()?;
        let mut reader = Reader::new(payload);
        if *reader.array::<8>("magic").ok()? != UDP_MAGIC {
            return None;
        }
        Some(Self { index: reader.u32("index").ok()?, nonce: reader.u64("nonce").ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Introduction = Introduction { index: 0x0102_0304, nonce: 0x1122_3344_5566_7788 };

    #[test]
    fn the_option_is_as_written_in_the_protocol() {
        let expected = [253, 16, 0x57, 0x42, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(SAMPLE.tcp_option(), expected);
        assert_eq!(Introduction::in_tcp_options(&expected), Some(SAMPLE));
    }

    #[test]
    fn the_option_is_found_after_others() {
        let mut options = [1; 28];
        options[2..12].copy_from_slice(&[8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        options[12..].copy_from_slice(&SAMPLE.tcp_option());
        assert_eq!(Introduction::in_tcp_options(&options), Some(SAMPLE));
    }

    #[test]
    fn other_experiments_and_broken_lists_are_not_introductions() {
        let mut other = SAMPLE.tcp_option();
        other[2] ^= 1;
        assert_eq!(Introduction::in_tcp_options(&other), None);
        let mut after_end = [0; 20];
        after_end[4..].copy_from_slice(&SAMPLE.tcp_option());
        assert_eq!(Introduction::in_tcp_options(&after_end), None);
        for length in 0..TCP_OPTION_LEN {
            assert_eq!(Introduction::in_tcp_options(&SAMPLE.tcp_option()[..length]), None);
        }
        for broken in [0, 1, 15, 17, 255] {
            let mut option = SAMPLE.tcp_option();
            option[1] = broken;
            assert_eq!(Introduction::in_tcp_options(&option), None);
        }
    }

    #[test]
    fn the_udp_payload_is_as_written_in_the_protocol() {
        let payload = SAMPLE.udp_payload();
        assert_eq!(&payload[..8], b"\xffWBintro");
        assert_eq!(Introduction::from_udp_payload(&payload), Some(SAMPLE));
        assert_eq!(Introduction::from_udp_payload(&payload[..19]), None);
        let mut longer = payload.to_vec();
        longer.push(0);
        assert_eq!(Introduction::from_udp_payload(&longer), None);
    }
}
