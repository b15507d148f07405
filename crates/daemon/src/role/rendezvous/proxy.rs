//! Standing in for hosts that have left this host's links: an address is answered for once it is seen that nobody has
//! it, and given up when somebody does.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use whimbrel_kernel::neighbour::proxy::{NeighbourProxy, Seen};
use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{NeighbourProxyStatus, Node, Time};

/// How often it is asked whether anybody has an address, and how long an answer is waited for. RFC 5227 §2.1.1 has
/// seconds between, for hosts that are yet to be plugged in; here each moment holds connections up, and a claim is
/// heeded later too.
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_millis(150);
/// It is said twice that the address is answered for (RFC 5227 §2.3).
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(2);

/// The addresses that this host stands in for.
#[derive(Debug, Default)]
pub(crate) struct ProxyExecutor {
    /// Where this host stands in for anybody at all.
    links: Option<NeighbourProxy>,
    addresses: BTreeMap<IpAddr, Progress>,
    /// What is not stood in for after all.
    aside: Vec<(IpAddr, NeighbourProxyStatus)>,
}

/// How far it is with an address.
#[derive(Debug)]
struct Progress {
    interface: u32,
    steps: u32,
    /// When the next is due.
    due: Option<Time>,
}

impl ProxyExecutor {
    /// Stands in for others from now on.
    pub(crate) fn serve(&mut self, port: u16) -> Result<(), whimbrel_kernel::Error> {
        self.links = Some(NeighbourProxy::open(port)?);
        Ok(())
    }

    /// Readable when something concerns an address that is stood in for.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.links.as_ref().map(AsFd::as_fd)
    }

    /// These are to be stood in for, and no others.
    pub(crate) fn set(&mut self, now: Time, wanted: &[IpAddr], network: &NetworkState) {
        let over: Vec<IpAddr> = self.addresses.keys().filter(|address| !wanted.contains(address)).copied().collect();
        for address in over {
            self.leave(address);
        }
        for address in wanted {
            if !self.addresses.contains_key(address) {
                self.begin(now, *address, network);
            }
        }
    }

    fn begin(&mut self, now: Time, address: IpAddr, network: &NetworkState) {
        let Some(links) = &mut self.links else {
            self.aside.push((address, NeighbourProxyStatus::Refused));
            return;
        };
        let Some(interface) = link_of(network, address) else {
            self.aside.push((address, NeighbourProxyStatus::OffLink));
            return;
        };
        if let Err(error) = links.watch(interface, address) {
            tracing::warn!(%address, %error, "cannot stand in");
            self.aside.push((address, NeighbourProxyStatus::OffLink));
            return;
        }
        self.addresses.insert(address, Progress { interface, steps: 0, due: Some(now) });
        self.go_on(now);
    }

    fn leave(&mut self, address: IpAddr) {
        if self.addresses.remove(&address).is_some()
            && let Some(Err(error)) = self.links.as_mut().map(|links| links.leave(address))
        {
            tracing::debug!(%address, %error, "what concerns it is looked at in vain");
        }
    }

    /// Does what is due: asks whether anybody has an address, and answers for it where nobody does.
    pub(crate) fn go_on(&mut self, now: Time) {
        let Some(links) = &mut self.links else { return };
        for (address, progress) in &mut self.addresses {
            if progress.due.is_none_or(|due| due > now) {
                continue;
            }
            progress.steps += 1;
            let said = if progress.steps <= PROBES { links.probe(*address) } else { links.take(*address) };
            if let Err(error) = said {
                tracing::debug!(%address, %error, "cannot speak on the link");
            }
            progress.due = match progress.steps {
                ..=PROBES => Some(now + PROBE_PAUSE),
                steps if steps == PROBES + 1 => Some(now + ANNOUNCE_PAUSE),
                _ => None,
            };
        }
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        self.addresses.values().filter_map(|progress| progress.due).min()
    }

    /// Tells the node what has come for hosts that have left this host's links, so many packets of it.
    pub(crate) fn handle_intercepted(&mut self, now: Time, node: &mut Node, most: usize) {
        for _ in 0..most {
            match self.receive() {
                Some(Seen::Datagram { address, source, payload }) => {
                    node.handle_intercepted(now, address, source, &payload);
                }
                Some(Seen::Claimed { .. } | Seen::Other) => {}
                None => return,
            }
        }
    }

    /// Takes in the next packet that may concern an address that is stood in for; claims are heeded by the way.
    fn receive(&mut self) -> Option<Seen> {
        match self.links.as_mut()?.receive() {
            Ok(seen) => {
                if let Some(Seen::Claimed { address }) = seen
                    && self.addresses.contains_key(&address)
                {
                    self.leave(address);
                    self.aside.push((address, NeighbourProxyStatus::Taken));
                }
                seen
            }
            Err(error) => {
                tracing::debug!(%error, "cannot hear what comes for hosts that have left");
                None
            }
        }
    }

    /// The network is another: links may be gone.
    pub(crate) fn network_changed(&mut self, network: &NetworkState) {
        let gone = |(address, progress): &(&IpAddr, &Progress)| link_of(network, **address) != Some(progress.interface);
        let gone: Vec<IpAddr> = self.addresses.iter().filter(gone).map(|(address, _)| *address).collect();
        for address in gone {
            self.leave(address);
            self.aside.push((address, NeighbourProxyStatus::OffLink));
        }
    }

    /// Takes what is not stood in for after all, and why.
    pub(crate) fn take_aside(&mut self) -> Vec<(IpAddr, NeighbourProxyStatus)> {
        std::mem::take(&mut self.aside)
    }
}

/// The link that an address belongs to, by the addresses that this host has there. Where the last host has left, it may
/// be without carrier: what comes for it by other links is taken in all the same.
fn link_of(network: &NetworkState, address: IpAddr) -> Option<u32> {
    let up = |interface| network.link(interface).is_some_and(|link| link.up && !link.loopback);
    let own = network.addresses.iter().filter(|own| own.address.is_ipv4() == address.is_ipv4() && up(own.interface));
    let mut links: Vec<u32> = own.map(|own| own.interface).collect();
    links.dedup();
    links.into_iter().find(|link| network.is_on_link(*link, address))
}
