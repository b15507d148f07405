//! What moves make of a node's table of flows: a flow's other end is another peer's from now on (P-79).
//!
//! The far end of a flow that moves is the holder's: a socket of its own, or that of a host that runs nothing. The near end is its
//! owner's, in an endpoint namespace unless the address is the owner's own. Such flows are at home nowhere, so that the binding of
//! the two carries them, as it carries what roams.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Terms};

use crate::Time;
use crate::base::flow_name::FlowName;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, Manner, PeerId, Places, Waits};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::binding::absence::VANISHED;
use crate::flow::{Flow, Origin, Stage};
use crate::node::Node;
use crate::session::peer::{ASTRAY, CarrierProbe, NOWHERE};

/// On a host with no more flows than these, senders are woken each time that some are led elsewhere.
const WOKEN_AT_ONCE: usize = 100;
/// On others so long after the first of them.
const REBOUND_PAUSE: Duration = Duration::from_millis(500);

impl Node {
    /// Has a flow whose far end this host holds be one with the host of its name. `None`: the result comes with that of an op.
    /// `hidden`: the far end is not to learn where its socket is.
    pub(crate) fn lead_flow(
        &mut self,
        now: Time,
        flow: FlowName,
        from: FlowName,
        wire_port: u16,
        lent: Option<FlowTuple>,
        restored: bool,
        hidden: bool,
    ) -> Option<Result<Terms, String>> {
        let to = flow.peer();
        if to == self.public_key() {
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
        let before = self.flows.get(&far).and_then(Flow::entry).copied();
        let end = if lent.is_some() { LocalEnd::Behind } else { self.end_of(&far) };
        let peer = self.peer_of(&to);
        let as_before = |before: &FlowEntry| {
            (before.name, before.wire_remote_port, before.end) == (flow.value(), wire_port, end)
                && peer.is_some_and(|peer| peer.id == before.peer)
        };
        if restored && before.as_ref().is_some_and(as_before) {
            return Some(self.terms_of(&flow, hidden).ok_or_else(|| format!("there is no flow {flow} any more")));
        }
        let peer = peer.filter(|peer| peer.has_session());
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
            _ => peer.free_wire_port(wire_port, self.flows.ports()),
        };
        let Some(wire_local_port) = wire_local_port else {
            return Some(Err(format!("flows with {to} have all ports that are left for them")));
        };
        let entry = FlowEntry {
            peer: peer.id,
            name: flow.value(),
            home: home.unwrap_or(Places { local: peer.places.local, peer: ASTRAY }),
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
        self.install_moved(now, far, entry, Origin::Restored, Asked::Lead(flow));
        None
    }

    /// Has a flow whose socket was moved here be one with its holder. `None`: the result comes with that of an op.
    pub(crate) fn adopt_flow(
        &mut self,
        now: Time,
        name: MoveName,
        tuple: FlowTuple,
        flow: FlowName,
        wire_port: u16,
        terms: &Terms,
    ) -> Option<Result<(), String>> {
        let (own, holder) = (self.attachments.contains_key(&tuple.local.ip()), flow.peer());
        if holder == self.public_key() {
            return Some(Ok(()));
        }
        let peer = self.by_key.get(&holder).and_then(|id| self.peers.get(id));
        let Some(peer) = peer else { return Some(Err(format!("{holder} is not known any more"))) };
        if peer.named.get(&flow.value()).is_some_and(|known| *known != tuple) {
            return Some(Err(format!("another flow is called {flow}")));
        }
        let native = peer.native_places(tuple.local.ip(), tuple.remote.ip());
        let agreed = terms.home.map(|(holder, acceptor)| Places { local: acceptor, peer: holder });
        let entry = FlowEntry {
            peer: peer.id,
            name: flow.value(),
            home: native.filter(|_| native == agreed).unwrap_or(Places { local: peer.places.local, peer: ASTRAY }),
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
        self.install_moved(now, tuple, entry, Origin::Restored, Asked::Adopt(name));
        self.find_carrier(now, entry.peer);
        None
    }

    /// The end of a flow that moved finds out how it goes.
    pub(crate) fn find_carrier(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let settled = peer.candidate.is_none() && peer.update.is_none();
        if peer.moved_flows() > 0 && settled && !peer.probe.forward && !peer.probe.leading {
            peer.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
            self.probe_carrier(now, id);
        }
    }

    /// Makes a flow one with a peer, whatever it was before.
    pub(crate) fn install_moved(&mut self, now: Time, flow: FlowTuple, entry: FlowEntry, origin: Origin, asked: Asked) {
        let id = entry.peer;
        // Before this flow is taken from whose it was: that may be the same peer, as after a restart.
        let known = self.peers.get(&id).map(|peer| (peer.flows.is_empty(), peer.moved_flows() == 0));
        let Some((first, unmoved)) = known else { return };
        let before = self.flows.get(&flow).cloned();
        match &before {
            Some(Flow { stage: Stage::Introduced { entry: former, origin }, .. }) => {
                if let Origin::Answered { nonce, .. } = origin {
                    self.flows.forget_nonce(*nonce);
                }
                if let Some(peer) = self.peers.get_mut(&former.peer) {
                    peer.remove_flow(&flow, former);
                }
                self.idle_later(now, former.peer);
            }
            other => {
                if let Some(known) = other {
                    self.abandon_introduction(&flow, known);
                }
            }
        }
        let opened = before.unwrap_or_else(|| Flow::opened(now, false));
        let stage = Stage::Introduced { entry, origin };
        self.flows.put(flow, Flow { stage, closed: false, ..opened });
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.add_flow(flow, &entry);
        let begins = unmoved && peer.moved_flows() > 0;
        self.timers.stop(Timer::Idle(id));
        if entry.end == LocalEnd::Behind {
            self.timers.set_earlier(Timer::Vanished(id), now + VANISHED);
        }
        if begins {
            // Nothing of the peer's was carried until now: what was found out before may not be so any more.
            peer.probe = CarrierProbe::default();
            self.lead_flows(now, id);
        } else if first {
            self.put_binding_in_force(now, id);
        }
        if first || begins {
            self.timers.set_earlier(Timer::Keepalive(id), now + crate::node::KEEPALIVE);
        }
        self.output.ask(FlowOp::Install { flow, entry }, asked);
        self.refresh_sets();
        if first {
            self.tell_locators(now, id);
            self.meet_later(now);
        }
    }

    /// A flow is not this host's business any more.
    pub(crate) fn release_flow(&mut self, now: Time, flow: &FlowTuple) {
        let peer = self.flows.get(flow).and_then(Flow::entry).map(|entry| entry.peer);
        self.forget_flow(flow);
        if let Some(peer) = peer {
            self.idle_later(now, peer);
            self.refresh_sets();
        }
    }

    /// Wakes the senders of flows that were bound to other peers meanwhile. To look for them among very many, whosever these are, takes as
    /// long as to lead hundreds elsewhere, so that is done once for all that go to a peer within a while; they send again by themselves at
    /// about that time.
    pub(crate) fn wake_rebound(&mut self, now: Time) {
        let few = self.flows.len() <= WOKEN_AT_ONCE;
        for id in self.rebound.clone() {
            if few {
                self.wake_flows(now, id);
            } else {
                self.timers.set_earlier(Timer::Wake(id), now + REBOUND_PAUSE);
            }
        }
    }

    /// The peer that a host is.
    pub(crate) fn peer_of(&self, key: &PublicKey) -> Option<&crate::session::peer::Peer> {
        self.by_key.get(key).and_then(|id| self.peers.get(id))
    }

    /// What an introduced flow is called.
    pub(crate) fn name_of(&self, entry: &FlowEntry) -> Option<FlowName> {
        self.peers.get(&entry.peer).map(|peer| FlowName::new(peer.key, entry.name))
    }

    /// Which flow it is that this host and a peer call so, as its socket has it.
    pub(crate) fn flow_named(&self, flow: &FlowName) -> Option<FlowTuple> {
        self.peer_of(&flow.peer())?.named.get(&flow.value()).copied()
    }

    /// With which peer a flow is one that this host holds, where its end is this host's own, or that of a host behind it.
    pub(crate) fn led_to(&self, flow: &FlowName) -> Option<PeerId> {
        let entry = self.flows.get(&self.flow_named(flow)?).and_then(Flow::entry)?;
        matches!(entry.end, LocalEnd::Here | LocalEnd::Passing).then_some(entry.peer)
    }

    /// How the owner of a flow that this host holds is to go on with it. `hidden`: the far end is not to learn where its socket is.
    pub(crate) fn terms_of(&self, flow: &FlowName, hidden: bool) -> Option<Terms> {
        let far = self.flow_named(flow)?;
        let entry = self.flows.get(&far).and_then(Flow::entry)?;
        let home = (entry.home.peer != ASTRAY).then_some((entry.home.local, entry.home.peer));
        let behind = entry.end == LocalEnd::Behind;
        let hidden = behind && hidden;
        Some(Terms { far, wire_port: entry.wire_local_port, home, passed_on: behind && !hidden, hidden })
    }
}

impl crate::session::peer::Peer {
    /// The places at which a flow between these addresses, of this host and of the peer, is native now.
    fn native_places(&self, local: IpAddr, remote: IpAddr) -> Option<Places> {
        let places = self.places_agreed();
        let there = self.source == Some(local) && self.remote.ip() == remote && !self.translated();
        let settled = self.update.is_none() && self.candidate.is_none();
        (there && settled && places.local != NOWHERE && places.peer != NOWHERE).then_some(places)
    }
}
