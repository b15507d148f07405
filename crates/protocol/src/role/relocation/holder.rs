//! Saying whose a socket is: the binding of its far end, and the one point of no return.
//!
//! ```text
//! commit.rs   a move is announced, its ticket presented, and it is decided
//! leading.rs  the table of flows names the owner, and donors hear what was decided
//! table.rs    all flows that are held
//! ```

mod commit;
mod leading;
mod table;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Record};

use super::tickets::Tickets;
use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{MoveOp, SavedHeld};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::timer::Timers;
use crate::binding::transfer::{AGAIN, Below, Change};

pub(super) use commit::Claim;
use table::Table;

/// How long a donor may take to learn that its move was committed. It learns it later too, if it asks.
const SETTLED_WITHIN: Duration = Duration::from_secs(86_400);
/// So often a flow that has moved may be moved again, at once and in what pauses, and all such together (P-143).
const AGAIN_EACH: (f64, Duration) = (64.0, Duration::from_millis(200));
const AGAIN_ALL: (f64, Duration) = (1024.0, Duration::from_millis(10));

/// All flows whose far ends a host holds.
#[derive(Debug)]
pub(crate) struct Holder {
    tickets: Tickets,
    held: Table,
    /// Flows that have moved before may be moved again so often, all together.
    moved_again: Bucket,
    /// The flows of moves whose donors have not said that they know.
    settling: HashMap<MoveName, FlowName>,
    limits: Timers<Limit>,
}

/// What has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Limit {
    Announcement(FlowName),
    Lead(FlowName),
    Unsettled(FlowName),
    Keep(FlowName),
    Forget(FlowName),
}

/// The binding of a flow's far end. Who has the socket is the host of its name (P-132).
#[derive(Debug)]
struct Held {
    /// With whom the flow is one as far as the node's table of flows knows: a former owner, until the flow is led to
    /// the present one.
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
    owner: Owner,
    /// It was lent, so it is there until its end, moved or not: the flow as its far end has it, which runs nothing.
    /// Else the far end is this host's own.
    lent: Option<FlowTuple>,
    /// The owner's port in rewritten packets.
    wire_port: u16,
    /// The far end is not told where the socket is (P-87).
    hidden: bool,
    life: Life,
    /// A daemon before this one has led it: the data plane knows it as it is.
    restored: bool,
    /// It could not be led so often, and is led anew then.
    unled: u32,
    /// How often it may be moved yet.
    again: Bucket,
}

/// What the present owner has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// All, as far as is known. Exits: a move is committed (`Waiting`, or `Along`); it presents its ticket again
    /// (`Waiting`).
    Informed,
    /// Not yet that it may go on. Exits: the flow is led to it, or over (`Informed`).
    Waiting,
    /// It is this host: another move has brought the flow along, and its ticket has not been presented. Exits: it is
    /// (`Waiting`); its socket was woken by a daemon before this one (`Informed`).
    Along,
}

/// Whether a flow lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Lasting,
    /// Its owner says that the socket has ended: packets are passed on still, but nothing depends on it (P-121).
    Ending,
    /// It is over; what remains is to be settled.
    Over,
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
struct Announcement {
    name: MoveName,
    acceptor: PublicKey,
    lifetime: u32,
    until: Time,
    /// The donor's move that brings this one along.
    after: Option<u64>,
    /// The commit is being saved: it is decided when that is done.
    keeping: Option<Keeping>,
}

/// A commit that is being saved, and what has come meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Keeping {
    /// The acceptor's port in rewritten packets.
    wire_port: u16,
    /// It is committed along with another, and not since its own ticket was presented.
    along: bool,
    /// The donor has asked for it back; whether its socket is gone.
    recalled: Option<bool>,
    /// The acceptor has lost its copy.
    surrendered: bool,
}

impl Held {
    fn new(led: PublicKey) -> Self {
        Self {
            led,
            sequence: 0,
            next: 1,
            last: None,
            announced: None,
            unsettled: BTreeMap::new(),
            owner: Owner::Informed,
            lent: None,
            wire_port: 0,
            hidden: false,
            life: Life::Lasting,
            restored: false,
            unled: 0,
            again: Bucket::of(AGAIN_EACH.0, AGAIN_EACH.1),
        }
    }

    fn is_over(&self) -> bool {
        self.life == Life::Over
    }

    /// Who had the socket before, as far as anything may still be led there.
    fn formerly(&self) -> impl Iterator<Item = PublicKey> + use<> {
        self.last.map(|last| PublicKey::from(last.donor)).into_iter().chain([self.led])
    }

    /// Whether its commit is being kept.
    fn is_kept(&self) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.keeping.is_some())
    }

    /// What was announced comes to nothing, and its number with it.
    fn revoke(&mut self) {
        self.announced = None;
        self.next = self.next.saturating_add(1);
    }

    /// The flow, if this host passes packets on for another. That of a socket without another end is lent (P-96).
    fn passed_on(&self) -> Option<FlowTuple> {
        let connected = self.lent.filter(|far| !far.mirrored().is_unconnected());
        connected.filter(|_| self.life == Life::Lasting)
    }

    /// The endpoint of a socket without another end that is not with this host any more.
    fn moved_endpoint(&self) -> Option<FlowTuple> {
        self.lent.filter(|far| far.mirrored().is_unconnected() && self.last.is_some() && !self.is_over())
    }

    /// Whether nothing that comes for it is this host's own.
    fn is_lent(&self) -> bool {
        // That of a socket without another end is a lease, which ends as such (P-96).
        !self.is_over() && self.lent.is_some_and(|far| !far.mirrored().is_unconnected())
    }

    fn waits_for(&self) -> Vec<PublicKey> {
        let awaited = self.unsettled.iter().filter(|(_, of)| of.awaited);
        awaited.map(|(name, _)| PublicKey::from(name.donor)).collect()
    }

    fn is_empty(&self) -> bool {
        self.announced.is_none()
            && self.unsettled.is_empty()
            && self.owner != Owner::Waiting
            && (self.last.is_none() && self.lent.is_none() || self.is_over())
    }

    fn saved(&self, flow: FlowName) -> Option<SavedHeld> {
        let last = self.last?;
        Some(SavedHeld {
            flow,
            far: self.lent,
            wire_port: self.wire_port,
            sequence: self.sequence,
            last,
            unsettled: self.unsettled.iter().map(|(name, of)| (*name, of.donor_at)).collect(),
            hidden: self.hidden,
            ending: self.life != Life::Lasting,
        })
    }
}

impl Holder {
    pub(super) fn new(tickets: Tickets) -> Self {
        Self {
            tickets,
            held: Table::default(),
            moved_again: Bucket::of(AGAIN_ALL.0, AGAIN_ALL.1),
            settling: HashMap::new(),
            limits: Timers::default(),
        }
    }

    pub(super) fn contains(&self, flow: &FlowName) -> bool {
        self.held.contains_key(flow)
    }

    /// Has a flow be held that may be already.
    fn hold(&mut self, flow: FlowName) {
        if !self.held.contains_key(&flow) {
            self.held.insert(flow, Held::new(flow.peer()));
        }
    }

    /// A flow is lent to a host. What was moved since is not changed.
    pub(crate) fn lend(&mut self, flow: FlowName, far: FlowTuple) {
        if !self.alike(&flow).any(|(_, held)| held.lent == Some(far)) {
            self.hold(flow);
            self.held.set_lent(&flow, Some(far));
        }
    }

    /// A flow of this host's own that it lent to itself for a move does not move.
    pub(super) fn handle_unmoved(&mut self, below: &mut Below<'_>, flow: FlowName) {
        if self.held.get(&flow).is_some_and(|held| held.last.is_none()) {
            self.held.set_lent(&flow, None);
            self.tidy(below, flow);
        }
    }

    /// A daemon before this one held a flow that was moved.
    pub(super) fn restore(&mut self, below: &mut Below<'_>, saved: &SavedHeld) {
        let now = below.now();
        let until = now + SETTLED_WITHIN;
        let mut held = Held::new(PublicKey::from(saved.last.donor));
        for (name, donor_at) in &saved.unsettled {
            let donor = PublicKey::from(name.donor);
            let awaited = below.permits().expects(now, &donor);
            held.unsettled.insert(*name, Unsettled { until, donor_at: *donor_at, awaited });
            self.settling.insert(*name, saved.flow);
            below.hint(donor, *donor_at);
        }
        held.sequence = saved.sequence;
        held.next = saved.sequence.saturating_add(1);
        held.last = Some(saved.last);
        held.lent = saved.far;
        held.wire_port = saved.wire_port;
        held.hidden = saved.hidden;
        held.life = if saved.ending { Life::Ending } else { Life::Lasting };
        held.restored = true;
        held.owner = if saved.flow.peer() == below.me() { Owner::Along } else { Owner::Informed };
        if !held.unsettled.is_empty() {
            self.limits.set(Limit::Unsettled(saved.flow), until);
        }
        below.wait(&[], &held.waits_for());
        self.held.insert(saved.flow, held);
        self.lead(below, saved.flow);
        self.send_unsettled(below, saved.flow, None);
    }

    /// A host has forgotten what it was told: all that it is to answer is said anew.
    pub(super) fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        self.held.keys().for_each(|flow| self.send_unsettled(below, *flow, Some(to)));
    }

    // ---- what others want to know

    /// Whether a flow is its host's to give away, as far as this host can tell.
    fn is_owned(&self, below: &Below<'_>, flow: &FlowName) -> bool {
        match self.held.get(flow) {
            Some(held) => !held.is_over(),
            // What it has given away may not be led to another yet.
            None if self.alike(flow).any(|(_, held)| held.led == flow.peer()) => false,
            None => flow.peer() == below.me() || below.around().flow(flow).is_some(),
        }
    }

    /// The flows that are called as this one is, be it with other hosts.
    fn alike(&self, flow: &FlowName) -> impl Iterator<Item = (&FlowName, &Held)> {
        self.held.range(FlowName::alike(flow.value()))
    }

    /// Whether a host has, had last or is about to have another flow under a name than the one that is called `but` now
    /// (P-132). Those that it had are at it still as far as the table of flows, or the journal, may know.
    fn is_taken(&self, below: &Below<'_>, flow: &FlowName, but: Option<&FlowName>) -> bool {
        let host = flow.peer();
        let goes = |held: &Held| held.is_kept() && held.announced.as_ref().is_some_and(|of| of.acceptor == host);
        let has = |(name, held): (&FlowName, &Held)| {
            name.peer() == host || goes(held) || held.formerly().any(|former| former == host)
        };
        let back = but.and_then(|but| self.held.get(but)).is_some_and(|held| held.led == host);
        let known = || below.around().flow(flow).is_some();
        self.alike(flow).filter(|(name, _)| Some(*name) != but).any(has) || !back && known()
    }

    /// Whether one more flow may be held for a host: one host's leave room for those of others.
    fn has_room_for(&self, below: &Below<'_>, flow: &FlowName) -> bool {
        let (most, all) = (below.config().most, self.held.len());
        self.held.contains_key(flow) || all < most.saturating_mul(4) && self.held.count_of(&flow.peer()) < most
    }

    /// Whether the far end of a flow that this host passes on is not to learn where its socket is.
    pub(crate) fn hides(&self, flow: &FlowName) -> bool {
        self.held.get(flow).is_none_or(|held| held.hidden || held.is_over())
    }

    /// Whether the socket of a flow that this host passes on has ended.
    pub(crate) fn is_ending(&self, flow: &FlowName) -> bool {
        self.held.get(flow).is_some_and(|held| held.life == Life::Ending)
    }

    /// The endpoint of a socket without another end that is with the host of its name now, as its far ends have it.
    pub(crate) fn moved_endpoint(&self, flow: &FlowName) -> Option<FlowTuple> {
        self.held.get(flow)?.moved_endpoint()
    }

    /// The hosts that had the socket of a flow before who has it now.
    fn former_owners(&self, flow: &FlowName) -> Vec<PublicKey> {
        let former = self.held.get(flow).into_iter().flat_map(Held::formerly).filter(|former| *former != flow.peer());
        let mut former: Vec<PublicKey> = former.collect();
        former.sort_unstable();
        former.dedup();
        former
    }

    /// The flows that this host passes on for others, as their far ends have them, by who has them.
    pub(crate) fn passed_on(&self, me: PublicKey) -> impl Iterator<Item = (PublicKey, FlowTuple)> {
        let others = self.held.iter().filter(move |(flow, _)| flow.peer() != me);
        others.filter_map(|(flow, held)| Some((flow.peer(), held.passed_on()?)))
    }

    // ---- keeping, and the end

    /// What is to be kept of a flow now. While a commit is being kept that is what counts.
    fn held_to_save(&self, flow: FlowName) -> Option<SavedHeld> {
        let held = self.held.get(&flow)?;
        held.saved(flow).filter(|_| !held.is_kept() && !held.is_empty())
    }

    fn keep(&self, below: &mut Below<'_>, flow: FlowName) {
        if let Some(saved) = self.held_to_save(flow) {
            below.ask(MoveOp::SaveHeld(vec![saved]), MoveAsked::Held { flow, kept: true });
        }
    }

    fn forget(&self, below: &mut Below<'_>, flow: FlowName) {
        if self.held_to_save(flow).is_none() {
            below.ask(MoveOp::ForgetHeld { flow }, MoveAsked::Held { flow, kept: false });
        }
    }

    /// A flow is kept, or forgotten. Where it failed it is tried again, with what is to be kept by then.
    pub(super) fn handle_held(
        &mut self,
        below: &mut Below<'_>,
        flow: FlowName,
        kept: bool,
        result: Result<OpDone, OpFailed>,
    ) {
        let Err(failed) = result else { return };
        let what = if kept { "keeping whose a socket is" } else { "forgetting a flow that was moved" };
        below.event(MoveEvent::OpFailed { what, error: failed.sentence });
        self.limits.set(if kept { Limit::Keep(flow) } else { Limit::Forget(flow) }, below.now() + AGAIN);
    }

    /// The owner of a flow says that its socket has ended (P-121).
    pub(super) fn handle_ending(&mut self, below: &mut Below<'_>, flow: FlowName) {
        let Some(held) = self.held.get_mut(&flow).filter(|held| held.life == Life::Lasting) else { return };
        held.life = Life::Ending;
        // A daemon after this one would count it, and be told only when it is over.
        self.keep(below, flow);
    }

    /// A flow is over: whose it was matters to nobody but a donor that has not heard it yet.
    pub(crate) fn end_flow(&mut self, below: &mut Below<'_>, flow: FlowName) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.life = Life::Over;
            if !held.is_kept() {
                held.announced = None;
            }
            self.tidy(below, flow);
        }
    }

    /// Ends the flows that are passed on for hosts that were revoked (P-105).
    pub(super) fn end_revoked(&mut self, below: &mut Below<'_>) {
        let lent = below.permits().revoked().flat_map(|host| self.held.of(host)).filter(|(_, held)| held.is_lent());
        let over: Vec<(FlowName, Option<FlowTuple>)> = lent.map(|(flow, held)| (*flow, held.lent)).collect();
        for (flow, far) in over {
            if let Some(tuple) = far {
                below.change(Change::End { tuple });
            }
            self.end_flow(below, flow);
        }
    }

    /// Forgets what nothing depends on.
    fn tidy(&mut self, below: &mut Below<'_>, flow: FlowName) {
        if self.held.get(&flow).is_some_and(Held::is_empty)
            && let Some(held) = self.held.remove(&flow)
        {
            self.limits.stop(Limit::Lead(flow));
            if held.last.is_some() {
                self.forget(below, flow);
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(limit) = self.limits.take_due(below.now()) {
            match limit {
                Limit::Announcement(flow) => self.handle_announcement_limit(below, flow),
                Limit::Lead(flow) => self.lead(below, flow),
                Limit::Unsettled(flow) => self.handle_unsettled_limit(below, flow),
                Limit::Keep(flow) => self.keep(below, flow),
                Limit::Forget(flow) => self.forget(below, flow),
            }
        }
        if self.held.is_empty() {
            self.tickets.forget();
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next()
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.held.len() + self.settling.len() + self.limits.len()
    }
}

/// A socket with another host's flow has ended here: its holder need not count it any more.
pub(super) fn send_ending(below: &mut Below<'_>, flow: FlowName) {
    below.send(flow.peer(), Record::Ending { flow: flow.value() });
}

#[cfg(test)]
impl Holder {
    pub(super) fn held(&self) -> Vec<FlowName> {
        self.held.keys().copied().collect()
    }

    pub(super) fn held_of(&self, owner: &PublicKey) -> (Vec<FlowName>, usize) {
        (self.held.of(owner).map(|(flow, _)| *flow).collect(), self.held.count_of(owner))
    }

    pub(super) fn lent_as(&self, far: &FlowTuple) -> Vec<FlowName> {
        self.held.with_far(far).map(|(flow, _)| *flow).collect()
    }

    pub(super) fn indexed(&self) -> [usize; 4] {
        self.held.indexed()
    }

    pub(super) fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }

    pub(super) fn kept(&self, flow: FlowName) -> Option<SavedHeld> {
        self.held_to_save(flow)
    }

    pub(super) fn settling(&self) -> usize {
        self.settling.len()
    }
}
