//! The replay window of a receiving key (P-6; the bitmap is that of RFC 6479).

const WORDS: u64 = 64;
const BITS: u64 = 64;

/// How far behind the highest counter a datagram may be: one word of the ring is always being filled.
pub const WINDOW: u64 = (WORDS - 1) * BITS;

/// Which of the last [`WINDOW`] counters were seen.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the highest counter accepted.
    next: u64,
    ring: [u64; WORDS as usize],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, ring: [0; WORDS as usize] }
    }
}

impl ReplayWindow {
    /// Accepts `counter` unless it was accepted before or is too old to tell. To be called **after** authentication:
    /// otherwise a forged counter would push the window on.
    pub fn accept(&mut self, counter: u64) -> bool {
        if counter == u64::MAX || counter.saturating_add(WINDOW) < self.next {
            return false;
        }
        let word = counter / BITS;
        if counter >= self.next {
            let newest = self.next.wrapping_sub(1) / BITS;
            let first = if self.next == 0 { 0 } else { newest + 1 };
            let stale = (word + 1).saturating_sub(first).min(WORDS);
            for step in 0..stale {
                self.ring[((word - step) % WORDS) as usize] = 0;
            }
            self.next = counter + 1;
        }
        let bit = 1 << (counter % BITS);
        let slot = &mut self.ring[(word % WORDS) as usize];
        let fresh = *slot & bit == 0;
        *slot |= bit;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_counter_passes_once() {
        let mut window = ReplayWindow::default();
        for counter in [0, 1, 5, 3, WINDOW, 4, 100_000, 100_000 - WINDOW + 1, u64::MAX - 1] {
            assert!(window.accept(counter), "{counter}");
            assert!(!window.accept(counter), "{counter}");
        }
        assert!(!window.accept(2));
        assert!(!window.accept(u64::MAX));
    }

    proptest! {
        #[test]
        fn is_as_a_set_within_the_window(steps in proptest::collection::vec((0u64..6000, any::<bool>()), 1..400)) {
            let mut window = ReplayWindow::default();
            let (mut seen, mut highest) = (BTreeSet::new(), 0u64);
            for (step, forward) in steps {
                let counter = if forward { highest + step } else { highest.saturating_sub(step) };
                let old = highest - counter.min(highest) >= WINDOW;
                let accepted = window.accept(counter);
                if !old {
                    prop_assert_eq!(accepted, !seen.contains(&counter));
                } else if seen.contains(&counter) {
                    prop_assert!(!accepted);
                }
                seen.insert(counter);
                highest = highest.max(counter);
            }
        }
    }
}
