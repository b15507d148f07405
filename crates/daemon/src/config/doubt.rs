//! What is no mistake in the file, and is told all the same.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::value::before;

/// A place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl Spot {
    /// That of the byte at `at` of the file's text.
    pub(super) fn new(path: &Path, text: &str, at: usize) -> Self {
        let before = before(text, at);
        Self {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().unwrap_or("").chars().count() + 1,
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// What can hardly be meant, or does not work on this host now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Where it stands.
    pub spot: Spot,
    /// What is doubted, and what would be right.
    pub sentence: String,
    /// What does not work because of it.
    pub lost: &'static str,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.spot, self.sentence)
    }
}

/// One that knows only at which bytes of the text it is about.
#[derive(Debug)]
pub(super) struct Doubted {
    pub(super) at: Range<usize>,
    pub(super) sentence: String,
    pub(super) lost: &'static str,
}

impl Doubted {
    pub(super) fn located(self, path: &Path, text: &str) -> Doubt {
        Doubt { spot: Spot::new(path, text, self.at.start), sentence: self.sentence, lost: self.lost }
    }
}

/// That sections come after one that means all connections, if they do. `sections`: where each begins, and whether it
/// means all.
pub(super) fn dead(kind: &str, sections: &[(Range<usize>, bool)], line_of: &dyn Fn(usize) -> u32) -> Option<Doubted> {
    let all = sections.iter().position(|(_, all)| *all)?;
    let after: Vec<String> = sections[all + 1..].iter().map(|(at, _)| line_of(at.start).to_string()).collect();
    let lines = match after.as_slice() {
        [] => return None,
        [line] => format!("the one after it (line {line}) never counts"),
        lines => format!("those after it (lines {}) never count", lines.join(", ")),
    };
    let sentence = format!("this [[{kind}]] has no condition and means all connections, so {lines}; put it last");
    Some(Doubted { at: sections[all].0.clone(), sentence, lost: "the first section that means a connection decides" })
}
