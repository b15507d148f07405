//! Two ends agree on chains over a network that loses, duplicates and reorders, while either is started anew at any
//! step. Both send packets all the time, and each packet must come through the very chain that it was sent by.

use std::collections::{BTreeMap, VecDeque};

use whimbrel_wire::chain::Parameter;
use whimbrel_wire::{Stage, TransformId};

use super::*;

const PEER: PeerId = PeerId(7);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// A transform that one end does not know, one of a version that it does not know, and a value that it does not take.
const UNKNOWN: u16 = 99;
const FUTURE: u8 = 9;
const TOO_MUCH: u64 = 100;

fn spec(transforms: &[u16], version: u8, value: u64) -> ChainSpec {
    let parameters = vec![Parameter { number: 1, value }];
    let stage = |id: &u16| Stage { transform: TransformId(*id), version, parameters: parameters.clone() };
    ChainSpec::new(transforms.iter().map(stage).collect()).unwrap()
}

fn judge(spec: &ChainSpec) -> Result<(), (ChainStatus, u8)> {
    for (at, stage) in spec.stages().iter().enumerate() {
        let why = match stage {
            _ if stage.transform == TransformId(UNKNOWN) => ChainStatus::UnknownTransform,
            _ if stage.version == FUTURE => ChainStatus::UnknownVersion,
            _ if stage.parameters.iter().any(|of| of.value > TOO_MUCH) => ChainStatus::BadParameter,
            _ => continue,
        };
        return Err((why, at as u8));
    }
    Ok(())
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn of_thousand(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }
}

/// A chain as one end's tunnel has it.
#[derive(Clone, Debug)]
struct Made {
    born: u64,
    spec: ChainSpec,
    /// The one at the other end whose packets have come through it.
    partner: Option<u64>,
}

#[derive(Debug)]
enum Task {
    Chain(Option<ChainNumber>, ChainOp),
    Path(u32),
}

struct End {
    chains: Chains,
    made: BTreeMap<ChainNumber, Made>,
    sending: Option<ChainNumber>,
    /// The session that the tunnel sends with.
    path: Option<u32>,
    tasks: VecDeque<(Time, Task)>,
    /// The session that is sent with, and those that are received from, until when.
    current: Option<u32>,
    accepted: BTreeMap<u32, Option<Time>>,
    up: bool,
    knows: bool,
}

#[derive(Clone, Debug)]
enum Packet {
    Control {
        session: u32,
        message: Message,
    },
    Data {
        session: u32,
        chain: Option<(ChainNumber, u64)>,
    },
    /// The last message of a handshake.
    Session(u32),
    Boot,
}

#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    loss: u64,
    duplicate: u64,
    /// Datagrams take so many milliseconds more, by chance.
    jitter: u64,
    /// Ops take up to so many milliseconds.
    slow: u64,
}

struct Pair {
    now: Time,
    ends: [End; 2],
    queue: BTreeMap<(Time, u64), (usize, Packet)>,
    order: u64,
    chance: Chance,
    weather: Weather,
    /// Between two packets of one end.
    pace: Duration,
    born: u64,
    session: u32,
    /// Steps so far: what was said, and what was done. At one of them something happens.
    steps: u64,
    lose: Option<u64>,
    crash: Option<(usize, u64)>,
    delivered: [u64; 2],
    through: [u64; 2],
    seed: u64,
    trace: VecDeque<String>,
}

impl End {
    fn new(lot: u8) -> Self {
        Self {
            chains: Chains::new(true, lot),
            made: BTreeMap::new(),
            sending: None,
            path: None,
            tasks: VecDeque::new(),
            current: None,
            accepted: BTreeMap::new(),
            up: true,
            knows: true,
        }
    }
}

impl Pair {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut chance = Chance(seed);
        let ends = [0, 1].map(|_| End::new(chance.below(256) as u8));
        let mut pair = Self {
            now: Time::from_micros(1_000_000),
            ends,
            queue: BTreeMap::new(),
            order: 0,
            chance,
            weather,
            pace: MILLISECOND * 5,
            born: 0,
            session: 0,
            steps: 0,
            lose: None,
            crash: None,
            delivered: [0; 2],
            through: [0; 2],
            seed,
            trace: VecDeque::new(),
        };
        pair.handshake();
        pair
    }

    fn record(&mut self, what: String) {
        if self.trace.len() == 60 {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{:>9} {what}", self.now.as_millis()));
    }

    fn fail(&self, what: &str) -> ! {
        let trace: Vec<&str> = self.trace.iter().map(String::as_str).collect();
        panic!("seed {}: {what}\n{}", self.seed, trace.join("\n"))
    }

    fn put(&mut self, to: usize, after: Duration, packet: Packet) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), (to, packet));
    }

    fn launch(&mut self, to: usize, packet: Packet) {
        let Weather { loss, duplicate, jitter, .. } = self.weather;
        if self.chance.of_thousand(loss) {
            return;
        }
        let copies = 1 + u64::from(self.chance.of_thousand(duplicate));
        for _ in 0..copies {
            let delay = MILLISECOND * (10 + self.chance.below(jitter + 1)) as u32;
            self.put(to, delay, packet.clone());
        }
    }

    /// Both ends have a new session, the responder a moment later.
    fn handshake(&mut self) {
        self.session += 1;
        let first = self.chance.below(2) as usize;
        let later = MILLISECOND * (1 + self.chance.below(40 + self.weather.jitter)) as u32;
        self.put(first, MILLISECOND, Packet::Session(self.session));
        self.put(1 - first, later, Packet::Session(self.session));
    }

    fn step(&mut self, end: usize) -> bool {
        let step = self.steps;
        self.steps += 1;
        if self.crash == Some((end, step)) {
            self.restart(end);
            return false;
        }
        true
    }

    /// An end is started anew, and has forgotten all.
    fn restart(&mut self, end: usize) {
        self.record(format!("end {end} is started anew"));
        let (lot, knows) = (self.chance.below(256) as u8, self.ends[end].knows);
        self.ends[end] = End { up: false, knows, ..End::new(lot) };
        let downtime = MILLISECOND * self.chance.below(3000) as u32;
        self.put(end, downtime, Packet::Boot);
    }

    fn ask(&mut self, end: usize, wanted: Option<ChainSpec>) {
        self.record(format!("end {end} wants {wanted:?}"));
        let now = self.now;
        if self.ends[end].up {
            self.ends[end].chains.ask(now, PEER, wanted).unwrap();
            self.drain(end);
        }
    }

    fn drain(&mut self, end: usize) {
        while let Some(action) = self.ends[end].chains.poll() {
            let task = match action {
                ChainAction::Send(_, message) => {
                    if !self.step(end) {
                        return;
                    }
                    let Some(session) = self.ends[end].current else { continue };
                    let lost = self.lose == Some(self.steps - 1);
                    self.record(format!("end {end} says {message:?} in {session}{}", if lost { ", lost" } else { "" }));
                    if !lost {
                        self.launch(1 - end, Packet::Control { session, message });
                    }
                    continue;
                }
                ChainAction::Await(_, chain, op) => Task::Chain(Some(chain), op),
                ChainAction::Do(op) => Task::Chain(None, op),
            };
            let takes = MILLISECOND * self.chance.below(self.weather.slow + 1) as u32;
            let last = self.ends[end].tasks.back().map_or(self.now, |(due, _)| *due);
            self.ends[end].tasks.push_back((last.max(self.now + takes), task));
        }
    }

    fn work(&mut self, end: usize) {
        while let Some((_, task)) = self.ends[end].tasks.pop_front_if(|(due, _)| *due <= self.now) {
            if !self.step(end) {
                return;
            }
            self.record(format!("end {end} does {task:?}"));
            let of = &mut self.ends[end];
            let (awaited, op) = match task {
                Task::Path(session) => {
                    of.path = Some(session);
                    continue;
                }
                Task::Chain(awaited, op) => (awaited, op),
            };
            let result = match op {
                ChainOp::Set { chain, spec, .. } => {
                    let judged = if of.knows { judge(&spec) } else { Err((ChainStatus::UnknownTransform, 0)) };
                    if judged.is_ok() {
                        self.born += 1;
                        let before = of.made.insert(chain, Made { born: self.born, spec, partner: None });
                        assert!(before.is_none(), "seed {}: chain {chain} is made twice", self.seed);
                    }
                    judged
                }
                ChainOp::SetParameters { chain, spec, .. } => {
                    let judged = judge(&spec);
                    let made = of.made.get_mut(&chain).expect("it was made");
                    assert!(made.spec.is_alike(&spec));
                    if judged.is_ok() {
                        made.spec = spec;
                    }
                    judged
                }
                ChainOp::SendThrough { chain, .. } => {
                    assert!(chain.is_none_or(|chain| of.made.contains_key(&chain)), "seed {}", self.seed);
                    of.sending = chain;
                    Ok(())
                }
                ChainOp::Remove { chain, .. } => {
                    assert!(of.made.remove(&chain).is_some() && of.sending != Some(chain), "seed {}", self.seed);
                    Ok(())
                }
            };
            if let Some(chain) = awaited {
                of.chains.handle_done(self.now, PEER, chain, result);
                self.drain(end);
            }
        }
        assert!(self.ends[end].made.len() <= CHAINS, "seed {}", self.seed);
    }

    fn arrive(&mut self, end: usize, packet: Packet) {
        let now = self.now;
        let of = &mut self.ends[end];
        match packet {
            Packet::Boot => {
                of.up = true;
                self.handshake();
            }
            _ if !of.up => {}
            Packet::Session(session) => {
                for until in of.accepted.values_mut() {
                    until.get_or_insert(now + Duration::from_secs(30));
                }
                of.accepted.insert(session, None);
                of.current = Some(session);
                let lower = end == 0;
                of.chains.on_session(now, PEER, ChainSession { speaks: true, lower, round_trip: MILLISECOND * 20 });
                self.record(format!("end {end} has session {session}"));
                self.drain(end);
                let last = self.ends[end].tasks.back().map_or(now, |(due, _)| *due);
                self.ends[end].tasks.push_back((last, Task::Path(session)));
            }
            Packet::Control { session, .. } | Packet::Data { session, .. }
                if of.accepted.get(&session).is_none_or(|until| until.is_some_and(|until| until <= now)) => {}
            Packet::Control { session, message } => {
                let current = of.current == Some(session);
                match message {
                    Message::Chain(request) => of.chains.handle_chain(now, PEER, current, request),
                    Message::ChainSeen(answer) => of.chains.handle_chain_seen(now, PEER, current, &answer),
                    message => unreachable!("{message:?}"),
                }
                self.drain(end);
            }
            Packet::Data { chain, .. } => {
                self.delivered[end] += 1;
                let Some((number, born)) = chain else { return };
                self.through[end] += 1;
                let Some(made) = of.made.get_mut(&number) else {
                    self.fail(&format!("a packet of chain {number} came to end {end}, which does not know it"));
                };
                if *made.partner.get_or_insert(born) != born {
                    self.fail(&format!("a packet of another chain {number} came to end {end}"));
                }
            }
        }
    }

    fn send(&mut self, end: usize) {
        let of = &self.ends[end];
        let Some(session) = of.path.filter(|_| of.up) else { return };
        let chain = of.sending.map(|number| (number, of.made[&number].born));
        self.launch(1 - end, Packet::Data { session, chain });
    }

    fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        let mut next = self.now;
        while self.now < until {
            while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (end, packet) = entry.remove();
                self.arrive(end, packet);
                self.work(end);
            }
            for end in 0..2 {
                self.work(end);
                if self.ends[end].up && self.ends[end].chains.poll_timeout().is_some_and(|due| due <= self.now) {
                    let now = self.now;
                    self.ends[end].chains.handle_timeout(now);
                    assert!(self.ends[end].chains.poll_timeout().is_none_or(|due| due > now), "seed {}", self.seed);
                    self.drain(end);
                }
                if next <= self.now {
                    self.send(end);
                }
            }
            if next <= self.now {
                next = self.now + self.pace;
            }
            let due = self.ends.iter().flat_map(|end| [end.chains.poll_timeout(), end.tasks.front().map(|of| of.0)]);
            let due = due.chain([self.queue.keys().next().map(|key| key.0), Some(next)]).flatten().min();
            self.now = due.unwrap_or(until).min(until).max(self.now + MILLISECOND);
        }
    }

    fn view(&self, end: usize) -> ChainView {
        self.ends[end].chains.view(PEER).expect("an agreement")
    }

    /// The network is good and nothing happens: both ends have the same in force, send by it, and keep nothing else.
    fn settle(&mut self) -> Option<ChainSpec> {
        self.weather = Weather::default();
        (self.lose, self.crash) = (None, None);
        self.pace = MILLISECOND * 100;
        self.run_for(40 * SECOND);
        if self.ends[0].current != self.ends[1].current {
            // Of two sessions at once each end may send with another one (P-8), until neither receives that.
            self.handshake();
        }
        self.run_for(160 * SECOND);
        self.pace = MILLISECOND * 5;
        let views = [self.view(0), self.view(1)];
        let [of, other] = &views;
        let settled = |view: &ChainView| {
            matches!(view.phase, ChainPhase::Empty | ChainPhase::InForce)
                && view.sending == view.in_force.as_ref().map(|(number, _)| *number)
                && view.known == usize::from(view.in_force.is_some())
        };
        if of.in_force != other.in_force || !views.iter().all(settled) {
            self.fail(&format!("they do not agree: {views:?}"));
        }
        for end in &self.ends {
            let made: Vec<_> = end.made.iter().map(|(number, made)| (*number, made.spec.clone())).collect();
            if made != of.in_force.clone().into_iter().collect::<Vec<_>>() {
                self.fail(&format!("made is {made:?}, in force {:?}", of.in_force));
            }
        }
        let before = (self.delivered, self.through);
        self.run_for(SECOND);
        assert!((0..2).all(|end| self.delivered[end] > before.0[end] + 150), "seed {}", self.seed);
        let led = (0..2).all(|end| self.through[end] > before.1[end] + 150);
        assert_eq!(led, of.in_force.is_some(), "seed {}", self.seed);
        of.in_force.as_ref().map(|(_, spec)| spec.clone())
    }
}

fn settled(weather: Weather) -> Pair {
    let mut pair = Pair::new(1, weather);
    pair.run_for(SECOND);
    pair
}

#[test]
fn both_ends_go_through_a_chain_that_either_asks_for() {
    for end in 0..2 {
        let mut pair = settled(Weather::default());
        for wanted in [spec(&[1], 1, 5), spec(&[1], 1, 6), spec(&[2, 1], 1, 6)] {
            pair.ask(end, Some(wanted.clone()));
            pair.run_for(SECOND);
            assert_eq!(pair.settle(), Some(wanted));
        }
        pair.ask(1 - end, None);
        assert_eq!(pair.settle(), None);
        assert_eq!(pair.view(end).refused, None);
    }
}

/// P-175
#[test]
fn parameters_change_in_the_running_chain() {
    let mut pair = settled(Weather::default());
    pair.ask(0, Some(spec(&[1, 2], 1, 5)));
    pair.run_for(SECOND);
    let born =
        |pair: &Pair| pair.ends.each_ref().map(|end| end.made.values().map(|made| made.born).collect::<Vec<_>>());
    let before = born(&pair);
    pair.ask(1, Some(spec(&[1, 2], 1, 6)));
    assert_eq!(pair.settle(), Some(spec(&[1, 2], 1, 6)));
    assert_eq!(born(&pair), before, "nothing was made anew");
}

/// P-176
#[test]
fn what_is_refused_changes_nothing_and_says_why() {
    let before = spec(&[1], 1, 5);
    let too_much = TOO_MUCH + 1;
    for (wanted, why) in [
        (spec(&[1, UNKNOWN], 1, 5), (ChainStatus::UnknownTransform, 1)),
        (spec(&[2, 3, 1], FUTURE, 5), (ChainStatus::UnknownVersion, 0)),
        (spec(&[2], 1, too_much), (ChainStatus::BadParameter, 0)),
        (spec(&[1], 1, too_much), (ChainStatus::BadParameter, 0)),
    ] {
        for (end, knows) in [(0, true), (1, true), (0, false)] {
            let mut pair = settled(Weather::default());
            pair.ask(0, Some(before.clone()));
            pair.run_for(SECOND);
            // The end that asks may be able to.
            pair.ends[1 - end].knows = knows;
            pair.ask(end, Some(wanted.clone()));
            pair.run_for(SECOND);
            let expected = if knows || wanted.is_alike(&before) { why } else { (ChainStatus::UnknownTransform, 0) };
            if knows || wanted.is_alike(&before) {
                assert_eq!(pair.view(end).refused, Some(expected));
            }
            assert_eq!(pair.settle(), Some(before.clone()));
        }
    }
    let mut pair = settled(Weather::default());
    pair.ends[1].knows = false;
    pair.ask(0, Some(before));
    assert_eq!(pair.settle(), None);
    assert_eq!(pair.view(0).refused, Some((ChainStatus::UnknownTransform, 0)), "the other end does not know it");
    let long = spec(&[1, 2, 3, 4, 5], 1, 5);
    assert_eq!(pair.ends[0].chains.ask(pair.now, PEER, Some(long)), Err(ChainTooLong));
}

/// What one end says to a request that no end of this version makes.
fn answer_to(chain: Option<NamedChain>, binding: BindingNumber) -> ChainAnswer {
    let mut pair = settled(Weather::default());
    let of = &mut pair.ends[0].chains;
    of.handle_chain(pair.now, PEER, true, ChainRequest { number: 40, binding, chain });
    match of.poll() {
        Some(ChainAction::Send(_, Message::ChainSeen(answer))) => answer,
        action => panic!("{action:?}"),
    }
}

/// P-176
#[test]
fn what_no_end_should_ask_for_is_refused() {
    let named = |number, known, spec| Some(NamedChain { number: ChainNumber::new(number).unwrap(), known, spec });
    let short = spec(&[1], 1, 5);
    for (chain, binding, status) in [
        (named(2, false, short.clone()), 1, ChainStatus::Refused),
        (named(2, false, spec(&[1, 1, 1, 1, 1], 1, 5)), 0, ChainStatus::NoRoom),
        // Not one of those that the higher key gives.
        (named(3, false, short.clone()), 0, ChainStatus::OtherChain),
        (named(2, true, short), 0, ChainStatus::OtherChain),
    ] {
        let answer = answer_to(chain, BindingNumber(binding));
        assert_eq!((answer.number, answer.status, answer.in_force), (40, status, None));
    }
}

/// P-174
#[test]
fn a_peer_has_a_bounded_number_of_chains_made() {
    let mut pair = settled(Weather::default());
    let of = &mut pair.ends[0].chains;
    let mut answers = Vec::new();
    for number in 1..=10 {
        let chain = NamedChain { number: ChainNumber::new(2 * number).unwrap(), known: false, spec: spec(&[1], 1, 5) };
        let request = ChainRequest { number: u32::from(number), binding: BindingNumber::FIRST, chain: Some(chain) };
        of.handle_chain(pair.now, PEER, true, request);
        while let Some(action) = of.poll() {
            match action {
                ChainAction::Await(_, chain, _) => of.handle_done(pair.now, PEER, chain, Ok(())),
                ChainAction::Send(_, Message::ChainSeen(answer)) => answers.push(answer.status),
                _ => {}
            }
        }
    }
    assert_eq!(answers[..CHAINS], [ChainStatus::InForce; CHAINS]);
    assert_eq!(answers[CHAINS..], [ChainStatus::NoRoom; 6]);
    // All peers together, of which this one has four.
    for peer in 100..100 + CHAINS_OF_PEERS as u32 {
        let peer = PeerId(peer);
        of.on_session(pair.now, peer, ChainSession { speaks: true, lower: true, round_trip: MILLISECOND });
        let chain = NamedChain { number: ChainNumber::new(2).unwrap(), known: false, spec: spec(&[1], 1, 5) };
        of.handle_chain(
            pair.now,
            peer,
            true,
            ChainRequest { number: 1, binding: BindingNumber::FIRST, chain: Some(chain) },
        );
    }
    let made = std::iter::from_fn(|| of.poll()).filter(|action| matches!(action, ChainAction::Await(..)));
    assert_eq!(made.count(), CHAINS_OF_PEERS - CHAINS);
    for peer in 100..100 + CHAINS_OF_PEERS as u32 {
        of.forget(PeerId(peer));
    }
    assert_eq!(of.out.of_peers, CHAINS, "there is room again");
}

/// P-171
#[test]
fn of_two_that_ask_at_once_the_lower_key_goes_first() {
    let (lower, higher) = (spec(&[1], 1, 5), spec(&[2], 1, 5));
    for between in [0, 2, 5, 9] {
        for first in 0..2 {
            let mut pair = settled(Weather::default());
            pair.ask(first, Some([&lower, &higher][first].clone()));
            pair.run_for(MILLISECOND * between);
            pair.ask(1 - first, Some([&lower, &higher][1 - first].clone()));
            assert_eq!(pair.settle(), Some(lower.clone()), "{between} ms after end {first}");
            assert_eq!(pair.view(1).refused, Some((ChainStatus::Crossed, 0)));
        }
    }
    // A chain that the lower key's end cannot have does not stand in the way of the other.
    let mut pair = settled(Weather::default());
    pair.ask(0, Some(spec(&[UNKNOWN], 1, 5)));
    pair.ask(1, Some(higher.clone()));
    assert_eq!(pair.settle(), Some(higher));
}

/// P-172
#[test]
fn a_new_session_goes_on_with_the_same_chain_and_one_with_a_new_daemon_with_another() {
    let wanted = spec(&[1], 1, 5);
    let mut pair = settled(Weather::default());
    pair.ask(1, Some(wanted.clone()));
    pair.run_for(SECOND);
    let born =
        |pair: &Pair| pair.ends.each_ref().map(|end| end.made.values().map(|made| made.born).collect::<Vec<_>>());
    let before = born(&pair);
    pair.handshake();
    assert_eq!(pair.settle(), Some(wanted.clone()));
    assert_eq!(born(&pair), before, "what transforms remember outlives sessions");
    // Whoever was asked has forgotten.
    pair.restart(0);
    assert_eq!(pair.settle(), Some(wanted));
    assert!(born(&pair).iter().flatten().all(|born| *born > 2));
    // Whoever asked has.
    pair.restart(1);
    assert_eq!(pair.settle(), None);
}

/// P-173
#[test]
fn a_chain_is_not_sent_by_while_nobody_answers_for_long() {
    let mut pair = settled(Weather::default());
    pair.ask(0, Some(spec(&[1], 1, 5)));
    pair.run_for(SECOND);
    // Whoever is asked hears all, and is not heard.
    pair.ask(0, Some(spec(&[2], 1, 5)));
    for _ in 0..70_000 {
        pair.queue.retain(|_, (to, packet)| *to == 1 || !matches!(packet, Packet::Control { .. }));
        pair.run_for(MILLISECOND);
    }
    assert_eq!((pair.view(0).phase, pair.view(0).sending), (ChainPhase::Replacing, None));
    assert_eq!(pair.settle(), Some(spec(&[2], 1, 5)));
}

fn course(pair: &mut Pair) {
    pair.ask(0, Some(spec(&[1], 1, 5)));
    pair.run_for(SECOND);
    pair.ask(1, Some(spec(&[2, 1], 1, 5)));
    pair.run_for(MILLISECOND * 15);
    pair.ask(0, Some(spec(&[3], 1, 5)));
    pair.run_for(SECOND);
    pair.ask(0, Some(spec(&[3], 1, 6)));
    pair.run_for(SECOND);
    pair.ask(1, Some(spec(&[UNKNOWN], 1, 6)));
    pair.run_for(SECOND);
    pair.handshake();
    pair.run_for(SECOND);
    pair.ask(0, None);
    pair.run_for(SECOND);
    pair.ask(0, Some(spec(&[4], 1, 5)));
    pair.run_for(SECOND);
}

#[test]
fn either_end_is_started_anew_or_a_datagram_lost_at_every_step() {
    let weather = Weather { slow: 3, ..Weather::default() };
    let mut whole = settled(weather);
    course(&mut whole);
    let steps = whole.steps;
    assert_eq!(whole.settle(), Some(spec(&[4], 1, 5)));
    assert!(steps > 40, "{steps}");
    for step in 0..steps {
        for fault in 0..3 {
            let mut pair = Pair::new(1, weather);
            match fault {
                2 => pair.lose = Some(step),
                end => pair.crash = Some((end, step)),
            }
            pair.run_for(SECOND);
            course(&mut pair);
            let last = pair.settle();
            if fault == 2 {
                assert_eq!(last, Some(spec(&[4], 1, 5)), "{step} lost");
            }
        }
    }
}

#[test]
fn whatever_happens_no_packet_goes_by_a_chain_that_the_other_end_cannot_take() {
    let number = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"));
    let first = number("WHIMBREL_SIM_SEED", 1);
    for seed in first..first + number("WHIMBREL_SIM_RUNS", 150) {
        let mut chance = Chance(seed ^ 0x5eed);
        let weather = Weather {
            loss: [0, 50, 300, 600][chance.below(4) as usize],
            duplicate: [0, 200][chance.below(2) as usize],
            jitter: [0, 30, 400][chance.below(3) as usize],
            slow: [0, 3, 300][chance.below(3) as usize],
        };
        let mut pair = Pair::new(seed, weather);
        for _ in 0..25 {
            let end = chance.below(2) as usize;
            match chance.below(12) {
                0 => pair.restart(end),
                1 => pair.handshake(),
                2 | 3 => pair.ask(end, None),
                _ => {
                    let transforms = [&[1][..], &[2], &[1, 2], &[3, 1], &[UNKNOWN]][chance.below(5) as usize];
                    let version = if chance.below(12) == 0 { FUTURE } else { 1 };
                    let value = chance.below(TOO_MUCH + 20);
                    pair.ask(end, Some(spec(transforms, version, value)));
                }
            }
            let pause = [5, 30, 300, 2000, 40_000][chance.below(5) as usize];
            pair.run_for(MILLISECOND * chance.below(pause) as u32);
        }
        pair.settle();
    }
}
