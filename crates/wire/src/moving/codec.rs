//! How words about moves are written as bytes.

use alloc::vec::Vec;

use super::{
    AcceptorStanding, Decision, LoadStanding, MAX_OFFERED, MAX_OPTIONS, MAX_PART, MAX_RECEIVER, MAX_SENTENCE, MoveName,
    RECORD_HEADER_LEN, Record, Refusal, Request, TICKET_LEN, Terms, Ticket,
};
use crate::codec::{Malformed, Reader};
use crate::codec::{put_counted, put_endpoint, put_tuple, put_u16, put_u32, put_u64};
use crate::lending::{Ends, Granted};
use crate::snapshot::Family;

const ASK: u8 = 1;
const ANSWER: u8 = 2;
const ANNOUNCE: u8 = 3;
const ANNOUNCED: u8 = 4;
const PART: u8 = 5;
const TICKET: u8 = 6;
const VERDICT: u8 = 7;
const RECALL: u8 = 8;
const DECIDED: u8 = 9;
const SETTLED: u8 = 10;
const SURRENDER: u8 = 11;
const CANCEL: u8 = 12;
const PRESENT: u8 = 13;
const LOAD: u8 = 14;
const LOADED: u8 = 15;
const LEASE: u8 = 16;
const LEASED: u8 = 17;
const RETURN: u8 = 18;
const CLAIM: u8 = 19;
const ENDING: u8 = 20;
const OFFER: u8 = 21;
const BELONGS: u8 = 22;
const REACHED: u8 = 23;
/// A place at which no flow is at home.
const NOWHERE: u32 = u32::MAX;

impl Ticket {
    /// What its MAC is over: all of it that comes before.
    #[must_use]
    pub fn signed(&self) -> [u8; TICKET_LEN - 16] {
        let mut out = Vec::with_capacity(TICKET_LEN);
        self.put(&mut out);
        let mut signed = [0; TICKET_LEN - 16];
        signed.copy_from_slice(&out[..TICKET_LEN - 16]);
        signed
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.name.donor);
        put_u64(out, self.name.number);
        put_u64(out, self.flow);
        out.extend_from_slice(&self.acceptor);
        put_u32(out, self.sequence);
        put_u32(out, self.lifetime);
        out.extend_from_slice(&self.mac);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: MoveName { donor: *body.array("donor's key")?, number: body.u64("number of the move")? },
            flow: body.u64("name of the flow")?,
            acceptor: *body.array("acceptor's key")?,
            sequence: body.u32("sequence")?,
            lifetime: body.u32("lifetime")?,
            mac: *body.array("MAC of the ticket")?,
        })
    }
}

impl Record {
    /// Appends the record, with kind and length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        // The longest body is a part's, of 16 KiB and a little.
        put_counted(out, |out| self.encode_body(out));
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Ask { .. } => ASK,
            Self::Answer { .. } => ANSWER,
            Self::Announce { .. } => ANNOUNCE,
            Self::Announced { .. } => ANNOUNCED,
            Self::Part { .. } => PART,
            Self::Ticket(_) => TICKET,
            Self::Verdict { .. } => VERDICT,
            Self::Recall { .. } => RECALL,
            Self::Decided { .. } => DECIDED,
            Self::Settled { .. } => SETTLED,
            Self::Surrender(_) => SURRENDER,
            Self::Cancel { .. } => CANCEL,
            Self::Present { .. } => PRESENT,
            Self::Load { .. } => LOAD,
            Self::Loaded { .. } => LOADED,
            Self::Lease { .. } => LEASE,
            Self::Leased { .. } => LEASED,
            Self::Return { .. } => RETURN,
            Self::Claim { .. } => CLAIM,
            Self::Ending { .. } => ENDING,
            Self::Offer { .. } => OFFER,
            Self::Belongs { .. } => BELONGS,
            Self::Reached { .. } => REACHED,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        let refused = |refusal: &Option<Refusal>| refusal.map_or(0, Refusal::number);
        match self {
            Self::Ask { number, request } => {
                put_u64(out, *number);
                out.extend_from_slice(&request.holder);
                put_endpoint(out, request.holder_at);
                put_u64(out, request.flow);
                put_tuple(out, &request.tuple);
                out.push(match request.family {
                    Family::Ipv4 => 4,
                    Family::Ipv6 => 6,
                });
                put_u32(out, request.size);
                let options = &request.options[..request.options.len().min(MAX_OPTIONS)];
                out.push(options.len() as u8);
                options.iter().for_each(|option| put_u16(out, *option));
                let receiver = &request.receiver[..request.receiver.len().min(MAX_RECEIVER)];
                out.push(receiver.len() as u8);
                out.extend_from_slice(receiver);
            }
            Self::Answer { number, standing, refusal } => {
                put_u64(out, *number);
                out.push(standing.number());
                out.push(refused(refusal));
            }
            Self::Announce { number, flow, lifetime, acceptor } => {
                put_u64(out, *number);
                put_u64(out, *flow);
                put_u32(out, *lifetime);
                out.extend_from_slice(acceptor);
            }
            Self::Announced { number, sequence, lifetime, refusal } => {
                put_u64(out, *number);
                put_u32(out, *sequence);
                put_u32(out, *lifetime);
                out.push(refused(refusal));
            }
            Self::Part { number, total, offset, bytes } | Self::Load { number, total, offset, bytes } => {
                put_u64(out, *number);
                put_u32(out, *total);
                put_u32(out, *offset);
                out.extend_from_slice(&bytes[..bytes.len().min(MAX_PART)]);
            }
            Self::Ticket(ticket) | Self::Surrender(ticket) => ticket.put(out),
            Self::Verdict { name, outcome } => {
                out.extend_from_slice(&name.donor);
                put_u64(out, name.number);
                out.push(refused(&outcome.err()));
                if let Ok(terms) = outcome {
                    put_tuple(out, &terms.far);
                    put_u16(out, terms.wire_port);
                    let (holder, acceptor) = terms.home.unwrap_or((NOWHERE, NOWHERE));
                    put_u32(out, holder);
                    put_u32(out, acceptor);
                    out.push(u8::from(terms.passed_on) | u8::from(terms.hidden) << 1);
                }
            }
            Self::Recall { number, flow, gone } => {
                put_u64(out, *number);
                put_u64(out, *flow);
                out.push(u8::from(*gone));
            }
            Self::Decided { number, decision } => {
                put_u64(out, *number);
                out.push(decision.number());
            }
            Self::Settled { number } | Self::Cancel { number } | Self::Return { number } => put_u64(out, *number),
            Self::Present { ticket, wire_port } => {
                ticket.put(out);
                put_u16(out, *wire_port);
            }
            Self::Loaded { number, standing, sentence } => {
                put_u64(out, *number);
                out.push(standing.number());
                out.extend_from_slice(&sentence[..sentence.len().min(MAX_SENTENCE)]);
            }
            Self::Lease { number, ends } => {
                put_u64(out, *number);
                ends.put(out);
            }
            Self::Leased { number, outcome } => {
                put_u64(out, *number);
                out.push(refused(&outcome.err()));
                if let Ok(granted) = outcome {
                    granted.put(out);
                }
            }
            Self::Claim { flow, tuple, wire_port, hidden } => {
                put_u64(out, *flow);
                put_tuple(out, tuple);
                put_u16(out, *wire_port);
                out.push(u8::from(*hidden));
            }
            Self::Ending { flow } => put_u64(out, *flow),
            Self::Offer { number, ports } => {
                put_u64(out, *number);
                let ports = &ports[..ports.len().min(MAX_OFFERED)];
                out.push(ports.len() as u8);
                for (first, last) in ports {
                    put_u16(out, *first);
                    put_u16(out, *last);
                }
            }
            Self::Belongs { number, flow, first } => [number, flow, first].iter().for_each(|n| put_u64(out, **n)),
            Self::Reached { number, reached } => {
                put_u64(out, *number);
                out.push(u8::from(*reached));
            }
        }
    }

    /// Reads the record at the beginning of `bytes`, and tells how long it is. `None`: it is not all there yet.
    /// The record is `None` where its kind is not known: it is passed over.
    ///
    /// # Errors
    /// It is longer or shorter than its body, or a field has no meaning. No more of the stream can be used.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Option<Self>, usize)>, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.remaining() < RECORD_HEADER_LEN {
            return Ok(None);
        }
        let kind = reader.u8("kind of record")?;
        let length = usize::from(reader.u16("length of record")?);
        if reader.remaining() < length {
            return Ok(None);
        }
        let mut body = Reader::new(reader.bytes(length, "record")?);
        let from_start = |error: Malformed| Malformed { at: RECORD_HEADER_LEN + error.at, ..error };
        let record = Self::decode_body(kind, &mut body).map_err(from_start)?;
        if record.is_some() {
            body.finish("end of record").map_err(from_start)?;
        }
        Ok(Some((record, RECORD_HEADER_LEN + length)))
    }

    fn decode_body(kind: u8, body: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let record = match kind {
            ASK => Self::Ask { number: body.u64("number of the move")?, request: read_request(body)? },
            ANSWER => Self::Answer {
                number: body.u64("number of the move")?,
                standing: AcceptorStanding::from_number(body.u8("standing")?),
                refusal: read_refusal(body)?,
            },
            ANNOUNCE => Self::Announce {
                number: body.u64("number of the move")?,
                flow: body.u64("name of the flow")?,
                lifetime: body.u32("lifetime")?,
                acceptor: *body.array("acceptor's key")?,
            },
            ANNOUNCED => Self::Announced {
                number: body.u64("number of the move")?,
                sequence: body.u32("sequence")?,
                lifetime: body.u32("lifetime")?,
                refusal: read_refusal(body)?,
            },
            PART | LOAD => {
                let (number, total) = (body.u64("number of the move")?, body.u32("length of the snapshot")?);
                let outside = body.malformed("part of a snapshot");
                let offset = body.u32("offset of a part")?;
                let bytes = body.rest();
                let end = u64::from(offset) + bytes.len() as u64;
                if bytes.len() > MAX_PART || end > u64::from(total) {
                    return Err(outside);
                }
                let bytes = bytes.to_vec();
                match kind {
                    PART => Self::Part { number, total, offset, bytes },
                    _ => Self::Load { number, total, offset, bytes },
                }
            }
            TICKET => Self::Ticket(Ticket::read(body)?),
            VERDICT => Self::Verdict {
                name: MoveName { donor: *body.array("donor's key")?, number: body.u64("number of the move")? },
                outcome: match read_refusal(body)? {
                    Some(refusal) => Err(refusal),
                    None => Ok(read_terms(body)?),
                },
            },
            RECALL => Self::Recall {
                number: body.u64("number of the move")?,
                flow: body.u64("name of the flow")?,
                gone: read_flag(body, "whether the socket is gone")?,
            },
            DECIDED => Self::Decided {
                number: body.u64("number of the move")?,
                decision: Decision::from_number(body.u8("decision")?),
            },
            SETTLED => Self::Settled { number: body.u64("number of the move")? },
            SURRENDER => Self::Surrender(Ticket::read(body)?),
            CANCEL => Self::Cancel { number: body.u64("number of the move")? },
            PRESENT => Self::Present { ticket: Ticket::read(body)?, wire_port: body.u16("acceptor's wire port")? },
            LOADED => {
                let number = body.u64("number of the move")?;
                let standing = LoadStanding::from_number(body.u8("standing of a load")?);
                let too_long = body.malformed("sentence");
                let sentence = body.rest();
                if sentence.len() > MAX_SENTENCE {
                    return Err(too_long);
                }
                Self::Loaded { number, standing, sentence: sentence.to_vec() }
            }
            LEASE => Self::Lease { number: body.u64("number of the lease")?, ends: Ends::read(body)? },
            LEASED => Self::Leased {
                number: body.u64("number of the lease")?,
                outcome: match read_refusal(body)? {
                    Some(refusal) => Err(refusal),
                    None => Ok(Granted::read(body)?),
                },
            },
            RETURN => Self::Return { number: body.u64("number of the lease")? },
            CLAIM => Self::Claim {
                flow: body.u64("name of the flow")?,
                tuple: body.tuple("tuple of the socket")?,
                wire_port: body.u16("tenant's wire port")?,
                hidden: read_flag(body, "whether the tenant is hidden")?,
            },
            ENDING => Self::Ending { flow: body.u64("name of the flow")? },
            OFFER => {
                let number = body.u64("number of the lease")?;
                let too_many = body.malformed("count of ranges of ports");
                let count = usize::from(body.u8("count of ranges of ports")?);
                if count > MAX_OFFERED {
                    return Err(too_many);
                }
                let range = |_| Ok((body.u16("first port")?, body.u16("last port")?));
                Self::Offer { number, ports: (0..count).map(range).collect::<Result<_, _>>()? }
            }
            BELONGS => Self::Belongs {
                number: body.u64("number of the move")?,
                flow: body.u64("name of the flow")?,
                first: body.u64("number of another move")?,
            },
            REACHED => Self::Reached {
                number: body.u64("number of the lease")?,
                reached: read_flag(body, "whether endpoints are reached")?,
            },
            _ => return Ok(None),
        };
        Ok(Some(record))
    }
}

fn read_refusal(body: &mut Reader<'_>) -> Result<Option<Refusal>, Malformed> {
    let number = body.u8("refusal")?;
    Ok((number != 0).then(|| Refusal::from_number(number)))
}

pub(super) fn read_flag(body: &mut Reader<'_>, what: &'static str) -> Result<bool, Malformed> {
    let malformed = body.malformed(what);
    match body.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(malformed),
    }
}

fn read_request(body: &mut Reader<'_>) -> Result<Request, Malformed> {
    let holder = *body.array("holder's key")?;
    let holder_at = body.endpoint("where the holder is")?;
    let flow = body.u64("name of the flow")?;
    let tuple = body.tuple("tuple of the socket")?;
    let unknown = body.malformed("family of the socket");
    let family = match body.u8("family of the socket")? {
        4 => Family::Ipv4,
        6 => Family::Ipv6,
        _ => return Err(unknown),
    };
    let size = body.u32("size of the snapshot")?;
    let too_many = body.malformed("count of options");
    let count = usize::from(body.u8("count of options")?);
    if count > MAX_OPTIONS {
        return Err(too_many);
    }
    let options = (0..count).map(|_| body.u16("option")).collect::<Result<_, _>>()?;
    let too_long = body.malformed("length of the receiver's name");
    let length = usize::from(body.u8("length of the receiver's name")?);
    if length > MAX_RECEIVER {
        return Err(too_long);
    }
    let receiver = body.bytes(length, "receiver's name")?.to_vec();
    Ok(Request { holder, holder_at, flow, tuple, family, size, options, receiver })
}

fn read_terms(body: &mut Reader<'_>) -> Result<Terms, Malformed> {
    let far = body.tuple("tuple of the far end")?;
    let wire_port = body.u16("holder's wire port")?;
    let half = body.malformed("places");
    let home = match (body.u32("holder's place")?, body.u32("acceptor's place")?) {
        (NOWHERE, NOWHERE) => None,
        // Both or neither is somewhere.
        (NOWHERE, _) | (_, NOWHERE) => return Err(half),
        home => Some(home),
    };
    let malformed = body.malformed("whether the holder passes packets on");
    let passing = body.u8("whether the holder passes packets on")?;
    if passing > 2 {
        return Err(malformed);
    }
    Ok(Terms { far, wire_port, home, passed_on: passing == 1, hidden: passing == 2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowTuple;
    use crate::codec::{ENDPOINT_LEN, TUPLE_LEN};

    /// Length of the fixed fields of a request, in bytes.
    const REQUEST_FIXED: usize = 32 + ENDPOINT_LEN + 8 + TUPLE_LEN + 1 + 4 + 1 + 1;

    #[test]
    fn a_record_is_read_once_it_is_whole() {
        let request = Request {
            holder: [1; 32],
            holder_at: "192.0.2.1:2031".parse().unwrap(),
            flow: 7,
            tuple: FlowTuple {
                transport: crate::Transport::Tcp,
                local: "192.0.2.1:22".parse().unwrap(),
                remote: "192.0.2.2:40000".parse().unwrap(),
            },
            family: Family::Ipv6,
            size: 300,
            options: alloc::vec![1, 60],
            receiver: b"mail".to_vec(),
        };
        let record = Record::Ask { number: 5, request };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes.len(), RECORD_HEADER_LEN + 8 + REQUEST_FIXED + 4 + 4);
        for length in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..length]), Ok(None));
        }
        let length = bytes.len();
        bytes.extend([0xee, 0, 1, 9]);
        assert_eq!(Record::decode(&bytes), Ok(Some((Some(record), length))));
        assert_eq!(Record::decode(&bytes[length..]), Ok(Some((None, 4))), "a kind that is not known");
    }

    #[test]
    fn a_verdict_knows_both_places_or_neither() {
        let far = FlowTuple {
            transport: crate::Transport::Tcp,
            local: "192.0.2.1:22".parse().unwrap(),
            remote: "192.0.2.2:40000".parse().unwrap(),
        };
        let terms = Terms { far, wire_port: 22, home: Some((3, 4)), passed_on: false, hidden: false };
        let verdict = Record::Verdict { name: MoveName { donor: [1; 32], number: 5 }, outcome: Ok(terms) };
        let mut bytes = Vec::new();
        verdict.encode(&mut bytes);
        let length = bytes.len();
        assert_eq!(Record::decode(&bytes), Ok(Some((Some(verdict), length))));
        // The last byte says whether the holder passes packets on.
        let places = [length - 9..length - 5, length - 5..length - 1];
        for place in &places {
            let mut half = bytes.clone();
            half[place.clone()].fill(0xff);
            Record::decode(&half).unwrap_err();
        }
        places.into_iter().for_each(|place| bytes[place].fill(0xff));
        assert!(matches!(
            Record::decode(&bytes),
            Ok(Some((Some(Record::Verdict { outcome: Ok(Terms { home: None, .. }), .. }), _)))
        ));
    }
}
