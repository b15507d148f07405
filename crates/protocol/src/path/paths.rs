//! What this host knows of the ways to one peer: where it is, where we are towards it, and what a check has shown.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::hello::MAX_LOCATORS;

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::id::{LinkId, PathId};
use crate::base::op::{SavedPeer, SecondWay};
use crate::base::pace::Prompts;
use crate::path::challenge::{Awaited, Claim, Path, Rival};
use crate::path::estimate::Estimate;
use crate::path::fallback::{Fallback, stands_in};
use crate::path::kept::Kept;
use crate::path::ping::Ping;
use crate::path::shown::Shown;
use crate::session::contact::handshake::Begun;
use crate::session::peer::Met;

/// Round trip assumed before one was measured.
pub(super) const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(200);

/// Repeated checks without an answer after which the path is in doubt.
const DOUBTED_AFTER: u32 = 2;

/// Addresses that a peer told before that are remembered, and those where it has answered that are tried (P-215).
const FORMER_MOST: usize = 8;
const ANSWERED_TRIED: usize = 4;

/// Where a peer is, and where we are towards it.
pub(crate) struct Paths {
    /// The confirmed endpoint.
    pub(super) remote: SocketAddr,
    /// Where its last handshake came from, if that is not the confirmed endpoint: it was there, and has not said that
    /// its flows are.
    met: Option<SocketAddr>,
    /// Our address towards it.
    pub(super) source: Option<IpAddr>,
    /// When something authentic came by the path in use last.
    pub(super) heard: Time,
    /// What goes by the path in use names its link: the routes may lead elsewhere (P-232).
    by_link: bool,
    /// The attachment that it belongs to; `None`: we cannot reach the peer.
    attachment: Option<Attachment>,
    /// Our address where it takes us to be, while we are elsewhere and it has not answered.
    left: Option<IpAddr>,
    /// How it saw us there, if it has said so.
    left_seen: Option<SocketAddr>,
    /// Other addresses that it told last.
    locators: Vec<IpAddr>,
    /// Those that it told before, the last first (P-215).
    former: Vec<IpAddr>,
    pub(super) candidate: Option<Path>,
    /// The other source of the update that has told of the candidate.
    pub(super) rival: Option<Rival>,
    /// Paths that are kept ready.
    pub(super) kept: Vec<Kept>,
    /// The path in use, and the number of the next.
    in_use: PathId,
    next: u32,
    /// Our own address and port as the peer sees them.
    observed: Option<SocketAddr>,
    check: Option<Check>,
    /// How often a check was repeated.
    check_tries: u32,
    /// Addresses of ours that it has been told.
    told: Vec<IpAddr>,
    /// Of the path in use.
    pub(super) estimate: Estimate,
    /// It was taken over from a daemon before this one, and where we are was not looked at since.
    restored: bool,
    /// It has not shown since then that it is where it said.
    unproven: bool,
    /// Where else it has received something.
    shown: Shown,
    /// The last question by hand.
    ping: Option<Ping>,
    choice: Choice,
    /// What is known of a connection of TCP to it.
    pub(super) fallback: Fallback,
}

/// What speaks for one attachment of this host's or another, towards a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    /// The address that was chosen by hand, as long as this host has it.
    pub preferred: Option<Attachment>,
    /// The attachment of the other family that leads to it, tried where nobody answers by the one that was chosen.
    pub otherwise: Option<Attachment>,
    /// The one that it was left for since nobody answered.
    pub unanswered: Option<Attachment>,
    /// The one that the user's file selects, as long as this host has it and it leads to the peer.
    pub selected: Option<Attachment>,
    /// Where the routes lead, while what was chosen, by hand or by the file, is taken, and is on another link.
    pub natural: Option<Attachment>,
    /// What a role wants.
    pub wants: Option<Wants>,
}

impl Choice {
    /// What was chosen, whatever the routes prefer: by hand, or else by the user's file.
    pub(crate) fn chosen(&self) -> Option<Attachment> {
        self.preferred.or(self.selected)
    }
}

/// A role's word on the way to a peer: one attachment is taken instead of another, as long as this host has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    pub prefer: Attachment,
    pub exclude: Attachment,
}

/// An unsolicited challenge, for the round trip and the observed address.
struct Check {
    token: u64,
    sent: Time,
    /// When the first of its row was sent, none of which was answered.
    begun: Time,
    /// One before was not answered, though the peer was heard since.
    doubted: bool,
    /// Where it went.
    to: IpAddr,
    /// Our addresses, which go along with it.
    telling: Vec<IpAddr>,
    /// Those of its row that went out since the peer was heard.
    prompts: Prompts,
}

impl Paths {
    pub(crate) fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            met: None,
            source: None,
            heard: Time::default(),
            by_link: false,
            attachment: None,
            left: None,
            left_seen: None,
            locators: Vec::new(),
            former: Vec::new(),
            candidate: None,
            rival: None,
            kept: Vec::new(),
            in_use: PathId(0),
            next: 1,
            observed: None,
            check: None,
            check_tries: 0,
            told: Vec::new(),
            estimate: Estimate::default(),
            restored: false,
            unproven: false,
            shown: Shown::default(),
            ping: None,
            choice: Choice::default(),
            fallback: Fallback::new(remote),
        }
    }

    /// Those to a peer that a daemon before this one knew.
    pub(crate) fn restored(saved: &SavedPeer) -> Self {
        let mut paths = Self::new(saved.remote);
        paths.listens_at(saved.tcp_port);
        Self {
            restored: true,
            unproven: true,
            source: saved.source,
            locators: saved.locators.clone(),
            former: saved.former_locators.iter().copied().take(FORMER_MOST).collect(),
            observed: saved.observed,
            ..paths
        }
    }

    /// The confirmed endpoint.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Our address towards the peer.
    pub(crate) fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The attachment that we reach the peer by; `None`: we cannot.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        self.attachment
    }

    /// Our address where the peer takes us to be, while we are elsewhere and it has not answered.
    pub(crate) fn left(&self) -> Option<IpAddr> {
        self.left
    }

    /// Our own address and port as the peer sees them.
    pub(crate) fn observed(&self) -> Option<SocketAddr> {
        self.observed
    }

    /// Other addresses that the peer told last.
    pub(crate) fn locators(&self) -> &[IpAddr] {
        &self.locators
    }

    /// Addresses that the peer told before, the last first.
    pub(crate) fn former_locators(&self) -> &[IpAddr] {
        &self.former
    }

    /// The peer tells all of its addresses: those that it told before are where it may be still (P-215). Tells whether
    /// they are others.
    pub(crate) fn set_locators(&mut self, locators: Vec<IpAddr>) -> bool {
        if locators.iter().collect::<BTreeSet<_>>() == self.locators.iter().collect() {
            return false;
        }
        let before =
            std::mem::replace(&mut self.locators, locators).into_iter().chain(std::mem::take(&mut self.former));
        let mut former: Vec<IpAddr> = Vec::new();
        for address in before {
            if former.len() < FORMER_MOST && !self.locators.contains(&address) && !former.contains(&address) {
                former.push(address);
            }
        }
        self.former = former;
        true
    }

    /// The peer tells one address of several.
    fn add_locators(&mut self, locators: impl Iterator<Item = IpAddr>) {
        for locator in locators {
            self.former.retain(|former| *former != locator);
            if !self.locators.contains(&locator) && self.locators.len() < MAX_LOCATORS {
                self.locators.push(locator);
            }
        }
    }

    /// Another host has been found at an address.
    pub(crate) fn forget_former(&mut self, address: IpAddr) {
        self.former.retain(|former| *former != address);
    }

    pub(crate) fn candidate(&self) -> Option<&Path> {
        self.candidate.as_ref()
    }

    pub(crate) fn candidate_mut(&mut self) -> Option<&mut Path> {
        self.candidate.as_mut()
    }

    /// What the peer's last update said that is not carried out yet, and from where.
    pub(crate) fn awaited(&self) -> Option<(SocketAddr, &Awaited)> {
        let candidate = self.candidate.as_ref()?;
        Some((candidate.remote, candidate.claim.awaited()?))
    }

    /// Whether flows are led to an endpoint that is not confirmed.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.candidate.as_ref().is_some_and(Path::is_announced)
    }

    /// The token of the challenge to an endpoint that is not confirmed.
    pub(crate) fn challenge_to(&self, remote: SocketAddr) -> Option<u64> {
        let mut unconfirmed = self.candidate.iter().chain(self.rival.iter().map(|rival| &rival.path));
        unconfirmed.find(|path| path.remote == remote).map(|path| path.token)
    }

    /// Where flows are led: the endpoint that was announced last, whether or not it is confirmed.
    pub(crate) fn heading(&self) -> SocketAddr {
        self.candidate.as_ref().filter(|candidate| candidate.is_announced()).map_or(self.remote, |at| at.remote)
    }

    /// Whether its flows may come by another path at any moment: it has told of one that is not confirmed yet, and need
    /// not wait with what it sends itself (P-21, P-38).
    pub(crate) fn may_come_anew(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| matches!(candidate.claim, Claim::Awaited(_)))
    }

    /// Whether the peer has shown that it is at an endpoint. What it told, or announced once, shows nothing.
    pub(crate) fn has_shown(&self, endpoint: SocketAddr) -> bool {
        self.remote == endpoint || self.met == Some(endpoint)
    }

    /// Whether the peer has shown, to this daemon, that it is at its endpoint.
    pub(crate) fn is_proven(&self) -> bool {
        !self.unproven
    }

    /// Whether the peer has received something at an address a moment ago.
    pub(crate) fn has_answered_at(&self, now: Time, address: IpAddr) -> bool {
        self.shown.contains(now, address)
    }

    /// Where the peer has received something.
    pub(crate) fn shown(&mut self) -> &mut Shown {
        &mut self.shown
    }

    /// Where the peer may be by what it has shown and told, the likeliest first. `answered`: addresses where it has
    /// answered.
    pub(crate) fn whereabouts<'a>(
        &'a self,
        answered: &'a [IpAddr],
        port: u16,
    ) -> impl Iterator<Item = SocketAddr> + 'a {
        let answered = answered.iter().take(ANSWERED_TRIED);
        let known = answered.chain(&self.locators).map(move |address| SocketAddr::new(*address, port));
        [self.heading(), self.remote].into_iter().chain(self.met).chain(known)
    }

    /// The addresses that the peer may be at, where it is going first: the two may be of different families.
    pub(crate) fn targets(&self) -> impl Iterator<Item = IpAddr> {
        let met = self.met.map(|met| met.ip());
        [self.heading().ip(), self.remote.ip()].into_iter().chain(met).chain(self.locators.iter().copied())
    }

    /// Where it is asked for a session: where it is, or, where this host is of the other family now, at another of its
    /// addresses.
    pub(super) fn asked_at(&self, answered: &[IpAddr], port: u16) -> SocketAddr {
        let alike = |to: &SocketAddr| self.source.is_none_or(|source| source.is_ipv4() == to.is_ipv4());
        let former = self.former.iter().map(|address| SocketAddr::new(*address, port));
        let mut all = [self.remote].into_iter().chain(self.whereabouts(answered, port)).chain(former);
        all.find(alike).unwrap_or(self.remote)
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.measured().unwrap_or(INITIAL_ROUND_TRIP)
    }

    /// The smoothed round trip, where one was measured.
    pub(crate) fn measured(&self) -> Option<Duration> {
        self.estimate.smoothed()
    }

    /// Something has come back on the path in use after that time.
    pub(crate) fn sample_round_trip(&mut self, sample: Duration) {
        self.estimate.sample(sample);
    }

    /// The same of a question by hand. A path that was cut for a while may have put its answer off, so it counts only
    /// where what is known is far from it: as where the ends were busy when that was measured.
    pub(crate) fn sample_by_hand(&mut self, sample: Duration) {
        if self.estimate.smoothed().is_none_or(|smoothed| sample * 2 < smoothed) {
            self.estimate.sample(sample);
        }
    }

    /// The delay before try number `tries` + 1 of a request (P-12).
    pub(crate) fn repeat_after(&self, tries: u32) -> Duration {
        let first = (self.round_trip() * 3 / 2).max(Duration::from_millis(50));
        (first * 2u32.pow(tries.saturating_sub(1).min(8))).min(Duration::from_secs(2))
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.locators.len() + self.former.len() + self.kept.len()
    }
}

// Where this host is.
impl Paths {
    pub(crate) fn choice(&self) -> Choice {
        self.choice
    }

    pub(crate) fn choose(&mut self, choice: Choice) {
        self.choice = choice;
    }

    /// Where this host is towards the peer is looked at. Tells whether that is the first time since a daemon before
    /// this one.
    pub(crate) fn take_restored(&mut self) -> bool {
        std::mem::take(&mut self.restored)
    }

    /// This host is where it was, as far as it knows.
    pub(crate) fn stay_at(&mut self, attachment: Option<Attachment>) {
        self.attachment = attachment;
    }

    /// This host is at another address from now on: how another was seen says nothing of this one.
    pub(crate) fn move_to(&mut self, attachment: Attachment) {
        (self.attachment, self.source) = (Some(attachment), Some(attachment.address));
        // Where it was led elsewhere until now, what that takes is in force for a moment yet.
        self.by_link |= self.strays();
        self.take_kept(attachment);
    }

    /// Whether a role has the peer reached from there, and not the routes.
    fn is_led_by_role(&self) -> bool {
        self.choice.wants.is_some_and(|wants| self.attachment == Some(wants.prefer))
    }

    /// Whether the routes lead elsewhere than where the peer is reached from.
    pub(crate) fn strays(&self) -> bool {
        self.is_led_by_role() || self.elsewhere().is_some()
    }

    /// Where the routes lead, where the peer is reached by another link since that was chosen.
    pub(crate) fn elsewhere(&self) -> Option<Attachment> {
        let chosen = self.choice.chosen();
        self.choice.natural.filter(|_| chosen.is_some() && chosen == self.attachment)
    }

    /// Whether everything that this host sends to the peer's addresses is to go where the path in use does. Where that
    /// was chosen, by hand or by the user's file, it is not, as long as the peer answers where the routes lead: what is
    /// not carried goes on there as before (P-236).
    pub(crate) fn is_led(&self) -> bool {
        let fails = |natural| {
            let mut kept = self.kept.iter().filter(|kept| kept.attachment() == Some(natural));
            kept.any(Kept::has_failed)
        };
        self.is_led_by_role() || self.elsewhere().is_some_and(fails)
    }

    /// The link that is named by what goes by the path in use.
    pub(super) fn own_link(&self) -> Option<LinkId> {
        self.attachment.filter(|_| self.by_link).map(|attachment| attachment.link)
    }

    /// The peer asked where this host has that address: it is our locator towards it now.
    pub(crate) fn answer_from(&mut self, attachment: Attachment) {
        (self.attachment, self.source) = (Some(attachment), Some(attachment.address));
    }

    /// There is no way to the peer any more.
    pub(crate) fn detach(&mut self) {
        self.attachment = None;
    }

    /// This host leaves the place where the peer takes it to be.
    pub(crate) fn record_left(&mut self) {
        (self.left, self.left_seen) = (self.source, self.observed);
    }

    /// Where the peer saw this host last, while that is elsewhere and the peer has not answered.
    pub(crate) fn mask(&self, port: u16) -> Option<SocketAddr> {
        let left = self.left?;
        Some(self.left_seen.unwrap_or(SocketAddr::new(left, port)))
    }

    /// The peer knows where this host is, and sees it there.
    pub(crate) fn on_acknowledged(&mut self, observed: SocketAddr) {
        (self.left, self.observed) = (None, Some(observed));
        self.by_link = self.strays();
    }
}

// Where the peer is.
impl Paths {
    /// A session begins. `idle`: nothing depends on where the peer was. Tells whether the peer is met where it was
    /// asked from now on.
    pub(super) fn begin(&mut self, begun: &Begun, idle: bool, base: &Base) -> bool {
        let attachment = begun.destination.and_then(|address| base.attachments().at(address));
        self.listens_at(begun.tcp_port);
        let told = begun.locators.iter().filter(|locator| !locator.is_unspecified()).copied();
        match begun.first {
            true if begun.initiated => self.add_locators(told),
            first => {
                self.set_locators(told.collect());
                // P-30
                if first {
                    self.told.clear();
                }
            }
        }
        let meets = !begun.again || (idle && begun.confirmed);
        if meets {
            self.drop_candidate();
            self.stand_at(begun.source);
            if self.source != begun.destination {
                // How another address of ours is seen says nothing of this one.
                self.observed = None;
            }
            (self.source, self.attachment) = (begun.destination, attachment);
        } else if self.attachment.is_none() && begun.destination == self.source {
            self.attachment = attachment;
        }
        meets
    }

    /// A session is confirmed, so that the peer has received what was sent to where it asked from. `idle`: nothing
    /// depends on where it was. Tells whether it is met there from now on, and whether it has shown for the first time
    /// that it is where a daemon before this one took it to be.
    pub(super) fn meet(&mut self, now: Time, origin: Option<Met>, idle: bool, base: &Base) -> (bool, bool) {
        self.met = None;
        origin.iter().for_each(|met| self.shown.record(now, met.remote.ip()));
        // It was asked by both, and has not answered by UDP.
        self.fallback.expected |= origin.is_some_and(|met| self.stand_in() == Some(met.remote));
        let Some(Met { remote, destination, .. }) = origin.filter(|met| met.remote != self.remote) else {
            return (false, std::mem::take(&mut self.unproven));
        };
        if idle {
            self.drop_candidate();
            self.stand_at(remote);
            if destination.is_some_and(|destination| self.source != Some(destination)) {
                self.observed = None;
            }
            self.source = destination.or(self.source);
            self.attachment = self.source.and_then(|source| base.attachments().at(source));
        } else {
            self.met = Some(remote);
        }
        (idle, false)
    }

    /// It was found at an endpoint that is not the confirmed one.
    pub(crate) fn find_at(&mut self, endpoint: SocketAddr) {
        if self.remote != endpoint {
            self.met = Some(endpoint);
        }
    }

    /// The path in use, where both ends are known to be at its ends.
    pub(crate) fn confirmed_way(&self) -> Option<SecondWay> {
        let attachment = self.attachment.filter(|_| self.left.is_none() && self.is_proven())?;
        let is_led_elsewhere = self.candidate.as_ref().is_some_and(Path::is_announced);
        let is_alike = attachment.address.is_ipv4() == self.remote.is_ipv4();
        let Attachment { address, link, .. } = attachment;
        (!is_led_elsewhere && is_alike && !stands_in(self.remote)).then_some(SecondWay {
            source: Some(address),
            link: Some(link),
            remote: self.remote,
        })
    }

    /// The path in use.
    pub(crate) fn in_use(&self) -> PathId {
        self.in_use
    }

    pub(super) fn next_id(&mut self) -> PathId {
        self.next += 1;
        PathId(self.next - 1)
    }

    /// Another path is in use from now on. Where nothing was measured on it, how the one before fares is a first guess.
    pub(super) fn use_path(&mut self, path: PathId, measured: Estimate) {
        self.in_use = path;
        if measured.smoothed().is_some() {
            self.estimate = measured;
        }
    }

    pub(super) fn set_observed(&mut self, observed: Option<SocketAddr>) {
        self.observed = observed;
    }

    /// An endpoint is to be confirmed.
    pub(crate) fn expect(&mut self, candidate: Path) {
        self.candidate = Some(candidate);
    }

    /// Nothing is to be confirmed any more.
    pub(crate) fn drop_candidate(&mut self) {
        (self.candidate, self.rival) = (None, None);
    }

    /// The peer has shown that it is at an endpoint.
    pub(crate) fn confirm(&mut self, remote: SocketAddr) {
        self.stand_at(remote);
        (self.unproven, self.candidate) = (false, None);
    }
}

// Checks.
impl Paths {
    /// Whether a check is under way.
    pub(crate) fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    /// How often a check was repeated.
    pub(crate) fn check_tries(&self) -> u32 {
        self.check_tries
    }

    /// A check goes out, of where the peer is taken to be. Tells how often it was repeated.
    pub(crate) fn begin_check(&mut self, now: Time, token: u64, telling: Vec<IpAddr>) -> u32 {
        let (begun, doubted, mut prompts) = match &self.check {
            Some(before) => (before.begun, before.doubted, before.prompts),
            None => (now, false, Prompts::default()),
        };
        // Whoever is heard is not missed by that.
        let counts = !(prompts.take() && self.check_tries > DOUBTED_AFTER);
        self.check_tries += u32::from(self.check.is_some() && counts);
        self.check = Some(Check { token, sent: now, begun, doubted, to: self.heading().ip(), telling, prompts });
        self.check_tries
    }

    /// As [`Paths::begin_check`], of a session that is new: it counts as the first.
    pub(super) fn begin_first_check(&mut self, now: Time, token: u64, to: IpAddr, telling: Vec<IpAddr>) {
        self.check =
            Some(Check { token, sent: now, begun: now, doubted: false, to, telling, prompts: Prompts::default() });
    }

    /// There is a reason to take it that a check would be answered which is overdue: when it is to be repeated.
    pub(crate) fn prompt_check(&mut self) -> Option<Time> {
        let first = self.repeat_after(1);
        let check = self.check.as_mut().filter(|check| check.doubted || self.check_tries >= DOUBTED_AFTER)?;
        Some(check.sent + check.prompts.prompt(first))
    }

    /// Whether the next check goes out for such a reason.
    pub(crate) fn is_check_prompted(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.prompts.is_due())
    }

    /// What goes unanswered says nothing of where the peer is.
    pub(crate) fn forget_checks(&mut self) {
        (self.check, self.check_tries) = (None, 0);
    }

    /// The peer was heard. `answers`: so that a check would be answered, as far as is known; else it stays in doubt.
    pub(crate) fn forget_tries(&mut self, now: Time, answers: bool) {
        let doubted = !answers && self.silent_since().is_some();
        self.check_tries = 0;
        self.check.iter_mut().for_each(|check| (check.begun, check.doubted) = (now, doubted));
    }

    /// The last question by hand.
    pub(crate) fn ping(&self) -> Option<Ping> {
        self.ping
    }

    pub(super) fn set_ping(&mut self, ping: Ping) {
        self.ping = Some(ping);
    }

    /// A challenge is answered. Tells how long that took where it was a question by hand.
    pub(crate) fn take_pong(&mut self, now: Time, token: u64, observed: SocketAddr) -> Option<Duration> {
        self.ping.as_mut()?.take_answer(now, token, observed)
    }

    /// Since when the endpoint that flows are led to does not answer, where the peer has announced it.
    pub(crate) fn announced_at(&self) -> Option<Time> {
        self.candidate.as_ref().filter(|candidate| candidate.is_announced()).map(Path::sent)
    }

    /// Since when checks go unanswered, where that is more than a loss or two.
    pub(crate) fn silent_since(&self) -> Option<Time> {
        self.check.as_ref().filter(|check| check.doubted || self.check_tries >= DOUBTED_AFTER).map(|check| check.begun)
    }

    /// Whether the peer has been told these addresses of ours.
    pub(crate) fn was_told<'a>(&self, addresses: impl Iterator<Item = &'a IpAddr>) -> bool {
        self.told.iter().eq(addresses)
    }

    /// A check was answered, if this is its token. `observed`: how the peer sees us, `None` where the answer says
    /// nothing of where we are. Tells whether the peer has shown for the first time that it is at its endpoint.
    pub(crate) fn handle_check(&mut self, now: Time, token: u64, observed: Option<SocketAddr>) -> Option<bool> {
        let check = self.check.take_if(|check| check.token == token)?;
        self.told = check.telling;
        self.check_tries = 0;
        self.sample_round_trip(now.since(check.sent));
        self.observed = observed.or(self.observed);
        let shown = self.unproven && check.to == self.remote.ip();
        self.unproven &= !shown;
        Some(shown)
    }
}
