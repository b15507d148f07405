//! All roles of a host. What comes to it goes to all of them, or to the one that it is for.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::binding::BindingLayer;
use crate::role::anchor::Anchor;
use crate::role::anchor::referral::ReferralRole;
use crate::role::community::Community;
use crate::role::gateway::GatewayRole;
use crate::role::relocation::Relocation;
use crate::role::rendezvous::RendezvousRole;
use crate::role::{Came, Role};

/// Has each role of a list see to what comes, in its order.
macro_rules! roles {
    ($($role:ident: $kind:ty,)*) => {
        /// The roles, by their types.
        pub(crate) struct Roles {
            $(pub(super) $role: $kind,)*
        }

        impl Roles {
            /// Those of a host without peers and flows.
            pub(super) fn new(base: &Base) -> Self {
                Self { $($role: <$kind>::new(base),)* }
            }

            /// A peer has said something. Gives back what is no role's.
            pub(super) fn handle_message(
                &mut self,
                now: Time,
                came: Came<'_>,
                message: Message,
                low: &mut BindingLayer,
                base: &mut Base,
            ) -> Option<Message> {
                $(if <$kind>::takes(&message) {
                    self.$role.handle_message(now, came, message, low, base);
                    return None;
                })*
                Some(message)
            }

            /// Something has happened.
            pub(super) fn handle_signal(
                &mut self,
                now: Time,
                signal: &Signal,
                low: &mut BindingLayer,
                base: &mut Base,
            ) {
                $(self.$role.handle_signal(now, signal, low, base);)*
            }

            /// The result of an op that a role has asked for.
            pub(super) fn handle_done(
                &mut self,
                now: Time,
                asked: MoveAsked,
                result: Result<OpDone, OpFailed>,
                low: &mut BindingLayer,
                base: &mut Base,
            ) {
                $(if <$kind>::asked(&asked) {
                    return self.$role.handle_done(now, asked, result, low, base);
                })*
            }

            /// When [`Self::handle_timeout`] is due.
            pub(super) fn poll_timeout(&self) -> Option<Time> {
                [$(self.$role.poll_timeout(),)*].into_iter().flatten().min()
            }

            /// What is due happens.
            pub(super) fn handle_timeout(&mut self, now: Time, low: &mut BindingLayer, base: &mut Base) {
                $(if self.$role.poll_timeout().is_some_and(|due| due <= now) {
                    self.$role.handle_timeout(now, low, base);
                })*
            }

            /// A peer is forgotten.
            pub(super) fn forget_peer(
                &mut self,
                id: PeerId,
                key: PublicKey,
                low: &mut BindingLayer,
                base: &mut Base,
            ) {
                $(self.$role.forget_peer(id, key, low, base);)*
            }

            /// Entries of all tables together.
            pub(super) fn entries(&self) -> usize {
                [$(self.$role.entries(),)*].into_iter().sum()
            }
        }
    };
}

roles! {
    rendezvous: RendezvousRole,
    referral: ReferralRole,
    gateway: GatewayRole,
    relocation: Relocation,
    anchor: Anchor,
    community: Community,
}
