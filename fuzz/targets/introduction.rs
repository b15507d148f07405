//! Introductions among TCP options and in UDP payloads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_wire::Introduction;

fuzz_target!(|input: &[u8]| {
    if let Some(introduction) = Introduction::in_tcp_options(input) {
        let option = introduction.tcp_option();
        assert!(input.windows(option.len()).any(|window| window == option));
    }
    if let Some(introduction) = Introduction::from_udp_payload(input) {
        assert_eq!(introduction.udp_payload(), input);
    }
});
