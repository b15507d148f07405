//! Runs the fuzz targets of `fuzz/`, which is a workspace of its own since all of it is built instrumented.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::failure::{Failure, OnObject};
use crate::process::{self, End};
use crate::suite::Tally;
use crate::workspace::{cargo, files, target};

/// Coverage for libFuzzer on a stable compiler: no sanitizer, only what finds new paths.
const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Coverflow-checks=on -Ccodegen-units=1";

/// Building takes longer than running.
const BUILD_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Runs every target for so long, starting from the seeds in `fuzz/corpus/TARGET`. What is found along the way is kept
/// in the target directory and is where the next run starts.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let triple = host_triple()?;
    let built = target(root).join("fuzz");
    let mut build = Command::new(cargo());
    // With --target the flags spare build scripts and macros, which could not be linked with them.
    build
        .args(["build", "--release", "--bins", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", &triple])
        .arg("--target-dir")
        .arg(&built)
        .env("RUSTFLAGS", INSTRUMENTATION)
        .current_dir(root);
    if process::run(&mut build, BUILD_LIMIT, |line| println!("{line}"))? != End::Success {
        tally.fail("fuzz targets: did not build");
        return Ok(tally);
    }
    for source in files(&root.join("fuzz/fuzz_targets"), "rs")? {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let program = built.join(&triple).join("release").join(&name);
        match one(root, &built, &program, &name, seconds)? {
            End::Success => tally.pass(),
            _ => tally.fail(format!("fuzz target {name}: see {}", built.join("findings").display())),
        }
    }
    Ok(tally)
}

fn one(root: &Path, built: &Path, program: &Path, name: &str, seconds: u64) -> Result<End, Failure> {
    let corpus = built.join("corpus").join(name);
    let findings = built.join("findings");
    for directory in [&corpus, &findings] {
        fs::create_dir_all(directory).failed("make", directory.display())?;
    }
    println!("-- {name}, {seconds} s");
    let mut command = Command::new(program);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/{name}-", findings.display()))
        .args(["-use_value_profile=1", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"])
        .arg(&corpus)
        .current_dir(root);
    let seeds = root.join("fuzz/corpus").join(name);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    process::run(&mut command, Duration::from_secs(seconds + 120), |line| println!("{line}"))
}

fn host_triple() -> Result<String, Failure> {
    let output = Command::new("rustc").arg("-vV").output().failed("run", "rustc -vV")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(triple) => Ok(triple.to_owned()),
        None => Err(Failure::new("rustc -vV does not say what it builds for")),
    }
}
