//! The file as a tree that knows where each part stands, so that every complaint names file, line and column and says
//! what would be right there.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use super::value::{KEY, kind, nearest};
use crate::policy::Matcher;

/// Why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no such file.
    #[error("there is no configuration {0}")]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something in it is wrong.
    #[error("{spot}: {sentence}")]
    Wrong {
        /// Where.
        spot: Spot,
        /// What is wrong and what would be right.
        sentence: String,
    },
}

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

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// What can hardly be meant, or does not work on this host now. It is no mistake in the file, and told all the same.
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

/// The file's text and what is in it.
///
/// A part is named by its keys and indices with dots between, such as `anchor.own.1`. Where there is no such part, what
/// would have it is meant.
pub(crate) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    root: Spanned<DeValue<'a>>,
}

impl<'a> Document<'a> {
    pub(crate) fn parse(path: &'a Path, text: &'a str) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().unwrap_or(0..0).start;
            ConfigError::Wrong { spot: spot(path, text, at), sentence: ungrammatical(text, at, error.message()) }
        })?;
        let root = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
        Ok(Self { path, text, root })
    }

    /// What the file says, each value by itself. These keys are sections, and lists of sections.
    pub(crate) fn config<C: DeserializeOwned>(&self, sections: &[&str], listed: &[&str]) -> Result<C, ConfigError> {
        self.check_sections(sections, listed)?;
        C::deserialize(ValueDeserializer::from(self.root.clone())).map_err(|error| {
            let at = error.span().unwrap_or_else(|| self.root.span());
            let (key, kind) = found("", &self.root, &at).unwrap_or_default();
            ConfigError::Wrong { spot: spot(self.path, self.text, at.start), sentence: sentence(&error, key, kind) }
        })
    }

    /// serde would take a list for a section, its first element for the first key.
    fn check_sections(&self, sections: &[&str], listed: &[&str]) -> Result<(), ConfigError> {
        let section = |key: &str, part: &str| match self.find(part).map(Spanned::get_ref) {
            None | Some(DeValue::Table(_)) => Ok(()),
            Some(other) => Err(self.wrong(part, format!("`{key}` must be a section, not {}", kind(other.type_str())))),
        };
        sections.iter().try_for_each(|key| section(key, key))?;
        listed.iter().try_for_each(|key| match self.find(key).map(Spanned::get_ref) {
            None => Ok(()),
            Some(DeValue::Array(elements)) => {
                (0..elements.len()).try_for_each(|index| section(key, &format!("{key}.{index}")))
            }
            Some(other) => {
                let right = format!("`{key}` must be written as [[{key}]] sections, not {}", kind(other.type_str()));
                Err(self.wrong(key, right))
            }
        })
    }

    /// Whether the file has this.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.find(part).is_some()
    }

    /// Whether a section has any key.
    pub(crate) fn has_keys(&self, section: &str) -> bool {
        self.find(section).and_then(|section| section.get_ref().as_table()).is_some_and(|table| !table.is_empty())
    }

    pub(crate) fn spot(&self, part: &str) -> Spot {
        let mut part = part;
        loop {
            match (self.find(part), part.rsplit_once('.')) {
                (Some(found), _) => return spot(self.path, self.text, found.span().start),
                (None, Some((outer, _))) => part = outer,
                (None, None) => return spot(self.path, self.text, self.root.span().start),
            }
        }
    }

    /// The line that something stands in, from 1.
    pub(crate) fn line(&self, part: &str) -> u32 {
        u32::try_from(self.spot(part).line).unwrap_or(u32::MAX)
    }

    pub(crate) fn wrong(&self, part: &str, sentence: impl Into<String>) -> ConfigError {
        ConfigError::Wrong { spot: self.spot(part), sentence: sentence.into() }
    }

    /// That sections come after one that means all connections, if they do.
    pub(crate) fn dead<'m>(&self, name: &str, matchers: impl Iterator<Item = &'m Matcher>) -> Option<Doubt> {
        let every: Vec<bool> = matchers.map(|matcher| *matcher == Matcher::default()).collect();
        let all = every.iter().position(|every| *every)?;
        let after: Vec<_> = (all + 1..every.len()).map(|at| self.line(&format!("{name}.{at}")).to_string()).collect();
        let lines = match after.as_slice() {
            [] => return None,
            [line] => format!("the one after it (line {line}) never counts"),
            lines => format!("those after it (lines {}) never count", lines.join(", ")),
        };
        let sentence = format!("this [[{name}]] has no condition and means all connections, so {lines}; put it last");
        let spot = self.spot(&format!("{name}.{all}"));
        Some(Doubt { spot, sentence, lost: "the first section that means one decides" })
    }

    fn find(&self, part: &str) -> Option<&Spanned<DeValue<'a>>> {
        part.split('.').try_fold(&self.root, |within, step| match step.parse::<usize>() {
            Ok(index) => within.get_ref().get(index),
            Err(_) => within.get_ref().get(step),
        })
    }
}

/// The place of the byte at `at`.
fn spot(path: &Path, text: &str, at: usize) -> Spot {
    let before = before(text, at);
    Spot {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before.rsplit('\n').next().unwrap_or("").chars().count() + 1,
    }
}

/// What stands before a byte.
fn before(text: &str, at: usize) -> &str {
    let mut end = at.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The key of the value that stands at `at`, and what kind of value it is. Elements of a list have the list's key.
fn found<'a>(key: &'a str, value: &'a Spanned<DeValue<'_>>, at: &Range<usize>) -> Option<(&'a str, &'static str)> {
    if value.span() == *at {
        return Some((key, value.get_ref().type_str()));
    }
    match value.get_ref() {
        DeValue::Table(table) => table.iter().find_map(|(key, value)| found(key.get_ref(), value, at)),
        DeValue::Array(elements) => elements.iter().find_map(|element| found(key, element, at)),
        _ => None,
    }
}

/// What serde has found wrong, in the words of the file.
fn sentence(error: &Error, key: &str, type_name: &str) -> String {
    let message = error.message();
    if let Some((name, known)) = message.strip_prefix("unknown field `").and_then(|it| it.rsplit_once("`, expected ")) {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        return match nearest(name, &known) {
            Some(near) => format!("unknown key `{name}`; did you mean `{near}`?"),
            None => format!("unknown key `{name}`; known here are `{}`", known.join("`, `")),
        };
    }
    if let Some(missing) = message.strip_prefix("missing field ") {
        return format!("this [[{key}]] section has no {missing}");
    }
    match message.strip_prefix("invalid type: ").and_then(|it| it.rsplit_once(", expected ")) {
        Some((_, right)) => {
            let right = if right == "a boolean" { "true or false" } else { right };
            format!("`{key}` must be {right}, not {}", kind(type_name))
        }
        None => message.replace(KEY, key),
    }
}

/// What is no TOML: says which key it is about, and what a value may be.
fn ungrammatical(text: &str, at: usize, message: &str) -> String {
    let start = before(text, at).rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or("");
    let is_key = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let (key, value) = match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
        Some((key, value)) if is_key(key) => (key, value),
        _ => return message.to_owned(),
    };
    match value.split(['#', ' ', '\t']).next().unwrap_or("") {
        "" => format!("`{key}` has no value; leave the line out for the default"),
        word @ ("yes" | "on" | "Yes" | "True" | "TRUE") => format!("`{key}` cannot be {word}; did you mean true?"),
        word @ ("no" | "off" | "No" | "False" | "FALSE") => format!("`{key}` cannot be {word}; did you mean false?"),
        word if word.starts_with(|c: char| c.is_ascii_alphabetic()) && is_key(word) => {
            format!("`{key}` cannot be {word}; did you mean \"{word}\"? Text stands in quotes")
        }
        _ => format!(
            "the value of `{key}` is none ({message}); it is true, false, a number, text in quotes or a list in brackets"
        ),
    }
}
