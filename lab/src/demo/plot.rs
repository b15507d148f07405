//! The throughput of a download around moves, as SVG.

use std::path::Path;
use std::time::Duration;

use plotters::prelude::*;

use crate::{Error, Result};

/// Width of one bar of the throughput, in seconds.
const BIN: f64 = 0.2;
const SIZE: (u32, u32) = (960, 360);
/// Drawn a fifth smaller: plotters divides by 1.24.
const FONT: (&str, u32) = ("sans-serif", 15);
const BLUE: RGBColor = RGBColor(49, 130, 189);
const RED: RGBColor = RGBColor(203, 24, 29);

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
        let drawn = self
            .svg()
            .map_err(|e| Error::call("draw", path.display().to_string(), std::io::Error::other(e.to_string())))?;
        std::fs::write(path, drawn).map_err(|e| Error::call("write", path.display().to_string(), e))
    }

    fn svg(&self) -> std::result::Result<String, Box<dyn std::error::Error>> {
        let bins = self.bins();
        let first = bins.first().map_or(0.0, |bin| bin.0);
        let last = bins.last().map_or(1.0, |bin| bin.0 + BIN);
        let top = bins.iter().map(|bin| bin.1).fold(10.0, f64::max) * 1.15;
        let mut out = String::new();
        let area = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut plot = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(first..last, 0.0..top)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(20)
            .x_label_formatter(&|second| format!("{second:.0}"))
            .y_label_formatter(&|rate| format!("{rate:.0}"))
            .label_style(FONT)
            .x_desc("seconds")
            .y_desc("Mbit/s received")
            .draw()?;
        let steps = bins.iter().flat_map(|(from, rate)| [(*from, *rate), (from + BIN, *rate)]);
        plot.draw_series(AreaSeries::new(steps, 0.0, BLUE.mix(0.45)).border_style(BLUE))?;
        for Mark { left, usable, place } in &self.marks {
            let place = Text::new(place.clone(), (usable + 0.1, top * 0.98), FONT.into_font().color(&RED));
            plot.draw_series([Rectangle::new([(*left, 0.0), (*usable, top)], RED.mix(0.25).filled())])?;
            plot.draw_series(LineSeries::new([(*usable, 0.0), (*usable, top)], RED))?;
            plot.draw_series([place])?;
        }
        area.present()?;
        drop(plot);
        drop(area);
        Ok(out)
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
        let mark = |left, place: &str| Mark { left, usable: left + 0.05, place: place.into() };
        let marks = vec![mark(2.0, "home"), mark(3.97, "too late")];
        let plot = Plot { samples, marks, title: "t".into() };
        let stalls = plot.stalls();
        assert_eq!(stalls[1].1, None, "all had come by then");
        let stall = stalls[0].1.expect("a stall").as_secs_f64();
        assert!((0.36..0.48).contains(&stall), "{stall}");
        assert!(plot.svg().expect("a drawing").contains("home"));
        let (_, rate) = plot.bins()[2];
        assert!((rate - 200.0).abs() < 20.0, "{rate}");
    }
}
