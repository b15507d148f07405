//! What moves make of a node's table of flows: a flow's other end is another peer's from now on (P-79).
//!
//! The far end of a flow that moves is the holder's: a socket of its own, or that of a host that runs nothing. The near end is its
//! owner's, in an endpoint namespace unless the address is the owner's own. Such flows are at home nowhere, so that the binding of
//! the two carries them, as it carries what roams.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Terms};

use super::glue::Others;
use super::{At, FlowName, Moves, Rented};
use crate::Time;
use crate::base::op::{ASTRAY, FlowEntry, LocalEnd, Manner, PeerId, Places, Waits};
use crate::base::output::Asked;
use crate::base::pace::KEEPALIVE;
use crate::base::timer::Timer;
use crate::flow::{Flow, Origin};
use crate::node::Node;

/// On a host with no more flows than these, senders are woken each time that some are led elsewhere.
const WOKEN_AT_ONCE: usize = 100;
/// On others so long after the first of them.
const REBOUND_PAUSE: Duration = Duration::from_millis(500);

/// Something that the node's table of flows is to say.
#[derive(Clone, Debug)]
pub(super) enum FlowChange {
    /// Holder: the flow is one with its owner. Answered by [`Moves::handle_led`].
    /// `from`: as it may be called still. `restored`: a daemon before this one has done so.
    Lead { flow: FlowName, from: FlowName, wire_port: u16, lent: Option<FlowTuple>, restored: bool },
    /// Acceptor: the flow is one with the holder. Answered by [`Moves::handle_adopted`].
    Adopt { name: MoveName, tuple: FlowTuple, flow: FlowName, wire_port: u16, terms: Terms },
    /// Donor: it has nothing to do with the flow any more.
    Release { tuple: FlowTuple },
    /// Holder: the flow that it passes on is over, and its owner is to know that.
    End { tuple: FlowTuple },
    /// Anchor and tenant: a lease depends on this host, so that it is to be known over a restart.
    Remember { key: PublicKey },
}

impl Node {
    /// Does what moves ask of the table of flows, and what follows from it.
    pub(super) fn change_flows(&mut self, now: Time, moves: &mut Moves) {
        while let Some(change) = moves.changes.pop_front() {
            match change {
                FlowChange::Lead { flow, lent: Some(far), .. } if far.mirrored().is_unconnected() => {
                    let at = At { now, around: &Others { node: self } };
                    if let Some(done) = moves.lend_moved(at, flow, far) {
                        let back = flow.peer() == self.base.public_key() && done.is_ok();
                        moves.handle_led(At { now, around: &Others { node: self } }, flow, done);
                        if back {
                            // There is nobody any more whom this host would have to tell where it is.
                            moves.end_flow(flow);
                        }
                    }
                }
                FlowChange::Adopt { name, tuple, flow, .. } if tuple.is_unconnected() => {
                    let at = At { now, around: &Others { node: self } };
                    if let Some(done) = moves.rent_moved(at, flow, tuple) {
                        moves.handle_adopted(At { now, around: &Others { node: self } }, name, done);
                    }
                }
                FlowChange::Release { tuple } if tuple.is_unconnected() || tuple.mirrored().is_unconnected() => {}
                FlowChange::Lead { flow, from, wire_port, lent, restored } => {
                    if lent.is_none() && self.flow_named(&flow).or_else(|| self.flow_named(&from)).is_none() {
                        // It ended between announcement and commit. Whoever has rebuilt the socket is not to wait for a way to nobody.
                        moves.end_flow(flow);
                    }
                    if let Some(done) = self.lead_flow(now, flow, from, wire_port, lent, restored) {
                        moves.handle_led(At { now, around: &Others { node: self } }, flow, done);
                    }
                }
                FlowChange::Adopt { name, tuple, flow, wire_port, terms } => {
                    if let Some(done) = self.adopt_flow(now, name, tuple, flow, wire_port, &terms) {
                        moves.handle_adopted(At { now, around: &Others { node: self } }, name, done);
                    }
                }
                FlowChange::Release { tuple } => self.release_flow(now, &tuple),
                FlowChange::End { tuple } => self.binding.end_passed_on(now, &tuple, &mut self.base),
                FlowChange::Remember { key } => {
                    if let Some(id) = self.binding.flow.path.session.by_key.get(&key).copied() {
                        self.binding.put_binding_in_force(now, id, &mut self.base);
                        self.base.set_timer_earlier(Timer::Keepalive(id), now + KEEPALIVE);
                    }
                }
            }
            moves.hear_own(At { now, around: &Others { node: self } });
        }
    }

    /// Has a flow whose far end this host holds be one with the host of its name. `None`: the result comes with that of an op.
    fn lead_flow(
        &mut self,
        now: Time,
        flow: FlowName,
        from: FlowName,
        wire_port: u16,
        lent: Option<FlowTuple>,
        restored: bool,
    ) -> Option<Result<Terms, String>> {
        let to = flow.peer();
        if to == self.base.public_key() {
            // The socket is here itself, at an address of this host's: nobody need be told of it.
            let far = lent?;
            self.release_flow(now, &far);
            return Some(Ok(Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false }));
        }
        let led = self.flow_named(&flow);
        let known = lent.or(led).or_else(|| self.flow_named(&from));
        let Some(far) = known else { return Some(Err(format!("there is no flow {flow} any more"))) };
        if led.is_some_and(|led| led != far) {
            return Some(Err(format!("another flow is called {flow}")));
        }
        let before = self.binding.flow.flows.get(&far).and_then(Flow::entry).copied();
        let end = if lent.is_some() { LocalEnd::Behind } else { self.base.attachments().end_of(&far) };
        let with = self.peer_of(&to).map(|peer| peer.id);
        let as_before = |before: &FlowEntry| {
            (before.name, before.wire_remote_port, before.end) == (flow.value(), wire_port, end)
                && with == Some(before.peer)
        };
        if restored && before.as_ref().is_some_and(as_before) {
            return Some(self.terms_of(&flow).ok_or_else(|| format!("there is no flow {flow} any more")));
        }
        let peer = self.peer_of(&to).filter(|peer| peer.has_session());
        let Some(peer) = peer else { return Some(Err(format!("there is no session with {to}"))) };
        let home = match (&before, lent) {
            (Some(before), None) if before.peer_tuple.mirrored() == far => {
                peer.native_places(far.local.ip(), far.remote.ip())
            }
            _ => None,
        };
        let wire_local_port = match &before {
            // What was said to an owner that presents its ticket again may have come to it before the answer to that: it stays so.
            Some(before) if as_before(before) => Some(before.wire_local_port),
            _ => peer.flow.free_wire_port(wire_port, self.binding.flow.flows.ports()),
        };
        let Some(wire_local_port) = wire_local_port else {
            return Some(Err(format!("flows with {to} have all ports that are left for them")));
        };
        let entry = FlowEntry {
            peer: peer.id,
            name: flow.value(),
            home: home.unwrap_or(Places { local: peer.flow.places.local, peer: ASTRAY }),
            peer_tuple: before.map_or(far.mirrored(), |before| before.peer_tuple),
            waits: Waits::default(),
            manner: before.map_or(Manner::default(), |before| before.manner),
            wire_local_port,
            wire_remote_port: wire_port,
            end,
            passed_on: false,
            hidden: false,
            beyond: false,
        };
        self.binding.install_moved(now, far, entry, Origin::Restored, Asked::Lead(flow), &mut self.base);
        None
    }

    /// Has a flow whose socket was moved here be one with its holder. `None`: the result comes with that of an op.
    fn adopt_flow(
        &mut self,
        now: Time,
        name: MoveName,
        tuple: FlowTuple,
        flow: FlowName,
        wire_port: u16,
        terms: &Terms,
    ) -> Option<Result<(), String>> {
        let (own, holder) = (self.base.attachments().has(&tuple.local.ip()), flow.peer());
        if holder == self.base.public_key() {
            return Some(Ok(()));
        }
        let peer = self.binding.flow.path.session.by_key.get(&holder).and_then(|id| bound!(self.binding, id));
        let Some(peer) = peer else { return Some(Err(format!("{holder} is not known any more"))) };
        if peer.flow.named.get(&flow.value()).is_some_and(|known| *known != tuple) {
            return Some(Err(format!("another flow is called {flow}")));
        }
        let native = peer.native_places(tuple.local.ip(), tuple.remote.ip());
        let agreed = terms.home.map(|(holder, acceptor)| Places { local: acceptor, peer: holder });
        let entry = FlowEntry {
            peer: peer.id,
            name: flow.value(),
            home: native.filter(|_| native == agreed).unwrap_or(Places { local: peer.flow.places.local, peer: ASTRAY }),
            peer_tuple: terms.far,
            waits: Waits::default(),
            manner: Manner::default(),
            wire_local_port: wire_port,
            wire_remote_port: terms.wire_port,
            end: if own { LocalEnd::Here } else { LocalEnd::Endpoint },
            passed_on: terms.passed_on,
            hidden: terms.hidden,
            beyond: false,
        };
        self.binding.install_moved(now, tuple, entry, Origin::Restored, Asked::Adopt(name), &mut self.base);
        self.binding.find_carrier(now, entry.peer, &mut self.base);
        None
    }

    /// A flow is not this host's business any more.
    fn release_flow(&mut self, now: Time, flow: &FlowTuple) {
        let peer = self.binding.flow.flows.get(flow).and_then(Flow::entry).map(|entry| entry.peer);
        self.binding.flow.forget_flow(flow, &mut self.base);
        if let Some(peer) = peer {
            self.binding.flow.idle_later(now, peer, &mut self.base);
            self.binding.refresh_sets(&mut self.base);
        }
    }

    /// Wakes the senders of flows that were bound to other peers meanwhile. To look for them among very many, whosever these are, takes as
    /// long as to lead hundreds elsewhere, so that is done once for all that go to a peer within a while; they send again by themselves at
    /// about that time.
    pub(super) fn wake_rebound(&mut self, now: Time) {
        let few = self.binding.flow.flows.len() <= WOKEN_AT_ONCE;
        for id in self.binding.flow.rebound.clone() {
            if few {
                self.binding.flow.wake_flows(now, id, &mut self.base);
            } else {
                self.base.set_timer_earlier(Timer::Wake(id), now + REBOUND_PAUSE);
            }
        }
    }

    /// The data plane knows a flow that this host holds, or could not be told.
    pub(crate) fn note_led(&mut self, now: Time, flow: FlowName, result: Result<(), String>) {
        let terms = self.terms_of(&flow);
        if result.is_ok() {
            // Where the former place was lost with its host, senders wait. The new owner hears first.
            self.binding.flow.rebound.extend(self.led_to(&flow));
        }
        self.with_moves(now, |moves, at| {
            let result = result.and_then(|()| terms.ok_or_else(|| "the flow is over".to_owned()));
            moves.handle_led(at, flow, result);
            moves.hear_own(at);
        });
    }

    /// The data plane knows a flow that was moved here, or could not be told.
    pub(crate) fn note_adopted(&mut self, now: Time, name: MoveName, result: Result<(), String>) {
        self.with_moves(now, |moves, at| {
            moves.handle_adopted(at, name, result);
            moves.hear_own(at);
        });
    }

    /// Which flow it is that this host and a peer call so, as its socket has it.
    pub(super) fn flow_named(&self, flow: &FlowName) -> Option<FlowTuple> {
        self.peer_of(&flow.peer())?.flow.named.get(&flow.value()).copied()
    }

    /// With which peer a flow is one that this host holds, where its end is this host's own, or that of a host behind it.
    fn led_to(&self, flow: &FlowName) -> Option<PeerId> {
        let entry = self.binding.flow.flows.get(&self.flow_named(flow)?).and_then(Flow::entry)?;
        matches!(entry.end, LocalEnd::Here | LocalEnd::Passing).then_some(entry.peer)
    }

    /// How the owner of a flow that this host holds is to go on with it.
    fn terms_of(&self, flow: &FlowName) -> Option<Terms> {
        let far = self.flow_named(flow)?;
        let entry = self.binding.flow.flows.get(&far).and_then(Flow::entry)?;
        let home = (entry.home.peer != ASTRAY).then_some((entry.home.local, entry.home.peer));
        let behind = entry.end == LocalEnd::Behind;
        let hidden = behind && self.hides(flow);
        Some(Terms { far, wire_port: entry.wire_local_port, home, passed_on: behind && !hidden, hidden })
    }

    /// Who holds the far end of a connection of this host's, with what the two call it, and where that is: the peer that it is one with;
    /// else this host itself, which lends its address, under a name that is drawn now.
    pub fn holder_of(&mut self, flow: &FlowTuple) -> (FlowName, Option<SocketAddr>) {
        let own = FlowName::new(self.base.public_key(), self.base.random().u64());
        if flow.is_unconnected() {
            let came = |rented: &Rented| rented.moved == Some(flow.transport) && rented.ends.contain(flow.local);
            let lease = self.rented().find(came);
            return match lease {
                Some(Rented { number, anchor, .. }) => {
                    (FlowName::new(anchor, number), self.peer_of(&anchor).map(|peer| peer.remote))
                }
                None => (own, None),
            };
        }
        let entry = self.binding.flow.flows.get(flow).filter(|known| !known.closed).and_then(Flow::entry);
        let peer = entry.and_then(|entry| Some((entry, self.binding.flow.path.session.peers.get(&entry.peer)?)));
        match peer {
            Some((entry, peer)) => (FlowName::new(peer.key, entry.name), Some(peer.remote)),
            None => (own, None),
        }
    }
}
