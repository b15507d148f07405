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
        self.next_peer = self.next_peer.max(id.0 + 1);
        self.by_key.insert(key, id);
        self.peers.insert(id, Peer::new(id, key, now));
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
        base.transmit(Transmit { source, link: None, destination: to, payload });
    }

    pub(crate) fn drop_sessions(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for slot in std::mem::take(&mut peer.sessions) {
            self.drop_index(slot.session.local_index(), base);
        }
        base.signal(Signal::SessionsGone(id));
    }

    pub(crate) fn new_peer(&mut self, now: Time, key: PublicKey) -> PeerId {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
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
