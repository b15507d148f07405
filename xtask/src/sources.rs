//! Rules about source files that the compiler does not know.

use std::fs;
use std::path::Path;

use crate::failure::{Failure, OnObject};
use crate::workspace::files;

/// Lines of a file, tests not counted, at which it is worth splitting.
const LONG: usize = 800;

/// Columns of a line of prose.
const WIDE: usize = 120;

/// Columns of a tab, which stands at the beginning of lines only.
const TAB: usize = 8;

/// Where `unsafe` may stand: the wrappers of system calls, and what C calls.
const UNSAFE_ALLOWED: &[&str] = &["crates/kernel/", "crates/datapath/", "crates/capi/", "lab/src/sys"];

/// Where our sources are.
const SOURCES: &[&str] = &["crates", "lab", "bench", "fuzz", "xtask"];

/// Files that are too long, as sentences.
pub(crate) fn long_files(root: &Path) -> Result<Vec<String>, Failure> {
    each_source(root, |name, text| {
        let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
        let test = name.contains("/tests/") || name.ends_with("tests.rs");
        (lines > LONG && !test).then(|| format!("{name} has {lines} lines without its tests: split it by topic"))
    })
}

/// Uses of `unsafe` where none may be, as sentences.
pub(crate) fn misplaced_unsafe(root: &Path) -> Result<Vec<String>, Failure> {
    each_source(root, |name, text| {
        if UNSAFE_ALLOWED.iter().any(|allowed| name.starts_with(allowed)) {
            return None;
        }
        let line = text.lines().position(uses_unsafe)? + 1;
        Some(format!("{name}:{line}: `unsafe` may stand only in {}", UNSAFE_ALLOWED.join(", ")))
    })
}

/// Lines of documents and of comments that are too wide to be read, as sentences. Tables, headings and blocks of code
/// have the width that they need.
pub(crate) fn wide_lines(root: &Path) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for (directory, ending) in
        SOURCES.iter().map(|directory| (*directory, "rs")).chain([("bpf", "c"), ("bpf", "h"), ("docs", "md")])
    {
        for path in files(&root.join(directory), ending)? {
            look_for_wide_lines(root, &path, ending == "md", &mut found)?;
        }
    }
    for name in ["ARCHITECTURE.md", "CHANGELOG.md", "README.md"] {
        look_for_wide_lines(root, &root.join(name), true, &mut found)?;
    }
    Ok(found)
}

fn look_for_wide_lines(root: &Path, path: &Path, document: bool, found: &mut Vec<String>) -> Result<(), Failure> {
    let text = fs::read_to_string(path).failed("read", path.display())?;
    let mut code = false;
    for (number, line) in text.lines().enumerate() {
        let words = line.trim_start();
        code ^= document && words.starts_with("```");
        let prose = if document {
            !code && !words.starts_with(['|', '#'])
        } else {
            words.starts_with("//") || words.starts_with('*')
        };
        let width: usize = line.chars().map(|c| if c == '\t' { TAB } else { 1 }).sum();
        if prose && width > WIDE {
            let name = path.strip_prefix(root).unwrap_or(path).display();
            found.push(format!("{name}:{}: {width} columns, wrap it at {WIDE}", number + 1));
        }
    }
    Ok(())
}

fn each_source(root: &Path, look: impl Fn(&str, &str) -> Option<String>) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for directory in SOURCES {
        for path in files(&root.join(directory), "rs")? {
            let text = fs::read_to_string(&path).failed("read", path.display())?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            found.extend(look(&name, &text));
        }
    }
    Ok(found)
}

/// Whether the line has `unsafe` as a word of code. Comments and strings are cut off roughly: what slips through is
/// refused rather than missed.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let (mut outside, mut escaped) = (true, false);
    let code: String = code
        .chars()
        .map(|c| {
            outside ^= c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            if outside { c } else { ' ' }
        })
        .collect();
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn no_unsafe_outside_the_wrappers() {
        assert_eq!(misplaced_unsafe(&root()).unwrap(), [] as [String; 0]);
    }

    #[test]
    fn prose_is_wrapped() {
        assert_eq!(wide_lines(&root()).unwrap(), [] as [String; 0]);
    }

    #[test]
    fn unsafe_is_told_from_talk_of_it() {
        for (line, is) in [
            ("unsafe { f() }", true),
            ("pub unsafe fn f() {", true),
            ("// unsafe", false),
            ("#![forbid(unsafe_code)]", false),
            ("let s = \"unsafe\";", false),
        ] {
            assert_eq!(uses_unsafe(line), is, "{line}");
        }
    }
}
