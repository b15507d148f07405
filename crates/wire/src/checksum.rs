//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! A *sum* here is the ones' complement sum folded to 16 bits, as a number in host order, **not** complemented; a
//! *checksum* is its complement, as it stands in a header.

/// Ones' complement sum of `data`, an odd last byte being padded with a zero byte.
///
/// The sum is formed over native words and turned to network order at the end, which RFC 1071 §2(B) shows to be the
/// same. Four accumulators with end-around carry keep the additions of one from waiting for those of another. (Summing
/// narrower words in vector registers can be as fast, but whether the compiler does so hangs on a hair.)
#[inline]
#[must_use]
pub fn sum(data: &[u8]) -> u16 {
    let mut lanes = [0u64; 4];
    let (blocks, rest) = data.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = add_word(*lane, u64::from_ne_bytes(*word));
        }
    }
    let total = lanes.into_iter().fold(0, add_word);
    // From here on there is room for the carries of the few words that are left.
    let mut total = (total >> 32) + (total & 0xffff_ffff);
    let (words, rest) = rest.as_chunks::<4>();
    total += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
    let (pairs, rest) = rest.as_chunks::<2>();
    total += pairs.iter().map(|pair| u64::from(u16::from_ne_bytes(*pair))).sum::<u64>();
    total += rest.iter().map(|&last| u64::from(u16::from_ne_bytes([last, 0]))).sum::<u64>();
    u16::from_be(fold(total))
}

/// Ones' complement addition of two sums.
#[inline]
#[must_use]
pub fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// The sum that replacing bytes summing to `old` by bytes summing to `new` adds to a sum: `m' + ~m` of RFC 1624.
#[inline]
#[must_use]
pub fn difference(old: u16, new: u16) -> u16 {
    add(new, !old)
}

/// The checksum after a change of `difference` in the bytes that it covers: equation 3 of RFC 1624.
#[inline]
#[must_use]
pub fn update(checksum: u16, difference: u16) -> u16 {
    !add(!checksum, difference)
}

fn add_word(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

fn fold(sum: u64) -> u16 {
    // From 64 bits to 33, to 32, to 17, to 16.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn naive(data: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in data.chunks(2) {
            total += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    /// 0 and 0xffff are the same number in ones' complement.
    fn same(a: u16, b: u16) -> bool {
        a % 0xffff == b % 0xffff
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn all_ones_does_not_lose_carries() {
        for len in 0..200 {
            assert_eq!(sum(&vec![0xff; len]), naive(&vec![0xff; len]), "{len}");
        }
    }

    proptest! {
        #[test]
        fn sum_is_as_the_naive_one(data in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(sum(&data), naive(&data));
        }

        #[test]
        fn update_is_as_computed_anew(mut data in proptest::collection::vec(any::<u8>(), 40..100), new: [u8; 4]) {
            let before = !sum(&data);
            let changed = difference(sum(&data[8..12]), sum(&new));
            data[8..12].copy_from_slice(&new);
            prop_assert!(same(update(before, changed), !sum(&data)));
        }
    }
}
