//! Hand-offs, and what rewriting costs: the figures of a host that roams.

pub(crate) mod baseline;
mod crowd;
pub mod handoff;
pub mod many;
pub(crate) mod moment;
pub mod parked;
mod stage;
pub mod throughput;
mod turns;

use std::path::PathBuf;

pub(crate) use crowd::Crowd;
use whimbrel_lab::{Lab, Options as LabOptions};

use crate::Result;
use crate::bed::Variant;
use crate::report::Report;

/// How to measure.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// A short version: few runs, short ones
    #[arg(long)]
    pub quick: bool,
    /// How often each case is measured [default: as docs/benchmarks.md says]
    #[arg(long)]
    pub runs: Option<usize>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub only: String,
    /// What runs on the hosts.
    #[command(flatten)]
    pub setup: Setup,
}

/// What runs on the hosts.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Setup {
    /// The whimbrel to measure [default: WHIMBREL_BIN, or the one beside this program]
    #[arg(long)]
    pub whimbrel: Option<PathBuf>,
    /// Another whimbrel, which takes turns with the one that is measured: the figures are ratios of the two, and the
    /// runs short ones [default of runs: 15]
    #[arg(long)]
    pub beside: Option<PathBuf>,
    /// How much the daemons log
    #[arg(long)]
    pub log: Option<String>,
    /// Keep the daemons' logs and captures of the emulated links of every run below this directory; it disturbs
    #[arg(long)]
    pub keep: Option<PathBuf>,
    /// The wireguard-go to compare with
    #[arg(long, default_value = "wireguard-go")]
    pub wireguard_go: PathBuf,
}

impl Setup {
    pub(crate) fn lab_options(&self) -> LabOptions {
        LabOptions { whimbrel: self.whimbrel.clone(), log_level: self.log.clone(), ..LabOptions::default() }
    }

    /// For one of the things that are compared.
    pub(crate) fn lab_options_of(&self, variant: Variant) -> LabOptions {
        let options = self.lab_options();
        if variant == Variant::Beside { LabOptions { whimbrel: self.beside.clone(), ..options } } else { options }
    }

    /// Where the files of a run are kept, if they are.
    fn directory(&self, name: &str) -> Option<PathBuf> {
        Some(self.keep.as_ref()?.join(name))
    }

    /// Keeps the files of a run, if they are to be kept.
    pub(crate) fn keep(&self, name: &str, lab: &Lab) -> Result<()> {
        if let Some(directory) = self.directory(name) {
            lab.keep_files(&directory)?;
        }
        Ok(())
    }
}

impl Options {
    /// `full` runs, or what was asked for.
    pub(crate) fn runs(&self, full: usize, quick: usize) -> usize {
        self.runs.unwrap_or(if self.quick { quick } else { full })
    }
}

/// All of them, and one report of everything.
///
/// # Errors
/// When something could not be measured; what could be is reported first.
pub fn run(options: &Options) -> Result<()> {
    let mut all = Report::new("roam");
    let mut failures = Vec::new();
    for (name, measure) in [
        ("handoff", handoff::measure as fn(&Options) -> Result<Report>),
        ("throughput", throughput::measure),
        ("many", many::measure),
        ("parked", parked::measure),
    ] {
        match measure(options) {
            Ok(report) => all.absorb(name, report),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    all.finish()?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
