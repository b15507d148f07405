//! Saying whose a socket is: the binding of its far end, and the one point of no return.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{Decision, MoveName, Record, Terms, Ticket};

use super::flows::FlowChange;
use super::{Asked, At, FlowName, Limit, MoveEvent, MoveOp, Moves, OpDone, OpFailed, Refusal, SavedHeld};
use crate::Time;
use crate::base::bucket::Bucket;

/// How long a ticket lasts at the least and at the most, in seconds.
const LIFETIME_LEAST: u32 = 5;
const LIFETIME_MOST: u32 = 600;
/// How long a donor may take to learn that its move was committed. It learns it later too, if it asks.
const SETTLED_WITHIN: Duration = Duration::from_secs(86_400);
/// Moves of one flow whose donors have not said that they know: of one donor, and of all. They are saved with each
/// commit.
const UNSETTLED_EACH: usize = 2;
const UNSETTLED_MOST: usize = 16;
/// So often a flow that has moved may be moved again, at once and in what pauses, and all such together (P-143).
const AGAIN_EACH: (f64, Duration) = (64.0, Duration::from_millis(200));
pub(super) const AGAIN_ALL: (f64, Duration) = (1024.0, Duration::from_millis(10));
/// Pause before a flow is led anew that could not be, at first and at the longest. A session with who is to have it
/// ends the pause.
const LED_AGAIN: Duration = Duration::from_millis(500);
const LED_AGAIN_LONGEST: Duration = Duration::from_secs(60);

/// The binding of a flow's far end. Who has the socket is the host of its name (P-132).
#[derive(Debug)]
pub(super) struct Held {
    /// With whom the flow is one as far as the node's table of flows knows: a former owner, until the flow is led to the present one.
    led: PublicKey,
    /// The sequence number of the binding; 0 until there was a commit.
    sequence: u32,
    /// That of the next announcement: those that came to nothing are not used again.
    next: u32,
    /// The move that was committed last; until there is one, nothing is saved.
    last: Option<MoveName>,
    announced: Option<Announcement>,
    /// Moves whose donors have not said that they know.
    unsettled: BTreeMap<MoveName, Unsettled>,
    /// The acceptor that waits to hear that it may go on.
    awaiting: Option<PublicKey>,
    /// It was lent, so it is there until its end, moved or not: the flow as its far end has it, which runs nothing. Else the
    /// far end is this host's own.
    lent: Option<FlowTuple>,
    /// The owner's port in rewritten packets.
    wire_port: u16,
    /// The far end is not told where the socket is (P-87).
    hidden: bool,
    /// Its owner says that the socket has ended: packets are passed on still, but nothing depends on it (P-121).
    ending: bool,
    /// The flow is over; what remains is to be settled.
    over: bool,
    /// A daemon before this one has led it: the data plane knows it as it is.
    restored: bool,
    /// It could not be led so often, and is led anew then.
    unled: u32,
    led_again: Option<Time>,
    /// How often it may be moved yet.
    again: Bucket,
    /// It is this host's since another move has brought it along, and has not been presented.
    along_here: bool,
}

/// A donor that has not said that it knows.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    /// It is waited for until then.
    until: Time,
    /// Where it is to be told.
    donor_at: Option<SocketAddr>,
    /// There is a stream to it as long. Whom nothing is expected of asks by itself: keys are free.
    awaited: bool,
}

/// A move that may be committed.
#[derive(Debug)]
pub(super) struct Announcement {
    name: MoveName,
    acceptor: PublicKey,
    lifetime: u32,
    until: Time,
    /// The acceptor's port in rewritten packets, once it has presented the ticket.
    wire_port: u16,
    /// The commit is being saved: it is decided when that is done.
    keeping: bool,
    /// The donor has asked for it back meanwhile; whether its socket is gone.
    recalled: Option<bool>,
    /// The acceptor has lost its copy meanwhile.
    surrendered: bool,
    /// The donor's move that brings this one along.
    after: Option<u64>,
    /// It is committed along with that one, and not since its own ticket was presented.
    along: bool,
}

impl Announcement {
    /// Of a tenant that names a connection of its lease: nothing is waited for, and being kept it is decided.
    pub(super) fn claim(now: Time, name: MoveName, tenant: PublicKey, wire_port: u16) -> Self {
        let (keeping, recalled, surrendered, after, along) = (true, None, false, None, false);
        Self {
            name,
            acceptor: tenant,
            lifetime: 0,
            until: now,
            wire_port,
            keeping,
            recalled,
            surrendered,
            after,
            along,
        }
    }
}

/// An endpoint whose socket without another end this host has lent out, as a part of a lease or as one of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// What it is called with its owner.
    pub(super) flow: FlowName,
    /// A move of it is announced.
    moving: bool,
}

impl Part {
    /// Whether it is this host's and stays so.
    pub(super) fn rests_with(&self, host: &PublicKey) -> bool {
        self.flow.peer() == *host && !self.moving
    }
}

impl Held {
    /// Announces a move, and tells the sequence number that its commit will have.
    pub(super) fn announce(&mut self, announcement: Announcement) -> u32 {
        self.announced = Some(announcement);
        self.next
    }

    /// The flow as its far end has it, where it is lent.
    pub(super) fn lent(&self) -> Option<FlowTuple> {
        self.lent
    }

    /// For the [table](super::held::Table) alone, which finds it by that. Gives what it was before.
    pub(super) fn set_lent(&mut self, far: Option<FlowTuple>) -> Option<FlowTuple> {
        std::mem::replace(&mut self.lent, far)
    }

    /// Whether this move was the last word about the flow.
    pub(super) fn was_last(&self, name: MoveName) -> bool {
        self.last == Some(name)
    }

    /// Who had the socket before, as far as anything may still be led there.
    pub(super) fn formerly(&self) -> impl Iterator<Item = PublicKey> + use<> {
        self.last.map(|last| PublicKey::from(last.donor)).into_iter().chain([self.led])
    }

    /// Whether a move to a host is being kept.
    fn goes_to(&self, host: &PublicKey) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.keeping && announced.acceptor == *host)
    }

    /// Whether the far end is not to learn where the socket is.
    pub(super) fn hide(&mut self, hidden: bool) {
        self.hidden = hidden;
    }

    /// Whether this claim is being kept.
    pub(super) fn is_claimed(&self, name: MoveName) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.name == name)
    }

    /// The flow, if this host passes packets on for another. That of a socket without another end is lent (P-96).
    pub(super) fn passed_on(&self) -> Option<FlowTuple> {
        let connected = self.lent.filter(|far| !far.mirrored().is_unconnected());
        connected.filter(|_| !self.over && !self.ending)
    }

    /// The endpoint of a socket without another end that is not with this host any more.
    pub(super) fn moved_endpoint(&self) -> Option<FlowTuple> {
        self.lent.filter(|far| far.mirrored().is_unconnected() && self.last.is_some() && !self.over)
    }

    /// Whether it is this connection, claimed by the host that has it, and rests with that.
    fn is_claim(&self, far: &FlowTuple, owner: &PublicKey) -> bool {
        let by = self.last.is_some_and(|last| last.donor == *owner.as_bytes());
        self.lent.as_ref() == Some(far) && by && !self.over && self.announced.is_none()
    }

    /// Whether nothing that comes for it is this host's own.
    fn is_lent(&self) -> bool {
        // That of a socket without another end is a lease, which ends as such (P-96).
        !self.over && self.lent.is_some_and(|far| !far.mirrored().is_unconnected())
    }

    fn waits_for(&self) -> Vec<PublicKey> {
        let awaited = self.unsettled.iter().filter(|(_, of)| of.awaited);
        awaited.map(|(name, _)| PublicKey::from(name.donor)).collect()
    }

    fn is_empty(&self) -> bool {
        self.announced.is_none()
            && self.unsettled.is_empty()
            && self.awaiting.is_none()
            && (self.last.is_none() && self.lent.is_none() || self.over)
    }

    fn saved(&self, flow: FlowName) -> Option<SavedHeld> {
        let unsettled = self.unsettled.iter().map(|(name, of)| (*name, of.donor_at)).collect();
        let (far, wire_port) = (self.lent, self.wire_port);
        self.last.map(|last| SavedHeld {
            flow,
            far,
            wire_port,
            sequence: self.sequence,
            last,
            unsettled,
            hidden: self.hidden,
            ending: self.ending,
        })
    }
}

impl Moves {
    /// Whether a flow is its host's to give away, as far as this host can tell.
    fn is_owned(&self, at: At<'_>, flow: &FlowName) -> bool {
        match self.held.get(flow) {
            Some(held) => !held.over,
            // What it has given away may not be led to another yet.
            None if self.alike(flow).any(|(_, held)| held.led == flow.peer()) => false,
            None => flow.peer() == self.me() || at.around.flow(flow).is_some(),
        }
    }

    /// The flows that are called as this one is, be it with other hosts.
    fn alike(&self, flow: &FlowName) -> impl Iterator<Item = (&FlowName, &Held)> {
        self.held.range(FlowName::alike(flow.value()))
    }

    /// Whether a host has, had last or is about to have another flow under a name than the one that is called `but` now (P-132). Those that
    /// it had are at it still as far as the table of flows, or the journal, may know.
    pub(super) fn is_taken(&self, at: At<'_>, flow: &FlowName, but: Option<&FlowName>) -> bool {
        let host = flow.peer();
        let has = |(name, held): (&FlowName, &Held)| {
            name.peer() == host || held.goes_to(&host) || held.formerly().any(|former| former == host)
        };
        let back = but.and_then(|but| self.held.get(but)).is_some_and(|held| held.led == host);
        self.alike(flow).filter(|(name, _)| Some(*name) != but).any(has) || !back && at.around.flow(flow).is_some()
    }

    /// Has a flow be held that may be already.
    pub(super) fn hold(&mut self, flow: FlowName) {
        if self.held.contains_key(&flow) {
            return;
        }
        let held = Held {
            led: flow.peer(),
            sequence: 0,
            next: 1,
            last: None,
            announced: None,
            unsettled: BTreeMap::new(),
            awaiting: None,
            lent: None,
            wire_port: 0,
            hidden: false,
            ending: false,
            over: false,
            restored: false,
            unled: 0,
            led_again: None,
            again: Bucket::of(AGAIN_EACH.0, AGAIN_EACH.1),
            along_here: false,
        };
        self.held.insert(flow, held);
    }

    /// A flow is lent to a host. What was moved since is not changed.
    pub(super) fn lend(&mut self, flow: FlowName, far: FlowTuple) {
        if !self.alike(&flow).any(|(_, held)| held.lent == Some(far)) {
            self.hold(flow);
            self.held.set_lent(&flow, Some(far));
        }
    }

    /// A flow of this host's own that it lent to itself for a move does not move.
    pub(super) fn take_in_unmoved(&mut self, flow: FlowName) {
        if self.held.get(&flow).is_some_and(|held| held.last.is_none()) {
            self.held.set_lent(&flow, None);
            self.tidy(flow);
        }
    }

    /// What is to be kept of a flow now. While a commit is being kept that is what counts.
    pub(super) fn held_to_save(&self, flow: FlowName) -> Option<SavedHeld> {
        let held = self.held.get(&flow)?;
        let keeping = held.announced.as_ref().is_some_and(|announced| announced.keeping);
        held.saved(flow).filter(|_| !keeping && !held.is_empty())
    }

    /// Whether the far end of a flow that this host passes on is not to learn where its socket is.
    pub(crate) fn hides(&self, flow: &FlowName) -> bool {
        self.held.get(flow).is_none_or(|held| held.hidden || held.over)
    }

    /// The owner of a flow says that its socket has ended (P-121).
    pub(super) fn handle_ending(&mut self, flow: FlowName) {
        let Some(held) = self.held.get_mut(&flow).filter(|held| !held.over && !held.ending) else { return };
        held.ending = true;
        // A daemon after this one would count it, and be told only when it is over.
        if let Some(saved) = self.held_to_save(flow) {
            self.effect("keeping that a socket has ended", MoveOp::SaveHeld(vec![saved]));
        }
    }

    /// Whether the socket of a flow that this host passes on has ended.
    pub(crate) fn is_ending(&self, flow: &FlowName) -> bool {
        self.held.get(flow).is_some_and(|held| held.ending)
    }

    /// A socket with another host's flow has ended here: its holder need not count it any more.
    pub(crate) fn say_ending(&mut self, at: At<'_>, flow: FlowName) {
        self.say(at, flow.peer(), Record::Ending { flow: flow.value() });
    }

    /// Forgets what nothing depends on.
    fn tidy(&mut self, flow: FlowName) {
        if let Some(held) = self.held.get(&flow).filter(|held| held.is_empty()) {
            let (saved, led_again) = (held.last.is_some(), held.led_again);
            self.held.remove(&flow);
            if let Some(when) = led_again {
                self.limits.remove(&(when, Limit::Lead(flow)));
            }
            if saved {
                self.effect("forgetting a flow that was moved", MoveOp::ForgetHeld { flow });
            }
        }
    }

    /// A daemon before this one held a flow that was moved.
    pub(super) fn restore_held(&mut self, at: At<'_>, saved: &SavedHeld) {
        let until = at.now + SETTLED_WITHIN;
        let unsettled_of = |(name, donor_at): &(MoveName, Option<SocketAddr>)| {
            let awaited = self.expects(&PublicKey::from(name.donor));
            (*name, Unsettled { until, donor_at: *donor_at, awaited })
        };
        let unsettled: BTreeMap<MoveName, Unsettled> = saved.unsettled.iter().map(unsettled_of).collect();
        for (name, of) in &unsettled {
            self.settling.insert(*name, saved.flow);
            self.hints.extend(of.donor_at.map(|hint| (PublicKey::from(name.donor), hint)));
        }
        let held = Held {
            led: PublicKey::from(saved.last.donor),
            sequence: saved.sequence,
            next: saved.sequence.saturating_add(1),
            last: Some(saved.last),
            announced: None,
            unsettled,
            awaiting: None,
            lent: saved.far,
            wire_port: saved.wire_port,
            hidden: saved.hidden,
            ending: saved.ending,
            over: false,
            restored: true,
            unled: 0,
            led_again: None,
            again: Bucket::of(AGAIN_EACH.0, AGAIN_EACH.1),
            along_here: saved.flow.peer() == self.me(),
        };
        if !held.unsettled.is_empty() {
            self.limit(until, Limit::Unsettled(saved.flow));
        }
        self.wait(at, &[], &held.waits_for());
        self.held.insert(saved.flow, held);
        self.lead(at, saved.flow);
        self.say_unsettled(at, saved.flow, None);
    }

    /// Tells donors that their moves are committed.
    pub(super) fn say_unsettled(&mut self, at: At<'_>, flow: FlowName, to: Option<PublicKey>) {
        let Some(held) = self.held.get(&flow) else { return };
        let names: Vec<MoveName> = held.unsettled.keys().copied().collect();
        for name in names {
            let donor = PublicKey::from(name.donor);
            if to.is_none_or(|to| to == donor) {
                self.say(at, donor, Record::Decided { number: name.number, decision: Decision::Committed });
            }
        }
    }

    /// A donor announces a move.
    pub(super) fn handle_announce(
        &mut self,
        at: At<'_>,
        number: u64,
        flow: FlowName,
        lifetime: u32,
        acceptor: PublicKey,
    ) {
        let donor = flow.peer();
        let name = MoveName { donor: *donor.as_bytes(), number };
        let lifetime = lifetime.clamp(LIFETIME_LEAST, LIFETIME_MOST);
        let announced = |sequence, refusal| Record::Announced { number: name.number, sequence, lifetime, refusal };
        let lent = self.held.get(&flow).is_some_and(|held| held.lent.is_some());
        let refusal = if !self.config.enabled || acceptor == donor {
            Some(Refusal::NotAllowed)
        } else if !self.is_owned(at, &flow) {
            Some(Refusal::NoSuchFlow)
        } else if acceptor == self.me() && !lent {
            Some(Refusal::FarEnd)
        } else if self.is_taken(at, &flow.with(acceptor), Some(&flow)) {
            Some(Refusal::Taken)
        } else if !self.has_room_for(&flow) {
            Some(Refusal::NoRoom)
        } else if !self.may_move_again(at, &flow, name) {
            Some(Refusal::Busy)
        } else {
            None
        };
        if refusal.is_some() {
            self.say(at, donor, announced(0, refusal));
            return;
        }
        let until = at.now + Duration::from_secs(u64::from(lifetime));
        self.hold(flow);
        let Some(held) = self.held.get_mut(&flow) else { return };
        match &held.announced {
            Some(before) if before.name == name && before.acceptor == acceptor => {
                let record = announced(held.next, None);
                self.say(at, donor, record);
                return;
            }
            Some(before) if before.keeping => {
                self.say(at, donor, announced(0, Some(Refusal::Busy)));
                return;
            }
            // Tickets for it are not good any more.
            Some(_) => held.next = held.next.saturating_add(1),
            None => {}
        }
        held.announced = Some(Announcement {
            name,
            acceptor,
            lifetime,
            until,
            wire_port: 0,
            keeping: false,
            recalled: None,
            surrendered: false,
            after: None,
            along: false,
        });
        let sequence = held.next;
        self.held.leave_behind(&flow);
        self.limit(until, Limit::Announcement(flow));
        self.say(at, donor, announced(sequence, None));
    }

    /// Whether one more flow may be held for a host: one host's leave room for those of others.
    pub(super) fn has_room_for(&self, flow: &FlowName) -> bool {
        let (most, all) = (self.config.most, self.held.len());
        self.held.contains_key(flow) || all < most.saturating_mul(4) && self.held.count_of(&flow.peer()) < most
    }

    /// Whether a flow may be moved again: not if who has had it has not heard yet that it has it no more, nor all the
    /// time. Each commit is saved, told and led elsewhere, and one connection and two keys of one's own are enough for
    /// the next.
    fn may_move_again(&self, at: At<'_>, flow: &FlowName, name: MoveName) -> bool {
        let held = self.held.get(flow).filter(|held| held.last.is_some() && !held.is_claimed(name));
        let Some(held) = held else { return true };
        let donor = *flow.peer().as_bytes();
        let of_donor = MoveName { donor, number: 0 }..=MoveName { donor, number: u64::MAX };
        held.unsettled.len() < UNSETTLED_MOST
            && held.unsettled.range(of_donor).count() < UNSETTLED_EACH
            && held.again.holds(at.now, 1.0)
            && self.moved_again.holds(at.now, 1.0)
    }

    /// A donor says to which of its moves another belongs that it has announced (P-130).
    pub(super) fn handle_belongs(&mut self, name: MoveName, flow: FlowName, first: u64) {
        let announced = self.held.get_mut(&flow).and_then(|held| held.announced.as_mut());
        if let Some(announced) = announced.filter(|of| of.name == name && !of.keeping && first != name.number) {
            announced.after = Some(first);
            self.held.belong(flow, MoveName { number: first, ..name });
        }
    }

    /// Whether a move is that which was announced of a flow, or committed last: no key is computed on account of others.
    fn concerns(&self, flow: FlowName, name: MoveName) -> bool {
        let announced = |held: &Held| held.announced.as_ref().is_some_and(|announced| announced.name == name);
        self.held.get(&flow).is_some_and(|held| held.last == Some(name) || announced(held))
    }

    /// An acceptor presents its ticket (P-74).
    pub(super) fn handle_presented(&mut self, at: At<'_>, from: PublicKey, ticket: Ticket, wire_port: u16) {
        let name = ticket.name;
        let (flow, committed) = self.presented(from, &ticket);
        let genuine = self.concerns(flow, name) && self.is_genuine(&ticket);
        let announced = self.held.get_mut(&flow).and_then(|held| held.announced.as_mut());
        let kept = |of: &&mut Announcement| of.name == name && of.keeping && of.acceptor == from;
        if let Some(announced) = announced.filter(kept) {
            if genuine && announced.along {
                (announced.along, announced.wire_port) = (false, wire_port);
            }
            return;
        }
        let refusal = match self.held.get(&flow) {
            // It did not hear that it is committed.
            Some(held) if committed => {
                let (waits, other_port) = (held.awaiting.is_some(), held.wire_port != wire_port);
                let late = held.along_here;
                if genuine && other_port {
                    self.note_wire_port(flow, wire_port);
                }
                if !waits {
                    self.answer_again(at, flow);
                }
                if late {
                    self.take_here(at, flow);
                }
                return;
            }
            Some(held) => {
                let announced = held.announced.as_ref().filter(|announced| announced.name == name);
                match announced {
                    Some(_) if held.over => Some(Refusal::NoSuchFlow),
                    Some(announced) if announced.acceptor != from || ticket.acceptor != *from.as_bytes() => {
                        Some(Refusal::NotYours)
                    }
                    Some(_) if !genuine => Some(Refusal::Forged),
                    Some(announced) if ticket.sequence != held.next || ticket.lifetime != announced.lifetime => {
                        Some(Refusal::OtherSequence)
                    }
                    Some(announced) if announced.until <= at.now => Some(Refusal::Expired),
                    Some(_) if self.is_taken(at, &flow.with(from), Some(&flow)) => Some(Refusal::Taken),
                    Some(_) => None,
                    None => Some(Refusal::NotAnnounced),
                }
            }
            None => Some(Refusal::NotAnnounced),
        };
        if let Some(refusal) = refusal {
            self.say(at, from, Record::Verdict { name, outcome: Err(refusal) });
            return;
        }
        let along = self.bring_along(at, name, from);
        // The first comes first: where a write is cut short nothing is found that belongs to it without it.
        let all: Vec<SavedHeld> = std::iter::once((flow, wire_port))
            .chain(along)
            .filter_map(|(flow, wire_port)| self.commit_to_save(at, flow, wire_port))
            .collect();
        let asked = Asked::Keep(all.iter().map(|saved| saved.flow.with(PublicKey::from(saved.last.donor))).collect());
        self.op(MoveOp::SaveHeld(all), asked);
    }

    /// What the flow of a ticket is called now, and whether the ticket was used: it is with the acceptor then, and else with the donor.
    fn presented(&self, acceptor: PublicKey, ticket: &Ticket) -> (FlowName, bool) {
        let given = FlowName::given(ticket);
        let taken = given.with(acceptor);
        let committed = self.held.get(&taken).is_some_and(|held| held.last == Some(ticket.name));
        (if committed { taken } else { given }, committed)
    }

    /// What is to be kept of a flow whose move is to be committed: from now on it is being kept.
    fn commit_to_save(&mut self, at: At<'_>, flow: FlowName, wire_port: u16) -> Option<SavedHeld> {
        let held = self.held.get_mut(&flow)?;
        let announced = held.announced.as_mut()?;
        if held.last.is_some() {
            held.again.take(at.now);
            self.moved_again.take(at.now);
        }
        (announced.keeping, announced.wire_port) = (true, wire_port);
        let (name, acceptor) = (announced.name, announced.acceptor);
        let (donor, far, hidden) = (flow.peer(), held.lent, held.hidden);
        let before: Vec<_> = held.unsettled.iter().map(|(name, of)| (*name, of.donor_at)).collect();
        let donor_at = (donor != self.key.public()).then(|| at.around.whereabouts(&donor)).flatten();
        let unsettled = before.into_iter().chain([(name, donor_at)]).collect();
        let (flow, sequence, ending) = (flow.with(acceptor), held.next, false);
        Some(SavedHeld { flow, far, wire_port, sequence, last: name, unsettled, hidden, ending })
    }

    /// An owner says by which port packets come to it, where that was not known when it became the owner.
    fn note_wire_port(&mut self, flow: FlowName, wire_port: u16) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.wire_port = wire_port;
        }
        if let Some(saved) = self.held_to_save(flow) {
            self.effect("keeping whose a socket is", MoveOp::SaveHeld(vec![saved]));
        }
    }

    /// A socket that came here was woken by a daemon before this one. Where this host is the holder too, it presents its ticket no more.
    pub(super) fn take_woken(&mut self, at: At<'_>, ticket: &Ticket) {
        let (flow, committed) = self.presented(self.me(), ticket);
        if committed && self.held.get(&flow).is_some_and(|held| held.along_here) {
            self.take_here(at, flow);
        }
    }

    fn take_here(&mut self, at: At<'_>, flow: FlowName) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.along_here = false;
            let far = held.lent.or_else(|| at.around.flow(&flow.with(held.led)));
            self.event(MoveEvent::Rebound { flow, far });
        }
    }

    /// The flows whose announced moves another brings along (P-130), with their owner's port in rewritten packets.
    fn bring_along(&mut self, at: At<'_>, first: MoveName, acceptor: PublicKey) -> Vec<(FlowName, u16)> {
        let mut flows = Vec::new();
        let belongs = |of: &Announcement| {
            of.after == Some(first.number) && of.acceptor == acceptor && !of.keeping && at.now < of.until
        };
        for flow in self.held.along(&first) {
            let held = self.held.get(&flow).filter(|held| !held.over);
            if !held.and_then(|held| held.announced.as_ref()).is_some_and(belongs) {
                continue;
            }
            if self.is_taken(at, &flow.with(acceptor), Some(&flow)) {
                continue;
            }
            let Some(held) = self.held.get_mut(&flow) else { continue };
            let Some(announced) = held.announced.as_mut() else { continue };
            announced.along = true;
            // It says which port is its own when it presents its ticket. Until then that of the socket is as good a guess as any.
            let far = held.lent.or_else(|| at.around.flow(&flow));
            flows.push((flow, far.map_or(0, |far| far.remote.port())));
        }
        flows
    }

    /// The commit of a flow that was called so till then is kept: it is decided. Or it could not be.
    pub(super) fn handle_kept(&mut self, at: At<'_>, flow: FlowName, result: Result<OpDone, OpFailed>) {
        let (me, donor) = (self.me(), flow.peer());
        let expected = self.expects(&donor);
        let Some(held) = self.held.get_mut(&flow) else { return };
        let Some(announced) = held.announced.take_if(|announced| announced.keeping) else { return };
        let Announcement { name, acceptor, wire_port, recalled, surrendered, after: first, along, .. } = announced;
        let here = along && acceptor == me;
        let sequence = held.next;
        held.next = sequence.saturating_add(1);
        // A claim: it has no donor that would have to know.
        let claimed = donor == acceptor;
        if let Err(failed) = result {
            self.event(MoveEvent::OpFailed { what: "keeping whose a socket is", error: failed.sentence });
            self.say(at, acceptor, Record::Verdict { name, outcome: Err(Refusal::NotKept) });
            if claimed {
                self.end_flow(flow);
                return;
            }
            if donor == self.me() {
                self.note_not_kept(name.number);
            }
            self.say(at, donor, Record::Decided { number: name.number, decision: Decision::Revoked });
            if recalled == Some(true) {
                self.close_far_end(flow);
            }
            self.tidy(flow);
            return;
        }
        let before = held.waits_for();
        held.ending = false;
        held.restored = false;
        held.wire_port = wire_port;
        held.sequence = sequence;
        held.last = Some(name);
        held.awaiting = (!along).then_some(acceptor);
        // What this host takes itself it has when it presents its ticket, at once or once it is started anew: then it is held no more.
        held.along_here = here;
        if claimed {
            self.lead(at, flow);
            return;
        }
        let until = at.now + SETTLED_WITHIN;
        let donor_at = at.around.whereabouts(&donor);
        held.unsettled.insert(name, Unsettled { until, donor_at, awaited: expected });
        let after = held.waits_for();
        let far = held.lent.or_else(|| at.around.flow(&flow.with(held.led)));
        let flow = self.pass_on(flow, acceptor);
        self.wait(at, &before, &after);
        self.say(at, donor, Record::Decided { number: name.number, decision: Decision::Committed });
        if !here {
            self.event(MoveEvent::Rebound { flow, far });
        }
        if first.is_some() && !along {
            // Another port may have been kept.
            self.note_wire_port(flow, wire_port);
        }
        if surrendered {
            self.lose(at, flow, name);
        } else if !here {
            self.lead(at, flow);
        }
    }

    /// A flow is another host's from now on, and is called by that.
    fn pass_on(&mut self, flow: FlowName, to: PublicKey) -> FlowName {
        let now = flow.with(to);
        if let Some(mut held) = self.held.remove(&flow) {
            if let Some(when) = held.led_again.take() {
                self.limits.remove(&(when, Limit::Lead(flow)));
            }
            held.unled = 0;
            for (name, of) in &held.unsettled {
                self.settling.insert(*name, now);
                self.limits.remove(&(of.until, Limit::Unsettled(flow)));
                self.limits.insert((of.until, Limit::Unsettled(now)));
            }
            self.held.insert(now, held);
        }
        now
    }

    /// An acceptor that did not hear that it is committed is told, once more, how it goes on.
    pub(super) fn answer_again(&mut self, at: At<'_>, flow: FlowName) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.awaiting = Some(flow.peer());
            self.lead(at, flow);
        }
    }

    /// Has the flow's binding name its owner.
    pub(super) fn lead(&mut self, at: At<'_>, flow: FlowName) {
        match self.held.get(&flow) {
            Some(held) if held.last.is_some() && !held.over => {
                let (from, wire_port, lent, restored) = (flow.with(held.led), held.wire_port, held.lent, held.restored);
                self.changes.push_back(FlowChange::Lead { flow, from, wire_port, lent, restored });
            }
            // There is nothing to lead any more.
            _ => self.handle_led(at, flow, Err("the flow is over".to_owned())),
        }
    }

    /// There is a session with a host: what could not be led there is now.
    pub(super) fn lead_waiting(&mut self, at: At<'_>, with: PublicKey) {
        let waiting = self.held.of(&with).filter(|(_, held)| held.led_again.is_some());
        let waiting: Vec<FlowName> = waiting.map(|(flow, _)| *flow).collect();
        waiting.into_iter().for_each(|flow| self.lead(at, flow));
    }

    /// The binding names the owner, or could not be made to.
    pub(super) fn handle_led(&mut self, at: At<'_>, flow: FlowName, result: Result<Terms, String>) {
        let Some(held) = self.held.get_mut(&flow) else { return };
        match result {
            Ok(terms) => {
                held.led = flow.peer();
                held.unled = 0;
                if let Some(when) = held.led_again.take() {
                    self.limits.remove(&(when, Limit::Lead(flow)));
                }
                if let (Some(acceptor), Some(name)) = (held.awaiting.take(), held.last) {
                    self.say(at, acceptor, Record::Verdict { name, outcome: Ok(terms) });
                }
            }
            Err(_) if held.over => {
                if let (Some(acceptor), Some(name)) = (held.awaiting.take(), held.last) {
                    self.say(at, acceptor, Record::Verdict { name, outcome: Err(Refusal::NoSuchFlow) });
                }
            }
            Err(error) => {
                let pause = (LED_AGAIN * 2u32.pow(held.unled.min(10))).min(LED_AGAIN_LONGEST);
                let first = held.unled == 0;
                held.unled = held.unled.saturating_add(1);
                if let Some(before) = held.led_again.replace(at.now + pause) {
                    self.limits.remove(&(before, Limit::Lead(flow)));
                }
                self.limit(at.now + pause, Limit::Lead(flow));
                if first {
                    self.event(MoveEvent::OpFailed { what: "leading a flow to where it was moved", error });
                }
            }
        }
        self.tidy(flow);
    }

    /// A donor wants a move back (P-75).
    pub(super) fn handle_recall(&mut self, at: At<'_>, number: u64, flow: FlowName, gone: bool) {
        let donor = flow.peer();
        let name = MoveName { donor: *donor.as_bytes(), number };
        let owned = self.is_owned(at, &flow);
        let decided = |decision| Record::Decided { number, decision };
        // Of a move that is committed the flow is another host's: that it was the donor's, who alone can name the move, is known by the move.
        let committed = self.settling.contains_key(&name) || self.alike(&flow).any(|(_, held)| held.last == Some(name));
        let decision = match self.held.get_mut(&flow) {
            _ if committed => Decision::Committed,
            Some(held) if !held.over => {
                match &mut held.announced {
                    // It is told when that is known.
                    Some(announced) if announced.keeping && announced.name == name => {
                        announced.recalled = Some(gone);
                        return;
                    }
                    Some(announced) if announced.name == name => {
                        held.announced = None;
                        held.next = held.next.saturating_add(1);
                    }
                    _ => {}
                }
                Decision::Revoked
            }
            Some(_) => Decision::NoSuchFlow,
            None if owned => Decision::Revoked,
            None => Decision::NoSuchFlow,
        };
        if decision == Decision::Revoked && gone {
            self.close_far_end(flow);
        }
        self.say(at, donor, decided(decision));
        self.tidy(flow);
    }

    /// A donor has acted on what was decided.
    pub(super) fn handle_settled(&mut self, at: At<'_>, name: MoveName) {
        if let Some(flow) = self.settling.get(&name).copied() {
            self.settle(at, flow, &[name]);
        }
    }

    fn settle(&mut self, at: At<'_>, flow: FlowName, names: &[MoveName]) {
        let Some(held) = self.held.get_mut(&flow) else { return };
        let before = held.waits_for();
        for name in names {
            self.settling.remove(name);
            if let Some(of) = held.unsettled.remove(name) {
                self.limits.remove(&(of.until, Limit::Unsettled(flow)));
            }
        }
        let Some(held) = self.held.get(&flow) else { return };
        let after = held.waits_for();
        // A limit may have been that of two.
        let next = held.unsettled.values().map(|of| of.until).min();
        self.limits.extend(next.map(|until| (until, Limit::Unsettled(flow))));
        self.wait(at, &before, &after);
        if let Some(saved) = self.held_to_save(flow) {
            self.effect("keeping whose a socket is", MoveOp::SaveHeld(vec![saved]));
        }
        self.tidy(flow);
    }

    /// An acceptor's copy is lost.
    pub(super) fn handle_surrender(&mut self, at: At<'_>, from: PublicKey, ticket: Ticket) {
        let name = ticket.name;
        let (flow, committed) = self.presented(from, &ticket);
        let genuine = self.concerns(flow, name) && self.is_genuine(&ticket);
        let Some(held) = self.held.get_mut(&flow).filter(|_| genuine) else {
            self.say(at, from, Record::Verdict { name, outcome: Err(Refusal::NotAnnounced) });
            return;
        };
        if committed {
            self.lose(at, flow, name);
            return;
        }
        if let Some(announced) = &mut held.announced
            && announced.name == name
            && announced.acceptor == from
        {
            if announced.keeping {
                announced.surrendered = true;
                return;
            }
            held.announced = None;
            held.next = held.next.saturating_add(1);
            self.say(at, flow.peer(), Record::Decided { number: name.number, decision: Decision::Revoked });
        }
        self.say(at, from, Record::Verdict { name, outcome: Err(Refusal::Cancelled) });
        self.tidy(flow);
    }

    /// The only copy of a flow's socket is lost.
    fn lose(&mut self, at: At<'_>, flow: FlowName, name: MoveName) {
        self.close_far_end(flow);
        self.say(at, flow.peer(), Record::Verdict { name, outcome: Err(Refusal::Cancelled) });
        self.end_flow(flow);
    }

    fn close_far_end(&mut self, flow: FlowName) {
        // Who runs nothing hears from this host's own stack that there is no such connection, as soon as its packets come there.
        let held = self.held.get(&flow);
        let (lent, flow) = (held.and_then(|held| held.lent), flow.with(held.map_or(flow.peer(), |held| held.led)));
        self.changes.extend(lent.map(|tuple| FlowChange::Release { tuple }));
        self.effect("closing a connection whose socket is lost", MoveOp::CloseFarEnd { flow });
    }

    /// A flow is over: whose it was matters to nobody but a donor that has not heard it yet.
    pub(super) fn end_flow(&mut self, flow: FlowName) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.over = true;
            if held.announced.as_ref().is_some_and(|announced| !announced.keeping) {
                held.announced = None;
            }
            self.tidy(flow);
        }
    }

    /// The name by which a host has claimed a connection that is with it still.
    pub(super) fn claimed_before(&self, far: &FlowTuple, tenant: &PublicKey) -> Option<FlowName> {
        let is_it = |(flow, held): &(&FlowName, &Held)| flow.peer() == *tenant && held.is_claim(far, tenant);
        self.held.with_far(far).find(is_it).map(|(flow, _)| *flow)
    }

    /// Who has a socket without another end of this host's.
    pub(super) fn endpoint_of(&self, end: &FlowTuple) -> Option<Part> {
        let is_it = |held: &Held| !held.over && (held.last.is_some() || held.announced.is_some());
        let (flow, held) = self.held.with_far(&end.mirrored()).find(|(_, held)| is_it(held))?;
        Some(Part { flow: *flow, moving: held.announced.is_some() })
    }

    /// Ends the flows that are passed on for hosts that were revoked (P-105).
    pub(super) fn end_revoked(&mut self) {
        let lent = self.revoked().flat_map(|host| self.held.of(host)).filter(|(_, held)| held.is_lent());
        let over: Vec<FlowName> = lent.map(|(flow, _)| *flow).collect();
        for flow in over {
            let far = self.held.get(&flow).and_then(|held| held.lent);
            self.changes.extend(far.map(|tuple| FlowChange::End { tuple }));
            self.end_flow(flow);
        }
    }

    pub(super) fn handle_announcement_limit(&mut self, at: At<'_>, flow: FlowName) {
        let Some(held) = self.held.get_mut(&flow) else { return };
        let over = |announced: &mut Announcement| announced.until <= at.now && !announced.keeping;
        if held.announced.take_if(over).is_some() {
            held.next = held.next.saturating_add(1);
            self.held.leave_behind(&flow);
            self.tidy(flow);
        }
    }

    pub(super) fn handle_unsettled_limit(&mut self, at: At<'_>, flow: FlowName) {
        let Some(held) = self.held.get(&flow) else { return };
        let late: Vec<MoveName> =
            held.unsettled.iter().filter(|(_, of)| of.until <= at.now).map(|(name, _)| *name).collect();
        if !late.is_empty() {
            self.settle(at, flow, &late);
        }
    }
}
