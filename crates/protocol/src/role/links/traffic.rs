//! What goes between this host and its peers, whatever carries it, as the data plane sees it (decision 0111): where
//! something is not answered that usually is, the peer is asked at once (P-260), and where something comes it is asked
//! less often (P-261).

use std::time::Duration;

use crate::Time;
use crate::base::config::SilenceMode;
use crate::base::op::{Between, BindingOp, PeerId};
use crate::base::output::Asked;
use crate::path::paths::Paths;
use crate::role::At;
use crate::role::links::LinksRole;

/// What answers are granted at the least where nothing is asked at rest: acknowledgements are put off for 40 ms, and
/// for 200 by some.
const AT_REST: Duration = Duration::from_millis(100);

/// Where nothing is asked at rest, a peer that has answered is asked no sooner for that again.
const PAUSE: Duration = Duration::from_secs(1);

impl LinksRole {
    /// See [`Node::handle_overdue`](crate::Node::handle_overdue).
    pub(crate) fn handle_overdue(&mut self, between: Between, lasts: Duration, at: &mut At<'_>) {
        let (first, vigilant) = (self.thresholds().first, self.mode == SilenceMode::Vigilant);
        let there = self.peers.iter().filter(|(_, watched)| watched.traffic.is_some_and(|(of, _)| of == between));
        for id in there.map(|(id, _)| *id).collect::<Vec<_>>() {
            let heard = at.low.path().paths(&id).map_or(Time::default(), Paths::heard);
            if let Some(watched) = self.peers.get_mut(&id) {
                let next = heard + if vigilant { first } else { PAUSE };
                watched.watch.suspect(at.now, at.now - lasts, next);
                self.look(id, at);
            }
        }
    }

    /// When something last came from a peer, be it the peer's or not.
    pub(crate) fn handle_heard(&mut self, id: PeerId, between: Between, heard: Option<Time>, at: &mut At<'_>) {
        let thresholds = self.thresholds();
        let Some(watched) = self.peers.get_mut(&id) else { return };
        if watched.traffic.is_some_and(|(of, _)| of == between) {
            watched.watch.notice(heard.unwrap_or_default(), &thresholds);
        }
        self.look(id, at);
    }

    /// The addresses that a peer is reached by, and how long what it answers may take.
    pub(super) fn granted(&self, id: PeerId, at: &At<'_>) -> Option<(Between, Duration)> {
        let paths = at.low.path().paths(&id)?;
        let (local, remote) = (paths.attachment()?.address, paths.remote().ip());
        let least = if self.mode == SilenceMode::Vigilant { Duration::ZERO } else { AT_REST };
        (local.is_ipv4() == remote.is_ipv4()).then_some((Between { local, remote }, paths.pace().answer.max(least)))
    }

    /// Has what goes between this host and a peer be watched so, or not at all.
    pub(super) fn watch_traffic(&mut self, id: PeerId, wanted: Option<(Between, Duration)>, at: &mut At<'_>) {
        let Some(watched) = self.peers.get_mut(&id) else { return };
        let before = watched.traffic;
        // What is said anew has what is waited for begin anew.
        let is_near = |(of, told): (Between, Duration)| {
            let same = |(between, answer): (Between, Duration)| {
                of == between && answer <= told + told / 2 && told <= answer * 2
            };
            wanted.is_some_and(same)
        };
        if before.is_some_and(is_near) || before.is_none() && wanted.is_none() {
            return;
        }
        watched.traffic = wanted;
        let of = |traffic: Option<(Between, Duration)>| traffic.map(|(between, _)| between);
        // Several may be behind one address.
        let is_used = |between| self.peers.values().any(|watched| of(watched.traffic) == Some(between));
        if let Some(between) = of(before).filter(|between| of(wanted) != Some(*between) && !is_used(*between)) {
            let op = BindingOp::Watch { between, answer: None };
            at.base.ask(op, Asked::Effect("watching a peer's packets no more"));
        }
        if let Some((between, answer)) = wanted {
            let op = BindingOp::Watch { between, answer: Some(answer) };
            at.base.ask(op, Asked::Effect("watching a peer's packets"));
        }
    }
}
