//! The record of a run: `target/test/results.json`, and what is printed of it at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::inventory::Case;
use super::verdict::Verdict;
use crate::failure::{Failure, OnObject};
use crate::workspace::target;

/// With more cases than this that fail and then pass, it is not the machine, and the run fails.
const UNSTEADY_MOST: usize = 5;

/// What became of one case.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) case: Case,
    pub(crate) seed: u64,
    pub(crate) took: Duration,
    pub(crate) verdict: Verdict,
    /// What it came to at first, where it was run a second time.
    pub(crate) first: Option<Verdict>,
}

impl Entry {
    /// It failed, and passed with the same seed.
    pub(crate) fn is_unsteady(&self) -> bool {
        self.first.is_some() && !self.verdict.is_failure()
    }
}

/// All verdicts of a run.
#[derive(Debug, Default)]
pub(crate) struct Record {
    entries: Vec<Entry>,
}

impl Record {
    pub(crate) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Puts what a repetition came to in place of the first verdict, which is kept beside it.
    pub(crate) fn repeat(&mut self, name: &str, verdict: Verdict, took: Duration) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.case.name == name) {
            entry.first = Some(std::mem::replace(&mut entry.verdict, verdict));
            entry.took = took;
        }
    }

    /// What keeps the run from being a good one, as sentences: failures, too many unsteady cases, and where verdicts
    /// and `exist`, the names of all that there is, are not the same.
    pub(crate) fn faults(&self, exist: &BTreeSet<String>) -> Vec<String> {
        let mut faults: Vec<String> = self
            .entries
            .iter()
            .filter(|entry| entry.verdict.is_failure())
            .map(|entry| format!("{} (--seed {}) {}", entry.case.name, entry.seed, entry.verdict))
            .collect();
        let mut seen = BTreeSet::new();
        for name in self.entries.iter().map(|entry| &entry.case.name) {
            if !seen.insert(name.clone()) {
                faults.push(format!("{name} has two verdicts"));
            }
        }
        faults.extend(exist.difference(&seen).map(|name| format!("{name} has no verdict")));
        faults.extend(seen.difference(exist).map(|name| format!("{name} has a verdict and does not exist")));
        let unsteady = self.unsteady().count();
        if unsteady > UNSTEADY_MOST {
            faults
                .push(format!("{unsteady} cases failed at first and passed when run again: more than {UNSTEADY_MOST}"));
        }
        faults
    }

    fn unsteady(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.is_unsteady())
    }

    /// Prints all that did not simply pass, what was unsteady last, and the counts as the closing line.
    pub(crate) fn print(&self, faults: &[String], took: Duration) {
        let mut left: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for entry in &self.entries {
            match &entry.verdict {
                Verdict::Skipped(why) => println!("SKIPPED: {}: {why}", entry.case.name),
                Verdict::LeftTo(choice) => left.entry(choice).or_default().push(&entry.case.name),
                _ => {}
            }
        }
        for (choice, names) in left {
            println!("left to `make {choice}`: {} ({})", names.len(), names.join(", "));
        }
        for fault in faults {
            println!("FAILED: {fault}");
        }
        for entry in self.unsteady() {
            let first = entry.first.as_ref().map(Verdict::to_string).unwrap_or_default();
            println!("UNSTEADY: {} (--seed {}) {first}; it passed when it was run again", entry.case.name, entry.seed);
        }
        println!("took {} s", took.as_secs());
        println!("{}", self.closing_line(faults.len()));
    }

    /// Programs read this line.
    fn closing_line(&self, failed: usize) -> String {
        let count = |wanted: fn(&Verdict) -> bool| self.entries.iter().filter(|entry| wanted(&entry.verdict)).count();
        let passed = count(|verdict| *verdict == Verdict::Passed);
        let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }

    /// Writes the record; its schema is described in docs/lab.md.
    pub(crate) fn write(&self, root: &Path, faults: &[String], seed: u64, took: Duration) -> Result<(), Failure> {
        let path = path(root);
        let directory = path.parent().unwrap_or(root);
        fs::create_dir_all(directory).failed("make", directory.display())?;
        let verdicts: Vec<Value> = self
            .entries
            .iter()
            .map(|entry| {
                json!({
                    "name": entry.case.name,
                    "kind": entry.case.kind.word(),
                    "verdict": entry.verdict.word(),
                    "reason": entry.verdict.reason(),
                    "first": entry.first.as_ref().map(|first| json!({"verdict": first.word(), "reason": first.reason()})),
                    "seed": entry.seed,
                    "seconds": (entry.took.as_secs_f64() * 1000.0).round() / 1000.0,
                })
            })
            .collect();
        let whole = json!({
            "schema": 1,
            "good": faults.is_empty(),
            "seed": seed,
            "seconds": took.as_secs(),
            "faults": faults,
            "verdicts": verdicts,
        });
        fs::write(&path, format!("{whole:#}\n")).failed("write", path.display())
    }
}

fn path(root: &Path) -> PathBuf {
    target(root).join("test/results.json")
}

/// How long each case took in the run before, by name, in seconds; empty where there was none.
pub(crate) fn earlier_times(root: &Path) -> BTreeMap<String, f64> {
    let Ok(text) = fs::read_to_string(path(root)) else { return BTreeMap::new() };
    let Ok(whole) = serde_json::from_str::<Value>(&text) else { return BTreeMap::new() };
    let time = |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["seconds"].as_f64()?));
    whole["verdicts"].as_array().into_iter().flatten().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Choice;
    use crate::suite::inventory::Kind;

    fn entry(name: &str, verdict: Verdict, first: Option<Verdict>) -> Entry {
        let case = Case {
            name: name.to_owned(),
            kind: Kind::Unit,
            choice: Choice::All,
            part: "crates",
            program: "true".into(),
            arguments: Vec::new(),
            directory: ".".into(),
        };
        Entry { case, seed: 7, took: Duration::from_millis(1500), verdict, first }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn failed() -> Verdict {
        Verdict::Failed("no byte arrived".to_owned())
    }

    #[test]
    fn a_run_is_good_only_where_each_thing_that_exists_has_one_verdict() {
        let mut record = Record::default();
        record.add(entry("a", Verdict::Passed, None));
        assert_eq!(record.faults(&names(&["a"])), [] as [String; 0]);
        assert_eq!(record.faults(&names(&["a", "b"])), ["b has no verdict"]);
        assert_eq!(record.faults(&names(&[])), ["a has a verdict and does not exist"]);
        record.add(entry("a", Verdict::Passed, None));
        assert_eq!(record.faults(&names(&["a"])), ["a has two verdicts"]);
    }

    #[test]
    fn what_fails_twice_and_what_is_not_begun_fail_a_run() {
        let mut record = Record::default();
        record.add(entry("a", failed(), Some(failed())));
        record.add(entry("b", Verdict::NotBegun("no time was left for it".to_owned()), None));
        let faults = record.faults(&names(&["a", "b"]));
        assert_eq!(faults, ["a (--seed 7) failed: no byte arrived", "b (--seed 7) not-begun: no time was left for it"]);
        assert_eq!(record.closing_line(faults.len()), "0 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn what_passes_when_repeated_is_told_and_too_much_of_it_fails_a_run() {
        let all: Vec<String> = (0..=UNSTEADY_MOST).map(|number| number.to_string()).collect();
        let exist = all.iter().cloned().collect();
        let mut record = Record::default();
        for name in &all {
            record.add(entry(name, failed(), None));
        }
        for name in &all[..UNSTEADY_MOST] {
            record.repeat(name, Verdict::Passed, Duration::ZERO);
        }
        assert_eq!(record.faults(&exist).len(), 1, "only what was not repeated");
        record.repeat(&all[UNSTEADY_MOST], Verdict::Passed, Duration::ZERO);
        assert_eq!(record.unsteady().count(), UNSTEADY_MOST + 1);
        assert_eq!(record.faults(&exist).len(), 1);
        assert!(record.faults(&exist)[0].contains("passed when run again"));
    }
}
