//! Where a peer's flows go: how either end moves, what carries them, and what is wanted of the kernel for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use whimbrel_handshake::PublicKey;

use crate::base::config::Config;
use crate::base::op::PeerId;
use crate::base::output::State;
use crate::base::random::Random;
use crate::binding::chain::Chains;
use crate::binding::peers::BoundPeer;
use crate::binding::transfer::Transfer;
use crate::flow::FlowLayer;
use crate::flow::table::Flows;
use crate::path::PathLayer;
use crate::session::SessionLayer;
use crate::session::contact::Contacts;

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
mod ready;
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
    /// What roles have below them that have flows go from host to host, where this host takes part in that.
    transfer: Option<Box<Transfer>>,
}

impl BindingLayer {
    /// That of a host without peers and flows, with what is below it.
    pub(crate) fn new(config: &Config, me: PublicKey, random: &mut Random) -> Self {
        let session = SessionLayer::new(Contacts::new(me, random, config));
        let flow = FlowLayer::new(PathLayer::new(session), Flows::new(config, random));
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
            chains: Chains::new(config.carriers.tunnel, random.u32() as u8),
            transfer: Transfer::of(me, config),
        }
    }
}
