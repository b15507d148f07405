//! A binding update on its way: what it says, where it was sent, and what carries the flows until it is answered.

use std::net::SocketAddr;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::Binding;
use crate::base::pace::Prompts;

/// A binding update of ours that was not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct PendingUpdate {
    pub(super) sequence: u32,
    pub(super) started: Time,
    pub(super) sent: Time,
    pub(super) tries: u32,
    /// The path before is gone, and with it what was under way.
    pub(super) lost: bool,
    /// What was under way in the tunnel is lost, since this host's daemon was started anew (P-226).
    pub(super) tunnel_lost: bool,
    /// No flow is at home where we are (P-33).
    pub(super) uprooted: bool,
    /// Flows wait for the answer. Else it only tells a peer that may have forgotten it where we are.
    pub(super) held: bool,
    /// It was given another sequence number already, since the peer knew of a newer one.
    pub(super) corrected: bool,
    /// Where it was sent beside the confirmed endpoint, and the challenge that went along.
    pub(super) asked: Vec<(SocketAddr, u64)>,
    /// The one of these that has answered its challenge.
    pub(super) proven: Option<SocketAddr>,
    /// What carries the flows until the answer is there.
    pub(super) meanwhile: Option<Meanwhile>,
    /// It says that we go away (P-44).
    pub(super) absent: bool,
    /// It said from the start that flows go by the tunnel alone.
    pub(super) only_tunnel: bool,
    /// Repetitions since the peer was heard.
    pub(super) prompts: Prompts,
}

/// The path that is being left and still works: make before break (P-38).
#[derive(Clone, Debug)]
pub(crate) struct Meanwhile {
    /// Stays in force.
    pub(super) binding: Binding,
    /// What it depends on.
    pub(super) attachment: Attachment,
}

impl PendingUpdate {
    pub(crate) fn new(sequence: u32, now: Time, lost: bool, held: bool) -> Self {
        Self { sequence, started: now, sent: now, lost, held, ..Self::default() }
    }
}
