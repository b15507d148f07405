//! What senders have, and what those that come back to a network go on with (P-246, P-247; decision 0109).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_datapath::{Error, Resumption, TcpSocket, Windows};
use whimbrel_protocol::{Comeback, SendWindows};
use whimbrel_wire::FlowTuple;

/// Threads that have senders come back, at a time: any program can keep one waiting for as long as it likes.
const MOST_OUT: usize = 4;
/// Another is begun beside one that takes longer.
const LATE: Duration = Duration::from_secs(1);
/// To go through all sockets takes one part in so many of the time at the most: peers can have it done by moving
/// (P-143).
const SHARE: u32 = 4;
/// A tenth of the longest round trip of a path of which nothing is known.
const LONGEST: Duration = Duration::from_secs(1);
/// Senders that wait for their turn.
const MOST_WAITING: usize = 4_000;

/// Has senders go on with what they come back to, in a thread.
pub(super) struct Comebacks {
    wanted: bool,
    /// The programs are loaded, or are being loaded.
    prepared: bool,
    windows: Windows,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    waiting: Vec<(FlowTuple, Resumption)>,
    /// Threads there are, and when the last of them was begun.
    out: usize,
    begun: Option<Instant>,
}

impl Comebacks {
    pub(super) fn new(wanted: bool) -> Self {
        let (windows, shared) = (Windows::default(), Arc::default());
        Self { wanted, prepared: false, windows, shared }
    }

    pub(super) const fn are_wanted(&self) -> bool {
        self.wanted
    }

    pub(super) fn set_wanted(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// Senders come back to a network, where anything is known of it, `since` when the kernel's clock says. Where
    /// nothing is, they go on with half of what they had.
    pub(super) fn take(&mut self, senders: &[TcpSocket], comeback: Option<&Comeback>, since: Duration) {
        let shared = comeback.map(|comeback| share(comeback, senders.len(), since));
        let each = |socket: &TcpSocket| shared.or_else(|| first_visit(socket, since));
        self.begin(senders.iter().filter_map(|socket| Some((socket.flow, each(socket)?))).collect());
    }

    /// Nobody comes back at first: the programs are loaded meanwhile.
    fn begin(&mut self, senders: Vec<(FlowTuple, Resumption)>) {
        if !self.wanted || (self.prepared && senders.is_empty()) {
            return;
        }
        self.prepared = true;
        let mut shared = lock(&self.shared);
        if shared.waiting.len() + senders.len() > MOST_WAITING {
            tracing::warn!("connections begin slowly where they come back: too many do, or a program keeps one busy");
            return;
        }
        shared.waiting.extend(senders);
        let late = shared.begun.is_none_or(|begun| begun.elapsed() >= LATE);
        if (shared.out > 0 && !late) || shared.out >= MOST_OUT {
            return;
        }
        let (theirs, windows) = (Arc::clone(&self.shared), self.windows.clone());
        match std::thread::Builder::new().name("windows".to_owned()).spawn(move || work(&theirs, &windows)) {
            Ok(_) => (shared.out, shared.begun) = (shared.out + 1, Some(Instant::now())),
            Err(error) => tracing::warn!(%error, "connections begin slowly where they come back"),
        }
    }
}

/// Until nobody waits.
fn work(shared: &Mutex<Shared>, windows: &Windows) {
    loop {
        let senders = std::mem::take(&mut lock(shared).waiting);
        let begun = Instant::now();
        match windows.resume(&senders) {
            Ok(resumed) => tracing::debug!(resumed, of = senders.len(), "senders go on with what they had"),
            Err(error @ Error::Load { .. }) => {
                tracing::info!(
                    "connections find out anew what a network takes where they come back (Linux 6.5 keeps it)"
                );
                tracing::debug!(%error, "windows are not kept");
            }
            Err(error) => tracing::warn!(%error, "connections begin slowly where they come back"),
        }
        if !senders.is_empty() {
            std::thread::sleep((begun.elapsed() * SHARE).min(LATE));
        }
        let mut shared = lock(shared);
        if shared.waiting.is_empty() {
            shared.out -= 1;
            return;
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all of them have together.
pub(super) fn had(senders: &[TcpSocket]) -> Option<SendWindows> {
    let least = |socket: &TcpSocket| {
        let measured = Some(socket.least_round_trip).filter(|least| !least.is_zero());
        measured.map_or(socket.round_trip, |least| least.min(socket.round_trip))
    };
    Some(SendWindows {
        window: senders.iter().map(|socket| socket.window).sum(),
        threshold: senders.iter().map(|socket| socket.threshold).sum(),
        least: senders.iter().map(least).min()?,
        smoothed: senders.iter().map(|socket| socket.round_trip).max()?,
    })
}

/// What one goes on with where nothing is known: half of what it had where it was, once it has been answered. A path
/// may be much longer, and TCP takes for lost what only takes longer there than it did.
fn first_visit(socket: &TcpSocket, since: Duration) -> Option<Resumption> {
    let SendWindows { window, least, smoothed, .. } = had(std::slice::from_ref(socket))?;
    let most = u32::try_from(window).unwrap_or(u32::MAX - 1);
    let smoothed = smoothed.max(LONGEST);
    Some(Resumption { since, window: most / 2, most, threshold: None, least, smoothed, unknown: true })
}

/// What one of so many goes on with.
fn share(comeback: &Comeback, senders: usize, since: Duration) -> Resumption {
    let part = |bytes: u64| {
        let senders = u64::try_from(senders).unwrap_or(u64::MAX).max(1);
        u32::try_from(bytes / senders).unwrap_or(u32::MAX - 1)
    };
    Resumption {
        since,
        window: part(comeback.begin),
        most: part(comeback.had.window),
        threshold: comeback.had.threshold.map(part),
        least: comeback.had.least,
        smoothed: comeback.had.smoothed,
        unknown: false,
    }
}
