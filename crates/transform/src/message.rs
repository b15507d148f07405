//! ICMP that has to do with flows: errors, which quote a packet of one, and echoes (RFC 792, RFC 4443).

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::packet::{Fragment, Headers, ICMP, ICMPV6, Ip, Network, PacketError, TCP_CHECKSUM, UDP_CHECKSUM};
use whimbrel_wire::{FlowTuple, Transport, checksum};

use crate::rewrite::{FamilyMismatch, replace};
use crate::segment::nonzero;
use crate::vnet::{GSO_NONE, VnetHeader};

/// Of an ICMP header, with what stands between its checksum and the quotation or the data.
const HEADER: usize = 8;
/// Place of the checksum in it.
const CHECKSUM: usize = 2;
/// An error is at most so long, IP header included (RFC 1812 §4.3.2.3; RFC 4443 §2.4).
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// What flow it is about, as its receiver knows it. What has no ports is written as UDP with port 0: an echo, and
    /// an error about one. `None`: it is the later fragment of an echo.
    pub flow: Option<FlowTuple>,
    /// Whole, or which fragment. Errors are whole.
    pub fragment: Fragment,
    /// Where the packet ends by its IP header.
    pub end: usize,
    /// Where ICMP begins.
    offset: usize,
    /// What an error quotes.
    quoted: Option<Quoted>,
}

/// Offsets are from the beginning of the whole packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quoted {
    at: usize,
    ports: Option<usize>,
    checksum: Option<usize>,
}

impl Message {
    /// Reads an ICMP message.
    ///
    /// # Errors
    /// [`PacketError`] for all else, and for messages of other kinds: those that belong to a link (neighbour discovery)
    /// or have nothing to do with flows.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let Network { protocol, source, destination, fragment, offset, end } = Network::parse(packet)?;
        let v6 = source.is_ipv6();
        if protocol != if v6 { ICMPV6 } else { ICMP } {
            return Err(PacketError::Transport(protocol));
        }
        let whole = packet.get(..end).ok_or(PacketError::Truncated)?;
        let message = Self { source, destination, flow: None, fragment, end, offset, quoted: None };
        if let Fragment::Later(_) = fragment {
            return Ok(message);
        }
        let kind = *whole.get(offset..offset + HEADER).and_then(<[u8]>::first).ok_or(PacketError::Truncated)?;
        let (echo, error) = if v6 {
            (matches!(kind, 128 | 129), (1..=4).contains(&kind))
        } else {
            (matches!(kind, 0 | 8), matches!(kind, 3 | 11 | 12))
        };
        if echo {
            let without_port = |address| SocketAddr::new(address, 0);
            let (local, remote) = (without_port(destination), without_port(source));
            return Ok(Self { flow: Some(FlowTuple { transport: Transport::Udp, local, remote }), ..message });
        }
        if !error || fragment != Fragment::Whole {
            return Err(PacketError::Transport(protocol));
        }
        let (flow, quoted) = quotation(whole, offset + HEADER)?;
        // It goes to whoever sent what it quotes, or it is none of theirs.
        if flow.local.ip() != destination {
            return Err(PacketError::Malformed);
        }
        Ok(Self { flow: Some(flow), quoted: Some(quoted), ..message })
    }

    /// Whether it is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.quoted.is_some()
    }

    /// The protocol's number.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        if self.source.is_ipv6() { ICMPV6 } else { ICMP }
    }

    /// Whether an error says that it is of the far end's own host, not of a router.
    fn is_of_far_end(&self) -> bool {
        self.flow.is_some_and(|flow| flow.remote.ip() == self.source)
    }

    /// Writes it as one about the flow `known`, which is this one's flow as its receiver knows it. `packet` is what it
    /// was read from.
    ///
    /// # Errors
    /// [`FamilyMismatch`]; nothing was changed.
    pub fn rename(&self, packet: &mut [u8], known: &FlowTuple) -> Result<(), FamilyMismatch> {
        let Some(flow) = self.flow.filter(|flow| flow != known) else { return Ok(()) };
        let v6 = self.source.is_ipv6();
        if [known.local, known.remote].iter().any(|end| end.is_ipv6() != v6) {
            return Err(FamilyMismatch);
        }
        let source = if self.is_of_far_end() { known.remote.ip() } else { self.source };
        let outer = replace_addresses(packet, 0, v6, source, known.local.ip());
        // The pseudo-header is ICMPv6's alone (RFC 4443 §2.3).
        let mut difference = if v6 { outer } else { 0 };
        if let Some(Quoted { at, ports, checksum }) = self.quoted {
            let before = checksum::sum(&packet[at..self.end]);
            let mut within = replace_addresses(packet, at, v6, known.local.ip(), known.remote.ip());
            if let Some(ports) = ports {
                let mut new = [0; 4];
                new[..2].copy_from_slice(&known.local.port().to_be_bytes());
                new[2..].copy_from_slice(&known.remote.port().to_be_bytes());
                within = checksum::add(within, replace(&mut packet[ports..ports + 4], &new));
            }
            if let Some(place) = checksum {
                let old = u16::from_be_bytes([packet[place], packet[place + 1]]);
                let none = flow.transport == Transport::Udp && old == 0;
                let new = checksum::update(old, within);
                let new = if flow.transport == Transport::Udp { nonzero(new) } else { new };
                if !none {
                    packet[place..place + 2].copy_from_slice(&new.to_be_bytes());
                }
            }
            let after = checksum::sum(&packet[at..self.end]);
            difference = checksum::add(difference, checksum::difference(before, after));
        }
        let place = self.offset + CHECKSUM;
        if let Some(field) = packet.get_mut(place..place + 2).filter(|_| !matches!(self.fragment, Fragment::Later(_))) {
            let old = u16::from_be_bytes([field[0], field[1]]);
            field.copy_from_slice(&checksum::update(old, difference).to_be_bytes());
        }
        Ok(())
    }
}

/// The flow of a quoted packet, as who sent that knows it, and where its parts are.
fn quotation(whole: &[u8], at: usize) -> Result<(FlowTuple, Quoted), PacketError> {
    let inner = whole.get(at..).ok_or(PacketError::Truncated)?;
    let Network { protocol, source, destination, fragment, offset, .. } = Network::parse(inner)?;
    if let Fragment::Later(_) = fragment {
        return Err(PacketError::Malformed);
    }
    let start = at + offset;
    let Some(transport) = Transport::from_protocol(protocol) else {
        if protocol != if source.is_ipv6() { ICMPV6 } else { ICMP } {
            return Err(PacketError::Transport(protocol));
        }
        let (local, remote) = (SocketAddr::new(source, 0), SocketAddr::new(destination, 0));
        let flow = FlowTuple { transport: Transport::Udp, local, remote };
        return Ok((flow, Quoted { at, ports: None, checksum: None }));
    };
    let ports = whole.get(start..start + 4).ok_or(PacketError::Truncated)?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let (local, remote) = (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)));
    let place = start
        + match transport {
            Transport::Tcp => TCP_CHECKSUM,
            Transport::Udp => UDP_CHECKSUM,
        };
    // It need not reach so far (RFC 792 asks for 8 bytes).
    let checksum = (place + 2 <= whole.len()).then_some(place);
    Ok((FlowTuple { transport, local, remote }, Quoted { at, ports: Some(start), checksum }))
}

/// Gives the IP header at `at` other addresses, and IPv4's checksum what belongs to them. Gives what that adds to a sum
/// of them.
fn replace_addresses(packet: &mut [u8], at: usize, v6: bool, source: IpAddr, destination: IpAddr) -> u16 {
    match (v6, source, destination) {
        (false, IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut new = [0; 8];
            new[..4].copy_from_slice(&source.octets());
            new[4..].copy_from_slice(&destination.octets());
            let difference = replace(&mut packet[at + 12..at + 20], &new);
            let header = u16::from_be_bytes([packet[at + 10], packet[at + 11]]);
            packet[at + 10..at + 12].copy_from_slice(&checksum::update(header, difference).to_be_bytes());
            difference
        }
        (true, IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut new = [0; 32];
            new[..16].copy_from_slice(&source.octets());
            new[16..].copy_from_slice(&destination.octets());
            replace(&mut packet[at + 8..at + 40], &new)
        }
        // The caller has compared the families.
        _ => 0,
    }
}

/// What a router says to the sender of a packet, or of the segments that it stands for, that is longer than `mtu`
/// bytes: fragmentation needed (RFC 1191), or packet too big (RFC 4443 §3.2). It is said in the name of the far end.
/// `None`: it is not too long, or its sender lets it be fragmented.
#[must_use]
pub fn too_long(packet: &[u8], headers: &Headers, offload: &VnetHeader, mtu: u32) -> Option<Vec<u8>> {
    let longest = match offload.gso_kind() {
        GSO_NONE => headers.end,
        _ => headers.end.min(headers.payload_offset + usize::from(offload.gso_size)),
    };
    let whole = packet.get(..headers.end)?;
    let may_be_cut = !headers.is_v6() && whole[6] & 0x40 == 0;
    if longest <= mtu as usize || may_be_cut || matches!(headers.fragment, Fragment::Later(_)) {
        return None;
    }
    let (header, most) = if headers.is_v6() { (40, MOST_V6) } else { (20, MOST_V4) };
    let quoted = &whole[..whole.len().min(most - header - HEADER)];
    let (kind, code) = if headers.is_v6() { (2, 0) } else { (3, 4) };
    let ip = Ip { fragment: 0, ..Ip::new(headers.destination.ip(), headers.source.ip()) };
    ip.icmp(kind, code, mtu.to_be_bytes(), quoted).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Made;
    use proptest::prelude::*;

    fn sum_of(packet: &[u8]) -> u16 {
        let network = Network::parse(packet).unwrap();
        let body = &packet[network.offset..network.end];
        if network.source.is_ipv4() {
            assert_eq!(checksum::sum(&packet[..network.offset]), 0xffff, "IPv4's own");
            return checksum::sum(body);
        }
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let pseudo = checksum::add(checksum::sum(&packet[8..40]), checksum::sum(&[length[0], length[1], 0, ICMPV6]));
        checksum::add(pseudo, checksum::sum(body))
    }

    fn known(v6: bool) -> FlowTuple {
        let (local, remote) = if v6 {
            ("[2001:db8:7::5]:5555", "[2001:db8:8::6]:8080")
        } else {
            ("198.51.100.7:5555", "203.0.113.6:8080")
        };
        FlowTuple { transport: Transport::Tcp, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    /// Errors about a packet of each kind, said by its far end.
    fn errors() -> Vec<(Made, Vec<u8>)> {
        let long = |made: Made| {
            let packet = made.build(false);
            let headers = Headers::parse(&packet).unwrap();
            let error = too_long(&packet, &headers, &VnetHeader::default(), 1280).expect("it is too long");
            (made, error)
        };
        let (tcp, udp) = (Made::tcp(vec![7; 1400]), Made::udp(vec![9; 1400]));
        [tcp.clone(), tcp.v6(), udp.clone(), udp.v6()].map(long).into()
    }

    #[test]
    fn an_error_about_a_packet_that_is_too_long_is_about_its_flow() {
        for (made, error) in errors() {
            assert_eq!(sum_of(&error), 0xffff);
            let message = Message::parse(&error).expect("a message");
            assert!(message.is_error() && message.end == error.len());
            assert_eq!((message.source, message.destination), (made.destination.ip(), made.source.ip()));
            let flow = FlowTuple { transport: made.transport, local: made.source, remote: made.destination };
            assert_eq!(message.flow, Some(flow));
            let offset = message.offset;
            assert_eq!(error[offset..offset + 2], if made.source.is_ipv6() { [2, 0] } else { [3, 4] });
            assert_eq!(error[offset + 4..offset + 8], 1280u32.to_be_bytes());
        }
    }

    #[test]
    fn nothing_is_said_of_what_fits_or_may_be_cut() {
        for made in [Made::udp(vec![1; 1400]), Made::udp(vec![1; 1400]).v6()] {
            let mut packet = made.build(false);
            let headers = Headers::parse(&packet).unwrap();
            let whole = u32::try_from(packet.len()).unwrap();
            let none = VnetHeader::default();
            assert_eq!(too_long(&packet, &headers, &none, whole), None);
            assert!(too_long(&packet, &headers, &none, whole - 1).is_some());
            // Of what stands for many segments each counts.
            let many = VnetHeader { gso_type: crate::vnet::GSO_UDP_L4, gso_size: 700, ..none };
            assert_eq!(too_long(&packet, &headers, &many, 1280), None);
            assert!(too_long(&packet, &headers, &many, 700).is_some());
            packet[6] &= !0x40;
            let headers = Headers::parse(&packet).unwrap();
            assert_eq!(too_long(&packet, &headers, &none, whole - 1).is_some(), headers.is_v6());
        }
    }

    #[test]
    fn what_an_error_quotes_gets_the_names_that_its_receiver_knows() {
        for (made, error) in errors() {
            let v6 = made.source.is_ipv6();
            let known = FlowTuple { transport: made.transport, ..known(v6) };
            // Said by the far end, and by a router on the way, whose name stays.
            for router in [None, Some(if v6 { "2001:db8:9::1" } else { "192.0.2.77" })] {
                let mut packet = error.clone();
                if let Some(router) = router {
                    let before = Message::parse(&packet).unwrap();
                    let difference = replace_addresses(&mut packet, 0, v6, router.parse().unwrap(), before.destination);
                    let place = before.offset + CHECKSUM;
                    let old = u16::from_be_bytes([packet[place], packet[place + 1]]);
                    let new = checksum::update(old, if v6 { difference } else { 0 });
                    packet[place..place + 2].copy_from_slice(&new.to_be_bytes());
                    assert_eq!(sum_of(&packet), 0xffff);
                }
                let message = Message::parse(&packet).unwrap();
                message.rename(&mut packet, &known).unwrap();
                assert_eq!(sum_of(&packet), 0xffff);
                let renamed = Message::parse(&packet).unwrap();
                assert_eq!(renamed.flow, Some(known));
                assert_eq!(renamed.destination, known.local.ip());
                assert_eq!(renamed.source, router.map_or(known.remote.ip(), |router| router.parse().unwrap()));
                // What is quoted is what the receiver would have sent, its checksum too.
                let mut sent = Made { source: known.local, destination: known.remote, ..made.clone() }.build(false);
                let quoted = &packet[renamed.offset + HEADER..];
                sent.truncate(quoted.len());
                assert_eq!(sent, quoted);
                message.rename(&mut error.clone(), &FlowTuple { ..message.flow.unwrap() }).unwrap();
            }
        }
    }

    #[test]
    fn a_quotation_may_end_behind_the_ports() {
        for (made, error) in errors() {
            let v6 = made.source.is_ipv6();
            let message = Message::parse(&error).unwrap();
            let end = message.quoted.and_then(|quoted| quoted.ports).unwrap() + 8;
            let mut packet = error[..end].to_vec();
            let length = u16::try_from(if v6 { end - 40 } else { end }).unwrap().to_be_bytes();
            packet[if v6 { 4..6 } else { 2..4 }].copy_from_slice(&length);
            let known = FlowTuple { transport: made.transport, ..known(v6) };
            Message::parse(&packet).unwrap().rename(&mut packet, &known).unwrap();
            assert_eq!(Message::parse(&packet).unwrap().flow, Some(known));
            packet.truncate(end - 5);
            assert!(Message::parse(&packet).is_err());
        }
    }

    fn echo(kind: u8, v6: bool) -> Vec<u8> {
        let made = Made::udp(vec![5; 56]);
        let mut packet = if v6 { made.v6() } else { made }.build(false);
        let (protocol, offset) = if v6 { (6, 40) } else { (9, 20) };
        packet[protocol] = if v6 { ICMPV6 } else { ICMP };
        packet[offset..offset + 4].copy_from_slice(&[kind, 0, 0, 0]);
        packet
    }

    #[test]
    fn echoes_are_of_an_address_as_a_whole_and_all_else_is_of_none() {
        for (v6, echoes, others) in [(false, [0, 8], [5, 13]), (true, [128, 129], [135, 136])] {
            for kind in echoes {
                let message = Message::parse(&echo(kind, v6)).unwrap();
                let flow = message.flow.unwrap();
                assert_eq!(
                    (flow.local, flow.remote),
                    (SocketAddr::new(message.destination, 0), SocketAddr::new(message.source, 0))
                );
                assert!(!message.is_error());
            }
            for kind in others {
                assert!(Message::parse(&echo(kind, v6)).is_err(), "{kind}");
            }
        }
        assert!(Message::parse(&Made::tcp(vec![]).build(false)).is_err());
        let mut later = echo(8, false);
        later[6..8].copy_from_slice(&[0, 9]);
        assert_eq!(Message::parse(&later).unwrap().flow, None);
    }

    #[test]
    fn an_error_for_somebody_else_than_the_sender_of_what_it_quotes_is_none() {
        let (_, mut error) = errors().swap_remove(0);
        error[19] ^= 1;
        assert_eq!(Message::parse(&error), Err(PacketError::Malformed));
    }

    proptest! {
        #[test]
        fn noise_never_panics(mut data in proptest::collection::vec(any::<u8>(), 0..200), v6: bool, kind in 0u8..=5) {
            let (protocol, offset) = if v6 { (6, 40) } else { (9, 20) };
            if let Some(first) = data.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            if data.len() > offset + 12 {
                data[protocol] = if v6 { ICMPV6 } else { ICMP };
                data[offset] = kind;
                data[offset + HEADER] = if v6 { 0x60 } else { 0x45 };
                let network = data[if v6 { 8..24 } else { 12..16 }].to_vec();
                let at = offset + HEADER + if v6 { 24 } else { 16 };
                if data.len() > at + network.len() {
                    data[at..at + network.len()].copy_from_slice(&network);
                }
            }
            if let Ok(message) = Message::parse(&data) {
                let known = known(v6);
                let _ = message.rename(&mut data, &known);
            }
        }
    }
}
