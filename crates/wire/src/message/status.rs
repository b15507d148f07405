//! What messages say in one byte: outcomes, refusals and what is to be done.

/// Declares an enumeration of one byte that keeps values which are not known.
macro_rules! byte_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
            /// A value that this version does not know.
            Other(u8),
        }

        impl $name {
            /// The value of a byte on the wire.
            #[must_use]
            pub const fn from_number(number: u8) -> Self {
                match number {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// The byte on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Other(other) => other,
                }
            }
        }
    };
}
pub(crate) use byte_enum;

byte_enum! {
    /// Why a responder did not take a flow as introduced. On the wire 0 stands for "introduced".
    IntroductionRefusal {
        /// The places in the echo are not those that the responder has in force (P-14).
        OtherPlaces = 1,
        /// The introducer's nonce has not arrived on any flow.
        NotSeen = 2,
        /// The responder's nonce was sent on another flow than the one that the introducer's came on.
        OtherFlow = 3,
        /// The responder has no socket that takes what comes under this tuple (P-35).
        Refused = 4,
        /// The responder has too many flows or introductions at the moment.
        Busy = 5,
        /// The responder leaves the flow alone, as its policy wants it (P-59).
        Declined = 6,
    }
}

byte_enum! {
    /// What became of a binding update.
    BindingStatus {
        /// The binding is in force.
        Accepted = 0,
        /// The sequence number is not newer than the newest accepted one, which the acknowledgement names (P-17).
        NotNewer = 1,
        /// The peer does not want this.
        Refused = 2,
    }
}

byte_enum! {
    /// What becomes of the tags that are registered.
    RegistrationChange {
        /// Forget these.
        Withdraw = 0,
        /// These as well.
        Add = 1,
        /// Forget all that there were before, and remember these.
        Replace = 2,
    }
}

byte_enum! {
    /// What became of a registration.
    RegistrationStatus {
        /// It is remembered.
        Accepted = 0,
        /// Its number is not newer than the newest accepted one, which the answer names.
        NotNewer = 1,
        /// The peer is nobody's rendezvous.
        Refused = 2,
        /// There is no room for all of the tags.
        Full = 3,
    }
}

byte_enum! {
    /// What becomes of an address that somebody is to stand in for.
    NeighbourProxyStatus {
        /// It is stood in for, once it is seen that nobody has it.
        Accepted = 0,
        /// The host that asks was never met there.
        Unproven = 1,
        /// It is on no link of the one that is asked.
        OffLink = 2,
        /// Somebody has it.
        Taken = 3,
        /// The peer stands in for nobody, or for no more.
        Refused = 4,
    }
}

byte_enum! {
    /// Why a session is dropped.
    CloseReason {
        /// The daemon ends.
        Shutdown = 0,
        /// The peer is no longer trusted, or never was.
        Untrusted = 1,
        /// A newer session takes the place of this one.
        Replaced = 2,
        /// The peer broke the protocol.
        Violation = 3,
    }
}

/// Bits of a binding update and of its acknowledgement. Bits that are not known are kept and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpdateFlags(pub u8);

impl UpdateFlags {
    /// Nothing asked for.
    pub const NONE: Self = Self(0);
    /// Bit 0: plain tunnel datagrams are accepted.
    pub const PLAIN_TUNNEL_ACCEPTED: Self = Self(1 << 0);
    /// Bit 1: the sender does not want the *rewrite* carrier.
    pub const REWRITE_REFUSED: Self = Self(1 << 1);
    /// Bit 2: what was under way on the former path is lost; senders need not wait for their timers to find out.
    pub const FORMER_PATH_LOST: Self = Self(1 << 2);
    /// Bit 3: no flow is at home any more, though the sender may be seen where it was: another address of its is gone,
    /// which some of them used.
    pub const UPROOTED: Self = Self(1 << 3);
    /// Bit 4: the sender goes away; its flows wait for the next update (P-44).
    pub const ABSENT: Self = Self(1 << 4);
    /// Bit 5: the sender was started anew, and what was under way in the tunnel meanwhile is lost (P-226).
    pub const TUNNEL_LOST: Self = Self(1 << 5);

    /// Whether all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
