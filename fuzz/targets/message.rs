//! Messages of a control datagram, and records of a stream: what is read is written to the same length and read as the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_wire::message::decode_all;
use whimbrel_wire::moving::Record;

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    while let Ok(Some((record, length))) = Record::decode(rest) {
        if let Some(record) = record {
            let mut written = Vec::new();
            record.encode(&mut written);
            assert_eq!(written, rest[..length]);
        }
        rest = &rest[length..];
    }
    let Ok(messages) = decode_all(input) else { return };
    let mut written = Vec::new();
    for message in &messages {
        let before = written.len();
        message.encode(&mut written);
        assert_eq!(written.len() - before, message.encoded_len());
    }
    // Shorter where types that are not known were skipped.
    assert!(written.len() <= input.len());
    assert_eq!(decode_all(&written), Ok(messages));
});
