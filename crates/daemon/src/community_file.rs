//! The community that this host belongs to, in the state directory: who belongs to it, and at a steward its secret key.
//!
//! ```text
//! whimbrel community 1
//! community KEY
//! secret KEY                                      at a steward
//! host KEY SERIAL STANDING SIGNATURE PLACE NAME   for each; PLACE is an endpoint, or -
//! end
//! ```
//! Keys and signatures are hexadecimal. Whether the statements are genuine is the node's business; the last line tells
//! that none is missing.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use whimbrel_protocol::SavedCommunity;
use whimbrel_wire::community::{CommunitySecret, MemberStanding, Statement};
use whimbrel_wire::hex::{parse as bytes, print as hex};
use zeroize::Zeroizing;

use crate::store::files::{FileError, remove, replace_secret};

const HEAD: &str = "whimbrel community 1";
/// Longer than the file of the largest community, in bytes.
const LONGEST: u64 = 1 << 20;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CommunityFileError {
    /// It could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// Others may read or write it.
    #[error(
        "{path} says whom this host trusts, and is open to others (mode {mode:04o}); close it with `chmod 600 {path}`, or, \
         where somebody may have changed it, remove it and join the community anew"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is another version's.
    #[error(
        "{0} does not begin with `{HEAD}`: another release has written it, or it is damaged. Restore it, or remove it and join \
         the community anew"
    )]
    Version(PathBuf),
    /// It makes no sense. Nothing of it is used: what is missing may be that a host was revoked.
    #[error("{path}:{line}: {what}; restore the file, or remove it and join the community anew")]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A statement is not signed by the community.
    #[error(
        "{0} holds a statement that the community has not signed: it was changed by hand, or is damaged. Restore it, or remove it \
         and join the community anew"
    )]
    Forged(PathBuf),
}

/// The file.
#[derive(Debug)]
pub(crate) struct CommunityFile {
    path: PathBuf,
}

impl CommunityFile {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("community") }
    }

    pub(crate) fn forged(&self) -> CommunityFileError {
        CommunityFileError::Forged(self.path.clone())
    }

    /// What it says; `None` where there is none.
    pub(crate) fn read(&self) -> Result<Option<SavedCommunity>, CommunityFileError> {
        let path = &self.path;
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::of("look at", path)(error).into()),
        };
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CommunityFileError::Open { path: path.clone(), mode });
        }
        if metadata.len() > LONGEST {
            return Err(CommunityFileError::Line { path: path.clone(), line: 1, what: "it is too long" });
        }
        let bytes = fs::read(path).map(Zeroizing::new).map_err(FileError::of("read", path))?;
        let text = String::from_utf8_lossy(&bytes);
        if text.lines().next() != Some(HEAD) {
            return Err(CommunityFileError::Version(path.clone()));
        }
        parse(&text).map(Some).map_err(|(line, what)| CommunityFileError::Line { path: path.clone(), line, what })
    }

    /// Replaces it, so that it outlives a power failure.
    pub(crate) fn write(&self, saved: &SavedCommunity) -> Result<(), CommunityFileError> {
        Ok(replace_secret(&self.path, Zeroizing::new(print(saved)).as_bytes())?)
    }

    /// Removes it.
    pub(crate) fn remove(&self) -> Result<(), CommunityFileError> {
        Ok(remove(&self.path).map_err(FileError::of("remove", &self.path))?)
    }
}

fn print(saved: &SavedCommunity) -> String {
    let mut text = format!("{HEAD}\ncommunity {}\n", hex(&saved.community));
    if let Some(secret) = &saved.secret {
        // Writing to a string does not fail.
        let _ = writeln!(text, "secret {}", hex(&secret.0));
    }
    for (statement, at) in &saved.statements {
        let at = at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        let Statement { host, serial, standing, name, signature } = statement;
        let _ = writeln!(text, "host {} {serial} {} {} {at} {name}", hex(host), standing.number(), hex(signature));
    }
    text.push_str("end\n");
    text
}

/// What the text says, or the line that is wrong, and why.
fn parse(text: &str) -> Result<SavedCommunity, (usize, &'static str)> {
    let mut community = None;
    let mut secret = None;
    let mut statements = Vec::new();
    let mut ended = false;
    let mut last = 1;
    for (index, line) in text.lines().enumerate().skip(1) {
        last = index + 1;
        let wrong = |what| (index + 1, what);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            _ if ended => return Err(wrong("something follows the end")),
            "community" => community = Some(bytes(rest).ok_or(wrong("not a key of 64 hexadecimal digits"))?),
            "secret" => {
                let bytes = bytes(rest).ok_or(wrong("not a key of 64 hexadecimal digits"))?;
                secret = Some(CommunitySecret(bytes));
            }
            "host" => statements.push(host(rest).ok_or(wrong("not what is to be told of a host"))?),
            "end" => ended = true,
            _ => return Err(wrong("no word of this file")),
        }
    }
    if !ended || !text.ends_with('\n') {
        return Err((last, "the end of the file is missing"));
    }
    let community = community.ok_or((last, "the community's key is missing"))?;
    Ok(SavedCommunity { community, secret, statements })
}

fn host(text: &str) -> Option<(Statement, Option<SocketAddr>)> {
    let mut parts = text.splitn(6, ' ');
    let host = bytes(parts.next()?)?;
    let serial = parts.next()?.parse().ok()?;
    let standing = MemberStanding::from_number(parts.next()?.parse().ok()?);
    let signature = bytes(parts.next()?)?;
    let at = match parts.next()? {
        "-" => None,
        at => Some(at.parse().ok()?),
    };
    let name = parts.next()?.to_owned();
    Some((Statement { host, serial, standing, name, signature }, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn saved() -> SavedCommunity {
        let statement = |number: u8, name: &str| Statement {
            host: [number; 32],
            serial: number.into(),
            standing: MemberStanding::from_number(number),
            name: name.to_owned(),
            signature: [number ^ 0xff; 64],
        };
        SavedCommunity {
            community: [7; 32],
            secret: Some(CommunitySecret([9; 32])),
            statements: vec![
                (statement(0, "living room"), None),
                (statement(1, " ü "), "192.0.2.7:2031".parse().ok()),
                (statement(2, "-"), "[2001:db8::7]:2031".parse().ok()),
            ],
        }
    }

    fn file(of: &str) -> CommunityFile {
        let folder = std::env::temp_dir().join(format!("whimbrel-community-{of}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("folder");
        CommunityFile::new(&folder)
    }

    fn done(file: &CommunityFile) {
        fs::remove_dir_all(file.path.parent().expect("folder")).expect("remove");
    }

    #[test]
    fn what_is_written_is_read() {
        let file = file("round");
        assert!(file.read().expect("none").is_none());
        for saved in [saved(), SavedCommunity { secret: None, statements: Vec::new(), ..saved() }] {
            file.write(&saved).expect("write");
            assert_eq!(file.read().expect("read"), Some(saved));
            let mode = fs::metadata(&file.path).expect("metadata").mode() & 0o777;
            assert_eq!(mode, 0o600);
        }
        file.remove().expect("remove");
        file.remove().expect("twice");
        assert!(file.read().expect("none").is_none());
        done(&file);
    }

    #[test]
    fn nothing_of_a_damaged_file_is_used() {
        let file = file("damaged");
        file.write(&saved()).expect("write");
        let whole = fs::read_to_string(&file.path).expect("read");
        let write = |text: &str| {
            fs::write(&file.path, text).expect("write");
        };
        for length in 0..whole.len() {
            if whole.is_char_boundary(length) {
                write(&whole[..length]);
                assert!(file.read().is_err(), "cut after {length} bytes");
            }
        }
        for (old, new) in [("host 00", "host 0x"), ("end", "stop"), ("community 1", "community 2"), (" 2 ", " -2 ")] {
            write(&whole.replacen(old, new, 1));
            assert!(file.read().is_err(), "{new}");
        }
        let error = |text: &str| {
            write(text);
            file.read().expect_err("damaged").to_string()
        };
        assert!(error(&whole.replace("whimbrel", "whale")).contains("another release"));
        assert!(error(&format!("{whole}host")).contains(":8: something follows the end"));
        write(&whole);
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(file.read().expect_err("open").to_string().contains("chmod 600"));
        done(&file);
    }
}
