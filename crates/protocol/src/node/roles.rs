//! All roles of a host. What comes to it goes to all of them, or to the one that it is for.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::role::anchor::Anchor;
use crate::role::anchor::referral::ReferralRole;
use crate::role::community::Community;
use crate::role::gateway::GatewayRole;
use crate::role::links::LinksRole;
use crate::role::relocation::Relocation;
use crate::role::rendezvous::RendezvousRole;
use crate::role::{At, Came, Role};

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
                came: &mut Came<'_>,
                message: Message,
                at: &mut At<'_>,
            ) -> Option<Message> {
                $(let message = self.$role.handle_message(came, message, at)?;)*
                Some(message)
            }

            /// Something has happened.
            pub(super) fn handle_signal(
                &mut self,
                signal: &Signal,
                at: &mut At<'_>,
            ) {
                $(self.$role.handle_signal(signal, at);)*
            }

            /// The result of an op that a role has asked for.
            pub(super) fn handle_done(
                &mut self,
                asked: MoveAsked,
                result: Result<OpDone, OpFailed>,
                at: &mut At<'_>,
            ) {
                $(if <$kind>::asked(&asked) {
                    return self.$role.handle_done(asked, result, at);
                })*
            }

            /// When [`Self::handle_timeout`] is due.
            pub(super) fn poll_timeout(&self) -> Option<Time> {
                [$(self.$role.poll_timeout(),)*].into_iter().flatten().min()
            }

            /// What is due happens.
            pub(super) fn handle_timeout(&mut self, at: &mut At<'_>) {
                $(if self.$role.poll_timeout().is_some_and(|due| due <= at.now()) {
                    self.$role.handle_timeout(at);
                })*
            }

            /// A peer is forgotten.
            pub(super) fn forget_peer(
                &mut self,
                id: PeerId,
                key: PublicKey,
                at: &mut At<'_>,
            ) {
                $(self.$role.forget_peer(id, key, at);)*
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
    links: LinksRole,
}
