//! What goes ahead of a process, before its connections are moved: bytes from one host to another, and what that says
//! of them (P-93).
//!
//! What the bytes are is the callers' business. Their connections move as any others do; that they belong together, and
//! which of them decides for all, both callers know (decision 0020).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{LoadStanding, MAX_PART, MoveName, Record};
use whimbrel_wire::snapshot::MAX_LEN;

use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::binding::transfer::Below;

/// How long nothing may come of a load, at either end, before it is given up.
const STILL_WITHIN: Duration = Duration::from_secs(30);

/// How fast snapshots may be taken to be sent, at the least, in bytes a second.
const RATE: u64 = 256 * 1024;

/// How long so many bytes of snapshots may take.
pub(super) fn takes(bytes: u64) -> Duration {
    Duration::from_secs(bytes / RATE)
}

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
    /// When nothing has come of one of them for too long.
    pub(super) fn deadline(&self) -> Option<Time> {
        let leaving = self.leaving.values().map(|load| load.until);
        leaving.chain(self.coming.values().map(|load| load.until)).min()
    }

    /// Entries of all tables together, with a byte each.
    pub(super) fn entries(&self) -> usize {
        let leaving: usize = self.leaving.values().map(|load| 1 + load.bytes.len()).sum();
        leaving + self.coming.values().map(|load| 1 + load.bytes.len()).sum::<usize>()
    }

    /// Sends what a process needs ahead of its connections.
    pub(super) fn send(&mut self, below: &mut Below<'_>, number: u64, to: PublicKey, bytes: Vec<u8>) {
        let until = below.now() + STILL_WITHIN;
        let heard = below.heard(&to);
        self.leaving.insert(number, Leaving { to, bytes, heard, until });
        below.wait(&[], &[to]);
        self.send_load_record(below, number);
    }

    fn send_load_record(&mut self, below: &mut Below<'_>, number: u64) {
        let Some(load) = self.leaving.get(&number) else { return };
        let (to, total) = (load.to, u32::try_from(load.bytes.len()).unwrap_or(u32::MAX));
        let part = |(part, bytes): (usize, &[u8])| Record::Load {
            number,
            total,
            offset: (part * MAX_PART) as u32,
            bytes: bytes.to_vec(),
        };
        let records: Vec<Record> = load.bytes.chunks(MAX_PART).enumerate().map(part).collect();
        records.into_iter().for_each(|record| below.send(to, record));
    }

    /// Of what was sent to a host that has forgotten it.
    pub(super) fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        let numbers = self.leaving.iter().filter(|(_, load)| load.to == to).map(|(number, _)| *number);
        numbers.collect::<Vec<_>>().into_iter().for_each(|number| self.send_load_record(below, number));
    }

    /// A part of what another host's process needs.
    pub(super) fn handle_load(&mut self, below: &mut Below<'_>, name: MoveName, total: u32, offset: u32, bytes: &[u8]) {
        let (from, number) = (PublicKey::from(name.donor), name.number);
        let refusal = if !below.config().processes {
            Some("it is not configured to take processes (`processes = true`)")
        } else if !below.permits().trusts(&from) {
            Some("it takes no processes from this host")
        } else if total as usize > MAX_LEN || u64::from(total) > below.config().bytes {
            Some("that is more than it takes")
        } else if total == 0 {
            Some("nothing was sent of it")
        } else {
            None
        };
        if let Some(refusal) = refusal {
            if offset == 0 {
                answer_load(below, name, LoadStanding::Refused, refusal);
            }
            return;
        }
        if offset == 0 {
            let until = below.now() + STILL_WITHIN;
            self.coming.insert(from, Coming { number, total, bytes: Vec::new(), until });
        }
        let Some(load) = self.coming.get_mut(&from).filter(|load| load.number == number) else { return };
        if total != load.total || offset as usize != load.bytes.len() {
            self.coming.remove(&from);
            answer_load(below, name, LoadStanding::Refused, "what came of it does not fit together");
            return;
        }
        load.bytes.extend_from_slice(bytes);
        load.until = below.now() + STILL_WITHIN;
        if load.bytes.len() == total as usize
            && let Some(load) = self.coming.remove(&from)
        {
            below.event(MoveEvent::Loaded { name, bytes: load.bytes });
        }
    }

    /// The acceptor says how a process stands.
    pub(super) fn handle_loaded(
        &mut self,
        below: &mut Below<'_>,
        from: PublicKey,
        number: u64,
        standing: LoadStanding,
        sentence: &[u8],
    ) {
        if self.leaving.get(&number).is_some_and(|load| load.to == from) {
            self.leaving.remove(&number);
            below.wait(&[from], &[]);
        }
        let sentence = String::from_utf8_lossy(sentence).into_owned();
        below.event(MoveEvent::LoadAnswered { from, number, standing, sentence });
    }

    /// Loads that nothing comes of are given up, at either end.
    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        let now = below.now();
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        self.coming.retain(|_, load| load.until > now);
        for load in self.leaving.values_mut() {
            let heard = below.heard(&load.to);
            if std::mem::replace(&mut load.heard, heard) != heard {
                load.until = now + STILL_WITHIN;
            }
        }
        let late: Vec<u64> =
            self.leaving.iter().filter(|(_, load)| load.until <= now).map(|(number, _)| *number).collect();
        for number in late {
            let Some(load) = self.leaving.remove(&number) else { continue };
            below.wait(&[load.to], &[]);
            let sentence = "it does not answer, or takes no processes".to_owned();
            let (from, standing) = (load.to, LoadStanding::Refused);
            below.event(MoveEvent::LoadAnswered { from, number, standing, sentence });
        }
    }
}

/// Tells the donor of a process how it stands here.
pub(super) fn answer_load(below: &mut Below<'_>, name: MoveName, standing: LoadStanding, sentence: &str) {
    let sentence = sentence.as_bytes().to_vec();
    below.send(PublicKey::from(name.donor), Record::Loaded { number: name.number, standing, sentence });
}
