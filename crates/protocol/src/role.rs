//! What a host does for others, or has others do for it. No role knows another.

pub(crate) mod anchor;
pub(crate) mod community;
pub(crate) mod gateway;
pub(crate) mod links;
pub(crate) mod relocation;
pub(crate) mod rendezvous;
#[cfg(test)]
mod tests;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::binding::BindingLayer;

/// The moment of an input, and what is below a role at that.
pub(crate) struct At<'a> {
    now: Time,
    low: &'a mut BindingLayer,
    base: &'a mut Base,
}

impl<'a> At<'a> {
    pub(crate) fn new(now: Time, low: &'a mut BindingLayer, base: &'a mut Base) -> Self {
        Self { now, low, base }
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }
}

/// How a message has come, and what goes back to where it came from.
pub(crate) struct Came<'a> {
    from: PeerId,
    arrival: &'a Arrival,
    answers: &'a mut Vec<Message>,
}

impl<'a> Came<'a> {
    pub(crate) fn new(from: PeerId, arrival: &'a Arrival, answers: &'a mut Vec<Message>) -> Self {
        Self { from, arrival, answers }
    }
}

/// One role: a type with its own state, its own deadlines, and what is below it. The set is closed, and the node knows
/// each by its type (`node::roles`). What a role has nothing to do with it leaves out.
pub(crate) trait Role: Sized {
    /// That of a host without peers and flows.
    fn new(base: &Base) -> Self;

    /// A peer has said something. Gives back what is not the role's.
    fn handle_message(&mut self, _: &mut Came<'_>, message: Message, _: &mut At<'_>) -> Option<Message> {
        Some(message)
    }

    /// Something has happened below, or in another role.
    fn handle_signal(&mut self, _: &Signal, _: &mut At<'_>) {}

    /// Whether an op is one of the role's.
    fn asked(_: &MoveAsked) -> bool {
        false
    }

    /// The result of an op that the role [has asked for](Role::asked).
    fn handle_done(&mut self, _: MoveAsked, _: Result<OpDone, OpFailed>, _: &mut At<'_>) {}

    /// When [`Role::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Something is due.
    fn handle_timeout(&mut self, _: &mut At<'_>) {}

    /// A peer is forgotten, which has this key.
    fn forget_peer(&mut self, _: PeerId, _: PublicKey, _: &mut At<'_>) {}

    /// Entries of all tables together. Of those that are few and end by themselves nothing is said.
    fn entries(&self) -> usize {
        0
    }
}

/// A role and what is below it, without others.
#[cfg(test)]
struct Alone<R> {
    role: R,
    low: BindingLayer,
    base: Base,
}

#[cfg(test)]
impl<R: Role> Alone<R> {
    fn new(config: crate::Config, seed: u8) -> Self {
        let key = whimbrel_handshake::StaticKey::from_bytes([3; 32]);
        let mut random = crate::base::random::Random::new([seed; 32]);
        let low = BindingLayer::new(&config, key.public(), &mut random);
        let base = Base::new(config, key, random);
        Self { role: R::new(&base), low, base }
    }

    fn act<T>(&mut self, now: Time, act: impl FnOnce(&mut R, &mut At<'_>) -> T) -> T {
        act(&mut self.role, &mut At::new(now, &mut self.low, &mut self.base))
    }
}
