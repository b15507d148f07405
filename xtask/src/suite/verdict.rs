//! What became of a case, read from how its program ended and what it printed.

use std::fmt;

use crate::process::End;

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// What it asserts is not so; why, as far as it said.
    Failed(String),
    /// Its program ended without a verdict: by a panic of its own, a signal, or an exit that nobody asked for.
    Panicked(String),
    /// It had not ended by its limit.
    TimedOut(String),
    /// This machine lacks something for it: this.
    Skipped(String),
    /// There was no time left for it, or what it needs was not built.
    NotBegun(String),
    /// It belongs to a larger choice than the one that was asked for: this one.
    LeftTo(&'static str),
}

impl Verdict {
    /// As `results.json` has it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Panicked(_) => "panicked",
            Self::TimedOut(_) => "timed-out",
            Self::Skipped(_) => "skipped",
            Self::NotBegun(_) => "not-begun",
            Self::LeftTo(_) => "left-to-a-larger-choice",
        }
    }

    /// Why, where there is a reason.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(why)
            | Self::Panicked(why)
            | Self::TimedOut(why)
            | Self::Skipped(why)
            | Self::NotBegun(why) => why,
            Self::LeftTo(choice) => choice,
        }
    }

    /// Whether the run fails for it.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Panicked(_) | Self::TimedOut(_) | Self::NotBegun(_) => true,
            Self::Passed | Self::Skipped(_) | Self::LeftTo(_) => false,
        }
    }

    /// Whether running it once more may say something else.
    pub(crate) fn may_be_repeated(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Panicked(_) | Self::TimedOut(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            "" => f.write_str(self.word()),
            why => write!(f, "{}: {why}", self.word()),
        }
    }
}

/// What a test of libtest's came to, which was run alone: its program prints `test result: ok. 1 passed; …`.
pub(crate) fn of_test(end: End, output: &str) -> Verdict {
    let result = output.lines().find_map(test_result);
    match (end, result) {
        (End::TimedOut, _) => Verdict::TimedOut(last_words(output)),
        (End::Success, Some((1, 0))) => Verdict::Passed,
        (End::Success, Some((0, 0))) => Verdict::NotBegun("its program does not know this test any more".to_owned()),
        (_, Some((_, failed))) if failed > 0 => Verdict::Failed(panic_message(output)),
        _ => Verdict::Panicked(last_words(output)),
    }
}

/// What a program came to that says nothing of verdicts: its exit status decides.
pub(crate) fn of_status(end: End, output: &str) -> Verdict {
    match end {
        End::Success => Verdict::Passed,
        End::Failure => Verdict::Failed(last_words(output)),
        End::TimedOut => Verdict::TimedOut(last_words(output)),
    }
}

/// What a scenario of the lab came to, which was run alone: it prints `PASS NAME …`, `FAIL NAME …` or `SKIP NAME: WHY`.
pub(crate) fn of_scenario(end: End, name: &str, output: &str) -> Verdict {
    let said = output.lines().find_map(|line| scenario_result(line).filter(|(of, _)| *of == name));
    match (end, said) {
        (End::TimedOut, _) => Verdict::TimedOut(last_words(output)),
        (End::Success, Some((_, Outcome::Passed))) => Verdict::Passed,
        (End::Success, Some((_, Outcome::Skipped(why)))) => Verdict::Skipped(why.to_owned()),
        (_, Some((_, Outcome::Failed(why)))) => Verdict::Failed(why.to_owned()),
        _ => Verdict::Panicked(last_words(output)),
    }
}

/// What the lab says of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Passed,
    /// What is behind the name.
    Failed(&'a str),
    /// The machine lacks something for it: this.
    Skipped(&'a str),
}

/// The lab's `PASS NAME …`, `FAIL NAME …` or `SKIP NAME: WHY`.
pub(crate) fn scenario_result(line: &str) -> Option<(&str, Outcome<'_>)> {
    let (verdict, rest) = line.trim().split_once(' ')?;
    let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
    let outcome = match verdict {
        "PASS" => Outcome::Passed,
        "FAIL" => Outcome::Failed(why),
        "SKIP" => Outcome::Skipped(why),
        _ => return None,
    };
    Some((name.trim_end_matches(':'), outcome))
}

/// The counts of libtest's `test result: ok. 5 passed; 0 failed; …`.
fn test_result(line: &str) -> Option<(usize, usize)> {
    let counts = line.strip_prefix("test result: ")?;
    let count =
        |word: &str| counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok());
    Some((count("passed")?, count("failed")?))
}

/// What a test said as it panicked: the line behind `thread '…' panicked at FILE:LINE:`, and where that is.
fn panic_message(output: &str) -> String {
    let mut lines = output.lines();
    let Some(place) = lines.find_map(|line| line.split_once(" panicked at ").map(|(_, place)| place)) else {
        return last_words(output);
    };
    let message = lines.next().unwrap_or_default().trim();
    format!("{} {message}", place.trim())
}

/// The last line that says something.
fn last_words(output: &str) -> String {
    let last = output.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    last.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_is_understood() {
        let passed = "\nrunning 1 test\ntest a::b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s";
        assert_eq!(of_test(End::Success, passed), Verdict::Passed);
        let failed = "running 1 test\ntest a::b ... FAILED\n\n---- a::b stdout ----\n\nthread 'a::b' (7) panicked at src/a.rs:3:5:\nassertion failed\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(of_test(End::Failure, failed), Verdict::Failed("src/a.rs:3:5: assertion failed".to_owned()));
        let gone = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out";
        assert!(matches!(of_test(End::Success, gone), Verdict::NotBegun(_)));
    }

    #[test]
    fn a_program_that_dies_has_panicked_whatever_it_returned() {
        let died = "running 1 test\nfatal runtime error: stack overflow";
        assert_eq!(of_test(End::Failure, died), Verdict::Panicked("fatal runtime error: stack overflow".to_owned()));
        assert!(matches!(of_test(End::Success, "running 1 test"), Verdict::Panicked(_)));
        assert!(matches!(of_scenario(End::Failure, "roam-public", "thread 'main' panicked"), Verdict::Panicked(_)));
        assert!(matches!(of_scenario(End::Success, "roam-public", ""), Verdict::Panicked(_)));
    }

    #[test]
    fn the_lab_is_understood() {
        let of = |end, line: &str| of_scenario(end, "moved-process", line);
        assert_eq!(of(End::Success, "    a remark\nPASS moved-process (3.1 s)"), Verdict::Passed);
        assert_eq!(of(End::Failure, "FAIL moved-process: no byte"), Verdict::Failed("no byte".to_owned()));
        let why = "`criu check` says: No such file or directory (os error 2)";
        assert_eq!(of(End::Success, &format!("SKIP moved-process: {why}")), Verdict::Skipped(why.to_owned()));
        assert!(matches!(of(End::Success, "PASS moved-socket (3.1 s)"), Verdict::Panicked(_)), "another's verdict");
        assert!(matches!(of(End::Failure, "PASS moved-process (3.1 s)"), Verdict::Panicked(_)), "it died cleaning up");
        assert_eq!(of(End::TimedOut, "first\nlast\n\n"), Verdict::TimedOut("last".to_owned()));
    }

    #[test]
    fn what_is_not_begun_fails_a_run_and_what_is_skipped_does_not() {
        assert!(Verdict::NotBegun(String::new()).is_failure() && !Verdict::NotBegun(String::new()).may_be_repeated());
        assert!(Verdict::Panicked(String::new()).is_failure() && Verdict::Panicked(String::new()).may_be_repeated());
        assert!(!Verdict::Skipped(String::new()).is_failure() && !Verdict::LeftTo("test-all").is_failure());
    }
}
