//! Emulated links: two TAP interfaces and one thread that carries frames between them.
//!
//! The kernel hands every packet out as one frame no larger than the interface's MTU with its checksum complete, so
//! what crosses the link is what would cross a cable. One thread serves all links of a lab; it sleeps in `ppoll` with
//! nanosecond timeouts at real-time priority, so that delays stay exact while the machine is busy.

mod emulator;
mod frame;
mod pcap;
mod pipe;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use self::emulator::Emulator;
pub use self::frame::{Frame, Packet, Segment, tcp_flags};
use self::pcap::Pcap;
use self::pipe::Pipe;
pub use self::pipe::{Counters, Shape};
use crate::{Error, Result, sys};

/// Direction on a link. An access link goes up from the host, an uplink from the access router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Up,
    /// From the second end to the first.
    Down,
}

impl Direction {
    /// Both, `Up` first.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];

    fn index(self) -> usize {
        self as usize
    }
}

/// How a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both ends lose their carrier, as when a cable is pulled.
    Carrier,
    /// Frames vanish and nobody is told.
    Silent,
}

/// What a hook decides about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on.
    Pass,
    /// Is dropped.
    Drop,
    /// Is held back for this long more than the link's delay; later frames overtake it.
    Hold(Duration),
}

type Observer = Box<dyn FnMut(Direction, &Frame<'_>) + Send>;
type Hook = Box<dyn FnMut(Direction, &Frame<'_>) -> Verdict + Send>;

/// A handle on an emulated link; clones are the same link. The link exists until [`Link::remove`] or the end of the
/// lab.
#[derive(Clone)]
pub struct Link {
    state: Arc<LinkState>,
    emulator: Arc<emulator::Shared>,
}

/// Shared between handles and the forwarding thread.
pub(crate) struct LinkState {
    name: String,
    /// First end, second end.
    taps: [Arc<OwnedFd>; 2],
    lanes: [Mutex<Lane>; 2],
    observers: Mutex<Vec<Observer>>,
    hook: Mutex<Option<Hook>>,
    capture: Mutex<Option<Pcap>>,
}

/// One direction with its cut.
struct Lane {
    pipe: Pipe,
    cut: bool,
}

impl LinkState {
    fn lane(&self, direction: Direction) -> MutexGuard<'_, Lane> {
        lock(&self.lanes[direction.index()])
    }
}

/// A panic elsewhere must not keep the lab from cleaning up, and no state here can be half changed.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Link {
    /// Name for messages: `host:interface–host:interface`.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Current properties of one direction.
    pub fn shape(&self, direction: Direction) -> Shape {
        self.state.lane(direction).pipe.shape().clone()
    }

    /// Changes one direction. Frames on the way keep their times.
    pub fn set(&self, direction: Direction, shape: Shape) {
        self.state.lane(direction).pipe.set_shape(shape);
        self.emulator.wake();
    }

    /// Changes both directions.
    pub fn set_both(&self, shape: &Shape) {
        for direction in Direction::BOTH {
            self.set(direction, shape.clone());
        }
    }

    /// Cuts both directions; what is on the way is lost.
    pub fn cut(&self, kind: Cut) -> Result<()> {
        for direction in Direction::BOTH {
            self.cut_direction(direction);
        }
        if kind == Cut::Carrier { self.carrier(false) } else { Ok(()) }
    }

    /// Cuts one direction silently.
    pub fn cut_direction(&self, direction: Direction) {
        let mut lane = self.state.lane(direction);
        lane.cut = true;
        lane.pipe.clear();
    }

    /// Undoes every cut.
    pub fn restore(&self) -> Result<()> {
        for direction in Direction::BOTH {
            self.state.lane(direction).cut = false;
        }
        self.carrier(true)
    }

    /// What happened in one direction so far.
    pub fn counters(&self, direction: Direction) -> Counters {
        self.state.lane(direction).pipe.counters
    }

    /// Shows every frame that is sent into the link to `observer`, before loss, cut and queue. It runs on the
    /// forwarding thread: it must be quick, must not panic, and must not call methods of the link.
    pub fn observe(&self, observer: impl FnMut(Direction, &Frame<'_>) + Send + 'static) {
        lock(&self.state.observers).push(Box::new(observer));
    }

    /// Counts from now on the IP packets that `matches` says yes to.
    pub fn count(&self, mut matches: impl FnMut(Direction, &Packet<'_>) -> bool + Send + 'static) -> PacketCount {
        let count = PacketCount::default();
        let shared = count.clone();
        self.observe(move |direction, frame| {
            if frame.ip().is_some_and(|packet| matches(direction, &packet)) {
                shared.0.fetch_add(1, Ordering::Relaxed);
            }
        });
        count
    }

    /// Lets `hook` decide about every frame (fault injection); replaces the previous hook. The rules of
    /// [`Link::observe`] hold.
    pub fn hook(&self, hook: impl FnMut(Direction, &Frame<'_>) -> Verdict + Send + 'static) {
        *lock(&self.state.hook) = Some(Box::new(hook));
    }

    /// Takes the hook away.
    pub fn unhook(&self) {
        *lock(&self.state.hook) = None;
    }

    /// Writes all frames that are sent into the link to a pcap file from now on.
    pub fn capture(&self, path: &Path) -> Result<()> {
        let pcap = Pcap::create(path).map_err(|e| Error::call("create", path.display().to_string(), e))?;
        *lock(&self.state.capture) = Some(pcap);
        Ok(())
    }

    /// Takes the link out; frames on the way are lost. The interfaces stay.
    pub fn remove(&self) {
        self.emulator.remove(&self.state);
        for direction in Direction::BOTH {
            self.cut_direction(direction);
        }
        *lock(&self.state.capture) = None;
    }

    pub(crate) fn carrier(&self, up: bool) -> Result<()> {
        for tap in &self.state.taps {
            sys::set_tap_carrier(tap, up).map_err(|e| Error::call("ioctl(TUNSETCARRIER)", self.name(), e))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.name())
    }
}

/// Counts packets that [`Link::count`] matches.
#[derive(Clone, Debug, Default)]
pub struct PacketCount(Arc<AtomicU64>);

impl PacketCount {
    /// Packets so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Starts again at zero and gives what was counted.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}
