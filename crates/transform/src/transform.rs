//! What a transform of a tunnel is: something that adapts the packets of one peer to the link that they cross.
//!
//! One instance at either end works on both directions, since most transforms look at one direction to know what to do
//! in the other. It may keep packets and give them out later, give out packets of its own in either direction, and drop
//! some. It reads no clock: whoever drives it hands in the time, asks [`Transform::poll_timeout`] after every call, and
//! calls [`Transform::handle_timeout`] at that moment.

use std::time::Instant;

use crate::batch::Batch;

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this host's flows towards the wire.
    Outbound,
    /// From the wire towards this host's flows.
    Inbound,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Outbound, Self::Inbound];

    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Outbound => Self::Inbound,
            Self::Inbound => Self::Outbound,
        }
    }
}

/// Why a packet went no further. The set is closed, so that counters are plain numbers and their names can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is nothing that the transform at the other end makes.
    Malformed,
    /// To leave out such packets is what the transform is for.
    Filtered,
    /// There was no room to keep it.
    Full,
    /// It was kept for longer than it is of use.
    Expired,
    /// The transforms of the chain answered each other without an end.
    Looped,
}

impl DropReason {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Malformed, Self::Filtered, Self::Full, Self::Expired, Self::Looped];

    /// The reason's name as it is shown to people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Filtered => "filtered",
            Self::Full => "full",
            Self::Expired => "expired",
            Self::Looped => "looped",
        }
    }
}

/// Numbers of dropped packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// How many there were for this reason.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    pub(crate) fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds those of `other`, which has none any longer.
    pub(crate) fn take(&mut self, other: &mut Self) {
        for (sum, new) in self.0.iter_mut().zip(&mut other.0) {
            *sum += std::mem::take(new);
        }
    }
}

/// The packets that a transform is given, and those that it gives back: a batch for each direction. Rooms around
/// packets ([`Batch`]) are set by whoever drives the chain.
#[derive(Debug)]
pub struct Packets {
    outbound: Batch,
    inbound: Batch,
    dropped: Drops,
}

impl Default for Packets {
    fn default() -> Self {
        Self { outbound: Batch::new(0, 0), inbound: Batch::new(0, 0), dropped: Drops::default() }
    }
}

impl Packets {
    /// The batch of a direction.
    #[must_use]
    pub fn get(&self, direction: Direction) -> &Batch {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
    }

    /// The batch of a direction, for change.
    pub fn get_mut(&mut self, direction: Direction) -> &mut Batch {
        match direction {
            Direction::Outbound => &mut self.outbound,
            Direction::Inbound => &mut self.inbound,
        }
    }

    /// The batch of `direction` and the one of its opposite, for who answers what it reads.
    pub fn both_mut(&mut self, direction: Direction) -> (&mut Batch, &mut Batch) {
        match direction {
            Direction::Outbound => (&mut self.outbound, &mut self.inbound),
            Direction::Inbound => (&mut self.inbound, &mut self.outbound),
        }
    }

    /// Counts packets that were taken out of a batch, or of what was kept, and go nowhere.
    pub fn count_dropped(&mut self, reason: DropReason, packets: u64) {
        self.dropped.add(reason, packets);
    }

    /// Whether no packet is in either batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outbound.is_empty() && self.inbound.is_empty()
    }

    pub(crate) fn dropped_mut(&mut self) -> &mut Drops {
        &mut self.dropped
    }
}

/// A parameter was not set. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The transform has no such parameter.
    #[error("the transform {transform} has no such parameter")]
    Unknown {
        /// [`Transform::name`].
        transform: &'static str,
    },
    /// It may not have this value.
    #[error("{parameter} of the transform {transform} must lie within {least} and {most}")]
    Range {
        /// [`Transform::name`].
        transform: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// The chain has no transform at this place.
    #[error("the chain has no transform number {stage}")]
    Stage {
        /// The place that was named, counted from 0.
        stage: usize,
    },
}

/// An adaptation of packets.
pub trait Transform: Send {
    /// A short name for messages and counters.
    fn name(&self) -> &'static str;

    /// The most bytes that it adds to an outbound packet; the inner MTU is lowered by it.
    fn overhead(&self) -> usize;

    /// The longest packet, in bytes, that goes whole towards the wire from here. It changes with the path.
    fn set_mtu(&mut self, mtu: usize) {
        let _ = mtu;
    }

    /// Takes the packets in the batch of `direction`; the other batch is empty. What is in a batch afterwards goes on
    /// in its direction: what was left or put there, in order, and in the batch of the other direction what is said in
    /// answer. A packet that is kept is copied and taken out. What comes inbound is not trusted.
    fn handle_packets(&mut self, now: Instant, direction: Direction, packets: &mut Packets);

    /// When [`Transform::handle_timeout`] is to be called.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The moment has come. Both batches are empty; what is in them afterwards goes on.
    fn handle_timeout(&mut self, now: Instant, packets: &mut Packets) {
        let _ = (now, packets);
    }

    /// Gives out at once all that it keeps: the tunnel ends, leads to another place, or somebody asks for it. Both
    /// batches are empty; what is in them afterwards goes on. Nothing is kept then, and no timeout is due.
    fn release(&mut self, packets: &mut Packets) {
        let _ = packets;
    }

    /// How many packets it keeps.
    fn held(&self) -> usize {
        0
    }

    /// The parameters by name, with their values.
    fn parameters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Changes a parameter; it holds from the next packet on, and for what is kept.
    ///
    /// # Errors
    /// [`ParameterError`] if there is none of this name, or it may not have this value.
    fn set_parameter(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        let _ = (name, value);
        Err(ParameterError::Unknown { transform: self.name() })
    }
}
