//! Who belongs to a community: statements about hosts, signed with the community's key, of which the newest about each
//! counts.
//!
//! Statements need no order between hosts, so it does not matter who tells them, when, or how often: whoever knows the
//! same statements has the same roster.

use std::collections::BTreeMap;

use ring::digest;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use whimbrel_handshake::PublicKey;
use whimbrel_wire::community::{CommunityKey, CommunitySecret, MemberStanding, RosterDigest, Statement, is_name};

/// Hosts that statements are kept about, those included that were revoked.
pub(super) const MOST: usize = 256;

/// The statements about a community's hosts.
pub(super) struct Roster {
    community: CommunityKey,
    /// At a steward.
    secret: Option<(CommunitySecret, Ed25519KeyPair)>,
    statements: BTreeMap<[u8; 32], Statement>,
}

/// What came of a statement that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It is newer than what was known.
    News,
    /// It is not.
    Known,
    /// It is not the community's, or there is no room.
    Refused,
}

fn key_pair(secret: &CommunitySecret) -> Option<Ed25519KeyPair> {
    Ed25519KeyPair::from_seed_unchecked(&secret.0).ok()
}

/// Whether a standing makes a host one of the community's. One that a later version knows does not.
pub(super) fn belongs(standing: MemberStanding) -> bool {
    matches!(standing, MemberStanding::Member | MemberStanding::Steward)
}

impl Roster {
    /// A community of nobody, with the key that this seed makes.
    pub(super) fn found(secret: CommunitySecret) -> Option<Self> {
        let pair = key_pair(&secret)?;
        let community = pair.public_key().as_ref().try_into().ok()?;
        Some(Self { community, secret: Some((secret, pair)), statements: BTreeMap::new() })
    }

    /// A community of which nothing is known yet but its key. `None` where the secret is another's.
    pub(super) fn of(community: CommunityKey, secret: Option<CommunitySecret>) -> Option<Self> {
        match secret {
            Some(secret) => Self::found(secret).filter(|roster| roster.community == community),
            None => Some(Self { community, secret: None, statements: BTreeMap::new() }),
        }
    }

    pub(super) fn community(&self) -> &CommunityKey {
        &self.community
    }

    pub(super) fn secret(&self) -> Option<&CommunitySecret> {
        self.secret.as_ref().map(|(secret, _)| secret)
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.statements.values()
    }

    pub(super) fn about(&self, host: &PublicKey) -> Option<&Statement> {
        self.statements.get(host.as_bytes())
    }

    /// Whether a host belongs to it.
    pub(super) fn has(&self, host: &PublicKey) -> bool {
        self.about(host).is_some_and(|statement| belongs(statement.standing))
    }

    /// The hosts that belong to it.
    pub(super) fn hosts(&self) -> impl Iterator<Item = PublicKey> {
        let hosts = self.statements.values().filter(|statement| belongs(statement.standing));
        hosts.map(|statement| PublicKey::from(statement.host))
    }

    /// Whether another host that belongs to it is called so, in whichever case.
    pub(super) fn is_another_called(&self, name: &str, than: &PublicKey) -> bool {
        let called = name.to_lowercase();
        let mut others = self.statements.values().filter(|of| belongs(of.standing) && of.host != *than.as_bytes());
        others.any(|of| of.name.to_lowercase() == called)
    }

    /// The hosts that were revoked.
    pub(super) fn revoked(&self) -> impl Iterator<Item = PublicKey> {
        let revoked = self.statements.values().filter(|statement| !belongs(statement.standing));
        revoked.map(|statement| PublicKey::from(statement.host))
    }

    /// Whether there is room for a host that nothing is known of.
    pub(super) fn has_room_for(&self, host: &PublicKey) -> bool {
        self.statements.len() < MOST || self.statements.contains_key(host.as_bytes())
    }

    /// A statement that somebody told.
    pub(super) fn hear(&mut self, statement: &Statement) -> Told {
        let known = self.statements.get(&statement.host);
        if known.is_some_and(|known| rank(known) >= rank(statement)) {
            return Told::Known;
        }
        let room = known.is_some() || self.statements.len() < MOST;
        let verifier = UnparsedPublicKey::new(&ED25519, &self.community);
        let genuine = || verifier.verify(&statement.signed(&self.community), &statement.signature).is_ok();
        if !room || !is_name(&statement.name) || !genuine() {
            return Told::Refused;
        }
        self.statements.insert(statement.host, statement.clone());
        Told::News
    }

    /// States what a host is from now on. Nothing changes where it is that already; `None` without the secret, or where
    /// nothing newer can be said of it.
    pub(super) fn state(&mut self, host: &PublicKey, standing: MemberStanding, name: &str) -> Option<()> {
        let known = self.about(host);
        if known.is_some_and(|known| known.standing == standing && known.name == name) {
            return Some(());
        }
        let serial = known.map_or(Some(1), |known| known.serial.checked_add(1))?;
        let mut statement =
            Statement { host: *host.as_bytes(), serial, standing, name: name.to_owned(), signature: [0; 64] };
        let (_, pair) = self.secret.as_ref()?;
        statement.signature = pair.sign(&statement.signed(&self.community)).as_ref().try_into().ok()?;
        self.statements.insert(statement.host, statement);
        Some(())
    }

    /// Forgets all but one host.
    pub(super) fn keep_only(&mut self, host: &PublicKey) {
        self.statements.retain(|key, _| key == host.as_bytes());
        self.secret = None;
    }

    /// The same for whoever knows the same.
    pub(super) fn digest(&self) -> RosterDigest {
        let mut all = Vec::new();
        self.statements.values().for_each(|statement| statement.put(&mut all));
        let hash = digest::digest(&digest::SHA256, &all);
        // SHA-256 is longer.
        hash.as_ref().first_chunk().copied().unwrap_or_default()
    }
}

/// Of two statements about one host the one of higher rank counts. Two stewards may make two of the same serial without
/// knowing of one another: then the one that allows less counts. The rest is there so that everybody decides the same.
fn rank(statement: &Statement) -> impl Ord + '_ {
    let standing = std::cmp::Reverse(statement.standing.number());
    (statement.serial, standing, &statement.name, &statement.signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster {
        Roster::found(CommunitySecret([3; 32])).unwrap()
    }

    fn host(number: u8) -> PublicKey {
        PublicKey::from([number; 32])
    }

    #[test]
    fn what_is_told_in_any_order_and_twice_comes_to_the_same() {
        let (mut one, mut other) = (roster(), roster());
        one.state(&host(1), MemberStanding::Steward, "desk").unwrap();
        one.state(&host(2), MemberStanding::Member, "laptop").unwrap();
        one.state(&host(2), MemberStanding::Revoked, "laptop").unwrap();
        // At the same time, and without knowing of it.
        other.state(&host(2), MemberStanding::Member, "laptop").unwrap();
        other.state(&host(2), MemberStanding::Steward, "laptop").unwrap();
        other.state(&host(3), MemberStanding::Member, "telephone").unwrap();
        let all: Vec<Statement> = one.statements().chain(other.statements()).cloned().collect();
        for start in 0..all.len() {
            let mut heard = Roster::of(*one.community(), None).unwrap();
            for at in 0..2 * all.len() {
                heard.hear(&all[(start + at) % all.len()]);
            }
            assert!(heard.has(&host(1)) && heard.has(&host(3)));
            assert!(!heard.has(&host(2)), "of two statements the one that allows less counts");
            assert_eq!(heard.hosts().count(), 2);
            let mut again = Roster::of(*one.community(), None).unwrap();
            all.iter().rev().for_each(|statement| {
                again.hear(statement);
            });
            assert_eq!(heard.digest(), again.digest());
        }
    }

    #[test]
    fn only_the_communitys_key_states() {
        let mut mine = roster();
        mine.state(&host(1), MemberStanding::Member, "desk").unwrap();
        let genuine = mine.about(&host(1)).unwrap().clone();
        let mut heard = Roster::of(*mine.community(), None).unwrap();
        assert!(heard.state(&host(1), MemberStanding::Member, "desk").is_none(), "no secret");
        for forge in [
            |statement: &mut Statement| statement.serial += 1,
            |statement: &mut Statement| statement.standing = MemberStanding::Steward,
            |statement: &mut Statement| statement.host = [9; 32],
            |statement: &mut Statement| statement.name.push('x'),
            |statement: &mut Statement| statement.signature[0] ^= 1,
        ] {
            let mut forged = genuine.clone();
            forge(&mut forged);
            assert_eq!(heard.hear(&forged), Told::Refused);
        }
        assert_eq!(heard.hear(&genuine), Told::News);
        assert_eq!(heard.hear(&genuine), Told::Known);
        let mut others = Roster::of(*Roster::found(CommunitySecret([4; 32])).unwrap().community(), None).unwrap();
        assert_eq!(others.hear(&genuine), Told::Refused, "another community's");
        assert!(Roster::of(*mine.community(), Some(CommunitySecret([4; 32]))).is_none());
    }

    #[test]
    fn a_revoked_host_may_come_back_and_an_old_statement_may_not() {
        let mut mine = roster();
        mine.state(&host(1), MemberStanding::Member, "desk").unwrap();
        let before = mine.about(&host(1)).unwrap().clone();
        mine.state(&host(1), MemberStanding::Revoked, "desk").unwrap();
        assert_eq!(mine.hear(&before), Told::Known);
        assert!(!mine.has(&host(1)));
        mine.state(&host(1), MemberStanding::Member, "desk").unwrap();
        assert!(mine.has(&host(1)));
        assert_eq!(mine.about(&host(1)).unwrap().serial, 3);
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut mine = roster();
        for number in 0..MOST + 1 {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&(number as u16).to_be_bytes());
            let key = PublicKey::from(key);
            assert_eq!(mine.has_room_for(&key), number < MOST);
            mine.state(&key, MemberStanding::Member, "desk").unwrap();
        }
        let mut heard = Roster::of(*mine.community(), None).unwrap();
        let told: Vec<Told> = mine.statements().map(|statement| heard.hear(statement)).collect();
        assert_eq!(told.iter().filter(|told| **told == Told::News).count(), MOST);
        assert_eq!(told.last(), Some(&Told::Refused));
    }
}
