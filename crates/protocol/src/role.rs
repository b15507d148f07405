//! What a host does for others, or has others do for it. No role knows another.

pub(crate) mod anchor;
pub(crate) mod community;
pub(crate) mod gateway;
pub(crate) mod relocation;
pub(crate) mod rendezvous;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;

/// One role. The set is closed: the node knows each by its type. Of timers there is one table, for all (`base::timer`),
/// so a role gives no deadline of its own.
pub(crate) trait Role {
    /// Whether a message is one of the role's.
    fn takes(message: &Message) -> bool;

    /// A peer has said something that the role [takes](Role::takes). `answers`: what goes back to where it came from.
    fn handle_message(
        &mut self,
        now: Time,
        from: PeerId,
        arrival: &Arrival,
        message: Message,
        answers: &mut Vec<Message>,
        low: &mut BindingLayer,
        base: &mut Base,
    );

    /// Something has happened below, or in another role.
    fn handle_signal(&mut self, now: Time, signal: &Signal, low: &mut BindingLayer, base: &mut Base);

    /// A timer has gone off. Tells whether it is one of the role's.
    fn handle_timer(&mut self, now: Time, timer: Timer, low: &mut BindingLayer, base: &mut Base) -> bool;

    /// A peer is forgotten, which has this key.
    fn forget_peer(&mut self, id: PeerId, key: PublicKey, low: &mut BindingLayer, base: &mut Base);

    /// Entries of all tables together.
    fn entries(&self) -> usize;
}
