//! What everything else stands on: time, randomness, what a node is told once, and what it gives out.

pub(crate) mod arrival;
pub(crate) mod attachments;
pub(crate) mod bucket;
pub(crate) mod config;
pub(crate) mod event;
pub(crate) mod flow_name;
pub(crate) mod grant;
pub(crate) mod id;
pub(crate) mod link_facts;
pub(crate) mod op;
pub(crate) mod output;
pub(crate) mod pace;
pub(crate) mod random;
pub(crate) mod signal;
pub(crate) mod time;
pub(crate) mod timer;
pub(crate) mod watched;

use std::collections::VecDeque;
use std::time::Duration;

use whimbrel_handshake::{PublicKey, StaticKey};

use crate::Time;
use attachments::Attachments;
use config::Config;
use event::Event;
use op::relocation::MoveOp;
use op::{Op, PeerId};
use output::{Asked, MoveAsked, OpId, Output, Outputs, Transmit};
use random::Random;
use signal::Signal;
use timer::{Timer, Timers};

/// How soon what nobody answered is ended.
const SWEEP: Duration = Duration::from_secs(5);

/// What each layer and role is given: who this host is, where it is attached, its timers, and where what it gives out
/// goes.
pub(crate) struct Base {
    config: Config,
    key: StaticKey,
    random: Random,
    timers: Timers,
    output: Outputs,
    signals: VecDeque<Signal>,
    attachments: Attachments,
    /// This host has gone away (P-44).
    suspended: bool,
    dropped: u64,
}

impl Base {
    pub(crate) fn new(config: Config, key: StaticKey, random: Random) -> Self {
        let attachments = Attachments::new(config.behind.clone());
        let (timers, output) = (Timers::default(), Outputs::default());
        let signals = VecDeque::new();
        Self { config, key, random, timers, output, signals, attachments, suspended: false, dropped: 0 }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn key(&self) -> &StaticKey {
        &self.key
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// What a handshake takes: who this host is, and lots.
    pub(crate) fn identity(&mut self) -> (&StaticKey, &Config, &mut Random) {
        (&self.key, &self.config, &mut self.random)
    }

    pub(crate) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    pub(crate) fn attachments_mut(&mut self) -> &mut Attachments {
        &mut self.attachments
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// This host goes away, or is back; whether it was away.
    pub(crate) fn set_suspended(&mut self, suspended: bool) -> bool {
        std::mem::replace(&mut self.suspended, suspended)
    }

    /// A datagram was malformed, forged, replayed or unknown (P-1).
    pub(crate) fn drop_datagram(&mut self) {
        self.dropped += 1;
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

// Timers.
impl Base {
    /// Sets `timer` to go off at `when`, wherever it stood before.
    pub(crate) fn set_timer(&mut self, timer: Timer, when: Time) {
        self.timers.set(timer, when);
    }

    /// Sets `timer` unless it is set to an earlier moment already.
    pub(crate) fn set_timer_earlier(&mut self, timer: Timer, when: Time) {
        self.timers.set_earlier(timer, when);
    }

    pub(crate) fn stop_timer(&mut self, timer: Timer) {
        self.timers.stop(timer);
    }

    /// Stops all that are about a peer.
    pub(crate) fn stop_timers_of(&mut self, id: PeerId) {
        self.timers.stop_all_of(id);
    }

    pub(crate) fn has_timer(&self, timer: Timer) -> bool {
        self.timers.is_set(timer)
    }

    /// The earliest deadline.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes the earliest timer that is due at `now`.
    pub(crate) fn take_due_timer(&mut self, now: Time) -> Option<Timer> {
        self.timers.take_due(now)
    }

    /// Sets the sweep, which is there to end what nobody answered.
    pub(crate) fn sweep_later(&mut self, now: Time) {
        self.timers.set_earlier(Timer::Sweep, now + SWEEP);
    }
}

// Output.
impl Base {
    /// Tells those above a fact, once what is going on is done.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.signals.push_back(signal);
    }

    /// Sets aside what has been told so far; what is told from now on is looked at before it counts.
    pub(crate) fn hold_signals(&mut self) -> VecDeque<Signal> {
        std::mem::take(&mut self.signals)
    }

    /// What was set aside is told, and of what was told since that which counts.
    pub(crate) fn release_signals(&mut self, mut told: VecDeque<Signal>, counts: impl Fn(&Signal) -> bool) {
        told.extend(std::mem::take(&mut self.signals).into_iter().filter(counts));
        self.signals = told;
    }

    /// Takes the next fact.
    pub(crate) fn poll_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    pub(crate) fn transmit(&mut self, transmit: Transmit) {
        self.output.transmit(transmit);
    }

    pub(crate) fn event(&mut self, event: impl Into<Event>) {
        self.output.event(event);
    }

    /// Asks for an effect of which no result matters.
    pub(crate) fn op(&mut self, op: impl Into<Op>) {
        self.output.op(op);
    }

    /// Asks for an effect whose result is for something.
    pub(crate) fn ask(&mut self, op: impl Into<Op>, asked: Asked) -> OpId {
        self.output.ask(op, asked)
    }

    /// Asks for an effect of a move, behind all else.
    pub(crate) fn ask_for_move(&mut self, op: MoveOp, asked: MoveAsked) {
        self.output.ask_for_move(op, asked);
    }

    /// An op was answered: what it was for.
    pub(crate) fn answered(&mut self, id: OpId) -> Option<Asked> {
        self.output.answered(id)
    }

    /// Ops whose results matter and are awaited.
    pub(crate) fn awaited(&self) -> usize {
        self.output.awaited()
    }

    pub(crate) fn poll(&mut self) -> Option<Output> {
        self.output.poll()
    }
}
