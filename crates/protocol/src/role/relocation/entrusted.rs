//! Sockets that are their acceptors', which have not said yet that they go on there (P-145).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{OF_A_PROCESS, Refusal, Request};

use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::timer::Timers;
use crate::binding::transfer::Below;

/// How long an acceptor may take to say that a socket goes on there, once it is its own.
const AWAKE_WITHIN: Duration = Duration::from_secs(20);
/// Sockets of which nothing was heard in time, of which a later word is understood.
const MOST_UNHEARD: usize = 256;

/// All of them, by the numbers of their moves.
#[derive(Debug, Default)]
pub(super) struct Entrusted {
    awaited: BTreeMap<u64, Socket>,
    /// Of which they have not said so in time. No more than so many, and without what was in them.
    unheard: VecDeque<(u64, PublicKey)>,
    limits: Timers<u64>,
}

#[derive(Debug)]
struct Socket {
    acceptor: PublicKey,
    snapshot: Vec<u8>,
}

/// Whether an acceptor says what has become of a socket. Of a whole process it is told with the process.
pub(super) fn is_told_of(request: &Request) -> bool {
    request.receiver.first() != Some(&OF_A_PROCESS)
}

impl Entrusted {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.awaited.contains_key(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.awaited.len()
    }

    /// A socket has ended here. What was in it is kept until it goes on there. `outcome`: what the acceptor has said
    /// already.
    pub(super) fn add(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        acceptor: PublicKey,
        snapshot: Vec<u8>,
        outcome: Option<Result<(), Refusal>>,
    ) {
        let socket = Socket { acceptor, snapshot };
        match outcome {
            Some(outcome) => conclude(below, number, socket, outcome),
            None => {
                self.limits.set(number, below.now() + AWAKE_WITHIN);
                below.wait(&[], &[acceptor]);
                self.awaited.insert(number, socket);
            }
        }
    }

    fn end(&mut self, below: &mut Below<'_>, number: u64, outcome: Result<(), Refusal>) {
        let Some(of) = self.awaited.remove(&number) else { return };
        self.limits.stop(number);
        below.wait(&[of.acceptor], &[]);
        conclude(below, number, of, outcome);
    }

    /// The acceptor says what has become of a socket, be it after people were told that it had not. `false`: it is none
    /// of these.
    pub(super) fn handle_outcome(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        from: PublicKey,
        outcome: Result<(), Refusal>,
    ) -> bool {
        if self.awaited.get(&number).is_some_and(|of| of.acceptor == from) {
            self.end(below, number, outcome);
            return true;
        }
        let Some(late) = self.unheard.iter().position(|of| *of == (number, from)) else { return false };
        self.unheard.remove(late);
        below.event(MoveEvent::HeardOf { name: below.own(number), to: from, outcome });
        true
    }

    /// Acceptors have not said in time what has become of sockets. They may say so later.
    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(number) = self.limits.take_due(below.now()) {
            let Some(acceptor) = self.awaited.get(&number).map(|of| of.acceptor) else { continue };
            if self.unheard.len() >= MOST_UNHEARD {
                self.unheard.pop_front();
            }
            self.unheard.push_back((number, acceptor));
            self.end(below, number, Err(Refusal::AcceptorUnreached));
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next()
    }

    /// Entries of all tables together, with a byte of a snapshot each.
    pub(super) fn entries(&self) -> usize {
        let bytes: usize = self.awaited.values().map(|of| of.snapshot.len()).sum();
        self.awaited.len() + self.limits.len() + bytes
    }
}

fn conclude(below: &mut Below<'_>, number: u64, of: Socket, outcome: Result<(), Refusal>) {
    let (name, to) = (below.own(number), of.acceptor);
    below.event(match outcome {
        Ok(()) => MoveEvent::Given { name, to },
        Err(why) => MoveEvent::LostThere { name, to, why, snapshot: of.snapshot },
    });
}
