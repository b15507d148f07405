//! Whether a peer is reached by a connection of TCP, and when another may be asked for (P-251).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::Time;
use crate::base::op::WantedConnection;
use crate::path::fallback::{State, stands_in};
use crate::path::paths::Paths;

/// The first pause after a connection that could not be had or has ended, and the longest. Each is half as long again
/// as the one before: who comes back is waited for no more than half as long again as it was away.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// After so many the pause does not grow any more.
const PAUSES: u32 = 9;

/// How often it is asked whether UDP passes again, and how many times that is doubled at the most.
const ASK_EVERY: Duration = Duration::from_secs(10);
const REGRETS: u32 = 4;

/// The pause after so many in a row that came to nothing.
fn pause(failed: u32) -> Duration {
    let failed = failed.min(PAUSES);
    (PAUSE * 3u32.pow(failed) / 2u32.pow(failed)).min(PAUSE_LONGEST)
}

impl Paths {
    /// The peer takes connections of TCP at this port, as it has said; 0: it does not.
    pub(super) fn listens_at(&mut self, port: u16) {
        self.fallback.port = port;
    }

    /// The port at which the peer takes connections of TCP.
    pub(crate) fn tcp_port(&self) -> u16 {
        self.fallback.port
    }

    /// Whether the path in use goes by TCP, at either end.
    pub(crate) fn is_by_tcp(&self) -> bool {
        stands_in(self.remote)
    }

    /// Where the peer was last shown to be by UDP.
    pub(crate) fn direct(&self) -> SocketAddr {
        self.fallback.direct
    }

    /// The peer is at an endpoint from now on.
    pub(super) fn stand_at(&mut self, remote: SocketAddr) {
        if !stands_in(remote) {
            (self.fallback.direct, self.fallback.expected, self.fallback.asked) = (remote, false, None);
        } else if remote != self.remote {
            self.fallback.failed = 0;
            self.fallback.questions = 0;
            self.fallback.unasked = true;
        }
        if let State::Open { endpoint, left, .. } = &mut self.fallback.state
            && *endpoint == remote
        {
            // UDP was gone back to for nothing.
            *left = false;
        }
        self.remote = remote;
    }

    /// The endpoint of a connection that this host has opened to the peer from where it is.
    pub(crate) fn stand_in(&self) -> Option<SocketAddr> {
        match self.fallback.state {
            State::Open { from, endpoint, left: false } if self.source == Some(from) => Some(endpoint),
            _ => None,
        }
    }

    /// The endpoint of whichever connection there is, also from where this host was before.
    pub(crate) fn any_stand_in(&self) -> Option<SocketAddr> {
        match self.fallback.state {
            State::Open { endpoint, .. } => Some(endpoint),
            _ => None,
        }
    }

    /// Whether nothing is to be waited for before another connection is asked for, since the one before was in use.
    pub(crate) fn expects_silence(&self) -> bool {
        self.fallback.expected
    }

    /// The caller is to open a connection: from where, and to which of these addresses. `None`: it is asked already, or
    /// it is too early.
    pub(crate) fn ask_for_connection(&mut self, now: Time, addresses: &[IpAddr]) -> Option<WantedConnection> {
        let (from, port) = (self.source?, self.fallback.port);
        match self.fallback.state {
            State::Failed(until) if until > now => return None,
            State::Asked(before) | State::Open { from: before, left: false, .. } if before == from => return None,
            _ => {}
        }
        let mut alike = addresses.iter().filter(|address| address.is_ipv4() == from.is_ipv4());
        let to = alike.clone().nth(self.fallback.failed as usize % alike.clone().count().max(1));
        let to = to.or_else(|| alike.next()).filter(|_| port != 0)?;
        self.fallback.state = State::Asked(from);
        self.fallback.regret(now, from);
        Some(WantedConnection { from, link: self.own_link(), to: SocketAddr::new(*to, port) })
    }

    /// UDP is gone back to.
    pub(crate) fn on_returned(&mut self, now: Time) {
        self.fallback.returned = self.source.map(|source| (now, source));
    }

    /// Whether it is too soon for the first question whether UDP passes again, since it did not for long.
    pub(crate) fn asks_later(&mut self) -> bool {
        std::mem::take(&mut self.fallback.unasked) && self.asks_every() > ASK_EVERY
    }

    /// How often it is asked whether UDP passes again: less often each time that it did not for long, where this host
    /// is (P-254).
    pub(crate) fn asks_every(&self) -> Duration {
        let regrets = self.fallback.regrets.filter(|(at, _)| self.source == Some(*at));
        ASK_EVERY * 2u32.pow(regrets.map_or(0, |(_, times)| times.min(REGRETS)))
    }

    /// A connection is open. Tells whether it is from where this host is.
    pub(crate) fn on_connected(&mut self, endpoint: SocketAddr) -> bool {
        let State::Asked(from) = self.fallback.state else { return false };
        self.fallback.state = State::Open { from, endpoint, left: false };
        self.source == Some(from)
    }

    /// There is no connection, or no more. When another may be asked for, and whether the path in use went by it: the
    /// peer is taken to be where it was by UDP then.
    pub(crate) fn on_disconnected(&mut self, now: Time) -> (Time, bool) {
        let before = self.any_stand_in();
        let lost = before == Some(self.remote);
        let until = now + pause(self.fallback.failed);
        self.fallback.failed = self.fallback.failed.saturating_add(1);
        if lost {
            self.leave_stand_in();
            // What was in use may be had again at once, and has not failed.
            (self.fallback.expected, self.fallback.failed) = (true, 0);
        }
        self.fallback.state = if lost { State::Closed } else { State::Failed(until) };
        (until, lost)
    }

    /// The connection is not needed any more. Tells whether there is one.
    pub(crate) fn close_connection(&mut self) -> bool {
        let is_there = matches!(self.fallback.state, State::Asked(_) | State::Open { .. });
        if is_there {
            self.fallback.state = State::Closed;
        }
        is_there
    }

    /// The peer is looked for by UDP first: this host goes elsewhere, or nothing comes by the connection. Where it has
    /// to be reached by TCP again that is another one: whether this one still goes through is not known soon enough.
    pub(crate) fn leave_stand_in(&mut self) {
        if let State::Open { left, .. } = &mut self.fallback.state {
            *left = true;
        }
        if self.any_stand_in() == Some(self.remote) {
            self.stand_at(self.fallback.direct);
        }
    }

    /// The peer is to be asked by UDP with this token, at the next of `places`: where.
    pub(crate) fn ask_directly(&mut self, token: u64, places: &[SocketAddr]) -> Option<SocketAddr> {
        let places: Vec<_> = places.iter().filter(|place| !stands_in(**place)).collect();
        let to = **places.get(self.fallback.questions as usize % places.len().max(1))?;
        self.fallback.questions = self.fallback.questions.wrapping_add(1);
        self.fallback.asked = Some((to, token));
        Some(to)
    }

    /// Where the peer has answered by UDP, if this is the token of that question.
    pub(crate) fn take_direct_answer(&mut self, token: u64) -> Option<SocketAddr> {
        self.fallback.asked.take_if(|(_, asked)| *asked == token).map(|(to, _)| to)
    }
}
