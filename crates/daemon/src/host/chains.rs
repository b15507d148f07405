//! Chains of transforms, as peers agree on them, in the tunnel.

use std::collections::HashMap;
use std::num::NonZeroU8;

use whimbrel_protocol::{BindingId, ChainOp, ChainStatus, OpDone, PeerId};
use whimbrel_transform::{KNOWN, SpecError};
use whimbrel_tunnel::Tunnel;
use whimbrel_wire::{ChainNumber, ChainSpec};

/// By which chain packets go to each peer, with what that adds to a packet, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Chains(HashMap<PeerId, (ChainNumber, u32)>);

impl Chains {
    /// Carries out an op, except for the path that it is about ([`ChainOp::SendThrough`]).
    pub(crate) fn carry_out(&mut self, tunnel: &Tunnel, op: &ChainOp) -> OpDone {
        let done = match op {
            ChainOp::Set { peer, chain, spec } => {
                KNOWN.build(spec).map(|made| tunnel.set_chain(*peer, (*chain).into(), made))
            }
            ChainOp::SetParameters { peer, chain, spec } => set_parameters(tunnel, *peer, *chain, spec),
            ChainOp::SendThrough { peer, chain: None } => {
                self.0.remove(peer);
                Ok(())
            }
            ChainOp::SendThrough { peer, chain: Some(chain) } => {
                let added = tunnel.with_chain(*peer, (*chain).into(), |chain| chain.overhead() as u32);
                self.0.insert(*peer, (*chain, added.unwrap_or(0)));
                Ok(())
            }
            ChainOp::Remove { peer, chain } => {
                tunnel.remove_chain(*peer, (*chain).into());
                Ok(())
            }
        };
        done.map_or_else(|SpecError { stage, status }| OpDone::ChainRefused { status, stage }, |()| OpDone::Done)
    }

    /// Chains are those of first bindings (P-186).
    fn way(&self, id: BindingId) -> Option<&(ChainNumber, u32)> {
        self.0.get(&id.peer()).filter(|_| id.is_first())
    }

    /// The chain that packets of a binding go by.
    pub(crate) fn of(&self, id: BindingId) -> Option<NonZeroU8> {
        self.way(id).map(|(chain, _)| (*chain).into())
    }

    /// What it adds to a packet, in bytes.
    pub(crate) fn added(&self, id: BindingId) -> u32 {
        self.way(id).map_or(0, |(_, added)| *added)
    }
}

fn set_parameters(tunnel: &Tunnel, peer: PeerId, chain: ChainNumber, spec: &ChainSpec) -> Result<(), SpecError> {
    let changed = tunnel.with_chain(peer, chain.into(), |chain| KNOWN.set_parameters(chain, spec));
    changed.unwrap_or(Err(SpecError { stage: 0, status: ChainStatus::OtherChain }))
}
