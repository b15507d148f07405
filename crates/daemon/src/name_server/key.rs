//! Keys that updates are signed with (TSIG, RFC 8945).

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use domain::base::name::Name;
use domain::tsig::{Algorithm, Key, KeyName};
use domain::utils::base64;

/// The shortest secret that is taken, in bytes: half of what HMAC-SHA256 gives.
const SHORTEST: usize = 16;

/// A key, as it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Its name, which the server knows it by.
    name: String,
    algorithm: &'static str,
    secret: Vec<u8>,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("name", &self.name)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

/// Algorithms that are taken, as files name them. RFC 8945 §6 has the rest as not to be used.
const ALGORITHMS: [(&str, Algorithm); 3] =
    [("hmac-sha256", Algorithm::Sha256), ("hmac-sha384", Algorithm::Sha384), ("hmac-sha512", Algorithm::Sha512)];

impl SigningKey {
    /// Reads a key from a file: as tsig-keygen(8) writes it, or a secret in base64 alone, for HMAC-SHA256. `name`: of
    /// the key, needed in the second case.
    ///
    /// # Errors
    /// What is wrong and what would be right, for people.
    pub(crate) fn read(path: &Path, name: Option<&str>) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot be read ({error}); `tsig-keygen laptop-key` makes one for both sides"))?;
        Self::parse(&text, name)
    }

    fn parse(text: &str, name: Option<&str>) -> Result<Self, String> {
        let uncommented = without_comments(text);
        let words: Vec<&str> = uncommented
            .split(|c: char| c.is_whitespace() || matches!(c, '{' | '}' | ';' | '"'))
            .filter(|word| !word.is_empty())
            .collect();
        let (found, algorithm, secret) = match words.as_slice() {
            [secret] => (None, "hmac-sha256", *secret),
            ["key", found, rest @ ..] => {
                let after = |what| rest.chunks(2).find(|pair| pair[0] == what).and_then(|pair| pair.get(1)).copied();
                let algorithm = after("algorithm").ok_or("says no `algorithm`")?;
                (Some(*found), algorithm, after("secret").ok_or("holds no `secret`")?)
            }
            _ => return Err("is neither as tsig-keygen writes it nor one secret in base64".to_owned()),
        };
        let name = match (name, found) {
            (Some(name), Some(found))
                if !name.trim_end_matches('.').eq_ignore_ascii_case(found.trim_end_matches('.')) =>
            {
                return Err(format!("is of the key \"{found}\", and `key_name` is \"{name}\""));
            }
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => {
                return Err("holds a secret alone: `key_name` has to say what the server calls it".to_owned());
            }
        };
        let known = ALGORITHMS.iter().find(|(known, _)| algorithm.eq_ignore_ascii_case(known));
        let algorithm = known
            .map(|(known, _)| *known)
            .ok_or_else(|| format!("is for {algorithm}; it must be for hmac-sha256, hmac-sha384 or hmac-sha512"))?;
        let secret: Vec<u8> = base64::decode(secret).map_err(|_| "holds a secret that is not base64".to_owned())?;
        if secret.len() < SHORTEST {
            return Err(format!("holds a secret of {} bytes; it must have {SHORTEST} at least", secret.len()));
        }
        let key = Self { name: name.to_owned(), algorithm, secret };
        key.tsig().map(|_| key.clone()).ok_or_else(|| format!("is of \"{name}\", which is no name of a key"))
    }

    /// The key's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As the messages need it; the parts were looked at when it was read.
    pub(crate) fn tsig(&self) -> Option<Key> {
        let (_, algorithm) = ALGORITHMS.iter().find(|(known, _)| *known == self.algorithm)?;
        let name: Name<Vec<u8>> = Name::from_str(&self.name).ok()?;
        let name: KeyName = domain::dep::octseq::OctetsInto::try_octets_into(name).ok()?;
        Key::new(*algorithm, &self.secret, name, None, None).ok()
    }
}

/// named.conf(5) has comments as C, C++ and the shell have them.
fn without_comments(text: &str) -> String {
    let line = |line: &str| {
        let end =
            ["//", "#"].iter().filter_map(|mark| line.find(mark)).filter(|at| !line[..*at].contains("secret")).min();
        line[..end.unwrap_or(line.len())].to_owned()
    };
    let mut out: String = text.lines().map(line).collect::<Vec<_>>().join("\n");
    while let Some(start) = out.find("/*") {
        let end = out[start..].find("*/").map_or(out.len(), |end| start + end + 2);
        out.replace_range(start..end, " ");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "m3zgYfEx6qFNBTAbUGDh3bWXPTF5KbuIjpBMB2k3uVw=";

    #[test]
    fn keys_are_read_as_they_are_written() {
        let written = format!("key \"laptop-key\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{SECRET}\";\n}};\n");
        let key = SigningKey::parse(&written, None).unwrap();
        assert_eq!((key.name(), key.algorithm, key.secret.len()), ("laptop-key", "hmac-sha256", 32));
        assert_eq!(SigningKey::parse(&written, Some("LAPTOP-key.")).unwrap().secret, key.secret);
        let commented = format!("# made today\n// for us\n/* all\nof it */ {written}");
        assert_eq!(SigningKey::parse(&commented, None).unwrap(), key);
        assert_eq!(SigningKey::parse(SECRET, Some("laptop-key")).unwrap(), key);
        assert!(!format!("{key:?}").contains("m3zg") && !format!("{key:?}").contains("155"), "{key:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str, name| SigningKey::parse(text, name).unwrap_err();
        assert!(wrong(SECRET, None).contains("`key_name`"));
        assert!(wrong("", None).contains("tsig-keygen"));
        assert!(wrong("c2hvcnQ=", Some("k")).contains("5 bytes"));
        assert!(wrong("key k { algorithm hmac-md5; secret \"AAAA\"; };", None).contains("hmac-md5"));
        assert!(wrong("key k { algorithm hmac-sha256; };", None).contains("`secret`"));
        assert!(
            wrong(&format!("key k {{ algorithm hmac-sha256; secret \"{SECRET}\"; }};"), Some("other"))
                .contains("other")
        );
        assert!(wrong("key k { algorithm hmac-sha256; secret \"!!\"; };", None).contains("base64"));
    }
}
