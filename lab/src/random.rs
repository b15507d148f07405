//! A small seeded generator: the same seed gives the same losses, ports and byte streams on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed from the kernel.
    pub fn fresh_seed() -> u64 {
        let mut bytes = [0u8; 8];
        // 8 bytes are never cut short once the pool is initialised, and a zero seed would do as well.
        let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        u64::from_ne_bytes(bytes)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`. Draws a number only if that can matter.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.fraction() < p
    }

    /// Uniform in 0..n (n > 0).
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

/// SplitMix64's output function: a good 64-bit mixer, used to compute any position of a stream directly.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_matches_its_probability() {
        let mut r = Random::new(1);
        let hits = (0..100_000).filter(|_| r.chance(0.03)).count();
        assert!((2700..3300).contains(&hits), "{hits}");
    }

    #[test]
    fn below_stays_below() {
        let mut r = Random::new(2);
        assert!((0..10_000).all(|_| r.below(7) < 7));
    }
}
