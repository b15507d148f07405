//! Line charts as SVG, several in a row: what is measured by a size that doubles.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 320.0;
/// Left, top, right, bottom of a chart.
const MARGIN: (f64, f64, f64, f64) = (56.0, 40.0, 16.0, 84.0);
const COLOURS: [&str; 4] = ["#888888", "#2b6ca3", "#c0392b", "#27894e"];
const BAND: &str = "#f3e3b3";

/// Values that belong together.
pub(crate) struct Line {
    pub(crate) name: String,
    /// (x, y), x rising and above zero.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A range of y that somebody else measured.
pub(crate) struct Band {
    pub(crate) name: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

/// One chart.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What x is.
    pub(crate) across: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) band: Option<Band>,
}

/// Writes charts side by side, each with a scale of its own; y is a ratio `beside` something.
pub(crate) fn write(charts: &[Chart], beside: &str, path: &Path) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    Ok(std::fs::write(path, svg(charts, beside))?)
}

fn svg(charts: &[Chart], beside: &str) -> String {
    let width = WIDTH * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate({},0)\">", WIDTH * index as f64);
        draw(&mut out, chart, beside);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// The least and the greatest that a chart has to hold, at full steps.
fn scale(chart: &Chart) -> (f64, f64) {
    let points = chart.lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y));
    let values = points.chain(chart.band.iter().flat_map(|band| [band.from, band.to]));
    let (lowest, highest) = values
        .filter(|value| value.is_finite())
        .fold((0.9f64, 1.05f64), |(low, high), value| (low.min(value), high.max(value)));
    ((lowest * 20.0).floor() / 20.0, (highest * 20.0).ceil() / 20.0)
}

fn draw(out: &mut String, chart: &Chart, beside: &str) {
    let (lowest, highest) = scale(chart);
    let (left, above, right, below) = MARGIN;
    let all = || chart.lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
    let (first, last) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
    let x = |value: f64| left + (value / first).log2() / (last / first).log2().max(1.0) * (WIDTH - left - right);
    let y = |value: f64| HEIGHT - below - (value - lowest) / (highest - lowest) * (HEIGHT - above - below);
    let _ = writeln!(out, "<text x=\"{left}\" y=\"20\" font-size=\"14\">{}</text>", chart.title);
    let _ = writeln!(out, "<text x=\"{left}\" y=\"34\" fill=\"#666\">{beside}</text>");
    if let Some(band) = &chart.band {
        let (top, bottom) = (y(band.to), y(band.from));
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{BAND}\"/>",
            WIDTH - left - right,
            bottom - top
        );
    }
    // Steps of 0.05, as many at a time as leave room, counted from 1.
    let (down, up) = (((lowest - 1.0) * 20.0).round() as i32, ((highest - 1.0) * 20.0).round() as i32);
    let every = ((up - down) / 8).max(1);
    for step in (down..=up).filter(|step| step % every == 0) {
        let value = 1.0 + f64::from(step) * 0.05;
        let at = y(value);
        let colour = if step == 0 { "#666" } else { "#ddd" };
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.2}</text>",
            WIDTH - right,
            left - 6.0,
            at + 4.0
        );
    }
    for point in chart.lines.first().map(|line| line.points.as_slice()).unwrap_or_default() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            x(point.0),
            HEIGHT - below + 14.0,
            point.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (left + WIDTH - right) / 2.0,
        HEIGHT - below + 30.0,
        chart.across
    );
    for (line, colour) in chart.lines.iter().zip(COLOURS) {
        let points: Vec<String> =
            line.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
    }
    let names = chart.lines.iter().map(|line| line.name.as_str()).zip(COLOURS);
    let names = names.chain(chart.band.iter().map(|band| (band.name.as_str(), BAND)));
    for (at, (name, colour)) in names.enumerate() {
        let (across, down) = (left + (at % 2) as f64 * 170.0, HEIGHT - 32.0 + (at / 2) as f64 * 16.0);
        let _ = writeln!(
            out,
            "<rect x=\"{across}\" y=\"{:.1}\" width=\"12\" height=\"8\" fill=\"{colour}\"/><text x=\"{}\" y=\"{down}\">{name}</text>",
            down - 8.0,
            across + 18.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_given_is_drawn() {
        let line = |name: &str, y: f64| Line { name: name.into(), points: vec![(64.0, y), (128.0, y), (8192.0, 1.0)] };
        let band = Some(Band { name: "theirs".into(), from: 0.8, to: 0.9 });
        let chart =
            Chart { title: "Title".into(), across: "bytes".into(), lines: vec![line("a", 0.5), line("b", 1.4)], band };
        let drawn = svg(&[chart], "beside nothing");
        for text in ["Title", "beside nothing", "bytes", ">a<", ">b<", "theirs", ">8192<", ">1.00<"] {
            assert!(drawn.contains(text), "{text} is missing:\n{drawn}");
        }
        assert_eq!(drawn.matches("<polyline").count(), 2);
        // The scale holds the lowest and the highest.
        assert!(drawn.contains(">0.50<") && drawn.contains(">1.40<") && !drawn.contains("NaN"), "{drawn}");
    }
}
