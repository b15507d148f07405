//! Outer datagrams: what parses is written the same way again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_wire::datagram::{self, Datagram};

fuzz_target!(|input: &[u8]| {
    let Ok(parsed) = Datagram::parse(input) else { return };
    let (header, body, reserved): (Vec<u8>, Vec<u8>, &[usize]) = match parsed {
        Datagram::Initiation(i) => {
            assert_eq!(i.header, &input[..8]);
            assert!(input.len() >= datagram::INITIATION_LEN);
            assert_eq!([i.covered, i.mac].concat(), input);
            let header = datagram::initiation_header(i.pattern, i.version, i.sender);
            (header.to_vec(), [i.noise, i.mac].concat(), &[3])
        }
        Datagram::Response(r) => {
            (datagram::response_header(r.sender, r.receiver).to_vec(), r.noise.to_vec(), &[1, 2, 3])
        }
        Datagram::Finish(f) => (datagram::finish_header(f.receiver).to_vec(), f.noise.to_vec(), &[1, 2, 3]),
        Datagram::Cookie(c) => {
            let body = [c.nonce.as_slice(), c.sealed].concat();
            (datagram::cookie_header(c.receiver).to_vec(), body, &[1, 2, 3])
        }
        Datagram::Control(c) => {
            (datagram::control_header(c.receiver, c.counter).to_vec(), c.sealed.to_vec(), &[1, 2, 3])
        }
        Datagram::TunnelSealed(t) => {
            let header = datagram::tunnel_sealed_header(t.chain, t.receiver, t.counter);
            (header.to_vec(), t.sealed.to_vec(), &[2, 3])
        }
        Datagram::TunnelPlain(t) => {
            let header = datagram::tunnel_plain_header(t.chain, t.receiver, t.token);
            (header.to_vec(), t.packets.to_vec(), &[2, 3])
        }
    };
    let mut written = [header, body].concat();
    reserved.iter().for_each(|at| written[*at] = input[*at]);
    assert_eq!(written, input);
});
