//! Byte streams whose every byte follows from its position, so that each can be checked where it arrives.

use crate::random::mix;

/// One of the two directions of a connection's stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern(u64);

impl Pattern {
    /// The stream from the client (`true`) or from the server of the connection with this seed.
    pub(super) fn new(seed: u64, from_client: bool) -> Self {
        Self(mix(seed.wrapping_mul(2).wrapping_add(u64::from(from_client)).wrapping_add(0x5742)))
    }

    /// Writes the bytes from `position` on.
    pub(super) fn fill(self, position: u64, out: &mut [u8]) {
        let mut position = position;
        let mut rest = out;
        while !rest.is_empty() {
            let word = mix(self.0 ^ (position / 8)).to_le_bytes();
            let skip = (position % 8) as usize;
            let n = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&word[skip..skip + n]);
            position += n as u64;
            rest = later;
        }
    }

    /// Position of the first byte of `got` that is not as it must be from `position` on.
    pub(super) fn first_difference(self, position: u64, got: &[u8], scratch: &mut Vec<u8>) -> Option<u64> {
        scratch.resize(got.len(), 0);
        self.fill(position, scratch);
        if scratch[..] == *got {
            return None;
        }
        let at = scratch.iter().zip(got).position(|(a, b)| a != b)?;
        Some(position + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let p = Pattern::new(3, true);
        let mut whole = [0; 100];
        p.fill(0, &mut whole);
        for start in 0..100 {
            let mut part = vec![0; 100 - start];
            p.fill(start as u64, &mut part);
            assert_eq!(part, whole[start..]);
        }
    }

    #[test]
    fn a_flipped_bit_is_found_where_it_is() {
        let p = Pattern::new(3, false);
        let mut bytes = [0; 100];
        p.fill(7, &mut bytes);
        let mut scratch = Vec::new();
        assert_eq!(p.first_difference(7, &bytes, &mut scratch), None);
        bytes[40] ^= 1;
        assert_eq!(p.first_difference(7, &bytes, &mut scratch), Some(47));
        assert_ne!(Pattern::new(3, true).first_difference(7, &bytes, &mut scratch), None, "directions differ");
    }
}
