//! Options that programs set on sockets, under numbers of their own.

/// What an option is about. The numbers are those of snapshots, whatever the kernel's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum OptionKind {
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
    /// SO_PRIORITY.
    Priority = 12,
    /// SO_MARK.
    Mark = 13,
    /// SO_MAX_PACING_RATE: bytes a second.
    MaxPacingRate = 14,
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
    /// UDP_SEGMENT: bytes.
    UdpSegment = 80,
    /// UDP_GRO: 1.
    UdpGro = 81,
}

impl OptionKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 37] = [
        Self::ReuseAddress,
        Self::ReusePort,
        Self::KeepAlive,
        Self::UrgentInline,
        Self::Broadcast,
        Self::Linger,
        Self::SendBuffer,
        Self::ReceiveBuffer,
        Self::ReceiveLowWater,
        Self::ReceiveTimeout,
        Self::SendTimeout,
        Self::Priority,
        Self::Mark,
        Self::MaxPacingRate,
        Self::TypeOfService,
        Self::TimeToLive,
        Self::ReceiveErrors,
        Self::PacketInfo,
        Self::ReceiveTypeOfService,
        Self::MtuDiscovery,
        Self::V6Only,
        Self::TrafficClass,
        Self::HopLimit,
        Self::V6ReceiveErrors,
        Self::V6PacketInfo,
        Self::NoDelay,
        Self::Cork,
        Self::KeepIdle,
        Self::KeepInterval,
        Self::KeepCount,
        Self::UserTimeout,
        Self::FinWait2Timeout,
        Self::DeferAccept,
        Self::UnsentLowWater,
        Self::ThinLinearTimeouts,
        Self::UdpSegment,
        Self::UdpGro,
    ];

    /// The kind of a number, if it is one that this version knows.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Its number in snapshots.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
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
