//! The peers that are known, and their sessions as they come and go.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::Capabilities;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::output::Transmit;
use crate::base::pace::IDLE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::session::SessionLayer;
use crate::session::peer::Peer;

/// Age of a session at which it is renewed.
pub(crate) const RENEW: Duration = Duration::from_secs(3600);

impl SessionLayer {
    /// Takes over a peer that a daemon before this one knew.
    pub(crate) fn restore(&mut self, id: PeerId, key: PublicKey, now: Time) {
        self.next_peer = self.next_peer.max(id.next());
        self.by_key.insert(key, id);
        self.peers.insert(id, Peer::new(id, key, now));
    }

    /// All peers that a daemon before this one knew are known: where they have answered its store says by their keys.
    pub(crate) fn restore_answers(&mut self) {
        let mut known: Vec<(IpAddr, PublicKey)> = self.contacts.known_keys().collect();
        known.sort_unstable_by_key(|(address, _)| *address);
        for (address, key) in known {
            let peer = self.by_key.get(&key).and_then(|id| self.peers.get_mut(id));
            peer.into_iter().for_each(|peer| peer.record_answer_at(address));
        }
    }

    /// Sends in the session of this index of ours, whichever others there are.
    pub(crate) fn send_in(
        &mut self,
        id: PeerId,
        index: u32,
        source: Option<IpAddr>,
        to: SocketAddr,
        plaintext: &[u8],
        base: &mut Base,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(slot) = peer.sessions.iter_mut().find(|slot| slot.session.local_index() == index) else { return };
        let Ok(payload) = slot.session.seal(plaintext) else { return };
        base.transmit(Transmit { source, link: None, mask: None, destination: to, payload });
    }

    pub(crate) fn drop_sessions(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for slot in std::mem::take(&mut peer.sessions) {
            self.drop_index(slot.session.local_index(), base);
        }
        base.signal(Signal::SessionsGone(id));
    }

    pub(crate) fn new_peer(&mut self, now: Time, key: PublicKey) -> PeerId {
        // There is never a peer for each number.
        while self.peers.contains_key(&self.next_peer) {
            self.next_peer = self.next_peer.next();
        }
        let id = self.next_peer;
        self.next_peer = id.next();
        self.peers.insert(id, Peer::new(id, key, now));
        self.by_key.insert(key, id);
        id
    }

    pub(crate) fn renew_later(&mut self, now: Time, id: PeerId, base: &mut Base) {
        base.set_timer(Timer::Renew(id), now + RENEW);
        base.set_timer_earlier(Timer::Idle(id), now + IDLE);
    }

    /// Whether a peer is to be told when a flow of TCP with it is over, since it does not see its end (P-103).
    pub(crate) fn sees_no_ends(&self, id: PeerId) -> bool {
        let sessions = self.peers.get(&id).map(|peer| peer.sessions.as_slice()).unwrap_or_default();
        sessions.iter().any(|slot| slot.capabilities.contains(Capabilities::GATEWAY))
    }

    /// Whether a session is kept with a peer, flows or not.
    pub(crate) fn keeps(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| self.contacts.pins.keeps(&peer.key))
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_handshake::StaticKey;

    use super::*;
    use crate::base::config::Config;
    use crate::base::random::Random;
    use crate::session::contact::Contacts;

    fn key(of: u8) -> PublicKey {
        PublicKey::from([of; 32])
    }

    #[test]
    fn peers_have_numbers_below_those_of_bindings_and_none_that_is_in_use() {
        let (mut random, now, most) = (Random::new([7; 32]), Time::default(), PeerId(PeerId::MOST));
        let me = StaticKey::from_bytes([8; 32]).public();
        let mut layer = SessionLayer::new(Contacts::new(me, &mut random, &Config::default()));
        layer.restore(PeerId(2), key(2), now);
        layer.restore(PeerId(PeerId::MOST - 1), key(3), now);
        assert_eq!([4, 5, 6].map(|of| layer.new_peer(now, key(of))), [most, PeerId(1), PeerId(3)]);
        layer.forget_peer(PeerId(2));
        layer.restore(most, key(4), now);
        assert_eq!(layer.new_peer(now, key(7)), PeerId(4), "those before are not given at once again");
        layer.next_peer = most;
        assert_eq!(layer.new_peer(now, key(8)), PeerId(2));
    }
}
