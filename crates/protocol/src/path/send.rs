//! Datagrams of messages to a peer, at its confirmed endpoint or another, within what may go there (P-18).

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::{MESSAGE_HEADER_LEN, Message};

use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::op::PeerId;
use crate::base::output::Transmit;
use crate::path::PathLayer;

/// Datagrams that carry less than this many bytes of messages are not split.
const DATAGRAM_LIMIT: usize = 1200;

impl PathLayer {
    /// Sends messages to a peer's confirmed endpoint. Without a session nothing is sent.
    pub(crate) fn send(&mut self, id: PeerId, messages: &[Message], base: &mut Base) {
        let Some(paths) = self.peers.get(&id) else { return };
        let (source, remote) = (paths.source, paths.remote);
        self.send_to(id, source, remote, messages, base);
    }

    /// The same in the session that the peer calls by this index, while there is that.
    pub(crate) fn send_in(&mut self, id: PeerId, remote_index: u32, message: &Message, base: &mut Base) {
        let mut plaintext = Vec::new();
        message.encode(&mut plaintext);
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let (source, remote) = (paths.source, paths.remote);
        if !paths.may_send(remote, (plaintext.len() + whimbrel_handshake::CONTROL_OVERHEAD) as u64) {
            return;
        }
        let slot = self.session.peer(&id).and_then(|peer| peer.session_to(remote_index));
        if let Some(index) = slot.map(|slot| slot.local_index()) {
            self.session.send_in(id, index, source, remote, &plaintext, base);
        }
    }

    pub(crate) fn send_to(
        &mut self,
        id: PeerId,
        source: Option<IpAddr>,
        to: SocketAddr,
        messages: &[Message],
        base: &mut Base,
    ) {
        let mut rest = messages;
        while !rest.is_empty() {
            let mut plaintext = Vec::new();
            let mut count = 0;
            for message in rest {
                if count > 0 && plaintext.len() + message.encoded_len() > DATAGRAM_LIMIT {
                    break;
                }
                message.encode(&mut plaintext);
                count += 1;
            }
            rest = &rest[count..];
            self.send_plaintext(id, source, to, &plaintext, base);
        }
    }

    /// As [`PathLayer::send_to`], filled up to 1200 bytes of messages, so that the answer has room (P-18).
    pub(crate) fn send_padded(
        &mut self,
        id: PeerId,
        source: Option<IpAddr>,
        to: SocketAddr,
        messages: &[Message],
        base: &mut Base,
    ) {
        let mut plaintext = Vec::new();
        for message in messages {
            message.encode(&mut plaintext);
        }
        let room = DATAGRAM_LIMIT.saturating_sub(plaintext.len() + MESSAGE_HEADER_LEN);
        Message::Padding { length: room as u16 }.encode(&mut plaintext);
        self.send_plaintext(id, source, to, &plaintext, base);
    }

    /// Sends a message to a peer's confirmed endpoint from an attachment of this host's, with another source (P-239).
    pub(crate) fn send_masked(
        &mut self,
        id: PeerId,
        from: Attachment,
        mask: SocketAddr,
        message: &Message,
        base: &mut Base,
    ) {
        let Some(destination) = self.peers.get(&id).map(|paths| paths.remote) else { return };
        let mut plaintext = Vec::new();
        message.encode(&mut plaintext);
        let slot = self.session.peer_mut(&id).and_then(|peer| peer.session_mut());
        let Some(Ok(payload)) = slot.map(|slot| slot.session_mut().seal(&plaintext)) else { return };
        let (source, link) = (Some(from.address), Some(from.link));
        base.transmit(Transmit { source, link, mask: Some(mask), destination, payload });
    }

    fn send_plaintext(
        &mut self,
        id: PeerId,
        source: Option<IpAddr>,
        to: SocketAddr,
        plaintext: &[u8],
        base: &mut Base,
    ) {
        let Some(paths) = self.peers.get_mut(&id) else { return };
        if !paths.may_send(to, (plaintext.len() + whimbrel_handshake::CONTROL_OVERHEAD) as u64) {
            return;
        }
        let link = paths.link_between(source, to);
        let Some(peer) = self.session.peer_mut(&id) else { return };
        let Some(slot) = peer.session_mut() else { return };
        let Ok(payload) = slot.session_mut().seal(plaintext) else { return };
        base.transmit(Transmit { source, link, mask: None, destination: to, payload });
    }
}
