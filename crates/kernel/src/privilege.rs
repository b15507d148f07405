//! What this process is allowed to do.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::error::Error;

/// A capability that Whimbrel needs, or that makes it better (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Capability {
    /// Reading what belongs to other users: which program a socket belongs to.
    DacReadSearch = 2,
    /// Addresses, routes, rules, TUN devices, tc, TCP_REPAIR.
    NetAdmin = 12,
    /// Raw sockets: introductions and kicks.
    NetRaw = 13,
    /// Descriptors of other processes.
    SysPtrace = 19,
    /// Entering network namespaces; all of the next two on kernels before 5.8.
    SysAdmin = 21,
    /// BPF programs that read kernel memory.
    Perfmon = 38,
    /// Loading BPF programs.
    Bpf = 39,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::DacReadSearch, Self::NetAdmin, Self::NetRaw, Self::SysPtrace, Self::SysAdmin, Self::Perfmon, Self::Bpf];

    /// The name that the manual page and systemd units use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The effective set of the calling thread. It counts in the user namespace of the process: inside a container it
    /// may be full and still not suffice for the machine's own namespaces.
    ///
    /// # Errors
    /// [`Error::Call`] and [`Error::Answer`] where `/proc` is missing or strange.
    pub fn effective() -> Result<Self, Error> {
        const STATUS: &str = "/proc/thread-self/status";
        let text = std::fs::read_to_string(STATUS).map_err(|e| Error::call("read", STATUS, e))?;
        Self::parse(&text).ok_or_else(|| Error::Answer {
            call: "read",
            object: STATUS.to_owned(),
            detail: "no line CapEff".to_owned(),
        })
    }

    /// Whether the set has this capability.
    #[must_use]
    pub fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    fn parse(status: &str) -> Option<Self> {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Self)
    }
}

/// Does something without CAP_NET_ADMIN and CAP_NET_RAW, so that the kernel refuses the calling thread what it refuses
/// any program.
///
/// # Errors
/// [`Error::Call`]: the thread's capabilities could not be changed; or the error of `work`.
pub(crate) fn without_network<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let failed = |call| move |error| Error::call(call, "the rights of this thread", error);
    let held = capabilities(None).map_err(failed("capget"))?;
    let mut fewer = held;
    fewer.effective.remove(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
    set_capabilities(None, fewer).map_err(failed("capset"))?;
    let result = work();
    // What a thread is permitted it may have back.
    set_capabilities(None, held).map_err(failed("capset"))?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_effective_set() {
        let set = Capabilities::parse("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000008000003000\n").unwrap();
        assert!(set.has(Capability::NetAdmin) && set.has(Capability::NetRaw) && set.has(Capability::Bpf));
        assert!(!set.has(Capability::SysAdmin));
        assert!(Capabilities::parse("CapEff: zz").is_none());
        Capabilities::effective().unwrap();
    }
}
