//! Taking a stream in the name of a peer that is away: what is kept is acknowledged, in order and up to a limit, and
//! nothing else.

use std::ops::Range;

use super::segment::Segment;

/// What became of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The part of its payload that is new, and is to be stored before it is acknowledged.
    pub(crate) new: Range<usize>,
    /// It is to be answered by an acknowledgement.
    pub(crate) answer: bool,
}

/// The receiving half of what answers for the absent end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keeper {
    /// Where the stream begins that the peer lacks.
    base: u32,
    kept: u64,
    limit: u64,
}

impl Keeper {
    /// `kept`: bytes from `base` on that are stored already. `limit`: bytes that may be, at most 2^30.
    pub(crate) fn new(base: u32, kept: u64, limit: u64) -> Self {
        Self { base, kept, limit: limit.min(1 << 30).max(kept) }
    }

    /// The first that is not kept.
    pub(crate) fn next(&self) -> u32 {
        // The limit keeps it within 32 bits.
        self.base.wrapping_add(self.kept as u32)
    }

    /// Bytes that are kept.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes that may still be.
    pub(crate) fn room(&self) -> u64 {
        self.limit - self.kept
    }

    /// The window as a header has it, where it is scaled by so many bits.
    pub(crate) fn window(&self, scale: u8) -> u16 {
        u16::try_from(self.room() >> scale.min(14)).unwrap_or(u16::MAX)
    }

    /// The peer has all before `base`, which is further than was known. Nothing is kept yet.
    pub(crate) fn begin_at(&mut self, base: u32) {
        self.base = base;
    }

    /// Nothing more is kept.
    pub(crate) fn close(&mut self) {
        self.limit = self.kept;
    }

    /// Looks at a segment of the live end's. The new part is taken as stored.
    pub(crate) fn take(&mut self, segment: &Segment) -> Taken {
        let ahead = segment.sequence.wrapping_sub(self.next()).cast_signed();
        let length = segment.payload.len();
        if length == 0 {
            // A keepalive, a window probe, or an end that the peer has to hear of itself; a bare acknowledgement asks
            // nothing.
            return Taken { new: 0..0, answer: ahead < 0 || segment.fin };
        }
        let known = usize::try_from(-i64::from(ahead)).unwrap_or(0);
        if ahead > 0 || known >= length {
            return Taken { new: 0..0, answer: true };
        }
        let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
        let new = known..length.min(known.saturating_add(room));
        self.kept += new.len() as u64;
        Taken { new, answer: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use whimbrel_wire::{FlowTuple, Transport};

    fn segment(sequence: u32, payload: &[u8]) -> Segment {
        let end = "192.0.2.1:7".parse().expect("an endpoint");
        Segment {
            flow: FlowTuple { transport: Transport::Tcp, local: end, remote: end },
            sequence,
            acknowledgement: Some(1),
            window: 100,
            fin: false,
            timestamps: None,
            signed: false,
            payload: payload.to_vec(),
        }
    }

    #[test]
    fn only_what_is_next_is_kept() {
        let base = u32::MAX - 2;
        let mut keeper = Keeper::new(base, 0, 100);
        assert_eq!(keeper.take(&segment(base.wrapping_add(1), b"later")), Taken { new: 0..0, answer: true });
        assert_eq!(keeper.take(&segment(base, b"first")), Taken { new: 0..5, answer: true });
        assert_eq!((keeper.next(), keeper.kept()), (2, 5));
        assert_eq!(keeper.take(&segment(base, b"first and more")), Taken { new: 5..14, answer: true });
        assert_eq!(keeper.take(&segment(base, b"first")), Taken { new: 0..0, answer: true });
        // A probe asks, an acknowledgement does not.
        assert!(keeper.take(&segment(keeper.next().wrapping_sub(1), b"")).answer);
        assert!(!keeper.take(&segment(keeper.next(), b"")).answer);
        let end = Segment { fin: true, ..segment(keeper.next(), b"") };
        assert_eq!(keeper.take(&end), Taken { new: 0..0, answer: true });
        assert_eq!(keeper.kept(), 14);
    }

    #[test]
    fn what_the_peer_has_already_is_not_waited_for() {
        let mut keeper = Keeper::new(7, 0, 100);
        assert_eq!(keeper.take(&segment(10, b"next")), Taken { new: 0..0, answer: true });
        keeper.begin_at(10);
        assert_eq!(keeper.take(&segment(10, b"next")), Taken { new: 0..4, answer: true });
        assert_eq!((keeper.next(), keeper.kept(), keeper.room()), (14, 4, 96));
    }

    #[test]
    fn the_window_closes_with_the_limit() {
        let mut keeper = Keeper::new(7, 0, 1000);
        assert_eq!((keeper.window(0), keeper.window(7), keeper.window(14)), (1000, 7, 0));
        assert_eq!(keeper.take(&segment(7, &[0; 600])).new, 0..600);
        assert_eq!(keeper.take(&segment(607, &[0; 600])).new, 0..400);
        assert_eq!(keeper.take(&segment(1007, &[0; 600])), Taken { new: 0..0, answer: true });
        assert_eq!((keeper.window(0), keeper.room()), (0, 0));
        let mut closed = Keeper::new(7, 0, 1000);
        closed.close();
        assert_eq!(closed.take(&segment(7, b"x")), Taken { new: 0..0, answer: true });
        assert_eq!(Keeper::new(7, 0, u64::MAX).window(0), u16::MAX);
    }

    proptest! {
        /// Whatever comes, in whatever order and however often, what is kept is a beginning of the stream.
        #[test]
        fn what_is_kept_is_the_stream(
            base in any::<u32>(),
            limit in 0..3000_u64,
            cuts in proptest::collection::vec((0..2000_usize, 0..300_usize), 1..80),
        ) {
            let stream: Vec<u8> = (0..2300_u32).map(|at| (at * 7 % 251) as u8).collect();
            let mut keeper = Keeper::new(base, 0, limit);
            let mut kept = Vec::new();
            for (start, length) in cuts {
                let sequence = base.wrapping_add(start as u32);
                let taken = keeper.take(&segment(sequence, &stream[start..start + length]));
                kept.extend_from_slice(&stream[start..start + length][taken.new]);
                prop_assert_eq!(kept.len() as u64, keeper.kept());
            }
            prop_assert_eq!(&kept[..], &stream[..kept.len()]);
            prop_assert!(kept.len() as u64 <= limit);
        }
    }
}
