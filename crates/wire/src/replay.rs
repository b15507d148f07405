//! The window that tells datagrams received before from new ones (P-6), as in RFC 6479.

const WORDS: usize = 64;
const BITS: u64 = u64::BITS as u64;

/// Remembers which counters were received: all of the last [`Self::WIDTH`] below the highest.
///
/// The bits lie in a ring of words. The word that the highest counter is in is partly in the future, so the window is
/// one word shorter than the ring and a step forward clears whole words only.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    ring: [u64; WORDS],
    highest: Option<u64>,
}

impl ReplayWindow {
    /// How far below the highest counter received a counter may lie. P-6 asks for at least 2048.
    pub const WIDTH: u64 = (WORDS as u64 - 1) * BITS;

    /// A window that has seen nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { ring: [0; WORDS], highest: None }
    }

    /// Whether a datagram with this counter is new. To be asked before the costly check of its tag; changes nothing.
    #[must_use]
    pub fn is_new(&self, counter: u64) -> bool {
        let Some(highest) = self.highest else { return true };
        if counter > highest {
            return true;
        }
        highest - counter < Self::WIDTH && self.ring[word(counter)] & bit(counter) == 0
    }

    /// Takes the counter of an authentic datagram; false, with nothing changed, if it is not new.
    pub fn accept(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) {
            return false;
        }
        let highest = self.highest.unwrap_or(0);
        if counter > highest {
            let step = (counter / BITS - highest / BITS).min(WORDS as u64);
            for ahead in 1..=step {
                self.ring[word_at(highest / BITS + ahead)] = 0;
            }
        }
        self.highest = Some(highest.max(counter));
        self.ring[word(counter)] |= bit(counter);
        true
    }

    /// The highest counter received.
    #[must_use]
    pub const fn highest(&self) -> Option<u64> {
        self.highest
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

const fn word(counter: u64) -> usize {
    word_at(counter / BITS)
}

const fn word_at(position: u64) -> usize {
    (position % WORDS as u64) as usize
}

const fn bit(counter: u64) -> u64 {
    1 << (counter % BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const WIDTH: u64 = ReplayWindow::WIDTH;

    #[test]
    fn the_window_is_as_wide_as_demanded() {
        const { assert!(WIDTH >= 2048) }
    }

    #[test]
    fn each_counter_is_taken_once() {
        let mut window = ReplayWindow::new();
        for counter in [0, 1, 2, 7, 5, 63, 64, 65, 62, 200, 128, 127] {
            assert!(window.is_new(counter));
            assert!(window.accept(counter), "{counter}");
            assert!(!window.is_new(counter));
            assert!(!window.accept(counter), "{counter} again");
        }
        assert_eq!(window.highest(), Some(200));
    }

    #[test]
    fn what_is_older_than_the_window_is_refused() {
        for highest in [WIDTH, WIDTH + 63, WIDTH + 64, 10 * WIDTH + 17] {
            let mut window = ReplayWindow::new();
            assert!(window.accept(highest));
            assert!(!window.accept(highest - WIDTH), "just outside of {highest}");
            assert!(window.accept(highest - WIDTH + 1), "just inside of {highest}");
        }
    }

    #[test]
    fn leaps_forget_nothing_that_counts() {
        let mut window = ReplayWindow::new();
        assert!(window.accept(5));
        assert!(window.accept(5 + 64 * 64), "same word of the ring, one turn on");
        assert!(!window.accept(5));
        assert!(window.accept(u64::MAX));
        assert!(!window.accept(u64::MAX));
        assert!(window.accept(u64::MAX - 1));
        assert!(!window.accept(0));
    }

    /// Against the plain definition, with counters that jitter, leap and repeat.
    #[test]
    fn the_window_agrees_with_a_set() {
        let mut window = ReplayWindow::new();
        let mut seen = HashSet::new();
        let mut highest: Option<u64> = None;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut centre = 0_u64;
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            centre += match state % 1000 {
                0 => WIDTH + state % 500,
                1..=20 => state / 1000 % 200,
                _ => 1,
            };
            let counter = centre.saturating_sub((state >> 20) % (WIDTH + 300));
            let in_window = highest.is_none_or(|highest| counter > highest || highest - counter < WIDTH);
            let expected = in_window && seen.insert(counter);
            assert_eq!(window.accept(counter), expected, "{counter} with {highest:?}");
            if expected {
                highest = Some(highest.map_or(counter, |highest| highest.max(counter)));
            }
        }
    }
}
