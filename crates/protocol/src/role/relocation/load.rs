//! What goes ahead of a process, before its connections are moved: bytes from one host to another, and what that says of them (P-93).
//!
//! What the bytes are is the callers' business. Their connections move as any others do; that they belong together, and which of them
//! decides for all, both callers know (decision 0020).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{LoadStanding, MAX_PART, MoveName, Record};
use whimbrel_wire::snapshot::MAX_LEN;

use super::{At, Limit, MoveEvent, Moves};
use crate::Time;
use crate::node::Node;

/// How long nothing may come of a load, at either end, before it is given up.
const STILL_WITHIN: Duration = Duration::from_secs(30);

/// What is on its way ahead of processes.
#[derive(Debug, Default)]
pub(super) struct Loads {
    leaving: BTreeMap<u64, Leaving>,
    /// One at a time of a host.
    coming: BTreeMap<PublicKey, Coming>,
}

#[derive(Debug)]
struct Leaving {
    to: PublicKey,
    bytes: Vec<u8>,
    /// How much of all that is said to that host it has acknowledged.
    heard: u64,
    until: Time,
}

#[derive(Debug)]
struct Coming {
    number: u64,
    total: u32,
    bytes: Vec<u8>,
    until: Time,
}

impl Loads {
    /// Entries of all tables together, with a byte each.
    pub(super) fn entries(&self) -> usize {
        let leaving: usize = self.leaving.values().map(|load| 1 + load.bytes.len()).sum();
        leaving + self.coming.values().map(|load| 1 + load.bytes.len()).sum::<usize>()
    }
}

impl Moves {
    /// Sends what a process needs ahead of its connections.
    pub(super) fn send_load(&mut self, at: At<'_>, number: u64, to: PublicKey, bytes: Vec<u8>) {
        let until = at.now + STILL_WITHIN;
        let heard = self.lanes.heard(&to);
        self.loads.leaving.insert(number, Leaving { to, bytes, heard, until });
        self.limit(until, Limit::Load);
        self.wait(at, &[], &[to]);
        self.say_load(at, number);
    }

    fn say_load(&mut self, at: At<'_>, number: u64) {
        let Some(load) = self.loads.leaving.get(&number) else { return };
        let (to, total) = (load.to, u32::try_from(load.bytes.len()).unwrap_or(u32::MAX));
        let part = |(part, bytes): (usize, &[u8])| Record::Load {
            number,
            total,
            offset: (part * MAX_PART) as u32,
            bytes: bytes.to_vec(),
        };
        let records: Vec<Record> = load.bytes.chunks(MAX_PART).enumerate().map(part).collect();
        records.into_iter().for_each(|record| self.say(at, to, record));
    }

    /// Of what was sent to a host that has forgotten it.
    pub(super) fn say_loads_again(&mut self, at: At<'_>, to: PublicKey) {
        let numbers = self.loads.leaving.iter().filter(|(_, load)| load.to == to).map(|(number, _)| *number);
        numbers.collect::<Vec<_>>().into_iter().for_each(|number| self.say_load(at, number));
    }

    /// A part of what another host's process needs.
    pub(super) fn handle_load(&mut self, at: At<'_>, name: MoveName, total: u32, offset: u32, bytes: &[u8]) {
        let (from, number) = (PublicKey::from(name.donor), name.number);
        let refusal = if !self.config.enabled || !self.config.processes {
            Some("it is not configured to take processes (`processes = true`)")
        } else if !self.trusts(&from) {
            Some("it takes no processes from this host")
        } else if total as usize > MAX_LEN || u64::from(total) > self.config.bytes {
            Some("that is more than it takes")
        } else if total == 0 {
            Some("nothing was sent of it")
        } else {
            None
        };
        if let Some(refusal) = refusal {
            if offset == 0 {
                self.answer_load(at, name, LoadStanding::Refused, refusal);
            }
            return;
        }
        if offset == 0 {
            let until = at.now + STILL_WITHIN;
            self.loads.coming.insert(from, Coming { number, total, bytes: Vec::new(), until });
            self.limit(until, Limit::Load);
        }
        let Some(load) = self.loads.coming.get_mut(&from).filter(|load| load.number == number) else { return };
        if total != load.total || offset as usize != load.bytes.len() {
            self.loads.coming.remove(&from);
            self.answer_load(at, name, LoadStanding::Refused, "what came of it does not fit together");
            return;
        }
        load.bytes.extend_from_slice(bytes);
        load.until = at.now + STILL_WITHIN;
        if load.bytes.len() == total as usize
            && let Some(load) = self.loads.coming.remove(&from)
        {
            self.event(MoveEvent::Loaded { name, bytes: load.bytes });
        }
    }

    fn answer_load(&mut self, at: At<'_>, name: MoveName, standing: LoadStanding, sentence: &str) {
        let sentence = sentence.as_bytes().to_vec();
        self.say(at, PublicKey::from(name.donor), Record::Loaded { number: name.number, standing, sentence });
    }

    /// The acceptor says how a process stands.
    pub(super) fn handle_loaded(
        &mut self,
        at: At<'_>,
        from: PublicKey,
        number: u64,
        standing: LoadStanding,
        sentence: &[u8],
    ) {
        if self.loads.leaving.get(&number).is_some_and(|load| load.to == from) {
            self.loads.leaving.remove(&number);
            self.wait(at, &[from], &[]);
        }
        let sentence = String::from_utf8_lossy(sentence).into_owned();
        self.event(MoveEvent::LoadAnswered { from, number, standing, sentence });
    }

    /// Loads that nothing comes of are given up, at either end.
    pub(super) fn handle_load_limit(&mut self, at: At<'_>) {
        self.loads.coming.retain(|_, load| load.until > at.now);
        for load in self.loads.leaving.values_mut() {
            let heard = self.lanes.heard(&load.to);
            if std::mem::replace(&mut load.heard, heard) != heard {
                load.until = at.now + STILL_WITHIN;
            }
        }
        let times = self.loads.coming.values().map(|load| load.until);
        let next: Vec<Time> = times.chain(self.loads.leaving.values().map(|load| load.until)).collect();
        next.into_iter().filter(|until| *until > at.now).for_each(|until| self.limit(until, Limit::Load));
        let late: Vec<u64> =
            self.loads.leaving.iter().filter(|(_, load)| load.until <= at.now).map(|(number, _)| *number).collect();
        for number in late {
            let Some(load) = self.loads.leaving.remove(&number) else { continue };
            self.wait(at, &[load.to], &[]);
            let sentence = "it does not answer, or takes no processes".to_owned();
            let (from, standing) = (load.to, LoadStanding::Refused);
            self.event(MoveEvent::LoadAnswered { from, number, standing, sentence });
        }
    }
}

impl Node {
    /// Sends what a process needs ahead of its connections, whose host will be `to`. What comes of it is told by
    /// [`MoveEvent::LoadAnswered`] under the number that is given back. `None`: this host takes no part in moves, or may not give that
    /// host anything.
    pub fn send_load(&mut self, now: Time, to: PublicKey, bytes: Vec<u8>) -> Option<u64> {
        let number = self.base.random().u64();
        let sent = self.with_moves(now, |moves, at| {
            let may = moves.config.enabled && moves.may_go_to(&to);
            if may {
                moves.send_load(at, number, to, bytes);
            }
            may
        });
        sent.unwrap_or(false).then_some(number)
    }

    /// Tells the donor of a process how it stands here.
    pub fn answer_load(&mut self, now: Time, name: MoveName, standing: LoadStanding, sentence: &str) {
        self.with_moves(now, |moves, at| moves.answer_load(at, name, standing, sentence));
    }
}
