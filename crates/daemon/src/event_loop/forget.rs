//! What is remembered of a host is forgotten, as `whimbrel peers forget` has it.

use std::collections::HashMap;
use std::net::IpAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Failure, PeerFlows, Reply};
use whimbrel_protocol::{Need, PeerView};

use super::EventLoop;
use crate::api::Answer;
use crate::api::server::ClientId;
use crate::clock;

impl EventLoop {
    /// Forgets the key of an address, or a host.
    pub(super) fn forget(&mut self, id: ClientId, wanted: &str, force: bool) -> Answer {
        if let Some(remembered) = remembered_at(self.effects.known_keys.all(), wanted) {
            let (address, key) = remembered?;
            return self.forget_keys(id, key, address, vec![address], None);
        }
        let key = self.desk.host_named(wanted)?;
        let view = self.desk.node.peer_with(&key).and_then(|(id, _)| self.desk.node.peer(id));
        let addresses = self.effects.known_keys.addresses_of(key);
        let Some(at) = view.as_ref().map(|view| view.remote.ip()).or(addresses.first().copied()) else {
            return Err(Failure::new("nothing is remembered of this host")
                .on(wanted)
                .hint("Who belongs to the community does so until `whimbrel community revoke`."));
        };
        let moved = view.as_ref().map_or(0, |view| view.moved);
        may_be_forgotten(self.desk.node.need_of(&key), moved, force).map_err(|failure| failure.on(wanted))?;
        self.forget_keys(id, key, at, addresses, view)
    }

    /// Forgets a key for these addresses, and `peer` with all that was agreed on with it. The client is answered when
    /// the disk has it, for which nobody else waits.
    fn forget_keys(
        &mut self,
        id: ClientId,
        key: PublicKey,
        address: IpAddr,
        remembered: Vec<IpAddr>,
        peer: Option<PeerView>,
    ) -> Answer {
        let forgotten: Vec<_> = remembered.iter().filter_map(|at| self.effects.known_keys.forget(*at)).collect();
        // A key that the configuration names for an address stays that of the address.
        let configured = |at: &IpAddr| self.settings.config.peers.iter().any(|peer| peer.address == Some(*at));
        for at in remembered.iter().filter(|at| !configured(at)) {
            self.desk.node.forget_key(*at);
        }
        if let Some(view) = &peer {
            self.desk.node.forget_peer(clock::now(), view.id);
            self.poll_node();
        }
        let flows = peer.as_ref().map(|view| PeerFlows { introduced: view.flows, moved: view.moved });
        let (peer, flows) = (peer.is_some(), flows.unwrap_or_default());
        self.find_answer(id, move || {
            for one in forgotten {
                if let Err(error) = one.written() {
                    return Reply::Error(Failure::new(error.to_string()).hint(
                        "It is forgotten until the daemon is started again; remove its line from that file to forget \
                         it for good.",
                    ));
                }
            }
            Reply::Forgotten { address, key: key.to_string(), remembered, peer, flows }
        })
    }
}

/// The key that is remembered for an address, if `wanted` is one. That names no host here: a peer says itself which
/// addresses it has.
fn remembered_at(known: &HashMap<IpAddr, PublicKey>, wanted: &str) -> Option<Result<(IpAddr, PublicKey), Failure>> {
    let address: IpAddr = wanted.parse().ok()?;
    let none = || {
        Failure::new("no key is remembered for this address")
            .on(wanted)
            .hint("`whimbrel peers --json` shows which have one. A host is forgotten by its number, key or name.")
    };
    Some(known.get(&address).map(|key| (address, *key)).ok_or_else(none))
}

/// Whether a host may be forgotten, with which so many connections have moved.
fn may_be_forgotten(need: Option<Need>, moved: usize, force: bool) -> Result<(), Failure> {
    let (what, look) = match (need, moved) {
        (Some(Need::Moving), _) => {
            let what = "it takes part in the move of a socket, which is not over";
            return Err(Failure::new(what).hint("`whimbrel events` tells of the end; `--force` changes nothing."));
        }
        _ if force => return Ok(()),
        (_, 1) => (
            "a connection with this host has moved, and would end".to_owned(),
            "connections --moved` shows what has moved",
        ),
        (_, 2..) => (
            format!("{moved} connections with this host have moved, and would end"),
            "connections --moved` shows what has moved",
        ),
        (Some(Need::Lent), 0) => ("this host lends it an address".to_owned(), "anchor` shows what depends on that"),
        (Some(Need::Rented), 0) => ("it lends this host an address".to_owned(), "anchor` shows what depends on that"),
        (None, 0) => return Ok(()),
    };
    Err(Failure::new(what)
        .hint(format!("`whimbrel {look}; `whimbrel peers forget --force` forgets the host all the same.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_key_and_no_host() {
        let key = whimbrel_handshake::StaticKey::from_bytes([1; 32]).public();
        let (at, other): (IpAddr, &str) = ([203, 0, 113, 5].into(), "2001:db8::5");
        let known = HashMap::from([(at, key)]);
        assert_eq!(remembered_at(&known, "203.0.113.5").unwrap().unwrap(), (at, key));
        let refused = remembered_at(&known, other).unwrap().unwrap_err();
        assert_eq!(refused.what, "no key is remembered for this address");
        assert!(["#3", "3", "desk", &key.to_string()].iter().all(|host| remembered_at(&known, host).is_none()));
    }

    #[test]
    fn what_depends_on_a_host_ends_by_force_alone_and_a_move_not_even_so() {
        let what = |need, moved, force| may_be_forgotten(need, moved, force).err().map(|failure| failure.what);
        assert_eq!(what(None, 0, false), None);
        let has = |need, moved, word: &str| {
            assert!(what(need, moved, false).is_some_and(|what| what.contains(word)), "{need:?} {moved}");
            assert_eq!(what(need, moved, true), None);
        };
        has(None, 1, "a connection with this host has moved");
        has(None, 2, "2 connections with this host have moved");
        has(Some(Need::Lent), 0, "this host lends it");
        has(Some(Need::Lent), 3, "3 connections");
        has(Some(Need::Rented), 0, "it lends this host");
        for (moved, force) in [(0, false), (0, true), (2, true)] {
            assert!(what(Some(Need::Moving), moved, force).is_some_and(|what| what.contains("move of a socket")));
        }
    }
}
