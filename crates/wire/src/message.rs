//! The messages inside a control datagram: `docs/protocol.md` §3.

mod introductions;
mod lists;
mod status;

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::binding::{BindingNumber, MASKED_UPDATE_LEN, MaskedUpdate, PLACED_SEEN_LEN, Placed, PlacedSeen};
use crate::chain::{self, ChainAnswer, ChainRequest};
use crate::codec::{ENDPOINT_LEN, Malformed, Reader, TUPLE_LEN};
use crate::codec::{put_address, put_counted, put_endpoint, put_tuple, put_u16, put_u32, put_u64};
use crate::community::{self, Word};
use crate::flow::FlowTuple;
use crate::hello::{MAX_LOCATORS, put_locators, read_locators};
use crate::moving::{Received, Stretch};
pub use introductions::{Echo, Introduced, Pairing, PairingProof};
use lists::{
    encode_closed, put_names, read_closed, read_forgotten, read_neighbour_proxy, read_passed_on, read_register,
    read_standing_in, read_waiting, read_whereabouts,
};
pub(crate) use status::byte_enum;
pub use status::{
    BindingStatus, CloseReason, IntroductionRefusal, NeighbourProxyStatus, RegistrationChange, RegistrationStatus,
    UpdateFlags,
};

/// A message of the control protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Type 0x00: makes a datagram longer and says nothing.
    Padding {
        /// Number of zero bytes after the message's own header of [`MESSAGE_HEADER_LEN`] bytes.
        length: u16,
    },
    /// Type 0x03: the addresses at which the sender can be reached, best first; replaces those told before.
    Locators(
        /// At most [`MAX_LOCATORS`]; what is beyond is not sent.
        Vec<IpAddr>,
    ),
    /// Type 0x04: names the life of the sender's sockets, as a hello does (P-47): what a responder may not say in a
    /// first contact.
    Life {
        /// As in a hello.
        life: u64,
    },
    /// Type 0x05: names what the sender remembers of flows of hosts behind it (P-123): another number once it has lost
    /// that.
    Memory {
        /// Not 0.
        memory: u64,
    },
    /// Type 0x10: asks whether the peer receives at the address that this is sent to.
    PathChallenge {
        /// Random; comes back in the response.
        token: u64,
    },
    /// Type 0x11: proves that a challenge arrived.
    PathResponse {
        /// As in the challenge.
        token: u64,
        /// Source address and port that the challenge had when it arrived.
        observed: SocketAddr,
    },
    /// Type 0x12: the sender keeps ready the path that this comes by (P-180).
    PathKept {
        /// What it calls the path.
        path: u32,
    },
    /// Type 0x20: asks the peer to look for introductions.
    IntroductionRequest {
        /// Comes back in the answer.
        tag: u32,
    },
    /// Type 0x21: the sender looks for introductions now.
    IntroductionReady {
        /// As in the request.
        tag: u32,
    },
    /// Type 0x22: the introducer has seen the responder's nonce on the flow.
    IntroductionEcho(Echo),
    /// Type 0x23: the responder's answer to an echo.
    IntroductionDone {
        /// The introducer's nonce.
        nonce: u64,
        /// How the responder knows the flow, or why it does not.
        outcome: Result<Introduced, IntroductionRefusal>,
    },
    /// Types 0x25 and 0x2d: the introducer names a flow by its sequence numbers, since its nonce did not arrive, or
    /// never was in it.
    Pairing(Pairing),
    /// Type 0x26: the responder sits on that flow too.
    Paired {
        /// The introducer's nonce.
        nonce: u64,
        /// The responder's proof.
        proof: PairingProof,
        /// How the responder knows the flow.
        introduced: Introduced,
    },
    /// Type 0x24: these flows are over.
    FlowClosed(
        /// The introducers' nonces of the flows. More than [`MAX_CLOSED`] are written as several messages.
        Vec<u64>,
    ),
    /// Type 0x27: the flow that a nonce came on is one that the sender passes on for another host (P-87).
    Referral {
        /// The introducer's.
        nonce: u64,
        /// Static key of the host that has the flow's socket.
        key: [u8; 32],
        /// Where that is.
        at: SocketAddr,
    },
    /// Type 0x28: the far end of a flow that the sender passes on for the receiver runs Whimbrel (P-87).
    Sought {
        /// What sender and receiver call the flow.
        name: u64,
        /// Static key of the far end.
        key: [u8; 32],
        /// Where that is.
        at: SocketAddr,
    },
    /// Type 0x29: asks the receiver to introduce a flow of the two to the sender, which is not at the address that it
    /// has there (P-87).
    IntroduceMe {
        /// As the sender's socket has it.
        tuple: FlowTuple,
    },
    /// Type 0x2a: an introducer's nonce has arrived in a flow that goes by way of a third host (P-87).
    Seen {
        /// The introducer's.
        nonce: u64,
    },
    /// Type 0x2b: the sender's end of a flow is the socket of a host behind it (P-123). Said beside *introduction
    /// done*.
    Passing {
        /// The introducer's.
        nonce: u64,
    },
    /// Type 0x2c: a host behind the sender has opened a connection to the receiver, who is to ask at that host's
    /// address (P-125).
    AskHere {
        /// As that host's socket has it.
        tuple: FlowTuple,
    },
    /// Type 0x2e: the sender forgets these flows for good; until it is answered it is repeated (P-227).
    Forgotten {
        /// Comes back in the answer.
        number: u32,
        /// Whether they have moved, so that they end; else they go on natively.
        lost: bool,
        /// The names of the flows, at most [`MAX_FORGOTTEN`]; what is beyond is not sent.
        names: Vec<u64>,
    },
    /// Type 0x2f: the answer to [`Message::Forgotten`].
    ForgottenSeen {
        /// As in the message.
        number: u32,
    },
    /// Type 0x30: the sender is to be reached at the source of this datagram now.
    BindingUpdate {
        /// Which binding is meant.
        binding: BindingNumber,
        /// Newer than that of any update of this binding before (P-17); the number of the place that it announces.
        sequence: u32,
        /// What the sender asks for.
        flags: UpdateFlags,
        /// Source address and port that the sender gave the datagram (P-19).
        claimed: SocketAddr,
        /// How long the binding is valid without being renewed, in seconds.
        lifetime: u32,
    },
    /// Type 0x31: the answer to a binding update.
    BindingAcknowledgement {
        /// Which binding is meant.
        binding: BindingNumber,
        /// That of the update.
        sequence: u32,
        /// What became of it.
        status: BindingStatus,
        /// What the answering end asks for.
        flags: UpdateFlags,
        /// The newest sequence number that was accepted.
        newest: u32,
        /// The place that the update's sender is at (P-25).
        place: u32,
        /// Source address and port that the update had when it arrived.
        observed: SocketAddr,
    },
    /// Type 0x32: a carrier probe has arrived.
    ProbeSeen {
        /// The nonce of the probe segment.
        token: u64,
    },
    /// Type 0x33: these flows wait from now on, or go on; until it is answered it is repeated (P-48).
    Paused {
        /// Rises with each such message of a sender's, and is below 2^31.
        number: u32,
        /// Whether they wait.
        wait: bool,
        /// The names of the flows, at most [`MAX_WAITING`]; what is beyond is not sent.
        names: Vec<u64>,
    },
    /// Type 0x34: the answer to [`Message::Paused`].
    PausedSeen {
        /// The highest that was acted on.
        number: u32,
    },
    /// Type 0x35: asks for a chain of transforms (P-170).
    Chain(ChainRequest),
    /// Type 0x36: the answer to [`Message::Chain`].
    ChainSeen(ChainAnswer),
    /// Type 0x37: single flows go by a binding of their own (P-186).
    Placed(Placed),
    /// Type 0x38: the answer to [`Message::Placed`].
    PlacedSeen(PlacedSeen),
    /// Type 0x39: that a binding update is on its way, as from where the sender was.
    MaskedUpdate(MaskedUpdate),
    /// Type 0x3a: the answer to [`Message::MaskedUpdate`], to where that says that the sender is.
    MaskedUpdateSeen {
        /// Of the binding update.
        sequence: u32,
    },
    /// Type 0x40: meetings that the sender wants its peers to be told its endpoint for; until it is answered it is
    /// repeated (P-55).
    Register {
        /// Rises with each such message of a sender's; comes back in the answer.
        number: u32,
        /// What becomes of the tags.
        change: RegistrationChange,
        /// At most [`MAX_REGISTERED`]; what is beyond is not sent.
        tags: Vec<MeetingTag>,
    },
    /// Type 0x41: the answer to [`Message::Register`].
    Registered {
        /// As in the message.
        number: u32,
        /// What became of it.
        status: RegistrationStatus,
        /// The newest number that was accepted.
        newest: u32,
    },
    /// Type 0x42: where others who have registered the same tags are; until it is answered it is repeated (P-56).
    Whereabouts {
        /// Rises with each such message of a sender's; comes back in the answer.
        number: u32,
        /// Tags and the endpoints at which the others have answered; at most [`MAX_WHEREABOUTS`], what is beyond is not
        /// sent.
        found: Vec<(MeetingTag, SocketAddr)>,
    },
    /// Type 0x43: the answer to [`Message::Whereabouts`].
    WhereaboutsSeen {
        /// As in the message.
        number: u32,
    },
    /// Type 0x44: addresses that the sender has left and that the receiver is to stand in for, instead of those before;
    /// until it is answered it is repeated (P-60).
    NeighbourProxy {
        /// At most [`MAX_STOOD_IN`]; what is beyond is not sent.
        addresses: Vec<IpAddr>,
    },
    /// Type 0x45: the answer to [`Message::NeighbourProxy`], and said again of an address that is given up (P-62).
    StandingIn {
        /// What becomes of each; at most [`MAX_STOOD_IN`], what is beyond is not sent.
        addresses: Vec<(IpAddr, NeighbourProxyStatus)>,
    },
    /// Type 0x46: a datagram that came for an address which the sender stands in for (P-61).
    PassedOn {
        /// That address.
        left: IpAddr,
        /// Where the datagram came from.
        source: SocketAddr,
        /// Its payload; at most [`MAX_PASSED_ON`] bytes, a longer one is not to be passed on.
        datagram: Vec<u8>,
    },
    /// Type 0x50: a stretch of the stream of records about sockets that move (P-71).
    Stream(Stretch),
    /// Type 0x51: how the receiver of such a stream stands.
    Received(Received),
    /// Types 0x60 to 0x66: about a community (§10).
    Community(Word),
    /// Type 0x7f: the sender drops this session.
    Close {
        /// Why.
        reason: CloseReason,
    },
}

/// What two hosts call their meeting at a rendezvous: nobody else can know it (P-54).
pub type MeetingTag = [u8; 16];

/// Length of the type and length fields in front of each body, in bytes.
pub const MESSAGE_HEADER_LEN: usize = 3;
/// Most nonces in one *flow closed* message.
pub const MAX_CLOSED: usize = 1024;
/// Most names in one *waiting* message.
pub const MAX_WAITING: usize = 128;
/// Most flows in one [`Message::Forgotten`].
pub const MAX_FORGOTTEN: usize = 128;
/// Most tags in one *register* message.
pub const MAX_REGISTERED: usize = 64;
/// Most endpoints in one *whereabouts* message.
pub const MAX_WHEREABOUTS: usize = 32;
/// Most addresses in one *stand in* or *standing in* message.
pub const MAX_STOOD_IN: usize = 8;
/// Longest datagram in a *passed on* message, in bytes: any control datagram is shorter.
pub const MAX_PASSED_ON: usize = 1280;
/// Most messages of known types in one datagram.
pub const MAX_MESSAGES: usize = 512;

const PADDING: u8 = 0x00;
const LOCATORS: u8 = 0x03;
const LIFE: u8 = 0x04;
const MEMORY: u8 = 0x05;
const PATH_CHALLENGE: u8 = 0x10;
const PATH_RESPONSE: u8 = 0x11;
const PATH_KEPT: u8 = 0x12;
const INTRODUCTION_REQUEST: u8 = 0x20;
const INTRODUCTION_READY: u8 = 0x21;
const INTRODUCTION_ECHO: u8 = 0x22;
const INTRODUCTION_DONE: u8 = 0x23;
const FLOW_CLOSED: u8 = 0x24;
const PAIRING: u8 = 0x25;
const PAIRED: u8 = 0x26;
const REFERRAL: u8 = 0x27;
const SOUGHT: u8 = 0x28;
const INTRODUCE_ME: u8 = 0x29;
const SEEN: u8 = 0x2a;
const PASSING: u8 = 0x2b;
const ASK_HERE: u8 = 0x2c;
const LATE: u8 = 0x2d;
const FORGOTTEN: u8 = 0x2e;
const FORGOTTEN_SEEN: u8 = 0x2f;
const BINDING_UPDATE: u8 = 0x30;
const BINDING_ACKNOWLEDGEMENT: u8 = 0x31;
const PROBE_SEEN: u8 = 0x32;
const WAITING: u8 = 0x33;
const WAITING_SEEN: u8 = 0x34;
const CHAIN: u8 = 0x35;
const CHAIN_SEEN: u8 = 0x36;
const PLACED: u8 = 0x37;
const PLACED_SEEN: u8 = 0x38;
const MASKED_UPDATE: u8 = 0x39;
const MASKED_UPDATE_SEEN: u8 = 0x3a;
const REGISTER: u8 = 0x40;
const REGISTERED: u8 = 0x41;
const WHEREABOUTS: u8 = 0x42;
const WHEREABOUTS_SEEN: u8 = 0x43;
const NEIGHBOUR_PROXY: u8 = 0x44;
const STANDING_IN: u8 = 0x45;
const PASSED_ON: u8 = 0x46;
const STREAM: u8 = 0x50;
const RECEIVED: u8 = 0x51;
const CLOSE: u8 = 0x7f;

/// Length of a meeting tag, in bytes.
const TAG_LEN: usize = size_of::<MeetingTag>();

/// Status byte of *introduction done* when the flow is introduced.
const INTRODUCED: u8 = 0;

impl Message {
    /// Appends the message, with type and length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Padding { length } => {
                out.push(PADDING);
                put_u16(out, *length);
                out.resize(out.len() + usize::from(*length), 0);
            }
            Self::FlowClosed(nonces) => encode_closed(nonces, out),
            _ => {
                out.push(self.type_number());
                // No body but padding and `FlowClosed` comes near 64 KiB.
                put_counted(out, |out| self.encode_body(out));
            }
        }
    }

    /// Length of what [`Self::encode`] appends, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let body = match self {
            Self::Padding { length } => usize::from(*length),
            Self::Life { .. }
            | Self::Memory { .. }
            | Self::PathChallenge { .. }
            | Self::ProbeSeen { .. }
            | Self::Seen { .. }
            | Self::Passing { .. } => 8,
            Self::Locators(locators) => 1 + 16 * locators.len().min(MAX_LOCATORS),
            Self::PathResponse { .. } => 8 + ENDPOINT_LEN,
            Self::PathKept { .. }
            | Self::IntroductionRequest { .. }
            | Self::IntroductionReady { .. }
            | Self::PausedSeen { .. }
            | Self::ForgottenSeen { .. }
            | Self::MaskedUpdateSeen { .. }
            | Self::WhereaboutsSeen { .. } => 4,
            Self::Register { tags, .. } => 7 + TAG_LEN * tags.len().min(MAX_REGISTERED),
            Self::Registered { .. } => 9,
            Self::Whereabouts { found, .. } => 6 + (TAG_LEN + ENDPOINT_LEN) * found.len().min(MAX_WHEREABOUTS),
            Self::NeighbourProxy { addresses } => 1 + 16 * addresses.len().min(MAX_STOOD_IN),
            Self::StandingIn { addresses } => 1 + 17 * addresses.len().min(MAX_STOOD_IN),
            Self::PassedOn { datagram, .. } => 16 + ENDPOINT_LEN + datagram.len().min(MAX_PASSED_ON),
            Self::Paused { names, .. } => 7 + 8 * names.len().min(MAX_WAITING),
            Self::Forgotten { names, .. } => 7 + 8 * names.len().min(MAX_FORGOTTEN),
            Self::Chain(request) => request.encoded_len(),
            Self::ChainSeen(_) => chain::ANSWER_LEN,
            Self::Placed(placed) => placed.encoded_len(),
            Self::PlacedSeen(_) => PLACED_SEEN_LEN,
            Self::MaskedUpdate(_) => MASKED_UPDATE_LEN,
            Self::IntroductionEcho(_) => 26 + TUPLE_LEN,
            Self::IntroductionDone { outcome: Ok(_), .. } => 11 + TUPLE_LEN,
            Self::IntroductionDone { outcome: Err(_), .. } => 9,
            Self::Pairing(_) => 34 + TUPLE_LEN,
            Self::Paired { .. } => 26 + TUPLE_LEN,
            Self::Referral { .. } | Self::Sought { .. } => 40 + ENDPOINT_LEN,
            Self::IntroduceMe { .. } | Self::AskHere { .. } => TUPLE_LEN,
            Self::FlowClosed(nonces) => {
                let messages = nonces.len().div_ceil(MAX_CLOSED).max(1);
                return messages * (MESSAGE_HEADER_LEN + 2) + 8 * nonces.len();
            }
            Self::BindingUpdate { .. } => 13 + ENDPOINT_LEN,
            Self::BindingAcknowledgement { .. } => 18 + ENDPOINT_LEN,
            Self::Stream(stretch) => stretch.length(),
            Self::Received(received) => received.length(),
            Self::Community(word) => word.encoded_len(),
            Self::Close { .. } => 1,
        };
        MESSAGE_HEADER_LEN + body
    }

    /// Whether it costs its receiver far more than its sender, so that a datagram may hold one of its type (P-37).
    #[must_use]
    pub const fn is_costly(&self) -> bool {
        matches!(
            self,
            Self::BindingUpdate { .. }
                | Self::MaskedUpdate(_)
                | Self::Locators(_)
                | Self::PathKept { .. }
                | Self::IntroductionRequest { .. }
                | Self::FlowClosed(_)
                | Self::Referral { .. }
                | Self::Sought { .. }
                | Self::IntroduceMe { .. }
                | Self::AskHere { .. }
                | Self::Register { .. }
                | Self::Whereabouts { .. }
                | Self::Paused { .. }
                | Self::Forgotten { .. }
                | Self::Chain(_)
                | Self::Placed(_)
                | Self::NeighbourProxy { .. }
                | Self::PassedOn { .. }
                | Self::Stream(_)
                | Self::Received(_)
                | Self::Community(_)
        )
    }

    /// The number of its type on the wire.
    #[must_use]
    pub fn type_number(&self) -> u8 {
        match self {
            Self::Padding { .. } => PADDING,
            Self::Locators(_) => LOCATORS,
            Self::Life { .. } => LIFE,
            Self::Memory { .. } => MEMORY,
            Self::PathChallenge { .. } => PATH_CHALLENGE,
            Self::PathResponse { .. } => PATH_RESPONSE,
            Self::PathKept { .. } => PATH_KEPT,
            Self::IntroductionRequest { .. } => INTRODUCTION_REQUEST,
            Self::IntroductionReady { .. } => INTRODUCTION_READY,
            Self::IntroductionEcho(_) => INTRODUCTION_ECHO,
            Self::IntroductionDone { .. } => INTRODUCTION_DONE,
            Self::FlowClosed(_) => FLOW_CLOSED,
            Self::Pairing(pairing) if pairing.late => LATE,
            Self::Pairing(_) => PAIRING,
            Self::Paired { .. } => PAIRED,
            Self::Referral { .. } => REFERRAL,
            Self::Sought { .. } => SOUGHT,
            Self::IntroduceMe { .. } => INTRODUCE_ME,
            Self::Seen { .. } => SEEN,
            Self::Passing { .. } => PASSING,
            Self::AskHere { .. } => ASK_HERE,
            Self::BindingUpdate { .. } => BINDING_UPDATE,
            Self::BindingAcknowledgement { .. } => BINDING_ACKNOWLEDGEMENT,
            Self::ProbeSeen { .. } => PROBE_SEEN,
            Self::Forgotten { .. } => FORGOTTEN,
            Self::ForgottenSeen { .. } => FORGOTTEN_SEEN,
            Self::Paused { .. } => WAITING,
            Self::PausedSeen { .. } => WAITING_SEEN,
            Self::Chain(_) => CHAIN,
            Self::ChainSeen(_) => CHAIN_SEEN,
            Self::Placed(_) => PLACED,
            Self::PlacedSeen(_) => PLACED_SEEN,
            Self::MaskedUpdate(_) => MASKED_UPDATE,
            Self::MaskedUpdateSeen { .. } => MASKED_UPDATE_SEEN,
            Self::Register { .. } => REGISTER,
            Self::Registered { .. } => REGISTERED,
            Self::Whereabouts { .. } => WHEREABOUTS,
            Self::WhereaboutsSeen { .. } => WHEREABOUTS_SEEN,
            Self::NeighbourProxy { .. } => NEIGHBOUR_PROXY,
            Self::StandingIn { .. } => STANDING_IN,
            Self::PassedOn { .. } => PASSED_ON,
            Self::Stream(_) => STREAM,
            Self::Received(_) => RECEIVED,
            Self::Community(word) => word.type_number(),
            Self::Close { .. } => CLOSE,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            // Written by `encode`, which has to count them differently.
            Self::Padding { .. } | Self::FlowClosed(_) => {}
            Self::Life { life: number }
            | Self::Memory { memory: number }
            | Self::PathChallenge { token: number }
            | Self::ProbeSeen { token: number }
            | Self::Seen { nonce: number }
            | Self::Passing { nonce: number } => put_u64(out, *number),
            Self::Locators(locators) => put_locators(out, locators),
            Self::PathKept { path } => put_u32(out, *path),
            Self::PathResponse { token, observed } => {
                put_u64(out, *token);
                put_endpoint(out, *observed);
            }
            Self::IntroductionRequest { tag } | Self::IntroductionReady { tag } => put_u32(out, *tag),
            Self::IntroductionEcho(echo) => {
                put_u64(out, echo.introducer_nonce);
                put_u64(out, echo.responder_nonce);
                put_u32(out, echo.introducer_place);
                put_u32(out, echo.responder_place);
                put_u16(out, echo.wire_port);
                put_tuple(out, &echo.tuple);
            }
            Self::IntroductionDone { nonce, outcome } => {
                put_u64(out, *nonce);
                match outcome {
                    Ok(introduced) => {
                        out.push(INTRODUCED);
                        put_u16(out, introduced.wire_port);
                        put_tuple(out, &introduced.tuple);
                    }
                    Err(refusal) => out.push(refusal.number()),
                }
            }
            Self::Pairing(pairing) => {
                put_u64(out, pairing.introducer_nonce);
                out.extend_from_slice(&pairing.proof);
                put_u32(out, pairing.introducer_place);
                put_u32(out, pairing.responder_place);
                put_u16(out, pairing.wire_port);
                put_tuple(out, &pairing.tuple);
            }
            Self::Paired { nonce, proof, introduced } => {
                put_u64(out, *nonce);
                out.extend_from_slice(proof);
                put_u16(out, introduced.wire_port);
                put_tuple(out, &introduced.tuple);
            }
            Self::Referral { nonce: number, key, at } | Self::Sought { name: number, key, at } => {
                put_u64(out, *number);
                out.extend_from_slice(key);
                put_endpoint(out, *at);
            }
            Self::IntroduceMe { tuple } | Self::AskHere { tuple } => put_tuple(out, tuple),
            Self::BindingUpdate { binding, sequence, flags, claimed, lifetime } => {
                put_u32(out, binding.0);
                put_u32(out, *sequence);
                out.push(flags.0);
                put_endpoint(out, *claimed);
                put_u32(out, *lifetime);
            }
            Self::BindingAcknowledgement { binding, sequence, status, flags, newest, place, observed } => {
                put_u32(out, binding.0);
                put_u32(out, *sequence);
                out.push(status.number());
                out.push(flags.0);
                put_u32(out, *newest);
                put_u32(out, *place);
                put_endpoint(out, *observed);
            }
            Self::Paused { number, wait, names } => {
                put_u32(out, *number);
                out.push(u8::from(*wait));
                put_names(names, MAX_WAITING, out);
            }
            Self::Forgotten { number, lost, names } => {
                put_u32(out, *number);
                out.push(u8::from(*lost));
                put_names(names, MAX_FORGOTTEN, out);
            }
            Self::PausedSeen { number } | Self::ForgottenSeen { number } | Self::WhereaboutsSeen { number } => {
                put_u32(out, *number)
            }
            Self::Chain(request) => request.put(out),
            Self::ChainSeen(answer) => answer.put(out),
            Self::Placed(placed) => placed.put(out),
            Self::PlacedSeen(answer) => answer.put(out),
            Self::MaskedUpdate(update) => update.put(out),
            Self::MaskedUpdateSeen { sequence } => put_u32(out, *sequence),
            Self::Register { number, change, tags } => {
                put_u32(out, *number);
                out.push(change.number());
                let tags = &tags[..tags.len().min(MAX_REGISTERED)];
                put_u16(out, tags.len() as u16);
                tags.iter().for_each(|tag| out.extend_from_slice(tag));
            }
            Self::Registered { number, status, newest } => {
                put_u32(out, *number);
                out.push(status.number());
                put_u32(out, *newest);
            }
            Self::Whereabouts { number, found } => {
                put_u32(out, *number);
                let found = &found[..found.len().min(MAX_WHEREABOUTS)];
                put_u16(out, found.len() as u16);
                for (tag, endpoint) in found {
                    out.extend_from_slice(tag);
                    put_endpoint(out, *endpoint);
                }
            }
            Self::NeighbourProxy { addresses } => put_locators(out, &addresses[..addresses.len().min(MAX_STOOD_IN)]),
            Self::StandingIn { addresses } => {
                let addresses = &addresses[..addresses.len().min(MAX_STOOD_IN)];
                out.push(addresses.len() as u8);
                for (address, status) in addresses {
                    put_address(out, *address);
                    out.push(status.number());
                }
            }
            Self::PassedOn { left, source, datagram } => {
                put_address(out, *left);
                put_endpoint(out, *source);
                out.extend_from_slice(&datagram[..datagram.len().min(MAX_PASSED_ON)]);
            }
            Self::Stream(stretch) => stretch.put(out),
            Self::Received(received) => received.put(out),
            Self::Community(word) => word.put(out),
            Self::Close { reason } => out.push(reason.number()),
        }
    }

    /// Reads the body of one message; `None` for a type that is not known.
    fn decode_body(number: u8, body: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let message = match number {
            PADDING => Self::Padding { length: body.rest().len() as u16 },
            LOCATORS => Self::Locators(read_locators(body)?),
            LIFE => Self::Life { life: body.u64("life")? },
            MEMORY => Self::Memory { memory: body.u64("memory")? },
            PATH_CHALLENGE => Self::PathChallenge { token: body.u64("challenge token")? },
            PATH_RESPONSE => {
                Self::PathResponse { token: body.u64("response token")?, observed: body.endpoint("observed source")? }
            }
            PATH_KEPT => Self::PathKept { path: body.u32("number of the path")? },
            INTRODUCTION_REQUEST => Self::IntroductionRequest { tag: body.u32("request tag")? },
            INTRODUCTION_READY => Self::IntroductionReady { tag: body.u32("ready tag")? },
            INTRODUCTION_ECHO => Self::IntroductionEcho(Echo {
                introducer_nonce: body.u64("introducer's nonce")?,
                responder_nonce: body.u64("responder's nonce")?,
                introducer_place: body.u32("introducer's place")?,
                responder_place: body.u32("responder's place")?,
                wire_port: body.u16("introducer's wire port")?,
                tuple: body.tuple("introducer's tuple")?,
            }),
            INTRODUCTION_DONE => Self::IntroductionDone {
                nonce: body.u64("introducer's nonce")?,
                outcome: match body.u8("introduction status")? {
                    INTRODUCED => Ok(Introduced {
                        wire_port: body.u16("responder's wire port")?,
                        tuple: body.tuple("responder's tuple")?,
                    }),
                    refusal => Err(IntroductionRefusal::from_number(refusal)),
                },
            },
            FLOW_CLOSED => Self::FlowClosed(read_closed(body)?),
            PAIRING | LATE => Self::Pairing(Pairing {
                late: number == LATE,
                introducer_nonce: body.u64("introducer's nonce")?,
                proof: *body.array("introducer's proof")?,
                introducer_place: body.u32("introducer's place")?,
                responder_place: body.u32("responder's place")?,
                wire_port: body.u16("introducer's wire port")?,
                tuple: body.tuple("introducer's tuple")?,
            }),
            PAIRED => Self::Paired {
                nonce: body.u64("introducer's nonce")?,
                proof: *body.array("responder's proof")?,
                introduced: Introduced {
                    wire_port: body.u16("responder's wire port")?,
                    tuple: body.tuple("responder's tuple")?,
                },
            },
            REFERRAL => Self::Referral {
                nonce: body.u64("introducer's nonce")?,
                key: *body.array("key of who has the socket")?,
                at: body.endpoint("where that is")?,
            },
            SOUGHT => Self::Sought {
                name: body.u64("name of the flow")?,
                key: *body.array("key of the far end")?,
                at: body.endpoint("where that is")?,
            },
            INTRODUCE_ME => Self::IntroduceMe { tuple: body.tuple("tuple of the sender's socket")? },
            SEEN => Self::Seen { nonce: body.u64("introducer's nonce")? },
            ASK_HERE => Self::AskHere { tuple: body.tuple("tuple of the host's socket")? },
            PASSING => Self::Passing { nonce: body.u64("introducer's nonce")? },
            BINDING_UPDATE => Self::BindingUpdate {
                binding: BindingNumber(body.u32("binding")?),
                sequence: body.u32("update sequence")?,
                flags: UpdateFlags(body.u8("update flags")?),
                claimed: body.endpoint("claimed source")?,
                lifetime: body.u32("lifetime")?,
            },
            BINDING_ACKNOWLEDGEMENT => Self::BindingAcknowledgement {
                binding: BindingNumber(body.u32("binding")?),
                sequence: body.u32("acknowledged sequence")?,
                status: BindingStatus::from_number(body.u8("binding status")?),
                flags: UpdateFlags(body.u8("acknowledgement flags")?),
                newest: body.u32("newest sequence")?,
                place: body.u32("place")?,
                observed: body.endpoint("observed source")?,
            },
            PROBE_SEEN => Self::ProbeSeen { token: body.u64("probe nonce")? },
            FORGOTTEN => read_forgotten(body)?,
            FORGOTTEN_SEEN => Self::ForgottenSeen { number: body.u32("number")? },
            WAITING => read_waiting(body)?,
            WAITING_SEEN => Self::PausedSeen { number: body.u32("number")? },
            CHAIN => Self::Chain(ChainRequest::read(body)?),
            CHAIN_SEEN => Self::ChainSeen(ChainAnswer::read(body)?),
            PLACED => Self::Placed(Placed::read(body)?),
            PLACED_SEEN => Self::PlacedSeen(PlacedSeen::read(body)?),
            MASKED_UPDATE => Self::MaskedUpdate(MaskedUpdate::read(body)?),
            MASKED_UPDATE_SEEN => Self::MaskedUpdateSeen { sequence: body.u32("update sequence")? },
            REGISTER => read_register(body)?,
            REGISTERED => Self::Registered {
                number: body.u32("number")?,
                status: RegistrationStatus::from_number(body.u8("registration status")?),
                newest: body.u32("newest number")?,
            },
            WHEREABOUTS => read_whereabouts(body)?,
            WHEREABOUTS_SEEN => Self::WhereaboutsSeen { number: body.u32("number")? },
            NEIGHBOUR_PROXY => read_neighbour_proxy(body)?,
            STANDING_IN => read_standing_in(body)?,
            PASSED_ON => read_passed_on(body)?,
            STREAM => Self::Stream(Stretch::read(body)?),
            RECEIVED => Self::Received(Received::read(body)?),
            community::FIRST_TYPE..=community::LAST_TYPE => Self::Community(Word::read(number, body)?),
            CLOSE => Self::Close { reason: CloseReason::from_number(body.u8("close reason")?) },
            _ => return Ok(None),
        };
        Ok(Some(message))
    }
}

/// Reads all messages of an opened control datagram; those of unknown types are left out (P-11).
///
/// # Errors
/// A message of a known type is shorter or longer than its body, a field has no meaning, the last message is cut off,
/// or there are more than [`MAX_MESSAGES`]. Nothing of such a datagram is used.
pub fn decode_all(plaintext: &[u8]) -> Result<Vec<Message>, Malformed> {
    let mut messages = Vec::new();
    let mut reader = Reader::new(plaintext);
    while reader.remaining() > 0 {
        let number = reader.u8("message type")?;
        let length = usize::from(reader.u16("message length")?);
        let start = reader.position();
        let mut body = Reader::new(reader.bytes(length, "message body")?);
        let from_start = |error: Malformed| Malformed { at: start + error.at, ..error };
        if let Some(message) = Message::decode_body(number, &mut body).map_err(from_start)? {
            body.finish("end of message").map_err(from_start)?;
            if messages.len() == MAX_MESSAGES {
                return Err(Malformed { what: "number of messages", at: start });
            }
            messages.push(message);
        }
    }
    Ok(messages)
}
