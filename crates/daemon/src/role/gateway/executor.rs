//! Flows of hosts behind this one, which it is the router of and speaks for (decision 0024): their sockets are
//! elsewhere, so what a socket would tell is learned from packets.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use whimbrel_datapath::Datapath;
use whimbrel_kernel::conntrack::Tracking;
use whimbrel_kernel::in_their_name::InTheirName;
use whimbrel_kernel::inject::{Injector, Numbers, Way};
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::route;
use whimbrel_protocol::{FlowEntry, LocalEnd, Node, PeerId, Prefix, Time};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

use crate::host::introductions::WINDOW;
use crate::host::{Failure, Host, MARK};

/// Introductions whose numbers are remembered at least: as many as may be open in all (P-101).
const HEARD_MOST: usize = 4096;
/// When far ends that are in back-off are told again that they may try.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// Each undoes one step of the back-off, of which a stock host has fifteen (tcp_retries2).
const STEPS: u32 = 16;
/// Errors that hosts behind are sent at once, and a second, in all and each: a peer that moves decides how many there
/// would be (P-124).
const ERRORS: u32 = 4096;
const ERRORS_OF_HOST: u32 = 1024;
/// How soon those have their turn that were too many.
const LATER: Duration = Duration::from_millis(50);
/// Flows that are looked at in one go.
const LOOKED_AT: usize = 1024;

/// What is known of flows that pass through here.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    names: Option<InTheirName>,
    /// The numbers that the answer to an introduction has to have, by flow; and those before them, of flows that have
    /// no newer ones.
    heard: HashMap<FlowTuple, Numbers>,
    heard_before: HashMap<FlowTuple, Numbers>,
    /// Peers whose far ends are being woken.
    rounds: BTreeMap<PeerId, Round>,
    errors: Errors,
    /// What hosts behind this one open.
    tracking: Option<Tracking>,
}

#[derive(Debug)]
struct Round {
    number: usize,
    next: Time,
    /// In the first round: the longest packet that they are to send from now on, in bytes.
    shrink_to: Option<u16>,
    /// What waits, and for what.
    waiting: HashMap<FlowTuple, u32>,
    /// Of these, those that are still to be told in this round.
    turn: VecDeque<FlowTuple>,
}

/// How many errors may be sent.
#[derive(Debug, Default)]
struct Errors {
    all: Spent,
    hosts: HashMap<IpAddr, Spent>,
}

/// What was used up of so many a second.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    errors: u32,
    at: Time,
}

impl Spent {
    fn now(self, now: Time, a_second: u32) -> Self {
        let regained = now.since(self.at).as_millis().min(1000) as u32 * a_second / 1000;
        // What is less than one is not lost.
        if regained == 0 { self } else { Self { errors: self.errors.saturating_sub(regained), at: now } }
    }
}

impl Errors {
    /// Whether any host may be told.
    fn any(&mut self, now: Time) -> bool {
        self.all = self.all.now(now, ERRORS);
        self.all.errors + STEPS <= ERRORS
    }

    /// Whether this host may be told once more, which is then counted.
    fn take(&mut self, now: Time, host: IpAddr) -> bool {
        if self.hosts.len() >= LOOKED_AT {
            self.hosts.retain(|_, spent| spent.now(now, ERRORS_OF_HOST).errors > 0);
        }
        let any = self.any(now);
        let host = self.hosts.entry(host).or_default();
        *host = host.now(now, ERRORS_OF_HOST);
        if !any || host.errors + STEPS > ERRORS_OF_HOST {
            return false;
        }
        host.errors += STEPS;
        self.all.errors += STEPS;
        true
    }
}

impl Gateway {
    /// Follows what hosts behind this one open. Gives what is readable then.
    pub(crate) fn track(&mut self, now: Time, node: &mut Node) -> Option<BorrowedFd<'_>> {
        match Tracking::open(|flow| node.is_behind(flow.local.ip())) {
            Ok((tracking, found)) => {
                found.into_iter().for_each(|flow| node.handle_passing_opened(now, flow));
                let tracking: &Tracking = self.tracking.insert(tracking);
                Some(tracking.as_fd())
            }
            Err(error) => {
                tracing::warn!(%error, "connections that hosts behind this one open themselves cannot be moved");
                None
            }
        }
    }

    /// Tells the node what they have opened.
    pub(crate) fn handle_tracked(&mut self, now: Time, node: &mut Node) {
        if let Some(tracking) = &mut self.tracking {
            tracking.take(|flow| node.handle_passing_opened(now, flow));
        }
    }

    /// An introduction has come on a TCP flow with these numbers, which are the peer's.
    pub(crate) fn hear(&mut self, flow: FlowTuple, sequence: u32, acknowledgement: u32) {
        if flow.transport != Transport::Tcp {
            return;
        }
        if self.heard.len() >= HEARD_MOST {
            self.heard_before = std::mem::take(&mut self.heard);
        }
        // The peer's segment is shaped like a keepalive: it has acknowledged all before `acknowledgement`, and one more
        // than `sequence` is the first that it has not been acknowledged.
        let numbers = Numbers {
            sequence: acknowledgement.wrapping_sub(1),
            acknowledgement: sequence.wrapping_add(1),
            window: WINDOW,
        };
        self.heard.insert(flow, numbers);
    }

    /// Injects an answer to an introduction in the name of a host behind this one.
    pub(crate) fn introduce(
        &mut self,
        injector: &Injector,
        flow: FlowTuple,
        introduction: Introduction,
    ) -> Result<(), Failure> {
        match flow.transport {
            Transport::Udp => injector.introduce_udp(&flow, introduction, Way::default())?,
            Transport::Tcp => {
                let numbers = self.heard.get(&flow).or_else(|| self.heard_before.get(&flow));
                let numbers = *numbers.ok_or(Failure::NoSocket(flow))?;
                injector.introduce_tcp(&flow, numbers, introduction, Way::default())?;
            }
        }
        Ok(())
    }

    /// When [`Gateway::kick`] is due.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.rounds.values().map(|round| round.next).min()
    }

    /// Begins to wake the far ends of a peer's flows. `shrink_to`: where what was under way is lost, the longest
    /// packet, in bytes, that they are to send from now on.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        peer: PeerId,
        shrink_to: Option<u32>,
        flows: &HashMap<FlowTuple, FlowEntry>,
        datapath: &Datapath,
        injector: &Injector,
    ) -> Result<(), Failure> {
        let passing = |(flow, entry): &(&FlowTuple, &FlowEntry)| {
            entry.peer == peer && entry.end == LocalEnd::Passing && flow.transport == Transport::Tcp
        };
        let mut waiting = HashMap::new();
        for (flow, _) in flows.iter().filter(passing) {
            let Some(sent) = datapath.last_sent(flow)? else { continue };
            waiting.insert(*flow, sent);
        }
        if !waiting.is_empty() {
            self.wait_for(now, peer, waiting, shrink_to.and_then(|mtu| u16::try_from(mtu).ok()));
        }
        self.kick(now, datapath, injector)
    }

    fn wait_for(&mut self, now: Time, peer: PeerId, waiting: HashMap<FlowTuple, u32>, shrink_to: Option<u16>) {
        let turn = waiting.keys().copied().collect();
        self.rounds.insert(peer, Round { number: 0, next: now, shrink_to, waiting, turn });
    }

    /// Tells those that are due, and still wait for what they waited for.
    pub(crate) fn kick(&mut self, now: Time, datapath: &Datapath, injector: &Injector) -> Result<(), Failure> {
        let stands = |flow: &FlowTuple, sent| matches!(datapath.last_sent(flow), Ok(Some(last)) if last == sent);
        self.tell(now, stands, |flow, sent, shrink_to| {
            if let Some(mtu) = shrink_to {
                injector.shrink_host(flow, sent, mtu)?;
            }
            (0..STEPS).try_for_each(|_| injector.kick_host(flow, sent))?;
            Ok(())
        })
    }

    /// One of each peer's after the other, so that nobody waits for all that another one has. `stands`: whether a flow
    /// still waits.
    fn tell(
        &mut self,
        now: Time,
        stands: impl Fn(&FlowTuple, u32) -> bool,
        mut tell: impl FnMut(&FlowTuple, u32, Option<u16>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Self { rounds, errors, .. } = self;
        let mut result = Ok(());
        let mut late: BTreeMap<PeerId, Vec<FlowTuple>> = BTreeMap::new();
        let (mut looked_at, mut more) = (0, true);
        while std::mem::take(&mut more) && looked_at < LOOKED_AT && errors.any(now) && result.is_ok() {
            for (peer, round) in rounds.iter_mut().filter(|(_, round)| round.next <= now) {
                let Some(flow) = round.turn.pop_front() else { continue };
                (looked_at, more) = (looked_at + 1, true);
                let first = round.number == 0;
                match round.waiting.get(&flow) {
                    Some(sent) if first || stands(&flow, *sent) => {
                        if errors.take(now, flow.local.ip()) {
                            result = result.and(tell(&flow, *sent, round.shrink_to.filter(|_| first)));
                        } else {
                            late.entry(*peer).or_default().push(flow);
                        }
                    }
                    _ => drop(round.waiting.remove(&flow)),
                }
            }
        }
        for (peer, round) in rounds.iter_mut().filter(|(_, round)| round.next <= now) {
            round.turn.extend(late.remove(peer).unwrap_or_default());
            if !round.turn.is_empty() && result.is_ok() {
                round.next = now + LATER;
                continue;
            }
            match PAUSES.get(round.number) {
                Some(pause) => round.next = now + *pause,
                None => round.waiting.clear(),
            }
            round.number += 1;
            round.turn = round.waiting.keys().copied().collect();
        }
        rounds.retain(|_, round| !round.waiting.is_empty());
        result
    }

    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.rounds.remove(&peer);
    }

    /// A flow is introduced, or gone.
    pub(crate) fn forget(&mut self, flow: &FlowTuple) {
        self.heard.remove(flow);
        self.heard_before.remove(flow);
    }

    /// Has what is said to the control port of these hosts come here, and of no others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn speak_for(&mut self, host: &mut Host, behind: &[Prefix], port: u16) -> Result<(), Failure> {
        let prefixes: Vec<route::Prefix> =
            behind.iter().map(|prefix| route::Prefix { address: prefix.address, length: prefix.length }).collect();
        let names = match &mut self.names {
            Some(names) => names,
            none => none.insert(InTheirName::open()?),
        };
        // Flows are marked by either of the two bits alone.
        names.apply(&prefixes, port, Mark { value: MARK.mask, mask: MARK.mask })?;
        host.datapath.claim_fragments((!behind.is_empty()).then_some(port))?;
        Ok(())
    }

    /// Ends it, as nothing is carried any more.
    pub(crate) fn speak_for_nobody(&mut self) -> Result<(), Failure> {
        if let Some(names) = &mut self.names {
            names.release()?;
        }
        Ok(())
    }

    /// Goes on with waking hosts.
    pub(crate) fn kick_hosts(&mut self, host: &Host, now: Time) {
        if let Err(failure) = self.kick(now, &host.datapath, &host.injector) {
            tracing::warn!(%failure, "cannot wake hosts that this one speaks for");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(host: u8, port: u16) -> FlowTuple {
        let local = std::net::SocketAddr::new(IpAddr::from([192, 0, 2, host]), 80);
        let remote = std::net::SocketAddr::new(IpAddr::from([198, 51, 100, 9]), port);
        FlowTuple { transport: Transport::Tcp, local, remote }
    }

    fn waiting(host: u8, count: u16) -> HashMap<FlowTuple, u32> {
        (1..=count).map(|port| (flow(host, port), 7)).collect()
    }

    #[test]
    fn hosts_are_told_so_often_and_no_more_and_each_has_its_turn() {
        // P-124
        let mut gateway = Gateway::default();
        let mut now = Time::from_micros(1_000_000_000);
        gateway.wait_for(now, PeerId(1), waiting(7, 500), Some(1200));
        gateway.wait_for(now, PeerId(2), waiting(8, 3), None);
        let mut told: HashMap<FlowTuple, u32> = HashMap::new();
        let mut of_host: HashMap<IpAddr, u32> = HashMap::new();
        let mut tell = |gateway: &mut Gateway, now| {
            let mut count = HashMap::new();
            gateway
                .tell(
                    now,
                    |_, _| true,
                    |flow, sent, shrink_to| {
                        assert_eq!(sent, 7);
                        let first = told.insert(*flow, 0).is_none();
                        assert_eq!(shrink_to.is_some(), first && flow.local.ip() == flow_of(7));
                        *count.entry(flow.local.ip()).or_insert(0) += STEPS;
                        *of_host.entry(flow.local.ip()).or_insert(0) += STEPS;
                        Ok(())
                    },
                )
                .expect("told");
            (count, told.len())
        };
        fn flow_of(host: u8) -> IpAddr {
            flow(host, 1).local.ip()
        }
        // Not more at once than may be; the other peer's, of another host, do not wait for that.
        let (count, _) = tell(&mut gateway, now);
        assert_eq!((count[&flow_of(7)], count[&flow_of(8)]), (ERRORS_OF_HOST, 3 * STEPS));
        let started = now;
        for _ in 0..300 {
            let Some(next) = gateway.timeout() else { break };
            assert!(next > now);
            now = next;
            tell(&mut gateway, now);
        }
        // All are told in the end, four times as before, and no faster than may be.
        assert!(gateway.rounds.is_empty() || now.since(started) > Duration::from_secs(9), "it goes on");
        let (_, reached) = tell(&mut gateway, now);
        assert_eq!(reached, 503);
        let seconds = now.since(started).as_secs_f64();
        let most = f64::from(ERRORS_OF_HOST) * (seconds + 1.0) + 1.0;
        assert!(f64::from(of_host[&flow_of(7)]) <= most, "{} in {seconds} s", of_host[&flow_of(7)]);
        assert_eq!(of_host[&flow_of(8)], 4 * 3 * STEPS);
    }

    #[test]
    fn all_hosts_together_are_told_so_often_and_no_more() {
        let mut gateway = Gateway::default();
        let now = Time::from_micros(1_000_000_000);
        for host in 1..=20 {
            gateway.wait_for(now, PeerId(host.into()), waiting(host, 50), None);
        }
        let mut errors: HashMap<IpAddr, u32> = HashMap::new();
        let mut tell = |gateway: &mut Gateway, now| {
            gateway
                .tell(
                    now,
                    |_, _| true,
                    |flow, _, _| {
                        *errors.entry(flow.local.ip()).or_default() += STEPS;
                        Ok(())
                    },
                )
                .expect("told");
            errors.values().sum::<u32>()
        };
        assert_eq!(tell(&mut gateway, now), ERRORS);
        assert_eq!(tell(&mut gateway, now + Duration::from_millis(500)), ERRORS * 3 / 2);
        // Each has had its share.
        assert!(errors.values().all(|count| *count >= ERRORS / 20 - STEPS), "{errors:?}");
    }

    #[test]
    fn numbers_are_remembered_while_others_come() {
        let mut gateway = Gateway::default();
        gateway.hear(flow(7, 1), 10, 20);
        for port in 2..=u16::try_from(HEARD_MOST).expect("a port") + 100 {
            gateway.hear(flow(7, port), 10, 20);
        }
        assert!(gateway.heard.contains_key(&flow(7, 1)) || gateway.heard_before.contains_key(&flow(7, 1)));
        gateway.forget(&flow(7, 1));
        assert!(!gateway.heard_before.contains_key(&flow(7, 1)));
    }
}
