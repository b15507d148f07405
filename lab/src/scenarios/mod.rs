//! Scenarios: a topology, programs, something that happens, and what must be so afterwards.

mod absence;
mod anchor;
mod bus;
mod command_line;
mod community;
mod datagrams;
mod duplicated;
mod fallback;
mod families;
mod faults;
mod forgetful;
mod gateway;
mod handshake;
mod helpers;
mod hostile;
mod interrupted;
mod kick;
mod lab_itself;
mod leases;
mod lending;
mod lent;
mod library;
mod long_absence;
mod members;
mod mptcp;
mod name_server;
pub mod nats;
mod newcomer;
mod odd_networks;
mod onward;
mod pairing;
mod policy;
mod preferred;
mod processes;
mod programs;
mod random_events;
mod real_programs;
mod records;
mod refused;
mod relocation;
mod rendezvous;
mod roam;
mod server_processes;
mod servers;
mod shown;
mod silent;
mod sockets;
mod stand_in;
mod states;
mod struck_servers;
mod surroundings;
mod udp_server;
mod unmoved;
mod unnoticed;
mod upgrade;
mod wifi;
mod windows;
mod world;
mod young;

pub use self::long_absence::soak;
use crate::{Lab, Result};

/// A scenario by name.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// How it is called on the command line.
    pub name: &'static str,
    /// What happens and what must be so, in one sentence.
    pub description: &'static str,
    /// False for those that try the lab alone.
    pub needs_daemon: bool,
    /// Does it; an error if something is not as it must be.
    pub run: fn(&mut Lab) -> Result<()>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scenario({})", self.name)
    }
}

/// The scenarios of the test suite, in the order in which they are run.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        lab_itself::SCENARIOS,
        roam::SCENARIOS,
        silent::SCENARIOS,
        fallback::SCENARIOS,
        preferred::SCENARIOS,
        duplicated::SCENARIOS,
        bus::SCENARIOS,
        random_events::SCENARIOS,
        newcomer::SCENARIOS,
        young::SCENARIOS,
        handshake::SCENARIOS,
        families::SCENARIOS,
        kick::SCENARIOS,
        windows::SCENARIOS,
        absence::SCENARIOS,
        helpers::SCENARIOS,
        rendezvous::SCENARIOS,
        stand_in::SCENARIOS,
        name_server::SCENARIOS,
        nats::SCENARIOS,
        forgetful::SCENARIOS,
        unmoved::SCENARIOS,
        unnoticed::SCENARIOS,
        surroundings::SCENARIOS,
        community::SCENARIOS,
        sockets::SCENARIOS,
        library::SCENARIOS,
        members::SCENARIOS,
        mptcp::SCENARIOS,
        pairing::SCENARIOS,
        policy::SCENARIOS,
        faults::SCENARIOS,
        upgrade::SCENARIOS,
        hostile::SCENARIOS,
        real_programs::SCENARIOS,
        datagrams::SCENARIOS,
        command_line::SCENARIOS,
        anchor::SCENARIOS,
        servers::SCENARIOS,
        gateway::SCENARIOS,
        leases::SCENARIOS,
        lending::SCENARIOS,
        lent::SCENARIOS,
        relocation::SCENARIOS,
        odd_networks::SCENARIOS,
        onward::SCENARIOS,
        interrupted::SCENARIOS,
        refused::SCENARIOS,
        states::SCENARIOS,
        shown::SCENARIOS,
        udp_server::SCENARIOS,
        processes::SCENARIOS,
        server_processes::SCENARIOS,
        struck_servers::SCENARIOS,
        records::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// Sessions of many real programs, each through moves and a sleep. `./setup programs` installs what they need; they are
/// not part of the test suite.
pub fn programs() -> impl Iterator<Item = &'static Scenario> {
    programs::scenarios()
}

/// Those that take minutes; they are not part of the test suite.
pub fn long() -> impl Iterator<Item = &'static Scenario> {
    long_absence::SCENARIOS
        .iter()
        .chain(random_events::LONG_SCENARIOS)
        .chain(nats::LONG_SCENARIOS)
        .chain(forgetful::LONG_SCENARIOS)
}

/// Those that need simulated radios; `make test-kernels` runs them in a guest that has some.
pub fn wifi() -> impl Iterator<Item = &'static Scenario> {
    wifi::SCENARIOS.iter()
}

/// Those that `make test-quick` runs: one or two of each subject, none that takes long.
const QUICK: &[&str] = &[
    "lab-links",
    "roam-public",
    "roam-into-nat",
    "roam-overlap",
    "roam-family",
    "tunnel-forced",
    "outage-kick",
    "sleep",
    "started-anew",
    "helper-stop",
    "both-move-at-once",
    "left-address-taken",
    "strict-rp-filter",
    "new-owner",
    "two-mobiles-one-nat",
    "neighbour-behind-nat",
    "community",
    "library-give",
    "members-own",
    "options-stripped",
    "policy",
    "kill9-both",
    "lossy-handoff",
    "overtaken",
    "ssh-interactive",
    "udp-flow",
    "views",
    "anchored",
    "anchored-direct",
    "gateway",
    "moved-socket",
    "moved-socket-direct",
    "moved-states",
    "moved-listener",
    "moved-process",
    "move-refused",
    "records",
];

/// Whether `make test-quick` runs it.
pub fn is_quick(scenario: &Scenario) -> bool {
    QUICK.contains(&scenario.name)
}

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    all().chain(programs()).chain(long()).chain(wifi()).find(|scenario| scenario.name == name)
}

/// Shorthand for the tables of scenarios.
const fn scenario(name: &'static str, description: &'static str, run: fn(&mut Lab) -> Result<()>) -> Scenario {
    Scenario { name, description, needs_daemon: true, run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_ones_are_scenarios_of_the_suite() {
        for name in QUICK {
            assert!(all().any(|scenario| scenario.name == *name), "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_typeable() {
        let names: Vec<_> = all().chain(programs()).chain(long()).chain(wifi()).map(|s| s.name).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
            assert!(!names[..i].contains(name), "{name} twice");
        }
    }
}
