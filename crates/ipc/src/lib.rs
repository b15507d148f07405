//! The local API: what a running daemon answers on its UNIX socket, and a blocking client for it.
//!
//! The socket is `whimbrel.sock` in the daemon's run directory ([`socket_path`]). Both directions speak JSON lines: one
//! [`Request`] a line in, one or more [`Reply`] lines out, each wrapped with the [`SCHEMA`] number
//! ([`request_to_line`], [`reply_to_line`]). `docs/json.md` describes the schema for readers in other languages; the
//! golden tests hold this crate to it. A line may carry descriptors ([`send_line`], [`Lines`]).
//!
//! # Compatibility
//!
//! Within one schema number fields and words may be added, never removed, renamed or given another meaning. A reader
//! ignores fields that it does not know.
#![forbid(unsafe_code)]

mod anchor;
mod choice;
mod client;
mod community;
mod doctor;
mod error;
mod line;
mod metrics;
mod ping;
mod reply;
mod request;
mod socket;
mod status;
mod time;
mod transfer;
mod why;

pub use anchor::{Anchored, Anchors, LentEnds, Offer, OfferedAddress, OfferedPrefix, PassedOn};
pub use choice::{
    AgainstNetwork, ConnectionsChoice, Doubt, Duplicate, Explained, NetworkCandidate, NetworkChoice, PreferSection,
    WhyNetwork, WrittenPreference,
};
pub use client::{Client, ClientError, Events, HANDOFF_TIMEOUT, REPLY_TIMEOUT, socket_path};
pub use community::{
    CommunityReply, CommunityRequest, DrawnCode, Grant, Host, Open, Purpose, Roster, Standing as CommunityStanding,
};
pub use doctor::{Finding, Verdict};
pub use error::{Code, Failure};
pub use line::{
    MAX_GIVE_LINE, MAX_REQUEST_LINE, SCHEMA, SchemaError, reply_from_line, reply_to_line, request_from_line,
    request_to_line,
};
pub use metrics::{EXPOSITION_TYPE, Metric, MetricKind, Sample, exposition};
pub use ping::Pinged;
pub use reply::{
    Away, Bytes, Carrier, Configuration, Connection, ConnectionState, EventRecord, Flow, Greeting, HandoffStarted,
    Helper, HelperState, KEY_SHOWN, Path, Peer, PeerFlows, PeerName, Places, Process, Reply, Sequence, Session,
    Suspended, Transport,
};
pub use request::{About, EventsQuery, Request};
pub use socket::{
    Family, Kept, MAX_NAMES, MAX_RECEIVER, MAX_STATE, MadeSocket, MalformedUuid, Moved, MovedProcess, OpenSocket,
    ProcessScope, Received, SocketKind, State, TooMuchState, Uuid, WAITS_FOR, WantedAnchor,
};
pub use status::{
    Attachment, Counts, LocalAddress, Meetings, NameServer, NameServerState, Rendezvous, RendezvousBy, RendezvousState,
    Status, Trust, Tunnel,
};
pub use time::{duration, measured, moment, moment_to_the_second, parse_rfc3339, rfc3339};
pub use transfer::{Lines, MAX_DESCRIPTORS, ReceivedLine, send_line};
pub use why::Why;
