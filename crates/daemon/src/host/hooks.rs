//! Which interfaces carry programs now: while no connection could move and no introduction is expected, those alone
//! that see which remotes sockets of UDP send to.
//!
//! Attaching a program takes the kernel tens of milliseconds, so they hang there before a move, idle: they pass every
//! packet at once until the data plane is told that there is something to do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use whimbrel_datapath::{Datapath, Error, Role};
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::route::Link;
use whimbrel_protocol::{BindingId, Time};
use whimbrel_wire::FlowTuple;

/// How long programs work on after the last moved flow is gone or home, since what was under way on the old path is
/// still restored (P-22); and how long they hang on after the last introduced flow, as another may follow.
const LINGER: Duration = Duration::from_secs(60);

/// What holds, or held less than [`LINGER`] ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lingering {
    #[default]
    Off,
    On,
    Until(Time),
}

impl Lingering {
    /// Notes whether it holds. Returns whether that is new.
    fn set(&mut self, now: Time, on: bool) -> bool {
        let new = on != self.holds();
        if new {
            *self = if on { Self::On } else { Self::Until(now + LINGER) };
        }
        new
    }

    fn holds(self) -> bool {
        self == Self::On
    }

    fn lingers(self) -> bool {
        self != Self::Off
    }

    fn timeout(self) -> Option<Time> {
        match self {
            Self::Until(time) => Some(time),
            Self::Off | Self::On => None,
        }
    }

    /// Ends it when it is due; returns whether it did.
    fn expire(&mut self, now: Time) -> bool {
        let due = self.timeout().is_some_and(|until| until <= now);
        if due {
            *self = Self::Off;
        }
        due
    }
}

/// What may have packets held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mover {
    /// Sockets that change hosts.
    Sockets,
    /// Processes that do.
    Processes,
    /// What comes where sockets were.
    Late,
    /// Endpoints that are lent.
    Lender,
    /// Endpoints that are on lease here.
    Tenant,
}

/// What decides it.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    moved: BTreeSet<BindingId>,
    /// Flows of any binding are moved: programs translate.
    carrying: Lingering,
    /// Any flow could move.
    introduced: Lingering,
    introducing: bool,
    /// Introductions come for sessions of the daemon before (P-207).
    former: Lingering,
    /// Numbers of some flows are translated, wherever they are.
    helped: bool,
    /// Sockets are being given away, or endpoints lent, so that packets are held at any moment: for these.
    busy: BTreeSet<Mover>,
    moving: Lingering,
    /// Sockets rest, or are about to, and what comes for them meanwhile is set aside: for these.
    setting_aside: BTreeSet<Mover>,
    resting: Lingering,
    /// Bindings whose held flows are listened for (P-39).
    listening: BTreeSet<BindingId>,
    /// Flows that peers have named after they had left, which are listened for where they left (P-206).
    late: BTreeSet<FlowTuple>,
}

impl Hooks {
    /// At the start. `former`: whether introductions may come for sessions of the daemon before.
    pub(crate) fn after(former: bool) -> Self {
        Self { former: if former { Lingering::On } else { Lingering::Off }, ..Self::default() }
    }

    /// Notes whether a binding has moved flows.
    pub(crate) fn record(&mut self, now: Time, id: BindingId, moved: bool) {
        if moved {
            self.moved.insert(id);
        } else {
            self.moved.remove(&id);
        }
        self.carrying.set(now, !self.moved.is_empty());
    }

    /// Notes whether any flow is introduced, so could move. Returns whether that is new.
    pub(crate) fn set_introduced(&mut self, now: Time, introduced: bool) -> bool {
        self.introduced.set(now, introduced)
    }

    /// Has those of sessions of before come for so long as programs linger. Returns whether that is over now.
    pub(crate) fn end_former_later(&mut self, now: Time) -> bool {
        self.former.set(now, false);
        self.former.timeout().is_some_and(|until| until <= now)
    }

    /// Notes whether introductions are expected. Returns whether that is new.
    pub(crate) fn set_introducing(&mut self, introducing: bool) -> bool {
        std::mem::replace(&mut self.introducing, introducing) != introducing
    }

    /// Notes whether numbers of any flow are translated. Returns whether that is new.
    pub(crate) fn set_helped(&mut self, helped: bool) -> bool {
        std::mem::replace(&mut self.helped, helped) != helped
    }

    /// Notes who may have packets held at any moment, and who sets packets aside. Returns whether the first is new, and
    /// whether the second begins.
    pub(crate) fn note_movers(&mut self, now: Time, movers: &[(Mover, bool, bool)]) -> (bool, bool) {
        for (mover, busy, resting) in movers {
            for (all, is_in) in [(&mut self.busy, busy), (&mut self.setting_aside, resting)] {
                if *is_in {
                    all.insert(*mover)
                } else {
                    all.remove(mover)
                };
            }
        }
        let is_resting = !self.setting_aside.is_empty();
        (self.moving.set(now, !self.busy.is_empty()), self.resting.set(now, is_resting) && is_resting)
    }

    /// Notes whether held flows of a binding are listened for.
    pub(crate) fn set_listening(&mut self, id: BindingId, listening: bool) {
        if listening {
            self.listening.insert(id);
        } else {
            self.listening.remove(&id);
        }
    }

    /// Notes whether a flow is listened for where its peer has left. Returns whether it is the first.
    pub(crate) fn set_late(&mut self, flow: &FlowTuple, late: bool) -> bool {
        let first = self.late.is_empty();
        if late {
            self.late.insert(*flow);
        } else {
            self.late.remove(flow);
        }
        first && late
    }

    /// Whether any flow is moved, or was a moment ago.
    pub(crate) fn carrying(&self) -> bool {
        self.carrying.lingers()
    }

    /// Whether any flow is moved.
    pub(crate) fn moved(&self) -> bool {
        self.carrying.holds()
    }

    /// Whether packets that were set aside may go back to this host's own stack, by the tunnel's device: now, or a
    /// moment ago.
    pub(crate) fn gives_back(&self) -> bool {
        self.resting.lingers()
    }

    /// When to come back.
    pub(crate) fn timeout(&self) -> Option<Time> {
        [self.carrying, self.introduced, self.former, self.moving, self.resting]
            .into_iter()
            .filter_map(Lingering::timeout)
            .min()
    }

    /// Ends what lingers when it is due; returns whether anything did.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let all = [&mut self.carrying, &mut self.introduced, &mut self.former, &mut self.moving, &mut self.resting];
        // Each of them, also where the first is due.
        all.map(|state| state.expire(now)).contains(&true)
    }

    /// Makes the kernel's state equal to what is wanted. Failures of one interface do not keep the others from being
    /// served; the first is returned.
    pub(crate) fn apply(&self, datapath: &mut Datapath, network: &NetworkState, tun: u32) -> Result<(), Error> {
        let introducing = self.introducing || self.former.lingers();
        let mut result = datapath.set_busy(
            self.carrying() || self.helped || self.moving.holds(),
            introducing,
            !self.listening.is_empty() || !self.late.is_empty(),
        );
        let mut wanted: BTreeMap<u32, Role> = BTreeMap::new();
        let hanging = self.carrying() || self.helped || self.moving.lingers() || self.introduced.lingers();
        // What else nothing could move by is looked at for what sockets of UDP send: nothing else tells of that.
        let role = if hanging || introducing { Role::Wire } else { Role::Datagrams };
        wanted.extend(wires(network, tun).map(|link| (link.index, role)));
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

/// The interfaces that packets of peers go through: all, also those that are down now, except for loopback, the
/// tunnel's device, and parts of a bridge or bond, whose whole is taken instead. (A VRF's parts carry the packets
/// themselves.)
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
        assert_eq!(hooks.note_movers(now, &[(Mover::Lender, true, false)]), (true, false));
        assert!(!hooks.gives_back());
        assert_eq!(hooks.note_movers(now, &[(Mover::Sockets, true, true)]), (false, true));
        assert!(hooks.gives_back());
        assert_eq!(hooks.note_movers(now, &[(Mover::Sockets, false, false)]), (false, false));
        assert!(hooks.gives_back() && !hooks.carrying());
        assert!(hooks.expire(now + LINGER) && !hooks.gives_back());
    }
}
