//! Sockets that change hosts: their kernels, their programs, and what the far end sees.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    Event, FlowName, FlowOp, Found, Gift, LeaseName, MoveEvent, MoveName, MoveOp, NotGiven, Op, OpDone, OpFailed,
    Refusal, SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedTenancy,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::snapshot::Family;

use super::due::What;
use super::{FlowId, World};
use crate::host::HostId;
use crate::ledger::Kind;
use crate::relocation::{Connection, ConnectionId, Copy, Counts, Words};

/// How long what an end says is under way.
const WAY: Duration = Duration::from_millis(4);

impl World {
    /// A connection whose socket is on `owner`; `holder` holds its far end, by this name.
    pub fn movable(&mut self, owner: HostId, holder: HostId, name: u64, tuple: FlowTuple) -> ConnectionId {
        let id = ConnectionId(self.connections.len());
        let socket = Copy { awake: true, in_program: true, relic: false, counts: Counts::default() };
        self.connections.push(Connection {
            tuple,
            name,
            holder,
            flow: None,
            led: owner,
            copies: [(owner, socket)].into(),
            left: [].into(),
            died: false,
            closed: false,
            far: Counts::default(),
        });
        id
    }

    /// The same for an end of a flow that both its hosts know: its socket, and what is sent on it, go along.
    ///
    /// # Panics
    /// It is not introduced.
    pub fn movable_flow(&mut self, flow: FlowId, end: usize) -> ConnectionId {
        let of = self.flow(flow).clone();
        let name = self.view(flow, end).and_then(|view| view.entry).expect("introduced").name;
        let id = self.movable(of.hosts[end], of.hosts[1 - end], name, of.tuples[end]);
        self.connections[id.0].flow = Some((flow, end));
        id
    }

    /// A host's socket is frozen for a move, or goes on there.
    fn on_frozen(&mut self, of: Option<(FlowId, usize)>, host: HostId, frozen: bool) {
        let Some((flow, end)) = of else { return };
        let (before, tuple) = (self.flows[flow.0].hosts[end], self.flows[flow.0].tuples[end]);
        if !frozen && before != host {
            self.on_owned(flow, end, host);
            self.hosts[before.0].sockets.remove(&tuple);
            self.hosts[host.0].sockets.insert(tuple, (flow, end));
            self.flows[flow.0].hosts[end] = host;
        }
        self.flows[flow.0].frozen[end] = frozen;
    }

    /// Whether what comes to a host for an end of a flow is neither taken in nor answered there: the socket is frozen,
    /// or has left.
    pub(super) fn is_frozen_or_left(&self, of: (FlowId, usize), host: HostId) -> bool {
        let left = |at: &Connection| at.flow == Some(of) && at.left.contains(&host);
        let has = self.flows[of.0.0].hosts[of.1] == host;
        has && self.flows[of.0.0].frozen[of.1] || !has && self.connections.iter().any(left)
    }

    /// Has a holder lend a flow, `tuple` at the socket, to a host, now and whenever its daemon is started.
    pub fn lend(&mut self, holder: HostId, name: u64, tuple: FlowTuple, to: HostId) {
        let key = self.hosts[to.0].public_key();
        let far = tuple.mirrored();
        let name = FlowName::new(key, name);
        self.hosts[holder.0].lent.push((name, far));
        self.with_node(holder, |node| node.lend_flow(name, far));
    }

    /// The data plane of a host has another flow: where a far end leads that it holds.
    pub(super) fn on_led(&mut self, host: HostId, op: &Op) {
        let peers: Vec<_> = self.hosts[host.0].node.iter().flat_map(|node| node.peers()).collect();
        let (to, name) = match op {
            Op::Flow(FlowOp::Install { entry, .. }) => {
                let key = peers.iter().find(|peer| peer.id == entry.peer).map(|peer| peer.key);
                (key.and_then(|key| self.by_public_key(&key)), entry.name)
            }
            _ => return,
        };
        let of = self.connections.iter_mut().find(|of| of.name == name && of.holder == host);
        if let (Some(of), Some(to)) = (of, to) {
            of.led = to;
        }
    }

    /// A connection whose socket may move.
    #[must_use]
    pub fn connection(&self, id: ConnectionId) -> &Connection {
        &self.connections[id.0]
    }

    /// All of them.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        (0..self.connections.len()).map(ConnectionId)
    }

    /// Has a host give the socket of a connection to another.
    ///
    /// # Errors
    /// As [`whimbrel_protocol::Node::give_socket`].
    ///
    /// # Panics
    /// Its daemon does not run.
    pub fn give(&mut self, id: ConnectionId, from: HostId, to: HostId, size: usize) -> Result<MoveName, NotGiven> {
        let of = self.connections[id.0].clone();
        self.snapshot_length = size;
        let gift = Gift {
            tuple: of.tuple,
            family: Family::Ipv4,
            size: size as u32,
            options: vec![1, 60],
            receiver: Vec::new(),
            flow: FlowName::new(self.hosts[of.holder.0].public_key(), of.name),
            holder_at: self.endpoint_of(of.holder),
            acceptor: self.hosts[to.0].public_key(),
            acceptor_at: self.endpoint_of(to),
            after: None,
        };
        let now = self.now;
        if let Some((flow, end)) = of.flow {
            self.on_given(flow, end, to);
        }
        let mut given = None;
        self.with_node(from, |node| given = Some(node.give_socket(now, gift)));
        given.expect("its daemon runs")
    }

    /// Where a host is met.
    pub(super) fn endpoint_of(&self, host: HostId) -> Option<std::net::SocketAddr> {
        let of = &self.hosts[host.0];
        of.attached.first().map(|attached| (attached.address, of.config.port).into())
    }

    /// A program ends, and its copy of a socket with it, frozen or not.
    pub fn end_program(&mut self, id: ConnectionId, host: HostId, name: MoveName) {
        let of = &mut self.connections[id.0];
        if of.copies.remove(&host).is_some() {
            of.died = true;
            let now = self.now;
            self.with_node(host, |node| node.handle_move_socket_gone(now, name));
        }
    }

    /// Whether a connection goes on at one place, which is where its far end leads, and no copy is anywhere else.
    #[must_use]
    pub fn is_whole(&self, id: ConnectionId) -> bool {
        let of = &self.connections[id.0];
        let copies: Vec<HostId> = of.copies.iter().filter(|(_, copy)| !copy.relic).map(|(host, _)| *host).collect();
        !of.closed && copies == [of.led] && of.copies[&of.led].awake && of.copies[&of.led].in_program
    }

    /// Whether holder and owner of a connection have it under the same ports in rewritten packets, and either both take
    /// it for native or neither does.
    #[must_use]
    pub fn is_agreed(&self, id: ConnectionId) -> bool {
        let of = &self.connections[id.0];
        let terms = |host: HostId| {
            let plane = &self.hosts[host.0].plane;
            let entry = plane.flows.values().find(|entry| entry.name == of.name)?;
            let native = plane.bindings.get(&entry.binding()).is_some_and(|(now, _)| now.places == entry.home);
            Some((entry.wire_local_port, entry.wire_remote_port, native))
        };
        let mirrored = |(local, remote, native)| (remote, local, native);
        let (owner, holder) = (terms(of.led), terms(of.holder).map(mirrored));
        of.led == of.holder || owner.is_none() || holder.is_none() || owner == holder
    }

    /// Whether a connection is over, as is right where a process that had its only socket died.
    #[must_use]
    pub fn is_over(&self, id: ConnectionId) -> bool {
        let of = &self.connections[id.0];
        of.died && of.closed && of.copies.values().all(|copy| copy.relic)
    }

    /// What a host's node keeps on account of moves.
    #[must_use]
    pub fn moving_entries(&self, host: HostId) -> usize {
        self.hosts[host.0].node.as_ref().map_or(0, whimbrel_protocol::Node::move_entries)
    }

    /// Bytes that have come to the socket, and to the far end.
    #[must_use]
    pub fn heard(&self, id: ConnectionId) -> (u64, u64) {
        let of = &self.connections[id.0];
        (of.copies.values().map(|copy| copy.counts.received).max().unwrap_or_default(), of.far.received)
    }

    // ---- what is said over the connections

    /// Both ends say something, and so does whoever else takes itself for an end.
    pub(super) fn converse(&mut self) {
        for at in 0..self.connections.len() {
            let of = &mut self.connections[at];
            if of.closed {
                continue;
            }
            of.far.sent += 7;
            let words = Words { from: of.far.acknowledged, to: of.far.sent, received: of.far.received };
            let to = of.led;
            let awake: Vec<HostId> = of.copies.iter().filter(|(_, copy)| copy.awake).map(|(host, _)| *host).collect();
            for host in &awake {
                if let Some(copy) = of.copies.get_mut(host) {
                    copy.counts.sent += 5;
                }
            }
            self.later(WAY, What::Said(ConnectionId(at), Some(to), words));
            awake.into_iter().for_each(|host| self.speak(at, host));
        }
    }

    fn speak(&mut self, at: usize, host: HostId) {
        let Some(copy) = self.connections[at].copies.get(&host).filter(|copy| copy.awake) else { return };
        let Counts { sent, acknowledged, received } = copy.counts;
        self.later(WAY, What::Said(ConnectionId(at), None, Words { from: acknowledged, to: sent, received }));
    }

    /// Words arrive at the socket's end, on a host, or at the far end.
    pub(super) fn hear_words(&mut self, id: ConnectionId, host: Option<HostId>, words: Words) {
        let now = self.now;
        let of = &mut self.connections[id.0];
        if of.closed {
            return;
        }
        let end = match host {
            None => Some(&mut of.far),
            Some(host) => match of.copies.get_mut(&host) {
                Some(copy) if copy.awake => Some(&mut copy.counts),
                // Held, and said again.
                Some(_) => return,
                None => {
                    if !of.left.contains(&host) && !of.died {
                        let what = format!("{host:?} has no socket of {id:?}, and resets it");
                        self.ledger.violation(Kind::Reset, now, what);
                    }
                    return;
                }
            },
        };
        let Some(end) = end else { return };
        if words.from > end.received || words.received > end.sent {
            let what = format!("{id:?} at {host:?} is at {end:?} and hears {words:?}");
            self.ledger.violation(Kind::Torn, now, what);
            return;
        }
        end.received = end.received.max(words.to);
        end.acknowledged = end.acknowledged.max(words.received);
        if let Some(host) = host {
            self.speak(id.0, host);
        }
    }

    // ---- what a daemon asks for

    fn by_public_key(&self, key: &PublicKey) -> Option<HostId> {
        (0..self.hosts.len()).map(HostId).find(|host| self.hosts[host.0].public_key() == *key)
    }

    /// Carries out one op of a move, or has it fail.
    pub(super) fn act_on_move(&mut self, host: HostId, op: MoveOp, fails: bool) -> Result<OpDone, OpFailed> {
        let label = format!("{op:?}");
        let label = &label[..label.len().min(200)];
        self.trace(|w| format!("{} {} {label}", w.hosts[host.0].name, if fails { "fails to do" } else { "does" }));
        let result = if fails {
            self.fail_move_op(host, &op);
            failed(Refusal::NotRestored, "it fails on purpose")
        } else {
            self.carry_out_move(host, op)
        };
        for at in self.connections.iter().enumerate() {
            let awake = at.1.copies.values().filter(|copy| copy.awake).count();
            if awake > 1 {
                let what = format!("{:?} goes on at {awake} hosts at once", ConnectionId(at.0));
                self.ledger.violation(Kind::Torn, self.now, what);
                break;
            }
        }
        result
    }

    /// The connection of a move, by what was saved or is known of it.
    fn of_tuple(&mut self, tuple: FlowTuple) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|of| of.tuple == tuple)
    }

    fn of_move(&mut self, host: HostId, name: &MoveName) -> Option<&mut Connection> {
        let tuple = *self.hosts[host.0].moved_tuples.get(name)?;
        self.of_tuple(tuple)
    }

    /// Where these fail, the socket is not as it was.
    fn fail_move_op(&mut self, host: HostId, op: &MoveOp) {
        match op {
            MoveOp::Thaw { name } => {
                if let Some(of) = self.of_move(host, name) {
                    of.copies.remove(&host);
                    of.died = true;
                }
            }
            MoveOp::Destroy { name, .. } => {
                if let Some(of) = self.of_move(host, name)
                    && let Some(copy) = of.copies.get_mut(&host)
                {
                    copy.relic = true;
                    of.left.insert(host);
                }
            }
            _ => {}
        }
    }

    fn carry_out_move(&mut self, host: HostId, op: MoveOp) -> Result<OpDone, OpFailed> {
        let length = self.snapshot_length;
        match op {
            MoveOp::Admit { name, request } => {
                if self.hosts[host.0].full {
                    return failed(Refusal::NoRoom, "no room");
                }
                self.hosts[host.0].moved_tuples.insert(name, request.tuple);
            }
            MoveOp::Freeze { name, flow } => {
                self.hosts[host.0].moved_tuples.insert(name, flow);
                let Some(of) = self.of_tuple(flow) else { return failed(Refusal::NotRestored, "no such connection") };
                match of.copies.get_mut(&host).filter(|copy| copy.awake) {
                    Some(copy) => copy.awake = false,
                    None => return failed(Refusal::NotRestored, "no such socket"),
                }
                let frozen = of.flow;
                self.on_frozen(frozen, host, true);
            }
            MoveOp::Dump { name } => {
                let copy = self.of_move(host, &name).and_then(|of| of.copies.get(&host));
                match copy.filter(|copy| !copy.awake) {
                    Some(copy) => return Ok(OpDone::Dumped(copy.counts.write(length))),
                    None => return failed(Refusal::NotRestored, "no such frozen socket"),
                }
            }
            MoveOp::Restore { request, snapshot, .. } => {
                let Some(counts) = Counts::read(&snapshot) else {
                    return failed(Refusal::BadSnapshot, "malformed snapshot");
                };
                let Some(of) = self.of_tuple(request.tuple) else {
                    return failed(Refusal::NotRestored, "no such connection");
                };
                if of.copies.get(&host).is_some_and(|copy| !copy.relic) {
                    return failed(Refusal::Taken, "the address is in use");
                }
                of.copies.insert(host, Copy { awake: false, in_program: false, relic: false, counts });
                // In its own namespace a host hears of it as of any other.
                let (now, local) = (self.now, request.tuple.local.ip());
                let of = &mut self.hosts[host.0];
                if of.attached.iter().any(|attached| attached.address == local)
                    && let Some(node) = of.node.as_mut()
                {
                    node.handle_flow_opened(now, request.tuple, false);
                }
            }
            MoveOp::Thaw { name } => {
                let Some(of) = self.of_move(host, &name) else { return failed(Refusal::NotWoken, "no such socket") };
                let Some(copy) = of.copies.get_mut(&host) else { return failed(Refusal::NotWoken, "no such socket") };
                (copy.awake, copy.in_program) = (true, true);
                of.left.remove(&host);
                let awake = of.flow;
                self.on_frozen(awake, host, false);
            }
            MoveOp::Destroy { name, .. } => {
                if let Some(of) = self.of_move(host, &name) {
                    of.left.insert(host);
                    if of.copies.remove(&host).is_some_and(|copy| copy.awake) {
                        let what = format!("{host:?} destroys a socket that goes on");
                        self.ledger.violation(Kind::Torn, self.now, what);
                    }
                }
            }
            MoveOp::CloseFarEnd { flow } => {
                let now = self.now;
                if let Some(of) = self.connections.iter_mut().find(|of| of.name == flow.value() && of.holder == host) {
                    of.closed = true;
                    if !of.died || of.copies.values().any(|copy| copy.awake) {
                        let what = format!("a connection is closed that has a socket: {of:?}");
                        self.ledger.violation(Kind::Reset, now, what);
                    }
                }
            }
            MoveOp::SaveDonation(saved) => {
                self.hosts[host.0].saved_moves.donations.insert(saved.name, saved);
            }
            MoveOp::SaveAcceptance(saved) => {
                self.hosts[host.0].saved_moves.acceptances.insert(saved.ticket.name, saved);
            }
            MoveOp::SaveHeld(all) => {
                for saved in all {
                    let claimed = |of: &&mut Connection| of.holder == host && saved.far == Some(of.tuple.mirrored());
                    if let Some(of) = self.connections.iter_mut().find(claimed) {
                        // Whoever has claimed it has drawn its name.
                        of.name = saved.flow.value();
                    }
                    self.hosts[host.0].saved_moves.held.remove(&saved.formerly());
                    self.hosts[host.0].saved_moves.held.insert(saved.flow, saved);
                }
            }
            MoveOp::ForgetDonation { name } => {
                self.hosts[host.0].saved_moves.donations.remove(&name);
                self.hosts[host.0].moved_tuples.remove(&name);
            }
            MoveOp::ForgetAcceptance { name } => {
                self.hosts[host.0].saved_moves.acceptances.remove(&name);
                self.hosts[host.0].moved_tuples.remove(&name);
            }
            MoveOp::Lend { name, ends, .. } => {
                let Some(ends) = self.find_free(host, name, ends) else {
                    return failed(Refusal::Taken, "the ports are taken");
                };
                self.hosts[host.0].saved_moves.leases.insert(name, ends);
                return Ok(OpDone::Lent(ends));
            }
            MoveOp::TakeBack { name } => {
                self.hosts[host.0].saved_moves.leases.remove(&name);
            }
            MoveOp::Occupy { number, anchor, anchor_at, ends, moved, fresh, .. } => {
                if !fresh && self.hosts[host.0].unused {
                    return failed(Refusal::Cancelled, "nobody needs it any more");
                }
                let saved = SavedTenancy { number, anchor, anchor_at, ends, moved, parts: false };
                self.hosts[host.0].saved_moves.tenancies.insert(saved.lease(), saved);
            }
            MoveOp::SaveTenancy(saved) => {
                if let Some(kept) = self.hosts[host.0].saved_moves.tenancies.get_mut(&saved.lease()) {
                    *kept = saved;
                }
            }
            MoveOp::Vacate { lease } => {
                self.hosts[host.0].saved_moves.tenancies.remove(&lease);
            }
            MoveOp::ForgetHeld { flow } => {
                self.hosts[host.0].saved_moves.held.remove(&flow);
            }
        }
        Ok(OpDone::Done)
    }

    /// Endpoints of a host as a tenant wants them, that are lent to nobody else and that no other host's connections
    /// have.
    fn find_free(&self, host: HostId, name: LeaseName, wanted: Ends) -> Option<Ends> {
        let of = &self.hosts[host.0];
        let saved = &of.saved_moves;
        if let Some(before) = saved.leases.get(&name) {
            return Some(*before);
        }
        let address = of.attached.first()?.address;
        let is_free = |ends: &Ends| {
            let within = |other: &Ends| ends.ports().any(|port| other.contain((address, port).into()));
            let had = |held: &SavedHeld| {
                held.flow.peer() != name.tenant && held.far.is_some_and(|far| ends.contain(far.remote))
            };
            !saved.leases.values().any(within) && !saved.held.values().any(had)
        };
        let firsts = match wanted.first.port() {
            0 => (8000..9000).step_by(usize::from(wanted.count.max(1))).collect(),
            port => vec![port],
        };
        let all = firsts.into_iter().map(|first| Ends { first: (address, first).into(), count: wanted.count });
        all.into_iter().find(is_free)
    }

    /// A daemon is gone, and what it alone had with it.
    pub(super) fn lose_descriptors(&mut self, host: HostId) {
        let lasting = self.lasting;
        for of in &mut self.connections {
            if of.copies.get(&host).is_some_and(|copy| !copy.in_program && !lasting) {
                of.copies.remove(&host);
                of.died = true;
            }
        }
    }

    /// A daemon is there again: it is told what the one before it left.
    pub(super) fn restore_moves(&mut self, host: HostId) {
        let saved = self.hosts[host.0].saved_moves.clone();
        let found = |w: &Self, tuple: FlowTuple| {
            let of = w.connections.iter().find(|of| of.tuple == tuple);
            match of.and_then(|of| of.copies.get(&host)).filter(|copy| !copy.relic) {
                None => Found::Gone,
                Some(copy) if copy.awake => Found::Awake,
                Some(_) => Found::Frozen,
            }
        };
        let all: Vec<SavedDonation> = saved.donations.values().cloned().collect();
        let leaving = self.restore_departures(host, &all);
        let mut donations: Vec<(SavedDonation, Found)> = Vec::new();
        for saved in all {
            self.hosts[host.0].moved_tuples.insert(saved.name, saved.tuple);
            let found = leaving.get(&saved.name).copied().unwrap_or_else(|| found(self, saved.tuple));
            donations.push((saved, found));
        }
        let all: Vec<SavedAcceptance> = saved.acceptances.values().cloned().collect();
        let coming = self.restore_arrivals(host, &all);
        let mut acceptances: Vec<(SavedAcceptance, Found)> = Vec::new();
        for saved in all {
            self.hosts[host.0].moved_tuples.insert(saved.ticket.name, saved.request.tuple);
            let found = coming.get(&saved.ticket.name).copied().unwrap_or_else(|| found(self, saved.request.tuple));
            acceptances.push((saved, found));
        }
        let held: Vec<SavedHeld> = saved.held.into_values().collect();
        let leases: Vec<SavedLease> = saved.leases.into_iter().map(|(name, ends)| SavedLease { name, ends }).collect();
        let tenancies: Vec<SavedTenancy> = saved.tenancies.into_values().collect();
        let (now, lent) = (self.now, self.hosts[host.0].lent.clone());
        self.with_node(host, |node| {
            node.restore_moves(now, &donations, &acceptances, &held);
            node.restore_leases(now, &leases, &tenancies);
            lent.into_iter().for_each(|(name, far)| node.lend_flow(name, far));
        });
    }

    /// What a host's node has said of moves.
    pub fn move_events(&self, host: HostId) -> impl DoubleEndedIterator<Item = &MoveEvent> {
        let of = self.events.iter().filter(move |(_, at, _)| *at == host);
        of.filter_map(|(_, _, event)| if let Event::Move(event) = event { Some(event) } else { None })
    }

    /// A node says something of moves.
    pub(super) fn on_move_event(&mut self, host: HostId, event: &MoveEvent) {
        if let MoveEvent::Rebound { flow, .. } = event
            && flow.peer() == self.hosts[host.0].public_key()
            && let Some(of) = self.connections.iter_mut().find(|of| of.name == flow.value() && of.holder == host)
        {
            // It is at an address of the holder's itself, and led nowhere.
            of.led = host;
        }
    }
}

fn failed(refusal: Refusal, sentence: &str) -> Result<OpDone, OpFailed> {
    Err(OpFailed { refusal: Some(refusal), sentence: sentence.to_owned() })
}
