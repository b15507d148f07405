//! Connections that a move has left behind: their address is gone, and the ends had not agreed on them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{FlowState, FlowView, Standing, Time};

use crate::events::{Report, told};
use crate::host::own_addresses;

/// How long the ends may take to agree on a connection whose address is gone already.
const LATE: Duration = Duration::from_secs(3);
/// The same of one that an end names to the other.
const NAMED_FOR: Duration = Duration::from_secs(12);
/// Addresses that are remembered as gone.
const GONE_MOST: usize = 64;
/// Connections that an event names one by one.
const NAMED: usize = 16;

/// Which addresses this host has had and has no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftBehind {
    /// Those that it has, whether or not their links are up.
    has: BTreeSet<IpAddr>,
    /// Those that are gone, since when, and whether it was told what stays there.
    gone: BTreeMap<IpAddr, (Time, bool)>,
    /// Whether it is anywhere else.
    elsewhere: bool,
    /// What the store has: whether it was told, of each address that is gone.
    saved: BTreeMap<IpAddr, bool>,
}

impl LeftBehind {
    /// What a daemon before this one has left. Where that was told, the address is gone for longer than anything waits
    /// for. Where it was not, it may have gone a moment ago, and what is agreed on yet counts from now.
    pub(crate) fn restored(now: Time, saved: BTreeMap<IpAddr, bool>) -> Self {
        let since = |told: bool| if told { Time::default() } else { now };
        let gone = saved.iter().map(|(address, told)| (*address, (since(*told), *told))).collect();
        Self { gone, saved, ..Self::default() }
    }

    /// What the store is to be told: of addresses that are gone whether that was told, and `None` of those that are not
    /// any more.
    pub(crate) fn unsaved(&mut self) -> Vec<(IpAddr, Option<bool>)> {
        let now: BTreeMap<IpAddr, bool> = self.gone.iter().map(|(address, (_, told))| (*address, *told)).collect();
        let before = std::mem::replace(&mut self.saved, now);
        let back = before.keys().filter(|address| !self.saved.contains_key(*address)).map(|address| (*address, None));
        let other = |(address, told): &(&IpAddr, &bool)| before.get(*address) != Some(*told);
        back.chain(self.saved.iter().filter(other).map(|(address, told)| (*address, Some(*told)))).collect()
    }

    /// Takes in how the network is now.
    pub(crate) fn look(&mut self, now: Time, network: &NetworkState) {
        let has = network.addresses.iter().map(|usable| usable.address).collect();
        let before = std::mem::replace(&mut self.has, has);
        self.gone.retain(|address, _| !self.has.contains(address));
        self.gone.extend(before.difference(&self.has).map(|address| (*address, (now, false))));
        while self.gone.len() > GONE_MOST {
            let oldest = self.gone.iter().min_by_key(|(_, (since, _))| *since).map(|(address, _)| *address);
            let Some(oldest) = oldest else { break };
            self.gone.remove(&oldest);
        }
        // Who has no network at all may come back to the one that it had.
        self.elsewhere = !own_addresses(network).is_empty();
    }

    /// Whether a flow is lost. `may_yet`: the ends may agree on it still, if that was a moment ago or goes on. A socket
    /// that is not connected goes on with whoever it sends to next.
    pub(crate) fn is_lost(&self, now: Time, flow: &FlowView, may_yet: bool) -> bool {
        // It may be named late (P-204). Where nothing comes of that, that is told by itself.
        let late = if flow.state == FlowState::Introducing { NAMED_FOR } else { LATE };
        let since = self.gone.get(&flow.tuple.local.ip()).filter(|_| self.elsewhere && flow.entry.is_none());
        let since = since.filter(|_| flow.is_connection());
        since.is_some_and(|(since, _)| !may_yet || *since + late <= now)
    }

    /// When it is to be told what was left behind.
    pub(crate) fn due(&self) -> Option<Time> {
        let untold = self.gone.values().filter(|(_, told)| self.elsewhere && !told);
        untold.map(|(since, _)| *since + LATE).min()
    }

    /// Tells what was left behind, where it is time and something was. `standing`: how an address stands that is not
    /// known.
    pub(crate) fn tell(
        &mut self,
        now: Time,
        flows: impl Iterator<Item = FlowView>,
        standing: impl Fn(IpAddr) -> Standing,
    ) -> Option<Report> {
        let due = |(since, told): &(Time, bool)| !told && *since + LATE <= now;
        let gone: BTreeSet<IpAddr> = self.gone.iter().filter(|(_, at)| due(at)).map(|(address, _)| *address).collect();
        let lost = flows.filter(|flow| gone.contains(&flow.tuple.local.ip()) && self.is_lost(now, flow, true));
        let mut lost: Vec<_> = lost.map(|flow| (flow.tuple, why(&flow, standing(flow.tuple.remote.ip())))).collect();
        lost.sort_unstable();
        self.gone.iter_mut().filter(|(address, _)| gone.contains(*address)).for_each(|(_, (_, told))| *told = true);
        let (first, reason) = lost.first().cloned()?;
        let reason = if lost.iter().all(|(_, other)| *other == reason) { reason } else { NOT_YET.to_owned() };
        let (flows, count) =
            (lost.iter().take(NAMED).map(|(flow, _)| flow.to_string()).collect::<Vec<_>>(), lost.len());
        let report = match count {
            1 => told!(LeftBehind { count, reason: &reason }, "{first} is lost at the move: {reason}"),
            _ => told!(LeftBehind { count, reason: &reason }, "{count} connections are lost at the move: {reason}"),
        };
        Some(report.with("flows", flows))
    }
}

/// Why a connection was not taken along where nothing else is known.
const NOT_YET: &str = "its address is gone, and the other end had not agreed on it";

/// Why a flow that was lost had not been introduced. `standing`: that of its remote address.
pub(crate) fn why(flow: &FlowView, standing: Standing) -> String {
    let why = match (&flow.state, standing) {
        (FlowState::Failed(reason), _) => format!("it was not introduced: {reason}"),
        (FlowState::Excluded(line), _) => format!("policy at line {line} leaves it alone"),
        (FlowState::Unknown, Standing::Silent { .. }) => "the other host had not answered when it was asked".to_owned(),
        (FlowState::Unknown, _) if flow.accepted => "the other end, which opened it, had not asked".to_owned(),
        (FlowState::Unknown, Standing::Barred) => {
            "`ask` or `trust` in the configuration keeps this host from asking".to_owned()
        }
        _ => return NOT_YET.to_owned(),
    };
    format!("its address is gone, and {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Kind;
    use whimbrel_kernel::network::UsableAddress;
    use whimbrel_kernel::route::Link;
    use whimbrel_protocol::{FlowEntry, LocalEnd, Manner, PeerId, Places, Waits};
    use whimbrel_wire::{FlowTuple, Transport};

    const UNASKED: fn(IpAddr) -> Standing = |_| Standing::Unasked;

    #[test]
    fn why_it_is_lost_is_why_it_was_not_protected() {
        let silent = Standing::Silent { until: Time::default() };
        let of = |accepted, standing| why(&FlowView { accepted, ..flow(1, FlowState::Unknown) }, standing);
        assert!(of(false, silent).ends_with("the other host had not answered when it was asked"));
        assert!(of(true, Standing::Unasked).ends_with("the other end, which opened it, had not asked"));
        assert!(of(false, Standing::Barred).ends_with("keeps this host from asking"));
        assert_eq!(of(false, Standing::Asking), NOT_YET);
    }

    fn network(addresses: &[&str], carrier: bool) -> NetworkState {
        let usable = |address: &&str| UsableAddress {
            interface: 2,
            address: address.parse().expect("an address"),
            prefix_length: 24,
            made: 0,
            deprecated: false,
        };
        let link = Link {
            index: 2,
            name: "eth0".to_owned(),
            up: true,
            carrier,
            loopback: false,
            kind: String::new(),
            mtu: 1500,
            carrier_losses: 0,
            controller: None,
            below: None,
            beyond: None,
        };
        NetworkState { addresses: addresses.iter().map(usable).collect(), links: vec![link], ..NetworkState::default() }
    }

    fn flow(port: u16, state: FlowState) -> FlowView {
        let tuple = FlowTuple {
            transport: Transport::Tcp,
            local: ([192, 0, 2, 1], port).into(),
            remote: ([203, 0, 113, 5], 22).into(),
        };
        FlowView {
            tuple,
            state,
            peer: None,
            entry: None,
            opened: Time::default(),
            accepted: false,
            unconnected: false,
            greeting: None,
        }
    }

    #[test]
    fn what_is_lost_is_so_for_the_daemons_to_come() {
        let (mut left, now) = (LeftBehind::default(), Time::default() + Duration::from_secs(9));
        left.look(now, &network(&["192.0.2.1"], true));
        assert_eq!(left.unsaved(), []);
        left.look(now, &network(&["192.0.2.9"], true));
        let gone = "192.0.2.1".parse().expect("an address");
        assert_eq!(left.unsaved(), [(gone, Some(false))]);
        assert!(left.tell(now + LATE, [flow(1, FlowState::Unknown)].into_iter(), UNASKED).is_some());
        assert_eq!((left.unsaved(), left.unsaved()), (vec![(gone, Some(true))], Vec::new()));

        let mut after = LeftBehind::restored(now, [(gone, true)].into());
        after.look(now, &network(&["192.0.2.9"], true));
        assert!(after.is_lost(now, &flow(1, FlowState::Unknown), true) && after.due().is_none());
        assert!(!LeftBehind::default().is_lost(now, &flow(1, FlowState::Unknown), true), "nothing was left to it");
        assert_eq!(after.unsaved(), []);
        after.look(now, &network(&["192.0.2.1"], true));
        let other = "192.0.2.9".parse().expect("an address");
        assert_eq!(after.unsaved(), [(gone, None), (other, Some(false))]);

        let mut untold = LeftBehind::restored(now, [(gone, false)].into());
        untold.look(now, &network(&["192.0.2.9"], true));
        assert_eq!(untold.due(), Some(now + LATE));
        assert!(!untold.is_lost(now, &flow(1, FlowState::Unknown), true), "it may be agreed on yet");
        assert!(untold.is_lost(now + LATE, &flow(1, FlowState::Unknown), true));
    }

    #[test]
    fn what_stays_at_an_address_that_is_gone_is_lost_and_told_once() {
        let (mut left, now) = (LeftBehind::default(), Time::default() + Duration::from_secs(9));
        let young = flow(1, FlowState::Unknown);
        left.look(now, &network(&["192.0.2.1"], true));
        left.look(now, &network(&["192.0.2.1"], false));
        assert!(!left.is_lost(now, &young, false), "a cable that is out for a moment");
        left.look(now, &network(&[], true));
        assert!(!left.is_lost(now + LATE, &young, false) && left.due().is_none(), "the host is nowhere");
        left.look(now, &network(&["192.0.2.9"], true));
        assert!(left.is_lost(now, &young, false) && !left.is_lost(now, &young, true));
        assert_eq!(left.due(), Some(now + LATE));
        assert!(left.tell(now, [young.clone()].into_iter(), UNASKED).is_none(), "it is not time yet");

        let later = now + LATE;
        let entry = FlowEntry {
            peer: PeerId(3),
            name: 7,
            side: 0,
            waits: Waits::default(),
            manner: Manner::default(),
            home: Places::default(),
            peer_tuple: young.tuple.mirrored(),
            wire_local_port: 1,
            wire_remote_port: 2,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        };
        let moved = FlowView { entry: Some(entry), ..flow(2, FlowState::Moved) };
        let named = flow(3, FlowState::Introducing);
        assert!(!left.is_lost(later, &named, true) && left.is_lost(later, &named, false));
        assert!(left.is_lost(now + NAMED_FOR, &named, true));
        assert!(!left.is_lost(later, &moved, false) && left.is_lost(later, &young, true));
        let asked = FlowView { unconnected: true, ..flow(4, FlowState::Unknown) };
        assert!(!left.is_lost(later, &asked, false), "a question that was answered");
        let told = left.tell(later, [young.clone(), moved, asked].into_iter(), UNASKED).expect("it is told");
        assert_eq!(
            told.sentence,
            "tcp 192.0.2.1:1 -> 203.0.113.5:22 is lost at the move: its address is gone, and the other end had not agreed \
             on it"
        );
        assert_eq!((&told.fields["count"], told.kind), (&1.into(), Kind::LeftBehind));
        assert!(left.tell(later, [young.clone()].into_iter(), UNASKED).is_none() && left.due().is_none());
        let excluded = why(&flow(4, FlowState::Excluded(12)), Standing::Unasked);
        assert_eq!(excluded, "its address is gone, and policy at line 12 leaves it alone");
        left.look(later, &network(&["192.0.2.1"], true));
        assert!(!left.is_lost(later, &young, false), "it is back where it was");
    }
}
