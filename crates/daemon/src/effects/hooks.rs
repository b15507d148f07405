//! Which interfaces carry programs now: none while no connection could move and no introduction is expected.
//!
//! Attaching a program takes the kernel tens of milliseconds, so they hang there before a move, idle: they pass every
//! packet at once until the data plane is told that there is something to do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use whimbrel_datapath::{Datapath, Error, Role};
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::route::Link;
use whimbrel_protocol::{PeerId, Time};

/// How long programs work on after the last moved flow is gone or home, since what was under way on the old path is still
/// restored (P-22); and how long they hang on after the last introduced flow, as another may follow.
const LINGER: Duration = Duration::from_secs(60);

/// What decides it.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    moved: BTreeSet<PeerId>,
    /// Until when programs translate though nothing is moved any more.
    carrying_until: Option<Time>,
    introduced: bool,
    /// Until when programs hang on though no flow could move any more.
    hanging_until: Option<Time>,
    introducing: bool,
    /// Numbers of some flows are translated, wherever they are.
    helped: bool,
    /// Sockets are being given away, or endpoints lent, so that packets are held at any moment.
    moving: bool,
    /// Sockets rest, or are about to, and what comes for them meanwhile is set aside.
    resting: bool,
    /// Until when what was set aside may come back though no socket rests any more.
    giving_back_until: Option<Time>,
    /// Peers whose held flows are listened for (P-39).
    listening: BTreeSet<PeerId>,
}

impl Hooks {
    /// Notes whether a peer has moved flows.
    pub(crate) fn note_peer(&mut self, now: Time, peer: PeerId, moved: bool) {
        if moved {
            self.moved.insert(peer);
            self.carrying_until = None;
        } else if self.moved.remove(&peer) && self.moved.is_empty() {
            self.carrying_until = Some(now + LINGER);
        }
    }

    /// Notes whether any flow is introduced, so could move. Returns whether that is new.
    pub(crate) fn note_introduced(&mut self, now: Time, introduced: bool) -> bool {
        if self.introduced == introduced {
            return false;
        }
        self.introduced = introduced;
        self.hanging_until = (!introduced).then_some(now + LINGER);
        true
    }

    /// Notes whether introductions are expected.
    pub(crate) fn note_introducing(&mut self, introducing: bool) {
        self.introducing = introducing;
    }

    /// Notes whether numbers of any flow are translated. Returns whether that is new.
    pub(crate) fn note_helped(&mut self, helped: bool) -> bool {
        std::mem::replace(&mut self.helped, helped) != helped
    }

    /// Notes whether sockets are being given away. Returns whether that is new; it lingers, as another may follow.
    pub(crate) fn note_moving(&mut self, now: Time, moving: bool) -> bool {
        if self.moving == moving {
            return false;
        }
        self.moving = moving;
        self.hanging_until = self.hanging_until.max((!moving).then_some(now + LINGER));
        true
    }

    /// Notes whether sockets rest, or are about to. Returns whether that is new; it lingers too.
    pub(crate) fn note_resting(&mut self, now: Time, resting: bool) -> bool {
        if self.resting == resting {
            return false;
        }
        self.resting = resting;
        self.giving_back_until = (!resting).then_some(now + LINGER);
        true
    }

    /// Notes whether held flows of a peer are listened for.
    pub(crate) fn note_listening(&mut self, peer: PeerId, listening: bool) {
        if listening {
            self.listening.insert(peer);
        } else {
            self.listening.remove(&peer);
        }
    }

    /// Whether any flow is moved, or was a moment ago.
    pub(crate) fn carrying(&self) -> bool {
        !self.moved.is_empty() || self.carrying_until.is_some()
    }

    /// Whether any flow is moved.
    pub(crate) fn moved(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Whether packets that were set aside may go back to this host's own stack, by the tunnel's device: now, or a moment ago.
    pub(crate) fn gives_back(&self) -> bool {
        self.resting || self.giving_back_until.is_some()
    }

    /// When to come back.
    pub(crate) fn timeout(&self) -> Option<Time> {
        [self.carrying_until, self.hanging_until, self.giving_back_until].into_iter().flatten().min()
    }

    /// Ends what lingers when it is due; returns whether anything did.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let carrying = self.carrying_until.take_if(|until| *until <= now);
        let hanging = self.hanging_until.take_if(|until| *until <= now);
        let giving_back = self.giving_back_until.take_if(|until| *until <= now);
        carrying.is_some() || hanging.is_some() || giving_back.is_some()
    }

    /// Makes the kernel's state equal to what is wanted. Failures of one interface do not keep the others from being
    /// served; the first is returned.
    pub(crate) fn apply(&self, datapath: &mut Datapath, network: &NetworkState, tun: u32) -> Result<(), Error> {
        let mut result = datapath.set_busy(
            self.carrying() || self.helped || self.moving,
            self.introducing,
            !self.listening.is_empty(),
        );
        let mut wanted: BTreeMap<u32, Role> = BTreeMap::new();
        let hanging = self.carrying() || self.helped || self.moving || self.introduced || self.hanging_until.is_some();
        if hanging || self.introducing {
            wanted.extend(wires(network, tun).map(|link| (link.index, Role::Wire)));
        }
        if hanging {
            wanted.insert(tun, Role::Tunnel);
        }
        // Ends of endpoint namespaces, and what leads to them, have programs of their own.
        let attached = datapath.attached();
        let apart = |role: Role| matches!(role, Role::Endpoint | Role::Loopback);
        wanted.retain(|index, _| !attached.iter().any(|(interface, role)| interface == index && apart(*role)));
        for (interface, role) in &wanted {
            result = result.and(datapath.attach(*interface, *role));
        }
        for (interface, role) in attached {
            if !apart(role) && !wanted.contains_key(&interface) {
                result = result.and(datapath.detach(interface));
            }
        }
        result
    }
}

/// The interfaces that packets of peers go through: all, also those that are down now, but for loopback, the tunnel's
/// device, and parts of a bridge or bond, whose whole is taken instead. (A VRF's parts carry the packets themselves.)
pub(crate) fn wires(network: &NetworkState, tun: u32) -> impl Iterator<Item = &Link> {
    network.links.iter().filter(move |link| {
        let part = link.controller.and_then(|whole| network.link(whole)).is_some_and(|whole| whole.kind != "vrf");
        !link.loopback && link.index != tun && !part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_aside_comes_back_also_a_moment_after_the_last_move() {
        let (mut hooks, now) = (Hooks::default(), Time::default());
        assert!(!hooks.gives_back());
        // A lease alone sets nothing aside.
        assert!(hooks.note_moving(now, true) && !hooks.gives_back());
        assert!(hooks.note_resting(now, true) && hooks.gives_back());
        assert!(hooks.note_resting(now, false) && hooks.gives_back() && !hooks.carrying());
        assert!(hooks.expire(now + LINGER) && !hooks.gives_back());
    }
}
