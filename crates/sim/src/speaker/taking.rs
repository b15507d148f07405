//! What somebody says who wants what is another's: introductions under others' names, moves of what is not his, places
//! that are not his.

use std::net::SocketAddr;
use std::time::Duration;

use ring::hmac;
use whimbrel_handshake::{Contact, Finished, PublicKey};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::Datagram;
use whimbrel_wire::message::{Echo, Message, Pairing, UpdateFlags};
use whimbrel_wire::moving::{MoveName, Received, Record, StreamStanding, Stretch, Ticket};

use super::Speaker;
use crate::packet::Body;
use crate::world::{FlowId, World};
use whimbrel_wire::Transport;

/// How long it waits for an answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(60);
/// What it lets the other end say before it acknowledges again, in bytes.
const WINDOW: u64 = 1 << 20;
/// The top bit of a nonce tells a carrier probe (P-20), the next one the responder's (§4).
const PROBE_BIT: u64 = 1 << 63;
const ANSWER_BIT: u64 = 1 << 62;

impl Speaker {
    /// Makes a session, from its true address, if somebody answers within this time. Tells whether one was made.
    ///
    /// # Panics
    /// The key is bad.
    pub fn try_to_meet(&mut self, world: &mut World, within: Duration) -> bool {
        let initiator = self.begin(world, Contact::First, self.endpoint());
        let index = self.next_index;
        world.run_for(within);
        let is_ours =
            |bytes: &[u8]| matches!(Datagram::parse(bytes), Ok(Datagram::Response(answer)) if answer.receiver == index);
        let answers = world.take_mail_of(self.host, is_ours);
        let Some(Ok(Datagram::Response(answer))) = answers.first().map(|bytes| Datagram::parse(bytes)) else {
            return false;
        };
        let Ok(Finished { session, answer, remote, .. }) = initiator.handle_response(&answer, 0) else { return false };
        world.on_session(index);
        (self.session, self.peer_key) = (Some(session), Some(remote));
        if let Some(finish) = answer {
            self.launch(world, self.endpoint(), self.peer, Body::Control(finish), Transport::Udp);
        }
        world.run_for(ANSWERED_WITHIN);
        true
    }

    /// Whether it has a session.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Introduces a flow that its host opened with this nonce, and tells this wire port of its own. Tells whether the
    /// peer takes it so.
    pub fn try_to_introduce(&mut self, world: &mut World, flow: FlowId, nonce: u64, wire_port: u16) -> bool {
        if self.session.is_none() {
            return false;
        }
        let tuple = world.flow(flow).tuples[0];
        let index = self.index();
        world.at_mut(self.host).listen(index);
        self.send(world, self.endpoint(), &[Message::IntroductionRequest { tag: 5 }]);
        world.run_for(ANSWERED_WITHIN);
        let before = world.at(self.host).consumed.len();
        self.inject(world, tuple, Some((flow, 0)), nonce);
        world.run_for(ANSWERED_WITHIN);
        let answers = |nonce: &&u64| *nonce & PROBE_BIT == 0 && *nonce & ANSWER_BIT != 0;
        let consumed = &world.at(self.host).consumed;
        let Some(responder_nonce) = consumed[before..].iter().rfind(answers).copied() else { return false };
        let echo = Echo {
            introducer_nonce: nonce,
            responder_nonce,
            introducer_place: self.place,
            responder_place: 0,
            wire_port,
            tuple,
        };
        self.send(world, self.endpoint(), &[Message::IntroductionEcho(echo)]);
        world.run_for(ANSWERED_WITHIN);
        let heard = self.attend(world);
        let done = heard
            .iter()
            .any(|message| matches!(message, Message::IntroductionDone { nonce: of, outcome: Ok(_) } if *of == nonce));
        if done {
            let session = self.session.as_ref().expect("a session");
            self.names.push(session.flow_name(nonce, responder_nonce));
        }
        done
    }

    /// What flows that it has introduced are called (P-132).
    #[must_use]
    pub fn names(&self) -> &[u64] {
        &self.names
    }

    /// Claims a flow as its own by its numbers (P-50), with this nonce. `left`: late, from a place that it had (P-204).
    pub fn claim_by_numbers(
        &mut self,
        world: &mut World,
        flow: FlowId,
        numbers: (u32, u32),
        nonce: u64,
        left: Option<u32>,
    ) {
        if self.session.is_none() {
            return;
        }
        let tuple = world.flow(flow).tuples[0];
        let pairing = Pairing {
            introducer_nonce: nonce,
            proof: self.pairing_proof(true, numbers),
            introducer_place: left.unwrap_or(self.place),
            responder_place: 0,
            wire_port: tuple.local.port(),
            tuple,
            late: left.is_some(),
        };
        self.send(world, self.endpoint(), &[Message::Pairing(pairing)]);
    }

    /// Says that it is to be reached here, with these flags, from its true address.
    pub fn update(&mut self, world: &mut World, claimed: SocketAddr, flags: UpdateFlags) {
        if self.session.is_none() {
            return;
        }
        self.sequence += 1;
        let update = Message::BindingUpdate {
            binding: BindingNumber::FIRST,
            sequence: self.sequence,
            flags,
            claimed,
            lifetime: 0,
        };
        self.send(world, self.endpoint(), &[update, Message::Padding { length: 1000 }]);
        world.run_for(ANSWERED_WITHIN);
        self.attend(world);
    }

    /// Where it is, as the peer numbers that.
    #[must_use]
    pub fn place(&self) -> u32 {
        self.place
    }

    /// How the peer sees it, as far as it was told.
    #[must_use]
    pub fn observed(&self) -> Option<SocketAddr> {
        self.observed
    }

    /// Hears what has come, answers what one has to answer to be believed, and acknowledges what was said about moves.
    /// Gives what it has heard.
    pub fn attend(&mut self, world: &mut World) -> Vec<Message> {
        let heard = self.hear(world);
        let mut answers = Vec::new();
        for message in &heard {
            match message {
                Message::PathChallenge { token } => {
                    answers.push(Message::PathResponse { token: *token, observed: self.peer });
                }
                Message::IntroductionRequest { tag } => answers.push(Message::IntroductionReady { tag: *tag }),
                Message::PathResponse { observed, .. } => self.observed = Some(*observed),
                Message::BindingAcknowledgement { place, observed, newest, .. } => {
                    (self.place, self.observed) = (*place, Some(*observed));
                    self.sequence = self.sequence.max(*newest);
                }
                Message::Stream(stretch) => answers.push(Message::Received(Received {
                    stream: stretch.stream,
                    standing: StreamStanding::Taken,
                    before: stretch.offset + stretch.bytes.len() as u64,
                    limit: stretch.offset + WINDOW,
                    ranges: Vec::new(),
                })),
                _ => {}
            }
        }
        let probes = std::mem::take(&mut world.at_mut(self.host).consumed);
        let seen = probes.iter().filter(|nonce| *nonce & PROBE_BIT != 0);
        answers.extend(seen.map(|token| Message::ProbeSeen { token: *token }));
        if self.session.is_some() && !answers.is_empty() {
            self.send(world, self.endpoint(), &answers);
        }
        heard
    }

    /// Says these words about moves.
    pub fn send_records(&mut self, world: &mut World, records: &[Record]) {
        if self.session.is_none() {
            return;
        }
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode(&mut bytes));
        // Each time another stream, newer than any that the host's own daemon may have begun.
        self.stream += 1;
        let stream = (1 << 60) + self.stream;
        self.send(world, self.endpoint(), &[Message::Stream(Stretch { stream, fresh: true, offset: 0, bytes })]);
    }

    /// Announces a move of a flow of this name to somebody, and signs a ticket for it if the holder takes it (P-73).
    pub fn announce_move(&mut self, world: &mut World, flow: u64, acceptor: &PublicKey, number: u64) -> Option<Ticket> {
        let (acceptor, lifetime) = (*acceptor.as_bytes(), 60);
        self.send_records(world, &[Record::Announce { number, flow, lifetime, acceptor }]);
        world.run_for(ANSWERED_WITHIN);
        let heard = self.attend(world);
        let (sequence, lifetime) = records(&heard).into_iter().find_map(|record| match record {
            Record::Announced { number: of, sequence, lifetime, refusal: None } if of == number => {
                Some((sequence, lifetime))
            }
            _ => None,
        })?;
        let name = MoveName { donor: *self.public_key().as_bytes(), number };
        let mut ticket = Ticket { name, flow, acceptor, sequence, lifetime, mac: [0; 16] };
        self.sign(&mut ticket);
        Some(ticket)
    }

    /// Presents a ticket (P-74), and tells a wire port of its own.
    pub fn present(&mut self, world: &mut World, ticket: Ticket, wire_port: u16) {
        self.send_records(world, &[Record::Present { ticket, wire_port }]);
        world.run_for(ANSWERED_WITHIN);
        self.attend(world);
    }

    /// Puts the MAC into a ticket that the peer it speaks to holds to be its own.
    fn sign(&self, ticket: &mut Ticket) {
        let Some(key) = self.peer_key.and_then(|peer| self.key.ticket_key(&peer)) else { return };
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &ticket.signed());
        if let Some(first) = mac.as_ref().first_chunk() {
            ticket.mac = *first;
        }
    }
}

/// The records in what was heard. Each stretch of few words begins and ends with one.
fn records(heard: &[Message]) -> Vec<Record> {
    let mut records = Vec::new();
    for message in heard {
        let Message::Stream(stretch) = message else { continue };
        let mut bytes = stretch.bytes.as_slice();
        while let Ok(Some((record, length))) = Record::decode(bytes) {
            records.extend(record);
            bytes = &bytes[length..];
        }
    }
    records
}
