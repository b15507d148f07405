//! What a live socket sent while its peer is away, as the TUN device hands it over.

use whimbrel_wire::packet::tcp::flag::{ACK, FIN, RST, SYN};
use whimbrel_wire::packet::{Fragment, Headers, Tcp};
use whimbrel_wire::{FlowTuple, Transport};

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_TIMESTAMPS: u8 = 8;
/// RFC 2385 and RFC 5925: nobody but the ends can make a segment of such a connection.
const OPTIONS_OF_AUTHENTICATION: [u8; 2] = [19, 29];

/// A TCP segment, perhaps as long as several (a super-packet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// As its sender names it.
    pub(crate) flow: FlowTuple,
    pub(crate) sequence: u32,
    /// None without ACK.
    pub(crate) acknowledgement: Option<u32>,
    /// As in the header, without the scale.
    pub(crate) window: u16,
    pub(crate) fin: bool,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
    /// It bears a signature.
    pub(crate) signed: bool,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    /// Reads a whole IP packet. None if it is no segment of a connection that is open: SYN and RST are none.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let headers = Headers::parse(packet).ok()?;
        if headers.transport != Transport::Tcp || headers.fragment != Fragment::Whole {
            return None;
        }
        let segment = Tcp::parse(packet.get(headers.transport_offset..headers.end)?).ok()?;
        if segment.flags & (SYN | RST) != 0 {
            return None;
        }
        let (timestamps, signed) = timestamps_and_signature(segment.options);
        Some(Self {
            flow: headers.outbound_tuple(),
            sequence: segment.sequence,
            acknowledgement: segment.has(ACK).then_some(segment.acknowledgement),
            window: segment.window,
            fin: segment.has(FIN),
            timestamps,
            signed,
            payload: segment.payload.to_vec(),
        })
    }
}

/// What a segment's options say: its timestamps, and whether it bears a signature.
fn timestamps_and_signature(mut options: &[u8]) -> (Option<(u32, u32)>, bool) {
    let (mut timestamps, mut signed) = (None, false);
    while let [kind, rest @ ..] = options {
        match (*kind, rest.first().map(|length| usize::from(*length))) {
            (OPTION_END, _) => break,
            (OPTION_NOP, _) => options = rest,
            (kind, Some(length)) if (2..=options.len()).contains(&length) => {
                let (option, behind) = options.split_at(length);
                if let (OPTION_TIMESTAMPS, Some((own, echo))) = (kind, option[2..].split_at_checked(4))
                    && let (Ok(own), Ok(echo)) = (own.try_into(), echo.try_into())
                {
                    timestamps = Some((u32::from_be_bytes(own), u32::from_be_bytes(echo)));
                }
                signed |= OPTIONS_OF_AUTHENTICATION.contains(&kind);
                options = behind;
            }
            _ => break,
        }
    }
    (timestamps, signed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;
    use whimbrel_wire::packet::Ip;

    fn packet(flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let segment = Tcp {
            source_port: 7,
            destination_port: 9,
            sequence: 0x0102_0304,
            acknowledgement: 0x0506_0708,
            flags,
            window: 0x0201,
            options,
            payload,
        };
        let address = |last| IpAddr::from([192, 0, 2, last]);
        Ip::new(address(1), address(2)).tcp(&segment).expect("a packet")
    }

    #[test]
    fn a_segment_is_read_with_its_timestamps() {
        let options = [1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0];
        let segment = Segment::parse(&packet(0x18, &options, b"PING :x\r\n")).expect("a segment");
        assert_eq!((segment.sequence, segment.acknowledgement), (0x0102_0304, Some(0x0506_0708)));
        assert_eq!((segment.window, segment.fin, segment.signed), (0x0201, false, false));
        assert_eq!(segment.timestamps, Some((256, 512)));
        assert_eq!(segment.payload, b"PING :x\r\n");
        assert_eq!(segment.flow.to_string(), Segment::parse(&packet(0x11, &[], b"")).expect("FIN").flow.to_string());
        // Padding of the link is no part of the stream.
        let mut padded = packet(0x10, &[], b"");
        padded.extend([0; 12]);
        assert_eq!(Segment::parse(&padded).expect("an acknowledgement").payload, b"");
    }

    #[test]
    fn signed_segments_are_known_and_resets_are_none() {
        let signed = [[19, 18].as_slice(), &[0; 16], &[1, 1]].concat();
        assert!(Segment::parse(&packet(0x10, &signed, b"x")).expect("a segment").signed);
        for flags in [0x02, 0x12, 0x04, 0x14] {
            assert_eq!(Segment::parse(&packet(flags, &[], b"")), None);
        }
        // Options that say more than there is.
        assert!(Segment::parse(&packet(0x10, &[8, 10, 0, 0], b"")).expect("a segment").timestamps.is_none());
        assert!(Segment::parse(&packet(0x10, &[8, 0, 0, 0], b"")).expect("a segment").timestamps.is_none());
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Segment::parse(&bytes);
            let mut v4 = packet(0x10, &[0; 20], b"abc");
            for (at, byte) in bytes.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
                if let Some(place) = v4.get_mut(20 + at) {
                    *place = *byte;
                }
            }
            let _ = Segment::parse(&v4);
        }
    }
}
