//! Sockets that programs hand to the daemon or get from it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::{Flow, PeerName, Process};

/// What a program may hand over with a socket, in bytes.
pub const MAX_STATE: usize = 1 << 20;
/// The longest name under which sockets are received, in bytes.
pub const MAX_RECEIVER: usize = 64;
/// Names of connections that a request may have, each counted once.
pub const MAX_NAMES: usize = 256;
/// How long a socket waits for a program to ask for it ([`Request::Rebuild`](crate::Request::Rebuild)), that its own
/// has given to the daemon or that has come from another host where nobody receives it.
pub const WAITS_FOR: Duration = Duration::from_secs(300);

/// Names a socket for its life, wherever it is (SOCKMAND §4.3). It is drawn by lot, and who knows it may ask for the
/// socket where that waits for its program: no more than that program's own state is to hold it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// Of random bytes (RFC 9562 §5.4: version 4, six bits of which are fixed). The first bit is 0, so that the first
    /// eight digits are a positive number of 31 bits: SOCKMAND's UUID.
    #[must_use]
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[0] &= 0x7f;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// As it is.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, in the order in which they are written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// No UUID as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no UUID: 32 hexadecimal digits as 8-4-4-4-12")]
pub struct MalformedUuid;

impl FromStr for Uuid {
    type Err = MalformedUuid;

    fn from_str(text: &str) -> Result<Self, MalformedUuid> {
        let groups: Vec<&str> = text.split('-').collect();
        if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
            return Err(MalformedUuid);
        }
        let digits: String = groups.concat();
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(MalformedUuid);
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| MalformedUuid)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
    }
}

impl TryFrom<String> for Uuid {
    type Error = MalformedUuid;

    fn try_from(text: String) -> Result<Self, MalformedUuid> {
        text.parse()
    }
}

/// What a program hands over with a socket: bytes that mean something to it alone. At most [`MAX_STATE`]; Base64 in
/// JSON.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct State(Vec<u8>);

/// More than [`MAX_STATE`] bytes, or no Base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuchState {
    /// It is too long.
    #[error("a program can hand over at most {MAX_STATE} bytes with a socket")]
    TooLong,
    /// It is not Base64.
    #[error("this is no Base64 (RFC 4648 §4, with padding)")]
    Malformed,
}

impl State {
    /// # Errors
    /// [`TooMuchState::TooLong`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, TooMuchState> {
        if bytes.len() > MAX_STATE { Err(TooMuchState::TooLong) } else { Ok(Self(bytes)) }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be secret, and is long.
        write!(f, "State({} bytes)", self.0.len())
    }
}

impl From<State> for String {
    fn from(state: State) -> Self {
        STANDARD.encode(state.0)
    }
}

impl TryFrom<String> for State {
    type Error = TooMuchState;

    fn try_from(text: String) -> Result<Self, TooMuchState> {
        Self::new(STANDARD.decode(text).map_err(|_| TooMuchState::Malformed)?)
    }
}

/// Of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// AF_INET.
    Ipv4,
    /// AF_INET6.
    Ipv6,
}

/// Of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketKind {
    /// SOCK_STREAM: TCP.
    Stream,
    /// SOCK_DGRAM: UDP.
    Datagram,
}

/// A socket that comes to the program with this line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeSocket {
    /// Its name.
    pub uuid: Uuid,
    /// Whose address it has: `self`, or the key of a host.
    pub anchor: String,
}

/// A socket that a program has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSocket {
    /// Its name.
    pub uuid: Uuid,
    /// The descriptors that the process has of it.
    pub descriptors: Vec<u32>,
    /// Its family.
    pub family: Family,
    /// Its kind.
    pub kind: SocketKind,
    /// Its own address and port; port 0 where it is not bound.
    pub local: SocketAddr,
    /// The other end's, where it is connected.
    pub remote: Option<SocketAddr>,
    /// Whether it listens.
    pub listening: bool,
    /// Why it cannot be moved, where that is known beforehand.
    pub reason: Option<String>,
}

/// A socket that came from another host, with this line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// The name under which it was received.
    pub name: String,
    /// Who gave it.
    pub from: PeerName,
    /// As the socket has it; the remote end is the unspecified address and port 0 where it is not connected.
    pub flow: Flow,
    /// The socket's name.
    pub uuid: Uuid,
    /// What the program there has handed over with it.
    #[serde(default)]
    pub state: State,
}

/// A socket that is with another host now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// As the socket had it here.
    pub flow: Flow,
    /// Its name.
    pub uuid: Uuid,
    /// Who has it.
    pub to: PeerName,
}

/// What goes with a process that is given to another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessScope {
    /// Nothing: it may have no children.
    #[default]
    Alone,
    /// All its descendants.
    Tree,
    /// All of its cgroup.
    Cgroup,
}

/// A process that is with another host now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedProcess {
    /// Its number here; of several, that of the first.
    pub pid: u32,
    /// Its program's name.
    pub name: String,
    /// Who has it.
    pub to: PeerName,
    /// How many connections went with it.
    pub connections: usize,
    /// Those that were lost on the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Flow>,
    /// Where it waits for others, and is reached there as it was here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub met_at: Vec<SocketAddr>,
    /// How long it stood still, as seen from here, in milliseconds; absent where the other host did not say when it
    /// went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still_ms: Option<u64>,
    /// Its number there, where the other host has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_there: Option<u32>,
    /// Where it waits for others, and is not reached any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deaf: Vec<SocketAddr>,
}

/// A socket that did not move: it stayed, and goes on, unless it is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// As the socket has it; the remote end is the unspecified address and port 0 where it is not connected.
    pub flow: Flow,
    /// Its name.
    pub uuid: Uuid,
    /// Why, as a sentence without its full stop.
    pub reason: String,
    /// It is over, or nobody has said that it goes on anywhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// The latter: it may go on there, and an event tells where its host says so later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unheard: bool,
}

/// A question to the migrator: which host is to be the anchor of a program's socket?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedAnchor {
    /// Names the question.
    pub question: u64,
    /// What the program has asked for.
    pub policy: u32,
    /// Which program.
    pub process: Process,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_text() {
        let uuid = Uuid::from_random([0xff; 16]);
        assert_eq!(uuid.to_string(), "7fffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        for text in [
            "",
            "ffffffff-ffff-4fff-bfff-fffffffffff",
            "ffffffffffff4fffbfffffffffffffff",
            "+fffffff-ffff-4fff-bfff-ffffffffffff",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(MalformedUuid), "{text}");
        }
    }

    #[test]
    fn state_is_bounded_and_base64() {
        let state = State::new(vec![0, 1, 255]).expect("short");
        assert_eq!(serde_json::to_string(&state).expect("json"), "\"AAH/\"");
        assert_eq!(serde_json::from_str::<State>("\"AAH/\"").expect("state"), state);
        assert!(serde_json::from_str::<State>("\"A\"").is_err());
        assert_eq!(State::new(vec![0; MAX_STATE + 1]), Err(TooMuchState::TooLong));
        let line = format!("\"{}\"", STANDARD.encode(vec![0; MAX_STATE]));
        assert_eq!(serde_json::from_str::<State>(&line).expect("just so").as_bytes().len(), MAX_STATE);
    }
}
