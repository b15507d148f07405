//! What moves make of the table of flows: a flow's other end is another peer's from now on (P-79).
//!
//! The far end of a flow that moves is the holder's: a socket of its own, or that of a host that runs nothing. The near
//! end is its owner's, in an endpoint namespace unless the address is the owner's own. Such flows are at home nowhere,
//! so that the binding of the two carries them, as it carries what roams.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::Terms;

use crate::Time;
use crate::base::Base;
use crate::base::flow_name::FlowName;
use crate::base::op::{ASTRAY, FlowEntry, LocalEnd, Manner, PeerId, Places};
use crate::base::output::Asked;
use crate::base::signal::{Signal, Unled};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::BoundRef;
use crate::binding::transfer::{Adopt, Around, Lead};
use crate::flow::known::Origin;

/// On a host with no more flows than these, senders are woken each time that some are led elsewhere.
const WOKEN_AT_ONCE: usize = 100;
/// On others so long after the first of them.
const REBOUND_PAUSE: Duration = Duration::from_millis(500);

impl BindingLayer {
    /// Has a flow whose far end this host holds be one with the host of its name. `None`: the result comes with that of
    /// an op.
    pub(super) fn lead_flow(&mut self, now: Time, lead: &Lead, base: &mut Base) -> Option<Result<Terms, Unled>> {
        let Lead { flow, from, wire_port, lent, restored } = *lead;
        let failed = |why: String| Some(Err(Unled::Failed(why)));
        let to = flow.peer();
        if to == base.public_key() {
            // The socket is here itself, at an address of this host's: nobody need be told of it.
            let far = lent?;
            self.release_flow(now, &far, base);
            return Some(Ok(Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false }));
        }
        let led = self.flow_named(&flow);
        let known = lent.or(led).or_else(|| self.flow_named(&from));
        let Some(far) = known else { return Some(Err(Unled::Over)) };
        if led.is_some_and(|led| led != far) {
            return failed(format!("another flow is called {flow}"));
        }
        let before = self.flow.flows().entry(&far).copied();
        let end = if lent.is_some() { LocalEnd::Behind } else { base.attachments().end_of(&far) };
        let with = self.peer_of(&to).map(|peer| peer.id());
        let as_before = |before: &FlowEntry| {
            (before.name, before.wire_remote_port, before.end) == (flow.value(), wire_port, end)
                && with == Some(before.peer)
        };
        if restored && before.as_ref().is_some_and(as_before) {
            return Some(self.terms_of(&flow).ok_or(Unled::Over));
        }
        let peer = self.peer_of(&to).filter(|peer| peer.has_session());
        let Some(peer) = peer else { return failed(format!("there is no session with {to}")) };
        let home = match (&before, lent) {
            (Some(before), None) if before.peer_tuple.mirrored() == far => {
                peer.native_places(far.local.ip(), far.remote.ip())
            }
            _ => None,
        };
        let wire_local_port = match &before {
            // What was said to an owner that presents its ticket again may have come to it before the answer to that:
            // it stays so.
            Some(before) if as_before(before) => Some(before.wire_local_port),
            _ => peer.flow.free_wire_port(wire_port, self.flow.flows().ports()),
        };
        let Some(wire_local_port) = wire_local_port else {
            return failed(format!("flows with {to} have all ports that are left for them"));
        };
        let home = home.unwrap_or(Places { local: peer.flow.places().local, peer: ASTRAY });
        let peer_tuple = before.map_or(far.mirrored(), |before| before.peer_tuple);
        let manner = before.map_or(Manner::default(), |before| before.manner);
        let ports = (wire_local_port, wire_port);
        let entry = FlowEntry { manner, end, ..FlowEntry::new(peer.id(), flow.value(), home, peer_tuple, ports) };
        self.install_moved(now, far, entry, Origin::Restored, Asked::Lead(flow), base);
        None
    }

    /// Has a flow whose socket was moved here be one with its holder. `None`: the result comes with that of an op.
    pub(super) fn adopt_flow(&mut self, now: Time, adopt: &Adopt, base: &mut Base) -> Option<Result<(), String>> {
        let Adopt { name, tuple, flow, wire_port, terms } = *adopt;
        let (own, holder) = (base.attachments().has(&tuple.local.ip()), flow.peer());
        if holder == base.public_key() {
            return Some(Ok(()));
        }
        let peer = self.peer_of(&holder);
        let Some(peer) = peer else { return Some(Err(format!("{holder} is not known any more"))) };
        if peer.flow.named(flow.value()).is_some_and(|known| known != tuple) {
            return Some(Err(format!("another flow is called {flow}")));
        }
        // Where the holder finds the flow native, and sends it so, this host does too, once it is told that it is where
        // the holder has seen it: an update of a session that was made anew meanwhile may not be answered yet.
        let agreed = terms.home.map(|(holder, acceptor)| Places { local: acceptor, peer: holder });
        let home = agreed.filter(|home| peer.may_be_native(home.local, tuple.local.ip(), tuple.remote.ip()));
        let home = home.unwrap_or(Places { local: peer.flow.places().local, peer: ASTRAY });
        let ports = (wire_port, terms.wire_port);
        let entry = FlowEntry {
            end: if own { LocalEnd::Here } else { LocalEnd::Endpoint },
            passed_on: terms.passed_on,
            hidden: terms.hidden,
            ..FlowEntry::new(peer.id(), flow.value(), home, terms.far, ports)
        };
        self.install_moved(now, tuple, entry, Origin::Restored, Asked::Adopt(name), base);
        self.find_carrier(now, entry.peer, base);
        None
    }

    /// A flow is not this host's business any more.
    pub(super) fn release_flow(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) {
        let peer = self.flow.flows().entry(flow).map(|entry| entry.peer);
        self.flow.forget_flow(flow, base);
        if let Some(peer) = peer {
            self.flow.idle_later(now, peer, base);
            self.refresh_sets(base);
        }
    }

    /// Wakes the senders of flows that were bound to other peers meanwhile. To look for them among very many, whosever
    /// these are, takes as long as to lead hundreds elsewhere, so that is done once for all that go to a peer within a
    /// while; they send again by themselves at about that time.
    pub(super) fn wake_rebound(&mut self, now: Time, base: &mut Base) {
        let few = self.flow.flows().len() <= WOKEN_AT_ONCE;
        for id in self.flow.rebound().clone() {
            if few {
                self.flow.wake_flows(now, id, base);
            } else {
                base.set_timer_earlier(Timer::Wake(id), now + REBOUND_PAUSE);
            }
        }
    }

    fn peer_of(&self, key: &PublicKey) -> Option<BoundRef<'_>> {
        self.flow.session().with_key(key).and_then(|id| bound!(self, &id))
    }

    /// Which flow it is that this host and a peer call so, as its socket has it.
    fn flow_named(&self, flow: &FlowName) -> Option<FlowTuple> {
        self.peer_of(&flow.peer())?.flow.named(flow.value())
    }

    /// The data plane knows a flow that this host holds, or could not be told.
    pub(crate) fn handle_led(&mut self, flow: FlowName, result: Result<(), String>, base: &mut Base) {
        let entry = self.flow_named(&flow).and_then(|far| self.flow.flows().entry(&far)).copied();
        let is_own = |entry: &FlowEntry| matches!(entry.end, LocalEnd::Here | LocalEnd::Passing);
        if result.is_ok()
            && let Some(entry) = entry.filter(is_own)
        {
            // Where the former place was lost with its host, senders wait. The new owner hears first.
            self.flow.add_rebound(entry.peer);
        }
        let terms = self.terms_of(&flow).ok_or_else(|| "the flow is over".to_owned());
        let result = result.and(terms).map_err(Unled::Failed);
        base.signal(Signal::Led { flow, result });
    }

    /// How the owner of a flow that this host holds is to go on with it, unless its far end is not to learn where its
    /// socket is.
    fn terms_of(&self, flow: &FlowName) -> Option<Terms> {
        let far = self.flow_named(flow)?;
        let entry = self.flow.flows().entry(&far)?;
        let home = (entry.home.peer != ASTRAY).then_some((entry.home.local, entry.home.peer));
        let passed_on = entry.end == LocalEnd::Behind;
        Some(Terms { far, wire_port: entry.wire_local_port, home, passed_on, hidden: false })
    }
}

impl Around for BindingLayer {
    fn has_session(&self, with: &PublicKey) -> bool {
        self.peer_of(with).is_some_and(|peer| peer.has_session())
    }

    fn flow(&self, name: &FlowName) -> Option<FlowTuple> {
        self.flow_named(name)
    }

    fn is_known(&self, flow: &FlowTuple) -> bool {
        self.flow.flows().get(flow).is_some()
    }

    fn partner(&self, flow: &FlowTuple) -> Option<PublicKey> {
        let entry = self.flow.flows().entry(flow)?;
        self.flow.session().key_of(entry.peer)
    }

    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16> {
        let ports = self.flow.flows().ports();
        let peer = self.peer_of(with);
        peer.map_or_else(|| ports.wire_port(|_| true), |peer| peer.flow.free_wire_port(flow.remote.port(), ports))
    }

    fn peer(&self, of: &PublicKey) -> Option<PeerId> {
        self.peer_of(of).map(|peer| peer.id())
    }

    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr> {
        self.peer_of(of).map(|peer| peer.path.remote())
    }
}
