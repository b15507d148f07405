//! Bytes into snapshots. What comes in is another host's word, so all that the kernel is told later is checked here.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::option::MOST_PRIORITY;
use super::write::state_number;
use super::{
    Body, Datagrams, Family, MAGIC, MAX_LEN, MAX_OUT_OF_ORDER, MAX_QUEUE, MAX_QUEUED, MAX_STATE, Metadata, Negotiated,
    OptionKind, PathState, Queued, ReceiveQueue, Scale, Segment, SendQueue, Shut, Snapshot, SocketOption, Stream,
    StreamState, Unreadable, VERSION, Window, kind, record,
};
use crate::codec::{Malformed, Reader};

/// RFC 7323 §2.3.
const MAX_SHIFT: u8 = 14;
/// TCP_CA_NAME_MAX less the terminating zero.
const MAX_NAME: usize = 15;
const MAX_DATAGRAM: usize = 65_535;
/// The smallest MSS that the kernel works with (TCP_MIN_SND_MSS).
const MIN_MSS: u16 = 48;
/// The largest window that scaling can express.
const MAX_WINDOW: u32 = 65_535 << MAX_SHIFT;

impl Snapshot {
    /// Reads a snapshot that fills `input`.
    ///
    /// # Errors
    /// [`Unreadable`]: it is none, is damaged, too long, contradicts itself, or was written by a later version that has
    /// something in it that must not be ignored.
    pub fn decode(input: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(input);
        if reader.array::<4>("magic") != Ok(&MAGIC) {
            return Err(Unreadable::NoSnapshot);
        }
        let version = reader.u16("version")?;
        if version == 0 || version > VERSION {
            return Err(Unreadable::Newer { version, record: None });
        }
        let length = reader.u32("length")?;
        if length as usize > MAX_LEN {
            return Err(Unreadable::TooLarge { length: u64::from(length) });
        }
        if length as usize != reader.remaining() {
            return Err(reader.malformed("length").into());
        }
        let mut parts = Parts::default();
        let mut last = 0;
        while reader.remaining() > 0 {
            let place = reader.clone();
            let of = reader.u16("kind of record")?;
            let length = reader.u32("length of record")?;
            let mut body = reader.clone();
            reader.bytes(length as usize, "record")?;
            body.limit(length as usize);
            if of & !record::CRITICAL < last & !record::CRITICAL {
                return Err(place.malformed("order of records").into());
            }
            let again = of == last && !matches!(of, record::OUT_OF_ORDER | record::DATAGRAM | record::OPTION);
            last = of;
            if parts.take(of, &mut body)? {
                body.finish("end of record")?;
                if again {
                    return Err(place.malformed("record that is there twice").into());
                }
            } else if of & record::CRITICAL != 0 {
                return Err(Unreadable::Newer { version, record: Some(of) });
            }
        }
        parts.assemble()
    }
}

/// Records as they were read.
#[derive(Default)]
struct Parts {
    socket: Option<(u8, Family, SocketAddr)>,
    remote: Option<SocketAddr>,
    state: Option<StreamState>,
    backlog: Option<u32>,
    send: Option<SendQueue>,
    receive: Option<ReceiveQueue>,
    negotiated: Option<Negotiated>,
    window: Option<Window>,
    out_of_order: Vec<Segment>,
    path: Option<PathState>,
    queue: Vec<Queued>,
    /// What these take.
    room: usize,
    options: Vec<SocketOption>,
    /// The first option that this version does not know.
    strange: Option<u16>,
    metadata: Option<Metadata>,
    shut: Shut,
}

impl Parts {
    /// Reads one record; returns whether it is of a known kind.
    fn take(&mut self, of: u16, body: &mut Reader<'_>) -> Result<bool, Malformed> {
        match of {
            record::SOCKET => {
                let (at, kind) = (body.clone(), body.u8("kind of socket")?);
                if !(kind::STREAM..=kind::DATAGRAM).contains(&kind) {
                    return Err(at.malformed("kind of socket"));
                }
                let at = body.clone();
                let family = match body.u8("family")? {
                    4 => Family::Ipv4,
                    6 => Family::Ipv6,
                    _ => return Err(at.malformed("family")),
                };
                self.socket = Some((kind, family, body.endpoint("local endpoint")?));
            }
            record::REMOTE => self.remote = Some(body.endpoint("remote endpoint")?),
            record::STATE => {
                let (at, number) = (body.clone(), body.u8("state")?);
                let state = StreamState::ALL.into_iter().find(|state| state_number(*state) == number);
                self.state = Some(state.ok_or(at.malformed("state"))?);
            }
            record::BACKLOG => self.backlog = Some(body.u32("backlog")?),
            record::SEND => {
                let (end, unsent) = (body.u32("end of the send queue")?, body.u32("unsent bytes")?);
                self.send = Some(SendQueue { end, bytes: body.rest().to_vec(), unsent });
            }
            record::RECEIVE => {
                let end = body.u32("end of the receive queue")?;
                self.receive = Some(ReceiveQueue { end, bytes: body.rest().to_vec() });
            }
            record::NEGOTIATED => self.negotiated = Some(negotiated(body)?),
            record::WINDOW => {
                let mut next = || body.u32("window");
                let (send_updated, send, send_max) = (next()?, next()?, next()?);
                self.window = Some(Window { send_updated, send, send_max, receive: next()?, receive_updated: next()? });
            }
            record::OUT_OF_ORDER => {
                let (at, sequence) = (body.clone(), body.u32("sequence number")?);
                if self.out_of_order.len() >= MAX_OUT_OF_ORDER {
                    return Err(at.malformed("number of pieces out of order"));
                }
                self.out_of_order.push(Segment { sequence, bytes: body.rest().to_vec() });
            }
            record::DATAGRAM => {
                let (at, from) = (body.clone(), body.endpoint("source of a datagram")?);
                let queued = Queued { from, bytes: body.rest().to_vec() };
                self.room += queued.room();
                if self.queue.len() >= MAX_QUEUED || self.room > MAX_QUEUE {
                    return Err(at.malformed("number or room of datagrams"));
                }
                self.queue.push(queued);
            }
            record::PATH => self.path = Some(path(body)?),
            record::OPTION => {
                let (number, value) = (body.u16("option")?, body.u64("value of an option")?);
                match OptionKind::from_number(number) {
                    Some(kind) => self.options.push(SocketOption { kind, value }),
                    // The socket would go on without it, and its program would not know.
                    None => {
                        self.strange.get_or_insert(number);
                    }
                }
            }
            record::METADATA => {
                let uuid = *body.array("name of the socket")?;
                let too_long = body.malformed("state of the program");
                let state = body.rest().to_vec();
                if state.len() > MAX_STATE {
                    return Err(too_long);
                }
                self.metadata = Some(Metadata { uuid, state });
            }
            record::SHUT => {
                let (at, flags) = (body.clone(), body.u8("what is shut down")?);
                if !(1..=3).contains(&flags) {
                    return Err(at.malformed("what is shut down"));
                }
                self.shut = Shut { receive: flags & 1 != 0, send: flags & 2 != 0 };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn assemble(self) -> Result<Snapshot, Unreadable> {
        let missing = Unreadable::Inconsistent;
        let (of, family, local) = self.socket.ok_or(missing("no record tells what kind of socket it is"))?;
        if family == Family::Ipv4 && !local.is_ipv4() {
            return Err(missing("an IPv4 socket with an IPv6 address"));
        }
        if let Some(number) = self.strange {
            return Err(Unreadable::UnknownOption { number });
        }
        let beyond = |option: &SocketOption| option.value > MOST_PRIORITY;
        if self.options.iter().any(|option| option.kind == OptionKind::Priority && beyond(option)) {
            return Err(missing("a priority that needs a privilege, under the number of one that does not"));
        }
        if self.options.iter().any(|option| option.kind.waits_until_awake() && option.value > i32::MAX as u64) {
            return Err(missing("an option with a value that no kernel has"));
        }
        if self.options.windows(2).any(|pair| pair[0].kind >= pair[1].kind) {
            return Err(missing("options that are not in order"));
        }
        let same_family = |remote: SocketAddr| {
            let any = family == Family::Ipv6 && local.ip().is_unspecified();
            remote.is_ipv4() == local.is_ipv4() || any
        };
        if self.remote.is_some_and(|remote| !same_family(remote)) {
            return Err(missing("the two ends are of different families"));
        }
        let stray = |present: &[bool]| present.iter().any(|present| *present);
        let streaming = [
            self.state.is_some(),
            self.send.is_some(),
            self.receive.is_some(),
            self.negotiated.is_some(),
            self.window.is_some(),
            self.path.is_some(),
            !self.out_of_order.is_empty(),
        ];
        let foreign = match of {
            kind::STREAM => self.backlog.is_some() || !self.queue.is_empty(),
            kind::LISTENING => stray(&streaming) || self.remote.is_some() || !self.queue.is_empty(),
            _ => stray(&streaming) || self.backlog.is_some(),
        };
        if foreign {
            return Err(missing("a record that its kind of socket does not have"));
        }
        let has_ended = self.state.is_some_and(StreamState::peer_has_finished);
        let is_odd = match of {
            kind::STREAM => self.shut.send || self.shut.receive && has_ended,
            kind::LISTENING => self.shut != Shut::default(),
            _ => false,
        };
        if is_odd {
            return Err(missing("a direction that is shut down beside what its kind of socket or its state says"));
        }
        let body = match of {
            kind::STREAM => Body::Stream(checked(Stream {
                remote: self.remote.ok_or(missing("a connection without the other end"))?,
                state: self.state.ok_or(missing("a connection without a state"))?,
                send: self.send.ok_or(missing("a connection without a send queue"))?,
                receive: self.receive.ok_or(missing("a connection without a receive queue"))?,
                negotiated: self.negotiated.ok_or(missing("a connection without what its ends agreed upon"))?,
                window: self.window.ok_or(missing("a connection without windows"))?,
                out_of_order: self.out_of_order,
                path: self.path,
            })?),
            kind::LISTENING => {
                Body::Listening { backlog: self.backlog.ok_or(missing("a listener without a backlog"))? }
            }
            _ => {
                if self.queue.iter().any(|datagram| datagram.bytes.len() > MAX_DATAGRAM) {
                    return Err(missing("a datagram that is longer than any"));
                }
                Body::Datagram(Datagrams { remote: self.remote, queue: self.queue })
            }
        };
        Ok(Snapshot { family, local, body, shut: self.shut, options: self.options, metadata: self.metadata })
    }
}

/// What a kernel would refuse half-way through, or take and suffer from later.
fn checked(stream: Stream) -> Result<Stream, Unreadable> {
    let fail = |what| Err(Unreadable::Inconsistent(what));
    let Stream { remote, state, send, receive, negotiated, window, out_of_order, .. } = &stream;
    if remote.port() == 0 || remote.ip().is_unspecified() {
        return fail("a connection to nobody");
    }
    if send.unsent as usize > send.bytes.len() {
        return fail("more bytes were never sent than there are");
    }
    if state.finish_acknowledged() && !send.bytes.is_empty() {
        return fail("the end of the stream was acknowledged, and bytes before it were not");
    }
    if negotiated.mss < MIN_MSS {
        return fail("segments that are too short");
    }
    if negotiated.scale.is_some_and(|scale| scale.send > MAX_SHIFT || scale.receive > MAX_SHIFT) {
        return fail("windows that are scaled too much");
    }
    if [window.send, window.send_max, window.receive].into_iter().any(|bytes| bytes > MAX_WINDOW) {
        return fail("a window that is larger than any");
    }
    let mut after = receive.end;
    for segment in out_of_order {
        let ahead = segment.sequence.wrapping_sub(after);
        if segment.bytes.is_empty() || ahead == 0 && after == receive.end || ahead > MAX_WINDOW {
            return fail("out-of-order bytes that are in order, or far beyond the window");
        }
        after = segment.sequence.wrapping_add(segment.bytes.len() as u32);
    }
    if state.peer_has_finished() && !out_of_order.is_empty() {
        return fail("bytes after the other end's last");
    }
    Ok(stream)
}

fn negotiated(body: &mut Reader<'_>) -> Result<Negotiated, Malformed> {
    let (at, flags) = (body.clone(), body.u8("flags")?);
    if flags > 15 {
        return Err(at.malformed("flags"));
    }
    let flag = |bit: u8| flags & 1 << bit != 0;
    let mss = body.u16("segment size")?;
    let at = body.clone();
    let scale = Scale { send: body.u8("window scale")?, receive: body.u8("window scale")? };
    let timestamp = body.u32("timestamp")?;
    if !flag(0) && scale != (Scale { send: 0, receive: 0 }) || !flag(3) && timestamp != 0 {
        return Err(at.malformed("value of something that is off"));
    }
    Ok(Negotiated {
        mss,
        scale: flag(0).then_some(scale),
        sack: flag(1),
        ecn: flag(2),
        timestamp: flag(3).then_some(timestamp),
    })
}

fn path(body: &mut Reader<'_>) -> Result<PathState, Malformed> {
    let mut next = || body.u32("state of the path");
    let (congestion_window, slow_start_threshold, round_trip, variation, mtu) =
        (next()?, next()?, next()?, next()?, next()?);
    let at = body.clone();
    let name = body.rest();
    let printable = name.len() <= MAX_NAME && name.iter().all(u8::is_ascii_graphic);
    let name = core::str::from_utf8(name).ok().filter(|_| printable);
    let congestion_control = name.ok_or(at.malformed("name of the congestion control"))?.to_owned();
    Ok(PathState { congestion_control, congestion_window, slow_start_threshold, round_trip, variation, mtu })
}
