//! Threads for what takes so long that the loop cannot wait for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use whimbrel_kernel::Error;
use whimbrel_kernel::error::Effect;

/// What threads have done, for the loop.
#[derive(Debug)]
pub(crate) struct Work<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
    wake: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Work<T> {
    pub(crate) fn new() -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| Error::Call {
            call: "eventfd",
            object: "for what threads find".to_owned(),
            source: errno.into(),
            effect: Effect::None,
        })?;
        let (sender, receiver) = channel();
        Ok(Self { sender, receiver, wake: Arc::new(wake), threads: Vec::new() })
    }

    /// Readable when something is done.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Has the loop look, though nothing is done by a thread.
    pub(crate) fn stir(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Does something in a thread of its own. `fail` makes the result where there can be none.
    pub(crate) fn begin(&mut self, work: impl FnOnce() -> T + Send + 'static, fail: impl FnOnce(String) -> T) {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        let thread = move || {
            // The loop ends only when the daemon does; then nobody waits for it.
            let _ = sender.send(work());
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        self.threads.retain(|thread| !thread.is_finished());
        match std::thread::Builder::new().name("work".to_owned()).spawn(thread) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                let _ = self.sender.send(fail(format!("no thread could be started for it: {error}")));
                self.stir();
            }
        }
    }

    /// Waits until all is done.
    pub(crate) fn finish(&mut self) {
        for thread in self.threads.drain(..) {
            // One that has failed has said so.
            let _ = thread.join();
        }
    }

    /// Takes what is done.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.receiver.try_iter().collect()
    }
}
