//! Has senders go on, and sockets fit what has become of their flows.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_datapath::{Fitted, TcpSocket, monotonic};
use whimbrel_protocol::{Binding, BindingId, Comeback, FlowEntry, LocalEnd, PeerId, SendWindows, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::introductions::Snapshot;
use super::senders::{FEW, Passed, pass};
use super::{Failure, Host};

impl Host {
    /// Whether the senders of a peer may be woken now, and then whether what they had in flight is lost. Very many are
    /// put off.
    pub(crate) fn take_turn(&mut self, now: Time, peer: PeerId, lost: bool) -> Option<bool> {
        if self.remotes.flows_of(peer) <= FEW {
            return Some(self.senders.postponed.remove(peer) | lost);
        }
        let first = BindingId::first(peer);
        let locator = self.bindings.get(&first).map(|binding| binding.peer_locator);
        if locator.and_then(|locator| self.tunnels.allowance(first, locator)).is_some() {
            self.senders.postponed.add(now, peer, lost);
            self.tunnels.open(&self.tunnel, first);
        } else {
            self.senders.postponed.add_next(now, peer, lost);
        }
        None
    }

    /// Up to which length packets of a peer are to be sent again, where what was in flight is lost. `None`: no sender
    /// is woken.
    pub(crate) fn shrinks_to(&self, peer: PeerId, lost: bool) -> Option<Option<u32>> {
        self.senders.kick.then(|| lost.then(|| self.tunnels.inner_mtu_of(BindingId::first(peer))))
    }

    /// Wakes the senders of peers that have lost nothing.
    pub(crate) fn wake_senders_of(&mut self, now: Time, peers: &[PeerId]) {
        if peers.is_empty() || !self.senders.kick {
            return;
        }
        for peer in peers {
            self.senders.kicks.begin(now, *peer, None);
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
        self.senders.kicks.begin(now, peer, shrink_to);
        self.run_kicks(now, snapshot)
    }

    /// The flows of a peer are to say what they have, once what was asked for beside this is done.
    pub(crate) fn acknowledge_later(&mut self, peer: PeerId) {
        if self.senders.kick {
            self.senders.acknowledging.insert(peer);
        }
    }

    /// Has the sockets of those peers say what they have (P-218): so many of all as may be woken at once.
    pub(super) fn acknowledge(&mut self) {
        let mut peers = std::mem::take(&mut self.senders.acknowledging);
        let mut left = FEW;
        peers.retain(|peer| {
            let fits = self.remotes.flows_of(*peer) <= left;
            left -= if fits { self.remotes.flows_of(*peer) } else { 0 };
            fits
        });
        if peers.is_empty() {
            return;
        }
        // A host behind a gateway is woken by errors alone, and by none once it was answered.
        let theirs = |(flow, entry): &(&FlowTuple, &FlowEntry)| {
            let here = entry.end == LocalEnd::Here && flow.transport == Transport::Tcp;
            here && !entry.beyond && peers.contains(&entry.peer)
        };
        let flows: Vec<FlowTuple> = self.flows.all().iter().filter(theirs).map(|(flow, _)| *flow).collect();
        let mut snapshot = Snapshot::default();
        if let Err(failure) = self.look_up(&flows, false, &mut snapshot) {
            tracing::warn!(%failure, "senders learn a round trip later what has arrived");
            return;
        }
        let mut said = 0;
        // What is injected does not come by the device that a socket is bound to: the kernel would find none for it,
        // and reset the connection.
        let hears = |socket: &&TcpSocket| socket.receives && socket.bound_interface == 0;
        for socket in flows.iter().filter_map(|flow| snapshot.get(flow)).filter(hears) {
            match self.injector.provoke_acknowledgement(&socket.flow, socket.snd_una, socket.rcv_nxt) {
                Ok(()) => said += 1,
                Err(error) => tracing::warn!(flow = %socket.flow, %error, "its sender learns later what has arrived"),
            }
        }
        tracing::debug!(said, "had sockets say what they have");
    }

    /// What the TCP senders of a peer's flows have, as far as their sockets are this host's own; they go on with what
    /// they come back to, in equal parts. None where that is not wanted, and where very many have it: to look at
    /// them takes longer than to find out anew.
    pub(crate) fn turn_windows(
        &mut self,
        peer: PeerId,
        comeback: Option<Comeback>,
        snapshot: &mut Snapshot,
    ) -> Result<Option<SendWindows>, Failure> {
        if !self.senders.keeps_windows() || self.remotes.flows_of(peer) > FEW {
            return Ok(None);
        }
        let since = monotonic().unwrap_or(Duration::MAX);
        let theirs = |(flow, entry): &(&FlowTuple, &FlowEntry)| {
            let here = entry.end == LocalEnd::Here && flow.transport == Transport::Tcp;
            here && entry.peer == peer && entry.side == 0
        };
        let flows: Vec<FlowTuple> = self.flows.all().iter().filter(theirs).map(|(flow, _)| *flow).collect();
        self.look_up(&flows, false, snapshot)?;
        let sockets = flows.iter().filter_map(|flow| snapshot.get(flow));
        let senders: Vec<TcpSocket> = sockets.filter(|socket| socket.sends).copied().collect();
        Ok(self.senders.turn_windows(&senders, comeback.as_ref(), since))
    }

    pub(crate) fn run_kicks(&mut self, now: Time, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let wanted = self.senders.kicks.wanted(now, self.flows.all());
        if let Err(failure) = self.look_up(&wanted, false, snapshot) {
            self.senders.kicks.put_off(now);
            return Err(failure);
        }
        let Self { senders, injector, flows, tunnels, tunnel, endpoints, .. } = self;
        let open = |peer| tunnels.open(tunnel, BindingId::first(peer));
        let flows = flows.all();
        let injector_of = |flow: &FlowTuple| match flows.get(flow) {
            Some(entry) if entry.end == LocalEnd::Endpoint => endpoints.injector(flow).unwrap_or(injector),
            _ => &*injector,
        };
        let kicked = senders.kicks.run(now, injector_of, flows, snapshot, open)?;
        if kicked > 0 {
            tracing::debug!(kicked, "woke senders");
        }
        Ok(())
    }

    /// Has a thread unbind the sockets of moved flows from their devices, keep those of flows that wait from giving up,
    /// and undo both where it is over, if that is due.
    pub(crate) fn fit_sockets(&mut self, now: Time) {
        if !self.senders.fitting.take(now) {
            return;
        }
        // The first that a peer sends when it is back may be here before anybody says that its flows go on.
        if self.any_waits() {
            self.poll_echoes(now);
        }
        let bindable = self.network.links.iter().filter(|_| self.senders.fitting.binds());
        let interfaces: Vec<u32> = bindable.map(|link| link.index).collect();
        let (wake, inside) = (std::mem::take(&mut self.senders.wake_again), self.namespaces_to_fit(self.any_waits()));
        let wake: Vec<(PeerId, bool)> = wake.into_iter().collect();
        let number = self.senders.fitting.number();
        match self.datapath.sockets_apart() {
            Ok(sockets) => self.senders.passes.begin(
                move || pass(number, &sockets, &interfaces, &inside, wake),
                move |why| Passed::failed(number, Failure::NoThread(why)),
            ),
            Err(error) => drop(self.handle_pass(now, Passed::failed(number, error.into()))),
        }
    }

    /// Takes in what became of a pass over the sockets. Gives whose senders are to be woken once more.
    pub(crate) fn handle_pass(&mut self, now: Time, passed: Passed) -> Vec<(PeerId, bool)> {
        let Passed { number, fitted, took, wake, inside } = passed;
        let is_newest = self.senders.fitting.rest(now, number, took);
        if let Some(waiting) = inside.filter(|_| is_newest) {
            self.senders.fitting.set_inside(waiting > 0 || self.any_waits());
        }
        match fitted {
            Ok(Fitted { changed, .. }) if !is_newest => {
                tracing::debug!(changed, ?took, "a pass over the sockets is late")
            }
            Ok(Fitted { changed, waiting }) => {
                tracing::debug!(changed, waiting, ?took, "sockets fitted to their flows");
                self.senders.fitting.set_waiting(now, waiting);
                self.senders.unfitted = waiting;
            }
            Err(error) => {
                tracing::warn!(%error, "connections that wait may give up, and those bound to a device stand still");
                self.senders.fitting.set_waiting(now, 1);
            }
        }
        self.release_waiting();
        wake
    }

    /// The flows of these peers go on, perhaps after a lapse. What echoes of before is not to be measured. Sockets that
    /// are bound to devices send the old way until a pass has been made, and are woken once more then. Whether what was
    /// in flight is lost comes with each.
    pub(crate) fn go_on(&mut self, now: Time, peers: &[(PeerId, bool)], snapshot: &mut Snapshot) {
        self.poll_echoes(now);
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
                self.senders.wake_again.insert(peer, lost[&peer]);
            }
        }
        self.senders.fitting.want();
        self.senders.fitting.rested();
        self.fit_sockets(now);
        self.release_waiting();
    }

    pub(super) fn poll_echoes(&mut self, now: Time) {
        if let Err(error) = self.datapath.set_lapses(true) {
            tracing::warn!(%error, "the kernel may take the time away for a round trip");
        }
        self.senders.fitting.on_lapse(now);
    }

    /// Whether any flows are parked.
    pub(super) fn any_waits(&self) -> bool {
        self.bindings.values().any(|binding| binding.parked) || self.flows.all().values().any(|entry| entry.waits.any())
    }

    /// Drops what waits for an answer from a link that does not lead to where it is for any more. IPv4 takes whatever a
    /// socket that is bound to a device wants to reach for a neighbour once no route is left there. And of a new
    /// network what waits for a gateway by which no peer is reached: whatever a flow has sent to it goes another way by
    /// now. And on a link that has lost its carrier nobody answers, where what is led home may still have gone
    /// (decision 0120).
    fn release_waiting(&mut self) {
        let Self { routes, addresses, network, next_hops, bindings, ways_out, .. } = self;
        let way =
            |(id, binding): (&BindingId, &Binding)| Some((ways_out.get(id)?.interface, binding.peer_locator.is_ipv4()));
        let ways = bindings.iter().filter_map(way).collect();
        let lost = |interface, address| {
            let on_link = network.is_on_link(interface, address);
            let has_carrier = network.link(interface).is_none_or(|link| link.up && link.carrier);
            addresses.reaches(address)
                || !on_link
                || !has_carrier
                || next_hops.is_beside(network, (interface, address), &ways)
        };
        match routes.give_up_unanswered(lost) {
            Ok(0) => {}
            Ok(neighbours) => tracing::debug!(neighbours, "gave up waiting for neighbours that are not there"),
            Err(error) => {
                tracing::warn!(%error, "what was sent before the move may hold connections up for three seconds")
            }
        }
    }

    /// A sender that is woken must find its way prepared, and be found. One look at the sockets serves all whose flows
    /// go on.
    pub(crate) fn prepare_kick(&mut self, now: Time, snapshot: &mut Snapshot) {
        if std::mem::take(&mut self.surroundings_changed) {
            self.settle_or_retry(now);
        }
        let going_on = std::mem::take(&mut self.senders.going_on);
        if !going_on.is_empty() {
            self.go_on(now, &going_on, snapshot);
        }
    }

    /// Wakes senders whose moment has come.
    pub(super) fn handle_timeout_of_senders(&mut self, now: Time) {
        if self.senders.kicks.timeout().is_some_and(|due| due <= now)
            && let Err(failure) = self.run_kicks(now, &mut Snapshot::default())
        {
            tracing::warn!(%failure, "cannot wake senders");
        }
        self.senders.postponed.expire(now);
    }

    /// Fits the options of sockets, once senders whose turn it is are woken.
    pub(crate) fn handle_timeout_of_sockets(&mut self, now: Time) {
        if self.senders.fitting.take_lapse(now) {
            if self.any_waits() {
                self.poll_echoes(now);
            } else if let Err(error) = self.datapath.set_lapses(false) {
                tracing::warn!(%error, "what comes in is looked at for stale echoes until the next move");
            }
        }
        self.fit_unless_postponed(now);
    }

    /// As [`Host::fit_sockets`], unless sockets are left as they are for now.
    pub(super) fn fit_unless_postponed(&mut self, now: Time) {
        if !self.senders.postponed.leaves_sockets(now) {
            self.fit_sockets(now);
        }
    }
}
