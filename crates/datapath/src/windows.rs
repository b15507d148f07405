//! Senders that come back to a network go on with what they had there (`bpf/windows.bpf.c`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::Link;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Error;
use crate::abi::{RawResumption, RawTuple};
use crate::datapath::namespace_cookie;
use crate::object::{NAME_BYTES, Programs};
use crate::sockets::visit;
use crate::table::Table;

/// Senders that are taken up in one pass (`resumptions`).
const AT_ONCE: usize = 4096;

/// What the sender of one connection comes back to, or had where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// By [`monotonic`]: what was sent before that went another way.
    pub since: Duration,
    /// With how many bytes under way it goes on, once the first has been answered from there.
    pub window: u32,
    /// How many it had there.
    pub most: u32,
    /// Slow start threshold, in bytes; `None`: there was none yet.
    pub threshold: Option<u32>,
    /// The least round trip there.
    pub least: Duration,
    /// The round trip there, smoothed; where it is it may be ten times that.
    pub smoothed: Duration,
    /// Nothing is known of where it is: the rest is what it had where it was. What is lost or taken for lost meanwhile
    /// takes no more from it than that, and where it has not come to an end since it moved last it stays as it is.
    pub unknown: bool,
}

impl RawResumption {
    fn new(resumption: &Resumption) -> Self {
        let Resumption { since, window, most, threshold, least, smoothed, unknown } = *resumption;
        let microseconds = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        Self {
            since: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            window,
            most,
            threshold: threshold.unwrap_or(u32::MAX),
            least: microseconds(least),
            smoothed: microseconds(smoothed),
            unknown: u32::from(unknown),
        }
    }
}

/// The congestion control that resumes, registered on first use for as long as this lives; a clone is the same one.
/// Sockets that have it then keep it until they put their own back.
#[derive(Clone, Debug, Default)]
pub struct Windows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Ready(Arc<Registered>),
    /// This kernel does not take it.
    Refused,
}

#[derive(Debug)]
struct Registered {
    name: String,
    _link: Link,
    programs: Programs,
    resumptions: Table<RawTuple, RawResumption>,
}

// SAFETY: libbpf ties a link to no thread.
unsafe impl Send for Registered {}
// SAFETY: nobody does anything with the link but drop it.
unsafe impl Sync for Registered {}

impl Windows {
    /// Has the TCP senders of these flows, in the calling thread's network namespace, go on with what they come back
    /// to, in the phases of RFC 9959: nothing changes before something that was sent since has been answered, in a time
    /// that may be that of the network; the window is then sent over one round trip; where some of it is lost, less
    /// is sent than has arrived. A window that is larger than what there was is reduced to that at once. Sockets have
    /// another congestion control meanwhile (TCP_CONGESTION), and put back their own, which begins anew with the window
    /// and the threshold that it finds. Gives how many there are. With none it is made ready, which takes some time.
    ///
    /// Goes through all sockets of the namespace, and waits for each that is busy, as
    /// [`crate::Datapath::fit_sockets`] does; so this is for another thread.
    ///
    /// # Errors
    /// When the kernel does not let congestion controls be written (before Linux 6.5, [`crate::Features::windows`]):
    /// that is said once, and nothing is done from then on.
    pub fn resume(&self, flows: &[(FlowTuple, Resumption)]) -> Result<usize, Error> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Unused) {
            *state = State::Refused;
            *state = State::Ready(Arc::new(Registered::new()?));
        }
        let registered = match &*state {
            State::Ready(registered) => Arc::clone(registered),
            State::Unused | State::Refused => return Ok(0),
        };
        // A pass may take long, and another need not wait for it.
        drop(state);
        registered.resume(flows)
    }

    /// What it is registered as, where it is.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(registered) => Some(registered.name.clone()),
            State::Unused | State::Refused => None,
        }
    }
}

impl Registered {
    fn new() -> Result<Self, Error> {
        let mut name = [0; NAME_BYTES];
        let of_here = name_in(namespace_cookie()?);
        name[..of_here.len()].copy_from_slice(of_here.as_bytes());
        let mut programs = Programs::load_windows(&name)?;
        let resumptions = programs.table("resumptions")?;
        let link = programs.register("resume")?;
        Ok(Self { name: of_here, _link: link, programs, resumptions })
    }

    fn resume(&self, flows: &[(FlowTuple, Resumption)]) -> Result<usize, Error> {
        let mut resumed = 0;
        let flows: Vec<_> = flows.iter().filter(|(flow, _)| flow.transport == Transport::Tcp).collect();
        for flows in flows.chunks(AT_ONCE) {
            let (keys, values): (Vec<_>, Vec<_>) =
                flows.iter().map(|(flow, saved)| (RawTuple::new(flow), RawResumption::new(saved))).unzip();
            self.resumptions.insert_all(&keys, &values)?;
            let result = visit(&self.programs, "resume_sockets", &mut |bytes| resumed += bytes.len());
            for key in &keys {
                self.resumptions.remove(key)?;
            }
            result?;
        }
        Ok(resumed)
    }
}

/// Names of congestion controls are the machine's; no two namespaces ever have the same cookie.
fn name_in(cookie: u64) -> String {
    format!("whimbrel{:07x}", cookie & 0xfff_ffff)
}

/// The kernel's clock that the times of segments are by (CLOCK_MONOTONIC).
///
/// # Errors
/// When there is none.
pub fn monotonic() -> io::Result<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
}
