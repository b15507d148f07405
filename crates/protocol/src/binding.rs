//! Where a peer's flows go: how either end moves, what carries them, and what is wanted of the kernel for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use whimbrel_handshake::PublicKey;

use crate::base::config::Config;
use crate::base::op::{Led, PeerId};
use crate::base::output::State;
use crate::base::random::Random;
use crate::binding::chain::Chains;
use crate::binding::masks::{MaskedNetworks, Masks};
use crate::binding::peers::{BoundMut, BoundPeer, BoundRef};
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
mod choice;
mod comeback;
mod confirm;
pub(crate) mod desired;
mod fallback;
mod family;
mod follow;
mod forgotten;
pub(crate) mod handoff;
mod install;
mod keepalive;
pub(crate) mod lead;
mod mapping;
mod masked;
mod masks;
mod mend;
mod messages;
pub(crate) mod moved;
mod pairs;
pub(crate) mod placed;
mod ready;
mod sides;
mod stall;
pub(crate) mod transfer;
mod unconfirmed;
pub(crate) mod untold;
pub(crate) mod update;
mod view;
pub(crate) mod windows;

/// Where peers' flows go, and what the kernel is wanted to do for it.
pub(crate) struct BindingLayer {
    flow: FlowLayer,
    peers: BTreeMap<PeerId, BoundPeer>,
    /// What could not be made so, and how often that was tried again.
    failed: BTreeSet<State>,
    mended: u32,
    /// Which peer rewritten packets between two locators (ours, its) belong to.
    pairs: HashMap<(IpAddr, IpAddr), PeerId>,
    listening: Vec<u32>,
    keeping: Vec<IpAddr>,
    leaving: Vec<IpAddr>,
    reaching: Vec<(IpAddr, bool)>,
    led: Vec<Led>,
    chains: Chains,
    masked_networks: MaskedNetworks,
    /// What masked updates of all peers may have this host do (P-244).
    masks: Masks,
    /// Peers with bindings of single flows.
    sided: BTreeSet<PeerId>,
    /// Those of them of whom something has changed that decides how their flows go.
    sides_due: BTreeSet<PeerId>,
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
            led: Vec::new(),
            sided: BTreeSet::new(),
            masked_networks: MaskedNetworks::default(),
            masks: Masks::of_all(),
            sides_due: BTreeSet::new(),
            chains: Chains::new(config.carriers.tunnel, random.u32() as u8),
            transfer: Transfer::of(me, config),
        }
    }

    pub(crate) fn flow(&self) -> &FlowLayer {
        &self.flow
    }

    pub(crate) fn flow_mut(&mut self) -> &mut FlowLayer {
        &mut self.flow
    }

    pub(crate) fn path(&self) -> &PathLayer {
        self.flow.path()
    }

    pub(crate) fn path_mut(&mut self) -> &mut PathLayer {
        self.flow.path_mut()
    }

    pub(crate) fn session(&self) -> &SessionLayer {
        self.flow.session()
    }

    pub(crate) fn session_mut(&mut self) -> &mut SessionLayer {
        self.flow.session_mut()
    }

    /// One peer, with its flows and where these go.
    pub(crate) fn peer(&self, id: &PeerId) -> Option<BoundRef<'_>> {
        bound!(self, id)
    }

    /// The same, to be changed.
    pub(crate) fn peer_mut(&mut self, id: &PeerId) -> Option<BoundMut<'_>> {
        bound_mut!(self, id)
    }

    pub(crate) fn chains(&self) -> &Chains {
        &self.chains
    }

    pub(crate) fn chains_mut(&mut self) -> &mut Chains {
        &mut self.chains
    }

    /// Addresses that this host keeps for flows that are at home there.
    pub(crate) fn keeping(&self) -> &[IpAddr] {
        &self.keeping
    }

    /// Entries of what is wanted of the kernel for all peers together.
    pub(crate) fn entries(&self) -> usize {
        self.listening.len()
            + self.keeping.len()
            + self.leaving.len()
            + self.reaching.len()
            + self.led.len()
            + self.failed.len()
    }
}
