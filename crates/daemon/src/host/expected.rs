//! What the kernel is told of the path that a connection comes to (docs/decisions/0021).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_kernel::checkpoint;
use whimbrel_kernel::inject::Injector;
use whimbrel_wire::FlowTuple;

/// Pairs of addresses, in each namespace, of which a round trip is said beforehand.
const MOST_EXPECTED: usize = 1024;

/// From here on the kernel waits no longer for a path of which it knows nothing (`TCP_TIMEOUT_FALLBACK`, three times
/// this).
const LONGEST_EXPECTED: Duration = Duration::from_secs(1);

/// The round trips that connections of one namespace were made to reckon with at first.
#[derive(Debug, Default)]
pub(crate) struct Expected(HashMap<(IpAddr, IpAddr), Duration>);

impl Expected {
    /// Connections between the addresses of `flow` that are rebuilt next send again what is lost as soon as suits this
    /// round trip. The calling thread is to be in the namespace, whose `injector` it is.
    pub(crate) fn say(&mut self, flow: &FlowTuple, round_trip: Duration, injector: &Injector) {
        let ends = (flow.local.ip(), flow.remote.ip());
        // What is measured is never quite the same. And where sockets of very many hosts come at once, they are to come
        // soon.
        if self.0.get(&ends).is_some_and(|before| *before >= round_trip) || self.0.len() >= MOST_EXPECTED {
            return;
        }
        let with_margin = round_trip + round_trip / 4 + Duration::from_millis(1);
        if with_margin >= LONGEST_EXPECTED {
            return;
        }
        // What fails once is not tried for each connection.
        self.0.insert(ends, with_margin);
        if let Err(error) = checkpoint::expect_round_trip(ends.0, ends.1, with_margin, injector) {
            tracing::debug!(%flow, %error, "what is lost first on a new path is sent again late");
        }
    }
}
