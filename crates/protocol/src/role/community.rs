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
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::bucket::Bucket;
use crate::base::config::Trust;
use crate::base::event::community::CommunityEvent;
use crate::base::grant::Grant;
use crate::base::op::{SavedCommunity, StoreOp};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::binding::BindingLayer;
use crate::role::{At, Came, Role};

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
/// Messages with statements that are looked at at once, and how often one more is. Each costs a signature's
/// verification for each statement that would be news.
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

impl Role for Community {
    fn new(_: &Base) -> Self {
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

    fn handle_message(&mut self, came: &mut Came<'_>, message: Message, at: &mut At<'_>) -> Option<Message> {
        let Message::Community(word) = message else { return Some(message) };
        came.answers.extend(self.handle_word(came.from, came.arrival, word, at));
        None
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        match signal {
            // Whoever was asleep may have missed something.
            Signal::NetworkChanged | Signal::Returned => {
                self.telling.values_mut().for_each(|telling| telling.hurry(at.now));
            }
            Signal::SessionUp(id) => self.on_community_session(*id, at),
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let offers = self.offers.values().map(|offer| offer.until);
        let telling = self.telling.values().map(Telling::due);
        let joining = self.joining.iter().map(Joining::due);
        let spent = self.spent.iter().map(|(until, _)| *until);
        offers.chain(telling).chain(joining).chain(spent).chain(self.unsaved).min()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        self.continue_community(at);
    }

    /// Entries of all tables together.
    fn entries(&self) -> usize {
        let exchanges: usize = self.offers.values().map(Offer::entries).sum();
        let statements = self.roster.as_ref().map_or(0, |roster| roster.statements().count());
        statements + self.hints.len() + self.telling.len() + exchanges + self.spent.len()
    }
}

impl Community {
    /// The roster of the community that this host belongs to.
    fn own(&self, me: &PublicKey) -> Option<&Roster> {
        self.roster.as_ref().filter(|roster| roster.has(me))
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

impl Community {
    /// See [`Node::is_in_community`](crate::Node::is_in_community).
    pub(crate) fn is_in_community(&self, host: &PublicKey, base: &Base) -> bool {
        self.own(&base.public_key()).is_some_and(|roster| roster.has(host))
    }

    /// See [`Node::name_of_member`](crate::Node::name_of_member).
    pub(crate) fn name_of_member(&self, host: &PublicKey, base: &Base) -> Option<&str> {
        let roster = self.own(&base.public_key())?;
        let name = roster.about(host).filter(|_| roster.has(host))?.name.as_str();
        (!roster.is_another_called(name, host)).then_some(name)
    }

    /// See [`Node::restore_community`](crate::Node::restore_community).
    pub(crate) fn restore_community(
        &mut self,
        saved: &SavedCommunity,
        at: &mut At<'_>,
    ) -> Result<(), CommunityRefused> {
        let roster = Roster::of(saved.community, saved.secret.clone());
        let mut roster = roster.ok_or(CommunityRefused::Forged)?;
        for (statement, at) in &saved.statements {
            if roster.hear(statement) != roster::Told::News {
                return Err(CommunityRefused::Forged);
            }
            self.hints.extend(at.map(|at| (PublicKey::from(statement.host), at)));
        }
        self.roster = Some(roster);
        self.send_to_everybody(at);
        Ok(())
    }

    /// See [`Node::found_community`](crate::Node::found_community).
    pub(crate) fn found_community(&mut self, name: &str, at: &mut At<'_>) -> Result<(), CommunityRefused> {
        self.check_joinable(name, at.base)?;
        let mut seed = [0; 32];
        at.base.random().fill(&mut seed);
        let mut roster = Roster::found(CommunitySecret(seed)).ok_or(CommunityRefused::Forged)?;
        let me = at.base.public_key();
        roster.state(&me, MemberStanding::Steward, name).ok_or(CommunityRefused::Forged)?;
        self.hints.clear();
        self.roster = Some(roster);
        self.save_community(at.base);
        self.send_to_everybody(at);
        Ok(())
    }

    /// See [`Node::invite`](crate::Node::invite).
    pub(crate) fn invite(&mut self, steward: bool, at: &mut At<'_>) -> Result<OneTimeCode, CommunityRefused> {
        self.steward(at.base)?;
        self.open_offer(Offered::Membership { steward }, at)
    }

    /// See [`Node::offer_connection`](crate::Node::offer_connection).
    pub(crate) fn offer_connection(
        &mut self,
        flow: FlowTuple,
        at: &mut At<'_>,
    ) -> Result<OneTimeCode, CommunityRefused> {
        if at.low.permits().is_none() {
            return Err(CommunityRefused::NoMoves);
        }
        if !at.low.flow().has_flow(&flow) {
            return Err(CommunityRefused::NoSuchConnection);
        }
        self.open_offer(Offered::Connection { flow }, at)
    }

    fn open_offer(&mut self, what: Offered, at: &mut At<'_>) -> Result<OneTimeCode, CommunityRefused> {
        if at.base.config().trust == Trust::Pinned {
            return Err(CommunityRefused::Pinned);
        }
        if self.offers.len() + grants(at.now, at.low).count() >= OPEN_MOST {
            return Err(CommunityRefused::TooMany);
        }
        let number = self.free_number(at.now, at.low);
        let code = OneTimeCode::draw(number, at.base.random());
        self.offers.insert(number, Offer::new(code, what, at.now + CODE_LIFETIME));
        Ok(code)
    }

    /// A number that neither a code nor a grant has, and that none had a moment ago.
    fn free_number(&mut self, now: Time, low: &BindingLayer) -> u16 {
        loop {
            let number = self.next_number;
            self.next_number = number % 999 + 1;
            let granted = grants(now, low).any(|grant| grant.number() == number);
            if !granted && !self.offers.contains_key(&number) {
                return number;
            }
        }
    }

    /// Takes back a code that nobody has used. Tells whether there was one.
    pub(crate) fn withdraw_offer(&mut self, number: u16) -> bool {
        self.offers.remove(&number).is_some_and(|offer| !offer.is_done())
    }

    /// See [`Node::revoke`](crate::Node::revoke).
    pub(crate) fn revoke(&mut self, host: &PublicKey, at: &mut At<'_>) -> Result<(), CommunityRefused> {
        if *host == at.base.public_key() {
            return Err(CommunityRefused::Itself);
        }
        self.steward(at.base)?;
        let Some(roster) = &mut self.roster else { return Err(CommunityRefused::NotIn) };
        let name = roster.about(host).filter(|_| roster.has(host)).map(|statement| statement.name.clone());
        let name = name.ok_or(CommunityRefused::NoSuchHost)?;
        roster.state(host, MemberStanding::Revoked, &name).ok_or(CommunityRefused::Forged)?;
        at.base.event(CommunityEvent::HostRevoked { host: *host, name });
        self.save_community(at.base);
        // It learns that, too.
        self.send_to_one(*host);
        self.send_to_everybody(at);
        Ok(())
    }

    /// See [`Node::leave_community`](crate::Node::leave_community).
    pub(crate) fn leave_community(&mut self, at: &mut At<'_>) -> Result<(), CommunityRefused> {
        self.roster.take().ok_or(CommunityRefused::NotIn)?;
        self.hints.clear();
        self.offers.retain(|_, offer| !offer.is_for_members());
        at.base.ask(StoreOp::ForgetCommunity, Asked::Effect("forgetting the community"));
        self.send_to_everybody(at);
        Ok(())
    }

    /// See [`Node::community`](crate::Node::community).
    pub(crate) fn community(&self, now: Time, low: &BindingLayer, base: &Base) -> CommunityView {
        let me = base.public_key();
        // One that has been joined a moment ago, and of which no statement has come yet, is none.
        let own = self.roster.as_ref().filter(|roster| roster.about(&me).is_some());
        let digest = own.map(Roster::digest);
        let statements = own.into_iter().flat_map(Roster::statements);
        let hosts = statements.map(|statement| {
            let key = PublicKey::from(statement.host);
            let peer = low.flow().peer_with(&key);
            HostView {
                key,
                name: statement.name.clone(),
                standing: statement.standing,
                here: key == me,
                at: peer.as_ref().map(|peer| peer.path.remote()).or_else(|| self.hints.get(&key).copied()),
                session: peer.is_some_and(|peer| peer.has_session()),
                knows: key == me || self.telling.get(&key).is_some_and(|telling| telling.knows(digest)),
            }
        });
        let offers = self.offers.iter().filter(|(_, offer)| !offer.is_done() && offer.until > now);
        let grants = grants(now, low).filter(|grant| grant.until() > now);
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
            grants: grants.map(|grant| view(grant, now)).collect(),
        }
    }

    /// Whether this host may begin to belong to a community.
    fn check_joinable(&self, name: &str, base: &Base) -> Result<(), CommunityRefused> {
        if self.own(&base.public_key()).is_some() {
            return Err(CommunityRefused::AlreadyIn);
        }
        if !is_name(name) {
            return Err(CommunityRefused::NoName);
        }
        Ok(())
    }

    fn steward(&self, base: &Base) -> Result<(), CommunityRefused> {
        let roster = self.own(&base.public_key()).ok_or(CommunityRefused::NotIn)?;
        roster.secret().map(|_| ()).ok_or(CommunityRefused::NotSteward)
    }

    fn save_community(&mut self, base: &mut Base) {
        self.unsaved = None;
        if let Some(op) = self.saved().map(|saved| StoreOp::SaveCommunity(Box::new(saved))) {
            base.ask(op, Asked::Effect("saving the community"));
        }
    }

    /// The roster is another: whoever belongs to it is told, and sockets are taken of these.
    fn send_to_everybody(&mut self, at: &mut At<'_>) {
        let me = at.base.public_key();
        let hosts: BTreeSet<PublicKey> =
            self.own(&me).map(|roster| roster.hosts().filter(|host| *host != me).collect()).unwrap_or_default();
        let revoked = |key: &PublicKey| self.roster.as_ref().is_some_and(|r| r.about(key).is_some());
        let belongs = self.own(&me).is_some();
        let gone: Vec<PublicKey> = self.telling.keys().filter(|key| !belongs || !revoked(key)).copied().collect();
        gone.iter().for_each(|key| {
            self.telling.remove(key);
        });
        for host in &hosts {
            self.telling.entry(*host).or_default();
        }
        self.telling.values_mut().for_each(|telling| telling.hurry(at.now));
        let roster = self.own(&me);
        let revoked: BTreeSet<PublicKey> = roster.map(|roster| roster.revoked().collect()).unwrap_or_default();
        at.low.session_mut().pins_mut().set_members(hosts.clone());
        at.base.signal(Signal::Members { members: hosts, revoked, limited: belongs });
    }

    /// Something is due.
    pub(crate) fn continue_community(&mut self, at: &mut At<'_>) {
        self.offers.retain(|_, offer| offer.until > at.now);
        self.spent.retain(|(until, _)| *until > at.now);
        if self.unsaved.is_some_and(|when| when <= at.now) {
            self.save_community(at.base);
        }
        self.continue_joining(at);
        self.continue_telling(at);
    }
}

/// What strangers are granted now.
fn grants(now: Time, low: &BindingLayer) -> impl Iterator<Item = &Grant> {
    low.permits().into_iter().flat_map(move |permits| permits.grants(now))
}

fn view(grant: &Grant, now: Time) -> GrantView {
    GrantView { number: grant.number(), host: grant.host(), flow: grant.flow(), left: grant.until().since(now) }
}
