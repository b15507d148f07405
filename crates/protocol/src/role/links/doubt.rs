//! Flows go by two networks at once while that is in doubt which they go by, where a section wants that (P-263;
//! decision 0119). Each datagram has one counter, so the peer takes the copy that comes first (P-262).

use std::time::Duration;

use crate::base::attachments::Attachment;
use crate::base::event::Event;
use crate::base::id::{LinkId, PathId};
use crate::base::op::PeerId;
use crate::binding::placed::Placement;
use crate::role::At;
use crate::role::links::LinksRole;
use crate::role::links::meant::{Doubt, Section};
use crate::role::links::select::{LinkCandidate, LinkWish, Why, select};
use crate::role::links::wishes::attachment_on;

/// How many of a thousand questions go unanswered where a network is in doubt for that.
const LOSSY: u16 = 50;
/// How soon it is told again that flows go by two networks.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

impl LinksRole {
    /// Where the flows of a section go, for now: to where it has them, and to another network as well as long as that
    /// is in doubt.
    pub(super) fn placement(
        &self,
        id: PeerId,
        wish: &LinkWish,
        section: &mut Section,
        here: Attachment,
        candidates: &[LinkCandidate],
        at: &mut At<'_>,
    ) -> Option<Placement> {
        let apart = section.at.filter(|at| at.link != here.link);
        let own = apart.unwrap_or(here);
        let before = section.doubt.filter(|doubt| doubt.of == own.link);
        let second = self.second(id, wish, own, here, candidates, before, at).filter(|_| wish.duplicate);
        let is_doubted = second.is_some() && self.is_doubted(id, own, here, at);
        section.doubt = match (second, before) {
            (Some(second), _) if is_doubted => Some(Doubt { of: own.link, beside: second.link, last: at.now }),
            (Some(second), Some(before)) if at.now < before.ends() => Some(Doubt { beside: second.link, ..before }),
            _ => None,
        };
        if let (Some(second), Some(_), None) = (second, section.doubt, before) {
            let tells = section.doubt_told.is_none_or(|then| at.now >= then + TOLD_AGAIN);
            if tells {
                section.doubt_told = Some(at.now);
                let (from, to, flows) = (own.address, second.address, section.flows.len());
                at.base.event(Event::FlowsDuplicated { peer: id, from, to, line: wish.line, flows });
            }
        }
        let duplicated = section.doubt.is_some();
        match (apart, second.filter(|_| duplicated)) {
            // The other way is the one in use.
            (Some(apart), _) => Some(Placement { from: apart.address, duplicated }),
            (None, Some(second)) => Some(Placement { from: second.address, duplicated }),
            (None, None) => section.at.map(|at| Placement::at(at.address)),
        }
    }

    /// By which network flows can go as well, where the peer answers by one that fits what the section wants.
    fn second(
        &self,
        id: PeerId,
        wish: &LinkWish,
        own: Attachment,
        here: Attachment,
        candidates: &[LinkCandidate],
        before: Option<Doubt>,
        at: &At<'_>,
    ) -> Option<Attachment> {
        let others = candidates.iter().copied().filter(|candidate| candidate.link != own.link && candidate.answers);
        if own.link != here.link {
            return others.into_iter().any(|candidate| candidate.link == here.link).then_some(here);
        }
        let others: Vec<LinkCandidate> = others.collect();
        let rules = self.with_prices(wish.rules.clone());
        let selected = select(&others, &rules, before.map(|doubt| doubt.beside), None);
        let fits = !matches!(selected.why, Why::NothingFits | Why::NothingAnswers);
        let link = selected.link.filter(|link| fits && !rules.never.contains(link))?;
        attachment_on(id, link, own, at)
    }

    /// Whether what goes by a network may not arrive.
    fn is_doubted(&self, id: PeerId, own: Attachment, here: Attachment, at: &At<'_>) -> bool {
        let facts = self.facts(own.link);
        let Some(paths) = at.low.path().paths(&id) else { return false };
        let kept = |link: LinkId| paths.kept().find(|kept| kept.attachment.link == link).map(|kept| kept.id);
        let path: Option<PathId> = if own.link == here.link { None } else { kept(own.link) };
        let is_silent = || self.peers.get(&id).is_some_and(|watched| !watched.watch.is_at_rest());
        facts.doubtful
            || facts.fault().is_some()
            || path.is_none() && is_silent()
            || paths.is_overdue(at.now, path)
            || paths.lost(path).is_some_and(|lost| lost >= LOSSY)
    }
}
