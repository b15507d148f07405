//! Bytes as hexadecimal text, in files that people may look into.

use alloc::string::String;
use core::fmt::Write;

use serde::{Deserialize, Deserializer, Serializer};

/// Two digits for each byte.
#[must_use]
pub fn print(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of such a text; `None` where it is none, or of another length.
#[must_use]
pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(16 * value(pair[0])? + value(pair[1])?).ok()?;
    }
    Some(bytes)
}

/// For `#[serde(with = "hex")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer, const N: usize>(bytes: &[u8; N], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&print(bytes))
}

/// For `#[serde(with = "hex")]`.
///
/// # Errors
/// Where it is no such text.
pub fn deserialize<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<[u8; N], D::Error> {
    parse(&String::deserialize(deserializer)?)
        .ok_or_else(|| serde::de::Error::custom("these are no bytes in hexadecimal"))
}
