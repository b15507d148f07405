//! Single values of the file: each is read by what it must be, or answered by a [`Mistake`] that says where it stands and
//! what would be right there.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use whimbrel_protocol::Prefix;

use super::{ConfigError, Spot};

/// Something wrong at a range of bytes of the text.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) at: Range<usize>,
    pub(super) sentence: String,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, sentence: impl Into<String>) -> Self {
        Self { at, sentence: sentence.into() }
    }

    pub(super) fn located(self, path: &Path, text: &str) -> ConfigError {
        let Spot { path, line, column } = Spot::new(path, text, self.at.start);
        ConfigError::Wrong { path, line, column, sentence: self.sentence }
    }
}

/// The line, from 1, that the byte at `at` stands in.
pub(super) fn line_of(text: &str, at: usize) -> u32 {
    let lines = before(text, at).matches('\n').count();
    u32::try_from(lines).unwrap_or(u32::MAX).saturating_add(1)
}

/// What stands before a byte.
pub(super) fn before(text: &str, at: usize) -> &str {
    let mut end = at.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A value and where it stands.
pub(super) type Value<'a, 'i> = &'a Spanned<DeValue<'i>>;

/// Takes the keys of one table one after the other, and complains about those that are left.
pub(super) struct Section<'a, 'i> {
    table: &'a DeTable<'i>,
    known: Vec<&'static str>,
}

impl<'a, 'i> Section<'a, 'i> {
    pub(super) fn new(table: &'a DeTable<'i>) -> Self {
        Self { table, known: Vec::new() }
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<Value<'a, 'i>> {
        self.known.push(key);
        self.table.get(key)
    }

    pub(super) fn finish(self) -> Result<(), Mistake> {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if !self.known.contains(&name) {
                let near = nearest(name, &self.known);
                let sentence = match near {
                    Some(near) => format!("unknown key `{name}`; did you mean `{near}`?"),
                    None => format!("unknown key `{name}`; known here are {}", listed(&self.known)),
                };
                return Err(Mistake::new(key.span(), sentence));
            }
        }
        Ok(())
    }
}

pub(super) fn boolean(value: Value<'_, '_>, name: &str) -> Result<bool, Mistake> {
    let wrong = || Mistake::new(value.span(), format!("`{name}` must be true or false, not {}", kind(value)));
    value.get_ref().as_bool().ok_or_else(wrong)
}

pub(super) fn string<'a>(value: Value<'a, '_>, name: &str, what: &str) -> Result<&'a str, Mistake> {
    value
        .get_ref()
        .as_str()
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be {what} in quotes, not {}", kind(value))))
}

pub(super) fn array<'a, 'i>(
    value: Value<'a, 'i>,
    name: &str,
    what: &str,
) -> Result<&'a [Spanned<DeValue<'i>>], Mistake> {
    match value.get_ref().as_array() {
        Some(array) => Ok(array),
        None => Err(Mistake::new(value.span(), format!("`{name}` must be {what}, not {}", kind(value)))),
    }
}

pub(super) fn subtable<'a, 'i>(value: Value<'a, 'i>, name: &str) -> Result<&'a DeTable<'i>, Mistake> {
    value
        .get_ref()
        .as_table()
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be a section, not {}", kind(value))))
}

pub(super) fn kind(value: Value<'_, '_>) -> String {
    let name = value.get_ref().type_str();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// What is no TOML: says which key it is about, and what a value may be.
pub(super) fn ungrammatical(text: &str, at: Range<usize>, message: &str) -> Mistake {
    let line = before(text, at.start).rsplit('\n').next().unwrap_or("").len();
    let line = text.get(at.start.saturating_sub(line)..).and_then(|rest| rest.lines().next()).unwrap_or("");
    let is_key = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let (key, value) = match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
        Some((key, value)) if is_key(key) => (key, value),
        _ => return Mistake::new(at, message),
    };
    let word = value.split(['#', ' ', '\t']).next().unwrap_or("");
    let sentence = match word {
        "" => format!("`{key}` has no value; leave the line out for the default"),
        "yes" | "on" | "Yes" | "True" | "TRUE" => format!("`{key}` cannot be {word}; did you mean true?"),
        "no" | "off" | "No" | "False" | "FALSE" => format!("`{key}` cannot be {word}; did you mean false?"),
        word if word.starts_with(|c: char| c.is_ascii_alphabetic()) && is_key(word) => {
            format!("`{key}` cannot be {word}; did you mean \"{word}\"? Text stands in quotes")
        }
        _ => format!(
            "the value of `{key}` is none ({message}); it is true, false, a number, text in quotes or a list in brackets"
        ),
    };
    Mistake::new(at, sentence)
}

pub(super) fn choice<T: Copy>(value: Value<'_, '_>, name: &str, choices: &[(&'static str, T)]) -> Result<T, Mistake> {
    one_of(value, &format!("`{name}`"), choices)
}

/// `what`: the beginning of a complaint.
pub(super) fn one_of<T: Copy>(value: Value<'_, '_>, what: &str, choices: &[(&'static str, T)]) -> Result<T, Mistake> {
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    let wanted = || names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let Some(text) = value.get_ref().as_str() else {
        return Err(Mistake::new(value.span(), format!("{what} must be one of {}, not {}", wanted(), kind(value))));
    };
    match choices.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let hint = nearest(text, &names).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            Err(Mistake::new(value.span(), format!("{what} must be one of {}, not \"{text}\"{hint}", wanted())))
        }
    }
}

pub(super) fn port(value: Value<'_, '_>) -> Result<u16, Mistake> {
    let number =
        value.get_ref().as_integer().and_then(|number| u16::from_str_radix(number.as_str(), number.radix()).ok());
    number
        .filter(|port| *port != 0)
        .ok_or_else(|| Mistake::new(value.span(), "`port` must be a number from 1 to 65535, the same on both ends"))
}

pub(super) fn endpoint(value: Value<'_, '_>) -> Result<SocketAddr, Mistake> {
    let wrong = || {
        let right = "`listen` must be an address and a port in quotes, such as \"127.0.0.1:9203\" or \"[::1]:9203\"";
        Mistake::new(value.span(), right)
    };
    let endpoint: SocketAddr = value.get_ref().as_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    if endpoint.port() == 0 { Err(wrong()) } else { Ok(endpoint) }
}

pub(super) fn limit(value: Value<'_, '_>, name: &str, most: u32) -> Result<u32, Mistake> {
    let number =
        value.get_ref().as_integer().and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
    number
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be a number from 1 to {most}")))
}

pub(super) fn mode(value: Value<'_, '_>) -> Result<u32, Mistake> {
    let wrong =
        || Mistake::new(value.span(), "`control_mode` must be octal digits in quotes, such as \"0600\" or \"0660\"");
    let text = value.get_ref().as_str().ok_or_else(wrong)?;
    let mode = u32::from_str_radix(text, 8).map_err(|_| wrong())?;
    if mode > 0o777 || mode & 0o600 != 0o600 {
        return Err(wrong());
    }
    Ok(mode)
}

pub(super) fn prefix(value: Value<'_, '_>, name: &str) -> Result<Prefix, Mistake> {
    let text = string(value, name, "a list of prefixes")?;
    parse_prefix(text).ok_or_else(|| {
        Mistake::new(
            value.span(),
            format!("`{text}` is no prefix; write \"192.0.2.0/24\", \"2001:db8::/32\" or one address"),
        )
    })
}

pub(super) fn parse_prefix(text: &str) -> Option<Prefix> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address.parse::<IpAddr>().ok()?, Some(length.parse::<u8>().ok()?)),
        None => (text.parse().ok()?, None),
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(longest);
    (length <= longest).then_some(Prefix { address, length })
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The candidate that `name` was probably meant to be.
fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    candidates
        .iter()
        .map(|candidate| (distance(&name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements that make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
