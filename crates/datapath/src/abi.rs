//! The Rust side of `bpf/abi.h`, and the types of the public interface that it is converted from and to.
//!
//! The layout is compared with the compiled C by the tests at the end.

mod conversions;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_wire::BindingId;

/// A struct that is exactly its bytes: `repr(C)`, without padding, and any bit pattern is a value.
///
/// # Safety
/// Implementors must be all of that.
pub(crate) unsafe trait Plain: Copy {
    /// None if `bytes` is shorter than the struct.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, the read does not ask for alignment, and any bit pattern is a value.
        (bytes.len() >= size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: it is exactly its bytes, and they live as long as it is borrowed.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    fn zeroed() -> Self {
        // SAFETY: any bit pattern is a value.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub(crate) struct $name { $(pub(crate) $field: $kind),* }

            // SAFETY: integers and structs of them in repr(C); the sizes add up, so there is no padding.
            unsafe impl Plain for $name {}
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$kind>())*);

            #[cfg(test)]
            impl $name {
                pub(crate) const LAYOUT: &[(&str, usize, usize)] =
                    &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>())),*];
            }
        )*
    };
}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: transparent, an integer of which any is a value.
unsafe impl Plain for BindingId {}

plain! {
    struct RawAddress { words: [u32; 4] }
    struct RawTuple {
        local: RawAddress,
        remote: RawAddress,
        local_port: u16,
        remote_port: u16,
        transport: u8,
        zero: [u8; 3],
    }
    struct RawFlowEntry {
        binding: BindingId,
        home_local_place: u32,
        home_peer_place: u32,
        wire_local_port: u16,
        wire_remote_port: u16,
        heard_local_place: u32,
        heard_peer_place: u32,
        held: u8,
        lapsed: u8,
        real_view: u8,
        conflict: u8,
        echoes_from: u32,
        clock: u32,
        delivery: u32,
        sent: u32,
        tunnelled_until: u32,
        free_at: u32,
        free_between: u16,
        zero: [u8; 2],
    }
    struct RawLentKey { address: RawAddress, port: u16, transport: u8, zero: [u8; 5] }
    struct RawLent { delivery: u32, binding: BindingId }
    struct RawEndpoint { address: RawAddress, binding: BindingId, namespace: u32, unknown: u8, zero: [u8; 7] }
    struct RawAlias { program: [u8; 16], address: RawAddress, other: RawAddress, kind: u8, zero: [u8; 7] }
    struct RawPorts { words: [u64; 1024] }
    struct RawHelpedFlow { offset: u32, acknowledged: u32, delivered: u32, phase: u8, zero: [u8; 3] }
    struct RawWireFlow { binding: BindingId, local_port: u16, remote_port: u16, transport: u8, zero: [u8; 3] }
    struct RawBinding {
        local: RawAddress,
        peer: RawAddress,
        local_place: u32,
        peer_place: u32,
        interface: u32,
        neighbour_interface: u32,
        neighbour_until: u64,
        allowance: u64,
        neighbour: [u8; 6],
        carrier: u8,
        parked: u8,
        arrival: u32,
        mtu: u32,
        peer_since: u32,
        names_kept: u8,
        zero: u8,
        locators: u16,
    }
    struct RawLocatorPair { peer: RawAddress, local: RawAddress }
    struct RawLocator { binding: BindingId, arrival: u32 }
    struct RawPath { arrival: u32, port: u32 }
    struct RawHome { next_hop: RawAddress, interface: u32, zero: u32 }
    struct RawTraffic {
        timer: [u64; 2],
        heard: u64,
        asked: u64,
        usual: u32,
        varies: u32,
        answer: u32,
        port: u16,
        answers: u8,
        ready: u8,
        armed: u32,
        told: u8,
        zero: [u8; 3],
    }
    struct RawSettings {
        namespace_cookie: u64,
        tunnel: u32,
        mark: u32,
        mark_mask: u32,
        idle: u32,
        control_port: u32,
        strict: u32,
        drawn_first: u16,
        drawn_last: u16,
        home: u32,
    }
    struct RawShare { since: u64, used: u32, zero: u32 }
    struct RawSent { cookie: u64, user: u32, at: u32 }
    struct RawEvent {
        tuple: RawTuple,
        kind: u32,
        origin: u32,
        nonce: u64,
        index: u32,
        sequence: u32,
        acknowledgement: u32,
        interface: u32,
    }
    struct RawPosition { snd_una: u32, rcv_nxt: u32, snd_up: u32 }
    struct RawWanted { count: u32, lapsed: u32 }
    struct RawSocket {
        tuple: RawTuple,
        inode: u64,
        acknowledged: u64,
        received: u64,
        state: u32,
        snd_una: u32,
        snd_nxt: u32,
        rcv_nxt: u32,
        snd_wnd: u32,
        mss_cache: u32,
        pmtu_cookie: u32,
        bound_interface: u32,
        uid: u32,
        backoff: u8,
        retransmits: u8,
        reports_errors: u8,
        repairs: u8,
        write_seq: u32,
        window_scale: u8,
        unordered: u8,
        receives: u8,
        stands_still: u8,
        heard: u32,
        round_trip: u32,
        window: u32,
        threshold: u32,
        least_round_trip: u32,
        sends: u32,
        sent_again: u32,
        zero: u32,
    }
    struct RawResumption {
        since: u64,
        window: u32,
        most: u32,
        threshold: u32,
        least: u32,
        smoothed: u32,
        unknown: u32,
    }
}

/// `ALLOWANCE_UNLIMITED`
const UNLIMITED: u64 = u64::MAX;

/// `PLACE_NEVER`
const PLACE_NEVER: u32 = u32::MAX;

/// `NAMESPACE_UNKNOWN`
pub(crate) const NAMESPACE_UNKNOWN: u32 = u32::MAX;
/// `LENT_SHARED`
pub(crate) const LENT_SHARED: u32 = 0xffff_fffd;
/// `DELIVERY_ROUTES`
pub(crate) const DELIVERY_ROUTES: u32 = u32::MAX;
/// `DELIVERY_PASSING`
pub(crate) const DELIVERY_PASSING: u32 = u32::MAX - 2;

/// `HOME_SEVERAL`
pub(crate) const HOME_SEVERAL: u32 = u32::MAX;

/// The link-layer address that the inner end of every endpoint namespace's pair of interfaces has to have
/// (`INNER_HARDWARE_ADDRESS`): the programs put it on what they send in there by the outer end.
pub const INNER_HARDWARE_ADDRESS: [u8; 6] = [0x02, b'W', b'B', b'e', b'p', 0];

/// Names of the counters, in the order of `enum counter`.
pub(crate) const COUNTERS: [&str; 49] = [
    "native_out",
    "home_out",
    "rewritten_out",
    "tunnelled_out",
    "held",
    "held_allowance",
    "held_family",
    "held_no_tunnel",
    "dropped_rewrite",
    "dropped_route",
    "vacated_out",
    "icmp_out",
    "dropped_icmp_out",
    "fragment_out",
    "rewritten_in",
    "home_in",
    "dropped_restore",
    "dropped_unknown",
    "dropped_reset",
    "icmp_in",
    "fragment_in",
    "fragment_unmatched",
    "introduction",
    "introduction_lost",
    "tunnel_in",
    "flow_event_lost",
    "answered",
    "stale_echo",
    "helped",
    "held_in",
    "dropped_renumber",
    "redirected_out",
    "held_kept",
    "claimed",
    "endpoint_in",
    "endpoint_out",
    "endpoint_home",
    "dropped_endpoint",
    "leased_out",
    "forwarded",
    "expired",
    "too_long",
    "set_aside",
    "introduction_excess",
    "taken_in",
    "taken_out",
    "dropped_astray",
    "dropped_names",
    "led_home",
];

pub(crate) const IDLE_TRANSLATION: u32 = 1;
pub(crate) const IDLE_INTRODUCTIONS: u32 = 2;
pub(crate) const IDLE_VACATED: u32 = 4;
pub(crate) const IDLE_LISTENING: u32 = 8;
pub(crate) const IDLE_LAPSES: u32 = 16;
pub(crate) const IDLE_HELPED: u32 = 32;
pub(crate) const IDLE_KEPT: u32 = 64;
pub(crate) const IDLE_ENDPOINTS: u32 = 128;
pub(crate) const IDLE_FORWARDED: u32 = 256;
pub(crate) const IDLE_UNCONNECTED: u32 = 512;
pub(crate) const IDLE_DATAGRAMS: u32 = 1024;
pub(crate) const IDLE_TRAFFIC: u32 = 2048;
/// `enum follow` of `bpf/abi.h`, which is in no type that BTF would tell of.
pub(crate) const FOLLOW_CLOSES: u32 = 1;
pub(crate) const FOLLOW_ALL: u32 = 2;
pub(crate) const UNKNOWN_DROPPED: u8 = 0;
pub(crate) const UNKNOWN_ROUTED: u8 = 1;
pub(crate) const UNKNOWN_TUNNELLED: u8 = 2;
/// Size of the ring buffer of what sockets do (`bpf/maps.h`).
pub(crate) const EVENTS_BYTES: usize = 1 << 19;
pub(crate) const EVENT_INTRODUCTION: u32 = 1;
pub(crate) const EVENT_FLOW_OPENED: u32 = 2;
pub(crate) const EVENT_FLOW_CLOSED: u32 = 3;
pub(crate) const EVENT_HEARD_NATIVELY: u32 = 4;
pub(crate) const EVENT_FLOW_STALLED: u32 = 5;
pub(crate) const EVENT_ACKNOWLEDGED: u32 = 6;
pub(crate) const EVENT_CLAIMED: u32 = 7;
pub(crate) const EVENT_FLOW_OPENING: u32 = 8;
pub(crate) const EVENT_DATAGRAM_SENT: u32 = 9;
pub(crate) const EVENT_STILL_THERE: u32 = 10;
pub(crate) const EVENT_OVERDUE: u32 = 11;
pub(crate) const EVENT_GREETED: u32 = 12;
pub(crate) const GREETED_NEAR: u32 = 1;
pub(crate) const GREETED_FAR: u32 = 2;
pub(crate) const HELD_BACK: u8 = 1;
pub(crate) const HELD_TUNNELLED: u8 = 2;
pub(crate) const HELD_HIDDEN: u8 = 4;
pub(crate) const HELD_BEYOND: u8 = 8;
pub(crate) const HELD_LATE: u8 = 16;
pub(crate) const HELD_UNCONNECTED: u8 = 32;
pub(crate) const CONFLICT_GIVES_WAY: u8 = 1;
pub(crate) const CONFLICT_NATIVE: u8 = 4;
pub(crate) const FITTED_CHANGED: u8 = 1;
/// `LOOKED_UP_AT_ONCE`
pub(crate) const LOOKED_UP_AT_ONCE: u32 = 128;
pub(crate) const FITTED_WAITING: u8 = 2;
pub(crate) const ORIGIN_CONNECTED: u32 = 1;
pub(crate) const ORIGIN_ACCEPTED: u32 = 2;

/// How the packets of a binding's moved flows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Carrier {
    /// Untouched.
    Native = 0,
    /// Rewritten to the wire tuple.
    Rewrite = 1,
    /// Through the TUN device, to the daemon.
    Tunnel = 2,
    /// Not at all for now: they disappear in a way that leaves TCP's back-off as it is. Window probes and keepalives
    /// are answered for the peer, by a closed window, where there is a TUN device ([`crate::Datapath::set_tunnel`]).
    Hold = 3,
    /// As [`Self::Rewrite`] for flows that were heard rewritten since the binding's places are what they are, as
    /// [`Self::Tunnel`] for the rest (P-24).
    Follow = 4,
    /// As [`Self::Hold`]; the first packet that comes in under a flow's own names is reported (P-39), and the binding
    /// is on hold from then on.
    Listen = 5,
}

impl Carrier {
    fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Native),
            1 => Some(Self::Rewrite),
            2 => Some(Self::Tunnel),
            3 => Some(Self::Hold),
            4 => Some(Self::Follow),
            5 => Some(Self::Listen),
            _ => None,
        }
    }
}

/// Where a flow's local end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// In this host's own stack.
    #[default]
    Stack,
    /// In the endpoint namespace whose pair of interfaces has this one (its index) as its outer end. That needs
    /// [`Role::Endpoint`](crate::Role::Endpoint) and an [`Endpoint`].
    Endpoint(u32),
    /// At another host, which is found by the routing table: the far end of a connection whose socket has moved away
    /// from here, or a host in whose name this one speaks. Needs [`Role::Wire`](crate::Role::Wire) on the devices that
    /// lead there. With each pass the hop limit goes down by one. While the flow is native, what comes from there goes
    /// on as if it were unknown.
    Routes,
    /// As [`Delivery::Routes`], at a host that this one is the router of: while the flow is native, this host's own
    /// forwarding does all.
    Passing,
}

impl Delivery {
    fn raw(self) -> u32 {
        match self {
            Self::Stack => 0,
            Self::Endpoint(interface) => interface,
            Self::Routes => DELIVERY_ROUTES,
            Self::Passing => DELIVERY_PASSING,
        }
    }

    fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Stack,
            DELIVERY_ROUTES => Self::Routes,
            DELIVERY_PASSING => Self::Passing,
            interface => Self::Endpoint(interface),
        }
    }
}

/// A local end that is lent: what comes in for it, and is of no flow, is not for a socket of this host's own stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LentEnd {
    /// Its address.
    pub address: IpAddr,
    /// Its port; 0 stands for every one that has no entry of its own, and for what has no ports.
    pub port: u16,
    /// Its IP protocol number.
    pub protocol: u8,
}

/// Where a [`LentEnd`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lent {
    /// In an endpoint namespace of this host, by the index of the outer end of its pair of interfaces.
    Endpoint(u32),
    /// With the peer of this binding, which has it on lease from this host: what comes goes to the TUN device, and what
    /// that peer sends from it comes by the TUN device and goes out by routes.
    Leased(BindingId),
    /// The same, of an end that a socket of this host's own stack had before: connections that it has still, or is
    /// about to have, stay.
    Shared(BindingId),
}

/// What becomes of what an endpoint namespace sends that is of no flow, and from a [`LentEnd`] that is lent to it. The
/// rest is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// It is dropped: the address is another's.
    Dropped,
    /// It leaves by routes, since the address is this host's own.
    Routed,
    /// To the TUN device: the peer of this binding has lent the address.
    Tunnelled(BindingId),
}

/// What is told of the TCP sockets of an endpoint namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Nothing.
    Nothing,
    /// That they close.
    Closes,
    /// That they open, too.
    All,
}

/// What the programs know of an endpoint namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its address. What it sends under any other is dropped.
    pub address: IpAddr,
    /// What becomes of packets of no flow.
    pub unknown: Unknown,
}

/// How long a flow goes by the tunnel that is said to be [`tunnelled`](FlowEntry::tunnelled): until whoever it was led
/// to has heard of it, on any path that is worth being used.
pub const TUNNELLED: Duration = Duration::from_millis(500);

/// What the programs know of a flow. Places as in P-14: while they equal the binding's, the flow is native.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEntry {
    /// What leads it.
    pub binding: BindingId,
    /// This host's place towards the peer when the flow was introduced.
    pub home_local_place: u32,
    /// The peer's place then.
    pub home_peer_place: u32,
    /// This end's port in rewritten packets.
    pub wire_local_port: u16,
    /// The other end's port in rewritten packets.
    pub wire_remote_port: u16,
    /// No packet of it leaves this host, native or moved, whatever the binding's carrier. Its TCP socket is kept from
    /// giving up ([`Datapath::fit_sockets`](crate::Datapath::fit_sockets)).
    pub held: bool,
    /// While it has moved it goes by the tunnel also where its binding would have it rewritten, for [`TUNNELLED`] from
    /// when this is said. Nothing that comes in ends it sooner: anybody who knows the flow's names can send that.
    pub tunnelled: bool,
    /// Introductions in it are not for this host, and go to its socket.
    pub hidden: bool,
    /// Its far end is a host behind its peer: a reset that comes rewritten is dropped, since where the peer is being
    /// started anew that host answers so to names that it does not know.
    pub beyond: bool,
    /// UDP: its socket is not connected, and so may hear others who have the names that its peer had. While the peer is
    /// elsewhere what comes natively is answered natively, until something comes from the peer again (P-221). What the
    /// socket sends is of this flow whichever address the kernel gives it, where this host has moved (P-222).
    pub unconnected: bool,
    /// While it has moved, whatever comes under its own names is from somebody else than its peer, and reported once
    /// ([`Event::Claimed`](crate::Event::Claimed)).
    pub late: bool,
    /// While it has moved, its sockets are shown the binding's locators
    /// ([`Datapath::attach_names`](crate::Datapath::attach_names)).
    pub real_view: bool,
    /// While it has moved, a SYN that comes under its own names, as from whoever has its peer's former address now, is
    /// dropped without an answer, since the caller will give the flow up ([`Event::Claimed`](crate::Event::Claimed));
    /// else it is refused by a reset.
    pub gives_way: bool,
    /// Where its local end is.
    pub delivery: Delivery,
}

/// What becomes of a flow that is answered on in its peer's name, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HelpedPhase {
    /// What its socket sends goes to the daemon, by the TUN device; nothing of the peer's gets in.
    Kept = 1,
    /// What its socket sends is held as by [`Carrier::Hold`]; nothing of the peer's gets in.
    Held = 2,
    /// What the daemon sends goes its way. Of what its socket sends only acknowledgements do, with a sequence number
    /// that the peer expects. What the peer acknowledges is reported
    /// ([`Event::Acknowledged`](crate::Event::Acknowledged)).
    Delivered = 3,
    /// Numbers are translated, and nothing else.
    Over = 4,
    /// Its socket, of TCP or UDP, is being moved: what comes for it goes to the TUN device, as it came, and what it
    /// sends is held.
    Rests = 5,
}

impl HelpedPhase {
    fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Self::Kept),
            2 => Some(Self::Held),
            3 => Some(Self::Delivered),
            4 => Some(Self::Over),
            5 => Some(Self::Rests),
            _ => None,
        }
    }
}

/// A TCP flow that is answered on in its peer's name, or was: what was put into the peer's stream shifts what follows.
/// The peer's sequence numbers are raised by the offset as they come in, what the socket acknowledges (SACK as well) is
/// lowered as it goes out, whatever carries the flow. Sequence numbers wrap (RFC 9293 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HelpedFlow {
    /// What becomes of it now.
    pub phase: HelpedPhase,
    /// Bytes that were put into what the peer sends.
    pub offset: u32,
    /// Of what the socket sends, all before this sequence number was acknowledged in the peer's name.
    pub acknowledged: u32,
    /// Of that, all before this is acknowledged by the peer itself. The programs move it on.
    pub delivered: u32,
}

/// What an address means to a program beside what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AliasUse {
    /// It connects to this address, where a peer was. The connection goes on to show that.
    Reach(IpAddr),
    /// It binds a socket to this address, which was this host's. The socket goes on to show that, and what it accepts.
    Bind(IpAddr),
    /// It is shown this address of a peer whose connection was accepted at a socket of [`AliasUse::Bind`], under no
    /// port below 1024.
    ShowPeer(IpAddr),
    /// It is shown this address of this host, as that of a connection opened by [`AliasUse::Reach`] to a peer that is
    /// at the other one.
    ShowOwn(IpAddr, IpAddr),
}

/// An [`AliasUse`] by the programs of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Alias {
    /// As in `/proc/PID/comm` (of each thread, `/proc/PID/task/TID/comm`), with zeros behind it.
    pub program: [u8; 16],
    /// For what.
    pub used: AliasUse,
}

impl RawAlias {
    pub(crate) fn new(alias: &Alias) -> Self {
        let unspecified = RawAddress { words: [0; 4] };
        let (kind, address, other) = match alias.used {
            AliasUse::Reach(address) => (1, address, unspecified),
            AliasUse::Bind(address) => (2, address, unspecified),
            AliasUse::ShowPeer(address) => (3, address, unspecified),
            AliasUse::ShowOwn(address, peer) => (4, address, RawAddress::new(peer)),
        };
        Self { program: alias.program, address: RawAddress::new(address), other, kind, zero: [0; 7] }
    }
}

impl RawPorts {
    /// All ports of these ranges.
    pub(crate) fn new(ranges: &[RangeInclusive<u16>]) -> Self {
        let mut words = [0; 1024];
        for port in ranges.iter().cloned().flatten() {
            words[usize::from(port / 64)] |= 1 << (port % 64);
        }
        Self { words }
    }
}

/// Two locators that packets may run between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocatorPair {
    /// This host's.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
}

/// Where what is sent natively between two addresses leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Home {
    /// The index of the interface that has this host's address.
    pub interface: u32,
    /// The next hop: the peer's own address where it is on the link.
    pub next_hop: IpAddr,
}

/// Where a peer is, and how its moved flows get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// This host's place towards the peer.
    pub local_place: u32,
    /// The peer's.
    pub peer_place: u32,
    /// For flows that have moved.
    pub carrier: Carrier,
    /// This host's locator: source of rewritten packets.
    pub local: IpAddr,
    /// The peer's locator: destination of rewritten packets. Of the same family as `local`.
    pub peer: IpAddr,
    /// Index of the interface that rewritten packets leave by: the one that the route from `local` to `peer` names, and
    /// not always the one that has `local`. With 0 the programs look the route up, which the kernel allows only on an
    /// interface that forwards, and else stay on the interface where a packet already is.
    pub interface: u32,
    /// Index of the interface that a reset of a flow at home has to arrive on to be believed (P-38), and where the host
    /// filters strictly ([`Datapath::set_strict`](crate::Datapath::set_strict)) all that comes between `peer` and
    /// `local`, also once these have been left; 0 where it may be any.
    pub arrival: u32,
    /// The longest rewritten packet, in bytes, that the path takes; 0 where that is not known. What is longer and was
    /// not sent by this host's own stack is answered with an ICMP error that says so.
    pub mtu: u32,
    /// Bytes of IP packets that may still leave by rewriting (P-18); `None`: any number. The programs count it down and
    /// hold what does not fit. Read back, it is what is left.
    pub allowance: Option<u64>,
    /// The peer is away for a while: the TCP sockets of all its flows, moved or not, are kept from giving up
    /// ([`Datapath::fit_sockets`](crate::Datapath::fit_sockets)).
    pub parked: bool,
    /// This process keeps the wire ports of all UDP flows of the peer that have moved, at `local`, from other sockets
    /// (P-160): the programs ask once a second whether anybody has them, and not for each datagram.
    pub names_kept: bool,
    /// Pairs of locators on which rewritten packets are accepted and restored, old paths included (P-22).
    pub accepted: Vec<LocatorPair>,
}
