//! Translation of an inner packet from one end's tuple to the other's, with its checksums.

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{Transport, checksum};

/// What the transport's checksum field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// A checksum over pseudo-header, transport header and payload.
    Whole,
    /// The sum of the pseudo-header alone, not complemented, as an offloading stack leaves it
    /// (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    Partial,
}

/// The two tuples are of different address families, so the header cannot be rewritten in place. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("addresses of another family")]
pub struct FamilyMismatch;

/// Gives the packet another source and destination, keeping its checksums right (RFC 1624). `headers` is what
/// [`Headers::parse`] found in `packet`, and is brought up to date.
///
/// A later fragment gets the addresses only. An IPv4 UDP checksum of zero (none, RFC 768) stays zero.
///
/// # Errors
/// [`FamilyMismatch`].
pub fn rewrite(
    packet: &mut [u8],
    headers: &mut Headers,
    source: SocketAddr,
    destination: SocketAddr,
    state: ChecksumState,
) -> Result<(), FamilyMismatch> {
    let addresses = match (source.ip(), destination.ip(), headers.is_v6()) {
        (IpAddr::V4(source), IpAddr::V4(destination), false) => {
            let mut new = [0; 8];
            new[..4].copy_from_slice(&source.octets());
            new[4..].copy_from_slice(&destination.octets());
            let difference = replace(&mut packet[12..20], &new);
            let header = u16::from_be_bytes([packet[10], packet[11]]);
            packet[10..12].copy_from_slice(&checksum::update(header, difference).to_be_bytes());
            difference
        }
        (IpAddr::V6(source), IpAddr::V6(destination), true) => {
            let mut new = [0; 32];
            new[..16].copy_from_slice(&source.octets());
            new[16..].copy_from_slice(&destination.octets());
            replace(&mut packet[8..40], &new)
        }
        _ => return Err(FamilyMismatch),
    };
    (headers.source, headers.destination) = (source, destination);
    if let Fragment::Later(_) = headers.fragment {
        headers.source.set_port(0);
        headers.destination.set_port(0);
        return Ok(());
    }
    let at = headers.transport_offset;
    let mut ports = [0; 4];
    ports[..2].copy_from_slice(&source.port().to_be_bytes());
    ports[2..].copy_from_slice(&destination.port().to_be_bytes());
    let ports = replace(&mut packet[at..at + 4], &ports);
    let at = headers.checksum_offset();
    let old = u16::from_be_bytes([packet[at], packet[at + 1]]);
    let new = match (state, headers.transport) {
        // The ports lie in what is summed later, only the pseudo-header changes.
        (ChecksumState::Partial, _) => checksum::add(old, addresses),
        (ChecksumState::Whole, Transport::Udp) if old == 0 => 0,
        (ChecksumState::Whole, transport) => {
            match (checksum::update(old, checksum::add(addresses, ports)), transport) {
                (0, Transport::Udp) => 0xffff,
                (new, _) => new,
            }
        }
    };
    packet[at..at + 2].copy_from_slice(&new.to_be_bytes());
    Ok(())
}

/// Puts bytes in the place of others; gives what that adds to a sum of them.
pub(crate) fn replace(old: &mut [u8], new: &[u8]) -> u16 {
    let difference = checksum::difference(checksum::sum(old), checksum::sum(new));
    old.copy_from_slice(new);
    difference
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{Made, checksums_hold};
    use proptest::prelude::*;

    fn other(v6: bool, host: u16, port: u16) -> SocketAddr {
        let [high, low] = host.to_be_bytes();
        if v6 {
            SocketAddr::new(IpAddr::from([0x2001, 0xdb8, 0, host, 0, !host, 7, host]), port)
        } else {
            SocketAddr::new(IpAddr::from([203, 0, high, low]), port)
        }
    }

    proptest! {
        #[test]
        fn both_kinds_of_checksum_stay_right(
            v6: bool, tcp: bool, hosts: (u16, u16), ports: (u16, u16),
            payload in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let made = if tcp { Made::tcp(payload) } else { Made::udp(payload) };
            let made = if v6 { made.v6() } else { made };
            let (source, destination) = (other(v6, hosts.0, ports.0), other(v6, hosts.1, ports.1));
            let wanted = Made { source, destination, ..made.clone() };

            let mut whole = made.build(false);
            let mut headers = Headers::parse(&whole).unwrap();
            rewrite(&mut whole, &mut headers, source, destination, ChecksumState::Whole).unwrap();
            prop_assert!(checksums_hold(&whole));
            prop_assert_eq!(headers, Headers::parse(&whole).unwrap());

            let mut partial = made.build(true);
            let mut headers = Headers::parse(&partial).unwrap();
            rewrite(&mut partial, &mut headers, source, destination, ChecksumState::Partial).unwrap();
            let wanted = wanted.build(true);
            let at = headers.checksum_offset();
            let field = |packet: &[u8]| u16::from_be_bytes([packet[at], packet[at + 1]]) % 0xffff;
            prop_assert_eq!(field(&partial), field(&wanted));
        }
    }

    #[test]
    fn absent_udp_checksum_stays_absent() {
        let mut packet = Made::udp(vec![1, 2, 3]).build(false);
        packet[26..28].fill(0);
        let mut headers = Headers::parse(&packet).unwrap();
        rewrite(&mut packet, &mut headers, other(false, 1, 2), other(false, 3, 4), ChecksumState::Whole).unwrap();
        assert_eq!(packet[26..28], [0, 0]);
    }

    #[test]
    fn families_do_not_mix() {
        let mut packet = Made::udp(vec![]).build(false);
        let (before, mut headers) = (packet.clone(), Headers::parse(&packet).unwrap());
        let result = rewrite(&mut packet, &mut headers, other(true, 1, 2), other(true, 3, 4), ChecksumState::Whole);
        assert_eq!((result, packet), (Err(FamilyMismatch), before));
    }
}
