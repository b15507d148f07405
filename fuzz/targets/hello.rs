//! The hello: what is read is what would be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_wire::Hello;

fuzz_target!(|input: &[u8]| {
    let Ok(hello) = Hello::decode(input) else { return };
    let mut written = Vec::new();
    hello.encode(&mut written);
    assert_eq!(written, input[..hello.encoded_len()]);
});
