//! What the fuzz targets share.

/// Takes the input of a target apart.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; zero once there is none.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next 2 bytes as a number.
    pub fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// Up to `length` of the next bytes.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Whether anything is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The datagram as somebody on the way may leave it: some bytes changed, perhaps cut or made longer.
    pub fn tamper(&mut self, datagram: &[u8]) -> Vec<u8> {
        let mut tampered = datagram.to_vec();
        for _ in 0..self.byte() % 4 {
            let at = self.number() % tampered.len();
            tampered[at] ^= self.byte();
        }
        match self.byte() % 8 {
            0 => tampered.truncate(self.number() % (datagram.len() + 1)),
            1 => tampered.extend_from_slice(self.bytes(16)),
            _ => {}
        }
        tampered
    }
}

/// A repeatable source of bytes.
pub fn randomness(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |out| {
        for byte in out {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
    }
}
