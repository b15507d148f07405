//! The NAT matrix: which way a hand-off finds through NATs of all kinds at both ends, for how long the end that waits
//! longer hears nothing, and how many control datagrams that takes on the new uplink (20 ms one way).

use whimbrel_lab::Lab;
use whimbrel_lab::scenarios::nats::Cell;

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    warn_if_busy();
    let mut report = Report::new("nat");
    let every = if options.quick { 10 } else { 1 };
    let all = Cell::all().into_iter().filter(|cell| cell.name().contains(&options.only)).step_by(every);
    for cell in all {
        let (mut silence, mut datagrams) = (Samples::default(), Samples::default());
        let mut ways = Vec::new();
        for _ in 0..options.runs(1, 1) {
            let outcome = cell.run(Lab::new(options.setup.lab_options())?)?;
            ways.push(outcome.method.map_or("none".to_owned(), |method| format!("{method:?}").to_lowercase()));
            if let Some(took) = outcome.silence {
                silence.push(took.as_secs_f64() * 1e3);
                datagrams.push(outcome.datagrams as f64);
            }
        }
        ways.sort();
        ways.dedup();
        let name = format!("{}_{}", cell.name(), ways.join("_or_"));
        eprintln!("{name}: {:.0} ms, {:.0} datagrams", silence.median(), datagrams.median());
        if silence.values().is_empty() {
            continue;
        }
        report.add(Figure::new(&format!("{name}_silence"), "ms", &silence));
        report.add(Figure::new(&format!("{name}_datagrams"), "datagrams", &datagrams));
    }
    report.finish()?;
    Ok(())
}
