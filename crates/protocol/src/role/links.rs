//! By which of this host's networks its peers are reached. One whose path in use brings nothing any more is led by
//! another that has answered since the doubt began (P-230 to P-232; decision 0106): without such it stays where it is.
//! And what the user's file selects is taken, for peers (P-237; decision 0108) and for single flows (P-238; 0118),
//! which go by two networks at once in moments of doubt (P-263; 0119).

mod damp;
mod doubt;
mod facts;
pub(crate) mod meant;
mod placing;
pub(crate) mod select;
mod traffic;
mod watch;
pub(crate) mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::config::{SilenceMode, SilenceThresholds};
use crate::base::event::Event;
use crate::base::id::{LinkId, PathId};
use crate::base::link_facts::LinkFacts;
use crate::base::op::{Between, BindingOp, PeerId};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::binding::lead::Silence;
use crate::path::paths::Wants;
use crate::role::links::damp::{Damping, Trial, Tried};
use crate::role::links::meant::Meant;
use crate::role::links::select::LinkWish;
use crate::role::links::watch::{Shown, Verdict, Watch};
use crate::role::links::wishes::Wished;
use crate::role::{At, Role};

/// So many peers are asked at the full pace where they are watched all the time; with more each is asked more rarely.
const FULL_PACE: usize = 8;

/// What this host knows of its networks towards peers.
pub(crate) struct LinksRole {
    mode: SilenceMode,
    thresholds: SilenceThresholds,
    peers: BTreeMap<PeerId, Watched>,
    timers: Timers<PeerId>,
    /// What the user's file wants.
    wishes: Vec<LinkWish>,
    /// What is known of links by themselves, where anything is.
    facts: BTreeMap<LinkId, LinkFacts>,
    /// Flows that the user's file may mean by more than their peer.
    meant: BTreeMap<PeerId, Meant>,
}

/// One peer.
struct Watched {
    /// The path in use that this is about.
    at: Attachment,
    watch: Watch,
    damping: Damping,
    /// Which network was left for which, and how that fares.
    left: Option<(Wants, Tried)>,
    /// What is under way since the user's file wants it.
    wished: Wished,
    /// What goes between this host and the peer, where that is watched, and how long its answers may take.
    traffic: Option<(Between, Duration)>,
}

impl Watched {
    fn new(now: Time, at: Attachment, vigilant: bool) -> Self {
        let (watch, damping) = (Watch::new(now, vigilant), Damping::new());
        Self { at, watch, damping, left: None, wished: Wished::default(), traffic: None }
    }
}

impl Role for LinksRole {
    fn new(base: &Base) -> Self {
        let links = &base.config().links;
        Self {
            mode: links.mode,
            thresholds: links.thresholds,
            peers: BTreeMap::new(),
            timers: Timers::default(),
            wishes: Vec::new(),
            facts: BTreeMap::new(),
            meant: BTreeMap::new(),
        }
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        if !self.is_active() {
            return;
        }
        match signal {
            Signal::NetworkChanged | Signal::Returned => self.look_at_all(at),
            Signal::FlowsBegun => {
                let known = |id: &PeerId| self.peers.contains_key(id);
                let new: Vec<PeerId> = at.low.session().ids().into_iter().filter(|id| !known(id)).collect();
                new.into_iter().for_each(|id| self.look(id, at));
            }
            Signal::FlowNamed { peer, flow } => self.consider_flow(*peer, *flow, at),
            Signal::SessionUp(id)
            | Signal::SessionsGone(id)
            | Signal::Moving(id)
            | Signal::Answered(id)
            | Signal::PathAnswered(id)
            | Signal::PathChanged(id) => self.look(*id, at),
            Signal::Overdue(id) | Signal::Unanswered(id) => {
                self.look(*id, at);
                self.suspect(*id, at);
            }
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        if let Some(id) = self.timers.take_due(at.now) {
            self.look(id, at);
        }
    }

    fn forget_peer(&mut self, id: PeerId, _: PublicKey, at: &mut At<'_>) {
        self.watch_traffic(id, None, at);
        self.peers.remove(&id);
        self.meant.remove(&id);
        self.timers.stop(id);
    }

    fn entries(&self) -> usize {
        self.peers.len() + self.meant.values().map(Meant::entries).sum::<usize>()
    }
}

impl LinksRole {
    /// Whether there is anything to be done.
    fn is_active(&self) -> bool {
        let is_led = || self.peers.values().any(|watched| watched.wished.is_led());
        self.mode != SilenceMode::Off || !self.wishes.is_empty() || self.knows_fault() || is_led()
    }

    fn is_vigilant(&self) -> bool {
        self.mode == SilenceMode::Vigilant
    }

    fn look_at_all(&mut self, at: &mut At<'_>) {
        for id in at.low.session().ids() {
            self.look(id, at);
        }
    }

    /// Something that a peer usually answers was not answered.
    fn suspect(&mut self, id: PeerId, at: &mut At<'_>) {
        if let Some(watched) = self.peers.get_mut(&id).filter(|_| self.mode != SilenceMode::Off) {
            watched.watch.suspect(at.now, at.now, at.now);
            self.look(id, at);
        }
    }

    /// The path in use to a peer, where something depends on it, and whether there may be another one.
    fn in_use(id: PeerId, at: &At<'_>) -> Option<(Attachment, bool)> {
        let attachments = at.base.attachments();
        let own = attachments.addresses().filter_map(|address| attachments.get(address));
        let links: BTreeSet<LinkId> = own.map(|own| own.link).filter(|link| link.leads_out()).collect();
        let here = at.low.path().paths(&id)?.attachment()?;
        (links.contains(&here.link) && at.low.depends_on_paths(id, at.base)).then_some((here, links.len() > 1))
    }

    /// Sees to a peer: whether its path is silent, and what else there is.
    fn look(&mut self, id: PeerId, at: &mut At<'_>) {
        let (vigilant, is_meant) = (self.is_vigilant(), self.wanted(id, at).is_some());
        // Where a file wants something, it stays known how often a network has gone.
        let has_meant = self.has_meant(id);
        let found = Self::in_use(id, at).filter(|(_, is_choice)| *is_choice || is_meant || has_meant);
        let Some((here, is_choice)) = found else {
            self.forget(id, at);
            return;
        };
        let watched = self.peers.entry(id).or_insert_with(|| Watched::new(at.now, here, vigilant));
        if watched.at != here {
            // Somebody has moved it, or the network has.
            (watched.at, watched.watch) = (here, Watch::new(at.now, vigilant));
            if is_meant {
                watched.damping.leave(at.now);
            }
            if watched.left.is_some_and(|(wants, _)| wants.prefer != here) {
                watched.left = None;
                at.low.want_nothing(id);
            }
        }
        if is_choice {
            self.poll(id, at);
        }
        self.try_former(id, at);
        self.follow_wish(id, at);
        self.place_flows(id, at);
        self.settle(id, is_choice, at);
    }

    /// Nothing is to be seen to of a peer any more.
    fn forget(&mut self, id: PeerId, at: &mut At<'_>) {
        self.timers.stop(id);
        self.watch_traffic(id, None, at);
        if self.peers.remove(&id).is_some() {
            at.low.want_nothing(id);
            at.low.keep_all(at.now, id, false, at.base);
        }
        self.place_flows(id, at);
        // What nothing depends on is not watched either: what is new begins where the routes lead, as the first does.
        let rests = at.low.flow().peer(&id).is_none_or(|peer| peer.flow.flows().is_empty());
        if rests || self.wanted(id, at).is_none() {
            at.low.select_nothing(at.now, id, at.base);
        }
    }

    /// As many peers as are watched are asked in the time of the first threshold, and no more.
    fn thresholds(&self) -> SilenceThresholds {
        let share = u32::try_from(self.peers.len().div_ceil(FULL_PACE)).unwrap_or(u32::MAX).max(1);
        let SilenceThresholds { first, second } = self.thresholds;
        SilenceThresholds { first: first * share, second: first * share + second.saturating_sub(first) }
    }

    /// What the path in use has to say.
    fn poll(&mut self, id: PeerId, at: &mut At<'_>) {
        let (vigilant, thresholds) = (self.is_vigilant(), self.thresholds());
        loop {
            let Some(watched) = self.peers.get_mut(&id) else { return };
            let Some(paths) = at.low.path().paths(&id) else { return };
            let shown = match watched.traffic {
                None => Shown::Never,
                // As long as it is not known how much is lost, no question is saved.
                Some(_) if !paths.is_loss_known() => Shown::Doubted,
                Some(_) => Shown::Always,
            };
            let (heard, pace) = (paths.heard(), paths.pace());
            let verdict = watched.watch.poll(at.now, heard, vigilant, shown, &thresholds, &pace);
            let between = watched.traffic.map(|(between, _)| between);
            let is_silent = watched.watch.silent_since().is_some();
            if watched.watch.take_late()
                && let Some(paths) = at.low.path_mut().paths_mut(&id)
            {
                paths.forget_asked();
            }
            match verdict {
                None => break,
                Some(Verdict::Look) => {
                    let Some(between) = between else { continue };
                    at.base.ask(BindingOp::LookAtTraffic { between }, Asked::Traffic(id, between));
                }
                Some(Verdict::Ask) => at.low.path_mut().ask(at.now, id, None, true, at.base),
                Some(Verdict::AskAll) => {
                    at.low.path_mut().ask(at.now, id, None, !is_silent, at.base);
                    self.ask_others(id, at);
                }
                Some(Verdict::Silent(_)) => {
                    if let Some(paths) = at.low.path_mut().paths_mut(&id) {
                        paths.forget_asked();
                    }
                    self.suspect_others(id, at);
                }
            }
        }
        self.leave_silent(id, at);
    }

    /// All other networks are asked, those that have not answered meanwhile.
    fn ask_others(&mut self, id: PeerId, at: &mut At<'_>) {
        // Those that are kept from now on are asked by that.
        let before = others(id, at);
        at.low.keep_all(at.now, id, true, at.base);
        for path in before {
            at.low.path_mut().ask(at.now, id, Some(path), false, at.base);
        }
    }

    /// What one peer is not reached by, others may not be either: they are asked, and not waited for.
    fn suspect_others(&mut self, id: PeerId, at: &At<'_>) {
        let Some(link) = self.peers.get(&id).map(|watched| watched.at.link) else { return };
        let beside = self.peers.iter_mut().filter(|(other, watched)| **other != id && watched.at.link == link);
        for (other, watched) in beside {
            watched.watch.suspect(at.now, at.now, at.now);
            self.timers.set(*other, at.now);
        }
    }

    /// A path that is silent is left for the nearest that has answered since the doubt began.
    fn leave_silent(&mut self, id: PeerId, at: &mut At<'_>) {
        let facts = &self.facts;
        let fault = |link: LinkId| facts.get(&link).and_then(LinkFacts::fault);
        let Some(watched) = self.peers.get_mut(&id) else { return };
        let Some(begun) = watched.watch.silent_since().filter(|begun| watched.damping.may_leave(at.now, *begun)) else {
            return;
        };
        let Some(paths) = at.low.path().paths(&id) else { return };
        let answered = paths.kept_answered().filter(|(path, answered)| {
            path.attachment.link != watched.at.link
                && *answered > begun
                && at.base.attachments().is_current(&path.attachment)
        });
        let Some((path, _)) = answered.min_by_key(|(path, _)| (fault(path.attachment.link), path.round_trip, path.id))
        else {
            return;
        };
        let (from, to) = (watched.at, path.attachment);
        let silence = Silence { of: from, lasts: watched.watch.lasts(at.now) };
        watched.damping.leave(at.now);
        let vigilant = self.mode == SilenceMode::Vigilant;
        (watched.at, watched.watch) = (to, Watch::new(at.now, vigilant));
        // Where the routes lead there is nothing to be wanted.
        let goes_home = watched.left.is_some_and(|(wants, _)| wants.exclude == to);
        let (exclude, tried) = watched.left.map_or((from, Tried::new(at.now)), |(wants, tried)| (wants.exclude, tried));
        let wants = Wants { prefer: to, exclude: if goes_home { from } else { exclude } };
        watched.left = (!goes_home).then_some((wants, tried));
        at.low.leave_silent(at.now, id, wants, silence, at.base);
        if goes_home {
            at.low.want_nothing(id);
        }
    }

    /// Whether the network that was left answers again.
    fn try_former(&mut self, id: PeerId, at: &mut At<'_>) {
        let facts = &self.facts;
        let fault = |link: LinkId| facts.get(&link).and_then(LinkFacts::fault);
        let Some(watched) = self.peers.get_mut(&id) else { return };
        let Some((wants, tried)) = &mut watched.left else { return };
        let (wants, Some(paths)) = (*wants, at.low.path().paths(&id)) else { return };
        if !at.base.attachments().is_current(&wants.exclude) {
            // The routes lead elsewhere by now.
            watched.left = None;
            at.low.want_nothing(id);
            return;
        }
        // What is avoided is not come back to, whether it answers or not.
        let former = paths.kept_answered().find(|(path, _)| path.attachment.link == wants.exclude.link);
        let former = former.filter(|_| fault(wants.exclude.link).is_none());
        let (path, answered) = former.map_or((None, Time::default()), |(path, answered)| (Some(path.id), answered));
        let answer = path.map_or(Duration::ZERO, |path| paths.pace_of(path).answer);
        let trial = tried.poll(at.now, answered, answer, &watched.damping);
        let is_fine = tried.is_fine();
        match trial {
            None => {}
            Some(Trial::Ask) => {
                at.low.keep_all(at.now, id, true, at.base);
                if path.is_some() {
                    at.low.path_mut().ask(at.now, id, path, is_fine, at.base);
                }
            }
            Some(Trial::Return) => {
                watched.damping.come_back(at.now);
                watched.left = None;
                (watched.at, watched.watch) = (wants.exclude, Watch::new(at.now, self.mode == SilenceMode::Vigilant));
                let flows = at.low.flow().peer(&id).map_or(0, |peer| peer.flow.flows().len());
                let Wants { prefer, exclude } = wants;
                let (from, to) = (prefer.address, exclude.address);
                at.base.event(Event::NetworkBack { peer: id, from, to, flows });
                at.low.come_back_to(at.now, id, exclude, at.base);
            }
        }
    }

    /// Which paths are kept ready from now on, and when this peer is seen to next.
    fn settle(&mut self, id: PeerId, is_choice: bool, at: &mut At<'_>) {
        let (vigilant, thresholds) = (self.is_vigilant(), self.thresholds());
        let Some(watched) = self.peers.get(&id) else { return };
        let wishes = self.wanted(id, at).is_some() || self.has_meant(id);
        let keeps = vigilant || wishes || watched.left.is_some() || !watched.watch.is_at_rest();
        at.low.keep_all(at.now, id, keeps, at.base);
        let watches = is_choice && self.mode != SilenceMode::Off;
        self.watch_traffic(id, watches.then(|| self.granted(id, at)).flatten(), at);
        let Some(watched) = self.peers.get(&id) else { return };
        let Some(paths) = at.low.path().paths(&id) else { return };
        let due = watched.watch.due(&thresholds, &paths.pace()).filter(|_| is_choice);
        let wished = watched.wished.due().into_iter().chain(self.meant.get(&id).and_then(Meant::due));
        let tried = watched.left.as_ref().map(|(_, tried)| tried.due());
        match due.into_iter().chain(tried).chain(wished).min() {
            // What was due now has been seen to.
            Some(due) => self.timers.set(id, due.max(at.now)),
            None => self.timers.stop(id),
        }
    }
}

/// The paths that this host keeps to a peer.
fn others(id: PeerId, at: &At<'_>) -> Vec<PathId> {
    let Some(paths) = at.low.path().paths(&id) else { return Vec::new() };
    paths.kept().map(|path| path.id).collect()
}
