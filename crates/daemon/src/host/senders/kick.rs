//! Waking senders that wait out a back-off though there is a path again (DESIGN §2, *Kick*).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_datapath::TcpSocket;
use whimbrel_kernel::inject::{Injector, Way};
use whimbrel_protocol::{FlowEntry, LocalEnd, PeerId, Time};
use whimbrel_wire::FlowTuple;

use crate::host::introductions::{Snapshot, inquire};

/// Between looks at a peer's sockets: this part of the time since they were woken, so that what a round trip brings is
/// seen soon after it, within these.
const PAUSE_PART: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How long those that still wait are woken again.
const WAKING: Duration = Duration::from_millis(400);
/// When those that are stopped are asked once more: the first word may have been lost.
const ASKING_AGAIN: Duration = Duration::from_millis(200);
/// How long those are looked at that were told of a loss and have not been answered: a round trip of a second and more.
const ANSWERED_WITHIN: Duration = Duration::from_millis(1400);

/// The least MTUs that the kernel believes: `ip_rt_min_pmtu`, and RFC 8200 §5.
const LEAST_MTU_V4: u16 = 552;
const LEAST_MTU_V6: u16 = 1280;
/// How much more the last word but one says: the kernel listens to what is less than what it was told before.
const NEARLY_LEAST: u16 = 48;

/// Senders that are woken before something else has its turn: some 50 ms.
const AT_ONCE: usize = 1_000;

/// A look at sockets takes one part in so many of the daemon's time at the most.
const LOOKS_SHARE: u32 = 4;

/// Before sockets that could not be looked at are looked at again.
const PUT_OFF: Duration = Duration::from_millis(200);

/// The kernel counts back-off steps in 8 bits; TCP gives up long before so many.
const STEPS: u8 = 32;

/// Until what a socket was told of the path's MTU has had its effect: a socket that its program is using just then
/// looks at it when the program is done.
const BELIEVED: Duration = Duration::from_millis(200);

/// Peers whose senders are being woken.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    rounds: BTreeMap<PeerId, Round>,
    /// The MTUs that sockets were told, by where their packets come from and go to, and when the kernel need not know
    /// them any more.
    told: Told,
}

#[derive(Debug)]
struct Round {
    /// When it began; once all have been looked at, when that was.
    since: Time,
    /// Not all have been looked at.
    first: bool,
    /// Those that are stopped have been asked twice.
    asked_again: bool,
    next: Time,
    /// Those that have something to send, or to ask, and were not looked at in the first look yet. There may be very
    /// many, and peers wait for other words meanwhile.
    left: Option<Vec<TcpSocket>>,
    /// Where what was in flight when it began is lost: the longest packet, in bytes, that moved flows are to send from
    /// now on. To believe in it makes a sender that is not in back-off yet send again at once.
    shrink_to: Option<u32>,
    /// What waits, as it was when it was kicked last.
    waiting: HashMap<FlowTuple, TcpSocket>,
    /// What was told of a loss. Where the segment that is sent again first had arrived, the answer says that, and the
    /// kernel takes the rest for not lost either (`tcp_try_undo_loss`).
    told: HashMap<FlowTuple, Word>,
    /// What stands still though it was answered, with its `snd_una` and since when, until that is mended.
    standing: HashMap<FlowTuple, (u32, Option<Time>)>,
    /// Until then these are looked at, and not woken.
    spared_until: Time,
}

/// A socket as it was when it was told of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    then: TcpSocket,
    /// The MTU that it was told of first.
    mtu: u32,
    /// That it had sent nothing for it, and was told anew.
    again: bool,
}

impl Round {
    /// Those that may have to be told more.
    fn of_interest(&self) -> impl Iterator<Item = FlowTuple> + '_ {
        let told = self.told.keys().filter(|flow| !self.waiting.contains_key(flow));
        let known = |flow: &&FlowTuple| self.waiting.contains_key(flow) || self.told.contains_key(flow);
        let standing = self.standing.keys().filter(move |flow| !known(flow));
        self.waiting.keys().chain(told).chain(standing).copied()
    }

    /// Those that are looked at now: first each of the peer's that has something to send or to ask, so many at once.
    fn candidates<'a>(
        &mut self,
        snapshot: &Snapshot,
        theirs: impl Iterator<Item = (&'a FlowTuple, &'a FlowEntry)>,
    ) -> Vec<(FlowTuple, Option<TcpSocket>)> {
        if !self.first {
            return self.of_interest().map(|flow| (flow, snapshot.get(&flow).copied())).collect();
        }
        let left = self.left.get_or_insert_with(|| {
            let sockets = theirs.filter_map(|(flow, _)| snapshot.get(flow));
            sockets.filter(|socket| in_flight(socket) || is_stopped(socket)).copied().collect()
        });
        let rest = left.len().saturating_sub(AT_ONCE);
        left.drain(rest..).map(|socket| (socket.flow, Some(socket))).collect()
    }

    fn elapsed(&self, now: Time) -> Duration {
        now.since(self.since)
    }

    fn is_over(&self, now: Time) -> bool {
        let elapsed = self.elapsed(now);
        let waits = elapsed < WAKING && !self.waiting.is_empty();
        let stands = self.standing.values().any(|(_, since)| since.is_some());
        !self.first && !waits && (elapsed >= ANSWERED_WITHIN || (self.told.is_empty() && !stands))
    }

    /// Says when they are looked at next. `asks`: they are asked this time.
    fn schedule(&mut self, now: Time, asks: bool) {
        if self.first && self.left.as_ref().is_some_and(|left| !left.is_empty()) {
            self.next = now;
        } else if self.first {
            (self.first, self.left, self.since) = (false, None, now);
            self.next = now + SHORTEST_PAUSE;
        } else {
            self.asked_again |= asks;
            self.next = now + pause_after(self.elapsed(now));
        }
    }

    /// The MTU that a sender is to be told of once more, if it was told of a loss. `first`: the word is of a round
    /// before this one. `least`: that of its family.
    fn take_word(&mut self, first: bool, socket: &TcpSocket, least: u16) -> Option<u16> {
        let word = self.told.get_mut(&socket.flow)?;
        let mtu = if took_back(&word.then, socket) {
            Some(shrunken(word.mtu, socket))
        } else if !first && sent_nothing(&word.then, socket) {
            if !std::mem::replace(&mut word.again, true) {
                return Some(least + NEARLY_LEAST);
            }
            Some(least)
        } else if is_over(&word.then, socket) {
            None
        } else {
            return None;
        };
        self.told.remove(&socket.flow);
        mtu
    }

    /// Whether a sender has stood still for a round trip though it was answered. Once for each answer.
    fn stood_still(&mut self, now: Time, socket: &TcpSocket) -> bool {
        if !socket.stands_still {
            self.standing.remove(&socket.flow);
            return false;
        }
        let (answered, since) = self.standing.entry(socket.flow).or_insert((socket.snd_una, Some(now)));
        if *answered != socket.snd_una {
            (*answered, *since) = (socket.snd_una, Some(now));
        }
        since.take_if(|since| now.since(*since) >= socket.round_trip.max(SHORTEST_PAUSE)).is_some()
    }
}

impl Kicks {
    /// Begins with a peer's senders; [`Kicks::run`] does the rest.
    pub(crate) fn begin(&mut self, now: Time, peer: PeerId, shrink_to: Option<u32>) {
        // What was lost is still lost when senders are woken once more. Their answers come at the same time as what
        // confirms the path, of which they are woken, and the kernel begins anew with what is woken before: that would
        // cost another round trip.
        let before = self.rounds.remove(&peer);
        let spared_until = now + before.as_ref().map_or(Duration::ZERO, |before| before.elapsed(now) / 4);
        let told = before.map(|round| round.told).unwrap_or_default();
        let (waiting, standing, left) = (HashMap::new(), HashMap::new(), None);
        let (first, asked_again) = (true, false);
        let (since, next) = (now, now);
        let round = Round { since, first, asked_again, next, left, shrink_to, waiting, told, standing, spared_until };
        self.rounds.insert(peer, round);
    }

    /// Forgets a peer.
    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.rounds.remove(&peer);
    }

    /// When to come back.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let rounds = self.rounds.values().map(|round| round.next);
        rounds.chain(self.told.values().map(|(_, until)| *until)).min()
    }

    /// Takes the ways (source, destination) whose MTU was told to be less than it is, which the kernel has to forget by
    /// now: each with what was told.
    pub(crate) fn take_told(&mut self, now: Time) -> BTreeMap<(IpAddr, IpAddr), Vec<u16>> {
        let (due, later) = std::mem::take(&mut self.told).into_iter().partition(|(_, (_, until))| *until <= now);
        self.told = later;
        let due: BTreeMap<_, (Vec<u16>, Time)> = due;
        due.into_iter().map(|(way, (mtus, _))| (way, mtus)).collect()
    }

    /// Whether a sender was told this MTU of the way to a destination, and the kernel may still take it for learned.
    pub(crate) fn has_told(&self, destination: IpAddr, mtu: u32) -> bool {
        let mut ways = self.told.iter().filter(|((_, to), _)| *to == destination);
        ways.any(|(_, (mtus, _))| mtus.iter().any(|told| u32::from(*told) == mtu))
    }

    /// The flows whose sockets are to be looked at for what is due.
    pub(crate) fn wanted(&self, now: Time, flows: &HashMap<FlowTuple, FlowEntry>) -> Vec<FlowTuple> {
        let due = || self.rounds.iter().filter(|(_, round)| round.next <= now);
        let begin: BTreeSet<PeerId> =
            due().filter(|(_, round)| round.first && round.left.is_none()).map(|(peer, _)| *peer).collect();
        let has_socket = |entry: &FlowEntry| matches!(entry.end, LocalEnd::Here | LocalEnd::Endpoint);
        let theirs = |entry: &FlowEntry| begin.contains(&entry.peer) && has_socket(entry);
        let fresh =
            flows.iter().filter(|_| !begin.is_empty()).filter(|(_, entry)| theirs(entry)).map(|(flow, _)| *flow);
        let later = due().filter(|(_, round)| !round.first);
        later.flat_map(|(_, round)| round.of_interest()).chain(fresh).collect()
    }

    /// What is due cannot be done now. Whoever had no look yet has its first one later; what could not be done for long
    /// is not done any more.
    pub(crate) fn put_off(&mut self, now: Time) {
        self.rounds.retain(|_, round| round.next > now || round.elapsed(now) < ANSWERED_WITHIN);
        for round in self.rounds.values_mut().filter(|round| round.next <= now) {
            round.next = now + PUT_OFF;
        }
    }

    /// Kicks what is due. Returns how many sockets were kicked. `snapshot` has those that are [wanted](Self::wanted).
    /// `injector_of`: that of the namespace where a flow's socket is. `open` is called right before anything of a
    /// peer's is sent again.
    ///
    /// # Errors
    /// When nothing can be injected; the rounds go on.
    pub(crate) fn run<'a>(
        &mut self,
        now: Time,
        injector_of: impl Fn(&FlowTuple) -> &'a Injector,
        flows: &HashMap<FlowTuple, FlowEntry>,
        snapshot: &Snapshot,
        mut open: impl FnMut(PeerId),
    ) -> Result<usize, crate::host::Failure> {
        let mut kicked = 0;
        let mut result = Ok(());
        for (peer, round) in self.rounds.iter_mut().filter(|(_, round)| round.next <= now) {
            let begun = Instant::now();
            let first = round.first;
            if first && round.left.is_none() {
                open(*peer);
            }
            let candidates = round.candidates(snapshot, flows.iter().filter(|(_, entry)| entry.peer == *peer));
            let elapsed = round.elapsed(now);
            let gives_up = !first && elapsed >= WAKING;
            let asks = first || (!round.asked_again && elapsed >= ASKING_AGAIN);
            if gives_up {
                round.waiting.clear();
            }
            round.schedule(now, asks);
            for (flow, socket) in candidates {
                let (socket, injector) = (socket.as_ref(), injector_of(&flow));
                let Some(socket) = socket.filter(|socket| in_flight(socket)) else {
                    round.told.remove(&flow);
                    round.standing.remove(&flow);
                    let Some(socket) = socket.filter(|socket| !gives_up && is_stopped(socket)) else {
                        round.waiting.remove(&flow);
                        continue;
                    };
                    // Twice, since the first may be lost; more often in half a second nobody answers
                    // (tcp_oow_rate_limited).
                    round.waiting.insert(flow, *socket);
                    if asks {
                        result = inquire(injector, socket, Way::default()).and(result);
                        kicked += 1;
                    }
                    continue;
                };
                let least = if flow.local.is_ipv4() { LEAST_MTU_V4 } else { LEAST_MTU_V6 };
                if let Some(mtu) = round.take_word(first, socket, least) {
                    result = shrink(injector, &mut self.told, now, socket, mtu).and(result);
                    kicked += 1;
                }
                if round.stood_still(now, socket) {
                    result = shrink(injector, &mut self.told, now, socket, least).and(result);
                    kicked += 1;
                }
                if gives_up || !(first || round.waiting.contains_key(&flow)) {
                    continue;
                }
                let before = round.waiting.insert(flow, *socket);
                if before.is_some_and(|before| went_on(&before, socket)) {
                    round.waiting.remove(&flow);
                    continue;
                }
                // One that reports errors cannot be woken otherwise, and what it was told first may have been held.
                let told = !socket.reports_errors && round.told.contains_key(&flow);
                let spared = told && now < round.spared_until;
                // Its program would take the ICMP error that wakes it for the end of the connection.
                let steps = if spared || socket.reports_errors { 0 } else { socket.backoff.min(STEPS) };
                for _ in 0..steps {
                    if let Err(error) = injector.kick(&flow, socket.snd_una) {
                        result = Err(error.into());
                        break;
                    }
                }
                // A step of back-off less is still at least the timer's smallest value since the last transmission. And
                // a packet that is too big is no error that a program is told of (tcp_v4_err, tcp_v6_err).
                let instead = (socket.reports_errors && socket.backoff > 0).then_some(socket.pmtu_cookie);
                let shrink_to = round.shrink_to.or(instead).filter(|_| first && !spared);
                let shrink_to = shrink_to.filter(|mtu| may_resend(socket, shrunken(*mtu, socket)));
                if let Some(mtu) = shrink_to {
                    round.told.insert(flow, Word { then: *socket, mtu, again: false });
                    result = shrink(injector, &mut self.told, now, socket, shrunken(mtu, socket)).and(result);
                }
                kicked += usize::from(steps > 0 || shrink_to.is_some());
            }
            // With very many sockets the looks would leave time for nothing else.
            if !first {
                round.next = round.next.max(now + LOOKS_SHARE * begun.elapsed());
            }
        }
        self.rounds.retain(|_, round| !round.is_over(now));
        result.map(|()| kicked)
    }
}

fn pause_after(elapsed: Duration) -> Duration {
    (elapsed / PAUSE_PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Ways (source, destination), what MTUs sockets were told of them, and until when.
type Told = BTreeMap<(IpAddr, IpAddr), (Vec<u16>, Time)>;

/// Tells a socket of an MTU that is smaller than what it uses, and notes that.
fn shrink(
    injector: &Injector,
    told: &mut Told,
    now: Time,
    socket: &TcpSocket,
    mtu: u16,
) -> Result<(), crate::host::Failure> {
    let way = (socket.flow.local.ip(), socket.flow.remote.ip());
    let (mtus, until) = told.entry(way).or_insert_with(|| (Vec::new(), now));
    *until = now + BELIEVED;
    if !mtus.contains(&mtu) {
        mtus.push(mtu);
    }
    injector.shrink(&socket.flow, socket.snd_una, mtu).map_err(Into::into)
}

/// The MTU that a socket is told: a byte above the route's own leaves no trace in the kernel; where the route's is not
/// lower than what the socket uses, one below that, which the kernel has to be made to forget.
fn shrunken(inner_mtu: u32, socket: &TcpSocket) -> u16 {
    let told = if inner_mtu + 1 < socket.pmtu_cookie { inner_mtu + 1 } else { socket.pmtu_cookie.saturating_sub(8) };
    u16::try_from(told).unwrap_or(u16::MAX)
}

/// Whether a socket that is told of an MTU sends anything again for it: all segments that are too long. Where many have
/// only a request in flight, telling each of them for nothing takes longer than all the rest.
fn may_resend(socket: &TcpSocket, mtu: u16) -> bool {
    socket.snd_nxt.wrapping_sub(socket.snd_una) + LONGEST_HEADERS > u32::from(mtu)
}

/// Of IPv6 and TCP with all options that there is room for, in bytes.
const LONGEST_HEADERS: u32 = 40 + 60;

/// Whether anything that was sent is not acknowledged.
fn in_flight(socket: &TcpSocket) -> bool {
    socket.snd_una != socket.snd_nxt
}

/// Whether a socket with nothing in flight does not send what it has to, or would not: the last word that it had of its
/// peer is that the window is closed, or the network did not take it. TCP asks for another word less and less often, up
/// to every two minutes, and the one that the peer had meanwhile went nowhere.
fn is_stopped(socket: &TcpSocket) -> bool {
    socket.snd_wnd == 0 || socket.write_seq != socket.snd_nxt
}

/// Whether some of what was in flight at `then` still is.
fn some_left(then: &TcpSocket, now: &TcpSocket) -> bool {
    // Sequence numbers wrap (RFC 9293 §3.4).
    then.snd_nxt.wrapping_sub(now.snd_una).cast_signed() > 0
}

/// Whether a socket that was told of a loss has been answered since, and yet sends nothing of that again.
fn took_back(then: &TcpSocket, now: &TcpSocket) -> bool {
    now.snd_una != then.snd_una && !now.repairs && some_left(then, now)
}

/// Whether a socket that was told of a loss has sent nothing for it. What is shorter than the MTU that it was told of
/// still counts as under way, and what it had sent again before its timer's loss was taken back (`tcp_try_undo_loss`)
/// counts twice: that may be all that its window allows. The least MTU has nearly all taken for lost, and the second
/// word of it what was sent again as well (`tcp_mark_skb_lost`).
fn sent_nothing(then: &TcpSocket, now: &TcpSocket) -> bool {
    now.snd_una == then.snd_una && now.repairs && now.sent_again == then.sent_again
}

/// Whether a socket that was told of a loss needs no second word: what was lost has arrived, or it is at it.
fn is_over(then: &TcpSocket, now: &TcpSocket) -> bool {
    !some_left(then, now) || (now.snd_una != then.snd_una && now.repairs)
}

/// Whether a socket has sent again, or was answered, since `before`.
fn went_on(before: &TcpSocket, now: &TcpSocket) -> bool {
    (now.snd_una != before.snd_una && !now.stands_still) || (before.backoff > 0 && now.retransmits > before.retransmits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(in_flight: u32) -> TcpSocket {
        let [local, remote] = ["192.0.2.1:5", "192.0.2.9:7"].map(|end| end.parse().expect("endpoint"));
        let snd_una = u32::MAX - 3;
        TcpSocket {
            flow: FlowTuple { transport: whimbrel_wire::Transport::Tcp, local, remote },
            inode: 1,
            state: 1,
            snd_una,
            snd_nxt: snd_una.wrapping_add(in_flight),
            write_seq: snd_una.wrapping_add(in_flight),
            rcv_nxt: 1,
            snd_wnd: 1000,
            mss_cache: 1388,
            pmtu_cookie: 1440,
            bound_interface: 0,
            uid: 0,
            backoff: 0,
            retransmits: 0,
            reports_errors: false,
            repairs: false,
            stands_still: false,
            window_scale: 0,
            unordered: false,
            receives: false,
            acknowledged: 0,
            received: 0,
            heard: 0,
            round_trip: Duration::ZERO,
            least_round_trip: Duration::ZERO,
            window: 0,
            threshold: None,
            sends: false,
            sent_again: 0,
        }
    }

    #[test]
    fn who_takes_all_for_lost_and_sends_nothing_is_told_again() {
        let then = TcpSocket { sent_again: 7, ..socket(9000) };
        let repairs = TcpSocket { repairs: true, ..then };
        assert!(sent_nothing(&then, &repairs));
        assert!(!sent_nothing(&then, &then), "its program is using it: it has not heard yet");
        assert!(!sent_nothing(&then, &TcpSocket { sent_again: 8, ..repairs }), "it has sent");
        let answered = TcpSocket { snd_una: then.snd_una.wrapping_add(1), ..repairs };
        assert!(!sent_nothing(&then, &answered), "it is answered, and will");
        let (mut kicks, now) = (Kicks::default(), Time::default());
        kicks.begin(now, PeerId(1), Some(1400));
        let round = kicks.rounds.get_mut(&PeerId(1)).expect("a round");
        round.told.insert(then.flow, Word { then, mtu: 1400, again: false });
        let said = [1, 2, 3].map(|_| round.take_word(false, &repairs, 552));
        assert_eq!(said, [Some(600), Some(552), None]);
    }

    #[test]
    fn an_answer_is_seen_soon_after_it_came_whatever_the_round_trip() {
        let mut elapsed = Duration::ZERO;
        while elapsed < ANSWERED_WITHIN {
            let pause = pause_after(elapsed);
            assert!(pause <= SHORTEST_PAUSE.max(elapsed / 8) && pause <= Duration::from_millis(50));
            elapsed += pause;
        }
    }

    #[test]
    fn who_was_told_of_a_loss_is_spared_while_its_answer_may_be_on_its_way() {
        let (mut kicks, now) = (Kicks::default(), Time::default());
        kicks.begin(now, PeerId(1), Some(1400));
        assert_eq!(kicks.rounds[&PeerId(1)].spared_until, now, "the first time nobody is");
        let told = (socket(1).flow, Word { then: socket(1), mtu: 1400, again: false });
        kicks.rounds.get_mut(&PeerId(1)).expect("a round").told.extend([told]);
        // The path is confirmed.
        let later = now + Duration::from_millis(200);
        kicks.begin(later, PeerId(1), None);
        let round = &kicks.rounds[&PeerId(1)];
        assert_eq!((round.spared_until, round.told.len()), (later + Duration::from_millis(50), 1));
    }

    #[test]
    fn what_cannot_be_looked_at_is_tried_again_and_not_for_ever() {
        let (mut kicks, mut now) = (Kicks::default(), Time::default());
        kicks.begin(now, PeerId(1), Some(1400));
        let mut tries = 0;
        while let Some(due) = kicks.timeout() {
            now = due;
            assert!(kicks.rounds.values().all(|round| round.first), "none was looked at yet");
            kicks.put_off(now);
            tries += 1;
        }
        assert!((5..10).contains(&tries), "{tries}");
    }

    #[test]
    fn who_was_answered_and_stands_still_is_told_once_after_a_round_trip() {
        let (mut kicks, now) = (Kicks::default(), Time::default());
        kicks.begin(now, PeerId(1), None);
        let round = kicks.rounds.get_mut(&PeerId(1)).expect("a round");
        let before = socket(9);
        let round_trip = Duration::from_millis(40);
        let stands = TcpSocket { snd_una: before.snd_una.wrapping_add(5), stands_still: true, round_trip, ..before };
        assert!(!went_on(&before, &stands) && went_on(&before, &TcpSocket { stands_still: false, ..stands }));
        assert!(!round.stood_still(now, &stands) && !round.stood_still(now + Duration::from_millis(39), &stands));
        (round.first, round.waiting) = (false, HashMap::new());
        assert!(round.of_interest().eq([stands.flow]) && !round.is_over(now + WAKING));
        assert!(round.stood_still(now + round_trip, &stands));
        assert!(!round.stood_still(now + 3 * round_trip, &stands), "once");
        assert!(round.is_over(now + 3 * round_trip));
        // Another answer, and nothing is sent for that either.
        let answered = TcpSocket { snd_una: stands.snd_una.wrapping_add(1), ..stands };
        assert!(!round.stood_still(now + 4 * round_trip, &answered));
        assert!(!round.stood_still(now + 5 * round_trip, &TcpSocket { stands_still: false, ..answered }));
        assert!(round.standing.is_empty());
    }

    #[test]
    fn only_long_segments_are_sent_again_for_a_smaller_mtu() {
        assert!(!may_resend(&socket(1), 1440) && !may_resend(&socket(1340), 1440));
        // A segment that has one byte more than fits with the least headers.
        assert!(may_resend(&socket(1401), 1440) && may_resend(&socket(70_000), 1440));
    }

    #[test]
    fn what_was_told_is_known_until_the_kernel_forgets_it() {
        let (mut kicks, now) = (Kicks::default(), Time::default());
        let [here, there]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.9"].map(|address| address.parse().expect("address"));
        kicks.told.insert((here, there), (vec![1439, 1430], now + BELIEVED));
        assert!(kicks.has_told(there, 1439) && kicks.has_told(there, 1430));
        assert!(!kicks.has_told(there, 1438) && !kicks.has_told(here, 1430));
        assert!(kicks.take_told(now).is_empty() && kicks.has_told(there, 1430));
        assert_eq!(kicks.take_told(now + BELIEVED)[&(here, there)], [1439, 1430]);
        assert!(!kicks.has_told(there, 1430));
    }
}
