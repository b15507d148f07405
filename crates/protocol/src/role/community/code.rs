//! One-time codes: what people tell one another.

use std::fmt;
use std::str::FromStr;

use super::words::{THREE, TWO};
use crate::base::random::Random;

/// Words in a code: 24 bits, of which one guess is allowed.
const WORDS: usize = 3;

/// A code that is good once, for a few minutes: a number, so that several may be open, and three words, as in
/// `7-crossover-clockwork-tolerance`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneTimeCode {
    number: u16,
    words: [u8; WORDS],
}

/// Text that is not a code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCode {
    /// It has another shape.
    #[error("a code is a number and three words, as in 7-crossover-clockwork-tolerance")]
    Shape,
    /// A word is not one that codes are made of, or not at its place.
    #[error("`{0}` is no word of a code at this place: a word is misspelt, left out, or stands where another belongs")]
    Word(String),
}

impl OneTimeCode {
    pub(super) fn draw(number: u16, random: &mut Random) -> Self {
        let mut words = [0; WORDS];
        random.fill(&mut words);
        Self { number, words }
    }

    /// Tells it from others that are open at the same host; no secret.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// What both ends of an exchange must have in common.
    pub(super) fn secret(&self) -> Vec<u8> {
        self.to_string().to_lowercase().into_bytes()
    }
}

/// The words that may stand at a place of a code.
fn list(place: usize) -> &'static str {
    if place.is_multiple_of(2) { THREE } else { TWO }
}

impl fmt::Display for OneTimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        for (place, word) in self.words.iter().enumerate() {
            let word = list(place).split_ascii_whitespace().nth(usize::from(*word)).unwrap_or_default();
            write!(f, "-{word}")?;
        }
        Ok(())
    }
}

/// It is a secret while it is good.
impl fmt::Debug for OneTimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OneTimeCode({})", self.number)
    }
}

impl FromStr for OneTimeCode {
    type Err = InvalidCode;

    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        let mut parts = text.split(|c: char| c == '-' || c.is_whitespace()).filter(|part| !part.is_empty());
        let number = parts.next().and_then(|number| number.parse().ok()).ok_or(InvalidCode::Shape)?;
        let said: Vec<&str> = parts.collect();
        let said: [&str; WORDS] = said.try_into().map_err(|_| InvalidCode::Shape)?;
        let mut words = [0; WORDS];
        for (place, said) in said.into_iter().enumerate() {
            let at = list(place).split_ascii_whitespace().position(|word| word.eq_ignore_ascii_case(said));
            let at = at.and_then(|at| u8::try_from(at).ok());
            words[place] = at.ok_or_else(|| InvalidCode::Word(said.chars().take(32).collect()))?;
        }
        Ok(Self { number, words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_byte_has_a_word_of_its_own() {
        let all: HashSet<String> =
            TWO.split_ascii_whitespace().chain(THREE.split_ascii_whitespace()).map(str::to_lowercase).collect();
        assert_eq!(all.len(), 512);
        assert_eq!(TWO.split_ascii_whitespace().count(), 256);
        assert_eq!(THREE.split_ascii_whitespace().count(), 256);
    }

    #[test]
    fn a_code_is_read_as_it_is_written_or_said() {
        let mut random = Random::new([1; 32]);
        for number in 1..200 {
            let code = OneTimeCode::draw(number, &mut random);
            assert_eq!(code.to_string().parse(), Ok(code));
            assert_eq!(code.to_string().to_uppercase().replace('-', "  ").parse(), Ok(code));
        }
        assert!("7-crossover-clockwork-tolerance".parse::<OneTimeCode>().is_ok());
        assert_eq!("7-crossover-clockwork".parse::<OneTimeCode>(), Err(InvalidCode::Shape));
        assert_eq!("crossover-clockwork-tolerance".parse::<OneTimeCode>(), Err(InvalidCode::Shape));
        let swapped = "7-clockwork-crossover-tolerance".parse::<OneTimeCode>();
        assert_eq!(swapped, Err(InvalidCode::Word("clockwork".to_owned())));
        assert_eq!(
            format!("{:?}", "7-crossover-clockwork-tolerance".parse::<OneTimeCode>().unwrap()),
            "OneTimeCode(7)"
        );
    }
}
