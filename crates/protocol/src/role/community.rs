//! Communities: the hosts of one owner, which may hand sockets to one another (`docs/protocol.md` §10, decision 0017).
//!
//! ```text
//! code.rs      what people tell one another
//! words.rs     the words of it
//! exchange.rs  from a code to a key that two hosts share
//! join.rs      using a code: both ends
//! roster.rs    signed statements about who belongs to the community
//! gossip.rs    how they come to everybody
//! op.rs        what the caller is told and asked
//! ```

mod code;
mod exchange;
mod gossip;
mod join;
mod op;
mod roster;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::{CommunitySecret, MemberStanding, is_name};

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::config::Trust;
use crate::base::event::community::CommunityEvent;
use crate::base::op::{SavedCommunity, StoreOp};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::node::Node;
use crate::session::permits::Grant;

pub use code::{InvalidCode, OneTimeCode};
pub use op::{CommunityRefused, CommunityView, GrantView, HostView, OfferView, Offered};

use gossip::Telling;
use join::{Joining, Offer};
use roster::Roster;

/// How long a code is good.
pub const CODE_LIFETIME: Duration = Duration::from_secs(600);
/// How long a connection that is granted may be received.
pub const GRANT_LIFETIME: Duration = Duration::from_secs(3600);
/// Where hosts were met is saved so much later: not while they move.
const SAVED_LATER: Duration = Duration::from_secs(60);
/// Codes that are open at a time, and grants.
const OPEN_MOST: usize = 16;
/// Exchanges that are begun at once, and how often one more may be.
const EXCHANGES: (f64, Duration) = (16.0, Duration::from_millis(250));
/// Messages with statements that are looked at at once, and how often one more is. Each costs a signature's verification for
/// each statement that would be news.
const ROSTERS: (f64, Duration) = (128.0, Duration::from_millis(20));

/// What a host knows of its community, and what it does about it.
pub(crate) struct Community {
    roster: Option<Roster>,
    /// Where hosts were met last, or are said to be.
    hints: BTreeMap<PublicKey, SocketAddr>,
    /// The key that a code has proven to be that of the host at an address for which another is remembered.
    proven: Option<(IpAddr, PublicKey)>,
    /// Hosts that are to know what this one knows.
    telling: BTreeMap<PublicKey, Telling>,
    /// Codes that are open, by their numbers.
    offers: BTreeMap<u16, Offer>,
    joining: Option<Joining>,
    /// Codes that were tried here in vain: somebody in between may have had its guess (P-82).
    spent: Vec<(Time, OneTimeCode)>,
    exchanges: Bucket,
    rosters: Bucket,
    next_number: u16,
    /// When places of hosts are saved that were met elsewhere than before.
    unsaved: Option<Time>,
}

impl Default for Community {
    fn default() -> Self {
        Self {
            roster: None,
            hints: BTreeMap::new(),
            proven: None,
            telling: BTreeMap::new(),
            offers: BTreeMap::new(),
            joining: None,
            spent: Vec::new(),
            exchanges: Bucket::of(EXCHANGES.0, EXCHANGES.1),
            rosters: Bucket::of(ROSTERS.0, ROSTERS.1),
            next_number: 1,
            unsaved: None,
        }
    }
}

impl Community {
    /// The roster of the community that this host belongs to.
    fn own(&self, me: &PublicKey) -> Option<&Roster> {
        self.roster.as_ref().filter(|roster| roster.has(me))
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let exchanges: usize = self.offers.values().map(Offer::entries).sum();
        let statements = self.roster.as_ref().map_or(0, |roster| roster.statements().count());
        statements + self.hints.len() + self.telling.len() + exchanges + self.spent.len()
    }

    fn saved(&self) -> Option<SavedCommunity> {
        let roster = self.roster.as_ref()?;
        let statements = roster.statements();
        let hint = |host: &[u8; 32]| self.hints.get(&PublicKey::from(*host)).copied();
        Some(SavedCommunity {
            community: *roster.community(),
            secret: roster.secret().cloned(),
            statements: statements.map(|statement| (statement.clone(), hint(&statement.host))).collect(),
        })
    }
}

impl Node {
    /// Whether a host belongs to this host's community. This host itself does, where there is one.
    #[must_use]
    pub fn is_in_community(&self, host: &PublicKey) -> bool {
        self.community.own(&self.key.public()).is_some_and(|roster| roster.has(host))
    }

    /// What people call a host of this host's community, where no other host of it is called so (P-120).
    #[must_use]
    pub fn name_of_member(&self, host: &PublicKey) -> Option<&str> {
        let roster = self.community.own(&self.key.public())?;
        let name = roster.about(host).filter(|_| roster.has(host))?.name.as_str();
        (!roster.is_another_called(name, host)).then_some(name)
    }

    /// Takes over what was saved of the community, behind [`Node::restore`].
    ///
    /// # Errors
    /// A statement is not the community's. Nothing is taken over.
    pub fn restore_community(&mut self, now: Time, saved: &SavedCommunity) -> Result<(), CommunityRefused> {
        let roster = Roster::of(saved.community, saved.secret.clone());
        let mut roster = roster.ok_or(CommunityRefused::Forged)?;
        for (statement, at) in &saved.statements {
            if roster.hear(statement) != roster::Told::News {
                return Err(CommunityRefused::Forged);
            }
            self.community.hints.extend(at.map(|at| (PublicKey::from(statement.host), at)));
        }
        self.community.roster = Some(roster);
        self.tell_everybody(now);
        Ok(())
    }

    /// Makes a community of this host alone. It is its steward.
    ///
    /// # Errors
    /// This host belongs to one, or may not be called so.
    pub fn found_community(&mut self, now: Time, name: &str) -> Result<(), CommunityRefused> {
        self.check_joinable(name)?;
        let mut seed = [0; 32];
        self.random.fill(&mut seed);
        let mut roster = Roster::found(CommunitySecret(seed)).ok_or(CommunityRefused::Forged)?;
        let me = self.key.public();
        roster.state(&me, MemberStanding::Steward, name).ok_or(CommunityRefused::Forged)?;
        self.community.hints.clear();
        self.community.roster = Some(roster);
        self.save_community();
        self.tell_everybody(now);
        Ok(())
    }

    /// Opens a code by which a host can join this host's community.
    ///
    /// # Errors
    /// This host may not invite, or too many codes are open.
    pub fn invite(&mut self, now: Time, steward: bool) -> Result<OneTimeCode, CommunityRefused> {
        self.steward()?;
        self.open_offer(now, Offered::Membership { steward })
    }

    /// Opens a code by which a host that is a stranger may be given one connection, once.
    ///
    /// # Errors
    /// This host moves no sockets, has no such connection, or too many codes are open.
    pub fn offer_connection(&mut self, now: Time, flow: FlowTuple) -> Result<OneTimeCode, CommunityRefused> {
        if self.moves.is_none() {
            return Err(CommunityRefused::NoMoves);
        }
        if !self.has_flow(&flow) {
            return Err(CommunityRefused::NoSuchConnection);
        }
        self.open_offer(now, Offered::Connection { flow })
    }

    fn open_offer(&mut self, now: Time, what: Offered) -> Result<OneTimeCode, CommunityRefused> {
        if self.config.trust == Trust::Pinned {
            return Err(CommunityRefused::Pinned);
        }
        let grants = self.moves.as_ref().map_or(0, |moves| moves.grants().count());
        if self.community.offers.len() + grants >= OPEN_MOST {
            return Err(CommunityRefused::TooMany);
        }
        let number = self.free_number();
        let code = OneTimeCode::draw(number, &mut self.random);
        self.community.offers.insert(number, Offer::new(code, what, now + CODE_LIFETIME));
        self.schedule_community(now);
        Ok(code)
    }

    /// A number that neither a code nor a grant has, and that none had a moment ago.
    fn free_number(&mut self) -> u16 {
        loop {
            let number = self.community.next_number;
            self.community.next_number = number % 999 + 1;
            let granted = self.moves.as_ref().is_some_and(|moves| moves.grants().any(|grant| grant.number() == number));
            if !granted && !self.community.offers.contains_key(&number) {
                return number;
            }
        }
    }

    /// Takes back a code that nobody has used, or a grant: a move that it let begin and that is not decided comes to nothing.
    /// Tells whether there was one.
    pub fn withdraw(&mut self, now: Time, number: u16) -> bool {
        let offered = self.community.offers.remove(&number).is_some_and(|offer| !offer.is_done());
        let granted = self.withdraw_grant(now, number);
        self.schedule_community(now);
        offered || granted
    }

    /// From now on a host belongs to the community no more.
    ///
    /// # Errors
    /// This host may not say so, or the other is no member.
    pub fn revoke(&mut self, now: Time, host: &PublicKey) -> Result<(), CommunityRefused> {
        if *host == self.key.public() {
            return Err(CommunityRefused::Itself);
        }
        self.steward()?;
        let Some(roster) = &mut self.community.roster else { return Err(CommunityRefused::NotIn) };
        let name = roster.about(host).filter(|_| roster.has(host)).map(|statement| statement.name.clone());
        let name = name.ok_or(CommunityRefused::NoSuchHost)?;
        roster.state(host, MemberStanding::Revoked, &name).ok_or(CommunityRefused::Forged)?;
        self.output.event(CommunityEvent::HostRevoked { host: *host, name });
        self.save_community();
        // It learns that, too.
        self.tell_one(*host);
        self.tell_everybody(now);
        Ok(())
    }

    /// Forgets the community. The others go on to count this host as theirs until one of them revokes it.
    ///
    /// # Errors
    /// There is none.
    pub fn leave_community(&mut self, now: Time) -> Result<(), CommunityRefused> {
        self.community.roster.take().ok_or(CommunityRefused::NotIn)?;
        self.community.hints.clear();
        self.community.offers.retain(|_, offer| !offer.is_for_members());
        self.output.ask(StoreOp::ForgetCommunity, Asked::Effect("forgetting the community"));
        self.tell_everybody(now);
        Ok(())
    }

    /// What people are shown of the community.
    #[must_use]
    pub fn community(&self, now: Time) -> CommunityView {
        let me = self.key.public();
        // One that has been joined a moment ago, and of which no statement has come yet, is none.
        let own = self.community.roster.as_ref().filter(|roster| roster.about(&me).is_some());
        let digest = own.map(Roster::digest);
        let statements = own.into_iter().flat_map(Roster::statements);
        let hosts = statements.map(|statement| {
            let key = PublicKey::from(statement.host);
            let peer = self.by_key.get(&key).and_then(|id| self.peers.get(id));
            HostView {
                key,
                name: statement.name.clone(),
                standing: statement.standing,
                here: key == me,
                at: peer.map(|peer| peer.remote).or_else(|| self.community.hints.get(&key).copied()),
                session: peer.is_some_and(crate::session::peer::Peer::has_session),
                knows: key == me || self.community.telling.get(&key).is_some_and(|telling| telling.knows(digest)),
            }
        });
        let offers = self.community.offers.iter().filter(|(_, offer)| !offer.is_done() && offer.until > now);
        let grants = self.moves.iter().flat_map(|moves| moves.grants()).filter(|grant| grant.until() > now);
        CommunityView {
            community: own.map(|roster| *roster.community()),
            standing: own.and_then(|roster| roster.about(&me)).map(|statement| statement.standing),
            hosts: hosts.collect(),
            offers: offers
                .map(|(number, offer)| OfferView {
                    number: *number,
                    what: offer.what.clone(),
                    left: offer.until.since(now),
                })
                .collect(),
            grants: grants.map(|grant| view_of(grant, now)).collect(),
        }
    }

    /// Whether this host may begin to belong to a community.
    fn check_joinable(&self, name: &str) -> Result<(), CommunityRefused> {
        if self.community.own(&self.key.public()).is_some() {
            return Err(CommunityRefused::AlreadyIn);
        }
        if !is_name(name) {
            return Err(CommunityRefused::NoName);
        }
        Ok(())
    }

    fn steward(&self) -> Result<(), CommunityRefused> {
        let roster = self.community.own(&self.key.public()).ok_or(CommunityRefused::NotIn)?;
        roster.secret().map(|_| ()).ok_or(CommunityRefused::NotSteward)
    }

    fn save_community(&mut self) {
        self.community.unsaved = None;
        if let Some(op) = self.community.saved().map(|saved| StoreOp::SaveCommunity(Box::new(saved))) {
            self.output.ask(op, Asked::Effect("saving the community"));
        }
    }

    /// The roster is another: whoever belongs to it is told, and sockets are taken of these.
    fn tell_everybody(&mut self, now: Time) {
        let me = self.key.public();
        let hosts: BTreeSet<PublicKey> = self
            .community
            .own(&me)
            .map(|roster| roster.hosts().filter(|host| *host != me).collect())
            .unwrap_or_default();
        let revoked = |key: &PublicKey| self.community.roster.as_ref().is_some_and(|r| r.about(key).is_some());
        let belongs = self.community.own(&me).is_some();
        let gone: Vec<PublicKey> =
            self.community.telling.keys().filter(|key| !belongs || !revoked(key)).copied().collect();
        gone.iter().for_each(|key| {
            self.community.telling.remove(key);
        });
        for host in &hosts {
            self.community.telling.entry(*host).or_default();
        }
        self.community.telling.values_mut().for_each(|telling| telling.hurry(now));
        let roster = self.community.own(&me);
        let revoked: BTreeSet<PublicKey> = roster.map(|roster| roster.revoked().collect()).unwrap_or_default();
        self.set_permitted(now, hosts, revoked, belongs);
        self.schedule_community(now);
    }

    /// When something is due.
    pub(crate) fn schedule_community(&mut self, now: Time) {
        let community = &self.community;
        let offers = community.offers.values().map(|offer| offer.until);
        let telling = community.telling.values().map(Telling::due);
        let joining = community.joining.iter().map(Joining::due);
        let spent = community.spent.iter().map(|(until, _)| *until);
        match offers.chain(telling).chain(joining).chain(spent).chain(community.unsaved).min() {
            Some(due) => self.timers.set(Timer::Community, due.max(now)),
            None => self.timers.stop(Timer::Community),
        }
    }

    /// Something is due.
    pub(crate) fn continue_community(&mut self, now: Time) {
        self.community.offers.retain(|_, offer| offer.until > now);
        self.community.spent.retain(|(until, _)| *until > now);
        if self.community.unsaved.is_some_and(|at| at <= now) {
            self.save_community();
        }
        self.continue_joining(now);
        self.continue_telling(now);
        self.schedule_community(now);
    }

    /// The network is another, or this host is back: whoever was asleep may have missed something.
    pub(crate) fn hurry_community(&mut self, now: Time) {
        self.community.telling.values_mut().for_each(|telling| telling.hurry(now));
        self.schedule_community(now);
    }
}

fn view_of(grant: &Grant, now: Time) -> GrantView {
    GrantView { number: grant.number(), host: grant.host(), flow: grant.flow(), left: grant.until().since(now) }
}
