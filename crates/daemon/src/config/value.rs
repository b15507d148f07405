//! Single values of the file: each is read by what it must be, or answered by a sentence that says what would be right.
//!
//! serde puts the places to the sentences, and [`super::document`] the names of the keys.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use toml::Value;
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Prefix;

/// Stands for the key's name in sentences about a value, which does not know under which key it stands. It is no
/// character, so no text of the file is taken for it.
pub(crate) const KEY: &str = "\u{fdd0}";

/// What can be read from a value of the file.
pub(crate) trait Written: Sized {
    /// What a list of these must be: "a list of …".
    const LIST: &'static str = "a list";
    /// Whether one of these may stand where a list is meant.
    const ALONE: bool = false;

    /// Reads it, or says what is wrong.
    fn read(value: &Value) -> Result<Self, String>;
}

/// Reads a value: what `deserialize_with` names.
pub(crate) fn read<'de, D: Deserializer<'de>, T: Written>(deserializer: D) -> Result<T, D::Error> {
    T::read(&value(deserializer)).map_err(D::Error::custom)
}

/// Reads a list, or a single value where such may stand [`Written::ALONE`].
pub(crate) fn list<'de, D: Deserializer<'de>, T: Written>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_any(List(PhantomData))
}

struct List<T>(PhantomData<T>);

/// A newtype of serde's, since an error within one is given the place of the element.
#[derive(serde::Deserialize)]
#[serde(bound = "T: Written")]
struct Element<T>(#[serde(deserialize_with = "read")] T);

impl<T: Written> List<T> {
    fn alone<E: Error>(value: &Value) -> Result<Vec<T>, E> {
        let wrong = || format!("`{KEY}` must be {}, not {}", T::LIST, kind(value.type_str()));
        let read = if T::ALONE { T::read(value) } else { Err(wrong()) };
        read.map(|one| vec![one]).map_err(E::custom)
    }
}

impl<'de, T: Written> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::LIST)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut read = Vec::new();
        while let Some(Element(one)) = elements.next_element()? {
            read.push(one);
        }
        Ok(read)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Self::alone(&text.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
        Self::alone(&number.into())
    }
}

/// Reads a number from 1 to `MOST`.
pub(crate) fn limit<'de, D, T, const MOST: u32>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u32>,
{
    number(&value(deserializer), MOST).map_err(D::Error::custom)
}

pub(crate) fn number<T: TryFrom<u32>>(value: &Value, most: u32) -> Result<T, String> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=most).contains(number)).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("`{KEY}` must be a number from 1 to {most}"))
}

/// A value of whatever kind.
pub(crate) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Value {
    // It fails with numbers alone that are beyond the type, and so beyond the bounds of every key.
    Value::deserialize(deserializer).unwrap_or(Value::Integer(-1))
}

/// Reads a number of seconds from 1 to `MOST`.
pub(crate) fn seconds<'de, D, const MOST: u32>(deserializer: D) -> Result<Duration, D::Error>
where
    D: Deserializer<'de>,
{
    limit::<_, u32, MOST>(deserializer).map(|number| Duration::from_secs(number.into()))
}

impl<T: Written> Written for Option<T> {
    fn read(value: &Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }
}

impl Written for String {
    fn read(value: &Value) -> Result<Self, String> {
        text(value, "text").map(str::to_owned)
    }
}

impl Written for PathBuf {
    fn read(value: &Value) -> Result<Self, String> {
        text(value, "a path").map(Self::from)
    }
}

impl Written for IpAddr {
    const LIST: &'static str = "a list of addresses such as [\"192.0.2.1\"]";

    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value, "addresses")?;
        let right = "write one such as \"192.0.2.1\" (no name, no port)";
        text.parse().map_err(|_| format!("`{text}` is no IP address; {right}"))
    }
}

impl Written for SocketAddr {
    fn read(value: &Value) -> Result<Self, String> {
        let read = value.as_str().and_then(|text| text.parse().ok()).filter(|address: &Self| address.port() != 0);
        let right = "must be an address and a port in quotes, such as \"127.0.0.1:9203\" or \"[::1]:9203\"";
        read.ok_or_else(|| format!("`{KEY}` {right}"))
    }
}

impl Written for PublicKey {
    const LIST: &'static str = "a list of public keys";

    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value, "a public key")?;
        let right = "`whimbrel status` on that host shows its own";
        text.parse().map_err(|error| format!("`{text}` is no public key ({error}); {right}"))
    }
}

impl Written for Prefix {
    const LIST: &'static str = "a list of prefixes such as [\"192.0.2.0/24\", \"2001:db8::/32\"]";

    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value, "a list of prefixes")?;
        let right = "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address";
        parse_prefix(text).ok_or_else(|| format!("`{text}` is no prefix; {right}"))
    }
}

/// Ports: one, or a range in quotes.
impl Written for RangeInclusive<u16> {
    const LIST: &'static str =
        "a port such as 21, or a range in quotes such as \"6000-6063\", of ports from 1 to 65535";
    const ALONE: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        let range = match value {
            Value::Integer(port) => u16::try_from(*port).ok().map(|port| (port, port)),
            Value::String(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                first.trim().parse().ok().zip(last.trim().parse().ok())
            }
            _ => None,
        };
        match range {
            Some((first, last)) if 0 < last && last < first => {
                Err(format!("`{KEY}` goes from {first} down to {last}; write \"{last}-{first}\""))
            }
            Some((first, last)) if 0 < first && 0 < last => Ok(first..=last),
            _ => Err(format!("`{KEY}` must be {}", Self::LIST)),
        }
    }
}

/// What stands in quotes; `what` it must be.
pub(crate) fn text<'a>(value: &'a Value, what: &str) -> Result<&'a str, String> {
    let wrong = || format!("`{KEY}` must be {what} in quotes, not {}", kind(value.type_str()));
    value.as_str().ok_or_else(wrong)
}

/// One of a few words.
pub(crate) fn choose<T: Copy>(value: &Value, choices: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let right = format!("`{KEY}` must be one of \"{}\"", names.join("\", \""));
    let Some(text) = value.as_str() else { return Err(format!("{right}, not {}", kind(value.type_str()))) };
    choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let hint = nearest(text, &names).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
        format!("{right}, not \"{text}\"{hint}")
    })
}

/// A kind of value, with its article.
pub(crate) fn kind(name: &str) -> String {
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// A prefix, or one address.
pub(crate) fn parse_prefix(text: &str) -> Option<Prefix> {
    let prefix = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    Some(Prefix { address: prefix.addr(), length: prefix.prefix_len() })
}

/// The candidate that `name` was probably meant to be.
pub(crate) fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    candidates
        .iter()
        .map(|candidate| (strsim::levenshtein(&name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}
