//! Flows whose address is one host's and whose socket is another's (`docs/protocol.md` §11, P-87): the far end, where it runs Whimbrel,
//! introduces them to whoever has the socket, and they go there directly from then on.
//!
//! Three hosts take part. The *far end* finds the host that passes the flow on when it introduces the flow there. That one *refers* it to
//! the *owner* of the socket, and tells the owner. An owner that has opened the connection itself asks the far end to begin.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::{IntroductionRefusal, Message};

use crate::Time;
use crate::flow::{Flow, Origin, Stage};
use crate::introduction::MATURE;
use crate::node::Node;
use crate::op::{Event, FlowEntry, LocalEnd, PeerId};
use crate::outcome::Asked;
use crate::timer::Timer;

/// How long a key counts that somebody has vouched for: in that time there is a session, or there is none.
const VOUCHED: Duration = Duration::from_secs(60);
/// How many of these are remembered.
const VOUCHED_MOST: usize = 1024;
/// How soon a host is asked again that somebody has referred to.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How often an owner asks the far end to introduce a flow.
const REQUESTS: u8 = 3;
/// What users are told where the host that an address leads to passes a flow on for one that cannot be reached.
const NOT_FOUND: &str = "its other end is on another host, which is not to be found";

/// A host that a peer has referred to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vouched {
    /// It counts until then.
    until: Time,
    at: SocketAddr,
    /// When it may be asked for a session again.
    ask: Time,
}

impl Node {
    /// A peer says something of a flow that goes by way of a third host, or is to go directly.
    pub(crate) fn handle_direct(&mut self, now: Time, id: PeerId, message: Message) {
        match message {
            Message::Elsewhere { nonce, key, at } => self.handle_elsewhere(now, id, nonce, PublicKey::from(key), at),
            Message::Sought { name, key, at } => self.handle_sought(now, id, name, PublicKey::from(key), at),
            Message::IntroduceMe { tuple } => self.handle_introduce_me(now, id, &tuple),
            _ => {}
        }
    }

    // ---- the host that passes a flow on

    /// A peer has put its nonce into a flow that this host passes on for another: the two are told of each other, unless the socket is
    /// hidden. Tells whether it is such a flow.
    pub(crate) fn refer(&mut self, id: PeerId, flow: &FlowTuple, nonce: u64) -> bool {
        let Some(entry) = self.flows.get(&flow.mirrored()).filter(|known| !known.closed).and_then(Flow::entry) else {
            return false;
        };
        if entry.end != LocalEnd::Behind || entry.peer == id {
            return false;
        }
        let (name, owner) = (entry.name, entry.peer);
        let (Some(far), Some(near)) = (self.peers.get(&id), self.peers.get(&owner)) else { return false };
        let elsewhere = Message::Elsewhere { nonce, key: *near.key.as_bytes(), at: near.remote };
        let sought = Message::Sought { name, key: *far.key.as_bytes(), at: far.remote };
        if self.hides(name) || !near.has_session() {
            self.refuse_introduction(id, nonce, IntroductionRefusal::Declined);
            return true;
        }
        self.send(id, &[elsewhere]);
        self.send(owner, &[sought]);
        true
    }

    // ---- the far end

    /// The host that a flow leads to passes it on for another, with which it is to be introduced.
    fn handle_elsewhere(&mut self, now: Time, id: PeerId, nonce: u64, key: PublicKey, at: SocketAddr) {
        let Some(&flow) = self.nonces.get(&nonce) else { return };
        let introducing = |known: &Flow| matches!(known.stage, Stage::Introducing { peer, nonce: own, .. } if (peer, own) == (id, nonce));
        if key == self.public_key() || !self.flows.get(&flow).is_some_and(introducing) {
            return;
        }
        self.vouch(now, key, at);
        self.introduce_again(now, &flow);
        if let Some(known) = self.flows.get_mut(&flow).filter(|known| matches!(known.stage, Stage::Open)) {
            known.referred = Some(key);
            self.introduce_elsewhere(now, flow, key);
        }
    }

    /// The owner of the socket at the other end of a flow, which is not at the address that this host knows it by, has itself introduced.
    fn handle_introduce_me(&mut self, now: Time, id: PeerId, tuple: &FlowTuple) {
        let flow = tuple.mirrored();
        let Some(key) = self.peers.get(&id).map(|peer| peer.key) else { return };
        let Some(known) = self.flows.get_mut(&flow).filter(|known| !known.closed) else { return };
        if !matches!(known.stage, Stage::Open | Stage::Failed(_)) || known.again >= 2 * REQUESTS {
            return;
        }
        known.stage = Stage::Open;
        known.again += 1;
        known.referred = Some(key);
        self.introduce_elsewhere(now, flow, key);
    }

    /// Introduces a flow to whoever was named as the owner of the socket at its other end, once there is a session.
    pub(crate) fn introduce_elsewhere(&mut self, now: Time, flow: FlowTuple, key: PublicKey) {
        let owner = self.by_key.get(&key).and_then(|id| self.peers.get(id)).filter(|peer| peer.has_session());
        if let Some(id) = owner.map(|peer| peer.id) {
            self.queue_introduction(now, id, flow);
            return;
        }
        if !self.ask_vouched(now, key) {
            self.fail_introduction(now, &flow, NOT_FOUND);
            return;
        }
        self.young.push_back((now + MATURE, flow));
        self.timers.set_earlier(Timer::Mature, now + MATURE);
    }

    // ---- the owner

    /// The far end of a flow that is passed on for this host runs Whimbrel. It may be behind a NAT, or this host may, so both ask.
    fn handle_sought(&mut self, now: Time, id: PeerId, name: u64, key: PublicKey, at: SocketAddr) {
        let passed_on = |flow: &FlowTuple| self.passed_on(flow).is_some_and(|entry| entry.peer == id);
        let known = self.peers.get(&id).and_then(|peer| peer.named.get(&name)).is_some_and(passed_on);
        if !known || key == self.public_key() {
            return;
        }
        self.vouch(now, key, at);
        if !self.by_key.get(&key).and_then(|id| self.peers.get(id)).is_some_and(|peer| peer.has_session()) {
            self.ask_vouched(now, key);
        }
    }

    /// Whether a flow may be introduced: nobody has, or another host passes it on.
    pub(crate) fn is_introducible(&self, flow: &FlowTuple) -> bool {
        let open = |known: &Flow| !known.closed && matches!(known.stage, Stage::Open);
        self.flows.get(flow).is_some_and(open) || self.passed_on(flow).is_some()
    }

    /// A flow that another host passes on for this one.
    pub(crate) fn passed_on(&self, flow: &FlowTuple) -> Option<&FlowEntry> {
        self.flows.get(flow).filter(|known| !known.closed).and_then(Flow::entry).filter(|entry| entry.passed_on)
    }

    /// Looks whether the far end of a flow that is passed on for this host runs Whimbrel, and asks it to introduce the flow. To be said of
    /// connections that this host has opened: those that others open are introduced by them.
    pub fn seek_far_end(&mut self, now: Time, flow: FlowTuple) {
        if self.passed_on(&flow).is_some() {
            self.want_introduction(now, flow);
        }
    }

    /// The far end of a flow that is passed on for this host is known.
    pub(crate) fn ask_to_be_introduced(&mut self, now: Time, id: PeerId, flow: FlowTuple) {
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.again < REQUESTS) else { return };
        known.again += 1;
        if self.peers.get(&id).is_some_and(|peer| peer.has_session()) {
            self.send(id, &[Message::IntroduceMe { tuple: flow }]);
        }
        self.young.push_back((now + 3 * MATURE, flow));
        self.timers.set_earlier(Timer::Mature, now + 3 * MATURE);
    }

    // ---- both

    /// Whether a peer was named as the owner of the socket at a flow's other end.
    pub(crate) fn is_referred(&self, flow: &FlowTuple, id: PeerId) -> bool {
        let key = self.peers.get(&id).map(|peer| peer.key);
        key.is_some() && self.flows.get(flow).is_some_and(|known| known.referred == key)
    }

    /// A flow goes from end to end from now on, that another host has passed on. It is at home nowhere.
    pub(crate) fn install_direct(&mut self, now: Time, flow: FlowTuple, entry: FlowEntry, origin: Origin) {
        let former = self.passed_on(&flow).copied();
        let translated = entry.peer_tuple.mirrored() != flow;
        self.install_moved(now, flow, entry, origin, Asked::Install(flow));
        if let Origin::Answered(own) = origin {
            self.nonces.insert(own, flow);
        }
        self.event(Event::FlowIntroduced { flow, peer: entry.peer, translated });
        if let Some(former) = former {
            self.find_carrier(now, entry.peer);
            self.tell_ended(now, former.peer, former.name);
        }
    }

    fn vouch(&mut self, now: Time, key: PublicKey, at: SocketAddr) {
        self.vouched.retain(|_, vouched| vouched.until > now);
        if self.vouched.len() < VOUCHED_MOST || self.vouched.contains_key(&key) {
            let until = now + VOUCHED;
            let vouched = self.vouched.entry(key).or_insert(Vouched { until, at, ask: now });
            (vouched.until, vouched.at) = (until, at);
        }
    }

    /// Asks a host for a session that a peer has vouched for, at most once a second. Tells whether there is hope.
    fn ask_vouched(&mut self, now: Time, key: PublicKey) -> bool {
        let Some(vouched) = self.vouched.get_mut(&key).filter(|vouched| vouched.until > now) else { return false };
        let to = vouched.at;
        if vouched.ask <= now {
            vouched.ask = now + ASKED_AGAIN;
            self.initiate_with_key(now, Knowledge::Known(key), to, key);
        }
        true
    }
}
