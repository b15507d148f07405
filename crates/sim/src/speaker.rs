//! Somebody who holds a session and says what he likes.

mod taking;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{Contact, Finished, Incoming, Initiator, Local, PublicKey, Session, StaticKey};
use whimbrel_wire::message::{Echo, Introduced, IntroductionRefusal, Message, decode_all};
use whimbrel_wire::moving::{Record, Stretch};
use whimbrel_wire::{Capabilities, Datagram, FlowTuple, Hello, Transport};

use crate::host::HostId;
use crate::network::NetworkId;
use crate::packet::{Body, Packet};
use crate::world::{FlowId, World};

/// The control port.
const PORT: u16 = 2031;

/// A peer that keeps to the rules of cryptography and to no others. It lives on a host that runs no daemon, and reads
/// what comes to that host's control port.
pub struct Speaker {
    host: HostId,
    key: StaticKey,
    /// Where its datagrams enter the network, whatever address they claim.
    pub network: NetworkId,
    /// Its true address.
    pub address: IpAddr,
    /// Whom it speaks to.
    pub peer: SocketAddr,
    session: Option<Session>,
    /// Whose key the session was made with.
    peer_key: Option<PublicKey>,
    next_index: u32,
    timestamp: u64,
    /// The life that it tells (P-47).
    pub life: u64,
    /// What it says that it can do.
    pub capabilities: Capabilities,
    heard: Vec<Message>,
    /// The number of its newest stream of records.
    stream: u64,
    /// Its place, as far as the peer has accepted it, and the sequence number of its newest update.
    place: u32,
    sequence: u32,
    /// How the peer sees it.
    observed: Option<SocketAddr>,
    /// How much of its stream it has said.
    told: u64,
    /// What flows that it has introduced are called.
    names: Vec<u64>,
}

impl Speaker {
    /// On a host that is attached to this network with this address.
    #[must_use]
    pub fn new(host: HostId, network: NetworkId, address: IpAddr, peer: IpAddr) -> Self {
        let mut secret = [0x17; 32];
        secret[1] = host.0 as u8;
        Self::with_key(host, network, address, peer, StaticKey::from_bytes(secret), 7000)
    }

    /// The same with this key: there may be several on a host, each with session indices of its own, which begin there.
    #[must_use]
    pub fn with_key(
        host: HostId,
        network: NetworkId,
        address: IpAddr,
        peer: IpAddr,
        key: StaticKey,
        first_index: u32,
    ) -> Self {
        Self {
            host,
            key,
            network,
            address,
            peer: SocketAddr::new(peer, PORT),
            session: None,
            peer_key: None,
            next_index: first_index,
            timestamp: 1,
            life: 0,
            capabilities: Capabilities::REWRITE | Capabilities::TUNNEL_SEALED | Capabilities::TUNNEL_PLAIN,
            heard: Vec::new(),
            stream: 0,
            place: 0,
            sequence: 0,
            observed: None,
            told: 0,
            names: Vec::new(),
        }
    }

    /// Its key, the secret half with it.
    #[must_use]
    pub fn static_key(&self) -> &StaticKey {
        &self.key
    }

    /// The host that it lives on.
    #[must_use]
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Its key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// The address and port that it really has.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.address, PORT)
    }

    /// What it would say to prove these numbers of a flow (P-50).
    ///
    /// # Panics
    /// Without a session.
    #[must_use]
    pub fn pairing_proof(&self, introducer: bool, numbers: (u32, u32)) -> [u8; 16] {
        self.session.as_ref().expect("a session").pairing_proof(true, introducer, numbers)
    }

    fn launch(&self, world: &mut World, source: SocketAddr, destination: SocketAddr, body: Body, transport: Transport) {
        world.launch(self.network, Packet { transport, source, destination, origin: self.host, body });
    }

    /// Begins a handshake from an address that need not be its own, and does not wait for the answer.
    ///
    /// # Panics
    /// The key is bad.
    pub fn begin(&mut self, world: &mut World, contact: Contact, source: SocketAddr) -> Initiator {
        self.next_index += 1;
        self.timestamp += 1;
        let hello = Hello {
            capabilities: self.capabilities,
            timestamp: 1_700_000_000_000 + self.timestamp,
            life: self.life,
            locators: vec![source.ip()],
            ..Hello::default()
        };
        let local = Local { key: &self.key, psk: None };
        let random = &mut world.random;
        let mut fill = |out: &mut [u8]| out.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        let (initiator, payload) =
            Initiator::start(contact, local, self.next_index, hello, &mut fill).expect("a handshake");
        self.launch(world, source, self.peer, Body::Control(payload), Transport::Udp);
        initiator
    }

    /// Sends an initiation again with the cookie that was asked for, from its true address. Tells whether one was.
    pub fn show_cookie(&mut self, world: &mut World, initiator: &mut Initiator, datagram: &[u8]) -> bool {
        let Ok(Datagram::Cookie(reply)) = Datagram::parse(datagram) else { return false };
        let Ok(payload) = initiator.handle_cookie(&reply) else { return false };
        self.launch(world, self.endpoint(), self.peer, Body::Control(payload), Transport::Udp);
        true
    }

    /// Makes a session, from its true address.
    ///
    /// # Panics
    /// Nobody answers.
    pub fn meet(&mut self, world: &mut World) {
        assert!(self.try_to_meet(world, Duration::from_millis(100)), "a response");
        self.send(world, self.endpoint(), &[Message::IntroductionRequest { tag: 1 }]);
        world.run_for(Duration::from_millis(50));
        assert!(self.hear(world).contains(&Message::IntroductionReady { tag: 1 }), "a session that both ends have");
    }

    /// Answers whoever asked its host for a session, and speaks to that one from now on. Tells whether there is a
    /// session.
    ///
    /// # Panics
    /// The key is bad.
    pub fn answer(&mut self, world: &mut World) -> bool {
        let asked = world.take_mail(self.host);
        let Some((source, bytes)) = asked.iter().rfind(|(_, bytes)| bytes.first() == Some(&1)) else { return false };
        let Ok(Datagram::Initiation(initiation)) = Datagram::parse(bytes) else { return false };
        self.next_index += 1;
        self.peer = *source;
        let hello = Hello { capabilities: self.capabilities, locators: vec![self.address], ..Hello::default() };
        let local = Local { key: &self.key, psk: None };
        let random = &mut world.random;
        let mut fill = |out: &mut [u8]| out.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        let incoming = Incoming::read(&initiation, local, &mut fill).expect("an initiation");
        let Incoming::First(incoming) = incoming else { panic!("nobody knows the speaker") };
        let (responder, payload) = incoming.respond(self.next_index, hello).expect("a response");
        self.launch(world, self.endpoint(), self.peer, Body::Control(payload), Transport::Udp);
        world.run_for(Duration::from_millis(50));
        let datagrams = world.take_mail(self.host);
        let Some((_, finish)) = datagrams.iter().find(|(_, bytes)| bytes.first() == Some(&3)) else { return false };
        let Ok(Datagram::Finish(finish)) = Datagram::parse(finish) else { return false };
        let Finished { session, .. } = responder.handle_finish(&finish, 0).expect("a session");
        self.session = Some(session);
        // The other end knows by this that there is one (P-8).
        self.send(world, self.endpoint(), &[Message::Padding { length: 0 }]);
        true
    }

    /// Makes another session, from its true address, and says nothing in it, so that the other end cannot know that it
    /// came about.
    ///
    /// # Panics
    /// Nobody answers.
    pub fn meet_in_silence(&mut self, world: &mut World, key: PublicKey) -> Session {
        world.take_mail(self.host);
        let initiator = self.begin(world, Contact::Known(key), self.endpoint());
        world.run_for(Duration::from_millis(100));
        let datagrams = world.take_mail(self.host);
        let (_, response) = datagrams.iter().find(|(_, bytes)| bytes.first() == Some(&2)).expect("a response");
        let Ok(Datagram::Response(response)) = Datagram::parse(response) else { panic!("no response") };
        initiator.handle_response(&response, 0).expect("a session").session
    }

    /// Says something in such a session. Tells whether it is answered.
    ///
    /// # Panics
    /// The session has no counter left.
    pub fn ask_in(&self, world: &mut World, session: &mut Session) -> bool {
        let mut plaintext = Vec::new();
        Message::PathChallenge { token: 77 }.encode(&mut plaintext);
        let payload = session.seal(&plaintext).expect("a counter");
        world.take_mail(self.host);
        self.launch(world, self.endpoint(), self.peer, Body::Control(payload), Transport::Udp);
        world.run_for(Duration::from_millis(50));
        let mail = world.take_mail(self.host);
        mail.iter().any(|(_, bytes)| match Datagram::parse(bytes) {
            Ok(Datagram::Control(control)) => session.open(&control).is_ok(),
            _ => false,
        })
    }

    /// Says something, from an address that need not be its own. Gives the length of the datagram.
    ///
    /// # Panics
    /// There is no session.
    pub fn send(&mut self, world: &mut World, source: SocketAddr, messages: &[Message]) -> usize {
        self.send_from(world, &[source], messages)
    }

    /// The same from several addresses, one behind the other: it is one datagram, and copies of it.
    ///
    /// # Panics
    /// There is no session.
    pub fn send_from(&mut self, world: &mut World, sources: &[SocketAddr], messages: &[Message]) -> usize {
        let mut plaintext = Vec::new();
        for message in messages {
            message.encode(&mut plaintext);
        }
        let session = self.session.as_mut().expect("a session");
        let payload = session.seal(&plaintext).expect("a counter");
        for source in sources {
            self.launch(world, *source, self.peer, Body::Control(payload.clone()), Transport::Udp);
        }
        payload.len()
    }

    /// What came to its true address since it was last asked.
    pub fn hear(&mut self, world: &mut World) -> Vec<Message> {
        let mut heard = std::mem::take(&mut self.heard);
        let Some(session) = self.session.as_mut() else { return heard };
        let index = session.local_index();
        let is_ours = |bytes: &[u8]| matches!(Datagram::parse(bytes), Ok(Datagram::Control(control)) if control.receiver == index);
        for bytes in world.take_mail_of(self.host, is_ours) {
            let Ok(Datagram::Control(control)) = Datagram::parse(&bytes) else { continue };
            if let Ok(opened) = session.open(&control) {
                heard.extend(decode_all(&opened.plaintext).expect("messages"));
            }
        }
        heard
    }

    /// The index that the peer addresses its session by.
    ///
    /// # Panics
    /// There is no session.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.session.as_ref().expect("a session").local_index()
    }

    /// Speaks in another session, which it has had before or will have again.
    pub fn swap_session(&mut self, other: Option<Session>) -> Option<Session> {
        std::mem::replace(&mut self.session, other)
    }

    /// Puts a nonce into a flow of its host, as an introduction.
    ///
    /// # Panics
    /// There is no session.
    pub fn inject(&self, world: &mut World, tuple: FlowTuple, flow: Option<(FlowId, usize)>, nonce: u64) {
        self.inject_in(world, self.session.as_ref().expect("a session"), tuple, flow, nonce);
    }

    /// The same in another of its sessions with the peer.
    pub fn inject_in(
        &self,
        world: &mut World,
        session: &Session,
        tuple: FlowTuple,
        flow: Option<(FlowId, usize)>,
        nonce: u64,
    ) {
        let body = Body::Introduction { index: session.remote_index(), nonce, flow };
        self.launch(world, tuple.local, tuple.remote, body, tuple.transport);
    }

    /// Introduces a flow that its host opened, honestly. `places`: its own and the peer's.
    ///
    /// # Panics
    /// The peer refuses.
    pub fn introduce(&mut self, world: &mut World, flow: FlowId, places: (u32, u32)) -> Introduced {
        let nonce = 0x1000 + flow.0 as u64;
        self.introduce_under(world, flow, places, nonce).unwrap_or_else(|why| panic!("no introduction: {why:?}"))
    }

    /// The same under a nonce that somebody else may have drawn.
    ///
    /// # Errors
    /// What the peer answers, if it is not that the flow is introduced; `None`: nothing.
    ///
    /// # Panics
    /// The peer does not answer the nonce.
    pub fn introduce_under(
        &mut self,
        world: &mut World,
        flow: FlowId,
        places: (u32, u32),
        nonce: u64,
    ) -> Result<Introduced, Option<IntroductionRefusal>> {
        let port = world.flow(flow).tuples[0].local.port();
        self.introduce_with(world, flow, places, nonce, port)
    }

    /// As [`Speaker::introduce`], and names this wire port.
    ///
    /// # Panics
    /// The peer refuses.
    pub fn introduce_as(&mut self, world: &mut World, flow: FlowId, places: (u32, u32), wire_port: u16) -> Introduced {
        let nonce = 0x1000 + flow.0 as u64;
        let done = self.introduce_with(world, flow, places, nonce, wire_port);
        done.unwrap_or_else(|why| panic!("no introduction: {why:?}"))
    }

    fn introduce_with(
        &mut self,
        world: &mut World,
        flow: FlowId,
        places: (u32, u32),
        nonce: u64,
        wire_port: u16,
    ) -> Result<Introduced, Option<IntroductionRefusal>> {
        let tuple = world.flow(flow).tuples[0];
        world.at_mut(self.host).listen(self.index());
        self.send(world, self.endpoint(), &[Message::IntroductionRequest { tag: 5 }]);
        world.run_for(Duration::from_millis(50));
        self.inject(world, tuple, Some((flow, 0)), nonce);
        world.run_for(Duration::from_millis(50));
        let responder_nonce = *world.at(self.host).consumed.last().expect("the peer's nonce");
        let echo = Echo {
            introducer_nonce: nonce,
            responder_nonce,
            introducer_place: places.0,
            responder_place: places.1,
            wire_port,
            tuple,
        };
        self.send(world, self.endpoint(), &[Message::IntroductionEcho(echo)]);
        world.run_for(Duration::from_millis(50));
        let heard = self.hear(world);
        let done = heard.iter().find_map(|message| match message {
            Message::IntroductionDone { outcome, .. } => Some(outcome.map_err(Some)),
            _ => None,
        });
        if matches!(done, Some(Ok(_))) {
            let session = self.session.as_ref().expect("a session");
            self.names.push(session.flow_name(nonce, responder_nonce));
        }
        done.unwrap_or(Err(None))
    }

    /// Says something about moves (§9), and gives what is answered.
    ///
    /// # Panics
    /// There is no session.
    pub fn tell(&mut self, world: &mut World, record: &Record) -> Vec<Record> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let offset = self.told;
        self.told += bytes.len() as u64;
        self.send(world, self.endpoint(), &[Message::Stream(Stretch { stream: 1, fresh: offset == 0, offset, bytes })]);
        world.run_for(Duration::from_millis(300));
        let mut answers = Vec::new();
        for message in self.hear(world) {
            let Message::Stream(Stretch { bytes, .. }) = message else { continue };
            let mut rest = &bytes[..];
            while let Ok(Some((record, length))) = Record::decode(rest) {
                answers.extend(record);
                rest = &rest[length..];
            }
        }
        answers
    }
}
