//! Turns on the machine: what is measured has it alone, and those that only wait for an outage to pass stay out of the
//! way.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Hands the machine to one measurement at a time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    /// When those that pause want it back.
    due: Vec<(u64, Instant)>,
    next: u64,
}

/// The machine is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a time in which the machine is free for as long as `needs`.
    pub(crate) fn take(&self, needs: Duration) -> Turn<'_> {
        let mut state = self.lock();
        loop {
            let horizon = Instant::now() + needs;
            if !state.taken && state.due.iter().all(|(_, due)| *due > horizon) {
                state.taken = true;
                return Turn(self);
            }
            state = self.wait(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take_back(&self, reservation: Option<u64>) {
        let mut state = self.lock();
        while state.taken {
            state = self.wait(state);
        }
        state.taken = true;
        state.due.retain(|(number, _)| Some(*number) != reservation);
    }
}

impl Turn<'_> {
    /// Lets others have the machine until `due`, and then has it back, as soon as nobody is in the middle of something.
    pub(crate) fn pause_until(&mut self, due: Instant) {
        let number = {
            let mut state = self.0.lock();
            state.next += 1;
            let number = state.next;
            state.due.push((number, due));
            state.taken = false;
            number
        };
        self.0.changed.notify_all();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.0.take_back(Some(number));
    }

    /// Lets others have the machine while `wait` waits for something whose time is not known.
    pub(crate) fn away<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        self.0.lock().taken = false;
        self.0.changed.notify_all();
        let result = wait();
        self.0.take_back(None);
        result
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().taken = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_pause_is_used_by_what_fits_in() {
        let turns = Turns::default();
        let (done, order) = channel();
        std::thread::scope(|scope| {
            let mut long = turns.take(Duration::ZERO);
            let (short, tedious) = (done.clone(), done.clone());
            scope.spawn({
                let turns = &turns;
                move || {
                    let _turn = turns.take(Duration::from_millis(1));
                    short.send("short").unwrap();
                }
            });
            scope.spawn({
                let turns = &turns;
                move || {
                    let _turn = turns.take(Duration::from_secs(3600));
                    tedious.send("tedious").unwrap();
                }
            });
            long.pause_until(Instant::now() + Duration::from_millis(200));
            done.send("long").unwrap();
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["short", "long", "tedious"]);
    }
}
