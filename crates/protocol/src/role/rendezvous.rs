//! Third hosts: they tell where a peer is, and take in what is said to whom has left their link.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::binding::BindingLayer;
use crate::role::rendezvous::client::Rendezvous;
use crate::role::rendezvous::proxy::NeighbourProxies;
use crate::role::rendezvous::server::RendezvousServer;
use crate::role::{Came, Role};

pub(crate) mod client;
pub(crate) mod proxy;
pub(crate) mod server;

/// Meeting by way of third hosts: those that serve this one, those that this one serves, and whom it stands in for.
#[derive(Default)]
pub(crate) struct RendezvousRole {
    client: Rendezvous,
    rendezvous_server: RendezvousServer,
    neighbour_proxies: NeighbourProxies,
    timers: Timers<Due>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Due {
    /// Tell a rendezvous again whom this host is to be met by.
    Registration(PeerId),
    /// Tell a host again where those are that it is to meet.
    Whereabouts(PeerId),
    /// Send again to where a rendezvous says that a peer is.
    Found(PeerId),
    /// Ask a rendezvous again to stand in for addresses that this host has left.
    NeighbourProxy(PeerId),
    /// Look which rendezvous are needed, and which answer.
    Rendezvous,
}

impl Role for RendezvousRole {
    fn new(_: &Base) -> Self {
        Self::default()
    }

    fn takes(message: &Message) -> bool {
        matches!(
            message,
            Message::Register { .. }
                | Message::Registered { .. }
                | Message::Whereabouts { .. }
                | Message::WhereaboutsSeen { .. }
                | Message::NeighbourProxy { .. }
                | Message::StandingIn { .. }
                | Message::PathResponse { .. }
        )
    }

    fn handle_message(&mut self, now: Time, came: Came<'_>, message: Message, low: &mut BindingLayer, base: &mut Base) {
        let Came { from, arrival, answers } = came;
        match message {
            Message::Register { number, change, tags } => {
                answers.extend(self.handle_registration(now, from, number, change, &tags, low, base));
            }
            Message::Registered { number, status, newest } => {
                self.handle_registered(now, from, number, status, newest, low, base);
            }
            Message::Whereabouts { number, found } => {
                answers.extend(self.handle_whereabouts(now, from, number, &found, low, base));
            }
            Message::WhereaboutsSeen { number } => self.handle_whereabouts_seen(now, from, number, low, base),
            Message::NeighbourProxy { addresses } => {
                answers.extend(self.handle_neighbour_proxy(now, from, arrival, &addresses, low, base));
            }
            Message::StandingIn { addresses } => self.handle_standing_in(now, from, &addresses, low, base),
            // To a challenge that nobody below has sent.
            Message::PathResponse { token, .. } => {
                self.prove_found(from, token, low);
            }
            _ => {}
        }
    }

    fn handle_signal(&mut self, now: Time, signal: &Signal, low: &mut BindingLayer, base: &mut Base) {
        match signal {
            Signal::FlowsBegun | Signal::Returned => self.meet_later(now, base),
            Signal::NetworkChanged => self.ask_rendezvous_again(now, low, base),
            Signal::Moving(id) => self.try_found_again(now, *id),
            Signal::Unanswered(id) => {
                self.check_rendezvous(now, *id, low, base);
                self.want_neighbour_proxy(now, *id, low, base);
            }
            Signal::Answered(id) => self.end_neighbour_proxy(now, *id, low, base),
            Signal::SessionUp(id) => {
                self.register_anew(now, *id, low, base);
                self.record_endpoint(now, *id, low, base);
            }
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    fn handle_timeout(&mut self, now: Time, low: &mut BindingLayer, base: &mut Base) {
        match self.timers.take_due(now) {
            Some(Due::Registration(id)) => self.register(now, id, low, base),
            Some(Due::Whereabouts(id)) => self.send_whereabouts(now, id, low, base),
            Some(Due::Found(id)) => self.try_found(now, id, low, base),
            Some(Due::NeighbourProxy(id)) => self.ask_neighbour_proxy(now, id, low, base),
            Some(Due::Rendezvous) => self.search_for_rendezvous(now, low, base),
            None => {}
        }
    }

    fn forget_peer(&mut self, id: PeerId, key: PublicKey, low: &mut BindingLayer, base: &mut Base) {
        self.leave_rendezvous(id, low, base);
        self.leave_rendezvous_server(id, key, low);
        self.forget_neighbour_proxies(id, base);
        for timer in [Due::Registration(id), Due::Whereabouts(id), Due::Found(id), Due::NeighbourProxy(id)] {
            self.timers.stop(timer);
        }
    }

    fn entries(&self) -> usize {
        self.client.entries() + self.rendezvous_server.entries() + self.neighbour_proxies.entries()
    }
}
