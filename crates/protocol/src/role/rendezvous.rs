//! Third hosts: they tell where a peer is, and take in what is said to whom has left their link.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::role::rendezvous::client::{Informant, Rendezvous};
use crate::role::rendezvous::proxy::NeighbourProxies;
use crate::role::rendezvous::server::RendezvousServer;
use crate::role::{At, Came, Role};

pub(crate) mod client;
pub(crate) mod proxy;
pub(crate) mod server;

/// Meeting by way of third hosts: those that serve this one, those that this one serves, and whom it stands in for.
#[derive(Default)]
pub(crate) struct RendezvousRole {
    client: Rendezvous,
    server: RendezvousServer,
    neighbour_proxies: NeighbourProxies,
    timers: Timers<Due>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Due {
    /// Tell a rendezvous again whom this host is to be met by.
    Registration(PeerId),
    /// Send again to where somebody says that a peer is.
    Found(PeerId, Informant),
    /// Have a name server asked again where a peer is.
    Name(PeerId),
    /// Ask a rendezvous again to stand in for addresses that this host has left.
    NeighbourProxy(PeerId),
    /// Look which rendezvous are needed, and which answer.
    Rendezvous,
}

impl Role for RendezvousRole {
    fn new(_: &Base) -> Self {
        Self::default()
    }

    fn handle_message(&mut self, came: &mut Came<'_>, message: Message, at: &mut At<'_>) -> Option<Message> {
        let Came { from, arrival, answers } = came;
        let from = *from;
        match message {
            Message::Register { number, change, tags } => {
                answers.extend(self.server.handle_registration(from, number, change, &tags, at));
            }
            Message::Registered { number, status, newest } => {
                self.handle_registered(from, number, status, newest, at);
            }
            Message::Whereabouts { number, found } => {
                answers.extend(self.handle_whereabouts(from, number, &found, at));
            }
            Message::WhereaboutsSeen { number } => self.server.handle_whereabouts_seen(from, number, at),
            Message::NeighbourProxy { addresses } => {
                answers.extend(self.handle_neighbour_proxy(from, arrival, &addresses, at));
            }
            Message::StandingIn { addresses } => self.handle_standing_in(from, &addresses, at),
            // To a challenge that nobody below has sent.
            Message::PathResponse { token, .. } => {
                self.prove_found(from, token, at.low);
            }
            other => return Some(other),
        }
        None
    }

    fn handle_signal(&mut self, signal: &Signal, at: &mut At<'_>) {
        match signal {
            Signal::FlowsBegun | Signal::Returned => self.meet_later(at.now, at.base),
            Signal::NetworkChanged => self.ask_rendezvous_again(at),
            Signal::Members { members, .. } => self.handle_members(members.is_empty(), at),
            Signal::Moving(id) => self.try_found_again(*id, at),
            Signal::Silent(id) => self.look_up_later(*id, at),
            Signal::Unanswered(id) => {
                self.look_up_later(*id, at);
                self.check_rendezvous(*id, at);
                self.want_neighbour_proxy(*id, at);
            }
            Signal::Answered(id) => self.end_neighbour_proxy(*id, at),
            Signal::SessionUp(id) => {
                self.register_anew(*id, at);
                self.consider(*id, at);
                self.server.record_endpoint(*id, at);
            }
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers.next().into_iter().chain(self.server.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, at: &mut At<'_>) {
        match self.timers.take_due(at.now) {
            Some(Due::Registration(id)) => self.register(id, at),
            Some(Due::Found(id, by)) => self.try_found(id, by, at),
            Some(Due::Name(id)) => self.look_up(id, at),
            Some(Due::NeighbourProxy(id)) => self.ask_neighbour_proxy(id, at),
            Some(Due::Rendezvous) => self.search_for_rendezvous(at),
            None => self.server.handle_timeout(at),
        }
    }

    fn forget_peer(&mut self, id: PeerId, key: PublicKey, at: &mut At<'_>) {
        self.leave_rendezvous(id, at);
        self.server.forget(id, key, at.low);
        self.forget_neighbour_proxies(id, at.base);
        for timer in [Due::Registration(id), Due::NeighbourProxy(id), Due::Name(id)] {
            self.timers.stop(timer);
        }
    }

    fn entries(&self) -> usize {
        self.client.entries() + self.server.entries() + self.neighbour_proxies.entries()
    }
}

impl RendezvousRole {
    /// Something came from a peer: its confirmed endpoint may be another than before.
    pub(crate) fn record_endpoint(&mut self, id: PeerId, at: &mut At<'_>) {
        self.server.record_endpoint(id, at);
    }

    /// See [`Node::meetings`](crate::Node::meetings).
    pub(crate) fn meetings(&self) -> (usize, usize) {
        self.server.meetings()
    }
}
