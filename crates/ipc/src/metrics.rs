//! Figures for monitoring, and the text in which Prometheus reads them (exposition format 0.0.4).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The `Content-Type` of [`exposition`].
pub const EXPOSITION_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric: figures that have a name, a unit and a meaning in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, which ends in its unit, or in `_total` where it only rises.
    pub name: String,
    /// How its figures are to be read.
    #[serde(rename = "type")]
    pub kind: MetricKind,
    /// What it says, for people; may change with any release.
    pub help: String,
    /// The figures, one for each set of labels.
    pub samples: Vec<Sample>,
}

/// How the figures of a metric are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// Rises only, from nothing when the daemon starts (or when the kernel began to count).
    Counter,
    /// What is so now.
    Gauge,
    /// How many of what was observed are at most so great, in samples that end in `_bucket`, `_sum` and `_count`.
    Histogram,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The metric's name; of a histogram with what the figure is.
    pub name: String,
    /// What it is about.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// It, in base units: seconds, bytes.
    pub value: f64,
}

impl Metric {
    /// A metric without figures.
    #[must_use]
    pub fn new(name: &str, kind: MetricKind, help: &str) -> Self {
        Self { name: name.to_owned(), kind, help: help.to_owned(), samples: Vec::new() }
    }

    /// Adds the one figure of a metric that has no labels.
    #[must_use]
    pub fn value(self, value: f64) -> Self {
        self.sample("", &[], value)
    }

    /// Adds a figure for each value of a label.
    #[must_use]
    pub fn each<S: AsRef<str>>(self, label: &str, counts: impl IntoIterator<Item = (S, u64)>) -> Self {
        let add = |metric: Self, (value, count): (S, u64)| metric.sample("", &[(label, value.as_ref())], count as f64);
        counts.into_iter().fold(self, add)
    }

    /// Adds a figure. `suffix`: what it is, of a histogram.
    #[must_use]
    pub fn sample(mut self, suffix: &str, labels: &[(&str, &str)], value: f64) -> Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.push(Sample { name: format!("{}{suffix}", self.name), labels, value });
        self
    }
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The text that Prometheus reads.
#[must_use]
pub fn exposition(metrics: &[Metric]) -> String {
    let mut out = String::new();
    for Metric { name, kind, help, samples } in metrics {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for Sample { name, labels, value } in samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            out.push_str(&format!("{name}{labels} {}\n", number(*value)));
        }
    }
    out
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// As Go reads it.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_as_prometheus_reads_it() {
        let metrics = [
            Metric::new("w_peers", MetricKind::Gauge, "Peers.").value(2.0),
            Metric::new("w_events_total", MetricKind::Counter, "A \\ and\na line.")
                .sample("", &[("kind", "a \"b\" \\ \n"), ("also", "")], 1e12)
                .sample("", &[("kind", "c")], 0.25),
            Metric::new("w_empty", MetricKind::Gauge, "").value(f64::INFINITY),
        ];
        assert_eq!(
            exposition(&metrics),
            "# HELP w_peers Peers.\n# TYPE w_peers gauge\nw_peers 2\n\
             # HELP w_events_total A \\\\ and\\na line.\n# TYPE w_events_total counter\n\
             w_events_total{also=\"\",kind=\"a \\\"b\\\" \\\\ \\n\"} 1000000000000\n\
             w_events_total{kind=\"c\"} 0.25\n\
             # HELP w_empty \n# TYPE w_empty gauge\nw_empty +Inf\n"
        );
    }
}
