//! Whom sockets may come from and go to: those whom the configuration names, the hosts of the community, and strangers
//! by a grant, for one connection, once (P-83).

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::MoveName;

use crate::Time;
use crate::base::grant::Grant;

/// Who may hand over what.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Whose sockets are taken by configuration.
    accept_from: Vec<PublicKey>,
    /// The other hosts of the community.
    members: BTreeSet<PublicKey>,
    /// Those that were.
    revoked: BTreeSet<PublicKey>,
    /// Whether there is one: then sockets go to its hosts alone.
    limited: bool,
    grants: BTreeMap<u16, Grant>,
}

impl Permits {
    pub(crate) fn new(accept_from: Vec<PublicKey>) -> Self {
        let (members, revoked) = (BTreeSet::new(), BTreeSet::new());
        Self { accept_from, members, revoked, limited: false, grants: BTreeMap::new() }
    }

    /// The hosts of the community are these, beside this one, and others were `revoked`.
    pub(crate) fn set_members(&mut self, members: BTreeSet<PublicKey>, revoked: BTreeSet<PublicKey>, limited: bool) {
        (self.members, self.limited) = (members, limited);
        // Who leaves a community of his own accord revokes nobody.
        self.revoked = revoked.into_iter().filter(|host| !self.trusts(host)).collect();
    }

    /// Whether sockets of a host are always taken.
    pub(crate) fn trusts(&self, donor: &PublicKey) -> bool {
        self.accept_from.contains(donor) || self.members.contains(donor)
    }

    /// Whether a host was one of the community's, and is none any more.
    pub(crate) fn was_revoked(&self, host: &PublicKey) -> bool {
        self.revoked.contains(host) && !self.trusts(host)
    }

    /// Those hosts.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = &PublicKey> {
        self.revoked.iter().filter(|host| !self.trusts(host))
    }

    /// Whether a host may have whatever this one has.
    pub(crate) fn may_go_to(&self, acceptor: &PublicKey) -> bool {
        !self.limited || self.trusts(acceptor)
    }

    /// Whether a host may have a connection of this one's: always, or by a grant.
    pub(crate) fn may_give(&self, now: Time, to: &PublicKey, flow: &FlowTuple) -> bool {
        self.may_go_to(to) || self.grants.values().any(|grant| grant.fits(now, to, Some(flow)))
    }

    /// Whether this host looks forward to a socket of another's.
    pub(crate) fn expects(&self, now: Time, donor: &PublicKey) -> bool {
        self.trusts(donor) || self.grants(now).any(|grant| grant.host() == *donor)
    }

    /// Whether a host may have a socket taken: always, or by a grant, which this move uses from now on.
    pub(crate) fn admits(&mut self, now: Time, donor: &PublicKey, name: MoveName) -> bool {
        self.trusts(donor) || self.uses(now, donor, None, name)
    }

    /// The same for a socket that is to be given away.
    pub(crate) fn gives(&mut self, now: Time, acceptor: &PublicKey, flow: &FlowTuple, name: MoveName) -> bool {
        self.may_go_to(acceptor) || self.uses(now, acceptor, Some(flow), name)
    }

    fn uses(&mut self, now: Time, host: &PublicKey, flow: Option<&FlowTuple>, name: MoveName) -> bool {
        self.grants.values_mut().any(|grant| grant.fits(now, host, flow) && grant.take(name))
    }

    /// Whether a move that is under way with a host may go on as one from there.
    pub(crate) fn lets_come(&self, host: &PublicKey, name: MoveName) -> bool {
        self.trusts(host) || self.grants.values().any(|grant| grant.is_used_by(name))
    }

    /// The same for one that goes there.
    pub(crate) fn lets_go(&self, host: &PublicKey, name: MoveName) -> bool {
        !self.limited || self.lets_come(host, name)
    }

    /// A move is over. `moved`: the connection is with its new host, so the grant that let it go there is used up.
    pub(crate) fn settle(&mut self, name: MoveName, moved: bool) {
        self.grants.retain(|_, grant| !(moved && grant.is_used_by(name)));
        self.grants.values_mut().for_each(|grant| grant.give_back(name));
    }

    /// Those that are leave for anything still.
    pub(crate) fn grants(&self, now: Time) -> impl Iterator<Item = &Grant> {
        self.grants.values().filter(move |grant| grant.is_open(now))
    }

    pub(crate) fn grant(&mut self, now: Time, grant: Grant) {
        self.grants.retain(|_, grant| grant.is_open(now));
        self.grants.insert(grant.number(), grant);
    }

    /// Takes a grant back. Tells whether there was one.
    pub(crate) fn withdraw(&mut self, number: u16) -> bool {
        self.grants.remove(&number).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_grant_whose_time_is_over_takes_no_room_unless_a_move_goes_on_by_it() {
        let mut permits = Permits::new(Vec::new());
        let at = |second| Time::default() + Duration::from_secs(second);
        let (host, name) = (PublicKey::from([1; 32]), MoveName { donor: [2; 32], number: 3 });
        for number in [1, 2] {
            permits.grant(at(0), Grant::new(number, host, None, at(10)));
        }
        assert_eq!(permits.grants(at(9)).count(), 2);
        assert!(permits.admits(at(9), &host, name));
        assert!(permits.expects(at(10), &host), "what goes on by one is awaited");
        assert_eq!(permits.grants(at(10)).map(Grant::number).collect::<Vec<_>>(), [1]);
        permits.grant(at(10), Grant::new(3, host, None, at(20)));
        assert_eq!(permits.grants.len(), 2);
        permits.settle(name, false);
        assert_eq!(permits.grants(at(10)).map(Grant::number).collect::<Vec<_>>(), [3]);
        assert!(permits.expects(at(19), &host) && !permits.expects(at(20), &host));
    }
}
