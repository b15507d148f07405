//! A lane: the two streams of records between this host and another, one each way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{Received, Record, Stretch};

use super::stream::{Arrived, Heard, Receiver, Sender};
use crate::Time;

/// What is taken ahead of a stranger, and of somebody whom this host expects something of, in bytes.
const WINDOW_STRANGER: u64 = 16 * 1024;
const WINDOW: u64 = 1 << 20;
/// Answers that a stranger, and a host of whom something is expected, does not acknowledge before nothing more is taken
/// of it, in bytes.
const REPLIES_STRANGER: usize = 16 * 1024;
const REPLIES_MOST: usize = 1 << 20;
/// Lanes at a time that strangers began. There is always one for those of whom something is expected.
const STRANGERS_MOST: usize = 1024;
/// How long a lane is kept that nothing goes over.
const IDLE: Duration = Duration::from_secs(60);
/// How often a lane is looked at that there is no session for.
const UNREACHED: Duration = Duration::from_secs(1);
/// Probes that nobody answered before a lane is given up that nothing depends on.
const PROBES_MOST: u32 = 8;
/// Probes that nobody answered before the path itself is doubted.
const PROBES_DOUBTED: u32 = 3;

#[derive(Debug, Default)]
struct Lane {
    sender: Sender,
    receiver: Receiver,
    /// This host expects nothing of that one, and has said nothing to it of its own accord.
    strange: bool,
    /// The beginning of a record.
    inbox: Vec<u8>,
    /// Moves that wait for a word from there.
    awaited: usize,
    stirred: Time,
    /// What it said made no sense: nothing more is taken of this stream.
    broken: bool,
    answers: VecDeque<Received>,
    /// What was said in answer to something, and where in the stream it ends: nobody asks for it twice.
    replies: VecDeque<(u64, Vec<u8>)>,
    /// Length of these, in bytes.
    replied: usize,
}

/// All lanes of a host.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<PublicKey, Lane>,
    /// The highest number that a stream of this host's was given, except for those that another host has made rise.
    newest: u64,
}

impl Lanes {
    fn open(&mut self, now: Time, wall: u64, with: PublicKey, window: u64) -> Option<&mut Lane> {
        if !self.lanes.contains_key(&with) {
            self.newest = self.newest.saturating_add(1).max(wall);
            let lane = Lane {
                sender: Sender::new(self.newest, now, WINDOW_STRANGER),
                receiver: Receiver::new(window),
                strange: window == WINDOW_STRANGER,
                stirred: now,
                ..Lane::default()
            };
            self.lanes.insert(with, lane);
        }
        self.lanes.get_mut(&with)
    }

    /// Says something to another host. `wall`: milliseconds of the wall clock, so that streams' numbers rise over
    /// restarts.
    pub(crate) fn send(&mut self, now: Time, wall: u64, to: PublicKey, record: &Record) {
        if let Some(lane) = self.open(now, wall, to, WINDOW) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            lane.sender.push(now, &bytes);
            if is_reply(record) {
                lane.replied += bytes.len();
                lane.replies.push_back((lane.sender.end(), bytes));
            }
            lane.stirred = now;
        }
    }

    /// One more move, or one less, waits for a word from there.
    pub(crate) fn wait(&mut self, now: Time, wall: u64, of: PublicKey, more: bool) {
        let lane = if more { self.open(now, wall, of, WINDOW) } else { self.lanes.get_mut(&of) };
        if let Some(lane) = lane {
            lane.awaited = if more { lane.awaited + 1 } else { lane.awaited.saturating_sub(1) };
            lane.sender.awaits = lane.awaited > 0;
            lane.stirred = now;
        }
    }

    /// A stretch came. Gives the records that are whole with it.
    pub(crate) fn handle_stretch(
        &mut self,
        now: Time,
        wall: u64,
        from: PublicKey,
        stretch: Stretch,
        expected: bool,
    ) -> Vec<Record> {
        let (window, replies) = if expected { (WINDOW, REPLIES_MOST) } else { (WINDOW_STRANGER, REPLIES_STRANGER) };
        let crowded = || self.lanes.values().filter(|lane| lane.strange).count() >= STRANGERS_MOST;
        if !expected && !self.lanes.contains_key(&from) && crowded() {
            return Vec::new();
        }
        let Some(lane) = self.open(now, wall, from, window) else { return Vec::new() };
        lane.strange &= !expected;
        if lane.replied > replies {
            // It asks, and hears nothing: it is to listen first.
            return Vec::new();
        }
        lane.stirred = now;
        if lane.receiver.begins(&stretch) {
            lane.inbox.clear();
            lane.broken = false;
        }
        match lane.receiver.handle(now, stretch) {
            Arrived::Bytes(bytes) if !lane.broken => lane.inbox.extend(bytes),
            Arrived::Bytes(_) => {}
            Arrived::Foreign(answer) => lane.answers.push_back(answer),
        }
        let mut records = Vec::new();
        let mut at = 0;
        loop {
            match Record::decode(&lane.inbox[at..]) {
                Ok(Some((record, length))) => {
                    at += length;
                    records.extend(record);
                }
                Ok(None) => break,
                Err(_) => {
                    (lane.broken, at) = (true, lane.inbox.len());
                    break;
                }
            }
        }
        lane.inbox.drain(..at);
        records
    }

    /// An acknowledgement came. Tells whether the other host has forgotten what it was told, so that all of it is to be
    /// said anew.
    pub(crate) fn handle_received(&mut self, now: Time, wall: u64, from: PublicKey, received: &Received) -> bool {
        let Some(lane) = self.lanes.get_mut(&from) else { return false };
        match lane.sender.handle(now, received) {
            Heard::Well => {
                let heard = lane.sender.base();
                while let Some((end, bytes)) = lane.replies.front() {
                    if *end > heard {
                        break;
                    }
                    lane.replied -= bytes.len();
                    lane.replies.pop_front();
                }
                lane.stirred = now;
                false
            }
            Heard::Nothing => false,
            Heard::Lost(number) => {
                // What it remembers counts for this lane alone: it may say what it likes.
                let Some(next) = number.checked_add(1) else { return false };
                self.newest = self.newest.saturating_add(1).max(wall);
                lane.sender = Sender::new(self.newest.max(next), now, WINDOW_STRANGER);
                lane.sender.awaits = lane.awaited > 0;
                for (end, bytes) in &mut lane.replies {
                    lane.sender.push(now, bytes);
                    *end = lane.sender.end();
                }
                lane.stirred = now;
                true
            }
        }
    }

    /// There is a session with another host, a new one or at last.
    pub(crate) fn ask(&mut self, with: &PublicKey) {
        if let Some(lane) = self.lanes.get_mut(with).filter(|lane| !lane.sender.is_empty() || lane.awaited > 0) {
            lane.sender.ask();
        }
    }

    /// The hosts that a lane leads to.
    pub(crate) fn keys(&self) -> Vec<PublicKey> {
        self.lanes.keys().copied().collect()
    }

    /// Whether something is to be said to a host, or waited for.
    pub(crate) fn wants(&self, with: &PublicKey) -> bool {
        self.lanes.get(with).is_some_and(|lane| lane.awaited > 0 || !lane.sender.is_empty())
    }

    /// How much of what is said to a host it has acknowledged, in bytes.
    pub(crate) fn heard(&self, with: &PublicKey) -> u64 {
        self.lanes.get(with).map_or(0, |lane| lane.sender.base())
    }

    /// Whether a host has not answered for so long that the way to it may be at fault.
    pub(crate) fn doubts(&self, with: &PublicKey) -> bool {
        self.lanes.get(with).is_some_and(|lane| lane.sender.unanswered() >= PROBES_DOUBTED)
    }

    /// The next message to a host.
    pub(crate) fn poll(&mut self, now: Time, to: &PublicKey) -> Option<Message> {
        let lane = self.lanes.get_mut(to)?;
        if let Some(answer) = lane.answers.pop_front() {
            return Some(Message::Received(answer));
        }
        if let Some(received) = lane.receiver.poll(now) {
            return Some(Message::Received(received));
        }
        lane.sender.poll(now).map(Message::Stream)
    }

    /// When something is due, with hosts that there is a session with, or else.
    pub(crate) fn deadline(&self, now: Time, has_session: impl Fn(&PublicKey) -> bool) -> Option<Time> {
        let of = |(key, lane): (&PublicKey, &Lane)| {
            let quiet = lane.awaited == 0 && lane.sender.is_empty();
            let idle = quiet.then(|| lane.stirred + IDLE);
            let ours = lane.sender.deadline();
            let due = if has_session(key) {
                [ours, lane.receiver.deadline()].into_iter().flatten().min()
            } else {
                ours.map(|at| at.max(now + UNREACHED))
            };
            [due, idle].into_iter().flatten().min()
        };
        self.lanes.iter().filter_map(of).min()
    }

    /// What is due happens; lanes that nothing goes over any more are forgotten.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for lane in self.lanes.values_mut() {
            if lane.sender.deadline().is_some_and(|at| at <= now) {
                lane.sender.handle_timeout(now);
            }
        }
        self.lanes.retain(|_, lane| {
            let idle = lane.sender.is_empty() && lane.stirred + IDLE <= now;
            let vain = lane.sender.unanswered() >= PROBES_MOST;
            lane.awaited > 0 || !(idle || vain)
        });
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.lanes.values().map(|lane| 1 + lane.sender.held() + lane.receiver.held() + lane.inbox.len()).sum()
    }
}

/// Whether a record answers another, or follows from it, so that it is not said again by itself.
fn is_reply(record: &Record) -> bool {
    match record {
        Record::Answer { .. }
        | Record::Announced { .. }
        | Record::Verdict { .. }
        | Record::Decided { .. }
        | Record::Settled { .. }
        | Record::Leased { .. }
        | Record::Return { .. }
        | Record::Cancel { .. }
        | Record::Ending { .. }
        | Record::Offer { .. }
        | Record::Reached { .. }
        | Record::Loaded { .. } => true,
        Record::Ask { .. }
        | Record::Announce { .. }
        | Record::Belongs { .. }
        | Record::Part { .. }
        | Record::Load { .. }
        | Record::Ticket(_)
        | Record::Present { .. }
        | Record::Recall { .. }
        | Record::Lease { .. }
        | Record::Claim { .. }
        | Record::Surrender(_) => false,
    }
}
