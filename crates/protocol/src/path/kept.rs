//! Paths that are kept ready beside the one in use (P-180 to P-184): this host's, which it makes from other
//! attachments, and the peer's, of which it is told. Each is confirmed, measured and kept alive by itself.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::attachments::Attachment;
use crate::base::id::{LinkId, PathId};
use crate::base::op::PeerId;
use crate::base::pace::KEEPALIVE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::path::PathLayer;
use crate::path::challenge::Path;
use crate::path::estimate::Estimate;
use crate::path::paths::Paths;
use crate::session::peer::Peer;

/// Paths that are kept to one peer at the most. Of a peer's one more is remembered: one that is to take the place of
/// another has not answered yet.
const MOST: usize = 4;
/// How long one of a peer's counts after it was told of last: four checks of it.
const TOLD_FOR: Duration = Duration::from_secs(4 * KEEPALIVE.as_secs());
/// After that time it is to show again that it is there.
const CONFIRMED_AGAIN: Duration = Duration::from_secs(2 * KEEPALIVE.as_secs());
/// Unanswered challenges in close succession after which one that is kept has failed.
const CHECKS: u32 = 4;
/// How often the pause is doubled until one that has failed is tried again.
const RARER: u32 = 4;

/// How a path stands that is kept ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Nothing has come back by it yet.
    Unconfirmed,
    /// What was sent by it has come back.
    Confirmed,
    /// What was sent by it of late has not.
    Failed,
}

/// A path that this host keeps ready to a peer, as the outside may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Its number.
    pub id: PathId,
    /// Where it begins.
    pub attachment: Attachment,
    /// Where it leads.
    pub remote: SocketAddr,
    /// How it stands.
    pub state: PathState,
    /// Smoothed round trip, where that was measured.
    pub round_trip: Option<Duration>,
    /// Where it begins as the peer sees it.
    pub observed: Option<SocketAddr>,
}

/// How packets go by a path that is kept ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) id: PathId,
    /// This host's address there, and the link that it is on.
    pub(crate) source: Option<IpAddr>,
    pub(crate) link: Option<LinkId>,
    pub(crate) remote: SocketAddr,
}

/// A path that is kept ready.
#[derive(Debug)]
pub(super) struct Kept {
    id: PathId,
    end: End,
    path: Path,
    state: PathState,
    estimate: Estimate,
    observed: Option<SocketAddr>,
    /// When a challenge was answered last.
    answered: Time,
    /// How often it has failed since.
    failures: u32,
}

/// Whose it is.
#[derive(Clone, Copy, Debug)]
enum End {
    /// This host's, from there.
    Own(Attachment),
    /// The peer's, which calls it by this number, and told of it last at that time; and where it arrives.
    Peer { number: u32, told: Time, local: Option<IpAddr>, link: Option<LinkId> },
}

impl Kept {
    fn new(id: PathId, end: End, path: Path) -> Self {
        let (state, estimate, answered) = (PathState::Unconfirmed, Estimate::default(), Time::default());
        Self { id, end, path, state, estimate, observed: None, answered, failures: 0 }
    }

    /// Whether a challenge was answered, and not longer ago than that.
    fn has_answered(&self, now: Time, within: Duration) -> bool {
        self.state == PathState::Confirmed && self.answered + within > now
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state == PathState::Failed
    }

    pub(super) fn is(&self, id: PathId) -> bool {
        self.id == id
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.path.remote
    }

    pub(super) fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    pub(super) fn estimate_mut(&mut self) -> &mut Estimate {
        &mut self.estimate
    }

    pub(super) fn attachment(&self) -> Option<Attachment> {
        match self.end {
            End::Own(attachment) => Some(attachment),
            End::Peer { .. } => None,
        }
    }

    fn way(&self) -> Way {
        let (source, link) = match self.end {
            End::Own(attachment) => (Some(attachment.address), Some(attachment.link)),
            End::Peer { local, link, .. } => (local, link),
        };
        Way { id: self.id, source, link, remote: self.path.remote }
    }

    /// Whether it is one of the peer's to there, and counts still.
    fn is_told(&self, now: Time, remote: SocketAddr) -> bool {
        self.path.remote == remote && matches!(self.end, End::Peer { told, .. } if told + TOLD_FOR > now)
    }

    fn on_answer(&mut self, now: Time, observed: SocketAddr) {
        let (age, is_certain) = self.path.age(now);
        if is_certain {
            self.estimate.sample(age);
        }
        self.note_answer(now, observed);
    }

    fn note_answer(&mut self, now: Time, observed: SocketAddr) {
        (self.state, self.observed, self.answered) = (PathState::Confirmed, Some(observed), now);
        self.failures = 0;
        self.path.settle();
    }

    /// A question on it is answered that was asked beside its challenges.
    pub(super) fn on_asked_answer(&mut self, now: Time, id: PeerId, observed: SocketAddr, base: &mut Base) {
        if self.state != PathState::Confirmed {
            base.signal(Signal::PathChanged(id));
        }
        self.note_answer(now, observed);
        base.set_timer(Timer::Path(id, self.id), now + KEEPALIVE);
        base.signal(Signal::PathAnswered(id));
    }
}

impl Paths {
    /// This host's paths that are kept.
    pub(crate) fn kept(&self) -> impl Iterator<Item = PathView> {
        self.kept.iter().filter_map(|kept| {
            let Kept { id, state, observed, path, estimate, .. } = kept;
            let round_trip = estimate.smoothed();
            let (id, state, observed) = (*id, *state, *observed);
            Some(PathView { id, attachment: kept.attachment()?, remote: path.remote, state, round_trip, observed })
        })
    }

    /// The same, with when each has answered last.
    pub(crate) fn kept_answered(&self) -> impl Iterator<Item = (PathView, Time)> {
        let answered = |view: PathView| {
            let kept = self.kept.iter().find(|kept| kept.is(view.id));
            (view, kept.map_or(Time::default(), |kept| kept.answered))
        };
        self.kept().map(answered)
    }

    /// The path that is kept from this address, if it works.
    pub(crate) fn way_from(&self, from: IpAddr) -> Option<Way> {
        let is_own = |kept: &&Kept| kept.attachment().is_some_and(|attachment| attachment.address == from);
        self.kept.iter().find(is_own).filter(|kept| kept.state == PathState::Confirmed).map(Kept::way)
    }

    /// The path that the peer keeps and calls by this number, if it has shown that it is there.
    pub(crate) fn way_told(&self, now: Time, number: u32) -> Option<Way> {
        let is_so =
            |end: &End| matches!(end, End::Peer { number: of, told, .. } if *of == number && *told + TOLD_FOR > now);
        let told = self.kept.iter().find(|kept| is_so(&kept.end));
        told.filter(|kept| kept.has_answered(now, TOLD_FOR)).map(Kept::way)
    }

    /// The link that what goes between these two is sent by: that of the path which is kept there.
    pub(super) fn link_between(&self, source: Option<IpAddr>, to: SocketAddr) -> Option<LinkId> {
        if source.is_some() && source == self.source && self.own_link().is_some() {
            return self.own_link();
        }
        self.kept.iter().find_map(|kept| match kept.end {
            End::Own(attachment) if Some(attachment.address) == source => Some(attachment.link),
            // The path in use leaves by whichever link has the address now.
            End::Peer { local, link, .. } if kept.path.remote == to && local == source && to != self.remote => link,
            End::Own(_) | End::Peer { .. } => None,
        })
    }

    /// Takes what a control datagram of this length may cost, if it may go there (P-18).
    pub(super) fn may_send(&mut self, to: SocketAddr, length: u64) -> bool {
        if to == self.remote {
            // It is confirmed, whatever became of the path there while it was only kept.
            return true;
        }
        let kept = self.kept.iter_mut().filter(|kept| kept.attachment().is_none());
        let kept = kept.filter(|kept| kept.state != PathState::Confirmed).map(|kept| &mut kept.path);
        let rival = self.rival.iter_mut().map(|rival| &mut rival.path);
        let mut unconfirmed = self.candidate.iter_mut().chain(rival).chain(kept);
        unconfirmed.find(|path| path.remote == to).is_none_or(|path| path.spend(length))
    }

    /// Something authentic came from the end of one that the peer keeps: as much more may go there (P-18).
    pub(super) fn on_kept_heard(&mut self, arrival: &Arrival) {
        let theirs = self.kept.iter_mut().filter(|kept| kept.attachment().is_none());
        let came_by = |kept: &&mut Kept| kept.path.remote == arrival.source && kept.way().source == arrival.destination;
        theirs.filter(came_by).for_each(|kept| kept.path.hear(arrival.length));
    }

    /// Whether the peer keeps a path to there, so that nobody need wonder what comes by it.
    pub(crate) fn is_told(&self, now: Time, remote: SocketAddr) -> bool {
        self.kept.iter().any(|kept| kept.is_told(now, remote))
    }

    /// Whether the peer has shown that it is at the end of a path which it keeps ready: it need not show it again when
    /// it moves there (P-183).
    pub(crate) fn is_ready(&self, now: Time, remote: SocketAddr) -> bool {
        self.kept.iter().any(|kept| kept.is_told(now, remote) && kept.has_answered(now, TOLD_FOR))
    }

    /// The peer has moved to the end of a path that it has kept ready: that is the one in use from now on.
    pub(crate) fn follow_ready(&mut self, now: Time, remote: SocketAddr) {
        if let Some(at) = self.kept.iter().position(|kept| kept.is_told(now, remote)) {
            let kept = self.kept.remove(at);
            self.confirm(remote);
            self.use_path(kept.id, kept.estimate);
        }
    }

    /// The path that is kept from there is the one in use from now on; or another that nothing is known of.
    pub(super) fn take_kept(&mut self, attachment: Attachment) {
        match self.kept.iter().position(|kept| kept.attachment() == Some(attachment)) {
            Some(at) => {
                let Kept { id, estimate, observed, .. } = self.kept.remove(at);
                self.use_path(id, estimate);
                self.set_observed(observed);
            }
            None => {
                let id = self.next_id();
                self.use_path(id, Estimate::default());
                self.set_observed(None);
            }
        }
    }
}

impl PathLayer {
    /// Makes the paths that are kept to a peer those that are wanted: from each of these attachments, to where the peer
    /// is, or to another of its addresses where that is of the other family.
    pub(crate) fn keep_from(&mut self, now: Time, id: PeerId, wanted: &[Attachment], base: &mut Base) {
        let port = base.config().port;
        let answered = self.session.peer(&id).map_or(&[][..], Peer::answers_at);
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let target = |attachment: &Attachment| {
            let alike = |to: &SocketAddr| to.is_ipv4() == attachment.address.is_ipv4();
            [paths.remote].into_iter().chain(paths.whereabouts(answered, port)).find(alike)
        };
        let wanted: Vec<(Attachment, SocketAddr)> =
            wanted.iter().filter_map(|attachment| Some((*attachment, target(attachment)?))).take(MOST).collect();
        paths.kept.retain(|kept| {
            let stays = kept.attachment().is_none_or(|own| wanted.contains(&(own, kept.path.remote)));
            if !stays {
                base.stop_timer(Timer::Path(id, kept.id));
                base.signal(Signal::PathChanged(id));
            }
            stays
        });
        for (attachment, remote) in wanted {
            if paths.kept.iter().all(|kept| kept.attachment() != Some(attachment)) {
                let number = paths.next_id();
                paths.kept.push(Kept::new(number, End::Own(attachment), Path::kept(remote, 0)));
                base.set_timer(Timer::Path(id, number), now);
            }
        }
    }

    /// There is another session with a peer, which may know of no path that is kept.
    pub(crate) fn tell_kept(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let own = self.peers.get(&id).into_iter().flat_map(Paths::kept);
        own.for_each(|kept| base.set_timer(Timer::Path(id, kept.id), now));
    }

    /// It is time to challenge a path that is kept, for the first time, again, or anew (P-181).
    pub(crate) fn challenge_kept(&mut self, now: Time, id: PeerId, number: PathId, base: &mut Base) {
        let fresh = base.random().u64();
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let Some(at) = paths.kept.iter().position(|kept| kept.id == number) else { return };
        let kept = &mut paths.kept[at];
        let (to, end) = (kept.path.remote, kept.end);
        let Some(tries) = kept.path.challenge_anew(now, fresh, CHECKS) else {
            kept.path.settle();
            kept.state = PathState::Failed;
            base.signal(Signal::PathChanged(id));
            // One of the peer's is challenged again where it is told of again.
            let pause = KEEPALIVE * 2u32.pow(kept.failures.min(RARER));
            kept.failures += 1;
            if matches!(end, End::Own(_)) {
                base.set_timer(Timer::Path(id, number), now + pause);
            }
            return;
        };
        let challenge = Message::PathChallenge { token: kept.path.token };
        let (again, is_shown) = (paths.repeat_after(tries), paths.has_shown(to));
        base.set_timer(Timer::Path(id, number), now + again);
        match end {
            End::Own(attachment) => {
                let messages = [Message::PathKept { path: number.0 }, challenge];
                let source = Some(attachment.address);
                // P-41
                if is_shown {
                    self.send_padded(id, source, to, &messages, base);
                } else {
                    self.send_to(id, source, to, &messages, base);
                }
            }
            End::Peer { local, .. } => self.send_to(id, local, to, &[challenge], base),
        }
    }

    /// Something goes by a path that is kept, and gets no answer: it is challenged at once.
    pub(crate) fn check_kept(&mut self, now: Time, id: PeerId, number: PathId, base: &mut Base) {
        let kept = self.peers.get(&id).and_then(|paths| paths.kept.iter().find(|kept| kept.id == number));
        if kept.is_some_and(|kept| !kept.path.is_challenged()) {
            base.set_timer(Timer::Path(id, number), now);
        }
    }

    /// The peer says that a path of this host's has failed.
    pub(crate) fn doubt_kept(&mut self, now: Time, id: PeerId, number: u32, base: &mut Base) {
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let own = paths.kept.iter_mut().find(|kept| kept.id.0 == number && kept.attachment().is_some());
        if let Some(kept) = own.filter(|kept| kept.state == PathState::Confirmed) {
            kept.path.settle();
            kept.state = PathState::Failed;
            base.set_timer(Timer::Path(id, kept.id), now);
            base.signal(Signal::PathChanged(id));
        }
    }

    /// A peer keeps the path ready that this came by, and calls it by that number (P-182).
    pub(crate) fn on_kept(&mut self, now: Time, id: PeerId, arrival: &Arrival, number: u32, base: &mut Base) {
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let remote = arrival.source;
        if arrival.passed_on || paths.remote == remote || paths.challenge_to(remote).is_some() {
            // It is in use, or going to be.
            return;
        }
        let end = End::Peer { number, told: now, local: arrival.destination, link: arrival.link };
        if let Some(known) = paths.kept.iter_mut().find(|kept| kept.is_told(now, remote)) {
            let way = known.way();
            known.end = end;
            if known.way() != way {
                base.signal(Signal::PathChanged(id));
            }
            if !known.has_answered(now, CONFIRMED_AGAIN) && !base.has_timer(Timer::Path(id, known.id)) {
                base.set_timer(Timer::Path(id, known.id), now);
            }
            return;
        }
        // One of that number which led elsewhere is another now; and those count no more that were not told of.
        let counts = |kept: &Kept| match kept.end {
            End::Own(_) => true,
            End::Peer { number: of, told, .. } => of != number && told + TOLD_FOR > now,
        };
        let theirs = paths.kept.iter().filter(|kept| kept.attachment().is_none() && counts(kept));
        // Who tells of many keeps those that have answered; of these one that it keeps no more is told of no more.
        let rank = |kept: &&Kept| match kept.end {
            End::Peer { told, .. } if kept.state == PathState::Confirmed => (true, told),
            End::Peer { .. } | End::Own(_) => (false, Time::default()),
        };
        let surplus = if theirs.clone().count() <= MOST { None } else { theirs.min_by_key(rank).map(|kept| kept.id) };
        paths.kept.retain(|kept| {
            let stays = counts(kept) && Some(kept.id) != surplus;
            if !stays {
                base.stop_timer(Timer::Path(id, kept.id));
                base.signal(Signal::PathChanged(id));
            }
            stays
        });
        let number = paths.next_id();
        paths.kept.push(Kept::new(number, end, Path::kept(remote, arrival.length)));
        base.set_timer(Timer::Path(id, number), now);
    }

    /// An answer came to a challenge of a path that is kept. Gives the endpoint where a peer has shown to be so.
    pub(crate) fn on_kept_answer(
        &mut self,
        now: Time,
        id: PeerId,
        token: u64,
        observed: SocketAddr,
        base: &mut Base,
    ) -> Option<SocketAddr> {
        let kept = &mut self.peers.get_mut(&id)?.kept;
        let kept = kept.iter_mut().find(|kept| kept.path.is_asked(token))?;
        if kept.state != PathState::Confirmed {
            base.signal(Signal::PathChanged(id));
        }
        kept.on_answer(now, observed);
        if kept.attachment().is_some() {
            base.signal(Signal::PathAnswered(id));
        }
        match kept.end {
            End::Own(_) => base.set_timer(Timer::Path(id, kept.id), now + KEEPALIVE),
            End::Peer { .. } => base.stop_timer(Timer::Path(id, kept.id)),
        }
        Some(kept.path.remote)
    }
}
