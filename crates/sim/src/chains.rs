//! Chains of transforms as a tunnel has them: each remembers whose packets come through it, so that one that was made
//! for another is found out.

use std::collections::BTreeMap;

use whimbrel_protocol::{ChainOp, ChainStatus, OpDone, PeerId};
use whimbrel_wire::{ChainNumber, ChainSpec, TransformId};

/// The transforms that a host knows: all in one version, with one parameter.
#[derive(Clone, Debug)]
pub struct Transforms {
    /// Those that there are.
    pub known: Vec<TransformId>,
    /// Their version.
    pub version: u8,
    /// What the parameter may be at the most.
    pub most: u64,
}

impl Default for Transforms {
    fn default() -> Self {
        Self { known: (1..=4).map(TransformId).collect(), version: 1, most: 100 }
    }
}

impl Transforms {
    fn judge(&self, spec: &ChainSpec) -> Option<OpDone> {
        spec.stages().iter().enumerate().find_map(|(at, stage)| {
            let status = if !self.known.contains(&stage.transform) {
                ChainStatus::UnknownTransform
            } else if stage.version != self.version {
                ChainStatus::UnknownVersion
            } else if stage.parameters.iter().any(|of| of.number != 1 || of.value > self.most) {
                ChainStatus::BadParameter
            } else {
                return None;
            };
            Some(OpDone::ChainRefused { status, stage: at as u8 })
        })
    }
}

#[derive(Clone, Debug)]
struct Made {
    /// No other chain of any host has it.
    name: u64,
    spec: ChainSpec,
    /// The one at the other end whose packets have come through it.
    partner: Option<u64>,
}

/// The chains of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostChains {
    made: BTreeMap<(PeerId, ChainNumber), Made>,
    sending: BTreeMap<PeerId, ChainNumber>,
}

impl HostChains {
    /// `name`: for a chain that is made.
    pub(crate) fn carry_out(&mut self, transforms: &Transforms, op: &ChainOp, name: u64) -> Result<OpDone, String> {
        match op {
            ChainOp::Set { peer, chain, spec } => {
                if let Some(refused) = transforms.judge(spec) {
                    return Ok(refused);
                }
                let made = Made { name, spec: spec.clone(), partner: None };
                if self.made.insert((*peer, *chain), made).is_some() {
                    return Err(format!("chain {chain} of {peer} is made twice"));
                }
            }
            ChainOp::SetParameters { peer, chain, spec } => {
                let Some(made) = self.made.get_mut(&(*peer, *chain)).filter(|made| made.spec.is_alike(spec)) else {
                    return Err(format!("chain {chain} of {peer} is none or another"));
                };
                if let Some(refused) = transforms.judge(spec) {
                    return Ok(refused);
                }
                made.spec = spec.clone();
            }
            ChainOp::SendThrough { peer, chain: None } => drop(self.sending.remove(peer)),
            ChainOp::SendThrough { peer, chain: Some(chain) } => {
                if !self.made.contains_key(&(*peer, *chain)) {
                    return Err(format!("chain {chain} of {peer} is sent through and not there"));
                }
                self.sending.insert(*peer, *chain);
            }
            ChainOp::Remove { peer, chain } => {
                let removed = self.made.remove(&(*peer, *chain));
                if removed.is_none() || self.sending.get(peer) == Some(chain) {
                    return Err(format!("chain {chain} of {peer} is removed and not there, or sent through"));
                }
            }
        }
        Ok(OpDone::Done)
    }

    /// What a packet to this peer bears: the number of its chain, and the chain itself.
    pub(crate) fn outbound(&self, peer: PeerId) -> Option<(ChainNumber, u64)> {
        let number = *self.sending.get(&peer)?;
        Some((number, self.made.get(&(peer, number))?.name))
    }

    /// A packet came that bears this.
    pub(crate) fn inbound(&mut self, peer: PeerId, (number, name): (ChainNumber, u64)) -> Result<(), String> {
        let Some(made) = self.made.get_mut(&(peer, number)) else {
            return Err(format!("a packet of chain {number} of {peer}, which is not known"));
        };
        let partner = *made.partner.get_or_insert(name);
        if partner == name { Ok(()) } else { Err(format!("a packet of another chain {number} of {peer}")) }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.made.len()
    }
}
