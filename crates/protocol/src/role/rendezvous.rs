//! Third hosts: they tell where a peer is, and take in what is said to whom has left their link.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::role::Role;
use crate::role::rendezvous::client::Rendezvous;
use crate::role::rendezvous::proxy::NeighbourProxies;
use crate::role::rendezvous::server::RendezvousServer;

pub(crate) mod client;
pub(crate) mod proxy;
pub(crate) mod server;

/// Meeting by way of third hosts: those that serve this one, those that this one serves, and whom it stands in for.
#[derive(Default)]
pub(crate) struct RendezvousRole {
    client: Rendezvous,
    rendezvous_server: RendezvousServer,
    neighbour_proxies: NeighbourProxies,
}

impl Role for RendezvousRole {
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

    fn handle_message(
        &mut self,
        now: Time,
        from: PeerId,
        arrival: &Arrival,
        message: Message,
        answers: &mut Vec<Message>,
        low: &mut BindingLayer,
        base: &mut Base,
    ) {
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
                self.prove_found(from, token, low, base);
            }
            _ => {}
        }
    }

    fn handle_signal(&mut self, now: Time, signal: &Signal, low: &mut BindingLayer, base: &mut Base) {
        match signal {
            Signal::FlowsBegun | Signal::Returned => self.meet_later(now, base),
            Signal::NetworkChanged => self.ask_rendezvous_again(now, low, base),
            Signal::Moving(id) => self.try_found_again(now, *id, base),
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

    fn handle_timer(&mut self, now: Time, timer: Timer, low: &mut BindingLayer, base: &mut Base) -> bool {
        match timer {
            Timer::Registration(id) => self.register(now, id, low, base),
            Timer::Whereabouts(id) => self.send_whereabouts(now, id, low, base),
            Timer::Found(id) => self.try_found(now, id, low, base),
            Timer::NeighbourProxy(id) => self.ask_neighbour_proxy(now, id, low, base),
            Timer::Rendezvous => self.search_for_rendezvous(now, low, base),
            _ => return false,
        }
        true
    }

    fn forget_peer(&mut self, id: PeerId, key: PublicKey, low: &mut BindingLayer, base: &mut Base) {
        self.leave_rendezvous(id, low, base);
        self.leave_rendezvous_server(id, key, low);
        self.forget_neighbour_proxies(id, base);
        for timer in [Timer::Registration(id), Timer::Whereabouts(id), Timer::Found(id), Timer::NeighbourProxy(id)] {
            base.stop_timer(timer);
        }
    }

    fn entries(&self) -> usize {
        self.client.entries() + self.rendezvous_server.entries() + self.neighbour_proxies.entries()
    }
}
