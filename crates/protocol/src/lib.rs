//! Sans-io state machines of the control protocol (`docs/protocol.md`).
//!
//! A [`Node`] is one host. It reads no clock, draws no randomness beyond the seed it was given, and owns no socket: the
//! caller feeds it with what happened, and carries out what it asks for. That makes the order of a hand-off, its
//! partial failures and its roll-back testable without a kernel.
//!
//! ```text
//! node/     the front desk: decodes, passes on to the owner, is polled
//! role/     rendezvous · community · relocation · anchor · gateway: what a host does for others, and they for it
//! binding/  where a peer's flows go: hand-off, carrier, absence, what is wanted of the kernel
//! path/     endpoints that are not confirmed, addresses that several hosts share
//! flow/     what is known of each flow: introduction, pairing, policy, pauses, stalls
//! session/  peers, who is asked, handshakes, trust, the reliable channel
//! base/     time, timers, randomness; what is asked of the caller, and what it is told
//! ```
//!
//! Each layer has the one below it as a field. Calls go down, facts go up as values; no role knows another (decisions
//! 0043 and 0051).
#![forbid(unsafe_code)]

#[macro_use]
mod flow;
#[macro_use]
mod binding;
mod base;
mod node;
mod path;
mod role;
mod session;

pub use base::attachments::{Attachment, Routes};
pub use base::config::{
    Ask, Carriers, Config, LateIntroductions, Links, Prefix, SilenceMode, SilenceThresholds, Trust,
};
pub use base::event::community::{CommunityEvent, JoinFailure};
pub use base::event::relocation::MoveEvent;
pub use base::event::{Carried, Doubt, Event};
pub use base::flow_name::FlowName;
pub use base::id::{LinkId, PathId};
pub use base::link_facts::{LinkDoubt, LinkFacts, LinkFault};
pub use base::op::chain::ChainOp;
pub use base::op::relocation::{
    Dependents, Found, Gift, LeaseName, Lending, MoveOp, Moving, NotGiven, Rented, SavedAcceptance, SavedDonation,
    SavedHeld, SavedLease, SavedTenancy,
};
pub use base::op::windows::{Comeback, SendWindows};
pub use base::op::{
    AddressOp, Between, Binding, BindingId, BindingOp, Carrier, FlowEntry, FlowOp, KnownPlace, Led, LocalEnd, Manner,
    Op, PeerId, Places, SavedCommunity, SavedPeer, SecondWay, SocketNumbers, StoreOp, TunnelOp, TunnelPath, View,
    Waits, WantedConnection,
};
pub use base::output::{OpDone, OpFailed, OpId, Output, Transmit};
pub use base::time::Time;
pub use binding::chain::{ChainPhase, ChainTooLong, ChainView};
pub use binding::placed::{PlaceError, Placement};
pub use binding::untold::LastWords;
pub use flow::known::{FlowState, FlowView, Greeting};
pub use flow::verdict::{Rule, Verdict};
pub use node::Node;
pub use node::view::PeerView;
pub use path::fallback::STAND_IN_PORTS;
pub use path::kept::{PathState, PathView};
pub use path::ping::Ping;
pub use role::anchor::{Awaited, Candidate, Experience, Policy, Refused, Returns, Search, Then};
pub use role::community::{
    CODE_LIFETIME, CommunityRefused, CommunityView, GRANT_LIFETIME, GrantView, HostView, InvalidCode, OfferView,
    Offered, OneTimeCode,
};
pub use role::links::meant::{Duplication, FlowsChoice};
pub use role::links::select::{Against, LinkCandidate, LinkRules, LinkWish, PeerMeant, Selected, Why};
pub use role::links::wishes::{LinkChoice, LinkTrial};
pub use role::relocation::{READY_FOR, Retired, Retiring, Settling, process};
pub use role::rendezvous::client::{RendezvousBy, RendezvousStanding, RendezvousView};
pub use session::contact::Standing;
pub use session::pins::Need;
pub use whimbrel_wire::chain::ChainStatus;
pub use whimbrel_wire::message::NeighbourProxyStatus;
pub use whimbrel_wire::moving::{LoadStanding, MoveName, Refusal, Request, Ticket};
