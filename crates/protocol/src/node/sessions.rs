//! What follows from handshakes: for flows that wait, for bindings, and for roles.

use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::Datagram;
use whimbrel_wire::message::{CloseReason, Message};

use crate::Time;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::peers::PeerRef;
use crate::node::Node;
use crate::session::contact::asking::Reach;
use crate::session::contact::handshake::{Ended, Verdict};
use crate::session::contact::{CONFIRMED_WITHIN, Contact, INITIATION};
use crate::session::peer::Peer;
use crate::session::pins::{Held, Need, Pin};

impl Node {
    /// A datagram of a handshake came.
    pub(super) fn take_in_handshake(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        datagram: &Datagram<'_>,
    ) {
        let Some(ended) =
            self.binding.session_mut().handle_handshake(now, source, destination, datagram, &mut self.base)
        else {
            return;
        };
        match self.binding.session_mut().check_key(now, &ended, &mut self.base) {
            Verdict::Refused => {}
            Verdict::Another { expected, found, at } => self.find_another(now, expected, found, at),
            Verdict::Accepted { known } => {
                if known.is_none() {
                    self.make_room(now);
                }
                self.establish(now, known, ended);
            }
        }
    }

    /// A handshake ended well: the session begins.
    fn establish(&mut self, now: Time, known: Option<PeerId>, ended: Ended) {
        let held = known.map_or(Held::default(), |id| self.binding.held(id));
        let Some(begun) = self.binding.session_mut().begin_session(now, ended, &mut self.base) else { return };
        let id = begun.id;
        self.binding.know(id, begun.source);
        self.binding.note_begun(&begun, held, &self.base);
        if begun.joins {
            self.roles.community.on_joined_peer(id, begun.source);
        }
        // The peer may introduce flows before its first word is read here: the programs read those, unless there are
        // very many sessions already that they look for.
        self.binding.listen_in_new_session(now, id, &mut self.base);
        self.settle(now);
        if begun.confirmed {
            self.confirm(now, id, begun.index);
        }
        if begun.initiated {
            self.binding.path_mut().check_new_session(now, &begun, held, &mut self.base);
        }
        if let Some(address) = begun.asked {
            let waiting = self.binding.session_mut().find_at(id, address, &mut self.base);
            self.roles.rendezvous.meet_later(now, &mut self.base);
            for flow in waiting {
                if self.binding.flow().is_introducible(&flow) {
                    self.binding.flow_mut().queue_introduction(now, id, flow, &mut self.base);
                }
            }
        }
        self.binding.flow_mut().introduce_failed(now, id, &self.base);
        self.binding.session_mut().await_confirmation(now, id, &mut self.base);
        if self.binding.flow().peer(&id).is_some_and(|peer| peer.flow.introduces()) {
            self.base.set_timer(Timer::Introductions(id), now);
        }
        if begun.reached {
            let took = now.since(begun.started);
            self.base.event(Event::PeerReached { peer: id, key: begun.key, remote: begun.source, took });
        }
    }

    /// The peer may have shown that it holds the keys of a session.
    pub(super) fn confirm(&mut self, now: Time, id: PeerId, index: u32) {
        let held = self.binding.held(id);
        let Some(confirmed) = self.binding.session_mut().confirm_session(now, id, index, &mut self.base) else {
            return;
        };
        let (met, shown) = self.binding.path_mut().on_confirmed(now, id, &confirmed, held, &self.base);
        self.binding.meet_at(id, met);
        self.binding.agree_on_chains_anew(now, id, &mut self.base);
        self.binding.set_tunnel_path(id, &mut self.base);
        self.binding.show_session_later(now, id, &mut self.base);
        if shown {
            self.binding.apply_binding(now, id, &mut self.base);
        }
        self.binding.listen_in_new_session(now, id, &mut self.base);
        self.settle(now);
        self.base.sweep_later(now);
        self.binding.update_in_session(now, id, &mut self.base);
        self.binding.announce_late(now, id, &mut self.base);
        let met_from = confirmed.origin.and_then(|origin| origin.destination);
        self.binding.arrive_where_met(now, id, met_from, &mut self.base);
        if !confirmed.initiated {
            self.binding.send_locators(now, id, &mut self.base);
        }
        self.binding.on_life(now, id, confirmed.life, confirmed.begun, &mut self.base);
        let proven = confirmed.origin.map(|origin| origin.remote);
        if let Some(at) = proven {
            // Somebody who runs Whimbrel is there, or behind that address.
            self.binding.session_mut().ask_prompted(now, at.ip(), &mut self.base);
        }
        self.binding.record_sighting(now, id, proven, &mut self.base);
        self.binding.check_anew(now, id, proven, !confirmed.initiated, &mut self.base);
        self.binding.flow_mut().send_paused(now, id, &mut self.base);
        self.binding.flow_mut().introduce_in_new_session(now, id, &mut self.base);
        self.settle(now);
        self.deliver(now, Signal::SessionUp(id));
    }

    /// The peer sends in this session. Where it has done so for a while beside another one, this end does too.
    pub(super) fn follow_session(&mut self, now: Time, id: PeerId, index: u32) {
        if self.binding.session_mut().follow_session(now, id, index, &self.base) {
            self.binding.agree_on_chains_anew(now, id, &mut self.base);
            self.binding.set_tunnel_path(id, &mut self.base);
            self.binding.show_session_later(now, id, &mut self.base);
            self.base.sweep_later(now);
        }
    }

    /// A peer without a session is tried again.
    pub(super) fn reach(&mut self, now: Time, id: PeerId) {
        let held = self.binding.held(id);
        match self.binding.session_mut().continue_reaching(now, id, held, &mut self.base) {
            Reach::Unneeded => {}
            Reach::Tried(tries) => {
                self.binding.path_mut().start_handshake_with(now, id, &mut self.base);
                self.binding.fall_back_unreached(now, id, tries, &mut self.base);
                self.binding.report_silence(id, tries, &mut self.base);
            }
            Reach::Lost => self.lose(now, id),
        }
    }

    /// A peer on which no connection depends has stopped answering: its addresses are left alone (P-10).
    fn lose(&mut self, now: Time, id: PeerId) {
        self.binding.flow_mut().abandon_introductions(now, id, &mut self.base);
        let mut addresses = self.binding.session().contacts().addresses_of(id);
        addresses.sort_unstable();
        self.drop_peer(now, id);
        for address in addresses {
            self.binding.session_mut().give_up(now, address, &mut self.base);
        }
    }

    /// Somebody becomes a peer. Where too many have no flows, those are forgotten that are worth least.
    fn make_room(&mut self, now: Time) {
        if self.binding.session_mut().contacts_mut().take_room().is_some() {
            return;
        }
        // Those first that have not shown in time that they hold the keys.
        let worth = |peer: &Peer| {
            let counts = peer.has_session() || peer.last_heard() + CONFIRMED_WITHIN > now;
            (counts, self.binding.session().pins().has(Pin::Registered, &peer.key()), peer.last_heard(), peer.id())
        };
        let mut idle: Vec<_> =
            self.binding.flow().each().filter(|peer| self.is_idle(peer)).map(|peer| worth(&peer)).collect();
        let surplus = self.binding.session_mut().contacts_mut().set_room(idle.len());
        if surplus > 0 {
            idle.sort_unstable();
            for (.., id) in idle.into_iter().take(surplus) {
                self.drop_peer(now, id);
            }
        }
        self.binding.session_mut().contacts_mut().take_room();
    }

    /// Whether nothing depends on a peer.
    fn is_idle(&self, peer: &PeerRef<'_>) -> bool {
        peer.flow.flows().is_empty() && !peer.flow.introduces() && !self.binding.session().pins().keeps(&peer.key())
    }

    /// Asks all addresses that were silent as if for the first time: at once where a flow waits for one or it is a
    /// rendezvous, else when the next connection opens. How many questions a second there are stays limited (P-10).
    pub fn ask_again(&mut self, now: Time) {
        for address in self.binding.session().contacts().silent() {
            self.binding.session_mut().forget_contact(address, &mut self.base);
            for flow in self.binding.session_mut().contacts_mut().take_waiting(address) {
                if self.binding.flow().is_introducible(&flow) {
                    self.binding.flow_mut().want_introduction(now, flow, &mut self.base);
                }
            }
        }
        // No flow waits for a rendezvous.
        self.roles.rendezvous.meet_later(now, &mut self.base);
    }

    /// What has become of a connection of TCP that was asked for ([`TunnelOp::Connect`](crate::TunnelOp::Connect)): the
    /// endpoint that stands for it, with a port of [`STAND_IN_PORTS`](crate::STAND_IN_PORTS), or `None`: it could not
    /// be had, or has ended.
    pub fn handle_connection(&mut self, now: Time, peer: PeerId, endpoint: Option<SocketAddr>) {
        self.binding.handle_connection(now, peer, endpoint, &mut self.base);
        self.settle(now);
    }

    /// An ICMP error says that nobody listens at `destination`. `quoted`: how the datagram that it is about begins. It
    /// counts only where that is an initiation of ours (P-10): both ports are known to everybody, its index is not.
    pub fn handle_unreachable(&mut self, now: Time, destination: SocketAddr, quoted: Option<[u8; 8]>) {
        let address = destination.ip();
        let index = match quoted {
            Some([INITIATION, _, _, _, index @ ..]) => u32::from_be_bytes(index),
            _ => return,
        };
        if self.binding.session().contacts().asked_at(index) != Some(destination) {
            return;
        }
        match self.binding.session().contacts().get(&address) {
            Some(Contact::Asking { .. }) => self.binding.session_mut().give_up(now, address, &mut self.base),
            Some(Contact::Known(id)) => {
                // It ran Whimbrel once.
                let lost = |peer: PeerRef<'_>| {
                    peer.flow.flows().is_empty() && !peer.has_session() && peer.path.remote() == destination
                };
                if !self.binding.session().keeps(id) && self.binding.flow().peer(&id).is_some_and(lost) {
                    self.lose(now, id);
                }
            }
            Some(Contact::Silent { .. }) | None => {}
        }
    }

    /// Another key answers where a peer was asked for, as after a host was set up anew: the address is that peer's no
    /// longer, and what waits to be introduced there is another's. Of a peer that is known by nothing else nothing is
    /// kept.
    fn find_another(&mut self, now: Time, expected: PublicKey, found: PublicKey, address: IpAddr) {
        let Some(id) = self.binding.session().with_key(&expected) else { return };
        if !self.binding.session().contacts().is_known(address, id) {
            return;
        }
        let Some(peer) = self.binding.session_mut().peer_mut(&id) else { return };
        peer.replace_at(&address);
        if let Some(paths) = self.binding.path_mut().paths_mut(&id) {
            paths.forget_former(address);
        }
        self.binding.session_mut().contacts_mut().forget(&address);
        let another = self.binding.session().contacts().known_key(&address).filter(|expected| *expected != found);
        self.binding.flow_mut().leave_address(now, id, address, another.is_none(), &mut self.base);
        if let Some(expected) = another {
            self.base.event(Event::KeyMismatch { address, expected, found: Some(found) });
            self.binding.session_mut().give_up(now, address, &mut self.base);
        }
        let forgotten = |peer: PeerRef<'_>| peer.flow.flows().is_empty() && !peer.flow.introduces();
        if !self.binding.session().keeps(id)
            && self.binding.flow().peer(&id).is_some_and(forgotten)
            && self.binding.session().contacts().addresses_of(id).is_empty()
        {
            self.drop_peer(now, id);
        }
    }

    /// Forgets the key that was remembered for an address, so that another may answer there: that which a code has
    /// proven to be the host's there takes its place (P-148), or else the next that answers. It is asked again when the
    /// next connection opens. Tells whether one was remembered.
    pub fn forget_key(&mut self, address: IpAddr) -> bool {
        let forgotten = self.binding.session_mut().forget_key_at(address, &mut self.base);
        if let Some(proven) = self.roles.community.take_proven_key(address).filter(|_| forgotten) {
            self.binding.session_mut().remember_key_at(address, proven, &mut self.base);
        }
        forgotten
    }

    /// Why a host is looked for without end, if it is: what else than flows depends on it.
    #[must_use]
    pub fn need_of(&self, host: &PublicKey) -> Option<Need> {
        self.binding.session().pins().need(host)
    }

    /// Forgets a peer, with its sessions and all that was agreed on with it: its flows go on natively where they have
    /// not moved, and are over where they have, at both ends if the peer hears of it (P-227). Keys that are remembered
    /// for addresses are [forgotten](Self::forget_key) by themselves. Not to be called of one that a socket
    /// [moves](Need::Moving) by.
    pub fn forget_peer(&mut self, now: Time, id: PeerId) {
        self.binding.forget_with(now, id, &mut self.base);
        let reason = CloseReason::Shutdown;
        self.binding.path_mut().send(id, &[Message::Close { reason }], &mut self.base);
        self.drop_peer(now, id);
        self.settle(now);
    }
}
