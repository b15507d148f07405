//! A peer over TCP, where nothing answers by UDP (P-250): what is known of a connection that the caller keeps for it.
//!
//! The caller gives each such connection an endpoint of its own, by which it is named here as any other: the far end's
//! address, and a port that no datagram comes from ([`STAND_IN_PORTS`]). What goes there goes by the connection.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Time;

/// UDP that has passed for so long is taken to pass.
const LASTS: Duration = Duration::from_secs(60);

/// Ports of endpoints that stand for connections of TCP (P-253). No NAT gives these to datagrams from ports above them
/// (RFC 4787, REQ-3).
pub const STAND_IN_PORTS: RangeInclusive<u16> = 512..=1023;

/// Whether an endpoint stands for a connection of TCP, as far as its port says.
pub(crate) fn stands_in(endpoint: SocketAddr) -> bool {
    STAND_IN_PORTS.contains(&endpoint.port())
}

/// What is known of a peer's connection.
#[derive(Clone, Debug)]
pub(super) struct Fallback {
    /// The port at which the peer takes some; 0: at none.
    pub(super) port: u16,
    /// Where the peer was last shown to be by UDP.
    pub(super) direct: SocketAddr,
    pub(super) state: State,
    /// How many in a row came to nothing.
    pub(super) failed: u32,
    /// Whether UDP goes unanswered by the network in use, as was seen before.
    pub(super) expected: bool,
    /// The question whether it is there by UDP again, and where it went; how many have gone out.
    pub(super) asked: Option<(SocketAddr, u64)>,
    pub(super) questions: u32,
    /// None has gone out since the connection was last taken into use.
    pub(super) unasked: bool,
    /// When UDP was gone back to last, and from which address.
    pub(super) returned: Option<(Time, IpAddr)>,
    /// How often in a row that did not last, at which address.
    pub(super) regrets: Option<(IpAddr, u32)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Closed,
    /// None is asked for before then.
    Failed(Time),
    /// The caller is asked for one, from this address.
    Asked(IpAddr),
    Open {
        from: IpAddr,
        endpoint: SocketAddr,
        /// This host has gone elsewhere since, or the path has.
        left: bool,
    },
}

impl Fallback {
    pub(super) fn new(remote: SocketAddr) -> Self {
        let (state, expected, asked) = (State::Closed, false, None);
        let (returned, regrets) = (None, None);
        Self {
            port: 0,
            direct: remote,
            state,
            failed: 0,
            expected,
            asked,
            questions: 0,
            unasked: true,
            returned,
            regrets,
        }
    }

    /// TCP is needed at an address: UDP may have been gone back to too soon.
    pub(super) fn regret(&mut self, now: Time, from: IpAddr) {
        let Some((returned, at)) = self.returned.take() else { return };
        let before = self.regrets.filter(|(regretted, _)| *regretted == from).map_or(0, |(_, times)| times);
        self.regrets = (at == from && now.since(returned) < LASTS).then_some((from, before + 1));
    }
}
