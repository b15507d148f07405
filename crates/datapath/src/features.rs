use std::thread;

use crate::cgroup::root_cgroup;
use crate::hook::Hook;
use crate::object::{DATAPATH, GREETINGS, LEASES, NAMES, Programs, SOCKETS, WINDOWS};

/// What the running kernel lets this crate do, found by trying. Without privileges everything is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The kernel tells its types (`/sys/kernel/btf/vmlinux`). Without them no sockets can be listed or followed.
    pub btf: bool,
    /// BPF_MAP_TYPE_RINGBUF (5.8): without it nothing works.
    pub ring_buffer: bool,
    /// `bpf_redirect_neigh` (5.10): without it no packet can be rewritten.
    pub redirect_neigh: bool,
    /// All programs on tc load.
    pub datapath: bool,
    /// tcx links (6.6). Without them filters on clsact are used.
    pub tcx: bool,
    /// Filters on a clsact qdisc (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF), which only kernels without tcx need;
    /// `None` where it may not be tried, for want of CAP_SYS_ADMIN.
    pub clsact: Option<bool>,
    /// The programs on sockets load: listing by `iter/tcp` and following by `inet_sock_set_state`.
    pub sockets: bool,
    /// The programs on names load (cgroup hooks, of which `getpeername` and `getsockname` came last, in 5.8), and there
    /// is a cgroup v2 hierarchy to attach them to. Without them no program is shown other addresses than its sockets
    /// have.
    pub names: bool,
    /// The programs on leases load (`bpf_set_retval` in cgroup hooks, 5.18), and there is a cgroup v2 hierarchy.
    /// Without them a program may bind a port that its anchor has not lent, and hears nothing there.
    pub leases: bool,
    /// The program on handshakes loads (options in headers from `sock_ops`, 5.10; `bpf_get_netns_cookie` there, 5.15),
    /// and there is a cgroup v2 hierarchy. Without it hosts say nothing of themselves in the handshake of TCP.
    pub greetings: bool,
    /// A congestion control can be written that sets windows and paces (6.5). Without it senders that come back to a
    /// network begin there as on one that nobody has been on.
    pub windows: bool,
}

/// Tries what this kernel has. Loads the programs and throws them away; attaches nothing to this host's interfaces.
#[must_use]
pub fn features() -> Features {
    Features {
        btf: libbpf_rs::btf::Btf::from_vmlinux().is_ok(),
        ring_buffer: libbpf_rs::MapType::RingBuf.is_supported().unwrap_or(false),
        redirect_neigh: libbpf_rs::ProgramType::SchedCls
            .is_helper_supported(libbpf_sys::BPF_FUNC_redirect_neigh)
            .unwrap_or(false),
        datapath: Programs::try_load(DATAPATH),
        tcx: has_tcx(),
        clsact: has_clsact(),
        sockets: Programs::try_load(SOCKETS),
        names: Programs::try_load(NAMES) && root_cgroup().is_ok(),
        leases: Programs::try_load(LEASES) && root_cgroup().is_ok(),
        greetings: Programs::try_load(GREETINGS) && root_cgroup().is_ok(),
        windows: Programs::try_load(WINDOWS),
    }
}

/// Number of the loopback device in every network namespace (net/core/dev.c, `dev_index_reserve`).
const LOOPBACK: u32 = 1;

/// Puts a filter on the loopback device of a network namespace that goes again with the thread that made it.
fn has_clsact() -> Option<bool> {
    let trying = thread::spawn(|| {
        // SAFETY: takes flags; nothing else runs in this thread.
        let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        alone.then(|| Hook::try_filter(LOOPBACK).is_ok())
    });
    // It does not panic; if it did, nothing would be known.
    trying.join().ok().flatten()
}

/// Whether there are tcx links: asks for the programs on the loopback device, which are there or not; a kernel without
/// tcx does not know the question.
#[must_use]
pub fn has_tcx() -> bool {
    let mut options = libbpf_sys::bpf_prog_query_opts::default();
    options.sz = size_of_val(&options) as libbpf_sys::size_t;
    // SAFETY: sized options that live through the call, asking for no arrays.
    let code = unsafe {
        libbpf_sys::bpf_prog_query_opts(LOOPBACK.cast_signed(), libbpf_sys::BPF_TCX_INGRESS, &raw mut options)
    };
    code == 0 || -code == libc::ENOENT
}
