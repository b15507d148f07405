//! `docs/tested.md`: when each part of `make test-all` was last run, on what, and what it came to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::inventory::PARTS;
use super::record::Entry;
use super::verdict::Verdict;
use crate::failure::{Failure, OnObject};

const HEAD: &str = "\
# What was last tried, and when

`make test-all` writes this: everything that `make test` runs, and what takes hours. It runs one part alone with
`ARGUMENTS='--only TEXT'`, TEXT being in the names of its cases (as `scenario absence` or `guest 6.1`); a row is written
anew where all cases of a part were run. *Skipped* is what the machine lacked something for.

| part | what | date | commit | verdict | seconds |
|---|---|---|---|---|---|
";

/// Writes the rows of `parts`, of which every case was run. Other rows stay.
pub(super) fn note(root: &Path, entries: &[Entry], parts: &BTreeSet<&str>) -> Result<(), Failure> {
    let path = root.join("docs/tested.md");
    let before = if path.exists() { fs::read_to_string(&path).failed("read", path.display())? } else { String::new() };
    let (date, commit) = (said("date", &["-u", "+%F"])?, commit(root)?);
    fs::write(&path, page(&before, entries, parts, &date, &commit)).failed("write", path.display())
}

fn page(before: &str, entries: &[Entry], parts: &BTreeSet<&str>, date: &str, commit: &str) -> String {
    let kept: BTreeMap<&str, &str> =
        before.lines().filter_map(|line| Some((line.strip_prefix("| ")?.split(" |").next()?, line))).collect();
    let mut text = HEAD.to_owned();
    for (part, what) in PARTS {
        let of: Vec<&Entry> = entries.iter().filter(|entry| entry.case.part == part).collect();
        if !parts.contains(part) {
            let never = format!("| {part} | {what} | never | | | |");
            text.push_str(kept.get(part).copied().unwrap_or(&never));
        } else {
            let seconds: f64 = of.iter().map(|entry| entry.took.as_secs_f64()).sum();
            text.push_str(&format!("| {part} | {what} | {date} | {commit} | {} | {seconds:.0} |", verdict(&of)));
        }
        text.push('\n');
    }
    text
}

/// Counts, and the names of what failed or was unsteady.
fn verdict(entries: &[&Entry]) -> String {
    let names = |wanted: &dyn Fn(&Entry) -> bool| -> Vec<&str> {
        entries.iter().filter(|entry| wanted(entry)).map(|entry| entry.case.name.as_str()).collect()
    };
    let passed = names(&|entry| entry.verdict == Verdict::Passed).len();
    let mut said = format!("{passed} passed");
    for (word, of) in [
        ("failed", names(&|entry| entry.verdict.is_failure())),
        ("unsteady", names(&Entry::is_unsteady)),
        ("skipped", names(&|entry| matches!(entry.verdict, Verdict::Skipped(_)))),
    ] {
        if !of.is_empty() {
            said.push_str(&format!(", {} {word} ({})", of.len(), of.join(", ")));
        }
    }
    said
}

/// The commit that is tried, and whether the files are those of it.
fn commit(root: &Path) -> Result<String, Failure> {
    let root = root.display().to_string();
    let commit = said("git", &["-C", &root, "rev-parse", "--short", "HEAD"])?;
    let changed = said("git", &["-C", &root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"])?;
    Ok(if changed.is_empty() { commit } else { format!("{commit}, changed") })
}

fn said(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new(program).args(arguments).output().failed("run", program)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::suite::Choice;
    use crate::suite::inventory::{Case, Kind};

    fn entry(part: &'static str, name: &str, verdict: Verdict) -> Entry {
        let case = Case {
            name: name.to_owned(),
            kind: Kind::Guest,
            choice: Choice::Long,
            part,
            program: "true".into(),
            arguments: Vec::new(),
            directory: ".".into(),
        };
        Entry { case, seed: 1, took: Duration::from_millis(1600), verdict, first: None }
    }

    fn row<'a>(page: &'a str, part: &str) -> &'a str {
        page.lines().find(|line| line.starts_with(&format!("| {part} |"))).unwrap()
    }

    #[test]
    fn rows_of_parts_that_were_run_are_written_and_others_stay() {
        let programs = [
            entry("programs", "scenario ssh", Verdict::Passed),
            entry("programs", "scenario mail", Verdict::Failed("no mail".to_owned())),
        ];
        let first = page("", &programs, &["programs"].into(), "2026-01-02", "abc");
        assert!(row(&first, "programs").ends_with("| 2026-01-02 | abc | 1 passed, 1 failed (scenario mail) | 3 |"));
        assert!(row(&first, "fuzz").contains("| never |"));
        let fuzz = [entry("fuzz", "fuzz a", Verdict::Passed), entry("programs", "scenario ssh", Verdict::Passed)];
        let second = page(&first, &fuzz, &["fuzz"].into(), "2026-01-03", "def");
        assert_eq!(row(&second, "programs"), row(&first, "programs"), "of which only some were run");
        assert!(row(&second, "fuzz").contains("| 2026-01-03 | def | 1 passed |"));
    }
}
