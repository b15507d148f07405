//! The terminal while something is shown live: raw, on its alternate screen, and as it was afterwards.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Alternate screen, no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Ctrl-C, Ctrl-D and Escape, which arrive as bytes in raw mode.
const ENDING: [u8; 5] = [b'q', b'Q', 3, 4, 27];

/// The terminal on standard input and output. Dropping it restores it, also where the program panics.
pub(super) struct Terminal {
    before: Termios,
    /// A signal asked for the end.
    ended: Arc<AtomicBool>,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When standard input or output is none.
    pub(super) fn take() -> io::Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let before = tcgetattr(io::stdin())?;
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&ended))?;
        }
        let mut raw = before.clone();
        raw.make_raw();
        let this = Self { before, ended };
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(this)
    }

    /// Columns and rows; what a terminal has had since ever where it does not tell.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Shows these lines in place of those before. Each must fit the width.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn show(&self, lines: &[String]) -> io::Result<()> {
        // Overwritten in place, so that nothing flickers; the last line has no end, which would scroll.
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }

    /// Waits for so long; whether the user wants to end meanwhile.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn wait(&self, pause: Duration) -> io::Result<bool> {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.ended.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let timeout =
                Timespec { tv_sec: left.as_secs().try_into().unwrap_or(1), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
            let mut typed = [0; 64];
            let count = stdin.lock().read(&mut typed)?;
            if count == 0 || typed[..count].iter().any(|byte| ENDING.contains(byte)) {
                return Ok(true);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to restore.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
