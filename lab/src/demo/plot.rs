//! The throughput of a download around moves, as SVG.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::{Error, Result};

/// Width of one bar of the throughput, in seconds.
const BIN: f64 = 0.2;
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
/// Left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 48.0, 16.0, 48.0);

/// A move.
pub(super) struct Mark {
    /// When the old network was left, in seconds.
    pub(super) left: f64,
    /// When the new address was usable.
    pub(super) usable: f64,
    /// Where to.
    pub(super) place: String,
}

/// What is drawn.
pub(super) struct Plot {
    /// Seconds, and bytes that had come by then.
    pub(super) samples: Vec<(f64, u64)>,
    pub(super) marks: Vec<Mark>,
    pub(super) title: String,
}

impl Plot {
    /// For each move the longest time around it in which nothing came; none where the download was over before it.
    pub(super) fn stalls(&self) -> Vec<(String, Option<Duration>)> {
        let end = self.samples.last().map_or(0, |(_, size)| *size);
        let over = self.samples.iter().find(|(_, size)| *size == end).map_or(0.0, |(at, _)| *at);
        let longest = |mark: &Mark| {
            if over < mark.usable {
                return (mark.place.clone(), None);
            }
            let (from, to) = (mark.left - 0.2, mark.usable + 2.0);
            let mut last = None;
            let mut longest: f64 = 0.0;
            for pair in self.samples.windows(2).filter(|pair| pair[1].0 > from && pair[0].0 < to) {
                if pair[1].1 > pair[0].1 {
                    last = Some(pair[1].0);
                }
                if let Some(last) = last {
                    longest = longest.max(pair[1].0 - last);
                }
            }
            (mark.place.clone(), Some(Duration::from_secs_f64(longest)))
        };
        self.marks.iter().map(longest).collect()
    }

    /// Mbit/s in each [`BIN`].
    fn bins(&self) -> Vec<(f64, f64)> {
        let Some(&(end, _)) = self.samples.last() else { return Vec::new() };
        let size_at = |time: f64| {
            let after = self.samples.partition_point(|(at, _)| *at <= time);
            let (t0, s0) = if after == 0 { (0.0, 0) } else { self.samples[after - 1] };
            match self.samples.get(after) {
                Some(&(t1, s1)) if t1 > t0 => s0 as f64 + (s1 - s0) as f64 * (time - t0) / (t1 - t0),
                _ => s0 as f64,
            }
        };
        let start = self.samples.first().map_or(0.0, |first| first.0);
        let count = ((end - start) / BIN) as usize;
        (0..count)
            .map(|i| {
                let from = start + i as f64 * BIN;
                (from, (size_at(from + BIN) - size_at(from)) * 8.0 / 1e6 / BIN)
            })
            .collect()
    }

    /// Writes the SVG.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        }
        std::fs::write(path, self.svg()).map_err(|e| Error::call("write", path.display().to_string(), e))
    }

    fn svg(&self) -> String {
        let bins = self.bins();
        let first = bins.first().map_or(0.0, |bin| bin.0);
        let last = bins.last().map_or(1.0, |bin| bin.0 + BIN);
        let top = bins.iter().map(|bin| bin.1).fold(10.0, f64::max) * 1.15;
        let (left, above, right, below) = MARGIN;
        let x = |seconds: f64| left + (seconds - first) / (last - first) * (WIDTH - left - right);
        let y = |mbit: f64| HEIGHT - below - mbit / top * (HEIGHT - above - below);
        let base = y(0.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{left}\" y=\"20\" font-size=\"15\">{}</text>\n",
            self.title
        );
        let mut tick = 0.0;
        while tick < top {
            let at = y(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick:.0}</text>",
                WIDTH - right,
                left - 6.0,
                at + 4.0
            );
            tick += if top > 60.0 { 20.0 } else { 10.0 };
        }
        for second in (first.ceil() as u64..=last as u64).step_by(2) {
            let at = x(second as f64);
            let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{second}</text>", base + 16.0);
        }
        let mut area = format!("M{:.1} {base:.1}", x(first));
        for (from, mbit) in &bins {
            let _ = write!(area, " L{:.1} {:.1} L{:.1} {:.1}", x(*from), y(*mbit), x(from + BIN), y(*mbit));
        }
        let _ = writeln!(
            svg,
            "<path d=\"{area} L{:.1} {base:.1} Z\" fill=\"#9ecae1\" stroke=\"#3182bd\" stroke-width=\"1\"/>",
            x(last)
        );
        for mark in &self.marks {
            let (a, b) = (x(mark.left), x(mark.usable));
            let _ = writeln!(
                svg,
                "<rect x=\"{a:.1}\" y=\"{above}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#fb6a4a\" opacity=\"0.35\"/>\
                 <line x1=\"{b:.1}\" x2=\"{b:.1}\" y1=\"{above}\" y2=\"{base:.1}\" stroke=\"#cb181d\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#cb181d\">{}</text>",
                (b - a).max(1.0),
                base - above,
                b + 4.0,
                above + 10.0,
                mark.place
            );
        }
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{base:.1}\" y2=\"{base:.1}\" stroke=\"black\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">seconds</text>\n\
             <text x=\"14\" y=\"{}\" transform=\"rotate(-90 14 {})\" text-anchor=\"middle\">Mbit/s received</text>\n</svg>\n",
            WIDTH - right,
            WIDTH / 2.0,
            HEIGHT - 10.0,
            HEIGHT / 2.0,
            HEIGHT / 2.0
        );
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_around_a_move_is_found() {
        // 1 MB each 40 ms, but nothing from 2.0 to 2.4 s.
        let mut samples = Vec::new();
        let mut size = 0;
        for i in 0..100 {
            let at = f64::from(i) * 0.04;
            if !(2.0..2.4).contains(&at) {
                size += 1_000_000;
            }
            samples.push((at, size));
        }
        let plot =
            Plot { samples, marks: vec![Mark { left: 2.0, usable: 2.05, place: "home".into() }], title: "t".into() };
        let stall = plot.stalls()[0].1.as_secs_f64();
        assert!((0.36..0.48).contains(&stall), "{stall}");
        assert!(plot.svg().contains("home"));
        let (_, rate) = plot.bins()[2];
        assert!((rate - 200.0).abs() < 20.0, "{rate}");
    }
}
