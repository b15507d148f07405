//! What the two ends of a session call a binding between them.

/// The number of a binding between two peers. They have one by themselves; others are numbered by the end that makes
/// them, so that those of the two never clash: bit 31 is set in those of the end with the greater key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingNumber(pub u32);

impl BindingNumber {
    /// The one that two peers have by themselves.
    pub const FIRST: Self = Self(0);
    /// Set in numbers that the end with the greater key gives.
    const GREATER: u32 = 1 << 31;

    /// The number of the binding that an end makes as its `count`th, counted from 1 and below 2³¹. `greater`: it has
    /// the greater key of the two.
    #[must_use]
    pub const fn made(count: u32, greater: bool) -> Self {
        Self(count | if greater { Self::GREATER } else { 0 })
    }

    /// Whether a binding of this number is made by the end with the greater key, or else by that with the lesser.
    #[must_use]
    pub const fn is_made(self, greater: bool) -> bool {
        self.0 & !Self::GREATER != 0 && (self.0 & Self::GREATER != 0) == greater
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_two_ends_never_clash() {
        for count in [1, 2, (1 << 31) - 1] {
            let (lesser, greater) = (BindingNumber::made(count, false), BindingNumber::made(count, true));
            assert!(lesser != greater && lesser != BindingNumber::FIRST && greater != BindingNumber::FIRST);
            assert!(lesser.is_made(false) && greater.is_made(true));
            assert!(!lesser.is_made(true) && !greater.is_made(false));
        }
        // The first is made by nobody, nor is what looks like another first.
        let firsts = [BindingNumber::FIRST, BindingNumber(1 << 31)];
        assert!(firsts.iter().all(|first| !first.is_made(false) && !first.is_made(true)));
    }
}
