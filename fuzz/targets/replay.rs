//! The replay window against its plain definition: a set of counters, and the highest of them.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use whimbrel_fuzz::Input;
use whimbrel_handshake::ReplayWindow;

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut window = ReplayWindow::new();
    let mut seen = HashSet::new();
    let mut highest = None::<u64>;
    let mut counter = 0_u64;
    while !input.is_empty() {
        let choice = input.byte();
        let distance = match choice & 3 {
            0 => u64::from(choice >> 3),
            1 => input.number() as u64,
            2 => 64 * u64::from(input.byte()),
            // To the window's edge and one turn of its ring, give or take a few.
            _ => ReplayWindow::WIDTH + 64 * u64::from(choice >> 7) + u64::from(choice >> 3 & 7) - 4,
        };
        counter = if choice & 4 == 0 { counter.wrapping_add(distance) } else { counter.wrapping_sub(distance) };
        let expected = highest.is_none_or(|highest| counter > highest || highest - counter < ReplayWindow::WIDTH)
            && !seen.contains(&counter);
        assert_eq!(window.is_new(counter), expected);
        assert_eq!(window.accept(counter), expected);
        if expected {
            seen.insert(counter);
            highest = highest.max(Some(counter));
        }
        assert_eq!(window.highest(), highest);
    }
});
