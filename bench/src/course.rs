//! How something goes over time, as SVG: one chart, both scales even, from zero.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::chart::Line;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
/// Left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (56.0, 44.0, 16.0, 64.0);
const COLOURS: [&str; 4] = ["#2b6ca3", "#c0392b", "#888888", "#27894e"];

/// What is drawn.
pub(crate) struct Course {
    pub(crate) title: String,
    /// What x and y are.
    pub(crate) across: String,
    pub(crate) up: String,
    pub(crate) lines: Vec<Line>,
    /// Where on x something happens, and what.
    pub(crate) mark: (f64, String),
}

/// Writes it.
pub(crate) fn write(course: &Course, path: &Path) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    Ok(std::fs::write(path, svg(course))?)
}

/// A round number of which there are four to eight in `span`.
fn step(span: f64) -> f64 {
    let rough = 10f64.powf(span.max(f64::MIN_POSITIVE).log10().floor());
    [0.2, 0.5, 1.0, 2.0].map(|part| rough * part).into_iter().find(|step| span / step <= 8.0).unwrap_or(rough)
}

fn svg(course: &Course) -> String {
    let (left, above, right, below) = MARGIN;
    let points = || course.lines.iter().flat_map(|line| &line.points);
    let (first, last) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    let highest = points().fold(0.0f64, |high, (_, y)| high.max(*y)).max(f64::MIN_POSITIVE);
    let x = |value: f64| left + (value - first) / (last - first) * (WIDTH - left - right);
    let y = |value: f64| HEIGHT - below - value / highest * (HEIGHT - above - below);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"20\" font-size=\"14\">{}</text><text x=\"{left}\" y=\"36\" fill=\"#666\">{}</text>\n",
        course.title, course.up
    );
    let every = step(highest);
    for number in 0..=(highest / every) as u32 {
        let (value, at) = (f64::from(number) * every, y(f64::from(number) * every));
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 6.0,
            at + 4.0,
            (value * 100.0).round() / 100.0
        );
    }
    let every = step(last - first);
    for number in (first / every).ceil() as i64..=(last / every).floor() as i64 {
        let value = number as f64 * every;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(value),
            HEIGHT - below + 16.0,
            (value * 100.0).round() / 100.0
        );
    }
    let (when, what) = (x(course.mark.0), &course.mark.1);
    let _ = writeln!(
        out,
        "<line x1=\"{when:.1}\" x2=\"{when:.1}\" y1=\"{above}\" y2=\"{}\" stroke=\"#666\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#666\">{what}</text>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - below,
        when + 4.0,
        HEIGHT - below - 6.0,
        (left + WIDTH - right) / 2.0,
        HEIGHT - below + 32.0,
        course.across
    );
    for (index, (line, colour)) in course.lines.iter().zip(COLOURS).enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let across = left + index as f64 * 200.0;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <rect x=\"{across}\" y=\"{:.1}\" width=\"12\" height=\"8\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{:.1}\">{}</text>",
            points.join(" "),
            HEIGHT - 18.0,
            across + 18.0,
            HEIGHT - 10.0,
            line.name
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_given_is_drawn() {
        let line = |name: &str, y: f64| Line { name: name.into(), points: vec![(-1.0, y), (0.0, 0.0), (2.0, y)] };
        let drawn = svg(&Course {
            title: "Title".into(),
            across: "seconds".into(),
            up: "Mbit/s".into(),
            lines: vec![line("plain", 90.0), line("whimbrel", 96.0)],
            mark: (0.0, "the move".into()),
        });
        for text in ["Title", "seconds", "Mbit/s", ">plain<", ">whimbrel<", "the move", ">80<", ">-1<", ">2<"] {
            assert!(drawn.contains(text), "{text} is missing:\n{drawn}");
        }
        assert_eq!(drawn.matches("<polyline").count(), 2);
        assert!(!drawn.contains("NaN"), "{drawn}");
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([96.0, 3.0, 0.7].map(step), [20.0, 0.5, 0.1]);
    }
}
