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
use crate::role::rendezvous::proxy::StandIns;
use crate::role::rendezvous::server::Meetings;

pub(crate) mod client;
pub(crate) mod proxy;
pub(crate) mod server;

/// Meeting by way of third hosts: those that serve this one, those that this one serves, and whom it stands in for.
#[derive(Default)]
pub(crate) struct RendezvousRole {
    client: Rendezvous,
    meetings: Meetings,
    stand_ins: StandIns,
}

impl Role for RendezvousRole {
    fn takes(message: &Message) -> bool {
        matches!(
            message,
            Message::Register { .. }
                | Message::Registered { .. }
                | Message::Whereabouts { .. }
                | Message::WhereaboutsSeen { .. }
                | Message::StandIn { .. }
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
            Message::StandIn { addresses } => {
                answers.extend(self.handle_stand_in(now, from, arrival, &addresses, low, base));
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
                self.want_stand_in(now, *id, low, base);
            }
            Signal::Answered(id) => self.stand_in_no_more(now, *id, low, base),
            Signal::SessionUp(id) => {
                self.register_anew(now, *id, low, base);
                self.note_endpoint(now, *id, low, base);
            }
            _ => {}
        }
    }

    fn handle_timer(&mut self, now: Time, timer: Timer, low: &mut BindingLayer, base: &mut Base) -> bool {
        match timer {
            Timer::Registration(id) => self.register(now, id, low, base),
            Timer::Whereabouts(id) => self.tell_whereabouts(now, id, low, base),
            Timer::Found(id) => self.try_found(now, id, low, base),
            Timer::StandIn(id) => self.ask_stand_in(now, id, low, base),
            Timer::Rendezvous => self.look_for_rendezvous(now, low, base),
            _ => return false,
        }
        true
    }

    fn forget_peer(&mut self, id: PeerId, key: PublicKey, low: &mut BindingLayer, base: &mut Base) {
        self.leave_rendezvous(id, low, base);
        self.leave_meetings(id, key, low);
        self.forget_stand_ins(id, base);
        for timer in [Timer::Registration(id), Timer::Whereabouts(id), Timer::Found(id), Timer::StandIn(id)] {
            base.stop_timer(timer);
        }
    }

    fn entries(&self) -> usize {
        self.client.entries() + self.meetings.entries() + self.stand_ins.entries()
    }
}
