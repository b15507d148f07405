//! Whole handshakes against recorded ones, which are in `tests/vectors`: a name and hexadecimal on each line.
//!
//! `WHIMBREL_WRITE_VECTORS=1 cargo test -p whimbrel-handshake --test vectors` records them anew, after a change of the
//! protocol that was meant. They were checked against an independent implementation written from `docs/protocol.md`.

mod common;

use std::fmt::Write;

use common::*;
use whimbrel_handshake::{CookieChecker, Session};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn drawn<const N: usize>(seed: u64) -> [u8; N] {
    let mut bytes = [0; N];
    randomness(seed)(&mut bytes);
    bytes
}

fn session(name: &str, session: &mut Session, record: &mut String) {
    let keys = session.tunnel_keys().clone();
    let _ = writeln!(record, "{name}_tunnel_key {}", hex(&keys.send));
    let _ = writeln!(record, "{name}_token {:016x}", keys.send_token);
    let _ = writeln!(record, "{name}_control_0 {}", hex(&session.seal(b"first").unwrap()));
    let _ = writeln!(record, "{name}_control_1 {}", hex(&session.seal(b"second").unwrap()));
}

fn record(ends: &Ends) -> String {
    let mut record = String::new();
    let mut line = |name: &str, bytes: &[u8]| {
        let _ = writeln!(record, "{name} {}", hex(bytes));
    };
    // As `Ends` draws them.
    line("initiator_static", ends.initiator.to_bytes().as_slice());
    line("responder_static", ends.responder.to_bytes().as_slice());
    line("initiator_ephemeral", &drawn::<32>(10));
    line("responder_ephemeral", &drawn::<32>(20));
    if let Some(psk) = ends.initiator_psk {
        line("psk", &psk);
    }
    let (mut initiator, initiation) = ends.start();
    line("initiation", &initiation);

    line("cookie_root", &drawn::<32>(30));
    let checker = CookieChecker::new(ends.responder.public(), &mut randomness(30));
    let source = "192.0.2.1:2031".parse().unwrap();
    let reply = checker.reply(&as_initiation(&initiation), source, 3 * 120_000_000, &mut randomness(31));
    line("cookie_reply", &reply);
    let repeated = initiator.handle_cookie(&as_cookie(&reply)).unwrap();
    line("cookie_mac", &repeated[repeated.len() - 16..]);

    let answered = ends.respond(&repeated).unwrap();
    line("response", answered.response());
    let (mut initiator, mut responder) = match answered {
        Answered::Known(finished) => {
            let response = finished.answer.clone().unwrap();
            (initiator.handle_response(&as_response(&response), NOW).unwrap(), finished)
        }
        Answered::First(state, response) => {
            let initiator = initiator.handle_response(&as_response(&response), NOW).unwrap();
            let finish = initiator.answer.clone().unwrap();
            line("finish", &finish);
            (initiator, state.handle_finish(&as_finish(&finish), NOW).unwrap())
        }
    };
    session("initiator", &mut initiator.session, &mut record);
    session("responder", &mut responder.session, &mut record);
    record
}

#[test]
fn handshakes_are_as_recorded() {
    for (name, ends) in ["xx", "ik", "xxpsk3", "ikpsk2"].into_iter().zip(Ends::all()) {
        let path = format!("{}/tests/vectors/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let now = record(&ends);
        if std::env::var_os("WHIMBREL_WRITE_VECTORS").is_some() {
            std::fs::write(&path, &now).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (now, recorded) in now.lines().zip(recorded.lines()) {
            assert_eq!(now, recorded, "{name}");
        }
        assert_eq!(now.lines().count(), recorded.lines().count());
    }
}
