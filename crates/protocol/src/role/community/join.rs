//! Using a code: the host that has drawn it, and the one that was told it (P-82).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::community::{
    CommunityKey, CommunitySecret, Element, JoinPurpose, JoinRefusal, Joined, MemberStanding, Proof, Statement, Word,
};
use whimbrel_wire::message::Message;

use super::exchange::{Agreed, Begun, Between, answer, begin};
use super::roster::Roster;
use super::{CODE_LIFETIME, CommunityRefused, GRANT_LIFETIME, Offered, OneTimeCode};
use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::config::Trust;
use crate::base::event::community::{CommunityEvent, JoinFailure};
use crate::base::grant::Grant;
use crate::base::op::{PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::role::At;
use crate::role::community::Community;

/// Exchanges that are open about one code: strangers may begin them, and only a wrong proof ends the code.
const EXCHANGES_MOST: usize = 16;
/// An open exchange is left to its joiner for so long at the least; a proof takes a round trip. Then it gives way where
/// there is no room for another (P-149): who begins exchanges and proves nothing keeps nobody out.
const EXCHANGE_LASTS: Duration = Duration::from_secs(5);
/// How long is tried to use a code.
const JOIN_WITHIN: Duration = Duration::from_secs(20);
/// Pause before a word is said again, or a host asked again, at first.
const AGAIN: Duration = Duration::from_millis(300);
const DOUBLINGS: u32 = 3;
/// Handshakes that go to one address before the next is tried.
const TRIES_EACH: u32 = 2;

/// A code that this host has drawn.
pub(super) struct Offer {
    pub(super) code: OneTimeCode,
    pub(super) what: Offered,
    pub(super) until: Time,
    exchanges: BTreeMap<PublicKey, Exchange>,
    /// Who has used it, and what it was told: it may ask again.
    done: Option<(PublicKey, Proof, Result<Joined, JoinRefusal>)>,
}

struct Exchange {
    begun: Time,
    theirs: Element,
    ours: Element,
    agreed: Agreed,
}

impl Offer {
    pub(super) fn new(code: OneTimeCode, what: Offered, until: Time) -> Self {
        Self { code, what, until, exchanges: BTreeMap::new(), done: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }

    pub(super) fn is_for_members(&self) -> bool {
        matches!(self.what, Offered::Membership { .. })
    }

    pub(super) fn entries(&self) -> usize {
        1 + self.exchanges.len()
    }

    /// Makes room for an exchange, if there is one that has had its time.
    fn drop_oldest_exchange(&mut self, now: Time) {
        let old = self.exchanges.iter().filter(|(_, exchange)| exchange.begun + EXCHANGE_LASTS <= now);
        if let Some(oldest) = old.min_by_key(|(_, exchange)| exchange.begun).map(|(joiner, _)| *joiner) {
            self.exchanges.remove(&oldest);
        }
    }

    /// It was used, rightly.
    fn end(&mut self, now: Time, by: PublicKey, proof: Proof, told: Result<Joined, JoinRefusal>) {
        self.exchanges.clear();
        self.done = Some((by, proof, told));
        // Only so long as its answer may be lost.
        self.until = self.until.min(now + JOIN_WITHIN);
    }

    fn purpose(&self) -> JoinPurpose {
        if self.is_for_members() { JoinPurpose::Membership } else { JoinPurpose::Connection }
    }
}

/// A code that this host was told.
pub(super) struct Joining {
    code: OneTimeCode,
    purpose: JoinPurpose,
    name: String,
    /// Where the other host may be, and how often that was tried.
    hosts: Vec<SocketAddr>,
    tries: u32,
    /// Who has answered there.
    peer: Option<PeerId>,
    /// Where that one was asked: its answer shows that it is reached there, as no datagram's source does.
    answered_at: Option<SocketAddr>,
    stage: Stage,
    /// It has answered that it cannot begin another exchange now.
    busy: bool,
    next: Time,
    until: Time,
}

enum Stage {
    /// No session yet.
    Reaching,
    /// The other end's element is awaited.
    Asked(Begun),
    /// Its proof is.
    Proven(Agreed),
}

impl Joining {
    pub(super) fn due(&self) -> Time {
        self.next.min(self.until)
    }

    fn pause(&mut self, now: Time) {
        self.next = now + AGAIN * 2u32.pow(self.tries.min(DOUBLINGS));
        self.tries += 1;
    }
}

impl Community {
    /// See [`Node::join_community`](crate::Node::join_community).
    pub(crate) fn join_community(
        &mut self,
        code: OneTimeCode,
        hosts: Vec<SocketAddr>,
        name: &str,
        at: &mut At<'_>,
    ) -> Result<(), CommunityRefused> {
        self.check_joinable(name, at.base)?;
        self.use_code(code, JoinPurpose::Membership, hosts, name, at)
    }

    /// See [`Node::accept_connection`](crate::Node::accept_connection).
    pub(crate) fn accept_connection(
        &mut self,
        code: OneTimeCode,
        hosts: Vec<SocketAddr>,
        at: &mut At<'_>,
    ) -> Result<(), CommunityRefused> {
        if at.low.permits().is_none() {
            return Err(CommunityRefused::NoMoves);
        }
        // The name is for members; another host's people know this one by its key.
        self.use_code(code, JoinPurpose::Connection, hosts, "guest", at)
    }

    fn use_code(
        &mut self,
        code: OneTimeCode,
        purpose: JoinPurpose,
        hosts: Vec<SocketAddr>,
        name: &str,
        at: &mut At<'_>,
    ) -> Result<(), CommunityRefused> {
        if at.base.config().trust == Trust::Pinned {
            return Err(CommunityRefused::Pinned);
        }
        if self.joining.is_some() {
            return Err(CommunityRefused::Joining);
        }
        if self.spent.iter().any(|(until, spent)| *until > at.now && *spent == code) {
            return Err(CommunityRefused::Spent);
        }
        self.joining = Some(Joining {
            code,
            purpose,
            name: name.to_owned(),
            hosts,
            tries: 0,
            peer: None,
            answered_at: None,
            stage: Stage::Reaching,
            busy: false,
            next: at.now,
            until: at.now + JOIN_WITHIN,
        });
        self.continue_community(at);
        Ok(())
    }

    // ---- the host that was told the code

    pub(super) fn continue_joining(&mut self, at: &mut At<'_>) {
        let Some(joining) = &mut self.joining else { return };
        if joining.until <= at.now {
            let why = match joining.stage {
                Stage::Reaching => JoinFailure::Unanswered,
                Stage::Asked(_) if joining.busy => JoinFailure::Busy,
                Stage::Asked(_) => JoinFailure::Silent,
                Stage::Proven(_) => JoinFailure::BrokenOff,
            };
            self.end_joining(at.now, why, at.base);
            return;
        }
        if joining.next > at.now {
            return;
        }
        match &joining.stage {
            Stage::Reaching => {
                let turn = (joining.tries / TRIES_EACH) as usize;
                let to = joining.hosts.get(turn % joining.hosts.len().max(1)).copied();
                joining.pause(at.now);
                if let Some(to) = to {
                    at.low.session_mut().initiate_to_join(at.now, to, at.base);
                }
            }
            Stage::Asked(_) | Stage::Proven(_) => {
                joining.pause(at.now);
                self.send_to_inviter(at);
            }
        }
    }

    /// Says once more what the inviter is to answer.
    fn send_to_inviter(&mut self, at: &mut At<'_>) {
        let Some(joining) = &self.joining else { return };
        let (number, purpose) = (joining.code.number(), joining.purpose);
        let word = match &joining.stage {
            Stage::Reaching => return,
            Stage::Asked(begun) => Word::Join { number, purpose, element: begun.element },
            Stage::Proven(agreed) => {
                let proof = agreed.prove_joiner(joining.name.as_bytes());
                Word::JoinProof { number, proof, name: joining.name.clone() }
            }
        };
        if let Some(id) = joining.peer {
            at.low.path_mut().send(id, &[Message::Community(word)], at.base);
        }
    }

    /// A handshake that was begun to use a code has ended with a peer, that was asked at this endpoint.
    pub(crate) fn on_joined_peer(&mut self, id: PeerId, at: SocketAddr) {
        if let Some(joining) = self.joining.as_mut().filter(|of| matches!(of.stage, Stage::Reaching)) {
            (joining.peer, joining.answered_at) = (Some(id), Some(at));
        }
    }

    /// There is a session with a peer that this host uses a code with.
    pub(super) fn begin_exchange(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(joining) = &mut self.joining else { return };
        if joining.peer != Some(id) || !matches!(joining.stage, Stage::Reaching) {
            return;
        }
        let Some(inviter) = at.low.session().key_of(id) else { return };
        let between = Between { joiner: at.base.public_key(), inviter, purpose: joining.purpose };
        let Some(begun) = begin(&joining.code, &between, at.base.random()) else { return };
        joining.stage = Stage::Asked(begun);
        joining.tries = 0;
        joining.pause(at.now);
        self.send_to_inviter(at);
    }

    pub(super) fn handle_join_answer(&mut self, id: PeerId, number: u16, element: &Element, at: &mut At<'_>) {
        let Some(joining) = self.joining.as_mut() else { return };
        if joining.peer != Some(id) || joining.code.number() != number || !matches!(joining.stage, Stage::Asked(_)) {
            return;
        }
        let Stage::Asked(begun) = std::mem::replace(&mut joining.stage, Stage::Reaching) else { return };
        match begun.finish(element) {
            Some(agreed) => {
                joining.stage = Stage::Proven(agreed);
                joining.tries = 0;
                joining.pause(at.now);
                self.send_to_inviter(at);
            }
            None => self.end_joining(at.now, JoinFailure::NotProven, at.base),
        }
    }

    pub(super) fn handle_join_refused(
        &mut self,
        now: Time,
        id: PeerId,
        number: u16,
        refusal: JoinRefusal,
        base: &mut Base,
    ) {
        let Some(joining) = self.joining.as_mut() else { return };
        if joining.peer != Some(id) || joining.code.number() != number || matches!(joining.stage, Stage::Reaching) {
            return;
        }
        let why = match refusal {
            // It is asked again.
            JoinRefusal::Busy => {
                joining.busy = true;
                return;
            }
            JoinRefusal::WrongCode => JoinFailure::WrongCode,
            JoinRefusal::OtherPurpose => JoinFailure::OtherPurpose,
            JoinRefusal::Full => JoinFailure::Full,
            JoinRefusal::NameTaken => JoinFailure::NameTaken,
            JoinRefusal::NoSuchCode | JoinRefusal::Other(_) => JoinFailure::NoSuchCode,
        };
        self.end_joining(now, why, base);
    }

    pub(super) fn handle_joined(&mut self, id: PeerId, joined: Joined, at: &mut At<'_>) {
        let Some(joining) = self.joining.as_ref() else { return };
        let Some(place) = joining.answered_at else { return };
        let Some(inviter) = at.low.session().key_of(id) else { return };
        let Stage::Proven(agreed) = &joining.stage else { return };
        if joining.peer != Some(id) || joining.code.number() != joined.number {
            return;
        }
        let membership = joining.purpose == JoinPurpose::Membership;
        let roster = if membership { Roster::of(joined.community, joined.secret.clone()) } else { None };
        if !agreed.is_inviters(&joined.proof, &joined.proven()) || roster.is_some() != membership {
            self.end_joining(at.now, JoinFailure::NotProven, at.base);
            return;
        }
        self.joining = None;
        self.pin_inviter(place.ip(), inviter, at);
        match roster {
            Some(roster) => {
                self.roster = Some(roster);
                self.hints = BTreeMap::from([(inviter, place)]);
                self.telling.clear();
                // Its statements follow; they are asked for until they are here.
                self.learn_from(at.now, inviter);
            }
            None => {
                let number = self.free_number(at.now, at.low);
                let lifetime = Duration::from_secs(joined.lifetime.into()).min(GRANT_LIFETIME);
                let until = at.now + lifetime;
                at.base.signal(Signal::Granted(Grant::new(number, inviter, None, until)));
                at.base.event(CommunityEvent::MayReceive { number, host: inviter });
            }
        }
    }

    /// The code has proven whose key answers at the address that people named: better than being the first to answer
    /// there. A key that is remembered for it stays until people have it forgotten (P-148).
    fn pin_inviter(&mut self, address: IpAddr, key: PublicKey, at: &mut At<'_>) {
        if at.base.config().trust != Trust::Tofu {
            return;
        }
        match at.low.session().contacts().known_key(&address) {
            Some(known) if known == key => {}
            Some(known) => {
                self.proven = Some((address, key));
                at.base.event(CommunityEvent::OtherKeyKnown { address, known, proven: key });
            }
            None => at.low.session_mut().remember_key_at(address, key, at.base),
        }
    }

    /// The key that a code has proven to be that of the host at this address, where another was remembered for it and
    /// is no more.
    pub(crate) fn take_proven_key(&mut self, address: IpAddr) -> Option<PublicKey> {
        self.proven.take_if(|(at, _)| *at == address).map(|(_, key)| key)
    }

    fn end_joining(&mut self, now: Time, why: JoinFailure, base: &mut Base) {
        let Some(joining) = self.joining.take() else { return };
        let number = joining.code.number();
        // Whoever was there has had a guess at it once it has this host's proof.
        if matches!(joining.stage, Stage::Proven(_)) {
            self.spent.push((now + CODE_LIFETIME, joining.code));
        }
        base.event(CommunityEvent::JoinFailed { number, why });
    }

    // ---- the host that has drawn it

    pub(super) fn handle_join(
        &mut self,
        id: PeerId,
        number: u16,
        purpose: JoinPurpose,
        element: Element,
        at: &mut At<'_>,
    ) -> Option<Word> {
        let joiner = at.low.session().key_of(id)?;
        let refused = |refusal| Some(Word::JoinRefused { number, refusal });
        let Some(offer) = self.offers.get_mut(&number).filter(|offer| offer.until > at.now && !offer.is_done()) else {
            return refused(JoinRefusal::NoSuchCode);
        };
        if offer.purpose() != purpose {
            return refused(JoinRefusal::OtherPurpose);
        }
        if let Some(exchange) = offer.exchanges.get(&joiner) {
            if exchange.theirs == element {
                return Some(Word::JoinAnswer { number, element: exchange.ours });
            }
            // One that is anew with each word would take what all may begin (P-149).
            if exchange.begun + EXCHANGE_LASTS > at.now {
                return refused(JoinRefusal::Busy);
            }
        }
        if offer.exchanges.len() >= EXCHANGES_MOST && !offer.exchanges.contains_key(&joiner) {
            offer.drop_oldest_exchange(at.now);
        }
        let full = offer.exchanges.len() >= EXCHANGES_MOST && !offer.exchanges.contains_key(&joiner);
        if full || !self.exchanges.take(at.now) {
            return refused(JoinRefusal::Busy);
        }
        let between = Between { joiner, inviter: at.base.public_key(), purpose };
        let (ours, agreed) = answer(&offer.code, &between, &element, at.base.random())?;
        offer.exchanges.insert(joiner, Exchange { begun: at.now, theirs: element, ours, agreed });
        Some(Word::JoinAnswer { number, element: ours })
    }

    pub(super) fn handle_join_proof(
        &mut self,
        id: PeerId,
        arrival: &Arrival,
        number: u16,
        proof: &Proof,
        name: &str,
        at: &mut At<'_>,
    ) -> Option<Word> {
        let joiner = at.low.session().key_of(id)?;
        let refused = |refusal| Some(Word::JoinRefused { number, refusal });
        let Some(offer) = self.offers.get(&number).filter(|offer| offer.until > at.now) else {
            return refused(JoinRefusal::NoSuchCode);
        };
        if let Some((who, shown, joined)) = &offer.done {
            // It has not heard that it was let in.
            if *who != joiner || shown != proof {
                return refused(JoinRefusal::NoSuchCode);
            }
            match joined.clone() {
                Ok(joined) => self.send_joined(id, arrival, joined, joiner, at),
                Err(refusal) => return refused(refusal),
            }
            return None;
        }
        let Some(exchange) = offer.exchanges.get(&joiner) else { return refused(JoinRefusal::NoSuchCode) };
        if !exchange.agreed.is_joiners(proof, name.as_bytes()) {
            self.offers.remove(&number);
            let remote = arrival.source;
            at.base.event(CommunityEvent::WrongCode { number, host: joiner, remote });
            return refused(JoinRefusal::WrongCode);
        }
        let what = offer.what.clone();
        if offer.is_for_members() && self.is_taken(name, &joiner) {
            let offer = self.offers.get_mut(&number)?;
            offer.end(at.now, joiner, *proof, Err(JoinRefusal::NameTaken));
            let name = name.to_owned();
            at.base.event(CommunityEvent::NameTaken { number, host: joiner, name });
            return refused(JoinRefusal::NameTaken);
        }
        let (community, secret, lifetime) = match &what {
            Offered::Membership { steward } => match self.let_in(&joiner, name, *steward) {
                Some((community, secret)) => (community, secret, 0),
                None => return refused(JoinRefusal::Full),
            },
            Offered::Connection { .. } => ([0; 32], None, GRANT_LIFETIME.as_secs() as u32),
        };
        let offer = self.offers.get_mut(&number)?;
        let mut joined = Joined { number, proof: [0; 32], community, secret, lifetime };
        let exchange = offer.exchanges.get(&joiner)?;
        joined.proof = exchange.agreed.prove_inviter(&joined.proven());
        offer.end(at.now, joiner, *proof, Ok(joined.clone()));
        match what {
            Offered::Membership { steward } => {
                self.hints.insert(joiner, arrival.source);
                let name = name.to_owned();
                at.base.event(CommunityEvent::HostJoined { host: joiner, name, steward });
                self.send_joined(id, arrival, joined, joiner, at);
                self.send_to_everybody(at);
            }
            Offered::Connection { flow } => {
                let (flow, until) = (Some(flow), at.now + GRANT_LIFETIME);
                at.base.signal(Signal::Granted(Grant::new(number, joiner, flow, until)));
                if let Some(flow) = flow {
                    at.base.event(CommunityEvent::Granted { number, host: joiner, flow });
                }
                self.send_joined(id, arrival, joined, joiner, at);
            }
        }
        None
    }

    /// Whether another host of the community is called so (P-120).
    fn is_taken(&self, name: &str, joiner: &PublicKey) -> bool {
        let roster = self.roster.as_ref();
        roster.is_some_and(|roster| roster.is_another_called(name, joiner))
    }

    fn let_in(
        &mut self,
        joiner: &PublicKey,
        name: &str,
        steward: bool,
    ) -> Option<(CommunityKey, Option<CommunitySecret>)> {
        let roster = self.roster.as_mut()?;
        if !roster.has_room_for(joiner) {
            return None;
        }
        // Who was invited anew is what it was invited as.
        let standing = if steward { MemberStanding::Steward } else { MemberStanding::Member };
        roster.state(joiner, standing, name)?;
        let secret = if steward { Some(roster.secret()?.clone()) } else { None };
        Some((*roster.community(), secret))
    }

    /// Tells a joiner that it was let in, once that is saved, and what it needs to know to say so to others.
    fn send_joined(&mut self, id: PeerId, arrival: &Arrival, joined: Joined, joiner: PublicKey, at: &mut At<'_>) {
        let mut words = vec![Message::Community(Word::Joined(joined.clone()))];
        let (source, to) = (arrival.destination, arrival.source);
        if joined.lifetime > 0 {
            at.low.path_mut().send_to(id, source, to, &words, at.base);
            return;
        }
        let own = self.hints.clone();
        let roster = self.roster.as_ref();
        let about = [joiner, at.base.public_key()];
        let statements: Vec<(Statement, Option<SocketAddr>)> = about
            .iter()
            .filter_map(|host| roster?.about(host).map(|statement| (statement.clone(), own.get(host).copied())))
            .collect();
        words.push(Message::Community(Word::Roster { community: joined.community, statements }));
        if let Some(saved) = self.saved() {
            let asked = Asked::Say(id, source, to, words);
            at.base.ask(StoreOp::SaveCommunity(Box::new(saved)), asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::Config;
    use crate::base::event::Event;
    use crate::base::output::Output;
    use crate::role::Alone;

    #[test]
    fn an_inviter_that_says_that_it_is_busy_is_not_called_silent() {
        let mut failures = Vec::new();
        for busy in [false, true] {
            let mut node = Alone::<Community>::new(Config::default(), 4);
            let (now, peer, purpose) = (Time::default(), PeerId(1), JoinPurpose::Membership);
            node.act(now, |role, at| role.found_community("desk", at)).expect("founded");
            let code = node.act(now, |role, at| role.invite(false, at)).expect("a code");
            let between = Between { joiner: node.base.public_key(), inviter: PublicKey::from([5; 32]), purpose };
            let begun = begin(&code, &between, node.base.random()).expect("begun");
            let (number, name, until) = (code.number(), "laptop".to_owned(), now + JOIN_WITHIN);
            node.role.joining = Some(Joining {
                code,
                purpose,
                name,
                hosts: Vec::new(),
                tries: 0,
                peer: Some(peer),
                answered_at: None,
                stage: Stage::Asked(begun),
                busy: false,
                next: until,
                until,
            });
            if busy {
                node.role.handle_join_refused(now, peer, number, JoinRefusal::Busy, &mut node.base);
            }
            node.act(until, |role, at| role.continue_joining(at));
            failures.extend(std::iter::from_fn(|| node.base.poll()).filter_map(|output| match output {
                Output::Event(Event::Community(CommunityEvent::JoinFailed { why, .. })) => {
                    Some((why, why.leaves_code()))
                }
                _ => None,
            }));
        }
        assert_eq!(failures, [(JoinFailure::Silent, true), (JoinFailure::Busy, true)]);
    }

    #[test]
    fn exchanges_that_nobody_ends_give_way() {
        let mut node = Alone::<Community>::new(Config::default(), 4);
        let purpose = JoinPurpose::Membership;
        let now = Time::default() + Duration::from_secs(100);
        node.act(now, |role, at| role.found_community("desk", at)).expect("founded");
        let code = node.act(now, |role, at| role.invite(false, at)).expect("a code");
        let mut join = |now: Time, joiner: u8| {
            let key = PublicKey::from([joiner; 32]);
            let id = match node.low.session().with_key(&key) {
                Some(id) => id,
                None => node.low.session_mut().new_peer(now, key),
            };
            let between = Between { joiner: key, inviter: node.base.public_key(), purpose };
            let begun = begin(&code, &between, node.base.random()).expect("begun");
            let answer = node.act(now, |role, at| role.handle_join(id, code.number(), purpose, begun.element, at));
            matches!(answer, Some(Word::JoinAnswer { .. }))
        };
        assert!((1..=16).all(|stranger| join(now, stranger)));
        let soon = now + EXCHANGE_LASTS - Duration::from_millis(1);
        assert!(!join(soon, 99), "each has its time");
        assert!(join(now + EXCHANGE_LASTS, 99));
        assert!(join(now + EXCHANGE_LASTS, 98));
    }

    /// P-149: with 50 words a second, each with another element, beside a joiner that tries as it does.
    #[test]
    fn one_key_that_begins_without_end_keeps_nobody_out() {
        let mut out = 0;
        for run in 0..40_u8 {
            let mut node = Alone::<Community>::new(Config::default(), run + 1);
            let purpose = JoinPurpose::Membership;
            let start = Time::default() + Duration::from_secs(100);
            node.act(start, |role, at| role.found_community("desk", at)).expect("founded");
            let code = node.act(start, |role, at| role.invite(false, at)).expect("a code");
            let ids = [1_u8, 2].map(|of| node.low.session_mut().new_peer(start, PublicKey::from([of; 32])));
            let element = |node: &mut Alone<Community>, of: u8| {
                let between = Between { joiner: PublicKey::from([of; 32]), inviter: node.base.public_key(), purpose };
                begin(&code, &between, node.base.random()).expect("begun").element
            };
            let honest = element(&mut node, 2);
            let (mut let_in, mut tries) = (false, 0_u32);
            let mut next = start + Duration::from_millis(u64::from(run) * 7 + 400);
            for step in 0..1000_u64 {
                let now = start + Duration::from_millis(20 * step);
                if now >= next {
                    let answer = node.act(now, |role, at| role.handle_join(ids[1], code.number(), purpose, honest, at));
                    let_in |= matches!(answer, Some(Word::JoinAnswer { .. }));
                    next = now + AGAIN * 2u32.pow(tries.min(DOUBLINGS));
                    tries += 1;
                }
                let fresh = element(&mut node, 1);
                node.act(now, |role, at| role.handle_join(ids[0], code.number(), purpose, fresh, at));
            }
            out += u32::from(!let_in);
        }
        assert_eq!(out, 0, "of 40 so many were kept out for 20 s");
    }
}
