//! Which chain of transforms a peer's packets go through: what [`Chains`] decides, on sessions and in messages.

use whimbrel_wire::chain::{ChainAnswer, ChainRequest, ChainStatus};
use whimbrel_wire::message::Message;
use whimbrel_wire::{Capabilities, ChainNumber};

use crate::Time;
use crate::base::Base;
use crate::base::op::{PeerId, TunnelOp};
use crate::base::output::{Asked, OpDone, OpFailed};
use crate::binding::BindingLayer;
use crate::binding::chain::{ChainAction, ChainSession};
use crate::flow::peers::Away;

impl BindingLayer {
    /// A session has taken the place of others. To be called before the tunnel is led by it: the peer may know of no
    /// chain any more.
    pub(crate) fn agree_on_chains_anew(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let own = base.public_key();
        let Some(peer) = self.flow.peer_mut(&id) else { return };
        let (lower, round_trip) = (own.as_bytes() < peer.key().as_bytes(), peer.path.round_trip());
        let Some(slot) = peer.session() else { return };
        let speaks = slot.capabilities().contains(Capabilities::TRANSFORMS) && base.config().carriers.tunnel;
        self.chains.on_session(now, id, ChainSession::new(speaks, lower, round_trip));
        self.carry_out_chains(base);
    }

    /// There is no session with a peer any more.
    pub(super) fn end_chains(&mut self, id: PeerId, base: &mut Base) {
        self.chains.on_no_session(id);
        self.carry_out_chains(base);
    }

    /// A peer is forgotten, and all its chains.
    pub(crate) fn forget_chains(&mut self, id: PeerId, base: &mut Base) {
        self.chains.forget(id);
        self.carry_out_chains(base);
    }

    /// A peer asks for a chain, in the session of this index of ours.
    pub(super) fn handle_chain(&mut self, now: Time, id: PeerId, index: u32, request: ChainRequest, base: &mut Base) {
        let current = self.sends_in(id, index);
        self.chains.handle_chain(now, id, current, request);
        self.carry_out_chains(base);
    }

    /// A peer answers what this host has asked for.
    pub(super) fn handle_chain_seen(
        &mut self,
        now: Time,
        id: PeerId,
        index: u32,
        answer: &ChainAnswer,
        base: &mut Base,
    ) {
        let current = self.sends_in(id, index);
        self.chains.handle_chain_seen(now, id, current, answer);
        self.carry_out_chains(base);
    }

    /// A chain was made, or could not be.
    pub(crate) fn handle_chain_done(
        &mut self,
        now: Time,
        id: PeerId,
        chain: ChainNumber,
        result: Result<OpDone, OpFailed>,
        base: &mut Base,
    ) {
        let result = match result {
            Ok(OpDone::ChainRefused { status, stage }) => Err((status, stage)),
            Ok(_) => Ok(()),
            Err(_) => Err((ChainStatus::Refused, 0)),
        };
        self.chains.handle_done(now, id, chain, result);
        self.carry_out_chains(base);
    }

    /// What is due for chains happens.
    pub(crate) fn continue_chains(&mut self, now: Time, base: &mut Base) {
        self.chains.handle_timeout(now);
        self.carry_out_chains(base);
    }

    /// Whether the session of this index of ours is the one that is sent with.
    fn sends_in(&mut self, id: PeerId, index: u32) -> bool {
        let slot = self.flow.session_mut().peer_mut(&id).and_then(|peer| peer.session());
        slot.is_some_and(|slot| slot.local_index() == index)
    }

    pub(crate) fn carry_out_chains(&mut self, base: &mut Base) {
        while let Some(action) = self.chains.poll() {
            match action {
                // Nothing but answers goes to who has left (P-44); it is asked again.
                ChainAction::Send(id, Message::Chain(_)) if self.has_left(id) => {}
                ChainAction::Send(id, message) => self.flow.path_mut().send(id, &[message], base),
                ChainAction::Await(id, chain, op) => {
                    base.ask(TunnelOp::Chain(op), Asked::Chain(id, chain));
                }
                ChainAction::Do(op) => {
                    base.ask(TunnelOp::Chain(op), Asked::Effect("leading packets through transforms"));
                }
            }
        }
    }

    fn has_left(&self, id: PeerId) -> bool {
        bound!(self, &id)
            .is_some_and(|peer| peer.flow.away() == Some(Away::Announced) || peer.path.attachment().is_none())
    }
}
