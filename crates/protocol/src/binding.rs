//! Where a peer's flows go: how either end moves, what carries them, and what is wanted of the kernel for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::base::op::PeerId;
use crate::base::output::State;
use crate::binding::chain::Chains;
use crate::binding::peers::BoundPeer;
use crate::flow::FlowLayer;

#[macro_use]
pub(crate) mod peers;
pub(crate) mod absence;
pub(crate) mod carrier;
pub(crate) mod chain;
mod chains;
mod confirm;
pub(crate) mod desired;
mod follow;
pub(crate) mod handoff;
mod install;
mod keepalive;
mod messages;
pub(crate) mod moved;
mod pairs;
mod stall;
pub(crate) mod transfer;
pub(crate) mod update;
mod view;

/// Where peers' flows go, and what the kernel is wanted to do for it.
pub(crate) struct BindingLayer {
    pub(crate) flow: FlowLayer,
    pub(crate) peers: BTreeMap<PeerId, BoundPeer>,
    /// What could not be made so, and how often that was tried again.
    pub(crate) failed: BTreeSet<State>,
    pub(crate) mended: u32,
    /// Which peer rewritten packets between two locators (ours, its) belong to.
    pub(crate) pairs: HashMap<(IpAddr, IpAddr), PeerId>,
    pub(crate) listening: Vec<u32>,
    pub(crate) keeping: Vec<IpAddr>,
    pub(crate) leaving: Vec<IpAddr>,
    pub(crate) reaching: Vec<(IpAddr, bool)>,
    pub(crate) chains: Chains,
}

impl BindingLayer {
    pub(crate) fn new(flow: FlowLayer, chains: Chains) -> Self {
        Self {
            flow,
            peers: BTreeMap::new(),
            failed: BTreeSet::new(),
            mended: 0,
            pairs: HashMap::new(),
            listening: Vec::new(),
            keeping: Vec::new(),
            leaving: Vec::new(),
            reaching: Vec::new(),
            chains,
        }
    }
}
