//! Who this host is: its static key, made at the first start.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use whimbrel_handshake::StaticKey;
use zeroize::Zeroizing;

use super::files::{FileError, replace_secret};

/// Where the key is kept when nobody says otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/whimbrel";

/// Names the life of this namespace's sockets (protocol.md P-47): another number after the machine was started anew,
/// the same as long as a socket may live. 0 where that cannot be told.
#[must_use]
pub fn life() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    match (u128::from_str_radix(&digits, 16), whimbrel_kernel::namespace::cookie()) {
        (Ok(boot), Ok(namespace)) => mix((boot >> 64) as u64 ^ mix(boot as u64 ^ mix(namespace))),
        _ => 0,
    }
}

/// SplitMix64's finaliser (Steele et al., 2014): it has to be the same with every release, or upgrades would end
/// connections.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The host's key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// Others may read the key.
    #[error(
        "{path} holds this host's secret key and is open to others (mode {mode:04o}); close it with `chmod 600 {path}`, \
         or, where somebody may have read it, remove it, so that a new one is made at the next start"
    )]
    Open {
        /// The key's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file does not hold a key.
    #[error(
        "{path} must hold 32 bytes and has {length}; restore it, or remove it, so that a new key is made (peers that remember the old one will then refuse this host)"
    )]
    Damaged {
        /// The key's file.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for a key")]
    Random,
}

/// Reads this host's key from the state directory; makes both where they are missing.
///
/// # Errors
/// When the key cannot be read or made, or others may read it.
pub fn load_or_create(state_dir: &Path) -> Result<StaticKey, IdentityError> {
    DirBuilder::new().recursive(true).mode(0o700).create(state_dir).map_err(FileError::of("make", state_dir))?;
    let path = state_dir.join("key");
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return create(&path),
        Err(error) => return Err(FileError::of("look at", &path)(error).into()),
    };
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::Open { path, mode });
    }
    let bytes = fs::read(&path).map(Zeroizing::new).map_err(FileError::of("read", &path))?;
    match <[u8; 32]>::try_from(bytes.as_slice()) {
        Ok(bytes) => Ok(StaticKey::from_bytes(bytes)),
        Err(_) => Err(IdentityError::Damaged { path, length: bytes.len() }),
    }
}

/// 32 random bytes from the system.
///
/// # Errors
/// When it gives none.
pub fn random_bytes() -> Result<[u8; 32], IdentityError> {
    let mut bytes = [0; 32];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes).map_err(|_| IdentityError::Random)?;
    Ok(bytes)
}

fn create(path: &Path) -> Result<StaticKey, IdentityError> {
    let bytes = Zeroizing::new(random_bytes()?);
    // Whole or not at all: a first start that is cut short must not leave half a key.
    replace_secret(path, bytes.as_slice())?;
    Ok(StaticKey::from_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_key_is_made_once_and_must_be_closed_to_others() {
        let folder = std::env::temp_dir().join(format!("whimbrel-identity-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let first = load_or_create(&folder).expect("made");
        let second = load_or_create(&folder).expect("read");
        assert_eq!(first.public(), second.public());
        let path = folder.join("key");
        assert_eq!(fs::metadata(&path).expect("key").mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folder).expect("folder").mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(load_or_create(&folder).expect_err("open to others").to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::write(&path, "short").expect("write");
        assert!(load_or_create(&folder).expect_err("damaged").to_string().contains("has 5"));
        fs::remove_dir_all(&folder).expect("remove");
    }
}
