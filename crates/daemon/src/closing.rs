//! What may take long to close: descriptors that programs have handed over, or that are shared with them.
//!
//! To close the last descriptor of a socket waits for as long as its program has said (SO_LINGER), and one of a file
//! for its file system, which may be a program as well. So each is closed by a thread for its user, where only others
//! of that user's wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who is taken for the user of what came from another host, or was borrowed.
const NOBODY: u32 = u32::MAX;

/// What waits to be closed, by whose it is. Where there is an entry, there is a thread that closes another one
/// meanwhile.
static WAITING: Mutex<BTreeMap<u32, VecDeque<Box<dyn Send>>>> = Mutex::new(BTreeMap::new());

fn waiting() -> MutexGuard<'static, BTreeMap<u32, VecDeque<Box<dyn Send>>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that holds descriptors. A thread drops it, whoever lets go of it.
#[derive(Debug)]
pub(crate) struct ClosedApart<T: Send + 'static> {
    /// There until it is dropped or taken out.
    held: Option<T>,
    user: u32,
}

/// A descriptor that a program has handed over.
pub(crate) type Received = ClosedApart<OwnedFd>;

impl<T: Send + 'static> ClosedApart<T> {
    /// Of this user's. `None`: the system does not say whose it is.
    pub(crate) fn of(user: Option<u32>, held: T) -> Self {
        Self { held: Some(held), user: user.unwrap_or(NOBODY) }
    }

    /// For who does not close it, or has nothing to wait for.
    #[expect(clippy::expect_used, reason = "it is there until then")]
    pub(crate) fn into_inner(mut self) -> T {
        self.held.take().expect("it is held")
    }
}

impl<T: Send + 'static> From<T> for ClosedApart<T> {
    fn from(held: T) -> Self {
        Self::of(None, held)
    }
}

impl<T: Send + 'static> Deref for ClosedApart<T> {
    type Target = T;

    #[expect(clippy::expect_used, reason = "it is there until it is dropped or taken out, by value")]
    fn deref(&self) -> &T {
        self.held.as_ref().expect("it is held")
    }
}

impl<T: Send + 'static> DerefMut for ClosedApart<T> {
    #[expect(clippy::expect_used, reason = "as above")]
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("it is held")
    }
}

impl<T: AsFd + Send + 'static> AsFd for ClosedApart<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Send + 'static> Drop for ClosedApart<T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            close(self.user, Box::new(held));
        }
    }
}

/// How many wait to be closed of a user's, that which is being closed included.
pub(crate) fn left_of(user: Option<u32>) -> usize {
    waiting().get(&user.unwrap_or(NOBODY)).map_or(0, |queue| queue.len() + 1)
}

fn close(user: u32, held: Box<dyn Send>) {
    let mut all = waiting();
    if let Some(queue) = all.get_mut(&user) {
        return queue.push_back(held);
    }
    all.insert(user, VecDeque::new());
    drop(all);
    let close_them = move || {
        drop(held);
        close_all(user);
    };
    if let Err(error) = std::thread::Builder::new().name("close".to_owned()).spawn(close_them) {
        tracing::warn!(%error, "no thread could be started that closes what programs have handed over");
        // The first of them is closed by now, with what would have run in the thread.
        close_all(user);
    }
}

/// Closes what waits of a user's until nothing does.
fn close_all(user: u32) {
    loop {
        let mut all = waiting();
        let Some(next) = all.get_mut(&user).and_then(VecDeque::pop_front) else {
            all.remove(&user);
            return;
        };
        drop(all);
        drop(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Takes until it is told to close.
    struct Slow(Receiver<()>, Sender<u32>, u32);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(self.2);
        }
    }

    #[test]
    fn what_takes_long_to_close_is_waited_for_by_its_own_user_alone() {
        // Users that no other test has.
        let [slow, quick] = [4_000_000_001, 4_000_000_002].map(Some);
        let (closed, told) = channel();
        let (let_go, held) = channel();
        let (always, ready) = channel();
        always.send(()).expect("sent");
        drop(ClosedApart::of(slow, Slow(held, closed.clone(), 1)));
        let (at_once, behind) = channel();
        at_once.send(()).expect("sent");
        drop(ClosedApart::of(slow, Slow(behind, closed.clone(), 2)));
        drop(ClosedApart::of(quick, Slow(ready, closed, 3)));
        assert_eq!(told.recv().expect("closed"), 3);
        assert_eq!(left_of(slow), 2);
        let_go.send(()).expect("sent");
        assert_eq!([told.recv(), told.recv()].map(|of| of.expect("closed")), [1, 2]);
        let kept = ClosedApart::of(quick, 7).into_inner();
        assert_eq!(kept, 7);
    }
}
