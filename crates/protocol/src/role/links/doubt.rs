//! Flows go by two networks at once while that is in doubt which they go by, where a section wants that (P-263;
//! decision 0119). Each datagram has one counter, so the peer takes the copy that comes first (P-262).

use std::time::Duration;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::event::Event;
use crate::base::id::{LinkId, PathId};
use crate::base::link_facts::LinkDoubt;
use crate::base::op::PeerId;
use crate::binding::placed::Placement;
use crate::role::At;
use crate::role::links::LinksRole;
use crate::role::links::meant::{DOUBT_LASTS, Doubt, Section};
use crate::role::links::select::{LinkCandidate, LinkWish, Why, select};
use crate::role::links::wishes::{attachment_on, is_by_hand};

/// How soon it is told again that flows go by two networks.
const TOLD_AGAIN: Duration = Duration::from_secs(20);

/// Something speaks against a network.
enum Sign {
    /// So that it is in doubt.
    Certain(LinkDoubt),
    /// The answer to a question of that time is overdue. One alone may be chance.
    Overdue(Time),
}

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
        let former = section.doubt;
        let before = former.filter(|doubt| doubt.of == own.link);
        let second = self.second(id, wish, own, here, candidates, before.map(|doubt| doubt.beside), at);
        let sign = second.and_then(|_| self.sign(id, own, here, at));
        let why = sign.and_then(|sign| section.judge(at.now, sign, before.is_some()));
        section.doubt = second.and_then(|second| match (why, before) {
            (Some(why), Some(before)) => Some(Doubt { beside: second.link, last: at.now, why, ..before }),
            (Some(why), None) => {
                let told = section.doubt_told.is_none_or(|then| at.now >= then + TOLD_AGAIN);
                Some(Doubt { of: own.link, beside: second.link, begun: at.now, last: at.now, why, told })
            }
            (None, Some(before)) if at.now < before.ends() => Some(Doubt { beside: second.link, ..before }),
            (None, _) => None,
        });
        let (peer, line, from, flows) = (id, wish.line, own.address, section.flows.len());
        // It is over as well where its network was left.
        let goes_on = |of: &Doubt| section.doubt.is_some_and(|doubt| doubt.of == of.of);
        if let Some(Doubt { begun, .. }) = former.filter(|former| former.told && !goes_on(former)) {
            let lasted = at.now.since(begun);
            at.base.event(Event::FlowsAlone { peer, from, line, lasted, flows });
        }
        if let (None, Some((Doubt { told: true, why, .. }, second))) = (before, section.doubt.zip(second)) {
            section.doubt_told = Some(at.now);
            at.base.event(Event::FlowsDuplicated { peer, from, to: second.address, line, why, flows });
        }
        let duplicated = section.doubt.is_some();
        match (apart, second.filter(|_| duplicated)) {
            // The other way is the one in use.
            (Some(apart), _) => Some(Placement { from: apart.address, duplicated }),
            (None, Some(second)) => Some(Placement { from: second.address, duplicated }),
            (None, None) => section.at.map(|at| Placement::at(at.address)),
        }
    }

    /// By which network the flows of a section can go as well, where the peer answers by one that fits what the section
    /// wants and knows of such. Those that go apart can by the one in use alone.
    pub(super) fn second(
        &self,
        id: PeerId,
        wish: &LinkWish,
        own: Attachment,
        here: Attachment,
        candidates: &[LinkCandidate],
        before: Option<LinkId>,
        at: &At<'_>,
    ) -> Option<Attachment> {
        if !wish.duplicate || !at.low.duplicates(id) || is_by_hand(id, at) {
            return None;
        }
        let can = |link: LinkId| link != own.link && (own.link == here.link || link == here.link);
        let others = candidates.iter().copied().filter(|candidate| can(candidate.link) && candidate.answers);
        let others: Vec<LinkCandidate> = others.collect();
        let rules = self.with_prices(wish.rules.clone());
        let selected = select(&others, &rules, before, None);
        let fits = !matches!(selected.why, Why::NothingFits | Why::NothingAnswers);
        let link = selected.link.filter(|link| fits && !rules.never.contains(link))?;
        attachment_on(id, link, here, at)
    }

    /// What speaks against a network, whose flows may not arrive.
    fn sign(&self, id: PeerId, own: Attachment, here: Attachment, at: &At<'_>) -> Option<Sign> {
        let facts = self.facts(own.link);
        if let Some(fault) = facts.fault() {
            return Some(Sign::Certain(LinkDoubt::Fault(fault)));
        }
        if facts.doubtful {
            return Some(Sign::Certain(LinkDoubt::Link));
        }
        let paths = at.low.path().paths(&id)?;
        let kept = |link: LinkId| paths.kept().find(|kept| kept.attachment.link == link).map(|kept| kept.id);
        let path: Option<PathId> = if own.link == here.link { None } else { Some(kept(own.link)?) };
        let is_silent = self.peers.get(&id).is_some_and(|watched| watched.watch.is_doubted());
        if path.is_none() && is_silent {
            return Some(Sign::Certain(LinkDoubt::Overdue));
        }
        paths.overdue(at.now, path).map(Sign::Overdue)
    }
}

impl Section {
    /// Whether a sign makes a doubt, or has one go on.
    fn judge(&mut self, now: Time, sign: Sign, goes_on: bool) -> Option<LinkDoubt> {
        match sign {
            Sign::Certain(why) => Some(why),
            Sign::Overdue(_) if goes_on => Some(LinkDoubt::Overdue),
            Sign::Overdue(asked) => {
                let first = self.overdue.filter(|first| now < *first + DOUBT_LASTS);
                self.overdue = first.or(Some(asked));
                first.filter(|first| *first < asked).map(|_| LinkDoubt::Overdue)
            }
        }
    }

    /// Its flows are in doubt, or an answer was overdue a moment ago.
    pub(super) fn is_doubtful(&self, now: Time) -> bool {
        self.doubt.is_some() || self.overdue.is_some_and(|first| now < first + DOUBT_LASTS)
    }
}
