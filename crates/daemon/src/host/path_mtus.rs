//! What the kernel knows of the MTUs of paths, and what it is made to forget.

use std::net::IpAddr;

use whimbrel_protocol::{Binding, BindingId, Time, TunnelPath};

use super::tunnels::WayOut;
use super::{DEFAULT_MTU, Host};

impl Host {
    /// Takes in what the kernel knows of the paths by now; returns whether any has changed.
    pub(crate) fn check_mtus(&mut self) -> bool {
        let mut changed = false;
        let paths: Vec<_> = self.tunnels.paths().map(|(id, path)| (id, path.clone())).collect();
        for (id, path) in paths {
            // Without a way there the path is no other for that.
            let Some(mtu) = self.mtu_of(&path) else { continue };
            if self.tunnels.set_mtu(&self.tunnel, &self.streams, id, mtu) {
                changed = true;
                self.learn_mtu(id);
            }
        }
        changed
    }

    /// The packets of a binding leave another way, or the path takes longer ones, or only shorter, or not all of their
    /// wire ports are kept, where that is so by now.
    pub(crate) fn lead_out(&mut self, id: BindingId, binding: &Binding) {
        let allowed = self.tunnels.allowance(id, binding.peer_locator).is_some();
        let wanted = self.data_plane_binding(id, binding);
        let way = WayOut::of(&wanted);
        if allowed || self.ways_out.get(&id) == Some(&way) {
            return;
        }
        match self.datapath.set_binding(id, &wanted) {
            Ok(()) => drop(self.ways_out.insert(id, way)),
            Err(error) => tracing::warn!(%id, %error, "cannot lead a binding's packets out another way"),
        }
    }

    /// The path of a binding may take longer packets than before, or only shorter: so may what is rewritten.
    pub(crate) fn learn_mtu(&mut self, id: BindingId) {
        if let Some(binding) = self.bindings.get(&id).cloned() {
            self.lead_out(id, &binding);
        }
    }

    /// What is carried whole wherever it is sent; `None` where there is no way.
    pub(crate) fn mtu_of(&mut self, path: &TunnelPath) -> Option<u32> {
        let second = path.second.and_then(|second| self.path_mtu(second.remote.ip(), second.source));
        let first = self.path_mtu(path.remote.ip(), path.source)?;
        Some(second.map_or(first, |second| second.min(first)))
    }

    /// What the kernel knows of the MTU of a path, except for what senders were told only to have something sent again;
    /// `None` where there is no way.
    pub(crate) fn path_mtu(&mut self, remote: IpAddr, source: Option<IpAddr>) -> Option<u32> {
        let (learned, interface) = self.addresses.way_to(remote, source)?;
        let link = self.network.link(interface).map_or(DEFAULT_MTU, |link| link.mtu);
        let learned = learned.filter(|mtu| !self.senders.has_told(remote, *mtu));
        Some(learned.map_or(link, |learned| learned.min(link)))
    }

    /// Has the kernel forget the path MTUs that were told only to have something sent again. What a route says itself,
    /// or what was learned on the way, is not taken for it.
    pub(crate) fn forget_told(&mut self, now: Time) {
        for ((source, destination), mtus) in self.senders.take_told(now) {
            // It was noted with the route of that moment, which a route of ours may have taken the place of by now, so
            // that no look-up shows it. IPv4 forgets all that it learned in any case, so that need not be found out.
            if destination.is_ipv4() {
                self.forget_path_mtu(destination, 0);
                continue;
            }
            // IPv6 gives no way from an address that is not there.
            let ways = [Some(source), None].map(|from| self.routes.route_to(destination, from, None));
            let ways = ways.into_iter().chain([self.addresses.under(destination, None)]).flatten();
            let told = |mtu| u16::try_from(mtu).is_ok_and(|mtu| mtus.contains(&mtu));
            let Some(route) = ways.into_iter().find(|route| route.mtu.is_some_and(told)) else { continue };
            self.forget_path_mtu(destination, route.table);
        }
    }

    fn forget_path_mtu(&mut self, destination: IpAddr, table: u32) {
        if let Err(error) = self.routes.forget_path_mtu(destination, table) {
            tracing::warn!(%destination, %error, "a path MTU that is too low stays until it expires");
        }
    }
}
