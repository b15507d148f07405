//! What most tests begin with.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_protocol::Config;
use whimbrel_sim::{Access, Carried, FlowId, HostId, Nat, NatPorts, NetworkId, World};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const SERVICE: &str = "10.9.0.1:80";

/// A client and a server on networks of their own, with more networks to go to:
///
/// ```text
/// client 10.1.0.2 -- home --+
///                    away --+-- core -- far -- server 10.9.0.1
///                 further --+
///      nat (192.168.1.0/24) +   outside 10.100.0.1
/// second nat (192.168.1.0/24)   outside 10.100.0.2
/// ```
pub(crate) struct Two {
    pub(crate) world: World,
    pub(crate) client: HostId,
    pub(crate) server: HostId,
    pub(crate) home: NetworkId,
    pub(crate) away: NetworkId,
    pub(crate) further: NetworkId,
    pub(crate) far: NetworkId,
    pub(crate) nat: NetworkId,
    pub(crate) second_nat: NetworkId,
}

/// Whether every step is to be tried, and not only a share of them that takes seconds.
pub(crate) fn thorough() -> bool {
    std::env::var_os("WHIMBREL_SIM_LONG").is_some()
}

/// The seeds of random runs: as many as asked for (`WHIMBREL_SIM_RUNS`), from the one asked for (`WHIMBREL_SIM_SEED`).
pub(crate) fn seeds(otherwise: u64, where_thorough: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("WHIMBREL_SIM_SEED").unwrap_or(1);
    let runs = number("WHIMBREL_SIM_RUNS").unwrap_or(if thorough() { where_thorough } else { otherwise });
    first..first + runs
}

/// One, or a stride where not all is to be tried.
pub(crate) fn stride(otherwise: usize) -> usize {
    if thorough() { 1 } else { otherwise }
}

pub(crate) const HOME: &str = "10.1.0.2";
pub(crate) const AWAY: &str = "10.2.0.2";
pub(crate) const FURTHER: &str = "10.3.0.2";
pub(crate) const INSIDE: &str = "192.168.1.2";

/// A NAT that resets what it does not know.
pub(crate) fn nat(outside: &str, ports: NatPorts) -> Access {
    Access::Translated(Nat::new(address(outside), ports))
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Two {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, Config::default(), Config::default())
    }

    /// The client is not attached yet.
    pub(crate) fn nowhere(seed: u64, client: Config, server: Config) -> Self {
        let mut world = World::new(seed);
        let [home, away, further, far] = std::array::from_fn(|_| world.network(Access::Open));
        let behind = world.network(nat("10.100.0.1", NatPorts::Preserving));
        let second_nat = world.network(nat("10.100.0.2", NatPorts::Random));
        let client = world.host_with("client", client);
        let server = world.host_with("server", server);
        world.attach(server, far, "10.9.0.1");
        Self { world, client, server, home, away, further, far, nat: behind, second_nat }
    }

    pub(crate) fn with(seed: u64, client: Config, server: Config) -> Self {
        let mut two = Self::nowhere(seed, client, server);
        two.world.attach(two.client, two.home, HOME);
        two
    }

    /// With some flows, introduced, and traffic on them.
    pub(crate) fn flowing(seed: u64, flows: usize) -> (Self, Vec<FlowId>) {
        let mut two = Self::new(seed);
        let flows = two.flow(flows);
        (two, flows)
    }

    /// The same, from behind the first NAT.
    pub(crate) fn flowing_inside(seed: u64, flows: usize) -> (Self, Vec<FlowId>) {
        let mut two = Self::nowhere(seed, Config::default(), Config::default());
        two.world.attach(two.client, two.nat, INSIDE);
        let flows = two.flow(flows);
        (two, flows)
    }

    /// Opens flows to the service, and waits until they are introduced.
    pub(crate) fn flow(&mut self, count: usize) -> Vec<FlowId> {
        let flows: Vec<FlowId> = (0..count).map(|_| self.world.connect(self.client, SERVICE)).collect();
        self.world.set_beat(Some(Duration::from_millis(7)));
        introduced(&mut self.world, &flows);
        self.world.assert_delivering(SECOND);
        flows
    }
}

pub(crate) fn introduced(world: &mut World, flows: &[FlowId]) {
    let done = world.wait(15 * SECOND, |w| flows.iter().all(|flow| w.introduced(*flow)));
    assert!(done, "not introduced");
}

/// How the last segments of a flow came, at each end.
pub(crate) fn carried(world: &World, flow: FlowId) -> [Option<Carried>; 2] {
    world.flow(flow).carried
}

pub(crate) fn settle_as(world: &mut World, flows: &[FlowId], how: Carried) {
    let so = world.wait(5 * SECOND, |w| flows.iter().all(|flow| carried(w, *flow) == [Some(how); 2]));
    assert!(so, "carried {:?}", flows.iter().map(|flow| carried(world, *flow)).collect::<Vec<_>>());
}
