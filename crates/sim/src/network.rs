//! Access networks, and what their links do to packets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::host::HostId;
use crate::nat::{Filter, Nat};
use crate::random::Random;

/// An access network's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkId(pub usize);

/// What stands between an access network and the core.
#[derive(Clone, Debug)]
pub enum Access {
    /// A router.
    Open,
    /// One that lets out what bears an address of its own network alone (RFC 2827).
    Checked,
    /// A stateful firewall.
    Filtered(Filter),
    /// A NAT; addresses inside may be used elsewhere as well.
    Translated(Nat),
}

/// How packets fare between an access network and the core, one way.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// At the least.
    pub delay: Duration,
    /// Added by chance. Packets do not keep their order under it.
    pub jitter: Duration,
    /// Of a thousand packets, so many are lost.
    pub loss: u32,
    /// So many arrive twice.
    pub duplicate: u32,
    /// So many are kept back for several delays.
    pub reorder: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { delay: Duration::from_millis(5), jitter: Duration::ZERO, loss: 0, duplicate: 0, reorder: 0 }
    }
}

impl Link {
    /// When copies of a packet come out: none if it is lost.
    pub(crate) fn carry(&self, random: &mut Random) -> Vec<Duration> {
        if random.permille(self.loss) {
            return Vec::new();
        }
        let mut delay = self.delay + random.duration(self.jitter);
        if random.permille(self.reorder) {
            delay += self.delay * 3 + random.duration(self.delay * 3);
        }
        if random.permille(self.duplicate) { vec![delay, delay + random.duration(self.delay * 2)] } else { vec![delay] }
    }
}

/// An access network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) access: Access,
    pub(crate) link: Link,
    /// Nothing goes in or out, though hosts are attached: a cable pulled beyond the gateway.
    pub(crate) cut: bool,
    pub(crate) hosts: BTreeMap<IpAddr, HostId>,
}
