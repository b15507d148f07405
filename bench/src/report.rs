//! What a measurement says: a table for people, and one line and one file of JSON for programs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// How often the data are drawn anew for an interval.
const RESAMPLES: usize = 2000;

/// Repeated measurements of one quantity, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a measurement.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The measurements.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The middle of the values; NaN without any.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// The value that `percent` of all are below, interpolated between neighbours; NaN without any.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(&mut self.0.clone(), percent)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// What a figure is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Value over baseline must not be less.
    RatioAtLeast(f64),
    /// Value over baseline must not be more.
    RatioAtMost(f64),
    /// The value itself must not be less.
    AtLeast(f64),
    /// The value itself must not be more.
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::RatioAtLeast(bound) => ratio.is_some_and(|ratio| ratio >= bound),
            Self::RatioAtMost(bound) => ratio.is_some_and(|ratio| ratio <= bound),
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl Bound {
    fn is_for_ratio(self) -> bool {
        matches!(self, Self::RatioAtLeast(_) | Self::RatioAtMost(_))
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RatioAtLeast(bound) => write!(f, "ratio >= {bound}"),
            Self::RatioAtMost(bound) => write!(f, "ratio <= {bound}"),
            Self::AtLeast(bound) => write!(f, "value >= {bound}"),
            Self::AtMost(bound) => write!(f, "value <= {bound}"),
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    id: String,
    value: f64,
    unit: String,
    baseline: Option<f64>,
    ratio: Option<f64>,
    bound: Option<String>,
    holds: Option<bool>,
    /// Whether all of the interval lies on that side of the bound.
    sure: Option<bool>,
    /// 95 % confidence interval of the ratio, or of the value where there is no baseline.
    interval: Option<[f64; 2]>,
    samples: usize,
}

impl Figure {
    /// A figure without baseline: the median of `samples`.
    #[must_use]
    pub fn new(id: &str, unit: &str, samples: &Samples) -> Self {
        Self::from_value(id, unit, samples.median(), samples)
    }

    /// A figure that is some other value of the same samples, such as a percentile.
    #[must_use]
    pub fn from_value(id: &str, unit: &str, value: f64, samples: &Samples) -> Self {
        let whole = (value - samples.median()).abs() < f64::EPSILON;
        Self {
            id: id.to_owned(),
            value,
            unit: unit.to_owned(),
            baseline: None,
            ratio: None,
            bound: None,
            holds: None,
            sure: None,
            interval: whole.then(|| interval(samples, None)).flatten(),
            samples: samples.0.len(),
        }
    }

    /// A figure beside the median of its baseline, measured in the same interleaved run.
    #[must_use]
    pub fn against(id: &str, unit: &str, samples: &Samples, baseline: &Samples) -> Self {
        let (value, base) = (samples.median(), baseline.median());
        Self {
            baseline: Some(base),
            ratio: Some(value / base),
            interval: interval(samples, Some(baseline)),
            ..Self::new(id, unit, samples)
        }
    }

    /// A figure beside its baseline, where the two were measured in turns so short that what changes on the machine
    /// meets both alike: the ratio is the median of those of neighbours.
    #[must_use]
    pub fn paired(id: &str, unit: &str, samples: &Samples, baseline: &Samples) -> Self {
        let ratios: Samples = samples.0.iter().zip(&baseline.0).map(|(value, base)| value / base).collect();
        Self {
            baseline: Some(baseline.median()),
            ratio: Some(ratios.median()),
            interval: interval(&ratios, None),
            ..Self::new(id, unit, samples)
        }
    }

    /// The same figure held to a bound.
    #[must_use]
    pub fn bound(self, bound: Bound) -> Self {
        let holds = bound.holds(self.value, self.ratio);
        // The interval is that of what the bound is about where there is a baseline and the bound is for the ratio, or
        // neither.
        let fits = self.ratio.is_some() == bound.is_for_ratio();
        let sure = self
            .interval
            .filter(|_| fits)
            .map(|interval| interval.into_iter().all(|end| bound.holds(end, Some(end)) == holds));
        Self { bound: Some(bound.to_string()), holds: Some(holds), sure, ..self }
    }

    /// The ratio to the baseline, where there is one.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.ratio
    }

    /// For people. A question mark says that the confidence interval reaches across the bound: more runs are needed.
    fn verdict(&self) -> &'static str {
        match (self.holds, self.sure) {
            (None, _) => "",
            (Some(true), Some(false)) => "holds?",
            (Some(true), _) => "holds",
            (Some(false), Some(false)) => "MISSED?",
            (Some(false), _) => "MISSED",
        }
    }

    /// Whether it has a bound and misses it.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.holds == Some(false)
    }
}

/// All figures of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    name: String,
    figures: Vec<Figure>,
}

impl Report {
    /// An empty report; `name` is that of the subcommand.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), figures: Vec::new() }
    }

    /// Adds a figure.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Adds all figures of another report, whose names get a prefix.
    pub fn absorb(&mut self, prefix: &str, other: Self) {
        let renamed =
            other.figures.into_iter().map(|figure| Figure { id: format!("{prefix}_{}", figure.id), ..figure });
        self.figures.extend(renamed);
    }

    /// How many bounds are missed.
    #[must_use]
    pub fn missed(&self) -> usize {
        self.figures.iter().filter(|figure| figure.is_missed()).count()
    }

    /// Prints the table and, last, the `BENCH` line, and writes `NAME.json` in `bench` of the target directory.
    ///
    /// # Errors
    /// If the file cannot be written; everything is printed then all the same.
    pub fn finish(&self) -> io::Result<PathBuf> {
        print!("{}", self.table());
        let json = serde_json::to_string(self)?;
        println!("BENCH {json}");
        let path = directory().join(format!("{}.json", self.name));
        write(&path, &json)?;
        Ok(path)
    }

    fn table(&self) -> String {
        let heads = ["figure", "value", "unit", "baseline", "ratio", "95 %", "bound", ""].map(str::to_owned);
        let mut rows = vec![heads];
        rows.extend(self.figures.iter().map(|figure| {
            let optional = |value: Option<f64>| value.map_or_else(String::new, number);
            [
                figure.id.clone(),
                number(figure.value),
                figure.unit.clone(),
                optional(figure.baseline),
                optional(figure.ratio),
                figure.interval.map_or_else(String::new, |[low, high]| format!("{}..{}", number(low), number(high))),
                figure.bound.clone().unwrap_or_default(),
                figure.verdict().to_owned(),
            ]
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        let mut table = String::new();
        for row in &rows {
            let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
                1 | 3 | 4 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            });
            table.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            table.push('\n');
        }
        table
    }
}

fn write(path: &Path, json: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, format!("{json}\n"))
}

/// Three or more significant digits, no exponent.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let (Some(last), position) = (values.len().checked_sub(1), percent / 100.0) else { return f64::NAN };
    let position = position * last as f64;
    let (below, above) = (values[position.floor() as usize], values[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

/// 95 % interval of the median, or of the ratio of two medians, by bootstrap. None below three samples: there is
/// nothing to say. The draws are the same every time, so that a report can be made again from its data.
fn interval(samples: &Samples, baseline: Option<&Samples>) -> Option<[f64; 2]> {
    if samples.0.len() < 3 || baseline.is_some_and(|baseline| baseline.0.len() < 3) {
        return None;
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |from: &[f64]| -> f64 {
        let mut drawn: Vec<f64> = (0..from.len())
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                from[(state % from.len() as u64) as usize]
            })
            .collect();
        percentile(&mut drawn, 50.0)
    };
    let mut medians: Vec<f64> =
        (0..RESAMPLES).map(|_| draw(&samples.0) / baseline.map_or(1.0, |baseline| draw(&baseline.0))).collect();
    Some([percentile(&mut medians, 2.5), percentile(&mut medians, 97.5)])
}

/// Where reports and drawings go.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from).join("bench")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        let values = samples(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((values.median(), values.percentile(0.0), values.percentile(100.0)), (2.5, 1.0, 4.0));
        assert!(samples(&[]).median().is_nan());
    }

    #[test]
    fn bounds_are_checked_and_misses_reported() {
        let (fast, slow) = (samples(&[9.0, 10.0, 11.0]), samples(&[2.0, 2.0, 2.0]));
        let mut report = Report::new("test");
        report.add(Figure::against("rate", "Gbit/s", &fast, &slow).bound(Bound::RatioAtLeast(5.0)));
        report.add(Figure::against("cpu", "s/GB", &fast, &slow).bound(Bound::RatioAtMost(1.05)));
        report.add(Figure::new("time", "ms", &slow).bound(Bound::AtMost(2.0)));
        assert_eq!(report.missed(), 1);
        assert!(report.table().contains("MISSED"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["figures"][0]["ratio"], 5.0);
        assert_eq!(json["figures"][0]["bound"], "ratio >= 5");
        assert_eq!(json["figures"][1]["holds"], false);
        assert_eq!(json["figures"][2]["baseline"], serde_json::Value::Null);
    }

    #[test]
    fn an_interval_across_the_bound_is_said() {
        let (near, base) = (samples(&[0.8, 1.0, 1.0, 1.0, 1.3]), samples(&[1.0, 1.0, 1.0]));
        let near = Figure::against("rate", "Gbit/s", &near, &base).bound(Bound::RatioAtLeast(0.99));
        assert_eq!((near.holds, near.verdict()), (Some(true), "holds?"));
        let far = Figure::against("rate", "Gbit/s", &base, &base).bound(Bound::RatioAtLeast(0.5));
        assert_eq!(far.verdict(), "holds");
    }

    #[test]
    fn neighbours_are_compared() {
        // The machine is at times ten times as fast.
        let base = samples(&[10.0, 1.0, 12.0, 1.1, 9.0]);
        let half: Samples = base.values().iter().map(|value| value / 2.0).collect();
        let figure = Figure::paired("rate", "Gbit/s", &half, &base).bound(Bound::RatioAtLeast(0.97));
        assert_eq!((figure.ratio, figure.interval, figure.sure), (Some(0.5), Some([0.5, 0.5]), Some(true)));
    }

    #[test]
    fn intervals_hold_the_median() {
        let values = samples(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let [low, high] = interval(&values, None).unwrap();
        assert!(low <= 4.0 && 4.0 <= high && low < high);
        assert_eq!(interval(&samples(&[1.0, 2.0]), None), None);
    }
}
