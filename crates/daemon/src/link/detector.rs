//! Between kinds of links and the rest. Each kind has a detector, which finds out by itself what it can know of links,
//! and says it as [`LinkFacts`]. The node decides what is done with that, and no detector knows it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{LinkFacts, LinkId, Time};

/// What finds out about links of one kind. It never blocks for long: what it waits for is said by [`Detector::fds`] and
/// [`Detector::due`]. What it cannot find out it says nothing of, and a host that lacks what it looks at is no failure.
pub(crate) trait Detector: Debug {
    /// Readable when there is something to take in. Asked for once, at the start.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// When it wants to be called by itself.
    fn due(&self) -> Option<Time> {
        None
    }

    /// There may be something to take in, or its moment may have come; or neither, since it was another's turn.
    fn handle(&mut self, _now: Time) {}

    /// The kernel has told of a change: of interfaces, perhaps, their carriers, addresses or routes. Called once at the
    /// start as well.
    fn handle_network(&mut self, now: Time, network: &NetworkState);

    /// Whether anybody wants signals and rates, which may have to be asked for again and again.
    fn measure(&mut self, _now: Time, _wanted: bool) {}

    /// What it knows now, of each link that it knows anything of.
    fn facts(&self) -> BTreeMap<LinkId, LinkFacts>;
}
