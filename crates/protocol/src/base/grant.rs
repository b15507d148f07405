//! Leave for one connection to go to a stranger, or to come from one (P-83).

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::MoveName;

use crate::Time;

/// That one connection may go to a stranger, or come from one. It does not outlive the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    number: u16,
    host: PublicKey,
    flow: Option<FlowTuple>,
    until: Time,
    /// The move that uses it. Where that comes to nothing it may be used again.
    used_by: Option<MoveName>,
}

impl Grant {
    /// `flow`: the connection that may be given to the stranger, as this host's socket has it; `None` where one may be
    /// received.
    pub(crate) const fn new(number: u16, host: PublicKey, flow: Option<FlowTuple>, until: Time) -> Self {
        Self { number, host, flow, until, used_by: None }
    }

    pub(crate) const fn number(&self) -> u16 {
        self.number
    }

    /// The stranger.
    pub(crate) const fn host(&self) -> PublicKey {
        self.host
    }

    /// The connection that may be given.
    pub(crate) const fn flow(&self) -> Option<FlowTuple> {
        self.flow
    }

    pub(crate) const fn until(&self) -> Time {
        self.until
    }

    /// Whether it is leave for this, now.
    pub(crate) fn fits(&self, now: Time, host: &PublicKey, flow: Option<&FlowTuple>) -> bool {
        self.host == *host && self.flow.as_ref() == flow && self.until > now
    }

    /// Whether it is leave for anything still: its time is not over, or a move goes on by it.
    pub(crate) fn is_open(&self, now: Time) -> bool {
        self.until > now || self.used_by.is_some()
    }

    /// Has a move use it, unless one does already. Tells whether it does.
    pub(crate) fn take(&mut self, by: MoveName) -> bool {
        let is_free = self.used_by.is_none();
        self.used_by.get_or_insert(by);
        is_free
    }

    pub(crate) fn is_used_by(&self, name: MoveName) -> bool {
        self.used_by == Some(name)
    }

    /// It may be used again, if this move used it.
    pub(crate) fn give_back(&mut self, name: MoveName) {
        self.used_by.take_if(|by| *by == name);
    }
}
