//! Options that programs set on sockets, under numbers of their own.

/// The highest SO_PRIORITY that needs no privilege (socket(7)).
pub const MOST_PRIORITY: u64 = 6;

/// Declares the kinds, in the order of their numbers, and the list of them.
macro_rules! option_kinds {
    ($($(#[$doc:meta])+ $name:ident = $number:literal,)+) => {
        /// What an option is about. The numbers are those of snapshots, whatever the kernel's are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum OptionKind {
            $($(#[$doc])+ $name = $number,)+
        }

        impl OptionKind {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

option_kinds! {
    /// SO_REUSEADDR: 1.
    ReuseAddress = 1,
    /// SO_REUSEPORT: 1.
    ReusePort = 2,
    /// SO_KEEPALIVE: 1.
    KeepAlive = 3,
    /// SO_OOBINLINE: 1.
    UrgentInline = 4,
    /// SO_BROADCAST: 1.
    Broadcast = 5,
    /// SO_LINGER, on: seconds.
    Linger = 6,
    /// SO_SNDBUF as set by the program: bytes, without the kernel's doubling.
    SendBuffer = 7,
    /// SO_RCVBUF: likewise.
    ReceiveBuffer = 8,
    /// SO_RCVLOWAT: bytes.
    ReceiveLowWater = 9,
    /// SO_RCVTIMEO: microseconds.
    ReceiveTimeout = 10,
    /// SO_SNDTIMEO: microseconds.
    SendTimeout = 11,
    /// SO_PRIORITY, up to [`MOST_PRIORITY`].
    Priority = 12,
    /// SO_MARK.
    Mark = 13,
    /// SO_MAX_PACING_RATE: bytes a second.
    MaxPacingRate = 14,
    /// SO_PRIORITY beyond [`MOST_PRIORITY`], which needs a privilege.
    HighPriority = 15,
    /// SO_NO_CHECK: 1.
    NoChecksums = 16,
    /// SO_PEEK_OFF: bytes.
    PeekOffset = 17,
    /// SO_TIMESTAMP with the seconds of the processor's own width: 1.
    ReceiveTime = 18,
    /// SO_TIMESTAMPNS, likewise: 1.
    ReceiveTimeNanoseconds = 19,
    /// IP_TOS: the octet.
    TypeOfService = 20,
    /// IP_TTL.
    TimeToLive = 21,
    /// IP_RECVERR: 1.
    ReceiveErrors = 22,
    /// IP_PKTINFO: 1.
    PacketInfo = 23,
    /// IP_RECVTOS: 1.
    ReceiveTypeOfService = 24,
    /// IP_MTU_DISCOVER: as RFC-neutral numbers of Linux (0 don't, 1 want, 2 do, 3 probe, 4 interface, 5 omit).
    MtuDiscovery = 25,
    /// IP_RECVTTL: 1.
    ReceiveTimeToLive = 26,
    /// IP_MINTTL.
    MinimumTimeToLive = 27,
    /// IP_FREEBIND: 1.
    FreeBind = 28,
    /// IP_TRANSPARENT: 1.
    Transparent = 29,
    /// IP_MULTICAST_TTL.
    MulticastTimeToLive = 30,
    /// IP_MULTICAST_LOOP: 0 or 1.
    MulticastLoop = 31,
    /// IP_MULTICAST_ALL: 0 or 1.
    MulticastAll = 32,
    /// IP_RECVORIGDSTADDR: 1.
    ReceiveOriginalDestination = 33,
    /// IP_CHECKSUM: 1.
    ReceiveChecksum = 34,
    /// IP_RECVOPTS: 1.
    ReceiveOptions = 35,
    /// IP_RETOPTS: 1.
    ReceiveReturnOptions = 36,
    /// IP_RECVFRAGSIZE: 1.
    ReceiveFragmentSize = 37,
    /// IP_LOCAL_PORT_RANGE: the last port in the upper 16 bits, the first in the lower.
    LocalPortRange = 38,
    /// IP_RECVERR_RFC4884: 1.
    ReceiveErrorsExtended = 39,
    /// IPV6_V6ONLY: 1.
    V6Only = 40,
    /// IPV6_TCLASS: the octet.
    TrafficClass = 41,
    /// IPV6_UNICAST_HOPS.
    HopLimit = 42,
    /// IPV6_RECVERR: 1.
    V6ReceiveErrors = 43,
    /// IPV6_RECVPKTINFO: 1.
    V6PacketInfo = 44,
    /// IPV6_MTU_DISCOVER: as [`MtuDiscovery`](Self::MtuDiscovery).
    V6MtuDiscovery = 45,
    /// IPV6_RECVTCLASS: 1.
    V6ReceiveTrafficClass = 46,
    /// IPV6_RECVHOPLIMIT: 1.
    V6ReceiveHopLimit = 47,
    /// IPV6_MINHOPCOUNT.
    V6MinimumHopCount = 48,
    /// IPV6_DONTFRAG: 1.
    V6DontFragment = 49,
    /// IPV6_MULTICAST_HOPS.
    V6MulticastHops = 50,
    /// IPV6_MULTICAST_LOOP: 0 or 1.
    V6MulticastLoop = 51,
    /// IPV6_MULTICAST_ALL: 0 or 1.
    V6MulticastAll = 52,
    /// IPV6_RECVORIGDSTADDR: 1.
    V6ReceiveOriginalDestination = 53,
    /// IPV6_RECVFRAGSIZE: 1.
    V6ReceiveFragmentSize = 54,
    /// IPV6_RECVPATHMTU: 1.
    V6ReceivePathMtu = 55,
    /// IPV6_AUTOFLOWLABEL: 0 or 1.
    V6AutoFlowLabel = 56,
    /// IPV6_ADDR_PREFERENCES (RFC 5014): its flags.
    V6AddressPreferences = 57,
    /// IPV6_RECVERR_RFC4884: 1.
    V6ReceiveErrorsExtended = 58,
    /// IPV6_FLOWINFO: 1.
    V6ReceiveFlowInfo = 59,
    /// TCP_NODELAY: 1.
    NoDelay = 60,
    /// TCP_CORK: 1.
    Cork = 61,
    /// TCP_KEEPIDLE: seconds.
    KeepIdle = 62,
    /// TCP_KEEPINTVL: seconds.
    KeepInterval = 63,
    /// TCP_KEEPCNT.
    KeepCount = 64,
    /// TCP_USER_TIMEOUT: milliseconds.
    UserTimeout = 65,
    /// TCP_LINGER2: seconds.
    FinWait2Timeout = 66,
    /// TCP_DEFER_ACCEPT: seconds.
    DeferAccept = 67,
    /// TCP_NOTSENT_LOWAT: bytes.
    UnsentLowWater = 68,
    /// TCP_THIN_LINEAR_TIMEOUTS: 1.
    ThinLinearTimeouts = 69,
    /// TCP_SYNCNT.
    SynCount = 70,
    /// TCP_WINDOW_CLAMP: bytes.
    WindowClamp = 71,
    /// TCP_MAXSEG of a listener: bytes.
    MaximumSegment = 72,
    /// TCP_FASTOPEN: how many may wait.
    FastOpen = 73,
    /// TCP_FASTOPEN_NO_COOKIE: 1.
    FastOpenNoCookie = 74,
    /// TCP_SAVE_SYN: 1, or 2 with the link's header.
    SaveSyn = 75,
    /// TCP_INQ: 1.
    TellUnread = 76,
    /// TCP_TX_DELAY: microseconds.
    TransmitDelay = 77,
    /// TCP_RTO_MAX_MS: milliseconds.
    LongestTimeout = 78,
    /// TCP_RTO_MIN_US: microseconds.
    ShortestTimeout = 79,
    /// UDP_SEGMENT: bytes.
    UdpSegment = 80,
    /// UDP_GRO: 1.
    UdpGro = 81,
    /// UDP_NO_CHECK6_TX: 1.
    V6SendNoChecksums = 82,
    /// UDP_NO_CHECK6_RX: 1.
    V6TakeNoChecksums = 83,
    /// SO_TIMESTAMP with seconds of 64 bits: 1.
    ReceiveTime64 = 100,
    /// SO_TIMESTAMPNS with seconds of 64 bits: 1.
    ReceiveTimeNanoseconds64 = 101,
    /// SO_BUSY_POLL: microseconds.
    BusyPoll = 102,
    /// SO_PREFER_BUSY_POLL: 1.
    PreferBusyPoll = 103,
    /// SO_RXQ_OVFL: 1.
    ReceiveOverflows = 105,
    /// SO_WIFI_STATUS: 1.
    WifiStatus = 106,
    /// SO_LOCK_FILTER: 1.
    LockFilter = 107,
    /// SO_SELECT_ERR_QUEUE: 1.
    SelectErrorQueue = 108,
    /// SO_TXREHASH, off: 0.
    NoRehash = 109,
    /// SO_RCVMARK: 1.
    ReceiveMark = 110,
    /// SO_RCVPRIORITY: 1.
    ReceivePriority = 111,
    /// IP_BIND_ADDRESS_NO_PORT: 1.
    BindNoPort = 120,
    /// IP_PASSSEC: 1.
    ReceiveSecurity = 121,
    /// IPV6_RECVHOPOPTS: 1.
    V6ReceiveHopOptions = 140,
    /// IPV6_RECVRTHDR: 1.
    V6ReceiveRouting = 141,
    /// IPV6_RECVDSTOPTS: 1.
    V6ReceiveDestinationOptions = 142,
    /// IPV6_2292PKTINFO: 1.
    V6OldPacketInfo = 143,
    /// IPV6_2292HOPOPTS: 1.
    V6OldHopOptions = 144,
    /// IPV6_2292DSTOPTS: 1.
    V6OldDestinationOptions = 145,
    /// IPV6_2292RTHDR: 1.
    V6OldRouting = 146,
    /// IPV6_2292HOPLIMIT: 1.
    V6OldHopLimit = 147,
    /// TCP_DELACK_MAX_US: microseconds.
    LongestDelay = 160,
    /// TCP_CONGESTION of a listener: 1 reno, 2 cubic, 3 bbr, 4 dctcp, 5 vegas, 6 westwood, 7 htcp, 8 hybla, 9 illinois,
    /// 10 scalable, 11 yeah.
    CongestionControl = 161,
}

impl OptionKind {
    /// The kind of a number, if it is one that this version knows.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u16 == number)
    }

    /// Its number in snapshots.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Whether a connection has it no sooner than it wakes: before, it would send something or end by itself, or what
    /// waits in its queues would not fit. Nothing may fail then, so values are numbers that Linux takes.
    #[must_use]
    pub fn waits_until_awake(self) -> bool {
        matches!(self, Self::SendBuffer | Self::ReceiveBuffer | Self::NoDelay | Self::UserTimeout)
    }

    /// Whether Linux lets only those set it who have CAP_NET_ADMIN or CAP_NET_RAW: a host sets it for another's program
    /// only where it is told to (protocol.md P-147).
    #[must_use]
    pub fn is_privileged(self) -> bool {
        matches!(
            self,
            Self::Mark
                | Self::HighPriority
                | Self::Transparent
                | Self::BusyPoll
                | Self::PreferBusyPoll
                | Self::ReceiveMark
                | Self::ReceivePriority
        )
    }
}

/// An option that a program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOption {
    /// Which.
    pub kind: OptionKind,
    /// In the unit of the kind; 1 for what is on.
    pub value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_in_the_order_of_their_numbers() {
        assert!(OptionKind::ALL.windows(2).all(|pair| pair[0].number() < pair[1].number()));
        assert!(OptionKind::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
