//! Snapshots of sockets: what is read is what would be written, except for what a reader passes over.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_wire::Snapshot;

fuzz_target!(|input: &[u8]| {
    let Ok(snapshot) = Snapshot::decode(input) else { return };
    let mut written = Vec::new();
    snapshot.encode(&mut written);
    assert_eq!(Snapshot::decode(&written), Ok(snapshot));
});
