//! Windows and sequence numbers over a hand-off as drawings, as in the VHF report's figures 4 to 7.

use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use whimbrel_lab::{MonoTime, TcpInfo};

use crate::Result;
use crate::chart::Line;
use crate::course::{Course, write};
use crate::report::directory;

/// Between two looks at a window, and between two points of what came.
const EVERY: Duration = Duration::from_millis(10);

/// Looks at a sender's window until it is dropped.
pub(super) struct Sampler(Arc<Mutex<Vec<(MonoTime, u32)>>>);

impl Sampler {
    pub(super) fn begin(socket: TcpStream) -> Self {
        let windows = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::downgrade(&windows);
        std::thread::spawn(move || {
            while let (Some(seen), Ok(info)) = (seen.upgrade(), TcpInfo::of(&socket)) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push((MonoTime::now(), info.cwnd));
                drop(seen);
                std::thread::sleep(EVERY);
            }
        });
        Self(windows)
    }

    pub(super) fn since(&self, from: MonoTime) -> Vec<(MonoTime, u32)> {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.iter().copied().filter(|(time, _)| *time >= from).collect()
    }
}

/// How one hand-off went, by seconds since the new address could be used.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    name: &'static str,
    /// Segments.
    window: Vec<(f64, f64)>,
    /// MB that had come until then, of what is drawn.
    came: Vec<(f64, f64)>,
}

impl Seen {
    pub(super) fn new(
        name: &'static str,
        at: MonoTime,
        came: &[(MonoTime, u64)],
        windows: Vec<(MonoTime, u32)>,
    ) -> Self {
        let seconds = |time: MonoTime| (time.0 as f64 - at.0 as f64) / 1e9;
        let (mut bytes, mut drawn) = (0u64, Vec::new());
        for (time, more) in came {
            bytes += more;
            let point = (seconds(*time), bytes as f64 / 1e6);
            // The last within each step is the one that is drawn.
            match drawn.last_mut() {
                Some((step, last)) if *step == time.0 / EVERY.as_nanos() as u64 => *last = point,
                _ => drawn.push((time.0 / EVERY.as_nanos() as u64, point)),
            }
        }
        let window = windows.into_iter().map(|(time, window)| (seconds(time), f64::from(window))).collect();
        Self { name, window, came: drawn.into_iter().map(|(_, point)| point).collect() }
    }
}

/// Draws the windows and what came, a line for each of those that were seen, as `FILE-window.svg` and
/// `FILE-sequence.svg`.
pub(super) fn draw(title: &str, file: &str, [windows, came]: [Vec<Seen>; 2]) -> Result<()> {
    let line = |name: &str, points| Line { name: name.replace('_', " "), points };
    let windows = windows.into_iter().map(|seen| line(seen.name, seen.window)).collect();
    let came = came.into_iter().map(|seen| line(seen.name, seen.came)).collect();
    for (kind, up, lines) in [("window", "congestion window, segments", windows), ("sequence", "MB", came)] {
        let course = Course {
            title: title.to_owned(),
            across: "seconds since the new address could be used".to_owned(),
            up: up.to_owned(),
            lines,
            mark: (0.0, "hand-off".to_owned()),
        };
        let path = directory().join(format!("{file}-{kind}.svg"));
        write(&course, &path)?;
        eprintln!("drawn: {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_adds_up_and_is_drawn_once_a_step() {
        let at = |ms: u64| MonoTime(ms * 1_000_000);
        let came = [(at(1_000), 1_000_000), (at(1_004), 500_000), (at(1_020), 500_000)];
        let seen = Seen::new("restored", at(1_010), &came, vec![(at(1_005), 7)]);
        assert_eq!(seen.came, [(-0.006, 1.5), (0.01, 2.0)]);
        assert_eq!(seen.window, [(-0.005, 7.0)]);
    }
}
