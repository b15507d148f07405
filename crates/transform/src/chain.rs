//! The ordered list of transforms that the packets of a tunnel go through.

use std::fmt;
use std::time::Instant;

use crate::batch::Batch;
use crate::transform::{Direction, DropReason, Drops, Packets, ParameterError, Transform};

/// How often packets go up and down the chain for one call. A transform answers the other direction, and another may
/// answer that once more; what never ends is a fault of theirs.
const ROUNDS: usize = 8;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many packets.
    pub packets: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, batch: &Batch) {
        self.packets += batch.len() as u64;
        self.bytes += batch.spans().iter().map(|span| span.len as u64).sum::<u64>();
    }
}

/// What went through a transform since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounters {
    entered: [Traffic; 2],
    left: [Traffic; 2],
    /// Packets that it dropped.
    pub dropped: Drops,
}

impl StageCounters {
    /// What it was given in this direction.
    #[must_use]
    pub fn entered(&self, direction: Direction) -> Traffic {
        self.entered[direction as usize]
    }

    /// What it gave out in this direction.
    #[must_use]
    pub fn left(&self, direction: Direction) -> Traffic {
        self.left[direction as usize]
    }
}

struct Stage {
    transform: Box<dyn Transform>,
    /// What it is to be given next.
    entering: Packets,
    /// What it is given and gives back; empty between calls.
    work: Packets,
    counters: StageCounters,
}

/// Transforms in the order in which outbound packets go through them; inbound ones go back. Chain 0 of the protocol is
/// the empty one, which is never built: a tunnel without a chain has none.
#[derive(Default)]
pub struct Chain {
    stages: Vec<Stage>,
}

impl Chain {
    /// The chain of the given transforms.
    #[must_use]
    pub fn new(transforms: Vec<Box<dyn Transform>>) -> Self {
        let stage = |transform| Stage {
            transform,
            entering: Packets::default(),
            work: Packets::default(),
            counters: StageCounters::default(),
        };
        Self { stages: transforms.into_iter().map(stage).collect() }
    }

    /// Whether packets pass unchanged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The most bytes that all transforms together add to an outbound packet.
    #[must_use]
    pub fn overhead(&self) -> usize {
        self.stages.iter().map(|stage| stage.transform.overhead()).sum()
    }

    /// Tells every transform the longest packet, in bytes, that goes whole from it towards the wire. `mtu`: from the
    /// end of the chain.
    pub fn set_mtu(&mut self, mut mtu: usize) {
        for stage in self.stages.iter_mut().rev() {
            stage.transform.set_mtu(mtu);
            mtu = mtu.saturating_sub(stage.transform.overhead());
        }
    }

    /// Lets the packets in the batch of `direction` through. Afterwards the batches hold what has come out on either
    /// side; the rooms of `packets` are those of all that does.
    pub fn handle_packets(&mut self, now: Instant, direction: Direction, packets: &mut Packets) {
        self.prepare(packets);
        let first = match direction {
            Direction::Outbound => self.stages.first_mut(),
            Direction::Inbound => self.stages.last_mut(),
        };
        let Some(first) = first else { return };
        std::mem::swap(first.entering.get_mut(direction), packets.get_mut(direction));
        self.run(now, packets);
    }

    /// When [`Chain::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.stages.iter().filter_map(|stage| stage.transform.poll_timeout()).min()
    }

    /// Calls the transforms whose moment has come. What comes out is appended to `packets`.
    pub fn handle_timeout(&mut self, now: Instant, packets: &mut Packets) {
        self.prepare(packets);
        for at in 0..self.stages.len() {
            let stage = &mut self.stages[at];
            if stage.transform.poll_timeout().is_some_and(|due| due <= now) {
                stage.transform.handle_timeout(now, &mut stage.work);
                self.forward(at, packets);
            }
        }
        self.run(now, packets);
    }

    /// Gives out all that is kept anywhere. What comes out is appended to `packets`.
    pub fn release(&mut self, now: Instant, packets: &mut Packets) {
        self.prepare(packets);
        // What one gives out the next may keep: so once in either direction.
        let places = 0..self.stages.len();
        for at in places.clone().chain(places.rev()) {
            let stage = &mut self.stages[at];
            stage.transform.release(&mut stage.work);
            self.forward(at, packets);
            self.run(now, packets);
        }
    }

    /// How many packets are kept.
    #[must_use]
    pub fn held(&self) -> usize {
        self.stages.iter().map(|stage| stage.transform.held()).sum()
    }

    /// The parameters of every transform, in their order.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, Vec<(&'static str, u64)>)> {
        self.stages.iter().map(|stage| (stage.transform.name(), stage.transform.parameters()))
    }

    /// Changes a parameter of the transform at this place, counted from 0.
    ///
    /// # Errors
    /// [`ParameterError`]; nothing was changed.
    pub fn set_parameter(&mut self, stage: usize, name: &str, value: u64) -> Result<(), ParameterError> {
        let found = self.stages.get_mut(stage).ok_or(ParameterError::Stage { stage })?;
        found.transform.set_parameter(name, value)
    }

    /// The counters of every transform, in their order.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, &StageCounters)> {
        self.stages.iter().map(|stage| (stage.transform.name(), &stage.counters))
    }

    /// Gives all batches the rooms of those that the caller has.
    fn prepare(&mut self, packets: &Packets) {
        for direction in Direction::ALL {
            let batch = packets.get(direction);
            for stage in &mut self.stages {
                stage.entering.get_mut(direction).reset_like(batch);
                stage.work.get_mut(direction).reset_like(batch);
            }
        }
    }

    /// Moves packets on until all are kept, dropped, or out.
    fn run(&mut self, now: Instant, out: &mut Packets) {
        for _ in 0..ROUNDS {
            for at in 0..self.stages.len() {
                self.step(now, at, Direction::Outbound, out);
            }
            for at in (0..self.stages.len()).rev() {
                self.step(now, at, Direction::Inbound, out);
            }
            if self.stages.iter().all(|stage| stage.entering.is_empty()) {
                return;
            }
        }
        for stage in &mut self.stages {
            for direction in Direction::ALL {
                let batch = stage.entering.get_mut(direction);
                stage.counters.dropped.add(DropReason::Looped, batch.len() as u64);
                batch.clear();
            }
        }
    }

    fn step(&mut self, now: Instant, at: usize, direction: Direction, out: &mut Packets) {
        let Stage { transform, entering, work, counters } = &mut self.stages[at];
        if entering.get(direction).is_empty() {
            return;
        }
        std::mem::swap(work.get_mut(direction), entering.get_mut(direction));
        counters.entered[direction as usize].add(work.get(direction));
        transform.handle_packets(now, direction, work);
        self.forward(at, out);
    }

    /// Hands what the transform at this place has given back to its neighbours.
    fn forward(&mut self, at: usize, out: &mut Packets) {
        let (before, rest) = self.stages.split_at_mut(at);
        let Some((stage, after)) = rest.split_first_mut() else { return };
        for direction in Direction::ALL {
            let batch = stage.work.get_mut(direction);
            if batch.is_empty() {
                continue;
            }
            stage.counters.left[direction as usize].add(batch);
            let next = match direction {
                Direction::Outbound => after.first_mut(),
                Direction::Inbound => before.last_mut(),
            };
            let to = next.map_or(&mut *out, |next| &mut next.entering).get_mut(direction);
            if to.is_empty() {
                std::mem::swap(to, batch);
            } else {
                batch.packets().for_each(|packet| to.push_packet(packet));
            }
            batch.clear();
        }
        stage.counters.dropped.take(stage.work.dropped_mut());
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.stages.iter().map(|stage| stage.transform.name())).finish()
    }
}
