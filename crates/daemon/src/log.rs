//! The log: lines on standard error, which the service manager keeps.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::config::Level;

/// Starts logging; gives what changes the level later.
pub(crate) fn start(level: Level) -> Box<dyn Fn(Level)> {
    let (filter, handle) = reload::Layer::new(filter_of(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // Where the program that this is part of logs already, its log serves.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Box::new(move |level| {
        // Fails only where the subscriber is gone, and then nobody logs.
        let _ = handle.modify(|now| *now = filter_of(level));
    })
}

fn filter_of(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
