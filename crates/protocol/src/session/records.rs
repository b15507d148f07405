//! What hosts say to one another by the reliable channel: records to each of them, in order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{Received, Record, Stretch};

use super::channel::Lanes;
use crate::Time;

/// Pause before a host is asked again for a session that a record waits for, at first and at the longest.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
const ASKED_AGAIN_LONGEST: Duration = Duration::from_secs(60);

/// The records that are on their way, of all who have something to say.
#[derive(Debug)]
pub(crate) struct Records {
    me: PublicKey,
    wall_clock_at_zero: u64,
    lanes: Lanes,
    /// Where hosts are to be asked for that no peer is known of.
    hints: BTreeMap<PublicKey, SocketAddr>,
    /// When such hosts are asked again, and how often they were.
    asked_at: BTreeMap<PublicKey, (Time, u32)>,
}

impl Records {
    pub(crate) fn new(me: PublicKey, wall_clock_at_zero: u64) -> Self {
        let (hints, asked_at) = (BTreeMap::new(), BTreeMap::new());
        Self { me, wall_clock_at_zero, lanes: Lanes::default(), hints, asked_at }
    }

    pub(crate) const fn me(&self) -> PublicKey {
        self.me
    }

    fn wall(&self, now: Time) -> u64 {
        self.wall_clock_at_zero + now.as_millis()
    }

    /// Says something to another host.
    pub(crate) fn send(&mut self, now: Time, to: PublicKey, record: &Record) {
        let wall = self.wall(now);
        self.lanes.send(now, wall, to, record);
    }

    /// Of those that something waited for a word of, and those that it waits for now.
    pub(crate) fn wait(&mut self, now: Time, before: &[PublicKey], after: &[PublicKey]) {
        let (me, wall) = (self.me, self.wall(now));
        for (keys, more) in [(after, true), (before, false)] {
            for key in keys.iter().filter(|key| **key != me) {
                self.lanes.wait(now, wall, *key, more);
            }
        }
    }

    /// Where a host is to be asked for, should no peer be known of it.
    pub(crate) fn hint(&mut self, host: PublicKey, at: Option<SocketAddr>) {
        self.hints.extend(at.map(|at| (host, at)));
    }

    /// Where a host is to be asked for a session now that no peer is known of.
    pub(crate) fn hinted(&mut self, now: Time, host: &PublicKey) -> Option<SocketAddr> {
        let (next, tries) = self.asked_at.get(host).copied().unwrap_or_default();
        if next > now {
            return None;
        }
        let pause = (ASKED_AGAIN * 2u32.pow(tries.saturating_sub(4).min(10))).min(ASKED_AGAIN_LONGEST);
        self.asked_at.insert(*host, (now + pause, tries + 1));
        self.hints.get(host).copied()
    }

    /// A stretch came: gives the records that are whole with it. `expected`: something is expected of who has sent it.
    pub(crate) fn handle_stretch(
        &mut self,
        now: Time,
        from: PublicKey,
        stretch: Stretch,
        expected: bool,
    ) -> Vec<Record> {
        let (wall, expected) = (self.wall(now), expected || self.lanes.wants(&from));
        self.lanes.handle_stretch(now, wall, from, stretch, expected)
    }

    /// An acknowledgement came. Tells whether the other host has forgotten what it was told, so that all of it is to be
    /// said anew.
    pub(crate) fn handle_received(&mut self, now: Time, from: PublicKey, received: &Received) -> bool {
        let wall = self.wall(now);
        self.lanes.handle_received(now, wall, from, received)
    }

    /// The next message to a host.
    pub(crate) fn poll(&mut self, now: Time, to: &PublicKey) -> Option<Message> {
        self.lanes.poll(now, to)
    }

    /// There is a session with another host, a new one or at last.
    pub(crate) fn handle_session(&mut self, with: &PublicKey) {
        self.lanes.ask(with);
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.lanes.handle_timeout(now);
        let lanes = &self.lanes;
        self.hints.retain(|key, _| lanes.wants(key));
        self.asked_at.retain(|key, _| lanes.wants(key));
    }

    /// When something is due, with hosts that there is a session with, or else.
    pub(crate) fn deadline(&self, now: Time, has_session: impl Fn(&PublicKey) -> bool) -> Option<Time> {
        self.lanes.deadline(now, has_session)
    }

    /// The hosts that something was said to, or came from, a while ago at the most.
    pub(crate) fn hosts(&self) -> Vec<PublicKey> {
        self.lanes.keys()
    }

    /// The hosts that something is to be said to, or waited for.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = PublicKey> {
        self.lanes.keys().into_iter().filter(|host| self.lanes.wants(host))
    }

    /// Whether something is to be said to a host, or waited for.
    pub(crate) fn wants(&self, host: &PublicKey) -> bool {
        self.lanes.wants(host)
    }

    /// Whether a host has not answered for so long that the way to it may be at fault.
    pub(crate) fn doubts(&self, host: &PublicKey) -> bool {
        self.lanes.doubts(host)
    }

    /// How much of what is said to a host it has acknowledged, in bytes.
    pub(crate) fn heard(&self, host: &PublicKey) -> u64 {
        self.lanes.heard(host)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.lanes.entries() + self.hints.len()
    }
}
