//! The thread that carries frames between TAP interfaces.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::pipe::Pipe;
use super::{Direction, Frame, Lane, Link, LinkState, Shape, Verdict, lock};
use crate::clock::MonoTime;
use crate::{Error, Result, sys};

/// Frames read from one interface before others get their turn.
const BATCH: usize = 64;
/// Room for a frame. The MTU of an emulated link is 1500; a larger one, up to 2000, would do as well.
const FRAME_ROOM: usize = 2048;

/// Runs the links of a lab. Dropping it ends the thread and with it all links.
pub(crate) struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Between the handles and the thread.
pub(crate) struct Shared {
    links: Mutex<Vec<Arc<LinkState>>>,
    /// Rises with every change of `links`.
    generation: AtomicU64,
    stop: AtomicBool,
    wake: OwnedFd,
    seed: u64,
    made: AtomicU64,
}

impl Emulator {
    pub(crate) fn start(seed: u64) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::call("eventfd", "link emulator", e))?;
        let shared = Arc::new(Shared {
            links: Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            wake,
            seed,
            made: AtomicU64::new(0),
        });
        let worker = Forwarder { shared: shared.clone(), links: Vec::new(), generation: 0, pool: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("links".into())
            .spawn(move || worker.run())
            .map_err(|e| Error::call("clone", "link emulator", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Connects two TAP interfaces.
    pub(crate) fn add(&self, name: String, taps: [Arc<OwnedFd>; 2], up: Shape, down: Shape) -> Link {
        let shared = &self.shared;
        let seed = |n: u64| crate::random::mix(shared.seed ^ n);
        let n = shared.made.fetch_add(2, Ordering::Relaxed);
        let lane = |shape, n| Mutex::new(Lane { pipe: Pipe::new(shape, seed(n)), cut: false });
        let state = Arc::new(LinkState {
            name,
            taps,
            lanes: [lane(up, n), lane(down, n + 1)],
            observers: Mutex::default(),
            hook: Mutex::default(),
            capture: Mutex::default(),
        });
        lock(&shared.links).push(state.clone());
        shared.changed();
        Link { state, emulator: shared.clone() }
    }

    /// Takes out the links that this interface is an end of.
    pub(crate) fn remove_links_of(&self, tap: &Arc<OwnedFd>) {
        let links = lock(&self.shared.links).clone();
        for state in links.into_iter().filter(|l| l.taps.iter().any(|t| Arc::ptr_eq(t, tap))) {
            Link { state, emulator: self.shared.clone() }.remove();
        }
    }

    /// False once the thread has died of a panic in an observer or hook.
    pub(crate) fn works(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(crate) fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn remove(&self, state: &Arc<LinkState>) {
        lock(&self.links).retain(|l| !Arc::ptr_eq(l, state));
        self.changed();
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.wake();
    }
}

/// The thread's own state.
struct Forwarder {
    shared: Arc<Shared>,
    links: Vec<Arc<LinkState>>,
    generation: u64,
    /// Buffers to use again.
    pool: Vec<Vec<u8>>,
}

impl Forwarder {
    fn run(mut self) {
        sys::prefer_this_thread();
        let mut ready = Vec::new();
        while !self.shared.stop.load(Ordering::Acquire) {
            let generation = self.shared.generation.load(Ordering::Acquire);
            if generation != self.generation {
                self.generation = generation;
                self.links = lock(&self.shared.links).clone();
            }
            ready.clear();
            if let Err(e) = self.wait(&mut ready) {
                eprintln!("link emulator: ppoll: {e}");
                return;
            }
            for (n, direction) in ready.drain(..) {
                let link = self.links[n].clone();
                if let Err(e) = self.take_in(&link, direction) {
                    // EBADFD: its namespace is gone, and with it the interface.
                    if e != Errno::BADFD {
                        eprintln!("link emulator: read from {}: {e}", link.name);
                    }
                    self.shared.remove(&link);
                }
            }
            for link in &self.links {
                for direction in Direction::BOTH {
                    deliver(link, direction, &mut self.pool);
                }
            }
        }
    }

    /// Sleeps until an interface has a frame or one on the way is due.
    fn wait(&self, ready: &mut Vec<(usize, Direction)>) -> io::Result<()> {
        let mut fds = Vec::with_capacity(1 + 2 * self.links.len());
        fds.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        let mut due = None;
        for link in &self.links {
            for (direction, tap) in Direction::BOTH.into_iter().zip(&link.taps) {
                fds.push(PollFd::new(tap, PollFlags::IN));
                due = [due, link.lane(direction).pipe.poll_timeout()].into_iter().flatten().min();
            }
        }
        let timeout = due.map(|due| {
            let d = Duration::from_nanos(due.saturating_sub(MonoTime::now().0));
            Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        if !fds[0].revents().is_empty() {
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut counter);
        }
        for (i, fd) in fds[1..].iter().enumerate() {
            if !fd.revents().is_empty() {
                ready.push((i / 2, Direction::BOTH[i % 2]));
            }
        }
        Ok(())
    }

    /// Reads what the sending host handed out.
    fn take_in(&mut self, link: &LinkState, direction: Direction) -> Result<(), Errno> {
        let mut lane = link.lane(direction);
        let mut observers = lock(&link.observers);
        let mut hook = lock(&link.hook);
        let mut capture = lock(&link.capture);
        for _ in 0..BATCH {
            let mut frame = self.pool.pop().unwrap_or_else(|| Vec::with_capacity(FRAME_ROOM));
            match rustix::io::read(link.taps[direction.index()].as_fd(), spare_capacity(&mut frame)) {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => {
                    self.pool.push(frame);
                    break;
                }
                Ok(_) => {}
                Err(e) => return Err(e),
            }
            let now = MonoTime::now().0;
            lane.pipe.counters.offered += 1;
            lane.pipe.counters.offered_bytes += frame.len() as u64;
            let seen = Frame::new(&frame);
            for observer in observers.iter_mut() {
                observer(direction, &seen);
            }
            if let Some(Err(e)) = capture.as_mut().map(|pcap| pcap.write(&frame)) {
                eprintln!("link emulator: capture of {}: {e}", link.name);
                *capture = None;
            }
            let verdict = hook.as_mut().map_or(Verdict::Pass, |hook| hook(direction, &seen));
            match verdict {
                _ if lane.cut => lane.pipe.counters.cut += 1,
                Verdict::Pass => lane.pipe.handle_frame(now, frame, Duration::ZERO),
                Verdict::Drop => lane.pipe.counters.hooked += 1,
                Verdict::Hold(extra) => lane.pipe.handle_frame(now, frame, extra),
            }
        }
        if let Some(pcap) = capture.as_mut() {
            // Flushed with every batch, so that a capture of a killed run is whole up to its last packets.
            let _ = pcap.flush();
        }
        Ok(())
    }
}

/// Writes what is due to the receiving host.
fn deliver(link: &LinkState, direction: Direction, pool: &mut Vec<Vec<u8>>) {
    let mut lane = link.lane(direction);
    let far = &link.taps[1 - direction.index()];
    let now = MonoTime::now().0;
    while let Some(mut frame) = lane.pipe.poll_frame(now) {
        match rustix::io::write(far, &frame) {
            Ok(_) => {
                lane.pipe.counters.delivered += 1;
                lane.pipe.counters.delivered_bytes += frame.len() as u64;
            }
            // EIO: the interface is down; EBADFD: it is gone.
            Err(_) => lane.pipe.counters.refused += 1,
        }
        // A duplicate has room for itself only.
        if pool.len() < 4 * BATCH && frame.capacity() >= FRAME_ROOM {
            frame.clear();
            pool.push(frame);
        }
    }
}
