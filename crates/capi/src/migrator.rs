//! A system that migrates processes is asked where sockets are to be anchored (SOCKMAND §4.7.11).

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use whimbrel_ipc::{Client, REPLY_TIMEOUT, Reply, Request};

use crate::failure::{Fault, give};
use crate::text;

/// The one who is asked: wb_migrator_open(). Several threads may use one; they wait for one another.
#[allow(non_camel_case_types, reason = "as C has it")]
#[derive(Debug)]
pub struct wb_migrator {
    descriptor: c_int,
    client: Mutex<Client>,
}

/// A program wants a socket whose anchor is "policy:NUMBER".
#[repr(C)]
#[allow(non_camel_case_types, reason = "as C has it")]
pub struct wb_question {
    /// Names the question.
    pub number: u64,
    /// What the program has asked for.
    pub policy: c_uint,
    /// Its process, in the daemon's PID namespace.
    pub process: libc::pid_t,
    /// Its name.
    pub name: [c_char; 16],
}

/// Is asked, from now on, which host is to be the anchor of a socket whose program names a policy.
///
/// Returns what wb_migrator_next() takes, to be closed by wb_migrator_close(), or NULL with errno: EADDRINUSE, there is
/// a migrator already; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
#[unsafe(no_mangle)]
pub extern "C" fn wb_migrator_open() -> *mut wb_migrator {
    let open = || {
        let mut client = text::daemon()?;
        match client.exchange(&Request::Migrator, &[], Some(REPLY_TIMEOUT))?.0 {
            Reply::Migrator { .. } => {}
            _ => return Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
        }
        let descriptor = client.as_fd().as_raw_fd();
        Ok(Box::into_raw(Box::new(wb_migrator { descriptor, client: Mutex::new(client) })))
    };
    give(open(), std::ptr::null_mut())
}

/// A descriptor that is readable when there may be a question, for poll(2). Then call wb_migrator_next() with a
/// time-out of 0 until it fails with EAGAIN. It belongs to the migrator.
///
/// Returns -1 with errno EFAULT where `migrator` is NULL.
///
/// # Safety
/// `migrator` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_migrator_fd(migrator: *const wb_migrator) -> c_int {
    // SAFETY: as the caller promises.
    let migrator = unsafe { migrator.as_ref() }.ok_or_else(|| Fault::null("migrator"));
    give(migrator.map(|migrator| migrator.descriptor), -1)
}

/// Waits for a question, for so many milliseconds; -1 without end. The program is refused when it is not answered for
/// two seconds.
///
/// Returns 0, or -1 with errno: EAGAIN, there is none; ECONNRESET, the daemon has ended; EFAULT, a pointer is NULL.
///
/// # Safety
/// `migrator` is NULL or open; `question` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_migrator_next(
    migrator: *mut wb_migrator,
    question: *mut wb_question,
    timeout: c_int,
) -> c_int {
    let wait = || {
        // SAFETY: as the caller promises.
        let migrator = unsafe { migrator.as_ref() }.ok_or_else(|| Fault::null("migrator"))?;
        if question.is_null() {
            return Err(Fault::null("question"));
        }
        let mut client = migrator.client.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = text::none_yet(client.next_reply(text::timeout(timeout)))?.0;
        drop(client);
        let Reply::WantedAnchor(wanted) = reply else {
            return Err(Fault::new(libc::EPROTO, "the daemon said something else than a question"));
        };
        let mut name = [0; 16];
        text::fill(&mut name, &wanted.process.name);
        let process = libc::pid_t::try_from(wanted.process.pid).unwrap_or(0);
        let value = wb_question { number: wanted.question, policy: wanted.policy, process, name };
        // SAFETY: as the caller promises.
        unsafe { question.write(value) };
        Ok(0)
    };
    give(wait(), -1)
}

/// Answers a question: `anchor` as for wb_socket(), but no policy. NULL: the program is refused. An answer that comes
/// too late is passed over.
///
/// Returns 0, or -1 with errno: EFAULT, `migrator` is NULL; EINVAL, `anchor` is not UTF-8; EPIPE, the daemon has ended.
///
/// # Safety
/// `migrator` is NULL or open; `anchor` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_migrator_answer(migrator: *mut wb_migrator, question: u64, anchor: *const c_char) -> c_int {
    let answer = || {
        // SAFETY: as the caller promises.
        let (migrator, anchor) = unsafe { (migrator.as_ref(), text::optional(anchor, "anchor")?) };
        let migrator = migrator.ok_or_else(|| Fault::null("migrator"))?;
        let mut client = migrator.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.start(&Request::Anchor { question, anchor: anchor.map(str::to_owned) })?;
        Ok(0)
    };
    give(answer(), -1)
}

/// Is asked no more. NULL is passed over.
///
/// # Safety
/// `migrator` is NULL or open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_migrator_close(migrator: *mut wb_migrator) {
    if !migrator.is_null() {
        // SAFETY: as the caller promises: it is what `wb_migrator_open` made.
        drop(unsafe { Box::from_raw(migrator) });
    }
}
