//! The way in that a NAT or firewall before this host keeps open towards where a peer was that is away: what that sends
//! as from there is let in only while it is (P-259).

use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::pace::KEEPALIVE;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;

/// So long a peer is away at the most that a mapping is kept for it: over a weekend.
const KEPT_FOR: Duration = Duration::from_secs(3 * 86_400);

impl BindingLayer {
    /// Nothing else may go to a peer for so long that a NAT or firewall forgets it.
    pub(super) fn keep_mapping(&self, now: Time, id: PeerId, base: &mut Base) {
        if self.needs_mapping(now, id, base) {
            base.set_timer(Timer::Mapping(id), now + KEEPALIVE);
        }
    }

    /// It is time to send something that needs no answer.
    pub(super) fn renew_mapping(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if self.needs_mapping(now, id, base) {
            self.flow.path_mut().send(id, &[Message::Padding { length: 0 }], base);
            self.keep_mapping(now, id, base);
        }
    }

    fn needs_mapping(&self, now: Time, id: PeerId, base: &Base) -> bool {
        let Some(peer) = bound!(self, &id).filter(|peer| peer.has_session() && !peer.flow.flows().is_empty()) else {
            return false;
        };
        let waits = peer.flow.away().is_some() || peer.path.check_tries() > 0;
        let lost = peer.last_heard() + KEPT_FOR <= now;
        let there = peer.path.attachment().is_some() && !peer.path.is_by_tcp() && !base.is_suspended();
        // Who was asked by others is open to them.
        let opened = |flow: &FlowTuple| self.flow.flows().get(flow).is_some_and(|flow| !flow.is_accepted());
        waits && !lost && there && (peer.is_translated_here() || peer.flow.flows().iter().any(opened))
    }
}
