//! Randomness that the caller seeds, so that a run can be repeated.

use ring::hkdf;

/// A generator of unpredictable bytes: HKDF-SHA256 (RFC 5869) over the seed, one expansion a block, by a counter.
pub(crate) struct Random {
    key: hkdf::Prk,
    counter: u64,
}

struct Block;

impl hkdf::KeyType for Block {
    fn len(&self) -> usize {
        32
    }
}

impl Random {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { key: hkdf::Salt::new(hkdf::HKDF_SHA256, b"whimbrel random").extract(&seed), counter: 0 }
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(32) {
            self.counter += 1;
            let mut block = [0; 32];
            let counter = self.counter.to_be_bytes();
            let info = [&counter[..]];
            // One block of 32 bytes is within HKDF's limit of 255, so neither call can fail.
            if let Ok(okm) = self.key.expand(&info, Block) {
                let _ = okm.fill(&mut block);
            }
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_be_bytes(bytes)
    }

    /// Not zero.
    pub(crate) fn u32(&mut self) -> u32 {
        loop {
            let value = (self.u64() >> 32) as u32;
            if value != 0 {
                return value;
            }
        }
    }
}
