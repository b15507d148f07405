//! Masked updates: what lets nothing in before a peer but what comes from where this host was is told by a datagram
//! that seems to (P-239, P-241).

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::binding::MaskedUpdate;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::attachments::Attachment;
use crate::base::op::PeerId;
use crate::binding::BindingLayer;
use crate::binding::masks::AGAIN;
use crate::binding::update::PendingUpdate;
use crate::path::fallback::stands_in;

/// So often an update is sent so: with each second of its tries at the most, and then as [`AGAIN`] has it.
const MOST: u32 = 4;

impl BindingLayer {
    /// An update has been answered: where that took none of those beside it, nothing is known of the network.
    pub(super) fn judge_masked(&mut self, at: Option<Attachment>, update: &PendingUpdate) {
        if let Some(at) = at.filter(|_| update.masked > 0 && update.masked_seen == 0 && update.meanwhile.is_none()) {
            self.masked_networks.forget(at);
        }
    }

    /// Sends, beside some tries of an update, a datagram that says so as from where the peer saw this host last: by the
    /// path that is being left, if that works, or with its source. `to`: where the update went.
    pub(super) fn send_masked_update(&mut self, now: Time, id: PeerId, to: SocketAddr, base: &mut Base) {
        let port = base.config().port;
        let Some(peer) = bound!(self, &id) else { return };
        let (Some(update), Some(at)) = (peer.binding.update.as_ref(), peer.path.attachment()) else { return };
        // Who is behind a NAT is so behind a filter as well; who is not may be behind one all the same.
        let begins = if peer.path.locators().contains(&to.ip()) { 2 } else { 1 };
        let turn = match update.masked {
            MOST.. => now.since(update.masked_at) >= AGAIN,
            masked => update.tries >= begins + 2 * masked,
        };
        let idle = peer.flow.flows().is_empty() || !update.held || update.absent;
        let claimed = SocketAddr::new(at.address, port);
        let elsewhere = to != peer.path.remote() || stands_in(to);
        if idle || elsewhere || !turn || !leads(claimed, to) {
            return;
        }
        let message = Message::MaskedUpdate(MaskedUpdate { sequence: update.sequence, claimed });
        if let Some(meanwhile) = &update.meanwhile {
            let former = meanwhile.attachment.address;
            if former == at.address {
                return;
            }
            self.flow.path_mut().send_to(id, Some(former), to, &[message], base);
        } else {
            let Some(mask) = peer.path.mask(port).filter(|mask| mask.ip() != at.address && leads(*mask, to)) else {
                return;
            };
            if !base.config().masked_updates || !self.masked_networks.begin(now, at) {
                return;
            }
            self.flow.path_mut().send_masked(id, at, mask, &message, base);
        }
        if let Some(update) = bound_mut!(self, &id).and_then(|peer| peer.binding.update.as_mut()) {
            (update.masked, update.masked_at) = (update.masked + 1, now);
        }
    }

    /// A peer says from where it was that it is elsewhere. Nothing is believed for that, and nothing kept: it is
    /// answered there by one datagram, no longer than its own, which opens the NAT before this host for its update.
    pub(crate) fn handle_masked_update(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        MaskedUpdate { sequence, claimed }: MaskedUpdate,
        base: &mut Base,
    ) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let is_there = peer.path.remote() == arrival.source && peer.path.is_proven() && !arrival.passed_on;
        let moves = claimed.ip() != arrival.source.ip() && !base.attachments().has(&claimed.ip());
        // Nor one of a service that may take it for a question, or what stands for a connection of TCP.
        let moves = moves && (claimed.port() >= 1024 || claimed.port() == base.config().port) && !stands_in(claimed);
        let newer = sequence > peer.binding.sequence_accepted;
        if !is_there || !moves || !newer || peer.flow.flows().is_empty() || !leads(claimed, arrival.source) {
            return;
        }
        if peer.binding.masks.take(now) && self.masks.take(now) {
            let seen = Message::MaskedUpdateSeen { sequence };
            self.flow.path_mut().send_to(id, arrival.destination, claimed, &[seen], base);
        }
    }

    /// A masked update has come through: what goes to where the answer comes from is let in there.
    pub(super) fn handle_masked_update_seen(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        sequence: u32,
        base: &mut Base,
    ) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let (Some(at), source) = (peer.path.attachment(), peer.path.source()) else { return };
        if arrival.destination.is_some_and(|destination| Some(destination) != source) || arrival.passed_on {
            return;
        }
        if let Some(update) = peer.binding.update.as_mut().filter(|update| update.sequence == sequence) {
            // Each of them is answered once.
            if update.masked_seen < update.masked {
                update.masked_seen += 1;
                // One that went by the path that is being left says nothing of this network.
                if update.meanwhile.is_none() {
                    self.masked_networks.note_passing(now, at);
                }
                self.send_update(id, arrival.source, base);
            }
        }
    }
}

/// Whether an endpoint that is named to whoever is seen at `from` may mean the same there as here, and a single host.
fn leads(endpoint: SocketAddr, from: SocketAddr) -> bool {
    let address = endpoint.ip();
    let reserved = matches!(address, IpAddr::V4(address) if address.octets()[0] >= 240);
    let nobody = address.is_unspecified() || address.is_multicast() || address.is_loopback() || reserved;
    let unreachable = is_private(address) && !is_private(from.ip());
    endpoint.port() != 0 && endpoint.is_ipv4() == from.is_ipv4() && !nobody && !unreachable
}

/// Whether an address means something else on each network (RFC 1918, RFC 6598, RFC 4193), or on a link alone.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            let shared = first == 100 && (64..128).contains(&second);
            address.is_private() || shared || address.is_link_local()
        }
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_has_to_mean_one_host_there() {
        let leads = |endpoint: &str, from: &str| {
            leads(endpoint.parse().expect("an endpoint"), from.parse().expect("an endpoint"))
        };
        assert!(leads("192.0.2.1:2031", "198.51.100.1:2031") && leads("10.1.2.3:2031", "10.0.0.9:40031"));
        for nobody in [
            "10.1.2.3:1",
            "100.64.0.1:1",
            "169.254.1.1:1",
            "0.0.0.0:1",
            "224.0.0.1:1",
            "127.0.0.1:1",
            "255.255.255.255:1",
            "240.0.0.1:1",
            "192.0.2.1:0",
            "[2001:db8::1]:1",
        ] {
            assert!(!leads(nobody, "198.51.100.1:2031"), "{nobody}");
        }
        assert!(!leads("[fd00::1]:1", "[2001:db8::1]:1") && !leads("[ff02::1]:1", "[2001:db8::1]:1"));
    }
}
