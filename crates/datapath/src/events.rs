//! The ring buffers that the programs report through.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Error;
use crate::abi::{
    EVENT_ACKNOWLEDGED, EVENT_CLAIMED, EVENT_DATAGRAM_SENT, EVENT_FLOW_CLOSED, EVENT_FLOW_OPENED, EVENT_FLOW_OPENING,
    EVENT_FLOW_STALLED, EVENT_GREETED, EVENT_HEARD_NATIVELY, EVENT_INTRODUCTION, EVENT_OVERDUE, EVENT_STILL_THERE,
    EVENTS_BYTES, GREETED_FAR, GREETED_NEAR, LocatorPair, ORIGIN_ACCEPTED, ORIGIN_CONNECTED, Plain, RawEvent,
};

/// What the programs report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An introduction segment for a session index that is listened to was consumed.
    Introduction(Introduction),
    /// A TCP socket of this namespace begins to connect, not over loopback. Not told of where very many do.
    FlowOpening {
        /// Where to.
        remote: IpAddr,
    },
    /// A TCP connection of this namespace, not over loopback, was established.
    FlowOpened {
        /// Its own tuple.
        flow: FlowTuple,
        /// Which end opened it.
        origin: Origin,
        /// The user whose socket it is.
        user: u32,
    },
    /// Something came in on a flow whose binding is [`Carrier::Listen`](crate::Carrier::Listen), under its own names.
    /// The binding is on hold from then on.
    HeardNatively {
        /// Its own tuple.
        flow: FlowTuple,
    },
    /// The TCP socket of an introduced flow has had no answer to two retransmissions by its timer, or to a probe
    /// (keepalive or zero window). Said again each time that their number has doubled.
    FlowStalled {
        /// Its own tuple.
        flow: FlowTuple,
        /// That number.
        attempts: u32,
    },
    /// The peer of a helped flow has acknowledged some of what was kept for it
    /// ([`HelpedPhase::Delivered`](crate::HelpedPhase::Delivered)), or says again what it has.
    Acknowledged {
        /// Its own tuple.
        flow: FlowTuple,
        /// The next sequence number that the peer expects.
        next: u32,
        /// How much more it takes, as in the header, without the scale.
        window: u16,
    },
    /// A SYN came under the names of a flow that has moved ([`FlowEntry::gives_way`](crate::FlowEntry::gives_way)).
    /// Said once for each flow, until it is inserted again.
    Claimed(FlowTuple),
    /// Something came natively in a moved flow of TCP whose peer has named it late
    /// ([`FlowEntry::late`](crate::FlowEntry::late)), other than a SYN or a reset. Said once, as the former.
    StillThere(FlowTuple),
    /// Nothing comes between these addresses, where usually something does by then ([`Datapath::watch_traffic`]). Said
    /// once, until something comes.
    ///
    /// [`Datapath::watch_traffic`]: crate::Datapath::watch_traffic
    Overdue {
        /// Which.
        between: LocatorPair,
        /// For how long what left is not answered.
        lasts: Duration,
    },
    /// The far end of a TCP connection of this namespace says in its handshake that it runs Whimbrel
    /// ([`Datapath::greet`]). Whoever is on the path can say so.
    ///
    /// [`Datapath::greet`]: crate::Datapath::greet
    Greeted {
        /// Its own tuple.
        flow: FlowTuple,
        /// Which end opened it.
        origin: Origin,
        /// This end is another endpoint there: a NAT is before it.
        near_translated: bool,
        /// The far end is another endpoint there than this host's socket knows.
        far_translated: bool,
    },
    /// Such a connection has left the state that its socket keeps. The kernel may still answer for it for a minute
    /// (TIME-WAIT), so its packets may still have to be carried.
    FlowClosed {
        /// Its own tuple.
        flow: FlowTuple,
    },
    /// A socket of UDP has sent to a remote to which it had not sent of late ([`Datapath::follow_datagrams`]), not to
    /// one of this host or of a group. Not told at once of where very many do, nor ever of a remote that it has left by
    /// then.
    ///
    /// [`Datapath::follow_datagrams`]: crate::Datapath::follow_datagrams
    DatagramSent {
        /// Its own tuple, with the address that the datagram left from: the kernel's choice, where the socket is bound
        /// to none.
        flow: FlowTuple,
        /// Whether the socket is connected.
        connected: bool,
        /// The user whose socket it is.
        user: u32,
        /// SO_COOKIE of the socket.
        cookie: u64,
    },
}

/// Which end opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This one.
    Connected,
    /// The other.
    Accepted,
    /// Not known: both at once, or restored.
    Unknown,
}

impl Origin {
    fn from_raw(raw: u32) -> Self {
        match raw {
            ORIGIN_CONNECTED => Self::Connected,
            ORIGIN_ACCEPTED => Self::Accepted,
            _ => Self::Unknown,
        }
    }
}

/// A consumed introduction segment (`docs/protocol.md` §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The segment's names as it came in: `local` is its destination. On a rewritten path that is the wire tuple.
    pub seen: FlowTuple,
    /// The session index that it asked for.
    pub index: u32,
    /// Its nonce.
    pub nonce: u64,
    /// Sequence number; 0 for UDP.
    pub sequence: u32,
    /// Acknowledgement number; 0 for UDP.
    pub acknowledgement: u32,
    /// Index of the interface that it came in by.
    pub interface: u32,
}

impl Event {
    /// None if it is of no kind that this version knows.
    fn from_raw(raw: &RawEvent) -> Option<Self> {
        let flow = raw.tuple.tuple()?;
        match raw.kind {
            EVENT_INTRODUCTION => Some(Self::Introduction(Introduction {
                seen: flow,
                index: raw.index,
                nonce: raw.nonce,
                sequence: raw.sequence,
                acknowledgement: raw.acknowledgement,
                interface: raw.interface,
            })),
            EVENT_FLOW_OPENED => Some(Self::FlowOpened { flow, origin: Origin::from_raw(raw.origin), user: raw.index }),
            EVENT_GREETED => Some(Self::Greeted {
                flow,
                origin: Origin::from_raw(raw.origin),
                near_translated: raw.index & GREETED_NEAR != 0,
                far_translated: raw.index & GREETED_FAR != 0,
            }),
            EVENT_FLOW_OPENING => Some(Self::FlowOpening { remote: flow.remote.ip() }),
            EVENT_DATAGRAM_SENT => Some(Self::DatagramSent {
                flow,
                connected: raw.origin == ORIGIN_CONNECTED,
                user: raw.index,
                cookie: raw.nonce,
            }),
            EVENT_FLOW_CLOSED => Some(Self::FlowClosed { flow }),
            EVENT_FLOW_STALLED => Some(Self::FlowStalled { flow, attempts: raw.index }),
            EVENT_ACKNOWLEDGED => Some(Self::Acknowledged {
                flow,
                next: raw.acknowledgement,
                window: u16::try_from(raw.index).unwrap_or(u16::MAX),
            }),
            EVENT_CLAIMED => Some(Self::Claimed(flow)),
            EVENT_STILL_THERE => Some(Self::StillThere(flow)),
            EVENT_OVERDUE => Some(Self::Overdue {
                between: LocatorPair { local: flow.local.ip(), peer: flow.remote.ip() },
                lasts: Duration::from_micros(raw.index.into()),
            }),
            EVENT_HEARD_NATIVELY => Some(Self::HeardNatively { flow }),
            _ => None,
        }
    }
}

/// How many events are read in one go ([`crate::Datapath::drain_events`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Of what this host's own sockets have done: opened, stalled, closed.
    pub sockets: usize,
    /// Of what packets have caused, which anybody may send.
    pub arrivals: usize,
}

impl Most {
    /// All that sockets had done when it was called, and none of the rest: no more than their ring buffer holds.
    pub const OF_SOCKETS: Self = Self { sockets: EVENTS_BYTES / size_of::<RawEvent>(), arrivals: 0 };
    /// As long as there are any.
    pub const ALL: Self = Self { sockets: usize::MAX, arrivals: usize::MAX };
}

/// Reads the ring buffers.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Both, with one descriptor to wait for.
    rings: NonNull<libbpf_sys::ring_buffer>,
    /// Where `deliver` finds the events' receiver; from a box that `drop` frees.
    sink: NonNull<Sink>,
    /// Kept open for the rings.
    _maps: [OwnedFd; 2],
}

/// Set only while `drain` runs.
type Sink = Option<NonNull<dyn FnMut(Event)>>;

// SAFETY: libbpf ties the rings to no thread, and `sink` is empty but while `drain` holds `&mut self`.
unsafe impl Send for Rings {}

impl Rings {
    /// `sockets`: what this host's own do; `arrivals`: what packets cause.
    pub(crate) fn new(sockets: OwnedFd, arrivals: OwnedFd) -> Result<Self, Error> {
        let sink: *mut Sink = Box::into_raw(Box::new(None));
        // SAFETY: `deliver` has the type that libbpf asks for, and the sink lives as long as the rings.
        let rings =
            unsafe { libbpf_sys::ring_buffer__new(sockets.as_raw_fd(), Some(deliver), sink.cast(), ptr::null()) };
        let error = std::io::Error::last_os_error();
        let (Some(rings), Some(sink)) = (NonNull::new(rings), NonNull::new(sink)) else {
            // SAFETY: from the box above, and there are no rings to use it.
            drop(unsafe { Box::from_raw(sink) });
            return Err(Error::call("ring_buffer__new", "events", error));
        };
        let this = Self { rings, sink, _maps: [sockets, arrivals] };
        let arrivals = this._maps[1].as_raw_fd();
        // SAFETY: as above; the rings are open.
        let code =
            unsafe { libbpf_sys::ring_buffer__add(rings.as_ptr(), arrivals, Some(deliver), sink.as_ptr().cast()) };
        if code < 0 { Err(Error::code("ring_buffer__add", "arrivals", code)) } else { Ok(this) }
    }

    /// Readable while there are events that ask to be read at once.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the rings' own descriptor, open as long as they are, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(libbpf_sys::ring_buffer__epoll_fd(self.rings.as_ptr())) }
    }

    /// Gives `receiver` as many as `most` says; whether there may be more.
    pub(crate) fn drain(&mut self, most: Most, receiver: &mut dyn FnMut(Event)) -> Result<bool, Error> {
        let receiver: NonNull<dyn FnMut(Event) + '_> = NonNull::from(receiver);
        // SAFETY: only the lifetime changes; the pointer is taken out of the sink again before it ends.
        let receiver: NonNull<dyn FnMut(Event)> = unsafe { std::mem::transmute(receiver) };
        // SAFETY: nothing else uses the sink: `deliver` runs only within `consume`.
        unsafe { self.sink.write(Some(receiver)) };
        let more = self.consume(0, most.sockets).and_then(|more| Ok(self.consume(1, most.arrivals)? || more));
        // SAFETY: as above.
        unsafe { self.sink.write(None) };
        more
    }

    fn consume(&mut self, ring: u32, most: usize) -> Result<bool, Error> {
        if most == 0 {
            return Ok(false);
        }
        // SAFETY: there are two, and they are open; the ring calls `deliver` on this thread.
        let code = unsafe {
            let ring = libbpf_sys::ring_buffer__ring(self.rings.as_ptr(), ring);
            libbpf_sys::ring__consume_n(ring, most as libbpf_sys::size_t)
        };
        match usize::try_from(code) {
            Ok(read) => Ok(read >= most),
            Err(_) => Err(Error::code("ring__consume_n", if ring == 0 { "events" } else { "arrivals" }, code)),
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: made by ring_buffer__new and freed once.
        unsafe { libbpf_sys::ring_buffer__free(self.rings.as_ptr()) };
        // SAFETY: from a box (`new`), and the rings that used it are gone.
        drop(unsafe { Box::from_raw(self.sink.as_ptr()) });
    }
}

/// Called by libbpf for each record. A panic of the receiver aborts, as it must not unwind through C.
unsafe extern "C" fn deliver(context: *mut c_void, data: *mut c_void, size: libbpf_sys::size_t) -> c_int {
    // SAFETY: `context` is the rings' sink (`Rings::new`), which nobody writes while `drain` waits for libbpf.
    let sink = unsafe { &*context.cast::<Sink>() };
    // SAFETY: libbpf gives a record of `size` bytes that stays in place until this returns.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::try_from(size).unwrap_or(0)) };
    let event = RawEvent::from_bytes(bytes).as_ref().and_then(Event::from_raw);
    if let (Some(receiver), Some(event)) = (*sink, event) {
        // SAFETY: `drain` set it from a unique reference that is still borrowed.
        unsafe { (*receiver.as_ptr())(event) };
    }
    0
}
