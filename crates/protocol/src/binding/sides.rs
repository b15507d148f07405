//! Single flows that go by a binding of their own, over a path that is kept ready (P-186 to P-190).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::binding::{Placed, PlacedSeen, PlacedStatus};
use whimbrel_wire::message::Message;
use whimbrel_wire::{BindingNumber, Capabilities, FlowTuple};

use crate::Time;
use crate::base::Base;
use crate::base::op::{
    Binding, BindingId, BindingOp, Carrier, NOWHERE, PeerId, Places, SecondWay, TunnelOp, TunnelPath,
};
use crate::base::output::{Asked, State};
use crate::base::pace::KEEPALIVE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::placed::{Heard, Leading, MOST, PlaceError, Placement, Told, WORDS};
use crate::path::kept::Way;

/// How often the pause between words is doubled after those in close succession.
const RARER: u32 = 4;
/// What a peer has said in a session before it says again so soon after the next one began, or it is over.
const SAID_AGAIN_WITHIN: Duration = Duration::from_secs(10);

impl BindingLayer {
    /// See [`Node::place_flow`](crate::Node::place_flow).
    pub(crate) fn place_flow(
        &mut self,
        now: Time,
        flow: &FlowTuple,
        to: Option<Placement>,
        base: &mut Base,
    ) -> Result<(), PlaceError> {
        let known = self.flow.flows().get(flow).filter(|known| !known.is_closed()).and_then(|known| known.entry());
        let (id, name) = known.map(|entry| (entry.peer, entry.name)).ok_or(PlaceError::UnknownFlow)?;
        if to.is_some_and(|to| !base.attachments().has(&to.from)) {
            return Err(PlaceError::NoSuchAddress);
        }
        let peer = self.peers.get_mut(&id).ok_or(PlaceError::UnknownFlow)?;
        if !peer.sides.place(name, to) {
            // Flows that have ended make room with the next word.
            self.sides_changed(id);
            return Err(PlaceError::Full);
        }
        self.sided.insert(id);
        self.sides_changed(id);
        self.keep_ready(now, id, base);
        Ok(())
    }

    /// A peer says which flows go by one of its bindings (P-186).
    pub(super) fn handle_placed(&mut self, now: Time, id: PeerId, index: u32, placed: &Placed, base: &mut Base) {
        let (greater, suspended) = (self.is_greater(id, base), base.is_suspended());
        let Some(peer) = bound_mut!(self, &id) else { return };
        let count = placed.binding.count_of(!greater).filter(|count| *count <= MOST.into());
        let session = peer.slots().find(|slot| slot.local_index() == index).map(|slot| slot.begun());
        let able = !suspended && peer.flow.away().is_none();
        let needed = !peer.flow.flows().is_empty();
        let Placed { binding, mut sequence, .. } = *placed;
        let status = match (count.and_then(|count| u8::try_from(count).ok()), session) {
            // It may be told of the flow after its end, and says it again.
            (Some(_), Some(_)) if able && !needed && !placed.names.is_empty() => PlacedStatus::Waits,
            (Some(count), Some(since)) if able || placed.names.is_empty() => {
                match peer.binding.sides.hear(now, count, since, placed) {
                    Heard::Before(standing) => standing,
                    Heard::Late(newest) => {
                        sequence = newest;
                        PlacedStatus::NotNewer
                    }
                    Heard::TooMuch => return,
                    Heard::News => {
                        self.sided.insert(id);
                        self.refresh_sides_of(now, id, base);
                        let theirs = self.peers.get(&id).and_then(|peer| peer.sides.theirs.get(&count));
                        theirs.map_or(PlacedStatus::InForce, |theirs| theirs.standing)
                    }
                }
            }
            _ => PlacedStatus::Refused,
        };
        let answer = [Message::PlacedSeen(PlacedSeen { binding, sequence, status })];
        let told = self.flow.path().paths(&id).and_then(|paths| paths.way_told(now, placed.path));
        if let Some(way) = told.filter(|_| placed.duplicated) {
            self.flow.path_mut().send_to(id, way.source, way.remote, &answer, base);
        }
        self.flow.path_mut().send(id, &answer, base);
    }

    /// A peer answers, or says what has become of flows that this host has placed.
    pub(super) fn handle_placed_seen(&mut self, now: Time, id: PeerId, answer: &PlacedSeen, base: &mut Base) {
        let count = answer.binding.count_of(self.is_greater(id, base));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let failed = count.and_then(|count| peer.sides.on_answer(u8::try_from(count).ok()?, answer));
        self.sides_changed(id);
        if let Some(failed) = failed {
            self.flow.path_mut().doubt_kept(now, id, failed, base);
        }
    }

    /// A flow that such a binding leads is sent again in vain: its path is asked at once (P-189). `false`: there is no
    /// such binding.
    pub(super) fn check_side(&mut self, now: Time, id: PeerId, side: u8, base: &mut Base) -> bool {
        let way = self.peers.get(&id).and_then(|peer| peer.sides.path(side));
        if let Some(way) = way {
            self.flow.path_mut().check_kept(now, id, way.id, base);
        }
        way.is_some()
    }

    /// Whether a peer knows of flows that go by two paths (P-262).
    pub(crate) fn duplicates(&self, id: PeerId) -> bool {
        let slot = self.flow.session().peer(&id).and_then(|peer| peer.session());
        slot.is_some_and(|slot| slot.capabilities().contains(Capabilities::DUPLICATION))
    }

    /// The path by which flows go that such a binding leads, and the one by which they go as well.
    pub(crate) fn ways_of(&self, id: PeerId, side: u8) -> Option<(Way, Option<SecondWay>)> {
        let Told { way, second, .. } = self.peers.get(&id)?.sides.ways.get(&side)?;
        Some((*way, *second))
    }

    /// A flow is introduced, maybe anew, and has another name than before.
    pub(super) fn rename_placed(
        &mut self,
        id: PeerId,
        flow: &FlowTuple,
        before: Option<u64>,
        name: u64,
        base: &mut Base,
    ) {
        if self.flow.flows().get(flow).is_some_and(|known| !known.met().is_empty()) {
            base.signal(Signal::FlowNamed { peer: id, flow: *flow });
        }
        if let (Some(peer), Some(before)) = (self.peers.get_mut(&id), before) {
            peer.sides.rename(before, name);
        }
        self.sides_changed(id);
    }

    /// What decides how single flows of a peer are led may be other than it was.
    pub(crate) fn sides_changed(&mut self, id: PeerId) {
        if self.sided.contains(&id) {
            self.sides_due.insert(id);
        }
    }

    /// The same of all peers.
    pub(super) fn all_sides_changed(&mut self) {
        self.sides_due.clone_from(&self.sided);
    }

    /// It is time to say again what is placed, or to see what has become of it.
    pub(super) fn handle_placed_timeout(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = self.peers.get(&id) else { return };
        let next = peer.sides.said_next;
        self.sides_changed(id);
        match next {
            Some(next) if next > now => base.set_timer_earlier(Timer::Placed(id), next),
            Some(_) => self.say_placed(now, id, base),
            None => {}
        }
    }

    /// There is another session with a peer.
    pub(super) fn say_placed_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.sides.is_idle()) {
            peer.sides.say_again();
            self.say_placed(now, id, base);
        }
    }

    /// Tells a peer which flows this host has placed, where it has not answered.
    pub(super) fn say_placed(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let greater = self.is_greater(id, base);
        let Some(peer) = bound_mut!(self, &id).filter(|peer| peer.has_session()) else { return };
        let (all, tries, doubts) = peer.binding.sides.say(greater);
        let way = |to: Placement| peer.path.way_from(to.from).filter(|_| to.duplicated);
        let all: Vec<(Placed, Option<Way>)> = all.into_iter().map(|(to, placed)| (placed, way(to))).collect();
        peer.binding.sides.said_next = tries.map(|tries| {
            let pause = match tries.checked_sub(WORDS) {
                None => peer.path.repeat_after(tries),
                Some(beyond) => KEEPALIVE * 2u32.pow(beyond.min(RARER)),
            };
            now + pause
        });
        if let Some(next) = peer.binding.sides.said_next {
            base.set_timer_earlier(Timer::Placed(id), next);
        }
        if doubts {
            self.flow.path_mut().start_handshake_with(now, id, base);
        }
        // P-37
        for (placed, way) in all {
            // What is in doubt is not to lose the word of that.
            if let Some(way) = way {
                let message = [Message::Placed(placed.clone())];
                self.flow.path_mut().send_to(id, way.source, way.remote, &message, base);
            }
            self.flow.path_mut().send(id, &[Message::Placed(placed)], base);
        }
    }

    /// Makes data plane and tunnel lead single flows as it is to be, as paths, sessions and hosts are now.
    pub(crate) fn refresh_sides(&mut self, now: Time, base: &mut Base) {
        while let Some(id) = self.sides_due.pop_first() {
            self.refresh_sides_of(now, id, base);
        }
    }

    fn refresh_sides_of(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let greater = self.is_greater(id, base);
        let able = base.config().carriers.tunnel && !base.is_suspended();
        let (ended, duplicates) = (self.ended_sides(id), self.duplicates(id));
        let Some(peer) = bound_mut!(self, &id) else {
            self.sided.remove(&id);
            return;
        };
        let session = peer.session().map(|slot| (slot.begun(), slot.remote_index(), slot.local_index()));
        let able = able && peer.has_session() && peer.flow.away().is_none();
        let (sides, path, flow) = (&mut peer.binding.sides, &*peer.path, &*peer.flow);
        if let Some((begun, ..)) = session.filter(|_| able) {
            let over = begun + SAID_AGAIN_WITHIN;
            sides.theirs.retain(|_, theirs| theirs.since >= begun || over > now);
            if sides.theirs.values().any(|theirs| theirs.since < begun) {
                base.set_timer_earlier(Timer::Placed(id), over);
            } else if !sides.theirs.is_empty() {
                // A path of the peer's that it tells of no more counts no more.
                base.set_timer_earlier(Timer::Placed(id), now + KEEPALIVE);
            }
        }
        // Who does not know of that is not asked for it.
        let is_known = |to: Placement| !to.duplicated || duplicates;
        let own_way = |to: Placement| path.way_from(to.from).filter(|_| able && is_known(to));
        let told = |number| path.way_told(now, number).filter(|_| able);
        let before = sides.sequence;
        sides.word(|name| !ended.contains(name), own_way);
        let says = sides.sequence != before;
        let changed = sides.stand(told);
        let mut wanted: BTreeMap<u64, u8> = BTreeMap::new();
        let mut ways: BTreeMap<u8, Told> = BTreeMap::new();
        if let Some((_, send_index, receive_index)) = session {
            for Leading { side, way, duplicated, names } in sides.leading(greater, own_way, told) {
                let known = names.iter().filter(|name| flow.named(**name).is_some());
                wanted.extend(known.map(|name| (*name, side)));
                let other = |second: &SecondWay| (second.source, second.remote) != (way.source, way.remote);
                let second = path.confirmed_way().filter(|second| duplicated && other(second));
                ways.insert(side, Told { way, second, receive_index });
            }
            ways.retain(|side, _| wanted.values().any(|of| of == side));
            for (side, told) in &ways {
                if sides.ways.get(side) != Some(told) {
                    let Told { way, second, .. } = *told;
                    let path = TunnelPath {
                        send_index,
                        source: way.source,
                        link: way.link,
                        remote: way.remote,
                        allowance: None,
                        sealed: true,
                        second,
                    };
                    lead(id, *side, receive_index, path, base);
                }
            }
        }
        let over: Vec<u8> = sides.ways.keys().filter(|side| !ways.contains_key(side)).copied().collect();
        let led: BTreeSet<u64> = wanted.keys().copied().collect();
        let concerned: Vec<(FlowTuple, u8)> = (sides.led.union(&led))
            .filter_map(|name| Some((flow.named(*name)?, wanted.get(name).copied().unwrap_or(0))))
            .collect();
        (sides.ways, sides.led) = (ways, led);
        if sides.is_idle() {
            self.sided.remove(&id);
        }
        let mut back = false;
        for (flow, side) in concerned {
            let moved = self.flow.change_entry(&flow, "leading a connection", |entry| entry.side = side, base);
            back |= moved.is_some() && side == 0;
        }
        for id in over.into_iter().map(|side| BindingId::side(id, side)) {
            base.ask(BindingOp::Remove { id }, Asked::Effect("removing a binding"));
        }
        if back {
            self.flow.wake_soon(now, id, base);
        }
        for (count, sequence, status) in changed {
            let answer = PlacedSeen { binding: BindingNumber::made(count.into(), !greater), sequence, status };
            self.flow.path_mut().send(id, &[Message::PlacedSeen(answer)], base);
        }
        if says {
            self.say_placed(now, id, base);
        }
    }

    /// The names of flows that this host has placed and that are over: their room is others'.
    fn ended_sides(&self, id: PeerId) -> BTreeSet<u64> {
        let Some(peer) = bound!(self, &id) else { return BTreeSet::new() };
        let lives = |flow: FlowTuple| self.flow.flows().get(&flow).is_some_and(|known| !known.is_closed());
        let names = peer.binding.sides.own_names();
        names.filter(|name| !peer.flow.named(*name).is_some_and(lives)).collect()
    }

    /// What could not be put in force is tried again.
    pub(crate) fn lead_again(&mut self, now: Time, id: BindingId, base: &mut Base) {
        if let Some(peer) = self.peers.get_mut(&id.peer()) {
            peer.sides.ways.retain(|side, _| BindingId::side(id.peer(), *side) != id);
            self.refresh_sides_of(now, id.peer(), base);
        }
    }

    /// A peer is forgotten, with what leads single flows of its.
    pub(crate) fn forget_sides(&mut self, id: PeerId, base: &mut Base) {
        self.sided.remove(&id);
        self.sides_due.remove(&id);
        let sides = self.peers.get(&id).into_iter().flat_map(|peer| peer.sides.ways.keys());
        for id in sides.map(|side| BindingId::side(id, *side)) {
            base.ask(BindingOp::Remove { id }, Asked::Effect("removing a binding"));
        }
    }

    /// Whether this host has the greater key of the two.
    fn is_greater(&self, id: PeerId, base: &Base) -> bool {
        self.flow.session().key_of(id).is_some_and(|key| base.public_key() > key)
    }
}

/// Has the tunnel go there by this side of a peer, and the data plane hand all to the tunnel: no flow is at home there.
fn lead(id: PeerId, side: u8, receive_index: u32, path: TunnelPath, base: &mut Base) {
    let id = BindingId::side(id, side);
    let at: SocketAddr = path.remote;
    let nowhere = if at.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let binding = Binding {
        places: Places { local: NOWHERE, peer: NOWHERE },
        carrier: Carrier::Tunnel,
        local_locator: nowhere,
        peer_locator: at.ip(),
        proven: Some(at.ip()),
        source: path.source,
        former: Vec::new(),
        listens: false,
        parked: false,
    };
    base.ask(TunnelOp::SetPath { id, receive_index, path }, Asked::State("leading the tunnel", State::Path(id)));
    let asked = Asked::State("putting a binding in force", State::Binding(id));
    base.ask(BindingOp::Set { id, binding, moved: true }, asked);
}
