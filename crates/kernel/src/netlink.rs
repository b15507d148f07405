//! One netlink request and all of its answer.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::{Socket, SocketAddr};

use crate::error::Error;

/// A dump that met a change half way is asked for again this often, then taken as it is: on a host whose tables never
/// rest an answer with a seam is better than none.
const CONSISTENT_TRIES: u32 = 5;
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLM_F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;
const ATTRIBUTE_HEADER: usize = 4;
/// The bits of an attribute's type that are not flags (`NLA_TYPE_MASK`).
const ATTRIBUTE_TYPE: u16 = 0x3fff;
/// Its value is attributes (`NLA_F_NESTED`).
pub(crate) const NESTED: u16 = 0x8000;

/// A blocking netlink socket in the namespace that it was opened in.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// What the kernel said to a request that it refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: io::Error,
    /// The kernel's own words (extended acknowledgement), often empty.
    pub(crate) text: String,
}

impl Refusal {
    /// The refusal as an error of the crate; the kernel's own words go to the object.
    pub(crate) fn of(self, call: &'static str, object: impl Into<String>) -> Error {
        let mut object = object.into();
        if !self.text.is_empty() {
            object = format!("{object} ({})", self.text);
        }
        Error::call(call, object, self.error)
    }

    pub(crate) fn errno(&self) -> i32 {
        self.error.raw_os_error().unwrap_or(0)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { error, text: String::new() }
    }
}

impl Netlink {
    pub(crate) fn open(protocol: isize, name: &'static str) -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Both only make errors and filters better.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_netlink_get_strict_chk(true);
            Ok(socket)
        };
        let socket = open().map_err(|e: io::Error| Error::call("socket", name, e))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; 1 << 16] })
    }

    /// Sends one request and gives every part of the answer to `each` (message type, payload). Returns once the kernel
    /// has acknowledged it or ended the dump.
    ///
    /// `restart` is called before a dump is asked for again, for the caller to forget what it got.
    pub(crate) fn request<S>(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        state: &mut S,
        restart: fn(&mut S),
        mut each: impl FnMut(&mut S, u16, &[u8]),
    ) -> Result<(), Refusal> {
        let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        for attempt in 1.. {
            restart(state);
            self.send(kind, flags | NLM_F_REQUEST | if dump { 0 } else { NLM_F_ACK }, body)?;
            let interrupted = self.receive(|kind, payload| {
                each(state, kind, payload);
                ControlFlow::Continue(())
            })?;
            if !interrupted || attempt == CONSISTENT_TRIES {
                break;
            }
        }
        Ok(())
    }

    /// Asks for a dump and gives its parts to `each` until that has had enough. The socket goes with what was not read.
    pub(crate) fn begin_dump(
        mut self,
        kind: u16,
        body: &[u8],
        each: impl FnMut(u16, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Refusal> {
        self.send(kind, NLM_F_DUMP | NLM_F_REQUEST, body)?;
        self.receive(each).map(drop)
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER + body.len();
        let mut frame = Vec::with_capacity(length);
        frame.extend_from_slice(&(length as u32).to_ne_bytes());
        frame.extend_from_slice(&kind.to_ne_bytes());
        frame.extend_from_slice(&flags.to_ne_bytes());
        frame.extend_from_slice(&self.sequence.to_ne_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(body);
        self.socket.send(&frame, 0).map(drop)
    }

    /// Returns whether the dump met a change half way.
    fn receive(&mut self, mut each: impl FnMut(u16, &[u8]) -> ControlFlow<()>) -> Result<bool, Refusal> {
        let mut interrupted = false;
        loop {
            let length = match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if length > self.buffer.len() {
                return Err(io::Error::other(format!("an answer of {length} bytes, larger than the buffer")).into());
            }
            for message in Messages(&self.buffer[..length]) {
                // What is left of a request that was given up before.
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_ERROR => {
                        return acknowledgement(message.flags, message.payload).map(|()| interrupted);
                    }
                    NLMSG_DONE => {
                        // A dump that fails half way says so in its last message.
                        let code = message.payload.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
                        return if code < 0 {
                            Err(io::Error::from_raw_os_error(-code).into())
                        } else {
                            Ok(interrupted)
                        };
                    }
                    kind => {
                        if each(kind, message.payload).is_break() {
                            return Ok(interrupted);
                        }
                    }
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One message of a datagram.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram; ends at the first that is malformed.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header: &[u8; HEADER] = self.0.first_chunk()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let payload = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            payload,
        })
    }
}

/// The attributes of a message, each with its type; ends at the first that is malformed.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let head: &[u8; ATTRIBUTE_HEADER] = self.0.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = self.0.get(ATTRIBUTE_HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[2], head[3]]) & ATTRIBUTE_TYPE, value))
    }
}

/// The first attribute of that type.
pub(crate) fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    Attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A number of 32 bits in an attribute.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// A string in an attribute; what is no UTF-8 in it is replaced.
pub(crate) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Appends an attribute.
pub(crate) fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn acknowledgement(flags: u16, payload: &[u8]) -> Result<(), Refusal> {
    let code = payload.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
    if code == 0 {
        return Ok(());
    }
    let text =
        if flags & NLM_F_ACK_TLVS != 0 { kernel_words(flags, payload).unwrap_or_default() } else { String::new() };
    Err(Refusal { error: io::Error::from_raw_os_error(code.saturating_neg()), text })
}

/// The text of an extended acknowledgement: behind the error code and the request, which may be cut to its header.
fn kernel_words(flags: u16, payload: &[u8]) -> Option<String> {
    let request = payload.get(4..)?;
    let length = u32::from_ne_bytes(*request.first_chunk()?) as usize;
    let quoted = if flags & NLM_F_CAPPED != 0 { HEADER } else { length.next_multiple_of(4) };
    attribute(request.get(quoted..)?, NLMSGERR_ATTR_MSG).map(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_or_lying_datagram_ends_the_messages() {
        assert_eq!(Messages(&[]).count(), 0);
        assert_eq!(Messages(&[1; 15]).count(), 0);
        let mut frame = vec![0; 20];
        frame[0] = 20;
        frame[4] = 16;
        assert_eq!(Messages(&frame).count(), 1);
        frame[0] = 21;
        assert_eq!(Messages(&frame).count(), 0);
        frame[0] = 3;
        assert_eq!(Messages(&frame).count(), 0);
    }

    #[test]
    fn attributes_are_what_was_appended_and_end_at_the_first_that_lies() {
        let mut all = Vec::new();
        push_attribute(&mut all, 1, &[7]);
        push_attribute(&mut all, 2 | NESTED, b"name\0");
        push_attribute(&mut all, 3, &9u32.to_ne_bytes());
        assert_eq!(attribute(&all, 1), Some(&[7][..]));
        assert_eq!(attribute(&all, 2).map(text).as_deref(), Some("name"));
        assert_eq!(attribute(&all, 3).and_then(number), Some(9));
        assert_eq!(attribute(&all, 4), None);
        assert_eq!(attribute(&all[..all.len() - 1], 3), None);
        all[0] = 3;
        assert_eq!(Attributes(&all).count(), 0);
    }

    #[test]
    fn the_kernel_says_why() {
        let mut socket = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE, "NETLINK_ROUTE").unwrap();
        // RTM_GETROUTE with a body that is too short for its header.
        let refusal = socket.request(26, 0, &[2, 0, 0, 0], &mut (), |()| {}, |(), _, _| {}).unwrap_err();
        assert_eq!(refusal.errno(), libc::EINVAL);
        assert!(!refusal.text.is_empty(), "no words");
        // The socket is still good.
        let mut links = 0;
        socket.request(18, NLM_F_DUMP, &[0; 16], &mut links, |n| *n = 0, |n, _, _| *n += 1).unwrap();
        assert!(links > 0);
    }
}
