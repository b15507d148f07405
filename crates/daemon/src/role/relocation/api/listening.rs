//! Sockets without another end: how they are named, and what becomes of the connections that had not been accepted
//! (decision 0022).

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure};
use whimbrel_protocol::{MoveName, MoveOp, OpFailed, OpId, Refusal, Retired, Time};
use whimbrel_wire::snapshot::Metadata;
use whimbrel_wire::{FlowTuple, Transport};

use super::{Followed, Job, MoveRequest, Moves, flow_of};
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::effects::Effects;
use crate::events::{Kind, Report};
use crate::host::refusal::sentence;

/// They are named by one of these and an address and port.
const NAMES: [(&str, Transport); 2] = [("listener:", Transport::Tcp), ("udp:", Transport::Udp)];

impl Moves {
    /// Whether a socket may rest that has waited for its connections.
    pub(crate) fn may_go_on(&self) -> bool {
        self.settling.is_ready()
    }

    /// The next effect of a move that can be carried out, of those that the node has asked for.
    pub(crate) fn next_move_op(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        due: &mut VecDeque<(OpId, MoveOp)>,
    ) -> Option<(OpId, MoveOp)> {
        loop {
            if let Some(((id, op), refused)) = self.settling.pop() {
                let Some(why) = refused else { return Some((id, op)) };
                let sentence = format!("its anchor does not take one of its connections: {}", sentence(why));
                self.leave_unsettled(with, now, id, &op, OpFailed { refusal: Some(Refusal::Unmovable), sentence });
                continue;
            }
            let (id, op) = due.pop_front()?;
            if let Some(op) = self.settle(with, now, id, op) {
                return Some((id, op));
            }
        }
    }

    /// Before a socket without another end rests its connections become flows: what is of none would go where the
    /// endpoint goes. `None`: it waits for that.
    fn settle(&mut self, with: &mut With<'_, Effects>, now: Time, id: OpId, op: MoveOp) -> Option<MoveOp> {
        let MoveOp::Freeze { flow, .. } = op else { return Some(op) };
        if !flow.is_unconnected() {
            return Some(op);
        }
        let connections = match with.own.relocation.connections_of(&mut with.desk.host, &flow) {
            Ok(connections) => connections,
            Err(failure) => {
                let failed = OpFailed { refusal: Some(Refusal::Unmovable), sentence: failure.to_string() };
                self.leave_unsettled(with, now, id, &op, failed);
                return None;
            }
        };
        let mut open = HashSet::new();
        for connection in connections {
            if !with.desk.node.has_flow(&connection) {
                let hidden = with.desk.host.is_hidden(&connection);
                if with.desk.node.claim_flow(now, connection, hidden) {
                    open.insert(connection);
                }
            }
        }
        if open.is_empty() {
            return Some(op);
        }
        self.settling.begin((id, op), open);
        None
    }

    fn leave_unsettled(&mut self, with: &mut With<'_, Effects>, now: Time, id: OpId, op: &MoveOp, failed: OpFailed) {
        if let MoveOp::Freeze { name, flow } = op {
            with.own.relocation.let_new_in(&mut with.desk.host, flow);
            self.on_unmovable(name, &failed);
        }
        with.desk.node.handle_done(now, id, Err(failed));
    }

    /// What these name: connections, and sockets without another end.
    pub(crate) fn sockets_named(&mut self, desk: &mut Desk, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        let (mut flows, mut connections) = (Vec::new(), Vec::new());
        for name in names {
            match NAMES.iter().find_map(|(prefix, transport)| Some((*transport, name.strip_prefix(prefix)?))) {
                Some((transport, end)) => {
                    let flow = FlowTuple::unconnected(transport, endpoint(end, name)?);
                    if desk.host.is_nobodys(&flow) {
                        let failure = Failure::new("no socket of this host waits for clients there").on(name);
                        return Err(failure.code(Code::Unknown).hint("`whimbrel connections` shows those that do."));
                    }
                    flows.push(flow);
                }
                None => connections.push(name.clone()),
            }
        }
        if flows.is_empty() || !connections.is_empty() {
            flows.extend(desk.open_connections(&connections)?);
        }
        flows.sort_unstable();
        flows.dedup();
        Ok(flows)
    }

    /// What is left of a socket that listened goes as soon as nothing comes to it any more.
    pub(super) fn retire(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
        name: MoveName,
        to: PublicKey,
        job: Option<&Job>,
    ) {
        if job.is_none_or(|job| job.flow.listens()) {
            // Of a move that a daemon before this one began it is not known for whom it was.
            let receiver = job.and_then(|job| job.receiver.clone());
            self.retiring.begin(now, name, Followed { to, receiver });
            self.retire_listeners(with, now);
        }
    }

    /// Connections that were not accepted follow their sockets, which end when none can come any more.
    pub(crate) fn retire_listeners(&mut self, with: &mut With<'_, Effects>, now: Time) {
        let is_being_opened = |name: &MoveName| with.own.relocation.is_being_opened(&mut with.desk.host, name);
        for retiring in self.retiring.take(now, is_being_opened) {
            for socket in with.own.relocation.take_queued(&retiring.name) {
                let named = flow_of(&socket).and_then(|flow| Ok((flow, with.desk.names.of(socket.as_fd())?)));
                let Ok((flow, uuid)) = named else { continue };
                if let Some(why) = self.why_bound_here(with.desk, &flow) {
                    self.reset_queued(with.desk, &retiring, flow, &socket, &why);
                    continue;
                }
                let metadata = Metadata { uuid: *uuid.as_bytes(), state: Vec::new() };
                let family = with.own.relocation.take_given(&mut with.desk.host, now, flow, socket.into(), metadata);
                let (acceptor, receiver) = (retiring.with.to, retiring.with.receiver.clone());
                let options = Vec::new();
                let move_request =
                    MoveRequest { client: ClientId::NOBODY, family, acceptor, receiver, options, prepares: false };
                self.give_duplicated(with, flow, move_request);
            }
            if retiring.is_over() {
                with.own.relocation.end_retired(&mut with.desk.host, &retiring.name);
            } else {
                self.retiring.put_back(retiring);
            }
        }
    }

    /// A connection that nobody has accepted stays behind its socket: it ends as the kernel would have it when the
    /// socket is closed, so that its other end waits for nothing.
    fn reset_queued(
        &mut self,
        desk: &mut Desk,
        retiring: &Retired<Followed>,
        flow: FlowTuple,
        socket: &OwnedFd,
        why: &str,
    ) {
        if let Err(error) = sockopt::set_socket_linger(socket, Some(Duration::ZERO)) {
            tracing::warn!(%flow, %error, "a connection of a socket that has moved ends as if its program had closed it");
        }
        let to = desk.called(&retiring.with.to);
        let sentence = format!(
            "is over: nobody had accepted it when its server went to {to}, where it cannot follow, since {why}"
        );
        desk.tell(Report::of_socket(Kind::SocketLost, Some(flow), sentence));
    }
}

/// The endpoint at which a socket is met.
fn endpoint(end: &str, name: &str) -> Result<SocketAddr, Failure> {
    let end: Option<SocketAddr> = end.parse().ok();
    end.filter(|end| !end.ip().is_unspecified() && end.port() != 0).ok_or_else(|| {
        Failure::new("this names no socket").on(name).hint(
            "listener:ADDRESS:PORT, or udp:ADDRESS:PORT, with the address at which it is met, also where it has all of this host's.",
        )
    })
}
