//! Connections that hosts behind a gateway have opened themselves (P-125). The gateway asks whoever they lead to
//! whether he runs Whimbrel, as a host does that has opened one, and has him look for it: from there on all is as if he
//! had opened the connection.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::op::PeerId;
use crate::binding::BindingLayer;
use crate::flow::table::MATURE;
use crate::role::At;
use crate::role::gateway::Due;
use crate::role::gateway::GatewayRole;
use crate::session::contact::Contact;
use crate::session::pins::Want;

/// Connections that are remembered at the most, of those of one host, and of those to one address.
const OPENED_MOST: usize = 4096;
const OPENED_OF_ONE: usize = OPENED_MOST / 4;
const OPENED_TO_ONE: usize = 256;
/// How often the other end is told of one, and how long it is remembered.
const REQUESTS: u8 = 3;
const REMEMBERED: Duration = Duration::from_secs(60);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_secs(1);
/// Addresses that are asked for the first time at one look: half of what may be asked in a second (P-10).
const ASKED_AT_ONCE: usize = 10;
/// What one of them is told in one go.
const AT_ONCE: usize = 64;

/// What hosts behind this one have opened and nobody has introduced yet, by where it leads to.
#[derive(Debug, Default)]
pub(crate) struct OpenedBehind {
    to: BTreeMap<IpAddr, BTreeMap<FlowTuple, Wanted>>,
    /// How many there are of each host.
    of: BTreeMap<IpAddr, usize>,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    until: Time,
    requests: u8,
}

impl OpenedBehind {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn insert(&mut self, now: Time, flow: FlowTuple) -> bool {
        let flows = self.to.get(&flow.remote.ip()).map_or(0, BTreeMap::len);
        let of_one = self.of.get(&flow.local.ip()).copied().unwrap_or_default();
        if self.count >= OPENED_MOST || flows >= OPENED_TO_ONE || of_one >= OPENED_OF_ONE {
            return false;
        }
        if let Entry::Vacant(entry) = self.to.entry(flow.remote.ip()).or_default().entry(flow) {
            entry.insert(Wanted { until: now + REMEMBERED, requests: 0 });
            *self.of.entry(flow.local.ip()).or_default() += 1;
            self.count += 1;
        }
        true
    }

    fn forget(&mut self, address: IpAddr) {
        self.to.remove(&address);
        self.count_all();
    }

    fn retain(&mut self, keep: impl Fn(&FlowTuple, &Wanted) -> bool) {
        for flows in self.to.values_mut() {
            flows.retain(|flow, wanted| keep(flow, wanted));
        }
        self.to.retain(|_, flows| !flows.is_empty());
        self.count_all();
    }

    fn count_all(&mut self) {
        (self.of, self.count) = (BTreeMap::new(), 0);
        for flow in self.to.values().flat_map(BTreeMap::keys) {
            *self.of.entry(flow.local.ip()).or_default() += 1;
            self.count += 1;
        }
    }
}

impl GatewayRole {
    /// See [`Node::handle_passing_opened`](crate::Node::handle_passing_opened).
    pub(crate) fn handle_passing_opened(&mut self, flow: FlowTuple, at: &mut At<'_>) {
        let between =
            at.base.attachments().is_behind(flow.local.ip()) && at.base.attachments().at(flow.remote.ip()).is_none();
        if flow.transport == Transport::Tcp
            && between
            && !at.low.flow().has_flow(&flow)
            && self.opened.insert(at.now, flow)
        {
            self.want_opened(at.low);
            self.timers.set_earlier(Due::Opened, at.now + MATURE);
        }
    }

    /// The addresses that such connections lead to are asked, though no flow of this host's waits for them.
    fn want_opened(&mut self, low: &mut BindingLayer) {
        let addresses = self.opened.to.keys().copied().collect();
        low.session_mut().pins_mut().want(Want::Opened, addresses);
    }

    /// Asks where such connections lead to, and tells who answers of them.
    pub(crate) fn continue_opened(&mut self, at: &mut At<'_>) {
        let flows = at.low.flow().flows();
        let introduced = |flow: &FlowTuple| flows.entry(flow).is_some();
        self.opened.retain(|flow, wanted| wanted.until > at.now && wanted.requests < REQUESTS && !introduced(flow));
        self.want_opened(at.low);
        let addresses: Vec<IpAddr> = self.opened.to.keys().copied().collect();
        let mut asked = 0;
        for address in addresses {
            match at.low.session().contacts().get(&address) {
                Some(Contact::Known(id)) => self.send_opened(id, address, at),
                Some(Contact::Asking { .. }) => {}
                Some(Contact::Silent { until, .. }) if until <= at.now => {
                    at.low.session_mut().continue_contact(at.now, address, at.base)
                }
                // P-10
                Some(Contact::Silent { .. }) => self.opened.forget(address),
                None if !at.low.session().may_ask(address, at.base) => self.opened.forget(address),
                None if asked >= ASKED_AT_ONCE => {}
                None => {
                    asked += 1;
                    at.low.session_mut().ask(at.now, address, None, at.base);
                }
            }
        }
        self.want_opened(at.low);
        if self.opened.len() > 0 {
            self.timers.set(Due::Opened, at.now + PAUSE);
        }
    }

    fn send_opened(&mut self, id: PeerId, address: IpAddr, at: &mut At<'_>) {
        if !at.low.session().has_session(id) {
            return at.low.session_mut().reach_again(at.now, id, at.base);
        }
        let Some(flows) = self.opened.to.get_mut(&address) else { return };
        let mut tuples = Vec::new();
        for (tuple, wanted) in flows.iter_mut().take(AT_ONCE) {
            wanted.requests += 1;
            tuples.push(*tuple);
        }
        for tuple in tuples {
            // Each by itself: looking for one costs the peer a handshake.
            at.low.path_mut().send(id, &[Message::AskHere { tuple }], at.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn flow(host: u8, number: usize) -> FlowTuple {
        let number = u16::try_from(number).expect("a number");
        let remote = Ipv4Addr::new(198, 51, 100, u8::try_from(number / 200).expect("an address"));
        FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new(Ipv4Addr::new(192, 0, 2, host).into(), 1024 + number),
            remote: SocketAddr::new(remote.into(), 80),
        }
    }

    #[test]
    fn one_host_takes_no_more_than_a_quarter_of_the_room() {
        // P-125
        let (mut opened, now) = (OpenedBehind::default(), Time::default());
        let taken = |opened: &mut OpenedBehind, host| (0..2000).filter(|n| opened.insert(now, flow(host, *n))).count();
        assert_eq!(taken(&mut opened, 1), OPENED_OF_ONE);
        assert!(opened.insert(now, flow(2, 0)), "another host has its turn");
        opened.forget(flow(1, 0).remote.ip());
        assert_eq!((opened.len(), opened.of[&flow(1, 0).local.ip()]), (OPENED_OF_ONE - 200, OPENED_OF_ONE - 200));
        assert_eq!(taken(&mut opened, 1), 200, "there is room again");
        opened.retain(|_, wanted| wanted.until > now + REMEMBERED);
        assert!(opened.len() == 0 && opened.of.is_empty());
    }
}
