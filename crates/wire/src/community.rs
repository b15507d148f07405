//! What hosts say to one another about whose they are: `docs/protocol.md` §10.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::codec::{ENDPOINT_LEN, Malformed, Reader};
use crate::codec::{put_endpoint, put_u16, put_u32};
use crate::message::byte_enum;
use crate::moving::Key;

/// A community is named by the public key (Ed25519, RFC 8032) that its statements are signed with.
pub type CommunityKey = [u8; 32];
/// An Ed25519 signature.
pub type Signature = [u8; 64];
/// What one end of a SPAKE2 exchange says, without the byte that tells its side (RFC 9382 calls it pA and pB).
pub type Element = [u8; 32];
/// A MAC under the key that such an exchange came to.
pub type Proof = [u8; 32];
/// What all statements of a roster together hash to.
pub type RosterDigest = [u8; 16];

/// The secret half of a community's key, as 32 bytes of seed. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct CommunitySecret(pub [u8; 32]);

impl Drop for CommunitySecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for CommunitySecret {}

impl fmt::Debug for CommunitySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommunitySecret")
    }
}

byte_enum! {
    /// What a host is to a community.
    MemberStanding {
        /// It was one of its hosts, and is no more.
        Revoked = 0,
        /// One of its hosts.
        Member = 1,
        /// One that may invite and revoke as well.
        Steward = 2,
    }
}

/// What is said of one host, signed with the community's key (P-80).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The host's static key.
    pub host: Key,
    /// Rises with each statement about this host.
    pub serial: u32,
    /// What it is.
    pub standing: MemberStanding,
    /// What people call it; 1 to [`MAX_NAME`] bytes, none of them a control character.
    pub name: String,
    /// Over all before it and the community's key.
    pub signature: Signature,
}

byte_enum! {
    /// What a code is to be used for.
    JoinPurpose {
        /// To become a member.
        Membership = 0,
        /// To receive one connection, once.
        Connection = 1,
    }
}

byte_enum! {
    /// Why a code is not taken.
    JoinRefusal {
        /// No code of this number is valid: there never was one, it was used, or its time is over.
        NoSuchCode = 1,
        /// The code is wrong; there is no other guess at it.
        WrongCode = 2,
        /// Too many are asking at the moment.
        Busy = 3,
        /// The code is for something else.
        OtherPurpose = 4,
        /// The community has as many hosts as it may have.
        Full = 5,
        /// Another of its hosts is called as the joiner wants to be.
        NameTaken = 6,
    }
}

/// A word about a community.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Type 0x60: the sender has been told a code of this number.
    Join {
        /// Of the code.
        number: u16,
        /// What for.
        purpose: JoinPurpose,
        /// The joiner's side of the exchange.
        element: Element,
    },
    /// Type 0x61: the answer to that.
    JoinAnswer {
        /// Of the code.
        number: u16,
        /// The inviter's side of the exchange.
        element: Element,
    },
    /// Type 0x62: the joiner knows the code.
    JoinProof {
        /// Of the code.
        number: u16,
        /// Over the name.
        proof: Proof,
        /// What people call the joiner; as in a [`Statement`].
        name: String,
    },
    /// Type 0x63: so does the inviter, and what the code was for is done.
    Joined(Joined),
    /// Type 0x64: nothing comes of it.
    JoinRefused {
        /// Of the code.
        number: u16,
        /// Why.
        refusal: JoinRefusal,
    },
    /// Type 0x65: what the sender knows of a community.
    RosterState {
        /// Which.
        community: CommunityKey,
        /// Of all statements that it knows.
        digest: RosterDigest,
        /// Whether it wants to know what the receiver knows.
        asks: bool,
    },
    /// Type 0x66: statements.
    Roster {
        /// About the hosts of which community.
        community: CommunityKey,
        /// Each with where the sender knows the host to be. What is beyond [`MAX_STATEMENTS`] is not sent.
        statements: Vec<(Statement, Option<SocketAddr>)>,
    },
}

/// What a joiner is told at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Of the code.
    pub number: u16,
    /// Over all behind it.
    pub proof: Proof,
    /// The community's key; zeros where the code was for a connection.
    pub community: CommunityKey,
    /// The secret half of it, for a steward.
    pub secret: Option<CommunitySecret>,
    /// How long the connection may be received, in seconds; 0 where the code was for something else.
    pub lifetime: u32,
}

/// Longest name of a host, in bytes.
pub const MAX_NAME: usize = 63;
/// Most statements in one message.
pub const MAX_STATEMENTS: usize = 5;

pub(crate) const FIRST_TYPE: u8 = JOIN;
pub(crate) const LAST_TYPE: u8 = ROSTER;

const JOIN: u8 = 0x60;
const JOIN_ANSWER: u8 = 0x61;
const JOIN_PROOF: u8 = 0x62;
const JOINED: u8 = 0x63;
const JOIN_REFUSED: u8 = 0x64;
const ROSTER_STATE: u8 = 0x65;
const ROSTER: u8 = 0x66;

/// What a statement's signature begins with, so that it can be taken for no other.
const SIGNED_AS: &[u8] = b"whimbrel 1 member";

/// Whether a host may be called so.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// A name cut to the length that it may have.
fn fitting(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    let name = fitting(name);
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

fn read_name(body: &mut Reader<'_>) -> Result<String, Malformed> {
    let no_name = body.malformed("name of a host");
    let length = usize::from(body.u8("length of a name")?);
    let name = core::str::from_utf8(body.bytes(length, "name of a host")?).map_err(|_| no_name)?;
    if is_name(name) { Ok(name.into()) } else { Err(no_name) }
}

impl Statement {
    /// What the signature is over.
    #[must_use]
    pub fn signed(&self, community: &CommunityKey) -> Vec<u8> {
        let mut out = Vec::from(SIGNED_AS);
        out.extend_from_slice(community);
        self.put_claim(&mut out);
        out
    }

    /// Appends it as it is on the wire.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.put_claim(out);
        out.extend_from_slice(&self.signature);
    }

    /// Reads what [`Self::put`] writes.
    ///
    /// # Errors
    /// It is cut off, or the name is none.
    pub fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            host: *body.array("key of a host")?,
            serial: body.u32("serial of a statement")?,
            standing: MemberStanding::from_number(body.u8("standing of a host")?),
            name: read_name(body)?,
            signature: *body.array("signature of a statement")?,
        })
    }

    fn put_claim(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.host);
        put_u32(out, self.serial);
        out.push(self.standing.number());
        put_name(out, &self.name);
    }

    fn encoded_len(&self) -> usize {
        32 + 4 + 1 + 1 + fitting(&self.name).len() + 64
    }
}

impl Joined {
    /// What the proof is over.
    #[must_use]
    pub fn proven(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.community);
        out.push(u8::from(self.secret.is_some()));
        out.extend_from_slice(&self.secret.as_ref().map_or([0; 32], |secret| secret.0));
        put_u32(&mut out, self.lifetime);
        out
    }
}

impl Word {
    pub(crate) fn type_number(&self) -> u8 {
        match self {
            Self::Join { .. } => JOIN,
            Self::JoinAnswer { .. } => JOIN_ANSWER,
            Self::JoinProof { .. } => JOIN_PROOF,
            Self::Joined(_) => JOINED,
            Self::JoinRefused { .. } => JOIN_REFUSED,
            Self::RosterState { .. } => ROSTER_STATE,
            Self::Roster { .. } => ROSTER,
        }
    }

    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            Self::Join { .. } => 2 + 1 + 32,
            Self::JoinAnswer { .. } => 2 + 32,
            Self::JoinProof { name, .. } => 2 + 32 + 1 + fitting(name).len(),
            Self::Joined(_) => 2 + 32 + 32 + 1 + 32 + 4,
            Self::JoinRefused { .. } => 3,
            Self::RosterState { .. } => 32 + 16 + 1,
            Self::Roster { statements, .. } => {
                let told = statements.iter().take(MAX_STATEMENTS);
                32 + 1 + told.map(|(statement, _)| statement.encoded_len() + ENDPOINT_LEN).sum::<usize>()
            }
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Join { number, purpose, element } => {
                put_u16(out, *number);
                out.push(purpose.number());
                out.extend_from_slice(element);
            }
            Self::JoinAnswer { number, element } => {
                put_u16(out, *number);
                out.extend_from_slice(element);
            }
            Self::JoinProof { number, proof, name } => {
                put_u16(out, *number);
                out.extend_from_slice(proof);
                put_name(out, name);
            }
            Self::Joined(joined) => {
                put_u16(out, joined.number);
                out.extend_from_slice(&joined.proof);
                out.extend_from_slice(&joined.proven());
            }
            Self::JoinRefused { number, refusal } => {
                put_u16(out, *number);
                out.push(refusal.number());
            }
            Self::RosterState { community, digest, asks } => {
                out.extend_from_slice(community);
                out.extend_from_slice(digest);
                out.push(u8::from(*asks));
            }
            Self::Roster { community, statements } => {
                out.extend_from_slice(community);
                let statements = &statements[..statements.len().min(MAX_STATEMENTS)];
                out.push(statements.len() as u8);
                for (statement, at) in statements {
                    statement.put(out);
                    put_endpoint(out, at.unwrap_or(NOWHERE));
                }
            }
        }
    }

    /// Reads the body of a message whose type is one of these.
    pub(crate) fn read(number: u8, body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match number {
            JOIN => Self::Join {
                number: body.u16("number of a code")?,
                purpose: JoinPurpose::from_number(body.u8("purpose of a code")?),
                element: *body.array("joiner's element")?,
            },
            JOIN_ANSWER => {
                Self::JoinAnswer { number: body.u16("number of a code")?, element: *body.array("inviter's element")? }
            }
            JOIN_PROOF => Self::JoinProof {
                number: body.u16("number of a code")?,
                proof: *body.array("joiner's proof")?,
                name: read_name(body)?,
            },
            JOINED => Self::Joined(Joined {
                number: body.u16("number of a code")?,
                proof: *body.array("inviter's proof")?,
                community: *body.array("community's key")?,
                secret: read_secret(body)?,
                lifetime: body.u32("lifetime")?,
            }),
            JOIN_REFUSED => Self::JoinRefused {
                number: body.u16("number of a code")?,
                refusal: JoinRefusal::from_number(body.u8("refusal of a code")?),
            },
            ROSTER_STATE => Self::RosterState {
                community: *body.array("community's key")?,
                digest: *body.array("digest of a roster")?,
                asks: read_flag(body, "whether it asks")?,
            },
            _ => {
                let community = *body.array("community's key")?;
                let too_many = body.malformed("count of statements");
                let count = usize::from(body.u8("count of statements")?);
                if count > MAX_STATEMENTS {
                    return Err(too_many);
                }
                let mut statements = Vec::new();
                for _ in 0..count {
                    let statement = Statement::read(body)?;
                    let no_endpoint = body.malformed("endpoint of a host");
                    let at = body.endpoint("endpoint of a host")?;
                    if at.port() == 0 && at != NOWHERE {
                        return Err(no_endpoint);
                    }
                    statements.push((statement, (at != NOWHERE).then_some(at)));
                }
                Self::Roster { community, statements }
            }
        })
    }
}

/// Where a host is that the sender does not know to be anywhere.
const NOWHERE: SocketAddr = SocketAddr::new(core::net::IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED), 0);

fn read_flag(body: &mut Reader<'_>, what: &'static str) -> Result<bool, Malformed> {
    let not_boolean = body.malformed(what);
    match body.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(not_boolean),
    }
}

fn read_secret(body: &mut Reader<'_>) -> Result<Option<CommunitySecret>, Malformed> {
    let not_zero = body.malformed("community's secret");
    let given = read_flag(body, "whether the secret is given")?;
    let secret: [u8; 32] = *body.array("community's secret")?;
    // One spelling only.
    if !given && secret != [0; 32] {
        return Err(not_zero);
    }
    Ok(given.then_some(CommunitySecret(secret)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::message::decode_all;
    use alloc::vec;

    fn statement(name: &str) -> Statement {
        Statement { host: [1; 32], serial: 7, standing: MemberStanding::Member, name: name.into(), signature: [9; 64] }
    }

    fn words() -> Vec<Word> {
        let at = "192.0.2.7:2031".parse().ok();
        vec![
            Word::Join { number: 7, purpose: JoinPurpose::Membership, element: [3; 32] },
            Word::JoinAnswer { number: 7, element: [4; 32] },
            Word::JoinProof { number: 7, proof: [5; 32], name: "laptop".into() },
            Word::Joined(Joined { number: 7, proof: [6; 32], community: [7; 32], secret: None, lifetime: 0 }),
            Word::Joined(Joined {
                number: 7,
                proof: [6; 32],
                community: [7; 32],
                secret: Some(CommunitySecret([8; 32])),
                lifetime: 3600,
            }),
            Word::JoinRefused { number: 7, refusal: JoinRefusal::WrongCode },
            Word::RosterState { community: [7; 32], digest: [2; 16], asks: true },
            Word::Roster { community: [7; 32], statements: vec![(statement("a"), at), (statement("ü"), None)] },
        ]
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in words() {
            let message = Message::Community(word);
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(bytes.len(), message.encoded_len(), "{message:?}");
            assert_eq!(decode_all(&bytes), Ok(vec![message.clone()]));
            for length in 1..bytes.len() {
                assert!(decode_all(&bytes[..length]).is_err(), "{length} bytes of {message:?}");
            }
            // A body that is too long by a byte.
            let length = u16::from_be_bytes([bytes[1], bytes[2]]) + 1;
            bytes[1..3].copy_from_slice(&length.to_be_bytes());
            bytes.push(0);
            assert!(decode_all(&bytes).is_err(), "one more byte of {message:?}");
        }
    }

    #[test]
    fn a_full_roster_fits_a_datagram() {
        let statements = vec![(statement(&"n".repeat(MAX_NAME)), None); MAX_STATEMENTS + 1];
        let message = Message::Community(Word::Roster { community: [0; 32], statements });
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert!(bytes.len() <= 1200, "{}", bytes.len());
        assert_eq!(bytes.len(), message.encoded_len());
        let read = decode_all(&bytes).unwrap();
        assert!(matches!(&read[..], [Message::Community(Word::Roster { statements, .. })] if statements.len() == 5));
    }

    #[test]
    fn a_name_is_text_for_people() {
        assert!(is_name("living room") && is_name("ü"));
        assert!(!is_name("") && !is_name("a\u{1b}[2J") && !is_name(&"n".repeat(MAX_NAME + 1)));
        for name in [&b"\x1b"[..], b"", b"\xff", b"\n"] {
            let mut body = vec![7, 0];
            body[0] = 0;
            body.extend_from_slice(&[5; 32]);
            body.push(name.len() as u8);
            body.extend_from_slice(name);
            let mut bytes = vec![JOIN_PROOF];
            bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
            bytes.extend_from_slice(&body);
            assert!(decode_all(&bytes).is_err(), "{name:?}");
        }
        // One that is too long is cut where a character ends.
        let mut bytes = Vec::new();
        Message::Community(Word::JoinProof { number: 1, proof: [0; 32], name: "ü".repeat(40) }).encode(&mut bytes);
        assert!(decode_all(&bytes).is_ok());
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(alloc::format!("{:?}", CommunitySecret([7; 32])), "CommunitySecret");
    }
}
