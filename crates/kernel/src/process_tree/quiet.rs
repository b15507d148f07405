//! Processes to which no new connections come, until what had come is theirs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use whimbrel_wire::FlowTuple;

use super::{Unfit, flows_of, network_of, queued, tied};
use crate::namespace::Entered;
use crate::sock_diag::{SockDiag, TcpState};

/// Between looks.
const LOOK: Duration = Duration::from_millis(5);
/// Processes whose connections are the same for so long are taken to keep them: what is asked and answered in one
/// breath is over by then.
const STEADY: Duration = Duration::from_millis(200);
/// Connections that are being opened come to be open within this, also where an answer was lost once, which the kernel
/// sends again after a second (`TCP_TIMEOUT_INIT`). Others are not waited for: many that ask never open.
const OPENED_WITHIN: Duration = Duration::from_millis(1500);

/// Waits, while no new connections come to any of these ends of theirs, until processes have accepted all that are
/// open, none is being opened, and they have not opened or closed any for a moment. The latter two are not waited for
/// longer than `patience`, as nothing is lost where they go on.
///
/// # Errors
/// [`Unfit`]: they do not accept what waits, or are gone.
pub fn grow_quiet(pids: &[u32], ends: &[SocketAddr], patience: Duration) -> Result<(), Unfit> {
    let Some(first) = pids.first() else { return Ok(()) };
    let mut sockets = {
        let _inside = Entered::descriptor(network_of(*first)?.as_fd())?;
        SockDiag::open()?
    };
    let begun = Instant::now();
    let (mut before, mut since): (Option<BTreeSet<FlowTuple>>, Instant) = (None, begun);
    loop {
        let waiting = queued(pids)?;
        let half = sockets.tcp(&[TcpState::SynReceived])?;
        let opening = half.iter().any(|of| ends.contains(&of.tuple.local)) && begun.elapsed() < OPENED_WITHIN;
        // One that is being opened by them is looked at again, too.
        let flows = flows_of(pids).ok();
        if flows.is_none() || flows != before {
            (before, since) = (flows, Instant::now());
        }
        let late = begun.elapsed() >= patience;
        match waiting {
            None if !opening && (late || since.elapsed() >= STEADY) => return Ok(()),
            Some((at, waiting)) if late => {
                return Err(tied(format!("{waiting} connections wait at {at} to be accepted, and are not")));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
}
