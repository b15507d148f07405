//! Senders that have stopped go on when their peer can be reached again.

use std::collections::BTreeMap;

use whimbrel_datapath::Fitted;
use whimbrel_protocol::{FlowEntry, LocalEnd, PeerId, Time};
use whimbrel_wire::FlowTuple;

use super::fitting::{self, Passed};
use super::introductions::Snapshot;
use super::{Failure, Host};

impl Host {
    /// Up to which length packets of a peer are to be sent again, where what was in flight is lost. `None`: no sender is woken.
    pub(crate) fn shrinks_to(&self, peer: PeerId, lost: bool) -> Option<Option<u32>> {
        self.kick.then(|| lost.then(|| self.tunnels.inner_mtu_of(peer)))
    }

    /// Wakes the senders of peers that have lost nothing.
    pub(crate) fn wake_senders_of(&mut self, now: Time, peers: &[PeerId]) {
        if peers.is_empty() || !self.kick {
            return;
        }
        for peer in peers {
            self.kicks.begin(now, *peer, None);
        }
        if let Err(failure) = self.run_kicks(now, &mut Snapshot::default()) {
            tracing::warn!(%failure, "cannot wake senders");
        }
    }

    /// Wakes the senders of a peer, as [`Host::shrinks_to`] says.
    pub(crate) fn wake_senders(
        &mut self,
        now: Time,
        peer: PeerId,
        shrink_to: Option<u32>,
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        self.kicks.begin(now, peer, shrink_to);
        self.run_kicks(now, snapshot)
    }

    pub(crate) fn run_kicks(&mut self, now: Time, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let wanted = self.kicks.wanted(now, self.flows.all());
        if let Err(failure) = self.look_up(&wanted, false, snapshot) {
            self.kicks.put_off(now);
            return Err(failure);
        }
        let Self { kicks, injector, flows, tunnels, tunnel, endpoints, .. } = self;
        let open = |peer| tunnels.open(tunnel, peer);
        let flows = flows.all();
        let injector_of = |flow: &FlowTuple| match flows.get(flow) {
            Some(entry) if entry.end == LocalEnd::Endpoint => endpoints.injector(flow).unwrap_or(injector),
            _ => &*injector,
        };
        let kicked = kicks.run(now, injector_of, flows, snapshot, open)?;
        if kicked > 0 {
            tracing::debug!(kicked, "woke senders");
        }
        Ok(())
    }

    /// Has a thread unbind the sockets of moved flows from their devices, keep those of flows that wait from giving up, and undo both
    /// where it is over, if that is due.
    pub(crate) fn fit_sockets(&mut self, now: Time) {
        if !self.fitting.take(now) {
            return;
        }
        // The first that a peer sends when it is back may be here before anybody says that its flows go on.
        if self.any_waits() {
            self.look_for_echoes(now);
        }
        let bindable = self.network.links.iter().filter(|_| self.fitting.binds());
        let interfaces: Vec<u32> = bindable.map(|link| link.index).collect();
        let (wake, inside) = (std::mem::take(&mut self.wake_again), self.namespaces_to_fit(self.any_waits()));
        let wake: Vec<(PeerId, bool)> = wake.into_iter().collect();
        match self.datapath.sockets_apart() {
            Ok(sockets) => self.passes.begin(
                move || fitting::pass(&sockets, &interfaces, &inside, wake),
                |why| Passed::failed(Failure::NoThread(why)),
            ),
            Err(error) => drop(self.take_in_pass(now, Passed::failed(error.into()))),
        }
    }

    /// Takes in what became of a pass over the sockets. Gives whose senders are to be woken once more.
    pub(crate) fn take_in_pass(&mut self, now: Time, passed: Passed) -> Vec<(PeerId, bool)> {
        let Passed { fitted, took, wake, inside } = passed;
        if let Some(waiting) = inside {
            self.fitting.note_inside(waiting > 0 || self.any_waits());
        }
        match fitted {
            Ok(Fitted { changed, waiting }) => {
                tracing::debug!(changed, waiting, ?took, "sockets fitted to their flows");
                self.fitting.note_waiting(now, waiting);
                self.unfitted = waiting;
            }
            Err(error) => {
                tracing::warn!(%error, "connections that wait may give up, and those bound to a device stand still");
                self.fitting.note_waiting(now, 1);
            }
        }
        self.fitting.rest(now, took);
        self.release_waiting();
        wake
    }

    /// The flows of these peers go on, perhaps after a lapse. What echoes of before is not to be measured. Sockets that are bound to devices
    /// send the old way until a pass has been made, and are woken once more then. Whether what was in flight is lost comes with each.
    pub(crate) fn go_on(&mut self, now: Time, peers: &[(PeerId, bool)], snapshot: &mut Snapshot) {
        self.look_for_echoes(now);
        let lost: BTreeMap<PeerId, bool> = peers.iter().copied().collect();
        let has_socket = |entry: &FlowEntry| matches!(entry.end, LocalEnd::Here | LocalEnd::Endpoint);
        let theirs = self.flows.all().iter().filter(|(_, entry)| lost.contains_key(&entry.peer) && has_socket(entry));
        let theirs: Vec<(FlowTuple, PeerId)> = theirs.map(|(flow, entry)| (*flow, entry.peer)).collect();
        let flows: Vec<FlowTuple> = theirs.iter().map(|(flow, _)| *flow).collect();
        if let Err(failure) = self.look_up(&flows, true, snapshot) {
            tracing::warn!(%failure, "the kernel may take the time away for a round trip");
        }
        for (flow, peer) in theirs {
            if snapshot.get(&flow).is_some_and(|socket| socket.bound_interface != 0) {
                self.wake_again.insert(peer, lost[&peer]);
            }
        }
        self.fitting.want();
        self.fitting.rested();
        self.fit_sockets(now);
        self.release_waiting();
    }

    pub(super) fn look_for_echoes(&mut self, now: Time) {
        if let Err(error) = self.datapath.set_lapses(true) {
            tracing::warn!(%error, "the kernel may take the time away for a round trip");
        }
        self.fitting.note_lapse(now);
    }

    /// Whether any flows are parked.
    pub(super) fn any_waits(&self) -> bool {
        self.bindings.values().any(|binding| binding.parked) || self.flows.all().values().any(|entry| entry.waits.any())
    }

    /// Drops what waits for an answer from a link that does not lead to where it is for any more. IPv4 takes whatever a
    /// socket that is bound to a device wants to reach for a neighbour once no route is left there.
    fn release_waiting(&mut self) {
        let Self { routes, addresses, network, .. } = self;
        let lost = |interface, address| addresses.reaches(address) || !network.is_on_link(interface, address);
        match routes.give_up_unanswered(lost) {
            Ok(0) => {}
            Ok(neighbours) => tracing::debug!(neighbours, "gave up waiting for neighbours that are not there"),
            Err(error) => {
                tracing::warn!(%error, "what was sent before the move may hold connections up for three seconds")
            }
        }
    }

    /// A sender that is woken must find its way prepared, and be found. One look at the sockets serves all whose flows go on.
    pub(crate) fn prepare_kick(&mut self, now: Time, snapshot: &mut Snapshot) {
        if std::mem::take(&mut self.surroundings_changed) {
            self.settle_or_retry(now);
        }
        let going_on = std::mem::take(&mut self.going_on);
        if !going_on.is_empty() {
            self.go_on(now, &going_on, snapshot);
        }
    }
}
