//! Peers that have a name: where one is that is gone, a name server may know (P-217).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use super::Informant;
use crate::base::op::{AddressOp, PeerId};
use crate::base::output::Asked;
use crate::flow::peers::Away;
use crate::role::At;
use crate::role::rendezvous::{Due, RendezvousRole};

/// Pauses before a name server is asked again, at first and at the longest, and addresses of a name that are tried.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(1);
const LOOK_UP_LONGEST: Duration = Duration::from_secs(60);
const ADDRESSES_MOST: usize = 4;

impl RendezvousRole {
    /// A peer is gone: its name is asked for at once, if it has one and that is not under way.
    pub(crate) fn look_up_later(&mut self, id: PeerId, at: &mut At<'_>) {
        let has_name = at.low.session().key_of(id).is_some_and(|key| at.base.config().with_names.contains(&key));
        if has_name && !self.client.sought.contains_key(&id) {
            self.client.sought.insert(id, 0);
            self.look_up(id, at);
        }
    }

    /// Has the name of a peer asked for, and again as long as it is gone.
    pub(crate) fn look_up(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(tries) = self.client.sought.get_mut(&id) else { return };
        let gone = at.low.peer(&id).filter(|peer| {
            let silent = matches!(peer.flow().away(), Some(Away::Silent { .. }));
            !peer.flow().flows().is_empty() && (silent || peer.updating() == Some(true))
        });
        let key = gone.map(|peer| peer.key());
        let Some(key) = key.filter(|_| !at.base.is_suspended()) else {
            self.client.sought.remove(&id);
            self.forget_named(id, at);
            return;
        };
        let pause = (LOOK_UP_AGAIN * 2u32.pow((*tries).min(6))).min(LOOK_UP_LONGEST);
        *tries += 1;
        self.timers.set(Due::Name(id), at.now + pause);
        at.base.ask(AddressOp::LookUp { key }, Asked::Effect("asking a name server"));
    }

    /// What the name of a peer said is of no use without flows.
    pub(super) fn forget_named(&mut self, id: PeerId, at: &At<'_>) {
        if !at.low.flow().held(id).flows {
            self.client.found.retain(|(peer, by), _| *peer != id || !matches!(by, Informant::Name(_)));
        }
    }

    /// See [`Node::handle_named`](crate::Node::handle_named).
    pub(crate) fn handle_named(&mut self, key: &PublicKey, addresses: &[IpAddr], at: &mut At<'_>) {
        let Some(id) = at.low.session().with_key(key).filter(|id| self.client.sought.contains_key(id)) else { return };
        let Some(source) = at.low.path().paths(&id).and_then(|paths| paths.source()) else { return };
        let port = at.base.config().port;
        let mut named: Vec<SocketAddr> = Vec::with_capacity(ADDRESSES_MOST);
        for address in addresses.iter().filter(|address| address.is_ipv4() == source.is_ipv4()) {
            let endpoint = SocketAddr::new(*address, port);
            if named.len() < ADDRESSES_MOST && !named.contains(&endpoint) {
                named.push(endpoint);
            }
        }
        // Each address has one account (P-58), which is its own for as long as the name has it, in whatever order.
        let mut accounts: [Option<SocketAddr>; ADDRESSES_MOST] = std::array::from_fn(|number| {
            let found = self.client.found.get(&(id, Informant::Name(number as u8)))?;
            Some(found.endpoint).filter(|endpoint| named.contains(endpoint))
        });
        for endpoint in named {
            if !accounts.contains(&Some(endpoint))
                && let Some(free) = accounts.iter_mut().find(|account| account.is_none())
            {
                *free = Some(endpoint);
            }
        }
        for (number, endpoint) in accounts.into_iter().enumerate() {
            if let Some(endpoint) = endpoint {
                self.find(id, endpoint, Informant::Name(number as u8), at);
            }
        }
    }
}
