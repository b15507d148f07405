//! Whom sockets may come from and go to: those whom the configuration names, the hosts of the community, and strangers by a grant,
//! for one connection, once (P-83).

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::MoveName;

use super::{At, Moves};
use crate::Time;
use crate::base::grant::Grant;
use crate::node::Node;

/// Who may hand over what.
#[derive(Debug, Default)]
pub(super) struct Permits {
    /// The other hosts of the community.
    members: BTreeSet<PublicKey>,
    /// Those that were.
    revoked: BTreeSet<PublicKey>,
    /// Whether there is one: then sockets go to its hosts alone.
    limited: bool,
    grants: BTreeMap<u16, Grant>,
}

impl Permits {
    /// The grant by which a stranger may have a connection, or this host one of a stranger's.
    fn usable(&mut self, now: Time, host: &PublicKey, flow: Option<&FlowTuple>) -> Option<&mut Grant> {
        let fits = |grant: &Grant| grant.host == *host && grant.flow.as_ref() == flow && grant.until > now;
        self.grants.values_mut().find(|grant| grant.used_by.is_none() && fits(grant))
    }
}

impl Moves {
    /// Whether sockets of a host are always taken.
    pub(super) fn trusts(&self, donor: &PublicKey) -> bool {
        self.config.accept_from.contains(donor) || self.permits.members.contains(donor)
    }

    /// Whether a host was one of the community's, and is none any more.
    pub(super) fn was_revoked(&self, host: &PublicKey) -> bool {
        self.permits.revoked.contains(host) && !self.trusts(host)
    }

    /// Those hosts.
    pub(super) fn revoked(&self) -> impl Iterator<Item = &PublicKey> {
        self.permits.revoked.iter().filter(|host| !self.trusts(host))
    }

    /// Whether a host may have whatever this one has.
    pub(super) fn may_go_to(&self, acceptor: &PublicKey) -> bool {
        !self.permits.limited || self.trusts(acceptor)
    }

    /// Whether this host looks forward to a socket of another's.
    pub(super) fn expects(&self, donor: &PublicKey) -> bool {
        self.trusts(donor) || self.permits.grants.values().any(|grant| grant.host == *donor)
    }

    /// Whether a host may have a socket taken: always, or by a grant, which this move uses from now on.
    pub(super) fn admits(&mut self, now: Time, donor: &PublicKey, name: MoveName) -> bool {
        if self.trusts(donor) {
            return true;
        }
        let grant = self.permits.usable(now, donor, None);
        grant.map(|grant| grant.used_by = Some(name)).is_some()
    }

    /// The same for a socket that is to be given away.
    pub(super) fn gives(&mut self, now: Time, acceptor: &PublicKey, flow: &FlowTuple, name: MoveName) -> bool {
        if !self.permits.limited || self.trusts(acceptor) {
            return true;
        }
        let grant = self.permits.usable(now, acceptor, Some(flow));
        grant.map(|grant| grant.used_by = Some(name)).is_some()
    }

    /// A move is over. `moved`: the connection is with its new host, so the grant that let it go there is used up.
    pub(super) fn settle_grant(&mut self, name: MoveName, moved: bool) {
        self.permits.grants.retain(|_, grant| !(moved && grant.used_by == Some(name)));
        for grant in self.permits.grants.values_mut().filter(|grant| grant.used_by == Some(name)) {
            grant.used_by = None;
        }
    }

    pub(crate) fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.permits.grants.values()
    }

    pub(super) fn set_members(
        &mut self,
        at: At<'_>,
        members: BTreeSet<PublicKey>,
        revoked: BTreeSet<PublicKey>,
        limited: bool,
    ) {
        self.permits.members = members;
        self.permits.limited = limited;
        // Who leaves a community of his own accord revokes nobody.
        self.permits.revoked = revoked.into_iter().filter(|host| !self.trusts(host)).collect();
        self.end_forbidden_leases(at);
        self.end_revoked();
        self.end_unpermitted(at);
    }

    /// Ends what is under way with hosts that may take no part any more, as far as it is not decided.
    fn end_unpermitted(&mut self, at: At<'_>) {
        let permits = |moves: &Self, host: &PublicKey, name: MoveName| {
            moves.trusts(host) || moves.permits.grants.values().any(|grant| grant.used_by == Some(name))
        };
        let taken: Vec<MoveName> = self.acceptances.keys().copied().collect();
        for name in taken {
            if !permits(self, &PublicKey::from(name.donor), name) {
                self.forbid_acceptance(at, name);
            }
        }
        if self.permits.limited {
            let given: Vec<(u64, PublicKey)> =
                self.donations.iter().map(|(number, donation)| (*number, donation.acceptor())).collect();
            let me = *self.me().as_bytes();
            for (number, acceptor) in given {
                if !permits(self, &acceptor, MoveName { donor: me, number }) {
                    self.forbid_donation(at, number);
                }
            }
        }
        self.hear_own(at);
    }
}

impl Node {
    /// The hosts of the community are these, beside this one, and others were `revoked`. What is under way with others comes to nothing.
    pub(crate) fn set_permitted(
        &mut self,
        now: Time,
        members: BTreeSet<PublicKey>,
        revoked: BTreeSet<PublicKey>,
        limited: bool,
    ) {
        self.with_moves(now, |moves, at| moves.set_members(at, members, revoked, limited));
    }

    /// A stranger may be given a connection, or this host one of a stranger's, once.
    pub(crate) fn grant(&mut self, grant: Grant) {
        if let Some(moves) = &mut self.moves {
            moves.permits.grants.insert(grant.number, grant);
        }
        self.give_out_moves();
    }

    /// Takes a grant back. Tells whether there was one.
    pub(crate) fn withdraw_grant(&mut self, now: Time, number: u16) -> bool {
        let withdrawn = self.with_moves(now, |moves, at| {
            let grant = moves.permits.grants.remove(&number);
            moves.end_unpermitted(at);
            grant.is_some()
        });
        withdrawn.unwrap_or(false)
    }

    /// Whether a connection of this host's may be given to another.
    #[must_use]
    pub fn may_give(&self, now: Time, to: &PublicKey, flow: &FlowTuple) -> bool {
        self.moves.as_ref().is_some_and(|moves| {
            let granted = |grant: &Grant| grant.host == *to && grant.flow == Some(*flow) && grant.until > now;
            !moves.permits.limited || moves.trusts(to) || moves.permits.grants.values().any(granted)
        })
    }
}
