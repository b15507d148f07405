//! Which of this host's attachments a peer is reached from.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::base::Base;
use crate::base::attachments::{Attachment, Routes};
use crate::base::op::PeerId;
use crate::binding::BindingLayer;
use crate::path::paths::{Choice, Paths, Wants};
use crate::session::peer::Peer;

/// What was chosen, and what it was chosen by.
pub(super) struct Chosen {
    pub(super) choice: Choice,
    /// `None`: nothing leads to the peer.
    pub(super) found: Option<Attachment>,
}

impl BindingLayer {
    /// Chooses where a peer is reached from. `forced`: a hand-off by hand, perhaps to an address.
    pub(super) fn choose(
        &self,
        id: PeerId,
        paths: &Paths,
        forced: Option<Option<IpAddr>>,
        routes: &dyn Routes,
        base: &Base,
    ) -> Chosen {
        let by_hand = forced.map(|to| to.and_then(|to| base.attachments().get(&to)));
        let before = paths.choice();
        let preferred = by_hand.unwrap_or(before.preferred).filter(|a| base.attachments().is_current(a));
        // One that nothing leads by any more is left as the routes say, as is an address for another of its own link:
        // it is the network that is selected.
        let leads = |own: &Attachment| {
            let there = base.attachments().is_current(own) && leads_by(*own, paths, routes);
            there && !is_replaced(*own, paths, routes, base)
        };
        let selected = before.selected.filter(leads);
        let address = |attachment: Attachment| attachment.address;
        let wanted = preferred.map(address).or(forced.flatten()).or(selected.map(address));
        // What was chosen by hand now counts more than what a role found out before.
        let there = |wants: &Wants| [wants.prefer, wants.exclude].iter().all(|a| base.attachments().is_current(a));
        let wants = before.wants.filter(|wants| forced.is_none() && there(wants));
        let mut ways = self.ways_to(id, paths, wanted, routes, base);
        if let Some(Wants { prefer, exclude }) = wants
            && let Some(way) = ways.iter_mut().find(|way| **way == exclude)
        {
            *way = prefer;
        }
        let peer = bound!(self, &id);
        // P-53; else by the first.
        ways.sort_by_key(|way| {
            let deaf = Some(*way) == before.unanswered;
            let home = peer.as_ref().map(|peer| (peer.flows_at_home(way.address), peer.flows_of_family(way.address)));
            let by_role = wants.is_some_and(|wants| wants.prefer == *way);
            (!by_role, Some(way.address) != wanted, deaf, Reverse(home))
        });
        let (found, otherwise) = (ways.first().copied(), ways.get(1).copied());
        let choice = Choice { preferred, selected, otherwise, wants, ..before };
        // One that is silent is come back to, and led by then.
        let is_left = |own: &Attachment| wants.is_some_and(|wants| wants.exclude == *own);
        let taken = choice.chosen().filter(|own| found == Some(*own) || is_left(own));
        let natural = taken.and_then(|own| beside(own, paths, routes, base));
        Chosen { choice: Choice { natural, ..choice }, found }
    }

    /// Where this host may reach a peer from, one address of each family at the most.
    fn ways_to(
        &self,
        id: PeerId,
        paths: &Paths,
        wanted: Option<IpAddr>,
        routes: &dyn Routes,
        base: &Base,
    ) -> Vec<Attachment> {
        let mut ways: Vec<Attachment> = Vec::new();
        // P-215: where it has answered or was before, where nothing that it tells is reached.
        let else_at = self.flow.session().peer(&id).map_or(&[][..], Peer::answers_at).iter();
        let else_at = else_at.chain(paths.former_locators()).map(|at| (*at, true));
        for (target, otherwise) in paths.targets().map(|at| (at, false)).chain(else_at) {
            let alike = |address: &IpAddr| address.is_ipv4() == target.is_ipv4();
            if otherwise && !ways.is_empty() {
                break;
            }
            // Each look at the routes costs, and a peer may tell many addresses.
            if ways.iter().any(|way| alike(&way.address)) || !base.attachments().addresses().any(alike) {
                continue;
            }
            // Who has asked a host behind this one is answered from there, wherever this one is (P-100).
            let asked = paths.source().filter(|source| alike(source) && base.attachments().speaks_at(*source));
            let source = wanted.filter(alike).or(asked).or_else(|| routes.source_for(target));
            ways.extend(source.and_then(|source| base.attachments().at(source)));
            if !self.flow.held(id).flows && !ways.is_empty() {
                break;
            }
        }
        ways
    }
}

/// Whether what is sent to the peer from an attachment could leave by its link.
fn leads_by(own: Attachment, paths: &Paths, routes: &dyn Routes) -> bool {
    let mut alike = paths.targets().filter(|to| to.is_ipv4() == own.address.is_ipv4());
    alike.any(|to| routes.still_reaches(own.address, to))
}

/// Whether the routes lead to the peer by the link of an attachment, and from another address there.
fn is_replaced(own: Attachment, paths: &Paths, routes: &dyn Routes, base: &Base) -> bool {
    let mut alike = paths.targets().filter(|to| to.is_ipv4() == own.address.is_ipv4());
    let natural = |to| routes.source_for(to).and_then(|source| base.attachments().at(source));
    alike.any(|to| natural(to).is_some_and(|natural| natural.link == own.link && natural.address != own.address))
}

/// Where the routes lead to the peer instead of by the link of an attachment, which has a way there too.
fn beside(own: Attachment, paths: &Paths, routes: &dyn Routes, base: &Base) -> Option<Attachment> {
    let to = paths.targets().find(|to| to.is_ipv4() == own.address.is_ipv4())?;
    let natural = base.attachments().at(routes.source_for(to)?)?;
    let leads = |attachment: Attachment| attachment.link.leads_out();
    let elsewhere = natural.link != own.link && leads(natural) && leads(own);
    (elsewhere && routes.still_reaches(own.address, to)).then_some(natural)
}
