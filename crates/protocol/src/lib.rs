//! Sans-io state machines of the control protocol (`docs/protocol.md`).
//!
//! A [`Node`] is one host. It reads no clock, draws no randomness beyond the seed it was given, and owns no socket: the
//! caller feeds it with what happened, and carries out what it asks for. That makes the order of a hand-off, its partial
//! failures and its roll-back testable without a kernel.
//!
//! ```text
//! contact.rs       who is asked, handshakes        -> sessions
//! introduction.rs  which tuples name one flow      -> InstallFlow
//! pairing.rs       the same where nonces do not get through
//! handoff.rs       who moved where, by which way   -> SetBinding, SetTunnelPath, Kick
//! rendezvous.rs    where peers are that are not found where they were, as a third host says
//! meetings.rs      being that third host
//! absence.rs       ends that sleep or vanish       -> held, parked
//! migration.rs     sockets that change hosts      -> MoveOp
//! waiting.rs       single flows that wait
//! community.rs    whose hosts this one is, and who may move sockets
//! gateway.rs       flows of hosts behind this one, which run nothing
//! stall.rs         flows that get no answer        -> Keepalive, the tunnel
//! node.rs          one host: dispatch, timers, what is asked of the caller
//! outcome.rs       what came of that
//! ```
#![forbid(unsafe_code)]

mod absence;
mod arrival;
mod base;
mod bucket;
mod carrier;
mod community;
mod config;
mod contact;
mod elsewhere;
mod flow;
mod gateway;
mod handoff;
mod in_force;
mod introduction;
mod looks;
mod meetings;
mod migration;
mod node;
mod outcome;
mod pairing;
mod path;
mod peer;
mod pending_update;
mod ports;
mod random;
mod rendezvous;
mod restore;
mod ruling;
mod shared;
mod shown;
mod stall;
mod stand_in;
mod time;
mod timer;
mod view;
mod waiting;

pub use base::event::community::{CommunityEvent, JoinFailure};
pub use base::event::relocation::MoveEvent;
pub use base::event::{Carried, Event};
pub use base::flow_name::FlowName;
pub use base::op::relocation::{
    Dependents, Found, Gift, LeaseName, Lending, MoveOp, Moving, NotGiven, Rented, SavedAcceptance, SavedDonation,
    SavedHeld, SavedLease, SavedTenancy,
};
pub use base::op::{
    AddressOp, Binding, BindingOp, Carrier, FlowEntry, FlowOp, KnownPlace, LocalEnd, Manner, Op, PeerId, Places,
    SavedCommunity, SavedPeer, SocketNumbers, StoreOp, TunnelOp, TunnelPath, View, Waits,
};
pub use base::output::{OpDone, OpFailed, OpId, Output, Transmit};
pub use community::{
    CODE_LIFETIME, CommunityRefused, CommunityView, GRANT_LIFETIME, GrantView, HostView, InvalidCode, OfferView,
    Offered, OneTimeCode,
};
pub use config::{Ask, Carriers, Config, Prefix, Trust};
pub use contact::Standing;
pub use flow::{FlowState, FlowView};
pub use migration::READY_FOR;
pub use node::{Node, Routes};
pub use peer::Attachment;
pub use rendezvous::{RendezvousStanding, RendezvousView};
pub use ruling::{Rule, Ruling};
pub use time::Time;
pub use view::PeerView;
pub use whimbrel_wire::message::StandInStatus;
pub use whimbrel_wire::moving::{LoadStanding, MoveName, Refusal, Request, Ticket};
