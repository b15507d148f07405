//! What a live socket sent while its peer is away, as the TUN device hands it over.

use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{FlowTuple, Transport};

const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;
const OPTIONS: usize = 20;
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
        let header = packet.get(headers.transport_offset..headers.payload_offset)?;
        let number = |at: usize| header.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let flags = *header.get(13)?;
        if flags & (FLAG_SYN | FLAG_RST) != 0 {
            return None;
        }
        let mut this = Self {
            flow: headers.outbound_tuple(),
            sequence: number(4)?,
            acknowledgement: if flags & FLAG_ACK != 0 { Some(number(8)?) } else { None },
            window: u16::from_be_bytes([header[14], header[15]]),
            fin: flags & FLAG_FIN != 0,
            timestamps: None,
            signed: false,
            payload: packet.get(headers.payload_offset..headers.end)?.to_vec(),
        };
        this.read_options(header.get(OPTIONS..)?);
        Some(this)
    }

    fn read_options(&mut self, mut options: &[u8]) {
        while let [kind, rest @ ..] = options {
            match *kind {
                OPTION_END => return,
                OPTION_NOP => options = rest,
                kind => {
                    let Some(length) = rest.first().map(|length| usize::from(*length)).filter(|length| *length >= 2)
                    else {
                        return;
                    };
                    let Some(body) = options.get(2..length) else { return };
                    if let (OPTION_TIMESTAMPS, Some((own, echo))) = (kind, body.split_at_checked(4))
                        && let (Ok(own), Ok(echo)) = (own.try_into(), echo.try_into())
                    {
                        self.timestamps = Some((u32::from_be_bytes(own), u32::from_be_bytes(echo)));
                    }
                    self.signed |= OPTIONS_OF_AUTHENTICATION.contains(&kind);
                    options = &options[length..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0, 7, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, ((5 + options.len() / 4) << 4) as u8, flags, 2, 1];
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(payload);
        let mut packet = vec![0x45, 0];
        packet.extend(((20 + segment.len()) as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend(segment);
        packet
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
