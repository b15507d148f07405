//! Endpoints of a peer that are not confirmed: they are challenged, and little goes there before they answer (P-18,
//! P-26).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::base::timer::Timer;
use crate::path::PathLayer;
use crate::path::paths::Paths;

/// Unanswered challenges after which a candidate place is given up.
const CHALLENGES: u32 = 10;

/// An endpoint of the peer that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(super) remote: SocketAddr,
    pub(super) token: u64,
    sent: Time,
    tries: u32,
    pub(super) claim: Claim,
    /// Bytes that the tunnel may still be allowed to send there (P-18).
    tunnel: u64,
    /// Bytes of control datagrams that may still go there.
    control: u64,
}

/// What is said of an endpoint that is not confirmed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// It may be another mapping of the peer's NAT (P-26), and all goes on as before until it answers.
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
    pub(crate) place: u32,
    pub(crate) refuses_rewrite: bool,
    pub(crate) translated: bool,
    /// Where the update was received.
    pub(crate) destination: Option<IpAddr>,
}

/// Bytes of the allowance that are kept for control datagrams.
const CONTROL_SHARE: u64 = 600;

impl Candidate {
    /// After `received` bytes from there.
    pub(crate) fn new(remote: SocketAddr, token: u64, now: Time, received: usize, claim: Claim) -> Self {
        let allowance = 3 * received as u64;
        let tunnel = if matches!(claim, Claim::Announced) { allowance.saturating_sub(CONTROL_SHARE) } else { 0 };
        Self { remote, token, sent: now, tries: 1, claim, tunnel, control: allowance - tunnel }
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

    /// How long ago the challenge was sent, and whether it is certain which of them is answered.
    pub(crate) fn age(&self, now: Time) -> (Duration, bool) {
        (now.since(self.sent), self.tries == 1)
    }

    /// What the tunnel may send there. What was allowed once is not allowed again.
    pub(crate) fn take_allowance(&mut self) -> u64 {
        std::mem::take(&mut self.tunnel)
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

    /// Its challenges went unanswered, though the peer says that it moves there. Tells whether that is new.
    pub(crate) fn doubt(&mut self, awaited: Awaited) -> bool {
        let before = std::mem::replace(&mut self.claim, Claim::Doubted(awaited));
        matches!(before, Claim::Awaited(_))
    }
}

impl PathLayer {
    /// Something authentic came from an endpoint that is not confirmed: as much more may go there (P-18), and one that
    /// was given up is challenged again.
    pub(crate) fn hear_candidate(&mut self, now: Time, id: PeerId, arrival: &Arrival, base: &mut Base) {
        let candidate = self.peers.get_mut(&id).and_then(Paths::candidate_mut);
        let Some(candidate) = candidate.filter(|candidate| candidate.remote == arrival.source) else { return };
        candidate.control += 3 * arrival.length as u64;
        if candidate.tries > CHALLENGES {
            candidate.tries = 0;
            base.set_timer(Timer::Challenge(id), now);
        }
    }

    /// P-26: the peer's NAT gave it another mapping. `answered`: bytes of messages that went there already.
    pub(crate) fn notice_rebinding(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        answered: usize,
        mapped: bool,
        base: &mut Base,
    ) {
        let token = base.random().u64();
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let known = arrival.source == paths.remote || paths.challenge_to(arrival.source).is_some();
        if !arrival.is_newest || known || !mapped {
            return;
        }
        // Where the place itself is not confirmed yet, the other mapping takes its place; one that was given up does
        // not count.
        let before = paths.candidate.take().filter(|before| before.tries <= CHALLENGES || before.is_announced());
        let claim = match before.map_or(Claim::Mapping, |before| before.claim) {
            Claim::Doubted(awaited) => Claim::Awaited(awaited),
            claim => claim,
        };
        let mut candidate = Candidate::new(arrival.source, token, now, arrival.length, claim);
        let spent = answered + if answered > 0 { whimbrel_handshake::CONTROL_OVERHEAD } else { 0 };
        candidate.control = candidate.control.saturating_sub(spent as u64);
        paths.expect(candidate);
        let again = paths.repeat_after(1);
        base.set_timer(Timer::Challenge(id), now + again);
        self.send_to(id, arrival.destination, arrival.source, &[Message::PathChallenge { token }], base);
    }
}
