//! What goes wrong on purpose.

use std::time::Duration;

use crate::host::HostId;
use crate::network::NetworkId;

/// Faults that strike once, at a step that is counted. Scenarios are run once without, to count the steps, then again
/// for each of them.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// This datagram or injected segment is lost, counted over all hosts from 0.
    pub lose: Option<u64>,
    /// So are this many after it.
    pub lose_also: u64,
    /// This op fails, counted over all hosts from 0.
    pub fail: Option<u64>,
    /// This host's daemon dies before its effect (op or datagram) of this number.
    pub crash: Option<(HostId, u64)>,
    /// This host vanishes, cable and all, before its effect of this number.
    pub vanish: Option<(HostId, u64)>,
    /// These two cannot reach one another.
    pub part: Option<Parting>,
    /// How long a daemon that died stays away.
    pub downtime: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            lose: None,
            lose_also: 0,
            fail: None,
            crash: None,
            vanish: None,
            part: None,
            downtime: Duration::from_secs(2),
        }
    }
}

/// Two networks that nothing passes between any more.
#[derive(Clone, Copy, Debug)]
pub struct Parting {
    /// Which.
    pub networks: [NetworkId; 2],
    /// From this datagram or injected segment on, counted over all hosts from 0.
    pub from: u64,
}

/// What is done to control datagrams in flight, of a thousand each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutation {
    /// A bit is turned.
    pub corrupt: u32,
    /// The end is cut off.
    pub truncate: u32,
    /// Bytes are added.
    pub extend: u32,
    /// An earlier one is sent again.
    pub replay: u32,
    /// An earlier one is sent again from somewhere else.
    pub replay_elsewhere: u32,
}
