//! Flows of hosts behind this one, which it is the router of and speaks for (decision 0024): their sockets are elsewhere, so what a
//! socket would tell is learned from packets.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use whimbrel_datapath::Datapath;
use whimbrel_kernel::in_their_name::InTheirName;
use whimbrel_kernel::inject::{Injector, Numbers, Way};
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::route;
use whimbrel_protocol::{FlowEntry, LocalEnd, PeerId, Prefix, Time};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

use super::introductions::WINDOW;
use super::{Effects, Failure, MARK};

/// Introductions whose answers may be due at a time.
const HEARD_MOST: usize = 4096;
/// When far ends that are in back-off are told again that they may try.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// Each undoes one step of the back-off, of which a stock host has fifteen (tcp_retries2).
const STEPS: usize = 16;

/// What is known of flows that pass through here.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    names: Option<InTheirName>,
    /// The numbers that the answer to an introduction has to have, by flow.
    heard: HashMap<FlowTuple, Numbers>,
    /// Peers whose far ends are being woken.
    rounds: BTreeMap<PeerId, Round>,
}

#[derive(Debug)]
struct Round {
    number: usize,
    next: Time,
    /// What waits, and for what.
    waiting: HashMap<FlowTuple, u32>,
}

impl Gateway {
    /// An introduction has come on a TCP flow with these numbers, which are the peer's.
    pub(crate) fn hear(&mut self, flow: FlowTuple, sequence: u32, acknowledgement: u32) {
        if flow.transport != Transport::Tcp {
            return;
        }
        if self.heard.len() >= HEARD_MOST {
            self.heard.clear();
        }
        // The peer's segment is shaped like a keepalive: it has acknowledged all before `acknowledgement`, and one more than
        // `sequence` is the first that it has not been acknowledged.
        let numbers = Numbers {
            sequence: acknowledgement.wrapping_sub(1),
            acknowledgement: sequence.wrapping_add(1),
            window: WINDOW,
        };
        self.heard.insert(flow, numbers);
    }

    /// Injects an answer to an introduction in the name of a host behind this one.
    pub(super) fn introduce(
        &mut self,
        injector: &Injector,
        flow: FlowTuple,
        introduction: Introduction,
    ) -> Result<(), Failure> {
        match flow.transport {
            Transport::Udp => injector.introduce_udp(&flow, introduction, Way::default())?,
            Transport::Tcp => {
                let numbers = *self.heard.get(&flow).ok_or(Failure::NoSocket(flow))?;
                injector.introduce_tcp(&flow, numbers, introduction, Way::default())?;
            }
        }
        Ok(())
    }

    /// When [`Gateway::kick`] is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.rounds.values().map(|round| round.next).min()
    }

    /// Begins to wake the far ends of a peer's flows. `shrink_to`: where what was under way is lost, the longest packet, in bytes, that
    /// they are to send from now on.
    pub(super) fn begin(
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
            if let Some(mtu) = shrink_to.and_then(|mtu| u16::try_from(mtu).ok()) {
                injector.shrink_host(flow, sent, mtu)?;
            }
        }
        if !waiting.is_empty() {
            self.rounds.insert(peer, Round { number: 0, next: now, waiting });
        }
        self.kick(now, datapath, injector)
    }

    /// Tells those that are due, and still wait for what they waited for.
    pub(super) fn kick(&mut self, now: Time, datapath: &Datapath, injector: &Injector) -> Result<(), Failure> {
        let mut result = Ok(());
        for round in self.rounds.values_mut().filter(|round| round.next <= now) {
            let first = round.number == 0;
            round.waiting.retain(|flow, sent| {
                let stands = first || matches!(datapath.last_sent(flow), Ok(Some(last)) if last == *sent);
                if stands && result.is_ok() {
                    result = (0..STEPS).try_for_each(|_| injector.kick_host(flow, *sent));
                }
                stands
            });
            match PAUSES.get(round.number) {
                Some(pause) => round.next = now + *pause,
                None => round.waiting.clear(),
            }
            round.number += 1;
        }
        self.rounds.retain(|_, round| !round.waiting.is_empty());
        Ok(result?)
    }

    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        self.rounds.remove(&peer);
    }

    pub(super) fn forget(&mut self, flow: &FlowTuple) {
        self.heard.remove(flow);
    }
}

impl Effects {
    /// Has what is said to the control port of these hosts come here, and of no others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn speak_for(&mut self, behind: &[Prefix], port: u16) -> Result<(), Failure> {
        let prefixes: Vec<route::Prefix> =
            behind.iter().map(|prefix| route::Prefix { address: prefix.address, length: prefix.length }).collect();
        let names = match &mut self.gateway.names {
            Some(names) => names,
            none => none.insert(InTheirName::open()?),
        };
        // Flows are marked by either of the two bits alone.
        names.apply(&prefixes, port, Mark { value: MARK.mask, mask: MARK.mask })?;
        self.datapath.claim_fragments((!behind.is_empty()).then_some(port))?;
        Ok(())
    }

    /// Ends it, as nothing is carried any more.
    pub(super) fn speak_for_nobody(&mut self) -> Result<(), Failure> {
        if let Some(names) = &mut self.gateway.names {
            names.release()?;
        }
        Ok(())
    }

    pub(super) fn kick_hosts(&mut self, now: Time) {
        let Self { gateway, datapath, injector, .. } = self;
        if let Err(failure) = gateway.kick(now, datapath, injector) {
            tracing::warn!(%failure, "cannot wake hosts that this one speaks for");
        }
    }
}
