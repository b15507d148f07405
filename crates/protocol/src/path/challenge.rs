//! Endpoints of a peer that are not confirmed: they are challenged, and little goes there before they answer (P-18,
//! P-26).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::UpdateFlags;

use crate::Time;
use crate::base::arrival::Arrival;

/// Unanswered challenges after which a candidate place is given up.
const CHALLENGES: u32 = 10;

/// A path to an endpoint of the peer beside the one in use.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(super) remote: SocketAddr,
    pub(super) token: u64,
    sent: Time,
    /// How often the challenge was sent; 0: it is answered, or given up.
    tries: u32,
    pub(super) claim: Claim,
    /// Bytes that the tunnel may still be allowed to send there (P-18).
    tunnel: u64,
    /// Bytes of control datagrams that may still go there.
    control: u64,
    /// The datagram that told of it: index and counter.
    datagram: Option<(u32, u64)>,
}

/// What is said of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// Nothing: it may be another mapping of the peer's NAT (P-26), or be kept ready (P-180). All goes on as before.
    Mapping,
    /// A binding update came from there, so that flows are led there.
    Announced,
    /// The peer moves there, and its former path carries its flows until this one is confirmed (P-38).
    Awaited(Awaited),
    /// As before, and its challenges went unanswered.
    Doubted(Awaited),
}

impl Claim {
    /// What an update said that is carried out once the endpoint is confirmed.
    pub(crate) fn awaited(&self) -> Option<&Awaited> {
        match self {
            Self::Mapping | Self::Announced => None,
            Self::Awaited(awaited) | Self::Doubted(awaited) => Some(awaited),
        }
    }
}

/// What an update said that is carried out once the path is confirmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// The peer's place from then on.
    pub place: u32,
    pub refuses_rewrite: bool,
    pub translated: bool,
    /// Where the update was received.
    pub destination: Option<IpAddr>,
}

/// What an update said that came from two sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// Where the peer takes itself to be.
    pub claimed: SocketAddr,
    pub flags: UpdateFlags,
    /// Where it was received.
    pub destination: Option<IpAddr>,
}

/// The source that flows are not led to, or not any more.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) path: Path,
    /// Nothing where it may be another mapping of the same place.
    pub(super) said: Option<Said>,
}

impl Rival {
    /// The update names this source, which nobody else can have it do.
    pub(super) fn is_named(&self) -> bool {
        self.said.is_some_and(|said| said.claimed == self.path.remote)
    }
}

/// Bytes of the allowance that are kept for control datagrams.
const CONTROL_SHARE: u64 = 600;

impl Path {
    /// After `received` bytes from there.
    pub(crate) fn new(remote: SocketAddr, token: u64, now: Time, received: usize, claim: Claim) -> Self {
        let allowance = 3 * received as u64;
        let tunnel = if matches!(claim, Claim::Announced) { allowance.saturating_sub(CONTROL_SHARE) } else { 0 };
        Self { remote, token, sent: now, tries: 1, claim, tunnel, control: allowance - tunnel, datagram: None }
    }

    /// One that an update has told of, and that is to answer this challenge.
    pub(crate) fn announced(arrival: &Arrival, token: u64, now: Time, claim: Claim) -> Self {
        let path = Self::new(arrival.source, token, now, arrival.length, claim);
        Self { datagram: Some(arrival.datagram), ..path }
    }

    /// Whether an update has told of it.
    pub(crate) fn is_told(&self) -> bool {
        self.datagram.is_some()
    }

    /// Whether the very datagram that told of it arrives here.
    pub(crate) fn came_as(&self, arrival: &Arrival) -> bool {
        self.datagram == Some(arrival.datagram)
    }

    /// One that is kept ready, after `received` bytes from there; its challenge is to be sent yet.
    pub(super) fn kept(remote: SocketAddr, received: usize) -> Self {
        Self { tries: 0, ..Self::new(remote, 0, Time::default(), received, Claim::Mapping) }
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn claim(&self) -> Claim {
        self.claim
    }

    /// Whether flows are led there.
    pub(crate) fn is_announced(&self) -> bool {
        matches!(self.claim, Claim::Announced)
    }

    /// When the challenge was first sent.
    pub(super) fn sent(&self) -> Time {
        self.sent
    }

    /// How long ago the challenge was sent, and whether it is certain which of them is answered.
    pub(crate) fn age(&self, now: Time) -> (Duration, bool) {
        (now.since(self.sent), self.tries == 1)
    }

    /// What the tunnel may send there. What was allowed once is not allowed again.
    pub(crate) fn take_allowance(&mut self) -> u64 {
        std::mem::take(&mut self.tunnel)
    }

    /// So many bytes came from there.
    pub(super) fn hear(&mut self, received: usize) {
        self.control += 3 * received as u64;
    }

    /// Takes what a control datagram of this length may cost, if it may go there.
    pub(super) fn spend(&mut self, length: u64) -> bool {
        let left = self.control.checked_sub(length);
        self.control = left.unwrap_or(self.control);
        left.is_some()
    }

    /// The challenge is due again: its token, and how often it was sent then. `None`: that is enough.
    pub(crate) fn try_again(&mut self) -> Option<(u64, u32)> {
        self.tries += 1;
        (self.tries <= CHALLENGES).then_some((self.token, self.tries))
    }

    /// Whether that was enough before.
    pub(crate) fn is_given_up(&self) -> bool {
        self.tries > CHALLENGES
    }

    /// As [`Path::try_again`], of a path that is challenged again and again: with a token that is `fresh` where the one
    /// before was answered. `most`: so often in close succession.
    pub(super) fn challenge_anew(&mut self, now: Time, fresh: u64, most: u32) -> Option<u32> {
        if self.tries == 0 {
            (self.token, self.sent) = (fresh, now);
        }
        self.tries += 1;
        (self.tries <= most).then_some(self.tries)
    }

    /// Whether this is the token of a challenge that is not answered.
    pub(super) fn is_asked(&self, token: u64) -> bool {
        self.tries > 0 && self.token == token
    }

    /// Whether a challenge is not answered yet.
    pub(super) fn is_challenged(&self) -> bool {
        self.tries > 0
    }

    /// The challenge is answered, or given up.
    pub(super) fn settle(&mut self) {
        self.tries = 0;
    }

    /// Its challenges went unanswered, though the peer says that it moves there. Tells whether that is new.
    pub(crate) fn doubt(&mut self, awaited: Awaited) -> bool {
        let before = std::mem::replace(&mut self.claim, Claim::Doubted(awaited));
        matches!(before, Claim::Awaited(_))
    }

    /// Something authentic came from there. Tells whether it was given up, and is challenged again.
    pub(super) fn hear_again(&mut self, received: usize) -> bool {
        self.hear(received);
        let given_up = self.is_given_up();
        if given_up {
            self.tries = 0;
        }
        given_up
    }

    /// What is said of the place that it stands for, where another mapping takes its place. One that was given up does
    /// not count.
    pub(super) fn claim_of_place(&self) -> Claim {
        match self.claim {
            Claim::Doubted(awaited) if !self.is_given_up() => Claim::Awaited(awaited),
            claim if !self.is_given_up() || self.is_announced() => claim,
            _ => Claim::Mapping,
        }
    }

    /// So many bytes of control have gone there already.
    pub(super) fn charge(&mut self, spent: usize) {
        self.control = self.control.saturating_sub(spent as u64);
    }
}
