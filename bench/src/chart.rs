//! Line charts as SVG, several in a row: what is measured by a size that doubles.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Result;

/// Of one chart, and of what is below it, in pixels.
const SIZE: (u32, u32) = (420, 320);
const LEGEND: i32 = 44;
const COLOURS: [RGBColor; 4] =
    [RGBColor(136, 136, 136), RGBColor(43, 108, 163), RGBColor(192, 57, 43), RGBColor(39, 137, 78)];
const BAND: RGBColor = RGBColor(243, 227, 179);
const GREY: RGBColor = RGBColor(102, 102, 102);
/// Drawn a fifth smaller: plotters divides by 1.24.
const FONT: (&str, u32) = ("sans-serif", 15);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
    Ok(std::fs::write(path, svg(charts, beside)?)?)
}

fn svg(charts: &[Chart], beside: &str) -> Result<String> {
    let mut out = String::new();
    let whole = SVGBackend::with_string(&mut out, (SIZE.0 * charts.len() as u32, SIZE.1)).into_drawing_area();
    whole.fill(&WHITE)?;
    for (area, chart) in whole.split_evenly((1, charts.len())).iter().zip(charts) {
        draw(area, chart, beside)?;
    }
    whole.present()?;
    drop(whole);
    Ok(out)
}

/// The least and the greatest that a chart has to hold, at full steps.
fn scale(chart: &Chart) -> Range<f64> {
    let points = chart.lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y));
    let values = points.chain(chart.band.iter().flat_map(|band| [band.from, band.to]));
    let (lowest, highest) = values
        .filter(|value| value.is_finite())
        .fold((0.9f64, 1.05f64), |(low, high), value| (low.min(value), high.max(value)));
    (lowest * 20.0).floor() / 20.0..(highest * 20.0).ceil() / 20.0
}

fn draw(area: &Area<'_>, chart: &Chart, beside: &str) -> Result<()> {
    let area = area.titled(&chart.title, ("sans-serif", 18))?.titled(beside, FONT.into_font().color(&GREY))?;
    let (above, legend) = area.split_vertically(area.dim_in_pixel().1 as i32 - LEGEND);
    let sizes: Vec<f64> = chart.lines.first().iter().flat_map(|line| line.points.iter().map(|(x, _)| *x)).collect();
    let (first, last) = (sizes.first().copied().unwrap_or(1.0), sizes.last().copied().unwrap_or(2.0));
    let mut plot = ChartBuilder::on(&above)
        .margin_right(16)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d((first..last).log_scale().base(2.0).with_key_points(sizes), scale(chart))?;
    if let Some(band) = &chart.band {
        plot.draw_series([Rectangle::new([(first, band.from), (last, band.to)], BAND.filled())])?;
    }
    plot.configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(12)
        .bold_line_style(GREY.mix(0.25))
        .label_style(FONT)
        .x_label_style(("sans-serif", 12))
        .x_label_formatter(&|size| size.to_string())
        .y_label_formatter(&|ratio| format!("{ratio:.2}"))
        .x_desc(&chart.across)
        .draw()?;
    plot.draw_series(LineSeries::new([(first, 1.0), (last, 1.0)], GREY))?;
    for (line, colour) in chart.lines.iter().zip(COLOURS) {
        let points = line.points.iter().copied().filter(|(_, y)| y.is_finite());
        plot.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    let names = chart.lines.iter().map(|line| line.name.as_str()).zip(COLOURS);
    let names = names.chain(chart.band.iter().map(|band| (band.name.as_str(), BAND)));
    for (at, (name, colour)) in (0..).zip(names) {
        let (across, down) = (48 + at % 2 * 170, 8 + at / 2 * 16);
        legend.draw(&Rectangle::new([(across, down), (across + 12, down + 8)], colour.filled()))?;
        legend.draw(&Text::new(name.to_owned(), (across + 18, down - 2), FONT))?;
    }
    Ok(())
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
        let drawn = svg(&[chart], "beside nothing").expect("a drawing").replace('\n', "");
        for text in ["Title", "beside nothing", "bytes", ">a<", ">b<", "theirs", ">8192<", ">1.00<"] {
            assert!(drawn.contains(text), "{text} is missing:\n{drawn}");
        }
        assert_eq!(drawn.matches("stroke-width=\"2\" points").count(), 2);
        // The scale holds the lowest and the highest.
        assert!(drawn.contains(">0.50<") && drawn.contains(">1.40<") && !drawn.contains("NaN"), "{drawn}");
    }
}
