//! Paths of the tunnel, with what only this host knows of them: MTUs, and where a peer was before.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

use whimbrel_datapath as datapath;
use whimbrel_protocol::{BindingId, ChainOp, OpDone, TunnelPath};
use whimbrel_tunnel::tcp::Streams;
use whimbrel_tunnel::{PathError, SecondWay, Tunnel};

use super::chains::Chains;
/// Of Ethernet, where nothing better is known, in bytes.
pub(crate) const DEFAULT_MTU: u32 = 1500;
/// Before there is any path: fits a tunnel over Ethernet in either family.
const UNKNOWN_INNER_MTU: u32 = 1400;
/// Former endpoints of a peer that plain datagrams are still accepted from (P-22).
const FORMER: usize = 2;

/// The path of each binding.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    paths: HashMap<BindingId, Path>,
    chains: Chains,
}

#[derive(Debug)]
struct Path {
    receive_index: u32,
    said: TunnelPath,
    whole: whimbrel_tunnel::TunnelPath,
    former: Vec<SocketAddr>,
    mtu: u32,
    /// The longest inner packet that fits whole.
    inner_mtu: u32,
    /// What is allowed on the path (P-18) and is kept for what will be sent again.
    spared: u64,
}

impl Tunnels {
    /// The packets of a binding go there from now on. `mtu` is the path's, in bytes. `spare`: nothing is sent on a path
    /// that is not confirmed until [`Tunnels::open`] is called.
    pub(crate) fn set_path(
        &mut self,
        tunnel: &Tunnel,
        streams: &Streams,
        id: BindingId,
        receive_index: u32,
        path: TunnelPath,
        mtu: u32,
        spare: bool,
    ) -> Result<(), PathError> {
        let mut former = Vec::new();
        if let Some(before) = self.paths.get(&id) {
            former.clone_from(&before.former);
            if before.said.remote != path.remote {
                former.insert(0, before.said.remote);
            }
            former.retain(|endpoint| *endpoint != path.remote);
            former.truncate(FORMER);
        }
        let by_stream = streams.way_to(path.remote);
        let second = path.second.map(|second| {
            let by_stream = streams.way_to(second.remote);
            SecondWay {
                source: second.source,
                interface: second.link.filter(|_| by_stream.is_none()).map(|link| link.0),
                remote: by_stream.unwrap_or(second.remote),
            }
        });
        let whole = whimbrel_tunnel::TunnelPath {
            send_index: path.send_index,
            sealed: path.sealed,
            // Both ends are configured alike, or the sealed kind is used.
            accept_plain: !path.sealed,
            former: former.iter().map(|at| streams.way_to(*at).unwrap_or(*at)).collect(),
            source: path.source,
            interface: path.link.filter(|_| by_stream.is_none()).map(|link| link.0),
            remote: by_stream.unwrap_or(path.remote),
            second,
            allowance: path.allowance.map(|allowance| if spare { 0 } else { allowance }),
            path_mtu: mtu,
            chain: self.chains.of(id),
        };
        let inner_mtu = whole.inner_mtu_behind(self.chains.added(id));
        tunnel.set_path(id, receive_index, whole.clone())?;
        let before = self.paths.get(&id).map(|path| path.said.remote);
        streams.lead(Some(path.remote), before);
        let spared = if spare { path.allowance.unwrap_or(0) } else { 0 };
        self.paths.insert(id, Path { receive_index, said: path, whole, former, mtu, inner_mtu, spared });
        Ok(())
    }

    /// Lets go what was spared on a path.
    pub(crate) fn open(&mut self, tunnel: &Tunnel, id: BindingId) {
        if let Some(path) = self.paths.get_mut(&id).filter(|path| path.spared > 0) {
            tunnel.grant(id, std::mem::take(&mut path.spared));
        }
    }

    /// Carries out an op on chains. The longest packet that fits the tunnel to a peer may be another then.
    pub(crate) fn carry_out_on_chain(&mut self, tunnel: &Tunnel, op: &ChainOp) -> OpDone {
        let done = self.chains.carry_out(tunnel, op);
        if let ChainOp::SendThrough { peer, chain } = op {
            if let Err(error) = tunnel.send_through(*peer, chain.map(NonZeroU8::from)) {
                tracing::error!(%peer, %error, "cannot lead packets through a chain of transforms");
            }
            let id = BindingId::first(*peer);
            if let Some(path) = self.paths.get_mut(&id) {
                path.inner_mtu = path.whole.inner_mtu_behind(self.chains.added(id));
            }
        }
        done
    }

    /// Sets a path again where another MTU is found for it; returns whether it is.
    pub(crate) fn set_mtu(&mut self, tunnel: &Tunnel, streams: &Streams, id: BindingId, mtu: u32) -> bool {
        let Some(path) = self.paths.get(&id).filter(|path| path.mtu != mtu && path.said.allowance.is_none()) else {
            return false;
        };
        let (receive_index, said) = (path.receive_index, path.said.clone());
        // The session may have ended meanwhile; its successor brings its own path.
        self.set_path(tunnel, streams, id, receive_index, said, mtu, false).is_ok()
    }

    /// Forgets a binding.
    pub(crate) fn remove(&mut self, tunnel: &Tunnel, streams: &Streams, id: BindingId) {
        streams.lead(None, self.paths.remove(&id).map(|path| path.said.remote));
        tunnel.remove_path(id);
    }

    /// All paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (BindingId, &TunnelPath)> {
        self.paths.iter().map(|(id, path)| (*id, &path.said))
    }

    /// Whether a path of a binding's is another way than the one that it has.
    pub(crate) fn leads_elsewhere(&self, id: BindingId, path: &TunnelPath) -> bool {
        let way = |path: &TunnelPath| (path.source, path.remote.ip());
        self.paths.get(&id).is_none_or(|before| way(&before.said) != way(path))
    }

    /// Bytes that may still go to a peer at `locator`, where it is not confirmed there (P-18).
    pub(crate) fn allowance(&self, id: BindingId, locator: IpAddr) -> Option<u64> {
        self.paths.get(&id).filter(|path| path.said.remote.ip() == locator).and_then(|path| path.said.allowance)
    }

    /// The MTU of a path, in bytes.
    pub(crate) fn mtu(&self, id: BindingId) -> Option<u32> {
        self.paths.get(&id).map(|path| path.mtu)
    }

    /// The same where the peer is at `locator`.
    pub(crate) fn mtu_towards(&self, id: BindingId, locator: IpAddr) -> Option<u32> {
        self.paths.get(&id).filter(|path| path.said.remote.ip() == locator).map(|path| path.mtu)
    }

    /// The longest packet that fits the tunnel of this binding whole, in bytes, where it has a path.
    pub(crate) fn known_inner_mtu(&self, id: BindingId) -> Option<u32> {
        self.paths.get(&id).map(|path| path.inner_mtu)
    }

    /// The same with a guess where it has none.
    pub(crate) fn inner_mtu_of(&self, id: BindingId) -> u32 {
        self.known_inner_mtu(id).unwrap_or(UNKNOWN_INNER_MTU)
    }

    /// The longest packet that fits any tunnel whole, in bytes.
    pub(crate) fn longest_inner(&self) -> u32 {
        self.paths.values().map(|path| path.inner_mtu).max().unwrap_or(UNKNOWN_INNER_MTU)
    }

    /// The longest packet that fits all tunnels whole, in bytes.
    pub(crate) fn inner_mtu(&self) -> u32 {
        self.paths.values().map(|path| path.inner_mtu).min().unwrap_or(UNKNOWN_INNER_MTU)
    }
}

/// How what is rewritten for a peer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WayOut {
    pub(crate) interface: u32,
    /// As long as a packet may be, in bytes; 0: not known.
    mtu: u32,
    names_kept: bool,
}

impl WayOut {
    pub(crate) fn of(binding: &datapath::Binding) -> Self {
        Self { interface: binding.interface, mtu: binding.mtu, names_kept: binding.names_kept }
    }
}
