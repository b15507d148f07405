//! Single flows that sections of the user's file mean by more than their peer go by a network of their own (P-238;
//! decision 0118). Which network that is, is chosen for all flows of a section with a peer at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::event::Event;
use crate::base::id::{LinkId, PathId};
use crate::base::op::PeerId;
use crate::binding::placed::PlaceError;
use crate::path::estimate::OVERDUE_SLACK;
use crate::path::kept::PathState;
use crate::role::At;
use crate::role::links::LinksRole;
use crate::role::links::meant::{Duplication, FlowsChoice, Meant, Section};
use crate::role::links::select::{LinkCandidate, LinkRules, LinkWish, Selected, Why, select};
use crate::role::links::wishes::{LATER, LinkTrial, MEASURED, ask_all, attachment_on, is_by_hand};

/// How often flows of a peer with many are sorted by sections, where some have begun or ended.
const SORTED: Duration = Duration::from_secs(10);
/// Pauses between questions on each path while one is in doubt that flows go by.
const DOUBTED: Duration = Duration::from_millis(250);
/// After so many questions of which none was answered they become rarer, and how often their pause is doubled.
const ASKED_IN_VAIN: u32 = 20;
const RARER: u32 = 6;
/// How soon it is told again that some have no room.
const NOT_PLACED_AGAIN: Duration = Duration::from_secs(600);

impl LinksRole {
    /// See [`Node::handle_conditions_met`](crate::Node::handle_conditions_met).
    pub(crate) fn handle_conditions_met(&mut self, flow: FlowTuple, met: Vec<u32>, at: &mut At<'_>) {
        at.low.flow_mut().set_met(&flow, met);
        if let Some(peer) = peer_of(&flow, at) {
            self.consider_flow(peer, flow, at);
        }
    }

    /// Other sections count than those `before`: which flows they mean is to be found out anew. One that stands
    /// elsewhere in the file and says the same is the same, and one that says something else is another.
    pub(super) fn sort_anew(&mut self, before: &[LinkWish]) {
        let same = |one: &LinkWish, other: &LinkWish| {
            let kind = |wish: &LinkWish| (wish.of_flows, wish.duplicate);
            (kind(one), &one.peers, &one.rules) == (kind(other), &other.peers, &other.rules)
        };
        let line_now = |line: u32| {
            let of = before.iter().find(|wish| wish.line == line)?;
            let mut now = self.wishes.iter().filter(|wish| same(wish, of));
            let first = now.next()?.line;
            let stays = first == line || now.any(|wish| wish.line == line);
            Some(if stays { line } else { first })
        };
        for meant in self.meant.values_mut() {
            meant.sorted = None;
            let sections = std::mem::take(&mut meant.sections);
            meant.sections.extend(sections.into_iter().filter_map(|(line, section)| Some((line_now(line)?, section))));
        }
    }

    /// Whether single flows of a peer go as sections want it, or would.
    pub(super) fn has_meant(&self, id: PeerId) -> bool {
        self.meant.get(&id).is_some_and(Meant::has_flows)
    }

    /// A flow of a peer meets other conditions, or is one with it from now on.
    pub(super) fn consider_flow(&mut self, id: PeerId, flow: FlowTuple, at: &mut At<'_>) {
        let meets = !met_by(&flow, at).is_empty();
        if !meets && !self.meant.contains_key(&id) {
            return;
        }
        let line = section_of(&self.wishes, id, &flow, met_by(&flow, at), at).map(|wish| wish.line);
        let meant = self.meant.entry(id).or_default();
        if meets {
            meant.flows.insert(flow);
        }
        for (of, section) in &mut meant.sections {
            if Some(*of) != line {
                section.flows.remove(&flow);
            }
        }
        let section = line.map(|line| meant.sections.entry(line).or_insert_with(Section::new));
        let begins = section.as_ref().is_some_and(|section| section.flows.is_empty());
        let goes = section.and_then(|section| {
            section.flows.insert(flow);
            section.goes
        });
        let before = meant.placed.get(&flow).copied();
        if before != goes && meant.placed.remove(&flow).is_some() && goes.is_none() {
            let _ = at.low.place_flow(at.now, &flow, None, at.base);
        }
        // It may have another name than it had. Where there is no room, that is looked for from time to time.
        if let Some(to) = goes.filter(|to| before == Some(*to) || !meant.lacks_room) {
            match at.low.place_flow(at.now, &flow, Some(to), at.base) {
                Ok(()) => drop(meant.placed.insert(flow, to)),
                Err(error) => {
                    let _ = at.low.place_flow(at.now, &flow, None, at.base);
                    meant.placed.remove(&flow);
                    meant.lacks_room |= error == PlaceError::Full;
                }
            }
        }
        // There may be very many of them, one after the other.
        if begins || before != goes || meant.lacks_room && meant.asks.is_none() {
            self.look(id, at);
        }
    }

    /// Has single flows of a peer go as sections want it, where something else has been so for a while.
    pub(super) fn place_flows(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(mut meant) = self.meant.remove(&id) else { return };
        self.sort(id, &mut meant, at);
        // Where nothing depends on the peer, or it is not there, all stays as it was asked for.
        if let Some(here) = self.peers.get(&id).map(|watched| watched.at) {
            let by_hand = is_by_hand(id, at);
            let candidates = if meant.has_flows() { self.candidates(id, here, at) } else { Vec::new() };
            for wish in self.wishes.iter().filter(|wish| wish.of_flows) {
                let Some(section) = meant.sections.get_mut(&wish.line) else { continue };
                if section.flows.is_empty() {
                    continue;
                }
                let rules = self.with_prices(wish.rules.clone());
                let choice = if by_hand { None } else { Some(chosen(&candidates, &rules, section, here)) };
                let to = choice.and_then(|selected| takes(&selected, here));
                let to = to.and_then(|link| attachment_on(id, link, here, at));
                self.follow(id, wish.line, section, here, to, &candidates, at);
                let goes = self.placement(id, wish, section, here, &candidates, at);
                meant.changed |= std::mem::replace(&mut section.goes, goes) != goes;
            }
            self.ask_for_flows(id, &mut meant, here, at);
        }
        if std::mem::take(&mut meant.changed) {
            carry_out(id, &mut meant, at);
        }
        if !meant.flows.is_empty() || !meant.sections.is_empty() {
            self.meant.insert(id, meant);
        }
    }

    /// Finds out which section counts for which flows, where that may be otherwise than it was.
    fn sort(&self, id: PeerId, meant: &mut Meant, at: &At<'_>) {
        let Some(remote) = at.low.path().paths(&id).map(|paths| paths.remote().ip()) else { return };
        let count = at.low.flow().peer(&id).map_or(0, |peer| peer.flow.flows().len());
        // There may be very many, and each step comes by here. Flows that have ended do no harm meanwhile.
        let holds =
            |(at_then, of, then): (IpAddr, usize, Time)| at_then == remote && (of == count || at.now < then + SORTED);
        if meant.sorted.is_some_and(holds) {
            return;
        }
        meant.sorted = Some((remote, count, at.now));
        meant.changed = true;
        meant.flows.retain(|flow| peer_of(flow, at) == Some(id) && !met_by(flow, at).is_empty());
        meant.placed.retain(|flow, _| peer_of(flow, at) == Some(id));
        meant.sections.retain(|line, _| self.wishes.iter().any(|wish| wish.line == *line && wish.of_flows));
        meant.sections.values_mut().for_each(|section| section.flows.clear());
        for flow in &meant.flows {
            if let Some(wish) = section_of(&self.wishes, id, flow, met_by(flow, at), at) {
                meant.sections.entry(wish.line).or_insert_with(Section::new).flows.insert(*flow);
            }
        }
        for section in meant.sections.values_mut().filter(|section| section.flows.is_empty()) {
            // What begins next goes where those before it went, if that is still so when it is looked.
            (section.waits, section.doubt, section.begins) = (None, None, true);
        }
    }

    /// The flows of a section go there, once that has been wanted for long enough.
    fn follow(
        &self,
        id: PeerId,
        line: u32,
        section: &mut Section,
        here: Attachment,
        to: Option<Attachment>,
        candidates: &[LinkCandidate],
        at: &mut At<'_>,
    ) {
        let (from, goes) = (section.at.unwrap_or(here), to.unwrap_or(here));
        if from.link != goes.link {
            let known = candidates.iter().find(|candidate| candidate.link == from.link);
            let by_hand = is_by_hand(id, at);
            if known.is_some_and(|known| !known.tried) && !by_hand {
                // An end has moved, and the path is another that is not known to fail.
                section.waits = None;
                return;
            }
            let answers = known.is_some_and(|known| known.answers);
            let leaves = !answers || by_hand || (self.fault(from.link).is_some() && self.fault(goes.link).is_none());
            let since = match section.waits {
                Some((waits, since, _)) if waits == goes.link => since,
                _ => at.now,
            };
            // What leads nowhere has been left already (P-189), and by hand counts at once.
            let due = if leaves { since } else { since + section.damping.hold() };
            // Flows that begin have been nowhere else.
            if at.now < due || !(leaves || section.begins || section.damping.may_return(at.now)) {
                section.waits = Some((goes.link, since, due.max(at.now + LATER)));
                return;
            }
            // What fails again and again is left each time, and told of three times in a minute.
            let tells = !by_hand && (section.begins || section.damping.may_leave(at.now, at.now));
            if leaves {
                section.damping.leave(at.now);
            } else if !section.begins {
                section.damping.come_back(at.now);
            }
            section.begins = false;
            let (from, to, flows) = (from.address, goes.address, section.flows.len());
            if tells {
                at.base.event(Event::FlowsPlaced { peer: id, from, to, line, flows });
            }
        }
        (section.waits, section.at) = (None, to);
    }

    /// Has paths asked where flows go by others than the one in use, since a flow of UDP shows nobody that its network
    /// is silent; and where what is measured decides.
    fn ask_for_flows(&self, id: PeerId, meant: &mut Meant, here: Attachment, at: &mut At<'_>) {
        let sections = || meant.sections.iter().filter(|(_, section)| !section.flows.is_empty());
        let wish = |line: u32| self.wishes.iter().find(|wish| wish.line == line);
        let duplicates = sections().any(|(line, _)| wish(*line).is_some_and(|wish| wish.duplicate));
        let measures = duplicates || sections().any(|(line, _)| wish(*line).is_some_and(|wish| wish.rules.measures()));
        let in_doubt = sections().any(|(_, section)| section.is_doubtful(at.now));
        let lacks_room = meant.lacks_room;
        let apart = sections().filter_map(|(_, section)| section.goes).map(|goes| goes.from);
        let apart: BTreeSet<IpAddr> = apart.filter(|from| *from != here.address).collect();
        if meant.answers.is_some_and(|due| at.now >= due) {
            meant.answers = None;
        }
        if !measures && !lacks_room && apart.is_empty() {
            (meant.asks, meant.answers) = (None, None);
            return;
        }
        let pause = if in_doubt { DOUBTED } else { MEASURED };
        // An answer that is overdue has the next question go out sooner.
        let due = meant.asks.map(|due| if in_doubt { due.min(meant.asked + DOUBTED) } else { due });
        if due.is_some_and(|due| at.now < due) {
            meant.asks = due;
            return;
        }
        meant.changed |= lacks_room;
        let Some(paths) = at.low.path().paths(&id) else { return };
        let answered = paths.kept_answered().map(|(_, answered)| answered).chain([paths.heard()]);
        let answers = answered.max().is_some_and(|answered| answered >= meant.asked);
        meant.unanswered = if answers { 0 } else { meant.unanswered.saturating_add(1) };
        let rarer = meant.unanswered.saturating_sub(ASKED_IN_VAIN).min(RARER);
        meant.asks = Some(at.now + if rarer > 0 { MEASURED * 2u32.pow(rarer) } else { pause });
        meant.asked = at.now;
        if duplicates {
            let paces = paths.kept().map(|kept| paths.pace_of(kept.id)).chain([paths.pace()]);
            meant.answers = paces.map(|pace| at.now + pace.answer + OVERDUE_SLACK).max();
        }
        let placed = paths.kept().filter(|kept| apart.contains(&kept.attachment.address));
        let placed = placed.filter(|kept| kept.state == PathState::Confirmed).map(|kept| kept.id);
        for path in placed.collect::<Vec<PathId>>() {
            at.low.path_mut().check_kept(at.now, id, path, at.base);
        }
        let is_silent = self.peers.get(&id).is_some_and(|watched| watched.watch.silent_since().is_some());
        let is_measured = self.peers.get(&id).is_some_and(|watched| watched.wished.is_measured());
        if measures && !is_silent && (!is_measured || in_doubt) {
            ask_all(id, self.is_vigilant() && !duplicates, at);
        }
    }

    /// What sections come to for single flows of a peer.
    pub(super) fn explain_flows(
        &self,
        id: PeerId,
        here: Attachment,
        candidates: &[LinkCandidate],
        trial: Option<LinkTrial<'_>>,
        at: &At<'_>,
    ) -> Vec<FlowsChoice> {
        let wishes = trial.map_or(&self.wishes[..], |trial| trial.wishes);
        let mut meant: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for flow in at.low.flow().peer(&id).into_iter().flat_map(|peer| peer.flow.flows()) {
            let met = match trial {
                Some(trial) => trial.met.get(flow).map_or(&[][..], Vec::as_slice),
                None => met_by(flow, at),
            };
            let Some(wish) = section_of(wishes, id, flow, met, at).filter(|_| !met.is_empty()) else { continue };
            let goes_apart =
                at.low.flow().flows().get(flow).and_then(|known| known.entry()).is_some_and(|it| it.side != 0);
            let (all, apart) = meant.entry(wish.line).or_default();
            (*all, *apart) = (*all + 1, *apart + usize::from(goes_apart));
        }
        let known = self.meant.get(&id).filter(|_| trial.is_none());
        let of_flows = wishes.iter().filter_map(|wish| Some((wish, *meant.get(&wish.line)?)));
        let choice = |(wish, (flows, apart)): (&LinkWish, (usize, usize))| {
            let section = known.and_then(|meant| meant.sections.get(&wish.line));
            let none_yet = Section::new();
            let rules = self.with_prices(wish.rules.clone());
            let selected = chosen(candidates, &rules, section.unwrap_or(&none_yet), here);
            let waits = section.and_then(|section| section.waits).map(|(.., due)| due.since(at.now));
            let left_out = section.map_or(0, |section| section.left_out);
            let doubt = section.and_then(|section| section.doubt);
            let duplication = wish.duplicate.then(|| {
                let own = section.and_then(|section| section.at).unwrap_or(here);
                let before = doubt.map(|doubt| doubt.beside);
                let second = self.second(id, wish, own, here, candidates, before, at).map(|second| second.link);
                Duplication { second, doubt: doubt.map(|doubt| doubt.why) }
            });
            FlowsChoice { line: wish.line, flows, apart, left_out, duplication, waits, selected }
        };
        of_flows.map(choice).collect()
    }
}

/// What is selected for the flows of a section: where nothing else decides, that by which the peer is reached.
fn chosen(candidates: &[LinkCandidate], rules: &LinkRules, section: &Section, here: Attachment) -> Selected {
    select(candidates, rules, Some(section.at.map_or(here.link, |at| at.link)), Some(here.link))
}

/// The network that a section takes; none where its flows go with the others, wherever that is.
fn takes(selected: &Selected, here: Attachment) -> Option<LinkId> {
    let decides = !matches!(selected.why, Why::Routes | Why::NothingFits | Why::NothingAnswers);
    selected.link.filter(|link| decides || *link != here.link)
}

/// The section that counts for a flow, if it is one of single flows: the first that means it or its peer.
fn section_of<'w>(
    wishes: &'w [LinkWish],
    id: PeerId,
    flow: &FlowTuple,
    met: &[u32],
    at: &At<'_>,
) -> Option<&'w LinkWish> {
    let remote = at.low.path().paths(&id)?.remote().ip();
    let key = at.low.session().peer(&id)?.key();
    let means = |wish: &&LinkWish| match wish.of_flows {
        true => met.contains(&wish.line) && wish.means(flow.remote.ip(), &key),
        false => wish.means(remote, &key),
    };
    wishes.iter().find(means).filter(|wish| wish.of_flows)
}

fn met_by<'a>(flow: &FlowTuple, at: &'a At<'_>) -> &'a [u32] {
    at.low.flow().flows().get(flow).map_or(&[], |known| known.met())
}

/// Whose flow it is, where it is introduced and goes on.
fn peer_of(flow: &FlowTuple, at: &At<'_>) -> Option<PeerId> {
    let known = at.low.flow().flows().get(flow).filter(|known| !known.is_closed());
    known.and_then(|known| known.entry()).map(|entry| entry.peer)
}

/// Places the flows of a peer as its sections say by now. There may be very many: what is looked at are those that are
/// placed, and as many more as there is room for.
fn carry_out(id: PeerId, meant: &mut Meant, at: &mut At<'_>) {
    let Meant { sections, placed, .. } = meant;
    let wanted = |flow: &FlowTuple, sections: &BTreeMap<u32, Section>| {
        let section = sections.values().find(|section| section.flows.contains(flow));
        section.and_then(|section| section.goes)
    };
    placed.retain(|flow, to| {
        if peer_of(flow, at) != Some(id) {
            // It is over, and its room is free.
            return false;
        }
        let wanted = wanted(flow, sections);
        // What goes elsewhere is placed there below, and is where it was until the peer agrees.
        if wanted.is_none() {
            let _ = at.low.place_flow(at.now, flow, None, at.base);
        }
        wanted == Some(*to)
    });
    meant.lacks_room = false;
    for (line, section) in sections.iter_mut() {
        let before = std::mem::take(&mut section.left_out);
        let Some(to) = section.goes else { continue };
        let mut ended = Vec::new();
        let mut there = 0;
        for flow in &section.flows {
            if placed.contains_key(flow) {
                there += 1;
                continue;
            }
            match at.low.place_flow(at.now, flow, Some(to), at.base) {
                Ok(()) => {
                    placed.insert(*flow, to);
                    there += 1;
                }
                Err(PlaceError::Full) => {
                    let _ = at.low.place_flow(at.now, flow, None, at.base);
                    section.left_out = section.flows.len() - there - ended.len();
                    meant.lacks_room = true;
                    break;
                }
                // It has ended, or that address has gone.
                Err(PlaceError::UnknownFlow) => ended.push(*flow),
                Err(PlaceError::NoSuchAddress) => break,
            }
        }
        for flow in ended {
            section.flows.remove(&flow);
        }
        let told = section.left_out_told.is_some_and(|then| at.now < then + NOT_PLACED_AGAIN);
        if section.left_out > 0 && before == 0 && !told {
            section.left_out_told = Some(at.now);
            at.base.event(Event::FlowsNotPlaced { peer: id, to: to.from, line: *line, flows: section.left_out });
        }
    }
}
