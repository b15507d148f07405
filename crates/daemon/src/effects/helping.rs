//! Helpers are told how connections stand, and get what the data plane has for them.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;

use whimbrel_ipc as ipc;
use whimbrel_protocol::{Binding, Carrier, FlowEntry, PeerId, Time};
use whimbrel_wire::FlowTuple;

use super::Effects;
use super::introductions::Snapshot;
use crate::events::Told;
use crate::helpers::{Helpers, Means, Situation, Standing};

/// The helpers, and what has changed since they were last told.
#[derive(Debug)]
pub(super) struct Helping {
    pub(super) helpers: Helpers,
    peers: BTreeSet<PeerId>,
    flows: BTreeSet<FlowTuple>,
    /// This host itself is to wait.
    suspended: bool,
}

impl Helping {
    pub(super) fn new(helpers: Helpers) -> Self {
        Self { helpers, peers: BTreeSet::new(), flows: BTreeSet::new(), suspended: false }
    }

    /// The binding of a peer may be another.
    pub(super) fn note_peer(&mut self, peer: PeerId) {
        self.peers.insert(peer);
    }

    /// A flow may wait, or go on.
    pub(super) fn note_flow(&mut self, flow: FlowTuple) {
        self.flows.insert(flow);
    }

    fn standing(&self, entry: &FlowEntry, binding: Option<&Binding>) -> Standing {
        let parked = binding.is_some_and(|binding| binding.parked);
        let held = binding.is_some_and(|of| of.carrier == Carrier::Hold && of.places != entry.home);
        if (parked || entry.waits.there) && !entry.waits.here && !self.suspended {
            Standing::Away
        } else if parked || held || entry.waits.any() {
            Standing::Waits
        } else {
            Standing::Here
        }
    }
}

/// Does something with the helpers and what they work with.
macro_rules! with_means {
    ($effects:expr, |$helpers:ident, $means:ident| $work:expr) => {{
        let Effects { helping, datapath, injector, tunnel, .. } = $effects;
        let $means = &mut Means { datapath, injector, tunnel };
        let $helpers = &mut helping.helpers;
        $work
    }};
}

impl Effects {
    /// Readable when a helper program has something to say.
    pub(crate) fn helpers_wake(&self) -> BorrowedFd<'_> {
        self.helping.helpers.wake()
    }

    /// Whether this host itself is to wait, so that nobody is to be helped out for.
    pub(crate) fn set_suspended(&mut self, suspended: bool) {
        self.helping.suspended = suspended;
    }

    /// What helps which connection.
    pub(crate) fn helper_views(&self) -> HashMap<FlowTuple, ipc::Helper> {
        self.helping.helpers.views()
    }

    /// What helpers have to tell.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        self.helping.helpers.take_told()
    }

    /// Tells the helpers what has become of connections.
    pub(super) fn help(&mut self, now: Time) {
        let (peers, flows) = (std::mem::take(&mut self.helping.peers), std::mem::take(&mut self.helping.flows));
        if self.helping.helpers.is_idle() || peers.is_empty() && flows.is_empty() {
            return;
        }
        let known = self.flows.all();
        let concerned = known.iter().filter(|(flow, entry)| peers.contains(&entry.peer) || flows.contains(flow));
        let situations: Vec<Situation> = concerned
            .map(|(flow, entry)| Situation {
                flow: *flow,
                entry: *entry,
                key: self.flows.key_of(entry.peer),
                standing: self.helping.standing(entry, self.bindings.get(&entry.peer)),
            })
            .collect();
        let away: BTreeSet<FlowTuple> = known
            .iter()
            .filter(|(_, entry)| self.helping.standing(entry, self.bindings.get(&entry.peer)) == Standing::Away)
            .map(|(flow, _)| *flow)
            .collect();
        with_means!(self, |helpers, means| helpers.update(now, means, &situations, &|flow| away.contains(flow)));
        self.helped(now);
    }

    /// After anything that helpers did: what they need, and whom they let go on.
    fn helped(&mut self, now: Time) {
        if self.hooks.note_helped(self.helping.helpers.translates())
            && let Err(failure) = self.apply_hooks()
        {
            tracing::warn!(%failure, "cannot attach the programs to every interface");
        }
        let released = self.helping.helpers.take_released();
        if released.is_empty() || !self.kick {
            return;
        }
        for peer in released {
            self.kicks.begin(now, peer, None);
        }
        if let Err(failure) = self.run_kicks(now, &mut Snapshot::default()) {
            tracing::warn!(%failure, "cannot wake senders");
        }
    }

    /// Takes in what live ends sent while their peers are away, `most` packets of it; whether there may be more.
    pub(crate) fn take_in_kept(&mut self, now: Time, most: usize) -> bool {
        let mut taken = 0;
        while taken < most
            && let Some(packet) = self.tunnel.receive_kept()
        {
            taken += 1;
            with_means!(self, |helpers, means| helpers.handle_packet(now, means, &packet));
        }
        self.helped(now);
        taken == most
    }

    /// Peers have told what they have of what was kept for them.
    pub(crate) fn take_in_acknowledged(&mut self, now: Time, words: &[(FlowTuple, u32, u16)]) {
        for (flow, next, window) in words {
            with_means!(self, |helpers, means| helpers.handle_acknowledged(now, means, *flow, *next, *window));
        }
        if !words.is_empty() {
            self.helped(now);
        }
    }

    /// Connections were opened (true) and have ended.
    pub(crate) fn take_in_flows(&mut self, now: Time, flows: &[(FlowTuple, bool)]) {
        if self.helping.helpers.is_idle() {
            return;
        }
        for (flow, opened) in flows {
            if *opened {
                self.helping.helpers.handle_opened(flow);
            } else {
                with_means!(self, |helpers, means| helpers.handle_closed(now, means, *flow));
            }
        }
        self.helped(now);
    }

    /// Some connections may have ended without a word of it.
    pub(crate) fn look_for_ended(&mut self, now: Time) {
        if !self.helping.helpers.is_idle() {
            with_means!(self, |helpers, means| helpers.look_for_ended(now, means));
            self.helped(now);
        }
    }

    /// Helper programs have something to say.
    pub(crate) fn take_in_helpers(&mut self, now: Time) {
        with_means!(self, |helpers, means| helpers.handle_ready(now, means));
        self.helped(now);
    }

    pub(super) fn handle_helpers_timeout(&mut self, now: Time) {
        if self.helping.helpers.poll_timeout().is_some_and(|due| due <= now) {
            with_means!(self, |helpers, means| helpers.handle_timeout(now, means));
            self.helped(now);
        }
    }

    pub(super) fn adopt_helped(&mut self, now: Time, flows: &HashMap<FlowTuple, FlowEntry>) {
        let at_rest = self.at_rest();
        with_means!(self, |helpers, means| helpers.adopt(now, means, flows, &at_rest));
        self.hooks.note_helped(self.helping.helpers.translates());
    }
}
