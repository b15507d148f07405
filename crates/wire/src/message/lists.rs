//! Bodies of no fixed length.

use alloc::vec::Vec;

use super::{
    FLOW_CLOSED, MAX_CLOSED, MAX_FORGOTTEN, MAX_PASSED_ON, MAX_REGISTERED, MAX_STOOD_IN, MAX_WAITING, MAX_WHEREABOUTS,
    Message, NeighbourProxyStatus, RegistrationChange, TAG_LEN,
};
use crate::codec::{ENDPOINT_LEN, Malformed, Reader, put_u16, put_u64};
use crate::hello::read_locators;

pub(super) fn encode_closed(nonces: &[u64], out: &mut Vec<u8>) {
    let mut encode_chunk = |chunk: &[u64]| {
        out.push(FLOW_CLOSED);
        put_u16(out, (2 + 8 * chunk.len()) as u16);
        put_u16(out, chunk.len() as u16);
        chunk.iter().for_each(|nonce| put_u64(out, *nonce));
    };
    if nonces.is_empty() {
        encode_chunk(nonces);
    }
    nonces.chunks(MAX_CLOSED).for_each(encode_chunk);
}

/// At most so many.
pub(super) fn put_names(names: &[u64], most: usize, out: &mut Vec<u8>) {
    let names = &names[..names.len().min(most)];
    put_u16(out, names.len() as u16);
    names.iter().for_each(|name| put_u64(out, *name));
}

pub(super) fn read_waiting(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let (number, wait) = (body.u32("number")?, read_bool(body, "whether flows wait")?);
    Ok(Message::Paused { number, wait, names: read_names(body, MAX_WAITING, "count of waiting flows")? })
}

pub(super) fn read_forgotten(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let (number, lost) = (body.u32("number")?, read_bool(body, "whether flows are lost")?);
    Ok(Message::Forgotten { number, lost, names: read_names(body, MAX_FORGOTTEN, "count of forgotten flows")? })
}

fn read_bool(body: &mut Reader<'_>, what: &'static str) -> Result<bool, Malformed> {
    let not_boolean = body.malformed(what);
    match body.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(not_boolean),
    }
}

fn read_names(body: &mut Reader<'_>, most: usize, count_of: &'static str) -> Result<Vec<u64>, Malformed> {
    let too_many = body.malformed(count_of);
    let count = usize::from(body.u16(count_of)?);
    if count > most || count * 8 != body.remaining() {
        return Err(too_many);
    }
    (0..count).map(|_| body.u64("name of a flow")).collect()
}

pub(super) fn read_register(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let number = body.u32("number")?;
    let change = RegistrationChange::from_number(body.u8("change of registration")?);
    let too_many = body.malformed("count of tags");
    let count = usize::from(body.u16("count of tags")?);
    if count > MAX_REGISTERED || count * TAG_LEN != body.remaining() {
        return Err(too_many);
    }
    let tags = (0..count).map(|_| body.array("meeting tag").copied()).collect::<Result<_, _>>()?;
    Ok(Message::Register { number, change, tags })
}

pub(super) fn read_whereabouts(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let number = body.u32("number")?;
    let too_many = body.malformed("count of endpoints");
    let count = usize::from(body.u16("count of endpoints")?);
    if count > MAX_WHEREABOUTS || count * (TAG_LEN + ENDPOINT_LEN) != body.remaining() {
        return Err(too_many);
    }
    let mut found = Vec::new();
    for _ in 0..count {
        found.push((*body.array("meeting tag")?, body.endpoint("endpoint of a peer")?));
    }
    Ok(Message::Whereabouts { number, found })
}

pub(super) fn read_neighbour_proxy(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let too_many = body.malformed("count of addresses");
    let addresses = read_locators(body)?;
    if addresses.len() > MAX_STOOD_IN { Err(too_many) } else { Ok(Message::NeighbourProxy { addresses }) }
}

pub(super) fn read_standing_in(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let too_many = body.malformed("count of addresses");
    let count = usize::from(body.u8("count of addresses")?);
    if count > MAX_STOOD_IN || count * 17 != body.remaining() {
        return Err(too_many);
    }
    let mut addresses = Vec::new();
    for _ in 0..count {
        let address = body.address("address")?;
        addresses.push((address, NeighbourProxyStatus::from_number(body.u8("status of an address")?)));
    }
    Ok(Message::StandingIn { addresses })
}

pub(super) fn read_passed_on(body: &mut Reader<'_>) -> Result<Message, Malformed> {
    let (left, source) = (body.address("address that was left")?, body.endpoint("source of a datagram")?);
    let too_long = body.malformed("length of a datagram");
    let datagram = body.rest().to_vec();
    if datagram.len() > MAX_PASSED_ON { Err(too_long) } else { Ok(Message::PassedOn { left, source, datagram }) }
}

pub(super) fn read_closed(body: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    read_names(body, MAX_CLOSED, "count of closed flows")
}
