//! One connection that is answered on in its peer's name, from the moment that the peer is away until it has what was
//! kept.

use std::io;
use std::path::Path;
use std::time::Duration;

use whimbrel_datapath::{HelpedFlow, HelpedPhase, TcpSocket};
use whimbrel_ipc as ipc;
use whimbrel_kernel::inject::{Numbers, Segment as Injected};
use whimbrel_protocol::{PeerId, Time};
use whimbrel_wire::FlowTuple;

use super::ESTABLISHED;
use super::keep::Keeper;
use super::running::{Running, whole};
use super::section::Program;
use super::segment::Segment;
use super::send::Sender;
use super::store::{Note, Progress, Store};
use crate::host::Means;

/// Times that a program is started again in one absence, and the first pause before that, which doubles.
const RESTARTS: u32 = 3;
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long a program may take to end once nothing more is handed to it, and once more when it was told to.
const GRACE: Duration = Duration::from_millis(500);
/// Bytes in a segment for the live end. They go by loopback.
const ANSWER_SEGMENT: u32 = 1400;
/// Bytes in a segment for the absent end: they fit whatever path it comes back by, tunnel and all (RFC 8200 §5).
const DELIVERY_SEGMENT: u32 = 1160;
/// What this end's window is said to be, in segments of the daemon's. The socket says its own when it goes on.
const WINDOW: u16 = 512;
const OFTEN_ENOUGH: Duration = Duration::from_secs(10);

/// What happened that people want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A program was started.
    Started { pid: u32 },
    /// It is not used any more. `why`: continues "the helper".
    Failed { why: String },
    /// The peer is back and has everything.
    Over { kept: u64, answered: u64 },
}

#[derive(Debug)]
pub(crate) struct Substitute {
    pub(super) flow: FlowTuple,
    pub(super) peer: PeerId,
    pub(super) note: Note,
    program: Option<Program>,
    store: Store,
    keeper: Keeper,
    answers: Sender,
    delivery: Option<Sender>,
    /// Bytes that the peer may have without this delivery's having sent them.
    may_have: u64,
    running: Option<Running>,
    restarts: u32,
    restart_at: Option<Time>,
    /// When a program that is to end is told so with more emphasis.
    deadline: Option<(Time, bool)>,
    /// Timestamps of the last segment of the live end's, TSval and TSecr.
    timestamps: Option<(u32, u32)>,
    /// The peer is away (again).
    pub(super) away: bool,
    /// The helper has failed for good, as long as this daemon and this absence last.
    failed: bool,
    /// Where the stream begins that the peer lacks was looked at again since nothing of the peer's gets in.
    sure_of_base: bool,
    /// Nothing was answered since nothing of the peer's gets in: its socket says what it expects.
    fresh: bool,
    told_of_delay: Option<Time>,
    /// What the data plane was told to do last.
    in_force: Option<HelpedPhase>,
    /// What is to be told.
    pub(super) happened: Vec<Happened>,
}

impl Substitute {
    /// Begins for a socket that is as `socket` says. From now on nothing of the peer's gets in.
    pub(crate) fn begin(
        dir: &Path,
        socket: &TcpSocket,
        peer: PeerId,
        helper: &str,
        program: &Program,
        before: u32,
    ) -> io::Result<Self> {
        let note = Note {
            local: socket.flow.local,
            remote: socket.flow.remote,
            helper: helper.to_owned(),
            progress: Progress::Helping,
            base: socket.snd_una,
            start: socket.rcv_nxt,
            before,
            window_scale: socket.window_scale,
            window: socket.snd_wnd,
            segment: socket.mss_cache,
            flight: socket.snd_nxt.wrapping_sub(socket.snd_una),
            delivered: 0,
        };
        let store = Store::create(dir, &note)?;
        Ok(Self::new(note, store, peer, Some(program.clone())))
    }

    /// Goes on with what a daemon before this one has left. `expects`: the live end, next.
    pub(crate) fn restore(
        dir: &Path,
        note: Note,
        peer: PeerId,
        program: Option<Program>,
        expects: u32,
        phase: Option<HelpedFlow>,
    ) -> io::Result<Self> {
        let store = Store::reopen(dir, &note)?;
        let mut this = Self::new(note, store, peer, program);
        let has = u64::from(expects.wrapping_sub(this.note.start));
        this.answers.handle_acknowledgement(Time::default(), has, u64::from(ANSWER_SEGMENT));
        match this.note.progress {
            Progress::Helping if this.program.is_none() => this.note.progress = Progress::Holding,
            Progress::Delivering => {
                let delivered = phase.map_or(this.note.base, |flow| flow.delivered);
                let mut delivery = this.new_delivery();
                let has = u64::from(delivered.wrapping_sub(this.note.base));
                delivery.handle_acknowledgement(Time::default(), has, u64::from(DELIVERY_SEGMENT));
                this.delivery = Some(delivery);
                // What was sent nobody has noted.
                this.may_have = this.may_have.max(this.keeper.kept());
            }
            _ => {}
        }
        if this.note.progress != Progress::Helping {
            this.keeper.close();
        }
        Ok(this)
    }

    fn new(note: Note, store: Store, peer: PeerId, program: Option<Program>) -> Self {
        let limit = program.as_ref().map_or(0, |program| program.keep);
        let fresh = store.answered() == 0;
        Self {
            flow: note.flow(),
            peer,
            keeper: Keeper::new(note.base, store.kept(), limit),
            answers: Sender::new(store.answered(), ANSWER_SEGMENT, u64::from(ANSWER_SEGMENT)),
            delivery: None,
            may_have: u64::from(note.flight),
            program,
            store,
            running: None,
            restarts: 0,
            restart_at: None,
            deadline: None,
            timestamps: None,
            away: true,
            failed: false,
            sure_of_base: false,
            fresh,
            told_of_delay: None,
            in_force: None,
            happened: Vec::new(),
            note,
        }
    }

    fn new_delivery(&self) -> Sender {
        let segment = self.note.segment.clamp(1, DELIVERY_SEGMENT);
        let window = u64::from(self.note.window.max(segment));
        let mut delivery = Sender::new(self.keeper.kept(), segment, window);
        delivery.handle_acknowledgement(Time::default(), self.note.delivered, window);
        delivery
    }

    /// Bytes that were put into the peer's stream, all together. It wraps, as sequence numbers do.
    pub(crate) fn offset(&self) -> u32 {
        // Once it is over the note has them.
        let answered = if self.is_over() { 0 } else { self.store.answered() as u32 };
        self.note.before.wrapping_add(answered)
    }

    /// What the data plane is to do now.
    fn phase(&self) -> HelpedPhase {
        match self.note.progress {
            Progress::Helping | Progress::Finishing => HelpedPhase::Kept,
            // The live end still has to say what it has of the answers.
            Progress::Holding if !self.answers.is_done() => HelpedPhase::Kept,
            Progress::Holding => HelpedPhase::Held,
            Progress::Delivering if self.away => HelpedPhase::Held,
            Progress::Delivering => HelpedPhase::Delivered,
            Progress::Over => HelpedPhase::Over,
        }
    }

    /// Bytes that may come to be kept and answered for it.
    pub(crate) fn room(&self) -> u64 {
        let answer = self.program.as_ref().map_or(0, |program| program.answer);
        self.keeper.kept() + self.keeper.room() + answer.max(self.store.answered())
    }

    /// Whether only numbers are translated any more.
    pub(crate) fn is_over(&self) -> bool {
        self.note.progress == Progress::Over
    }

    /// What the peer lacks next, and what it will send next, behind what was answered.
    pub(crate) fn numbers_of_peer(&self) -> (u32, u32) {
        let delivered = self.delivery.as_ref().map_or(self.note.delivered, Sender::acknowledged) as u32;
        (self.note.base.wrapping_add(delivered), self.note.start.wrapping_add(self.store.answered() as u32))
    }

    /// Whether a program is to be started now.
    pub(crate) fn wants_program(&mut self, now: Time) -> bool {
        let due = self.restart_at.is_none_or(|at| at <= now);
        if self.note.progress != Progress::Helping || self.running.is_some() || !due {
            return false;
        }
        self.restart_at = None;
        true
    }

    /// The program that helps, and how much of it was answered.
    pub(crate) fn program(&self) -> Option<(&Program, u64)> {
        Some((self.program.as_ref()?, self.store.answered()))
    }

    /// A program was started, or could not be.
    pub(crate) fn started(&mut self, now: Time, means: &mut Means<'_>, running: io::Result<Running>) {
        match running {
            Ok(running) => {
                self.happened.push(Happened::Started { pid: running.pid() });
                self.running = Some(running);
                self.pump(now, means);
            }
            Err(error) => self.fail(means, format!("cannot be started: {error}")),
        }
    }

    /// Has the data plane do what belongs to this moment.
    pub(crate) fn apply(&mut self, means: &mut Means<'_>) {
        let delivered = self.delivery.as_ref().map_or(self.note.delivered, Sender::acknowledged);
        let helped = HelpedFlow {
            phase: self.phase(),
            offset: self.offset(),
            acknowledged: self.keeper.next(),
            delivered: self.note.base.wrapping_add(delivered as u32),
        };
        if let Err(error) = means.datapath.set_helped(&self.flow, &helped) {
            tracing::error!(flow = %self.flow, %error, "a connection that was answered on stands still");
        }
        self.in_force = Some(helped.phase);
        means.tunnel.keep(self.flow, helped.phase == HelpedPhase::Kept);
    }

    fn save(&mut self) {
        if let Err(error) = self.store.save(&self.note) {
            tracing::error!(flow = %self.flow, %error, "what is kept for a connection does not outlive this process");
        }
    }

    fn advance(&mut self, means: &mut Means<'_>, progress: Progress) {
        self.note.progress = progress;
        self.save();
        self.apply(means);
    }

    /// Says to the live end what is kept, and asks for more.
    pub(crate) fn acknowledge(&self, means: &Means<'_>) {
        let at = self.note.start.wrapping_add(self.answers.acknowledged() as u32);
        self.inject(means, at, &[]);
    }

    /// The same after a restart, where somebody listens.
    pub(crate) fn acknowledge_if_kept(&self, means: &Means<'_>) {
        if self.phase() == HelpedPhase::Kept {
            self.acknowledge(means);
        }
    }

    /// As the peer, to the live end.
    fn inject(&self, means: &Means<'_>, sequence: u32, payload: &[u8]) {
        let numbers = Numbers {
            sequence,
            acknowledgement: self.keeper.next(),
            window: self.keeper.window(self.note.window_scale),
        };
        // As it would be turned round: what is echoed is what the peer last had to say.
        let timestamps = self.timestamps.map(|(own, echo)| (echo, own));
        if let Err(error) = means.injector.answer(&self.flow, &Injected { numbers, timestamps, payload }) {
            tracing::debug!(flow = %self.flow, %error, "cannot answer for a peer that is away");
        }
    }

    /// A segment of the live end's.
    pub(crate) fn handle_segment(&mut self, now: Time, means: &mut Means<'_>, segment: &Segment) {
        if self.phase() != HelpedPhase::Kept {
            return;
        }
        if segment.signed {
            self.fail(means, "cannot answer for a connection whose segments are signed".into());
            return;
        }
        self.timestamps = segment.timestamps.or(self.timestamps);
        if let Some(acknowledged) = segment.acknowledgement {
            if self.fresh {
                // Nothing was put in since, so what it has more is the peer's own.
                self.note.start = acknowledged.wrapping_sub(self.store.answered() as u32);
            }
            // The scale is not known, and at least 1: a segment at a time is never too much.
            let window = if segment.window == 0 { 0 } else { u64::from(segment.window).max(ANSWER_SEGMENT.into()) };
            let has = u64::from(acknowledged.wrapping_sub(self.note.start));
            self.answers.handle_acknowledgement(now, has, window);
        }
        let ahead = segment.sequence.wrapping_sub(self.keeper.next()).cast_signed() > 0;
        if ahead && self.store.kept() == 0 && !std::mem::replace(&mut self.sure_of_base, true) {
            self.begin_later(means);
        }
        let taken = self.keeper.take(segment);
        if !taken.new.is_empty()
            && let Err(error) = self.store.keep(&segment.payload[taken.new])
        {
            // What is not stored is not acknowledged.
            let limit = self.program.as_ref().map_or(0, |program| program.keep);
            self.keeper = Keeper::new(self.note.base, self.store.kept(), limit);
            self.keeper.close();
            self.fail(means, format!("is of no use, as nothing can be stored: {error}"));
            return;
        }
        if taken.answer {
            self.acknowledge(means);
        }
        self.pump(now, means);
        if segment.fin && self.note.progress == Progress::Helping {
            // Data for a socket that its program has closed would be answered by a reset, and the peer lose the rest.
            self.fail(means, "is not needed any more: this end has said its last".into());
            return;
        }
        // Less than what a scaled window can tell of is nothing.
        if self.note.progress == Progress::Helping && self.keeper.window(self.note.window_scale) == 0 {
            let limit = self.program.as_ref().map_or(0, |program| program.keep);
            self.fail(
                means,
                format!("is handed no more: {} bytes are kept, of {limit} that may be", self.keeper.kept()),
            );
        }
    }

    /// What came in the moment before nothing of the peer's got in any more may have acknowledged more than was known
    /// then.
    fn begin_later(&mut self, means: &Means<'_>) {
        let Some(socket) = self.socket(means) else { return };
        let more = socket.snd_una.wrapping_sub(self.note.base);
        if more.cast_signed() <= 0 {
            return;
        }
        self.note.base = socket.snd_una;
        self.note.flight = self.note.flight.saturating_sub(more);
        self.may_have = u64::from(self.note.flight);
        self.keeper.begin_at(socket.snd_una);
        self.save();
    }

    /// Moves what can be moved: to the program, out of it, to the live end, to the peer.
    pub(crate) fn pump(&mut self, now: Time, means: &mut Means<'_>) {
        self.pump_program(now, means);
        self.send_answers(now, means);
        if self.in_force.is_some_and(|phase| phase != self.phase()) {
            self.apply(means);
        }
        if self.note.progress == Progress::Finishing && self.running.is_none() && self.answers.is_done() {
            self.deliver(now, means);
        }
        self.send_kept(now, means);
    }

    fn pump_program(&mut self, now: Time, means: &mut Means<'_>) {
        let Some(mut running) = self.running.take() else { return };
        if let Err(error) = running.hand(now, &self.store) {
            return self.fail(means, format!("cannot be handed what is kept: {error}"));
        }
        running.take_complaints(&self.note.helper);
        let ended = running.take_end();
        let (most, lines) = self.program.as_ref().map_or((0, false), |program| (program.answer, program.lines));
        let left = most.saturating_sub(self.store.answered());
        let mut output = running.take_output(left);
        let floods = (output.bytes.len() + running.unfinished().len()) as u64 > left;
        if lines {
            output.bytes = running.whole_lines(output.bytes);
            if ended.is_some_and(|status| status.success()) && !floods {
                // It has said all that it meant to.
                output.bytes.extend_from_slice(running.unfinished());
            }
        }
        if floods {
            output.bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            // Where it speaks in lines, whatever comes next is not to be read as the rest of one.
            let without = if lines { 0 } else { output.bytes.len() };
            output.bytes.truncate(whole(&output.bytes).unwrap_or(without));
        }
        if !output.bytes.is_empty()
            && let Err(error) = self.answer(means, &output.bytes)
        {
            return self.fail(means, format!("cannot answer: {error}"));
        }
        if floods {
            return self
                .fail(means, format!("answers more than {most} bytes, which is the limit; the rest is left out"));
        }
        match ended {
            None if output.ended && self.note.progress == Progress::Finishing => {
                running.terminate();
                self.running = Some(running);
            }
            None => self.running = Some(running),
            Some(_) if self.note.progress != Progress::Helping => self.deadline = None,
            Some(how) => self.ended(now, means, how.to_string()),
        }
    }

    /// The program has ended by itself.
    fn ended(&mut self, now: Time, means: &mut Means<'_>, how: String) {
        if self.restarts == RESTARTS {
            return self.fail(means, format!("has ended {} times ({how}) and is not started again", RESTARTS + 1));
        }
        let pause = RESTART_PAUSE * 2u32.pow(self.restarts);
        self.restarts += 1;
        self.restart_at = Some(now + pause);
        tracing::warn!(helper = %self.note.helper, flow = %self.flow, how, ?pause, "a helper has ended and is started again");
    }

    /// Stores answers, to be sent from then on until the live end has them.
    fn answer(&mut self, means: &mut Means<'_>, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.fresh) {
            // What came in the moment before nothing of the peer's got in any more may have been on its way.
            let socket = self.socket(means).ok_or(io::ErrorKind::NotConnected)?;
            self.note.start = socket.rcv_nxt.wrapping_sub(self.store.answered() as u32);
            self.store.save(&self.note)?;
        }
        self.store.answer(bytes)?;
        self.answers.extend(self.store.answered());
        // From now on whatever comes from the peer stands behind it.
        self.apply(means);
        Ok(())
    }

    /// The live end, as it is now.
    fn socket(&self, means: &Means<'_>) -> Option<TcpSocket> {
        match means.datapath.look_up(&[self.flow]) {
            Ok(found) => found.first().copied(),
            Err(error) => {
                tracing::warn!(flow = %self.flow, %error, "cannot look for its socket");
                None
            }
        }
    }

    fn send_answers(&mut self, now: Time, means: &Means<'_>) {
        if !matches!(self.note.progress, Progress::Helping | Progress::Holding | Progress::Finishing) {
            return;
        }
        while let Some(range) = self.answers.poll_send(now) {
            let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            match self.store.read_answers(range.start, most) {
                Ok(bytes) => self.inject(means, self.note.start.wrapping_add(range.start as u32), &bytes),
                Err(error) => tracing::error!(flow = %self.flow, %error, "cannot read what was answered"),
            }
        }
    }

    fn send_kept(&mut self, now: Time, means: &mut Means<'_>) {
        let Some(delivery) = self.delivery.as_mut().filter(|_| !self.away) else { return };
        while let Some(range) = delivery.poll_send(now) {
            let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let bytes = match self.store.read_kept(range.start, most) {
                Ok(bytes) => bytes,
                Err(error) => return tracing::error!(flow = %self.flow, %error, "cannot read what was kept"),
            };
            let numbers = Numbers {
                sequence: self.note.base.wrapping_add(range.start as u32),
                acknowledgement: self.note.start.wrapping_add(self.store.answered() as u32),
                window: WINDOW,
            };
            // Without timestamps: the socket's own acknowledgements, which go out beside this, bear later ones, and the
            // peer would drop what seems older (RFC 7323 §5).
            let segment = Injected { numbers, timestamps: None, payload: &bytes };
            if let Err(error) = means.injector.send_segment(&self.flow, &segment) {
                // It is sent again.
                tracing::debug!(flow = %self.flow, %error, "cannot send what was kept");
                return;
            }
        }
        if delivery.is_done() {
            self.finish(means);
        }
    }

    /// No program answers any more. What was kept and answered stays so; the connection waits.
    fn fail(&mut self, means: &mut Means<'_>, why: String) {
        self.failed = true;
        self.running = None;
        self.restart_at = None;
        self.happened.push(Happened::Failed { why });
        self.keeper.close();
        if self.note.progress == Progress::Helping {
            // A closed window, which the data plane says again from now on when it is asked.
            self.acknowledge(means);
            self.advance(means, Progress::Holding);
        }
    }

    /// The peer is back, or away again.
    pub(crate) fn set_away(&mut self, now: Time, means: &mut Means<'_>, away: bool) {
        if std::mem::replace(&mut self.away, away) == away {
            return;
        }
        match self.note.progress {
            Progress::Helping | Progress::Holding if !away => {
                self.keeper.close();
                self.restart_at = None;
                self.told_of_delay = Some(now + OFTEN_ENOUGH);
                if let Some(running) = &mut self.running {
                    // What the live end has said so far is handed on before.
                    let _ = running.hand(now, &self.store);
                    running.close();
                    self.deadline = Some((now + GRACE, false));
                }
                self.advance(means, Progress::Finishing);
            }
            Progress::Finishing | Progress::Delivering if away => self.help_again(means),
            Progress::Delivering => {
                if let Some(delivery) = &mut self.delivery {
                    delivery.hurry(now);
                }
                self.apply(means);
            }
            _ => {}
        }
        self.pump(now, means);
    }

    /// The peer is away again before it has got what was kept: it was awake for a moment. A program goes on where the
    /// last one was, which is a function of all that was kept, delivered or not.
    fn help_again(&mut self, means: &mut Means<'_>) {
        let limit = self.program.as_ref().filter(|_| !self.failed).map(|program| program.keep);
        let Some(limit) = limit else { return self.apply(means) };
        let before = self.note.progress;
        self.note.progress = Progress::Helping;
        if let Some((has, sent)) = self.delivery.as_ref().map(|delivery| (delivery.acknowledged(), delivery.sent())) {
            // Now nothing of the peer's gets in. What did meanwhile stands between the answers before and those to
            // come.
            self.apply(means);
            let socket = self.socket(means).filter(|socket| socket.state == ESTABLISHED && !socket.unordered);
            let Some(socket) = socket else {
                self.note.progress = before;
                return self.apply(means);
            };
            self.note.start = socket.rcv_nxt.wrapping_sub(self.store.answered() as u32);
            self.note.delivered = has;
            self.may_have = self.may_have.max(sent);
            self.note.flight = u32::try_from(self.may_have).unwrap_or(u32::MAX);
            self.fresh = true;
            self.delivery = None;
        }
        // What ran was told that nothing more comes.
        self.running = None;
        (self.deadline, self.told_of_delay, self.restart_at, self.restarts) = (None, None, None, 0);
        self.keeper = Keeper::new(self.note.base, self.store.kept(), limit);
        self.advance(means, Progress::Helping);
        self.acknowledge(means);
    }

    /// The live end has all answers; now the peer gets what was kept.
    fn deliver(&mut self, now: Time, means: &mut Means<'_>) {
        self.delivery = Some(self.new_delivery());
        self.advance(means, Progress::Delivering);
        self.send_kept(now, means);
    }

    /// The peer has told what it has.
    pub(crate) fn handle_acknowledged(&mut self, now: Time, means: &mut Means<'_>, next: u32, window: u16) {
        let Some(delivery) = &mut self.delivery else { return };
        let window = u64::from(window) << self.note.window_scale.min(14);
        let most = self.may_have.max(delivery.sent());
        let Some(has) = acknowledged(self.note.base, next, most) else { return };
        // What is beyond is its own affair with the socket.
        delivery.handle_acknowledgement(now, has.min(self.keeper.kept()), window);
        self.send_kept(now, means);
    }

    fn finish(&mut self, means: &mut Means<'_>) {
        self.delivery = None;
        self.happened.push(Happened::Over { kept: self.keeper.kept(), answered: self.store.answered() });
        self.note.before = self.offset();
        self.note.progress = Progress::Over;
        if let Err(error) = self.store.begin_anew(&self.note) {
            tracing::error!(flow = %self.flow, %error, "what was kept for a connection is left behind");
        }
        self.apply(means);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let answers = match self.note.progress {
            Progress::Helping | Progress::Holding | Progress::Finishing => self.answers.poll_timeout(),
            Progress::Delivering | Progress::Over => None,
        };
        let delivery = self.delivery.as_ref().filter(|_| !self.away).and_then(Sender::poll_timeout);
        let stall = self.stalls_at();
        let deadline = self.deadline.map(|(at, _)| at);
        let delay = self.told_of_delay.filter(|_| self.note.progress == Progress::Finishing);
        [answers, delivery, self.restart_at, stall, deadline, delay].into_iter().flatten().min()
    }

    fn stalls_at(&self) -> Option<Time> {
        let since = self.running.as_ref()?.waits_since(self.keeper.kept())?;
        Some(since + self.program.as_ref()?.stall)
    }

    pub(crate) fn handle_timeout(&mut self, now: Time, means: &mut Means<'_>) {
        if self.stalls_at().is_some_and(|at| at <= now)
            && let Some(running) = &mut self.running
        {
            running.look(now);
        }
        if self.stalls_at().is_some_and(|at| at <= now) && self.note.progress == Progress::Helping {
            let stall = self.program.as_ref().map_or(0, |program| program.stall.as_secs());
            self.fail(means, format!("has left unread what it was handed for {stall} s, and was stopped"));
        }
        if let Some((_, told)) = self.deadline.filter(|(at, _)| *at <= now) {
            match &self.running {
                Some(running) if !told => {
                    running.terminate();
                    self.deadline = Some((now + GRACE, true));
                }
                _ => {
                    self.pump_program(now, means);
                    if let Some(running) = self.running.take() {
                        running.kill();
                    }
                    self.deadline = None;
                }
            }
        }
        if self.told_of_delay.is_some_and(|at| at <= now) {
            self.told_of_delay = None;
            if self.note.progress == Progress::Finishing {
                tracing::warn!(flow = %self.flow, "its program has not read yet what was answered for its peer, which waits");
            }
        }
        self.pump(now, means);
    }

    /// Nobody needs it any more.
    pub(crate) fn remove(self, means: &mut Means<'_>) {
        means.tunnel.keep(self.flow, false);
        if let Err(error) = means.datapath.remove_helped(&self.flow) {
            tracing::warn!(flow = %self.flow, %error, "numbers of a connection that is gone are still translated");
        }
        self.store.remove();
    }

    /// For people.
    pub(crate) fn view(&self) -> ipc::Helper {
        let state = match self.note.progress {
            Progress::Helping => ipc::HelperState::Answers,
            Progress::Holding => ipc::HelperState::Holds,
            Progress::Finishing | Progress::Delivering => ipc::HelperState::Delivers,
            Progress::Over => ipc::HelperState::Over,
        };
        let over = self.is_over();
        ipc::Helper {
            name: self.note.helper.clone(),
            state,
            pid: self.running.as_ref().map(Running::pid),
            kept: if over { 0 } else { self.keeper.kept() },
            delivered: self.delivery.as_ref().map_or(if over { 0 } else { self.note.delivered }, Sender::acknowledged),
            answered: self.store.answered(),
            shifted: self.offset(),
        }
    }
}

/// Bytes from `base` on that somebody has who expects `next`, if he can have as many as `most` at the most. Who says
/// anything else is not the peer, or says again what it said before.
fn acknowledged(base: u32, next: u32, most: u64) -> Option<u64> {
    let has = next.wrapping_sub(base);
    (has.cast_signed() >= 0 && u64::from(has) <= most).then_some(u64::from(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_what_was_never_sent() {
        for base in [7, u32::MAX - 2] {
            let at = |has: u32| base.wrapping_add(has);
            assert_eq!(acknowledged(base, at(0), 100), Some(0));
            assert_eq!(acknowledged(base, at(100), 100), Some(100));
            for beyond in [101, 1000, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                assert_eq!(acknowledged(base, at(beyond), 100), None, "{beyond}");
            }
        }
    }
}
