//! The local API's lines: what is read can be written, as one line; a request comes back as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_ipc::{reply_from_line, reply_to_line, request_from_line, request_to_line};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(request) = request_from_line(text) {
        let line = request_to_line(&request).expect("a request can be written");
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
        assert_eq!(request_from_line(&line).expect("it can be read again"), request);
    }
    if let Ok(reply) = reply_from_line(text) {
        let line = reply_to_line(&reply).expect("a reply can be written");
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
        // Not what is in it: of a decimal fraction the last digit may be another.
        reply_from_line(&line).expect("it can be read again");
    }
});
