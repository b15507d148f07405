//! A peer over TCP, as a last resort (decision 0110): when a connection is asked for, what goes by it, and when it is
//! left again.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{PeerId, TunnelOp, WantedConnection};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::flow::peers::Away;

/// How long UDP is waited for before TCP is tried beside it (P-251).
const TCP_AFTER: Duration = Duration::from_secs(2);
/// How long a connection stays that nothing goes by any more: the peer may send by it still (P-255).
const CLOSE_AFTER: Duration = Duration::from_secs(5);

impl BindingLayer {
    /// A peer may have to be reached by TCP: it is looked at when it has been waited for by UDP.
    pub(super) fn fall_back_in_time(&self, since: Time, id: PeerId, base: &mut Base) {
        if bound!(self, &id).is_some_and(|peer| peer.path.tcp_port() != 0) {
            base.set_timer_earlier(Timer::Fallback(id), since + TCP_AFTER);
        }
    }

    /// The same of a peer that is asked for a session, this time already.
    pub(crate) fn fall_back_unreached(&self, now: Time, id: PeerId, tries: u32, base: &mut Base) {
        if tries > 1 && bound!(self, &id).is_some_and(|peer| peer.path.tcp_port() != 0) {
            base.set_timer_earlier(Timer::Fallback(id), now);
        }
    }

    /// Whether nothing is heard of a peer by UDP that its flows wait for.
    fn needs_tcp(&self, now: Time, id: PeerId, base: &Base) -> bool {
        let Some(peer) = bound!(self, &id) else { return false };
        let possible = base.config().carriers.tunnel && peer.path.tcp_port() != 0 && peer.path.attachment().is_some();
        if !possible || base.is_suspended() || peer.flow.flows().is_empty() || peer.flow.away() == Some(Away::Announced)
        {
            return false;
        }
        let waited = |since: Time| peer.path.expects_silence() || since + TCP_AFTER <= now;
        match &peer.binding.update {
            Some(update) => !update.absent && update.meanwhile.is_none() && waited(update.started),
            // What is native needs none.
            None if !peer.has_session() => peer.moved_flows() > 0,
            None => peer.goes_by_tunnel() && peer.path.silent_since().is_some_and(waited),
        }
    }

    /// It is time to look whether a peer is to be reached by TCP, or still is.
    pub(super) fn look_at_fallback(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let (by_tcp, here) = (peer.path.is_by_tcp(), peer.path.stand_in());
        if by_tcp && here == Some(peer.path.remote()) {
            if peer.path.asks_later() {
                base.set_timer(Timer::Fallback(id), now + peer.path.asks_every());
            } else {
                self.ask_directly(now, id, base);
            }
        } else if self.needs_tcp(now, id, base) {
            self.connect(now, id, base);
            if let (Some(endpoint), false) = (here, by_tcp) {
                self.try_by_tcp(now, id, endpoint, base);
            }
        } else if bound!(self, &id)
            .is_some_and(|peer| peer.binding.update.is_some() && peer.path.any_stand_in().is_some())
        {
            base.set_timer(Timer::Fallback(id), now + CLOSE_AFTER);
        } else {
            self.end_fallback(id, base);
        }
    }

    /// No connection to a peer is needed any more.
    pub(crate) fn end_fallback(&mut self, id: PeerId, base: &mut Base) {
        if self.flow.path_mut().paths_mut(&id).is_some_and(|paths| paths.close_connection()) {
            self.ask_for_tcp(id, None, base);
        }
    }

    fn connect(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let mut addresses = vec![peer.path.direct().ip()];
        for address in peer.whereabouts(base.config().port, false).iter().map(SocketAddr::ip) {
            // What a peer says is no reason to connect to this host itself.
            let is_elsewhere = !address.is_loopback() && base.attachments().at(address).is_none();
            if is_elsewhere && !address.is_multicast() && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if let Some(wanted) = peer.path.ask_for_connection(now, &addresses) {
            self.ask_for_tcp(id, Some(wanted), base);
        }
    }

    fn ask_for_tcp(&self, peer: PeerId, wanted: Option<WantedConnection>, base: &mut Base) {
        base.ask(TunnelOp::Connect { peer, wanted }, Asked::Effect("reaching a peer over TCP"));
    }

    /// See [`Node::handle_connection`](crate::Node::handle_connection).
    pub(crate) fn handle_connection(&mut self, now: Time, id: PeerId, at: Option<SocketAddr>, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let Some(endpoint) = at else {
            let (again, lost) = peer.path.on_disconnected(now);
            if lost {
                self.tell_elsewhere(now, id, base);
            }
            base.set_timer(Timer::Fallback(id), if lost { now } else { again });
            return;
        };
        let is_here = peer.path.on_connected(endpoint);
        base.set_timer(Timer::Fallback(id), now + CLOSE_AFTER);
        if is_here && self.needs_tcp(now, id, base) {
            self.try_by_tcp(now, id, endpoint, base);
        }
    }

    /// A connection is there, and what was asked by UDP is not answered: it is asked by that as well.
    fn try_by_tcp(&mut self, now: Time, id: PeerId, endpoint: SocketAddr, base: &mut Base) {
        base.set_timer(Timer::Fallback(id), now + CLOSE_AFTER);
        let Some(peer) = bound!(self, &id) else { return };
        if peer.has_session() {
            if peer.binding.update.is_none() {
                self.tell_elsewhere(now, id, base);
            }
            self.send_update(id, endpoint, base);
        }
        // It may have been started anew, and know of no session.
        self.flow.path_mut().start_handshake_at(now, id, endpoint, base);
    }

    /// An update goes out again: by TCP as well, where that is open and UDP has been waited for.
    pub(super) fn repeat_by_tcp(&mut self, now: Time, id: PeerId, to: SocketAddr, doubt: bool, base: &mut Base) {
        let Some(peer) = bound!(self, &id) else { return };
        let Some(endpoint) = peer.path.stand_in().filter(|endpoint| *endpoint != to) else { return };
        let waited = |started: Time| peer.path.expects_silence() || started + TCP_AFTER <= now;
        if !peer.binding.update.as_ref().is_some_and(|update| waited(update.started)) {
            return;
        }
        let session = peer.has_session();
        self.send_update(id, endpoint, base);
        if doubt || !session {
            self.flow.path_mut().start_handshake_at(now, id, endpoint, base);
        }
    }

    /// The peer is asked whether it hears by UDP again (P-254).
    fn ask_directly(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let token = base.random().u64();
        let Some(peer) = bound_mut!(self, &id) else { return };
        base.set_timer(Timer::Fallback(id), now + peer.path.asks_every());
        let Some(source) = peer.path.source() else { return };
        let mut places = vec![peer.path.direct()];
        places.extend(peer.whereabouts(base.config().port, false));
        places.retain(|place| place.is_ipv4() == source.is_ipv4());
        places.dedup();
        if let Some(to) = peer.path.ask_directly(token, &places) {
            self.flow.path_mut().send_to(id, Some(source), to, &[Message::PathChallenge { token }], base);
        }
    }

    /// The peer has answered by UDP: its flows go by that again, and by TCP until it knows (P-38).
    pub(super) fn return_to_udp(&mut self, now: Time, id: PeerId, at: SocketAddr, base: &mut Base) {
        let meanwhile = self.present_path(id);
        let Some(peer) = bound_mut!(self, &id) else { return };
        let Some(attachment) = peer.path.attachment().filter(|_| peer.path.is_by_tcp()) else { return };
        peer.path.confirm(at);
        peer.path.on_returned(now);
        self.arrive(now, id, attachment, meanwhile, base);
        self.refresh_sets(base);
    }

    /// The way to a peer is another, though this host is where it was.
    fn tell_elsewhere(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let attachment = bound!(self, &id).and_then(|peer| peer.path.attachment());
        if let Some(attachment) = attachment.filter(|_| !base.is_suspended()) {
            self.arrive(now, id, attachment, None, base);
            self.refresh_sets(base);
        }
    }

    /// Whether a peer's flows go by TCP has changed, or not.
    pub(super) fn tell_fallback(&mut self, id: PeerId, base: &mut Base) {
        let flows = self.living(id);
        let Some(peer) = bound_mut!(self, &id) else { return };
        let by_tcp = peer.path.is_by_tcp();
        if std::mem::replace(&mut peer.binding.told_by_tcp, by_tcp) != by_tcp {
            base.event(Event::Transport { peer: id, remote: peer.path.remote().ip(), by_tcp, flows });
        }
    }
}
