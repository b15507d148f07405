//! What the user's file wants of the networks that peers are reached by is carried out, damped (P-237; decision 0108).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::event::Event;
use crate::base::id::LinkId;
use crate::base::op::PeerId;
use crate::path::kept::PathState;
use crate::role::At;
use crate::role::links::facts::Wanted;
use crate::role::links::meant::FlowsChoice;
use crate::role::links::select::{LinkCandidate, LinkRules, LinkWish, Selected, select};
use crate::role::links::watch::Watch;
use crate::role::links::{LinksRole, Watched, others};

/// When another network is looked for again that may not be moved to for now.
pub(super) const LATER: Duration = Duration::from_secs(1);
/// Pauses between questions on each path, where what is measured decides.
pub(super) const MEASURED: Duration = Duration::from_secs(1);

/// What is under way for a peer that the user's file means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wished {
    /// Which network is to be taken, since when that is so, and when it is looked again.
    waits: Option<(LinkId, Time, Time)>,
    /// When the paths are measured next.
    measures: Option<Time>,
    /// It goes elsewhere than the routes lead, since something speaks against that network, or did.
    led: bool,
}

impl Wished {
    pub(super) const fn is_led(&self) -> bool {
        self.led
    }

    /// Whether the paths are asked since what is measured decides.
    pub(super) const fn is_measured(&self) -> bool {
        self.measures.is_some()
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.waits.map(|(.., due)| due).into_iter().chain(self.measures).min()
    }
}

impl LinksRole {
    /// Other wishes count from now on.
    pub(crate) fn set_wishes(&mut self, wishes: Vec<LinkWish>, at: &mut At<'_>) {
        let was_active = self.is_active();
        let before = std::mem::replace(&mut self.wishes, wishes);
        self.sort_anew(&before);
        if self.is_active() || was_active {
            self.look_at_all(at);
        }
    }

    /// How each peer is reached, and what would be so with other wishes; with those in force where none are given.
    pub(crate) fn explain(&self, trial: Option<LinkTrial<'_>>, at: &At<'_>) -> Vec<(PeerId, LinkChoice)> {
        let wishes = trial.map(|trial| trial.wishes);
        let each = at.low.session().ids().into_iter().filter_map(|id| {
            let here = at.low.path().paths(&id)?.attachment()?;
            let natural = natural(id, at)?;
            let wish = wish_among(wishes.unwrap_or(&self.wishes[..]), id, at);
            let rules = wish.map(|wish| self.with_prices(wish.rules.clone())).unwrap_or_default();
            let mut candidates = self.candidates(id, here, at);
            if wishes.is_some() {
                // What other wishes would have asked is not known: it is taken to answer.
                candidates
                    .iter_mut()
                    .filter(|candidate| !candidate.tried)
                    .for_each(|candidate| candidate.answers = true);
            }
            let selected = select(&candidates, &rules, Some(here.link), Some(natural.link));
            let placed = self.explain_flows(id, here, &candidates, trial, at);
            let watched = self.peers.get(&id);
            let waits = watched.and_then(|watched| watched.wished.waits).filter(|_| wishes.is_none());
            let choice = LinkChoice {
                in_use: here.link,
                natural: natural.link,
                line: wish.map(|wish| wish.line),
                by_hand: is_by_hand(id, at),
                silent: watched.and_then(|watched| watched.left.map(|(wants, _)| wants.exclude.link)),
                rests: at.low.flow().peer(&id).is_none_or(|peer| peer.flow.flows().is_empty())
                    && !at.low.depends_on_paths(id, at.base),
                waits: waits.map(|(_, _, due)| due.since(at.now)),
                candidates,
                selected,
                placed,
            };
            Some((id, choice))
        });
        each.collect()
    }

    /// The networks by which a peer may be reached.
    pub(super) fn candidates(&self, id: PeerId, here: Attachment, at: &At<'_>) -> Vec<LinkCandidate> {
        let Some(paths) = at.low.path().paths(&id) else { return Vec::new() };
        let is_silent = |watched: &Watched| watched.watch.silent_since().is_some();
        let mut all = vec![LinkCandidate {
            link: here.link,
            answers: !self.peers.get(&id).is_some_and(is_silent),
            tried: true,
            round_trip: paths.measured(),
            lost: paths.lost(None),
            facts: self.facts(here.link),
        }];
        for kept in paths.kept().filter(|kept| at.base.attachments().is_current(&kept.attachment)) {
            let link = kept.attachment.link;
            if all.iter().all(|candidate| candidate.link != link) {
                let (answers, tried) = (kept.state == PathState::Confirmed, kept.state != PathState::Unconfirmed);
                let (round_trip, lost) = (kept.round_trip, paths.lost(Some(kept.id)));
                let facts = self.facts(link);
                all.push(LinkCandidate { link, answers, tried, round_trip, lost, facts });
            }
        }
        let attachments = at.base.attachments();
        let own = attachments.addresses().filter_map(|address| attachments.get(address)).map(|own| own.link);
        for link in own.filter(|link| link.leads_out()) {
            if all.iter().all(|candidate| candidate.link != link) {
                let facts = self.facts(link);
                all.push(LinkCandidate { link, answers: false, tried: false, round_trip: None, lost: None, facts });
            }
        }
        all
    }

    /// Has a peer reached as the user's file wants, where something else has been so for a while.
    pub(super) fn follow_wish(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(Wanted { line, rules }) = self.wanted(id, at) else {
            if let Some(watched) = self.peers.get_mut(&id) {
                watched.wished = Wished::default();
            }
            at.low.select_nothing(at.now, id, at.base);
            return;
        };
        self.measure(id, &rules, at);
        let Some(watched) = self.peers.get_mut(&id) else { return };
        let here = watched.at;
        // What is silent is left first, and what was chosen by hand counts more.
        if watched.left.is_some() || !watched.watch.is_at_rest() || is_by_hand(id, at) {
            watched.wished.waits = None;
            return;
        }
        let Some(natural) = natural(id, at) else { return };
        let selected = select(&self.candidates(id, here, at), &rules, Some(here.link), Some(natural.link));
        let to = selected.link.filter(|link| *link != here.link).and_then(|link| attachment_on(id, link, natural, at));
        // Where nothing is wanted but that something speaks against a link, all is as ever when nothing does.
        let ends = line.is_none() && !self.knows_fault();
        let fault = self.fault(here.link);
        let leaves = fault.is_some() && to.is_some_and(|to| self.fault(to.link).is_none());
        let Some(watched) = self.peers.get_mut(&id) else { return };
        watched.wished.led = line.is_none() && here.link != natural.link;
        let Some(to) = to else {
            watched.wished.waits = None;
            if ends && here.link == natural.link {
                at.low.select_nothing(at.now, id, at.base);
            } else {
                at.low.select(at.now, id, here, at.base);
            }
            return;
        };
        let since = match watched.wished.waits {
            Some((waits, since, _)) if waits == to.link => since,
            _ => at.now,
        };
        let damping = &mut watched.damping;
        // What is about to go, or leads nowhere, is left at once.
        let due = if leaves { since } else { since + damping.hold() };
        let may = if leaves { damping.may_leave(at.now, since) } else { damping.may_return(at.now) };
        if at.now < due || !may {
            watched.wished.waits = Some((to.link, since, due.max(at.now + LATER)));
            // Until then it stays where it is, wherever the routes lead meanwhile.
            at.low.select(at.now, id, here, at.base);
            return;
        }
        if leaves {
            damping.leave(at.now);
        } else {
            damping.come_back(at.now);
        }
        (watched.at, watched.wished.waits) = (to, None);
        watched.wished.led = line.is_none() && to.link != natural.link;
        let vigilant = self.is_vigilant();
        if let Some(watched) = self.peers.get_mut(&id) {
            watched.watch = Watch::new(at.now, vigilant);
        }
        let flows = at.low.flow().peer(&id).map_or(0, |peer| peer.flow.flows().len());
        let (from, address) = (here.address, to.address);
        at.base.event(match line {
            Some(line) if !leaves => Event::NetworkPreferred { peer: id, from, to: address, line, flows },
            _ => Event::NetworkUnfit { peer: id, from, to: address, fault: fault.filter(|_| leaves), flows },
        });
        if ends && to.link == natural.link {
            at.low.select_nothing(at.now, id, at.base);
        } else {
            at.low.select(at.now, id, to, at.base);
        }
    }

    /// Asks a peer on all paths now and then, where what is measured decides and nobody else asks.
    fn measure(&mut self, id: PeerId, rules: &LinkRules, at: &mut At<'_>) {
        let vigilant = self.is_vigilant();
        let Some(watched) = self.peers.get_mut(&id) else { return };
        if !rules.measures() {
            watched.wished.measures = None;
            return;
        }
        if watched.wished.measures.is_some_and(|due| at.now < due) {
            return;
        }
        watched.wished.measures = Some(at.now + MEASURED);
        if watched.watch.silent_since().is_some() {
            return;
        }
        ask_all(id, vigilant, at);
    }
}

/// Asks a peer on all paths, that in use only where nobody else does.
pub(super) fn ask_all(id: PeerId, vigilant: bool, at: &mut At<'_>) {
    if !vigilant {
        at.low.path_mut().ask(at.now, id, None, true, at.base);
    }
    for path in others(id, at) {
        at.low.path_mut().ask(at.now, id, Some(path), true, at.base);
    }
}

/// How a peer is reached, and what would be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkChoice {
    /// By which network it is reached.
    pub in_use: LinkId,
    /// To which the routes lead.
    pub natural: LinkId,
    /// The line of the section that means it, if one does.
    pub line: Option<u32>,
    /// It was moved by hand: wishes do not count until a hand-off by hand without an address.
    pub by_hand: bool,
    /// The network that was left since it is silent.
    pub silent: Option<LinkId>,
    /// No connection depends on it, so that nothing is tried, and nothing moved.
    pub rests: bool,
    /// It will be reached by what is selected after so long, if nothing changes until then.
    pub waits: Option<Duration>,
    /// What is known of each network.
    pub candidates: Vec<LinkCandidate>,
    /// What the wishes come to.
    pub selected: Selected,
    /// What they come to for single flows.
    pub placed: Vec<FlowsChoice>,
}

/// Other wishes than those in force.
#[derive(Clone, Copy, Debug)]
pub struct LinkTrial<'a> {
    /// They themselves.
    pub wishes: &'a [LinkWish],
    /// Whose conditions each flow would meet, as far as that is known. Flows that would meet none are left out.
    pub met: &'a BTreeMap<FlowTuple, Vec<u32>>,
}

pub(super) fn wish_among<'w>(wishes: &'w [LinkWish], id: PeerId, at: &At<'_>) -> Option<&'w LinkWish> {
    let remote = at.low.path().paths(&id)?.remote().ip();
    let key = at.low.session().peer(&id)?.key();
    wishes.iter().find(|wish| !wish.of_flows && wish.means(remote, &key))
}

/// Also where it is not reached from there, since nobody answers by that family.
pub(super) fn is_by_hand(id: PeerId, at: &At<'_>) -> bool {
    at.low.path().paths(&id).is_some_and(|paths| paths.choice().preferred.is_some())
}

/// Where the routes lead to a peer, as far as is known.
fn natural(id: PeerId, at: &At<'_>) -> Option<Attachment> {
    let paths = at.low.path().paths(&id)?;
    let choice = paths.choice();
    let silent = choice.wants.map(|wants| choice.natural.unwrap_or(wants.exclude));
    paths.elsewhere().or(silent).or_else(|| paths.attachment())
}

/// The address from which a peer is reached by a network.
pub(super) fn attachment_on(id: PeerId, link: LinkId, natural: Attachment, at: &At<'_>) -> Option<Attachment> {
    if natural.link == link {
        return Some(natural);
    }
    let mut kept = at.low.path().paths(&id)?.kept();
    kept.find(|kept| kept.attachment.link == link && kept.state == PathState::Confirmed).map(|kept| kept.attachment)
}
