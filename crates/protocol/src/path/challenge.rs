//! Endpoints of a peer that are not confirmed: they are challenged, and little goes there before they answer (P-18,
//! P-26).

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::base::timer::Timer;
use crate::path::PathLayer;

/// Unanswered challenges after which a candidate place is given up.
pub(crate) const CHALLENGES: u32 = 10;

/// An endpoint of the peer that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) remote: SocketAddr,
    pub(crate) token: u64,
    pub(crate) sent: Time,
    pub(crate) tries: u32,
    /// A binding update came from there, so that flows are led there. Else it may be another mapping of the peer's NAT
    /// (P-26), and all goes on as before until it answers.
    pub(crate) announced: bool,
    /// Bytes that the tunnel may still be allowed to send there (P-18).
    pub(crate) tunnel: u64,
    /// Bytes of control datagrams that may still go there.
    pub(crate) control: u64,
    /// The peer moves there, and its former path carries its flows until this one is confirmed (P-38).
    pub(crate) awaited: Option<Awaited>,
    /// Its challenges went unanswered.
    pub(crate) doubted: bool,
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
    pub(crate) fn new(remote: SocketAddr, token: u64, now: Time, received: usize, announced: bool) -> Self {
        let allowance = 3 * received as u64;
        let tunnel = if announced { allowance.saturating_sub(CONTROL_SHARE) } else { 0 };
        let control = allowance - tunnel;
        Self { remote, token, sent: now, tries: 1, announced, tunnel, control, awaited: None, doubted: false }
    }
}

impl PathLayer {
    /// Something authentic came from an endpoint that is not confirmed: as much more may go there (P-18), and one that
    /// was given up is challenged again.
    pub(crate) fn hear_candidate(&mut self, now: Time, id: PeerId, arrival: &Arrival, base: &mut Base) {
        let Some(peer) = self.session.peers.get_mut(&id) else { return };
        let Some(candidate) = peer.candidate.as_mut().filter(|candidate| candidate.remote == arrival.source) else {
            return;
        };
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
        let Some(peer) = self.session.peers.get_mut(&id) else { return };
        if !arrival.is_newest || arrival.source == peer.remote || !mapped {
            return;
        }
        if peer.candidate.as_ref().is_some_and(|candidate| candidate.remote == arrival.source) {
            return;
        }
        // Where the place itself is not confirmed yet, the other mapping takes its place; one that was given up does
        // not count.
        let before = peer.candidate.take().filter(|candidate| candidate.tries <= CHALLENGES || candidate.announced);
        let announced = before.as_ref().is_some_and(|candidate| candidate.announced);
        let mut candidate = Candidate::new(arrival.source, token, now, arrival.length, announced);
        candidate.awaited = before.and_then(|candidate| candidate.awaited);
        let spent = answered + if answered > 0 { whimbrel_handshake::CONTROL_OVERHEAD } else { 0 };
        candidate.control = candidate.control.saturating_sub(spent as u64);
        peer.candidate = Some(candidate);
        let again = peer.repeat_after(1);
        base.set_timer(Timer::Challenge(id), now + again);
        self.send_to(id, arrival.destination, arrival.source, &[Message::PathChallenge { token }], base);
    }
}
