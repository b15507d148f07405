//! What goes between a host and its peers, as `bpf/lib/traffic.h` has it.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_protocol::{Between, Time};

/// From so many answers on it is known what is usual.
const ENOUGH: u8 = 16;
/// What took longer counts as this.
const MOST: Duration = Duration::from_secs(60);

/// All that is watched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    watched: BTreeMap<Between, Watched>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    answer: Duration,
    heard: Option<Time>,
    asked: Option<Time>,
    usual: Duration,
    varies: Duration,
    answers: u8,
    told: bool,
    /// When the timer goes off.
    due: Option<Time>,
}

/// What comes of a timer.
pub(crate) enum Overdue {
    /// It goes off again.
    At(Time),
    /// Nothing comes, for so long.
    For(Duration),
}

impl Traffic {
    pub(crate) fn watch(&mut self, between: Between, answer: Option<Duration>) {
        let Some(answer) = answer else {
            self.watched.remove(&between);
            return;
        };
        let watched = self.watched.entry(between).or_default();
        *watched = Watched { answer, asked: None, told: false, due: None, ..*watched };
    }

    pub(crate) fn len(&self) -> usize {
        self.watched.len()
    }

    pub(crate) fn heard(&self, between: Between) -> Option<Time> {
        self.watched.get(&between)?.heard
    }

    /// Something leaves that may be answered: when a timer is to go off, where none runs.
    pub(crate) fn note_leaving(&mut self, now: Time, between: Between) -> Option<Time> {
        let watched = self.watched.get_mut(&between)?;
        watched.asked.get_or_insert(now);
        if watched.answers < ENOUGH || watched.told || watched.due.is_some() {
            return None;
        }
        watched.due = Some(now + watched.granted());
        watched.due
    }

    pub(crate) fn note_coming(&mut self, now: Time, between: Between) {
        let Some(watched) = self.watched.get_mut(&between) else { return };
        watched.heard = Some(now);
        if let Some(asked) = watched.asked.take() {
            watched.learn(now.since(asked).min(MOST));
        }
    }

    pub(crate) fn on_timer(&mut self, now: Time, between: Between) -> Option<Overdue> {
        let watched = self.watched.get_mut(&between).filter(|watched| watched.due == Some(now))?;
        watched.due = None;
        let asked = watched.asked.filter(|_| !watched.told)?;
        let due = asked + watched.granted();
        if now < due {
            watched.due = Some(due);
            return Some(Overdue::At(due));
        }
        watched.told = true;
        Some(Overdue::For(now.since(asked)))
    }
}

impl Watched {
    fn granted(&self) -> Duration {
        (self.usual + (self.varies * 4).max(self.usual / 4)).max(self.answer)
    }

    fn learn(&mut self, took: Duration) {
        if self.answers == 0 {
            (self.usual, self.varies) = (took, took / 2);
        } else if self.told {
            self.usual = self.usual.max(took);
        } else {
            self.varies = (self.varies * 3 + self.usual.abs_diff(took)) / 4;
            self.usual = (self.usual * 7 + took) / 8;
        }
        self.told = false;
        self.answers = (self.answers + 1).min(ENOUGH);
    }
}
