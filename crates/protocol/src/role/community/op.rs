//! What a community asks its caller for, and what it tells.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::{CommunityKey, MemberStanding};

/// The beginning of a key that names a host has at least so many characters.
const NAMING: usize = 6;

/// What a code is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offered {
    /// To join the community.
    Membership {
        /// Whether as one that may invite and revoke.
        steward: bool,
    },
    /// To be given a connection, once.
    Connection {
        /// As this host's socket has it.
        flow: FlowTuple,
    },
}

/// Why something about a community is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommunityRefused {
    /// There is no community here.
    #[error("this host belongs to no community")]
    NotIn,
    /// There is one.
    #[error("this host belongs to a community already")]
    AlreadyIn,
    /// It lacks the community's secret key.
    #[error("this host is no steward of its community, and only stewards invite and revoke")]
    NotSteward,
    /// The community has no such host.
    #[error("the community has no such host")]
    NoSuchHost,
    /// A steward does not revoke itself.
    #[error("a host does not revoke itself")]
    Itself,
    /// Too many codes and grants are open.
    #[error("too many codes and grants are open")]
    TooMany,
    /// Something is being joined.
    #[error("another code is being used at this host just now")]
    Joining,
    /// The code was shown to somebody here before.
    #[error(
        "this host has shown to another host before that it has this code, and was not let in: a code is good for one such try"
    )]
    Spent,
    /// Only configured keys are trusted.
    #[error("this host is configured to trust named keys only (`trust = \"pinned\"`), so codes are of no use")]
    Pinned,
    /// A host may not be called so.
    #[error("a host's name has 1 to 63 bytes and no control characters")]
    NoName,
    /// This host moves no sockets.
    #[error("this host is not configured to move sockets")]
    NoMoves,
    /// There is no such connection.
    #[error("there is no such connection")]
    NoSuchConnection,
    /// What was saved, or made, is not the community's.
    #[error("a statement about the community's hosts is not signed by it")]
    Forged,
}

/// A community, as a host knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunityView {
    /// Which, if there is one.
    pub community: Option<CommunityKey>,
    /// What this host is in it.
    pub standing: Option<MemberStanding>,
    /// All hosts that something is known of, sorted by their keys.
    pub hosts: Vec<HostView>,
    /// Codes that nobody has used.
    pub offers: Vec<OfferView>,
    /// Connections that strangers may be given, or this host may be.
    pub grants: Vec<GrantView>,
}

impl CommunityView {
    /// The hosts that people may mean by this: those of that name, or key, and else of the same name in another case.
    /// One that was revoked has no name that others have.
    #[must_use]
    pub fn called(&self, what: &str) -> Vec<&HostView> {
        let same = |host: &HostView| host.is_called(what);
        let alike = |host: &HostView| host.name.to_lowercase() == what.to_lowercase();
        let belongs = |host: &HostView| host.standing != MemberStanding::Revoked;
        let of = |is: &dyn Fn(&HostView) -> bool| self.hosts.iter().filter(|host| is(host)).collect::<Vec<_>>();
        let tries = [of(&|host| same(host) && belongs(host)), of(&|host| alike(host) && belongs(host)), of(&same)];
        tries.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The same for what cannot be taken back: where a host has this very name or key, be it one that was revoked, none
    /// of a name in another case is meant.
    #[must_use]
    pub fn called_exactly(&self, what: &str) -> Vec<&HostView> {
        let exact: Vec<&HostView> = self.hosts.iter().filter(|host| host.is_called(what)).collect();
        let mut found = self.called(what);
        found.retain(|host| exact.is_empty() || host.is_called(what));
        if found.is_empty() { exact } else { found }
    }
}

/// A host of a community.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its key.
    pub key: PublicKey,
    /// What people call it.
    pub name: String,
    /// What it is.
    pub standing: MemberStanding,
    /// It is this host.
    pub here: bool,
    /// Where it is, or was last.
    pub at: Option<SocketAddr>,
    /// Whether there is a session with it.
    pub session: bool,
    /// Whether it is known to know all that this host knows.
    pub knows: bool,
}

impl HostView {
    /// Whether this is its name, its key, or the beginning of that.
    fn is_called(&self, what: &str) -> bool {
        self.name == what || (what.len() >= NAMING && self.key.to_string().starts_with(what))
    }
}

/// A code that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferView {
    /// Its number.
    pub number: u16,
    /// What it is for.
    pub what: Offered,
    /// How long it is good.
    pub left: Duration,
}

/// That one connection may go to a stranger, or come from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// Its number.
    pub number: u16,
    /// The stranger.
    pub host: PublicKey,
    /// The connection, as this host's socket has it; `None` where this host may receive one.
    pub flow: Option<FlowTuple>,
    /// How long it is good.
    pub left: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_without_regard_to_case_unless_one_has_just_that_name() {
        let host = |number: u8, name: &str, standing| HostView {
            key: PublicKey::from([number; 32]),
            name: name.to_owned(),
            standing,
            here: false,
            at: None,
            session: false,
            knows: false,
        };
        let hosts = vec![
            host(1, "Tablet", MemberStanding::Member),
            host(2, "desk", MemberStanding::Steward),
            host(3, "Desk", MemberStanding::Member),
            host(4, "tablet", MemberStanding::Revoked),
            host(5, "old", MemberStanding::Revoked),
        ];
        let view = CommunityView { community: None, standing: None, hosts, offers: Vec::new(), grants: Vec::new() };
        let called = |what: &str| -> Vec<u8> { view.called(what).iter().map(|host| host.key.as_bytes()[0]).collect() };
        assert_eq!((called("Tablet"), called("tablet"), called("TABLET")), (vec![1], vec![1], vec![1]));
        assert_eq!((called("desk"), called("Desk"), called("DESK")), (vec![2], vec![3], vec![2, 3]));
        assert_eq!((called("old"), called("Old"), called("lap")), (vec![5], vec![], vec![]));
        let key = PublicKey::from([4; 32]).to_string();
        assert_eq!((called(&key), called(&key[..NAMING])), (vec![4], vec![4]));
        // What cannot be taken back is done to nobody else.
        let exactly =
            |what: &str| -> Vec<u8> { view.called_exactly(what).iter().map(|host| host.key.as_bytes()[0]).collect() };
        assert_eq!((exactly("Tablet"), exactly("tablet"), exactly("TABLET")), (vec![1], vec![4], vec![1]));
        assert_eq!((exactly("desk"), exactly("DESK"), exactly("old")), (vec![2], vec![2, 3], vec![5]));
        assert_eq!((exactly("Old"), exactly(&key)), (vec![], vec![4]));
    }
}
