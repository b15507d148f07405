//! Which interfaces carry programs now: none while nothing has moved and no introduction is expected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use whimbrel_datapath::{Datapath, Role};
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::route::Link;
use whimbrel_protocol::{PeerId, Time};

/// How long programs stay attached after the last moved flow is gone or home: what was under way on the old path is
/// still restored (P-22).
const LINGER: Duration = Duration::from_secs(60);

/// What decides it.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    moved: BTreeSet<PeerId>,
    listening: bool,
    /// When the programs may go, once nothing is moved any more.
    until: Option<Time>,
}

impl Hooks {
    /// Notes whether a peer has moved flows.
    pub(crate) fn note_peer(&mut self, now: Time, peer: PeerId, moved: bool) {
        if moved {
            self.moved.insert(peer);
            self.until = None;
        } else if self.moved.remove(&peer) && self.moved.is_empty() {
            self.until = Some(now + LINGER);
        }
    }

    /// Notes whether introductions are expected.
    pub(crate) fn note_listening(&mut self, listening: bool) {
        self.listening = listening;
    }

    /// Whether any flow is moved, or was a moment ago.
    pub(crate) fn carrying(&self) -> bool {
        !self.moved.is_empty() || self.until.is_some()
    }

    /// Whether any flow is moved.
    pub(crate) fn moved(&self) -> bool {
        !self.moved.is_empty()
    }

    /// When to come back.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.until
    }

    /// Ends the lingering when it is due; returns whether it did.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }

    /// Makes the kernel's state equal to what is wanted. Failures of one interface do not keep the others from being
    /// served; the first is returned.
    pub(crate) fn apply(
        &self,
        datapath: &mut Datapath,
        network: &NetworkState,
        tun: u32,
    ) -> Result<(), whimbrel_datapath::Error> {
        let mut wanted: BTreeMap<u32, Role> = BTreeMap::new();
        if self.carrying() || self.listening {
            let role = if self.carrying() { Role::Wire } else { Role::IntroductionsOnly };
            wanted.extend(wires(network, tun).map(|link| (link.index, role)));
        }
        if self.carrying() {
            wanted.insert(tun, Role::Tunnel);
        }
        let mut result = Ok(());
        for (interface, role) in &wanted {
            result = result.and(datapath.attach(*interface, *role));
        }
        for (interface, _) in datapath.attached() {
            if !wanted.contains_key(&interface) {
                result = result.and(datapath.detach(interface));
            }
        }
        result
    }
}

/// The interfaces that packets of peers go through: all that are up, but for loopback, the tunnel's device, and parts of
/// a bridge or bond, whose whole is taken instead. (A VRF's parts carry the packets themselves.)
pub(crate) fn wires(network: &NetworkState, tun: u32) -> impl Iterator<Item = &Link> {
    network.links.iter().filter(move |link| {
        let part = link.controller.and_then(|whole| network.link(whole)).is_some_and(|whole| whole.kind != "vrf");
        link.up && !link.loopback && link.index != tun && !part
    })
}
