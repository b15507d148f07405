//! Questions on single paths: each has a token of its own, so that it is certain what an answer answers, and how many
//! go unanswered is known (P-230).

use std::net::SocketAddr;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::id::PathId;
use crate::base::op::PeerId;
use crate::path::PathLayer;
use crate::path::estimate::Pace;
use crate::path::paths::{INITIAL_ROUND_TRIP, Paths};

impl Paths {
    /// When something authentic came by the path in use last.
    pub(crate) fn heard(&self) -> Time {
        self.heard
    }

    /// How long answers take on the path in use, and how many are missed by chance.
    pub(crate) fn pace(&self) -> Pace {
        self.estimate.pace(INITIAL_ROUND_TRIP)
    }

    /// Whether it is known by now how much is lost on the path in use.
    pub(crate) fn is_loss_known(&self) -> bool {
        self.estimate.is_loss_known()
    }

    /// The same of a path that is kept.
    pub(crate) fn pace_of(&self, kept: PathId) -> Pace {
        let kept = self.kept.iter().find(|path| path.is(kept));
        kept.map_or_else(|| self.pace(), |kept| kept.estimate().pace(INITIAL_ROUND_TRIP))
    }

    /// How many of a thousand questions go unanswered, on a path that is kept or on the one in use.
    pub(crate) fn lost(&self, kept: Option<PathId>) -> Option<u16> {
        match kept {
            Some(kept) => self.kept.iter().find(|path| path.is(kept))?.estimate().lost(),
            None => self.estimate.lost(),
        }
    }

    /// When the last question was asked that is not answered and should have been by now, on a path that is kept or on
    /// the one in use.
    pub(crate) fn overdue(&self, now: Time, kept: Option<PathId>) -> Option<Time> {
        match kept {
            Some(kept) => self.kept.iter().find(|path| path.is(kept))?.estimate().overdue(now),
            None => self.estimate.overdue(now),
        }
    }

    /// What is known of questions that are under way says nothing.
    pub(crate) fn forget_asked(&mut self) {
        self.estimate.forget_asked();
        self.kept.iter_mut().for_each(|kept| kept.estimate_mut().forget_asked());
    }

    /// Something authentic has come.
    pub(super) fn note_heard(&mut self, now: Time, arrival: &Arrival) {
        if self.is_by_path_in_use(arrival) {
            self.heard = now;
        }
    }

    /// Whether something has come by the path in use.
    pub(crate) fn is_by_path_in_use(&self, arrival: &Arrival) -> bool {
        let here = arrival.destination.is_none_or(|destination| Some(destination) == self.source);
        here && arrival.source == self.remote && !arrival.passed_on
    }
}

impl PathLayer {
    /// Asks a peer on the path in use, or on one that this host keeps. `counts`: an answer that does not come says
    /// something of how much is lost by chance.
    pub(crate) fn ask(&mut self, now: Time, id: PeerId, kept: Option<PathId>, counts: bool, base: &mut Base) {
        let token = base.random().u64();
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let (source, to, estimate, number) = match kept {
            None => (paths.source, paths.remote, &mut paths.estimate, None),
            Some(number) => {
                let Some(kept) = paths.kept.iter_mut().find(|path| path.is(number)) else { return };
                let Some(from) = kept.attachment() else { return };
                (Some(from.address), kept.remote(), kept.estimate_mut(), Some(number))
            }
        };
        estimate.ask(now, token, counts);
        let kept = number.map(|number| Message::PathKept { path: number.0 });
        let messages: Vec<Message> = kept.into_iter().chain([Message::PathChallenge { token }]).collect();
        self.send_to(id, source, to, &messages, base);
    }

    /// A question is answered, if this is the token of one. Where the peer has shown to be, by a path that is kept.
    pub(crate) fn on_asked_answer(
        &mut self,
        now: Time,
        id: PeerId,
        token: u64,
        observed: SocketAddr,
        base: &mut Base,
    ) -> Option<Option<SocketAddr>> {
        let paths = self.peers.get_mut(&id)?;
        if paths.estimate.answer(now, token) {
            paths.heard = now;
            return Some(None);
        }
        let mut all = paths.kept.iter_mut();
        let kept = all.find_map(|kept| kept.estimate_mut().answer(now, token).then_some(kept))?;
        let remote = kept.remote();
        kept.on_asked_answer(now, id, observed, base);
        Some(Some(remote))
    }
}
